/*
 * The index, first part: the LMDB environment, its tables, transactions, and the books about segments and holes.
 *
 * Owns table names and the byte form of what is not a record's entry (those: index_entry.c; all of it is drawn in
 * docs/FORMAT.md). Crash safety, snapshots and many processes are LMDB's: a transaction is all or nothing, and a reader
 * sees the state of one commit.
 *
 * Why LMDB: readers never wait for the writer, many processes may look at once, a commit is one page written last, and
 * opening takes the same time whatever is inside. Its file never shrinks; pages of removed entries are used again.
 *
 * LMDB does its own system calls and allocations, so the firn_env does not reach below this file.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

/* Pages that one changed entry may newly occupy: a leaf in each of three tables, their share of branches and of the
 * list of free pages. */
#define PAGES_PER_ENTRY     5u
#define PAGES_PER_COMMIT    64u
#define PAGE_BYTES          4096u
#define MAP_BYTES_MIN       (UINT64_C(32) << 20)
#define SEGMENT_VALUE_BYTES 24u
#define TABLES_MAX          15u
#define VERSION_OLDEST      1u /* without the tables that came later; they are made */
#define VERSION_SEALED      0x10000u /* the bit of an encrypted store, so that who does not know of it keeps away */

static const char version_key[] = "version";
static const char next_segment_key[] = "next_segment";
static const char crypt_key[] = "key";

static MDB_val val_of(const void *bytes, size_t n_bytes)
{
    /* LMDB takes keys and values as non-const, and does not write to them. */
    return (MDB_val){ .mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes };
}

/* ---- environment ------------------------------------------------------------------------------------------------- */

/* All tables in one transaction: afterwards their handles are valid in every other. */
static firni_code open_tables(firni_index *index, bool read_only)
{
    MDB_txn *txn = NULL;
    firni_code code = mdb_txn_begin(index->env, NULL, read_only ? MDB_RDONLY : 0, &txn);
    if (code != 0) {
        return code;
    }
    const unsigned flags = read_only ? 0 : MDB_CREATE;
    const struct {
        const char *name;
        MDB_dbi *dbi;
    } tables[] = {
        { "meta", &index->meta },       { "records", &index->records },       { "objects", &index->objects },
        { "recency", &index->recency }, { "segments", &index->segments },     { "holes", &index->holes },
        { "roots", &index->roots },     { "identities", &index->identities }, { "texts", &index->texts },
        { "checkpoints", &index->checkpoints }, { "ranked", &index->ranked }, { "links", &index->links },
        { "pins", &index->pins }, { "sessions", &index->sessions }, { "keys", &index->keys },
    };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && code == 0; i++) {
        code = mdb_dbi_open(txn, tables[i].name, flags, tables[i].dbi);
    }
    if (code != 0) {
        mdb_txn_abort(txn);
        return code;
    }
    return mdb_txn_commit(txn);
}

/* With the id of the key that the store is made with. */
static firni_code put_version(const firni_index *index, MDB_txn *txn)
{
    uint8_t bytes[4];
    const uint32_t bit = index->crypt != NULL || index->is_locked ? VERSION_SEALED : 0;
    firni_put_u32(bytes, FIRNI_DISK_INDEX_VERSION | bit);
    MDB_val key = val_of(version_key, sizeof version_key - 1), value = val_of(bytes, sizeof bytes);
    firni_code code = mdb_put(txn, index->meta, &key, &value, 0);
    if (code == 0 && index->crypt != NULL) {
        key = val_of(crypt_key, sizeof crypt_key - 1);
        value = val_of(firni_crypt_id(index->crypt), FIRNI_CRYPT_ID_BYTES);
        code = mdb_put(txn, index->meta, &key, &value, 0);
    }
    return code;
}

firni_code firni_index_complete(const firni_index *index, MDB_txn *txn)
{
    return put_version(index, txn);
}

/* What an index says that it is. */
typedef struct index_form {
    uint32_t version;    /* 0: not complete */
    bool is_sealed;
    uint8_t key_id[FIRNI_CRYPT_ID_BYTES];
} index_form;

