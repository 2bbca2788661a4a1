/*
 * The engine as its users see it: answers do not depend on company, caches tell the truth, limits hold, requests can be
 * cancelled at any time. Bits are compared through the log-probabilities of every token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/engine_fixture.h"

enum { PROMPT_MAX = 400 };

/* A prompt of n tokens that depends on `seed`; never a control token. */
static void fill_prompt(firn_token *tokens, uint32_t n, uint64_t seed)
{
    test_rng rng = { .state = seed };
    tokens[0] = 1;
    for (uint32_t i = 1; i < n; i++) {
        tokens[i] = 300 + test_rng_below(&rng, 1500);
    }
}

static firn_request make_request(const firn_token *prompt, uint32_t n_prompt, uint32_t max_tokens)
{
    return (firn_request){ .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n_logprobs = 6 };
}

/* Rows choose in different ways, and at the same time. */
static firn_request make_sampling_request(const firn_token *prompt, uint32_t n_prompt, uint32_t max_tokens,
                                          uint32_t way)
{
    static const firn_sampling ways[] = {
        { .temperature = 0.0f },
        { .temperature = 0.9f, .has_seed = true, .seed = 1 },
        { .temperature = 1.1f, .top_k = 40, .top_p = 0.9f, .has_seed = true, .seed = 2 },
        { .temperature = 1.0f, .top_p = 0.95f, .repetition_penalty = 1.1f, .frequency_penalty = 0.3f,
          .has_seed = true, .seed = 3 },
    };
    firn_request request = make_request(prompt, n_prompt, max_tokens);
    request.sampling = ways[way % 4];
    request.ignore_end = true;
    return request;
}

static void assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_memory_equal(&a->logprobs[i].logprob, &b->logprobs[i].logprob, sizeof(float));
        assert_int_equal(a->logprobs[i].n_top, 5);
        assert_memory_equal(a->logprobs[i].top_logprobs, b->logprobs[i].top_logprobs, 5 * sizeof(float));
        assert_memory_equal(a->logprobs[i].top_tokens, b->logprobs[i].top_tokens, 5 * sizeof(firn_token));
    }
    assert_string_equal(a->text, b->text);
}

static void ask(test_stack *stack, firn_request request, test_answer *answer)
{
    firn_error err;
    const firn_status status = test_submit(stack, request, answer, &err);
    if (status != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->n_ends, 1);
}

static void answers_do_not_depend_on_company(void **state)
{
    (void)state;
    enum { N = 10 };
    static test_answer alone[N], together[N];
    static firn_token prompts[N][PROMPT_MAX];
    uint32_t lengths[N];
    test_rng rng = test_rng_create("company", 7);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = { .no_prefix_cache = true, .chunk_tokens_max = 64 } });
    for (uint32_t i = 0; i < N; i++) {
        lengths[i] = 1 + test_rng_below(&rng, 200);
        fill_prompt(prompts[i], lengths[i], i);
        ask(&stack, make_sampling_request(prompts[i], lengths[i], 20 + i, i), &alone[i]);
        assert_int_equal(alone[i].n_tokens, 20 + i);
        assert_int_equal(alone[i].finish, FIRN_FINISH_LENGTH);
    }
    (void)test_stack_close(&stack, 1000000000);

    /* Other chunk, threads and batch; joins and leaves at irregular moments. */
    test_stack_open(&stack,
                    &(test_stack_options){ .n_threads = 2, .engine = { .batch_rows_max = 5, .chunk_tokens_max = 37 } });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        const firn_request request = make_sampling_request(prompts[i], lengths[i], 20 + i, i);
        assert_ok(test_submit(&stack, request, &together[i], &err));
        if (test_rng_below(&rng, 2) == 0) {
            test_wait_tokens(&together[i], 1 + test_rng_below(&rng, 4));
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_end(&together[i]);
        assert_same_answer(&alone[i], &together[i]);
    }
    (void)test_stack_close(&stack, 1000000000);
}

