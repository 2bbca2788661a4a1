/*
 * Rows of synthetic models in every weight format: rounding to the nearest value that a format has, scales taken from
 * the extremes of each group. Nothing is searched for: random weights gain nothing from it.
 *
 * Block layouts: ggml project, ggml-common.h; the other direction is kernel/weight_block.c.
 */
#include "model/synth_quantise.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernel/numbers.h"

enum { GROUP = 32, HALF_GROUP = 16, BLOCK = 256, BLOCK_GROUPS = 8, BLOCK_HALF_GROUPS = 16 };

/* ---- pieces ---- */

static void store_u16(uint8_t *out, uint16_t x)
{
    out[0] = (uint8_t)x;
    out[1] = (uint8_t)(x >> 8);
}

/* Writes x as f16 and returns what a reader will find. */
static float store_half(uint8_t *out, float x)
{
    const uint16_t half = firni_f16_from_f32(x);
    store_u16(out, half);
    return firni_f16_to_f32(half);
}

static float inverse_of(float scale) { return scale != 0.0F ? 1.0F / scale : 0.0F; }

static int32_t nearest(float x, int32_t low, int32_t high)
{
    const long n = lrintf(fminf(fmaxf(x, (float)low), (float)high));
    return (int32_t)n;
}

/* The element that is farthest from zero, with its sign. */
static float extreme_of(const float *x, uint32_t n)
{
    float extreme = 0.0F;
    for (uint32_t i = 0; i < n; i++) {
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    }
    return extreme;
}

static void range_of(const float *x, uint32_t n, float *low, float *high)
{
    *low = *high = x[0];
    for (uint32_t i = 1; i < n; i++) {
        *low = fminf(*low, x[i]);
        *high = fmaxf(*high, x[i]);
    }
}

/* Lower halves of 16 bytes: elements 0 to 15; upper halves: 16 to 31. */
static void store_nibbles(const uint8_t *codes, uint8_t *out)
{
    for (uint32_t i = 0; i < HALF_GROUP; i++) {
        out[i] = (uint8_t)((codes[i] & 15) | (codes[i + HALF_GROUP] & 15) << 4);
    }
}

static void store_fifth_bits(const uint8_t *codes, uint8_t *out)
{
    memset(out, 0, 4);
    for (uint32_t i = 0; i < GROUP; i++) {
        out[i / 8] |= (uint8_t)((codes[i] >> 4 & 1) << i % 8);
    }
}

/* ---- groups of 32 ---- */

/* The scale is the largest magnitude / 127, as f16; elements are divided by the unrounded one. */
static void quantise_q8_0(const float *x, uint8_t *out)
{
    const float scale = fabsf(extreme_of(x, GROUP)) / 127.0F;
    const float inverse = inverse_of(scale);
    (void)store_half(out, scale);
    for (uint32_t i = 0; i < GROUP; i++) {
        out[2 + i] = (uint8_t)(int8_t)lrintf(x[i] * inverse);
    }
}

/* q4_0 and q5_0: the extreme becomes the lowest integer, -8 or -16, since there is one more of them below zero. */
static void quantise_signed(const float *x, uint32_t bits, uint8_t *out)
{
    const int32_t lowest = -(1 << (bits - 1));
    const float inverse = inverse_of(store_half(out, extreme_of(x, GROUP) / (float)lowest));
    uint8_t codes[GROUP];
    for (uint32_t i = 0; i < GROUP; i++) {
        codes[i] = (uint8_t)(nearest(x[i] * inverse, lowest, -lowest - 1) - lowest);
    }
    if (bits == 5) {
        store_fifth_bits(codes, out + 2);
    }
    store_nibbles(codes, out + (bits == 5 ? 6 : 2));
}

