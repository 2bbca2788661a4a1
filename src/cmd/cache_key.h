/*
 * cache_key: where a command finds the key of an encrypted cache directory.
 */
#ifndef FIRNI_CACHE_KEY_H
#define FIRNI_CACHE_KEY_H

#include "firn/disk.h"

#define FIRNI_CACHE_KEY_VARIABLE "FIRN_CACHE_KEY"

typedef struct firni_cache_key {
    uint8_t bytes[FIRN_DISK_KEY_BYTES];
    bool is_given;
} firni_cache_key;

/* From the file, of 32 bytes or of 64 hexadecimal digits; without one (NULL) from the environment, as digits; else
 * there is none, which is no failure. Errors: IO, INVALID; no message has a part of the key. */
firn_status firni_cache_key_read(const char *path, firni_cache_key *out, firn_error *err);
void firni_cache_key_forget(firni_cache_key *key);
/* As firn_disk_options wants it. */
const uint8_t *firni_cache_key_bytes(const firni_cache_key *key);

#endif
