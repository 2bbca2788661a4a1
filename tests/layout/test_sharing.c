/*
 * Sharing at a size that hurts when it is not sharing: 32 rows of 4096 tokens merge, part and leave without a copied KV
 * byte, and no row keeps another's memory alive.
 */
#include "layout/rig.h"

enum { N_ROWS = 32, N_TOKENS = 4096 + 17 };

/* A serial cache of n tokens that are all alike but for the row: the bytes do not matter here, their number does. */
static firn_cache *serial_of(const firn_cache_options *options, firn_pool *pool, uint32_t row, uint32_t n)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    enum { CHUNK = 512 };
    uint64_t ids[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) {
        ids[i] = row;
    }
    for (uint32_t done = 0; done < n; done += CHUNK) {
        const uint32_t count = n - done < CHUNK ? n - done : CHUNK;
        assert_ok(rig_feed(cache, ids, &count, NULL, NULL));
    }
    firn_cache_settle(cache);
    return cache;
}

static void check_long_merge(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *serial[N_ROWS];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        serial[r] = serial_of(options, pool, r, N_TOKENS);
    }
    const firn_pool_stats before = rig_stats(pool);
    assert_int_equal(before.used_bytes, N_ROWS * firn_cache_projected_bytes(serial[0], N_TOKENS));

    firn_cache *batch;
    assert_ok(firn_cache_make_empty(serial[0], &batch, NULL));
    assert_ok(firn_cache_merge_rows(batch, (const firn_cache *const *)serial, N_ROWS, NULL));
    firn_cache *extracted[N_ROWS];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        assert_ok(firn_cache_extract_row(batch, r, &extracted[r], NULL));
    }
    uint32_t keep[N_ROWS / 2];
    for (uint32_t i = 0; i < N_ROWS / 2; i++) {
        keep[i] = N_ROWS - 1 - 2 * i;
    }
    assert_ok(firn_cache_filter_rows(batch, keep, N_ROWS / 2, NULL));
    const firn_pool_stats after = rig_stats(pool);
    assert_int_equal(after.copied_bytes, 0);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_int_equal(after.n_blocks, before.n_blocks);

    /* One decode step of everybody copies the shared tails and states, and nothing else. */
    uint64_t ids[N_ROWS] = { 0 };
    uint32_t counts[N_ROWS];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        counts[r] = 1;
    }
    assert_ok(rig_feed(batch, ids, counts, NULL, NULL));
    assert_int_equal(rig_stats(pool).copied_bytes,
                     N_ROWS / 2 * (firn_cache_block_bytes(batch) + firn_cache_fixed_bytes(batch)));

    for (uint32_t r = 0; r < N_ROWS; r++) {
        firn_cache_destroy(serial[r]);
        firn_cache_destroy(extracted[r]);
    }
    assert_int_equal(rig_stats(pool).used_bytes, N_ROWS / 2 * firn_cache_projected_bytes(batch, N_TOKENS + 1));
    firn_cache_destroy(batch);
    firn_pool_destroy(pool);
}

static void merging_32_long_rows_copies_nothing(void **state)
{
    (void)state;
    rig_for_each_layout(check_long_merge);
}

static void check_extracted(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *batch = rig_cache(options, pool);
    rig_tokens kept = { .n = 0 };
    for (uint32_t r = 0; r < 64; r++) {
        const rig_tokens tokens = rig_sequence(r, 100 + r);
        assert_ok(firn_cache_add_row(batch, NULL));
        assert_ok(rig_feed_row(batch, r, tokens.id, tokens.n, NULL));
        if (r == 37) {
            kept = tokens;
        }
    }
    firn_cache *row;
    assert_ok(firn_cache_extract_row(batch, 37, &row, NULL));
    firn_cache_destroy(batch);
    assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(row, kept.n));
    assert_int_equal(rig_stats(pool).copied_bytes, 0);
    rig_assert_row(row, &kept);
    firn_cache_destroy(row);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void an_extracted_row_of_64_pins_its_own_bytes_only(void **state)
{
    (void)state;
    rig_for_each_layout(check_extracted);
}

