/*
 * Attention, of a vector variant: the walk over tiles, and what it reads from plain blocks. Written over lanes.
 *
 * The walk (which tokens are seen, softmax, batches of queries) is the same for every storage; an attend_storage gives
 * scores and adds values. The storage of plain blocks is here, that of quantised ones in quant_impl.h.
 *
 * One token's decode reads each key and value once and is bound by memory; a chunk of queries is bound by
 * multiplication. Measured on Zen 3 (AVX2), a shared machine: 512 queries at a depth of 4,096 reach 60 GFLOP/s a thread
 * with heads of 64 and 66 with heads of 128, of the 89 that multiply-adds alone reach in its best hour; the register
 * tiles take 72 % of the time, at nearly that rate, softmax 18 %, expansion 5 %. Decode over 128 MB of f16 keys and
 * values reads 8.9 GB/s with one thread and 10.4 to 12.5 with two, 81 % and 60 to 68 % of a streaming read.
 *
 * A plain tile that many pairs use is expanded to f32 first: 1.02 to 1.15 times as fast as conversions in the register
 * tiles with heads of 64, 1.10 to 1.23 with heads of 128. Tried: the expanded tile in the order of use (equal). Of the
 * next tile each group fetches a share, so that it is there in time and is fetched once. Tried and dropped for decode,
 * in a busier hour when this reached 8.5: no prefetch (3.4 GB/s), the whole next tile at once (4.1), the next tile's
 * rows in the order of use (5.5: no sequential stream, as a tile takes two passes over its rows), other prefetch hints
 * (equal).
 *
 * The (query, head) pairs of a task are taken in batches, whose running state fits in the second-level cache; a batch
 * walks the 64-token tiles from the oldest to the newest, and each tile serves the batch in register tiles of up to
 * six pairs. Pairs of several rows share a tile where their rows share its block: rows that began with the same prompt
 * read it once, and since a pair's own sums do not depend on its company, with the same bits.
 *
 *   1. scores   s[pair][token]  = sum over d of q[pair][d] * K[d][token]      tile_impl.h: lanes are tokens
 *   2. softmax  scale, softcap, mask, new maximum, exp, sums in 16 lanes           on 4 vectors a pair
 *   3. values   o[pair][j]      = o * rescale + sum over tokens of s * V[token][j]  tile_impl.h: lanes are dimensions
 *
 * A tile at the edge of what is visible holds tokens that a pair must not see, or memory never written. Its lanes of
 * scores are set to -infinity, which makes their weights exactly zero, and step 3 visits only the visible tokens: zero
 * times an undefined value could be NaN. Where the pairs of a register tile see different ranges, the common range is
 * done together, what precedes and follows it for each pair alone, in ascending order.
 *
 * Sources: online softmax, Milakov and Gimelshein (arXiv 1805.02867); tiles as in FlashAttention (arXiv 2205.14135).
 */
#ifndef FIRNI_ATTEND_IMPL_H
#define FIRNI_ATTEND_IMPL_H

#include "kernel/tile_impl.h"
#include "kernel/variants_impl.h"
#include "kernel/vector_impl.h"

enum {
    ATTEND_TILE = FIRN_BLOCK_TOKENS,
    ATTEND_VECTORS = ATTEND_TILE / LANES,
    ATTEND_PAIRS_MAX = 48,     /* of one batch */
    ATTEND_VALUES_MAX = 24576, /* floats of running values of one batch: 96 KiB */
};

typedef struct attend_storage attend_storage;

/* A storage may begin a larger struct with it. */
typedef struct attend_batch {
    const firni_attend_task *task;
    const attend_storage *storage;
    uint32_t head_dim;
    uint32_t value_dim;
    uint32_t value_stride; /* value_dim rounded up to whole vectors */
    uint32_t n_pairs;
    const uint8_t *block; /* of the tile at hand */
    const uint8_t *ahead; /* the one to prefetch from meanwhile */
    const float *q[ATTEND_PAIRS_MAX];
    float *out[ATTEND_PAIRS_MAX];
    firni_attend_row rows[ATTEND_PAIRS_MAX];
    firni_visible visible[ATTEND_PAIRS_MAX];
    float max[ATTEND_PAIRS_MAX];
    float sums[ATTEND_PAIRS_MAX][LANES];
    float values[ATTEND_VALUES_MAX];
} attend_batch;

