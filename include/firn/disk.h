/*
 * The disk tier: a firn_tier in one directory.
 *
 *      DIR/firn.lock           held by the one writer
 *      DIR/index/              LMDB: digest of a token chain -> where its record lies
 *      DIR/seg-00000001.firn   records, appended, never rewritten; evicted ranges are punched out
 *      DIR/ledger-00000001.firn   what is kept by name, once more, for `firn cache fsck`
 *      DIR/quarantine is a state of index entries, not a folder: a corrupt record is never served again
 *
 * One record holds up to 64 tokens over all layers, a checkpoint the fixed-size states of all layers at one count. A
 * growing conversation writes only its new blocks and, for models with such states, a checkpoint. The format is
 * docs/FORMAT.md; what the tier promises is in firn/tier.h. The directory is 0700, its files 0600.
 */
#ifndef FIRN_DISK_H
#define FIRN_DISK_H

#include "firn/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum firn_durability {
    FIRN_DURABILITY_BATCH = 0, /* default: data is synced before the index names it; once per store. A power failure may
                                * undo the last commit of the index; a flush, or the next commit, makes it certain */
    FIRN_DURABILITY_NONE = 1,  /* records are not synced: a power failure may lose them, never corrupt an answer */
    FIRN_DURABILITY_ALWAYS = 2 /* as batch, and the index is synced before store returns */
} firn_durability;

#define FIRN_DISK_KEY_BYTES  32u        /* of the key of an encrypted store */
#define FIRN_DISK_NO_RESERVE UINT64_MAX /* as min_free_bytes: stores may fill the file system */

typedef struct firn_disk_options {
    const char *dir;             /* required; created when missing */
    const firn_schema *schema;   /* NULL: open for inspection only (stat, ls): find and store answer DISABLED */
    firn_pool *pool;             /* restored blocks come from here; required with a schema */
    uint64_t budget_bytes;       /* most physical bytes, index included; 0: 16 GiB; less than 64 MiB is refused */
    uint64_t min_free_bytes;     /* of the file system, that a store leaves to others: it evicts, or is refused with
                                  * DISK_FULL, before less is free. 0: a twentieth of the file system, at most 2 GiB */
    uint64_t segment_bytes;      /* a new segment file is started beyond this; 0: 256 MiB */
    firn_durability durability;
    uint64_t ttl_ns;             /* records not used for this long are misses and are evicted first; 0: no limit */
    uint64_t demote_idle_ns;     /* records not used for this long are rewritten compressed, while nobody uses the tier,
                                  * where that saves a tenth or more; 0: never */
    bool read_only;              /* do not take the writer's lock; stores are refused with READ_ONLY. For other
                                  * processes than the writer's: LMDB allows one environment per process */
    bool buffered;               /* do not use O_DIRECT even where the file system has it */
    uint64_t stop_ns;            /* firn_tier_destroy waits no longer for I/O that does not return; 0: 5 seconds. Then
                                  * the tier is left behind with its threads, which is logged as an error, and env,
                                  * schema and pool stay in use until that I/O returns */
    const uint8_t *key;          /* [FIRN_DISK_KEY_BYTES], uniformly random: the store is encrypted with it, which is
                                  * decided when it is made. NULL: not. Copied, and needed no longer than the call */
} firn_disk_options;

/* Opens or creates a store. Start-up does not depend on the number of records. Errors: IO (message names the path and
 * what to do), BUSY (another process is the writer), FORMAT (the directory holds another version or something
 * foreign), KEY (it was made with another key, with one where none is given, or without; nothing stored was changed),
 * INVALID. Without a schema an encrypted store is opened without its key, too: digests are then the stored ones, which
 * are not those of any tokens. */
firn_status firn_disk_open(const firn_disk_options *options, const firn_env *env, firn_tier **out, firn_error *err);

typedef enum firn_disk_kind {
    FIRN_DISK_TOKENS = 0,     /* up to 64 tokens of a chain, with the layers' token blocks */
    FIRN_DISK_CHECKPOINT = 1, /* fixed-size states after first_token + n_tokens tokens */
    FIRN_DISK_OBJECT = 2      /* attachments at that count */
} firn_disk_kind;

/* One record as seen by an inspector. Strings are valid during the call. */
typedef struct firn_disk_record {
    firn_digest digest, parent;
    firn_disk_kind kind;
    uint32_t first_token, n_tokens;
    uint32_t n_full, n_window, n_fixed; /* layers of each family whose state it holds */
    uint64_t n_bytes;
    uint64_t plain_bytes;               /* larger than n_bytes: it was demoted, and took so much before */
    uint64_t last_used_wall_ns;
    int priority;                       /* as in firn_store_input */
    const char *ns;
    const char *identity_text;
    bool quarantined;
} firn_disk_record;

/* Calls visit for each record, in no stated order, until it returns false. */
firn_status firn_disk_visit(firn_tier *tier, bool (*visit)(void *ctx, const firn_disk_record *record), void *ctx,
                            firn_error *err);
