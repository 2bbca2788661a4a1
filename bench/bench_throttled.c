/*
 * A prompt whose state lies on a disk that has become slow: its time to first token beside that without a tier.
 *
 *   bench_throttled [--tiny] [-m MODEL.gguf] [--threads N] [--prompt TOKENS] [--mbps N] [--runs N] [--dir DIR]
 *
 * The disk reads at 5 MB/s, by a seam between the tier and the system. Each run computes a prompt without a tier,
 * stores its state, opens the tier anew and asks again, first of an engine that knows nothing of the disk, then of one
 * that has seen it be slow. What is restored in less time than computing takes may well be restored. The answers are
 * compared.
 */
#define BENCH_NAME "bench_throttled"
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "bench_common.h"
#include "bench_dir.h"
#include "firn/disk.h"
#include "firn/engine.h"
#include "firn/model.h"
#include "firn/workers.h"

enum { RUNS_MAX = 63, N_ANSWER = 4 };

#define FLUSH_NS (UINT64_C(120) * 1000000000u)

typedef struct bench {
    const char *model_path, *parent;
    uint32_t n_threads, n_prompt, mb_per_second, n_runs;
    char dir[512];
    firn_io io;                /* the system's, but for the reads of restores */
    atomic_bool is_slow;
    firn_env env;
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    firn_token *prompt;
} bench;

typedef struct answer {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool has_ended;            /* guarded by mutex, like the rest */
    uint32_t n_tokens;
    firn_token tokens[N_ANSWER];
    firn_finish finish;
    firn_usage usage;
} answer;

static void print_sample(const char *what, double *values, uint32_t n, const char *unit)
{
    qsort(values, n, sizeof *values, compare_doubles);
    printf("  %-36s %8.3f %s   (%.3f .. %.3f)\n", what, values[n / 2], unit, values[0], values[n - 1]);
}

/* Each request takes what its bytes take at that rate, one after the other. */
static int slow_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                           void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    const bench *b = ctx;
    const firn_io *inner = firn_io_default();
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n_reads; i++) {
        for (uint32_t v = 0; v < reads[i].n_iov; v++) {
            n_bytes += reads[i].iov[v].iov_len;
        }
    }
    if (atomic_load(&b->is_slow)) {
        const uint64_t ns = n_bytes * 1000u / b->mb_per_second;
        const struct timespec pause = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
        (void)nanosleep(&pause, NULL);
    }
    return inner->read_batch(inner->ctx, reads, n_reads, done, done_ctx);
}

static void on_event(void *ctx, const firn_event *event)
{
    answer *a = ctx;
    (void)pthread_mutex_lock(&a->mutex);
    if (event->kind == FIRN_EVENT_TOKEN && a->n_tokens < N_ANSWER) {
        a->tokens[a->n_tokens++] = event->token;
    } else if (event->kind == FIRN_EVENT_END) {
        a->finish = event->finish;
        a->usage = *event->usage;
        a->has_ended = true;
        (void)pthread_cond_signal(&a->ended);
    }
    (void)pthread_mutex_unlock(&a->mutex);
}

static answer ask(const bench *b, firn_engine *engine, uint64_t seed)
{
    const uint32_t n_vocab = firn_model_get_info(b->model)->n_vocab;
    for (uint32_t i = 0; i < b->n_prompt; i++) {
        b->prompt[i] = (firn_token)(mix(seed * 1000003u + i) % n_vocab);
    }
    answer a = { .mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER };
    const firn_request request = { .prompt = b->prompt, .n_prompt = b->n_prompt, .max_tokens = N_ANSWER,
                                   .ignore_end = true, .on_event = on_event, .ctx = &a };
    uint64_t id;
    firn_error err;
    check_ok(firn_engine_submit(engine, &request, &id, &err), &err);
    (void)pthread_mutex_lock(&a.mutex);
    while (!a.has_ended) {
        (void)pthread_cond_wait(&a.ended, &a.mutex);
    }
    (void)pthread_mutex_unlock(&a.mutex);
    if (a.finish == FIRN_FINISH_ERROR) {
        fail("request", "it failed");
    }
    return a;
}

typedef struct session {
    firn_tier *tier;
    firn_engine *engine;
} session;

static session open_session(bench *b, bool has_tier)
{
    session s = { .tier = NULL };
    firn_error err;
    const firn_disk_options disk = { .dir = b->dir,
                                     .schema = firn_model_schema(b->model),
                                     .pool = b->pool,
                                     .budget_bytes = UINT64_C(1) << 40,
                                     .min_free_bytes = FIRN_DISK_NO_RESERVE };
    if (has_tier) {
        check_ok(firn_disk_open(&disk, &b->env, &s.tier, &err), &err);
    }
    const firn_engine_options options = {
        .model = b->model, .pool = b->pool, .tier = s.tier, .ctx_tokens_max = b->n_prompt + N_ANSWER
    };
    check_ok(firn_engine_create(&options, &b->env, &s.engine, &err), &err);
    return s;
}

static void close_session(session *s)
{
    firn_flush_report report;
    firn_engine_destroy(s->engine, FLUSH_NS, &report);
    firn_tier_destroy(s->tier);
    if (!report.durable) {
        fail("flush", "not all of it was stored");
    }
}

