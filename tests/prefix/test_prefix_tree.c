/*
 * The RAM tier without a tier below: what is found, what is shared, who leaves.
 */
#include "prefix/prefix_rig.h"

enum { BIG = 1 << 24 };

static prefix_rig rig;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static int start_big(void **state)
{
    (void)state;
    rig_init(&rig, NULL, BIG);
    rig_start(&rig, (firn_prefix_options){ .min_tokens = 1 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_tokens(other, RIG_TOKENS_MAX, 2);
    return 0;
}

/* Room for n nodes. */
static int start_small(uint32_t n_nodes)
{
    rig_init(&rig, NULL, BIG);
    rig_start(&rig, (firn_prefix_options){ .min_tokens = 1, .budget_bytes = n_nodes * RIG_NODE_BYTES });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_tokens(other, RIG_TOKENS_MAX, 2);
    return 0;
}

static int start_4_nodes(void **state)
{
    (void)state;
    return start_small(4);
}

static int stop(void **state)
{
    (void)state;
    rig_deinit(&rig);
    return 0;
}

/* ---- hits ---- */

static void every_prefix_around_block_edges_is_found_to_the_token(void **state)
{
    (void)state;
    const uint32_t stored[] = { 1, 2, 63, 64, 65, 127, 128, 129, 200 };
    for (size_t s = 0; s < sizeof stored / sizeof stored[0]; s++) {
        firn_token own[256];
        rig_tokens(own, 256, 10 + (uint32_t)s);
        firn_reason reason;
        assert_true(rig_put(&rig, own, stored[s], NULL, &reason));
        assert_reason(reason, FIRN_REASON_NONE);
        for (uint32_t n = 1; n <= 220; n++) {
            const firn_lease_info info = rig_lookup(&rig, own, n, NULL);
            const uint32_t expected = n - 1 < stored[s] ? n - 1 : stored[s];
            assert_int_equal(info.n_tokens, expected);
            assert_int_equal(info.ram_tokens, expected);
            assert_int_equal(info.first_divergence, n < stored[s] ? n : stored[s]);
            assert_false(info.diverged);
        }
    }
}

static void a_prompt_that_leaves_inside_a_block_uses_the_tokens_before(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 200, NULL, NULL));
    for (uint32_t at = 0; at < 200; at++) {
        memcpy(other, tokens, sizeof tokens);
        other[at] = 77;
        const firn_lease_info info = rig_lookup(&rig, other, 210, NULL);
        assert_int_equal(info.n_tokens, at);
        assert_int_equal(info.first_divergence, at);
        assert_int_equal(info.diverged, at > 0);
        assert_int_equal(info.stored_token, at > 0 ? tokens[at] : 0);
        assert_reason(info.reason, at > 0 ? FIRN_REASON_DIVERGED : FIRN_REASON_NO_PREFIX);
    }
}

static void the_reason_says_why_a_hit_is_not_longer(void **state)
{
    (void)state;
    assert_reason(rig_lookup(&rig, tokens, 100, NULL).reason, FIRN_REASON_NO_PREFIX);
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    /* All but the last token. */
    assert_reason(rig_lookup(&rig, tokens, 100, NULL).reason, FIRN_REASON_NONE);
    assert_reason(rig_lookup(&rig, tokens, 101, NULL).reason, FIRN_REASON_NONE);
    /* What is stored simply ends: nothing went wrong, and first_divergence says where. */
    const firn_lease_info ends = rig_lookup(&rig, tokens, 150, NULL);
    assert_reason(ends.reason, FIRN_REASON_NONE);
    assert_int_equal(ends.n_tokens, 100);
    assert_int_equal(ends.first_divergence, 100);
    assert_false(ends.diverged);
    assert_reason(rig_lookup(&rig, other, 150, NULL).reason, FIRN_REASON_NO_PREFIX);
    /* A prompt of one token can use nothing, stored or not. */
    assert_int_equal(rig_lookup(&rig, tokens, 1, NULL).n_tokens, 0);
}

