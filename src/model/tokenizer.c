/*
 * A tokenizer's life, its facts, and decoding. Creation checks that the specification does not contradict itself; after
 * that nothing is ever written, so every function may run in any thread.
 *
 * Creation, in order: 1. the specification is checked; 2. the split is compiled (BPE); 3. pieces become bytes; 4. the
 * lookup tables; 5. the special tokens; 6. the digest; 7. the tokens that end an answer. Nothing of the specification
 * is kept. A failure at any step releases what the steps before it have made.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* Tokens that end an answer, by their spelling: files name only one or two of theirs. */
static const char *const end_spellings[] = {
    "<|im_end|>",    "<|eot_id|>",
    "<|eom_id|>",    "<|end_of_text|>",
    "<|endoftext|>", "<|end|>",
    "<|return|>",    "<|call|>",
    "<end_of_turn>", "<turn|>",
    "</s>",          "<eos>",
    "<EOT>",         "<\uff5cend\u2581of\u2581sentence\uff5c>",
};
#define N_END_SPELLINGS (sizeof end_spellings / sizeof end_spellings[0])

/* Markers that open a message, in the template families that are in use, rendered here or not. */
static const char *const open_spellings[] = { "<|im_start|>",
                                              "<|start_header_id|>",
                                              "<|end_header_id|>",
                                              "<|start|>",
                                              "<start_of_turn>",
                                              "<|turn>",
                                              "[INST]",
                                              "[/INST]",
                                              "<\uff5cUser\uff5c>",
                                              "<\uff5cAssistant\uff5c>" };

/* ---- creation ---- */

static firn_status check_id(firn_token token, uint32_t n_tokens, const char *key, firn_error *err)
{
    if (token == FIRN_TOKEN_NONE || token < n_tokens) {
        return FIRN_OK;
    }
    return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.%s: token %u is outside the vocabulary of %u", key, token,
                      n_tokens);
}

/* What must hold before any array is indexed; the readers of files have checked most of it with better names. */
static firn_status check_spec(const firni_vocab_spec *spec, firn_error *err)
{
    if (spec->n_tokens == 0 || spec->n_tokens == FIRN_TOKEN_NONE) {
        return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens: no usable number of tokens (%u)",
                          spec->n_tokens);
    }
    const struct {
        firn_token token;
        const char *key;
    } ids[] = { { spec->bos, "bos_token_id" },
                { spec->eos, "eos_token_id" },
                { spec->unk, "unknown_token_id" },
                { spec->eot, "eot_token_id" } };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const firn_status status = check_id(ids[i].token, spec->n_tokens, ids[i].key, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    if (spec->add_bos && spec->bos == FIRN_TOKEN_NONE) {
        return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.add_bos_token: set, but there is no bos_token_id");
    }
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        if (spec->types[i] < FIRNI_PIECE_NORMAL || spec->types[i] > FIRNI_PIECE_BYTE) {
            return firni_fail(err, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type: token %u has the unknown type %u", i,
                              spec->types[i]);
        }
    }
    return FIRN_OK;
}

static bool is_spelled(const firni_gguf_string *piece, const char *const *spellings, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (piece->len_bytes == strlen(spellings[i]) && memcmp(piece->data, spellings[i], piece->len_bytes) == 0) {
            return true;
        }
    }
    return false;
}

firni_piece_type firni_piece_type_of(const firni_vocab_spec *spec, firn_token token)
{
    const firni_piece_type type = (firni_piece_type)spec->types[token];
    if (type != FIRNI_PIECE_USER_DEFINED) {
        return type;
    }
    const firni_gguf_string *piece = &spec->pieces[token];
    const bool frames = token == spec->bos || token == spec->eos || token == spec->eot ||
                        is_spelled(piece, end_spellings, N_END_SPELLINGS) ||
                        is_spelled(piece, open_spellings, sizeof open_spellings / sizeof open_spellings[0]);
    return frames ? FIRNI_PIECE_CONTROL : type;
}

