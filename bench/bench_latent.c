/*
 * Attention over latent blocks with the sizes of DeepSeek V3 (latent 512, rope key 64, f16) and 16 query heads: decode
 * and a prefill of 64 tokens at a depth, dense and sparse (64 index heads of 128, top-k 2,048).
 *
 *   bench_latent [--tiny]
 *
 * One thread, in its own processor time, since machines are shared: the median of RUNS runs with the spread. Before it
 * is timed, a result is compared with that of the scalar reference, bit by bit.
 */
#define BENCH_NAME "bench_latent"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_common.h"
#include "firn/cache.h"

enum { RUNS = 5, HEADS = 16, DIM = 576, VALUE = 512, INDEX_HEADS = 64, INDEX_DIM = 128, TOP_K = 2048, CHUNK = 64 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *numbers(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    if (x == NULL) {
        fatal("out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31F;
    }
    return x;
}

typedef struct bench {
    firn_pool *pool;
    float *k, *index_key; /* [depth] */
    float *q, *index_q, *index_weights, *out; /* [CHUNK] */
} bench;

static firn_cache *row_of(const bench *b, const char *layout, const char *kernel, uint32_t n_tokens)
{
    const bool sparse = strcmp(layout, "kv:mla:dsa") == 0;
    const firn_cache_options options = {
        .layout = layout, .head_dim = DIM, .value_dim = VALUE, .kernel = kernel,
        .index_dim = sparse ? INDEX_DIM : 0, .index_top_k = sparse ? TOP_K : 0,
    };
    firn_error err;
    firn_cache *cache = NULL;
    check_ok(firn_cache_create(&options, b->pool, NULL, &cache, &err), &err);
    check_ok(firn_cache_add_row(cache, &err), &err);
    const firn_append_input input = { .k = b->k, .index_key = sparse ? b->index_key : NULL };
    check_ok(firn_cache_append(cache, &input, &n_tokens, NULL, &err), &err);
    return cache;
}

static void attend(const bench *b, const firn_cache *cache, uint32_t n_queries)
{
    const bool sparse = firn_cache_get_options(cache)->index_dim > 0;
    const firn_attend_input input = {
        .q = b->q, .out = b->out, .n_heads = HEADS, .scale = 0.07F,
        .index_q = sparse ? b->index_q : NULL, .index_weights = sparse ? b->index_weights : NULL,
        .n_index_heads = sparse ? INDEX_HEADS : 0,
    };
    firn_error err;
    check_ok(firn_cache_attend(cache, &input, &n_queries, NULL, &err), &err);
}

static void check_bits(const bench *b, const char *layout)
{
    static float expected[HEADS * VALUE];
    firn_cache *scalar = row_of(b, layout, "scalar", 150);
    firn_cache *fast = row_of(b, layout, NULL, 150);
    attend(b, scalar, 1);
    memcpy(expected, b->out, sizeof expected);
    attend(b, fast, 1);
    if (memcmp(expected, b->out, sizeof expected) != 0) {
        fatal("attention differs from the scalar reference");
    }
    firn_cache_destroy(scalar);
    firn_cache_destroy(fast);
}

static void measure(const bench *b, const char *layout, uint32_t depth, uint32_t n_queries)
{
    double seconds[RUNS];
    firn_cache *cache = row_of(b, layout, NULL, depth);
    for (uint32_t run = 0; run < RUNS; run++) {
        const double start = now_s();
        attend(b, cache, n_queries);
        seconds[run] = now_s() - start;
    }
    qsort(seconds, RUNS, sizeof seconds[0], compare_doubles);
    const double operations = 2.0 * n_queries * HEADS * (DIM + VALUE) * (depth - n_queries / 2.0);
    printf("%-11s depth %5u, %2u queries  %8.3f ms (%.3f-%.3f)  %6.1f GOP/s over all tokens\n", layout, depth,
           n_queries, seconds[RUNS / 2] * 1e3, seconds[0] * 1e3, seconds[RUNS - 1] * 1e3,
           operations / seconds[RUNS / 2] * 1e-9);
    firn_cache_destroy(cache);
}

int main(int argc, char **argv)
{
    const bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const uint32_t depths[] = { tiny ? 128 : 4096, tiny ? 192 : 16384 };
    bench b = {
        .k = numbers((size_t)depths[1] * DIM, 1),
        .index_key = numbers((size_t)depths[1] * INDEX_DIM, 2),
        .q = numbers((size_t)CHUNK * HEADS * DIM, 3),
        .index_q = numbers((size_t)CHUNK * INDEX_HEADS * INDEX_DIM, 4),
        .index_weights = numbers((size_t)CHUNK * INDEX_HEADS, 5),
        .out = numbers((size_t)CHUNK * HEADS * VALUE, 6),
    };
    firn_error err;
    const firn_pool_options pool_options = { .budget_bytes = UINT64_C(1) << 30 };
    check_ok(firn_pool_create(&pool_options, NULL, &b.pool, &err), &err);
    static const char *const names[] = { "kv:mla", "kv:mla:dsa" };
    for (size_t i = 0; i < 2; i++) {
        check_bits(&b, names[i]);
        for (size_t d = 0; d < 2; d++) {
            measure(&b, names[i], depths[d], 1);
        }
        measure(&b, names[i], depths[0], CHUNK);
    }
    firn_pool_destroy(b.pool);
    free(b.k);
    free(b.index_key);
    free(b.q);
    free(b.index_q);
    free(b.index_weights);
    free(b.out);
    return 0;
}
