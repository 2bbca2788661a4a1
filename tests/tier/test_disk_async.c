/*
 * Asynchronous restores: answered once, on time, with the right state; a device that hangs costs its deadline; a full
 * queue refuses; closing answers what waits.
 */
#include <pthread.h>
#include <time.h>

#include "base/base_impl.h"
#include "tier/tier_fixture.h"

#define N 200u

/* Where answers arrive. */
typedef struct inbox {
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    uint32_t n_answers, n_reasons[FIRN_REASON_COUNT];
    firn_restored last;
    bool has_last;
} inbox;

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[N + 1];
    inbox box;
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_async", 51);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    pthread_mutex_init(&s->box.mutex, NULL);
    pthread_cond_init(&s->box.arrived, NULL);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    if (s->tier != NULL) {
        firn_tier_destroy(s->tier);
    }
    if (s->box.has_last) {
        firn_restored_deinit(&s->box.last);
    }
    pthread_cond_destroy(&s->box.arrived);
    pthread_mutex_destroy(&s->box.mutex);
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    inbox *box = ctx;
    pthread_mutex_lock(&box->mutex);
    box->n_answers++;
    box->n_reasons[reason]++;
    if (restored != NULL) {
        if (box->has_last) {
            firn_restored_deinit(&box->last);
        }
        box->last = *restored;
        box->has_last = true;
    }
    pthread_cond_broadcast(&box->arrived);
    pthread_mutex_unlock(&box->mutex);
}

static void wait_for_answers(inbox *box, uint32_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&box->mutex);
    while (box->n_answers < n) {
        if (pthread_cond_timedwait(&box->arrived, &box->mutex, &until) != 0) {
            pthread_mutex_unlock(&box->mutex);
            fail_msg("%u of %u answers came", box->n_answers, n);
        }
    }
    pthread_mutex_unlock(&box->mutex);
}

static uint64_t now(const state *s)
{
    return firni_now_ns(&s->world.env);
}

static firn_status request(state *s, uint32_t n_tokens, uint64_t deadline_ns, firn_error *err)
{
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    const firn_status status =
        firn_tier_restore_async(s->tier, match.handle, n_tokens, deadline_ns, on_done, &s->box, err);
    firn_tier_release(s->tier, match.handle); /* at once: the request keeps what it needs */
    return status;
}

static void state_arrives_on_another_thread(void **in)
{
    state *s = *in;
    const uint32_t cuts[] = { 0, 1, 64, 130, N };
    for (uint32_t i = 0; i < 5; i++) {
        assert_ok(request(s, cuts[i], i % 2 == 0 ? 0 : now(s) + UINT64_C(20000000000), NULL));
        wait_for_answers(&s->box, i + 1);
        fixture_assert_state(&s->fix, &s->box.last, s->tokens, cuts[i] == 0 ? N : cuts[i]);
    }
    assert_int_equal(s->box.n_reasons[FIRN_REASON_NONE], 5);
}

static void a_hanging_read_costs_its_deadline(void **in)
{
    state *s = *in;
    s->world.read_delay_ns = 700000000; /* each read of the batch */
    const uint64_t started = now(s);
    assert_ok(request(s, 0, started + 60000000, NULL));
    assert_ok(request(s, 0, started + 120000000, NULL)); /* waits behind it, and is not late either */
    wait_for_answers(&s->box, 2);
    const uint64_t took = now(s) - started;
    assert_int_equal(s->box.n_reasons[FIRN_REASON_DEADLINE], 2);
    assert_true(took >= 120000000 && took < 650000000);
    assert_false(s->box.has_last);
    firn_tier_destroy(s->tier); /* waits for the read that hangs, since the kernel may still write */
    s->world.read_delay_ns = 0;
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    assert_ok(request(s, 0, 0, NULL));
    wait_for_answers(&s->box, 3);
    fixture_assert_state(&s->fix, &s->box.last, s->tokens, N);
    assert_int_equal(s->box.n_answers, 3); /* the late result was dropped, and with it its memory (see teardown) */
}

static void a_deadline_that_has_passed_is_answered_at_once(void **in)
{
    state *s = *in;
    s->world.read_delay_ns = 200000000;
    assert_ok(request(s, 0, 1, NULL));
    wait_for_answers(&s->box, 1);
    assert_int_equal(s->box.n_reasons[FIRN_REASON_DEADLINE], 1);
}

