/*
 * The scalar reference: this file is the definition of the arithmetic, in plain loops over one number at a time.
 * docs/ARITHMETIC.md says the same in words. Products with grouped weights are in grouped_scalar.c. It shares no
 * algorithm with the vector variants, which are tested against it bit by bit; it is the variant of processors that have
 * no other.
 *
 * Sources: online softmax, Milakov and Gimelshein (arXiv 1805.02867) in tiles as in FlashAttention (arXiv 2205.14135);
 * exp by Cody-Waite reduction.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernel/grouped_scalar.h"
#include "kernel/numbers.h"
#include "kernel/packed.h"
#include "kernel/scalar_impl.h"
#include "kernel/scalar_numbers.h"
#include "kernel/variants_impl.h"

enum { LANES = FIRNI_SCALAR_LANES, TILE = FIRN_BLOCK_TOKENS };

/* ---- reductions ----------------------------------------------------------------------------------------------- */

static float scalar_max(const float *x, uint32_t n)
{
    float lanes[LANES];
    for (unsigned i = 0; i < LANES; i++) {
        lanes[i] = -INFINITY;
    }
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % LANES] = larger(x[i], lanes[i % LANES]);
    }
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            lanes[i] = larger(lanes[i], lanes[i + half]);
        }
    }
    return lanes[0];
}

static float scalar_exp_sum(float *out, const float *x, uint32_t n, float max)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        out[i] = scalar_exp(x[i] - max);
        lanes[i % LANES] += out[i];
    }
    return fold_sum(lanes);
}

/* ---- vectors -------------------------------------------------------------------------------------------------- */

static void scalar_rms_norm(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    }
    const float scale = 1.0f / sqrtf(fold_sum(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        const float normed = x[i] * scale;
        out[i] = weight != NULL ? normed * weight[i] : normed;
    }
}

static void scalar_add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}

static void scalar_silu_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = gate[i] / (1.0f + scalar_exp(-gate[i])) * up[i];
    }
}

static void scalar_gelu_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float g = gate[i];
        const float inner = g * fmaf(FIRNI_GELU_CUBE, g * g, FIRNI_GELU_SLOPE);
        const float half = 0.5f * g;
        out[i] = fmaf(half, scalar_tanh(inner), half) * up[i];
    }
}

static void scalar_sigmoid_mul(float *out, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = up[i] / (1.0f + scalar_exp(-gate[i]));
    }
}

static void scalar_softcap(float *x, uint32_t n, float cap)
{
    const float inverse = 1.0f / cap;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = cap * scalar_tanh(x[i] * inverse);
    }
}

static void scalar_rope(float *x, const float *cos_sin, uint32_t rot_dim, bool interleaved)
{
    const uint32_t n_pairs = rot_dim / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *first = interleaved ? &x[2 * i] : &x[i];
        float *second = interleaved ? &x[2 * i + 1] : &x[i + n_pairs];
        const float cosine = cos_sin[2 * i];
        const float sine = cos_sin[2 * i + 1];
        const float a = *first;
        const float b = *second;
        *first = fmaf(a, cosine, -(b * sine));
        *second = fmaf(a, sine, b * cosine);
    }
}

static void scalar_f32_to_f16(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_f16_from_f32(x[i]);
    }
}

static void scalar_f16_to_f32(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_f16_to_f32(x[i]);
    }
}

static void scalar_f32_to_bf16(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_bf16_from_f32(x[i]);
    }
}

static void scalar_bf16_to_f32(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = firni_bf16_to_f32(x[i]);
    }
}

/* ---- recurrent layers ------------------------------------------------------------------------------------------ */

#include "kernel/recur_scalar.h"

/* ---- matrix product ------------------------------------------------------------------------------------------- */

