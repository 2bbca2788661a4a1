/*
 * Looking from outside at what is kept by name: pins, sessions and keys of all models, one after the other.
 *
 * Owns no state, and works without a schema, as disk_inspect.c does for records. One index transaction for each name.
 */
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

/* Where a walk stands: behind `key` in one table of one model. */
typedef struct name_walk {
    firn_digest identity, key;
    bool has_identity;
    firni_kept_table table;
} name_walk;

/* The model behind the walk's; the first when it has none. */
static firni_code next_identity(const firni_index *index, MDB_txn *txn, name_walk *walk)
{
    MDB_cursor *cursor = NULL;
    MDB_val key = { .mv_size = sizeof walk->identity.bytes, .mv_data = walk->identity.bytes }, value;
    firni_code code = mdb_cursor_open(txn, index->identities, &cursor);
    if (code != 0) {
        return code;
    }
    code = mdb_cursor_get(cursor, &key, &value, walk->has_identity ? MDB_SET_RANGE : MDB_FIRST);
    if (code == 0 && walk->has_identity && key.mv_size == sizeof walk->identity.bytes &&
        memcmp(key.mv_data, walk->identity.bytes, key.mv_size) == 0) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (code == 0) {
        code = key.mv_size == sizeof walk->identity.bytes ? 0 : MDB_CORRUPTED;
    }
    if (code == 0) {
        memcpy(walk->identity.bytes, key.mv_data, key.mv_size);
        walk->has_identity = true;
        walk->table = FIRNI_PINS;
        memset(&walk->key, 0, sizeof walk->key);
    }
    mdb_cursor_close(cursor);
    return code;
}

/* The next row; MDB_NOTFOUND when there is none. */
static firni_code next_row(const firni_disk *disk, const firni_index *index, MDB_txn *txn, name_walk *walk,
                           firni_kept *row)
{
    firni_code code = walk->has_identity ? 0 : next_identity(index, txn, walk);
    while (code == 0) {
        code = firni_index_next_kept(index, txn, walk->table, &walk->identity, disk->env, &walk->key, row);
        if (code != MDB_NOTFOUND) {
            return code;
        }
        memset(&walk->key, 0, sizeof walk->key);
        code = walk->table == FIRNI_KEYS ? next_identity(index, txn, walk) : 0;
        walk->table = code != 0 || walk->table == FIRNI_KEYS ? FIRNI_PINS : walk->table + 1;
    }
    return code;
}

/* Hands the row out; *go_on is what the visitor says. */
static firni_code show(const firni_disk *disk, const firni_index *index, MDB_txn *txn, const name_walk *walk,
                       const firni_kept *row, bool (*visit)(void *ctx, const firn_disk_name *name), void *ctx,
                       bool *go_on)
{
    const char *borrowed;
    size_t n_text;
    uint64_t n_roots;
    const firni_code code = firni_index_get_identity(index, txn, &walk->identity, &borrowed, &n_text, &n_roots);
    char *text = code == 0 ? firni_calloc(disk->env, n_text + 1, 1) : NULL;
    if (text == NULL) {
        return code != 0 ? code : ENOMEM;
    }
    memcpy(text, borrowed, n_text);
    static const firn_disk_name_kind kinds[] = { [FIRNI_PINS] = FIRN_DISK_NAME_PIN,
                                                 [FIRNI_SESSIONS] = FIRN_DISK_NAME_SESSION,
                                                 [FIRNI_KEYS] = FIRN_DISK_NAME_OBJECT };
    const firn_disk_name name = { .kind = kinds[walk->table],
                                  .identity_text = text,
                                  .ns = row->ns,
                                  .name = index->is_locked ? NULL : row->name,
                                  .n_tokens = row->n_tokens,
                                  .until_wall_ns = row->until_wall_ns,
                                  .used_wall_ns = row->used_wall_ns };
    *go_on = visit(ctx, &name);
    firni_free(disk->env, text);
    return 0;
}

firn_status firn_disk_visit_names(firn_tier *tier, bool (*visit)(void *ctx, const firn_disk_name *name), void *ctx,
                                  firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s cannot be read now (%s)", disk->dir, firn_reason_name(reason));
    }
    name_walk walk = { .has_identity = false };
    firni_code code = 0;
    for (bool go_on = true; go_on && code == 0;) {
        MDB_txn *txn = NULL;
        firni_kept row = { .opened = NULL };
        code = firni_index_begin(&volume->index, true, &txn);
        code = code == 0 ? next_row(disk, &volume->index, txn, &walk, &row) : code;
        code = code == 0 ? show(disk, &volume->index, txn, &walk, &row, visit, ctx, &go_on) : code;
        firni_kept_release(disk->env, &row);
        mdb_txn_abort(txn);
    }
    firni_disk_leave(disk, volume);
    if (code == 0 || code == MDB_NOTFOUND) {
        return FIRN_OK;
    }
    return firni_fail(err, code == ENOMEM ? FIRN_ERR_NO_MEMORY : FIRN_ERR_IO, "cannot list the names in %s: %s",
                      disk->dir, mdb_strerror(code));
}
