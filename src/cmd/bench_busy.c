/*
 * What a restore costs others: rows that decode while it runs, and the memory of the process at its peak.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_PROMPT     16u
#define N_TOKENS_MAX 4096u
#define PAUSE_NS     2000000

static void on_event(void *ctx, const firn_event *event)
{
    firni_bench_rows *rows = ctx;
    if (event->kind == FIRN_EVENT_TOKEN) {
        (void)atomic_fetch_add(&rows->n_tokens, 1);
    } else {
        (void)atomic_fetch_add(&rows->n_ended, 1);
    }
}

static void sleep_a_little(void)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = PAUSE_NS };
    (void)nanosleep(&pause, NULL);
}

firn_status firni_bench_rows_start(firni_bench_rows *rows, const firni_bench *bench, firn_engine *engine,
                                   uint32_t ctx_tokens, firn_error *err)
{
    *rows = (firni_bench_rows){ .engine = engine };
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < FIRNI_BENCH_BUSY_ROWS && status == FIRN_OK; i++) {
        firn_token prompt[N_PROMPT];
        const uint32_t n_left = ctx_tokens - N_PROMPT;
        firni_bench_fill_tokens(bench, 7000 + i, prompt, N_PROMPT);
        const firn_request request = {
            .prompt = prompt,
            .n_prompt = N_PROMPT,
            .max_tokens = n_left < N_TOKENS_MAX ? n_left : N_TOKENS_MAX,
            .ignore_end = true,
            .no_cache = true,
            .on_event = on_event,
            .ctx = rows,
        };
        status = firn_engine_submit(engine, &request, &rows->ids[i], err);
        rows->n += status == FIRN_OK;
    }
    /* All of them past their prompts, so that each step is like the next. */
    while (status == FIRN_OK && atomic_load(&rows->n_tokens) < 4 * FIRNI_BENCH_BUSY_ROWS &&
           atomic_load(&rows->n_ended) == 0) {
        sleep_a_little();
    }
    return status;
}

void firni_bench_rows_stop(firni_bench_rows *rows)
{
    for (uint32_t i = 0; i < rows->n; i++) {
        firn_engine_cancel(rows->engine, rows->ids[i]);
    }
    while (atomic_load(&rows->n_ended) < rows->n) {
        sleep_a_little();
    }
}

double firni_bench_rows_rate(firni_bench_rows *rows, const firn_env *env, uint64_t for_ns)
{
    const uint64_t began_ns = firni_now_ns(env);
    const uint64_t n_before = atomic_load(&rows->n_tokens);
    while (firni_now_ns(env) - began_ns < for_ns) {
        sleep_a_little();
    }
    return (double)(atomic_load(&rows->n_tokens) - n_before) * 1e9 / (double)(firni_now_ns(env) - began_ns);
}

/* ---- memory ---- */

/* One line of /proc/self/status in bytes; 0 where there is no such file. */
static uint64_t status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    uint64_t bytes = 0;
    const size_t len = strlen(name);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, len) == 0 && line[len] == ':') {
            bytes = strtoull(line + len + 1, NULL, 10) * 1024u;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

void firni_bench_memory_begin(firni_bench_memory *memory, firn_pool *pool)
{
    FILE *file = fopen("/proc/self/clear_refs", "w"); /* 5: the peak starts again at what is resident now */
    memory->is_known = file != NULL && fputs("5", file) >= 0 && fclose(file) == 0;
    firn_pool_get_stats(pool, &memory->pool);
    memory->resident_bytes = status_bytes("VmRSS");
}

uint64_t firni_bench_memory_extra(const firni_bench_memory *memory, firn_pool *pool)
{
    firn_pool_stats now;
    firn_pool_get_stats(pool, &now);
    const uint64_t before = memory->pool.used_bytes + memory->pool.idle_bytes;
    const uint64_t after = now.used_bytes + now.idle_bytes;
    const uint64_t blocks_bytes = after > before ? after - before : 0;
    const uint64_t peak_bytes = status_bytes("VmHWM");
    const uint64_t known_bytes = memory->resident_bytes + blocks_bytes;
    return peak_bytes > known_bytes ? peak_bytes - known_bytes : 0;
}
