/*
 * The team of threads: every task runs exactly once, whatever the counts; runs follow each other safely.
 */
#include "support/support.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "firn/workers.h"

enum { TASKS_MAX = 1000 };

typedef struct tally {
    atomic_uint hits[TASKS_MAX];
    uint32_t n_threads;
    atomic_uint bad_thread;
} tally;

static void count(void *ctx, uint32_t index, uint32_t thread)
{
    tally *t = ctx;
    atomic_fetch_add(&t->hits[index], 1);
    if (thread >= t->n_threads) {
        atomic_fetch_add(&t->bad_thread, 1);
    }
}

static void every_task_runs_once(void **state)
{
    (void)state;
    static tally t;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        firn_workers *workers;
        assert_ok(firn_workers_create(n_threads, NULL, &workers, NULL));
        assert_int_equal(firn_workers_count(workers), n_threads);
        for (uint32_t run = 0; run < 300; run++) {
            memset(&t, 0, sizeof t);
            t.n_threads = n_threads;
            const uint32_t n_tasks = (run * 37) % TASKS_MAX;
            firn_workers_run(workers, n_tasks, count, &t);
            for (uint32_t i = 0; i < TASKS_MAX; i++) {
                assert_int_equal(atomic_load(&t.hits[i]), i < n_tasks);
            }
            assert_int_equal(atomic_load(&t.bad_thread), 0);
        }
        firn_workers_destroy(workers);
    }
}

static void wakes_after_sleeping(void **state)
{
    (void)state;
    static tally t;
    firn_workers *workers;
    assert_ok(firn_workers_create(3, NULL, &workers, NULL));
    for (uint32_t run = 0; run < 5; run++) {
        memset(&t, 0, sizeof t);
        t.n_threads = 3;
        /* Longer than any spin: the threads are asleep when the next run comes. */
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        firn_workers_run(workers, 64, count, &t);
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(atomic_load(&t.hits[i]), 1);
        }
    }
    firn_workers_destroy(workers);
}

static void without_a_team_everything_runs_inline(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    t.n_threads = 1;
    firn_workers_run(NULL, 10, count, &t);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(atomic_load(&t.hits[i]), 1);
    }
    assert_int_equal(atomic_load(&t.bad_thread), 0);
    assert_int_equal(firn_workers_count(NULL), 1);
}

static void refuses_too_many_threads(void **state)
{
    (void)state;
    firn_workers *workers;
    firn_error err;
    assert_status(firn_workers_create(65, NULL, &workers, &err), FIRN_ERR_INVALID);
    assert_null(workers);
    assert_non_null(strstr(err.message, "65"));
}

static void survives_a_refused_allocation(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firn_workers *workers;
        const firn_status status = firn_workers_create(2, &world.env, &workers, NULL);
        assert_true(status == FIRN_OK || (status == FIRN_ERR_NO_MEMORY && workers == NULL));
        firn_workers_destroy(workers);
        const bool clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(wakes_after_sleeping),
        cmocka_unit_test(without_a_team_everything_runs_inline),
        cmocka_unit_test(refuses_too_many_threads),
        cmocka_unit_test(survives_a_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
