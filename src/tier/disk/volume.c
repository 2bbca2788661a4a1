/*
 * The attached directory: is it ours, are we its writer, and what did the last process leave behind.
 *
 * Owns the marker, the lock and recovery. Does not own what is inside index and segments, nor the list of holes
 * (holes.c).
 *
 * Attaching, in this order:
 *   1. list the directory: without our marker it must hold nothing foreign;
 *   2. open firn.lock, lock it, and write or compare the marker;
 *   3. open the index, and sync it: what follows is done to files that a commit no longer names, which no power failure
 *      may undo any more; without an index, but with segments, refuse and name the command that makes it anew;
 *   4. for each segment file: unknown to the index -> unlink; longer than the index says -> punch the surplus;
 *   5. punch the holes that the log still names;
 *   6. open the ledger, if there is one, and unlink what a crash left beside it.
 * None of it depends on the number of records.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tier/disk/ledger_impl.h"

#define LEDGERS_MAX 8u /* files: a crash leaves two at most */

#define RESERVE_SHARE       20u                 /* of the file system is left free, by default */
#define RESERVE_BYTES_USUAL (UINT64_C(2) << 30) /* and no more than this */

/* What the directory holds. */
typedef struct listing {
    const firn_env *env;
    uint32_t *segments;
    uint32_t n_segments, capacity;
    uint32_t ledgers[LEDGERS_MAX], n_ledgers;
    bool has_lock, has_foreign, out_of_memory;
} listing;

/* Sorts one name of the directory: segment, one of our own, or foreign. */
static void note_name(void *ctx, const char *name)
{
    listing *list = ctx;
    const uint32_t id = firni_segment_id_of(name), ledger = firni_ledger_number_of(name);
    if (ledger != 0 && list->n_ledgers < LEDGERS_MAX) {
        list->ledgers[list->n_ledgers++] = ledger;
    }
    if (id == 0) {
        /* "packed": weights of models, which may come before any state (docs/OPERATIONS.md). */
        const bool is_own = ledger != 0 || strcmp(name, "firn.lock") == 0 || strcmp(name, "index") == 0 ||
                            strcmp(name, "packed") == 0;
        list->has_lock = list->has_lock || strcmp(name, "firn.lock") == 0;
        list->has_foreign = list->has_foreign || !is_own;
        return;
    }
    if (list->n_segments == list->capacity) {
        const uint32_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        uint32_t *grown = firni_grow(list->env, list->segments, list->n_segments, capacity, sizeof *grown);
        if (grown == NULL) {
            list->out_of_memory = true;
            return;
        }
        list->segments = grown;
        list->capacity = capacity;
    }
    list->segments[list->n_segments++] = id;
}

/* ---- marker and lock --------------------------------------------------------------------------------------------- */

static void lock_path(const char *dir, char path[FIRNI_DISK_PATH_MAX])
{
    (void)snprintf(path, FIRNI_DISK_PATH_MAX, "%s/firn.lock", dir);
}

/* Names the process that has the lock, as far as its file says. */
static firn_status fail_busy(const firni_volume *volume, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char text[128] = "";
    const int64_t n = io->pread(io->ctx, volume->lock_fd, text, sizeof text - 1, 0);
    const char *pid = n > 0 ? strstr(text, "pid ") : NULL;
    const int len = pid != NULL ? 4 + (int)strspn(pid + 4, "0123456789") : 0;
    return firni_fail(err, FIRN_ERR_BUSY, "another process (%.*s) is the writer of %s; stop it, or open read-only",
                      pid != NULL ? len : 11, pid != NULL ? pid : "pid unknown", volume->dir);
}

static firn_status write_marker(const firni_volume *volume, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char text[96];
    /* The process id is for the message of the next one that comes; a fixed width, so that it may be overwritten. */
    const int n = snprintf(text, sizeof text, "%spid %-10ld\n", FIRNI_DISK_MARKER, (long)getpid());
    const struct iovec iov = { .iov_base = text, .iov_len = (size_t)n };
    const int64_t n_written = io->pwritev(io->ctx, volume->lock_fd, &iov, 1, 0);
    int code = n_written == n ? 0 : n_written < 0 ? (int)-n_written : EIO;
    if (code == 0) {
        code = -io->datasync(io->ctx, volume->lock_fd);
    }
    return code == 0 ? FIRN_OK : firni_fail_os(err, code, "cannot write %s/firn.lock", volume->dir);
}

