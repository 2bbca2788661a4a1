/*
 * weight_block: one block of a grouped weight format, as it lies in a GGUF file: to f32, and into a panel.
 */
#ifndef FIRNI_WEIGHT_BLOCK_H
#define FIRNI_WEIGHT_BLOCK_H

#include "kernel/kernel_impl.h"

/* The numbers that the block stands for, each rounded once to f32. `block` has byte alignment. */
void firni_weight_block_to_f32(firni_weight_type type, const uint8_t *block, float *out);
/* Into one lane of a block of a panel (packed.h). */
void firni_weight_block_pack(firni_weight_type type, const uint8_t *block, uint8_t *panel_block, uint32_t lane);

#endif
