/*
 * Attention over quantised blocks, of a vector variant. Written over lanes; the walk is that of attend_impl.h.
 *
 * Both halves are the same inner loop, an exact integer product of codes with 16-bit numbers:
 *
 *     scores   sum over a group's dimensions of  code[d][token] * q[d]          lanes are tokens
 *     values   sum over the tile's tokens of     code[token][j] * weight[token] lanes are dimensions
 *
 * The query is quantised once for a batch, weights (times the tokens' scales) once for a tile and group. Codes are cut
 * out of words in registers, by a shift and a mask for each 32 of them; no key or value is ever written out in another
 * form. Scales, biases and the running values are f32: one multiply-add for a group of keys, one for 64 tokens of
 * values.
 *
 * A token that is not seen has the weight 0, and zero times any code is zero; only scales and biases, which could be
 * NaN there, are cleared at the edges.
 *
 * Work of 64 x 64 codes of 8 bits for two query heads (AVX2): 256 times 2 instructions to cut out codes, 2 broadcasts,
 * 4 multiply-adds and 4 additions, half of the time of a tile; softmax takes a sixth, making weights integers a fifth.
 */
#ifndef FIRNI_QUANT_IMPL_H
#define FIRNI_QUANT_IMPL_H

#include "kernel/attend_impl.h"
#include "kernel/quantised.h"

enum {
    QUANT_PAIRS_MAX = 4, /* of one inner loop: 8 registers of sums leave room to cut out codes */
    QUANT_GROUPS = ATTEND_VALUES_MAX / FIRNI_QUANT_GROUP_MIN, /* of all pairs of a batch */
    QUANT_HALVES_LINE = 2 /* vectors of f16 in a cache line */
};

typedef struct quant_batch {
    attend_batch base;
    firni_value_code code;
    int16_t q[ATTEND_VALUES_MAX];  /* [pair][head_dim] */
    float q_steps[QUANT_GROUPS];   /* [pair][group of keys] */
    int32_t q_starts[QUANT_GROUPS]; /* what makes up for signed codes having 128 added */
    float q_sums[QUANT_GROUPS];    /* of a group's integers, times their step: what a bias is multiplied by */
    float biases[QUANT_GROUPS][LANES]; /* [pair][group of values]: weighted sum of biases so far */
} quant_batch;

/* ---- codes times integers ------------------------------------------------------------------------------------- */

/* What codes are in the inner loop; a constant wherever it is inlined. */
typedef enum quant_kind {
    QUANT_CODES,  /* the codes themselves */
    QUANT_SIGNED, /* signed codes of a byte, with 128 added: sums begin with what takes it off */
    QUANT_BYTES,  /* levels of a byte: a lookup in registers */
    QUANT_WORDS   /* levels of 16 bits: a lookup in memory */
} quant_kind;

typedef struct quant_dot {
    const uint8_t *slabs; /* consecutive: n_blocks of 16 lanes, each of n_slabs */
    uintptr_t ahead;      /* an address to prefetch from, in the same pattern */
    uint32_t n_blocks;
    uint32_t n_slabs;
    const firni_lloyd *lloyd;
    const int16_t *acts[QUANT_PAIRS_MAX]; /* 32 for each slab */
    int32_t start[QUANT_PAIRS_MAX];       /* what sums begin with */
    float *sums;                          /* [block][pair][16] */
} quant_dot;

/* Codes of steps 2 i and 2 i + 1 of the row's part of a slab. */
FIRNI_INLINE lanes_weights quant_codes(const unsigned bits, lanes_weights words, lanes_weights high, unsigned row,
                                       unsigned i)
{
    const unsigned low_bits = firni_low_bits(bits);
    const lanes_weights low = lanes_field(words, i * low_bits, low_bits);
    return bits == low_bits ? low : lanes_above(low, lanes_field(high, row * (16 / low_bits) + i, 1), low_bits);
}

/* The same as levels wider than a byte, by way of memory. A function of its own: unrolled into every loop that needs
 * it, it would be most of the program. */
static FIRNI_NO_INLINE void quant_lookup_words(const firni_lloyd *lloyd, const uint8_t *row, unsigned i,
                                               uint16_t levels[2 * LANES])
{
    for (unsigned word = 0; word < 2 * LANES; word++) {
        levels[word] = lloyd->levels[row[word * 2 + i]]; /* little endian, like the words */
    }
}

