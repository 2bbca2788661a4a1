/*
 * Every system call of the tier fails, LMDB's own included, and every allocation of LMDB: each once, and some from then
 * on, in a scenario that opens a store, looks, restores, stores, expires, verifies, flushes and closes.
 *
 * What holds: an operation that fails says why and is counted; what was stored is readable afterwards; a refused store
 * left nothing behind; no byte is wrong; nothing leaks; the next process finds books that agree with the disk. Short
 * transfers of Firn's own calls are no failures at all. (test_disk_torture.c does the same at the level of
 * firn_env, where also the tier's allocations fail.)
 *
 * `make FAULTS=1` fails every call; otherwise some of them, chosen by stride.
 */
#define _GNU_SOURCE /* dl_iterate_phdr, O_DIRECT, fallocate */
#include "support/support.h"
#include "tier/libc_seam.h"
#include "tier/tier_fixture.h"

#ifdef FIRN_FAULTS
#define IS_EXHAUSTIVE 1
#else
#define IS_EXHAUSTIVE 0
#endif

#define N_OLD    40u
#define N_FIRST  70u
#define N_SECOND 200u
#define HOUR_NS  UINT64_C(3600000000000)

static const firn_disk_options with_ttl = { .segment_bytes = 128u << 10, .ttl_ns = HOUR_NS };

typedef struct stage {
    fixture_options geometry;
    char *seed_dir; /* holds `old`, which has expired, and `first`; copied for each round */
} stage;

static stage stages[] = { { .geometry = { .schema = FIXTURE_PLAIN } }, { .geometry = { .schema = FIXTURE_ALL } } };
#define N_STAGES (sizeof stages / sizeof stages[0])

static firn_token old[N_OLD + 1], first[N_FIRST + 1], second[N_SECOND + 1];

static int prepare(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("disk_faults", 15);
    fixture_random_tokens(&rng, old, N_OLD + 1);
    fixture_random_tokens(&rng, first, N_FIRST + 1);
    memcpy(second, first, sizeof first); /* its first blocks are stored, and a tail is continued */
    fixture_random_tokens(&rng, second + N_FIRST, N_SECOND + 1 - N_FIRST);
    for (size_t i = 0; i < N_STAGES; i++) {
        test_world world;
        test_world_init(&world);
        fixture fix;
        fixture_init(&fix, &world.env, &stages[i].geometry);
        stages[i].seed_dir = test_dir_create();
        firn_tier *tier = fixture_open(&fix, stages[i].seed_dir, &with_ttl);
        assert_int_equal(fixture_store(&fix, tier, NULL, old, N_OLD), FIRN_REASON_NONE);
        world.clock_offset_ns = 2 * HOUR_NS;
        assert_int_equal(fixture_store(&fix, tier, NULL, first, N_FIRST), FIRN_REASON_NONE);
        firn_tier_destroy(tier);
        fixture_deinit(&fix);
        test_world_deinit(&world);
    }
    return 0;
}

static int cleanup(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < N_STAGES; i++) {
        test_dir_remove(stages[i].seed_dir);
        free(stages[i].seed_dir);
    }
    return 0;
}

/* ---- one round --------------------------------------------------------------------------------------------------- */

/* How a call fails, and what may come of it. */
typedef struct fault {
    const char *name;
    seam_aim aim;
    bool is_transparent; /* an open store does not notice */
    uint32_t stride;     /* when not exhaustive */
} fault;

