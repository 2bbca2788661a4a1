/*
 * Small vocabularies made by hand, for the tests of this folder.
 */
#ifndef FIRN_TESTS_TOKENIZER_SUPPORT_H
#define FIRN_TESTS_TOKENIZER_SUPPORT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/vocab_spec.h"
#include "support/support.h"

#define TEST_PIECES_MAX 640
#define TEST_MERGES_MAX 64

typedef struct test_vocab {
    firni_vocab_spec spec; /* points into the arrays below */
    firni_gguf_string pieces[TEST_PIECES_MAX];
    uint8_t types[TEST_PIECES_MAX];
    float scores[TEST_PIECES_MAX];
    firni_gguf_string merges[TEST_MERGES_MAX];
    char spellings[256][8];
} test_vocab;

static inline firn_token test_vocab_add(test_vocab *vocab, const char *text, firni_piece_type type, float score)
{
    const uint32_t token = vocab->spec.n_tokens++;
    assert_true(token < TEST_PIECES_MAX);
    vocab->pieces[token] = (firni_gguf_string){ .data = text, .len_bytes = strlen(text) };
    vocab->types[token] = (uint8_t)type;
    vocab->scores[token] = score;
    return token;
}

static inline void test_vocab_merge(test_vocab *vocab, const char *merge)
{
    assert_true(vocab->spec.n_merges < TEST_MERGES_MAX);
    vocab->merges[vocab->spec.n_merges++] = (firni_gguf_string){ .data = merge, .len_bytes = strlen(merge) };
}

static inline void test_vocab_init(test_vocab *vocab, firni_vocab_kind kind)
{
    memset(vocab, 0, sizeof *vocab);
    vocab->spec = (firni_vocab_spec){ .kind = kind,
                                      .pieces = vocab->pieces,
                                      .types = vocab->types,
                                      .scores = kind == FIRNI_VOCAB_SPM ? vocab->scores : NULL,
                                      .merges = vocab->merges,
                                      .bos = FIRN_TOKEN_NONE,
                                      .eos = FIRN_TOKEN_NONE,
                                      .unk = FIRN_TOKEN_NONE,
                                      .eot = FIRN_TOKEN_NONE,
                                      .add_space_prefix = kind == FIRNI_VOCAB_SPM };
}

/* Byte-level: tokens 0 to 255 are the bytes, spelled by counting the alphabet out as its definition does. */
static inline void test_vocab_init_bytes(test_vocab *vocab, const char *pre)
{
    test_vocab_init(vocab, FIRNI_VOCAB_BPE);
    (void)snprintf(vocab->spec.pre, sizeof vocab->spec.pre, "%s", pre);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        const uint32_t character = printable ? byte : next++;
        char *out = vocab->spellings[byte];
        if (character < 0x80) {
            out[0] = (char)character;
        } else {
            out[0] = (char)(0xC0 | character >> 6);
            out[1] = (char)(0x80 | (character & 0x3F));
        }
        (void)test_vocab_add(vocab, out, FIRNI_PIECE_NORMAL, 0);
    }
}

/* SentencePiece: <unk>, <s>, </s>, then the bytes from token 3 on. */
static inline void test_vocab_init_spm(test_vocab *vocab, bool with_bytes)
{
    test_vocab_init(vocab, FIRNI_VOCAB_SPM);
    vocab->spec.unk = test_vocab_add(vocab, "<unk>", FIRNI_PIECE_UNKNOWN, 0);
    vocab->spec.bos = test_vocab_add(vocab, "<s>", FIRNI_PIECE_CONTROL, 0);
    vocab->spec.eos = test_vocab_add(vocab, "</s>", FIRNI_PIECE_CONTROL, 0);
    vocab->spec.add_bos = true;
    for (uint32_t byte = 0; byte < 256 && with_bytes; byte++) {
        (void)snprintf(vocab->spellings[byte], sizeof vocab->spellings[byte], "<0x%02X>", byte);
        (void)test_vocab_add(vocab, vocab->spellings[byte], FIRNI_PIECE_BYTE, 0);
    }
}

static inline firn_tokenizer *test_vocab_compile(const test_vocab *vocab)
{
    firn_tokenizer *tokenizer = NULL;
    firn_error err = { 0 };
    if (firni_tokenizer_create(&vocab->spec, NULL, &tokenizer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    return tokenizer;
}

/* A tokenizer from a GGUF file; the path is relative to the project's folder, where tests run. */
static inline firn_tokenizer *test_tokenizer_open(const char *path, const firn_env *env)
{
    firni_gguf *gguf = NULL;
    firni_vocab_spec spec = { 0 };
    firn_tokenizer *tokenizer = NULL;
    firn_error err = { 0 };
    if (firni_gguf_open(path, env, &gguf, &err) != FIRN_OK ||
        firni_vocab_from_gguf(gguf, env, &spec, &err) != FIRN_OK ||
        firni_tokenizer_create(&spec, env, &tokenizer, &err) != FIRN_OK) {
        fail_msg("%s: %s", path, err.message);
    }
    firni_vocab_spec_deinit(&spec);
    firni_gguf_close(gguf);
    return tokenizer;
}

#define TEST_PARSE_SPECIAL 1u
#define TEST_ADD_BOS       2u

/* Encodes and returns malloc'ed tokens. */
static inline firn_token *test_encode(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes, unsigned how,
                                      uint32_t *n_tokens)
{
    const firn_encode_options options = { .add_bos = (how & TEST_ADD_BOS) != 0,
                                          .parse_special = (how & TEST_PARSE_SPECIAL) != 0 };
    firn_token *tokens = NULL;
    firn_error err = { 0 };
    if (firn_tokenizer_encode(tokenizer, text, len_bytes, &options, &tokens, n_tokens, &err) != FIRN_OK) {
        fail_msg("encode: %s", err.message);
    }
    return tokens;
}

/* Asserts that a text has exactly these tokens; the list ends with FIRN_TOKEN_NONE. */
static inline void test_assert_tokens(const firn_tokenizer *tokenizer, const char *text, unsigned how,
                                      const firn_token *expected)
{
    uint32_t n = 0;
    firn_token *tokens = test_encode(tokenizer, text, strlen(text), how, &n);
    uint32_t n_expected = 0;
    while (expected[n_expected] != FIRN_TOKEN_NONE) {
        n_expected++;
    }
    bool same = n == n_expected;
    for (uint32_t i = 0; same && i < n; i++) {
        same = tokens[i] == expected[i];
    }
    if (!same) {
        print_message("\"%s\":", text);
        for (uint32_t i = 0; i < n; i++) {
            print_message(" %u", tokens[i]);
        }
        fail_msg("not the expected %u tokens", n_expected);
    }
    free(tokens);
}

#define ASSERT_TOKENS(tokenizer, text, how, ...)                                                                       \
    test_assert_tokens(tokenizer, text, how, (const firn_token[]){ __VA_ARGS__, FIRN_TOKEN_NONE })

/* Asserts that tokens decode to exactly these bytes. */
static inline void test_assert_decodes(const firn_tokenizer *tokenizer, const firn_token *tokens, uint32_t n_tokens,
                                       bool keep_special, const char *text, size_t len_bytes)
{
    char *decoded = NULL;
    size_t n = 0;
    assert_ok(firn_tokenizer_decode(tokenizer, tokens, n_tokens, keep_special, &decoded, &n, NULL));
    if (n != len_bytes || memcmp(decoded, text, n) != 0) {
        fail_msg("decodes to \"%.*s\", not \"%.*s\"", (int)n, decoded, (int)len_bytes, text);
    }
    free(decoded);
}

#endif
