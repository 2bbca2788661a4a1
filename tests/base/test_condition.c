/* Deadlines of timed waits: on the monotonic clock, whole seconds carried over, and bounded. */
#include <errno.h>
#include <time.h>

#include "base/condition.h"
#include "support/support.h"

#define SECOND_NS UINT64_C(1000000000)
#define DAY_NS    (86400 * SECOND_NS)

static uint64_t ns_of(struct timespec at)
{
    assert_in_range(at.tv_nsec, 0, SECOND_NS - 1);
    return (uint64_t)at.tv_sec * SECOND_NS + (uint64_t)at.tv_nsec;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return ns_of(now);
}

static void a_deadline_is_as_far_away_as_asked(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("condition", 1);
    for (uint32_t i = 0; i < 1000; i++) {
        const uint64_t wait_ns = i == 0 ? 0 : (uint64_t)test_rng_below(&rng, UINT32_MAX) * (1 + i % 20000);
        const uint64_t expected_ns = wait_ns < DAY_NS ? wait_ns : DAY_NS;
        const uint64_t before_ns = now_ns();
        const uint64_t at_ns = ns_of(firni_condition_deadline(wait_ns));
        assert_true(at_ns >= before_ns + expected_ns && at_ns <= now_ns() + expected_ns);
    }
}

static void longer_than_a_day_is_a_day(void **state)
{
    (void)state;
    const uint64_t before_ns = now_ns();
    const uint64_t at_ns = ns_of(firni_condition_deadline(UINT64_MAX));
    assert_true(at_ns >= before_ns + DAY_NS && at_ns <= now_ns() + DAY_NS);
}

static void a_wait_that_nobody_ends_ends_then(void **state)
{
    (void)state;
    pthread_cond_t condition;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    assert_int_equal(firni_condition_init(&condition), 0);
    const struct timespec until = firni_condition_deadline(20 * SECOND_NS / 1000);
    (void)pthread_mutex_lock(&mutex);
    int error = 0;
    while (error == 0) { /* it may wake for nothing */
        error = pthread_cond_timedwait(&condition, &mutex, &until);
    }
    (void)pthread_mutex_unlock(&mutex);
    assert_int_equal(error, ETIMEDOUT);
    assert_true(now_ns() >= ns_of(until));
    (void)pthread_cond_destroy(&condition);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_is_as_far_away_as_asked),
        cmocka_unit_test(longer_than_a_day_is_a_day),
        cmocka_unit_test(a_wait_that_nobody_ends_ends_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
