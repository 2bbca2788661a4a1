/*
 * Attention over each layout, side by side: decode at a depth of 8 and 32 thousand tokens, and a prefill of 512 tokens
 * at a depth of 4,096.
 *
 *   bench_attend [--tiny] [--json] [--threads N] [--kernel NAME] [--only TEXT]
 *
 * Two query heads for each of eight KV heads. Machines are shared, so times are processor time divided by the number of
 * threads, and the layouts of a case take turns, run by run; then the median of RUNS runs is printed with the spread,
 * and how much faster than f16 it is. GB/s counts the bytes that a token has stored. Before it is timed, a result is
 * compared with that of the scalar reference, bit by bit. --only runs the cases whose name contains TEXT.
 */
#define BENCH_NAME "bench_attend"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base_impl.h"
#include "bench_common.h"
#include "firn/cache.h"
#include "kernel/kernel_impl.h"

enum { RUNS = 9, KV_HEADS = 8, GROUP = 2, N_LAYOUTS = 6, CHUNK = 512 };

typedef struct bench {
    const char *kernel;
    firn_workers *workers;
    bool tiny;
    bool json;
    bool first;
    const char *only; /* NULL: all */
} bench;

typedef struct bench_case {
    const char *name;
    uint32_t head_dim;
    uint32_t n_tokens;  /* stored, queries included */
    uint32_t n_queries; /* the last ones */
    uint32_t n_layers;
} bench_case;

static const struct {
    const char *name;
    firn_cache_options options;
} layouts[N_LAYOUTS] = {
    { "f16", { .layout = "kv:plain", .dtype = FIRN_DTYPE_F16 } },
    { "q8", { .layout = "kv:quant", .key_bits = 8 } },
    { "q8 groups of 32", { .layout = "kv:quant", .key_bits = 8, .group = 32 } },
    { "q4", { .layout = "kv:quant", .key_bits = 4 } },
    { "turbo k8v3", { .layout = "kv:turboquant", .key_bits = 8, .value_bits = 3 } },
    { "turbo k4v4", { .layout = "kv:turboquant", .key_bits = 4, .value_bits = 4 } },
};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Numbers of about the unit normal distribution: the sum of four uniform ones. */
static float *numbers(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    if (x == NULL) {
        fatal("out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t bits = seed ^ seed >> 33;
        x[i] = ((float)(bits & 0xffff) + (float)(bits >> 16 & 0xffff) + (float)(bits >> 32 & 0xffff) +
                (float)(bits >> 48)) * 0x1p-16f * 1.732f - 3.464f;
    }
    return x;
}

/* ---- one layout of a case ---------------------------------------------------------------------------------------- */

typedef struct subject {
    firn_cache **caches; /* one for each layer */
    double attend_s[RUNS];
    double append_s; /* of a chunk of CHUNK tokens in one layer */
    uint64_t bytes_per_token;
} subject;

static void create_subject(const bench *b, const bench_case *c, uint32_t layout, firn_pool *pool, const float *k,
                           const float *v, subject *s)
{
    firn_error err;
    firn_cache_options options = layouts[layout].options;
    options.n_kv_heads = KV_HEADS;
    options.head_dim = c->head_dim;
    options.kernel = b->kernel;
    s->caches = calloc(c->n_layers, sizeof(firn_cache *));
    if (s->caches == NULL) {
        fatal("out of memory");
    }
    double append_s[RUNS];
    uint32_t n_appends = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        check_ok(firn_cache_create(&options, pool, NULL, &s->caches[l], &err), &err);
        check_ok(firn_cache_add_row(s->caches[l], &err), &err);
        for (uint32_t i = 0; i < c->n_tokens; i += CHUNK) {
            const firn_append_input input = { .k = k, .v = v };
            const uint32_t n = c->n_tokens - i < CHUNK ? c->n_tokens - i : CHUNK;
            const double start = cpu_s();
            check_ok(firn_cache_append(s->caches[l], &input, &n, b->workers, &err), &err);
            append_s[n_appends++ % RUNS] = (cpu_s() - start) / firn_workers_count(b->workers);
        }
    }
    const uint32_t n_kept = n_appends < RUNS ? n_appends : RUNS;
    qsort(append_s, n_kept, sizeof(double), compare_doubles);
    s->append_s = append_s[n_kept / 2];
    s->bytes_per_token = firn_cache_bytes_per_token(s->caches[0]);
}

