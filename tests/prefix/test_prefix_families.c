/*
 * The RAM tier over the storage families: what can be resumed of windows, of fixed-size state and of mixtures, what is
 * lent, what leaves first under pressure, what is stored below and comes back. Every lent row is compared to the bit.
 */
#include <stdio.h>

#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

static prefix_rig rig;
static firn_token tokens[RIG_TOKENS_MAX];

static void start(const char *mixture, uint32_t window, firn_prefix_options options)
{
    rig_init_mixture(&rig, NULL, 1 << 26, mixture, window);
    options.min_tokens = options.min_tokens > 0 ? options.min_tokens : 1;
    rig_start(&rig, options);
}

static uint64_t node_bytes(void)
{
    return rig.prefix->node_bytes;
}

/* A prompt that follows tokens[0..n_common) and goes on otherwise. */
static firn_token *branch_at(uint32_t n_common, uint32_t n, uint32_t conversation)
{
    static firn_token branch[RIG_TOKENS_MAX];
    memcpy(branch, tokens, n_common * sizeof branch[0]);
    for (uint32_t i = n_common; i < n; i++) {
        branch[i] = 7000000u + conversation * 4096u + i;
    }
    return branch;
}

/* ---- windows ---- */

static const uint32_t windows[] = { 1, 63, 64, 65, 100, 128, 200 };

/* Around the place where rows begin to let go of blocks, and after they have wrapped more than twice. */
static void a_window_is_resumed_at_every_offset_to_the_bit(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        const uint32_t window = windows[w];
        const uint32_t lengths[] = { window - 1, window, window + 1, 2 * window + 3, 2 * window + 67 };
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            const uint32_t n = lengths[i];
            start("pw", window, (firn_prefix_options){ 0 });
            if (n == 0) {
                rig_deinit(&rig);
                continue;
            }
            rig_tokens(tokens, RIG_TOKENS_MAX, (uint32_t)i);
            rig_put_in_chunks(&rig, tokens, n, 64, NULL);
            /* The same prompt; one that continues it. */
            const firn_lease_info same = rig_lookup(&rig, tokens, n, NULL);
            assert_int_equal(same.n_tokens, n - 1);
            const firn_lease_info more = rig_lookup(&rig, tokens, n + 50, NULL);
            assert_int_equal(more.n_tokens, n);
            assert_reason(more.reason, FIRN_REASON_NONE);
            /* One that leaves it, at every fifth token. */
            for (uint32_t at = 1; at < n; at += 5) {
                const firn_lease_info info = rig_lookup(&rig, branch_at(at, n + 20, 1), n + 20, NULL);
                assert_int_equal(info.n_tokens, at);
                assert_reason(info.reason, FIRN_REASON_DIVERGED);
            }
            rig_deinit(&rig);
        }
    }
}

/* A row that was put once, when it had let go of its older blocks, serves what its window serves and says why not
 * more. */
