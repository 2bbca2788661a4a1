/*
 * lanes for AVX-512 F, BW, VL, DQ and VNNI: a vector of 16 floats is one register. kernel/lanes_impl.h says what each
 * operation means.
 */
#ifndef FIRNI_LANES_AVX512_H
#define FIRNI_LANES_AVX512_H

#include <stdint.h>

#include "base/compiler.h"
#include "kernel/lanes_x86.h"

#define LANES_NAME "avx512"

/* 32 registers: 24 accumulators; for integers 12, since each has its float chain beside it. */
enum { LANES_ACCUMULATORS = 24, LANES_DOT_ACCUMULATORS = 12 };

typedef __m512 lanes;
typedef __m512i lanes_int;
typedef __m512i lanes_weights;
typedef __m512i lanes_acts;
typedef __m512i lanes_table; /* four times */

FIRNI_INLINE lanes lanes_set(float x) { return _mm512_set1_ps(x); }
FIRNI_INLINE lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
FIRNI_INLINE void lanes_store(float *p, lanes a) { _mm512_storeu_ps(p, a); }

FIRNI_INLINE lanes lanes_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(load_256(p)); }

FIRNI_INLINE lanes lanes_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16));
}

FIRNI_INLINE void lanes_store_f16(uint16_t *p, lanes a)
{
    const __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(p, &half, sizeof(half));
}

FIRNI_INLINE lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
FIRNI_INLINE lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
FIRNI_INLINE lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
FIRNI_INLINE lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
FIRNI_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
FIRNI_INLINE lanes lanes_larger(lanes a, lanes b) { return _mm512_max_ps(a, b); }

FIRNI_INLINE lanes lanes_select_less(lanes a, lanes b, lanes yes, lanes no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

FIRNI_INLINE lanes lanes_power(lanes shifted)
{
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)));
}

FIRNI_INLINE __m256 upper_half(lanes a)
{
    return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a), 1));
}

FIRNI_INLINE float lanes_fold_sum(lanes a)
{
    return fold_sum_256(_mm256_add_ps(_mm512_castps512_ps256(a), upper_half(a)));
}

FIRNI_INLINE float lanes_fold_larger(lanes a)
{
    return fold_larger_256(_mm256_max_ps(_mm512_castps512_ps256(a), upper_half(a)));
}

FIRNI_INLINE lanes_int lanes_int_zero(void) { return _mm512_setzero_si512(); }
FIRNI_INLINE lanes_int lanes_int_set(int32_t n) { return _mm512_set1_epi32(n); }
FIRNI_INLINE lanes lanes_int_to_float(lanes_int a) { return _mm512_cvtepi32_ps(a); }
FIRNI_INLINE lanes_weights lanes_load_weights(const int8_t *p) { return _mm512_cvtepi8_epi16(load_256(p)); }
FIRNI_INLINE lanes_acts lanes_load_acts(const int16_t *p) { return _mm512_set1_epi32(load_pair(p)); }

FIRNI_INLINE lanes lanes_load_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p))); }
FIRNI_INLINE lanes lanes_load_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p))); }

/* Exponents in place; the subnormal power of e = 0 is the smallest pattern there can be. */
FIRNI_INLINE lanes lanes_load_power(const uint8_t *p)
{
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load_128(p)), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(exponent, _mm512_set1_epi32(0x00400000)));
}

FIRNI_INLINE lanes_weights lanes_load_words(const uint16_t *p) { return _mm512_loadu_si512(p); }

FIRNI_INLINE lanes_weights lanes_lower(lanes_weights w, int16_t n) { return _mm512_sub_epi16(w, _mm512_set1_epi16(n)); }
FIRNI_INLINE void lanes_put_weights(int16_t *p, lanes_weights w) { _mm512_storeu_si512(p, w); }
FIRNI_INLINE lanes_weights lanes_get_weights(const int16_t *p) { return _mm512_loadu_si512(p); }

FIRNI_INLINE __m512i shift_right_512(__m512i w, unsigned n)
{
    return _mm512_srlv_epi16(w, _mm512_set1_epi16((int16_t)n));
}

/* Constants wherever this is used, so that one instruction or two are left. */
FIRNI_INLINE lanes_weights lanes_field(lanes_weights w, unsigned shift, unsigned bits)
{
    w = shift == 0 ? w : shift_right_512(w, shift);
    return shift + bits == 16 ? w : _mm512_and_si512(w, _mm512_set1_epi16((int16_t)((1u << bits) - 1)));
}

FIRNI_INLINE lanes_weights lanes_flip(lanes_weights w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
}

FIRNI_INLINE lanes_weights lanes_collect(lanes_weights rest, lanes_weights w, unsigned n)
{
    const __m512i mask = _mm512_set1_epi16((int16_t)(0xffff0000u >> n));
    return _mm512_or_si512(shift_right_512(rest, n), _mm512_and_si512(w, mask));
}

FIRNI_INLINE lanes_weights lanes_above(lanes_weights low, lanes_weights high, unsigned shift)
{
    return _mm512_or_si512(low, _mm512_sllv_epi16(high, _mm512_set1_epi16((int16_t)shift)));
}

FIRNI_INLINE lanes_table lanes_load_table(const uint8_t *p) { return _mm512_broadcast_i32x4(load_128(p)); }
FIRNI_INLINE lanes_weights lanes_lookup(lanes_weights w, lanes_table table) { return _mm512_shuffle_epi8(table, w); }

/* The high bytes of words are 0: they must not find high[0]. */
FIRNI_INLINE lanes_weights lanes_lookup_32(lanes_weights w, lanes_table low, lanes_table high)
{
    return _mm512_mask_blend_epi8(_mm512_test_epi8_mask(w, _mm512_set1_epi8(16)), _mm512_shuffle_epi8(low, w),
                                  _mm512_shuffle_epi8(high, w));
}

FIRNI_INLINE lanes_int lanes_dot(lanes_int sum, lanes_weights w, lanes_acts x)
{
    return _mm512_dpwssd_epi32(sum, w, x);
}

FIRNI_INLINE lanes_int lanes_dot_first(lanes_weights w, lanes_acts x) { return lanes_dot(lanes_int_zero(), w, x); }

FIRNI_INLINE uint32_t lanes_magnitude_bits(lanes a, lanes b)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), mask),
                                            _mm512_and_si512(_mm512_castps_si512(b), mask));
    return fold_max_u31_256(_mm256_max_epi32(_mm512_castsi512_si256(larger), _mm512_extracti64x4_epi64(larger, 1)));
}

FIRNI_INLINE void lanes_store_i16(int16_t *p, lanes a)
{
    const __m256i narrow = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a));
    memcpy(p, &narrow, sizeof(narrow));
}

#endif
