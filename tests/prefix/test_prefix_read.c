/*
 * Reads from the tier below: what is restored, joined, waited for, refused and wasted.
 */
#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { POOL_BYTES = 1 << 20 };
#define DEADLINE_NS (UINT64_C(1000) * 1000 * RIG_MS) /* never reached unless the clock is moved */

static prefix_rig rig;
static fault_tier *fault;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static void restart(firn_prefix_options options)
{
    rig_stop(&rig);
    options.tier = &fault->tier;
    options.restore_deadline_ns = DEADLINE_NS;
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
    rig_stop(&rig);
    firn_tier_destroy(&fault->tier);
    rig_deinit(&rig);
    return 0;
}

/* Leaves the state in the tier alone. */
static void store_below(const firn_token *stored, uint32_t n, const char *ns)
{
    rig_row row = rig_row_of(&rig, stored, n);
    const firn_store_input input = {
        .tokens = stored, .n_tokens = n, .caches = rig_caches(&row), .n_caches = RIG_LAYERS, .ns = ns
    };
    firn_reason reason;
    assert_true(firn_tier_store(&fault->tier, &input, &reason));
    rig_row_free(&row);
}

/* Waits until no read is on its way. */
static void await_reads(uint32_t n_reads)
{
    while (fault_tier_get(fault, &fault->n_reads) < n_reads) {
        rig_sleep(RIG_MS / 2);
    }
    const uint64_t wasted = rig_stats(&rig).wasted_bytes;
    const uint64_t nodes = rig_stats(&rig).n_nodes;
    for (uint32_t i = 0; i < 40 && rig_stats(&rig).wasted_bytes == wasted && rig_stats(&rig).n_nodes == nodes; i++) {
        (void)firn_prefix_poll(rig.prefix);
        rig_sleep(RIG_MS / 2);
    }
    firn_prefix_check(rig.prefix);
}

/* ---- what comes back ---- */

static void a_new_process_finds_what_the_tier_holds(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    const firn_lease_info cold = rig_lookup(&rig, tokens, 250, NULL);
    assert_int_equal(cold.n_tokens, 200);
    assert_int_equal(cold.ram_tokens, 0);
    assert_int_equal(cold.disk_tokens, 200);
    assert_true(cold.restore_ns > 0);
    assert_int_equal(cold.first_divergence, 200);
    assert_reason(cold.reason, FIRN_REASON_NONE);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);

    const firn_lease_info warm = rig_lookup(&rig, tokens, 150, NULL);
    assert_int_equal(warm.ram_tokens, 149);
    assert_int_equal(warm.disk_tokens, 0);
    assert_int_equal(warm.restore_ns, 0);
    assert_reason(warm.reason, FIRN_REASON_NONE);
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_hits_disk, 1);
    assert_int_equal(stats.n_hits_ram, 1);
    assert_int_equal(stats.hit_tokens_disk, 200);
    assert_int_equal(stats.hit_tokens_ram, 149);
    assert_int_equal(stats.miss_tokens, 50 + 1);
    assert_int_equal(stats.wasted_bytes, 0);
    assert_int_equal(fault->n_reads, 1);
}

static void at_least_one_token_is_left_to_compute(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    const firn_lease_info info = rig_lookup(&rig, tokens, 200, NULL);
    assert_int_equal(info.disk_tokens, 199);
    assert_reason(info.reason, FIRN_REASON_NONE);
}

static void tokens_from_ram_and_disk_are_told_apart(void **state)
{
    (void)state;
    store_below(tokens, 256, NULL);
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    const firn_lease_info info = rig_lookup(&rig, tokens, 300, NULL);
    assert_int_equal(info.ram_tokens, 64);
    assert_int_equal(info.disk_tokens, 192);
    /* The first of four blocks was read again for nothing. */
    assert_int_equal(rig_stats(&rig).wasted_bytes, RIG_NODE_BYTES);
    assert_int_equal(rig_stats(&rig).held_bytes, 4 * RIG_NODE_BYTES);
}

