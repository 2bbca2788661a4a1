/*
 * The scalar reference of quantised keys and values: this file is the definition of what is stored and of what
 * attention makes of it, one number at a time. The walk over tiles, softmax included, is that of attend_scalar.c; the
 * order of bits in a block is quantised.h.
 *
 * Sources: rotation and quantisers of values, TurboQuant (arXiv 2504.19874, section 3); the rest is our own.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernel/quantised.h"
#include "kernel/scalar_numbers.h"
#include "kernel/variants_impl.h"

enum { LANES = FIRNI_SCALAR_LANES, TILE = FIRN_BLOCK_TOKENS, GROUP_MAX = 64 };

static float magnitude_of(const float *x, uint32_t n)
{
    uint32_t bits_max = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t bits = firni_f32_bits(x[i]) & 0x7fffffffu;
        bits_max = bits > bits_max ? bits : bits_max;
    }
    return firni_f32_from_bits(bits_max);
}

/* n floats as integers up to `max` and the step between them, which is NaN when one of them is not finite. */
static float to_integers(const float *x, uint32_t n, float max, int16_t *out)
{
    const float magnitude = magnitude_of(x, n);
    if (!(magnitude >= FIRNI_QUANT_TINY && magnitude < INFINITY)) {
        memset(out, 0, n * sizeof(out[0]));
        return magnitude < FIRNI_QUANT_TINY ? 0.0f : NAN;
    }
    const float inverse = max / magnitude;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int16_t)lrintf(x[i] * inverse);
    }
    return magnitude / max;
}

/* ---- store ---------------------------------------------------------------------------------------------------- */

static bool is_finite_half(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

/* One group of one token: x is about scale * code + bias. Scale and bias are rounded first, so that the codes make up
 * for it; the smallest number never gets a code before the first, nor the largest one beyond the last. */
static void quantise_affine(const float *x, uint32_t n, firni_code_range range, uint32_t *codes, uint16_t *scale,
                            uint16_t *bias)
{
    float max = -INFINITY;
    float negated_max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        max = larger(x[i], max);
        negated_max = larger(0.0f - x[i], negated_max);
    }
    const float min = 0.0f - negated_max;
    memset(codes, 0, n * sizeof(codes[0]));
    *scale = firni_f16_from_f32((max - min + 0.0f) / (range.last - range.first)); /* the sum turns -0 into 0 */
    *bias = firni_f16_from_f32(min - range.first * firni_f16_to_f32(*scale));
    if (!(magnitude_of(x, n) < INFINITY) || !is_finite_half(*scale) || !is_finite_half(*bias)) {
        *scale = 0;
        *bias = FIRNI_QUANT_NAN;
        return;
    }
    if (*scale == 0) {
        return; /* all equal, or closer than a scale can tell */
    }
    const float inverse = 1.0f / firni_f16_to_f32(*scale);
    const float origin = firni_f16_to_f32(*bias);
    for (uint32_t i = 0; i < n; i++) {
        const float y = larger((x[i] - origin) * inverse, range.first);
        codes[i] = (uint32_t)lrintf(range.last < y ? range.last : y);
    }
}

/* One group of 32 rotated elements, of which the scale is the root of their mean square. */
static void quantise_normal(const float *x, uint32_t bits, uint32_t *codes, uint16_t *scale)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < FIRNI_QUANT_GROUP_MIN; i++) {
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    }
    memset(codes, 0, FIRNI_QUANT_GROUP_MIN * sizeof(codes[0]));
    *scale = firni_f16_from_f32(sqrtf(fold_sum(lanes) / FIRNI_QUANT_GROUP_MIN));
    if (!is_finite_half(*scale)) {
        *scale = FIRNI_QUANT_NAN;
    } else if (*scale != 0) {
        const float inverse = 1.0f / firni_f16_to_f32(*scale);
        for (uint32_t i = 0; i < FIRNI_QUANT_GROUP_MIN; i++) {
            codes[i] = firni_lloyd_code(firni_lloyd_of(bits), bits, x[i] * inverse);
        }
    }
}

static void put_bits(uint8_t *slab, unsigned row, unsigned lane, unsigned bit, uint32_t mask, uint32_t value)
{
    const uint32_t word = firni_code_word(slab, row, lane);
    const uint32_t changed = (word & ~(mask << bit)) | value << bit;
    memcpy(slab + row * FIRNI_CODE_ROW_BYTES + lane * sizeof(changed), &changed, sizeof(changed));
}

