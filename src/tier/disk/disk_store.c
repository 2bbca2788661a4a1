/*
 * Stores: what is new of a prefix becomes records.
 *
 *   1. check that the caches are what the schema says, and compute the chain's digests;
 *   2. ask the index which blocks it lacks (missing, or quarantined); a last partial block is new unless some stored
 *      record under the same parent begins with its tokens;
 *   3. pin what is there, so that making room does not take it;
 *   4. make room within the budget;
 *   5. write the new records and sync them;
 *   6. in one index transaction: name them, remove the tails that they continue, move the whole chain up in recency;
 *   7. punch what was removed.
 *
 * Until the commit of 6 nothing is visible; when anything fails before, what was written becomes a hole.
 *
 *      stored:   [block 0][block 1][tail 128..150]
 *      store:    [block 0][block 1][block 2, tokens 128..191][tail 192..210]
 *                 touched  touched  new, takes the tail's place     new
 *
 * All records of a store are named together. Naming them in several transactions would keep more of a store that fails
 * half-way, but "false" would then no longer mean that nothing changed, and who stores again could not tell.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

typedef struct store_job {
    firni_disk *disk;
    firni_volume *volume;
    const firn_store_input *input;
    firn_row_view *views;
    uint32_t n_blocks;        /* of the prefix, a partial one included */
    firn_tier_handle *handle; /* the chain: entries that exist, and those that will */
    firni_key *touched;       /* key of the existing entry that serves block i; n_bytes 0: a new one does */
    firni_pending *pending;   /* new records, in chain order; then the object, if any */
    uint32_t n_pending;       /* without the object */
    bool has_object;
    uint64_t n_pending_bytes;
    uint32_t segment_before;
} store_job;

/* ---- 1. checks --------------------------------------------------------------------------------------------------- */

/* The dispatcher has checked that each row may be published at this count; here it is the layout that has to be the
 * schema's. describe() is equal exactly when blocks may be exchanged. */
static firn_reason check_caches(store_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firn_store_input *input = job->input;
    if (input->n_tokens == 0) {
        return input->n_attachments > 0 ? FIRN_REASON_NONE : FIRN_REASON_BELOW_MIN;
    }
    if (input->n_caches != plan->n_layers) {
        return FIRN_REASON_FAMILY_MISSING;
    }
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const firn_cache *cache = input->caches[i];
        if (strcmp(firn_cache_describe(cache), plan->layers[i].describe) != 0) {
            return FIRN_REASON_WRONG_IDENTITY;
        }
        job->views[i] = firn_cache_view_row(cache, 0);
        if (job->views[i].first_block > 0 || job->views[i].fixed != NULL || job->views[i].n_blocks < job->n_blocks) {
            return FIRN_REASON_FAMILY_MISSING; /* only complete token blocks are stored */
        }
    }
    return FIRN_REASON_NONE;
}

