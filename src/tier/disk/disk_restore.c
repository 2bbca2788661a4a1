/*
 * Restores: the records of a handle, read into fresh blocks, verified, and made into caches.
 *
 *   1. see that the count can be resumed at, and which checkpoint belongs to it;
 *   2. allocate everything: blocks of all layers, headers, caches;
 *   3. read: one header and one part per image for each record, straight into the blocks; records that lie one behind
 *      the other share a read, and of a record before all windows the images of window layers, its last ones, are left
 *      out;
 *   4. verify each record as its read completes, while others are in flight;
 *   5. adopt the blocks, read the attachments. In layer order the blocks are adopted before they are read, so that the
 *      caller may build on the first layers.
 *
 * Of blocks that the caller has already (the head of the prefix in RAM) nothing is read: they are adopted as they are.
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
#include "tier/disk/restore_impl.h"

/* ---- 1. what is needed ------------------------------------------------------------------------------------------- */

/* The count that was looked up is usable, and its checkpoint pinned. A shorter one has to be asked for, and its
 * checkpoint may vanish. */
static firn_reason choose_checkpoint(firni_restore_job *job)
{
    firni_disk *disk = job->disk;
    firn_tier_handle *handle = job->handle;
    if (job->n_tokens == handle->prefix_len) {
        job->has_checkpoint = handle->has_checkpoint;
        job->checkpoint = handle->checkpoint;
        job->checkpoint_key = handle->checkpoint_key;
        job->checkpoint_level = handle->checkpoint_level;
        return FIRN_REASON_NONE;
    }
    firni_path path = { .disk = disk, .index = &job->volume->index, .handle = handle };
    path.code = disk->plan.n_fixed > 0 ? firni_index_begin(path.index, true, &path.txn) : 0;
    uint32_t n_usable = 0;
    if (path.code == 0) {
        n_usable = firni_path_usable(&path, job->n_records, job->n_tokens);
    }
    if (path.code == 0 && n_usable == job->n_tokens && disk->plan.n_fixed > 0) {
        const firni_code code = firni_path_checkpoint(&path, job->n_tokens, &job->checkpoint_key, &job->checkpoint,
                                                      &job->checkpoint_level);
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

static firn_block *head_block(const firni_restore_job *job, uint32_t record, uint32_t image)
{
    const firni_plan_image *at = &job->parts[record].form->images[image];
    firn_block *block = job->want->head[(size_t)at->layer * job->want->n_head_blocks + record];
    return block != NULL && firn_block_bytes(block) == at->n_bytes ? block : NULL;
}

/* A record is read whole or not at all: a part of it is not worth a read of its own. */
static bool is_held(const firni_restore_job *job, uint32_t record)
{
    bool held = record < job->n_records && record < job->want->n_head_blocks;
    for (uint32_t k = 0; held && k < job->parts[record].n_images; k++) {
        held = head_block(job, record, k) != NULL;
    }
    return held;
}

/* Which form each record has, and how much of it is read. Returns the number of iovecs. */
static size_t choose_parts(firni_restore_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firni_families *families = &job->disk->families;
    size_t n_iov = 0;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        firni_restore_part *part = &job->parts[i];
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
        part->is_held = is_held(job, i);
        part->is_packed = part->entry->plain_bytes != 0 && !part->is_held;
        const firni_entry *entry = part->entry;
        const uint32_t surplus =
            firni_form_surplus(part->form, entry->plain_bytes != 0 ? entry->plain_bytes : entry->place.n_bytes);
        part->code = surplus == UINT32_MAX ? FIRNI_CODE_CORRUPT : 0;
        part->header_bytes = part->form->header_bytes + (part->code == 0 ? surplus : 0);
        part->n_bytes = firni_form_bytes(part->form, part->n_images) + part->header_bytes - part->form->header_bytes;
        part->n_bytes = part->is_held ? 0 : part->is_packed ? part->entry->place.n_bytes : part->n_bytes;
        part->first_iov = (uint32_t)n_iov;
        n_iov += part->is_held ? 0 : 1 + part->n_images;
        job->n_bytes += part->n_bytes;
        job->header_bytes = part->header_bytes > job->header_bytes ? part->header_bytes : job->header_bytes;
    }
    return n_iov;
}

/* ---- 2. memory --------------------------------------------------------------------------------------------------- */

/* Undefined memory will do: the read fills it, and verifying zeroes what no section covers. */
static bool allocate_blocks(firni_restore_job *job)
{
    firn_pool *pool = job->want->pool != NULL ? job->want->pool : job->disk->options.pool;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        for (uint32_t k = 0; k < job->parts[i].n_images; k++) {
            if (job->parts[i].is_held) {
                *firni_restore_slot(job, i, k) = firn_block_retain(head_block(job, i, k));
            } else if (firni_block_alloc_undefined(pool, job->parts[i].form->images[k].n_bytes,
                                                   firni_restore_slot(job, i, k), NULL) != FIRN_OK) {
                return false;
            }
        }
    }
    return true;
}

