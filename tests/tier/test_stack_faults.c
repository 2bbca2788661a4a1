/*
 * Stacks of which one tier fails, is lost, is full, or hangs: what is served, what is kept, and how long anybody waits.
 */
#include "tier/stack_rig.h"

static const firn_reason faults[] = { FIRN_REASON_DISK_FULL, FIRN_REASON_READ_ONLY, FIRN_REASON_GONE,
                                      FIRN_REASON_IO_ERROR,  FIRN_REASON_PINNED,    FIRN_REASON_PRIORITY };

static uint64_t now_ns(void)
{
    const firn_clock *clock = firn_clock_default();
    return clock->monotonic_ns(clock->ctx);
}

/* The same state in both, so that either can give it. */
static void store_in_both(stack_rig *rig, const firn_token *tokens, uint32_t n_tokens)
{
    assert_int_equal(fixture_store(&rig->fix, rig->disks[0], "", tokens, n_tokens), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig->fix, rig->disks[1], "", tokens, n_tokens), FIRN_REASON_NONE);
}

static void what_the_upper_refuses_the_lower_keeps_at_once(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "refused", NULL, FIXTURE_ALL);
    const uint32_t n = sizeof faults / sizeof faults[0];
    for (uint32_t i = 0; i < n; i++) {
        gate_set(rig.upper, refuse[GATE_STORE], faults[i]);
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 200 * i, 150), FIRN_REASON_NONE);
        assert_true(rig_has(rig.disks[1], rig.tokens + 200 * i, 150));
    }
    firn_stack_stats stats = rig_stats(&rig);
    assert_true(stats.n_stored_below == n && stats.n_copies_waiting == 0);
    /* When both refuse it is not kept, and the upper's reason says why. */
    gate_set(rig.lower, refuse[GATE_STORE], FIRN_REASON_READ_ONLY);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 2000, 150), faults[n - 1]);
    /* What is wrong with the state itself is no reason to ask another. */
    gate_set(rig.upper, refuse[GATE_STORE], FIRN_REASON_COUNT_MISMATCH);
    const uint32_t n_stores = gate_get(rig.lower, &rig.lower->n[GATE_STORE]);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 150), FIRN_REASON_COUNT_MISMATCH);
    assert_int_equal(gate_get(rig.lower, &rig.lower->n[GATE_STORE]), n_stores);
    firn_tier_stats sum;
    firn_tier_get_stats(rig.tier, &sum);
    assert_true(sum.n_stores == n && sum.n_store_refused == 2);
    rig_deinit(&rig);
}

/* Last logits of a prompt whose state the upper has evicted. */
static void attachments_find_the_state_that_they_are_of(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "attachments", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 150), FIRN_REASON_NONE);
    const firn_attachment attachment = { .schema = "test.1", .metadata = "abc", .n_metadata_bytes = 3 };
    firn_store_input input = { .tokens = rig.tokens, .n_tokens = 150, .attachments = &attachment, .n_attachments = 1 };
    firn_reason reason;
    assert_true(firn_tier_store(rig.tier, &input, &reason));
    const firn_match match = firn_tier_find_exact(rig.disks[1], rig.tokens, 150, "");
    firn_restored restored;
    assert_int_equal(firn_tier_restore(rig.disks[1], match.handle, 0, &restored), FIRN_REASON_NONE);
    assert_true(restored.n_attachments == 1 && memcmp(restored.attachments[0].metadata, "abc", 3) == 0);
    firn_restored_deinit(&restored);
    firn_tier_release(rig.disks[1], match.handle);
    input.tokens = rig.tokens + 500; /* of state that nobody has */
    assert_false(firn_tier_store(rig.tier, &input, &reason));
    assert_int_equal(reason, FIRN_REASON_FAMILY_MISSING);
    rig_deinit(&rig);
}

