/*
 * lanes for 64-bit ARM: a vector of 16 floats in four registers. kernel/lanes_impl.h says what each operation means.
 */
#ifndef FIRNI_LANES_NEON_H
#define FIRNI_LANES_NEON_H

/* A test may have brought emulated intrinsics of the same names. */
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

#define LANES_NAME "neon"

/* 32 registers: 24 accumulators of 4. */
enum { LANES_ACCUMULATORS = 6, LANES_DOT_ACCUMULATORS = 6 };

typedef struct lanes {
    float32x4_t a, b, c, d;
} lanes;

typedef struct lanes_int {
    int32x4_t a, b, c, d;
} lanes_int;

typedef struct lanes_weights {
    int16x8_t even_low, even_high, odd_low, odd_high; /* the first and second of each pair; rows 0-7, 8-15 */
} lanes_weights;

typedef int16x4_t lanes_acts; /* one pair, twice */
typedef uint8x16_t lanes_table;

FIRNI_INLINE lanes lanes_set(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (lanes){v, v, v, v};
}

FIRNI_INLINE lanes lanes_load(const float *p)
{
    return (lanes){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

FIRNI_INLINE void lanes_store(float *p, lanes x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

FIRNI_INLINE float32x4_t load_f16_4(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
FIRNI_INLINE float32x4_t load_bf16_4(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
FIRNI_INLINE void store_f16_4(uint16_t *p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

FIRNI_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){load_f16_4(p), load_f16_4(p + 4), load_f16_4(p + 8), load_f16_4(p + 12)};
}

FIRNI_INLINE lanes lanes_load_bf16(const uint16_t *p)
{
    return (lanes){load_bf16_4(p), load_bf16_4(p + 4), load_bf16_4(p + 8), load_bf16_4(p + 12)};
}

FIRNI_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    store_f16_4(p, x.a);
    store_f16_4(p + 4, x.b);
    store_f16_4(p + 8, x.c);
    store_f16_4(p + 12, x.d);
}

FIRNI_INLINE lanes lanes_add(lanes x, lanes y)
{
    return (lanes){vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}

FIRNI_INLINE lanes lanes_sub(lanes x, lanes y)
{
    return (lanes){vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}

FIRNI_INLINE lanes lanes_mul(lanes x, lanes y)
{
    return (lanes){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}

FIRNI_INLINE lanes lanes_div(lanes x, lanes y)
{
    return (lanes){vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}

FIRNI_INLINE lanes lanes_fma(lanes x, lanes y, lanes z)
{
    return (lanes){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                   vfmaq_f32(z.d, x.d, y.d)};
}

/* Not vmaxq: that returns NaN when either is NaN, and +0 of two zeros. */
FIRNI_INLINE float32x4_t larger_4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }

FIRNI_INLINE lanes lanes_larger(lanes x, lanes y)
{
    return (lanes){larger_4(x.a, y.a), larger_4(x.b, y.b), larger_4(x.c, y.c), larger_4(x.d, y.d)};
}

FIRNI_INLINE lanes lanes_select_less(lanes x, lanes y, lanes yes, lanes no)
{
    return (lanes){vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b),
                   vbslq_f32(vcltq_f32(x.c, y.c), yes.c, no.c), vbslq_f32(vcltq_f32(x.d, y.d), yes.d, no.d)};
}

FIRNI_INLINE float32x4_t power_4(float32x4_t shifted)
{
    const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    return vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(0x3f800000u)));
}

FIRNI_INLINE lanes lanes_power(lanes shifted)
{
    return (lanes){power_4(shifted.a), power_4(shifted.b), power_4(shifted.c), power_4(shifted.d)};
}

FIRNI_INLINE float lanes_fold_sum(lanes x)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

FIRNI_INLINE float lanes_fold_larger(lanes x)
{
    const float32x4_t four = larger_4(larger_4(x.a, x.c), larger_4(x.b, x.d));
    const float32x4_t two = larger_4(four, vextq_f32(four, four, 2));
    const float first = vgetq_lane_f32(two, 0);
    const float second = vgetq_lane_f32(two, 1);
    return first > second ? first : second;
}

FIRNI_INLINE lanes_int lanes_int_zero(void)
{
    const int32x4_t zero = vdupq_n_s32(0);
    return (lanes_int){zero, zero, zero, zero};
}

FIRNI_INLINE lanes_int lanes_int_set(int32_t n)
{
    const int32x4_t v = vdupq_n_s32(n);
    return (lanes_int){v, v, v, v};
}

FIRNI_INLINE lanes lanes_int_to_float(lanes_int x)
{
    return (lanes){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}

FIRNI_INLINE lanes_int widen_u8(uint8x16_t bytes)
{
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
    const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
    return (lanes_int){
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))};
}

FIRNI_INLINE lanes lanes_load_u8(const uint8_t *p) { return lanes_int_to_float(widen_u8(vld1q_u8(p))); }

FIRNI_INLINE lanes lanes_load_i8(const int8_t *p)
{
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return lanes_int_to_float((lanes_int){vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                                          vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))});
}

