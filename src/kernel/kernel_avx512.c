/*
 * The variant for x86-64 with AVX-512 F, BW, VL, DQ and VNNI (Ice Lake, Zen 4 and later). Compiled with those
 * instruction sets: nothing here may run before firni_kernels_select has asked the processor.
 */
#include "kernel/lanes_avx512.h"
#include "kernel/table_impl.h"

const firni_kernels firni_kernels_avx512 = LANES_TABLE;
