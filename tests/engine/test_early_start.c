/*
 * Rows that go on before their restore has ended: sooner, with the same bits, in every family; whatever layer fails,
 * the prompt is computed, and nothing stays behind. Other rows see nothing of it. And a request that waits for a row
 * has its read running.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/engine_fixture.h"
#include "support/layer_tier.h"

enum { STORED = 330, NEW = 50, PROMPT = STORED + NEW, ANSWER = 8, N_PROMPTS = 2 };
#define MS UINT64_C(1000000)

/* All blocks; latents; states alone, and with blocks; windows; caches shared by layers; latents with index keys. */
static const char *const models[] = { "llama",  "deepseek2", "mamba2", "qwen35",
                                      "gptoss", "gemma3",    "gemma4", "deepseek32" };

enum { N_MODELS = sizeof models / sizeof models[0] };

typedef struct setup {
    test_stack stack;
    layer_tier *tier;
    firn_token prompts[N_PROMPTS][PROMPT];
    uint32_t n_layers;
} setup;

static firn_request request_of(const firn_token *prompt, uint32_t n, uint32_t max_tokens)
{
    return (firn_request){ .prompt = prompt, .n_prompt = n, .max_tokens = max_tokens, .n_logprobs = 4,
                           .ignore_end = true };
}

static void submit(setup *s, firn_request request, test_answer *answer)
{
    firn_error err;
    if (test_submit(&s->stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
}

static void ask(setup *s, firn_request request, test_answer *answer)
{
    test_ask(&s->stack, request, answer);
}

/* A new engine over the same tier: RAM is empty. */
static void restart(setup *s, uint32_t n_rows)
{
    firn_flush_report report;
    firn_error err;
    firn_engine_destroy(s->stack.engine, UINT64_C(10000000000), &report);
    assert_true(report.durable);
    const firn_engine_options options = { .model = s->stack.model,
                                          .pool = s->stack.pool,
                                          .tier = s->stack.tier,
                                          .batch_rows_max = n_rows,
                                          .restore_always = true,
                                          .layered_bytes_min = 1 };
    assert_ok(firn_engine_create(&options, NULL, &s->stack.engine, &err));
}

/* The beginnings of the prompts are stored; each goes on with something new. */
static void open_setup(setup *s, const char *model)
{
    static test_answer answer;
    char path[64];
    test_rng rng = test_rng_create("early start", 91);
    (void)snprintf(path, sizeof path, "tests/oracle/%s.gguf", model);
    s->tier = layer_tier_create();
    test_stack_open(&s->stack, &(test_stack_options){ .model_path = path, .tier = &s->tier->tier });
    s->tier->pool = s->stack.pool;
    s->n_layers = firn_model_schema(s->stack.model)->n_layers;
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        for (uint32_t i = 0; i < PROMPT; i++) {
            s->prompts[p][i] = 10 + test_rng_below(&rng, 200);
        }
        ask(s, request_of(s->prompts[p], STORED, 2), &answer);
    }
    restart(s, 4);
}

static firn_engine_stats stats_of(setup *s, uint64_t n_finished)
{
    firn_engine_stats stats;
    do {
        firn_engine_get_stats(s->stack.engine, &stats);
    } while (stats.n_finished < n_finished || stats.n_running > 0);
    return stats;
}

static void a_row_goes_on_while_its_restore_arrives(void **state)
{
    (void)state;
    static setup s;
    static test_answer early, fresh;
    for (size_t m = 0; m < N_MODELS; m++) {
        open_setup(&s, models[m]);
        s.tier->layer_ns = 2 * MS;
        s.tier->last_layer_ns = 40 * MS;
        ask(&s, request_of(s.prompts[0], PROMPT, ANSWER), &early);
        const firn_engine_stats stats = stats_of(&s, 1);
        assert_int_equal(stats.n_early_starts, 1);
        assert_int_equal(stats.n_early_failed, 0);
        assert_true(stats.early_layers > 0); /* before the last one was there */
        assert_true(early.usage.cache.disk_tokens >= STORED / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS);
        firn_request request = request_of(s.prompts[0], PROMPT, ANSWER);
        request.no_cache = true;
        ask(&s, request, &fresh);
        test_assert_same_answer(&early, &fresh);
        /* What it published is what anybody may build upon. */
        ask(&s, request_of(s.prompts[0], PROMPT, ANSWER), &early);
        assert_int_equal(early.usage.cache.ram_tokens, PROMPT);
        test_assert_same_answer(&early, &fresh);
        (void)test_stack_close(&s.stack, 1000000000);
    }
}

static void a_layer_that_fails_leads_to_the_computed_answer(void **state)
{
    (void)state;
    static setup s;
    static test_answer answer, fresh;
    for (size_t m = 0; m < N_MODELS; m += 3) { /* of all blocks, and with states */
        open_setup(&s, models[m]);
        firn_request request = request_of(s.prompts[0], PROMPT, ANSWER);
        request.no_cache = true;
        ask(&s, request, &fresh);
        s.tier->layer_ns = 3 * MS;
        s.tier->last_layer_ns = 60 * MS; /* time enough to have started, also on a busy machine */
        uint64_t n_started = 0;
        for (uint32_t layer = 0; layer < s.n_layers; layer++) {
            restart(&s, 4);
            firn_pool_stats before, after;
            firn_pool_get_stats(s.stack.pool, &before);
            s.tier->fail_layer = layer;
            ask(&s, request_of(s.prompts[0], PROMPT, ANSWER), &answer);
            test_assert_same_answer(&answer, &fresh);
            assert_int_equal(answer.usage.cache.disk_tokens, 0);
            assert_int_equal(answer.usage.cache.reason, FIRN_REASON_CORRUPT);
            const firn_engine_stats stats = stats_of(&s, 1);
            assert_int_equal(stats.n_early_failed, stats.n_early_starts);
            n_started += stats.n_early_starts;
            assert_int_equal(stats.prefix.n_restores_failed, 1);
            assert_int_equal(stats.prefix.reading_bytes, 0);
            /* Only what the tree holds is in use. */
            firn_pool_get_stats(s.stack.pool, &after);
            assert_true(after.used_bytes - before.used_bytes <= stats.prefix.held_bytes);
            s.tier->fail_layer = UINT32_MAX;
        }
        assert_true(n_started > 0);
        (void)test_stack_close(&s.stack, 1000000000);
    }
}

static void other_rows_see_nothing_of_it(void **state)
{
    (void)state;
    enum { LONG = 120 };
    static setup s;
    static test_answer alone, together, restored[N_PROMPTS], fresh;
    firn_token prompt[40];
    open_setup(&s, "qwen35");
    for (uint32_t i = 0; i < 40; i++) {
        prompt[i] = 30 + i;
    }
    firn_request request = request_of(prompt, 40, LONG);
    request.no_cache = true;
    ask(&s, request, &alone);
    s.tier->layer_ns = s.tier->last_layer_ns = MS;
    submit(&s, request, &together);
    test_wait_tokens(&together, 4);
    for (uint32_t p = 0; p < N_PROMPTS; p++) { /* two at once */
        submit(&s, request_of(s.prompts[p], PROMPT, ANSWER), &restored[p]);
    }
    test_wait_end(&together);
    test_assert_same_answer(&alone, &together);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        test_wait_end(&restored[p]);
        assert_true(restored[p].usage.cache.disk_tokens > 0);
        request = request_of(s.prompts[p], PROMPT, ANSWER);
        request.no_cache = true;
        ask(&s, request, &fresh);
        test_assert_same_answer(&restored[p], &fresh);
    }
    assert_int_equal(stats_of(&s, 6).n_early_failed, 0);
    (void)test_stack_close(&s.stack, 1000000000);
}

