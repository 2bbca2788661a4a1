/*
 * The RAM tier under refusal and over time: the Nth allocation fails, for every N; a million cycles leave nothing
 * behind; random operations over a slow and moody tier lose nothing that was accepted.
 */
#include <stdio.h>

#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

#define LONG_NS (UINT64_C(3600) * 1000 * RIG_MS)

/* ---- allocations ---- */

typedef struct scenario_rows {
    rig_row a, a_longer, b, small;
    firn_token a_tokens[300], b_tokens[300];
} scenario_rows;

/* Everything a tree does, where any allocation may fail: what is found is right, or less. */
static void play(prefix_rig *rig, const scenario_rows *rows, firn_tier *tier)
{
    firn_prefix_options options = { .pool = rig->pool, .schema = &rig->schema, .tier = tier, .min_tokens = 1,
                                    .restore_deadline_ns = LONG_NS, .retry_ns_min = 1,
                                    .budget_bytes = 8 * RIG_NODE_BYTES };
    if (firn_prefix_create(&options, &rig->env, &rig->prefix, NULL) != FIRN_OK) {
        assert_null(rig->prefix);
        return;
    }
    const struct {
        const rig_row *row;
        const firn_token *tokens;
        uint32_t n;
        const char *ns;
    } puts[] = { { &rows->a, rows->a_tokens, 200, NULL }, { &rows->b, rows->b_tokens, 300, NULL },
                 { &rows->small, rows->b_tokens, 30, "ns" }, { &rows->a_longer, rows->a_tokens, 300, NULL } };
    for (size_t i = 0; i < sizeof puts / sizeof puts[0]; i++) {
        firn_reason reason;
        (void)firn_prefix_put(rig->prefix, puts[i].tokens, puts[i].n, puts[i].ns, rig_caches(puts[i].row), &reason);
        firn_prefix_check(rig->prefix);
        firn_lease *lease;
        if (firn_prefix_acquire(rig->prefix, puts[i].tokens, puts[i].n, puts[i].ns, &lease, NULL) != FIRN_OK) {
            assert_null(lease);
            continue;
        }
        const firn_lease_info info = rig_wait(rig, lease);
        assert_true(info.n_tokens < puts[i].n);
        rig_row lent = { .n_layers = rig->n_layers };
        if (firn_lease_lend(lease, lent.caches, NULL) == FIRN_OK) {
            rig_row_verify(&lent, puts[i].tokens, info.n_tokens);
            rig_row_free(&lent);
        } else {
            assert_null(lent.caches[0]);
        }
        firn_lease_release(lease);
        (void)firn_prefix_poll(rig->prefix);
        firn_prefix_check(rig->prefix);
    }
    if (tier != NULL) {
        (void)firn_prefix_flush(rig->prefix, 5 * RIG_MS);
    }
    (void)firn_prefix_make_room(rig->prefix, firn_pool_room(rig->pool) + 3 * RIG_NODE_BYTES);
    firn_prefix_check(rig->prefix);
    rig_stop(rig);
}

static void torture(const char *mixture, bool with_tier)
{
    uint64_t n = 1;
    for (;; n++) {
        test_world world;
        test_world_init(&world);
        prefix_rig rig;
        rig_init_mixture(&rig, &world.env, 1 << 22, mixture, 100);
        scenario_rows *rows = calloc(1, sizeof *rows);
        rig_tokens(rows->a_tokens, 300, 1);
        memcpy(rows->b_tokens, rows->a_tokens, sizeof rows->b_tokens);
        for (uint32_t i = 100; i < 300; i++) {
            rows->b_tokens[i] += 9;
        }
        rows->a = rig_row_of(&rig, rows->a_tokens, 200);
        rows->a_longer = rig_row_of(&rig, rows->a_tokens, 300);
        rows->b = rig_row_of(&rig, rows->b_tokens, 300);
        rows->small = rig_row_of(&rig, rows->b_tokens, 30);
        fault_tier *fault = with_tier ? fault_tier_create(rig.pool) : NULL;
        if (with_tier) {
            const firn_store_input input = { .tokens = rows->b_tokens, .n_tokens = 300, .caches = rig_caches(&rows->b),
                                             .n_caches = rig.n_layers };
            firn_reason reason;
            assert_true(firn_tier_store(&fault->tier, &input, &reason));
        }
        world.fail_alloc_at = world.n_allocs + n;
        play(&rig, rows, with_tier ? &fault->tier : NULL);
        world.fail_alloc_at = 0;
        const bool clean = !world.alloc_failed;
        rig_row_free(&rows->a);
        rig_row_free(&rows->a_longer);
        rig_row_free(&rows->b);
        rig_row_free(&rows->small);
        free(rows);
        firn_tier_destroy(with_tier ? &fault->tier : NULL);
        rig_deinit(&rig);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
        assert_true(n < 5000);
    }
    printf("%s, %s tier: %u allocations failed in turn\n", mixture, with_tier ? "with" : "without", (unsigned)n - 1);
    assert_true(n > 30);
}

