/*
 * Reading records layer by layer, so that a forward may begin on the first layers while later ones are on their way.
 *
 *   1. the headers of all records, and what they say about their sections
 *   2. for each group of layers: its images of every record, verified; then the caller is told
 *
 *      file      | header | L0 L1 L2 L3 | header | L0 L1 L2 L3 |         two records of four layers
 *                |----1---|             |----1---|
 *                         |-- 2 --|              |-- 2 --|             group of layers 0 and 1
 *                               |-- 3 --|              |-- 3 --|       group of layers 2 and 3
 *
 * Records lie on disk as they were written, one block of tokens after the other, so this takes more and smaller reads
 * than reading on does. Groups are as wide as makes a read worth its latency, and at least two.
 *
 * Owns the order of these reads. What a good record is belongs to disk_read.c.
 */
#include <assert.h>
#include <errno.h>

#include "tier/disk/restore_impl.h"

#define READ_BYTES_GOOD (UINT64_C(128) << 10) /* of one read: below it devices answer by the read, not by the byte */
#define GROUPS_MAX      8u

/* Neighbouring images of one part: one read. */
typedef struct image_run {
    uint32_t part, first_image, n_images;
} image_run;

typedef struct layer_reads {
    firni_restore_job *job;
    firni_section *sections; /* [n_parts][n_sections_max] */
    uint32_t n_sections_max;
    firni_crypt_key *keys;   /* [n_parts]: of encrypted records */
    int *fds;                /* [n_parts]; -1: not in use */
    image_run *runs;         /* [n_iov]: room for a read of each image */
    firn_io_read *reads;     /* the same */
    uint32_t n_reads;
    bool of_headers;
} layer_reads;

static firni_section *part_sections(const layer_reads *r, uint32_t part)
{
    return r->sections + (size_t)part * r->n_sections_max;
}

static bool allocate(layer_reads *r)
{
    const firni_restore_job *job = r->job;
    const firn_env *env = job->disk->env;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        const uint32_t n = job->parts[i].form->n_sections;
        r->n_sections_max = n > r->n_sections_max ? n : r->n_sections_max;
    }
    r->sections = firni_calloc(env, (size_t)job->n_parts * r->n_sections_max + 1, sizeof *r->sections);
    r->keys = firni_calloc(env, (size_t)job->n_parts + 1, sizeof *r->keys);
    r->fds = firni_calloc(env, (size_t)job->n_parts + 1, sizeof *r->fds);
    r->runs = firni_calloc(env, job->n_iov + 1, sizeof *r->runs);
    r->reads = firni_calloc(env, job->n_iov + 1, sizeof *r->reads);
    for (uint32_t i = 0; r->fds != NULL && i < job->n_parts; i++) {
        r->fds[i] = -1;
    }
    return r->sections != NULL && r->keys != NULL && r->fds != NULL && r->runs != NULL && r->reads != NULL;
}

static void release(layer_reads *r)
{
    firni_restore_job *job = r->job;
    for (uint32_t i = 0; r->fds != NULL && i < job->n_parts; i++) {
        if (r->fds[i] >= 0) {
            firni_segment_leave(&job->volume->segments, job->parts[i].entry->place.segment);
        }
    }
    if (r->keys != NULL) {
        firni_crypt_forget(r->keys, ((size_t)job->n_parts + 1) * sizeof *r->keys);
    }
    firni_free(job->disk->env, r->keys);
    firni_free(job->disk->env, r->sections);
    firni_free(job->disk->env, r->fds);
    firni_free(job->disk->env, r->runs);
    firni_free(job->disk->env, r->reads);
}

/* ---- one batch --------------------------------------------------------------------------------------------------- */

static firn_status verify_header(const layer_reads *r, uint32_t part)
{
    const firni_restore_job *job = r->job;
    const firni_plan_form *form = job->parts[part].form;
    uint8_t *header = job->headers + part * job->header_bytes;
    firni_record record;
    const firni_restore_part *at = &job->parts[part];
    firn_status status = firni_record_open_header(job->disk->crypt, header, at->header_bytes, &r->keys[part]);
    if (status == FIRN_OK) {
        status = firni_record_decode(header, at->header_bytes, at->entry->place.n_bytes, part_sections(r, part),
                                     form->n_sections, &record, NULL);
    }
    return status == FIRN_OK && !firni_restore_header_fits(job, part, &record) ? FIRN_ERR_CORRUPT : status;
}

static firn_status verify_images(const layer_reads *r, const image_run *run)
{
    const firni_restore_job *job = r->job;
    firn_status status = FIRN_OK;
    for (uint32_t k = run->first_image; k < run->first_image + run->n_images && status == FIRN_OK; k++) {
        status = firni_form_open(job->parts[run->part].form, k, job->disk->crypt, &r->keys[run->part],
                                 firn_block_data(*firni_restore_slot(job, run->part, k)), part_sections(r, run->part));
    }
    return status;
}

static void on_read(void *ctx, uint32_t index)
{
    layer_reads *r = ctx;
    const firn_io_read *read = &r->reads[index];
    const image_run *run = &r->runs[index];
    firni_restore_part *part = &r->job->parts[run->part];
    uint64_t n_needed = 0;
    for (uint32_t i = 0; i < read->n_iov; i++) {
        n_needed += read->iov[i].iov_len;
    }
    if (read->result < 0) {
        part->code = (firni_code)-read->result;
    } else if ((uint64_t)read->result < n_needed) {
        part->code = FIRNI_CODE_CORRUPT;
    } else {
        part->code = firni_code_of_record(r->of_headers ? verify_header(r, run->part) : verify_images(r, run));
    }
}

