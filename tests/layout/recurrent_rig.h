/*
 * rig.h for layouts that pass tokens through a state instead of attending to them: the same tokens and the same
 * comparison with fresh serial caches. A token's inputs are hashes of its identity, so a state that has seen another
 * row's token, one too many or one in another order has other bytes.
 */
#ifndef FIRN_TESTS_LAYOUT_RECURRENT_RIG_H
#define FIRN_TESTS_LAYOUT_RECURRENT_RIG_H

#include "layout/rig.h"

/* Heads that share keys in both orders, columns that fill no tile, a convolution of one and of several tokens. */
static const firn_cache_options recurrent_cases[] = {
    { .layout = "ssm:gated-delta", .n_kv_heads = 2, .head_dim = 8, .value_dim = 12, .n_state_heads = 4,
      .conv_width = 4, .keys_cycle = true },
    { .layout = "ssm:gated-delta", .n_kv_heads = 2, .head_dim = 5, .value_dim = 32, .n_state_heads = 6,
      .conv_width = 3 },
    { .layout = "ssm:gated-delta", .n_kv_heads = 1, .head_dim = 16, .n_state_heads = 1, .conv_width = 1 },
    { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 16, .value_dim = 8, .n_state_heads = 3, .conv_width = 4 },
    { .layout = "ssm:mamba2", .n_kv_heads = 2, .head_dim = 7, .value_dim = 20, .n_state_heads = 4, .conv_width = 2 },
};

static inline void recurrent_for_each_case(void (*test)(const firn_cache_options *options))
{
    for (size_t i = 0; i < sizeof recurrent_cases / sizeof recurrent_cases[0]; i++) {
        test(&recurrent_cases[i]);
    }
}

/* Passes the packed tokens through; their outputs to *out, malloc'ed, when it is not NULL. */
static inline firn_status recurrent_feed(firn_cache *cache, const uint64_t *ids, const uint32_t *counts,
                                         firn_workers *workers, float **out, firn_error *err)
{
    const uint64_t n_tokens = rig_sum(counts, firn_cache_batch_size(cache));
    rig_recur call = rig_recur_of(firn_cache_get_options(cache), ids, n_tokens);
    const firn_status status = firn_cache_recur(cache, &call.input, counts, workers, err);
    if (out != NULL) {
        *out = call.out;
        call.out = NULL;
    }
    rig_recur_deinit(&call);
    return status;
}

static inline firn_status recurrent_feed_row(firn_cache *cache, uint32_t row, const uint64_t *ids, uint32_t n,
                                             firn_error *err)
{
    uint32_t *counts = calloc(firn_cache_batch_size(cache), sizeof *counts);
    counts[row] = n;
    const firn_status status = recurrent_feed(cache, ids, counts, NULL, NULL, err);
    free(counts);
    return status;
}

/* A serial cache that has seen these tokens, in one call, and nothing else. */
static inline firn_cache *recurrent_fresh(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(recurrent_feed(cache, tokens->id, &tokens->n, NULL, NULL, NULL));
    return cache;
}

/* The whole block, padding and all. */
static inline void recurrent_assert_same_state(const firn_cache *a, uint32_t row_a, const firn_cache *b, uint32_t row_b)
{
    const firn_row_view view_a = firn_cache_view_row(a, row_a);
    const firn_row_view view_b = firn_cache_view_row(b, row_b);
    assert_int_equal(view_a.n_tokens, view_b.n_tokens);
    assert_int_equal(view_a.fixed != NULL, view_a.n_tokens > 0);
    assert_int_equal(view_b.fixed != NULL, view_b.n_tokens > 0);
    if (view_a.fixed != NULL) {
        assert_memory_equal(firn_block_data(view_a.fixed), firn_block_data(view_b.fixed), firn_cache_fixed_bytes(a));
    }
}

/* Everything observable of the cache is what these rows alone would give, to the bit. */
static inline void recurrent_assert_rows(const firn_cache *cache, const rig_tokens *const *rows, uint32_t n_rows)
{
    firn_cache_check(cache);
    assert_int_equal(firn_cache_batch_size(cache), n_rows);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (uint32_t r = 0; r < n_rows; r++) {
        firn_cache *fresh = recurrent_fresh(firn_cache_get_options(cache), pool, rows[r]);
        assert_int_equal(firn_cache_row_tokens(cache, r), rows[r]->n);
        recurrent_assert_same_state(cache, r, fresh, 0);
        firn_cache_destroy(fresh);
    }
    firn_pool_destroy(pool);
}

static inline void recurrent_assert_row(const firn_cache *cache, const rig_tokens *tokens)
{
    recurrent_assert_rows(cache, &tokens, 1);
}

#endif
