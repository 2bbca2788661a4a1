/*
 * The part of variant_checks.h that compares variants on quantised blocks; included by it.
 */
#ifndef FIRNI_QUANT_CHECKS_H
#define FIRNI_QUANT_CHECKS_H

#include "kernel/quantised.h"

/* Every combination of bits that a layout offers. */
typedef struct checks_quant_bits {
    uint32_t key, value, group;
    bool rotated;
} checks_quant_bits;

static const checks_quant_bits checks_quant_all[] = {
    {8, 8, 64, false}, {8, 8, 32, false}, {4, 4, 64, false}, {4, 4, 32, false}, {8, 3, 32, true}, {5, 8, 32, true},
    {4, 5, 32, true},  {2, 4, 32, true},  {8, 2, 32, true},  {4, 8, 64, false}, {5, 3, 32, true}, {2, 2, 32, true},
};
enum { CHECKS_QUANT_N = sizeof(checks_quant_all) / sizeof(checks_quant_all[0]), CHECKS_QUANT_BLOCKS = 5 };

static inline firni_quant_geometry checks_quant_geometry(variant_checks *checks, unsigned round)
{
    const checks_quant_bits bits = checks_quant_all[round % CHECKS_QUANT_N];
    const uint32_t power = UINT32_C(64) << checks_random(checks) % 3;
    return (firni_quant_geometry){
        .n_kv_heads = checks_between(checks, 1, 3),
        .group = bits.group,
        .key_bits = bits.key,
        .value_bits = bits.value,
        .rotated = bits.rotated,
        .head_dim = bits.rotated ? power : bits.group * checks_between(checks, 1, 4),
        .value_dim = bits.rotated ? power : bits.group * checks_between(checks, 1, 4),
    };
}

/* Both variants store the same tokens in their own blocks, whose bytes were garbage before. Now and then a group is
 * constant, tiny, huge or not finite; returns whether something was not finite. */
static inline bool checks_quant_fill(variant_checks *checks, const firni_quant_geometry *g, uint32_t n_tokens,
                                     firn_block *const *a, firn_block *const *b, unsigned round)
{
    const bool wild = round % 5 == 4;
    for (uint32_t i = 0; i < n_tokens; i++) {
        const size_t n_k = (size_t)g->n_kv_heads * g->head_dim;
        const size_t n_v = (size_t)g->n_kv_heads * g->value_dim;
        float *k = checks_floats(checks, n_k, round % 2 == 0 ? 1.0f : 30.0f);
        float *v = checks_floats(checks, n_v, 1.0f);
        static const float odd[] = {0.0f, -0.0f, 1e-30f, 3.0f, 1e6f, INFINITY, -INFINITY, NAN};
        if (wild || i % 7 == 0) {
            const float x = odd[checks_random(checks) % (wild ? 8 : 4)];
            const uint32_t at = checks_random(checks) % (uint32_t)(n_k / 32) * 32;
            const uint32_t n = x == 1e6f || !isfinite(x) ? 1 : 32;
            for (uint32_t j = 0; j < n; j++) {
                k[at + j] = x;
                v[at % n_v + j] = x;
            }
        }
        checks->reference->store_quant(g, firn_block_data(a[i / 64]), i % 64, k, v);
        checks->variant->store_quant(g, firn_block_data(b[i / 64]), i % 64, k, v);
        free(k);
        free(v);
    }
    return wild;
}

/* As checks_equal, but any NaN equals any other: which one it is, is not promised. */
static inline void checks_equal_numbers(variant_checks *checks, float *a, float *b, size_t n, const char *what,
                                        uint32_t p, uint32_t q, uint32_t r)
{
    for (size_t i = 0; i < n; i++) {
        a[i] = isnan(a[i]) ? NAN : a[i];
        b[i] = isnan(b[i]) ? NAN : b[i];
    }
    checks_equal(checks, a, b, n * sizeof(*a), what, p, q, r);
}

