/*
 * condition: condition variables whose waits are timed by the monotonic clock, so that setting the wall clock neither
 * stretches nor cuts a bound.
 */
#ifndef FIRNI_CONDITION_H
#define FIRNI_CONDITION_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* 0, or an errno: the condition was not made. For pthread_cond_timedwait() with times of CLOCK_MONOTONIC. */
int firni_condition_init(pthread_cond_t *condition);

/* The end of a timed wait that begins now; longer than a day is a day. On the condition's own clock: a deadline in an
 * environment's faked time would never come. */
struct timespec firni_condition_deadline(uint64_t wait_ns);

#endif
