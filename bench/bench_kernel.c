/*
 * Speed of the kernels: matrix products and attention, beside what the memory of this machine can stream.
 *
 *   bench_kernel [--tiny] [--json] [--threads N] [--kernel NAME] [--only TEXT]
 *
 * Each case compares a part of its result with the scalar reference, bit by bit, before it is timed; then the median
 * of RUNS runs is printed with the spread. GB/s counts the bytes of weights or of keys and values that a run must read
 * once; GOP/s counts two operations for a multiply-add. --tiny runs small sizes, as a test that it works;
 * --only runs the cases whose name contains TEXT, after the streaming read.
 */
#define BENCH_NAME "bench_kernel"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_common.h"
#include "firn/array.h"
#include "firn/workers.h"
#include "cmd/bench_stream.h"
#include "kernel/kernel_impl.h"
#include "kernel/packed.h"
#include "kernel/variants_impl.h"

enum { RUNS = 7, STREAM_CHUNKS = 64 };

typedef struct bench {
    const firni_kernels *kernels;
    const firni_kernels *reference;
    firn_workers *workers;
    uint32_t n_threads;
    bool tiny;
    bool json;
    bool first;
    const char *only; /* NULL: all */
    double stream_bytes_per_s;
} bench;

typedef struct timing {
    double median, best, worst; /* seconds */
} timing;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *allocate(size_t n_bytes)
{
    void *p = aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
    if (p == NULL) {
        fatal("out of memory");
    }
    return p;
}

static timing measure(void (*run)(void *ctx), void *ctx)
{
    double seconds[RUNS];
    run(ctx); /* once to touch all pages and fill caches */
    for (int i = 0; i < RUNS; i++) {
        const double start = now_s();
        run(ctx);
        seconds[i] = now_s() - start;
    }
    qsort(seconds, RUNS, sizeof(seconds[0]), compare_doubles);
    return (timing){.median = seconds[RUNS / 2], .best = seconds[0], .worst = seconds[RUNS - 1]};
}

static void report(bench *b, const char *name, timing t, double n_bytes, double n_ops)
{
    const double bytes_per_s = n_bytes / t.median;
    if (b->json) {
        printf("%s\n  {\"case\": \"%s\", \"median_s\": %.6g, \"best_s\": %.6g, \"worst_s\": %.6g, \"bytes\": %.0f, "
               "\"ops\": %.0f}",
               b->first ? "" : ",", name, t.median, t.best, t.worst, n_bytes, n_ops);
        b->first = false;
        return;
    }
    printf("%-44s %9.3f ms (%8.3f-%8.3f)", name, t.median * 1e3, t.best * 1e3, t.worst * 1e3);
    if (n_bytes > 0) {
        printf(" %7.2f GB/s", bytes_per_s / 1e9);
        if (b->stream_bytes_per_s > 0) {
            printf(" = %3.0f %% of streaming", 100.0 * bytes_per_s / b->stream_bytes_per_s);
        }
    }
    if (n_ops > 0) {
        printf(" %8.1f GOP/s", n_ops / t.median / 1e9);
    }
    printf("\n");
}

static bool wanted(const bench *b, const char *name) { return b->only == NULL || strstr(name, b->only) != NULL; }

/* ---- streaming read --------------------------------------------------------------------------------------------- */

typedef struct stream {
    bench *b;
    const uint64_t *words;
    size_t n_words;
    uint64_t sums[STREAM_CHUNKS];
} stream;

static void stream_task(void *ctx, uint32_t index, uint32_t thread)
{
    stream *s = ctx;
    (void)thread;
    const size_t n_words = s->n_words / STREAM_CHUNKS;
    s->sums[index] = firni_stream_read(s->words + index * n_words, n_words);
}

static void stream_run(void *ctx)
{
    stream *s = ctx;
    firn_workers_run(s->b->workers, STREAM_CHUNKS, stream_task, s);
}

static void bench_stream(bench *b)
{
    stream s = {.b = b, .n_words = (b->tiny ? (size_t)4 << 20 : (size_t)512 << 20) / sizeof(uint64_t)};
    uint64_t *words = allocate(s.n_words * sizeof(*words));
    for (size_t i = 0; i < s.n_words; i++) {
        words[i] = i;
    }
    s.words = words;
    const timing t = measure(stream_run, &s);
    uint64_t sum = 0;
    for (unsigned i = 0; i < STREAM_CHUNKS; i++) {
        sum += s.sums[i];
    }
    const uint64_t n_lines = s.n_words / FIRNI_STREAM_LINE_WORDS;
    if (sum != n_lines * (n_lines - 1) / 2 * FIRNI_STREAM_LINE_WORDS) {
        fatal("the streaming read read something else");
    }
    const double n_bytes = (double)(s.n_words * sizeof(uint64_t));
    report(b, "streaming read", t, n_bytes, 0);
    b->stream_bytes_per_s = n_bytes / t.median;
    free(words);
}

