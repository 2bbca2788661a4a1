/*
 * The engine over storage families: what is published while a row runs, what the next request reuses, and that memory
 * suffices for all that was let in. The model is the built-in one with layers exchanged: a window instead of all
 * blocks, or a state on which the stored values depend, so that an answer from the wrong state differs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/model_impl.h"
#include "support/engine_fixture.h"
#include "support/fault_tier.h"

enum { PROMPT_MAX = 1200, WINDOW = 100 };

/* One letter per layer, repeated: p: plain; w: a window; m: plain with a state; b: a window with a state. */
typedef struct family_stack {
    test_stack stack;
    fault_tier *tier;
} family_stack;

/* Behind the model's back: what it checks caches against is exchanged as well. */
static void exchange_layers(firn_model *model, const char *mixture, firn_pool *pool)
{
    for (uint32_t i = 0; i < model->schema.n_layers; i++) {
        firn_cache_options *options = &model->cache_options[i];
        const char letter = mixture[i % strlen(mixture)];
        options->layout = letter == 'p' ? "kv:plain" : letter == 'w' ? "kv:window" : "test:mixed";
        options->window = letter == 'w' || letter == 'b' ? WINDOW : 0;
        firn_cache *probe;
        assert_ok(firn_cache_create(options, pool, NULL, &probe, NULL));
        (void)snprintf(model->cache_describes[i], FIRNI_DESCRIBE_BYTES, "%s", firn_cache_describe(probe));
        firn_cache_destroy(probe);
    }
}

static void open_family(family_stack *f, const char *mixture, uint64_t pool_bytes, bool with_tier,
                        firn_engine_options engine)
{
    firn_error err;
    memset(f, 0, sizeof *f);
    assert_ok(firn_workers_create(1, NULL, &f->stack.workers, &err));
    const firn_model_options model = { .path = "models/firn-tiny-q8_0.gguf", .workers = f->stack.workers,
                                       .max_batch_tokens = 256 };
    assert_ok(firn_model_open(&model, NULL, &f->stack.model, &err));
    const firn_pool_options pool = { .budget_bytes = pool_bytes };
    assert_ok(firn_pool_create(&pool, NULL, &f->stack.pool, &err));
    exchange_layers(f->stack.model, mixture, f->stack.pool);
    f->tier = with_tier ? fault_tier_create(f->stack.pool) : NULL;
    engine.restore_always = true; /* by the clock it would not be worth it */
    engine.model = f->stack.model;
    engine.pool = f->stack.pool;
    engine.tier = with_tier ? &f->tier->tier : NULL;
    assert_ok(firn_engine_create(&engine, NULL, &f->stack.engine, &err));
}

static firn_flush_report stop_engine(family_stack *f)
{
    firn_flush_report report;
    firn_engine_destroy(f->stack.engine, UINT64_C(10000000000), &report);
    f->stack.engine = NULL;
    return report;
}

static void close_family(family_stack *f)
{
    if (f->stack.engine != NULL) {
        (void)stop_engine(f);
    }
    if (f->tier != NULL) {
        firn_tier_destroy(&f->tier->tier);
    }
    firn_pool_destroy(f->stack.pool); /* asserts that no block is left */
    firn_model_close(f->stack.model);
    firn_workers_destroy(f->stack.workers);
}

static void fill_prompt(firn_token *tokens, uint32_t from, uint32_t n, uint64_t seed)
{
    test_rng rng = { .state = seed };
    for (uint32_t i = from; i < n; i++) {
        tokens[i] = 300 + test_rng_below(&rng, 1500);
    }
}

static firn_request make_request(const firn_token *prompt, uint32_t n_prompt, uint32_t max_tokens)
{
    return (firn_request){ .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n_logprobs = 3,
                           .ignore_end = true };
}

static void wait_for_all(test_answer *answer)
{
    test_wait_end(answer);
    if (answer->finish == FIRN_FINISH_ERROR) {
        fail_msg("%s", answer->error.message);
    }
    assert_int_equal(answer->finish, FIRN_FINISH_LENGTH);
}

