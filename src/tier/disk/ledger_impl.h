/*
 * The ledger: a second copy, beside the index, of what segments do not say: pins, sessions, keys of objects, and
 * priorities that were raised after a record was written. `firn cache fsck` reads it; nothing else does.
 *
 *      ledger-NNNNNNNN.firn    | head, 64 bytes | line | line | line | ...       appended, never rewritten in place
 *
 * A line is some hundred bytes, says one thing that is kept or removed, and takes the place of all lines before it that
 * name the same. Of a path of tokens it has the digests that the path has in the namespace and in those above it, and
 * the tokens behind its last full block: the others are in the records that these digests name.
 *
 * When a line is written: right before the transaction of the index that it stands for, so that the ledger is never
 * behind an acknowledged change. A line whose transaction fails is taken back. A pin and an object are synced with
 * their line; the use of a session, and a raised priority, are not: the kernel writes a page of such lines at a time,
 * and a flush makes them durable.
 *
 * The index is the truth. A ledger that cannot be written is removed, which costs no operation anything, and is made
 * anew from the index when it can be: also when more than half of it is out of date, when a namespace is wiped, and
 * for a store that has none yet. A new file is whole, and synced, before its head makes it one; then the old one goes.
 *
 * The form is docs/FORMAT.md's. All functions: the caller holds the writer's lock, or is alone.
 */
#ifndef FIRNI_LEDGER_IMPL_H
#define FIRNI_LEDGER_IMPL_H

#include "tier/disk/disk_impl.h"

/* What a line is about. Persisted. */
typedef enum firni_ledger_kind {
    FIRNI_LEDGER_PIN = 1,
    FIRNI_LEDGER_SESSION = 2,
    FIRNI_LEDGER_KEY = 3,
    FIRNI_LEDGER_PRIORITY = 4
} firni_ledger_kind;

/* One line, read. */
typedef struct firni_ledger_line {
    uint64_t at;                 /* where in the file */
    firni_ledger_kind kind;
    bool is_removed;             /* then it has only `key` */
    firn_digest key;             /* of the row in the index; of a priority: the record's digest */
    int8_t priority;             /* the record is of this one at least */
    uint64_t until_wall_ns, used_wall_ns;
    firn_digest identity;
    uint32_t n_tokens, n_levels;
    firn_digest chains[FIRN_NAMESPACE_LEVELS_MAX]; /* after the last full block, in each level */
    firn_token rest[FIRN_BLOCK_TOKENS];            /* n_tokens % FIRN_BLOCK_TOKENS */
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1], name[FIRN_KEEP_NAME_BYTES_MAX + 1];
} firni_ledger_line;

/* Lines on their way into one file. */
typedef struct firni_ledger_batch {
    const firn_env *env;
    const firni_crypt *crypt;
    const uint8_t *salt;
    uint64_t begin;              /* where in the file the first goes */
    uint8_t *bytes;
    size_t n_bytes, capacity;
    firni_code code;             /* the first failure; then nothing is added any more */
} firni_ledger_batch;

/* ---- ledger_line.c: the byte form -------------------------------------------------------------------------------- */

void firni_ledger_add_kept(firni_ledger_batch *batch, firni_kept_table table, const firn_digest *identity,
                           const firni_kept *row);
void firni_ledger_add_removed(firni_ledger_batch *batch, firni_kept_table table, const firn_digest *key);
void firni_ledger_add_priority(firni_ledger_batch *batch, const firn_digest *record, int8_t priority);
void firni_ledger_batch_free(firni_ledger_batch *batch);

/* A whole file in memory. */
typedef struct firni_ledger_text {
    const firni_crypt *crypt;
    uint8_t *bytes;
    uint64_t n_bytes;
    const uint8_t *salt;
    uint64_t n_damaged;          /* stretches that are no line */
} firni_ledger_text;

/* The next line at *at or behind; *at moves past it. False at the end. What is damaged is passed over and counted. */
bool firni_ledger_next(firni_ledger_text *text, uint64_t *at, firni_ledger_line *out);

/* ---- ledger.c: the file ------------------------------------------------------------------------------------------ */

#define FIRNI_LEDGER_HEAD_BYTES 64u

/* Parses "ledger-NNNNNNNN.firn"; 0 when the name is another. */
uint32_t firni_ledger_number_of(const char *name);
/* Takes the newest of these files that is whole and of this key, and unlinks the others, unless `look_only`. Having
 * none is no failure. is_locked: of whatever key, to be given up and no more. */
void firni_ledger_open(firni_volume *volume, const uint32_t *numbers, uint32_t n_numbers, const firni_crypt *crypt,
                       bool is_locked, bool look_only);
void firni_ledger_close(firni_volume *volume);
void firni_ledger_measure(firni_volume *volume); /* any thread */
uint64_t firni_ledger_physical_bytes(firni_volume *volume); /* any thread */
/* A batch for the end of the file. */
firni_ledger_batch firni_ledger_begin(const firni_volume *volume, const firni_crypt *crypt);
/* Appends the batch and frees it. Where that fails, or something of it failed before, the ledger is given up. */
void firni_ledger_append(firni_volume *volume, firni_ledger_batch *batch, bool sync);
/* Takes back what was appended since the file ended there. */
void firni_ledger_take_back(firni_volume *volume, uint64_t end);
firni_code firni_ledger_sync(firni_volume *volume);
/* Removes the file: what it said is in the index, or is to be forgotten. */
void firni_ledger_give_up(firni_volume *volume);
/* Begins a file with these lines, whose salt is not yet the volume's; it is durable. On failure the old one stands. */
firni_code firni_ledger_create(firni_volume *volume, const firni_ledger_batch *batch);
/* Reads all of it; text->bytes is to be freed. Nothing when there is no ledger. */
firni_code firni_ledger_read(firni_volume *volume, const firni_crypt *crypt, firni_ledger_text *out);

/* ---- disk_ledger.c: when ----------------------------------------------------------------------------------------- */

/* Makes the ledger one that lines may be appended to: makes it anew when it is not. No transaction is open. */
void firni_disk_prepare_ledger(firni_disk *disk, firni_volume *volume);
/* A ledger without what was wiped. */
void firni_disk_renew_ledger(firni_disk *disk, firni_volume *volume);
/* Makes the ledger of a store that has what belongs into one, and has none. */
void firni_disk_make_first_ledger(firni_disk *disk, firni_volume *volume);
/* The line of a row that is about to be written, or deleted (row NULL). */
void firni_disk_log_kept(firni_disk *disk, firni_volume *volume, firni_kept_table table, const firn_digest *key,
                         const firni_kept *row);
/* The lines of what a handle names of a lower priority, which becomes one of this. */
void firni_disk_log_raised(firni_disk *disk, firni_volume *volume, const firn_tier_handle *handle, int priority);
bool firni_handle_is_raised(const firn_tier_handle *handle, int priority); /* whether there are any */

#endif
