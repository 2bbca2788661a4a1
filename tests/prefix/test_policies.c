/*
 * Who leaves first and who may come in: the policies alone, and in the tree.
 */
#include "prefix/prefix_rig.h"

enum { BIG = 1 << 24, BLOCK = FIRN_BLOCK_TOKENS };
#define SECOND_NS UINT64_C(1000000000)

static prefix_rig rig;
static firn_token tokens[RIG_TOKENS_MAX], other[RIG_TOKENS_MAX];

static void start(const char *policy, const char *admission, uint32_t n_nodes)
{
    rig_init(&rig, NULL, BIG);
    rig_start(&rig, (firn_prefix_options){ .min_tokens = 1,
                                           .budget_bytes = n_nodes * RIG_NODE_BYTES,
                                           .policy = policy,
                                           .admission = admission });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_tokens(other, RIG_TOKENS_MAX, 2);
}

static uint32_t stored(const firn_token *path, uint32_t n)
{
    return rig_lookup(&rig, path, n + 1, NULL).ram_tokens;
}

/* ---- the order alone ---- */

static void what_saves_more_for_its_bytes_stays_longer(void **state)
{
    (void)state;
    const firni_use near = { .first_token = 0, .n_tokens = BLOCK, .bytes = 1000, .unit_bytes = 1000 };
    firni_use far = near, large = near, checkpoint = near, later = near;
    far.first_token = 100000;
    large.bytes = 2000;
    checkpoint.n_tokens = 4096;
    later.clock = 5000;
    const uint64_t rank = firni_policy_cost.rank(&near);
    assert_true(firni_policy_cost.rank(&far) > 5 * rank);
    assert_true(firni_policy_cost.rank(&large) < rank);
    assert_true(firni_policy_cost.rank(&checkpoint) > 64 * rank);
    assert_int_equal(firni_policy_cost.rank(&later), rank + 5000);
}

static void ranks_stay_in_range_whatever_is_asked(void **state)
{
    (void)state;
    const firni_use worst = { .clock = UINT64_MAX - 3,
                              .first_token = UINT32_MAX,
                              .n_tokens = UINT32_MAX,
                              .bytes = 0,
                              .unit_bytes = UINT64_MAX };
    assert_int_equal(firni_policy_cost.rank(&worst), UINT64_MAX);
    const firni_use nothing = { .bytes = 0 };
    assert_int_equal(firni_policy_cost.rank(&nothing), 0);
}

static void policies_are_found_by_name(void **state)
{
    (void)state;
    bool second;
    assert_ptr_equal(firni_policy_find(NULL), &firni_policy_lru);
    assert_ptr_equal(firni_policy_find("lru"), &firni_policy_lru);
    assert_ptr_equal(firni_policy_find("cost"), &firni_policy_cost);
    assert_null(firni_policy_find("shed")); /* an order of its own heap, no choice */
    assert_true(firni_admission_find("always", &second) && !second);
    assert_true(firni_admission_find("second", &second) && second);
    assert_false(firni_admission_find("third", &second));
}

static void an_unknown_policy_is_refused_by_name(void **state)
{
    (void)state;
    rig_init(&rig, NULL, BIG);
    firn_prefix_options options = { .pool = rig.pool, .schema = &rig.schema, .policy = "fifo" };
    firn_prefix *prefix;
    firn_error err = { 0 };
    assert_status(firn_prefix_create(&options, &rig.env, &prefix, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "fifo"));
    options.policy = NULL;
    options.admission = "never";
    assert_status(firn_prefix_create(&options, &rig.env, &prefix, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "never"));
    rig_deinit(&rig);
}

/* ---- in the tree ---- */

/* Six blocks, then one of another conversation, used later: by recency the longer one's end leaves, by cost the
 * beginning that is soon computed again. */
static void put_deep_then_shallow(void)
{
    assert_true(rig_put(&rig, tokens, 6 * BLOCK, NULL, NULL));
    assert_true(rig_put(&rig, other, BLOCK, NULL, NULL));
    firn_token third[2 * BLOCK];
    rig_tokens(third, 2 * BLOCK, 3);
    assert_true(rig_put(&rig, third, 2 * BLOCK, NULL, NULL)); /* the budget is eight blocks: one has to go */
}

static void by_recency_the_oldest_end_leaves(void **state)
{
    (void)state;
    start("lru", NULL, 8);
    put_deep_then_shallow();
    assert_int_equal(stored(tokens, 6 * BLOCK), 5 * BLOCK);
    assert_int_equal(stored(other, BLOCK), BLOCK);
    rig_deinit(&rig);
}

static void by_cost_what_is_cheap_to_compute_leaves(void **state)
{
    (void)state;
    start("cost", NULL, 8);
    put_deep_then_shallow();
    assert_int_equal(stored(tokens, 6 * BLOCK), 6 * BLOCK);
    assert_int_equal(stored(other, BLOCK), 0);
    rig_deinit(&rig);
}

