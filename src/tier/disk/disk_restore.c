/*
 * Restores: the records of a handle, read into fresh blocks, verified, and made into caches.
 *
 *   1. allocate everything: blocks of all layers, headers, caches;
 *   2. read: one header and one part per layer for each record, straight into the blocks; records that lie one behind
 *      the other share a read;
 *   3. verify each record as its read completes, while others are in flight;
 *   4. adopt the blocks, read the attachments.
 *
 *      file      | header | layer 0 | layer 1 | header | layer 0 | layer 1 |        two adjacent records, one read
 *                    |         |         |        |         |         |
 *      iovec       headers  blocks[0] blocks[1] headers  blocks[0] blocks[1]
 *                   [0]      [0]       [0]       [1]      [1]       [1]
 *
 * All or nothing: whatever fails, everything is released and the reason returned. Until read_batch has come back the
 * kernel may write into the blocks, so nothing is released before.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "array/array_impl.h"
#include "tier/disk/disk_impl.h"

#define READ_BYTES_MAX (UINT64_C(8) << 20) /* of one read: large enough for the device, small enough to overlap */

typedef struct restore_job {
    firni_disk *disk;
    firni_volume *volume;
    firn_tier_handle *handle;
    uint32_t n_tokens, n_records;
    firn_block **blocks;     /* [n_layers][n_records] */
    uint8_t *headers;        /* [n_records][header_bytes] */
    firni_section *sections; /* of the record that is being verified */
    firn_cache **caches;     /* [n_layers] */
    firn_token *tokens;
    firn_io_read *reads;
    uint32_t *first_record; /* [n_reads]: of each read; a read has n_iov / (n_layers + 1) records */
    struct iovec *iov;
    uint32_t n_reads;
    firni_code *codes; /* [n_records]: what is wrong with each */
} restore_job;

/* ---- what a bad record means ------------------------------------------------------------------------------------- */

firn_reason firni_disk_bad_record(firni_disk *disk, firni_volume *volume, const firni_key *key,
                                  const firni_entry *entry, firni_code code)
{
    if (code != FIRNI_CODE_CORRUPT && code != ENOENT) {
        return firni_disk_failed(disk, volume, code, "reading a record");
    }
    /* The writer, perhaps another process, may have taken the record away under the read. */
    MDB_txn *txn = NULL;
    firni_entry now;
    firni_code found = firni_index_begin(&volume->index, true, &txn);
    if (found == 0) {
        found = firni_index_get(&volume->index, txn, key, &now);
    }
    mdb_txn_abort(txn);
    if (found == MDB_NOTFOUND || (found == 0 && !firni_place_equal(&now.place, &entry->place))) {
        return FIRN_REASON_GONE;
    }
    firni_disk_suspect(disk, key, &entry->place);
    firni_log(disk->env, FIRN_LOG_WARN, "disk tier %s: a record in segment %u at %llu does not verify; quarantined",
              disk->dir, entry->place.segment, (unsigned long long)entry->place.offset);
    return FIRN_REASON_CORRUPT;
}

/* Everything that the header says about itself, against what the index said and what was asked for. The tokens are
 * compared as such: equal digests are not taken for equal prompts. */
bool firni_disk_header_fits(const firni_disk *disk, const firni_record *record, const firni_entry *entry,
                            const firni_key *key, const firn_digest *ns)
{
    firn_token tokens[FIRN_BLOCK_TOKENS];
    const firn_digest parent = firni_key_parent(key);
    const uint32_t n_tokens = firni_key_tokens(key, tokens);
    return record->kind == entry->kind && record->first_token == entry->first_token && record->n_tokens == n_tokens &&
           record->n_tokens == entry->n_tokens && firni_digest_equal(&record->digest, &entry->digest) &&
           firni_digest_equal(&record->parent, &parent) && firni_digest_equal(&record->ns, ns) &&
           firni_digest_equal(&record->identity, &disk->options.schema->identity) &&
           (n_tokens == 0 || memcmp(record->tokens, tokens, n_tokens * sizeof tokens[0]) == 0);
}

/* ---- 1. memory --------------------------------------------------------------------------------------------------- */

/* The blocks of one layer are neighbours in the list, as firn_row_view wants them. */
static firn_block **layer_blocks(const restore_job *job, uint32_t layer)
{
    return job->blocks + (size_t)layer * job->n_records;
}

