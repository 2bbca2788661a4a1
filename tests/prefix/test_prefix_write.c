/*
 * Write-behind: what is stored and when, and what becomes of state that a tier is slow to take, refuses or never takes.
 */
#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { POOL_BYTES = 1 << 24, RETRY_MS = 10000 };
#define NEVER_NS (UINT64_C(3600) * 1000 * RIG_MS)

static prefix_rig rig;
static fault_tier *fault;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static void restart(firn_prefix_options options)
{
    rig_stop(&rig);
    options.tier = &fault->tier;
    options.restore_deadline_ns = NEVER_NS;
    options.retry_ns_min = RETRY_MS * RIG_MS;
    rig_start(&rig, options);
}

static int start(void **state)
{
    (void)state;
    rig_init(&rig, NULL, POOL_BYTES);
    fault = fault_tier_create(rig.pool);
    restart((firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_tokens(other, RIG_TOKENS_MAX, 2);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fault_tier_set(fault, hang_stores, false);
    rig_stop(&rig);
    firn_tier_destroy(&fault->tier);
    rig_deinit(&rig);
    return 0;
}

/* Polls until no store is under way and none could be started now. */
static void settle(void)
{
    for (uint32_t i = 0; i < 20000; i++) {
        const uint64_t next_ns = firn_prefix_poll(rig.prefix);
        firn_prefix_check(rig.prefix);
        if (rig_stats(&rig).n_queued == 0 && next_ns > 0) {
            return;
        }
        rig_sleep(RIG_MS / 4);
    }
    fail_msg("stores do not come to an end");
}

static void await_storing(void)
{
    while (fault_tier_get(fault, &fault->n_storing) == 0) {
        rig_sleep(RIG_MS / 4);
    }
}

static void refuse_stores(firn_reason reason)
{
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = reason;
    dict_tier_unlock(fault->dict);
}

static void advance(uint64_t ns)
{
    atomic_fetch_add(&rig.clock_ahead_ns, ns);
}

static uint32_t n_calls(void)
{
    return fault_tier_get(fault, &fault->n_store_calls);
}

/* ---- what is stored ---- */

static void whole_blocks_are_stored_soon_and_tails_only_by_a_flush(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 200, "a", NULL));
    assert_int_equal(rig_stats(&rig).n_dirty, 4);
    settle();
    assert_int_equal(n_calls(), 1);
    assert_int_equal(fault->last_store_tokens, 192);
    assert_int_equal(rig_stats(&rig).n_dirty, 1);
    /* The conversation grows inside its tail: nothing to store. */
    assert_true(rig_put(&rig, tokens, 230, "a", NULL));
    settle();
    assert_int_equal(n_calls(), 1);
    assert_true(rig_put(&rig, tokens, 260, "a", NULL));
    settle();
    assert_int_equal(n_calls(), 2);
    assert_int_equal(fault->last_store_tokens, 256);
    const firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    assert_int_equal(report.n_flushed, 1);
    assert_int_equal(n_calls(), 3);
    assert_int_equal(fault->last_store_tokens, 260);
    assert_int_equal(rig_stats(&rig).n_stores, 3);
    assert_true(firn_prefix_poll(rig.prefix) == UINT64_MAX);

    restart((firn_prefix_options){ 0 });
    assert_int_equal(rig_lookup(&rig, tokens, 261, "a").disk_tokens, 260);
    assert_int_equal(rig_lookup(&rig, tokens, 261, "b").disk_tokens, 0);
}

static void one_job_covers_a_path_however_often_it_grew(void **state)
{
    (void)state;
    restart((firn_prefix_options){ .write_queue_max = 1 });
    fault_tier_set(fault, hang_stores, true);
    assert_true(rig_put(&rig, other, 64, NULL, NULL)); /* keeps the worker busy */
    await_storing();
    const uint32_t before = n_calls();
    for (uint32_t n = 64; n <= 640; n += 64) {
        assert_true(rig_put(&rig, tokens, n, NULL, NULL));
    }
    fault_tier_set(fault, hang_stores, false);
    settle();
    assert_int_equal(n_calls() - before, 1);
    assert_int_equal(fault->last_store_tokens, 640);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
}

static void a_duplicate_is_not_stored_again(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    settle();
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    settle();
    assert_int_equal(n_calls(), 1);
}

