/*
 * GGUF writer: metadata and tensor declarations are collected, then tensor data is streamed in the declared order.
 *
 * Owns the unfinished file, which lies beside its destination under another name until it is complete.
 * Memory holds the header only, never tensor data. Errors of the collecting calls are kept and reported by begin_data,
 * so that a caller can put thirty keys without thirty checks.
 * Source: GGUF specification (ggml project, docs/gguf.md), version 3.
 */
#include "model/gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"

#define ALIGNMENT 32u

/* A growing run of bytes; `failed` once memory was refused. */
typedef struct buffer {
    uint8_t *data;
    size_t n_bytes;
    size_t capacity_bytes;
    bool failed;
} buffer;

struct firni_gguf_writer {
    const firn_env *env;
    char *path;
    char *temporary_path;
    int fd;                   /* -1 before begin_data and after finish */
    buffer entries;
    buffer table;
    buffer sizes;             /* uint64_t per tensor: declared bytes */
    uint64_t n_entries;
    uint64_t n_tensors;
    uint64_t data_bytes;      /* declared so far, padding included */
    uint64_t file_offset;     /* where the next byte goes */
    uint64_t tensor_index;    /* being written */
    uint64_t tensor_bytes;    /* written of it */
};

/* Appends or marks the buffer as failed; later calls on a failed buffer do nothing, and begin_data reports it. */
static void append(firni_gguf_writer *writer, buffer *b, const void *data, size_t n_bytes)
{
    size_t needed;
    if (b->failed || n_bytes == 0) {
        return;
    }
    if (!firni_add_size(b->n_bytes, n_bytes, &needed)) {
        b->failed = true;
        return;
    }
    if (needed > b->capacity_bytes) {
        const size_t capacity = needed < 4096 ? 4096 : needed + needed / 2;
        uint8_t *grown = firni_grow(writer->env, b->data, b->n_bytes, capacity, 1);
        if (grown == NULL) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->capacity_bytes = capacity;
    }
    memcpy(b->data + b->n_bytes, data, n_bytes);
    b->n_bytes = needed;
}

static void append_le(firni_gguf_writer *writer, buffer *b, uint64_t value, uint32_t n_bytes)
{
    uint8_t bytes[8];
    for (uint32_t i = 0; i < n_bytes; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    append(writer, b, bytes, n_bytes);
}

static void append_string(firni_gguf_writer *writer, buffer *b, const char *data, size_t len_bytes)
{
    append_le(writer, b, len_bytes, 8);
    append(writer, b, data, len_bytes);
}

firn_status firni_gguf_writer_create(const char *path, const firn_env *env, firni_gguf_writer **out, firn_error *err)
{
    *out = NULL;
    firni_gguf_writer *writer = firni_calloc(env, 1, sizeof *writer);
    if (writer == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to write it", path);
    }
    writer->env = env;
    writer->fd = -1;
    /* The process number keeps two writers of one destination apart; the last rename wins with a whole file. */
    const size_t temporary_bytes = strlen(path) + 32;
    writer->path = firni_strdup(env, path);
    writer->temporary_path = firni_calloc(env, temporary_bytes, 1);
    if (writer->path == NULL || writer->temporary_path == NULL) {
        firni_gguf_writer_destroy(writer);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to write it", path);
    }
    (void)snprintf(writer->temporary_path, temporary_bytes, "%s.unfinished-%ld", path, (long)getpid());
    *out = writer;
    return FIRN_OK;
}

void firni_gguf_writer_destroy(firni_gguf_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->fd >= 0) {
        const firn_io *io = firni_io(writer->env);
        (void)io->close(io->ctx, writer->fd);
        (void)io->unlink(io->ctx, writer->temporary_path);
    }
    firni_free(writer->env, writer->entries.data);
    firni_free(writer->env, writer->table.data);
    firni_free(writer->env, writer->sizes.data);
    firni_free(writer->env, writer->temporary_path);
    firni_free(writer->env, writer->path);
    firni_free(writer->env, writer);
}

/* ---- collecting ---- */

/* Name and type; the payload follows. Keys are not compared with each other here: the reader refuses a file with two of
 * the same name, so a mistake shows in the first test. */
