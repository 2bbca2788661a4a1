/*
 * What the two x86-64 lane headers share: loads, the lower part of the folds, and sums of 16-bit integers.
 */
#ifndef FIRNI_LANES_X86_H
#define FIRNI_LANES_X86_H

/* A test may have brought emulated intrinsics of the same names. */
#if !defined(SIMDE_X86_AVX512_H)
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

FIRNI_INLINE __m128i load_64(const void *p) { return _mm_loadl_epi64(p); }
FIRNI_INLINE __m128i load_128(const void *p) { return _mm_loadu_si128(p); }
FIRNI_INLINE void store_256(void *p, __m256i a) { _mm256_storeu_si256(p, a); }
FIRNI_INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256(p); }

/* 4 + 4, 2 + 2, 1 + 1 */
FIRNI_INLINE float fold_sum_256(__m256 eight)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

FIRNI_INLINE float fold_larger_256(__m256 eight)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

FIRNI_INLINE uint32_t fold_max_u31_256(__m256i eight)
{
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1))));
}

FIRNI_INLINE int32_t lanes_sum_i16(const int16_t *p)
{
    const __m256i eight = _mm256_madd_epi16(load_256(p), _mm256_set1_epi16(1));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1))));
}

/* Two neighbouring i16 as one i32, for broadcasting. */
FIRNI_INLINE int32_t load_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof(pair));
    return pair;
}

#endif
