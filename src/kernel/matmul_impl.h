/*
 * The matrix product of a vector variant: activations to 16 bits, and panels against tokens. Written over lanes.
 *
 * Work of q8_0 per group of 32 k, for n tokens and w panels: 16 n w multiply-adds of pairs, 16 n broadcasts, 16 w loads
 * of 32 bytes; then one scale product and one fused multiply-add for each of the n w chains. Integer sums are exact, so
 * their order is free; the float chain adds groups in ascending order.
 *
 * Measured on Zen 3 (AVX2), one thread of a shared machine: 512 tokens, K = 1,024 and 6,912: 107 to 118 GOP/s of the
 * 134 that multiply-add and add of 16-bit pairs alone reach; one token over weights in memory reads faster than a plain
 * streaming read, since four panels are four streams; f16 weights: 76 to 88 GFLOP/s of the 80 to 88 that multiply-adds
 * alone reach. Tried and dropped: operations ordered by the compiler (75 GOP/s, see lanes_avx2.h); the loop over pairs
 * unrolled in full (+3 %, much more code).
 */
#ifndef FIRNI_MATMUL_IMPL_H
#define FIRNI_MATMUL_IMPL_H

#include "kernel/packed.h"
#include "kernel/tile_impl.h"
#include "kernel/variants_impl.h"

/* One token reads weights once and is bound by memory: fetch this far ahead in each panel. */
enum { MATMUL_AHEAD_BYTES = 2048 };

static float prepare_group(const float *x, int16_t *values)
{
    const lanes low = lanes_load(x);
    const lanes high = lanes_load(x + LANES);
    const float magnitude = firni_f32_from_bits(lanes_magnitude_bits(low, high));
    if (!(magnitude >= FIRNI_ACTIVATION_TINY && magnitude < INFINITY)) {
        memset(values, 0, FIRNI_GROUP * sizeof(values[0]));
        return magnitude < FIRNI_ACTIVATION_TINY ? 0.0f : NAN;
    }
    const lanes inverse = lanes_set(FIRNI_ACTIVATION_MAX / magnitude);
    lanes_store_i16(values, lanes_mul(low, inverse));
    lanes_store_i16(values + LANES, lanes_mul(high, inverse));
    return magnitude / FIRNI_ACTIVATION_MAX;
}

static void lanes_prepare(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                          uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts)
{
    if (type != FIRNI_WEIGHT_Q8_0) {
        for (uint32_t t = token_begin; t < token_end; t++) {
            memcpy((float *)acts + (size_t)t * n_cols, x + t * x_stride, n_cols * sizeof(float));
        }
        return;
    }
    int16_t *values = acts;
    void *scales_start = values + (size_t)n_tokens * n_cols;
    float *scales = scales_start;
    for (uint32_t t = token_begin; t < token_end; t++) {
        for (uint32_t k = 0; k < n_cols; k += FIRNI_GROUP) {
            const size_t at = (size_t)t * n_cols + k;
            scales[at / FIRNI_GROUP] = prepare_group(x + t * x_stride + k, values + at);
        }
    }
}

/* ---- q8_0 ----------------------------------------------------------------------------------------------------- */

typedef struct q8_tile {
    const firni_q8_group *panel; /* the first of w */
    uint32_t n_groups;           /* of a row, and from one panel to the next */
    const int16_t *values;       /* the first token's; the next is n_groups * 32 further */
    const float *scales;
    float *y;
    size_t y_stride;
} q8_tile;

