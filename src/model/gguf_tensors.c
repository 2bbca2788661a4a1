/*
 * The tensor table of a GGUF file: names, shapes, types and places, all checked; the index by name.
 *
 * Owns firni_gguf.tensors and .by_name. Rejects what would make two views disagree: a tensor outside the file, two
 * tensors that overlap or share a name, a shape whose product overflows, rows that do not divide into blocks.
 * Source: GGUF specification (ggml project, docs/gguf.md), version 3.
 */
#include "model/gguf_impl.h"

#include <stdlib.h>

#include "base/base_impl.h"
#include "model/ggml_type.h"

/* The least bytes that one tensor can take: used to refuse a count before anything is allocated for it. */
#define TENSOR_BYTES_MIN (8u + 1u + 4u + 8u + 4u + 8u)

/* Bytes of the tensor's data from its shape, with every product checked against INT64_MAX, so that sums of two sizes
 * stay in range as well. Types that this build has never heard of get 0 bytes: their tensors can be listed and named in
 * a message, and nothing of them is read. */
static firn_status tensor_bytes(const char *path, firni_gguf_tensor *tensor, firn_error *err)
{
    uint64_t n_elements = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        if (tensor->shape[d] == 0 || tensor->shape[d] > (uint64_t)INT64_MAX / n_elements) {
            return firni_fail(err, FIRN_ERR_FORMAT,
                              "%s: tensor '%.*s': dimension %lu is %llu: zero, or too many elements", path,
                              (int)tensor->name.len_bytes, tensor->name.data, (unsigned long)d,
                              (unsigned long long)tensor->shape[d]);
        }
        n_elements *= tensor->shape[d];
    }
    const firni_ggml_type_info *info = firni_ggml_type_find(tensor->ggml_type);
    if (info == NULL) {
        tensor->n_bytes = 0;
        return FIRN_OK;
    }
    if (tensor->shape[0] % info->block_elements != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT,
                          "%s: tensor '%.*s': rows of %llu elements do not divide into %s blocks of %lu", path,
                          (int)tensor->name.len_bytes, tensor->name.data, (unsigned long long)tensor->shape[0],
                          info->name, (unsigned long)info->block_elements);
    }
    const uint64_t n_blocks = n_elements / info->block_elements;
    if (n_blocks > (uint64_t)INT64_MAX / info->block_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%.*s': its size overflows", path,
                          (int)tensor->name.len_bytes, tensor->name.data);
    }
    tensor->n_bytes = n_blocks * info->block_bytes;
    return FIRN_OK;
}

/* One line of the tensor table:
 *
 *     [u64 length][name bytes][u32 dimensions][u64 each][u32 type][u64 offset]
 *
 * The offset counts from the start of the data, which is known only when the whole table has been read. */
static firn_status parse_tensor(firni_gguf_cursor *c, uint64_t index, firni_gguf_tensor *out, uint64_t *offset,
                                firn_error *err)
{
    firni_gguf_tensor tensor = { .shape = { 1, 1, 1, 1 } };
    if (!firni_gguf_read_string(c, &tensor.name)) {
        return firni_gguf_fail_truncated(c, "the name of a tensor", err);
    }
    if (!firni_gguf_name_is_sound(tensor.name)) {
        return firni_fail(err, FIRN_ERR_FORMAT,
                          "%s: the name of tensor %llu is empty, longer than %u bytes or not UTF-8", c->path,
                          (unsigned long long)index, FIRNI_GGUF_NAME_BYTES_MAX);
    }
    if (!firni_gguf_read_u32(c, &tensor.n_dims)) {
        return firni_gguf_fail_truncated(c, "the tensor table", err);
    }
    if (tensor.n_dims == 0 || tensor.n_dims > 4) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%.*s' has %lu dimensions instead of 1 to 4", c->path,
                          (int)tensor.name.len_bytes, tensor.name.data, (unsigned long)tensor.n_dims);
    }
    for (uint32_t d = 0; d < tensor.n_dims; d++) {
        if (!firni_gguf_read_u64(c, &tensor.shape[d])) {
            return firni_gguf_fail_truncated(c, "the tensor table", err);
        }
    }
    if (!firni_gguf_read_u32(c, &tensor.ggml_type) || !firni_gguf_read_u64(c, offset)) {
        return firni_gguf_fail_truncated(c, "the tensor table", err);
    }
    *out = tensor;
    return tensor_bytes(c->path, out, err);
}

/* By name, for lookups. */
static int compare_names(const void *a, const void *b)
{
    const firni_gguf_tensor *left = *(const firni_gguf_tensor *const *)a;
    const firni_gguf_tensor *right = *(const firni_gguf_tensor *const *)b;
    return firni_gguf_string_compare(left->name, right->name);
}

/* By address, for overlaps. */
static int compare_places(const void *a, const void *b)
{
    const firni_gguf_tensor *left = *(const firni_gguf_tensor *const *)a;
    const firni_gguf_tensor *right = *(const firni_gguf_tensor *const *)b;
    return (left->data > right->data) - (left->data < right->data);
}

