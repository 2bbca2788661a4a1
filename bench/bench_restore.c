/*
 * Stores and restores of the disk tier beside raw direct writes and reads of as many bytes, in the same run.
 *
 *   bench_restore [--tiny] [--bytes MIB] [--runs N] [--dir DIR]
 *
 * For records of 128 KiB, 1 MiB and 8 MiB: a chain of them is stored, with a store's syncs, then found and restored
 * into blocks; plain, encrypted, and packed with zstd. Each run writes and reads a file of its own of just these bytes
 * with direct I/O, before the tier and after it: rates of a shared drive come and go, so it is the ratio that counts.
 * Bytes of a packed restore are those that it delivers. Every restored block is compared before it is timed.
 */
#define BENCH_NAME "bench_restore"
#define _GNU_SOURCE /* O_DIRECT */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "bench_common.h"
#include "bench_dir.h"
#include "firn/disk.h"

enum { LAYERS_MAX = 32, RUNS_MAX = 31, HEAD_DIM = 64, N_REQUESTS = 16 };

#define PART_BYTES (UINT64_C(1) << 20)

typedef struct geometry {
    const char *name;
    uint32_t n_layers, n_heads;
} geometry;

/* Keys and values of 64 tokens in f16 take 16 KiB a head and layer. */
static const geometry geometries[] = {
    { .name = "128 KiB", .n_layers = 8, .n_heads = 1 },
    { .name = "1 MiB", .n_layers = 8, .n_heads = 8 },
    { .name = "8 MiB", .n_layers = 32, .n_heads = 16 },
};

typedef enum form { PLAIN, ENCRYPTED, PACKED, N_FORMS } form;

static const char *const form_names[N_FORMS] = { "plain", "encrypted", "packed (zstd)" };

typedef struct bench {
    const char *parent;
    char dir[512], raw_path[600];
    uint64_t n_bytes;         /* of the records of one store */
    uint32_t n_runs;
    const geometry *geometry;
    form form;
    firn_pool *pool;
    firn_schema schema;
    firn_cache_options layers[LAYERS_MAX];
    firn_tier *tier;
    firn_token *tokens;
    uint32_t n_tokens;
    firn_cache *caches[LAYERS_MAX];
    uint8_t *buffer;          /* N_REQUESTS * PART_BYTES */
    double packed_share;      /* of the plain bytes */
} bench;

static double now_s(void)
{
    return (double)firni_now_ns(NULL) * 1e-9;
}

/* Median, least and most; sorts. */
static void print_rates(double *values, uint32_t n, double scale)
{
    qsort(values, n, sizeof *values, compare_doubles);
    printf("%6.2f (%.2f .. %.2f)", values[n / 2] * scale, values[0] * scale, values[n - 1] * scale);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* Sums of four uniform numbers: the exponents of activations, which is what packing finds something in. */
static void fill_values(uint64_t *state, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t x = mix(++*state);
        const uint32_t sum = (uint32_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
        values[i] = ((float)sum - 131070.0f) / 32768.0f;
    }
}

static void make_state(bench *b, uint64_t seed)
{
    const uint32_t width = b->geometry->n_heads * HEAD_DIM;
    float *values = malloc(2 * (size_t)FIRN_BLOCK_TOKENS * width * sizeof *values);
    firn_error err;
    if (values == NULL) {
        fail("state", "no memory");
    }
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        b->tokens[i] = (firn_token)(mix(seed * 1000003u + i) % 128256u);
    }
    for (uint32_t layer = 0; layer < b->geometry->n_layers; layer++) {
        uint64_t state = seed << 32 | layer << 24;
        firn_cache_destroy(b->caches[layer]);
        check_ok(firn_cache_create(&b->layers[layer], b->pool, NULL, &b->caches[layer], &err), &err);
        check_ok(firn_cache_add_row(b->caches[layer], &err), &err);
        for (uint32_t at = 0; at < b->n_tokens; at += FIRN_BLOCK_TOKENS) {
            const uint32_t n = FIRN_BLOCK_TOKENS;
            fill_values(&state, values, 2 * (size_t)n * width);
            const firn_append_input input = { .k = values, .v = values + (size_t)n * width };
            check_ok(firn_cache_append(b->caches[layer], &input, &n, NULL, &err), &err);
        }
    }
    free(values);
}

