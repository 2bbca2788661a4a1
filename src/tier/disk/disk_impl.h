/*
 * disk: one directory as a firn_tier. This header is the map of the folder.
 *
 *      disk.c          table of operations, open, close, statistics, state       disk_lookup.c   find: tokens -> handle
 *      volume.c        the attached directory: marker, lock, recovery            disk_handle.c   pins and touches
 *      holes.c         ranges on their way back to the file system               disk_path.c     what of a path serves
 *      segment.c       segment files: append, punch, physical bytes              disk_restore.c  handle -> caches
 *      index.c         LMDB: environment, transactions, segments, holes          disk_read.c     records -> blocks
 *      index_entry.c   LMDB: records, objects, checkpoints, recency              disk_object.c   attachments
 *      index_root.c    LMDB: namespaces and identities                           disk_delta.c    caches -> what is new
 *      index_rank.c    LMDB: the order in which entries go                       disk_pin.c      pinned by name
 *      index_link.c    LMDB: namespaces above namespaces                         disk_keep.c     sessions, lists
 *      index_keep.c    LMDB: what is kept by name                                disk_named.c    objects by key
 *      index_seal.c    what of it is encrypted
 *      disk_prune.c    what is chosen to go
 *      disk_inspect.c  visit and verify                                          disk_store.c    what is new -> named
 *      disk_names.c    what is kept by name, seen from outside
 *      disk_check.c    the books, audited                                        disk_write.c    records -> files
 *      disk_memo.c     walks of the last lookups
 *      fsck.c          a new index from segments and ledger       fsck_scan.c     segments -> the records in them
 *      fsck_ledger.c   what was kept by name
 *      disk_worker.c   the threads of asynchronous restores                      disk_evict.c    room, expiry, upkeep
 *      disk_layers.c   records -> blocks, layer by layer         disk_demote.c   idle records -> packed ones
 *      disk_packed.c   packed records -> blocks
 *      disk_ledger.c   ledger.c   ledger_line.c   a second copy of what segments do not say (ledger_impl.h)
 *
 * How a record becomes visible (disk_store.c): bytes appended, synced, then named by one index transaction. How it goes
 * (disk_evict.c): unnamed by one index transaction that also logs its range as a hole, then punched, then the log
 * entry is dropped with the next transaction. A process that dies between two steps leaves bytes that no entry names:
 * beyond a segment's logged end, or in the log of holes. Both are punched when the directory is attached again.
 *
 * Promises to handles. A handle pins its records: eviction asks under `mutex` whether a record is pinned, and in the
 * same step *condemns* it, so that no later lookup can pin it. A lookup that read the index before an eviction, or uses
 * of records, were committed notices by `epoch` and reads again, whether it found something or not.
 *
 * Locks, in the order in which they may be nested:
 *      writer           the single-writer rule itself: held by a store, an eviction or upkeep, across its I/O
 *      mutex            short, no I/O: handles, pending touches, suspects, condemned, counters, the volume pointer
 *      segments.mutex   short, no I/O: the table of segments
 *      worker.mutex     short, no I/O: the queue
 */
#ifndef FIRNI_DISK_IMPL_H
#define FIRNI_DISK_IMPL_H

#include <errno.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base_impl.h"
#include "firn/disk.h"
#include "firn/keep.h"
#include "record/record_impl.h"
#include "tier/usable_impl.h"

#define FIRNI_DISK_MARKER        "firn disk tier, format 1\n"
#define FIRNI_DISK_INDEX_VERSION 2u
#define FIRNI_DISK_BUDGET_MIN    (UINT64_C(64) << 20)
#define FIRNI_DISK_PATH_MAX      4096u
#define FIRNI_KEY_BYTES_MAX      (FIRN_DIGEST_BYTES + 4u * FIRN_BLOCK_TOKENS)
#define FIRNI_TOUCHES_MAX        64u
#define FIRNI_SUSPECTS_MAX       64u
#define FIRNI_EVICT_BATCH        64u
#define FIRNI_MEMOS_MAX          8u
#define FIRNI_IOV_MAX            512u  /* entries of one vectored call */

/* Result of a system or LMDB call inside this folder: 0, an errno, or one of LMDB's negative codes. */
typedef int firni_code;

/* Where a record's bytes lie. A range of a segment is never used twice, so equal places mean equal bytes. */
typedef struct firni_place {
    uint32_t segment;
    uint64_t offset, n_bytes;
} firni_place;

/* ---- segment.c --------------------------------------------------------------------------------------------------- */

typedef struct firni_segment {
    uint32_t id;
    int fd;                  /* -1 while closed */
    uint32_t n_users;        /* of fd */
    uint64_t end;            /* where the next record goes; writer only */
    uint64_t physical_bytes;
    bool is_unsynced;        /* written without a sync since */
    bool is_inherited;       /* a former process may have left it so */
    bool is_removed;         /* unlinked; goes with its last user */
} firni_segment;

typedef struct firni_segments {
    const firn_env *env;
    const char *dir;         /* the disk's */
    bool read_only, buffered;
    pthread_mutex_t mutex;
    firni_segment *list;     /* guarded by mutex, sorted by id; elements move, so nothing points at them */
    uint32_t n, capacity;
    uint32_t n_open;
    uint64_t physical_bytes; /* guarded by mutex: sum over list */
} firni_segments;

void firni_segments_init(firni_segments *segments, const firn_env *env, const char *dir, bool read_only, bool buffered);
void firni_segments_deinit(firni_segments *segments); /* no users left */
#define FIRNI_SEGMENT_WHOLE UINT64_MAX
/* Makes the table know an existing file. end: what the index says; bytes beyond it are punched by the writer. WHOLE:
 * all of the file, nothing is punched. */
