/*
 * qwen3next: Qwen3-Next: three layers of gated DeltaNet to one of full attention, each followed by a mixture of experts
 * with a shared expert that has a gate of its own. Neighbouring state heads share a key head, and their gates come in
 * one tensor, key head by key head. The weights of the chosen experts are always divided by their sum.
 */
#include "model/block_recurrent.h"

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_hybrid_read(keys, hp);
    firni_read_experts(keys, hp, 0, FIRNI_GATING_SOFTMAX);
    hp->moe.weights_norm = true;
}

static void cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    firni_hybrid_cache_options(hp, layer, false, out);
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    static const firni_gated_delta_traits delta = { .gates_by_key_head = true, .ignores_scales = true };
    return firni_hybrid_load(loader, hp, &delta, layers, err);
}

const firni_arch firni_arch_qwen3next = {
    .name = "qwen3next",
    .rope_interleaved = false,
    .read = read,
    .cache_options = cache_options,
    .load = load,
    .widths = firni_hybrid_widths,
    .extra_bytes = firni_moe_scratch_bytes,
    .forward_layer = firni_hybrid_forward_layer,
};
