/*
 * Conformance, tokens going: trim, precision brackets, donors and speculative rounds, over every registered layout,
 * dtype and geometry. A layout is covered by being registered.
 */
#include "layout/rig.h"

/* ---- trim and precision ------------------------------------------------------------------------------------------ */

static void check_trim(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    static const uint32_t drops[] = { 0, 1, 5, RIG_T - 1, RIG_T, RIG_T + 1, RIG_T + 6 };
    for (size_t i = 0; i < sizeof drops / sizeof drops[0]; i++) {
        for (uint32_t is_shared = 0; is_shared < 2; is_shared++) {
            rig_tokens a = rig_sequence(0, RIG_T + 6);
            rig_tokens b = rig_sequence(1, 2 * RIG_T);
            const rig_tokens a_before = a;
            firn_cache *cache = rig_fresh(options, pool, &a);
            assert_ok(firn_cache_add_row(cache, NULL));
            assert_ok(rig_feed_row(cache, 1, b.id, b.n, NULL));
            firn_cache *sharer = NULL;
            if (is_shared) {
                assert_ok(firn_cache_extract_row(cache, 0, &sharer, NULL));
            }
            firn_error err;
            assert_status(firn_cache_trim(cache, RIG_T + 7, false, &err), FIRN_ERR_TRIM);
            assert_status(firn_cache_trim(cache, RIG_T + 7, true, &err), FIRN_ERR_TRIM);
            assert_status(firn_cache_trim_row(cache, 1, 2 * RIG_T + 1, &err), FIRN_ERR_TRIM);
            assert_non_null(strstr(err.message, "row 1"));
            rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
            if (firn_cache_trimmable_tokens(cache, 0) >= drops[i] &&
                firn_cache_trimmable_tokens(cache, 1) >= drops[i]) {
                assert_ok(firn_cache_trim(cache, drops[i], i % 2 == 0, NULL));
                a.n -= drops[i];
                b.n -= drops[i];
                rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
                /* Other tokens in the place of the dropped ones. */
                const rig_tokens more = rig_sequence(7, RIG_T + 9);
                memcpy(a.id + a.n, more.id, more.n * sizeof more.id[0]);
                a.n += more.n;
                assert_ok(rig_feed_row(cache, 0, more.id, more.n, NULL));
                rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
            }
            if (sharer != NULL) {
                rig_assert_row(sharer, &a_before);
                firn_cache_destroy(sharer);
            }
            firn_cache_destroy(cache);
        }
    }
    firn_pool_destroy(pool);
}

static void trimmed_rows_are_as_if_never_longer(void **state)
{
    (void)state;
    rig_for_each_case(check_trim);
}

