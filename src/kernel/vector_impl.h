/*
 * The vector functions, conversions and stores of a vector variant. Written over lanes.
 *
 * All are bound by memory or too small to matter beside the matrix products; tails go through a 16-element buffer, so
 * that the last elements take the same operations.
 */
#ifndef FIRNI_VECTOR_IMPL_H
#define FIRNI_VECTOR_IMPL_H

#include "kernel/lanes_impl.h"
#include "kernel/variants_impl.h"

/* Calls body(at, n) for whole vectors and the tail: n is LANES or what is left. */
#define LANES_FOR(at, n, count)                                                                                       \
    for (size_t at = 0, n = 0; n = (count) - at < LANES ? (count) - at : LANES, at < (count); at += LANES)

FIRNI_INLINE lanes load_some(const float *p, size_t n) { return n == LANES ? lanes_load(p) : lanes_load_n(p, n); }

FIRNI_INLINE void store_some(float *p, lanes a, size_t n)
{
    if (n == LANES) {
        lanes_store(p, a);
    } else {
        lanes_store_n(p, a, n);
    }
}

static void lanes_rms_norm(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    lanes sum = lanes_set(0.0f);
    LANES_FOR(i, count, n)
    {
        const lanes a = load_some(x + i, count);
        sum = lanes_fma(a, a, sum); /* zeros of the tail add nothing: squares are never -0 */
    }
    const lanes scale = lanes_set(1.0f / sqrtf(lanes_fold_sum(sum) / (float)n + eps));
    LANES_FOR(i, count, n)
    {
        const lanes normed = lanes_mul(load_some(x + i, count), scale);
        store_some(out + i, weight != NULL ? lanes_mul(normed, load_some(weight + i, count)) : normed, count);
    }
}

static void lanes_add_to(float *x, const float *y, uint32_t n)
{
    LANES_FOR(i, count, n) { store_some(x + i, lanes_add(load_some(x + i, count), load_some(y + i, count)), count); }
}

static void lanes_silu_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    const lanes one = lanes_set(1.0f);
    const lanes minus_one = lanes_set(-1.0f);
    LANES_FOR(i, count, n)
    {
        const lanes g = load_some(gate + i, count);
        const lanes silu = lanes_div(g, lanes_add(one, lanes_exp(lanes_mul(g, minus_one))));
        store_some(out + i, lanes_mul(silu, load_some(up + i, count)), count);
    }
}

static void lanes_gelu_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    LANES_FOR(i, count, n)
    {
        const lanes g = load_some(gate + i, count);
        const lanes slope = lanes_fma(lanes_set(FIRNI_GELU_CUBE), lanes_mul(g, g), lanes_set(FIRNI_GELU_SLOPE));
        const lanes half = lanes_mul(lanes_set(0.5f), g);
        const lanes gelu = lanes_fma(half, lanes_tanh(lanes_mul(g, slope)), half);
        store_some(out + i, lanes_mul(gelu, load_some(up + i, count)), count);
    }
}

static void lanes_sigmoid_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    const lanes minus_one = lanes_set(-1.0f);
    LANES_FOR(i, count, n)
    {
        const lanes divisor = lanes_add(lanes_set(1.0f), lanes_exp(lanes_mul(load_some(gate + i, count), minus_one)));
        store_some(out + i, lanes_div(load_some(up + i, count), divisor), count);
    }
}

static void lanes_softcap(float *x, uint32_t n, float cap)
{
    const lanes inverse = lanes_set(1.0f / cap);
    LANES_FOR(i, count, n)
    {
        store_some(x + i, lanes_mul(lanes_set(cap), lanes_tanh(lanes_mul(load_some(x + i, count), inverse))), count);
    }
}

static void lanes_rope(float *x, const float *cos_sin, uint32_t rot_dim, bool interleaved)
{
    /* fmaf is one instruction here; compilers vectorise what pays. */
    const uint32_t n_pairs = rot_dim / 2;
    const size_t step = interleaved ? 2 : 1;
    float *other = interleaved ? x + 1 : x + n_pairs;
    for (uint32_t i = 0; i < n_pairs; i++) {
        const float cosine = cos_sin[2 * i];
        const float sine = cos_sin[2 * i + 1];
        const float a = x[i * step];
        const float b = other[i * step];
        x[i * step] = fmaf(a, cosine, -(b * sine));
        other[i * step] = fmaf(a, sine, b * cosine);
    }
}

