/*
 * Every allocation and every I/O call fails once, at each place of a scenario that keeps by name what it stores below a
 * parent, and lets go of it again. What a call said was done is done, what it refused is not, the books balance, and
 * nothing leaks; and when the index is lost afterwards, a new one says the same.
 */
#include "firn/keep.h"
#include "firn/session_file.h"
#include "tier/session_buffer.h"
#include "tier/tier_fixture.h"

#define N_HOUSE 130u
#define N       200u

static const firn_disk_options small = { .budget_bytes = 64u << 20, .durability = FIRN_DURABILITY_NONE };
static firn_token tokens[N + 1];
static char alice[FIRN_NAMESPACE_BYTES_MAX + 1];

/* The caches and the pool live in a world without faults: only the tier is tortured. */
typedef struct cast {
    fixture healthy;
    firn_cache *house[FIXTURE_LAYERS_MAX], *whole[FIXTURE_LAYERS_MAX];
    const uint8_t *key;
} cast;

/* What the calls said. */
typedef struct told {
    bool has_house, has_whole, is_pinned, has_session, has_object;
} told;

static bool store(const cast *actors, firn_tier *tier, const char *ns, firn_cache *const *caches, uint32_t n)
{
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    for (uint32_t i = 0; i < actors->healthy.n_layers; i++) {
        borrowed[i] = caches[i];
    }
    const firn_store_input input = {
        .tokens = tokens, .n_tokens = n, .caches = borrowed, .n_caches = actors->healthy.n_layers, .ns = ns
    };
    firn_reason reason;
    return firn_tier_store(tier, &input, &reason);
}

static bool put_object(firn_tier *tier)
{
    const firn_attachment attachment = { .schema = "t", .metadata = "kept", .n_metadata_bytes = 4 };
    const firn_object object = {
        .key = "k", .ns = alice, .attachments = &attachment, .n_attachments = 1, .until_wall_ns = UINT64_MAX
    };
    firn_reason reason;
    return firn_tier_put_object(tier, &object, &reason);
}

static void take_session(void *ctx, const firn_session *session)
{
    bool *found = ctx;
    *found = session->n_tokens == N && memcmp(session->tokens, tokens, N * sizeof *tokens) == 0;
    assert_true(*found);
}

static bool has_session(firn_tier *tier)
{
    bool found = false;
    return firn_tier_get_session(tier, alice, "s", take_session, &found, NULL) == FIRN_OK && found;
}

static bool has_object(firn_tier *tier)
{
    firn_restored restored;
    const bool found = firn_tier_get_object(tier, alice, "k", &restored) == FIRN_REASON_NONE;
    if (found) {
        assert_int_equal(restored.n_attachments, 1);
        assert_memory_equal(restored.attachments[0].metadata, "kept", 4);
    }
    firn_restored_deinit(&restored);
    return found;
}

static bool count_pin(void *ctx, const firn_pin *pin)
{
    assert_int_equal(pin->n_tokens, N);
    assert_memory_equal(pin->tokens, tokens, N * sizeof *tokens);
    ++*(uint32_t *)ctx;
    return true;
}

/* What was kept is there, as the calls said, also for whoever opens the directory next. */
static void compare(const cast *actors, const char *dir, const told *said)
{
    firn_disk_options options = small;
    options.key = actors->key;
    firn_tier *tier = fixture_open(&actors->healthy, dir, &options);
    fixture_check(tier);
    firn_reason reason;
    uint32_t n_pins = 0;
    assert_ok(firn_tier_each_pin(tier, count_pin, &n_pins, NULL));
    assert_int_equal(n_pins, said->is_pinned);
    assert_int_equal(has_session(tier), said->has_session);
    assert_int_equal(has_object(tier), said->has_object);
    const uint32_t n = fixture_fetch(&actors->healthy, tier, alice, tokens, N + 1, &reason);
    assert_int_equal(n, said->has_whole ? N : said->has_house ? N_HOUSE : 0);
    firn_tier_destroy(tier);
}

/* The same from segments and ledger alone; but a session that was noted of tokens that are not stored is gone. */
static void compare_rebuilt(const cast *actors, const char *dir, const told *said)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/index", dir);
    test_dir_remove(path);
    const firn_disk_fsck_options options = { .key = actors->key };
    firn_disk_fsck_report report;
    assert_ok(firn_disk_fsck(dir, &options, NULL, &report, NULL));
    told left = *said;
    left.has_session = said->has_session && said->has_whole;
    assert_int_equal(report.n_names_lost, said->has_session && !said->has_whole);
    assert_int_equal(report.n_damaged + report.n_orphans, 0);
    compare(actors, dir, &left);
}

/* A removal that failed has removed it or not: both are allowed, half of it is not. */
static void let_go(firn_tier *tier, told *said)
{
    firn_error err;
    if (said->is_pinned && firn_tier_unpin(tier, "p", &err) == FIRN_OK) {
        said->is_pinned = false;
    }
    if (said->has_session && firn_tier_remove_session(tier, alice, "s", &err) == FIRN_OK) {
        said->has_session = false;
    }
}

