/*
 * qwen35: Qwen3.5 dense models: three layers of gated DeltaNet to one of full attention, each followed by SwiGLU. State
 * head h reads key head h modulo their number, which is how the files order the heads.
 */
#include "model/block_recurrent.h"

/* Text has one position for all axes, so the sections matter only for pairs that none of them reaches. */
static void read_sections(firni_keys *keys, firni_hparams *hp)
{
    uint32_t sections[4];
    if (firni_key_u32_layers(keys, "rope.dimension_sections", 0, FIRNI_HEAD_DIM_MAX, 4, sections)) {
        for (uint32_t i = 0; i < 4; i++) {
            hp->ropes[0].sections[i] = sections[i];
        }
    }
}

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_hybrid_read(keys, hp);
    firni_read_ffn(keys, hp);
    firni_read_no_experts(keys);
    read_sections(keys, hp);
}

static void cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    firni_hybrid_cache_options(hp, layer, true, out);
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    static const firni_gated_delta_traits delta = { .gates_by_key_head = false };
    return firni_hybrid_load(loader, hp, &delta, layers, err);
}

const firni_arch firni_arch_qwen35 = {
    .name = "qwen35",
    .rope_interleaved = false,
    .read = read,
    .cache_options = cache_options,
    .load = load,
    .widths = firni_hybrid_widths,
    .forward_layer = firni_hybrid_forward_layer,
};