static void compare_state(const bench *b, const firn_restored *restored)
{
    if (restored->n_tokens != b->n_tokens || restored->n_caches != b->geometry->n_layers) {
        fail("restore", "other state than was stored");
    }
    for (uint32_t layer = 0; layer < restored->n_caches; layer++) {
        const firn_row_view a = firn_cache_view_row(b->caches[layer], 0);
        const firn_row_view r = firn_cache_view_row(restored->caches[layer], 0);
        for (uint32_t i = 0; i < a.n_blocks; i++) {
            if (memcmp(firn_block_data(a.blocks[i]), firn_block_data(r.blocks[i]), firn_block_bytes(a.blocks[i])) !=
                0) {
                fail("restore", "other bits than were stored");
            }
        }
    }
}

/* ---- the drive --------------------------------------------------------------------------------------------------- */

static int open_raw(const bench *b, int flags)
{
    int fd = open(b->raw_path, flags | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) { /* a file system without direct I/O: then the tier has none either */
        fd = open(b->raw_path, flags | O_CLOEXEC, 0600);
    }
    if (fd < 0) {
        fail(b->raw_path, "cannot be opened");
    }
    return fd;
}

/* One after the other, as the tier's only writer writes, and one sync. */
static double write_raw(const bench *b)
{
    const int fd = open_raw(b, O_WRONLY | O_CREAT | O_TRUNC);
    const double started = now_s();
    for (uint64_t at = 0; at < b->n_bytes; at += PART_BYTES) {
        if (pwrite(fd, b->buffer + at / PART_BYTES % N_REQUESTS * PART_BYTES, PART_BYTES, (off_t)at) !=
            (ssize_t)PART_BYTES) {
            fail(b->raw_path, "cannot be written");
        }
    }
    if (fdatasync(fd) != 0) {
        fail(b->raw_path, "cannot be synced");
    }
    const double elapsed = now_s() - started;
    (void)close(fd);
    return elapsed;
}

/* All requests of 1 MiB at once, through the seam that the tier reads with, which keeps the device busy. What is read
 * is not looked at, so that requests may share memory. */
static double read_raw(const bench *b)
{
    const firn_io *io = firn_io_default();
    const uint32_t n = (uint32_t)(b->n_bytes / PART_BYTES);
    struct iovec *parts = malloc(n * sizeof *parts);
    firn_io_read *reads = malloc(n * sizeof *reads);
    if (parts == NULL || reads == NULL) {
        fail("raw read", "no memory");
    }
    const int fd = open_raw(b, O_RDONLY);
    for (uint32_t i = 0; i < n; i++) {
        parts[i] = (struct iovec){ .iov_base = b->buffer + i % N_REQUESTS * PART_BYTES, .iov_len = PART_BYTES };
        reads[i] = (firn_io_read){ .fd = fd, .offset = i * PART_BYTES, .iov = &parts[i], .n_iov = 1 };
    }
    const double started = now_s();
    if (io->read_batch(io->ctx, reads, n, NULL, NULL) != 0) {
        fail(b->raw_path, "cannot be read");
    }
    const double elapsed = now_s() - started;
    (void)close(fd);
    free(reads);
    free(parts);
    return elapsed;
}

/* ---- the tier ---------------------------------------------------------------------------------------------------- */

