/*
 * crypt: what a key makes of stored bytes. Records and the index use it; neither knows an algorithm.
 *
 *      key (32 bytes) --HKDF-Expand--> id          says which key, in the clear
 *                                      record key  --HKDF-Expand(salt)--> one key for each written record
 *                                      digest key  digests in the index, as they would betray a guessed prompt
 *                                      chain key   \ tokens in the index, so that equal beginnings stay equal
 *                                      word key    /
 *                                      row key     names and tokens of pins, sessions and objects by key
 *
 * Algorithms: AES-256-GCM (NIST SP 800-38D) for all that has room for a tag; HKDF-Expand with HMAC-SHA-256 (RFC 5869)
 * for keys; AES-256 alone for digests, two blocks each: they are uniformly random, and equal only when they are the
 * same; and for tokens
 *
 *      stored token i = token i XOR F(parent digest, tokens before i)       F: 32 bits of a pseudo-random function
 *
 * F is a CBC-MAC whose last block has its own key and padding (Black and Rogaway 2000, FCBC), which is a pseudo-random
 * function for messages of any length. Equal beginnings under one parent give equal stored beginnings and all else is
 * independent, but for the XOR of the first two tokens that differ. So the longest common beginning is where it was: a
 * lookup searches stored keys as it searches plain ones.
 *
 * Threads: all functions may be called from any. Cipher contexts stand in lanes, one for each caller at a time.
 */
#ifndef FIRNI_CRYPT_IMPL_H
#define FIRNI_CRYPT_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/identity.h"
#include "firn/status.h"

#define FIRNI_CRYPT_KEY_BYTES 32u
#define FIRNI_CRYPT_ID_BYTES  16u
#define FIRNI_CRYPT_SALT_BYTES 16u
#define FIRNI_CRYPT_TAG_BYTES 16u
#define FIRNI_CRYPT_NONCE_BYTES 12u

typedef struct firni_crypt firni_crypt;

/* A key of one record; to be wiped with firni_crypt_forget. */
typedef struct firni_crypt_key {
    uint8_t bytes[FIRNI_CRYPT_KEY_BYTES];
} firni_crypt_key;

/* What a sealing is bound to beside its bytes: the two parts count as one text, the first of a fixed length. */
typedef struct firni_crypt_context {
    const firni_crypt_key *key;
    uint8_t nonce[FIRNI_CRYPT_NONCE_BYTES];
    const uint8_t *bound[2];
    size_t n_bound[2];
} firni_crypt_context;

/* Copies what it needs of the key. Errors: NO_MEMORY, UNSUPPORTED (libcrypto lacks an algorithm). */
firn_status firni_crypt_create(const uint8_t key[FIRNI_CRYPT_KEY_BYTES], const firn_env *env, firni_crypt **out,
                               firn_error *err);
void firni_crypt_destroy(firni_crypt *crypt); /* accepts NULL; nobody uses it any more */
const uint8_t *firni_crypt_id(const firni_crypt *crypt); /* [FIRNI_CRYPT_ID_BYTES] */
const firni_crypt_key *firni_crypt_row_key(const firni_crypt *crypt);
void firni_crypt_forget(void *bytes, size_t n_bytes); /* overwrites secrets, also where a compiler sees no reader */
/* False when the system has no random numbers to give. */
bool firni_crypt_random(uint8_t *out, size_t n_bytes);
/* The key of the record with this salt. False without memory. */
bool firni_crypt_record_key(const firni_crypt *crypt, const uint8_t salt[FIRNI_CRYPT_SALT_BYTES], firni_crypt_key *out);

/* in and out may be the same, else they do not overlap. NO_MEMORY: nothing was written that counts. */
firn_status firni_crypt_seal(const firni_crypt *crypt, const firni_crypt_context *context, const uint8_t *in,
                             size_t n_bytes, uint8_t *out, uint8_t tag[FIRNI_CRYPT_TAG_BYTES]);
/* CORRUPT: something of it was changed, or belongs elsewhere; `out` is then of no use. */
firn_status firni_crypt_open(const firni_crypt *crypt, const firni_crypt_context *context, const uint8_t *in,
                             size_t n_bytes, uint8_t *out, const uint8_t tag[FIRNI_CRYPT_TAG_BYTES]);

/* Of digests; in and out may be the same. False without memory, as the next. */
bool firni_crypt_seal_digest(const firni_crypt *crypt, const uint8_t in[FIRN_DIGEST_BYTES],
                             uint8_t out[FIRN_DIGEST_BYTES]);
bool firni_crypt_open_digest(const firni_crypt *crypt, const uint8_t in[FIRN_DIGEST_BYTES],
                             uint8_t out[FIRN_DIGEST_BYTES]);
/* Tokens under a parent, big-endian: at most FIRN_BLOCK_TOKENS. in and out do not overlap. */
bool firni_crypt_seal_tokens(const firni_crypt *crypt, const uint8_t parent[FIRN_DIGEST_BYTES], const uint8_t *in,
                             uint32_t n_tokens, uint8_t *out);
bool firni_crypt_open_tokens(const firni_crypt *crypt, const uint8_t parent[FIRN_DIGEST_BYTES], const uint8_t *in,
                             uint32_t n_tokens, uint8_t *out);

#endif
