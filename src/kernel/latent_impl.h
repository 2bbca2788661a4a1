/*
 * Attention over latent blocks, of a vector variant: what the walk of attend_impl.h reads from them, and the scores of
 * index keys. Written over lanes.
 *
 * Latent keys lie token-major, because the same bytes are the values, and because a sparse query reads single tokens.
 * All query heads read the same key, so in scores the lanes are (query, head) pairs: the queries of a batch are
 * transposed once, to [16 pairs at a time][head_dim][16], and a tile's tokens are the rows of the register tile, which
 * broadcasts their elements. A tile is expanded to f32 once, stays in the second-level cache, and serves the whole
 * batch: 192 dimensions at a time of 16 pairs (12 KB) stay in the first level while its 64 tokens pass.
 *
 * Measured on Zen 3 (AVX2), one thread, DeepSeek V3's sizes, 16 heads at a depth of 4,096: 66 GFLOP/s with 64 queries,
 * 61 with one, of the 60 to 89 that multiply-adds alone reach as the machine is more or less busy. Register tiles take
 * 81 % of the time (scores and values half each, for 53 and 47 % of the work), expansion 9 %, softmax 3 %. Before, the
 * lanes were dimensions, two pairs and two tokens a tile, each sum folded: 1.2 times as long, the best of six runs
 * in turn. Batches of 16 pairs instead of 48 expand each tile three times as often: 0.9. Index keys, expanded once for
 * 64 heads: a sparse query takes 0.89 to 0.96 of the time, 64 of them 0.8 to 0.9.
 */
#ifndef FIRNI_LATENT_IMPL_H
#define FIRNI_LATENT_IMPL_H

#include "kernel/attend_impl.h"
#include "kernel/vector_impl.h"

enum {
    LATENT_SEGMENT = 192, /* dimensions of 16 queries and of a tile's keys that go through the first-level cache */
    LATENT_VECTORS_MAX = ATTEND_PAIRS_MAX / LANES,
    INDEX_WIDEN_HEADS_MIN = 12, /* fewer do not pay for the expansion of a tile of index keys */
    INDEX_WIDE_MAX = ATTEND_TILE * 256
};

typedef struct latent_batch {
    attend_batch base;
    const float *keys;           /* of the tile at hand, [64][head_dim]: in the block, or expanded */
    uint8_t tokens[ATTEND_TILE]; /* lanes of the tile that some pair sees, ascending */
    uint32_t n_tokens;
    float scores[ATTEND_TILE][ATTEND_PAIRS_MAX]; /* of each of them with each pair */
    _Alignas(64) float queries[LATENT_VECTORS_MAX * FIRNI_HEAD_DIM_MAX * LANES]; /* [n_pairs / 16][head_dim][16] */
    _Alignas(64) float wide[ATTEND_TILE * FIRNI_HEAD_DIM_MAX];
} latent_batch;

static void latent_start(attend_batch *base)
{
    latent_batch *batch = (latent_batch *)base;
    const uint32_t dim = base->head_dim;
    const uint32_t n_vectors = (base->n_pairs + LANES - 1) / LANES;
    memset(batch->queries, 0, (size_t)n_vectors * dim * LANES * sizeof(batch->queries[0]));
    for (uint32_t pair = 0; pair < base->n_pairs; pair++) {
        float *column = batch->queries + (size_t)(pair / LANES) * dim * LANES + pair % LANES;
        for (uint32_t d = 0; d < dim; d++) {
            column[(size_t)d * LANES] = base->q[pair][d];
        }
    }
}

/* The lanes of the tile that some of the pairs [first, first + n) see. */
static void latent_list_tokens(latent_batch *batch, uint32_t first, uint32_t n, uint32_t tile_index, uint64_t seen)
{
    const uint32_t origin = tile_index * ATTEND_TILE;
    uint32_t begin = UINT32_MAX;
    uint32_t end = 0;
    for (uint32_t pair = first; pair < first + n; pair++) {
        const firni_visible visible = batch->base.visible[pair];
        begin = visible.begin < begin ? visible.begin : begin;
        end = visible.end > end ? visible.end : end;
    }
    batch->n_tokens = 0;
    for (uint32_t t = 0; t < ATTEND_TILE; t++) {
        if (origin + t >= begin && origin + t < end && (seen >> t & 1) != 0) {
            batch->tokens[batch->n_tokens++] = (uint8_t)t;
        }
    }
}

