/*
 * The drafter's life: creation and checks, its tree and tier, requests that join and leave. What it does in a step is
 * draft_model_rows.c; see draft_model_impl.h for the whole.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/draft_model_impl.h"

/* ---- creation ---- */

/* Guesses are token ids: both models must mean the same by them. */
static firn_status check_vocabulary(const firn_model *model, const firn_model *drafter, firn_error *err)
{
    const firn_tokenizer *const sides[2] = { firn_model_tokenizer(model), firn_model_tokenizer(drafter) };
    firn_digest digests[2];
    char hex[2][9];
    for (uint32_t i = 0; i < 2; i++) {
        digests[i] = firn_tokenizer_digest(sides[i]);
        for (uint32_t j = 0; j < 4; j++) {
            static const char digits[] = "0123456789abcdef";
            hex[i][2 * j] = digits[digests[i].bytes[j] >> 4];
            hex[i][2 * j + 1] = digits[digests[i].bytes[j] & 15];
        }
        hex[i][8] = '\0';
    }
    if (memcmp(&digests[0], &digests[1], sizeof digests[0]) == 0) {
        return FIRN_OK;
    }
    return firni_fail(err, FIRN_ERR_INVALID,
                      "the drafter '%.60s' has another vocabulary (%u tokens, digest %s) than the model '%.60s' (%u "
                      "tokens, digest %s): its guesses would be other words",
                      firn_model_get_info(drafter)->name, firn_tokenizer_n_tokens(sides[1]), hex[1],
                      firn_model_get_info(model)->name, firn_tokenizer_n_tokens(sides[0]), hex[0]);
}

static bool allocate_buffers(const firn_engine *engine, firni_draft_model *drafter)
{
    const firn_env *env = engine->env;
    const size_t n_rows = engine->options.batch_rows_max;
    drafter->n_step_tokens_max = engine->options.batch_rows_max + engine->options.chunk_tokens_max;
    drafter->rows = firni_calloc(env, n_rows, sizeof *drafter->rows);
    drafter->step_tokens = firni_calloc(env, drafter->n_step_tokens_max, sizeof *drafter->step_tokens);
    drafter->step_wanted = firni_calloc(env, drafter->n_step_tokens_max, sizeof *drafter->step_wanted);
    drafter->step_counts = firni_calloc(env, n_rows, sizeof *drafter->step_counts);
    drafter->appended = firni_calloc(env, n_rows, sizeof *drafter->appended);
    drafter->keep = firni_calloc(env, n_rows, sizeof *drafter->keep);
    drafter->step_logits = firni_calloc(env, n_rows * drafter->n_vocab, sizeof *drafter->step_logits);
    drafter->row_logits = firni_calloc(env, engine->n_vocab, sizeof *drafter->row_logits);
    drafter->caches = firni_calloc(env, drafter->schema->n_layers, sizeof(firn_cache *));
    drafter->shapes = firni_calloc(env, drafter->schema->n_layers, sizeof(firn_cache *));
    for (uint32_t i = 0; drafter->row_logits != NULL && i < engine->n_vocab; i++) {
        drafter->row_logits[i] = -INFINITY; /* what the drafter has no logit for stays so */
    }
    return drafter->rows != NULL && drafter->step_tokens != NULL && drafter->step_wanted != NULL &&
           drafter->step_counts != NULL && drafter->appended != NULL && drafter->keep != NULL &&
           drafter->step_logits != NULL && drafter->row_logits != NULL && drafter->caches != NULL &&
           drafter->shapes != NULL;
}

/* The pool is shared by both trees. Each may fill its part, by what a token of it takes, so that neither crowds out the
 * other's restores. */
static uint64_t tree_budget(const firn_engine *engine, const firni_draft_model *drafter)
{
    firn_pool_stats pool;
    firn_pool_get_stats(engine->options.pool, &pool);
    const double own = (double)firni_shapes_bytes(drafter->shapes, drafter->schema->n_layers, 16 * FIRN_BLOCK_TOKENS);
    const double other = (double)firni_projected_bytes(engine, 16 * FIRN_BLOCK_TOKENS);
    return (uint64_t)((double)pool.budget_bytes * (own / (own + other)));
}

