/*
 * Products with grouped weights, of a vector variant: activations to 16 bits, and panels against tokens. Written over
 * lanes; grouped_scalar.c is the definition.
 *
 * Work per group of 32 k, for n tokens and w panels: 16 n w multiply-adds of pairs, 16 n broadcasts, and 16 w times
 * what makes 32 multiplicands of the packed form; then one scale product and one fused multiply-add (two with minima)
 * for each of the n w chains. Integer sums are exact, so their order is free; the float chain adds groups in ascending
 * order.
 *
 * Elements below 8 bits are expanded where they are multiplied, in registers: 4 bits take a load, a shift and a mask,
 * which is no more than the widening load of a byte takes, so weights are read from memory at their packed size and no
 * expanded copy exists. For many tokens many_impl.h takes over.
 */
#ifndef FIRNI_GROUPED_IMPL_H
#define FIRNI_GROUPED_IMPL_H

#include "kernel/packed.h"
#include "kernel/tile_impl.h"

/* One token reads weights once and is bound by memory: fetch this far ahead in each panel. */
enum { MATMUL_AHEAD_BYTES = 2048 };

/* ---- activations ---------------------------------------------------------------------------------------------- */

static float prepare_group(const float *x, int16_t *values)
{
    const lanes low = lanes_load(x);
    const lanes high = lanes_load(x + LANES);
    const float magnitude = firni_f32_from_bits(lanes_magnitude_bits(low, high));
    if (!(magnitude >= FIRNI_ACTIVATION_TINY && magnitude < INFINITY)) {
        memset(values, 0, FIRNI_GROUP * sizeof(values[0]));
        return magnitude < FIRNI_ACTIVATION_TINY ? 0.0f : NAN;
    }
    const lanes inverse = lanes_set(FIRNI_ACTIVATION_MAX / magnitude);
    lanes_store_i16(values, lanes_mul(low, inverse));
    lanes_store_i16(values + LANES, lanes_mul(high, inverse));
    return magnitude / FIRNI_ACTIVATION_MAX;
}

static void prepare_groups(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                           uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts)
{
    const firni_group_format *format = &firni_group_formats[type];
    for (uint32_t t = token_begin; t < token_end; t++) {
        for (uint32_t k = 0; k < n_cols; k += FIRNI_GROUP) {
            const uint32_t at = k % FIRNI_SEGMENT_COLS;
            const uint32_t group = at / FIRNI_GROUP;
            const firni_segment_places places =
                firni_segment_places_of(format, n_cols, n_tokens, k / FIRNI_SEGMENT_COLS, t);
            void *values_begin = (uint8_t *)acts + places.values;
            int16_t *values = values_begin;
            void *scales_begin = (uint8_t *)acts + places.scales;
            float *scales = scales_begin;
            void *starts_begin = (uint8_t *)acts + places.starts;
            int32_t *starts = starts_begin;
            void *totals_begin = (uint8_t *)acts + places.totals;
            float *totals = totals_begin;
            scales[group] = prepare_group(x + t * x_stride + k, values + at);
            if (format->encoding == FIRNI_ENCODING_BYTES) {
                continue;
            }
            const int32_t first = lanes_sum_i16(values + at);
            const int32_t second = lanes_sum_i16(values + at + LANES);
            if (firni_group_has_minima(format)) {
                totals[group] = scales[group] * (float)(first + second);
            }
            if (format->group_cols == FIRNI_GROUP) {
                starts[group] = -format->offset * (first + second);
            } else {
                starts[2 * group] = -format->offset * first;
                starts[2 * group + 1] = -format->offset * second;
            }
        }
    }
}

/* firni_mx_values plus FIRNI_MX_OFFSET. */
static const uint8_t group_unsigned_mx_values[16] = {0, 4, 6, 8, 9, 10, 11, 12, 12, 13, 14, 15, 16, 18, 20, 24};

/* ---- one group ------------------------------------------------------------------------------------------------ */

typedef struct group_tile {
    const firni_group_format *format;
    const uint8_t *panel; /* the first of w */
    size_t panel_bytes;
    uint32_t n_blocks;     /* of a row */
    uint32_t n_tokens;     /* of the activations, from one segment to the next */
    firni_group_acts acts; /* the first token's */
    bool has_minima;
    float *y;
    size_t y_stride;
} group_tile;

