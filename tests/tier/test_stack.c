/*
 * Stacks of two healthy disks: which of them answers, what goes up, what goes down and when, and what the figures say.
 */
#include "tier/stack_rig.h"

static void a_stack_says_which_tiers_cannot_lie_over_each_other(void **unused)
{
    (void)unused;
    fixture a, b;
    const fixture_options other = { .weights = "w2" };
    fixture_init(&a, NULL, &(fixture_options){ 0 });
    fixture_init(&b, NULL, &other);
    char *dirs[2] = { test_dir_create(), test_dir_create() };
    firn_tier *upper = fixture_open(&a, dirs[0], NULL), *lower = fixture_open(&b, dirs[1], NULL), *tier;
    firn_error err = { 0 };
    firn_stack_options options = { .upper = upper, .lower = lower };
    assert_status(firn_stack_create(&options, NULL, &tier, &err), FIRN_ERR_SIGNATURE);
    assert_null(tier);
    assert_non_null(strstr(err.message, "weights: w1 here, w2 there"));
    options.lower = NULL;
    assert_status(firn_stack_create(&options, NULL, &tier, &err), FIRN_ERR_INVALID);
    options.lower = upper;
    assert_status(firn_stack_create(&options, NULL, &tier, &err), FIRN_ERR_INVALID);
    firn_stack_stats stats;
    assert_false(firn_stack_get_stats(upper, &stats));
    firn_tier_destroy(upper);
    firn_tier_destroy(lower);
    for (int i = 0; i < 2; i++) {
        test_dir_remove(dirs[i]);
        free(dirs[i]);
    }
    fixture_deinit(&a);
    fixture_deinit(&b);
}

static void the_lower_is_asked_only_for_what_the_upper_lacks(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .no_promotion = true };
    rig_init(&rig, "asked", &options, FIXTURE_PLAIN);
    firn_reason reason;
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 300), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 301, &reason), 300);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 200, &reason), 199);
    assert_true(rig_has(rig.tier, rig.tokens, 300));
    assert_int_equal(rig.lower->n[GATE_FIND], 0);
    assert_true(rig_stats(&rig).n_hits_upper == 3 && rig_stats(&rig).n_lower_finds == 0);

    /* The lower has more of the same, and something of its own. */
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 500), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens + 1000, 90), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 600, &reason), 500);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens + 1000, 90, &reason), 89);
    assert_int_equal(rig_stats(&rig).n_hits_lower, 2);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "other", rig.tokens, 600, &reason), 0);
    rig_deinit(&rig);
}

/* Both know something of a prompt: the answer explains with what agrees longest. */
static void a_miss_keeps_the_more_telling_reason(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "reasons", NULL, FIXTURE_PLAIN);
    firn_token prompt[400];
    memcpy(prompt, rig.tokens, sizeof prompt);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[0], "", rig.tokens, 100), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 300), FIRN_REASON_NONE);
    prompt[210]++;
    firn_match match = firn_tier_find(rig.tier, prompt, 400, "");
    assert_int_equal(match.prefix_len, 210);
    assert_int_equal(match.matched_len, 210);
    assert_int_equal(match.reason, FIRN_REASON_DIVERGED);
    assert_true(match.diverged && match.stored_token == rig.tokens[210]);
    firn_tier_release(rig.tier, match.handle);

    gate_set(rig.upper, refuse[GATE_FIND], FIRN_REASON_IO_ERROR);
    match = firn_tier_find(rig.tier, rig.tokens + 500, 100, "");
    assert_null(match.handle);
    assert_int_equal(match.reason, FIRN_REASON_IO_ERROR);
    match = firn_tier_find(rig.tier, rig.tokens, 100, ""); /* and the lower serves alone */
    assert_int_equal(match.prefix_len, 99);
    assert_int_equal(match.reason, FIRN_REASON_NONE);
    firn_tier_release(rig.tier, match.handle);
    firn_tier_stats stats;
    firn_tier_get_stats(rig.tier, &stats);
    assert_int_equal(stats.miss_reasons[FIRN_REASON_IO_ERROR], 1);
    assert_true(stats.n_hits == 2 && stats.n_misses == 1);
    rig_deinit(&rig);
}

