/*
 * Activations of experts that are not plain SwiGLU.
 *
 * Built from kernels and from single operations that every processor rounds alike, so that all variants give the same
 * bits here too. Source: gpt-oss's published model code.
 */
#include "model/arch_impl.h"

#define GATE_MAX 7.0F
#define GATE_SLOPE 1.702F
#define CHUNK 64u

/* Comparisons that let a NaN through. */
void firni_swiglu_clamped(const firni_kernels *kernels, float *gate, const float *up, uint32_t n)
{
    for (uint32_t begin = 0; begin < n; begin += CHUNK) {
        const uint32_t n_chunk = n - begin < CHUNK ? n - begin : CHUNK;
        float product[CHUNK];
        for (uint32_t i = 0; i < n_chunk; i++) {
            const float g = gate[begin + i] > GATE_MAX ? GATE_MAX : gate[begin + i];
            const float low = up[begin + i] < -GATE_MAX ? -GATE_MAX : up[begin + i];
            const float u = low > GATE_MAX ? GATE_MAX : low;
            product[i] = g * (u + 1.0F);
            gate[begin + i] = GATE_SLOPE * g;
        }
        kernels->sigmoid_mul(gate + begin, gate + begin, product, n_chunk);
    }
}
