/*
 * What requests and operators ask of the tree: how long state is kept, where, for whom, and by whose side.
 */
#include <stdio.h>

#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { POOL_BYTES = 1 << 22, N_HOUSE = 256, N_TOKENS = 400 };
#define NEVER_NS (UINT64_C(3600) * 1000 * RIG_MS)

static prefix_rig rig;
static fault_tier *fault;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static void start_with(const char *mixture, bool with_tier, uint64_t budget_bytes)
{
    rig_init_mixture(&rig, NULL, POOL_BYTES, mixture, 100);
    fault = with_tier ? fault_tier_create(rig.pool) : NULL;
    rig_start(&rig, (firn_prefix_options){ .tier = with_tier ? &fault->tier : NULL,
                                           .restore_deadline_ns = NEVER_NS,
                                           .retry_ns_min = 10 * RIG_MS,
                                           .budget_bytes = budget_bytes });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_tokens(other, RIG_TOKENS_MAX, 2);
}

static void stop(void)
{
    rig_stop(&rig);
    if (fault != NULL) {
        firn_tier_destroy(&fault->tier);
    }
    rig_deinit(&rig);
}

static void settle(void)
{
    for (uint32_t i = 0; i < 20000; i++) {
        (void)firn_prefix_poll(rig.prefix);
        firn_prefix_check(rig.prefix);
        if (rig_stats(&rig).n_queued == 0) {
            return;
        }
        rig_sleep(RIG_MS / 4);
    }
    fail_msg("stores do not come to an end");
}

static bool put_with(const firn_token *all, uint32_t n, const char *ns, firn_cache_policy policy)
{
    firn_reason reason;
    rig_row row = rig_row_of(&rig, all, n);
    const bool kept = firn_prefix_put_with(rig.prefix, all, n, ns, rig_caches(&row), policy, &reason);
    rig_row_free(&row);
    firn_prefix_check(rig.prefix);
    return kept;
}

static uint64_t wall_in(uint64_t ns)
{
    return rig.env.clock->wall_ns(rig.env.clock->ctx) + ns;
}

/* ---- priorities -------------------------------------------------------------------------------------------------- */

static void a_thousand_low_prompts_never_evict_a_normal_one(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc" };
    for (unsigned m = 0; m < 3; m++) {
        start_with(mixtures[m], false, 60 * RIG_NODE_BYTES);
        assert_true(put_with(tokens, N_TOKENS, NULL, (firn_cache_policy){ 0 }));
        const uint32_t n_before = rig_lookup(&rig, tokens, N_TOKENS + 1, NULL).n_tokens;
        for (uint32_t i = 0; i < 1000; i++) {
            rig_tokens(other, 130, 100 + i);
            (void)put_with(other, 130, NULL, (firn_cache_policy){ .priority = -1 - (int)(i % 3) });
        }
        assert_true(rig_stats(&rig).n_evicted > 900);
        assert_int_equal(rig_lookup(&rig, tokens, N_TOKENS + 1, NULL).n_tokens, n_before);
        stop();
    }
}

static void a_low_put_is_cut_where_only_worthier_state_could_make_room(void **state)
{
    (void)state;
    start_with("pp", false, 8 * RIG_NODE_BYTES);
    assert_true(put_with(tokens, 512, NULL, (firn_cache_policy){ .priority = 1 }));
    assert_false(put_with(other, 128, NULL, (firn_cache_policy){ 0 }));
    assert_int_equal(rig_lookup(&rig, tokens, 513, NULL).n_tokens, 512);
    assert_true(put_with(other, 128, NULL, (firn_cache_policy){ .priority = 1 }));
    stop();
}

