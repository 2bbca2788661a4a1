/*
 * The faulty world of support.h: the default seams with counters, and a failure at a chosen call.
 */
#include "support/support.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The public struct is plain data for the test to read; the counting is done here, under one spinning flag, and
 * mirrored out, so that several threads may count at once. */
typedef struct world_impl {
    atomic_flag lock;
    bool op_failing[TEST_IO_OPS];
    bool any_failing;
} world_impl;

static world_impl *enter(test_world *world)
{
    world_impl *impl = world->impl;
    while (atomic_flag_test_and_set_explicit(&impl->lock, memory_order_acquire)) {
    }
    return impl;
}

static void leave(world_impl *impl)
{
    atomic_flag_clear_explicit(&impl->lock, memory_order_release);
}

static void *world_alloc(void *ctx, size_t size_bytes, size_t align)
{
    test_world *world = ctx;
    world_impl *impl = enter(world);
    const uint64_t n = ++world->n_allocs;
    const bool refuse =
        world->fail_alloc_at != 0 && (n == world->fail_alloc_at || (world->fail_on && n > world->fail_alloc_at));
    if (refuse) {
        world->alloc_failed = true;
    } else {
        world->n_live++;
    }
    leave(impl);
    if (refuse) {
        return NULL;
    }
    const firn_allocator *inner = firn_allocator_default();
    void *ptr = inner->alloc(inner->ctx, size_bytes, align);
    assert(ptr != NULL);
    return ptr;
}

static void world_release(void *ctx, void *ptr)
{
    test_world *world = ctx;
    if (ptr == NULL) {
        return;
    }
    world_impl *impl = enter(world);
    assert(world->n_live > 0);
    world->n_live--;
    leave(impl);
    const firn_allocator *inner = firn_allocator_default();
    inner->release(inner->ctx, ptr);
}

/* Counts one call; true when it is the one that fails. */
static bool fails(test_world *world, test_io_op op)
{
    world_impl *impl = enter(world);
    const uint64_t n_all = ++world->n_io;
    const uint64_t n_op = ++world->n_ops[op];
    bool hit = (world->fail_io_at != 0 && n_all == world->fail_io_at) ||
               (world->fail_op_at[op] != 0 && n_op == world->fail_op_at[op]);
    if (world->fail_on && (impl->any_failing || impl->op_failing[op])) {
        hit = true;
    }
    if (hit) {
        world->io_failed = true;
        impl->op_failing[op] = true;
        impl->any_failing = impl->any_failing || world->fail_io_at != 0;
    }
    leave(impl);
    return hit;
}

static void add(test_world *world, uint64_t *counter, int64_t n)
{
    if (n > 0) {
        world_impl *impl = enter(world);
        *counter += (uint64_t)n;
        leave(impl);
    }
}

static void delay(const test_world *world)
{
    if (world->read_delay_ns > 0) {
        const struct timespec pause = { .tv_sec = (time_t)(world->read_delay_ns / 1000000000u),
                                        .tv_nsec = (long)(world->read_delay_ns % 1000000000u) };
        (void)nanosleep(&pause, NULL);
    }
}

static int world_open(void *ctx, const char *path, int flags, mode_t mode)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_OPEN)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->open(inner->ctx, path, flags, mode);
}

static int world_close(void *ctx, int fd)
{
    (void)ctx;
    const firn_io *inner = firn_io_default();
    return inner->close(inner->ctx, fd);
}

static int64_t world_pread(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset)
{
    test_world *world = ctx;
    delay(world);
    if (fails(world, TEST_IO_PREAD)) {
        if (!world->short_io) {
            return -world->fail_errno;
        }
        n_bytes /= 2;
    }
    const firn_io *inner = firn_io_default();
    const int64_t n = inner->pread(inner->ctx, fd, buf, n_bytes, offset);
    add(world, &world->read_bytes, n);
    return n;
}

static int64_t world_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    test_world *world = ctx;
    const firn_io *inner = firn_io_default();
    int64_t n;
    if (!fails(world, TEST_IO_PWRITEV)) {
        n = inner->pwritev(inner->ctx, fd, iov, n_iov, offset);
    } else if (!world->short_io) {
        return -world->fail_errno;
    } else if (n_iov > 1) {
        n = inner->pwritev(inner->ctx, fd, iov, n_iov / 2, offset);
    } else {
        /* Half of one buffer, in whole pages where it has more than one, so that direct I/O accepts it. */
        size_t half = iov[0].iov_len / 2;
        half = half >= 4096 ? half & ~(size_t)4095 : half;
        const struct iovec cut = { .iov_base = iov[0].iov_base, .iov_len = half };
        n = half == 0 ? 0 : inner->pwritev(inner->ctx, fd, &cut, 1, offset);
    }
    add(world, &world->written_bytes, n);
    return n;
}

