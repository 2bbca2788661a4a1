/*
 * The default firn_io: POSIX files.
 *
 * Owns the translation of each member to one system call, with EINTR retried and errno returned as a negative number.
 * Does not own the ring (io_uring.c), nor any state: every function may be called from any thread.
 */
/* fallocate with FALLOC_FL_PUNCH_HOLE, F_OFD_SETLK and preadv are Linux calls. */
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "base/io_impl.h"

/* What one preadv accepts on Linux (UIO_MAXIOV). */
#define IOV_MAX_ENTRIES 1024u

/* The result of a call that gives an int, or -errno. */
static int result_of(int result)
{
    return result < 0 ? -errno : result;
}

static int posix_open(void *ctx, const char *path, int flags, mode_t mode)
{
    (void)ctx;
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return result_of(fd);
}

static int posix_close(void *ctx, int fd)
{
    (void)ctx;
    /* Linux releases the descriptor even when close is interrupted: closing again could hit another file. */
    return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

static int64_t posix_pread(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset)
{
    (void)ctx;
    const struct iovec iov = { .iov_base = buf, .iov_len = n_bytes };
    return firni_io_read_all(fd, &iov, 1, offset, 0);
}

static int64_t posix_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    (void)ctx;
    ssize_t n_written;
    do {
        n_written = pwritev(fd, iov, (int)(n_iov < IOV_MAX_ENTRIES ? n_iov : IOV_MAX_ENTRIES), (off_t)offset);
    } while (n_written < 0 && errno == EINTR);
    return n_written < 0 ? -errno : n_written;
}

/* Where a byte count lies in a vector: `index` entries are complete, `skip` bytes of the next are there. */
static uint32_t iov_position(const struct iovec *iov, uint32_t n_iov, uint64_t n_done, size_t *skip)
{
    uint32_t index = 0;
    while (index < n_iov && n_done >= iov[index].iov_len) {
        n_done -= iov[index].iov_len;
        index++;
    }
    *skip = (size_t)n_done;
    return index;
}

int64_t firni_io_read_all(int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset, uint64_t n_done)
{
    for (;;) {
        size_t skip;
        const uint32_t index = iov_position(iov, n_iov, n_done, &skip);
        if (index == n_iov) {
            return (int64_t)n_done;
        }
        ssize_t n_read;
        if (skip > 0) {
            n_read = pread(fd, (char *)iov[index].iov_base + skip, iov[index].iov_len - skip, (off_t)(offset + n_done));
        } else {
            const uint32_t n_rest = n_iov - index;
            n_read = preadv(fd, iov + index, (int)(n_rest < IOV_MAX_ENTRIES ? n_rest : IOV_MAX_ENTRIES),
                            (off_t)(offset + n_done));
        }
        if (n_read < 0 && errno == EINTR) {
            continue;
        }
        if (n_read < 0) {
            /* Direct I/O stops between units only at the end of the file, and refuses to go on from there. */
            return errno == EINVAL && n_done % FIRNI_IO_DIRECT_ALIGN != 0 ? (int64_t)n_done : -errno;
        }
        if (n_read == 0) {
            return (int64_t)n_done;
        }
        n_done += (uint64_t)n_read;
    }
}

static int posix_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                            void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    (void)ctx;
    /* A ring costs more to set up than a single read gains from it. */
    if (n_reads > 1 && firni_io_uring_read_batch(reads, n_reads, done, done_ctx)) {
        return 0;
    }
    for (uint32_t i = 0; i < n_reads; i++) {
        reads[i].result = firni_io_read_all(reads[i].fd, reads[i].iov, reads[i].n_iov, reads[i].offset, 0);
        if (done != NULL) {
            done(done_ctx, i);
        }
    }
    return 0;
}

static int posix_datasync(void *ctx, int fd)
{
    (void)ctx;
    int result;
    do {
        result = fdatasync(fd);
    } while (result < 0 && errno == EINTR);
    return result_of(result);
}

