/*
 * Who may join the batch, and how: lookups for those that wait, the KV budget, lending and merging.
 *
 * Order is first come, first served, with one exception: a request whose tier read is still in flight does not hold up
 * those behind it. A request that does not fit in memory does: otherwise small ones could starve it. Memory is reserved
 * before the lookup, so that what is read for a waiting request is not taken from those that run.
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

uint64_t firni_shapes_bytes(firn_cache *const *shapes, uint32_t n_layers, uint32_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        bytes += firn_cache_projected_bytes(shapes[layer], tokens);
    }
    return bytes;
}

uint64_t firni_projected_bytes(const firn_engine *engine, uint32_t tokens)
{
    return firni_shapes_bytes(engine->shapes, engine->schema->n_layers, tokens);
}

/* What a generation checkpoint on its way to the tier keeps of a row that goes on meanwhile: its last block, its state,
 * and the window before it. */
static uint64_t generation_bytes(const firn_cache *shape, uint32_t tokens)
{
    const bool is_window = (firni_family_of(shape) & FIRNI_FAMILY_WINDOW) != 0;
    return is_window ? firn_cache_projected_bytes(shape, tokens)
                     : firn_cache_block_bytes(shape) + (uint64_t)firn_cache_fixed_bytes(shape);
}

uint64_t firni_request_bytes(const firn_engine *engine, uint32_t tokens)
{
    uint64_t bytes = firni_draft_request_bytes(engine, tokens);
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const firn_cache *shape = engine->shapes[layer];
        bytes += engine->options.checkpoint_tokens > 0 ? generation_bytes(shape, tokens) : 0;
        bytes += firn_cache_working_bytes(shape, tokens, engine->options.chunk_tokens_max);
        bytes += firni_published_bytes(engine, shape, tokens);
    }
    return bytes;
}

uint64_t firni_unevictable_bytes(const firn_prefix *prefix, uint64_t node_bytes)
{
    if (prefix == NULL) {
        return 0;
    }
    firn_prefix_stats stats;
    firn_prefix_get_stats(prefix, &stats);
    /* A store that is queued or running may hold a tail that the tree has let go of, for a longer one. */
    return stats.dirty_bytes + stats.pinned_bytes + stats.reading_bytes + stats.n_queued * node_bytes;
}

/* Bytes of the tree that eviction cannot free: what a lower tier has not stored yet, and the paths before it. */
static uint64_t unevictable_bytes(const firn_engine *engine)
{
    const uint64_t bytes = firni_unevictable_bytes(engine->prefix, firni_projected_bytes(engine, 1));
    return bytes + firni_draft_unevictable_bytes(engine);
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
    firni_started_drop(engine, sequence);
    firn_lease_release(sequence->lease);
    sequence->lease = NULL;
    engine->reserved_bytes -= sequence->reserved_bytes;
    firni_draft_release(sequence);
    firni_sequence_end(sequence, finish, NULL, NULL, 0, error);
    firni_intake_forget(engine, sequence);
}

void firni_started_drop(const firn_engine *engine, firni_sequence *sequence)
{
    if (sequence->started != NULL) {
        firni_destroy_caches(engine, sequence->started);
        sequence->started = NULL;
        firni_free(engine->env, sequence->first_logits);
        sequence->first_logits = NULL;
        sequence->n_cached = 0;
    }
}