static int world_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                            void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    test_world *world = ctx;
    const firn_io *inner = firn_io_default();
    /* One by one, so that each read of the batch can be the one that fails. */
    for (uint32_t i = 0; i < n_reads; i++) {
        delay(world);
        const bool fail = fails(world, TEST_IO_READ_BATCH);
        if (fail && !world->short_io) {
            reads[i].result = -world->fail_errno;
        } else {
            const int rc = inner->read_batch(inner->ctx, &reads[i], 1, NULL, NULL);
            if (rc != 0) {
                reads[i].result = rc;
            }
            if (fail && reads[i].result > 0) {
                reads[i].result /= 2;
            }
            add(world, &world->read_bytes, reads[i].result);
        }
        if (done != NULL) {
            done(done_ctx, i);
        }
    }
    return 0;
}

static int world_datasync(void *ctx, int fd)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_DATASYNC)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->datasync(inner->ctx, fd);
}

static int world_sync_dir(void *ctx, const char *path)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_SYNC_DIR)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->sync_dir(inner->ctx, path);
}

static int world_stat(void *ctx, int fd, firn_io_stat *out)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_STAT)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->stat(inner->ctx, fd, out);
}

static int world_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_PUNCH)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->punch(inner->ctx, fd, offset, n_bytes);
}

static int world_unlink(void *ctx, const char *path)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_UNLINK)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->unlink(inner->ctx, path);
}

static int world_rename(void *ctx, const char *from, const char *to)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_RENAME)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->rename(inner->ctx, from, to);
}

static int world_mkdir(void *ctx, const char *path, mode_t mode)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_MKDIR)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->mkdir(inner->ctx, path, mode);
}

static int world_chmod(void *ctx, const char *path, mode_t mode)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_CHMOD)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->chmod(inner->ctx, path, mode);
}

static int world_stat_path(void *ctx, const char *path, firn_io_stat *out)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_STAT_PATH)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->stat_path(inner->ctx, path, out);
}

static int world_stat_fs(void *ctx, const char *path, firn_io_fs *out)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_STAT_FS)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->stat_fs(inner->ctx, path, out);
}

static int world_lock(void *ctx, int fd)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_LOCK)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->lock(inner->ctx, fd);
}

static int world_list_dir(void *ctx, const char *path, void (*entry)(void *entry_ctx, const char *name),
                          void *entry_ctx)
{
    test_world *world = ctx;
    if (fails(world, TEST_IO_LIST_DIR)) {
        return -world->fail_errno;
    }
    const firn_io *inner = firn_io_default();
    return inner->list_dir(inner->ctx, path, entry, entry_ctx);
}

static uint64_t world_monotonic(void *ctx)
{
    const test_world *world = ctx;
    const firn_clock *inner = firn_clock_default();
    return inner->monotonic_ns(inner->ctx) + world->clock_offset_ns;
}

static uint64_t world_wall(void *ctx)
{
    const test_world *world = ctx;
    const firn_clock *inner = firn_clock_default();
    return inner->wall_ns(inner->ctx) + world->clock_offset_ns;
}

void test_world_init(test_world *world)
{
    memset(world, 0, sizeof *world);
    world->impl = calloc(1, sizeof(world_impl));
    assert_non_null(world->impl);
    world->fail_errno = EIO;
    world->allocator = (firn_allocator){ .alloc = world_alloc, .release = world_release, .ctx = world };
    world->clock = (firn_clock){ .monotonic_ns = world_monotonic, .wall_ns = world_wall, .ctx = world };
    world->io = (firn_io){
        .open = world_open,
        .close = world_close,
        .pread = world_pread,
        .pwritev = world_pwritev,
        .read_batch = world_read_batch,
        .datasync = world_datasync,
        .sync_dir = world_sync_dir,
        .stat = world_stat,
        .punch = world_punch,
        .unlink = world_unlink,
        .rename = world_rename,
        .mkdir = world_mkdir,
        .chmod = world_chmod,
        .stat_path = world_stat_path,
        .stat_fs = world_stat_fs,
        .lock = world_lock,
        .list_dir = world_list_dir,
        .ctx = world,
    };
    world->env = (firn_env){ .allocator = &world->allocator, .clock = &world->clock, .io = &world->io, .log = NULL };
}

void test_world_aim_alloc(test_world *world, uint64_t n_from_now)
{
    world_impl *impl = enter(world);
    world->fail_alloc_at = n_from_now == 0 ? 0 : world->n_allocs + n_from_now;
    leave(impl);
}

void test_world_deinit(test_world *world)
{
    const uint64_t n_live = world->n_live;
    free(world->impl);
    world->impl = NULL;
    if (n_live != 0) {
        fail_msg("%llu allocations leaked", (unsigned long long)n_live);
    }
}
