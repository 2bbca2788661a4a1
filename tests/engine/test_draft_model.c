/*
 * A drafter with state of its own: answers stay those of plain decoding, its memory is part of the promise, and what it
 * has read is kept like the model's own state, so that it guesses as well after a restart as before.
 */
#include "engine/draft_rig.h"

#define DRAFTER "models/firn-tiny-draft-q8_0.gguf"

/* A text of the kind that both models were trained on, so that guesses hold. */
static uint32_t encode(const test_stack *stack, const char *text, firn_token *tokens)
{
    const firn_encode_options options = { .add_bos = true };
    firn_token *encoded;
    uint32_t n_tokens;
    firn_error err;
    assert_ok(firn_tokenizer_encode(firn_model_tokenizer(stack->model), text, strlen(text), &options, &encoded,
                                    &n_tokens, &err));
    assert_true(n_tokens <= PROMPT_MAX);
    memcpy(tokens, encoded, n_tokens * sizeof tokens[0]);
    free(encoded);
    return n_tokens;
}

static const char *const texts[] = {
    "And it came to pass in those days, that the king of the land went up to the house of the Lord, and said unto the "
    "people, Hear ye the word of the Lord, all ye people of the land; and the people answered and said,",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune must be in want of",
    "The condition of the country is on the whole satisfactory, and the report of the Secretary of the Treasury shows",
    "My dear sister,",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and "
    "nothing "
    "particular to interest me on shore, I thought I would sail about a little and see the watery part of the world.",
};
enum { N_TEXTS = sizeof texts / sizeof texts[0] };

static void answers_are_those_of_plain_decoding_to_the_bit(void **state)
{
    (void)state;
    static const firn_dtype dtypes[] = { FIRN_DTYPE_F16, FIRN_DTYPE_F32, FIRN_DTYPE_NONE };
    static const firn_kv_scheme schemes[] = { { .kind = FIRN_KV_PLAIN },
                                              { .kind = FIRN_KV_PLAIN },
                                              { .kind = FIRN_KV_AFFINE, .delay_tokens = 70 } }; /* of both models */
    static test_answer plain[2 * N_TEXTS], drafted[2 * N_TEXTS];
    static firn_token prompts[N_TEXTS][PROMPT_MAX];
    for (size_t d = 0; d < 3; d++) {
        uint64_t n_accepted = 0, n_rejected = 0;
        for (uint32_t on = 0; on < 2; on++) {
            test_stack stack;
            test_stack_open(&stack, &(test_stack_options){ .kv_dtype = dtypes[d],
                                                           .kv_scheme = schemes[d],
                                                           .n_threads = on + 1,
                                                           .draft_path = on ? DRAFTER : NULL,
                                                           .engine = { .batch_rows_max = on ? 4 : 1,
                                                                       .chunk_tokens_max = on ? 19 : 256,
                                                                       .max_itl_ns = UINT64_C(3600000000000),
                                                                       .draft_always = true } });
            test_answer *answers = on ? drafted : plain;
            for (uint32_t i = 0; i < 2 * N_TEXTS; i++) {
                const uint32_t n_prompt = encode(&stack, texts[i / 2], prompts[i / 2]);
                firn_request request = make_request(prompts[i / 2], n_prompt, 110 + i);
                if (i % 2 == 1) {
                    request.sampling = (firn_sampling){ .temperature = 0.8f, .top_p = 0.9f, .has_seed = true, .seed = i,
                                                        .presence_penalty = 0.2f, .repetition_penalty = 1.1f };
                }
                firn_error err;
                assert_ok(test_submit(&stack, request, &answers[i], &err));
            }
            for (uint32_t i = 0; i < 2 * N_TEXTS; i++) {
                test_wait_end(&answers[i]);
                n_accepted += answers[i].usage.draft.accepted_tokens;
                n_rejected += answers[i].usage.draft.drafted_tokens - answers[i].usage.draft.accepted_tokens;
            }
            (void)test_stack_close(&stack, 1000000000);
        }
        for (uint32_t i = 0; i < 2 * N_TEXTS; i++) {
            assert_same_answer(&plain[i], &drafted[i]);
        }
        /* Or nothing was tested. Of rows that are converted on the way there are fewer: guesses end at the boundary. */
        assert_true(n_accepted > (schemes[d].delay_tokens > 0 ? 80 : 100));
        assert_true(n_rejected > 100);
    }
}

