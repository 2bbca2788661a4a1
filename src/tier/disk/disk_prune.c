/*
 * Pruning: records that somebody chose leave, by age, size, namespace or model. Owns the choice; how records go is
 * disk_evict.c's, so the order of eviction holds here too: the lowest priority and the oldest first, nothing that
 * something else depends on, nothing that a reader was promised.
 *
 * Works without a schema, for a store of many models. What is pinned by name is known from the index alone then: the
 * digests along the path of each pin are computed from its tokens. Checkpoints and objects that hang on a pinned path
 * stay with it.
 *
 *      prune    pins hold; sessions that point at what goes find less, as after an eviction
 *      wipe     everything of a namespace, whatever is pinned, with its pins, sessions and keys
 *
 * A dry run is the real one up to the commit: the same transaction is made, and aborted.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/ledger_impl.h"

/* The incomplete block at a pinned path's end: it lies in a record that begins with these tokens. */
typedef struct held_tail {
    firn_digest parent;
    uint32_t n_tokens;
    firn_token tokens[FIRN_BLOCK_TOKENS];
} held_tail;

typedef struct prune {
    firni_disk *disk;
    firni_volume *volume;
    const firn_disk_prune_options *options;
    firn_disk_prune_report *report;
    /* What the last record's root is: neighbours in time mostly share it. */
    firn_digest root, identity;
    bool has_root, root_matches;
    firn_digest *held;          /* digests on pinned paths, sorted */
    size_t n_held, held_capacity;
    held_tail *tails;
    size_t n_tails, tails_capacity;
} prune;

static firn_status fail_code(firn_error *err, firni_code code, const firni_disk *disk)
{
    return firni_fail(err, code == ENOMEM ? FIRN_ERR_NO_MEMORY : FIRN_ERR_IO, "cannot prune %s: %s", disk->dir,
                      mdb_strerror(code));
}

/* ---- what is pinned ---------------------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(firn_digest));
}

static bool hold(prune *job, const firn_digest *digest)
{
    if (job->n_held == job->held_capacity) {
        const size_t wanted = job->held_capacity > 0 ? 2 * job->held_capacity : 256;
        firn_digest *grown = firni_grow(job->disk->env, job->held, job->n_held, wanted, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        job->held = grown;
        job->held_capacity = wanted;
    }
    job->held[job->n_held++] = *digest;
    return true;
}

static bool hold_tail(prune *job, const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens)
{
    if (job->n_tails == job->tails_capacity) {
        const size_t wanted = job->tails_capacity > 0 ? 2 * job->tails_capacity : 16;
        held_tail *grown = firni_grow(job->disk->env, job->tails, job->n_tails, wanted, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        job->tails = grown;
        job->tails_capacity = wanted;
    }
    held_tail *tail = &job->tails[job->n_tails++];
    *tail = (held_tail){ .parent = *parent, .n_tokens = n_tokens };
    memcpy(tail->tokens, tokens, n_tokens * sizeof tokens[0]);
    return true;
}

/* The chains of one row, under its namespace and those above it. */
static firni_code hold_row(prune *job, const firn_digest *identity, firni_kept_table table, const firni_kept *row)
{
    firni_levels levels;
    firni_levels_of(row->ns, &levels);
    for (uint32_t level = 0; level < levels.n; level++) {
        firn_digest digest = table == FIRNI_PINS ? firn_chain_root(identity, levels.names[level])
                                                 : firni_object_root(identity, levels.names[level], row->name);
        if (table == FIRNI_KEYS && !hold(job, &digest)) {
            return ENOMEM;
        }
        firn_token tokens[FIRN_BLOCK_TOKENS];
        for (uint32_t at = 0; table == FIRNI_PINS && at < row->n_tokens; at += FIRN_BLOCK_TOKENS) {
            const uint32_t n_left = row->n_tokens - at;
            const uint32_t n = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
            for (uint32_t i = 0; i < n; i++) {
                tokens[i] = firni_get_u32(row->tokens + 4 * ((size_t)at + i));
            }
            if (n < FIRN_BLOCK_TOKENS && !hold_tail(job, &digest, tokens, n)) {
                return ENOMEM;
            }
            digest = firn_chain_extend(&digest, tokens, n);
            if (!hold(job, &digest)) {
                return ENOMEM;
            }
        }
    }
    return 0;
}

