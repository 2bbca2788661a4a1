/*
 * The index of an encrypted store: what of its rows is sealed, and how it is searched all the same.
 *
 *      key      parent digest | tokens         sealed each in its way, to the same lengths (record/crypt_impl.h)
 *      entry    ... | digest | root | ...      the digest is sealed
 *      link     both digests                   sealed
 *      row      times, namespace | name, tokens | nonce | tag          by name: all but the beginning is sealed
 *
 * Everything that depends on tokens or on the name of something that is kept is sealed; identities, namespaces, times,
 * places and counts are not. In memory all is plain: only what goes to LMDB, or comes from it, passes here.
 *
 * A *locked* index is an encrypted one that is looked at without its key. Sealed digests and tokens stand for the plain
 * ones: they are equal, and begin alike, exactly where those do, so that listing and removing work.
 *
 * Does not know LMDB, and not which key is the right one (index.c).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

static bool is_zero(const firn_digest *digest)
{
    static const firn_digest zero = { { 0 } };
    return memcmp(digest->bytes, zero.bytes, sizeof zero.bytes) == 0;
}

/* Zeros are no digest: walks begin there. */
firni_code firni_index_seal_digest(const firni_index *index, const firn_digest *digest, uint8_t out[FIRN_DIGEST_BYTES])
{
    if (index->crypt == NULL || is_zero(digest)) {
        memcpy(out, digest->bytes, sizeof digest->bytes);
        return 0;
    }
    return firni_crypt_seal_digest(index->crypt, digest->bytes, out) ? 0 : ENOMEM;
}

firni_code firni_index_open_digest(const firni_index *index, const uint8_t bytes[FIRN_DIGEST_BYTES], firn_digest *out)
{
    if (index->crypt == NULL) {
        memcpy(out->bytes, bytes, sizeof out->bytes);
        return 0;
    }
    return firni_crypt_open_digest(index->crypt, bytes, out->bytes) ? 0 : ENOMEM;
}

firni_code firni_index_seal_key(const firni_index *index, const firni_key *key, firni_key *out)
{
    if (index->crypt == NULL || key->n_bytes == 0) {
        *out = *key;
        return 0;
    }
    assert(key->n_bytes >= FIRN_DIGEST_BYTES);
    out->which = key->which;
    out->n_bytes = key->n_bytes;
    return firni_crypt_seal_digest(index->crypt, key->bytes, out->bytes) &&
                   firni_crypt_seal_tokens(index->crypt, key->bytes, key->bytes + FIRN_DIGEST_BYTES,
                                           (key->n_bytes - FIRN_DIGEST_BYTES) / 4, out->bytes + FIRN_DIGEST_BYTES)
               ? 0
               : ENOMEM;
}

firni_code firni_index_open_key(const firni_index *index, firni_which which, const void *bytes, size_t n_bytes,
                                firni_key *out)
{
    if (!firni_key_decode(which, bytes, n_bytes, out)) {
        return MDB_CORRUPTED;
    }
    if (index->crypt == NULL) {
        return 0;
    }
    const uint8_t *sealed = bytes;
    return firni_crypt_open_digest(index->crypt, sealed, out->bytes) &&
                   firni_crypt_open_tokens(index->crypt, out->bytes, sealed + FIRN_DIGEST_BYTES,
                                           (out->n_bytes - FIRN_DIGEST_BYTES) / 4, out->bytes + FIRN_DIGEST_BYTES)
               ? 0
               : ENOMEM;
}

firni_code firni_index_open_entry(const firni_index *index, const MDB_val *value, firni_entry *out)
{
    if (!firni_entry_decode(value->mv_data, value->mv_size, out)) {
        return MDB_CORRUPTED;
    }
    const firn_digest sealed = out->digest;
    return firni_index_open_digest(index, sealed.bytes, &out->digest);
}

/* ---- rows of what is kept by name -------------------------------------------------------------------------------- */

/* A row's nonce is random: rows are few, and each change of one draws another. Its stored key is bound to it, so that
 * rows cannot change places. */
static firni_crypt_context row_context(const firni_index *index, const uint8_t key[FIRN_DIGEST_BYTES],
                                       const uint8_t *row, size_t n_clear)
{
    return (firni_crypt_context){ .key = firni_crypt_row_key(index->crypt),
                                  .bound = { key, row },
                                  .n_bound = { FIRN_DIGEST_BYTES, n_clear } };
}

size_t firni_index_row_surplus(const firni_index *index)
{
    return index->crypt != NULL || index->is_locked ? FIRNI_CRYPT_NONCE_BYTES + FIRNI_CRYPT_TAG_BYTES : 0;
}

firni_code firni_index_seal_row(const firni_index *index, const uint8_t key[FIRN_DIGEST_BYTES], uint8_t *row,
                                size_t n_clear, size_t n_secret)
{
    if (index->crypt == NULL) {
        return 0;
    }
    firni_crypt_context context = row_context(index, key, row, n_clear);
    uint8_t *nonce = row + n_clear + n_secret;
    if (!firni_crypt_random(nonce, FIRNI_CRYPT_NONCE_BYTES)) {
        return EIO;
    }
    memcpy(context.nonce, nonce, FIRNI_CRYPT_NONCE_BYTES);
    const firn_status status = firni_crypt_seal(index->crypt, &context, row + n_clear, n_secret, row + n_clear,
                                                nonce + FIRNI_CRYPT_NONCE_BYTES);
    return status == FIRN_OK ? 0 : ENOMEM;
}

firni_code firni_index_open_row(const firni_index *index, const uint8_t key[FIRN_DIGEST_BYTES], const uint8_t *row,
                                size_t n_clear, size_t n_secret, uint8_t *out)
{
    assert(index->crypt != NULL);
    firni_crypt_context context = row_context(index, key, row, n_clear);
    const uint8_t *nonce = row + n_clear + n_secret;
    memcpy(context.nonce, nonce, FIRNI_CRYPT_NONCE_BYTES);
    const firn_status status = firni_crypt_open(index->crypt, &context, row + n_clear, n_secret, out,
                                                nonce + FIRNI_CRYPT_NONCE_BYTES);
    return status == FIRN_OK ? 0 : status == FIRN_ERR_CORRUPT ? MDB_CORRUPTED : ENOMEM;
}
