/*
 * A model with one row of state. Owns everything it opens.
 */
#include <stdlib.h>

#include "base/base_impl.h"
#include "cmd/single_row.h"

firn_status firni_single_row_open(firni_single_row *row, const firn_model_options *options, uint32_t n_threads,
                                  const firn_env *env, firn_error *err)
{
    *row = (firni_single_row){ .env = env };
    const firn_pool_options pool_options = { .budget_bytes = UINT64_MAX / 2 };
    firn_status status = firn_workers_create(n_threads, env, &row->workers, err);
    if (status == FIRN_OK) {
        firn_model_options complete = *options;
        complete.workers = row->workers;
        complete.max_rows = 1;
        status = firn_model_open(&complete, env, &row->model, err);
    }
    if (status == FIRN_OK) {
        status = firn_pool_create(&pool_options, env, &row->pool, err);
    }
    if (status == FIRN_OK) {
        row->caches = calloc(firn_model_schema(row->model)->n_layers, sizeof(firn_cache *));
        status = row->caches != NULL ? firni_single_row_restart(row, err)
                                     : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the caches");
    }
    return status;
}

firn_status firni_single_row_restart(firni_single_row *row, firn_error *err)
{
    const firn_schema *schema = firn_model_schema(row->model);
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < schema->n_layers && status == FIRN_OK; i++) {
        if (row->caches[i] == NULL) {
            status = firn_cache_create(&schema->layers[i], row->pool, row->env, &row->caches[i], err);
        } else {
            status = firn_cache_filter_rows(row->caches[i], NULL, 0, err);
        }
        if (status == FIRN_OK) {
            status = firn_cache_add_row(row->caches[i], err);
        }
    }
    return status;
}

/* Up to where a layer changes precision. */
static uint32_t max_append(const firni_single_row *row)
{
    uint32_t n_max = FIRN_TOKENS_UNLIMITED;
    for (uint32_t i = 0; i < firn_model_schema(row->model)->n_layers; i++) {
        const uint32_t n_layer = firn_cache_max_append_tokens(row->caches[i]);
        n_max = n_layer < n_max ? n_layer : n_max;
    }
    return n_max;
}

firn_status firni_single_row_forward(firni_single_row *row, const firn_token *tokens, uint32_t n_tokens,
                                     const uint8_t *want, float *logits, firn_error *err)
{
    const uint32_t n_vocab = firn_model_get_info(row->model)->n_vocab;
    firn_status status = FIRN_OK;
    while (n_tokens > 0 && status == FIRN_OK) {
        const uint32_t n_max = max_append(row);
        const uint32_t count = n_tokens < n_max ? n_tokens : n_max;
        const firn_forward_input input = {
            .tokens = tokens,
            .counts = &count,
            .n_rows = 1,
            .caches = row->caches,
            .want_logits = want,
            .logits = logits,
        };
        status = firn_model_forward(row->model, &input, err);
        logits += (size_t)count * n_vocab;
        tokens += count;
        n_tokens -= count;
    }
    return status;
}

void firni_single_row_close(firni_single_row *row)
{
    for (uint32_t i = 0; row->caches != NULL && i < firn_model_schema(row->model)->n_layers; i++) {
        firn_cache_destroy(row->caches[i]);
    }
    free(row->caches);
    if (row->pool != NULL) {
        firn_pool_destroy(row->pool);
    }
    firn_model_close(row->model);
    firn_workers_destroy(row->workers);
    *row = (firni_single_row){ .env = NULL };
}
