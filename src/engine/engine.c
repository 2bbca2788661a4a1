/*
 * The engine's life: creation, the thread's loop, shutdown with a bound, statistics.
 */
#include <assert.h>
#include <unistd.h>

#include "base/condition.h"
#include "engine/engine_impl.h"

/* Each token takes two operations for each parameter, and no core of today does more than 100 in a nanosecond. The
 * bound serves until the first prompt has been timed. */
#define PARAMS_PER_NS 50u

enum {
    BATCH_ROWS_DEFAULT = 16,
    BATCH_ROWS_MAX = 256,
    CHUNK_TOKENS_DEFAULT = 256,
    QUEUE_DEFAULT = 128,
    /* While something waits for memory the loop looks again this often even if nobody wakes it. */
    WAIT_NS_MAX = 20000000
};

static void publish_stats(firn_engine *engine)
{
    if (engine->prefix != NULL) {
        firn_prefix_get_stats(engine->prefix, &engine->stats.prefix);
    }
    if (firni_draft_tree(engine) != NULL) {
        firn_prefix_get_stats(firni_draft_tree(engine), &engine->stats.draft_prefix);
    }
    uint32_t n_waiting = 0;
    for (const firni_sequence *sequence = engine->waiting_head; sequence != NULL; sequence = sequence->next) {
        n_waiting++;
    }
    engine->stats.n_waiting = n_waiting;
    engine->stats.n_running = engine->n_rows;
    (void)pthread_mutex_lock(&engine->mutex);
    /* These two are counted by the submitting threads. */
    engine->stats.n_submitted = engine->published.n_submitted;
    engine->stats.n_refused = engine->published.n_refused;
    engine->published = engine->stats;
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void cancel_all(firni_sequence *waiting, firni_sequence **rows, uint32_t n_rows)
{
    for (; waiting != NULL; waiting = waiting->next) {
        atomic_store(&waiting->cancelled, true);
    }
    for (uint32_t row = 0; row < n_rows; row++) {
        atomic_store(&rows[row]->cancelled, true);
    }
}

/* Sleeps until woken or for `ns`. */
static void wait_for_work(firn_engine *engine, uint64_t ns)
{
    const struct timespec until = firni_condition_deadline(ns);
    (void)pthread_mutex_lock(&engine->mutex);
    int rc = 0;
    while (!engine->woken && rc == 0) {
        rc = pthread_cond_timedwait(&engine->wake, &engine->mutex, &until);
    }
    engine->woken = false;
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void poll_trees(firn_engine *engine)
{
    firn_prefix *const trees[2] = { engine->prefix, firni_draft_tree(engine) };
    for (uint32_t i = 0; i < 2; i++) {
        if (trees[i] != NULL) {
            (void)firn_prefix_poll(trees[i]);
        }
    }
}

/* Nanoseconds until one of them next has something to do. Asked after requests have been let in: a lookup that waits
 * for the tier has a time of its own to be looked at. */
static uint64_t idle_ns_of_trees(const firn_engine *engine)
{
    const firn_prefix *const trees[2] = { engine->prefix, firni_draft_tree(engine) };
    uint64_t idle_ns = UINT64_MAX;
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t ns = trees[i] != NULL ? firn_prefix_idle_ns(trees[i]) : UINT64_MAX;
        idle_ns = ns < idle_ns ? ns : idle_ns;
    }
    return idle_ns;
}

/* The model's own first: it is dearer to compute again. */
static firn_flush_report flush_trees(firn_engine *engine)
{
    firn_flush_report report = firn_prefix_flush(engine->prefix, engine->flush_bound_ns);
    firn_prefix *const draft_tree = firni_draft_tree(engine);
    if (draft_tree != NULL) {
        const uint64_t used_ns = report.elapsed_ns;
        const firn_flush_report draft = firn_prefix_flush(
            draft_tree, engine->flush_bound_ns > used_ns ? engine->flush_bound_ns - used_ns : 0);
        report.durable = report.durable && draft.durable;
        report.n_flushed += draft.n_flushed;
        report.n_missing += draft.n_missing;
        report.n_failed += draft.n_failed;
        report.elapsed_ns += draft.elapsed_ns;
    }
    return report;
}

static void *engine_main(void *arg)
{
    firn_engine *engine = arg;
    for (;;) {
        (void)pthread_mutex_lock(&engine->mutex);
        const bool stopping = engine->stopping;
        const uint64_t stop_deadline_ns = engine->stop_deadline_ns;
        (void)pthread_mutex_unlock(&engine->mutex);

        firni_intake_drain(engine);
        if (stopping) {
            const bool late = firni_now_ns(engine->env) >= stop_deadline_ns;
            cancel_all(engine->waiting_head, engine->rows, late ? engine->n_rows : 0);
        }
        firni_drop_cancelled(engine);
        poll_trees(engine);
        const bool is_saving = firni_save_advance(engine);
        firni_admit(engine);
        const bool stepped = firni_step(engine);
        publish_stats(engine);
        if (stepped) {
            continue;
        }
        if (stopping && engine->waiting_head == NULL) {
            break;
        }
        uint64_t idle_ns = idle_ns_of_trees(engine);
        if ((engine->waiting_head != NULL || is_saving) && idle_ns > WAIT_NS_MAX) {
            idle_ns = WAIT_NS_MAX;
        }
        wait_for_work(engine, idle_ns);
    }
    if (engine->prefix != NULL) {
        engine->flush_report = flush_trees(engine);
        publish_stats(engine);
    }
    firni_saves_abandon(engine, &engine->flush_report);
    return NULL;
}

static uint64_t compute_ns_min(const firn_model *model)
{
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    return firn_model_get_info(model)->n_params / (PARAMS_PER_NS * (uint64_t)(n_processors > 0 ? n_processors : 1));
}

static firn_status fill_defaults(firn_engine_options *options, firn_error *err)
{
    const firn_model_info *info = firn_model_get_info(options->model);
    options->ctx_tokens_max = options->ctx_tokens_max != 0 ? options->ctx_tokens_max : info->n_ctx_train;
    options->batch_rows_max = options->batch_rows_max != 0 ? options->batch_rows_max : BATCH_ROWS_DEFAULT;
    options->chunk_tokens_max = options->chunk_tokens_max != 0 ? options->chunk_tokens_max : CHUNK_TOKENS_DEFAULT;
    options->queue_max = options->queue_max != 0 ? options->queue_max : QUEUE_DEFAULT;
    if (options->batch_rows_max > BATCH_ROWS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "batch rows: %u is more than %d", options->batch_rows_max,
                          BATCH_ROWS_MAX);
    }
    options->draft_tokens_max = options->draft_tokens_max != 0 ? options->draft_tokens_max : FIRNI_DRAFT_TOKENS_DEFAULT;
    if (options->draft_tokens_max > FIRNI_DRAFT_TOKENS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "draft tokens: %u is more than %u", options->draft_tokens_max,
                          FIRNI_DRAFT_TOKENS_MAX);
    }
    if (options->draft_ngram && options->draft_model != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "guesses come from the text or from a drafter, not from both");
    }
    if (options->ctx_tokens_max < 2) {
        return firni_fail(err, FIRN_ERR_INVALID, "context: %u tokens are too few, at least 2 are needed",
                          options->ctx_tokens_max);
    }
    return FIRN_OK;
}

