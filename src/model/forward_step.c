/*
 * What the blocks of a forward share: loops over tokens, projections, norms, the residual stream, and leaving out
 * tokens that nothing depends on any more.
 *
 * Owns nothing. A loop over tokens is divided over the workers only when there is enough to divide; each token's
 * arithmetic is the same either way.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

/* Below this, waking the workers costs more than the work. */
#define PARALLEL_TOKENS_MIN 8u
#define TOKENS_PER_TASK 4u

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Queries, keys and values of one token side by side. */
static uint32_t qkv_width(const firni_hparams *hp)
{
    return hp->n_heads * hp->head_dim + hp->n_kv_heads * (hp->head_dim + hp->value_dim);
}

/* Block inputs and attention outputs share one buffer: the former are used up when the latter begin. */
uint32_t firni_step_h_width(const firni_hparams *hp)
{
    return max_u32(hp->n_embd, hp->n_heads * hp->value_dim);
}

/* So do queries, keys and values, the attention block's output, and the gates of the feed-forward block. */
uint32_t firni_step_wide_width(const firni_hparams *hp)
{
    return max_u32(hp->n_embd, max_u32(qkv_width(hp), 2 * hp->n_ff));
}

uint32_t firni_step_inputs_max(const firni_hparams *hp)
{
    return max_u32(hp->n_ff, firni_step_h_width(hp));
}

typedef struct token_loop {
    firni_step *step;
    void (*task)(const firni_step *step, const void *ctx, uint32_t token);
    const void *ctx;
} token_loop;

static void token_loop_task(void *ctx, uint32_t index, uint32_t thread)
{
    const token_loop *loop = ctx;
    const uint32_t begin = index * TOKENS_PER_TASK;
    const uint32_t left = loop->step->n_tokens - begin;
    const uint32_t n = left < TOKENS_PER_TASK ? left : TOKENS_PER_TASK;
    (void)thread;
    for (uint32_t i = 0; i < n; i++) {
        loop->task(loop->step, loop->ctx, begin + i);
    }
}

void firni_step_each_token(firni_step *step, void (*task)(const firni_step *step, const void *ctx, uint32_t token),
                           const void *ctx)
{
    token_loop loop = { .step = step, .task = task, .ctx = ctx };
    const uint32_t n_tasks = (step->n_tokens + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK;
    firn_workers_run(step->n_tokens < PARALLEL_TOKENS_MIN ? NULL : step->workers, n_tasks, token_loop_task, &loop);
}

/* Nearly always one matrix; several when a file mixes types within a stack. */
void firni_step_project(const firni_step *step, const firni_projection *projection, const float *x, uint32_t x_stride,
                        float *y, uint32_t y_stride)
{
    uint32_t first_row = 0;
    for (uint32_t i = 0; i < projection->n_matrices; i++) {
        const firni_matrix *matrix = &projection->matrices[i];
        firni_matmul(step->kernels, step->workers, matrix, x, x_stride, y + first_row, y_stride, step->n_tokens,
                     step->matmul_scratch);
        first_row += matrix->n_rows;
    }
    assert(first_row == projection->n_rows);
}

static void norm_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const uint32_t n = step->hparams->n_embd;
    step->kernels->rms_norm(step->h + (size_t)token * n, step->x + (size_t)token * n, ctx, n, step->hparams->rms_eps);
}

void firni_step_norm(firni_step *step, const float *weight)
{
    firni_step_each_token(step, norm_token, weight);
}

void firni_projection_finish(const firni_kernels *kernels, const firni_projection *projection, float *y)
{
    if (projection->bias != NULL && projection->is_bias_first) {
        kernels->add(y, projection->bias, projection->n_rows);
    }
    if (projection->scale != NULL) {
        for (uint32_t i = 0; i < projection->n_rows; i++) {
            y[i] *= projection->scale[i];
        }
    }
    if (projection->bias != NULL && !projection->is_bias_first) {
        kernels->add(y, projection->bias, projection->n_rows);
    }
}

/* What add_residual_token needs beside the step. */
typedef struct residual {
    float *y;
    const firni_projection *projection;
} residual;

static void add_residual_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const residual *r = ctx;
    const uint32_t n = step->hparams->n_embd;
    float *y = r->y + (size_t)token * n;
    firni_projection_finish(step->kernels, r->projection, y);
    step->kernels->add(step->x + (size_t)token * n, y, n);
}

void firni_step_add_residual(firni_step *step, float *y, const firni_projection *projection)
{
    const residual r = { .y = y, .projection = projection };
    firni_step_each_token(step, add_residual_token, &r);
}

/*      row 0: a b c d   row 1: e f     needed: 1 and 2      becomes      d   e f
 *
 * Rows keep their order, so the wanted places that forward.c has planned are right afterwards. */
void firni_step_narrow(firni_step *step, float *rows, uint32_t stride)
{
    const size_t n_embd = step->hparams->n_embd;
    uint32_t from = 0;
    uint32_t to = 0;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        from += step->counts[r] - step->needed[r];
        /* Only ever towards the front, so moving row by row overwrites nothing that is still to be moved. */
        for (uint32_t i = 0; i < step->needed[r]; i++, from++, to++) {
            if (from != to) {
                memmove(step->x + to * n_embd, step->x + from * n_embd, n_embd * sizeof(float));
                memmove(rows + (size_t)to * stride, rows + (size_t)from * stride, stride * sizeof(float));
            }
        }
    }
    assert(from == step->n_tokens && to == step->n_needed);
    step->n_tokens = to;
    step->counts = step->needed;
}
