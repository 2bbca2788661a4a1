/*
 * The variant for 64-bit ARM, where Advanced SIMD and fused multiply-add are part of the base architecture.
 */
#include "kernel/lanes_neon.h"
#include "kernel/table_impl.h"

const firni_kernels firni_kernels_neon = LANES_TABLE;
