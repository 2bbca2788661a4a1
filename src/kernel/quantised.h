/*
 * quantised: how quantised keys and values lie in a block, and the numbers that they stand for.
 *
 * A block has these planes, each beginning at a 64-byte boundary:
 *
 *   k codes   [n_kv_heads][head_dim / group][4 x 16 tokens][group / 32] slabs    steps are dimensions, lanes tokens
 *   k scales, k biases  f16 [n_kv_heads][head_dim / group][64 tokens]
 *   v codes   [n_kv_heads][value_dim / 16][64 tokens / 32] slabs                 steps are tokens, lanes dimensions
 *   v scales, v biases  f16 [n_kv_heads][value_dim / group][64 tokens]           no biases when rotated
 *
 * Both dot products of attention sum over steps with the results in lanes, so both kinds of codes lie alike. A slab is
 * 32 steps of 16 lanes in `bits` rows of 64 bytes; in a row each lane has two neighbouring 16-bit words, because a
 * 16-bit multiply-add sums pairs:
 *
 *   row of 4-bit codes   lane 0: [s0 s2 s4 s6][s1 s3 s5 s7]   lane 1: ...       s0 is the lowest 4 bits of a word
 *
 * Shifting all words alike and masking them leaves a pair of steps in every lane. Bits that do not divide 16 are two
 * parts: 5 is 4 rows of 4 bits and a row of 1 bit for all 32 steps, 3 is 2 rows of 2 bits and a row of 1 bit. Nothing
 * is wasted, and the rows lie in the order in which attention reads them.
 *
 * A key is scale * code + bias, with codes of 8 bits signed where values are rotated. So is a value, all unsigned; or,
 * when rotated, scale * unit * (level[code] - centre), in the rotated frame (docs/ARITHMETIC.md).
 */
#ifndef FIRNI_QUANTISED_H
#define FIRNI_QUANTISED_H

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/compiler.h"
#include "kernel/kernel_impl.h"
#include "kernel/lloyd_tables.h"
#include "kernel/numbers.h"

enum {
    FIRNI_SLAB_STEPS = 32,
    FIRNI_SLAB_LANES = 16,
    FIRNI_CODE_ROW_BYTES = 64,
    FIRNI_QUANT_GROUP_MIN = 32,
    FIRNI_QUANT_GROUPS_MAX = FIRNI_HEAD_DIM_MAX / FIRNI_QUANT_GROUP_MIN,
};

/* A group that held a NaN or an infinity, or numbers that f16 scales cannot express, has this bias (or, without biases,
 * this scale): what attends to it is NaN, what does not is untouched. */
#define FIRNI_QUANT_NAN 0x7e00u

/* Integers that stand for a group of floats have at most this magnitude; weights of 8-bit levels, which are larger than
 * a byte, fewer: sums over 64 steps stay below 2^31. */
#define FIRNI_QUANT_MAX 32767.0f
#define FIRNI_QUANT_MAX_WIDE 8191.0f
/* A group whose largest magnitude is below this is zero: its reciprocal could overflow. */
#define FIRNI_QUANT_TINY 0x1p-100f

/* Bits of a code in the first rows of a slab; the last row has the bit above them when there is one. */
FIRNI_INLINE unsigned firni_low_bits(unsigned bits) { return bits == 5 ? 4 : bits == 3 ? 2 : bits; }

FIRNI_INLINE size_t firni_slab_bytes(unsigned bits) { return (size_t)bits * FIRNI_CODE_ROW_BYTES; }

/* Where the low bits of the code of a step lie: a row, and a bit of the lane's 32. */
typedef struct firni_code_place {
    unsigned row;
    unsigned bit;
} firni_code_place;

FIRNI_INLINE firni_code_place firni_code_at(unsigned low_bits, unsigned step)
{
    const unsigned row_steps = FIRNI_SLAB_STEPS / low_bits;
    const unsigned at = step % row_steps;
    return (firni_code_place){.row = step / row_steps, .bit = at % 2 * 16 + at / 2 * low_bits};
}

