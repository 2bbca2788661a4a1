/*
 * Compares the AVX-512 variant, compiled over SIMDe's portable versions of the intrinsics, with the scalar reference.
 * This proves its text on machines without the instruction set. Built and run by test_variants_emulated.sh.
 */
#include "kernel/variants_impl.h"
#include "variant_checks.h"

/* Emulate, even where this machine has some of the instructions. */
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include "kernel/numbers.h"

/* What this version of SIMDe lacks, or approximates: its multiply-add rounds twice. Written from the descriptions in
 * the instruction set reference. */
static simde__m512 emulated_fmadd(simde__m512 a, simde__m512 b, simde__m512 c)
{
    float x[16], y[16], z[16];
    simde_mm512_storeu_ps(x, a);
    simde_mm512_storeu_ps(y, b);
    simde_mm512_storeu_ps(z, c);
    for (int i = 0; i < 16; i++) {
        z[i] = fmaf(x[i], y[i], z[i]);
    }
    return simde_mm512_loadu_ps(z);
}

static simde__m512 emulated_cvtph(const simde__m256i *a)
{
    uint16_t half[16];
    float x[16];
    memcpy(half, a, sizeof(half));
    for (int i = 0; i < 16; i++) {
        x[i] = firni_f16_to_f32(half[i]);
    }
    return simde_mm512_loadu_ps(x);
}

static simde__m256i emulated_cvtps_ph(simde__m512 a)
{
    uint16_t half[16];
    float x[16];
    simde_mm512_storeu_ps(x, a);
    for (int i = 0; i < 16; i++) {
        half[i] = firni_f16_from_f32(x[i]);
    }
    return simde_mm256_loadu_si256((const void *)half);
}

static simde__m512i emulated_cvtps_epi32(simde__m512 a)
{
    int32_t n[16];
    float x[16];
    simde_mm512_storeu_ps(x, a);
    for (int i = 0; i < 16; i++) {
        n[i] = (int32_t)lrintf(x[i]);
    }
    return simde_mm512_loadu_si512(n);
}

static simde__m512 emulated_cvtepi32_ps(simde__m512i a)
{
    int32_t n[16];
    float x[16];
    simde_mm512_storeu_si512(n, a);
    for (int i = 0; i < 16; i++) {
        x[i] = (float)n[i];
    }
    return simde_mm512_loadu_ps(x);
}

static simde__m256i emulated_cvtepi32_epi16(simde__m512i a)
{
    int32_t n[16];
    int16_t narrow[16];
    simde_mm512_storeu_si512(n, a);
    for (int i = 0; i < 16; i++) {
        narrow[i] = (int16_t)n[i];
    }
    return simde_mm256_loadu_si256((const void *)narrow);
}

static simde__m512i emulated_cvtepu16_epi32(const simde__m256i *a)
{
    uint16_t narrow[16];
    int32_t n[16];
    memcpy(narrow, a, sizeof(narrow));
    for (int i = 0; i < 16; i++) {
        n[i] = narrow[i];
    }
    return simde_mm512_loadu_si512(n);
}

static simde__m512i emulated_cvtepu8_epi32(simde__m128i a)
{
    uint8_t narrow[16];
    int32_t n[16];
    memcpy(narrow, &a, sizeof(narrow));
    for (int i = 0; i < 16; i++) {
        n[i] = narrow[i];
    }
    return simde_mm512_loadu_si512(n);
}

static simde__m512i emulated_cvtepi8_epi32(simde__m128i a)
{
    int8_t narrow[16];
    int32_t n[16];
    memcpy(narrow, &a, sizeof(narrow));
    for (int i = 0; i < 16; i++) {
        n[i] = narrow[i];
    }
    return simde_mm512_loadu_si512(n);
}

#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps(a, b, c) emulated_fmadd(a, b, c)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated_cvtph((const simde__m256i[1]){a})
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(a) emulated_cvtps_epi32(a)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(a) emulated_cvtepi32_epi16(a)
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32((const simde__m256i[1]){a})
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(a) emulated_cvtepu8_epi32(a)
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(a) emulated_cvtepi8_epi32(a)

/* The operations as functions, and no forced inlining of the rest: the emulation of every operation in every unrolled
 * loop would take compilers minutes. */
#include "kernel/lanes_x86.h"
#undef FIRNI_INLINE
#define FIRNI_INLINE FIRNI_NO_INLINE static
#include "kernel/lanes_avx512.h"
#undef FIRNI_INLINE
#define FIRNI_INLINE static inline

#include "kernel/kernel_avx512.c"

int main(void) { return checks_run(&firni_kernels_scalar, &firni_kernels_avx512, 60) != 0; }