static void open_tier(bench *b)
{
    static const uint8_t key[FIRN_DISK_KEY_BYTES] = { 1, 2, 3 };
    firn_error err;
    const firn_disk_options options = { .dir = b->dir,
                                        .schema = &b->schema,
                                        .pool = b->pool,
                                        .budget_bytes = UINT64_C(1) << 40,
                                        .min_free_bytes = FIRN_DISK_NO_RESERVE,
                                        .demote_idle_ns = b->form == PACKED ? 1 : 0,
                                        .key = b->form == ENCRYPTED ? key : NULL };
    check_ok(firn_disk_open(&options, NULL, &b->tier, &err), &err);
}

static double store(bench *b)
{
    firn_reason reason;
    const firn_store_input input = { .tokens = b->tokens,
                                     .n_tokens = b->n_tokens,
                                     .caches = (const firn_cache *const *)b->caches,
                                     .n_caches = b->geometry->n_layers };
    const double started = now_s();
    if (!firn_tier_store(b->tier, &input, &reason)) {
        fail("store", firn_reason_name(reason));
    }
    return now_s() - started;
}

/* Found and read; the first time also compared. */
static double restore(bench *b, bool compares)
{
    firn_restored restored;
    const double started = now_s();
    const firn_match match = firn_tier_find_exact(b->tier, b->tokens, b->n_tokens, NULL);
    if (match.handle == NULL) {
        fail("lookup", firn_reason_name(match.reason));
    }
    const firn_reason reason = firn_tier_restore(b->tier, match.handle, 0, &restored);
    const double elapsed = now_s() - started;
    if (reason != FIRN_REASON_NONE) {
        fail("restore", firn_reason_name(reason));
    }
    if (compares) {
        compare_state(b, &restored);
    }
    firn_restored_deinit(&restored);
    firn_tier_release(b->tier, match.handle);
    return elapsed;
}

static void pack(bench *b)
{
    firn_disk_demote_report report;
    firn_error err;
    check_ok(firn_disk_demote(b->tier, &report, &err), &err);
    if (report.n_demoted == 0) {
        fail("demotion", "nothing was packed");
    }
    b->packed_share = (double)report.n_bytes / (double)report.plain_bytes;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct samples {
    double store[RUNS_MAX], store_ratio[RUNS_MAX], restore[RUNS_MAX], restore_ratio[RUNS_MAX];
} samples;

/* One new chain. The raw times are means of before and after: whoever comes first after a sync meets a busier drive. */
static void run_once(bench *b, int run, samples *out)
{
    const double n = (double)b->n_bytes;
    make_state(b, (uint64_t)b->form * 100 + (uint64_t)(run + 2));
    double raw_write = write_raw(b);
    const double stored = store(b);
    raw_write = (raw_write + write_raw(b)) / 2.0;
    if (b->form == PACKED) {
        pack(b);
    }
    double raw_read = read_raw(b);
    const double restored = restore(b, run < 0);
    raw_read = (raw_read + read_raw(b)) / 2.0;
    if (run >= 0) {
        out->store[run] = n / stored;
        out->store_ratio[run] = raw_write / stored;
        out->restore[run] = n / restored;
        out->restore_ratio[run] = raw_read / restored;
    }
}

static void run_form(bench *b)
{
    samples s;
    open_tier(b);
    for (int run = -1; run < (int)b->n_runs; run++) { /* the first one is not counted: it touches the memory */
        run_once(b, run, &s);
    }
    firn_tier_destroy(b->tier);
    bench_remove_store(b->dir);
    (void)unlink(b->raw_path);
    printf("  %-14s", form_names[b->form]);
    if (b->form != PACKED) {
        printf(" store ");
        print_rates(s.store, b->n_runs, 1e-9);
        printf(" GB/s, of raw ");
        print_rates(s.store_ratio, b->n_runs, 1.0);
    } else {
        printf(" at %.2f of the bytes", b->packed_share);
    }
    printf("; restore ");
    print_rates(s.restore, b->n_runs, 1e-9);
    printf(" GB/s, of raw ");
    print_rates(s.restore_ratio, b->n_runs, 1.0);
    printf("\n");
    (void)fflush(stdout);
}

static void run_geometry(bench *b)
{
    const geometry *g = b->geometry;
    firn_error err;
    const uint64_t record_bytes = (uint64_t)g->n_layers * g->n_heads * HEAD_DIM * FIRN_BLOCK_TOKENS * 2u * 2u;
    const uint64_t n_records = b->n_bytes > record_bytes ? b->n_bytes / record_bytes : 1;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        b->layers[i] = (firn_cache_options){
            .layout = "kv:plain", .dtype = FIRN_DTYPE_F16, .n_kv_heads = g->n_heads, .head_dim = HEAD_DIM
        };
        b->caches[i] = NULL;
    }
    b->n_bytes = n_records * record_bytes;
    b->n_tokens = (uint32_t)n_records * FIRN_BLOCK_TOKENS;
    b->schema = (firn_schema){ .layers = b->layers, .n_layers = g->n_layers, .identity_text = "weights: none\n" };
    memset(b->schema.identity.bytes, 7, sizeof b->schema.identity.bytes);
    b->tokens = malloc(b->n_tokens * sizeof *b->tokens);
    const firn_pool_options pool_options = { .budget_bytes = 3 * b->n_bytes + (UINT64_C(64) << 20) };
    check_ok(firn_pool_create(&pool_options, NULL, &b->pool, &err), &err);
    if (b->tokens == NULL) {
        fail("tokens", "no memory");
    }
    printf("records of %s, %" PRIu64 " of them, %.0f MiB\n", g->name, n_records, (double)b->n_bytes / 1048576.0);
    for (b->form = PLAIN; b->form < N_FORMS; b->form++) {
        run_form(b);
    }
    for (uint32_t i = 0; i < g->n_layers; i++) {
        firn_cache_destroy(b->caches[i]);
    }
    firn_pool_destroy(b->pool);
    free(b->tokens);
}