/* One run with one fault. */
static void run(const cast *actors, test_world *world, const char *dir)
{
    told said = { .has_house = false };
    firn_disk_options options = small;
    options.dir = dir;
    options.key = actors->key;
    options.schema = &actors->healthy.schema;
    options.pool = actors->healthy.pool;
    firn_tier *tier = NULL;
    firn_error err = { 0 };
    if (firn_disk_open(&options, &world->env, &tier, &err) == FIRN_OK) {
        said.has_house = store(actors, tier, "house", actors->house, N_HOUSE);
        said.has_whole = store(actors, tier, alice, actors->whole, N);
        const firn_pin pin = {
            .name = "p", .ns = alice, .tokens = tokens, .n_tokens = N, .until_wall_ns = UINT64_MAX - 1
        };
        const firn_status pinned = firn_tier_pin(tier, &pin, &err);
        /* Without memory for what stands, the row is there all the same: it holds from the next start on. */
        said.is_pinned =
            pinned == FIRN_OK || (pinned == FIRN_ERR_NO_MEMORY && strstr(err.message, "next start") != NULL);
        const firn_session session = { .id = "s", .ns = alice, .tokens = tokens, .n_tokens = N };
        said.has_session = firn_tier_put_session(tier, &session, &err) == FIRN_OK;
        said.has_object = put_object(tier);
        (void)has_object(tier);
        (void)has_session(tier);
        uint32_t n_pins = 0;
        (void)firn_tier_each_pin(tier, count_pin, &n_pins, NULL);
        if (!world->alloc_failed && !world->io_failed) {
            let_go(tier, &said);
        }
        firn_tier_destroy(tier);
    }
    compare(actors, dir, &said);
    if (said.has_house) { /* or there may be no store at all */
        compare_rebuilt(actors, dir, &said);
    }
}

static void torture(bool allocations, fixture_schema schema, const uint8_t *key)
{
    cast actors = { .key = key };
    fixture_init(&actors.healthy, NULL, &(fixture_options){ .schema = schema });
    fixture_make_caches(&actors.healthy, tokens, N_HOUSE, actors.house);
    fixture_make_caches(&actors.healthy, tokens, N, actors.whole);
    bool is_clean = false;
    for (uint64_t n = 1; !is_clean; n++) {
        assert_true(n < 3000);
        char *dir = test_dir_create();
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = allocations ? n : 0;
        world.fail_io_at = allocations ? 0 : n;
        run(&actors, &world, dir);
        is_clean = !world.alloc_failed && !world.io_failed;
        test_world_deinit(&world);
        test_dir_remove(dir);
        free(dir);
    }
    for (uint32_t i = 0; i < FIXTURE_LAYERS_MAX; i++) {
        firn_cache_destroy(i < actors.healthy.n_layers ? actors.house[i] : NULL);
        firn_cache_destroy(i < actors.healthy.n_layers ? actors.whole[i] : NULL);
    }
    fixture_deinit(&actors.healthy);
}

static void each_allocation_fails_once(void **state)
{
    (void)state;
    torture(true, FIXTURE_PLAIN, NULL);
    torture(true, FIXTURE_ALL, fixture_key);
}

static void each_io_call_fails_once(void **state)
{
    (void)state;
    torture(false, FIXTURE_PLAIN, NULL);
    torture(false, FIXTURE_PLAIN, fixture_key);
}

static void a_session_file_needs_its_memory_or_gives_nothing(void **state)
{
    (void)state;
    session_buffer file = session_buffer_make();
    fixture fix;
    fixture_init(&fix, NULL, &(fixture_options){ .schema = FIXTURE_ALL });
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(&fix, tokens, N, caches);
    for (unsigned writes = 0; writes < 2; writes++) {
        bool is_clean = false;
        for (uint64_t n = 1; !is_clean; n++) {
            test_world world;
            test_world_init(&world);
            world.fail_alloc_at = n;
            firn_restored restored = { 0 };
            firn_status status;
            if (writes == 0) {
                file.n = 0;
                status = firn_session_write(&fix.schema, "s", tokens, N, (const firn_cache *const *)caches,
                                            session_sink, &file, &world.env, NULL);
            } else {
                file.at = 0;
                status = firn_session_read(&fix.schema, fix.pool, session_source, &file, &world.env, &restored,
                                           NULL, NULL);
            }
            is_clean = !world.alloc_failed;
            assert_status(status, is_clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
            firn_restored_deinit(&restored);
            test_world_deinit(&world);
        }
    }
    fixture_destroy_caches(caches);
    fixture_deinit(&fix);
    free(file.bytes);
}

static int prepare(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("keep_torture", 95);
    fixture_random_tokens(&rng, tokens, N + 1);
    assert_ok(firn_namespace_below("house", "alice", alice, NULL));
    return 0;
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(each_io_call_fails_once),
        cmocka_unit_test(a_session_file_needs_its_memory_or_gives_nothing),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
