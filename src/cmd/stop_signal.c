/*
 * A thread that waits for the stop signals: no handler, no global, nothing that has to be async-signal-safe.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "cmd/stop_signal.h"

#define EXIT_OF_SIGNAL 128 /* the shell's convention: 128 + signal number */

struct firni_stop_signal {
    const firn_env *env;
    pthread_t thread;
    sigset_t signals;
    pthread_mutex_t mutex;   /* guards what follows */
    pthread_cond_t changed;
    bool armed, quit;
    void (*on_stop)(void *ctx);
    void *on_stop_ctx;
    void (*on_user)(void *ctx); /* SIGUSR1 */
    void *on_user_ctx;
    int received;            /* the first signal after arming, or 0 */
};

/* sigwait takes a signal off the process: it reaches no other thread, and no default action follows. */
static void *wait_for_signals(void *ctx)
{
    firni_stop_signal *stop = ctx;
    for (;;) {
        int number = 0;
        if (sigwait(&stop->signals, &number) != 0) {
            continue;
        }
        (void)pthread_mutex_lock(&stop->mutex);
        if (number == SIGUSR1 && !stop->quit) {
            void (*const on_user)(void *ctx) = stop->on_user;
            void *const on_user_ctx = stop->on_user_ctx;
            (void)pthread_mutex_unlock(&stop->mutex);
            if (on_user != NULL) {
                on_user(on_user_ctx);
            }
            continue;
        }
        const bool quit = stop->quit;
        const bool at_once = !quit && (!stop->armed || stop->received != 0);
        if (!quit && !at_once) {
            stop->received = number;
            (void)pthread_cond_signal(&stop->changed);
        }
        void (*const on_stop)(void *ctx) = !quit && !at_once ? stop->on_stop : NULL;
        void *const on_stop_ctx = stop->on_stop_ctx;
        (void)pthread_mutex_unlock(&stop->mutex);
        if (quit) {
            return NULL;
        }
        if (on_stop != NULL) {
            on_stop(on_stop_ctx);
        }
        if (at_once) {
            _exit(EXIT_OF_SIGNAL + number); /* other threads are in the middle of things: no exit handlers */
        }
    }
}

firn_status firni_stop_signal_create(const firn_env *env, firni_stop_signal **out, firn_error *err)
{
    *out = NULL;
    firni_stop_signal *stop = firni_calloc(env, 1, sizeof *stop);
    if (stop == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory");
    }
    stop->env = env;
    (void)sigemptyset(&stop->signals);
    (void)sigaddset(&stop->signals, SIGINT);
    (void)sigaddset(&stop->signals, SIGTERM);
    (void)sigaddset(&stop->signals, SIGUSR1);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) { /* nohup: it is not to count */
        (void)sigaddset(&stop->signals, SIGHUP);
    }
    (void)pthread_sigmask(SIG_BLOCK, &stop->signals, NULL);
    int rc = pthread_mutex_init(&stop->mutex, NULL);
    if (rc == 0 && (rc = pthread_cond_init(&stop->changed, NULL)) != 0) {
        (void)pthread_mutex_destroy(&stop->mutex);
    }
    if (rc == 0 && (rc = pthread_create(&stop->thread, NULL, wait_for_signals, stop)) != 0) {
        (void)pthread_cond_destroy(&stop->changed);
        (void)pthread_mutex_destroy(&stop->mutex);
    }
    if (rc != 0) {
        firni_free(env, stop);
        return firni_fail_os(err, rc, "cannot wait for signals");
    }
    *out = stop;
    return FIRN_OK;
}

void firni_stop_signal_arm(firni_stop_signal *stop)
{
    firni_stop_signal_arm_call(stop, NULL, NULL);
}

void firni_stop_signal_arm_call(firni_stop_signal *stop, void (*on_stop)(void *ctx), void *ctx)
{
    (void)pthread_mutex_lock(&stop->mutex);
    stop->armed = true;
    stop->on_stop = on_stop;
    stop->on_stop_ctx = ctx;
    (void)pthread_mutex_unlock(&stop->mutex);
}

void firni_stop_signal_on_user(firni_stop_signal *stop, void (*on_user)(void *ctx), void *ctx)
{
    (void)pthread_mutex_lock(&stop->mutex);
    stop->on_user = on_user;
    stop->on_user_ctx = ctx;
    (void)pthread_mutex_unlock(&stop->mutex);
}

int firni_stop_signal_wait(firni_stop_signal *stop)
{
    (void)pthread_mutex_lock(&stop->mutex);
    while (stop->received == 0) {
        (void)pthread_cond_wait(&stop->changed, &stop->mutex);
    }
    const int number = stop->received;
    (void)pthread_mutex_unlock(&stop->mutex);
    return number;
}

void firni_stop_signal_destroy(firni_stop_signal *stop)
{
    if (stop == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&stop->mutex);
    stop->quit = true;
    (void)pthread_mutex_unlock(&stop->mutex);
    (void)pthread_kill(stop->thread, SIGTERM); /* wakes sigwait in that thread alone */
    (void)pthread_join(stop->thread, NULL);
    (void)pthread_cond_destroy(&stop->changed);
    (void)pthread_mutex_destroy(&stop->mutex);
    firni_free(stop->env, stop);
}