/* False: something was refused; release() frees what there is. */
static bool allocate(restore_job *job)
{
    const firni_disk *disk = job->disk;
    const firn_env *env = disk->env;
    const firni_plan *plan = &disk->plan;
    const size_t n = job->n_records;
    job->caches = firni_calloc(env, plan->n_layers, sizeof *job->caches);
    job->blocks = firni_calloc(env, n * plan->n_layers, sizeof *job->blocks);
    job->headers = firni_alloc_aligned(env, n * plan->header_bytes, FIRNI_RECORD_ALIGN);
    job->sections = firni_calloc(env, plan->n_sections, sizeof *job->sections);
    job->tokens = firni_calloc(env, job->n_tokens, sizeof *job->tokens);
    job->reads = firni_calloc(env, n, sizeof *job->reads);
    job->first_record = firni_calloc(env, n, sizeof *job->first_record);
    job->codes = firni_calloc(env, n, sizeof *job->codes);
    job->iov = firni_calloc(env, n * (plan->n_layers + 1), sizeof *job->iov);
    if (job->caches == NULL || job->blocks == NULL || job->headers == NULL || job->sections == NULL ||
        job->tokens == NULL || job->reads == NULL || job->first_record == NULL || job->codes == NULL ||
        job->iov == NULL) {
        return false;
    }
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        if (firn_cache_create(&disk->options.schema->layers[layer], disk->options.pool, env, &job->caches[layer],
                              NULL) != FIRN_OK) {
            return false;
        }
        for (uint32_t i = 0; i < n; i++) {
            /* Undefined memory will do: the read fills it, and verifying zeroes what no section covers. */
            if (firni_block_alloc_undefined(disk->options.pool, plan->layers[layer].block_bytes,
                                            &layer_blocks(job, layer)[i], NULL) != FIRN_OK) {
                return false;
            }
        }
    }
    return true;
}

/* Gives back what the caller does not get. */
static void release(restore_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firn_env *env = job->disk->env;
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        for (uint32_t i = 0; job->blocks != NULL && i < job->n_records; i++) {
            firn_block_release(layer_blocks(job, layer)[i]);
        }
        if (job->caches != NULL) {
            firn_cache_destroy(job->caches[layer]);
        }
    }
    firni_free(env, job->caches);
    firni_free(env, job->blocks);
    firni_free(env, job->headers);
    firni_free(env, job->sections);
    firni_free(env, job->tokens);
    firni_free(env, job->reads);
    firni_free(env, job->first_record);
    firni_free(env, job->codes);
    firni_free(env, job->iov);
}

/* ---- 2. reading -------------------------------------------------------------------------------------------------- */

/* Records of one store lie one behind the other, unless a segment ended between them. */
static bool follows(const firni_place *a, const firni_place *b)
{
    return a->segment == b->segment && a->offset + a->n_bytes == b->offset;
}

/* Lays out the reads: a record joins the read of the one before when it lies right behind it. What cannot be read at
 * all has its code afterwards, and no read. */
static void plan_reads(restore_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firni_entry *entries = job->handle->entries;
    const uint32_t n_parts = plan->n_layers + 1;
    for (uint32_t i = 0; i < job->n_records; i++) {
        struct iovec *iov = job->iov + (size_t)i * n_parts;
        iov[0] =
            (struct iovec){ .iov_base = job->headers + (size_t)i * plan->header_bytes, .iov_len = plan->header_bytes };
        for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
            iov[1 + layer] = (struct iovec){ .iov_base = firn_block_data(layer_blocks(job, layer)[i]),
                                             .iov_len = plan->layers[layer].block_bytes };
        }
        if (entries[i].place.n_bytes != plan->record_bytes) {
            job->codes[i] = FIRNI_CODE_CORRUPT;
            continue;
        }
        firn_io_read *last = job->n_reads > 0 ? &job->reads[job->n_reads - 1] : NULL;
        const uint32_t n_in_last = last != NULL ? last->n_iov / n_parts : 0;
        if (last != NULL && job->first_record[job->n_reads - 1] + n_in_last == i &&
            follows(&entries[i - 1].place, &entries[i].place) && last->n_iov + n_parts <= FIRNI_IOV_MAX &&
            (n_in_last + 1) * plan->record_bytes <= READ_BYTES_MAX) {
            last->n_iov += n_parts;
            continue;
        }
        int fd;
        job->codes[i] = firni_segment_use(&job->volume->segments, entries[i].place.segment, &fd);
        if (job->codes[i] == 0) {
            job->reads[job->n_reads] = (firn_io_read){
                .fd = fd, .offset = entries[i].place.offset, .iov = iov, .n_iov = n_parts, .result = -EIO
            };
            job->first_record[job->n_reads++] = i;
        }
    }
}

/* Each read has its own use of its segment. */
static void leave_segments(const restore_job *job)
{
    for (uint32_t r = 0; r < job->n_reads; r++) {
        const uint32_t record = job->first_record[r];
        firni_segment_leave(&job->volume->segments, job->handle->entries[record].place.segment);
    }
}

/* ---- 3. verifying ------------------------------------------------------------------------------------------------ */

/* Header first: it says what the checksums of the planes are. */
static bool verify_record(restore_job *job, uint32_t i)
{
    const firni_plan *plan = &job->disk->plan;
    const uint8_t *header = job->headers + (size_t)i * plan->header_bytes;
    firni_record record;
    const firni_key key = firni_handle_key(job->handle, i);
    if (firni_record_decode(header, plan->header_bytes, plan->record_bytes, job->sections, plan->n_sections, &record,
                            NULL) != FIRN_OK ||
        !firni_disk_header_fits(job->disk, &record, &job->handle->entries[i], &key, &job->handle->ns) ||
        !firni_plan_matches(plan, &record)) {
        return false;
    }
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        if (!firni_plan_verify_layer(plan, layer, firn_block_data(layer_blocks(job, layer)[i]), record.sections)) {
            return false;
        }
    }
    return true;
}

