/*
 * The drafter's model and its store; see stack_draft.h.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base_impl.h"
#include "cmd/cache_files.h"
#include "cmd/stack_draft.h"

#define DISK_BUDGET_MIN_BYTES (UINT64_C(64) << 20) /* of one store: see firn/disk.h */

bool firni_stack_has_drafter(const firni_stack_options *options)
{
    return options->draft != NULL && strcmp(options->draft, "ngram") != 0;
}

firn_status firni_stack_open_drafter(firni_stack *stack, const firni_stack_options *options,
                                     const firn_model_options *model_options, firn_error *err)
{
    if (!firni_stack_has_drafter(options)) {
        return FIRN_OK;
    }
    firn_error draft_err = { 0 };
    firn_model_options draft_options = *model_options;
    draft_options.path = options->draft;
    const firn_status status = firn_model_open(&draft_options, stack->env, &stack->draft_model, &draft_err);
    return status == FIRN_OK ? status
                             : firni_fail(err, status, "--draft %.80s: neither \"ngram\" nor a drafter: %.280s",
                                          options->draft, draft_err.message);
}

char *firni_stack_draft_dir(const firn_env *env, const char *cache_dir)
{
    const size_t n_bytes = strlen(cache_dir) + sizeof "/draft";
    char *dir = firni_calloc(env, n_bytes, 1);
    if (dir != NULL) {
        (void)snprintf(dir, n_bytes, "%s/draft", cache_dir);
    }
    return dir;
}

/* ---- the budget ---- */

static uint64_t file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_blocks * 512u : 0;
}

static bool add_file(void *ctx, const char *path)
{
    *(uint64_t *)ctx += file_bytes(path);
    return true;
}

/* What a store takes that nobody has opened. */
static uint64_t store_bytes(const char *dir)
{
    static const char *const index_files[] = { "index/data.mdb", "index/lock.mdb", "firn.lock" };
    uint64_t n_bytes = 0;
    char path[4096];
    firni_cache_each_segment(dir, add_file, &n_bytes);
    for (size_t i = 0; i < sizeof index_files / sizeof index_files[0]; i++) {
        const int len = snprintf(path, sizeof path, "%s/%s", dir, index_files[i]);
        n_bytes += len > 0 && (size_t)len < sizeof path ? file_bytes(path) : 0;
    }
    return n_bytes;
}

static double block_bytes(const firn_model *model)
{
    const firn_schema *schema = firn_model_schema(model);
    double n_bytes = 0.0;
    for (uint32_t layer = 0; layer < schema->n_layers; layer++) {
        const firn_cache_options *o = &schema->layers[layer];
        n_bytes += (double)o->n_kv_heads * ((double)o->head_dim + (double)o->value_dim);
    }
    return n_bytes;
}

/* The drafter's part; 0 when the budget does not hold two stores. */
static uint64_t draft_disk_budget(const firni_stack *stack)
{
    if (stack->draft_model == NULL || stack->disk_budget_bytes < 2 * DISK_BUDGET_MIN_BYTES) {
        return 0;
    }
    const double own = block_bytes(stack->draft_model), other = block_bytes(stack->model);
    const uint64_t n_bytes = (uint64_t)((double)stack->disk_budget_bytes * (own / (own + other)));
    const uint64_t most = stack->disk_budget_bytes - DISK_BUDGET_MIN_BYTES;
    return n_bytes < DISK_BUDGET_MIN_BYTES ? DISK_BUDGET_MIN_BYTES : n_bytes < most ? n_bytes : most;
}

uint64_t firni_stack_model_disk_budget(const firni_stack *stack)
{
    uint64_t draft_bytes = draft_disk_budget(stack);
    if (draft_bytes == 0) {
        char *dir = firni_stack_draft_dir(stack->env, stack->cache_dir);
        draft_bytes = dir != NULL ? store_bytes(dir) : 0;
        firni_free(stack->env, dir);
    }
    /* A budget too small for what is left over is the model's all the same: it must be able to open. */
    return draft_bytes + DISK_BUDGET_MIN_BYTES <= stack->disk_budget_bytes ? stack->disk_budget_bytes - draft_bytes
                                                                          : stack->disk_budget_bytes;
}

/* ---- the store ---- */

void firni_stack_open_draft_disk(firni_stack *stack, const firn_disk_options *disk_options)
{
    if (stack->draft_model == NULL || stack->tier == NULL) {
        return;
    }
    char *dir = firni_stack_draft_dir(stack->env, stack->cache_dir);
    firn_disk_options options = *disk_options;
    options.dir = dir;
    options.schema = firn_model_schema(stack->draft_model);
    options.budget_bytes = draft_disk_budget(stack);
    firn_error err = { 0 };
    if (dir == NULL) {
        (void)firni_fail(&err, FIRN_ERR_NO_MEMORY, "no memory");
    } else if (options.budget_bytes == 0) {
        (void)firni_fail(&err, FIRN_ERR_CAPACITY, "--disk-budget must be at least 128M for two stores");
    } else {
        (void)firn_disk_open(&options, stack->env, &stack->draft_tier, &err);
    }
    if (stack->draft_tier == NULL) {
        firni_log(stack->env, FIRN_LOG_WARN, "the drafter's state stays in RAM: %s", err.message);
    }
    firni_free(stack->env, dir);
}
