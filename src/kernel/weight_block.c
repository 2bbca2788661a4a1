/*
 * Blocks of the grouped weight formats: read from a file into one plain form (elements in the order of their columns,
 * scales beside them), and from there to f32 or into a panel. Owns the knowledge of where each format keeps its bits.
 *
 * Block layouts: ggml project, ggml-common.h (facts of the GGUF file format); the e2m1 and e8m0 numbers of mxfp4: OCP
 * Microscaling Formats specification 1.0, sections 5.3.3 and 5.4. Multi-byte numbers are little-endian.
 */
#include "kernel/weight_block.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernel/numbers.h"
#include "kernel/packed.h"

enum { GROUPS_MAX = 16, SUPER_GROUPS = 8, HALF_GROUP = FIRNI_GROUP / 2 };

typedef struct weight_block {
    uint8_t codes[FIRNI_BLOCK_COLS_MAX]; /* as packed: unsigned, except the bytes of q8_0 */
    uint16_t scale;                      /* f16 */
    uint16_t minimum;                    /* f16; in super blocks of the sign that is added */
    uint8_t exponent;                    /* mxfp4 */
    uint8_t group_scales[GROUPS_MAX];    /* super blocks; signed for q6_K */
    uint8_t group_minima[SUPER_GROUPS];
} weight_block;

/* ---- from a file ---------------------------------------------------------------------------------------------- */

static uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* 16 bytes hold elements 0 to 15 in their lower halves, 16 to 31 in their upper halves. */
static void read_nibbles_32(const uint8_t *bytes, uint8_t *codes)
{
    for (uint32_t i = 0; i < HALF_GROUP; i++) {
        codes[i] = bytes[i] & 15;
        codes[i + HALF_GROUP] = bytes[i] >> 4;
    }
}

/* The fifth bits of a group of 32: bit i of 4 bytes belongs to element i. */
static void read_fifth_bits_32(const uint8_t *bytes, uint8_t *codes)
{
    for (uint32_t i = 0; i < FIRNI_GROUP; i++) {
        codes[i] |= (uint8_t)((bytes[i / 8] >> i % 8 & 1) << 4);
    }
}

/* Scales and minima of q4_K and q5_K, 6 bits each, in 12 bytes: those of groups 0 to 3 in the lower 6 bits of bytes 0
 * to 3 and 4 to 7; of groups 4 to 7 the lower 4 bits in the two halves of bytes 8 to 11, the upper 2 on top of the
 * others. */
static void read_super_scales(const uint8_t *bytes, weight_block *out)
{
    for (uint32_t i = 0; i < 4; i++) {
        out->group_scales[i] = bytes[i] & 63;
        out->group_minima[i] = bytes[i + 4] & 63;
        out->group_scales[i + 4] = (uint8_t)((bytes[i + 8] & 15) | bytes[i] >> 6 << 4);
        out->group_minima[i + 4] = (uint8_t)(bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4);
    }
}

/* Each 64 elements of q4_K and q5_K: 32 bytes with the first 32 in their lower, the others in their upper halves. Bit g
 * of high byte i is the fifth bit of element i of group g. */
static void read_super_codes(const uint8_t *high, const uint8_t *low, weight_block *out)
{
    for (uint32_t g = 0; g < SUPER_GROUPS; g++) {
        for (uint32_t i = 0; i < FIRNI_GROUP; i++) {
            const uint8_t byte = low[g / 2 * FIRNI_GROUP + i];
            const uint8_t fifth = high == NULL ? 0 : high[i] >> g & 1;
            out->codes[g * FIRNI_GROUP + i] = (uint8_t)((g % 2 == 0 ? byte & 15 : byte >> 4) | fifth << 4);
        }
    }
}

/* Each 128 elements of q6_K: 64 bytes of lower halves (two bytes apart by 32 give four elements apart by 32), 32 bytes
 * of two upper bits for each of those four. */
static void read_q6_codes(const uint8_t *low, const uint8_t *high, weight_block *out)
{
    for (uint32_t k = 0; k < FIRNI_BLOCK_COLS_MAX; k++) {
        const uint32_t half = k / 128;
        const uint32_t quarter = k % 128 / 32;
        const uint8_t byte = low[half * 64 + quarter % 2 * 32 + k % 32];
        const uint8_t upper = high[half * 32 + k % 32] >> quarter * 2 & 3;
        out->codes[k] = (uint8_t)((quarter < 2 ? byte & 15 : byte >> 4) | upper << 4);
    }
}

