/*
 * What the layout tests share: tokens that are recognised anywhere, and the comparison of a cache with fresh serial
 * caches that were fed the same tokens and nothing else.
 *
 * A token is a 64-bit identity; its key, value and query elements are hashes of it. No two tokens of a test have the
 * same identity, so an element that came from another row or another time cannot go unnoticed.
 */
#ifndef FIRN_TESTS_LAYOUT_RIG_H
#define FIRN_TESTS_LAYOUT_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "firn/cache.h"
#include "layout/layout_impl.h"
#include "support/support.h"

#define RIG_T          FIRN_BLOCK_TOKENS
#define RIG_TOKENS_MAX 640u
#define RIG_QUERIES    3u /* queries of a comparison, the row's last ones */
#define RIG_GROUP      2u /* query heads per KV head */
#define RIG_INDEX_HEADS 3u /* where there are any */
#define RIG_BIG_BUDGET (UINT64_C(1) << 32)

/* ---- cases: parameters of a family x dtype x geometry ---- */

typedef struct rig_geometry {
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t value_dim;
} rig_geometry;

static const rig_geometry rig_geometries[] = { { 2, 16, 16 }, { 1, 1, 1 }, { 3, 20, 12 }, { 1, 64, 64 }, { 2, 32, 96 },
                                               { 1, 24, 20 } };
static const firn_dtype rig_dtypes[] = { FIRN_DTYPE_F16, FIRN_DTYPE_F32, FIRN_DTYPE_BF16 };

#define RIG_N_GEOMETRIES (sizeof rig_geometries / sizeof rig_geometries[0])
#define RIG_N_DTYPES     (sizeof rig_dtypes / sizeof rig_dtypes[0])

/* What each family is given beside dtype and geometry. A family that is attended to is covered by standing here. */
static const firn_cache_options rig_mamba2 = { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 3, .value_dim = 5,
                                               .n_state_heads = 2, .conv_width = 3 };
static const firn_cache_options rig_gated_delta = { .layout = "ssm:gated-delta", .n_kv_heads = 2, .head_dim = 2,
                                                    .value_dim = 3, .n_state_heads = 2, .conv_width = 4 };

static const firn_cache_options rig_families[] = {
    { .layout = "kv:plain" },
    { .layout = "kv:window", .window = 20 },           /* less than a block */
    { .layout = "kv:window", .window = RIG_T + 37 },   /* not a multiple of one */
    { .layout = "kv:window", .window = 3 * RIG_T },    /* as long as most rows of these tests */
    { .layout = "kv:mla" },
    { .layout = "kv:mla:mtp" },
    { .layout = "kv:mla:dsa", .index_dim = 8, .index_top_k = 40 },
    { .layout = "kv:quant", .key_bits = 8 },
    { .layout = "kv:quant", .key_bits = 4, .group = 32 },
    { .layout = "kv:window-quant", .key_bits = 4, .window = RIG_T + 37 },
    { .layout = "kv:turboquant", .key_bits = 8, .value_bits = 3 },
    { .layout = "kv:turboquant", .key_bits = 5, .value_bits = 8 },
    { .layout = "hybrid", .attention = "kv:plain", .recurrent = &rig_mamba2 },
    { .layout = "hybrid", .attention = "kv:window", .window = RIG_T + 37, .recurrent = &rig_gated_delta },
    { .layout = "hybrid", .attention = "kv:quant", .key_bits = 8, .recurrent = &rig_mamba2 },
    { .layout = "hybrid", .attention = "kv:mla:dsa", .index_dim = 8, .index_top_k = 40, .recurrent = &rig_gated_delta },
};

#define RIG_N_FAMILIES (sizeof rig_families / sizeof rig_families[0])

/* Families that are not attended to, or do not take any number of tokens at once, with the test program that is theirs;
 * the last entry is empty. */
static const struct {
    const char *layout;
    const char *test;
} rig_families_apart[] = {
    { "ssm:gated-delta", "tests/layout/test_recurrent.c" },
    { "ssm:mamba2", "tests/layout/test_recurrent.c" },
    { "kv:delayed-quant", "tests/layout/test_delayed.c" },
    { "kv:delayed-window-quant", "tests/layout/test_delayed.c" },
    { "kv:delayed-turboquant", "tests/layout/test_delayed.c" },
    { NULL, NULL },
};

