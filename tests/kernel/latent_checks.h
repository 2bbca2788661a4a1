/*
 * The part of variant_checks.h that compares variants on latent blocks; included by it.
 */
#ifndef FIRNI_LATENT_CHECKS_H
#define FIRNI_LATENT_CHECKS_H

enum { CHECKS_LATENT_BLOCKS = 5 };

static inline uint32_t checks_selection(variant_checks *checks, uint32_t n_visible, uint32_t *selected)
{
    uint32_t n = 0;
    const uint32_t one_in = checks_between(checks, 1, 40);
    for (uint32_t t = 0; t < n_visible; t++) {
        if (checks_random(checks) % one_in == 0) {
            selected[n++] = t;
        }
    }
    if (n == 0) {
        selected[n++] = checks_random(checks) % n_visible;
    }
    return n;
}

static inline void checks_latent_round(variant_checks *checks, firn_pool *pool, unsigned round)
{
    static const firn_dtype dtypes[] = { FIRN_DTYPE_F32, FIRN_DTYPE_F16, FIRN_DTYPE_BF16 };
    const firn_dtype dtype = dtypes[round % 3];
    const uint32_t element = dtype == FIRN_DTYPE_F32 ? 4 : 2;
    /* Small ones, those of DeepSeek, and some that leave a rest of whatever a variant takes at a time. */
    const uint32_t small_dim = round % 10 == 4 ? checks_between(checks, 193, 420) : checks_between(checks, 1, 90);
    const uint32_t head_dim = round % 10 == 9 ? 576 : small_dim;
    const firni_latent_geometry g = {
        .dtype = dtype,
        .head_dim = head_dim,
        .value_dim = round % 10 == 9 ? 512 : checks_between(checks, 1, head_dim),
        .index_dim = checks_between(checks, 1, 40),
        .index_offset_bytes = head_dim * element * 64,
    };
    const size_t block_bytes = g.index_offset_bytes + (size_t)g.index_dim * element * 64;
    const uint32_t n_tokens = checks_between(checks, 1, 64 * CHECKS_LATENT_BLOCKS);
    const uint32_t n_blocks = (n_tokens + 63) / 64;
    firn_block *a_blocks[CHECKS_LATENT_BLOCKS] = { NULL };
    firn_block *b_blocks[CHECKS_LATENT_BLOCKS] = { NULL };
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (firn_block_alloc(pool, block_bytes, &a_blocks[i], NULL) != FIRN_OK ||
            firn_block_alloc(pool, block_bytes, &b_blocks[i], NULL) != FIRN_OK) {
            abort();
        }
        /* NaN, whatever the type: what is not stored must not be seen. */
        memset(firn_block_data(a_blocks[i]), 0xff, block_bytes);
        memset(firn_block_data(b_blocks[i]), 0xff, block_bytes);
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *k = checks_floats(checks, head_dim, 2.0f);
        float *index_key = checks_floats(checks, g.index_dim, 2.0f);
        checks->reference->store_latent(&g, firn_block_data(a_blocks[t / 64]), t % 64, k, index_key);
        checks->variant->store_latent(&g, firn_block_data(b_blocks[t / 64]), t % 64, k, index_key);
        free(k);
        free(index_key);
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        checks_equal(checks, firn_block_data(a_blocks[i]), firn_block_data(b_blocks[i]), block_bytes, "store_latent",
                     head_dim, g.index_dim, n_tokens);
    }

    const uint32_t n_index_heads = checks_between(checks, 1, 20);
    float *index_q = checks_floats(checks, (size_t)n_index_heads * g.index_dim, 1.0f);
    float *index_weights = checks_floats(checks, n_index_heads, 1.0f);
    float a_scores[64];
    float b_scores[64];
    checks->reference->index_scores(&g, firn_block_data(a_blocks[n_blocks - 1]), index_q, index_weights, n_index_heads,
                                    a_scores);
    checks->variant->index_scores(&g, firn_block_data(a_blocks[n_blocks - 1]), index_q, index_weights, n_index_heads,
                                  b_scores);
    checks_equal(checks, a_scores, b_scores, ((n_tokens - 1) % 64 + 1) * sizeof(float), "index_scores", n_index_heads,
                 g.index_dim, n_tokens);
    free(index_q);
    free(index_weights);

    const bool sparse = round % 2 == 1;
    const uint32_t n_queries = sparse ? 1 : checks_between(checks, 1, n_tokens < 20 ? n_tokens : 20);
    const uint32_t group_size = checks_between(checks, 1, 20);
    const size_t q_stride = (size_t)group_size * head_dim + checks_between(checks, 0, 5);
    const size_t out_stride = (size_t)group_size * g.value_dim + checks_between(checks, 0, 5);
    float *q = checks_floats(checks, n_queries * q_stride, round % 3 == 0 ? 20.0f : 2.0f);
    float *sinks = checks_floats(checks, group_size, 4.0f);
    float *a = calloc(n_queries * out_stride, sizeof(*a));
    float *b = calloc(n_queries * out_stride, sizeof(*b));
    uint32_t selected[64 * CHECKS_LATENT_BLOCKS];
    firni_attend_task task = {
        .latent = &g,
        .blocks = a_blocks,
        .group_size = group_size,
        .n_queries = n_queries,
        .first_position = n_tokens - n_queries,
        .q = q,
        .q_stride = q_stride,
        .out = a,
        .out_stride = out_stride,
        .scale = 1.0f / sqrtf((float)head_dim),
        .softcap = round % 4 >= 2 ? 5.0f : 0.0f,
        .sinks = round % 5 == 2 ? sinks : NULL,
    };
    if (sparse) {
        task.n_selected = checks_selection(checks, n_tokens, selected);
        task.selected = selected;
    }
    checks->reference->attend_latent(&task);
    task.out = b;
    checks->variant->attend_latent(&task);
    for (size_t i = 0; i < n_queries * out_stride; i++) {
        if (!isfinite(a[i]) && checks->n_failed++ < 8) {
            printf("%s: attention over latent blocks is not finite\n", checks->reference->name);
        }
    }
    checks_equal(checks, a, b, n_queries * out_stride * sizeof(*a), "attend_latent", head_dim, g.value_dim, group_size);
    if (!sparse) {
        checks_rows rows;
        checks_make_rows(checks, &task, a_blocks, b_blocks, n_tokens, &rows);
        checks->variant->attend_latent(&task);
        task.out = a;
        checks->reference->attend_latent(&task);
        checks_equal(checks, a, b, n_queries * out_stride * sizeof(*a), "attend_latent of rows", head_dim, g.value_dim,
                     group_size);
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

static inline void checks_latent(variant_checks *checks)
{
    firn_pool *pool = NULL;
    const firn_pool_options options = { .budget_bytes = 256u << 20 };
    if (firn_pool_create(&options, NULL, &pool, NULL) != FIRN_OK) {
        abort();
    }
    for (unsigned round = 0; round < checks->n_rounds; round++) {
        checks_latent_round(checks, pool, round);
    }
    firn_pool_destroy(pool);
}

#endif