firni_code firni_segments_adopt(firni_segments *segments, uint32_t id, uint64_t end);
/* Creates an empty segment file, durable in its directory. */
firni_code firni_segments_create(firni_segments *segments, uint32_t id);
/* Opens the segment's file if necessary and keeps it open until firni_segment_leave. */
firni_code firni_segment_use(firni_segments *segments, uint32_t id, int *fd);
void firni_segment_leave(firni_segments *segments, uint32_t id);
/* Appends iov, whose total is `n_bytes`, at the segment's end. On failure the end has moved past what was written. */
firni_code firni_segment_append(firni_segments *segments, uint32_t id, const struct iovec *iov, uint32_t n_iov,
                                uint64_t n_bytes, uint64_t *offset);
firni_code firni_segment_sync(firni_segments *segments, uint32_t id);
firni_code firni_segment_punch(firni_segments *segments, const firni_place *place);
firni_code firni_segment_unlink(firni_segments *segments, uint32_t id);
uint64_t firni_segment_end(firni_segments *segments, uint32_t id); /* 0 when there is none */
uint64_t firni_segments_physical_bytes(firni_segments *segments);
uint32_t firni_segments_count(firni_segments *segments);
uint32_t firni_segment_next(firni_segments *segments, uint32_t after); /* the lowest number above; 0: none */
void firni_segments_measure(firni_segments *segments); /* asks for each file again */
/* Syncs whatever was written without one, by this process or by those before it. */
firni_code firni_segments_sync_all(firni_segments *segments);
/* Parses "seg-NNNNNNNN.firn"; 0 when the name is another. */
uint32_t firni_segment_id_of(const char *name);

/* ---- index.c, index_entry.c, index_root.c ------------------------------------------------------------------------ */

/* Tables of entries; persisted in the recency table. */
typedef enum firni_which { FIRNI_RECORDS = 1, FIRNI_OBJECTS = 2, FIRNI_CHECKPOINTS = 3 } firni_which;

#define FIRNI_WHICH_LAST FIRNI_CHECKPOINTS

/* Key of a record: parent digest, then its tokens big-endian, so that the children of a parent are ordered by their
 * tokens and the best partial match is a neighbour of the wanted key. */
typedef struct firni_key {
    firni_which which;
    uint32_t n_bytes;
    uint8_t bytes[FIRNI_KEY_BYTES_MAX];
} firni_key;

typedef struct firni_entry {
    firni_record_kind kind;
    bool is_quarantined;
    uint32_t first_token, n_tokens;
    uint32_t reusable_from;  /* no shorter prefix can be resumed from this record's state */
    uint16_t n_full, n_window, n_fixed; /* layers of each family whose state the record holds; of window layers those of
                                         * the first kinds */
    firni_place place;
    uint64_t plain_bytes;    /* of a packed record: before it was; else 0 */
    bool is_incompressible;  /* packing was tried, and gained too little */
    uint64_t created_wall_ns;
    uint64_t stamp;          /* recency: wall time of the last use, made unique */
    int8_t priority;         /* the highest of those who stored it: lower ones are evicted first */
    firn_digest digest, root;
} firni_entry;

/* Where an entry stands among those that may go: by priority, then by stamp. */
typedef struct firni_rank {
    int priority;
    uint64_t stamp;
} firni_rank;


typedef struct firni_index {
    MDB_env *env;
    const firni_crypt *crypt;    /* the store is encrypted; NULL: it is not, or is_locked */
    bool is_locked;              /* it is encrypted and this is without its key: see index_seal.c */
    MDB_dbi meta, records, objects, checkpoints, recency, segments, holes, roots, identities, texts;
    MDB_dbi ranked, links, pins, sessions, keys;
} firni_index;

typedef struct firni_segment_info {
    uint64_t end, n_records, live_bytes;
} firni_segment_info;

typedef enum firni_index_use {
    FIRNI_INDEX_READ,    /* by another process than the writer */
    FIRNI_INDEX_WRITE,   /* it is there */
    FIRNI_INDEX_NEW,     /* it may have to be made: nothing is stored yet */
    FIRNI_INDEX_REBUILD  /* empty, and not complete before firni_index_complete is committed */
} firni_index_use;

/* Which key a store must have been made with. */
typedef struct firni_unlock {
    const firni_crypt *crypt; /* borrowed while the index is open; NULL: none */
    bool may_be_locked;       /* without a key, an encrypted store may be looked at as far as that goes */
} firni_unlock;

/* Errors: CORRUPT (damaged, incomplete or of another version: the message names the command that helps), KEY (made
 * with another key, with one or without; nothing was changed), IO. */
firn_status firni_index_open(firni_index *index, const char *dir, firni_index_use use, uint64_t budget_bytes,
                             const firni_unlock *unlock, firn_error *err);
/* Whether the index is a file that was never finished: a power failure while it was made. */
bool firni_index_is_torn(const char *dir);
/* With this transaction an index that is being rebuilt becomes one. */
firni_code firni_index_complete(const firni_index *index, MDB_txn *txn);
void firni_index_close(firni_index *index);
firni_code firni_index_begin(const firni_index *index, bool read_only, MDB_txn **out);
uint64_t firni_index_physical_bytes(const firni_index *index, const firn_env *env, const char *dir);
/* Bytes by which a transaction that changes n entries may make an index of index_bytes grow. */
uint64_t firni_index_reserve_bytes(uint64_t index_bytes, uint64_t n_entries);
uint64_t firni_index_entries_max(uint64_t budget_bytes);

