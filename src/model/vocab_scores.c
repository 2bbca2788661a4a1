/*
 * Scores of a SentencePiece vocabulary whose file has merges instead.
 *
 * Such a file lists pairs by rank, where the original model has a score for each piece and merges any two neighbours
 * whose concatenation is one. Both give the same tokens when, for each piece, the list has every way to split it into
 * two symbols; then the rank of a piece's first pair serves as its (negative) score. This is checked for every piece. A
 * piece without any pair is never merged in the original, and becomes UNUSED.
 *
 * Owns the lookup of pieces by text while this goes on; the tokenizer has another one, over bytes, later.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_utf8.h"
#include "model/vocab_spec.h"

/* Longer pieces exist in no vocabulary. */
#define PRODUCT_BYTES_MAX 512u

typedef struct scorer {
    firni_vocab_spec *spec;
    firn_token *slots;   /* open addressing; FIRN_TOKEN_NONE: empty */
    uint32_t mask;
    uint32_t *n_pairs;   /* [n_tokens] merges that make the piece */
} scorer;

/* FNV-1a. */
static uint32_t hash_of(const char *text, size_t len_bytes)
{
    uint32_t hash = 0x811c9dc5u;
    for (size_t i = 0; i < len_bytes; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 0x01000193u;
    }
    return hash;
}

static uint32_t slot_of(const scorer *s, const char *text, size_t len_bytes)
{
    uint32_t slot = hash_of(text, len_bytes) & s->mask;
    for (; s->slots[slot] != FIRN_TOKEN_NONE; slot = (slot + 1) & s->mask) {
        const firni_gguf_string *piece = &s->spec->pieces[s->slots[slot]];
        if (piece->len_bytes == len_bytes && memcmp(piece->data, text, len_bytes) == 0) {
            break;
        }
    }
    return slot;
}

/* Twice as many slots as pieces; of two pieces spelled alike the first is found. */
static bool scorer_init(scorer *s, firni_vocab_spec *spec)
{
    uint32_t n_slots = 4;
    while (n_slots < 2 * spec->n_tokens) {
        n_slots *= 2;
    }
    *s = (scorer){ .spec = spec, .mask = n_slots - 1 };
    s->slots = firni_calloc(spec->env, n_slots, sizeof *s->slots);
    s->n_pairs = firni_calloc(spec->env, spec->n_tokens, sizeof *s->n_pairs);
    spec->scores = firni_calloc(spec->env, spec->n_tokens, sizeof *spec->scores);
    if (s->slots == NULL || s->n_pairs == NULL || spec->scores == NULL) {
        return false;
    }
    memset(s->slots, 0xFF, n_slots * sizeof *s->slots);
    for (firn_token token = 0; token < spec->n_tokens; token++) {
        const uint32_t slot = slot_of(s, spec->pieces[token].data, (size_t)spec->pieces[token].len_bytes);
        s->slots[slot] = s->slots[slot] == FIRN_TOKEN_NONE ? token : s->slots[slot];
    }
    return true;
}

static void scorer_deinit(scorer *s)
{
    firni_free(s->spec->env, s->slots);
    firni_free(s->spec->env, s->n_pairs);
}

static bool is_character(const char *text, size_t len_bytes)
{
    uint32_t character = 0;
    return firni_utf8_decode(text, len_bytes, &character) == len_bytes;
}

/* Whether this text can be one symbol while merging: a character, or a piece that merges have made. */
static bool is_symbol(const scorer *s, const char *text, size_t len_bytes)
{
    const firn_token token = s->slots[slot_of(s, text, len_bytes)];
    return is_character(text, len_bytes) || (token != FIRN_TOKEN_NONE && s->n_pairs[token] > 0);
}

/* In how many ways the piece can come about by joining two symbols. */
static uint32_t count_splits(const scorer *s, const firni_gguf_string *piece)
{
    uint32_t n = 0;
    for (size_t at = 1; at < piece->len_bytes; at++) {
        if (((unsigned char)piece->data[at] & 0xC0) != 0x80) {
            n += is_symbol(s, piece->data, at) && is_symbol(s, piece->data + at, (size_t)piece->len_bytes - at);
        }
    }
    return n;
}

/* The piece that a merge makes, or FIRN_TOKEN_NONE. */
static firn_token product_of(const scorer *s, const firni_gguf_string *left, const firni_gguf_string *right)
{
    char product[PRODUCT_BYTES_MAX];
    if (left->len_bytes == 0 || right->len_bytes == 0 || left->len_bytes > sizeof product ||
        right->len_bytes > sizeof product - left->len_bytes) {
        return FIRN_TOKEN_NONE;
    }
    memcpy(product, left->data, (size_t)left->len_bytes);
    memcpy(product + left->len_bytes, right->data, (size_t)right->len_bytes);
    return s->slots[slot_of(s, product, (size_t)(left->len_bytes + right->len_bytes))];
}

/* Every piece has all its pairs, or none. */
static firn_status check_pieces(const scorer *s, const char *where, firn_error *err)
{
    firni_vocab_spec *spec = s->spec;
    for (firn_token token = 0; token < spec->n_tokens; token++) {
        const firni_gguf_string *piece = &spec->pieces[token];
        /* Single characters are symbols from the start: they need no pair. */
        if (spec->types[token] != FIRNI_PIECE_NORMAL || is_character(piece->data, (size_t)piece->len_bytes)) {
            continue;
        }
        if (s->n_pairs[token] == 0) {
            spec->types[token] = FIRNI_PIECE_UNUSED;
        } else if (count_splits(s, piece) != s->n_pairs[token]) {
            return firni_fail(err, FIRN_ERR_UNSUPPORTED,
                              "%s: model.merges: piece %u has %u pairs where a SentencePiece vocabulary has %u", where,
                              token, s->n_pairs[token], count_splits(s, piece));
        }
    }
    return FIRN_OK;
}

firn_status firni_vocab_score_merges(firni_vocab_spec *spec, const char *where, size_t n_merges,
                                     firni_merge_halves halves, void *ctx, firn_error *err)
{
    scorer s;
    firn_status status = FIRN_OK;
    if (!scorer_init(&s, spec)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for %u scores", where, spec->n_tokens);
    }
    for (size_t i = 0; status == FIRN_OK && i < n_merges; i++) {
        firni_gguf_string left;
        firni_gguf_string right;
        status = halves(ctx, i, &left, &right);
        const firn_token token = status == FIRN_OK ? product_of(&s, &left, &right) : FIRN_TOKEN_NONE;
        if (status == FIRN_OK && token == FIRN_TOKEN_NONE) {
            status = firni_fail(err, FIRN_ERR_FORMAT, "%s: model.merges: entry %zu makes no piece of the vocabulary",
                                where, i);
        }
        /* Ranks are below 2^24, so each is a float of its own. */
        if (status == FIRN_OK && s.n_pairs[token]++ == 0) {
            spec->scores[token] = -(float)i;
        }
    }
    status = status == FIRN_OK ? check_pieces(&s, where, err) : status;
    scorer_deinit(&s);
    return status;
}

/* The digits are checked where pieces become bytes. */
bool firni_vocab_is_byte_name(const char *piece, size_t len_bytes)
{
    return len_bytes == 6 && memcmp(piece, "<0x", 3) == 0 && piece[5] == '>';
}
