/*
 * The index, fifth part: links from a namespace to one above it.
 *
 *      house     root --> h1 --> h2                     records of the house
 *      alice     root  .. a1  .. a2 --> a3              a1, a2 are digests without records: the house has these blocks
 *                         h2 ------------^              the link: what hangs on a2 depends on the record h2
 *
 * Without it nobody could see from h2 that a3 goes on from there, because alice's chain has other digests. Both
 * directions are needed: from a record to what depends on it (eviction), and back (the audit). A link whose target has
 * lost all that hung on it is dropped when somebody comes across it.
 *
 * Owns the table of links: two rows for each, told apart by a first byte.
 */
#include <string.h>

#include "tier/disk/disk_impl.h"

#define LINK_BYTES   (1u + 2u * FIRN_DIGEST_BYTES)
#define FROM_SOURCE  0u
#define FROM_TARGET  1u

static firni_code link_key(const firni_index *index, uint8_t bytes[LINK_BYTES], uint8_t direction,
                           const firn_digest *from, const firn_digest *to)
{
    bytes[0] = direction;
    const firni_code code = firni_index_seal_digest(index, from, bytes + 1);
    return code == 0 ? firni_index_seal_digest(index, to, bytes + 1 + FIRN_DIGEST_BYTES) : code;
}

static firni_code put_row(const firni_index *index, MDB_txn *txn, uint8_t direction, const firn_digest *from,
                          const firn_digest *to)
{
    uint8_t bytes[LINK_BYTES], nothing = 0;
    const firni_code code = link_key(index, bytes, direction, from, to);
    if (code != 0) {
        return code;
    }
    MDB_val key = { .mv_size = sizeof bytes, .mv_data = bytes }, value = { .mv_size = 1, .mv_data = &nothing };
    return mdb_put(txn, index->links, &key, &value, 0);
}

static firni_code del_row(const firni_index *index, MDB_txn *txn, uint8_t direction, const firn_digest *from,
                          const firn_digest *to)
{
    uint8_t bytes[LINK_BYTES];
    firni_code code = link_key(index, bytes, direction, from, to);
    if (code != 0) {
        return code;
    }
    MDB_val key = { .mv_size = sizeof bytes, .mv_data = bytes };
    code = mdb_del(txn, index->links, &key, NULL);
    return code == MDB_NOTFOUND ? 0 : code;
}

firni_code firni_index_put_link(const firni_index *index, MDB_txn *txn, const firn_digest *source,
                                const firn_digest *target)
{
    const firni_code code = put_row(index, txn, FROM_SOURCE, source, target);
    return code == 0 ? put_row(index, txn, FROM_TARGET, target, source) : code;
}

/* The next digest behind *to that `from` is linked with. */
static firni_code next_row(const firni_index *index, MDB_txn *txn, uint8_t direction, const firn_digest *from,
                           firn_digest *to)
{
    uint8_t bytes[LINK_BYTES];
    firni_code code = link_key(index, bytes, direction, from, to);
    MDB_cursor *cursor = NULL;
    code = code == 0 ? mdb_cursor_open(txn, index->links, &cursor) : code;
    if (code != 0) {
        return code;
    }
    MDB_val key = { .mv_size = sizeof bytes, .mv_data = bytes }, value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    if (code == 0 && key.mv_size == LINK_BYTES && memcmp(key.mv_data, bytes, LINK_BYTES) == 0) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (code == 0 && (key.mv_size != LINK_BYTES || memcmp(key.mv_data, bytes, 1 + FIRN_DIGEST_BYTES) != 0)) {
        code = MDB_NOTFOUND;
    }
    if (code == 0) {
        code = firni_index_open_digest(index, (const uint8_t *)key.mv_data + 1 + FIRN_DIGEST_BYTES, to);
    }
    mdb_cursor_close(cursor);
    return code;
}

firni_code firni_index_next_source(const firni_index *index, MDB_txn *txn, const firn_digest *target,
                                   firn_digest *source)
{
    return next_row(index, txn, FROM_TARGET, target, source);
}

/* Whether a link of this source leads to a chain that has anything; others are dropped. */
static firni_code has_linked_children(const firni_index *index, MDB_txn *txn, const firn_digest *source, bool *out)
{
    firn_digest target = { { 0 } };
    firni_code code = next_row(index, txn, FROM_SOURCE, source, &target);
    while (code == 0 && !*out) {
        code = firni_index_has_children(index, txn, &target, out);
        if (code == 0 && !*out) {
            code = del_row(index, txn, FROM_SOURCE, source, &target);
            code = code == 0 ? del_row(index, txn, FROM_TARGET, &target, source) : code;
        }
        code = code == 0 && !*out ? next_row(index, txn, FROM_SOURCE, source, &target) : code;
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

/* Whether a checkpoint of a namespace below lies on this record and on no other. */
static firni_code has_linked_checkpoint(const firni_index *index, MDB_txn *txn, const firni_key *key, bool *out)
{
    const firn_digest parent = firni_key_parent(key);
    firn_digest target = { { 0 } };
    firni_code code = next_row(index, txn, FROM_SOURCE, &parent, &target);
    while (code == 0 && !*out) {
        firni_key below = *key;
        memcpy(below.bytes, target.bytes, sizeof target.bytes);
        code = firni_index_has_checkpoint(index, txn, &below, out);
        code = code == 0 && !*out ? next_row(index, txn, FROM_SOURCE, &parent, &target) : code;
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

firni_code firni_index_has_dependants(const firni_index *index, MDB_txn *txn, const firni_key *key,
                                      const firni_entry *entry, bool *out)
{
    *out = false;
    if (key->which != FIRNI_RECORDS) {
        return 0;
    }
    firni_code code = firni_index_has_children(index, txn, &entry->digest, out);
    if (code == 0 && !*out) {
        code = firni_index_has_checkpoint(index, txn, key, out);
    }
    if (code == 0 && !*out) {
        code = has_linked_children(index, txn, &entry->digest, out);
    }
    return code == 0 && !*out ? has_linked_checkpoint(index, txn, key, out) : code;
}