/* The multiplicands of one pair of k: n tokens against w panels. */
FIRNI_INLINE void group_dot(const unsigned n, const unsigned w, lanes_int sums[TILE_ROWS_MAX][4],
                            const lanes_weights weights[4], const int16_t *pair_values)
{
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        const lanes_acts acts = lanes_load_acts(pair_values + (size_t)i * FIRNI_SEGMENT_COLS);
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            sums[i][j] = lanes_dot(sums[i][j], weights[j], acts);
        }
    }
}

FIRNI_INLINE void group_dot_bytes(const unsigned n, const unsigned w, lanes_int sums[TILE_ROWS_MAX][4],
                                  const uint8_t *elements, size_t panel_bytes, const int16_t *values)
{
    LANES_UNROLL_LONG
    for (unsigned pair = 0; pair < FIRNI_GROUP / 2; pair++) {
        lanes_weights weights[4];
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            const void *at = elements + j * panel_bytes + (size_t)pair * 2 * LANES;
            weights[j] = lanes_load_weights(at);
            __builtin_prefetch((const void *)((uintptr_t)at + MATMUL_AHEAD_BYTES));
        }
        group_dot(n, w, sums, weights, values + (size_t)pair * 2);
    }
}

/* Words of `fields` elements of `bits` bits each; the bits left over at their tops are the last pairs. */
FIRNI_INLINE void group_dot_words(const firni_encoding encoding, const unsigned n, const unsigned w,
                                  lanes_int sums[TILE_ROWS_MAX][4], const uint8_t *elements, size_t panel_bytes,
                                  const int16_t *values)
{
    const unsigned bits = encoding == FIRNI_ENCODING_5_BITS ? 5 : encoding == FIRNI_ENCODING_6_BITS ? 6 : 4;
    const unsigned n_words = encoding == FIRNI_ENCODING_5_BITS ? 5 : encoding == FIRNI_ENCODING_6_BITS ? 3 : 4;
    const unsigned n_fields = 16 / bits;
    const unsigned n_left = 16 % bits;
    lanes_weights weights[4];

    LANES_UNROLL_NOT
    for (unsigned word = 0; word < n_words; word++) {
        LANES_UNROLL
        for (unsigned field = 0; field < n_fields; field++) {
            const int16_t *pair_values = values + ((size_t)word * n_fields + field) * 2;
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                const void *at = elements + j * panel_bytes + (size_t)word * 4 * LANES;
                weights[j] = lanes_field(lanes_load_words(at), field * bits, bits);
                if (encoding == FIRNI_ENCODING_TABLE) {
                    weights[j] = lanes_lookup(weights[j], lanes_load_table(group_unsigned_mx_values));
                }
                if (field == 0) {
                    __builtin_prefetch((const void *)((uintptr_t)at + MATMUL_AHEAD_BYTES));
                }
                if (n == 1) { /* at once: four panels' weights and sums at a time are more than there are registers */
                    sums[0][j] = lanes_dot(sums[0][j], weights[j], lanes_load_acts(pair_values));
                }
            }
            if (n > 1) {
                group_dot(n, w, sums, weights, pair_values);
            }
        }
    }
    if (n_left == 0) {
        return;
    }
    lanes_weights rests[4];
    LANES_UNROLL
    for (unsigned j = 0; j < w; j++) {
        const void *first = elements + j * panel_bytes;
        rests[j] = lanes_load_words(first);
        LANES_UNROLL
        for (unsigned word = 1; word < n_words; word++) {
            const void *at = elements + j * panel_bytes + (size_t)word * 4 * LANES;
            rests[j] = lanes_collect(rests[j], lanes_load_words(at), n_left);
        }
    }
    const unsigned n_rest = n_words * n_left / bits;
    LANES_UNROLL
    for (unsigned i = 0; i < n_rest; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            weights[j] = lanes_field(rests[j], 16 - n_words * n_left + i * bits, bits);
        }
        group_dot(n, w, sums, weights, values + ((size_t)n_words * n_fields + i) * 2);
    }
}

/* ---- scales --------------------------------------------------------------------------------------------------- */

/* Which header a format has is asked for each group and not compiled in: the answer is always the same, so it costs
 * nothing beside the group's products, and there are nine formats but five encodings to compile. */
