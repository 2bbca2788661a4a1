/*
 * What others see of a recurrent state: its planes, as they lie in the block, and the dense view, with the tiles put
 * back into matrices.
 */
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "layout/recurrent_impl.h"

uint32_t firni_recurrent_fixed_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const firn_cache_options *options = &cache->options;
    const firni_recurrent_geometry *geometry = firni_recurrent_geometry_of(cache);
    const uint32_t n_past = options->conv_width - 1;
    uint32_t n_planes = 0;
    if (n_past > 0) {
        planes[n_planes++] = (firn_plane){
            .name = "conv",
            .dtype = FIRN_DTYPE_F32,
            .n_dims = 2,
            .shape = { n_past, geometry->n_channels },
            .offset_bytes = 0,
            .n_bytes = n_past * geometry->n_channels * (uint32_t)sizeof(float),
        };
    }
    const uint32_t tile_floats = options->head_dim * FIRNI_STATE_COLUMNS;
    planes[n_planes++] = (firn_plane){
        .name = "state",
        .dtype = FIRN_DTYPE_F32,
        .n_dims = 4,
        .shape = { options->n_state_heads, geometry->head_floats / tile_floats, options->head_dim,
                   FIRNI_STATE_COLUMNS },
        .offset_bytes = (uint32_t)geometry->state_offset,
        .n_bytes = options->n_state_heads * geometry->head_floats * (uint32_t)sizeof(float),
    };
    return n_planes;
}

/* One matrix, [head_dim][value_dim], from its tiles. */
static void untile(const firn_cache *cache, const float *tiles, float *out)
{
    const uint32_t n_keys = cache->options.head_dim;
    const uint32_t n_values = cache->options.value_dim;
    for (uint32_t i = 0; i < n_keys; i++) {
        for (uint32_t j = 0; j < n_values; j++) {
            out[(size_t)i * n_values + j] =
                tiles[((size_t)(j / FIRNI_STATE_COLUMNS) * n_keys + i) * FIRNI_STATE_COLUMNS + j % FIRNI_STATE_COLUMNS];
        }
    }
}

/* Both are temporaries: rows lie apart, and matrices in tiles. A row without tokens has zeros. */
firn_status firni_recurrent_dense(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    const uint32_t n_rows = firni_rows_batch_size(cache);
    const size_t conv_floats = (size_t)(options->conv_width - 1) * firni_recurrent_geometry_of(cache)->n_channels;
    const size_t matrix_floats = (size_t)options->head_dim * options->value_dim;
    const uint64_t conv_shape[] = { n_rows, options->conv_width - 1, firni_recurrent_geometry_of(cache)->n_channels };
    const uint64_t state_shape[] = { n_rows, options->n_state_heads, options->head_dim, options->value_dim };
    firn_status status = firni_tensor_alloc(&tensors[0], FIRN_DTYPE_F32, 3, conv_shape, cache->env, err);
    if (status != FIRN_OK) {
        return status;
    }
    status = firni_tensor_alloc(&tensors[1], FIRN_DTYPE_F32, 4, state_shape, cache->env, err);
    if (status != FIRN_OK) {
        firn_tensor_deinit(&tensors[0]);
        return status;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const firn_row_view view = firni_rows_view(cache, r);
        float *conv = conv_floats > 0 ? (float *)tensors[0].data + r * conv_floats : NULL;
        float *state = (float *)tensors[1].data + r * options->n_state_heads * matrix_floats;
        if (view.fixed == NULL) {
            memset(state, 0, options->n_state_heads * matrix_floats * sizeof *state);
            if (conv != NULL) {
                memset(conv, 0, conv_floats * sizeof *conv);
            }
            continue;
        }
        if (conv != NULL) {
            memcpy(conv, firni_recurrent_conv(view.fixed), conv_floats * sizeof *conv);
        }
        for (uint32_t h = 0; h < options->n_state_heads; h++) {
            untile(cache, firni_recurrent_state(cache, view.fixed, h), state + h * matrix_floats);
        }
    }
    *n_tensors = 2;
    return FIRN_OK;
}
