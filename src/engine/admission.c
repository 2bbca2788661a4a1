/*
 * Who may join the batch, and how: lookups for those that wait, the KV budget, lending and merging.
 *
 * Order is first come, first served, with one exception: a request whose tier read is still in flight does not hold up
 * those behind it. A request that does not fit in memory does: otherwise small ones could starve it.
 */
#include <assert.h>

#include "engine/engine_impl.h"

uint64_t firni_projected_bytes(const firn_engine *engine, uint32_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        bytes += firn_cache_projected_bytes(engine->caches[layer], tokens);
    }
    return bytes;
}

uint64_t firni_request_bytes(const firn_engine *engine, uint32_t tokens)
{
    const uint64_t tail_copy_bytes = engine->prefix != NULL ? firni_projected_bytes(engine, 1) : 0;
    return firni_projected_bytes(engine, tokens) + tail_copy_bytes;
}

/* Bytes of the tree that eviction cannot free: nodes that a lower tier has not stored yet. */
static uint64_t unevictable_bytes(const firn_engine *engine)
{
    if (engine->prefix == NULL || engine->options.tier == NULL) {
        return 0;
    }
    firn_prefix_stats stats;
    firn_prefix_get_stats(engine->prefix, &stats);
    return stats.n_dirty * firni_projected_bytes(engine, 1);
}

static void forget_waiting(firn_engine *engine, firni_sequence **link, firni_sequence *previous)
{
    firni_sequence *sequence = *link;
    *link = sequence->next;
    sequence->next = NULL;
    if (engine->waiting_tail == sequence) {
        engine->waiting_tail = previous;
    }
    (void)pthread_mutex_lock(&engine->mutex);
    assert(engine->n_pending > 0);
    engine->n_pending--;
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void end_unjoined(firn_engine *engine, firni_sequence *sequence, firn_finish finish, const firn_error *error)
{
    if (finish == FIRN_FINISH_CANCELLED) {
        engine->stats.n_cancelled++;
    } else {
        engine->stats.n_failed++;
    }
    firn_lease_release(sequence->lease);
    sequence->lease = NULL;
    firni_sequence_end(sequence, finish, NULL, NULL, 0, error);
    firni_intake_forget(engine, sequence);
}

/* Serial caches for a row that starts empty. */
static firn_status make_fresh_caches(const firn_engine *engine, firn_cache **serial, firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t layer = 0; layer < engine->schema->n_layers && status == FIRN_OK; layer++) {
        status = firn_cache_make_empty(engine->caches[layer], &serial[layer], err);
        if (status == FIRN_OK) {
            status = firn_cache_add_row(serial[layer], err);
        }
    }
    return status;
}

void firni_destroy_caches(const firn_engine *engine, firn_cache **caches)
{
    for (uint32_t layer = 0; caches != NULL && layer < engine->schema->n_layers; layer++) {
        firn_cache_destroy(caches[layer]);
    }
    firni_free(engine->env, caches);
}

/* Makes the sequence the last row of every layer's batch. Merging goes into new, empty caches, which take the place of
 * the running ones only when all layers have succeeded. */