static void put_code(uint8_t *slab, unsigned bits, unsigned step, unsigned lane, uint32_t code)
{
    const unsigned low_bits = firni_low_bits(bits);
    const uint32_t mask = (1u << low_bits) - 1;
    const firni_code_place low = firni_code_at(low_bits, step);
    put_bits(slab, low.row, lane, low.bit, mask, code & mask);
    if (bits > low_bits) {
        put_bits(slab, low_bits, lane, firni_code_at(1, step).bit, 1, code >> low_bits);
    }
}

static void store_key(const firni_quant_geometry *g, const firni_quant_target *planes, uint32_t token, const float *k)
{
    for (uint32_t d = 0; d < g->head_dim; d += g->group) {
        uint32_t codes[GROUP_MAX];
        uint16_t scale, bias;
        quantise_affine(k + d, g->group, firni_key_codes(g), codes, &scale, &bias);
        firni_store_half(planes->k_scales, (size_t)d / g->group * TILE + token, scale);
        firni_store_half(planes->k_biases, (size_t)d / g->group * TILE + token, bias);
        for (uint32_t i = 0; i < g->group; i++) {
            put_code(planes->k_codes + firni_key_slab(g, d + i, token), g->key_bits, i % FIRNI_SLAB_STEPS,
                     token % FIRNI_SLAB_LANES, codes[i]);
        }
    }
}

static void store_value(const firni_quant_geometry *g, const firni_quant_target *planes, uint32_t token, const float *v)
{
    float rotated[FIRNI_HEAD_DIM_MAX];
    if (g->rotated) {
        memcpy(rotated, v, g->value_dim * sizeof(v[0]));
        firni_rotate(rotated, g->value_dim);
        v = rotated;
    }
    for (uint32_t j = 0; j < g->value_dim; j += g->group) {
        uint32_t codes[GROUP_MAX];
        uint16_t scale, bias;
        if (g->rotated) {
            quantise_normal(v + j, g->value_bits, codes, &scale);
        } else {
            quantise_affine(v + j, g->group, firni_codes_unsigned(g->value_bits), codes, &scale, &bias);
            firni_store_half(planes->v_biases, (size_t)j / g->group * TILE + token, bias);
        }
        firni_store_half(planes->v_scales, (size_t)j / g->group * TILE + token, scale);
        for (uint32_t i = 0; i < g->group; i++) {
            put_code(planes->v_codes + firni_value_slab(g, j + i, token), g->value_bits, token % FIRNI_SLAB_STEPS,
                     (j + i) % FIRNI_SLAB_LANES, codes[i]);
        }
    }
}