/* What is kept by name, of whichever model: firn/keep.h without one. Strings are valid during the call. */
typedef enum firn_disk_name_kind {
    FIRN_DISK_NAME_PIN = 0,
    FIRN_DISK_NAME_SESSION = 1,
    FIRN_DISK_NAME_OBJECT = 2
} firn_disk_name_kind;

typedef struct firn_disk_name {
    firn_disk_name_kind kind;
    const char *identity_text, *ns;
    const char *name;                   /* NULL: the store is encrypted, and was opened without its key */
    uint32_t n_tokens;                  /* of the path; 0 without the key */
    uint64_t until_wall_ns;             /* of what is pinned its end, which may have passed; else 0 */
    uint64_t used_wall_ns;
} firn_disk_name;

/* Calls visit for each, in no stated order, until it returns false. */
firn_status firn_disk_visit_names(firn_tier *tier, bool (*visit)(void *ctx, const firn_disk_name *name), void *ctx,
                                  firn_error *err);
/* Reads and verifies every record; counts those that fail and quarantines them when this process is the writer. KEY:
 * the store is encrypted, and was opened without its key. */
firn_status firn_disk_verify(firn_tier *tier, uint64_t *n_good, uint64_t *n_bad, firn_error *err);

typedef struct firn_disk_demote_report {
    uint64_t n_demoted;          /* records that are compressed now */
    uint64_t plain_bytes, n_bytes; /* of these: before, and now */
    uint64_t n_incompressible;   /* that gain too little, and are not tried again */
} firn_disk_demote_report;

/* Compresses now what has not been used for demote_idle_ns, as the tier itself does when nobody uses it: records that
 * nobody was promised or pinned, a few megabytes at a time, within the budget. For the writer. Errors: STATE (opened
 * for reading, or demote_idle_ns is 0), IO, NO_MEMORY; what was done before a failure stays. */
firn_status firn_disk_demote(firn_tier *tier, firn_disk_demote_report *report, firn_error *err);

typedef struct firn_disk_fsck_options {
    bool headers_only; /* believe what a record's header says of its sections: fast, and restores still verify them */
    const uint8_t *key; /* as in firn_disk_options */
} firn_disk_fsck_options;

typedef struct firn_disk_fsck_report {
    uint64_t n_segments, n_records; /* that the new index names */
    uint64_t record_bytes;          /* of these records */
    uint64_t n_damaged;             /* records whose header or sections do not verify */
    uint64_t n_orphans;             /* without the records that they continue or lie on */
    uint64_t n_superseded;          /* another record of the same tokens has as much or more */
    uint64_t freed_bytes;           /* given back: of the three above, and what belongs to no record */
    bool has_ledger;                /* false: pins, sessions, the list of keys and raised priorities are lost */
    uint64_t n_pins, n_sessions, n_keys; /* kept by name, and named again */
    uint64_t n_names_lost;          /* pins and sessions whose paths are not all stored */
    uint64_t n_ledger_damaged;      /* stretches of the ledger that cannot be read */
} firn_disk_fsck_report;

/* Makes the index of a store anew from its segments and its ledger: when it is lost, damaged or of another version.
 * What namespaces stored behind records of those above them, priorities, pins, sessions and keys come back; records
 * count as used when they were written. No process may be using the directory. Nothing that is stored changes before
 * the end, and a run that is interrupted can be repeated. options may be NULL. Errors: BUSY, FORMAT (no store, or
 * records of another version: nothing was changed), KEY (records of another key than was given, or encrypted and plain
 * ones: nothing was changed), IO, NO_MEMORY. */
firn_status firn_disk_fsck(const char *dir, const firn_disk_fsck_options *options, const firn_env *env,
                           firn_disk_fsck_report *out, firn_error *err);
/* What is to go: all that every member which is not zero applies to. */
typedef struct firn_disk_prune_options {
    uint64_t unused_since_wall_ns; /* last used before this time */
    uint64_t to_bytes;             /* the oldest, until the tier takes no more than this; the index does not shrink */
    const char *ns;                /* of this namespace */
    const char *identity_part;     /* of models whose identity's text contains this */
    bool dry_run;                  /* only say what would go */
    bool wipe;                     /* of the namespace `ns`: what is pinned too, with its pins, sessions and keys */
} firn_disk_prune_options;

typedef struct firn_disk_prune_report {
    uint64_t n_records, n_bytes;   /* that went, or would */
    uint64_t n_pinned;             /* that stay because they are pinned by name */
} firn_disk_prune_report;

/* Removes what the options choose, the lowest priority and the oldest first; never a record that another depends on,
 * one of a namespace below included, nor one that a reader was promised. For the writer; works without a schema.
 * Errors: STATE (opened for reading), KEY (encrypted and opened without its key: then only `wipe` works), INVALID, IO,
 * NO_MEMORY; what went before a failure is gone. */
firn_status firn_disk_prune(firn_tier *tier, const firn_disk_prune_options *options, firn_disk_prune_report *report,
                            firn_error *err);
/* Asserts that index, segments and byte accounting agree. For tests; stores wait meanwhile. */
firn_status firn_disk_check(firn_tier *tier, firn_error *err);

#ifdef __cplusplus
}
#endif
#endif
