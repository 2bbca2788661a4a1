/*
 * gpt-oss: a window and everything alternate, every layer is a mixture of experts, and every head has a sink: a logit
 * that takes part in its softmax without a value. Projections have biases, and experts a clamped SwiGLU
 * (moe_activate.c). What GGUF files call post_attention_norm stands before the experts. Source: gpt-oss model card
 * (arXiv 2508.10925) and the published model code.
 */
#include "base/base_impl.h"
#include "model/arch_impl.h"

#define WINDOW_PERIOD 2u

typedef struct gpt_oss_layer {
    firni_attention attention;
    firni_moe moe;
} gpt_oss_layer;

/* Both kinds of layer rotate alike, scaling included, unless the file gives windows a base of their own. */
static void read_window_base(firni_keys *keys, firni_hparams *hp)
{
    const float base = firni_key_f32(keys, "rope.freq_base_swa", 1.0001F, 1e12F, hp->ropes[0].base);
    if (keys->status != FIRN_OK || base == hp->ropes[0].base) {
        return;
    }
    hp->ropes[1] = hp->ropes[0];
    hp->ropes[1].base = base;
    hp->n_ropes = 2;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i].rope = hp->layers[i].window > 0 ? 1 : 0;
    }
}

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_attention(keys, hp);
    firni_read_experts(keys, hp, 0, FIRNI_GATING_SOFTMAX_CHOSEN);
    firni_read_windows(keys, hp, WINDOW_PERIOD, true);
    firni_read_rope(keys, hp, hp->head_dim);
    read_window_base(keys, hp);
}

static firn_status load_layer(firni_loader *loader, const firni_hparams *hp, uint32_t layer, gpt_oss_layer *out,
                              firn_error *err)
{
    static const firni_attention_traits attention_traits = { .needs_qkv_bias = true };
    static const firni_moe_traits moe_traits = {
        .norm = "post_attention_norm.weight",
        .activate = firni_swiglu_clamped,
        .ignores_scales = true,
    };
    char sinks[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(sinks, layer, "attn_sinks.weight");
    firn_status status = firni_attention_load(loader, hp, layer, &attention_traits, &out->attention, err);
    if (status == FIRN_OK) {
        status = firni_load_vector(loader, sinks, hp->layers[layer].n_heads, &out->attention.sinks, err);
    }
    if (status == FIRN_OK) {
        status = firni_moe_load(loader, hp, layer, &moe_traits, &out->moe, err);
    }
    return status;
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    *layers = NULL;
    gpt_oss_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firn_status status = load_layer(loader, hp, i, &array[i], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

static void forward_layer(firni_step *step, const void *layers, uint32_t layer)
{
    const gpt_oss_layer *l = (const gpt_oss_layer *)layers + layer;
    firni_attention_forward(step, &l->attention);
    firni_moe_forward(step, &l->moe, step->extra);
}

const firni_arch firni_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope_interleaved = false,
    .read = read,
    .cache_options = firni_dense_cache_options,
    .load = load,
    .extra_bytes = firni_moe_scratch_bytes,
    .forward_layer = forward_layer,
};
