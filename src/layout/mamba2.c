/*
 * ssm:mamba2: the state of Mamba-2 layers (arXiv 2405.21060, section 7). In the paper's words x is the value, B the
 * key, C the query, dt the strength and exp(dt A) the decay.
 *
 * Owns the order of a token's channels: values, keys, queries. The rest is recurrent.c.
 */
#include "layout/recurrent_impl.h"

static firn_status mamba2_init(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_recurrent_init(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_recurrent_geometry *geometry = &((firni_recurrent_cache *)cache)->geometry;
    const uint32_t value_channels = cache->options.n_state_heads * cache->options.value_dim;
    geometry->v_channel = 0;
    geometry->k_channel = value_channels;
    geometry->q_channel = value_channels + cache->options.n_kv_heads * cache->options.head_dim;
    return FIRN_OK;
}

const firni_layout firni_layout_mamba2 = {
    .family = "ssm:mamba2",
    .init = mamba2_init,
    FIRNI_RECURRENT_MEMBERS,
};