/* One row of a slab. */
FIRNI_INLINE void quant_dot_row(const unsigned bits, const quant_kind kind, const unsigned n, const quant_dot *t,
                                const uint8_t *at, unsigned row, uint32_t step, lanes_weights high,
                                const lanes_table tables[2], lanes_int sums[QUANT_PAIRS_MAX])
{
    const unsigned low_bits = firni_low_bits(bits);
    lanes_weights words = lanes_load_words((const void *)at);
    words = kind == QUANT_SIGNED ? lanes_flip(words) : words;
    LANES_UNROLL
    for (unsigned i = 0; i < 16 / low_bits; i++) {
        lanes_weights codes;
        if (kind == QUANT_WORDS) {
            uint16_t levels[2 * LANES];
            quant_lookup_words(t->lloyd, at, i, levels);
            codes = lanes_load_words(levels);
        } else {
            codes = quant_codes(bits, words, high, row, i);
        }
        if (kind == QUANT_BYTES) {
            codes = bits == 5 ? lanes_lookup_32(codes, tables[0], tables[1]) : lanes_lookup(codes, tables[0]);
        }
        LANES_UNROLL
        for (unsigned pair = 0; pair < n; pair++) {
            sums[pair] = lanes_dot(sums[pair], codes, lanes_load_acts(t->acts[pair] + step + 2 * i));
        }
    }
}

FIRNI_INLINE void quant_dot_slab(const unsigned bits, const quant_kind kind, const unsigned n, const quant_dot *t,
                                 const uint8_t *slab, uintptr_t ahead, uint32_t step, const lanes_table tables[2],
                                 lanes_int sums[QUANT_PAIRS_MAX])
{
    const unsigned low_bits = firni_low_bits(bits);
    const unsigned row_steps = FIRNI_SLAB_STEPS / low_bits;
    lanes_weights high = {0};
    if (bits == low_bits) {
        /* Not unrolled: rows are alike, and this is compiled for every number of bits and pairs. */
        for (unsigned row = 0; row < low_bits; row++, slab += FIRNI_CODE_ROW_BYTES, ahead += FIRNI_CODE_ROW_BYTES) {
            __builtin_prefetch((const void *)ahead);
            quant_dot_row(bits, kind, n, t, slab, row, step + row * row_steps, high, tables, sums);
        }
        return;
    }
    /* Shifts of the high bits depend on the row: constants once unrolled. */
    high = lanes_load_words((const void *)(slab + low_bits * FIRNI_CODE_ROW_BYTES));
    __builtin_prefetch((const void *)(ahead + low_bits * FIRNI_CODE_ROW_BYTES));
    LANES_UNROLL
    for (unsigned row = 0; row < low_bits; row++) {
        __builtin_prefetch((const void *)(ahead + row * FIRNI_CODE_ROW_BYTES));
        quant_dot_row(bits, kind, n, t, slab + row * FIRNI_CODE_ROW_BYTES, row, step + row * row_steps, high, tables,
                      sums);
    }
}

FIRNI_INLINE void quant_dot_shape(const unsigned bits, const quant_kind kind, const unsigned n, const quant_dot *t)
{
    static const uint8_t none[LANES] = {0};
    const uint8_t *bytes = kind == QUANT_BYTES ? t->lloyd->bytes : none;
    const lanes_table tables[2] = {
        lanes_load_table(bytes),
        lanes_load_table(bits == 5 && kind == QUANT_BYTES ? bytes + LANES : bytes),
    };
    const uint8_t *slab = t->slabs;
    uintptr_t ahead = t->ahead;
    float *out = t->sums;
    for (uint32_t block = 0; block < t->n_blocks; block++) {
        lanes_int sums[QUANT_PAIRS_MAX];
        LANES_UNROLL
        for (unsigned pair = 0; pair < n; pair++) {
            sums[pair] = lanes_int_set(t->start[pair]);
        }
        for (uint32_t i = 0; i < t->n_slabs; i++) {
            quant_dot_slab(bits, kind, n, t, slab, ahead, i * FIRNI_SLAB_STEPS, tables, sums);
            slab += firni_slab_bytes(bits);
            ahead += firni_slab_bytes(bits);
        }
        LANES_UNROLL
        for (unsigned pair = 0; pair < n; pair++, out += LANES) {
            lanes_store(out, lanes_int_to_float(sums[pair]));
        }
    }
}