/* Adds a token once. */
static void add_end(firn_tokenizer *tokenizer, firn_token token)
{
    if (token == FIRN_TOKEN_NONE || firn_tokenizer_is_end(tokenizer, token)) {
        return;
    }
    assert(tokenizer->n_ends < FIRNI_ENDS_MAX);
    tokenizer->ends[tokenizer->n_ends++] = token;
}

/* By id, then by spelling; needs the special tokens. */
static void collect_ends(firn_tokenizer *tokenizer, const firni_vocab_spec *spec)
{
    static_assert(N_END_SPELLINGS + 2 <= FIRNI_ENDS_MAX, "room for all ends");
    add_end(tokenizer, spec->eos);
    add_end(tokenizer, spec->eot);
    /* In the Harmony format <|end|> closes one of an answer's messages, and these two the answer. */
    const bool harmony = firni_special_exact(tokenizer, "<|return|>") != FIRN_TOKEN_NONE &&
                         firni_special_exact(tokenizer, "<|call|>") != FIRN_TOKEN_NONE;
    for (size_t i = 0; i < N_END_SPELLINGS; i++) {
        if (!harmony || strcmp(end_spellings[i], "<|end|>") != 0) {
            add_end(tokenizer, firni_special_exact(tokenizer, end_spellings[i]));
        }
    }
}

/* split NULL: pre is unknown. */
static firn_status create_split(firn_tokenizer *tokenizer, const firni_split *split, const char *pre, firn_error *err)
{
    if (split == NULL) {
        char known[256];
        firni_split_names(known, sizeof known);
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "tokenizer.ggml.pre: \"%s\" is not a known split (known: %s)", pre,
                          known);
    }
    return firni_split_compile(tokenizer, split, err);
}

firn_status firni_tokenizer_create(const firni_vocab_spec *spec, const firn_env *env, firn_tokenizer **out,
                                   firn_error *err)
{
    *out = NULL;
    firn_status status = check_spec(spec, err);
    if (status != FIRN_OK) {
        return status;
    }
    uint8_t *formed = firni_calloc(env, spec->n_tokens, 1);
    firn_tokenizer *tokenizer = firni_calloc(env, 1, sizeof *tokenizer);
    if (tokenizer == NULL || formed == NULL) {
        firni_free(env, tokenizer);
        firni_free(env, formed);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a tokenizer of %u tokens", spec->n_tokens);
    }
    tokenizer->env = env;
    tokenizer->kind = spec->kind;
    tokenizer->add_bos = spec->add_bos;
    tokenizer->add_space_prefix = spec->kind == FIRNI_VOCAB_SPM && spec->add_space_prefix;
    tokenizer->bos = spec->bos;
    tokenizer->eos = spec->eos;
    tokenizer->unk = spec->unk;
    tokenizer->n_tokens = spec->n_tokens;
    tokenizer->chat = firni_chat_recognise(spec->chat_template);
    /* FIRN_TOKEN_NONE in every byte. */
    memset(tokenizer->byte_tokens, 0xFF, sizeof tokenizer->byte_tokens);
    const firni_split *split = NULL;
    if (spec->kind == FIRNI_VOCAB_BPE) {
        split = firni_split_find(spec->pre[0] == '\0' ? "default" : spec->pre);
        status = create_split(tokenizer, split, spec->pre, err);
    }
    if (status == FIRN_OK) {
        status = firni_pieces_create(tokenizer, spec, formed, err);
    }
    if (status == FIRN_OK) {
        status = firni_lookup_create(tokenizer, spec, formed, err);
    }
    if (status == FIRN_OK) {
        status = firni_special_create(tokenizer, err);
    }
    if (status == FIRN_OK) {
        status = firni_vocab_digest(spec, split, &tokenizer->digest, err);
    }
    firni_free(env, formed);
    if (status != FIRN_OK) {
        firni_tokenizer_destroy(tokenizer);
        return status;
    }
    collect_ends(tokenizer, spec);
    *out = tokenizer;
    return FIRN_OK;
}

