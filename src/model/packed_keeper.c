/*
 * The thread that keeps packed weights: it sleeps until the model has answered for the first time, so that writing them
 * delays no first token, and writes them once. Owns its thread and the place.
 *
 * Locking: `mutex` guards only sleeping and waking, and `has_ended`; no file is touched under it.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include "base/base_impl.h"
#include "base/condition.h"
#include "model/packed_file.h"

#define CLOSE_NS UINT64_C(30000000000)
#define BUSY_TRIES 120u
#define BUSY_PAUSE_NS UINT64_C(500000000)
#define NICENESS 10

struct firni_packed_keeper {
    firni_packed_place place;
    firni_packed_entry *entries; /* borrowed */
    uint32_t n_entries;
    uint64_t bytes_max;
    bool replaces;

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_bool has_begun;
    atomic_bool closing;  /* do not wait for others */
    atomic_bool stop;     /* nor end what has been begun */
    bool has_ended; /* guarded by mutex */
};

/* Until `flag` is set, or the time is over; the caller holds the mutex. */
static void wait_for(firni_packed_keeper *keeper, const atomic_bool *flag, const struct timespec *until)
{
    while (!atomic_load(flag)) {
        const int rc = until == NULL ? pthread_cond_wait(&keeper->changed, &keeper->mutex)
                                     : pthread_cond_timedwait(&keeper->changed, &keeper->mutex, until);
        if (rc == ETIMEDOUT) {
            return;
        }
    }
}

/* Whoever else writes in this directory is done within a minute, or writes a file so large that it pays to come back at
 * the next start. */
static firn_status write_in_turn(firni_packed_keeper *keeper, firn_error *err)
{
    const firni_packed_write_options options = {
        .place = &keeper->place,
        .entries = keeper->entries,
        .n_entries = keeper->n_entries,
        .bytes_max = keeper->bytes_max,
        .replaces = keeper->replaces,
        .stop = &keeper->stop,
    };
    firn_status status = firni_packed_write(&options, err);
    for (uint32_t i = 1; i < BUSY_TRIES && status == FIRN_ERR_BUSY && !atomic_load(&keeper->closing); i++) {
        const struct timespec until = firni_condition_deadline(BUSY_PAUSE_NS);
        (void)pthread_mutex_lock(&keeper->mutex);
        wait_for(keeper, &keeper->closing, &until);
        (void)pthread_mutex_unlock(&keeper->mutex);
        status = firni_packed_write(&options, err);
    }
    return status;
}

static void *keeper_main(void *arg)
{
    firni_packed_keeper *keeper = arg;
    const firn_env *env = keeper->place.env;
    (void)pthread_mutex_lock(&keeper->mutex);
    wait_for(keeper, &keeper->has_begun, NULL);
    (void)pthread_mutex_unlock(&keeper->mutex);
    if (!atomic_load(&keeper->stop)) {
        firn_error err = { 0 };
        (void)setpriority(PRIO_PROCESS, 0, NICENESS); /* on Linux of this thread alone: forwards come first */
        const uint64_t began_ns = firni_now_ns(env);
        const firn_status status = write_in_turn(keeper, &err);
        if (status == FIRN_OK) {
            firni_log(env, FIRN_LOG_INFO, "packed weights are in %s (%.1f s)", keeper->place.path,
                      (double)(firni_now_ns(env) - began_ns) * 1e-9);
        } else {
            firni_log(env, status == FIRN_ERR_IO ? FIRN_LOG_WARN : FIRN_LOG_INFO,
                      "the next start packs the weights again: %s", err.message);
        }
    }
    (void)pthread_mutex_lock(&keeper->mutex);
    keeper->has_ended = true;
    (void)pthread_cond_broadcast(&keeper->changed);
    (void)pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

firn_status firni_packed_keeper_create(firni_packed_place *place, firni_packed_entry *entries, uint32_t n_entries,
                                       uint64_t bytes_max, bool replaces, firni_packed_keeper **out, firn_error *err)
{
    *out = NULL;
    firni_packed_keeper *keeper = firni_calloc(place->env, 1, sizeof *keeper);
    if (keeper == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to keep packed weights");
    }
    keeper->place = *place;
    keeper->entries = entries;
    keeper->n_entries = n_entries;
    keeper->bytes_max = bytes_max;
    keeper->replaces = replaces;
    (void)pthread_mutex_init(&keeper->mutex, NULL);
    (void)firni_condition_init(&keeper->changed);
    const int rc = pthread_create(&keeper->thread, NULL, keeper_main, keeper);
    if (rc != 0) {
        (void)pthread_cond_destroy(&keeper->changed);
        (void)pthread_mutex_destroy(&keeper->mutex);
        firni_free(place->env, keeper);
        return firni_fail_os(err, rc, "cannot start a thread to keep packed weights");
    }
    *place = (firni_packed_place){ .env = place->env };
    *out = keeper;
    return FIRN_OK;
}

void firni_packed_keeper_begin(firni_packed_keeper *keeper)
{
    if (!atomic_load_explicit(&keeper->has_begun, memory_order_relaxed)) {
        (void)pthread_mutex_lock(&keeper->mutex);
        atomic_store(&keeper->has_begun, true);
        (void)pthread_cond_broadcast(&keeper->changed);
        (void)pthread_mutex_unlock(&keeper->mutex);
    }
}

void firni_packed_keeper_destroy(firni_packed_keeper *keeper)
{
    if (keeper == NULL) {
        return;
    }
    const firn_env *env = keeper->place.env;
    (void)pthread_mutex_lock(&keeper->mutex);
    if (!atomic_load(&keeper->has_begun)) {
        atomic_store(&keeper->stop, true);
        atomic_store(&keeper->has_begun, true);
    }
    atomic_store(&keeper->closing, true);
    (void)pthread_cond_broadcast(&keeper->changed);
    const struct timespec until = firni_condition_deadline(CLOSE_NS);
    int rc = 0;
    while (!keeper->has_ended && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&keeper->changed, &keeper->mutex, &until);
    }
    atomic_store(&keeper->stop, true);
    (void)pthread_mutex_unlock(&keeper->mutex);
    (void)pthread_join(keeper->thread, NULL);
    (void)pthread_cond_destroy(&keeper->changed);
    (void)pthread_mutex_destroy(&keeper->mutex);
    firni_packed_place_deinit(&keeper->place);
    firni_free(env, keeper);
}
