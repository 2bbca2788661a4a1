/*
 * The scalar reference of attention: the walk of one query head over its tiles, and what it reads from plain blocks.
 * Quantised blocks are kernel_quant_scalar.c, latent ones kernel_latent_scalar.c.
 *
 * Sources: online softmax, Milakov and Gimelshein (arXiv 1805.02867) in tiles as in FlashAttention (arXiv 2205.14135).
 */
#include "kernel/scalar_numbers.h"
#include "kernel/variants_impl.h"

enum { LANES = FIRNI_SCALAR_LANES, TILE = FIRN_BLOCK_TOKENS };

/* ---- the walk ------------------------------------------------------------------------------------------------- */

/* The state of one query head while it walks its tiles. */
typedef struct walk {
    float max;
    float sums[LANES];
    float values[FIRNI_HEAD_DIM_MAX];
} walk;

/* Adds tokens [begin, end) of one tile. */
static void walk_tile(walk *state, firni_scalar_attend *attend, const uint8_t *block, uint32_t begin,
                      uint32_t end)
{
    const firni_attend_task *task = attend->task;
    float weights[TILE] = {0};
    float max = state->max;
    for (uint32_t t = begin; t < end; t++) {
        if ((attend->seen >> t & 1) == 0) {
            continue;
        }
        const float score = attend->score(attend, block, t) * task->scale;
        weights[t] = task->softcap == 0.0f ? score : task->softcap * scalar_tanh(score * (1.0f / task->softcap));
        max = larger(weights[t], max);
    }
    const float rescale = scalar_exp(state->max - max);
    state->max = max;
    for (uint32_t t = begin; t < end; t++) {
        weights[t] = (attend->seen >> t & 1) != 0 ? scalar_exp(weights[t] - max) : 0.0f;
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        float sum = fmaf(state->sums[lane], rescale, weights[lane]);
        for (unsigned t = lane + LANES; t < TILE; t += LANES) {
            sum += weights[t];
        }
        state->sums[lane] = sum;
    }
    for (uint32_t j = 0; j < attend->value_dim; j++) {
        state->values[j] *= rescale;
    }
    attend->add_values(attend, block, weights, begin, end, rescale, state->values);
}

static void attend_query_head(firni_scalar_attend *attend, uint32_t query, uint32_t head)
{
    const firni_attend_task *task = attend->task;
    const firni_visible visible = firni_visible_tokens(task, query);
    const firni_attend_row row = firni_attend_row_of(task, query);
    float *out = task->out + query * task->out_stride + (size_t)head * attend->value_dim;
    attend->q = task->q + query * task->q_stride + (size_t)head * attend->head_dim;
    if (attend->start != NULL) {
        attend->start(attend);
    }
    walk state = {.max = FIRNI_SCORE_LOWEST};
    for (uint32_t tile = visible.begin / TILE; tile <= (visible.end - 1) / TILE; tile++) {
        const uint32_t first = tile * TILE;
        const uint32_t begin = visible.begin > first ? visible.begin - first : 0;
        const uint32_t end = visible.end - first < TILE ? visible.end - first : TILE;
        attend->seen = attend->seen_of != NULL ? attend->seen_of(attend, tile) : UINT64_MAX;
        if (attend->seen == 0) {
            continue;
        }
        walk_tile(&state, attend, firn_block_data(firni_attend_block(&row, tile)), begin, end);
    }
    if (attend->finish != NULL) {
        attend->finish(attend, state.values);
    }
    float rescale = 1.0f;
    float sum = fold_sum(state.sums);
    if (task->sinks != NULL) {
        const float max = larger(task->sinks[head], state.max);
        rescale = scalar_exp(state.max - max);
        sum = fmaf(sum, rescale, scalar_exp(task->sinks[head] - max));
    }
    const float inverse = rescale / sum;
    for (uint32_t j = 0; j < attend->value_dim; j++) {
        out[j] = state.values[j] * inverse;
    }
}

void firni_scalar_attend_all(firni_scalar_attend *attend)
{
    for (uint32_t query = 0; query < attend->task->n_queries; query++) {
        for (uint32_t head = 0; head < attend->task->group_size; head++) {
            attend_query_head(attend, query, head);
        }
    }
}

/* ---- plain blocks --------------------------------------------------------------------------------------------- */

static float plain_score(const firni_scalar_attend *attend, const uint8_t *block, uint32_t lane)
{
    const firni_plain_geometry *geometry = attend->task->geometry;
    const uint8_t *k_plane = firni_plain_planes_of(geometry, block, attend->task->kv_head).k;
    float score = 0.0f;
    for (uint32_t d = 0; d < geometry->head_dim; d++) {
        score = fmaf(attend->q[d], load_element(geometry->dtype, k_plane, (size_t)d * TILE + lane), score);
    }
    return score;
}

static void plain_add_values(firni_scalar_attend *attend, const uint8_t *block, const float *weights,
                             uint32_t begin, uint32_t end, float rescale, float *values)
{
    (void)rescale; /* there is nothing beside the values */
    const firni_plain_geometry *geometry = attend->task->geometry;
    const uint8_t *v_plane = firni_plain_planes_of(geometry, block, attend->task->kv_head).v;
    for (uint32_t j = 0; j < geometry->value_dim; j++) {
        for (uint32_t t = begin; t < end; t++) {
            const float v = load_element(geometry->dtype, v_plane, (size_t)t * geometry->value_dim + j);
            values[j] = fmaf(weights[t], v, values[j]);
        }
    }
}

void firni_scalar_attend_plain(const firni_attend_task *task)
{
    firni_attend_task_check(task);
    firni_scalar_attend attend = {
        .task = task,
        .head_dim = task->geometry->head_dim,
        .value_dim = task->geometry->value_dim,
        .score = plain_score,
        .add_values = plain_add_values,
    };
    firni_scalar_attend_all(&attend);
}
