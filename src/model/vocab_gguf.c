/*
 * Reads the tokenizer.ggml.* keys of a GGUF file. Checks types, lengths and ids; what the pieces mean is checked when a
 * tokenizer is made of them.
 *
 *   key (tokenizer.ggml.)   type               when absent
 *   model                   string             an error; "gpt2", "llama", or "gemma4": as "llama", merges for scores
 *   pre                     string             read as GPT-2's split; not looked at for "llama"
 *   tokens                  array of strings   an error
 *   token_type              array of i32       all NORMAL
 *   scores                  array of f32       an error for "llama"; not looked at for the others
 *   merges                  array of strings   an error for "gpt2" and "gemma4"; not looked at for "llama"
 *   bos_token_id, eos_token_id, unknown_token_id, eot_token_id
 *                           integer            there is none
 *   add_bos_token           bool               "llama": yes; "gpt2": as the split does; never without a BOS
 *   add_eos_token           bool               no
 *   add_space_prefix        bool               "llama": yes; "gemma4": no; "gpt2": never
 *   (tokenizer.chat_template, string: no template)
 *
 * The defaults are those that the format's users rely on. Source: GGUF specification (ggml project, docs/gguf.md).
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

#define TOKENS_MAX (1u << 24)

/* What every step needs. */
typedef struct reader {
    const firni_gguf *gguf;
    const firn_env *env;
    firni_vocab_spec *spec;
    firn_error *err;
    bool has_ranks; /* of the SentencePiece kind, with merges in the place of scores */
} reader;

static firn_status fail_key(reader *in, const char *key, const char *what)
{
    return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: %s: %s", firni_gguf_path(in->gguf), key, what);
}

static bool equals(firni_gguf_string string, const char *text)
{
    return string.len_bytes == strlen(text) && memcmp(string.data, text, string.len_bytes) == 0;
}

/* "gpt2" is byte-level BPE and "llama" the SentencePiece kind, whatever the model is called; so is "gemma4". */
static firn_status read_kind(reader *in)
{
    static const char key[] = "tokenizer.ggml.model";
    firni_gguf_string model = { 0 };
    bool found = false;
    const firn_status status = firni_gguf_get_string(in->gguf, key, &model, &found, in->err);
    if (status != FIRN_OK) {
        return status;
    }
    if (!found) {
        return fail_key(in, key, "missing");
    }
    if (equals(model, "gpt2")) {
        in->spec->kind = FIRNI_VOCAB_BPE;
    } else if (equals(model, "llama")) {
        in->spec->kind = FIRNI_VOCAB_SPM;
    } else if (equals(model, "gemma4")) {
        in->spec->kind = FIRNI_VOCAB_SPM;
        in->has_ranks = true;
    } else {
        const int shown = model.len_bytes < 40 ? (int)model.len_bytes : 40;
        return firni_fail(in->err, FIRN_ERR_UNSUPPORTED,
                          "%s: %s: \"%.*s\" is not a known kind (known: gpt2, llama, gemma4)",
                          firni_gguf_path(in->gguf), key, shown, model.data);
    }
    return FIRN_OK;
}

static firn_status read_pre(reader *in)
{
    static const char key[] = "tokenizer.ggml.pre";
    firni_gguf_string pre = { 0 };
    bool found = false;
    const firn_status status = firni_gguf_get_string(in->gguf, key, &pre, &found, in->err);
    if (status != FIRN_OK || !found || in->spec->kind == FIRNI_VOCAB_SPM) {
        return status; /* a SentencePiece vocabulary has no split, whatever the key says */
    }
    if (pre.len_bytes >= sizeof in->spec->pre || memchr(pre.data, '\0', pre.len_bytes) != NULL) {
        return fail_key(in, key, "not a name");
    }
    memcpy(in->spec->pre, pre.data, pre.len_bytes);
    in->spec->pre[pre.len_bytes] = '\0';
    return FIRN_OK;
}

/* Strings of an array key, borrowed from the file. */
static firn_status read_strings(reader *in, const char *key, firni_gguf_string **out, uint32_t *n_out)
{
    const firni_gguf_value *value = firni_gguf_find(in->gguf, key);
    if (value == NULL) {
        return fail_key(in, key, "missing");
    }
    if (!value->is_array || value->type != FIRNI_GGUF_STRING) {
        return fail_key(in, key, "not an array of strings");
    }
    if (value->n > TOKENS_MAX) {
        return fail_key(in, key, "more than 16777216 entries");
    }
    if (value->n == 0) {
        return FIRN_OK;
    }
    *out = firni_calloc(in->env, (size_t)value->n, sizeof **out);
    if (*out == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %s", firni_gguf_path(in->gguf), key);
    }
    *n_out = (uint32_t)value->n;
    const uint8_t *cursor = value->data;
    for (uint32_t i = 0; i < *n_out; i++) {
        (*out)[i] = firni_gguf_next_string(&cursor);
    }
    return FIRN_OK;
}

