/*
 * Maps a file of packed weights: opens it through the seam, checks its head, maps it read-only and shared, and verifies
 * every checksum on all threads. Owns the mapping.
 *
 * A file that somebody cuts off while it is mapped faults on access, as any mapping does; Firn replaces such files by
 * rename, and never writes to one that has its name.
 */
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base_impl.h"
#include "base/xxh3.h"
#include "model/packed_file.h"

#define HUGE_PAGE_BYTES FIRNI_PACKED_CHUNK_BYTES

struct firni_packed {
    const firn_env *env;
    const uint8_t *map;
    firni_packed_head head;
    uint32_t next; /* the entry behind the one that was found last */
};

/* Reserves address space for a piece more, cuts it to where a huge page may begin, and maps the file over it: mmap
 * itself aligns to small pages only. */
static void *map_aligned(int fd, uint64_t n_bytes)
{
    const size_t room_bytes = (size_t)firni_round_up(n_bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES;
    uint8_t *room = mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    const size_t before = (size_t)(firni_round_up((uintptr_t)room, HUGE_PAGE_BYTES) - (uintptr_t)room);
    uint8_t *begin = room + before;
    const size_t used = (size_t)firni_round_up(n_bytes, FIRNI_PACKED_ALIGN);
    if (mmap(begin, (size_t)n_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const int reason = errno;
        (void)munmap(room, room_bytes);
        errno = reason;
        return NULL;
    }
    if (before > 0) {
        (void)munmap(room, before);
    }
    (void)munmap(begin + used, room_bytes - before - used);
    return begin;
}

static firn_status map_file(firni_packed *packed, const firni_packed_place *place, firn_error *err)
{
    const firn_io *io = firni_io(packed->env);
    const int fd = io->open(io->ctx, place->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0) {
        return fd == -ENOENT ? firni_fail(err, FIRN_ERR_NOT_FOUND, "%s: not there yet", place->path)
                             : firni_fail_os(err, -fd, "cannot open %s", place->path);
    }
    firn_io_stat st;
    firn_status status = FIRN_OK;
    const int result = io->stat(io->ctx, fd, &st);
    if (result < 0) {
        status = firni_fail_os(err, -result, "cannot examine %s", place->path);
    } else if (st.size_bytes < FIRNI_PACKED_FIXED_BYTES || st.size_bytes > SIZE_MAX / 2) {
        status = firni_fail(err, FIRN_ERR_FORMAT, "too short (%llu bytes)", (unsigned long long)st.size_bytes);
    } else {
        const void *map = map_aligned(fd, st.size_bytes);
        if (map == NULL) {
            status = firni_fail_os(err, errno, "cannot map %s", place->path);
        } else {
            packed->map = map;
            packed->head.file_bytes = st.size_bytes;
            /* Where the file is not in memory yet it is read in large pieces. */
            (void)madvise((void *)(uintptr_t)map, (size_t)st.size_bytes, MADV_HUGEPAGE);
        }
    }
    (void)io->close(io->ctx, fd); /* the mapping stays */
    return status;
}

typedef struct verify_job {
    const firni_packed *packed;
    atomic_uint first_bad; /* UINT32_MAX: none */
} verify_job;

static void verify_task(void *ctx, uint32_t index, uint32_t thread)
{
    verify_job *job = ctx;
    const firni_packed *packed = job->packed;
    uint64_t begin;
    uint64_t end;
    (void)thread;
    firni_packed_chunk_range(&packed->head, index, &begin, &end);
    if (XXH3_64bits(packed->map + begin, (size_t)(end - begin)) !=
        firni_packed_sum_decode(&packed->head, packed->map, index)) {
        unsigned seen = atomic_load(&job->first_bad);
        while (index < seen && !atomic_compare_exchange_weak(&job->first_bad, &seen, index)) {
        }
    }
}

/* The head before anything that it says is used, then the panels. */
static firn_status verify(firni_packed *packed, const firni_packed_place *place, firn_workers *workers, firn_error *err)
{
    const uint64_t n_bytes = packed->head.file_bytes;
    firn_status status = firni_packed_head_decode(packed->map, n_bytes, n_bytes, &packed->head, err);
    packed->head.file_bytes = n_bytes; /* for munmap, whatever the head says */
    if (status == FIRN_OK) {
        status = firni_packed_head_verify(&packed->head, packed->map, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    if (memcmp(packed->head.source.identity, place->source.identity, sizeof place->source.identity) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "made from another model than its name says");
    }
    verify_job job = { .packed = packed, .first_bad = UINT32_MAX };
    firn_workers_run(workers, packed->head.n_chunks, verify_task, &job);
    const unsigned bad = atomic_load(&job.first_bad);
    return bad == UINT32_MAX ? FIRN_OK
                             : firni_fail(err, FIRN_ERR_CORRUPT, "damaged between bytes %llu and %llu",
                                          (unsigned long long)bad * FIRNI_PACKED_CHUNK_BYTES,
                                          (unsigned long long)(bad + 1ull) * FIRNI_PACKED_CHUNK_BYTES);
}

firn_status firni_packed_map(const firni_packed_place *place, firn_workers *workers, firni_packed **out,
                             firn_error *err)
{
    *out = NULL;
    firni_packed *packed = firni_calloc(place->env, 1, sizeof *packed);
    if (packed == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to map %s", place->path);
    }
    packed->env = place->env;
    firn_status status = map_file(packed, place, err);
    if (status == FIRN_OK) {
        status = verify(packed, place, workers, err);
    }
    if (status != FIRN_OK) {
        firni_packed_unmap(packed);
        return status;
    }
    *out = packed;
    return FIRN_OK;
}

void firni_packed_unmap(firni_packed *packed)
{
    if (packed == NULL) {
        return;
    }
    if (packed->map != NULL) {
        /* munmap takes a plain pointer; nothing is written through it. */
        (void)munmap((void *)(uintptr_t)packed->map, (size_t)packed->head.file_bytes);
    }
    firni_free(packed->env, packed);
}

static bool is_like(const firni_packed_entry *a, const firni_packed_entry *b)
{
    return a->type == b->type && a->n_rows == b->n_rows && a->n_cols == b->n_cols && a->n_each == b->n_each &&
           a->n_bytes == b->n_bytes && strcmp(a->name, b->name) == 0;
}

const uint8_t *firni_packed_find(firni_packed *packed, const firni_packed_entry *wanted)
{
    const uint32_t n = packed->head.n_entries;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t index = (packed->next + i) % n;
        firni_packed_entry entry;
        firni_packed_entry_decode(&packed->head, packed->map, index, &entry);
        if (is_like(&entry, wanted)) {
            packed->next = (index + 1) % n;
            return packed->map + entry.offset;
        }
    }
    return NULL;
}
