/*
 * Writing record headers, and the checksums of what they describe. The byte layout is drawn in record_impl.h.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "base/xxh3.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

static const uint8_t magic[8] = { 0x89, 'F', 'I', 'R', 'N', '\r', '\n', 0x1a };

firni_checksum firni_checksum_of(const void *bytes, size_t n_bytes)
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, n_bytes);
    return (firni_checksum){ .low = hash.low64, .high = hash.high64 };
}

bool firni_checksum_equal(firni_checksum a, firni_checksum b)
{
    return a.low == b.low && a.high == b.high;
}

uint32_t firni_record_links_bytes(const firni_record_links *links)
{
    return ((uint32_t)links->has_before + (uint32_t)links->has_under) * FIRN_DIGEST_BYTES;
}

uint32_t firni_record_header_bytes(uint32_t n_sections, uint32_t n_names)
{
    const uint32_t n_names_max = FIRN_NAMESPACE_BYTES_MAX + FIRNI_RECORD_TEXT_BYTES_MAX + FIRNI_RECORD_LINKS_BYTES_MAX;
    if (n_sections > FIRNI_RECORD_SECTIONS_MAX || n_names > n_names_max) {
        return 0;
    }
    const uint32_t used =
        FIRNI_RECORD_FIXED_BYTES + n_sections * FIRNI_SECTION_BYTES + FIRNI_RECORD_ANNEX_BYTES + n_names;
    const uint32_t header_bytes = (uint32_t)firni_round_up(used, FIRNI_RECORD_ALIGN);
    return header_bytes <= FIRNI_RECORD_HEADER_BYTES_MAX ? header_bytes : 0;
}

static void encode_section(const firni_section *section, uint8_t *at)
{
    firni_put_u16(at + 0, (uint16_t)section->kind);
    firni_put_u16(at + 2, section->layer);
    firni_put_u16(at + 4, section->plane);
    at[6] = (uint8_t)section->dtype;
    at[7] = (uint8_t)section->n_dims;
    for (uint32_t i = 0; i < FIRN_TENSOR_DIMS_MAX; i++) {
        firni_put_u32(at + 8 + 4 * i, i < section->n_dims ? section->shape[i] : 0);
    }
    firni_put_u64(at + 24, section->offset);
    firni_put_u64(at + 32, section->n_bytes);
    firni_put_u64(at + 40, section->checksum.low);
    firni_put_u64(at + 48, section->checksum.high);
    firni_put_u32(at + 56, section->stored_bytes);
    at[60] = (uint8_t)section->codec;
}

static void encode_annex(const firni_record *record, uint8_t *at)
{
    memcpy(at, record->root.bytes, FIRN_DIGEST_BYTES);
    firni_put_u32(at + 32, record->segment);
    firni_put_u32(at + 36, record->reusable_from);
    firni_put_u64(at + 40, record->offset);
    firni_put_u16(at + 48, record->n_full);
    firni_put_u16(at + 50, record->n_window);
    firni_put_u16(at + 52, record->n_fixed);
    firni_put_u16(at + 54, (uint16_t)record->n_ns);
    /* The text is shorter than 2^24: its highest byte says which links there are. */
    firni_put_u32(at + 56, record->n_text | (uint32_t)record->links.has_before << 24 |
                               (uint32_t)record->links.has_under << 25);
    firni_put_u32(at + 60, (uint32_t)(record->plain_bytes / FIRNI_RECORD_ALIGN));
    if (record->n_ns > 0) {
        memcpy(at + FIRNI_RECORD_ANNEX_BYTES, record->ns_name, record->n_ns);
    }
    if (record->n_text > 0) {
        memcpy(at + FIRNI_RECORD_ANNEX_BYTES + record->n_ns, record->text, record->n_text);
    }
    at += FIRNI_RECORD_ANNEX_BYTES + record->n_ns + record->n_text;
    if (record->links.has_before) {
        memcpy(at, record->links.before.bytes, FIRN_DIGEST_BYTES);
        at += FIRN_DIGEST_BYTES;
    }
    if (record->links.has_under) {
        memcpy(at, record->links.under.bytes, FIRN_DIGEST_BYTES);
    }
}

void firni_record_encode(const firni_record *record, uint8_t *out)
{
    const uint32_t n_links = firni_record_links_bytes(&record->links);
    assert(record->header_bytes ==
           firni_record_header_bytes(record->n_sections, record->n_ns + record->n_text + n_links));
    assert(record->header_bytes > 0 && (record->first_token == 0 || record->n_text == 0));
    assert(record->first_token == 0 || record->n_ns == 0 || n_links > 0);
    assert(record->priority >= FIRN_PRIORITY_MIN && record->priority <= FIRN_PRIORITY_MAX);
    assert(record->record_bytes % FIRNI_RECORD_ALIGN == 0 && record->record_bytes >= record->header_bytes);
    assert(record->plain_bytes % FIRNI_RECORD_ALIGN == 0 && record->plain_bytes / FIRNI_RECORD_ALIGN <= UINT32_MAX);
    assert(record->n_tokens <= FIRN_BLOCK_TOKENS && record->first_token % FIRN_BLOCK_TOKENS == 0);
    memset(out, 0, record->header_bytes);
    memcpy(out, magic, sizeof magic);
    firni_put_u32(out + 24, FIRNI_RECORD_VERSION);
    out[28] = (uint8_t)record->kind;
    out[31] = (uint8_t)record->priority;
    firni_put_u32(out + 32, record->header_bytes);
    firni_put_u32(out + 36, record->n_sections);
    firni_put_u64(out + 40, record->record_bytes);
    firni_put_u64(out + 48, record->created_wall_ns);
    firni_put_u32(out + 56, record->first_token);
    firni_put_u32(out + 60, record->n_tokens);
    memcpy(out + 64, record->identity.bytes, FIRN_DIGEST_BYTES);
    memcpy(out + 96, record->ns.bytes, FIRN_DIGEST_BYTES);
    memcpy(out + 128, record->parent.bytes, FIRN_DIGEST_BYTES);
    memcpy(out + 160, record->digest.bytes, FIRN_DIGEST_BYTES);
    for (uint32_t i = 0; i < record->n_tokens; i++) {
        firni_put_u32(out + 192 + 4 * (size_t)i, record->tokens[i]);
    }
    for (uint32_t i = 0; i < record->n_sections; i++) {
        encode_section(&record->sections[i], out + FIRNI_RECORD_FIXED_BYTES + (size_t)i * FIRNI_SECTION_BYTES);
    }
    encode_annex(record, out + FIRNI_RECORD_FIXED_BYTES + (size_t)record->n_sections * FIRNI_SECTION_BYTES);
    /* The checksum stands before everything it covers, so that it is computed in one pass. */
    const firni_checksum checksum = firni_checksum_of(out + 24, record->header_bytes - 24);
    firni_put_u64(out + 8, checksum.low);
    firni_put_u64(out + 16, checksum.high);
}
