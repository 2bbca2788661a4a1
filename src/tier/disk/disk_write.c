/*
 * Records into segment files.
 *
 * Block records are written straight from the memory of the rows' blocks: a vectored call carries, record after record,
 * a header made here and one part per layer. Object records are put together in one buffer.
 *
 * Owns the choice of the segment and where a new one begins. Does not name records in the index (disk_store.c).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define BATCH_RECORDS_MAX 64u
#define BATCH_BYTES_MAX   (UINT64_C(32) << 20)
#define SEGMENT_ATTEMPTS  16u

/* Makes the current segment one that has room for n_bytes. */
static firni_code choose_segment(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes)
{
    if (volume->segment_id != 0) {
        const uint64_t end = firni_segment_end(&volume->segments, volume->segment_id);
        if (end == 0 || end + n_bytes <= disk->options.segment_bytes) {
            return 0;
        }
    }
    firni_code code = EEXIST;
    /* A file that could not be unlinked may still have the name. */
    for (uint32_t i = 0; i < SEGMENT_ATTEMPTS && code == EEXIST; i++) {
        const uint32_t id = volume->next_segment++;
        code = firni_segments_create(&volume->segments, id);
        volume->segment_id = code == 0 ? id : volume->segment_id;
    }
    return code;
}

/* The header of a pending record; its place has its size already. */
static void encode_header(const firni_disk *disk, const firni_pending *pending, const firn_digest *ns,
                          uint32_t header_bytes, firni_section *sections, uint32_t n_sections, uint8_t *out)
{
    const firni_entry *entry = &pending->entry;
    firni_record record = {
        .kind = entry->kind,
        .header_bytes = header_bytes,
        .record_bytes = entry->place.n_bytes,
        .created_wall_ns = entry->created_wall_ns,
        .first_token = entry->first_token,
        .n_tokens = entry->n_tokens,
        .identity = disk->options.schema->identity,
        .ns = *ns,
        .parent = pending->parent,
        .digest = entry->digest,
        .sections = sections,
        .n_sections = n_sections,
    };
    memcpy(record.tokens, pending->tokens, entry->n_tokens * sizeof record.tokens[0]);
    firni_record_encode(&record, out);
}

/* Scratch of write_blocks. */
typedef struct block_writer {
    uint8_t *headers;        /* one per record of a batch */
    firni_section *sections; /* of one record */
    struct iovec *iov;
} block_writer;

/* One vectored append of n records. Checksums are taken right before the write, from the bytes that are written. */
static firni_code write_batch(firni_disk *disk, firni_volume *volume, const block_writer *writer,
                              firni_pending *pending, uint32_t n_pending, const firn_row_view *views,
                              const firn_digest *ns)
{
    const firni_plan *plan = &disk->plan;
    uint32_t n_iov = 0;
    for (uint32_t i = 0; i < n_pending; i++) {
        const uint32_t block = pending[i].entry.first_token / FIRN_BLOCK_TOKENS;
        uint8_t *header = writer->headers + (size_t)i * plan->header_bytes;
        writer->iov[n_iov++] = (struct iovec){ .iov_base = header, .iov_len = plan->header_bytes };
        memcpy(writer->sections, plan->sections, plan->n_sections * sizeof plan->sections[0]);
        for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
            uint8_t *image = firn_block_data(views[layer].blocks[block]);
            assert(firn_block_bytes(views[layer].blocks[block]) == plan->layers[layer].block_bytes);
            firni_plan_checksum_layer(plan, layer, image, writer->sections);
            writer->iov[n_iov++] = (struct iovec){ .iov_base = image, .iov_len = plan->layers[layer].block_bytes };
        }
        pending[i].entry.place.n_bytes = plan->record_bytes;
        encode_header(disk, &pending[i], ns, plan->header_bytes, writer->sections, plan->n_sections, header);
    }
    uint64_t offset = 0;
    const firni_code code = firni_segment_append(&volume->segments, volume->segment_id, writer->iov, n_iov,
                                                 n_pending * plan->record_bytes, &offset);
    for (uint32_t i = 0; i < n_pending; i++) {
        pending[i].entry.place.segment = volume->segment_id;
        pending[i].entry.place.offset = offset + i * plan->record_bytes;
    }
    return code;
}

