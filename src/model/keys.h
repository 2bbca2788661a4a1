/*
 * Keys: the numbers "<architecture>.<suffix>" of a GGUF file, read one after the other with their limits.
 *
 * A reader keeps the first error and skips every later read, so that a list of keys reads like a list; who is done asks
 * for its status once. Values are checked against limits as they are read, so that products of them cannot overflow
 * later and loops over them end.
 */
#ifndef FIRNI_KEYS_H
#define FIRNI_KEYS_H

#include "model/gguf.h"

typedef struct firni_keys {
    const firni_gguf *gguf;
    const char *architecture;
    firn_status status;
    firn_error *err;
} firni_keys;

#define FIRNI_KEY_BYTES 96u

/* "<architecture>.<suffix>" */
void firni_key_name(const firni_keys *keys, const char *suffix, char out[FIRNI_KEY_BYTES]);
/* An integer within [min, max]. `fallback` stands in for a missing key; NULL: the key is required. Returns min after an
 * error. */
uint32_t firni_key_u32(firni_keys *keys, const char *suffix, uint32_t min, uint32_t max, const uint32_t *fallback);
/* A number within [min, max]; `fallback`, which need not lie inside, when the key is missing. */
float firni_key_f32(firni_keys *keys, const char *suffix, float min, float max, float fallback);
bool firni_key_bool(firni_keys *keys, const char *suffix, bool fallback);
/* One integer for each of n layers, within [min, max]: an array of integers or booleans, at least n long, or one number
 * for all. False, and out untouched, when the key is missing or an error was kept. */
bool firni_key_u32_layers(firni_keys *keys, const char *suffix, uint32_t min, uint32_t max, uint32_t n, uint32_t *out);
/* Keeps a FORMAT error about the key, unless there is one already. */
void firni_key_fail(firni_keys *keys, const char *suffix, const char *what);

#endif
