/* What the disk tier keeps by name: pins with an end, sessions, objects by key; and priorities, which say who goes. */
#include "firn/keep.h"
#include "tier/tier_fixture.h"

#define N     200u
#define MIB   (UINT64_C(1) << 20)
#define HOUR  (UINT64_C(3600) * 1000000000u)
#define SMALL { .budget_bytes = 64 * MIB, .segment_bytes = 4 * MIB, .durability = FIRN_DURABILITY_NONE }

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[FIXTURE_TOKENS_MAX];
} state;

static const firn_disk_options small = SMALL;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_keep", 81);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, NULL);
    fixture_random_tokens(&rng, s->tokens, FIXTURE_TOKENS_MAX);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, &small);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
    test_world_deinit(&s->world);
    free(s);
    return 0;
}

static void reopen(state *s)
{
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &small);
}

static uint64_t wall_ns(const state *s)
{
    return s->world.clock.wall_ns(s->world.clock.ctx);
}

static uint32_t fetch(state *s, const char *ns, const firn_token *tokens, uint32_t n)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, ns, tokens, n, &reason);
}

static firn_reason store_at(state *s, const firn_token *tokens, uint32_t n, int priority)
{
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    fixture_make_caches(&s->fix, tokens, n, caches);
    for (uint32_t i = 0; i < s->fix.n_layers; i++) {
        borrowed[i] = caches[i];
    }
    const firn_store_input input = {
        .tokens = tokens, .n_tokens = n, .caches = borrowed, .n_caches = s->fix.n_layers, .priority = priority
    };
    firn_reason reason;
    (void)firn_tier_store(s->tier, &input, &reason);
    fixture_destroy_caches(caches);
    return reason;
}

static firn_tier_stats stats_of(const state *s)
{
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    return stats;
}

/* Stores prompts of 2,048 random tokens until the tier has evicted some, or refuses, or for n_max of them. */
static firn_reason flood(state *s, uint64_t seed, uint32_t n_max, int priority)
{
    test_rng rng = { .state = seed };
    firn_token *tokens = malloc(2048 * sizeof *tokens);
    firn_reason reason = FIRN_REASON_NONE;
    const uint64_t n_evicted = stats_of(s).n_evicted;
    for (uint32_t i = 0; i < n_max && reason == FIRN_REASON_NONE && stats_of(s).n_evicted < n_evicted + 100; i++) {
        fixture_random_tokens(&rng, tokens, 2048);
        reason = store_at(s, tokens, 2048, priority);
    }
    free(tokens);
    return reason;
}

static firn_status pin(state *s, const char *name, const firn_token *tokens, uint32_t n, uint64_t ns, firn_error *err)
{
    const firn_pin wanted = { .name = name, .tokens = tokens, .n_tokens = n, .until_wall_ns = wall_ns(s) + ns };
    return firn_tier_pin(s->tier, &wanted, err);
}

typedef struct seen {
    uint32_t n;
    char name[64], ns[64];
    firn_token first;
    uint32_t n_tokens;
    uint64_t until_wall_ns, n_bytes;
} seen;

static bool see_pin(void *ctx, const firn_pin *found)
{
    seen *out = ctx;
    out->n++;
    (void)snprintf(out->name, sizeof out->name, "%s", found->name);
    (void)snprintf(out->ns, sizeof out->ns, "%s", found->ns);
    out->first = found->tokens[0];
    out->n_tokens = found->n_tokens;
    out->until_wall_ns = found->until_wall_ns;
    out->n_bytes = found->n_bytes;
    return true;
}

static seen pins_of(const state *s)
{
    seen out = { 0 };
    assert_ok(firn_tier_each_pin(s->tier, see_pin, &out, NULL));
    return out;
}

/* ---- pins -------------------------------------------------------------------------------------------------------- */

static void what_is_pinned_stays_until_its_end(void **in)
{
    state *s = *in;
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_NONE);
    assert_ok(pin(s, "house", s->tokens, N, HOUR, NULL));
    assert_int_equal(flood(s, 1000, 200, 0), FIRN_REASON_NONE);
    assert_true(stats_of(s).n_evicted > 0);
    for (unsigned round = 0; round < 2; round++) {
        const seen found = pins_of(s);
        assert_int_equal(found.n, 1);
        assert_string_equal(found.name, "house");
        assert_int_equal(found.n_tokens, N);
        assert_int_equal(found.first, s->tokens[0]);
        assert_true(found.n_bytes > 0);
        assert_int_equal(stats_of(s).n_pins, 1);
        assert_int_equal(fetch(s, NULL, s->tokens, N + 1), N);
        reopen(s);
    }
    s->world.clock_offset_ns += HOUR + 1;
    assert_int_equal(pins_of(s).n, 0);
    (void)firn_tier_flush(s->tier, UINT64_C(20000000000));
    assert_int_equal(stats_of(s).n_pins, 0);
    assert_int_equal(stats_of(s).pinned_bytes, 0);
}

