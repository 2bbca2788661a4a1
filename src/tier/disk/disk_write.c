/*
 * Records into segment files.
 *
 * Records of token blocks and checkpoints are written straight from the memory of the rows' blocks: a vectored call
 * carries, record after record, a header made here and one part per image. Object records are put together in one
 * buffer.
 *
 * Owns the choice of the segment and where a new one begins. Does not name records in the index (disk_store.c).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define BATCH_RECORDS_MAX 64u
#define BATCH_BYTES_MAX   (UINT64_C(32) << 20)
#define SEALED_BYTES_MAX  (UINT64_C(8) << 20) /* of a batch that is encrypted: into memory of its own */
#define SEGMENT_ATTEMPTS  16u

firni_code firni_disk_choose_segment(const firni_disk *disk, firni_volume *volume, uint64_t n_bytes)
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

firni_origin firni_disk_origin(const firni_disk *disk, const char *ns)
{
    const char *text = disk->options.schema->identity_text;
    const size_t n_text = text != NULL ? strlen(text) : 0;
    return (firni_origin){
        .ns = firni_namespace_digest(ns),
        .ns_name = ns != NULL ? ns : "",
        .n_ns = ns != NULL ? (uint32_t)strlen(ns) : 0,
        .n_text = n_text < FIRNI_RECORD_TEXT_BYTES_MAX ? (uint32_t)n_text : FIRNI_RECORD_TEXT_BYTES_MAX,
    };
}

/* A record says what its chain belongs to where the chain begins: at token 0 with the identity's text; and where it
 * goes on from a record of a namespace above. */
static bool has_ns(const firni_pending *pending)
{
    return pending->entry.first_token == 0 || pending->links.has_before || pending->links.has_under;
}

uint32_t firni_origin_names(const firni_origin *origin, const firni_pending *pending)
{
    return (has_ns(pending) ? origin->n_ns : 0) + (pending->entry.first_token == 0 ? origin->n_text : 0) +
           firni_record_links_bytes(&pending->links);
}

uint32_t firni_origin_names_max(const firni_origin *origin)
{
    return origin->n_ns + origin->n_text + FIRNI_RECORD_LINKS_BYTES_MAX;
}

/* The header of a pending record; its place is complete. */
static void encode_header(const firni_disk *disk, const firni_pending *pending, const firni_origin *origin,
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
        .ns = origin->ns,
        .parent = pending->parent,
        .digest = entry->digest,
        .root = entry->root,
        .segment = entry->place.segment,
        .offset = entry->place.offset,
        .reusable_from = entry->reusable_from,
        .n_full = entry->n_full,
        .n_window = entry->n_window,
        .n_fixed = entry->n_fixed,
        .ns_name = origin->ns_name,
        .text = disk->options.schema->identity_text,
        .n_ns = has_ns(pending) ? origin->n_ns : 0,
        .n_text = entry->first_token == 0 ? origin->n_text : 0,
        .links = pending->links,
        .priority = entry->priority,
        .sections = sections,
        .n_sections = n_sections,
    };
    memcpy(record.tokens, pending->tokens, entry->n_tokens * sizeof record.tokens[0]);
    firni_record_encode(&record, out);
}

/* What the names add to the record's header. */
static uint32_t record_surplus(const firni_pending *pending, const firni_origin *origin)
{
    return firni_form_names_bytes(pending->form, firni_origin_names(origin, pending));
}

/* Scratch of write_blocks. */
typedef struct block_writer {
    uint8_t *headers;        /* one per record of a batch, header_bytes apart */
    size_t header_bytes;     /* of the largest form */
    firni_section *sections; /* of one record */
    struct iovec *iov;
    uint8_t *sealed;         /* one batch of encrypted records; NULL in a store that is not encrypted */
    uint64_t sealed_bytes;
} block_writer;