static void a_repeated_prompt_is_answered_from_ram_with_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 16, 17, 63, 64, 65, 127, 128, 129, 200 };
    static test_answer cold, warm;
    firn_token prompt[PROMPT_MAX];
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        fill_prompt(prompt, lengths[i], 100 + i);
        ask(&stack, make_request(prompt, lengths[i], 12), &cold);
        assert_int_equal(cold.usage.cache.n_tokens, 0);
        /* Every prompt begins with the same BOS: from the second on something matches, but too little to be of use. */
        assert_int_equal(cold.usage.cache.reason, i == 0 ? FIRN_REASON_NO_PREFIX : FIRN_REASON_BELOW_MIN);
        ask(&stack, make_request(prompt, lengths[i], 12), &warm);
        const uint32_t expected = lengths[i]; /* with the logits behind it: nothing is computed again */
        assert_int_equal(warm.usage.cache.n_tokens, expected);
        assert_int_equal(warm.usage.cache.ram_tokens, expected);
        assert_int_equal(warm.usage.cache.disk_tokens, 0);
        assert_same_answer(&cold, &warm);
    }
    (void)test_stack_close(&stack, 1000000000);
}

static void a_conversation_reuses_its_own_answer(void **state)
{
    (void)state;
    static test_answer first, second, fresh;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 100, 3);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    ask(&stack, make_request(prompt, 100, 40), &first);
    memcpy(prompt + 100, first.tokens, 40 * sizeof prompt[0]);
    fill_prompt(prompt + 140, 30, 4);
    ask(&stack, make_request(prompt, 170, 10), &second);
    /* The last token of the first answer was chosen but never forwarded. */
    assert_int_equal(second.usage.cache.ram_tokens, 139);
    firn_request uncached = make_request(prompt, 170, 10);
    uncached.no_cache = true;
    ask(&stack, uncached, &fresh);
    assert_int_equal(fresh.usage.cache.n_tokens, 0);
    assert_int_equal(fresh.usage.cache.reason, FIRN_REASON_DISABLED);
    assert_same_answer(&second, &fresh);
    (void)test_stack_close(&stack, 1000000000);
}

static void divergence_is_named(void **state)
{
    (void)state;
    static test_answer answer;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 150, 11);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    ask(&stack, make_request(prompt, 150, 4), &answer);
    const firn_token old = prompt[90];
    prompt[90] = old == 400 ? 401 : 400;
    ask(&stack, make_request(prompt, 150, 4), &answer);
    assert_int_equal(answer.usage.cache.ram_tokens, 90);
    assert_int_equal(answer.usage.cache.first_divergence, 90);
    assert_true(answer.usage.cache.diverged);
    assert_int_equal(answer.usage.cache.stored_token, old);
    assert_int_equal(answer.usage.cache.reason, FIRN_REASON_DIVERGED);
    (void)test_stack_close(&stack, 1000000000);
}

static void namespaces_do_not_see_each_other(void **state)
{
    (void)state;
    static test_answer answer;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 120, 12);
    char *dir = test_dir_create();
    for (int restart = 0; restart < 2; restart++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
        firn_request request = make_request(prompt, 120, 4);
        request.ns = "alice";
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, restart == 0 ? 0 : 120);
        request.ns = "bob";
        request.no_cache = restart == 0; /* bob stores nothing in the first run */
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, 0);
        request.no_cache = false;
        request.ns = "alice";
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, 120);
        (void)test_stack_close(&stack, 5000000000);
    }
    test_dir_remove(dir);
    free(dir);
}

