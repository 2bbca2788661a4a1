/*
 * gemma3: Gemma 3 text models. Five layers with a window to one that sees everything; the two kinds rotate with
 * different bases, and only the latter is scaled to longer contexts. Norms stand before and after attention and
 * feed-forward, on the branch; queries and keys are normed by head; embeddings are scaled by sqrt(n_embd); the
 * feed-forward's gate is a GELU. Norm weights in GGUF files already hold the "+ 1" of the original.
 * Source: Gemma 3 technical report (arXiv 2503.19786).
 */
#include <math.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

#define WINDOW_PERIOD 6u
#define LAYERS_27B 62u

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_attention(keys, hp);
    firni_read_ffn(keys, hp);
    firni_read_no_experts(keys);
    firni_read_windows(keys, hp, WINDOW_PERIOD, true);
    firni_read_rope(keys, hp, hp->head_dim);
    firni_read_window_rope(keys, hp, hp->head_dim, 10000.0F);
    /* The largest model alone scales scores by the width that a head would have without a size of its own. Files in
     * circulation do not say so; its number of layers does. */
    const uint32_t scale_dim = hp->n_layers == LAYERS_27B ? hp->n_embd / hp->n_heads : hp->head_dim;
    hp->attention_scale = firni_key_f32(keys, "attention.scale", 0.0F, 1e3F, 0.0F);
    if (hp->attention_scale == 0.0F) {
        hp->attention_scale = (float)(1.0 / sqrt((double)scale_dim));
    }
    hp->logit_softcap = firni_key_f32(keys, "final_logit_softcapping", 0.0F, 1e6F, 0.0F);
    hp->embedding_scale = (float)sqrt((double)hp->n_embd);
}

static firn_status load_layer(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_dense_layer *out,
                              firn_error *err)
{
    static const firni_attention_traits traits = { .has_qk_norm = true };
    char name[FIRNI_TENSOR_NAME_BYTES];
    firn_status status = firni_attention_load(loader, hp, layer, &traits, &out->attention, err);
    if (status == FIRN_OK) {
        firni_layer_tensor_name(name, layer, "post_attention_norm.weight");
        status = firni_load_vector(loader, name, hp->n_embd, &out->attention.post_norm, err);
    }
    if (status == FIRN_OK) {
        status = firni_ffn_load(loader, hp, layer, &out->ffn, err);
    }
    if (status == FIRN_OK) {
        firni_layer_tensor_name(name, layer, "post_ffw_norm.weight");
        status = firni_load_vector(loader, name, hp->n_embd, &out->ffn.post_norm, err);
    }
    out->attention.scale = hp->attention_scale;
    out->ffn.is_gelu = true;
    /* Writers that know every tensor put scales beside these matrices too; in this architecture they mean nothing,
     * unlike those of attention. */
    out->ffn.gate_up.scale = NULL;
    out->ffn.down.scale = NULL;
    return status;
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    *layers = NULL;
    firni_dense_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
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

const firni_arch firni_arch_gemma3 = {
    .name = "gemma3",
    .rope_interleaved = false,
    .read = read,
    .cache_options = firni_dense_cache_options,
    .load = load,
    .forward_layer = firni_dense_forward_layer,
};
