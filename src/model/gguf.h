/*
 * GGUF v3 files: a checked view of one in memory, and a writer for tests and synthetic models.
 *
 * The reader maps the file read-only and trusts nothing: every count, length, offset and type is checked against the
 * bytes that remain, and against a limit, before it is used. After gguf_open has succeeded every accessor is safe.
 * Source: the GGUF specification (ggml project, docs/gguf.md), version 3, little-endian.
 */
#ifndef FIRNI_GGUF_H
#define FIRNI_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

typedef enum firni_gguf_type {
    FIRNI_GGUF_U8 = 0, FIRNI_GGUF_I8 = 1, FIRNI_GGUF_U16 = 2, FIRNI_GGUF_I16 = 3, FIRNI_GGUF_U32 = 4,
    FIRNI_GGUF_I32 = 5, FIRNI_GGUF_F32 = 6, FIRNI_GGUF_BOOL = 7, FIRNI_GGUF_STRING = 8, FIRNI_GGUF_ARRAY = 9,
    FIRNI_GGUF_U64 = 10, FIRNI_GGUF_I64 = 11, FIRNI_GGUF_F64 = 12
} firni_gguf_type;

/* Bytes inside the mapping; not NUL-terminated. */
typedef struct firni_gguf_string {
    const char *data;
    size_t len_bytes;
} firni_gguf_string;

typedef struct firni_gguf_value {
    firni_gguf_type type;         /* of the value; of the elements for an array */
    bool is_array;
    uint64_t n;                   /* elements; 1 for a scalar */
    const uint8_t *data;          /* little-endian, possibly unaligned; strings: length-prefixed, already checked */
} firni_gguf_value;

typedef struct firni_gguf_tensor {
    firni_gguf_string name;
    uint32_t n_dims;
    uint64_t shape[4];            /* GGUF order: shape[0] is the fastest (columns); unused are 1 */
    uint32_t ggml_type;           /* raw ggml type number */
    const uint8_t *data;          /* inside the mapping */
    uint64_t n_bytes;             /* checked to lie inside the file; 0 for types this build does not know */
} firni_gguf_tensor;

typedef struct firni_gguf firni_gguf;

firn_status firni_gguf_open(const char *path, const firn_env *env, firni_gguf **out, firn_error *err);
void firni_gguf_close(firni_gguf *gguf); /* accepts NULL */

const char *firni_gguf_path(const firni_gguf *gguf);
uint64_t firni_gguf_file_bytes(const firni_gguf *gguf);
/* The metadata value of a key, or NULL. */
const firni_gguf_value *firni_gguf_find(const firni_gguf *gguf, const char *key);
/* The tensor of a name, or NULL; and by index for walking. */
const firni_gguf_tensor *firni_gguf_find_tensor(const firni_gguf *gguf, const char *name);
uint64_t firni_gguf_n_tensors(const firni_gguf *gguf);
const firni_gguf_tensor *firni_gguf_tensor_at(const firni_gguf *gguf, uint64_t index);
/* Tells the kernel that these bytes of the mapping are not needed any more (after repacking). */
void firni_gguf_drop_pages(const firni_gguf *gguf, const uint8_t *data, uint64_t n_bytes);
/* The weights fingerprint of the identity: a digest of what the file computes with, that is the architecture's keys,
 * all names, types and shapes, and a strided sample plus head and tail of each tensor's data. general.* and
 * tokenizer.* are left out. Errors: NO_MEMORY. */
firn_status firni_gguf_fingerprint(const firni_gguf *gguf, uint8_t digest[32], firn_error *err);

/* Typed access. `found` false: key absent, *out untouched. A key of another type or range is FORMAT with its name. */
firn_status firni_gguf_get_u32(const firni_gguf *gguf, const char *key, uint32_t *out, bool *found, firn_error *err);
firn_status firni_gguf_get_f32(const firni_gguf *gguf, const char *key, float *out, bool *found, firn_error *err);
firn_status firni_gguf_get_bool(const firni_gguf *gguf, const char *key, bool *out, bool *found, firn_error *err);
firn_status firni_gguf_get_string(const firni_gguf *gguf, const char *key, firni_gguf_string *out, bool *found,
                                  firn_error *err);
/* Element i of an array value; the caller has checked type and i < n. Strings: walk with the cursor instead. */
uint32_t firni_gguf_array_u32(const firni_gguf_value *value, uint64_t index);
int32_t firni_gguf_array_i32(const firni_gguf_value *value, uint64_t index);
float firni_gguf_array_f32(const firni_gguf_value *value, uint64_t index);
/* Walks the strings of a string array: *cursor starts as value->data; call value->n times. */
firni_gguf_string firni_gguf_next_string(const uint8_t **cursor);

/* ---- writer ---- */

typedef struct firni_gguf_writer firni_gguf_writer;

/* Collects metadata and tensor declarations, then streams tensor data in the declared order. Nothing appears under
 * `path` until finish has succeeded (written beside it, then renamed). */
firn_status firni_gguf_writer_create(const char *path, const firn_env *env, firni_gguf_writer **out, firn_error *err);
void firni_gguf_writer_destroy(firni_gguf_writer *writer); /* accepts NULL; removes an unfinished file */
void firni_gguf_put_u32(firni_gguf_writer *writer, const char *key, uint32_t value);
void firni_gguf_put_f32(firni_gguf_writer *writer, const char *key, float value);
void firni_gguf_put_bool(firni_gguf_writer *writer, const char *key, bool value);
void firni_gguf_put_string(firni_gguf_writer *writer, const char *key, const char *data, size_t len_bytes);
void firni_gguf_put_array(firni_gguf_writer *writer, const char *key, firni_gguf_type type, const void *elements,
                          uint64_t n);
void firni_gguf_put_string_array(firni_gguf_writer *writer, const char *key, const firni_gguf_string *strings,
                                 uint64_t n);
void firni_gguf_declare_tensor(firni_gguf_writer *writer, const char *name, uint32_t ggml_type, const uint64_t *shape,
                               uint32_t n_dims, uint64_t n_bytes);
/* Errors of the put and declare calls are kept and reported here. */
firn_status firni_gguf_writer_begin_data(firni_gguf_writer *writer, firn_error *err);
firn_status firni_gguf_write_data(firni_gguf_writer *writer, const void *data, uint64_t n_bytes, firn_error *err);
/* Call after the last byte of each tensor: pads to the alignment and checks the declared size. */
firn_status firni_gguf_end_tensor(firni_gguf_writer *writer, firn_error *err);
firn_status firni_gguf_writer_finish(firni_gguf_writer *writer, firn_error *err);

#endif
