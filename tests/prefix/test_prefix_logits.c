/*
 * Last logits on their way to a tier: when they are stored, which of them, and that nothing waits or fails for them.
 * That they come back, with which bits and for whom, is tests/engine/test_restart_families.c's.
 */
#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { POOL_BYTES = 1 << 24, N = 200, N_LOGITS = 256 };
#define NEVER_NS (UINT64_C(3600) * 1000 * RIG_MS)

static prefix_rig rig;
static fault_tier *fault;
static firn_token tokens[RIG_TOKENS_MAX];
static float values[1 << 14];

static int start(void **state)
{
    (void)state;
    rig_init(&rig, NULL, POOL_BYTES);
    fault = fault_tier_create(rig.pool);
    rig_stop(&rig);
    rig_start(&rig, (firn_prefix_options){ .tier = &fault->tier, .restore_deadline_ns = NEVER_NS });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    for (uint32_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        values[i] = (float)i * 0.5f;
    }
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

static void keep(uint32_t n_tokens, const char *ns, uint32_t n_logits, firn_store_where where)
{
    assert_true(rig_put(&rig, tokens, n_tokens, ns, NULL));
    firn_prefix_keep_logits(rig.prefix, tokens, n_tokens, ns, values, n_logits, where);
}

static void settle(void)
{
    for (uint32_t i = 0; firn_prefix_poll(rig.prefix) == 0 || rig_stats(&rig).n_queued > 0; i++) {
        assert_true(i < 20000);
        rig_sleep(RIG_MS / 4);
    }
}

static void flush(void)
{
    assert_true(firn_prefix_flush(rig.prefix, NEVER_NS).durable);
    firn_prefix_check(rig.prefix);
}

/* The attachments stored at exactly n tokens; NULL when there are none. */
static const firn_attachment *stored_at(uint32_t n_tokens, const char *ns)
{
    dict_tier_lock(fault->dict);
    const dict_entry *entry = dict_exact(fault->dict, ns, tokens, n_tokens);
    const firn_attachment *first = entry != NULL && entry->n_attachments > 0 ? entry->attachments : NULL;
    dict_tier_unlock(fault->dict);
    return first;
}

static void a_flush_stores_logits_behind_their_state_and_once(void **state)
{
    (void)state;
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    flush();
    const firn_attachment *logits = stored_at(N, "");
    assert_non_null(logits);
    assert_string_equal(logits->schema, "firn.last_logits.1");
    assert_int_equal(logits->n_tensors, 1);
    assert_int_equal(logits->tensors[0].dtype, FIRN_DTYPE_F32);
    assert_int_equal(logits->tensors[0].shape[0], N_LOGITS);
    assert_memory_equal(logits->tensors[0].data, values, N_LOGITS * sizeof values[0]);
    assert_int_equal(rig_stats(&rig).n_logits_stored, 1);
    const uint32_t n_calls = fault_tier_get(fault, &fault->n_store_calls);
    /* The same prompt again, and another flush: they are there. */
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    flush();
    assert_int_equal(fault_tier_get(fault, &fault->n_store_calls), n_calls);
    assert_int_equal(rig_stats(&rig).n_logits, 1);
}

/* The row has gone on: its end is another. */
static void logits_inside_of_a_path_are_stored_at_their_own_count(void **state)
{
    (void)state;
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    assert_true(rig_put(&rig, tokens, N + 40, "", NULL));
    flush();
    assert_non_null(stored_at(N, ""));
    assert_null(stored_at(N + 40, ""));
    assert_int_equal(rig_stats(&rig).n_logits_stored, 1);
}

static void no_turn_writes_a_vocabulary(void **state)
{
    (void)state;
    for (uint32_t n = 64; n <= 640; n += 64) {
        keep(n, "", N_LOGITS, FIRN_STORE_DISK);
        settle();
    }
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    assert_int_equal(rig_stats(&rig).n_logits_stored, 0);
    for (uint32_t n = 64; n <= 640; n += 64) {
        assert_null(stored_at(n, ""));
    }
}

/* An eighth of the state's bytes, and not of requests that asked for RAM alone. */
static void only_what_is_small_beside_its_state_is_stored(void **state)
{
    (void)state;
    const uint32_t n_max = (uint32_t)(firni_state_bytes(rig.prefix, N) / 8 / sizeof values[0]);
    keep(N, "large", n_max + 1, FIRN_STORE_DISK);
    keep(N, "small", n_max, FIRN_STORE_DISK);
    keep(N, "ram", N_LOGITS, FIRN_STORE_RAM);
    flush();
    assert_null(stored_at(N, "large"));
    assert_non_null(stored_at(N, "small"));
    assert_null(stored_at(N, "ram"));
    assert_int_equal(rig_stats(&rig).n_logits, 3); /* all of them stay in RAM */
    keep(N, "ram", N_LOGITS, FIRN_STORE_DISK);     /* somebody without that wish */
    flush();
    assert_non_null(stored_at(N, "ram"));
}

static void a_refusal_is_counted_and_no_illness(void **state)
{
    (void)state;
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    assert_int_equal(rig_stats(&rig).n_logits_stored, 1);
    keep(N - 10, "", N_LOGITS, FIRN_STORE_DISK); /* its state is there already */
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_PRIORITY;
    dict_tier_unlock(fault->dict);
    report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    assert_int_equal(report.n_failed, 0);
    assert_int_equal(rig_stats(&rig).n_logits_refused, 1);
    assert_int_equal(rig_stats(&rig).reasons[FIRN_REASON_PRIORITY], 1);
    assert_int_equal(rig_stats(&rig).n_store_failures, 0);
    assert_true(firn_prefix_poll(rig.prefix) == UINT64_MAX); /* nothing is tried again before the next flush */
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_NONE;
    dict_tier_unlock(fault->dict);
    flush();
    assert_non_null(stored_at(N - 10, ""));
}

static void many_go_through_a_queue_of_one(void **state)
{
    (void)state;
    rig_stop(&rig);
    rig_start(&rig,
              (firn_prefix_options){ .tier = &fault->tier, .restore_deadline_ns = NEVER_NS, .write_queue_max = 1 });
    for (uint32_t n = 100; n < 130; n++) {
        keep(n, "", N_LOGITS, FIRN_STORE_DISK);
    }
    flush();
    for (uint32_t n = 100; n < 130; n++) {
        assert_non_null(stored_at(n, ""));
    }
}

static void a_hanging_store_of_logits_costs_a_flush_its_bound(void **state)
{
    (void)state;
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    flush();
    keep(N - 10, "", N_LOGITS, FIRN_STORE_DISK);
    keep(N - 20, "", N_LOGITS, FIRN_STORE_DISK);
    fault_tier_set(fault, hang_stores, true);
    const firn_flush_report report = firn_prefix_flush(rig.prefix, 30 * RIG_MS);
    assert_false(report.durable);
    assert_int_equal(report.n_missing, 0); /* all state is there */
    assert_true(report.elapsed_ns >= 30 * RIG_MS);
    fault_tier_set(fault, hang_stores, false);
    flush();
    assert_int_equal(rig_stats(&rig).n_logits_stored, 3);
}

/* What was queued and not begun is dropped with the tree, and nothing leaks. */
static void destroying_the_tree_drops_what_has_not_begun(void **state)
{
    (void)state;
    keep(N, "", N_LOGITS, FIRN_STORE_DISK);
    flush();
    fault_tier_set(fault, store_delay_ns, 20 * RIG_MS);
    for (uint32_t n = 100; n < 130; n++) {
        keep(n, "", N_LOGITS, FIRN_STORE_DISK);
    }
    const uint32_t n_before = fault_tier_get(fault, &fault->n_store_calls);
    assert_true(firn_prefix_flush_begin(rig.prefix));
    rig_stop(&rig);
    assert_true(fault_tier_get(fault, &fault->n_store_calls) - n_before < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_flush_stores_logits_behind_their_state_and_once, start, stop),
        cmocka_unit_test_setup_teardown(logits_inside_of_a_path_are_stored_at_their_own_count, start, stop),
        cmocka_unit_test_setup_teardown(no_turn_writes_a_vocabulary, start, stop),
        cmocka_unit_test_setup_teardown(only_what_is_small_beside_its_state_is_stored, start, stop),
        cmocka_unit_test_setup_teardown(a_refusal_is_counted_and_no_illness, start, stop),
        cmocka_unit_test_setup_teardown(many_go_through_a_queue_of_one, start, stop),
        cmocka_unit_test_setup_teardown(a_hanging_store_of_logits_costs_a_flush_its_bound, start, stop),
        cmocka_unit_test_setup_teardown(destroying_the_tree_drops_what_has_not_begun, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
