/*
 * The head of a file of packed weights, as packed_file.h draws it. Owns the layout of bytes; opens nothing, and trusts
 * no number that it has not compared with the size of the file.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "base/xxh3.h"
#include "model/gguf_impl.h"
#include "model/packed_file.h"
#include "record/bytes_impl.h"

#define FORMAT_VERSION 1u
#define PANELS_BYTES_MAX ((uint64_t)1 << 48) /* so that sums of two stay far from overflow, and chunks within 32 bits */

static const char magic[8] = { 'F', 'I', 'R', 'N', 'P', 'A', 'C', 'K' };

enum {
    AT_VERSION = 8,
    AT_PACKING = 12,
    AT_BYTE_ORDER = 16,
    AT_N_ENTRIES = 20,
    AT_IDENTITY = 24,
    AT_FILE_BYTES = 56,
    AT_PANELS = 64,
    AT_SOURCE_BYTES = 72,
    AT_SOURCE_TIME = 80,
    AT_LEN_PATH = 88,
    AT_N_CHUNKS = 92,
    AT_SUM = 96,
    SUM_BYTES = 8,
    /* of an entry */
    ENTRY_TYPE = 64,
    ENTRY_ROWS = 68,
    ENTRY_COLS = 72,
    ENTRY_EACH = 76,
    ENTRY_OFFSET = 80,
    ENTRY_BYTES = 88,
};

static_assert(AT_SUM + SUM_BYTES == FIRNI_PACKED_FIXED_BYTES && ENTRY_BYTES + 8 == FIRNI_PACKED_ENTRY_BYTES &&
                  FIRNI_TENSOR_NAME_BYTES == ENTRY_TYPE,
              "the layout is what the header draws");

static uint64_t chunks_of(uint64_t file_bytes)
{
    return (file_bytes + FIRNI_PACKED_CHUNK_BYTES - 1) / FIRNI_PACKED_CHUNK_BYTES;
}

/* Where the parts behind the fixed one are: a function of three small numbers, for writer and reader alike. */
static void place_parts(firni_packed_head *head)
{
    head->entries_offset = firni_round_up(FIRNI_PACKED_FIXED_BYTES + (uint64_t)head->source.len_path, 8);
    head->sums_offset = head->entries_offset + (uint64_t)head->n_entries * FIRNI_PACKED_ENTRY_BYTES;
    head->panels_offset = firni_round_up(head->sums_offset + (uint64_t)head->n_chunks * SUM_BYTES, FIRNI_PACKED_ALIGN);
}

/* The number of checksums depends on the size of the file, and this on the number of checksums, so the room for them is
 * made for as many as the panels need, the rest of the head, and one more for the checksums' own room. */
bool firni_packed_head_plan(const firni_packed_source *source, firni_packed_entry *entries, uint32_t n_entries,
                            firni_packed_head *out)
{
    assert(source->len_path <= FIRNI_PACKED_PATH_BYTES_MAX && n_entries <= FIRNI_GGUF_TENSORS_MAX);
    *out = (firni_packed_head){ .source = *source, .n_entries = n_entries };
    uint64_t panels_bytes = 0;
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].n_bytes > PANELS_BYTES_MAX || panels_bytes > PANELS_BYTES_MAX) {
            return false;
        }
        panels_bytes += firni_round_up(entries[i].n_bytes, FIRNI_PACKED_ALIGN);
    }
    /* Settles after a round or two: a chunk more of checksums is 8 bytes, a chunk of file is 2 MiB. */
    for (uint64_t n_chunks = 0;;) {
        out->n_chunks = (uint32_t)n_chunks;
        place_parts(out);
        out->file_bytes = out->panels_offset + panels_bytes;
        if (chunks_of(out->file_bytes) == n_chunks) {
            break;
        }
        n_chunks = chunks_of(out->file_bytes);
    }
    uint64_t offset = out->panels_offset;
    for (uint32_t i = 0; i < n_entries; i++) {
        entries[i].offset = offset;
        offset += firni_round_up(entries[i].n_bytes, FIRNI_PACKED_ALIGN);
    }
    assert(offset == out->file_bytes);
    return true;
}

