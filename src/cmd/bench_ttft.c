/*
 * Time to first token of one long prompt, through the engine as a server would run it:
 *
 *   1. cold     nothing is cached; the engine also publishes and stores the state
 *   2. ram      the same prompt again
 *   3. disk     engine and tier are closed (all stored, RAM let go), the page cache of the files is dropped, both are
 *               opened again, the same prompt; before each, the same files are read plainly for comparison
 *   4. busy     as 3, while four rows decode; and how much of their rate they keep until the first token
 *
 * Of 3 also: how far the memory of the process rises above the blocks that hold the restored state.
 *
 * The greedy answers of 2, 3 and 4 must equal that of 1 token for token, and the cache must have served the prompt:
 * else there is nothing to time.
 */
#define _GNU_SOURCE /* mkdtemp is POSIX 2008, yet hidden by some libraries without it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/cache_files.h"

#define RATE_NS UINT64_C(1000000000) /* how long the other rows are watched before */
#define N_ANSWER 16u /* tokens compared: a wrong state shows within one or two */

typedef struct ttft_bench {
    firni_bench *bench;
    char dir[512];
    firn_token *prompt;
    firni_bench_session session;
    firn_token cold_answer[N_ANSWER];
    firn_token tokens[N_ANSWER];
    firni_bench_answer answer;
} ttft_bench;

static firn_status ask(ttft_bench *t, firn_error *err)
{
    t->answer = (firni_bench_answer){ .tokens = t->tokens, .n_max = N_ANSWER };
    return firni_bench_ask(t->session.engine, t->prompt, t->bench->options.n_ttft, &t->answer, err);
}

static firn_status open_session(ttft_bench *t, firn_error *err)
{
    return firni_bench_session_open(&t->session, t->bench, t->dir, t->bench->options.n_ttft + N_ANSWER, err);
}

/* The answer must be the cold one, and at least nine tenths of the prompt must have come from where it should. */
static firn_status check(const ttft_bench *t, const char *from, uint32_t n_cached, firn_error *err)
{
    const uint32_t n_prompt = t->bench->options.n_ttft;
    if (t->answer.n_tokens != N_ANSWER || memcmp(t->tokens, t->cold_answer, sizeof t->cold_answer) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "the answer from %s differs from the cold one", from);
    }
    if (n_cached < n_prompt - n_prompt / 10) {
        return firni_fail(err, FIRN_ERR_STATE, "only %u of %u prompt tokens came from %s (%s)", n_cached, n_prompt,
                          from, firn_reason_name(t->answer.usage.cache.reason));
    }
    return FIRN_OK;
}

