/*
 * Reading record headers. Nothing in them is trusted: each field is checked against the bytes that are there and a
 * limit before it is used as a size, an index or a count.
 *
 * Does not read files; does not know which header was expected (the tiers compare).
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

static const uint8_t magic[8] = { 0x89, 'F', 'I', 'R', 'N', '\r', '\n', 0x1a };

firn_status firni_record_peek(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES], uint32_t *header_bytes,
                              uint32_t *n_sections, firn_error *err)
{
    *header_bytes = 0;
    *n_sections = 0;
    if (memcmp(fixed, magic, sizeof magic) != 0) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "no record begins here");
    }
    const uint32_t version = firni_get_u32(fixed + 24) & ~FIRNI_RECORD_SEALED; /* both forms have the same sizes */
    if (version != FIRNI_RECORD_VERSION) {
        return firni_fail(err, FIRN_ERR_FORMAT, "a record of version %u; this build reads version %u", version,
                          FIRNI_RECORD_VERSION);
    }
    const uint32_t n_header = firni_get_u32(fixed + 32), n = firni_get_u32(fixed + 36);
    if (n > FIRNI_RECORD_SECTIONS_MAX || n_header < firni_record_header_bytes(n, 0) ||
        n_header > FIRNI_RECORD_HEADER_BYTES_MAX || n_header % FIRNI_RECORD_ALIGN != 0) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a header of %u bytes cannot hold %u sections", n_header, n);
    }
    *header_bytes = n_header;
    *n_sections = n;
    return FIRN_OK;
}

/* The bytes that shape and dtype ask for; 0 when they are implausible. */
static uint64_t section_shape_bytes(const firni_section *section)
{
    uint64_t n_bytes = firn_dtype_bytes(section->dtype);
    for (uint32_t i = 0; i < section->n_dims; i++) {
        if (section->shape[i] == 0 || n_bytes > FIRNI_RECORD_BYTES_MAX / section->shape[i]) {
            return 0;
        }
        n_bytes *= section->shape[i];
    }
    return n_bytes;
}

static firn_status decode_section(const uint8_t *at, uint32_t index, firni_section *out, firn_error *err)
{
    *out = (firni_section){
        .kind = (firni_section_kind)firni_get_u16(at + 0),
        .layer = firni_get_u16(at + 2),
        .plane = firni_get_u16(at + 4),
        .dtype = (firn_dtype)at[6],
        .n_dims = at[7],
        .offset = firni_get_u64(at + 24),
        .n_bytes = firni_get_u64(at + 32),
        .checksum = { .low = firni_get_u64(at + 40), .high = firni_get_u64(at + 48) },
        .codec = (firni_codec)at[60],
        .stored_bytes = firni_get_u32(at + 56),
    };
    const bool kind_known = out->kind >= FIRNI_SECTION_PLANE && out->kind <= FIRNI_SECTION_STATE;
    const bool is_zero = at[61] == 0 && firni_get_u16(at + 62) == 0;
    if (!kind_known || out->n_dims == 0 || out->n_dims > FIRN_TENSOR_DIMS_MAX || !is_zero) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "section %u is of no known form", index);
    }
    for (uint32_t i = 0; i < FIRN_TENSOR_DIMS_MAX; i++) {
        out->shape[i] = firni_get_u32(at + 8 + 4 * i);
        if (i >= out->n_dims && out->shape[i] != 0) {
            return firni_fail(err, FIRN_ERR_CORRUPT, "section %u has more dimensions than it names", index);
        }
    }
    if (out->n_bytes == 0 || section_shape_bytes(out) != out->n_bytes) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "section %u: shape and length disagree", index);
    }
    if (at[60] > FIRNI_CODEC_PLANES || (out->codec != FIRNI_CODEC_NONE) != (out->stored_bytes != 0) ||
        out->stored_bytes >= out->n_bytes) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "section %u is stored in no known way", index);
    }
    return FIRN_OK;
}

/* Sections lie inside the images, in ascending order, without overlap; their kinds fit the record's. */
static firn_status check_section_place(const firni_record *record, uint32_t index, firn_error *err)
{
    const firni_section *section = &record->sections[index];
    const uint64_t begin_min =
        index == 0 ? record->header_bytes
                   : record->sections[index - 1].offset + firni_section_stored(&record->sections[index - 1]);
    if (section->offset < begin_min || section->offset > record->record_bytes ||
        firni_section_stored(section) > record->record_bytes - section->offset ||
        (section->codec != FIRNI_CODEC_NONE && record->plain_bytes == 0)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "section %u lies outside of its place", index);
    }
    const bool is_attachment = section->kind == FIRNI_SECTION_METADATA || section->kind == FIRNI_SECTION_TENSOR;
    const bool fits = record->kind == FIRNI_RECORD_OBJECT       ? is_attachment
                      : record->kind == FIRNI_RECORD_CHECKPOINT ? section->kind == FIRNI_SECTION_STATE
                                                                : section->kind == FIRNI_SECTION_PLANE;
    if (!fits) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "section %u does not belong into a record of kind %u", index,
                          (unsigned)record->kind);
    }
    return FIRN_OK;
}

