/*
 * Every allocation and every I/O call fails once, at each place of a scenario that opens, stores, finds, restores,
 * evicts and closes. What was stored before stays readable, what is restored is right or not there, the books balance,
 * and nothing leaks.
 */
#include <errno.h>
#include <unistd.h>

#include "support/support.h"
#include "tier/tier_fixture.h"

/* The small store has room; the full one holds so large blocks that the scenario evicts. */
typedef struct torture_stage {
    fixture_options geometry;
    uint32_t n_fillers;
    const uint8_t *key;
    char *seed_dir; /* a store that holds `first` and the fillers, copied for each round */
} torture_stage;

static torture_stage small_stage = { .n_fillers = 0 };
/* All families: window blocks, states and a checkpoint for each prefix. */
static torture_stage families_stage = { .geometry = { .schema = FIXTURE_ALL } };
static torture_stage sealed_stage = { .geometry = { .schema = FIXTURE_ALL }, .key = fixture_key };
static torture_stage full_stage = { .geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 96 },
                                    .n_fillers = 16 };
static const firn_disk_options tight = { .budget_bytes = 64u << 20, .segment_bytes = 16u << 20 };

#define N_FIRST  70u
#define N_SECOND 200u

static struct {
    firn_token first[N_FIRST + 1], second[N_SECOND + 1], filler[16][130];
} prepared;

static void copy_directory(const char *from, const char *to)
{
    char command[1200];
    (void)snprintf(command, sizeof command, "cp -a --sparse=always '%s/.' '%s/'", from, to);
    assert_int_equal(system(command), 0);
}

static void prepare_stage(torture_stage *stage)
{
    stage->seed_dir = test_dir_create();
    fixture fix;
    fixture_init(&fix, NULL, &stage->geometry);
    firn_disk_options options = tight;
    options.key = stage->key;
    firn_tier *tier = fixture_open(&fix, stage->seed_dir, &options);
    for (uint32_t i = 0; i < stage->n_fillers; i++) {
        assert_int_equal(fixture_store(&fix, tier, NULL, prepared.filler[i], 130), FIRN_REASON_NONE);
    }
    assert_int_equal(fixture_store(&fix, tier, NULL, prepared.first, N_FIRST), FIRN_REASON_NONE);
    fixture_check(tier);
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
}

static int prepare(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("disk_torture", 5);
    fixture_random_tokens(&rng, prepared.first, N_FIRST + 1);
    fixture_random_tokens(&rng, prepared.second, N_SECOND + 1);
    for (size_t i = 0; i < 16; i++) {
        fixture_random_tokens(&rng, prepared.filler[i], 130);
    }
    prepare_stage(&small_stage);
    prepare_stage(&families_stage);
    prepare_stage(&sealed_stage);
    prepare_stage(&full_stage);
    return 0;
}

static int cleanup(void **unused)
{
    (void)unused;
    test_dir_remove(small_stage.seed_dir);
    test_dir_remove(families_stage.seed_dir);
    free(families_stage.seed_dir);
    test_dir_remove(sealed_stage.seed_dir);
    free(sealed_stage.seed_dir);
    test_dir_remove(full_stage.seed_dir);
    free(small_stage.seed_dir);
    free(full_stage.seed_dir);
    return 0;
}

/* The caches that are stored live in a world without faults: only the tier is tortured. */
typedef struct cast {
    fixture healthy;
    firn_cache *caches[FIXTURE_LAYERS_MAX];
    test_world *world; /* NULL while there are no faults */
    uint32_t n_corrupt;
} cast;

static bool store_second(const cast *actors, firn_tier *tier, firn_reason *reason)
{
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    for (uint32_t i = 0; i < actors->healthy.n_layers; i++) {
        borrowed[i] = actors->caches[i];
    }
    uint32_t number = 7;
    const firn_tensor tensor = {
        .dtype = FIRN_DTYPE_I32, .n_dims = 1, .shape = { 1 }, .data = &number, .n_bytes = sizeof number
    };
    const firn_attachment attachment = { .schema = "t", .tensors = &tensor, .n_tensors = 1 };
    const firn_store_input input = { .tokens = prepared.second,
                                     .n_tokens = N_SECOND,
                                     .caches = borrowed,
                                     .n_caches = actors->healthy.n_layers,
                                     .attachments = &attachment,
                                     .n_attachments = 1 };
    return firn_tier_store(tier, &input, reason);
}

/* Restores n tokens when they are there: right, or a reason. Returns whether they were. */
static bool fetch(cast *actors, firn_tier *tier, const firn_token *tokens, uint32_t n)
{
    const firn_match match = firn_tier_find(tier, tokens, n + 1, NULL);
    bool found = false;
    if (match.handle != NULL) {
        firn_restored restored;
        const firn_reason reason = firn_tier_restore(tier, match.handle, 0, &restored);
        if (reason == FIRN_REASON_NONE) {
            /* The restored caches allocate in the faulty world: not while the test looks at them. */
            const uint64_t aim = actors->world != NULL ? actors->world->fail_alloc_at : 0;
            if (actors->world != NULL) {
                actors->world->fail_alloc_at = 0;
            }
            fixture_assert_state(&actors->healthy, &restored, tokens, restored.n_tokens);
            if (actors->world != NULL) {
                actors->world->fail_alloc_at = aim;
            }
            found = restored.n_tokens == n;
        }
        /* Nothing on disk is damaged; only a short read cannot be told from a file that was cut. */
        assert_true(reason != FIRN_REASON_CORRUPT || (actors->world != NULL && actors->world->short_io));
        actors->n_corrupt += reason == FIRN_REASON_CORRUPT;
        firn_restored_deinit(&restored);
    }
    firn_tier_release(tier, match.handle);
    return found;
}

