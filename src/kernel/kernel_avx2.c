/*
 * The variant for x86-64 with AVX2, FMA and F16C (Haswell, Zen and later). Compiled with those instruction sets:
 * nothing here may run before firni_kernels_select has asked the processor.
 */
#include "kernel/lanes_avx2.h"
#include "kernel/table_impl.h"

const firni_kernels firni_kernels_avx2 = LANES_TABLE;
