/*
 * The seam below the seams: libc's file calls and LMDB's allocations, defined by the test program itself.
 *
 * firn_env reaches everything that Firn does, and nothing that LMDB does. LMDB is a shared library, so its calls of
 * libc bind to what the executable defines: the functions below stand in front of the system's, count, fail at a chosen
 * call, and write down what happened to the files under one directory.
 *
 *      firn's io.c ---.
 *                      >-- pwrite, fdatasync, ... (here) --- the system
 *      liblmdb.so ----'            |
 *                                  '--- log: created, written, synced, punched, unlinked
 *
 * Included by one file of a program. The log lies in memory that is shared with children, so that a child may write it
 * and die. Calls on files outside of the directory pass through untouched and uncounted.
 *
 * Source: symbol interposition, ld.so(8); which libc functions LMDB 0.9 calls, its own dynamic symbol table.
 */
#ifndef FIRN_TESTS_LIBC_SEAM_H
#define FIRN_TESTS_LIBC_SEAM_H

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SEAM_FDS        1024
#define SEAM_FILES_MAX  512u
#define SEAM_OPS_MAX    20000u
#define SEAM_ARENA      (UINT64_C(512) << 20) /* address space; pages are taken as they are used */
#define SEAM_NAME_BYTES 64u
#define SEAM_BLOCKS     8192u

typedef enum seam_kind {
    SEAM_CREATE, SEAM_WRITE, SEAM_TRUNCATE, SEAM_PUNCH, SEAM_SYNC, SEAM_SYNC_DIR, SEAM_UNLINK, SEAM_MKDIR, SEAM_MARK
} seam_kind;

/* One thing that happened. file: index into the log's files, of SYNC_DIR the directory's. */
typedef struct seam_op {
    seam_kind kind;
    uint32_t file;
    bool is_dsync;            /* a WRITE that was on disk when it returned */
    uint64_t offset, n_bytes;
    uint64_t at;              /* where a WRITE's bytes begin in the arena; of MARK the test's own number */
} seam_op;

typedef struct seam_file {
    char name[SEAM_NAME_BYTES]; /* below the directory; "" is the directory itself */
    bool is_dir, is_linked;
} seam_file;

/* Shared with children. */
typedef struct seam_log {
    atomic_flag lock;
    uint32_t n_files, n_ops;
    uint64_t n_arena;
    seam_file files[SEAM_FILES_MAX];
    seam_op ops[SEAM_OPS_MAX];
    uint8_t arena[];
} seam_log;

/* Which calls fail. Set only while nothing runs. */
typedef struct seam_aim {
    bool lmdb, firn;   /* whose calls are counted; both false: nobody's */
    bool allocations;  /* LMDB's allocations instead of the calls on files */
    uint64_t at;       /* the at-th call of those, from 1; 0: none fails */
    bool goes_on;      /* and all after it */
    int number;        /* errno */
    bool is_short;     /* reads and writes transfer about half instead; other calls do not fail */
} seam_aim;

static struct seam_state {
    char root[600];
    size_t n_root;
    seam_log *log;         /* NULL: nothing is recorded */
    int fd_file[SEAM_FDS]; /* file index plus one of each descriptor under the directory */
    bool fd_dsync[SEAM_FDS];
    uintptr_t lmdb_low, lmdb_high;
    seam_aim aim;
    _Atomic bool is_armed, has_failed;
    _Atomic uint64_t n_calls;
    _Atomic uint64_t segment_read_bytes; /* by pread and preadv, of files named seg-* */
    _Atomic int64_t n_lmdb_blocks;       /* LMDB's live allocations */
    _Atomic uintptr_t blocks[SEAM_BLOCKS]; /* their addresses, hashed; 0: free, 1: was in use */
} seam;

/* ---- who calls, and on what -------------------------------------------------------------------------------------- */

static int seam_find_lmdb(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (strstr(info->dlpi_name, "liblmdb") == NULL) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0) {
            seam.lmdb_low = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            seam.lmdb_high = seam.lmdb_low + info->dlpi_phdr[i].p_memsz;
        }
    }
    return 1;
}

/* Files under `dir` are watched from here on. Call before they are opened. */
static inline void seam_watch(const char *dir)
{
    if (seam.lmdb_low == 0) {
        (void)dl_iterate_phdr(seam_find_lmdb, NULL);
    }
    (void)snprintf(seam.root, sizeof seam.root, "%s", dir);
    seam.n_root = strlen(seam.root);
    memset(seam.fd_file, 0, sizeof seam.fd_file);
}

