/*
 * stack_packed: where a stack keeps packed weights, and what they take of its disk budget.
 *
 *      --packed-dir auto    CACHE_DIR/packed, when there is a disk tier; the files take at most half of --disk-budget,
 *                           and state gets what they leave, so that the sum stays within it
 *      --packed-dir off     nowhere
 *      --packed-dir DIR     there; what lies in it counts for no budget
 */
#ifndef FIRNI_STACK_PACKED_H
#define FIRNI_STACK_PACKED_H

#include "cmd/stack.h"

/* Sets packed_dir and packed_bytes_max of *model_options; the path belongs to the stack. Errors: NO_MEMORY. */
firn_status firni_stack_set_packed(firni_stack *stack, const firni_stack_options *options,
                                   firn_model_options *model_options, firn_error *err);
/* Once all models are open: takes what packed weights occupy, or are going to, off stack->disk_budget_bytes. */
void firni_stack_count_packed(firni_stack *stack, const firni_stack_options *options);

#endif
