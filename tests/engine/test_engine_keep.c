/*
 * What a request may ask of the cache, and what the engine keeps for those who come back: policies, warm-ups, sessions,
 * flushes while serving, and answers that go on after the process was killed.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/engine_fixture.h"

enum { N = 200, PROMPT_MAX = 400 };
#define SECOND UINT64_C(1000000000)

static firn_token prompt[PROMPT_MAX];

/* A prompt of n tokens that depends on `seed`; never a control token. */
static void fill(uint32_t n, uint64_t seed)
{
    test_rng rng = { .state = seed };
    prompt[0] = 1;
    for (uint32_t i = 1; i < n; i++) {
        prompt[i] = 300 + test_rng_below(&rng, 1500);
    }
}

static firn_request request_of(uint32_t n_prompt, uint32_t max_tokens)
{
    return (firn_request){ .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .ignore_end = true };
}

static void ask(test_stack *stack, firn_request request, test_answer *answer)
{
    firn_error err = { 0 };
    if (test_submit(stack, request, answer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->n_ends, 1);
}

static uint64_t wall_in(uint64_t ns)
{
    return firn_clock_default()->wall_ns(NULL) + ns;
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

static firn_engine_stats stats_of(const test_stack *stack)
{
    firn_engine_stats stats;
    firn_engine_get_stats(stack->engine, &stats);
    return stats;
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static void a_policy_says_what_is_read_and_where_state_goes(void **state)
{
    (void)state;
    static test_answer cold, answer;
    char *dir = test_dir_create();
    test_stack stack;
    const test_stack_options options = { .disk_dir = dir };
    test_stack_open(&stack, &options);
    fill(N, 1);
    firn_request request = request_of(N, 8);
    request.cache.store = FIRN_STORE_NONE;
    ask(&stack, request, &cold);
    assert_int_equal(stats_of(&stack).prefix.n_nodes, 0); /* nothing is left of it */
    request.cache.store = FIRN_STORE_RAM;
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, 0);
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.cache.ram_tokens, N); /* a repeat: its last logits are kept too */
    request.cache.no_read = true;
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, 0);
    assert_int_equal(answer.usage.cache.reason, FIRN_REASON_DISABLED);
    assert_memory_equal(answer.tokens, cold.tokens, 8 * sizeof answer.tokens[0]);
    assert_true(test_stack_close(&stack, 5 * SECOND).durable);

    test_stack_open(&stack, &options);
    request.cache = (firn_cache_policy){ .no_read = true }; /* computes everything, and stores it */
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.cache.n_tokens, 0);
    assert_true(test_stack_close(&stack, 5 * SECOND).durable);
    test_stack_open(&stack, &options);
    request.cache = (firn_cache_policy){ .priority = 7 };
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, N);
    firn_error err = { 0 };
    request.cache.priority = 101;
    assert_status(test_submit(&stack, request, &answer, &err), FIRN_ERR_INVALID);
    (void)test_stack_close(&stack, SECOND);
    test_dir_remove(dir);
    free(dir);
}

static void children_share_the_house_and_nothing_else(void **state)
{
    (void)state;
    static test_answer answer;
    char alice[256], bob[256];
    char *dir = test_dir_create();
    assert_ok(firn_namespace_below("house", "alice", alice, NULL));
    assert_ok(firn_namespace_below("house", "bob", bob, NULL));
    for (unsigned restart = 0; restart < 2; restart++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
        fill(N, 2);
        firn_request request = request_of(128, 0);
        request.ns = "house";
        request.only_prefill = true;
        ask(&stack, request, &answer);
        assert_int_equal(answer.n_tokens, 0);
        assert_int_equal(answer.finish, FIRN_FINISH_LENGTH);
        request = request_of(N, 4);
        request.ns = alice;
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, restart == 0 ? 128 : N);
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, N);
        request.ns = bob;
        request.cache.store = FIRN_STORE_NONE;
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, 128);
        assert_int_equal(answer.usage.cache.first_divergence, 128);
        assert_false(answer.usage.cache.diverged);
        assert_true(test_stack_close(&stack, 5 * SECOND).durable);
    }
    test_dir_remove(dir);
    free(dir);
}

