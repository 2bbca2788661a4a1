/*
 * A small fixed team of threads that divides the outputs of one computation.
 *
 * The caller is one of the threads: a team of 1 has no thread of its own. Tasks of one run are independent and write
 * disjoint outputs; which thread takes which task must not change any result, so the team is free to balance.
 * Idle threads spin briefly, then sleep.
 */
#ifndef FIRN_WORKERS_H
#define FIRN_WORKERS_H

#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_workers firn_workers;

/* n_threads 1..64, the caller included; 0 means the physical cores that this process may run on and has time for
 * (affinity, quota of its control group). Errors: INVALID, NO_MEMORY, IO
 * (thread creation). */
firn_status firn_workers_create(uint32_t n_threads, const firn_env *env, firn_workers **out, firn_error *err);
void firn_workers_destroy(firn_workers *workers); /* accepts NULL */
uint32_t firn_workers_count(const firn_workers *workers); /* NULL counts as 1 */

/* Calls task(ctx, i, thread) once for each i in [0, n_tasks), thread in [0, count); returns when all have finished.
 * Allocates nothing. One run at a time per team, from one thread. workers == NULL runs everything inline. */
void firn_workers_run(firn_workers *workers, uint32_t n_tasks, void (*task)(void *ctx, uint32_t index, uint32_t thread),
                      void *ctx);

#ifdef __cplusplus
}
#endif
#endif
