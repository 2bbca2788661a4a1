/*
 * See engine_fixture.h.
 */
#include "support/engine_fixture.h"

#include <string.h>

#define BUILTIN_MODEL "models/firn-tiny-q8_0.gguf"

static void check(firn_status status, const firn_error *err)
{
    if (status != FIRN_OK) {
        fail_msg("%s: %s", firn_status_name(status), err->message);
    }
}

static firn_tier *open_disk(const test_stack *stack, const char *dir, const firn_model *model,
                            const test_stack_options *options)
{
    const firn_disk_options disk_options = {
        .dir = dir, .schema = firn_model_schema(model), .pool = stack->pool, .budget_bytes = UINT64_C(1) << 30
    };
    firn_tier *tier = NULL;
    firn_error err;
    if (dir != NULL) {
        check(firn_disk_open(&disk_options, options->env, &tier, &err), &err);
    }
    return tier;
}

void test_stack_open(test_stack *stack, const test_stack_options *options)
{
    *stack = (test_stack){ 0 };
    firn_error err;
    check(firn_workers_create(options->n_threads != 0 ? options->n_threads : 1, NULL, &stack->workers, &err), &err);
    firn_model_options model_options = {
        .path = options->model_path != NULL ? options->model_path : BUILTIN_MODEL,
        .kv_dtype = options->kv_dtype,
        .kv_scheme = options->kv_scheme,
        .workers = stack->workers,
        .kernel = options->kernel,
    };
    check(firn_model_open(&model_options, NULL, &stack->model, &err), &err);
    const firn_pool_options pool_options = { .budget_bytes = options->pool_bytes != 0 ? options->pool_bytes
                                                                                       : UINT64_C(256) << 20 };
    check(firn_pool_create(&pool_options, options->env, &stack->pool, &err), &err);
    stack->tier =
        options->tier != NULL ? options->tier : open_disk(stack, options->disk_dir, stack->model, options);
    if (options->draft_path != NULL) {
        model_options.path = options->draft_path;
        check(firn_model_open(&model_options, NULL, &stack->draft_model, &err), &err);
        stack->draft_tier = open_disk(stack, options->draft_disk_dir, stack->draft_model, options);
    }
    firn_engine_options engine_options = options->engine;
    engine_options.restore_always = !options->is_gated;
    engine_options.model = stack->model;
    engine_options.pool = stack->pool;
    engine_options.tier = stack->tier;
    engine_options.draft_model = stack->draft_model;
    engine_options.draft_tier = stack->draft_tier;
    check(firn_engine_create(&engine_options, options->env, &stack->engine, &err), &err);
}

firn_flush_report test_stack_close(test_stack *stack, uint64_t bound_ns)
{
    firn_flush_report report = { 0 };
    firn_engine_destroy(stack->engine, bound_ns, &report);
    firn_tier_destroy(stack->tier);
    firn_tier_destroy(stack->draft_tier);
    firn_pool_destroy(stack->pool); /* asserts that no block is left */
    firn_model_close(stack->draft_model);
    firn_model_close(stack->model);
    firn_workers_destroy(stack->workers);
    *stack = (test_stack){ 0 };
    return report;
}

static void on_event(void *ctx, const firn_event *event)
{
    test_answer *answer = ctx;
    (void)pthread_mutex_lock(&answer->mutex);
    if (event->len_text > 0 && answer->len_text + event->len_text < sizeof answer->text) {
        memcpy(answer->text + answer->len_text, event->text, event->len_text);
        answer->len_text += event->len_text;
        answer->text[answer->len_text] = '\0';
    }
    if (event->kind == FIRN_EVENT_TOKEN) {
        if (answer->n_tokens < TEST_ANSWER_TOKENS_MAX) {
            answer->tokens[answer->n_tokens] = event->token;
            if (event->logprobs != NULL) {
                answer->logprobs[answer->n_tokens] = *event->logprobs;
            }
            answer->n_tokens++;
        }
    } else {
        answer->n_ends++;
        answer->finish = event->finish;
        answer->usage = *event->usage;
        if (event->stop_string != NULL) {
            strncpy(answer->stop_string, event->stop_string, sizeof answer->stop_string - 1);
        }
        if (event->error != NULL) {
            answer->error = *event->error;
        }
    }
    (void)pthread_cond_broadcast(&answer->changed);
    (void)pthread_mutex_unlock(&answer->mutex);
}

firn_status test_submit(test_stack *stack, firn_request request, test_answer *answer, firn_error *err)
{
    memset(answer, 0, sizeof *answer);
    (void)pthread_mutex_init(&answer->mutex, NULL);
    (void)pthread_cond_init(&answer->changed, NULL);
    request.on_event = on_event;
    request.ctx = answer;
    return firn_engine_submit(stack->engine, &request, &answer->id, err);
}

void test_wait_tokens(test_answer *answer, uint32_t n_tokens)
{
    (void)pthread_mutex_lock(&answer->mutex);
    while (answer->n_tokens < n_tokens && answer->n_ends == 0) {
        (void)pthread_cond_wait(&answer->changed, &answer->mutex);
    }
    (void)pthread_mutex_unlock(&answer->mutex);
}

void test_wait_end(test_answer *answer)
{
    (void)pthread_mutex_lock(&answer->mutex);
    while (answer->n_ends == 0) {
        (void)pthread_cond_wait(&answer->changed, &answer->mutex);
    }
    (void)pthread_mutex_unlock(&answer->mutex);
}

void test_answer_deinit(test_answer *answer)
{
    (void)pthread_mutex_destroy(&answer->mutex);
    (void)pthread_cond_destroy(&answer->changed);
}

void test_ask(test_stack *stack, firn_request request, test_answer *answer)
{
    firn_error err = { 0 };
    if (test_submit(stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->finish, FIRN_FINISH_LENGTH);
}

void test_assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    assert_memory_equal(a->logprobs, b->logprobs, a->n_tokens * sizeof a->logprobs[0]);
}
