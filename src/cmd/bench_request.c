/*
 * One request through an engine, waited for: what the measurements of whole requests share.
 */
#include <pthread.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

typedef struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ended;                 /* guarded by mutex, like the answer */
    firni_bench_answer *answer;
    firn_finish finish;
    firn_error error;
} waiter;

static void on_event(void *ctx, const firn_event *event)
{
    waiter *w = ctx;
    (void)pthread_mutex_lock(&w->mutex);
    if (event->kind == FIRN_EVENT_TOKEN && w->answer->n_tokens < w->answer->n_max) {
        w->answer->tokens[w->answer->n_tokens++] = event->token;
    }
    if (event->kind == FIRN_EVENT_END) {
        w->ended = true;
        w->finish = event->finish;
        w->answer->usage = *event->usage;
        if (event->error != NULL) {
            w->error = *event->error;
        }
        (void)pthread_cond_signal(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->mutex);
}

firn_status firni_bench_ask(firn_engine *engine, const firn_token *prompt, uint32_t n_prompt,
                            firni_bench_answer *answer, firn_error *err)
{
    waiter w = { .answer = answer };
    const firn_request request = {
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = answer->n_max,
        .ignore_end = true,
        .no_cache = answer->is_fresh,
        .cache = { .store = answer->is_ram_only ? FIRN_STORE_RAM : FIRN_STORE_DISK },
        .on_event = on_event,
        .ctx = &w,
    };
    uint64_t id;
    answer->n_tokens = 0;
    (void)pthread_mutex_init(&w.mutex, NULL);
    (void)pthread_cond_init(&w.changed, NULL);
    firn_status status = firn_engine_submit(engine, &request, &id, err);
    if (status == FIRN_OK) {
        (void)pthread_mutex_lock(&w.mutex);
        while (!w.ended) {
            (void)pthread_cond_wait(&w.changed, &w.mutex);
        }
        (void)pthread_mutex_unlock(&w.mutex);
        if (w.finish == FIRN_FINISH_ERROR) {
            status = firni_fail(err, w.error.status, "%s", w.error.message);
        }
    }
    (void)pthread_cond_destroy(&w.changed);
    (void)pthread_mutex_destroy(&w.mutex);
    return status;
}

/* Tier and engine alone are opened again between runs. The model stays: loading weights is no part of a restore. */
firn_status firni_bench_session_open(firni_bench_session *session, const firni_bench *bench, const char *dir,
                                     uint32_t ctx_tokens, firn_error *err)
{
    const firn_disk_options disk = {
        .dir = dir,
        .schema = firn_model_schema(bench->stack->model),
        .pool = bench->stack->pool,
        .budget_bytes = FIRNI_BENCH_DISK_BUDGET_BYTES,
    };
    *session = (firni_bench_session){ .engine = NULL };
    firn_status status = firn_disk_open(&disk, bench->env, &session->tier, err);
    if (status == FIRN_OK) {
        const firn_engine_options options = {
            .model = bench->stack->model,
            .pool = bench->stack->pool,
            .tier = session->tier,
            .ctx_tokens_max = ctx_tokens,
            .batch_rows_max = 1 + FIRNI_BENCH_BUSY_ROWS,
            .chunk_tokens_max = bench->options.n_chunk,
            .restore_always = true, /* it is measured, wise or not */
        };
        status = firn_engine_create(&options, bench->env, &session->engine, err);
    }
    return status;
}

firn_status firni_bench_session_close(firni_bench_session *session, firn_error *err)
{
    firn_flush_report report = { .durable = true };
    if (session->engine != NULL) {
        firn_engine_destroy(session->engine, FIRNI_BENCH_FLUSH_NS, &report);
    }
    firn_tier_destroy(session->tier);
    *session = (firni_bench_session){ .engine = NULL };
    return report.durable ? FIRN_OK
                          : firni_fail(err, FIRN_ERR_STATE, "%llu prefixes could not be stored",
                                       (unsigned long long)(report.n_missing + report.n_failed));
}
