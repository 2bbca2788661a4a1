/*
 * Writes a file of packed weights. Owns the order of things:
 *
 *   1. the lock of the directory, so that one writes or removes at a time
 *   2. whether somebody else has written the file meanwhile; then there is nothing to do
 *   3. room
 *   4. panels, in pieces of 2 MiB, under the partial name; then the head; then sync
 *   5. rename, and sync of the directory
 *
 * A write that ends early, in whatever way, leaves at most a partial file, which the next one removes.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/base_impl.h"
#include "base/xxh3.h"
#include "model/packed_file.h"

#define CHUNKS_PER_SYNC 32u /* 64 MiB: more at once would hold up the reads of others */

/* A write in progress. */
typedef struct packed_writer {
    const firni_packed_write_options *options;
    const firn_env *env;
    const firn_io *io;
    const char *path; /* the partial one */
    int fd;
    firni_packed_head head;
    uint64_t *sums;   /* [n_chunks] */
    uint8_t *piece;   /* a chunk */
    uint8_t *head_bytes;
} packed_writer;

static firn_status write_all(const packed_writer *w, uint8_t *bytes, uint64_t n_bytes, uint64_t offset, firn_error *err)
{
    while (n_bytes > 0) {
        const struct iovec iov = { .iov_base = bytes, .iov_len = (size_t)n_bytes };
        const int64_t n = w->io->pwritev(w->io->ctx, w->fd, &iov, 1, offset);
        if (n <= 0) {
            return firni_fail_os(err, n < 0 ? (int)-n : EIO, "cannot write %s", w->path);
        }
        bytes += n;
        offset += (uint64_t)n;
        n_bytes -= (uint64_t)n;
    }
    return FIRN_OK;
}

/* Copies what of the panels lies in [begin, end) of the file; *entry is the first one that may. */
static void gather(const packed_writer *w, uint64_t begin, uint64_t end, uint32_t *entry)
{
    const firni_packed_entry *entries = w->options->entries;
    for (uint32_t i = *entry; i < w->options->n_entries && entries[i].offset < end; i++) {
        const uint64_t entry_end = entries[i].offset + entries[i].n_bytes;
        const uint64_t from = entries[i].offset > begin ? entries[i].offset : begin;
        const uint64_t to = entry_end < end ? entry_end : end;
        if (from < to) {
            memcpy(w->piece + (from - begin), entries[i].panels + (from - entries[i].offset), (size_t)(to - from));
        }
        *entry = entry_end <= end ? i + 1 : i;
    }
}

static firn_status write_panels(const packed_writer *w, firn_error *err)
{
    uint32_t entry = 0;
    for (uint32_t chunk = 0; chunk < w->head.n_chunks; chunk++) {
        if (atomic_load(w->options->stop)) {
            return firni_fail(err, FIRN_ERR_CANCELLED, "stopped before all was written");
        }
        const uint64_t first = (uint64_t)chunk * FIRNI_PACKED_CHUNK_BYTES;
        uint64_t begin;
        uint64_t end;
        firni_packed_chunk_range(&w->head, chunk, &begin, &end);
        memset(w->piece, 0, (size_t)FIRNI_PACKED_CHUNK_BYTES);
        gather(w, first, end, &entry);
        w->sums[chunk] = XXH3_64bits(w->piece + (begin - first), (size_t)(end - begin));
        firn_status status = write_all(w, w->piece, end - first, first, err);
        if (status == FIRN_OK && (chunk + 1) % CHUNKS_PER_SYNC == 0) {
            const int result = w->io->datasync(w->io->ctx, w->fd);
            status = result < 0 ? firni_fail_os(err, -result, "cannot sync %s", w->path) : FIRN_OK;
        }
        if (status != FIRN_OK) {
            return status;
        }
    }
    return FIRN_OK;
}

