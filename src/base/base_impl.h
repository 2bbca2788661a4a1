/*
 * base: what every other folder stands on: error filling, memory and time through the caller's seams, log lines.
 *
 * Every function takes the firn_env that an object was created with; NULL, or a NULL member, means the process
 * defaults. Nothing here keeps state.
 */
#ifndef FIRNI_BASE_IMPL_H
#define FIRNI_BASE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "firn/env.h"
#include "firn/status.h"

/* Fills err (when not NULL) and returns status, so that a failing path is one line. os_error is set to 0. */
firn_status firni_fail(firn_error *err, firn_status status, const char *format, ...) FIRNI_PRINTF(3, 4);
/* The same for a failed system call: FIRN_ERR_IO, os_error = errno_value, ": <strerror>" appended to the message. */
firn_status firni_fail_os(firn_error *err, int errno_value, const char *format, ...) FIRNI_PRINTF(3, 4);

/* Zeroed memory for n elements; NULL on overflow or refusal; n = 0 gives NULL. Aligned for any type. */
void *firni_calloc(const firn_env *env, size_t n, size_t element_bytes);
/* Undefined contents, aligned to `align` (a power of two). */
void *firni_alloc_aligned(const firn_env *env, size_t size_bytes, size_t align);
/* Moves the first n_old elements into new storage for n_new; the old storage is released only on success. */
void *firni_grow(const firn_env *env, void *ptr, size_t n_old, size_t n_new, size_t element_bytes);
char *firni_strdup(const firn_env *env, const char *text);
void firni_free(const firn_env *env, void *ptr);

uint64_t firni_now_ns(const firn_env *env);  /* monotonic */
uint64_t firni_wall_ns(const firn_env *env); /* since 1970 */

void firni_log(const firn_env *env, firn_log_level level, const char *format, ...) FIRNI_PRINTF(3, 4);

const firn_io *firni_io(const firn_env *env); /* never NULL */

/* a * b and a + b in size_t; false on overflow. */
bool firni_mul_size(size_t a, size_t b, size_t *out);
bool firni_add_size(size_t a, size_t b, size_t *out);
/* x rounded up to a multiple of `unit` (a power of two); the caller knows that it does not overflow. */
FIRNI_INLINE uint64_t firni_round_up(uint64_t x, uint64_t unit) { return (x + unit - 1) & ~(unit - 1); }

#endif