static const fault faults[] = {
    { .name = "LMDB EIO", .aim = { .lmdb = true, .number = EIO }, .stride = 1 },
    { .name = "LMDB ENOSPC", .aim = { .lmdb = true, .number = ENOSPC }, .stride = 3 },
    { .name = "LMDB ENOSPC from then on", .aim = { .lmdb = true, .number = ENOSPC, .goes_on = true }, .stride = 3 },
    { .name = "LMDB EDQUOT", .aim = { .lmdb = true, .number = EDQUOT }, .stride = 7 },
    { .name = "LMDB EACCES", .aim = { .lmdb = true, .number = EACCES }, .stride = 7 },
    { .name = "LMDB EROFS from then on", .aim = { .lmdb = true, .number = EROFS, .goes_on = true }, .stride = 5 },
    { .name = "LMDB EINTR", .aim = { .lmdb = true, .number = EINTR }, .stride = 3 },
    { .name = "LMDB short", .aim = { .lmdb = true, .is_short = true }, .stride = 3 },
#if SEAM_ALLOCATES
    { .name = "LMDB allocations", .aim = { .lmdb = true, .allocations = true }, .stride = 3 },
    { .name = "LMDB allocations from then on",
      .aim = { .lmdb = true, .allocations = true, .goes_on = true },
      .stride = 5 },
#endif
    { .name = "EIO", .aim = { .firn = true, .number = EIO }, .stride = 3 },
    { .name = "EIO from then on, everywhere",
      .aim = { .firn = true, .lmdb = true, .number = EIO, .goes_on = true },
      .stride = 7 },
    { .name = "ENOSPC", .aim = { .firn = true, .number = ENOSPC }, .stride = 11 },
    { .name = "EDQUOT", .aim = { .firn = true, .number = EDQUOT }, .stride = 13 },
    { .name = "EACCES", .aim = { .firn = true, .number = EACCES }, .stride = 11 },
    { .name = "EROFS", .aim = { .firn = true, .number = EROFS }, .stride = 13 },
    { .name = "EINTR", .aim = { .firn = true, .number = EINTR }, .stride = 5 },
    { .name = "short", .aim = { .firn = true, .is_short = true }, .is_transparent = true, .stride = 3 },
};

typedef struct outcome {
    bool opened, stored;
    firn_reason store_reason;
} outcome;

/* Looks for n tokens and compares what comes back. True when all of them came. */
static bool fetch(const fixture *fix, firn_tier *tier, const firn_token *tokens, uint32_t n, firn_reason *reason)
{
    const firn_match match = firn_tier_find(tier, tokens, n + 1, NULL);
    *reason = match.reason;
    bool is_whole = false;
    if (match.handle != NULL) {
        firn_restored restored;
        *reason = firn_tier_restore(tier, match.handle, 0, &restored);
        if (*reason == FIRN_REASON_NONE) {
            fixture_assert_state(fix, &restored, tokens, restored.n_tokens);
            is_whole = restored.n_tokens == n;
        }
        firn_restored_deinit(&restored);
        firn_tier_release(tier, match.handle);
    }
    return is_whole;
}

/* The scenario, with the fault armed. */
static outcome run(const fixture *fix, const char *dir, const seam_aim *aim)
{
    outcome out = { .opened = false };
    firn_disk_options options = with_ttl;
    options.dir = dir;
    options.schema = &fix->schema;
    options.pool = fix->pool;
    firn_tier *tier = NULL;
    firn_error err = { 0 };
    seam_watch(dir);
    seam_arm(aim);
    if (firn_disk_open(&options, fix->env, &tier, &err) != FIRN_OK) {
        assert_null(tier);
        assert_true(err.message[0] != '\0');
        seam_disarm();
        return out;
    }
    out.opened = true;
    firn_tier_stats before, after;
    firn_reason reason;
    (void)fetch(fix, tier, first, N_FIRST, &reason);
    firn_tier_get_stats(tier, &before);
    out.store_reason = fixture_store(fix, tier, NULL, second, N_SECOND);
    out.stored = out.store_reason == FIRN_REASON_NONE;
    firn_tier_get_stats(tier, &after);
    assert_int_equal(after.n_stores - before.n_stores, out.stored);
    assert_int_equal(after.n_store_refused - before.n_store_refused, !out.stored);
    assert_true(fetch(fix, tier, second, N_SECOND, &reason) <= out.stored);
    (void)firn_tier_flush(tier, UINT64_C(10000000000)); /* expires `old` */
    uint64_t n_good, n_bad;
    (void)firn_disk_verify(tier, &n_good, &n_bad, NULL);
    assert_true(fetch(fix, tier, second, N_SECOND, &reason) <= out.stored);
    firn_tier_destroy(tier);
    seam_disarm();
    return out;
}