static inline firn_cache_options rig_options(size_t family, firn_dtype dtype, rig_geometry geometry)
{
    firn_cache_options options = rig_families[family];
    /* Quantised families have bits instead, and are tried once, beside f16. */
    options.dtype = options.key_bits == 0 || dtype != rig_dtypes[0] ? dtype : FIRN_DTYPE_NONE;
    options.n_kv_heads = geometry.n_kv_heads;
    options.head_dim = geometry.head_dim;
    options.value_dim = geometry.value_dim;
    return options;
}

static inline firn_pool *rig_pool(uint64_t budget_bytes, const firn_env *env)
{
    firn_pool *pool;
    const firn_pool_options options = { .budget_bytes = budget_bytes };
    assert_ok(firn_pool_create(&options, env, &pool, NULL));
    return pool;
}

/* A layout may refuse a geometry, such as heads that its groups do not divide. */
static inline bool rig_accepts(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache;
    const firn_status status = firn_cache_create(options, pool, NULL, &cache, NULL);
    assert_true(status == FIRN_OK || status == FIRN_ERR_INVALID);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    return status == FIRN_OK;
}

/* Runs the test on what each layout accepts; a layout that accepts nothing fails. */
static inline void rig_for_each_case(void (*test)(const firn_cache_options *options))
{
    for (size_t l = 0; l < RIG_N_FAMILIES; l++) {
        uint32_t n_run = 0;
        for (size_t d = 0; d < RIG_N_DTYPES; d++) {
            for (size_t g = 0; g < RIG_N_GEOMETRIES; g++) {
                const firn_cache_options options = rig_options(l, rig_dtypes[d], rig_geometries[g]);
                if (rig_accepts(&options)) {
                    test(&options);
                    n_run++;
                }
            }
        }
        assert_true(n_run > 0);
    }
}

/* Runs the test once for each family, on the first case that it accepts. */
static inline void rig_for_each_layout(void (*test)(const firn_cache_options *options))
{
    for (size_t l = 0; l < RIG_N_FAMILIES; l++) {
        bool has_run = false;
        for (size_t i = 0; i < RIG_N_DTYPES * RIG_N_GEOMETRIES && !has_run; i++) {
            const firn_cache_options options =
                rig_options(l, rig_dtypes[i / RIG_N_GEOMETRIES], rig_geometries[i % RIG_N_GEOMETRIES]);
            has_run = rig_accepts(&options);
            if (has_run) {
                test(&options);
            }
        }
        assert_true(has_run);
    }
}

/* ---- pools and caches ---- */

static inline firn_pool_stats rig_stats(firn_pool *pool)
{
    firn_pool_stats stats;
    firn_pool_get_stats(pool, &stats);
    assert_true(stats.used_bytes + stats.idle_bytes <= stats.budget_bytes);
    return stats;
}

static inline firn_cache *rig_cache(const firn_cache_options *options, firn_pool *pool)
{
    firn_cache *cache;
    assert_ok(firn_cache_create(options, pool, NULL, &cache, NULL));
    return cache;
}

/* ---- tokens ---- */

typedef struct rig_tokens {
    uint64_t id[RIG_TOKENS_MAX];
    uint32_t n;
} rig_tokens;

/* n tokens whose identities belong to `row` alone. */
static inline rig_tokens rig_sequence(uint32_t row, uint32_t n)
{
    assert_true(n <= RIG_TOKENS_MAX);
    rig_tokens tokens = { .n = n };
    for (uint32_t i = 0; i < n; i++) {
        tokens.id[i] = ((uint64_t)(row + 1) << 32) + i;
    }
    return tokens;
}

static inline void rig_fill(float *out, uint64_t id, uint32_t what, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = id * UINT64_C(0x9e3779b97f4a7c15) + (i * 3 + what + 1) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        out[i] = (float)((int32_t)((x >> 40) & 0xffffff) - 0x800000) / (float)0x800000;
    }
}

static inline float *rig_floats(const uint64_t *ids, uint64_t n_tokens, uint32_t what, size_t n_each)
{
    float *floats = calloc(n_tokens * n_each + 1, sizeof *floats);
    assert_non_null(floats);
    for (uint64_t i = 0; i < n_tokens; i++) {
        rig_fill(floats + i * n_each, ids[i], what, n_each);
    }
    return floats;
}