static void a_cancelled_row_leaves_nothing(void **state)
{
    (void)state;
    static setup s;
    static test_answer answer;
    open_setup(&s, "llama");
    s.tier->layer_ns = 5 * MS;
    s.tier->last_layer_ns = 60 * MS;
    for (uint32_t i = 0; i < 4; i++) {
        submit(&s, request_of(s.prompts[i % 2], PROMPT, ANSWER), &answer);
        layer_sleep(i * 8 * MS);
        firn_engine_cancel(s.stack.engine, answer.id);
        test_wait_end(&answer);
    }
    (void)test_stack_close(&s.stack, 1000000000); /* asserts that no block is left */
}

/* All rows are busy: the one that waits has its read running, and done, before its turn. */
static void a_waiting_request_has_its_read_running(void **state)
{
    (void)state;
    static setup s;
    static test_answer busy, waiting;
    firn_token prompt[20];
    firn_engine_stats stats;
    open_setup(&s, "llama");
    restart(&s, 1);
    for (uint32_t i = 0; i < 20; i++) {
        prompt[i] = 40 + i;
    }
    submit(&s, request_of(prompt, 20, 400), &busy);
    test_wait_tokens(&busy, 1);
    submit(&s, request_of(s.prompts[0], PROMPT, ANSWER), &waiting);
    do {
        firn_engine_get_stats(s.stack.engine, &stats);
    } while (stats.prefix.restored_bytes == 0);
    assert_int_equal(stats.n_running, 1);
    assert_int_equal(stats.n_waiting, 1);
    assert_int_equal(busy.n_ends, 0);
    assert_true(stats.prefix.held_bytes > 0);
    firn_engine_cancel(s.stack.engine, busy.id);
    test_wait_end(&waiting);
    assert_true(waiting.usage.cache.disk_tokens >= STORED / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS);
    test_wait_end(&busy);
    (void)test_stack_close(&s.stack, 1000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_goes_on_while_its_restore_arrives),
        cmocka_unit_test(a_layer_that_fails_leads_to_the_computed_answer),
        cmocka_unit_test(other_rows_see_nothing_of_it),
        cmocka_unit_test(a_cancelled_row_leaves_nothing),
        cmocka_unit_test(a_waiting_request_has_its_read_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