static firni_code read_form(const firni_index *index, MDB_txn *txn, index_form *out)
{
    *out = (index_form){ .version = 0 };
    MDB_val key = val_of(version_key, sizeof version_key - 1), value;
    firni_code code = mdb_get(txn, index->meta, &key, &value);
    if (code != 0 || value.mv_size != 4) {
        return code == 0 ? MDB_CORRUPTED : code;
    }
    const uint32_t version = firni_get_u32(value.mv_data);
    out->version = version & ~VERSION_SEALED;
    out->is_sealed = version != out->version;
    if (out->is_sealed) {
        key = val_of(crypt_key, sizeof crypt_key - 1);
        code = mdb_get(txn, index->meta, &key, &value);
        if (code != 0 || value.mv_size != sizeof out->key_id) {
            return MDB_CORRUPTED;
        }
        memcpy(out->key_id, value.mv_data, sizeof out->key_id);
    }
    return 0;
}

/* Whether the key that was given is the one of the store. Sets is_locked. */
static bool fits_key(firni_index *index, const index_form *form, const firni_unlock *unlock)
{
    if (!form->is_sealed || unlock->crypt == NULL) {
        index->is_locked = form->is_sealed;
        return form->is_sealed ? unlock->may_be_locked : unlock->crypt == NULL;
    }
    return memcmp(form->key_id, firni_crypt_id(unlock->crypt), sizeof form->key_id) == 0;
}

/* Writes version and key into a new index, or compares them. An index without them is not complete: it is either new,
 * or was being rebuilt when the process ended. *fits: it is of the key that was given; else nothing is written. */
static firni_code check_form(firni_index *index, bool read_only, bool may_be_new, const firni_unlock *unlock,
                             uint32_t *found, bool *fits)
{
    MDB_txn *txn = NULL;
    index_form form;
    firni_code code = firni_index_begin(index, read_only, &txn);
    if (code != 0) {
        return code;
    }
    code = read_form(index, txn, &form);
    *found = form.version;
    *fits = code != 0 || fits_key(index, &form, unlock);
    if (!read_only && *fits &&
        ((code == MDB_NOTFOUND && may_be_new) ||
         (code == 0 && form.version >= VERSION_OLDEST && form.version < FIRNI_DISK_INDEX_VERSION))) {
        code = put_version(index, txn);
        *found = FIRNI_DISK_INDEX_VERSION;
    }
    if (code != 0 || read_only || !*fits) {
        mdb_txn_abort(txn);
        return code;
    }
    return mdb_txn_commit(txn);
}

/* LMDB needs to know the largest size in advance. */
static uint64_t map_bytes(uint64_t budget_bytes)
{
    /* Address space, not memory: the index can never need more than the whole budget. */
    const uint64_t wanted = budget_bytes / 2 > MAP_BYTES_MIN ? budget_bytes / 2 : MAP_BYTES_MIN;
    return firni_round_up(wanted < SIZE_MAX / 4 ? wanted : SIZE_MAX / 4, 1u << 20);
}

/* LMDB's codes are positive when they are the system's. */
static firn_status fail_open(firni_code code, const char *path, const char *dir, firn_error *err)
{
    if (code > 0 && code != ENOENT) {
        return firni_fail_os(err, code, "cannot open the index %s; check its owner, its mode and the file system",
                             path);
    }
    const bool is_incomplete = code == MDB_NOTFOUND || code == ENOENT;
    return firni_fail(err, FIRN_ERR_CORRUPT,
                      "the index %s is damaged (%s); `firn cache fsck --cache-dir %s` makes it anew", path,
                      is_incomplete ? "it is not complete" : mdb_strerror(code), dir);
}

static firn_status fail_key(const char *dir, bool is_locked, firn_error *err)
{
    if (is_locked) {
        return firni_fail(err, FIRN_ERR_KEY, "%s is encrypted, and no key was given; use --cache-key-file FILE", dir);
    }
    return firni_fail(err, FIRN_ERR_KEY, "%s was not made with the key that was given; use its own, or another "
                      "directory", dir);
}

