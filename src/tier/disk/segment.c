/*
 * Segment files: records appended by one writer, ranges punched out, whole files unlinked when nothing is left.
 *
 *      0                                                                end
 *      | record | (hole) | record | (hole, punched) | record | record |   |   appended here, and only here
 *
 * Owns file names, descriptors and the count of physical bytes. Does not know records or the index. A range of a
 * segment is written at most once in its life; what was reserved for a write that failed is not used again.
 */
/* O_DIRECT is a Linux flag of open. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

/* Descriptors kept open beyond their use, so that a large store does not exhaust the process's limit. */
#define OPEN_MAX_IDLE 128u

static void segment_path(const firni_segments *segments, uint32_t id, char path[FIRNI_DISK_PATH_MAX])
{
    const int n = snprintf(path, FIRNI_DISK_PATH_MAX, "%s/seg-%08" PRIu32 ".firn", segments->dir, id);
    assert(n > 0 && n < (int)FIRNI_DISK_PATH_MAX);
    (void)n;
}

uint32_t firni_segment_id_of(const char *name)
{
    uint32_t id = 0;
    if (strncmp(name, "seg-", 4) != 0 || strlen(name) != 17 || strcmp(name + 12, ".firn") != 0) {
        return 0;
    }
    for (unsigned i = 4; i < 12; i++) {
        if (name[i] < '0' || name[i] > '9') {
            return 0;
        }
        id = id * 10 + (uint32_t)(name[i] - '0');
    }
    return id;
}

void firni_segments_init(firni_segments *segments, const firn_env *env, const char *dir, bool read_only, bool buffered)
{
    *segments = (firni_segments){ .env = env, .dir = dir, .read_only = read_only, .buffered = buffered };
    (void)pthread_mutex_init(&segments->mutex, NULL);
}

void firni_segments_deinit(firni_segments *segments)
{
    const firn_io *io = firni_io(segments->env);
    for (uint32_t i = 0; i < segments->n; i++) {
        assert(segments->list[i].n_users == 0);
        if (segments->list[i].fd >= 0) {
            (void)io->close(io->ctx, segments->list[i].fd);
        }
    }
    firni_free(segments->env, segments->list);
    (void)pthread_mutex_destroy(&segments->mutex);
}

/* ---- the table; the caller holds the mutex ----------------------------------------------------------------------- */

