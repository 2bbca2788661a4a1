/*
 * Lookups in the tier below: nobody is held up by one but who waits for its answer, each wait has an end, and what
 * comes of them is what a lookup at once would have found, in whatever order things happen.
 */
#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { POOL_BYTES = 1 << 20, N = 200 };
#define DEADLINE_NS (UINT64_C(1000) * 1000 * RIG_MS) /* never reached unless the clock is moved */

static prefix_rig rig;
static fault_tier *fault;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static void restart(firn_prefix_options options)
{
    rig_stop(&rig);
    options.tier = &fault->tier;
    options.restore_deadline_ns = options.restore_deadline_ns > 0 ? options.restore_deadline_ns : DEADLINE_NS;
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
    firn_tier_destroy(&fault->tier); /* asserts that all handles were given back */
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

/* Does not wait for the answer. */
static firn_lease *ask(const firn_token *prompt, uint32_t n, const char *ns)
{
    firn_lease *lease;
    assert_ok(firn_prefix_acquire(rig.prefix, prompt, n, ns, &lease, NULL));
    firn_prefix_check(rig.prefix);
    return lease;
}

static void assert_found(firn_lease *lease, const firn_token *prompt, uint32_t n_disk)
{
    const firn_lease_info info = rig_wait(&rig, lease);
    assert_int_equal(info.disk_tokens, n_disk);
    rig_row row = rig_lend(lease);
    rig_row_verify(&row, prompt, info.n_tokens);
    rig_row_free(&row);
}

static void await_inside(void)
{
    while (fault_tier_get(fault, &fault->n_finding) == 0) {
        rig_sleep(RIG_MS / 4);
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void a_lookup_in_flight_holds_up_nobody_else(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    assert_true(rig_put(&rig, other, 100, NULL, NULL));
    fault_tier_set(fault, hang_finds, true);
    firn_lease *waiting = ask(tokens, N + 1, NULL);
    assert_false(firn_lease_ready(waiting));
    firn_lease_start early;
    assert_false(firn_lease_may_start(waiting, &early));
    /* What RAM has, and what is put, need no tier. */
    assert_int_equal(rig_lookup(&rig, other, 101, NULL).ram_tokens, 100);
    assert_true(rig_put(&rig, other, 160, NULL, NULL));
    assert_true(firn_prefix_poll(rig.prefix) > 0);
    assert_false(firn_lease_ready(waiting));
    fault_tier_set(fault, hang_finds, false);
    assert_found(waiting, tokens, N);
    firn_lease_release(waiting);
}

static void what_the_tier_could_not_better_is_not_looked_up(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    assert_true(rig_put(&rig, other, N, NULL, NULL));
    fault_tier_set(fault, hang_finds, true);
    firn_lease *short_one = ask(tokens, 16, NULL); /* the shortest prefix worth a read is as long */
    firn_lease *whole = ask(other, N + 1, NULL);
    assert_true(firn_lease_ready(short_one) && firn_lease_ready(whole));
    assert_int_equal(firn_lease_result(whole).ram_tokens, N);
    firn_lease_release(short_one);
    firn_lease_release(whole);
    assert_int_equal(rig_stats(&rig).n_finds, 0);
    fault_tier_set(fault, hang_finds, false);
}

static void identical_lookups_in_flight_are_one(void **state)
{
    (void)state;
    firn_lease *leases[4];
    store_below(tokens, N, NULL);
    fault_tier_set(fault, hang_finds, true);
    for (uint32_t i = 0; i < 3; i++) {
        leases[i] = ask(tokens, N + 1, NULL);
    }
    leases[3] = ask(tokens, N + 1, "elsewhere");
    assert_int_equal(rig_stats(&rig).n_finds, 2);
    assert_int_equal(rig_stats(&rig).n_finds_joined, 2);
    fault_tier_set(fault, hang_finds, false);
    for (uint32_t i = 0; i < 4; i++) {
        assert_found(leases[i], tokens, i < 3 ? N : 0);
        firn_lease_release(leases[i]);
    }
    assert_int_equal(rig_stats(&rig).n_restores, 1);
}

static void what_was_put_meanwhile_is_from_ram(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    fault_tier_set(fault, hang_finds, true);
    firn_lease *lease = ask(tokens, N + 1, NULL);
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    fault_tier_set(fault, hang_finds, false);
    const firn_lease_info info = rig_wait(&rig, lease);
    assert_int_equal(info.ram_tokens, 128);
    assert_int_equal(info.disk_tokens, N - 128);
    firn_lease_release(lease);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void a_lookup_that_is_not_answered_costs_one_deadline(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    fault_tier_set(fault, hang_finds, true);
    firn_lease *first = ask(tokens, N + 1, NULL);
    await_inside();
    atomic_fetch_add(&rig.clock_ahead_ns, DEADLINE_NS / 2);
    firn_lease *second = ask(other, N + 1, NULL); /* its own deadline is later; that of what holds it up is not */
    assert_false(firn_lease_ready(first) || firn_lease_ready(second));
    assert_true(firn_prefix_idle_ns(rig.prefix) <= DEADLINE_NS / 2);
    atomic_fetch_add(&rig.clock_ahead_ns, DEADLINE_NS / 2);
    (void)firn_prefix_poll(rig.prefix);
    firn_lease *third = ask(other, N + 1, NULL);
    firn_lease *const leases[] = { first, second, third };
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(leases[i]->ready);
        assert_reason(firn_lease_result(leases[i]).reason, FIRN_REASON_DEADLINE);
        assert_int_equal(firn_lease_result(leases[i]).n_tokens, 0);
        firn_lease_release(leases[i]);
    }
    assert_int_equal(rig_stats(&rig).n_finds, 2); /* of which the second was taken back */
    /* Once it has answered all is well again. */
    fault_tier_set(fault, hang_finds, false);
    while (rig.prefix->finds != NULL) {
        firni_inbox_wait(rig.prefix, RIG_MS);
        firni_inbox_drain(rig.prefix);
    }
    assert_int_equal(fault_tier_get(fault, &fault->n_finds), 1);
    assert_int_equal(rig_lookup(&rig, tokens, N + 1, NULL).disk_tokens, N);
}

static void a_slow_lookup_costs_a_share_of_computing_and_the_next_nothing(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    firn_prefix_learn_compute(rig.prefix, 100, 50, 100 * RIG_MS * 1000); /* a second for each token */
    fault_tier_set(fault, hang_finds, true);
    firn_lease *first = ask(tokens, N + 1, NULL);
    await_inside();
    atomic_fetch_add(&rig.clock_ahead_ns, UINT64_C(15) * 1000 * RIG_MS); /* of 200 s */
    assert_false(firn_lease_ready(first));
    atomic_fetch_add(&rig.clock_ahead_ns, UINT64_C(5) * 1000 * RIG_MS);
    assert_true(firn_lease_ready(first));
    firn_lease *second = ask(tokens, N + 1, NULL);
    assert_true(firn_lease_ready(second));
    assert_reason(firn_lease_result(first).reason, FIRN_REASON_BREAKEVEN);
    assert_reason(firn_lease_result(second).reason, FIRN_REASON_BREAKEVEN);
    firn_lease_release(first);
    firn_lease_release(second);
    fault_tier_set(fault, hang_finds, false);
}

static void a_lease_may_leave_in_every_phase(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    store_below(other, N, NULL);
    fault_tier_set(fault, hang_finds, true);
    firn_lease *running = ask(tokens, N + 1, NULL);
    firn_lease *queued = ask(other, N + 1, NULL);
    firn_lease *behind = ask(other, N + 2, NULL);
    await_inside();
    firn_lease_release(queued);
    firn_lease_release(behind); /* the last of the queue */
    firn_lease *again = ask(other, N + 1, NULL);
    firn_lease_release(running);
    fault_tier_set(fault, hang_finds, false);
    assert_found(again, other, N);
    firn_lease_release(again);
    assert_int_equal(fault_tier_get(fault, &fault->n_finds), 2);
    /* Answered, but not heard yet. */
    restart((firn_prefix_options){ 0 });
    firn_lease *answered = ask(tokens, N + 1, NULL);
    while (rig.prefix->inbox.head == NULL) {
        firni_inbox_wait(rig.prefix, RIG_MS);
    }
    firn_lease_release(answered);
    firni_inbox_drain(rig.prefix);
    assert_null(rig.prefix->finds);
    assert_int_equal(rig_stats(&rig).n_restores, 0);
    /* And while what was found is read. */
    fault_tier_set(fault, hang_reads, true);
    firn_lease *reading = rig_acquire(&rig, tokens, N + 1, NULL);
    assert_non_null(reading->read);
    firn_lease_release(reading);
    fault_tier_set(fault, hang_reads, false);
}

/* ---- any order --------------------------------------------------------------------------------------------------- */

/* Requests come, wait, leave and are answered while lookups hang, lag and fail: what is served is right to the bit. */
static void run_torture(uint64_t seed)
{
    enum { LEASES = 6, TALES = 4, STEPS = 600 };
    static firn_token tales[TALES][RIG_TOKENS_MAX];
    firn_lease *leases[LEASES] = { NULL };
    uint32_t told[LEASES] = { 0 };
    test_rng rng = test_rng_create("lookups", seed);
    for (uint32_t t = 0; t < TALES; t++) {
        rig_tokens(tales[t], 400, t / 2 + 10); /* two of them begin alike */
        tales[t][150] += t;
        store_below(tales[t], 100 + 60 * t, t % 2 == 0 ? NULL : "ns");
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        const uint32_t i = test_rng_below(&rng, LEASES);
        switch (test_rng_below(&rng, 8)) {
        case 0: fault_tier_set(fault, hang_finds, test_rng_below(&rng, 2) == 0); break;
        case 1: fault_tier_set(fault, find_delay_ns, test_rng_below(&rng, 3) * RIG_MS / 4); break;
        case 2: fault_tier_set(fault, hang_reads, test_rng_below(&rng, 4) == 0); break;
        case 3:
            fault_tier_set(fault, find_reason, test_rng_below(&rng, 4) == 0 ? FIRN_REASON_IO_ERROR : FIRN_REASON_NONE);
            break;
        case 4:
            atomic_fetch_add(&rig.clock_ahead_ns, test_rng_below(&rng, 20) == 0 ? DEADLINE_NS : 0);
            (void)firn_prefix_poll(rig.prefix);
            break;
        case 5:
            firn_lease_release(leases[i]);
            leases[i] = NULL;
            break;
        default:
            if (leases[i] == NULL) {
                told[i] = test_rng_below(&rng, TALES);
                leases[i] =
                    ask(tales[told[i]], 10 + test_rng_below(&rng, 350), test_rng_below(&rng, 2) == 0 ? NULL : "ns");
            } else if (firn_lease_ready(leases[i])) {
                rig_row row = rig_lend(leases[i]);
                rig_row_verify(&row, tales[told[i]], firn_lease_result(leases[i]).n_tokens);
                rig_row_free(&row);
                firn_lease_release(leases[i]);
                leases[i] = NULL;
            }
        }
        firn_prefix_check(rig.prefix);
    }
    for (uint32_t i = 0; i < LEASES; i++) {
        firn_lease_release(leases[i]);
    }
    fault_tier_set(fault, hang_finds, false);
    fault_tier_set(fault, hang_reads, false);
}

static void any_order_serves_what_is_right_and_gives_all_back(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run_torture(seed);
        if (seed < 8) {
            (void)stop(state);
            (void)start(state);
        }
    }
}

/* The last of them: the thread that is left behind looks at the rig's environment when it goes. */
static void a_tree_ends_while_a_lookup_hangs(void **state)
{
    (void)state;
    store_below(tokens, N, NULL);
    restart((firn_prefix_options){ .restore_deadline_ns = 20 * RIG_MS });
    fault_tier_set(fault, hang_finds, true);
    firn_lease *lease = ask(tokens, N + 1, NULL);
    await_inside();
    firn_lease_release(lease);
    rig_stop(&rig);
    assert_int_equal(fault_tier_get(fault, &fault->n_finding), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_lookup_in_flight_holds_up_nobody_else, start, stop),
        cmocka_unit_test_setup_teardown(what_the_tier_could_not_better_is_not_looked_up, start, stop),
        cmocka_unit_test_setup_teardown(identical_lookups_in_flight_are_one, start, stop),
        cmocka_unit_test_setup_teardown(what_was_put_meanwhile_is_from_ram, start, stop),
        cmocka_unit_test_setup_teardown(a_lookup_that_is_not_answered_costs_one_deadline, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_lookup_costs_a_share_of_computing_and_the_next_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_lease_may_leave_in_every_phase, start, stop),
        cmocka_unit_test_setup_teardown(any_order_serves_what_is_right_and_gives_all_back, start, stop),
        cmocka_unit_test_setup_teardown(a_tree_ends_while_a_lookup_hangs, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
