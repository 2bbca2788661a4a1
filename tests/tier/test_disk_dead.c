/*
 * Disks that are no help: one that never answers, and one that gives 5 MB/s. Every caller comes back within its bound,
 * lookups do not wait for either, and what is left behind ends when the disk does answer.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/base_impl.h"
#include "base/bounded.h"
#include "tier/tier_fixture.h"

#define N       200u
#define SECOND  UINT64_C(1000000000)
#define STOP_NS (SECOND / 5)

/* The world's files behind a device with a mind of its own. */
typedef struct device {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_dead;
    uint32_t n_hanging;
    uint64_t ns_per_byte;
    const firn_io *inner;
} device;

typedef struct state {
    test_world world;
    device disk;
    firn_io io;
    firn_log log;
    firn_env env;
    _Atomic uint32_t n_errors; /* logged */
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[N + 1], more[N + 1];
    firn_cache *caches[FIXTURE_LAYERS_MAX]; /* of `more` */
    _Atomic bool has_answer;
    _Atomic int answer;
} state;

static void nap(uint64_t ns)
{
    const struct timespec pause = { .tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND) };
    (void)nanosleep(&pause, NULL);
}

/* What each transfer goes through. */
static void pass(device *disk, uint64_t n_bytes)
{
    nap(n_bytes * disk->ns_per_byte);
    pthread_mutex_lock(&disk->mutex);
    disk->n_hanging++;
    pthread_cond_broadcast(&disk->changed);
    while (disk->is_dead) {
        pthread_cond_wait(&disk->changed, &disk->mutex);
    }
    disk->n_hanging--;
    pthread_mutex_unlock(&disk->mutex);
}

static uint64_t bytes_of(const struct iovec *iov, uint32_t n_iov)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_iov; i++) {
        n += iov[i].iov_len;
    }
    return n;
}

static int64_t device_pread(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset)
{
    device *disk = &((state *)ctx)->disk;
    pass(disk, n_bytes);
    return disk->inner->pread(disk->inner->ctx, fd, buf, n_bytes, offset);
}

static int64_t device_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    device *disk = &((state *)ctx)->disk;
    pass(disk, bytes_of(iov, n_iov));
    return disk->inner->pwritev(disk->inner->ctx, fd, iov, n_iov, offset);
}

static int device_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                             void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    device *disk = &((state *)ctx)->disk;
    for (uint32_t i = 0; i < n_reads; i++) {
        pass(disk, bytes_of(reads[i].iov, reads[i].n_iov));
    }
    return disk->inner->read_batch(disk->inner->ctx, reads, n_reads, done, done_ctx);
}

static int device_datasync(void *ctx, int fd)
{
    device *disk = &((state *)ctx)->disk;
    pass(disk, 0);
    return disk->inner->datasync(disk->inner->ctx, fd);
}

/* The others get the context of the table as well, and want their own. */
static int device_open(void *ctx, const char *path, int flags, mode_t mode)
{
    const firn_io *inner = ((state *)ctx)->disk.inner;
    return inner->open(inner->ctx, path, flags, mode);
}

static int device_close(void *ctx, int fd)
{
    const firn_io *inner = ((state *)ctx)->disk.inner;
    return inner->close(inner->ctx, fd);
}

static int device_sync_dir(void *ctx, const char *path)
{
    const firn_io *inner = ((state *)ctx)->disk.inner;
    return inner->sync_dir(inner->ctx, path);
}

static int device_stat(void *ctx, int fd, firn_io_stat *out)
{
    const firn_io *inner = ((state *)ctx)->disk.inner;
    return inner->stat(inner->ctx, fd, out);
}

static int device_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    const firn_io *inner = ((state *)ctx)->disk.inner;
    return inner->punch(inner->ctx, fd, offset, n_bytes);
}

static void write_log(void *ctx, firn_log_level level, const char *message)
{
    (void)message;
    atomic_fetch_add(&((state *)ctx)->n_errors, level == FIRN_LOG_ERROR);
}