static void attend(const bench *b, const bench_case *c, const firn_cache *cache, const float *q, float *out)
{
    firn_error err;
    const firn_attend_input input = { .q = q, .out = out, .n_heads = KV_HEADS * GROUP, .scale = 0.1f };
    check_ok(firn_cache_attend(cache, &input, &c->n_queries, b->workers, &err), &err);
}

/* A short row, by this kernel and by the scalar reference. */
static void check_subject(const bench *b, const bench_case *c, uint32_t layout, const float *k, const float *v,
                          const float *q)
{
    enum { N_TOKENS = 200 };
    firn_error err;
    firn_pool *pool = NULL;
    const firn_pool_options pool_options = { .budget_bytes = 64 << 20 };
    check_ok(firn_pool_create(&pool_options, NULL, &pool, &err), &err);
    const size_t n_out = (size_t)KV_HEADS * GROUP * c->head_dim;
    float *out = calloc(2 * n_out, sizeof *out);
    if (out == NULL) {
        fatal("out of memory");
    }
    for (int i = 0; i < 2; i++) {
        firn_cache *cache = NULL;
        firn_cache_options options = layouts[layout].options;
        options.n_kv_heads = KV_HEADS;
        options.head_dim = c->head_dim;
        options.kernel = i == 0 ? b->kernel : "scalar";
        check_ok(firn_cache_create(&options, pool, NULL, &cache, &err), &err);
        check_ok(firn_cache_add_row(cache, &err), &err);
        const firn_append_input input = { .k = k, .v = v };
        const uint32_t n_tokens = N_TOKENS;
        check_ok(firn_cache_append(cache, &input, &n_tokens, NULL, &err), &err);
        const bench_case last = { .n_queries = 1 };
        attend(b, &last, cache, q, out + (size_t)i * n_out);
        firn_cache_destroy(cache);
    }
    if (memcmp(out, out + n_out, n_out * sizeof *out) != 0) {
        fatal("attention differs from the scalar reference");
    }
    free(out);
    firn_pool_destroy(pool);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static void report(bench *b, const bench_case *c, uint32_t layout, const subject *s, double f16_s)
{
    const double median = s->attend_s[RUNS / 2] / c->n_layers;
    const double bytes = (double)s->bytes_per_token * c->n_tokens;
    const double seen =
        (double)c->n_queries * (c->n_tokens - c->n_queries) + 0.5 * c->n_queries * (c->n_queries + 1.0);
    const double operations = 8.0 * seen * c->head_dim * KV_HEADS * GROUP / 2.0;
    if (b->json) {
        printf("%s\n  {\"name\": \"%s\", \"layout\": \"%s\", \"median_s\": %.6g, \"best_s\": %.6g, \"worst_s\": %.6g, "
               "\"GB_per_s\": %.4g, \"GOP_per_s\": %.4g, \"of_f16\": %.4g, \"append_512_s\": %.4g, "
               "\"bytes_per_token\": %llu}",
               b->first ? "" : ",", c->name, layouts[layout].name, median, s->attend_s[0] / c->n_layers,
               s->attend_s[RUNS - 1] / c->n_layers, bytes / median * 1e-9, operations / median * 1e-9,
               f16_s / c->n_layers / median, s->append_s, (unsigned long long)s->bytes_per_token);
        b->first = false;
        return;
    }
    printf("%-32s %-16s %8.3f ms (%.3f-%.3f)  %5.1f GB/s  %6.1f GOP/s  %5.2f x f16  append of 512: %.2f ms  %llu B\n",
           c->name, layouts[layout].name, median * 1e3, s->attend_s[0] / c->n_layers * 1e3,
           s->attend_s[RUNS - 1] / c->n_layers * 1e3, bytes / median * 1e-9, operations / median * 1e-9,
           f16_s / c->n_layers / median, s->append_s * 1e3, (unsigned long long)s->bytes_per_token);
    fflush(stdout);
}

static void run_case(bench *b, const bench_case *c)
{
    if (b->only != NULL && strstr(c->name, b->only) == NULL) {
        return;
    }
    firn_error err;
    firn_pool *pool = NULL;
    const firn_pool_options pool_options = { .budget_bytes = UINT64_C(8) << 30 };
    check_ok(firn_pool_create(&pool_options, NULL, &pool, &err), &err);
    float *k = numbers((size_t)CHUNK * KV_HEADS * c->head_dim, 1);
    float *v = numbers((size_t)CHUNK * KV_HEADS * c->head_dim, 2);
    float *q = numbers((size_t)c->n_queries * KV_HEADS * GROUP * c->head_dim, 3);
    float *out = numbers((size_t)c->n_queries * KV_HEADS * GROUP * c->head_dim, 4);
    subject subjects[N_LAYOUTS] = { 0 };
    for (uint32_t i = 0; i < N_LAYOUTS; i++) {
        check_subject(b, c, i, k, v, q);
        create_subject(b, c, i, pool, k, v, &subjects[i]);
    }
    for (uint32_t run = 0; run < RUNS; run++) {
        for (uint32_t i = 0; i < N_LAYOUTS; i++) {
            const double start = cpu_s();
            for (uint32_t l = 0; l < c->n_layers; l++) {
                attend(b, c, subjects[i].caches[l], q, out);
            }
            subjects[i].attend_s[run] = (cpu_s() - start) / firn_workers_count(b->workers);
        }
    }
    for (uint32_t i = 0; i < N_LAYOUTS; i++) {
        qsort(subjects[i].attend_s, RUNS, sizeof(double), compare_doubles);
        report(b, c, i, &subjects[i], subjects[0].attend_s[RUNS / 2]);
        for (uint32_t l = 0; l < c->n_layers; l++) {
            firn_cache_destroy(subjects[i].caches[l]);
        }
        free(subjects[i].caches);
    }
    firn_pool_destroy(pool);
    free(k);
    free(v);
    free(q);
    free(out);
}

/* Layers enough that no cache of the processor holds what is read. */
static const bench_case cases[] = {
    { "decode hd=64 tokens=8192", 64, 8192, 1, 8 },    { "decode hd=128 tokens=8192", 128, 8192, 1, 4 },
    { "decode hd=64 tokens=32768", 64, 32768, 1, 2 },  { "decode hd=128 tokens=32768", 128, 32768, 1, 1 },
    { "prefill hd=64 512 at 4096", 64, 4608, 512, 1 }, { "prefill hd=128 512 at 4096", 128, 4608, 512, 1 },
};
static const bench_case tiny_cases[] = {
    { "decode hd=64 tokens=256", 64, 256, 1, 2 },
    { "prefill hd=64 64 at 192", 64, 256, 64, 1 },
};

int main(int argc, char **argv)
{
    bench b = { .first = true };
    uint32_t n_threads = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) {
            b.tiny = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            b.json = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc) {
            b.kernel = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            b.only = argv[++i];
        } else {
            fatal("usage: bench_attend [--tiny] [--json] [--threads N] [--kernel NAME] [--only TEXT]");
        }
    }
    firn_error err;
    const firni_kernels *kernels = firni_kernels_select(b.kernel, &err);
    if (kernels == NULL) {
        fatal(err.message);
    }
    check_ok(firn_workers_create(n_threads, NULL, &b.workers, &err), &err);
    if (b.json) {
        printf("{\"kernel\": \"%s\", \"threads\": %u, \"runs\": %d, \"results\": [", kernels->name,
               firn_workers_count(b.workers), RUNS);
    } else {
        printf("kernel %s, %u threads, median of %d runs (best-worst), compiler %s\n", kernels->name,
               firn_workers_count(b.workers), RUNS, __VERSION__);
    }
    const bench_case *list = b.tiny ? tiny_cases : cases;
    const size_t n_cases = b.tiny ? sizeof tiny_cases / sizeof tiny_cases[0] : sizeof cases / sizeof cases[0];
    for (size_t i = 0; i < n_cases; i++) {
        run_case(&b, &list[i]);
    }
    if (b.json) {
        printf("\n]}\n");
    }
    firn_workers_destroy(b.workers);
    return 0;
}
