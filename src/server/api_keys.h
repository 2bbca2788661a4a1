/*
 * api_keys: keys of users, each bound to a cache namespace.
 *
 *      # key         namespace   parent (may be left out)
 *      sk-alice-1    alice       house
 *      sk-bob-7      bob         house
 *
 * A request with such a key reads and writes that namespace, and reads those above it, whatever it says itself. The
 * operator's key is another one (--api-key): it may name any namespace, and fills parents.
 */
#ifndef FIRNI_API_KEYS_H
#define FIRNI_API_KEYS_H

#include "firn/identity.h"

typedef struct firni_api_key {
    char *key;
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1]; /* in full, with its parent */
} firni_api_key;

typedef struct firni_api_keys {
    firni_api_key *list;
    uint32_t n;
    const firn_env *env;
} firni_api_keys;

/* Reads the text of a file. Errors: INVALID (the message names the line), NO_MEMORY; *out holds nothing then. */
firn_status firni_api_keys_parse(const char *text, const firn_env *env, firni_api_keys *out, firn_error *err);
void firni_api_keys_deinit(firni_api_keys *keys); /* accepts a zeroed object */

#endif
