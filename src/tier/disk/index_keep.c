/*
 * The index, sixth part: what is kept by name. Three tables of one form: pins, sessions, and the names of objects.
 *
 *      key     SHA-256 over table, identity, namespace and name      a name of any length is a key of 32 bytes
 *      value   until | used | n_tokens | lengths | identity | namespace, NUL | name, NUL | tokens
 *
 * The value says again what the key is made of, so that rows can be listed. Owns the byte form (docs/FORMAT.md).
 */
#include <errno.h>
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
    const firn_digest digest = firni_kept_key(table, identity, row->ns, row->name);
    const size_t n_ns = strlen(row->ns), n_name = strlen(row->name), n_plain = (size_t)firni_kept_bytes(row);
    uint8_t stored[FIRN_DIGEST_BYTES];
    firni_code code = firni_index_seal_digest(index, &digest, stored);
    if (code != 0) {
        return code;
    }
    MDB_val key = { .mv_size = sizeof stored, .mv_data = stored };
    MDB_val value = { .mv_size = n_plain + firni_index_row_surplus(index), .mv_data = NULL };
    code = mdb_put(txn, table_of(index, table), &key, &value, MDB_RESERVE);
    if (code != 0) {
        return code;
    }
    uint8_t *at = value.mv_data;
    const size_t n_clear = ROW_FIXED_BYTES + n_ns + 1;
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
    return firni_index_seal_row(index, stored, value.mv_data, n_clear, n_plain - n_clear);
}

void firni_kept_release(const firn_env *env, firni_kept *row)
{
    if (row->opened != NULL) {
        firni_crypt_forget(row->opened, row->n_opened);
        firni_free(env, row->opened);
        row->opened = NULL;
    }
}

/* Opens name and tokens of a sealed row into memory of its own; of a locked one there are none. */
static firni_code open_secret(const firni_index *index, const firn_env *env, const uint8_t *key, const uint8_t *row,
                              size_t n_clear, size_t n_secret, firni_kept *out)
{
    if (index->is_locked) {
        out->name = "";
        out->tokens = NULL;
        out->n_tokens = 0;
        return 0;
    }
    out->opened = firni_calloc(env, n_secret, 1);
    if (out->opened == NULL) {
        return ENOMEM;
    }
    out->n_opened = n_secret;
    const firni_code code = firni_index_open_row(index, key, row, n_clear, n_secret, out->opened);
    out->name = (const char *)out->opened;
    return code;
}

/* On failure *out holds nothing. */
static firni_code decode(const firni_index *index, const firn_env *env, const uint8_t *key, const MDB_val *value,
                         firni_kept *out)
{
    const uint8_t *at = value->mv_data;
    *out = (firni_kept){ .opened = NULL };
    if (value->mv_size < ROW_FIXED_BYTES + 2) {
        return MDB_CORRUPTED;
    }
    *out = (firni_kept){ .until_wall_ns = firni_get_u64(at),
                         .used_wall_ns = firni_get_u64(at + 8),
                         .n_tokens = firni_get_u32(at + 16) };
    const size_t n_ns = firni_get_u16(at + 20), n_name = firni_get_u16(at + 22), n_clear = ROW_FIXED_BYTES + n_ns + 1;
    const uint64_t n_bytes = n_clear + n_name + 1 + UINT64_C(4) * out->n_tokens;
    if (value->mv_size != n_bytes + firni_index_row_surplus(index) || n_ns > FIRN_NAMESPACE_BYTES_MAX ||
        at[n_clear - 1] != 0) {
        return MDB_CORRUPTED;
    }
    out->ns = (const char *)at + ROW_FIXED_BYTES;
    out->name = (const char *)at + n_clear;
    firni_code code = 0;
    if (index->crypt != NULL || index->is_locked) {
        code = open_secret(index, env, key, at, n_clear, (size_t)n_bytes - n_clear, out);
    }
    if (code == 0 && !index->is_locked) {
        out->tokens = (const uint8_t *)out->name + n_name + 1;
        code = out->name[n_name] == '\0' ? 0 : MDB_CORRUPTED;
    }
    if (code != 0) {
        firni_kept_release(env, out);
    }
    return code;
}

firni_code firni_index_get_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key,
                                const firn_env *env, firni_kept *out)
{
    *out = (firni_kept){ .opened = NULL };
    uint8_t stored[FIRN_DIGEST_BYTES];
    firni_code code = firni_index_seal_digest(index, key, stored);
    if (code == 0) {
        MDB_val db_key = { .mv_size = sizeof stored, .mv_data = stored }, value;
        code = mdb_get(txn, table_of(index, table), &db_key, &value);
        code = code == 0 ? decode(index, env, stored, &value, out) : code;
    }
    return code;
}

firni_code firni_index_del_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key)
{
    uint8_t stored[FIRN_DIGEST_BYTES];
    const firni_code code = firni_index_seal_digest(index, key, stored);
    MDB_val db_key = { .mv_size = sizeof stored, .mv_data = stored };
    return code == 0 ? mdb_del(txn, table_of(index, table), &db_key, NULL) : code;
}

/* Whether a row is of another model: to be passed over. */
static bool is_of_other(const MDB_val *value, const firn_digest *identity)
{
    return value->mv_size >= ROW_FIXED_BYTES &&
           memcmp((const uint8_t *)value->mv_data + 24, identity->bytes, sizeof identity->bytes) != 0;
}

firni_code firni_index_next_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table,
                                 const firn_digest *identity, const firn_env *env, firn_digest *key, firni_kept *out)
{
    *out = (firni_kept){ .opened = NULL };
    MDB_cursor *cursor = NULL;
    uint8_t start[FIRN_DIGEST_BYTES];
    firni_code code = firni_index_seal_digest(index, key, start);
    code = code == 0 ? mdb_cursor_open(txn, table_of(index, table), &cursor) : code;
    if (code != 0) {
        return code;
    }
    MDB_val db_key = { .mv_size = sizeof start, .mv_data = start }, value;
    code = mdb_cursor_get(cursor, &db_key, &value, MDB_SET_RANGE);
    if (code == 0 && db_key.mv_size == sizeof start && memcmp(db_key.mv_data, start, sizeof start) == 0) {
        code = mdb_cursor_get(cursor, &db_key, &value, MDB_NEXT);
    }
    while (code == 0 && is_of_other(&value, identity)) {
        code = mdb_cursor_get(cursor, &db_key, &value, MDB_NEXT);
    }
    if (code == 0) {
        code = db_key.mv_size == sizeof key->bytes ? decode(index, env, db_key.mv_data, &value, out)
                                                   : MDB_CORRUPTED;
    }
    if (code == 0) {
        code = firni_index_open_digest(index, db_key.mv_data, key);
    }
    if (code != 0) {
        firni_kept_release(env, out);
    }
    mdb_cursor_close(cursor);
    return code;
}