static void restored_state_is_not_written_back(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 200, NULL, NULL));
    assert_true(firn_prefix_flush(rig.prefix, NEVER_NS).durable);
    restart((firn_prefix_options){ 0 });
    const uint32_t before = n_calls();
    assert_int_equal(rig_lookup(&rig, tokens, 201, NULL).disk_tokens, 200);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    (void)firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_int_equal(n_calls(), before);
}

/* ---- slow, full, ill ---- */

static void state_stays_readable_and_in_ram_until_it_is_stored(void **state)
{
    (void)state;
    fault_tier_set(fault, hang_stores, true);
    assert_true(rig_put(&rig, tokens, 192, NULL, NULL));
    await_storing();
    assert_int_equal(rig_lookup(&rig, tokens, 193, NULL).ram_tokens, 192);
    assert_false(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_lookup(&rig, tokens, 193, NULL).ram_tokens, 192);
    fault_tier_set(fault, hang_stores, false);
    settle();
    assert_true(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 193, NULL).disk_tokens, 192);
}

static void a_row_that_goes_on_does_not_change_what_is_being_stored(void **state)
{
    (void)state;
    fault_tier_set(fault, hang_stores, true);
    rig_row row = rig_row_of(&rig, tokens, 100);
    assert_true(firn_prefix_put(rig.prefix, tokens, 100, NULL, rig_caches(&row), NULL));
    assert_false(firn_prefix_flush(rig.prefix, RIG_MS).durable);
    await_storing();
    rig_row_extend(&row, tokens, 120);
    assert_true(firn_prefix_put(rig.prefix, tokens, 120, NULL, rig_caches(&row), NULL));
    firn_prefix_check(rig.prefix);
    rig_row_extend(&row, tokens, 300);
    rig_row_free(&row);
    fault_tier_set(fault, hang_stores, false);
    settle();
    /* The tail grew after its store began: it is still to be stored. */
    assert_int_equal(rig_stats(&rig).n_dirty, 1);
    assert_true(firn_prefix_flush(rig.prefix, NEVER_NS).durable);
    restart((firn_prefix_options){ 0 });
    assert_int_equal(rig_lookup(&rig, tokens, 300, NULL).disk_tokens, 120);
}

static void a_full_queue_loses_nothing(void **state)
{
    (void)state;
    restart((firn_prefix_options){ .write_queue_max = 2 });
    fault_tier_set(fault, hang_stores, true);
    for (uint32_t i = 0; i < 6; i++) {
        rig_tokens(other, 64, 20 + i);
        firn_reason reason;
        assert_true(rig_put(&rig, other, 64, NULL, &reason));
        assert_reason(reason, FIRN_REASON_NONE);
        assert_true(rig_stats(&rig).n_queued <= 2);
    }
    assert_int_equal(rig_stats(&rig).reasons[FIRN_REASON_QUEUE_FULL], 4);
    assert_int_equal(rig_stats(&rig).n_dirty, 6);
    fault_tier_set(fault, hang_stores, false);
    settle();
    assert_int_equal(n_calls(), 6);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
}

static void a_refusing_tier_is_tried_again_after_growing_bounded_pauses(void **state)
{
    (void)state;
    refuse_stores(FIRN_REASON_DISK_FULL);
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    settle();
    assert_int_equal(n_calls(), 1);
    uint64_t pause_ns = RETRY_MS * RIG_MS;
    for (uint32_t i = 1; i <= 9; i++) {
        const uint64_t next_ns = firn_prefix_poll(rig.prefix);
        assert_true(next_ns <= pause_ns && next_ns + RETRY_MS * RIG_MS / 2 > pause_ns);
        settle();
        assert_int_equal(n_calls(), i);
        assert_int_equal(rig_stats(&rig).n_store_failures, i);
        assert_int_equal(rig_stats(&rig).reasons[FIRN_REASON_DISK_FULL], i);
        assert_int_equal(rig_stats(&rig).n_dirty, 2);
        assert_int_equal(rig_lookup(&rig, tokens, 129, NULL).ram_tokens, 128);
        advance(pause_ns);
        settle();
        pause_ns = pause_ns < 64 * RETRY_MS * RIG_MS ? 2 * pause_ns : pause_ns;
    }
    refuse_stores(FIRN_REASON_NONE);
    advance(pause_ns);
    settle();
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    assert_int_equal(rig_stats(&rig).n_stores, 1);
    assert_true(firn_prefix_poll(rig.prefix) == UINT64_MAX);
    /* The next trouble starts from the shortest pause again. */
    refuse_stores(FIRN_REASON_IO_ERROR);
    assert_true(rig_put(&rig, other, 64, NULL, NULL));
    settle();
    assert_true(firn_prefix_poll(rig.prefix) <= RETRY_MS * RIG_MS);
}

