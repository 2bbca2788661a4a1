/*
 * The definition of the products with grouped weights, in plain loops: activations to 16-bit integers, one exact
 * integer sum for each group, and the order of the roundings. Part of the scalar reference (kernel_scalar.c); reads the
 * packed form one element at a time, as packed.h describes it.
 */
#include "kernel/grouped_scalar.h"

#include <math.h>
#include <string.h>

#include "kernel/numbers.h"

enum { LANES = FIRNI_PANEL_ROWS };

/* ---- activations ---------------------------------------------------------------------------------------------- */

/* One group of 32: a scale and integers in [-32767, 32767]. A group that holds a NaN or an infinity gets the scale
 * NaN, so that it cannot pass for numbers. */
static float quantise_group(const float *x, int16_t *values)
{
    uint32_t bits_max = 0;
    for (uint32_t k = 0; k < FIRNI_GROUP; k++) {
        const uint32_t bits = firni_f32_bits(x[k]) & 0x7fffffffu;
        bits_max = bits > bits_max ? bits : bits_max;
    }
    const float magnitude = firni_f32_from_bits(bits_max);
    if (!(magnitude >= FIRNI_ACTIVATION_TINY && magnitude < INFINITY)) {
        memset(values, 0, FIRNI_GROUP * sizeof(values[0]));
        return magnitude < FIRNI_ACTIVATION_TINY ? 0.0f : NAN;
    }
    const float inverse = FIRNI_ACTIVATION_MAX / magnitude;
    for (uint32_t k = 0; k < FIRNI_GROUP; k++) {
        values[k] = (int16_t)lrintf(x[k] * inverse);
    }
    return magnitude / FIRNI_ACTIVATION_MAX;
}

static int32_t sum_of(const int16_t *values, uint32_t n)
{
    int32_t sum = 0; /* at most 32 * 32767 in magnitude, which f32 holds exactly too */
    for (uint32_t k = 0; k < n; k++) {
        sum += values[k];
    }
    return sum;
}

void firni_scalar_prepare_groups(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                                 uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts)
{
    const firni_group_format *format = &firni_group_formats[type];
    for (uint32_t t = token_begin; t < token_end; t++) {
        for (uint32_t k = 0; k < n_cols; k += FIRNI_GROUP) {
            const uint32_t at = k % FIRNI_SEGMENT_COLS;
            const firni_segment_places places =
                firni_segment_places_of(format, n_cols, n_tokens, k / FIRNI_SEGMENT_COLS, t);
            void *values_begin = (uint8_t *)acts + places.values;
            int16_t *values = values_begin;
            void *scales_begin = (uint8_t *)acts + places.scales;
            float *scale = (float *)scales_begin + at / FIRNI_GROUP;
            void *starts_begin = (uint8_t *)acts + places.starts;
            int32_t *starts = starts_begin;
            void *totals_begin = (uint8_t *)acts + places.totals;
            float *totals = totals_begin;
            *scale = quantise_group(x + t * x_stride + k, values + at);
            if (firni_group_has_minima(format)) {
                totals[at / FIRNI_GROUP] = *scale * (float)sum_of(values + at, FIRNI_GROUP);
            }
            for (uint32_t i = 0; i < FIRNI_GROUP && format->encoding != FIRNI_ENCODING_BYTES; i += format->group_cols) {
                starts[(at + i) / format->group_cols] = -format->offset * sum_of(values + at + i, format->group_cols);
            }
        }
    }
}

/* ---- weights -------------------------------------------------------------------------------------------------- */

/* Word i of a group of one row; half 0 has the first elements of its pairs, half 1 the second. */
static uint32_t word_of(const uint8_t *elements, uint32_t i, uint32_t lane, uint32_t half)
{
    uint16_t word;
    memcpy(&word, elements + (((size_t)i * LANES + lane) * 2 + half) * sizeof(word), sizeof(word));
    return word;
}

