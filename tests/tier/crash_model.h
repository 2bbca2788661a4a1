/*
 * A disk that loses power. From the log of a run (libc_seam.h) and a moment in it, one of the states that the disk may
 * be found in afterwards.
 *
 * What is certain of a file is what was written before its last sync, and that it is there once its directory was
 * synced after its creation. Of everything later any part may have arrived, in any order: each write whole, not at all,
 * or torn at sectors or pages; each hole, creation and removal. A file may also have grown without its bytes.
 *
 *      write A, sync, write B, write C, punch D     crash: A, and any subset of the units of B, C and D, in their order
 *
 * Harsher than file systems are: none promises less than this, and most promise more.
 */
#ifndef FIRN_TESTS_CRASH_MODEL_H
#define FIRN_TESTS_CRASH_MODEL_H

#include "support/support.h"
#include "tier/libc_seam.h"

typedef enum crash_manner {
    CRASH_KEEP,     /* all that was written arrived: the process died, the power did not fail */
    CRASH_DROP,     /* nothing that was not synced */
    CRASH_WRITES,   /* each write whole or not */
    CRASH_SECTORS,  /* torn at 512 bytes */
    CRASH_PAGES,    /* torn at 4096 bytes */
    CRASH_MANNERS
} crash_manner;

static const char *const crash_manner_names[CRASH_MANNERS] = { "keep", "drop", "writes", "sectors", "pages" };

/* Whether a name is in its directory. */
typedef enum crash_link { CRASH_ABSENT, CRASH_COMING, CRASH_THERE, CRASH_GOING } crash_link;

typedef struct crash_file {
    crash_link link;
    uint8_t *bytes; /* certain */
    uint64_t n_bytes, capacity;
    uint32_t *pending; /* ops since the last sync */
    uint32_t n_pending, pending_capacity;
} crash_file;

typedef struct crash_model {
    const seam_log *log;
    uint32_t n_applied; /* ops of the log so far */
    crash_file files[SEAM_FILES_MAX];
    uint8_t *scratch;   /* one file of an image */
    uint64_t n_scratch, scratch_capacity;
} crash_model;

static inline void crash_reserve(uint8_t **bytes, uint64_t *capacity, uint64_t n)
{
    if (n > *capacity) {
        const uint64_t grown = n + n / 2 + 65536;
        *bytes = realloc(*bytes, grown);
        assert_non_null(*bytes);
        memset(*bytes + *capacity, 0, grown - *capacity);
        *capacity = grown;
    }
}

/* Sets the size; what a file grows by reads as zeros. */
static inline void crash_resize(uint8_t **bytes, uint64_t *n_bytes, uint64_t *capacity, uint64_t n)
{
    crash_reserve(bytes, capacity, n);
    if (n < *n_bytes) {
        memset(*bytes + n, 0, *n_bytes - n);
    }
    *n_bytes = n;
}

static inline void crash_model_init(crash_model *model, const seam_log *log)
{
    memset(model, 0, sizeof *model);
    model->log = log;
}

static inline void crash_model_deinit(crash_model *model)
{
    for (uint32_t i = 0; i < SEAM_FILES_MAX; i++) {
        free(model->files[i].bytes);
        free(model->files[i].pending);
    }
    free(model->scratch);
}

/* Performs a unit of a write, or a hole, on some bytes. */
static inline void crash_apply_range(const crash_model *model, const seam_op *op, uint64_t from, uint64_t n,
                                     uint8_t **bytes, uint64_t *n_bytes, uint64_t *capacity)
{
    const uint64_t end = op->offset + from + n;
    if (op->kind == SEAM_WRITE) {
        if (end > *n_bytes) {
            crash_resize(bytes, n_bytes, capacity, end);
        }
        memcpy(*bytes + op->offset + from, model->log->arena + op->at + from, n);
    } else if (op->offset + from < *n_bytes) {
        memset(*bytes + op->offset + from, 0, (end < *n_bytes ? end : *n_bytes) - op->offset - from);
    }
}

static inline void crash_sync(crash_model *model, crash_file *file)
{
    for (uint32_t i = 0; i < file->n_pending; i++) {
        const seam_op *op = &model->log->ops[file->pending[i]];
        if (op->kind == SEAM_TRUNCATE) {
            crash_resize(&file->bytes, &file->n_bytes, &file->capacity, op->offset);
        } else {
            crash_apply_range(model, op, 0, op->n_bytes, &file->bytes, &file->n_bytes, &file->capacity);
        }
    }
    file->n_pending = 0;
}

/* Whether the file lies in this directory, not deeper. */
static inline bool crash_lies_in(const char *name, const char *dir)
{
    const size_t n = strlen(dir);
    const char *rest = name + n + (n > 0);
    return name[0] != '\0' && strncmp(name, dir, n) == 0 && (n == 0 || name[n] == '/') && strchr(rest, '/') == NULL;
}

