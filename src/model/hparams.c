/*
 * Reads and checks the hyperparameters that several architectures have in common.
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
static firni_rope_scaling read_scaling_kind(firni_keys *keys)
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
    char key[FIRNI_KEY_BYTES];
    firni_gguf_string name = { .data = "", .len_bytes = 0 };
    bool found = false;
    firni_key_name(keys, "rope.scaling.type", key);
    keys->status = firni_gguf_get_string(keys->gguf, key, &name, &found, keys->err);
    if (keys->status != FIRN_OK || !found) {
        return FIRNI_ROPE_SCALING_LINEAR;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strlen(kinds[i].name) == name.len_bytes && memcmp(kinds[i].name, name.data, name.len_bytes) == 0) {
            return kinds[i].scaling;
        }
    }
    const int shown = name.len_bytes < 32 ? (int)name.len_bytes : 32;
    keys->status = firni_fail(keys->err, FIRN_ERR_UNSUPPORTED,
                              "%s: key '%s' is '%.*s'; this build knows none, linear, llama3 and yarn",
                              firni_gguf_path(keys->gguf), key, shown, name.data);
    return FIRNI_ROPE_SCALING_NONE;
}

/* Llama 3's smoothing as keys. Published files usually carry it as a tensor of divisors instead (model.c). */
static void read_llama3(firni_keys *keys, firni_rope_params *rope, const uint32_t *n_ctx_train)
{
    rope->original_context = firni_key_u32(keys, "rope.scaling.original_context_length", 1, 1u << 30, n_ctx_train);
    rope->low_freq_factor = firni_key_f32(keys, "rope.scaling.low_freq_factor", 1e-3F, 1e6F, 1.0F);
    rope->high_freq_factor = firni_key_f32(keys, "rope.scaling.high_freq_factor", 1e-3F, 1e6F, 4.0F);
    if (keys->status == FIRN_OK && rope->high_freq_factor <= rope->low_freq_factor) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT,
                                  "%s: key '%s.rope.scaling.high_freq_factor' is not above low_freq_factor",
                                  firni_gguf_path(keys->gguf), keys->architecture);
    }
}

static void read_yarn(firni_keys *keys, firni_rope_params *rope, const uint32_t *n_ctx_train)
{
    rope->original_context = firni_key_u32(keys, "rope.scaling.original_context_length", 1, 1u << 30, n_ctx_train);
    /* A negative ext factor means "as usual". Two spellings of the attention factor are in use. */
    rope->ext_factor = firni_key_f32(keys, "rope.scaling.yarn_ext_factor", -1.0F, 1.0F, 1.0F);
    if (rope->ext_factor < 0.0F) {
        rope->ext_factor = 1.0F;
    }
    rope->attn_factor = firni_key_f32(keys, "rope.scaling.attn_factor", 1e-3F, 1e3F, 1.0F);
    rope->attn_factor = firni_key_f32(keys, "rope.scaling.yarn_attn_factor", 1e-3F, 1e3F, rope->attn_factor);
    rope->beta_fast = firni_key_f32(keys, "rope.scaling.yarn_beta_fast", 1e-3F, 1e6F, 32.0F);
    rope->beta_slow = firni_key_f32(keys, "rope.scaling.yarn_beta_slow", 1e-3F, 1e6F, 1.0F);
}

