/*
 * Compares one kernel variant with another, function by function and bit by bit, over random shapes.
 *
 * Plain C without a test framework, so that the same checks run natively, over emulated instruction sets and in a
 * program of another processor. Each check counts differences in `n_failed` and prints the first few of them.
 */
#ifndef FIRNI_VARIANT_CHECKS_H
#define FIRNI_VARIANT_CHECKS_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel_impl.h"
#include "weight_rows.h"

typedef struct variant_checks {
    const firni_kernels *reference;
    const firni_kernels *variant;
    uint64_t random; /* state of splitmix64 */
    unsigned n_rounds;
    unsigned n_compared;
    unsigned n_failed;
} variant_checks;

static inline uint32_t checks_random(variant_checks *checks)
{
    uint64_t z = checks->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static inline uint32_t checks_between(variant_checks *checks, uint32_t low, uint32_t high)
{
    return low + checks_random(checks) % (high - low + 1);
}

/* Uniform in [-scale, scale), a zero now and then, of either sign. */
static inline float checks_float(variant_checks *checks, float scale)
{
    const uint32_t bits = checks_random(checks);
    if (bits % 64 == 0) {
        return bits & 64u ? 0.0f : -0.0f;
    }
    return ((float)(bits >> 8) * 0x1p-23f - 1.0f) * scale;
}

static inline float *checks_floats(variant_checks *checks, size_t n, float scale)
{
    float *x = malloc((n + 1) * sizeof(*x));
    for (size_t i = 0; i < n; i++) {
        x[i] = checks_float(checks, scale);
    }
    return x;
}

static inline void checks_equal(variant_checks *checks, const void *a, const void *b, size_t n_bytes, const char *what,
                                uint32_t p, uint32_t q, uint32_t r)
{
    checks->n_compared++;
    if (memcmp(a, b, n_bytes) == 0) {
        return;
    }
    size_t at = 0;
    while (((const uint8_t *)a)[at] == ((const uint8_t *)b)[at]) {
        at++;
    }
    if (checks->n_failed++ < 8) {
        printf("%s differs from %s: %s (%u, %u, %u) at byte %zu of %zu\n", checks->variant->name,
               checks->reference->name, what, p, q, r, at, n_bytes);
    }
}

/* ---- vectors and conversions ---------------------------------------------------------------------------------- */

static inline void checks_vectors(variant_checks *checks)
{
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        const uint32_t n = checks_between(checks, 1, 200);
        const float scale = round % 4 == 0 ? 100.0f : 4.0f;
        float *x = checks_floats(checks, n, scale);
        float *y = checks_floats(checks, n, scale);
        float *a = calloc(n, sizeof(*a));
        float *b = calloc(n, sizeof(*b));
        const float *weight = round % 3 == 0 ? NULL : y;

        checks->reference->rms_norm(a, x, weight, n, 1e-5f);
        checks->variant->rms_norm(b, x, weight, n, 1e-5f);
        checks_equal(checks, a, b, n * sizeof(*a), "rms_norm", n, round, 0);
        checks->reference->silu_mul(a, x, y, n);
        checks->variant->silu_mul(b, x, y, n);
        checks_equal(checks, a, b, n * sizeof(*a), "silu_mul", n, round, 0);
        memcpy(b, x, n * sizeof(*b));
        checks->variant->silu_mul(b, b, y, n);
        checks_equal(checks, a, b, n * sizeof(*a), "silu_mul in place", n, round, 0);
        checks->reference->gelu_mul(a, x, y, n);
        checks->variant->gelu_mul(b, x, y, n);
        checks_equal(checks, a, b, n * sizeof(*a), "gelu_mul", n, round, 0);
        checks->reference->sigmoid_mul(a, x, y, n);
        checks->variant->sigmoid_mul(b, x, y, n);
        checks_equal(checks, a, b, n * sizeof(*a), "sigmoid_mul", n, round, 0);
        memcpy(a, x, n * sizeof(*a));
        memcpy(b, x, n * sizeof(*b));
        checks->reference->softcap(a, n, 30.0f);
        checks->variant->softcap(b, n, 30.0f);
        checks_equal(checks, a, b, n * sizeof(*a), "softcap", n, round, 0);
        const float max = checks->reference->max(x, n);
        const float max_of_variant = checks->variant->max(x, n);
        checks_equal(checks, &max, &max_of_variant, sizeof(max), "max", n, round, 0);
        const float sum = checks->reference->exp_sum(a, x, n, max);
        const float sum_of_variant = checks->variant->exp_sum(b, x, n, max);
        checks_equal(checks, a, b, n * sizeof(*a), "exp_sum: terms", n, round, 0);
        checks_equal(checks, &sum, &sum_of_variant, sizeof(sum), "exp_sum: sum", n, round, 0);
        checks->reference->exp_sum(a, x, n, -90.0f); /* overflows */
        checks->variant->exp_sum(b, x, n, -90.0f);
        checks_equal(checks, a, b, n * sizeof(*a), "exp_sum: infinite terms", n, round, 0);
        memcpy(a, x, n * sizeof(*a));
        memcpy(b, x, n * sizeof(*b));
        checks->reference->add(a, y, n);
        checks->variant->add(b, y, n);
        checks_equal(checks, a, b, n * sizeof(*a), "add", n, round, 0);
        checks->reference->rope(a, y, n / 2 * 2, round % 2 == 0);
        checks->variant->rope(b, y, n / 2 * 2, round % 2 == 0);
        checks_equal(checks, a, b, n * sizeof(*a), "rope", n, round, round % 2);
        free(x);
        free(y);
        free(a);
        free(b);
    }
}