/* Reads the marker: FORMAT when it is foreign or of another version; *is_new when the file is empty. */
static firn_status check_marker(const firni_volume *volume, bool *is_new, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char text[sizeof FIRNI_DISK_MARKER] = "";
    const int64_t n = io->pread(io->ctx, volume->lock_fd, text, sizeof text - 1, 0);
    if (n < 0) {
        return firni_fail_os(err, (int)-n, "cannot read %s/firn.lock", volume->dir);
    }
    /* A beginning of the marker is what a crash while writing it leaves, or the room for it without its bytes. */
    *is_new = n < (int64_t)sizeof text - 1 && memcmp(text, FIRNI_DISK_MARKER, (size_t)n) == 0;
    *is_new = *is_new || text[0] == '\0';
    if (!*is_new && strcmp(text, FIRNI_DISK_MARKER) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s belongs to another version or program; choose another directory",
                          volume->dir);
    }
    return FIRN_OK;
}

/* Refuses before it creates: a foreign directory is left without a trace. */
static firn_status take_lock(firni_volume *volume, const listing *list, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    lock_path(volume->dir, path);
    if (!list->has_lock && (list->has_foreign || list->n_segments > 0)) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s is not empty and not a cache; choose another directory",
                          volume->dir);
    }
    const int flags = volume->read_only ? O_RDONLY : O_RDWR | O_CREAT;
    volume->lock_fd = io->open(io->ctx, path, flags, 0600);
    if (volume->lock_fd < 0) {
        return firni_fail_os(err, -volume->lock_fd, "cannot open %s; check the owner and mode of the directory", path);
    }
    if (!volume->read_only) {
        const int locked = io->lock(io->ctx, volume->lock_fd);
        if (locked == -EAGAIN) {
            return fail_busy(volume, err);
        }
        if (locked < 0) {
            return firni_fail_os(err, -locked, "cannot lock %s", path);
        }
    }
    bool is_new = false;
    firn_status status = check_marker(volume, &is_new, err);
    if (status == FIRN_OK && is_new && (list->has_foreign || volume->read_only)) {
        status = firni_fail(err, FIRN_ERR_FORMAT, "%s is not a cache", volume->dir);
    }
    if (status == FIRN_OK && !volume->read_only) {
        status = write_marker(volume, err);
    }
    firn_io_stat stat;
    const int stated = status == FIRN_OK ? io->stat(io->ctx, volume->lock_fd, &stat) : 0;
    if (stated < 0) {
        status = firni_fail_os(err, -stated, "cannot stat %s", path);
    } else if (status == FIRN_OK) {
        volume->lock_inode = stat.inode;
        volume->lock_physical_bytes = stat.physical_bytes;
    }
    return status;
}

/* ---- recovery ---------------------------------------------------------------------------------------------------- */

static firn_status recover_segments(firni_volume *volume, MDB_txn *txn, const listing *list, firn_error *err)
{
    for (uint32_t i = 0; i < list->n_segments; i++) {
        const uint32_t id = list->segments[i];
        firni_segment_info info;
        firni_code code = firni_index_get_segment(&volume->index, txn, id, &info);
        if (code == MDB_NOTFOUND && !volume->read_only) {
            /* Created for a store that was never committed. */
            code = firni_segment_unlink(&volume->segments, id);
        } else if (code == 0) {
            code = firni_segments_adopt(&volume->segments, id, info.end);
            volume->segment_id = code == 0 && id > volume->segment_id ? id : volume->segment_id;
        }
        if (code == ENOENT && volume->read_only) {
            code = 0; /* the writer removed it after we listed it */
        }
        if (code > 0) {
            return firni_fail_os(err, code, "cannot open segment %" PRIu32 " in %s", id, volume->dir);
        }
        if (code != 0 && code != MDB_NOTFOUND) {
            return firni_fail(err, FIRN_ERR_IO, "cannot read the index in %s: %s", volume->dir, mdb_strerror(code));
        }
    }
    return FIRN_OK;
}

static firn_status recover_holes(firni_volume *volume, MDB_txn *txn, firn_error *err)
{
    firni_place place = { 0 };
    firni_code code;
    while ((code = firni_index_next_hole(&volume->index, txn, &place, &place)) == 0) {
        if (!firni_volume_reserve_holes(volume, 1)) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to recover %s", volume->dir);
        }
        firni_volume_add_hole(volume, &place);
        volume->holes[volume->n_holes - 1].is_logged = true;
    }
    if (code != MDB_NOTFOUND) {
        return firni_fail(err, FIRN_ERR_IO, "cannot read the index in %s: %s", volume->dir, mdb_strerror(code));
    }
    firni_volume_punch(volume);
    return FIRN_OK;
}

