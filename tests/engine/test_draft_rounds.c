/*
 * Verify rounds, with guesses of which the test decides how many hold: tokens, log-probabilities, text, end and cache
 * hits are those of plain decoding. The scripted source stands in for guesses from the text: a program that defines it
 * links this one, not the library's.
 */
#include "engine/draft_rig.h"

const firni_draft_ops firni_draft_ngram = { .name = "scripted", .propose = propose_by_script };

static const firn_engine_options plain_options = { .chunk_tokens_max = 64 };
static const firn_engine_options drafting_options = { .chunk_tokens_max = 64,
                                                      .draft_ngram = true,
                                                      .draft_always = true };

static void any_number_of_guesses_may_hold(void **state)
{
    (void)state;
    enum { GUESSES = 5, PROMPT = 61 };
    static test_answer plain, drafted;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, PROMPT, 40);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = plain_options });
    ask(&stack, make_request(prompt, PROMPT, 150), &plain); /* past two block boundaries */
    (void)test_stack_close(&stack, 1000000000);
    for (uint32_t n_right = 0; n_right <= GUESSES + 1; n_right++) {
        test_stack_open(&stack, &(test_stack_options){ .engine = drafting_options });
        use_script(&plain, PROMPT, GUESSES, n_right <= GUESSES ? n_right : UINT32_MAX);
        ask(&stack, make_request(prompt, PROMPT, 150), &drafted);
        assert_same_answer(&plain, &drafted);
        const firn_draft_usage *draft = &drafted.usage.draft;
        assert_true(draft->n_rounds > 0);
        if (n_right == 0) {
            assert_int_equal(draft->accepted_tokens, 0);
            assert_int_equal(draft->round_tokens, draft->n_rounds);
        } else if (n_right == GUESSES) {
            assert_int_equal(draft->accepted_tokens, draft->drafted_tokens);
            assert_true(draft->n_rounds < 150 / GUESSES);
        } else {
            assert_true(draft->accepted_tokens > 0 && draft->accepted_tokens < draft->drafted_tokens);
        }
        const firn_engine_stats stats = wait_idle(&stack);
        assert_memory_equal(&stats.draft, draft, sizeof stats.draft);
        assert_int_equal(stats.generated_tokens, 150);
        (void)test_stack_close(&stack, 1000000000);
    }
}

static void every_family_takes_guesses_back_to_the_bit(void **state)
{
    (void)state;
    enum { GUESSES = 4, PROMPT = 45, ANSWER = 60 };
    /* Windows, KV shared between layers, recurrent state beside attention, recurrent state alone. What is
     * published along the way must be what plain decoding would have left: the next turn finds as much. */
    static const char *const models[] = {
        "tests/oracle/gemma3.gguf", "tests/oracle/gemma4.gguf", "tests/oracle/qwen35.gguf", "tests/oracle/mamba2.gguf",
    };
    static test_answer plain, drafted, next, drafted_next;
    firn_token prompt[PROMPT_MAX];
    test_rng rng = test_rng_create("families", 47);
    for (uint32_t i = 0; i < PROMPT; i++) {
        prompt[i] = 5 + test_rng_below(&rng, 500);
    }
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .model_path = models[m], .engine = plain_options });
        ask(&stack, make_request(prompt, PROMPT, ANSWER), &plain);
        memcpy(prompt + PROMPT, plain.tokens, ANSWER * sizeof prompt[0]);
        ask(&stack, make_request(prompt, PROMPT + ANSWER, 3), &next);
        (void)test_stack_close(&stack, 1000000000);
        for (uint32_t n_right = 0; n_right <= GUESSES + 1; n_right++) {
            test_stack_open(&stack, &(test_stack_options){ .model_path = models[m], .engine = drafting_options });
            use_script(&plain, PROMPT, GUESSES, n_right <= GUESSES ? n_right : UINT32_MAX);
            ask(&stack, make_request(prompt, PROMPT, ANSWER), &drafted);
            assert_same_answer(&plain, &drafted);
            assert_true(drafted.usage.draft.n_rounds > 0);
            ask(&stack, make_request(prompt, PROMPT + ANSWER, 3), &drafted_next);
            assert_same_answer(&next, &drafted_next);
            assert_int_equal(drafted_next.usage.cache.n_tokens, next.usage.cache.n_tokens);
            assert_true(n_right == 0 || drafted.usage.draft.accepted_tokens > 0);
            (void)test_stack_close(&stack, 1000000000);
        }
    }
}

