/*
 * Keys and ciphers of an encrypted store: see crypt_impl.h for which there are and why.
 *
 * Owns every use of AES in the project. Does not know what a record or an index row looks like.
 *
 * Sources: NIST SP 800-38D (GCM); RFC 5869 section 2.3 (HKDF-Expand); Black and Rogaway, "CBC MACs for Arbitrary-Length
 * Messages", CRYPTO 2000 (FCBC); all through libcrypto.
 */
#include "record/crypt_impl.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <string.h>

#include "base/base_impl.h"
#include "firn/array.h"

#define AES_BYTES        16u
#define GROUP_TOKENS     4u /* that fit into one block of AES */
#define GROUPS           (FIRN_BLOCK_TOKENS / GROUP_TOKENS)
#define GCM_PIECE_BYTES  (1u << 30) /* libcrypto counts in int */
#define PAD_BEGIN        0x80u

_Static_assert(FIRN_DIGEST_BYTES == 2 * AES_BYTES, "a digest is two blocks");

/* Contexts whose keys are set, for one caller at a time. */
typedef struct lane {
    EVP_CIPHER_CTX *digest_seal, *digest_open, *chain, *word, *gcm;
    struct lane *next;
} lane;

struct firni_crypt {
    const firn_env *env;
    uint8_t id[FIRNI_CRYPT_ID_BYTES];
    firni_crypt_key record, digest, chain, word, row;
    pthread_mutex_t mutex;
    lane *free_lanes; /* guarded by mutex; as many as there were callers at once */
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

void firni_crypt_forget(void *bytes, size_t n_bytes)
{
    OPENSSL_cleanse(bytes, n_bytes);
}

bool firni_crypt_random(uint8_t *out, size_t n_bytes)
{
    return RAND_bytes(out, (int)n_bytes) == 1;
}

/* HKDF-Expand of one block of output. The keys it starts from are uniformly random, so nothing is extracted before. */
static bool expand(const uint8_t *key, const char *label, const uint8_t *info, size_t n_info, uint8_t *out,
                   size_t n_out)
{
    uint8_t message[64], block[EVP_MAX_MD_SIZE];
    const size_t n_label = strlen(label);
    assert(n_label + n_info + 1 <= sizeof message && n_out <= 32);
    memcpy(message, label, n_label);
    if (n_info > 0) {
        memcpy(message + n_label, info, n_info);
    }
    message[n_label + n_info] = 1;
    unsigned n_block = 0;
    const bool done = HMAC(EVP_sha256(), key, FIRNI_CRYPT_KEY_BYTES, message, n_label + n_info + 1, block,
                           &n_block) != NULL;
    if (done) {
        memcpy(out, block, n_out);
    }
    OPENSSL_cleanse(block, sizeof block);
    return done;
}

bool firni_crypt_record_key(const firni_crypt *crypt, const uint8_t salt[FIRNI_CRYPT_SALT_BYTES], firni_crypt_key *out)
{
    return expand(crypt->record.bytes, "firn.crypt.record.1", salt, FIRNI_CRYPT_SALT_BYTES, out->bytes,
                  sizeof out->bytes);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static void lane_destroy(const firn_env *env, lane *l)
{
    if (l != NULL) {
        EVP_CIPHER_CTX_free(l->digest_seal);
        EVP_CIPHER_CTX_free(l->digest_open);
        EVP_CIPHER_CTX_free(l->chain);
        EVP_CIPHER_CTX_free(l->word);
        EVP_CIPHER_CTX_free(l->gcm);
        firni_free(env, l);
    }
}

/* A context without padding; key NULL: it is set with each use. */
static EVP_CIPHER_CTX *context_create(const EVP_CIPHER *cipher, const firni_crypt_key *key, bool seals)
{
    static const uint8_t iv[AES_BYTES] = { 0 };
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context == NULL || EVP_CipherInit_ex(context, cipher, NULL, key != NULL ? key->bytes : NULL,
                                             key != NULL ? iv : NULL, seals) != 1 ||
        EVP_CIPHER_CTX_set_padding(context, 0) != 1) {
        EVP_CIPHER_CTX_free(context);
        return NULL;
    }
    return context;
}

static lane *lane_create(const firni_crypt *crypt)
{
    lane *l = firni_calloc(crypt->env, 1, sizeof *l);
    if (l == NULL) {
        return NULL;
    }
    l->digest_seal = context_create(EVP_aes_256_ecb(), &crypt->digest, true);
    l->digest_open = context_create(EVP_aes_256_ecb(), &crypt->digest, false);
    l->chain = context_create(EVP_aes_256_cbc(), &crypt->chain, true);
    l->word = context_create(EVP_aes_256_ecb(), &crypt->word, true);
    l->gcm = context_create(EVP_aes_256_gcm(), NULL, true);
    if (l->digest_seal == NULL || l->digest_open == NULL || l->chain == NULL || l->word == NULL || l->gcm == NULL) {
        lane_destroy(crypt->env, l);
        return NULL;
    }
    return l;
}

/* The free list is the one thing that changes in a crypt after its creation. */
static firni_crypt *changeable(const firni_crypt *crypt)
{
    return (firni_crypt *)(uintptr_t)crypt;
}

static lane *lane_take(const firni_crypt *crypt)
{
    firni_crypt *owner = changeable(crypt);
    pthread_mutex_lock(&owner->mutex);
    lane *l = owner->free_lanes;
    if (l != NULL) {
        owner->free_lanes = l->next;
    }
    pthread_mutex_unlock(&owner->mutex);
    return l != NULL ? l : lane_create(crypt);
}

static void lane_give(const firni_crypt *crypt, lane *l)
{
    firni_crypt *owner = changeable(crypt);
    pthread_mutex_lock(&owner->mutex);
    l->next = owner->free_lanes;
    owner->free_lanes = l;
    pthread_mutex_unlock(&owner->mutex);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

firn_status firni_crypt_create(const uint8_t key[FIRNI_CRYPT_KEY_BYTES], const firn_env *env, firni_crypt **out,
                               firn_error *err)
{
    *out = NULL;
    firni_crypt *crypt = firni_calloc(env, 1, sizeof *crypt);
    if (crypt == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the keys of a store");
    }
    crypt->env = env;
    (void)pthread_mutex_init(&crypt->mutex, NULL);
    const bool derived = expand(key, "firn.crypt.id.1", NULL, 0, crypt->id, sizeof crypt->id) &&
                         expand(key, "firn.crypt.records.1", NULL, 0, crypt->record.bytes, FIRNI_CRYPT_KEY_BYTES) &&
                         expand(key, "firn.crypt.digests.1", NULL, 0, crypt->digest.bytes, FIRNI_CRYPT_KEY_BYTES) &&
                         expand(key, "firn.crypt.chains.1", NULL, 0, crypt->chain.bytes, FIRNI_CRYPT_KEY_BYTES) &&
                         expand(key, "firn.crypt.words.1", NULL, 0, crypt->word.bytes, FIRNI_CRYPT_KEY_BYTES) &&
                         expand(key, "firn.crypt.rows.1", NULL, 0, crypt->row.bytes, FIRNI_CRYPT_KEY_BYTES);
    lane *first = derived ? lane_create(crypt) : NULL;
    if (first == NULL) {
        firni_crypt_destroy(crypt);
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "libcrypto cannot set up AES-256 and HMAC-SHA-256");
    }
    lane_give(crypt, first);
    *out = crypt;
    return FIRN_OK;
}

void firni_crypt_destroy(firni_crypt *crypt)
{
    if (crypt == NULL) {
        return;
    }
    while (crypt->free_lanes != NULL) {
        lane *l = crypt->free_lanes;
        crypt->free_lanes = l->next;
        lane_destroy(crypt->env, l);
    }
    (void)pthread_mutex_destroy(&crypt->mutex);
    const firn_env *env = crypt->env;
    OPENSSL_cleanse(crypt, sizeof *crypt);
    firni_free(env, crypt);
}

const uint8_t *firni_crypt_id(const firni_crypt *crypt)
{
    return crypt->id;
}

const firni_crypt_key *firni_crypt_row_key(const firni_crypt *crypt)
{
    return &crypt->row;
}

/* ---- with a tag -------------------------------------------------------------------------------------------------- */

static bool gcm_begin(lane *l, const firni_crypt_context *context, bool seals)
{
    int n;
    bool good = EVP_CipherInit_ex(l->gcm, NULL, NULL, context->key->bytes, context->nonce, seals) == 1;
    for (unsigned i = 0; i < 2 && good; i++) {
        good = context->n_bound[i] == 0 ||
               EVP_CipherUpdate(l->gcm, NULL, &n, context->bound[i], (int)context->n_bound[i]) == 1;
    }
    return good;
}

static bool gcm_pass(lane *l, const uint8_t *in, size_t n_bytes, uint8_t *out)
{
    bool good = true;
    for (size_t at = 0; at < n_bytes && good;) {
        const size_t n_left = n_bytes - at;
        const int n_piece = (int)(n_left < GCM_PIECE_BYTES ? n_left : GCM_PIECE_BYTES);
        int n;
        good = EVP_CipherUpdate(l->gcm, out + at, &n, in + at, n_piece) == 1 && n == n_piece;
        at += (size_t)n_piece;
    }
    return good;
}

firn_status firni_crypt_seal(const firni_crypt *crypt, const firni_crypt_context *context, const uint8_t *in,
                             size_t n_bytes, uint8_t *out, uint8_t tag[FIRNI_CRYPT_TAG_BYTES])
{
    lane *l = lane_take(crypt);
    if (l == NULL) {
        return FIRN_ERR_NO_MEMORY;
    }
    uint8_t rest[AES_BYTES];
    int n;
    const bool good = gcm_begin(l, context, true) && gcm_pass(l, in, n_bytes, out) &&
                      EVP_CipherFinal_ex(l->gcm, rest, &n) == 1 &&
                      EVP_CIPHER_CTX_ctrl(l->gcm, EVP_CTRL_AEAD_GET_TAG, FIRNI_CRYPT_TAG_BYTES, tag) == 1;
    lane_give(crypt, l);
    return good ? FIRN_OK : FIRN_ERR_NO_MEMORY;
}

firn_status firni_crypt_open(const firni_crypt *crypt, const firni_crypt_context *context, const uint8_t *in,
                             size_t n_bytes, uint8_t *out, const uint8_t tag[FIRNI_CRYPT_TAG_BYTES])
{
    lane *l = lane_take(crypt);
    if (l == NULL) {
        return FIRN_ERR_NO_MEMORY;
    }
    uint8_t expected[FIRNI_CRYPT_TAG_BYTES], rest[AES_BYTES];
    memcpy(expected, tag, sizeof expected);
    int n;
    const bool passed = gcm_begin(l, context, false) && gcm_pass(l, in, n_bytes, out) &&
                        EVP_CIPHER_CTX_ctrl(l->gcm, EVP_CTRL_AEAD_SET_TAG, FIRNI_CRYPT_TAG_BYTES, expected) == 1;
    const bool good = passed && EVP_CipherFinal_ex(l->gcm, rest, &n) == 1;
    lane_give(crypt, l);
    return good ? FIRN_OK : passed ? FIRN_ERR_CORRUPT : FIRN_ERR_NO_MEMORY;
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

static bool pass_digest(const firni_crypt *crypt, bool seals, const uint8_t *in, uint8_t *out)
{
    lane *l = lane_take(crypt);
    int n = 0;
    const bool good = l != NULL && EVP_CipherUpdate(seals ? l->digest_seal : l->digest_open, out, &n, in,
                                                    FIRN_DIGEST_BYTES) == 1 && n == FIRN_DIGEST_BYTES;
    if (l != NULL) {
        lane_give(crypt, l);
    }
    return good;
}

bool firni_crypt_seal_digest(const firni_crypt *crypt, const uint8_t in[FIRN_DIGEST_BYTES],
                             uint8_t out[FIRN_DIGEST_BYTES])
{
    return pass_digest(crypt, true, in, out);
}

bool firni_crypt_open_digest(const firni_crypt *crypt, const uint8_t in[FIRN_DIGEST_BYTES],
                             uint8_t out[FIRN_DIGEST_BYTES])
{
    return pass_digest(crypt, false, in, out);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The last block of the message (parent, tokens before this one), padded: the chain's value over all whole groups, and
 * the tokens of the own group that come before. */
static void word_block(const uint8_t state[AES_BYTES], const uint8_t *group, uint32_t n_before, uint8_t out[AES_BYTES])
{
    memcpy(out, state, AES_BYTES);
    for (uint32_t i = 0; i < 4 * n_before; i++) {
        out[i] ^= group[i];
    }
    out[4 * n_before] ^= PAD_BEGIN;
}

/* Starts the chain anew with the parent; `states` receives a value for each block of it. */
static bool chain_begin(lane *l, const uint8_t *parent, uint8_t states[FIRN_DIGEST_BYTES])
{
    static const uint8_t iv[AES_BYTES] = { 0 };
    int n = 0;
    return EVP_CipherInit_ex(l->chain, NULL, NULL, NULL, iv, 1) == 1 &&
           EVP_CipherUpdate(l->chain, states, &n, parent, FIRN_DIGEST_BYTES) == 1 && n == FIRN_DIGEST_BYTES;
}

/* All tokens are known, so the whole chain is one call, and so are all words. */
bool firni_crypt_seal_tokens(const firni_crypt *crypt, const uint8_t parent[FIRN_DIGEST_BYTES], const uint8_t *in,
                             uint32_t n_tokens, uint8_t *out)
{
    assert(n_tokens <= FIRN_BLOCK_TOKENS);
    if (n_tokens == 0) {
        return true;
    }
    uint8_t states[FIRN_DIGEST_BYTES + GROUPS * AES_BYTES], words[FIRN_BLOCK_TOKENS * AES_BYTES];
    const uint32_t n_chained = (n_tokens - 1) / GROUP_TOKENS; /* groups that a later token comes after */
    lane *l = lane_take(crypt);
    int n = 0;
    bool good = l != NULL && chain_begin(l, parent, states);
    if (good && n_chained > 0) {
        good = EVP_CipherUpdate(l->chain, states + FIRN_DIGEST_BYTES, &n, in, (int)(n_chained * AES_BYTES)) == 1;
    }
    for (uint32_t i = 0; good && i < n_tokens; i++) {
        const uint32_t group = i / GROUP_TOKENS;
        word_block(states + AES_BYTES + (size_t)group * AES_BYTES, in + (size_t)group * AES_BYTES, i % GROUP_TOKENS,
                   words + (size_t)i * AES_BYTES);
    }
    good = good && EVP_CipherUpdate(l->word, words, &n, words, (int)(n_tokens * AES_BYTES)) == 1;
    for (uint32_t i = 0; good && i < n_tokens; i++) {
        for (uint32_t b = 0; b < 4; b++) {
            out[4 * i + b] = in[4 * i + b] ^ words[(size_t)i * AES_BYTES + b];
        }
    }
    if (l != NULL) {
        lane_give(crypt, l);
    }
    return good;
}

/* Each token needs those before it. */
bool firni_crypt_open_tokens(const firni_crypt *crypt, const uint8_t parent[FIRN_DIGEST_BYTES], const uint8_t *in,
                             uint32_t n_tokens, uint8_t *out)
{
    assert(n_tokens <= FIRN_BLOCK_TOKENS);
    if (n_tokens == 0) {
        return true;
    }
    uint8_t states[FIRN_DIGEST_BYTES], word[AES_BYTES];
    uint8_t *state = states + AES_BYTES;
    lane *l = lane_take(crypt);
    bool good = l != NULL && chain_begin(l, parent, states);
    for (uint32_t i = 0; good && i < n_tokens; i++) {
        uint8_t *group = out + (size_t)(i / GROUP_TOKENS) * AES_BYTES;
        int n;
        if (i > 0 && i % GROUP_TOKENS == 0) {
            good = EVP_CipherUpdate(l->chain, state, &n, group - AES_BYTES, AES_BYTES) == 1;
        }
        word_block(state, group, i % GROUP_TOKENS, word);
        good = good && EVP_CipherUpdate(l->word, word, &n, word, AES_BYTES) == 1;
        for (uint32_t b = 0; b < 4; b++) {
            out[4 * i + b] = in[4 * i + b] ^ word[b];
        }
    }
    if (l != NULL) {
        lane_give(crypt, l);
    }
    return good;
}