static void prefixes_below_the_minimum_are_neither_kept_nor_used(void **state)
{
    (void)state;
    rig_stop(&rig);
    rig_start(&rig, (firn_prefix_options){ 0 }); /* the default: 16 */
    firn_reason reason;
    assert_false(rig_put(&rig, tokens, 15, NULL, &reason));
    assert_reason(reason, FIRN_REASON_BELOW_MIN);
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    assert_true(rig_put(&rig, tokens, 16, NULL, &reason));
    assert_int_equal(rig_lookup(&rig, tokens, 17, NULL).n_tokens, 16);
    const firn_lease_info info = rig_lookup(&rig, tokens, 16, NULL);
    assert_int_equal(info.n_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_BELOW_MIN);
    memcpy(other, tokens, sizeof tokens);
    other[15] = 5;
    const firn_lease_info left = rig_lookup(&rig, other, 60, NULL);
    assert_int_equal(left.n_tokens, 0);
    assert_int_equal(left.first_divergence, 15);
    assert_true(left.diverged);
    assert_reason(left.reason, FIRN_REASON_BELOW_MIN);
}

static void namespaces_never_see_each_other(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 130, "alice", NULL));
    assert_int_equal(rig_lookup(&rig, tokens, 131, "bob").n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 131, NULL).n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 131, "alic").n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 131, "alicea").n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 131, "alice").n_tokens, 130);
    assert_true(rig_put(&rig, tokens, 70, "", NULL));
    assert_int_equal(rig_lookup(&rig, tokens, 131, NULL).n_tokens, 70);
    assert_int_equal(rig_lookup(&rig, tokens, 131, "alice").n_tokens, 130);

    char too_long[FIRN_NAMESPACE_BYTES_MAX + 2];
    memset(too_long, 'n', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    firn_lease *lease;
    assert_status(firn_prefix_acquire(rig.prefix, tokens, 10, too_long, &lease, NULL), FIRN_ERR_INVALID);
    assert_null(lease);
    assert_status(firn_prefix_acquire(rig.prefix, tokens, 0, "", &lease, NULL), FIRN_ERR_INVALID);
    assert_false(rig_put(&rig, tokens, 100, too_long, NULL));
}

/* ---- sharing ---- */

static void shared_prefixes_are_stored_once(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 192, NULL, NULL));
    memcpy(other, tokens, sizeof tokens);
    for (uint32_t i = 130; i < 300; i++) {
        other[i] += 7;
    }
    assert_true(rig_put(&rig, other, 250, NULL, NULL));
    /* Blocks 0 and 1 once, block 2 twice, a tail. */
    assert_int_equal(rig_stats(&rig).n_nodes, 5);
    assert_int_equal(rig_stats(&rig).held_bytes, 5 * RIG_NODE_BYTES);
    assert_int_equal(rig_lookup(&rig, tokens, 193, NULL).n_tokens, 192);
    assert_int_equal(rig_lookup(&rig, other, 251, NULL).n_tokens, 250);
}

static void an_exact_duplicate_only_refreshes(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    assert_true(rig_put(&rig, other, 100, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 40, NULL, NULL));
    assert_int_equal(rig_stats(&rig).n_nodes, 4);
    assert_int_equal(rig_stats(&rig).held_bytes, 4 * RIG_NODE_BYTES);
}

static void a_longer_tail_takes_the_place_of_the_shorter(void **state)
{
    (void)state;
    for (uint32_t n = 65; n <= 200; n += 9) {
        assert_true(rig_put(&rig, tokens, n, NULL, NULL));
        assert_int_equal(rig_stats(&rig).n_nodes, (n + 63) / 64);
        assert_int_equal(rig_lookup(&rig, tokens, n + 1, NULL).n_tokens, n);
    }
    assert_int_equal(rig_stats(&rig).held_bytes, 4 * RIG_NODE_BYTES);
}