/* Everything that needs no lock: memory, checks, the digests of the chain. */
static firn_reason prepare(store_job *job)
{
    firni_disk *disk = job->disk;
    const firn_store_input *input = job->input;
    job->n_blocks = (input->n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    if (firni_attachments_check(input->attachments, input->n_attachments, NULL) != FIRN_OK) {
        return FIRN_REASON_DISABLED; /* outside of what a tier keeps */
    }
    job->views = firni_calloc(disk->env, disk->plan.n_layers, sizeof *job->views);
    job->handle = firni_handle_create(disk->env, job->n_blocks, job->n_blocks * FIRN_BLOCK_TOKENS);
    job->touched = firni_calloc(disk->env, (size_t)job->n_blocks + 1, sizeof *job->touched);
    job->pending = firni_calloc(disk->env, (size_t)job->n_blocks + 1, sizeof *job->pending);
    if (job->views == NULL || job->handle == NULL || job->touched == NULL || job->pending == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    const firn_reason reason = check_caches(job);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    firn_tier_handle *handle = job->handle;
    handle->root = firn_chain_root(&disk->options.schema->identity, input->ns);
    handle->ns = firni_namespace_digest(input->ns);
    handle->n_records = job->n_blocks;
    const firn_digest *parent = &handle->root;
    for (uint32_t i = 0; i < job->n_blocks; i++) {
        firni_entry *entry = &handle->entries[i];
        const uint32_t first = i * FIRN_BLOCK_TOKENS;
        entry->first_token = first;
        entry->n_tokens = input->n_tokens - first < FIRN_BLOCK_TOKENS ? input->n_tokens - first : FIRN_BLOCK_TOKENS;
        entry->kind = entry->n_tokens == FIRN_BLOCK_TOKENS ? FIRNI_RECORD_BLOCK : FIRNI_RECORD_TAIL;
        entry->digest = firn_chain_extend(parent, input->tokens + first, entry->n_tokens);
        entry->root = handle->root;
        parent = &entry->digest;
    }
    if (input->n_tokens > 0) {
        memcpy(handle->tokens, input->tokens, input->n_tokens * sizeof *handle->tokens);
    }
    return FIRN_REASON_NONE;
}

/* ---- 2. what is new ---------------------------------------------------------------------------------------------- */

/* Block i becomes a new record. `old`: a quarantined entry under the same key, which it replaces. */
static void add_pending(store_job *job, const firni_key *key, const firni_entry *entry, const firni_entry *old)
{
    firni_pending *pending = &job->pending[job->n_pending++];
    *pending = (firni_pending){ .key = *key,
                                .entry = *entry,
                                .tokens = job->handle->tokens + entry->first_token,
                                .parent = firni_key_parent(key),
                                .replaces = old != NULL };
    pending->entry.created_wall_ns = firni_wall_ns(job->disk->env);
    if (old != NULL) {
        pending->old = *old;
    }
    job->n_pending_bytes += job->disk->plan.record_bytes;
}

/* A stored record that begins with the tail's tokens: with the keys in order, it is the next one. */
static firni_code find_cover(const store_job *job, MDB_txn *txn, const firni_key *tail, firni_key *key,
                             firni_entry *entry, bool *found)
{
    *key = *tail;
    const firni_code code = firni_index_next(&job->volume->index, txn, key, entry);
    *found = code == 0 && key->n_bytes > tail->n_bytes && memcmp(key->bytes, tail->bytes, tail->n_bytes) == 0 &&
             !entry->is_quarantined;
    return code == MDB_NOTFOUND ? 0 : code;
}

/* Looks up each block of the chain. A gap in the middle is possible: a record that was quarantined has live children,
 * which become reachable again when it is written anew. */
static firni_code find_new_records(store_job *job, MDB_txn *txn)
{
    firn_tier_handle *handle = job->handle;
    for (uint32_t i = 0; i < job->n_blocks; i++) {
        const firni_key key = firni_handle_key(handle, i);
        firni_entry found;
        firni_code code = firni_index_get(&job->volume->index, txn, &key, &found);
        const bool is_there = code == 0;
        if (code != 0 && code != MDB_NOTFOUND) {
            return code;
        }
        if (is_there && !found.is_quarantined) {
            handle->entries[i] = found;
            job->touched[i] = key;
            continue;
        }
        bool covered = false;
        firni_key cover;
        firni_entry cover_entry;
        if (handle->entries[i].kind == FIRNI_RECORD_TAIL) {
            code = find_cover(job, txn, &key, &cover, &cover_entry, &covered);
            if (code != 0) {
                return code;
            }
        }
        if (covered) {
            handle->entries[i] = cover_entry;
            (void)firni_key_tokens(&cover, handle->tokens + cover_entry.first_token);
            job->touched[i] = cover;
        } else {
            add_pending(job, &key, &handle->entries[i], is_there ? &found : NULL);
        }
    }
    return 0;
}

static firni_code find_new(store_job *job)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&job->volume->index, true, &txn);
    if (code == 0) {
        code = find_new_records(job, txn);
    }
    if (code == 0 && job->input->n_attachments > 0) {
        job->has_object = true;
        job->n_pending_bytes += firni_object_bytes_max(job->input->attachments, job->input->n_attachments);
        code = firni_object_plan(job->disk, job->volume, txn, job->handle, job->input->n_tokens,
                                 &job->pending[job->n_pending]);
    }
    mdb_txn_abort(txn);
    return code;
}

/* ---- 5. to files ------------------------------------------------------------------------------------------------- */

/* Records to be written, the object included. */
static uint32_t n_all(const store_job *job)
{
    return job->n_pending + job->has_object;
}

/* What was written and will not be named. */
static void give_up_written(store_job *job)
{
    for (uint32_t i = 0; i < n_all(job); i++) {
        if (job->pending[i].entry.place.n_bytes > 0) {
            firni_volume_add_hole(job->volume, &job->pending[i].entry.place);
        }
    }
    firni_volume_punch(job->volume);
}

/* Durable when it returns 0, to the degree the options ask for. */
static firni_code write_records(store_job *job)
{
    firni_code code =
        firni_disk_write_blocks(job->disk, job->volume, job->pending, job->n_pending, job->views, &job->handle->ns);
    if (code == 0 && job->has_object) {
        code = firni_disk_write_object(job->disk, job->volume, &job->pending[job->n_pending], job->input->attachments,
                                       job->input->n_attachments, &job->handle->ns);
    }
    return code == 0 ? firni_disk_sync_written(job->disk, job->volume, job->pending, n_all(job)) : code;
}