static void a_restart_answers_from_disk_with_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 63, 64, 65, 129, 300 };
    enum { N = sizeof lengths / sizeof lengths[0] };
    static const struct {
        firn_dtype dtype;
        firn_kv_scheme scheme;
    } kinds[] = { { .dtype = FIRN_DTYPE_F32 },
                  { .dtype = FIRN_DTYPE_F16 },
                  { .dtype = FIRN_DTYPE_BF16 },
                  { .scheme = { .kind = FIRN_KV_AFFINE, .key_bits = 8 } },
                  { .scheme = { .kind = FIRN_KV_AFFINE, .key_bits = 4 } },
                  /* Shorter than every prompt: what is not converted is not stored. */
                  { .scheme = { .kind = FIRN_KV_AFFINE, .key_bits = 8, .delay_tokens = 20 } } };
    enum { N_KINDS = sizeof kinds / sizeof kinds[0] };
    static test_answer cold[N], restored;
    static firn_token prompts[N][PROMPT_MAX];
    for (size_t d = 0; d < N_KINDS; d++) {
        char *dir = test_dir_create();
        test_stack stack;
        test_stack_options options = { .disk_dir = dir, .kv_dtype = kinds[d].dtype, .kv_scheme = kinds[d].scheme };
        test_stack_open(&stack, &options);
        for (uint32_t i = 0; i < N; i++) {
            fill_prompt(prompts[i], lengths[i], 50 + i);
            ask(&stack, make_request(prompts[i], lengths[i], 8), &cold[i]);
        }
        const firn_flush_report report = test_stack_close(&stack, 10000000000);
        assert_true(report.durable);
        assert_int_equal(report.n_failed, 0);

        options.n_threads = 2;
        test_stack_open(&stack, &options);
        for (uint32_t i = 0; i < N; i++) {
            ask(&stack, make_request(prompts[i], lengths[i], 8), &restored);
            assert_int_equal(restored.usage.cache.disk_tokens, lengths[i]);
            assert_int_equal(restored.usage.cache.ram_tokens, 0);
            assert_same_answer(&cold[i], &restored);
        }
        (void)test_stack_close(&stack, 5000000000);

        /* Another element type is another identity: nothing of it may be seen. */
        options.kv_dtype = kinds[(d + 1) % N_KINDS].dtype;
        options.kv_scheme = kinds[(d + 1) % N_KINDS].scheme;
        test_stack_open(&stack, &options);
        ask(&stack, make_request(prompts[N - 1], lengths[N - 1], 8), &restored);
        assert_int_equal(restored.usage.cache.n_tokens, 0);
        assert_int_equal(restored.usage.cache.reason, FIRN_REASON_WRONG_IDENTITY);
        (void)test_stack_close(&stack, 5000000000);
        test_dir_remove(dir);
        free(dir);
    }
}

static void requests_wait_for_memory_and_then_run(void **state)
{
    (void)state;
    /* One block of the built-in model over all layers: 8 layers of 2 heads x 64 tokens x 32 x (K and V) x 2 bytes. */
    const uint64_t block_bytes = UINT64_C(8) * 2 * 64 * 32 * 2 * 2;
    enum { N = 6 };
    static test_answer answers[N];
    static firn_token prompts[N][PROMPT_MAX];
    test_stack stack;
    /* Room for five blocks a layer; each request needs three. */
    test_stack_open(&stack, &(test_stack_options){ .pool_bytes = 5 * block_bytes });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        fill_prompt(prompts[i], 130, 70 + i);
        assert_ok(test_submit(&stack, make_request(prompts[i], 130, 30), &answers[i], &err));
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_end(&answers[i]);
        assert_int_equal(answers[i].finish, FIRN_FINISH_LENGTH);
        assert_int_equal(answers[i].n_tokens, 30);
    }
    firn_engine_stats stats;
    firn_engine_get_stats(stack.engine, &stats);
    assert_true(stats.pool.used_bytes_peak <= stats.pool.budget_bytes);
    assert_int_equal(stats.n_failed, 0);
    /* What can never fit is refused with figures, at once. */
    static test_answer big;
    firn_error err;
    static firn_token long_prompt[400];
    fill_prompt(long_prompt, 400, 1);
    assert_status(test_submit(&stack, make_request(long_prompt, 400, 10), &big, &err), FIRN_ERR_CAPACITY);
    assert_non_null(strstr(err.message, "budget"));
    (void)test_stack_close(&stack, 1000000000);
}