/* Parameters that the file's scaling does not use stay zero: they shape nothing and are not part of the identity. */
void firni_read_rope(firni_keys *keys, firni_hparams *hp, uint32_t n_dims_default)
{
    firni_rope_params *rope = &hp->ropes[0];
    hp->n_ropes = 1;
    rope->n_dims = firni_key_u32(keys, "rope.dimension_count", 2, n_dims_default, &n_dims_default);
    rope->base = firni_key_f32(keys, "rope.freq_base", 1.0001F, 1e12F, 10000.0F);
    if (keys->status != FIRN_OK) {
        return;
    }
    if (rope->n_dims % 2 != 0) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s.rope.dimension_count' is %lu, an odd number",
                                  firni_gguf_path(keys->gguf), keys->architecture, (unsigned long)rope->n_dims);
        return;
    }
    rope->scaling = read_scaling_kind(keys);
    /* Older files say scale_linear. Some write 0 for "no scaling"; both are still in circulation. */
    const float legacy = firni_key_f32(keys, "rope.scale_linear", 0.0F, 1e6F, 1.0F);
    rope->factor = firni_key_f32(keys, "rope.scaling.factor", 0.0F, 1e6F, legacy);
    if (rope->factor == 0.0F) {
        rope->factor = 1.0F;
    }
    if (rope->scaling == FIRNI_ROPE_SCALING_LLAMA3) {
        read_llama3(keys, rope, &hp->n_ctx_train);
    } else if (rope->scaling == FIRNI_ROPE_SCALING_YARN) {
        read_yarn(keys, rope, &hp->n_ctx_train);
    }
    /* One spelling for one meaning, so that equal models have equal identities. */
    if (rope->scaling == FIRNI_ROPE_SCALING_LINEAR && rope->factor == 1.0F) {
        rope->scaling = FIRNI_ROPE_SCALING_NONE;
    }
}

void firni_read_common(firni_keys *keys, firni_hparams *hp)
{
    hp->n_layers = firni_key_u32(keys, "block_count", 1, FIRNI_LAYERS_MAX, NULL);
    hp->n_embd = firni_key_u32(keys, "embedding_length", 1, FIRNI_WIDTH_MAX, NULL);
    hp->n_ctx_train = firni_key_u32(keys, "context_length", 1, 1u << 30, NULL);
    hp->rms_eps = firni_key_f32(keys, "attention.layer_norm_rms_epsilon", 1e-12F, 1.0F, 1e-5F);
    hp->embedding_scale = 1.0F;
    hp->n_caches = hp->n_layers;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i] = (firni_layer_shape){ .cache = i };
    }
}

void firni_read_attention(firni_keys *keys, firni_hparams *hp)
{
    hp->n_heads = firni_key_u32(keys, "attention.head_count", 1, FIRNI_HEADS_MAX, NULL);
    hp->n_kv_heads = firni_key_u32(keys, "attention.head_count_kv", 1, FIRNI_HEADS_MAX, &hp->n_heads);
    /* Qwen3 and others choose the size of a head apart from the width; the keys say so, and win. */
    const uint32_t head_dim = hp->n_heads > 0 ? hp->n_embd / hp->n_heads : 0;
    hp->head_dim = firni_key_u32(keys, "attention.key_length", 1, FIRNI_HEAD_DIM_MAX, &head_dim);
    hp->value_dim = firni_key_u32(keys, "attention.value_length", 1, FIRNI_HEAD_DIM_MAX, &head_dim);
    if (keys->status != FIRN_OK) {
        return;
    }
    if (hp->n_heads % hp->n_kv_heads != 0) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: %lu query heads are not a multiple of %lu KV heads",
                                  firni_gguf_path(keys->gguf), (unsigned long)hp->n_heads,
                                  (unsigned long)hp->n_kv_heads);
        return;
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        firni_layer_shape *layer = &hp->layers[i];
        layer->n_heads = hp->n_heads;
        layer->n_kv_heads = hp->n_kv_heads;
        layer->head_dim = hp->head_dim;
        layer->value_dim = hp->value_dim;
    }
}

void firni_read_ffn(firni_keys *keys, firni_hparams *hp)
{
    hp->n_ff = firni_key_u32(keys, "feed_forward_length", 1, FIRNI_FF_MAX, NULL);
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i].n_ff = hp->n_ff;
    }
}

static void fail_experts(firni_keys *keys, const char *text, uint32_t a, uint32_t b)
{
    if (keys->status == FIRN_OK) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, text, firni_gguf_path(keys->gguf), keys->architecture,
                                  (unsigned long)a, (unsigned long)b);
    }
}

/* Two spellings of the shared expert's size are in use: as such, and as a number of experts. Converters write 0 for
 * keys that a model does not have. */
