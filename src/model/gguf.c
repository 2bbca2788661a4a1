/*
 * GGUF reader: maps a file and checks all of its structure once, so that the accessors need no checks.
 *
 * Owns the mapping and the table of keys; the tensor table is gguf_tensors.c. Does not know what keys mean or how
 * tensors are computed with. Every length is compared with the bytes that remain before it is used, every count with
 * the least that one item takes, so no field of a hostile file decides how much memory is asked for. A file that is
 * truncated by somebody else while it is mapped faults on access, as any mapping does: model files are replaced by
 * rename, never in place.
 * Source: GGUF specification (ggml project, docs/gguf.md), version 3.
 */
#include "model/gguf_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base_impl.h"

/* The least bytes that one key can take: used to refuse a count before anything is allocated for it. */
#define KEY_BYTES_MIN (8u + 1u + 4u + 1u)

/* Bytes of one element of a fixed-size value type; 0 for strings, arrays and unknown numbers. */
static uint32_t value_type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [FIRNI_GGUF_U8] = 1,  [FIRNI_GGUF_I8] = 1,  [FIRNI_GGUF_U16] = 2,  [FIRNI_GGUF_I16] = 2,
        [FIRNI_GGUF_U32] = 4, [FIRNI_GGUF_I32] = 4, [FIRNI_GGUF_F32] = 4,  [FIRNI_GGUF_BOOL] = 1,
        [FIRNI_GGUF_U64] = 8, [FIRNI_GGUF_I64] = 8, [FIRNI_GGUF_F64] = 8,
    };
    return type < sizeof bytes ? bytes[type] : 0;
}

/* ---- key/value pairs ---- */

/* Steps over the payload of value->n elements and checks it; value->type and ->n are set. Strings are walked one by
 * one, because nothing else says where an array of them ends; a hostile count ends at the first string that does not
 * fit. */
static firn_status parse_payload(firni_gguf_cursor *c, firni_gguf_string key, firni_gguf_value *value, firn_error *err)
{
    value->data = c->at;
    if (value->type == FIRNI_GGUF_STRING) {
        for (uint64_t i = 0; i < value->n; i++) {
            firni_gguf_string ignored;
            if (!firni_gguf_read_string(c, &ignored)) {
                return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s': string %llu of %llu does not fit the file",
                                  c->path, (int)key.len_bytes, key.data, (unsigned long long)i,
                                  (unsigned long long)value->n);
            }
        }
        return FIRN_OK;
    }
    /* Divides what remains instead of multiplying the count, which a file may choose so that the product wraps. */
    const uint64_t element_bytes = value_type_bytes((uint32_t)value->type);
    assert(element_bytes != 0);
    if (value->n > firni_gguf_left(c) / element_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s': %llu elements do not fit the %llu bytes that remain",
                          c->path, (int)key.len_bytes, key.data, (unsigned long long)value->n,
                          (unsigned long long)firni_gguf_left(c));
    }
    if (value->type == FIRNI_GGUF_BOOL) {
        for (uint64_t i = 0; i < value->n; i++) {
            if (c->at[i] > 1) {
                return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s': a boolean is %u instead of 0 or 1", c->path,
                                  (int)key.len_bytes, key.data, (unsigned)c->at[i]);
            }
        }
    }
    c->at += value->n * element_bytes;
    return FIRN_OK;
}

/* One key/value pair:
 *
 *     [u64 length][key bytes][u32 type] payload                      a scalar or a string
 *     [u64 length][key bytes][u32 9][u32 element type][u64 n] payload   an array
 *
 * The format allows arrays of arrays; no file in use has one, and refusing them keeps parsing free of recursion. */
static firn_status parse_entry(firni_gguf_cursor *c, uint64_t index, firni_gguf_entry *out, firn_error *err)
{
    firni_gguf_string key;
    if (!firni_gguf_read_string(c, &key)) {
        return firni_gguf_fail_truncated(c, "the name of a key", err);
    }
    if (!firni_gguf_name_is_sound(key)) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: the name of key %llu is empty, longer than %u bytes or not UTF-8",
                          c->path, (unsigned long long)index, FIRNI_GGUF_NAME_BYTES_MAX);
    }
    uint32_t type = 0;
    firni_gguf_value value = { .n = 1 };
    if (!firni_gguf_read_u32(c, &type)) {
        return firni_gguf_fail_truncated(c, "the type of a key", err);
    }
    if (type == FIRNI_GGUF_ARRAY) {
        value.is_array = true;
        if (!firni_gguf_read_u32(c, &type) || !firni_gguf_read_u64(c, &value.n)) {
            return firni_gguf_fail_truncated(c, "the head of an array", err);
        }
        if (type == FIRNI_GGUF_ARRAY) {
            return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s': arrays of arrays are not allowed", c->path,
                              (int)key.len_bytes, key.data);
        }
    }
    if (type != FIRNI_GGUF_STRING && value_type_bytes(type) == 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s': unknown value type %lu", c->path, (int)key.len_bytes,
                          key.data, (unsigned long)type);
    }
    value.type = (firni_gguf_type)type;
    const firn_status status = parse_payload(c, key, &value, err);
    *out = (firni_gguf_entry){ .key = key, .value = value };
    return status;
}

static int compare_entries(const void *a, const void *b)
{
    return firni_gguf_string_compare(((const firni_gguf_entry *)a)->key, ((const firni_gguf_entry *)b)->key);
}

/* All pairs, then sorted by key: lookups are binary searches, and a key that appears twice, whose meaning would depend
 * on who reads it, lies beside its twin. */