FIRNI_INLINE lanes group_scales(const firni_group_format *format, const uint8_t *block, uint32_t group)
{
    const void *header = block;
    const firni_half_header *half = header;
    const firni_super_header *super = header;
    const firni_super_min_header *super_min = header;
    switch (format->scaling) {
    case FIRNI_SCALING_POWER: return lanes_mul(lanes_load_power(block), lanes_set(0.5f));
    case FIRNI_SCALING_SUPER:
        return lanes_mul(lanes_load_f16(super->scales), lanes_load_i8(super->group_scales[group]));
    case FIRNI_SCALING_SUPER_MIN:
        return lanes_mul(lanes_load_f16(super_min->scales), lanes_load_u8(super_min->group_scales[group]));
    default: return lanes_load_f16(half->scales);
    }
}

FIRNI_INLINE lanes group_minima(const firni_group_format *format, const uint8_t *block, uint32_t group)
{
    const void *header = block;
    const firni_half_header *half = header;
    const firni_super_min_header *super_min = header;
    if (format->scaling == FIRNI_SCALING_SUPER_MIN) {
        return lanes_mul(lanes_load_f16(super_min->minima), lanes_load_u8(super_min->group_minima[group]));
    }
    return lanes_load_f16(half->minima);
}

/* ---- tiles ---------------------------------------------------------------------------------------------------- */

FIRNI_INLINE void group_multiply_shape(const firni_encoding encoding, const unsigned n, const unsigned w,
                                       const group_tile *t)
{
    const uint32_t group_cols = encoding == FIRNI_ENCODING_6_BITS ? 16 : 32;
    const uint32_t block_groups = (uint32_t)t->format->block_cols / group_cols;
    const size_t block_bytes = firni_group_block_bytes(t->format);
    const uint32_t segment_starts = FIRNI_SEGMENT_COLS / group_cols;
    lanes chains[TILE_ROWS_MAX][4];
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            chains[i][j] = lanes_set(0.0f);
        }
    }
    firni_group_acts acts = t->acts;
    uint32_t col = 0; /* of the segment */
    for (uint32_t b = 0; b < t->n_blocks; b++) {
        const uint8_t *block = t->panel + b * block_bytes;
        if (col == FIRNI_SEGMENT_COLS) {
            col = 0;
            acts.values += (size_t)t->n_tokens * FIRNI_SEGMENT_COLS;
            acts.scales += (size_t)t->n_tokens * FIRNI_SEGMENT_GROUPS;
            acts.starts += (size_t)t->n_tokens * segment_starts;
            acts.totals += (size_t)t->n_tokens * FIRNI_SEGMENT_GROUPS;
        }
        for (uint32_t in_block = 0; in_block < block_groups; in_block++, col += group_cols) {
            const uint8_t *elements = block + t->format->header_bytes + (size_t)in_block * t->format->group_bytes;
            const int16_t *values = acts.values + col;
            const float *act_scales = acts.scales + col / FIRNI_GROUP;
            /* Before the sums, so that no branch stands between them and the chains: compilers would spill them. */
            lanes scales[4];
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                scales[j] = group_scales(t->format, block + j * t->panel_bytes, in_block);
            }
            lanes_int sums[TILE_ROWS_MAX][4];
            LANES_UNROLL
            for (unsigned i = 0; i < n; i++) {
                const lanes_int start = encoding == FIRNI_ENCODING_BYTES
                                            ? lanes_int_zero()
                                            : lanes_int_set(acts.starts[i * segment_starts + col / group_cols]);
                LANES_UNROLL
                for (unsigned j = 0; j < w; j++) {
                    sums[i][j] = start;
                }
            }
            if (encoding == FIRNI_ENCODING_BYTES) {
                group_dot_bytes(n, w, sums, elements, t->panel_bytes, values);
            } else {
                group_dot_words(encoding, n, w, sums, elements, t->panel_bytes, values);
            }
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                LANES_UNROLL
                for (unsigned i = 0; i < n; i++) {
                    const lanes product = lanes_mul(scales[j], lanes_set(act_scales[i * FIRNI_SEGMENT_GROUPS]));
                    chains[i][j] = lanes_fma(product, lanes_int_to_float(sums[i][j]), chains[i][j]);
                }
            }
            if (!t->has_minima) {
                continue;
            }
            const float *totals = acts.totals + col / FIRNI_GROUP;
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                const lanes minima = group_minima(t->format, block + j * t->panel_bytes, in_block);
                LANES_UNROLL
                for (unsigned i = 0; i < n; i++) {
                    chains[i][j] = lanes_fma(minima, lanes_set(totals[i * FIRNI_SEGMENT_GROUPS]), chains[i][j]);
                }
            }
        }
    }
    LANES_UNROLL
    for (unsigned i = 0; i < n; i++) {
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            lanes_store(t->y + i * t->y_stride + j * LANES, chains[i][j]);
        }
    }
}