/* The head last: until then the file begins with zeros. */
static firn_status write_contents(const packed_writer *w, firn_error *err)
{
    firn_status status = write_panels(w, err);
    if (status == FIRN_OK) {
        firni_packed_head_encode(&w->head, w->options->entries, w->sums, w->head_bytes);
        status = write_all(w, w->head_bytes, w->head.panels_offset, 0, err);
    }
    if (status == FIRN_OK) {
        const int result = w->io->datasync(w->io->ctx, w->fd);
        status = result < 0 ? firni_fail_os(err, -result, "cannot sync %s", w->path) : FIRN_OK;
    }
    return status;
}

static firn_status write_file(packed_writer *w, firn_error *err)
{
    const firni_packed_place *place = w->options->place;
    (void)w->io->unlink(w->io->ctx, w->path); /* of a writer that was killed */
    w->fd = w->io->open(w->io->ctx, w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0) {
        return firni_fail_os(err, -w->fd, "cannot create %s", w->path);
    }
    firn_status status = write_contents(w, err);
    const int closed = w->io->close(w->io->ctx, w->fd);
    if (status == FIRN_OK && closed < 0) {
        status = firni_fail_os(err, -closed, "cannot close %s", w->path);
    }
    if (status == FIRN_OK) {
        const int renamed = w->io->rename(w->io->ctx, w->path, place->path);
        status = renamed < 0 ? firni_fail_os(err, -renamed, "cannot rename %s to %s", w->path, place->path) : FIRN_OK;
    }
    if (status != FIRN_OK) {
        (void)w->io->unlink(w->io->ctx, w->path);
        return status;
    }
    /* Without it the name may be lost with the power, and nothing else. */
    (void)w->io->sync_dir(w->io->ctx, place->dir);
    return FIRN_OK;
}

/* Everything that a write needs, before the directory is touched for it. */
static firn_status write_locked(packed_writer *w, firn_error *err)
{
    const firni_packed_write_options *o = w->options;
    firn_io_stat st;
    if (!o->replaces && w->io->stat_path(w->io->ctx, o->place->path, &st) == 0) {
        return FIRN_OK;
    }
    if (!firni_packed_head_plan(&o->place->source, o->entries, o->n_entries, &w->head)) {
        return firni_fail(err, FIRN_ERR_CAPACITY, "more bytes than a file may have");
    }
    w->sums = firni_calloc(w->env, w->head.n_chunks, sizeof *w->sums);
    w->piece = firni_alloc_aligned(w->env, (size_t)FIRNI_PACKED_CHUNK_BYTES, FIRNI_PACKED_ALIGN);
    w->head_bytes = firni_alloc_aligned(w->env, (size_t)w->head.panels_offset, FIRNI_PACKED_ALIGN);
    firn_status status = w->sums != NULL && w->piece != NULL && w->head_bytes != NULL
                             ? firni_packed_make_room(o->place, w->head.file_bytes, o->bytes_max, err)
                             : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to write %s", w->path);
    if (status == FIRN_OK) {
        status = write_file(w, err);
    }
    firni_free(w->env, w->sums);
    firni_free(w->env, w->piece);
    firni_free(w->env, w->head_bytes);
    return status;
}

firn_status firni_packed_write(const firni_packed_write_options *options, firn_error *err)
{
    const firni_packed_place *place = options->place;
    packed_writer w = {
        .options = options,
        .env = place->env,
        .io = firni_io(place->env),
        .path = place->partial_path,
        .fd = -1,
    };
    const int made = w.io->mkdir(w.io->ctx, place->dir, 0700);
    if (made < 0 && made != -EEXIST) {
        return firni_fail_os(err, -made, "cannot create %s", place->dir);
    }
    const int lock = w.io->open(w.io->ctx, place->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) {
        return firni_fail_os(err, -lock, "cannot create %s", place->lock_path);
    }
    const int locked = w.io->lock(w.io->ctx, lock);
    const firn_status status = locked >= 0       ? write_locked(&w, err)
                               : locked == -EAGAIN ? firni_fail(err, FIRN_ERR_BUSY, "%s: in use", place->lock_path)
                                                   : firni_fail_os(err, -locked, "cannot lock %s", place->lock_path);
    (void)w.io->close(w.io->ctx, lock);
    return status;
}
