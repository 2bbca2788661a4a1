/*
 * grouped_scalar: the part of the scalar reference that defines products with grouped weights.
 */
#ifndef FIRNI_GROUPED_SCALAR_H
#define FIRNI_GROUPED_SCALAR_H

#include "kernel/kernel_impl.h"
#include "kernel/packed.h"

/* `prepare` of the kernel table, for grouped formats. */
void firni_scalar_prepare_groups(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                                 uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts);
/* The 16 outputs of one panel for one token; the last panel of a matrix has some that nobody wants. */
void firni_scalar_multiply_groups(const firni_matrix *w, const uint8_t *panel, const void *acts, uint32_t n_tokens,
                                  uint32_t token, float y[FIRNI_PANEL_ROWS]);

#endif