static void scalar_prepare(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols,
                           uint32_t token_begin, uint32_t token_end, uint32_t n_tokens, void *acts)
{
    if (firni_weight_is_grouped(type)) {
        firni_scalar_prepare_groups(type, x, x_stride, n_cols, token_begin, token_end, n_tokens, acts);
        return;
    }
    for (uint32_t t = token_begin; t < token_end; t++) {
        memcpy((float *)acts + (size_t)t * n_cols, x + t * x_stride, n_cols * sizeof(float));
    }
}

static void multiply_float_panel(const firni_matrix *w, const uint8_t *panel, const float *x, float y[LANES])
{
    const firn_dtype dtype = firni_weight_dtype(w->type);
    memset(y, 0, LANES * sizeof(y[0]));
    for (uint32_t k = 0; k < w->n_cols; k++) {
        for (unsigned lane = 0; lane < LANES; lane++) {
            y[lane] = fmaf(x[k], load_element(dtype, panel, (size_t)k * LANES + lane), y[lane]);
        }
    }
}

static void scalar_matmul_panels(const firni_matrix *w, const void *acts, float *y, size_t y_stride, uint32_t n_tokens,
                                 uint32_t panel_begin, uint32_t panel_end)
{
    for (uint32_t p = panel_begin; p < panel_end; p++) {
        const uint8_t *panel = w->panels + p * firni_panel_bytes(w->type, w->n_cols);
        const uint32_t first_row = p * FIRNI_PANEL_ROWS;
        const uint32_t n_rows = w->n_rows - first_row < LANES ? w->n_rows - first_row : LANES;
        for (uint32_t t = 0; t < n_tokens; t++) {
            float sums[LANES];
            if (firni_weight_is_grouped(w->type)) {
                firni_scalar_multiply_groups(w, panel, acts, n_tokens, t, sums);
            } else {
                multiply_float_panel(w, panel, (const float *)acts + (size_t)t * w->n_cols, sums);
            }
            memcpy(y + t * y_stride + first_row, sums, n_rows * sizeof(float));
        }
    }
}

/* ---- plain blocks --------------------------------------------------------------------------------------------- */

static void scalar_store_plain(const firni_plain_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                               const float *v)
{
    assert(lane < TILE);
    uint8_t *v_plane = block + geometry->v_offset_bytes;
    for (uint32_t h = 0; h < geometry->n_kv_heads; h++) {
        for (uint32_t d = 0; d < geometry->head_dim; d++) {
            const size_t row = (size_t)h * geometry->head_dim + d;
            store_element(geometry->dtype, block, row * TILE + lane, k[row]);
        }
        for (uint32_t j = 0; j < geometry->value_dim; j++) {
            const size_t at = ((size_t)h * TILE + lane) * geometry->value_dim + j;
            store_element(geometry->dtype, v_plane, at, v[(size_t)h * geometry->value_dim + j]);
        }
    }
}

const firni_kernels firni_kernels_scalar = {
    .name = "scalar",
    .matmul_panels = scalar_matmul_panels,
    .prepare = scalar_prepare,
    .attend_plain = firni_scalar_attend_plain,
    .store_plain = scalar_store_plain,
    .attend_quant = firni_scalar_attend_quant,
    .store_quant = firni_scalar_store_quant,
    .attend_latent = firni_scalar_attend_latent,
    .store_latent = firni_scalar_store_latent,
    .index_scores = firni_scalar_index_scores,
    .rms_norm = scalar_rms_norm,
    .add = scalar_add,
    .silu_mul = scalar_silu_mul,
    .gelu_mul = scalar_gelu_mul,
    .sigmoid_mul = scalar_sigmoid_mul,
    .softcap = scalar_softcap,
    .rope = scalar_rope,
    .conv_silu = scalar_conv_silu,
    .l2_norm = scalar_l2_norm,
    .recur = scalar_recur,
    .exp_sum = scalar_exp_sum,
    .max = scalar_max,
    .f32_to_f16 = scalar_f32_to_f16,
    .f16_to_f32 = scalar_f16_to_f32,
    .f32_to_bf16 = scalar_f32_to_bf16,
    .bf16_to_f32 = scalar_bf16_to_f32,
};
