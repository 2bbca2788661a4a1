/*
 * Compares the NEON variant, compiled over SIMDe's portable versions of the intrinsics, with the scalar reference.
 * Built and run by test_variants_emulated.sh, which also runs the real one under QEMU where that is installed.
 */
#include "kernel/variants_impl.h"
#include "variant_checks.h"

/* Emulate, even where this machine has some of the instructions. */
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/arm/neon.h>

#include "kernel/numbers.h"

/* What this version of SIMDe lacks or approximates: its multiply-add rounds twice, and its half conversions are not
 * exact for every NaN. Written from the descriptions in the architecture manual. */
static simde_float32x4_t emulated_vfmaq(simde_float32x4_t c, simde_float32x4_t a, simde_float32x4_t b)
{
    float x[4], y[4], z[4];
    simde_vst1q_f32(x, a);
    simde_vst1q_f32(y, b);
    simde_vst1q_f32(z, c);
    for (int i = 0; i < 4; i++) {
        z[i] = fmaf(x[i], y[i], z[i]);
    }
    return simde_vld1q_f32(z);
}

static simde_float32x4_t emulated_from_half(simde_uint16x4_t a)
{
    uint16_t half[4];
    float x[4];
    simde_vst1_u16(half, a);
    for (int i = 0; i < 4; i++) {
        x[i] = firni_f16_to_f32(half[i]);
    }
    return simde_vld1q_f32(x);
}

static simde_uint16x4_t emulated_to_half(simde_float32x4_t a)
{
    uint16_t half[4];
    float x[4];
    simde_vst1q_f32(x, a);
    for (int i = 0; i < 4; i++) {
        half[i] = firni_f16_from_f32(x[i]);
    }
    return simde_vld1_u16(half);
}

static simde_int32x4_t emulated_round(simde_float32x4_t a)
{
    int32_t n[4];
    float x[4];
    simde_vst1q_f32(x, a);
    for (int i = 0; i < 4; i++) {
        n[i] = (int32_t)lrintf(x[i]);
    }
    return simde_vld1q_s32(n);
}

static simde_float32x4_t emulated_divide(simde_float32x4_t a, simde_float32x4_t b)
{
    float x[4], y[4];
    simde_vst1q_f32(x, a);
    simde_vst1q_f32(y, b);
    for (int i = 0; i < 4; i++) {
        x[i] /= y[i];
    }
    return simde_vld1q_f32(x);
}

#undef vdivq_f32
#define vdivq_f32(a, b) emulated_divide(a, b)
#undef vcvtnq_s32_f32
#define vcvtnq_s32_f32(a) emulated_round(a)
#undef vfmaq_f32
#define vfmaq_f32(c, a, b) emulated_vfmaq(c, a, b)
#undef vreinterpret_f16_u16
#define vreinterpret_f16_u16(a) (a)
#undef vreinterpret_u16_f16
#define vreinterpret_u16_f16(a) (a)
#undef vcvt_f32_f16
#define vcvt_f32_f16(a) emulated_from_half(a)
#undef vcvt_f16_f32
#define vcvt_f16_f32(a) emulated_to_half(a)

/* No forced inlining: the emulation of every operation in every unrolled loop would take compilers minutes. */
#undef FIRNI_INLINE
#define FIRNI_INLINE FIRNI_NO_INLINE static
#include "kernel/lanes_neon.h"
#undef FIRNI_INLINE
#define FIRNI_INLINE static inline

#include "kernel/kernel_neon.c"

int main(void) { return checks_run(&firni_kernels_scalar, &firni_kernels_neon, 60) != 0; }
