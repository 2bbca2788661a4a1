/*
 * Merges of a tokenizer.json.
 *
 * For the SentencePiece kind the file lists pairs by rank, where the original model has a score for each piece and
 * merges any two neighbours whose concatenation is one. Both give the same tokens when, for each piece, the list has
 * every way to split it into two symbols; then the rank of a piece's first pair serves as its (negative) score. This is
 * checked for every piece. A piece without any pair is never merged in the original, and becomes UNUSED.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_utf8.h"
#include "model/vocab_json_impl.h"

static firni_gguf_string string_of(const json_t *value)
{
    return (firni_gguf_string){ .data = json_string_value(value), .len_bytes = json_string_length(value) };
}

firn_status firni_json_merge_halves(firni_json_vocab *in, size_t index, firni_gguf_string *left,
                                    firni_gguf_string *right)
{
    const json_t *merge = json_array_get(in->merges, index);
    if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
        json_is_string(json_array_get(merge, 1))) {
        *left = string_of(json_array_get(merge, 0));
        *right = string_of(json_array_get(merge, 1));
        return FIRN_OK;
    }
    const firni_gguf_string both = json_is_string(merge) ? string_of(merge) : (firni_gguf_string){ 0 };
    const char *space = both.len_bytes == 0 ? NULL : memchr(both.data, ' ', both.len_bytes);
    if (space == NULL) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: model.merges: entry %zu is neither \"a b\" nor [\"a\", \"b\"]",
                          in->path, index);
    }
    const size_t len_left = (size_t)(space - both.data);
    *left = (firni_gguf_string){ .data = both.data, .len_bytes = len_left };
    *right = (firni_gguf_string){ .data = space + 1, .len_bytes = both.len_bytes - len_left - 1 };
    return FIRN_OK;
}

firn_status firni_json_read_merges(firni_json_vocab *in)
{
    firni_vocab_spec *spec = in->spec;
    const size_t n = json_array_size(in->merges);
    if (n == 0) {
        return FIRN_OK;
    }
    spec->merges = firni_calloc(in->env, n, sizeof *spec->merges);
    if (spec->merges == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %zu merges", in->path, n);
    }
    for (size_t i = 0; i < n; i++) {
        firni_gguf_string left;
        firni_gguf_string right;
        const firn_status status = firni_json_merge_halves(in, i, &left, &right);
        if (status != FIRN_OK) {
            return status;
        }
        const firni_gguf_string kept = firni_json_keep(in, left.data, left.len_bytes);
        (void)firni_json_keep(in, " ", 1);
        (void)firni_json_keep(in, right.data, right.len_bytes);
        spec->merges[i] = (firni_gguf_string){ .data = kept.data, .len_bytes = left.len_bytes + 1 + right.len_bytes };
    }
    spec->n_merges = (uint32_t)n;
    return FIRN_OK;
}

/* The id of a piece, or FIRN_TOKEN_NONE. Ids have been checked. */
static firn_token id_of(const firni_json_vocab *in, const char *text, size_t len_bytes)
{
    const json_t *id = json_object_getn(in->vocab, text, len_bytes);
    return id == NULL ? FIRN_TOKEN_NONE : (firn_token)json_integer_value(id);
}

/* Whether this text can be one symbol while merging: a character, or a piece that merges have made. */
static bool is_symbol(const firni_json_vocab *in, const uint32_t *n_pairs, const char *text, size_t len_bytes)
{
    uint32_t character = 0;
    if (firni_utf8_decode(text, len_bytes, &character) == len_bytes) {
        return true;
    }
    const firn_token token = id_of(in, text, len_bytes);
    return token != FIRN_TOKEN_NONE && n_pairs[token] > 0;
}

/* In how many ways the piece can come about by joining two symbols. */
static uint32_t count_splits(const firni_json_vocab *in, const uint32_t *n_pairs, const firni_gguf_string *piece)
{
    uint32_t n = 0;
    for (size_t at = 1; at < piece->len_bytes; at++) {
        if (((unsigned char)piece->data[at] & 0xC0) != 0x80) {
            n += is_symbol(in, n_pairs, piece->data, at) &&
                 is_symbol(in, n_pairs, piece->data + at, piece->len_bytes - at);
        }
    }
    return n;
}

/* Sets the score of each piece that a merge makes, and counts its pairs. */
static firn_status score_products(firni_json_vocab *in, uint32_t *n_pairs)
{
    for (size_t i = 0; i < json_array_size(in->merges); i++) {
        firni_gguf_string left;
        firni_gguf_string right;
        firn_status status = firni_json_merge_halves(in, i, &left, &right);
        if (status != FIRN_OK) {
            return status;
        }
        char product[512]; /* longer pieces exist in no vocabulary, and would not be found */
        const size_t len = left.len_bytes + right.len_bytes;
        firn_token token = FIRN_TOKEN_NONE;
        if (len <= sizeof product && left.len_bytes > 0 && right.len_bytes > 0) {
            memcpy(product, left.data, left.len_bytes);
            memcpy(product + left.len_bytes, right.data, right.len_bytes);
            token = id_of(in, product, len);
        }
        if (token == FIRN_TOKEN_NONE) {
            return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: model.merges: entry %zu makes no piece of the vocabulary",
                              in->path, i);
        }
        /* Ranks are below 2^24, so each is a float of its own. */
        if (n_pairs[token]++ == 0) {
            in->spec->scores[token] = -(float)i;
        }
    }
    return FIRN_OK;
}

firn_status firni_json_score_merges(firni_json_vocab *in)
{
    firni_vocab_spec *spec = in->spec;
    uint32_t *n_pairs = firni_calloc(in->env, spec->n_tokens, sizeof *n_pairs);
    spec->scores = firni_calloc(in->env, spec->n_tokens, sizeof *spec->scores);
    firn_status status = FIRN_OK;
    if (n_pairs == NULL || spec->scores == NULL) {
        status = firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %u scores", in->path, spec->n_tokens);
    } else {
        status = score_products(in, n_pairs);
    }
    for (firn_token token = 0; status == FIRN_OK && token < spec->n_tokens; token++) {
        const firni_gguf_string *piece = &spec->pieces[token];
        uint32_t character = 0;
        if (spec->types[token] != FIRNI_PIECE_NORMAL ||
            firni_utf8_decode(piece->data, piece->len_bytes, &character) == piece->len_bytes) {
            continue;
        }
        /* Single characters are symbols from the start: they need no pair. */
        if (n_pairs[token] == 0) {
            spec->types[token] = FIRNI_PIECE_UNUSED;
        } else if (count_splits(in, n_pairs, piece) != n_pairs[token]) {
            status = firni_fail(in->err, FIRN_ERR_UNSUPPORTED,
                                "%s: model.merges: piece %u has %u pairs where a SentencePiece vocabulary has %u",
                                in->path, token, n_pairs[token], count_splits(in, n_pairs, piece));
        }
    }
    firni_free(in->env, n_pairs);
    return status;
}