static const firn_block *image_block(const firni_pending *pending, const firni_plan_image *image,
                                     const firn_row_view *views)
{
    const firn_row_view *view = &views[image->layer];
    if (pending->form->is_checkpoint) {
        return view->fixed;
    }
    const uint32_t block = pending->entry.first_token / FIRN_BLOCK_TOKENS;
    assert(block >= view->first_block && block - view->first_block < view->n_blocks);
    return view->blocks[block - view->first_block];
}

/* A record's section table, with the header's names counted in and without checksums. */
static void shift_sections(const firni_plan_form *form, uint32_t n_bytes, firni_section *sections)
{
    memcpy(sections, form->sections, form->n_sections * sizeof form->sections[0]);
    for (uint32_t i = 0; i < form->n_sections; i++) {
        sections[i].offset += n_bytes;
    }
}

/* A batch of an encrypted store is put together in one buffer: a row's blocks stay as they are. Each record has a key
 * of its own, drawn for this write. */
static firni_code seal_batch(firni_disk *disk, firni_volume *volume, const block_writer *writer,
                             firni_pending *pending, uint32_t n_pending, const firn_row_view *views,
                             const firni_origin *origin)
{
    const uint64_t begin = firni_segment_end(&volume->segments, volume->segment_id);
    uint64_t n_bytes = 0, offset = 0;
    firni_record_seal seal;
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < n_pending && status == FIRN_OK; i++) {
        const firni_plan_form *form = pending[i].form;
        const uint32_t surplus = record_surplus(&pending[i], origin);
        uint8_t *record = writer->sealed + n_bytes;
        assert(n_bytes + form->record_bytes + surplus <= writer->sealed_bytes);
        shift_sections(form, surplus, writer->sections);
        status = firni_record_seal_begin(disk->crypt, &seal);
        for (uint32_t k = 0; k < form->n_images && status == FIRN_OK; k++) {
            status = firni_form_seal(form, k, disk->crypt, &seal.key,
                                     firn_block_data(image_block(&pending[i], &form->images[k], views)),
                                     record + surplus + form->images[k].offset, writer->sections);
        }
        pending[i].entry.place = (firni_place){ .segment = volume->segment_id,
                                                .offset = begin + n_bytes,
                                                .n_bytes = form->record_bytes + surplus };
        encode_header(disk, &pending[i], origin, form->header_bytes + surplus, writer->sections, form->n_sections,
                      record);
        status = status == FIRN_OK ? firni_record_seal_header(disk->crypt, &seal, record) : status;
        n_bytes += form->record_bytes + surplus;
    }
    firni_crypt_forget(&seal, sizeof seal);
    if (status != FIRN_OK) {
        return status == FIRN_ERR_NO_MEMORY ? ENOMEM : EIO;
    }
    const struct iovec iov = { .iov_base = writer->sealed, .iov_len = (size_t)n_bytes };
    const firni_code code =
        firni_segment_append(&volume->segments, volume->segment_id, &iov, 1, n_bytes, &offset);
    assert(offset == begin);
    return code;
}

/* One vectored append of n records. Checksums are taken right before the write, from the bytes that are written; each
 * header says where its record lies, which is where the segment ends: nobody else appends. */
static firni_code write_batch(firni_disk *disk, firni_volume *volume, const block_writer *writer,
                              firni_pending *pending, uint32_t n_pending, const firn_row_view *views,
                              const firni_origin *origin)
{
    uint32_t n_iov = 0;
    uint64_t n_bytes = 0, offset = 0;
    const uint64_t begin = firni_segment_end(&volume->segments, volume->segment_id);
    for (uint32_t i = 0; i < n_pending; i++) {
        const firni_plan_form *form = pending[i].form;
        uint8_t *header = writer->headers + i * writer->header_bytes;
        const uint32_t surplus = record_surplus(&pending[i], origin);
        writer->iov[n_iov++] = (struct iovec){ .iov_base = header, .iov_len = form->header_bytes + surplus };
        shift_sections(form, surplus, writer->sections);
        for (uint32_t k = 0; k < form->n_images; k++) {
            const firn_block *block = image_block(&pending[i], &form->images[k], views);
            assert(firn_block_bytes(block) == form->images[k].n_bytes);
            firni_form_checksum(form, k, firn_block_data(block), writer->sections);
            writer->iov[n_iov++] =
                (struct iovec){ .iov_base = firn_block_data(block), .iov_len = form->images[k].n_bytes };
        }
        pending[i].entry.place = (firni_place){ .segment = volume->segment_id,
                                                .offset = begin + n_bytes,
                                                .n_bytes = form->record_bytes + surplus };
        encode_header(disk, &pending[i], origin, form->header_bytes + surplus, writer->sections, form->n_sections,
                      header);
        n_bytes += form->record_bytes + surplus;
    }
    const firni_code code =
        firni_segment_append(&volume->segments, volume->segment_id, writer->iov, n_iov, n_bytes, &offset);
    assert(offset == begin);
    return code;
}