static inline void checks_quant_round(variant_checks *checks, firn_pool *pool, unsigned round)
{
    firni_quant_geometry g = checks_quant_geometry(checks, round);
    const size_t block_bytes = firni_quant_place(&g);
    const uint32_t n_tokens = checks_between(checks, 1, 64 * CHECKS_QUANT_BLOCKS);
    const uint32_t n_blocks = (n_tokens + 63) / 64;
    firn_block *a_blocks[CHECKS_QUANT_BLOCKS] = {NULL};
    firn_block *b_blocks[CHECKS_QUANT_BLOCKS] = {NULL};
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (firn_block_alloc(pool, block_bytes, &a_blocks[i], NULL) != FIRN_OK ||
            firn_block_alloc(pool, block_bytes, &b_blocks[i], NULL) != FIRN_OK) {
            abort();
        }
        for (size_t j = 0; j < block_bytes; j++) {
            /* 0xff everywhere is NaN as a scale or a bias. */
            const uint8_t garbage = round % 2 == 0 ? 0xffu : (uint8_t)checks_random(checks);
            firn_block_data(a_blocks[i])[j] = firn_block_data(b_blocks[i])[j] = garbage;
        }
    }
    const bool wild = checks_quant_fill(checks, &g, n_tokens, a_blocks, b_blocks, round);
    for (uint32_t i = 0; i < n_blocks; i++) {
        checks_equal(checks, firn_block_data(a_blocks[i]), firn_block_data(b_blocks[i]), block_bytes, "store_quant",
                     g.key_bits, g.value_bits, g.head_dim);
    }
    const uint32_t n_queries = checks_between(checks, 1, n_tokens < 20 ? n_tokens : 20);
    const uint32_t group_size = checks_between(checks, 1, 6);
    const size_t q_stride = (size_t)group_size * g.head_dim + checks_between(checks, 0, 5);
    const size_t out_stride = (size_t)group_size * g.value_dim + checks_between(checks, 0, 5);
    float *q = checks_floats(checks, n_queries * q_stride, round % 3 == 0 ? 20.0f : 2.0f);
    float *sinks = checks_floats(checks, group_size, 4.0f);
    float *a = calloc(n_queries * out_stride, sizeof(*a));
    float *b = calloc(n_queries * out_stride, sizeof(*b));
    firni_attend_task task = {
        .quant = &g,
        .blocks = a_blocks,
        .kv_head = checks_between(checks, 0, g.n_kv_heads - 1),
        .group_size = group_size,
        .n_queries = n_queries,
        .first_position = n_tokens - n_queries,
        .window = round % 3 == 1 ? checks_between(checks, 1, 200) : 0,
        .q = q,
        .q_stride = q_stride,
        .out = a,
        .out_stride = out_stride,
        .scale = 1.0f / sqrtf((float)g.head_dim),
        .softcap = round % 4 == 1 ? 5.0f : 0.0f,
        .sinks = round % 4 == 2 ? sinks : NULL,
    };
    if (task.window != 0 && task.first_position + 1 > task.window) {
        task.first_block = (task.first_position + 1 - task.window) / 64;
        task.blocks = a_blocks + task.first_block;
    }
    checks->reference->attend_quant(&task);
    task.out = b;
    checks->variant->attend_quant(&task);
    for (size_t i = 0; i < n_queries * out_stride; i++) {
        if (!wild && !isfinite(a[i]) && checks->n_failed++ < 8) {
            printf("%s: attention over quantised blocks is not finite\n", checks->reference->name);
        }
    }
    checks_equal_numbers(checks, a, b, n_queries * out_stride, "attend_quant", g.key_bits, g.value_bits, g.head_dim);
    checks_rows rows;
    checks_make_rows(checks, &task, a_blocks, b_blocks, n_tokens, &rows);
    checks->variant->attend_quant(&task);
    task.out = a;
    checks->reference->attend_quant(&task);
    checks_equal_numbers(checks, a, b, n_queries * out_stride, "attend_quant of rows", g.key_bits, g.value_bits,
                         g.head_dim);
    for (uint32_t i = 0; i < n_blocks; i++) {
        firn_block_release(a_blocks[i]);
        firn_block_release(b_blocks[i]);
    }
    free(q);
    free(sinks);
    free(a);
    free(b);
}

static inline void checks_quantised(variant_checks *checks)
{
    firn_pool *pool = NULL;
    const firn_pool_options options = {.budget_bytes = 256u << 20};
    if (firn_pool_create(&options, NULL, &pool, NULL) != FIRN_OK) {
        abort();
    }
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        checks_quant_round(checks, pool, round);
    }
    firn_pool_destroy(pool);
}

#endif
