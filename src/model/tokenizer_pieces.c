/*
 * From stored pieces to the bytes that they stand for, and which of them text can become.
 *
 *   kind  type                       stored as                     bytes
 *   BPE   NORMAL, BYTE, UNUSED       byte-level alphabet           undone; as stored when not of the alphabet
 *   SPM   NORMAL, UNUSED             U+2581 for a space            space
 *   SPM   BYTE                       <0xNN>                        that byte
 *   any   CONTROL, UNKNOWN           its spelling                  as stored
 *   any   USER_DEFINED               its spelling (SPM: U+2581)    as stored (SPM: space)
 *
 * Text can become: for BPE, NORMAL and BYTE pieces of the alphabet, and USER_DEFINED ones whose spelling is their
 * alphabet form, since merges may run through them; for SPM, NORMAL pieces. UNUSED pieces are never formed
 * (SentencePiece forms them on the way and cuts them up again; model files of language models have none that matter).
 */
#include <math.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* U+2581, LOWER ONE EIGHTH BLOCK: SentencePiece's space. */
static const char space_mark[3] = { (char)0xE2, (char)0x96, (char)0x81 };

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* "<0xNN>" */
static bool parse_byte(const firni_gguf_string *piece, uint8_t *out)
{
    if (piece->len_bytes != 6 || memcmp(piece->data, "<0x", 3) != 0 || piece->data[5] != '>') {
        return false;
    }
    const int high = hex_digit(piece->data[3]);
    const int low = hex_digit(piece->data[4]);
    *out = (uint8_t)(high * 16 + low);
    return high >= 0 && low >= 0;
}

/* Copies the piece with a space for each U+2581; returns the bytes. */
static size_t undo_space_marks(const firni_gguf_string *piece, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < piece->len_bytes;) {
        if (piece->len_bytes - at >= sizeof space_mark &&
            memcmp(piece->data + at, space_mark, sizeof space_mark) == 0) {
            out[n++] = ' ';
            at += sizeof space_mark;
        } else {
            out[n++] = piece->data[at++];
        }
    }
    return n;
}

/* fill_bpe, fill_spm: write the bytes of a piece, set *formed when text can become it, and return the length. */
static size_t fill_bpe(const firni_gguf_string *piece, firni_piece_type type, char *out, uint8_t *formed)
{
    size_t n = 0;
    const bool in_alphabet = firni_alphabet_decode(piece->data, piece->len_bytes, out, &n);
    const bool as_spelled = n == piece->len_bytes && memcmp(out, piece->data, n) == 0;
    const bool is_word = type == FIRNI_PIECE_NORMAL || type == FIRNI_PIECE_BYTE;
    *formed = in_alphabet && n > 0 && (is_word || (type == FIRNI_PIECE_USER_DEFINED && as_spelled));
    if (in_alphabet && (is_word || type == FIRNI_PIECE_UNUSED)) {
        return n;
    }
    memcpy(out, piece->data, piece->len_bytes);
    return piece->len_bytes;
}

static size_t fill_spm(const firni_gguf_string *piece, firni_piece_type type, char *out, uint8_t *formed)
{
    if (type == FIRNI_PIECE_CONTROL || type == FIRNI_PIECE_UNKNOWN) {
        memcpy(out, piece->data, piece->len_bytes);
        return piece->len_bytes;
    }
    /* Spaces of the text count as U+2581, so a piece with a space of its own is never reached by text. */
    *formed = type == FIRNI_PIECE_NORMAL && piece->len_bytes > 0 && memchr(piece->data, ' ', piece->len_bytes) == NULL;
    return undo_space_marks(piece, out);
}

/* A number that orders like -score: the highest score gets the lowest. The score is not NaN. */
static uint32_t priority_of(float score)
{
    const float positive_zero = score + 0.0f; /* -0 and 0 are one score */
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* See tokenizer_spm.c: merges can cross only where two bytes are neighbours in some piece. */
static void note_neighbours(firn_tokenizer *tokenizer, const char *bytes, size_t len_bytes)
{
    for (size_t i = 1; i < len_bytes; i++) {
        const unsigned a = (unsigned char)bytes[i - 1];
        const unsigned b = (unsigned char)bytes[i];
        tokenizer->neighbours[32u * a + b / 8u] |= (uint8_t)(1u << (b % 8u));
    }
}

/* A BYTE piece of the SentencePiece kind; of several for one byte, the first is the one that text becomes. */
static firn_status take_byte_piece(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, firn_token token, char *out,
                                   firn_error *err)
{
    uint8_t byte = 0;
    if (!parse_byte(&spec->pieces[token], &byte)) {
        return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens: token %u is a byte but not spelled <0xNN>",
                          token);
    }
    out[0] = (char)byte;
    if (tokenizer->byte_tokens[byte] == FIRN_TOKEN_NONE) {
        tokenizer->byte_tokens[byte] = token;
    }
    return FIRN_OK;
}

firn_status firni_pieces_create(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, uint8_t *formed,
                                firn_error *err)
{
    const firn_env *env = tokenizer->env;
    const uint32_t n = spec->n_tokens;
    /* No form is longer than what is stored. */
    uint64_t n_bytes = 1;
    for (uint32_t i = 0; i < n; i++) {
        n_bytes += spec->pieces[i].len_bytes;
    }
    if (n_bytes > UINT32_MAX) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "tokenizer.ggml.tokens: more than 4 GiB of pieces");
    }
    tokenizer->bytes = firni_calloc(env, (size_t)n_bytes, 1);
    tokenizer->starts = firni_calloc(env, (size_t)n + 1, sizeof *tokenizer->starts);
    tokenizer->types = firni_calloc(env, n, sizeof *tokenizer->types);
    const bool is_spm = spec->kind == FIRNI_VOCAB_SPM;
    if (is_spm) {
        tokenizer->priorities = firni_calloc(env, n, sizeof *tokenizer->priorities);
        tokenizer->neighbours = firni_calloc(env, 256 * 256 / 8, 1);
    }
    if (tokenizer->bytes == NULL || tokenizer->starts == NULL || tokenizer->types == NULL ||
        (is_spm && (tokenizer->priorities == NULL || tokenizer->neighbours == NULL))) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u pieces", n);
    }
    uint32_t at = 0;
    for (firn_token token = 0; token < n; token++) {
        const firni_gguf_string *piece = &spec->pieces[token];
        const firni_piece_type type = firni_piece_type_of(spec, token);
        char *out = tokenizer->bytes + at;
        size_t len = 1;
        if (spec->kind == FIRNI_VOCAB_BPE) {
            len = fill_bpe(piece, type, out, &formed[token]);
        } else if (type != FIRNI_PIECE_BYTE) {
            len = fill_spm(piece, type, out, &formed[token]);
        } else {
            const firn_status status = take_byte_piece(tokenizer, spec, token, out, err);
            if (status != FIRN_OK) {
                return status;
            }
        }
        tokenizer->types[token] = (uint8_t)type;
        if (is_spm) {
            if (isnan(spec->scores[token])) {
                return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.scores: the score of token %u is not a number",
                                  token);
            }
            tokenizer->priorities[token] = priority_of(spec->scores[token]);
            if (formed[token] != 0) {
                note_neighbours(tokenizer, out, len);
            }
        }
        tokenizer->starts[token] = at;
        at += (uint32_t)len;
    }
    tokenizer->starts[n] = at;
    return FIRN_OK;
}