FIRNI_INLINE uint32_t firni_code_word(const uint8_t *slab, unsigned row, unsigned lane)
{
    uint32_t word;
    memcpy(&word, slab + row * FIRNI_CODE_ROW_BYTES + lane * sizeof(word), sizeof(word));
    return word;
}

FIRNI_INLINE uint32_t firni_code_get(const uint8_t *slab, unsigned bits, unsigned step, unsigned lane)
{
    const unsigned low_bits = firni_low_bits(bits);
    const firni_code_place low = firni_code_at(low_bits, step);
    uint32_t code = firni_code_word(slab, low.row, lane) >> low.bit & ((1u << low_bits) - 1);
    if (bits > low_bits) {
        const firni_code_place high = firni_code_at(1, step);
        code |= (firni_code_word(slab, low_bits + high.row, lane) >> high.bit & 1) << low_bits;
    }
    return code;
}

/* ---- affine codes --------------------------------------------------------------------------------------------- */

/* Codes run from first to last; a bias is the number that 0 stands for. */
typedef struct firni_code_range {
    float first, last;
} firni_code_range;

FIRNI_INLINE firni_code_range firni_codes_unsigned(uint32_t bits)
{
    return (firni_code_range){0.0f, (float)((1u << bits) - 1)};
}

/* With rotated values, keys of 8 bits are signed: their bias is the middle of the group, not its end. */
FIRNI_INLINE bool firni_keys_are_signed(const firni_quant_geometry *g) { return g->rotated && g->key_bits == 8; }

FIRNI_INLINE firni_code_range firni_key_codes(const firni_quant_geometry *g)
{
    return firni_keys_are_signed(g) ? (firni_code_range){-128.0f, 127.0f} : firni_codes_unsigned(g->key_bits);
}

/* The number that the bits of a key's code are. */
FIRNI_INLINE int32_t firni_key_number(const firni_quant_geometry *g, uint32_t code)
{
    return firni_keys_are_signed(g) && code >= 128 ? (int32_t)code - 256 : (int32_t)code;
}

/* ---- where the planes of a head begin ------------------------------------------------------------------------- */

/* Sets the offsets; the bytes of all planes. */
FIRNI_INLINE size_t firni_quant_place(firni_quant_geometry *g)
{
    const uint32_t key_bytes = g->n_kv_heads * g->head_dim * FIRN_BLOCK_TOKENS / 8 * g->key_bits;
    const uint32_t value_bytes = g->n_kv_heads * g->value_dim * FIRN_BLOCK_TOKENS / 8 * g->value_bits;
    const uint32_t key_scale_bytes = g->n_kv_heads * (g->head_dim / g->group) * FIRN_BLOCK_TOKENS * 2;
    const uint32_t value_scale_bytes = g->n_kv_heads * (g->value_dim / g->group) * FIRN_BLOCK_TOKENS * 2;
    g->k_scales = key_bytes;
    g->k_biases = g->k_scales + key_scale_bytes;
    g->v_codes = g->k_biases + key_scale_bytes;
    g->v_scales = g->v_codes + value_bytes;
    g->v_biases = g->v_scales + value_scale_bytes;
    return g->v_biases + (g->rotated ? 0 : value_scale_bytes);
}

/* Where the planes of one head begin in a block: for storing, and for reading. */
typedef struct firni_quant_target {
    uint8_t *k_codes, *k_scales, *k_biases;
    uint8_t *v_codes, *v_scales, *v_biases;
} firni_quant_target;

typedef struct firni_quant_view {
    const uint8_t *k_codes, *k_scales, *k_biases;
    const uint8_t *v_codes, *v_scales, *v_biases;
} firni_quant_view;

