/*
 * Reading records: the parts of a restore, laid out in as few reads as their places allow, and verified one by one.
 *
 * Owns the layout of the reads, what makes a record good, and what a bad one means. Does not choose what is read, and
 * makes no caches (disk_restore.c).
 */
#include <errno.h>
#include <string.h>

#include "tier/disk/restore_impl.h"

#define READ_BYTES_MAX (UINT64_C(8) << 20) /* of one read: large enough for the device, small enough to overlap */
/* Between two batches a read may be given up: a batch is small at first, and larger where the device answers soon. */
#define BATCH_BYTES_FIRST (UINT64_C(1) << 20)
#define BATCH_GROWTH      4u
#define BATCH_BYTES_MAX   (UINT64_C(256) << 20)
#define BATCH_NS_MAX      UINT64_C(30000000)

/* ---- what a bad record means ------------------------------------------------------------------------------------- */

firn_reason firni_disk_bad_record(firni_disk *disk, firni_volume *volume, const firni_key *key,
                                  const firni_entry *entry, firni_code code)
{
    if (code != FIRNI_CODE_CORRUPT && code != ENOENT) {
        return firni_disk_failed(disk, volume, code, "reading a record");
    }
    /* The writer, perhaps another process, may have taken the record away under the read. */
    MDB_txn *txn = NULL;
    firni_entry now;
    firni_code found = firni_index_begin(&volume->index, true, &txn);
    if (found == 0) {
        found = firni_index_get(&volume->index, txn, key, &now);
    }
    mdb_txn_abort(txn);
    if (found == MDB_NOTFOUND || (found == 0 && !firni_place_equal(&now.place, &entry->place))) {
        return FIRN_REASON_GONE;
    }
    firni_disk_suspect(disk, key, &entry->place);
    firni_log(disk->env, FIRN_LOG_WARN, "disk tier %s: a record in segment %u at %llu does not verify; quarantined",
              disk->dir, entry->place.segment, (unsigned long long)entry->place.offset);
    return FIRN_REASON_CORRUPT;
}

/* Everything that the header says about itself, against what the index said and what was asked for. The tokens are
 * compared as such: equal digests are not taken for equal prompts. */
bool firni_disk_header_fits(const firni_disk *disk, const firni_record *record, const firni_entry *entry,
                            const firni_key *key, const firn_digest *ns)
{
    firn_token tokens[FIRN_BLOCK_TOKENS];
    const firn_digest parent = firni_key_parent(key);
    const uint32_t n_tokens = firni_key_tokens(key, tokens);
    return record->kind == entry->kind && record->first_token == entry->first_token && record->n_tokens == n_tokens &&
           record->n_tokens == entry->n_tokens && record->segment == entry->place.segment &&
           record->offset == entry->place.offset && record->record_bytes == entry->place.n_bytes &&
           record->plain_bytes == entry->plain_bytes &&
           firni_digest_equal(&record->digest, &entry->digest) &&
           firni_digest_equal(&record->parent, &parent) && firni_digest_equal(&record->ns, ns) &&
           firni_digest_equal(&record->identity, &disk->options.schema->identity) &&
           (n_tokens == 0 || memcmp(record->tokens, tokens, n_tokens * sizeof tokens[0]) == 0);
}

/* ---- laying out the reads ---------------------------------------------------------------------------------------- */

static uint8_t *part_header(const firni_restore_job *job, uint32_t part)
{
    return job->headers + part * job->header_bytes;
}

static void fill_iov(const firni_restore_job *job, uint32_t i)
{
    const firni_restore_part *part = &job->parts[i];
    struct iovec *iov = job->iov + part->first_iov;
    iov[0] = (struct iovec){ .iov_base = part_header(job, i), .iov_len = part->header_bytes };
    for (uint32_t k = 0; k < part->n_images; k++) {
        iov[1 + k] = (struct iovec){ .iov_base = firn_block_data(*firni_restore_slot(job, i, k)),
                                     .iov_len = part->form->images[k].n_bytes };
    }
}

/* Whether part i lies right behind the last part of the read, which then reads on. Records of one store lie one behind
 * the other, unless a segment ended between them; a part that leaves out the end of its record breaks the row. */
