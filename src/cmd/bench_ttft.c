/*
 * Time to first token of one long prompt, through the engine as a server would run it:
 *
 *   1. cold     nothing is cached; the engine also publishes and stores the state
 *   2. ram      the same prompt again
 *   3. disk     engine and tier are closed (all stored, RAM let go), the page cache of the files is dropped, both are
 *               opened again, the same prompt; before each, the same files are read plainly for comparison
 *
 * The greedy answers of 2 and 3 must equal that of 1 token for token, and the cache must have served the prompt: else
 * there is nothing to time.
 */
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/cache_files.h"

#define N_ANSWER 16u /* tokens compared: a wrong state shows within one or two */
#define DISK_BUDGET_BYTES (UINT64_C(1) << 40) /* nothing is to be evicted here */
#define FLUSH_NS (UINT64_C(120) * 1000000000u)

typedef struct ttft_bench {
    firni_bench *bench;
    char dir[512];
    firn_token *prompt;
    firn_tier *tier;
    firn_engine *engine;
    firn_token cold_answer[N_ANSWER];
} ttft_bench;

/* One request and what its events left behind. */
typedef struct probe {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ended;                 /* guarded by mutex, like what follows */
    firn_token answer[N_ANSWER];
    uint32_t n_answer;
    firn_finish finish;
    firn_usage usage;
    firn_error error;
} probe;

static void on_event(void *ctx, const firn_event *event)
{
    probe *p = ctx;
    (void)pthread_mutex_lock(&p->mutex);
    if (event->kind == FIRN_EVENT_TOKEN && p->n_answer < N_ANSWER) {
        p->answer[p->n_answer++] = event->token;
    }
    if (event->kind == FIRN_EVENT_END) {
        p->ended = true;
        p->finish = event->finish;
        p->usage = *event->usage;
        if (event->error != NULL) {
            p->error = *event->error;
        }
        (void)pthread_cond_signal(&p->changed);
    }
    (void)pthread_mutex_unlock(&p->mutex);
}

/* Runs the prompt once; p holds the result. */
static firn_status ask(const ttft_bench *t, probe *p, firn_error *err)
{
    *p = (probe){ .ended = false };
    (void)pthread_mutex_init(&p->mutex, NULL);
    (void)pthread_cond_init(&p->changed, NULL);
    const firn_request request = {
        .prompt = t->prompt,
        .n_prompt = t->bench->options.n_ttft,
        .max_tokens = N_ANSWER,
        .ignore_end = true,
        .on_event = on_event,
        .ctx = p,
    };
    uint64_t id;
    firn_status status = firn_engine_submit(t->engine, &request, &id, err);
    if (status == FIRN_OK) {
        (void)pthread_mutex_lock(&p->mutex);
        while (!p->ended) {
            (void)pthread_cond_wait(&p->changed, &p->mutex);
        }
        (void)pthread_mutex_unlock(&p->mutex);
        if (p->finish == FIRN_FINISH_ERROR) {
            status = firni_fail(err, p->error.status, "%s", p->error.message);
        }
    }
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->mutex);
    return status;
}

/* Tier and engine alone are opened again between runs. The model stays: loading weights is no part of a restore. */
static firn_status open_engine(ttft_bench *t, firn_error *err)
{
    const firni_bench *bench = t->bench;
    const firn_disk_options disk = {
        .dir = t->dir,
        .schema = firn_model_schema(bench->stack->model),
        .pool = bench->stack->pool,
        .budget_bytes = DISK_BUDGET_BYTES,
    };
    firn_status status = firn_disk_open(&disk, bench->env, &t->tier, err);
    if (status == FIRN_OK) {
        const firn_engine_options options = {
            .model = bench->stack->model,
            .pool = bench->stack->pool,
            .tier = t->tier,
            .ctx_tokens_max = bench->options.n_ttft + N_ANSWER,
            .batch_rows_max = 1,
            .chunk_tokens_max = bench->options.n_chunk,
        };
        status = firn_engine_create(&options, bench->env, &t->engine, err);
    }
    return status;
}

/* Closing flushes; state that did not reach the disk would make the next run a cold one. */
static firn_status close_engine(ttft_bench *t, firn_error *err)
{
    firn_flush_report report = { .durable = true };
    if (t->engine != NULL) {
        firn_engine_destroy(t->engine, FLUSH_NS, &report);
    }
    firn_tier_destroy(t->tier);
    t->engine = NULL;
    t->tier = NULL;
    return report.durable ? FIRN_OK
                          : firni_fail(err, FIRN_ERR_STATE, "%llu prefixes could not be stored",
                                       (unsigned long long)(report.n_missing + report.n_failed));
}

