/*
 * What a long prompt and two rows that decode cost each other: the prompt's time to first token alone and beside them,
 * and the time between two tokens of a row before the prompt came and while it was read.
 *
 * The answer's first token must be the same both ways, or the times are of different things.
 */
#include <stdlib.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_ROWS       2u
#define N_ROW_PROMPT 16u
#define N_QUIET      64u    /* tokens of each row before the prompt comes */
#define N_ANSWER_MAX 8192u  /* of each row; it is stopped before */
#define N_TIMES_MAX  (N_ROWS * N_ANSWER_MAX)

typedef struct listener {
    struct beside_bench *bench;
    uint64_t last_ns;          /* engine thread only */
} listener;

/* The time between a row's tokens, and when it ended. */
typedef struct interval {
    uint64_t end_ns, ns;
} interval;

typedef struct beside_bench {
    const firn_env *env;
    interval *intervals;       /* written by the engine's thread before n_intervals is */
    double *scratch;
    atomic_uint n_intervals;
    atomic_uint n_ended;
    listener listeners[N_ROWS];
} beside_bench;

static void on_event(void *ctx, const firn_event *event)
{
    listener *l = ctx;
    beside_bench *b = l->bench;
    if (event->kind == FIRN_EVENT_END) {
        (void)atomic_fetch_add(&b->n_ended, 1);
        return;
    }
    const uint64_t now_ns = firni_now_ns(b->env);
    const uint32_t n = atomic_load(&b->n_intervals);
    if (l->last_ns != 0 && n < N_TIMES_MAX) {
        b->intervals[n] = (interval){ .end_ns = now_ns, .ns = now_ns - l->last_ns };
        atomic_store(&b->n_intervals, n + 1);
    }
    l->last_ns = now_ns;
}

static void wait_a_little(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds: the share's quantile of the intervals that ended in (from_ns, to_ns]. */
static double quantile(beside_bench *b, uint64_t from_ns, uint64_t to_ns, double share)
{
    uint32_t n = 0;
    const uint32_t n_intervals = atomic_load(&b->n_intervals);
    for (uint32_t i = 0; i < n_intervals; i++) {
        if (b->intervals[i].end_ns > from_ns && b->intervals[i].end_ns <= to_ns) {
            b->scratch[n++] = (double)b->intervals[i].ns * 1e-9;
        }
    }
    qsort(b->scratch, n, sizeof *b->scratch, compare);
    return n > 0 ? b->scratch[(uint32_t)(share * (n - 1) + 0.5)] : 0.0;
}

static firn_status measure_beside(firni_bench *bench, beside_bench *b, firn_engine *engine, const firn_token *prompt,
                                  firni_bench_answer *answer, firn_error *err)
{
    firni_bench_beside *out = &bench->beside;
    uint64_t ids[N_ROWS];
    uint32_t n_started = 0;
    firn_status status = FIRN_OK;
    atomic_store(&b->n_intervals, 0);
    atomic_store(&b->n_ended, 0);
    for (uint32_t i = 0; i < N_ROWS && status == FIRN_OK; i++) {
        firn_token row_prompt[N_ROW_PROMPT];
        firni_bench_fill_tokens(bench, 9000 + i, row_prompt, N_ROW_PROMPT);
        b->listeners[i] = (listener){ .bench = b };
        const firn_request request = { .prompt = row_prompt, .n_prompt = N_ROW_PROMPT,
                                       .max_tokens = N_ANSWER_MAX, .ignore_end = true, .no_cache = true, .on_event = on_event,
                                       .ctx = &b->listeners[i] };
        status = firn_engine_submit(engine, &request, &ids[i], err);
        n_started += status == FIRN_OK;
    }
    while (status == FIRN_OK && atomic_load(&b->n_intervals) < N_ROWS * N_QUIET && atomic_load(&b->n_ended) == 0) {
        wait_a_little();
    }
    const uint64_t began_ns = firni_now_ns(b->env);
    if (status == FIRN_OK) {
        status = firni_bench_ask(engine, prompt, out->n_tokens, answer, err);
    }
    for (uint32_t i = 0; i < n_started; i++) {
        firn_engine_cancel(engine, ids[i]);
    }
    while (atomic_load(&b->n_ended) < n_started) {
        wait_a_little();
    }
    if (status == FIRN_OK) {
        const uint64_t first_ns = began_ns + answer->usage.first_token_ns;
        firni_sample_add(&out->beside_seconds, (double)answer->usage.first_token_ns * 1e-9);
        firni_sample_add(&out->quiet_median, quantile(b, 0, began_ns, 0.5));
        firni_sample_add(&out->beside_median, quantile(b, began_ns, first_ns, 0.5));
        firni_sample_add(&out->beside_p99, quantile(b, began_ns, first_ns, 0.99));
    }
    return status;
}

static firn_status measure_runs(firni_bench *bench, beside_bench *b, firn_token *prompt, firn_error *err)
{
    firni_bench_beside *out = &bench->beside;
    const firn_engine_options options = {
        .model = bench->stack->model,
        .pool = bench->stack->pool,
        .ctx_tokens_max = out->n_tokens + N_ROW_PROMPT + N_ANSWER_MAX,
        .batch_rows_max = 1 + N_ROWS,
        .chunk_tokens_max = bench->options.n_chunk,
        .max_itl_ns = bench->options.max_itl_ns,
        .no_prefix_cache = true, /* the same prompt both times, computed both times */
    };
    firn_engine *engine = NULL;
    firn_status status = firn_engine_create(&options, bench->env, &engine, err);
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        firn_token alone, beside;
        firni_bench_answer answer = { .tokens = &alone, .n_max = 1 };
        firni_bench_fill_tokens(bench, 9100 + run, prompt, out->n_tokens);
        status = firni_bench_ask(engine, prompt, out->n_tokens, &answer, err);
        if (status == FIRN_OK) {
            firni_sample_add(&out->alone_seconds, (double)answer.usage.first_token_ns * 1e-9);
            answer = (firni_bench_answer){ .tokens = &beside, .n_max = 1 };
            status = measure_beside(bench, b, engine, prompt, &answer, err);
        }
        if (status == FIRN_OK && alone != beside) {
            status = firni_fail(err, FIRN_ERR_STATE, "the prompt's first token is %lu alone and %lu beside others",
                                (unsigned long)alone, (unsigned long)beside);
        }
    }
    firn_engine_destroy(engine, 0, NULL);
    return status;
}

firn_status firni_bench_measure_beside(firni_bench *bench, firn_error *err)
{
    bench->beside.n_tokens = bench->options.n_beside;
    beside_bench b = { .env = bench->env };
    b.intervals = firni_calloc(bench->env, N_TIMES_MAX, sizeof *b.intervals);
    b.scratch = firni_calloc(bench->env, N_TIMES_MAX, sizeof *b.scratch);
    firn_token *prompt = firni_calloc(bench->env, bench->options.n_beside, sizeof *prompt);
    const firn_status status = b.intervals != NULL && b.scratch != NULL && prompt != NULL
                                   ? measure_runs(bench, &b, prompt, err)
                                   : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the times of tokens");
    firni_free(bench->env, prompt);
    firni_free(bench->env, b.scratch);
    firni_free(bench->env, b.intervals);
    return status;
}