static bool joins(const firni_restore_job *job, const firni_restore_span *covered, const firn_io_read *read, uint32_t i)
{
    if (covered->first_part + covered->n_parts != i) {
        return false;
    }
    const uint64_t max_bytes = job->n_reads > 1 ? READ_BYTES_MAX : BATCH_BYTES_FIRST;
    const firni_restore_part *part = &job->parts[i], *before = &job->parts[i - 1];
    const firni_place *a = &before->entry->place, *b = &part->entry->place;
    return a->segment == b->segment && a->offset + before->n_bytes == b->offset &&
           read->n_iov + 1 + part->n_images <= FIRNI_IOV_MAX && covered->n_bytes + part->n_bytes <= max_bytes;
}

/* Lays out the reads. What cannot be read at all has its code afterwards, and no read. */
static void plan_reads(firni_restore_job *job)
{
    for (uint32_t i = 0; i < job->n_parts; i++) {
        firni_restore_part *part = &job->parts[i];
        if (part->is_held || part->is_packed) {
            continue;
        }
        fill_iov(job, i);
        if (part->code != 0) {
            continue; /* of a size that no record of its form has */
        }
        if (job->n_reads > 0) {
            firni_restore_span *covered = &job->spans[job->n_reads - 1];
            firn_io_read *last = &job->reads[job->n_reads - 1];
            if (joins(job, covered, last, i)) {
                last->n_iov += 1 + part->n_images;
                covered->n_parts++;
                covered->n_bytes += part->n_bytes;
                continue;
            }
        }
        int fd;
        part->code = firni_segment_use(&job->volume->segments, part->entry->place.segment, &fd);
        if (part->code == 0) {
            job->reads[job->n_reads] = (firn_io_read){ .fd = fd,
                                                       .offset = part->entry->place.offset,
                                                       .iov = job->iov + part->first_iov,
                                                       .n_iov = 1 + part->n_images,
                                                       .result = -EIO };
            job->spans[job->n_reads++] =
                (firni_restore_span){ .first_part = i, .n_parts = 1, .n_bytes = part->n_bytes };
        }
    }
}

/* Each read has its own use of its segment. */
static void leave_segments(const firni_restore_job *job)
{
    for (uint32_t r = 0; r < job->n_reads; r++) {
        const firni_restore_part *part = &job->parts[job->spans[r].first_part];
        firni_segment_leave(&job->volume->segments, part->entry->place.segment);
    }
}

/* ---- verifying --------------------------------------------------------------------------------------------------- */

static firni_key part_key(const firni_restore_job *job, uint32_t i)
{
    return i < job->n_records ? firni_handle_key(job->handle, i) : job->checkpoint_key;
}

bool firni_restore_header_fits(const firni_restore_job *job, uint32_t i, const firni_record *record)
{
    const firni_restore_part *part = &job->parts[i];
    const firni_key key = part_key(job, i);
    const uint32_t level = i < job->n_records ? firni_handle_level(job->handle, i) : job->checkpoint_level;
    return firni_disk_header_fits(job->disk, record, part->entry, &key, &job->handle->nss[level]) &&
           firni_form_matches(part->form, record);
}

/* Header first: it says what the checksums of the sections are. */
static firni_code verify_part(firni_restore_job *job, uint32_t i)
{
    const firni_restore_part *part = &job->parts[i];
    const firni_plan_form *form = part->form;
    const firni_crypt *crypt = job->disk->crypt;
    firni_record record;
    firni_crypt_key key;
    firn_status status = firni_record_open_header(crypt, part_header(job, i), part->header_bytes, &key);
    if (status == FIRN_OK) {
        status = firni_record_decode(part_header(job, i), part->header_bytes, part->entry->place.n_bytes,
                                     job->sections, form->n_sections, &record, NULL);
    }
    if (status == FIRN_OK && !firni_restore_header_fits(job, i, &record)) {
        status = FIRN_ERR_CORRUPT;
    }
    for (uint32_t k = 0; k < part->n_images && status == FIRN_OK; k++) {
        status = firni_form_open(form, k, crypt, &key, firn_block_data(*firni_restore_slot(job, i, k)),
                                 record.sections);
    }
    firni_crypt_forget(&key, sizeof key);
    return firni_code_of_record(status);
}

