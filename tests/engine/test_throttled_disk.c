/*
 * A disk that is slower than computing on whatever machine this runs on: its reads do not return before the test lets
 * them. The engine computes instead, with the same bits, and asks such a disk no second time. How long it waits, at all
 * rates, is tests/prefix/test_prefix_gate.c's; times are bench/bench_throttled.c's.
 *
 * The clock is the test's: it stands until the first read has reached the disk, since a read that was given up before
 * says nothing about one, and is slow from then on, so that no computing takes longer than what a read may.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "support/engine_fixture.h"

enum { PROMPT = 1200, ANSWER = 4, N_PROMPTS = 3, SLOWNESS = 8 };

#define BETWEEN_NS UINT64_C(1000000000) /* from one prompt to the next, at least */

typedef struct throttle {
    firn_io io; /* the system's, but for the reads of restores */
    firn_clock clock;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Guarded by mutex. */
    bool is_slow;      /* reads wait */
    bool stands;       /* the clock, until a read waits */
    uint64_t begun_ns; /* of the system's clock, when it began to run */
    uint64_t since_ns; /* what it said then */
} throttle;

static uint64_t now_locked(const throttle *t)
{
    return t->stands ? t->since_ns : t->since_ns + (firni_now_ns(NULL) - t->begun_ns) / SLOWNESS;
}

static uint64_t slow_clock(void *ctx)
{
    throttle *t = ctx;
    (void)pthread_mutex_lock(&t->mutex);
    const uint64_t now_ns = now_locked(t);
    (void)pthread_mutex_unlock(&t->mutex);
    return now_ns;
}

/* Stands, or goes on from there; `later_ns` further. */
static void set_clock_locked(throttle *t, bool stands, uint64_t later_ns)
{
    t->since_ns = now_locked(t) + later_ns;
    t->begun_ns = firni_now_ns(NULL);
    t->stands = stands;
}

static void set_slow(throttle *t, bool is_slow)
{
    (void)pthread_mutex_lock(&t->mutex);
    t->is_slow = is_slow;
    set_clock_locked(t, is_slow, 0);
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->mutex);
}

static void pass(throttle *t, uint64_t ns)
{
    (void)pthread_mutex_lock(&t->mutex);
    set_clock_locked(t, t->stands, ns);
    (void)pthread_mutex_unlock(&t->mutex);
}

static int slow_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads,
                           void (*done)(void *done_ctx, uint32_t index), void *done_ctx)
{
    throttle *t = ctx;
    const firn_io *inner = firn_io_default();
    (void)pthread_mutex_lock(&t->mutex);
    set_clock_locked(t, false, 0);
    while (t->is_slow) {
        (void)pthread_cond_wait(&t->changed, &t->mutex);
    }
    (void)pthread_mutex_unlock(&t->mutex);
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

static void a_throttled_disk_is_given_up_and_not_asked_again(void **state)
{
    (void)state;
    static test_answer cold[N_PROMPTS], warm;
    throttle t = { .io = *firn_io_default(),
                   .mutex = PTHREAD_MUTEX_INITIALIZER,
                   .changed = PTHREAD_COND_INITIALIZER };
    t.io.read_batch = slow_read_batch;
    t.io.ctx = &t;
    t.clock = (firn_clock){ .monotonic_ns = slow_clock, .wall_ns = firn_clock_default()->wall_ns, .ctx = &t };
    set_clock_locked(&t, false, BETWEEN_NS);
    const firn_env env = { .io = &t.io, .clock = &t.clock };
    char *dir = test_dir_create();
    const test_stack_options options = { .disk_dir = dir, .env = &env, .is_gated = true };
    test_stack stack;
    test_stack_open(&stack, &options);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        ask(&stack, 50 + p, &cold[p]);
    }
    assert_true(test_stack_close(&stack, UINT64_C(20000000000)).durable);

    set_slow(&t, true);
    test_stack_open(&stack, &options);
    for (uint32_t p = 0; p < N_PROMPTS - 1; p++) {
        ask(&stack, 50 + p, &warm);
        print_message("waited %.1f ms of %.1f ms: %s\n", (double)warm.usage.cache.restore_ns * 1e-6,
                      (double)warm.usage.first_token_ns * 1e-6, firn_reason_name(warm.usage.cache.reason));
        assert_int_equal(warm.usage.cache.disk_tokens, 0);
        assert_int_equal(warm.usage.cache.reason, FIRN_REASON_BREAKEVEN);
        assert_memory_equal(warm.tokens, cold[p].tokens, ANSWER * sizeof warm.tokens[0]);
        assert_memory_equal(warm.logprobs, cold[p].logprobs, ANSWER * sizeof warm.logprobs[0]);
        pass(&t, BETWEEN_NS);
    }
    firn_engine_stats stats;
    firn_engine_get_stats(stack.engine, &stats);
    assert_int_equal(stats.prefix.n_hits_disk, 0);
    assert_int_equal(stats.prefix.n_restores, 1); /* what it showed was enough */
    assert_int_equal(stats.prefix.n_restores_given_up + stats.prefix.n_restores_refused, N_PROMPTS - 1);
    set_slow(&t, false); /* the read that nobody wants any more comes to its end */
    (void)test_stack_close(&stack, UINT64_C(20000000000));
    test_dir_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_throttled_disk_is_given_up_and_not_asked_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
