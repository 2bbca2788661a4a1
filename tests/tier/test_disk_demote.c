/*
 * Idle demotion: what nobody has used for long is packed, comes back to the bit, and is otherwise what it was. What is
 * in use is left alone; what does not shrink is tried once; damage is a miss; and whenever the process ends, or a call
 * fails, the state is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdatomic.h>
#include <time.h>

#include "record/record_impl.h"
#include "tier/disk/disk_impl.h"
#include "tier/tier_fixture.h"

#define N    400u
#define HOUR UINT64_C(3600000000000)

static const firn_disk_options at_once = { .demote_idle_ns = 1 };

typedef struct rig {
    firn_io io;
    firn_clock clock;
    _Atomic uint64_t ahead_ns; /* of the real clock */
    firn_env env;
    uint32_t n_calls, call_max; /* calls that may change something; the one of this number ends or fails; 0: none
                                 * does */
    bool fails;                 /* it fails; else the process ends */
    uint64_t budget_bytes;      /* 0: not looked at */
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[FIXTURE_TOKENS_MAX];
} rig;

/* Whether this call is the one. */
static bool is_due(rig *r)
{
    const bool due = ++r->n_calls == r->call_max;
    if (due && !r->fails) {
        _exit(0);
    }
    return due;
}

static int64_t rig_pread(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset)
{
    return is_due(ctx) ? -EIO : firn_io_default()->pread(NULL, fd, buf, n_bytes, offset);
}

/* Half of what a process wrote may be there when it ends. */
static int64_t rig_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    rig *r = ctx;
    if (r->n_calls + 1 == r->call_max) {
        const struct iovec half = { .iov_base = iov[0].iov_base, .iov_len = iov[0].iov_len / 2 / 4096 * 4096 };
        (void)firn_io_default()->pwritev(NULL, fd, &half, half.iov_len > 0, offset);
    }
    if (is_due(r)) {
        return -ENOSPC;
    }
    const int64_t n = firn_io_default()->pwritev(NULL, fd, iov, n_iov, offset);
    assert_true(r->budget_bytes == 0 || fixture_disk_bytes(r->dir) <= r->budget_bytes);
    return n;
}

static int rig_datasync(void *ctx, int fd)
{
    return is_due(ctx) ? -EIO : firn_io_default()->datasync(NULL, fd);
}

static int rig_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    return is_due(ctx) ? -EIO : firn_io_default()->punch(NULL, fd, offset, n_bytes);
}

static int rig_unlink(void *ctx, const char *path)
{
    return is_due(ctx) ? -EIO : firn_io_default()->unlink(NULL, path);
}

static uint64_t rig_now(void *ctx)
{
    rig *r = ctx;
    const firn_clock *clock = firn_clock_default();
    return clock->monotonic_ns(clock->ctx) + atomic_load(&r->ahead_ns);
}

static uint64_t rig_wall(void *ctx)
{
    (void)ctx;
    const firn_clock *clock = firn_clock_default();
    return clock->wall_ns(clock->ctx);
}

static rig *rig_create(fixture_schema schema, uint32_t head_dim, const firn_disk_options *more)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->io = *firn_io_default(); /* its other members do not look at their context */
    r->io.pread = rig_pread;
    r->io.pwritev = rig_pwritev;
    r->io.datasync = rig_datasync;
    r->io.punch = rig_punch;
    r->io.unlink = rig_unlink;
    r->io.ctx = r;
    r->clock = (firn_clock){ .monotonic_ns = rig_now, .wall_ns = rig_wall, .ctx = r };
    r->env = (firn_env){ .io = &r->io, .clock = &r->clock };
    test_rng rng = test_rng_create(fixture_schema_names[schema], 97);
    const fixture_options options = { .schema = schema, .head_dim = head_dim };
    fixture_init(&r->fix, &r->env, &options);
    fixture_random_tokens(&rng, r->tokens, FIXTURE_TOKENS_MAX);
    r->dir = test_dir_create();
    r->tier = fixture_open(&r->fix, r->dir, more);
    return r;
}

static void rig_reopen(rig *r, const firn_disk_options *more)
{
    firn_tier_destroy(r->tier);
    r->tier = fixture_open(&r->fix, r->dir, more);
    fixture_check(r->tier);
}

