/*
 * What a long prompt and two rows that decode cost each other: the prompt's time to first token alone and beside them,
 * and the time between two tokens of a row before the prompt came and while it was read.
 *
 * The answer's first token must be the same both ways, or the times are of different things.
 */
#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_ROWS 2u

static firn_status measure_beside(firni_bench *bench, firni_bench_watch *watch, firn_engine *engine,
                                  const firn_token *prompt, firni_bench_answer *answer, firn_error *err)
{
    firni_bench_beside *out = &bench->beside;
    firn_status status = firni_bench_watch_start(watch, engine, N_ROWS, &(firn_sampling){ .temperature = 0 }, 0, err);
    const uint64_t began_ns = firni_now_ns(bench->env);
    if (status == FIRN_OK) {
        status = firni_bench_ask(engine, prompt, out->n_tokens, answer, err);
    }
    const firn_status stopped = firni_bench_watch_stop(watch, status == FIRN_OK ? err : NULL);
    status = status == FIRN_OK ? stopped : status;
    if (status == FIRN_OK) {
        const uint64_t first_ns = began_ns + answer->usage.first_token_ns;
        firni_sample_add(&out->beside_seconds, (double)answer->usage.first_token_ns * 1e-9);
        firni_sample_add(&out->quiet_median, firni_bench_watch_quantile(watch, 0, began_ns, 0.5));
        firni_sample_add(&out->beside_median, firni_bench_watch_quantile(watch, began_ns, first_ns, 0.5));
        firni_sample_add(&out->beside_p99, firni_bench_watch_quantile(watch, began_ns, first_ns, 0.99));
    }
    return status;
}

static firn_status measure_runs(firni_bench *bench, firni_bench_watch *watch, firn_token *prompt, firn_error *err)
{
    firni_bench_beside *out = &bench->beside;
    const firn_engine_options options = {
        .model = bench->stack->model,
        .pool = bench->stack->pool,
        .ctx_tokens_max = out->n_tokens + FIRNI_BENCH_WATCH_TOKENS_MAX,
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
            status = measure_beside(bench, watch, engine, prompt, &answer, err);
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
    firni_bench_watch *watch;
    firn_status status = firni_bench_watch_create(bench, &watch, err);
    firn_token *prompt = firni_calloc(bench->env, bench->options.n_beside, sizeof *prompt);
    if (status == FIRN_OK && prompt == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a prompt of %u tokens", bench->options.n_beside);
    }
    if (status == FIRN_OK) {
        status = measure_runs(bench, watch, prompt, err);
    }
    firni_free(bench->env, prompt);
    firni_bench_watch_destroy(watch);
    return status;
}