/* Checks that a key is an array of one number for each token; *out NULL when the key is absent. */
static firn_status find_numbers(reader *in, const char *key, bool is_float, const firni_gguf_value **out)
{
    *out = NULL;
    const firni_gguf_value *value = firni_gguf_find(in->gguf, key);
    if (value == NULL) {
        return FIRN_OK;
    }
    const bool fits =
        is_float ? value->type == FIRNI_GGUF_F32 : value->type == FIRNI_GGUF_I32 || value->type == FIRNI_GGUF_U32;
    if (!value->is_array || !fits) {
        return fail_key(in, key, is_float ? "not an array of f32" : "not an array of 32-bit integers");
    }
    if (value->n != in->spec->n_tokens) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: %s: %llu entries for a vocabulary of %u",
                          firni_gguf_path(in->gguf), key, (unsigned long long)value->n, in->spec->n_tokens);
    }
    *out = value;
    return FIRN_OK;
}

/* Without the key every piece is an ordinary one. */
static firn_status read_types(reader *in)
{
    static const char key[] = "tokenizer.ggml.token_type";
    firni_vocab_spec *spec = in->spec;
    const firni_gguf_value *types = NULL;
    const firn_status status = find_numbers(in, key, false, &types);
    if (status != FIRN_OK) {
        return status;
    }
    spec->types = firni_calloc(in->env, spec->n_tokens, sizeof *spec->types);
    if (spec->types == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %s", firni_gguf_path(in->gguf), key);
    }
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        const uint32_t type = types == NULL ? FIRNI_PIECE_NORMAL : firni_gguf_array_u32(types, i);
        if (type < FIRNI_PIECE_NORMAL || type > FIRNI_PIECE_BYTE) {
            return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: %s: token %u has the unknown type %u",
                              firni_gguf_path(in->gguf), key, i, type);
        }
        spec->types[i] = (uint8_t)type;
    }
    return FIRN_OK;
}

/* The SentencePiece kind merges by score: without scores there is no vocabulary. */
static firn_status read_scores(reader *in)
{
    static const char key[] = "tokenizer.ggml.scores";
    firni_vocab_spec *spec = in->spec;
    const firni_gguf_value *scores = NULL;
    const firn_status status = find_numbers(in, key, true, &scores);
    if (status != FIRN_OK) {
        return status;
    }
    if (scores == NULL) {
        return fail_key(in, key, "missing");
    }
    spec->scores = firni_calloc(in->env, spec->n_tokens, sizeof *spec->scores);
    if (spec->scores == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %s", firni_gguf_path(in->gguf), key);
    }
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        spec->scores[i] = firni_gguf_array_f32(scores, i);
    }
    return FIRN_OK;
}

static firn_status merge_halves(void *ctx, size_t index, firni_gguf_string *left, firni_gguf_string *right)
{
    reader *in = ctx;
    const firni_gguf_string *merge = &in->spec->merges[index];
    const char *space = merge->len_bytes > 0 ? memchr(merge->data, ' ', (size_t)merge->len_bytes) : NULL;
    if (space == NULL) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: tokenizer.ggml.merges: entry %zu is not \"a b\"",
                          firni_gguf_path(in->gguf), index);
    }
    *left = (firni_gguf_string){ .data = merge->data, .len_bytes = (size_t)(space - merge->data) };
    *right = (firni_gguf_string){ .data = space + 1, .len_bytes = merge->len_bytes - left->len_bytes - 1 };
    return FIRN_OK;
}

/* Ranked merges become scores and are forgotten. Files of this kind call byte pieces ordinary ones. */
static firn_status read_ranks(reader *in)
{
    firni_vocab_spec *spec = in->spec;
    firn_status status = read_strings(in, "tokenizer.ggml.merges", &spec->merges, &spec->n_merges);
    for (uint32_t i = 0; i < spec->n_tokens && status == FIRN_OK; i++) {
        const firni_gguf_string *piece = &spec->pieces[i];
        if (spec->types[i] == FIRNI_PIECE_NORMAL && firni_vocab_is_byte_name(piece->data, (size_t)piece->len_bytes)) {
            spec->types[i] = FIRNI_PIECE_BYTE;
        }
    }
    if (status == FIRN_OK) {
        status = firni_vocab_score_merges(spec, firni_gguf_path(in->gguf), spec->n_merges, merge_halves, in, in->err);
    }
    firni_free(in->env, spec->merges);
    spec->merges = NULL;
    spec->n_merges = 0;
    return status;
}

