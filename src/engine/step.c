/*
 * One step of the engine: plan, forward, sample, publish, leave.
 *
 *   1. plan    a decode row brings one token; rows still reading their prompt share the chunk budget evenly
 *   2. room    clean tree nodes are evicted until the step's new blocks fit
 *   3. forward all rows, packed, no padding
 *   4. sample  rows whose last token was forwarded choose the next one
 *   5. leave   ended rows are published into the tree and filtered out of every layer
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

/* Takes the rows whose sequence has ended out of the batch. */
static void remove_ended(firn_engine *engine)
{
    uint32_t n_keep = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        if (engine->rows[row]->state == FIRNI_SEQUENCE_ENDED) {
            firni_publish(engine, row);
        } else {
            engine->step_keep[n_keep++] = row;
        }
    }
    if (n_keep == engine->n_rows) {
        return;
    }
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const firn_status status = firn_cache_filter_rows(engine->caches[layer], engine->step_keep, n_keep, NULL);
        assert(status == FIRN_OK);
        (void)status;
    }
    uint32_t n_kept = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        if (sequence->state == FIRNI_SEQUENCE_ENDED) {
            engine->reserved_bytes -= sequence->reserved_bytes;
            firni_intake_forget(engine, sequence);
        } else {
            engine->rows[n_kept++] = sequence;
        }
    }
    assert(n_kept == n_keep);
    engine->n_rows = n_kept;
}

void firni_drop_cancelled(firn_engine *engine)
{
    bool any = false;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        if (atomic_load(&sequence->cancelled)) {
            engine->stats.n_cancelled++;
            firni_sequence_end(sequence, FIRN_FINISH_CANCELLED, NULL, NULL, 0, NULL);
            any = true;
        }
    }
    if (any) {
        remove_ended(engine);
    }
}

/* Fills step_counts, step_tokens and step_wanted; returns the number of tokens. */
static uint32_t plan(firn_engine *engine, uint32_t *n_wanted)
{
    uint32_t limit = engine->options.chunk_tokens_max;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const uint32_t layer_limit = firn_cache_max_append_tokens(engine->caches[layer]);
        limit = layer_limit < limit ? layer_limit : limit;
    }
    uint32_t n_reading = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        n_reading += sequence->n_tokens - sequence->n_cached > 1;
    }
    /* Even shares, in order; what a short prompt leaves over goes to those behind it. */
    uint32_t budget = engine->options.chunk_tokens_max;
    uint32_t n_step = 0;
    *n_wanted = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t n_left = sequence->n_tokens - sequence->n_cached;
        assert(n_left >= 1);
        uint32_t count = n_left;
        if (n_left > 1) {
            const uint32_t share = budget / n_reading > 0 ? budget / n_reading : budget > 0;
            count = n_left < share ? n_left : share;
            count = firni_publish_chunk(engine, sequence, count < limit ? count : limit);
            budget -= count;
            n_reading--;
        }
        memcpy(engine->step_tokens + n_step, sequence->tokens + sequence->n_cached, count * sizeof(firn_token));
        memset(engine->step_wanted + n_step, 0, count);
        if (count == n_left) {
            engine->step_wanted[n_step + count - 1] = 1;
            *n_wanted += 1;
        }
        engine->step_counts[row] = count;
        n_step += count;
    }
    return n_step;
}

/* Bytes that this step may allocate in one layer for one row: new blocks, and copies of a shared tail and state. What a
 * window lets go of was let go of at the end of the last step. */
static uint64_t row_need_bytes(const firn_cache *cache, uint32_t before, uint32_t count)
{
    const uint32_t n_before = before / FIRN_BLOCK_TOKENS + (before % FIRN_BLOCK_TOKENS != 0);
    const uint32_t after = before + count;
    const uint32_t n_after = after / FIRN_BLOCK_TOKENS + (after % FIRN_BLOCK_TOKENS != 0);
    const uint32_t n_copied = before % FIRN_BLOCK_TOKENS != 0 ? 1 : 0;
    return (uint64_t)(n_after - n_before + n_copied) * firn_cache_block_bytes(cache) + firn_cache_fixed_bytes(cache);
}

