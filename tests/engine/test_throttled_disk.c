/*
 * A throttled disk, by a seam: the engine computes instead, and a prompt waits for it less than a tenth of what computing
 * takes. At 5 MB/s restoring the state of this model still takes less time than computing it on a slow machine, and is
 * right: so the disk is ten times slower than that. All rates, on a clock of the test's own: tests/prefix/test_prefix_gate.c.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/engine_fixture.h"

enum { PROMPT = 1200, ANSWER = 4, N_PROMPTS = 3 };
#define BYTES_PER_SECOND 500000u

typedef struct throttle {
    firn_io io; /* the system's, but for the reads of restores */
    bool is_slow;
} throttle;

static int slow_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                           void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    const throttle *t = ctx;
    const firn_io *inner = firn_io_default();
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n_reads; i++) {
        for (uint32_t v = 0; v < reads[i].n_iov; v++) {
            n_bytes += reads[i].iov[v].iov_len;
        }
    }
    if (t->is_slow) {
        const uint64_t ns = n_bytes * 1000000000u / BYTES_PER_SECOND;
        const struct timespec pause = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
        (void)nanosleep(&pause, NULL);
    }
    return inner->read_batch(inner->ctx, reads, n_reads, done, done_ctx);
}

static void fill_prompt(firn_token *tokens, uint64_t seed)
{
    test_rng rng = { .state = seed };
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = 300 + test_rng_below(&rng, 1500);
    }
}

static void ask(test_stack *stack, uint64_t seed, test_answer *answer)
{
    static firn_token prompt[PROMPT];
    firn_error err;
    fill_prompt(prompt, seed);
    const firn_request request = { .prompt = prompt, .n_prompt = PROMPT, .max_tokens = ANSWER, .n_logprobs = 2,
                                   .ignore_end = true };
    if (test_submit(stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->finish, FIRN_FINISH_LENGTH);
}

static void a_throttled_disk_costs_a_prompt_less_than_a_tenth(void **state)
{
    (void)state;
    static test_answer cold[N_PROMPTS], warm;
    throttle t = { .io = *firn_io_default() };
    t.io.read_batch = slow_read_batch;
    t.io.ctx = &t;
    const firn_env env = { .io = &t.io };
    char *dir = test_dir_create();
    const test_stack_options options = { .disk_dir = dir, .env = &env, .is_gated = true };
    test_stack stack;
    test_stack_open(&stack, &options);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        ask(&stack, 50 + p, &cold[p]);
    }
    assert_true(test_stack_close(&stack, UINT64_C(20000000000)).durable);

    t.is_slow = true;
    test_stack_open(&stack, &options);
    for (uint32_t p = 0; p < N_PROMPTS - 1; p++) {
        ask(&stack, 50 + p, &warm);
        print_message("waited %.1f ms of %.1f ms: %s\n", (double)warm.usage.cache.restore_ns * 1e-6,
                      (double)warm.usage.first_token_ns * 1e-6, firn_reason_name(warm.usage.cache.reason));
        assert_int_equal(warm.usage.cache.disk_tokens, 0);
        assert_int_equal(warm.usage.cache.reason, FIRN_REASON_BREAKEVEN);
        /* What the engine's thread is late by on a busy machine is not the tier's. */
        assert_true(warm.usage.cache.restore_ns <= warm.usage.prefill_ns / 10 + 30000000u);
        assert_memory_equal(warm.tokens, cold[p].tokens, ANSWER * sizeof warm.tokens[0]);
        assert_memory_equal(warm.logprobs, cold[p].logprobs, ANSWER * sizeof warm.logprobs[0]);
    }
    firn_engine_stats stats;
    firn_engine_get_stats(stack.engine, &stats);
    assert_int_equal(stats.prefix.n_hits_disk, 0);
    assert_int_equal(stats.prefix.n_restores, 1); /* what it showed was enough */
    assert_int_equal(stats.prefix.n_restores_given_up + stats.prefix.n_restores_refused, N_PROMPTS - 1);
    (void)test_stack_close(&stack, UINT64_C(20000000000));
    test_dir_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_throttled_disk_costs_a_prompt_less_than_a_tenth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