static void any_failed_allocation_leaves_the_tree_whole(void **state)
{
    (void)state;
    torture("pp", false);
    torture("pwc", false);
    torture("b", false);
}

static void any_failed_allocation_over_a_tier_leaves_the_tree_whole(void **state)
{
    (void)state;
    torture("pp", true);
    torture("pwc", true);
    torture("b", true);
}

/* ---- a long life ---- */

static void a_million_puts_and_evictions_leave_nothing(void **state)
{
    (void)state;
    enum { ROWS = 16, CYCLES = 1000000 };
    prefix_rig rig;
    rig_init(&rig, NULL, 1 << 22);
    rig_start(&rig, (firn_prefix_options){ .budget_bytes = 6 * RIG_NODE_BYTES });
    static firn_token tokens[ROWS][100];
    rig_row rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        rig_tokens(tokens[i], 100, i);
        rows[i] = rig_row_of(&rig, tokens[i], 100);
    }
    const char *const namespaces[] = { "a", "b", "c" };
    for (uint32_t i = 0; i < CYCLES; i++) {
        const uint32_t row = (i * 7u) % ROWS;
        assert_true(firn_prefix_put(rig.prefix, tokens[row], i % 2 == 0 ? 64 : 100, namespaces[i % 3],
                                    rig_caches(&rows[row]), NULL));
    }
    firn_prefix_check(rig.prefix);
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_true(stats.n_evicted > CYCLES);
    for (uint32_t i = 0; i < ROWS; i++) {
        rig_row_free(&rows[i]);
    }
    assert_true(firn_prefix_make_room(rig.prefix, 1 << 22));
    firn_prefix_check(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    assert_int_equal(rig_stats(&rig).held_bytes, 0);
    firn_pool_stats pool;
    firn_pool_get_stats(rig.pool, &pool);
    assert_int_equal(pool.used_bytes, 0);
    assert_int_equal(pool.copied_bytes, 0);
    rig_deinit(&rig);
}

/* ---- everything at once ---- */

enum { TALES = 20, TALE_TOKENS = 400 };

/* One conversation and how much of it the tree said that it kept. */
typedef struct tale {
    firn_token tokens[TALE_TOKENS + 1];
    uint32_t n_kept;
    const char *ns;
} tale;

static void change_the_weather(test_rng *rng, fault_tier *fault)
{
    static const firn_reason moods[] = { FIRN_REASON_NONE, FIRN_REASON_NONE, FIRN_REASON_DISK_FULL,
                                         FIRN_REASON_IO_ERROR };
    const firn_reason stores = moods[test_rng_below(rng, 4)];
    const firn_reason reads = moods[test_rng_below(rng, 4)];
    const uint64_t delay_ns = test_rng_below(rng, 3) * RIG_MS / 2;
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = stores;
    dict_tier_unlock(fault->dict);
    fault_tier_set(fault, read_reason, reads);
    fault_tier_set(fault, store_delay_ns, delay_ns);
    fault_tier_set(fault, read_delay_ns, delay_ns);
}

