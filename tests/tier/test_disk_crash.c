/*
 * Power failures: runs of the tier are written down call by call, LMDB's included, and for each of many moments the
 * disk is put into one of the states that it may be found in (crash_model.h). The tier opens every one of them: no
 * wrong byte is restored, what was durable is there, the books are those of the disk, and opening reads no record.
 *
 * A run is a chain of processes on one directory: each stores, looks, waits and flushes for a while, and then closes or
 * dies. So a crash may also come after a kill, while the files are still as the dead process left them in memory.
 *
 * Some runs are of an encrypted store, compress what they have stored, note sessions, or lose their index before a
 * process begins, which then makes it anew: a crash may come in the middle of each. An image without an index, or with
 * one that is not complete, is rebuilt as its message says, and must then keep the same promises.
 *
 * FIRN_CRASHES: how many crashes (2000). FIRN_CRASH_RUN: from which run on (0); a failure says which one it was.
 */
#define _GNU_SOURCE /* dl_iterate_phdr, O_DIRECT, fallocate */
#include <inttypes.h>
#include <sys/wait.h>

#include "firn/keep.h"
#include "tier/crash_model.h"
#include "tier/tier_fixture.h"

#define N_SEQUENCES     5u
#define LENGTH_MAX      230u
#define LEGS_MAX        4u
#define STEPS_MAX       9u
#define CRASHES_PER_RUN 40u
#define CRASHES_DEFAULT 2000u
#define TTL_NS          UINT64_C(3600000000000)
#define ACKS_MAX        256u
#define N_SESSIONS      3u   /* of the first sequences, one each */

/* What a run of a kind promises. */
typedef struct run_kind {
    const char *name;
    fixture_options geometry;
    firn_disk_options disk;
    bool demotes, keeps_sessions, loses_index;
} run_kind;

