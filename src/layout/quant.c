/*
 * kv:quant: keys and values as integers of 8 or 4 bits, with an f16 scale and bias for each group of 32 or 64 elements
 * of a head.
 *
 *      0            k_scales       k_biases       v_codes      v_scales       v_biases       block_bytes
 *      | K codes    | K scales     | K biases     | V codes    | V scales     | V biases     | unused |
 *
 * Groups lie along the head, never across tokens: whatever tokens are cut off, the others keep their numbers. The order
 * of bits within codes is the kernels' (quantised.h). Nothing is ever written out in another form to be read.
 *
 * Owns geometry, planes and the order of storing, for window_quant.c and turboquant.c as well; the dense view is
 * quant_dense.c. The arithmetic is the kernel's, rows are rows.c, the cutting into tasks is tasks.c.
 */
#include <stdio.h>

#include "base/base_impl.h"
#include "kernel/quantised.h"
#include "layout/layout_impl.h"

static const firni_quant_geometry *geometry_of(const firn_cache *cache)
{
    return &((const firni_quant_cache *)cache)->geometry;
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

firn_status firni_quant_check_options(const firn_cache *cache, bool has_window, firn_error *err)
{
    const char *family = cache->ops->family;
    const firn_cache_options *options = &cache->options;
    if (options->dtype != FIRN_DTYPE_NONE) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s stores integers; an element type of %s does not fit", family,
                          firn_dtype_name(options->dtype));
    }
    if (options->n_kv_heads < 1 || options->n_kv_heads > FIRNI_KV_HEADS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes 1 to %u key/value heads, not %u", family,
                          FIRNI_KV_HEADS_MAX, options->n_kv_heads);
    }
    if (options->head_dim < 1 || options->head_dim > FIRNI_HEAD_DIM_MAX || options->value_dim > FIRNI_HEAD_DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes heads of up to %u elements, not %u and %u", family,
                          FIRNI_HEAD_DIM_MAX, options->head_dim, options->value_dim);
    }
    if (has_window && (options->window < 1 || options->window > FIRNI_ROW_TOKENS_MAX)) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes a window of 1 to %u tokens, not %u", family,
                          FIRNI_ROW_TOKENS_MAX, options->window);
    }
    if (!has_window && options->window != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s keeps all tokens; a window of %u does not fit", family,
                          options->window);
    }
    return FIRN_OK;
}

void firni_quant_set_geometry(firn_cache *cache, bool rotated)
{
    firni_quant_geometry *geometry = &((firni_quant_cache *)cache)->geometry;
    *geometry = (firni_quant_geometry){
        .n_kv_heads = cache->options.n_kv_heads,
        .head_dim = cache->options.head_dim,
        .value_dim = cache->options.value_dim,
        .group = cache->options.group,
        .key_bits = cache->options.key_bits,
        .value_bits = cache->options.value_bits,
        .rotated = rotated,
    };
    /* Planes begin where the one before ends, and their sizes are multiples of 64 bytes. With 2^10 heads of 2^10
     * elements of 8 bits for 64 tokens each is below 2^27. */
    cache->block_bytes = (size_t)firni_round_up(firni_quant_place(geometry), FIRN_BLOCK_ALIGN);
}

void firni_quant_describe(firn_cache *cache)
{
    const firn_cache_options *options = &cache->options;
    char window[24] = "";
    if (options->window != 0) {
        (void)snprintf(window, sizeof window, " window=%u", options->window);
    }
    firni_cache_set_describe(cache, "%s heads=%u dim=%u/%u%s block=%u", cache->signature, options->n_kv_heads,
                             options->head_dim, options->value_dim, window, FIRN_BLOCK_TOKENS);
}

static firn_status complete_bits(const char *family, firn_cache_options *options, firn_error *err)
{
    options->key_bits = options->key_bits != 0 ? options->key_bits : 8;
    options->value_bits = options->value_bits != 0 ? options->value_bits : options->key_bits;
    if ((options->key_bits != 8 && options->key_bits != 4) || options->value_bits != options->key_bits) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes 8 or 4 bits for keys and values alike, not %u and %u",
                          family, options->key_bits, options->value_bits);
    }
    return FIRN_OK;
}

static firn_status complete_group(const char *family, firn_cache_options *options, firn_error *err)
{
    options->value_dim = options->value_dim != 0 ? options->value_dim : options->head_dim;
    const uint32_t largest = options->head_dim % 64 == 0 && options->value_dim % 64 == 0 ? 64 : 32;
    options->group = options->group != 0 ? options->group : largest;
    if (options->group != 32 && options->group != 64) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes groups of 32 or 64 elements, not %u", family,
                          options->group);
    }
    if (options->head_dim % options->group != 0 || options->value_dim % options->group != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: groups of %u do not divide heads of %u and %u elements", family,
                          options->group, options->head_dim, options->value_dim);
    }
    return FIRN_OK;
}

