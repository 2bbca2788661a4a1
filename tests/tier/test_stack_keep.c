/*
 * What a stack keeps by name: where it is put, where it is found, what a lost tier takes along, what is removed.
 */
#include "tier/stack_rig.h"

#define UNTIL_NS (UINT64_MAX / 2)

typedef struct names {
    uint32_t n;
    char all[16][16];
    uint32_t n_tokens[16];
} names;

static bool add_name(names *list, const char *name, uint32_t n_tokens)
{
    assert_true(list->n < 16);
    list->n_tokens[list->n] = n_tokens;
    (void)snprintf(list->all[list->n++], sizeof list->all[0], "%s", name);
    return true;
}

static bool add_pin(void *ctx, const firn_pin *pin)
{
    return add_name(ctx, pin->name, pin->n_tokens);
}

static bool add_session(void *ctx, const firn_session *session)
{
    return add_name(ctx, session->id, session->n_tokens);
}

static bool add_object(void *ctx, const firn_object *object)
{
    return add_name(ctx, object->key, 0);
}

static uint32_t n_pins(firn_tier *tier)
{
    names list = { .n = 0 };
    assert_ok(firn_tier_each_pin(tier, add_pin, &list, NULL));
    return list.n;
}

static firn_pin make_pin(const stack_rig *rig, const char *name, uint32_t n_tokens)
{
    return (firn_pin){ .name = name, .tokens = rig->tokens, .n_tokens = n_tokens, .until_wall_ns = UNTIL_NS };
}

static void a_pin_follows_its_path_down(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "pin", NULL, FIXTURE_ALL);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    firn_pin pin = make_pin(&rig, "p", 200);
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    assert_true(n_pins(rig.disks[0]) == 1 && n_pins(rig.disks[1]) == 0);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(n_pins(rig.disks[1]), 1);
    assert_int_equal(n_pins(rig.tier), 1); /* once, though both have it */
    firn_tier_stats stats;
    firn_tier_get_stats(rig.tier, &stats);
    assert_int_equal(stats.n_pins, 1);

    /* A lost upper does not take it along. */
    test_dir_remove(rig.dirs[0]);
    assert_int_equal(n_pins(rig.tier), 1);
    assert_true(rig_has(rig.tier, rig.tokens, 200));
    rig_deinit(&rig);
}

static void what_has_a_name_goes_down_after_a_crash(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "crash", NULL, FIXTURE_ALL);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "n", rig.tokens + 500, 150), FIRN_REASON_NONE);
    const firn_pin pin = make_pin(&rig, "p", 200);
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    firn_session session = { .id = "a", .ns = "n", .tokens = rig.tokens + 500, .n_tokens = 150, .used_wall_ns = 7 };
    assert_ok(firn_tier_put_session(rig.tier, &session, NULL));
    session.id = "evicted long ago";
    session.n_tokens = 151;
    assert_ok(firn_tier_put_session(rig.tier, &session, NULL));
    firn_tier_destroy(rig.tier); /* without a flush the list is lost, as in a crash */
    rig_open(&rig, NULL, NULL);
    assert_false(rig_has(rig.disks[1], rig.tokens, 200));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_true(rig_has(rig.disks[1], rig.tokens, 200) && n_pins(rig.disks[1]) == 1);
    const firn_match match = firn_tier_find_exact(rig.disks[1], rig.tokens + 500, 150, "n");
    assert_non_null(match.handle);
    firn_tier_release(rig.disks[1], match.handle);
    assert_int_equal(rig_stats(&rig).n_lost, 0);
    rig_deinit(&rig);
}

static void a_pin_that_was_removed_does_not_come_back(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "unpin", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    firn_pin pin = make_pin(&rig, "p", 200);
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    assert_ok(firn_tier_unpin(rig.tier, "p", NULL)); /* before it went down */
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(n_pins(rig.tier), 0);
    assert_true(rig_has(rig.disks[1], rig.tokens, 200)); /* the path did */

    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    gate_set(rig.lower, hang[GATE_FIND], true); /* while it goes down */
    pin.name = "q";
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    (void)firn_tier_flush(rig.tier, 1);
    gate_set(rig.lower, hang[GATE_FIND], false);
    assert_ok(firn_tier_unpin(rig.tier, "p", NULL));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    names list = { .n = 0 };
    assert_ok(firn_tier_each_pin(rig.tier, add_pin, &list, NULL));
    assert_true(list.n == 1 && strcmp(list.all[0], "q") == 0);

    assert_ok(firn_tier_unpin(rig.tier, "q", NULL)); /* after */
    assert_true(n_pins(rig.disks[0]) == 0 && n_pins(rig.disks[1]) == 0);
    assert_status(firn_tier_unpin(rig.tier, "q", NULL), FIRN_ERR_NOT_FOUND);

    /* One that the lower did not confirm is an error, and can be repeated. */
    assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    gate_set(rig.lower, refuse[GATE_KEEP], FIRN_REASON_IO_ERROR);
    assert_status(firn_tier_unpin(rig.tier, "q", NULL), FIRN_ERR_IO);
    gate_set(rig.lower, refuse[GATE_KEEP], FIRN_REASON_NONE);
    assert_ok(firn_tier_unpin(rig.tier, "q", NULL));
    assert_int_equal(n_pins(rig.tier), 0);
    rig_deinit(&rig);
}