static void a_ram_tail_that_the_tier_has_longer_is_replaced(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    assert_true(rig_put(&rig, tokens, 30, NULL, NULL));
    firn_lease *before = rig_acquire(&rig, tokens, 31, NULL);
    const firn_lease_info info = rig_lookup(&rig, tokens, 201, NULL);
    assert_int_equal(info.ram_tokens, 30);
    assert_int_equal(info.disk_tokens, 170);
    rig_row row = rig_lend(before);
    rig_row_verify(&row, tokens, 30);
    rig_row_free(&row);
    firn_lease_release(before);
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_dirty, 0); /* the unsaved tail is part of what the tier holds */
}

static void a_gain_too_small_is_not_read(void **state)
{
    (void)state;
    store_below(tokens, 210, NULL);
    assert_true(rig_put(&rig, tokens, 200, NULL, NULL));
    const firn_lease_info info = rig_lookup(&rig, tokens, 300, NULL);
    assert_int_equal(info.n_tokens, 200);
    assert_int_equal(info.disk_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_BREAKEVEN);
    assert_int_equal(info.first_divergence, 210);
    assert_int_equal(fault->n_reads, 0);
    store_below(other, 15, NULL);
    assert_reason(rig_lookup(&rig, other, 100, NULL).reason, FIRN_REASON_BELOW_MIN);
    assert_int_equal(fault->n_reads, 0);
}

static void namespaces_are_apart_below_as_well(void **state)
{
    (void)state;
    store_below(tokens, 200, "alice");
    assert_int_equal(rig_lookup(&rig, tokens, 201, "bob").n_tokens, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 201, "alice").n_tokens, 200);
    assert_int_equal(rig_lookup(&rig, tokens, 201, "bob").n_tokens, 0);
}

/* ---- joining ---- */

static void identical_reads_in_flight_are_one_read(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    fault_tier_set(fault, hang_reads, true);
    memcpy(other, tokens, sizeof tokens);
    other[128] = 9;
    firn_lease *whole = rig_acquire(&rig, tokens, 201, NULL);
    firn_lease *again = rig_acquire(&rig, tokens, 300, NULL);
    firn_lease *shorter = rig_acquire(&rig, tokens, 100, NULL);
    firn_lease *leaves = rig_acquire(&rig, other, 300, NULL);
    assert_false(firn_lease_ready(whole));
    assert_false(firn_lease_ready(again));
    assert_false(firn_lease_ready(shorter));
    assert_false(firn_lease_ready(leaves));
    fault_tier_set(fault, hang_reads, false);
    assert_int_equal(rig_wait(&rig, whole).disk_tokens, 200);
    assert_int_equal(rig_wait(&rig, again).disk_tokens, 200);
    assert_int_equal(rig_wait(&rig, shorter).disk_tokens, 99);
    const firn_lease_info info = rig_wait(&rig, leaves);
    assert_int_equal(info.disk_tokens, 128);
    assert_reason(info.reason, FIRN_REASON_DIVERGED);
    assert_int_equal(info.stored_token, tokens[128]);
    assert_int_equal(fault->n_reads, 1);
    assert_int_equal(rig_stats(&rig).wasted_bytes, 0);
    rig_row row = rig_lend(leaves);
    rig_row_verify(&row, other, 128);
    rig_row_free(&row);
    firn_lease_release(whole);
    firn_lease_release(again);
    firn_lease_release(shorter);
    firn_lease_release(leaves);
}

static void a_longer_prefix_and_another_namespace_read_for_themselves(void **state)
{
    (void)state;
    store_below(tokens, 300, NULL);
    store_below(tokens, 300, "a");
    fault_tier_set(fault, hang_reads, true);
    firn_lease *first = rig_acquire(&rig, tokens, 150, NULL);
    firn_lease *longer = rig_acquire(&rig, tokens, 300, NULL);
    firn_lease *foreign = rig_acquire(&rig, tokens, 150, "a");
    fault_tier_set(fault, hang_reads, false);
    assert_int_equal(rig_wait(&rig, first).disk_tokens, 149);
    assert_int_equal(rig_wait(&rig, longer).n_tokens, 299);
    assert_int_equal(rig_wait(&rig, foreign).disk_tokens, 149);
    assert_int_equal(fault->n_reads, 3);
    firn_lease_release(first);
    firn_lease_release(longer);
    firn_lease_release(foreign);
}