/* Records that one call may carry: bounded in parts, bytes, and by the room in the segment. */
static uint32_t batch_size(const firni_disk *disk, firni_volume *volume, uint32_t n_left)
{
    const firni_plan *plan = &disk->plan;
    uint64_t n = FIRNI_IOV_MAX / (plan->n_layers + 1);
    n = n < BATCH_RECORDS_MAX ? n : BATCH_RECORDS_MAX;
    n = n < BATCH_BYTES_MAX / plan->record_bytes ? n : BATCH_BYTES_MAX / plan->record_bytes;
    const uint64_t end = firni_segment_end(&volume->segments, volume->segment_id);
    const uint64_t room = end < disk->options.segment_bytes ? disk->options.segment_bytes - end : 0;
    n = n < room / plan->record_bytes ? n : room / plan->record_bytes;
    n = n > 0 ? n : 1; /* a record larger than a segment has a segment to itself */
    return n < n_left ? (uint32_t)n : n_left;
}

firni_code firni_disk_write_blocks(firni_disk *disk, firni_volume *volume, firni_pending *pending, uint32_t n_pending,
                                   const firn_row_view *views, const firn_digest *ns)
{
    const firni_plan *plan = &disk->plan;
    const uint32_t n_scratch = n_pending < BATCH_RECORDS_MAX ? n_pending : BATCH_RECORDS_MAX;
    if (n_pending == 0) {
        return 0;
    }
    const block_writer writer = {
        .headers = firni_alloc_aligned(disk->env, (size_t)n_scratch * plan->header_bytes, FIRNI_RECORD_ALIGN),
        .sections = firni_calloc(disk->env, plan->n_sections, sizeof *writer.sections),
        .iov = firni_calloc(disk->env, FIRNI_IOV_MAX, sizeof *writer.iov),
    };
    firni_code code = writer.headers == NULL || writer.sections == NULL || writer.iov == NULL ? ENOMEM : 0;
    for (uint32_t i = 0; i < n_pending && code == 0;) {
        code = choose_segment(disk, volume, plan->record_bytes);
        if (code == 0) {
            const uint32_t n = batch_size(disk, volume, n_pending - i);
            code = write_batch(disk, volume, &writer, pending + i, n, views, ns);
            i += n;
        }
    }
    firni_free(disk->env, writer.headers);
    firni_free(disk->env, writer.sections);
    firni_free(disk->env, writer.iov);
    return code;
}

firni_code firni_disk_write_object(firni_disk *disk, firni_volume *volume, firni_pending *pending,
                                   const firn_attachment *attachments, uint32_t n_attachments, const firn_digest *ns)
{
    uint32_t header_bytes = 0;
    uint64_t record_bytes = 0;
    firni_section *sections = firni_calloc(disk->env, FIRNI_ATTACHMENT_SECTIONS_MAX, sizeof *sections);
    if (sections == NULL) {
        return ENOMEM;
    }
    const uint32_t n_sections =
        firni_attachments_layout(attachments, n_attachments, sections, &header_bytes, &record_bytes);
    uint8_t *bytes = firni_alloc_aligned(disk->env, (size_t)record_bytes, FIRNI_RECORD_ALIGN);
    firni_code code = bytes == NULL ? ENOMEM : choose_segment(disk, volume, record_bytes);
    if (code == 0) {
        firni_attachments_encode(attachments, n_attachments, header_bytes, record_bytes, sections,
                                 bytes + header_bytes);
        pending->entry.place = (firni_place){ .segment = volume->segment_id, .n_bytes = record_bytes };
        encode_header(disk, pending, ns, header_bytes, sections, n_sections, bytes);
        const struct iovec iov = { .iov_base = bytes, .iov_len = (size_t)record_bytes };
        code = firni_segment_append(&volume->segments, volume->segment_id, &iov, 1, record_bytes,
                                    &pending->entry.place.offset);
    }
    firni_free(disk->env, bytes);
    firni_free(disk->env, sections);
    return code;
}

firni_code firni_disk_sync_written(firni_disk *disk, firni_volume *volume, const firni_pending *pending,
                                   uint32_t n_pending)
{
    uint32_t synced = 0; /* ids only grow along the list */
    for (uint32_t i = 0; i < n_pending && disk->options.durability != FIRN_DURABILITY_NONE; i++) {
        if (pending[i].entry.place.segment != synced) {
            synced = pending[i].entry.place.segment;
            const firni_code code = firni_segment_sync(&volume->segments, synced);
            if (code != 0) {
                return code;
            }
        }
    }
    return 0;
}