firni_code firni_index_next_segment(const firni_index *index, MDB_txn *txn, uint32_t *out);
firni_code firni_index_set_next_segment(const firni_index *index, MDB_txn *txn, uint32_t id);
firni_code firni_index_get_segment(const firni_index *index, MDB_txn *txn, uint32_t id, firni_segment_info *out);
firni_code firni_index_put_segment(const firni_index *index, MDB_txn *txn, uint32_t id, const firni_segment_info *info);
firni_code firni_index_del_segment(const firni_index *index, MDB_txn *txn, uint32_t id);
firni_code firni_index_put_hole(const firni_index *index, MDB_txn *txn, const firni_place *place);
firni_code firni_index_del_hole(const firni_index *index, MDB_txn *txn, const firni_place *place);
/* The first logged hole after `after` (zeroed: from the start); MDB_NOTFOUND at the end. */
firni_code firni_index_next_hole(const firni_index *index, MDB_txn *txn, const firni_place *after, firni_place *out);
firni_code firni_index_last_stamp(const firni_index *index, MDB_txn *txn, uint64_t *out);

firni_key firni_key_make(firni_which which, const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens);
uint32_t firni_key_tokens(const firni_key *key, firn_token tokens[FIRN_BLOCK_TOKENS]); /* returns their number */
firn_digest firni_key_parent(const firni_key *key);
bool firni_key_decode(firni_which which, const void *bytes, size_t n_bytes, firni_key *out); /* false: not a key */

/* index_seal.c: between memory and LMDB. In a store that is not encrypted these copy. Errors: ENOMEM, MDB_CORRUPTED. */
firni_code firni_index_seal_digest(const firni_index *index, const firn_digest *digest, uint8_t out[FIRN_DIGEST_BYTES]);
firni_code firni_index_open_digest(const firni_index *index, const uint8_t bytes[FIRN_DIGEST_BYTES], firn_digest *out);
firni_code firni_index_seal_key(const firni_index *index, const firni_key *key, firni_key *out);
firni_code firni_index_open_key(const firni_index *index, firni_which which, const void *bytes, size_t n_bytes,
                                firni_key *out);
firni_code firni_index_open_entry(const firni_index *index, const MDB_val *value, firni_entry *out);
size_t firni_index_row_surplus(const firni_index *index); /* bytes that a sealed row is longer by */
firni_code firni_index_seal_row(const firni_index *index, const uint8_t key[FIRN_DIGEST_BYTES], uint8_t *row,
                                size_t n_clear, size_t n_secret);
firni_code firni_index_open_row(const firni_index *index, const uint8_t key[FIRN_DIGEST_BYTES], const uint8_t *row,
                                size_t n_clear, size_t n_secret, uint8_t *out);

firni_code firni_index_get(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *out);
/* Adds an entry that is not there: recency, namespace, identity and segment counts follow. */
firni_code firni_index_add(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *entry,
                           const firn_schema *schema, const char *ns);
/* Removes an entry with all that was counted for it. */
firni_code firni_index_remove(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *entry);
firni_code firni_index_touch(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry,
                             uint64_t stamp);
/* The same, and the entry's priority becomes at least this. */
firni_code firni_index_raise(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry,
                             uint64_t stamp, int priority);
/* Says where the entry's record lies now, in what form, and whether packing it has been tried in vain; segment counts
 * follow, and the stamp stays. */
firni_code firni_index_move(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *from,
                            const firni_entry *to);
firni_code firni_index_quarantine(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry);
/* Whether any entry is the child of this digest. */
firni_code firni_index_has_children(const firni_index *index, MDB_txn *txn, const firn_digest *digest, bool *out);
/* The longest key of the table, among the children of wanted's parent, whose tokens `wanted` begins with: of at most
 * n_tokens tokens. MDB_NOTFOUND when there is none. */
firni_code firni_index_prefix(const firni_index *index, MDB_txn *txn, firni_which which, const firni_key *wanted,
                              uint32_t n_tokens, firni_key *key, firni_entry *entry);
/* Whether a checkpoint lies on this record that lies on no other: on records that begin with its tokens. */
firni_code firni_index_has_checkpoint(const firni_index *index, MDB_txn *txn, const firni_key *record, bool *out);
/* index_rank.c: the row that says when an entry goes. */
firni_code firni_index_put_rank(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_rank rank);
firni_code firni_index_del_rank(const firni_index *index, MDB_txn *txn, firni_rank rank);
/* The first entry to go of those that stand at rank_min or behind; MDB_NOTFOUND when there is none. */
firni_code firni_index_oldest(const firni_index *index, MDB_txn *txn, firni_rank rank_min, firni_key *key,
                              firni_entry *entry);
/* Steps through the entries of one table in key order, after `key` (n_bytes 0: from the start). */
firni_code firni_index_next(const firni_index *index, MDB_txn *txn, firni_key *key, firni_entry *entry);
/* The entry right before a wanted key, in the same table. */
firni_code firni_index_before(const firni_index *index, MDB_txn *txn, const firni_key *wanted, firni_key *key,
                              firni_entry *entry);
/* Reads a namespace's root: identity digest, and the name into ns[FIRN_NAMESPACE_BYTES_MAX + 1]. */
firni_code firni_index_get_root(const firni_index *index, MDB_txn *txn, const firn_digest *root, firn_digest *identity,
                                char *ns, uint64_t *n_records);