/* ---- matrix product ------------------------------------------------------------------------------------------- */

typedef struct product {
    bench *b;
    firni_matrix w;
    uint32_t n_tokens;
    const float *x;
    float *y;
    void *scratch;
} product;

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static void fill_floats(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(next_random(&seed) >> 8) * 0x1p-23f - 1.0f;
    }
}

/* Elements of both signs and sizes from 0.008 to 0.13. */
static void fill_elements(uint8_t *out, size_t n_bytes, firn_dtype dtype, uint32_t seed)
{
    const size_t element = firn_dtype_bytes(dtype);
    for (size_t i = 0; i < n_bytes; i += element) {
        const uint32_t bits = next_random(&seed);
        const uint32_t f32 = 0x3c000000u | (bits & 0x81ffffffu);
        const uint16_t f16 = (uint16_t)(0x2000u | (bits >> 16 & 0x8fffu));
        const uint16_t half = dtype == FIRN_DTYPE_F16 ? f16 : (uint16_t)(f32 >> 16);
        memcpy(out + i, element == 4 ? (const void *)&f32 : (const void *)&half, element);
    }
}

/* Random elements in the blocks of a file, with scales of about 0.002; minima, where a format has them, alike. */
static void fill_blocks(uint8_t *out, size_t n_bytes, firni_weight_type type, uint32_t seed)
{
    const uint16_t half = 0x1800u;
    const firni_group_format *format = &firni_group_formats[type];
    for (size_t i = 0; i < n_bytes; i++) {
        out[i] = (uint8_t)(next_random(&seed) >> 24);
    }
    for (size_t i = 0; i < n_bytes; i += format->file_bytes) {
        memcpy(out + i + (type == FIRNI_WEIGHT_Q6_K ? format->file_bytes - sizeof(half) : 0), &half, sizeof(half));
        if (firni_group_has_minima(format)) {
            memcpy(out + i + sizeof(half), &half, sizeof(half));
        }
    }
}

/* All panels of a grouped format are copies of one. */
static uint8_t *make_panels(firni_weight_type type, uint32_t n_rows, uint32_t n_cols)
{
    const size_t n_bytes = firni_matrix_bytes(type, n_rows, n_cols);
    uint8_t *panels = allocate(n_bytes);
    const uint32_t seed = 7;
    if (!firni_weight_is_grouped(type)) {
        fill_elements(panels, n_bytes, firni_weight_dtype(type), seed);
        return panels;
    }
    const size_t rows_bytes = FIRNI_PANEL_ROWS * firni_weight_row_bytes(type, n_cols);
    const size_t panel_bytes = firni_panel_bytes(type, n_cols);
    uint8_t *rows = allocate(rows_bytes);
    fill_blocks(rows, rows_bytes, type, seed);
    firni_matrix_pack(type, n_rows, n_cols, rows, panels, 0, 1);
    for (uint32_t p = 1; p < firni_panel_count(n_rows); p++) {
        memcpy(panels + p * panel_bytes, panels, panel_bytes);
    }
    free(rows);
    return panels;
}

static void product_run(void *ctx)
{
    const product *p = ctx;
    firni_matmul(p->b->kernels, p->b->workers, &p->w, p->x, p->w.n_cols, p->y, p->w.n_rows, p->n_tokens, p->scratch);
}

static void check_product(const product *p)
{
    /* Three panels of the first and last token, by the scalar reference. */
    const uint32_t n_panels = firni_panel_count(p->w.n_rows);
    const uint32_t panels[] = {0, n_panels / 2, n_panels - 1};
    const uint32_t tokens[] = {0, p->n_tokens - 1};
    void *acts = allocate(firni_matmul_scratch_bytes(p->w.n_cols, 1));
    float *y = allocate(p->w.n_rows * sizeof(*y));
    product_run((void *)(uintptr_t)p);
    for (unsigned i = 0; i < 2; i++) {
        const float *x = p->x + (size_t)tokens[i] * p->w.n_cols;
        p->b->reference->prepare(p->w.type, x, p->w.n_cols, p->w.n_cols, 0, 1, 1, acts);
        for (unsigned j = 0; j < 3; j++) {
            p->b->reference->matmul_panels(&p->w, acts, y, p->w.n_rows, 1, panels[j], panels[j] + 1);
            const size_t row = (size_t)panels[j] * FIRNI_PANEL_ROWS;
            const size_t n_rows = p->w.n_rows - row < FIRNI_PANEL_ROWS ? p->w.n_rows - row : FIRNI_PANEL_ROWS;
            if (memcmp(y + row, p->y + (size_t)tokens[i] * p->w.n_rows + row, n_rows * sizeof(*y)) != 0) {
                fatal("a matrix product differs from the scalar reference");
            }
        }
    }
    free(acts);
    free(y);
}