/* Index of the first segment whose number is at least id. */
static uint32_t lower_bound(const firni_segments *segments, uint32_t id)
{
    uint32_t low = 0, high = segments->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (segments->list[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static firni_segment *find_locked(firni_segments *segments, uint32_t id)
{
    const uint32_t at = lower_bound(segments, id);
    return at < segments->n && segments->list[at].id == id ? &segments->list[at] : NULL;
}

/* A new row, closed and of no size; NULL without memory. Pointers into the table are void afterwards. */
static firni_segment *insert_locked(firni_segments *segments, uint32_t id)
{
    if (segments->n == segments->capacity) {
        const uint32_t capacity = segments->capacity == 0 ? 16 : segments->capacity * 2;
        firni_segment *grown = firni_grow(segments->env, segments->list, segments->n, capacity, sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        segments->list = grown;
        segments->capacity = capacity;
    }
    const uint32_t at = lower_bound(segments, id);
    memmove(&segments->list[at + 1], &segments->list[at], (segments->n - at) * sizeof segments->list[0]);
    segments->list[at] = (firni_segment){ .id = id, .fd = -1 };
    segments->n++;
    return &segments->list[at];
}

/* Takes the segment out of the table; returns the descriptor to close, or -1. */
static int remove_locked(firni_segments *segments, firni_segment *segment)
{
    const int fd = segment->fd;
    const uint32_t at = (uint32_t)(segment - segments->list);
    segments->physical_bytes -= segment->physical_bytes;
    segments->n_open -= fd >= 0;
    memmove(segment, segment + 1, (segments->n - at - 1) * sizeof *segment);
    segments->n--;
    return fd;
}

/* A file system may add a block or two of its own to a file when it writes data back, so what was measured right after
 * a write can be a little less than what firni_segments_measure finds later. */
static void set_physical_locked(firni_segments *segments, firni_segment *segment, uint64_t physical_bytes)
{
    segments->physical_bytes += physical_bytes - segment->physical_bytes;
    segment->physical_bytes = physical_bytes;
}

/* A descriptor that nobody uses, when there are too many; -1 otherwise. */
static int take_idle_locked(firni_segments *segments)
{
    for (uint32_t i = 0; segments->n_open > OPEN_MAX_IDLE && i < segments->n; i++) {
        firni_segment *segment = &segments->list[i];
        if (segment->fd >= 0 && segment->n_users == 0 && !segment->is_unsynced) {
            const int fd = segment->fd;
            segment->fd = -1;
            segments->n_open--;
            return fd;
        }
    }
    return -1;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

/* Closes outside of the mutex; -1 means none. */
static void close_fd(const firni_segments *segments, int fd)
{
    const firn_io *io = firni_io(segments->env);
    if (fd >= 0) {
        (void)io->close(io->ctx, fd);
    }
}

/* Opens with direct I/O where the file system has it; -errno on failure. */
static int open_file(const firni_segments *segments, uint32_t id, int more_flags)
{
    char path[FIRNI_DISK_PATH_MAX];
    segment_path(segments, id, path);
    const firn_io *io = firni_io(segments->env);
    const int flags = (segments->read_only ? O_RDONLY : O_RDWR) | more_flags;
    if (!segments->buffered) {
        const int fd = io->open(io->ctx, path, flags | O_DIRECT, 0600);
        if (fd != -EINVAL) {
            return fd;
        }
        /* The refusal comes after the file was made, so it is no longer new. */
        return io->open(io->ctx, path, flags & ~O_EXCL, 0600);
    }
    return io->open(io->ctx, path, flags, 0600);
}

firni_code firni_segment_use(firni_segments *segments, uint32_t id, int *fd)
{
    *fd = -1;
    pthread_mutex_lock(&segments->mutex);
    firni_segment *segment = find_locked(segments, id);
    if (segment != NULL && segment->fd >= 0) {
        segment->n_users++;
        *fd = segment->fd;
    }
    pthread_mutex_unlock(&segments->mutex);
    if (*fd >= 0) {
        return 0;
    }
    /* Another process may have started this segment after we attached: the file decides, not the table. */
    const int opened = open_file(segments, id, 0);
    if (opened < 0) {
        return -opened;
    }
    int surplus = -1, idle = -1;
    pthread_mutex_lock(&segments->mutex);
    segment = find_locked(segments, id);
    if (segment == NULL) {
        segment = insert_locked(segments, id);
    }
    if (segment == NULL) {
        surplus = opened;
    } else {
        if (segment->fd >= 0) {
            surplus = opened; /* another thread was faster */
        } else {
            segment->fd = opened;
            segments->n_open++;
        }
        segment->n_users++;
        *fd = segment->fd;
        idle = take_idle_locked(segments);
    }
    pthread_mutex_unlock(&segments->mutex);
    close_fd(segments, surplus);
    close_fd(segments, idle);
    return *fd >= 0 ? 0 : ENOMEM;
}

void firni_segment_leave(firni_segments *segments, uint32_t id)
{
    int fd = -1;
    pthread_mutex_lock(&segments->mutex);
    firni_segment *segment = find_locked(segments, id);
    assert(segment != NULL && segment->n_users > 0);
    segment->n_users--;
    if (segment->n_users == 0 && segment->is_removed) {
        fd = remove_locked(segments, segment);
    }
    pthread_mutex_unlock(&segments->mutex);
    close_fd(segments, fd);
}

/* ---- life of a file ---------------------------------------------------------------------------------------------- */

/* Refreshes what the file occupies. When the system will not say, `guess_bytes` more. */
static void measure(firni_segments *segments, uint32_t id, int fd, uint64_t guess_bytes)
{
    const firn_io *io = firni_io(segments->env);
    firn_io_stat stat;
    const bool known = io->stat(io->ctx, fd, &stat) == 0;
    pthread_mutex_lock(&segments->mutex);
    firni_segment *segment = find_locked(segments, id);
    assert(segment != NULL);
    set_physical_locked(segments, segment, known ? stat.physical_bytes : segment->physical_bytes + guess_bytes);
    pthread_mutex_unlock(&segments->mutex);
}

firni_code firni_segments_adopt(firni_segments *segments, uint32_t id, uint64_t end)
{
    const firn_io *io = firni_io(segments->env);
    int fd;
    firni_code code = firni_segment_use(segments, id, &fd);
    if (code != 0) {
        return code;
    }
    firn_io_stat stat;
    code = -io->stat(io->ctx, fd, &stat);
    end = code == 0 && end == FIRNI_SEGMENT_WHOLE ? stat.size_bytes : end;
    if (code == 0 && stat.size_bytes > end && !segments->read_only) {
        /* Written, but never named by the index: the process died in between. The bytes go, the range stays used. */
        const int punched = io->punch(io->ctx, fd, end, stat.size_bytes - end);
        if (punched < 0 && punched != -EOPNOTSUPP) {
            code = -punched;
        } else {
            code = -io->stat(io->ctx, fd, &stat);
        }
    }
    if (code == 0) {
        pthread_mutex_lock(&segments->mutex);
        firni_segment *segment = find_locked(segments, id);
        set_physical_locked(segments, segment, stat.physical_bytes);
        segment->is_inherited = !segments->read_only;
        segment->end = firni_round_up(stat.size_bytes > end ? stat.size_bytes : end, FIRNI_RECORD_ALIGN);
        pthread_mutex_unlock(&segments->mutex);
    }
    firni_segment_leave(segments, id);
    return code;
}

firni_code firni_segments_create(firni_segments *segments, uint32_t id)
{
    assert(!segments->read_only);
    const int fd = open_file(segments, id, O_CREAT | O_EXCL);
    if (fd < 0) {
        return -fd;
    }
    const firn_io *io = firni_io(segments->env);
    firni_code code = -io->sync_dir(io->ctx, segments->dir);
    if (code == 0) {
        pthread_mutex_lock(&segments->mutex);
        assert(find_locked(segments, id) == NULL);
        firni_segment *segment = insert_locked(segments, id);
        if (segment != NULL) {
            segment->fd = fd;
            segments->n_open++;
        }
        code = segment != NULL ? 0 : ENOMEM;
        pthread_mutex_unlock(&segments->mutex);
    }
    if (code != 0) {
        char path[FIRNI_DISK_PATH_MAX];
        segment_path(segments, id, path);
        close_fd(segments, fd);
        (void)io->unlink(io->ctx, path);
    }
    return code;
}

/* Writes all of iov at offset, going on after a short write. */
static firni_code write_all(const firn_io *io, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    struct iovec rest[FIRNI_IOV_MAX];
    assert(n_iov > 0 && n_iov <= FIRNI_IOV_MAX);
    memcpy(rest, iov, n_iov * sizeof rest[0]);
    uint32_t first = 0;
    while (first < n_iov) {
        int64_t n_written = io->pwritev(io->ctx, fd, rest + first, n_iov - first, offset);
        if (n_written <= 0) {
            return n_written < 0 ? (firni_code)-n_written : EIO;
        }
        offset += (uint64_t)n_written;
        while (first < n_iov && (uint64_t)n_written >= rest[first].iov_len) {
            n_written -= (int64_t)rest[first].iov_len;
            first++;
        }
        if (n_written > 0) {
            rest[first].iov_base = (char *)rest[first].iov_base + n_written;
            rest[first].iov_len -= (size_t)n_written;
        }
    }
    return 0;
}

firni_code firni_segment_append(firni_segments *segments, uint32_t id, const struct iovec *iov, uint32_t n_iov,
                                uint64_t n_bytes, uint64_t *offset)
{
    int fd;
    firni_code code = firni_segment_use(segments, id, &fd);
    if (code != 0) {
        *offset = firni_segment_end(segments, id);
        return code;
    }
    pthread_mutex_lock(&segments->mutex);
    firni_segment *segment = find_locked(segments, id);
    *offset = segment->end;
    segment->end += n_bytes;
    segment->is_unsynced = true;
    pthread_mutex_unlock(&segments->mutex);
    assert(*offset % FIRNI_RECORD_ALIGN == 0 && n_bytes % FIRNI_RECORD_ALIGN == 0);
    code = write_all(firni_io(segments->env), fd, iov, n_iov, *offset);
    measure(segments, id, fd, n_bytes);
    firni_segment_leave(segments, id);
    return code;
}

firni_code firni_segment_sync(firni_segments *segments, uint32_t id)
{
    int fd;
    firni_code code = firni_segment_use(segments, id, &fd);
    if (code != 0) {
        return code;
    }
    const firn_io *io = firni_io(segments->env);
    code = -io->datasync(io->ctx, fd);
    if (code == 0) {
        pthread_mutex_lock(&segments->mutex);
        firni_segment *segment = find_locked(segments, id);
        segment->is_unsynced = false;
        segment->is_inherited = false;
        pthread_mutex_unlock(&segments->mutex);
    }
    firni_segment_leave(segments, id);
    return code;
}

firni_code firni_segments_sync_all(firni_segments *segments)
{
    for (;;) {
        uint32_t id = 0;
        pthread_mutex_lock(&segments->mutex);
        for (uint32_t i = 0; i < segments->n && id == 0; i++) {
            const firni_segment *segment = &segments->list[i];
            id = (segment->is_unsynced || segment->is_inherited) && !segment->is_removed ? segment->id : 0;
        }
        pthread_mutex_unlock(&segments->mutex);
        if (id == 0) {
            return 0;
        }
        const firni_code code = firni_segment_sync(segments, id);
        if (code != 0) {
            return code;
        }
    }
}

firni_code firni_segment_punch(firni_segments *segments, const firni_place *place)
{
    int fd;
    firni_code code = firni_segment_use(segments, place->segment, &fd);
    if (code != 0) {
        return code == ENOENT ? 0 : code; /* without its file there is nothing to give back */
    }
    const firn_io *io = firni_io(segments->env);
    code = -io->punch(io->ctx, fd, place->offset, place->n_bytes);
    measure(segments, place->segment, fd, 0);
    firni_segment_leave(segments, place->segment);
    return code;
}

firni_code firni_segment_unlink(firni_segments *segments, uint32_t id)
{
    char path[FIRNI_DISK_PATH_MAX];
    segment_path(segments, id, path);
    const firn_io *io = firni_io(segments->env);
    const firni_code code = -io->unlink(io->ctx, path);
    if (code != 0 && code != ENOENT) {
        return code;
    }
    int fd = -1;
    pthread_mutex_lock(&segments->mutex);
    firni_segment *segment = find_locked(segments, id);
    if (segment != NULL && segment->n_users == 0) {
        fd = remove_locked(segments, segment);
    } else if (segment != NULL) {
        segment->is_removed = true;
    }
    pthread_mutex_unlock(&segments->mutex);
    close_fd(segments, fd);
    return 0;
}

uint32_t firni_segments_count(firni_segments *segments)
{
    pthread_mutex_lock(&segments->mutex);
    const uint32_t n = segments->n;
    pthread_mutex_unlock(&segments->mutex);
    return n;
}

uint32_t firni_segment_next(firni_segments *segments, uint32_t after)
{
    pthread_mutex_lock(&segments->mutex);
    const uint32_t at = lower_bound(segments, after + 1);
    const uint32_t id = at < segments->n ? segments->list[at].id : 0;
    pthread_mutex_unlock(&segments->mutex);
    return id;
}

void firni_segments_measure(firni_segments *segments)
{
    const firn_io *io = firni_io(segments->env);
    uint32_t id = 0;
    for (;;) {
        id = firni_segment_next(segments, id);
        if (id == 0) {
            return;
        }
        char path[FIRNI_DISK_PATH_MAX];
        firn_io_stat stat;
        segment_path(segments, id, path);
        if (io->stat_path(io->ctx, path, &stat) == 0) {
            pthread_mutex_lock(&segments->mutex);
            firni_segment *segment = find_locked(segments, id);
            if (segment != NULL) {
                set_physical_locked(segments, segment, stat.physical_bytes);
            }
            pthread_mutex_unlock(&segments->mutex);
        }
    }
}

uint64_t firni_segment_end(firni_segments *segments, uint32_t id)
{
    pthread_mutex_lock(&segments->mutex);
    const firni_segment *segment = find_locked(segments, id);
    const uint64_t end = segment != NULL ? segment->end : 0;
    pthread_mutex_unlock(&segments->mutex);
    return end;
}

uint64_t firni_segments_physical_bytes(firni_segments *segments)
{
    pthread_mutex_lock(&segments->mutex);
    const uint64_t physical_bytes = segments->physical_bytes;
    pthread_mutex_unlock(&segments->mutex);
    return physical_bytes;
}