/* One entry more, or less, below a root; the identity's text is there while any of its roots is. */
firni_code firni_index_root_gained(const firni_index *index, MDB_txn *txn, const firn_digest *root,
                                   const firn_schema *schema, const char *ns);
firni_code firni_index_root_lost(const firni_index *index, MDB_txn *txn, const firn_digest *root);
/* Text of an identity, borrowed from the transaction, without a terminator, and how many namespaces it has. */
firni_code firni_index_get_identity(const firni_index *index, MDB_txn *txn, const firn_digest *identity,
                                    const char **text, size_t *n_text, uint64_t *n_roots);
firni_code firni_index_count(const firni_index *index, MDB_txn *txn, uint64_t *n_entries);
bool firni_entry_decode(const void *bytes, size_t n_bytes, firni_entry *out);

/* ---- index_link.c ------------------------------------------------------------------------------------------------ */

/* A link says that what hangs on the chain `target`, of one namespace, depends on the record with the digest `source`,
 * or lies on one of its children: a record of a namespace above. */
firni_code firni_index_put_link(const firni_index *index, MDB_txn *txn, const firn_digest *source,
                                const firn_digest *target);
/* The next source of links to `target` behind *source (zeroed: the first). */
firni_code firni_index_next_source(const firni_index *index, MDB_txn *txn, const firn_digest *target,
                                   firn_digest *source);
/* Whether anything would be lost with this entry: a child, a checkpoint that lies on it alone, or one of these in a
 * namespace below. Links that lead to nothing any more are dropped: a writing transaction. */
firni_code firni_index_has_dependants(const firni_index *index, MDB_txn *txn, const firni_key *key,
                                      const firni_entry *entry, bool *out);

/* ---- index_keep.c ------------------------------------------------------------------------------------------------ */

typedef enum firni_kept_table { FIRNI_PINS, FIRNI_SESSIONS, FIRNI_KEYS } firni_kept_table;

/* A row of what is kept by name. Of a row that was read, all pointers are borrowed from the transaction and from
 * `opened`, which firni_kept_release frees. Of a locked index it has neither name nor tokens. */
typedef struct firni_kept {
    uint64_t until_wall_ns; /* 0: not pinned */
    uint64_t used_wall_ns;
    const char *ns, *name;  /* NUL-terminated */
    const uint8_t *tokens;  /* u32 each, little-endian */
    uint32_t n_tokens;
    uint8_t *opened;        /* name and tokens of a sealed row; else NULL */
    size_t n_opened;
} firni_kept;

void firni_kept_release(const firn_env *env, firni_kept *row); /* accepts a zeroed row */

/* The key of a row: pins are named for a whole model, the others for a namespace. */
firn_digest firni_kept_key(firni_kept_table table, const firn_digest *identity, const char *ns, const char *name);
uint64_t firni_kept_bytes(const firni_kept *row);
firni_code firni_index_put_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table,
                                const firn_digest *identity, const firni_kept *row);
firni_code firni_index_get_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key,
                                const firn_env *env, firni_kept *out);
firni_code firni_index_del_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table, const firn_digest *key);
/* The next row of this identity behind *key (zeroed: the first). */
firni_code firni_index_next_kept(const firni_index *index, MDB_txn *txn, firni_kept_table table,
                                 const firn_digest *identity, const firn_env *env, firn_digest *key, firni_kept *out);

/* ---- volume.c ---------------------------------------------------------------------------------------------------- */

/* A range that no entry names. */
typedef struct firni_hole {
    firni_place place;
    uint64_t commit;             /* that unnamed it; 0: it was never named, or that is long certain */
    bool is_logged, is_punched;
} firni_hole;

/* The file that `firn cache fsck` reads beside the segments: ledger_impl.h. Guarded by disk->writer, but for what is
 * atomic. */
typedef struct firni_ledger {
    _Atomic uint32_t number;     /* of the file; 0: there is none */
    _Atomic uint64_t physical_bytes;
    uint32_t last_number;        /* ever used */
    int fd;                      /* -1: there is none */
    uint64_t end;                /* where the next line goes */
    uint64_t begun_bytes;        /* what the file began with; 0: another process began it */
    uint8_t salt[16];
    bool is_unsynced;
    bool is_hopeless;            /* it could not be made: no use trying before something is kept */
} firni_ledger;

/* The attached directory. Replaced as a whole when the directory vanished and came back. */
typedef struct firni_volume {
    const firn_env *env;
    const char *dir;
    uint64_t generation;
    uint32_t n_users;            /* guarded by disk->mutex */
    bool is_detached;            /* guarded by disk->mutex: closed by its last user */
    bool read_only;
    int lock_fd;
    uint64_t lock_inode, lock_physical_bytes;
    firni_index index;
    firni_segments segments;
    firni_ledger ledger;
    _Atomic uint64_t index_physical_bytes, n_entries; /* as of the last commit */
    /* Guarded by disk->writer. */
    uint32_t segment_id;         /* being appended to; 0: none yet */
    uint32_t next_segment;       /* id of the next new one: beyond every id ever used */
    firni_hole *holes;
    uint32_t n_holes, holes_capacity;
    bool cannot_punch;           /* the file system has no holes: space returns with whole segments */
    bool sync_always;            /* each commit is durable when it returns */
    uint64_t durable_commit;     /* the last that no power failure can undo any more, by the index's count */
} firni_volume;

typedef struct firni_volume_options {
    const char *dir;
    bool create, read_only, buffered;
    bool sync_always;            /* each commit of the index survives a power failure */
    bool without_index;          /* for a rebuild: the index is neither opened nor touched, no segment is changed */
    uint64_t budget_bytes;
    firni_unlock unlock;
} firni_volume_options;