static firn_status create_tree(firn_engine *engine, firni_draft_model *drafter, firn_error *err)
{
    const firn_prefix_options options = {
        .pool = engine->options.pool,
        .schema = drafter->schema,
        .tier = engine->options.draft_tier,
        .budget_bytes = tree_budget(engine, drafter),
        .layered_bytes_min = UINT64_MAX, /* it joins when its model does */
        .policy = engine->options.policy,
        .notify = firni_engine_wake,
        .notify_ctx = engine,
    };
    return firn_prefix_create(&options, engine->env, &drafter->prefix, err);
}

static void destroy(firn_engine *engine)
{
    firni_draft_model *drafter = engine->draft_model;
    const firn_env *env = engine->env;
    if (drafter == NULL) {
        return;
    }
    firn_prefix_destroy(drafter->prefix);
    firni_caches_release(env, drafter->caches, drafter->schema->n_layers);
    firni_caches_release(env, drafter->shapes, drafter->schema->n_layers);
    firni_free(env, drafter->rows);
    firni_free(env, drafter->step_tokens);
    firni_free(env, drafter->step_wanted);
    firni_free(env, drafter->step_counts);
    firni_free(env, drafter->appended);
    firni_free(env, drafter->keep);
    firni_free(env, drafter->step_logits);
    firni_free(env, drafter->row_logits);
    firni_free(env, drafter);
    engine->draft_model = NULL;
}

static firn_status create(firn_engine *engine, firn_error *err)
{
    firn_status status = check_vocabulary(engine->options.model, engine->options.draft_model, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_draft_model *drafter = firni_calloc(engine->env, 1, sizeof *drafter);
    if (drafter == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a drafter");
    }
    engine->draft_model = drafter; /* released with the engine, in whatever state it is */
    drafter->model = engine->options.draft_model;
    drafter->schema = firn_model_schema(drafter->model);
    drafter->n_vocab = firn_model_get_info(drafter->model)->n_vocab;
    if (!allocate_buffers(engine, drafter)) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a drafter of %u rows",
                          engine->options.batch_rows_max);
    }
    for (uint32_t layer = 0; layer < drafter->schema->n_layers && status == FIRN_OK; layer++) {
        status = firn_cache_create(&drafter->schema->layers[layer], engine->options.pool, engine->env,
                                   &drafter->caches[layer], err);
        if (status == FIRN_OK) {
            status = firn_cache_make_empty(drafter->caches[layer], &drafter->shapes[layer], err);
        }
    }
    if (status == FIRN_OK && !engine->options.no_prefix_cache) {
        status = create_tree(engine, drafter, err);
    }
    return status;
}

/* ---- memory ---- */

/* As firni_request_bytes() for the model's row: at any moment on its way, and what the tree may have to keep of it. */
static uint64_t request_bytes(const firn_engine *engine, uint32_t tokens)
{
    const firni_draft_model *drafter = engine->draft_model;
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < drafter->schema->n_layers; layer++) {
        bytes += firn_cache_working_bytes(drafter->shapes[layer], tokens, engine->options.chunk_tokens_max);
        bytes += firni_published_bytes(engine, drafter->shapes[layer], tokens);
    }
    return bytes;
}

static uint64_t unevictable_bytes(const firn_engine *engine)
{
    const firni_draft_model *drafter = engine->draft_model;
    const uint64_t node_bytes = firni_shapes_bytes(drafter->shapes, drafter->schema->n_layers, 1);
    return engine->options.draft_tier != NULL ? firni_unevictable_bytes(drafter->prefix, node_bytes) : 0;
}

/* ---- joining and leaving ---- */

static void look_up(firn_engine *engine, firni_sequence *sequence)
{
    const firni_draft_model *drafter = engine->draft_model;
    if (sequence->draft.lease != NULL || sequence->cache.no_read || drafter->prefix == NULL) {
        return;
    }
    /* Without memory for a lease the drafter reads the prompt in full: a benign failure. */
    if (firn_prefix_acquire_with(drafter->prefix, sequence->tokens, sequence->n_prompt, sequence->ns,
                                 sequence->cache.priority, &sequence->draft.lease, NULL) != FIRN_OK) {
        sequence->draft.lease = NULL;
    }
}