static inline bool seam_is_lmdb(const void *caller)
{
    return (uintptr_t)caller >= seam.lmdb_low && (uintptr_t)caller < seam.lmdb_high;
}

static inline bool seam_is_below(const char *path)
{
    return seam.n_root > 0 && strncmp(path, seam.root, seam.n_root) == 0 &&
           (path[seam.n_root] == '/' || path[seam.n_root] == '\0');
}

static inline bool seam_is_watched(int fd)
{
    return fd >= 0 && fd < SEAM_FDS && seam.fd_file[fd] != 0;
}

/* Counts one call; true when it is one that fails. */
static inline bool seam_fails(const void *caller, bool is_allocation)
{
    if (!atomic_load(&seam.is_armed) || is_allocation != seam.aim.allocations ||
        !(seam_is_lmdb(caller) ? seam.aim.lmdb : seam.aim.firn)) {
        return false;
    }
    const uint64_t n = atomic_fetch_add(&seam.n_calls, 1) + 1;
    const bool hit = seam.aim.at != 0 && (n == seam.aim.at || (seam.aim.goes_on && n > seam.aim.at));
    if (hit) {
        atomic_store(&seam.has_failed, true);
    }
    return hit;
}

static inline void seam_arm(const seam_aim *aim)
{
    seam.aim = *aim;
    atomic_store(&seam.n_calls, 0);
    atomic_store(&seam.has_failed, false);
    atomic_store(&seam.is_armed, true);
}

