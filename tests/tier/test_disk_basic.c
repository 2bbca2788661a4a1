/* The disk tier's everyday life: store, find, restore, reopen, cut, namespaces, what a miss says. */
#include "tier/tier_fixture.h"

#define N 300u

typedef struct state {
    fixture fix;
    char *dir;
    firn_tier *tier;
    test_rng rng;
    firn_token tokens[FIXTURE_TOKENS_MAX];
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    s->rng = test_rng_create("disk_basic", 7);
    fixture_init(&s->fix, NULL, NULL);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    fixture_random_tokens(&s->rng, s->tokens, FIXTURE_TOKENS_MAX);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    test_dir_remove(s->dir);
    fixture_deinit(&s->fix);
    free(s->dir);
    free(s);
    return 0;
}

static void reopen(state *s)
{
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, NULL);
}

static void an_empty_store_misses_and_says_so(void **in)
{
    state *s = *in;
    const firn_match match = firn_tier_find(s->tier, s->tokens, N, NULL);
    assert_null(match.handle);
    assert_int_equal(match.reason, FIRN_REASON_NO_PREFIX);
    assert_int_equal(match.matched_len, 0);
}

static void stored_state_comes_back_to_the_bit_at_every_cut(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    for (unsigned round = 0; round < 2; round++) {
        for (uint32_t n = 2; n <= N + 20; n += n < 70 || n > N - 5 ? 1 : 13) {
            const uint32_t expected = n - 1 < N ? n - 1 : N;
            assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->tokens, n, &reason), expected);
        }
        reopen(s);
    }
}

static void a_restore_can_ask_for_less_than_was_promised(void **in)
{
    state *s = *in;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    const uint32_t cuts[] = { 1, 63, 64, 65, 128, N - 1, N };
    uint64_t n_read_before = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        firn_restored restored;
        assert_int_equal(firn_tier_restore(s->tier, match.handle, cuts[i], &restored), FIRN_REASON_NONE);
        fixture_assert_state(&s->fix, &restored, s->tokens, cuts[i]);
        assert_true(restored.n_bytes_read >= n_read_before);
        n_read_before = restored.n_bytes_read;
        firn_restored_deinit(&restored);
    }
    firn_tier_release(s->tier, match.handle);
}

static void a_divergence_is_explained_by_length_and_token(void **in)
{
    state *s = *in;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    const uint32_t places[] = { 1, 30, 63, 64, 65, 127, 128, 200, 256, 270, N - 1 };
    firn_token prompt[N + 1];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        memcpy(prompt, s->tokens, sizeof prompt);
        prompt[places[i]] ^= 1;
        const firn_match match = firn_tier_find(s->tier, prompt, N + 1, NULL);
        assert_int_equal(match.matched_len, places[i]);
        assert_int_equal(match.prefix_len, places[i]);
        assert_int_equal(match.reason, FIRN_REASON_DIVERGED);
        assert_true(match.diverged);
        assert_int_equal(match.stored_token, s->tokens[places[i]]);
        firn_tier_release(s->tier, match.handle);
    }
    prompt[0] ^= 1;
    const firn_match miss = firn_tier_find(s->tier, prompt, N, NULL);
    assert_null(miss.handle);
    assert_int_equal(miss.reason, FIRN_REASON_NO_PREFIX);
    assert_true(miss.diverged);
    assert_int_equal(miss.stored_token, s->tokens[0]);
}

static void the_best_of_many_siblings_is_found(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_token prompt[N];
    for (uint32_t i = 0; i < 40; i++) { /* forty conversations that leave the first one at 66 + 4 i */
        memcpy(prompt, s->tokens, sizeof prompt);
        prompt[66 + 4 * i] += 1 + i;
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, prompt, 66 + 4 * i + 1 + i % 7), FIRN_REASON_NONE);
    }
    for (uint32_t i = 0; i < 40; i++) {
        memcpy(prompt, s->tokens, sizeof prompt);
        prompt[66 + 4 * i] += 1 + i;
        const uint32_t n = 66 + 4 * i + 1 + i % 7;
        prompt[n] = 77777;
        assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, prompt, n + 1, &reason), n);
    }
}

static void namespaces_do_not_see_each_other(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, "alice", s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, "bob", s->tokens, N, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_NO_PREFIX);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->tokens, N, &reason), 0);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, "alice", s->tokens, N, &reason), N - 1);
}

static void find_exact_gives_all_or_nothing(void **in)
{
    state *s = *in;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    firn_match match = firn_tier_find_exact(s->tier, s->tokens, N, NULL);
    assert_non_null(match.handle);
    assert_int_equal(match.prefix_len, N);
    firn_tier_release(s->tier, match.handle);
    match = firn_tier_find_exact(s->tier, s->tokens, N + 1, NULL);
    assert_null(match.handle);
    assert_int_equal(match.matched_len, N);
    match = firn_tier_find_exact(s->tier, s->tokens, 0, NULL);
    assert_null(match.handle);
}

static void a_one_token_prompt_leaves_that_token_to_compute(void **in)
{
    state *s = *in;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    const firn_match match = firn_tier_find(s->tier, s->tokens, 1, NULL);
    assert_null(match.handle);
    assert_int_equal(match.reason, FIRN_REASON_BELOW_MIN);
}

static void a_longer_record_replaces_the_tail_it_continues(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_tier_stats stats;
    for (uint32_t n = 65; n <= 128; n += 7) {
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, n), FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->tokens, n + 1, &reason), n);
        firn_tier_get_stats(s->tier, &stats);
        assert_int_equal(stats.n_records, 2); /* one block, one tail */
    }
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, 128), FIRN_REASON_NONE);
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, 2); /* two blocks */
    const uint64_t written = stats.written_bytes;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, 100), FIRN_REASON_NONE);
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.written_bytes, written); /* the longer record holds it already */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_empty_store_misses_and_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(stored_state_comes_back_to_the_bit_at_every_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(a_restore_can_ask_for_less_than_was_promised, setup, teardown),
        cmocka_unit_test_setup_teardown(a_divergence_is_explained_by_length_and_token, setup, teardown),
        cmocka_unit_test_setup_teardown(the_best_of_many_siblings_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(namespaces_do_not_see_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(find_exact_gives_all_or_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_one_token_prompt_leaves_that_token_to_compute, setup, teardown),
        cmocka_unit_test_setup_teardown(a_longer_record_replaces_the_tail_it_continues, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