/* NONE, or what became of the batch. */
static firn_reason read_batch(layer_reads *r)
{
    firni_restore_job *job = r->job;
    if (!firni_restore_is_wanted(job)) {
        return FIRN_REASON_CANCELLED;
    }
    const firn_io *io = firni_io(job->disk->env);
    const firni_code code = r->n_reads > 0 ? -io->read_batch(io->ctx, r->reads, r->n_reads, on_read, r) : 0;
    if (code != 0) {
        return firni_disk_failed(job->disk, job->volume, code, "reading records");
    }
    for (uint32_t i = 0; i < r->n_reads; i++) {
        for (uint32_t v = 0; v < r->reads[i].n_iov; v++) {
            job->n_bytes_read += r->reads[i].iov[v].iov_len;
        }
    }
    r->n_reads = 0;
    return firni_restore_judge(job);
}

/* ---- 1. headers -------------------------------------------------------------------------------------------------- */

static firn_reason read_headers(layer_reads *r)
{
    firni_restore_job *job = r->job;
    r->of_headers = true;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        firni_restore_part *part = &job->parts[i];
        if (part->is_held || part->is_packed || part->code != 0) {
            continue;
        }
        const firni_place *place = &part->entry->place;
        int fd;
        part->code = firni_segment_use(&job->volume->segments, place->segment, &fd);
        if (part->code != 0) {
            continue;
        }
        r->fds[i] = fd;
        struct iovec *iov = job->iov + part->first_iov;
        *iov = (struct iovec){ .iov_base = job->headers + i * job->header_bytes,
                               .iov_len = part->header_bytes };
        r->runs[r->n_reads] = (image_run){ .part = i };
        r->reads[r->n_reads++] =
            (firn_io_read){ .fd = fd, .offset = place->offset, .iov = iov, .n_iov = 1, .result = -EIO };
    }
    const firn_reason reason = read_batch(r);
    r->of_headers = false;
    return reason;
}

/* ---- 2. layers --------------------------------------------------------------------------------------------------- */

/* Images of one part that lie side by side and belong to layers [first, end). */
static void add_runs(layer_reads *r, uint32_t i, uint32_t first, uint32_t end)
{
    firni_restore_job *job = r->job;
    const firni_restore_part *part = &job->parts[i];
    const firni_plan_image *images = part->form->images;
    for (uint32_t k = 0; k < part->n_images; k++) {
        if (images[k].layer < first || images[k].layer >= end) {
            continue;
        }
        struct iovec *iov = job->iov + part->first_iov + 1 + k;
        *iov = (struct iovec){ .iov_base = firn_block_data(*firni_restore_slot(job, i, k)),
                               .iov_len = images[k].n_bytes };
        image_run *last = r->n_reads > 0 ? &r->runs[r->n_reads - 1] : NULL;
        if (last != NULL && last->part == i && last->first_image + last->n_images == k &&
            images[k - 1].offset + images[k - 1].n_bytes == images[k].offset && last->n_images < FIRNI_IOV_MAX) {
            last->n_images++;
            r->reads[r->n_reads - 1].n_iov++;
            continue;
        }
        r->runs[r->n_reads] = (image_run){ .part = i, .first_image = k, .n_images = 1 };
        r->reads[r->n_reads++] = (firn_io_read){ .fd = r->fds[i],
                                                 .offset = part->entry->place.offset + images[k].offset +
                                                           part->header_bytes - part->form->header_bytes,
                                                 .iov = iov,
                                                 .n_iov = 1,
                                                 .result = -EIO };
    }
}

/* Layers that are read together. */
static uint32_t group_layers(const firni_restore_job *job)
{
    const uint32_t n_layers = job->disk->plan.n_layers;
    uint64_t part_bytes = 0;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        part_bytes = job->parts[i].n_bytes > part_bytes ? job->parts[i].n_bytes : part_bytes;
    }
    uint64_t n_groups = part_bytes / READ_BYTES_GOOD;
    n_groups = n_groups < 2 ? 2 : n_groups > GROUPS_MAX ? GROUPS_MAX : n_groups;
    return n_groups < n_layers ? (n_layers + (uint32_t)n_groups - 1) / (uint32_t)n_groups : 1;
}

/* All layers of the packed records come at once: they are small, and what they cost is unpacking. */
static firn_reason read_packed(firni_restore_job *job)
{
    bool cancelled = false;
    const firni_code code = firni_restore_read_packed(job, &cancelled);
    if (code != 0) {
        return firni_disk_failed(job->disk, job->volume, code, "reading records");
    }
    const firn_reason reason = firni_restore_judge(job);
    return cancelled ? FIRN_REASON_CANCELLED : reason;
}

firn_reason firni_restore_read_layers(firni_restore_job *job)
{
    layer_reads r = { .job = job };
    if (!allocate(&r)) {
        release(&r);
        return FIRN_REASON_NO_MEMORY;
    }
    const uint32_t n_layers = job->disk->plan.n_layers;
    const uint32_t n_group = group_layers(job);
    firni_restore_report(job, 0);
    firn_reason reason = read_packed(job);
    reason = reason == FIRN_REASON_NONE ? read_headers(&r) : reason;
    for (uint32_t first = 0; first < n_layers && reason == FIRN_REASON_NONE; first += n_group) {
        const uint32_t end = n_layers - first < n_group ? n_layers : first + n_group;
        for (uint32_t i = 0; i < job->n_parts; i++) {
            if (!job->parts[i].is_held && !job->parts[i].is_packed) {
                add_runs(&r, i, first, end);
            }
        }
        reason = read_batch(&r);
        if (reason == FIRN_REASON_NONE) {
            firni_restore_report(job, end);
        }
    }
    release(&r);
    return reason;
}