static inline void seam_disarm(void)
{
    atomic_store(&seam.is_armed, false);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static inline seam_log *seam_log_create(void)
{
    void *memory = mmap(NULL, sizeof(seam_log) + SEAM_ARENA, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static inline void seam_log_destroy(seam_log *log)
{
    (void)munmap(log, sizeof(seam_log) + SEAM_ARENA);
}

/* A call and its line in the log are one step: a process that dies between them would leave a log that is not what
 * happened. Who ends a process calls seam_enter() first, and whoever reads on, seam_leave(). */
static inline void seam_enter(void)
{
    while (seam.log != NULL && atomic_flag_test_and_set_explicit(&seam.log->lock, memory_order_acquire)) {
    }
}

static inline void seam_leave(void)
{
    if (seam.log != NULL) {
        atomic_flag_clear_explicit(&seam.log->lock, memory_order_release);
    }
}

/* The linked file of this name, one that is made now, or SEAM_FILES_MAX; inside the log's lock. */
static inline uint32_t seam_file_of(const char *path, bool make, bool is_dir)
{
    char name[SEAM_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s", path + seam.n_root + (path[seam.n_root] == '/'));
    char *up = strstr(name, "/..");
    if (up != NULL) { /* "a/b/.." is "a" */
        *up = '\0';
        char *last = strrchr(name, '/');
        *(last != NULL ? last : name) = '\0';
    }
    seam_log *log = seam.log;
    for (uint32_t i = 0; i < log->n_files; i++) {
        if (log->files[i].is_linked && strcmp(log->files[i].name, name) == 0) {
            return i;
        }
    }
    if (!make || log->n_files == SEAM_FILES_MAX) {
        return SEAM_FILES_MAX;
    }
    seam_file *file = &log->files[log->n_files];
    *file = (seam_file){ .is_dir = is_dir, .is_linked = true };
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    return log->n_files++;
}

/* Inside the log's lock. A full log stops the program: what is not written down cannot be tested. */
static inline void seam_note(seam_op op)
{
    if (seam.log->n_ops == SEAM_OPS_MAX) {
        abort();
    }
    seam.log->ops[seam.log->n_ops++] = op;
}

/* Inside the log's lock. */
static inline void seam_note_bytes(int fd, const struct iovec *iov, int n_iov, uint64_t offset, uint64_t n_bytes)
{
    seam_log *log = seam.log;
    if (log->n_arena + n_bytes > SEAM_ARENA) {
        abort();
    }
    seam_note((seam_op){ .kind = SEAM_WRITE,
                         .file = (uint32_t)seam.fd_file[fd] - 1,
                         .is_dsync = seam.fd_dsync[fd],
                         .offset = offset,
                         .n_bytes = n_bytes,
                         .at = log->n_arena });
    for (int i = 0; i < n_iov && n_bytes > 0; i++) {
        const uint64_t n = iov[i].iov_len < n_bytes ? iov[i].iov_len : n_bytes;
        memcpy(log->arena + log->n_arena, iov[i].iov_base, n);
        log->n_arena += n;
        n_bytes -= n;
    }
}

/* Inside the log's lock. */
static inline void seam_note_fd(seam_kind kind, int fd, uint64_t offset, uint64_t n_bytes)
{
    if (seam.log != NULL && seam_is_watched(fd)) {
        const uint32_t file = (uint32_t)seam.fd_file[fd] - 1;
        const bool is_dir = seam.log->files[file].is_dir;
        seam_note((seam_op){ .kind = kind == SEAM_SYNC && is_dir ? SEAM_SYNC_DIR : kind,
                             .file = file,
                             .offset = offset,
                             .n_bytes = n_bytes });
    }
}

/* An event of the test's own, between two calls. */
static inline void seam_mark(uint64_t number)
{
    if (seam.log != NULL) {
        seam_enter();
        seam_note((seam_op){ .kind = SEAM_MARK, .at = number });
        seam_leave();
    }
}

/* ---- libc's functions -------------------------------------------------------------------------------------------- */

/* The caller's address has to be taken in the function that the caller called. */
#define SEAM_FAILS(is_allocation) seam_fails(__builtin_return_address(0), is_allocation)

/* Prototypes are libc's own; those of functions that only LMDB uses come with their headers too. */
int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? (mode_t)va_arg(list, unsigned) : 0;
    va_end(list);
    const bool is_below = seam_is_below(path);
    if (is_below && SEAM_FAILS(false) && !seam.aim.is_short) {
        errno = seam.aim.number;
        return -1;
    }
    seam_enter();
    const bool existed = !is_below || syscall(SYS_faccessat, AT_FDCWD, path, F_OK, 0) == 0;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    /* With O_DIRECT on a file system without it the file is made, and then the call is refused. */
    const bool is_new = !existed && syscall(SYS_faccessat, AT_FDCWD, path, F_OK, 0) == 0;
    const int number = errno;
    if (is_below && seam.log != NULL && (fd >= 0 || is_new)) {
        const uint32_t file = seam_file_of(path, true, (flags & O_DIRECTORY) != 0);
        if (is_new) {
            seam_note((seam_op){ .kind = SEAM_CREATE, .file = file });
        }
        if (fd >= 0 && fd < SEAM_FDS) {
            seam.fd_file[fd] = (int)file + 1;
        }
    } else if (is_below && fd >= 0 && fd < SEAM_FDS) {
        seam.fd_file[fd] = 1;
    }
    if (fd >= 0 && fd < SEAM_FDS) {
        seam.fd_dsync[fd] = (flags & O_DSYNC) != 0;
    }
    seam_leave();
    errno = number;
    return fd;
}

int close(int fd)
{
    if (seam_is_watched(fd)) {
        seam.fd_file[fd] = 0;
    }
    return (int)syscall(SYS_close, fd);
}

/* Half of a transfer; what direct I/O would refuse is made whole pages. */
static inline size_t seam_half(size_t n_bytes)
{
    const size_t half = n_bytes / 2;
    return half >= 4096 ? half & ~(size_t)4095 : half;
}

ssize_t pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset)
{
    if (seam_is_watched(fd) && SEAM_FAILS(false)) {
        if (!seam.aim.is_short) {
            errno = seam.aim.number;
            return -1;
        }
        n_bytes = seam_half(n_bytes);
    }
    seam_enter();
    const ssize_t n = syscall(SYS_pwrite64, fd, bytes, n_bytes, offset);
    if (n > 0 && seam.log != NULL && seam_is_watched(fd)) {
        const struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = (size_t)n };
        seam_note_bytes(fd, &iov, 1, (uint64_t)offset, (uint64_t)n);
    }
    seam_leave();
    return n;
}

/* LMDB writes runs of pages with lseek and writev. */
ssize_t writev(int fd, const struct iovec *iov, int n_iov)
{
    if (seam_is_watched(fd) && SEAM_FAILS(false)) {
        if (!seam.aim.is_short) {
            errno = seam.aim.number;
            return -1;
        }
        n_iov = n_iov > 1 ? n_iov / 2 : n_iov;
    }
    seam_enter();
    const off_t offset = seam_is_watched(fd) ? (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) : 0;
    const ssize_t n = syscall(SYS_writev, fd, iov, n_iov);
    if (n > 0 && seam.log != NULL && seam_is_watched(fd)) {
        seam_note_bytes(fd, iov, n_iov, (uint64_t)offset, (uint64_t)n);
    }
    seam_leave();
    return n;
}

ssize_t pwritev(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    struct iovec cut;
    if (seam_is_watched(fd) && SEAM_FAILS(false)) {
        if (!seam.aim.is_short) {
            errno = seam.aim.number;
            return -1;
        }
        cut = (struct iovec){ .iov_base = iov[0].iov_base, .iov_len = seam_half(iov[0].iov_len) };
        iov = n_iov > 1 ? iov : &cut;
        n_iov = n_iov > 1 ? n_iov / 2 : 1;
    }
    seam_enter();
    const ssize_t n = syscall(SYS_pwritev, fd, iov, n_iov, offset, 0);
    if (n > 0 && seam.log != NULL && seam_is_watched(fd)) {
        seam_note_bytes(fd, iov, n_iov, (uint64_t)offset, (uint64_t)n);
    }
    seam_leave();
    return n;
}

static inline void seam_count_read(int fd, ssize_t n)
{
    if (n > 0 && seam.log != NULL && seam_is_watched(fd) &&
        strncmp(seam.log->files[seam.fd_file[fd] - 1].name, "seg-", 4) == 0) {
        atomic_fetch_add(&seam.segment_read_bytes, (uint64_t)n);
    }
}

ssize_t pread(int fd, void *bytes, size_t n_bytes, off_t offset)
{
    if (seam_is_watched(fd) && SEAM_FAILS(false)) {
        if (!seam.aim.is_short) {
            errno = seam.aim.number;
            return -1;
        }
        n_bytes = seam_half(n_bytes);
    }
    const ssize_t n = syscall(SYS_pread64, fd, bytes, n_bytes, offset);
    seam_count_read(fd, n);
    return n;
}

ssize_t preadv(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    if (seam_is_watched(fd) && SEAM_FAILS(false)) {
        if (!seam.aim.is_short) {
            errno = seam.aim.number;
            return -1;
        }
        n_iov = n_iov > 1 ? n_iov / 2 : 1;
    }
    const ssize_t n = syscall(SYS_preadv, fd, iov, n_iov, offset, 0);
    seam_count_read(fd, n);
    return n;
}

/* What takes no bytes cannot be short: such calls succeed then. */
#define SEAM_REFUSES (SEAM_FAILS(false) && !seam.aim.is_short ? (errno = seam.aim.number, true) : false)

int fdatasync(int fd)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_fdatasync, fd);
    if (result == 0) {
        seam_note_fd(SEAM_SYNC, fd, 0, 0);
    }
    seam_leave();
    return result;
}