static void nothing_accepted_is_lost_over_a_moody_tier(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("moody tier", 21);
    prefix_rig rig;
    rig_init(&rig, NULL, 64 * RIG_NODE_BYTES);
    fault_tier *fault = fault_tier_create(rig.pool);
    const firn_prefix_options options = { .tier = &fault->tier, .budget_bytes = 40 * RIG_NODE_BYTES,
                                          .retry_ns_min = RIG_MS, .write_queue_max = 4,
                                          .restore_deadline_ns = 3000 * RIG_MS };
    rig_start(&rig, options);
    static tale tales[TALES];
    for (uint32_t t = 0; t < TALES; t++) {
        const uint32_t from = t % 3 == 0 ? 0 : test_rng_below(&rng, 200);
        memcpy(tales[t].tokens, tales[t - t % 3].tokens, from * sizeof(firn_token));
        for (uint32_t i = from; i <= TALE_TOKENS; i++) {
            tales[t].tokens[i] = 1000 * t + i;
        }
        tales[t].n_kept = 0;
        tales[t].ns = t % 2 == 0 ? "even" : "odd";
    }
    for (uint32_t step = 0; step < 1500; step++) {
        tale *one = &tales[test_rng_below(&rng, TALES)];
        if (step % 50 == 0) {
            change_the_weather(&rng, fault);
        }
        /* A turn: look up, go on from what there is, put. */
        const uint32_t n_more = one->n_kept + 1 + test_rng_below(&rng, 90);
        const uint32_t n = n_more < TALE_TOKENS ? n_more : TALE_TOKENS;
        firn_lease *lease;
        assert_ok(firn_prefix_acquire(rig.prefix, one->tokens, n, one->ns, &lease, NULL));
        if (test_rng_below(&rng, 10) == 0) {
            firn_lease_release(lease); /* cancelled */
            continue;
        }
        const firn_lease_info info = rig_wait(&rig, lease);
        rig_row row = rig_lend(lease);
        rig_row_verify(&row, one->tokens, info.n_tokens);
        /* Fresh memory for what is computed: make room as an engine would, or give up this turn. */
        if (firn_prefix_make_room(rig.prefix, 8 * RIG_NODE_BYTES)) {
            rig_row_extend(&row, one->tokens, n);
            firn_reason reason;
            (void)firn_prefix_put(rig.prefix, one->tokens, n, one->ns, rig_caches(&row), &reason);
            if (reason == FIRN_REASON_NONE && n > one->n_kept) {
                one->n_kept = n < 16 ? 0 : n;
            }
        } else {
            rig_sleep(RIG_MS);
        }
        rig_row_free(&row);
        firn_lease_release(lease);
        (void)firn_prefix_poll(rig.prefix);
        firn_prefix_check(rig.prefix);
        assert_true(rig_stats(&rig).held_bytes <= options.budget_bytes);
    }
    /* The weather clears; all that was accepted is there after a restart. */
    dict_tier_lock(fault->dict);
    fault->dict->store_reason = FIRN_REASON_NONE;
    dict_tier_unlock(fault->dict);
    fault_tier_set(fault, read_reason, FIRN_REASON_NONE);
    assert_true(firn_prefix_flush(rig.prefix, LONG_NS).durable);
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_dirty, 0);
    assert_true(stats.n_store_failures > 0 && stats.n_evicted > 0 && stats.n_hits_disk > 0);
    rig_stop(&rig);
    rig_start(&rig, options);
    for (uint32_t t = 0; t < TALES; t++) {
        const firn_lease_info info = rig_lookup(&rig, tales[t].tokens, TALE_TOKENS + 1, tales[t].ns);
        assert_true(info.n_tokens >= tales[t].n_kept);
    }
    rig_stop(&rig);
    firn_tier_destroy(&fault->tier);
    rig_deinit(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failed_allocation_leaves_the_tree_whole),
        cmocka_unit_test(any_failed_allocation_over_a_tier_leaves_the_tree_whole),
        cmocka_unit_test(a_million_puts_and_evictions_leave_nothing),
        cmocka_unit_test(nothing_accepted_is_lost_over_a_moody_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
