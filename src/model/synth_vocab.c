/*
 * The vocabulary of synthetic models: every byte, a few special tokens in the ChatML manner, and unused entries up to
 * the wanted size. Also pads a vocabulary that was read from elsewhere.
 *
 * The byte alphabet is that of GPT-2's byte-level BPE: printable bytes stand for themselves, the others for the code
 * points from U+0100 on, in order.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/synth.h"

#define N_BYTES 256u
#define PIECE_BYTES_MAX 24u /* "[unused16777215]" and the special tokens fit */

static const char *const special_names[] = { "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>" };

#define N_SPECIALS ((uint32_t)(sizeof special_names / sizeof special_names[0]))
#define CHAT_TEMPLATE                                                                                                  \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "   \
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

/* The bytes that stand for themselves as code points: visible Latin-1 without the soft hyphen. */
static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The spelling of a byte as UTF-8; returns its length. n_shifted counts the unprintable bytes so far. */
static size_t spell_byte(uint32_t byte, uint32_t *n_shifted, char *out)
{
    const uint32_t code = is_printable(byte) ? byte : 0x100 + (*n_shifted)++;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static firn_status copy_template(firni_vocab_spec *out, const char *text, firn_error *err)
{
    if (text == NULL) {
        return FIRN_OK;
    }
    out->chat_template = firni_strdup(out->env, text);
    return out->chat_template != NULL ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a vocabulary");
}

/* Arrays for n_tokens entries and an arena for the spellings that are made here. */
static firn_status allocate(firni_vocab_spec *out, uint32_t n_tokens, bool has_scores, uint32_t n_merges,
                            firn_error *err)
{
    out->n_tokens = n_tokens;
    out->n_merges = n_merges;
    out->pieces = firni_calloc(out->env, n_tokens, sizeof *out->pieces);
    out->types = firni_calloc(out->env, n_tokens, 1);
    out->arena = firni_calloc(out->env, n_tokens, PIECE_BYTES_MAX);
    out->scores = has_scores ? firni_calloc(out->env, n_tokens, sizeof *out->scores) : NULL;
    out->merges = firni_calloc(out->env, n_merges, sizeof *out->merges);
    if (out->pieces == NULL || out->types == NULL || out->arena == NULL || (has_scores && out->scores == NULL) ||
        (n_merges > 0 && out->merges == NULL)) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a vocabulary of %lu tokens", (unsigned long)n_tokens);
    }
    return FIRN_OK;
}

/* Distinct spellings, of a type that encoding never produces. */
static void fill_unused(firni_vocab_spec *out, uint32_t first)
{
    for (uint32_t i = first; i < out->n_tokens; i++) {
        char *text = (char *)out->arena + (size_t)i * PIECE_BYTES_MAX;
        const int n = snprintf(text, PIECE_BYTES_MAX, "[unused%lu]", (unsigned long)i);
        out->pieces[i] = (firni_gguf_string){ .data = text, .len_bytes = (size_t)n };
        out->types[i] = FIRNI_PIECE_UNUSED;
    }
}

/* Ids 0 to 255 are the bytes in order: a token list can be read with a glance at an ASCII table. */
static void fill_bytes(firni_vocab_spec *out)
{
    uint32_t n_shifted = 0;
    for (uint32_t i = 0; i < N_BYTES; i++) {
        char *text = (char *)out->arena + (size_t)i * PIECE_BYTES_MAX;
        out->pieces[i] = (firni_gguf_string){ .data = text, .len_bytes = spell_byte(i, &n_shifted, text) };
        out->types[i] = FIRNI_PIECE_NORMAL;
    }
    for (uint32_t i = 0; i < N_SPECIALS; i++) {
        const char *name = special_names[i];
        out->pieces[N_BYTES + i] = (firni_gguf_string){ .data = name, .len_bytes = strlen(name) };
        out->types[N_BYTES + i] = FIRNI_PIECE_CONTROL;
    }
}

/* No merges: each byte is a token. Enough for benchmarks, which feed ids, and for tests of the whole path. */
static firn_status make_own(uint32_t n_tokens, firni_vocab_spec *out, firn_error *err)
{
    if (n_tokens < N_BYTES + N_SPECIALS) {
        return firni_fail(err, FIRN_ERR_INVALID, "a vocabulary of %lu: bytes and special tokens alone are %u",
                          (unsigned long)n_tokens, N_BYTES + N_SPECIALS);
    }
    out->kind = FIRNI_VOCAB_BPE;
    (void)snprintf(out->pre, sizeof out->pre, "gpt-2");
    out->bos = N_BYTES;
    out->eos = N_BYTES + 1;
    out->eot = N_BYTES + 3;
    out->unk = FIRN_TOKEN_NONE;
    out->add_bos = true;
    firn_status status = allocate(out, n_tokens, false, 0, err);
    if (status == FIRN_OK) {
        fill_bytes(out);
        fill_unused(out, N_BYTES + N_SPECIALS);
        status = copy_template(out, CHAT_TEMPLATE, err);
    }
    return status;
}

/* The base's strings stay borrowed: it must outlive the copy. */
static firn_status pad_base(const firni_vocab_spec *base, uint32_t n_tokens, firni_vocab_spec *out, firn_error *err)
{
    if (n_tokens < base->n_tokens) {
        return firni_fail(err, FIRN_ERR_INVALID, "a vocabulary of %lu: the tokenizer has %lu tokens",
                          (unsigned long)n_tokens, (unsigned long)base->n_tokens);
    }
    const firn_env *env = out->env;
    *out = *base;
    out->env = env;
    out->chat_template = NULL;
    firn_status status = allocate(out, n_tokens, base->scores != NULL, base->n_merges, err);
    if (status != FIRN_OK) {
        return status;
    }
    memcpy(out->pieces, base->pieces, base->n_tokens * sizeof *base->pieces);
    memcpy(out->types, base->types, base->n_tokens);
    if (base->scores != NULL) {
        memcpy(out->scores, base->scores, base->n_tokens * sizeof *base->scores);
    }
    if (base->n_merges > 0) {
        memcpy(out->merges, base->merges, base->n_merges * sizeof *base->merges);
    }
    fill_unused(out, base->n_tokens);
    return copy_template(out, base->chat_template, err);
}

firn_status firni_synth_vocab(const firni_vocab_spec *base, uint32_t n_tokens, const firn_env *env,
                              firni_vocab_spec *out, firn_error *err)
{
    *out = (firni_vocab_spec){ .env = env };
    const firn_status status = base == NULL ? make_own(n_tokens, out, err) : pad_base(base, n_tokens, out, err);
    if (status != FIRN_OK) {
        firni_vocab_spec_deinit(out);
    }
    return status;
}

firn_status firni_synth_resolve(firni_synth_options *options, const firn_env *env, firn_error *err)
{
    firni_vocab_spec spec = { .n_tokens = 0 };
    if (options->n_vocab != 0 || options->tokenizer_json == NULL) {
        return FIRN_OK;
    }
    const firn_status status = firni_vocab_from_json(options->tokenizer_json, env, &spec, err);
    options->n_vocab = spec.n_tokens;
    firni_vocab_spec_deinit(&spec);
    return status;
}