static product product_create(bench *b, firni_weight_type type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens)
{
    float *x = allocate((size_t)n_tokens * n_cols * sizeof(*x));
    fill_floats(x, (size_t)n_tokens * n_cols, 3);
    product p = {
        .b = b,
        .w = {.type = type, .n_rows = n_rows, .n_cols = n_cols, .panels = make_panels(type, n_rows, n_cols)},
        .n_tokens = n_tokens,
        .x = x,
        .y = allocate((size_t)n_tokens * n_rows * sizeof(float)),
        .scratch = allocate(firni_matmul_scratch_bytes(n_cols, n_tokens)),
    };
    check_product(&p);
    return p;
}

static void product_destroy(product *p)
{
    free((void *)(uintptr_t)p->w.panels);
    free((void *)(uintptr_t)p->x);
    free(p->y);
    free(p->scratch);
}

static void report_product(const product *p, const char *name, timing t)
{
    const double n_ops = 2.0 * p->w.n_rows * p->w.n_cols * p->n_tokens;
    const size_t n_bytes = firni_matrix_bytes(p->w.type, p->w.n_rows, p->w.n_cols);
    report(p->b, name, t, p->n_tokens <= 8 ? (double)n_bytes : 0, n_ops);
}

static void product_name(char out[80], const char *what, firni_weight_type type, uint32_t n_rows, uint32_t n_cols,
                         uint32_t n_tokens)
{
    snprintf(out, 80, "%s %s M=%u K=%u N=%u", what, firni_weight_type_name(type), n_rows, n_cols, n_tokens);
}

static void bench_product(bench *b, firni_weight_type type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens)
{
    char name[80];
    product_name(name, "matmul", type, n_rows, n_cols, n_tokens);
    if (!wanted(b, name)) {
        return;
    }
    product p = product_create(b, type, n_rows, n_cols, n_tokens);
    report_product(&p, name, measure(product_run, &p));
    product_destroy(&p);
}

/* The grouped formats in turn, RUNS times, so that all of them meet the same neighbours on a shared machine; with the
 * median of the ratios to the time of q8_0 in the same turn. */
