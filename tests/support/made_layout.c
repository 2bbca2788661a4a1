/*
 * Layouts for tests of whatever stores and shares state: their state is a running hash of all that was appended, so a
 * state that is used at another count than its own, or with other tokens, has other bytes.
 *
 *      test:state   a fixed-size state, no token blocks, like a recurrent layer
 *      test:late    the same, that cannot be resumed before token 80
 *      test:both    the same state and a token block per 64 tokens, a lane of 64 bytes each: all blocks, or those of
 *                   `window`
 *   test:mixed   kv:plain or, with `window`, kv:window, and the same state, on which the stored values depend: a model
 *                with such layers answers otherwise from any state but the right one
 *
 * They take n_kv_heads and head_dim (what an appended key is); the first two are attended to by nobody.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

enum { STATE_BYTES = 8192, LANE_BYTES = 64, BLOCK_BYTES = LANE_BYTES * FIRN_BLOCK_TOKENS };

static firn_status init(firn_cache *cache, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (options->n_kv_heads == 0 || options->head_dim == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s needs n_kv_heads and head_dim", cache->ops->family);
    }
    cache->options.value_dim = options->head_dim;
    cache->fixed_bytes = STATE_BYTES;
    cache->block_bytes = cache->ops->planes != NULL ? BLOCK_BYTES : 0;
    (void)snprintf(cache->describe, sizeof cache->describe, "%s heads=%u dim=%u window=%u", cache->ops->family,
                   options->n_kv_heads, options->head_dim, options->window);
    return FIRN_OK;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* One more token: word 0 chains the hash of everything so far, the others are derived from it. */
static void advance_state(firn_block *state, const float *k, uint32_t n_elements)
{
    uint64_t words[STATE_BYTES / sizeof(uint64_t)];
    memcpy(words, firn_block_data(state), sizeof words);
    for (uint32_t i = 0; i < n_elements; i++) {
        uint32_t bits;
        memcpy(&bits, &k[i], sizeof bits);
        words[0] = mix(words[0] + UINT64_C(0x9e3779b97f4a7c15) + bits);
    }
    for (uint32_t i = 1; i < sizeof words / sizeof words[0]; i++) {
        words[i] = mix(words[0] + i);
    }
    memcpy(firn_block_data(state), words, sizeof words);
}

static void append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts, firn_workers *workers)
{
    (void)workers;
    const uint32_t n_elements = cache->options.n_kv_heads * cache->options.head_dim;
    const float *k = input->k;
    firni_rows_advance(cache, counts);
    for (uint32_t r = 0; r < firni_rows_of(cache)->n_rows; r++) {
        const firni_row *row = &firni_rows_of(cache)->row[r];
        for (uint32_t i = 0; i < counts[r]; i++) {
            advance_state(row->fixed, k, n_elements);
            if (cache->block_bytes > 0) {
                const uint32_t position = row->n_tokens - counts[r] + i;
                memcpy(firn_block_data(firni_row_block(row, position)) + position % FIRN_BLOCK_TOKENS * LANE_BYTES,
                       firn_block_data(row->fixed), LANE_BYTES);
            }
            k += input->k_stride;
        }
    }
}

static firn_status mixed_init(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_plain_init_geometry(cache, err);
    cache->fixed_bytes = STATE_BYTES;
    (void)snprintf(cache->describe, sizeof cache->describe, "test:mixed %s heads=%u dim=%u/%u window=%u",
                   firn_dtype_name(cache->options.dtype), cache->options.n_kv_heads, cache->options.head_dim,
                   cache->options.value_dim, cache->options.window);
    return status;
}

