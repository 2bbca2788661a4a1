/*
 * Attachments as the sections of an object record.
 *
 * Each attachment is one metadata section, followed by its tensors:
 *
 *      metadata section (u8):   4 bytes length of the schema name | the name | metadata bytes
 *      tensor section:          the dense data, dtype and shape in the section table
 *
 * Every section begins at a multiple of 4 KiB of the record. Owns both directions; does not read or write files.
 */
#include <assert.h>
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

/* Bytes that a tensor's shape asks for; 0 when it cannot be stored. */
static uint64_t tensor_bytes(const firn_tensor *tensor)
{
    uint64_t n_bytes = firn_dtype_bytes(tensor->dtype);
    if (tensor->n_dims == 0 || tensor->n_dims > FIRN_TENSOR_DIMS_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (tensor->shape[i] == 0 || tensor->shape[i] > UINT32_MAX ||
            n_bytes > FIRNI_RECORD_BYTES_MAX / 2 / tensor->shape[i]) {
            return 0;
        }
        n_bytes *= tensor->shape[i];
    }
    return n_bytes;
}

firn_status firni_attachments_check(const firn_attachment *attachments, uint32_t n_attachments, firn_error *err)
{
    uint64_t total = FIRNI_RECORD_HEADER_BYTES_MAX;
    if (n_attachments > FIRNI_ATTACHMENTS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u attachments; at most %u", n_attachments, FIRNI_ATTACHMENTS_MAX);
    }
    for (uint32_t a = 0; a < n_attachments; a++) {
        const firn_attachment *attachment = &attachments[a];
        const size_t n_schema = attachment->schema != NULL ? strlen(attachment->schema) : 0;
        if (n_schema == 0 || n_schema > FIRNI_ATTACHMENT_SCHEMA_MAX ||
            attachment->n_metadata_bytes > FIRNI_ATTACHMENT_METADATA_MAX ||
            attachment->n_tensors > FIRNI_ATTACHMENT_TENSORS_MAX) {
            return firni_fail(err, FIRN_ERR_INVALID, "attachment %u: name, metadata or number of tensors out of range",
                              a);
        }
        for (uint32_t t = 0; t < attachment->n_tensors; t++) {
            const firn_tensor *tensor = &attachment->tensors[t];
            const uint64_t n_bytes = tensor_bytes(tensor);
            total += n_bytes + FIRNI_RECORD_ALIGN;
            if (n_bytes == 0 || tensor->n_bytes != n_bytes || total > FIRNI_RECORD_BYTES_MAX) {
                return firni_fail(err, FIRN_ERR_INVALID, "attachment %u, tensor %u: shape and size cannot be stored", a,
                                  t);
            }
        }
    }
    return FIRN_OK;
}

static uint32_t metadata_section_bytes(const firn_attachment *attachment)
{
    return 4u + (uint32_t)strlen(attachment->schema) + attachment->n_metadata_bytes;
}

uint32_t firni_attachments_layout(const firn_attachment *attachments, uint32_t n_attachments, uint32_t n_names,
                                  firni_section *sections, uint32_t *header_bytes, uint64_t *record_bytes)
{
    uint32_t n_sections = 0;
    for (uint32_t a = 0; a < n_attachments; a++) {
        const uint32_t n_metadata = metadata_section_bytes(&attachments[a]);
        sections[n_sections++] = (firni_section){ .kind = FIRNI_SECTION_METADATA,
                                                  .layer = (uint16_t)a,
                                                  .dtype = FIRN_DTYPE_U8,
                                                  .n_dims = 1,
                                                  .shape = { n_metadata },
                                                  .n_bytes = n_metadata };
        for (uint32_t t = 0; t < attachments[a].n_tensors; t++) {
            const firn_tensor *tensor = &attachments[a].tensors[t];
            firni_section *section = &sections[n_sections++];
            *section = (firni_section){ .kind = FIRNI_SECTION_TENSOR,
                                        .layer = (uint16_t)a,
                                        .plane = (uint16_t)t,
                                        .dtype = tensor->dtype,
                                        .n_dims = tensor->n_dims,
                                        .n_bytes = tensor->n_bytes };
            for (uint32_t d = 0; d < tensor->n_dims; d++) {
                section->shape[d] = (uint32_t)tensor->shape[d];
            }
        }
    }
    *header_bytes = firni_record_header_bytes(n_sections, n_names);
    uint64_t offset = *header_bytes;
    for (uint32_t i = 0; i < n_sections; i++) {
        sections[i].offset = offset;
        offset = firni_round_up(offset + sections[i].n_bytes, FIRNI_RECORD_ALIGN);
    }
    *record_bytes = offset;
    return n_sections;
}

void firni_attachments_encode(const firn_attachment *attachments, uint32_t n_attachments, uint32_t header_bytes,
                              uint64_t record_bytes, firni_section *sections, uint8_t *payload)
{
    memset(payload, 0, (size_t)(record_bytes - header_bytes));
    firni_section *section = sections;
    for (uint32_t a = 0; a < n_attachments; a++) {
        const firn_attachment *attachment = &attachments[a];
        const size_t n_schema = strlen(attachment->schema);
        uint8_t *at = payload + (section->offset - header_bytes);
        firni_put_u32(at, (uint32_t)n_schema);
        memcpy(at + 4, attachment->schema, n_schema);
        if (attachment->n_metadata_bytes > 0) {
            memcpy(at + 4 + n_schema, attachment->metadata, attachment->n_metadata_bytes);
        }
        section->checksum = firni_checksum_of(at, (size_t)section->n_bytes);
        section++;
        for (uint32_t t = 0; t < attachment->n_tensors; t++, section++) {
            at = payload + (section->offset - header_bytes);
            memcpy(at, attachment->tensors[t].data, (size_t)section->n_bytes);
            section->checksum = firni_checksum_of(at, (size_t)section->n_bytes);
        }
    }
}