static float lanes_exp_sum(float *out, const float *x, uint32_t n, float max)
{
    lanes sum = lanes_set(0.0f);
    LANES_FOR(i, count, n)
    {
        const lanes e = lanes_exp(lanes_sub(load_some(x + i, count), lanes_set(max)));
        store_some(out + i, e, count);
        /* The tail's idle lanes hold exp(-max), not zero: read back what was stored. */
        sum = lanes_add(sum, count == LANES ? e : lanes_load_n(out + i, count));
    }
    return lanes_fold_sum(sum);
}

static float lanes_max(const float *x, uint32_t n)
{
    lanes larger = lanes_set(-INFINITY);
    LANES_FOR(i, count, n)
    {
        float buffer[LANES];
        if (count < LANES) {
            lanes_store(buffer, lanes_set(-INFINITY));
            memcpy(buffer, x + i, count * sizeof(buffer[0]));
        }
        larger = lanes_larger(lanes_load(count < LANES ? buffer : x + i), larger);
    }
    return lanes_fold_larger(larger);
}

/* ---- conversions ---------------------------------------------------------------------------------------------- */

static void lanes_f32_to_f16(uint16_t *out, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_store_f16(out + i, lanes_load(x + i));
    }
    for (; i < n; i++) {
        out[i] = firni_f16_from_f32(x[i]);
    }
}

static void lanes_f16_to_f32(float *out, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_store(out + i, lanes_load_f16(x + i));
    }
    for (; i < n; i++) {
        out[i] = firni_f16_to_f32(x[i]);
    }
}

/* Integer operations on single numbers: compilers vectorise these loops as they are. */
static void lanes_f32_to_bf16(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_bf16_from_f32(x[i]);
    }
}

static void lanes_bf16_to_f32(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_bf16_to_f32(x[i]);
    }
}

/* ---- store ---------------------------------------------------------------------------------------------------- */

/* Converts a run of a vector, at most LANES of it, to elements. */
static void convert_elements(firn_dtype dtype, void *out, const float *x, size_t n)
{
    switch (dtype) {
    case FIRN_DTYPE_F16: lanes_f32_to_f16(out, x, n); break;
    case FIRN_DTYPE_BF16: lanes_f32_to_bf16(out, x, n); break;
    default: memcpy(out, x, n * sizeof(x[0])); break;
    }
}

/* The other way, any number of 16-bit elements. */
static void widen_elements(firn_dtype dtype, float *out, const void *x, size_t n)
{
    assert(dtype == FIRN_DTYPE_F16 || dtype == FIRN_DTYPE_BF16);
    if (dtype == FIRN_DTYPE_F16) {
        lanes_f16_to_f32(out, x, n);
    } else {
        lanes_bf16_to_f32(out, x, n);
    }
}

static void lanes_store_plain(const firni_plain_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                              const float *v)
{
    assert(lane < FIRN_BLOCK_TOKENS);
    const size_t element = firni_plain_element_bytes(geometry->dtype);
    const size_t n_rows = (size_t)geometry->n_kv_heads * geometry->head_dim;
    const size_t row_bytes = FIRN_BLOCK_TOKENS * element;
    /* Keys are one column of the K plane: convert a vector, then scatter it. */
    LANES_FOR(row, count, n_rows)
    {
        uint8_t converted[LANES * sizeof(float)];
        convert_elements(geometry->dtype, converted, k + row, count);
        for (size_t i = 0; i < count; i++) {
            memcpy(block + (row + i) * row_bytes + lane * element, converted + i * element, element);
        }
    }
    for (uint32_t h = 0; h < geometry->n_kv_heads; h++) {
        const size_t at = ((size_t)h * FIRN_BLOCK_TOKENS + lane) * geometry->value_dim;
        convert_elements(geometry->dtype, block + geometry->v_offset_bytes + at * element,
                         v + (size_t)h * geometry->value_dim, geometry->value_dim);
    }
}

#endif