FIRNI_INLINE void q8_multiply_shape(const unsigned n, const unsigned w, const q8_tile *t)
{
    const size_t value_stride = (size_t)t->n_groups * FIRNI_GROUP;
    lanes chains[TILE_ROWS_MAX][4];
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            chains[i][j] = lanes_set(0.0f);
        }
    }
    for (uint32_t g = 0; g < t->n_groups; g++) {
        const firni_q8_group *group = t->panel + g;
        const int16_t *values = t->values + (size_t)g * FIRNI_GROUP;
        lanes_int sums[TILE_ROWS_MAX][4];
        LANES_UNROLL
        for (unsigned i = 0; i < n; i++) {
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                sums[i][j] = lanes_int_zero();
            }
        }
        LANES_UNROLL_LONG
        for (unsigned pair = 0; pair < FIRNI_GROUP / 2; pair++) {
            lanes_weights weights[4];
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                const int8_t *at = group[(size_t)j * t->n_groups].pairs[pair][0];
                weights[j] = lanes_load_weights(at);
                __builtin_prefetch((const void *)((uintptr_t)at + MATMUL_AHEAD_BYTES));
            }
            LANES_UNROLL
            for (unsigned i = 0; i < n; i++) {
                const lanes_acts acts = lanes_load_acts(values + i * value_stride + (size_t)pair * 2);
                LANES_UNROLL
                for (unsigned j = 0; j < w; j++) {
                    sums[i][j] = lanes_dot(sums[i][j], weights[j], acts);
                }
            }
        }
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            const lanes scales = lanes_load_f16(group[(size_t)j * t->n_groups].scales);
            LANES_UNROLL
            for (unsigned i = 0; i < n; i++) {
                const lanes scale = lanes_mul(scales, lanes_set(t->scales[(size_t)i * t->n_groups + g]));
                chains[i][j] = lanes_fma(scale, lanes_int_to_float(sums[i][j]), chains[i][j]);
            }
        }
    }
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            lanes_store(t->y + i * t->y_stride + j * LANES, chains[i][j]);
        }
    }
}

FIRNI_INLINE void q8_multiply_rows(const unsigned n, unsigned w, const q8_tile *t)
{
    const unsigned widest = tile_width(n, LANES_DOT_ACCUMULATORS);
    if (widest >= 4 && w == 4) {
        q8_multiply_shape(n, 4, t);
    } else if (widest >= 2 && w == 2) {
        q8_multiply_shape(n, 2, t);
    } else {
        assert(w == 1);
        q8_multiply_shape(n, 1, t);
    }
}

static void q8_multiply(unsigned n, unsigned w, const q8_tile *t)
{
    switch (n) {
    case 1: q8_multiply_rows(1, w, t); break;
    case 2: q8_multiply_rows(2, w, t); break;
    case 3: q8_multiply_rows(3, w, t); break;
    case 4: q8_multiply_rows(4, w, t); break;
    case 5: q8_multiply_rows(5, w, t); break;
    default:
        assert(n == TILE_ROWS_MAX);
        q8_multiply_rows(TILE_ROWS_MAX, w, t);
        break;
    }
}

/* ---- panels against tokens ------------------------------------------------------------------------------------ */

/* Tokens [token, token + n) against panels [panel, panel + w), into y (w * 16 outputs a token). */
static void multiply_panels(const firni_matrix *w, const void *acts, uint32_t n_tokens, uint32_t token, unsigned n,
                            uint32_t panel, unsigned width, float *y, size_t y_stride)
{
    const size_t panel_bytes = firni_panel_bytes(w->type, w->n_cols);
    const uint8_t *panels = w->panels + panel * panel_bytes;
    if (w->type == FIRNI_WEIGHT_Q8_0) {
        const firni_q8_acts q8 = firni_q8_acts_view(acts, w->n_cols, n_tokens);
        const void *groups = panels;
        const uint32_t n_groups = w->n_cols / FIRNI_GROUP;
        const q8_tile t = {
            .panel = groups,
            .n_groups = n_groups,
            .values = q8.values + (size_t)token * w->n_cols,
            .scales = q8.scales + (size_t)token * n_groups,
            .y = y,
            .y_stride = y_stride,
        };
        q8_multiply(n, width, &t);
        return;
    }
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
    const unsigned accumulators = w->type == FIRNI_WEIGHT_Q8_0 ? LANES_DOT_ACCUMULATORS : LANES_ACCUMULATORS;
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