static void bench_formats(bench *b, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens)
{
    product products[FIRNI_WEIGHT_TYPES];
    double seconds[FIRNI_WEIGHT_TYPES][RUNS];
    if (!wanted(b, "formats")) {
        return;
    }
    for (firni_weight_type type = FIRNI_WEIGHT_Q8_0; type < FIRNI_WEIGHT_TYPES; type++) {
        products[type] = product_create(b, type, n_rows, n_cols, n_tokens);
    }
    for (int run = 0; run < RUNS; run++) {
        for (firni_weight_type type = FIRNI_WEIGHT_Q8_0; type < FIRNI_WEIGHT_TYPES; type++) {
            const double start = now_s();
            product_run(&products[type]);
            seconds[type][run] = now_s() - start;
        }
    }
    for (int type = FIRNI_WEIGHT_TYPES - 1; type >= FIRNI_WEIGHT_Q8_0; type--) { /* q8_0 last: it is sorted then */
        char name[80];
        double ratios[RUNS];
        for (int run = 0; run < RUNS; run++) {
            ratios[run] = seconds[FIRNI_WEIGHT_Q8_0][run] / seconds[type][run];
        }
        qsort(ratios, RUNS, sizeof(ratios[0]), compare_doubles);
        qsort(seconds[type], RUNS, sizeof(seconds[type][0]), compare_doubles);
        product_name(name, "formats", (firni_weight_type)type, n_rows, n_cols, n_tokens);
        const double *sorted = seconds[type];
        const timing t = {.median = sorted[RUNS / 2], .best = sorted[0], .worst = sorted[RUNS - 1]};
        report_product(&products[type], name, t);
        if (!b->json) {
            printf("%-44s %9.2f times as fast as q8_0\n", "", ratios[RUNS / 2]);
        }
        product_destroy(&products[type]);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

enum { LAYERS = 16, KV_HEADS = 8, GROUP = 2 };

typedef struct attention {
    bench *b;
    firni_plain_geometry geometry;
    uint32_t n_layers, n_blocks, n_queries, n_parts;
    firn_block **blocks; /* [layer][block] */
    uint32_t layer;
    const float *q;
    float *out;
} attention;

static firni_attend_task attention_task(const attention *a, uint32_t layer, uint32_t kv_head, float *out)
{
    const uint32_t q_dim = KV_HEADS * GROUP * a->geometry.head_dim;
    return (firni_attend_task){
        .geometry = &a->geometry,
        .blocks = a->blocks + (size_t)layer * a->n_blocks,
        .kv_head = kv_head,
        .group_size = GROUP,
        .n_queries = a->n_queries,
        .first_position = a->n_blocks * FIRN_BLOCK_TOKENS - a->n_queries,
        .q = a->q + (size_t)kv_head * GROUP * a->geometry.head_dim,
        .out = out + (size_t)kv_head * GROUP * a->geometry.value_dim,
        .q_stride = q_dim,
        .out_stride = q_dim,
        .scale = 0.125f,
    };
}

/* One task is a KV head and a part of the queries. */
static void attention_part(void *ctx, uint32_t index, uint32_t thread)
{
    const attention *a = ctx;
    (void)thread;
    firni_attend_task task = attention_task(a, a->layer, index % KV_HEADS, a->out);
    const uint32_t part = index / KV_HEADS;
    const uint32_t first = a->n_queries * part / a->n_parts;
    task.q += first * task.q_stride;
    task.out += first * task.out_stride;
    task.first_position += first;
    task.n_queries = a->n_queries * (part + 1) / a->n_parts - first;
    a->b->kernels->attend_plain(&task);
}

static void attention_run(void *ctx)
{
    attention *a = ctx;
    for (a->layer = 0; a->layer < a->n_layers; a->layer++) {
        firn_workers_run(a->b->workers, KV_HEADS * a->n_parts, attention_part, a);
    }
}

static void check_attention(attention *a)
{
    const size_t out_floats = (size_t)a->n_queries * KV_HEADS * GROUP * a->geometry.value_dim;
    float *expected = allocate(out_floats * sizeof(*expected));
    attention_run(a);
    /* The last query of the last layer's last head, by the scalar reference. */
    firni_attend_task task = attention_task(a, a->n_layers - 1, KV_HEADS - 1, expected);
    const size_t skip = (size_t)(a->n_queries - 1) * task.q_stride;
    task.q += skip;
    task.out += skip;
    task.first_position += a->n_queries - 1;
    task.n_queries = 1;
    a->b->reference->attend_plain(&task);
    if (memcmp(task.out, a->out + (task.out - expected), GROUP * a->geometry.value_dim * sizeof(float)) != 0) {
        fatal("attention differs from the scalar reference");
    }
    free(expected);
}

static void bench_attention(bench *b, firn_dtype dtype, uint32_t head_dim, uint32_t n_tokens, uint32_t n_queries)
{
    const size_t element = firn_dtype_bytes(dtype);
    attention a = {
        .b = b,
        .geometry = {.dtype = dtype, .n_kv_heads = KV_HEADS, .head_dim = head_dim, .value_dim = head_dim,
                     .v_offset_bytes = (uint32_t)(KV_HEADS * head_dim * FIRN_BLOCK_TOKENS * element)},
        .n_layers = n_queries > 1 || b->tiny ? 2 : LAYERS,
        .n_blocks = n_tokens / FIRN_BLOCK_TOKENS,
        .n_queries = n_queries,
        .n_parts = n_queries >= 64 ? n_queries / 64 : 1,
    };
    char name[80];
    snprintf(name, sizeof(name), "attend %s hd=%u tokens=%u queries=%u layers=%u", firn_dtype_name(dtype), head_dim,
             n_tokens, n_queries, a.n_layers);
    if (!wanted(b, name)) {
        return;
    }
    const size_t block_bytes = (size_t)a.geometry.v_offset_bytes * 2;
    const size_t n_all = (size_t)a.n_layers * a.n_blocks;
    const firn_pool_options options = {.budget_bytes = n_all * block_bytes};
    firn_pool *pool = NULL;
    a.blocks = allocate(n_all * sizeof(firn_block *));
    if (firn_pool_create(&options, NULL, &pool, NULL) != FIRN_OK) {
        fatal("no pool");
    }
    uint32_t seed = 11;
    for (size_t i = 0; i < n_all; i++) {
        if (firn_block_alloc(pool, block_bytes, &a.blocks[i], NULL) != FIRN_OK) {
            fatal("no memory for blocks");
        }
        fill_elements(firn_block_data(a.blocks[i]), block_bytes, dtype, next_random(&seed));
    }
    const size_t q_floats = (size_t)n_queries * KV_HEADS * GROUP * head_dim;
    float *q = allocate(q_floats * sizeof(*q));
    fill_floats(q, q_floats, 5);
    a.q = q;
    a.out = allocate(q_floats * sizeof(*a.out));
    check_attention(&a);
    const timing t = measure(attention_run, &a);
    /* Query i sees n_tokens - n_queries + i + 1 tokens: two multiply-adds each for head_dim and value_dim. */
    const double seen = (double)n_queries * (n_tokens - n_queries) + 0.5 * n_queries * (n_queries + 1.0);
    report(b, name, t, n_queries == 1 ? (double)n_all * (double)block_bytes : 0,
           4.0 * seen * head_dim * KV_HEADS * GROUP * a.n_layers);
    for (size_t i = 0; i < n_all; i++) {
        firn_block_release(a.blocks[i]);
    }
    firn_pool_destroy(pool);
    free(a.blocks);
    free(q);
    free(a.out);
}

/* ---- the program ---------------------------------------------------------------------------------------------- */

static void print_machine(const bench *b)
{
    char model[128] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(model, sizeof(model), "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    if (b->json) {
        printf("{\"machine\": \"%s\", \"kernel\": \"%s\", \"threads\": %u, \"runs\": %d, \"compiler\": \"%s\", "
               "\"results\": [",
               model, b->kernels->name, b->n_threads, RUNS, __VERSION__);
    } else {
        printf("machine %s, kernel %s, %u threads, median of %d runs (best-worst), compiler %s\n", model,
               b->kernels->name, b->n_threads, RUNS, __VERSION__);
    }
}

static void run_all(bench *b)
{
    bench_stream(b);
    if (b->tiny) {
        for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
            bench_product(b, type, 200, 256, 1);
            bench_product(b, type, 200, 256, 13);
        }
        bench_formats(b, 200, 256, 2);
        bench_attention(b, FIRN_DTYPE_F16, 64, 256, 1);
        bench_attention(b, FIRN_DTYPE_BF16, 64, 256, 64);
        return;
    }
    bench_product(b, FIRNI_WEIGHT_Q8_0, 460800, 1024, 1);
    bench_product(b, FIRNI_WEIGHT_Q8_0, 460800, 1024, 4);
    bench_product(b, FIRNI_WEIGHT_Q8_0, 6912, 1024, 512);
    bench_product(b, FIRNI_WEIGHT_Q8_0, 1024, 6912, 512);
    bench_formats(b, 115200, 1024, 1);
    bench_formats(b, 115200, 1024, 4);
    bench_formats(b, 1024, 1024, 512);
    bench_product(b, FIRNI_WEIGHT_F16, 230400, 1024, 1);
    bench_product(b, FIRNI_WEIGHT_F16, 6912, 1024, 512);
    bench_product(b, FIRNI_WEIGHT_BF16, 230400, 1024, 1);
    bench_product(b, FIRNI_WEIGHT_F32, 115200, 1024, 1);
    bench_product(b, FIRNI_WEIGHT_F32, 6912, 1024, 512);
    bench_attention(b, FIRN_DTYPE_F16, 64, 4096, 1);
    bench_attention(b, FIRN_DTYPE_F16, 64, 32768, 1);
    bench_attention(b, FIRN_DTYPE_F16, 64, 4096 + 512, 512);
    bench_attention(b, FIRN_DTYPE_F16, 128, 4096 + 512, 512);
}

int main(int argc, char **argv)
{
    bench b = {.first = true};
    const char *kernel = NULL;
    uint32_t n_threads = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) {
            b.tiny = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            b.json = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc) {
            kernel = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            b.only = argv[++i];
        } else {
            fatal("usage: bench_kernel [--tiny] [--json] [--threads N] [--kernel NAME] [--only TEXT]");
        }
    }
    firn_error err;
    b.kernels = firni_kernels_select(kernel, &err);
    if (b.kernels == NULL || firn_workers_create(n_threads, NULL, &b.workers, &err) != FIRN_OK) {
        fatal(err.message);
    }
    b.reference = firni_kernels_select("scalar", NULL);
    b.n_threads = firn_workers_count(b.workers);
    print_machine(&b);
    run_all(&b);
    if (b.json) {
        printf("\n]}\n");
    }
    firn_workers_destroy(b.workers);
    return 0;
}