/* One read has completed. Every record is looked at, also when another is bad: all that are damaged are found at once,
 * and written anew by the next store. */
static void on_read(void *ctx, uint32_t index)
{
    firni_restore_job *job = ctx;
    const firn_io_read *read = &job->reads[job->first_read + index];
    const firni_restore_span *covered = &job->spans[job->first_read + index];
    uint64_t n_needed = 0;
    for (uint32_t i = covered->first_part; i < covered->first_part + covered->n_parts; i++) {
        n_needed += job->parts[i].n_bytes;
        if (read->result < 0) {
            job->parts[i].code = (firni_code)-read->result;
        } else {
            job->parts[i].code = (uint64_t)read->result < n_needed ? FIRNI_CODE_CORRUPT : verify_part(job, i);
        }
    }
}

firn_reason firni_restore_judge(firni_restore_job *job)
{
    firn_reason first = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        const firni_restore_part *part = &job->parts[i];
        if (part->code != 0) {
            const firni_key key = part_key(job, i);
            const firn_reason reason = firni_disk_bad_record(job->disk, job->volume, &key, part->entry, part->code);
            first = first == FIRN_REASON_NONE ? reason : first;
        }
    }
    return first;
}

/* ----
 * reading ------------------------------------------------------------------------------------------------------ */

bool firni_restore_is_wanted(const firni_restore_job *job)
{
    return job->want->is_wanted == NULL || job->want->is_wanted(job->want->ctx);
}

void firni_restore_report(const firni_restore_job *job, uint32_t n_layers)
{
    if (job->want->progress != NULL) {
        const bool has_rows = firni_restore_is_layered(job); /* else they are made when all has been read */
        const firn_restore_progress progress = { .caches = has_rows ? job->caches : NULL,
                                                 .n_caches = has_rows ? job->disk->plan.n_layers : 0,
                                                 .n_layers = n_layers,
                                                 .n_bytes = job->n_bytes_read,
                                                 .n_bytes_total = job->n_bytes };
        job->want->progress(job->want->ctx, &progress);
    }
}

/* How many reads from first_read on make a batch of about max_bytes. */
static uint32_t batch_reads(const firni_restore_job *job, uint64_t max_bytes, uint64_t *n_bytes)
{
    uint32_t n = 0;
    *n_bytes = 0;
    while (job->first_read + n < job->n_reads &&
           (n == 0 || *n_bytes + job->spans[job->first_read + n].n_bytes <= max_bytes)) {
        *n_bytes += job->spans[job->first_read + n++].n_bytes;
    }
    return n;
}

/* All in one batch when nobody could stop it. */
static firni_code read_all(firni_restore_job *job, bool *cancelled)
{
    const firn_env *env = job->disk->env;
    const firn_io *io = firni_io(env);
    uint64_t max_bytes = job->want->is_wanted != NULL ? BATCH_BYTES_FIRST : UINT64_MAX;
    firni_code code = 0;
    firni_restore_report(job, 0); /* it has begun */
    while (code == 0 && job->first_read < job->n_reads) {
        *cancelled = !firni_restore_is_wanted(job);
        if (*cancelled) {
            break;
        }
        uint64_t n_bytes;
        const uint32_t n = batch_reads(job, max_bytes, &n_bytes);
        const uint64_t started_ns = firni_now_ns(env);
        code = -io->read_batch(io->ctx, job->reads + job->first_read, n, on_read, job);
        if (firni_now_ns(env) - started_ns < BATCH_NS_MAX && max_bytes < BATCH_BYTES_MAX) {
            max_bytes *= BATCH_GROWTH;
        }
        job->first_read += n;
        job->n_bytes_read += code == 0 ? n_bytes : 0;
        firni_restore_report(job, 0);
    }
    return code;
}

firn_reason firni_restore_read(firni_restore_job *job)
{
    bool cancelled = false;
    plan_reads(job);
    firni_code code = read_all(job, &cancelled);
    leave_segments(job);
    if (code == 0 && !cancelled) {
        code = firni_restore_read_packed(job, &cancelled);
    }
    if (code != 0) {
        return firni_disk_failed(job->disk, job->volume, code, "reading records");
    }
    const firn_reason reason = firni_restore_judge(job);
    return cancelled ? FIRN_REASON_CANCELLED : reason;
}