/* Up to six pairs of a batch in one tile. */
typedef struct attend_group {
    uint32_t first; /* pair */
    uint32_t n;
    uint32_t begin[TILE_ROWS_MAX]; /* lanes of the tile that a pair sees: [begin, end), possibly none */
    uint32_t end[TILE_ROWS_MAX];
    uint64_t seen; /* lanes of the tile that any pair may see at all */
    uint32_t turn; /* of n_turns groups that use the tile one after the other */
    uint32_t n_turns;
    float weights[TILE_ROWS_MAX][ATTEND_TILE];
} attend_group;

/* What one group fetches of the next tile, of `bytes` that all groups fetch together. */
FIRNI_INLINE size_t attend_share(size_t bytes, const attend_group *group)
{
    return (bytes + group->n_turns - 1) / group->n_turns;
}

/* What depends on how keys and values lie in a block. */
struct attend_storage {
    uint32_t group_pairs_max; /* pairs of one attend_group, at most TILE_ROWS_MAX */
    /* Once the queries of a batch are known. NULL: nothing. */
    void (*start)(attend_batch *batch);
    /* Which lanes of a tile the batch may see beside what its pairs' positions say; 0: the tile is passed over. NULL:
     * all. Tiles come in ascending order. */
    uint64_t (*seen)(attend_batch *batch, uint32_t tile_index);
    /* Before the groups of pairs [first, first + n_pairs) use the lanes `seen` of a tile. NULL: nothing. */
    void (*open)(attend_batch *batch, uint32_t first, uint32_t n_pairs, uint32_t tile_index, uint64_t seen);
    /* Fills group->weights with q.k of all 64 tokens; of tokens that a pair does not see with anything. */
    void (*scores)(const attend_batch *batch, attend_group *group);
    /* Adds the weighted values of the seen tokens to batch->values, which have been multiplied with rescale. */
    void (*values)(attend_batch *batch, const attend_group *group, const float rescale[LANES]);
    /* Once all tiles are done, before values are divided by the sum of weights. NULL: nothing. */
    void (*finish)(attend_batch *batch);
};

/* ---- plain blocks --------------------------------------------------------------------------------------------- */

enum {
    PLAIN_WIDEN_PAIRS_MIN = 12,        /* fewer do not pay for a tile's expansion */
    PLAIN_WIDE_MAX = ATTEND_TILE * 256 /* elements of a tile of keys or values: heads of up to 256 */
};

typedef struct plain_batch {
    attend_batch base;
    /* Of the tile at hand: in the block, or expanded. */
    firn_dtype dtype;
    const uint8_t *k; /* [head_dim][64] */
    const uint8_t *v; /* [64][value_dim] */
    _Alignas(64) float wide_k[PLAIN_WIDE_MAX];
    _Alignas(64) float wide_v[PLAIN_WIDE_MAX];
} plain_batch;

static void plain_open(attend_batch *base, uint32_t first, uint32_t n_pairs, uint32_t tile_index, uint64_t seen)
{
    (void)first;
    (void)tile_index;
    (void)seen; /* all that positions allow */
    plain_batch *batch = (plain_batch *)base;
    const firni_plain_geometry *geometry = base->task->geometry;
    const firni_plain_planes planes = firni_plain_planes_of(geometry, base->block, base->task->kv_head);
    const size_t n_k = (size_t)ATTEND_TILE * geometry->head_dim;
    const size_t n_v = (size_t)ATTEND_TILE * geometry->value_dim;
    batch->dtype = geometry->dtype;
    batch->k = planes.k;
    batch->v = planes.v;
    if (n_pairs >= PLAIN_WIDEN_PAIRS_MIN && geometry->dtype != FIRN_DTYPE_F32 && n_k <= PLAIN_WIDE_MAX &&
        n_v <= PLAIN_WIDE_MAX) {
        widen_elements(geometry->dtype, batch->wide_k, planes.k, n_k);
        widen_elements(geometry->dtype, batch->wide_v, planes.v, n_v);
        batch->dtype = FIRN_DTYPE_F32;
        batch->k = (const uint8_t *)batch->wide_k;
        batch->v = (const uint8_t *)batch->wide_v;
    }
}

/* ---- 1. scores ------------------------------------------------------------------------------------------------ */

