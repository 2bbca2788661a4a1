/*
 * The dense layer that llama, qwen2 and qwen3 share: attention, then SwiGLU, each with its own norm and residual.
 *
 * All layers are alike, so the state of each is a plain cache of the same geometry. What differs between the three
 * is in firni_attention_traits and in the position of rotated pairs.
 */
#include "base/base_impl.h"
#include "model/arch_impl.h"

void firni_dense_read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_attention(keys, hp);
    firni_read_ffn(keys, hp);
    firni_read_no_experts(keys);
    firni_read_rope(keys, hp, hp->head_dim);
}

firn_status firni_dense_load(firni_loader *loader, const firni_hparams *hp, const firni_attention_traits *traits,
                             const void **layers, firn_error *err)
{
    *layers = NULL;
    /* Owned by the weights, like everything the layers point to: there is nothing to unload. */
    firni_dense_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        firn_status status = firni_attention_load(loader, hp, i, traits, &array[i].attention, err);
        if (status == FIRN_OK) {
            status = firni_ffn_load(loader, hp, i, &array[i].ffn, err);
        }
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

void firni_dense_forward_layer(firni_step *step, const void *layers, uint32_t layer)
{
    const firni_dense_layer *array = layers;
    firni_attention_forward(step, &array[layer].attention);
    firni_ffn_forward(step, &array[layer].ffn);
}

void firni_dense_cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    const firni_layer_shape *shape = &hp->layers[layer];
    *out = (firn_cache_options){
        .layout = shape->window > 0 ? "kv:window" : "kv:plain",
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .value_dim = shape->value_dim,
        .window = shape->window,
    };
}