static void what_comes_from_the_lower_is_promoted(void **unused)
{
    (void)unused;
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        stack_rig rig;
        rig_init(&rig, fixture_schema_names[schema], NULL, schema);
        float data[2] = { 1.5f, -2.0f };
        const firn_tensor tensor = {
            .dtype = FIRN_DTYPE_F32, .n_dims = 1, .shape = { 2 }, .data = data, .n_bytes = sizeof data
        };
        const firn_attachment attachment = {
            .schema = "test.1", .metadata = "abc", .n_metadata_bytes = 3, .tensors = &tensor, .n_tensors = 1
        };
        firn_reason reason;
        assert_true(fixture_store_with(&rig.fix, rig.disks[1], "", rig.tokens, 200, &attachment, 1, &reason));
        assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 201, &reason), 200);
        rig_wait_for(rig.disks[0], rig.tokens, 200);
        while (rig_stats(&rig).n_promoted == 0) {
            rig_nap();
        }
        /* The upper has it to the bit, attachments included, and gives it from now on. */
        const firn_match match = firn_tier_find_exact(rig.disks[0], rig.tokens, 200, "");
        firn_restored restored;
        assert_int_equal(firn_tier_restore(rig.disks[0], match.handle, 0, &restored), FIRN_REASON_NONE);
        fixture_assert_state(&rig.fix, &restored, rig.tokens, 200);
        assert_int_equal(restored.n_attachments, 1);
        assert_memory_equal(restored.attachments[0].tensors[0].data, data, sizeof data);
        assert_memory_equal(restored.attachments[0].metadata, "abc", 3);
        firn_restored_deinit(&restored);
        firn_tier_release(rig.disks[0], match.handle);
        assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 201, &reason), 200);
        const firn_stack_stats stats = rig_stats(&rig);
        assert_true(stats.n_hits_lower == 1 && stats.n_hits_upper == 1);
        /* It is below already: nothing waits to go there, and no block is held. */
        assert_true(stats.n_copies_waiting == 0 && stats.promoting_bytes == 0);
        rig_deinit(&rig);
    }
}

static void promotion_holds_up_nobody_and_has_a_bound(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .promotions_max = 2 };
    rig_init(&rig, "bound", &options, FIXTURE_PLAIN);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens + 300 * i, 130), FIRN_REASON_NONE);
    }
    gate_set(rig.upper, hang[GATE_STORE], true);
    firn_reason reason;
    for (uint32_t i = 0; i < 6; i++) {
        const firn_token *tokens = rig.tokens + 300 * i;
        assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", tokens, 131, &reason), 130);
    }
    gate_wait_inside(rig.upper, GATE_STORE);
    firn_stack_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_promotions_dropped, 4);
    assert_true(stats.promoting_bytes > 0 && stats.promoting_bytes <= UINT64_C(256) << 20);
    firn_pool_stats pool; /* and nothing of the pool that requests live on */
    firn_pool_get_stats(rig.fix.pool, &pool);
    assert_int_equal(pool.n_blocks, 0);

    gate_set(rig.upper, hang[GATE_STORE], false);
    rig_wait_for(rig.disks[0], rig.tokens, 130);
    rig_wait_for(rig.disks[0], rig.tokens + 300, 130);
    assert_int_equal(fixture_fetch(&rig.fix, rig.disks[0], "", rig.tokens, 131, &reason), 130);
    while (rig_stats(&rig).promoting_bytes > 0) {
        rig_nap();
    }

    /* An upper that refuses is left alone for a while. */
    gate_set(rig.upper, refuse[GATE_STORE], FIRN_REASON_DISK_FULL);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens + 600, 131, &reason), 130);
    while (rig_stats(&rig).n_promotions_failed == 0) {
        rig_nap();
    }
    const uint32_t n_stores = gate_get(rig.upper, &rig.upper->n[GATE_STORE]);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens + 900, 131, &reason), 130);
    stats = rig_stats(&rig);
    assert_int_equal(stats.n_promotions_dropped, 5);
    assert_int_equal(gate_get(rig.upper, &rig.upper->n[GATE_STORE]), n_stores);
    rig_deinit(&rig);
}

