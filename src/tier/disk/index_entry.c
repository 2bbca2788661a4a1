/*
 * The index, second part: entries of records, objects and checkpoints. Their order of going is index_rank.c.
 *
 * Owns the byte forms of keys and entries (drawn in docs/FORMAT.md). Every change keeps these invariants within one
 * transaction:
 *
 *   - each entry has exactly one recency row, under its priority and stamp, and stamps are unique;
 *   - a segment's n_records and live_bytes are the sums over its entries, and its end is beyond all of them;
 *   - the namespace's count of entries follows (index_root.c).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

#define ENTRY_BYTES      120u
#define PLACE_BITS       40u /* of a record's length; above: the 4 KiB pages of the plain record */
#define DIGEST_AT        48u
#define STATE_LIVE       0u
#define STATE_QUARANTINE 1u

static MDB_val val_of(const void *bytes, size_t n_bytes)
{
    return (MDB_val){ .mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes };
}

/* Keys and entries have one form in three tables: what continues a parent is looked for among the records alone. */
static MDB_dbi table_of(const firni_index *index, firni_which which)
{
    switch (which) {
    case FIRNI_OBJECTS: return index->objects;
    case FIRNI_CHECKPOINTS: return index->checkpoints;
    default: return index->records;
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

firni_key firni_key_make(firni_which which, const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens)
{
    assert(n_tokens <= FIRN_BLOCK_TOKENS);
    firni_key key = { .which = which, .n_bytes = FIRN_DIGEST_BYTES + 4 * n_tokens };
    memcpy(key.bytes, parent->bytes, FIRN_DIGEST_BYTES);
    for (uint32_t i = 0; i < n_tokens; i++) {
        uint8_t *at = key.bytes + FIRN_DIGEST_BYTES + 4 * (size_t)i;
        at[0] = (uint8_t)(tokens[i] >> 24);
        at[1] = (uint8_t)(tokens[i] >> 16);
        at[2] = (uint8_t)(tokens[i] >> 8);
        at[3] = (uint8_t)tokens[i];
    }
    return key;
}

uint32_t firni_key_tokens(const firni_key *key, firn_token tokens[FIRN_BLOCK_TOKENS])
{
    const uint32_t n_tokens = (key->n_bytes - FIRN_DIGEST_BYTES) / 4;
    for (uint32_t i = 0; i < n_tokens; i++) {
        const uint8_t *at = key->bytes + FIRN_DIGEST_BYTES + 4 * (size_t)i;
        tokens[i] = (firn_token)at[0] << 24 | (firn_token)at[1] << 16 | (firn_token)at[2] << 8 | at[3];
    }
    return n_tokens;
}

firn_digest firni_key_parent(const firni_key *key)
{
    firn_digest parent;
    memcpy(parent.bytes, key->bytes, FIRN_DIGEST_BYTES);
    return parent;
}

/* False when the bytes are not a key. */
bool firni_key_decode(firni_which which, const void *bytes, size_t n_bytes, firni_key *out)
{
    if (n_bytes < FIRN_DIGEST_BYTES || n_bytes > FIRNI_KEY_BYTES_MAX || n_bytes % 4 != 0) {
        return false;
    }
    out->which = which;
    out->n_bytes = (uint32_t)n_bytes;
    memcpy(out->bytes, bytes, n_bytes);
    return true;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static void entry_encode(const firni_entry *entry, uint8_t at[ENTRY_BYTES])
{
    memset(at, 0, ENTRY_BYTES);
    at[0] = (uint8_t)entry->kind;
    at[1] = entry->is_quarantined ? STATE_QUARANTINE : STATE_LIVE;
    firni_put_u16(at + 2, (uint16_t)entry->n_tokens);
    firni_put_u32(at + 4, entry->first_token);
    firni_put_u32(at + 8, entry->place.segment);
    firni_put_u32(at + 12, entry->reusable_from);
    firni_put_u64(at + 16, entry->place.offset);
    firni_put_u64(at + 24, entry->place.n_bytes | entry->plain_bytes / FIRNI_RECORD_ALIGN << PLACE_BITS);
    firni_put_u64(at + 32, entry->created_wall_ns);
    firni_put_u64(at + 40, entry->stamp);
    memcpy(at + DIGEST_AT, entry->digest.bytes, FIRN_DIGEST_BYTES);
    memcpy(at + 80, entry->root.bytes, FIRN_DIGEST_BYTES);
    firni_put_u16(at + 112, entry->n_full);
    firni_put_u16(at + 114, entry->n_window);
    firni_put_u16(at + 116, entry->n_fixed);
    at[118] = (uint8_t)entry->priority;
    at[119] = entry->is_incompressible;
}

bool firni_entry_decode(const void *bytes, size_t n_bytes, firni_entry *out)
{
    const uint8_t *at = bytes;
    if (n_bytes != ENTRY_BYTES) {
        return false;
    }
    *out = (firni_entry){
        .kind = (firni_record_kind)at[0],
        .is_quarantined = at[1] != STATE_LIVE,
        .n_tokens = firni_get_u16(at + 2),
        .first_token = firni_get_u32(at + 4),
        .reusable_from = firni_get_u32(at + 12),
        .n_full = firni_get_u16(at + 112),
        .n_window = firni_get_u16(at + 114),
        .n_fixed = firni_get_u16(at + 116),
        .place = { .segment = firni_get_u32(at + 8),
                   .offset = firni_get_u64(at + 16),
                   .n_bytes = firni_get_u64(at + 24) & ((UINT64_C(1) << PLACE_BITS) - 1) },
        .plain_bytes = (firni_get_u64(at + 24) >> PLACE_BITS) * FIRNI_RECORD_ALIGN,
        .is_incompressible = at[119] != 0,
        .created_wall_ns = firni_get_u64(at + 32),
        .stamp = firni_get_u64(at + 40),
        .priority = (int8_t)at[118],
    };
    memcpy(out->digest.bytes, at + DIGEST_AT, FIRN_DIGEST_BYTES);
    memcpy(out->root.bytes, at + 80, FIRN_DIGEST_BYTES);
    return out->n_tokens <= FIRN_BLOCK_TOKENS && out->priority >= FIRN_PRIORITY_MIN &&
           out->priority <= FIRN_PRIORITY_MAX && out->place.n_bytes > 0 &&
           out->place.n_bytes <= FIRNI_RECORD_BYTES_MAX && out->place.n_bytes % FIRNI_RECORD_ALIGN == 0 &&
           out->place.offset % FIRNI_RECORD_ALIGN == 0 && out->place.offset <= UINT64_MAX / 2 &&
           (out->plain_bytes == 0 || out->plain_bytes > out->place.n_bytes);
}

static firni_code put_entry(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *entry,
                            unsigned flags)
{
    uint8_t bytes[ENTRY_BYTES];
    firni_key stored;
    firni_code code = firni_index_seal_key(index, key, &stored);
    entry_encode(entry, bytes);
    code = code == 0 ? firni_index_seal_digest(index, &entry->digest, bytes + DIGEST_AT) : code;
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(stored.bytes, stored.n_bytes), value = val_of(bytes, sizeof bytes);
    return mdb_put(txn, table_of(index, key->which), &db_key, &value, flags);
}

firni_code firni_index_get(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *out)
{
    firni_key stored;
    firni_code code = firni_index_seal_key(index, key, &stored);
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(stored.bytes, stored.n_bytes), value;
    code = mdb_get(txn, table_of(index, key->which), &db_key, &value);
    return code == 0 ? firni_index_open_entry(index, &value, out) : code;
}

static firni_rank rank_of(const firni_entry *entry)
{
    return (firni_rank){ .priority = entry->priority, .stamp = entry->stamp };
}

/* ---- changing --------------------------------------------------------------------------------------------------- */

firni_code firni_index_raise(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry,
                             uint64_t stamp, int priority)
{
    if (stamp <= entry->stamp && priority <= entry->priority) {
        return 0;
    }
    firni_code code = firni_index_del_rank(index, txn, rank_of(entry));
    if (code == 0) {
        entry->stamp = stamp > entry->stamp ? stamp : entry->stamp;
        entry->priority = priority > entry->priority ? (int8_t)priority : entry->priority;
        code = firni_index_put_rank(index, txn, key, rank_of(entry));
    }
    return code == 0 ? put_entry(index, txn, key, entry, 0) : code;
}

firni_code firni_index_touch(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry,
                             uint64_t stamp)
{
    return firni_index_raise(index, txn, key, entry, stamp, FIRN_PRIORITY_MIN);
}

static firni_code segment_gained(const firni_index *index, MDB_txn *txn, const firni_place *place)
{
    firni_segment_info info;
    firni_code code = firni_index_get_segment(index, txn, place->segment, &info);
    if (code != 0 && code != MDB_NOTFOUND) {
        return code;
    }
    const uint64_t end = place->offset + place->n_bytes;
    info.n_records++;
    info.live_bytes += place->n_bytes;
    info.end = info.end > end ? info.end : end;
    return firni_index_put_segment(index, txn, place->segment, &info);
}

static firni_code segment_lost(const firni_index *index, MDB_txn *txn, const firni_place *place)
{
    firni_segment_info info;
    const firni_code code = firni_index_get_segment(index, txn, place->segment, &info);
    if (code != 0) {
        return code;
    }
    assert(info.n_records > 0 && info.live_bytes >= place->n_bytes);
    info.n_records--;
    info.live_bytes -= place->n_bytes;
    return firni_index_put_segment(index, txn, place->segment, &info);
}

firni_code firni_index_move(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *from,
                            const firni_entry *to)
{
    assert(from->stamp == to->stamp && from->priority == to->priority &&
           firni_digest_equal(&from->digest, &to->digest));
    firni_code code = put_entry(index, txn, key, to, 0);
    if (code == 0 && !firni_place_equal(&from->place, &to->place)) {
        code = segment_lost(index, txn, &from->place);
        code = code == 0 ? segment_gained(index, txn, &to->place) : code;
    }
    return code;
}

firni_code firni_index_quarantine(const firni_index *index, MDB_txn *txn, const firni_key *key, firni_entry *entry)
{
    entry->is_quarantined = true;
    return put_entry(index, txn, key, entry, 0);
}

/* ---- adding and removing ----------------------------------------------------------------------------------------- */

firni_code firni_index_add(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *entry,
                           const firn_schema *schema, const char *ns)
{
    firni_code code = put_entry(index, txn, key, entry, MDB_NOOVERWRITE);
    if (code == 0) {
        code = firni_index_put_rank(index, txn, key, rank_of(entry));
    }
    if (code == 0) {
        code = segment_gained(index, txn, &entry->place);
    }
    if (code != 0) {
        return code;
    }
    return firni_index_root_gained(index, txn, &entry->root, schema, ns);
}

firni_code firni_index_remove(const firni_index *index, MDB_txn *txn, const firni_key *key, const firni_entry *entry)
{
    firni_key stored;
    firni_code code = firni_index_seal_key(index, key, &stored);
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(stored.bytes, stored.n_bytes);
    code = mdb_del(txn, table_of(index, key->which), &db_key, NULL);
    if (code == 0) {
        code = firni_index_del_rank(index, txn, rank_of(entry));
    }
    if (code == 0) {
        code = segment_lost(index, txn, &entry->place);
    }
    return code == 0 ? firni_index_root_lost(index, txn, &entry->root) : code;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

firni_code firni_index_has_children(const firni_index *index, MDB_txn *txn, const firn_digest *digest, bool *out)
{
    *out = false;
    uint8_t stored[FIRN_DIGEST_BYTES];
    firni_code code = firni_index_seal_digest(index, digest, stored);
    for (unsigned which = FIRNI_RECORDS; which <= FIRNI_WHICH_LAST && !*out && code == 0; which++) {
        MDB_cursor *cursor = NULL;
        code = mdb_cursor_open(txn, table_of(index, (firni_which)which), &cursor);
        if (code != 0) {
            return code;
        }
        MDB_val key = val_of(stored, sizeof stored), value;
        code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        *out = code == 0 && key.mv_size >= sizeof stored && memcmp(key.mv_data, stored, sizeof stored) == 0;
        mdb_cursor_close(cursor);
        code = code == MDB_NOTFOUND ? 0 : code;
    }
    return code;
}

/* Bytes that two keys share at their beginning, in whole tokens. */
static uint32_t common_bytes(const firni_key *a, const firni_key *b)
{
    const uint32_t n_max = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    uint32_t n = 0;
    while (n < n_max && a->bytes[n] == b->bytes[n]) {
        n++;
    }
    return n < FIRN_DIGEST_BYTES ? 0 : n - n % 4;
}

/* The last key that is not larger than the wanted one is a beginning of it, or shares a shorter beginning: then every
 * beginning of it that is stored is a beginning of that one too, and the search goes on from there. */
firni_code firni_index_prefix(const firni_index *index, MDB_txn *txn, firni_which which, const firni_key *wanted,
                              uint32_t n_tokens, firni_key *key, firni_entry *entry)
{
    firni_key bound = *wanted;
    bound.which = which;
    bound.n_bytes = FIRN_DIGEST_BYTES + 4 * n_tokens;
    assert(bound.n_bytes <= wanted->n_bytes);
    while (bound.n_bytes > FIRN_DIGEST_BYTES) {
        *key = bound;
        firni_code code = firni_index_get(index, txn, key, entry);
        if (code != MDB_NOTFOUND) {
            return code;
        }
        code = firni_index_before(index, txn, &bound, key, entry);
        if (code != 0) {
            return code;
        }
        const uint32_t n_common = common_bytes(&bound, key);
        if (n_common == key->n_bytes && n_common > FIRN_DIGEST_BYTES) {
            return 0;
        }
        bound.n_bytes = n_common;
    }
    return MDB_NOTFOUND;
}

/* The longest checkpoint decides: a record that begins with its tokens begins with those of all shorter ones. */
firni_code firni_index_has_checkpoint(const firni_index *index, MDB_txn *txn, const firni_key *record, bool *out)
{
    *out = false;
    firni_key checkpoint, other = { .which = FIRNI_RECORDS };
    firni_entry entry;
    const uint32_t n_tokens = (record->n_bytes - FIRN_DIGEST_BYTES) / 4;
    firni_code code = firni_index_prefix(index, txn, FIRNI_CHECKPOINTS, record, n_tokens, &checkpoint, &entry);
    if (code != 0) {
        return code == MDB_NOTFOUND ? 0 : code;
    }
    /* The records that begin with its tokens stand side by side: this one is the first or the second, or not alone. */
    memcpy(other.bytes, checkpoint.bytes, checkpoint.n_bytes);
    other.n_bytes = checkpoint.n_bytes;
    code = firni_index_get(index, txn, &other, &entry);
    bool is_other = code == 0 && other.n_bytes != record->n_bytes;
    for (unsigned i = 0; i < 2 && !is_other && (code == 0 || code == MDB_NOTFOUND); i++) {
        code = firni_index_next(index, txn, &other, &entry);
        if (code != 0 || other.n_bytes < checkpoint.n_bytes ||
            memcmp(other.bytes, checkpoint.bytes, checkpoint.n_bytes) != 0) {
            break;
        }
        is_other = other.n_bytes != record->n_bytes || memcmp(other.bytes, record->bytes, other.n_bytes) != 0;
    }
    *out = !is_other;
    return code == MDB_NOTFOUND ? 0 : code;
}

/* The row that the cursor stands on, opened. */
static firni_code open_row(const firni_index *index, firni_which which, const MDB_val *db_key, const MDB_val *value,
                           firni_key *key, firni_entry *entry)
{
    const firni_code code = firni_index_open_key(index, which, db_key->mv_data, db_key->mv_size, key);
    return code == 0 ? firni_index_open_entry(index, value, entry) : code;
}

firni_code firni_index_next(const firni_index *index, MDB_txn *txn, firni_key *key, firni_entry *entry)
{
    MDB_cursor *cursor = NULL;
    firni_key stored;
    firni_code code = firni_index_seal_key(index, key, &stored);
    code = code == 0 ? mdb_cursor_open(txn, table_of(index, key->which), &cursor) : code;
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(stored.bytes, stored.n_bytes), value;
    code = mdb_cursor_get(cursor, &db_key, &value, stored.n_bytes == 0 ? MDB_FIRST : MDB_SET_RANGE);
    if (code == 0 && stored.n_bytes > 0 && db_key.mv_size == stored.n_bytes &&
        memcmp(db_key.mv_data, stored.bytes, stored.n_bytes) == 0) {
        code = mdb_cursor_get(cursor, &db_key, &value, MDB_NEXT);
    }
    code = code == 0 ? open_row(index, key->which, &db_key, &value, key, entry) : code;
    mdb_cursor_close(cursor);
    return code;
}

firni_code firni_index_before(const firni_index *index, MDB_txn *txn, const firni_key *wanted, firni_key *key,
                              firni_entry *entry)
{
    MDB_cursor *cursor = NULL;
    firni_key stored;
    firni_code code = firni_index_seal_key(index, wanted, &stored);
    code = code == 0 ? mdb_cursor_open(txn, table_of(index, wanted->which), &cursor) : code;
    if (code != 0) {
        return code;
    }
    MDB_val db_key = val_of(stored.bytes, stored.n_bytes), value;
    code = mdb_cursor_get(cursor, &db_key, &value, MDB_SET_RANGE);
    if (code == 0 || code == MDB_NOTFOUND) {
        code = mdb_cursor_get(cursor, &db_key, &value, code == 0 ? MDB_PREV : MDB_LAST);
    }
    code = code == 0 ? open_row(index, wanted->which, &db_key, &value, key, entry) : code;
    mdb_cursor_close(cursor);
    return code;
}

firni_code firni_index_count(const firni_index *index, MDB_txn *txn, uint64_t *n_entries)
{
    *n_entries = 0;
    for (unsigned which = FIRNI_RECORDS; which <= FIRNI_WHICH_LAST; which++) {
        MDB_stat stat;
        const firni_code code = mdb_stat(txn, table_of(index, (firni_which)which), &stat);
        if (code != 0) {
            return code;
        }
        *n_entries += stat.ms_entries;
    }
    return 0;
}
