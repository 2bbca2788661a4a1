/*
 * Packed sections: the bytes of a section as one zstd frame, where that is smaller.
 *
 *      plain     s0 b0 s1 b1 s2 b2 ...            elements of two bytes: low, high
 *      planes    s0 s1 s2 ... | b0 b1 b2 ...      low bytes do not compress, high bytes do: apart, they do well
 *      stored    XXH3-128 of the frame | frame
 *
 * Both ways are tried, and the smaller is kept: which one it is depends on what the numbers mean. The checksum in front
 * is compared before the decoder sees a byte, so the decoder is no way in for damage; a frame says how large its
 * content is, which must be what the section's shape says.
 *
 * Owns how the bytes of a section are coded, nothing of where they lie. A transform that has to come after (encryption)
 * takes what is stored as its input.
 *
 * Source: RFC 8878, through libzstd's stable interface. The context's memory is libzstd's own.
 */
#include <assert.h>
#include <string.h>
#include <zstd.h>

#include "base/base_impl.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

#define CHECKSUM_BYTES 16u
#define LEVEL          3   /* measured in docs/OPERATIONS.md: higher ones take more time and gain next to nothing */
#define GAIN_SHARE     16u /* a section is stored plain unless it shrinks by this part: then reading it is a copy */

struct firni_coder {
    const firn_env *env;
    ZSTD_CCtx *packer;   /* made with its first use, like the next */
    ZSTD_DCtx *unpacker;
    uint8_t *planes;     /* of one section */
    size_t planes_capacity;
    uint8_t *frame;      /* of one section */
    size_t frame_capacity;
};

firni_coder *firni_coder_create(const firn_env *env)
{
    firni_coder *coder = firni_calloc(env, 1, sizeof *coder);
    if (coder != NULL) {
        coder->env = env;
    }
    return coder;
}

void firni_coder_destroy(firni_coder *coder)
{
    if (coder != NULL) {
        (void)ZSTD_freeCCtx(coder->packer);
        (void)ZSTD_freeDCtx(coder->unpacker);
        firni_free(coder->env, coder->planes);
        firni_free(coder->env, coder->frame);
        firni_free(coder->env, coder);
    }
}

/* What was in the buffer is lost. */
static bool reserve(const firn_env *env, uint8_t **bytes, size_t *capacity, size_t n_bytes)
{
    if (n_bytes > *capacity) {
        firni_free(env, *bytes);
        *bytes = firni_calloc(env, n_bytes, 1);
        *capacity = *bytes != NULL ? n_bytes : 0;
    }
    return *bytes != NULL;
}

/* ---- byte planes ------------------------------------------------------------------------------------------------- */

static void split(const uint8_t *bytes, size_t n_elements, size_t width, uint8_t *out)
{
    for (size_t plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < n_elements; i++) {
            out[plane * n_elements + i] = bytes[i * width + plane];
        }
    }
}

static void join(const uint8_t *planes, size_t n_elements, size_t width, uint8_t *out)
{
    for (size_t plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < n_elements; i++) {
            out[i * width + plane] = planes[plane * n_elements + i];
        }
    }
}

/* ---- sections ---------------------------------------------------------------------------------------------------- */

/* One frame of n_parts equal parts into out[0..capacity); 0: it does not fit. Each part begins a block of the frame,
 * which has a table of symbols of its own: one table for high and low bytes together gains nothing. */
static size_t compress(firni_coder *coder, const uint8_t *bytes, size_t n_bytes, size_t n_parts, uint8_t *out,
                       size_t capacity)
{
    (void)ZSTD_CCtx_reset(coder->packer, ZSTD_reset_session_only);
    if (ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(coder->packer, n_bytes))) {
        return 0;
    }
    const size_t n_part = n_bytes / n_parts;
    ZSTD_outBuffer to = { .dst = out, .size = capacity };
    for (size_t i = 0; i < n_parts; i++) {
        const ZSTD_EndDirective directive = i + 1 < n_parts ? ZSTD_e_flush : ZSTD_e_end;
        ZSTD_inBuffer from = { .src = bytes + i * n_part, .size = n_part };
        /* Nothing is left inside, or there is no room for it. */
        if (ZSTD_compressStream2(coder->packer, &to, &from, directive) != 0) {
            return 0;
        }
    }
    return to.pos;
}

