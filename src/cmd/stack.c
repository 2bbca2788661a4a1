/*
 * Assembly of model, pool, disk tier and engine, and its undoing. Owns the order of creation and the defaults that
 * depend on the machine (memory budget, cache directory); not the parts, and no output.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "base/bounded.h"
#include "cmd/cache_key.h"
#include "cmd/stack_below.h"
#include "cmd/stack_draft.h"
#include "cmd/stack_packed.h"

#define DISK_BUDGET_DEFAULT_BYTES (UINT64_C(16) << 30)
#define RAM_BUDGET_MIN_BYTES (UINT64_C(64) << 20)
#define CLOSE_GRACE_NS UINT64_C(60000000000) /* beyond its bound: the last step of a large model takes its time */
#define ROWS_DEFAULT 16u
#define CHUNK_DEFAULT 256u
#define STEP_GUESSES_MAX 128u /* see firn_engine_options */

/* Memory this process may use: the machine's, or the control group's limit when that is smaller. */
static uint64_t memory_bytes(void)
{
    const long n_pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t n_bytes = n_pages > 0 && page_bytes > 0 ? (uint64_t)n_pages * (uint64_t)page_bytes : UINT64_C(4) << 30;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    if (file != NULL) {
        unsigned long long limit = 0;
        if (fscanf(file, "%llu", &limit) == 1 && limit > 0 && limit < n_bytes) { /* "max" is no number: no limit */
            n_bytes = limit;
        }
        (void)fclose(file);
    }
    return n_bytes;
}

char *firni_stack_default_cache_dir(const firn_env *env)
{
    const char *base = getenv("XDG_CACHE_HOME");
    const char *below = "/firn";
    if (base == NULL || base[0] != '/') { /* the XDG specification: a relative path is to be ignored */
        base = getenv("HOME");
        below = "/.cache/firn";
    }
    if (base == NULL || base[0] != '/') {
        return NULL;
    }
    const size_t n_bytes = strlen(base) + strlen(below) + 1;
    char *dir = firni_calloc(env, n_bytes, 1);
    if (dir != NULL) {
        (void)snprintf(dir, n_bytes, "%s%s", base, below);
    }
    return dir;
}