static void ask(family_stack *f, firn_request request, test_answer *answer)
{
    firn_error err;
    if (test_submit(&f->stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    wait_for_all(answer);
}

static void assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_memory_equal(&a->logprobs[i].logprob, &b->logprobs[i].logprob, sizeof(float));
    }
}

/* The answer that is computed in full. */
static void ask_uncached(family_stack *f, firn_request request, test_answer *answer)
{
    request.no_cache = true;
    ask(f, request, answer);
    assert_int_equal(answer->usage.cache.n_tokens, 0);
}

/* Asks, checks how many tokens were reused, and that the bits are those of computing all. */
static void ask_and_check(family_stack *f, const firn_token *prompt, uint32_t n, uint32_t n_expected,
                          test_answer *answer)
{
    static test_answer fresh;
    ask(f, make_request(prompt, n, 6), answer);
    assert_int_equal(answer->usage.cache.n_tokens, n_expected);
    ask_uncached(f, make_request(prompt, n, 6), &fresh);
    assert_same_answer(answer, &fresh);
}

static const char *const mixtures[] = { "p", "pw", "m", "pwmb" };

enum { N_MIXTURES = sizeof mixtures / sizeof mixtures[0] };

static bool has_state(const char *mixture)
{
    return strpbrk(mixture, "mb") != NULL;
}

static void each_turn_reuses_the_one_before(void **state)
{
    (void)state;
    static test_answer first, again, more, branch, third;
    static firn_token prompt[PROMPT_MAX], other[PROMPT_MAX];
    for (size_t m = 0; m < N_MIXTURES; m++) {
        const bool fixed = has_state(mixtures[m]);
        family_stack f;
        open_family(&f, mixtures[m], UINT64_C(256) << 20, false, (firn_engine_options){ .chunk_tokens_max = 96 });
        fill_prompt(prompt, 0, 450, m);
        ask_and_check(&f, prompt, 450, 0, &first);
        /* The same prompt: all of it, with the logits behind it. */
        ask_and_check(&f, prompt, 450, 450, &again);
        assert_same_answer(&first, &again);
        /* The conversation goes on: the last token of the answer was chosen and never forwarded. */
        memcpy(prompt + 450, first.tokens, 6 * sizeof prompt[0]);
        fill_prompt(prompt, 456, 600, 1000 + m);
        ask_and_check(&f, prompt, 600, 455, &more);
        /* Another leaves in the middle, and a third where the second did. */
        memcpy(other, prompt, sizeof other);
        fill_prompt(other, 270, 500, 2000 + m);
        ask_and_check(&f, other, 500, fixed ? 0 : 270, &branch);
        assert_int_equal(branch.usage.cache.reason, fixed ? FIRN_REASON_FAMILY_MISSING : FIRN_REASON_DIVERGED);
        assert_int_equal(branch.usage.cache.first_divergence, 270);
        fill_prompt(other, 270, 500, 3000 + m);
        ask_and_check(&f, other, 500, fixed ? 256 : 270, &third);
        close_family(&f);
    }
}

static void a_restart_reuses_what_was_stored(void **state)
{
    (void)state;
    static test_answer first, again;
    static firn_token prompt[PROMPT_MAX];
    for (size_t m = 0; m < N_MIXTURES; m++) {
        family_stack f;
        open_family(&f, mixtures[m], UINT64_C(256) << 20, true, (firn_engine_options){ .chunk_tokens_max = 96 });
        fill_prompt(prompt, 0, 450, m);
        ask(&f, make_request(prompt, 450, 6), &first);
        const firn_flush_report report = stop_engine(&f);
        assert_true(report.durable);
        assert_true(f.tier->dict->n_stores > 0);
        firn_error err;
        const firn_engine_options options = {
            .model = f.stack.model, .pool = f.stack.pool, .tier = &f.tier->tier, .restore_always = true
        };
        assert_ok(firn_engine_create(&options, NULL, &f.stack.engine, &err));
        ask(&f, make_request(prompt, 450, 6), &again);
        assert_int_equal(again.usage.cache.disk_tokens, 449);
        assert_same_answer(&first, &again);
        close_family(&f);
    }
}