/* Count, position and digest of the tokens. The digest binds them to everything before: a record that was put in
 * another's place does not pass as its successor. */
static firn_status check_tokens(const uint8_t *bytes, const firni_record *record, firn_error *err)
{
    const uint32_t n = record->n_tokens;
    const bool count_fits = (record->kind == FIRNI_RECORD_BLOCK && n == FIRN_BLOCK_TOKENS) ||
                            (record->kind == FIRNI_RECORD_TAIL && n > 0 && n < FIRN_BLOCK_TOKENS) ||
                            (record->kind == FIRNI_RECORD_CHECKPOINT && n > 0 && n <= FIRN_BLOCK_TOKENS) ||
                            (record->kind == FIRNI_RECORD_OBJECT && n < FIRN_BLOCK_TOKENS);
    if (!count_fits || record->first_token % FIRN_BLOCK_TOKENS != 0) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record of kind %u with %u tokens at %u", (unsigned)record->kind, n,
                          record->first_token);
    }
    for (uint32_t i = n; i < FIRN_BLOCK_TOKENS; i++) {
        if (firni_get_u32(bytes + 192 + 4 * (size_t)i) != 0) {
            return firni_fail(err, FIRN_ERR_CORRUPT, "a record of %u tokens has a token at %u", n, i);
        }
    }
    const firn_digest digest = firni_chain_record(record->kind, &record->parent, record->tokens, n);
    if (!firni_digest_equal(&digest, &record->digest)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record's digest is not that of its tokens");
    }
    return FIRN_OK;
}

static void decode_fixed(const uint8_t *bytes, firni_record *out)
{
    out->kind = (firni_record_kind)(firni_get_u32(bytes + 28) & 0xffffffu); /* two bytes are zero, or it is none */
    out->priority = (int8_t)bytes[31];
    out->record_bytes = firni_get_u64(bytes + 40);
    out->created_wall_ns = firni_get_u64(bytes + 48);
    out->first_token = firni_get_u32(bytes + 56);
    out->n_tokens = firni_get_u32(bytes + 60);
    memcpy(out->identity.bytes, bytes + 64, FIRN_DIGEST_BYTES);
    memcpy(out->ns.bytes, bytes + 96, FIRN_DIGEST_BYTES);
    memcpy(out->parent.bytes, bytes + 128, FIRN_DIGEST_BYTES);
    memcpy(out->digest.bytes, bytes + 160, FIRN_DIGEST_BYTES);
    for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
        out->tokens[i] = firni_get_u32(bytes + 192 + 4 * (size_t)i);
    }
}

/* Whether names and links are where they belong. A chain says once what it belongs to, where it begins: at token 0, or
 * where it goes on from a record of a namespace above. */
static bool names_fit(const firni_record *record, uint8_t links)
{
    const uint32_t n_links = firni_record_links_bytes(&record->links);
    return record->n_ns <= FIRN_NAMESPACE_BYTES_MAX && record->n_text <= FIRNI_RECORD_TEXT_BYTES_MAX && links <= 3 &&
           record->header_bytes ==
               firni_record_header_bytes(record->n_sections, record->n_ns + record->n_text + n_links) &&
           (record->first_token == 0 || (record->n_text == 0 && (record->n_ns == 0 || n_links > 0))) &&
           memchr(record->ns_name, '\0', record->n_ns) == NULL;
}

/* Behind the names; within the header, whose size was compared with theirs. */
static void decode_links(const uint8_t *at, firni_record_links *links)
{
    if (links->has_before) {
        memcpy(links->before.bytes, at, FIRN_DIGEST_BYTES);
        at += FIRN_DIGEST_BYTES;
    }
    if (links->has_under) {
        memcpy(links->under.bytes, at, FIRN_DIGEST_BYTES);
    }
}

