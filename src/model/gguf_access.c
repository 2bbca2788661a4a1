/*
 * Access to an opened GGUF file: lookups, typed values, array elements, dropping pages.
 *
 * Relies on what gguf.c has checked: every pointer handed out lies inside the mapping. Values may be unaligned and are
 * read byte by byte.
 */
#define _GNU_SOURCE /* madvise */

#include "model/gguf_impl.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base_impl.h"

/* Values lie at any address: assembled from bytes, in the file's order, on every machine. */
static uint64_t load_le(const uint8_t *data, uint32_t n_bytes)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < n_bytes; i++) {
        value |= (uint64_t)data[i] << (8 * i);
    }
    return value;
}

static float load_f32(const uint8_t *data)
{
    const uint32_t bits = (uint32_t)load_le(data, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

const char *firni_gguf_path(const firni_gguf *gguf)
{
    return gguf->path;
}

uint64_t firni_gguf_file_bytes(const firni_gguf *gguf)
{
    return gguf->n_bytes;
}

/* Both lookups are binary searches over what the parser sorted. A model asks for a few hundred names while it opens and
 * for none afterwards, so nothing faster is needed. */
const firni_gguf_value *firni_gguf_find(const firni_gguf *gguf, const char *key)
{
    const firni_gguf_string wanted = { .data = key, .len_bytes = strlen(key) };
    uint64_t low = 0;
    uint64_t high = gguf->n_entries;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = firni_gguf_string_compare(gguf->entries[middle].key, wanted);
        if (order == 0) {
            return &gguf->entries[middle].value;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

const firni_gguf_tensor *firni_gguf_find_tensor(const firni_gguf *gguf, const char *name)
{
    const firni_gguf_string wanted = { .data = name, .len_bytes = strlen(name) };
    uint64_t low = 0;
    uint64_t high = gguf->n_tensors;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = firni_gguf_string_compare(gguf->by_name[middle]->name, wanted);
        if (order == 0) {
            return gguf->by_name[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

uint64_t firni_gguf_n_tensors(const firni_gguf *gguf)
{
    return gguf->n_tensors;
}

const firni_gguf_tensor *firni_gguf_tensor_at(const firni_gguf *gguf, uint64_t index)
{
    assert(index < gguf->n_tensors);
    return &gguf->tensors[index];
}

void firni_gguf_drop_pages(const firni_gguf *gguf, const uint8_t *data, uint64_t n_bytes)
{
    assert(data >= gguf->map && n_bytes <= gguf->n_bytes - (uint64_t)(data - gguf->map));
    /* Only pages that lie wholly inside: neighbours may still be needed. They would merely be read again. */
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = firni_round_up((uint64_t)(data - gguf->map), page);
    const uint64_t end = ((uint64_t)(data - gguf->map) + n_bytes) / page * page;
    if (begin < end) {
        (void)madvise((void *)(uintptr_t)(gguf->map + begin), (size_t)(end - begin), MADV_DONTNEED);
    }
}

/* ---- typed values ---- */

/* A key of the wrong type is an error, not an absent key: guessing a default would give a model that runs and is
 * wrong. */
static firn_status fail_type(const firni_gguf *gguf, const char *key, const char *wanted, firn_error *err)
{
    return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%s' is not %s", gguf->path, key, wanted);
}

/* Any integer type, as a signed 64-bit number. U64 beyond INT64_MAX is refused: no key of ours is that large. */
static bool integer_of(const firni_gguf_value *value, int64_t *out)
{
    const uint8_t *d = value->data;
    switch (value->type) {
    case FIRNI_GGUF_U8: *out = d[0]; return true;
    case FIRNI_GGUF_I8: *out = (int8_t)d[0]; return true;
    case FIRNI_GGUF_U16: *out = (uint16_t)load_le(d, 2); return true;
    case FIRNI_GGUF_I16: *out = (int16_t)load_le(d, 2); return true;
    case FIRNI_GGUF_U32: *out = (uint32_t)load_le(d, 4); return true;
    case FIRNI_GGUF_I32: *out = (int32_t)load_le(d, 4); return true;
    case FIRNI_GGUF_I64: *out = (int64_t)load_le(d, 8); return true;
    case FIRNI_GGUF_U64: *out = (int64_t)load_le(d, 8); return *out >= 0;
    default: return false;
    }
}

/* Writers differ in the width and sign that they choose for one and the same key, so all integer types are accepted. */
firn_status firni_gguf_get_u32(const firni_gguf *gguf, const char *key, uint32_t *out, bool *found, firn_error *err)
{
    const firni_gguf_value *value = firni_gguf_find(gguf, key);
    *found = value != NULL;
    if (value == NULL) {
        return FIRN_OK;
    }
    int64_t number = 0;
    if (value->is_array || !integer_of(value, &number) || number < 0 || number > UINT32_MAX) {
        return fail_type(gguf, key, "an integer from 0 to 4294967295", err);
    }
    *out = (uint32_t)number;
    return FIRN_OK;
}

firn_status firni_gguf_get_f32(const firni_gguf *gguf, const char *key, float *out, bool *found, firn_error *err)
{
    const firni_gguf_value *value = firni_gguf_find(gguf, key);
    *found = value != NULL;
    if (value == NULL) {
        return FIRN_OK;
    }
    /* Stays NaN, and is refused below, for every type and value that is not a finite number. */
    float number = NAN;
    if (!value->is_array && value->type == FIRNI_GGUF_F32) {
        number = load_f32(value->data);
    } else if (!value->is_array && value->type == FIRNI_GGUF_F64) {
        const uint64_t bits = load_le(value->data, 8);
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        number = fabs(wide) <= 3.4e38 ? (float)wide : NAN;
    }
    if (!isfinite(number)) {
        return fail_type(gguf, key, "a finite floating-point number", err);
    }
    *out = number;
    return FIRN_OK;
}

firn_status firni_gguf_get_bool(const firni_gguf *gguf, const char *key, bool *out, bool *found, firn_error *err)
{
    const firni_gguf_value *value = firni_gguf_find(gguf, key);
    *found = value != NULL;
    if (value == NULL) {
        return FIRN_OK;
    }
    if (value->is_array || value->type != FIRNI_GGUF_BOOL) {
        return fail_type(gguf, key, "a boolean", err);
    }
    *out = value->data[0] != 0;
    return FIRN_OK;
}

firn_status firni_gguf_get_string(const firni_gguf *gguf, const char *key, firni_gguf_string *out, bool *found,
                                  firn_error *err)
{
    const firni_gguf_value *value = firni_gguf_find(gguf, key);
    *found = value != NULL;
    if (value == NULL) {
        return FIRN_OK;
    }
    if (value->is_array || value->type != FIRNI_GGUF_STRING) {
        return fail_type(gguf, key, "a string", err);
    }
    const uint8_t *cursor = value->data;
    *out = firni_gguf_next_string(&cursor);
    return FIRN_OK;
}

/* ---- arrays ---- */

uint32_t firni_gguf_array_u32(const firni_gguf_value *value, uint64_t index)
{
    assert(index < value->n && (value->type == FIRNI_GGUF_U32 || value->type == FIRNI_GGUF_I32));
    return (uint32_t)load_le(value->data + 4 * index, 4);
}

int32_t firni_gguf_array_i32(const firni_gguf_value *value, uint64_t index)
{
    return (int32_t)firni_gguf_array_u32(value, index);
}

float firni_gguf_array_f32(const firni_gguf_value *value, uint64_t index)
{
    assert(index < value->n && value->type == FIRNI_GGUF_F32);
    return load_f32(value->data + 4 * index);
}

/* The parser has walked these lengths before, so the cursor cannot leave the mapping within value->n calls. */
firni_gguf_string firni_gguf_next_string(const uint8_t **cursor)
{
    const size_t len_bytes = (size_t)load_le(*cursor, 8);
    const firni_gguf_string string = { .data = (const char *)*cursor + 8, .len_bytes = len_bytes };
    *cursor += 8 + len_bytes;
    return string;
}
