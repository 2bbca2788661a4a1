/*
 * numbers: the constants of exp and tanh, and the 16-bit float conversions of one number.
 *
 * The scalar reference and the vector variants take the same constants from here; what is done with them is written
 * in docs/ARITHMETIC.md. The coefficients are minimax fits (Remez exchange, own computation) rounded to f32.
 */
#ifndef FIRNI_NUMBERS_H
#define FIRNI_NUMBERS_H

#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

/* exp(x) = 2^n (1 + r + r^2 q(r)), n = round(x / ln 2), |r| <= ln 2 / 2. Relative error of the fit: 3.1e-9. */
#define FIRNI_EXP_LOG2E 0x1.715476p+0f
#define FIRNI_EXP_LN2_HIGH 0x1.62e430p-1f
#define FIRNI_EXP_LN2_LOW (-0x1.05c610p-29f)
#define FIRNI_EXP_C2 0x1.fffffcp-2f
#define FIRNI_EXP_C3 0x1.555492p-3f
#define FIRNI_EXP_C4 0x1.5558f2p-5f
#define FIRNI_EXP_C5 0x1.123a20p-7f
#define FIRNI_EXP_C6 0x1.6a23d4p-10f
/* 1.5 * 2^23: adding it rounds to an integer, which is then found in the low bits of the sum. */
#define FIRNI_EXP_MAGIC 12582912.0f
/* Outside [LOW, HIGH] the result is 0 or infinity: -126 ln 2, the last whose result is a normal number, and
 * 127.5 ln 2 rounded down, the last whose power of two is one. */
#define FIRNI_EXP_LOW (-87.33654f)
#define FIRNI_EXP_HIGH 88.37625f

/* tanh(x) = x + x z p(z), z = x^2 < SQUARE_MAX; beyond it 1 - 2 / (exp(2x) + 1). */
#define FIRNI_TANH_SQUARE_MAX 0.390625f
#define FIRNI_TANH_C0 (-0x1.555534p-2f)
#define FIRNI_TANH_C1 0x1.11076cp-3f
#define FIRNI_TANH_C2 (-0x1.b844a2p-5f)
#define FIRNI_TANH_C3 0x1.5258cap-6f
#define FIRNI_TANH_C4 (-0x1.76b3cep-8f)

/* gelu(x) = 0.5 x (1 + tanh(x (SLOPE + CUBE x^2))): sqrt(2/pi), and 0.044715 of it. */
#define FIRNI_GELU_SLOPE 0x1.988454p-1f
#define FIRNI_GELU_CUBE 0x1.2444f2p-5f

/* The running maximum of attention starts here: finite, so that the difference of two maxima is never inf - inf. */
#define FIRNI_SCORE_LOWEST (-0x1.fffffep+127f)

FIRNI_INLINE uint32_t firni_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

FIRNI_INLINE float firni_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* IEEE binary16. Exact; a signalling NaN becomes quiet, as processors do it. */
FIRNI_INLINE float firni_f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1f) {
        return firni_f32_from_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
    }
    if (exponent == 0) {
        return firni_f32_from_bits(sign | firni_f32_bits((float)mantissa * 0x1p-24f));
    }
    return firni_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Rounds to nearest, ties to even; NaN keeps its sign and the upper ten bits of its payload, and becomes quiet. */
FIRNI_INLINE uint16_t firni_f16_from_f32(float x)
{
    const uint32_t bits = firni_f32_bits(x);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520: halfway between the largest finite half and 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14 a half is an integer times 2^-24; the sum below rounds to those */
        const uint32_t sum = firni_f32_bits(firni_f32_from_bits(magnitude) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* 2^(e - 127), the e8m0 numbers. 2^-127 is subnormal; what the format calls not-a-number (255) is infinity here. */
FIRNI_INLINE float firni_power_of_exponent(uint8_t e)
{
    return firni_f32_from_bits(e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* bfloat16: the upper half of an f32. */
FIRNI_INLINE float firni_bf16_to_f32(uint16_t upper) { return firni_f32_from_bits((uint32_t)upper << 16); }

FIRNI_INLINE uint16_t firni_bf16_from_f32(float x)
{
    const uint32_t bits = firni_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u); /* rounding could carry a NaN's payload away */
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