/* Each value is scaled by what the state says, between 0.5 and 1. */
static void mixed_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                         firn_workers *workers)
{
    const uint32_t n_k = cache->options.n_kv_heads * cache->options.head_dim;
    const uint32_t n_v = cache->options.n_kv_heads * cache->options.value_dim;
    const firni_rows *rows = firni_rows_of(cache);
    size_t n_tokens = 0;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        n_tokens += counts[r];
    }
    float *v = malloc((n_tokens * n_v + 1) * sizeof *v);
    assert(v != NULL);
    size_t token = 0;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        for (uint32_t i = 0; i < counts[r]; i++, token++) {
            uint64_t chain;
            advance_state(rows->row[r].fixed, input->k + token * input->k_stride, n_k);
            memcpy(&chain, firn_block_data(rows->row[r].fixed), sizeof chain);
            const float scale = 0.5f + (float)(chain >> 41) / 16777216.0f;
            for (uint32_t e = 0; e < n_v; e++) {
                v[token * n_v + e] = scale * input->v[token * input->v_stride + e];
            }
        }
    }
    firn_append_input scaled = *input;
    scaled.v = v;
    scaled.v_stride = n_v;
    firni_plain_append(cache, &scaled, counts, workers);
    free(v);
}

static uint32_t planes(const firn_cache *cache, firn_plane out[FIRN_CACHE_PLANES_MAX])
{
    (void)cache;
    out[0] = (firn_plane){ .name = "lane",
                           .dtype = FIRN_DTYPE_U8,
                           .n_dims = 2,
                           .shape = { FIRN_BLOCK_TOKENS, LANE_BYTES },
                           .n_bytes = BLOCK_BYTES };
    return 1;
}

static uint64_t bytes_per_token(const firn_cache *cache)
{
    return cache->block_bytes > 0 ? LANE_BYTES : 0;
}

static firn_status dense(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    (void)cache;
    (void)tensors;
    (void)err;
    *n_tensors = 0; /* the fixed block is the state */
    return FIRN_OK;
}

#define TABLE                                                                                                         \
    .instance_bytes = sizeof(firni_block_cache), .init = init, .deinit = firni_rows_deinit,                           \
    .batch_size = firni_rows_batch_size, .row_tokens = firni_rows_tokens, .add_row = firni_rows_add,                  \
    .view_row = firni_rows_view, .adopt_row = firni_rows_adopt, .filter_rows = firni_rows_filter,                     \
    .trimmable_tokens = firni_rows_trimmable, .can_publish_row = firni_rows_can_publish,                              \
    .bytes_per_token = bytes_per_token, .projected_bytes = firni_rows_projected_bytes,                                \
    .working_bytes = firni_rows_working_bytes, .reserve = firni_rows_reserve, .append = append, .state = dense,       \
    .check = firni_rows_check

/* As of a layout whose representation changed for good at its 80th token. */
static uint32_t late_offset(const firn_cache *cache, uint32_t row)
{
    (void)cache;
    (void)row;
    return 80;
}

static const firni_layout layout_state = { .family = "test:state", TABLE };
static const firni_layout layout_late = { .family = "test:late", TABLE, .minimum_reusable_offset = late_offset };
static const firni_layout layout_both = { .family = "test:both", TABLE, .planes = planes, .settle = firni_rows_settle,
                                          .first_block_needed = firni_rows_first_block_needed };

static const firni_layout layout_mixed = {
    .family = "test:mixed",
    .instance_bytes = sizeof(firni_plain_cache),
    .init = mixed_init,
    .deinit = firni_rows_deinit,
    .batch_size = firni_rows_batch_size,
    .row_tokens = firni_rows_tokens,
    .add_row = firni_rows_add,
    .view_row = firni_rows_view,
    .adopt_row = firni_rows_adopt,
    .filter_rows = firni_rows_filter,
    .settle = firni_rows_settle,
    .trimmable_tokens = firni_rows_trimmable,
    .can_publish_row = firni_rows_can_publish,
    .bytes_per_token = firni_plain_bytes_per_token,
    .projected_bytes = firni_rows_projected_bytes,
    .working_bytes = firni_rows_working_bytes,
    .first_block_needed = firni_rows_first_block_needed,
    .planes = firni_plain_planes,
    .reserve = firni_rows_reserve,
    .append = mixed_append,
    .attend = firni_plain_attend,
    .state = firni_plain_state,
    .check = firni_rows_check,
};

const firni_layout *firni_layout_find_more(const char *family)
{
    const firni_layout *const layouts[] = { &layout_state, &layout_both, &layout_mixed, &layout_late };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (strcmp(family, layouts[i]->family) == 0) {
            return layouts[i];
        }
    }
    return NULL;
}