firn_status firni_volume_open(const firni_volume_options *options, const firn_env *env, firni_volume **out,
                              uint64_t *last_stamp, firn_error *err);
void firni_volume_close(firni_volume *volume); /* accepts NULL */
/* After opening without an index: removes what is left of the old one and opens an empty one. */
firn_status firni_volume_new_index(firni_volume *volume, uint64_t budget_bytes, const firni_crypt *crypt,
                                   firn_error *err);
/* Whether the directory still is the one that was attached: 0, ENOENT, or another errno. */
firni_code firni_volume_check(const firni_volume *volume, bool by_path);
uint64_t firni_volume_physical_bytes(firni_volume *volume);
/* Bytes that may be written before less than the reserve is free, negative when that is so already; INT64_MAX when the
 * file system does not say. */
int64_t firni_volume_spare_bytes(const firni_volume *volume, uint64_t min_free_bytes);
void firni_volume_measure(firni_volume *volume);     /* refreshes what is known of the index; after each commit */
void firni_volume_measure_all(firni_volume *volume); /* and of every segment */

/* ---- holes.c ----------------------------------------------------------------------------------------------------- */

/* Makes room to remember n more holes, so that firni_volume_add_hole cannot fail. */
bool firni_volume_reserve_holes(firni_volume *volume, uint32_t n);
void firni_volume_add_hole(firni_volume *volume, const firni_place *place);
/* Inside a transaction: logs the holes that are not punched yet, drops those that are. After the commit:
 * firni_volume_holes_committed, then firni_volume_punch. */
firni_code firni_volume_log_holes(const firni_volume *volume, MDB_txn *txn);
void firni_volume_holes_committed(firni_volume *volume);
/* Punches the holes whose commit is durable. */
void firni_volume_punch(firni_volume *volume);
/* Makes all commits durable, so that no hole has to wait. */
firni_code firni_volume_settle(firni_volume *volume);
bool firni_volume_has_waiting_holes(const firni_volume *volume);
/* Inside a transaction: forgets the segment when no entry is left in it and it is not being appended to. *dropped says
 * whether its file is to be unlinked after the commit (firni_volume_unlink_segment). */
firni_code firni_volume_drop_if_empty(const firni_volume *volume, MDB_txn *txn, uint32_t id, bool *dropped);
void firni_volume_unlink_segment(firni_volume *volume, uint32_t id);

/* ---- disk.c ------------------------------------------------------------------------------------------------------ */

typedef struct firni_disk firni_disk;

/* A handle: the records of one prefix. Immutable after the lookup; the members of the list are guarded by
 * disk->mutex. */
struct firn_tier_handle {
    const firn_env *env;
    atomic_uint refs;            /* the caller, asynchronous jobs, pending touches */
    uint64_t generation;         /* of the volume */
    bool is_pinned;              /* in disk->handles; guarded by disk->mutex */
    uint32_t n_pins;             /* who needs the pin: the caller and running restores; guarded by disk->mutex */
    bool is_standing;            /* of a pin by name: what it names may be replaced by what is better; guarded
                                  * likewise */
    bool is_keyed;               /* an object by key alone: no tokens */
    firn_digest key_root;        /* of an object by key */
    int8_t priority;             /* of a store: what it writes and uses becomes at least of this one */
    firn_tier_handle *prev, *next;
    uint32_t prefix_len;
    uint32_t n_records;
    firni_entry *entries;        /* [n_records]: blocks, the last may be a tail */
    firn_token *tokens;          /* of all records: beyond prefix_len where the last one is longer */
    uint32_t n_levels;           /* the namespace, and those above it that it reads */
    firn_digest roots[FIRN_NAMESPACE_LEVELS_MAX], nss[FIRN_NAMESPACE_LEVELS_MAX];
    firn_digest *chains;         /* [n_levels][n_records_max]: each level's digest after a record; NULL with one
                                  * level */
    uint8_t *level_of;           /* [n_records_max]: whose record it is; NULL with one level */
    uint32_t n_records_max;
    bool has_object, has_checkpoint;
    uint8_t object_level, checkpoint_level;
    firni_entry object;          /* attachments at prefix_len */
    firni_key object_key;
    firni_entry checkpoint;      /* states at prefix_len; there in each handle of a schema with fixed layers */
    firni_key checkpoint_key;
};

typedef struct firni_touch {
    firn_tier_handle *handle;    /* one reference */
    uint64_t stamp;              /* of its object; its checkpoint gets one more, and so on from tail to root */
    int8_t priority;             /* what is touched becomes at least of this one */
} firni_touch;

typedef struct firni_suspect {
    firni_key key;
    firni_place place;
} firni_suspect;

typedef struct firni_worker firni_worker;
typedef struct firni_memo firni_memo;