static void a_full_queue_refuses(void **in)
{
    state *s = *in;
    s->world.read_delay_ns = 300000000;
    uint32_t n_accepted = 0;
    firn_error err = { 0 };
    while (n_accepted < 1000 && request(s, 0, now(s) + 100000000, &err) == FIRN_OK) {
        n_accepted++;
    }
    assert_true(n_accepted >= 64 && n_accepted < 200);
    assert_int_equal(err.status, FIRN_ERR_BUSY);
    wait_for_answers(&s->box, n_accepted);
    assert_int_equal(s->box.n_reasons[FIRN_REASON_DEADLINE], n_accepted);
}

static void closing_answers_what_waits(void **in)
{
    state *s = *in;
    s->world.read_delay_ns = 100000000;
    for (uint32_t i = 0; i < 10; i++) {
        assert_ok(request(s, 0, 0, NULL));
    }
    firn_tier_destroy(s->tier);
    s->tier = NULL;
    assert_int_equal(s->box.n_answers, 10);
    assert_true(s->box.n_reasons[FIRN_REASON_GONE] >= 8);
    assert_int_equal(s->box.n_reasons[FIRN_REASON_GONE] + s->box.n_reasons[FIRN_REASON_NONE], 10);
}

static void a_failing_read_is_answered_with_its_reason(void **in)
{
    state *s = *in;
    s->world.fail_op_at[TEST_IO_READ_BATCH] = s->world.n_ops[TEST_IO_READ_BATCH] + 1;
    assert_ok(request(s, 0, 0, NULL));
    wait_for_answers(&s->box, 1);
    assert_int_equal(s->box.n_reasons[FIRN_REASON_IO_ERROR], 1);
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.state, FIRN_REASON_IO_ERROR);
    assert_ok(request(s, 0, 0, NULL)); /* an error of the device is no verdict on the record */
    wait_for_answers(&s->box, 2);
    fixture_assert_state(&s->fix, &s->box.last, s->tokens, N);
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.state, FIRN_REASON_NONE);
}

typedef struct hammer {
    state *s;
    uint64_t seed;
    bool failed;
} hammer;

/* Lookups and restores of one thread, while others store and evict. */
static void *hammer_main(void *ctx)
{
    hammer *own = ctx;
    state *s = own->s;
    test_rng rng = { .state = own->seed };
    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t n = 2 + test_rng_below(&rng, N - 1);
        const firn_match match = firn_tier_find(s->tier, s->tokens, n, NULL);
        firn_restored restored;
        if (match.handle == NULL || match.prefix_len != n - 1 ||
            firn_tier_restore(s->tier, match.handle, 0, &restored) != FIRN_REASON_NONE) {
            own->failed = true;
        } else {
            own->failed = own->failed || restored.n_tokens != n - 1 ||
                          memcmp(restored.tokens, s->tokens, (n - 1) * sizeof(firn_token)) != 0;
            firn_restored_deinit(&restored);
        }
        firn_tier_release(s->tier, match.handle);
    }
    return NULL;
}

static void many_threads_may_use_one_tier(void **in)
{
    state *s = *in;
    pthread_t threads[3];
    hammer work[3];
    for (uint32_t i = 0; i < 3; i++) {
        work[i] = (hammer){ .s = s, .seed = 100 + i };
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_main, &work[i]), 0);
    }
    test_rng rng = { .state = 5 };
    firn_token tokens[N];
    for (uint32_t i = 0; i < 20; i++) {
        fixture_random_tokens(&rng, tokens, N);
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, tokens, N), FIRN_REASON_NONE);
        assert_ok(request(s, 0, 0, NULL));
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_false(work[i].failed);
    }
    wait_for_answers(&s->box, 20);
    assert_int_equal(s->box.n_reasons[FIRN_REASON_NONE], 20);
    fixture_check(s->tier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(state_arrives_on_another_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(a_hanging_read_costs_its_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deadline_that_has_passed_is_answered_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_queue_refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_answers_what_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failing_read_is_answered_with_its_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(many_threads_may_use_one_tier, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
