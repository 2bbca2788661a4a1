/*
 * deepseek2 and deepseek32: DeepSeek V2, V3 and whatever else is published in their form; with 32, the sparse attention
 * of V3.2. Latent attention, a few dense layers, then mixtures of experts with a shared expert. Rotated pairs are
 * adjacent.
 */
#include "base/base_impl.h"
#include "model/arch_impl.h"

typedef struct deepseek_layer {
    firni_mla attention;
    firni_ffn ffn;      /* of the leading dense layers */
    firni_moe moe;      /* of the others */
} deepseek_layer;

static void read_deepseek2(firni_keys *keys, firni_hparams *hp)
{
    const uint32_t none = 0;
    firni_read_common(keys, hp);
    firni_read_mla(keys, hp);
    firni_read_ffn(keys, hp);
    const uint32_t n_dense = firni_key_u32(keys, "leading_dense_block_count", 0, hp->n_layers, &none);
    /* Softmax is what files from before the key exists mean. */
    firni_read_experts(keys, hp, n_dense, FIRNI_GATING_SOFTMAX);
}

static void read_deepseek32(firni_keys *keys, firni_hparams *hp)
{
    read_deepseek2(keys, hp);
    firni_read_mla_index(keys, hp);
}

/* ignores_scales: of feed-forward tensors, see below. */
static firn_status load_layers(firni_loader *loader, const firni_hparams *hp, bool ignores_scales, const void **layers,
                               firn_error *err)
{
    static const firni_moe_traits traits = { .norm = NULL };
    *layers = NULL;
    deepseek_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        firn_status status = firni_mla_load(loader, hp, i, &array[i].attention, err);
        loader->ignores_scales = ignores_scales;
        if (status == FIRN_OK && hp->layers[i].has_experts) {
            status = firni_moe_load(loader, hp, i, &traits, &array[i].moe, err);
        } else if (status == FIRN_OK) {
            status = firni_ffn_load(loader, hp, i, &array[i].ffn, err);
        }
        loader->ignores_scales = false;
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

/* What writes and runs deepseek2 files applies the scale of attn_output and of no feed-forward tensor; of deepseek32 it
 * applies all. Files whose scales are not 1 are rare: the weights are then in formats that need them. */
static firn_status load_deepseek2(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    return load_layers(loader, hp, true, layers, err);
}

static firn_status load_deepseek32(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    return load_layers(loader, hp, false, layers, err);
}

/* Attention and experts work one after the other: they share the memory. */
static size_t extra_bytes(const firni_hparams *hp, uint32_t n_tokens)
{
    const size_t attention = firni_mla_scratch_bytes(hp, n_tokens);
    const size_t experts = firni_moe_scratch_bytes(hp, n_tokens);
    return attention > experts ? attention : experts;
}

static void widths(const firni_hparams *hp, firni_widths *w)
{
    w->inputs_max = hp->mla.q_rank > w->inputs_max ? hp->mla.q_rank : w->inputs_max;
    const uint32_t out = hp->n_heads * hp->mla.value_dim;
    w->inputs_max = out > w->inputs_max ? out : w->inputs_max;
}

static void forward_layer(firni_step *step, const void *layers, uint32_t layer)
{
    const deepseek_layer *l = (const deepseek_layer *)layers + layer;
    firni_mla_forward(step, &l->attention, step->extra);
    if (step->hparams->layers[layer].has_experts) {
        firni_moe_forward(step, &l->moe, step->extra);
    } else {
        firni_ffn_forward(step, &l->ffn);
    }
}

const firni_arch firni_arch_deepseek2 = {
    .name = "deepseek2",
    .rope_interleaved = true,
    .read = read_deepseek2,
    .cache_options = firni_mla_cache_options,
    .load = load_deepseek2,
    .widths = widths,
    .extra_bytes = extra_bytes,
    .forward_layer = forward_layer,
};

const firni_arch firni_arch_deepseek32 = {
    .name = "deepseek32",
    .rope_interleaved = true,
    .read = read_deepseek32,
    .cache_options = firni_mla_cache_options,
    .load = load_deepseek32,
    .widths = widths,
    .extra_bytes = extra_bytes,
    .forward_layer = forward_layer,
};