static void a_growing_row_never_changes_what_it_gave(void **state)
{
    (void)state;
    rig_row row = rig_row_of(&rig, tokens, 80);
    assert_true(firn_prefix_put(rig.prefix, tokens, 80, NULL, rig_caches(&row), NULL));
    /* The row goes on with tokens that nobody puts. */
    memcpy(other, tokens, sizeof tokens);
    other[80] = 1;
    rig_row_extend(&row, other, 190);
    assert_int_equal(rig_lookup(&rig, tokens, 81, NULL).n_tokens, 80);
    rig_row_free(&row);
    assert_int_equal(rig_lookup(&rig, tokens, 81, NULL).n_tokens, 80);
}

static void lent_rows_are_independent_of_the_donor_and_each_other(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    firn_lease *lease = rig_acquire(&rig, tokens, 90, NULL);
    assert_int_equal(rig_wait(&rig, lease).n_tokens, 89);
    rig_row first = rig_lend(lease);
    rig_row second = rig_lend(lease);
    firn_lease_release(lease);
    memcpy(other, tokens, sizeof tokens);
    other[89] = 5;
    rig_row_extend(&first, other, 150);
    rig_row_extend(&second, tokens, 120);
    rig_row_verify(&first, other, 150);
    rig_row_verify(&second, tokens, 120);
    assert_int_equal(rig_lookup(&rig, tokens, 101, NULL).n_tokens, 100);
    rig_row_free(&first);
    rig_row_free(&second);
}

static void a_hit_copies_no_state(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 300, NULL, NULL));
    firn_pool_stats before, after;
    firn_pool_get_stats(rig.pool, &before);
    firn_lease *lease = rig_acquire(&rig, tokens, 300, NULL);
    rig_row row = rig_lend(lease);
    assert_true(firn_prefix_put(rig.prefix, tokens, 299, "elsewhere", rig_caches(&row), NULL));
    firn_pool_get_stats(rig.pool, &after);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_int_equal(after.copied_bytes, before.copied_bytes);
    rig_row_free(&row);
    firn_lease_release(lease);
}

static void a_block_in_two_namespaces_is_counted_once(void **state)
{
    (void)state;
    rig_row row = rig_row_of(&rig, tokens, 128);
    assert_true(firn_prefix_put(rig.prefix, tokens, 128, "a", rig_caches(&row), NULL));
    assert_true(firn_prefix_put(rig.prefix, tokens, 128, "b", rig_caches(&row), NULL));
    assert_true(firn_prefix_put(rig.prefix, tokens, 100, "c", rig_caches(&row), NULL));
    rig_row_free(&row);
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_nodes, 6);
    assert_int_equal(rig_stats(&rig).held_bytes, 2 * RIG_NODE_BYTES);
    assert_int_equal(rig_lookup(&rig, tokens, 129, "c").n_tokens, 100);
    assert_int_equal(rig_lookup(&rig, tokens, 129, "b").n_tokens, 128);
}

