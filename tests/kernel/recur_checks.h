/*
 * The part of variant_checks.h that compares the tasks of recurrent layers.
 */
#ifndef FIRN_RECUR_CHECKS_H
#define FIRN_RECUR_CHECKS_H

static inline void checks_convolution_round(variant_checks *checks, unsigned round)
{
    const uint32_t width = round % 3 == 0 ? checks_between(checks, 1, FIRNI_CONV_WIDTH_MAX) : 4;
    const uint32_t n_channels = checks_between(checks, 1, 90);
    const uint32_t n_tokens = checks_between(checks, 0, 9);
    const size_t x_stride = n_channels + checks_between(checks, 0, 5);
    const size_t row_stride = n_channels + checks_between(checks, 0, 5);
    float *x = checks_floats(checks, n_tokens * x_stride, 3.0f);
    float *tail = checks_floats(checks, width * row_stride, 3.0f);
    float *weight = checks_floats(checks, width * row_stride, 1.0f);
    float *bias = checks_floats(checks, n_channels, 1.0f);
    float *other_x = checks_floats(checks, n_tokens * x_stride, 1.0f);
    float *other_tail = checks_floats(checks, width * row_stride, 1.0f);
    memcpy(other_x, x, n_tokens * x_stride * sizeof(*x));
    memcpy(other_tail, tail, width * row_stride * sizeof(*tail));
    firni_conv_task task = {
        .x = x,
        .tail = tail,
        .weight = weight,
        .bias = round % 2 == 0 ? bias : NULL,
        .x_stride = x_stride,
        .row_stride = row_stride,
        .n_tokens = n_tokens,
        .n_channels = n_channels,
        .width = width,
    };
    checks->reference->conv_silu(&task);
    task.x = other_x;
    task.tail = other_tail;
    checks->variant->conv_silu(&task);
    checks_equal(checks, x, other_x, n_tokens * x_stride * sizeof(*x), "conv_silu", width, n_channels, n_tokens);
    checks_equal(checks, tail, other_tail, width * row_stride * sizeof(*tail), "conv_silu: tail", width, n_channels,
                 n_tokens);
    free(x);
    free(tail);
    free(weight);
    free(bias);
    free(other_x);
    free(other_tail);
}

static inline void checks_state_round(variant_checks *checks, unsigned round)
{
    const uint32_t n_keys = round % 4 == 0 ? 64 : checks_between(checks, 1, 40);
    const uint32_t n_values = round % 4 == 1 ? 64 : checks_between(checks, 1, 70);
    const uint32_t n_tokens = checks_between(checks, 0, 7);
    const size_t x_stride = 2 * (size_t)n_keys + n_values + checks_between(checks, 0, 5);
    const size_t out_stride = n_values + checks_between(checks, 0, 5);
    const size_t n_state = (size_t)(n_values + 15) / 16 * 16 * n_keys;
    float *x = checks_floats(checks, n_tokens * x_stride, 1.0f);
    float *gates = checks_floats(checks, n_tokens * 2, 1.0f);
    float *state = checks_floats(checks, n_state, 2.0f);
    float *other = calloc(n_state, sizeof(*other));
    float *a = calloc(n_tokens * out_stride + 1, sizeof(*a));
    float *b = calloc(n_tokens * out_stride + 1, sizeof(*b));
    for (uint32_t i = 0; i < n_tokens; i++) {
        gates[2 * i] = fabsf(gates[2 * i]);
    }
    for (size_t i = 0; i < n_state; i++) {
        /* The columns beyond the last are zero in every state. */
        const size_t column = i / (n_keys * 16) * 16 + i % 16;
        state[i] = column < n_values ? state[i] : 0.0f;
        other[i] = state[i];
    }
    firni_recur_task task = {
        .state = state,
        .k = x,
        .q = x + n_keys,
        .v = x + 2 * (size_t)n_keys,
        .decay = gates,
        .strength = gates + 1,
        .out = a,
        .x_stride = x_stride,
        .gate_stride = 2,
        .out_stride = out_stride,
        .n_tokens = n_tokens,
        .n_keys = n_keys,
        .n_values = n_values,
        .is_delta = round % 2 == 0,
        .skip = 0.75f,
    };
    checks->reference->recur(&task);
    /* In two parts: where a chunk ends may not matter. Without outputs now and then. */
    firni_recur_task part = task;
    const uint32_t n_first = checks_between(checks, 0, n_tokens);
    part.state = other;
    part.out = round % 5 == 0 ? NULL : b;
    part.n_tokens = n_first;
    checks->variant->recur(&part);
    part.k += n_first * x_stride;
    part.q += n_first * x_stride;
    part.v += n_first * x_stride;
    part.decay += n_first * 2;
    part.strength += n_first * 2;
    part.out = part.out != NULL ? b + n_first * out_stride : NULL;
    part.n_tokens = n_tokens - n_first;
    checks->variant->recur(&part);
    checks_equal(checks, state, other, n_state * sizeof(*state), "recur: state", n_keys, n_values, n_tokens);
    if (part.out != NULL) {
        checks_equal(checks, a, b, n_tokens * out_stride * sizeof(*a), "recur", n_keys, n_values, n_tokens);
    }
    free(x);
    free(gates);
    free(state);
    free(other);
    free(a);
    free(b);
}

static inline void checks_recurrence(variant_checks *checks)
{
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        const uint32_t n = checks_between(checks, 1, 140);
        float *a = checks_floats(checks, n, round % 7 == 0 ? 1e-9f : 3.0f);
        float *b = malloc((n + 1) * sizeof(*b));
        memcpy(b, a, n * sizeof(*b));
        checks->reference->l2_norm(a, n, 1e-6f, 0.125f);
        checks->variant->l2_norm(b, n, 1e-6f, 0.125f);
        checks_equal(checks, a, b, n * sizeof(*a), "l2_norm", n, round, 0);
        free(a);
        free(b);
        checks_convolution_round(checks, round);
        checks_state_round(checks, round);
    }
}

#endif
