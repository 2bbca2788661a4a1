/*
 * Work with a bound on the waiting for it. Owns the thread and the memory by which the two sides meet, which goes with
 * whichever side leaves last. Does not own what the work uses.
 *
 * A thread cannot be taken out of a system call that does not return, so the waiting is what ends: the thread is left
 * behind on purpose, and goes when its call does.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>

#include "base/base_impl.h"
#include "base/bounded.h"
#include "base/condition.h"

typedef struct meeting {
    const firn_env *env;
    void (*work)(void *ctx);
    void *ctx;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool has_ended, is_alone; /* guarded by mutex: the other side has left */
} meeting;

static void meeting_destroy(meeting *both)
{
    (void)pthread_cond_destroy(&both->ended);
    (void)pthread_mutex_destroy(&both->mutex);
    firni_free(both->env, both);
}

static void *run(void *ctx)
{
    meeting *both = ctx;
    both->work(both->ctx);
    pthread_mutex_lock(&both->mutex);
    both->has_ended = true;
    const bool is_last = both->is_alone;
    pthread_cond_signal(&both->ended);
    pthread_mutex_unlock(&both->mutex);
    if (is_last) {
        meeting_destroy(both);
    }
    return NULL;
}

static bool meeting_init(meeting *both)
{
    return firni_condition_init(&both->ended) == 0 && pthread_mutex_init(&both->mutex, NULL) == 0;
}

bool firni_run_bounded(const firn_env *env, uint64_t bound_ns, void (*work)(void *ctx), void *ctx)
{
    pthread_t thread;
    meeting *both = firni_calloc(env, 1, sizeof *both);
    if (both != NULL) {
        *both = (meeting){ .env = env, .work = work, .ctx = ctx };
    }
    if (both == NULL || !meeting_init(both) || pthread_create(&thread, NULL, run, both) != 0) {
        firni_free(env, both); /* at worst a mutex without resources of its own */
        work(ctx);
        return true;
    }
    const struct timespec until = firni_condition_deadline(bound_ns);
    pthread_mutex_lock(&both->mutex);
    int error = 0;
    while (!both->has_ended && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&both->ended, &both->mutex, &until);
    }
    const bool has_ended = both->has_ended;
    both->is_alone = !has_ended;
    pthread_mutex_unlock(&both->mutex);
    if (has_ended) {
        (void)pthread_join(thread, NULL);
        meeting_destroy(both);
    } else {
        (void)pthread_detach(thread);
    }
    return has_ended;
}
