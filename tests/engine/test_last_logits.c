/*
 * An exact repeat of a prompt is answered without a forward: its state and the logits behind its last token are there.
 * Over every storage family, with the bits of the first answer.
 */
#include <stdio.h>
#include <string.h>

#include "support/engine_fixture.h"

enum { PROMPT = 200, ANSWER = 12 };

static const char *const models[] = { "llama", "deepseek2", "mamba2", "qwen35", "gptoss", "gemma3", "gemma4" };

static void fill_prompt(firn_token *tokens, uint32_t n, uint64_t seed)
{
    test_rng rng = { .state = seed };
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = 10 + test_rng_below(&rng, 200);
    }
}

static firn_request request_of(const firn_token *prompt, uint32_t n, uint32_t max_tokens)
{
    return (firn_request){ .prompt = prompt, .n_prompt = n, .max_tokens = max_tokens, .n_logprobs = 4,
                           .ignore_end = true };
}

/* Counts are published after each step; the answer may be heard a moment before. */
static firn_engine_stats stats_of(test_stack *stack, uint64_t n_finished)
{
    firn_engine_stats stats;
    do {
        firn_engine_get_stats(stack->engine, &stats);
    } while (stats.n_finished < n_finished || stats.n_running > 0);
    return stats;
}

static void a_repeat_needs_no_forward_in_every_family(void **state)
{
    (void)state;
    static test_answer cold, warm, one, sampled, again, fresh;
    firn_token prompt[PROMPT];
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char path[64];
        (void)snprintf(path, sizeof path, "tests/oracle/%s.gguf", models[m]);
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .model_path = path });
        fill_prompt(prompt, PROMPT, 7 + m);
        test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &cold);
        assert_int_equal(cold.usage.cache.n_tokens, 0);
        const firn_engine_stats before = stats_of(&stack, 1);
        test_ask(&stack, request_of(prompt, PROMPT, 1), &one); /* the first token alone: no step at all */
        const firn_engine_stats after = stats_of(&stack, 2);
        assert_int_equal(one.usage.cache.n_tokens, PROMPT);
        assert_int_equal(after.n_steps, before.n_steps);
        assert_int_equal(after.prefix.n_logits_hits, 1);
        assert_memory_equal(&one.logprobs[0], &cold.logprobs[0], sizeof one.logprobs[0]);
        /* All of the answer, also long after others came by and the first row's end is in the tree. */
        test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &warm);
        assert_int_equal(warm.usage.cache.n_tokens, PROMPT);
        test_assert_same_answer(&cold, &warm);
        /* Sampling sees the same numbers. */
        firn_request request = request_of(prompt, PROMPT, ANSWER);
        request.sampling = (firn_sampling){ .temperature = 0.9f, .top_p = 0.9f, .has_seed = true, .seed = 5 };
        test_ask(&stack, request, &sampled);
        assert_int_equal(sampled.usage.cache.n_tokens, PROMPT);
        request.no_cache = true;
        test_ask(&stack, request, &fresh);
        test_assert_same_answer(&sampled, &fresh);
        /* Another namespace has neither the state nor the logits. */
        request = request_of(prompt, PROMPT, ANSWER);
        request.ns = "other";
        test_ask(&stack, request, &again);
        assert_int_equal(again.usage.cache.n_tokens, 0);
        (void)test_stack_close(&stack, 1000000000);
    }
}

static void guessing_rows_begin_with_kept_logits_too(void **state)
{
    (void)state;
    static test_answer cold, warm;
    firn_token prompt[PROMPT];
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .model_path = "tests/oracle/qwen35.gguf",
                                                   .engine = { .draft_ngram = true, .draft_always = true } });
    for (uint32_t i = 0; i < PROMPT; i++) {
        prompt[i] = 20 + i % 10; /* repeats itself: there is something to guess */
    }
    test_ask(&stack, request_of(prompt, PROMPT, 40), &cold);
    test_ask(&stack, request_of(prompt, PROMPT, 40), &warm);
    assert_int_equal(warm.usage.cache.n_tokens, PROMPT);
    assert_true(warm.usage.draft.n_rounds > 0);
    test_assert_same_answer(&cold, &warm);
    (void)test_stack_close(&stack, 1000000000);
}

/* Logits without state serve nobody: with room for one prompt, the second takes the first one's. */
static void logits_whose_state_has_left_are_not_served(void **state)
{
    (void)state;
    static test_answer first, second, again;
    firn_token prompt[PROMPT], other[PROMPT];
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .model_path = "tests/oracle/llama.gguf" });
    fill_prompt(prompt, PROMPT, 1);
    test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &first);
    firn_pool_stats pool;
    firn_pool_get_stats(stack.pool, &pool);
    const uint64_t one_bytes = pool.used_bytes;
    (void)test_stack_close(&stack, 1000000000);

    test_stack_open(&stack, &(test_stack_options){ .model_path = "tests/oracle/llama.gguf",
                                                   .pool_bytes = one_bytes + one_bytes / 2 });
    fill_prompt(other, PROMPT, 2);
    test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &again);
    test_ask(&stack, request_of(other, PROMPT, ANSWER), &second);
    test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &again);
    assert_true(again.usage.cache.n_tokens < PROMPT);
    test_assert_same_answer(&first, &again);
    (void)test_stack_close(&stack, 1000000000);
}

static void many_repeats_at_once_are_all_answered(void **state)
{
    (void)state;
    enum { N = 8 };
    static test_answer cold, warm[N];
    firn_token prompt[PROMPT];
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .model_path = "tests/oracle/mamba2.gguf",
                                                   .engine = { .batch_rows_max = 3 } });
    fill_prompt(prompt, PROMPT, 3);
    test_ask(&stack, request_of(prompt, PROMPT, ANSWER), &cold);
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        assert_ok(test_submit(&stack, request_of(prompt, PROMPT, 1 + i), &warm[i], &err));
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_end(&warm[i]);
        assert_int_equal(warm[i].n_tokens, 1 + i);
        assert_int_equal(warm[i].usage.cache.n_tokens, PROMPT);
        assert_memory_equal(warm[i].logprobs, cold.logprobs, (1 + i) * sizeof cold.logprobs[0]);
    }
    (void)test_stack_close(&stack, 1000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeat_needs_no_forward_in_every_family),
        cmocka_unit_test(guessing_rows_begin_with_kept_logits_too),
        cmocka_unit_test(logits_whose_state_has_left_are_not_served),
        cmocka_unit_test(many_repeats_at_once_are_all_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