/* What must be equal between a drafter that read the prompt and one whose state came back. */
static void assert_same_drafting(const test_answer *a, const test_answer *b)
{
    assert_memory_equal(&a->usage.draft, &b->usage.draft, sizeof a->usage.draft);
}

static void acceptance_after_a_restore_is_that_before(void **state)
{
    (void)state;
    static test_answer cold[N_TEXTS], warm[N_TEXTS], restored[N_TEXTS];
    static firn_token prompts[N_TEXTS][PROMPT_MAX];
    uint32_t n_prompt[N_TEXTS];
    char *dir = test_dir_create(), *draft_dir = test_dir_create();
    const test_stack_options options = { .disk_dir = dir, .draft_disk_dir = draft_dir, .draft_path = DRAFTER,
                                         .engine = { .draft_always = true } };
    test_stack stack;
    test_stack_open(&stack, &options);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        n_prompt[i] = encode(&stack, texts[i], prompts[i]);
        ask(&stack, make_request(prompts[i], n_prompt[i], 80), &cold[i]);
        assert_true(cold[i].usage.draft.accepted_tokens > 0);
        ask(&stack, make_request(prompts[i], n_prompt[i], 80), &warm[i]);
        assert_same_answer(&cold[i], &warm[i]);
        assert_same_drafting(&cold[i], &warm[i]);
    }
    firn_engine_stats stats = wait_idle(&stack);
    assert_true(stats.draft_prefix.hit_tokens_ram >= n_prompt[0] - 1);
    const firn_flush_report report = test_stack_close(&stack, 10000000000);
    assert_true(report.durable);

    test_stack_open(&stack, &options);
    uint64_t n_expected = 0;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        ask(&stack, make_request(prompts[i], n_prompt[i], 80), &restored[i]);
        const bool is_long = n_prompt[i] - 1 >= 16;
        assert_int_equal(restored[i].usage.cache.disk_tokens, is_long ? n_prompt[i] : 0);
        n_expected += is_long ? n_prompt[i] - 1 : 0; /* the drafter has no last logits: it reads one token */
        assert_same_answer(&cold[i], &restored[i]);
        assert_same_drafting(&cold[i], &restored[i]);
    }
    stats = wait_idle(&stack);
    /* The drafter read none of it again either. */
    assert_int_equal(stats.draft_prefix.hit_tokens_disk, n_expected);
    (void)test_stack_close(&stack, 5000000000);
    test_dir_remove(dir);
    test_dir_remove(draft_dir);
    free(dir);
    free(draft_dir);
}

static void hits_are_the_same_with_and_without_a_drafter(void **state)
{
    (void)state;
    enum { ANSWER = 75 };
    static test_answer first, second, off_first, off_second;
    firn_token prompt[PROMPT_MAX];
    for (uint32_t on = 0; on < 2; on++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .draft_path = on ? DRAFTER : NULL,
                                                       .engine = { .draft_always = true } });
        const uint32_t n_prompt = encode(&stack, texts[0], prompt);
        ask(&stack, make_request(prompt, n_prompt, ANSWER), on ? &first : &off_first);
        memcpy(prompt + n_prompt, (on ? &first : &off_first)->tokens, ANSWER * sizeof prompt[0]);
        const uint32_t n_more = encode(&stack, texts[3], prompt + n_prompt + ANSWER);
        ask(&stack, make_request(prompt, n_prompt + ANSWER + n_more, 20), on ? &second : &off_second);
        const firn_engine_stats stats = wait_idle(&stack);
        if (on) {
            /* The conversation goes on where the drafter stopped reading, a few tokens behind the model at most. */
            assert_true(stats.draft_prefix.hit_tokens_ram + 20 >= n_prompt + ANSWER);
            assert_true(stats.draft_prefix.hit_tokens_ram <= n_prompt + ANSWER - 1);
        }
        (void)test_stack_close(&stack, 1000000000);
    }
    assert_same_answer(&off_first, &first);
    assert_same_answer(&off_second, &second);
    assert_memory_equal(&off_second.usage.cache, &second.usage.cache, sizeof second.usage.cache);
    assert_true(second.usage.cache.ram_tokens > ANSWER);
}

