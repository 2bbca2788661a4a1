/*
 * Restores: the records of a handle, read into fresh blocks, verified, and made into caches.
 *
 *   1. see that the count can be resumed at, and which checkpoint belongs to it;
 *   2. allocate everything: blocks of all layers, headers, caches;
 *   3. read: one header and one part per image for each record, straight into the blocks; records that lie one behind
 *      the other share a read, and of a record before all windows the images of window layers, its last ones, are left
 *      out;
 *   4. verify each record as its read completes, while others are in flight;
 *   5. adopt the blocks, read the attachments.
 *
 *      file      | header | full | window | header | full | window | header | state |      two blocks and a checkpoint
 *                |--- one read ---|       |------------------ one read -------------|      that begin a store
 *      iovec     headers   blocks          headers   blocks blocks   headers  fixed
 *                 [0]       [0][0]          [1]       [0][1] [1][1]   [2]      [2]
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

/* What is read of one record: its header and its first images. */
typedef struct restore_part {
    const firni_entry *entry;
    const firni_plan_form *form;
    uint32_t n_images;
    uint64_t n_bytes;   /* from the record's start */
    uint32_t first_iov; /* 1 + n_images of them */
    firni_code code;    /* what is wrong with it */
} restore_part;

/* Neighbouring parts that one call reads. */
typedef struct restore_read {
    uint32_t first_part, n_parts;
    uint64_t n_bytes;
} restore_read;

typedef struct restore_job {
    firni_disk *disk;
    firni_volume *volume;
    firn_tier_handle *handle;
    uint32_t n_tokens, n_records;
    bool has_checkpoint;
    firni_entry checkpoint; /* at n_tokens */
    firni_key checkpoint_key;
    restore_part *parts; /* [n_parts]: the records, then the checkpoint */
    uint32_t n_parts;
    firn_block **blocks; /* [n_layers][n_records]: token blocks; NULL where none is read */
    firn_block **fixed;  /* [n_layers] */
    uint8_t *headers;    /* [n_parts], header_bytes apart */
    size_t header_bytes;
    firni_section *sections; /* of the record that is being verified */
    firn_cache **caches;     /* [n_layers] */
    firn_token *tokens;
    firn_io_read *reads;      /* [n_parts]: room for a read of each */
    restore_read *read_parts; /* [n_parts]: what each read covers */
    uint32_t n_reads;
    struct iovec *iov;
    uint64_t n_bytes;
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

/* ---- 1. what is needed ------------------------------------------------------------------------------------------- */

/* The count that was looked up is usable, and its checkpoint pinned. A shorter one has to be asked for, and its
 * checkpoint may vanish. */
static firn_reason choose_checkpoint(restore_job *job)
{
    firni_disk *disk = job->disk;
    firn_tier_handle *handle = job->handle;
    if (job->n_tokens == handle->prefix_len) {
        job->has_checkpoint = handle->has_checkpoint;
        job->checkpoint = handle->checkpoint;
        job->checkpoint_key = handle->checkpoint_key;
        return FIRN_REASON_NONE;
    }
    firni_path path = { .disk = disk, .index = &job->volume->index, .handle = handle };
    path.code = disk->plan.n_fixed > 0 ? firni_index_begin(path.index, true, &path.txn) : 0;
    uint32_t n_usable = 0;
    if (path.code == 0) {
        n_usable = firni_path_usable(&path, job->n_records, job->n_tokens);
    }
    if (path.code == 0 && n_usable == job->n_tokens && disk->plan.n_fixed > 0) {
        const firni_code code = firni_path_checkpoint(&path, job->n_tokens, &job->checkpoint_key, &job->checkpoint);
        job->has_checkpoint = code == 0;
        n_usable = code == 0 ? n_usable : 0;
        path.code = code == MDB_NOTFOUND ? 0 : code;
    }
    mdb_txn_abort(path.txn);
    if (path.code != 0) {
        return firni_disk_failed(disk, job->volume, path.code, "reading the index");
    }
    if (n_usable == job->n_tokens) {
        return FIRN_REASON_NONE;
    }
    return path.obstacle != FIRN_REASON_NONE ? path.obstacle : FIRN_REASON_FAMILY_MISSING;
}

/* Which form each record has, and how much of it is read. Returns the number of iovecs. */
static size_t choose_parts(restore_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firni_families *families = &job->disk->families;
    size_t n_iov = 0;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        restore_part *part = &job->parts[i];
        if (i < job->n_records) {
            part->entry = &job->handle->entries[i];
            const uint32_t n_held = firni_plan_kinds_held(plan, part->entry->n_window);
            const uint32_t n_needed = firni_families_windows_needed(families, job->n_tokens, i);
            assert(n_held >= n_needed); /* or the count would not be usable */
            part->form = &plan->blocks[n_held];
            part->n_images = firni_plan_images(plan, n_needed);
        } else {
            part->entry = &job->checkpoint;
            part->form = &plan->checkpoint;
            part->n_images = plan->checkpoint.n_images;
        }
        part->n_bytes = firni_form_bytes(part->form, part->n_images);
        part->first_iov = (uint32_t)n_iov;
        n_iov += 1 + part->n_images;
        job->n_bytes += part->n_bytes;
        job->header_bytes = part->form->header_bytes > job->header_bytes ? part->form->header_bytes : job->header_bytes;
    }
    return n_iov;
}

