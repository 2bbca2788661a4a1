/*
 * What the files of the scalar reference compute with: exp and tanh as docs/ARITHMETIC.md defines them, the fold of 16
 * lanes, and one element of a plane.
 */
#ifndef FIRNI_SCALAR_NUMBERS_H
#define FIRNI_SCALAR_NUMBERS_H

#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "firn/array.h"
#include "kernel/numbers.h"
#include "kernel/scalar_impl.h"

FIRNI_INLINE float scalar_exp(float x)
{
    if (x < FIRNI_EXP_LOW) {
        return 0.0f;
    }
    if (x > FIRNI_EXP_HIGH) {
        return INFINITY;
    }
    const float shifted = fmaf(x, FIRNI_EXP_LOG2E, FIRNI_EXP_MAGIC); /* n, rounded once, in its low bits */
    const float n = shifted - FIRNI_EXP_MAGIC;
    const float r = fmaf(n, -FIRNI_EXP_LN2_LOW, fmaf(n, -FIRNI_EXP_LN2_HIGH, x));
    float p = fmaf(FIRNI_EXP_C6, r, FIRNI_EXP_C5);
    p = fmaf(p, r, FIRNI_EXP_C4);
    p = fmaf(p, r, FIRNI_EXP_C3);
    p = fmaf(p, r, FIRNI_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const float power = firni_f32_from_bits((firni_f32_bits(shifted) << 23) + 0x3f800000u); /* 2^n */
    return p * power;
}

FIRNI_INLINE float scalar_tanh(float x)
{
    const float z = x * x;
    if (z < FIRNI_TANH_SQUARE_MAX) {
        float p = fmaf(FIRNI_TANH_C4, z, FIRNI_TANH_C3);
        p = fmaf(p, z, FIRNI_TANH_C2);
        p = fmaf(p, z, FIRNI_TANH_C1);
        p = fmaf(p, z, FIRNI_TANH_C0);
        return fmaf(x * z, p, x);
    }
    return 1.0f - 2.0f / (scalar_exp(x + x) + 1.0f);
}

FIRNI_INLINE float larger(float a, float b) { return a > b ? a : b; } /* b when either is NaN */

FIRNI_INLINE float fold_sum(float lanes[FIRNI_SCALAR_LANES])
{
    for (unsigned half = FIRNI_SCALAR_LANES / 2; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

FIRNI_INLINE float load_element(firn_dtype dtype, const uint8_t *plane, size_t index)
{
    float x;
    uint16_t half;
    switch (dtype) {
    case FIRN_DTYPE_F16:
        memcpy(&half, plane + index * 2, sizeof(half));
        return firni_f16_to_f32(half);
    case FIRN_DTYPE_BF16:
        memcpy(&half, plane + index * 2, sizeof(half));
        return firni_bf16_to_f32(half);
    default:
        memcpy(&x, plane + index * 4, sizeof(x));
        return x;
    }
}

FIRNI_INLINE void store_element(firn_dtype dtype, uint8_t *plane, size_t index, float x)
{
    const uint16_t half = dtype == FIRN_DTYPE_F16 ? firni_f16_from_f32(x) : firni_bf16_from_f32(x);
    if (dtype == FIRN_DTYPE_F32) {
        memcpy(plane + index * 4, &x, sizeof(x));
    } else {
        memcpy(plane + index * 2, &half, sizeof(half));
    }
}

#endif