/* The clock moves with each victim, so what is dear but never asked for again does not stay for ever. */
static void what_is_dear_and_unused_leaves_in_the_end(void **state)
{
    (void)state;
    start("cost", NULL, 8);
    assert_true(rig_put(&rig, tokens, 6 * BLOCK, NULL, NULL));
    for (uint32_t i = 0; i < 100; i++) {
        firn_token fresh[2 * BLOCK];
        rig_tokens(fresh, 2 * BLOCK, 100 + i);
        (void)rig_put(&rig, fresh, 2 * BLOCK, NULL, NULL);
    }
    assert_int_equal(stored(tokens, 6 * BLOCK), 0);
    rig_deinit(&rig);
}

/* Every invariant after each step, with paths that share beginnings, under both orders and both rules. */
static void no_policy_breaks_a_promise_or_makes_an_orphan(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 4; which++) {
        start(which % 2 == 0 ? "lru" : "cost", which / 2 == 0 ? "always" : "second", 10);
        test_rng rng = test_rng_create("policies", 40 + which);
        firn_lease *lease = NULL;
        firn_lease_info promised = { 0 };
        firn_token path[RIG_TOKENS_MAX], leased[RIG_TOKENS_MAX];
        for (uint32_t step = 0; step < 400; step++) {
            const uint32_t n = 1 + test_rng_below(&rng, 6 * BLOCK);
            rig_tokens(path, n, 1 + test_rng_below(&rng, 4));
            const uint32_t n_shared = test_rng_below(&rng, n + 1);
            memcpy(path, tokens, n_shared * sizeof path[0]);
            (void)rig_lookup(&rig, path, n, NULL);
            (void)rig_put(&rig, path, n, NULL, NULL);
            if (lease != NULL) {
                rig_row row = rig_lend(lease);
                rig_row_verify(&row, leased, promised.n_tokens);
                rig_row_free(&row);
            }
            if (step % 20 == 0) {
                firn_lease_release(lease);
                memcpy(leased, path, n * sizeof path[0]);
                lease = rig_acquire(&rig, leased, n, NULL);
                promised = rig_wait(&rig, lease);
            }
        }
        assert_true(rig_stats(&rig).n_evicted > 0);
        firn_lease_release(lease);
        rig_deinit(&rig);
    }
}

/* ---- admission ---- */

static void a_starved_tree_takes_in_what_is_asked_for_twice(void **state)
{
    (void)state;
    start(NULL, "second", 4);
    firn_reason reason;
    (void)stored(tokens, 4 * BLOCK);
    assert_true(rig_put(&rig, tokens, 4 * BLOCK, NULL, &reason)); /* there is room */
    assert_reason(reason, FIRN_REASON_NONE);
    rig_lookup(&rig, other, 2 * BLOCK, NULL);
    assert_false(rig_put(&rig, other, 2 * BLOCK, NULL, &reason)); /* full, and of a moment ago */
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    /* A second put of one request is no second sighting. */
    assert_false(rig_put(&rig, other, 2 * BLOCK, NULL, &reason));
    assert_int_equal(stored(tokens, 4 * BLOCK), 4 * BLOCK);
    rig_lookup(&rig, other, 2 * BLOCK, NULL);
    assert_true(rig_put(&rig, other, 2 * BLOCK, NULL, &reason));
    assert_reason(reason, FIRN_REASON_NONE);
    assert_int_equal(stored(other, 2 * BLOCK), 2 * BLOCK);
    rig_deinit(&rig);
}

static void a_tree_of_old_state_takes_in_everything(void **state)
{
    (void)state;
    start(NULL, "second", 4);
    (void)stored(tokens, 4 * BLOCK);
    assert_true(rig_put(&rig, tokens, 4 * BLOCK, NULL, NULL));
    atomic_fetch_add(&rig.clock_ahead_ns, 90 * SECOND_NS);
    rig_lookup(&rig, other, 2 * BLOCK, NULL); /* two of them, so that time is known to have passed */
    assert_false(rig_put(&rig, other, 2 * BLOCK, NULL, NULL));
    atomic_fetch_add(&rig.clock_ahead_ns, 121 * SECOND_NS);
    firn_token third[2 * BLOCK];
    rig_tokens(third, 2 * BLOCK, 3);
    rig_lookup(&rig, third, 2 * BLOCK, NULL);
    assert_true(rig_put(&rig, third, 2 * BLOCK, NULL, NULL));
    rig_deinit(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_saves_more_for_its_bytes_stays_longer),
        cmocka_unit_test(ranks_stay_in_range_whatever_is_asked),
        cmocka_unit_test(policies_are_found_by_name),
        cmocka_unit_test(an_unknown_policy_is_refused_by_name),
        cmocka_unit_test(by_recency_the_oldest_end_leaves),
        cmocka_unit_test(by_cost_what_is_cheap_to_compute_leaves),
        cmocka_unit_test(what_is_dear_and_unused_leaves_in_the_end),
        cmocka_unit_test(no_policy_breaks_a_promise_or_makes_an_orphan),
        cmocka_unit_test(a_starved_tree_takes_in_what_is_asked_for_twice),
        cmocka_unit_test(a_tree_of_old_state_takes_in_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