void firni_scalar_store_quant(const firni_quant_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                              const float *v)
{
    assert(lane < TILE);
    for (uint32_t h = 0; h < geometry->n_kv_heads; h++) {
        const firni_quant_target planes = firni_quant_target_of(geometry, block, h);
        store_key(geometry, &planes, lane, k + (size_t)h * geometry->head_dim);
        store_value(geometry, &planes, lane, v + (size_t)h * geometry->value_dim);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

/* One query head over quantised blocks: the query as integers, and what the biases of values have added up to. */
typedef struct quant_attend {
    firni_scalar_attend base;
    int16_t q[FIRNI_HEAD_DIM_MAX];
    float q_steps[FIRNI_QUANT_GROUPS_MAX];
    float q_sums[FIRNI_QUANT_GROUPS_MAX]; /* of the integers of a group, times their step: what a bias is multiplied
                                           * by */
    float biases[FIRNI_QUANT_GROUPS_MAX][LANES];
} quant_attend;

static void quant_start(firni_scalar_attend *base)
{
    quant_attend *attend = (quant_attend *)base;
    const firni_quant_geometry *g = base->task->quant;
    for (uint32_t d = 0; d < g->head_dim; d += g->group) {
        const float step = to_integers(base->q + d, g->group, FIRNI_QUANT_MAX, attend->q + d);
        int32_t sum = 0;
        for (uint32_t i = 0; i < g->group; i++) {
            sum += attend->q[d + i];
        }
        attend->q_steps[d / g->group] = step;
        attend->q_sums[d / g->group] = step * (float)sum;
    }
    memset(attend->biases, 0, sizeof(attend->biases));
}

static float quant_score(const firni_scalar_attend *base, const uint8_t *block, uint32_t token)
{
    const quant_attend *attend = (const quant_attend *)base;
    const firni_quant_geometry *g = base->task->quant;
    const firni_quant_view planes = firni_quant_view_of(g, block, base->task->kv_head);
    float score = 0.0f;
    for (uint32_t d = 0; d < g->head_dim; d += g->group) {
        int32_t dot = 0; /* at most 64 * 255 * 32767 in magnitude: exact */
        for (uint32_t i = d; i < d + g->group; i++) {
            const uint8_t *slab = planes.k_codes + firni_key_slab(g, i, token);
            const uint32_t code =
                firni_code_get(slab, g->key_bits, i % g->group % FIRNI_SLAB_STEPS, token % FIRNI_SLAB_LANES);
            dot += firni_key_number(g, code) * attend->q[i];
        }
        const uint32_t group = d / g->group;
        const size_t at = (size_t)group * TILE + token;
        score = fmaf(firni_load_half(planes.k_scales, at) * attend->q_steps[group], (float)dot, score);
        score = fmaf(firni_load_half(planes.k_biases, at), attend->q_sums[group], score);
    }
    return score;
}

/* One group of elements. Weights, multiplied with the tokens' scales, become integers; those of tokens that are not
 * seen are 0, whatever their scales. */
static void add_value_group(quant_attend *attend, const firni_quant_view *planes, const float *weights, uint32_t begin,
                            uint32_t end, uint32_t group, float *values)
{
    const firni_quant_geometry *g = attend->base.task->quant;
    const firni_value_code code = firni_value_code_of(g);
    float scaled[TILE] = {0};
    int16_t integers[TILE];
    for (uint32_t t = begin; t < end; t++) {
        scaled[t] = weights[t] * firni_load_half(planes->v_scales, (size_t)group * TILE + t);
    }
    const float step = to_integers(scaled, TILE, code.weight_max, integers) * code.unit;
    for (uint32_t j = group * g->group; j < (group + 1) * g->group; j++) {
        int32_t dot = 0; /* at most 64 * 255 * 32767, or 64 * 4094 * 8191: exact */
        for (uint32_t t = 0; t < TILE; t++) {
            const uint8_t *slab = planes->v_codes + firni_value_slab(g, j, t);
            const uint32_t u = firni_code_get(slab, g->value_bits, t % FIRNI_SLAB_STEPS, j % FIRNI_SLAB_LANES);
            const int32_t level = code.lloyd != NULL ? code.lloyd->levels[u] : (int32_t)u;
            dot += (level - code.centre) * integers[t];
        }
        values[j] = fmaf(step, (float)dot, values[j]);
    }
}

static void quant_add_values(firni_scalar_attend *base, const uint8_t *block, const float *weights, uint32_t begin,
                             uint32_t end, float rescale, float *values)
{
    quant_attend *attend = (quant_attend *)base;
    const firni_quant_geometry *g = base->task->quant;
    const firni_quant_view planes = firni_quant_view_of(g, block, base->task->kv_head);
    for (uint32_t group = 0; group < g->value_dim / g->group; group++) {
        add_value_group(attend, &planes, weights, begin, end, group, values);
        for (uint32_t t = 0; t < TILE && !g->rotated; t++) {
            float *sum = &attend->biases[group][t % LANES];
            const float bias = firni_load_half(planes.v_biases, (size_t)group * TILE + t);
            *sum = t < LANES ? *sum * rescale : *sum;
            *sum = fmaf(weights[t], t >= begin && t < end ? bias : 0.0f, *sum);
        }
    }
}

static void quant_finish(firni_scalar_attend *base, float *values)
{
    quant_attend *attend = (quant_attend *)base;
    const firni_quant_geometry *g = base->task->quant;
    if (g->rotated) {
        firni_rotate_back(values, g->value_dim);
        return;
    }
    for (uint32_t group = 0; group < g->value_dim / g->group; group++) {
        const float bias = fold_sum(attend->biases[group]);
        for (uint32_t j = 0; j < g->group; j++) {
            values[group * g->group + j] += bias;
        }
    }
}

void firni_scalar_attend_quant(const firni_attend_task *task)
{
    firni_attend_quant_check(task);
    quant_attend attend = {
        .base = {
            .task = task,
            .head_dim = task->quant->head_dim,
            .value_dim = task->quant->value_dim,
            .start = quant_start,
            .score = quant_score,
            .add_values = quant_add_values,
            .finish = quant_finish,
        },
    };
    firni_scalar_attend_all(&attend.base);
}