static inline uint64_t rig_sum(const uint32_t *counts, uint32_t n_rows)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        sum += counts[r];
    }
    return sum;
}

static inline bool rig_is_delta(const firn_cache_options *options)
{
    return strcmp(options->layout, "ssm:gated-delta") == 0;
}

/* What passing tokens through a state takes, all dense. */
typedef struct rig_recur {
    firn_recur_input input;
    uint32_t n_channels;
    size_t n_out;           /* floats of one token */
    float *x, *decay, *strength, *out, *conv_weight, *conv_bias, *skip;
} rig_recur;

static inline rig_recur rig_recur_of(const firn_cache_options *options, const uint64_t *ids,
                                               uint64_t n_tokens)
{
    const uint32_t n_heads = options->n_state_heads;
    rig_recur call = {
        .n_out = (size_t)n_heads * options->value_dim,
        .n_channels = 2 * options->n_kv_heads * options->head_dim + n_heads * options->value_dim,
    };
    const uint64_t weight_id = 999;
    call.x = rig_floats(ids, n_tokens, 0, call.n_channels);
    call.decay = rig_floats(ids, n_tokens, 1, n_heads);
    call.strength = rig_floats(ids, n_tokens, 2, n_heads);
    for (size_t i = 0; i < n_tokens * n_heads; i++) {
        call.decay[i] = 0.5F + 0.5F * call.decay[i];
        call.strength[i] = 0.5F + 0.5F * call.strength[i];
    }
    call.out = calloc(n_tokens * call.n_out + 1, sizeof *call.out);
    call.conv_weight = rig_floats(&weight_id, 1, 3, (size_t)options->conv_width * call.n_channels);
    call.conv_bias = rig_floats(&weight_id, 1, 4, call.n_channels);
    call.skip = rig_floats(&weight_id, 1, 5, n_heads);
    call.input = (firn_recur_input){
        .x = call.x,
        .decay = call.decay,
        .strength = call.strength,
        .out = call.out,
        .conv_weight = call.conv_weight,
        .conv_bias = call.conv_bias,
        .skip = rig_is_delta(options) ? NULL : call.skip,
        .scale = 0.25F,
        .norm_eps = 1e-6F,
    };
    return call;
}

static inline void rig_recur_deinit(rig_recur *call)
{
    free(call->x);
    free(call->decay);
    free(call->strength);
    free(call->out);
    free(call->conv_weight);
    free(call->conv_bias);
    free(call->skip);
}

/* Appends the packed tokens. */
static inline firn_status rig_feed(firn_cache *cache, const uint64_t *ids, const uint32_t *counts,
                                   firn_workers *workers, firn_error *err)
{
    const firn_cache_options *options = firn_cache_get_options(cache);
    const uint64_t n_tokens = rig_sum(counts, firn_cache_batch_size(cache));
    float *k = rig_floats(ids, n_tokens, 0, (size_t)options->n_kv_heads * options->head_dim);
    float *v = rig_floats(ids, n_tokens, 1, (size_t)options->n_kv_heads * options->value_dim);
    float *index = options->index_dim > 0 ? rig_floats(ids, n_tokens, 3, options->index_dim) : NULL;
    firn_append_input input = { .k = k, .v = v, .index_key = index };
    rig_recur recur = { .out = NULL };
    if (options->recurrent != NULL) {
        recur = rig_recur_of(options->recurrent, ids, n_tokens);
        input.recur = &recur.input;
    }
    const firn_status status = firn_cache_append(cache, &input, counts, workers, err);
    rig_recur_deinit(&recur);
    free(k);
    free(v);
    free(index);
    return status;
}

/* Appends to one row of a batch. */
static inline firn_status rig_feed_row(firn_cache *cache, uint32_t row, const uint64_t *ids, uint32_t n,
                                       firn_error *err)
{
    uint32_t *counts = calloc(firn_cache_batch_size(cache), sizeof *counts);
    assert_non_null(counts);
    counts[row] = n;
    const firn_status status = rig_feed(cache, ids, counts, NULL, err);
    free(counts);
    return status;
}