static int posix_sync_dir(void *ctx, const char *path)
{
    const int fd = posix_open(ctx, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        return fd;
    }
    int result;
    do {
        result = fsync(fd) < 0 ? -errno : 0;
    } while (result == -EINTR);
    (void)close(fd);
    return result;
}

static void fill_stat(const struct stat *st, firn_io_stat *out)
{
    *out = (firn_io_stat){
        .size_bytes = (uint64_t)st->st_size,
        .physical_bytes = (uint64_t)st->st_blocks * 512u,
        .inode = (uint64_t)st->st_ino,
        .n_links = (uint64_t)st->st_nlink,
        .modified_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec,
    };
}

static int posix_stat(void *ctx, int fd, firn_io_stat *out)
{
    (void)ctx;
    struct stat st;
    if (fstat(fd, &st) < 0) {
        return -errno;
    }
    fill_stat(&st, out);
    return 0;
}

static int posix_stat_path(void *ctx, const char *path, firn_io_stat *out)
{
    (void)ctx;
    struct stat st;
    if (stat(path, &st) < 0) {
        return -errno;
    }
    fill_stat(&st, out);
    return 0;
}

static int posix_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    (void)ctx;
    int result;
    do {
        result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)n_bytes);
    } while (result < 0 && errno == EINTR);
    return result_of(result);
}

static int posix_unlink(void *ctx, const char *path)
{
    (void)ctx;
    return result_of(unlink(path));
}

static int posix_rename(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    return result_of(rename(from, to));
}

static int posix_mkdir(void *ctx, const char *path, mode_t mode)
{
    (void)ctx;
    return result_of(mkdir(path, mode));
}

static int posix_chmod(void *ctx, const char *path, mode_t mode)
{
    (void)ctx;
    return result_of(chmod(path, mode));
}

static int posix_lock(void *ctx, int fd)
{
    (void)ctx;
    /* A lock of the open file, not of the process: closing some other descriptor of the same file keeps it, and two
     * tiers of one process exclude each other too. */
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0 };
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
        return 0;
    }
    return errno == EACCES ? -EAGAIN : -errno;
}

static int posix_stat_fs(void *ctx, const char *path, firn_io_fs *out)
{
    (void)ctx;
    struct statvfs fs;
    int result;
    do {
        result = statvfs(path, &fs);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return -errno;
    }
    *out = (firn_io_fs){ .size_bytes = (uint64_t)fs.f_blocks * fs.f_frsize,
                         .free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize };
    return 0;
}

static int posix_list_dir(void *ctx, const char *path, void (*entry)(void *entry_ctx, const char *name),
                          void *entry_ctx)
{
    (void)ctx;
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return -errno;
    }
    int result = 0;
    for (;;) {
        errno = 0;
        const struct dirent *found = readdir(dir);
        if (found == NULL) {
            result = -errno; /* 0 at the end of the directory */
            break;
        }
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
            entry(entry_ctx, found->d_name);
        }
    }
    (void)closedir(dir);
    return result;
}

const firn_io *firn_io_default(void)
{
    static const firn_io io = {
        .open = posix_open,
        .close = posix_close,
        .pread = posix_pread,
        .pwritev = posix_pwritev,
        .read_batch = posix_read_batch,
        .datasync = posix_datasync,
        .sync_dir = posix_sync_dir,
        .stat = posix_stat,
        .punch = posix_punch,
        .unlink = posix_unlink,
        .rename = posix_rename,
        .mkdir = posix_mkdir,
        .chmod = posix_chmod,
        .stat_path = posix_stat_path,
        .stat_fs = posix_stat_fs,
        .lock = posix_lock,
        .list_dir = posix_list_dir,
        .ctx = NULL,
    };
    return &io;
}

const firn_io *firni_io(const firn_env *env)
{
    return env != NULL && env->io != NULL ? env->io : firn_io_default();
}
