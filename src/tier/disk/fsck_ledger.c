/*
 * A rebuild's other half: from the ledger, the rows of what was kept by name, and the priorities that were raised.
 *
 *      ledger --read--> the last line of each name --segments--> tokens --the rebuild's transaction--> rows
 *
 * A line has the digest of a path's last full block: the block's record, and those before it, have the tokens. A path
 * whose records are not all there has lost its name with them, and is counted. Without a ledger nothing is kept by name
 * and records have the priorities that they were written with.
 *
 * Changes nothing on disk: the ledger stays, and goes on with the store.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/fsck_impl.h"
#include "tier/disk/ledger_impl.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* By what a line is about; of one thing the last first. */
static int by_key(const void *a, const void *b)
{
    const firni_fsck_line *left = a, *right = b;
    if (left->kind != right->kind) {
        return left->kind < right->kind ? -1 : 1;
    }
    const int keys = memcmp(left->key.bytes, right->key.bytes, FIRN_DIGEST_BYTES);
    return keys != 0 ? keys : (right->at > left->at) - (right->at < left->at);
}

static firni_code read_lines(firni_fsck *job, firni_ledger_text *text)
{
    firni_ledger_line line;
    uint64_t capacity = 0;
    for (uint64_t at = FIRNI_LEDGER_HEAD_BYTES; firni_ledger_next(text, &at, &line);) {
        if (job->n_lines == capacity) {
            capacity = 2 * capacity + 64;
            firni_fsck_line *grown = firni_grow(job->env, job->lines, job->n_lines, capacity, sizeof *grown);
            if (grown == NULL) {
                return ENOMEM;
            }
            job->lines = grown;
        }
        job->lines[job->n_lines++] = (firni_fsck_line){ .key = line.key,
                                                        .at = line.at,
                                                        .kind = (uint8_t)line.kind,
                                                        .priority = line.priority,
                                                        .is_removed = line.is_removed };
    }
    return 0;
}

/* Keeps the last line of each. */
static void choose_last(firni_fsck *job)
{
    uint64_t n = 0;
    if (job->n_lines == 0) {
        return;
    }
    qsort(job->lines, job->n_lines, sizeof *job->lines, by_key);
    for (uint64_t i = 0; i < job->n_lines; i++) {
        const firni_fsck_line *line = &job->lines[i];
        const bool is_last = i == 0 || line[-1].kind != line->kind || !firni_digest_equal(&line[-1].key, &line->key);
        job->lines[i].is_last = is_last;
    }
    for (uint64_t i = 0; i < job->n_lines; i++) {
        if (job->lines[i].is_last && !job->lines[i].is_removed) {
            job->lines[n++] = job->lines[i];
        }
    }
    job->n_lines = n;
}

firni_code firni_fsck_read_ledger(firni_fsck *job)
{
    const firni_code code = firni_ledger_read(job->volume, job->crypt, &job->ledger);
    job->report.has_ledger = job->volume->ledger.number != 0 && code == 0;
    if (code != 0) {
        return code == ENOMEM ? code : 0; /* one that cannot be read is as good as none */
    }
    const firni_code read = read_lines(job, &job->ledger);
    choose_last(job);
    job->report.n_ledger_damaged = job->ledger.n_damaged;
    return read;
}

