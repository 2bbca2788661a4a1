/*
 * Pruning: what was chosen goes, with its bytes; nothing that something depends on, that is pinned, or that was
 * promised.
 */
#include "firn/keep.h"
#include "tier/tier_fixture.h"

#define N       200u
#define MIB     (UINT64_C(1) << 20)
#define HOUR_NS (UINT64_C(3600) * 1000000000u)

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token a[N], b[N];
} state;

static const firn_disk_options small = { .budget_bytes = 64 * MIB, .durability = FIRN_DURABILITY_NONE };

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_prune", 91);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, NULL);
    fixture_random_tokens(&rng, s->a, N);
    fixture_random_tokens(&rng, s->b, N);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, &small);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
    test_world_deinit(&s->world);
    free(s);
    return 0;
}

static uint32_t fetch(state *s, const char *ns, const firn_token *tokens)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, ns, tokens, N, &reason);
}

static void store(state *s, const char *ns, const firn_token *tokens, uint32_t n)
{
    assert_int_equal(fixture_store(&s->fix, s->tier, ns, tokens, n), FIRN_REASON_NONE);
}

static firn_disk_prune_report prune(state *s, firn_disk_prune_options options)
{
    firn_disk_prune_report report;
    firn_error err = { 0 };
    if (firn_disk_prune(s->tier, &options, &report, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    fixture_check(s->tier);
    (void)fixture_assert_books(s->tier, s->dir);
    return report;
}

static uint64_t wall_ns(const state *s)
{
    return s->world.clock.wall_ns(s->world.clock.ctx);
}

static void pin_a(state *s, uint32_t n)
{
    const firn_pin pin = { .name = "house", .ns = "", .tokens = s->a, .n_tokens = n,
                           .until_wall_ns = wall_ns(s) + HOUR_NS };
    assert_ok(firn_tier_pin(s->tier, &pin, NULL));
}

static void what_is_older_goes_and_what_is_younger_stays(void **in)
{
    state *s = *in;
    store(s, "", s->a, N);
    s->world.clock_offset_ns += HOUR_NS;
    const uint64_t between_ns = wall_ns(s) - HOUR_NS / 2;
    store(s, "", s->b, N);
    const firn_disk_prune_report report = prune(s, (firn_disk_prune_options){ .unused_since_wall_ns = between_ns });
    assert_int_equal(report.n_records, 4);
    assert_true(report.n_bytes > 0);
    assert_int_equal(fetch(s, "", s->a), 0);
    assert_int_equal(fetch(s, "", s->b), N - 1);
}

static void a_trial_says_the_same_and_changes_nothing(void **in)
{
    state *s = *in;
    store(s, "x", s->a, N);
    store(s, "", s->a, N);
    firn_disk_prune_options options = { .ns = "x", .dry_run = true };
    const firn_disk_prune_report tried = prune(s, options);
    assert_int_equal(fetch(s, "x", s->a), N - 1);
    options.dry_run = false;
    const firn_disk_prune_report done = prune(s, options);
    assert_int_equal(tried.n_records, done.n_records);
    assert_int_equal(done.n_records, 4);
    assert_int_equal(fetch(s, "x", s->a), 0);
    assert_int_equal(fetch(s, "", s->a), N - 1);
}

static void it_ends_when_little_enough_is_left(void **in)
{
    state *s = *in;
    test_rng rng = test_rng_create("to", 5);
    firn_token tokens[N];
    for (uint32_t i = 0; i < 40; i++) {
        fixture_random_tokens(&rng, tokens, N);
        store(s, "", tokens, N);
    }
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    const uint64_t to_bytes = stats.physical_bytes - stats.physical_bytes / 4;
    const firn_disk_prune_report report = prune(s, (firn_disk_prune_options){ .to_bytes = to_bytes });
    firn_tier_get_stats(s->tier, &stats);
    assert_true(stats.physical_bytes <= to_bytes);
    assert_true(report.n_records > 0 && stats.n_records > 0);
    assert_int_equal(fetch(s, "", tokens), N - 1); /* the youngest */
}

static void a_model_is_named_by_a_part_of_its_identity(void **in)
{
    state *s = *in;
    store(s, "", s->a, N);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .identity_part = "no such model" }).n_records, 0);
    char part[24];
    (void)snprintf(part, sizeof part, "%.20s", s->fix.schema.identity_text);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .identity_part = part }).n_records, 4);
}

