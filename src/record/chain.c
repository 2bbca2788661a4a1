/*
 * Digests: SHA-256 over length-prefixed fields, and the chain of token digests built on it.
 *
 * Owns every use of SHA-256 in the project and the domain strings, each of which begins one kind of message so that no
 * digest of one kind can be presented as another. Does not own what is hashed for an identity (identity.c).
 *
 *      root(identity, ns) --64 tokens--> d1 --64 tokens--> d2 --17 tokens--> tail
 *
 * Source: FIPS 180-4, through libcrypto. The one-context interface is used although OpenSSL 3 prefers EVP: it cannot
 * fail, and a digest that silently was not computed would let different prompts share state.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <assert.h>
#include <openssl/sha.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "record/record_impl.h"

_Static_assert(FIRN_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "digests are SHA-256");

static void add_field(SHA256_CTX *hash, const void *bytes, size_t n_bytes)
{
    uint8_t length[8];
    firni_put_u64(length, n_bytes);
    SHA256_Update(hash, length, sizeof length);
    SHA256_Update(hash, bytes, n_bytes);
}

static firn_digest finish(SHA256_CTX *hash)
{
    firn_digest digest;
    SHA256_Final(digest.bytes, hash);
    return digest;
}

firn_digest firni_digest_fields(const char *domain, const firni_field *fields, uint32_t n_fields)
{
    SHA256_CTX hash;
    SHA256_Init(&hash);
    add_field(&hash, domain, strlen(domain));
    for (uint32_t i = 0; i < n_fields; i++) {
        add_field(&hash, fields[i].bytes, fields[i].n_bytes);
    }
    return finish(&hash);
}

/* Domain, parent and tokens; the tokens are one field, little-endian, streamed through a small buffer. */
static firn_digest digest_tokens(const char *domain, const firn_digest *parent, const firn_token *tokens,
                                 uint32_t n_tokens)
{
    SHA256_CTX hash;
    SHA256_Init(&hash);
    add_field(&hash, domain, strlen(domain));
    add_field(&hash, parent->bytes, sizeof parent->bytes);
    uint8_t buffer[4 * FIRN_BLOCK_TOKENS];
    firni_put_u64(buffer, UINT64_C(4) * n_tokens);
    SHA256_Update(&hash, buffer, 8);
    for (uint32_t start = 0; start < n_tokens; start += FIRN_BLOCK_TOKENS) {
        const uint32_t n = n_tokens - start < FIRN_BLOCK_TOKENS ? n_tokens - start : FIRN_BLOCK_TOKENS;
        for (uint32_t i = 0; i < n; i++) {
            firni_put_u32(buffer + 4 * (size_t)i, tokens[start + i]);
        }
        SHA256_Update(&hash, buffer, 4 * (size_t)n);
    }
    return finish(&hash);
}

bool firni_digest_equal(const firn_digest *a, const firn_digest *b)
{
    return memcmp(a->bytes, b->bytes, FIRN_DIGEST_BYTES) == 0;
}

firn_digest firni_namespace_digest(const char *ns)
{
    const firni_field field = { .bytes = ns != NULL ? ns : "", .n_bytes = ns != NULL ? strlen(ns) : 0 };
    return firni_digest_fields("firn.namespace.1", &field, 1);
}

firn_digest firn_chain_root(const firn_digest *identity, const char *ns)
{
    const firni_field fields[2] = {
        { .bytes = identity->bytes, .n_bytes = sizeof identity->bytes },
        { .bytes = ns != NULL ? ns : "", .n_bytes = ns != NULL ? strlen(ns) : 0 },
    };
    assert(fields[1].n_bytes <= FIRN_NAMESPACE_BYTES_MAX);
    return firni_digest_fields("firn.chain.root.1", fields, 2);
}

firn_digest firn_chain_extend(const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens)
{
    return digest_tokens("firn.chain.extend.1", parent, tokens, n_tokens);
}

firn_digest firni_chain_object(const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens)
{
    return digest_tokens("firn.chain.object.1", parent, tokens, n_tokens);
}

/* One domain for each kind that is not a link of the chain: a checkpoint has the tokens of a tail, and is none. */
firn_digest firni_chain_record(firni_record_kind kind, const firn_digest *parent, const firn_token *tokens,
                               uint32_t n_tokens)
{
    switch (kind) {
    case FIRNI_RECORD_OBJECT: return firni_chain_object(parent, tokens, n_tokens);
    case FIRNI_RECORD_CHECKPOINT: return digest_tokens("firn.chain.checkpoint.1", parent, tokens, n_tokens);
    default: return firn_chain_extend(parent, tokens, n_tokens);
    }
}