/* Records that one call may carry: bounded in number, parts, bytes, and by the room in the segment. At least one: a
 * record larger than a segment has a segment to itself. */
static uint32_t batch_size(const firni_disk *disk, firni_volume *volume, const firni_pending *pending, uint32_t n_left,
                           const firni_origin *origin)
{
    const uint64_t end = firni_segment_end(&volume->segments, volume->segment_id);
    const uint64_t room = end < disk->options.segment_bytes ? disk->options.segment_bytes - end : 0;
    const uint64_t limit = disk->crypt != NULL ? SEALED_BYTES_MAX : BATCH_BYTES_MAX;
    const uint64_t n_bytes_max = room < limit ? room : limit;
    uint64_t n_bytes = 0;
    uint32_t n = 0, n_parts = 0;
    while (n < n_left && n < BATCH_RECORDS_MAX) {
        const firni_plan_form *form = pending[n].form;
        n_bytes += form->record_bytes + record_surplus(&pending[n], origin);
        n_parts += 1 + form->n_images;
        if (n > 0 && (n_bytes > n_bytes_max || n_parts > FIRNI_IOV_MAX)) {
            break;
        }
        n++;
    }
    return n;
}

/* The most that one batch takes: as much as there is, or the largest record. */
static uint64_t sealed_batch_bytes(const firni_pending *pending, uint32_t n_pending, const firni_origin *origin)
{
    uint64_t all = 0, largest = 0;
    for (uint32_t i = 0; i < n_pending; i++) {
        const uint64_t n_bytes = pending[i].form->record_bytes + record_surplus(&pending[i], origin);
        all += n_bytes;
        largest = n_bytes > largest ? n_bytes : largest;
    }
    const uint64_t batch = all < SEALED_BYTES_MAX ? all : SEALED_BYTES_MAX;
    return batch > largest ? batch : largest;
}