static void plain_scores(const attend_batch *base, attend_group *group)
{
    const plain_batch *batch = (const plain_batch *)base;
    const firni_plain_geometry *geometry = base->task->geometry;
    const uintptr_t k_ahead = (uintptr_t)firni_plain_planes_of(geometry, base->ahead, base->task->kv_head).k;
    const size_t element = firni_plain_element_bytes(batch->dtype);
    const size_t ahead_vector = attend_share(LANES * firni_plain_element_bytes(geometry->dtype), group);
    const unsigned width = tile_width(group->n, LANES_ACCUMULATORS);
    tile t = {
        .b_row_bytes = ATTEND_TILE * element,
        .b_block_bytes = LANES * element,
        .count = geometry->head_dim,
        .ahead_row_bytes = width * ahead_vector,
        .ahead_block_bytes = ahead_vector,
        .c_stride = ATTEND_TILE,
    };
    for (uint32_t i = 0; i < group->n; i++) {
        t.a[i] = base->q[group->first + i];
    }
    for (unsigned j = 0; j < ATTEND_VECTORS; j += width) {
        t.b = batch->k + j * LANES * element;
        t.ahead = k_ahead + (group->turn * ATTEND_VECTORS + j) * ahead_vector * geometry->head_dim;
        t.c = group->weights[0] + j * LANES;
        tile_multiply(batch->dtype, group->n, width, &t);
    }
}

/* ---- 2. softmax ----------------------------------------------------------------------------------------------- */

FIRNI_INLINE void attend_scale(const firni_attend_task *task, float scores[ATTEND_TILE])
{
    const lanes scale = lanes_set(task->scale);
    LANES_UNROLL
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        lanes_store(scores + j * LANES, lanes_mul(lanes_load(scores + j * LANES), scale));
    }
    if (task->softcap != 0.0f) {
        const lanes cap = lanes_set(task->softcap);
        const lanes inverse = lanes_set(1.0f / task->softcap);
        for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
            const lanes x = lanes_mul(lanes_load(scores + j * LANES), inverse);
            lanes_store(scores + j * LANES, lanes_mul(cap, lanes_tanh(x)));
        }
    }
}

static void attend_mask(float scores[ATTEND_TILE], uint32_t begin, uint32_t end)
{
    for (uint32_t t = 0; t < begin; t++) {
        scores[t] = -INFINITY;
    }
    for (uint32_t t = end; t < ATTEND_TILE; t++) {
        scores[t] = -INFINITY;
    }
}

static void attend_mask_unseen(float scores[ATTEND_TILE], uint64_t seen)
{
    for (uint32_t t = 0; t < ATTEND_TILE; t++) {
        scores[t] = (seen >> t & 1) != 0 ? scores[t] : -INFINITY;
    }
}

/* The largest score so far of one pair. */
FIRNI_INLINE float attend_max(const float scores[ATTEND_TILE], float max)
{
    lanes larger = lanes_load(scores);
    LANES_UNROLL
    for (unsigned j = 1; j < ATTEND_VECTORS; j++) {
        larger = lanes_larger(lanes_load(scores + j * LANES), larger);
    }
    const float tile_max = lanes_fold_larger(larger);
    return tile_max > max ? tile_max : max;
}

FIRNI_INLINE void attend_weights(float scores[ATTEND_TILE], float max, float rescale, float sums[LANES])
{
    lanes sum = lanes_load(sums);
    LANES_UNROLL
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        const lanes weight = lanes_exp(lanes_sub(lanes_load(scores + j * LANES), lanes_set(max)));
        lanes_store(scores + j * LANES, weight);
        sum = j == 0 ? lanes_fma(sum, lanes_set(rescale), weight) : lanes_add(sum, weight);
    }
    lanes_store(sums, sum);
}

/* Turns scores into weights and gives what the values so far are to be multiplied with; false when that is 1 for every
 * pair. */
static bool attend_softmax(attend_batch *batch, attend_group *group, float rescale[LANES])
{
    bool changed = false;
    float differences[LANES] = {0};
    for (uint32_t i = 0; i < group->n; i++) {
        const uint32_t pair = group->first + i;
        attend_scale(batch->task, group->weights[i]);
        if (group->begin[i] != 0 || group->end[i] != ATTEND_TILE) {
            attend_mask(group->weights[i], group->begin[i], group->end[i]);
        }
        if (group->seen != UINT64_MAX) {
            attend_mask_unseen(group->weights[i], group->seen);
        }
        const float max = attend_max(group->weights[i], batch->max[pair]);
        differences[i] = batch->max[pair] - max;
        changed = changed || differences[i] != 0.0f;
        batch->max[pair] = max;
    }
    lanes_store(rescale, changed ? lanes_exp(lanes_load(differences)) : lanes_set(1.0f));
    for (uint32_t i = 0; i < group->n; i++) {
        const uint32_t pair = group->first + i;
        attend_weights(group->weights[i], batch->max[pair], rescale[i], batch->sums[pair]);
    }
    return changed;
}