/* Exponents in place; the subnormal power of e = 0 is the smallest pattern there can be. */
FIRNI_INLINE float32x4_t power_of_4(int32x4_t e)
{
    return vreinterpretq_f32_s32(vmaxq_s32(vshlq_n_s32(e, 23), vdupq_n_s32(0x00400000)));
}

FIRNI_INLINE lanes lanes_load_power(const uint8_t *p)
{
    const lanes_int e = widen_u8(vld1q_u8(p));
    return (lanes){power_of_4(e.a), power_of_4(e.b), power_of_4(e.c), power_of_4(e.d)};
}

FIRNI_INLINE lanes_weights lanes_load_weights(const int8_t *p)
{
    const int8x16x2_t pairs = vld2q_s8(p);
    return (lanes_weights){
        .even_low = vmovl_s8(vget_low_s8(pairs.val[0])),
        .even_high = vmovl_s8(vget_high_s8(pairs.val[0])),
        .odd_low = vmovl_s8(vget_low_s8(pairs.val[1])),
        .odd_high = vmovl_s8(vget_high_s8(pairs.val[1])),
    };
}

FIRNI_INLINE lanes_weights lanes_load_words(const uint16_t *p)
{
    const uint16x8x2_t low = vld2q_u16(p);
    const uint16x8x2_t high = vld2q_u16(p + 16);
    return (lanes_weights){
        .even_low = vreinterpretq_s16_u16(low.val[0]),
        .even_high = vreinterpretq_s16_u16(high.val[0]),
        .odd_low = vreinterpretq_s16_u16(low.val[1]),
        .odd_high = vreinterpretq_s16_u16(high.val[1]),
    };
}

FIRNI_INLINE lanes_weights lanes_lower(lanes_weights w, int16_t n)
{
    const int16x8_t v = vdupq_n_s16(n);
    return (lanes_weights){vsubq_s16(w.even_low, v), vsubq_s16(w.even_high, v), vsubq_s16(w.odd_low, v),
                           vsubq_s16(w.odd_high, v)};
}

FIRNI_INLINE void lanes_put_weights(int16_t *p, lanes_weights w)
{
    vst1q_s16(p, w.even_low);
    vst1q_s16(p + 8, w.even_high);
    vst1q_s16(p + 16, w.odd_low);
    vst1q_s16(p + 24, w.odd_high);
}

FIRNI_INLINE lanes_weights lanes_get_weights(const int16_t *p)
{
    return (lanes_weights){vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)};
}

FIRNI_INLINE uint16x8_t shift_right_8(int16x8_t w, unsigned n)
{
    return vshlq_u16(vreinterpretq_u16_s16(w), vdupq_n_s16((int16_t)-(int)n));
}

FIRNI_INLINE int16x8_t field_8(int16x8_t w, unsigned shift, unsigned bits)
{
    return vreinterpretq_s16_u16(vandq_u16(shift_right_8(w, shift), vdupq_n_u16((uint16_t)((1u << bits) - 1))));
}

FIRNI_INLINE lanes_weights lanes_field(lanes_weights w, unsigned shift, unsigned bits)
{
    return (lanes_weights){field_8(w.even_low, shift, bits), field_8(w.even_high, shift, bits),
                           field_8(w.odd_low, shift, bits), field_8(w.odd_high, shift, bits)};
}

FIRNI_INLINE lanes_weights lanes_flip(lanes_weights w)
{
    const int16x8_t signs = vreinterpretq_s16_u16(vdupq_n_u16(0x8080));
    return (lanes_weights){veorq_s16(w.even_low, signs), veorq_s16(w.even_high, signs), veorq_s16(w.odd_low, signs),
                           veorq_s16(w.odd_high, signs)};
}

FIRNI_INLINE int16x8_t collect_8(int16x8_t rest, int16x8_t w, unsigned n)
{
    const uint16x8_t mask = vdupq_n_u16((uint16_t)(0xffff0000u >> n));
    return vreinterpretq_s16_u16(vorrq_u16(shift_right_8(rest, n), vandq_u16(vreinterpretq_u16_s16(w), mask)));
}

FIRNI_INLINE lanes_weights lanes_collect(lanes_weights rest, lanes_weights w, unsigned n)
{
    return (lanes_weights){collect_8(rest.even_low, w.even_low, n), collect_8(rest.even_high, w.even_high, n),
                           collect_8(rest.odd_low, w.odd_low, n), collect_8(rest.odd_high, w.odd_high, n)};
}

FIRNI_INLINE int16x8_t above_8(int16x8_t low, int16x8_t high, unsigned shift)
{
    return vorrq_s16(low, vshlq_s16(high, vdupq_n_s16((int16_t)shift)));
}

