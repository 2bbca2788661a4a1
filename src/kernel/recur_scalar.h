/*
 * The scalar definition of recur.h, in plain loops over one number at a time. Part of kernel_scalar.c, whose exp and
 * fold it takes.
 */
#ifndef FIRNI_RECUR_SCALAR_H
#define FIRNI_RECUR_SCALAR_H

#include <assert.h>
#include <math.h>

#include "kernel/recur.h"

static void scalar_conv_silu(const firni_conv_task *task)
{
    const uint32_t n_past = task->width - 1;
    assert(task->width >= 1 && task->width <= FIRNI_CONV_WIDTH_MAX);
    for (uint32_t t = 0; t < task->n_tokens; t++) {
        for (uint32_t c = 0; c < task->n_channels; c++) {
            float *x = &task->x[t * task->x_stride + c];
            float *past = &task->tail[c];
            const float *weight = &task->weight[c];
            const float input = *x;
            float sum = task->bias != NULL ? task->bias[c] : 0.0f;
            for (uint32_t j = 0; j < n_past; j++) {
                sum = fmaf(weight[j * task->row_stride], past[j * task->row_stride], sum);
                past[j * task->row_stride] = j + 1 < n_past ? past[(j + 1) * task->row_stride] : input;
            }
            sum = fmaf(weight[n_past * task->row_stride], input, sum);
            *x = sum / (1.0f + scalar_exp(-sum));
        }
    }
}

static void scalar_l2_norm(float *x, uint32_t n, float eps, float scale)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    }
    const float factor = scale / larger(sqrtf(fold_sum(lanes)), eps);
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

/* One column of the state, for one token. */
static void recur_column(const firni_recur_task *task, uint32_t token, uint32_t column)
{
    const float *k = task->k + token * task->x_stride;
    const float *q = task->q + token * task->x_stride;
    const float value = task->v[token * task->x_stride + column];
    const float decay = task->decay[token * task->gate_stride];
    const float strength = task->strength[token * task->gate_stride];
    float *state = task->state + (size_t)(column / LANES) * task->n_keys * LANES + column % LANES;
    float delta = value;
    if (task->is_delta) {
        float recalled = 0.0f;
        for (uint32_t i = 0; i < task->n_keys; i++) {
            recalled = fmaf(state[(size_t)i * LANES], k[i], recalled);
        }
        delta = fmaf(-decay, recalled, value);
    }
    delta *= strength;
    float out = 0.0f;
    for (uint32_t i = 0; i < task->n_keys; i++) {
        float *s = &state[(size_t)i * LANES];
        *s = fmaf(k[i], delta, decay * *s);
        out = fmaf(*s, q[i], out);
    }
    if (task->out != NULL) {
        task->out[token * task->out_stride + column] = task->is_delta ? out : fmaf(task->skip, value, out);
    }
}

static void scalar_recur(const firni_recur_task *task)
{
    for (uint32_t t = 0; t < task->n_tokens; t++) {
        for (uint32_t column = 0; column < task->n_values; column++) {
            recur_column(task, t, column);
        }
    }
}

#endif