static firn_status allocate(firn_engine *engine, firn_error *err)
{
    const firn_engine_options *options = &engine->options;
    const size_t n_rows = options->batch_rows_max;
    const size_t n_guesses = firni_draft_step_max(engine);
    const size_t n_step = n_rows + options->chunk_tokens_max + n_guesses;
    engine->rows = firni_calloc(engine->env, n_rows, sizeof *engine->rows);
    engine->caches = firni_calloc(engine->env, engine->schema->n_layers, sizeof(firn_cache *));
    engine->shapes = firni_calloc(engine->env, engine->schema->n_layers, sizeof(firn_cache *));
    engine->step_tokens = firni_calloc(engine->env, n_step, sizeof *engine->step_tokens);
    engine->step_wanted = firni_calloc(engine->env, n_step, sizeof *engine->step_wanted);
    engine->step_counts = firni_calloc(engine->env, n_rows, sizeof *engine->step_counts);
    engine->step_kept = firni_calloc(engine->env, n_rows, sizeof *engine->step_kept);
    engine->step_keep = firni_calloc(engine->env, n_rows, sizeof *engine->step_keep);
    engine->step_choices = firni_calloc(engine->env, n_rows, sizeof *engine->step_choices);
    engine->step_logits =
        firni_calloc(engine->env, (n_rows + n_guesses) * engine->n_vocab, sizeof *engine->step_logits);
    if (engine->rows == NULL || engine->caches == NULL || engine->shapes == NULL || engine->step_tokens == NULL ||
        engine->step_wanted == NULL || engine->step_counts == NULL || engine->step_kept == NULL ||
        engine->step_keep == NULL || engine->step_choices == NULL || engine->step_logits == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for an engine of %zu rows", n_rows);
    }
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        firn_status status =
            firn_cache_create(&engine->schema->layers[layer], options->pool, engine->env, &engine->caches[layer], err);
        if (status == FIRN_OK) {
            status = firn_cache_make_empty(engine->caches[layer], &engine->shapes[layer], err);
        }
        if (status != FIRN_OK) {
            return status;
        }
        engine->families |= firni_family_of(engine->caches[layer]);
    }
    return FIRN_OK;
}