static firn_status join(firn_engine *engine, firni_sequence *sequence, firn_error *err)
{
    const uint32_t n_layers = engine->schema->n_layers;
    firn_cache **serial = firni_calloc(engine->env, n_layers, sizeof *serial);
    firn_cache **merged = firni_calloc(engine->env, n_layers, sizeof *merged);
    firn_status status = FIRN_OK;
    if (serial == NULL || merged == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to join a batch of %u layers", n_layers);
    }
    if (status == FIRN_OK) {
        status = sequence->lease != NULL ? firn_lease_lend(sequence->lease, serial, err)
                                         : make_fresh_caches(engine, serial, err);
    }
    for (uint32_t layer = 0; layer < n_layers && status == FIRN_OK; layer++) {
        status = firn_cache_make_empty(engine->caches[layer], &merged[layer], err);
        if (status == FIRN_OK) {
            const firn_cache *const sources[2] = { engine->caches[layer], serial[layer] };
            status = firn_cache_merge_rows(merged[layer], sources, 2, err);
        }
    }
    if (status == FIRN_OK) {
        sequence->n_cached = firn_cache_row_tokens(serial[0], 0);
        for (uint32_t layer = 0; layer < n_layers; layer++) {
            assert(firn_cache_row_tokens(merged[layer], engine->n_rows) == sequence->n_cached);
            firn_cache *old = engine->caches[layer];
            engine->caches[layer] = merged[layer];
            merged[layer] = old;
        }
        engine->rows[engine->n_rows++] = sequence;
    }
    firni_destroy_caches(engine, serial);
    firni_destroy_caches(engine, merged);
    return status;
}

/* Starts the lookup of a waiting request, so that a tier read runs before its turn comes. */
static void look_up(firn_engine *engine, firni_sequence *sequence)
{
    if (sequence->lease != NULL || sequence->no_cache || engine->prefix == NULL) {
        return;
    }
    /* Without memory for a lease the prompt is computed in full: a benign failure. */
    if (firn_prefix_acquire(engine->prefix, sequence->tokens, sequence->n_prompt, sequence->ns, &sequence->lease, NULL) !=
        FIRN_OK) {
        sequence->lease = NULL;
        sequence->usage.cache.reason = FIRN_REASON_NO_MEMORY;
    }
}

static void admit_one(firn_engine *engine, firni_sequence *sequence, uint64_t need_bytes)
{
    if (sequence->lease != NULL) {
        sequence->usage.cache = firn_lease_result(sequence->lease);
    } else if (sequence->no_cache || engine->prefix == NULL) {
        sequence->usage.cache.reason = FIRN_REASON_DISABLED;
    }
    firn_error error = { 0 };
    const firn_status status = join(engine, sequence, &error);
    if (status != FIRN_OK) {
        end_unjoined(engine, sequence, FIRN_FINISH_ERROR, &error);
        return;
    }
    /* The row shares the blocks now: the promise is kept, whatever the tree evicts. */
    firn_lease_release(sequence->lease);
    sequence->lease = NULL;
    sequence->state = FIRNI_SEQUENCE_RUNNING;
    sequence->reserved_bytes = need_bytes;
    engine->reserved_bytes += need_bytes;
    engine->stats.prompt_tokens += sequence->n_prompt;
    engine->stats.computed_prompt_tokens += sequence->n_prompt - sequence->n_cached;
}

void firni_admit(firn_engine *engine)
{
    firn_pool_stats pool;
    firn_pool_get_stats(engine->options.pool, &pool);
    bool memory_left = true;
    uint32_t n_ahead = 0;
    firni_sequence *previous = NULL;
    firni_sequence **link = &engine->waiting_head;
    while (*link != NULL) {
        firni_sequence *sequence = *link;
        if (atomic_load(&sequence->cancelled)) {
            forget_waiting(engine, link, previous);
            end_unjoined(engine, sequence, FIRN_FINISH_CANCELLED, NULL);
            continue;
        }
        if (n_ahead < engine->options.batch_rows_max) {
            look_up(engine, sequence);
        }
        n_ahead++;
        const bool ready = sequence->lease == NULL || firn_lease_ready(sequence->lease);
        if (ready && memory_left && engine->n_rows < engine->options.batch_rows_max) {
            const uint64_t need_bytes = firni_request_bytes(engine, sequence->n_prompt + sequence->max_tokens);
            if (engine->reserved_bytes + unevictable_bytes(engine) + need_bytes <= pool.budget_bytes) {
                forget_waiting(engine, link, previous);
                admit_one(engine, sequence, need_bytes);
                continue;
            }
            memory_left = false;
        }
        previous = sequence;
        link = &sequence->next;
    }
}