/* Cold is measured once: only the first time is cold, and a second prompt would take minutes more. */
static firn_status measure_cold_and_ram(ttft_bench *t, firni_bench_ttft *out, firn_error *err)
{
    const firn_usage *usage = &t->answer.usage;
    firn_status status = ask(t, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (usage->cache.n_tokens != 0 || t->answer.n_tokens != N_ANSWER) {
        return firni_fail(err, FIRN_ERR_STATE, "the first run was not cold, or its answer is short");
    }
    memcpy(t->cold_answer, t->tokens, sizeof t->cold_answer);
    firni_sample_add(&out->cold_seconds, (double)usage->first_token_ns * 1e-9);
    for (uint32_t run = 0; run < t->bench->options.n_runs && status == FIRN_OK; run++) {
        status = ask(t, err);
        if (status == FIRN_OK) {
            status = check(t, "RAM", usage->cache.ram_tokens, err);
        }
        if (status == FIRN_OK) {
            out->ram_tokens = usage->cache.ram_tokens;
            firni_sample_add(&out->ram_seconds, (double)usage->first_token_ns * 1e-9);
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
        status = open_session(t, err);
    }
    const firn_usage *usage = &t->answer.usage;
    firni_bench_memory memory = { .is_known = false };
    if (status == FIRN_OK) {
        firni_bench_memory_begin(&memory, t->bench->stack->pool);
        status = ask(t, err);
    }
    if (status == FIRN_OK) {
        status = check(t, "disk", usage->cache.disk_tokens, err);
    }
    if (status == FIRN_OK) {
        firn_tier_stats stats;
        firn_tier_get_stats(t->session.tier, &stats);
        out->disk_tokens = usage->cache.disk_tokens;
        out->restored_bytes = stats.read_bytes;
        firni_sample_add(&out->disk_seconds, (double)usage->first_token_ns * 1e-9);
        firni_sample_add(&out->restore_rate, (double)stats.read_bytes / ((double)usage->cache.restore_ns * 1e-9));
        if (memory.is_known) {
            firni_sample_add(&out->extra_share, (double)firni_bench_memory_extra(&memory, t->bench->stack->pool) /
                                                    (double)stats.read_bytes);
        }
    }
    firn_error close_err = { 0 };
    const firn_status closed = firni_bench_session_close(&t->session, &close_err);
    if (status == FIRN_OK && closed != FIRN_OK) {
        status = firni_fail(err, closed, "%s", close_err.message);
    }
    return status;
}

/* Asks for one token while other rows decode. Those that ended meanwhile would make the shares wrong: then there are
 * none. */
static firn_status ask_beside_others(ttft_bench *t, firni_bench_ttft *out, firn_error *err)
{
    const uint32_t n_prompt = t->bench->options.n_ttft;
    firni_bench_rows rows;
    firn_status status = firni_bench_rows_start(&rows, t->bench, t->session.engine, n_prompt + N_ANSWER, err);
    if (status == FIRN_OK) {
        const double rate_before = firni_bench_rows_rate(&rows, t->bench->env, RATE_NS);
        const uint64_t n_before = atomic_load(&rows.n_tokens), began_ns = firni_now_ns(t->bench->env);
        t->answer = (firni_bench_answer){ .tokens = t->tokens, .n_max = 1 };
        status = firni_bench_ask(t->session.engine, t->prompt, n_prompt, &t->answer, err);
        const double seconds = (double)(firni_now_ns(t->bench->env) - began_ns) * 1e-9;
        if (status == FIRN_OK && (t->tokens[0] != t->cold_answer[0] || t->answer.usage.cache.disk_tokens == 0)) {
            status =
                firni_fail(err, FIRN_ERR_STATE, "beside other rows the answer from disk differs from the cold one");
        }
        if (status == FIRN_OK && atomic_load(&rows.n_ended) == 0) {
            const double rate = (double)(atomic_load(&rows.n_tokens) - n_before) / seconds;
            firni_sample_add(&out->busy_seconds, (double)t->answer.usage.first_token_ns * 1e-9);
            firni_sample_add(&out->busy_share, rate_before > 0.0 ? rate / rate_before : 0.0);
        }
    }
    firni_bench_rows_stop(&rows);
    return status;
}

static firn_status measure_busy_once(ttft_bench *t, firni_bench_ttft *out, firn_error *err)
{
    firni_bench_drop_cached(t->dir);
    firn_status status = open_session(t, err);
    if (status == FIRN_OK) {
        status = ask_beside_others(t, out, err);
    }
    firn_error close_err = { 0 };
    const firn_status closed = firni_bench_session_close(&t->session, &close_err);
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
        status = open_session(&t, err);
    }
    if (status == FIRN_OK) {
        status = measure_cold_and_ram(&t, out, err);
    }
    firn_error close_err = { 0 };
    const firn_status closed = firni_bench_session_close(&t.session, &close_err);
    if (status == FIRN_OK && closed != FIRN_OK) {
        status = firni_fail(err, closed, "%s", close_err.message);
    }
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        status = measure_disk_once(&t, out, err);
        if (status == FIRN_OK) {
            status = measure_busy_once(&t, out, err);
        }
    }
    firni_free(bench->env, t.prompt);
    (void)firni_cache_remove_dir(t.dir);
    return status;
}
