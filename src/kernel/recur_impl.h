/*
 * The tasks of recurrent layers over lanes: lanes are channels, or columns of the state.
 *
 * A tile of the state passes through the registers once a token: while a token updates row i of it, the delta rule
 * already sums what the next token's key recalls of row i. That is the same chain as a pass of its own, in the same
 * order, without reading the tile again.
 */
#ifndef FIRNI_RECUR_IMPL_H
#define FIRNI_RECUR_IMPL_H

#include "kernel/lanes_impl.h"
#include "kernel/recur.h"
#include "kernel/vector_impl.h"

/* ---- convolution ------------------------------------------------------------------------------------------------ */

/* At most 16 channels of one token. `width` is a constant for the common one. */
FIRNI_INLINE void conv_channels(const firni_conv_task *task, float *x, size_t c, size_t n, uint32_t width)
{
    const uint32_t n_past = width - 1;
    const lanes input = load_some(x + c, n);
    lanes sum = task->bias != NULL ? load_some(task->bias + c, n) : lanes_set(0.0f);
    float *past = task->tail + c;
    const float *weight = task->weight + c;
    for (uint32_t j = 0; j < n_past; j++) {
        sum = lanes_fma(load_some(weight + j * task->row_stride, n), load_some(past + j * task->row_stride, n), sum);
    }
    for (uint32_t j = 0; j < n_past; j++) {
        const lanes next = j + 1 < n_past ? load_some(past + (j + 1) * task->row_stride, n) : input;
        store_some(past + j * task->row_stride, next, n);
    }
    sum = lanes_fma(load_some(weight + n_past * task->row_stride, n), input, sum);
    const lanes divisor = lanes_add(lanes_set(1.0f), lanes_exp(lanes_mul(sum, lanes_set(-1.0f))));
    store_some(x + c, lanes_div(sum, divisor), n);
}

/* Tokens outside, so that a row of x is read as it lies in memory; the tail is small enough to stay near. */
static void lanes_conv_silu(const firni_conv_task *task)
{
    assert(task->width >= 1 && task->width <= FIRNI_CONV_WIDTH_MAX);
    for (uint32_t t = 0; t < task->n_tokens; t++) {
        float *x = task->x + t * task->x_stride;
        LANES_FOR(c, n, task->n_channels)
        {
            if (task->width == 4) {
                conv_channels(task, x, c, n, 4);
            } else {
                conv_channels(task, x, c, n, task->width);
            }
        }
    }
}

static void lanes_l2_norm(float *x, uint32_t n, float eps, float scale)
{
    lanes sum = lanes_set(0.0f);
    LANES_FOR(i, count, n)
    {
        const lanes a = load_some(x + i, count);
        sum = lanes_fma(a, a, sum);
    }
    const float length = sqrtf(lanes_fold_sum(sum));
    const lanes factor = lanes_set(scale / (length > eps ? length : eps));
    LANES_FOR(i, count, n) { store_some(x + i, lanes_mul(load_some(x + i, count), factor), count); }
}

/* ---- state ------------------------------------------------------------------------------------------------------ */

/* What a key finds in `n_tiles` neighbouring tiles. */
FIRNI_INLINE void recur_recall(const float *state, const float *k, uint32_t n_keys, unsigned n_tiles, lanes *recalled)
{
    LANES_UNROLL
    for (unsigned part = 0; part < n_tiles; part++) {
        recalled[part] = lanes_set(0.0f);
    }
    for (size_t i = 0; i < n_keys; i++) {
        const lanes key = lanes_set(k[i]);
        LANES_UNROLL
        for (unsigned part = 0; part < n_tiles; part++) {
            recalled[part] = lanes_fma(lanes_load(state + (part * (size_t)n_keys + i) * LANES), key, recalled[part]);
        }
    }
}