/* ---- 3. values ------------------------------------------------------------------------------------------------ */

/* Values as elements of one type, token by token. */
typedef struct attend_rows {
    firn_dtype dtype;
    size_t row_bytes; /* from one token to the next */
    const uint8_t *base;
    uintptr_t ahead;     /* what this group fetches of the next tile, */
    size_t ahead_vector; /* so many bytes for each vector read */
} attend_rows;

/* Adds tokens [begin, end) of the tile to the running values of pairs [i, i + n) of the group. */
static void attend_add_rows(attend_batch *batch, const attend_group *group, uint32_t i, uint32_t n, uint32_t begin,
                            uint32_t end, const attend_rows *from, uintptr_t ahead)
{
    if (begin >= end) {
        return;
    }
    const size_t element = firni_plain_element_bytes(from->dtype);
    const uint32_t n_full = batch->value_dim / LANES;
    const unsigned widest = tile_width(n, LANES_ACCUMULATORS);
    float *values = batch->values + (size_t)(group->first + i) * batch->value_stride;
    const uint8_t *rows = from->base + begin * from->row_bytes;
    tile t = {
        .b_row_bytes = from->row_bytes,
        .b_block_bytes = LANES * element,
        .count = end - begin,
        .ahead_block_bytes = from->ahead_vector,
        .c_stride = batch->value_stride,
        .add = true,
    };
    for (uint32_t pair = 0; pair < n; pair++) {
        t.a[pair] = group->weights[i + pair] + begin;
    }
    unsigned width = 0;
    for (uint32_t j = 0; j < n_full; j += width) {
        width = n_full - j >= widest ? widest : 1;
        t.b = rows + j * LANES * element;
        t.ahead = ahead + j * from->ahead_vector * ATTEND_TILE;
        t.ahead_row_bytes = width * from->ahead_vector;
        t.c = values + (size_t)j * LANES;
        tile_multiply(from->dtype, n, width, &t);
    }
    if (batch->value_dim % LANES != 0) {
        t.b = rows + (size_t)n_full * LANES * element;
        for (uint32_t pair = 0; pair < n; pair++) {
            t.a[0] = group->weights[i + pair] + begin;
            t.c = values + pair * (size_t)batch->value_stride + (size_t)n_full * LANES;
            tile_multiply_narrow(from->dtype, batch->value_dim % LANES, &t);
        }
    }
}

/* All that each pair sees by its position. */
static void attend_add_seen_rows(attend_batch *batch, const attend_group *group, const attend_rows *from)
{
    uint32_t begin = 0;
    uint32_t end = ATTEND_TILE;
    for (uint32_t i = 0; i < group->n; i++) {
        begin = group->begin[i] > begin ? group->begin[i] : begin;
        end = group->end[i] < end ? group->end[i] : end;
    }
    const bool common = begin < end;
    for (uint32_t i = 0; i < group->n; i++) {
        attend_add_rows(batch, group, i, 1, group->begin[i], common ? begin : group->end[i], from,
                        (uintptr_t)from->base);
    }
    if (common) {
        attend_add_rows(batch, group, 0, group->n, begin, end, from, from->ahead);
        for (uint32_t i = 0; i < group->n; i++) {
            attend_add_rows(batch, group, i, 1, end, group->end[i], from, (uintptr_t)from->base);
        }
    }
}

static void plain_values(attend_batch *base, const attend_group *group, const float rescale[LANES])
{
    (void)rescale; /* there is nothing beside the values */
    const plain_batch *batch = (const plain_batch *)base;
    const firni_plain_geometry *geometry = base->task->geometry;
    const size_t stored = firni_plain_element_bytes(geometry->dtype);
    const size_t ahead_vector = attend_share(LANES * stored, group);
    const uint32_t n_vectors = geometry->value_dim / LANES;
    const attend_rows from = {
        .dtype = batch->dtype,
        .row_bytes = geometry->value_dim * firni_plain_element_bytes(batch->dtype),
        .base = batch->v,
        .ahead = (uintptr_t)firni_plain_planes_of(geometry, base->ahead, base->task->kv_head).v +
                 group->turn * n_vectors * ahead_vector * ATTEND_TILE,
        .ahead_vector = ahead_vector,
    };
    attend_add_seen_rows(base, group, &from);
}

static const attend_storage plain_storage = {
    .group_pairs_max = TILE_ROWS_MAX,
    .open = plain_open,
    .scores = plain_scores,
    .values = plain_values,
};

