/*
 * The directory of packed weights, and its part of the disk budget; see stack_packed.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/stack_packed.h"
#include "model/packed_file.h"

#define STATE_BYTES_MIN (UINT64_C(64) << 20) /* the least that a disk tier opens with: see firn/disk.h */

static bool is_auto(const firni_stack_options *options)
{
    return options->packed_dir == NULL || strcmp(options->packed_dir, "auto") == 0;
}

/* CACHE_DIR/packed; NULL when there is no such directory, or no memory. */
static char *dir_in_cache(const firni_stack *stack, const firni_stack_options *options)
{
    if (options->no_disk || options->no_prefix_cache || options->disk_read_only) {
        return NULL;
    }
    char *cache_dir = options->cache_dir != NULL ? firni_strdup(stack->env, options->cache_dir)
                                                 : firni_stack_default_cache_dir(stack->env);
    const size_t n_bytes = cache_dir != NULL ? strlen(cache_dir) + sizeof "/packed" : 0;
    char *dir = cache_dir != NULL ? firni_calloc(stack->env, n_bytes, 1) : NULL;
    if (dir != NULL) {
        (void)snprintf(dir, n_bytes, "%s/packed", cache_dir);
    }
    firni_free(stack->env, cache_dir);
    return dir;
}

firn_status firni_stack_set_packed(firni_stack *stack, const firni_stack_options *options,
                                   firn_model_options *model_options, firn_error *err)
{
    if (is_auto(options)) {
        stack->packed_dir = dir_in_cache(stack, options);
        model_options->packed_bytes_max = stack->disk_budget_bytes / 2;
    } else if (strcmp(options->packed_dir, "off") != 0) {
        stack->packed_dir = firni_strdup(stack->env, options->packed_dir);
        if (stack->packed_dir == NULL) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the directory of packed weights");
        }
    }
    model_options->packed_dir = stack->packed_dir;
    return FIRN_OK;
}

void firni_stack_count_packed(firni_stack *stack, const firni_stack_options *options)
{
    if (!is_auto(options) || stack->packed_dir == NULL) {
        return;
    }
    uint64_t n_bytes = firni_packed_dir_bytes(stack->packed_dir, stack->env) +
                       firn_model_get_info(stack->model)->packed_bytes_due;
    if (stack->draft_model != NULL) {
        n_bytes += firn_model_get_info(stack->draft_model)->packed_bytes_due;
    }
    /* What is due may push out what is there: together they are never more than their part. A budget that was lowered
     * below what lies there is the state's all the same: it must be able to open. */
    const uint64_t most = stack->disk_budget_bytes / 2;
    n_bytes = n_bytes < most ? n_bytes : most;
    if (stack->disk_budget_bytes >= STATE_BYTES_MIN + n_bytes) {
        stack->disk_budget_bytes -= n_bytes;
    }
}