static void put_key(firni_gguf_writer *writer, const char *key, firni_gguf_type type)
{
    assert(writer->fd < 0);
    append_string(writer, &writer->entries, key, strlen(key));
    append_le(writer, &writer->entries, (uint64_t)type, 4);
    writer->n_entries++;
}

void firni_gguf_put_u32(firni_gguf_writer *writer, const char *key, uint32_t value)
{
    put_key(writer, key, FIRNI_GGUF_U32);
    append_le(writer, &writer->entries, value, 4);
}

void firni_gguf_put_f32(firni_gguf_writer *writer, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(writer, key, FIRNI_GGUF_F32);
    append_le(writer, &writer->entries, bits, 4);
}

void firni_gguf_put_bool(firni_gguf_writer *writer, const char *key, bool value)
{
    put_key(writer, key, FIRNI_GGUF_BOOL);
    append_le(writer, &writer->entries, value ? 1 : 0, 1);
}

void firni_gguf_put_string(firni_gguf_writer *writer, const char *key, const char *data, size_t len_bytes)
{
    put_key(writer, key, FIRNI_GGUF_STRING);
    append_string(writer, &writer->entries, data, len_bytes);
}

void firni_gguf_put_array(firni_gguf_writer *writer, const char *key, firni_gguf_type type, const void *elements,
                          uint64_t n)
{
    static const uint8_t element_bytes[] = {
        [FIRNI_GGUF_U8] = 1,  [FIRNI_GGUF_I8] = 1,  [FIRNI_GGUF_U16] = 2,  [FIRNI_GGUF_I16] = 2,
        [FIRNI_GGUF_U32] = 4, [FIRNI_GGUF_I32] = 4, [FIRNI_GGUF_F32] = 4,  [FIRNI_GGUF_BOOL] = 1,
        [FIRNI_GGUF_U64] = 8, [FIRNI_GGUF_I64] = 8, [FIRNI_GGUF_F64] = 8,
    };
    assert((size_t)type < sizeof element_bytes && element_bytes[type] != 0);
    put_key(writer, key, FIRNI_GGUF_ARRAY);
    append_le(writer, &writer->entries, (uint64_t)type, 4);
    append_le(writer, &writer->entries, n, 8);
    /* Elements lie in memory as they lie in the file on the little-endian machines that this project builds for. */
    append(writer, &writer->entries, elements, (size_t)(n * element_bytes[type]));
}

void firni_gguf_put_string_array(firni_gguf_writer *writer, const char *key, const firni_gguf_string *strings,
                                 uint64_t n)
{
    put_key(writer, key, FIRNI_GGUF_ARRAY);
    append_le(writer, &writer->entries, FIRNI_GGUF_STRING, 4);
    append_le(writer, &writer->entries, n, 8);
    for (uint64_t i = 0; i < n; i++) {
        append_string(writer, &writer->entries, strings[i].data, strings[i].len_bytes);
    }
}

void firni_gguf_declare_tensor(firni_gguf_writer *writer, const char *name, uint32_t ggml_type, const uint64_t *shape,
                               uint32_t n_dims, uint64_t n_bytes)
{
    assert(writer->fd < 0 && n_dims >= 1 && n_dims <= 4);
    append_string(writer, &writer->table, name, strlen(name));
    append_le(writer, &writer->table, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) {
        append_le(writer, &writer->table, shape[d], 8);
    }
    append_le(writer, &writer->table, ggml_type, 4);
    append_le(writer, &writer->table, writer->data_bytes, 8);
    append(writer, &writer->sizes, &n_bytes, sizeof n_bytes);
    writer->data_bytes += firni_round_up(n_bytes, ALIGNMENT);
    writer->n_tensors++;
}

/* ---- streaming ---- */

/* Writes all of it, however little a call takes. A call that takes nothing without an error is a full disk. */
static firn_status write_bytes(firni_gguf_writer *writer, const void *data, uint64_t n_bytes, firn_error *err)
{
    const firn_io *io = firni_io(writer->env);
    const uint8_t *at = data;
    for (uint64_t left = n_bytes; left > 0;) {
        struct iovec iov = { .iov_base = (void *)(uintptr_t)at, .iov_len = (size_t)left };
        const int64_t n = io->pwritev(io->ctx, writer->fd, &iov, 1, writer->file_offset);
        if (n <= 0) {
            return firni_fail_os(err, n < 0 ? (int)-n : ENOSPC, "cannot write %s", writer->temporary_path);
        }
        at += n;
        left -= (uint64_t)n;
        writer->file_offset += (uint64_t)n;
    }
    return FIRN_OK;
}