static void a_drafters_bytes_are_part_of_the_promise(void **state)
{
    (void)state;
    enum { N = 6 };
    static test_answer plain[N], drafted[N];
    static firn_token prompts[N][PROMPT_MAX];
    char *dir = test_dir_create(), *draft_dir = test_dir_create();
    test_stack stack;
    for (uint32_t on = 0; on < 2; on++) {
        /* Blocks of 131,072 bytes for the model, of 16,384 for the drafter: room for three requests, and then only by
         * evicting everything else. The tiers make nodes dirty, which may not be evicted. */
        test_stack_open(&stack, &(test_stack_options){ .pool_bytes = UINT64_C(9) * (131072 + 16384),
                                                       .disk_dir = on ? dir : NULL,
                                                       .draft_disk_dir = draft_dir,
                                                       .draft_path = on ? DRAFTER : NULL,
                                                       .engine = { .draft_always = true } });
        test_answer *answers = on ? drafted : plain;
        for (uint32_t i = 0; i < N; i++) {
            firn_error err;
            fill_phrases(prompts[i], 100, 70 + i);
            assert_ok(test_submit(&stack, make_request(prompts[i], 100, 28 - i), &answers[i], &err));
        }
        for (uint32_t i = 0; i < N; i++) {
            test_wait_end(&answers[i]);
            assert_string_equal(answers[i].error.message, "");
            assert_int_equal(answers[i].n_tokens, 28 - i);
        }
        const firn_engine_stats stats = wait_idle(&stack);
        assert_int_equal(stats.n_failed, 0);
        assert_int_equal(stats.pool.n_refused, 0);
        assert_true(stats.pool.used_bytes_peak <= stats.pool.budget_bytes);
        assert_int_equal(stats.pool.used_bytes, stats.prefix.held_bytes + stats.draft_prefix.held_bytes);
        assert_true(stats.prefix.held_bytes <= stats.prefix.budget_bytes);
        assert_true(stats.draft_prefix.held_bytes <= stats.draft_prefix.budget_bytes);
        assert_true(stats.prefix.budget_bytes + stats.draft_prefix.budget_bytes <= stats.pool.budget_bytes);
        /* A request's bytes are what its two rows take at most, and the copies of two tails. */
        if (on) {
            assert_int_equal(firni_request_bytes(stack.engine, 128), 2 * 131072 + 131072 + 2 * 16384 + 16384);
        }
        (void)test_stack_close(&stack, 5000000000);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_same_answer(&plain[i], &drafted[i]);
    }
    test_dir_remove(dir);
    test_dir_remove(draft_dir);
    free(dir);
    free(draft_dir);
}

static void cancelling_gives_both_rows_back(void **state)
{
    (void)state;
    enum { N = 12 };
    static test_answer answers[N];
    firn_token prompt[PROMPT_MAX];
    test_rng rng = test_rng_create("cancel", 23);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .draft_path = DRAFTER,
                                                   .engine = { .batch_rows_max = 3,
                                                               .chunk_tokens_max = 16,
                                                               .draft_always = true } });
    for (uint32_t i = 0; i < N; i++) {
        firn_error err;
        const uint32_t n_prompt = encode(&stack, texts[i % N_TEXTS], prompt);
        assert_ok(test_submit(&stack, make_request(prompt, n_prompt, 300), &answers[i], &err));
    }
    for (uint32_t i = 0; i < N; i++) {
        if (test_rng_below(&rng, 3) > 0) {
            test_wait_tokens(&answers[i], 1 + test_rng_below(&rng, 40));
        }
        firn_engine_cancel(stack.engine, answers[i].id);
    }
    for (uint32_t i = 0; i < N; i++) {
        test_wait_end(&answers[i]);
        assert_int_equal(answers[i].n_ends, 1);
    }
    const firn_engine_stats stats = wait_idle(&stack);
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(stats.pool.used_bytes, stats.prefix.held_bytes + stats.draft_prefix.held_bytes);
    (void)test_stack_close(&stack, 1000000000);
}

