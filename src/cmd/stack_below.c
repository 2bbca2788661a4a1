/*
 * The second directory of a stack; see stack_below.h.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "base/base_impl.h"
#include "cmd/stack_below.h"
#include "firn/stack.h"

#define BUDGET_DEFAULT_BYTES (UINT64_C(64) << 30)

/* By inode, because a directory has many names; one that is not there yet is no other. */
static bool is_same_directory(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* The lower tier, or NULL with below_message. */
static firn_status open_lower(firni_stack *stack, const firni_stack_options *options,
                              const firn_disk_options *upper_options, firn_tier **out, firn_error *err)
{
    firn_disk_options disk_options = *upper_options;
    disk_options.dir = options->cache_below;
    disk_options.budget_bytes =
        options->cache_below_budget_bytes != 0 ? options->cache_below_budget_bytes : BUDGET_DEFAULT_BYTES;
    firni_stack_make_parents(stack->env, options->cache_below);
    firn_error disk_err = { 0 };
    firn_status status = firn_disk_open(&disk_options, stack->env, out, &disk_err);
    if (status == FIRN_ERR_BUSY && options->disk_share) {
        disk_options.read_only = true;
        status = firn_disk_open(&disk_options, stack->env, out, &disk_err);
    }
    switch (status) {
    case FIRN_OK: return FIRN_OK;
    case FIRN_ERR_CORRUPT:
    case FIRN_ERR_KEY:
    case FIRN_ERR_IO:
        (void)snprintf(stack->below_message, sizeof stack->below_message, "%s", disk_err.message);
        return FIRN_OK;
    case FIRN_ERR_BUSY:
        return firni_fail(err, status, "the directory %.200s is in use by another firn; choose another with "
                          "--cache-below DIR", options->cache_below);
    default: return firni_fail(err, status, "--cache-below: %.370s", disk_err.message);
    }
}

firn_status firni_stack_open_below(firni_stack *stack, const firni_stack_options *options,
                                   const firn_disk_options *upper_options, firn_error *err)
{
    if (options->cache_below == NULL) {
        return FIRN_OK;
    }
    if (is_same_directory(options->cache_below, upper_options->dir)) {
        return firni_fail(err, FIRN_ERR_INVALID, "--cache-below %.200s is the cache directory itself",
                          options->cache_below);
    }
    firn_tier *lower = NULL;
    firn_status status = open_lower(stack, options, upper_options, &lower, err);
    if (status != FIRN_OK || lower == NULL) {
        return status;
    }
    if (stack->tier == NULL) {
        (void)snprintf(stack->below_message, sizeof stack->below_message, "%.150s serves alone: %.200s",
                       options->cache_below, stack->disk_message);
        stack->tier = lower;
        stack->disk_state = FIRN_REASON_NONE;
        stack->disk_message[0] = '\0';
        return FIRN_OK;
    }
    /* A path that RAM can hold can be copied; what waits to be promoted is a small part of that. */
    const firn_stack_options stack_options = { .upper = stack->tier,
                                               .lower = lower,
                                               .copy_bytes_max = stack->ram_budget_bytes,
                                               .promote_bytes_max = stack->ram_budget_bytes / 8 };
    firn_tier *both = NULL;
    status = firn_stack_create(&stack_options, stack->env, &both, err);
    if (status != FIRN_OK) {
        firn_tier_destroy(lower);
        return status;
    }
    stack->tier = both;
    return FIRN_OK;
}