/* ---- the walk ------------------------------------------------------------------------------------------------- */

static void attend_rescale(attend_batch *batch, const attend_group *group, const float rescale[LANES])
{
    for (uint32_t i = 0; i < group->n; i++) {
        float *values = batch->values + (size_t)(group->first + i) * batch->value_stride;
        const lanes factor = lanes_set(rescale[i]);
        for (uint32_t j = 0; j < batch->value_stride; j += LANES) {
            lanes_store(values + j, lanes_mul(lanes_load(values + j), factor));
        }
    }
}

/* The lanes of the tile that begins at position `first` that each pair of the group sees; false when none does. */
static bool attend_group_ranges(const attend_batch *batch, attend_group *group, uint32_t first)
{
    bool any = false;
    for (uint32_t i = 0; i < group->n; i++) {
        const firni_visible visible = batch->visible[group->first + i];
        const uint32_t begin = visible.begin > first ? visible.begin - first : 0;
        const uint32_t seen = visible.end > first ? visible.end - first : 0;
        const uint32_t end = seen < ATTEND_TILE ? seen : ATTEND_TILE;
        group->begin[i] = begin < end ? begin : 0;
        group->end[i] = begin < end ? end : 0;
        any = any || begin < end;
    }
    return any;
}

static void attend_batch_start(attend_batch *batch, uint32_t first_pair, uint32_t n_pairs)
{
    const firni_attend_task *task = batch->task;
    batch->n_pairs = n_pairs;
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t query = (first_pair + i) / task->group_size;
        const uint32_t head = (first_pair + i) % task->group_size;
        batch->q[i] = task->q + query * task->q_stride + (size_t)head * batch->head_dim;
        batch->out[i] = task->out + query * task->out_stride + (size_t)head * batch->value_dim;
        batch->rows[i] = firni_attend_row_of(task, query);
        batch->visible[i] = firni_visible_tokens(task, query);
        batch->max[i] = FIRNI_SCORE_LOWEST;
    }
    memset(batch->sums, 0, n_pairs * sizeof(batch->sums[0]));
    memset(batch->values, 0, (size_t)n_pairs * batch->value_stride * sizeof(batch->values[0]));
    if (batch->storage->start != NULL) {
        batch->storage->start(batch);
    }
}

FIRNI_INLINE bool attend_pair_sees(const attend_batch *batch, uint32_t pair, uint32_t tile_index)
{
    const firni_visible visible = batch->visible[pair];
    return visible.begin / ATTEND_TILE <= tile_index && tile_index <= (visible.end - 1) / ATTEND_TILE;
}

/* How many pairs from `first` on have this tile's block in common; those of one row always do. */
static uint32_t attend_run(const attend_batch *batch, uint32_t first, uint32_t tile_index)
{
    if (batch->task->rows == NULL) {
        return batch->n_pairs - first;
    }
    const firn_block *block = firni_attend_block(&batch->rows[first], tile_index);
    uint32_t end = first + 1;
    while (end < batch->n_pairs && attend_pair_sees(batch, end, tile_index) &&
           firni_attend_block(&batch->rows[end], tile_index) == block) {
        end++;
    }
    return end - first;
}

/* Pairs [first, first + n), in one tile of a block that all of them have. */
static void attend_run_tile(attend_batch *batch, uint32_t first, uint32_t n, uint32_t tile_index, uint64_t seen)
{
    const attend_storage *storage = batch->storage;
    const firni_attend_row *row = &batch->rows[first];
    batch->block = firn_block_data(firni_attend_block(row, tile_index));
    /* The next tile lies anywhere in memory. It is fetched while this one is used, each plane from its beginning to its
     * end, since processors follow a sequential stream further than the requests that one core may have open. */
    const uint32_t last_tile = (batch->visible[first + n - 1].end - 1) / ATTEND_TILE;
    const bool fetch = tile_index < last_tile &&
                       (batch->task->rows == NULL || attend_pair_sees(batch, first, tile_index + 1));
    batch->ahead = fetch ? firn_block_data(firni_attend_block(row, tile_index + 1)) : batch->block;
    if (storage->open != NULL) {
        storage->open(batch, first, n, tile_index, seen);
    }
    attend_group group;
    group.seen = seen;
    group.turn = 0;
    group.n_turns = (n + storage->group_pairs_max - 1) / storage->group_pairs_max;
    for (group.first = first; group.first < first + n; group.first += group.n, group.turn++) {
        group.n = (first + n - group.first) / (group.n_turns - group.turn);
        if (!attend_group_ranges(batch, &group, tile_index * ATTEND_TILE)) {
            continue;
        }
        float rescale[LANES];
        storage->scores(batch, &group);
        if (attend_softmax(batch, &group, rescale)) {
            attend_rescale(batch, &group, rescale);
        }
        storage->values(batch, &group, rescale);
    }
}

