/*
 * The matrix product of a vector variant: panels against tokens, in tiles of registers. Written over lanes; products
 * with float weights are tile_impl.h, those with grouped weights grouped_impl.h.
 *
 * Measured on Zen 3 (AVX2), one thread of a shared machine: 512 tokens, K = 1,024 and 6,912: 107 to 118 GOP/s of the
 * 134 that multiply-add and add of 16-bit pairs alone reach; one token over weights in memory reads faster than a plain
 * streaming read, since four panels are four streams; f16 weights: 76 to 88 GFLOP/s of the 80 to 88 that multiply-adds
 * alone reach. Tried and dropped: operations ordered by the compiler (75 GOP/s, see lanes_avx2.h); the loop over pairs
 * unrolled in full (+3 %, much more code; where elements are expanded first it is worth it, see many_impl.h).
 */
#ifndef FIRNI_MATMUL_IMPL_H
#define FIRNI_MATMUL_IMPL_H

#include "kernel/grouped_impl.h"
#include "kernel/many_impl.h"
#include "kernel/packed.h"
#include "kernel/tile_impl.h"
#include "kernel/variants_impl.h"

static void lanes_prepare(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                          uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts)
{
    if (firni_weight_is_grouped(type)) {
        prepare_groups(type, x, x_stride, n_cols, token_begin, token_end, n_tokens, acts);
        return;
    }
    for (uint32_t t = token_begin; t < token_end; t++) {
        memcpy((float *)acts + (size_t)t * n_cols, x + t * x_stride, n_cols * sizeof(float));
    }
}

/* ---- panels against tokens ------------------------------------------------------------------------------------ */

/* Tokens [token, token + n) against panels [panel, panel + w), into y (w * 16 outputs a token). */
static void multiply_panels(const firni_matrix *w, const void *acts, uint32_t n_tokens, uint32_t token, unsigned n,
                            uint32_t panel, unsigned width, float *y, size_t y_stride)
{
    if (firni_weight_is_grouped(w->type)) {
        multiply_grouped_panels(w, acts, n_tokens, token, n, panel, width, y, y_stride);
        return;
    }
    const size_t panel_bytes = firni_panel_bytes(w->type, w->n_cols);
    const uint8_t *panels = w->panels + panel * panel_bytes;
    const size_t row_bytes = FIRNI_PANEL_ROWS * firni_plain_element_bytes(firni_weight_dtype(w->type));
    tile t = {
        .b = panels,
        .b_row_bytes = row_bytes,
        .b_block_bytes = panel_bytes,
        .count = w->n_cols,
        .ahead = (uintptr_t)panels + MATMUL_AHEAD_BYTES,
        .ahead_row_bytes = row_bytes,
        .ahead_block_bytes = panel_bytes,
        .c = y,
        .c_stride = y_stride,
    };
    for (unsigned i = 0; i < n; i++) {
        t.a[i] = (const float *)acts + (size_t)(token + i) * w->n_cols;
    }
    tile_multiply(firni_weight_dtype(w->type), n, width, &t);
}

/* The last panel of a matrix whose rows do not fill it. */
static void multiply_ragged_panel(const firni_matrix *w, const void *acts, uint32_t n_tokens, uint32_t token,
                                  unsigned n, uint32_t panel, float *y, size_t y_stride)
{
    float rows[TILE_ROWS_MAX * LANES];
    const uint32_t n_rows = w->n_rows - panel * FIRNI_PANEL_ROWS;
    multiply_panels(w, acts, n_tokens, token, n, panel, 1, rows, LANES);
    for (unsigned i = 0; i < n; i++) {
        memcpy(y + i * y_stride, rows + i * LANES, n_rows * sizeof(float));
    }
}

static void lanes_matmul_panels(const firni_matrix *w, const void *acts, float *y, size_t y_stride, uint32_t n_tokens,
                                uint32_t panel_begin, uint32_t panel_end)
{
    const unsigned accumulators = firni_weight_is_grouped(w->type) ? LANES_DOT_ACCUMULATORS : LANES_ACCUMULATORS;
    if (firni_is_expanded_once(w->type, n_tokens)) {
        many_multiply_panels(w, acts, y, y_stride, n_tokens, panel_begin, panel_end);
        return;
    }
    const uint32_t n_full = w->n_rows / FIRNI_PANEL_ROWS;
    /* Tiles of nearly equal numbers of tokens: 7 is 4 + 3, not 6 + 1. */
    const uint32_t n_tiles = (n_tokens + TILE_ROWS_MAX - 1) / TILE_ROWS_MAX;
    uint32_t token = 0;
    for (uint32_t i = 0; i < n_tiles; i++) {
        const unsigned n = (n_tokens - token) / (n_tiles - i);
        const unsigned widest = tile_width(n, accumulators);
        uint32_t panel = panel_begin;
        while (panel < panel_end) {
            float *out = y + token * y_stride + (size_t)panel * FIRNI_PANEL_ROWS;
            if (panel >= n_full) {
                multiply_ragged_panel(w, acts, n_tokens, token, n, panel, out, y_stride);
                panel++;
                continue;
            }
            const uint32_t room = (panel_end < n_full ? panel_end : n_full) - panel;
            const unsigned width = room >= widest ? widest : 1;
            multiply_panels(w, acts, n_tokens, token, n, panel, width, out, y_stride);
            panel += width;
        }
        token += n;
    }
}

#endif