/* Attention of the packed tokens' queries, to be freed. A donor is attended to when there is one, else the cache. */
static inline float *rig_attend(const firn_cache *cache, const firn_donor *donor, const uint64_t *ids,
                                const uint32_t *counts, firn_workers *workers, size_t *n_floats)
{
    const firn_cache_options *options = firn_cache_get_options(cache);
    const uint32_t n_rows = donor != NULL ? firn_donor_batch_size(donor) : firn_cache_batch_size(cache);
    const uint64_t n_tokens = rig_sum(counts, n_rows);
    const uint32_t n_heads = options->n_kv_heads * RIG_GROUP;
    float *q = rig_floats(ids, n_tokens, 2, (size_t)n_heads * options->head_dim);
    *n_floats = (size_t)n_tokens * n_heads * options->value_dim;
    float *out = calloc(*n_floats + 1, sizeof *out);
    assert_non_null(out);
    const uint32_t n_index_heads = options->index_dim > 0 ? RIG_INDEX_HEADS : 0;
    float *index_q = rig_floats(ids, n_tokens, 4, (size_t)n_index_heads * options->index_dim);
    float *index_weights = rig_floats(ids, n_tokens, 5, n_index_heads);
    const firn_attend_input input = {
        .q = q,
        .out = out,
        .n_heads = n_heads,
        .scale = 0.25f,
        .index_q = n_index_heads > 0 ? index_q : NULL,
        .index_weights = n_index_heads > 0 ? index_weights : NULL,
        .n_index_heads = n_index_heads,
    };
    assert_ok(donor != NULL ? firn_donor_attend(donor, &input, counts, workers, NULL)
                            : firn_cache_attend(cache, &input, counts, workers, NULL));
    free(index_q);
    free(index_weights);
    free(q);
    return out;
}

/* ---- comparison ---- */

/* A serial cache that has seen these tokens, in one append, and nothing else. It has let go of nothing yet: all its
 * tokens can be queries. */
static inline firn_cache *rig_fed(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(rig_feed(cache, tokens->id, &tokens->n, NULL, NULL));
    return cache;
}

/* The same at the end of its step. */
static inline firn_cache *rig_fresh(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens)
{
    firn_cache *cache = rig_fed(options, pool, tokens);
    firn_cache_settle(cache);
    return cache;
}

/* How many tokens of a row the dense view shows. */
static inline uint32_t rig_shown(const firn_cache *cache, uint32_t n_tokens)
{
    const uint32_t window = firn_cache_get_options(cache)->window;
    return window > 0 && window < n_tokens ? window : n_tokens;
}

/* How many of a row's last tokens, up to n_max, can still be queries. */
static inline uint32_t rig_queries(const firn_cache *cache, uint32_t row, uint32_t n_max)
{
    const firn_row_view view = firn_cache_view_row(cache, row);
    uint32_t n = view.n_tokens < n_max ? view.n_tokens : n_max;
    while (n > 0 && firn_cache_first_block_needed(cache, view.n_tokens - n + 1) < view.first_block) {
        n--;
    }
    assert_true(n > 0 || view.n_tokens == 0); /* the last one always can */
    return n;
}

/* Pool bytes of an unshared row that holds what a row of n_from tokens needs, and room up to n_to. */
static inline uint64_t rig_row_bytes(const firn_cache *cache, uint32_t n_from, uint32_t n_to)
{
    const uint32_t n_older = firn_cache_first_block_needed(cache, n_to) - firn_cache_first_block_needed(cache, n_from);
    return firn_cache_projected_bytes(cache, n_to) + n_older * firn_cache_block_bytes(cache);
}