static void the_tier_is_told_the_priority_and_may_refuse_it(void **state)
{
    (void)state;
    start_with("pp", true, 0);
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_PRIORITY;
    dict_tier_unlock(fault->dict);
    assert_true(put_with(tokens, 128, NULL, (firn_cache_policy){ .priority = -5 }));
    settle();
    assert_int_equal(rig_stats(&rig).n_dirty, 0); /* it stays in RAM, and is not tried for ever */
    assert_int_equal(rig_stats(&rig).n_store_failures, 0);
    assert_int_equal(rig_lookup(&rig, tokens, 129, NULL).ram_tokens, 128);
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_NONE;
    dict_tier_unlock(fault->dict);
    assert_true(put_with(tokens, 128, NULL, (firn_cache_policy){ 0 })); /* somebody worthier wants it */
    settle();
    assert_int_equal(rig_stats(&rig).n_stores, 1);
    stop();
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

static void what_is_for_ram_alone_never_reaches_the_tier(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc", "pwc" };
    for (unsigned m = 0; m < 4; m++) {
        start_with(mixtures[m], true, 0);
        assert_true(put_with(tokens, N_TOKENS, NULL, (firn_cache_policy){ .store = FIRN_STORE_RAM }));
        settle();
        const firn_flush_report report = firn_prefix_flush(rig.prefix, NEVER_NS);
        assert_true(report.durable);
        assert_int_equal(report.n_flushed, 0);
        assert_int_equal(fault_tier_get(fault, &fault->n_store_calls), 0);
        assert_int_equal(rig_lookup(&rig, tokens, N_TOKENS + 1, NULL).ram_tokens, N_TOKENS);
        /* Another conversation over the same beginning is stored, and takes along what is its own. */
        memcpy(other, tokens, 192 * sizeof *other);
        assert_true(put_with(other, N_TOKENS, NULL, (firn_cache_policy){ 0 }));
        (void)firn_prefix_flush(rig.prefix, NEVER_NS);
        rig_stop(&rig);
        rig_start(&rig, (firn_prefix_options){ .tier = &fault->tier, .restore_deadline_ns = NEVER_NS });
        assert_int_equal(rig_lookup(&rig, other, N_TOKENS + 1, NULL).disk_tokens, N_TOKENS);
        const firn_lease_info info = rig_lookup(&rig, tokens, N_TOKENS + 1, NULL);
        assert_true(info.n_tokens <= 192);
        assert_true(info.first_divergence <= 192);
        stop();
    }
}

static void who_wants_it_stored_gets_it_stored(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc" };
    for (unsigned m = 0; m < 3; m++) {
        start_with(mixtures[m], true, 0);
        assert_true(put_with(tokens, 256, NULL, (firn_cache_policy){ .store = FIRN_STORE_RAM }));
        assert_true(put_with(tokens, 256, NULL, (firn_cache_policy){ 0 }));
        (void)firn_prefix_flush(rig.prefix, NEVER_NS);
        rig_stop(&rig);
        rig_start(&rig, (firn_prefix_options){ .tier = &fault->tier, .restore_deadline_ns = NEVER_NS });
        assert_int_equal(rig_lookup(&rig, tokens, 257, NULL).disk_tokens, 256);
        stop();
    }
}

/* ---- namespaces below namespaces --------------------------------------------------------------------------------- */

static void a_house_is_held_once_and_its_children_apart(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc" };
    char alice[256], bob[256];
    assert_ok(firn_namespace_below("house", "alice", alice, NULL));
    assert_ok(firn_namespace_below("house", "bob", bob, NULL));
    for (unsigned m = 0; m < 3; m++) {
        start_with(mixtures[m], false, 0);
        memcpy(other, tokens, N_HOUSE * sizeof *other);
        assert_true(put_with(tokens, N_HOUSE, "house", (firn_cache_policy){ 0 }));
        const uint64_t house_bytes = rig_stats(&rig).held_bytes;
        firn_lease *lease = rig_acquire(&rig, tokens, N_TOKENS, alice);
        assert_int_equal(rig_wait(&rig, lease).n_tokens, N_HOUSE);
        rig_row row = rig_lend(lease);
        firn_lease_release(lease);
        rig_row_extend(&row, tokens, N_TOKENS);
        firn_reason reason;
        assert_true(firn_prefix_put(rig.prefix, tokens, N_TOKENS, alice, rig_caches(&row), &reason));
        rig_row_free(&row);
        firn_prefix_check(rig.prefix);
        /* Three blocks more of each layer that has blocks, and a state more of each that has states. */
        assert_true(rig_stats(&rig).held_bytes - house_bytes <= 3 * RIG_LAYERS * RIG_STATE_BYTES);
        assert_int_equal(rig_lookup(&rig, tokens, N_TOKENS + 1, alice).n_tokens, N_TOKENS);
        /* Bob sees the house and nothing of alice, whatever he asks. */
        for (unsigned i = 0; i < 2; i++) {
            const firn_lease_info info = rig_lookup(&rig, i == 0 ? tokens : other, N_TOKENS, bob);
            assert_int_equal(info.n_tokens, N_HOUSE);
            assert_int_equal(info.first_divergence, N_HOUSE);
            assert_false(info.diverged);
        }
        assert_int_equal(rig_lookup(&rig, tokens, N_TOKENS, "house").n_tokens, N_HOUSE);
        assert_int_equal(rig_lookup(&rig, tokens, N_TOKENS, "alice").n_tokens, 0);
        stop();
    }
}

/* Blocks that only nodes share come free for rows that need memory. */
static void what_children_share_can_be_evicted(void **state)
{
    (void)state;
    char child[8][256];
    start_with("pp", false, 0);
    assert_true(put_with(tokens, N_HOUSE, "house", (firn_cache_policy){ 0 }));
    for (unsigned i = 0; i < 8; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "u%u", i);
        assert_ok(firn_namespace_below("house", name, child[i], NULL));
        firn_lease *lease = rig_acquire(&rig, tokens, N_HOUSE + 1, child[i]);
        rig_row row = rig_lend(lease);
        firn_reason reason;
        assert_true(firn_prefix_put(rig.prefix, tokens, N_HOUSE, child[i], rig_caches(&row), &reason));
        rig_row_free(&row);
        firn_lease_release(lease);
    }
    assert_int_equal(rig_stats(&rig).held_bytes, N_HOUSE / 64 * RIG_NODE_BYTES);
    assert_true(firn_prefix_make_room(rig.prefix, POOL_BYTES));
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    stop();
}