void firni_stack_make_parents(const firn_env *env, const char *dir)
{
    char *path = firni_strdup(env, dir);
    if (path == NULL) {
        return;
    }
    for (char *slash = strchr(path + (path[0] == '/'), '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    firni_free(env, path);
}

/* The flag's choices are checked when it is parsed; anything else is the default. */
static firn_durability durability_of(const char *name)
{
    if (name != NULL && strcmp(name, "none") == 0) {
        return FIRN_DURABILITY_NONE;
    }
    return name != NULL && strcmp(name, "always") == 0 ? FIRN_DURABILITY_ALWAYS : FIRN_DURABILITY_BATCH;
}

/* What kept the directory from being opened, in the words of metrics and messages. */
static firn_reason reason_of_errno(int os_error)
{
    switch (os_error) {
    case EACCES:
    case EPERM:
    case EROFS: return FIRN_REASON_READ_ONLY;
    case ENOSPC:
    case EDQUOT: return FIRN_REASON_DISK_FULL;
    default: return FIRN_REASON_IO_ERROR;
    }
}

/* What the model and its drafter have in common: all but the file. */
static firn_status fill_model_options(const firni_stack *stack, const firni_stack_options *options,
                                      firn_model_options *out, firn_error *err)
{
    /* A step packs one prompt chunk, one token of each running row, and guesses; rows that are being prefilled come on
     * top. */
    const uint32_t n_rows = 2 * (options->batch_rows_max != 0 ? options->batch_rows_max : ROWS_DEFAULT);
    const uint32_t n_chunk = options->chunk_tokens_max != 0 ? options->chunk_tokens_max : CHUNK_DEFAULT;
    *out = (firn_model_options){
        .workers = stack->workers,
        .kernel = options->kernel,
        .max_batch_tokens = n_chunk + n_rows + (options->draft != NULL ? STEP_GUESSES_MAX : 0),
        .max_rows = n_rows,
        .progress = options->progress,
        .progress_ctx = options->progress_label,
    };
    return firni_kv_set(options->kv, options->kv_group, options->kv_delay_tokens, out, err);
}

/* Also settles which file it is: model_path and is_builtin. */
static firn_status open_model(firni_stack *stack, const firni_stack_options *options, firn_error *err)
{
    firn_model_options model_options;
    firn_status status = fill_model_options(stack, options, &model_options, err);
    if (status == FIRN_OK) {
        status = firni_stack_set_packed(stack, options, &model_options, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    if (options->model_path != NULL) {
        stack->model_path = firni_strdup(stack->env, options->model_path);
    } else {
        char *path = firni_cmd_builtin_model();
        if (path == NULL) {
            return firni_fail(err, FIRN_ERR_NOT_FOUND, "the built-in model was not found; name one with -m MODEL.gguf");
        }
        stack->model_path = firni_strdup(stack->env, path);
        stack->is_builtin = true;
        free(path);
    }
    if (stack->model_path == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the model's path");
    }
    model_options.path = stack->model_path;
    status = firn_model_open(&model_options, stack->env, &stack->model, err);
    if (status == FIRN_OK) {
        status = firni_stack_open_drafter(stack, options, &model_options, err);
    }
    if (status == FIRN_OK) {
        firni_stack_count_packed(stack, options);
    }
    return status;
}

/* The directory is known, and so is its key. */
static firn_status open_disk_with(firni_stack *stack, const firni_stack_options *options, const uint8_t *key,
                                  firn_error *err)
{
    firn_disk_options disk_options = {
        .dir = stack->cache_dir,
        .schema = firn_model_schema(stack->model),
        .pool = stack->pool,
        .budget_bytes = firni_stack_model_disk_budget(stack),
        .durability = durability_of(options->durability),
        .ttl_ns = options->ttl_ns,
        .demote_idle_ns = options->demote_idle_ns,
        .min_free_bytes = options->disk_min_free_bytes,
        .read_only = options->disk_read_only,
        .key = key,
    };
    firn_error disk_err = { 0 };
    firn_status status = firn_disk_open(&disk_options, stack->env, &stack->tier, &disk_err);
    if (status == FIRN_ERR_BUSY && options->disk_share) {
        disk_options.read_only = true;
        status = firn_disk_open(&disk_options, stack->env, &stack->tier, &disk_err);
        if (status == FIRN_OK) {
            stack->disk_state = FIRN_REASON_READ_ONLY;
            (void)snprintf(stack->disk_message, sizeof stack->disk_message,
                           "another process is writing %.300s; its state is read, nothing is stored", stack->cache_dir);
        }
    }
    switch (status) {
    case FIRN_OK:
        firni_stack_open_draft_disk(stack, &disk_options);
        return firni_stack_open_below(stack, options, &disk_options, err);
    case FIRN_ERR_CORRUPT:
    case FIRN_ERR_KEY:
    case FIRN_ERR_IO:
        stack->disk_state = status == FIRN_ERR_CORRUPT ? FIRN_REASON_CORRUPT
                            : status == FIRN_ERR_KEY   ? FIRN_REASON_WRONG_KEY
                                                       : reason_of_errno(disk_err.os_error);
        (void)snprintf(stack->disk_message, sizeof stack->disk_message, "%s", disk_err.message);
        return firni_stack_open_below(stack, options, &disk_options, err);
    case FIRN_ERR_BUSY:
        return firni_fail(err, status, "the cache directory %.200s is in use by another firn; choose another with "
                          "--cache-dir DIR, or keep state in RAM with --no-disk", stack->cache_dir);
    case FIRN_ERR_FORMAT:
        return firni_fail(err, status, "%.250s (choose another directory with --cache-dir DIR, or --no-disk)",
                          disk_err.message);
    default: return firni_fail(err, status, "%.390s", disk_err.message);
    }
}

/* Opens the disk tier, or says in disk_state why there is none. Fails only for what the user has to decide. */
static firn_status open_disk(firni_stack *stack, const firni_stack_options *options, firn_error *err)
{
    if (options->no_disk || options->no_prefix_cache) {
        stack->disk_state = FIRN_REASON_DISABLED;
        (void)snprintf(stack->disk_message, sizeof stack->disk_message, "switched off");
        return FIRN_OK;
    }
    stack->cache_dir = options->cache_dir != NULL ? firni_strdup(stack->env, options->cache_dir)
                                                  : firni_stack_default_cache_dir(stack->env);
    if (stack->cache_dir == NULL) {
        stack->disk_state = FIRN_REASON_DISABLED;
        (void)snprintf(stack->disk_message, sizeof stack->disk_message,
                       "neither XDG_CACHE_HOME nor HOME is set; name a directory with --cache-dir");
        return FIRN_OK;
    }
    firni_cache_key key;
    firn_error key_err = { 0 };
    if (firni_cache_key_read(options->cache_key_file, &key, &key_err) != FIRN_OK) {
        /* A key that is lost costs what was stored, not the service. */
        stack->disk_state = FIRN_REASON_WRONG_KEY;
        (void)snprintf(stack->disk_message, sizeof stack->disk_message, "%s", key_err.message);
        return FIRN_OK;
    }
    firni_stack_make_parents(stack->env, stack->cache_dir);
    const firn_status status = open_disk_with(stack, options, firni_cache_key_bytes(&key), err);
    firni_cache_key_forget(&key);
    return status;
}

/* The last part: it starts the thread that owns the others. */
static firn_status open_engine(firni_stack *stack, const firni_stack_options *options, firn_error *err)
{
    if (options->no_engine) {
        return FIRN_OK;
    }
    const firn_engine_options engine_options = {
        .model = stack->model,
        .pool = stack->pool,
        .tier = stack->tier,
        .ctx_tokens_max = options->ctx_tokens_max,
        .batch_rows_max = options->batch_rows_max,
        .chunk_tokens_max = options->chunk_tokens_max,
        .max_itl_ns = options->max_itl_ns,
        .queue_max = options->queue_max,
        .no_prefix_cache = options->no_prefix_cache,
        .restore_always = options->restore_always,
        .policy = options->policy,
        .admission = options->admission,
        .draft_ngram = options->draft != NULL && !firni_stack_has_drafter(options),
        .draft_model = stack->draft_model,
        .draft_tier = stack->draft_tier,
        .draft_tokens_max = options->draft_tokens_max,
        .draft_always = options->draft_always,
        .checkpoint_tokens = options->checkpoint_tokens,
        .checkpoint_ttl_ns = options->checkpoint_ttl_ns,
    };
    return firn_engine_create(&engine_options, stack->env, &stack->engine, err);
}

firn_status firni_stack_open(const firni_stack_options *options, const firn_env *env, firni_stack **out,
                             firn_error *err)
{
    *out = NULL;
    if (options->draft == NULL && options->draft_tokens_max != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "--draft-max %u: nothing drafts; add --draft ngram or "
                          "--draft MODEL.gguf",
                          options->draft_tokens_max);
    }
    firni_stack *stack = firni_calloc(env, 1, sizeof *stack);
    if (stack == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory");
    }
    stack->env = env;
    stack->disk_budget_bytes = options->disk_budget_bytes != 0 ? options->disk_budget_bytes : DISK_BUDGET_DEFAULT_BYTES;
    stack->ram_budget_bytes = options->ram_budget_bytes;
    if (stack->ram_budget_bytes == 0) {
        const uint64_t quarter = memory_bytes() / 4;
        stack->ram_budget_bytes = quarter > RAM_BUDGET_MIN_BYTES ? quarter : RAM_BUDGET_MIN_BYTES;
    }
    firn_status status = firn_workers_create(options->n_threads, env, &stack->workers, err);
    if (status == FIRN_OK) {
        status = open_model(stack, options, err);
    }
    if (status == FIRN_OK) {
        const firn_pool_options pool_options = { .budget_bytes = stack->ram_budget_bytes };
        status = firn_pool_create(&pool_options, env, &stack->pool, err);
    }
    if (status == FIRN_OK) {
        status = open_disk(stack, options, err);
    }
    if (status == FIRN_OK && options->draft != NULL) {
        stack->draft_name = stack->draft_model != NULL ? firn_model_get_info(stack->draft_model)->name
                                                       : "from the text so far";
    }
    if (status == FIRN_OK) {
        status = open_engine(stack, options, err);
    }
    if (status != FIRN_OK) {
        firni_stack_close(stack, 0, NULL);
        return status;
    }
    *out = stack;
    return FIRN_OK;
}

/* A closing in progress. Stays when nobody waits for it any more. */
typedef struct closing {
    firni_stack *stack;
    uint64_t bound_ns;
    firn_flush_report report;
} closing;

static void close_now(void *ctx)
{
    closing *job = ctx;
    firni_stack *stack = job->stack;
    if (stack->engine != NULL) {
        firn_engine_destroy(stack->engine, job->bound_ns, &job->report);
    }
    firn_tier_destroy(stack->draft_tier);
    firn_tier_destroy(stack->tier);
    firn_pool_destroy(stack->pool);
    firn_model_close(stack->draft_model);
    firn_model_close(stack->model);
    firn_workers_destroy(stack->workers);
    firni_free(stack->env, stack->cache_dir);
    firni_free(stack->env, stack->packed_dir);
    firni_free(stack->env, stack->model_path);
    firni_free(stack->env, stack);
}

void firni_stack_close(firni_stack *stack, uint64_t bound_ns, firn_flush_report *report)
{
    closing *job = stack != NULL ? firni_calloc(stack->env, 1, sizeof *job) : NULL;
    closing here = { .stack = stack, .bound_ns = bound_ns, .report = { .durable = true } };
    if (job != NULL) {
        const firn_env *env = stack->env;
        *job = here;
        here.report.durable = false;
        if (firni_run_bounded(env, bound_ns + CLOSE_GRACE_NS, close_now, job)) {
            here.report = job->report;
            firni_free(env, job);
        } else {
            firni_log(env, FIRN_LOG_ERROR, "a device does not answer; what was not saved is lost");
        }
    } else if (stack != NULL) {
        close_now(&here);
    }
    if (report != NULL) {
        *report = here.report;
    }
}
