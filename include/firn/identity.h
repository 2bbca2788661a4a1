/*
 * Identity: what state depends on, as a digest and in words.
 *
 * Two states may be exchanged only when everything that shaped their bits is equal: weights, tokenizer, layout and
 * geometry of each layer, element types, rope parameters, adapter, arithmetic, record format version. An identity is
 * the SHA-256 over these fields, each domain-separated by its name and length-prefixed; the fields themselves are kept
 * as readable lines, so that a mismatch can be explained by naming what differs.
 *
 * A *namespace* separates users under one identity. It salts the root of the record chain: state of one namespace can
 * not be found from another.
 */
#ifndef FIRN_IDENTITY_H
#define FIRN_IDENTITY_H

#include "firn/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t firn_token;

#define FIRN_DIGEST_BYTES 32
typedef struct firn_digest {
    uint8_t bytes[FIRN_DIGEST_BYTES];
} firn_digest;

/* Builds an identity field by field; heap object, one thread. */
typedef struct firn_identity firn_identity;

firn_status firn_identity_create(const firn_env *env, firn_identity **out, firn_error *err);
void firn_identity_destroy(firn_identity *identity); /* accepts NULL */
/* Adds one field. name: [a-z0-9_.]+, added once. value: any UTF-8 text without newline. Errors: INVALID, NO_MEMORY,
 * STATE (after the digest was taken). */
firn_status firn_identity_add(firn_identity *identity, const char *name, const char *value, firn_error *err);
/* The digest over all fields in the order of adding; freezes the identity. */
firn_digest firn_identity_digest(firn_identity *identity);
/* All fields as "name: value\n" lines; lives as long as the identity. */
const char *firn_identity_text(const firn_identity *identity);
/* Writes the first field in which two texts differ as "name: A here, B there" into out (NUL-terminated, cut to
 * out_bytes). Returns false when they are equal. */
bool firn_identity_explain(const char *text_a, const char *text_b, char *out, size_t out_bytes);

/* Root of a namespace's record chain: SHA-256 of identity and namespace. ns is any text up to FIRN_NAMESPACE_BYTES_MAX
 * bytes; NULL means "". */
#define FIRN_NAMESPACE_BYTES_MAX 255
/* A namespace may lie below a parent: it reads the parent's state and its own, and writes its own alone, so that what
 * is common to many is there once and what follows is isolated. It is named by the parent's name, the character U+001F
 * and a name of its own. Parents may have parents, up to so many levels in all; what is above them is not read. */
#define FIRN_NAMESPACE_BELOW '\x1f'
#define FIRN_NAMESPACE_LEVELS_MAX 3
/* Writes the full name of `name` below `parent` into out; NULL means "", which is a name like any other. Errors:
 * INVALID (too long, or `name` contains U+001F itself). */
firn_status firn_namespace_below(const char *parent, const char *name, char out[FIRN_NAMESPACE_BYTES_MAX + 1],
                                 firn_error *err);
firn_digest firn_chain_root(const firn_digest *identity, const char *ns);
/* Digest of a chain of tokens that extends `parent` by these tokens. */
firn_digest firn_chain_extend(const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens);

/* What a model needs from a cache: one entry per layer, in layer order, and the identity of the state. Everything is
 * borrowed; whoever is given a schema needs it to stay valid for its own lifetime. */
typedef struct firn_schema {
    const firn_cache_options *layers;
    uint32_t n_layers;
    firn_digest identity;
    const char *identity_text; /* firn_identity_text() */
} firn_schema;

#ifdef __cplusplus
}
#endif
#endif