FIRNI_INLINE void quant_dot_pairs(const unsigned bits, const quant_kind kind, unsigned n, const quant_dot *t)
{
    switch (n) {
    case 1: quant_dot_shape(bits, kind, 1, t); break;
    case 2: quant_dot_shape(bits, kind, 2, t); break;
    case 3: quant_dot_shape(bits, kind, 3, t); break;
    default:
        assert(n == QUANT_PAIRS_MAX);
        quant_dot_shape(bits, kind, QUANT_PAIRS_MAX, t);
        break;
    }
}

static FIRNI_NO_INLINE void quant_dot_signed(unsigned n, const quant_dot *t)
{
    quant_dot_pairs(8, QUANT_SIGNED, n, t);
}

static FIRNI_NO_INLINE void quant_dot_codes(unsigned bits, unsigned n, const quant_dot *t)
{
    switch (bits) {
    case 2: quant_dot_pairs(2, QUANT_CODES, n, t); break;
    case 4: quant_dot_pairs(4, QUANT_CODES, n, t); break;
    case 5: quant_dot_pairs(5, QUANT_CODES, n, t); break;
    default:
        assert(bits == 8);
        quant_dot_pairs(8, QUANT_CODES, n, t);
        break;
    }
}

static FIRNI_NO_INLINE void quant_dot_levels(unsigned bits, unsigned n, const quant_dot *t)
{
    switch (bits) {
    case 2: quant_dot_pairs(2, QUANT_BYTES, n, t); break;
    case 3: quant_dot_pairs(3, QUANT_BYTES, n, t); break;
    case 4: quant_dot_pairs(4, QUANT_BYTES, n, t); break;
    case 5: quant_dot_pairs(5, QUANT_BYTES, n, t); break;
    default:
        assert(bits == 8);
        quant_dot_pairs(8, QUANT_WORDS, n, t);
        break;
    }
}

/* ---- floats to integers --------------------------------------------------------------------------------------- */

/* n floats, a multiple of 32, as integers up to `max`; returns their step, NaN when one of them is not finite. */
static float quant_integers(const float *x, uint32_t n, float max, int16_t *out)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < n; i += 2 * LANES) {
        const uint32_t part = lanes_magnitude_bits(lanes_load(x + i), lanes_load(x + i + LANES));
        bits = part > bits ? part : bits;
    }
    const float magnitude = firni_f32_from_bits(bits);
    if (!(magnitude >= FIRNI_QUANT_TINY && magnitude < INFINITY)) {
        memset(out, 0, n * sizeof(out[0]));
        return magnitude < FIRNI_QUANT_TINY ? 0.0f : NAN;
    }
    const lanes inverse = lanes_set(max / magnitude);
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes_store_i16(out + i, lanes_mul(lanes_load(x + i), inverse));
    }
    return magnitude / max;
}

