/*
 * packed: how weights and activations lie in memory for the matrix product.
 *
 * Weights are cut into panels of 16 rows, so that the 16 lanes of a vector are 16 outputs and each output is one chain
 * over K in one lane:
 *
 *   f32, f16, bf16   [K][16 rows] elements
 *   grouped formats  [K / 32 or K / 256] blocks: a header of scales, each [16 rows], then the elements of its groups
 *
 * Two neighbours in k of one row lie side by side because the 16-bit multiply-add of every instruction set sums pairs:
 *
 *   q8_0             [16 pairs of k][16 rows][2] signed bytes
 *   4, 5 and 6 bits  words of 16 bits, [words][16 rows][2]; each half of a pair has words of its own
 *
 * A word holds as many elements of consecutive pairs as fit, the first at the bottom:
 *
 *   bits  words of a group   pairs in each   bits left over at the top, together the last pairs
 *   4     4 (32 columns)     4               none
 *   5     5 (32 columns)     3               1 each: pair 15
 *   6     3 (16 columns)     2               4 each: pairs 6 and 7
 *
 * so a shift and a mask make 32 multiplicands, whatever the width of a register, and no bit is spent on padding.
 * Elements are stored unsigned; what a format subtracts from them (its offset) is put right by the activations, see
 * below. The packed form is as large as the file's, except for q4_K and q5_K, whose 12 bytes of 6-bit scales become 16.
 *
 * Activations for grouped weights come in segments of 256 columns, the last perhaps not full, so that what many tokens
 * have in one segment lies together and stays in a cache while panels pass:
 *
 *   i16 values [segments][n_tokens][256]
 *   f32 scales [segments][n_tokens][8]
 *   i32 starts [segments][n_tokens][8 or 16]   -offset * (sum of the group's activations), where each integer sum
 *                                              begins: sum((w - offset) x) = sum(w x) - offset sum(x), exactly; not
 *                                              for q8_0
 *   f32 totals [segments][n_tokens][8]         scale * (sum of the group's activations), only for formats with minima
 *
 * For float weights they are plain f32 rows of K. All begin at a 64-byte boundary.
 */
#ifndef FIRNI_PACKED_H
#define FIRNI_PACKED_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "kernel/kernel_impl.h"

#define FIRNI_GROUP 32u       /* elements of one row of activations that share a scale */
#define FIRNI_BLOCK_COLS_MAX 256u
#define FIRNI_SEGMENT_COLS 256u /* whole blocks of every format */
#define FIRNI_SEGMENT_GROUPS (FIRNI_SEGMENT_COLS / FIRNI_GROUP)

/* What an element is before the scale. */
typedef enum firni_encoding {
    FIRNI_ENCODING_BYTES, /* signed */
    FIRNI_ENCODING_4_BITS,
    FIRNI_ENCODING_5_BITS,
    FIRNI_ENCODING_6_BITS,
    FIRNI_ENCODING_TABLE, /* 4 bits that stand for firni_mx_values */
} firni_encoding;

/* What stands in the header of a block. */
typedef enum firni_scaling {
    FIRNI_SCALING_HALF,      /* firni_half_header without minima */
    FIRNI_SCALING_HALF_MIN,  /* firni_half_header */
    FIRNI_SCALING_POWER,     /* uint8_t exponents[16]: 2^(e - 127), of doubled elements */
    FIRNI_SCALING_SUPER,     /* firni_super_header */
    FIRNI_SCALING_SUPER_MIN, /* firni_super_min_header */
} firni_scaling;

typedef struct firni_half_header {
    uint16_t scales[FIRNI_PANEL_ROWS]; /* f16, as all that is 16 bits wide here */
    uint16_t minima[FIRNI_PANEL_ROWS];
} firni_half_header;

typedef struct firni_super_header {
    uint16_t scales[FIRNI_PANEL_ROWS];
    int8_t group_scales[16][FIRNI_PANEL_ROWS];
} firni_super_header;

typedef struct firni_super_min_header {
    uint16_t scales[FIRNI_PANEL_ROWS];
    uint16_t minima[FIRNI_PANEL_ROWS]; /* of the other sign than in the file, so that minima are added everywhere */
    uint8_t group_scales[8][FIRNI_PANEL_ROWS];
    uint8_t group_minima[8][FIRNI_PANEL_ROWS];
} firni_super_min_header;

typedef struct firni_group_format {
    firni_encoding encoding;
    firni_scaling scaling;
    uint16_t block_cols; /* 0: not a grouped format */
    uint16_t group_cols; /* that share a scale: 32 or 16 */
    uint16_t bits;       /* of an element */
    int16_t offset;      /* 0 for formats with minima, and for bytes */
    uint16_t file_bytes; /* of a block of one row in a file */
    uint16_t header_bytes;
    uint16_t group_bytes; /* of the elements of one group of a panel */
} firni_group_format;

extern const firni_group_format firni_group_formats[FIRNI_WEIGHT_TYPES];

