/*
 * Room: eviction, expiry, and the upkeep of what lookups and reads left to be written down.
 *
 * The victim is the entry of the lowest priority, and among those with the lowest stamp, that is not pinned and that
 * nothing depends on: it has no children, and no checkpoint lies on it alone. A store evicts nothing of a higher
 * priority than its own. A use of a chain gives its root the highest stamp and its checkpoint one below all records, so
 * in the order of stamps a child always comes before its parent, and tails go before heads:
 *
 *      use 1 of A-B-C    stamps  A 13  B 12  C 11
 *      use 2 of A-B-D    stamps  A 23  B 22  D 21        victims in order: C (11), D (21), B (22), A (23)
 *
 * Checkpoints that later ones of a conversation superseded are not used any more, and so leave early by themselves.
 *
 * The check for dependants is there all the same: recency that was lost with a killed process must cost hits, never
 * leave a record without its parent.
 *
 * The budget holds at every step: before bytes are written, room is made for
 *
 *      the bytes  +  the growth of the index by the transaction that names them  +  its growth by one more eviction
 *
 * and only then is anything written. The last term is what makes the others possible: an eviction writes index pages
 * before it frees anything, so it must never be the one that has no room.
 *
 * The file system's reserve is kept in the same way, by stores alone: what others write into it is no reason to empty
 * the cache unless a store wants to grow it.
 *
 * Expiry is eviction with another condition to stop. A time to live counts from the last use, so the order of stamps
 * is, within a priority, also the order of expiry, and a parent never expires before its children.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/ledger_impl.h"

#define EXPIRY_BATCHES_MAX  16u   /* per upkeep */
/* What a file system may add to a file for its own books, or some lines to the ledger. */
#define SEGMENT_SLACK_BYTES 8192u

/* ---- condemned --------------------------------------------------------------------------------------------------- */

