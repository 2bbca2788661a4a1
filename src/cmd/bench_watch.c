/*
 * Rows that decode until they are stopped, and when each of their tokens came: what others do meanwhile shows in the
 * time between two of them.
 */
#include <stdlib.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_ROWS_MAX   8u
#define N_ROW_PROMPT 16u
#define N_QUIET      64u /* tokens of each row before it is said to have started */
#define N_TIMES_MAX  (N_ROWS_MAX * FIRNI_BENCH_WATCH_TOKENS_MAX)

typedef struct listener {
    firni_bench_watch *watch;
    uint64_t last_ns; /* engine thread only */
} listener;

/* The time between a row's tokens, and when it ended. */
typedef struct interval {
    uint64_t end_ns, ns;
} interval;

struct firni_bench_watch {
    const firni_bench *bench;
    firn_engine *engine;
    interval *intervals; /* written by the engine's thread before n_intervals is */
    double *scratch;
    atomic_uint n_intervals;
    atomic_uint n_ended;
    uint32_t n_rows;
    uint64_t ids[N_ROWS_MAX];
    listener listeners[N_ROWS_MAX];
};

static void on_event(void *ctx, const firn_event *event)
{
    listener *l = ctx;
    firni_bench_watch *w = l->watch;
    if (event->kind == FIRN_EVENT_END) {
        (void)atomic_fetch_add(&w->n_ended, 1);
        return;
    }
    const uint64_t now_ns = firni_now_ns(w->bench->env);
    const uint32_t n = atomic_load(&w->n_intervals);
    if (l->last_ns != 0 && n < N_TIMES_MAX) {
        w->intervals[n] = (interval){ .end_ns = now_ns, .ns = now_ns - l->last_ns };
        atomic_store(&w->n_intervals, n + 1);
    }
    l->last_ns = now_ns;
}

static void wait_a_little(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

firn_status firni_bench_watch_create(const firni_bench *bench, firni_bench_watch **out, firn_error *err)
{
    *out = NULL;
    firni_bench_watch *watch = firni_calloc(bench->env, 1, sizeof *watch);
    if (watch != NULL) {
        watch->bench = bench;
        watch->intervals = firni_calloc(bench->env, N_TIMES_MAX, sizeof *watch->intervals);
        watch->scratch = firni_calloc(bench->env, N_TIMES_MAX, sizeof *watch->scratch);
    }
    if (watch == NULL || watch->intervals == NULL || watch->scratch == NULL) {
        firni_bench_watch_destroy(watch);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the times of %u tokens", N_TIMES_MAX);
    }
    *out = watch;
    return FIRN_OK;
}

void firni_bench_watch_destroy(firni_bench_watch *watch)
{
    if (watch != NULL) {
        const firn_env *env = watch->bench->env;
        firni_free(env, watch->intervals);
        firni_free(env, watch->scratch);
        firni_free(env, watch);
    }
}

firn_status firni_bench_watch_start(firni_bench_watch *watch, firn_engine *engine, uint32_t n_rows,
                                    const firn_sampling *sampling, uint32_t n_logprobs, firn_error *err)
{
    firn_status status = FIRN_OK;
    watch->engine = engine;
    watch->n_rows = 0;
    atomic_store(&watch->n_intervals, 0);
    atomic_store(&watch->n_ended, 0);
    for (uint32_t i = 0; i < n_rows && status == FIRN_OK; i++) {
        firn_token prompt[N_ROW_PROMPT];
        firni_bench_fill_tokens(watch->bench, 9000 + i, prompt, N_ROW_PROMPT);
        watch->listeners[i] = (listener){ .watch = watch };
        const firn_request request = {
            .prompt = prompt,
            .n_prompt = N_ROW_PROMPT,
            .max_tokens = FIRNI_BENCH_WATCH_TOKENS_MAX - N_ROW_PROMPT,
            .sampling = *sampling,
            .n_logprobs = n_logprobs,
            .ignore_end = true,
            .no_cache = true,
            .on_event = on_event,
            .ctx = &watch->listeners[i],
        };
        status = firn_engine_submit(engine, &request, &watch->ids[i], err);
        watch->n_rows += status == FIRN_OK;
    }
    while (status == FIRN_OK && atomic_load(&watch->n_intervals) < n_rows * N_QUIET &&
           atomic_load(&watch->n_ended) == 0) {
        wait_a_little();
    }
    return status;
}

firn_status firni_bench_watch_stop(firni_bench_watch *watch, firn_error *err)
{
    const uint32_t n_ended = atomic_load(&watch->n_ended);
    for (uint32_t i = 0; i < watch->n_rows; i++) {
        firn_engine_cancel(watch->engine, watch->ids[i]);
    }
    while (atomic_load(&watch->n_ended) < watch->n_rows) {
        wait_a_little();
    }
    return n_ended == 0 ? FIRN_OK
                        : firni_fail(err, FIRN_ERR_STATE, "%u of %u rows ended before what they were to be beside",
                                     n_ended, watch->n_rows);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Those that ended in (from_ns, to_ns] into scratch, in seconds. */
static uint32_t collect(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns)
{
    uint32_t n = 0;
    const uint32_t n_intervals = atomic_load(&watch->n_intervals);
    for (uint32_t i = 0; i < n_intervals; i++) {
        if (watch->intervals[i].end_ns > from_ns && watch->intervals[i].end_ns <= to_ns) {
            watch->scratch[n++] = (double)watch->intervals[i].ns * 1e-9;
        }
    }
    return n;
}

double firni_bench_watch_quantile(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns, double share)
{
    const uint32_t n = collect(watch, from_ns, to_ns);
    qsort(watch->scratch, n, sizeof *watch->scratch, compare);
    return n > 0 ? watch->scratch[(uint32_t)(share * (n - 1) + 0.5)] : 0.0;
}

double firni_bench_watch_mean(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns)
{
    const uint32_t n = collect(watch, from_ns, to_ns);
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += watch->scratch[i];
    }
    return n > 0 ? sum / n : 0.0;
}

double firni_bench_watch_lost(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns, double step_seconds)
{
    const uint32_t n = collect(watch, from_ns, to_ns);
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += watch->scratch[i] / step_seconds - 1.0;
    }
    return watch->n_rows > 0 ? sum / watch->n_rows : 0.0;
}
