/*
 * Stores: what is new of a prefix becomes records.
 *
 *   1. check that the caches are what the schema says, and compute the chain's digests (disk_delta.c);
 *   2. ask the index which records it lacks (disk_delta.c);
 *   3. pin what is there, so that making room does not take it;
 *   4. make room within the budget;
 *   5. write the new records and sync them;
 *   6. in one index transaction: name them, remove what they replace and the tails that they continue, move the whole
 *      chain up in recency;
 *   7. punch what was removed, once that commit is durable (holes.c).
 *
 * Until the commit of 6 nothing is visible; when anything fails before, what was written becomes a hole.
 *
 *      stored:   [block 0][block 1][tail 128..150]
 *      store:    [block 0][block 1][block 2, tokens 128..191][tail 192..210][checkpoint at 211]
 *                 touched  touched  new, takes the tail's place     new           new
 *
 * All records of a store are named together. Naming them in several transactions would keep more of a store that fails
 * half-way, but "false" would then no longer mean that nothing changed, and who stores again could not tell.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/ledger_impl.h"
#include "tier/disk/store_impl.h"

/* ---- 5. to files ------------------------------------------------------------------------------------------------- */

/* Records to be written, the object included. */
static uint32_t n_all(const firni_store_job *job)
{
    return job->n_pending + job->has_object;
}

/* What was written and will not be named. */
static void give_up_written(firni_store_job *job)
{
    for (uint32_t i = 0; i < n_all(job); i++) {
        if (job->pending[i].entry.place.n_bytes > 0) {
            firni_volume_add_hole(job->volume, &job->pending[i].entry.place);
        }
    }
    firni_volume_punch(job->volume);
}

/* Durable when it returns 0, to the degree the options ask for. */
static firni_code write_records(firni_store_job *job)
{
    firni_code code =
        firni_disk_write_blocks(job->disk, job->volume, job->pending, job->n_pending, job->views, &job->origin);
    if (code == 0 && job->has_object) {
        code = firni_disk_write_object(job->disk, job->volume, &job->pending[job->n_pending], job->input->attachments,
                                       job->input->n_attachments, &job->origin);
    }
    return code == 0 ? firni_disk_sync_written(job->disk, job->volume, job->pending, n_all(job)) : code;
}

/* ---- 6. to the index --------------------------------------------------------------------------------------------- */

/* What a record's tokens take of its room: a tail takes the room of a block. */
static uint64_t share_bytes(const firni_entry *entry)
{
    const uint64_t n_bytes = entry->plain_bytes != 0 ? entry->plain_bytes : entry->place.n_bytes;
    return entry->kind == FIRNI_RECORD_CHECKPOINT ? n_bytes : n_bytes * entry->n_tokens / FIRN_BLOCK_TOKENS;
}

/* Removes the tails that the new record continues. They stand right before its key. A tail that has window blocks which
 * the new record lacks stays: prefixes that end in it are usable through it alone. */