/* What the last process left behind. One snapshot: nobody else writes, the lock is ours. */
static firn_status recover(firni_volume *volume, const listing *list, uint64_t *last_stamp, firn_error *err)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&volume->index, true, &txn);
    if (code == 0) {
        code = firni_index_last_stamp(&volume->index, txn, last_stamp);
    }
    if (code == 0) {
        code = firni_index_next_segment(&volume->index, txn, &volume->next_segment);
    }
    firn_status status = FIRN_OK;
    if (code != 0) {
        status = firni_fail(err, FIRN_ERR_IO, "cannot read the index in %s: %s", volume->dir, mdb_strerror(code));
    }
    if (status == FIRN_OK) {
        status = recover_segments(volume, txn, list, err);
    }
    if (status == FIRN_OK && !volume->read_only) {
        status = recover_holes(volume, txn, err);
    }
    mdb_txn_abort(txn);
    return status;
}

/* Every segment as long as its file is: without an index nothing says what of it was named. */
static firn_status adopt_segments(firni_volume *volume, const listing *list, firn_error *err)
{
    volume->next_segment = 1;
    for (uint32_t i = 0; i < list->n_segments; i++) {
        const uint32_t id = list->segments[i];
        const firni_code code = firni_segments_adopt(&volume->segments, id, FIRNI_SEGMENT_WHOLE);
        if (code != 0) {
            return firni_fail_os(err, code, "cannot open segment %" PRIu32 " in %s", id, volume->dir);
        }
        volume->next_segment = id >= volume->next_segment ? id + 1 : volume->next_segment;
    }
    return FIRN_OK;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static firn_status make_directory(const firni_volume_options *options, const firn_env *env, firn_error *err)
{
    const firn_io *io = firni_io(env);
    const int made = options->create ? io->mkdir(io->ctx, options->dir, 0700) : -EEXIST;
    if (made < 0 && made != -EEXIST) {
        return firni_fail_os(err, -made, "cannot create %s; check that its parent exists and is writable",
                             options->dir);
    }
    return FIRN_OK;
}

/* LMDB writes its lock file through a mapping, where a full disk means a signal instead of an error: its blocks are
 * taken before. A file that is there is left alone, because other processes may be using it. */
static int make_index_lock(const firni_volume *volume)
{
    static const uint8_t zeros[2 * FIRNI_RECORD_ALIGN];
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index/lock.mdb", volume->dir);
    const int fd = io->open(io->ctx, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        return fd == -EEXIST ? 0 : fd;
    }
    const struct iovec iov = { .iov_base = (void *)(uintptr_t)zeros, .iov_len = sizeof zeros };
    const int64_t n_written = io->pwritev(io->ctx, fd, &iov, 1, 0);
    int code = n_written == (int64_t)sizeof zeros ? io->datasync(io->ctx, fd) : n_written < 0 ? (int)n_written : -EIO;
    (void)io->close(io->ctx, fd);
    if (code < 0) {
        (void)io->unlink(io->ctx, path);
    }
    return code;
}

/* The name of the directory has to be as durable as what lies in it. Who may not read the parent cannot sync it, and
 * has not made the directory either. */
static int sync_parent(const firni_volume *volume)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/..", volume->dir);
    const int code = io->sync_dir(io->ctx, path);
    return code == -EACCES || code == -EPERM ? 0 : code;
}

/* A power failure while the index was made leaves a file that LMDB refuses. As long as there is no segment it names
 * nothing, and is made anew. */
static firn_status drop_torn_index(const firni_volume *volume, const listing *list, firn_error *err)
{
    if (list->n_segments > 0 || !firni_index_is_torn(volume->dir)) {
        return FIRN_OK;
    }
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index/data.mdb", volume->dir);
    const int code = io->unlink(io->ctx, path);
    return code == 0 ? FIRN_OK : firni_fail_os(err, -code, "cannot remove the unfinished index %s", path);
}

/* Creation and all commits of former processes, so that recovery may act on what they say. */
static firn_status settle_index(firni_volume *volume, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index", volume->dir);
    int code = -io->sync_dir(io->ctx, path);
    if (code == 0) {
        code = firni_volume_settle(volume);
    }
    return code == 0 ? FIRN_OK : firni_fail_os(err, code, "cannot sync the index %s", path);
}