static void a_lease_that_leaves_does_not_stop_the_read_of_the_others(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    fault_tier_set(fault, hang_reads, true);
    firn_lease *gone = rig_acquire(&rig, tokens, 201, NULL);
    firn_lease *stays = rig_acquire(&rig, tokens, 201, NULL);
    firn_lease *gone_too = rig_acquire(&rig, tokens, 201, NULL);
    firn_lease_release(gone);
    firn_lease_release(gone_too);
    firn_prefix_check(rig.prefix);
    fault_tier_set(fault, hang_reads, false);
    assert_int_equal(rig_wait(&rig, stays).disk_tokens, 200);
    firn_lease_release(stays);
}

/* ---- time ---- */

static void a_tier_that_does_not_answer_costs_one_deadline(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    assert_true(rig_put(&rig, tokens, 64, NULL, NULL));
    fault_tier_set(fault, hang_reads, true);
    firn_lease *lease = rig_acquire(&rig, tokens, 201, NULL);
    assert_false(firn_lease_ready(lease));
    const uint64_t next_ns = firn_prefix_poll(rig.prefix);
    assert_true(next_ns <= DEADLINE_NS && next_ns > DEADLINE_NS / 2);
    atomic_fetch_add(&rig.clock_ahead_ns, DEADLINE_NS);
    assert_true(firn_lease_ready(lease));
    const firn_lease_info info = firn_lease_result(lease);
    assert_int_equal(info.n_tokens, 64);
    assert_int_equal(info.disk_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_DEADLINE);
    assert_true(info.restore_ns >= DEADLINE_NS);
    firn_lease_release(lease);
    /* The next ones do not wait as long again, neither for the same read nor for another. */
    store_below(other, 200, NULL);
    firn_lease *next[2] = { rig_acquire(&rig, tokens, 201, NULL), rig_acquire(&rig, other, 201, NULL) };
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(firn_lease_ready(next[i]));
        assert_reason(firn_lease_result(next[i]).reason, FIRN_REASON_DEADLINE);
        firn_lease_release(next[i]);
    }
    /* What arrives late is kept. */
    fault_tier_set(fault, hang_reads, false);
    await_reads(1);
    const firn_lease_info late = rig_lookup(&rig, tokens, 201, NULL);
    assert_int_equal(late.ram_tokens, 200);
    assert_int_equal(fault->n_reads, 1);
    assert_int_equal(rig_lookup(&rig, other, 201, NULL).disk_tokens, 200);
}

static void poll_ends_the_wait_of_every_late_lease(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    store_below(other, 200, NULL);
    fault_tier_set(fault, hang_reads, true);
    firn_lease *leases[3] = { rig_acquire(&rig, tokens, 201, NULL), rig_acquire(&rig, tokens, 201, NULL),
                              rig_acquire(&rig, other, 201, NULL) };
    atomic_fetch_add(&rig.clock_ahead_ns, DEADLINE_NS);
    assert_true(firn_prefix_poll(rig.prefix) == UINT64_MAX);
    firn_prefix_check(rig.prefix);
    for (uint32_t i = 0; i < 3; i++) {
        assert_reason(firn_lease_result(leases[i]).reason, FIRN_REASON_DEADLINE);
        firn_lease_release(leases[i]);
    }
    fault_tier_set(fault, hang_reads, false);
}

