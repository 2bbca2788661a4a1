/*
 * The seams: everything Firn takes from the operating system arrives through these tables.
 *
 * A firn_env is passed at creation and must outlive what was created with it. NULL, or a NULL member, means the
 * process defaults (malloc, clock_gettime, POSIX files with io_uring where the kernel has it, no log). Tests put
 * fault-injecting tables here: fail the Nth allocation, tear the Nth write, stop the clock.
 */
#ifndef FIRN_ENV_H
#define FIRN_ENV_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory. alloc returns storage aligned to `align` (a power of two) or NULL; contents are undefined. release accepts
 * NULL. Both are called from several threads. */
typedef struct firn_allocator {
    void *(*alloc)(void *ctx, size_t size_bytes, size_t align);
    void (*release)(void *ctx, void *ptr);
    void *ctx;
} firn_allocator;

/* Time. monotonic_ns never goes back and orders events within a process; wall_ns is nanoseconds since 1970 and is used
 * only for times to live that outlast the process. */
typedef struct firn_clock {
    uint64_t (*monotonic_ns)(void *ctx);
    uint64_t (*wall_ns)(void *ctx);
    void *ctx;
} firn_clock;

typedef enum firn_log_level {
    FIRN_LOG_ERROR = 0,
    FIRN_LOG_WARN = 1,
    FIRN_LOG_INFO = 2,
    FIRN_LOG_DEBUG = 3
} firn_log_level;

/* Log. message is one line without a newline, valid during the call. Called from several threads. */
typedef struct firn_log {
    void (*write)(void *ctx, firn_log_level level, const char *message);
    void *ctx;
} firn_log;

/* What a file occupies. */
typedef struct firn_io_stat {
    uint64_t size_bytes;
    uint64_t physical_bytes; /* st_blocks * 512: punched holes do not count */
    uint64_t inode;          /* st_ino: tells a file from another that took over its name */
    uint64_t n_links;        /* 0: the open file has no name any more */
    uint64_t modified_ns;    /* st_mtim, since 1970 */
} firn_io_stat;

/* The file system that a path is on. */
typedef struct firn_io_fs {
    uint64_t size_bytes;
    uint64_t free_bytes; /* for this user: what is kept for the system's own does not count */
} firn_io_fs;

/* One vectored read of a batch. */
typedef struct firn_io_read {
    int fd;
    uint64_t offset;        /* bytes; a multiple of 4096 when the file was opened for direct I/O */
    const struct iovec *iov;
    uint32_t n_iov;
    int64_t result;         /* out: bytes read, or -errno */
} firn_io_read;

/* Files. Every function returns a non-negative result, or -errno. EINTR is retried inside. */
typedef struct firn_io {
    int (*open)(void *ctx, const char *path, int flags, mode_t mode);
    int (*close)(void *ctx, int fd);
    int64_t (*pread)(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset);
    int64_t (*pwritev)(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset);
    /* Performs all reads, several in flight at once where the system allows it. Each entry's result is set before
     * done(done_ctx, index) is called for it, on the calling thread, in completion order; done may be NULL. The return
     * value is 0 when every entry has a result (which may itself be an error), or -errno when none was started. */
    int (*read_batch)(void *ctx, firn_io_read *reads, uint32_t n_reads, void (*done)(void *done_ctx, uint32_t index),
                      void *done_ctx);
    int (*datasync)(void *ctx, int fd);
    int (*sync_dir)(void *ctx, const char *path);
    int (*stat)(void *ctx, int fd, firn_io_stat *out);
    int (*punch)(void *ctx, int fd, uint64_t offset, uint64_t n_bytes); /* returns the range to the file system */
    int (*unlink)(void *ctx, const char *path);
    int (*rename)(void *ctx, const char *from, const char *to);         /* replaces `to` at once */
    int (*mkdir)(void *ctx, const char *path, mode_t mode);             /* an existing directory is -EEXIST */
    int (*chmod)(void *ctx, const char *path, mode_t mode);
    int (*stat_path)(void *ctx, const char *path, firn_io_stat *out);
    int (*stat_fs)(void *ctx, const char *path, firn_io_fs *out);
    /* Takes the one writer's lock on an open file without waiting; -EAGAIN when another open file holds it, in this
     * process or another. Closing fd, or the end of the process, gives it back. */
    int (*lock)(void *ctx, int fd);
    /* Calls entry for each name in a directory but "." and "..", in no stated order. */
    int (*list_dir)(void *ctx, const char *path, void (*entry)(void *entry_ctx, const char *name), void *entry_ctx);
    void *ctx;
} firn_io;

typedef struct firn_env {
    const firn_allocator *allocator;
    const firn_clock *clock;
    const firn_io *io;
    const firn_log *log;
} firn_env;

/* The process defaults, for tests and callers that wrap one of them. Thread-safe; never NULL, static storage. */
const firn_allocator *firn_allocator_default(void);
const firn_clock *firn_clock_default(void);
const firn_io *firn_io_default(void);

#ifdef __cplusplus
}
#endif
#endif
