/*
 * llama: Llama 1 to 3, Mistral and whatever else is published in that form. Its GGUF files hold query and key weights
 * permuted so that rotated pairs are adjacent.
 */
#include "model/arch_impl.h"

static firn_status load(firni_loader *loader, const firni_hparams *hparams, const void **layers, firn_error *err)
{
    static const firni_attention_traits traits = { .needs_qkv_bias = false };
    return firni_dense_load(loader, hparams, &traits, layers, err);
}

const firni_arch firni_arch_llama = {
    .name = "llama",
    .rope_interleaved = true,
    .read = firni_dense_read,
    .cache_options = firni_dense_cache_options,
    .load = load,
    .forward_layer = firni_dense_forward_layer,
};
