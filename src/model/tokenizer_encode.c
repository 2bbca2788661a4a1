/*
 * Encoding: the memory of one call, and the way of a text through it: special tokens are cut out first, what lies
 * between them goes to the vocabulary's own algorithm.
 *
 * Steps of firni_encoder_text():
 *   0. U+2581 is a space to the SentencePiece kind, as in SentencePiece, where spaces are spelled so: user-defined
 *      tokens of spaces are found across both;
 *   1. at each byte, ask for the longest special token that begins here (tokenizer_special.c);
 *   2. when there is one, encode the text before it and push it;
 *   3. encode what is left.
 *
 * Tokens gather in memory of the env; the caller gets a malloc'ed copy, so a failed call leaves nothing behind. Nothing
 * here is shared between calls: a tokenizer serves any number of threads at once.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

void firni_encoder_init(firni_encoder *encoder, const firn_tokenizer *tokenizer, firn_error *err)
{
    *encoder = (firni_encoder){ .tokenizer = tokenizer, .env = tokenizer->env, .err = err, .after_control = true };
}

void firni_encoder_deinit(firni_encoder *encoder)
{
    firni_free(encoder->env, encoder->tokens);
    firni_free(encoder->env, encoder->symbols);
    firni_free(encoder->env, encoder->heap);
    firni_free(encoder->env, encoder->text);
    firni_free(encoder->env, encoder->spaced);
    firni_free(encoder->env, encoder->ends);
    firni_free(encoder->env, encoder->next_ends);
    pcre2_match_data_free(encoder->match);
}

firn_status firni_encoder_reserve(firni_encoder *encoder, void **array, size_t *cap, size_t n_used, size_t n,
                                  size_t element_bytes)
{
    assert(n_used <= *cap);
    if (n <= *cap) {
        return FIRN_OK;
    }
    /* Doubling, so that pushing one by one is linear in all. */
    size_t cap_new = *cap < 32 ? 64 : *cap * 2;
    cap_new = cap_new < n ? n : cap_new;
    void *grown = firni_grow(encoder->env, *array, n_used, cap_new, element_bytes);
    if (grown == NULL) {
        return firni_fail(encoder->err, FIRN_ERR_NO_MEMORY, "no memory to encode a text");
    }
    *array = grown;
    *cap = cap_new;
    return FIRN_OK;
}

firn_status firni_encoder_push(firni_encoder *encoder, firn_token token)
{
    assert(token < encoder->tokenizer->n_tokens);
    const firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->tokens, &encoder->cap_tokens,
                                                     encoder->n_tokens, encoder->n_tokens + 1, sizeof *encoder->tokens);
    if (status == FIRN_OK) {
        encoder->tokens[encoder->n_tokens++] = token;
    }
    return status;
}

/* Text without special tokens. */
static firn_status encode_ordinary(firni_encoder *encoder, const char *text, size_t len_bytes)
{
    if (len_bytes == 0) {
        return FIRN_OK;
    }
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    /* SentencePiece begins a text with a space; a control token begins a new text. */
    const bool space_prefix = encoder->after_control && tokenizer->add_space_prefix;
    encoder->after_control = false;
    return tokenizer->kind == FIRNI_VOCAB_BPE ? firni_bpe_text(encoder, text, (uint32_t)len_bytes)
                                              : firni_spm_text(encoder, text, (uint32_t)len_bytes, space_prefix);
}

/* Sets *text and *len_bytes to a copy in which every U+2581 is a space; to nothing new when there is none. */
static firn_status space_out(firni_encoder *encoder, const char **text, size_t *len_bytes)
{
    static const char mark[] = "\u2581";
    const size_t len_mark = sizeof mark - 1;
    const char *const end = *text + *len_bytes;
    const char *from = *text;
    size_t n = 0;
    for (const char *at = from; (at = memchr(at, mark[0], (size_t)(end - at))) != NULL; at++) {
        if ((size_t)(end - at) < len_mark || memcmp(at, mark, len_mark) != 0) {
            continue;
        }
        const firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->spaced, &encoder->cap_spaced, n,
                                                         *len_bytes, 1);
        if (status != FIRN_OK) {
            return status;
        }
        memcpy(encoder->spaced + n, from, (size_t)(at - from));
        n += (size_t)(at - from);
        encoder->spaced[n++] = ' ';
        from = at + len_mark;
        at = from - 1;
    }
    if (from != *text) {
        memcpy(encoder->spaced + n, from, (size_t)(end - from));
        *text = encoder->spaced;
        *len_bytes = n + (size_t)(end - from);
    }
    return FIRN_OK;
}

