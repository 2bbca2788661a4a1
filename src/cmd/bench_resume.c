/*
 * Time to first token after a restart, for what users come back with:
 *
 *      cold          the prompt, answered for the first time             prompt | answer
 *      same          the prompt again                                    prompt
 *      continuation  what an agent sends next                            prompt | answer | new
 *      branch        an edited history: the end cut off, something new   prompt - cut | new
 *
 * Before each, tier and engine are closed and opened again and the page cache of the files is dropped. New tokens are
 * other ones in each run, so that no run finds what an earlier one has stored. The answer to the same prompt must be
 * the cold one; families with checkpoints may restore less than was there, so the tokens computed are reported, not
 * demanded.
 */
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/cache_files.h"

#define N_ANSWER 64u
#define N_NEW    64u
#define N_CUT    512u

typedef struct resume_bench {
    firni_bench *bench;
    char dir[512];
    firn_token *tokens;        /* [n_prompt + N_ANSWER + N_NEW] of the request */
    firn_token *prompt;        /* [n_prompt] */
    firn_token cold_answer[N_ANSWER];
    firni_bench_session session;
} resume_bench;

/* Opens, asks, closes. */
static firn_status ask_after_restart(resume_bench *r, const firn_token *tokens, uint32_t n_tokens,
                                     firni_bench_answer *answer, firn_error *err)
{
    const uint32_t n_ctx = r->bench->options.n_resume + N_ANSWER + N_NEW + N_ANSWER;
    firni_bench_drop_cached(r->dir);
    firn_status status = firni_bench_session_open(&r->session, r->bench, r->dir, n_ctx, err);
    if (status == FIRN_OK) {
        status = firni_bench_ask(r->session.engine, tokens, n_tokens, answer, err);
    }
    firn_error close_err = { 0 };
    const firn_status closed = firni_bench_session_close(&r->session, &close_err);
    if (status == FIRN_OK && closed != FIRN_OK) {
        status = firni_fail(err, closed, "%s", close_err.message);
    }
    return status;
}

/* The request of a turn into r->tokens; returns its length. */
static uint32_t make_turn(resume_bench *r, firni_bench_turn turn, uint32_t run)
{
    const uint32_t n_prompt = r->bench->options.n_resume;
    uint32_t n = turn == FIRNI_BENCH_BRANCH ? n_prompt - N_CUT : n_prompt;
    memcpy(r->tokens, r->prompt, n * sizeof *r->tokens);
    if (turn == FIRNI_BENCH_CONTINUE) {
        memcpy(r->tokens + n, r->cold_answer, sizeof r->cold_answer);
        n += N_ANSWER;
    }
    if (turn != FIRNI_BENCH_SAME) {
        firni_bench_fill_tokens(r->bench, 5000 + 10 * run + turn, r->tokens + n, N_NEW);
        n += N_NEW;
    }
    return n;
}

static firn_status measure_turn(resume_bench *r, firni_bench_turn turn, uint32_t run, firn_error *err)
{
    firni_bench_resume *out = &r->bench->resume;
    firn_token tokens[N_ANSWER];
    firni_bench_answer answer = { .tokens = tokens, .n_max = N_ANSWER };
    const uint32_t n = make_turn(r, turn, run);
    const firn_status status = ask_after_restart(r, r->tokens, n, &answer, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (turn == FIRNI_BENCH_SAME && memcmp(tokens, r->cold_answer, sizeof tokens) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "after a restart the same prompt has another answer");
    }
    const uint32_t n_computed = n - answer.usage.cache.n_tokens;
    out->prompt_tokens[turn] = n;
    out->computed_tokens[turn] = n_computed > out->computed_tokens[turn] ? n_computed : out->computed_tokens[turn];
    firni_sample_add(&out->seconds[turn], (double)answer.usage.first_token_ns * 1e-9);
    return FIRN_OK;
}

/* Each run has a prompt and a directory of its own, so that the cold answer is cold. */
static firn_status measure_run(resume_bench *r, uint32_t run, firn_error *err)
{
    const firni_bench_options *o = &r->bench->options;
    firni_bench_answer cold = { .tokens = r->cold_answer, .n_max = N_ANSWER };
    const int len = snprintf(r->dir, sizeof r->dir, "%s/firn-bench-XXXXXX", o->dir);
    if (len < 0 || (size_t)len >= sizeof r->dir || mkdtemp(r->dir) == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "cannot make a directory in %.300s; choose another with --cache-dir",
                          o->dir);
    }
    firni_bench_fill_tokens(r->bench, 3000 + run, r->prompt, o->n_resume);
    firn_status status = ask_after_restart(r, r->prompt, o->n_resume, &cold, err);
    if (status == FIRN_OK) {
        firni_sample_add(&r->bench->resume.cold_seconds, (double)cold.usage.first_token_ns * 1e-9);
    }
    for (uint32_t turn = 0; turn < FIRNI_BENCH_TURNS && status == FIRN_OK; turn++) {
        status = measure_turn(r, (firni_bench_turn)turn, run, err);
    }
    (void)firni_cache_remove_dir(r->dir);
    return status;
}

firn_status firni_bench_measure_resume(firni_bench *bench, firn_error *err)
{
    const uint32_t n_prompt = bench->options.n_resume;
    resume_bench r = { .bench = bench };
    bench->resume = (firni_bench_resume){ .n_prompt = n_prompt, .n_answer = N_ANSWER, .n_new = N_NEW, .n_cut = N_CUT };
    r.prompt = firni_calloc(bench->env, n_prompt, sizeof *r.prompt);
    r.tokens = firni_calloc(bench->env, (size_t)n_prompt + N_ANSWER + N_NEW, sizeof *r.tokens);
    firn_status status = r.prompt != NULL && r.tokens != NULL
                             ? FIRN_OK
                             : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a prompt of %u tokens", n_prompt);
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        status = measure_run(&r, run, err);
    }
    firni_free(bench->env, r.prompt);
    firni_free(bench->env, r.tokens);
    return status;
}