struct firni_disk {
    firn_tier tier;
    const firn_env *env;
    char *dir;
    firn_disk_options options;   /* defaults filled in; dir is the copy above */
    firni_crypt *crypt;          /* NULL: without a key */
    bool is_locked;              /* an encrypted store that is inspected without its key */
    firni_plan plan;             /* zeroed without a schema, as the next three */
    firni_families families;
    firn_cache **shapes;         /* an empty cache of each layer; constant after open */
    uint32_t n_shapes;
    pthread_mutex_t writer;
    pthread_mutex_t mutex;
    /* Guarded by mutex from here on. */
    firni_volume *volume;        /* NULL while detached */
    bool is_attaching;
    uint64_t generation;
    uint64_t retry_at_ns, retry_pause_ns;
    firn_tier_handle *handles;
    firni_touch touches[FIRNI_TOUCHES_MAX];
    uint32_t n_touches;
    const firni_touch *written;  /* taken by the writer; the index may not know them yet */
    uint32_t n_written;
    firni_suspect suspects[FIRNI_SUSPECTS_MAX];
    uint32_t n_suspects;
    firn_digest *condemned;      /* grown by the writer alone */
    uint32_t n_condemned, n_condemned_max;
    firni_memo *memos[FIRNI_MEMOS_MAX]; /* the latest first */
    uint32_t n_memos;
    uint64_t epoch;
    uint64_t stamp_last;
    uint64_t active_at_ns;       /* when somebody last stored, looked up or restored */
    firni_rank demote_from;      /* what stands before it has been looked at; guarded by writer */
    firn_tier_stats stats;
    pthread_cond_t left;         /* n_inside or n_finding has become less */
    uint32_t n_inside;           /* stores and flushes that run, also those that nobody waits for any more */
    uint32_t n_finding;          /* lookups that run, also those that nobody waits for any more */
    bool is_closing;             /* nothing is promised any more */
    struct firni_standing *standing; /* what is pinned by name; disk_pin.c */
    firni_worker *worker;        /* constant after open; NULL without a schema */
};

_Static_assert(offsetof(firni_disk, tier) == 0, "a disk is a firn_tier");

firni_disk *firni_disk_of(firn_tier *tier);
/* The attached volume with one more user, or NULL with the reason. Notices when the directory was removed; while it is
 * gone it is looked for again, no more often than the pause says. by_path: also notice one that was replaced. */
firni_volume *firni_disk_enter(firni_disk *disk, bool by_path, firn_reason *reason);
void firni_disk_leave(firni_disk *disk, firni_volume *volume);
/* Names the failure, sets the tier's state, and detaches the volume when it is of no use any more. */
firn_reason firni_disk_failed(firni_disk *disk, firni_volume *volume, firni_code code, const char *what);
firn_reason firni_disk_reason_of(firni_code code);
void firni_disk_healthy(firni_disk *disk); /* a write went through */
uint64_t firni_disk_epoch(firni_disk *disk);
/* n stamps for one use of a chain; returns the lowest. Call with mutex held. */
uint64_t firni_disk_take_stamps(firni_disk *disk, uint32_t n);
bool firni_disk_is_expired(const firni_disk *disk, uint64_t stamp);
void firni_disk_suspect(firni_disk *disk, const firni_key *key, const firni_place *place);

/* ---- disk_lookup.c, disk_handle.c -------------------------------------------------------------------------------- */

firn_match firni_disk_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns);
firn_match firni_disk_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns);
void firni_disk_release(firn_tier *tier, firn_tier_handle *handle);
/* An unpinned handle with room for n_records and n_tokens, one reference; NULL without memory. */
firn_tier_handle *firni_handle_create(const firn_env *env, uint32_t n_records, uint32_t n_tokens);
void firni_handle_unref(firn_tier_handle *handle);
/* Makes it a handle of this namespace, and of those above it. Call once. False without memory. */
bool firni_handle_set_namespace(firn_tier_handle *handle, const firn_digest *identity, const char *ns);
/* The level's digest of all tokens before a record, and the namespace's of a record. */
const firn_digest *firni_handle_parent(const firn_tier_handle *handle, uint32_t level, uint32_t record);
uint32_t firni_handle_level(const firn_tier_handle *handle, uint32_t record);
/* Notes what each level's chain is after the handle's last record, which is of `level` and has these tokens. */
void firni_handle_extend(firn_tier_handle *handle, uint32_t level, const firn_token *tokens, uint32_t n_tokens);
void firni_handle_pin_locked(firni_disk *disk, firn_tier_handle *handle);   /* mutex held */
void firni_handle_unpin_locked(firni_disk *disk, firn_tier_handle *handle); /* mutex held */
firni_key firni_handle_key(const firn_tier_handle *handle, uint32_t record);
/* By any handle but `own`; but_standing: and but those of pins by name. Mutex held. */
bool firni_disk_is_pinned_locked(const firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own,
                                 bool but_standing);
bool firni_place_equal(const firni_place *a, const firni_place *b);
/* Pins what the handle names and notes its use. False: the index changed since `epoch`, or something of it may not be
 * promised any more (condemned, suspect); look up again. */
bool firni_handle_promise(firni_disk *disk, firn_tier_handle *handle, uint64_t epoch);
void firni_handle_note_use(firni_disk *disk, firn_tier_handle *handle);

/* A lookup that is not counted. */
firn_match firni_disk_look_up(firni_disk *disk, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                              bool exact);

/* ---- disk_pin.c, disk_keep.c, disk_named.c ----------------------------------------------------------------------- */

extern const firn_keep_ops firni_disk_keep;

/* What stands pinned by name, of the pins and the objects that the index lists. Called when a volume was attached. */
void firni_disk_load_pins(firni_disk *disk);
void firni_disk_release_pins(firni_disk *disk);
void firni_disk_expire_pins(firni_disk *disk, firni_volume *volume); /* writer held */
bool firni_disk_has_pins(firni_disk *disk);
bool firni_disk_is_kept_locked(const firni_disk *disk, const firni_entry *entry); /* by a pin that has not ended */
/* Takes the handle, in the place of what stood under this name. False without memory; the handle is released. */
bool firni_pin_stand(firni_disk *disk, firni_kept_table table, const char *ns, const char *name, uint64_t until_wall_ns,
                     firn_tier_handle *handle);