static void rows_of_another_shape_pool_or_count_are_refused(void **state)
{
    (void)state;
    firn_reason reason;
    rig_row row = rig_row_of(&rig, tokens, 80);
    assert_false(firn_prefix_put(rig.prefix, tokens, 81, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_COUNT_MISMATCH);
    rig_row foreign = row;
    firn_cache_options options = rig.layers[1];
    options.dtype = FIRN_DTYPE_F16;
    assert_ok(firn_cache_create(&options, rig.pool, NULL, &foreign.caches[1], NULL));
    assert_ok(firn_cache_add_row(foreign.caches[1], NULL));
    assert_false(firn_prefix_put(rig.prefix, tokens, 80, NULL, rig_caches(&foreign), &reason));
    assert_reason(reason, FIRN_REASON_WRONG_IDENTITY);
    firn_cache_destroy(foreign.caches[1]);
    /* A batch is not a row. */
    assert_ok(firn_cache_add_row(row.caches[0], NULL));
    assert_false(firn_prefix_put(rig.prefix, tokens, 40, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_COUNT_MISMATCH);
    rig_row_free(&row);
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    firn_prefix_check(rig.prefix);

    const firn_pool_options small = { .budget_bytes = BIG };
    firn_pool *pool = rig.pool;
    assert_ok(firn_pool_create(&small, NULL, &rig.pool, NULL));
    row = rig_row_of(&rig, tokens, 80);
    assert_false(firn_prefix_put(rig.prefix, tokens, 80, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_WRONG_IDENTITY);
    rig_row_free(&row);
    firn_pool_destroy(rig.pool);
    rig.pool = pool;
}

/* ---- pins and tails ---- */

static void a_lease_outlives_the_growth_of_its_tail(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 80, NULL, NULL));
    firn_lease *lease = rig_acquire(&rig, tokens, 81, NULL);
    rig_row row = rig_lend(lease);
    const firn_block *tail = firn_cache_view_row(row.caches[0], 0).blocks[1];
    rig_row_free(&row);
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 260, NULL, NULL));
    assert_int_equal(rig_stats(&rig).n_nodes, 5);
    row = rig_lend(lease);
    rig_row_verify(&row, tokens, 80);
    /* The very state that was promised, not a copy that another row computed. */
    assert_ptr_equal(firn_cache_view_row(row.caches[0], 0).blocks[1], tail);
    rig_row_free(&row);
    firn_lease_release(lease);
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_lookup(&rig, tokens, 261, NULL).n_tokens, 260);
}

static void what_a_lease_was_promised_is_not_evicted(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    firn_lease *lease = rig_acquire(&rig, tokens, 120, NULL);
    assert_int_equal(rig_stats(&rig).n_pinned, 1);
    for (uint32_t i = 0; i < 6; i++) {
        rig_tokens(other, 128, 50 + i);
        assert_true(rig_put(&rig, other, 128, NULL, NULL));
        assert_int_equal(rig_stats(&rig).held_bytes, 4 * RIG_NODE_BYTES);
    }
    /* More than there is beside the pinned: the head that fits is kept. */
    rig_tokens(other, 300, 90);
    firn_reason reason;
    assert_true(rig_put(&rig, other, 300, NULL, &reason));
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(rig_lookup(&rig, other, 300, NULL).n_tokens, 128);
    rig_row row = rig_lend(lease);
    rig_row_verify(&row, tokens, 119);
    rig_row_free(&row);
    assert_false(firn_prefix_make_room(rig.prefix, BIG + 1));
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_nodes, 2);
    firn_lease_release(lease);
    assert_int_equal(rig_stats(&rig).n_pinned, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 129, NULL).n_tokens, 128);
}

static void nothing_fits_beside_a_pinned_budget(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 256, NULL, NULL));
    firn_lease *lease = rig_acquire(&rig, tokens, 257, NULL);
    firn_reason reason;
    assert_false(rig_put(&rig, other, 10, "new", &reason));
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    assert_false(rig_put(&rig, tokens, 300, NULL, &reason));
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    firn_lease_release(lease);
    assert_true(rig_put(&rig, other, 10, "new", &reason));
    assert_reason(reason, FIRN_REASON_NONE);
}

/* ---- eviction ---- */