/* One token through `n_tiles` tiles. With `next_k`, `recalled` becomes what that key finds afterwards. */
FIRNI_INLINE void recur_token(float *state, const float *k, const float *q, const float *next_k, float decay,
                              uint32_t n_keys, unsigned n_tiles, const lanes *delta, lanes *out, lanes *recalled)
{
    const lanes kept = lanes_set(decay);
    LANES_UNROLL
    for (unsigned part = 0; part < n_tiles; part++) {
        out[part] = lanes_set(0.0f);
        recalled[part] = lanes_set(0.0f);
    }
    for (size_t i = 0; i < n_keys; i++) {
        const lanes key = lanes_set(k[i]);
        const lanes query = lanes_set(q[i]);
        LANES_UNROLL
        for (unsigned part = 0; part < n_tiles; part++) {
            float *at = state + (part * (size_t)n_keys + i) * LANES;
            const lanes s = lanes_fma(key, delta[part], lanes_mul(kept, lanes_load(at)));
            lanes_store(at, s);
            out[part] = lanes_fma(s, query, out[part]);
            if (next_k != NULL) {
                recalled[part] = lanes_fma(s, lanes_set(next_k[i]), recalled[part]);
            }
        }
    }
}

/* All tokens through `n_tiles` tiles from `first` on; the last of them may be narrower than 16 columns. */
FIRNI_INLINE void recur_tiles(const firni_recur_task *task, uint32_t first, unsigned n_tiles, bool is_delta)
{
    enum { TILES_MAX = 2 };
    lanes delta[TILES_MAX];
    lanes value[TILES_MAX];
    lanes out[TILES_MAX];
    lanes recalled[TILES_MAX];
    size_t width[TILES_MAX];
    const uint32_t n_keys = task->n_keys;
    float *state = task->state + (size_t)first * n_keys * LANES;
    LANES_UNROLL
    for (unsigned part = 0; part < n_tiles; part++) {
        const size_t left = task->n_values - (first + part) * (size_t)LANES;
        width[part] = left < LANES ? left : LANES;
        recalled[part] = lanes_set(0.0f);
    }
    if (is_delta) {
        recur_recall(state, task->k, n_keys, n_tiles, recalled);
    }
    for (uint32_t t = 0; t < task->n_tokens; t++) {
        const float *k = task->k + t * task->x_stride;
        const float *q = task->q + t * task->x_stride;
        const float decay = task->decay[t * task->gate_stride];
        const lanes strength = lanes_set(task->strength[t * task->gate_stride]);
        LANES_UNROLL
        for (unsigned part = 0; part < n_tiles; part++) {
            value[part] = load_some(task->v + t * task->x_stride + (first + part) * (size_t)LANES, width[part]);
            delta[part] = is_delta ? lanes_fma(lanes_set(-decay), recalled[part], value[part]) : value[part];
            delta[part] = lanes_mul(delta[part], strength);
        }
        if (is_delta && t + 1 < task->n_tokens) {
            recur_token(state, k, q, k + task->x_stride, decay, n_keys, n_tiles, delta, out, recalled);
        } else {
            recur_token(state, k, q, NULL, decay, n_keys, n_tiles, delta, out, recalled);
        }
        LANES_UNROLL
        for (unsigned part = 0; part < n_tiles; part++) {
            const lanes shown = is_delta ? out[part] : lanes_fma(lanes_set(task->skip), value[part], out[part]);
            if (task->out != NULL) {
                store_some(task->out + t * task->out_stride + (first + part) * (size_t)LANES, shown, width[part]);
            }
        }
    }
}

static void lanes_recur(const firni_recur_task *task)
{
    const uint32_t n_tiles = (task->n_values + LANES - 1) / LANES;
    uint32_t first = 0;
    if (task->n_tokens == 0) {
        return;
    }
    for (; first + 2 <= n_tiles; first += 2) {
        if (task->is_delta) {
            recur_tiles(task, first, 2, true);
        } else {
            recur_tiles(task, first, 2, false);
        }
    }
    if (first < n_tiles) {
        recur_tiles(task, first, 1, task->is_delta);
    }
}

#endif