/* The index folder, and modes that do not depend on the umask or on who made the directory. */
static firn_status make_private(const firni_volume *volume, firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index", volume->dir);
    int code = io->mkdir(io->ctx, path, 0700);
    code = code == -EEXIST ? 0 : code;
    if (code == 0) {
        code = io->chmod(io->ctx, path, 0700);
    }
    if (code == 0) {
        code = io->chmod(io->ctx, volume->dir, 0700);
    }
    if (code == 0) {
        code = io->sync_dir(io->ctx, volume->dir);
    }
    if (code == 0) {
        code = sync_parent(volume);
    }
    if (code == 0) {
        code = make_index_lock(volume);
    }
    return code == 0 ? FIRN_OK : firni_fail_os(err, -code, "cannot prepare %s; check its owner, mode and room", path);
}

static void index_path(const firni_volume *volume, const char *name, char path[FIRNI_DISK_PATH_MAX])
{
    (void)snprintf(path, FIRNI_DISK_PATH_MAX, "%s/index/%s", volume->dir, name);
}

/* Segments without an index are a loss that can be made good; an index made anew would call them unnamed, and the
 * recovery would remove them. */
static firn_status open_index(firni_volume *volume, const firni_volume_options *options, const listing *list,
                              firn_error *err)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    firn_io_stat stat;
    index_path(volume, "data.mdb", path);
    if (list->n_segments > 0 && io->stat_path(io->ctx, path, &stat) == -ENOENT) {
        return firni_fail(err, FIRN_ERR_CORRUPT,
                          "the index of %s is missing, but %u segments are there; `firn cache fsck --cache-dir %s` "
                          "makes it anew", volume->dir, list->n_segments, volume->dir);
    }
    const firni_index_use use = options->read_only      ? FIRNI_INDEX_READ
                                : list->n_segments == 0 ? FIRNI_INDEX_NEW
                                                        : FIRNI_INDEX_WRITE;
    return firni_index_open(&volume->index, options->dir, use, options->budget_bytes, &options->unlock, err);
}

/* Steps 3 to 5. */
static firn_status attach_index(firni_volume *volume, const firni_volume_options *options, const listing *list,
                                uint64_t *last_stamp, firn_error *err)
{
    firn_status status = options->read_only ? FIRN_OK : drop_torn_index(volume, list, err);
    if (status == FIRN_OK) {
        status = open_index(volume, options, list, err);
    }
    if (status == FIRN_OK && options->sync_always) {
        (void)mdb_env_set_flags(volume->index.env, MDB_NOMETASYNC, 0);
    }
    if (status == FIRN_OK && !options->read_only) {
        status = settle_index(volume, err);
    }
    return status == FIRN_OK ? recover(volume, list, last_stamp, err) : status;
}

firn_status firni_volume_new_index(firni_volume *volume, uint64_t budget_bytes, const firni_crypt *crypt,
                                   firn_error *err)
{
    assert(volume->index.env == NULL && !volume->read_only);
    const firn_io *io = firni_io(volume->env);
    static const char *const names[] = { "data.mdb", "lock.mdb" };
    for (unsigned i = 0; i < 2; i++) {
        char path[FIRNI_DISK_PATH_MAX];
        index_path(volume, names[i], path);
        const int code = io->unlink(io->ctx, path);
        if (code < 0 && code != -ENOENT) {
            return firni_fail_os(err, -code, "cannot remove %s", path);
        }
    }
    const firni_unlock unlock = { .crypt = crypt };
    const int code = make_index_lock(volume);
    return code < 0 ? firni_fail_os(err, -code, "cannot make an index in %s", volume->dir)
                    : firni_index_open(&volume->index, volume->dir, FIRNI_INDEX_REBUILD, budget_bytes, &unlock,
                                       err);
}