/* File codes of mxfp4 are a sign and three bits of magnitude; ours are ranks in firni_mx_values, so that the lowest
 * value, which becomes 0 with the offset, has the code 0 (what the table gives for the empty upper byte of a word). */
static void read_mx_codes(const uint8_t *bytes, uint8_t *codes)
{
    read_nibbles_32(bytes, codes);
    for (uint32_t i = 0; i < FIRNI_GROUP; i++) {
        codes[i] = (uint8_t)(codes[i] < 8 ? 8 + codes[i] : 15 - codes[i]);
    }
}

static void read_block(firni_weight_type type, const uint8_t *block, weight_block *out)
{
    out->scale = load_u16(type == FIRNI_WEIGHT_Q6_K ? block + 208 : block);
    switch (type) {
    case FIRNI_WEIGHT_Q8_0: memcpy(out->codes, block + 2, FIRNI_GROUP); break;
    case FIRNI_WEIGHT_Q4_0: read_nibbles_32(block + 2, out->codes); break;
    case FIRNI_WEIGHT_Q4_1:
        out->minimum = load_u16(block + 2);
        read_nibbles_32(block + 4, out->codes);
        break;
    case FIRNI_WEIGHT_Q5_0:
        read_nibbles_32(block + 6, out->codes);
        read_fifth_bits_32(block + 2, out->codes);
        break;
    case FIRNI_WEIGHT_Q5_1:
        out->minimum = load_u16(block + 2);
        read_nibbles_32(block + 8, out->codes);
        read_fifth_bits_32(block + 4, out->codes);
        break;
    case FIRNI_WEIGHT_Q4_K:
    case FIRNI_WEIGHT_Q5_K:
        out->minimum = load_u16(block + 2) ^ 0x8000u; /* the file's are subtracted */
        read_super_scales(block + 4, out);
        read_super_codes(type == FIRNI_WEIGHT_Q5_K ? block + 16 : NULL,
                         block + (type == FIRNI_WEIGHT_Q5_K ? 48 : 16), out);
        break;
    case FIRNI_WEIGHT_Q6_K:
        read_q6_codes(block, block + 128, out);
        memcpy(out->group_scales, block + 192, GROUPS_MAX);
        break;
    default:
        assert(type == FIRNI_WEIGHT_MXFP4);
        out->exponent = block[0];
        read_mx_codes(block + 1, out->codes);
        break;
    }
}

/* ---- to f32 --------------------------------------------------------------------------------------------------- */

/* An element before the scale. */
static float integer_of(const firni_group_format *format, uint8_t code)
{
    switch (format->encoding) {
    case FIRNI_ENCODING_BYTES: return (float)(int8_t)code;
    case FIRNI_ENCODING_TABLE: return (float)firni_mx_values[code];
    default: return (float)(code - format->offset);
    }
}

/* Exact for finite scales: 11 bits times 6 or 8. */
static float scale_of(const firni_group_format *format, const weight_block *block, uint32_t group)
{
    const float scale = firni_f16_to_f32(block->scale);
    switch (format->scaling) {
    case FIRNI_SCALING_POWER: return firni_power_of_exponent(block->exponent) * 0.5f;
    case FIRNI_SCALING_SUPER: return scale * (float)(int8_t)block->group_scales[group];
    case FIRNI_SCALING_SUPER_MIN: return scale * (float)block->group_scales[group];
    default: return scale;
    }
}

void firni_weight_block_to_f32(firni_weight_type type, const uint8_t *block, float *out)
{
    const firni_group_format *format = &firni_group_formats[type];
    weight_block b = {.scale = 0};
    read_block(type, block, &b);
    for (uint32_t k = 0; k < format->block_cols; k++) {
        const uint32_t group = k / format->group_cols;
        const float scale = scale_of(format, &b, group);
        const float x = integer_of(format, b.codes[k]);
        if (firni_group_has_minima(format)) {
            const float factor = format->scaling == FIRNI_SCALING_SUPER_MIN ? (float)b.group_minima[group] : 1.0f;
            out[k] = fmaf(scale, x, firni_f16_to_f32(b.minimum) * factor);
        } else {
            out[k] = scale * x;
        }
    }
}

