/*
 * Decode of one row at the end of a long context, whose state is made up (bench_rows.c): without the minutes that
 * reading one would take, and for several depths in turn.
 */
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define FILL_SEED 0u

typedef struct deep_bench {
    firni_bench *bench;
    uint32_t n_layers;
    firn_cache **filled; /* [n_layers]: one row of depth - n_gen tokens each */
    firn_cache **work;   /* [n_layers]: what the present run goes on with */
    float *logits;       /* [n_vocab] */
    firn_token *answer;  /* [n_gen] of the first run */
    firn_token *again;   /* [n_gen] */
} deep_bench;

static void deinit(deep_bench *d)
{
    const firn_env *env = d->bench->env;
    firni_bench_row_clear(d->bench, d->filled);
    firni_bench_row_clear(d->bench, d->work);
    firni_free(env, d->filled);
    firni_free(env, d->work);
    firni_free(env, d->logits);
    firni_free(env, d->answer);
    firni_free(env, d->again);
}

static firn_status init(deep_bench *d, firni_bench *bench, firn_error *err)
{
    const firn_env *env = bench->env;
    const uint32_t n_gen = bench->options.n_gen;
    *d = (deep_bench){ .bench = bench, .n_layers = firn_model_schema(bench->stack->model)->n_layers };
    d->filled = firni_calloc(env, d->n_layers, sizeof(firn_cache *));
    d->work = firni_calloc(env, d->n_layers, sizeof(firn_cache *));
    d->logits = firni_calloc(env, firn_model_get_info(bench->stack->model)->n_vocab, sizeof *d->logits);
    d->answer = firni_calloc(env, n_gen, sizeof *d->answer);
    d->again = firni_calloc(env, n_gen, sizeof *d->again);
    return d->filled != NULL && d->work != NULL && d->logits != NULL && d->answer != NULL && d->again != NULL
               ? FIRN_OK
               : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the benchmark's buffers");
}

/* n_gen greedy tokens behind the filled row, which stays as it is. */
static firn_status run_decode(deep_bench *d, firn_token *answer, uint64_t *elapsed_ns, firn_error *err)
{
    firn_token next;
    firni_bench_fill_tokens(d->bench, 1, &next, 1);
    firn_status status = firni_bench_row_copy(d->bench, d->filled, d->work, err);
    if (status == FIRN_OK) {
        status = firni_bench_decode_rows(d->bench, d->work, 1, &next, d->logits, answer, elapsed_ns, err);
    }
    firni_bench_row_clear(d->bench, d->work);
    return status;
}

/* Run 0 warms up and says what the others must repeat. */
static firn_status measure_depth(deep_bench *d, firni_bench_deep *deep, firn_error *err)
{
    const firni_bench_options *o = &d->bench->options;
    firn_status status = firni_bench_row_begin(d->bench, FILL_SEED, deep->n_depth - o->n_gen, d->filled, err);
    for (uint32_t i = 0; i < d->n_layers && status == FIRN_OK; i++) {
        deep->token_bytes += firn_cache_bytes_per_token(d->filled[i]);
        deep->row_bytes += firn_cache_projected_bytes(d->filled[i], deep->n_depth);
    }
    for (uint32_t run = 0; run <= o->n_runs && status == FIRN_OK; run++) {
        uint64_t elapsed_ns = 0;
        status = run_decode(d, run == 0 ? d->answer : d->again, &elapsed_ns, err);
        if (status != FIRN_OK || run == 0) {
            continue;
        }
        if (memcmp(d->answer, d->again, o->n_gen * sizeof *d->answer) != 0) {
            status = firni_fail(err, FIRN_ERR_STATE, "two decodes from the same state gave other tokens");
        } else {
            firni_sample_add(&deep->tokens_per_second, o->n_gen / ((double)elapsed_ns * 1e-9));
        }
    }
    firni_bench_row_clear(d->bench, d->filled);
    return status;
}

firn_status firni_bench_measure_deep(firni_bench *bench, firn_error *err)
{
    deep_bench d;
    firn_status status = init(&d, bench, err);
    for (uint32_t i = 0; i < bench->options.n_deep && status == FIRN_OK; i++) {
        bench->deep[i].n_depth = bench->options.deep[i];
        status = measure_depth(&d, &bench->deep[i], err);
    }
    deinit(&d);
    return status;
}
