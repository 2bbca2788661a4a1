/* Isolation: state made under one model, tokenizer, layout or namespace never serves another, and a miss says why. */
#include "tier/tier_fixture.h"

#define N 140u

static const fixture_options variants[] = {
    { .weights = "w1" },
    { .weights = "w2" },
    { .weights = "w1", .tokenizer = "t2" },
    { .weights = "w1", .dtype = FIRN_DTYPE_BF16 },
    { .weights = "w1", .dtype = FIRN_DTYPE_F32 },
    { .weights = "w1", .n_kv_heads = 4 },
    { .weights = "w1", .n_kv_heads = 1, .head_dim = 16 }, /* as many bytes as the first */
    { .weights = "w1", .head_dim = 16 },
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

typedef struct state {
    char *dir;
    firn_token tokens[N + 1];
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_identity", 41);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static void no_variant_is_served_anothers_state(void **in)
{
    state *s = *in;
    firn_reason reason;
    for (size_t i = 0; i < N_VARIANTS; i++) {
        /* 1. The same tokens are a miss while only others are stored. */
        fixture fix;
        fixture_init(&fix, NULL, &variants[i]);
        firn_tier *tier = fixture_open(&fix, s->dir, NULL);
        assert_int_equal(fixture_fetch(&fix, tier, NULL, s->tokens, N + 1, &reason), 0);
        assert_int_equal(reason, i == 0 ? FIRN_REASON_NO_PREFIX : FIRN_REASON_WRONG_IDENTITY);
        /* 2. Its own state, once stored, is what it gets: fixture_fetch compares every bit. */
        assert_int_equal(fixture_store(&fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&fix, tier, NULL, s->tokens, N + 1, &reason), N);
        /* 3. Another namespace of the same identity is simply empty. */
        assert_int_equal(fixture_fetch(&fix, tier, "x", s->tokens, N + 1, &reason), 0);
        assert_int_equal(reason, FIRN_REASON_NO_PREFIX);
        fixture_check(tier);
        firn_tier_destroy(tier);
        fixture_deinit(&fix);
    }
    for (size_t i = 0; i < N_VARIANTS; i++) { /* all of them live side by side */
        fixture fix;
        fixture_init(&fix, NULL, &variants[i]);
        firn_tier *tier = fixture_open(&fix, s->dir, NULL);
        assert_int_equal(fixture_fetch(&fix, tier, NULL, s->tokens, N + 1, &reason), N);
        firn_tier_destroy(tier);
        fixture_deinit(&fix);
    }
}

static void caches_of_another_geometry_are_refused(void **in)
{
    state *s = *in;
    fixture fix, other;
    fixture_init(&fix, NULL, &variants[0]);
    fixture_init(&other, NULL, &variants[5]);
    firn_tier *tier = fixture_open(&fix, s->dir, NULL);
    assert_int_equal(fixture_store(&other, tier, NULL, s->tokens, N), FIRN_REASON_WRONG_IDENTITY);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    assert_int_equal(stats.n_records, 0);
    firn_tier_destroy(tier);
    fixture_deinit(&other);
    fixture_deinit(&fix);
}

static void caches_that_cover_another_count_are_refused(void **in)
{
    state *s = *in;
    fixture fix;
    fixture_init(&fix, NULL, NULL);
    firn_tier *tier = fixture_open(&fix, s->dir, NULL);
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(&fix, s->tokens, 100, caches);
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX] = { caches[0], caches[1] };
    firn_store_input input = { .tokens = s->tokens, .n_tokens = 101, .caches = borrowed, .n_caches = fix.n_layers };
    firn_reason reason;
    assert_false(firn_tier_store(tier, &input, &reason));
    assert_int_equal(reason, FIRN_REASON_COUNT_MISMATCH);
    input.n_tokens = 70; /* fewer: plain state can be published at any of its counts */
    assert_true(firn_tier_store(tier, &input, &reason));
    assert_int_equal(fixture_fetch(&fix, tier, NULL, s->tokens, N, &reason), 70);
    input.n_caches = 1;
    assert_false(firn_tier_store(tier, &input, &reason));
    assert_int_equal(reason, FIRN_REASON_FAMILY_MISSING);
    fixture_destroy_caches(caches);
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
}

/* What a visit saw. */
typedef struct census {
    uint32_t n_records, n_of_weights[3], n_of_alice;
    uint64_t n_bytes;
    uint32_t n_roots;
} census;

static bool count_record(void *ctx, const firn_disk_record *record)
{
    census *seen = ctx;
    seen->n_records++;
    seen->n_of_weights[1] += strstr(record->identity_text, "weights: w1\n") != NULL;
    seen->n_of_weights[2] += strstr(record->identity_text, "weights: w2\n") != NULL;
    seen->n_of_alice += strcmp(record->ns, "alice") == 0;
    seen->n_bytes += record->n_bytes;
    seen->n_roots += record->first_token == 0;
    assert_true(record->n_tokens > 0 && record->last_used_wall_ns > 0 && !record->quarantined);
    return true;
}

static bool stop_at_once(void *ctx, const firn_disk_record *record)
{
    (void)record;
    ++*(uint32_t *)ctx;
    return false;
}

static void a_visit_names_identity_and_namespace_of_every_record(void **in)
{
    state *s = *in;
    for (size_t i = 0; i < 2; i++) {
        fixture fix;
        fixture_init(&fix, NULL, &variants[i]);
        firn_tier *tier = fixture_open(&fix, s->dir, NULL);
        assert_int_equal(fixture_store(&fix, tier, i == 0 ? "alice" : NULL, s->tokens, N), FIRN_REASON_NONE);
        firn_tier_destroy(tier);
        fixture_deinit(&fix);
    }
    const firn_disk_options options = { .dir = s->dir };
    firn_tier *tier;
    assert_ok(firn_disk_open(&options, NULL, &tier, NULL));
    census seen = { 0 };
    assert_ok(firn_disk_visit(tier, count_record, &seen, NULL));
    assert_int_equal(seen.n_records, 6);
    assert_int_equal(seen.n_of_weights[1], 3);
    assert_int_equal(seen.n_of_weights[2], 3);
    assert_int_equal(seen.n_of_alice, 3);
    assert_int_equal(seen.n_roots, 2);
    uint32_t n_visits = 0;
    assert_ok(firn_disk_visit(tier, stop_at_once, &n_visits, NULL));
    assert_int_equal(n_visits, 1);
    firn_tier_destroy(tier);
}

static void an_identity_without_records_is_forgotten(void **in)
{
    state *s = *in;
    fixture fix;
    firn_reason reason;
    const firn_disk_options options = { .ttl_ns = 1 }; /* all of it is old at once */
    fixture_init(&fix, NULL, &variants[0]);
    firn_tier *tier = fixture_open(&fix, s->dir, &options);
    assert_int_equal(fixture_store(&fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(tier, UINT64_C(20000000000)).durable);
    fixture_check(tier);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    assert_int_equal(stats.n_records, 0);
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
    fixture_init(&fix, NULL, &variants[1]);
    tier = fixture_open(&fix, s->dir, NULL);
    assert_int_equal(fixture_fetch(&fix, tier, NULL, s->tokens, N, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_NO_PREFIX); /* nothing is there, so nothing is of the wrong identity */
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_variant_is_served_anothers_state, setup, teardown),
        cmocka_unit_test_setup_teardown(caches_of_another_geometry_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(caches_that_cover_another_count_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_visit_names_identity_and_namespace_of_every_record, setup, teardown),
        cmocka_unit_test_setup_teardown(an_identity_without_records_is_forgotten, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
