/*
 * SentencePiece-style BPE: characters to pieces, merges by score, byte fallback. The text holds no special token.
 *
 * A pair merges when its two texts together are a piece; the highest score goes first. What is no piece in the end is
 * one character: it becomes the tokens of its bytes, or the unknown token where the vocabulary has no byte pieces (a
 * run of unknown characters is one token). A byte that is not UTF-8 is a character of its own.
 *
 * The whole text is one unit of merging; but where two characters meet whose bytes stand side by side in no piece, no
 * merge ever crosses. The text is cut there, above all before spaces, so that the queue of merges stays small.
 *
 * Source: Kudo, Richardson, "SentencePiece" (2018), and its published model of type BPE.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

/* firni_join: texts are compared, not tokens, since a character that is no piece can be part of one. */
static bool join_text(const firn_tokenizer *tokenizer, const char *text, const firni_symbol *left,
                      const firni_symbol *right, uint32_t *priority, firn_token *token)
{
    *token = firni_lookup_piece(tokenizer, text + left->start, left->len_bytes + right->len_bytes);
    if (*token == FIRN_TOKEN_NONE) {
        return false;
    }
    *priority = tokenizer->priorities[*token];
    return true;
}

/* Pushes one character that is no piece; *unknown says whether the token before was unknown too. */
static firn_status push_fallback(firni_encoder *encoder, const firni_symbol *symbol, bool *unknown)
{
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    const unsigned char *bytes = (const unsigned char *)encoder->text + symbol->start;
    bool has_bytes = true;
    for (uint32_t i = 0; i < symbol->len_bytes; i++) {
        has_bytes = has_bytes && tokenizer->byte_tokens[bytes[i]] != FIRN_TOKEN_NONE;
    }
    if (has_bytes) {
        *unknown = false;
        firn_status status = FIRN_OK;
        for (uint32_t i = 0; status == FIRN_OK && i < symbol->len_bytes; i++) {
            status = firni_encoder_push(encoder, tokenizer->byte_tokens[bytes[i]]);
        }
        return status;
    }
    if (tokenizer->unk == FIRN_TOKEN_NONE) {
        return firni_fail(encoder->err, FIRN_ERR_UNSUPPORTED,
                          "the vocabulary has neither a piece, nor bytes, nor an unknown token for a character that "
                          "begins with byte 0x%02X",
                          bytes[0]);
    }
    /* One token for the whole run, as SentencePiece gives. */
    const bool again = *unknown;
    *unknown = true;
    return again ? FIRN_OK : firni_encoder_push(encoder, tokenizer->unk);
}

/* Lays the characters of text[start, end) into one symbol each. */
static uint32_t lay_symbols(firni_encoder *encoder, uint32_t start, uint32_t end)
{
    const char *text = encoder->text;
    uint32_t n = 0;
    for (uint32_t at = start; at < end; n++) {
        uint32_t character = 0;
        const uint32_t len = firni_utf8_decode(text + at, end - at, &character);
        const uint32_t step = len == 0 ? 1 : len; /* a stray byte */
        encoder->symbols[n] = (firni_symbol){ .start = at,
                                              .len_bytes = step,
                                              .prev = n == 0 ? FIRN_TOKEN_NONE : n - 1,
                                              .next = n + 1,
                                              .token = firni_lookup_piece(encoder->tokenizer, text + at, step) };
        at += step;
    }
    encoder->symbols[n - 1].next = FIRN_TOKEN_NONE;
    return n;
}

/* Encodes text[start, end), whose merges do not depend on what is around it. */
static firn_status encode_stretch(firni_encoder *encoder, uint32_t start, uint32_t end, bool *unknown)
{
    assert(end > start);
    firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->symbols, &encoder->cap_symbols, 0,
                                               end - start, sizeof *encoder->symbols);
    if (status != FIRN_OK) {
        return status;
    }
    const uint32_t n = lay_symbols(encoder, start, end);
    status = firni_merge_all(encoder, encoder->text, n, join_text);
    for (uint32_t i = 0; status == FIRN_OK && i != FIRN_TOKEN_NONE; i = encoder->symbols[i].next) {
        const firni_symbol *symbol = &encoder->symbols[i];
        if (symbol->token == FIRN_TOKEN_NONE) {
            status = push_fallback(encoder, symbol, unknown);
        } else {
            *unknown = false;
            status = firni_encoder_push(encoder, symbol->token);
        }
    }
    return status;
}

firn_status firni_spm_text(firni_encoder *encoder, const char *text, uint32_t len_bytes, bool space_prefix)
{
    firn_status status =
        firni_encoder_reserve(encoder, (void **)&encoder->text, &encoder->cap_text, 0, (size_t)len_bytes + 1, 1);
    if (status != FIRN_OK) {
        return status;
    }
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    encoder->text[0] = ' ';
    memcpy(encoder->text + space_prefix, text, len_bytes);
    const uint32_t n = len_bytes + space_prefix;
    const unsigned char *bytes = (const unsigned char *)encoder->text;
    bool unknown = false;
    uint32_t start = 0;
    for (uint32_t at = 0; status == FIRN_OK && at < n;) {
        uint32_t character = 0;
        const uint32_t len = firni_utf8_decode(encoder->text + at, n - at, &character);
        at += len == 0 ? 1 : len;
        if (at == n || !firni_has_neighbours(tokenizer, bytes[at - 1], bytes[at])) {
            status = encode_stretch(encoder, start, at, &unknown);
            start = at;
        }
    }
    return status;
}