static void release(firn_engine *engine)
{
    if (engine->draft_ops != NULL && engine->draft_ops->destroy != NULL) {
        engine->draft_ops->destroy(engine);
    }
    firni_keeper_destroy(engine->keeper, engine->flush_bound_ns); /* before what its tasks refer to */
    firni_sessions_destroy(engine->sessions);
    firn_prefix_destroy(engine->prefix);
    firni_destroy_caches(engine, engine->caches);
    firni_destroy_caches(engine, engine->shapes);
    firni_free(engine->env, engine->rows);
    firni_free(engine->env, engine->step_tokens);
    firni_free(engine->env, engine->step_wanted);
    firni_free(engine->env, engine->step_counts);
    firni_free(engine->env, engine->step_kept);
    firni_free(engine->env, engine->step_keep);
    firni_free(engine->env, engine->step_choices);
    firni_free(engine->env, engine->step_logits);
    (void)pthread_cond_destroy(&engine->wake);
    (void)pthread_mutex_destroy(&engine->mutex);
    firni_free(engine->env, engine);
}

/* The pool is shared with the source's tree, which was there first and took its part. */
static uint64_t own_tree_budget(const firn_engine *engine)
{
    firn_pool_stats pool;
    firn_pool_get_stats(engine->options.pool, &pool);
    firn_prefix_stats draft = { 0 };
    if (firni_draft_tree(engine) != NULL) {
        firn_prefix_get_stats(firni_draft_tree(engine), &draft);
    }
    return pool.budget_bytes - draft.budget_bytes;
}

firn_status firn_engine_create(const firn_engine_options *options, const firn_env *env, firn_engine **out,
                               firn_error *err)
{
    *out = NULL;
    assert(options->model != NULL && options->pool != NULL);
    firn_engine *engine = firni_calloc(env, 1, sizeof *engine);
    if (engine == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for an engine");
    }
    engine->env = env;
    engine->options = *options;
    engine->schema = firn_model_schema(options->model);
    engine->n_vocab = firn_model_get_info(options->model)->n_vocab;
    engine->draft_ops = options->draft_ngram           ? &firni_draft_ngram
                        : options->draft_model != NULL ? &firni_draft_by_model
                                                       : NULL;
    (void)pthread_mutex_init(&engine->mutex, NULL);
    (void)firni_condition_init(&engine->wake);

    firn_status status = fill_defaults(&engine->options, err);
    if (status == FIRN_OK) {
        engine->n_chunk = engine->options.chunk_tokens_max;
        status = allocate(engine, err);
    }
    if (status == FIRN_OK && options->tier != NULL) {
        status = firni_keeper_create(env, &engine->keeper, err);
    }
    if (status == FIRN_OK) {
        status = firni_sessions_create(engine, &engine->sessions, err);
    }
    if (status == FIRN_OK && engine->draft_ops != NULL && engine->draft_ops->create != NULL) {
        status = engine->draft_ops->create(engine, err);
    }
    if (status == FIRN_OK && !options->no_prefix_cache) {
        const firn_prefix_options prefix_options = {
            .pool = options->pool,
            .schema = engine->schema,
            .tier = options->tier,
            .budget_bytes = own_tree_budget(engine),
            .restore_always = options->restore_always,
            .layered_bytes_min = options->layered_bytes_min,
            .compute_ns_min = compute_ns_min(options->model),
            .n_logits = engine->n_vocab,
            .policy = options->policy,
            .admission = options->admission,
            .notify = firni_engine_wake,
            .notify_ctx = engine,
        };
        status = firn_prefix_create(&prefix_options, env, &engine->prefix, err);
    }
    if (status == FIRN_OK) {
        const int rc = pthread_create(&engine->thread, NULL, engine_main, engine);
        if (rc != 0) {
            status = firni_fail_os(err, rc, "cannot start the engine's thread");
        }
    }
    if (status != FIRN_OK) {
        release(engine);
        return status;
    }
    *out = engine;
    return FIRN_OK;
}

void firn_engine_destroy(firn_engine *engine, uint64_t bound_ns, firn_flush_report *report)
{
    if (engine == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&engine->mutex);
    engine->stopping = true;
    engine->stop_deadline_ns = firni_now_ns(engine->env) + bound_ns / 2;
    engine->flush_bound_ns = bound_ns - bound_ns / 2;
    engine->woken = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->mutex);
    (void)pthread_join(engine->thread, NULL);
    if (report != NULL) {
        *report = engine->flush_report;
    }
    assert(engine->live == NULL);
    release(engine);
}

void firn_engine_get_stats(firn_engine *engine, firn_engine_stats *out)
{
    (void)pthread_mutex_lock(&engine->mutex);
    *out = engine->published;
    out->n_generation_checkpoints = engine->n_generation_checkpoints; /* stored while the engine may be idle */
    (void)pthread_mutex_unlock(&engine->mutex);
    /* These keep their own locks and are read fresh. */
    firn_pool_get_stats(engine->options.pool, &out->pool);
    out->n_sessions = firni_sessions_count(engine->sessions);
    if (engine->options.tier != NULL) {
        firn_tier_get_stats(engine->options.tier, &out->tier);
    }
    if (engine->options.draft_tier != NULL) {
        firn_tier_get_stats(engine->options.draft_tier, &out->draft_tier);
    }
}