static void a_name_that_is_pinned_anew_means_the_new_path_in_both(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "anew", NULL, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 200), FIRN_REASON_NONE);
    for (uint32_t n = 100; n <= 200; n += 50) {
        const firn_pin pin = make_pin(&rig, "p", n);
        assert_ok(firn_tier_pin(rig.tier, &pin, NULL));
    }
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    for (int i = 0; i < 2; i++) {
        names list = { .n = 0 };
        assert_ok(firn_tier_each_pin(rig.disks[i], add_pin, &list, NULL));
        assert_true(list.n == 1 && list.n_tokens[0] == 200);
    }
    rig_deinit(&rig);
}

static void what_only_the_lower_has_can_be_pinned(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "pin below", NULL, FIXTURE_PLAIN);
    firn_error err = { 0 };
    const firn_pin pin = make_pin(&rig, "p", 200);
    assert_status(firn_tier_pin(rig.tier, &pin, &err), FIRN_ERR_NOT_FOUND);
    assert_int_equal(fixture_store(&rig.fix, rig.disks[1], "", rig.tokens, 200), FIRN_REASON_NONE);
    assert_ok(firn_tier_pin(rig.tier, &pin, &err));
    assert_true(n_pins(rig.disks[0]) == 0 && n_pins(rig.disks[1]) == 1 && n_pins(rig.tier) == 1);
    rig_deinit(&rig);
}

static void note_tokens(void *ctx, const firn_session *session)
{
    *(uint32_t *)ctx = session->n_tokens;
}

static void sessions_are_the_uppers_while_it_takes_them(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "sessions", NULL, FIXTURE_PLAIN);
    firn_session session = { .id = "a", .ns = "n", .tokens = rig.tokens, .n_tokens = 50, .used_wall_ns = 7 };
    assert_ok(firn_tier_put_session(rig.tier, &session, NULL));
    gate_set(rig.upper, refuse[GATE_KEEP], FIRN_REASON_DISK_FULL);
    session.id = "b";
    session.n_tokens = 60;
    assert_ok(firn_tier_put_session(rig.tier, &session, NULL));
    gate_set(rig.upper, refuse[GATE_KEEP], FIRN_REASON_NONE);
    uint32_t n = 0;
    assert_ok(firn_tier_get_session(rig.tier, "n", "a", note_tokens, &n, NULL));
    assert_int_equal(n, 50);
    assert_ok(firn_tier_get_session(rig.tier, "n", "b", note_tokens, &n, NULL));
    assert_int_equal(n, 60);
    assert_status(firn_tier_get_session(rig.tier, "", "b", note_tokens, &n, NULL), FIRN_ERR_NOT_FOUND);
    names list = { .n = 0 };
    assert_ok(firn_tier_each_session(rig.tier, add_session, &list, NULL));
    assert_true(list.n == 2 && strcmp(list.all[0], "a") == 0 && strcmp(list.all[1], "b") == 0);
    assert_ok(firn_tier_remove_session(rig.tier, "n", "a", NULL));
    assert_ok(firn_tier_remove_session(rig.tier, "n", "b", NULL));
    assert_status(firn_tier_remove_session(rig.tier, "n", "b", NULL), FIRN_ERR_NOT_FOUND);
    assert_status(firn_tier_get_session(rig.tier, "n", "b", note_tokens, &n, NULL), FIRN_ERR_NOT_FOUND);
    rig_deinit(&rig);
}

static bool put(firn_tier *tier, const char *key, const char *text)
{
    const firn_attachment attachment = {
        .schema = "test.1", .metadata = text, .n_metadata_bytes = (uint32_t)strlen(text)
    };
    const firn_object object = { .key = key, .attachments = &attachment, .n_attachments = 1 };
    firn_reason reason;
    return firn_tier_put_object(tier, &object, &reason);
}