/* False: something was refused; release() frees what there is. */
static bool allocate(firni_restore_job *job)
{
    const firni_disk *disk = job->disk;
    const firn_env *env = disk->env;
    const firni_plan *plan = &disk->plan;
    job->n_parts = job->n_records + job->has_checkpoint;
    job->parts = firni_calloc(env, job->n_parts, sizeof *job->parts);
    if (job->parts == NULL) {
        return false;
    }
    job->n_iov = choose_parts(job);
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
    job->spans = firni_calloc(env, job->n_parts, sizeof *job->spans);
    job->iov = firni_calloc(env, job->n_iov + 1, sizeof *job->iov);
    if (job->caches == NULL || job->blocks == NULL || job->fixed == NULL || job->headers == NULL ||
        job->sections == NULL || job->tokens == NULL || job->reads == NULL || job->spans == NULL ||
        job->iov == NULL) {
        return false;
    }
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        const firn_status status =
            job->want->pool == NULL
                ? firn_cache_make_empty(disk->shapes[layer], &job->caches[layer], NULL)
                : firn_cache_create(&disk->options.schema->layers[layer], job->want->pool, env, &job->caches[layer],
                                    NULL);
        if (status != FIRN_OK) {
            return false;
        }
    }
    return allocate_blocks(job);
}

/* Gives back what the caller does not get. */
static void release(firni_restore_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firn_env *env = job->disk->env;
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        for (uint32_t i = 0; job->blocks != NULL && i < job->n_records; i++) {
            firn_block_release(firni_restore_blocks(job, layer)[i]);
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
    firni_free(env, job->spans);
    firni_free(env, job->iov);
}

/* ---- 3. to 5. ----------------------------------------------------------------------------------------------- */

/* One row of the layer: its blocks from the first that it needs on, and its state. Blocks of shorter windows that were
 * read for longer ones are left behind. */
static firn_reason adopt_layer(firni_restore_job *job, uint32_t layer)
{
    const firni_disk *disk = job->disk;
    firn_row_view view = { .fixed = job->fixed[layer], .n_tokens = job->n_tokens };
    if (disk->plan.families[layer] & (FIRNI_FAMILY_FULL | FIRNI_FAMILY_WINDOW)) {
        view.first_block = firn_cache_first_block_needed(disk->shapes[layer], job->n_tokens);
        view.blocks = firni_restore_blocks(job, layer) + view.first_block;
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
static firn_reason read_records(firni_restore_job *job)
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
    const bool in_layer_order = firni_restore_is_layered(job);
    reason = in_layer_order ? FIRN_REASON_NONE : firni_restore_read(job);
    for (uint32_t layer = 0; layer < disk->plan.n_layers && reason == FIRN_REASON_NONE; layer++) {
        reason = adopt_layer(job, layer);
    }
    if (reason == FIRN_REASON_NONE && in_layer_order) {
        reason = firni_restore_read_layers(job);
    }
    if (reason == FIRN_REASON_NONE) {
        memcpy(job->tokens, job->handle->tokens, job->n_tokens * sizeof *job->tokens);
    }
    return reason;
}

/* Hands over tokens and caches only when everything is there. */
static firn_reason restore(firni_restore_job *job, firn_restored *out)
{
    firni_disk *disk = job->disk;
    *out = (firn_restored){ .env = disk->env, .n_tokens = job->n_tokens };
    firn_reason reason = read_records(job);
    if (reason == FIRN_REASON_NONE && !job->want->caches_only) {
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

/* A read that went through proves the device well again, if it was a read that had failed. One that nobody wanted any
 * more is no miss: nobody is there to miss it. */
static void count_restore(firni_disk *disk, firn_reason reason, const firn_restored *restored, uint64_t n_bytes_read)
{
    firni_disk_note_activity(disk);
    pthread_mutex_lock(&disk->mutex);
    disk->stats.read_bytes += reason == FIRN_REASON_NONE ? restored->n_bytes_read : n_bytes_read;
    disk->stats.wasted_bytes += reason == FIRN_REASON_NONE ? 0 : n_bytes_read;
    if (reason == FIRN_REASON_CANCELLED) {
        disk->stats.n_cancelled++;
    } else if (reason == FIRN_REASON_NONE) {
        if (disk->stats.state == FIRN_REASON_IO_ERROR) {
            disk->stats.state = FIRN_REASON_NONE;
        }
    } else {
        disk->stats.n_misses++;
        disk->stats.miss_reasons[reason]++;
    }
    pthread_mutex_unlock(&disk->mutex);
}

firn_reason firni_disk_restore_wanted(firni_disk *disk, firn_tier_handle *handle, uint32_t n_tokens,
                                      const firni_restore_want *want, firn_restored *out)
{
    *out = (firn_restored){ 0 };
    firni_restore_job job = { .disk = disk, .handle = handle, .want = want };
    job.n_tokens = n_tokens == 0 ? handle->prefix_len : n_tokens;
    assert(job.n_tokens <= handle->prefix_len);
    job.n_records = (job.n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    firn_reason reason;
    job.volume = firni_disk_enter(disk, false, &reason);
    if (job.volume != NULL) {
        reason = job.volume->generation == handle->generation ? restore(&job, out) : FIRN_REASON_GONE;
        firni_disk_leave(disk, job.volume);
    }
    count_restore(disk, reason, out, job.n_bytes_read);
    return reason;
}

firn_reason firni_disk_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    const firni_restore_want all = { .head = NULL };
    return firni_disk_restore_wanted(firni_disk_of(tier), handle, n_tokens, &all, out);
}

firn_reason firni_disk_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool, firn_restored *out)
{
    const firni_restore_want into = { .pool = pool };
    return firni_disk_restore_wanted(firni_disk_of(tier), handle, 0, &into, out);
}