static void late_state_that_nobody_uses_counts_as_wasted(void **state)
{
    (void)state;
    store_below(tokens, 128, NULL);
    store_below(other, 128, NULL);
    fault_tier_set(fault, hang_reads, true);
    firn_lease_release(rig_acquire(&rig, tokens, 129, NULL));
    firn_lease_release(rig_acquire(&rig, other, 129, NULL));
    fault_tier_set(fault, hang_reads, false);
    await_reads(2);
    await_reads(2);
    assert_int_equal(rig_stats(&rig).n_nodes, 4);
    assert_int_equal(rig_stats(&rig).wasted_bytes, 0);
    (void)rig_lookup(&rig, other, 129, NULL);
    assert_true(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    assert_int_equal(rig_stats(&rig).wasted_bytes, 2 * RIG_NODE_BYTES);
}

static void completion_is_announced(void **state)
{
    (void)state;
    store_below(tokens, 128, NULL);
    const uint32_t before = atomic_load(&rig.n_notified);
    firn_lease *lease = rig_acquire(&rig, tokens, 129, NULL);
    for (uint32_t i = 0; i < 4000 && atomic_load(&rig.n_notified) < before + 2; i++) {
        rig_sleep(RIG_MS);
    }
    assert_int_equal(atomic_load(&rig.n_notified), before + 2); /* the answer, and what it promised */
    assert_true(firn_lease_ready(lease));
    firn_lease_release(lease);
}

/* ---- failures ---- */

static void a_failed_read_is_a_miss_with_its_reason(void **state)
{
    (void)state;
    const firn_reason reasons[] = { FIRN_REASON_CORRUPT, FIRN_REASON_IO_ERROR, FIRN_REASON_GONE, FIRN_REASON_EXPIRED,
                                    FIRN_REASON_NO_MEMORY, FIRN_REASON_DEADLINE };
    store_below(tokens, 200, NULL);
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        fault_tier_set(fault, read_reason, reasons[i]);
        const firn_lease_info info = rig_lookup(&rig, tokens, 201, NULL);
        assert_int_equal(info.n_tokens, 0);
        assert_reason(info.reason, reasons[i]);
        assert_int_equal(rig_stats(&rig).reasons[reasons[i]], 1);
        assert_int_equal(rig_stats(&rig).n_nodes, 0);
    }
    /* With something in RAM, that much is served. */
    assert_true(rig_put(&rig, tokens, 100, NULL, NULL));
    const firn_lease_info info = rig_lookup(&rig, tokens, 201, NULL);
    assert_int_equal(info.ram_tokens, 100);
    assert_int_equal(info.disk_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_DEADLINE);
    fault_tier_set(fault, read_reason, FIRN_REASON_NONE);
    assert_int_equal(rig_lookup(&rig, tokens, 201, NULL).disk_tokens, 100);
}

static void state_that_is_not_what_was_asked_for_never_serves(void **state)
{
    (void)state;
    const struct {
        fault_lie lie;
        firn_reason reason;
    } cases[] = { { FAULT_LIE_TOKENS, FIRN_REASON_CORRUPT },
                  { FAULT_LIE_COUNT, FIRN_REASON_COUNT_MISMATCH },
                  { FAULT_LIE_LAYER, FIRN_REASON_FAMILY_MISSING } };
    store_below(tokens, 128, NULL);
    for (size_t i = 0; i < 3; i++) {
        fault_tier_set(fault, lie, cases[i].lie);
        const uint64_t wasted = rig_stats(&rig).wasted_bytes;
        const firn_lease_info info = rig_lookup(&rig, tokens, 129, NULL);
        assert_int_equal(info.n_tokens, 0);
        assert_reason(info.reason, cases[i].reason);
        assert_int_equal(rig_stats(&rig).n_nodes, 0);
        assert_int_equal(rig_stats(&rig).wasted_bytes - wasted, 2 * RIG_NODE_BYTES);
    }
}

static void a_read_that_cannot_start_is_a_miss(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    fault_tier_set(fault, start_status, FIRN_ERR_BUSY);
    assert_reason(rig_lookup(&rig, tokens, 201, NULL).reason, FIRN_REASON_QUEUE_FULL);
    fault_tier_set(fault, start_status, FIRN_ERR_IO);
    assert_reason(rig_lookup(&rig, tokens, 201, NULL).reason, FIRN_REASON_IO_ERROR);
    fault_tier_set(fault, start_status, FIRN_OK);
    assert_int_equal(rig_lookup(&rig, tokens, 201, NULL).n_tokens, 200);
}

