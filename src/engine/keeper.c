/*
 * The keeper: one thread for what has to do with the disk, is not urgent, and must not be done on the engine's thread:
 * notes of sessions, generation checkpoints, the tier's own flush. A bounded queue in, nothing out: tasks that have an
 * answer give it themselves.
 */
#include <assert.h>
#include <time.h>

#include "engine/engine_impl.h"

enum { QUEUE_MAX = 256 };

struct firni_keeper {
    const firn_env *env;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    firni_task *first, *last; /* guarded by mutex, as all that follows */
    uint32_t n_queued;
    bool is_stopping;
    uint64_t stop_ns;         /* once stopping: what has not begun by then is dropped */
};

static void *keep(void *ctx)
{
    firni_keeper *keeper = ctx;
    (void)pthread_mutex_lock(&keeper->mutex);
    while (!keeper->is_stopping || keeper->first != NULL) {
        firni_task *task = keeper->first;
        if (task == NULL) {
            (void)pthread_cond_wait(&keeper->posted, &keeper->mutex);
            continue;
        }
        keeper->first = task->next;
        keeper->last = keeper->first != NULL ? keeper->last : NULL;
        keeper->n_queued--;
        const bool too_late = keeper->is_stopping && firni_now_ns(keeper->env) > keeper->stop_ns;
        (void)pthread_mutex_unlock(&keeper->mutex);
        if (too_late) {
            task->drop(task);
        } else {
            task->run(task);
        }
        (void)pthread_mutex_lock(&keeper->mutex);
    }
    (void)pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

firn_status firni_keeper_create(const firn_env *env, firni_keeper **out, firn_error *err)
{
    *out = NULL;
    firni_keeper *keeper = firni_calloc(env, 1, sizeof *keeper);
    if (keeper == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the engine's keeper");
    }
    keeper->env = env;
    int rc = pthread_mutex_init(&keeper->mutex, NULL);
    if (rc == 0 && (rc = pthread_cond_init(&keeper->posted, NULL)) != 0) {
        (void)pthread_mutex_destroy(&keeper->mutex);
    }
    if (rc == 0 && (rc = pthread_create(&keeper->thread, NULL, keep, keeper)) != 0) {
        (void)pthread_cond_destroy(&keeper->posted);
        (void)pthread_mutex_destroy(&keeper->mutex);
    }
    if (rc != 0) {
        firni_free(env, keeper);
        return firni_fail_os(err, rc, "cannot start the engine's keeper");
    }
    *out = keeper;
    return FIRN_OK;
}

void firni_keeper_destroy(firni_keeper *keeper, uint64_t bound_ns)
{
    if (keeper == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&keeper->mutex);
    keeper->is_stopping = true;
    keeper->stop_ns = firni_now_ns(keeper->env) + bound_ns;
    (void)pthread_cond_signal(&keeper->posted);
    (void)pthread_mutex_unlock(&keeper->mutex);
    (void)pthread_join(keeper->thread, NULL);
    assert(keeper->first == NULL);
    (void)pthread_cond_destroy(&keeper->posted);
    (void)pthread_mutex_destroy(&keeper->mutex);
    firni_free(keeper->env, keeper);
}

bool firni_keeper_post(firni_keeper *keeper, firni_task *task)
{
    (void)pthread_mutex_lock(&keeper->mutex);
    const bool has_room = keeper->n_queued < QUEUE_MAX;
    if (has_room) {
        task->next = NULL;
        if (keeper->last != NULL) {
            keeper->last->next = task;
        } else {
            keeper->first = task;
        }
        keeper->last = task;
        keeper->n_queued++;
        (void)pthread_cond_signal(&keeper->posted);
    }
    (void)pthread_mutex_unlock(&keeper->mutex);
    if (!has_room) {
        task->drop(task);
    }
    return has_room;
}