static void check_precision(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, 10);
    firn_cache *cache = rig_fresh(options, pool, &tokens);
    const uint32_t row = 0;
    const uint32_t no_row = 1;
    assert_status(firn_cache_prefill_commit(cache, &row, 1, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_prefill_end(cache, NULL), FIRN_ERR_STATE);
    assert_ok(firn_cache_prefill_begin(cache, NULL));
    assert_status(firn_cache_prefill_begin(cache, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_prefill_commit(cache, &no_row, 1, NULL), FIRN_ERR_INVALID);
    assert_ok(firn_cache_prefill_commit(cache, &row, 1, NULL));
    assert_ok(firn_cache_prefill_commit(cache, NULL, 0, NULL));
    assert_ok(firn_cache_prefill_end(cache, NULL));
    assert_status(firn_cache_prefill_end(cache, NULL), FIRN_ERR_STATE);
    assert_true(firn_cache_minimum_reusable_offset(cache, 0) <= 10);
    assert_true(firn_cache_max_append_tokens(cache) > 0);
    assert_true(firn_cache_can_publish_row(cache, 0, 10));
    assert_false(firn_cache_can_publish_row(cache, 0, 11));
    if (firn_cache_is_trimmable(cache)) {
        assert_true(firn_cache_can_publish_row(cache, 0, 4));
        assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 10);
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void prefill_brackets_come_in_order(void **state)
{
    (void)state;
    rig_for_each_case(check_precision);
}

/* ---- donors ------------------------------------------------------------------------------------------------------ */

static void assert_donor(const firn_donor *donor, const firn_cache *geometry, const rig_tokens *const rows[2],
                         const float *expected, size_t n_expected)
{
    uint64_t ids[4];
    const uint32_t counts[2] = { 2, 2 };
    assert_int_equal(firn_donor_batch_size(donor), 2);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(firn_donor_row_tokens(donor, r), rows[r]->n);
        memcpy(&ids[2 * r], &rows[r]->id[rows[r]->n - 2], 2 * sizeof ids[0]);
    }
    size_t n_floats;
    float *got = rig_attend(geometry, donor, ids, counts, NULL, &n_floats);
    assert_int_equal(n_floats, n_expected);
    assert_memory_equal(got, expected, n_floats * sizeof *got);
    free(got);
}

static void check_donor(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens a = rig_sequence(0, RIG_T + 30);
    rig_tokens b = rig_sequence(1, 7);
    const rig_tokens *rows[2] = { &a, &b };
    firn_cache *cache = rig_fresh(options, pool, &a);
    firn_cache *shape;
    assert_ok(firn_cache_make_empty(cache, &shape, NULL));
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(rig_feed_row(cache, 1, b.id, b.n, NULL));
    const uint64_t ids[4] = { a.id[a.n - 2], a.id[a.n - 1], b.id[b.n - 2], b.id[b.n - 1] };
    size_t n_floats;
    float *expected = rig_attend(cache, NULL, ids, (uint32_t[]){ 2, 2 }, NULL, &n_floats);
    firn_donor *donor;
    assert_ok(firn_cache_capture_donor(cache, &donor, NULL));
    assert_int_equal(rig_stats(pool).copied_bytes, 0);
    assert_donor(donor, shape, rows, expected, n_floats);

    const rig_tokens more = rig_sequence(5, 2 * RIG_T);
    assert_ok(rig_feed_row(cache, 0, more.id, RIG_T, NULL));
    assert_ok(rig_feed_row(cache, 1, more.id, 5, NULL));
    assert_donor(donor, shape, rows, expected, n_floats);
    if (firn_cache_is_trimmable(cache)) {
        assert_ok(firn_cache_trim_row(cache, 0, RIG_T + 3, NULL));
        assert_ok(firn_cache_trim_row(cache, 1, 12, NULL));
        assert_donor(donor, shape, rows, expected, n_floats);
        assert_ok(rig_feed_row(cache, 0, more.id, 3, NULL));
        assert_ok(rig_feed_row(cache, 1, more.id, 30, NULL));
        assert_donor(donor, shape, rows, expected, n_floats);
    }
    firn_cache *merged;
    assert_ok(firn_cache_make_empty(cache, &merged, NULL));
    assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ cache }, 1, NULL));
    assert_ok(rig_feed_row(merged, 0, more.id, 9, NULL));
    assert_donor(donor, shape, rows, expected, n_floats);
    /* Within a round too: layers that share state capture it while a draft is verified. */
    firn_donor *in_round;
    assert_ok(firn_cache_spec_begin(merged, NULL));
    assert_ok(firn_cache_capture_donor(merged, &in_round, NULL));
    assert_int_equal(firn_donor_row_tokens(in_round, 0), firn_cache_row_tokens(merged, 0));
    firn_donor_destroy(in_round);
    firn_cache_destroy(merged);
    firn_cache_destroy(cache);
    assert_donor(donor, shape, rows, expected, n_floats);
    firn_donor_destroy(donor);
    firn_donor_destroy(NULL);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_cache_destroy(shape);
    free(expected);
    firn_pool_destroy(pool);
}

static void a_donor_outlives_everything_its_cache_does(void **state)
{
    (void)state;
    rig_for_each_case(check_donor);
}

/* ---- speculative rounds ------------------------------------------------------------------------------------------ */

