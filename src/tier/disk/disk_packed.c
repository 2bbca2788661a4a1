/*
 * Reading packed records: each is read whole, into memory that several of them share, and unpacked from there into the
 * blocks of a restore.
 *
 *      scratch   | record | record | ... |     up to SCRATCH_BYTES, or one record that is larger
 *      blocks     unpack, verify as plain ones are
 *
 * Window planes that are not needed are read, since packed they are small, and not unpacked. Owns the scratch; what a
 * packed section is belongs to record/codec.c, what a bad record means to disk_read.c.
 */
#include <errno.h>

#include "tier/disk/restore_impl.h"

#define SCRATCH_BYTES   (UINT64_C(4) << 20)
#define SCRATCH_RECORDS 64u

typedef struct packed_reads {
    firni_restore_job *job;
    firni_coder *coder;
    uint8_t *scratch;
    uint64_t scratch_bytes;
    uint32_t parts[SCRATCH_RECORDS];  /* of this batch */
    uint8_t *bytes[SCRATCH_RECORDS];  /* where in the scratch each lies */
    struct iovec iov[SCRATCH_RECORDS];
    firn_io_read reads[SCRATCH_RECORDS];
    uint32_t n;
} packed_reads;

/* The sections of one image to where they lie in its block. Encrypted ones are opened first, where they are, and have
 * been verified by that: they have a tag instead of a checksum. */
static firn_status unpack_image(packed_reads *r, const firni_restore_part *part, uint32_t k, const firni_crypt_key *key,
                                const firni_record *record, uint8_t *bytes, uint8_t *out)
{
    const firni_crypt *crypt = r->job->disk->crypt;
    const firni_plan_image *image = &part->form->images[k];
    firn_status status = FIRN_OK;
    for (uint32_t i = image->first_section; i < image->first_section + image->n_sections && status == FIRN_OK; i++) {
        const firni_section *section = &record->sections[i];
        uint8_t *stored = bytes + section->offset;
        if (crypt != NULL) {
            status = firni_record_open_section(crypt, key, i, stored, (size_t)firni_section_stored(section),
                                               section->checksum);
        }
        if (status == FIRN_OK) {
            status = firni_section_unpack(r->coder, section, stored,
                                          out + (part->form->sections[i].offset - image->offset));
        }
    }
    if (status == FIRN_OK && crypt != NULL) {
        firni_form_zero_gaps(part->form, k, out);
    } else if (status == FIRN_OK && !firni_form_verify(part->form, k, out, record->sections)) {
        status = FIRN_ERR_CORRUPT;
    }
    return status;
}

static firni_code unpack_part(packed_reads *r, uint32_t i, uint8_t *bytes)
{
    const firni_restore_job *job = r->job;
    const firni_restore_part *part = &job->parts[i];
    const size_t n_bytes = (size_t)part->entry->place.n_bytes;
    firni_record record;
    firni_crypt_key key;
    firn_status status = firni_record_open_header(job->disk->crypt, bytes, n_bytes, &key);
    if (status == FIRN_OK) {
        status = firni_record_decode(bytes, n_bytes, n_bytes, job->sections, part->form->n_sections, &record, NULL);
    }
    if (status == FIRN_OK && !firni_restore_header_fits(job, i, &record)) {
        status = FIRN_ERR_CORRUPT;
    }
    for (uint32_t k = 0; k < part->n_images && status == FIRN_OK; k++) {
        status = unpack_image(r, part, k, &key, &record, bytes, firn_block_data(*firni_restore_slot(job, i, k)));
    }
    firni_crypt_forget(&key, sizeof key);
    return firni_code_of_record(status);
}

/* Called for one read after the other: the coder and the section table serve them all. */
static void on_read(void *ctx, uint32_t index)
{
    packed_reads *r = ctx;
    firni_restore_part *part = &r->job->parts[r->parts[index]];
    const firn_io_read *read = &r->reads[index];
    if (read->result < 0) {
        part->code = (firni_code)-read->result;
    } else if ((uint64_t)read->result < part->entry->place.n_bytes) {
        part->code = FIRNI_CODE_CORRUPT;
    } else {
        part->code = unpack_part(r, r->parts[index], r->bytes[index]);
    }
}

/* The packed parts from *next on that fit into the scratch. */
static void fill_batch(packed_reads *r, uint32_t *next)
{
    const firni_restore_job *job = r->job;
    uint64_t used = 0;
    for (r->n = 0; *next < job->n_parts && r->n < SCRATCH_RECORDS; ++*next) {
        firni_restore_part *part = &job->parts[*next];
        if (!part->is_packed || part->code != 0) {
            continue;
        }
        const firni_place *place = &part->entry->place;
        if (place->n_bytes > r->scratch_bytes - used) {
            return;
        }
        int fd;
        part->code = firni_segment_use(&job->volume->segments, place->segment, &fd);
        if (part->code == 0) {
            r->parts[r->n] = *next;
            r->bytes[r->n] = r->scratch + used;
            r->iov[r->n] = (struct iovec){ .iov_base = r->scratch + used, .iov_len = (size_t)place->n_bytes };
            r->reads[r->n] = (firn_io_read){
                .fd = fd, .offset = place->offset, .iov = &r->iov[r->n], .n_iov = 1, .result = -EIO
            };
            r->n++;
            used += place->n_bytes;
        }
    }
}

static firni_code read_batch(packed_reads *r)
{
    firni_restore_job *job = r->job;
    const firn_io *io = firni_io(job->disk->env);
    const firni_code code = r->n > 0 ? -io->read_batch(io->ctx, r->reads, r->n, on_read, r) : 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const firni_place *place = &job->parts[r->parts[i]].entry->place;
        firni_segment_leave(&job->volume->segments, place->segment);
        job->n_bytes_read += code == 0 ? place->n_bytes : 0;
    }
    return code;
}

firni_code firni_restore_read_packed(firni_restore_job *job, bool *cancelled)
{
    const firn_env *env = job->disk->env;
    packed_reads r = { .job = job };
    uint64_t largest = 0, total = 0;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        const uint64_t n_bytes = job->parts[i].is_packed ? job->parts[i].entry->place.n_bytes : 0;
        largest = n_bytes > largest ? n_bytes : largest;
        total += n_bytes;
    }
    *cancelled = false;
    if (total == 0) {
        return 0;
    }
    const uint64_t wanted = total < SCRATCH_BYTES ? total : SCRATCH_BYTES;
    r.scratch_bytes = largest > wanted ? largest : wanted;
    r.coder = firni_coder_create(env);
    r.scratch = firni_alloc_aligned(env, (size_t)r.scratch_bytes, FIRNI_RECORD_ALIGN);
    firni_code code = r.coder == NULL || r.scratch == NULL ? ENOMEM : 0;
    for (uint32_t next = 0; code == 0 && next < job->n_parts && !*cancelled;) {
        *cancelled = !firni_restore_is_wanted(job);
        if (!*cancelled) {
            fill_batch(&r, &next);
            code = read_batch(&r);
            firni_restore_report(job, 0);
        }
    }
    firni_coder_destroy(r.coder);
    firni_free(env, r.scratch);
    return code;
}