/* One read has completed. Every record is looked at, also when another is bad: all that are damaged are found at once,
 * and written anew by the next store. */
static void on_read(void *ctx, uint32_t index)
{
    restore_job *job = ctx;
    const firn_io_read *read = &job->reads[index];
    const uint32_t first = job->first_record[index];
    const uint32_t n_records = read->n_iov / (job->disk->plan.n_layers + 1);
    for (uint32_t i = 0; i < n_records; i++) {
        const uint64_t n_needed = (i + 1) * job->disk->plan.record_bytes;
        if (read->result < 0) {
            job->codes[first + i] = (firni_code)-read->result;
        } else if ((uint64_t)read->result < n_needed || !verify_record(job, first + i)) {
            job->codes[first + i] = FIRNI_CODE_CORRUPT;
        }
    }
}

/* NONE, or what is wrong with the first bad record; all of them are noted. */
static firn_reason judge_records(restore_job *job)
{
    firn_reason first = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < job->n_records; i++) {
        if (job->codes[i] != 0) {
            const firni_key key = firni_handle_key(job->handle, i);
            const firn_reason reason =
                firni_disk_bad_record(job->disk, job->volume, &key, &job->handle->entries[i], job->codes[i]);
            first = first == FIRN_REASON_NONE ? reason : first;
        }
    }
    return first;
}

/* ---- 4. the restore ---------------------------------------------------------------------------------------------- */

/* Steps 1 to 4 for the caches; the attachments are read by the caller. */
static firn_reason read_records(restore_job *job)
{
    firni_disk *disk = job->disk;
    if (job->n_records == 0) {
        return FIRN_REASON_NONE;
    }
    if (!allocate(job)) {
        return FIRN_REASON_NO_MEMORY;
    }
    plan_reads(job);
    const firn_io *io = firni_io(disk->env);
    const firni_code code = -io->read_batch(io->ctx, job->reads, job->n_reads, on_read, job);
    leave_segments(job);
    if (code != 0) {
        return firni_disk_failed(disk, job->volume, code, "reading records");
    }
    const firn_reason reason = judge_records(job);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    for (uint32_t layer = 0; layer < disk->plan.n_layers; layer++) {
        const firn_row_view view = { .blocks = layer_blocks(job, layer),
                                     .n_blocks = job->n_records,
                                     .n_tokens = job->n_tokens };
        const firn_status status = firn_cache_adopt_row(job->caches[layer], &view, NULL);
        if (status != FIRN_OK) {
            /* What else can be wrong with blocks that verified: more tokens than the layer's context bound. */
            return status == FIRN_ERR_NO_MEMORY ? FIRN_REASON_NO_MEMORY : FIRN_REASON_COUNT_MISMATCH;
        }
    }
    memcpy(job->tokens, job->handle->tokens, job->n_tokens * sizeof *job->tokens);
    return FIRN_REASON_NONE;
}

/* Hands over tokens and caches only when everything is there. */
static firn_reason restore(restore_job *job, firn_restored *out)
{
    firni_disk *disk = job->disk;
    *out = (firn_restored){ .env = disk->env, .n_tokens = job->n_tokens };
    firn_reason reason = read_records(job);
    if (reason == FIRN_REASON_NONE) {
        reason = firni_object_restore(disk, job->volume, job->handle, job->n_tokens, out);
    }
    if (reason == FIRN_REASON_NONE) {
        out->tokens = job->tokens;
        out->caches = job->caches;
        out->n_caches = job->n_records > 0 ? disk->plan.n_layers : 0;
        out->n_bytes_read += job->n_records * disk->plan.record_bytes;
        job->tokens = NULL;
        job->caches = NULL;
    } else {
        firn_restored_deinit(out);
    }
    release(job);
    return reason;
}

/* A read that went through proves the device well again, if it was a read that had failed. */
static void count_restore(firni_disk *disk, firn_reason reason, const firn_restored *restored)
{
    pthread_mutex_lock(&disk->mutex);
    if (reason == FIRN_REASON_NONE) {
        disk->stats.read_bytes += restored->n_bytes_read;
        if (disk->stats.state == FIRN_REASON_IO_ERROR) {
            disk->stats.state = FIRN_REASON_NONE;
        }
    } else {
        disk->stats.n_misses++;
        disk->stats.miss_reasons[reason]++;
    }
    pthread_mutex_unlock(&disk->mutex);
}

firn_reason firni_disk_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    firni_disk *disk = firni_disk_of(tier);
    *out = (firn_restored){ 0 };
    restore_job job = { .disk = disk, .handle = handle };
    job.n_tokens = n_tokens == 0 ? handle->prefix_len : n_tokens;
    assert(job.n_tokens <= handle->prefix_len);
    job.n_records = (job.n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    firn_reason reason;
    job.volume = firni_disk_enter(disk, false, &reason);
    if (job.volume != NULL) {
        reason = job.volume->generation == handle->generation ? restore(&job, out) : FIRN_REASON_GONE;
        firni_disk_leave(disk, job.volume);
    }
    count_restore(disk, reason, out);
    return reason;
}