bool firni_pin_end(firni_disk *disk, firni_kept_table table, const char *ns, const char *name); /* whether there was
                                                                                                 * one */
firn_status firni_disk_pin(firn_tier *tier, const firn_pin *pin, firn_error *err);
firn_status firni_disk_unpin(firn_tier *tier, const char *name, firn_error *err);
/* Writes a row, or deletes it (row NULL), under the writer's lock and within the budget. */
firn_status firni_kept_write(firni_disk *disk, firni_kept_table table, const firn_digest *key, const firni_kept *row,
                             firn_error *err);
/* Calls visit for each row of the tier's model with a copy, until it returns false. */
firn_status firni_kept_each(firni_disk *disk, firni_kept_table table, bool (*visit)(void *ctx, const firni_kept *row,
                            const firn_token *tokens), void *ctx, firn_error *err);
bool firni_disk_put_object(firn_tier *tier, const firn_object *object, firn_reason *reason);
firn_tier_handle *firni_disk_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason);
firn_status firni_disk_remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err);
firn_status firni_disk_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                   firn_error *err);

/* ---- disk_memo.c ------------------------------------------------------------------------------------------------- */

/* The blocks at the beginning of the prompt that a memo knows, into the handle; returns their number. */
uint32_t firni_memo_recall(firni_disk *disk, const firn_token *tokens, uint32_t n_tokens, firn_tier_handle *handle);
/* Remembers the blocks of a handle that was promised as of `epoch`. */
void firni_memo_keep(firni_disk *disk, const firn_tier_handle *handle, uint64_t epoch);
/* The record is about to go. Mutex held, both. */
void firni_memo_forget_locked(firni_disk *disk, const firni_entry *entry);
void firni_memo_forget_all_locked(firni_disk *disk);

/* ---- disk_path.c ------------------------------------------------------------------------------------------------- */

/* The handle's own entry for this record, checkpoint or object; NULL: it names another one, or none. */
const firni_entry *firni_handle_names(const firn_tier_handle *handle, const firni_entry *entry);
/* Whether an entry may be promised now; if not, why: GONE (condemned) or CORRUPT (suspect). Mutex held. */
bool firni_disk_may_promise_locked(const firni_disk *disk, const firni_entry *entry, firn_reason *obstacle);
/* The same, and whether it is neither quarantined nor expired. */
bool firni_disk_may_serve(firni_disk *disk, const firni_entry *entry, firn_reason *obstacle);
/* Whether a use of it within the time to live was noted that the index may not know yet. Mutex held. */
bool firni_disk_was_touched_locked(const firni_disk *disk, const firni_entry *entry);
/* The key of the checkpoint at n > 0 tokens, which the handle's records cover, in one level's chain. */
firni_key firni_checkpoint_key(const firn_tier_handle *handle, uint32_t level, uint32_t n_tokens);

/* A handle's records, as far as they are known, and where to look for the checkpoints on them. */
typedef struct firni_path {
    firni_disk *disk;
    const firni_index *index;
    MDB_txn *txn;             /* needed only with fixed layers */
    firn_tier_handle *handle;
    firn_reason obstacle;     /* why a checkpoint on the path may not be served */
    firni_code code;          /* what went wrong reading the index */
} firni_path;

/* The largest n <= n_max that can be resumed on the first n_records records of the handle. Check path->code. */
uint32_t firni_path_usable(firni_path *path, uint32_t n_records, uint32_t n_max);
/* The checkpoint at n tokens, and whose it is: MDB_NOTFOUND when there is none that may be served. */
firni_code firni_path_checkpoint(firni_path *path, uint32_t n_tokens, firni_key *key, firni_entry *entry,
                                 uint32_t *level);

/* ---- disk_restore.c, disk_read.c, disk_object.c, disk_worker.c --------------------------------------------------- */

#define FIRNI_CODE_CORRUPT EBADMSG /* a record's bytes are not what they should be */

/* What reading a record came to: its bytes are good or bad, or this process could not find out. */
FIRNI_INLINE firni_code firni_code_of_record(firn_status status)
{
    return status == FIRN_OK ? 0 : status == FIRN_ERR_NO_MEMORY ? ENOMEM : FIRNI_CODE_CORRUPT;
}

firn_reason firni_disk_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out);
/* What may be asked of a restore beyond its count: see firn_restore_request. */
typedef struct firni_restore_want {
    firn_block *const *head; /* [n_layers][n_head_blocks] */
    uint32_t n_head_blocks;
    bool in_layer_order;
    bool caches_only;
    bool (*is_wanted)(void *ctx);
    void (*progress)(void *ctx, const firn_restore_progress *progress);
    void *ctx;
    firn_pool *pool;         /* of the restored blocks; NULL: the tier's */
} firni_restore_want;

firn_reason firni_disk_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool, firn_restored *out);

firn_reason firni_disk_restore_wanted(firni_disk *disk, firn_tier_handle *handle, uint32_t n_tokens,
                                      const firni_restore_want *want, firn_restored *out);
/* The attachments alone: n_caches is 0. */
firn_reason firni_disk_restore_object(firni_disk *disk, firn_tier_handle *handle, firn_restored *out);
/* Whether a decoded header is the one that entry and key name. */
bool firni_disk_header_fits(const firni_disk *disk, const firni_record *record, const firni_entry *entry,
                            const firni_key *key, const firn_digest *ns);
