/*
 * kv:window over time: blocks stay as long as a step or a round may still need them and go when it ends, donors keep
 * theirs, and memory never exceeds what was announced.
 */
#include "layout/rig.h"

static const uint32_t windows[] = { 1, 20, RIG_T, RIG_T + 37, 3 * RIG_T };
#define N_WINDOWS (sizeof windows / sizeof windows[0])

static firn_cache_options options_of(uint32_t window)
{
    return (firn_cache_options){
        .layout = "kv:window", .dtype = FIRN_DTYPE_F16, .n_kv_heads = 2, .head_dim = 8, .value_dim = 8,
        .window = window,
    };
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* A serial cache of the first n of `tokens`, fed in steps that leave only what the window needs. */
static firn_cache *settled(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens, uint32_t n)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    for (uint32_t done = 0; done < n;) {
        const uint32_t count = n - done < 50 ? n - done : 50;
        assert_ok(rig_feed(cache, tokens->id + done, &count, NULL, NULL));
        done += count;
    }
    firn_cache_settle(cache);
    return cache;
}

/* One round of n_drafted tokens in two appends, of which `keep` stay. */
static void check_round(const firn_cache_options *options, firn_pool *pool, uint32_t n_before, uint32_t n_drafted,
                        uint32_t keep)
{
    rig_tokens model = rig_sequence(0, n_before + n_drafted);
    firn_cache *cache = settled(options, pool, &model, n_before);
    const uint32_t first_block = firn_cache_view_row(cache, 0).first_block;
    const uint32_t parts[2] = { n_drafted / 2, n_drafted - n_drafted / 2 };
    assert_int_equal(first_block, firn_cache_first_block_needed(cache, n_before));
    assert_ok(firn_cache_spec_begin(cache, NULL));
    for (uint32_t i = 0, at = n_before; i < 2; at += parts[i++]) {
        assert_ok(rig_feed(cache, model.id + at, &parts[i], NULL, NULL));
        firn_cache_settle(cache); /* as every forward does */
        assert_int_equal(firn_cache_view_row(cache, 0).first_block, first_block);
        assert_int_equal(firn_cache_trimmable_tokens(cache, 0), at + parts[i] - n_before);
    }
    rig_assert_row(cache, &model);
    if (keep == n_drafted) {
        assert_ok(firn_cache_spec_commit(cache, NULL));
    } else {
        assert_ok(firn_cache_spec_rollback(cache, &keep, NULL));
    }
    model.n = n_before + keep;
    assert_int_equal(firn_cache_view_row(cache, 0).first_block, firn_cache_first_block_needed(cache, model.n));
    assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, model.n));
    rig_assert_row(cache, &model);
    /* Other tokens in the place of the rejected ones. */
    const rig_tokens more = rig_sequence(9, 7);
    assert_ok(rig_feed(cache, more.id, &more.n, NULL, NULL));
    memcpy(model.id + model.n, more.id, more.n * sizeof more.id[0]);
    model.n += more.n;
    rig_assert_row(cache, &model);
    firn_cache_destroy(cache);
}

static void a_round_keeps_every_block_until_it_ends(void **state)
{
    (void)state;
    enum { DRAFTS = 4 };
    for (size_t w = 0; w < N_WINDOWS; w++) {
        const firn_cache_options options = options_of(windows[w]);
        const uint32_t before[] = { 0, windows[w] - 1, windows[w], windows[w] + RIG_T - 2, 2 * windows[w] + 3 };
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        for (size_t b = 0; b < sizeof before / sizeof before[0]; b++) {
            for (uint32_t keep = 0; keep <= DRAFTS; keep++) {
                check_round(&options, pool, before[b], DRAFTS, keep);
            }
            /* A draft longer than a block moves the window over block bounds, and back. */
            check_round(&options, pool, before[b], 2 * RIG_T + 5, 0);
            check_round(&options, pool, before[b], 2 * RIG_T + 5, RIG_T);
        }
        firn_pool_destroy(pool);
    }
}

/* ---- donors ------------------------------------------------------------------------------------------------------ */

typedef struct capture {
    firn_donor *donor;
    uint64_t ids[8];
    uint32_t counts[2];
    float *expected;
    size_t n_floats;
} capture;

/* Two rows, queried for their last tokens as later layers of the same step do. */
static capture take(const firn_cache *cache, const rig_tokens *const rows[2], const uint32_t counts[2])
{
    capture c = { .counts = { counts[0], counts[1] } };
    memcpy(c.ids, rows[0]->id + rows[0]->n - counts[0], counts[0] * sizeof c.ids[0]);
    memcpy(c.ids + counts[0], rows[1]->id + rows[1]->n - counts[1], counts[1] * sizeof c.ids[0]);
    c.expected = rig_attend(cache, NULL, c.ids, c.counts, NULL, &c.n_floats);
    assert_ok(firn_cache_capture_donor(cache, &c.donor, NULL));
    return c;
}

static void assert_unchanged(const firn_cache *shape, const capture *c)
{
    size_t n_floats;
    float *got = rig_attend(shape, c->donor, c->ids, c->counts, NULL, &n_floats);
    assert_int_equal(n_floats, c->n_floats);
    assert_memory_equal(got, c->expected, n_floats * sizeof *got);
    free(got);
}

static void release(capture *c)
{
    firn_donor_destroy(c->donor);
    free(c->expected);
}

