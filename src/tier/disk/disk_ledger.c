/*
 * When the ledger is written, and how it is made anew from the index (the map is ledger_impl.h).
 *
 *      change of a row, raised priority --line--> appended      not one that may be appended to: made anew before
 *      ledger missing, given up, mostly out of date, or a namespace wiped --all rows of the index--> a new file
 *
 * No operation fails for the ledger's sake. Making it anew reads every pin and session, and hashes their tokens: some
 * milliseconds for a hundred conversations, two seconds for 4,096 long ones, and not before the file has doubled.
 */
#include <errno.h>
#include <string.h>

#include "tier/disk/ledger_impl.h"

#define GROWTH_BYTES_MIN (UINT64_C(256) << 10) /* a smaller ledger is not made anew for its size */
#define PRIORITIES_MAX   65536u                /* lines of a new ledger: the lowest of more are left out */

/* ---- from the index ---------------------------------------------------------------------------------------------- */

static firni_code add_rows(const firni_volume *volume, MDB_txn *txn, const firn_digest *identity,
                           firni_ledger_batch *batch)
{
    firni_code code = 0;
    for (firni_kept_table table = FIRNI_PINS; table <= FIRNI_KEYS && code == 0; table++) {
        firn_digest key = { { 0 } };
        firni_kept row;
        while ((code = firni_index_next_kept(&volume->index, txn, table, identity, volume->env, &key, &row)) == 0) {
            firni_ledger_add_kept(batch, table, identity, &row);
            firni_kept_release(volume->env, &row);
        }
        code = code == MDB_NOTFOUND ? batch->code : code;
    }
    return code;
}

/* Of all entries that have one. Many are those that the records were written with, which an index does not tell. */
static firni_code add_priorities(const firni_volume *volume, MDB_txn *txn, firni_ledger_batch *batch)
{
    firni_code code = 0;
    uint32_t n = 0;
    for (int priority = FIRN_PRIORITY_MAX; priority >= FIRN_PRIORITY_MIN && code == 0; priority--) {
        firni_rank rank = { .priority = priority };
        while (priority != 0 && code == 0 && n < PRIORITIES_MAX) {
            firni_key key;
            firni_entry entry;
            code = firni_index_oldest(&volume->index, txn, rank, &key, &entry);
            if (code != 0 || entry.priority != priority) {
                code = code == MDB_NOTFOUND ? 0 : code;
                break;
            }
            rank.stamp = entry.stamp + 1;
            firni_ledger_add_priority(batch, &entry.digest, entry.priority);
            code = batch->code;
            n++;
        }
    }
    return code;
}

static firni_code fill(const firni_volume *volume, firni_ledger_batch *batch)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    MDB_val db_key, value;
    firni_code code = firni_index_begin(&volume->index, true, &txn);
    if (code == 0) {
        code = mdb_cursor_open(txn, volume->index.identities, &cursor);
    }
    for (MDB_cursor_op op = MDB_FIRST; code == 0 && (code = mdb_cursor_get(cursor, &db_key, &value, op)) == 0;
         op = MDB_NEXT) {
        firn_digest identity;
        code = db_key.mv_size == sizeof identity.bytes ? 0 : MDB_CORRUPTED;
        if (code == 0) {
            memcpy(identity.bytes, db_key.mv_data, sizeof identity.bytes);
            code = add_rows(volume, txn, &identity, batch);
        }
    }
    if (code == MDB_NOTFOUND) {
        code = add_priorities(volume, txn, batch);
    }
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    return code;
}