/* ---- 2. memory --------------------------------------------------------------------------------------------------- */

/* The blocks of one layer are neighbours in the list, as firn_row_view wants them. */
static firn_block **layer_blocks(const restore_job *job, uint32_t layer)
{
    return job->blocks + (size_t)layer * job->n_records;
}

/* Where the block of a part's image is kept. */
static firn_block **image_slot(const restore_job *job, uint32_t part, uint32_t image)
{
    const uint32_t layer = job->parts[part].form->images[image].layer;
    return part < job->n_records ? &layer_blocks(job, layer)[part] : &job->fixed[layer];
}

static uint8_t *part_header(const restore_job *job, uint32_t part)
{
    return job->headers + part * job->header_bytes;
}

/* Undefined memory will do: the read fills it, and verifying zeroes what no section covers. */
static bool allocate_blocks(restore_job *job)
{
    for (uint32_t i = 0; i < job->n_parts; i++) {
        for (uint32_t k = 0; k < job->parts[i].n_images; k++) {
            if (firni_block_alloc_undefined(job->disk->options.pool, job->parts[i].form->images[k].n_bytes,
                                            image_slot(job, i, k), NULL) != FIRN_OK) {
                return false;
            }
        }
    }
    return true;
}

/* False: something was refused; release() frees what there is. */
static bool allocate(restore_job *job)
{
    const firni_disk *disk = job->disk;
    const firn_env *env = disk->env;
    const firni_plan *plan = &disk->plan;
    job->n_parts = job->n_records + job->has_checkpoint;
    job->parts = firni_calloc(env, job->n_parts, sizeof *job->parts);
    if (job->parts == NULL) {
        return false;
    }
    const size_t n_iov = choose_parts(job);
    uint32_t n_sections = 1;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        n_sections = job->parts[i].form->n_sections > n_sections ? job->parts[i].form->n_sections : n_sections;
    }
    job->caches = firni_calloc(env, plan->n_layers, sizeof *job->caches);
    job->blocks = firni_calloc(env, (size_t)job->n_records * plan->n_layers, sizeof *job->blocks);
    job->fixed = firni_calloc(env, plan->n_layers, sizeof *job->fixed);
    job->headers = firni_alloc_aligned(env, job->n_parts * job->header_bytes, FIRNI_RECORD_ALIGN);
    job->sections = firni_calloc(env, n_sections, sizeof *job->sections);
    job->tokens = firni_calloc(env, job->n_tokens, sizeof *job->tokens);
    job->reads = firni_calloc(env, job->n_parts, sizeof *job->reads);
    job->read_parts = firni_calloc(env, job->n_parts, sizeof *job->read_parts);
    job->iov = firni_calloc(env, n_iov, sizeof *job->iov);
    if (job->caches == NULL || job->blocks == NULL || job->fixed == NULL || job->headers == NULL ||
        job->sections == NULL || job->tokens == NULL || job->reads == NULL || job->read_parts == NULL ||
        job->iov == NULL) {
        return false;
    }
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        if (firn_cache_make_empty(disk->shapes[layer], &job->caches[layer], NULL) != FIRN_OK) {
            return false;
        }
    }
    return allocate_blocks(job);
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
        if (job->fixed != NULL) {
            firn_block_release(job->fixed[layer]);
        }
        if (job->caches != NULL) {
            firn_cache_destroy(job->caches[layer]);
        }
    }
    firni_free(env, job->parts);
    firni_free(env, job->caches);
    firni_free(env, job->blocks);
    firni_free(env, job->fixed);
    firni_free(env, job->headers);
    firni_free(env, job->sections);
    firni_free(env, job->tokens);
    firni_free(env, job->reads);
    firni_free(env, job->read_parts);
    firni_free(env, job->iov);
}