FIRNI_INLINE lanes_weights lanes_above(lanes_weights low, lanes_weights high, unsigned shift)
{
    return (lanes_weights){above_8(low.even_low, high.even_low, shift), above_8(low.even_high, high.even_high, shift),
                           above_8(low.odd_low, high.odd_low, shift), above_8(low.odd_high, high.odd_high, shift)};
}

FIRNI_INLINE lanes_table lanes_load_table(const uint8_t *p) { return vld1q_u8(p); }

FIRNI_INLINE int16x8_t lookup_8(int16x8_t w, uint8x16_t table)
{
    return vreinterpretq_s16_u8(vqtbl1q_u8(table, vreinterpretq_u8_s16(w)));
}

FIRNI_INLINE lanes_weights lanes_lookup(lanes_weights w, lanes_table table)
{
    return (lanes_weights){lookup_8(w.even_low, table), lookup_8(w.even_high, table), lookup_8(w.odd_low, table),
                           lookup_8(w.odd_high, table)};
}

/* Indices outside a table of 16 give 0. */
FIRNI_INLINE int16x8_t lookup_32_8(int16x8_t w, uint8x16_t low, uint8x16_t high)
{
    const uint8x16_t upper = vsubq_u8(vreinterpretq_u8_s16(w), vdupq_n_u8(16));
    return vorrq_s16(lookup_8(w, low), vreinterpretq_s16_u8(vqtbl1q_u8(high, upper)));
}

FIRNI_INLINE lanes_weights lanes_lookup_32(lanes_weights w, lanes_table low, lanes_table high)
{
    return (lanes_weights){lookup_32_8(w.even_low, low, high), lookup_32_8(w.even_high, low, high),
                           lookup_32_8(w.odd_low, low, high), lookup_32_8(w.odd_high, low, high)};
}

FIRNI_INLINE lanes_acts lanes_load_acts(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof(pair));
    return vreinterpret_s16_s32(vdup_n_s32(pair));
}

FIRNI_INLINE lanes_int lanes_dot(lanes_int sum, lanes_weights w, lanes_acts x)
{
    sum.a = vmlal_lane_s16(sum.a, vget_low_s16(w.even_low), x, 0);
    sum.b = vmlal_lane_s16(sum.b, vget_high_s16(w.even_low), x, 0);
    sum.c = vmlal_lane_s16(sum.c, vget_low_s16(w.even_high), x, 0);
    sum.d = vmlal_lane_s16(sum.d, vget_high_s16(w.even_high), x, 0);
    sum.a = vmlal_lane_s16(sum.a, vget_low_s16(w.odd_low), x, 1);
    sum.b = vmlal_lane_s16(sum.b, vget_high_s16(w.odd_low), x, 1);
    sum.c = vmlal_lane_s16(sum.c, vget_low_s16(w.odd_high), x, 1);
    sum.d = vmlal_lane_s16(sum.d, vget_high_s16(w.odd_high), x, 1);
#if defined(__aarch64__)
    /* Emits nothing; keeps GCC from loading the activations of all tokens first, as in lanes_avx2.h. */
    __asm__ volatile("" : "+w"(sum.a), "+w"(sum.b), "+w"(sum.c), "+w"(sum.d));
#endif
    return sum;
}

FIRNI_INLINE uint32x4_t magnitude_4(float32x4_t x)
{
    return vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fffffffu));
}

FIRNI_INLINE lanes_int lanes_dot_first(lanes_weights w, lanes_acts x) { return lanes_dot(lanes_int_zero(), w, x); }

FIRNI_INLINE uint32_t lanes_magnitude_bits(lanes x, lanes y)
{
    const uint32x4_t ab = vmaxq_u32(vmaxq_u32(magnitude_4(x.a), magnitude_4(x.b)),
                                    vmaxq_u32(magnitude_4(y.a), magnitude_4(y.b)));
    const uint32x4_t cd = vmaxq_u32(vmaxq_u32(magnitude_4(x.c), magnitude_4(x.d)),
                                    vmaxq_u32(magnitude_4(y.c), magnitude_4(y.d)));
    return vmaxvq_u32(vmaxq_u32(ab, cd));
}

FIRNI_INLINE void lanes_store_i16(int16_t *p, lanes x)
{
    vst1_s16(p, vmovn_s32(vcvtnq_s32_f32(x.a)));
    vst1_s16(p + 4, vmovn_s32(vcvtnq_s32_f32(x.b)));
    vst1_s16(p + 8, vmovn_s32(vcvtnq_s32_f32(x.c)));
    vst1_s16(p + 12, vmovn_s32(vcvtnq_s32_f32(x.d)));
}

FIRNI_INLINE int32_t lanes_sum_i16(const int16_t *p)
{
    return vaddvq_s32(vaddq_s32(vpaddlq_s16(vld1q_s16(p)), vpaddlq_s16(vld1q_s16(p + 8))));
}

#endif
