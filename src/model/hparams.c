/*
 * Reads and checks the hyperparameters of llama, qwen2 and qwen3 style transformers.
 *
 * Owns the limits. Does not look at tensors except for the size of the vocabulary.
 * Source: GGUF specification (ggml project, docs/gguf.md), "Standardized key-value pairs", and the keys that current
 * converters write.
 */
#include "model/hparams.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "kernel/kernel_impl.h"

#define KEY_BYTES 96u

/* Where keys are read from, and the first error; later reads are skipped after it, so that a list of keys reads like a
 * list. */
typedef struct reader {
    const firni_gguf *gguf;
    const char *architecture;
    firn_status status;
    firn_error *err;
} reader;

/* "<architecture>.<suffix>"; an architecture's name has at most 31 bytes and suffixes are ours, so it always fits. */
static void full_key(const reader *r, const char *suffix, char out[KEY_BYTES])
{
    const int n = snprintf(out, KEY_BYTES, "%s.%s", r->architecture, suffix);
    assert(n > 0 && n < (int)KEY_BYTES);
    (void)n;
}

/* An integer within [min, max]. `fallback` stands in for a missing key; NULL: the key is required. */
static uint32_t read_u32(reader *r, const char *suffix, uint32_t min, uint32_t max, const uint32_t *fallback)
{
    char key[KEY_BYTES];
    uint32_t value = 0;
    bool found = false;
    if (r->status != FIRN_OK) {
        return min;
    }
    full_key(r, suffix, key);
    r->status = firni_gguf_get_u32(r->gguf, key, &value, &found, r->err);
    if (r->status != FIRN_OK) {
        return min;
    }
    if (!found && fallback != NULL) {
        value = *fallback;
    } else if (!found) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT, "%s: key '%s' is missing", firni_gguf_path(r->gguf), key);
        return min;
    }
    if (value < min || value > max) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT, "%s: key '%s' is %lu, outside %lu to %lu",
                               firni_gguf_path(r->gguf), key, (unsigned long)value, (unsigned long)min,
                               (unsigned long)max);
        return min;
    }
    return value;
}

/* A number within [min, max]; `fallback`, which need not lie inside, when the key is missing. The comparison is written
 * so that a NaN fails it. */
static float read_f32(reader *r, const char *suffix, float min, float max, float fallback)
{
    char key[KEY_BYTES];
    float value = fallback;
    bool found = false;
    if (r->status != FIRN_OK) {
        return fallback;
    }
    full_key(r, suffix, key);
    r->status = firni_gguf_get_f32(r->gguf, key, &value, &found, r->err);
    if (r->status == FIRN_OK && found && !(value >= min && value <= max)) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT, "%s: key '%s' is %g, outside %g to %g",
                               firni_gguf_path(r->gguf), key, (double)value, (double)min, (double)max);
    }
    return value;
}

/* The name goes into messages and key names, so it is copied out of the file as a C string, and refused when it is not
 * one. */
firn_status firni_hparams_architecture(const firni_gguf *gguf, char out[32], firn_error *err)
{
    firni_gguf_string name;
    bool found = false;
    out[0] = '\0';
    const firn_status status = firni_gguf_get_string(gguf, "general.architecture", &name, &found, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (!found || name.len_bytes == 0 || name.len_bytes >= 32 || memchr(name.data, '\0', name.len_bytes) != NULL) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: key 'general.architecture' is missing, empty or too long",
                          firni_gguf_path(gguf));
    }
    memcpy(out, name.data, name.len_bytes);
    out[name.len_bytes] = '\0';
    return FIRN_OK;
}

