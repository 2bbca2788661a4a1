/*
 * Rows of what is kept by name: written, deleted and listed; sessions; and forgetting a path.
 *
 * A row is written under the writer's lock, and room is made for the pages it takes: tokens of a long conversation are
 * hundreds of kilobytes. Lists read one row per transaction and hand out copies, so that a slow visitor keeps no old
 * pages from being used again.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/ledger_impl.h"

#define SESSIONS_MAX 4096u
#define PAGE_BYTES   4096u

static firn_status fail_reason(const firni_disk *disk, firn_reason reason, firn_error *err)
{
    return firni_fail(err, reason == FIRN_REASON_NO_MEMORY ? FIRN_ERR_NO_MEMORY : FIRN_ERR_IO,
                      "%s cannot be used now (%s)", disk->dir, firn_reason_name(reason));
}

static const firn_digest *identity_of(const firni_disk *disk)
{
    return &disk->options.schema->identity;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The oldest session, when there are too many. Found by a look at each: that is rare. */
static firni_code drop_oldest_session(firni_disk *disk, firni_volume *volume, MDB_txn *txn)
{
    MDB_stat stat;
    firni_code code = mdb_stat(txn, volume->index.sessions, &stat);
    if (code != 0 || stat.ms_entries < SESSIONS_MAX) {
        return code;
    }
    firn_digest key = { { 0 } }, oldest = { { 0 } };
    uint64_t oldest_ns = UINT64_MAX;
    firni_kept row;
    while ((code = firni_index_next_kept(&volume->index, txn, FIRNI_SESSIONS, identity_of(disk), disk->env, &key,
                                         &row)) == 0) {
        firni_kept_release(disk->env, &row);
        if (row.used_wall_ns < oldest_ns) {
            oldest_ns = row.used_wall_ns;
            oldest = key;
        }
    }
    if (code == MDB_NOTFOUND && oldest_ns != UINT64_MAX) {
        firni_disk_log_kept(disk, volume, FIRNI_SESSIONS, &oldest, NULL);
        code = firni_index_del_kept(&volume->index, txn, FIRNI_SESSIONS, &oldest);
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

static firni_code write_locked(firni_disk *disk, firni_volume *volume, firni_kept_table table, const firn_digest *key,
                               const firni_kept *row)
{
    MDB_txn *txn = NULL;
    firni_disk_prepare_ledger(disk, volume);
    const uint64_t ledger_end = volume->ledger.end;
    firni_code code = firni_index_begin(&volume->index, false, &txn);
    if (code != 0) {
        return code;
    }
    if (row == NULL) {
        code = firni_index_del_kept(&volume->index, txn, table, key);
    } else {
        code = table == FIRNI_SESSIONS ? drop_oldest_session(disk, volume, txn) : 0;
        code = code == 0 ? firni_index_put_kept(&volume->index, txn, table, identity_of(disk), row) : code;
    }
    if (code == 0) {
        firni_disk_log_kept(disk, volume, table, key, row);
        code = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    if (code != 0) {
        firni_ledger_take_back(volume, ledger_end);
    }
    firni_volume_measure(volume);
    return code;
}

firn_status firni_kept_write(firni_disk *disk, firni_kept_table table, const firn_digest *key, const firni_kept *row,
                             firn_error *err)
{
    firn_reason reason = FIRN_REASON_READ_ONLY;
    firni_volume *volume = disk->options.read_only ? NULL : firni_disk_enter(disk, true, &reason);
    if (volume == NULL) {
        return fail_reason(disk, reason, err);
    }
    const uint64_t n_pages = row != NULL ? 2 + firni_kept_bytes(row) / PAGE_BYTES : 1;
    firn_status status = FIRN_OK;
    pthread_mutex_lock(&disk->writer);
    reason = firni_disk_make_room(disk, volume, 0, (uint32_t)n_pages, FIRN_PRIORITY_MAX);
    if (reason == FIRN_REASON_NONE || row == NULL) { /* a row that goes is what makes room */
        reason = FIRN_REASON_NONE;
        const firni_code code = write_locked(disk, volume, table, key, row);
        if (code == MDB_NOTFOUND) {
            status = firni_fail(err, FIRN_ERR_NOT_FOUND, "there is nothing of this name");
        } else if (code != 0) {
            reason = firni_disk_failed(disk, volume, code, "writing a name");
        }
    }
    pthread_mutex_unlock(&disk->writer);
    firni_disk_leave(disk, volume);
    return reason != FIRN_REASON_NONE ? fail_reason(disk, reason, err) : status;
}

/* A row's own copy: namespace, name and tokens in one allocation. */
typedef struct row_copy {
    firni_kept row;
    firn_token *tokens;
    char *text;
} row_copy;

static bool copy_row(const firni_disk *disk, const firni_kept *row, row_copy *out)
{
    const size_t n_ns = strlen(row->ns) + 1, n_name = strlen(row->name) + 1;
    *out = (row_copy){ .row = *row,
                       .tokens = firni_calloc(disk->env, (size_t)row->n_tokens + 1, sizeof *out->tokens),
                       .text = firni_calloc(disk->env, n_ns + n_name, 1) };
    if (out->tokens == NULL || out->text == NULL) {
        return false;
    }
    memcpy(out->text, row->ns, n_ns);
    memcpy(out->text + n_ns, row->name, n_name);
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        out->tokens[i] = firni_get_u32(row->tokens + 4 * (size_t)i);
    }
    out->row.ns = out->text;
    out->row.name = out->text + n_ns;
    out->row.tokens = NULL;
    out->row.opened = NULL;
    return true;
}

static void free_copy(const firni_disk *disk, row_copy *copy)
{
    firni_free(disk->env, copy->tokens);
    firni_free(disk->env, copy->text);
}

/* The next row, or with `exact` the one of the key itself, copied. */
static firni_code read_row(const firni_disk *disk, const firni_volume *volume, firni_kept_table table, firn_digest *key,
                           bool exact, row_copy *out)
{
    *out = (row_copy){ .tokens = NULL };
    MDB_txn *txn = NULL;
    firni_kept row = { .opened = NULL };
    firni_code code = firni_index_begin(&volume->index, true, &txn);
    if (code == 0) {
        code = exact ? firni_index_get_kept(&volume->index, txn, table, key, disk->env, &row)
                     : firni_index_next_kept(&volume->index, txn, table, identity_of(disk), disk->env, key, &row);
    }
    if (code == 0 && !copy_row(disk, &row, out)) {
        code = ENOMEM;
    }
    firni_kept_release(disk->env, &row);
    mdb_txn_abort(txn);
    return code;
}

firn_status firni_kept_each(firni_disk *disk, firni_kept_table table, bool (*visit)(void *ctx, const firni_kept *row,
                            const firn_token *tokens), void *ctx, firn_error *err)
{
    firn_reason reason = FIRN_REASON_DISABLED;
    firni_volume *volume = disk->options.schema != NULL ? firni_disk_enter(disk, false, &reason) : NULL;
    if (volume == NULL) {
        return fail_reason(disk, reason, err);
    }
    firn_digest key = { { 0 } };
    firni_code code = 0;
    bool go_on = true;
    while (go_on && code == 0) {
        row_copy copy;
        code = read_row(disk, volume, table, &key, false, &copy);
        go_on = code == 0 && visit(ctx, &copy.row, copy.tokens);
        free_copy(disk, &copy);
    }
    reason = code != 0 && code != MDB_NOTFOUND ? firni_disk_failed(disk, volume, code, "listing names")
                                               : FIRN_REASON_NONE;
    firni_disk_leave(disk, volume);
    return reason == FIRN_REASON_NONE ? FIRN_OK : fail_reason(disk, reason, err);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

typedef struct pin_list {
    firni_disk *disk;
    uint64_t now_ns;
    bool (*visit)(void *ctx, const firn_pin *pin);
    void *ctx;
} pin_list;

static bool visit_pin(void *ctx, const firni_kept *row, const firn_token *tokens)
{
    const pin_list *list = ctx;
    if (row->until_wall_ns <= list->now_ns) {
        return true;
    }
    firn_pin pin = { .name = row->name,
                     .ns = row->ns,
                     .tokens = tokens,
                     .n_tokens = row->n_tokens,
                     .until_wall_ns = row->until_wall_ns };
    const firn_match match = firni_disk_look_up(list->disk, tokens, row->n_tokens, row->ns, true);
    for (uint32_t i = 0; match.handle != NULL && i < match.handle->n_records; i++) {
        pin.n_bytes += match.handle->entries[i].place.n_bytes;
    }
    if (match.handle != NULL) {
        pin.n_bytes += match.handle->has_checkpoint ? match.handle->checkpoint.place.n_bytes : 0;
        firni_disk_release(&list->disk->tier, match.handle);
    }
    return list->visit(list->ctx, &pin);
}

static firn_status each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    pin_list list = { .disk = disk, .now_ns = firni_wall_ns(disk->env), .visit = visit, .ctx = ctx };
    return firni_kept_each(disk, FIRNI_PINS, visit_pin, &list, err);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static firn_status put_session(firn_tier *tier, const firn_session *session, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    uint8_t *tokens = firni_calloc(disk->env, (size_t)session->n_tokens + 1, 4);
    if (tokens == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to note a session of %u tokens", session->n_tokens);
    }
    for (uint32_t i = 0; i < session->n_tokens; i++) {
        firni_put_u32(tokens + 4 * (size_t)i, session->tokens[i]);
    }
    const firni_kept row = { .used_wall_ns = session->used_wall_ns != 0 ? session->used_wall_ns
                                                                        : firni_wall_ns(disk->env),
                             .ns = session->ns,
                             .name = session->id,
                             .tokens = tokens,
                             .n_tokens = session->n_tokens };
    const firn_digest key = firni_kept_key(FIRNI_SESSIONS, identity_of(disk), session->ns, session->id);
    const firn_status status = firni_kept_write(disk, FIRNI_SESSIONS, &key, &row, err);
    firni_free(disk->env, tokens);
    return status;
}

static firn_session session_of(const firni_kept *row, const firn_token *tokens)
{
    return (firn_session){ .id = row->name,
                           .ns = row->ns,
                           .tokens = tokens,
                           .n_tokens = row->n_tokens,
                           .used_wall_ns = row->used_wall_ns };
}

static firn_status get_session(firn_tier *tier, const char *ns, const char *id,
                               void (*found)(void *ctx, const firn_session *session), void *ctx, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason = FIRN_REASON_DISABLED;
    firni_volume *volume = disk->options.schema != NULL ? firni_disk_enter(disk, false, &reason) : NULL;
    if (volume == NULL) {
        return fail_reason(disk, reason, err);
    }
    firn_digest key = firni_kept_key(FIRNI_SESSIONS, identity_of(disk), ns, id);
    row_copy copy;
    const firni_code code = read_row(disk, volume, FIRNI_SESSIONS, &key, true, &copy);
    firn_status status = FIRN_OK;
    if (code == MDB_NOTFOUND || (code == 0 && firni_disk_is_expired(disk, copy.row.used_wall_ns))) {
        status = firni_fail(err, FIRN_ERR_NOT_FOUND, "there is no session \"%.60s\"", id);
    } else if (code != 0) {
        status = fail_reason(disk, firni_disk_failed(disk, volume, code, "reading a session"), err);
    } else {
        const firn_session session = session_of(&copy.row, copy.tokens);
        found(ctx, &session);
    }
    free_copy(disk, &copy);
    firni_disk_leave(disk, volume);
    return status;
}

static firn_status remove_session(firn_tier *tier, const char *ns, const char *id, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    const firn_digest key = firni_kept_key(FIRNI_SESSIONS, identity_of(disk), ns, id);
    return firni_kept_write(disk, FIRNI_SESSIONS, &key, NULL, err);
}

typedef struct session_list {
    firni_disk *disk;
    bool (*visit)(void *ctx, const firn_session *session);
    void *ctx;
} session_list;

static bool visit_session(void *ctx, const firni_kept *row, const firn_token *tokens)
{
    const session_list *list = ctx;
    const firn_session session = session_of(row, tokens);
    return firni_disk_is_expired(list->disk, row->used_wall_ns) || list->visit(list->ctx, &session);
}

static firn_status each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session), void *ctx,
                                firn_error *err)
{
    session_list list = { .disk = firni_disk_of(tier), .visit = visit, .ctx = ctx };
    return firni_kept_each(list.disk, FIRNI_SESSIONS, visit_session, &list, err);
}

/* ---- forgetting -------------------------------------------------------------------------------------------------- */

/* Keys of one table that hang on a parent and are the beginning of, or begin with, these tokens: at most n_max. */
static firni_code find_along(const firni_index *index, MDB_txn *txn, firni_which which, const firn_digest *parent,
                             const firn_token *tokens, uint32_t n_tokens, firni_key *keys, uint32_t n_max, uint32_t *n)
{
    firni_key key = firni_key_make(which, parent, NULL, 0);
    const firni_key path = firni_key_make(which, parent, tokens, n_tokens);
    firni_entry entry;
    *n = 0;
    firni_code code = firni_index_get(index, txn, &key, &entry); /* an object without tokens */
    if (code == 0) {
        keys[(*n)++] = key;
    }
    while ((code == 0 || code == MDB_NOTFOUND) && *n < n_max) {
        code = firni_index_next(index, txn, &key, &entry);
        if (code != 0 || memcmp(key.bytes, parent->bytes, sizeof parent->bytes) != 0) {
            break;
        }
        const uint32_t n_bytes = key.n_bytes < path.n_bytes ? key.n_bytes : path.n_bytes;
        if (key.n_bytes <= path.n_bytes && memcmp(key.bytes, path.bytes, n_bytes) == 0) {
            keys[(*n)++] = key;
        }
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

/* What hangs on one block of the path: objects and checkpoints before the records that they lie on. */
static firni_code forget_block(firni_disk *disk, firni_volume *volume, const firn_digest *parent,
                               const firn_token *tokens, uint32_t n_tokens)
{
    static const firni_which order[] = { FIRNI_OBJECTS, FIRNI_CHECKPOINTS, FIRNI_RECORDS };
    firni_key keys[2 * FIRN_BLOCK_TOKENS];
    firni_code code = 0;
    for (unsigned t = 0; t < 3 && code == 0; t++) {
        uint32_t n_keys = 0, n_removed;
        MDB_txn *txn = NULL;
        code = firni_index_begin(&volume->index, true, &txn);
        if (code == 0) {
            code = find_along(&volume->index, txn, order[t], parent, tokens, n_tokens, keys,
                              sizeof keys / sizeof keys[0], &n_keys);
        }
        mdb_txn_abort(txn);
        code = code == 0 && n_keys > 0 ? firni_disk_remove_keys(disk, volume, keys, n_keys, &n_removed) : code;
    }
    return code;
}

static firn_status forget(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                          firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason = FIRN_REASON_READ_ONLY;
    const uint32_t n_blocks = (n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    firn_digest *parents = firni_calloc(disk->env, (size_t)n_blocks + 1, sizeof *parents);
    if (parents == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to forget %u tokens", n_tokens);
    }
    parents[0] = firn_chain_root(identity_of(disk), ns);
    for (uint32_t i = 0; i + 1 < n_blocks; i++) {
        parents[i + 1] = firn_chain_extend(&parents[i], tokens + (size_t)i * FIRN_BLOCK_TOKENS, FIRN_BLOCK_TOKENS);
    }
    firni_volume *volume = disk->options.read_only ? NULL : firni_disk_enter(disk, true, &reason);
    if (volume != NULL) {
        firni_code code = 0;
        pthread_mutex_lock(&disk->writer);
        for (uint32_t i = n_blocks; i-- > 0 && code == 0;) {
            const uint32_t first = i * FIRN_BLOCK_TOKENS;
            const uint32_t n_left = n_tokens - first;
            code = forget_block(disk, volume, &parents[i], tokens + first,
                                n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS);
        }
        pthread_mutex_unlock(&disk->writer);
        reason = code != 0 ? firni_disk_failed(disk, volume, code, "forgetting") : FIRN_REASON_NONE;
        firni_disk_leave(disk, volume);
    }
    firni_free(disk->env, parents);
    return reason == FIRN_REASON_NONE ? FIRN_OK : fail_reason(disk, reason, err);
}

const firn_keep_ops firni_disk_keep = {
    .pin = firni_disk_pin,
    .unpin = firni_disk_unpin,
    .each_pin = each_pin,
    .put_session = put_session,
    .get_session = get_session,
    .remove_session = remove_session,
    .each_session = each_session,
    .put_object = firni_disk_put_object,
    .find_object = firni_disk_find_object,
    .remove_object = firni_disk_remove_object,
    .each_object = firni_disk_each_object,
    .forget = forget,
};