static void tails_leave_before_heads_and_the_oldest_first(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 128, "a", NULL));
    assert_true(rig_put(&rig, other, 128, "b", NULL));
    (void)rig_lookup(&rig, tokens, 129, "a");
    firn_token third[65];
    rig_tokens(third, 65, 3);
    assert_true(rig_put(&rig, third, 64, "c", NULL));
    /* b's tail was the oldest leaf. */
    assert_int_equal(rig_lookup(&rig, tokens, 129, "a").n_tokens, 128);
    assert_int_equal(rig_lookup(&rig, other, 129, "b").n_tokens, 64);
    /* These lookups were uses: from the oldest, there are now c, a's tail, a's head, b's head. */
    rig_tokens(third, 65, 4);
    assert_true(rig_put(&rig, third, 64, "d", NULL));
    rig_tokens(third, 65, 5);
    assert_true(rig_put(&rig, third, 64, "d", NULL));
    assert_int_equal(rig_stats(&rig).n_evicted, 3);
    rig_tokens(third, 65, 3);
    assert_int_equal(rig_lookup(&rig, third, 65, "c").n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 129, "a").n_tokens, 64);
    assert_int_equal(rig_lookup(&rig, other, 129, "b").n_tokens, 64);
}

static void the_budget_is_never_exceeded_by_a_long_row(void **state)
{
    (void)state;
    firn_reason reason;
    assert_true(rig_put(&rig, tokens, 1000, NULL, &reason));
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(rig_stats(&rig).held_bytes, 4 * RIG_NODE_BYTES);
    assert_int_equal(rig_lookup(&rig, tokens, 1000, NULL).n_tokens, 256);
}

static void making_room_frees_pool_memory_that_no_row_shares(void **state)
{
    (void)state;
    rig_row running = rig_row_of(&rig, other, 128);
    assert_true(firn_prefix_put(rig.prefix, other, 128, NULL, rig_caches(&running), NULL));
    assert_true(rig_put(&rig, tokens, 320, NULL, NULL));
    const uint64_t room = firn_pool_room(rig.pool);
    /* The running row's leaf is the oldest, but evicting it frees nothing. */
    assert_true(firn_prefix_make_room(rig.prefix, room + 2 * RIG_NODE_BYTES));
    assert_int_equal(rig_stats(&rig).n_nodes, 5);
    assert_int_equal(rig_lookup(&rig, tokens, 321, NULL).n_tokens, 192);
    assert_int_equal(rig_lookup(&rig, other, 129, NULL).n_tokens, 128);
    assert_false(firn_prefix_make_room(rig.prefix, room + 6 * RIG_NODE_BYTES));
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_nodes, 2);
    assert_int_equal(rig_lookup(&rig, other, 129, NULL).n_tokens, 128);
    rig_row_free(&running);
    assert_true(firn_prefix_make_room(rig.prefix, BIG));
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    assert_int_equal(rig_stats(&rig).held_bytes, 0);
}

static void a_shared_leaf_leaves_when_what_is_above_it_comes_free(void **state)
{
    (void)state;
    /* The tree's first block is the first row's; the second row computed it again and shares only block 1. */
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    rig_row running = rig_row_of(&rig, tokens, 128);
    assert_true(firn_prefix_put(rig.prefix, tokens, 128, NULL, rig_caches(&running), NULL));
    assert_true(firn_prefix_make_room(rig.prefix, firn_pool_room(rig.pool) + RIG_NODE_BYTES));
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    rig_row_free(&running);
}