static void a_pin_is_replaced_and_removed_by_its_name(void **in)
{
    state *s = *in;
    firn_error err = { 0 };
    assert_status(pin(s, "p", s->tokens, N, HOUR, &err), FIRN_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "no_prefix"));
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_NONE);
    assert_ok(pin(s, "p", s->tokens, N, HOUR, NULL));
    assert_ok(pin(s, "p", s->tokens, 64, 2 * HOUR, NULL));
    assert_int_equal(pins_of(s).n, 1);
    assert_int_equal(pins_of(s).n_tokens, 64);
    assert_ok(firn_tier_unpin(s->tier, "p", NULL));
    assert_int_equal(pins_of(s).n, 0);
    assert_status(firn_tier_unpin(s->tier, "p", NULL), FIRN_ERR_NOT_FOUND);
    assert_status(pin(s, "", s->tokens, N, HOUR, NULL), FIRN_ERR_INVALID);
    const firn_pin past = { .name = "p", .tokens = s->tokens, .n_tokens = N, .until_wall_ns = 1 };
    assert_status(firn_tier_pin(s->tier, &past, NULL), FIRN_ERR_INVALID);
}

static void pins_take_no_more_than_half_of_the_budget(void **in)
{
    state *s = *in;
    test_rng rng = { .state = 5 };
    firn_error err = { 0 };
    firn_status status = FIRN_OK;
    char name[16];
    for (uint32_t i = 0; i < 400 && status == FIRN_OK; i++) {
        fixture_random_tokens(&rng, s->tokens, 4000);
        assert_int_equal(store_at(s, s->tokens, 4000, 0), FIRN_REASON_NONE);
        (void)snprintf(name, sizeof name, "p%u", i);
        status = pin(s, name, s->tokens, 4000, HOUR, &err);
    }
    assert_status(status, FIRN_ERR_CAPACITY);
    assert_non_null(strstr(err.message, "one half of the disk budget"));
    assert_true(stats_of(s).pinned_bytes <= 32 * MIB);
    assert_true(stats_of(s).pinned_bytes > 30 * MIB);
    assert_int_equal(flood(s, 3000, 100, 0), FIRN_REASON_NONE); /* the rest goes on turning over */
}

/* With the budget lowered to what is pinned, nothing can make room any more, and the reason says so. */
static void a_budget_full_of_pins_refuses_stores_by_name(void **in)
{
    state *s = *in;
    const firn_disk_options large = { .budget_bytes = 260 * MIB, .durability = FIRN_DURABILITY_NONE };
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &large);
    test_rng rng = { .state = 6 };
    char name[16];
    uint32_t n_pins = 0;
    while (stats_of(s).pinned_bytes < 63 * MIB) {
        fixture_random_tokens(&rng, s->tokens, 4032);
        assert_int_equal(store_at(s, s->tokens, 4032, 0), FIRN_REASON_NONE);
        (void)snprintf(name, sizeof name, "p%u", n_pins++);
        assert_ok(pin(s, name, s->tokens, 4032, HOUR, NULL));
    }
    reopen(s);
    fixture_random_tokens(&rng, s->tokens, N);
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_PINNED);
    assert_true(stats_of(s).pinned_bytes > 60 * MIB);
    for (uint32_t i = 0; i < n_pins; i++) {
        (void)snprintf(name, sizeof name, "p%u", i);
        assert_ok(firn_tier_unpin(s->tier, name, NULL));
    }
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_NONE);
}

static void a_pin_outlasts_the_time_to_live(void **in)
{
    state *s = *in;
    firn_disk_options options = SMALL;
    options.ttl_ns = HOUR;
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, &options);
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_NONE);
    assert_int_equal(store_at(s, s->tokens + N, N, 0), FIRN_REASON_NONE);
    assert_ok(pin(s, "long", s->tokens, N, 5 * HOUR, NULL));
    s->world.clock_offset_ns += 2 * HOUR;
    assert_int_equal(fetch(s, NULL, s->tokens + N, N + 1), 0);
    assert_int_equal(fetch(s, NULL, s->tokens, N + 1), N);
    (void)firn_tier_flush(s->tier, UINT64_C(20000000000));
    assert_int_equal(fetch(s, NULL, s->tokens, N + 1), N);
}

/* ---- priorities -------------------------------------------------------------------------------------------------- */