static void nothing_is_read_without_room_for_it(void **state)
{
    (void)state;
    store_below(tokens, 640, NULL);
    static firn_token many[8192];
    rig_tokens(many, 8192, 3);
    const uint32_t n_running = (POOL_BYTES / RIG_NODE_BYTES - 9) * 64;
    rig_row running = rig_row_of(&rig, many, n_running);
    const firn_lease_info info = rig_lookup(&rig, tokens, 641, NULL);
    assert_int_equal(info.n_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(fault->n_reads, 0);
    /* Two reads at once: the second has no room beside the first. */
    fault_tier_set(fault, hang_reads, true);
    store_below(other, 320, NULL);
    firn_lease *first = rig_acquire(&rig, tokens, 321, NULL);
    firn_lease *second = rig_acquire(&rig, other, 321, NULL);
    assert_false(firn_lease_ready(first));
    assert_true(firn_lease_ready(second));
    assert_reason(firn_lease_result(second).reason, FIRN_REASON_NO_MEMORY);
    fault_tier_set(fault, hang_reads, false);
    assert_int_equal(rig_wait(&rig, first).disk_tokens, 320);
    firn_lease_release(first);
    firn_lease_release(second);
    rig_row_free(&running);
    assert_int_equal(rig_lookup(&rig, tokens, 641, NULL).n_tokens, 640);
}

static void a_read_makes_room_but_not_from_what_is_promised(void **state)
{
    (void)state;
    const uint32_t n_nodes = POOL_BYTES / RIG_NODE_BYTES;
    restart((firn_prefix_options){ 0 });
    store_below(tokens, 640, NULL);
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    for (uint32_t i = 0; firn_pool_room(rig.pool) >= 3 * RIG_NODE_BYTES; i++) {
        rig_tokens(other, 128, 100 + i);
        assert_true(rig_put(&rig, other, 128, NULL, NULL));
        while (rig_stats(&rig).n_dirty > 0) {
            (void)firn_prefix_poll(rig.prefix);
            rig_sleep(RIG_MS / 4);
        }
    }
    assert_true(rig_stats(&rig).n_nodes > n_nodes - 4);
    const firn_lease_info info = rig_lookup(&rig, tokens, 641, NULL);
    assert_int_equal(info.ram_tokens, 128);
    assert_int_equal(info.disk_tokens, 512);
    assert_true(rig_stats(&rig).n_evicted >= 8);
    assert_true(rig_stats(&rig).held_bytes <= POOL_BYTES);
}

static void a_read_that_the_tree_cannot_hold_is_not_started(void **state)
{
    (void)state;
    store_below(tokens, 640, NULL);
    restart((firn_prefix_options){ .budget_bytes = 4 * RIG_NODE_BYTES });
    const firn_lease_info info = rig_lookup(&rig, tokens, 641, NULL);
    assert_reason(info.reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(fault->n_reads, 0);
    /* Held by a lease, the budget has no place for what was read: wasted, and said so. */
    assert_int_equal(rig_lookup(&rig, tokens, 257, NULL).disk_tokens, 256);
    firn_lease *lease = rig_acquire(&rig, tokens, 257, NULL);
    store_below(other, 128, NULL);
    const firn_lease_info full = rig_lookup(&rig, other, 129, NULL);
    assert_int_equal(full.n_tokens, 0);
    assert_reason(full.reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(rig_stats(&rig).wasted_bytes, 2 * RIG_NODE_BYTES);
    firn_lease_release(lease);
}

/* ---- explanations ---- */

static void the_tier_explains_a_miss_that_ram_cannot(void **state)
{
    (void)state;
    const firn_reason reasons[] = { FIRN_REASON_WRONG_IDENTITY, FIRN_REASON_EXPIRED, FIRN_REASON_CORRUPT,
                                    FIRN_REASON_FAMILY_MISSING, FIRN_REASON_IO_ERROR };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        fault_tier_set(fault, find_reason, reasons[i]);
        assert_reason(rig_lookup(&rig, tokens, 100, NULL).reason, reasons[i]);
    }
    fault_tier_set(fault, find_reason, FIRN_REASON_NO_PREFIX);
    assert_reason(rig_lookup(&rig, tokens, 100, NULL).reason, FIRN_REASON_NO_PREFIX);
    /* RAM knows better where the prompt leaves. */
    fault_tier_set(fault, find_reason, FIRN_REASON_EXPIRED);
    assert_true(rig_put(&rig, tokens, 90, NULL, NULL));
    memcpy(other, tokens, sizeof tokens);
    other[70] = 3;
    assert_reason(rig_lookup(&rig, other, 100, NULL).reason, FIRN_REASON_DIVERGED);
    assert_reason(rig_lookup(&rig, tokens, 91, NULL).reason, FIRN_REASON_NONE);
}

static void the_divergence_is_that_of_the_longest_match(void **state)
{
    (void)state;
    memcpy(other, tokens, sizeof tokens);
    other[100] = 5;
    store_below(other, 200, NULL);
    firn_token in_ram[64];
    memcpy(in_ram, tokens, sizeof in_ram);
    in_ram[50] = 6;
    assert_true(rig_put(&rig, in_ram, 64, NULL, NULL));
    const firn_lease_info info = rig_lookup(&rig, tokens, 200, NULL);
    assert_int_equal(info.n_tokens, 100);
    assert_int_equal(info.ram_tokens, 50);
    assert_int_equal(info.disk_tokens, 50);
    assert_int_equal(info.first_divergence, 100);
    assert_true(info.diverged);
    assert_int_equal(info.stored_token, 5);
    assert_reason(info.reason, FIRN_REASON_DIVERGED);
}

/* ---- the end ---- */

static void destroying_waits_for_a_read_in_flight(void **state)
{
    (void)state;
    store_below(tokens, 200, NULL);
    fault_tier_set(fault, read_delay_ns, 30 * RIG_MS);
    firn_lease *lease = rig_acquire(&rig, tokens, 201, NULL);
    firn_lease_release(rig_acquire(&rig, tokens, 100, NULL));
    firn_lease_release(lease);
    rig_stop(&rig);
    assert_int_equal(fault_tier_get(fault, &fault->n_reads), 1);
    firn_pool_stats stats;
    firn_pool_get_stats(rig.pool, &stats);
    assert_int_equal(stats.n_blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_process_finds_what_the_tier_holds, start, stop),
        cmocka_unit_test_setup_teardown(at_least_one_token_is_left_to_compute, start, stop),
        cmocka_unit_test_setup_teardown(tokens_from_ram_and_disk_are_told_apart, start, stop),
        cmocka_unit_test_setup_teardown(a_ram_tail_that_the_tier_has_longer_is_replaced, start, stop),
        cmocka_unit_test_setup_teardown(a_gain_too_small_is_not_read, start, stop),
        cmocka_unit_test_setup_teardown(namespaces_are_apart_below_as_well, start, stop),
        cmocka_unit_test_setup_teardown(identical_reads_in_flight_are_one_read, start, stop),
        cmocka_unit_test_setup_teardown(a_longer_prefix_and_another_namespace_read_for_themselves, start, stop),
        cmocka_unit_test_setup_teardown(a_lease_that_leaves_does_not_stop_the_read_of_the_others, start, stop),
        cmocka_unit_test_setup_teardown(a_tier_that_does_not_answer_costs_one_deadline, start, stop),
        cmocka_unit_test_setup_teardown(poll_ends_the_wait_of_every_late_lease, start, stop),
        cmocka_unit_test_setup_teardown(late_state_that_nobody_uses_counts_as_wasted, start, stop),
        cmocka_unit_test_setup_teardown(completion_is_announced, start, stop),
        cmocka_unit_test_setup_teardown(a_failed_read_is_a_miss_with_its_reason, start, stop),
        cmocka_unit_test_setup_teardown(state_that_is_not_what_was_asked_for_never_serves, start, stop),
        cmocka_unit_test_setup_teardown(a_read_that_cannot_start_is_a_miss, start, stop),
        cmocka_unit_test_setup_teardown(nothing_is_read_without_room_for_it, start, stop),
        cmocka_unit_test_setup_teardown(a_read_makes_room_but_not_from_what_is_promised, start, stop),
        cmocka_unit_test_setup_teardown(a_read_that_the_tree_cannot_hold_is_not_started, start, stop),
        cmocka_unit_test_setup_teardown(the_tier_explains_a_miss_that_ram_cannot, start, stop),
        cmocka_unit_test_setup_teardown(the_divergence_is_that_of_the_longest_match, start, stop),
        cmocka_unit_test_setup_teardown(destroying_waits_for_a_read_in_flight, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