static void encode_entry(const firni_packed_entry *entry, uint8_t *out)
{
    memcpy(out, entry->name, strlen(entry->name));
    firni_put_u32(out + ENTRY_TYPE, (uint32_t)entry->type);
    firni_put_u32(out + ENTRY_ROWS, entry->n_rows);
    firni_put_u32(out + ENTRY_COLS, entry->n_cols);
    firni_put_u32(out + ENTRY_EACH, entry->n_each);
    firni_put_u64(out + ENTRY_OFFSET, entry->offset);
    firni_put_u64(out + ENTRY_BYTES, entry->n_bytes);
}

static uint64_t sum_of(const firni_packed_head *head, const uint8_t *bytes)
{
    const size_t rest_bytes = (size_t)head->panels_offset - FIRNI_PACKED_FIXED_BYTES;
    return XXH3_64bits_withSeed(bytes, AT_SUM, XXH3_64bits(bytes + FIRNI_PACKED_FIXED_BYTES, rest_bytes));
}

void firni_packed_head_encode(const firni_packed_head *head, const firni_packed_entry *entries, const uint64_t *sums,
                              uint8_t *out)
{
    const uint32_t byte_order = 1;
    memset(out, 0, (size_t)head->panels_offset);
    memcpy(out, magic, sizeof magic);
    firni_put_u32(out + AT_VERSION, FORMAT_VERSION);
    firni_put_u32(out + AT_PACKING, FIRNI_PACKING_VERSION);
    memcpy(out + AT_BYTE_ORDER, &byte_order, sizeof byte_order);
    firni_put_u32(out + AT_N_ENTRIES, head->n_entries);
    memcpy(out + AT_IDENTITY, head->source.identity, sizeof head->source.identity);
    firni_put_u64(out + AT_FILE_BYTES, head->file_bytes);
    firni_put_u64(out + AT_PANELS, head->panels_offset);
    firni_put_u64(out + AT_SOURCE_BYTES, head->source.n_bytes);
    firni_put_u64(out + AT_SOURCE_TIME, head->source.modified_ns);
    firni_put_u32(out + AT_LEN_PATH, head->source.len_path);
    firni_put_u32(out + AT_N_CHUNKS, head->n_chunks);
    memcpy(out + FIRNI_PACKED_FIXED_BYTES, head->source.path, head->source.len_path);
    for (uint32_t i = 0; i < head->n_entries; i++) {
        encode_entry(&entries[i], out + head->entries_offset + (size_t)i * FIRNI_PACKED_ENTRY_BYTES);
    }
    for (uint32_t i = 0; i < head->n_chunks; i++) {
        firni_put_u64(out + head->sums_offset + (size_t)i * SUM_BYTES, sums[i]);
    }
    firni_put_u64(out + AT_SUM, sum_of(head, out));
}

/* ---- reading ---- */

static firn_status decode_versions(const uint8_t *bytes, firn_error *err)
{
    uint32_t byte_order;
    memcpy(&byte_order, bytes + AT_BYTE_ORDER, sizeof byte_order);
    const uint32_t version = firni_get_u32(bytes + AT_VERSION);
    const uint32_t packing = firni_get_u32(bytes + AT_PACKING);
    if (memcmp(bytes, magic, sizeof magic) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "not a file of packed weights");
    }
    if (version != FORMAT_VERSION || packing != FIRNI_PACKING_VERSION) {
        return firni_fail(err, FIRN_ERR_FORMAT, "of version %lu and packing %lu; this build has %u and %u",
                          (unsigned long)version, (unsigned long)packing, FORMAT_VERSION, FIRNI_PACKING_VERSION);
    }
    if (byte_order != 1) {
        return firni_fail(err, FIRN_ERR_FORMAT, "packed on a machine of another byte order");
    }
    return FIRN_OK;
}