static int32_t quant_sum(const int16_t *x, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

/* ---- scores --------------------------------------------------------------------------------------------------- */

static void quant_start(attend_batch *base)
{
    quant_batch *batch = (quant_batch *)base;
    const firni_quant_geometry *g = base->task->quant;
    const uint32_t n_groups = g->head_dim / g->group;
    for (uint32_t at = 0; at < base->n_pairs * n_groups; at++) {
        int16_t *integers = batch->q + (size_t)at * g->group;
        const float *q = base->q[at / n_groups] + (size_t)(at % n_groups) * g->group;
        const float step = quant_integers(q, g->group, FIRNI_QUANT_MAX, integers);
        const int32_t sum = quant_sum(integers, g->group);
        batch->q_steps[at] = step;
        batch->q_starts[at] = firni_keys_are_signed(g) ? -128 * sum : 0;
        batch->q_sums[at] = step * (float)sum;
    }
    memset(batch->biases, 0, (size_t)base->n_pairs * (g->value_dim / g->group) * sizeof(batch->biases[0]));
}

FIRNI_INLINE lanes quant_load_halves(const uint8_t *plane, size_t index)
{
    const void *at = plane + index * sizeof(uint16_t);
    return lanes_load_f16(at);
}

/* Brings the next tile's scales and biases of a group: two lines of each plane. */
FIRNI_INLINE void quant_fetch_halves(const uint8_t *plane, size_t index)
{
    const uintptr_t at = (uintptr_t)plane + index * sizeof(uint16_t);
    __builtin_prefetch((const void *)at);
    __builtin_prefetch((const void *)(at + FIRNI_CODE_ROW_BYTES));
}

static void quant_scores(const attend_batch *base, attend_group *group)
{
    const quant_batch *batch = (const quant_batch *)base;
    const firni_quant_geometry *g = base->task->quant;
    const firni_quant_view planes = firni_quant_view_of(g, base->block, base->task->kv_head);
    const firni_quant_view next = firni_quant_view_of(g, base->ahead, base->task->kv_head);
    const uint32_t n_groups = g->head_dim / g->group;
    const size_t group_bytes = (size_t)g->group * ATTEND_TILE / 8 * g->key_bits;
    float sums[ATTEND_VECTORS][QUANT_PAIRS_MAX][LANES];
    quant_dot t = {.n_blocks = ATTEND_VECTORS, .n_slabs = g->group / FIRNI_SLAB_STEPS, .sums = sums[0][0]};
    for (uint32_t k = 0; k < n_groups; k++) {
        for (uint32_t i = 0; i < group->n; i++) {
            const size_t pair = (size_t)(group->first + i) * n_groups + k;
            t.acts[i] = batch->q + pair * g->group;
            t.start[i] = batch->q_starts[pair];
        }
        t.slabs = planes.k_codes + k * group_bytes;
        t.ahead = (uintptr_t)next.k_codes + k * group_bytes;
        if (firni_keys_are_signed(g)) {
            quant_dot_signed(group->n, &t);
        } else {
            quant_dot_codes(g->key_bits, group->n, &t);
        }
        const size_t at = (size_t)k * ATTEND_TILE;
        quant_fetch_halves(next.k_scales, at);
        quant_fetch_halves(next.k_biases, at);
        const float *sum = sums[0][0]; /* packed: [vector][pair of the group] */
        for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
            const lanes scales = quant_load_halves(planes.k_scales, at + (size_t)j * LANES);
            const lanes biases = quant_load_halves(planes.k_biases, at + (size_t)j * LANES);
            for (uint32_t i = 0; i < group->n; i++, sum += LANES) {
                const size_t pair = (size_t)(group->first + i) * n_groups + k;
                float *score = group->weights[i] + j * LANES;
                const lanes so_far = k == 0 ? lanes_set(0.0f) : lanes_load(score);
                const lanes scale = lanes_mul(scales, lanes_set(batch->q_steps[pair]));
                const lanes scaled = lanes_fma(scale, lanes_load(sum), so_far);
                lanes_store(score, lanes_fma(biases, lanes_set(batch->q_sums[pair]), scaled));
            }
        }
    }
}

/* ---- values --------------------------------------------------------------------------------------------------- */

/* 64 scales or biases, 0 where a token is not seen. */
FIRNI_INLINE void quant_seen_halves(const uint8_t *plane, size_t index, uint32_t begin, uint32_t end,
                                    float out[ATTEND_TILE])
{
    LANES_UNROLL
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        lanes_store(out + j * LANES, quant_load_halves(plane, index + (size_t)j * LANES));
    }
    if (begin != 0 || end != ATTEND_TILE) {
        memset(out, 0, begin * sizeof(out[0]));
        memset(out + end, 0, (ATTEND_TILE - end) * sizeof(out[0]));
    }
}

/* One pair's weights for a group of elements, times the scales, as integers; returns their step. */
static float quant_weights(const quant_batch *batch, const attend_group *group, uint32_t i, const uint8_t *scales,
                           size_t at, int16_t integers[ATTEND_TILE])
{
    float scaled[ATTEND_TILE];
    quant_seen_halves(scales, at, group->begin[i], group->end[i], scaled);
    LANES_UNROLL
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        const lanes weight = lanes_load(group->weights[i] + j * LANES);
        lanes_store(scaled + j * LANES, lanes_mul(weight, lanes_load(scaled + j * LANES)));
    }
    return quant_integers(scaled, ATTEND_TILE, batch->code.weight_max, integers) * batch->code.unit;
}

static void quant_add_biases(quant_batch *batch, const attend_group *group, uint32_t i, float rescale,
                             const uint8_t *plane, uint32_t k, uint32_t n_groups)
{
    float biases[ATTEND_TILE];
    float *total = batch->biases[(size_t)(group->first + i) * n_groups + k];
    quant_seen_halves(plane, (size_t)k * ATTEND_TILE, group->begin[i], group->end[i], biases);
    lanes sum = lanes_mul(lanes_load(total), lanes_set(rescale));
    LANES_UNROLL
    for (unsigned j = 0; j < ATTEND_VECTORS; j++) {
        sum = lanes_fma(lanes_load(group->weights[i] + j * LANES), lanes_load(biases + j * LANES), sum);
    }
    lanes_store(total, sum);
}

