/*
 * Stacks under random operations: a small upper that evicts over a large lower, against a list that remembers all;
 * every allocation failing in turn; many threads at once.
 */
#include "tier/stack_rig.h"

#define N_SEQUENCES 36u
#define SEQUENCE    300u

/* ---- against a list that remembers all --------------------------------------------------------------------------- */

/* Which of the sequences was stored how far. */
typedef struct memory {
    firn_token tokens[N_SEQUENCES][SEQUENCE];
    uint32_t n_stored[N_SEQUENCES];
} memory;

/* The most tokens of a prompt that any stored path begins with. */
static uint32_t longest(const memory *m, const firn_token *prompt, uint32_t n_tokens)
{
    uint32_t best = 0;
    for (uint32_t s = 0; s < N_SEQUENCES; s++) {
        uint32_t n = 0;
        while (n < n_tokens && n < m->n_stored[s] && m->tokens[s][n] == prompt[n]) {
            n++;
        }
        best = n > best ? n : best;
    }
    return best;
}

static void a_small_upper_over_a_large_lower_forgets_nothing(void **unused)
{
    (void)unused;
    stack_rig *rig = calloc(1, sizeof *rig);
    memory *m = calloc(1, sizeof *m);
    assert_true(rig != NULL && m != NULL);
    const firn_stack_options options = { .store_wait_ns = RIG_LONG_NS };
    const firn_disk_options small = {
        .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE
    };
    const fixture_options geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 8, .head_dim = 64 };
    rig->rng = test_rng_create("forgets nothing", 3);
    fixture_init(&rig->fix, NULL, &geometry);
    rig->dirs[0] = test_dir_create();
    rig->dirs[1] = test_dir_create();
    rig_open(rig, &options, &small);
    for (uint32_t s = 0; s < N_SEQUENCES; s++) {
        fixture_random_tokens(&rig->rng, m->tokens[s], SEQUENCE);
        if (s % 3 == 2) { /* some leave an earlier one somewhere */
            const uint32_t n = test_rng_below(&rig->rng, SEQUENCE);
            memcpy(m->tokens[s], m->tokens[test_rng_below(&rig->rng, s)], n * sizeof(firn_token));
        }
    }
    uint32_t n_hits = 0;
    for (uint32_t step = 0; step < 160; step++) {
        const uint32_t s = step < N_SEQUENCES ? step : test_rng_below(&rig->rng, N_SEQUENCES);
        const uint32_t n = step < N_SEQUENCES ? SEQUENCE - 40 : 1 + test_rng_below(&rig->rng, SEQUENCE);
        if (step < N_SEQUENCES || test_rng_below(&rig->rng, 4) == 0) {
            assert_int_equal(fixture_store(&rig->fix, rig->tier, "", m->tokens[s], n), FIRN_REASON_NONE);
            m->n_stored[s] = n > m->n_stored[s] ? n : m->n_stored[s];
            continue;
        }
        firn_token prompt[SEQUENCE];
        memcpy(prompt, m->tokens[s], sizeof prompt);
        prompt[test_rng_below(&rig->rng, SEQUENCE)] ^= test_rng_below(&rig->rng, 2);
        const uint32_t n_matched = longest(m, prompt, n);
        const firn_match match = firn_tier_find(rig->tier, prompt, n, "");
        assert_int_equal(match.matched_len, n_matched);
        assert_int_equal(match.prefix_len, n_matched < n ? n_matched : n - 1);
        if (match.handle != NULL) {
            firn_restored restored;
            assert_int_equal(firn_tier_restore(rig->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
            fixture_assert_state(&rig->fix, &restored, prompt, match.prefix_len);
            firn_restored_deinit(&restored);
            n_hits++;
        }
        firn_tier_release(rig->tier, match.handle);
    }
    assert_true(firn_tier_flush(rig->tier, RIG_LONG_NS).durable);
    const firn_stack_stats stats = rig_stats(rig);
    print_message("%u hits, %llu of them from below; %llu records evicted above, %llu copied, %llu promoted\n", n_hits,
                  (unsigned long long)stats.n_hits_lower, (unsigned long long)stats.upper.n_evicted,
                  (unsigned long long)stats.n_copied, (unsigned long long)stats.n_promoted);
    assert_true(stats.upper.n_evicted > 0 && stats.n_hits_lower > 5 && stats.n_hits_upper > 5 && stats.n_promoted > 0);
    assert_true(stats.n_lost == 0 && stats.n_copies_dropped == 0 && stats.lower.n_evicted == 0);
    for (uint32_t s = 0; s < N_SEQUENCES; s++) {
        assert_true(rig_has(rig->disks[1], m->tokens[s], m->n_stored[s]));
    }
    fixture_check(rig->disks[0]);
    fixture_check(rig->disks[1]);
    rig_deinit(rig);
    free(m);
    free(rig);
}

/* ---- every allocation fails once --------------------------------------------------------------------------------- */

static bool count_pin(void *ctx, const firn_pin *pin)
{
    (void)pin;
    ++*(uint32_t *)ctx;
    return true;
}

static bool count_session(void *ctx, const firn_session *session)
{
    (void)session;
    ++*(uint32_t *)ctx;
    return true;
}

static void note_session(void *ctx, const firn_session *session)
{
    *(uint32_t *)ctx = session->n_tokens;
}

/* What is stored is kept or refused with a reason, what is found is right; whatever of the stack's own memory fails. */
static void use_all_of_it(stack_rig *rig, firn_tier *tier)
{
    const fixture *fix = &rig->fix;
    const uint8_t bytes[8] = { 1, 2, 3 };
    const firn_attachment attachment = { .schema = "test.1", .metadata = bytes, .n_metadata_bytes = sizeof bytes };
    firn_reason reason;
    assert_true(fixture_store_with(fix, tier, "", rig->tokens, 150, &attachment, 1, &reason));
    gate_set(rig->upper, refuse[GATE_STORE], FIRN_REASON_DISK_FULL);
    const bool is_below = fixture_store_with(fix, tier, "", rig->tokens + 400, 100, &attachment, 1, &reason);
    assert_true(is_below || reason == FIRN_REASON_DISK_FULL);
    gate_set(rig->upper, refuse[GATE_STORE], FIRN_REASON_NONE);
    const uint32_t n = fixture_fetch(fix, tier, "", rig->tokens, 151, &reason);
    assert_true(n == 150 || reason == FIRN_REASON_NO_MEMORY);
    if (fixture_fetch(fix, tier, "", rig->tokens + 400, 101, &reason) != 100) {
        assert_true(!is_below || reason == FIRN_REASON_NO_MEMORY);
    }
    const firn_match match = firn_tier_find(tier, rig->tokens + 800, 101, ""); /* only below */
    if (match.handle != NULL) {
        rig_answer answer;
        rig_answer_init(&answer);
        const firn_restore_request request = { .done = rig_done, .ctx = &answer };
        if (firn_tier_restore_request(tier, match.handle, &request, NULL) == FIRN_OK) {
            assert_int_equal(rig_wait_answer(&answer), FIRN_REASON_NONE);
            fixture_assert_state(fix, &answer.restored, rig->tokens + 800, 100);
        }
        rig_answer_deinit(&answer);
        firn_tier_release(tier, match.handle);
    }
    const firn_pin pin = { .name = "p", .tokens = rig->tokens, .n_tokens = 150, .until_wall_ns = UINT64_MAX / 2 };
    assert_ok(firn_tier_pin(tier, &pin, NULL));
    const firn_object object = { .key = "k", .attachments = &attachment, .n_attachments = 1 };
    assert_true(firn_tier_put_object(tier, &object, &reason));
    const firn_session session = { .id = "s", .tokens = rig->tokens, .n_tokens = 150, .used_wall_ns = 1 };
    assert_ok(firn_tier_put_session(tier, &session, NULL));
    firn_restored restored;
    if (firn_tier_get_object(tier, "", "k", &restored) == FIRN_REASON_NONE) {
        assert_memory_equal(restored.attachments[0].metadata, bytes, sizeof bytes);
    }
    firn_restored_deinit(&restored);
    uint32_t n_pins = 0, n_sessions = 0, n_tokens = 0;
    if (firn_tier_each_pin(tier, count_pin, &n_pins, NULL) == FIRN_OK) {
        assert_int_equal(n_pins, 1);
    }
    if (firn_tier_each_session(tier, count_session, &n_sessions, NULL) == FIRN_OK) {
        assert_int_equal(n_sessions, 2); /* one of them below alone */
    }
    (void)firn_tier_get_session(tier, "", "below", note_session, &n_tokens, NULL);
    assert_true(n_tokens == 0 || n_tokens == 100);
    (void)firn_tier_flush(tier, RIG_LONG_NS);
    firn_stack_stats stats;
    assert_true(firn_stack_get_stats(tier, &stats));
    (void)firn_tier_unpin(tier, "p", NULL);
    (void)firn_tier_remove_object(tier, "", "k", NULL);
    (void)firn_tier_remove_session(tier, "", "s", NULL);
    (void)firn_tier_forget(tier, "", rig->tokens, 150, NULL);
}

/* A stack over the rig's disks whose own memory fails at the nth allocation; true: it did. */
static bool run_failing(stack_rig *rig, uint64_t n)
{
    test_world world;
    test_world_init(&world);
    gate_tier *const usual[2] = { rig->upper, rig->lower };
    rig->upper = gate_create(rig->disks[0]);
    rig->lower = gate_create(rig->disks[1]);
    rig->upper->is_borrowed = rig->lower->is_borrowed = true;
    fixture_random_tokens(&rig->rng, rig->tokens, FIXTURE_TOKENS_MAX);
    assert_int_equal(fixture_store(&rig->fix, rig->disks[1], "", rig->tokens + 800, 100), FIRN_REASON_NONE);
    const firn_stack_options options = { .upper = &rig->upper->tier,
                                         .lower = &rig->lower->tier,
                                         .demote_idle_ns = RIG_IDLE_NS,
                                         .lower_deadline_ns = RIG_LONG_NS };
    firn_tier *tier;
    test_world_aim_alloc(&world, n);
    if (firn_stack_create(&options, &world.env, &tier, NULL) == FIRN_OK) {
        use_all_of_it(rig, tier);
        firn_tier_destroy(tier);
    } else {
        assert_null(tier); /* and the tiers are still ours */
        firn_tier_destroy(&rig->upper->tier);
        firn_tier_destroy(&rig->lower->tier);
    }
    const bool has_failed = world.alloc_failed;
    test_world_deinit(&world); /* nothing leaked */
    rig->upper = usual[0];
    rig->lower = usual[1];
    return has_failed;
}

static void each_allocation_of_the_stack_fails_once(void **unused)
{
    (void)unused;
    stack_rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    rig_init(rig, "allocations", NULL, FIXTURE_PLAIN);
    const firn_session session = { .id = "below", .tokens = rig->tokens, .n_tokens = 100, .used_wall_ns = 1 };
    assert_ok(firn_tier_put_session(rig->disks[1], &session, NULL));
    uint64_t n = 1;
    while (run_failing(rig, n)) {
        n++;
    }
    print_message("%llu allocations\n", (unsigned long long)n - 1);
    assert_true(n > 40);
    rig_deinit(rig);
    free(rig);
}

/* ---- many threads ------------------------------------------------------------------------------------------------ */

#define N_THREADS 4u

typedef struct user {
    stack_rig *rig;
    pthread_t thread;
    test_rng rng;
    uint32_t n_hits;
} user;

/* Stores, reads both ways, lists and flushes paths that all users share. What comes back is compared to the bit; a
 * failure may end no more than this user's own calls, so results are checked by the caller of the thread. */
static void *use(void *ctx)
{
    user *self = ctx;
    stack_rig *rig = self->rig;
    for (uint32_t step = 0; step < 60; step++) {
        const firn_token *tokens = rig->tokens + 300 * test_rng_below(&self->rng, 8);
        const uint32_t n = 2 + test_rng_below(&self->rng, 290);
        firn_reason reason;
        firn_tier_stats stats;
        switch (test_rng_below(&self->rng, 8)) {
        case 0: (void)fixture_store(&rig->fix, rig->tier, "", tokens, n); break;
        case 1: (void)fixture_store(&rig->fix, rig->disks[1], "", tokens, n); break; /* a lower of others, too */
        case 2: firn_tier_get_stats(rig->tier, &stats); break;
        case 3: (void)firn_tier_flush(rig->tier, RIG_SECOND_NS / 10); break;
        case 4: {
            rig_answer answer;
            rig_answer_init(&answer);
            const firn_match match = firn_tier_find(rig->tier, tokens, n, "");
            const firn_restore_request request = { .done = rig_done, .ctx = &answer };
            if (match.handle != NULL &&
                firn_tier_restore_request(rig->tier, match.handle, &request, NULL) == FIRN_OK) {
                self->n_hits += rig_wait_answer(&answer) == FIRN_REASON_NONE;
            }
            firn_tier_release(rig->tier, match.handle);
            rig_answer_deinit(&answer);
            break;
        }
        default: self->n_hits += fixture_fetch(&rig->fix, rig->tier, "", tokens, n, &reason) > 0; break;
        }
    }
    return NULL;
}

static void many_threads_may_use_a_stack_at_once(void **unused)
{
    (void)unused;
    stack_rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    const firn_stack_options options = { .demote_idle_ns = 1000000 };
    rig_init(rig, "threads", &options, FIXTURE_PLAIN);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(fixture_store(&rig->fix, rig->disks[i % 2], "", rig->tokens + 300 * i, 100), FIRN_REASON_NONE);
    }
    user users[N_THREADS];
    for (uint32_t i = 0; i < N_THREADS; i++) {
        users[i] = (user){ .rig = rig, .rng = { .state = i } };
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(users[i].thread, NULL), 0);
        n_hits += users[i].n_hits;
    }
    assert_true(n_hits > 60);
    assert_true(firn_tier_flush(rig->tier, RIG_LONG_NS).durable);
    assert_int_equal(rig_stats(rig).n_lost, 0);
    rig_deinit(rig);
    free(rig);
}

int main(void)
{
    rig_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_upper_over_a_large_lower_forgets_nothing),
        cmocka_unit_test(each_allocation_of_the_stack_fails_once),
        cmocka_unit_test(many_threads_may_use_a_stack_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
