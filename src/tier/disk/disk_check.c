/*
 * The books of a store, audited: what every transaction keeps true, checked against a full walk and against the disk.
 *
 * Owns no state; for tests and `firn` inspection. Holds the writer's lock throughout: the tier's own upkeep would
 * change the books between two looks at them.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tier/disk/ledger_impl.h"

typedef struct audited {
    firni_entry entry;
    firn_digest parent;
    firni_which which;
} audited;

typedef struct audit {
    firni_disk *disk;
    firni_volume *volume;
    MDB_txn *txn;
    audited *list;
    uint64_t n, capacity;
    bool has_links;      /* namespaces below namespaces: a use may leave records beside its way untouched */
    uint64_t file_bytes; /* physical, as the directory says */
    bool io_failed;
    firn_error *err;
} audit;

static firn_status fail(const audit *job, const char *what, uint64_t number)
{
    return firni_fail(job->err, FIRN_ERR_CORRUPT, "%s: %s (%" PRIu64 ")", job->disk->dir, what, number);
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* Reads all entries of one table, and checks what can be seen from an entry alone: stamp, tokens, digest. */
static firn_status collect(audit *job, firni_which which)
{
    firni_key key = { .which = which };
    firni_entry entry;
    firni_code code;
    while ((code = firni_index_next(&job->volume->index, job->txn, &key, &entry)) == 0) {
        if (job->n == job->capacity) {
            const uint64_t capacity = job->capacity == 0 ? 256 : 2 * job->capacity;
            audited *grown = firni_grow(job->disk->env, job->list, job->n, capacity, sizeof *grown);
            if (grown == NULL) {
                return firni_fail(job->err, FIRN_ERR_NO_MEMORY, "no memory to check %s", job->disk->dir);
            }
            job->list = grown;
            job->capacity = capacity;
        }
        job->list[job->n++] = (audited){ .entry = entry, .parent = firni_key_parent(&key), .which = which };
        firni_key found;
        firni_entry oldest;
        const firni_rank rank = { .priority = entry.priority, .stamp = entry.stamp };
        if (firni_index_oldest(&job->volume->index, job->txn, rank, &found, &oldest) != 0 ||
            found.which != which || found.n_bytes != key.n_bytes || memcmp(found.bytes, key.bytes, key.n_bytes) != 0) {
            return fail(job, "an entry's stamp does not lead back to it", entry.stamp);
        }
        firn_token tokens[FIRN_BLOCK_TOKENS];
        const uint32_t n_tokens = firni_key_tokens(&key, tokens);
        const firn_digest parent = firni_key_parent(&key);
        const firn_digest digest = firni_chain_record(entry.kind, &parent, tokens, n_tokens);
        if (n_tokens != entry.n_tokens ||
            (!job->volume->index.is_locked && !firni_digest_equal(&digest, &entry.digest))) {
            return fail(job, "an entry's digest is not that of its key", entry.place.offset);
        }
    }
    return code == MDB_NOTFOUND ? FIRN_OK : fail(job, "the index cannot be read", job->n);
}

/* Whether a record begins with the checkpoint's tokens. */
static bool lies_on_record(const audit *job, const firni_key *key)
{
    firni_key cover = *key;
    firni_entry record;
    cover.which = FIRNI_RECORDS;
    return firni_index_get(&job->volume->index, job->txn, &cover, &record) == 0 ||
           (firni_index_next(&job->volume->index, job->txn, &cover, &record) == 0 && cover.n_bytes >= key->n_bytes &&
            memcmp(cover.bytes, key->bytes, key->n_bytes) == 0);
}

/* A checkpoint lies on a record of the chain, or on one of a namespace above it. */
static firn_status check_checkpoints(const audit *job)
{
    firni_key key = { .which = FIRNI_CHECKPOINTS };
    firni_entry entry;
    firni_code code;
    while ((code = firni_index_next(&job->volume->index, job->txn, &key, &entry)) == 0) {
        firni_key other = key;
        firn_digest source = { { 0 } };
        const firn_digest target = firni_key_parent(&key);
        bool lies = lies_on_record(job, &key);
        while (!lies && firni_index_next_source(&job->volume->index, job->txn, &target, &source) == 0) {
            memcpy(other.bytes, source.bytes, sizeof source.bytes);
            lies = lies_on_record(job, &other);
        }
        if (!lies) {
            return fail(job, "a checkpoint has lost the record it lies on", entry.first_token + entry.n_tokens);
        }
    }
    return code == MDB_NOTFOUND ? FIRN_OK : fail(job, "the index cannot be read", job->n);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    const audited *left = a, *right = b;
    return memcmp(left->entry.digest.bytes, right->entry.digest.bytes, FIRN_DIGEST_BYTES);
}

static int by_place(const void *a, const void *b)
{
    const firni_place *left = &((const audited *)a)->entry.place, *right = &((const audited *)b)->entry.place;
    if (left->segment != right->segment) {
        return left->segment < right->segment ? -1 : 1;
    }
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static const audited *find_digest(const audit *job, const firn_digest *digest)
{
    const audited wanted = { .entry = { .digest = *digest } };
    return bsearch(&wanted, job->list, (size_t)job->n, sizeof *job->list, by_digest);
}

static bool goes_before(const firni_entry *a, const firni_entry *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->stamp <= b->stamp;
}

/* The record that a chain goes on from: of the same namespace, or one above it. Where both have it, the one that goes
 * later: a use touches only the one that it found. */
static const audited *find_parent(const audit *job, const audited *child)
{
    const audited *parent = find_digest(job, &child->parent);
    firn_digest source = { { 0 } };
    while ((parent == NULL || goes_before(&parent->entry, &child->entry)) &&
           firni_index_next_source(&job->volume->index, job->txn, &child->parent, &source) == 0) {
        const audited *above = find_digest(job, &source);
        parent = above != NULL ? above : parent;
    }
    return parent;
}

/* Every record but the first of a chain has its parent: a prefix is stored whole or not at all. */
static firn_status check_parents(const audit *job)
{
    for (uint64_t i = 0; i < job->n; i++) {
        const audited *child = &job->list[i];
        const bool is_first = child->entry.first_token == 0;
        const bool is_keyed = child->entry.kind == FIRNI_RECORD_OBJECT && is_first && child->entry.n_tokens == 0;
        const bool is_at_root = job->volume->index.is_locked /* roots are plain, what hangs on them is not */
                                    ? is_first
                                    : firni_digest_equal(&child->parent, &child->entry.root);
        if (is_first != is_at_root && !is_keyed) {
            return fail(job, "a record is not where its chain begins", child->entry.first_token);
        }
        const audited *parent = is_first ? NULL : find_parent(job, child);
        if (!is_first &&
            (parent == NULL || parent->entry.first_token + FIRN_BLOCK_TOKENS != child->entry.first_token)) {
            return fail(job, "a record has lost its parent", child->entry.first_token);
        }
        if (parent != NULL && !job->has_links && goes_before(&parent->entry, &child->entry)) {
            return fail(job, "a parent would be evicted before its child", child->entry.stamp);
        }
    }
    return FIRN_OK;
}

/* Ranges do not overlap, and the segments' counts are their sums. */
static firn_status check_places(const audit *job)
{
    for (uint64_t i = 0; i < job->n;) {
        const uint32_t segment = job->list[i].entry.place.segment;
        firni_segment_info info, found = { 0 };
        for (; i < job->n && job->list[i].entry.place.segment == segment; i++) {
            const firni_place *place = &job->list[i].entry.place;
            if (place->offset < found.end) {
                return fail(job, "two records overlap", place->offset);
            }
            found.end = place->offset + place->n_bytes;
            found.n_records++;
            found.live_bytes += place->n_bytes;
        }
        if (firni_index_get_segment(&job->volume->index, job->txn, segment, &info) != 0 ||
            info.n_records != found.n_records || info.live_bytes != found.live_bytes || info.end < found.end) {
            return fail(job, "a segment's counts are not those of its records", segment);
        }
    }
    return FIRN_OK;
}

static int by_root(const void *a, const void *b)
{
    const audited *left = a, *right = b;
    return memcmp(left->entry.root.bytes, right->entry.root.bytes, FIRN_DIGEST_BYTES);
}

/* Namespaces and identities are there exactly while something is stored under them. */
static firn_status check_roots(const audit *job)
{
    for (uint64_t i = 0; i < job->n;) {
        const firn_digest root = job->list[i].entry.root;
        uint64_t n_found = 0, n_records = 0, n_roots = 0;
        for (; i < job->n && firni_digest_equal(&job->list[i].entry.root, &root); i++) {
            n_found++;
        }
        firn_digest identity;
        char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
        const char *text;
        size_t n_text;
        if (firni_index_get_root(&job->volume->index, job->txn, &root, &identity, ns, &n_records) != 0 ||
            n_records != n_found) {
            return fail(job, "a namespace's count is not that of its records", n_found);
        }
        if (firni_index_get_identity(&job->volume->index, job->txn, &identity, &text, &n_text, &n_roots) != 0 ||
            n_roots == 0) {
            return fail(job, "a namespace has lost its identity", n_found);
        }
    }
    return FIRN_OK;
}

static void add_file(void *ctx, const char *name)
{
    audit *job = ctx;
    char path[FIRNI_DISK_PATH_MAX];
    if (firni_segment_id_of(name) == 0 && firni_ledger_number_of(name) == 0 && strcmp(name, "firn.lock") != 0) {
        return;
    }
    const firn_io *io = firni_io(job->disk->env);
    firn_io_stat stat;
    (void)snprintf(path, sizeof path, "%s/%s", job->disk->dir, name);
    if (io->stat_path(io->ctx, path, &stat) == 0) {
        job->file_bytes += stat.physical_bytes;
    } else {
        job->io_failed = true;
    }
}

/* The count of physical bytes against a fresh look at every file, and against the budget. */
static firn_status check_bytes(audit *job)
{
    const firn_io *io = firni_io(job->disk->env);
    firni_volume_measure_all(job->volume);
    job->file_bytes = firni_index_physical_bytes(&job->volume->index, job->disk->env, job->disk->dir);
    if (io->list_dir(io->ctx, job->disk->dir, add_file, job) != 0 || job->io_failed) {
        return firni_fail(job->err, FIRN_ERR_IO, "cannot read the directory %s", job->disk->dir);
    }
    const uint64_t counted = firni_volume_physical_bytes(job->volume);
    if (job->file_bytes != counted) {
        return firni_fail(job->err, FIRN_ERR_CORRUPT, "%s takes %" PRIu64 " bytes, %" PRIu64 " are counted",
                          job->disk->dir, job->file_bytes, counted);
    }
    if (counted > job->disk->options.budget_bytes) {
        return fail(job, "the budget is exceeded", counted);
    }
    return FIRN_OK;
}

firn_status firn_disk_check(firn_tier *tier, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason;
    audit job = { .disk = disk, .err = err };
    job.volume = firni_disk_enter(disk, false, &reason);
    if (job.volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s cannot be read now (%s)", disk->dir, firn_reason_name(reason));
    }
    firn_status status = FIRN_OK;
    pthread_mutex_lock(&disk->writer);
    if (firni_index_begin(&job.volume->index, true, &job.txn) != 0) {
        status = fail(&job, "the index cannot be read", 0);
    }
    MDB_stat links;
    if (status == FIRN_OK) {
        job.has_links = mdb_stat(job.txn, job.volume->index.links, &links) == 0 && links.ms_entries > 0;
    }
    for (unsigned which = FIRNI_RECORDS; which <= FIRNI_WHICH_LAST && status == FIRN_OK; which++) {
        status = collect(&job, (firni_which)which);
    }
    if (status == FIRN_OK) {
        status = check_checkpoints(&job);
    }
    static int (*const orders[])(const void *a, const void *b) = { by_digest, by_place, by_root };
    static firn_status (*const rules[])(const audit *job) = { check_parents, check_places, check_roots };
    for (unsigned i = 0; i < 3 && status == FIRN_OK && job.n > 0; i++) {
        qsort(job.list, (size_t)job.n, sizeof *job.list, orders[i]);
        status = rules[i](&job);
    }
    mdb_txn_abort(job.txn);
    uint64_t n_counted = atomic_load(&job.volume->n_entries);
    if (status == FIRN_OK && n_counted != job.n) {
        status = fail(&job, "the count of records is wrong", n_counted);
    }
    if (status == FIRN_OK) {
        status = check_bytes(&job);
    }
    pthread_mutex_unlock(&disk->writer);
    firni_free(disk->env, job.list);
    firni_disk_leave(disk, job.volume);
    return status;
}