static void refuses_bad_requests_by_name(void **state)
{
    (void)state;
    static test_answer answer;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 20, 1);
    firn_error err;
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = { .ctx_tokens_max = 64 } });
    assert_status(test_submit(&stack, make_request(prompt, 0, 1), &answer, &err), FIRN_ERR_INVALID);
    assert_status(test_submit(&stack, make_request(prompt, 20, 45), &answer, &err), FIRN_ERR_CAPACITY);
    assert_non_null(strstr(err.message, "64"));
    firn_token wrong[3] = { 1, 2048, 5 };
    assert_status(test_submit(&stack, make_request(wrong, 3, 1), &answer, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "2048"));
    firn_request request = make_request(prompt, 20, 4);
    request.sampling.temperature = -1.0f;
    assert_status(test_submit(&stack, request, &answer, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "temperature"));
    /* Without a limit of its own a request may fill the context, and ends there. */
    request = make_request(prompt, 20, 0);
    request.ignore_end = true;
    ask(&stack, request, &answer);
    assert_int_equal(answer.n_tokens, 44);
    assert_int_equal(answer.finish, FIRN_FINISH_LENGTH);
    (void)test_stack_close(&stack, 1000000000);
}

static void a_full_queue_refuses(void **state)
{
    (void)state;
    enum { N = 8 };
    static test_answer answers[N];
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 300, 1);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = { .batch_rows_max = 1, .queue_max = 2 } });
    uint32_t n_busy = 0;
    bool taken[N];
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        const firn_status status = test_submit(&stack, make_request(prompt, 300, 100), &answers[i], &err);
        taken[i] = status == FIRN_OK;
        n_busy += status == FIRN_ERR_BUSY;
        assert_true(status == FIRN_OK || status == FIRN_ERR_BUSY);
    }
    assert_true(n_busy >= N - 4);
    for (uint32_t i = 0; i < N; i++) {
        if (taken[i]) {
            firn_engine_cancel(stack.engine, answers[i].id);
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        if (taken[i]) {
            test_wait_end(&answers[i]);
        }
    }
    firn_engine_stats stats;
    firn_engine_get_stats(stack.engine, &stats);
    assert_int_equal(stats.n_refused, n_busy);
    (void)test_stack_close(&stack, 1000000000);
}

static void cancelling_in_any_phase_gives_the_memory_back(void **state)
{
    (void)state;
    enum { N = 24 };
    static test_answer answers[N];
    static firn_token prompts[N][PROMPT_MAX];
    test_rng rng = test_rng_create("cancel", 21);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = { .batch_rows_max = 4, .chunk_tokens_max = 32 } });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        fill_prompt(prompts[i], 350, 200 + i);
        assert_ok(test_submit(&stack, make_request(prompts[i], 350, 60), &answers[i], &err));
    }
    for (uint32_t i = 0; i < N; i++) {
        switch (test_rng_below(&rng, 3)) {
        case 0: break; /* waiting or reading its prompt */
        case 1: nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL); break;
        case 2: test_wait_tokens(&answers[i], 1 + test_rng_below(&rng, 5)); break;
        default: break;
        }
        firn_engine_cancel(stack.engine, answers[i].id);
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_end(&answers[i]);
        assert_int_equal(answers[i].n_ends, 1);
    }
    firn_engine_cancel(stack.engine, 987654); /* unknown: ignored */
    /* The rows are gone: what is still held is the tree's. The last row leaves just after its END. */
    firn_engine_stats stats;
    for (int i = 0; i < 1000; i++) {
        firn_engine_get_stats(stack.engine, &stats);
        if (stats.n_running == 0 && stats.pool.used_bytes == stats.prefix.held_bytes) {
            break;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(stats.n_waiting, 0);
    assert_int_equal(stats.pool.used_bytes, stats.prefix.held_bytes);
    assert_true(stats.n_cancelled > 0);
    (void)test_stack_close(&stack, 1000000000);
}

static void stopping_cancels_what_runs_and_keeps_what_was_read(void **state)
{
    (void)state;
    enum { N = 5 };
    static test_answer answers[N], again;
    static firn_token prompts[N][PROMPT_MAX];
    char *dir = test_dir_create();
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir, .engine = { .batch_rows_max = 2 } });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        fill_prompt(prompts[i], 200, 300 + i);
        firn_request request = make_request(prompts[i], 200, 7000);
        request.ignore_end = true;
        assert_ok(test_submit(&stack, request, &answers[i], &err));
    }
    test_wait_tokens(&answers[0], 3);
    const firn_flush_report report = test_stack_close(&stack, 2000000000);
    assert_true(report.durable);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(answers[i].n_ends, 1);
        assert_int_equal(answers[i].finish, FIRN_FINISH_CANCELLED);
    }
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
    ask(&stack, make_request(prompts[0], 200, 4), &again);
    assert_int_equal(again.usage.cache.disk_tokens, 200);
    (void)test_stack_close(&stack, 1000000000);
    test_dir_remove(dir);
    free(dir);
}