static void rig_destroy(rig *r)
{
    firn_tier_destroy(r->tier);
    test_dir_remove(r->dir);
    fixture_deinit(&r->fix);
    free(r->dir);
    free(r);
}

static void put(rig *r, uint32_t n)
{
    assert_int_equal(fixture_store(&r->fix, r->tier, NULL, r->tokens, n), FIRN_REASON_NONE);
}

/* Restores what is found of the first n tokens, compares it, and returns how much it is. */
static uint32_t got(rig *r, uint32_t n, firn_reason *reason)
{
    return fixture_fetch(&r->fix, r->tier, NULL, r->tokens, n, reason);
}

static void assert_got(rig *r, uint32_t n)
{
    firn_reason reason;
    assert_int_equal(got(r, n + 1, &reason), n);
}

static firn_disk_demote_report demote(rig *r)
{
    firn_disk_demote_report report;
    firn_error err = { 0 };
    if (firn_disk_demote(r->tier, &report, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    fixture_check(r->tier);
    return report;
}

/* The answer to one restore in layer order. */
typedef struct answer {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_there;
    firn_reason reason;
    firn_restored restored;
} answer;

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    answer *a = ctx;
    pthread_mutex_lock(&a->mutex);
    a->is_there = true;
    a->reason = reason;
    if (restored != NULL) {
        a->restored = *restored;
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

static void assert_got_by_layers(rig *r, uint32_t n)
{
    answer a = { .is_there = false };
    pthread_mutex_init(&a.mutex, NULL);
    pthread_cond_init(&a.changed, NULL);
    const firn_match match = firn_tier_find(r->tier, r->tokens, n + 1, NULL);
    assert_int_equal(match.prefix_len, n);
    const firn_restore_request request = { .in_layer_order = true, .done = on_done, .ctx = &a };
    assert_ok(firn_tier_restore_request(r->tier, match.handle, &request, NULL));
    firn_tier_release(r->tier, match.handle);
    pthread_mutex_lock(&a.mutex);
    while (!a.is_there) {
        pthread_cond_wait(&a.changed, &a.mutex);
    }
    pthread_mutex_unlock(&a.mutex);
    assert_int_equal(a.reason, FIRN_REASON_NONE);
    fixture_assert_state(&r->fix, &a.restored, r->tokens, n);
    firn_restored_deinit(&a.restored);
    pthread_cond_destroy(&a.changed);
    pthread_mutex_destroy(&a.mutex);
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static void what_is_idle_is_packed_and_comes_back_in_every_family(void **unused)
{
    (void)unused;
    static const uint32_t counts[] = { 1, 64, 65, 130, N };
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            rig *r = rig_create((fixture_schema)schema, 64, &at_once);
            put(r, counts[i]);
            const uint64_t before = fixture_assert_books(r->tier, r->dir).physical_bytes;
            const firn_disk_demote_report report = demote(r);
            const uint64_t after = fixture_assert_books(r->tier, r->dir).physical_bytes;
            if (r->fix.has_windows || !r->fix.has_states) {
                assert_true(report.n_demoted > 0);
                assert_true(report.n_bytes <= report.plain_bytes / 10 * 9);
                assert_true(counts[i] < N || after < before); /* one small record is less than a page of the index */
            }
            assert_got(r, counts[i]);
            assert_got_by_layers(r, counts[i]);
            rig_reopen(r, NULL);
            assert_got(r, counts[i]);
            assert_got_by_layers(r, counts[i]);
            uint64_t n_good, n_bad;
            assert_ok(firn_disk_verify(r->tier, &n_good, &n_bad, NULL));
            assert_int_equal(n_bad, 0);
            assert_true(n_good > 0);
            rig_destroy(r);
        }
    }
}

static void packed_and_plain_records_of_a_chain_come_back_together(void **unused)
{
    (void)unused;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        rig *r = rig_create((fixture_schema)schema, 64, &at_once);
        put(r, 200);
        (void)demote(r);
        put(r, N); /* takes the packed tail's place, and continues packed blocks */
        fixture_check(r->tier);
        assert_got(r, N);
        assert_got_by_layers(r, N);
        (void)demote(r);
        assert_got(r, N);
        rig_destroy(r);
    }
}

static void fsck_names_packed_records(void **unused)
{
    (void)unused;
    for (unsigned quick = 0; quick < 2; quick++) {
        rig *r = rig_create(FIXTURE_ALL, 64, &at_once);
        put(r, N);
        const firn_disk_demote_report demoted = demote(r);
        assert_true(demoted.n_demoted > 0);
        firn_tier_destroy(r->tier);
        char path[900];
        (void)snprintf(path, sizeof path, "%s/index/data.mdb", r->dir);
        assert_int_equal(unlink(path), 0);
        const firn_disk_fsck_options options = { .headers_only = quick != 0 };
        firn_disk_fsck_report report;
        assert_ok(firn_disk_fsck(r->dir, &options, NULL, &report, NULL));
        assert_int_equal(report.n_damaged, 0);
        r->tier = fixture_open(&r->fix, r->dir, &at_once);
        fixture_check(r->tier);
        assert_got(r, N);
        assert_int_equal(demote(r).n_demoted, 0); /* they are known as packed */
        rig_destroy(r);
    }
}

/* ---- what is left alone ------------------------------------------------------------------------------------------ */

static void what_was_used_lately_is_left_as_it_is(void **unused)
{
    (void)unused;
    const firn_disk_options hour = { .demote_idle_ns = HOUR };
    rig *r = rig_create(FIXTURE_PLAIN, 64, &hour);
    put(r, N);
    firn_disk_demote_report report = demote(r);
    assert_int_equal(report.n_demoted + report.n_incompressible, 0);
    rig_destroy(r);
}

static void what_is_in_use_is_left_as_it_is(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_PLAIN, 64, &at_once);
    put(r, N);
    const firn_match match = firn_tier_find(r->tier, r->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    assert_int_equal(demote(r).n_demoted, 0);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(r->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    fixture_assert_state(&r->fix, &restored, r->tokens, N);
    firn_restored_deinit(&restored);
    firn_tier_release(r->tier, match.handle);
    assert_int_equal(demote(r).n_demoted, (N + 63) / 64);
    assert_got(r, N);
    rig_destroy(r);
}

/* Records of 12 KiB whose content shrinks by less than a page. */
static void what_does_not_shrink_is_tried_once(void **unused)
{
    (void)unused;
    enum { WHOLE = 384 }; /* a tail has empty lanes, which do shrink */
    rig *r = rig_create(FIXTURE_PLAIN, 8, &at_once);
    put(r, WHOLE);
    firn_disk_demote_report report = demote(r);
    assert_int_equal(report.n_demoted, 0);
    assert_int_equal(report.n_incompressible, WHOLE / 64);
    const uint64_t written = fixture_assert_books(r->tier, r->dir).written_bytes;
    rig_reopen(r, &at_once);
    const uint32_t n_calls = r->n_calls;
    report = demote(r);
    assert_int_equal(report.n_demoted + report.n_incompressible, 0);
    assert_int_equal(r->n_calls, n_calls); /* nothing was read for it */
    assert_int_equal(fixture_assert_books(r->tier, r->dir).written_bytes, 0);
    assert_true(written > 0);
    assert_got(r, WHOLE);
    rig_destroy(r);
}

static bool note_use(void *ctx, const firn_disk_record *record)
{
    uint64_t *sums = ctx;
    sums[0] += record->last_used_wall_ns;
    sums[1] += record->n_bytes;
    sums[2] += record->plain_bytes;
    return true;
}

static void recency_is_kept_and_the_saving_is_told(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_ALL, 64, &at_once);
    put(r, N);
    uint64_t before[3] = { 0 }, after[3] = { 0 };
    assert_ok(firn_disk_visit(r->tier, note_use, before, NULL));
    const firn_disk_demote_report report = demote(r);
    assert_ok(firn_disk_visit(r->tier, note_use, after, NULL));
    assert_true(report.n_demoted > 0);
    assert_int_equal(before[0], after[0]);
    assert_int_equal(before[1], before[2]);
    assert_int_equal(after[2], before[1]);
    assert_int_equal(after[2] - after[1], report.plain_bytes - report.n_bytes);
    rig_destroy(r);
}

static void a_quiet_tier_packs_by_itself(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_PLAIN, 64, &at_once);
    firni_disk *disk = firni_disk_of(r->tier);
    put(r, N);
    assert_false(firni_disk_is_quiet(disk));
    atomic_store(&r->ahead_ns, UINT64_C(60000000000));
    assert_true(firni_disk_is_quiet(disk));
    assert_got(r, N);
    assert_false(firni_disk_is_quiet(disk)); /* a read is use, too */
    atomic_store(&r->ahead_ns, UINT64_C(120000000000));
    firni_worker_wake(disk->worker);
    uint64_t sums[3] = { 0 };
    for (unsigned i = 0; i < 500 && sums[1] == sums[2]; i++) {
        const struct timespec pause = { .tv_nsec = 10000000 };
        (void)nanosleep(&pause, NULL);
        memset(sums, 0, sizeof sums);
        assert_ok(firn_disk_visit(r->tier, note_use, sums, NULL));
    }
    assert_true(sums[1] < sums[2]);
    pthread_mutex_lock(&disk->writer); /* the step has ended */
    pthread_mutex_unlock(&disk->writer);
    assert_got(r, N);
    fixture_check(r->tier);
    rig_destroy(r);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* The offset of packed record `which` in the first segment, and its header; 0: there are no more. */
static uint64_t find_packed(int fd, uint32_t which, firni_record *record, firni_section *sections)
{
    static _Alignas(4096) uint8_t bytes[1u << 20];
    uint64_t offset = 0;
    while (pread(fd, bytes, sizeof bytes, (off_t)offset) >= 4096) {
        const bool is_record = firni_record_decode(bytes, sizeof bytes, FIRNI_RECORD_BYTES_MAX, sections, 64, record,
                                                   NULL) == FIRN_OK;
        if (is_record && record->plain_bytes != 0 && which-- == 0) {
            return offset;
        }
        offset += is_record ? record->record_bytes : 4096;
    }
    return 0;
}

static void a_flipped_bit_in_a_packed_record_is_a_miss(void **unused)
{
    (void)unused;
    static const fixture_schema schemas[] = { FIXTURE_PLAIN, FIXTURE_ALL };
    uint32_t n_flips = 0, n_coded = 0;
    for (uint32_t s = 0; s < 2; s++) {
        bool more = true;
        for (uint32_t section = 0; more; section++) {
            static const uint32_t places[] = { 0, 20, 500 }; /* the frame's checksum, its header, its content */
            for (uint32_t p = 0; p < 3 && more; p++) {
                rig *r = rig_create(schemas[s], 64, &at_once);
                put(r, 64);
                assert_true(demote(r).n_demoted > 0);
                char path[900];
                (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", r->dir);
                const int fd = open(path, O_RDWR);
                assert_true(fd >= 0);
                firni_section sections[64];
                firni_record record;
                const uint64_t offset = find_packed(fd, 0, &record, sections);
                assert_true(offset > 0);
                more = section < record.n_sections;
                if (more) {
                    const off_t at = (off_t)(offset + sections[section].offset + places[p]);
                    uint8_t byte;
                    assert_int_equal(pread(fd, &byte, 1, at), 1);
                    byte ^= 4;
                    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
                    firn_reason reason;
                    assert_int_equal(got(r, 65, &reason), 0);
                    assert_int_equal(reason, FIRN_REASON_CORRUPT);
                    assert_int_equal(got(r, 65, &reason), 0); /* and stays one */
                    put(r, 64);
                    fixture_check(r->tier);
                    assert_got(r, 64);
                    n_flips++;
                    n_coded += sections[section].codec != FIRNI_CODEC_NONE;
                }
                close(fd);
                rig_destroy(r);
            }
        }
    }
    assert_true(n_flips >= 6);
    assert_true(n_coded > 0);
}

static void a_damaged_record_is_not_packed(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_PLAIN, 64, &at_once);
    put(r, 128);
    char path[900];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", r->dir);
    const int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, 5000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
    close(fd);
    assert_int_equal(demote(r).n_demoted, 1); /* the other one */
    firn_reason reason;
    assert_int_equal(got(r, 129, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_CORRUPT);
    rig_destroy(r);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static void the_budget_holds_while_a_full_cache_is_packed(void **unused)
{
    (void)unused;
    enum { BUDGET = 64 << 20, CHAIN = 1024 };
    const firn_disk_options options = { .budget_bytes = BUDGET, .segment_bytes = 8u << 20, .demote_idle_ns = 1 };
    rig *r = rig_create(FIXTURE_PLAIN, 256, &options);
    r->budget_bytes = BUDGET;
    for (uint32_t i = 0; i < 8; i++) { /* each of 8 MiB and more */
        r->tokens[0] = i;
        put(r, CHAIN);
    }
    firn_tier_stats stats = fixture_assert_books(r->tier, r->dir);
    const uint64_t n_records = stats.n_records;
    const firn_disk_demote_report report = demote(r);
    stats = fixture_assert_books(r->tier, r->dir);
    assert_true(stats.n_records + 64 >= n_records); /* what made room for the first copy */
    assert_int_equal(report.n_demoted, stats.n_records);
    assert_int_equal(stats.n_demoted, report.n_demoted);
    assert_int_equal(stats.demoted_saved_bytes, report.plain_bytes - report.n_bytes);
    assert_true(stats.physical_bytes < (uint64_t)BUDGET / 100 * 95);
    assert_got(r, CHAIN);
    rig_reopen(r, &options);
    assert_got(r, CHAIN);
    rig_destroy(r);
}

/* ---- ends and failures ------------------------------------------------------------------------------------------- */

/* In a child: the process ends in one of the calls. */
static bool demote_and_end(rig *r, uint32_t call)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        r->tier = fixture_open(&r->fix, r->dir, &at_once);
        r->n_calls = 0;
        r->call_max = call;
        firn_disk_demote_report report;
        _exit(firn_disk_demote(r->tier, &report, NULL) == FIRN_OK && report.n_demoted > 0 ? 1 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WEXITSTATUS(status) == 0;
}

static void a_process_that_ends_at_any_call_loses_nothing(void **unused)
{
    (void)unused;
    bool ended = true;
    uint32_t call = 1;
    for (; ended; call++) {
        rig *r = rig_create(FIXTURE_ALL, 64, &at_once);
        put(r, 200);
        firn_tier_destroy(r->tier);
        ended = demote_and_end(r, call);
        r->tier = fixture_open(&r->fix, r->dir, &at_once);
        fixture_check(r->tier);
        (void)fixture_assert_books(r->tier, r->dir);
        assert_got(r, 200);
        (void)demote(r);
        assert_got(r, 200);
        rig_destroy(r);
    }
    assert_true(call > 10);
}

static void a_call_that_fails_changes_nothing(void **unused)
{
    (void)unused;
    bool failed = true;
    uint32_t call = 1;
    for (; failed; call++) {
        rig *r = rig_create(FIXTURE_ALL, 64, &at_once);
        put(r, 200);
        r->n_calls = 0;
        r->fails = true;
        r->call_max = call;
        firn_disk_demote_report report;
        (void)firn_disk_demote(r->tier, &report, NULL);
        failed = r->n_calls >= call;
        r->call_max = 0;
        fixture_check(r->tier);
        assert_got(r, 200);
        (void)demote(r);
        rig_reopen(r, &at_once);
        assert_got(r, 200);
        rig_destroy(r);
    }
    assert_true(call > 10);
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_idle_is_packed_and_comes_back_in_every_family),
        cmocka_unit_test(packed_and_plain_records_of_a_chain_come_back_together),
        cmocka_unit_test(fsck_names_packed_records),
        cmocka_unit_test(what_was_used_lately_is_left_as_it_is),
        cmocka_unit_test(what_is_in_use_is_left_as_it_is),
        cmocka_unit_test(what_does_not_shrink_is_tried_once),
        cmocka_unit_test(recency_is_kept_and_the_saving_is_told),
        cmocka_unit_test(a_quiet_tier_packs_by_itself),
        cmocka_unit_test(a_flipped_bit_in_a_packed_record_is_a_miss),
        cmocka_unit_test(a_damaged_record_is_not_packed),
        cmocka_unit_test(the_budget_holds_while_a_full_cache_is_packed),
        cmocka_unit_test(a_process_that_ends_at_any_call_loses_nothing),
        cmocka_unit_test(a_call_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