/* Which scaling the file names. Absent, a factor alone means linear scaling. */
static firni_rope_scaling read_scaling_kind(reader *r)
{
    static const struct {
        const char *name;
        firni_rope_scaling scaling;
    } kinds[] = {
        { "none", FIRNI_ROPE_SCALING_NONE },
        { "linear", FIRNI_ROPE_SCALING_LINEAR },
        { "llama3", FIRNI_ROPE_SCALING_LLAMA3 },
        { "yarn", FIRNI_ROPE_SCALING_YARN },
    };
    char key[KEY_BYTES];
    firni_gguf_string name = { .data = "", .len_bytes = 0 };
    bool found = false;
    full_key(r, "rope.scaling.type", key);
    r->status = firni_gguf_get_string(r->gguf, key, &name, &found, r->err);
    if (r->status != FIRN_OK || !found) {
        return FIRNI_ROPE_SCALING_LINEAR;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strlen(kinds[i].name) == name.len_bytes && memcmp(kinds[i].name, name.data, name.len_bytes) == 0) {
            return kinds[i].scaling;
        }
    }
    const int shown = name.len_bytes < 32 ? (int)name.len_bytes : 32;
    r->status = firni_fail(r->err, FIRN_ERR_UNSUPPORTED,
                           "%s: key '%s' is '%.*s'; this build knows none, linear, llama3 and yarn",
                           firni_gguf_path(r->gguf), key, shown, name.data);
    return FIRNI_ROPE_SCALING_NONE;
}

/* Llama 3's smoothing as keys. Published files usually carry it as a tensor of divisors instead (model.c). */
static void read_llama3(reader *r, firni_rope_params *rope, const uint32_t *n_ctx_train)
{
    rope->original_context = read_u32(r, "rope.scaling.original_context_length", 1, 1u << 30, n_ctx_train);
    rope->low_freq_factor = read_f32(r, "rope.scaling.low_freq_factor", 1e-3F, 1e6F, 1.0F);
    rope->high_freq_factor = read_f32(r, "rope.scaling.high_freq_factor", 1e-3F, 1e6F, 4.0F);
    if (r->status == FIRN_OK && rope->high_freq_factor <= rope->low_freq_factor) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT,
                               "%s: key '%s.rope.scaling.high_freq_factor' is not above low_freq_factor",
                               firni_gguf_path(r->gguf), r->architecture);
    }
}

static void read_yarn(reader *r, firni_rope_params *rope, const uint32_t *n_ctx_train)
{
    rope->original_context = read_u32(r, "rope.scaling.original_context_length", 1, 1u << 30, n_ctx_train);
    /* A negative ext factor means "as usual". Two spellings of the attention factor are in use. */
    rope->ext_factor = read_f32(r, "rope.scaling.yarn_ext_factor", -1.0F, 1.0F, 1.0F);
    if (rope->ext_factor < 0.0F) {
        rope->ext_factor = 1.0F;
    }
    rope->attn_factor = read_f32(r, "rope.scaling.attn_factor", 1e-3F, 1e3F, 1.0F);
    rope->attn_factor = read_f32(r, "rope.scaling.yarn_attn_factor", 1e-3F, 1e3F, rope->attn_factor);
    rope->beta_fast = read_f32(r, "rope.scaling.yarn_beta_fast", 1e-3F, 1e6F, 32.0F);
    rope->beta_slow = read_f32(r, "rope.scaling.yarn_beta_slow", 1e-3F, 1e6F, 1.0F);
}

/* Parameters that the file's scaling does not use stay zero: they shape nothing and are not part of the identity. */
static void read_rope(reader *r, firni_hparams *hp)
{
    firni_rope_params *rope = &hp->rope;
    rope->n_dims = read_u32(r, "rope.dimension_count", 2, hp->head_dim, &hp->head_dim);
    rope->base = read_f32(r, "rope.freq_base", 1.0001F, 1e12F, 10000.0F);
    if (r->status != FIRN_OK) {
        return;
    }
    if (rope->n_dims % 2 != 0) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT, "%s: key '%s.rope.dimension_count' is %lu, an odd number",
                               firni_gguf_path(r->gguf), r->architecture, (unsigned long)rope->n_dims);
        return;
    }
    rope->scaling = read_scaling_kind(r);
    /* Older files say scale_linear. Some write 0 for "no scaling"; both are still in circulation. */
    const float legacy = read_f32(r, "rope.scale_linear", 0.0F, 1e6F, 1.0F);
    rope->factor = read_f32(r, "rope.scaling.factor", 0.0F, 1e6F, legacy);
    if (rope->factor == 0.0F) {
        rope->factor = 1.0F;
    }
    if (rope->scaling == FIRNI_ROPE_SCALING_LLAMA3) {
        read_llama3(r, rope, &hp->n_ctx_train);
    } else if (rope->scaling == FIRNI_ROPE_SCALING_YARN) {
        read_yarn(r, rope, &hp->n_ctx_train);
    }
    /* One spelling for one meaning, so that equal models have equal identities. */
    if (rope->scaling == FIRNI_ROPE_SCALING_LINEAR && rope->factor == 1.0F) {
        rope->scaling = FIRNI_ROPE_SCALING_NONE;
    }
}

