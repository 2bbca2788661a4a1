/*
 * ssm:gated-delta: the state of gated DeltaNet layers (arXiv 2412.06464), as in Qwen3-Next. A token first lets the
 * state decay, then replaces what its key finds there by its value, as far as its strength goes.
 *
 * Owns the order of a token's channels: queries, keys, values. The rest is recurrent.c.
 */
#include "layout/recurrent_impl.h"

static firn_status gated_delta_init(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_recurrent_init(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_recurrent_geometry *geometry = &((firni_recurrent_cache *)cache)->geometry;
    const uint32_t key_channels = cache->options.n_kv_heads * cache->options.head_dim;
    geometry->is_delta = true;
    geometry->q_channel = 0;
    geometry->k_channel = key_channels;
    geometry->v_channel = 2 * key_channels;
    return FIRN_OK;
}

const firni_layout firni_layout_gated_delta = {
    .family = "ssm:gated-delta",
    .init = gated_delta_init,
    FIRNI_RECURRENT_MEMBERS,
};
