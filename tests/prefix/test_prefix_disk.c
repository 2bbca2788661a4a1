/*
 * The RAM tier over the real disk tier: conversations grow, RAM is far too small for them, both are restarted; what a
 * lookup lends is always the exact state, and what was flushed is found again.
 */
#include "firn/disk.h"
#include "prefix/prefix_rig.h"

enum { TALES = 12, TALE_TOKENS = 500 };
#define LONG_NS (UINT64_C(60) * 1000 * RIG_MS)

static void open_both(prefix_rig *rig, firn_tier **tier, const char *dir)
{
    const firn_disk_options options = { .dir = dir, .schema = &rig->schema, .pool = rig->pool,
                                        .durability = FIRN_DURABILITY_NONE };
    assert_ok(firn_disk_open(&options, NULL, tier, NULL));
    rig_start(rig, (firn_prefix_options){ .tier = *tier, .budget_bytes = 24 * RIG_NODE_BYTES, .retry_ns_min = RIG_MS });
}

static void close_both(prefix_rig *rig, firn_tier *tier)
{
    rig_stop(rig);
    firn_tier_destroy(tier);
}

static void conversations_outgrow_ram_and_survive_restarts(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("tree over disk", 31);
    char *dir = test_dir_create();
    prefix_rig rig;
    firn_tier *tier;
    rig_init(&rig, NULL, 80 * RIG_NODE_BYTES);
    open_both(&rig, &tier, dir);
    static firn_token tales[TALES][TALE_TOKENS + 1];
    uint32_t n_tokens[TALES] = { 0 }; /* of each tale, that the tree said it kept in full */
    for (uint32_t t = 0; t < TALES; t++) {
        rig_tokens(tales[t], TALE_TOKENS + 1, t % 4);
        for (uint32_t i = 70 + 10 * t; i <= TALE_TOKENS; i++) {
            tales[t][i] += 5000 + t;
        }
    }
    for (uint32_t step = 0; step < 200; step++) {
        const uint32_t t = test_rng_below(&rng, TALES);
        const uint32_t n_more = n_tokens[t] + 16 + test_rng_below(&rng, 60);
        const uint32_t n = n_more < TALE_TOKENS ? n_more : TALE_TOKENS;
        firn_lease *lease = rig_acquire(&rig, tales[t], n, t % 2 == 0 ? "even" : "odd");
        const firn_lease_info info = rig_wait(&rig, lease);
        rig_row row = rig_lend(lease);
        rig_row_verify(&row, tales[t], info.n_tokens);
        rig_row_extend(&row, tales[t], n);
        firn_reason reason;
        (void)firn_prefix_put(rig.prefix, tales[t], n, t % 2 == 0 ? "even" : "odd", rig_caches(&row), &reason);
        n_tokens[t] = reason == FIRN_REASON_NONE ? n : n_tokens[t];
        rig_row_free(&row);
        firn_lease_release(lease);
        (void)firn_prefix_poll(rig.prefix);
        firn_prefix_check(rig.prefix);
        if (step % 70 == 69) {
            const firn_flush_report report = firn_prefix_flush(rig.prefix, LONG_NS);
            assert_true(report.durable);
            assert_true(rig_stats(&rig).n_hits_ram > 0);
            close_both(&rig, tier);
            open_both(&rig, &tier, dir);
        }
    }
    assert_true(firn_prefix_flush(rig.prefix, LONG_NS).durable);
    assert_true(rig_stats(&rig).n_hits_disk > 0);
    assert_true(rig_stats(&rig).n_evicted > 0);
    close_both(&rig, tier);
    open_both(&rig, &tier, dir);
    uint32_t n_all = 0;
    for (uint32_t t = 0; t < TALES; t++) {
        n_all += n_tokens[t];
        const firn_lease_info info = rig_lookup(&rig, tales[t], TALE_TOKENS + 1, t % 2 == 0 ? "even" : "odd");
        assert_true(info.n_tokens >= n_tokens[t]);
    }
    assert_true(n_all > TALES * TALE_TOKENS / 2);
    close_both(&rig, tier);
    rig_deinit(&rig);
    test_dir_remove(dir);
    free(dir);
}

/* Whatever RAM has of a prefix, over mixtures of families: what is lent is right, and every byte that the tier read is
 * in the tree or counted as wasted. */
static void of_what_ram_has_nothing_is_read_again(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "pw", "pc", "pvwc", "b" };
    static firn_token tokens[RIG_TOKENS_MAX];
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    for (uint32_t m = 0; m < 5; m++) {
        for (uint32_t n_ram = 0; n_ram <= 320; n_ram += 160) {
            char *dir = test_dir_create();
            prefix_rig rig;
            firn_tier *tier;
            rig_init_mixture(&rig, NULL, 200 * RIG_NODE_BYTES, mixtures[m], 100);
            const firn_disk_options options = { .dir = dir, .schema = &rig.schema, .pool = rig.pool,
                                                .durability = FIRN_DURABILITY_NONE };
            assert_ok(firn_disk_open(&options, NULL, &tier, NULL));
            rig_start(&rig, (firn_prefix_options){ .tier = tier });
            rig_put_in_chunks(&rig, tokens, 600, 64, NULL);
            assert_true(firn_prefix_flush(rig.prefix, LONG_NS).durable);
            rig_stop(&rig);
            rig_start(&rig, (firn_prefix_options){ .tier = tier, .layered_bytes_min = m % 2 == 0 ? 1 : 0 });
            if (n_ram > 0) {
                rig_put_in_chunks(&rig, tokens, n_ram, 64, NULL);
            }
            const firn_lease_info info = rig_lookup(&rig, tokens, 601, NULL);
            assert_int_equal(info.n_tokens, 600);
            firn_tier_stats below;
            firn_tier_get_stats(tier, &below);
            const firn_prefix_stats stats = rig_stats(&rig);
            assert_int_equal(stats.restored_bytes, below.read_bytes - below.wasted_bytes);
            assert_int_equal(stats.restore_latency.counts[FIRN_LATENCY_BUCKETS - 1], 0);
            if (strcmp(mixtures[m], "pp") == 0) {
                assert_int_equal(stats.wasted_bytes, 0);
                /* One header and one block of each layer for each record that RAM lacks. */
                assert_int_equal(below.read_bytes, (10 - n_ram / 64) * (RIG_NODE_BYTES + 4096));
            }
            rig_stop(&rig);
            firn_tier_destroy(tier);
            rig_deinit(&rig);
            test_dir_remove(dir);
            free(dir);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_what_ram_has_nothing_is_read_again),
        cmocka_unit_test(conversations_outgrow_ram_and_survive_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
