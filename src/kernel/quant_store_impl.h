/*
 * Storing quantised keys and values, of a vector variant. Written over lanes.
 *
 * A key's codes of one row are one 32-bit word, since the row's dimensions of a token lie in one lane; a value's codes
 * of one row are one bit field of 16 neighbouring words.
 */
#ifndef FIRNI_QUANT_STORE_IMPL_H
#define FIRNI_QUANT_STORE_IMPL_H

#include "kernel/lanes_impl.h"
#include "kernel/quantised.h"

enum { QUANT_GROUP_MAX = 64 };

FIRNI_INLINE bool quant_is_finite_half(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

/* One group of n elements (32 or 64) of one token. */
static void quant_affine(const float *x, uint32_t n, firni_code_range range, int16_t *codes, uint16_t *scale,
                         uint16_t *bias)
{
    const lanes zero = lanes_set(0.0f);
    lanes largest = lanes_set(-INFINITY);
    lanes negated = lanes_set(-INFINITY);
    uint32_t magnitude = 0;
    for (uint32_t i = 0; i < n; i += 2 * LANES) {
        const lanes a = lanes_load(x + i);
        const lanes b = lanes_load(x + i + LANES);
        const uint32_t part = lanes_magnitude_bits(a, b);
        magnitude = part > magnitude ? part : magnitude;
        largest = lanes_larger(b, lanes_larger(a, largest));
        negated = lanes_larger(lanes_sub(zero, b), lanes_larger(lanes_sub(zero, a), negated));
    }
    const float max = lanes_fold_larger(largest);
    const float min = 0.0f - lanes_fold_larger(negated);
    memset(codes, 0, n * sizeof(codes[0]));
    *scale = firni_f16_from_f32((max - min + 0.0f) / (range.last - range.first));
    *bias = firni_f16_from_f32(min - range.first * firni_f16_to_f32(*scale));
    if (magnitude >= 0x7f800000u || !quant_is_finite_half(*scale) || !quant_is_finite_half(*bias)) {
        *scale = 0;
        *bias = FIRNI_QUANT_NAN;
        return;
    }
    if (*scale == 0) {
        return;
    }
    const lanes inverse = lanes_set(1.0f / firni_f16_to_f32(*scale));
    const lanes origin = lanes_set(firni_f16_to_f32(*bias));
    const lanes begin = lanes_set(range.first);
    const lanes end = lanes_set(range.last);
    for (uint32_t i = 0; i < n; i += LANES) {
        const lanes y = lanes_larger(lanes_mul(lanes_sub(lanes_load(x + i), origin), inverse), begin);
        lanes_store_i16(codes + i, lanes_select_less(end, y, end, y));
    }
}

/* 16 numbers; few thresholds are compared with one after the other, many are searched. */
static void quant_normal_codes(const firni_lloyd *lloyd, uint32_t bits, const float *x, float inverse, int16_t *codes)
{
    const lanes y = lanes_mul(lanes_load(x), lanes_set(inverse));
    if (bits <= 5) {
        lanes below = lanes_set(0.0f);
        for (uint32_t i = 0; i + 1 < 1u << bits; i++) {
            const lanes one = lanes_select_less(lanes_set(lloyd->thresholds[i]), y, lanes_set(1.0f), lanes_set(0.0f));
            below = lanes_add(below, one);
        }
        lanes_store_i16(codes, below);
        return;
    }
    float numbers[LANES];
    lanes_store(numbers, y);
    for (uint32_t i = 0; i < LANES; i++) {
        codes[i] = (int16_t)firni_lloyd_code(lloyd, bits, numbers[i]);
    }
}

/* One group of 32 rotated elements. */
static void quant_normal(const float *x, uint32_t bits, int16_t *codes, uint16_t *scale)
{
    const lanes a = lanes_load(x);
    const lanes b = lanes_load(x + LANES);
    const lanes squares = lanes_fma(b, b, lanes_fma(a, a, lanes_set(0.0f)));
    memset(codes, 0, FIRNI_QUANT_GROUP_MIN * sizeof(codes[0]));
    *scale = firni_f16_from_f32(sqrtf(lanes_fold_sum(squares) / FIRNI_QUANT_GROUP_MIN));
    if (!quant_is_finite_half(*scale)) {
        *scale = FIRNI_QUANT_NAN;
    } else if (*scale != 0) {
        const firni_lloyd *lloyd = firni_lloyd_of(bits);
        const float inverse = 1.0f / firni_f16_to_f32(*scale);
        quant_normal_codes(lloyd, bits, x, inverse, codes);
        quant_normal_codes(lloyd, bits, x + LANES, inverse, codes + LANES);
    }
}

/* 32 dimensions of one token: a word for each row. */
FIRNI_INLINE void quant_put_key(uint8_t *slab, const unsigned bits, unsigned lane, const int16_t *codes)
{
    const unsigned low_bits = firni_low_bits(bits);
    uint32_t words[8] = {0};
    for (unsigned step = 0; step < FIRNI_SLAB_STEPS; step++) {
        const firni_code_place low = firni_code_at(low_bits, step);
        const uint32_t code = (uint32_t)codes[step];
        words[low.row] |= (code & ((1u << low_bits) - 1)) << low.bit;
        if (bits > low_bits) {
            words[low_bits] |= code >> low_bits << firni_code_at(1, step).bit;
        }
    }
    for (unsigned row = 0; row < bits; row++) {
        memcpy(slab + row * FIRNI_CODE_ROW_BYTES + lane * sizeof(words[0]), &words[row], sizeof(words[0]));
    }
}

FIRNI_INLINE void quant_put_field(uint8_t *row, unsigned bit, uint32_t mask, const int16_t *codes, unsigned code_shift)
{
    uint32_t words[FIRNI_SLAB_LANES];
    memcpy(words, row, sizeof(words));
    for (unsigned lane = 0; lane < FIRNI_SLAB_LANES; lane++) {
        words[lane] = (words[lane] & ~(mask << bit)) | ((uint32_t)codes[lane] >> code_shift & mask) << bit;
    }
    memcpy(row, words, sizeof(words));
}

/* 16 dimensions of one token. */
FIRNI_INLINE void quant_put_value(uint8_t *slab, unsigned bits, unsigned step, const int16_t *codes)
{
    const unsigned low_bits = firni_low_bits(bits);
    const firni_code_place low = firni_code_at(low_bits, step);
    quant_put_field(slab + low.row * FIRNI_CODE_ROW_BYTES, low.bit, (1u << low_bits) - 1, codes, 0);
    if (bits > low_bits) {
        quant_put_field(slab + low_bits * FIRNI_CODE_ROW_BYTES, firni_code_at(1, step).bit, 1, codes, low_bits);
    }
}

static void quant_put_keys(uint8_t *slabs, uint32_t n, unsigned bits, unsigned lane, const int16_t *codes)
{
    for (uint32_t i = 0; i < n; i += FIRNI_SLAB_STEPS, slabs += firni_slab_bytes(bits)) {
        switch (bits) {
        case 8: quant_put_key(slabs, 8, lane, codes + i); break;
        case 5: quant_put_key(slabs, 5, lane, codes + i); break;
        case 4: quant_put_key(slabs, 4, lane, codes + i); break;
        default:
            assert(bits == 2);
            quant_put_key(slabs, 2, lane, codes + i);
            break;
        }
    }
}

static void quant_store_key(const firni_quant_geometry *g, const firni_quant_target *planes, uint32_t token,
                            const float *k)
{
    for (uint32_t d = 0; d < g->head_dim; d += g->group) {
        int16_t codes[QUANT_GROUP_MAX];
        uint16_t scale, bias;
        quant_affine(k + d, g->group, firni_key_codes(g), codes, &scale, &bias);
        firni_store_half(planes->k_scales, (size_t)d / g->group * FIRN_BLOCK_TOKENS + token, scale);
        firni_store_half(planes->k_biases, (size_t)d / g->group * FIRN_BLOCK_TOKENS + token, bias);
        quant_put_keys(planes->k_codes + firni_key_slab(g, d, token), g->group, g->key_bits, token % FIRNI_SLAB_LANES,
                       codes);
    }
}

static void quant_store_value(const firni_quant_geometry *g, const firni_quant_target *planes, uint32_t token,
                              const float *v)
{
    float rotated[FIRNI_HEAD_DIM_MAX];
    if (g->rotated) {
        memcpy(rotated, v, g->value_dim * sizeof(v[0]));
        firni_rotate(rotated, g->value_dim);
        v = rotated;
    }
    for (uint32_t j = 0; j < g->value_dim; j += g->group) {
        int16_t codes[QUANT_GROUP_MAX];
        uint16_t scale, bias;
        const size_t at = (size_t)j / g->group * FIRN_BLOCK_TOKENS + token;
        if (g->rotated) {
            quant_normal(v + j, g->value_bits, codes, &scale);
        } else {
            quant_affine(v + j, g->group, firni_codes_unsigned(g->value_bits), codes, &scale, &bias);
            firni_store_half(planes->v_biases, at, bias);
        }
        firni_store_half(planes->v_scales, at, scale);
        for (uint32_t i = 0; i < g->group; i += FIRNI_SLAB_LANES) {
            quant_put_value(planes->v_codes + firni_value_slab(g, j + i, token), g->value_bits,
                            token % FIRNI_SLAB_STEPS, codes + i);
        }
    }
}

static void lanes_store_quant(const firni_quant_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                              const float *v)
{
    assert(lane < FIRN_BLOCK_TOKENS);
    for (uint32_t h = 0; h < geometry->n_kv_heads; h++) {
        const firni_quant_target planes = firni_quant_target_of(geometry, block, h);
        quant_store_key(geometry, &planes, lane, k + (size_t)h * geometry->head_dim);
        quant_store_value(geometry, &planes, lane, v + (size_t)h * geometry->value_dim);
    }
}

#endif