/* ---- priorities -------------------------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    const firni_fsck_line *left = a, *right = b;
    return memcmp(left->key.bytes, right->key.bytes, FIRN_DIGEST_BYTES);
}

void firni_fsck_raise(firni_fsck *job)
{
    uint64_t first = job->n_lines; /* priorities are the last kind, in the order of their digests */
    while (first > 0 && job->lines[first - 1].kind == FIRNI_LEDGER_PRIORITY) {
        first--;
    }
    for (uint64_t i = 0; i < job->n_found && first < job->n_lines; i++) {
        firni_entry *entry = &job->found[i].entry;
        const firni_fsck_line wanted = { .key = entry->digest };
        const firni_fsck_line *line =
            bsearch(&wanted, job->lines + first, job->n_lines - first, sizeof wanted, by_digest);
        if (line != NULL && line->priority > entry->priority) {
            entry->priority = line->priority;
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The record of the path's last full block: the namespace's own, or of one above it. */
static const firni_found *last_block(const firni_fsck *job, const firni_ledger_line *line)
{
    firni_levels levels;
    firni_levels_of(line->ns, &levels);
    for (uint32_t level = 0; level < line->n_levels && level < levels.n; level++) {
        const firn_digest root = firn_chain_root(&line->identity, levels.names[level]);
        const firni_found *block = firni_fsck_block(job, &line->chains[level]);
        if (block != NULL && block->is_kept && firni_digest_equal(&block->entry.root, &root) &&
            block->entry.first_token / FIRN_BLOCK_TOKENS + 1 == line->n_tokens / FIRN_BLOCK_TOKENS) {
            return block;
        }
    }
    return NULL;
}

/* All tokens of the path, as a row has them. NULL: not all of it is stored, or (*code) there is no memory. */
static uint8_t *find_tokens(const firni_fsck *job, const firni_ledger_line *line, firni_code *code)
{
    const uint32_t n_full = line->n_tokens - line->n_tokens % FIRN_BLOCK_TOKENS;
    const firni_found *block = n_full > 0 ? last_block(job, line) : NULL;
    if (n_full > 0 && block == NULL) {
        return NULL;
    }
    uint8_t *tokens = firni_calloc(job->env, (size_t)line->n_tokens + 1, 4);
    if (tokens == NULL) {
        *code = ENOMEM;
        return NULL;
    }
    for (; block != NULL; block = block->before) {
        for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
            firni_put_u32(tokens + 4 * ((size_t)block->entry.first_token + i), block->tokens[i]);
        }
    }
    for (uint32_t i = n_full; i < line->n_tokens; i++) {
        firni_put_u32(tokens + 4 * (size_t)i, line->rest[i - n_full]);
    }
    return tokens;
}

static firni_code add_path(firni_fsck *job, MDB_txn *txn, const firni_ledger_line *line, uint64_t *counter)
{
    firni_code code = 0;
    uint8_t *tokens = find_tokens(job, line, &code);
    if (tokens == NULL) {
        job->report.n_names_lost += code == 0;
        return code;
    }
    const firni_kept row = { .until_wall_ns = line->until_wall_ns,
                             .used_wall_ns = line->used_wall_ns,
                             .ns = line->ns,
                             .name = line->name,
                             .tokens = tokens,
                             .n_tokens = line->n_tokens };
    code = firni_index_put_kept(&job->volume->index, txn,
                                line->kind == FIRNI_LEDGER_PIN ? FIRNI_PINS : FIRNI_SESSIONS, &line->identity, &row);
    *counter += code == 0;
    firni_free(job->env, tokens);
    return code;
}

/* An object that was evicted leaves its line behind, as it leaves its row. */
static firni_code add_key(firni_fsck *job, MDB_txn *txn, const firni_ledger_line *line)
{
    const firn_digest root = firni_object_root(&line->identity, line->ns, line->name);
    const firni_key key = firni_key_make(FIRNI_OBJECTS, &root, NULL, 0);
    firni_entry entry;
    firni_code code = firni_index_get(&job->volume->index, txn, &key, &entry);
    if (code != 0) {
        return code == MDB_NOTFOUND ? 0 : code;
    }
    const firni_kept row = { .until_wall_ns = line->until_wall_ns,
                             .used_wall_ns = line->used_wall_ns,
                             .ns = line->ns,
                             .name = line->name };
    code = firni_index_put_kept(&job->volume->index, txn, FIRNI_KEYS, &line->identity, &row);
    job->report.n_keys += code == 0;
    return code;
}

firni_code firni_fsck_add_names(firni_fsck *job, MDB_txn *txn)
{
    const uint64_t now_ns = firni_wall_ns(job->env);
    firni_code code = 0;
    for (uint64_t i = 0; i < job->n_lines && code == 0; i++) {
        firni_ledger_line line;
        uint64_t at = job->lines[i].at;
        if (job->lines[i].kind == FIRNI_LEDGER_PRIORITY || !firni_ledger_next(&job->ledger, &at, &line)) {
            continue;
        }
        assert(firni_digest_equal(&line.key, &job->lines[i].key));
        if (line.kind == FIRNI_LEDGER_SESSION) {
            code = add_path(job, txn, &line, &job->report.n_sessions);
        } else if (line.kind == FIRNI_LEDGER_KEY) {
            code = add_key(job, txn, &line);
        } else if (line.until_wall_ns > now_ns) {
            code = add_path(job, txn, &line, &job->report.n_pins);
        }
    }
    return code;
}
