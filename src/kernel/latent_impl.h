/*
 * Attention over latent blocks, of a vector variant: what the walk of attend_impl.h reads from them, and the scores of
 * index keys. Written over lanes.
 *
 * Latent keys lie token-major, because the same bytes are the values, and because a sparse query reads single tokens.
 * So scores are sums across lanes here: register tiles of two pairs (three with AVX-512) and two tokens share the
 * loads of both, and one fold ends each sum of head_dim / 16 vectors (36 in the common case). All query heads read the
 * same key: a tile is expanded to f32 once, stays in the second-level cache, and each group reads it once for scores
 * and once for values.
 *
 * Measured on Zen 3 (AVX2), one thread, DeepSeek V3's sizes, 16 heads at a depth of 4,096: 54 GFLOP/s with 64 queries,
 * 51 with one, of the 60 to 89 that multiply-adds alone reach as the machine is more or less busy. Against tiles of
 * three pairs, whose twelfth sum finds no register, and conversions in the tiles: 1.2 to 1.4 times as fast with 64
 * queries, 1.2 to 1.5 with one. Batches of 16 pairs instead of 48 expand each tile three times as often: 0.9. Index
 * keys, expanded once for 64 heads: a sparse query takes 0.89 to 0.96 of the time, 64 of them 0.8 to 0.9.
 */
#ifndef FIRNI_LATENT_IMPL_H
#define FIRNI_LATENT_IMPL_H

#include "kernel/attend_impl.h"
#include "kernel/vector_impl.h"

enum {
    LATENT_PAIRS_MAX = LANES_ACCUMULATORS >= 24 ? 3 : 2, /* with two tokens: what fits beside both operands */
    LATENT_TOKENS_MAX = 2,
    LATENT_WIDEN_PAIRS_MIN = 4,          /* fewer do not pay for a tile's expansion */
    LATENT_WIDE_MAX = ATTEND_TILE * 640, /* elements of a tile: keys of up to 640 */
    INDEX_WIDEN_HEADS_MIN = 12,          /* the same of index keys */
    INDEX_WIDE_MAX = ATTEND_TILE * 256
};

typedef struct latent_batch {
    attend_batch base;
    /* Of the tile at hand: in the block, or expanded to f32, [64][head_dim]. */
    firn_dtype dtype;
    const uint8_t *keys;
    _Alignas(64) float wide[LATENT_WIDE_MAX];
} latent_batch;

static void latent_open(attend_batch *base, uint32_t n_pairs, uint64_t seen)
{
    latent_batch *batch = (latent_batch *)base;
    const firni_latent_geometry *geometry = base->task->latent;
    const uint32_t dim = geometry->head_dim;
    batch->dtype = geometry->dtype;
    batch->keys = base->block;
    if (n_pairs < LATENT_WIDEN_PAIRS_MIN || geometry->dtype == FIRN_DTYPE_F32 || dim % LANES != 0 ||
        (size_t)ATTEND_TILE * dim > LATENT_WIDE_MAX) {
        return;
    }
    const size_t row_bytes = dim * sizeof(uint16_t);
    for (uint32_t t = 0; t < ATTEND_TILE; t++) {
        if ((seen >> t & 1) != 0) {
            widen_elements(geometry->dtype, batch->wide + (size_t)t * dim, base->block + t * row_bytes, dim);
        }
    }
    batch->dtype = FIRN_DTYPE_F32;
    batch->keys = (const uint8_t *)batch->wide;
}

/* scores[i][j] = q[i].k[j] for n pairs and m tokens. */
typedef struct latent_dots {
    const float *q[LATENT_PAIRS_MAX];
    const uint8_t *k[LATENT_TOKENS_MAX];
    uint32_t dim;
    float scores[LATENT_PAIRS_MAX][LATENT_TOKENS_MAX];
} latent_dots;

FIRNI_INLINE void latent_dots_shape(const firn_dtype dtype, const unsigned n, const unsigned m, latent_dots *t)
{
    const size_t element = firni_plain_element_bytes(dtype);
    lanes sums[LATENT_PAIRS_MAX][LATENT_TOKENS_MAX];
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < m; j++) {
            sums[i][j] = lanes_set(0.0f);
        }
    }
    uint32_t d = 0;
    for (; d + LANES <= t->dim; d += LANES) {
        lanes k[LATENT_TOKENS_MAX];
        LANES_UNROLL
        for (unsigned j = 0; j < m; j++) {
            k[j] = lanes_load_as(dtype, t->k[j] + d * element);
        }
        LANES_UNROLL
        for (unsigned i = 0; i < n; i++) {
            const lanes q = lanes_load(t->q[i] + d);
            LANES_UNROLL
            for (unsigned j = 0; j < m; j++) {
                sums[i][j] = lanes_fma(q, k[j], sums[i][j]);
            }
        }
    }
    if (d < t->dim) {
        for (unsigned j = 0; j < m; j++) {
            uint8_t rest[LANES * sizeof(float)] = {0};
            memcpy(rest, t->k[j] + d * element, (t->dim - d) * element);
            for (unsigned i = 0; i < n; i++) {
                sums[i][j] = lanes_fma(lanes_load_n(t->q[i] + d, t->dim - d), lanes_load_as(dtype, rest), sums[i][j]);
            }
        }
    }
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < m; j++) {
            t->scores[i][j] = lanes_fold_sum(sums[i][j]);
        }
    }
}