/* One run with one fault. Returns whether the fault happened. */
static bool run(cast *actors, test_world *world, const char *dir, const uint8_t *key)
{
    actors->world = world;
    actors->n_corrupt = 0;
    const firn_pool_options pool_options = { .budget_bytes = 64u << 20 };
    firn_pool *pool;
    assert_ok(firn_pool_create(&pool_options, NULL, &pool, NULL));
    firn_disk_options options = tight;
    options.key = key;
    options.dir = dir;
    options.schema = &actors->healthy.schema;
    options.pool = pool;
    firn_tier *tier = NULL;
    firn_error err = { 0 };
    bool stored = false;
    const firn_status opened = firn_disk_open(&options, &world->env, &tier, &err);
    if (opened == FIRN_OK) {
        firn_reason reason;
        (void)fetch(actors, tier, prepared.first, N_FIRST);
        stored = store_second(actors, tier, &reason);
        assert_true(stored || reason != FIRN_REASON_NONE);
        assert_true(fetch(actors, tier, prepared.second, N_SECOND) <= stored); /* what was refused is not visible */
        firn_tier_destroy(tier);
    } else {
        assert_null(tier);
        assert_true(err.message[0] != '\0');
    }
    firn_pool_stats stats;
    firn_pool_get_stats(pool, &stats);
    assert_int_equal(stats.n_blocks, 0);
    firn_pool_destroy(pool);
    const bool failed = world->alloc_failed || world->io_failed;
    test_world_deinit(world); /* asserts that nothing leaked */
    actors->world = NULL;

    /* Afterwards, without faults: the store is whole, and what was promised is there. */
    tier = fixture_open(&actors->healthy, dir, &options);
    fixture_check(tier);
    const bool quarantined = actors->n_corrupt > 0;
    assert_true(fetch(actors, tier, prepared.first, N_FIRST) || quarantined);
    const bool visible = fetch(actors, tier, prepared.second, N_SECOND);
    assert_true(visible == stored || (quarantined && !visible));
    const firn_tier_stats disk_stats = fixture_assert_books(tier, dir);
    assert_int_equal(disk_stats.n_quarantined, 0);
    firn_tier_destroy(tier);
    return failed;
}

typedef struct fault {
    const char *name;
    bool in_memory, is_short, goes_on;
    int number;
} fault;

/* Fails call `first`, then every stride-th, until a run has no failure. */
static void torture(const torture_stage *stage, const fault *kind, uint64_t first, uint64_t stride)
{
#ifdef FIRN_FAULTS
    first = 1;
    stride = 1;
#endif
    cast actors = { .n_corrupt = 0 };
    fixture_init(&actors.healthy, NULL, &stage->geometry);
    fixture_make_caches(&actors.healthy, prepared.second, N_SECOND, actors.caches);
    uint64_t n_rounds = 0;
    for (uint64_t n = first;; n += stride) {
        char *dir = test_dir_create();
        copy_directory(stage->seed_dir, dir);
        test_world world;
        test_world_init(&world);
        world.fail_errno = kind->number;
        world.short_io = kind->is_short;
        world.fail_on = kind->goes_on;
        *(kind->in_memory ? &world.fail_alloc_at : &world.fail_io_at) = n;
        const bool failed = run(&actors, &world, dir, stage->key);
        test_dir_remove(dir);
        free(dir);
        if (!failed) {
            break;
        }
        n_rounds++;
    }
    print_message("%s: %llu rounds\n", kind->name, (unsigned long long)n_rounds);
    assert_true(n_rounds > 3);
    fixture_destroy_caches(actors.caches);
    fixture_deinit(&actors.healthy);
}

static const fault no_memory = { .name = "allocations", .in_memory = true };
static const fault io_error = { .name = "EIO", .number = EIO };
static const fault short_io = { .name = "short", .number = EIO, .is_short = true };
static const fault no_space = { .name = "ENOSPC from then on", .number = ENOSPC, .goes_on = true };

static void each_allocation_fails_once(void **unused)
{
    (void)unused;
    torture(&small_stage, &no_memory, 1, 2);
    torture(&families_stage, &no_memory, 2, 2);
    torture(&sealed_stage, &no_memory, 1, 2);
    torture(&full_stage, &no_memory, 8, 7);
}

static void each_io_call_fails_once_with_eio(void **unused)
{
    (void)unused;
    torture(&small_stage, &io_error, 1, 1);
    torture(&families_stage, &io_error, 1, 1);
    torture(&sealed_stage, &io_error, 2, 2);
    torture(&full_stage, &io_error, 16, 3);
}

static void each_io_call_is_short_once(void **unused)
{
    (void)unused;
    torture(&families_stage, &short_io, 1, 1);
}

static void the_disk_is_full_from_each_call_on(void **unused)
{
    (void)unused;
    torture(&small_stage, &no_space, 1, 2);
    torture(&families_stage, &no_space, 1, 1);
    torture(&sealed_stage, &no_space, 1, 3);
    torture(&full_stage, &no_space, 17, 6);
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(each_io_call_fails_once_with_eio),
        cmocka_unit_test(each_io_call_is_short_once),
        cmocka_unit_test(the_disk_is_full_from_each_call_on),
    };
    return cmocka_run_group_tests(tests, prepare, cleanup);
}