FIRNI_INLINE firni_quant_target firni_quant_target_of(const firni_quant_geometry *g, uint8_t *block, uint32_t kv_head)
{
    const size_t key_bytes = (size_t)g->head_dim * FIRN_BLOCK_TOKENS / 8 * g->key_bits;
    const size_t value_bytes = (size_t)g->value_dim * FIRN_BLOCK_TOKENS / 8 * g->value_bits;
    const size_t key_scale_bytes = (size_t)(g->head_dim / g->group) * FIRN_BLOCK_TOKENS * 2;
    const size_t value_scale_bytes = (size_t)(g->value_dim / g->group) * FIRN_BLOCK_TOKENS * 2;
    return (firni_quant_target){
        .k_codes = block + kv_head * key_bytes,
        .k_scales = block + g->k_scales + kv_head * key_scale_bytes,
        .k_biases = block + g->k_biases + kv_head * key_scale_bytes,
        .v_codes = block + g->v_codes + kv_head * value_bytes,
        .v_scales = block + g->v_scales + kv_head * value_scale_bytes,
        .v_biases = block + g->v_biases + kv_head * value_scale_bytes,
    };
}

FIRNI_INLINE firni_quant_view firni_quant_view_of(const firni_quant_geometry *g, const uint8_t *block, uint32_t kv_head)
{
    /* Offsets alone; nothing is written through them. */
    const firni_quant_target at = firni_quant_target_of(g, (uint8_t *)(uintptr_t)block, kv_head);
    return (firni_quant_view){at.k_codes, at.k_scales, at.k_biases, at.v_codes, at.v_scales, at.v_biases};
}

/* The slab of a token's key with dimension `dim`, and of a value's dimension with the token; of one head. */
FIRNI_INLINE size_t firni_key_slab(const firni_quant_geometry *g, uint32_t dim, uint32_t token)
{
    const uint32_t n_slabs = g->group / FIRNI_SLAB_STEPS;
    const uint32_t lane_block = dim / g->group * (FIRN_BLOCK_TOKENS / FIRNI_SLAB_LANES) + token / FIRNI_SLAB_LANES;
    return (lane_block * n_slabs + dim % g->group / FIRNI_SLAB_STEPS) * firni_slab_bytes(g->key_bits);
}

FIRNI_INLINE size_t firni_value_slab(const firni_quant_geometry *g, uint32_t dim, uint32_t token)
{
    const uint32_t n_slabs = FIRN_BLOCK_TOKENS / FIRNI_SLAB_STEPS;
    return (dim / FIRNI_SLAB_LANES * n_slabs + token / FIRNI_SLAB_STEPS) * firni_slab_bytes(g->value_bits);
}

/* The preconditions of attend_quant. */
FIRNI_INLINE void firni_attend_quant_check(const firni_attend_task *task)
{
    const firni_quant_geometry *g = task->quant;
    assert(g != NULL && task->geometry == NULL);
    assert(g->group == 32 || g->group == 64);
    assert(g->head_dim >= g->group && g->head_dim % g->group == 0 && g->head_dim <= FIRNI_HEAD_DIM_MAX);
    assert(g->value_dim >= g->group && g->value_dim % g->group == 0 && g->value_dim <= FIRNI_HEAD_DIM_MAX);
    assert(!g->rotated || (g->group == FIRNI_QUANT_GROUP_MIN && (g->value_dim & (g->value_dim - 1)) == 0));
    assert(task->kv_head < g->n_kv_heads);
    (void)g;
}

FIRNI_INLINE float firni_load_half(const uint8_t *plane, size_t index)
{
    uint16_t half;
    memcpy(&half, plane + index * sizeof(half), sizeof(half));
    return firni_f16_to_f32(half);
}

FIRNI_INLINE void firni_store_half(uint8_t *plane, size_t index, uint16_t half)
{
    memcpy(plane + index * sizeof(half), &half, sizeof(half));
}

/* ---- what codes of values stand for --------------------------------------------------------------------------- */

/* A value is step * (u - centre) plus, when affine, a bias; u is the code or, with levels, levels[code]. */
typedef struct firni_value_code {
    const firni_lloyd *lloyd; /* NULL: affine */
    float unit;
    int32_t centre;
    float weight_max; /* largest integer that stands for a weight */
} firni_value_code;

