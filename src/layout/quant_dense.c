/*
 * The dense view of quantised layouts: the storage form, with each token's codes brought together.
 *
 *      k [B, heads, S, head_dim * bits / 8] u8 (i8 where they are signed), k.scale, k.bias [B, heads, S, groups] f16;
 *      then the same of v
 *
 * The codes of a token are one string of bits, the first element in the lowest bits of the first byte. A block holds
 * them in another order (quantised.h), so they are always an owned copy. Rotated values stay rotated, and have no
 * biases.
 */
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "kernel/quantised.h"
#include "layout/layout_impl.h"

/* One of the two kinds of codes of a block. */
typedef struct dense_codes {
    const firni_quant_geometry *geometry;
    bool is_key;
    uint32_t dim;
    uint32_t bits;
} dense_codes;

static uint32_t code_at(const dense_codes *codes, const uint8_t *block, uint32_t head, uint32_t dim, uint32_t token)
{
    const firni_quant_geometry *g = codes->geometry;
    const firni_quant_view planes = firni_quant_view_of(g, block, head);
    if (codes->is_key) {
        return firni_code_get(planes.k_codes + firni_key_slab(g, dim, token), g->key_bits, dim % FIRNI_SLAB_STEPS,
                              token % FIRNI_SLAB_LANES);
    }
    return firni_code_get(planes.v_codes + firni_value_slab(g, dim, token), g->value_bits, token % FIRNI_SLAB_STEPS,
                          dim % FIRNI_SLAB_LANES);
}

/* `dst` is zeroed. */
static void copy_token(uint8_t *dst, const dense_codes *codes, const uint8_t *block, uint32_t head, uint32_t token)
{
    for (uint32_t dim = 0; dim < codes->dim; dim++) {
        const uint32_t code = code_at(codes, block, head, dim, token);
        const uint32_t bit = dim * codes->bits;
        const uint32_t shifted = code << bit % 8; /* at most 8 bits and 7 */
        dst[bit / 8] |= (uint8_t)shifted;
        if (shifted > UINT8_MAX) {
            dst[bit / 8 + 1] |= (uint8_t)(shifted >> 8);
        }
    }
}

/* Right-justified, as firni_dense_plane does it; padding stays zero. */
static firn_status dense_codes_plane(const firn_cache *cache, const dense_codes *codes, firn_dtype dtype,
                                     firn_tensor *tensor, firn_error *err)
{
    const uint32_t n_rows = firn_cache_batch_size(cache);
    const uint32_t n_heads = codes->geometry->n_kv_heads;
    const uint32_t width = firni_dense_tokens(cache, firn_cache_offset(cache));
    const size_t token_bytes = (size_t)codes->dim * codes->bits / 8;
    const uint64_t extents[4] = { n_rows, n_heads, width, token_bytes };
    const firn_status status = firni_tensor_alloc(tensor, dtype, 4, extents, cache->env, err);
    if (status != FIRN_OK || tensor->n_bytes == 0) {
        return status;
    }
    memset(tensor->data, 0, tensor->n_bytes);
    for (uint32_t r = 0; r < n_rows; r++) {
        const firn_row_view view = firn_cache_view_row(cache, r);
        const uint32_t n_shown = firni_dense_tokens(cache, view.n_tokens);
        for (uint32_t head = 0; head < n_heads; head++) {
            uint8_t *dst = (uint8_t *)tensor->data + ((size_t)r * n_heads + head) * width * token_bytes +
                           (width - n_shown) * token_bytes;
            for (uint32_t t = view.n_tokens - n_shown; t < view.n_tokens; t++, dst += token_bytes) {
                const firn_block *block = view.blocks[t / FIRN_BLOCK_TOKENS - view.first_block];
                copy_token(dst, codes, firn_block_data(block), head, t % FIRN_BLOCK_TOKENS);
            }
        }
    }
    return FIRN_OK;
}

firn_status firni_quant_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    const firni_quant_geometry *g = &((const firni_quant_cache *)cache)->geometry;
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    const uint32_t n_planes = firni_quant_planes(cache, planes);
    firn_status status = FIRN_OK;
    uint32_t n = 0;
    for (; n < n_planes; n++) {
        const bool is_key = n < 3;
        const dense_codes codes = { .geometry = g,
                                    .is_key = is_key,
                                    .dim = is_key ? g->head_dim : g->value_dim,
                                    .bits = is_key ? g->key_bits : g->value_bits };
        /* Codes are the planes that are not of halves. */
        status = planes[n].dtype != FIRN_DTYPE_F16
                     ? dense_codes_plane(cache, &codes, planes[n].dtype, &tensors[n], err)
                     : firni_dense_plane(cache, &planes[n], 2, &tensors[n], err);
        if (status != FIRN_OK) {
            break;
        }
    }
    if (status != FIRN_OK) {
        while (n > 0) {
            firn_tensor_deinit(&tensors[--n]);
        }
        return status;
    }
    *n_tensors = n_planes;
    return FIRN_OK;
}