static uint64_t step_need_bytes(const firn_engine *engine)
{
    uint64_t need_bytes = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        for (uint32_t layer = 0; layer < engine->schema->n_layers && engine->step_counts[row] > 0; layer++) {
            need_bytes += row_need_bytes(engine->caches[layer], engine->rows[row]->n_cached, engine->step_counts[row]);
        }
    }
    return need_bytes;
}

static void make_room(firn_engine *engine)
{
    if (engine->prefix == NULL) {
        return;
    }
    const uint64_t need_bytes = step_need_bytes(engine);
    if (firn_prefix_make_room(engine->prefix, need_bytes)) {
        return;
    }
    /* What waiting requests were promised is given up before a running one is: they look it up again at their turn. */
    for (firni_sequence *sequence = engine->waiting_head; sequence != NULL; sequence = sequence->next) {
        firn_lease_release(sequence->lease);
        sequence->lease = NULL;
    }
    (void)firn_prefix_make_room(engine->prefix, need_bytes);
}

static firn_status forward(firn_engine *engine, firn_error *err)
{
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        (void)firn_cache_prefill_begin(engine->caches[layer], NULL);
    }
    const firn_forward_input input = {
        .tokens = engine->step_tokens,
        .counts = engine->step_counts,
        .n_rows = engine->n_rows,
        .caches = engine->caches,
        .want_logits = engine->step_wanted,
        .logits = engine->step_logits,
    };
    const firn_status status = firn_model_forward(engine->options.model, &input, err);
    uint32_t n_ended = 0;
    for (uint32_t row = 0; row < engine->n_rows && status == FIRN_OK; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t after = sequence->n_cached + engine->step_counts[row];
        if (sequence->n_cached < sequence->n_prompt && after >= sequence->n_prompt) {
            engine->step_keep[n_ended++] = row;
        }
    }
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        if (n_ended > 0) {
            (void)firn_cache_prefill_commit(engine->caches[layer], engine->step_keep, n_ended, NULL);
        }
        (void)firn_cache_prefill_end(engine->caches[layer], NULL);
    }
    return status;
}

static void sample(firn_engine *engine, uint64_t forward_ns)
{
    const firn_tokenizer *tokenizer = firn_model_tokenizer(engine->options.model);
    const float *logits = engine->step_logits;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        if (engine->step_counts[row] == 0) {
            continue;
        }
        const bool was_prompt = sequence->n_cached < sequence->n_prompt;
        sequence->n_cached += engine->step_counts[row];
        if (was_prompt) {
            sequence->usage.prefill_ns += forward_ns;
        }
        /* Others with the same beginning need not wait for this request's end. */
        firni_publish_progress(engine, row, engine->step_counts[row]);
        if (sequence->n_cached < sequence->n_tokens) {
            continue;
        }
        const firn_token token = firn_sampler_choose(sequence->sampler, logits);
        firni_sequence_take_token(sequence, token, logits, engine->n_vocab, tokenizer);
        logits += engine->n_vocab;
        engine->stats.generated_tokens++;
        engine->stats.n_finished += sequence->state == FIRNI_SEQUENCE_ENDED;
    }
}

bool firni_step(firn_engine *engine)
{
    if (engine->n_rows == 0) {
        return false;
    }
    uint32_t n_wanted;
    (void)plan(engine, &n_wanted);
    make_room(engine);
    const uint64_t begin_ns = firni_now_ns(engine->env);
    firn_error error = { 0 };
    if (forward(engine, &error) == FIRN_OK) {
        const uint64_t forward_ns = firni_now_ns(engine->env) - begin_ns;
        engine->stats.n_steps++;
        engine->stats.step_ns_total += forward_ns;
        sample(engine, forward_ns);
    } else {
        /* No row has advanced. The newest gives way, so that those before it can go on. */
        firni_sequence *newest = engine->rows[engine->n_rows - 1];
        firni_log(engine->env, FIRN_LOG_ERROR, "request %llu failed: %s", (unsigned long long)newest->id, error.message);
        engine->stats.n_failed++;
        firni_sequence_end(newest, FIRN_FINISH_ERROR, NULL, NULL, 0, &error);
    }
    remove_ended(engine);
    return true;
}