static void sampled_answers_are_those_of_plain_decoding(void **state)
{
    (void)state;
    static const firn_logit_bias biases[] = { { .token = 310, .bias = 4.0f }, { .token = 320, .bias = -100.0f } };
    static const firn_sampling settings[] = {
        { .temperature = 1.0f },
        { .temperature = 0.7f, .top_k = 20 },
        { .temperature = 0.5f, .top_p = 0.8f },
        { .temperature = 1.3f, .min_p = 0.1f, .top_k = 50, .top_p = 0.95f },
        { .temperature = 0.6f, .repetition_penalty = 1.2f, .penalty_last_n = 9 },
        { .temperature = 0.4f, .presence_penalty = 0.3f, .frequency_penalty = 0.4f, .n_biases = 2, .biases = biases },
        { .repetition_penalty = 1.3f, .presence_penalty = -0.5f }, /* greedy */
    };
    static test_answer plain, drafted;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, 120, 41);
    test_stack off, on;
    test_stack_open(&off, &(test_stack_options){ .engine = plain_options });
    test_stack_open(&on, &(test_stack_options){ .engine = drafting_options });
    uint64_t n_accepted = 0;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            firn_request request = make_request(prompt, 120, 60);
            request.sampling = settings[i];
            request.sampling.has_seed = true;
            request.sampling.seed = seed;
            ask(&off, request, &plain);
            use_script(&plain, 120, 4, UINT32_MAX);
            ask(&on, request, &drafted);
            assert_same_answer(&plain, &drafted);
            n_accepted += drafted.usage.draft.accepted_tokens;
        }
    }
    assert_true(n_accepted > 200);
    (void)test_stack_close(&off, 1000000000);
    (void)test_stack_close(&on, 1000000000);
}

static void answers_end_where_plain_ones_do(void **state)
{
    (void)state;
    enum { GUESSES = 6, PROMPT = 50 };
    static test_answer whole, plain, drafted;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, PROMPT, 42);
    test_stack off, on;
    test_stack_open(&off, &(test_stack_options){ .engine = plain_options });
    test_stack_open(&on, &(test_stack_options){ .engine = drafting_options });
    ask(&off, make_request(prompt, PROMPT, 60), &whole);
    use_script(&whole, PROMPT, GUESSES, GUESSES);
    /* max_tokens anywhere in a round: all guesses are right, so that only the end can stop them. */
    for (uint32_t n = 1; n <= 20; n++) {
        ask(&off, make_request(prompt, PROMPT, n), &plain);
        ask(&on, make_request(prompt, PROMPT, n), &drafted);
        assert_int_equal(drafted.n_tokens, n);
        assert_same_answer(&plain, &drafted);
    }
    /* A stop string that begins and ends anywhere. */
    for (size_t at = 3; at + 4 < whole.len_text && at < 60; at += 5) {
        char stop[4] = { 0 };
        memcpy(stop, whole.text + at, 3);
        const char *const stops[1] = { stop };
        firn_request request = make_request(prompt, PROMPT, 60);
        request.stops = stops;
        request.n_stops = 1;
        ask(&off, request, &plain);
        ask(&on, request, &drafted);
        assert_int_equal(drafted.finish, FIRN_FINISH_STOP);
        assert_same_answer(&plain, &drafted);
    }
    /* The end token, made likely in the middle: biased, so that it comes, and guessed or not. */
    const firn_logit_bias bias = { .token = 2, .bias = 9.0f };
    for (uint64_t seed = 1; seed <= 12; seed++) {
        firn_request request = make_request(prompt, PROMPT, 60);
        request.ignore_end = false;
        request.sampling = (firn_sampling){ .temperature = 1.0f, .has_seed = true, .seed = seed, .n_biases = 1,
                                            .biases = &bias };
        ask(&off, request, &plain);
        the_script()->tokens = plain.tokens;
        the_script()->n_tokens = plain.n_tokens;
        ask(&on, request, &drafted);
        assert_same_answer(&plain, &drafted);
    }
    (void)test_stack_close(&off, 1000000000);
    (void)test_stack_close(&on, 1000000000);
}