/* Names what a failed read or check means, and keeps the record from being served again. */
firn_reason firni_disk_bad_record(firni_disk *disk, firni_volume *volume, const firni_key *key,
                                  const firni_entry *entry, firni_code code);
/* Adds the attachments at exactly n tokens of the handle to *out; none is no failure. */
firn_reason firni_object_restore(firni_disk *disk, firni_volume *volume, const firn_tier_handle *handle,
                                 uint32_t n_tokens, firn_restored *out);
firn_status firni_worker_create(firni_disk *disk, firni_worker **out, firn_error *err);
/* Waits for the read in progress; what is queued is answered with GONE. Accepts NULL. */
void firni_worker_destroy(firni_worker *worker);
firn_status firni_disk_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, uint64_t deadline_ns,
                                     firn_restore_done done, void *ctx, firn_error *err);
firn_status firni_disk_restore_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                       firn_error *err);
firn_status firni_disk_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                            firn_restore_done done, void *ctx, firn_error *err);
void firni_worker_wake(firni_worker *worker); /* upkeep is due; accepts NULL */

/* ---- disk_store.c, disk_write.c, disk_evict.c -------------------------------------------------------------------- */

bool firni_disk_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason);
/* The same for attachments alone, under a key instead of tokens; the row is written in the same transaction. */
bool firni_disk_store_keyed(firn_tier *tier, const firn_store_input *input, const firni_kept *row, firn_reason *reason);

/* One record to be written. */
typedef struct firni_pending {
    firni_key key;
    firni_entry entry;           /* place is filled in by the write; n_bytes 0: not attempted yet */
    const firni_plan_form *form; /* NULL: an object */
    const firn_token *tokens;    /* [entry.n_tokens] */
    firn_digest parent;
    bool replaces;               /* an entry with this key is there: quarantined, bare, or an object */
    firni_entry old;
    uint64_t n_known_bytes;      /* of its bytes, stored before in another record */
    firni_record_links links;    /* to records of namespaces above */
} firni_pending;

/* An upper bound of an object record's bytes. */
uint64_t firni_object_bytes_max(const firn_attachment *attachments, uint32_t n_attachments);
/* The object record bound to the first n tokens of the handle; replaces one that is there. */
firni_code firni_object_plan(const firni_disk *disk, const firni_volume *volume, MDB_txn *txn,
                             const firn_tier_handle *handle, uint32_t n_tokens, firni_pending *out);
firni_key firni_object_key(const firn_tier_handle *handle, uint32_t level, uint32_t n_tokens);

/* What the records of one store belong to: said once in each chain, by the records where it begins. */
typedef struct firni_origin {
    firn_digest ns;
    const char *ns_name;
    uint32_t n_ns, n_text; /* of the schema's identity text */
} firni_origin;

firni_origin firni_disk_origin(const firni_disk *disk, const char *ns);
/* Bytes of names in the header of a record, links included. */
uint32_t firni_origin_names(const firni_origin *origin, const firni_pending *pending);
uint32_t firni_origin_names_max(const firni_origin *origin);

/* writer held, all that follow. Writes records of every kind but objects from the memory of the rows' blocks; fills in
 * places. What was attempted has a place with n_bytes > 0, also on failure. */
firni_code firni_disk_write_blocks(firni_disk *disk, firni_volume *volume, firni_pending *pending, uint32_t n_pending,
                                   const firn_row_view *views, const firni_origin *origin);
/* Writes the object record of these attachments. */
firni_code firni_disk_write_object(firni_disk *disk, firni_volume *volume, firni_pending *pending,
                                   const firn_attachment *attachments, uint32_t n_attachments,
                                   const firni_origin *origin);
/* Makes the current segment one that has room for n_bytes. */
firni_code firni_disk_choose_segment(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes);
/* Syncs the segments that hold these records, when the durability asks for it. */
firni_code firni_disk_sync_written(firni_disk *disk, firni_volume *volume, const firni_pending *pending,
                                   uint32_t n_pending);

/* Evicts what has at most this priority until n_bytes in n_records fit into the budget; NONE or why not. */
firn_reason firni_disk_make_room(firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint32_t n_records,
                                 int priority);
/* Whether they fit as things are. */
bool firni_disk_has_room(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes, uint32_t n_records);
/* Writes touches and suspects to the index, and evicts what expired. */
firn_reason firni_disk_upkeep(firni_disk *disk, firni_volume *volume);
/* Makes room for n entries to be condemned at once. False without memory. */
bool firni_disk_reserve_condemned(firni_disk *disk, uint32_t n);
/* Condemns an entry unless it is pinned by another handle than `own` (NULL: by any), or there is no room reserved. */
bool firni_disk_condemn(firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own);
/* The same for what a better record takes the place of: pins by name are no obstacle. */
bool firni_disk_condemn_replaced(firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own);
/* Removes the entries with these keys, as far as nothing depends on them and nobody pinned them. */
firni_code firni_disk_remove_keys(firni_disk *disk, firni_volume *volume, const firni_key *keys, uint32_t n_keys,
                                  uint32_t *n_removed);
/* disk_demote.c: one bounded step of packing what is idle. *more: there may be something left to do. Writer held, and
 * upkeep done. */
firn_reason firni_disk_demote_step(firni_disk *disk, firni_volume *volume, firn_disk_demote_report *report, bool *more);
/* Whether nobody has used the tier for a while. */
bool firni_disk_is_quiet(firni_disk *disk);
void firni_disk_note_activity(firni_disk *disk);
/* After a commit or an abort of what was condemned. */
void firni_disk_absolve(firni_disk *disk, bool committed);

#endif
