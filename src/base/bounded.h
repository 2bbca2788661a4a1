/*
 * bounded: work whose end nobody can promise, such as a system call on a device that does not answer.
 */
#ifndef FIRNI_BOUNDED_H
#define FIRNI_BOUNDED_H

#include <stdbool.h>

#include "firn/env.h"

/* Runs work(ctx) on a thread of its own and waits for its end, but no longer than bound_ns. True: it has ended. False:
 * it goes on, with everything that it uses, and ends by itself or never; whoever called leaves that alone. Without
 * memory or a thread it is run right here, without a bound. */
bool firni_run_bounded(const firn_env *env, uint64_t bound_ns, void (*work)(void *ctx), void *ctx);

#endif