static bool holds(firn_tier *tier, const char *key, const char *text)
{
    firn_restored restored;
    const bool found = firn_tier_get_object(tier, "", key, &restored) == FIRN_REASON_NONE;
    const bool same = found && restored.n_attachments == 1 &&
                      restored.attachments[0].n_metadata_bytes == strlen(text) &&
                      memcmp(restored.attachments[0].metadata, text, strlen(text)) == 0;
    firn_restored_deinit(&restored);
    return same;
}

static void objects_are_in_both_and_the_newer_counts(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "objects", NULL, FIXTURE_PLAIN);
    assert_true(put(rig.tier, "k", "one") && put(rig.tier, "k", "two"));
    assert_true(holds(rig.disks[0], "k", "two") && holds(rig.disks[1], "k", "two") && holds(rig.tier, "k", "two"));
    gate_set(rig.upper, refuse[GATE_KEEP], FIRN_REASON_DISK_FULL);
    assert_true(put(rig.tier, "only", "below") && holds(rig.tier, "only", "below") && holds(rig.tier, "k", "two"));
    gate_set(rig.upper, refuse[GATE_KEEP], FIRN_REASON_NONE);

    /* A read that fails above comes from below, also asynchronously. */
    gate_set(rig.upper, refuse[GATE_RESTORE], FIRN_REASON_CORRUPT);
    firn_reason reason;
    firn_tier_handle *handle = firn_tier_find_object(rig.tier, "", "k", &reason);
    assert_non_null(handle);
    rig_answer answer;
    rig_answer_init(&answer);
    assert_ok(firn_tier_restore_object_async(rig.tier, handle, 0, rig_done, &answer, NULL));
    firn_tier_release(rig.tier, handle);
    assert_int_equal(rig_wait_answer(&answer), FIRN_REASON_NONE);
    assert_memory_equal(answer.restored.attachments[0].metadata, "two", 3);
    rig_answer_deinit(&answer);
    gate_set(rig.upper, refuse[GATE_RESTORE], FIRN_REASON_NONE);

    names list = { .n = 0 };
    assert_ok(firn_tier_each_object(rig.tier, add_object, &list, NULL));
    assert_int_equal(list.n, 2);
    firn_status removed; /* BUSY: the read's own promise ends a moment after its answer */
    while ((removed = firn_tier_remove_object(rig.tier, "", "k", NULL)) == FIRN_ERR_BUSY) {
        rig_nap();
    }
    assert_ok(removed);
    assert_false(holds(rig.tier, "k", "two") || holds(rig.disks[1], "k", "two"));
    assert_ok(firn_tier_remove_object(rig.tier, "", "only", NULL));
    assert_status(firn_tier_remove_object(rig.tier, "", "only", NULL), FIRN_ERR_NOT_FOUND);
    test_dir_remove(rig.dirs[0]);
    assert_true(put(rig.tier, "k", "three") && holds(rig.tier, "k", "three")); /* without an upper */
    rig_deinit(&rig);
}

static void what_is_forgotten_is_in_neither_and_does_not_go_down(void **unused)
{
    (void)unused;
    stack_rig rig;
    rig_init(&rig, "forget", NULL, FIXTURE_STATES);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 100), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_int_equal(fixture_store(&rig.fix, rig.tier, "", rig.tokens, 150), FIRN_REASON_NONE);
    assert_ok(firn_tier_forget(rig.tier, "", rig.tokens, 150, NULL));
    assert_true(firn_tier_flush(rig.tier, RIG_LONG_NS).durable);
    assert_false(rig_has(rig.tier, rig.tokens, 100) || rig_has(rig.tier, rig.tokens, 150));
    const firn_stack_stats stats = rig_stats(&rig);
    assert_true(stats.n_lost == 0 && stats.n_copied == 1);
    rig_deinit(&rig);
}

int main(void)
{
    rig_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pin_follows_its_path_down),
        cmocka_unit_test(what_has_a_name_goes_down_after_a_crash),
        cmocka_unit_test(a_pin_that_was_removed_does_not_come_back),
        cmocka_unit_test(a_name_that_is_pinned_anew_means_the_new_path_in_both),
        cmocka_unit_test(what_only_the_lower_has_can_be_pinned),
        cmocka_unit_test(sessions_are_the_uppers_while_it_takes_them),
        cmocka_unit_test(objects_are_in_both_and_the_newer_counts),
        cmocka_unit_test(what_is_forgotten_is_in_neither_and_does_not_go_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