FIRNI_INLINE void group_multiply_rows(const firni_encoding encoding, const unsigned n, unsigned w, const group_tile *t)
{
    const unsigned widest = tile_width(n, LANES_DOT_ACCUMULATORS);
    if (widest >= 4 && w == 4) {
        group_multiply_shape(encoding, n, 4, t);
    } else if (widest >= 2 && w == 2) {
        group_multiply_shape(encoding, n, 2, t);
    } else {
        assert(w == 1);
        group_multiply_shape(encoding, n, 1, t);
    }
}

FIRNI_INLINE void group_multiply_encoding(const firni_encoding encoding, unsigned n, unsigned w, const group_tile *t)
{
    switch (n) {
    case 1: group_multiply_rows(encoding, 1, w, t); break;
    case 2: group_multiply_rows(encoding, 2, w, t); break;
    case 3: group_multiply_rows(encoding, 3, w, t); break;
    case 4: group_multiply_rows(encoding, 4, w, t); break;
    case 5: group_multiply_rows(encoding, 5, w, t); break;
    default:
        assert(n == TILE_ROWS_MAX);
        group_multiply_rows(encoding, TILE_ROWS_MAX, w, t);
        break;
    }
}

/* One function for each encoding: compilers take much longer over one that holds all shapes of all of them. */
static FIRNI_NO_INLINE void group_multiply_bytes(unsigned n, unsigned w, const group_tile *t)
{
    group_multiply_encoding(FIRNI_ENCODING_BYTES, n, w, t);
}

static FIRNI_NO_INLINE void group_multiply_4_bits(unsigned n, unsigned w, const group_tile *t)
{
    group_multiply_encoding(FIRNI_ENCODING_4_BITS, n, w, t);
}

static FIRNI_NO_INLINE void group_multiply_5_bits(unsigned n, unsigned w, const group_tile *t)
{
    group_multiply_encoding(FIRNI_ENCODING_5_BITS, n, w, t);
}

static FIRNI_NO_INLINE void group_multiply_6_bits(unsigned n, unsigned w, const group_tile *t)
{
    group_multiply_encoding(FIRNI_ENCODING_6_BITS, n, w, t);
}

static FIRNI_NO_INLINE void group_multiply_table(unsigned n, unsigned w, const group_tile *t)
{
    group_multiply_encoding(FIRNI_ENCODING_TABLE, n, w, t);
}

static void group_multiply(unsigned n, unsigned w, const group_tile *t)
{
    switch (t->format->encoding) {
    case FIRNI_ENCODING_BYTES: group_multiply_bytes(n, w, t); break;
    case FIRNI_ENCODING_4_BITS: group_multiply_4_bits(n, w, t); break;
    case FIRNI_ENCODING_5_BITS: group_multiply_5_bits(n, w, t); break;
    case FIRNI_ENCODING_6_BITS: group_multiply_6_bits(n, w, t); break;
    case FIRNI_ENCODING_TABLE: group_multiply_table(n, w, t); break;
    }
}

/* Tokens [token, token + n) against the panels from `panel` on, into y (w * 16 outputs a token). */
static void multiply_grouped_panels(const firni_matrix *w, const void *acts, uint32_t n_tokens, uint32_t token,
                                    unsigned n, uint32_t panel, unsigned width, float *y, size_t y_stride)
{
    const firni_group_format *format = &firni_group_formats[w->type];
    const size_t panel_bytes = firni_panel_bytes(w->type, w->n_cols);
    const group_tile t = {
        .format = format,
        .panel = w->panels + panel * panel_bytes,
        .panel_bytes = panel_bytes,
        .n_blocks = w->n_cols / format->block_cols,
        .n_tokens = n_tokens,
        .acts = firni_group_acts_at(format, acts, w->n_cols, n_tokens, 0, token),
        .has_minima = firni_group_has_minima(format),
        .y = y,
        .y_stride = y_stride,
    };
    group_multiply(n, width, &t);
}

#endif
