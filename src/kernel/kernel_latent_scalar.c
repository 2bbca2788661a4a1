/*
 * The scalar reference of latent keys (multi-head latent attention) and of the index keys of its sparse form: this file
 * is the definition, one number at a time. The walk over tiles, softmax included, is that of attend_scalar.c.
 *
 * Sources: latent attention, DeepSeek-V2 (arXiv 2405.04434, section 2.1); the index score, DeepSeek-V3.2-Exp (report,
 * section 2.1, "lightning indexer").
 */
#include <assert.h>
#include <math.h>

#include "kernel/scalar_numbers.h"
#include "kernel/variants_impl.h"

enum { TILE = FIRN_BLOCK_TOKENS };

static float latent_score(const firni_scalar_attend *attend, const uint8_t *block, uint32_t lane)
{
    const firni_latent_geometry *geometry = attend->task->latent;
    const size_t first = (size_t)lane * geometry->head_dim;
    float score = 0.0f;
    for (uint32_t d = 0; d < geometry->head_dim; d++) {
        score = fmaf(attend->q[d], load_element(geometry->dtype, block, first + d), score);
    }
    return score;
}

static void latent_add_values(firni_scalar_attend *attend, const uint8_t *block, const float *weights, uint32_t begin,
                              uint32_t end, float rescale, float *values)
{
    (void)rescale; /* there is nothing beside the values */
    const firni_latent_geometry *geometry = attend->task->latent;
    for (uint32_t t = begin; t < end; t++) {
        if ((attend->seen >> t & 1) == 0) {
            continue;
        }
        for (uint32_t j = 0; j < geometry->value_dim; j++) {
            const float v = load_element(geometry->dtype, block, (size_t)t * geometry->head_dim + j);
            values[j] = fmaf(weights[t], v, values[j]);
        }
    }
}

static uint64_t latent_seen_of(const firni_scalar_attend *attend, uint32_t tile_index)
{
    return firni_selected_lanes(attend->task, tile_index);
}

void firni_scalar_attend_latent(const firni_attend_task *task)
{
    firni_latent_task_check(task);
    firni_scalar_attend attend = {
        .task = task,
        .head_dim = task->latent->head_dim,
        .value_dim = task->latent->value_dim,
        .seen_of = task->selected != NULL ? latent_seen_of : NULL,
        .score = latent_score,
        .add_values = latent_add_values,
    };
    firni_scalar_attend_all(&attend);
}

void firni_scalar_store_latent(const firni_latent_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                               const float *index_key)
{
    assert(lane < TILE);
    for (uint32_t d = 0; d < geometry->head_dim; d++) {
        store_element(geometry->dtype, block, (size_t)lane * geometry->head_dim + d, k[d]);
    }
    for (uint32_t d = 0; d < geometry->index_dim; d++) {
        store_element(geometry->dtype, block + geometry->index_offset_bytes, (size_t)d * TILE + lane,
                                   index_key[d]);
    }
}

void firni_scalar_index_scores(const firni_latent_geometry *geometry, const uint8_t *block, const float *q,
                               const float *weights, uint32_t n_heads, float out[FIRN_BLOCK_TOKENS])
{
    const uint8_t *keys = block + geometry->index_offset_bytes;
    for (uint32_t t = 0; t < TILE; t++) {
        out[t] = 0.0f;
        for (uint32_t h = 0; h < n_heads; h++) {
            float score = 0.0f;
            for (uint32_t d = 0; d < geometry->index_dim; d++) {
                const float k = load_element(geometry->dtype, keys, (size_t)d * TILE + t);
                score = fmaf(q[(size_t)h * geometry->index_dim + d], k, score);
            }
            out[t] = fmaf(weights[h], score > 0.0f ? score : 0.0f, out[t]);
        }
    }
}