void firni_tokenizer_destroy(firn_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    for (uint32_t i = 0; i < FIRNI_SPLIT_PATTERNS_MAX; i++) {
        pcre2_code_free(tokenizer->patterns[i]);
    }
    pcre2_match_context_free(tokenizer->pcre_limits);
    pcre2_general_context_free(tokenizer->pcre_memory);
    const firn_env *env = tokenizer->env;
    firni_free(env, tokenizer->bytes);
    firni_free(env, tokenizer->starts);
    firni_free(env, tokenizer->types);
    firni_free(env, tokenizer->priorities);
    firni_free(env, tokenizer->neighbours);
    firni_free(env, tokenizer->piece_slots);
    firni_free(env, tokenizer->pair_slots);
    firni_free(env, tokenizer->specials);
    firni_free(env, tokenizer);
}

/* ---- facts ----
 *
 * The header says what each means. */

const char *firn_tokenizer_piece(const firn_tokenizer *tokenizer, firn_token token, uint32_t *len_bytes)
{
    *len_bytes = 0;
    return token < tokenizer->n_tokens ? firni_piece_bytes(tokenizer, token, len_bytes) : NULL;
}

bool firn_tokenizer_strips_leading_space(const firn_tokenizer *tokenizer)
{
    return tokenizer->add_space_prefix;
}

uint32_t firn_tokenizer_n_tokens(const firn_tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

firn_token firn_tokenizer_bos(const firn_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

firn_token firn_tokenizer_eos(const firn_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool firn_tokenizer_is_end(const firn_tokenizer *tokenizer, firn_token token)
{
    for (uint32_t i = 0; i < tokenizer->n_ends; i++) {
        if (tokenizer->ends[i] == token) {
            return true;
        }
    }
    return false;
}

bool firn_tokenizer_is_special(const firn_tokenizer *tokenizer, firn_token token)
{
    return token < tokenizer->n_tokens &&
           (tokenizer->types[token] == FIRNI_PIECE_CONTROL || tokenizer->types[token] == FIRNI_PIECE_USER_DEFINED);
}

bool firn_tokenizer_is_control(const firn_tokenizer *tokenizer, firn_token token)
{
    return token < tokenizer->n_tokens && tokenizer->types[token] == FIRNI_PIECE_CONTROL;
}

firn_digest firn_tokenizer_digest(const firn_tokenizer *tokenizer)
{
    return tokenizer->digest;
}

/* ---- decoding ---- */

/* Walks the tokens, and copies their bytes when out is not NULL; returns the number of bytes. The exact reverse of
 * encoding: the space that encoding puts before a text is left out where it puts one. */
static size_t decode_into(const firn_tokenizer *tokenizer, const firn_token *tokens, uint32_t n_tokens,
                          bool keep_special, char *out)
{
    size_t n = 0;
    bool after_control = true;
    for (uint32_t i = 0; i < n_tokens; i++) {
        uint32_t len = 0;
        const char *bytes = firni_piece_bytes(tokenizer, tokens[i], &len);
        if (firn_tokenizer_is_control(tokenizer, tokens[i])) {
            after_control = true;
            len = keep_special ? len : 0;
        } else {
            const bool drops_space = after_control && tokenizer->add_space_prefix && len > 0 && bytes[0] == ' ';
            bytes += drops_space;
            len -= drops_space;
            after_control = false;
        }
        if (out != NULL && len > 0) {
            memcpy(out + n, bytes, len);
        }
        n += len;
    }
    return n;
}

firn_status firn_tokenizer_decode(const firn_tokenizer *tokenizer, const firn_token *tokens, uint32_t n_tokens,
                                  bool keep_special, char **out, size_t *len_bytes, firn_error *err)
{
    *out = NULL;
    *len_bytes = 0;
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (tokens[i] >= tokenizer->n_tokens) {
            return firni_fail(err, FIRN_ERR_INVALID, "token %u at index %u is outside the vocabulary of %u", tokens[i],
                              i, tokenizer->n_tokens);
        }
    }
    /* Once to measure, once to copy. */
    const size_t n = decode_into(tokenizer, tokens, n_tokens, keep_special, NULL);
    char *text = malloc(n + 1);
    if (text == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a text of %zu bytes", n);
    }
    (void)decode_into(tokenizer, tokens, n_tokens, keep_special, text);
    text[n] = '\0';
    *out = text;
    *len_bytes = n;
    return FIRN_OK;
}