/* The scores of the listed tokens with the 16 pairs of each vector [vector, end_vector): of whatever row they are, as
 * only the run's are read. */
static void latent_multiply(latent_batch *batch, uint32_t vector, uint32_t end_vector)
{
    const uint32_t dim = batch->base.head_dim;
    const unsigned widest = tile_width(TILE_ROWS_MAX, LANES_ACCUMULATORS);
    unsigned width = widest;
    for (; vector < end_vector; vector += width) {
        while (width > end_vector - vector) {
            width /= 2;
        }
        for (uint32_t d = 0; d < dim; d += LATENT_SEGMENT) {
            tile t = {
                .b = (const uint8_t *)(batch->queries + ((size_t)vector * dim + d) * LANES),
                .b_row_bytes = LANES * sizeof(float),
                .b_block_bytes = (size_t)dim * LANES * sizeof(float),
                .count = dim - d < LATENT_SEGMENT ? dim - d : LATENT_SEGMENT,
                .ahead = (uintptr_t)batch->queries,
                .c_stride = ATTEND_PAIRS_MAX,
                .add = d > 0,
            };
            uint32_t n;
            for (uint32_t at = 0; at < batch->n_tokens; at += n) {
                n = batch->n_tokens - at < TILE_ROWS_MAX ? batch->n_tokens - at : TILE_ROWS_MAX;
                for (uint32_t i = 0; i < n; i++) {
                    t.a[i] = batch->keys + (size_t)batch->tokens[at + i] * dim + d;
                }
                t.c = batch->scores[at] + (size_t)vector * LANES;
                tile_multiply(FIRN_DTYPE_F32, n, width, &t);
            }
        }
    }
}

/* Nothing is fetched ahead: a tile takes longer to use than to fetch, whatever the number of heads. */
static void latent_open(attend_batch *base, uint32_t first, uint32_t n_pairs, uint32_t tile_index, uint64_t seen)
{
    latent_batch *batch = (latent_batch *)base;
    const firn_dtype dtype = base->task->latent->dtype;
    const uint32_t dim = base->head_dim;
    latent_list_tokens(batch, first, n_pairs, tile_index, seen);
    batch->keys = (const float *)base->block;
    if (dtype != FIRN_DTYPE_F32) {
        for (uint32_t i = 0; i < batch->n_tokens; i++) {
            const size_t at = (size_t)batch->tokens[i] * dim;
            widen_elements(dtype, batch->wide + at, base->block + at * sizeof(uint16_t), dim);
        }
        batch->keys = batch->wide;
    }
    latent_multiply(batch, first / LANES, (first + n_pairs - 1) / LANES + 1);
}

static void latent_scores(const attend_batch *base, attend_group *group)
{
    const latent_batch *batch = (const latent_batch *)base;
    for (uint32_t at = 0; at < batch->n_tokens; at++) {
        for (uint32_t i = 0; i < group->n; i++) {
            group->weights[i][batch->tokens[at]] = batch->scores[at][group->first + i];
        }
    }
}

static void latent_values(attend_batch *base, const attend_group *group, const float rescale[LANES])
{
    (void)rescale; /* there is nothing beside the values */
    const latent_batch *batch = (const latent_batch *)base;
    const attend_rows from = {
        .dtype = FIRN_DTYPE_F32,
        .row_bytes = base->head_dim * sizeof(float),
        .base = (const uint8_t *)batch->keys,
        .ahead = (uintptr_t)batch->keys,
    };
    if (group->seen == UINT64_MAX) {
        attend_add_seen_rows(base, group, &from);
        return;
    }
    /* One query: what its position hides is the same for all pairs. Neighbours that are selected go together. */
    for (uint32_t begin = 0; begin < group->end[0];) {
        uint32_t end = begin;
        while (end < group->end[0] && (group->seen >> end & 1) != 0) {
            end++;
        }
        attend_add_rows(base, group, 0, group->n, begin, end, &from, from.ahead);
        begin = end > begin ? end : begin + 1;
    }
}