firn_status firni_section_pack(firni_coder *coder, firni_section *section, const uint8_t *bytes, uint8_t *out)
{
    const size_t n_bytes = (size_t)section->n_bytes, width = firn_dtype_bytes(section->dtype);
    section->codec = FIRNI_CODEC_NONE;
    section->stored_bytes = 0;
    const size_t n_bytes_max = n_bytes - n_bytes / GAIN_SHARE;
    if (n_bytes > UINT32_MAX || n_bytes_max <= CHECKSUM_BYTES || n_bytes_max == n_bytes) {
        memcpy(out, bytes, n_bytes);
        return FIRN_OK;
    }
    if (coder->packer == NULL) {
        coder->packer = ZSTD_createCCtx();
        if (coder->packer == NULL ||
            ZSTD_isError(ZSTD_CCtx_setParameter(coder->packer, ZSTD_c_compressionLevel, LEVEL))) {
            return FIRN_ERR_NO_MEMORY;
        }
    }
    const size_t capacity = n_bytes_max - CHECKSUM_BYTES;
    size_t n_frame = compress(coder, bytes, n_bytes, 1, out + CHECKSUM_BYTES, capacity);
    section->codec = n_frame > 0 ? FIRNI_CODEC_ZSTD : FIRNI_CODEC_NONE;
    if (width > 1) {
        const size_t limit = n_frame > 0 ? n_frame : capacity;
        if (!reserve(coder->env, &coder->planes, &coder->planes_capacity, n_bytes) ||
            !reserve(coder->env, &coder->frame, &coder->frame_capacity, limit)) {
            return FIRN_ERR_NO_MEMORY;
        }
        split(bytes, n_bytes / width, width, coder->planes);
        const size_t n_planes = compress(coder, coder->planes, n_bytes, width, coder->frame, limit);
        if (n_planes > 0 && (n_frame == 0 || n_planes < n_frame)) {
            memcpy(out + CHECKSUM_BYTES, coder->frame, n_planes);
            n_frame = n_planes;
            section->codec = FIRNI_CODEC_PLANES;
        }
    }
    if (section->codec == FIRNI_CODEC_NONE) {
        memcpy(out, bytes, n_bytes);
        return FIRN_OK;
    }
    const firni_checksum checksum = firni_checksum_of(out + CHECKSUM_BYTES, n_frame);
    firni_put_u64(out, checksum.low);
    firni_put_u64(out + 8, checksum.high);
    section->stored_bytes = (uint32_t)(CHECKSUM_BYTES + n_frame);
    return FIRN_OK;
}

/* Whether what is stored is one whole frame of the section's size. Before anything is allocated for it. */
static bool is_sound(const firni_section *section, const uint8_t *stored)
{
    if (section->codec == FIRNI_CODEC_NONE) {
        return true;
    }
    if (section->stored_bytes <= CHECKSUM_BYTES) {
        return false;
    }
    const uint8_t *frame = stored + CHECKSUM_BYTES;
    const size_t n_frame = section->stored_bytes - CHECKSUM_BYTES;
    const firni_checksum checksum = { .low = firni_get_u64(stored), .high = firni_get_u64(stored + 8) };
    return firni_checksum_equal(checksum, firni_checksum_of(frame, n_frame)) &&
           ZSTD_getFrameContentSize(frame, n_frame) == section->n_bytes &&
           ZSTD_findFrameCompressedSize(frame, n_frame) == n_frame;
}

firn_status firni_section_unpack(firni_coder *coder, const firni_section *section, const uint8_t *stored, uint8_t *out)
{
    const size_t n_bytes = (size_t)section->n_bytes, width = firn_dtype_bytes(section->dtype);
    if (section->codec == FIRNI_CODEC_NONE) {
        memcpy(out, stored, n_bytes);
        return FIRN_OK;
    }
    if (!is_sound(section, stored)) {
        return FIRN_ERR_CORRUPT;
    }
    const uint8_t *frame = stored + CHECKSUM_BYTES;
    const size_t n_frame = section->stored_bytes - CHECKSUM_BYTES;
    coder->unpacker = coder->unpacker != NULL ? coder->unpacker : ZSTD_createDCtx();
    const bool has_planes = section->codec == FIRNI_CODEC_PLANES;
    if (coder->unpacker == NULL ||
        (has_planes && !reserve(coder->env, &coder->planes, &coder->planes_capacity, n_bytes))) {
        return FIRN_ERR_NO_MEMORY;
    }
    if (ZSTD_decompressDCtx(coder->unpacker, has_planes ? coder->planes : out, n_bytes, frame, n_frame) != n_bytes) {
        return FIRN_ERR_CORRUPT;
    }
    if (has_planes) {
        join(coder->planes, n_bytes / width, width, out);
    }
    return FIRN_OK;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

firn_status firni_record_pack(firni_coder *coder, const firni_record *record, const uint8_t *bytes,
                              firni_section *sections, uint8_t *out_bytes, firni_record *out)
{
    assert(record->plain_bytes == 0);
    *out = *record;
    out->sections = sections;
    uint64_t at = record->header_bytes;
    for (uint32_t i = 0; i < record->n_sections; i++) {
        sections[i] = record->sections[i];
        const firn_status status =
            firni_section_pack(coder, &sections[i], bytes + record->sections[i].offset, out_bytes + at);
        if (status != FIRN_OK) {
            return status;
        }
        sections[i].offset = at;
        at += firni_section_stored(&sections[i]);
    }
    assert(at <= record->record_bytes); /* sections do not grow */
    out->record_bytes = firni_round_up(at, FIRNI_RECORD_ALIGN);
    out->plain_bytes = record->record_bytes;
    memset(out_bytes + at, 0, (size_t)(out->record_bytes - at));
    return FIRN_OK;
}

firn_status firni_record_verify(firni_coder *coder, const firni_record *record, const uint8_t *record_start)
{
    uint8_t *plain = NULL;
    size_t capacity = 0;
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < record->n_sections && status == FIRN_OK; i++) {
        const firni_section *section = &record->sections[i];
        const uint8_t *bytes = record_start + section->offset;
        if (section->codec != FIRNI_CODEC_NONE) {
            status = !is_sound(section, bytes)                                                  ? FIRN_ERR_CORRUPT
                     : !reserve(coder->env, &plain, &capacity, (size_t)section->n_bytes) ? FIRN_ERR_NO_MEMORY
                                                                 : firni_section_unpack(coder, section, bytes, plain);
            bytes = plain;
        }
        if (status == FIRN_OK &&
            !firni_checksum_equal(section->checksum, firni_checksum_of(bytes, (size_t)section->n_bytes))) {
            status = FIRN_ERR_CORRUPT;
        }
    }
    firni_free(coder->env, plain);
    return status;
}