/* Schema name and metadata, copied out of the payload. Lengths are checked against the section, then the limits. */
static firn_status decode_metadata(const firni_section *section, const uint8_t *at, const firn_env *env,
                                   firn_attachment *out, firn_error *err)
{
    const uint32_t n_schema = section->n_bytes >= 4 ? firni_get_u32(at) : 0;
    if (n_schema == 0 || n_schema > FIRNI_ATTACHMENT_SCHEMA_MAX || section->n_bytes - 4 < n_schema ||
        section->n_bytes - 4 - n_schema > FIRNI_ATTACHMENT_METADATA_MAX || memchr(at + 4, '\0', n_schema) != NULL) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "an attachment's metadata is malformed");
    }
    out->n_metadata_bytes = (uint32_t)section->n_bytes - 4 - n_schema;
    char *schema = firni_calloc(env, n_schema + 1u, 1);
    uint8_t *metadata = firni_calloc(env, out->n_metadata_bytes, 1);
    out->schema = schema;
    out->metadata = metadata;
    if (schema == NULL || (metadata == NULL && out->n_metadata_bytes > 0)) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for an attachment");
    }
    memcpy(schema, at + 4, n_schema);
    if (metadata != NULL) {
        memcpy(metadata, at + 4 + n_schema, out->n_metadata_bytes);
    }
    return FIRN_OK;
}

static firn_status decode_tensor(const firni_section *section, const uint8_t *at, const firn_env *env,
                                 firn_attachment *attachment, firn_tensor *tensors, firn_error *err)
{
    uint64_t shape[FIRN_TENSOR_DIMS_MAX] = { 0 };
    for (uint32_t d = 0; d < section->n_dims; d++) {
        shape[d] = section->shape[d];
    }
    firn_tensor *tensor = &tensors[attachment->n_tensors];
    const firn_status status = firni_tensor_alloc(tensor, section->dtype, section->n_dims, shape, env, err);
    if (status == FIRN_OK) {
        assert(tensor->n_bytes == section->n_bytes);
        memcpy(tensor->data, at, (size_t)section->n_bytes);
        attachment->n_tensors++;
    }
    return status;
}

firn_status firni_attachments_decode(const firni_record *record, const uint8_t *payload, const firn_env *env,
                                     firn_attachment **out, uint32_t *n_out, firn_error *err)
{
    *out = NULL;
    *n_out = 0;
    assert(record->kind == FIRNI_RECORD_OBJECT);
    firn_attachment *attachments = firni_calloc(env, FIRNI_ATTACHMENTS_MAX, sizeof *attachments);
    if (attachments == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for attachments");
    }
    firn_status status = FIRN_OK;
    uint32_t n_attachments = 0;
    firn_tensor *tensors = NULL; /* of the attachment that is being filled */
    for (uint32_t i = 0; i < record->n_sections && status == FIRN_OK; i++) {
        const firni_section *section = &record->sections[i];
        const uint8_t *at = payload + (section->offset - record->header_bytes);
        if (section->kind == FIRNI_SECTION_METADATA) {
            if (n_attachments == FIRNI_ATTACHMENTS_MAX || section->layer != n_attachments) {
                status = firni_fail(err, FIRN_ERR_CORRUPT, "attachments are out of order");
                break;
            }
            firn_attachment *attachment = &attachments[n_attachments++];
            tensors = firni_calloc(env, FIRNI_ATTACHMENT_TENSORS_MAX, sizeof *tensors);
            attachment->tensors = tensors;
            status = tensors == NULL ? firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for an attachment")
                                     : decode_metadata(section, at, env, attachment, err);
        } else if (n_attachments == 0 || section->layer != n_attachments - 1 ||
                   section->plane != attachments[n_attachments - 1].n_tensors ||
                   section->plane >= FIRNI_ATTACHMENT_TENSORS_MAX) {
            status = firni_fail(err, FIRN_ERR_CORRUPT, "an attachment's tensors are out of order");
        } else {
            status = decode_tensor(section, at, env, &attachments[n_attachments - 1], tensors, err);
        }
    }
    if (status != FIRN_OK) {
        firni_attachments_free(env, attachments, n_attachments);
        return status;
    }
    *out = attachments;
    *n_out = n_attachments;
    return FIRN_OK;
}

/* The public struct shows what an attachment holds as const; here is where it was allocated. */
static void free_const(const firn_env *env, const void *ptr)
{
    firni_free(env, (void *)(uintptr_t)ptr);
}

void firni_attachments_free(const firn_env *env, firn_attachment *attachments, uint32_t n_attachments)
{
    for (uint32_t a = 0; attachments != NULL && a < n_attachments; a++) {
        for (uint32_t t = 0; attachments[a].tensors != NULL && t < attachments[a].n_tensors; t++) {
            firn_tensor tensor = attachments[a].tensors[t];
            firn_tensor_deinit(&tensor);
        }
        free_const(env, attachments[a].tensors);
        free_const(env, attachments[a].schema);
        free_const(env, attachments[a].metadata);
    }
    firni_free(env, attachments);
}