firn_status firni_index_open(firni_index *index, const char *dir, firni_index_use use, uint64_t budget_bytes,
                             const firni_unlock *unlock, firn_error *err)
{
    const bool read_only = use == FIRNI_INDEX_READ;
    *index = (firni_index){ .crypt = unlock->crypt };
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index", dir);
    firni_code code = mdb_env_create(&index->env);
    if (code == 0) {
        code = mdb_env_set_maxdbs(index->env, TABLES_MAX);
    }
    if (code == 0) {
        code = mdb_env_set_mapsize(index->env, (size_t)map_bytes(budget_bytes));
    }
    if (code == 0) {
        /* NOTLS: lookups may come from any thread. NOMETASYNC: a power failure may undo the last transaction but never
         * breaks the tree; durability `always` syncs on top. */
        const unsigned flags = MDB_NOTLS | MDB_NORDAHEAD | MDB_NOMETASYNC | (read_only ? MDB_RDONLY : 0u);
        code = mdb_env_open(index->env, path, flags, 0600);
    }
    int n_dead = 0;
    if (code == 0) {
        code = mdb_reader_check(index->env, &n_dead); /* slots of processes that were killed */
    }
    if (code == 0) {
        code = open_tables(index, read_only);
    }
    uint32_t version = FIRNI_DISK_INDEX_VERSION;
    bool fits = true;
    if (code == 0 && use != FIRNI_INDEX_REBUILD) {
        code = check_form(index, read_only, use == FIRNI_INDEX_NEW, unlock, &version, &fits);
    }
    if (code != 0) {
        firni_index_close(index);
        return fail_open(code, path, dir, err);
    }
    if (!fits) {
        firni_index_close(index);
        return fail_key(dir, index->is_locked, err);
    }
    if (version != FIRNI_DISK_INDEX_VERSION) {
        firni_index_close(index);
        return firni_fail(err, FIRN_ERR_CORRUPT,
                          "%s has version %u, this build reads version %u; `firn cache fsck --cache-dir %s` makes it "
                          "anew", path, version, FIRNI_DISK_INDEX_VERSION, dir);
    }
    return FIRN_OK;
}

bool firni_index_is_torn(const char *dir)
{
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index", dir);
    MDB_env *env = NULL;
    firni_code code = mdb_env_create(&env);
    if (code == 0) {
        code = mdb_env_open(env, path, MDB_NOTLS | MDB_RDONLY, 0600);
        mdb_env_close(env);
    }
    return code == MDB_INVALID;
}

void firni_index_close(firni_index *index)
{
    if (index->env != NULL) {
        mdb_env_close(index->env);
        index->env = NULL;
    }
}

firni_code firni_index_begin(const firni_index *index, bool read_only, MDB_txn **out)
{
    *out = NULL;
    return mdb_txn_begin(index->env, NULL, read_only ? MDB_RDONLY : 0, out);
}