/* ---- pins -------------------------------------------------------------------------------------------------------- */

static void a_pin_holds_its_path_until_its_end(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc", "pwc" };
    for (unsigned m = 0; m < 4; m++) {
        start_with(mixtures[m], false, 0);
        assert_true(put_with(tokens, 200, "house", (firn_cache_policy){ .priority = -100 }));
        assert_status(firn_prefix_pin(rig.prefix, "p", tokens, 201, "house", wall_in(NEVER_NS), NULL),
                      FIRN_ERR_NOT_FOUND);
        assert_ok(firn_prefix_pin(rig.prefix, "p", tokens, 200, "house", wall_in(NEVER_NS), NULL));
        assert_ok(firn_prefix_pin(rig.prefix, "p", tokens, 200, "house", wall_in(20 * RIG_MS), NULL));
        assert_int_equal(rig_stats(&rig).n_pins, 1);
        (void)firn_prefix_make_room(rig.prefix, POOL_BYTES);
        firn_prefix_check(rig.prefix);
        assert_int_equal(rig_lookup(&rig, tokens, 201, "house").n_tokens, 200);
        rig_sleep(25 * RIG_MS);
        (void)firn_prefix_poll(rig.prefix);
        assert_int_equal(rig_stats(&rig).n_pins, 0);
        assert_int_equal(rig_stats(&rig).pinned_bytes, 0);
        assert_true(firn_prefix_make_room(rig.prefix, POOL_BYTES));
        assert_false(firn_prefix_unpin(rig.prefix, "p"));
        stop();
    }
}

