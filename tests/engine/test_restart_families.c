/*
 * A restart over real models of every storage family: what one process stored on disk the next one answers from, with
 * the same bits, and goes on from in the next turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/engine_fixture.h"

enum { PROMPT = 330, ANSWER = 24, TURN = 40 };

/* Full attention; states alone; states and full attention; windows and full attention. */
static const char *const models[] = { "llama", "mamba2", "qwen35", "gptoss", "gemma3" };

typedef struct conversation {
    firn_token tokens[PROMPT + ANSWER + TURN];
    test_answer first, second;
} conversation;

static void ask(test_stack *stack, const firn_token *prompt, uint32_t n, test_answer *answer)
{
    firn_error err;
    const firn_request request = { .prompt = prompt, .n_prompt = n, .max_tokens = ANSWER, .n_logprobs = 3,
                                   .ignore_end = true };
    if (test_submit(stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->finish, FIRN_FINISH_LENGTH);
}

static void assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    assert_memory_equal(a->logprobs, b->logprobs, a->n_tokens * sizeof a->logprobs[0]);
}

/* The first turn, and a second that goes on with its answer and some more. */
static void talk(test_stack *stack, conversation *c)
{
    ask(stack, c->tokens, PROMPT, &c->first);
    memcpy(c->tokens + PROMPT, c->first.tokens, ANSWER * sizeof c->tokens[0]);
    ask(stack, c->tokens, PROMPT + ANSWER + TURN, &c->second);
}

static void forget(conversation *c)
{
    test_answer_deinit(&c->first);
    test_answer_deinit(&c->second);
}

static void restart_in_every_family(bool in_layer_order)
{
    test_rng rng = test_rng_create("restart", 61);
    static conversation cold, again;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char path[64];
        (void)snprintf(path, sizeof path, "tests/oracle/%s.gguf", models[m]);
        char *dir = test_dir_create();
        const test_stack_options options = { .model_path = path,
                                             .disk_dir = dir,
                                             .engine = { .layered_bytes_min = in_layer_order ? 1 : UINT64_MAX } };
        for (uint32_t i = 0; i < PROMPT + ANSWER + TURN; i++) {
            cold.tokens[i] = again.tokens[i] = 10 + test_rng_below(&rng, 200);
        }
        test_stack stack;
        test_stack_open(&stack, &options);
        talk(&stack, &cold);
        assert_int_equal(cold.first.usage.cache.n_tokens, 0);
        const firn_flush_report report = test_stack_close(&stack, UINT64_C(10000000000));
        assert_true(report.durable);
        assert_int_equal(report.n_failed, 0);

        test_stack_open(&stack, &options);
        talk(&stack, &again);
        print_message("%s: %u of %u tokens from disk\n", models[m], (unsigned)again.first.usage.cache.disk_tokens,
                      (unsigned)PROMPT);
        /* The second turn has taken the place of the first prompt's last state; that of its last whole block is there. */
        assert_true(again.first.usage.cache.disk_tokens >= PROMPT / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS);
        assert_int_equal(again.first.usage.cache.ram_tokens, 0);
        assert_true(again.second.usage.cache.n_tokens > PROMPT);
        assert_same_answer(&cold.first, &again.first);
        assert_same_answer(&cold.second, &again.second);
        firn_error err = { .message = "" };
        if (firn_disk_check(stack.tier, &err) != FIRN_OK) {
            fail_msg("%s", err.message);
        }
        (void)test_stack_close(&stack, UINT64_C(10000000000));
        forget(&cold);
        forget(&again);
        test_dir_remove(dir);
        free(dir);
    }
}

static void a_restart_answers_from_disk_in_every_family(void **state)
{
    (void)state;
    restart_in_every_family(false);
}

/* Each layer as it comes from the disk, and the prompt's rest begun on the first ones. */
static void a_restart_answers_layer_by_layer_in_every_family(void **state)
{
    (void)state;
    restart_in_every_family(true);
}

/* Wherever the prompt ends in a block: also a state that cannot be cut stands one token before the end. */
static void the_same_prompt_after_a_restart_computes_one_token(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 319, 320, 321, 330 };
    test_rng rng = test_rng_create("repeat", 62);
    static test_answer cold, again;
    for (size_t i = 0; i < sizeof models / sizeof models[0] * (sizeof lengths / sizeof lengths[0]); i++) {
        const uint32_t n = lengths[i % (sizeof lengths / sizeof lengths[0])];
        char path[64];
        (void)snprintf(path, sizeof path, "tests/oracle/%s.gguf", models[i / (sizeof lengths / sizeof lengths[0])]);
        char *dir = test_dir_create();
        const test_stack_options options = { .model_path = path, .disk_dir = dir };
        firn_token prompt[PROMPT];
        for (uint32_t t = 0; t < n; t++) {
            prompt[t] = 10 + test_rng_below(&rng, 200);
        }
        test_stack stack;
        test_stack_open(&stack, &options);
        ask(&stack, prompt, n, &cold);
        assert_true(test_stack_close(&stack, UINT64_C(10000000000)).durable);
        test_stack_open(&stack, &options);
        ask(&stack, prompt, n, &again);
        if (again.usage.cache.disk_tokens != n - 1) {
            fail_msg("%s: %u of %u tokens from disk", path, again.usage.cache.disk_tokens, n);
        }
        assert_same_answer(&cold, &again);
        (void)test_stack_close(&stack, UINT64_C(10000000000));
        test_answer_deinit(&cold);
        test_answer_deinit(&again);
        test_dir_remove(dir);
        free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_answers_from_disk_in_every_family),
        cmocka_unit_test(a_restart_answers_layer_by_layer_in_every_family),
        cmocka_unit_test(the_same_prompt_after_a_restart_computes_one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