/* The key is what the row has computed, in whatever phase it ends: asking again gives the same bits. */
static void a_cancelled_request_publishes_the_count_it_stands_at(void **state)
{
    (void)state;
    enum { N = 6 };
    static test_answer answers[N], again, fresh;
    static firn_token prompts[N][PROMPT_MAX];
    test_rng rng = test_rng_create("cancelled families", 5);
    for (size_t m = 0; m < N_MIXTURES; m++) {
        family_stack f;
        open_family(&f, mixtures[m], UINT64_C(256) << 20, false,
                    (firn_engine_options){ .batch_rows_max = 3, .chunk_tokens_max = 50 });
        for (uint32_t i = 0; i < N; i++) {
            firn_error err;
            fill_prompt(prompts[i], 0, 300, 100 * m + i);
            assert_ok(test_submit(&f.stack, make_request(prompts[i], 200 + i, 90), &answers[i], &err));
        }
        for (uint32_t i = 0; i < N; i++) {
            if (test_rng_below(&rng, 2) == 0) {
                test_wait_tokens(&answers[i], 1 + test_rng_below(&rng, 5));
            } else {
                nanosleep(&(struct timespec){ .tv_nsec = (long)test_rng_below(&rng, 4) * 1000000 }, NULL);
            }
            firn_engine_cancel(f.stack.engine, answers[i].id);
        }
        for (uint32_t i = 0; i < N; i++) {
            test_wait_end(&answers[i]);
            /* The answer so far is the head of the next prompt. */
            memcpy(prompts[i] + 200 + i, answers[i].tokens, answers[i].n_tokens * sizeof(firn_token));
            const uint32_t n = 200 + i + answers[i].n_tokens;
            fill_prompt(prompts[i], n, n + 5, i);
            ask(&f, make_request(prompts[i], n + 5, 4), &again);
            ask_uncached(&f, make_request(prompts[i], n + 5, 4), &fresh);
            assert_same_answer(&again, &fresh);
        }
        close_family(&f);
    }
}

/* Little memory, a slow tier, many requests: none that was let in may fail for want of a block. */
static void what_was_let_in_has_the_memory_it_needs(void **state)
{
    (void)state;
    enum { N = 14 };
    static test_answer answers[N];
    static firn_token prompts[N][PROMPT_MAX];
    for (size_t m = 0; m < N_MIXTURES; m++) {
        family_stack f;
        open_family(&f, mixtures[m], UINT64_C(6) << 20, true,
                    (firn_engine_options){ .batch_rows_max = 4, .chunk_tokens_max = 128 });
        fault_tier_set(f.tier, store_delay_ns, UINT64_C(1000000));
        for (uint32_t i = 0; i < N; i++) {
            firn_error err;
            fill_prompt(prompts[i], 0, 600, i % 5);
            fill_prompt(prompts[i], 100 + 30 * (i % 7), 600, 50 + i);
            if (test_submit(&f.stack, make_request(prompts[i], 250 + i * 9, 8 + i), &answers[i], &err) != FIRN_OK) {
                fail_msg("%s", err.message);
            }
        }
        for (uint32_t i = 0; i < N; i++) {
            wait_for_all(&answers[i]);
            assert_int_equal(answers[i].n_tokens, 8 + i);
        }
        firn_engine_stats stats;
        firn_engine_get_stats(f.stack.engine, &stats);
        assert_int_equal(stats.n_failed, 0);
        assert_true(stats.pool.used_bytes_peak <= stats.pool.budget_bytes);
        printf("%s: %llu reused, %llu evicted, %llu shed\n", mixtures[m],
               (unsigned long long)(stats.prompt_tokens - stats.computed_prompt_tokens),
               (unsigned long long)stats.prefix.n_evicted, (unsigned long long)stats.prefix.n_shed);
        close_family(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_turn_reuses_the_one_before),
        cmocka_unit_test(a_restart_reuses_what_was_stored),
        cmocka_unit_test(a_cancelled_request_publishes_the_count_it_stands_at),
        cmocka_unit_test(what_was_let_in_has_the_memory_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