static void pins_take_no_more_than_half_of_the_budget(void **state)
{
    (void)state;
    start_with("pp", false, 16 * RIG_NODE_BYTES);
    firn_error err = { 0 };
    assert_true(put_with(tokens, 512, NULL, (firn_cache_policy){ 0 }));
    assert_true(put_with(other, 256, NULL, (firn_cache_policy){ 0 }));
    assert_ok(firn_prefix_pin(rig.prefix, "a", tokens, 448, NULL, wall_in(NEVER_NS), NULL));
    assert_ok(firn_prefix_pin(rig.prefix, "b", tokens, 512, NULL, wall_in(NEVER_NS), NULL)); /* shares seven of eight */
    assert_status(firn_prefix_pin(rig.prefix, "c", other, 64, NULL, wall_in(NEVER_NS), &err), FIRN_ERR_CAPACITY);
    assert_non_null(strstr(err.message, "one half of the RAM budget"));
    assert_true(firn_prefix_unpin(rig.prefix, "b"));
    assert_ok(firn_prefix_pin(rig.prefix, "c", other, 64, NULL, wall_in(NEVER_NS), NULL));
    firn_prefix_check(rig.prefix);
    stop();
}

/* ---- flush ------------------------------------------------------------------------------------------------------- */

static void a_flush_ends_while_the_tree_is_used(void **state)
{
    (void)state;
    start_with("pp", true, 0);
    assert_true(put_with(tokens, 200, NULL, (firn_cache_policy){ 0 }));
    assert_true(firn_prefix_flush_begin(rig.prefix));
    assert_false(firn_prefix_flush_begin(rig.prefix));
    fault_tier_set(fault, hang_stores, true);
    assert_true(put_with(other, 40, NULL, (firn_cache_policy){ 0 })); /* a tail, which came too late */
    fault_tier_set(fault, hang_stores, false);
    firn_flush_report report = { 0 };
    for (uint32_t i = 0; !firn_prefix_flush_ended(rig.prefix, false, &report); i++) {
        assert_true(i < 20000);
        firn_prefix_check(rig.prefix);
        rig_sleep(RIG_MS / 4);
    }
    assert_true(report.durable);
    assert_int_equal(report.n_flushed, 4);
    assert_int_equal(report.n_missing + report.n_failed, 0);
    assert_int_equal(rig_stats(&rig).n_dirty, 1);
    stop();
}

static void a_flush_that_is_given_up_says_what_is_missing(void **state)
{
    (void)state;
    start_with("pp", true, 0);
    fault_tier_set(fault, hang_stores, true);
    assert_true(put_with(tokens, 200, NULL, (firn_cache_policy){ 0 }));
    assert_true(firn_prefix_flush_begin(rig.prefix));
    firn_flush_report report;
    assert_true(firn_prefix_flush_ended(rig.prefix, true, &report));
    assert_false(report.durable);
    assert_int_equal(report.n_missing, 4);
    fault_tier_set(fault, hang_stores, false);
    report = firn_prefix_flush(rig.prefix, NEVER_NS);
    assert_true(report.durable);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_low_prompts_never_evict_a_normal_one),
        cmocka_unit_test(a_low_put_is_cut_where_only_worthier_state_could_make_room),
        cmocka_unit_test(the_tier_is_told_the_priority_and_may_refuse_it),
        cmocka_unit_test(what_is_for_ram_alone_never_reaches_the_tier),
        cmocka_unit_test(who_wants_it_stored_gets_it_stored),
        cmocka_unit_test(a_house_is_held_once_and_its_children_apart),
        cmocka_unit_test(what_children_share_can_be_evicted),
        cmocka_unit_test(a_pin_holds_its_path_until_its_end),
        cmocka_unit_test(pins_take_no_more_than_half_of_the_budget),
        cmocka_unit_test(a_flush_ends_while_the_tree_is_used),
        cmocka_unit_test(a_flush_that_is_given_up_says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