/* A request whose stored tokens were the whole answer. */
static void end_replayed(firn_engine *engine, firni_sequence *sequence)
{
    engine->stats.n_finished++;
    firn_lease_release(sequence->lease);
    sequence->lease = NULL;
    engine->reserved_bytes -= sequence->reserved_bytes;
    firni_draft_release(sequence);
    firni_generation_end(engine, sequence);
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

void firni_caches_release(const firn_env *env, firn_cache **caches, uint32_t n_layers)
{
    for (uint32_t layer = 0; caches != NULL && layer < n_layers; layer++) {
        firn_cache_destroy(caches[layer]);
    }
    firni_free(env, caches);
}

void firni_destroy_caches(const firn_engine *engine, firn_cache **caches)
{
    firni_caches_release(engine->env, caches, engine->schema->n_layers);
}

/* Makes the sequence the last row of every layer's batch. Merging goes into new, empty caches, which take the place of
 * the running ones only when all layers have succeeded. */
static firn_status join(firn_engine *engine, firni_sequence *sequence, firn_error *err)
{
    const uint32_t n_layers = engine->schema->n_layers;
    const bool is_started = sequence->started != NULL;
    firn_cache **serial = is_started ? sequence->started : firni_calloc(engine->env, n_layers, sizeof *serial);
    sequence->started = NULL;
    firn_cache **merged = firni_calloc(engine->env, n_layers, sizeof *merged);
    firn_status status = FIRN_OK;
    if (serial == NULL || merged == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to join a batch of %u layers", n_layers);
    }
    if (status == FIRN_OK && !is_started) {
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
    if (sequence->lease != NULL || sequence->cache.no_read || engine->prefix == NULL) {
        return;
    }
    /* Without memory for a lease the prompt is computed in full: a benign failure. */
    if (firn_prefix_acquire_with(engine->prefix, sequence->tokens, sequence->n_tokens,
                                 firni_generation_namespace(sequence), sequence->cache.priority, &sequence->lease,
                                 NULL) != FIRN_OK) {
        sequence->lease = NULL;
        sequence->usage.cache.reason = FIRN_REASON_NO_MEMORY;
    }
}

/* Whether the request has its memory now. */
static bool reserve(firn_engine *engine, firni_sequence *sequence, uint64_t budget_bytes)
{
    if (sequence->reserved_bytes > 0) {
        return true;
    }
    const uint64_t need_bytes = firni_request_bytes(engine, sequence->n_prompt + sequence->max_tokens);
    if (engine->reserved_bytes + unevictable_bytes(engine) + need_bytes <= budget_bytes) {
        sequence->reserved_bytes = need_bytes;
        engine->reserved_bytes += need_bytes;
        return true;
    }
    if (engine->reserved_bytes == 0 && engine->prefix != NULL) {
        /* Nothing will end that would make room: unsaved tails, which are left to grow, must be stored for it. */
        (void)firn_prefix_make_room(engine->prefix, need_bytes);
    }
    return false;
}

/* The logits behind a prompt that was found whole. Without memory for them the last token is computed: not possible any
 * more with its state in the row, so the request fails as any other for which there is no memory. */
static firn_status take_first_logits(const firn_engine *engine, firni_sequence *sequence, firn_error *err)
{
    const float *logits = sequence->lease != NULL ? firn_lease_logits(sequence->lease) : NULL;
    if (logits == NULL || sequence->first_logits != NULL) {
        return FIRN_OK;
    }
    sequence->first_logits = firni_calloc(engine->env, engine->n_vocab, sizeof *sequence->first_logits);
    if (sequence->first_logits == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the logits of %u tokens", engine->n_vocab);
    }
    memcpy(sequence->first_logits, logits, engine->n_vocab * sizeof *logits);
    return FIRN_OK;
}

/* A row that went on early stands on what the read was to bring: it is of use only when exactly that has come. */
static void settle_started(firn_engine *engine, firni_sequence *sequence)
{
    if (sequence->started != NULL && sequence->usage.cache.n_tokens != sequence->n_start) {
        engine->stats.n_early_failed++;
        firni_started_drop(engine, sequence);
    }
}

/* A request that went on from a checkpoint found more than its prompt. */
static void clamp_to_prompt(firni_sequence *sequence)
{
    firn_lease_info *info = &sequence->usage.cache;
    if (info->n_tokens > sequence->n_prompt) {
        info->ram_tokens = info->ram_tokens < sequence->n_prompt ? info->ram_tokens : sequence->n_prompt;
        info->n_tokens = sequence->n_prompt;
        info->disk_tokens = info->n_tokens - info->ram_tokens;
        info->below_tokens = info->below_tokens < info->disk_tokens ? info->below_tokens : info->disk_tokens;
    }
}

static void admit_one(firn_engine *engine, firni_sequence *sequence)
{
    if (sequence->lease != NULL) {
        sequence->usage.cache = firn_lease_result(sequence->lease);
        settle_started(engine, sequence);
        clamp_to_prompt(sequence);
    } else if (sequence->cache.no_read || engine->prefix == NULL) {
        sequence->usage.cache.reason = FIRN_REASON_DISABLED;
    }
    firn_error error = { 0 };
    const uint32_t n_started = sequence->started != NULL ? sequence->n_cached - sequence->n_start : 0;
    firn_status status = take_first_logits(engine, sequence, &error);
    if (status == FIRN_OK) {
        status = join(engine, sequence, &error);
    }
    if (status != FIRN_OK) {
        end_unjoined(engine, sequence, FIRN_FINISH_ERROR, &error);
        return;
    }
    /* The row shares the blocks now: the promise is kept, whatever the tree evicts. */
    firn_lease_release(sequence->lease);
    sequence->lease = NULL;
    sequence->state = FIRNI_SEQUENCE_RUNNING;
    if (sequence->usage.cache.diverged) {
        sequence->branch_at = sequence->usage.cache.first_divergence / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS;
    }
    firni_draft_join(engine, sequence);
    engine->stats.prompt_tokens += sequence->n_prompt;
    const uint32_t n_found = sequence->n_cached - n_started;
    engine->stats.computed_prompt_tokens += sequence->n_prompt > n_found ? sequence->n_prompt - n_found : 0;
    if (n_started > 0) {
        /* All of its restore has been verified now: what it computed may be published. */
        sequence->prompt_logits = sequence->n_cached == sequence->n_prompt ? sequence->first_logits : NULL;
        firni_publish_progress(engine, engine->n_rows - 1, n_started);
    }
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
        firni_generation_replay(engine, sequence);
        if (sequence->state == FIRNI_SEQUENCE_ENDED) { /* what it had generated was all */
            forget_waiting(engine, link, previous);
            end_replayed(engine, sequence);
            continue;
        }
        memory_left = memory_left && n_ahead++ < engine->options.batch_rows_max &&
                      reserve(engine, sequence, pool.budget_bytes);
        if (memory_left) {
            look_up(engine, sequence);
            firni_draft_look_up(engine, sequence);
            if (engine->n_rows < engine->options.batch_rows_max) {
                firni_early_start(engine, sequence);
            }
            if (engine->n_rows < engine->options.batch_rows_max &&
                (sequence->lease == NULL || firn_lease_ready(sequence->lease)) && firni_draft_ready(sequence)) {
                forget_waiting(engine, link, previous);
                admit_one(engine, sequence);
                continue;
            }
        }
        previous = sequence;
        link = &sequence->next;
    }
}