/* The caller's caches share their blocks with what is on its way up, until the caller writes. */
static void what_was_written_to_after_a_restore_is_not_promoted(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "written", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 100), FIRN_REASON_NONE);
    gate_set(rig.upper, hang[GATE_STORE], true);
    const firn_match match = firn_tier_find(rig.tier, rig.tokens, 101, "");
    firn_restored restored;
    assert_int_equal(firn_tier_restore(rig.tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    firn_tier_release(rig.tier, match.handle);
    float garbage[5 * 16];
    for (uint32_t i = 0; i < 5 * 16; i++) {
        garbage[i] = 77.0f;
    }
    const uint32_t n = 5;
    for (uint32_t i = 0; i < restored.n_caches; i++) {
        assert_ok(firn_cache_trim_row(restored.caches[i], 0, 20, NULL));
        const firn_append_input input = { .k = garbage, .v = garbage };
        assert_ok(firn_cache_append(restored.caches[i], &input, &n, NULL, NULL));
    }
    firn_restored_deinit(&restored);
    gate_set(rig.upper, hang[GATE_STORE], false);
    rig_wait_for(rig.disks[0], rig.tokens, 100);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.disks[0], "", rig.tokens, 101, &reason), 100);
    rig_deinit(&rig);
}

static void an_idle_stack_copies_down_and_a_busy_one_does_not(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "busy", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    for (int i = 0; i < 20; i++) {
        rig_nap();
    }
    assert_false(rig_has(rig.disks[1], rig.tokens, 200));
    assert_int_equal(rig_stats(&rig).n_copies_waiting, 1);
    rig_deinit(&rig);

    const firn_stack_options idle = { .demote_idle_ns = 20000000 };
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        rig_init(&rig, "idle", &idle, schema);
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
        rig_wait_for(rig.disks[1], rig.tokens, 200);
        firn_reason reason;
        assert_int_equal(fixture_fetch(&rig.fix, rig.disks[1], "", rig.tokens, 201, &reason), 200);
        rig_deinit(&rig);
    }
}

static void a_flush_copies_what_is_left_and_says_what_is_missing(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "flush", NULL, FIXTURE_PLAIN);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 200 * i, 150), FIRN_REASON_NONE);
    }
    firn_flush_report report = firn_tier_flush(rig.tier, RIG_LONG_NS);
    assert_true(report.durable);
    assert_true(report.n_flushed == 5 && report.n_missing == 0 && report.n_failed == 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(rig_has(rig.disks[1], rig.tokens + 200 * i, 150));
    }
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable); /* nothing to do */

    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 1000, 150), FIRN_REASON_NONE);
    gate_set(rig.lower, refuse[GATE_STORE], FIRN_REASON_DISK_FULL);
    report = firn_tier_flush(rig.tier, RIG_LONG_NS);
    assert_false(report.durable);
    assert_true(report.n_missing == 1 && report.elapsed_ns < RIG_LONG_NS / 2);
    gate_set(rig.lower, refuse[GATE_STORE], FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_true(rig_has(rig.disks[1], rig.tokens + 1000, 150));
    assert_int_equal(rig_stats(&rig).n_copied, 6);
    rig_deinit(&rig);
}

static void a_conversation_that_grows_is_copied_once_and_written_as_a_delta(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "grows", NULL, FIXTURE_PLAIN);
    for (uint32_t n = 64; n <= 1024; n += 64) {
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, n), FIRN_REASON_NONE);
    }
    assert_int_equal(rig_stats(&rig).n_copies_waiting, 1);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    firn_stack_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_copied, 1);
    const uint64_t first_bytes = stats.lower.written_bytes;
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 1088), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    stats = rig_stats(&rig);
    assert_true(stats.lower.written_bytes - first_bytes <= first_bytes / 16 + 4096);
    assert_true(stats.lower.written_bytes * 10 <= stats.lower.unique_bytes * 11);
    rig_deinit(&rig);

    /* States can be resumed at their own counts alone: each of them goes down. */
    rig_init(&rig, "states grow", NULL, FIXTURE_STATES);
    for (uint32_t n = 64; n <= 256; n += 64) {
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, n), FIRN_REASON_NONE);
    }
    assert_int_equal(rig_stats(&rig).n_copies_waiting, 4);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    for (uint32_t n = 64; n <= 256; n += 64) {
        assert_true(rig_has(rig.disks[1], rig.tokens, n));
    }
    rig_deinit(&rig);
}

