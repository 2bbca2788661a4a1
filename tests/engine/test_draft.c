/*
 * Guesses from the row's own text never change an answer: tokens, log-probabilities and text are those of plain
 * decoding, in any company; memory stays within its budget.
 */
#include "engine/draft_rig.h"

static const firn_engine_options plain_options = { .chunk_tokens_max = 64 };
static const firn_engine_options ngram_options = { .chunk_tokens_max = 64, .draft_ngram = true, .draft_always = true };

static void greedy_answers_are_those_of_plain_decoding_to_the_bit(void **state)
{
    (void)state;
    enum { N = 8 };
    static const firn_dtype dtypes[] = { FIRN_DTYPE_F16, FIRN_DTYPE_F32, FIRN_DTYPE_NONE };
    static const firn_kv_scheme schemes[] = { { .kind = FIRN_KV_PLAIN },
                                              { .kind = FIRN_KV_PLAIN },
                                              /* Prompts end before and behind it, answers cross it. */
                                              { .kind = FIRN_KV_AFFINE, .delay_tokens = 100 } };
    static test_answer plain[N], drafted[N];
    static firn_token prompts[N][PROMPT_MAX];
    for (size_t d = 0; d < 3; d++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .kv_dtype = dtypes[d], .kv_scheme = schemes[d],
                                                       .engine = plain_options });
        for (uint32_t i = 0; i < N; i++) {
            fill_phrases(prompts[i], 60 + 17 * i, i);
            ask(&stack, make_request(prompts[i], 60 + 17 * i, 90 + i), &plain[i]);
            assert_int_equal(plain[i].usage.draft.n_rounds, 0);
        }
        (void)test_stack_close(&stack, 1000000000);
        /* All at once, in other chunks: rows that draft, rows that do not, and prompts in one step. */
        firn_engine_options options = ngram_options;
        options.batch_rows_max = 5;
        options.chunk_tokens_max = 23;
        test_stack_open(&stack, &(test_stack_options){ .kv_dtype = dtypes[d], .kv_scheme = schemes[d],
                                                       .n_threads = 2, .engine = options });
        uint64_t n_accepted = 0, n_rejected = 0;
        for (uint32_t i = 0; i < N; i++) {
            firn_error err;
            assert_ok(test_submit(&stack, make_request(prompts[i], 60 + 17 * i, 90 + i), &drafted[i], &err));
        }
        for (uint32_t i = 0; i < N; i++) {
            test_wait_end(&drafted[i]);
            assert_same_answer(&plain[i], &drafted[i]);
            n_accepted += drafted[i].usage.draft.accepted_tokens;
            n_rejected += drafted[i].usage.draft.drafted_tokens - drafted[i].usage.draft.accepted_tokens;
        }
        assert_true(n_accepted > 50); /* or nothing was tested */
        assert_true(n_rejected > 50);
        (void)test_stack_close(&stack, 1000000000);
    }
}

static void guesses_stay_within_the_budget(void **state)
{
    (void)state;
    enum { N = 6 };
    /* One block of the built-in model over all layers. */
    const uint64_t block_bytes = UINT64_C(8) * 2 * 64 * 32 * 2 * 2;
    static test_answer plain[N], drafted[N];
    static firn_token prompts[N][PROMPT_MAX];
    test_stack stack;
    for (uint32_t on = 0; on < 2; on++) {
        /* Rows that end a few tokens behind a block boundary, and no room to spare. */
        test_stack_open(&stack, &(test_stack_options){ .pool_bytes = 7 * block_bytes,
                                                       .engine = on ? ngram_options : plain_options });
        test_answer *answers = on ? drafted : plain;
        for (uint32_t i = 0; i < N; i++) {
            firn_error err;
            fill_phrases(prompts[i], 100, 70 + i);
            assert_ok(test_submit(&stack, make_request(prompts[i], 100, 28 - i), &answers[i], &err));
        }
        for (uint32_t i = 0; i < N; i++) {
            test_wait_end(&answers[i]);
            assert_int_equal(answers[i].n_tokens, 28 - i);
        }
        const firn_engine_stats stats = wait_idle(&stack);
        assert_int_equal(stats.n_failed, 0);
        assert_int_equal(stats.pool.n_refused, 0);
        assert_true(stats.pool.used_bytes_peak <= stats.pool.budget_bytes);
        (void)test_stack_close(&stack, 1000000000);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_same_answer(&plain[i], &drafted[i]);
    }
}

static void cancelling_between_rounds_gives_the_memory_back(void **state)
{
    (void)state;
    enum { N = 12 };
    static test_answer answers[N];
    static firn_token prompts[N][PROMPT_MAX];
    test_rng rng = test_rng_create("cancel", 22);
    test_stack stack;
    firn_engine_options options = ngram_options;
    options.batch_rows_max = 4;
    test_stack_open(&stack, &(test_stack_options){ .engine = options });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        fill_phrases(prompts[i], 200, 200 + i);
        assert_ok(test_submit(&stack, make_request(prompts[i], 200, 250), &answers[i], &err));
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_tokens(&answers[i], 1 + test_rng_below(&rng, 60));
        firn_engine_cancel(stack.engine, answers[i].id);
        test_wait_end(&answers[i]);
        assert_int_equal(answers[i].n_ends, 1);
    }
    const firn_engine_stats stats = wait_idle(&stack);
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(stats.pool.used_bytes, stats.prefix.held_bytes);
    assert_true(stats.draft.n_rounds > 0);
    (void)test_stack_close(&stack, 1000000000);
}

static void a_longer_answer_allocates_only_blocks(void **state)
{
    (void)state;
    static test_answer answer;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, 100, 46);
    test_world world;
    test_world_init(&world);
    test_stack stack;
    firn_engine_options options = ngram_options;
    options.no_prefix_cache = true;
    test_stack_open(&stack, &(test_stack_options){ .env = &world.env, .engine = options });
    uint64_t n_allocs[2];
    for (uint32_t i = 0; i < 3; i++) {
        /* The first time warms up. Both lengths end in the same block. */
        const uint64_t before = world.n_allocs;
        ask(&stack, make_request(prompt, 100, i < 2 ? 100 : 140), &answer);
        assert_true(answer.usage.draft.n_rounds > 5);
        if (i > 0) {
            n_allocs[i - 1] = world.n_allocs - before;
        }
    }
    assert_int_equal(n_allocs[0], n_allocs[1]);
    (void)test_stack_close(&stack, 1000000000);
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_of_plain_decoding_to_the_bit),
        cmocka_unit_test(guesses_stay_within_the_budget),
        cmocka_unit_test(cancelling_between_rounds_gives_the_memory_back),
        cmocka_unit_test(a_longer_answer_allocates_only_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