/* An absent key leaves *out as it is: FIRN_TOKEN_NONE. */
static firn_status read_id(reader *in, const char *name, firn_token *out)
{
    char key[64];
    (void)snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    bool found = false;
    const firn_status status = firni_gguf_get_u32(in->gguf, key, out, &found, in->err);
    if (status == FIRN_OK && found && *out >= in->spec->n_tokens) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: %s: token %u is outside the vocabulary of %u",
                          firni_gguf_path(in->gguf), key, *out, in->spec->n_tokens);
    }
    return status;
}

/* Without the key: fallback, as far as there is a BOS to add. */
static firn_status read_add_bos(reader *in, bool fallback)
{
    static const char key[] = "tokenizer.ggml.add_bos_token";
    firni_vocab_spec *spec = in->spec;
    bool found = false;
    const firn_status status = firni_gguf_get_bool(in->gguf, key, &spec->add_bos, &found, in->err);
    if (status != FIRN_OK) {
        return status;
    }
    if (!found) {
        spec->add_bos = fallback && spec->bos != FIRN_TOKEN_NONE;
    } else if (spec->add_bos && spec->bos == FIRN_TOKEN_NONE) {
        return fail_key(in, key, "true, but there is no tokenizer.ggml.bos_token_id");
    }
    return FIRN_OK;
}

/* A copy, as the tokenizer looks for markers with C string functions. */
static firn_status read_chat_template(reader *in)
{
    static const char key[] = "tokenizer.chat_template";
    firni_gguf_string text = { 0 };
    bool found = false;
    const firn_status status = firni_gguf_get_string(in->gguf, key, &text, &found, in->err);
    if (status != FIRN_OK || !found) {
        return status;
    }
    char *copy = firni_calloc(in->env, text.len_bytes + 1, 1);
    if (copy == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %s", firni_gguf_path(in->gguf), key);
    }
    memcpy(copy, text.data, text.len_bytes);
    in->spec->chat_template = copy;
    return FIRN_OK;
}

/* In the order in which one needs the other: the kind, the number of tokens, what has one entry for each, the ids. */
static firn_status read_all(reader *in)
{
    firni_vocab_spec *spec = in->spec;
    firn_status status = read_kind(in);
    if (status != FIRN_OK || (status = read_pre(in)) != FIRN_OK ||
        (status = read_strings(in, "tokenizer.ggml.tokens", &spec->pieces, &spec->n_tokens)) != FIRN_OK) {
        return status;
    }
    if (spec->n_tokens == 0) {
        return fail_key(in, "tokenizer.ggml.tokens", "empty");
    }
    if ((status = read_types(in)) != FIRN_OK) {
        return status;
    }
    if (in->has_ranks) {
        status = read_ranks(in);
    } else if (spec->kind == FIRNI_VOCAB_SPM) {
        status = read_scores(in);
    } else {
        status = read_strings(in, "tokenizer.ggml.merges", &spec->merges, &spec->n_merges);
    }
    if (status != FIRN_OK || (status = read_id(in, "bos_token_id", &spec->bos)) != FIRN_OK ||
        (status = read_id(in, "eos_token_id", &spec->eos)) != FIRN_OK ||
        (status = read_id(in, "unknown_token_id", &spec->unk)) != FIRN_OK ||
        (status = read_id(in, "eot_token_id", &spec->eot)) != FIRN_OK) {
        return status;
    }
    const firni_split *split = spec->kind == FIRNI_VOCAB_BPE ? firni_split_find(spec->pre) : NULL;
    const bool is_spm = spec->kind == FIRNI_VOCAB_SPM;
    spec->add_space_prefix = is_spm && !in->has_ranks;
    bool found = false;
    if ((status = read_add_bos(in, is_spm || (split != NULL && split->adds_bos))) != FIRN_OK ||
        (status = firni_gguf_get_bool(in->gguf, "tokenizer.ggml.add_eos_token", &spec->add_eos, &found, in->err)) !=
            FIRN_OK ||
        (status = firni_gguf_get_bool(in->gguf, "tokenizer.ggml.add_space_prefix", &spec->add_space_prefix, &found,
                                      in->err)) != FIRN_OK) {
        return status;
    }
    spec->add_space_prefix = spec->add_space_prefix && is_spm;
    return read_chat_template(in);
}

firn_status firni_vocab_from_gguf(const firni_gguf *gguf, const firn_env *env, firni_vocab_spec *out, firn_error *err)
{
    *out = (firni_vocab_spec){
        .env = env, .bos = FIRN_TOKEN_NONE, .eos = FIRN_TOKEN_NONE, .unk = FIRN_TOKEN_NONE, .eot = FIRN_TOKEN_NONE
    };
    reader in = { .gguf = gguf, .env = env, .spec = out, .err = err };
    const firn_status status = read_all(&in);
    if (status != FIRN_OK) {
        firni_vocab_spec_deinit(out);
    }
    return status;
}
