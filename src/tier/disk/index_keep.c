/*
 * The index, sixth part: what is kept by name. Three tables of one form: pins, sessions, and the names of objects.
 *
 *      key     SHA-256 over table, identity, namespace and name      a name of any length is a key of 32 bytes
 *      value   until | used | n_tokens | lengths | identity | namespace, NUL | name, NUL | tokens
 *
 * The value says again what the key is made of, so that rows can be listed. Owns the byte form (docs/FORMAT.md).
 */
#include <stdlib.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

#define ROW_FIXED_BYTES 56u /* until, used, n_tokens, n_ns, n_name, identity */

static const char *const domains[] = {
    [FIRNI_PINS] = "firn.keep.pin.1", [FIRNI_SESSIONS] = "firn.keep.session.1", [FIRNI_KEYS] = "firn.keep.key.1"
};

static MDB_dbi table_of(const firni_index *index, firni_kept_table table)
{
    return table == FIRNI_PINS ? index->pins : table == FIRNI_SESSIONS ? index->sessions : index->keys;
}

firn_digest firni_kept_key(firni_kept_table table, const firn_digest *identity, const char *ns, const char *name)
{
    const char *const within = table == FIRNI_PINS ? "" : ns;
    const firni_field fields[3] = {
        { .bytes = identity->bytes, .n_bytes = sizeof identity->bytes },
        { .bytes = within, .n_bytes = strlen(within) },
        { .bytes = name, .n_bytes = strlen(name) },
    };
    return firni_digest_fields(domains[table], fields, 3);
}

uint64_t firni_kept_bytes(const firni_kept *row)
{
    return ROW_FIXED_BYTES + strlen(row->ns) + strlen(row->name) + 2 + UINT64_C(4) * row->n_tokens;
}

/* Written in place: LMDB makes the room and hands it over. */
firni_code firni_index_put_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table,
                                const firn_digest *identity, const firni_kept *row)
{
    firn_digest digest = firni_kept_key(table, identity, row->ns, row->name);
    const size_t n_ns = strlen(row->ns), n_name = strlen(row->name);
    MDB_val key = { .mv_size = sizeof digest.bytes, .mv_data = digest.bytes };
    MDB_val value = { .mv_size = (size_t)firni_kept_bytes(row), .mv_data = NULL };
    const firni_code code = mdb_put(txn, table_of(index, table), &key, &value, MDB_RESERVE);
    if (code != 0) {
        return code;
    }
    uint8_t *at = value.mv_data;
    firni_put_u64(at, row->until_wall_ns);
    firni_put_u64(at + 8, row->used_wall_ns);
    firni_put_u32(at + 16, row->n_tokens);
    firni_put_u16(at + 20, (uint16_t)n_ns);
    firni_put_u16(at + 22, (uint16_t)n_name);
    memcpy(at + 24, identity->bytes, sizeof identity->bytes);
    at += ROW_FIXED_BYTES;
    memcpy(at, row->ns, n_ns + 1);
    memcpy(at + n_ns + 1, row->name, n_name + 1);
    if (row->n_tokens > 0) {
        memcpy(at + n_ns + n_name + 2, row->tokens, 4 * (size_t)row->n_tokens);
    }
    return 0;
}

static bool decode(const MDB_val *value, firni_kept *out)
{
    const uint8_t *at = value->mv_data;
    if (value->mv_size < ROW_FIXED_BYTES + 2) {
        return false;
    }
    *out = (firni_kept){ .until_wall_ns = firni_get_u64(at),
                         .used_wall_ns = firni_get_u64(at + 8),
                         .n_tokens = firni_get_u32(at + 16) };
    const size_t n_ns = firni_get_u16(at + 20), n_name = firni_get_u16(at + 22);
    const uint64_t n_bytes = ROW_FIXED_BYTES + n_ns + n_name + 2 + UINT64_C(4) * out->n_tokens;
    if (value->mv_size != n_bytes || n_ns > FIRN_NAMESPACE_BYTES_MAX || at[ROW_FIXED_BYTES + n_ns] != 0 ||
        at[ROW_FIXED_BYTES + n_ns + 1 + n_name] != 0) {
        return false;
    }
    out->ns = (const char *)at + ROW_FIXED_BYTES;
    out->name = out->ns + n_ns + 1;
    out->tokens = at + ROW_FIXED_BYTES + n_ns + n_name + 2;
    return true;
}

firni_code firni_index_get_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key,
                                firni_kept *out)
{
    firn_digest digest = *key;
    MDB_val db_key = { .mv_size = sizeof digest.bytes, .mv_data = digest.bytes }, value;
    const firni_code code = mdb_get(txn, table_of(index, table), &db_key, &value);
    return code != 0 ? code : decode(&value, out) ? 0 : MDB_CORRUPTED;
}

firni_code firni_index_del_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key)
{
    firn_digest digest = *key;
    MDB_val db_key = { .mv_size = sizeof digest.bytes, .mv_data = digest.bytes };
    return mdb_del(txn, table_of(index, table), &db_key, NULL);
}

firni_code firni_index_next_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table,
                                 const firn_digest *identity, firn_digest *key, firni_kept *out)
{
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(txn, table_of(index, table), &cursor);
    if (code != 0) {
        return code;
    }
    firn_digest start = *key;
    MDB_val db_key = { .mv_size = sizeof start.bytes, .mv_data = start.bytes }, value;
    code = mdb_cursor_get(cursor, &db_key, &value, MDB_SET_RANGE);
    if (code == 0 && db_key.mv_size == sizeof start.bytes &&
        memcmp(db_key.mv_data, start.bytes, sizeof start.bytes) == 0) {
        code = mdb_cursor_get(cursor, &db_key, &value, MDB_NEXT);
    }
    while (code == 0 && db_key.mv_size == sizeof key->bytes && decode(&value, out) &&
           memcmp((const uint8_t *)value.mv_data + 24, identity->bytes, sizeof identity->bytes) != 0) {
        code = mdb_cursor_get(cursor, &db_key, &value, MDB_NEXT); /* another model's */
    }
    if (code == 0 && (db_key.mv_size != sizeof key->bytes || !decode(&value, out))) {
        code = MDB_CORRUPTED;
    }
    if (code == 0) {
        memcpy(key->bytes, db_key.mv_data, sizeof key->bytes);
    }
    mdb_cursor_close(cursor);
    return code;
}