static void a_thousand_low_prompts_never_evict_a_normal_one(void **in)
{
    state *s = *in;
    assert_int_equal(flood(s, 100, 12, 0), FIRN_REASON_NONE);
    assert_int_equal(store_at(s, s->tokens, N, 0), FIRN_REASON_NONE);
    test_rng rng = { .state = 7 };
    firn_token low[384];
    for (uint32_t i = 0; i < 1000; i++) {
        fixture_random_tokens(&rng, low, 384);
        const firn_reason reason = store_at(s, low, 384, -1 - (int)(i % 3));
        assert_true(reason == FIRN_REASON_NONE || reason == FIRN_REASON_PRIORITY);
    }
    assert_true(stats_of(s).n_evicted > 0);
    assert_int_equal(fetch(s, NULL, s->tokens, N + 1), N);
    rng.state = 100;
    firn_token *normal = malloc(2048 * sizeof *normal);
    for (uint32_t i = 0; i < 12; i++) {
        fixture_random_tokens(&rng, normal, 2048);
        assert_int_equal(fetch(s, NULL, normal, 2048), 2047);
    }
    free(normal);
    fixture_check(s->tier);
    reopen(s);
    assert_int_equal(fetch(s, NULL, s->tokens, N + 1), N);
}

static void a_full_tier_refuses_what_is_of_less_priority(void **in)
{
    state *s = *in;
    assert_int_equal(flood(s, 9, 400, 5), FIRN_REASON_NONE); /* full of what is worth more */
    const uint64_t n_evicted = stats_of(s).n_evicted;
    assert_int_equal(store_at(s, s->tokens, FIXTURE_TOKENS_MAX, 0), FIRN_REASON_PRIORITY);
    assert_int_equal(stats_of(s).n_evicted, n_evicted);
    assert_int_equal(stats_of(s).state, FIRN_REASON_NONE);
    assert_int_equal(store_at(s, s->tokens, N, 5), FIRN_REASON_NONE);
}