static firn_tier *open_tier(state *s)
{
    const firn_disk_options options = { .stop_ns = STOP_NS };
    return fixture_open(&s->fix, s->dir, &options);
}

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_dead", 21);
    test_world_init(&s->world);
    pthread_mutex_init(&s->disk.mutex, NULL);
    pthread_cond_init(&s->disk.changed, NULL);
    s->disk.inner = &s->world.io;
    s->io = *firn_io_default(); /* what is not replaced below needs no context */
    s->io.open = device_open;
    s->io.close = device_close;
    s->io.pread = device_pread;
    s->io.pwritev = device_pwritev;
    s->io.read_batch = device_read_batch;
    s->io.datasync = device_datasync;
    s->io.sync_dir = device_sync_dir;
    s->io.stat = device_stat;
    s->io.punch = device_punch;
    s->io.ctx = s;
    s->log = (firn_log){ .write = write_log, .ctx = s };
    s->env = (firn_env){ .allocator = &s->world.allocator, .clock = &s->world.clock, .io = &s->io, .log = &s->log };
    fixture_init(&s->fix, &s->env, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    fixture_random_tokens(&rng, s->more, N + 1);
    fixture_make_caches(&s->fix, s->more, N, s->caches);
    s->dir = test_dir_create();
    s->tier = open_tier(s);
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    firn_tier_destroy(s->tier);
    fixture_destroy_caches(s->caches);
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    pthread_cond_destroy(&s->disk.changed);
    pthread_mutex_destroy(&s->disk.mutex);
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static void set_dead(state *s, bool is_dead)
{
    pthread_mutex_lock(&s->disk.mutex);
    s->disk.is_dead = is_dead;
    pthread_cond_broadcast(&s->disk.changed);
    pthread_mutex_unlock(&s->disk.mutex);
}

static void wait_until_hanging(state *s, uint32_t n)
{
    pthread_mutex_lock(&s->disk.mutex);
    while (s->disk.n_hanging < n) {
        pthread_cond_wait(&s->disk.changed, &s->disk.mutex);
    }
    pthread_mutex_unlock(&s->disk.mutex);
}

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    state *s = ctx;
    if (restored != NULL) {
        firn_restored_deinit(restored);
    }
    atomic_store(&s->answer, (int)reason);
    atomic_store(&s->has_answer, true);
}

static uint64_t now(const state *s)
{
    return firni_now_ns(&s->env);
}

/* Waits for what must come, and fails when it does not. */
#define WAIT_FOR(s, condition)                                                                                        \
    do {                                                                                                              \
        const uint64_t wait_until = now(s) + 20 * SECOND;                                                             \
        while (!(condition)) {                                                                                        \
            assert_true(now(s) < wait_until);                                                                         \
            nap(2000000);                                                                                             \
        }                                                                                                             \
    } while (0)

static void start_restore(state *s, uint64_t bound_ns)
{
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    atomic_store(&s->has_answer, false);
    assert_ok(firn_tier_restore_async(s->tier, match.handle, 0, now(s) + bound_ns, on_done, s, NULL));
    firn_tier_release(s->tier, match.handle);
}

/* In a thread: stores `more`. */
static void *store_more(void *ctx)
{
    state *s = ctx;
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    for (uint32_t i = 0; i < s->fix.n_layers; i++) {
        borrowed[i] = s->caches[i];
    }
    const firn_store_input input = {
        .tokens = s->more, .n_tokens = N, .caches = borrowed, .n_caches = s->fix.n_layers
    };
    firn_reason reason;
    return firn_tier_store(s->tier, &input, &reason) ? s : NULL;
}

