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

/* Block inputs and attention outputs share h: the former are used up when the latter begin. Queries, keys and values,
 * the attention block's output, and the gates of the feed-forward block share wide. */
firni_widths firni_step_widths(const firni_hparams *hp)
{
    firni_widths w = { .h = hp->n_embd, .wide = hp->n_embd, .inputs_max = hp->n_embd };
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firni_layer_shape *l = &hp->layers[i];
        const uint32_t out = l->n_heads * l->value_dim;
        const uint32_t qkv = l->n_heads * l->head_dim + l->n_kv_heads * (l->head_dim + l->value_dim);
        /* Of a mixture, only the expert that all tokens pass works here. */
        const uint32_t n_ff = l->has_experts ? hp->moe.n_ff_shared : l->n_ff;
        w.h = max_u32(w.h, out);
        w.wide = max_u32(w.wide, max_u32(qkv, 2 * n_ff));
        w.inputs_max = max_u32(w.inputs_max, max_u32(out, n_ff));
    }
    return w;
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
        *step->multiply_adds += (uint64_t)matrix->n_rows * matrix->n_cols * step->n_tokens;
    }
    assert(first_row == projection->n_rows);
}

void firni_step_multiply_each(const firni_step *step, firni_matmul_item *items, uint32_t n_items, size_t x_stride,
                              size_t y_stride, void *acts)
{
    firni_matmul_each(step->kernels, step->workers, items, n_items, x_stride, y_stride, acts);
    for (uint32_t i = 0; i < n_items; i++) {
        *step->multiply_adds += (uint64_t)items[i].w->n_rows * items[i].w->n_cols * items[i].n_tokens;
    }
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
    const float *weight;
} residual;

static void add_residual_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const residual *r = ctx;
    const uint32_t n = step->hparams->n_embd;
    float *y = r->y + (size_t)token * n;
    firni_projection_finish(step->kernels, r->projection, y);
    if (r->weight != NULL) {
        step->kernels->rms_norm(y, y, r->weight, n, step->hparams->rms_eps);
    }
    step->kernels->add(step->x + (size_t)token * n, y, n);
}

void firni_step_add_normed(firni_step *step, float *y, const firni_projection *projection, const float *weight)
{
    const residual r = { .y = y, .projection = projection, .weight = weight };
    firni_step_each_token(step, add_residual_token, &r);
}

void firni_step_add_residual(firni_step *step, float *y, const firni_projection *projection)
{
    firni_step_add_normed(step, y, projection, NULL);
}

void firni_step_carry(firni_step *step, float *rows, uint32_t stride)
{
    assert(step->n_carried < FIRNI_CARRIED_MAX);
    step->carried[step->n_carried++] = (firni_carried){ .rows = rows, .stride = stride };
}

/* Only ever towards the front, so moving row by row overwrites nothing that is still to be moved. */
static void move_rows(float *rows, size_t stride, uint32_t to, uint32_t from)
{
    memmove(rows + to * stride, rows + from * stride, stride * sizeof(float));
}

/*      row 0: a b c d   row 1: e f     needed: 1 and 2      becomes      d   e f
 *
 * Rows keep their order, so the wanted places that forward.c has planned are right afterwards. */
void firni_step_narrow(firni_step *step, float *rows, uint32_t stride)
{
    const firni_hparams *hp = step->hparams;
    uint32_t from = 0;
    uint32_t to = 0;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        from += step->counts[r] - step->needed[r];
        for (uint32_t i = 0; i < step->needed[r]; i++, from++, to++) {
            if (from == to) {
                continue;
            }
            move_rows(step->x, hp->n_embd, to, from);
            move_rows(rows, stride, to, from);
            for (uint32_t k = 0; k < hp->n_ropes; k++) {
                move_rows(step->cos_sin[k], hp->ropes[k].n_dims, to, from);
            }
            for (uint32_t k = 0; k < step->n_carried; k++) {
                move_rows(step->carried[k].rows, step->carried[k].stride, to, from);
            }
        }
    }
    assert(from == step->n_tokens && to == step->n_needed);
    step->n_tokens = to;
    step->counts = step->needed;
    step->tokens = NULL;
}
