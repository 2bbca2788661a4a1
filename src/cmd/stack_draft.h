/*
 * stack_draft: the parts of a stack that a drafter needs beside those of the model; stack.c decides when.
 *
 * The drafter's state lies in a store of its own in the cache directory, DIR/draft. One directory is one writer's and
 * one schema's at a time, and the drafter is a second schema in the same process. What is on disk stays within the
 * budget of both: each has its part of it, by what a token takes, and a store that is left from an earlier run is
 * counted in full.
 */
#ifndef FIRNI_STACK_DRAFT_H
#define FIRNI_STACK_DRAFT_H

#include "cmd/stack.h"

/* Whether the options name a drafter's file. */
bool firni_stack_has_drafter(const firni_stack_options *options);
/* Opens it when there is one; `model_options` are the model's, but for the path. Errors: those of firn_model_open(),
 * and the message says which flag it was. Whether its vocabulary fits is the engine's to say. */
firn_status firni_stack_open_drafter(firni_stack *stack, const firni_stack_options *options,
                                     const firn_model_options *model_options, firn_error *err);
/* The directory of the drafter's store, or NULL without memory; released with firni_free(). */
char *firni_stack_draft_dir(const firn_env *env, const char *cache_dir);
/* The model's part of the disk budget. */
uint64_t firni_stack_model_disk_budget(const firni_stack *stack);
/* Opens the drafter's tier as the model's was opened: `disk_options` are the model's. Without it the drafter reads its
 * prompts again after a restart; that is logged, and no error. */
void firni_stack_open_draft_disk(firni_stack *stack, const firn_disk_options *disk_options);

#endif