static void lookups_are_counted_to_the_token(void **state)
{
    (void)state;
    (void)rig_lookup(&rig, tokens, 100, NULL);
    assert_true(rig_put(&rig, tokens, 150, NULL, NULL));
    (void)rig_lookup(&rig, tokens, 100, NULL);
    (void)rig_lookup(&rig, tokens, 200, NULL);
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_lookups, 3);
    assert_int_equal(stats.n_hits_ram, 2);
    assert_int_equal(stats.n_hits_disk, 0);
    assert_int_equal(stats.hit_tokens_ram, 99 + 150);
    assert_int_equal(stats.miss_tokens, 100 + 1 + 50);
    assert_int_equal(stats.reasons[FIRN_REASON_NO_PREFIX], 1);
    assert_int_equal(stats.reasons[FIRN_REASON_NONE], 2);
    /* Nothing is unsaved where nothing is below. */
    assert_int_equal(stats.n_dirty, 0);
    assert_true(firn_prefix_poll(rig.prefix) == UINT64_MAX);
    const firn_flush_report report = firn_prefix_flush(rig.prefix, 0);
    assert_true(report.durable);
    assert_int_equal(report.n_flushed + report.n_missing + report.n_failed, 0);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    firn_prefix *prefix;
    firn_prefix_options options = { .schema = &rig.schema };
    assert_status(firn_prefix_create(&options, NULL, &prefix, NULL), FIRN_ERR_INVALID);
    options = (firn_prefix_options){ .pool = rig.pool };
    assert_status(firn_prefix_create(&options, NULL, &prefix, NULL), FIRN_ERR_INVALID);
    const firn_schema none = { .layers = rig.layers, .n_layers = 0 };
    options = (firn_prefix_options){ .pool = rig.pool, .schema = &none };
    assert_status(firn_prefix_create(&options, NULL, &prefix, NULL), FIRN_ERR_INVALID);
    options = (firn_prefix_options){ .pool = rig.pool, .schema = &rig.schema, .retry_ns_min = UINT64_MAX };
    assert_status(firn_prefix_create(&options, NULL, &prefix, NULL), FIRN_ERR_INVALID);
    assert_null(prefix);
    firn_prefix_destroy(NULL);
    firn_lease_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_prefix_around_block_edges_is_found_to_the_token, start_big, stop),
        cmocka_unit_test_setup_teardown(a_prompt_that_leaves_inside_a_block_uses_the_tokens_before, start_big, stop),
        cmocka_unit_test_setup_teardown(the_reason_says_why_a_hit_is_not_longer, start_big, stop),
        cmocka_unit_test_setup_teardown(prefixes_below_the_minimum_are_neither_kept_nor_used, start_big, stop),
        cmocka_unit_test_setup_teardown(namespaces_never_see_each_other, start_big, stop),
        cmocka_unit_test_setup_teardown(shared_prefixes_are_stored_once, start_big, stop),
        cmocka_unit_test_setup_teardown(an_exact_duplicate_only_refreshes, start_big, stop),
        cmocka_unit_test_setup_teardown(a_longer_tail_takes_the_place_of_the_shorter, start_big, stop),
        cmocka_unit_test_setup_teardown(a_growing_row_never_changes_what_it_gave, start_big, stop),
        cmocka_unit_test_setup_teardown(lent_rows_are_independent_of_the_donor_and_each_other, start_big, stop),
        cmocka_unit_test_setup_teardown(a_hit_copies_no_state, start_big, stop),
        cmocka_unit_test_setup_teardown(a_block_in_two_namespaces_is_counted_once, start_big, stop),
        cmocka_unit_test_setup_teardown(rows_of_another_shape_pool_or_count_are_refused, start_big, stop),
        cmocka_unit_test_setup_teardown(a_lease_outlives_the_growth_of_its_tail, start_big, stop),
        cmocka_unit_test_setup_teardown(what_a_lease_was_promised_is_not_evicted, start_4_nodes, stop),
        cmocka_unit_test_setup_teardown(nothing_fits_beside_a_pinned_budget, start_4_nodes, stop),
        cmocka_unit_test_setup_teardown(tails_leave_before_heads_and_the_oldest_first, start_4_nodes, stop),
        cmocka_unit_test_setup_teardown(the_budget_is_never_exceeded_by_a_long_row, start_4_nodes, stop),
        cmocka_unit_test_setup_teardown(making_room_frees_pool_memory_that_no_row_shares, start_big, stop),
        cmocka_unit_test_setup_teardown(a_shared_leaf_leaves_when_what_is_above_it_comes_free, start_big, stop),
        cmocka_unit_test_setup_teardown(lookups_are_counted_to_the_token, start_big, stop),
        cmocka_unit_test_setup_teardown(options_out_of_range_are_refused, start_big, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