/* ---- warm-up and flush ------------------------------------------------------------------------------------------- */

static void a_warm_up_is_pinned_in_ram_before_it_ends(void **state)
{
    (void)state;
    static test_answer answer;
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .pool_bytes = 8 << 20 });
    fill(N, 3);
    firn_request warm = request_of(N, 0);
    warm.only_prefill = true;
    warm.pin = "house";
    warm.pin_until_wall_ns = wall_in(3600 * SECOND);
    ask(&stack, warm, &answer);
    assert_int_equal(answer.finish, FIRN_FINISH_LENGTH);
    while (stats_of(&stack).prefix.n_pins != 1) {
        nap(); /* statistics are published after the answer's end */
    }
    for (uint64_t i = 0; i < 30; i++) { /* more than there is room for */
        fill(PROMPT_MAX, 1000 + i);
        ask(&stack, request_of(PROMPT_MAX, 2), &answer);
    }
    assert_true(stats_of(&stack).prefix.n_evicted > 0);
    fill(N, 3);
    prompt[N] = 777;
    ask(&stack, request_of(N + 1, 2), &answer);
    assert_int_equal(answer.usage.cache.n_tokens, N);
    firn_engine_unpin(stack.engine, "house");
    while (stats_of(&stack).prefix.n_pins > 0) {
        nap();
    }
    (void)test_stack_close(&stack, SECOND);
}

static void a_warm_up_that_is_found_whole_is_pinned_and_says_nothing(void **state)
{
    (void)state;
    static test_answer answer;
    char *dir = test_dir_create();
    for (unsigned restart = 0; restart < 2; restart++) {
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
        fill(N, 6);
        ask(&stack, request_of(N, 4), &answer);
        firn_request warm = request_of(N, 0);
        warm.only_prefill = true;
        warm.pin = "house";
        warm.pin_until_wall_ns = wall_in(3600 * SECOND);
        ask(&stack, warm, &answer);
        assert_int_equal(answer.usage.cache.n_tokens, N);
        assert_int_equal(answer.n_tokens, 0);
        assert_int_equal(answer.finish, FIRN_FINISH_LENGTH);
        while (stats_of(&stack).n_finished < 2) {
            nap();
        }
        assert_int_equal(stats_of(&stack).prefix.n_pins, 1);
        assert_true(test_stack_close(&stack, 5 * SECOND).durable);
    }
    test_dir_remove(dir);
    free(dir);
}

typedef struct flushed {
    pthread_mutex_t mutex;
    unsigned n;
    firn_flush_report report;
} flushed;

static void on_flushed(void *ctx, const firn_flush_report *report)
{
    flushed *out = ctx;
    (void)pthread_mutex_lock(&out->mutex);
    out->n++;
    out->report = *report;
    (void)pthread_mutex_unlock(&out->mutex);
}

static unsigned wait_flushed(flushed *out, unsigned n)
{
    for (;;) {
        (void)pthread_mutex_lock(&out->mutex);
        const unsigned n_now = out->n;
        (void)pthread_mutex_unlock(&out->mutex);
        if (n_now >= n) {
            return n_now;
        }
        nap();
    }
}

