/*
 * Four users whose prompts begin with the same tokens, and who come back in turn:
 *
 *      first turn     shared | question                        one is computed, three find the shared part
 *      second turn    shared | question | answer | question    each finds its own branch
 *
 * All in RAM. What the first turns leave is counted in the blocks of the pool: the shared part must be there once. The
 * last user's second answer must be that of computing the prompt without the cache.
 */
#include <string.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define N_USERS  FIRNI_BENCH_USERS
#define N_OWN    16u /* tokens of a question */
#define N_ANSWER 16u

typedef struct shared_bench {
    firni_bench *bench;
    firn_engine *engine;
    uint64_t n_asked;
    firn_token *prompts[N_USERS]; /* [n_tokens]: both turns */
    uint32_t n_first, n_second;   /* tokens of the two turns' prompts */
} shared_bench;

static firn_status ask(shared_bench *s, uint32_t user, uint32_t n, firni_bench_answer *answer, firn_error *err)
{
    answer->n_max = N_ANSWER;
    s->n_asked++;
    return firni_bench_ask(s->engine, s->prompts[user], n, answer, err);
}

/* Bytes of the pool once the engine has put away what the last request has left: that is after its END. */
static uint64_t settled_bytes(shared_bench *s)
{
    firn_engine_stats stats;
    firn_engine_get_stats(s->engine, &stats);
    while (stats.n_finished < s->n_asked) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        firn_engine_get_stats(s->engine, &stats);
    }
    return stats.pool.used_bytes;
}

static firn_status take_first_turn(shared_bench *s, uint32_t user, uint32_t run, firn_error *err)
{
    firni_bench_shared *out = &s->bench->shared;
    firn_token *prompt = s->prompts[user];
    firni_bench_answer answer = { .tokens = prompt + s->n_first };
    firni_bench_fill_tokens(s->bench, 11000 + run, prompt, out->n_tokens);
    firni_bench_fill_tokens(s->bench, 12000 + 10 * run + user, prompt + out->n_tokens, N_OWN);
    firni_bench_fill_tokens(s->bench, 13000 + 10 * run + user, prompt + s->n_first + N_ANSWER, N_OWN);
    const firn_status status = ask(s, user, s->n_first, &answer, err);
    const uint32_t n_found = answer.usage.cache.n_tokens;
    const uint32_t n_full = out->n_tokens / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS;
    if (status == FIRN_OK && (user == 0 ? n_found > 0 : n_found < n_full)) {
        return firni_fail(err, FIRN_ERR_STATE, "user %u found %u of %u shared tokens", user, n_found, out->n_tokens);
    }
    if (status == FIRN_OK) {
        firni_sample_add(user == 0 ? &out->first_seconds : &out->joined_seconds[user - 1],
                         (double)answer.usage.first_token_ns * 1e-9);
    }
    return status;
}

static firn_status take_second_turn(shared_bench *s, uint32_t user, firn_token *tokens, firn_error *err)
{
    firni_bench_shared *out = &s->bench->shared;
    firni_bench_answer answer = { .tokens = tokens };
    const firn_status status = ask(s, user, s->n_second, &answer, err);
    if (status == FIRN_OK) {
        const uint32_t n_computed = s->n_second - answer.usage.cache.n_tokens;
        out->back_computed_tokens = n_computed > out->back_computed_tokens ? n_computed : out->back_computed_tokens;
        firni_sample_add(&out->back_seconds[user], (double)answer.usage.first_token_ns * 1e-9);
    }
    return status;
}

static firn_status check_last(shared_bench *s, const firn_token *tokens, firn_error *err)
{
    firn_token fresh[N_ANSWER];
    firni_bench_answer answer = { .tokens = fresh, .is_fresh = true };
    const firn_status status = ask(s, N_USERS - 1, s->n_second, &answer, err);
    if (status == FIRN_OK && memcmp(tokens, fresh, sizeof fresh) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "behind a shared prompt the answer is not that of computing all");
    }
    return status;
}

static firn_status measure_turns(shared_bench *s, uint32_t run, firn_error *err)
{
    firni_bench_shared *out = &s->bench->shared;
    firn_token tokens[N_ANSWER];
    firn_pool_stats before;
    firn_pool_get_stats(s->bench->stack->pool, &before);
    firn_status status = FIRN_OK;
    for (uint32_t user = 0; user < N_USERS && status == FIRN_OK; user++) {
        status = take_first_turn(s, user, run, err);
        out->held_bytes = status == FIRN_OK ? settled_bytes(s) - before.used_bytes : 0;
        out->user_bytes = user == 0 ? out->held_bytes : out->user_bytes;
    }
    /* Whatever is a user's own, and however little is shared: less than each for itself. */
    if (status == FIRN_OK && out->held_bytes >= N_USERS * out->user_bytes) {
        status = firni_fail(err, FIRN_ERR_STATE, "%u users hold %llu bytes, one %llu: what they share is not held once",
                            N_USERS, (unsigned long long)out->held_bytes, (unsigned long long)out->user_bytes);
    }
    for (uint32_t user = 0; user < N_USERS && status == FIRN_OK; user++) {
        status = take_second_turn(s, user, tokens, err);
    }
    return status == FIRN_OK && run == 0 ? check_last(s, tokens, err) : status;
}

static firn_status measure_run(shared_bench *s, uint32_t run, firn_error *err)
{
    const firn_engine_options options = {
        .model = s->bench->stack->model,
        .pool = s->bench->stack->pool,
        .ctx_tokens_max = s->n_second + N_ANSWER,
        .batch_rows_max = N_USERS,
        .chunk_tokens_max = s->bench->options.n_chunk,
    };
    s->n_asked = 0;
    firn_status status = firn_engine_create(&options, s->bench->env, &s->engine, err);
    if (status == FIRN_OK) {
        status = measure_turns(s, run, err);
    }
    firn_engine_destroy(s->engine, 0, NULL);
    s->engine = NULL;
    return status;
}

firn_status firni_bench_measure_shared(firni_bench *bench, firn_error *err)
{
    const uint32_t n_shared = bench->options.n_shared;
    shared_bench s = { .bench = bench, .n_first = n_shared + N_OWN, .n_second = n_shared + N_OWN + N_ANSWER + N_OWN };
    bench->shared = (firni_bench_shared){ .n_tokens = n_shared, .n_own = N_OWN };
    firn_status status = FIRN_OK;
    for (uint32_t user = 0; user < N_USERS && status == FIRN_OK; user++) {
        s.prompts[user] = firni_calloc(bench->env, s.n_second, sizeof *s.prompts[user]);
        if (s.prompts[user] == NULL) {
            status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a prompt of %u tokens", s.n_second);
        }
    }
    for (uint32_t run = 0; run < bench->options.n_runs && status == FIRN_OK; run++) {
        status = measure_run(&s, run, err);
    }
    for (uint32_t user = 0; user < N_USERS; user++) {
        firni_free(bench->env, s.prompts[user]);
    }
    return status;
}