/* ---- 3. reading -------------------------------------------------------------------------------------------------- */

static void fill_iov(const restore_job *job, uint32_t i)
{
    const restore_part *part = &job->parts[i];
    struct iovec *iov = job->iov + part->first_iov;
    iov[0] = (struct iovec){ .iov_base = part_header(job, i), .iov_len = part->form->header_bytes };
    for (uint32_t k = 0; k < part->n_images; k++) {
        iov[1 + k] = (struct iovec){ .iov_base = firn_block_data(*image_slot(job, i, k)),
                                     .iov_len = part->form->images[k].n_bytes };
    }
}

/* Whether part i lies right behind the last part of the read, which then reads on. Records of one store lie one behind
 * the other, unless a segment ended between them; a part that leaves out the end of its record breaks the row. */
static bool joins(const restore_job *job, const restore_read *covered, const firn_io_read *read, uint32_t i)
{
    if (covered->first_part + covered->n_parts != i) {
        return false;
    }
    const restore_part *part = &job->parts[i], *before = &job->parts[i - 1];
    const firni_place *a = &before->entry->place, *b = &part->entry->place;
    return a->segment == b->segment && a->offset + before->n_bytes == b->offset &&
           read->n_iov + 1 + part->n_images <= FIRNI_IOV_MAX && covered->n_bytes + part->n_bytes <= READ_BYTES_MAX;
}

/* Lays out the reads. What cannot be read at all has its code afterwards, and no read. */
static void plan_reads(restore_job *job)
{
    for (uint32_t i = 0; i < job->n_parts; i++) {
        restore_part *part = &job->parts[i];
        fill_iov(job, i);
        if (part->entry->place.n_bytes != part->form->record_bytes) {
            part->code = FIRNI_CODE_CORRUPT;
            continue;
        }
        if (job->n_reads > 0) {
            restore_read *covered = &job->read_parts[job->n_reads - 1];
            firn_io_read *last = &job->reads[job->n_reads - 1];
            if (joins(job, covered, last, i)) {
                last->n_iov += 1 + part->n_images;
                covered->n_parts++;
                covered->n_bytes += part->n_bytes;
                continue;
            }
        }
        int fd;
        part->code = firni_segment_use(&job->volume->segments, part->entry->place.segment, &fd);
        if (part->code == 0) {
            job->reads[job->n_reads] = (firn_io_read){ .fd = fd,
                                                       .offset = part->entry->place.offset,
                                                       .iov = job->iov + part->first_iov,
                                                       .n_iov = 1 + part->n_images,
                                                       .result = -EIO };
            job->read_parts[job->n_reads++] = (restore_read){ .first_part = i, .n_parts = 1, .n_bytes = part->n_bytes };
        }
    }
}

/* Each read has its own use of its segment. */
static void leave_segments(const restore_job *job)
{
    for (uint32_t r = 0; r < job->n_reads; r++) {
        const restore_part *part = &job->parts[job->read_parts[r].first_part];
        firni_segment_leave(&job->volume->segments, part->entry->place.segment);
    }
}

/* ---- 4. verifying ------------------------------------------------------------------------------------------------ */

static firni_key part_key(const restore_job *job, uint32_t i)
{
    return i < job->n_records ? firni_handle_key(job->handle, i) : job->checkpoint_key;
}