static void attend_batch_tile(attend_batch *batch, uint32_t tile_index)
{
    const uint64_t seen = batch->storage->seen != NULL ? batch->storage->seen(batch, tile_index) : UINT64_MAX;
    if (seen == 0) {
        return;
    }
    uint32_t n = 1;
    for (uint32_t first = 0; first < batch->n_pairs; first += n) {
        n = 1;
        if (batch->task->rows == NULL || attend_pair_sees(batch, first, tile_index)) {
            n = attend_run(batch, first, tile_index);
            attend_run_tile(batch, first, n, tile_index, seen);
        }
    }
}

static void attend_batch_finish(attend_batch *batch, uint32_t first_pair)
{
    const firni_attend_task *task = batch->task;
    if (batch->storage->finish != NULL) {
        batch->storage->finish(batch);
    }
    for (uint32_t i = 0; i < batch->n_pairs; i++) {
        float rescale = 1.0f;
        float sum = lanes_fold_sum(lanes_load(batch->sums[i]));
        if (task->sinks != NULL) {
            const float sink = task->sinks[(first_pair + i) % task->group_size];
            const float max = sink > batch->max[i] ? sink : batch->max[i];
            const float differences[LANES] = {batch->max[i] - max, sink - max};
            float factors[LANES];
            lanes_store(factors, lanes_exp(lanes_load(differences)));
            rescale = factors[0];
            sum = fmaf(sum, rescale, factors[1]);
        }
        const lanes inverse = lanes_set(rescale / sum);
        const float *values = batch->values + (size_t)i * batch->value_stride;
        for (uint32_t j = 0; j < batch->value_dim; j += LANES) {
            const uint32_t left = batch->value_dim - j;
            const lanes value = lanes_mul(lanes_load(values + j), inverse);
            if (left >= LANES) {
                lanes_store(batch->out[i] + j, value);
            } else {
                lanes_store_n(batch->out[i] + j, value, left);
            }
        }
    }
}

/* `batch` has its task, storage and dimensions; it has room for batch_pairs_max pairs and their values. */
static void attend_walk(attend_batch *batch, uint32_t batch_pairs_max)
{
    const firni_attend_task *task = batch->task;
    const uint32_t n_pairs = task->n_queries * task->group_size;
    batch->value_stride = (batch->value_dim + LANES - 1) / LANES * LANES;
    assert(batch_pairs_max >= 1 && batch_pairs_max <= ATTEND_PAIRS_MAX);
    assert(batch_pairs_max * batch->value_stride <= ATTEND_VALUES_MAX);
    for (uint32_t pair = 0; pair < n_pairs; pair += batch_pairs_max) {
        attend_batch_start(batch, pair, n_pairs - pair < batch_pairs_max ? n_pairs - pair : batch_pairs_max);
        uint32_t begin = batch->visible[0].begin;
        uint32_t end = batch->visible[0].end;
        for (uint32_t i = 1; i < batch->n_pairs; i++) {
            begin = batch->visible[i].begin < begin ? batch->visible[i].begin : begin;
            end = batch->visible[i].end > end ? batch->visible[i].end : end;
        }
        for (uint32_t i = begin / ATTEND_TILE; i <= (end - 1) / ATTEND_TILE; i++) {
            attend_batch_tile(batch, i);
        }
        attend_batch_finish(batch, pair);
    }
}

/* How many pairs of vectors of this dimension a batch has room for. */
FIRNI_INLINE uint32_t attend_batch_pairs(uint32_t dim)
{
    const uint32_t fitting = ATTEND_VALUES_MAX / ((dim + LANES - 1) / LANES * LANES);
    return fitting < ATTEND_PAIRS_MAX ? fitting : ATTEND_PAIRS_MAX;
}

static void lanes_attend_plain(const firni_attend_task *task)
{
    firni_attend_task_check(task);
    plain_batch batch;
    batch.base.task = task;
    batch.base.storage = &plain_storage;
    batch.base.head_dim = task->geometry->head_dim;
    batch.base.value_dim = task->geometry->value_dim;
    attend_walk(&batch.base, attend_batch_pairs(task->geometry->value_dim));
}

#endif