int fsync(int fd)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_fsync, fd);
    if (result == 0) {
        seam_note_fd(SEAM_SYNC, fd, 0, 0);
    }
    seam_leave();
    return result;
}

int ftruncate(int fd, off_t n_bytes)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_ftruncate, fd, n_bytes);
    if (result == 0) {
        seam_note_fd(SEAM_TRUNCATE, fd, (uint64_t)n_bytes, 0);
    }
    seam_leave();
    return result;
}

/* Firn calls it for holes alone. */
int fallocate(int fd, int mode, off_t offset, off_t n_bytes)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_fallocate, fd, mode, offset, n_bytes);
    if (result == 0 && (mode & FALLOC_FL_PUNCH_HOLE) != 0) {
        seam_note_fd(SEAM_PUNCH, fd, (uint64_t)offset, (uint64_t)n_bytes);
    }
    seam_leave();
    return result;
}

int unlink(const char *path)
{
    const bool is_below = seam_is_below(path);
    if (is_below && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (result == 0 && is_below && seam.log != NULL) {
        const uint32_t file = seam_file_of(path, false, false);
        if (file != SEAM_FILES_MAX) {
            seam.log->files[file].is_linked = false;
            seam_note((seam_op){ .kind = SEAM_UNLINK, .file = file });
        }
    }
    seam_leave();
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    const bool is_below = seam_is_below(path);
    if (is_below && SEAM_REFUSES) {
        return -1;
    }
    seam_enter();
    const int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (result == 0 && is_below && seam.log != NULL) {
        seam_note((seam_op){ .kind = SEAM_MKDIR, .file = seam_file_of(path, true, true) });
    }
    seam_leave();
    return result;
}

int chmod(const char *path, mode_t mode)
{
    if (seam_is_below(path) && SEAM_REFUSES) {
        return -1;
    }
    return (int)syscall(SYS_fchmodat, AT_FDCWD, path, mode);
}

int fstat(int fd, struct stat *out)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return -1;
    }
    return (int)syscall(SYS_newfstatat, fd, "", out, AT_EMPTY_PATH);
}