/* Sorts the index twice: by place, to find overlaps, then by name, to find duplicates and for lookups. */
static firn_status index_tensors(firni_gguf *gguf, firn_error *err)
{
    const uint64_t n = gguf->n_tensors;
    gguf->by_name = firni_calloc(gguf->env, (size_t)n, sizeof *gguf->by_name);
    if (gguf->by_name == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for the index of %llu tensors", gguf->path,
                          (unsigned long long)n);
    }
    for (uint64_t i = 0; i < n; i++) {
        gguf->by_name[i] = &gguf->tensors[i];
    }
    qsort(gguf->by_name, (size_t)n, sizeof *gguf->by_name, compare_places);
    for (uint64_t i = 1; i < n; i++) {
        const firni_gguf_tensor *before = gguf->by_name[i - 1];
        const firni_gguf_tensor *tensor = gguf->by_name[i];
        if (before->n_bytes > (uint64_t)(tensor->data - before->data)) {
            return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensors '%.*s' and '%.*s' overlap", gguf->path,
                              (int)before->name.len_bytes, before->name.data, (int)tensor->name.len_bytes,
                              tensor->name.data);
        }
    }
    qsort(gguf->by_name, (size_t)n, sizeof *gguf->by_name, compare_names);
    for (uint64_t i = 1; i < n; i++) {
        const firni_gguf_string name = gguf->by_name[i]->name;
        if (firni_gguf_string_compare(gguf->by_name[i - 1]->name, name) == 0) {
            return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%.*s' appears twice", gguf->path, (int)name.len_bytes,
                              name.data);
        }
    }
    return FIRN_OK;
}

/* The file may choose its alignment. Anything but a power of two would break the rounding here and in writers; a huge
 * one would only serve to make the start of the data wrap. */
static firn_status read_alignment(const firni_gguf *gguf, uint32_t *alignment, firn_error *err)
{
    bool found = false;
    *alignment = FIRNI_GGUF_ALIGNMENT_DEFAULT;
    const firn_status status = firni_gguf_get_u32(gguf, "general.alignment", alignment, &found, err);
    if (status != FIRN_OK) {
        return status;
    }
    const uint32_t a = *alignment;
    if (a < 8 || a > FIRNI_GGUF_ALIGNMENT_MAX || (a & (a - 1)) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: key 'general.alignment' is %lu, not a power of two from 8 to %u",
                          gguf->path, (unsigned long)a, FIRNI_GGUF_ALIGNMENT_MAX);
    }
    return FIRN_OK;
}

/* Turns offsets into pointers. The data section begins at the next multiple of the alignment after the table. */
static firn_status place_tensors(firni_gguf *gguf, const firni_gguf_cursor *c, const uint64_t *offsets, firn_error *err)
{
    uint32_t alignment = 0;
    const firn_status status = read_alignment(gguf, &alignment, err);
    if (status != FIRN_OK) {
        return status;
    }
    const uint64_t start = firni_round_up((uint64_t)(c->at - c->start), alignment);
    /* A file without tensors (a vocabulary) may end before the padding. */
    if (gguf->n_tensors == 0) {
        return FIRN_OK;
    }
    if (start > gguf->n_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: the file ends before its tensor data", gguf->path);
    }
    const uint64_t data_bytes = gguf->n_bytes - start;
    gguf->data = gguf->map + start;
    for (uint64_t i = 0; i < gguf->n_tensors; i++) {
        firni_gguf_tensor *tensor = &gguf->tensors[i];
        if (offsets[i] % alignment != 0) {
            return firni_fail(err, FIRN_ERR_FORMAT,
                              "%s: tensor '%.*s': offset %llu is not a multiple of the alignment %lu", gguf->path,
                              (int)tensor->name.len_bytes, tensor->name.data,
                              (unsigned long long)offsets[i], (unsigned long)alignment);
        }
        if (offsets[i] > data_bytes || tensor->n_bytes > data_bytes - offsets[i]) {
            return firni_fail(err, FIRN_ERR_FORMAT,
                              "%s: tensor '%.*s': %llu bytes at offset %llu lie outside the %llu bytes of tensor data",
                              gguf->path, (int)tensor->name.len_bytes, tensor->name.data,
                              (unsigned long long)tensor->n_bytes, (unsigned long long)offsets[i],
                              (unsigned long long)data_bytes);
        }
        tensor->data = gguf->data + offsets[i];
    }
    return index_tensors(gguf, err);
}

/* n_tensors is set only when all lines have been parsed: no accessor ever sees a table that is half filled. */
firn_status firni_gguf_parse_tensors(firni_gguf *gguf, firni_gguf_cursor *c, uint64_t n, firn_error *err)
{
    if (n > FIRNI_GGUF_TENSORS_MAX || n > firni_gguf_left(c) / TENSOR_BYTES_MIN) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: claims %llu tensors, more than fit the file or the limit of %u",
                          c->path, (unsigned long long)n, FIRNI_GGUF_TENSORS_MAX);
    }
    firn_status status = FIRN_OK;
    uint64_t *offsets = firni_calloc(gguf->env, (size_t)n, sizeof *offsets);
    gguf->tensors = firni_calloc(gguf->env, (size_t)n, sizeof *gguf->tensors);
    if (n != 0 && (offsets == NULL || gguf->tensors == NULL)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for the table of %llu tensors", c->path,
                            (unsigned long long)n);
    }
    for (uint64_t i = 0; i < n && status == FIRN_OK; i++) {
        status = parse_tensor(c, i, &gguf->tensors[i], &offsets[i], err);
    }
    if (status == FIRN_OK) {
        gguf->n_tensors = n;
        status = place_tensors(gguf, c, offsets, err);
    }
    firni_free(gguf->env, offsets);
    return status;
}
