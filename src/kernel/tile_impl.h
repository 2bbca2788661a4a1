/*
 * tile: the one inner loop of all floating-point work, a small matrix product kept in registers.
 *
 *     c[i][16 b + lane]  (+)=  sum over k, ascending, of  a[i][k] * b_row(k)[16 b + lane]
 *
 * It is the matrix product (a: activations of token i, b: a panel of 16 rows), the scores of attention (a: queries,
 * b: keys, dimension-major) and the weighted sum of values (a: softmax weights, b: values). Elements of b are f32, f16
 * or bf16 and converted in registers. Every output is one chain of fused multiply-adds, so the shape of the tile and
 * the number of its rows cannot change a bit.
 *
 * Cost per k of a tile n x w: n * w vector multiply-adds, n broadcasts, w loads (and conversions). AVX2 does two
 * multiply-adds and two to three loads a cycle, so 6 x 1 (12 registers of accumulators) is limited by multiplication
 * and 1 x 4 has the eight independent chains that hide its latency.
 */
#ifndef FIRNI_TILE_IMPL_H
#define FIRNI_TILE_IMPL_H

#include <assert.h>

#include "kernel/lanes_impl.h"

enum { TILE_ROWS_MAX = 6 };

typedef struct tile {
    const float *a[TILE_ROWS_MAX]; /* n rows of `count` floats */
    const uint8_t *b;
    size_t b_row_bytes;   /* from k to k + 1 */
    size_t b_block_bytes; /* from one 16-vector to the next of the same k */
    uint32_t count;       /* of k */
    uintptr_t ahead; /* an address to prefetch from, in the same pattern: one for each vector read */
    size_t ahead_row_bytes;
    size_t ahead_block_bytes;
    float *c;
    size_t c_stride; /* floats from row i to row i + 1 */
    bool add;        /* continue the chains found in c; otherwise start at zero */
} tile;

FIRNI_INLINE void tile_multiply_shape(const firn_dtype dtype, const unsigned n, const unsigned w, const tile *t)
{
    lanes sums[TILE_ROWS_MAX][4];
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            sums[i][j] = t->add ? lanes_load(t->c + i * t->c_stride + j * LANES) : lanes_set(0.0f);
        }
    }
    const uint8_t *row = t->b;
    uintptr_t ahead = t->ahead;
    for (uint32_t k = 0; k < t->count; k++, row += t->b_row_bytes, ahead += t->ahead_row_bytes) {
        lanes b[4];
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            b[j] = lanes_load_as(dtype, row + j * t->b_block_bytes);
            __builtin_prefetch((const void *)(ahead + j * t->ahead_block_bytes));
        }
        LANES_UNROLL
        for (unsigned i = 0; i < n; i++) {
            const lanes a = lanes_set(t->a[i][k]);
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                sums[i][j] = lanes_fma(a, b[j], sums[i][j]);
            }
        }
    }
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            lanes_store(t->c + i * t->c_stride + j * LANES, sums[i][j]);
        }
    }
}

/* The widest tile of n rows: 1, 2 or 4 vectors. */
FIRNI_INLINE unsigned tile_width(unsigned n, unsigned accumulators)
{
    return n * 4 <= accumulators ? 4 : n * 2 <= accumulators ? 2 : 1;
}

FIRNI_INLINE void tile_multiply_rows(const firn_dtype dtype, const unsigned n, unsigned w, const tile *t)
{
    const unsigned widest = tile_width(n, LANES_ACCUMULATORS);
    if (widest >= 4 && w == 4) {
        tile_multiply_shape(dtype, n, 4, t);
    } else if (widest >= 2 && w == 2) {
        tile_multiply_shape(dtype, n, 2, t);
    } else {
        assert(w == 1);
        tile_multiply_shape(dtype, n, 1, t);
    }
}

FIRNI_INLINE void tile_multiply_dtype(const firn_dtype dtype, unsigned n, unsigned w, const tile *t)
{
    switch (n) {
    case 1: tile_multiply_rows(dtype, 1, w, t); break;
    case 2: tile_multiply_rows(dtype, 2, w, t); break;
    case 3: tile_multiply_rows(dtype, 3, w, t); break;
    case 4: tile_multiply_rows(dtype, 4, w, t); break;
    case 5: tile_multiply_rows(dtype, 5, w, t); break;
    default:
        assert(n == TILE_ROWS_MAX);
        tile_multiply_rows(dtype, TILE_ROWS_MAX, w, t);
        break;
    }
}

static void tile_multiply(firn_dtype dtype, unsigned n, unsigned w, const tile *t)
{
    switch (dtype) {
    case FIRN_DTYPE_F16: tile_multiply_dtype(FIRN_DTYPE_F16, n, w, t); break;
    case FIRN_DTYPE_BF16: tile_multiply_dtype(FIRN_DTYPE_BF16, n, w, t); break;
    default:
        assert(dtype == FIRN_DTYPE_F32);
        tile_multiply_dtype(FIRN_DTYPE_F32, n, w, t);
        break;
    }
}

/* The same for one row whose vector has only `n_lanes` elements in memory. */
static void tile_multiply_narrow(firn_dtype dtype, uint32_t n_lanes, const tile *t)
{
    const size_t n_bytes = n_lanes * (dtype == FIRN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
    lanes sum = t->add ? lanes_load(t->c) : lanes_set(0.0f);
    for (uint32_t k = 0; k < t->count; k++) {
        uint8_t buffer[LANES * sizeof(float)] = {0};
        memcpy(buffer, t->b + k * t->b_row_bytes, n_bytes);
        sum = lanes_fma(lanes_set(t->a[0][k]), lanes_load_as(dtype, buffer), sum);
    }
    lanes_store(t->c, sum);
}

#endif
