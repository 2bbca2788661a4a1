/*
 * The choice of a kernel table. Owns the list of variants of this build and the questions to the processor; the
 * variants' own files hold everything else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/base_impl.h"
#include "kernel/variants_impl.h"

typedef struct variant {
    const firni_kernels *kernels;
    bool (*usable)(void);
} variant;

static bool always(void) { return true; }

#if defined(__x86_64__)
/* The built-in answers include whether the operating system saves the wide registers. It has no name for F16C in every
 * compiler, hence the CPUID leaf. */
static bool has_avx2(void)
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

/* Best first. */
static const variant variants[] = {
#if defined(__x86_64__)
    {.kernels = &firni_kernels_avx512, .usable = has_avx512},
    {.kernels = &firni_kernels_avx2, .usable = has_avx2},
#elif defined(__aarch64__)
    {.kernels = &firni_kernels_neon, .usable = always},
#endif
    {.kernels = &firni_kernels_scalar, .usable = always},
};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

uint32_t firni_kernels_list(const char *names[8])
{
    static_assert(N_VARIANTS <= 8, "names has room for 8");
    uint32_t n = 0;
    for (unsigned i = 0; i < N_VARIANTS; i++) {
        if (variants[i].usable()) {
            names[n++] = variants[i].kernels->name;
        }
    }
    return n;
}

const firni_kernels *firni_kernels_select(const char *name, firn_error *err)
{
    if (name == NULL) {
        const char *wanted = getenv("FIRN_KERNEL");
        name = wanted != NULL && wanted[0] != '\0' ? wanted : NULL;
    }
    for (unsigned i = 0; i < N_VARIANTS; i++) {
        if ((name == NULL || strcmp(name, variants[i].kernels->name) == 0) && variants[i].usable()) {
            return variants[i].kernels;
        }
    }
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    char usable[128] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < n_names && len < sizeof(usable); i++) {
        len += (size_t)snprintf(usable + len, sizeof(usable) - len, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    firni_fail(err, FIRN_ERR_UNSUPPORTED, "kernel variant '%.32s' is unknown or not usable here; usable: %s.", name,
               usable);
    return NULL;
}