uint64_t firni_index_physical_bytes(const firni_index *index, const firn_env *env, const char *dir)
{
    const firn_io *io = firni_io(env);
    uint64_t n_bytes = 0;
    firn_io_stat stat;
    mdb_filehandle_t fd;
    if (mdb_env_get_fd(index->env, &fd) == 0 && io->stat(io->ctx, fd, &stat) == 0) {
        n_bytes += stat.physical_bytes;
    }
    /* By path: closing a descriptor of LMDB's lock file would drop the locks that this process has on it. */
    char path[FIRNI_DISK_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/index/lock.mdb", dir);
    if (io->stat_path(io->ctx, path, &stat) == 0) {
        n_bytes += stat.physical_bytes;
    }
    return n_bytes;
}

uint64_t firni_index_reserve_bytes(uint64_t index_bytes, uint64_t n_entries)
{
    /* Each changed page is written anew; no more pages can change than there are, but for those of new entries. */
    const uint64_t each = n_entries * PAGES_PER_ENTRY * PAGE_BYTES;
    const uint64_t all = index_bytes + n_entries * PAGE_BYTES;
    return (each < all ? each : all) + PAGES_PER_COMMIT * PAGE_BYTES;
}

uint64_t firni_index_entries_max(uint64_t budget_bytes)
{
    return map_bytes(budget_bytes) / PAGE_BYTES; /* an entry with its recency takes about a fifth of a page */
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

firni_code firni_index_next_segment(const firni_index *index, MDB_txn *txn, uint32_t *out)
{
    *out = 1;
    MDB_val key = val_of(next_segment_key, sizeof next_segment_key - 1), value;
    const firni_code code = mdb_get(txn, index->meta, &key, &value);
    if (code == 0 && value.mv_size == 4) {
        *out = firni_get_u32(value.mv_data);
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

firni_code firni_index_set_next_segment(const firni_index *index, MDB_txn *txn, uint32_t id)
{
    uint8_t bytes[4];
    firni_put_u32(bytes, id);
    MDB_val key = val_of(next_segment_key, sizeof next_segment_key - 1), value = val_of(bytes, sizeof bytes);
    return mdb_put(txn, index->meta, &key, &value, 0);
}

static void put_be32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

static uint32_t get_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

firni_code firni_index_get_segment(const firni_index *index, MDB_txn *txn, uint32_t id, firni_segment_info *out)
{
    *out = (firni_segment_info){ 0 };
    uint8_t bytes[4];
    put_be32(bytes, id);
    MDB_val key = val_of(bytes, sizeof bytes), value;
    const firni_code code = mdb_get(txn, index->segments, &key, &value);
    if (code != 0) {
        return code;
    }
    if (value.mv_size != SEGMENT_VALUE_BYTES) {
        return MDB_CORRUPTED;
    }
    const uint8_t *at = value.mv_data;
    *out = (firni_segment_info){ .end = firni_get_u64(at),
                                 .n_records = firni_get_u64(at + 8),
                                 .live_bytes = firni_get_u64(at + 16) };
    return 0;
}

firni_code firni_index_put_segment(const firni_index *index, MDB_txn *txn, uint32_t id, const firni_segment_info *info)
{
    uint8_t key_bytes[4], bytes[SEGMENT_VALUE_BYTES];
    put_be32(key_bytes, id);
    firni_put_u64(bytes, info->end);
    firni_put_u64(bytes + 8, info->n_records);
    firni_put_u64(bytes + 16, info->live_bytes);
    MDB_val key = val_of(key_bytes, sizeof key_bytes), value = val_of(bytes, sizeof bytes);
    return mdb_put(txn, index->segments, &key, &value, 0);
}

firni_code firni_index_del_segment(const firni_index *index, MDB_txn *txn, uint32_t id)
{
    uint8_t bytes[4];
    put_be32(bytes, id);
    MDB_val key = val_of(bytes, sizeof bytes);
    return mdb_del(txn, index->segments, &key, NULL);
}

/* ---- holes ------------------------------------------------------------------------------------------------------- */

/* Holes are logged one by one: merging them would make the log's keys differ from the ranges that are punched. */
static void hole_key(const firni_place *place, uint8_t bytes[12])
{
    put_be32(bytes, place->segment);
    put_be32(bytes + 4, (uint32_t)(place->offset >> 32));
    put_be32(bytes + 8, (uint32_t)place->offset);
}

firni_code firni_index_put_hole(const firni_index *index, MDB_txn *txn, const firni_place *place)
{
    uint8_t key_bytes[12], bytes[8];
    hole_key(place, key_bytes);
    firni_put_u64(bytes, place->n_bytes);
    MDB_val key = val_of(key_bytes, sizeof key_bytes), value = val_of(bytes, sizeof bytes);
    return mdb_put(txn, index->holes, &key, &value, 0);
}

firni_code firni_index_del_hole(const firni_index *index, MDB_txn *txn, const firni_place *place)
{
    uint8_t key_bytes[12];
    hole_key(place, key_bytes);
    MDB_val key = val_of(key_bytes, sizeof key_bytes);
    const firni_code code = mdb_del(txn, index->holes, &key, NULL);
    return code == MDB_NOTFOUND ? 0 : code;
}

firni_code firni_index_next_hole(const firni_index *index, MDB_txn *txn, const firni_place *after, firni_place *out)
{
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(txn, index->holes, &cursor);
    if (code != 0) {
        return code;
    }
    uint8_t key_bytes[12];
    hole_key(after, key_bytes);
    MDB_val key = val_of(key_bytes, sizeof key_bytes), value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    if (code == 0 && key.mv_size == sizeof key_bytes && memcmp(key.mv_data, key_bytes, sizeof key_bytes) == 0 &&
        after->segment != 0) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (code == 0 && (key.mv_size != sizeof key_bytes || value.mv_size != 8)) {
        code = MDB_CORRUPTED;
    }
    if (code == 0) {
        const uint8_t *at = key.mv_data;
        *out = (firni_place){ .segment = get_be32(at),
                              .offset = (uint64_t)get_be32(at + 4) << 32 | get_be32(at + 8),
                              .n_bytes = firni_get_u64(value.mv_data) };
    }
    mdb_cursor_close(cursor);
    return code;
}