void firni_read_experts(firni_keys *keys, firni_hparams *hp, uint32_t n_dense, firni_gating gating)
{
    const uint32_t none = 0;
    firni_moe_params *moe = &hp->moe;
    moe->n_experts = firni_key_u32(keys, "expert_count", 1, FIRNI_EXPERTS_MAX, NULL);
    moe->n_used = firni_key_u32(keys, "expert_used_count", 1, moe->n_experts, NULL);
    moe->n_ff = firni_key_u32(keys, "expert_feed_forward_length", 1, FIRNI_FF_MAX, NULL);
    const uint32_t n_shared = firni_key_u32(keys, "expert_shared_count", 0, 64, &none);
    const uint32_t n_ff_shared = firni_key_u32(keys, "expert_shared_feed_forward_length", 0, FIRNI_FF_MAX, &none);
    moe->n_ff_shared = n_ff_shared != 0 ? n_ff_shared : n_shared * moe->n_ff;
    const uint32_t named = firni_key_u32(keys, "expert_gating_func", 0, FIRNI_GATING_SOFTMAX_CHOSEN, &none);
    moe->gating = named != 0 ? (firni_gating)named : gating;
    moe->weights_norm = firni_key_bool(keys, "expert_weights_norm", false);
    moe->weights_scale = firni_key_f32(keys, "expert_weights_scale", 0.0F, 1e6F, 1.0F);
    if (moe->weights_scale == 0.0F) {
        moe->weights_scale = 1.0F;
    }
    moe->n_groups = firni_key_u32(keys, "expert_group_count", 0, FIRNI_EXPERT_GROUPS_MAX, &none);
    moe->n_groups = moe->n_groups == 0 ? 1 : moe->n_groups;
    const uint32_t n_groups_used = firni_key_u32(keys, "expert_group_used_count", 0, moe->n_groups, &none);
    moe->n_groups_used = n_groups_used == 0 ? moe->n_groups : n_groups_used;
    if (keys->status == FIRN_OK && moe->n_experts % moe->n_groups != 0) {
        fail_experts(keys, "%s: '%s.expert_count' %lu is not a multiple of expert_group_count %lu", moe->n_experts,
                     moe->n_groups);
    }
    if (keys->status == FIRN_OK && moe->n_experts / moe->n_groups * moe->n_groups_used < moe->n_used) {
        fail_experts(keys, "%s: '%s.expert_used_count' %lu is more than the %lu experts of the groups in use",
                     moe->n_used, moe->n_experts / moe->n_groups * moe->n_groups_used);
    }
    for (uint32_t i = n_dense; i < hp->n_layers && keys->status == FIRN_OK; i++) {
        hp->layers[i].n_ff = 0;
        hp->layers[i].has_experts = true;
    }
}

/* Mixtral calls itself llama. Without this check its files would fail on a missing tensor, which explains less. */
void firni_read_no_experts(firni_keys *keys)
{
    const uint32_t none = 0;
    const uint32_t n_experts = firni_key_u32(keys, "expert_count", 0, UINT32_MAX, &none);
    if (keys->status == FIRN_OK && n_experts != 0) {
        keys->status = firni_fail(keys->err, FIRN_ERR_UNSUPPORTED, "%s: key '%s.expert_count' is %lu: mixtures of "
                                  "experts of this architecture are not supported", firni_gguf_path(keys->gguf),
                                  keys->architecture, (unsigned long)n_experts);
    }
}

uint32_t firni_hparams_storing_layer(const firni_hparams *hp, uint32_t cache)
{
    uint32_t layer = 0;
    while (hp->layers[layer].cache != cache) {
        layer++;
        assert(layer < hp->n_layers);
    }
    return layer;
}

firn_status firni_hparams_read(const firni_gguf *gguf, const char *architecture, firni_hparams_reader read,
                               firni_hparams *out, firn_error *err)
{
    firni_keys keys = { .gguf = gguf, .architecture = architecture, .status = FIRN_OK, .err = err };
    memset(out, 0, sizeof *out);
    (void)snprintf(out->architecture, sizeof out->architecture, "%s", architecture);
    read(&keys, out);
    if (keys.status != FIRN_OK) {
        return keys.status;
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
