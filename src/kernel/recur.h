/*
 * recur: the tasks of recurrent layers: a short causal convolution, the length of keys and queries, and the update of a
 * state matrix. docs/ARITHMETIC.md has the definitions.
 *
 *      S = decay * S + k (x) delta            S [n_keys][n_values], one token after the other
 *      out = S^T q
 *
 *      gated delta rule (arXiv 2412.06464)    delta = strength * (v - decay * S^T k)
 *      Mamba-2 (arXiv 2405.21060)             delta = strength * v, with B as k, C as q, and out + skip * v
 *
 * One column of S is one chain over the keys, ascending, and columns are independent: that is what vectors and threads
 * are divided by. A state lies in tiles of 16 columns, [tile][n_keys][16], so that a tile of 128 keys stays in the
 * first cache while all tokens of a chunk pass over it. Columns beyond n_values in the last tile are zero and stay
 * zero.
 */
#ifndef FIRNI_RECUR_H
#define FIRNI_RECUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIRNI_STATE_COLUMNS 16u
#define FIRNI_CONV_WIDTH_MAX 16u

/* x[t][c] = silu(bias[c] + sum over j of weight[j][c] * input[t - (width - 1) + j][c]), in place. */
typedef struct firni_conv_task {
    float *x;            /* inputs, then results: n_tokens rows, x_stride floats apart */
    float *tail;         /* [width - 1] rows: the inputs before the first token, oldest first; then those up to the
                          * last */
    const float *weight; /* [width] rows, of the oldest input first */
    const float *bias;   /* [n_channels], NULL: zero */
    size_t x_stride;
    size_t row_stride;   /* of tail and weight */
    uint32_t n_tokens;
    uint32_t n_channels;
    uint32_t width;      /* 1..FIRNI_CONV_WIDTH_MAX */
} firni_conv_task;

/* Consecutive tokens of one row through one state matrix. */
typedef struct firni_recur_task {
    float *state;          /* [ceil(n_values / 16)][n_keys][16] */
    const float *k;        /* [n_keys] for each token, x_stride floats apart, like q and v */
    const float *q;
    const float *v;        /* [n_values] */
    const float *decay;    /* >= 0, one for each token, gate_stride floats apart, like strength */
    const float *strength;
    float *out;            /* [n_values] for each token, out_stride floats apart; NULL: only the state is wanted */
    size_t x_stride;
    size_t gate_stride;
    size_t out_stride;
    uint32_t n_tokens;
    uint32_t n_keys;
    uint32_t n_values;
    bool is_delta;         /* the delta rule; else the value is added as it is */
    float skip;            /* multiplies v in the output; not of the delta rule */
} firni_recur_task;

#endif
