/*
 * Paths: which entries may be served, and how far a handle's records can be resumed from.
 *
 * Describes a handle's records to usable.c, from index entries alone: whether a record has the window layers' blocks is
 * in its entry, and the checkpoints on a record are the entries of another table whose tokens its own begin with.
 *
 * Reads the index where checkpoints matter; changes nothing.
 */
#include <assert.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

/* ---- entries ----------------------------------------------------------------------------------------------------- */

const firni_entry *firni_handle_names(const firn_tier_handle *handle, const firni_entry *entry)
{
    const uint32_t record = entry->first_token / FIRN_BLOCK_TOKENS;
    const firni_entry *own = record < handle->n_records ? &handle->entries[record] : NULL;
    if (entry->kind == FIRNI_RECORD_OBJECT) {
        own = handle->has_object ? &handle->object : NULL;
    } else if (entry->kind == FIRNI_RECORD_CHECKPOINT) {
        own = handle->has_checkpoint ? &handle->checkpoint : NULL;
    }
    return own != NULL && firni_digest_equal(&own->digest, &entry->digest) ? own : NULL;
}

static bool is_touched(const firni_disk *disk, const firni_touch *touches, uint32_t n, const firni_entry *entry)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!firni_disk_is_expired(disk, touches[i].stamp) && firni_handle_names(touches[i].handle, entry) != NULL) {
            return true;
        }
    }
    return false;
}

bool firni_disk_was_touched_locked(const firni_disk *disk, const firni_entry *entry)
{
    return is_touched(disk, disk->touches, disk->n_touches, entry) ||
           is_touched(disk, disk->written, disk->n_written, entry);
}

bool firni_disk_may_promise_locked(const firni_disk *disk, const firni_entry *entry, firn_reason *obstacle)
{
    for (uint32_t i = 0; i < disk->n_condemned; i++) {
        if (firni_digest_equal(&disk->condemned[i], &entry->digest)) {
            *obstacle = FIRN_REASON_GONE;
            return false;
        }
    }
    for (uint32_t i = 0; i < disk->n_suspects; i++) {
        if (firni_place_equal(&disk->suspects[i].place, &entry->place)) {
            *obstacle = FIRN_REASON_CORRUPT;
            return false;
        }
    }
    return true;
}

bool firni_disk_may_serve(firni_disk *disk, const firni_entry *entry, firn_reason *obstacle)
{
    if (entry->is_quarantined) {
        *obstacle = FIRN_REASON_CORRUPT;
        return false;
    }
    pthread_mutex_lock(&disk->mutex);
    bool may_serve = firni_disk_may_promise_locked(disk, entry, obstacle);
    if (may_serve && firni_disk_is_expired(disk, entry->stamp) && !firni_disk_was_touched_locked(disk, entry) &&
        !firni_disk_is_kept_locked(disk, entry)) {
        *obstacle = FIRN_REASON_EXPIRED;
        may_serve = false;
    }
    pthread_mutex_unlock(&disk->mutex);
    return may_serve;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

firni_key firni_checkpoint_key(const firn_tier_handle *handle, uint32_t level, uint32_t n_tokens)
{
    assert(n_tokens > 0);
    const uint32_t record = (n_tokens - 1) / FIRN_BLOCK_TOKENS;
    const uint32_t first = record * FIRN_BLOCK_TOKENS;
    return firni_key_make(FIRNI_CHECKPOINTS, firni_handle_parent(handle, level, record), handle->tokens + first,
                          n_tokens - first);
}

/* A bit for each checkpoint on the record in one level's chain that may be served. Their keys are the beginnings of the
 * record's own. */
static uint64_t find_checkpoints_of(firni_path *path, uint32_t level, uint32_t record)
{
    uint32_t n_tokens = path->handle->entries[record].n_tokens;
    const firni_key wanted = firni_key_make(FIRNI_RECORDS, firni_handle_parent(path->handle, level, record),
                                            path->handle->tokens + (size_t)record * FIRN_BLOCK_TOKENS, n_tokens);
    uint64_t checkpoints = 0;
    while (n_tokens > 0) {
        firni_key key;
        firni_entry entry;
        const firni_code code =
            firni_index_prefix(path->index, path->txn, FIRNI_CHECKPOINTS, &wanted, n_tokens, &key, &entry);
        if (code != 0) {
            path->code = code == MDB_NOTFOUND ? path->code : code;
            break;
        }
        if (entry.n_tokens == 0 || entry.n_tokens > n_tokens) {
            path->code = MDB_CORRUPTED; /* not what its key says */
            break;
        }
        if (firni_disk_may_serve(path->disk, &entry, &path->obstacle)) {
            checkpoints |= UINT64_C(1) << (entry.n_tokens - 1);
        }
        n_tokens = entry.n_tokens - 1;
    }
    return checkpoints;
}

static uint64_t find_checkpoints(firni_path *path, uint32_t record)
{
    uint64_t checkpoints = 0;
    for (uint32_t level = 0; level < path->handle->n_levels; level++) {
        checkpoints |= find_checkpoints_of(path, level, record);
    }
    return checkpoints;
}

static firni_path_step describe_record(void *ctx, uint32_t index)
{
    firni_path *path = ctx;
    const firni_entry *entry = &path->handle->entries[index];
    const firni_plan *plan = &path->disk->plan;
    const uint32_t n_windows = firni_plan_kinds_held(plan, entry->n_window);
    return (firni_path_step){
        .first_token = entry->first_token,
        .n_tokens = entry->n_tokens,
        .reusable_from = entry->reusable_from,
        .has_windows = n_windows == plan->n_kinds,
        .n_windows = n_windows,
        .cut_anywhere = true, /* blocks are stored as they lie, and any number of their tokens can be taken */
        .checkpoints = plan->n_fixed > 0 ? find_checkpoints(path, index) : 0,
    };
}

uint32_t firni_path_usable(firni_path *path, uint32_t n_records, uint32_t n_max)
{
    return firni_usable_prefix(&path->disk->families, n_records, describe_record, path, n_max);
}

firni_code firni_path_checkpoint(firni_path *path, uint32_t n_tokens, firni_key *key, firni_entry *entry,
                                 uint32_t *level)
{
    firni_code code = MDB_NOTFOUND;
    for (*level = 0; *level < path->handle->n_levels; ++*level) {
        *key = firni_checkpoint_key(path->handle, *level, n_tokens);
        code = firni_index_get(path->index, path->txn, key, entry);
        if (code == 0 && firni_disk_may_serve(path->disk, entry, &path->obstacle)) {
            return 0;
        }
        if (code != 0 && code != MDB_NOTFOUND) {
            return code;
        }
    }
    return MDB_NOTFOUND;
}