static firni_code hold_pins_of(prune *job, MDB_txn *txn, const firn_digest *identity)
{
    const uint64_t now_ns = firni_wall_ns(job->disk->env);
    static const firni_kept_table tables[] = { FIRNI_PINS, FIRNI_KEYS };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        firn_digest key = { { 0 } };
        firni_kept row;
        firni_code code;
        while ((code = firni_index_next_kept(&job->volume->index, txn, tables[i], identity, job->disk->env, &key,
                                             &row)) == 0) {
            code = row.until_wall_ns > now_ns ? hold_row(job, identity, tables[i], &row) : 0;
            firni_kept_release(job->disk->env, &row);
            if (code != 0) {
                return code;
            }
        }
        if (code != MDB_NOTFOUND) {
            return code;
        }
    }
    return 0;
}

/* Of every model that has records here. Its key in the table is its digest. */
static firni_code hold_pins(prune *job)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    firni_code code = firni_index_begin(&job->volume->index, true, &txn);
    if (code == 0) {
        code = mdb_cursor_open(txn, job->volume->index.identities, &cursor);
    }
    MDB_val key, value;
    for (MDB_cursor_op op = MDB_FIRST; code == 0 && (code = mdb_cursor_get(cursor, &key, &value, op)) == 0;
         op = MDB_NEXT) {
        firn_digest identity;
        code = key.mv_size == sizeof identity.bytes ? 0 : MDB_CORRUPTED;
        if (code == 0) {
            memcpy(identity.bytes, key.mv_data, sizeof identity.bytes);
            code = hold_pins_of(job, txn, &identity);
        }
    }
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    if (job->n_held > 0) {
        qsort(job->held, job->n_held, sizeof *job->held, by_digest);
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

static bool is_held_tail(const prune *job, const firni_key *key, const firn_digest *parent)
{
    firn_token tokens[FIRN_BLOCK_TOKENS];
    const uint32_t n_tokens = firni_key_tokens(key, tokens);
    for (size_t i = 0; i < job->n_tails; i++) {
        const held_tail *tail = &job->tails[i];
        if (firni_digest_equal(&tail->parent, parent) && tail->n_tokens <= n_tokens &&
            memcmp(tail->tokens, tokens, tail->n_tokens * sizeof tokens[0]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_held(const prune *job, const firni_key *key, const firni_entry *entry)
{
    if (job->n_held == 0) {
        return false;
    }
    const firn_digest parent = firni_key_parent(key);
    const bool hangs_on = key->which != FIRNI_RECORDS &&
                          bsearch(&parent, job->held, job->n_held, sizeof parent, by_digest) != NULL;
    return hangs_on || bsearch(&entry->digest, job->held, job->n_held, sizeof parent, by_digest) != NULL ||
           is_held_tail(job, key, &parent);
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static bool text_has(const char *text, size_t n_text, const char *part)
{
    const size_t n_part = strlen(part);
    for (size_t i = 0; i + n_part <= n_text; i++) {
        if (memcmp(text + i, part, n_part) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the entry's namespace and model are those that were named. */
static firni_code matches(prune *job, MDB_txn *txn, const firni_entry *entry, bool *out)
{
    const firn_disk_prune_options *options = job->options;
    if (job->has_root && firni_digest_equal(&job->root, &entry->root)) {
        *out = job->root_matches;
        return 0;
    }
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1] = "";
    const char *text = "";
    size_t n_text = 0;
    uint64_t n_records, n_roots;
    firni_code code = firni_index_get_root(&job->volume->index, txn, &entry->root, &job->identity, ns, &n_records);
    if (code == 0) {
        code = firni_index_get_identity(&job->volume->index, txn, &job->identity, &text, &n_text, &n_roots);
    }
    if (code == 0) {
        job->root = entry->root;
        job->has_root = true;
        job->root_matches = (options->ns == NULL || strcmp(options->ns, ns) == 0) &&
                            (options->identity_part == NULL || text_has(text, n_text, options->identity_part));
    }
    *out = code == 0 && job->root_matches;
    return code;
}

static bool is_enough(const prune *job, uint64_t n_bytes_gone)
{
    const uint64_t to_bytes = job->options->to_bytes;
    const uint64_t now_bytes = firni_volume_physical_bytes(job->volume);
    return to_bytes > 0 && now_bytes <= to_bytes + n_bytes_gone;
}

/* The next entries to go, from *rank on, at most FIRNI_EVICT_BATCH; *rank moves behind the last that was looked at. */
static firni_code choose(prune *job, MDB_txn *txn, firni_rank *rank, firni_key *keys, firni_entry *entries, uint32_t *n)
{
    *n = 0;
    while (*n < FIRNI_EVICT_BATCH) {
        firni_entry *entry = &entries[*n];
        firni_code code = firni_index_oldest(&job->volume->index, txn, *rank, &keys[*n], entry);
        if (code != 0) {
            return code;
        }
        *rank = (firni_rank){ .priority = entry->priority, .stamp = entry->stamp + 1 };
        bool wanted = false;
        code = matches(job, txn, entry, &wanted);
        if (code != 0) {
            return code;
        }
        const uint64_t before_ns = job->options->unused_since_wall_ns;
        wanted = wanted && (before_ns == 0 || entry->stamp < before_ns);
        if (wanted && is_held(job, &keys[*n], entry)) {
            job->report->n_pinned++;
        } else {
            *n += wanted;
        }
    }
    return 0;
}

/* All of it in one transaction that is never committed. */
static firni_code try_out(prune *job)
{
    const firni_index *index = &job->volume->index;
    MDB_txn *txn = NULL;
    firni_key keys[FIRNI_EVICT_BATCH];
    firni_entry entries[FIRNI_EVICT_BATCH];
    firni_rank rank = { .priority = FIRN_PRIORITY_MIN };
    firni_code code = firni_index_begin(index, false, &txn);
    bool at_end = false;
    while (code == 0 && !at_end) {
        uint32_t n;
        code = choose(job, txn, &rank, keys, entries, &n);
        at_end = code == MDB_NOTFOUND;
        code = at_end ? 0 : code;
        for (uint32_t i = 0; i < n && code == 0 && !is_enough(job, job->report->n_bytes); i++) {
            bool has_dependants = false;
            code = firni_index_has_dependants(index, txn, &keys[i], &entries[i], &has_dependants);
            if (code == 0 && !has_dependants) {
                code = firni_index_remove(index, txn, &keys[i], &entries[i]);
                job->report->n_records++;
                job->report->n_bytes += entries[i].place.n_bytes;
            }
        }
        at_end = at_end || is_enough(job, job->report->n_bytes);
    }
    mdb_txn_abort(txn);
    return code;
}

/* One walk from the oldest to the youngest. */
static firni_code sweep(prune *job, uint32_t *n_gone)
{
    firni_key keys[FIRNI_EVICT_BATCH];
    firni_entry entries[FIRNI_EVICT_BATCH];
    firni_rank rank = { .priority = FIRN_PRIORITY_MIN };
    firni_code code = 0;
    job->report->n_pinned = 0;
    *n_gone = 0;
    while (code == 0 && !is_enough(job, 0)) {
        MDB_txn *txn = NULL;
        uint32_t n = 0, n_removed = 0;
        code = firni_index_begin(&job->volume->index, true, &txn);
        const firni_code chosen = code == 0 ? choose(job, txn, &rank, keys, entries, &n) : code;
        mdb_txn_abort(txn);
        if (chosen != 0 && chosen != MDB_NOTFOUND) {
            return chosen;
        }
        const uint64_t before_bytes = firni_volume_physical_bytes(job->volume);
        code = firni_disk_remove_keys(job->disk, job->volume, keys, n, &n_removed);
        const uint64_t after_bytes = firni_volume_physical_bytes(job->volume);
        job->report->n_records += n_removed;
        job->report->n_bytes += before_bytes > after_bytes ? before_bytes - after_bytes : 0;
        *n_gone += n_removed;
        if (chosen == MDB_NOTFOUND) {
            break;
        }
    }
    return code;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Deletes what the namespace keeps by name, of every model. */
static firni_code forget_names(prune *job, MDB_txn *txn)
{
    const firni_index *index = &job->volume->index;
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(txn, index->identities, &cursor);
    MDB_val db_key, value;
    for (MDB_cursor_op op = MDB_FIRST; code == 0 && (code = mdb_cursor_get(cursor, &db_key, &value, op)) == 0;
         op = MDB_NEXT) {
        firn_digest identity;
        assert(db_key.mv_size == sizeof identity.bytes);
        memcpy(identity.bytes, db_key.mv_data, sizeof identity.bytes);
        for (firni_kept_table table = FIRNI_PINS; table <= FIRNI_KEYS && code == 0; table++) {
            firn_digest key = { { 0 } };
            firni_kept row;
            while ((code = firni_index_next_kept(index, txn, table, &identity, job->disk->env, &key, &row)) == 0) {
                const bool is_meant = strcmp(row.ns, job->options->ns) == 0;
                firni_kept_release(job->disk->env, &row);
                if (is_meant && (code = firni_index_del_kept(index, txn, table, &key)) != 0) {
                    break;
                }
            }
            code = code == MDB_NOTFOUND ? 0 : code;
        }
    }
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

/* Before the records: the identities, by which rows are found, go with their last record. */
static firni_code wipe_names(prune *job)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&job->volume->index, false, &txn);
    if (code == 0) {
        code = forget_names(job, txn);
    }
    if (code != 0) {
        mdb_txn_abort(txn);
        return code;
    }
    code = mdb_txn_commit(txn);
    if (code == 0) {
        firni_disk_renew_ledger(job->disk, job->volume);
    }
    return code;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

firn_status firn_disk_prune(firn_tier *tier, const firn_disk_prune_options *options, firn_disk_prune_report *report,
                            firn_error *err)
{
    *report = (firn_disk_prune_report){ 0 };
    firni_disk *disk = firni_disk_of(tier);
    if (disk->options.read_only) {
        return firni_fail(err, FIRN_ERR_STATE, "%s was opened for reading only", disk->dir);
    }
    if (disk->is_locked && !options->wipe) {
        return firni_fail(err, FIRN_ERR_KEY, "%s is encrypted; what is pinned there cannot be told without its key",
                          disk->dir);
    }
    if (options->wipe && (options->ns == NULL || options->dry_run)) {
        return firni_fail(err, FIRN_ERR_INVALID, "a namespace has to be named to be wiped, and there is no trying it");
    }
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s cannot be read now (%s)", disk->dir, firn_reason_name(reason));
    }
    prune job = { .disk = disk, .volume = volume, .options = options, .report = report };
    pthread_mutex_lock(&disk->writer);
    (void)firni_disk_upkeep(disk, volume); /* so that the order of stamps is the true one */
    firni_code code = options->wipe ? wipe_names(&job) : hold_pins(&job);
    if (code == 0 && options->dry_run) {
        code = try_out(&job);
    }
    /* What something depended on when its turn came may be free in the next walk. */
    for (uint32_t n_gone = 1; code == 0 && !options->dry_run && n_gone > 0;) {
        code = sweep(&job, &n_gone);
    }
    pthread_mutex_unlock(&disk->writer);
    firni_free(disk->env, job.held);
    firni_free(disk->env, job.tails);
    firni_disk_leave(disk, volume);
    return code == 0 ? FIRN_OK : fail_code(err, code, disk);
}