static double first_token_s(const answer *a)
{
    return (double)a->usage.first_token_ns * 1e-9;
}

static void compare(const answer *a, const answer *b)
{
    if (memcmp(a->tokens, b->tokens, sizeof a->tokens) != 0) {
        fail("answers", "they differ with and without the disk");
    }
}

/* Two prompts a run, so that the second finds an engine that knows the disk. */
static void run_all(bench *b)
{
    double alone[RUNS_MAX], first[RUNS_MAX], next[RUNS_MAX], first_ratio[RUNS_MAX], next_ratio[RUNS_MAX];
    uint32_t n_restored = 0;
    for (uint32_t run = 0; run < b->n_runs; run++) {
        const uint64_t seeds[2] = { 2u * (uint64_t)run + 1, 2u * (uint64_t)run + 2 };
        answer cold[2];
        (void)snprintf(b->dir, sizeof b->dir, "%.400s/firn-bench-XXXXXX", b->parent);
        if (mkdtemp(b->dir) == NULL) {
            fail(b->parent, "cannot make a directory in it");
        }
        atomic_store(&b->is_slow, false);
        session s = open_session(b, true);
        (void)ask(b, s.engine, seeds[0]);
        (void)ask(b, s.engine, seeds[1]);
        close_session(&s);
        s = open_session(b, false);
        cold[0] = ask(b, s.engine, seeds[0]);
        cold[1] = ask(b, s.engine, seeds[1]);
        close_session(&s);
        atomic_store(&b->is_slow, true);
        s = open_session(b, true);
        const answer one = ask(b, s.engine, seeds[0]), two = ask(b, s.engine, seeds[1]);
        close_session(&s);
        bench_remove_store(b->dir);
        compare(&cold[0], &one);
        compare(&cold[1], &two);
        n_restored += one.usage.cache.disk_tokens > 0;
        n_restored += two.usage.cache.disk_tokens > 0;
        alone[run] = first_token_s(&cold[1]);
        first[run] = first_token_s(&one);
        next[run] = first_token_s(&two);
        first_ratio[run] = first_token_s(&one) / first_token_s(&cold[0]);
        next_ratio[run] = first_token_s(&two) / first_token_s(&cold[1]);
    }
    print_sample("without a tier", alone, b->n_runs, "s");
    print_sample("the first that meets the slow disk", first, b->n_runs, "s");
    print_sample("  of its time without a tier", first_ratio, b->n_runs, "");
    print_sample("the next", next, b->n_runs, "s");
    print_sample("  of its time without a tier", next_ratio, b->n_runs, "");
    printf("  %" PRIu32 " of %" PRIu32 " were restored\n", n_restored, 2 * b->n_runs);
}

static bool parse(bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--tiny") == 0) {
            b->n_runs = 1;
            b->n_prompt = 300;
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
        } else if (strcmp(argv[i], "--prompt") == 0) {
            b->n_prompt = number;
        } else if (strcmp(argv[i], "--mbps") == 0) {
            b->mb_per_second = number;
        } else if (strcmp(argv[i], "--runs") == 0) {
            b->n_runs = number;
        } else {
            return false;
        }
        i++;
    }
    return b->n_threads > 0 && b->n_prompt >= 2 * FIRN_BLOCK_TOKENS && b->mb_per_second > 0 && b->n_runs > 0 &&
           b->n_runs <= RUNS_MAX;
}

int main(int argc, char **argv)
{
    bench b = { .model_path = "models/firn-tiny-q8_0.gguf", .parent = "/var/tmp", .n_threads = 2, .n_prompt = 1024,
                .mb_per_second = 5, .n_runs = 3 };
    firn_error err;
    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "usage: bench_throttled [--tiny] [-m MODEL.gguf] [--threads N] [--prompt TOKENS] [--mbps N] "
                        "[--runs 1..%d] [--dir DIR]\n", RUNS_MAX);
        return 2;
    }
    b.io = *firn_io_default(); /* its other members do not look at their context */
    b.io.read_batch = slow_read_batch;
    b.io.ctx = &b;
    b.env = (firn_env){ .io = &b.io };
    b.prompt = malloc(b.n_prompt * sizeof *b.prompt);
    if (b.prompt == NULL) {
        fail("prompt", "no memory");
    }
    check_ok(firn_workers_create(b.n_threads, NULL, &b.workers, &err), &err);
    const firn_model_options model_options = { .path = b.model_path, .workers = b.workers };
    check_ok(firn_model_open(&model_options, NULL, &b.model, &err), &err);
    const firn_pool_options pool_options = { .budget_bytes = UINT64_C(1) << 30 };
    check_ok(firn_pool_create(&pool_options, &b.env, &b.pool, &err), &err);
    printf("%s, prompts of %" PRIu32 " tokens, a disk of %" PRIu32 " MB/s\n", b.model_path, b.n_prompt,
           b.mb_per_second);
    run_all(&b);
    firn_pool_destroy(b.pool);
    firn_model_close(b.model);
    firn_workers_destroy(b.workers);
    free(b.prompt);
    return 0;
}
