/*
 * What write-behind costs rows that decode: the same requests through an engine without a tier and through one that
 * stores in a disk tier all that they compute.
 *
 *   bench_write_behind [--tiny] [-m MODEL.gguf] [--threads N] [--rows N] [--requests N] [--runs N] [--dir DIR]
 *
 * Each row answers one request after the other. What a request leaves is put into the tree at its end and stored behind
 * the next one, so that the tier always has something to write. Runs alternate, and which comes first does too: the
 * ratio of the two of each run is what counts. The answers are compared.
 */
#define BENCH_NAME "bench_write_behind"
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "bench_common.h"
#include "bench_dir.h"
#include "firn/disk.h"
#include "firn/engine.h"
#include "firn/model.h"
#include "firn/workers.h"

enum { ROWS_MAX = 16, RUNS_MAX = 63, N_PROMPT = 16, N_ANSWER = 112 };

#define FLUSH_NS (UINT64_C(60) * 1000000000u)

struct bench;

typedef struct row {
    struct bench *bench;
    uint32_t n_asked;
    uint64_t digest;           /* of the tokens heard; the engine's thread */
    bool is_running;           /* guarded by bench.mutex */
} row;

typedef struct bench {
    const char *model_path, *parent;
    uint32_t n_threads, n_rows, n_requests, n_runs;
    char dir[512];
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    firn_finish finish;        /* of the last request; guarded by mutex */
    row rows[ROWS_MAX];
} bench;

/* One pass over all requests. */
typedef struct pass {
    double rate;               /* tokens/s */
    uint64_t digest;
    uint64_t written_bytes, n_stores;
} pass;

static void print_sample(const char *what, double *values, uint32_t n, const char *unit)
{
    qsort(values, n, sizeof *values, compare_doubles);
    printf("  %-28s %9.3f %s   (%.3f .. %.3f)\n", what, values[n / 2], unit, values[0], values[n - 1]);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const firn_event *event)
{
    row *r = ctx;
    if (event->kind == FIRN_EVENT_TOKEN) {
        r->digest = mix(r->digest ^ event->token);
        return;
    }
    (void)pthread_mutex_lock(&r->bench->mutex);
    r->is_running = false;
    r->bench->finish = event->finish;
    (void)pthread_cond_signal(&r->bench->ended);
    (void)pthread_mutex_unlock(&r->bench->mutex);
}

/* No two prompts of a run are alike, so that nothing is found and all of it is new to the tier. */
static void ask(bench *b, firn_engine *engine, row *r, uint64_t seed)
{
    const uint32_t n_vocab = firn_model_get_info(b->model)->n_vocab;
    firn_token prompt[N_PROMPT];
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] =
            (firn_token)(mix(seed * 4096u + r->n_asked * 64u + (uint64_t)(r - b->rows) * 262144u + i) % n_vocab);
    }
    const firn_request request = { .prompt = prompt,
                                   .n_prompt = N_PROMPT,
                                   .max_tokens = N_ANSWER,
                                   .ignore_end = true,
                                   .on_event = on_event,
                                   .ctx = r };
    uint64_t id;
    firn_error err;
    r->n_asked++;
    r->is_running = true;
    check_ok(firn_engine_submit(engine, &request, &id, &err), &err);
}