/* q4_1 and q5_1: from the smallest element in equal steps to the largest. */
static void quantise_range(const float *x, uint32_t bits, uint8_t *out)
{
    const int32_t highest = (1 << bits) - 1;
    float low, high;
    range_of(x, GROUP, &low, &high);
    const float inverse = inverse_of(store_half(out, (high - low) / (float)highest));
    const float minimum = store_half(out + 2, low);
    uint8_t codes[GROUP];
    for (uint32_t i = 0; i < GROUP; i++) {
        codes[i] = (uint8_t)nearest((x[i] - minimum) * inverse, 0, highest);
    }
    if (bits == 5) {
        store_fifth_bits(codes, out + 4);
    }
    store_nibbles(codes, out + (bits == 5 ? 8 : 4));
}

/* The power of two that brings the largest magnitude below 8; what then is above 6 becomes 6. */
static void quantise_mxfp4(const float *x, uint8_t *out)
{
    static const float magnitudes[8] = { 0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F };
    int exponent = 0; /* largest in [2^(exponent - 1), 2^exponent) */
    (void)frexpf(extreme_of(x, GROUP), &exponent);
    const int32_t biased = nearest((float)(exponent - 3 + 127), 0, 254);
    out[0] = (uint8_t)biased;
    uint8_t codes[GROUP];
    for (uint32_t i = 0; i < GROUP; i++) {
        const float scaled = ldexpf(fabsf(x[i]), 127 - biased);
        uint8_t code = 0;
        for (uint8_t c = 1; c < 8; c++) {
            code = fabsf(magnitudes[c] - scaled) < fabsf(magnitudes[code] - scaled) ? c : code;
        }
        codes[i] = (uint8_t)(signbit(x[i]) ? code | 8 : code);
    }
    store_nibbles(codes, out + 1);
}

/* ---- blocks of 256 ---- */

