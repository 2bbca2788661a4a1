/*
 * Rows of every weight format for tests of kernels: made at random with sensible scales, and read element by element
 * in double precision, straight from the description of the format; neither shares text with the library.
 */
#ifndef FIRNI_TESTS_WEIGHT_ROWS_H
#define FIRNI_TESTS_WEIGHT_ROWS_H

#include <math.h>
#include <string.h>

#include "kernel/kernel_impl.h"
#include "kernel/numbers.h"

/* Where a grouped format keeps its f16 numbers. */
typedef struct weight_fields {
    uint32_t block_bytes;
    int scale_at;   /* -1: none */
    int minimum_at;
} weight_fields;

static inline weight_fields weight_fields_of(firni_weight_type type)
{
    switch (type) {
    case FIRNI_WEIGHT_Q8_0: return (weight_fields){34, 0, -1};
    case FIRNI_WEIGHT_Q4_0: return (weight_fields){18, 0, -1};
    case FIRNI_WEIGHT_Q4_1: return (weight_fields){20, 0, 2};
    case FIRNI_WEIGHT_Q5_0: return (weight_fields){22, 0, -1};
    case FIRNI_WEIGHT_Q5_1: return (weight_fields){24, 0, 2};
    case FIRNI_WEIGHT_Q4_K: return (weight_fields){144, 0, 2};
    case FIRNI_WEIGHT_Q5_K: return (weight_fields){176, 0, 2};
    case FIRNI_WEIGHT_Q6_K: return (weight_fields){210, 208, -1};
    default: return (weight_fields){17, -1, -1};
    }
}

/* Gives random bytes of rows scales and minima: uniform() in [-1, 1) times what keeps the elements below about 0.5. */
static inline void weight_rows_set_scales(firni_weight_type type, uint8_t *rows, size_t n_bytes,
                                          float (*uniform)(void *ctx), void *ctx)
{
    const weight_fields fields = weight_fields_of(type);
    const bool super = firni_weight_block_cols(type) == 256;
    for (size_t i = 0; i < n_bytes; i += fields.block_bytes) {
        if (fields.scale_at >= 0) {
            const uint16_t scale = firni_f16_from_f32(uniform(ctx) * (super ? 0.0003f : 0.01f));
            memcpy(rows + i + fields.scale_at, &scale, 2);
        } else {
            rows[i] = (uint8_t)(122.0f + 4.0f * uniform(ctx)); /* 2^-9 to 2^-1 */
        }
        if (fields.minimum_at >= 0) {
            const uint16_t minimum = firni_f16_from_f32(uniform(ctx) * (super ? 0.003f : 0.2f));
            memcpy(rows + i + fields.minimum_at, &minimum, 2);
        }
    }
}

static inline double weight_half(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof(half));
    return (double)firni_f16_to_f32(half);
}

static inline uint32_t weight_bits(const uint8_t *bytes, uint32_t bit, uint32_t n)
{
    return (uint32_t)(bytes[bit / 8] >> bit % 8) & ((1u << n) - 1u); /* never crosses a byte */
}

/* The 6-bit scale or minimum of group g (0 to 7) of q4_K and q5_K. */
static inline uint32_t weight_super_scale(const uint8_t *twelve, uint32_t g, bool minimum)
{
    const uint32_t base = minimum ? 4 : 0;
    if (g < 4) {
        return weight_bits(twelve + base + g, 0, 6);
    }
    return weight_bits(twelve + 8 + (g - 4), base, 4) + 16 * weight_bits(twelve + base + g - 4, 6, 2);
}

/* Element k of a row. */
static inline double weight_exact(firni_weight_type type, const uint8_t *row, uint32_t k)
{
    static const double e2m1[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    const uint32_t cols = firni_weight_block_cols(type);
    const uint8_t *b = row + (size_t)(k / cols) * weight_fields_of(type).block_bytes;
    const uint32_t i = k % cols;
    const uint32_t nibble_bit = i % 16 * 8 + i / 16 * 4; /* of a group of 32 */
    uint16_t half;
    float single;
    switch (type) {
    case FIRNI_WEIGHT_F32: memcpy(&single, row + (size_t)k * 4, 4); return (double)single;
    case FIRNI_WEIGHT_F16: return weight_half(row + (size_t)k * 2);
    case FIRNI_WEIGHT_BF16: memcpy(&half, row + (size_t)k * 2, 2); return (double)firni_bf16_to_f32(half);
    case FIRNI_WEIGHT_Q8_0: return weight_half(b) * (int8_t)b[2 + i];
    case FIRNI_WEIGHT_Q4_0: return weight_half(b) * ((int)weight_bits(b + 2, nibble_bit, 4) - 8);
    case FIRNI_WEIGHT_Q4_1: return weight_half(b) * weight_bits(b + 4, nibble_bit, 4) + weight_half(b + 2);
    case FIRNI_WEIGHT_Q5_0:
        return weight_half(b) * ((int)(weight_bits(b + 6, nibble_bit, 4) + 16 * weight_bits(b + 2, i, 1)) - 16);
    case FIRNI_WEIGHT_Q5_1:
        return weight_half(b) * (weight_bits(b + 8, nibble_bit, 4) + 16 * weight_bits(b + 4, i, 1)) +
               weight_half(b + 2);
    case FIRNI_WEIGHT_Q4_K:
    case FIRNI_WEIGHT_Q5_K: {
        const uint32_t g = i / 32;
        const bool five = type == FIRNI_WEIGHT_Q5_K;
        const uint8_t *low = b + (five ? 48 : 16);
        const uint32_t code = weight_bits(low + g / 2 * 32 + i % 32, g % 2 * 4, 4) +
                              (five ? 16 * weight_bits(b + 16 + i % 32, g, 1) : 0);
        return weight_half(b) * weight_super_scale(b + 4, g, false) * code -
               weight_half(b + 2) * weight_super_scale(b + 4, g, true);
    }
    case FIRNI_WEIGHT_Q6_K: {
        const uint32_t quarter = i % 128 / 32;
        const uint32_t low = weight_bits(b + i / 128 * 64 + quarter % 2 * 32 + i % 32, quarter / 2 * 4, 4);
        const uint32_t high = weight_bits(b + 128 + i / 128 * 32 + i % 32, quarter * 2, 2);
        return weight_half(b + 208) * (int8_t)b[192 + i / 16] * ((int)(low + 16 * high) - 32);
    }
    default: {
        const uint32_t code = weight_bits(b + 1, nibble_bit, 4);
        return ldexp(code < 8 ? e2m1[code] : -e2m1[code - 8], b[0] - 127);
    }
    }
}

#endif