static firn_status parse_entries(firni_gguf *gguf, firni_gguf_cursor *c, uint64_t n, firn_error *err)
{
    if (n > FIRNI_GGUF_KEYS_MAX || n > firni_gguf_left(c) / KEY_BYTES_MIN) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: claims %llu keys, more than fit the file or the limit of %u",
                          c->path, (unsigned long long)n, FIRNI_GGUF_KEYS_MAX);
    }
    gguf->entries = firni_calloc(gguf->env, (size_t)n, sizeof *gguf->entries);
    if (gguf->entries == NULL && n != 0) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for the table of %llu keys", c->path,
                          (unsigned long long)n);
    }
    for (uint64_t i = 0; i < n; i++) {
        const firn_status status = parse_entry(c, i, &gguf->entries[i], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    gguf->n_entries = n;
    if (n != 0) {
        qsort(gguf->entries, (size_t)n, sizeof *gguf->entries, compare_entries);
    }
    for (uint64_t i = 1; i < n; i++) {
        const firni_gguf_string key = gguf->entries[i].key;
        if (firni_gguf_string_compare(gguf->entries[i - 1].key, key) == 0) {
            return firni_fail(err, FIRN_ERR_FORMAT, "%s: key '%.*s' appears twice", c->path, (int)key.len_bytes,
                              key.data);
        }
    }
    return FIRN_OK;
}

/* ---- the file ---- */

/* Magic and version. Writers on big-endian machines keep the magic and swap everything after it. */
static firn_status parse_version(firni_gguf_cursor *c, firn_error *err)
{
    static const char magic[4] = { 'G', 'G', 'U', 'F' };
    uint32_t version = 0;
    if (firni_gguf_left(c) < 4 || memcmp(c->at, magic, sizeof magic) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: not a GGUF file", c->path);
    }
    c->at += 4;
    if (!firni_gguf_read_u32(c, &version)) {
        return firni_gguf_fail_truncated(c, "the version", err);
    }
    if (version == 3) {
        return FIRN_OK;
    }
    if ((version & 0xffffu) == 0) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "%s: a big-endian GGUF file; this build reads little-endian ones",
                          c->path);
    }
    return firni_fail(err, FIRN_ERR_UNSUPPORTED,
                      "%s: GGUF version %lu; this build reads version 3: convert the file anew", c->path,
                      (unsigned long)version);
}

/* [magic][u32 version][u64 tensors][u64 keys], then the pairs, then the tensor table. */
static firn_status parse_file(firni_gguf *gguf, firn_error *err)
{
    firni_gguf_cursor c = { .path = gguf->path, .start = gguf->map, .at = gguf->map, .end = gguf->map + gguf->n_bytes };
    uint64_t n_tensors = 0;
    uint64_t n_keys = 0;
    firn_status status = parse_version(&c, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (!firni_gguf_read_u64(&c, &n_tensors) || !firni_gguf_read_u64(&c, &n_keys)) {
        return firni_gguf_fail_truncated(&c, "the header", err);
    }
    status = parse_entries(gguf, &c, n_keys, err);
    return status != FIRN_OK ? status : firni_gguf_parse_tensors(gguf, &c, n_tensors, err);
}

/* Opens through the caller's I/O, so that tests can refuse it; only the mapping itself is a plain system call. Private
 * and read-only: nothing here can change the file. */
static firn_status map_file(firni_gguf *gguf, const char *path, firn_error *err)
{
    const firn_io *io = firni_io(gguf->env);
    const int fd = io->open(io->ctx, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return firni_fail_os(err, -fd, "cannot open %s", path);
    }
    firn_status status = FIRN_OK;
    firn_io_stat st;
    const int result = io->stat(io->ctx, fd, &st);
    if (result < 0) {
        status = firni_fail_os(err, -result, "cannot examine %s", path);
    } else if (st.size_bytes == 0 || st.size_bytes > (uint64_t)PTRDIFF_MAX) {
        status = firni_fail(err, FIRN_ERR_FORMAT, "%s: not a GGUF file (%llu bytes)", path,
                            (unsigned long long)st.size_bytes);
    } else {
        void *map = mmap(NULL, (size_t)st.size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status = firni_fail_os(err, errno, "cannot map %s", path);
        } else {
            gguf->map = map;
            gguf->n_bytes = st.size_bytes;
        }
    }
    (void)io->close(io->ctx, fd); /* the mapping stays */
    return status;
}

firn_status firni_gguf_open(const char *path, const firn_env *env, firni_gguf **out, firn_error *err)
{
    *out = NULL;
    firni_gguf *gguf = firni_calloc(env, 1, sizeof *gguf);
    if (gguf == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to open it", path);
    }
    gguf->env = env;
    gguf->path = firni_strdup(env, path);
    firn_status status = gguf->path != NULL ? FIRN_OK
                                            : firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to open it", path);
    if (status == FIRN_OK) {
        status = map_file(gguf, path, err);
    }
    if (status == FIRN_OK) {
        status = parse_file(gguf, err);
    }
    if (status != FIRN_OK) {
        firni_gguf_close(gguf);
        return status;
    }
    *out = gguf;
    return FIRN_OK;
}

void firni_gguf_close(firni_gguf *gguf)
{
    if (gguf == NULL) {
        return;
    }
    if (gguf->map != NULL) {
        /* munmap takes a plain pointer; nothing is written through it. */
        (void)munmap((void *)(uintptr_t)gguf->map, (size_t)gguf->n_bytes);
    }
    firni_free(gguf->env, gguf->by_name);
    firni_free(gguf->env, gguf->tensors);
    firni_free(gguf->env, gguf->entries);
    firni_free(gguf->env, gguf->path);
    firni_free(gguf->env, gguf);
}