/* Eight scales and minima of 6 bits in 12 bytes; see read_super_scales in kernel/weight_block.c. */
static void store_super_scales(const uint8_t scales[BLOCK_GROUPS], const uint8_t minima[BLOCK_GROUPS], uint8_t *out)
{
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = (uint8_t)(scales[i] | scales[i + 4] >> 4 << 6);
        out[i + 4] = (uint8_t)(minima[i] | minima[i + 4] >> 4 << 6);
        out[i + 8] = (uint8_t)((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
    }
}

/* q4_K and q5_K: each group of 32 in equal steps from its smallest element (or 0) to its largest; steps and minima of
 * the groups in 63 equal steps themselves. */
static void quantise_super_range(const float *x, uint32_t bits, uint8_t *out)
{
    const int32_t highest = (1 << bits) - 1;
    float steps[BLOCK_GROUPS], lows[BLOCK_GROUPS];
    float largest_step = 0.0F, lowest = 0.0F;
    for (uint32_t g = 0; g < BLOCK_GROUPS; g++) {
        float high;
        range_of(x + (size_t)g * GROUP, GROUP, &lows[g], &high);
        lows[g] = fminf(lows[g], 0.0F);
        steps[g] = fmaxf(high - lows[g], 0.0F) / (float)highest;
        largest_step = fmaxf(largest_step, steps[g]);
        lowest = fminf(lowest, lows[g]);
    }
    const float scale = store_half(out, largest_step / 63.0F);
    const float minimum = store_half(out + 2, -lowest / 63.0F);
    uint8_t scales[BLOCK_GROUPS], minima[BLOCK_GROUPS];
    uint8_t *high_bits = out + 16;
    uint8_t *low_bits = bits == 5 ? out + 48 : out + 16;
    memset(high_bits, 0, bits == 5 ? 160 : 128);
    for (uint32_t g = 0; g < BLOCK_GROUPS; g++) {
        scales[g] = (uint8_t)nearest(steps[g] * inverse_of(scale), 0, 63);
        minima[g] = (uint8_t)nearest(-lows[g] * inverse_of(minimum), 0, 63);
        const float inverse = inverse_of(scale * (float)scales[g]);
        for (uint32_t i = 0; i < GROUP; i++) {
            const float above = x[(size_t)g * GROUP + i] + minimum * (float)minima[g];
            const uint8_t code = (uint8_t)nearest(above * inverse, 0, highest);
            low_bits[g / 2 * GROUP + i] |= (uint8_t)((code & 15) << g % 2 * 4);
            if (bits == 5) {
                high_bits[i] |= (uint8_t)(code >> 4 << g);
            }
        }
    }
    store_super_scales(scales, minima, out + 4);
}

/* q6_K: in each 16 the extreme becomes -32; the scales of the 16s likewise in -128 steps. */
static void quantise_q6_k(const float *x, uint8_t *out)
{
    uint8_t *low_bits = out;
    uint8_t *high_bits = out + 128;
    uint8_t *scales = out + 192;
    float steps[BLOCK_HALF_GROUPS];
    for (uint32_t g = 0; g < BLOCK_HALF_GROUPS; g++) {
        steps[g] = extreme_of(x + (size_t)g * HALF_GROUP, HALF_GROUP) / -32.0F;
    }
    const float scale = store_half(out + 208, extreme_of(steps, BLOCK_HALF_GROUPS) / -128.0F);
    memset(low_bits, 0, 192);
    for (uint32_t k = 0; k < BLOCK; k++) {
        const uint32_t g = k / HALF_GROUP;
        const int32_t group_scale = nearest(steps[g] * inverse_of(scale), -128, 127);
        const int32_t code = nearest(x[k] * inverse_of(scale * (float)group_scale), -32, 31) + 32;
        const uint32_t quarter = k % 128 / 32;
        scales[g] = (uint8_t)group_scale;
        low_bits[k / 128 * 64 + quarter % 2 * 32 + k % 32] |= (uint8_t)((code & 15) << quarter / 2 * 4);
        high_bits[k / 128 * 32 + k % 32] |= (uint8_t)(code >> 4 << quarter * 2);
    }
}

/* ---- rows ---- */

static void quantise_block(firni_weight_type type, const float *x, uint8_t *out)
{
    switch (type) {
    case FIRNI_WEIGHT_Q8_0: quantise_q8_0(x, out); break;
    case FIRNI_WEIGHT_Q4_0: quantise_signed(x, 4, out); break;
    case FIRNI_WEIGHT_Q4_1: quantise_range(x, 4, out); break;
    case FIRNI_WEIGHT_Q5_0: quantise_signed(x, 5, out); break;
    case FIRNI_WEIGHT_Q5_1: quantise_range(x, 5, out); break;
    case FIRNI_WEIGHT_Q4_K: quantise_super_range(x, 4, out); break;
    case FIRNI_WEIGHT_Q5_K: quantise_super_range(x, 5, out); break;
    case FIRNI_WEIGHT_Q6_K: quantise_q6_k(x, out); break;
    default:
        assert(type == FIRNI_WEIGHT_MXFP4);
        quantise_mxfp4(x, out);
        break;
    }
}

void firni_synth_quantise_row(firni_weight_type type, const float *row, uint32_t n_cols, uint8_t *out)
{
    const uint32_t block_cols = firni_weight_block_cols(type);
    const size_t block_bytes = firni_weight_row_bytes(type, block_cols);
    uint16_t half;
    for (uint32_t k = 0; k < n_cols; k += block_cols) {
        switch (type) {
        case FIRNI_WEIGHT_F32: memcpy(out, row + k, sizeof *row); break;
        case FIRNI_WEIGHT_F16:
        case FIRNI_WEIGHT_BF16:
            half = type == FIRNI_WEIGHT_F16 ? firni_f16_from_f32(row[k]) : firni_bf16_from_f32(row[k]);
            memcpy(out, &half, sizeof half);
            break;
        default: quantise_block(type, row + k, out); break;
        }
        out += block_bytes;
    }
}
