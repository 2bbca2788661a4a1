/*
 * Compares the best variant of the processor it runs on with the scalar reference. A program without a test framework,
 * so that it can be built for another processor and run under an emulator: see test_variants_emulated.sh.
 */
#include "kernel/variants_impl.h"
#include "variant_checks.h"

int main(void)
{
    const firni_kernels *best = firni_kernels_select(NULL, NULL);
    if (best == &firni_kernels_scalar) {
        printf("# nothing but the scalar reference is usable here\n");
        return 1;
    }
    return checks_run(&firni_kernels_scalar, best, 24) != 0;
}
