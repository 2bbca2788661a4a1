/*
 * lanes for AVX2 + FMA + F16C: a vector of 16 floats in two registers. kernel/lanes_impl.h says what each operation
 * means.
 */
#ifndef FIRNI_LANES_AVX2_H
#define FIRNI_LANES_AVX2_H

#include <stdint.h>

#include "base/compiler.h"
#include "kernel/lanes_x86.h"

#define LANES_NAME "avx2"

/* 16 registers: 12 accumulators of 8, the rest for one row of the other operand and a broadcast. */
enum { LANES_ACCUMULATORS = 6, LANES_DOT_ACCUMULATORS = 6 };

typedef struct lanes {
    __m256 low, high;
} lanes;

typedef struct lanes_int {
    __m256i low, high;
} lanes_int;

typedef lanes_int lanes_weights; /* 16-bit pairs: rows 0-7, rows 8-15 */
typedef __m256i lanes_acts;      /* one pair, eight times */
typedef __m256i lanes_table;     /* twice */

FIRNI_INLINE lanes lanes_set(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FIRNI_INLINE lanes lanes_load(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }

FIRNI_INLINE void lanes_store(float *p, lanes a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}

FIRNI_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}

FIRNI_INLINE lanes lanes_load_bf16(const uint16_t *p)
{
    const __m256i low = _mm256_cvtepu16_epi32(load_128(p));
    const __m256i high = _mm256_cvtepu16_epi32(load_128(p + 8));
    return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

FIRNI_INLINE void lanes_store_f16(uint16_t *p, lanes a)
{
    const __m128i low = _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT);
    memcpy(p, &low, sizeof(low));
    memcpy(p + 8, &high, sizeof(high));
}