firni_code firni_disk_write_blocks(firni_disk *disk, firni_volume *volume, firni_pending *pending, uint32_t n_pending,
                                   const firn_row_view *views, const firni_origin *origin)
{
    const uint32_t n_scratch = n_pending < BATCH_RECORDS_MAX ? n_pending : BATCH_RECORDS_MAX;
    if (n_pending == 0) {
        return 0;
    }
    const firni_plan_form *whole = &disk->plan.blocks[disk->plan.n_kinds], *checkpoint = &disk->plan.checkpoint;
    const uint32_t n_sections = whole->n_sections > checkpoint->n_sections ? whole->n_sections : checkpoint->n_sections;
    const size_t header_bytes = firni_record_header_bytes(n_sections, firni_origin_names_max(origin));
    const uint64_t sealed_bytes = disk->crypt != NULL ? sealed_batch_bytes(pending, n_pending, origin) : 0;
    const block_writer writer = {
        .headers = firni_alloc_aligned(disk->env, n_scratch * header_bytes, FIRNI_RECORD_ALIGN),
        .header_bytes = header_bytes,
        .sections = firni_calloc(disk->env, n_sections, sizeof *writer.sections),
        .iov = firni_calloc(disk->env, FIRNI_IOV_MAX, sizeof *writer.iov),
        .sealed = sealed_bytes > 0 ? firni_alloc_aligned(disk->env, (size_t)sealed_bytes, FIRNI_RECORD_ALIGN) : NULL,
        .sealed_bytes = sealed_bytes,
    };
    firni_code code = writer.headers == NULL || writer.sections == NULL || writer.iov == NULL ||
                              (sealed_bytes > 0 && writer.sealed == NULL)
                          ? ENOMEM
                          : 0;
    for (uint32_t i = 0; i < n_pending && code == 0;) {
        code = firni_disk_choose_segment(disk, volume,
                                         pending[i].form->record_bytes + record_surplus(&pending[i], origin));
        if (code == 0) {
            const uint32_t n = batch_size(disk, volume, pending + i, n_pending - i, origin);
            code = sealed_bytes > 0 ? seal_batch(disk, volume, &writer, pending + i, n, views, origin)
                                    : write_batch(disk, volume, &writer, pending + i, n, views, origin);
            i += n;
        }
    }
    firni_free(disk->env, writer.headers);
    firni_free(disk->env, writer.sections);
    firni_free(disk->env, writer.iov);
    firni_free(disk->env, writer.sealed);
    return code;
}

/* Seals the sections of an encoded object, and draws the seal for its header. */
static firni_code seal_object(const firni_disk *disk, uint32_t n_sections, firni_section *sections, uint8_t *bytes,
                              firni_record_seal *seal)
{
    if (disk->crypt == NULL) {
        return 0;
    }
    firn_status status = firni_record_seal_begin(disk->crypt, seal);
    if (status == FIRN_OK) {
        status = firni_record_seal_sections(disk->crypt, &seal->key, n_sections, sections, bytes);
    }
    return status == FIRN_OK ? 0 : status == FIRN_ERR_NO_MEMORY ? ENOMEM : EIO;
}

firni_code firni_disk_write_object(firni_disk *disk, firni_volume *volume, firni_pending *pending,
                                   const firn_attachment *attachments, uint32_t n_attachments,
                                   const firni_origin *origin)
{
    uint32_t header_bytes = 0;
    uint64_t record_bytes = 0;
    firni_section *sections = firni_calloc(disk->env, FIRNI_ATTACHMENT_SECTIONS_MAX, sizeof *sections);
    if (sections == NULL) {
        return ENOMEM;
    }
    const uint32_t n_names = firni_origin_names(origin, pending);
    const uint32_t n_sections =
        firni_attachments_layout(attachments, n_attachments, n_names, sections, &header_bytes, &record_bytes);
    firni_record_seal seal = { .salt = { 0 } };
    uint8_t *bytes = firni_alloc_aligned(disk->env, (size_t)record_bytes, FIRNI_RECORD_ALIGN);
    firni_code code = bytes == NULL ? ENOMEM : firni_disk_choose_segment(disk, volume, record_bytes);
    if (code == 0) {
        firni_attachments_encode(attachments, n_attachments, header_bytes, record_bytes, sections,
                                 bytes + header_bytes);
        code = seal_object(disk, n_sections, sections, bytes, &seal);
    }
    if (code == 0) {
        pending->entry.place = (firni_place){ .segment = volume->segment_id,
                                              .offset = firni_segment_end(&volume->segments, volume->segment_id),
                                              .n_bytes = record_bytes };
        encode_header(disk, pending, origin, header_bytes, sections, n_sections, bytes);
        if (disk->crypt != NULL && firni_record_seal_header(disk->crypt, &seal, bytes) != FIRN_OK) {
            code = ENOMEM;
        }
    }
    if (code == 0) {
        const struct iovec iov = { .iov_base = bytes, .iov_len = (size_t)record_bytes };
        code = firni_segment_append(&volume->segments, volume->segment_id, &iov, 1, record_bytes,
                                    &pending->entry.place.offset);
    }
    firni_crypt_forget(&seal, sizeof seal);
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
