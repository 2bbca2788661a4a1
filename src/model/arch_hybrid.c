/*
 * The hybrid layers that qwen35 and qwen3next share: gated DeltaNet or attention with an output gate, then SwiGLU or a
 * mixture of experts. Attention has an RMS norm on each query and key head and rotates a part of each head.
 *
 * What differs between the two is in firni_hybrid_traits.
 */
#include "base/base_impl.h"
#include "model/block_recurrent.h"

typedef struct hybrid_layer {
    bool is_recurrent;
    bool has_experts;
    firni_attention attention;
    firni_gated_delta delta;
    firni_ffn ffn;
    firni_moe moe;
} hybrid_layer;

void firni_hybrid_read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_attention(keys, hp);
    if (keys->status == FIRN_OK && hp->value_dim != hp->head_dim) {
        firni_key_fail(keys, "attention.value_length", "differs from key_length, but gates have the size of both");
    }
    firni_read_rope(keys, hp, hp->head_dim);
    firni_read_ssm(keys, hp);
    firni_read_recurrent_layers(keys, hp);
}

void firni_hybrid_cache_options(const firni_hparams *hp, uint32_t layer, bool keys_cycle, firn_cache_options *out)
{
    if (hp->layers[layer].is_recurrent) {
        firni_recurrent_cache_options(hp, "ssm:gated-delta", out);
        out->keys_cycle = keys_cycle;
    } else {
        firni_dense_cache_options(hp, layer, out);
    }
}

/* Both kinds of feed-forward block have this norm. */
static firn_status load_ffn(firni_loader *loader, const firni_hparams *hp, uint32_t index, hybrid_layer *layer,
                            firn_error *err)
{
    static const char norm[] = "post_attention_norm.weight";
    static const firni_moe_traits traits = { .norm = norm };
    return layer->has_experts ? firni_moe_load(loader, hp, index, &traits, &layer->moe, err)
                              : firni_ffn_load_after(loader, hp, index, norm, &layer->ffn, err);
}

static firn_status load_layer(firni_loader *loader, const firni_hparams *hp, uint32_t index,
                              const firni_gated_delta_traits *delta, hybrid_layer *layer, firn_error *err)
{
    static const firni_attention_traits attention = { .has_qk_norm = true, .has_gate = true };
    *layer = (hybrid_layer){
        .is_recurrent = hp->layers[index].is_recurrent,
        .has_experts = hp->layers[index].has_experts,
    };
    const firn_status status = layer->is_recurrent
                                   ? firni_gated_delta_load(loader, hp, index, delta, &layer->delta, err)
                                   : firni_attention_load(loader, hp, index, &attention, &layer->attention, err);
    return status != FIRN_OK ? status : load_ffn(loader, hp, index, layer, err);
}

firn_status firni_hybrid_load(firni_loader *loader, const firni_hparams *hp, const firni_gated_delta_traits *delta,
                              const void **layers, firn_error *err)
{
    *layers = NULL;
    hybrid_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firn_status status = load_layer(loader, hp, i, delta, &array[i], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

void firni_hybrid_forward_layer(firni_step *step, const void *layers, uint32_t index)
{
    const hybrid_layer *layer = (const hybrid_layer *)layers + index;
    if (layer->is_recurrent) {
        firni_gated_delta_forward(step, &layer->delta);
    } else {
        firni_attention_forward(step, &layer->attention);
    }
    if (layer->has_experts) {
        firni_moe_forward(step, &layer->moe, step->extra);
    } else {
        firni_ffn_forward(step, &layer->ffn);
    }
}

/* Queries come with gates of their size, which are moved behind the values. */
void firni_hybrid_widths(const firni_hparams *hp, firni_widths *out)
{
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firni_layer_shape *l = &hp->layers[i];
        const uint32_t wide = 3 * l->n_heads * l->head_dim + l->n_kv_heads * (l->head_dim + l->value_dim);
        out->wide = out->wide > wide ? out->wide : wide;
    }
    firni_gated_delta_widths(hp, out);
}