/* A pinned path ends inside a record that is longer; also without a schema, where no pin stands in memory. */
static void what_is_pinned_stays_to_its_last_token(void **in)
{
    state *s = *in;
    store(s, "", s->a, N);
    store(s, "", s->b, N);
    pin_a(s, N - 5);
    firn_tier_destroy(s->tier);
    firn_disk_options options = small;
    options.dir = s->dir;
    assert_ok(firn_disk_open(&options, &s->world.env, &s->tier, NULL));
    firn_disk_prune_report report;
    const firn_disk_prune_options all = { .unused_since_wall_ns = UINT64_MAX };
    assert_ok(firn_disk_prune(s->tier, &all, &report, NULL));
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &small);
    assert_int_equal(report.n_records, 4);
    assert_int_equal(report.n_pinned, 4);
    assert_int_equal(fetch(s, "", s->a), N - 1);
    assert_int_equal(fetch(s, "", s->b), 0);
    s->world.clock_offset_ns += 2 * HOUR_NS; /* the pin's end */
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &small);
    assert_int_equal(prune(s, all).n_records, 4);
}

static void what_a_handle_promised_stays(void **in)
{
    state *s = *in;
    store(s, "", s->a, N);
    const firn_match match = firn_tier_find(s->tier, s->a, N, "");
    assert_non_null(match.handle);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .ns = "" }).n_records, 0);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(s->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    firn_restored_deinit(&restored);
    firn_tier_release(s->tier, match.handle);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .ns = "" }).n_records, 4);
}

static void what_a_namespace_below_needs_stays(void **in)
{
    state *s = *in;
    char child[FIRN_NAMESPACE_BYTES_MAX + 1];
    assert_ok(firn_namespace_below("house", "al", child, NULL));
    store(s, "house", s->a, 128);
    store(s, child, s->a, N);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .ns = "house" }).n_records, 0);
    assert_int_equal(fetch(s, child, s->a), N - 1);
    assert_true(prune(s, (firn_disk_prune_options){ .ns = child }).n_records > 0);
    assert_int_equal(prune(s, (firn_disk_prune_options){ .ns = "house" }).n_records, 2);
}

static void a_wiped_namespace_leaves_nothing_not_even_a_name(void **in)
{
    state *s = *in;
    store(s, "", s->a, N);
    store(s, "other", s->a, N);
    pin_a(s, N - 1);
    const firn_session session = { .id = "talk", .ns = "", .tokens = s->a, .n_tokens = N };
    assert_ok(firn_tier_put_session(s->tier, &session, NULL));
    firn_tier_destroy(s->tier);
    firn_disk_options options = small;
    options.dir = s->dir;
    assert_ok(firn_disk_open(&options, &s->world.env, &s->tier, NULL)); /* as the command does */
    firn_disk_prune_report report;
    const firn_disk_prune_options wipe = { .ns = "", .wipe = true };
    assert_ok(firn_disk_prune(s->tier, &wipe, &report, NULL));
    assert_int_equal(report.n_records, 4);
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &small);
    assert_int_equal(fetch(s, "", s->a), 0);
    assert_int_equal(fetch(s, "other", s->a), N - 1);
    assert_status(firn_tier_unpin(s->tier, "house", NULL), FIRN_ERR_NOT_FOUND);
    assert_status(firn_tier_remove_session(s->tier, "", "talk", NULL), FIRN_ERR_NOT_FOUND);
}

static void a_reader_may_not_prune(void **in)
{
    state *s = *in;
    firn_tier_destroy(s->tier);
    firn_disk_options options = small;
    options.read_only = true;
    s->tier = fixture_open(&s->fix, s->dir, &options);
    firn_disk_prune_report report;
    firn_error err = { 0 };
    const firn_disk_prune_options all = { .unused_since_wall_ns = UINT64_MAX };
    assert_status(firn_disk_prune(s->tier, &all, &report, &err), FIRN_ERR_STATE);
    assert_non_null(strstr(err.message, s->dir));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_older_goes_and_what_is_younger_stays),
        TEST(a_trial_says_the_same_and_changes_nothing),
        TEST(it_ends_when_little_enough_is_left),
        TEST(a_model_is_named_by_a_part_of_its_identity),
        TEST(what_is_pinned_stays_to_its_last_token),
        TEST(what_a_handle_promised_stays),
        TEST(what_a_namespace_below_needs_stays),
        TEST(a_wiped_namespace_leaves_nothing_not_even_a_name),
        TEST(a_reader_may_not_prune),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