FIRNI_INLINE firni_value_code firni_value_code_of(const firni_quant_geometry *g)
{
    if (!g->rotated) {
        return (firni_value_code){.unit = 1.0f, .weight_max = FIRNI_QUANT_MAX};
    }
    const firni_lloyd *lloyd = firni_lloyd_of(g->value_bits);
    return (firni_value_code){
        .lloyd = lloyd,
        .unit = lloyd->unit,
        .centre = lloyd->centre,
        .weight_max = g->value_bits == 8 ? FIRNI_QUANT_MAX_WIDE : FIRNI_QUANT_MAX,
    };
}

/* ---- rotation ------------------------------------------------------------------------------------------------- */

/* Sums and differences of elements `half` apart. */
FIRNI_INLINE void firni_hadamard_stage(float *x, uint32_t n, const uint32_t half)
{
    for (uint32_t i = 0; i < n; i += 2 * half) {
        for (uint32_t j = i; j < i + half; j++) {
            const float a = x[j];
            const float b = x[j + half];
            x[j] = a + b;
            x[j + half] = a - b;
        }
    }
}

/* The same of 16 neighbours and 16 others, through copies that cannot overlap. */
FIRNI_INLINE void firni_hadamard_sixteen(float *x, float *y)
{
    float a[16];
    float b[16];
    memcpy(a, x, sizeof(a));
    memcpy(b, y, sizeof(b));
    for (uint32_t i = 0; i < 16; i++) {
        x[i] = a[i] + b[i];
    }
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = a[i] - b[i];
    }
}

/* Walsh-Hadamard transform without a factor, n a power of two from 16 on: stages `half` = 1, 2, 4, ..., additions and
 * subtractions only, the same in every variant. The first two stages are done together, because compilers do the others
 * in vectors. */
FIRNI_INLINE void firni_hadamard(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 4) {
        const float a = x[i] + x[i + 1];
        const float b = x[i] - x[i + 1];
        const float c = x[i + 2] + x[i + 3];
        const float d = x[i + 2] - x[i + 3];
        x[i] = a + c;
        x[i + 1] = b + d;
        x[i + 2] = a - c;
        x[i + 3] = b - d;
    }
    firni_hadamard_stage(x, n, 4);
    firni_hadamard_stage(x, n, 8);
    for (uint32_t half = 16; half < n; half *= 2) {
        for (uint32_t i = 0; i < n; i += 2 * half) {
            for (uint32_t j = i; j < i + half; j += 16) {
                firni_hadamard_sixteen(x + j, x + j + half);
            }
        }
    }
}

/* The signs that values are multiplied with before the rotation: a fixed pattern, so that a constant vector, which the
 * rotation alone would gather in one element, looks like noise. The upper bit of a multiplicative hash. */
FIRNI_INLINE float firni_flip(float x, uint32_t index)
{
    uint32_t hash = (index + 1) * 0x9e3779b9u;
    hash = (hash ^ hash >> 15) * 0x85ebca6bu;
    return hash >> 31 != 0 ? -x : x;
}

/* The transform and its inverse together multiply by n: a power of two each way, which rounds nothing. */
FIRNI_INLINE float firni_rotate_factor(uint32_t n, bool inverse)
{
    float factor = 1.0f;
    for (uint32_t i = 1, k = 0; i < n; i *= 2, k++) {
        factor *= k % 2 == (inverse ? 1u : 0u) ? 0.5f : 1.0f;
    }
    return factor;
}

/* flip, transform, factor */
FIRNI_INLINE void firni_rotate(float *x, uint32_t n)
{
    const float factor = firni_rotate_factor(n, false);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = firni_flip(x[i], i);
    }
    firni_hadamard(x, n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

FIRNI_INLINE void firni_rotate_back(float *x, uint32_t n)
{
    const float factor = firni_rotate_factor(n, true);
    firni_hadamard(x, n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = firni_flip(x[i] * factor, i);
    }
}

/* The number of thresholds below y. */
FIRNI_INLINE uint32_t firni_lloyd_code(const firni_lloyd *lloyd, uint32_t bits, float y)
{
    uint32_t code = 0;
    for (uint32_t half = 1u << (bits - 1); half > 0; half /= 2) {
        code += y > lloyd->thresholds[code + half - 1] ? half : 0;
    }
    return code;
}

#endif