static void hits_are_the_same_with_and_without_guesses(void **state)
{
    (void)state;
    enum { PROMPT = 70, ANSWER = 75, GUESSES = 5 };
    static test_answer plain, first, second;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, PROMPT, 43);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = plain_options });
    ask(&stack, make_request(prompt, PROMPT, ANSWER), &plain);
    (void)test_stack_close(&stack, 1000000000);
    firn_token other[PROMPT_MAX];
    memcpy(other, prompt, sizeof prompt);
    memcpy(prompt + PROMPT, plain.tokens, ANSWER * sizeof prompt[0]);
    fill_phrases(prompt + PROMPT + ANSWER, 30, 44);
    uint32_t held_nodes[2];
    for (uint32_t on = 0; on < 2; on++) {
        test_stack_open(&stack, &(test_stack_options){ .engine = on ? drafting_options : plain_options });
        if (on) {
            /* Right and wrong guesses: wrong ones were forwarded, and must leave nothing behind. */
            use_script(&plain, PROMPT, GUESSES, UINT32_MAX);
        }
        ask(&stack, make_request(prompt, PROMPT, ANSWER), &first);
        assert_same_answer(&plain, &first);
        ask(&stack, make_request(prompt, PROMPT + ANSWER + 30, 5), &second);
        /* All but the answer's last token, which was chosen and never forwarded. */
        assert_int_equal(second.usage.cache.ram_tokens, PROMPT + ANSWER - 1);
        /* A prompt that goes on as a wrong guess did finds the answer before it, not the guess. */
        memcpy(other + PROMPT, plain.tokens, 4 * sizeof other[0]);
        for (uint32_t i = 4; i < 30; i++) {
            other[PROMPT + i] = 7;
        }
        ask(&stack, make_request(other, PROMPT + 30, 5), &second);
        assert_int_equal(second.usage.cache.ram_tokens, PROMPT + 4);
        const firn_engine_stats stats = wait_idle(&stack);
        held_nodes[on] = (uint32_t)stats.prefix.n_nodes;
        (void)test_stack_close(&stack, 1000000000);
    }
    assert_int_equal(held_nodes[0], held_nodes[1]);
}

static void a_refused_allocation_never_changes_an_answer(void **state)
{
    (void)state;
    static test_answer alone, answer;
    firn_token prompt[PROMPT_MAX];
    fill_phrases(prompt, 120, 45);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .engine = plain_options });
    ask(&stack, make_request(prompt, 120, 30), &alone);
    (void)test_stack_close(&stack, 1000000000);

    test_world world;
    test_world_init(&world);
    test_stack_open(&stack, &(test_stack_options){ .env = &world.env, .engine = drafting_options });
    use_script(&alone, 120, 4, UINT32_MAX);
    uint32_t n_failed = 0;
    for (uint64_t n = 1; n <= 120; n++) {
        test_world_aim_alloc(&world, n);
        firn_error err;
        const firn_status status = test_submit(&stack, make_request(prompt, 120, 30), &answer, &err);
        if (status == FIRN_OK) {
            test_wait_end(&answer);
        }
        if (status == FIRN_OK && answer.finish != FIRN_FINISH_ERROR) {
            assert_same_answer(&alone, &answer);
        } else {
            n_failed++;
        }
    }
    test_world_aim_alloc(&world, 0);
    assert_true(n_failed > 0);
    ask(&stack, make_request(prompt, 120, 30), &answer);
    assert_same_answer(&alone, &answer);
    assert_true(answer.usage.draft.n_rounds > 0);
    (void)test_stack_close(&stack, 1000000000);
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_guesses_may_hold),
        cmocka_unit_test(every_family_takes_guesses_back_to_the_bit),
        cmocka_unit_test(sampled_answers_are_those_of_plain_decoding),
        cmocka_unit_test(answers_end_where_plain_ones_do),
        cmocka_unit_test(hits_are_the_same_with_and_without_guesses),
        cmocka_unit_test(a_refused_allocation_never_changes_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