/* Header first: it says what the checksums of the sections are. */
static bool verify_part(restore_job *job, uint32_t i)
{
    const restore_part *part = &job->parts[i];
    const firni_plan_form *form = part->form;
    const firni_key key = part_key(job, i);
    firni_record record;
    if (firni_record_decode(part_header(job, i), form->header_bytes, form->record_bytes, job->sections,
                            form->n_sections, &record, NULL) != FIRN_OK ||
        !firni_disk_header_fits(job->disk, &record, part->entry, &key, &job->handle->ns) ||
        !firni_form_matches(form, &record)) {
        return false;
    }
    for (uint32_t k = 0; k < part->n_images; k++) {
        if (!firni_form_verify(form, k, firn_block_data(*image_slot(job, i, k)), record.sections)) {
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
    const restore_read *covered = &job->read_parts[index];
    uint64_t n_needed = 0;
    for (uint32_t i = covered->first_part; i < covered->first_part + covered->n_parts; i++) {
        n_needed += job->parts[i].n_bytes;
        if (read->result < 0) {
            job->parts[i].code = (firni_code)-read->result;
        } else if ((uint64_t)read->result < n_needed || !verify_part(job, i)) {
            job->parts[i].code = FIRNI_CODE_CORRUPT;
        }
    }
}

/* NONE, or what is wrong with the first bad record; all of them are noted. */
static firn_reason judge_parts(restore_job *job)
{
    firn_reason first = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        const restore_part *part = &job->parts[i];
        if (part->code != 0) {
            const firni_key key = part_key(job, i);
            const firn_reason reason = firni_disk_bad_record(job->disk, job->volume, &key, part->entry, part->code);
            first = first == FIRN_REASON_NONE ? reason : first;
        }
    }
    return first;
}

/* ---- 5. the restore ---------------------------------------------------------------------------------------------- */

/* One row of the layer: its blocks from the first that it needs on, and its state. Blocks of shorter windows that were
 * read for longer ones are left behind. */
static firn_reason adopt_layer(restore_job *job, uint32_t layer)
{
    const firni_disk *disk = job->disk;
    firn_row_view view = { .fixed = job->fixed[layer], .n_tokens = job->n_tokens };
    if (disk->plan.families[layer] & (FIRNI_FAMILY_FULL | FIRNI_FAMILY_WINDOW)) {
        view.first_block = firn_cache_first_block_needed(disk->shapes[layer], job->n_tokens);
        view.blocks = layer_blocks(job, layer) + view.first_block;
        view.n_blocks = job->n_records - view.first_block;
    }
    const firn_status status = firn_cache_adopt_row(job->caches[layer], &view, NULL);
    if (status == FIRN_OK) {
        return FIRN_REASON_NONE;
    }
    /* What else can be wrong with blocks that verified: more tokens than the layer's context bound. */
    return status == FIRN_ERR_NO_MEMORY ? FIRN_REASON_NO_MEMORY : FIRN_REASON_COUNT_MISMATCH;
}

/* All steps for the caches; the attachments are read by the caller. */
static firn_reason read_records(restore_job *job)
{
    firni_disk *disk = job->disk;
    if (job->n_records == 0) {
        return FIRN_REASON_NONE;
    }
    firn_reason reason = choose_checkpoint(job);
    if (reason == FIRN_REASON_NONE && !allocate(job)) {
        reason = FIRN_REASON_NO_MEMORY;
    }
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    plan_reads(job);
    const firn_io *io = firni_io(disk->env);
    const firni_code code = -io->read_batch(io->ctx, job->reads, job->n_reads, on_read, job);
    leave_segments(job);
    if (code != 0) {
        return firni_disk_failed(disk, job->volume, code, "reading records");
    }
    reason = judge_parts(job);
    for (uint32_t layer = 0; layer < disk->plan.n_layers && reason == FIRN_REASON_NONE; layer++) {
        reason = adopt_layer(job, layer);
    }
    if (reason == FIRN_REASON_NONE) {
        memcpy(job->tokens, job->handle->tokens, job->n_tokens * sizeof *job->tokens);
    }
    return reason;
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
        out->n_bytes_read += job->n_bytes;
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
