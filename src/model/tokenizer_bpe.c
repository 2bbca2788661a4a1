/*
 * Byte-level BPE: words by the split, bytes to tokens, merges by rank. The text holds no special token.
 *
 * The split is defined on characters. Bytes that are not UTF-8 belong to no word: each becomes the token of that byte,
 * and the characters on either side are split as texts of their own.
 */
#include <assert.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

/* The token of one byte; the only way in which byte-level text can be inexpressible. */
static firn_status push_byte(firni_encoder *encoder, unsigned char byte)
{
    const firn_token token = encoder->tokenizer->byte_tokens[byte];
    if (token == FIRN_TOKEN_NONE) {
        return firni_fail(encoder->err, FIRN_ERR_UNSUPPORTED, "the vocabulary has no piece for byte 0x%02X", byte);
    }
    return firni_encoder_push(encoder, token);
}

/* firni_join: pairs are found by their tokens; every symbol of a word has one. */
static bool join_pair(const firn_tokenizer *tokenizer, const char *text, const firni_symbol *left,
                      const firni_symbol *right, uint32_t *priority, firn_token *token)
{
    (void)text;
    const firni_pair_slot *slot = firni_lookup_pair(tokenizer, left->token, right->token);
    if (slot == NULL) {
        return false;
    }
    *priority = slot->rank;
    *token = slot->merged;
    return true;
}

static firn_status encode_word(firni_encoder *encoder, const char *word, uint32_t len_bytes)
{
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    if (len_bytes == 1) {
        return push_byte(encoder, (unsigned char)word[0]);
    }
    /* Llama 3's vocabulary has pieces that its merges do not lead to. */
    if (tokenizer->split->ignore_merges) {
        const firn_token whole = firni_lookup_piece(tokenizer, word, len_bytes);
        if (whole != FIRN_TOKEN_NONE) {
            return firni_encoder_push(encoder, whole);
        }
    }
    firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->symbols, &encoder->cap_symbols, 0, len_bytes,
                                               sizeof *encoder->symbols);
    if (status != FIRN_OK) {
        return status;
    }
    for (uint32_t i = 0; i < len_bytes; i++) {
        const unsigned char byte = (unsigned char)word[i];
        if (tokenizer->byte_tokens[byte] == FIRN_TOKEN_NONE) {
            return push_byte(encoder, byte); /* says so */
        }
        encoder->symbols[i] = (firni_symbol){ .start = i,
                                              .len_bytes = 1,
                                              .prev = i == 0 ? FIRN_TOKEN_NONE : i - 1,
                                              .next = i + 1 == len_bytes ? FIRN_TOKEN_NONE : i + 1,
                                              .token = tokenizer->byte_tokens[byte] };
    }
    status = firni_merge_all(encoder, word, len_bytes, join_pair);
    for (uint32_t i = 0; status == FIRN_OK && i != FIRN_TOKEN_NONE; i = encoder->symbols[i].next) {
        status = firni_encoder_push(encoder, encoder->symbols[i].token);
    }
    return status;
}

/* Valid UTF-8. */
static firn_status encode_characters(firni_encoder *encoder, const char *text, uint32_t len_bytes)
{
    firn_status status = firni_split_text(encoder, text, len_bytes);
    uint32_t start = 0;
    for (size_t i = 0; status == FIRN_OK && i < encoder->n_ends; i++) {
        const uint32_t end = encoder->ends[i];
        assert(end > start);
        status = encode_word(encoder, text + start, end - start);
        start = end;
    }
    assert(status != FIRN_OK || start == len_bytes);
    return status;
}

firn_status firni_bpe_text(firni_encoder *encoder, const char *text, uint32_t len_bytes)
{
    firn_status status = FIRN_OK;
    uint32_t start = 0; /* of the characters that are still to be encoded */
    uint32_t at = 0;
    while (status == FIRN_OK && at < len_bytes) {
        uint32_t character = 0;
        const uint32_t step = firni_utf8_decode(text + at, len_bytes - at, &character);
        if (step > 0) {
            at += step;
            continue;
        }
        status = at > start ? encode_characters(encoder, text + start, at - start) : FIRN_OK;
        if (status == FIRN_OK) {
            status = push_byte(encoder, (unsigned char)text[at]);
        }
        start = ++at;
    }
    if (status == FIRN_OK && at > start) {
        status = encode_characters(encoder, text + start, at - start);
    }
    return status;
}
