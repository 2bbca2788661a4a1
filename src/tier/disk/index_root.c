/*
 * The index, third part: namespaces and identities, so that an inspector can name what a record belongs to, and a miss
 * can say that only other identities are stored.
 *
 * Invariants: a root's count is the number of entries below it; an identity's count is the number of its roots; nothing
 * with a count of 0 is kept; a text is there exactly while its identity is.
 */
#include <assert.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

#define ROOT_FIXED_BYTES 40u /* identity digest, count */

static MDB_val val_of(const void *bytes, size_t n_bytes)
{
    return (MDB_val){ .mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes };
}

/* ---- identities -------------------------------------------------------------------------------------------------- */

static firni_code get_root_count(const firni_index *index, MDB_txn *txn, const firn_digest *identity, uint64_t *n_roots)
{
    *n_roots = 0;
    MDB_val key = val_of(identity->bytes, FIRN_DIGEST_BYTES), value;
    const firni_code code = mdb_get(txn, index->identities, &key, &value);
    if (code == 0) {
        *n_roots = value.mv_size == 8 ? firni_get_u64(value.mv_data) : 0;
        return value.mv_size == 8 ? 0 : MDB_CORRUPTED;
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

static firni_code put_root_count(const firni_index *index, MDB_txn *txn, const firn_digest *identity, uint64_t n_roots)
{
    uint8_t bytes[8];
    firni_put_u64(bytes, n_roots);
    MDB_val key = val_of(identity->bytes, FIRN_DIGEST_BYTES), value = val_of(bytes, sizeof bytes);
    return mdb_put(txn, index->identities, &key, &value, 0);
}

/* A namespace appears under this schema's identity. Its text is written once, with the first. */
static firni_code gain_root(const firni_index *index, MDB_txn *txn, const firn_schema *schema)
{
    uint64_t n_roots;
    firni_code code = get_root_count(index, txn, &schema->identity, &n_roots);
    if (code == 0 && n_roots == 0) {
        const char *text = schema->identity_text != NULL ? schema->identity_text : "";
        MDB_val key = val_of(schema->identity.bytes, FIRN_DIGEST_BYTES), value = val_of(text, strlen(text));
        code = mdb_put(txn, index->texts, &key, &value, 0);
    }
    return code == 0 ? put_root_count(index, txn, &schema->identity, n_roots + 1) : code;
}

/* A namespace has lost its last entry; with the last namespace the identity goes, too. */
static firni_code lose_root(const firni_index *index, MDB_txn *txn, const firn_digest *identity)
{
    uint64_t n_roots;
    firni_code code = get_root_count(index, txn, identity, &n_roots);
    if (code != 0 || n_roots > 1) {
        return code != 0 ? code : put_root_count(index, txn, identity, n_roots - 1);
    }
    MDB_val key = val_of(identity->bytes, FIRN_DIGEST_BYTES);
    code = mdb_del(txn, index->identities, &key, NULL);
    return code == 0 ? mdb_del(txn, index->texts, &key, NULL) : code;
}

firni_code firni_index_get_identity(const firni_index *index, MDB_txn *txn, const firn_digest *identity,
                                    const char **text, size_t *n_text, uint64_t *n_roots)
{
    *text = "";
    *n_text = 0;
    firni_code code = get_root_count(index, txn, identity, n_roots);
    if (code == 0 && *n_roots == 0) {
        return MDB_NOTFOUND;
    }
    MDB_val key = val_of(identity->bytes, FIRN_DIGEST_BYTES), value;
    if (code == 0) {
        code = mdb_get(txn, index->texts, &key, &value);
    }
    if (code == 0) {
        *text = value.mv_data;
        *n_text = value.mv_size;
    }
    return code;
}

/* ---- roots ------------------------------------------------------------------------------------------------------- */

firni_code firni_index_get_root(const firni_index *index, MDB_txn *txn, const firn_digest *root, firn_digest *identity,
                                char *ns, uint64_t *n_records)
{
    MDB_val key = val_of(root->bytes, FIRN_DIGEST_BYTES), value;
    const firni_code code = mdb_get(txn, index->roots, &key, &value);
    if (code != 0) {
        return code;
    }
    if (value.mv_size < ROOT_FIXED_BYTES || value.mv_size - ROOT_FIXED_BYTES > FIRN_NAMESPACE_BYTES_MAX) {
        return MDB_CORRUPTED;
    }
    const size_t n_ns = value.mv_size - ROOT_FIXED_BYTES;
    const uint8_t *at = value.mv_data;
    memcpy(identity->bytes, at, FIRN_DIGEST_BYTES);
    *n_records = firni_get_u64(at + FIRN_DIGEST_BYTES);
    memcpy(ns, at + ROOT_FIXED_BYTES, n_ns);
    ns[n_ns] = '\0';
    return 0;
}

static firni_code put_root(const firni_index *index, MDB_txn *txn, const firn_digest *root, const firn_digest *identity,
                           const char *ns, uint64_t n_records)
{
    uint8_t bytes[ROOT_FIXED_BYTES + FIRN_NAMESPACE_BYTES_MAX];
    const size_t n_ns = strlen(ns);
    assert(n_ns <= FIRN_NAMESPACE_BYTES_MAX);
    memcpy(bytes, identity->bytes, FIRN_DIGEST_BYTES);
    firni_put_u64(bytes + FIRN_DIGEST_BYTES, n_records);
    memcpy(bytes + ROOT_FIXED_BYTES, ns, n_ns);
    MDB_val key = val_of(root->bytes, FIRN_DIGEST_BYTES), value = val_of(bytes, ROOT_FIXED_BYTES + n_ns);
    return mdb_put(txn, index->roots, &key, &value, 0);
}

firni_code firni_index_root_gained(const firni_index *index, MDB_txn *txn, const firn_digest *root,
                                   const firn_schema *schema, const char *ns)
{
    firn_digest identity;
    char found_ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    uint64_t n_records = 0;
    firni_code code = firni_index_get_root(index, txn, root, &identity, found_ns, &n_records);
    if (code == MDB_NOTFOUND) {
        code = gain_root(index, txn, schema);
    }
    return code == 0 ? put_root(index, txn, root, &schema->identity, ns, n_records + 1) : code;
}

firni_code firni_index_root_lost(const firni_index *index, MDB_txn *txn, const firn_digest *root)
{
    firn_digest identity;
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    uint64_t n_records = 0;
    firni_code code = firni_index_get_root(index, txn, root, &identity, ns, &n_records);
    if (code != 0 || n_records > 1) {
        return code != 0 ? code : put_root(index, txn, root, &identity, ns, n_records - 1);
    }
    MDB_val key = val_of(root->bytes, FIRN_DIGEST_BYTES);
    code = mdb_del(txn, index->roots, &key, NULL);
    return code == 0 ? lose_root(index, txn, &identity) : code;
}