static inline void crash_sync_dir(crash_model *model, uint32_t dir)
{
    for (uint32_t i = 0; i < model->log->n_files; i++) {
        crash_file *file = &model->files[i];
        if (file->link != CRASH_ABSENT && crash_lies_in(model->log->files[i].name, model->log->files[dir].name)) {
            file->link = file->link == CRASH_GOING ? CRASH_ABSENT : CRASH_THERE;
        }
    }
}

/* The next op of the log. */
static inline const seam_op *crash_step(crash_model *model)
{
    const uint32_t index = model->n_applied++;
    const seam_op *op = &model->log->ops[index];
    crash_file *file = &model->files[op->file];
    switch (op->kind) {
    case SEAM_CREATE:
    case SEAM_MKDIR: file->link = CRASH_COMING; break;
    case SEAM_UNLINK: file->link = CRASH_GOING; break;
    case SEAM_SYNC: crash_sync(model, file); break;
    case SEAM_SYNC_DIR: crash_sync_dir(model, op->file); break;
    case SEAM_WRITE:
    case SEAM_TRUNCATE:
    case SEAM_PUNCH:
        if (file->n_pending == file->pending_capacity) {
            file->pending_capacity = 2 * file->pending_capacity + 64;
            file->pending = realloc(file->pending, file->pending_capacity * sizeof *file->pending);
            assert_non_null(file->pending);
        }
        file->pending[file->n_pending++] = index;
        break;
    case SEAM_MARK: break;
    }
    return op;
}

static inline bool crash_keeps(crash_manner manner, test_rng *rng)
{
    return manner == CRASH_KEEP || (manner != CRASH_DROP && test_rng_below(rng, 2) == 0);
}

/* The file's bytes into the scratch. */
static inline void crash_make_bytes(crash_model *model, const crash_file *file, crash_manner manner, test_rng *rng)
{
    crash_resize(&model->scratch, &model->n_scratch, &model->scratch_capacity, 0);
    crash_resize(&model->scratch, &model->n_scratch, &model->scratch_capacity, file->n_bytes);
    if (file->n_bytes > 0) {
        memcpy(model->scratch, file->bytes, file->n_bytes);
    }
    for (uint32_t i = 0; i < file->n_pending; i++) {
        const seam_op *op = &model->log->ops[file->pending[i]];
        const uint64_t unit = manner == CRASH_SECTORS ? 512 : manner == CRASH_PAGES ? 4096 : op->n_bytes;
        if (op->kind == SEAM_TRUNCATE) {
            if (crash_keeps(manner, rng)) {
                crash_resize(&model->scratch, &model->n_scratch, &model->scratch_capacity, op->offset);
            }
            continue;
        }
        for (uint64_t from = 0; from < op->n_bytes;) {
            /* Units lie at multiples of their size in the file, wherever the write began. */
            const uint64_t edge = op->n_bytes == unit ? unit : unit - (op->offset + from) % unit;
            const uint64_t n = op->n_bytes - from < edge ? op->n_bytes - from : edge;
            if (op->is_dsync || crash_keeps(manner, rng)) {
                crash_apply_range(model, op, from, n, &model->scratch, &model->n_scratch, &model->scratch_capacity);
            } else if (op->kind == SEAM_WRITE && op->offset + from + n > model->n_scratch && crash_keeps(manner, rng)) {
                crash_resize(&model->scratch, &model->n_scratch, &model->scratch_capacity, op->offset + from + n);
            }
            from += n;
        }
    }
}

/* Zeros become holes: an image takes no more room than its bytes. */
static inline void crash_write_file(const crash_model *model, const char *path)
{
    static const uint8_t zeros[4096];
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)model->n_scratch), 0);
    for (uint64_t at = 0; at < model->n_scratch; at += sizeof zeros) {
        const uint64_t n = model->n_scratch - at < sizeof zeros ? model->n_scratch - at : sizeof zeros;
        if (memcmp(model->scratch + at, zeros, n) != 0) {
            assert_int_equal(pwrite(fd, model->scratch + at, n, (off_t)at), n);
        }
    }
    (void)close(fd);
}

/* Makes the image below an existing empty directory. Directories come before what lies in them: the log has them in
 * that order. */
static inline void crash_make_image(crash_model *model, const char *dir, crash_manner manner, test_rng *rng)
{
    for (uint32_t i = 0; i < model->log->n_files; i++) {
        const crash_file *file = &model->files[i];
        const bool is_there =
            file->link == CRASH_THERE || (file->link == CRASH_COMING && crash_keeps(manner, rng)) ||
            (file->link == CRASH_GOING && !crash_keeps(manner, rng));
        char path[900], parent[900];
        (void)snprintf(path, sizeof path, "%s/%s", dir, model->log->files[i].name);
        (void)snprintf(parent, sizeof parent, "%s", path);
        *strrchr(parent, '/') = '\0';
        if (!is_there || access(parent, F_OK) != 0) {
            continue; /* with its directory it is lost, too */
        }
        if (model->log->files[i].is_dir) {
            assert_int_equal(mkdir(path, 0700), 0);
        } else {
            crash_make_bytes(model, file, manner, rng);
            crash_write_file(model, path);
        }
    }
}

#endif
