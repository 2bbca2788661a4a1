/*
 * The index, fourth part: the order in which entries go.
 *
 *      ranked, below 0      -5 | stamps ..  -1 | stamps ..       a byte that orders priorities, then the stamp
 *      recency               0 | stamps ..                       nearly all entries: the stamp alone
 *      ranked, above 0       3 | stamps ..
 *
 * Owns the two tables that order entries by priority and stamp; the byte forms are in docs/FORMAT.md.
 */
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

static MDB_val val_of(const void *bytes, size_t n_bytes)
{
    return (MDB_val){ .mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes };
}

static void put_be64(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++) {
        at[i] = (uint8_t)(value >> (56 - 8 * i));
    }
}

static uint64_t get_be64(const uint8_t *at)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

#define RANK_BIAS 128

typedef struct rank_key {
    MDB_dbi table;
    size_t n_bytes;
    uint8_t bytes[9];
} rank_key;

static rank_key key_of_rank(const firni_index *index, firni_rank rank)
{
    rank_key key = { .table = rank.priority == 0 ? index->recency : index->ranked };
    key.n_bytes = rank.priority == 0 ? 8 : 9;
    key.bytes[0] = (uint8_t)(rank.priority + RANK_BIAS);
    put_be64(key.bytes + key.n_bytes - 8, rank.stamp);
    return key;
}

/* NOOVERWRITE: two entries with one stamp would lose one of them. */
firni_code firni_index_put_rank(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_rank rank)
{
    rank_key place = key_of_rank(index, rank);
    uint8_t bytes[1 + FIRNI_KEY_BYTES_MAX];
    firni_key stored;
    const firni_code code = firni_index_seal_key(index, key, &stored);
    if (code != 0) {
        return code;
    }
    bytes[0] = (uint8_t)key->which;
    memcpy(bytes + 1, stored.bytes, stored.n_bytes);
    MDB_val db_key = val_of(place.bytes, place.n_bytes), value = val_of(bytes, 1 + (size_t)stored.n_bytes);
    return mdb_put(txn, place.table, &db_key, &value, MDB_NOOVERWRITE);
}

firni_code firni_index_del_rank(const firni_index *index, MDB_txn *txn, firni_rank rank)
{
    rank_key place = key_of_rank(index, rank);
    MDB_val db_key = val_of(place.bytes, place.n_bytes);
    return mdb_del(txn, place.table, &db_key, NULL);
}

/* The last stamp of one table: of `ranked` the last of each priority. */
static firni_code last_stamp_of(MDB_txn *txn, MDB_dbi table, uint64_t *last)
{
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(txn, table, &cursor);
    if (code != 0) {
        return code;
    }
    MDB_val key, value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
    while (code == 0 && (key.mv_size == 8 || key.mv_size == 9)) {
        const uint8_t *at = key.mv_data;
        const uint64_t stamp = get_be64(at + key.mv_size - 8);
        *last = stamp > *last ? stamp : *last;
        if (key.mv_size == 8) {
            break;
        }
        uint8_t first[9] = { at[0] };
        key = val_of(first, sizeof first);
        code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        code = code == 0 ? mdb_cursor_get(cursor, &key, &value, MDB_PREV) : code;
    }
    mdb_cursor_close(cursor);
    return code == MDB_NOTFOUND ? 0 : code;
}

firni_code firni_index_last_stamp(const firni_index *index, MDB_txn *txn, uint64_t *out)
{
    *out = 0;
    const firni_code code = last_stamp_of(txn, index->recency, out);
    return code == 0 ? last_stamp_of(txn, index->ranked, out) : code;
}

/* The first row at or behind a rank in its own table. */
static firni_code first_row(const firni_index *index, MDB_txn *txn, firni_rank rank, int *priority, firni_key *key)
{
    rank_key place = key_of_rank(index, rank);
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(txn, place.table, &cursor);
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(place.bytes, place.n_bytes), value;
    code = mdb_cursor_get(cursor, &db_key, &value, MDB_SET_RANGE);
    if (code == 0) {
        const uint8_t *at = value.mv_data, *rank_at = db_key.mv_data;
        const bool is_rank = db_key.mv_size == place.n_bytes && value.mv_size > 1 && at[0] >= FIRNI_RECORDS &&
                             at[0] <= FIRNI_WHICH_LAST;
        code = is_rank ? firni_index_open_key(index, (firni_which)at[0], at + 1, value.mv_size - 1, key)
                       : MDB_CORRUPTED;
        *priority = rank.priority == 0 || code != 0 ? 0 : (int)rank_at[0] - RANK_BIAS;
    }
    mdb_cursor_close(cursor);
    return code;
}

firni_code firni_index_oldest(const firni_index *index, MDB_txn *txn, firni_rank rank_min, firni_key *key,
                              firni_entry *entry)
{
    int priority = 0;
    firni_code code = MDB_NOTFOUND;
    if (rank_min.priority < 0) {
        code = first_row(index, txn, rank_min, &priority, key);
        if (code == MDB_NOTFOUND || (code == 0 && priority > 0)) {
            rank_min = (firni_rank){ 0 };
            code = MDB_NOTFOUND;
        }
    }
    if (code == MDB_NOTFOUND && rank_min.priority == 0) {
        code = first_row(index, txn, rank_min, &priority, key);
        rank_min = code == MDB_NOTFOUND ? (firni_rank){ .priority = 1 } : rank_min;
    }
    if (code == MDB_NOTFOUND && rank_min.priority > 0 && rank_min.priority <= FIRN_PRIORITY_MAX) {
        code = first_row(index, txn, rank_min, &priority, key);
    }
    if (code == 0) {
        code = firni_index_get(index, txn, key, entry);
        code = code == MDB_NOTFOUND ? MDB_CORRUPTED : code; /* a recency row without its entry */
    }
    return code;
}