static void nobody_waits_for_a_dead_disk_beyond_a_bound(void **in)
{
    state *s = *in;
    pthread_t writer;
    set_dead(s, true);
    start_restore(s, SECOND / 20);
    assert_int_equal(pthread_create(&writer, NULL, store_more, s), 0);
    wait_until_hanging(s, 2); /* a read and a write */
    WAIT_FOR(s, atomic_load(&s->has_answer));
    assert_int_equal(atomic_load(&s->answer), FIRN_REASON_DEADLINE);
    uint64_t started = now(s);
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL); /* the index is not that disk's */
    assert_int_equal(match.prefix_len, N);
    firn_tier_release(s->tier, match.handle);
    assert_true(now(s) - started < SECOND);
    started = now(s);
    assert_false(firn_tier_flush(s->tier, SECOND / 10).durable);
    assert_true(now(s) - started >= SECOND / 10 && now(s) - started < 3 * SECOND);
    assert_int_equal(atomic_load(&s->n_errors), 0);
    const uint64_t n_live = s->world.n_live;
    started = now(s);
    firn_tier_destroy(s->tier);
    assert_true(now(s) - started >= STOP_NS && now(s) - started < 3 * SECOND);
    assert_int_equal(atomic_load(&s->n_errors), 1); /* left behind, and said so */
    assert_true(s->world.n_live >= n_live);
    /* When it answers after all, what was left behind ends as it should: all memory comes back, the lock too. */
    set_dead(s, false);
    void *stored;
    assert_int_equal(pthread_join(writer, &stored), 0);
    assert_ptr_equal(stored, s);
    firn_error err = { 0 };
    const firn_disk_options options = { .dir = s->dir, .schema = &s->fix.schema, .pool = s->fix.pool };
    WAIT_FOR(s, firn_disk_open(&options, &s->env, &s->tier, &err) == FIRN_OK);
    fixture_check(s->tier);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->tokens, N + 1, &reason), N);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->more, N + 1, &reason), N);
    WAIT_FOR(s, s->world.n_live <= n_live + 8);
}

static void a_slow_disk_makes_nobody_wait_but_who_uses_it(void **in)
{
    state *s = *in;
    pthread_t writer;
    s->disk.ns_per_byte = 200;  /* 5 MB/s: 48 KiB take 10 ms */
    s->disk.ns_per_byte *= 100; /* records of the test are that much smaller than a model's */
    assert_int_equal(pthread_create(&writer, NULL, store_more, s), 0);
    /* A read that would take a second is given 50 ms: the caller computes instead. */
    start_restore(s, SECOND / 20);
    const uint64_t started = now(s);
    for (uint32_t i = 0; i < 20; i++) { /* while both are under way */
        const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
        assert_int_equal(match.prefix_len, N);
        firn_tier_release(s->tier, match.handle);
    }
    assert_true(now(s) - started < SECOND * 2 / 3);
    WAIT_FOR(s, atomic_load(&s->has_answer));
    assert_int_equal(atomic_load(&s->answer), FIRN_REASON_DEADLINE);
    void *stored;
    assert_int_equal(pthread_join(writer, &stored), 0);
    assert_ptr_equal(stored, s);
    start_restore(s, 20 * SECOND); /* who has time gets it */
    WAIT_FOR(s, atomic_load(&s->has_answer));
    assert_int_equal(atomic_load(&s->answer), FIRN_REASON_NONE);
    s->disk.ns_per_byte = 0;
}

/* ---- the bound itself -------------------------------------------------------------------------------------------- */

static void set_flag(void *ctx)
{
    *(bool *)ctx = true;
}

static void sleep_long(void *ctx)
{
    nap(SECOND / 5);
    atomic_store((_Atomic bool *)ctx, true);
}

static void bounded_work_is_waited_for_no_longer_than_its_bound(void **unused)
{
    (void)unused;
    test_world world;
    test_world_init(&world);
    bool flag = false;
    assert_true(firni_run_bounded(&world.env, UINT64_MAX, set_flag, &flag));
    assert_true(flag);
    flag = false;
    world.fail_alloc_at = world.n_allocs + 1; /* without memory: here and now */
    assert_true(firni_run_bounded(&world.env, 1, set_flag, &flag));
    assert_true(flag);
    _Atomic bool late = false;
    assert_false(firni_run_bounded(&world.env, 1000000, sleep_long, &late));
    assert_false(atomic_load(&late));
    while (world.n_live > 0) { /* it ends by itself, and cleans up */
        nap(5000000);
    }
    assert_true(atomic_load(&late));
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_waits_for_a_dead_disk_beyond_a_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_disk_makes_nobody_wait_but_who_uses_it, setup, teardown),
        cmocka_unit_test(bounded_work_is_waited_for_no_longer_than_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