static void a_flush_while_serving_saves_and_reports(void **state)
{
    (void)state;
    static test_answer answer, running;
    flushed out = { .n = 0 };
    (void)pthread_mutex_init(&out.mutex, NULL);
    char *dir = test_dir_create();
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
    fill(N, 4);
    ask(&stack, request_of(N, 10), &answer);
    while (stats_of(&stack).prefix.n_dirty == 0) {
        nap(); /* statistics are published after the answer's end; the tail waits for more */
    }
    fill(N, 5);
    firn_error err;
    assert_ok(test_submit(&stack, request_of(N, 300), &running, &err));
    test_wait_tokens(&running, 1);
    assert_ok(firn_engine_flush(stack.engine, 10 * SECOND, on_flushed, &out, NULL));
    assert_ok(firn_engine_flush(stack.engine, 10 * SECOND, on_flushed, &out, NULL));
    (void)wait_flushed(&out, 2);
    assert_true(out.report.durable);
    test_wait_end(&running);
    assert_int_equal(running.n_tokens, 300);
    (void)test_stack_close(&stack, 0); /* no time to save anything more */
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
    fill(N, 4);
    ask(&stack, request_of(N, 10), &answer);
    assert_int_equal(answer.usage.cache.disk_tokens, N);
    (void)test_stack_close(&stack, SECOND);
    (void)pthread_mutex_destroy(&out.mutex);
    test_dir_remove(dir);
    free(dir);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static void a_session_is_new_continued_or_branched(void **state)
{
    (void)state;
    static test_answer first, answer;
    char *dir = test_dir_create();
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
    fill(100, 6);
    firn_request request = request_of(100, 10);
    request.session = "chat";
    ask(&stack, request, &first);
    assert_int_equal(first.usage.session, FIRN_SESSION_NEW);
    for (unsigned restart = 0; restart < 2; restart++) {
        while (stats_of(&stack).n_sessions == 0 && restart == 0) {
            nap(); /* the note is written behind */
        }
        memcpy(prompt + 100, first.tokens, 10 * sizeof *prompt);
        prompt[110] = 500;
        request.n_prompt = 111;
        request.cache.store = FIRN_STORE_NONE; /* leaves the session where it was */
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.session, FIRN_SESSION_CONTINUED);
        assert_int_equal(answer.usage.session_tokens, 109);
        prompt[50] ^= 1;
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.session, FIRN_SESSION_BRANCHED);
        prompt[50] ^= 1;
        request.n_prompt = 90;
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.session, FIRN_SESSION_BRANCHED);
        request.ns = "other";
        ask(&stack, request, &answer);
        assert_int_equal(answer.usage.session, FIRN_SESSION_NEW);
        request.ns = NULL;
        (void)test_stack_close(&stack, 5 * SECOND);
        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir });
    }
    firn_engine_forget_session(stack.engine, NULL, "chat");
    ask(&stack, request, &answer);
    assert_int_equal(answer.usage.session, FIRN_SESSION_NEW);
    (void)test_stack_close(&stack, SECOND);
    test_dir_remove(dir);
    free(dir);
}

/* ---- generation checkpoints -------------------------------------------------------------------------------------- */

enum { N_ANSWER = 120, EVERY = 16 };

static firn_request long_request(bool sampled)
{
    fill(150, 7);
    firn_request request = request_of(150, N_ANSWER);
    request.request_id = "r 1";
    request.ns = "alice";
    request.sampling.temperature = sampled ? 0.9f : 0.0f;
    request.sampling.repetition_penalty = sampled ? 1.1f : 0.0f;
    request.sampling.has_seed = sampled;
    request.sampling.seed = 99;
    return request;
}

/* Takes its time over every token, so that the answer does not end before its process does. */
static void dawdle(void *ctx, const firn_event *event)
{
    (void)ctx;
    (void)event;
    for (unsigned i = 0; i < 5; i++) {
        nap();
    }
}

/* A process that serves the request until it is killed; writes a byte once two checkpoints are stored. */
static void serve_until_killed(const char *dir, firn_request request, int fd)
{
    test_stack stack;
    uint64_t id;
    request.on_event = dawdle;
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir, .engine = { .checkpoint_tokens = EVERY } });
    (void)firn_engine_submit(stack.engine, &request, &id, NULL);
    while (stats_of(&stack).n_generation_checkpoints < 2) {
        nap();
    }
    (void)!write(fd, "x", 1);
    for (;;) {
        nap();
    }
}