int main(int argc, char **argv)
{
    bench b = { .parent = "/var/tmp", .n_bytes = UINT64_C(128) << 20, .n_runs = 7 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) {
            b.n_bytes = UINT64_C(1) << 20;
            b.n_runs = 1;
        } else if (strcmp(argv[i], "--bytes") == 0 && i + 1 < argc) {
            b.n_bytes = strtoull(argv[++i], NULL, 10) << 20;
        } else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc) {
            b.n_runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            b.parent = argv[++i];
        } else {
            b.n_runs = 0;
        }
    }
    if (b.n_runs == 0 || b.n_runs > RUNS_MAX || b.n_bytes < PART_BYTES || strlen(b.parent) > 400) {
        fprintf(stderr, "usage: bench_restore [--tiny] [--bytes MIB] [--runs 1..%d] [--dir DIR]\n", RUNS_MAX);
        return 2;
    }
    (void)snprintf(b.dir, sizeof b.dir, "%.400s/firn-bench-restore-%ld", b.parent, (long)getpid());
    (void)snprintf(b.raw_path, sizeof b.raw_path, "%.500s.raw", b.dir);
    b.buffer = firni_alloc_aligned(NULL, N_REQUESTS * PART_BYTES, FIRN_BLOCK_ALIGN);
    if (b.buffer == NULL) {
        fail("buffer", "no memory");
    }
    for (uint64_t i = 0; i < N_REQUESTS * PART_BYTES; i++) {
        b.buffer[i] = (uint8_t)mix(i); /* a drive may be fast with zeros */
    }
    const uint64_t n_bytes = b.n_bytes;
    for (size_t i = 0; i < sizeof geometries / sizeof geometries[0]; i++) {
        b.geometry = &geometries[i];
        b.n_bytes = n_bytes;
        run_geometry(&b);
    }
    firni_free(NULL, b.buffer);
    return 0;
}
