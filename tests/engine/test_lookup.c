/*
 * The token loop beside a lookup that does not come back: rows go on to their end, and the request that waits has what
 * was stored once it does.
 */
#include <string.h>

#include "support/engine_fixture.h"
#include "support/fault_tier.h"

enum { STORED = 200, PROMPT = 220, ANSWER = 40 };
#define SECOND UINT64_C(1000000000)

static void rows_go_on_while_a_lookup_is_held(void **state)
{
    (void)state;
    static test_answer running, waiting, fresh;
    static firn_token prompt[PROMPT];
    test_stack stack;
    fault_tier *fault = fault_tier_create(NULL);
    test_stack_open(&stack, &(test_stack_options){ .tier = &fault->tier });
    fault->pool = stack.pool;
    test_rng rng = test_rng_create("lookup", 17);
    for (uint32_t i = 0; i < PROMPT; i++) {
        prompt[i] = 300 + test_rng_below(&rng, 1500);
    }
    firn_request request = { .prompt = prompt, .n_prompt = STORED, .max_tokens = 1, .ignore_end = true };
    assert_ok(test_submit(&stack, request, &running, NULL));
    test_wait_end(&running);
    firn_flush_report report;
    firn_engine_destroy(stack.engine, 10 * SECOND, &report);
    assert_true(report.durable);
    const firn_engine_options options = { .model = stack.model, .pool = stack.pool, .tier = stack.tier,
                                          .batch_rows_max = 4, .restore_always = true };
    assert_ok(firn_engine_create(&options, NULL, &stack.engine, NULL));

    /* The row is decoding before the lookup begins, and ends before it is let go. */
    fault_tier_set(fault, hang_finds, true);
    request = (firn_request){ .prompt = prompt + 10, .n_prompt = 50, .max_tokens = 40, .ignore_end = true,
                              .no_cache = true };
    assert_ok(test_submit(&stack, request, &running, NULL));
    test_wait_tokens(&running, 2);
    request = (firn_request){ .prompt = prompt, .n_prompt = PROMPT, .max_tokens = ANSWER, .ignore_end = true };
    assert_ok(test_submit(&stack, request, &waiting, NULL));
    test_wait_end(&running);
    assert_int_equal(running.finish, FIRN_FINISH_LENGTH);
    assert_int_equal(fault_tier_get(fault, &fault->n_finding), 1);
    (void)pthread_mutex_lock(&waiting.mutex);
    const uint32_t n_waiting_tokens = waiting.n_tokens;
    (void)pthread_mutex_unlock(&waiting.mutex);
    assert_int_equal(n_waiting_tokens, 0);
    fault_tier_set(fault, hang_finds, false);
    test_wait_end(&waiting);
    assert_int_equal(waiting.usage.cache.disk_tokens, STORED);
    request.no_cache = true;
    assert_ok(test_submit(&stack, request, &fresh, NULL));
    test_wait_end(&fresh);
    assert_memory_equal(waiting.tokens, fresh.tokens, ANSWER * sizeof fresh.tokens[0]);
    (void)test_stack_close(&stack, 10 * SECOND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_on_while_a_lookup_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