static void attachments_that_are_worth_least_stay_above(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "least", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 300), FIRN_REASON_NONE);
    const firn_attachment note = { .schema = "firn.note.1" };
    firn_store_input input = { .tokens = rig.tokens, .n_tokens = 200, .attachments = &note, .n_attachments = 1,
                               .priority = FIRN_PRIORITY_MIN };
    firn_reason reason;
    assert_true(firn_tier_store(rig.tier, &input, &reason));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(rig_stats(&rig).n_copied, 1);
    assert_true(rig_has(rig.disks[1], rig.tokens, 300));
    /* Those that somebody may need go down as state does. */
    input.priority = 0;
    assert_true(firn_tier_store(rig.tier, &input, &reason));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(rig_stats(&rig).n_copied, 2);
    rig_deinit(&rig);
}

static void *let_go(void *ctx)
{
    for (int i = 0; i < 25; i++) {
        rig_nap();
    }
    gate_tier *upper = ctx;
    gate_set(upper, hang[GATE_RESTORE], false);
    return NULL;
}

/* The copier reads in the upper what a store replaces there. */
static void copying_down_refuses_no_store(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .demote_idle_ns = 1, .store_wait_ns = RIG_LONG_NS };
    rig_init(&rig, "replaced", &options, FIXTURE_PLAIN);
    gate_set(rig.upper, hang[GATE_RESTORE], true);
    const char *texts[2] = { "one", "two" };
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        const firn_attachment attachment = { .schema = "test.1", .metadata = texts[i], .n_metadata_bytes = 3 };
        firn_reason reason;
        assert_true(fixture_store_with(&rig.fix, rig.tier, "", rig.tokens, 150, &attachment, 1, &reason));
        if (i == 0) {
            gate_wait_inside(rig.upper, GATE_RESTORE);
            assert_int_equal(pthread_create(&thread, NULL, let_go, rig.upper), 0);
        }
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    for (int i = 0; i < 2; i++) {
        const firn_match match = firn_tier_find_exact(rig.disks[i], rig.tokens, 150, "");
        firn_restored restored;
        assert_int_equal(firn_tier_restore(rig.disks[i], match.handle, 0, &restored), FIRN_REASON_NONE);
        assert_memory_equal(restored.attachments[0].metadata, "two", 3);
        firn_restored_deinit(&restored);
        firn_tier_release(rig.disks[i], match.handle);
    }
    rig_deinit(&rig);
}

/* Somebody reads in the lower what a copy replaces there: it is put off, not dropped. */
static void a_copy_waits_for_who_reads_below(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "read below", NULL, FIXTURE_PLAIN);
    const firn_attachment attachment = { .schema = "test.1", .metadata = "one", .n_metadata_bytes = 3 };
    firn_reason reason;
    assert_true(fixture_store_with(&rig.fix, rig.disks[1], "", rig.tokens, 150, &attachment, 1, &reason));
    assert_true(fixture_store_with(&rig.fix, rig.tier, "", rig.tokens, 150, &attachment, 1, &reason));
    const firn_match match = firn_tier_find_exact(rig.disks[1], rig.tokens, 150, "");
    assert_int_equal(firn_tier_flush(rig.tier, RIG_LONG_NS).n_missing, 1);
    firn_tier_release(rig.disks[1], match.handle);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(rig_stats(&rig).n_copies_dropped, 0);
    rig_deinit(&rig);
}

static void the_list_of_what_waits_is_bounded_and_counted(void **unused)
{
    (void)unused;
    stack_rig rig;
    const firn_stack_options options = { .copies_max = 4 };
    rig_init(&rig, "list", &options, FIXTURE_PLAIN);
    gate_set(rig.lower, refuse[GATE_STORE], FIRN_REASON_READ_ONLY); /* or a half full list would be copied at once */
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens + 100 * i, 70), FIRN_REASON_NONE);
    }
    firn_stack_stats stats = rig_stats(&rig);
    assert_true(stats.n_copies_waiting <= 5 && stats.n_copies_dropped >= 4);
    assert_int_equal(stats.n_copies_waiting + stats.n_copies_dropped, 9);
    gate_set(rig.lower, refuse[GATE_STORE], FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    stats = rig_stats(&rig);
    assert_int_equal(stats.n_copied + stats.n_copies_dropped, 9);
    /* What was dropped goes down with the next store that continues it. */
    assert_false(rig_has(rig.disks[1], rig.tokens, 70));
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 75), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_true(rig_has(rig.disks[1], rig.tokens, 70));
    rig_deinit(&rig);
}