static void a_second_user_raises_what_is_there(void **in)
{
    state *s = *in;
    assert_int_equal(store_at(s, s->tokens, N, -10), FIRN_REASON_NONE);
    assert_int_equal(store_at(s, s->tokens, 64, 3), FIRN_REASON_NONE);
    fixture_check(s->tier);
    assert_int_equal(flood(s, 11, 400, 0), FIRN_REASON_NONE);
    assert_int_equal(fetch(s, NULL, s->tokens, N + 1), 64);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static void see_session(void *ctx, const firn_session *session)
{
    seen *out = ctx;
    out->n++;
    out->n_tokens = session->n_tokens;
    out->first = session->n_tokens > 0 ? session->tokens[0] : 0;
    (void)snprintf(out->name, sizeof out->name, "%s", session->id);
    (void)snprintf(out->ns, sizeof out->ns, "%s", session->ns);
}

static bool list_session(void *ctx, const firn_session *session)
{
    see_session(ctx, session);
    return true;
}

static void a_session_is_found_where_it_was_left(void **in)
{
    state *s = *in;
    seen found = { 0 };
    const firn_session first = { .id = "chat 1", .ns = "alice", .tokens = s->tokens, .n_tokens = N };
    const firn_session later = { .id = "chat 1", .ns = "alice", .tokens = s->tokens, .n_tokens = 4000 };
    assert_status(firn_tier_get_session(s->tier, "alice", "chat 1", see_session, &found, NULL), FIRN_ERR_NOT_FOUND);
    assert_ok(firn_tier_put_session(s->tier, &first, NULL));
    assert_ok(firn_tier_put_session(s->tier, &later, NULL));
    reopen(s);
    assert_ok(firn_tier_get_session(s->tier, "alice", "chat 1", see_session, &found, NULL));
    assert_int_equal(found.n_tokens, 4000);
    assert_int_equal(found.first, s->tokens[0]);
    assert_status(firn_tier_get_session(s->tier, "bob", "chat 1", see_session, &found, NULL), FIRN_ERR_NOT_FOUND);
    found = (seen){ 0 };
    assert_ok(firn_tier_each_session(s->tier, list_session, &found, NULL));
    assert_int_equal(found.n, 1);
    assert_string_equal(found.ns, "alice");
    assert_ok(firn_tier_remove_session(s->tier, "alice", "chat 1", NULL));
    assert_status(firn_tier_remove_session(s->tier, "alice", "chat 1", NULL), FIRN_ERR_NOT_FOUND);
}

/* ---- objects by key ---------------------------------------------------------------------------------------------- */

static firn_reason put(state *s, const char *ns, const char *key, const char *text, uint64_t until_wall_ns)
{
    const firn_attachment attachment = { .schema = "test.text.1",
                                         .metadata = text,
                                         .n_metadata_bytes = (uint32_t)strlen(text) };
    const firn_object object = { .key = key,
                                 .ns = ns,
                                 .attachments = &attachment,
                                 .n_attachments = 1,
                                 .until_wall_ns = until_wall_ns };
    firn_reason reason;
    (void)firn_tier_put_object(s->tier, &object, &reason);
    return reason;
}

static bool holds(state *s, const char *ns, const char *key, const char *text)
{
    firn_restored restored;
    const firn_reason reason = firn_tier_get_object(s->tier, ns, key, &restored);
    const bool is_there = reason == FIRN_REASON_NONE;
    if (is_there) {
        assert_int_equal(restored.n_attachments, 1);
        assert_int_equal(restored.attachments[0].n_metadata_bytes, strlen(text));
        assert_memory_equal(restored.attachments[0].metadata, text, strlen(text));
    }
    firn_restored_deinit(&restored);
    return is_there;
}

static bool count_object(void *ctx, const firn_object *object)
{
    uint32_t *n = ctx;
    *n += object->n_bytes > 0;
    return true;
}

static uint32_t count_objects(state *s)
{
    uint32_t n = 0;
    assert_ok(firn_tier_each_object(s->tier, count_object, &n, NULL));
    return n;
}

static void an_object_is_found_by_its_key(void **in)
{
    state *s = *in;
    char child[FIRN_NAMESPACE_BYTES_MAX + 1];
    assert_ok(firn_namespace_below("alice", "run", child, NULL));
    assert_false(holds(s, "alice", "k", ""));
    assert_int_equal(put(s, "alice", "k", "one", 0), FIRN_REASON_NONE);
    assert_int_equal(put(s, "alice", "k", "two", 0), FIRN_REASON_NONE);
    assert_int_equal(put(s, "alice", "other", "three", 0), FIRN_REASON_NONE);
    assert_true(holds(s, "alice", "k", "two"));
    assert_true(holds(s, child, "k", "two")); /* a namespace reads what is above it */
    assert_false(holds(s, "bob", "k", ""));
    reopen(s);
    assert_true(holds(s, "alice", "k", "two"));
    assert_int_equal(count_objects(s), 2);
    assert_status(firn_tier_remove_object(s->tier, child, "k", NULL), FIRN_ERR_NOT_FOUND);
    assert_ok(firn_tier_remove_object(s->tier, "alice", "k", NULL));
    assert_false(holds(s, "alice", "k", ""));
    assert_int_equal(count_objects(s), 1);
    assert_status(firn_tier_remove_object(s->tier, "alice", "k", NULL), FIRN_ERR_NOT_FOUND);
}

static void objects_go_like_records_unless_they_are_pinned(void **in)
{
    state *s = *in;
    assert_int_equal(put(s, "", "pinned", "kept", wall_ns(s) + HOUR), FIRN_REASON_NONE);
    assert_int_equal(put(s, "", "plain", "lost", 0), FIRN_REASON_NONE);
    assert_int_equal(flood(s, 21, 400, 0), FIRN_REASON_NONE);
    assert_true(holds(s, "", "pinned", "kept"));
    assert_false(holds(s, "", "plain", ""));
    assert_int_equal(count_objects(s), 1);
    reopen(s);
    assert_true(holds(s, "", "pinned", "kept"));
    assert_int_equal(put(s, "", "pinned", "anew", wall_ns(s) + HOUR), FIRN_REASON_NONE);
    assert_true(holds(s, "", "pinned", "anew"));
}

static void a_damaged_object_is_a_miss_and_is_written_anew(void **in)
{
    state *s = *in;
    assert_int_equal(put(s, "", "k", "a text of which one bit will differ", 0), FIRN_REASON_NONE);
    char path[900];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", s->dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 4096 + 25, SEEK_SET), 0);
    const int c = fgetc(file);
    assert_int_equal(fseek(file, 4096 + 25, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 4, file), c ^ 4);
    assert_int_equal(fclose(file), 0);
    firn_restored restored;
    assert_int_equal(firn_tier_get_object(s->tier, "", "k", &restored), FIRN_REASON_CORRUPT);
    assert_int_equal(firn_tier_get_object(s->tier, "", "k", &restored), FIRN_REASON_CORRUPT);
    assert_int_equal(put(s, "", "k", "well again", 0), FIRN_REASON_NONE);
    assert_true(holds(s, "", "k", "well again"));
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_pinned_stays_until_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pin_is_replaced_and_removed_by_its_name, setup, teardown),
        cmocka_unit_test_setup_teardown(pins_take_no_more_than_half_of_the_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(a_budget_full_of_pins_refuses_stores_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pin_outlasts_the_time_to_live, setup, teardown),
        cmocka_unit_test_setup_teardown(a_thousand_low_prompts_never_evict_a_normal_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_tier_refuses_what_is_of_less_priority, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_user_raises_what_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_session_is_found_where_it_was_left, setup, teardown),
        cmocka_unit_test_setup_teardown(an_object_is_found_by_its_key, setup, teardown),
        cmocka_unit_test_setup_teardown(objects_go_like_records_unless_they_are_pinned, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_object_is_a_miss_and_is_written_anew, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