static void an_ill_tier_is_probed_by_one_store_at_a_time(void **state)
{
    (void)state;
    refuse_stores(FIRN_REASON_IO_ERROR);
    for (uint32_t i = 0; i < 5; i++) {
        rig_tokens(other, 64, 20 + i);
        assert_true(rig_put(&rig, other, 64, NULL, NULL));
        settle();
    }
    assert_int_equal(n_calls(), 1);
    advance(RETRY_MS * RIG_MS);
    settle();
    assert_int_equal(n_calls(), 2);
    refuse_stores(FIRN_REASON_NONE);
    advance(64 * RETRY_MS * RIG_MS);
    settle();
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    assert_int_equal(n_calls(), 2 + 5);
}

static void an_ill_tier_cannot_fill_ram_with_what_it_does_not_take(void **state)
{
    (void)state;
    restart((firn_prefix_options){ .budget_bytes = 32 * RIG_NODE_BYTES });
    refuse_stores(FIRN_REASON_DISK_FULL);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < 20; i++) {
        rig_tokens(other, 64, 20 + i);
        firn_reason reason;
        if (rig_put(&rig, other, 64, NULL, &reason)) {
            n_kept++;
        } else {
            assert_reason(reason, FIRN_REASON_DISK_FULL);
        }
        settle();
    }
    assert_int_equal(n_kept, 8); /* a quarter */
    assert_int_equal(rig_stats(&rig).n_dirty, 8);
    /* Nothing that was accepted is dropped, even when memory is short. */
    (void)firn_prefix_make_room(rig.prefix, POOL_BYTES);
    assert_int_equal(rig_stats(&rig).n_dirty, 8);
    refuse_stores(FIRN_REASON_NONE);
    advance(64 * RETRY_MS * RIG_MS);
    settle();
    for (uint32_t i = 0; i < 20; i++) {
        rig_tokens(other, 64, 20 + i);
        assert_int_equal(rig_lookup(&rig, other, 65, NULL).ram_tokens, i < 8 ? 64 : 0);
    }
}

static void a_tier_that_hangs_cannot_fill_ram_either(void **state)
{
    (void)state;
    restart((firn_prefix_options){ .budget_bytes = 32 * RIG_NODE_BYTES });
    fault_tier_set(fault, hang_stores, true);
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    advance(2 * NEVER_NS);
    firn_reason reason = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < 20; i++) {
        rig_tokens(other, 64, 20 + i);
        (void)rig_put(&rig, other, 64, NULL, &reason);
    }
    assert_reason(reason, FIRN_REASON_DEADLINE);
    assert_int_equal(rig_stats(&rig).n_dirty, 8);
}

static void old_tails_are_stored_before_they_are_in_the_way(void **state)
{
    (void)state;
    enum { CONVERSATIONS = 24 };
    restart((firn_prefix_options){ .budget_bytes = 16 * RIG_NODE_BYTES });
    for (uint32_t i = 0; i < CONVERSATIONS; i++) {
        rig_tokens(other, 100, 20 + i);
        bool kept = rig_put(&rig, other, 100, NULL, NULL);
        for (uint32_t tries = 0; !kept && tries < 4000; tries++) {
            rig_sleep(RIG_MS / 4);
            (void)firn_prefix_poll(rig.prefix);
            kept = rig_put(&rig, other, 100, NULL, NULL);
        }
        assert_true(kept);
        settle();
    }
    assert_true(rig_stats(&rig).n_evicted > 0);
    assert_true(rig_stats(&rig).n_dirty <= 4);
    for (uint32_t i = 0; i < CONVERSATIONS; i++) {
        rig_tokens(other, 101, 20 + i);
        const firn_lease_info info = rig_lookup(&rig, other, 101, NULL);
        assert_int_equal(info.n_tokens, 100);
        settle();
    }
}