/* The pool is full of what requests hold: state goes down all the same, and takes nothing of it. */
static void copying_needs_nothing_of_the_pool(void **unused)
{
    (void)unused;
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        stack_rig rig;
        rig_init(&rig, fixture_schema_names[schema], NULL, schema);
        assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
        firn_block *hog;
        assert_ok(firn_block_alloc(rig.fix.pool, firn_pool_room(rig.fix.pool), &hog, NULL));
        assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
        firn_block_release(hog);
        firn_reason reason;
        assert_int_equal(fixture_fetch(&rig.fix, rig.disks[1], "", rig.tokens, 201, &reason), 200);
        rig_deinit(&rig);
    }
    /* What is larger than its own bound stays above, which a flush says. */
    stack_rig rig;
    const firn_stack_options options = { .copy_bytes_max = 8192 };
    rig_init(&rig, "too large", &options, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    const firn_flush_report report = firn_tier_flush(rig.tier, RIG_LONG_NS);
    assert_true(!report.durable && report.n_missing == 1);
    assert_true(rig_has(rig.disks[0], rig.tokens, 200));
    rig_deinit(&rig);
}

static void a_new_process_finds_what_either_holds(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "reopen", NULL, FIXTURE_ALL);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 180), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens + 500, 180), FIRN_REASON_NONE);
    firn_tier_destroy(rig.tier);
    rig_open(&rig, NULL, NULL);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens, 181, &reason), 180);
    assert_int_equal(fixture_fetch(&rig.fix, rig.tier, "", rig.tokens + 500, 181, &reason), 180);
    rig_deinit(&rig);
}

static void the_figures_are_those_of_both(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "figures", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 128), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    firn_tier_stats sum;
    firn_tier_get_stats(rig.tier, &sum);
    const firn_stack_stats both = rig_stats(&rig);
    assert_int_equal(both.upper.n_records, 2);
    assert_int_equal(sum.n_records, 4);
    assert_int_equal(sum.n_stores, 1);
    assert_int_equal(sum.budget_bytes, both.upper.budget_bytes + both.lower.budget_bytes);
    assert_true(sum.physical_bytes > both.upper.physical_bytes && sum.state == FIRN_REASON_NONE);
    gate_set(rig.lower, refuse[GATE_STATS], FIRN_REASON_DISK_FULL);
    firn_tier_get_stats(rig.tier, &sum);
    assert_int_equal(sum.state, FIRN_REASON_DISK_FULL);
    gate_set(rig.upper, refuse[GATE_STATS], FIRN_REASON_GONE);
    firn_tier_get_stats(rig.tier, &sum);
    assert_int_equal(sum.state, FIRN_REASON_GONE);
    assert_non_null(firn_tier_schema(rig.tier));
    rig_deinit(&rig);
}

int main(void)
{
    rig_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stack_says_which_tiers_cannot_lie_over_each_other),
        cmocka_unit_test(the_lower_is_asked_only_for_what_the_upper_lacks),
        cmocka_unit_test(a_miss_keeps_the_more_telling_reason),
        cmocka_unit_test(what_comes_from_the_lower_is_promoted),
        cmocka_unit_test(promotion_holds_up_nobody_and_has_a_bound),
        cmocka_unit_test(what_was_written_to_after_a_restore_is_not_promoted),
        cmocka_unit_test(an_idle_stack_copies_down_and_a_busy_one_does_not),
        cmocka_unit_test(a_flush_copies_what_is_left_and_says_what_is_missing),
        cmocka_unit_test(a_conversation_that_grows_is_copied_once_and_written_as_a_delta),
        cmocka_unit_test(attachments_that_are_worth_least_stay_above),
        cmocka_unit_test(copying_down_refuses_no_store),
        cmocka_unit_test(a_copy_waits_for_who_reads_below),
        cmocka_unit_test(the_list_of_what_waits_is_bounded_and_counted),
        cmocka_unit_test(copying_needs_nothing_of_the_pool),
        cmocka_unit_test(a_new_process_finds_what_either_holds),
        cmocka_unit_test(the_figures_are_those_of_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