static const run_kind kinds[] = {
    { .name = "batch", .disk = { .segment_bytes = 96u << 10 } },
    { .name = "always", .disk = { .segment_bytes = 96u << 10, .durability = FIRN_DURABILITY_ALWAYS } },
    { .name = "batch, all families", .geometry = { .schema = FIXTURE_ALL }, .disk = { .segment_bytes = 160u << 10 } },
    { .name = "none", .disk = { .segment_bytes = 96u << 10, .durability = FIRN_DURABILITY_NONE } },
    { .name = "batch, expiring", .disk = { .segment_bytes = 64u << 10, .ttl_ns = TTL_NS } },
    { .name = "always, all families, expiring",
      .geometry = { .schema = FIXTURE_ALL },
      .disk = { .segment_bytes = 96u << 10, .durability = FIRN_DURABILITY_ALWAYS, .ttl_ns = TTL_NS } },
    { .name = "none, all families", .geometry = { .schema = FIXTURE_ALL },
      .disk = { .segment_bytes = 160u << 10, .durability = FIRN_DURABILITY_NONE } },
    { .name = "batch, buffered", .disk = { .segment_bytes = 96u << 10, .buffered = true } },
    { .name = "batch, encrypted", .geometry = { .schema = FIXTURE_ALL },
      .disk = { .segment_bytes = 160u << 10, .key = fixture_key }, .keeps_sessions = true },
    { .name = "batch, compressing", .geometry = { .n_kv_heads = 8, .head_dim = 32 },
      .disk = { .segment_bytes = 256u << 10, .demote_idle_ns = 1 }, .demotes = true },
    { .name = "batch, rebuilt", .geometry = { .schema = FIXTURE_ALL }, .disk = { .segment_bytes = 96u << 10 },
      .keeps_sessions = true, .loses_index = true },
    { .name = "always, encrypted, compressing, rebuilt",
      .geometry = { .schema = FIXTURE_STATES, .n_kv_heads = 8, .head_dim = 32 },
      .disk = { .segment_bytes = 256u << 10, .durability = FIRN_DURABILITY_ALWAYS, .demote_idle_ns = 1,
                .key = fixture_key },
      .demotes = true, .keeps_sessions = true, .loses_index = true },
    { .name = "none, rebuilt",
      .disk = { .segment_bytes = 96u << 10, .durability = FIRN_DURABILITY_NONE },
      .keeps_sessions = true, .loses_index = true },
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static firn_token sequences[N_SEQUENCES][LENGTH_MAX + 1];
static char last_crash[200]; /* where the test is; printed when it fails */

/* ---- a run, in children ------------------------------------------------------------------------------------------ */

typedef enum event {
    EVENT_STORING = 1,
    EVENT_STORED,
    EVENT_NAMED,
    EVENT_FLUSHED,
    EVENT_HOURS,
    EVENT_SESSION
} event;

static uint64_t mark_of(event what, uint32_t sequence, uint32_t n)
{
    return (uint64_t)what << 48 | (uint64_t)sequence << 32 | n;
}

/* What the message of a store without an index says: a new one. False: it has one. */
static bool rebuild_if_lost(const run_kind *kind, const char *dir, const fixture *fix)
{
    firn_disk_options options = kind->disk;
    options.dir = dir;
    options.schema = &fix->schema;
    options.pool = fix->pool;
    firn_tier *tier = NULL;
    firn_error err = { 0 };
    if (firn_disk_open(&options, fix->env, &tier, &err) == FIRN_OK) {
        firn_tier_destroy(tier);
        return false;
    }
    const firn_disk_fsck_options fsck = { .key = kind->disk.key };
    firn_disk_fsck_report report;
    if (strstr(err.message, "firn cache fsck") == NULL || firn_disk_fsck(dir, &fsck, NULL, &report, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    return true;
}

static void lose_index(const char *dir)
{
    static const char *const names[] = { "data.mdb", "lock.mdb" };
    for (unsigned i = 0; i < 2; i++) {
        char path[700];
        (void)snprintf(path, sizeof path, "%s/index/%s", dir, names[i]);
        (void)unlink(path);
    }
}

static void put_session(firn_tier *tier, uint32_t sequence, uint32_t n)
{
    const firn_session session = {
        .id = sequence == 0 ? "0" : sequence == 1 ? "1" : "2", .ns = "", .tokens = sequences[sequence], .n_tokens = n
    };
    if (firn_tier_put_session(tier, &session, NULL) != FIRN_OK) {
        _exit(4);
    }
}

/* One process of the run: some steps, then the orderly end, or none. */
static void leg(const run_kind *kind, const char *dir, uint64_t seed, uint64_t hours)
{
    test_rng rng = { .state = seed };
    test_world world;
    test_world_init(&world);
    world.clock_offset_ns = hours * TTL_NS;
    fixture fix;
    fixture_init(&fix, &world.env, &kind->geometry);
    if (kind->loses_index) {
        if (test_rng_below(&rng, 2) == 0) {
            lose_index(dir);
        }
        (void)rebuild_if_lost(kind, dir, &fix);
    }
    firn_tier *tier = fixture_open(&fix, dir, &kind->disk);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    const uint32_t n_steps = 1 + test_rng_below(&rng, STEPS_MAX);
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint32_t sequence = test_rng_below(&rng, N_SEQUENCES);
        const uint32_t n = 1 + test_rng_below(&rng, LENGTH_MAX);
        firn_reason reason;
        switch (test_rng_below(&rng, 8)) {
        case 0: (void)fixture_fetch(&fix, tier, NULL, sequences[sequence], LENGTH_MAX + 1, &reason); break;
        case 1:
            if (firn_tier_flush(tier, UINT64_C(10000000000)).durable) {
                seam_mark(mark_of(EVENT_FLUSHED, 0, 0));
            }
            break;
        case 2:
            if (kind->disk.ttl_ns > 0) {
                seam_mark(mark_of(EVENT_HOURS, 0, 2)); /* everything there is has expired */
                world.clock_offset_ns += 2 * TTL_NS;
            }
            break;
        default: {
            const uint64_t n_written_before = stats.written_bytes;
            seam_mark(mark_of(EVENT_STORING, sequence, n));
            if (fixture_store(&fix, tier, NULL, sequences[sequence], n) != FIRN_REASON_NONE) {
                _exit(3);
            }
            firn_tier_get_stats(tier, &stats);
            seam_mark(mark_of(stats.written_bytes > n_written_before ? EVENT_NAMED : EVENT_STORED, sequence, n));
            if (kind->keeps_sessions && sequence < N_SESSIONS) {
                seam_mark(mark_of(EVENT_SESSION, sequence, n));
                put_session(tier, sequence, n);
            }
            if (kind->demotes && test_rng_below(&rng, 2) == 0) {
                firn_disk_demote_report report;
                world.clock_offset_ns += 1000000000u;
                if (firn_disk_demote(tier, &report, NULL) != FIRN_OK) {
                    _exit(5);
                }
            }
        }
        }
    }
    if (test_rng_below(&rng, 2) == 0) {
        firn_tier_destroy(tier);
        seam_mark(mark_of(EVENT_FLUSHED, 0, 0));
    }
    seam_enter(); /* the tier's threads may be in the middle of a call */
    _exit(0);
}

/* Hours that have passed by the end of the log. */
static uint64_t hours_of(const seam_log *log)
{
    uint64_t hours = 0;
    for (uint32_t i = 0; i < log->n_ops; i++) {
        if (log->ops[i].kind == SEAM_MARK && log->ops[i].at >> 48 == EVENT_HOURS) {
            hours += log->ops[i].at & UINT32_MAX;
        }
    }
    return hours;
}

static void record_run(const run_kind *kind, const char *parent, seam_log *log, test_rng *rng)
{
    char dir[600];
    (void)snprintf(dir, sizeof dir, "%s/cache", parent);
    const uint32_t n_legs = 1 + test_rng_below(rng, LEGS_MAX);
    for (uint32_t i = 0; i < n_legs; i++) {
        const uint64_t seed = test_rng_u64(rng);
        fflush(NULL);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            seam.log = log;
            seam_leave(); /* of the process before */
            seam_watch(parent);
            leg(kind, dir, seed, hours_of(log));
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* ---- what was promised by a moment ------------------------------------------------------------------------------- */

typedef struct ack {
    uint32_t sequence, n_tokens;
    bool is_durable;
} ack;

/* Where a session was said to stand: at the first of these if it is durable, or at any that came later. */
typedef struct said {
    uint32_t n_tokens[ACKS_MAX], n;
    bool is_durable;
} said;

typedef struct promises {
    firn_durability durability;
    said sessions[N_SESSIONS];
    ack acks[ACKS_MAX];
    uint32_t n;
    uint64_t hours;
} promises;

/* docs/FAULT_MODEL.md: with `always` a store is durable when it returns, with `batch` once another commit of the index
 * has followed, with `none` after a flush and until the next store, which may replace a tail by bytes that are not
 * synced. */
static void note_event(promises *made, uint64_t mark)
{
    const event what = (event)(mark >> 48);
    bool all_durable = what == EVENT_FLUSHED;
    if (what == EVENT_HOURS) {
        made->n = 0;
        made->hours += mark & UINT32_MAX;
    } else if (what == EVENT_STORED || what == EVENT_NAMED) {
        for (uint32_t i = 0; i < made->n && made->durability == FIRN_DURABILITY_BATCH && what == EVENT_NAMED; i++) {
            made->acks[i].is_durable = true;
        }
        assert_true(made->n < ACKS_MAX);
        made->acks[made->n++] = (ack){ .sequence = (uint32_t)(mark >> 32) & 0xffffu, .n_tokens = (uint32_t)mark };
        all_durable = made->durability == FIRN_DURABILITY_ALWAYS;
    }
    if (what == EVENT_SESSION) {
        said *session = &made->sessions[mark >> 32 & 0xffffu];
        assert_true(session->n < ACKS_MAX);
        session->n_tokens[session->n++] = (uint32_t)mark;
    }
    for (uint32_t i = 0; i < N_SESSIONS && what == EVENT_FLUSHED; i++) {
        said *session = &made->sessions[i];
        session->n_tokens[0] = session->n > 0 ? session->n_tokens[session->n - 1] : 0;
        session->n = session->n > 0;
        session->is_durable = session->n > 0;
    }
    const bool none_durable = what == EVENT_STORING && made->durability == FIRN_DURABILITY_NONE;
    for (uint32_t i = 0; i < made->n; i++) {
        made->acks[i].is_durable = (made->acks[i].is_durable || all_durable) && !none_durable;
    }
}

/* ---- after the crash --------------------------------------------------------------------------------------------- */

static bool check_session(void *ctx, const firn_session *session)
{
    said *left = ctx;
    const uint32_t sequence = (uint32_t)(session->id[0] - '0');
    assert_true(sequence < N_SESSIONS);
    bool was_said = false;
    for (uint32_t i = 0; i < left[sequence].n; i++) {
        was_said = was_said || left[sequence].n_tokens[i] == session->n_tokens;
    }
    if (!was_said) {
        fail_msg("session %u stands at %u tokens; the last that was said is %u, of %u, durable %d", sequence,
                 session->n_tokens, left[sequence].n > 0 ? left[sequence].n_tokens[left[sequence].n - 1] : 0,
                 left[sequence].n, left[sequence].is_durable);
    }
    assert_memory_equal(session->tokens, sequences[sequence], session->n_tokens * sizeof(firn_token));
    left[sequence].is_durable = false;
    return true;
}

/* Each session that a flush has made durable stands where it stood then or was moved to later; and no other does. */
static void check_sessions(firn_tier *tier, const promises *made)
{
    said left[N_SESSIONS];
    memcpy(left, made->sessions, sizeof left);
    assert_ok(firn_tier_each_session(tier, check_session, left, NULL));
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        assert_false(left[i].is_durable);
    }
}

/* Everything a new process must find; `goes_on`: also that it can be written to. */
static void check_image(const run_kind *kind, const char *image, const promises *made, bool goes_on, uint32_t *n_found)
{
    test_world world;
    test_world_init(&world);
    world.clock_offset_ns = made->hours * TTL_NS;
    fixture fix;
    fixture_init(&fix, &world.env, &kind->geometry);
    char dir[600];
    (void)snprintf(dir, sizeof dir, "%s/cache", image);
    if (kind->loses_index) {
        (void)rebuild_if_lost(kind, dir, &fix);
        world.read_bytes = 0;
    }
    firn_tier *tier = fixture_open(&fix, dir, &kind->disk);
    assert_true(world.read_bytes < 4096); /* the marker; no record */
    fixture_check(tier);
    for (uint32_t i = 0; i < made->n; i++) {
        const ack *one = &made->acks[i];
        if (one->is_durable) {
            const firn_match match = firn_tier_find_exact(tier, sequences[one->sequence], one->n_tokens, NULL);
            if (match.handle == NULL) {
                fail_msg("%u tokens of sequence %u were durable and are a miss: %s", one->n_tokens, one->sequence,
                         firn_reason_name(match.reason));
            }
            firn_restored restored;
            const firn_reason reason = firn_tier_restore(tier, match.handle, 0, &restored);
            if (reason != FIRN_REASON_NONE) {
                fail_msg("%u tokens of sequence %u were durable and are not restored: %s", one->n_tokens,
                         one->sequence, firn_reason_name(reason));
            }
            fixture_assert_state(&fix, &restored, sequences[one->sequence], one->n_tokens);
            firn_restored_deinit(&restored);
            firn_tier_release(tier, match.handle);
        }
    }
    if (kind->keeps_sessions) {
        check_sessions(tier, made);
    }
    firn_reason reason;
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        /* Compares every bit of what comes back. */
        *n_found += fixture_fetch(&fix, tier, NULL, sequences[i], LENGTH_MAX + 1, &reason) > 0;
        /* What the index names was synced before: only without syncs may it be damaged, and then it is a miss. */
        assert_true(reason != FIRN_REASON_CORRUPT || kind->disk.durability == FIRN_DURABILITY_NONE);
    }
    if (goes_on) {
        assert_int_equal(fixture_store(&fix, tier, NULL, sequences[0], LENGTH_MAX), FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&fix, tier, NULL, sequences[0], LENGTH_MAX + 1, &reason), LENGTH_MAX);
        fixture_check(tier);
    }
    const firn_tier_stats stats = fixture_assert_books(tier, dir);
    assert_true(stats.n_quarantined == 0 || kind->disk.durability == FIRN_DURABILITY_NONE);
    firn_tier_destroy(tier);
    fixture_deinit(&fix);
    test_world_deinit(&world);
}

static int by_number(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* n crashes of one recorded run, in the order of their moments. */
static void crash_run(const run_kind *kind, uint32_t run, const seam_log *log, uint32_t n, test_rng *rng,
                      uint32_t *n_found)
{
    uint32_t moments[CRASHES_PER_RUN];
    assert_true(n <= CRASHES_PER_RUN);
    for (uint32_t i = 0; i < n; i++) {
        moments[i] = test_rng_below(rng, log->n_ops + 1);
    }
    qsort(moments, n, sizeof moments[0], by_number);
    crash_model *model = malloc(sizeof *model);
    assert_non_null(model);
    crash_model_init(model, log);
    promises made = { .durability = kind->disk.durability };
    for (uint32_t i = 0; i < n; i++) {
        while (model->n_applied < moments[i]) {
            const seam_op *op = crash_step(model);
            if (op->kind == SEAM_MARK) {
                note_event(&made, op->at);
            }
        }
        const crash_manner manner = (crash_manner)test_rng_below(rng, CRASH_MANNERS);
        (void)snprintf(last_crash, sizeof last_crash, "run %u (%s), before call %u of %u, %s", run, kind->name,
                       moments[i], log->n_ops, crash_manner_names[manner]);
        char *image = test_dir_create();
        crash_make_image(model, image, manner, rng);
        check_image(kind, image, &made, i % 4 == 0, n_found);
        test_dir_remove(image);
        free(image);
    }
    crash_model_deinit(model);
    free(model);
}

static void every_crash_leaves_what_was_durable_and_no_wrong_byte(void **unused)
{
    (void)unused;
    const char *given = getenv("FIRN_CRASHES");
    const uint32_t n_wanted = given != NULL ? (uint32_t)strtoul(given, NULL, 0) : CRASHES_DEFAULT;
    test_rng rng = test_rng_create("disk_crash", 77);
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        fixture_random_tokens(&rng, sequences[i], LENGTH_MAX + 1);
        if (i % 2 != 0) { /* branches of the one before */
            memcpy(sequences[i], sequences[i - 1], (40 + 30 * (size_t)i) * sizeof(firn_token));
        }
    }
    const char *first = getenv("FIRN_CRASH_RUN");
    uint32_t n_done = 0, n_found = 0, run = first != NULL ? (uint32_t)strtoul(first, NULL, 0) : 0;
    for (; n_done < n_wanted; run++) {
        const run_kind *kind = &kinds[run % N_KINDS];
        (void)snprintf(last_crash, sizeof last_crash, "run %u (%s), recording", run, kind->name);
        /* Each run has its own numbers, so that one may be replayed without those before. */
        test_rng own = { .state = fixture_mix(rng.state + run) };
        seam_log *log = seam_log_create();
        assert_non_null(log);
        char *parent = test_dir_create();
        record_run(kind, parent, log, &own);
        test_dir_remove(parent);
        free(parent);
        const uint32_t n = n_wanted - n_done < CRASHES_PER_RUN ? n_wanted - n_done : CRASHES_PER_RUN;
        crash_run(kind, run, log, n, &own, &n_found);
        seam_log_destroy(log);
        n_done += n;
    }
    print_message("%u crashes, %u prefixes found afterwards\n", n_done, n_found);
    assert_true(n_found > n_done / 2);
    last_crash[0] = '\0';
}

static int say_where(void **unused)
{
    (void)unused;
    if (last_crash[0] != '\0') {
        print_message("the last crash: %s\n", last_crash);
    }
    return 0;
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_crash_leaves_what_was_durable_and_no_wrong_byte, say_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