static firni_code remove_continued(firni_store_job *job, MDB_txn *txn, firni_pending *pending)
{
    for (;;) {
        firni_key key;
        firni_entry entry;
        firni_code code = firni_index_before(&job->volume->index, txn, &pending->key, &key, &entry);
        const bool is_continued = code == 0 && key.n_bytes < pending->key.n_bytes && key.n_bytes > FIRN_DIGEST_BYTES &&
                                  memcmp(key.bytes, pending->key.bytes, key.n_bytes) == 0 &&
                                  entry.n_window <= pending->entry.n_window;
        if (!is_continued || !firni_disk_condemn(job->disk, &entry, NULL)) {
            return code == MDB_NOTFOUND ? 0 : code;
        }
        const uint64_t n_known = share_bytes(&entry);
        pending->n_known_bytes = n_known > pending->n_known_bytes ? n_known : pending->n_known_bytes;
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

/* Removes what is there under the new record's key: a quarantined entry, or a bare one, unless somebody reads that.
 * The entry is read again, since making room may have touched it. */
static firni_code remove_replaced(firni_store_job *job, MDB_txn *txn, firni_pending *pending)
{
    const firni_index *index = &job->volume->index;
    firni_code code = firni_index_get(index, txn, &pending->key, &pending->old);
    if (code != 0) {
        return code == MDB_NOTFOUND ? 0 : code;
    }
    const bool is_object = pending->key.which == FIRNI_OBJECTS; /* condemned before */
    if (!is_object && !pending->old.is_quarantined &&
        !firni_disk_condemn_replaced(job->disk, &pending->old, job->handle)) {
        job->is_blocked = true;
        return EBUSY;
    }
    code = firni_index_remove(index, txn, &pending->key, &pending->old);
    if (code == 0) {
        firni_volume_add_hole(job->volume, &pending->old.place);
        pending->n_known_bytes = share_bytes(&pending->old);
    }
    return code;
}

/* Stamps of one use of a chain: the object has the lowest, then the checkpoint, then the records from the last to the
 * first, so that each leaves before what it depends on. */
static uint64_t stamp_of(const firni_store_job *job, uint64_t stamp, const firni_entry *entry)
{
    switch (entry->kind) {
    case FIRNI_RECORD_OBJECT: return stamp;
    case FIRNI_RECORD_CHECKPOINT: return stamp + 1;
    default: return stamp + 1 + job->n_blocks - entry->first_token / FIRN_BLOCK_TOKENS;
    }
}

static firni_code touch(firni_store_job *job, MDB_txn *txn, const firni_key *key, uint64_t stamp)
{
    firni_entry entry;
    const firni_code code = firni_index_get(&job->volume->index, txn, key, &entry);
    return code == 0 ? firni_index_raise(&job->volume->index, txn, key, &entry, stamp_of(job, stamp, &entry),
                                         job->input->priority)
                     : code;
}

/* A new record whose chain goes on from a record of a namespace above, or which lies on one, keeps that from being
 * evicted. */
static firni_code link_to_levels(const firni_store_job *job, MDB_txn *txn, const firni_pending *pending)
{
    const firni_index *index = &job->volume->index;
    firni_code code = 0;
    if (pending->links.has_before) {
        code = firni_index_put_link(index, txn, &pending->links.before, &pending->parent);
    }
    if (pending->links.has_under && code == 0) {
        code = firni_index_put_link(index, txn, &pending->links.under, &pending->parent);
    }
    return code;
}

/* Names the new records and moves the whole chain up. */
static firni_code name_records(firni_store_job *job, MDB_txn *txn, uint64_t stamp)
{
    const firni_index *index = &job->volume->index;
    firni_code code = 0;
    for (uint32_t i = 0; i < n_all(job) && code == 0; i++) {
        firni_pending *pending = &job->pending[i];
        if (pending->replaces) {
            code = remove_replaced(job, txn, pending);
        }
        if (code == 0 && pending->key.which == FIRNI_RECORDS) {
            code = remove_continued(job, txn, pending);
        }
        if (code == 0) {
            code = link_to_levels(job, txn, pending);
        }
        if (code == 0) {
            pending->entry.stamp = stamp_of(job, stamp, &pending->entry);
            code =
                firni_index_add(index, txn, &pending->key, &pending->entry, job->disk->options.schema, job->input->ns);
        }
    }
    for (uint32_t i = 0; i < job->n_blocks && code == 0; i++) {
        code = job->touched[i].n_bytes > 0 ? touch(job, txn, &job->touched[i], stamp) : 0;
    }
    if (code == 0 && job->keyed != NULL) {
        code = firni_index_put_kept(index, txn, FIRNI_KEYS, &job->disk->options.schema->identity, job->keyed);
    }
    return code == 0 && job->touches_checkpoint ? touch(job, txn, &job->handle->checkpoint_key, stamp) : code;
}

/* Step 6. On failure the index is as it was, and so are the list of holes and the ledger. */
static firni_code commit(firni_store_job *job)
{
    firni_volume *volume = job->volume;
    if (job->keyed != NULL || firni_handle_is_raised(job->handle, job->input->priority)) {
        firni_disk_prepare_ledger(job->disk, volume);
    }
    const uint64_t ledger_end = volume->ledger.end;
    pthread_mutex_lock(&job->disk->mutex);
    const uint64_t stamp = firni_disk_take_stamps(job->disk, job->n_blocks + 2);
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
        firni_disk_log_raised(job->disk, volume, job->handle, job->input->priority);
        if (job->keyed != NULL) {
            firni_disk_log_kept(job->disk, volume, FIRNI_KEYS, NULL, job->keyed);
        }
        code = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    firni_disk_absolve(job->disk, code == 0);
    if (code != 0) {
        firni_ledger_take_back(volume, ledger_end);
        volume->n_holes = n_holes_before;
        return code;
    }
    firni_volume_holes_committed(volume);
    if (dropped && firni_volume_settle(volume) == 0) {
        firni_volume_unlink_segment(volume, job->segment_before);
    }
    firni_volume_punch(volume);
    firni_volume_measure(volume);
    return 0;
}

/* ---- the store --------------------------------------------------------------------------------------------------- */

static void count_written(firni_store_job *job)
{
    uint64_t n_written = 0, n_unique = 0;
    for (uint32_t i = 0; i < n_all(job); i++) {
        const firni_pending *pending = &job->pending[i];
        n_written += pending->entry.place.n_bytes;
        if (pending->key.which == FIRNI_OBJECTS) {
            n_unique += pending->replaces ? 0 : pending->entry.place.n_bytes;
        } else {
            const uint64_t n_share = share_bytes(&pending->entry);
            n_unique += n_share > pending->n_known_bytes ? n_share - pending->n_known_bytes : 0;
        }
    }
    pthread_mutex_lock(&job->disk->mutex);
    job->disk->stats.written_bytes += n_written;
    job->disk->stats.unique_bytes += n_unique;
    pthread_mutex_unlock(&job->disk->mutex);
}

/* The object that this store replaces may have been evicted to make room. */
static bool condemn_old_object(firni_store_job *job)
{
    firni_pending *object = &job->pending[job->n_pending];
    MDB_txn *txn = NULL;
    if (!job->has_object || !object->replaces || firni_index_begin(&job->volume->index, true, &txn) != 0) {
        return true; /* without a transaction the commit will fail and say why */
    }
    object->replaces = firni_index_get(&job->volume->index, txn, &object->key, &object->old) == 0;
    mdb_txn_abort(txn);
    return !object->replaces || firni_disk_condemn_replaced(job->disk, &object->old, NULL);
}

/* Steps 4 to 7, with the chain pinned. */
static firn_reason write_and_commit(firni_store_job *job)
{
    firni_disk *disk = job->disk;
    firni_volume *volume = job->volume;
    const firn_reason reason = firni_disk_make_room(disk, volume, job->n_pending_bytes, n_all(job) + job->n_blocks,
                                                    job->input->priority);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    /* Each record may become a hole, and so may what it replaces. */
    if (!firni_volume_reserve_holes(volume, 2 * n_all(job)) || !firni_disk_reserve_condemned(disk, 2 * n_all(job))) {
        return FIRN_REASON_NO_MEMORY;
    }
    if (!condemn_old_object(job)) {
        return FIRN_REASON_LOADING; /* somebody reads what this would replace */
    }
    job->segment_before = volume->segment_id;
    firni_code code = write_records(job);
    if (code == 0) {
        code = commit(job);
    }
    if (code != 0) {
        /* Named while the disk is as full as it was. */
        const firn_reason failed =
            job->is_blocked ? FIRN_REASON_LOADING : firni_disk_failed(disk, volume, code, "storing");
        firni_disk_absolve(disk, false);
        give_up_written(job);
        return failed;
    }
    count_written(job);
    firni_disk_healthy(disk);
    return FIRN_REASON_NONE;
}

/* Whether something of a chain that is all there has used up half of its time to live. A use that is only noted would
 * let it expire in spite of this store, should the process die; so close to the end it is committed. */
static bool is_ageing(const firni_store_job *job)
{
    const uint64_t now = firni_wall_ns(job->disk->env), half_ns = job->disk->options.ttl_ns / 2;
    uint64_t oldest = job->touches_checkpoint ? job->handle->checkpoint.stamp : UINT64_MAX;
    for (uint32_t i = 0; i < job->n_blocks; i++) {
        oldest = job->handle->entries[i].stamp < oldest ? job->handle->entries[i].stamp : oldest;
    }
    return half_ns > 0 && oldest < now && now - oldest > half_ns;
}

/* With the writer's lock and the volume. */
static firn_reason store(firni_store_job *job)
{
    firni_disk *disk = job->disk;
    pthread_mutex_lock(&disk->mutex);
    const bool has_suspects = disk->n_suspects > 0;
    pthread_mutex_unlock(&disk->mutex);
    if (has_suspects) {
        (void)firni_disk_upkeep(disk, job->volume); /* so that the index says what has to be written anew */
    }
    const firni_code code = firni_store_find_new(job);
    if (code != 0) {
        return firni_disk_failed(disk, job->volume, code, "reading the index");
    }
    if (job->input->n_caches == 0 && job->n_pending > 0) {
        return FIRN_REASON_FAMILY_MISSING; /* attachments alone, and some of their state is not there */
    }
    if (n_all(job) == 0 && !is_ageing(job)) {
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

static bool run_store(firni_disk *disk, const firn_store_input *input, const firni_kept *keyed, firn_reason *reason)
{
    firni_store_job job = { .disk = disk, .input = input, .keyed = keyed };
    pthread_mutex_lock(&disk->mutex);
    disk->n_inside++;
    pthread_mutex_unlock(&disk->mutex);
    if (disk->options.schema == NULL) {
        *reason = FIRN_REASON_DISABLED;
    } else if (disk->options.read_only) {
        *reason = FIRN_REASON_READ_ONLY;
    } else {
        *reason = firni_store_prepare(&job);
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
    firni_free(disk->env, job.first_window);
    firni_free(disk->env, job.touched);
    firni_free(disk->env, job.pending);
    firni_handle_unref(job.handle);
    firni_disk_note_activity(disk);
    pthread_mutex_lock(&disk->mutex);
    disk->stats.n_stores += *reason == FIRN_REASON_NONE;
    disk->stats.n_store_refused += *reason != FIRN_REASON_NONE;
    disk->n_inside--;
    pthread_cond_broadcast(&disk->left);
    pthread_mutex_unlock(&disk->mutex);
    return *reason == FIRN_REASON_NONE;
}

bool firni_disk_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    return run_store(firni_disk_of(tier), input, NULL, reason);
}

bool firni_disk_store_keyed(firn_tier *tier, const firn_store_input *input, const firni_kept *row, firn_reason *reason)
{
    return run_store(firni_disk_of(tier), input, row, reason);
}