/* What an index says of the record. */
static firn_status decode_annex(const uint8_t *header, firni_record *out, firn_error *err)
{
    const uint8_t *at = header + FIRNI_RECORD_FIXED_BYTES + (size_t)out->n_sections * FIRNI_SECTION_BYTES;
    memcpy(out->root.bytes, at, FIRN_DIGEST_BYTES);
    out->segment = firni_get_u32(at + 32);
    out->reusable_from = firni_get_u32(at + 36);
    out->offset = firni_get_u64(at + 40);
    out->n_full = firni_get_u16(at + 48);
    out->n_window = firni_get_u16(at + 50);
    out->n_fixed = firni_get_u16(at + 52);
    out->n_ns = firni_get_u16(at + 54);
    out->n_text = firni_get_u32(at + 56) & 0xffffffu;
    out->links = (firni_record_links){ .has_before = at[59] & 1, .has_under = at[59] >> 1 & 1 };
    out->plain_bytes = (uint64_t)firni_get_u32(at + 60) * FIRNI_RECORD_ALIGN;
    out->ns_name = (const char *)at + FIRNI_RECORD_ANNEX_BYTES;
    out->text = out->ns_name + out->n_ns;
    if (!names_fit(out, at[59])) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record's names do not fit its header");
    }
    decode_links((const uint8_t *)out->text + out->n_text, &out->links);
    if (out->priority < FIRN_PRIORITY_MIN || out->priority > FIRN_PRIORITY_MAX) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record of priority %d", out->priority);
    }
    if (out->plain_bytes != 0 && (out->plain_bytes <= out->record_bytes || out->plain_bytes > FIRNI_RECORD_BYTES_MAX)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a packed record is not smaller than it was");
    }
    return FIRN_OK;
}

/* Of a packed record: what is unpacked has room in the plain one. Each section is bounded by its own shape, and so is
 * their sum. */
static firn_status check_plain_bytes(const firni_record *record, firn_error *err)
{
    const uint64_t n_bytes_max = record->plain_bytes == 0 ? record->record_bytes : record->plain_bytes;
    uint64_t n_bytes = record->header_bytes;
    for (uint32_t i = 0; i < record->n_sections; i++) {
        n_bytes += record->sections[i].n_bytes;
    }
    return n_bytes <= n_bytes_max ? FIRN_OK
                                  : firni_fail(err, FIRN_ERR_CORRUPT, "sections are larger than their record was");
}

firn_status firni_record_decode(const uint8_t *bytes, size_t n_bytes, uint64_t record_bytes_max,
                                firni_section *sections, uint32_t sections_max, firni_record *out, firn_error *err)
{
    memset(out, 0, sizeof *out);
    if (n_bytes < FIRNI_RECORD_FIXED_BYTES) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "%zu bytes are less than a record's header", n_bytes);
    }
    /* 1. Sizes, then the checksum: after it, damage is excluded and what follows guards against a wrong writer. */
    firn_status status = firni_record_peek(bytes, &out->header_bytes, &out->n_sections, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (out->header_bytes > n_bytes) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a header of %u bytes is cut at %zu", out->header_bytes, n_bytes);
    }
    const firni_checksum stored = { .low = firni_get_u64(bytes + 8), .high = firni_get_u64(bytes + 16) };
    if (!firni_checksum_equal(stored, firni_checksum_of(bytes + 24, out->header_bytes - 24))) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record's header does not match its checksum");
    }
    if (out->n_sections > sections_max) {
        return firni_fail(err, FIRN_ERR_INVALID, "a record with %u sections, expected at most %u", out->n_sections,
                          sections_max);
    }
    /* 2. The fixed part. */
    decode_fixed(bytes, out);
    /* Blocks and tails of a model without token blocks are headers alone; the other kinds exist for what they hold. */
    const bool may_be_empty = out->kind == FIRNI_RECORD_BLOCK || out->kind == FIRNI_RECORD_TAIL;
    if (out->n_sections == 0 && (!may_be_empty || out->record_bytes != out->header_bytes)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record of kind %u without a section", (unsigned)out->kind);
    }
    if (out->record_bytes < out->header_bytes || out->record_bytes > record_bytes_max ||
        out->record_bytes > FIRNI_RECORD_BYTES_MAX || out->record_bytes % FIRNI_RECORD_ALIGN != 0) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "a record's length is out of range");
    }
    status = decode_annex(bytes, out, err);
    if (status == FIRN_OK) {
        status = check_tokens(bytes, out, err);
    }
    /* 3. The sections, each against the record's length and its predecessor. */
    out->sections = sections;
    for (uint32_t i = 0; i < out->n_sections && status == FIRN_OK; i++) {
        const uint8_t *at = bytes + FIRNI_RECORD_FIXED_BYTES + (size_t)i * FIRNI_SECTION_BYTES;
        status = decode_section(at, i, &sections[i], err);
        if (status == FIRN_OK) {
            status = check_section_place(out, i, err);
        }
    }
    return status == FIRN_OK ? check_plain_bytes(out, err) : status;
}

uint64_t firni_section_stored(const firni_section *section)
{
    return section->codec != FIRNI_CODEC_NONE ? section->stored_bytes : section->n_bytes;
}

uint32_t firni_record_verify_sections(const firni_record *record, const uint8_t *record_start)
{
    for (uint32_t i = 0; i < record->n_sections; i++) {
        const firni_section *section = &record->sections[i];
        assert(section->codec == FIRNI_CODEC_NONE && section->offset + section->n_bytes <= record->record_bytes);
        const firni_checksum found = firni_checksum_of(record_start + section->offset, (size_t)section->n_bytes);
        if (!firni_checksum_equal(found, section->checksum)) {
            return i;
        }
    }
    return record->n_sections;
}