firn_status firni_packed_head_decode(const uint8_t *bytes, uint64_t n_bytes, uint64_t file_bytes,
                                     firni_packed_head *out, firn_error *err)
{
    *out = (firni_packed_head){ .n_entries = 0 };
    if (n_bytes < FIRNI_PACKED_FIXED_BYTES || n_bytes > file_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "too short (%llu bytes)", (unsigned long long)n_bytes);
    }
    const firn_status status = decode_versions(bytes, err);
    if (status != FIRN_OK) {
        return status;
    }
    *out = (firni_packed_head){
        .source = {
            .n_bytes = firni_get_u64(bytes + AT_SOURCE_BYTES),
            .modified_ns = firni_get_u64(bytes + AT_SOURCE_TIME),
            .len_path = firni_get_u32(bytes + AT_LEN_PATH),
        },
        .file_bytes = firni_get_u64(bytes + AT_FILE_BYTES),
        .n_entries = firni_get_u32(bytes + AT_N_ENTRIES),
        .n_chunks = firni_get_u32(bytes + AT_N_CHUNKS),
    };
    memcpy(out->source.identity, bytes + AT_IDENTITY, sizeof out->source.identity);
    if (out->file_bytes != file_bytes || file_bytes > 2 * PANELS_BYTES_MAX ||
        out->n_chunks != chunks_of(file_bytes)) {
        return firni_fail(err, FIRN_ERR_FORMAT, "says %llu bytes and %lu checksums, and has %llu bytes",
                          (unsigned long long)out->file_bytes, (unsigned long)out->n_chunks,
                          (unsigned long long)file_bytes);
    }
    if (out->source.len_path > FIRNI_PACKED_PATH_BYTES_MAX || out->n_entries > FIRNI_GGUF_TENSORS_MAX ||
        FIRNI_PACKED_FIXED_BYTES + (uint64_t)out->source.len_path > n_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "a path of %lu bytes and %lu entries do not fit",
                          (unsigned long)out->source.len_path, (unsigned long)out->n_entries);
    }
    const void *path = bytes + FIRNI_PACKED_FIXED_BYTES;
    out->source.path = path;
    place_parts(out);
    if (out->panels_offset != firni_get_u64(bytes + AT_PANELS) || out->panels_offset > file_bytes) {
        return firni_fail(err, FIRN_ERR_FORMAT, "panels at %llu instead of %llu",
                          (unsigned long long)firni_get_u64(bytes + AT_PANELS), (unsigned long long)out->panels_offset);
    }
    return FIRN_OK;
}

void firni_packed_entry_decode(const firni_packed_head *head, const uint8_t *bytes, uint32_t index,
                               firni_packed_entry *out)
{
    assert(index < head->n_entries);
    const uint8_t *at = bytes + head->entries_offset + (size_t)index * FIRNI_PACKED_ENTRY_BYTES;
    *out = (firni_packed_entry){
        .type = (firni_weight_type)firni_get_u32(at + ENTRY_TYPE),
        .n_rows = firni_get_u32(at + ENTRY_ROWS),
        .n_cols = firni_get_u32(at + ENTRY_COLS),
        .n_each = firni_get_u32(at + ENTRY_EACH),
        .offset = firni_get_u64(at + ENTRY_OFFSET),
        .n_bytes = firni_get_u64(at + ENTRY_BYTES),
    };
    memcpy(out->name, at, sizeof out->name);
}

uint64_t firni_packed_sum_decode(const firni_packed_head *head, const uint8_t *bytes, uint32_t chunk)
{
    assert(chunk < head->n_chunks);
    return firni_get_u64(bytes + head->sums_offset + (size_t)chunk * SUM_BYTES);
}

/* Behind a good checksum these are a writer's faults, not a disk's; they are looked for all the same, since the panels
 * are read without further checks. */
firn_status firni_packed_head_verify(const firni_packed_head *head, const uint8_t *bytes, firn_error *err)
{
    if (sum_of(head, bytes) != firni_get_u64(bytes + AT_SUM)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "its head is damaged");
    }
    for (uint32_t i = 0; i < head->n_entries; i++) {
        firni_packed_entry entry;
        firni_packed_entry_decode(head, bytes, i, &entry);
        if ((uint32_t)entry.type >= FIRNI_WEIGHT_TYPES || entry.name[sizeof entry.name - 1] != '\0' ||
            entry.offset % FIRNI_PACKED_ALIGN != 0 || entry.offset < head->panels_offset ||
            entry.offset > head->file_bytes || entry.n_bytes > head->file_bytes - entry.offset) {
            return firni_fail(err, FIRN_ERR_FORMAT, "entry %lu lies outside of the file", (unsigned long)i);
        }
    }
    return FIRN_OK;
}

void firni_packed_chunk_range(const firni_packed_head *head, uint32_t chunk, uint64_t *begin, uint64_t *end)
{
    const uint64_t first = (uint64_t)chunk * FIRNI_PACKED_CHUNK_BYTES;
    const uint64_t last = head->file_bytes - first < FIRNI_PACKED_CHUNK_BYTES ? head->file_bytes
                                                                             : first + FIRNI_PACKED_CHUNK_BYTES;
    assert(chunk < head->n_chunks);
    *begin = first > head->panels_offset ? first : head->panels_offset;
    *begin = *begin < last ? *begin : last;
    *end = last;
}
