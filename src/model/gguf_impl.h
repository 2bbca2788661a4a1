/*
 * The parsed form of a GGUF file, shared by the parser (gguf.c) and the accessors (gguf_access.c).
 *
 *     map: [magic, version, counts][key/value pairs][tensor table][padding][tensor data ...]
 *          `entries` and `tensors` point into it and own nothing; `data` is where tensor offsets start.
 */
#ifndef FIRNI_GGUF_IMPL_H
#define FIRNI_GGUF_IMPL_H

#include "model/gguf.h"

/* Far above any real file (a few dozen keys, a few thousand tensors), far below what could exhaust memory. */
#define FIRNI_GGUF_KEYS_MAX (1u << 16)
#define FIRNI_GGUF_TENSORS_MAX (1u << 17)
#define FIRNI_GGUF_NAME_BYTES_MAX 255u
#define FIRNI_GGUF_ALIGNMENT_DEFAULT 32u
#define FIRNI_GGUF_ALIGNMENT_MAX (1u << 20)

typedef struct firni_gguf_entry {
    firni_gguf_string key;
    firni_gguf_value value;
} firni_gguf_entry;

struct firni_gguf {
    const firn_env *env;
    char *path;
    const uint8_t *map;
    uint64_t n_bytes;              /* of the file */
    const uint8_t *data;           /* start of tensor data */
    firni_gguf_entry *entries;     /* sorted by key */
    uint64_t n_entries;
    firni_gguf_tensor *tensors;    /* in file order */
    uint64_t n_tensors;
    const firni_gguf_tensor **by_name; /* the same, sorted by name */
};

/* What remains of the header while it is parsed. */
typedef struct firni_gguf_cursor {
    const char *path;
    const uint8_t *start;
    const uint8_t *at;
    const uint8_t *end;
} firni_gguf_cursor;

uint64_t firni_gguf_left(const firni_gguf_cursor *c);
/* False, and nothing read, when fewer bytes remain. */
bool firni_gguf_read_u32(firni_gguf_cursor *c, uint32_t *out);
bool firni_gguf_read_u64(firni_gguf_cursor *c, uint64_t *out);
bool firni_gguf_read_string(firni_gguf_cursor *c, firni_gguf_string *out);
firn_status firni_gguf_fail_truncated(const firni_gguf_cursor *c, const char *what, firn_error *err);
/* Well-formed UTF-8 without control characters, 1 to FIRNI_GGUF_NAME_BYTES_MAX bytes: fit for messages and lookups. */
bool firni_gguf_name_is_sound(firni_gguf_string name);

/* Parses the table of n tensors at the cursor into gguf; the keys have been parsed before. */
firn_status firni_gguf_parse_tensors(firni_gguf *gguf, firni_gguf_cursor *c, uint64_t n, firn_error *err);

/* Byte order of names: memcmp, the shorter first. */
int firni_gguf_string_compare(firni_gguf_string a, firni_gguf_string b);

#endif