firn_status firni_volume_open(const firni_volume_options *options, const firn_env *env, firni_volume **out,
                              uint64_t *last_stamp, firn_error *err)
{
    *out = NULL;
    *last_stamp = 0;
    firn_status status = make_directory(options, env, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_volume *volume = firni_calloc(env, 1, sizeof *volume);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to open %s", options->dir);
    }
    volume->env = env;
    volume->dir = options->dir;
    volume->read_only = options->read_only;
    volume->sync_always = options->sync_always;
    volume->lock_fd = -1;
    volume->ledger.fd = -1;
    firni_segments_init(&volume->segments, env, options->dir, options->read_only, options->buffered);
    const firn_io *io = firni_io(env);
    listing list = { .env = env };
    const int listed = io->list_dir(io->ctx, options->dir, note_name, &list);
    if (listed < 0) {
        status = firni_fail_os(err, -listed, "cannot read the directory %s", options->dir);
    } else if (list.out_of_memory) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to open %s", options->dir);
    }
    if (status == FIRN_OK) {
        status = take_lock(volume, &list, err);
    }
    if (status == FIRN_OK && !options->read_only) {
        status = make_private(volume, err);
    }
    if (status == FIRN_OK && options->without_index) {
        status = adopt_segments(volume, &list, err);
    } else if (status == FIRN_OK) {
        status = attach_index(volume, options, &list, last_stamp, err);
    }
    if (status == FIRN_OK && !options->read_only) {
        firni_ledger_open(volume, list.ledgers, list.n_ledgers, options->unlock.crypt, volume->index.is_locked,
                          options->without_index);
    }
    firni_free(env, list.segments);
    if (status != FIRN_OK) {
        firni_volume_close(volume);
        return status;
    }
    if (!options->without_index) {
        firni_volume_measure(volume);
    }
    *out = volume;
    return FIRN_OK;
}

void firni_volume_close(firni_volume *volume)
{
    if (volume == NULL) {
        return;
    }
    assert(volume->n_users == 0);
    firni_index_close(&volume->index);
    firni_ledger_close(volume);
    firni_segments_deinit(&volume->segments);
    if (volume->lock_fd >= 0) {
        const firn_io *io = firni_io(volume->env);
        (void)io->close(io->ctx, volume->lock_fd); /* last: it gives the writer's lock back */
    }
    firni_free(volume->env, volume->holes);
    firni_free(volume->env, volume);
}

firni_code firni_volume_check(const firni_volume *volume, bool by_path)
{
    const firn_io *io = firni_io(volume->env);
    firn_io_stat stat;
    int code = -io->stat(io->ctx, volume->lock_fd, &stat);
    if (code == 0 && stat.n_links == 0) {
        return ENOENT;
    }
    if (code == 0 && by_path) {
        char path[FIRNI_DISK_PATH_MAX];
        lock_path(volume->dir, path);
        code = -io->stat_path(io->ctx, path, &stat);
        if (code == 0 && stat.inode != volume->lock_inode) {
            return ENOENT; /* another directory has taken the name */
        }
    }
    return code;
}

/* ---- accounting -------------------------------------------------------------------------------------------------- */

uint64_t firni_volume_physical_bytes(firni_volume *volume)
{
    return firni_segments_physical_bytes(&volume->segments) + atomic_load(&volume->index_physical_bytes) +
           firni_ledger_physical_bytes(volume) + volume->lock_physical_bytes;
}

int64_t firni_volume_spare_bytes(const firni_volume *volume, uint64_t min_free_bytes)
{
    const firn_io *io = firni_io(volume->env);
    firn_io_fs fs;
    if (min_free_bytes == FIRN_DISK_NO_RESERVE || io->stat_fs(io->ctx, volume->dir, &fs) < 0) {
        return INT64_MAX;
    }
    const uint64_t share = fs.size_bytes / RESERVE_SHARE;
    const uint64_t usual = share < RESERVE_BYTES_USUAL ? share : RESERVE_BYTES_USUAL;
    const uint64_t reserve = min_free_bytes != 0 ? min_free_bytes : usual;
    const uint64_t limit = INT64_MAX / 2; /* of both, so that sums of what is returned do not overflow */
    return (int64_t)(fs.free_bytes < limit ? fs.free_bytes : limit) - (int64_t)(reserve < limit ? reserve : limit);
}

void firni_volume_measure(firni_volume *volume)
{
    atomic_store(&volume->index_physical_bytes, firni_index_physical_bytes(&volume->index, volume->env, volume->dir));
    MDB_txn *txn = NULL;
    uint64_t n_entries = 0;
    if (firni_index_begin(&volume->index, true, &txn) == 0 && firni_index_count(&volume->index, txn, &n_entries) == 0) {
        atomic_store(&volume->n_entries, n_entries);
    }
    mdb_txn_abort(txn);
}

void firni_volume_measure_all(firni_volume *volume)
{
    firni_segments_measure(&volume->segments);
    firni_ledger_measure(volume);
    firni_volume_measure(volume);
}
