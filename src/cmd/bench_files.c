/*
 * The segment files of a disk tier as plain files: how fast can this machine read them? With direct I/O where the file
 * system has it, and many requests in flight, through the same I/O seam that the tier uses.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/cache_files.h"

/* Large enough that the number of requests is not the limit, and enough of them to keep a device busy. */
#define REQUEST_BYTES (UINT64_C(1) << 20)
#define N_REQUESTS 16u

static bool drop_file(void *ctx, const char *path)
{
    (void)ctx;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fdatasync(fd); /* dirty pages are not dropped */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
    return true;
}

void firni_bench_drop_cached(const char *dir)
{
    firni_cache_each_segment(dir, drop_file, NULL);
}

typedef struct file_reader {
    const firn_io *io;
    uint8_t *buffer;        /* N_REQUESTS * REQUEST_BYTES, 4 KiB-aligned */
    uint64_t n_bytes;
    bool is_direct;
    int code;               /* 0 or -errno */
    const firn_env *env;
} file_reader;

/* Reads one round of requests; returns the bytes that arrived, 0 at the end or on failure. */
static uint64_t read_round(file_reader *reader, int fd, uint64_t offset, uint64_t end)
{
    struct iovec parts[N_REQUESTS];
    firn_io_read reads[N_REQUESTS];
    uint32_t n = 0;
    for (; n < N_REQUESTS && offset < end; n++, offset += REQUEST_BYTES) {
        parts[n] = (struct iovec){ .iov_base = reader->buffer + n * REQUEST_BYTES, .iov_len = REQUEST_BYTES };
        reads[n] = (firn_io_read){ .fd = fd, .offset = offset, .iov = &parts[n], .n_iov = 1 };
    }
    if (n == 0) {
        return 0;
    }
    reader->code = reader->io->read_batch(reader->io->ctx, reads, n, NULL, NULL);
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n && reader->code == 0; i++) {
        if (reads[i].result < 0) {
            reader->code = (int)reads[i].result;
        } else {
            n_bytes += (uint64_t)reads[i].result;
        }
    }
    return reader->code == 0 ? n_bytes : 0;
}

/* One file from its first byte to its last; where nothing was evicted there are no holes to flatter the rate. */
static bool read_file(void *ctx, const char *path)
{
    file_reader *reader = ctx;
    int fd = reader->io->open(reader->io->ctx, path, O_RDONLY | O_CLOEXEC | O_DIRECT, 0);
    if (fd == -EINVAL) {
        reader->is_direct = false;
        fd = reader->io->open(reader->io->ctx, path, O_RDONLY | O_CLOEXEC, 0);
    }
    firn_io_stat info;
    reader->code = fd < 0 ? fd : reader->io->stat(reader->io->ctx, fd, &info);
    uint64_t offset = 0;
    while (reader->code == 0 && offset < info.size_bytes) {
        const uint64_t n_bytes = read_round(reader, fd, offset, info.size_bytes);
        if (n_bytes == 0) {
            break;
        }
        reader->n_bytes += n_bytes;
        offset += N_REQUESTS * REQUEST_BYTES;
    }
    if (fd >= 0) {
        (void)reader->io->close(reader->io->ctx, fd);
    }
    return reader->code == 0;
}

firn_status firni_bench_read_files(const firn_env *env, const char *dir, double *rate, bool *is_direct,
                                   firn_error *err)
{
    file_reader reader = {
        .io = firni_io(env),
        .env = env,
        .buffer = firni_alloc_aligned(env, N_REQUESTS * REQUEST_BYTES, FIRN_BLOCK_ALIGN),
        .is_direct = true,
    };
    if (reader.buffer == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to read files");
    }
    /* Touched before the clock starts: page faults are not the disk's. */
    memset(reader.buffer, 0, N_REQUESTS * REQUEST_BYTES);
    const uint64_t begin_ns = firni_now_ns(env);
    firni_cache_each_segment(dir, read_file, &reader);
    const uint64_t elapsed_ns = firni_now_ns(env) - begin_ns;
    firni_free(env, reader.buffer);
    if (reader.code != 0) {
        return firni_fail_os(err, -reader.code, "cannot read the segment files in %.300s", dir);
    }
    if (reader.n_bytes == 0) {
        return firni_fail(err, FIRN_ERR_NOT_FOUND, "%.300s holds no segment files", dir);
    }
    *rate = (double)reader.n_bytes / ((double)elapsed_ns * 1e-9);
    *is_direct = reader.is_direct;
    return FIRN_OK;
}
