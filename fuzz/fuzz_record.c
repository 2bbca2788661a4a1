/*
 * Record headers from arbitrary bytes: whatever is accepted is consistent, fits into what there is, and encodes back to
 * the same bytes; nothing else happens.
 *
 * The fuzzer would never guess a checksum, so every input is tried twice: as it is, and sealed.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "record/record_impl.h"

#define SECTIONS_MAX 300u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_object(const firni_record *record, const uint8_t *bytes, size_t size)
{
    firn_attachment *attachments;
    uint32_t n_attachments;
    if (record->record_bytes > size) {
        return;
    }
    if (firni_attachments_decode(record, bytes + record->header_bytes, NULL, &attachments, &n_attachments, NULL) ==
        FIRN_OK) {
        assert(n_attachments <= FIRNI_ATTACHMENTS_MAX);
        for (uint32_t a = 0; a < n_attachments; a++) {
            assert(strlen(attachments[a].schema) <= FIRNI_ATTACHMENT_SCHEMA_MAX);
        }
        firni_attachments_free(NULL, attachments, n_attachments);
    }
}

static void decode(const uint8_t *bytes, size_t size)
{
    firni_section *sections = malloc(SECTIONS_MAX * sizeof *sections);
    firni_record record;
    const firn_status status = firni_record_decode(bytes, size, size, sections, SECTIONS_MAX, &record, NULL);
    if (status == FIRN_OK) {
        assert(record.header_bytes <= size && record.record_bytes <= size && record.n_sections <= SECTIONS_MAX);
        uint64_t end = record.header_bytes;
        for (uint32_t i = 0; i < record.n_sections; i++) {
            assert(sections[i].offset >= end);
            end = sections[i].offset + sections[i].n_bytes;
            assert(end <= record.record_bytes);
        }
        if (record.plain_bytes == 0) {
            (void)firni_record_verify_sections(&record, bytes);
        }
        if (record.kind == FIRNI_RECORD_OBJECT) {
            decode_object(&record, bytes, size);
        }
        uint8_t *again = malloc(record.header_bytes);
        firni_record_encode(&record, again);
        /* Only the bytes after the names are free, and they are covered by the checksum. */
        assert(memcmp(again + 24, bytes + 24,
                      FIRNI_RECORD_FIXED_BYTES - 24 + (size_t)record.n_sections * FIRNI_SECTION_BYTES +
                          FIRNI_RECORD_ANNEX_BYTES + record.n_ns + record.n_text) == 0);
        free(again);
    }
    free(sections);
}

/* Makes magic, version, header size, checksum and digest true, so that the checks behind them are reached. */
static void seal(uint8_t *bytes, size_t size)
{
    const uint8_t magic[8] = { 0x89, 'F', 'I', 'R', 'N', '\r', '\n', 0x1a };
    memcpy(bytes, magic, sizeof magic);
    firni_put_u32(bytes + 24, FIRNI_RECORD_VERSION);
    const uint32_t n_sections = firni_get_u32(bytes + 36);
    const size_t annex = FIRNI_RECORD_FIXED_BYTES + (size_t)n_sections * FIRNI_SECTION_BYTES;
    const uint32_t n_names = annex + FIRNI_RECORD_ANNEX_BYTES <= size
                                 ? firni_get_u16(bytes + annex + 54) + firni_get_u32(bytes + annex + 56)
                                 : 0;
    firni_put_u32(bytes + 32, firni_record_header_bytes(n_sections, n_names));
    firn_digest parent;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    const uint32_t n_tokens = firni_get_u32(bytes + 60);
    memcpy(parent.bytes, bytes + 128, sizeof parent.bytes);
    for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
        tokens[i] = firni_get_u32(bytes + 192 + 4 * (size_t)i);
    }
    if (n_tokens <= FIRN_BLOCK_TOKENS) {
        const firni_record_kind kind = (firni_record_kind)firni_get_u32(bytes + 28);
        const firn_digest digest = firni_chain_record(kind, &parent, tokens, n_tokens);
        memcpy(bytes + 160, digest.bytes, sizeof digest.bytes);
    }
    const uint32_t header_bytes = firni_get_u32(bytes + 32);
    if (header_bytes >= 24 && header_bytes <= size) {
        const firni_checksum checksum = firni_checksum_of(bytes + 24, header_bytes - 24);
        firni_put_u64(bytes + 8, checksum.low);
        firni_put_u64(bytes + 16, checksum.high);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode(data, size);
    /* Headers are pages; most of one is padding, which the fuzzer need not invent. */
    const size_t n_bytes = (size + 3 * FIRNI_RECORD_ALIGN) / FIRNI_RECORD_ALIGN * FIRNI_RECORD_ALIGN;
    uint8_t *bytes = calloc(1, n_bytes);
    if (bytes == NULL) {
        return 0;
    }
    memcpy(bytes, data, size);
    seal(bytes, n_bytes);
    decode(bytes, n_bytes);
    free(bytes);
    return 0;
}
