/*
 * qwen3: Qwen3 dense models: no biases, an RMS norm on each query and key head, a head size of its own; rotated pairs
 * half a head apart.
 */
#include "model/arch_impl.h"

static firn_status load(firni_loader *loader, const firni_hparams *hparams, const void **layers, firn_error *err)
{
    static const firni_attention_traits traits = { .has_qk_norm = true };
    return firni_dense_load(loader, hparams, &traits, layers, err);
}

const firni_arch firni_arch_qwen3 = {
    .name = "qwen3",
    .rope_interleaved = false,
    .read = firni_dense_read,
    .cache_options = firni_dense_cache_options,
    .load = load,
    .forward_layer = firni_dense_forward_layer,
};