/* One row of each dense tensor against the only row of the other. */
static inline void rig_compare_states(const firn_cache *cache, uint32_t row, const firn_tensor *batch,
                                      uint32_t n_tensors, const firn_cache *fresh)
{
    firn_tensor alone[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_alone;
    assert_ok(firn_cache_state(fresh, alone, &n_alone, NULL));
    assert_int_equal(n_alone, n_tensors);
    const uint32_t n_tokens = rig_shown(cache, firn_cache_row_tokens(cache, row));
    const uint32_t width = rig_shown(cache, firn_cache_offset(cache));
    /* Those of a recurrent part have no axis of tokens. */
    const uint32_t n_of_tokens = firn_cache_get_options(cache)->recurrent != NULL ? n_tensors - 2 : n_tensors;
    for (uint32_t i = n_of_tokens; i < n_tensors; i++) {
        assert_int_equal(batch[i].shape[0], firn_cache_batch_size(cache));
        assert_memory_equal((const uint8_t *)batch[i].data + row * alone[i].n_bytes, alone[i].data, alone[i].n_bytes);
        firn_tensor_deinit(&alone[i]);
    }
    for (uint32_t i = 0; i < n_of_tokens; i++) {
        assert_int_equal(batch[i].n_dims, 4);
        assert_int_equal(batch[i].dtype, alone[i].dtype);
        assert_int_equal(batch[i].shape[0], firn_cache_batch_size(cache));
        assert_int_equal(batch[i].shape[2], width);
        assert_int_equal(alone[i].shape[2], n_tokens);
        const size_t token_bytes = (size_t)batch[i].shape[3] * firn_dtype_bytes(batch[i].dtype);
        const size_t pad = width - n_tokens;
        for (size_t h = 0; h < batch[i].shape[1] && n_tokens > 0; h++) {
            const uint8_t *head =
                (const uint8_t *)batch[i].data + (row * batch[i].shape[1] + h) * batch[i].shape[2] * token_bytes;
            uint8_t any = 0;
            for (size_t b = 0; b < pad * token_bytes; b++) {
                any |= head[b];
            }
            assert_int_equal(any, 0);
            assert_memory_equal(head + pad * token_bytes, (const uint8_t *)alone[i].data + h * n_tokens * token_bytes,
                                n_tokens * token_bytes);
        }
        firn_tensor_deinit(&alone[i]);
    }
}

/* Everything observable of the cache is what these rows alone would give, to the bit. */
static inline void rig_assert_rows(const firn_cache *cache, const rig_tokens *const *rows, uint32_t n_rows)
{
    firn_cache_check(cache);
    assert_int_equal(firn_cache_batch_size(cache), n_rows);
    uint32_t offset = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        assert_int_equal(firn_cache_row_tokens(cache, r), rows[r]->n);
        offset = rows[r]->n > offset ? rows[r]->n : offset;
    }
    assert_int_equal(firn_cache_offset(cache), offset);
    if (n_rows == 0) {
        return;
    }

    int32_t *positions = calloc(n_rows, sizeof *positions);
    uint32_t *counts = calloc(n_rows, sizeof *counts);
    uint64_t *ids = calloc((size_t)n_rows * RIG_QUERIES, sizeof *ids);
    assert_true(positions != NULL && counts != NULL && ids != NULL);
    firn_cache_rope_offsets(cache, positions);
    uint32_t n_queries = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        assert_int_equal(positions[r], rows[r]->n);
        assert_int_equal(firn_cache_left_pad(cache, r), offset - rows[r]->n);
        counts[r] = rig_queries(cache, r, RIG_QUERIES);
        memcpy(ids + n_queries, rows[r]->id + (rows[r]->n - counts[r]), counts[r] * sizeof *ids);
        n_queries += counts[r];
    }
    firn_tensor batch[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(cache, batch, &n_tensors, NULL));
    size_t n_floats;
    float *out = rig_attend(cache, NULL, ids, counts, NULL, &n_floats);

    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const float *out_row = out;
    n_queries = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        firn_cache *fresh = rig_fed(firn_cache_get_options(cache), pool, rows[r]);
        rig_compare_states(cache, r, batch, n_tensors, fresh);
        float *alone = rig_attend(fresh, NULL, ids + n_queries, &counts[r], NULL, &n_floats);
        assert_memory_equal(out_row, alone, n_floats * sizeof *alone);
        out_row += n_floats;
        n_queries += counts[r];
        free(alone);
        firn_cache_destroy(fresh);
    }
    firn_pool_destroy(pool);
    for (uint32_t i = 0; i < n_tensors; i++) {
        firn_tensor_deinit(&batch[i]);
    }
    free(out);
    free(ids);
    free(counts);
    free(positions);
}

static inline void rig_assert_row(const firn_cache *cache, const rig_tokens *tokens)
{
    rig_assert_rows(cache, &tokens, 1);
}

#endif