/* Zeros up to the next multiple of the alignment; offsets in the table were counted with them. */
static firn_status write_padding(firni_gguf_writer *writer, firn_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    return write_bytes(writer, zeros, firni_round_up(writer->file_offset, ALIGNMENT) - writer->file_offset, err);
}

firn_status firni_gguf_writer_begin_data(firni_gguf_writer *writer, firn_error *err)
{
    assert(writer->fd < 0);
    buffer head = { .data = NULL };
    append(writer, &head, "GGUF", 4);
    append_le(writer, &head, 3, 4);
    append_le(writer, &head, writer->n_tensors, 8);
    append_le(writer, &head, writer->n_entries, 8);
    firn_status status = FIRN_OK;
    if (head.failed || writer->entries.failed || writer->table.failed || writer->sizes.failed) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for the header", writer->path);
    } else {
        const firn_io *io = firni_io(writer->env);
        writer->fd = io->open(io->ctx, writer->temporary_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (writer->fd < 0) {
            status = firni_fail_os(err, -writer->fd, "cannot create %s", writer->temporary_path);
            writer->fd = -1;
        }
    }
    if (status == FIRN_OK) {
        status = write_bytes(writer, head.data, head.n_bytes, err);
    }
    if (status == FIRN_OK) {
        status = write_bytes(writer, writer->entries.data, writer->entries.n_bytes, err);
    }
    if (status == FIRN_OK) {
        status = write_bytes(writer, writer->table.data, writer->table.n_bytes, err);
    }
    if (status == FIRN_OK) {
        status = write_padding(writer, err);
    }
    firni_free(writer->env, head.data);
    return status;
}

/* Of the tensor that is being written. */
static uint64_t declared_bytes(const firni_gguf_writer *writer)
{
    uint64_t n_bytes;
    memcpy(&n_bytes, writer->sizes.data + writer->tensor_index * sizeof n_bytes, sizeof n_bytes);
    return n_bytes;
}

firn_status firni_gguf_write_data(firni_gguf_writer *writer, const void *data, uint64_t n_bytes, firn_error *err)
{
    assert(writer->fd >= 0 && writer->tensor_index < writer->n_tensors);
    if (n_bytes > declared_bytes(writer) - writer->tensor_bytes) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: tensor %llu is larger than declared", writer->path,
                          (unsigned long long)writer->tensor_index);
    }
    const firn_status status = write_bytes(writer, data, n_bytes, err);
    if (status == FIRN_OK) {
        writer->tensor_bytes += n_bytes;
    }
    return status;
}

firn_status firni_gguf_end_tensor(firni_gguf_writer *writer, firn_error *err)
{
    assert(writer->fd >= 0 && writer->tensor_index < writer->n_tensors);
    if (writer->tensor_bytes != declared_bytes(writer)) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: tensor %llu is smaller than declared", writer->path,
                          (unsigned long long)writer->tensor_index);
    }
    writer->tensor_index++;
    writer->tensor_bytes = 0;
    return write_padding(writer, err);
}

/* Durable first, visible second: a crash in between leaves the old file, or none. */
firn_status firni_gguf_writer_finish(firni_gguf_writer *writer, firn_error *err)
{
    assert(writer->fd >= 0);
    if (writer->tensor_index != writer->n_tensors) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: %llu of %llu tensors were written", writer->path,
                          (unsigned long long)writer->tensor_index, (unsigned long long)writer->n_tensors);
    }
    const firn_io *io = firni_io(writer->env);
    const int synced = io->datasync(io->ctx, writer->fd);
    if (synced < 0) {
        return firni_fail_os(err, -synced, "cannot write %s", writer->temporary_path);
    }
    if (rename(writer->temporary_path, writer->path) != 0) {
        return firni_fail_os(err, errno, "cannot rename %s to %s", writer->temporary_path, writer->path);
    }
    const int closed = io->close(io->ctx, writer->fd);
    writer->fd = -1;
    return closed < 0 ? firni_fail_os(err, -closed, "cannot write %s", writer->path) : FIRN_OK;
}
