/*
 * What it costs two rows that decode when a conversation is saved or restored meanwhile:
 *
 *   1. the conversation is computed and kept in RAM alone; the rows start
 *   2. quiet    nothing beside them for a while: what the machine's other work takes from them
 *   3. save     the conversation is asked for again and may now be stored: until all of it is durable
 *   4. restore  tier and engine are closed and opened again, the page cache of the files is dropped, the rows start:
 *               until its first token
 *
 * A row's loss is how many tokens it heard less than one each median step of before. The answer after the restore must
 * be the first one, and what is saved or restored must have gone through the tier.
 */
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/cache_files.h"

#define N_ROWS   2u
#define QUIET_NS 1000000000
#define N_ANSWER 4u

typedef struct saving_bench {
    firni_bench *bench;
    char dir[512];
    firn_token *prompt;
    firn_token first_answer[N_ANSWER];
    firni_bench_session session;
    firni_bench_watch *watch;
} saving_bench;

/* A flush that is waited for. */
typedef struct flush {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_done; /* guarded by mutex, like the report */
    firn_flush_report report;
} flush;

static void on_flushed(void *ctx, const firn_flush_report *report)
{
    flush *f = ctx;
    (void)pthread_mutex_lock(&f->mutex);
    f->report = *report;
    f->is_done = true;
    (void)pthread_cond_signal(&f->changed);
    (void)pthread_mutex_unlock(&f->mutex);
}

static firn_status flush_all(firn_engine *engine, firn_error *err)
{
    flush f = { .is_done = false };
    (void)pthread_mutex_init(&f.mutex, NULL);
    (void)pthread_cond_init(&f.changed, NULL);
    firn_status status = firn_engine_flush(engine, FIRNI_BENCH_FLUSH_NS, on_flushed, &f, err);
    (void)pthread_mutex_lock(&f.mutex);
    while (status == FIRN_OK && !f.is_done) {
        (void)pthread_cond_wait(&f.changed, &f.mutex);
    }
    (void)pthread_mutex_unlock(&f.mutex);
    if (status == FIRN_OK && !f.report.durable) {
        status = firni_fail(err, FIRN_ERR_STATE, "%llu prefixes could not be stored",
                            (unsigned long long)(f.report.n_missing + f.report.n_failed));
    }
    (void)pthread_cond_destroy(&f.changed);
    (void)pthread_mutex_destroy(&f.mutex);
    return status;
}

static firn_status ask(saving_bench *s, firni_bench_answer *answer, firn_token *tokens, firn_error *err)
{
    answer->tokens = tokens;
    answer->n_max = N_ANSWER;
    return firni_bench_ask(s->session.engine, s->prompt, s->bench->options.n_saving, answer, err);
}

static firn_status check(const saving_bench *s, const char *from, const firn_token *tokens, uint64_t n_bytes,
                         firn_error *err)
{
    if (memcmp(tokens, s->first_answer, sizeof s->first_answer) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "%s: the answer is not the first one", from);
    }
    return n_bytes > 0 ? FIRN_OK : firni_fail(err, FIRN_ERR_STATE, "%s: nothing went through the tier", from);
}

/* Steps 2 and 3. */
static firn_status save_beside(saving_bench *s, firn_error *err)
{
    firni_bench_saving *out = &s->bench->saving;
    const firn_env *env = s->bench->env;
    firn_token tokens[N_ANSWER];
    firni_bench_answer answer = { .is_fresh = false };
    firn_tier_stats before, after;
    firn_tier_get_stats(s->session.tier, &before);
    const uint64_t quiet_ns = firni_now_ns(env);
    (void)nanosleep(&(struct timespec){ .tv_sec = QUIET_NS / 1000000000 }, NULL);
    const uint64_t began_ns = firni_now_ns(env);
    firn_status status = ask(s, &answer, tokens, err);
    if (status == FIRN_OK) {
        status = flush_all(s->session.engine, err);
    }
    const uint64_t ended_ns = firni_now_ns(env);
    firn_tier_get_stats(s->session.tier, &after);
    out->written_bytes = after.written_bytes - before.written_bytes;
    if (status == FIRN_OK) {
        status = check(s, "saving", tokens, out->written_bytes, err);
    }
    if (status == FIRN_OK) {
        const double step = firni_bench_watch_quantile(s->watch, 0, began_ns, 0.5);
        firni_sample_add(&out->step_seconds, step);
        firni_sample_add(&out->quiet_lost, firni_bench_watch_lost(s->watch, quiet_ns, began_ns, step));
        firni_sample_add(&out->save_seconds, (double)(ended_ns - began_ns) * 1e-9);
        firni_sample_add(&out->save_lost, firni_bench_watch_lost(s->watch, began_ns, ended_ns, step));
        firni_sample_add(&out->save_longest, firni_bench_watch_quantile(s->watch, began_ns, ended_ns, 1.0) / step);
    }
    return status;
}