static void stop_strings_end_an_answer(void **state)
{
    (void)state;
    static test_answer plain, stopped;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 40, 5);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    ask(&stack, make_request(prompt, 40, 60), &plain);
    assert_true(plain.len_text > 20);
    char stop[4] = { 0 };
    memcpy(stop, plain.text + plain.len_text / 2, 3);
    const char *const stops[1] = { stop };
    firn_request request = make_request(prompt, 40, 60);
    request.stops = stops;
    request.n_stops = 1;
    ask(&stack, request, &stopped);
    assert_int_equal(stopped.finish, FIRN_FINISH_STOP);
    assert_string_equal(stopped.stop_string, stop);
    const char *expected_end = strstr(plain.text, stop);
    assert_int_equal(stopped.len_text, (size_t)(expected_end - plain.text));
    assert_memory_equal(stopped.text, plain.text, stopped.len_text);
    (void)test_stack_close(&stack, 1000000000);
}

static void a_seed_replays_and_the_clock_does_not(void **state)
{
    (void)state;
    static test_answer a, b, c;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 30, 6);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    firn_request request = make_request(prompt, 30, 40);
    request.sampling = (firn_sampling){ .temperature = 1.0f, .has_seed = true, .seed = 99 };
    ask(&stack, request, &a);
    ask(&stack, request, &b);
    assert_same_answer(&a, &b);
    request.sampling.seed = 100;
    ask(&stack, request, &c);
    assert_memory_not_equal(a.tokens, c.tokens, 40 * sizeof a.tokens[0]);
    (void)test_stack_close(&stack, 1000000000);
}

static void a_refused_allocation_fails_one_request_not_the_engine(void **state)
{
    (void)state;
    static test_answer alone, answer;
    firn_token prompt[PROMPT_MAX];
    fill_prompt(prompt, 150, 8);
    test_stack plain;
    test_stack_open(&plain, &(test_stack_options){ 0 });
    ask(&plain, make_request(prompt, 150, 10), &alone);
    (void)test_stack_close(&plain, 1000000000);

    test_world world;
    test_world_init(&world);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .env = &world.env });
    uint32_t n_failed = 0;
    /* Each round fails the nth allocation from now; the engine must answer right, refuse, or end with an error. */
    for (uint64_t n = 1; n <= 160; n++) {
        test_world_aim_alloc(&world, n);
        firn_error err;
        const firn_status status = test_submit(&stack, make_request(prompt, 150, 10), &answer, &err);
        if (status == FIRN_OK) {
            test_wait_end(&answer);
            assert_int_equal(answer.n_ends, 1);
            if (answer.finish == FIRN_FINISH_ERROR) {
                n_failed++;
            } else {
                assert_same_answer(&alone, &answer);
            }
        } else {
            assert_status(status, FIRN_ERR_NO_MEMORY);
            n_failed++;
        }
    }
    test_world_aim_alloc(&world, 0);
    assert_true(n_failed > 0);
    ask(&stack, make_request(prompt, 150, 10), &answer);
    assert_same_answer(&alone, &answer);
    (void)test_stack_close(&stack, 1000000000);
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_company),
        cmocka_unit_test(a_repeated_prompt_is_answered_from_ram_with_the_same_bits),
        cmocka_unit_test(a_conversation_reuses_its_own_answer),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(namespaces_do_not_see_each_other),
        cmocka_unit_test(a_restart_answers_from_disk_with_the_same_bits),
        cmocka_unit_test(requests_wait_for_memory_and_then_run),
        cmocka_unit_test(refuses_bad_requests_by_name),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(cancelling_in_any_phase_gives_the_memory_back),
        cmocka_unit_test(stopping_cancels_what_runs_and_keeps_what_was_read),
        cmocka_unit_test(stop_strings_end_an_answer),
        cmocka_unit_test(a_seed_replays_and_the_clock_does_not),
        cmocka_unit_test(a_refused_allocation_fails_one_request_not_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