/* ---- into a panel --------------------------------------------------------------------------------------------- */

static void pack_header(const firni_group_format *format, const weight_block *b, uint8_t *header, uint32_t lane)
{
    void *start = header;
    firni_half_header *half = start;
    firni_super_header *super = start;
    firni_super_min_header *super_min = start;
    switch (format->scaling) {
    case FIRNI_SCALING_HALF: half->scales[lane] = b->scale; break;
    case FIRNI_SCALING_HALF_MIN:
        half->scales[lane] = b->scale;
        half->minima[lane] = b->minimum;
        break;
    case FIRNI_SCALING_POWER: header[lane] = b->exponent; break;
    case FIRNI_SCALING_SUPER:
        super->scales[lane] = b->scale;
        for (uint32_t g = 0; g < GROUPS_MAX; g++) {
            super->group_scales[g][lane] = (int8_t)b->group_scales[g];
        }
        break;
    case FIRNI_SCALING_SUPER_MIN:
        super_min->scales[lane] = b->scale;
        super_min->minima[lane] = b->minimum;
        for (uint32_t g = 0; g < SUPER_GROUPS; g++) {
            super_min->group_scales[g][lane] = b->group_scales[g];
            super_min->group_minima[g][lane] = b->group_minima[g];
        }
        break;
    }
}

/* One half (the first or second elements) of the pairs of a group. */
static void pack_words(const firni_group_format *format, const uint8_t *codes, uint32_t half, uint16_t *words,
                       uint32_t lane)
{
    const uint32_t bits = format->bits;
    const uint32_t n_words = format->group_cols / 2u * bits / 16u;
    const uint32_t n_fields = 16u / bits; /* of one word */
    const uint32_t n_left = 16u % bits;   /* bits at its top */
    uint32_t rest = 0;
    for (uint32_t pair = n_words * n_fields; pair < format->group_cols / 2u; pair++) {
        rest |= (uint32_t)codes[2 * pair + half] << (pair - n_words * n_fields) * bits;
    }
    for (uint32_t i = 0; i < n_words; i++) {
        uint32_t word = (rest >> n_left * i & ((1u << n_left) - 1u)) << (16u - n_left);
        for (uint32_t field = 0; field < n_fields; field++) {
            word |= (uint32_t)codes[2 * (i * n_fields + field) + half] << bits * field;
        }
        words[((size_t)i * FIRNI_PANEL_ROWS + lane) * 2 + half] = (uint16_t)word;
    }
}

/* q8_0 lies in a file as it is packed, but for the order. Loading such a model is little else than this, so it does
 * without the plain form. */
static void pack_bytes(const firni_group_format *format, const uint8_t *block, uint8_t *panel_block, uint32_t lane)
{
    uint8_t *elements = panel_block + format->header_bytes + (size_t)lane * 2;
    memcpy(panel_block + (size_t)lane * 2, block, 2);
    for (uint32_t pair = 0; pair < FIRNI_GROUP / 2; pair++) {
        memcpy(elements + (size_t)pair * FIRNI_PANEL_ROWS * 2, block + 2 + (size_t)pair * 2, 2);
    }
}

void firni_weight_block_pack(firni_weight_type type, const uint8_t *block, uint8_t *panel_block, uint32_t lane)
{
    const firni_group_format *format = &firni_group_formats[type];
    if (format->encoding == FIRNI_ENCODING_BYTES) {
        pack_bytes(format, block, panel_block, lane);
        return;
    }
    weight_block b = {.scale = 0};
    read_block(type, block, &b);
    pack_header(format, &b, panel_block, lane);
    for (uint32_t g = 0; g < (uint32_t)format->block_cols / format->group_cols; g++) {
        const uint8_t *codes = b.codes + (size_t)g * format->group_cols;
        void *words = panel_block + format->header_bytes + (size_t)g * format->group_bytes;
        pack_words(format, codes, 0, words, lane);
        pack_words(format, codes, 1, words, lane);
    }
}