firn_status firni_encoder_text(firni_encoder *encoder, const char *text, size_t len_bytes, bool parse_special)
{
    if (len_bytes > FIRNI_TEXT_BYTES_MAX) {
        return firni_fail(encoder->err, FIRN_ERR_UNSUPPORTED, "a text of %zu bytes is too long to encode (limit %zu)",
                          len_bytes, FIRNI_TEXT_BYTES_MAX);
    }
    if (len_bytes == 0) {
        return FIRN_OK; /* text may be NULL */
    }
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    firn_status status =
        tokenizer->kind == FIRNI_VOCAB_SPM ? space_out(encoder, &text, &len_bytes) : FIRN_OK;
    size_t start = 0;
    size_t at = 0;
    while (status == FIRN_OK && at < len_bytes) {
        /* Byte by byte: UTF-8 synchronises itself, so a spelling is never found inside a character. */
        const firn_token token = firni_special_match(tokenizer, text + at, len_bytes - at, parse_special);
        if (token == FIRN_TOKEN_NONE) {
            at++;
            continue;
        }
        status = encode_ordinary(encoder, text + start, at - start);
        if (status == FIRN_OK) {
            status = firni_encoder_push(encoder, token);
        }
        encoder->after_control = tokenizer->types[token] != FIRNI_PIECE_USER_DEFINED;
        at += tokenizer->starts[token + 1] - tokenizer->starts[token];
        start = at;
    }
    return status == FIRN_OK ? encode_ordinary(encoder, text + start, len_bytes - start) : status;
}

firn_status firni_encoder_take(firni_encoder *encoder, firn_token **out, uint32_t *n_tokens)
{
    /* No single text reaches this; a chat is rendered from many. */
    if (encoder->n_tokens > UINT32_MAX) {
        return firni_fail(encoder->err, FIRN_ERR_UNSUPPORTED, "%zu tokens are too many", encoder->n_tokens);
    }
    /* Never malloc(0): an empty text is a valid, releasable result. */
    const size_t n_bytes = encoder->n_tokens * sizeof **out;
    firn_token *tokens = malloc(n_bytes == 0 ? 1 : n_bytes);
    if (tokens == NULL) {
        return firni_fail(encoder->err, FIRN_ERR_NO_MEMORY, "no memory for %zu tokens", encoder->n_tokens);
    }
    if (n_bytes > 0) {
        memcpy(tokens, encoder->tokens, n_bytes);
    }
    *out = tokens;
    *n_tokens = (uint32_t)encoder->n_tokens;
    return FIRN_OK;
}

firn_status firn_tokenizer_encode(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes,
                                  const firn_encode_options *options, firn_token **out, uint32_t *n_tokens,
                                  firn_error *err)
{
    static const firn_encode_options defaults = { 0 };
    options = options == NULL ? &defaults : options; /* neither BOS nor special tokens */
    *out = NULL;
    *n_tokens = 0;
    firni_encoder encoder;
    firni_encoder_init(&encoder, tokenizer, err);
    firn_status status = FIRN_OK;
    if (options->add_bos && tokenizer->add_bos) {
        status = firni_encoder_push(&encoder, tokenizer->bos);
    }
    if (status == FIRN_OK) {
        status = firni_encoder_text(&encoder, text, len_bytes, options->parse_special);
    }
    if (status == FIRN_OK) {
        status = firni_encoder_take(&encoder, out, n_tokens);
    }
    firni_encoder_deinit(&encoder);
    return status;
}
