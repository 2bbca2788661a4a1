/*
 * The team of threads of firn/workers.h. Owns the threads and the hand-over of one run at a time; knows nothing of
 * what the tasks do.
 *
 * A run is published as one ticket, {number of tasks, next index}, from which the caller and the threads draw:
 *
 *   caller:  task, ctx, n_done = 0 ; ticket = {n_tasks, 0} ; generation++  -> draws -> waits for n_done == n_tasks
 *   thread:  sees generation change -> draws: index < n_tasks in the drawn ticket ? task(index), n_done++ : done
 *
 * The caller waits for tasks, not for threads: on a busy machine a thread that is not scheduled holds up nothing that
 * it has not begun. Whoever drew a valid index keeps the run open until it is done, so `task` and `ctx` may be
 * rewritten as soon as the run is over; whoever comes late draws an exhausted ticket and looks at neither.
 *
 * Each idle thread spins for a while (about 0.15 ms) before it sleeps, because on the token loop the next run comes
 * within microseconds. Measured on two cores of Zen 3: a run of empty tasks takes 0.2 us while the threads spin, and 6
 * to 12 us when they sleep.
 *
 * Threads are left to the scheduler where the machine is shared: pinned, two processes would sit on the same cores
 * while others are idle, and prefill and decode were not faster for it (docs/PERFORMANCE.md). Where somebody has given
 * the process cores (taskset, a cpuset), and there is a thread for each of them, thread i has core i.
 *
 * Locking: `mutex` guards only sleeping and waking.
 */
/* For pthread_setaffinity_np. */
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/base_impl.h"
#include "base/processors.h"
#include "firn/workers.h"

enum { THREADS_MAX = 64, SPINS_BEFORE_SLEEP = 4000 };

typedef struct worker_thread {
    struct firn_workers *team;
    uint32_t index; /* 1..count-1; 0 is the caller */
    pthread_t handle;
} worker_thread;

struct firn_workers {
    const firn_env *env;
    uint32_t count;
    uint32_t n_started; /* threads that exist besides the caller */
    worker_thread threads[THREADS_MAX];

    /* The current run. */
    void (*task)(void *ctx, uint32_t index, uint32_t thread);
    void *ctx;
    atomic_uint_fast64_t ticket; /* n_tasks << 32 | next index */
    atomic_uint n_done;
    atomic_uint generation;      /* counts runs, for those who wait for the next */
    atomic_bool stopping;

    pthread_mutex_t mutex; /* guards the condition only */
    pthread_cond_t wake;
    atomic_uint n_asleep;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void draw_tasks(firn_workers *team, uint32_t thread)
{
    for (;;) {
        const uint64_t drawn = atomic_fetch_add_explicit(&team->ticket, 1, memory_order_acq_rel);
        const uint32_t index = (uint32_t)drawn;
        if (index >= drawn >> 32) {
            return;
        }
        team->task(team->ctx, index, thread);
        atomic_fetch_add_explicit(&team->n_done, 1, memory_order_release);
    }
}

static uint32_t wait_for_generation_after(firn_workers *team, uint32_t seen)
{
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        const uint32_t now = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (now != seen) {
            return now;
        }
        relax();
    }
    (void)pthread_mutex_lock(&team->mutex);
    /* The caller advances the generation before it looks at n_asleep, and this thread does the opposite, both in
     * sequentially consistent order: one of the two sees the other. */
    atomic_fetch_add(&team->n_asleep, 1);
    uint32_t now;
    while ((now = atomic_load(&team->generation)) == seen) {
        (void)pthread_cond_wait(&team->wake, &team->mutex);
    }
    atomic_fetch_sub(&team->n_asleep, 1);
    (void)pthread_mutex_unlock(&team->mutex);
    return now;
}

static void *thread_main(void *arg)
{
    const worker_thread *self = arg;
    firn_workers *team = self->team;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_generation_after(team, seen);
        if (atomic_load_explicit(&team->stopping, memory_order_acquire)) {
            return NULL;
        }
        draw_tasks(team, self->index);
    }
}