static void a_refused_allocation_costs_speed_or_one_request(void **state)
{
    (void)state;
    static test_answer alone, answer;
    firn_token prompt[PROMPT_MAX];
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    const uint32_t n_prompt = encode(&stack, texts[1], prompt);
    ask(&stack, make_request(prompt, n_prompt, 12), &alone);
    (void)test_stack_close(&stack, 1000000000);

    test_world world;
    test_world_init(&world);
    test_stack_open(&stack, &(test_stack_options){ .env = &world.env,
                                                   .draft_path = DRAFTER,
                                                   .engine = { .draft_always = true } });
    uint32_t n_failed = 0;
    for (uint64_t n = 1; n <= 160; n++) {
        test_world_aim_alloc(&world, n);
        firn_error err;
        const firn_status status = test_submit(&stack, make_request(prompt, n_prompt, 12), &answer, &err);
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
    assert_true(n_failed > 0 && n_failed < 160);
    ask(&stack, make_request(prompt, n_prompt, 12), &answer);
    assert_same_answer(&alone, &answer);
    assert_true(answer.usage.draft.n_rounds > 0);
    (void)test_stack_close(&stack, 1000000000);
    test_world_deinit(&world);
}

static void creation_fails_cleanly_at_every_allocation(void **state)
{
    (void)state;
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .draft_path = DRAFTER });
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        const firn_engine_options options = { .model = stack.model,
                                              .draft_model = stack.draft_model,
                                              .pool = stack.pool };
        firn_engine *engine;
        firn_error err;
        const firn_status status = firn_engine_create(&options, &world.env, &engine, &err);
        assert_true((status == FIRN_OK) == (engine != NULL));
        firn_engine_destroy(engine, 1000000000, NULL);
        const bool clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (clean) {
            assert_ok(status);
            break;
        }
        assert_status(status, FIRN_ERR_NO_MEMORY);
    }
    (void)test_stack_close(&stack, 1000000000);
}

static void another_vocabulary_is_refused_naming_both(void **state)
{
    (void)state;
    firn_model *other;
    firn_error err;
    assert_ok(firn_model_open(&(firn_model_options){ .path = "tests/oracle/llama.gguf" }, NULL, &other, &err));
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ 0 });
    firn_engine_options options = { .model = stack.model, .draft_model = other, .pool = stack.pool };
    firn_engine *engine;
    assert_status(firn_engine_create(&options, NULL, &engine, &err), FIRN_ERR_INVALID);
    assert_null(engine);
    assert_non_null(strstr(err.message, "512 tokens"));
    assert_non_null(strstr(err.message, "2048 tokens"));
    assert_non_null(strstr(err.message, firn_model_get_info(other)->name));
    assert_non_null(strstr(err.message, firn_model_get_info(stack.model)->name));
    options.draft_ngram = true;
    assert_status(firn_engine_create(&options, NULL, &engine, &err), FIRN_ERR_INVALID);
    options = (firn_engine_options){ .model = stack.model, .pool = stack.pool, .draft_ngram = true };
    options.draft_tokens_max = 65;
    assert_status(firn_engine_create(&options, NULL, &engine, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "65"));
    (void)test_stack_close(&stack, 1000000000);
    firn_model_close(other);
}

static size_t find(const uint8_t *bytes, const char *text)
{
    size_t at = 0;
    while (memcmp(bytes + at, text, strlen(text)) != 0) {
        at++;
    }
    return at;
}

/* A copy of a q8_0 file whose embedding has rows that no token uses, as published files of one family have, each its
 * own number. The longer matrix is written at the end of the file and its entry, the first one, changed. */