static void a_restore_that_fails_above_comes_from_below(void **unused)
{
    (void)unused;
    static const firn_reason reasons[] = { FIRN_REASON_CORRUPT, FIRN_REASON_IO_ERROR, FIRN_REASON_GONE };
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        stack_rig rig;
        rig_init(&rig, fixture_schema_names[schema], NULL, schema);
        store_in_both(&rig, rig.tokens, 200);
        for (uint32_t i = 0; i < 3; i++) {
            gate_set(rig.upper, refuse[GATE_RESTORE], reasons[i]);
            firn_reason reason;
            assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 201, &reason), 200);

            rig_answer answer;
            rig_answer_init(&answer);
            const firn_match match = firn_tier_find(rig.tier, rig.tokens, 201, "");
            const firn_restore_request request = { .done = rig_done, .progress = rig_progress, .ctx = &answer };
            assert_ok(firn_tier_restore_request(rig.tier, match.handle, &request, NULL));
            firn_tier_release(rig.tier, match.handle); /* the path is still known */
            assert_int_equal(rig_wait_answer(&answer), FIRN_REASON_NONE);
            fixture_assert_state(&rig.fix, &answer.restored, rig.tokens, 200);
            rig_answer_deinit(&answer);
        }
        assert_int_equal(rig_stats(&rig).n_fallbacks, 6);
        rig_deinit(&rig);
    }
}

static void damage_above_is_made_good_from_below(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "damage", NULL, FIXTURE_PLAIN);
    store_in_both(&rig, rig.tokens, 256);
    char path[900];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", rig.dirs[0]);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    for (long at = 0; at < 1 << 20; at += 4096 + 64) {
        (void)fseek(file, at, SEEK_SET);
        (void)fputc(0x5a, file);
        (void)fputc(0xa5, file);
    }
    assert_int_equal(fclose(file), 0);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 257, &reason), 256);
    assert_int_equal(rig_stats(&rig).n_fallbacks, 1);
    /* The promotion stores it anew in the place of what is damaged. */
    rig_wait_for(rig.disks[0], rig.tokens, 256);
    while (rig_stats(&rig).promoting_bytes > 0) {
        rig_nap();
    }
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 257, &reason), 256);
    assert_int_equal(fixture_fetch(&rig.fix, rig.disks[0], "", rig.tokens, 257, &reason), 256);
    rig_deinit(&rig);
}

static void a_lost_upper_is_served_around(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "lost", NULL, FIXTURE_STATES);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    test_dir_remove(rig.dirs[0]);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 201, &reason), 200);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 500, 100), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens + 500, 101, &reason), 100);
    firn_tier_stats sum;
    firn_tier_get_stats(rig.tier, &sum);
    assert_int_equal(sum.state, FIRN_REASON_GONE);
    assert_true(rig_stats(&rig).n_stored_below == 1);
    rig_deinit(&rig);
}

/* Its caches are those that `done` must bring: another tier's cannot take their place. */
static void a_restore_that_has_shown_layers_fails_where_it_began(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "shown", NULL, FIXTURE_PLAIN);
    store_in_both(&rig, rig.tokens, 200);
    rig.upper->show_then_fail = true;
    gate_set(rig.upper, refuse[GATE_RESTORE], FIRN_REASON_CORRUPT);
    rig_answer answer;
    rig_answer_init(&answer);
    const firn_match match = firn_tier_find(rig.tier, rig.tokens, 201, "");
    firn_restore_request request = {
        .done = rig_done, .progress = rig_progress, .ctx = &answer, .in_layer_order = true
    };
    assert_ok(firn_tier_restore_request(rig.tier, match.handle, &request, NULL));
    assert_int_equal(rig_wait_answer(&answer), FIRN_REASON_CORRUPT);
    assert_int_equal(answer.n_progress, 1);
    assert_int_equal(gate_get(rig.lower, &rig.lower->n[GATE_RESTORE]), 0);
    rig_answer_deinit(&answer);
    firn_tier_release(rig.tier, match.handle);
    rig_deinit(&rig);
}

static void nobody_falls_back_for_what_is_not_wanted_or_too_late(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "unwanted", NULL, FIXTURE_PLAIN);
    store_in_both(&rig, rig.tokens, 200);
    gate_set(rig.upper, refuse[GATE_RESTORE], FIRN_REASON_IO_ERROR);
    for (int late = 0; late < 2; late++) {
        rig_answer answer;
        rig_answer_init(&answer);
        answer.is_unwanted = !late;
        const firn_match match = firn_tier_find(rig.tier, rig.tokens, 201, "");
        const firn_restore_request request = {
            .done = rig_done, .is_wanted = rig_is_wanted, .ctx = &answer, .deadline_ns = late ? 1 : 0
        };
        assert_ok(firn_tier_restore_request(rig.tier, match.handle, &request, NULL));
        assert_int_equal(rig_wait_answer(&answer), FIRN_REASON_IO_ERROR);
        rig_answer_deinit(&answer);
        firn_tier_release(rig.tier, match.handle);
    }
    assert_int_equal(gate_get(rig.lower, &rig.lower->n[GATE_RESTORE]), 0);
    rig_deinit(&rig);
}