static void crash(const char *dir, firn_request request)
{
    int fds[2];
    char byte = 0;
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(fds[0]);
        serve_until_killed(dir, request, fds[1]);
    }
    (void)close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    (void)close(fds[0]);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
}

static void an_answer_goes_on_after_the_process_was_killed(void **state)
{
    (void)state;
    static test_answer whole, resumed, other;
    for (unsigned sampled = 0; sampled < 2; sampled++) {
        char *dir = test_dir_create();
        const firn_request request = long_request(sampled == 1);
        crash(dir, request); /* first: no thread of this process may run when it forks */
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ 0 });
        firn_request plain = request;
        plain.request_id = NULL;
        ask(&stack, plain, &whole);
        assert_int_equal(whole.n_tokens, N_ANSWER);
        (void)test_stack_close(&stack, SECOND);

        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir, .engine = { .checkpoint_tokens = EVERY } });
        /* Nobody else sees what was generated: not by the prompt and the answer, and not under another id. */
        firn_request curious = request;
        curious.request_id = NULL;
        curious.cache.store = FIRN_STORE_NONE;
        memcpy(prompt + 150, whole.tokens, N_ANSWER * sizeof *prompt);
        curious.n_prompt = 150 + 40;
        ask(&stack, curious, &other);
        assert_true(other.usage.cache.n_tokens <= 150);
        curious = request;
        curious.request_id = "r 2";
        ask(&stack, curious, &other);
        assert_int_equal(other.usage.resumed_tokens, 0);
        ask(&stack, request, &resumed);
        assert_true(resumed.usage.resumed_tokens >= 2 * EVERY);
        assert_true(resumed.usage.cache.n_tokens > 0);
        assert_int_equal(resumed.n_tokens, N_ANSWER);
        assert_memory_equal(resumed.tokens, whole.tokens, N_ANSWER * sizeof whole.tokens[0]);
        assert_string_equal(resumed.text, whole.text);
        /* It has ended: the same id begins anew. */
        (void)test_stack_close(&stack, 5 * SECOND);
        test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir, .engine = { .checkpoint_tokens = EVERY } });
        ask(&stack, request, &resumed);
        assert_int_equal(resumed.usage.resumed_tokens, 0);
        assert_memory_equal(resumed.tokens, whole.tokens, N_ANSWER * sizeof whole.tokens[0]);
        firn_error err = { 0 };
        assert_ok(firn_disk_check(stack.tier, &err));
        (void)test_stack_close(&stack, 5 * SECOND);
        test_dir_remove(dir);
        free(dir);
    }
}

static void another_request_of_the_same_id_begins_anew(void **state)
{
    (void)state;
    static test_answer answer;
    char *dir = test_dir_create();
    firn_request request = long_request(true);
    crash(dir, request);
    test_stack stack;
    test_stack_open(&stack, &(test_stack_options){ .disk_dir = dir, .engine = { .checkpoint_tokens = EVERY } });
    firn_request changed = request;
    changed.sampling.seed = 100;
    ask(&stack, changed, &answer);
    assert_int_equal(answer.usage.resumed_tokens, 0);
    changed = request;
    changed.ns = "bob";
    ask(&stack, changed, &answer);
    assert_int_equal(answer.usage.resumed_tokens, 0);
    (void)test_stack_close(&stack, 5 * SECOND);
    test_dir_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_goes_on_after_the_process_was_killed),
        cmocka_unit_test(another_request_of_the_same_id_begins_anew),
        cmocka_unit_test(a_policy_says_what_is_read_and_where_state_goes),
        cmocka_unit_test(children_share_the_house_and_nothing_else),
        cmocka_unit_test(a_warm_up_is_pinned_in_ram_before_it_ends),
        cmocka_unit_test(a_warm_up_that_is_found_whole_is_pinned_and_says_nothing),
        cmocka_unit_test(a_flush_while_serving_saves_and_reports),
        cmocka_unit_test(a_session_is_new_continued_or_branched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
