/*
 * Segments read from end to end: at each multiple of 4 KiB a record may begin.
 *
 *      | record | zeros (punched) | record, damaged | record |
 *        found                      debris            found
 *
 * A record is what its own checksums say, and what says that it was written to this very place: bytes that only look
 * like one, a copy or part of somebody's attachment, are none. What is not zero and of no record is debris.
 *
 * Does not decide which of the records count (fsck.c); changes nothing.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tier/disk/fsck_impl.h"

#define CHUNK_BYTES (1u << 20)

typedef struct scanner {
    firni_fsck *job;
    uint32_t segment;
    uint64_t size_bytes;
    int fd;
    uint8_t *chunk;
    uint8_t *bytes; /* of the record that is looked at */
    uint64_t capacity;
    firni_section *sections;
    uint32_t sections_capacity;
    firni_coder *coder;
} scanner;

/* ---- lists ------------------------------------------------------------------------------------------------------- */

bool firni_fsck_add_debris(firni_fsck *job, const firni_place *place)
{
    if (job->n_debris > 0) {
        firni_place *last = &job->debris[job->n_debris - 1];
        if (last->segment == place->segment && last->offset + last->n_bytes == place->offset) {
            last->n_bytes += place->n_bytes;
            return true;
        }
    }
    if (job->n_debris == job->debris_capacity) {
        const uint64_t capacity = job->debris_capacity == 0 ? 64 : 2 * job->debris_capacity;
        firni_place *grown = firni_grow(job->env, job->debris, job->n_debris, capacity, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        job->debris = grown;
        job->debris_capacity = capacity;
    }
    job->debris[job->n_debris++] = *place;
    return true;
}

/* Where the root is in the list, or belongs. */
static uint32_t names_at(const firni_fsck *job, const firn_digest *root)
{
    uint32_t low = 0, high = job->n_names;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (memcmp(job->names[middle].root.bytes, root->bytes, FIRN_DIGEST_BYTES) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const firni_names *firni_fsck_names(const firni_fsck *job, const firn_digest *root)
{
    const uint32_t at = names_at(job, root);
    return at < job->n_names && firni_digest_equal(&job->names[at].root, root) ? &job->names[at] : NULL;
}

static char *copy_text(const firn_env *env, const char *bytes, uint32_t n_bytes)
{
    char *text = firni_calloc(env, (size_t)n_bytes + 1, 1);
    if (text != NULL && n_bytes > 0) {
        memcpy(text, bytes, n_bytes);
    }
    return text;
}

/* Whether the record says what its chain belongs to. */
static bool has_names(const firni_record *record)
{
    return record->first_token == 0 || record->links.has_before || record->links.has_under;
}

/* What records say of their chain is noted once for each root; the text of an identity by those at token 0. */
static bool note_names(firni_fsck *job, const firni_record *record)
{
    const uint32_t known = names_at(job, &record->root);
    if (known < job->n_names && firni_digest_equal(&job->names[known].root, &record->root)) {
        firni_names *names = &job->names[known];
        if (names->text == NULL && record->first_token == 0) {
            names->text = copy_text(job->env, record->text, record->n_text);
        }
        return names->text != NULL || record->first_token != 0;
    }
    if (!has_names(record)) {
        return true;
    }
    if (job->n_names == job->names_capacity) {
        const uint32_t capacity = job->names_capacity == 0 ? 16 : 2 * job->names_capacity;
        firni_names *grown = firni_grow(job->env, job->names, job->n_names, capacity, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        job->names = grown;
        job->names_capacity = capacity;
    }
    char *ns = copy_text(job->env, record->ns_name, record->n_ns);
    const bool has_text = record->first_token == 0;
    char *text = has_text ? copy_text(job->env, record->text, record->n_text) : NULL;
    if (ns == NULL || (has_text && text == NULL)) {
        firni_free(job->env, ns);
        firni_free(job->env, text);
        return false;
    }
    const uint32_t at = names_at(job, &record->root);
    memmove(&job->names[at + 1], &job->names[at], (job->n_names - at) * sizeof job->names[0]);
    job->names[at] = (firni_names){ .root = record->root, .identity = record->identity, .ns = ns, .text = text };
    job->n_names++;
    return true;
}

static bool note_record(scanner *scan, const firni_record *record)
{
    firni_fsck *job = scan->job;
    if (job->n_found == job->found_capacity) {
        const uint64_t capacity = job->found_capacity == 0 ? 256 : 2 * job->found_capacity;
        firni_found *grown = firni_grow(job->env, job->found, job->n_found, capacity, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        job->found = grown;
        job->found_capacity = capacity;
    }
    firni_found *found = &job->found[job->n_found++];
    *found = (firni_found){
        .entry = { .kind = record->kind,
                   .first_token = record->first_token,
                   .n_tokens = record->n_tokens,
                   .reusable_from = record->reusable_from,
                   .n_full = record->n_full,
                   .n_window = record->n_window,
                   .n_fixed = record->n_fixed,
                   .place = { .segment = scan->segment, .offset = record->offset, .n_bytes = record->record_bytes },
                   .plain_bytes = record->plain_bytes,
                   .created_wall_ns = record->created_wall_ns,
                   .priority = record->priority,
                   .digest = record->digest,
                   .root = record->root },
        .which = record->kind == FIRNI_RECORD_OBJECT       ? FIRNI_OBJECTS
                 : record->kind == FIRNI_RECORD_CHECKPOINT ? FIRNI_CHECKPOINTS
                                                           : FIRNI_RECORDS,
        .parent = record->parent,
        .links = record->links,
        .used_wall_ns = record->created_wall_ns,
    };
    memcpy(found->tokens, record->tokens, sizeof found->tokens);
    return note_names(job, record);
}

/* ---- one record -------------------------------------------------------------------------------------------------- */

/* The record's first n bytes into scan->bytes. Which of them a read brings is not known before: EIO is damage here, and
 * so is the end of the file. */
static firni_code fetch(scanner *scan, uint64_t offset, uint64_t n_bytes)
{
    const firn_io *io = firni_io(scan->job->env);
    if (n_bytes > scan->size_bytes - offset) {
        return FIRNI_CODE_CORRUPT;
    }
    if (n_bytes > scan->capacity) {
        firni_free(scan->job->env, scan->bytes);
        scan->bytes = firni_alloc_aligned(scan->job->env, (size_t)n_bytes, FIRNI_RECORD_ALIGN);
        scan->capacity = scan->bytes != NULL ? n_bytes : 0;
    }
    if (scan->bytes == NULL) {
        return ENOMEM;
    }
    const int64_t n = io->pread(io->ctx, scan->fd, scan->bytes, (size_t)n_bytes, offset);
    if (n < 0) {
        return n == -EIO ? FIRNI_CODE_CORRUPT : (firni_code)-n;
    }
    return (uint64_t)n == n_bytes ? 0 : FIRNI_CODE_CORRUPT;
}

static bool reserve_sections(scanner *scan, uint32_t n)
{
    if (n > scan->sections_capacity) {
        firni_free(scan->job->env, scan->sections);
        scan->sections = firni_calloc(scan->job->env, n, sizeof *scan->sections);
        scan->sections_capacity = scan->sections != NULL ? n : 0;
    }
    return n == 0 || scan->sections != NULL;
}

/* Whether a record's names are those that its digests were made of. */
static bool names_fit(const firni_record *record)
{
    if (!has_names(record)) {
        return true;
    }
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1] = "";
    memcpy(ns, record->ns_name, record->n_ns);
    const firn_digest digest = firni_namespace_digest(ns), root = firn_chain_root(&record->identity, ns);
    return firni_digest_equal(&digest, &record->ns) && firni_digest_equal(&root, &record->root);
}

/* Opens and decodes the header that was fetched. */
static firni_code decode(const scanner *scan, uint32_t header_bytes, uint64_t record_bytes_max, firni_record *out,
                         firni_crypt_key *key)
{
    firn_status status = firni_record_open_header(scan->job->crypt, scan->bytes, header_bytes, key);
    if (status == FIRN_OK) {
        status = firni_record_decode(scan->bytes, header_bytes, record_bytes_max, scan->sections,
                                     scan->sections_capacity, out, NULL);
    }
    return firni_code_of_record(status);
}

/* Looks at the record that may begin at offset; `first` are the bytes there, at least a page. *n_bytes is how far it
 * reaches, also when it is damaged: 4 KiB when its header is. */
static firni_code look_at(scanner *scan, uint64_t offset, const uint8_t *first, bool *is_good, uint64_t *n_bytes)
{
    *is_good = false;
    *n_bytes = FIRNI_RECORD_ALIGN;
    uint32_t header_bytes, n_sections;
    const firn_status peeked = firni_record_peek(first, &header_bytes, &n_sections, NULL);
    if (peeked != FIRN_OK) {
        scan->job->n_other_version += peeked == FIRN_ERR_FORMAT;
        return 0;
    }
    if (!firni_record_is_of_key(first, scan->job->crypt)) {
        scan->job->n_other_key++;
        return 0;
    }
    firni_record record;
    firni_crypt_key key = { { 0 } };
    firni_code code = reserve_sections(scan, n_sections) ? fetch(scan, offset, header_bytes) : ENOMEM;
    if (code == 0) {
        code = decode(scan, header_bytes, scan->size_bytes - offset, &record, &key);
    }
    if (code != 0) {
        firni_crypt_forget(&key, sizeof key);
        return code == FIRNI_CODE_CORRUPT ? 0 : code;
    }
    if (record.segment != scan->segment || record.offset != offset || !names_fit(&record)) {
        firni_crypt_forget(&key, sizeof key);
        return 0;
    }
    *n_bytes = record.record_bytes;
    if (!scan->job->headers_only) {
        code = fetch(scan, offset, record.record_bytes);
        /* The header has moved with the buffer, and the names with it. */
        if (code == 0) {
            code = decode(scan, header_bytes, record.record_bytes, &record, &key);
        }
        if (code == 0) {
            code = firni_code_of_record(firni_record_open_packed(scan->coder, scan->job->crypt, &key, &record,
                                                                  scan->bytes));
        }
    }
    firni_crypt_forget(&key, sizeof key);
    if (code != 0) {
        return code == FIRNI_CODE_CORRUPT ? 0 : code;
    }
    *is_good = true;
    return note_record(scan, &record) ? 0 : ENOMEM;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static bool is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, FIRNI_RECORD_ALIGN - 1) == 0;
}

/* Whether the page says that a record begins here, damaged or not. */
static bool has_magic(const uint8_t *page)
{
    static const uint8_t magic[8] = { 0x89, 'F', 'I', 'R', 'N', '\r', '\n', 0x1a };
    return memcmp(page, magic, sizeof magic) == 0;
}

/* The pages of one chunk, up to the end of the first record that reaches beyond it. Returns how far it came. */
static firni_code scan_chunk(scanner *scan, uint64_t begin, uint64_t n_chunk, uint64_t *n_done)
{
    firni_fsck *job = scan->job;
    *n_done = 0;
    while (*n_done < n_chunk) {
        const uint8_t *page = scan->chunk + *n_done;
        firni_place place = { .segment = scan->segment, .offset = begin + *n_done, .n_bytes = FIRNI_RECORD_ALIGN };
        bool is_good = false;
        if (has_magic(page)) {
            const firni_code code = look_at(scan, place.offset, page, &is_good, &place.n_bytes);
            if (code != 0) {
                return code;
            }
            job->report.n_damaged += !is_good;
        }
        if (!is_good && !is_zero(page) && !firni_fsck_add_debris(job, &place)) {
            return ENOMEM;
        }
        *n_done += place.n_bytes;
    }
    return 0;
}

/* A part that cannot be read is passed over page by page. */
static firni_code scan_segment(scanner *scan)
{
    const firn_io *io = firni_io(scan->job->env);
    uint64_t at = 0;
    uint32_t n_wanted = CHUNK_BYTES;
    while (at < scan->size_bytes) {
        memset(scan->chunk, 0, n_wanted);
        const int64_t n = io->pread(io->ctx, scan->fd, scan->chunk, n_wanted, at);
        if (n < 0 && n != -EIO) {
            return (firni_code)-n;
        }
        if (n < 0 && n_wanted > FIRNI_RECORD_ALIGN) {
            n_wanted = FIRNI_RECORD_ALIGN;
            continue;
        }
        uint64_t n_done = FIRNI_RECORD_ALIGN;
        firni_code code = 0;
        if (n < 0) {
            const firni_place place = { .segment = scan->segment, .offset = at, .n_bytes = FIRNI_RECORD_ALIGN };
            code = firni_fsck_add_debris(scan->job, &place) ? 0 : ENOMEM;
        } else if (n > 0) {
            code = scan_chunk(scan, at, firni_round_up((uint64_t)n, FIRNI_RECORD_ALIGN), &n_done);
        }
        if (code != 0 || n == 0) {
            return code;
        }
        n_wanted = n < 0 ? n_wanted : CHUNK_BYTES;
        at += n_done;
    }
    return 0;
}

firn_status firni_fsck_scan(firni_fsck *job, firn_error *err)
{
    scanner scan = { .job = job, .chunk = firni_alloc_aligned(job->env, CHUNK_BYTES, FIRNI_RECORD_ALIGN) };
    firni_segments *segments = &job->volume->segments;
    scan.coder = firni_coder_create(job->env);
    firni_code code = scan.chunk != NULL && scan.coder != NULL ? 0 : ENOMEM;
    for (uint32_t id = firni_segment_next(segments, 0); id != 0 && code == 0; id = firni_segment_next(segments, id)) {
        scan.segment = id;
        scan.size_bytes = firni_segment_end(segments, id);
        code = firni_segment_use(segments, id, &scan.fd);
        if (code == 0) {
            code = scan_segment(&scan);
            firni_segment_leave(segments, id);
            job->report.n_segments++;
        }
    }
    firni_coder_destroy(scan.coder);
    firni_free(job->env, scan.chunk);
    firni_free(job->env, scan.bytes);
    firni_free(job->env, scan.sections);
    if (code == ENOMEM) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the records of %s", job->volume->dir);
    }
    return code == 0 ? FIRN_OK : firni_fail_os(err, code, "cannot read the segments of %s", job->volume->dir);
}