FIRNI_INLINE lanes lanes_add(lanes a, lanes b)
{
    return (lanes){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

FIRNI_INLINE lanes lanes_sub(lanes a, lanes b)
{
    return (lanes){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

FIRNI_INLINE lanes lanes_mul(lanes a, lanes b)
{
    return (lanes){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

FIRNI_INLINE lanes lanes_div(lanes a, lanes b)
{
    return (lanes){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

FIRNI_INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

FIRNI_INLINE lanes lanes_larger(lanes a, lanes b)
{
    return (lanes){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

FIRNI_INLINE lanes lanes_select_less(lanes a, lanes b, lanes yes, lanes no)
{
    return (lanes){_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                   _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

FIRNI_INLINE __m256 power_256(__m256 shifted)
{
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)));
}

FIRNI_INLINE lanes lanes_power(lanes shifted) { return (lanes){power_256(shifted.low), power_256(shifted.high)}; }

FIRNI_INLINE float lanes_fold_sum(lanes a) { return fold_sum_256(_mm256_add_ps(a.low, a.high)); }
FIRNI_INLINE float lanes_fold_larger(lanes a) { return fold_larger_256(_mm256_max_ps(a.low, a.high)); }

FIRNI_INLINE lanes_int lanes_int_zero(void) { return (lanes_int){_mm256_setzero_si256(), _mm256_setzero_si256()}; }

FIRNI_INLINE lanes_int lanes_int_set(int32_t n) { return (lanes_int){_mm256_set1_epi32(n), _mm256_set1_epi32(n)}; }

FIRNI_INLINE lanes lanes_int_to_float(lanes_int a)
{
    return (lanes){_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

FIRNI_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    return lanes_int_to_float((lanes_int){_mm256_cvtepu8_epi32(load_64(p)), _mm256_cvtepu8_epi32(load_64(p + 8))});
}

FIRNI_INLINE lanes lanes_load_i8(const int8_t *p)
{
    return lanes_int_to_float((lanes_int){_mm256_cvtepi8_epi32(load_64(p)), _mm256_cvtepi8_epi32(load_64(p + 8))});
}

/* Exponents in place; the subnormal power of e = 0 is the smallest pattern there can be. */
FIRNI_INLINE __m256 power_of_256(__m256i e)
{
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
}

FIRNI_INLINE lanes lanes_load_power(const uint8_t *p)
{
    return (lanes){power_of_256(_mm256_cvtepu8_epi32(load_64(p))), power_of_256(_mm256_cvtepu8_epi32(load_64(p + 8)))};
}

FIRNI_INLINE lanes_weights lanes_load_weights(const int8_t *p)
{
    return (lanes_weights){_mm256_cvtepi8_epi16(load_128(p)), _mm256_cvtepi8_epi16(load_128(p + 16))};
}

FIRNI_INLINE lanes_weights lanes_load_words(const uint16_t *p)
{
    return (lanes_weights){load_256(p), load_256(p + 16)};
}

FIRNI_INLINE lanes_weights lanes_lower(lanes_weights w, int16_t n)
{
    const __m256i v = _mm256_set1_epi16(n);
    return (lanes_weights){_mm256_sub_epi16(w.low, v), _mm256_sub_epi16(w.high, v)};
}

FIRNI_INLINE void lanes_put_weights(int16_t *p, lanes_weights w)
{
    store_256(p, w.low);
    store_256(p + 16, w.high);
}

FIRNI_INLINE lanes_weights lanes_get_weights(const int16_t *p)
{
    return (lanes_weights){load_256(p), load_256(p + 16)};
}

/* Constants wherever this is used, so that one instruction or two are left. */
FIRNI_INLINE __m256i field_256(__m256i w, unsigned shift, unsigned bits)
{
    w = shift == 0 ? w : _mm256_srli_epi16(w, (int)shift);
    return shift + bits == 16 ? w : _mm256_and_si256(w, _mm256_set1_epi16((int16_t)((1u << bits) - 1)));
}

FIRNI_INLINE lanes_weights lanes_field(lanes_weights w, unsigned shift, unsigned bits)
{
    return (lanes_weights){field_256(w.low, shift, bits), field_256(w.high, shift, bits)};
}

FIRNI_INLINE lanes_weights lanes_flip(lanes_weights w)
{
    const __m256i signs = _mm256_set1_epi8((char)0x80);
    return (lanes_weights){_mm256_xor_si256(w.low, signs), _mm256_xor_si256(w.high, signs)};
}

FIRNI_INLINE __m256i collect_256(__m256i rest, __m256i w, unsigned n)
{
    const __m256i mask = _mm256_set1_epi16((int16_t)(0xffff0000u >> n));
    return _mm256_or_si256(_mm256_srli_epi16(rest, (int)n), _mm256_and_si256(w, mask));
}

FIRNI_INLINE lanes_weights lanes_collect(lanes_weights rest, lanes_weights w, unsigned n)
{
    return (lanes_weights){collect_256(rest.low, w.low, n), collect_256(rest.high, w.high, n)};
}

FIRNI_INLINE __m256i above_256(__m256i low, __m256i high, unsigned shift)
{
    return _mm256_or_si256(low, _mm256_slli_epi16(high, (int)shift));
}

FIRNI_INLINE lanes_weights lanes_above(lanes_weights low, lanes_weights high, unsigned shift)
{
    return (lanes_weights){above_256(low.low, high.low, shift), above_256(low.high, high.high, shift)};
}

FIRNI_INLINE lanes_table lanes_load_table(const uint8_t *p) { return _mm256_broadcastsi128_si256(load_128(p)); }

FIRNI_INLINE lanes_weights lanes_lookup(lanes_weights w, lanes_table table)
{
    return (lanes_weights){_mm256_shuffle_epi8(table, w.low), _mm256_shuffle_epi8(table, w.high)};
}

/* Bit 4 of an index, moved to the sign of its byte, chooses. */
FIRNI_INLINE __m256i lookup_32_256(__m256i w, __m256i low, __m256i high)
{
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(low, w), _mm256_shuffle_epi8(high, w), _mm256_slli_epi16(w, 3));
}

FIRNI_INLINE lanes_weights lanes_lookup_32(lanes_weights w, lanes_table low, lanes_table high)
{
    return (lanes_weights){lookup_32_256(w.low, low, high), lookup_32_256(w.high, low, high)};
}

FIRNI_INLINE lanes_acts lanes_load_acts(const int16_t *p) { return _mm256_set1_epi32(load_pair(p)); }

FIRNI_INLINE lanes_int lanes_dot(lanes_int sum, lanes_weights w, lanes_acts x)
{
    const __m256i low = _mm256_madd_epi16(w.low, x);
    const __m256i high = _mm256_madd_epi16(w.high, x);
    /* The addition in this form keeps its place. Left to itself, GCC loads the activations of all tokens before it
     * multiplies, and then lacks the registers for twelve sums: a third of the speed is lost to spills. */
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum.low) : "x"(low));
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum.high) : "x"(high));
    return sum;
}

FIRNI_INLINE lanes_int lanes_dot_first(lanes_weights w, lanes_acts x)
{
    return (lanes_int){_mm256_madd_epi16(w.low, x), _mm256_madd_epi16(w.high, x)};
}

FIRNI_INLINE uint32_t lanes_magnitude_bits(lanes a, lanes b)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const __m256i first = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a.low), mask),
                                           _mm256_and_si256(_mm256_castps_si256(a.high), mask));
    const __m256i second = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(b.low), mask),
                                            _mm256_and_si256(_mm256_castps_si256(b.high), mask));
    return fold_max_u31_256(_mm256_max_epi32(first, second));
}

FIRNI_INLINE void lanes_store_i16(int16_t *p, lanes a)
{
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
    const __m256i ordered = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    memcpy(p, &ordered, sizeof(ordered));
}

#endif