/* Everything of a plain transformer with one shape for all layers. */
static void read_shape(reader *r, firni_hparams *hp)
{
    const uint32_t none = 0;
    hp->n_layers = read_u32(r, "block_count", 1, FIRNI_LAYERS_MAX, NULL);
    hp->n_embd = read_u32(r, "embedding_length", 1, FIRNI_WIDTH_MAX, NULL);
    hp->n_ff = read_u32(r, "feed_forward_length", 1, FIRNI_FF_MAX, NULL);
    hp->n_heads = read_u32(r, "attention.head_count", 1, FIRNI_HEADS_MAX, NULL);
    hp->n_kv_heads = read_u32(r, "attention.head_count_kv", 1, FIRNI_HEADS_MAX, &hp->n_heads);
    hp->n_ctx_train = read_u32(r, "context_length", 1, 1u << 30, NULL);
    /* Qwen3 and others choose the size of a head apart from the width; the keys say so, and win. */
    const uint32_t head_dim = hp->n_embd / hp->n_heads;
    hp->head_dim = read_u32(r, "attention.key_length", 1, FIRNI_HEAD_DIM_MAX, &head_dim);
    hp->value_dim = read_u32(r, "attention.value_length", 1, FIRNI_HEAD_DIM_MAX, &head_dim);
    hp->rms_eps = read_f32(r, "attention.layer_norm_rms_epsilon", 1e-12F, 1.0F, 1e-5F);
    /* Mixtral calls itself llama. Without this check its files would fail on a missing tensor, which explains less. */
    const uint32_t n_experts = read_u32(r, "expert_count", 0, UINT32_MAX, &none);
    if (r->status != FIRN_OK) {
        return;
    }
    if (hp->n_heads % hp->n_kv_heads != 0) {
        r->status = firni_fail(r->err, FIRN_ERR_FORMAT, "%s: %lu query heads are not a multiple of %lu KV heads",
                               firni_gguf_path(r->gguf), (unsigned long)hp->n_heads, (unsigned long)hp->n_kv_heads);
    } else if (n_experts != 0) {
        r->status = firni_fail(r->err, FIRN_ERR_UNSUPPORTED, "%s: key '%s.expert_count' is %lu: mixtures of experts of "
                               "this architecture are not supported", firni_gguf_path(r->gguf), r->architecture,
                               (unsigned long)n_experts);
    }
}

firn_status firni_hparams_read(const firni_gguf *gguf, const char *architecture, firni_hparams *out, firn_error *err)
{
    reader r = { .gguf = gguf, .architecture = architecture, .status = FIRN_OK, .err = err };
    *out = (firni_hparams){ .n_layers = 0 };
    (void)snprintf(out->architecture, sizeof out->architecture, "%s", architecture);
    read_shape(&r, out);
    if (r.status == FIRN_OK) {
        read_rope(&r, out);
    }
    if (r.status != FIRN_OK) {
        return r.status;
    }
    const firni_gguf_tensor *embedding = firni_gguf_find_tensor(gguf, "token_embd.weight");
    if (embedding == NULL) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor 'token_embd.weight' is missing", firni_gguf_path(gguf));
    }
    /* Not the vocab_size key: what can be looked up is what the table holds. */
    if (embedding->shape[1] > FIRNI_VOCAB_MAX) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor 'token_embd.weight' has %llu rows, more than %u",
                          firni_gguf_path(gguf), (unsigned long long)embedding->shape[1], FIRNI_VOCAB_MAX);
    }
    out->n_vocab = (uint32_t)embedding->shape[1];
    return FIRN_OK;
}
