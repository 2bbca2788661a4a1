/*
 * Conversations over real architectures of all families, with RAM and disk tiers: each turn reuses what the one before
 * has left, in RAM and after a restart, and answers with the bits of computing everything.
 */
#include <stdlib.h>
#include <string.h>

#include "support/engine_fixture.h"

enum { PROMPT_MAX = 700, N_PROMPT = 390, N_ANSWER = 10 };

/* State of a fixed size can only be resumed where it was kept. */
typedef struct model_case {
    const char *path;
    bool fixed;
} model_case;

static const model_case models[] = {
    { "tests/oracle/llama.gguf", false },
    { "tests/oracle/gemma3.gguf", false },
    { "tests/oracle/gemma4.gguf", false },
    { "tests/oracle/gptoss.gguf", false },
    { "tests/oracle/qwen35.gguf", true },
    { "tests/oracle/qwen3next.gguf", true },
    { "tests/oracle/mamba2.gguf", true },
};

enum { N_MODELS = sizeof models / sizeof models[0] };

static void fill_prompt(firn_token *tokens, uint32_t from, uint32_t n, uint64_t seed)
{
    test_rng rng = { .state = seed };
    for (uint32_t i = from; i < n; i++) {
        tokens[i] = 5 + test_rng_below(&rng, 250);
    }
}

static void ask(test_stack *stack, const firn_token *prompt, uint32_t n, bool no_cache, test_answer *answer)
{
    const firn_request request = { .prompt = prompt, .n_prompt = n, .max_tokens = N_ANSWER, .n_logprobs = 3,
                                   .ignore_end = true, .no_cache = no_cache };
    firn_error err;
    if (test_submit(stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    if (answer->finish == FIRN_FINISH_ERROR) {
        fail_msg("%s", answer->error.message);
    }
    assert_int_equal(answer->n_tokens, N_ANSWER);
}

static void assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_memory_equal(a->tokens, b->tokens, N_ANSWER * sizeof a->tokens[0]);
    for (uint32_t i = 0; i < N_ANSWER; i++) {
        assert_memory_equal(&a->logprobs[i].logprob, &b->logprobs[i].logprob, sizeof(float));
    }
}

/* The bits are those of computing all, and so many tokens were not computed; some of them came from the disk, or none.
 * */
static void ask_and_check(test_stack *stack, const firn_token *prompt, uint32_t n, uint32_t n_reused, bool from_disk)
{
    static test_answer answer, fresh;
    ask(stack, prompt, n, false, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, n_reused);
    assert_int_equal(answer.usage.cache.disk_tokens > 0, from_disk);
    ask(stack, prompt, n, true, &fresh);
    assert_int_equal(fresh.usage.cache.n_tokens, 0);
    assert_same_answer(&answer, &fresh);
}

static void converse(const model_case *model, bool speculates, test_answer *first)
{
    static test_answer answer;
    static firn_token prompt[PROMPT_MAX], branch[PROMPT_MAX];
    char *dir = test_dir_create();
    const test_stack_options options = { .model_path = model->path,
                                         .disk_dir = dir,
                                         .draft_path = speculates ? model->path : NULL, /* guesses well */
                                         .engine = { .chunk_tokens_max = 100, .ctx_tokens_max = PROMPT_MAX } };
    test_stack stack;
    test_stack_open(&stack, &options);
    fill_prompt(prompt, 0, N_PROMPT, 1);
    ask(&stack, prompt, N_PROMPT, false, first);
    assert_int_equal(first->usage.cache.n_tokens, 0);
    ask_and_check(&stack, prompt, N_PROMPT, N_PROMPT, false);
    /* The conversation goes on, and another leaves it; a third leaves where the second did. */
    memcpy(prompt + N_PROMPT, first->tokens, N_ANSWER * sizeof prompt[0]);
    fill_prompt(prompt, N_PROMPT + N_ANSWER, 500, 2);
    ask_and_check(&stack, prompt, 500, N_PROMPT + N_ANSWER - 1, false);
    memcpy(branch, prompt, sizeof branch);
    fill_prompt(branch, 200, 420, 3);
    ask(&stack, branch, 420, false, &answer);
    fill_prompt(branch, 200, 420, 4);
    ask_and_check(&stack, branch, 420, model->fixed ? 192 : 200, false);
    assert_true(test_stack_close(&stack, 20000000000).durable);

    test_stack_open(&stack, &options);
    fill_prompt(branch, 420, 440, 5); /* after the prompt, not as it was answered */
    ask_and_check(&stack, branch, 440, 420, true);
    ask_and_check(&stack, prompt, 500, 500, true);
    (void)test_stack_close(&stack, 20000000000);
    test_dir_remove(dir);
    free(dir);
}

static void each_turn_reuses_the_one_before_with_the_same_bits(void **state)
{
    (void)state;
    static test_answer first;
    for (size_t m = 0; m < N_MODELS; m++) {
        print_message("%s\n", models[m].path);
        converse(&models[m], false, &first);
    }
}

/* As many tokens are reused, and the answers are the same. */
static void speculation_costs_no_hits(void **state)
{
    (void)state;
    static test_answer plain, speculated;
    const model_case *const some[] = { &models[1], &models[4] };
    for (size_t m = 0; m < 2; m++) {
        converse(some[m], false, &plain);
        converse(some[m], true, &speculated);
        assert_true(speculated.usage.draft.drafted_tokens > 0 && plain.usage.draft.drafted_tokens == 0);
        assert_same_answer(&plain, &speculated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_turn_reuses_the_one_before_with_the_same_bits),
        cmocka_unit_test(speculation_costs_no_hits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