static void advance_generation(firn_workers *team)
{
    atomic_fetch_add(&team->generation, 1);
    if (atomic_load(&team->n_asleep) > 0) {
        (void)pthread_mutex_lock(&team->mutex);
        (void)pthread_cond_broadcast(&team->wake);
        (void)pthread_mutex_unlock(&team->mutex);
    }
}

/* The caller, thread 0, is not the team's: core 0 is left to it, and the scheduler finds it, since the others are
 * taken. A thread that cannot be pinned runs anywhere, which is no error. */
static void pin(const firn_workers *team, const firni_processors *processors)
{
    if (!processors->is_assigned || team->count != processors->n_cores) {
        return;
    }
    for (uint32_t i = 1; i < team->count; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (uint32_t p = 0; p < FIRNI_PROCESSORS_MAX; p++) {
            if (firni_processor_set_has(&processors->allowed, p) && processors->core_of[p] == i) {
                CPU_SET(p, &set);
            }
        }
        (void)pthread_setaffinity_np(team->threads[i].handle, sizeof set, &set);
    }
}

static uint32_t threads_of(const firni_processors *processors)
{
    const uint32_t n = firni_processors_threads(processors);
    return n < THREADS_MAX ? n : THREADS_MAX;
}

firn_status firn_workers_create(uint32_t n_threads, const firn_env *env, firn_workers **out, firn_error *err)
{
    *out = NULL;
    if (n_threads > THREADS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "threads: %u is more than %d", n_threads, THREADS_MAX);
    }
    firn_workers *team = firni_calloc(env, 1, sizeof *team);
    if (team == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a team of threads");
    }
    const firni_processor_set allowed = firni_processors_allowed();
    firni_processors processors;
    firni_processors_find("", &allowed, &processors);
    team->env = env;
    team->count = n_threads == 0 ? threads_of(&processors) : n_threads;
    (void)pthread_mutex_init(&team->mutex, NULL);
    (void)pthread_cond_init(&team->wake, NULL);
    for (uint32_t i = 1; i < team->count; i++) {
        team->threads[i] = (worker_thread){ .team = team, .index = i };
        const int rc = pthread_create(&team->threads[i].handle, NULL, thread_main, &team->threads[i]);
        if (rc != 0) {
            const firn_status status = firni_fail_os(err, rc, "cannot start thread %u of %u", i + 1, team->count);
            firn_workers_destroy(team);
            return status;
        }
        team->n_started++;
    }
    pin(team, &processors);
    *out = team;
    return FIRN_OK;
}

void firn_workers_destroy(firn_workers *workers)
{
    if (workers == NULL) {
        return;
    }
    atomic_store_explicit(&workers->stopping, true, memory_order_release);
    advance_generation(workers);
    for (uint32_t i = 1; i <= workers->n_started; i++) {
        (void)pthread_join(workers->threads[i].handle, NULL);
    }
    (void)pthread_cond_destroy(&workers->wake);
    (void)pthread_mutex_destroy(&workers->mutex);
    firni_free(workers->env, workers);
}

uint32_t firn_workers_count(const firn_workers *workers)
{
    return workers == NULL ? 1 : workers->count;
}

void firn_workers_run(firn_workers *workers, uint32_t n_tasks, void (*task)(void *ctx, uint32_t index, uint32_t thread),
                      void *ctx)
{
    if (workers == NULL || workers->count == 1 || n_tasks <= 1) {
        for (uint32_t i = 0; i < n_tasks; i++) {
            task(ctx, i, 0);
        }
        return;
    }
    /* Each thread overdraws an exhausted ticket at most once a run, so the index cannot reach the upper half. */
    assert(n_tasks < UINT32_MAX - THREADS_MAX);
    workers->task = task;
    workers->ctx = ctx;
    atomic_store_explicit(&workers->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&workers->ticket, (uint64_t)n_tasks << 32, memory_order_release);
    advance_generation(workers);
    draw_tasks(workers, 0);
    for (uint32_t spins = 0; atomic_load_explicit(&workers->n_done, memory_order_acquire) != n_tasks; spins++) {
        /* The others are in their last task. When there are fewer processors than threads they need this one. */
        if (spins < SPINS_BEFORE_SLEEP) {
            relax();
        } else {
            (void)sched_yield();
        }
    }
}