/* Without faults: the store is whole, and what was promised is there. */
static void check_afterwards(const fixture *fix, const char *dir, const outcome *out)
{
    firn_reason reason;
    firn_tier *tier = fixture_open(fix, dir, &with_ttl);
    fixture_check(tier);
    assert_int_equal(fetch(fix, tier, second, N_SECOND, &reason), out->stored);
    if (!out->stored) {
        assert_true(fetch(fix, tier, first, N_FIRST, &reason));
    }
    assert_false(fetch(fix, tier, old, N_OLD, &reason));
    uint64_t n_good, n_bad;
    assert_ok(firn_disk_verify(tier, &n_good, &n_bad, NULL));
    assert_int_equal(n_bad, 0);
    assert_int_equal(fixture_store(fix, tier, NULL, second, N_SECOND), FIRN_REASON_NONE);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

/* One round: call n of this fault. Returns whether it was reached. */
static bool round_of(const stage *where, const fault *kind, uint64_t n)
{
    test_world world;
    test_world_init(&world);
    world.clock_offset_ns = 2 * HOUR_NS;
    fixture fix;
    fixture_init(&fix, &world.env, &where->geometry);
    char *dir = test_dir_create();
    char command[1200];
    (void)snprintf(command, sizeof command, "cp -a --sparse=always '%s/.' '%s/'", where->seed_dir, dir);
    assert_int_equal(system(command), 0);
    seam_aim aim = kind->aim;
    aim.at = n;
    const outcome out = run(&fix, dir, &aim);
    const bool reached = atomic_load(&seam.has_failed);
    if (!reached) {
        assert_true(out.opened && out.stored);
    } else if (kind->is_transparent) {
        assert_true(!out.opened || out.stored); /* only the marker is not written on */
    }
    assert_int_equal(atomic_load(&seam.n_lmdb_blocks), 0); /* always 0 where a sanitizer looks for leaks */
    check_afterwards(&fix, dir, &out);
    fixture_deinit(&fix);
    test_world_deinit(&world);
    test_dir_remove(dir);
    free(dir);
    return reached;
}

static char last_round[160];

static void every_system_call_fails_once_and_nothing_is_in_between(void **unused)
{
    (void)unused;
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++) {
        const uint32_t stride = IS_EXHAUSTIVE ? 1 : faults[f].stride;
        for (size_t s = 0; s < N_STAGES; s++) {
            uint32_t n_rounds = 0;
            /* Other first calls in each stage, so that strides do not leave out the same ones. */
            for (uint64_t n = 1 + s * stride / 2;; n += stride) {
                (void)snprintf(last_round, sizeof last_round, "%s, stage %zu, call %llu", faults[f].name, s,
                               (unsigned long long)n);
                if (!round_of(&stages[s], &faults[f], n)) {
                    break;
                }
                n_rounds++;
            }
            print_message("%s: %u rounds\n", faults[f].name, n_rounds);
            assert_true(n_rounds > 1);
        }
    }
    last_round[0] = '\0';
}

/* Calls on files, Firn's and LMDB's, that opening a store of n more sequences makes. */
static uint64_t calls_of_opening(const fixture *fix, const char *dir, test_rng *rng, uint32_t n)
{
    static const firn_disk_options one_segment = { .segment_bytes = UINT64_C(1) << 30 };
    firn_token tokens[20];
    firn_tier *tier = fixture_open(fix, dir, &one_segment);
    for (uint32_t i = 0; i < n; i++) {
        fixture_random_tokens(rng, tokens, 20);
        assert_int_equal(fixture_store(fix, tier, NULL, tokens, 20), FIRN_REASON_NONE);
    }
    firn_tier_destroy(tier);
    seam_watch(dir);
    seam_arm(&(seam_aim){ .firn = true, .lmdb = true });
    tier = fixture_open(fix, dir, &one_segment);
    seam_disarm();
    const uint64_t n_calls = atomic_load(&seam.n_calls);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    assert_true(stats.n_records >= n);
    firn_tier_destroy(tier);
    return n_calls;
}

static void opening_makes_the_same_calls_whatever_is_stored(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("disk_faults_opening", 16);
    fixture fix;
    fixture_init(&fix, NULL, NULL);
    char *dir = test_dir_create();
    const uint64_t n_few = calls_of_opening(&fix, dir, &rng, 3);
    const uint64_t n_many = calls_of_opening(&fix, dir, &rng, 1500);
    print_message("%llu calls\n", (unsigned long long)n_many);
    assert_int_equal(n_few, n_many);
    test_dir_remove(dir);
    free(dir);
    fixture_deinit(&fix);
}

static int say_where(void **unused)
{
    (void)unused;
    seam_disarm();
    if (last_round[0] != '\0') {
        print_message("the last round: %s\n", last_round);
    }
    return 0;
}

int main(void)
{
    /* Some hundred copies of a store: in memory where the system has a place for it. */
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_makes_the_same_calls_whatever_is_stored),
        cmocka_unit_test_teardown(every_system_call_fails_once_and_nothing_is_in_between, say_where),
    };
    return cmocka_run_group_tests(tests, prepare, cleanup);
}