/* ---- 6. to the index --------------------------------------------------------------------------------------------- */

/* Removes the tails that the new record continues. They stand right before its key. */
static firni_code remove_continued(store_job *job, MDB_txn *txn, firni_pending *pending)
{
    for (;;) {
        firni_key key;
        firni_entry entry;
        firni_code code = firni_index_before(&job->volume->index, txn, &pending->key, &key, &entry);
        const bool is_continued = code == 0 && key.n_bytes < pending->key.n_bytes && key.n_bytes > FIRN_DIGEST_BYTES &&
                                  memcmp(key.bytes, pending->key.bytes, key.n_bytes) == 0;
        if (!is_continued || !firni_disk_condemn(job->disk, &key, &entry)) {
            return code == MDB_NOTFOUND ? 0 : code;
        }
        pending->n_known_tokens = entry.n_tokens > pending->n_known_tokens ? entry.n_tokens : pending->n_known_tokens;
        code = firni_index_remove(&job->volume->index, txn, &key, &entry);
        if (code == 0 && !firni_volume_reserve_holes(job->volume, n_all(job) + 1)) {
            code = ENOMEM;
        }
        if (code != 0) {
            return code;
        }
        firni_volume_add_hole(job->volume, &entry.place);
    }
}

/* Names the new records and moves the whole chain up: block i of n gets stamp + n - i, the object the lowest. */
static firni_code name_records(store_job *job, MDB_txn *txn, uint64_t stamp)
{
    const firni_index *index = &job->volume->index;
    for (uint32_t i = 0; i < n_all(job); i++) {
        firni_pending *pending = &job->pending[i];
        const bool is_object = pending->key.which == FIRNI_OBJECTS;
        firni_code code = 0;
        if (pending->replaces) {
            code = firni_index_remove(index, txn, &pending->key, &pending->old);
            if (code == 0) {
                firni_volume_add_hole(job->volume, &pending->old.place);
                pending->n_known_tokens = pending->entry.n_tokens;
            }
        } else if (!is_object) {
            code = remove_continued(job, txn, pending);
        }
        if (code == 0) {
            pending->entry.stamp =
                is_object ? stamp : stamp + job->n_blocks - pending->entry.first_token / FIRN_BLOCK_TOKENS;
            code =
                firni_index_add(index, txn, &pending->key, &pending->entry, job->disk->options.schema, job->input->ns);
        }
        if (code != 0) {
            return code;
        }
    }
    for (uint32_t i = 0; i < job->n_blocks; i++) {
        firni_entry entry;
        firni_code code = job->touched[i].n_bytes > 0 ? firni_index_get(index, txn, &job->touched[i], &entry) : 0;
        if (code == 0 && job->touched[i].n_bytes > 0) {
            code = firni_index_touch(index, txn, &job->touched[i], &entry, stamp + job->n_blocks - i);
        }
        if (code != 0) {
            return code;
        }
    }
    return 0;
}

/* Step 6. On failure the index is as it was, and so is the list of holes. */
static firni_code commit(store_job *job)
{
    firni_volume *volume = job->volume;
    pthread_mutex_lock(&job->disk->mutex);
    const uint64_t stamp = firni_disk_take_stamps(job->disk, job->n_blocks + 1);
    pthread_mutex_unlock(&job->disk->mutex);
    const uint32_t n_holes_before = volume->n_holes;
    bool dropped = false;
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&volume->index, false, &txn);
    if (code == 0) {
        code = name_records(job, txn, stamp);
    }
    if (code == 0) {
        code = firni_index_set_next_segment(&volume->index, txn, volume->next_segment);
    }
    if (code == 0 && job->segment_before != volume->segment_id) {
        code = firni_volume_drop_if_empty(volume, txn, job->segment_before, &dropped);
    }
    if (code == 0) {
        code = firni_volume_log_holes(volume, txn);
    }
    if (code == 0) {
        code = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    firni_disk_absolve(job->disk, code == 0);
    if (code != 0) {
        volume->n_holes = n_holes_before;
        return code;
    }
    firni_volume_holes_committed(volume);
    if (dropped) {
        firni_volume_unlink_segment(volume, job->segment_before);
    }
    firni_volume_punch(volume);
    firni_volume_measure(volume);
    return 0;
}

/* ---- the store --------------------------------------------------------------------------------------------------- */