/* Until each row has had its requests. A row that has ended goes on at once. */
static void ask_all(bench *b, firn_engine *engine, uint64_t seed)
{
    for (uint32_t i = 0; i < b->n_rows; i++) {
        b->rows[i] = (row){ .bench = b };
        ask(b, engine, &b->rows[i], seed);
    }
    bool any = true;
    (void)pthread_mutex_lock(&b->mutex);
    while (any) {
        any = false;
        row *idle = NULL;
        for (uint32_t i = 0; i < b->n_rows; i++) {
            any = any || b->rows[i].is_running || b->rows[i].n_asked < b->n_requests;
            idle = !b->rows[i].is_running && b->rows[i].n_asked < b->n_requests ? &b->rows[i] : idle;
        }
        if (b->finish == FIRN_FINISH_ERROR) {
            fail("request", "it failed");
        }
        if (idle != NULL) {
            (void)pthread_mutex_unlock(&b->mutex);
            ask(b, engine, idle, seed);
            (void)pthread_mutex_lock(&b->mutex);
        } else if (any) {
            (void)pthread_cond_wait(&b->ended, &b->mutex);
        }
    }
    (void)pthread_mutex_unlock(&b->mutex);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static pass run_pass(bench *b, bool has_tier, uint64_t seed)
{
    firn_error err;
    firn_tier *tier = NULL;
    firn_engine *engine;
    const firn_disk_options disk = { .dir = b->dir,
                                     .schema = firn_model_schema(b->model),
                                     .pool = b->pool,
                                     .budget_bytes = UINT64_C(1) << 40,
                                     .min_free_bytes = FIRN_DISK_NO_RESERVE };
    if (has_tier) {
        check_ok(firn_disk_open(&disk, NULL, &tier, &err), &err);
    }
    const firn_engine_options options = { .model = b->model,
                                          .pool = b->pool,
                                          .tier = tier,
                                          .ctx_tokens_max = N_PROMPT + N_ANSWER,
                                          .batch_rows_max = b->n_rows };
    check_ok(firn_engine_create(&options, NULL, &engine, &err), &err);
    const uint64_t began_ns = firni_now_ns(NULL);
    ask_all(b, engine, seed);
    const double elapsed = (double)(firni_now_ns(NULL) - began_ns) * 1e-9;
    pass out = { .rate = (double)b->n_rows * b->n_requests * N_ANSWER / elapsed };
    for (uint32_t i = 0; i < b->n_rows; i++) {
        out.digest = mix(out.digest ^ b->rows[i].digest);
    }
    firn_tier_stats stats = { 0 };
    if (has_tier) { /* while it went on: what the flush adds is not part of it */
        firn_tier_get_stats(tier, &stats);
    }
    out.written_bytes = stats.written_bytes;
    out.n_stores = stats.n_stores;
    firn_flush_report report;
    firn_engine_destroy(engine, FLUSH_NS, &report);
    firn_tier_destroy(tier);
    if (!report.durable) {
        fail("flush", "not all of it was stored");
    }
    return out;
}

static void run_all(bench *b)
{
    double off[RUNS_MAX], on[RUNS_MAX], ratios[RUNS_MAX], written[RUNS_MAX];
    for (int run = -1; run < (int)b->n_runs; run++) { /* the first one is not counted: it touches the memory */
        const bool on_first = run % 2 == 0;
        const uint64_t seed = (uint64_t)(run + 2);
        pass with = { 0 }, without = { 0 };
        (void)snprintf(b->dir, sizeof b->dir, "%.400s/firn-bench-XXXXXX", b->parent);
        if (mkdtemp(b->dir) == NULL) {
            fail(b->parent, "cannot make a directory in it");
        }
        with = on_first ? run_pass(b, true, seed) : with;
        without = run_pass(b, false, seed);
        with = on_first ? with : run_pass(b, true, seed);
        bench_remove_store(b->dir);
        if (with.digest != without.digest) {
            fail("answers", "they differ with and without a tier");
        }
        if (with.n_stores == 0) {
            fail("write-behind", "nothing was written");
        }
        if (run >= 0) {
            off[run] = without.rate;
            on[run] = with.rate;
            ratios[run] = with.rate / without.rate;
            written[run] = (double)with.written_bytes * with.rate / 1e6 / (b->n_rows * b->n_requests * N_ANSWER);
        }
    }
    print_sample("without a tier", off, b->n_runs, "tokens/s");
    print_sample("with write-behind", on, b->n_runs, "tokens/s");
    print_sample("ratio of each run", ratios, b->n_runs, "");
    print_sample("written meanwhile", written, b->n_runs, "MB/s");
}

/* Takes the flags; false: they are not understood. */
static bool parse(bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--tiny") == 0) {
            b->n_runs = 1;
            b->n_requests = 4;
            b->n_rows = 2;
            continue;
        }
        if (value == NULL) {
            return false;
        }
        const uint32_t number = (uint32_t)strtoul(value, NULL, 10);
        if (strcmp(argv[i], "-m") == 0) {
            b->model_path = value;
        } else if (strcmp(argv[i], "--dir") == 0) {
            b->parent = value;
        } else if (strcmp(argv[i], "--threads") == 0) {
            b->n_threads = number;
        } else if (strcmp(argv[i], "--rows") == 0) {
            b->n_rows = number;
        } else if (strcmp(argv[i], "--requests") == 0) {
            b->n_requests = number;
        } else if (strcmp(argv[i], "--runs") == 0) {
            b->n_runs = number;
        } else {
            return false;
        }
        i++;
    }
    return b->n_threads > 0 && b->n_rows > 0 && b->n_rows <= ROWS_MAX && b->n_requests > 0 && b->n_runs > 0 &&
           b->n_runs <= RUNS_MAX;
}

int main(int argc, char **argv)
{
    bench b = { .model_path = "models/firn-tiny-q8_0.gguf", .parent = "/var/tmp", .n_threads = 2, .n_rows = 4,
                .n_requests = 8, .n_runs = 11 };
    firn_error err;
    if (!parse(&b, argc, argv)) {
        fprintf(stderr,
                "usage: bench_write_behind [--tiny] [-m MODEL.gguf] [--threads N] [--rows 1..%d] [--requests N] "
                "[--runs 1..%d] [--dir DIR]\n",
                ROWS_MAX, RUNS_MAX);
        return 2;
    }
    (void)pthread_mutex_init(&b.mutex, NULL);
    (void)pthread_cond_init(&b.ended, NULL);
    check_ok(firn_workers_create(b.n_threads, NULL, &b.workers, &err), &err);
    const firn_model_options model_options = { .path = b.model_path, .workers = b.workers };
    check_ok(firn_model_open(&model_options, NULL, &b.model, &err), &err);
    const firn_pool_options pool_options = { .budget_bytes = UINT64_C(1) << 30 };
    check_ok(firn_pool_create(&pool_options, NULL, &b.pool, &err), &err);
    printf("%s, %" PRIu32 " rows, %" PRIu32 " requests each of %d + %d tokens\n", b.model_path, b.n_rows, b.n_requests,
           N_PROMPT, N_ANSWER);
    run_all(&b);
    firn_pool_destroy(b.pool);
    firn_model_close(b.model);
    firn_workers_destroy(b.workers);
    (void)pthread_cond_destroy(&b.ended);
    (void)pthread_mutex_destroy(&b.mutex);
    return 0;
}
