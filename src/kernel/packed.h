/*
 * packed: how weights and activations lie in memory for the matrix product.
 *
 * Weights are cut into panels of 16 rows, so that the 16 lanes of a vector are 16 outputs and each output is one chain
 * over K in one lane:
 *
 *   f32, f16, bf16   [K][16 rows] elements
 *   q8_0             [K / 32] groups of 16 f16 scales and [16 pairs of k][16 rows][2] signed bytes (544 bytes)
 *
 * Two neighbours in k of one row lie side by side because the 16-bit multiply-add of every instruction set sums pairs.
 *
 * Activations for q8_0 weights: int16 [n_tokens][K], then f32 scales [n_tokens][K / 32]. For float weights they are
 * plain f32 rows of K. Both begin at a 64-byte boundary.
 */
#ifndef FIRNI_PACKED_H
#define FIRNI_PACKED_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "kernel/kernel_impl.h"

#define FIRNI_GROUP 32u /* elements of one row that share a scale */

typedef struct firni_q8_group {
    uint16_t scales[FIRNI_PANEL_ROWS]; /* f16 */
    int8_t pairs[FIRNI_GROUP / 2][FIRNI_PANEL_ROWS][2];
} firni_q8_group;

static_assert(sizeof(firni_q8_group) == 544, "a group of 16 rows is 34 bytes for each row, as in a GGUF file");

/* A group whose largest magnitude is below this has the scale 0: its reciprocal could overflow. */
#define FIRNI_ACTIVATION_TINY 0x1p-100f
#define FIRNI_ACTIVATION_MAX 32767.0f

/* The two parts of quantised activations. */
typedef struct firni_q8_acts {
    const int16_t *values;
    const float *scales;
} firni_q8_acts;

FIRNI_INLINE firni_q8_acts firni_q8_acts_view(const void *acts, uint32_t n_cols, uint32_t n_tokens)
{
    const int16_t *values = acts;
    const void *scales = values + (size_t)n_tokens * n_cols;
    return (firni_q8_acts){.values = values, .scales = scales};
}

/* Bytes of one panel. */
FIRNI_INLINE size_t firni_panel_bytes(firni_weight_type type, uint32_t n_cols)
{
    return firni_weight_row_bytes(type, n_cols) * FIRNI_PANEL_ROWS;
}

FIRNI_INLINE uint32_t firni_panel_count(uint32_t n_rows)
{
    return n_rows / FIRNI_PANEL_ROWS + (n_rows % FIRNI_PANEL_ROWS != 0);
}

#endif
