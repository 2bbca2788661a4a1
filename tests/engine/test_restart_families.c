/*
 * A restart over real models of every storage family: what one process stored on disk the next one answers from, with
 * the same bits, and goes on from in the next turn.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    const firn_request request = { .prompt = prompt, .n_prompt = n, .max_tokens = ANSWER, .n_logprobs = 3,
                                   .ignore_end = true };
    test_ask(stack, request, answer);
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
        /* The second turn has taken the place of the first prompt's last state; that of its last whole block
         * is there. */
        assert_true(again.first.usage.cache.disk_tokens >= PROMPT / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS);
        assert_int_equal(again.first.usage.cache.ram_tokens, 0);
        assert_true(again.second.usage.cache.n_tokens > PROMPT);
        test_assert_same_answer(&cold.first, &again.first);
        test_assert_same_answer(&cold.second, &again.second);
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

static const char *const all_models[] = { "llama", "mamba2", "qwen35", "gptoss", "gemma3", "gemma4", "deepseek2" };

typedef struct repeat {
    char *dir;
    test_stack_options options;
    char path[64];
    firn_token prompt[PROMPT];
    uint32_t n;
} repeat;

static repeat repeat_begin(test_rng *rng, const char *model, uint32_t n)
{
    repeat r = { .dir = test_dir_create(), .n = n };
    (void)snprintf(r.path, sizeof r.path, "tests/oracle/%s.gguf", model);
    for (uint32_t t = 0; t < n; t++) {
        r.prompt[t] = 10 + test_rng_below(rng, 200);
    }
    return r;
}

static void repeat_end(repeat *r)
{
    test_dir_remove(r->dir);
    free(r->dir);
}

static test_stack open_repeat(const repeat *r)
{
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .model_path = r->path, .disk_dir = r->dir });
    return stack;
}

/* Asks in a process of its own, as it were, and stops that. Returns how many forwards it took. */
static uint64_t ask_after_restart(const repeat *r, firn_request request, test_answer *answer)
{
    test_stack stack = open_repeat(r);
    firn_error err;
    request.prompt = r->prompt;
    request.n_prompt = request.n_prompt > 0 ? request.n_prompt : r->n;
    request.max_tokens = request.max_tokens > 0 ? request.max_tokens : ANSWER;
    request.n_logprobs = 3;
    request.ignore_end = true;
    if (test_submit(&stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->finish, FIRN_FINISH_LENGTH);
    firn_engine_stats stats;
    do { /* counts are published after each step; the answer may be heard a moment before */
        firn_engine_get_stats(stack.engine, &stats);
    } while (stats.n_finished < 1 || stats.n_running > 0);
    assert_true(test_stack_close(&stack, UINT64_C(10000000000)).durable);
    return stats.n_steps;
}

/* Wherever the prompt ends in a block, and in every family: state that is cut, windows, and states that are not. */
static void the_same_prompt_after_a_restart_computes_no_token(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 319, 320, 330 };
    enum { N_LENGTHS = sizeof lengths / sizeof lengths[0], N_MODELS = sizeof all_models / sizeof all_models[0] };
    test_rng rng = test_rng_create("repeat", 62);
    static test_answer cold, again;
    for (size_t i = 0; i < N_MODELS * N_LENGTHS; i++) {
        repeat r = repeat_begin(&rng, all_models[i / N_LENGTHS], lengths[i % N_LENGTHS]);
        (void)ask_after_restart(&r, (firn_request){ 0 }, &cold);
        assert_int_equal(cold.usage.cache.n_tokens, 0);
        const uint64_t n_steps = ask_after_restart(&r, (firn_request){ 0 }, &again);
        if (again.usage.cache.disk_tokens != r.n || n_steps != ANSWER - 1) { /* none for the first token */
            fail_msg("%s: %u of %u tokens from disk, %u steps", r.path, again.usage.cache.disk_tokens, r.n,
                     (unsigned)n_steps);
        }
        test_assert_same_answer(&cold, &again);
        test_answer_deinit(&cold);
        test_answer_deinit(&again);
        repeat_end(&r);
    }
}

/* A bit in the only object of the directory, which was stored last and ends in the numbers themselves. */
static void damage_logits(const repeat *r)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", r->dir);
    const int fd = open(path, O_RDWR);
    struct stat st;
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, st.st_size - 4096 + 3), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 4096 + 3), 1);
    assert_int_equal(close(fd), 0);
}

static void damaged_logits_cost_one_token_and_nothing_else(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("damage", 63);
    static test_answer cold, again, mended;
    static const char *const families[] = { "llama", "qwen35", "gemma3" };
    for (size_t m = 0; m < sizeof families / sizeof families[0]; m++) {
        repeat r = repeat_begin(&rng, families[m], PROMPT);
        (void)ask_after_restart(&r, (firn_request){ .max_tokens = 1 }, &cold);
        damage_logits(&r);
        (void)ask_after_restart(&r, (firn_request){ .max_tokens = 1 }, &again);
        if (again.usage.cache.disk_tokens != r.n - 1) {
            fail_msg("%s: %u of %u tokens from disk", r.path, again.usage.cache.disk_tokens, r.n);
        }
        test_assert_same_answer(&cold, &again);
        /* They were computed again, and stored in the place of the damaged ones. */
        (void)ask_after_restart(&r, (firn_request){ .max_tokens = 1 }, &mended);
        assert_int_equal(mended.usage.cache.disk_tokens, r.n);
        test_assert_same_answer(&cold, &mended);
        test_answer_deinit(&cold);
        test_answer_deinit(&again);
        test_answer_deinit(&mended);
        repeat_end(&r);
    }
}

static void stored_logits_are_those_of_their_namespace(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("namespaces", 64);
    static test_answer answer;
    repeat r = repeat_begin(&rng, "qwen35", PROMPT);
    (void)ask_after_restart(&r, (firn_request){ .ns = "house" }, &answer);
    (void)ask_after_restart(&r, (firn_request){ .ns = "other" }, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, 0);
    (void)ask_after_restart(&r, (firn_request){ 0 }, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, 0);
    /* A child reads its parent's. */
    (void)ask_after_restart(&r, (firn_request){ .ns = "house\x1f" "child" }, &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, PROMPT);
    test_answer_deinit(&answer);
    repeat_end(&r);
}

static void logits_of_a_request_that_stores_in_ram_alone_stay_there(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("ram", 65);
    static test_answer answer;
    repeat r = repeat_begin(&rng, "llama", PROMPT);
    const firn_request in_ram = { .n_prompt = PROMPT - 100, .cache = { .store = FIRN_STORE_RAM } };
    (void)ask_after_restart(&r, (firn_request){ 0 }, &answer); /* the state of its prompt is stored with a longer
                                                                * one's */
    (void)ask_after_restart(&r, in_ram, &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, PROMPT - 101);
    (void)ask_after_restart(&r, in_ram, &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, PROMPT - 101);
    (void)ask_after_restart(&r, (firn_request){ .n_prompt = PROMPT - 100 }, &answer); /* and this one may */
    (void)ask_after_restart(&r, in_ram, &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, PROMPT - 100);
    test_answer_deinit(&answer);
    repeat_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_answers_from_disk_in_every_family),
        cmocka_unit_test(a_restart_answers_layer_by_layer_in_every_family),
        cmocka_unit_test(the_same_prompt_after_a_restart_computes_no_token),
        cmocka_unit_test(damaged_logits_cost_one_token_and_nothing_else),
        cmocka_unit_test(stored_logits_are_those_of_their_namespace),
        cmocka_unit_test(logits_of_a_request_that_stores_in_ram_alone_stay_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