/* The values of mxfp4, doubled and in ascending order (so zero stands there twice): -6 to 6 as integers. */
extern const int8_t firni_mx_values[16];
#define FIRNI_MX_OFFSET 12 /* what makes all of them unsigned */

FIRNI_INLINE bool firni_weight_is_grouped(firni_weight_type type) { return type >= FIRNI_WEIGHT_Q8_0; }

FIRNI_INLINE bool firni_group_has_minima(const firni_group_format *format)
{
    return format->scaling == FIRNI_SCALING_HALF_MIN || format->scaling == FIRNI_SCALING_SUPER_MIN;
}

/* Bytes of one block of a panel. */
FIRNI_INLINE size_t firni_group_block_bytes(const firni_group_format *format)
{
    return format->header_bytes + (size_t)format->block_cols / format->group_cols * format->group_bytes;
}

/* A group whose largest magnitude is below this has the scale 0: its reciprocal could overflow. */
#define FIRNI_ACTIVATION_TINY 0x1p-100f
#define FIRNI_ACTIVATION_MAX 32767.0f

/* From so many tokens on weights are expanded once for all of them (many_impl.h): fewer do not pay for it, and tiles
 * then have 5 or 6 tokens. Codes of 4 bits are the cheapest to expand in every tile. So many panels pass over a
 * segment's activations one after the other. */
enum { FIRNI_MANY_TOKENS_MIN = 20, FIRNI_MANY_TOKENS_MIN_4_BITS = 40, FIRNI_MANY_PANELS = 8 };

FIRNI_INLINE bool firni_is_expanded_once(firni_weight_type type, uint32_t n_tokens)
{
    const bool has_4_bits = firni_group_formats[type].encoding == FIRNI_ENCODING_4_BITS;
    return firni_weight_is_grouped(type) &&
           n_tokens >= (has_4_bits ? FIRNI_MANY_TOKENS_MIN_4_BITS : FIRNI_MANY_TOKENS_MIN);
}

FIRNI_INLINE uint32_t firni_segment_count(uint32_t n_cols)
{
    return n_cols / FIRNI_SEGMENT_COLS + (n_cols % FIRNI_SEGMENT_COLS != 0);
}

FIRNI_INLINE uint32_t firni_segment_starts(const firni_group_format *format)
{
    return FIRNI_SEGMENT_COLS / format->group_cols;
}

/* Where one segment of one token begins in each part of the activations, in bytes from the beginning of all. */
typedef struct firni_segment_places {
    size_t values, scales, starts, totals;
} firni_segment_places;

FIRNI_INLINE firni_segment_places firni_segment_places_of(const firni_group_format *format, uint32_t n_cols,
                                                          uint32_t n_tokens, uint32_t segment, uint32_t token)
{
    const size_t n_all = (size_t)n_tokens * firni_segment_count(n_cols);
    const size_t at = (size_t)n_tokens * segment + token;
    const size_t values_bytes = FIRNI_SEGMENT_COLS * sizeof(int16_t);
    const size_t scales_bytes = FIRNI_SEGMENT_GROUPS * sizeof(float);
    const size_t starts_bytes = firni_segment_starts(format) * sizeof(int32_t);
    return (firni_segment_places){
        .values = at * values_bytes,
        .scales = n_all * values_bytes + at * scales_bytes,
        .starts = n_all * (values_bytes + scales_bytes) + at * starts_bytes,
        .totals = n_all * (values_bytes + scales_bytes + starts_bytes) + at * scales_bytes,
    };
}

/* The parts of quantised activations from a segment of a token on; starts and totals only where the format has them. */
typedef struct firni_group_acts {
    const int16_t *values;
    const float *scales;
    const int32_t *starts;
    const float *totals;
} firni_group_acts;

FIRNI_INLINE firni_group_acts firni_group_acts_at(const firni_group_format *format, const void *acts, uint32_t n_cols,
                                                  uint32_t n_tokens, uint32_t segment, uint32_t token)
{
    const firni_segment_places places = firni_segment_places_of(format, n_cols, n_tokens, segment, token);
    const uint8_t *bytes = acts;
    const void *values = bytes + places.values;
    const void *scales = bytes + places.scales;
    const void *starts = bytes + places.starts;
    const void *totals = bytes + places.totals;
    return (firni_group_acts){.values = values, .scales = scales, .starts = starts, .totals = totals};
}

/* Bytes of one panel. */
FIRNI_INLINE size_t firni_panel_bytes(firni_weight_type type, uint32_t n_cols)
{
    if (firni_weight_is_grouped(type)) {
        const firni_group_format *format = &firni_group_formats[type];
        return n_cols / format->block_cols * firni_group_block_bytes(format);
    }
    return firni_weight_row_bytes(type, n_cols) * FIRNI_PANEL_ROWS;
}

FIRNI_INLINE uint32_t firni_panel_count(uint32_t n_rows)
{
    return n_rows / FIRNI_PANEL_ROWS + (n_rows % FIRNI_PANEL_ROWS != 0);
}

#endif
