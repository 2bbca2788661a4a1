/*
 * Holes: ranges of segments that no entry names, on their way back to the file system.
 *
 * A range becomes a hole when its record is unnamed, or when it was written for a store that failed. It is logged in
 * the index with the transaction that unnames it, then punched, and its log entry goes with the next transaction: a
 * process that dies in between leaves a log that the next one punches again. A range is never used a second time, so
 * punching twice does no harm.
 *
 * A power failure may undo the last commit of the index, and must then find the bytes of what that commit unnamed. So a
 * hole waits until its commit is durable: until the next commit, whose sync covers the one before, or until somebody
 * who needs the room asks for a sync (firni_volume_settle).
 *
 *      commit n: a record is unnamed, its range logged     commit n+1: n is durable, the range is punched
 *
 * All functions: the caller holds the writer's lock.
 */
#include <assert.h>
#include <errno.h>

#include "tier/disk/disk_impl.h"

bool firni_volume_reserve_holes(firni_volume *volume, uint32_t n)
{
    if (volume->n_holes + n <= volume->holes_capacity) {
        return true;
    }
    const uint32_t capacity = 2 * (volume->n_holes + n);
    firni_hole *grown = firni_grow(volume->env, volume->holes, volume->n_holes, capacity, sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    volume->holes = grown;
    volume->holes_capacity = capacity;
    return true;
}

void firni_volume_add_hole(firni_volume *volume, const firni_place *place)
{
    assert(volume->n_holes < volume->holes_capacity);
    volume->holes[volume->n_holes++] = (firni_hole){ .place = *place };
}

firni_code firni_volume_log_holes(const firni_volume *volume, MDB_txn *txn)
{
    firni_code code = 0;
    for (uint32_t i = 0; i < volume->n_holes && code == 0; i++) {
        const firni_hole *hole = &volume->holes[i];
        if (hole->is_punched && hole->is_logged) {
            code = firni_index_del_hole(&volume->index, txn, &hole->place);
        } else if (!hole->is_punched && !hole->is_logged) {
            code = firni_index_put_hole(&volume->index, txn, &hole->place);
        }
    }
    return code;
}

/* The number of the last commit, by the index's own count: one that changed nothing is none, and synced nothing. */
static uint64_t last_commit(const firni_volume *volume)
{
    MDB_envinfo info;
    return mdb_env_info(volume->index.env, &info) == 0 ? info.me_last_txnid : 0;
}

void firni_volume_holes_committed(firni_volume *volume)
{
    const uint64_t last = last_commit(volume), durable = last > 0 && !volume->sync_always ? last - 1 : last;
    volume->durable_commit = durable > volume->durable_commit ? durable : volume->durable_commit;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < volume->n_holes; i++) {
        if (!volume->holes[i].is_punched) {
            firni_hole *kept = &volume->holes[n_kept++];
            *kept = volume->holes[i];
            kept->commit = kept->is_logged ? kept->commit : last;
            kept->is_logged = true;
        }
    }
    volume->n_holes = n_kept;
}

void firni_volume_punch(firni_volume *volume)
{
    for (uint32_t i = 0; i < volume->n_holes && !volume->cannot_punch; i++) {
        firni_hole *hole = &volume->holes[i];
        if (!hole->is_punched && hole->commit <= volume->durable_commit) {
            const firni_code code = firni_segment_punch(&volume->segments, &hole->place);
            hole->is_punched = code == 0;
            volume->cannot_punch = code == EOPNOTSUPP;
        }
    }
}

firni_code firni_volume_settle(firni_volume *volume)
{
    const uint64_t last = last_commit(volume);
    const firni_code code = mdb_env_sync(volume->index.env, 1);
    if (code == 0) {
        volume->durable_commit = last;
    }
    return code;
}

bool firni_volume_has_waiting_holes(const firni_volume *volume)
{
    for (uint32_t i = 0; i < volume->n_holes; i++) {
        if (volume->holes[i].commit > volume->durable_commit) {
            return true;
        }
    }
    return false;
}

firni_code firni_volume_drop_if_empty(const firni_volume *volume, MDB_txn *txn, uint32_t id, bool *dropped)
{
    *dropped = false;
    firni_segment_info info;
    firni_code code = firni_index_get_segment(&volume->index, txn, id, &info);
    if (code == 0 && info.n_records == 0 && id != volume->segment_id) {
        code = firni_index_del_segment(&volume->index, txn, id);
        *dropped = code == 0;
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

void firni_volume_unlink_segment(firni_volume *volume, uint32_t id)
{
    if (firni_segment_unlink(&volume->segments, id) == 0) {
        for (uint32_t i = 0; i < volume->n_holes; i++) {
            volume->holes[i].is_punched = volume->holes[i].is_punched || volume->holes[i].place.segment == id;
        }
    }
}