static void check_rounds(const firn_cache_options *options)
{
    enum { DRAFTS = 4 };
    static const uint32_t bases[] = { 0, 10, RIG_T - 2, RIG_T - 1, RIG_T, RIG_T + 1 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        for (uint32_t keep = 0; keep <= DRAFTS; keep++) {
            rig_tokens a = rig_sequence(0, bases[i]);
            rig_tokens b = rig_sequence(1, 30);
            firn_cache *cache = rig_fresh(options, pool, &a);
            assert_ok(firn_cache_add_row(cache, NULL));
            assert_ok(rig_feed_row(cache, 1, b.id, b.n, NULL));
            firn_cache *sharer; /* the tails are shared with somebody who must not notice */
            assert_ok(firn_cache_make_empty(cache, &sharer, NULL));
            assert_ok(firn_cache_merge_rows(sharer, (const firn_cache *[]){ cache }, 1, NULL));
            const rig_tokens a_before = a;

            const rig_tokens draft_a = rig_sequence(2, DRAFTS);
            const rig_tokens draft_b = rig_sequence(3, DRAFTS);
            uint64_t drafts[2 * DRAFTS];
            memcpy(drafts, draft_a.id, DRAFTS * sizeof drafts[0]);
            memcpy(drafts + DRAFTS, draft_b.id, DRAFTS * sizeof drafts[0]);
            assert_ok(firn_cache_spec_begin(cache, NULL));
            assert_ok(rig_feed(cache, drafts, (uint32_t[]){ DRAFTS, DRAFTS }, NULL, NULL));
            assert_status(firn_cache_spec_rollback(cache, (uint32_t[]){ keep, DRAFTS + 1 }, NULL), FIRN_ERR_INVALID);
            assert_int_equal(firn_cache_row_tokens(cache, 1), 30 + DRAFTS);
            assert_status(firn_cache_trim_row(cache, 1, DRAFTS + 1, NULL), FIRN_ERR_TRIM); /* not beyond the round */
            if (keep == DRAFTS) {
                assert_ok(firn_cache_spec_commit(cache, NULL));
            } else {
                assert_ok(firn_cache_spec_rollback(cache, (uint32_t[]){ keep, DRAFTS - keep }, NULL));
            }
            memcpy(a.id + a.n, draft_a.id, keep * sizeof a.id[0]);
            a.n += keep;
            const uint32_t keep_b = keep == DRAFTS ? DRAFTS : DRAFTS - keep;
            memcpy(b.id + b.n, draft_b.id, keep_b * sizeof b.id[0]);
            b.n += keep_b;
            rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);

            /* And it goes on as if nothing had happened. */
            const rig_tokens next = rig_sequence(4, 6);
            assert_ok(rig_feed_row(cache, 0, next.id, next.n, NULL));
            memcpy(a.id + a.n, next.id, next.n * sizeof a.id[0]);
            a.n += next.n;
            rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
            const rig_tokens b_before = rig_sequence(1, 30);
            rig_assert_rows(sharer, (const rig_tokens *[]){ &a_before, &b_before }, 2);
            firn_cache_destroy(sharer);
            firn_cache_destroy(cache);
        }
    }
    firn_pool_destroy(pool);
}

static void a_rolled_back_round_equals_plain_appends(void **state)
{
    (void)state;
    rig_for_each_case(check_rounds);
}

static void check_round_order(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, 10);
    firn_cache *cache = rig_fresh(options, pool, &tokens);
    const uint32_t keep = 0;
    assert_status(firn_cache_spec_commit(cache, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_spec_rollback(cache, &keep, NULL), FIRN_ERR_STATE);
    assert_ok(firn_cache_spec_begin(cache, NULL));
    assert_status(firn_cache_spec_begin(cache, NULL), FIRN_ERR_STATE);
    assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 0);
    assert_ok(firn_cache_spec_rollback(cache, &keep, NULL));
    assert_status(firn_cache_spec_rollback(cache, &keep, NULL), FIRN_ERR_STATE);
    rig_assert_row(cache, &tokens);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void rounds_begin_and_end_in_order(void **state)
{
    (void)state;
    rig_for_each_case(check_round_order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trimmed_rows_are_as_if_never_longer),
        cmocka_unit_test(prefill_brackets_come_in_order),
        cmocka_unit_test(a_donor_outlives_everything_its_cache_does),
        cmocka_unit_test(a_rolled_back_round_equals_plain_appends),
        cmocka_unit_test(rounds_begin_and_end_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