static void a_shortage_has_unsaved_tails_stored(void **state)
{
    (void)state;
    assert_true(rig_put(&rig, tokens, 40, NULL, NULL));
    assert_true(rig_put(&rig, other, 50, NULL, NULL));
    settle();
    assert_int_equal(n_calls(), 0);
    assert_false(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    settle();
    assert_int_equal(n_calls(), 2);
    assert_true(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    assert_int_equal(rig_lookup(&rig, tokens, 41, NULL).disk_tokens, 40);
    assert_int_equal(rig_lookup(&rig, other, 51, NULL).disk_tokens, 50);
}

/* ---- flush ---- */

/* Begins while nothing can be saved yet: what a store saves before the beginning is none of a flush's. */
static firn_flush_report flush_what_hangs(void)
{
    firn_flush_report report;
    assert_true(firn_prefix_flush_begin(rig.prefix));
    fault_tier_set(fault, hang_stores, false);
    while (!firn_prefix_flush_ended(rig.prefix, false, &report)) {
        rig_sleep(RIG_MS / 4);
    }
    return report;
}

static void a_flush_reports_what_it_saved(void **state)
{
    (void)state;
    firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    assert_int_equal(report.n_flushed, 0);
    fault_tier_set(fault, hang_stores, true);
    fault_tier_set(fault, store_delay_ns, 2 * RIG_MS);
    for (uint32_t i = 0; i < 5; i++) {
        rig_tokens(other, 150, 20 + i);
        assert_true(rig_put(&rig, other, 150, i % 2 == 0 ? "x" : "y", NULL));
    }
    report = flush_what_hangs();
    firn_prefix_check(rig.prefix);
    assert_true(report.durable);
    assert_int_equal(report.n_flushed, 15);
    assert_int_equal(report.n_missing, 0);
    assert_int_equal(report.n_failed, 0);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    assert_true(report.elapsed_ns > 0);
    restart((firn_prefix_options){ 0 });
    for (uint32_t i = 0; i < 5; i++) {
        rig_tokens(other, 151, 20 + i);
        assert_int_equal(rig_lookup(&rig, other, 151, i % 2 == 0 ? "x" : "y").disk_tokens, 150);
    }
}

static void a_flush_over_a_hanging_tier_keeps_its_bound(void **state)
{
    (void)state;
    fault_tier_set(fault, hang_stores, true);
    for (uint32_t i = 0; i < 3; i++) {
        rig_tokens(other, 150, 20 + i);
        assert_true(rig_put(&rig, other, 150, NULL, NULL));
    }
    const firn_flush_report report = firn_prefix_flush(rig.prefix, 50 * RIG_MS);
    assert_false(report.durable);
    assert_int_equal(report.n_flushed, 0);
    assert_int_equal(report.n_missing, 9);
    assert_int_equal(report.n_failed, 0);
    assert_true(report.elapsed_ns >= 50 * RIG_MS && report.elapsed_ns < 2000 * RIG_MS);
    assert_int_equal(rig_stats(&rig).n_dirty, 9);
    const firn_flush_report later = flush_what_hangs();
    assert_true(later.durable);
    assert_int_equal(later.n_flushed, 9);
}

static void a_flush_over_a_refusing_tier_ends_at_once(void **state)
{
    (void)state;
    refuse_stores(FIRN_REASON_DISK_FULL);
    for (uint32_t i = 0; i < 3; i++) {
        rig_tokens(other, 150, 20 + i);
        assert_true(rig_put(&rig, other, 150, NULL, NULL));
    }
    firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_false(report.durable);
    assert_int_equal(report.n_flushed, 0);
    assert_int_equal(report.n_missing, 0);
    assert_int_equal(report.n_failed, 9);
    assert_true(report.elapsed_ns < 2000 * RIG_MS);
    for (uint32_t i = 0; i < 3; i++) {
        rig_tokens(other, 151, 20 + i);
        assert_int_equal(rig_lookup(&rig, other, 151, NULL).ram_tokens, 150);
    }
    /* One refusal, then health: a flush does not wait for the pause. */
    refuse_stores(FIRN_REASON_NONE);
    report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    assert_int_equal(report.n_flushed, 9);
    /* Only some refused: exactly those are reported. */
    for (uint32_t i = 0; i < 3; i++) {
        rig_tokens(other, 40, 30 + i);
        assert_true(rig_put(&rig, other, 40, NULL, NULL));
    }
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_IO_ERROR;
    fault->dict->store_refusals = 2;
    dict_tier_unlock(fault->dict);
    report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_false(report.durable);
    assert_int_equal(report.n_flushed, 1);
    assert_int_equal(report.n_failed, 2);
    assert_int_equal(report.n_missing, 0);
}

static void a_flush_includes_the_tier_s_own(void **state)
{
    (void)state;
    const firn_flush_report below = { .durable = false, .n_missing = 3, .n_failed = 1 };
    fault_tier_set(fault, flush_report, below);
    assert_true(rig_put(&rig, tokens, 40, NULL, NULL)); /* a tail: nothing but a flush stores it */
    const firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_false(report.durable);
    assert_int_equal(report.n_flushed, 1);
    assert_int_equal(report.n_missing, 3);
    assert_int_equal(report.n_failed, 1);
}

/* ---- the end ---- */

static void destroying_waits_for_one_store_and_drops_the_rest(void **state)
{
    (void)state;
    fault_tier_set(fault, store_delay_ns, 40 * RIG_MS);
    for (uint32_t i = 0; i < 8; i++) {
        rig_tokens(other, 128, 20 + i);
        assert_true(rig_put(&rig, other, 128, NULL, NULL));
    }
    await_storing();
    rig_stop(&rig);
    assert_int_equal(fault_tier_get(fault, &fault->n_storing), 0);
    assert_true(n_calls() < 8);
    firn_pool_stats stats;
    firn_pool_get_stats(rig.pool, &stats);
    assert_int_equal(stats.n_blocks, 0);
}

static void the_end_of_a_store_is_announced(void **state)
{
    (void)state;
    const uint32_t before = atomic_load(&rig.n_notified);
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    for (uint32_t i = 0; i < 4000 && atomic_load(&rig.n_notified) == before; i++) {
        rig_sleep(RIG_MS);
    }
    (void)firn_prefix_poll(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_blocks_are_stored_soon_and_tails_only_by_a_flush, start, stop),
        cmocka_unit_test_setup_teardown(one_job_covers_a_path_however_often_it_grew, start, stop),
        cmocka_unit_test_setup_teardown(a_duplicate_is_not_stored_again, start, stop),
        cmocka_unit_test_setup_teardown(restored_state_is_not_written_back, start, stop),
        cmocka_unit_test_setup_teardown(state_stays_readable_and_in_ram_until_it_is_stored, start, stop),
        cmocka_unit_test_setup_teardown(a_row_that_goes_on_does_not_change_what_is_being_stored, start, stop),
        cmocka_unit_test_setup_teardown(a_full_queue_loses_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_refusing_tier_is_tried_again_after_growing_bounded_pauses, start, stop),
        cmocka_unit_test_setup_teardown(an_ill_tier_is_probed_by_one_store_at_a_time, start, stop),
        cmocka_unit_test_setup_teardown(an_ill_tier_cannot_fill_ram_with_what_it_does_not_take, start, stop),
        cmocka_unit_test_setup_teardown(a_tier_that_hangs_cannot_fill_ram_either, start, stop),
        cmocka_unit_test_setup_teardown(old_tails_are_stored_before_they_are_in_the_way, start, stop),
        cmocka_unit_test_setup_teardown(a_shortage_has_unsaved_tails_stored, start, stop),
        cmocka_unit_test_setup_teardown(a_flush_reports_what_it_saved, start, stop),
        cmocka_unit_test_setup_teardown(a_flush_over_a_hanging_tier_keeps_its_bound, start, stop),
        cmocka_unit_test_setup_teardown(a_flush_over_a_refusing_tier_ends_at_once, start, stop),
        cmocka_unit_test_setup_teardown(a_flush_includes_the_tier_s_own, start, stop),
        cmocka_unit_test_setup_teardown(destroying_waits_for_one_store_and_drops_the_rest, start, stop),
        cmocka_unit_test_setup_teardown(the_end_of_a_store_is_announced, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