static firn_status make_serial(const firni_draft_model *drafter, const firni_sequence *sequence, firn_cache **serial)
{
    if (sequence->draft.lease != NULL) {
        return firn_lease_lend(sequence->draft.lease, serial, NULL);
    }
    firn_status status = FIRN_OK;
    for (uint32_t layer = 0; layer < drafter->schema->n_layers && status == FIRN_OK; layer++) {
        status = firn_cache_make_empty(drafter->caches[layer], &serial[layer], NULL);
        if (status == FIRN_OK) {
            status = firn_cache_add_row(serial[layer], NULL);
        }
    }
    return status;
}

/* As the model's own join: into new caches, which take the running ones' place when all layers have succeeded. A
 * request that could not join is decoded plainly. */
static void join(firn_engine *engine, firni_sequence *sequence)
{
    firni_draft_model *drafter = engine->draft_model;
    const uint32_t n_layers = drafter->schema->n_layers;
    firn_cache **serial = firni_calloc(engine->env, n_layers, sizeof *serial);
    firn_cache **merged = firni_calloc(engine->env, n_layers, sizeof *merged);
    firn_status status = serial != NULL && merged != NULL ? make_serial(drafter, sequence, serial) : FIRN_ERR_NO_MEMORY;
    for (uint32_t layer = 0; layer < n_layers && status == FIRN_OK; layer++) {
        status = firn_cache_make_empty(drafter->caches[layer], &merged[layer], NULL);
        if (status == FIRN_OK) {
            const firn_cache *const sources[2] = { drafter->caches[layer], serial[layer] };
            status = firn_cache_merge_rows(merged[layer], sources, 2, NULL);
        }
    }
    if (status == FIRN_OK) {
        for (uint32_t layer = 0; layer < n_layers; layer++) {
            firn_cache *old = drafter->caches[layer];
            drafter->caches[layer] = merged[layer];
            merged[layer] = old;
        }
        drafter->rows[drafter->n_rows++] = sequence;
    }
    firni_caches_release(engine->env, serial, n_layers);
    firni_caches_release(engine->env, merged, n_layers);
}

void firni_draft_model_publish(firn_engine *engine, uint32_t row)
{
    const firni_draft_model *drafter = engine->draft_model;
    const firni_sequence *sequence = drafter->rows[row];
    const uint32_t n_read = firn_cache_row_tokens(drafter->caches[0], row);
    if (drafter->prefix != NULL && sequence->cache.store != FIRN_STORE_NONE) {
        firni_publish_row(engine->env, drafter->prefix, drafter->caches, drafter->schema->n_layers, row, sequence,
                          n_read);
    }
}

/* Ended requests go; what the drafter read of them stays in its tree. */
static void leave(firn_engine *engine)
{
    firni_draft_model *drafter = engine->draft_model;
    assert(!drafter->in_round);
    uint32_t n_keep = 0;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        if (drafter->rows[row]->state == FIRNI_SEQUENCE_ENDED) {
            firni_draft_model_publish(engine, row);
        } else {
            drafter->rows[n_keep] = drafter->rows[row];
            drafter->keep[n_keep++] = row;
        }
    }
    for (uint32_t layer = 0; n_keep < drafter->n_rows && layer < drafter->schema->n_layers; layer++) {
        const firn_status status = firn_cache_filter_rows(drafter->caches[layer], drafter->keep, n_keep, NULL);
        assert(status == FIRN_OK);
        (void)status;
    }
    drafter->n_rows = n_keep;
}

static firn_prefix *tree(const firn_engine *engine)
{
    return engine->draft_model->prefix;
}

const firni_draft_ops firni_draft_by_model = {
    .name = "model",
    .create = create,
    .destroy = destroy,
    .request_bytes = request_bytes,
    .unevictable_bytes = unevictable_bytes,
    .tree = tree,
    .look_up = look_up,
    .join = join,
    .read = firni_draft_model_read,
    .propose = firni_draft_model_propose,
    .settle = firni_draft_model_settle,
    .leave = leave,
};