static inline void checks_conversions(variant_checks *checks)
{
    enum { ALL = 65536 };
    uint16_t *halves = malloc(ALL * sizeof(*halves));
    uint16_t *other_halves = malloc(ALL * sizeof(*halves));
    float *a = malloc(ALL * sizeof(*a));
    float *b = malloc(ALL * sizeof(*b));
    for (uint32_t i = 0; i < ALL; i++) {
        halves[i] = (uint16_t)i;
    }
    checks->reference->f16_to_f32(a, halves, ALL);
    checks->variant->f16_to_f32(b, halves, ALL);
    checks_equal(checks, a, b, ALL * sizeof(*a), "f16_to_f32, all", 0, 0, 0);
    checks->reference->bf16_to_f32(a, halves, ALL);
    checks->variant->bf16_to_f32(b, halves, ALL);
    checks_equal(checks, a, b, ALL * sizeof(*a), "bf16_to_f32, all", 0, 0, 0);

    /* Any bit pattern; and those around the halfway points of every half. */
    for (unsigned round = 0; round < 12; round++) {
        checks->reference->f16_to_f32(a, halves, ALL);
        for (uint32_t i = 0; i < ALL; i++) {
            uint32_t bits = checks_random(checks);
            if (round % 2 == 0) {
                memcpy(&bits, &a[i], sizeof(bits));
                bits += 0xfffu + checks_random(checks) % 3;
            }
            memcpy(&a[i], &bits, sizeof(bits));
        }
        const size_t n = ALL - round;
        checks->reference->f32_to_f16(halves, a, n);
        checks->variant->f32_to_f16(other_halves, a, n);
        checks_equal(checks, halves, other_halves, n * sizeof(*halves), "f32_to_f16", round, 0, 0);
        checks->reference->f32_to_bf16(halves, a, n);
        checks->variant->f32_to_bf16(other_halves, a, n);
        checks_equal(checks, halves, other_halves, n * sizeof(*halves), "f32_to_bf16", round, 0, 0);
        for (uint32_t i = 0; i < ALL; i++) {
            halves[i] = (uint16_t)i;
        }
    }
    free(halves);
    free(other_halves);
    free(a);
    free(b);
}

/* ---- matrix product ------------------------------------------------------------------------------------------- */

static inline float checks_uniform(void *checks) { return checks_float(checks, 1.0f); }