static void a_wrapped_row_serves_its_own_window(void **state)
{
    (void)state;
    start("pw", 100, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    firn_reason reason;
    assert_true(rig_put(&rig, tokens, 500, NULL, &reason)); /* window blocks from (500 - 100) / 64 = 6 on */
    assert_reason(reason, FIRN_REASON_NONE);
    assert_int_equal(rig_lookup(&rig, tokens, 600, NULL).n_tokens, 500);
    assert_int_equal(rig_lookup(&rig, branch_at(490, 600, 1), 600, NULL).n_tokens, 490);
    /* At 484 the window begins in block 6, at 483 in block 5. */
    assert_int_equal(rig_lookup(&rig, branch_at(484, 600, 2), 600, NULL).n_tokens, 484);
    const firn_lease_info info = rig_lookup(&rig, branch_at(483, 600, 3), 600, NULL);
    assert_int_equal(info.n_tokens, 0);
    assert_int_equal(info.first_divergence, 483);
    assert_reason(info.reason, FIRN_REASON_FAMILY_MISSING);
    rig_deinit(&rig);
}

static void window_blocks_come_back_with_a_row_that_has_them(void **state)
{
    (void)state;
    start("pw", 100, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    assert_true(rig_put(&rig, tokens, 500, NULL, NULL));
    const uint64_t held_bytes = rig_stats(&rig).held_bytes;
    assert_int_equal(rig_lookup(&rig, branch_at(300, 600, 1), 600, NULL).n_tokens, 0);
    rig_put_in_chunks(&rig, tokens, 320, 64, NULL);
    rig_row row = rig_row_of(&rig, tokens, 330);
    /* Blocks 0 to 4 came back; block 5 holds more tokens in the tree than this row has. */
    firn_reason reason;
    assert_false(firn_prefix_put(rig.prefix, tokens, 330, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_FAMILY_MISSING);
    rig_row_free(&row);
    assert_int_equal(rig_stats(&rig).held_bytes, held_bytes + 5 * RIG_BLOCK_BYTES);
    assert_int_equal(rig_lookup(&rig, branch_at(300, 600, 1), 600, NULL).n_tokens, 300);
    assert_int_equal(rig_lookup(&rig, branch_at(330, 600, 1), 600, NULL).n_tokens, 320);
    assert_int_equal(rig_lookup(&rig, tokens, 600, NULL).n_tokens, 500);
    rig_deinit(&rig);
}

static void what_only_older_positions_need_goes_first(void **state)
{
    (void)state;
    /* 16 blocks, plain and window; room for all but two of them. */
    rig_init_mixture(&rig, NULL, 1 << 26, "pw", 100);
    rig_start(&rig, (firn_prefix_options){ .budget_bytes = 2 * RIG_BLOCK_BYTES * 16 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    rig_put_in_chunks(&rig, tokens, 1000, 64, NULL);
    assert_int_equal(rig_stats(&rig).held_bytes, 2 * RIG_BLOCK_BYTES * 16);
    assert_int_equal(rig_lookup(&rig, branch_at(200, 300, 0), 300, NULL).n_tokens, 200);
    firn_token other[100];
    rig_tokens(other, 100, 9);
    assert_true(rig_put(&rig, other, 100, NULL, NULL)); /* four blocks */
    firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_shed, 4);
    assert_int_equal(stats.n_evicted, 0);
    assert_int_equal(stats.held_bytes, 2 * RIG_BLOCK_BYTES * 16);
    assert_int_equal(rig_lookup(&rig, tokens, 1100, NULL).n_tokens, 1000);
    assert_int_equal(rig_lookup(&rig, other, 100, NULL).n_tokens, 99);
    /* Four are held back for the end: the window before it begins in block (1000 - 100) / 64 = 14, and a margin. */
    firn_token third[256];
    rig_tokens(third, 256, 10);
    rig_put_in_chunks(&rig, third, 256, 64, NULL); /* eight blocks, all that is left for it */
    stats = rig_stats(&rig);
    assert_int_equal(stats.n_shed, 12);
    assert_int_equal(stats.n_evicted, 0);
    assert_int_equal(stats.held_bytes, stats.budget_bytes);
    assert_int_equal(rig_lookup(&rig, tokens, 1100, NULL).n_tokens, 1000);
    const firn_lease_info info = rig_lookup(&rig, branch_at(200, 300, 0), 300, NULL);
    assert_int_equal(info.n_tokens, 0);
    assert_reason(info.reason, FIRN_REASON_FAMILY_MISSING);
    rig_deinit(&rig);
}

static void a_branch_keeps_the_window_before_it(void **state)
{
    (void)state;
    start("pw", 64, (firn_prefix_options){ .budget_bytes = 2 * RIG_BLOCK_BYTES * 40 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    rig_put_in_chunks(&rig, tokens, 960, 64, NULL);
    firn_token *branch = branch_at(448, 960, 1);
    rig_put_in_chunks(&rig, branch, 960, 64, NULL); /* 15 + 8 nodes */
    const uint64_t room = rig_stats(&rig).budget_bytes - rig_stats(&rig).held_bytes;
    firn_token other[RIG_TOKENS_MAX];
    rig_tokens(other, RIG_TOKENS_MAX, 9);
    rig_put_in_chunks(&rig, other, (uint32_t)(room / RIG_BLOCK_BYTES) * 32 + 640, 64, NULL);
    assert_true(rig_stats(&rig).n_shed > 5);
    assert_int_equal(rig_stats(&rig).n_evicted, 0);
    /* A third conversation leaves where the second did. */
    assert_int_equal(rig_lookup(&rig, branch_at(448, 960, 2), 960, NULL).n_tokens, 448);
    rig_deinit(&rig);
}

static void window_blocks_of_a_lease_stay(void **state)
{
    (void)state;
    start("pw", 100, (firn_prefix_options){ .budget_bytes = 2 * RIG_BLOCK_BYTES * 20 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    rig_put_in_chunks(&rig, tokens, 1280, 64, NULL);
    firn_lease *lease = rig_acquire(&rig, branch_at(500, 600, 1), 600, NULL);
    assert_int_equal(firn_lease_result(lease).n_tokens, 500);
    firn_token other[RIG_TOKENS_MAX];
    rig_tokens(other, RIG_TOKENS_MAX, 9);
    rig_put_in_chunks(&rig, other, 576, 64, NULL);
    assert_true(rig_stats(&rig).n_shed > 0);
    assert_int_equal(rig_lookup(&rig, branch_at(300, 600, 1), 600, NULL).n_tokens, 0);
    rig_row row = rig_lend(lease);
    rig_row_verify(&row, tokens, 500);
    rig_row_free(&row);
    firn_lease_release(lease);
    firn_prefix_check(rig.prefix);
    rig_deinit(&rig);
}

static void window_blocks_that_a_row_shares_are_passed_over(void **state)
{
    (void)state;
    rig_init_mixture(&rig, NULL, 2 * RIG_BLOCK_BYTES * 20, "pw", 1000);
    rig_start(&rig, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 3);
    rig_row row = rig_row_of(&rig, tokens, 640);
    assert_true(firn_prefix_put(rig.prefix, tokens, 640, NULL, rig_caches(&row), NULL));
    assert_false(firn_prefix_make_room(rig.prefix, 2 * RIG_BLOCK_BYTES * 11));
    assert_int_equal(rig_stats(&rig).n_nodes, 10);
    assert_int_equal(rig_stats(&rig).n_shed, 0);
    rig_row_free(&row);
    assert_true(firn_prefix_make_room(rig.prefix, 2 * RIG_BLOCK_BYTES * 11));
    firn_prefix_check(rig.prefix);
    rig_deinit(&rig);
}

/* ---- fixed-size state ---- */

static const char *const fixed_mixtures[] = { "c", "pc", "cp", "wc", "pwc", "b", "pb", "h", "wh" };

/* Keys and state agree at every count: a state that was one token off would show in its hash. */
static void a_state_is_resumed_at_its_own_count_only(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof fixed_mixtures / sizeof fixed_mixtures[0]; m++) {
        for (uint32_t k = 1; k <= 4; k++) {
            for (uint32_t n = k * 64 - 1; n <= k * 64 + 1; n++) {
                start(fixed_mixtures[m], 100, (firn_prefix_options){ 0 });
                rig_tokens(tokens, RIG_TOKENS_MAX, k);
                firn_reason reason;
                assert_true(rig_put(&rig, tokens, n, NULL, &reason));
                assert_reason(reason, FIRN_REASON_NONE);
                assert_int_equal(rig_stats(&rig).n_checkpoints, 1);
                assert_int_equal(rig_lookup(&rig, tokens, n + 1, NULL).n_tokens, n);
                assert_int_equal(rig_lookup(&rig, tokens, n + 100, NULL).n_tokens, n);
                const firn_lease_info same = rig_lookup(&rig, tokens, n, NULL);
                assert_int_equal(same.n_tokens, 0);
                assert_int_equal(same.first_divergence, n);
                assert_reason(same.reason, FIRN_REASON_FAMILY_MISSING);
                assert_int_equal(rig_lookup(&rig, branch_at(n - 1, n + 9, 1), n + 9, NULL).n_tokens, 0);
                rig_deinit(&rig);
            }
        }
    }
}

static void a_row_is_published_at_its_own_count_only(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
    rig_row row = rig_row_of(&rig, tokens, 128);
    firn_reason reason;
    assert_false(firn_prefix_put(rig.prefix, tokens, 127, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_COUNT_MISMATCH);
    assert_false(firn_prefix_put(rig.prefix, tokens, 64, NULL, rig_caches(&row), &reason));
    assert_reason(reason, FIRN_REASON_COUNT_MISMATCH);
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    assert_true(firn_prefix_put(rig.prefix, tokens, 128, NULL, rig_caches(&row), &reason));
    rig_row_free(&row);
    rig_deinit(&rig);
}

/* What an engine puts of a prompt and its answer: the chunks of the prompt where windows let go of blocks, the counts
 * that are worth a checkpoint where states are fixed in size, and the end of the answer. */
static void put_turn(const firn_token *turn, uint32_t n_prompt, uint32_t n)
{
    const bool fixed = rig.prefix->families.n_fixed > 0;
    const uint32_t last = (n_prompt - 1) / 64 * 64;
    rig_row row = rig_row_empty(&rig);
    for (uint32_t at = 64; at < n; at += 64) {
        rig_row_extend(&row, turn, at);
        if (!fixed || at == last || at + 128 == last || at + 2048 == last) {
            assert_true(firn_prefix_put(rig.prefix, turn, at, NULL, rig_caches(&row), NULL));
        }
        if (fixed && at == last) {
            rig_row_extend(&row, turn, n_prompt - 1);
            assert_true(firn_prefix_put(rig.prefix, turn, n_prompt - 1, NULL, rig_caches(&row), NULL));
        }
    }
    rig_row_extend(&row, turn, n);
    assert_true(firn_prefix_put(rig.prefix, turn, n, NULL, rig_caches(&row), NULL));
    firn_prefix_check(rig.prefix);
    rig_row_free(&row);
}

/* Same prompt, continuation, branch: the largest usable count of each, for every family. */
static void one_turn_serves_the_next(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "w", "pvw", "c", "pc", "wc", "b", "h", "vwch" };
    for (size_t m = 0; m < sizeof mixtures / sizeof mixtures[0]; m++) {
        start(mixtures[m], 100, (firn_prefix_options){ 0 });
        const bool fixed = rig.prefix->families.n_fixed > 0;
        rig_tokens(tokens, RIG_TOKENS_MAX, 2);
        put_turn(tokens, 650, 700);
        assert_true(rig_stats(&rig).n_nodes > 0);
        assert_int_equal(rig_lookup(&rig, tokens, 650, NULL).n_tokens, 649); /* the same prompt */
        assert_int_equal(rig_lookup(&rig, tokens, 700, NULL).n_tokens, fixed ? 649 : 699);
        assert_int_equal(rig_lookup(&rig, tokens, 900, NULL).n_tokens, 700);
        assert_int_equal(rig_lookup(&rig, branch_at(650, 900, 1), 900, NULL).n_tokens, fixed ? 649 : 650);
        /* Two blocks before the end there is a state again. */
        assert_int_equal(rig_lookup(&rig, branch_at(639, 900, 2), 900, NULL).n_tokens, fixed ? 512 : 639);
        /* A branch goes on from there, is put, and is found itself. */
        firn_token *branch = branch_at(650, 900, 3);
        firn_lease *lease = rig_acquire(&rig, branch, 900, NULL);
        rig_row row = rig_lend(lease);
        rig_row_extend(&row, branch, 900);
        assert_true(firn_prefix_put(rig.prefix, branch, 900, NULL, rig_caches(&row), NULL));
        rig_row_free(&row);
        firn_lease_release(lease);
        assert_int_equal(rig_lookup(&rig, branch, 1000, NULL).n_tokens, 900);
        assert_int_equal(rig_lookup(&rig, tokens, 900, NULL).n_tokens, 700);
        rig_deinit(&rig);
    }
}

/* A checkpoint inside a block is found by whoever shares the tokens before it, whichever node holds it. */
static void a_checkpoint_serves_all_that_leave_behind_it(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    assert_true(rig_put(&rig, tokens, 84, NULL, NULL)); /* a turn ends inside the second block */
    for (uint32_t conversation = 0; conversation < 8; conversation++) {
        firn_token *branch = branch_at(84 + conversation, 200, conversation);
        const firn_lease_info info = rig_lookup(&rig, branch, 200, NULL);
        assert_int_equal(info.n_tokens, 84);
        assert_true(rig_put(&rig, branch, 200, NULL, NULL));
    }
    rig_deinit(&rig);
}

static uint32_t n_usable_of(uint32_t n)
{
    return rig_lookup(&rig, branch_at(n, RIG_TOKENS_MAX, 5), RIG_TOKENS_MAX, NULL).n_tokens;
}

static void a_conversation_keeps_few_checkpoints(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    rig_row row = rig_row_empty(&rig);
    for (uint32_t n = 64; n <= 2016; n += 16) {
        rig_row_extend(&row, tokens, n);
        assert_true(firn_prefix_put(rig.prefix, tokens, n, NULL, rig_caches(&row), NULL));
        assert_true(rig_stats(&rig).n_checkpoints <= 5);
        /* The latest is never the one that goes. */
        assert_int_equal(rig_lookup(&rig, tokens, RIG_TOKENS_MAX, NULL).n_tokens, n);
    }
    firn_prefix_check(rig.prefix);
    rig_row_free(&row);
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_nodes, 32);
    assert_true(stats.n_checkpoints_dropped > 100);
    /* Nothing is held for what was dropped. */
    assert_int_equal(stats.held_bytes, 32 * node_bytes() + stats.n_checkpoints * RIG_STATE_BYTES);
    assert_int_equal(n_usable_of(2016), 2016);
    assert_int_equal(n_usable_of(2015), 2000); /* the first in the block after the last boundary */
    assert_int_equal(n_usable_of(1999), 1984);
    rig_deinit(&rig);
}

static void a_branch_keeps_the_checkpoint_before_it(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    rig_put_in_chunks(&rig, tokens, 320, 64, NULL); /* a system prompt */
    for (uint32_t conversation = 0; conversation < 5; conversation++) {
        firn_token *branch = branch_at(320, 2000, conversation);
        const uint32_t n_usable = rig_lookup(&rig, branch, 2000, NULL).n_tokens;
        assert_int_equal(n_usable, conversation != 1 ? 320 : 64); /* that conversations leave here was not known yet */
        rig_put_in_chunks(&rig, branch, 2000, 64, NULL);
        assert_int_equal(rig_lookup(&rig, branch, 2010, NULL).n_tokens, 2000);
    }
    assert_int_equal(rig_lookup(&rig, branch_at(320, 2000, 9), 2000, NULL).n_tokens, 320);
    rig_deinit(&rig);
}

static void a_leaf_takes_what_it_leaves_useless_along(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ .budget_bytes = 20 * RIG_BLOCK_BYTES + 4 * RIG_STATE_BYTES });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    assert_true(rig_put(&rig, tokens, 128, NULL, NULL));
    assert_true(rig_put(&rig, tokens, 640, NULL, NULL)); /* 10 nodes, checkpoints at 128 and 640 */
    firn_token other[RIG_TOKENS_MAX];
    rig_tokens(other, RIG_TOKENS_MAX, 9);
    assert_true(rig_put(&rig, other, 14 * 64, NULL, NULL));
    /* The eight nodes behind the first checkpoint could not be resumed any more. */
    const firn_prefix_stats stats = rig_stats(&rig);
    assert_int_equal(stats.n_evicted, 8);
    assert_int_equal(rig_lookup(&rig, tokens, 700, NULL).n_tokens, 128);
    assert_int_equal(rig_lookup(&rig, other, 1000, NULL).n_tokens, 14 * 64);
    rig_deinit(&rig);
}

static void state_that_does_not_fit_with_its_blocks_is_not_kept(void **state)
{
    (void)state;
    start("pc", 0, (firn_prefix_options){ .budget_bytes = 10 * RIG_BLOCK_BYTES });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    firn_reason reason;
    assert_false(rig_put(&rig, tokens, 640, NULL, &reason));
    assert_reason(reason, FIRN_REASON_NO_MEMORY);
    assert_int_equal(rig_stats(&rig).held_bytes, 0);
    assert_true(rig_put(&rig, tokens, 512, NULL, &reason));
    assert_int_equal(rig_lookup(&rig, tokens, 640, NULL).n_tokens, 512);
    rig_deinit(&rig);
}

static void a_row_holds_what_was_projected(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "p", "w", "c", "b", "h" };
    for (size_t m = 0; m < sizeof mixtures / sizeof mixtures[0]; m++) {
        start(mixtures[m], 100, (firn_prefix_options){ 0 });
        rig_tokens(tokens, RIG_TOKENS_MAX, 2);
        for (uint32_t n = 1; n < 700; n += n < 260 ? 1 : 37) {
            rig_row row = rig_row_of(&rig, tokens, n);
            firn_pool_stats pool;
            firn_pool_get_stats(rig.pool, &pool);
            assert_int_equal(pool.used_bytes, firn_cache_projected_bytes(row.caches[0], n));
            rig_row_free(&row);
        }
        rig_deinit(&rig);
    }
}

/* ---- the tier below ---- */

static fault_tier *tier;

static void start_over_tier(const char *mixture, firn_prefix_options options)
{
    rig_init_mixture(&rig, NULL, 1 << 26, mixture, 100);
    tier = fault_tier_create(rig.pool);
    options.tier = &tier->tier;
    options.min_tokens = 1;
    rig_start(&rig, options);
}

static void restart(void)
{
    rig_stop(&rig);
    rig_start(&rig, (firn_prefix_options){ .tier = &tier->tier, .min_tokens = 1 });
}

static void stop_over_tier(void)
{
    rig_stop(&rig);
    firn_tier_destroy(&tier->tier);
    rig_deinit(&rig);
}

/* Until the worker is idle. */
static void let_stores_end(void)
{
    for (uint32_t i = 0; rig_stats(&rig).n_queued > 0; i++) {
        assert_true(i < 20000);
        rig_sleep(RIG_MS / 4);
        (void)firn_prefix_poll(rig.prefix);
    }
    firn_prefix_check(rig.prefix);
}

static void a_turn_is_stored_and_comes_back_after_a_restart(void **state)
{
    (void)state;
    static const char *const mixtures[] = { "pp", "w", "pvw", "c", "pc", "wc", "b", "h", "vwch" };
    for (size_t m = 0; m < sizeof mixtures / sizeof mixtures[0]; m++) {
        start_over_tier(mixtures[m], (firn_prefix_options){ 0 });
        const bool fixed = rig.prefix->families.n_fixed > 0;
        rig_tokens(tokens, RIG_TOKENS_MAX, 2);
        put_turn(tokens, 650, 700);
        let_stores_end();
        assert_true(rig_stats(&rig).n_stores > 0); /* whole blocks, soon */
        restart();
        assert_int_equal(rig_lookup(&rig, tokens, 690, NULL).disk_tokens, 640);
        restart();
        put_turn(tokens, 650, 700);
        assert_true(firn_prefix_flush(rig.prefix, 3600 * UINT64_C(1000000000)).durable);
        assert_int_equal(rig_stats(&rig).n_dirty, 0);
        assert_int_equal(rig_stats(&rig).dirty_bytes, 0);
        restart();
        const firn_lease_info more = rig_lookup(&rig, tokens, 900, NULL);
        assert_int_equal(more.disk_tokens, 700);
        restart();
        assert_int_equal(rig_lookup(&rig, tokens, 700, NULL).disk_tokens, fixed ? 649 : 699);
        restart();
        assert_int_equal(rig_lookup(&rig, branch_at(600, 900, 1), 900, NULL).disk_tokens, fixed ? 512 : 600);
        stop_over_tier();
    }
}

/* RAM may have more tokens and the tier the state that they lack. */
static void the_tier_is_read_for_state_that_ram_lacks(void **state)
{
    (void)state;
    start_over_tier("pc", (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    assert_true(rig_put(&rig, tokens, 320, NULL, NULL));
    assert_true(firn_prefix_flush(rig.prefix, 3600 * UINT64_C(1000000000)).durable);
    restart();
    assert_true(rig_put(&rig, tokens, 640, NULL, NULL));
    let_stores_end();
    const firn_lease_info info = rig_lookup(&rig, branch_at(400, 900, 1), 900, NULL);
    assert_int_equal(info.n_tokens, 320);
    assert_int_equal(info.disk_tokens, 320);
    /* From then on RAM has it. */
    assert_int_equal(rig_lookup(&rig, branch_at(400, 900, 1), 900, NULL).ram_tokens, 320);
    /* The token blocks were there already: what was read of them was read for nothing, the state was not. */
    assert_int_equal(rig_stats(&rig).wasted_bytes, 5 * RIG_BLOCK_BYTES);
    stop_over_tier();
}

static void restored_windows_fill_what_ram_lacks(void **state)
{
    (void)state;
    start_over_tier("pw", (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    rig_put_in_chunks(&rig, tokens, 640, 64, NULL);
    assert_true(firn_prefix_flush(rig.prefix, 3600 * UINT64_C(1000000000)).durable);
    restart();
    assert_true(rig_put(&rig, tokens, 960, NULL, NULL)); /* computed at once: window blocks of the end alone */
    const firn_lease_info info = rig_lookup(&rig, branch_at(400, 900, 1), 900, NULL);
    /* The tree holds more tokens of the seventh block than the 16 that were read with their window: not those. */
    assert_int_equal(info.n_tokens, 384);
    assert_int_equal(info.disk_tokens, 384);
    assert_int_equal(rig_lookup(&rig, branch_at(380, 900, 1), 900, NULL).ram_tokens, 380);
    /* And nothing is read again for them. */
    assert_int_equal(fault_tier_get(tier, &tier->n_reads), 1);
    assert_int_equal(rig_lookup(&rig, branch_at(400, 900, 1), 900, NULL).n_tokens, 384);
    assert_int_equal(fault_tier_get(tier, &tier->n_reads), 1);
    assert_int_equal(rig_lookup(&rig, branch_at(500, 900, 1), 900, NULL).n_tokens, 448);
    assert_int_equal(fault_tier_get(tier, &tier->n_reads), 2);
    stop_over_tier();
}

static void an_unsaved_checkpoint_is_not_dropped(void **state)
{
    (void)state;
    start_over_tier("pc", (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    fault_tier_set(tier, hang_stores, true);
    rig_put_in_chunks(&rig, tokens, 1280, 64, NULL);
    assert_int_equal(rig_stats(&rig).n_checkpoints, 20);
    assert_int_equal(rig_stats(&rig).n_checkpoints_dropped, 0);
    for (uint32_t n = 64; n < 1280; n += 64) {
        assert_int_equal(n_usable_of(n), n);
    }
    fault_tier_set(tier, hang_stores, false);
    let_stores_end();
    assert_true(rig_stats(&rig).n_checkpoints <= 5);
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    /* All have been stored on the way. */
    restart();
    for (uint32_t n = 64; n <= 1280; n += 64) {
        assert_int_equal(n_usable_of(n), n);
    }
    stop_over_tier();
}

/* The prompt without its last token: kept while the prompt is the last one, stored at a flush, and let go of without a
 * store when the conversation has gone on. */
static void a_prompt_that_may_be_asked_again_costs_no_store_in_each_turn(void **state)
{
    (void)state;
    start_over_tier("pc", (firn_prefix_options){ 0 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    put_turn(tokens, 650, 690);
    let_stores_end();
    assert_int_equal(rig_stats(&rig).n_stores, 2); /* at 512 and 640 */
    assert_int_equal(rig_lookup(&rig, tokens, 650, NULL).ram_tokens, 649);
    put_turn(tokens, 1000, 1010);
    let_stores_end();
    /* Those at 832 and 960, and the end of the answer at 690, in whose block the boundary has one of its own. */
    assert_true(rig_stats(&rig).n_stores <= 5);
    assert_int_equal(rig_lookup(&rig, tokens, 650, NULL).n_tokens, 640);
    assert_int_equal(rig_lookup(&rig, tokens, 1000, NULL).ram_tokens, 999);
    assert_true(firn_prefix_flush(rig.prefix, 3600 * UINT64_C(1000000000)).durable);
    restart();
    assert_int_equal(rig_lookup(&rig, tokens, 1000, NULL).disk_tokens, 999);
    restart();
    assert_int_equal(rig_lookup(&rig, tokens, 650, NULL).disk_tokens, 640);
    stop_over_tier();
}

/* What cannot be resumed anywhere cannot be stored, and must not stay for that reason. */
static void blocks_without_an_end_to_resume_at_may_leave(void **state)
{
    (void)state;
    start_over_tier("pw", (firn_prefix_options){ .budget_bytes = 2 * RIG_BLOCK_BYTES * 16 });
    rig_tokens(tokens, RIG_TOKENS_MAX, 2);
    for (uint32_t conversation = 0; conversation < 12; conversation++) {
        rig_tokens(tokens, RIG_TOKENS_MAX, conversation);
        (void)rig_put(&rig, tokens, 500 + 37 * conversation, NULL, NULL);
        let_stores_end();
    }
    (void)firn_prefix_flush(rig.prefix, 3600 * UINT64_C(1000000000));
    assert_int_equal(rig_stats(&rig).n_dirty, 0);
    assert_true(firn_prefix_make_room(rig.prefix, 1 << 26));
    assert_int_equal(rig_stats(&rig).n_nodes, 0);
    stop_over_tier();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_is_resumed_at_every_offset_to_the_bit),
        cmocka_unit_test(a_wrapped_row_serves_its_own_window),
        cmocka_unit_test(window_blocks_come_back_with_a_row_that_has_them),
        cmocka_unit_test(what_only_older_positions_need_goes_first),
        cmocka_unit_test(a_branch_keeps_the_window_before_it),
        cmocka_unit_test(window_blocks_of_a_lease_stay),
        cmocka_unit_test(window_blocks_that_a_row_shares_are_passed_over),
        cmocka_unit_test(a_state_is_resumed_at_its_own_count_only),
        cmocka_unit_test(a_row_is_published_at_its_own_count_only),
        cmocka_unit_test(one_turn_serves_the_next),
        cmocka_unit_test(a_checkpoint_serves_all_that_leave_behind_it),
        cmocka_unit_test(a_conversation_keeps_few_checkpoints),
        cmocka_unit_test(a_branch_keeps_the_checkpoint_before_it),
        cmocka_unit_test(a_leaf_takes_what_it_leaves_useless_along),
        cmocka_unit_test(state_that_does_not_fit_with_its_blocks_is_not_kept),
        cmocka_unit_test(a_row_holds_what_was_projected),
        cmocka_unit_test(a_turn_is_stored_and_comes_back_after_a_restart),
        cmocka_unit_test(the_tier_is_read_for_state_that_ram_lacks),
        cmocka_unit_test(restored_windows_fill_what_ram_lacks),
        cmocka_unit_test(an_unsaved_checkpoint_is_not_dropped),
        cmocka_unit_test(a_prompt_that_may_be_asked_again_costs_no_store_in_each_turn),
        cmocka_unit_test(blocks_without_an_end_to_resume_at_may_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
