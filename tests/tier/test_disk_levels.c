/* Namespaces below a parent: what is read, what is written, what is seen, and what keeps whom from being evicted. */
#include "firn/keep.h"
#include "tier/tier_fixture.h"

#define N_HOUSE 200u
#define N       330u
#define MIB     (UINT64_C(1) << 20)

typedef struct state {
    fixture fix;
    char *dir;
    firn_tier *tier;
    char alice[FIRN_NAMESPACE_BYTES_MAX + 1], bob[FIRN_NAMESPACE_BYTES_MAX + 1];
    firn_token a[N + 1], b[N + 1]; /* both begin with the house's N_HOUSE tokens */
} state;

static void open_with(state *s, fixture_schema schema)
{
    test_rng rng = test_rng_create("disk_levels", 71);
    fixture_init(&s->fix, NULL, &(fixture_options){ .schema = schema });
    fixture_random_tokens(&rng, s->a, N + 1);
    fixture_random_tokens(&rng, s->b, N + 1);
    memcpy(s->b, s->a, N_HOUSE * sizeof s->a[0]);
    assert_ok(firn_namespace_below("house", "alice", s->alice, NULL));
    assert_ok(firn_namespace_below("house", "bob", s->bob, NULL));
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
}

static void close_all(state *s)
{
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
}

static uint32_t fetch(state *s, const char *ns, const firn_token *tokens, uint32_t n)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, ns, tokens, n, &reason);
}

static uint64_t written(const state *s)
{
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    return stats.written_bytes;
}

static void a_child_reads_its_parent_and_itself(void **in)
{
    (void)in;
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        state s;
        open_with(&s, schema);
        const uint32_t n_whole = N_HOUSE;
        assert_int_equal(fixture_store(&s.fix, s.tier, "house", s.a, n_whole), FIRN_REASON_NONE);
        assert_int_equal(fetch(&s, s.alice, s.a, n_whole + 1), n_whole);
        assert_int_equal(fetch(&s, s.bob, s.b, n_whole + 1), n_whole);
        assert_int_equal(fixture_store(&s.fix, s.tier, s.alice, s.a, N), FIRN_REASON_NONE);
        assert_int_equal(fetch(&s, s.alice, s.a, N + 1), N);
        assert_int_equal(fetch(&s, "house", s.a, N + 1), n_whole);
        fixture_check(s.tier);
        firn_tier_destroy(s.tier);
        s.tier = fixture_open(&s.fix, s.dir, NULL);
        assert_int_equal(fetch(&s, s.alice, s.a, N + 1), N);
        close_all(&s);
    }
}

static void what_the_parent_has_is_there_once(void **in)
{
    (void)in;
    state s;
    open_with(&s, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&s.fix, s.tier, "house", s.a, 192), FIRN_REASON_NONE);
    const uint64_t house = written(&s);
    assert_int_equal(fixture_store(&s.fix, s.tier, s.alice, s.a, 192), FIRN_REASON_NONE);
    assert_int_equal(written(&s), house);
    assert_int_equal(fixture_store(&s.fix, s.tier, s.alice, s.a, 256), FIRN_REASON_NONE);
    assert_int_equal(written(&s) - house, house / 3); /* one block more */
    close_all(&s);
}

/* Neither the hit nor the explanation says anything of another child. */
static void children_do_not_see_each_other(void **in)
{
    (void)in;
    state s;
    open_with(&s, FIXTURE_PLAIN);
    assert_int_equal(fixture_store(&s.fix, s.tier, "house", s.a, N_HOUSE), FIRN_REASON_NONE);
    firn_match before = firn_tier_find(s.tier, s.b, N + 1, s.bob);
    assert_int_equal(fixture_store(&s.fix, s.tier, s.alice, s.a, N), FIRN_REASON_NONE);
    firn_match after = firn_tier_find(s.tier, s.b, N + 1, s.bob);
    assert_int_equal(after.prefix_len, N_HOUSE);
    assert_int_equal(after.matched_len, before.matched_len);
    assert_int_equal(after.reason, before.reason);
    assert_false(after.diverged);
    firn_tier_release(s.tier, before.handle);
    firn_tier_release(s.tier, after.handle);
    /* The same prompt as alice's, asked by bob and by strangers. */
    after = firn_tier_find(s.tier, s.a, N + 1, s.bob);
    assert_int_equal(after.matched_len, N_HOUSE);
    assert_false(after.diverged);
    firn_tier_release(s.tier, after.handle);
    for (unsigned i = 0; i < 3; i++) {
        static const char *const strangers[] = { "alice", "", "other\037alice" };
        after = firn_tier_find(s.tier, s.a, N + 1, strangers[i]);
        assert_null(after.handle);
        assert_int_equal(after.matched_len, 0);
    }
    /* Where a child leaves the house's tokens it sees them: they are its own as well. */
    s.b[N_HOUSE - 5] ^= 1;
    after = firn_tier_find(s.tier, s.b, N + 1, s.bob);
    assert_true(after.diverged);
    assert_int_equal(after.stored_token, s.a[N_HOUSE - 5]);
    firn_tier_release(s.tier, after.handle);
    close_all(&s);
}

