/*
 * stop_signal: SIGINT, SIGTERM and SIGHUP as something that a command can wait for.
 *
 * The signals are blocked in every thread that is created afterwards; a thread of its own waits for them. Before
 * firni_stop_signal_arm() the first one ends the process, as if nothing had been done (a model may take long to load).
 * Afterwards the first one wakes the waiter, and the second ends the process at once.
 */
#ifndef FIRNI_STOP_SIGNAL_H
#define FIRNI_STOP_SIGNAL_H

#include "firn/env.h"
#include "firn/status.h"

typedef struct firni_stop_signal firni_stop_signal;

/* Call before any other thread exists. Errors: NO_MEMORY, IO. */
firn_status firni_stop_signal_create(const firn_env *env, firni_stop_signal **out, firn_error *err);
/* From now on a signal is an orderly stop. */
void firni_stop_signal_arm(firni_stop_signal *stop);
/* The same, and the first signal also calls on_stop(ctx) on the signal thread: for a command that waits for something
 * else as well. ctx lives until firni_stop_signal_destroy(). */
void firni_stop_signal_arm_call(firni_stop_signal *stop, void (*on_stop)(void *ctx), void *ctx);
/* Each SIGUSR1 calls on_user(ctx) on the signal thread, which must not wait for long; NULL: it is ignored. */
void firni_stop_signal_on_user(firni_stop_signal *stop, void (*on_user)(void *ctx), void *ctx);
/* Waits for the first signal and returns its number. */
int firni_stop_signal_wait(firni_stop_signal *stop);
/* Ends the thread; the signals stay blocked. Accepts NULL. */
void firni_stop_signal_destroy(firni_stop_signal *stop);

#endif