/* A row-major matrix as it lies in a file, of plausible numbers. */
static inline uint8_t *checks_weights(variant_checks *checks, firni_weight_type type, uint32_t n_rows, uint32_t n_cols)
{
    const size_t n_bytes = n_rows * firni_weight_row_bytes(type, n_cols);
    uint8_t *rows = malloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++) {
        rows[i] = (uint8_t)checks_random(checks);
    }
    if (firni_weight_block_cols(type) > 1) {
        weight_rows_set_scales(type, rows, n_bytes, checks_uniform, checks);
        return rows;
    }
    for (size_t i = 0; i < (size_t)n_rows * n_cols; i++) {
        const float x = checks_float(checks, 0.5f);
        switch (type) {
        case FIRNI_WEIGHT_F32: memcpy(rows + i * 4, &x, 4); break;
        case FIRNI_WEIGHT_F16: checks->reference->f32_to_f16((uint16_t *)(void *)(rows + i * 2), &x, 1); break;
        default: checks->reference->f32_to_bf16((uint16_t *)(void *)(rows + i * 2), &x, 1); break;
        }
    }
    return rows;
}

static inline void *checks_aligned(size_t n_bytes) { return aligned_alloc(64, (n_bytes / 64 + 1) * 64); }

static inline void checks_matmul(variant_checks *checks)
{
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        const firni_weight_type type = (firni_weight_type)(round % FIRNI_WEIGHT_TYPES);
        /* Few tokens and many take different paths, and many come in spans, over segments of 256 columns. */
        const bool many = checks_random(checks) % 4 == 0;
        const uint32_t n_rows = checks_between(checks, 1, many ? 40 : 100);
        const uint32_t block_cols = firni_weight_block_cols(type);
        const uint32_t n_blocks_max = block_cols == 1 ? 130 : block_cols == 32 ? 18 : 2;
        const uint32_t n_cols = block_cols * checks_between(checks, 1, n_blocks_max);
        const uint32_t n_tokens = many ? checks_between(checks, 8, 290) : checks_between(checks, 1, 20);
        const size_t x_stride = n_cols + checks_between(checks, 0, 3);
        const size_t y_stride = n_rows + checks_between(checks, 0, 3);
        uint8_t *rows = checks_weights(checks, type, n_rows, n_cols);
        uint8_t *panels = checks_aligned(firni_matrix_bytes(type, n_rows, n_cols));
        const uint32_t n_panels = (n_rows + 15) / 16;
        firni_matrix_pack(type, n_rows, n_cols, rows, panels, 0, n_panels);
        const firni_matrix w = {.type = type, .n_rows = n_rows, .n_cols = n_cols, .panels = panels};

        float *x = checks_floats(checks, n_tokens * x_stride, round % 5 == 0 ? 1e-3f : 3.0f);
        const size_t acts_bytes = firni_matmul_scratch_bytes(n_cols, n_tokens);
        void *a_acts = checks_aligned(acts_bytes);
        void *b_acts = checks_aligned(acts_bytes);
        memset(a_acts, 0, acts_bytes);
        memset(b_acts, 0, acts_bytes);
        checks->reference->prepare(type, x, x_stride, n_cols, 0, n_tokens, n_tokens, a_acts);
        checks->variant->prepare(type, x, x_stride, n_cols, 0, n_tokens / 2, n_tokens, b_acts);
        checks->variant->prepare(type, x, x_stride, n_cols, n_tokens / 2, n_tokens, n_tokens, b_acts);
        checks_equal(checks, a_acts, b_acts, acts_bytes, "prepare", type, n_cols, n_tokens);

        float *a = calloc(n_tokens * y_stride, sizeof(*a));
        float *b = calloc(n_tokens * y_stride, sizeof(*b));
        const uint32_t middle = checks_between(checks, 0, n_panels);
        checks->reference->matmul_panels(&w, a_acts, a, y_stride, n_tokens, 0, n_panels);
        checks->variant->matmul_panels(&w, b_acts, b, y_stride, n_tokens, 0, middle);
        checks->variant->matmul_panels(&w, b_acts, b, y_stride, n_tokens, middle, n_panels);
        checks_equal(checks, a, b, n_tokens * y_stride * sizeof(*a), firni_weight_type_name(type), n_rows, n_cols,
                     n_tokens);
        free(rows);
        free(panels);
        free(x);
        free(a_acts);
        free(b_acts);
        free(a);
        free(b);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

static inline uint32_t checks_dim(variant_checks *checks)
{
    static const uint32_t common[] = {16, 32, 64, 80, 96, 128};
    return checks_random(checks) % 2 == 0 ? common[checks_random(checks) % 6] : checks_between(checks, 1, 70);
}

enum { CHECKS_QUERIES_MAX = 40, CHECKS_ROW_BLOCKS_MAX = 6 };

/* Rows that began alike: row i has the blocks of `a` up to some tile and from there on those of `b`, which hold the
 * same. Fills task->rows for the task's queries, at positions of their own. */
typedef struct checks_rows {
    firni_attend_row rows[CHECKS_QUERIES_MAX];
    firn_block *lists[CHECKS_QUERIES_MAX][CHECKS_ROW_BLOCKS_MAX];
} checks_rows;

static inline void checks_make_rows(variant_checks *checks, firni_attend_task *task, firn_block *const *a,
                                    firn_block *const *b, uint32_t n_tokens, checks_rows *rows)
{
    const uint32_t n_blocks = (n_tokens + 63) / 64;
    for (uint32_t i = 0; i < task->n_queries; i++) {
        const uint32_t n_common = checks_between(checks, 0, 3) == 0 ? 0 : checks_between(checks, 0, n_blocks);
        for (uint32_t t = 0; t < n_blocks; t++) {
            rows->lists[i][t] = t < n_common ? a[t] : b[t];
        }
        const uint32_t position = checks_between(checks, 0, n_tokens - 1);
        const uint32_t begin = task->window != 0 && position + 1 > task->window ? position + 1 - task->window : 0;
        rows->rows[i] = (firni_attend_row){
            .blocks = rows->lists[i] + begin / 64, .first_block = begin / 64, .position = position};
    }
    task->rows = rows->rows;
}

static inline void checks_attention_round(variant_checks *checks, firn_pool *pool, unsigned round)
{
    enum { BLOCKS_MAX = 6 };
    static const firn_dtype dtypes[] = {FIRN_DTYPE_F32, FIRN_DTYPE_F16, FIRN_DTYPE_BF16};
    const firn_dtype dtype = dtypes[round % 3];
    const uint32_t head_dim = checks_dim(checks);
    const uint32_t value_dim = round % 2 == 0 ? head_dim : checks_dim(checks);
    const uint32_t n_kv_heads = checks_between(checks, 1, 3);
    const size_t element = firn_dtype_bytes(dtype);
    const firni_plain_geometry geometry = {
        .dtype = dtype,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .value_dim = value_dim,
        .v_offset_bytes = (uint32_t)(64 * n_kv_heads * head_dim * element),
    };
    const uint32_t n_tokens = checks_between(checks, 1, 64 * BLOCKS_MAX);
    const size_t block_bytes = 64 * n_kv_heads * (head_dim + value_dim) * element;
    firn_block *a_blocks[BLOCKS_MAX] = {NULL};
    firn_block *b_blocks[BLOCKS_MAX] = {NULL};
    const uint32_t n_blocks = (n_tokens + 63) / 64;
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (firn_block_alloc(pool, block_bytes, &a_blocks[i], NULL) != FIRN_OK ||
            firn_block_alloc(pool, block_bytes, &b_blocks[i], NULL) != FIRN_OK) {
            abort();
        }
        for (size_t j = 0; j < block_bytes; j++) {
            /* 0xff everywhere is NaN in all three formats. */
            const uint8_t garbage = round % 2 == 0 ? 0xffu : (uint8_t)checks_random(checks);
            firn_block_data(a_blocks[i])[j] = firn_block_data(b_blocks[i])[j] = garbage;
        }
    }
    for (uint32_t i = 0; i < n_tokens; i++) {
        float *k = checks_floats(checks, (size_t)n_kv_heads * head_dim, 1.0f);
        float *v = checks_floats(checks, (size_t)n_kv_heads * value_dim, 1.0f);
        checks->reference->store_plain(&geometry, firn_block_data(a_blocks[i / 64]), i % 64, k, v);
        checks->variant->store_plain(&geometry, firn_block_data(b_blocks[i / 64]), i % 64, k, v);
        free(k);
        free(v);
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        checks_equal(checks, firn_block_data(a_blocks[i]), firn_block_data(b_blocks[i]), block_bytes, "store_plain",
                     dtype, head_dim, value_dim);
    }

    const uint32_t n_queries = checks_between(checks, 1, n_tokens < 40 ? n_tokens : 40);
    const uint32_t group_size = checks_between(checks, 1, 8);
    const size_t q_stride = (size_t)group_size * head_dim + checks_between(checks, 0, 5);
    const size_t out_stride = (size_t)group_size * value_dim + checks_between(checks, 0, 5);
    const float hardness = round % 3 == 0 ? 20.0f : 2.0f;
    float *q = checks_floats(checks, n_queries * q_stride, hardness);
    float *sinks = checks_floats(checks, group_size, 4.0f);
    float *a = calloc(n_queries * out_stride, sizeof(*a));
    float *b = calloc(n_queries * out_stride, sizeof(*b));
    firni_attend_task task = {
        .geometry = &geometry,
        .blocks = a_blocks,
        .kv_head = checks_between(checks, 0, n_kv_heads - 1),
        .group_size = group_size,
        .n_queries = n_queries,
        .first_position = n_tokens - n_queries,
        .window = round % 3 == 1 ? checks_between(checks, 1, 200) : 0,
        .q = q,
        .q_stride = q_stride,
        .out = a,
        .out_stride = out_stride,
        .scale = 1.0f / sqrtf((float)head_dim),
        .softcap = round % 4 == 1 ? 5.0f : 0.0f,
        .sinks = round % 4 == 2 ? sinks : NULL,
    };
    if (task.window != 0 && task.first_position + 1 > task.window) {
        task.first_block = (task.first_position + 1 - task.window) / 64;
        task.blocks = a_blocks + task.first_block;
    }
    checks->reference->attend_plain(&task);
    task.out = b;
    checks->variant->attend_plain(&task);
    checks_equal(checks, a, b, n_queries * out_stride * sizeof(*a), "attend_plain", dtype, head_dim, value_dim);
    checks_rows rows;
    checks_make_rows(checks, &task, a_blocks, b_blocks, n_tokens, &rows);
    checks->variant->attend_plain(&task);
    task.out = a;
    checks->reference->attend_plain(&task);
    checks_equal(checks, a, b, n_queries * out_stride * sizeof(*a), "attend_plain of rows", dtype, head_dim, n_queries);
    for (size_t i = 0; i < n_queries * out_stride; i++) {
        if (!isfinite(a[i]) && checks->n_failed++ < 8) {
            printf("%s: attention is not finite\n", checks->reference->name);
        }
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        firn_block_release(a_blocks[i]);
        firn_block_release(b_blocks[i]);
    }
    free(q);
    free(sinks);
    free(a);
    free(b);
}

static inline void checks_attention(variant_checks *checks)
{
    firn_pool *pool = NULL;
    const firn_pool_options options = {.budget_bytes = 256u << 20};
    if (firn_pool_create(&options, NULL, &pool, NULL) != FIRN_OK) {
        abort();
    }
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        checks_attention_round(checks, pool, round);
    }
    firn_pool_destroy(pool);
}

#include "recur_checks.h"
#include "quant_checks.h"
#include "latent_checks.h"

/* Everything; prints one line and returns the number of differences. */
static inline unsigned checks_run(const firni_kernels *reference, const firni_kernels *variant, unsigned n_rounds)
{
    variant_checks checks = {.reference = reference, .variant = variant, .random = 20261129, .n_rounds = n_rounds};
    checks_vectors(&checks);
    checks_conversions(&checks);
    checks_matmul(&checks);
    checks_attention(&checks);
    checks_recurrence(&checks);
    checks_quantised(&checks);
    checks_latent(&checks);
    printf("# %s: %u of %u comparisons differ from %s\n", variant->name, checks.n_failed, checks.n_compared,
           reference->name);
    return checks.n_failed + (checks.n_compared == 0);
}

#endif