/* The old file stands until the new one is whole, so both must have room. Nothing is evicted for a second copy. */
static void make_anew(firni_disk *disk, firni_volume *volume)
{
    uint8_t salt[16];
    firni_ledger_batch batch = { .env = volume->env,
                                 .crypt = disk->crypt,
                                 .salt = salt,
                                 .begin = FIRNI_LEDGER_HEAD_BYTES };
    firni_code code = firni_crypt_random(salt, sizeof salt) ? fill(volume, &batch) : EIO;
    const uint64_t n_bytes = firni_round_up(FIRNI_LEDGER_HEAD_BYTES + batch.n_bytes, FIRNI_RECORD_ALIGN);
    if (code == 0 && firni_disk_has_room(disk, volume, n_bytes, 0)) {
        code = firni_ledger_create(volume, &batch);
    } else {
        code = code != 0 ? code : ENOSPC;
    }
    firni_ledger_batch_free(&batch);
    volume->ledger.is_hopeless = code != 0;
    if (code != 0) {
        firni_ledger_give_up(volume); /* an old one would lack what is about to be written */
    }
}

void firni_disk_prepare_ledger(firni_disk *disk, firni_volume *volume)
{
    const firni_ledger *ledger = &volume->ledger;
    const bool is_large = ledger->end > GROWTH_BYTES_MIN && ledger->end > 2 * ledger->begun_bytes;
    if (!volume->index.is_locked && (ledger->number == 0 || is_large)) {
        make_anew(disk, volume);
    }
}

void firni_disk_renew_ledger(firni_disk *disk, firni_volume *volume)
{
    if (volume->ledger.number != 0) {
        firni_ledger_give_up(volume);
        firni_disk_prepare_ledger(disk, volume);
    }
}

/* A store of a build without ledgers, or one whose ledger was given up. */
void firni_disk_make_first_ledger(firni_disk *disk, firni_volume *volume)
{
    const firni_index *index = &volume->index;
    const MDB_dbi tables[] = { index->pins, index->sessions, index->keys, index->ranked };
    MDB_txn *txn = NULL;
    size_t n_rows = 0;
    if (volume->ledger.number != 0 || volume->ledger.is_hopeless || firni_index_begin(index, true, &txn) != 0) {
        return;
    }
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        MDB_stat stat;
        n_rows += mdb_stat(txn, tables[i], &stat) == 0 ? stat.ms_entries : 0;
    }
    mdb_txn_abort(txn);
    if (n_rows > 0) {
        firni_disk_prepare_ledger(disk, volume);
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

void firni_disk_log_kept(firni_disk *disk, firni_volume *volume, firni_kept_table table, const firn_digest *key,
                         const firni_kept *row)
{
    firni_ledger_batch batch = firni_ledger_begin(volume, disk->crypt);
    if (row != NULL) {
        firni_ledger_add_kept(&batch, table, &disk->options.schema->identity, row);
    } else {
        firni_ledger_add_removed(&batch, table, key);
    }
    firni_ledger_append(volume, &batch,
                        table != FIRNI_SESSIONS && disk->options.durability != FIRN_DURABILITY_NONE);
}

/* The entry, if a store or a use of this priority makes it one. */
static void add_raised(firni_ledger_batch *batch, const firni_entry *entry, int priority)
{
    if (entry->priority < priority) {
        firni_ledger_add_priority(batch, &entry->digest, (int8_t)priority);
    }
}

bool firni_handle_is_raised(const firn_tier_handle *handle, int priority)
{
    bool any = (handle->has_checkpoint && handle->checkpoint.priority < priority) ||
               (handle->has_object && handle->object.priority < priority);
    for (uint32_t i = 0; i < handle->n_records && !any; i++) {
        any = handle->entries[i].priority < priority;
    }
    return any;
}

void firni_disk_log_raised(firni_disk *disk, firni_volume *volume, const firn_tier_handle *handle, int priority)
{
    if (!firni_handle_is_raised(handle, priority)) {
        return;
    }
    firni_ledger_batch batch = firni_ledger_begin(volume, disk->crypt);
    for (uint32_t i = 0; i < handle->n_records; i++) {
        add_raised(&batch, &handle->entries[i], priority);
    }
    if (handle->has_checkpoint) {
        add_raised(&batch, &handle->checkpoint, priority);
    }
    if (handle->has_object) {
        add_raised(&batch, &handle->object, priority);
    }
    firni_ledger_append(volume, &batch, false);
}