/* A row that a batch no longer has goes at once, whatever order rows leave in. */
static void check_filtered(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *batch = rig_cache(options, pool);
    rig_tokens tokens[12];
    for (uint32_t r = 0; r < 12; r++) {
        tokens[r] = rig_sequence(r, 40 * r);
        assert_ok(firn_cache_add_row(batch, NULL));
        assert_ok(rig_feed_row(batch, r, tokens[r].id, tokens[r].n, NULL));
    }
    firn_cache_settle(batch);
    test_rng rng = test_rng_create("filter", 5);
    uint32_t left[12];
    for (uint32_t r = 0; r < 12; r++) {
        left[r] = r;
    }
    for (uint32_t n = 12; n-- > 0;) {
        const uint32_t gone = test_rng_below(&rng, n + 1);
        uint32_t keep[12];
        uint32_t n_keep = 0;
        uint64_t bytes = 0;
        for (uint32_t i = 0; i <= n; i++) {
            if (i != gone) {
                bytes += firn_cache_projected_bytes(batch, tokens[left[i]].n);
                left[n_keep] = left[i];
                keep[n_keep++] = i;
            }
        }
        assert_ok(firn_cache_filter_rows(batch, keep, n_keep, NULL));
        assert_int_equal(rig_stats(pool).used_bytes, bytes);
    }
    firn_cache_destroy(batch);
    firn_pool_destroy(pool);
}

static void filtered_rows_give_their_memory_back(void **state)
{
    (void)state;
    rig_for_each_layout(check_filtered);
}

/* One decode step of rows that began with the same 300 tokens, but for one among them; some went on further. */
static void check_shared_decode(const firn_cache_options *options)
{
    enum { N = 9, N_COMMON = 300, STRANGER = 3 };
    static const uint32_t n_own[N] = { 0, 1, 20, 5, 21, 84, 64, 85, 0 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens common = rig_sequence(100, N_COMMON);
    firn_cache *trunk = rig_fresh(options, pool, &common);
    rig_tokens tokens[N];
    firn_cache *serial[N];
    for (uint32_t r = 0; r < N; r++) {
        tokens[r] = rig_sequence(r, N_COMMON + n_own[r] + 1);
        if (r == STRANGER) {
            serial[r] = rig_cache(options, pool);
            assert_ok(firn_cache_add_row(serial[r], NULL));
            assert_ok(rig_feed_row(serial[r], 0, tokens[r].id, N_COMMON, NULL));
        } else {
            memcpy(tokens[r].id, common.id, N_COMMON * sizeof common.id[0]);
            assert_ok(firn_cache_extract_row(trunk, 0, &serial[r], NULL));
        }
        assert_ok(rig_feed_row(serial[r], 0, tokens[r].id + N_COMMON, n_own[r], NULL));
        firn_cache_settle(serial[r]);
    }
    firn_cache *batch;
    assert_ok(firn_cache_make_empty(trunk, &batch, NULL));
    assert_ok(firn_cache_merge_rows(batch, (const firn_cache *const *)serial, N, NULL));
    uint64_t ids[N];
    uint32_t counts[N];
    for (uint32_t r = 0; r < N; r++) {
        ids[r] = tokens[r].id[tokens[r].n - 1];
        counts[r] = 1;
    }
    assert_ok(rig_feed(batch, ids, counts, NULL, NULL));
    for (uint32_t n_threads = 0; n_threads < 4; n_threads++) {
        firn_workers *workers = NULL;
        if (n_threads > 0) {
            assert_ok(firn_workers_create(n_threads, NULL, &workers, NULL));
        }
        size_t n_floats;
        float *together = rig_attend(batch, NULL, ids, counts, workers, &n_floats);
        for (uint32_t r = 0; r < N; r++) {
            size_t n_alone;
            firn_cache *fresh = rig_fed(options, pool, &tokens[r]);
            float *alone = rig_attend(fresh, NULL, &ids[r], &counts[r], NULL, &n_alone);
            assert_int_equal(n_alone * N, n_floats);
            assert_memory_equal(together + r * n_alone, alone, n_alone * sizeof *alone);
            free(alone);
            firn_cache_destroy(fresh);
        }
        free(together);
        firn_workers_destroy(workers);
    }
    for (uint32_t r = 0; r < N; r++) {
        firn_cache_destroy(serial[r]);
    }
    firn_cache_destroy(batch);
    firn_cache_destroy(trunk);
    firn_pool_destroy(pool);
}

static void rows_that_share_blocks_decode_with_the_bits_they_have_alone(void **state)
{
    (void)state;
    rig_for_each_layout(check_shared_decode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_32_long_rows_copies_nothing),
        cmocka_unit_test(an_extracted_row_of_64_pins_its_own_bytes_only),
        cmocka_unit_test(filtered_rows_give_their_memory_back),
        cmocka_unit_test(rows_that_share_blocks_decode_with_the_bits_they_have_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