static void count_written(store_job *job)
{
    uint64_t n_written = 0, n_unique = 0;
    for (uint32_t i = 0; i < n_all(job); i++) {
        const firni_pending *pending = &job->pending[i];
        const uint64_t n_bytes = pending->entry.place.n_bytes;
        n_written += n_bytes;
        /* A tail takes the room of a block; what it holds that is new is its tokens' share. */
        n_unique += pending->key.which == FIRNI_OBJECTS
                        ? (pending->replaces ? 0 : n_bytes)
                        : n_bytes * (pending->entry.n_tokens - pending->n_known_tokens) / FIRN_BLOCK_TOKENS;
    }
    pthread_mutex_lock(&job->disk->mutex);
    job->disk->stats.written_bytes += n_written;
    job->disk->stats.unique_bytes += n_unique;
    pthread_mutex_unlock(&job->disk->mutex);
}

/* The object that this store replaces may have been evicted to make room. */
static bool condemn_old_object(store_job *job)
{
    firni_pending *object = &job->pending[job->n_pending];
    MDB_txn *txn = NULL;
    if (!job->has_object || !object->replaces || firni_index_begin(&job->volume->index, true, &txn) != 0) {
        return true; /* without a transaction the commit will fail and say why */
    }
    object->replaces = firni_index_get(&job->volume->index, txn, &object->key, &object->old) == 0;
    mdb_txn_abort(txn);
    return !object->replaces || firni_disk_condemn(job->disk, &object->key, &object->old);
}

/* Steps 4 to 7, with the chain pinned. */
static firn_reason write_and_commit(store_job *job)
{
    firni_disk *disk = job->disk;
    firni_volume *volume = job->volume;
    const firn_reason reason = firni_disk_make_room(disk, volume, job->n_pending_bytes, n_all(job) + job->n_blocks);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    if (!condemn_old_object(job)) {
        return FIRN_REASON_LOADING; /* somebody reads what this would replace */
    }
    /* Each record may become a hole, and so may what it replaces. */
    if (!firni_volume_reserve_holes(volume, 2 * n_all(job))) {
        firni_disk_absolve(disk, false);
        return FIRN_REASON_NO_MEMORY;
    }
    job->segment_before = volume->segment_id;
    firni_code code = write_records(job);
    if (code == 0) {
        code = commit(job);
    }
    if (code != 0) {
        firni_disk_absolve(disk, false);
        give_up_written(job);
        return firni_disk_failed(disk, volume, code, "storing");
    }
    count_written(job);
    firni_disk_healthy(disk);
    return FIRN_REASON_NONE;
}

/* With the writer's lock and the volume. */
static firn_reason store(store_job *job)
{
    firni_disk *disk = job->disk;
    pthread_mutex_lock(&disk->mutex);
    const bool has_suspects = disk->n_suspects > 0;
    pthread_mutex_unlock(&disk->mutex);
    if (has_suspects) {
        (void)firni_disk_upkeep(disk, job->volume); /* so that the index says what has to be written anew */
    }
    const firni_code code = find_new(job);
    if (code != 0) {
        return firni_disk_failed(disk, job->volume, code, "reading the index");
    }
    if (n_all(job) == 0) {
        firni_handle_note_use(disk, job->handle); /* all there: the use is written down with the next change */
        return FIRN_REASON_NONE;
    }
    pthread_mutex_lock(&disk->mutex);
    firni_handle_pin_locked(disk, job->handle);
    pthread_mutex_unlock(&disk->mutex);
    const firn_reason reason = write_and_commit(job);
    pthread_mutex_lock(&disk->mutex);
    firni_handle_unpin_locked(disk, job->handle);
    pthread_mutex_unlock(&disk->mutex);
    return reason;
}

bool firni_disk_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    firni_disk *disk = firni_disk_of(tier);
    store_job job = { .disk = disk, .input = input };
    if (disk->options.schema == NULL) {
        *reason = FIRN_REASON_DISABLED;
    } else if (disk->options.read_only) {
        *reason = FIRN_REASON_READ_ONLY;
    } else {
        *reason = prepare(&job);
    }
    if (*reason == FIRN_REASON_NONE) {
        job.volume = firni_disk_enter(disk, true, reason);
    }
    if (job.volume != NULL) {
        pthread_mutex_lock(&disk->writer);
        *reason = store(&job);
        pthread_mutex_unlock(&disk->writer);
        firni_disk_leave(disk, job.volume);
    }
    firni_free(disk->env, job.views);
    firni_free(disk->env, job.touched);
    firni_free(disk->env, job.pending);
    firni_handle_unref(job.handle);
    pthread_mutex_lock(&disk->mutex);
    disk->stats.n_stores += *reason == FIRN_REASON_NONE;
    disk->stats.n_store_refused += *reason != FIRN_REASON_NONE;
    pthread_mutex_unlock(&disk->mutex);
    return *reason == FIRN_REASON_NONE;
}