/* Allocates outside of the mutex: the writer alone adds to the list, so its length cannot grow meanwhile. */
bool firni_disk_reserve_condemned(firni_disk *disk, uint32_t n)
{
    if (n <= disk->n_condemned_max) {
        return true;
    }
    firn_digest *grown = firni_calloc(disk->env, n, sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    pthread_mutex_lock(&disk->mutex);
    firn_digest *old = disk->condemned;
    if (disk->n_condemned > 0) {
        memcpy(grown, old, disk->n_condemned * sizeof *grown);
    }
    disk->condemned = grown;
    disk->n_condemned_max = n;
    pthread_mutex_unlock(&disk->mutex);
    firni_free(disk->env, old);
    return true;
}

/* Asking for pins and condemning are one step under the mutex. Between two steps a lookup could pin what is about to
 * go. */
static bool condemn(firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own, bool but_standing)
{
    pthread_mutex_lock(&disk->mutex);
    const bool may_go = disk->n_condemned < disk->n_condemned_max &&
                        !firni_disk_is_pinned_locked(disk, entry, own, but_standing);
    if (may_go) {
        disk->condemned[disk->n_condemned++] = entry->digest;
        firni_memo_forget_locked(disk, entry);
    }
    pthread_mutex_unlock(&disk->mutex);
    return may_go;
}

bool firni_disk_condemn(firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own)
{
    return condemn(disk, entry, own, false);
}

bool firni_disk_condemn_replaced(firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own)
{
    return condemn(disk, entry, own, true);
}

/* The epoch tells lookups that began before the commit that what they read may be gone. After an abort nothing changed,
 * and only the list is emptied. */
void firni_disk_absolve(firni_disk *disk, bool committed)
{
    pthread_mutex_lock(&disk->mutex);
    disk->n_condemned = 0;
    disk->epoch += committed;
    pthread_mutex_unlock(&disk->mutex);
}

/* ---- one batch --------------------------------------------------------------------------------------------------- */

/* One transaction's worth of eviction: bounded, so that neither the index nor a waiting store is held for long. */
typedef struct batch {
    firni_disk *disk;
    firni_volume *volume;
    MDB_txn *txn;
    bool only_expired;
    int priority_max;           /* what is of more is left alone */
    bool is_outranked;          /* something was */
    const firni_key *keys;      /* these instead of the oldest, where not NULL */
    uint32_t n_keys;
    uint64_t n_bytes_wanted;
    uint32_t n_wanted;
    firni_place victims[FIRNI_EVICT_BATCH];
    uint32_t n_victims;
    uint64_t n_bytes;
    uint32_t emptied[FIRNI_EVICT_BATCH]; /* segments to unlink */
    uint32_t n_emptied;
} batch;

/* Takes one out of the index, unless something depends on it or somebody pinned it. */
static firni_code take(batch *job, const firni_key *key, const firni_entry *entry)
{
    bool has_dependants = false;
    firni_code code = firni_index_has_dependants(&job->volume->index, job->txn, key, entry, &has_dependants);
    if (code == 0 && !has_dependants && firni_disk_condemn(job->disk, entry, NULL)) {
        code = firni_index_remove(&job->volume->index, job->txn, key, entry);
        job->victims[job->n_victims++] = entry->place;
        job->n_bytes += entry->place.n_bytes;
    }
    return code;
}

static bool was_touched(firni_disk *disk, const firni_entry *entry)
{
    pthread_mutex_lock(&disk->mutex);
    const bool is_noted = firni_disk_was_touched_locked(disk, entry);
    pthread_mutex_unlock(&disk->mutex);
    return is_noted;
}

/* Takes victims out of the index, in the order of their ranks. */
static firni_code choose(batch *job)
{
    const firni_index *index = &job->volume->index;
    firni_rank rank = { .priority = FIRN_PRIORITY_MIN };
    while (job->n_victims < FIRNI_EVICT_BATCH &&
           (job->only_expired || job->n_bytes < job->n_bytes_wanted || job->n_victims < job->n_wanted)) {
        firni_key key;
        firni_entry entry;
        firni_code code = firni_index_oldest(index, job->txn, rank, &key, &entry);
        if (code == MDB_NOTFOUND) {
            return 0;
        }
        if (code != 0) {
            return code;
        }
        rank = (firni_rank){ .priority = entry.priority, .stamp = entry.stamp + 1 };
        if (job->only_expired && !firni_disk_is_expired(job->disk, entry.stamp)) {
            rank = (firni_rank){ .priority = entry.priority + 1 }; /* the rest of this priority is younger */
            continue;
        }
        if (job->only_expired && was_touched(job->disk, &entry)) {
            continue;
        }
        if (entry.priority > job->priority_max) {
            job->is_outranked = true;
            return 0;
        }
        code = take(job, &key, &entry);
        if (code != 0) {
            return code;
        }
    }
    return 0;
}

/* Takes those that were named, in their order. */
static firni_code choose_named(batch *job)
{
    firni_code code = 0;
    for (uint32_t i = 0; i < job->n_keys && code == 0; i++) {
        firni_entry entry;
        code = firni_index_get(&job->volume->index, job->txn, &job->keys[i], &entry);
        code = code == 0 ? take(job, &job->keys[i], &entry) : code == MDB_NOTFOUND ? 0 : code;
    }
    return code;
}

/* Segments that lost their last entry with this batch: their files are unlinked instead of punched. */
static firni_code drop_emptied(batch *job)
{
    for (uint32_t i = 0; i < job->n_victims; i++) {
        bool dropped = false;
        const firni_code code = firni_volume_drop_if_empty(job->volume, job->txn, job->victims[i].segment, &dropped);
        if (code != 0) {
            return code;
        }
        if (dropped) {
            job->emptied[job->n_emptied++] = job->victims[i].segment;
        }
    }
    return 0;
}

/* Unnames, then punches. On failure nothing changed. */
static firni_code evict_batch(batch *job)
{
    firni_volume *volume = job->volume;
    if (!firni_volume_reserve_holes(volume, FIRNI_EVICT_BATCH) ||
        !firni_disk_reserve_condemned(job->disk, FIRNI_EVICT_BATCH)) {
        return ENOMEM;
    }
    firni_code code = firni_index_begin(&volume->index, false, &job->txn);
    if (code != 0) {
        return code;
    }
    /* Holes are added before they are logged; after an abort they are taken back, for their records are still named. */
    const uint32_t n_holes_before = volume->n_holes;
    code = job->keys != NULL ? choose_named(job) : choose(job);
    if (code == 0) {
        code = drop_emptied(job);
    }
    if (code == 0 && job->n_victims > 0) {
        for (uint32_t i = 0; i < job->n_victims; i++) {
            firni_volume_add_hole(volume, &job->victims[i]);
        }
        code = firni_volume_log_holes(volume, job->txn);
    }
    if (code == 0 && job->n_victims > 0) {
        code = mdb_txn_commit(job->txn);
    } else {
        mdb_txn_abort(job->txn);
    }
    const bool committed = code == 0 && job->n_victims > 0;
    firni_disk_absolve(job->disk, committed);
    if (!committed) {
        volume->n_holes = n_holes_before;
        return code;
    }
    firni_volume_holes_committed(volume);
    /* Room is wanted now. Where the sync fails, files and holes stay for the next process to give back. */
    const bool is_settled = firni_volume_settle(volume) == 0;
    for (uint32_t i = 0; i < job->n_emptied && is_settled; i++) {
        firni_volume_unlink_segment(volume, job->emptied[i]);
    }
    firni_volume_punch(volume);
    firni_volume_measure(volume);
    pthread_mutex_lock(&job->disk->mutex);
    job->disk->stats.n_evicted += job->n_victims;
    pthread_mutex_unlock(&job->disk->mutex);
    return 0;
}

firni_code firni_disk_remove_keys(firni_disk *disk, firni_volume *volume, const firni_key *keys, uint32_t n_keys,
                                  uint32_t *n_removed)
{
    *n_removed = 0;
    firni_code code = 0;
    for (uint32_t first = 0; first < n_keys && code == 0; first += FIRNI_EVICT_BATCH) {
        const uint32_t n_left = n_keys - first;
        batch job = { .disk = disk,
                      .volume = volume,
                      .keys = keys + first,
                      .n_keys = n_left < FIRNI_EVICT_BATCH ? n_left : FIRNI_EVICT_BATCH };
        code = evict_batch(&job);
        *n_removed += job.n_victims;
    }
    return code;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

/* Bytes above the budget, were n_bytes written and n_entries changed in the index. */
static uint64_t deficit(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint64_t n_entries)
{
    const uint64_t index_bytes = atomic_load(&volume->index_physical_bytes);
    const uint64_t needed = firni_volume_physical_bytes(volume) + n_bytes +
                            firni_index_reserve_bytes(index_bytes, n_entries) +
                            firni_index_reserve_bytes(index_bytes, FIRNI_EVICT_BATCH) +
                            (uint64_t)(firni_segments_count(&volume->segments) + 1) * SEGMENT_SLACK_BYTES;
    return needed > disk->options.budget_bytes ? needed - disk->options.budget_bytes : 0;
}

/* Bytes that are missing from the file system's reserve, were n_bytes written. What punching gave back may not be in
 * the file system's count yet, so it is counted here: else a slow count would cost the whole cache. */
static uint64_t reserve_deficit(const firni_disk *disk, const firni_volume *volume, uint64_t n_bytes,
                                int64_t spare_before, uint64_t n_freed)
{
    if (n_bytes == 0 || spare_before == INT64_MAX) {
        return 0;
    }
    const int64_t now = firni_volume_spare_bytes(volume, disk->options.min_free_bytes);
    const int64_t counted = spare_before + (int64_t)n_freed;
    const int64_t spare = now > counted && now != INT64_MAX ? now : counted;
    const uint64_t index_bytes = atomic_load(&volume->index_physical_bytes);
    const int64_t needed = (int64_t)(n_bytes + firni_index_reserve_bytes(index_bytes, 0));
    return needed > spare ? (uint64_t)(needed - spare) : 0;
}

/* The loop is bounded: each round removes entries, or ends. Bytes are asked for anew in each round, since punching may
 * give back less than the records' size (shared file system blocks, a file system without holes). */
static firn_reason evict_until_fits(firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint64_t n_changed,
                                    uint32_t n_new, int priority)
{
    const uint64_t n_entries_max = firni_index_entries_max(disk->options.budget_bytes);
    const int64_t spare = n_bytes > 0 ? firni_volume_spare_bytes(volume, disk->options.min_free_bytes) : INT64_MAX;
    uint64_t n_freed = 0;
    if (reserve_deficit(disk, volume, n_bytes, spare, 0) > firni_segments_physical_bytes(&volume->segments)) {
        /* Others fill the file system, and all that is here would not make the room. */
        return firni_disk_failed(disk, volume, ENOSPC, "leaving the file system its reserve");
    }
    if (deficit(disk, volume, n_bytes, n_changed) > 0 && firni_volume_has_waiting_holes(volume)) {
        const firni_code code = firni_volume_settle(volume); /* what is on its way back already may be enough */
        if (code != 0) {
            return firni_disk_failed(disk, volume, code, "syncing the index");
        }
        firni_volume_punch(volume);
    }
    for (;;) {
        const uint64_t n_bytes_lacking = reserve_deficit(disk, volume, n_bytes, spare, n_freed);
        uint64_t n_bytes_over = deficit(disk, volume, n_bytes, n_changed);
        n_bytes_over = n_bytes_over > n_bytes_lacking ? n_bytes_over : n_bytes_lacking;
        const uint64_t n_entries = atomic_load(&volume->n_entries) + n_new;
        if (n_bytes_over == 0 && n_entries <= n_entries_max) {
            return FIRN_REASON_NONE;
        }
        batch job = { .disk = disk,
                      .volume = volume,
                      .priority_max = priority,
                      .n_bytes_wanted = n_bytes_over,
                      .n_wanted = n_entries > n_entries_max ? (uint32_t)(n_entries - n_entries_max) : 0 };
        const firni_code code = evict_batch(&job);
        if (code != 0) {
            return firni_disk_failed(disk, volume, code, "evicting");
        }
        n_freed += job.n_bytes;
        if (job.n_victims == 0 && job.is_outranked) {
            return FIRN_REASON_PRIORITY;
        }
        if (job.n_victims == 0) { /* what is left is promised to somebody */
            return firni_disk_has_pins(disk) ? FIRN_REASON_PINNED : FIRN_REASON_DISK_FULL;
        }
    }
}

firn_reason firni_disk_make_room(firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint32_t n_records,
                                 int priority)
{
    if (n_bytes > disk->options.budget_bytes) {
        return FIRN_REASON_DISK_FULL; /* without emptying the disk for what can not fit */
    }
    const int64_t spare = firni_volume_spare_bytes(volume, disk->options.min_free_bytes);
    if (deficit(disk, volume, n_bytes, n_records) > 0 || reserve_deficit(disk, volume, n_bytes, spare, 0) > 0) {
        const firn_reason reason = firni_disk_upkeep(disk, volume); /* so that the order of stamps is the true one */
        if (reason != FIRN_REASON_NONE && reason != FIRN_REASON_DISK_FULL && reason != FIRN_REASON_PINNED) {
            return reason;
        }
    }
    return evict_until_fits(disk, volume, n_bytes, n_records, n_records, priority);
}

bool firni_disk_has_room(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint32_t n_records)
{
    const int64_t spare = firni_volume_spare_bytes(volume, disk->options.min_free_bytes);
    return deficit(disk, volume, n_bytes, n_records) == 0 && reserve_deficit(disk, volume, n_bytes, spare, 0) == 0;
}

/* ---- upkeep ------------------------------------------------------------------------------------------------------ */

/* What was noted in RAM, taken over from the disk. */
typedef struct note_list {
    firni_touch touches[FIRNI_TOUCHES_MAX];
    uint32_t n_touches;
    firni_suspect suspects[FIRNI_SUSPECTS_MAX];
    uint32_t n_suspects;
    uint64_t n_changed; /* entries that will be written */
} note_list;

/* Touches are taken over for good: when they cannot be written, a little recency is lost and nothing else. Suspects
 * stay in the list until the index knows them, because lookups rely on it; for the same reason touches stay to be seen
 * until they have been written. */
static void take_notes(firni_disk *disk, note_list *out)
{
    pthread_mutex_lock(&disk->mutex);
    out->n_touches = disk->n_touches;
    memcpy(out->touches, disk->touches, disk->n_touches * sizeof out->touches[0]);
    disk->n_touches = 0;
    disk->written = out->touches;
    disk->n_written = out->n_touches;
    out->n_suspects = disk->n_suspects;
    memcpy(out->suspects, disk->suspects, disk->n_suspects * sizeof out->suspects[0]);
    pthread_mutex_unlock(&disk->mutex);
    out->n_changed = out->n_suspects;
    for (uint32_t i = 0; i < out->n_touches; i++) {
        out->n_changed += out->touches[i].handle->n_records + 2;
    }
}

/* The place tells whether the entry still is the record that was used. */
static firni_code touch_one(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *noted,
                            uint64_t stamp, int priority)
{
    firni_entry entry;
    const firni_code code = firni_index_get(index, txn, key, &entry);
    if (code != 0 || !firni_place_equal(&entry.place, &noted->place)) {
        return code == MDB_NOTFOUND ? 0 : code; /* gone, or another record by now */
    }
    return firni_index_raise(index, txn, key, &entry, stamp, priority);
}

static firni_code write_touches(const firni_index *index, MDB_txn *txn, const note_list *notes)
{
    firni_code code = 0;
    /* The latest use first: earlier ones of the same records are then no more than a look. */
    for (uint32_t t = notes->n_touches; t > 0 && code == 0; t--) {
        const firni_touch *touch = &notes->touches[t - 1];
        const firn_tier_handle *handle = touch->handle;
        if (handle->has_object) {
            code = touch_one(index, txn, &handle->object_key, &handle->object, touch->stamp, touch->priority);
        }
        if (handle->has_checkpoint && code == 0) {
            code = touch_one(index, txn, &handle->checkpoint_key, &handle->checkpoint, touch->stamp + 1,
                             touch->priority);
        }
        for (uint32_t i = 0; i < handle->n_records && code == 0; i++) {
            const firni_key key = firni_handle_key(handle, i);
            code = touch_one(index, txn, &key, &handle->entries[i], touch->stamp + 1 + handle->n_records - i,
                             touch->priority);
        }
    }
    return code;
}

static firni_code write_suspects(const firni_index *index, MDB_txn *txn, const note_list *notes)
{
    for (uint32_t i = 0; i < notes->n_suspects; i++) {
        const firni_suspect *suspect = &notes->suspects[i];
        firni_entry entry;
        firni_code code = firni_index_get(index, txn, &suspect->key, &entry);
        if (code == 0 && firni_place_equal(&entry.place, &suspect->place) && !entry.is_quarantined) {
            code = firni_index_quarantine(index, txn, &suspect->key, &entry);
        }
        if (code != 0 && code != MDB_NOTFOUND) {
            return code;
        }
    }
    return 0;
}

/* One transaction for all of it; also the occasion to drop the log entries of holes that were punched meanwhile. */
static firni_code write_notes(firni_disk *disk, firni_volume *volume, const note_list *notes)
{
    MDB_txn *txn = NULL;
    for (uint32_t i = 0; i < notes->n_touches; i++) {
        const firni_touch *touch = &notes->touches[i];
        if (firni_handle_is_raised(touch->handle, touch->priority)) {
            firni_disk_prepare_ledger(disk, volume);
            firni_disk_log_raised(disk, volume, touch->handle, touch->priority);
        }
    }
    firni_code code = firni_index_begin(&volume->index, false, &txn);
    if (code != 0) {
        return code;
    }
    code = write_touches(&volume->index, txn, notes);
    if (code == 0) {
        code = write_suspects(&volume->index, txn, notes);
    }
    if (code == 0) {
        code = firni_volume_log_holes(volume, txn);
    }
    if (code != 0) {
        mdb_txn_abort(txn);
        return code;
    }
    code = mdb_txn_commit(txn);
    if (code == 0) {
        firni_volume_holes_committed(volume);
        firni_volume_measure(volume);
        pthread_mutex_lock(&disk->mutex);
        /* Suspects are only ever appended, and the index says now what the first of them said. */
        disk->n_suspects -= notes->n_suspects;
        memmove(disk->suspects, disk->suspects + notes->n_suspects, disk->n_suspects * sizeof disk->suspects[0]);
        disk->epoch++;
        pthread_mutex_unlock(&disk->mutex);
    }
    return code;
}

/* In the order of stamps the expired ones are the first, so this looks at no more than it removes, plus one, plus those
 * that were used after the notes were taken. */
static firni_code expire(firni_disk *disk, firni_volume *volume)
{
    for (uint32_t i = 0; disk->options.ttl_ns > 0 && i < EXPIRY_BATCHES_MAX; i++) {
        batch job = {
            .disk = disk, .volume = volume, .only_expired = true, .priority_max = FIRN_PRIORITY_MAX
        };
        const firni_code code = evict_batch(&job);
        if (code != 0 || job.n_victims < FIRNI_EVICT_BATCH) {
            return code;
        }
    }
    return 0;
}

firn_reason firni_disk_upkeep(firni_disk *disk, firni_volume *volume)
{
    assert(!disk->options.read_only && disk->written == NULL);
    note_list noted;
    firni_disk_expire_pins(disk, volume);
    firni_disk_make_first_ledger(disk, volume);
    take_notes(disk, &noted);
    firn_reason reason = FIRN_REASON_NONE;
    if (noted.n_changed > 0) {
        reason = evict_until_fits(disk, volume, 0, noted.n_changed, 0, FIRN_PRIORITY_MAX);
        const firni_code code = reason == FIRN_REASON_NONE ? write_notes(disk, volume, &noted) : 0;
        if (code != 0) {
            reason = firni_disk_failed(disk, volume, code, "writing recency");
        }
    }
    pthread_mutex_lock(&disk->mutex);
    disk->written = NULL;
    disk->n_written = 0;
    pthread_mutex_unlock(&disk->mutex);
    for (uint32_t i = 0; i < noted.n_touches; i++) {
        firni_handle_unref(noted.touches[i].handle);
    }
    const firni_code code = expire(disk, volume);
    return code != 0 ? firni_disk_failed(disk, volume, code, "expiring") : reason;
}