/* The answer must be the cold one, and at least nine tenths of the prompt must have come from where it should. */
static firn_status check(const ttft_bench *t, const probe *p, const char *from, uint32_t n_cached, firn_error *err)
{
    const uint32_t n_prompt = t->bench->options.n_ttft;
    if (p->n_answer != N_ANSWER || memcmp(p->answer, t->cold_answer, sizeof t->cold_answer) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "the answer from %s differs from the cold one", from);
    }
    if (n_cached < n_prompt - n_prompt / 10) {
        return firni_fail(err, FIRN_ERR_STATE, "only %u of %u prompt tokens came from %s (%s)", n_cached, n_prompt,
                          from, firn_reason_name(p->usage.cache.reason));
    }
    return FIRN_OK;
}

/* Cold is measured once: only the first time is cold, and a second prompt would take minutes more. */
static firn_status measure_cold_and_ram(ttft_bench *t, firni_bench_ttft *out, firn_error *err)
{
    probe p;
    firn_status status = ask(t, &p, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (p.usage.cache.n_tokens != 0 || p.n_answer != N_ANSWER) {
        return firni_fail(err, FIRN_ERR_STATE, "the first run was not cold, or its answer is short");
    }
    memcpy(t->cold_answer, p.answer, sizeof t->cold_answer);
    firni_sample_add(&out->cold_seconds, (double)p.usage.first_token_ns * 1e-9);
    for (uint32_t run = 0; run < t->bench->options.n_runs && status == FIRN_OK; run++) {
        status = ask(t, &p, err);
        if (status == FIRN_OK) {
            status = check(t, &p, "RAM", p.usage.cache.ram_tokens, err);
        }
        if (status == FIRN_OK) {
            out->ram_tokens = p.usage.cache.ram_tokens;
            firni_sample_add(&out->ram_seconds, (double)p.usage.first_token_ns * 1e-9);
        }
    }
    return status;
}

/* The plain read and the restore alternate, so that both see the same weather on the machine. */
static firn_status measure_disk_once(ttft_bench *t, firni_bench_ttft *out, firn_error *err)
{
    double raw_rate;
    firni_bench_drop_cached(t->dir);
    firn_status status = firni_bench_read_files(t->bench->env, t->dir, &raw_rate, &out->is_direct, err);
    if (status == FIRN_OK) {
        firni_sample_add(&out->raw_rate, raw_rate);
        firni_bench_drop_cached(t->dir);
        status = open_engine(t, err);
    }
    probe p;
    if (status == FIRN_OK) {
        status = ask(t, &p, err);
    }
    if (status == FIRN_OK) {
        status = check(t, &p, "disk", p.usage.cache.disk_tokens, err);
    }
    if (status == FIRN_OK) {
        firn_tier_stats stats;
        firn_tier_get_stats(t->tier, &stats);
        out->disk_tokens = p.usage.cache.disk_tokens;
        out->restored_bytes = stats.read_bytes;
        firni_sample_add(&out->disk_seconds, (double)p.usage.first_token_ns * 1e-9);
        firni_sample_add(&out->restore_rate, (double)stats.read_bytes / ((double)p.usage.cache.restore_ns * 1e-9));
    }
    firn_error close_err = { 0 };
    const firn_status closed = close_engine(t, &close_err);
    if (status == FIRN_OK && closed != FIRN_OK) {
        status = firni_fail(err, closed, "%s", close_err.message);
    }
    return status;
}

firn_status firni_bench_measure_ttft(firni_bench *bench, firn_error *err)
{
    firni_bench_ttft *out = &bench->ttft;
    ttft_bench t = { .bench = bench };
    *out = (firni_bench_ttft){ .n_tokens = bench->options.n_ttft, .n_answer = N_ANSWER };
    const int len = snprintf(t.dir, sizeof t.dir, "%s/firn-bench-XXXXXX", bench->options.dir);
    if (len < 0 || (size_t)len >= sizeof t.dir || mkdtemp(t.dir) == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "cannot make a directory in %.300s; choose another with --cache-dir",
                          bench->options.dir);
    }
    firn_status status = FIRN_OK;
    t.prompt = firni_calloc(bench->env, bench->options.n_ttft, sizeof *t.prompt);
    if (t.prompt == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a prompt of %u tokens", bench->options.n_ttft);
    }
    if (status == FIRN_OK) {
        firni_bench_fill_tokens(bench, 1000, t.prompt, bench->options.n_ttft);
        status = open_engine(&t, err);
    }
    if (status == FIRN_OK) {
        status = measure_cold_and_ram(&t, out, err);
    }
    firn_error close_err = { 0 };
    const firn_status closed = close_engine(&t, &close_err);
    if (status == FIRN_OK && closed != FIRN_OK) {
        status = firni_fail(err, closed, "%s", close_err.message);
    }
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        status = measure_disk_once(&t, out, err);
    }
    firni_free(bench->env, t.prompt);
    (void)firni_cache_remove_dir(t.dir);
    return status;
}