static void a_third_level_reads_both_above_it(void **in)
{
    (void)in;
    state s;
    open_with(&s, FIXTURE_ALL);
    char run[FIRN_NAMESPACE_BYTES_MAX + 1];
    assert_ok(firn_namespace_below(s.alice, "run", run, NULL));
    assert_int_equal(fixture_store(&s.fix, s.tier, "house", s.a, 128), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&s.fix, s.tier, s.alice, s.a, 256), FIRN_REASON_NONE);
    const uint64_t before = written(&s);
    assert_int_equal(fixture_store(&s.fix, s.tier, run, s.a, 300), FIRN_REASON_NONE);
    assert_true(written(&s) - before < before);
    assert_int_equal(fetch(&s, run, s.a, N + 1), 300);
    assert_int_equal(fetch(&s, s.alice, s.a, N + 1), 256);
    assert_ok(firn_tier_forget(s.tier, run, s.a, 300, NULL));
    assert_int_equal(fetch(&s, run, s.a, N + 1), 256);
    fixture_check(s.tier);
    close_all(&s);
}

/* Random stores in a house and its children until the budget has turned over many times: the audit finds no record
 * without what it goes on from, in no family. */
static void eviction_leaves_no_child_without_its_parent(void **in)
{
    (void)in;
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        state s;
        open_with(&s, schema);
        firn_tier_destroy(s.tier);
        const firn_disk_options small = { .budget_bytes = 64 * MIB,
                                          .segment_bytes = 2 * MIB,
                                          .durability = FIRN_DURABILITY_NONE };
        s.tier = fixture_open(&s.fix, s.dir, &small);
        test_rng rng = test_rng_create("levels_evicted", 72 + (uint64_t)schema);
        char below[4][FIRN_NAMESPACE_BYTES_MAX + 1] = { "house" };
        for (unsigned i = 1; i < 4; i++) {
            char name[8];
            (void)snprintf(name, sizeof name, "u%u", i);
            assert_ok(firn_namespace_below("house", name, below[i], NULL));
        }
        firn_token tokens[N];
        for (uint32_t round = 0; round < 150; round++) {
            test_rng path = { .state = 1 + test_rng_below(&rng, 6) };
            fixture_random_tokens(&path, tokens, N_HOUSE);
            path.state += test_rng_below(&rng, 9) * 1000;
            fixture_random_tokens(&path, tokens + 130, N - 130);
            const uint32_t n = 1 + test_rng_below(&rng, N);
            const firn_reason reason = fixture_store(&s.fix, s.tier, below[test_rng_below(&rng, 4)], tokens, n);
            assert_int_equal(reason, FIRN_REASON_NONE);
            if (round % 10 == 9) {
                assert_ok(firn_tier_forget(s.tier, below[test_rng_below(&rng, 4)], tokens, n, NULL));
                fixture_check(s.tier);
            }
        }
        close_all(&s);
    }
}

static void names_below_names_are_checked(void **in)
{
    (void)in;
    char out[FIRN_NAMESPACE_BYTES_MAX + 1], name[300];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_status(firn_namespace_below("house", name, out, NULL), FIRN_ERR_INVALID);
    assert_ok(firn_namespace_below("house", "", out, NULL));
    assert_string_equal(out, "house\x1f");
    assert_status(firn_namespace_below("house", "a\x1f" "b", out, NULL), FIRN_ERR_INVALID);
    assert_ok(firn_namespace_below(NULL, "alice", out, NULL));
    assert_string_equal(out, "\x1f" "alice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_reads_its_parent_and_itself),
        cmocka_unit_test(what_the_parent_has_is_there_once),
        cmocka_unit_test(children_do_not_see_each_other),
        cmocka_unit_test(a_third_level_reads_both_above_it),
        cmocka_unit_test(eviction_leaves_no_child_without_its_parent),
        cmocka_unit_test(names_below_names_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
