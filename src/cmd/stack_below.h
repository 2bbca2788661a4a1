/*
 * stack_below: the second directory of a stack, under the cache directory; stack.c decides when.
 *
 * Each of the two serves alone when the other can not be opened: below_message says so then.
 */
#ifndef FIRNI_STACK_BELOW_H
#define FIRNI_STACK_BELOW_H

#include "cmd/stack.h"

/* Opens options->cache_below, if any, as `upper_options` opened the upper one, and puts stack->tier over it; where the
 * upper one could not be opened (stack->tier is NULL) it takes its place. Errors: INVALID (both directories are one),
 * BUSY, FORMAT and those of firn_stack_create(); what is merely broken is no error. */
firn_status firni_stack_open_below(firni_stack *stack, const firni_stack_options *options,
                                   const firn_disk_options *upper_options, firn_error *err);

#endif