static uint64_t latent_seen(attend_batch *batch, uint32_t tile_index)
{
    return firni_selected_lanes(batch->task, tile_index);
}

static const attend_storage latent_storage = {
    .group_pairs_max = TILE_ROWS_MAX,
    .start = latent_start,
    .open = latent_open,
    .scores = latent_scores,
    .values = latent_values,
};

static const attend_storage latent_sparse_storage = {
    .group_pairs_max = TILE_ROWS_MAX,
    .start = latent_start,
    .seen = latent_seen,
    .open = latent_open,
    .scores = latent_scores,
    .values = latent_values,
};

static void lanes_attend_latent(const firni_attend_task *task)
{
    firni_latent_task_check(task);
    latent_batch batch;
    batch.base.task = task;
    batch.base.storage = task->selected != NULL ? &latent_sparse_storage : &latent_storage;
    batch.base.head_dim = task->latent->head_dim;
    batch.base.value_dim = task->latent->value_dim;
    attend_walk(&batch.base, attend_batch_pairs(task->latent->value_dim));
}

static void lanes_store_latent(const firni_latent_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                               const float *index_key)
{
    assert(lane < FIRN_BLOCK_TOKENS);
    const size_t element = firni_plain_element_bytes(geometry->dtype);
    convert_elements(geometry->dtype, block + (size_t)lane * geometry->head_dim * element, k, geometry->head_dim);
    uint8_t *column = block + geometry->index_offset_bytes + lane * element;
    LANES_FOR(row, count, geometry->index_dim)
    {
        uint8_t converted[LANES * sizeof(float)];
        convert_elements(geometry->dtype, converted, index_key + row, count);
        for (size_t i = 0; i < count; i++) {
            memcpy(column + (row + i) * FIRN_BLOCK_TOKENS * element, converted + i * element, element);
        }
    }
}

static void lanes_index_scores(const firni_latent_geometry *geometry, const uint8_t *block, const float *q,
                               const float *weights, uint32_t n_heads, float out[FIRN_BLOCK_TOKENS])
{
    const size_t n_elements = (size_t)ATTEND_TILE * geometry->index_dim;
    const uint8_t *keys = block + geometry->index_offset_bytes;
    firn_dtype dtype = geometry->dtype;
    _Alignas(64) float wide[INDEX_WIDE_MAX];
    if (n_heads >= INDEX_WIDEN_HEADS_MIN && dtype != FIRN_DTYPE_F32 && n_elements <= INDEX_WIDE_MAX) {
        widen_elements(dtype, wide, keys, n_elements);
        keys = (const uint8_t *)wide;
        dtype = FIRN_DTYPE_F32;
    }
    const size_t element = firni_plain_element_bytes(dtype);
    float scores[TILE_ROWS_MAX][ATTEND_TILE];
    lanes sums[ATTEND_VECTORS];
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        sums[j] = lanes_set(0.0f);
    }
    for (uint32_t first = 0; first < n_heads;) {
        const uint32_t left = n_heads - first;
        const uint32_t n = left < TILE_ROWS_MAX ? left : TILE_ROWS_MAX;
        const unsigned width = tile_width(n, LANES_ACCUMULATORS);
        tile t = {
            .b_row_bytes = ATTEND_TILE * element,
            .b_block_bytes = LANES * element,
            .count = geometry->index_dim,
            .ahead = (uintptr_t)keys,
            .c_stride = ATTEND_TILE,
        };
        for (uint32_t i = 0; i < n; i++) {
            t.a[i] = q + (size_t)(first + i) * geometry->index_dim;
        }
        for (unsigned j = 0; j < ATTEND_VECTORS; j += width) {
            t.b = keys + j * LANES * element;
            t.c = scores[0] + j * LANES;
            tile_multiply(dtype, n, width, &t);
        }
        for (uint32_t i = 0; i < n; i++) {
            const lanes weight = lanes_set(weights[first + i]);
            for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
                const lanes positive = lanes_larger(lanes_load(scores[i] + j * LANES), lanes_set(0.0f));
                sums[j] = lanes_fma(weight, positive, sums[j]);
            }
        }
        first += n;
    }
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        lanes_store(out + j * LANES, sums[j]);
    }
}

#endif