/* The pairs that see something of the tile: the others' values stay as they are, to the sign of a zero. */
static uint32_t quant_seeing(const attend_group *group, uint32_t seeing[QUANT_PAIRS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        if (group->begin[i] < group->end[i]) {
            seeing[n++] = i;
        }
    }
    return n;
}

static void quant_values(attend_batch *base, const attend_group *group, const float rescale[LANES])
{
    quant_batch *batch = (quant_batch *)base;
    const firni_quant_geometry *g = base->task->quant;
    const firni_quant_view planes = firni_quant_view_of(g, base->block, base->task->kv_head);
    const firni_quant_view next = firni_quant_view_of(g, base->ahead, base->task->kv_head);
    const uint32_t n_groups = g->value_dim / g->group;
    const size_t group_bytes = (size_t)g->group * ATTEND_TILE / 8 * g->value_bits;
    const uint32_t n_blocks = g->group / LANES;
    uint32_t seeing[QUANT_PAIRS_MAX];
    const uint32_t n = quant_seeing(group, seeing);
    float sums[ATTEND_VECTORS][QUANT_PAIRS_MAX][LANES];
    int16_t integers[QUANT_PAIRS_MAX][ATTEND_TILE];
    float steps[QUANT_PAIRS_MAX];
    quant_dot t = {.n_blocks = n_blocks, .n_slabs = 2, .lloyd = batch->code.lloyd, .sums = sums[0][0]};
    for (uint32_t k = 0; k < n_groups; k++) {
        const size_t at = (size_t)k * ATTEND_TILE;
        quant_fetch_halves(next.v_scales, at);
        for (uint32_t p = 0; p < n; p++) {
            steps[p] = quant_weights(batch, group, seeing[p], planes.v_scales, at, integers[p]);
            t.acts[p] = integers[p];
            t.start[p] = batch->code.centre != 0 ? -batch->code.centre * quant_sum(integers[p], ATTEND_TILE) : 0;
        }
        t.slabs = planes.v_codes + k * group_bytes;
        t.ahead = (uintptr_t)next.v_codes + k * group_bytes;
        if (batch->code.lloyd != NULL) {
            quant_dot_levels(g->value_bits, n, &t);
        } else {
            quant_dot_codes(g->value_bits, n, &t);
            quant_fetch_halves(next.v_biases, at);
            for (uint32_t p = 0; p < n; p++) {
                quant_add_biases(batch, group, seeing[p], rescale[seeing[p]], planes.v_biases, k, n_groups);
            }
        }
        const float *sum = sums[0][0];
        for (uint32_t j = 0; j < n_blocks; j++) {
            for (uint32_t p = 0; p < n; p++, sum += LANES) {
                float *value = base->values + (size_t)(group->first + seeing[p]) * base->value_stride +
                               (size_t)k * g->group + (size_t)j * LANES;
                lanes_store(value, lanes_fma(lanes_set(steps[p]), lanes_load(sum), lanes_load(value)));
            }
        }
    }
}

static void quant_finish(attend_batch *base)
{
    const quant_batch *batch = (const quant_batch *)base;
    const firni_quant_geometry *g = base->task->quant;
    const uint32_t n_groups = g->value_dim / g->group;
    for (uint32_t i = 0; i < base->n_pairs; i++) {
        float *values = base->values + (size_t)i * base->value_stride;
        if (g->rotated) {
            firni_rotate_back(values, g->value_dim);
            continue;
        }
        for (uint32_t k = 0; k < n_groups; k++) {
            const lanes bias = lanes_set(lanes_fold_sum(lanes_load(batch->biases[(size_t)i * n_groups + k])));
            for (uint32_t j = k * g->group; j < (k + 1) * g->group; j += LANES) {
                lanes_store(values + j, lanes_add(lanes_load(values + j), bias));
            }
        }
    }
}

static const attend_storage quant_storage = {
    .group_pairs_max = QUANT_PAIRS_MAX,
    .start = quant_start,
    .scores = quant_scores,
    .values = quant_values,
    .finish = quant_finish,
};

static void lanes_attend_quant(const firni_attend_task *task)
{
    firni_attend_quant_check(task);
    const firni_quant_geometry *g = task->quant;
    quant_batch batch;
    batch.base.task = task;
    batch.base.storage = &quant_storage;
    batch.base.head_dim = g->head_dim;
    batch.base.value_dim = g->value_dim;
    batch.code = firni_value_code_of(g);
    attend_walk(&batch.base, attend_batch_pairs(g->head_dim > g->value_dim ? g->head_dim : g->value_dim));
}

#endif