firn_status firni_quant_init_affine(firn_cache *cache, firn_error *err)
{
    const char *family = cache->ops->family;
    firn_cache_options *options = &cache->options;
    firn_status status = complete_bits(family, options, err);
    if (status == FIRN_OK) {
        status = complete_group(family, options, err);
    }
    if (status == FIRN_OK) {
        firni_quant_set_geometry(cache, false);
        (void)snprintf(cache->signature, sizeof cache->signature, "%s:%u:%u", family, options->key_bits,
                       options->group);
        firni_quant_describe(cache);
    }
    return status;
}

static firn_status quant_init(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_quant_check_options(cache, false, err);
    return status == FIRN_OK ? firni_quant_init_affine(cache, err) : status;
}

/* Without the rounding of blocks: 64 tokens fill all planes. */
uint64_t firni_quant_bytes_per_token(const firn_cache *cache)
{
    firni_quant_geometry geometry = *geometry_of(cache);
    return firni_quant_place(&geometry) / FIRN_BLOCK_TOKENS;
}

/* Codes in rows of 64 bytes, as quantised.h draws them: no reader outside the kernels can tell tokens apart
 * in there. */
static firn_plane codes_plane(const char *name, firn_dtype dtype, uint32_t n_heads, uint32_t n_lane_blocks,
                              uint32_t n_rows, uint32_t offset_bytes)
{
    return (firn_plane){
        .name = name,
        .dtype = dtype,
        .n_dims = 4,
        .shape = { n_heads, n_lane_blocks, n_rows, FIRNI_CODE_ROW_BYTES },
        .offset_bytes = offset_bytes,
        .n_bytes = n_heads * n_lane_blocks * n_rows * FIRNI_CODE_ROW_BYTES,
    };
}

static firn_plane halves_plane(const char *name, uint32_t n_heads, uint32_t n_groups, uint32_t offset_bytes)
{
    return (firn_plane){
        .name = name,
        .dtype = FIRN_DTYPE_F16,
        .n_dims = 3,
        .shape = { n_heads, n_groups, FIRN_BLOCK_TOKENS },
        .offset_bytes = offset_bytes,
        .n_bytes = n_heads * n_groups * FIRN_BLOCK_TOKENS * 2,
    };
}

uint32_t firni_quant_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const firni_quant_geometry *g = geometry_of(cache);
    const uint32_t n_k_groups = g->head_dim / g->group;
    const uint32_t n_v_groups = g->value_dim / g->group;
    const uint32_t k_lane_blocks = n_k_groups * (FIRN_BLOCK_TOKENS / FIRNI_SLAB_LANES);
    uint32_t n = 0;
    planes[n++] = codes_plane("k", firni_keys_are_signed(g) ? FIRN_DTYPE_I8 : FIRN_DTYPE_U8, g->n_kv_heads,
                              k_lane_blocks, g->group / FIRNI_SLAB_STEPS * g->key_bits, 0);
    planes[n++] = halves_plane("k.scale", g->n_kv_heads, n_k_groups, g->k_scales);
    planes[n++] = halves_plane("k.bias", g->n_kv_heads, n_k_groups, g->k_biases);
    planes[n++] = codes_plane("v", FIRN_DTYPE_U8, g->n_kv_heads, g->value_dim / FIRNI_SLAB_LANES,
                              FIRN_BLOCK_TOKENS / FIRNI_SLAB_STEPS * g->value_bits, g->v_codes);
    planes[n++] = halves_plane("v.scale", g->n_kv_heads, n_v_groups, g->v_scales);
    if (!g->rotated) {
        planes[n++] = halves_plane("v.bias", g->n_kv_heads, n_v_groups, g->v_biases);
    }
    return n;
}

/* ---- append and attend ------------------------------------------------------------------------------------------- */

static void store_token(const firn_cache *cache, uint8_t *block, uint32_t lane, const float *k, const float *v)
{
    cache->kernels->store_quant(geometry_of(cache), block, lane, k, v);
}

void firni_quant_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    firni_append_tokens(cache, input, counts, workers, store_token);
}

static void attend_span(const firn_cache *cache, firni_attend_task *task)
{
    task->quant = geometry_of(cache);
    cache->kernels->attend_quant(task);
}

void firni_quant_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    firni_attend_heads(cache, input, counts, workers, attend_span);
}

const firni_layout firni_layout_quant = {
    .family = "kv:quant",
    .instance_bytes = sizeof(firni_quant_cache),
    .init = quant_init,
    FIRNI_ROWS_MEMBERS,
    .bytes_per_token = firni_quant_bytes_per_token,
    .planes = firni_quant_planes,
    .append = firni_quant_append,
    .attend = firni_quant_attend,
    .state = firni_quant_state,
};
