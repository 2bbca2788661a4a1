/*
 * synth_quantise: rows of f32 numbers in the formats of a GGUF file.
 */
#ifndef FIRNI_SYNTH_QUANTISE_H
#define FIRNI_SYNTH_QUANTISE_H

#include "kernel/kernel_impl.h"

/* out: firni_weight_row_bytes of n_cols, which is a multiple of the type's block. The same numbers give the same bytes
 * on every machine. */
void firni_synth_quantise_row(firni_weight_type type, const float *row, uint32_t n_cols, uint8_t *out);

#endif