static void a_lower_that_hangs_costs_one_bound_and_the_upper_goes_on(void **unused)
{
    (void)unused;
    stack_rig rig;
    const uint64_t bound_ns = RIG_SECOND_NS / 10;
    const firn_stack_options options = { .lower_deadline_ns = bound_ns, .lower_store_ns = bound_ns };
    rig_init(&rig, "hanging lower", &options, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[0], "", rig.tokens, 100), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 300), FIRN_REASON_NONE);
    for (gate_call call = 0; call < GATE_CALLS; call++) {
        gate_set(rig.lower, hang[call], true);
    }
    const uint64_t started_ns = now_ns();
    firn_reason reason;
    for (uint32_t i = 0; i < 50; i++) { /* one of them waits */
        assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 100);
    }
    assert_int_equal(gate_get(rig.lower, &rig.lower->n[GATE_FIND]), 1);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 500, 100), FIRN_REASON_NONE);
    gate_set(rig.upper, refuse[GATE_STORE], FIRN_REASON_DISK_FULL);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 700, 100), FIRN_REASON_DISK_FULL);
    gate_set(rig.upper, refuse[GATE_STORE], FIRN_REASON_NONE);
    const firn_pin pin = { .name = "p", .tokens = rig.tokens, .n_tokens = 100, .until_wall_ns = UINT64_MAX / 2 };
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    assert_status(firn_tier_unpin(rig.tier, "p", NULL), FIRN_ERR_DEADLINE);
    const firn_flush_report report = firn_tier_flush(rig.tier, RIG_SECOND_NS / 10);
    assert_true(!report.durable && report.n_missing == 2);
    firn_stack_stats stats = rig_stats(&rig);
    assert_true(stats.is_lower_resting && stats.n_lower_late == 1 && stats.n_lower_skipped == 49);
    assert_int_equal(stats.lower.state, FIRN_REASON_DEADLINE);
    assert_true(now_ns() - started_ns < 10 * RIG_SECOND_NS);

    /* It comes back: what was given up gives its promise back, and it is asked again. */
    for (gate_call call = 0; call < GATE_CALLS; call++) {
        gate_set(rig.lower, hang[call], false);
    }
    while (rig_stats(&rig).is_lower_resting) {
        rig_nap();
    }
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 300);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    rig_deinit(&rig);
}

/* A store that was given up holds what it says when it comes to be. */
static void a_store_that_hangs_below_keeps_what_it_was_given(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .lower_store_ns = RIG_SECOND_NS / 20 };
    rig_init(&rig, "hanging store", &options, FIXTURE_PLAIN);
    gate_set(rig.upper, refuse[GATE_STORE], FIRN_REASON_GONE);
    gate_set(rig.lower, hang[GATE_STORE], true);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 150), FIRN_REASON_GONE);
    gate_set(rig.lower, hang[GATE_STORE], false);
    rig_wait_for(rig.disks[1], rig.tokens, 150);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.disks[1], "", rig.tokens, 151, &reason), 150);
    rig_deinit(&rig);
}

static void reads_that_come_too_late_rest_the_lower(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .no_promotion = true };
    rig_init(&rig, "late reads", &options, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[0], "", rig.tokens, 100), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 300), FIRN_REASON_NONE);
    gate_set(rig.lower, refuse[GATE_RESTORE], FIRN_REASON_DEADLINE);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_DEADLINE);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 100); /* not again at once */
    gate_set(rig.lower, refuse[GATE_RESTORE], FIRN_REASON_NONE);
    while (rig_stats(&rig).is_lower_resting) {
        rig_nap();
    }
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 300);
    rig_deinit(&rig);
}