FIRNI_INLINE void latent_dots_pairs(const firn_dtype dtype, const unsigned n, unsigned m, latent_dots *t)
{
    if (m == LATENT_TOKENS_MAX) {
        latent_dots_shape(dtype, n, LATENT_TOKENS_MAX, t);
    } else {
        assert(m == 1);
        latent_dots_shape(dtype, n, 1, t);
    }
}

FIRNI_INLINE void latent_dots_dtype(const firn_dtype dtype, unsigned n, unsigned m, latent_dots *t)
{
    switch (n) {
    case 1: latent_dots_pairs(dtype, 1, m, t); break;
    case 2: latent_dots_pairs(dtype, 2, m, t); break;
    default:
        assert(n == LATENT_PAIRS_MAX);
        latent_dots_pairs(dtype, LATENT_PAIRS_MAX, m, t);
        break;
    }
}

static void latent_multiply(firn_dtype dtype, unsigned n, unsigned m, latent_dots *t)
{
    switch (dtype) {
    case FIRN_DTYPE_F16: latent_dots_dtype(FIRN_DTYPE_F16, n, m, t); break;
    case FIRN_DTYPE_BF16: latent_dots_dtype(FIRN_DTYPE_BF16, n, m, t); break;
    default:
        assert(dtype == FIRN_DTYPE_F32);
        latent_dots_dtype(FIRN_DTYPE_F32, n, m, t);
        break;
    }
}

/* Tokens that some pair of the group sees, as a list of lanes. */
static uint32_t latent_tokens(const attend_group *group, uint8_t tokens[ATTEND_TILE])
{
    uint32_t begin = ATTEND_TILE;
    uint32_t end = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        if (group->begin[i] < group->end[i]) {
            begin = group->begin[i] < begin ? group->begin[i] : begin;
            end = group->end[i] > end ? group->end[i] : end;
        }
    }
    for (uint32_t t = begin; t < end; t++) {
        if ((group->seen >> t & 1) != 0) {
            tokens[n++] = (uint8_t)t;
        }
    }
    return n;
}

/* Nothing is fetched ahead: a tile takes longer to use than to fetch, whatever the number of heads. */
static void latent_scores(const attend_batch *base, attend_group *group)
{
    const latent_batch *batch = (const latent_batch *)base;
    const uint32_t dim = base->task->latent->head_dim;
    const size_t row_bytes = dim * firni_plain_element_bytes(batch->dtype);
    uint8_t tokens[ATTEND_TILE];
    const uint32_t n_tokens = latent_tokens(group, tokens);
    memset(group->weights, 0, group->n * sizeof(group->weights[0]));
    latent_dots t = {.dim = dim};
    uint32_t m;
    for (uint32_t at = 0; at < n_tokens; at += m) {
        m = n_tokens - at < LATENT_TOKENS_MAX ? n_tokens - at : LATENT_TOKENS_MAX;
        for (uint32_t j = 0; j < m; j++) {
            t.k[j] = batch->keys + tokens[at + j] * row_bytes;
        }
        uint32_t n;
        for (uint32_t first = 0; first < group->n; first += n) {
            n = group->n - first < LATENT_PAIRS_MAX ? group->n - first : LATENT_PAIRS_MAX;
            for (uint32_t i = 0; i < n; i++) {
                t.q[i] = base->q[group->first + first + i];
            }
            latent_multiply(batch->dtype, n, m, &t);
            for (uint32_t i = 0; i < n; i++) {
                for (uint32_t j = 0; j < m; j++) {
                    group->weights[first + i][tokens[at + j]] = t.scores[i][j];
                }
            }
        }
    }
}

static void latent_values(attend_batch *base, const attend_group *group, const float rescale[LANES])
{
    (void)rescale; /* there is nothing beside the values */
    const latent_batch *batch = (const latent_batch *)base;
    const attend_rows from = {
        .dtype = batch->dtype,
        .row_bytes = base->task->latent->head_dim * firni_plain_element_bytes(batch->dtype),
        .base = batch->keys,
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
    .open = latent_open,
    .scores = latent_scores,
    .values = latent_values,
};

static const attend_storage latent_sparse_storage = {
    .group_pairs_max = TILE_ROWS_MAX,
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