/* Element k of a group of one row, less the format's offset. */
static int32_t element_of(const firni_group_format *format, const uint8_t *elements, uint32_t k, uint32_t lane)
{
    const uint32_t pair = k / 2;
    const uint32_t bits = format->bits;
    if (format->encoding == FIRNI_ENCODING_BYTES) {
        return (int8_t)elements[((size_t)pair * LANES + lane) * 2 + k % 2];
    }
    const uint32_t n_words = format->group_cols / 2u * bits / 16u;
    const uint32_t n_fields = 16u / bits; /* of one word */
    const uint32_t n_left = 16u % bits;   /* bits at its top */
    uint32_t source = 0;
    uint32_t field = pair - n_words * n_fields;
    if (pair < n_words * n_fields) {
        source = word_of(elements, pair / n_fields, lane, k % 2);
        field = pair % n_fields;
    } else {
        for (uint32_t i = 0; i < n_words; i++) {
            source |= word_of(elements, i, lane, k % 2) >> (16u - n_left) << n_left * i;
        }
    }
    const uint32_t code = source >> bits * field & ((1u << bits) - 1u);
    return format->encoding == FIRNI_ENCODING_TABLE ? firni_mx_values[code] : (int32_t)code - format->offset;
}

typedef struct group_scale {
    float scale;
    float minimum;
} group_scale;

/* The products with the scales of a super block are exact: 11 bits times 6 or 8. */
static group_scale scale_of(const firni_group_format *format, const uint8_t *block, uint32_t group, uint32_t lane)
{
    const void *header = block;
    const firni_half_header *half = header;
    const firni_super_header *super = header;
    const firni_super_min_header *super_min = header;
    group_scale out = {.minimum = 0.0f};
    switch (format->scaling) {
    case FIRNI_SCALING_HALF: out.scale = firni_f16_to_f32(half->scales[lane]); break;
    case FIRNI_SCALING_HALF_MIN:
        out.scale = firni_f16_to_f32(half->scales[lane]);
        out.minimum = firni_f16_to_f32(half->minima[lane]);
        break;
    case FIRNI_SCALING_POWER: out.scale = firni_power_of_exponent(block[lane]) * 0.5f; break;
    case FIRNI_SCALING_SUPER:
        out.scale = firni_f16_to_f32(super->scales[lane]) * (float)super->group_scales[group][lane];
        break;
    case FIRNI_SCALING_SUPER_MIN:
        out.scale = firni_f16_to_f32(super_min->scales[lane]) * (float)super_min->group_scales[group][lane];
        out.minimum = firni_f16_to_f32(super_min->minima[lane]) * (float)super_min->group_minima[group][lane];
        break;
    }
    return out;
}

/* One token and one row: groups ascending; in each the scaled sum is added, then the minimum's share. */
static float multiply_row(const firni_matrix *w, const uint8_t *panel, uint32_t lane, const void *acts,
                          uint32_t n_tokens, uint32_t token)
{
    const firni_group_format *format = &firni_group_formats[w->type];
    const uint32_t block_groups = (uint32_t)format->block_cols / format->group_cols;
    float y = 0.0f;
    for (uint32_t g = 0; g < w->n_cols / format->group_cols; g++) {
        const uint8_t *block = panel + g / block_groups * firni_group_block_bytes(format);
        const uint8_t *elements = block + format->header_bytes + (size_t)(g % block_groups) * format->group_bytes;
        const uint32_t segment = g * format->group_cols / FIRNI_SEGMENT_COLS;
        const uint32_t first = g * format->group_cols % FIRNI_SEGMENT_COLS;
        const firni_group_acts a = firni_group_acts_at(format, acts, w->n_cols, n_tokens, segment, token);
        const group_scale scale = scale_of(format, block, g % block_groups, lane);
        int32_t sum = 0; /* at most 32 * 128 * 32767 in magnitude: exact */
        for (uint32_t k = 0; k < format->group_cols; k++) {
            sum += element_of(format, elements, k, lane) * a.values[first + k];
        }
        y = fmaf(scale.scale * a.scales[first / FIRNI_GROUP], (float)sum, y);
        if (firni_group_has_minima(format)) {
            y = fmaf(scale.minimum, a.totals[first / FIRNI_GROUP], y);
        }
    }
    return y;
}

void firni_scalar_multiply_groups(const firni_matrix *w, const uint8_t *panel, const void *acts, uint32_t n_tokens,
                                  uint32_t token, float y[FIRNI_PANEL_ROWS])
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        y[lane] = multiply_row(w, panel, lane, acts, n_tokens, token);
    }
}