int stat(const char *path, struct stat *out)
{
    if (seam_is_below(path) && SEAM_REFUSES) {
        return -1;
    }
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

void *mmap(void *address, size_t n_bytes, int protection, int flags, int fd, off_t offset)
{
    if (seam_is_watched(fd) && SEAM_REFUSES) {
        return MAP_FAILED;
    }
    const long result = syscall(SYS_mmap, address, n_bytes, protection, flags, fd, offset);
    return result == -1 ? MAP_FAILED : (void *)result;
}

int msync(void *address, size_t n_bytes, int flags)
{
    return SEAM_REFUSES ? -1 : (int)syscall(SYS_msync, address, n_bytes, flags);
}

/* ---- LMDB's allocations ------------------------------------------------------------------------------------------ */

/* A sanitizer has these symbols for itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEAM_ALLOCATES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SEAM_ALLOCATES 0
#else
#define SEAM_ALLOCATES 1
#endif
#else
#define SEAM_ALLOCATES 1
#endif

#if SEAM_ALLOCATES
/* glibc's own entries under the usual names. */
extern void *__libc_malloc(size_t n_bytes);
extern void *__libc_calloc(size_t n, size_t n_bytes);
extern void *__libc_realloc(void *block, size_t n_bytes);
extern void *__libc_memalign(size_t align, size_t n_bytes);
extern void __libc_free(void *block);

/* Remembers what LMDB allocated. Who frees it cannot be seen: a call in the last line of a function is a jump. */
static inline void *seam_note_block(const void *caller, void *block)
{
    if (block == NULL || !seam_is_lmdb(caller)) {
        return block;
    }
    for (uint32_t i = 0; i < SEAM_BLOCKS; i++) {
        _Atomic uintptr_t *slot = &seam.blocks[((uintptr_t)block / 16 + i) % SEAM_BLOCKS];
        uintptr_t was = atomic_load(slot);
        if (was <= 1 && atomic_compare_exchange_strong(slot, &was, (uintptr_t)block)) {
            atomic_fetch_add(&seam.n_lmdb_blocks, 1);
            return block;
        }
    }
    abort();
}

static inline void seam_forget_block(void *block)
{
    for (uint32_t i = 0; block != NULL && atomic_load(&seam.n_lmdb_blocks) > 0 && i < SEAM_BLOCKS; i++) {
        _Atomic uintptr_t *slot = &seam.blocks[((uintptr_t)block / 16 + i) % SEAM_BLOCKS];
        uintptr_t was = atomic_load(slot);
        if (was == (uintptr_t)block && atomic_compare_exchange_strong(slot, &was, 1)) {
            atomic_fetch_sub(&seam.n_lmdb_blocks, 1);
            return;
        }
        if (was == 0) {
            return;
        }
    }
}

void *malloc(size_t n_bytes)
{
    return SEAM_FAILS(true) ? NULL : seam_note_block(__builtin_return_address(0), __libc_malloc(n_bytes));
}

void *calloc(size_t n, size_t n_bytes)
{
    return SEAM_FAILS(true) ? NULL : seam_note_block(__builtin_return_address(0), __libc_calloc(n, n_bytes));
}

void *realloc(void *old, size_t n_bytes)
{
    if (SEAM_FAILS(true)) {
        return NULL;
    }
    void *block = __libc_realloc(old, n_bytes);
    if (block != NULL) {
        seam_forget_block(old);
    }
    return seam_note_block(__builtin_return_address(0), block);
}

int posix_memalign(void **out, size_t align, size_t n_bytes)
{
    *out = SEAM_FAILS(true) ? NULL : seam_note_block(__builtin_return_address(0), __libc_memalign(align, n_bytes));
    return *out != NULL ? 0 : ENOMEM;
}

/* Calls malloc from inside of libc, where its caller is not LMDB any more. */
char *strdup(const char *text)
{
    const size_t n_bytes = strlen(text) + 1;
    char *copy = SEAM_FAILS(true) ? NULL : seam_note_block(__builtin_return_address(0), __libc_malloc(n_bytes));
    return copy == NULL ? NULL : memcpy(copy, text, n_bytes);
}

void free(void *block)
{
    seam_forget_block(block);
    __libc_free(block);
}
#endif

#endif
