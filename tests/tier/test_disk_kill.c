/*
 * A process that stores is killed at random moments, two hundred times. The next process finds old state, new state, or
 * a miss; what was acknowledged is there; the books agree with the disk.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N_KILLS     200u
#define N_SEQUENCES 24u
#define LENGTH_MAX  260u

typedef struct phase {
    const char *name;
    fixture_options geometry;
    firn_disk_options disk;
    uint32_t n_kills, kills_per_store;
    bool evicts;
} phase;

static const phase phases[] = {
    { .name = "room enough", .disk = { .segment_bytes = 1u << 20 }, .n_kills = 100, .kills_per_store = 10 },
    { .name = "evicting",
      .geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 64 },
      .disk = { .budget_bytes = 64u << 20, .segment_bytes = 8u << 20 },
      .n_kills = 40,
      .kills_per_store = 20,
      .evicts = true },
    { .name = "all families",
      .geometry = { .schema = FIXTURE_ALL },
      .disk = { .segment_bytes = 1u << 20 },
      .n_kills = 40,
      .kills_per_store = 10 },
    { .name = "states only", .geometry = { .schema = FIXTURE_STATES_ONLY }, .n_kills = 20, .kills_per_store = 10 },
};

static firn_token sequences[N_SEQUENCES][LENGTH_MAX];

/* What was acknowledged: one byte pair through a pipe for each finished store. */
typedef struct ack {
    uint8_t sequence;
    uint16_t n_tokens;
} ack;

/* Stores without end. Runs in the child; a failure there shows as an exit status. */
static void child_main(const phase *what, const char *dir, uint64_t seed, int out)
{
    fixture fix;
    fixture_init(&fix, NULL, &what->geometry);
    test_rng rng = { .state = seed };
    firn_tier *tier = fixture_open(&fix, dir, &what->disk);
    for (;;) {
        ack done = { .sequence = (uint8_t)test_rng_below(&rng, N_SEQUENCES),
                     .n_tokens = (uint16_t)(1 + test_rng_below(&rng, LENGTH_MAX)) };
        if (fixture_store(&fix, tier, NULL, sequences[done.sequence], done.n_tokens) != FIRN_REASON_NONE) {
            _exit(3);
        }
        if (write(out, &done, sizeof done) != sizeof done) {
            _exit(4);
        }
        if (test_rng_below(&rng, 8) == 0) {
            firn_reason reason;
            (void)fixture_fetch(&fix, tier, NULL, sequences[done.sequence], LENGTH_MAX, &reason);
        }
        if (test_rng_below(&rng, 12) == 0) {
            firn_tier_destroy(tier);
            tier = fixture_open(&fix, dir, &what->disk);
        }
    }
}

/* Lets a child work for a while and kills it; fills what it acknowledged. */
static uint32_t run_and_kill(const phase *what, const char *dir, test_rng *rng, ack *acks, uint32_t n_max)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const uint64_t seed = test_rng_u64(rng);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        child_main(what, dir, seed, ends[1]);
        _exit(5);
    }
    close(ends[1]);
    /* Half of them die while they open the store, or whenever it is; the others have stored something, however busy the
     * machine is. */
    if (test_rng_below(rng, 2) == 0) {
        struct pollfd first = { .fd = ends[0], .events = POLLIN };
        (void)poll(&first, 1, 30000);
    }
    const struct timespec pause = { .tv_nsec = (long)(1000000u * (1 + test_rng_below(rng, 45))) };
    (void)nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status)); /* killed, not failed before */
    uint32_t n = 0;
    while (n < n_max && read(ends[0], &acks[n], sizeof acks[n]) == sizeof acks[n]) {
        n++;
    }
    close(ends[0]);
    return n;
}

static void check_survivor(const phase *what, const char *dir, const ack *acks, uint32_t n_acks, uint32_t *n_found)
{
    fixture fix;
    fixture_init(&fix, NULL, &what->geometry);
    firn_tier *tier = fixture_open(&fix, dir, &what->disk);
    fixture_check(tier);
    firn_reason reason;
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        /* fixture_fetch compares every bit of what comes back. */
        *n_found += fixture_fetch(&fix, tier, NULL, sequences[i], LENGTH_MAX, &reason) > 0;
        assert_int_not_equal(reason, FIRN_REASON_CORRUPT);
    }
    for (uint32_t i = 0; i < n_acks && !what->evicts; i++) {
        const firn_match match = firn_tier_find_exact(tier, sequences[acks[i].sequence], acks[i].n_tokens, NULL);
        assert_non_null(match.handle);
        firn_tier_release(tier, match.handle);
    }
    const firn_tier_stats stats = fixture_assert_books(tier, dir);
    assert_true(stats.physical_bytes <= stats.budget_bytes);
    assert_int_equal(stats.n_quarantined, 0);
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
}

static void run_phase(const phase *what, test_rng *rng)
{
    ack *acks = calloc(20000, sizeof *acks);
    uint32_t n_acks = 0, n_found = 0;
    char *dir = NULL;
    for (uint32_t i = 0; i < what->n_kills; i++) {
        if (i % what->kills_per_store == 0) {
            if (dir != NULL) {
                test_dir_remove(dir);
            }
            free(dir);
            dir = test_dir_create();
            n_acks = 0;
        }
        n_acks += run_and_kill(what, dir, rng, acks + n_acks, 20000 - n_acks);
        check_survivor(what, dir, acks, n_acks, &n_found);
    }
    print_message("%s: %u kills, %u prefixes found afterwards\n", what->name, what->n_kills, n_found);
    assert_true(n_found > 0);
    test_dir_remove(dir);
    free(dir);
    free(acks);
}

static void a_killed_writer_leaves_old_or_new_state(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("disk_kill", 9);
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        fixture_random_tokens(&rng, sequences[i], LENGTH_MAX);
        if (i % 3 != 0) {
            memcpy(sequences[i], sequences[i - 1], 4 * test_rng_below(&rng, LENGTH_MAX));
        }
    }
    uint32_t n_kills = 0;
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        run_phase(&phases[i], &rng);
        n_kills += phases[i].n_kills;
    }
    assert_int_equal(n_kills, N_KILLS);
}

int main(void)
{
    /* What is tested is the process's death, not the device's: memory is as good, and quicker. */
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_writer_leaves_old_or_new_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
