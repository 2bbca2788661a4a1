/*
 * What a step spends beside its forward, with several ways to choose a token: rows decode through the engine, which
 * counts the time of its forwards, and the time between their tokens is the time of whole steps.
 */
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_ROWS      4u
#define N_STEPS_MAX (FIRNI_BENCH_WATCH_TOKENS_MAX / 2) /* the rows go on for longer */

typedef struct sampling_case {
    const char *name;
    firn_sampling sampling;
    uint32_t n_logprobs;
} sampling_case;

/* clang-format off */
static const sampling_case cases[FIRNI_BENCH_SAMPLINGS] = {
    { .name = "greedy" },
    { .name = "temperature", .sampling = { .temperature = 1.0F } },
    { .name = "top-k, top-p", .sampling = { .temperature = 1.0F, .top_k = 40, .top_p = 0.95F } },
    { .name = "top-p", .sampling = { .temperature = 1.0F, .top_p = 0.95F } },
    { .name = "top-p, penalties", .sampling = { .temperature = 1.0F, .top_p = 0.95F, .repetition_penalty = 1.1F,
                                               .presence_penalty = 0.5F, .frequency_penalty = 0.5F } },
    { .name = "the same, 20 logprobs", .sampling = { .temperature = 1.0F, .top_p = 0.95F, .repetition_penalty = 1.1F,
                                                     .presence_penalty = 0.5F, .frequency_penalty = 0.5F },
      .n_logprobs = 21 },
};
/* clang-format on */

/* Until the engine has taken n_steps more; *stats is then of a moment between two steps. */
static void wait_steps(firn_engine *engine, uint64_t n_steps, firn_engine_stats *stats)
{
    firn_engine_get_stats(engine, stats);
    const uint64_t n_wanted = stats->n_steps + n_steps;
    while (stats->n_steps < n_wanted) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        firn_engine_get_stats(engine, stats);
    }
}

static firn_status measure_case(firni_bench *bench, firni_bench_watch *watch, firn_engine *engine,
                                const sampling_case *c, firni_bench_sampling *out, firn_error *err)
{
    firn_status status = firni_bench_watch_start(watch, engine, N_ROWS, &c->sampling, c->n_logprobs, err);
    double step_seconds = 0.0, forward_seconds = 0.0;
    if (status == FIRN_OK) {
        firn_engine_stats before, after;
        wait_steps(engine, 1, &before);
        const uint64_t from_ns = firni_now_ns(bench->env);
        wait_steps(engine, bench->options.n_gen < N_STEPS_MAX ? bench->options.n_gen : N_STEPS_MAX, &after);
        const uint64_t to_ns = firni_now_ns(bench->env);
        step_seconds = firni_bench_watch_mean(watch, from_ns, to_ns);
        const double n_steps = (double)(after.n_steps - before.n_steps);
        forward_seconds = (double)(after.step_ns_total - before.step_ns_total) * 1e-9 / n_steps;
    }
    const firn_status stopped = firni_bench_watch_stop(watch, status == FIRN_OK ? err : NULL);
    status = status == FIRN_OK ? stopped : status;
    if (status == FIRN_OK) {
        firni_sample_add(&out->step_seconds, step_seconds);
        firni_sample_add(&out->other_seconds, step_seconds - forward_seconds);
    }
    return status;
}

firn_status firni_bench_measure_sampling(firni_bench *bench, firn_error *err)
{
    const firn_engine_options options = {
        .model = bench->stack->model,
        .pool = bench->stack->pool,
        .ctx_tokens_max = FIRNI_BENCH_WATCH_TOKENS_MAX,
        .batch_rows_max = N_ROWS,
        .chunk_tokens_max = bench->options.n_chunk,
        .no_prefix_cache = true,
    };
    firni_bench_watch *watch;
    firn_engine *engine = NULL;
    firn_status status = firni_bench_watch_create(bench, &watch, err);
    if (status == FIRN_OK) {
        status = firn_engine_create(&options, bench->env, &engine, err);
    }
    /* All ways in turn, so that each sees the same weather. */
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        for (uint32_t i = 0; i < FIRNI_BENCH_SAMPLINGS && status == FIRN_OK; i++) {
            bench->sampling[i].name = cases[i].name;
            bench->sampling[i].n_rows = N_ROWS;
            status = measure_case(bench, watch, engine, &cases[i], &bench->sampling[i], err);
        }
    }
    firn_engine_destroy(engine, 0, NULL);
    firni_bench_watch_destroy(watch);
    return status;
}