static void a_donor_keeps_the_window_that_its_cache_leaves_behind(void **state)
{
    (void)state;
    for (size_t w = 0; w < N_WINDOWS; w++) {
        const firn_cache_options options = options_of(windows[w]);
        const uint32_t edges[] = { windows[w], windows[w] + 1, 2 * windows[w] + 3 };
        for (size_t e = 0; e < sizeof edges / sizeof edges[0]; e++) {
            firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
            const rig_tokens a = rig_sequence(0, edges[e] + 3);
            const rig_tokens b = rig_sequence(1, windows[w] + RIG_T);
            const rig_tokens more = rig_sequence(5, 3 * RIG_T);
            const rig_tokens *const rows[2] = { &a, &b };
            firn_cache *shape = rig_cache(&options, pool);
            firn_cache *cache = settled(&options, pool, &a, edges[e]);
            assert_ok(firn_cache_add_row(cache, NULL));
            assert_ok(rig_feed(cache, b.id, (uint32_t[]){ 0, b.n - 2 }, NULL, NULL));
            firn_cache_settle(cache);
            /* In the middle of a step: the new tokens' queries see what the step has not let go of. */
            const uint64_t step[5] = { a.id[a.n - 3], a.id[a.n - 2], a.id[a.n - 1], b.id[b.n - 2], b.id[b.n - 1] };
            assert_ok(rig_feed(cache, step, (uint32_t[]){ 3, 2 }, NULL, NULL));
            capture in_step = take(cache, rows, (uint32_t[]){ 3, 2 });
            firn_cache_settle(cache);
            capture after_step = take(cache, rows, (uint32_t[]){ 1, 1 });
            assert_int_equal(rig_stats(pool).copied_bytes, 0);

            assert_ok(rig_feed(cache, more.id, (uint32_t[]){ RIG_T, RIG_T + 9 }, NULL, NULL));
            assert_unchanged(shape, &in_step);
            firn_cache_settle(cache);
            for (uint32_t r = 0; r < 2; r++) {
                const uint32_t n = firn_cache_trimmable_tokens(cache, r);
                assert_ok(firn_cache_trim_row(cache, r, n < 40 ? n : 40, NULL));
            }
            assert_ok(rig_feed(cache, more.id, (uint32_t[]){ 11, 2 }, NULL, NULL));
            assert_unchanged(shape, &in_step);
            assert_unchanged(shape, &after_step);
            firn_cache *merged;
            assert_ok(firn_cache_make_empty(cache, &merged, NULL));
            assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ cache }, 1, NULL));
            firn_cache_destroy(cache);
            assert_ok(rig_feed(merged, more.id, (uint32_t[]){ RIG_T, RIG_T }, NULL, NULL));
            firn_cache_destroy(merged);
            assert_unchanged(shape, &in_step);
            assert_unchanged(shape, &after_step);
            release(&in_step);
            assert_unchanged(shape, &after_step);
            release(&after_step);
            assert_int_equal(rig_stats(pool).used_bytes, 0);
            firn_cache_destroy(shape);
            firn_pool_destroy(pool);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void a_row_never_takes_more_than_working_bytes(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("working bytes", 41);
    for (size_t w = 0; w < N_WINDOWS; w++) {
        const firn_cache_options options = options_of(windows[w]);
        for (uint32_t round = 0; round < 40; round++) {
            firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
            firn_cache *cache = rig_cache(&options, pool);
            const uint32_t n_step = 1 + test_rng_below(&rng, 2 * RIG_T);
            const rig_tokens tokens = rig_sequence(round, 1 + test_rng_below(&rng, RIG_TOKENS_MAX - 1));
            assert_ok(firn_cache_add_row(cache, NULL));
            for (uint32_t done = 0; done < tokens.n;) {
                const uint32_t wish = 1 + test_rng_below(&rng, n_step);
                const uint32_t n = tokens.n - done < wish ? tokens.n - done : wish;
                /* A step reserves in all layers before it appends in any; the tail may have been shared, and its other
                 * holder may be gone by the next step. */
                firn_donor *sharer = NULL;
                if (test_rng_below(&rng, 4) == 0) {
                    assert_ok(firn_cache_capture_donor(cache, &sharer, NULL));
                }
                assert_ok(firn_cache_reserve(cache, &n, NULL));
                firn_donor_destroy(sharer);
                assert_ok(rig_feed(cache, tokens.id + done, &n, NULL, NULL));
                firn_cache_settle(cache);
                done += n;
                assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, done));
            }
            assert_true(rig_stats(pool).used_bytes_peak <= firn_cache_working_bytes(cache, tokens.n, n_step));
            firn_cache_destroy(cache);
            firn_pool_destroy(pool);
        }
    }
}

/* A long row costs what its window costs. */
static void a_long_row_holds_a_bounded_number_of_blocks(void **state)
{
    (void)state;
    const firn_cache_options options = options_of(RIG_T + 37);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(&options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    const rig_tokens tokens = rig_sequence(0, 100);
    for (uint32_t i = 0; i < 100; i++) {
        assert_ok(rig_feed(cache, tokens.id, &tokens.n, NULL, NULL));
    }
    firn_cache_settle(cache);
    assert_int_equal(firn_cache_row_tokens(cache, 0), 10000);
    assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, 10000));
    assert_true(rig_stats(pool).used_bytes_peak <= 6 * firn_cache_block_bytes(cache));
    assert_int_equal(firn_cache_working_bytes(cache, 10000, 100), firn_cache_working_bytes(cache, 1u << 30, 100));
    firn_cache_check(cache);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_keeps_every_block_until_it_ends),
        cmocka_unit_test(a_donor_keeps_the_window_that_its_cache_leaves_behind),
        cmocka_unit_test(a_row_never_takes_more_than_working_bytes),
        cmocka_unit_test(a_long_row_holds_a_bounded_number_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