static char *pad_vocabulary(const char *dir, const char *path, uint32_t n_rows)
{
    static const char name[] = "token_embd.weight";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    (void)fseek(file, 0, SEEK_END);
    const size_t n_bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(n_bytes);
    assert_int_equal(fread(bytes, 1, n_bytes, file), n_bytes);
    (void)fclose(file);
    memcpy(bytes + find(bytes, "vocab_size") + strlen("vocab_size") + sizeof(uint32_t), &n_rows, sizeof n_rows);

    uint64_t n_tensors, shape[2], len_name;
    memcpy(&n_tensors, bytes + 8, sizeof n_tensors);
    uint8_t *const entry = bytes + find(bytes, name) + strlen(name) + sizeof(uint32_t); /* behind n_dims */
    memcpy(shape, entry, sizeof shape);
    size_t data = find(bytes, name) - sizeof len_name;
    for (uint64_t i = 0; i < n_tensors; i++) {
        uint32_t n_dims;
        memcpy(&len_name, bytes + data, sizeof len_name);
        memcpy(&n_dims, bytes + data + sizeof len_name + len_name, sizeof n_dims);
        data += sizeof len_name + len_name + 4 + 8 * n_dims + 4 + 8;
    }
    data = (data + 31) / 32 * 32;
    const size_t row_bytes = shape[0] / 32 * 34;
    const size_t end = (n_bytes + 31) / 32 * 32;
    const uint64_t offset = end - data, rows = n_rows;
    memcpy(entry + 8, &rows, sizeof rows);
    memcpy(entry + 16 + 4, &offset, sizeof offset);

    char *padded = malloc(strlen(dir) + 16);
    (void)sprintf(padded, "%s/padded.gguf", dir);
    file = fopen(padded, "wb");
    assert_non_null(file);
    (void)fwrite(bytes, 1, n_bytes, file);
    (void)fseek(file, (long)end, SEEK_SET);
    (void)fwrite(bytes + data, row_bytes, (size_t)shape[1], file); /* the old matrix lies first */
    uint8_t *zeros = calloc(n_rows - shape[1], row_bytes);
    (void)fwrite(zeros, row_bytes, n_rows - (size_t)shape[1], file);
    assert_int_equal(fclose(file), 0);
    free(zeros);
    free(bytes);
    return padded;
}

static void vocabularies_may_be_padded_differently(void **state)
{
    (void)state;
    static test_answer plain, drafted;
    firn_token prompt[PROMPT_MAX];
    char *dir = test_dir_create();
    uint64_t n_accepted[3];
    for (uint32_t side = 0; side < 3; side++) {
        /* Neither, then the model has rows that the drafter lacks, then the other way round. */
        char *padded = side == 1   ? pad_vocabulary(dir, "models/firn-tiny-q8_0.gguf", 2112)
                       : side == 2 ? pad_vocabulary(dir, DRAFTER, 2080)
                                   : NULL;
        for (uint32_t on = 0; on < 2; on++) {
            test_stack stack;
            test_stack_open(&stack, &(test_stack_options){ .model_path = side == 1 ? padded : NULL,
                                                           .draft_path = !on ? NULL : side == 2 ? padded : DRAFTER,
                                                           .engine = { .draft_always = true } });
            const uint32_t n_prompt = encode(&stack, texts[0], prompt);
            firn_request request = make_request(prompt, n_prompt, 60);
            request.sampling = (firn_sampling){ .temperature = 0.3f, .has_seed = true, .seed = 3 };
            ask(&stack, request, on ? &drafted : &plain);
            (void)test_stack_close(&stack, 1000000000);
        }
        assert_same_answer(&plain, &drafted);
        n_accepted[side] = drafted.usage.draft.accepted_tokens;
        free(padded);
    }
    assert_true(n_accepted[0] > 5);
    assert_int_equal(n_accepted[1], n_accepted[0]);
    assert_int_equal(n_accepted[2], n_accepted[0]);
    test_dir_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_plain_decoding_to_the_bit),
        cmocka_unit_test(acceptance_after_a_restore_is_that_before),
        cmocka_unit_test(hits_are_the_same_with_and_without_a_drafter),
        cmocka_unit_test(a_drafters_bytes_are_part_of_the_promise),
        cmocka_unit_test(cancelling_gives_both_rows_back),
        cmocka_unit_test(a_refused_allocation_costs_speed_or_one_request),
        cmocka_unit_test(creation_fails_cleanly_at_every_allocation),
        cmocka_unit_test(another_vocabulary_is_refused_naming_both),
        cmocka_unit_test(vocabularies_may_be_padded_differently),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