static void the_end_of_a_stack_whose_lower_hangs_has_a_bound(void **unused)
{
    (void)unused;
    static stack_rig rig; /* what is left behind stays reachable */
    const firn_stack_options options = { .stop_ns = RIG_SECOND_NS / 5, .demote_idle_ns = 1 };
    rig_init(&rig, "end", &options, FIXTURE_PLAIN);
    gate_set(rig.lower, hang[GATE_STORE], true);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 150), FIRN_REASON_NONE);
    gate_wait_inside(rig.lower, GATE_STORE);
    const uint64_t started_ns = now_ns();
    firn_tier_destroy(rig.tier);
    assert_true(now_ns() - started_ns < 5 * RIG_SECOND_NS);
    /* The upper is closed in good order all the same: another process could open it now. */
    firn_tier *again = fixture_open(&rig.fix, rig.dirs[0], NULL);
    assert_true(rig_has(again, rig.tokens, 150));
    firn_tier_destroy(again);
    gate_set(rig.lower, hang[GATE_STORE], false); /* and whoever was left behind lets go */
    firn_pool_stats pool;
    do {
        rig_nap();
        firn_pool_get_stats(rig.fix.pool, &pool);
    } while (pool.n_blocks > 0);
    rig_wait_for(rig.disks[1], rig.tokens, 150);
    firn_tier_destroy(&rig.lower->tier);
    fixture_deinit(&rig.fix);
    for (int i = 0; i < 2; i++) {
        test_dir_remove(rig.dirs[i]);
        free(rig.dirs[i]);
    }
}

static void stores_wait_for_the_copying_within_a_bound(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .store_wait_ns = RIG_SECOND_NS / 5 };
    rig_init(&rig, "wait", &options, FIXTURE_PLAIN);
    /* An upper that holds a few blocks only, and a lower that takes its time. */
    rig.upper->stats = (firn_tier_stats){ .budget_bytes = 100000, .physical_bytes = 10 };
    gate_set(rig.upper, fake_stats, true);
    gate_set(rig.lower, hang[GATE_STORE], true);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 1000), FIRN_REASON_NONE);
    gate_wait_inside(rig.lower, GATE_STORE); /* so much of the budget is copied at once */
    const uint64_t started_ns = now_ns();
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 1000, 100), FIRN_REASON_NONE);
    const uint64_t waited_ns = now_ns() - started_ns;
    assert_true(waited_ns >= RIG_SECOND_NS / 5 && waited_ns < 10 * RIG_SECOND_NS);
    const uint64_t again_ns = now_ns(); /* nobody waits again before something has been copied */
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 1100, 100), FIRN_REASON_NONE);
    assert_true(now_ns() - again_ns < waited_ns);
    gate_set(rig.lower, hang[GATE_STORE], false);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    rig_deinit(&rig);
}

static void what_was_lost_before_it_was_copied_is_counted(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "n_lost", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 100), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 200, 100), FIRN_REASON_NONE);
    firn_disk_prune_report pruned;
    const firn_disk_prune_options all = { .to_bytes = 1 };
    assert_ok(firn_disk_prune(rig.disks[0], &all, &pruned, NULL));
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 100), FIRN_REASON_NONE);
    const firn_flush_report report = firn_tier_flush(rig.tier, RIG_LONG_NS);
    assert_true(!report.durable && report.n_failed == 1 && report.n_missing == 0);
    const firn_stack_stats stats = rig_stats(&rig);
    assert_true(stats.n_lost == 1 && stats.n_copied == 1); /* one of the two was below after all */
    rig_deinit(&rig);
}

int main(void)
{
    rig_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_upper_refuses_the_lower_keeps_at_once),
        cmocka_unit_test(attachments_find_the_state_that_they_are_of),
        cmocka_unit_test(a_restore_that_fails_above_comes_from_below),
        cmocka_unit_test(damage_above_is_made_good_from_below),
        cmocka_unit_test(a_lost_upper_is_served_around),
        cmocka_unit_test(a_restore_that_has_shown_layers_fails_where_it_began),
        cmocka_unit_test(nobody_falls_back_for_what_is_not_wanted_or_too_late),
        cmocka_unit_test(a_lower_that_hangs_costs_one_bound_and_the_upper_goes_on),
        cmocka_unit_test(a_store_that_hangs_below_keeps_what_it_was_given),
        cmocka_unit_test(reads_that_come_too_late_rest_the_lower),
        cmocka_unit_test(the_end_of_a_stack_whose_lower_hangs_has_a_bound),
        cmocka_unit_test(stores_wait_for_the_copying_within_a_bound),
        cmocka_unit_test(what_was_lost_before_it_was_copied_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