/* Step 4, from where the rows have started. */
static firn_status restore_beside(saving_bench *s, firn_error *err)
{
    firni_bench_saving *out = &s->bench->saving;
    firn_token tokens[N_ANSWER];
    firni_bench_answer answer = { .is_fresh = false };
    const uint64_t began_ns = firni_now_ns(s->bench->env);
    firn_status status = ask(s, &answer, tokens, err);
    firn_tier_stats stats;
    firn_tier_get_stats(s->session.tier, &stats);
    out->read_bytes = stats.read_bytes;
    if (status == FIRN_OK) {
        status = check(s, "restoring", tokens, answer.usage.cache.disk_tokens > 0 ? stats.read_bytes : 0, err);
    }
    if (status == FIRN_OK) {
        const uint64_t first_ns = began_ns + answer.usage.first_token_ns;
        const double step = firni_bench_watch_quantile(s->watch, 0, began_ns, 0.5);
        firni_sample_add(&out->restore_seconds, (double)answer.usage.first_token_ns * 1e-9);
        firni_sample_add(&out->restore_lost, firni_bench_watch_lost(s->watch, began_ns, first_ns, step));
        firni_sample_add(&out->restore_longest, firni_bench_watch_quantile(s->watch, began_ns, first_ns, 1.0) / step);
    }
    return status;
}

/* Opens, runs `measure` beside the rows, closes. */
static firn_status run_beside(saving_bench *s, bool computes_first,
                              firn_status (*measure)(saving_bench *, firn_error *), firn_error *err)
{
    const uint32_t n_ctx = s->bench->options.n_saving + FIRNI_BENCH_WATCH_TOKENS_MAX;
    firni_bench_answer answer = { .is_ram_only = true };
    firn_status status = firni_bench_session_open(&s->session, s->bench, s->dir, n_ctx, err);
    if (status == FIRN_OK && computes_first) {
        status = ask(s, &answer, s->first_answer, err);
    }
    if (status == FIRN_OK) {
        status =
            firni_bench_watch_start(s->watch, s->session.engine, N_ROWS, &(firn_sampling){ .temperature = 0 }, 0, err);
        status = status == FIRN_OK ? measure(s, err) : status;
        const firn_status stopped = firni_bench_watch_stop(s->watch, status == FIRN_OK ? err : NULL);
        status = status == FIRN_OK ? stopped : status;
    }
    const firn_status closed = firni_bench_session_close(&s->session, status == FIRN_OK ? err : NULL);
    return status == FIRN_OK ? closed : status;
}

/* Each run has a prompt and a directory of its own. */
static firn_status measure_run(saving_bench *s, uint32_t run, firn_error *err)
{
    const firni_bench_options *o = &s->bench->options;
    const int len = snprintf(s->dir, sizeof s->dir, "%s/firn-bench-XXXXXX", o->dir);
    if (len < 0 || (size_t)len >= sizeof s->dir || mkdtemp(s->dir) == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "cannot make a directory in %.300s; choose another with --cache-dir",
                          o->dir);
    }
    firni_bench_fill_tokens(s->bench, 14000 + run, s->prompt, o->n_saving);
    firn_status status = run_beside(s, true, save_beside, err);
    if (status == FIRN_OK) {
        firni_bench_drop_cached(s->dir);
        status = run_beside(s, false, restore_beside, err);
    }
    (void)firni_cache_remove_dir(s->dir);
    return status;
}

firn_status firni_bench_measure_saving(firni_bench *bench, firn_error *err)
{
    saving_bench s = { .bench = bench };
    bench->saving = (firni_bench_saving){ .n_tokens = bench->options.n_saving };
    firn_status status = firni_bench_watch_create(bench, &s.watch, err);
    s.prompt = firni_calloc(bench->env, bench->options.n_saving, sizeof *s.prompt);
    if (status == FIRN_OK && s.prompt == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a prompt of %u tokens", bench->options.n_saving);
    }
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        status = measure_run(&s, run, err);
    }
    firni_free(bench->env, s.prompt);
    firni_bench_watch_destroy(s.watch);
    return status;
}
