/*
 * One step of the engine: plan, forward, sample, publish, leave.
 *
 *   0. answer  rows whose prompt was found whole choose their first token from the logits that were kept
 *   1. plan    what each row brings: step_plan.c
 *   2. room    clean tree nodes are evicted until the step's new blocks fit
 *   3. forward all rows, packed, no padding
 *   4. sample  rows whose last token was forwarded choose the next one; guesses that did not hold are rolled back
 *   5. publish prompts that have been read go into the tree
 *   6. leave   ended rows are published into the tree and filtered out of every layer
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

/* Takes the rows whose sequence has ended out of the batch. */
static void remove_ended(firn_engine *engine)
{
    uint32_t n_keep = 0;
    firni_draft_leave(engine);
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        if (engine->rows[row]->state == FIRNI_SEQUENCE_ENDED) {
            firni_publish(engine, row);
            firni_session_note(engine, engine->rows[row]);
            firni_generation_end(engine, engine->rows[row]);
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

/* New blocks, and copies of a shared tail and state. What a window lets go of was let go of at the end of the last
 * step. */
uint64_t firni_row_need_bytes(const firn_cache *cache, uint32_t before, uint32_t count)
{
    const uint32_t n_before = before / FIRN_BLOCK_TOKENS + (before % FIRN_BLOCK_TOKENS != 0);
    const uint32_t after = before + count;
    const uint32_t n_after = after / FIRN_BLOCK_TOKENS + (after % FIRN_BLOCK_TOKENS != 0);
    const uint32_t n_copied = before % FIRN_BLOCK_TOKENS != 0 ? 1 : 0;
    firn_cache *const *parts;
    if (firn_cache_composed(cache, &parts) > 0) {
        /* Its parts have blocks of other sizes, and the step may have to fill all of those of another one. */
        return firn_cache_working_bytes(cache, after, count) - firn_cache_projected_bytes(cache, before);
    }
    return (uint64_t)(n_after - n_before + n_copied) * firn_cache_block_bytes(cache) + firn_cache_fixed_bytes(cache);
}

static uint64_t step_need_bytes(const firn_engine *engine)
{
    uint64_t need_bytes = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        for (uint32_t layer = 0; layer < engine->schema->n_layers && engine->step_counts[row] > 0; layer++) {
            need_bytes +=
                firni_row_need_bytes(engine->caches[layer], engine->rows[row]->n_cached, engine->step_counts[row]);
        }
    }
    return need_bytes;
}

/* Evicts from the tree that has more of its budget first; `need_bytes` is of the pool that both share. */
static bool evict(firn_engine *engine, uint64_t need_bytes)
{
    firn_prefix *const draft_tree = firni_draft_tree(engine);
    if (draft_tree == NULL) {
        return firn_prefix_make_room(engine->prefix, need_bytes);
    }
    firn_prefix_stats own, draft;
    firn_prefix_get_stats(engine->prefix, &own);
    firn_prefix_get_stats(draft_tree, &draft);
    const bool draft_first = (double)draft.held_bytes * (double)own.budget_bytes >
                             (double)own.held_bytes * (double)draft.budget_bytes;
    return firn_prefix_make_room(draft_first ? draft_tree : engine->prefix, need_bytes) ||
           firn_prefix_make_room(draft_first ? engine->prefix : draft_tree, need_bytes);
}

void firni_make_room(firn_engine *engine, uint64_t need_bytes)
{
    if (engine->prefix == NULL || firn_pool_room(engine->options.pool) >= need_bytes || evict(engine, need_bytes)) {
        return;
    }
    /* What waiting requests were promised is given up before a running one is: they look it up again at their turn. */
    for (firni_sequence *sequence = engine->waiting_head; sequence != NULL; sequence = sequence->next) {
        firni_started_drop(engine, sequence);
        firn_lease_release(sequence->lease);
        sequence->lease = NULL;
        firni_draft_release(sequence);
    }
    (void)evict(engine, need_bytes);
}

static firn_status forward(firn_engine *engine, firn_error *err)
{
    const firn_forward_input input = {
        .tokens = engine->step_tokens,
        .counts = engine->step_counts,
        .n_rows = engine->n_rows,
        .caches = engine->caches,
        .want_logits = engine->step_wanted,
        .logits = engine->step_logits,
    };
    return firn_model_forward(engine->options.model, &input, err);
}

/* Whether the row was forwarded up to its last token, or up to its last guess. */
static bool has_caught_up(const firn_engine *engine, uint32_t row)
{
    const firni_sequence *sequence = engine->rows[row];
    return engine->step_counts[row] > 0 && sequence->n_cached == sequence->n_tokens;
}

/* Advances all rows by what was forwarded without guesses, and chooses for those that have none. */
static void advance(firn_engine *engine, uint64_t forward_ns)
{
    const float *logits = engine->step_logits;
    uint32_t n_choices = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        const uint32_t n_guesses = sequence->draft.n_proposed;
        const uint32_t before = sequence->n_cached;
        sequence->n_cached += engine->step_counts[row] - n_guesses;
        engine->step_kept[row] = sequence->n_cached - before;
        if (engine->step_counts[row] > 0 && before < sequence->n_prompt) {
            sequence->usage.prefill_ns += forward_ns;
        }
        if (!has_caught_up(engine, row)) {
            continue;
        }
        sequence->prompt_logits = before < sequence->n_prompt ? logits : NULL;
        if (!sequence->only_prefill && n_guesses == 0) {
            engine->step_choices[n_choices++] = (firni_choice){ .sequence = sequence, .logits = logits };
        }
        logits += (size_t)(1 + n_guesses) * engine->n_vocab;
    }
    firni_choose(engine, n_choices);
}

/* Rows whose last token was forwarded get the next, in their order; one that only reads ends once it has been put and
 * pinned. */
static void sample(firn_engine *engine, uint64_t forward_ns)
{
    advance(engine, forward_ns);
    const float *logits = engine->step_logits;
    const firni_choice *choice = engine->step_choices;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        const uint32_t n_guesses = sequence->draft.n_proposed;
        const uint32_t before = sequence->n_cached;
        if (!has_caught_up(engine, row)) {
            continue;
        }
        if (!sequence->only_prefill) {
            firni_verify_row(engine, sequence, logits, n_guesses == 0 ? choice++ : NULL);
            engine->step_kept[row] += sequence->n_cached - before;
        }
        logits += (size_t)(1 + n_guesses) * engine->n_vocab;
    }
}

/* Whether this step read the last of the row's prompt. */
static bool has_read_prompt(const firn_engine *engine, uint32_t row)
{
    const firni_sequence *sequence = engine->rows[row];
    const uint32_t before = sequence->n_cached - engine->step_kept[row];
    return before < sequence->n_prompt && sequence->n_cached >= sequence->n_prompt;
}

/* Outside of the round: a change of precision sees only tokens that stay. */
static void end_maintenance(firn_engine *engine)
{
    uint32_t n_read = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        if (has_read_prompt(engine, row)) {
            engine->step_keep[n_read++] = row;
        }
    }
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        if (n_read > 0) {
            (void)firn_cache_prefill_commit(engine->caches[layer], engine->step_keep, n_read, NULL);
        }
        (void)firn_cache_prefill_end(engine->caches[layer], NULL);
    }
}

/* A request that only reads has read all of it: its state goes into the tree, and is pinned there. */
static void end_prefill(firn_engine *engine, uint32_t row)
{
    firni_sequence *sequence = engine->rows[row];
    firn_error error = { 0 };
    firn_status status = FIRN_OK;
    firni_publish(engine, row);
    if (sequence->pin != NULL && engine->prefix == NULL) {
        status = firni_fail(&error, FIRN_ERR_UNSUPPORTED, "there is no cache to pin \"%.60s\" in", sequence->pin);
    } else if (sequence->pin != NULL) {
        status = firn_prefix_pin(engine->prefix, sequence->pin, sequence->tokens, sequence->n_prompt, sequence->ns,
                                 sequence->pin_until_wall_ns, &error);
    }
    engine->stats.n_finished += status == FIRN_OK;
    engine->stats.n_failed += status != FIRN_OK;
    firni_sequence_end(sequence, status == FIRN_OK ? FIRN_FINISH_LENGTH : FIRN_FINISH_ERROR, NULL, NULL, 0,
                       status == FIRN_OK ? NULL : &error);
}

/* Others with the same beginning need not wait for a request's end. */
static void publish_progress(firn_engine *engine)
{
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        firni_publish_progress(engine, row, engine->step_kept[row]);
        if (sequence->only_prefill && sequence->n_cached == sequence->n_tokens) {
            end_prefill(engine, row);
        } else if (sequence->state == FIRNI_SEQUENCE_RUNNING) {
            firni_generation_progress(engine, row);
        }
    }
}

/* Plan to forward, once. Nothing has advanced when it fails. */
static firn_status try_step(firn_engine *engine, bool in_round, uint64_t *forward_ns, firn_error *err)
{
    firni_step_plan(engine);
    firni_make_room(engine, step_need_bytes(engine));
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        (void)firn_cache_prefill_begin(engine->caches[layer], NULL);
    }
    const uint64_t begin_ns = firni_now_ns(engine->env);
    const firn_status status = forward(engine, err);
    *forward_ns = firni_now_ns(engine->env) - begin_ns;
    if (status == FIRN_OK) {
        sample(engine, *forward_ns);
        engine->heard_ns = firni_now_ns(engine->env);
    } else {
        memset(engine->step_kept, 0, engine->n_rows * sizeof *engine->step_kept);
        memset(engine->step_counts, 0, engine->n_rows * sizeof *engine->step_counts);
    }
    if (in_round) {
        firni_round_close(engine);
    }
    end_maintenance(engine);
    return status;
}

/* Whether all rows are past their prompts: only such steps can be compared. */
static bool only_generates(const firn_engine *engine)
{
    bool only = true;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        only = only && engine->rows[row]->n_cached >= engine->rows[row]->n_prompt;
    }
    return only;
}

/* Rows whose next token needs no forward. Some may end with it. */
static void answer_known(firn_engine *engine)
{
    bool any = false;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        if (sequence->first_logits != NULL) {
            assert(sequence->n_cached == sequence->n_tokens && sequence->draft.n_proposed == 0);
            if (sequence->only_prefill) {
                end_prefill(engine, row); /* nothing was left to read; its pin is still to be set */
            } else {
                firni_verify_row(engine, sequence, sequence->first_logits, NULL);
            }
            firni_free(engine->env, sequence->first_logits);
            sequence->first_logits = NULL;
            any = true;
        }
    }
    if (any) {
        engine->heard_ns = firni_now_ns(engine->env);
        remove_ended(engine);
    }
}

/* What reading prompts takes, for the decision whether restoring is faster. Few tokens say little: they cost a forward
 * nearly as much as many do. */
static void learn_compute(firn_engine *engine, uint64_t forward_ns)
{
    enum { TOKENS_MIN = 16 };
    uint32_t n_tokens = 0, n_reading = 0, depth = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t before = sequence->n_cached - engine->step_kept[row];
        n_tokens += engine->step_counts[row];
        if (before < sequence->n_prompt && engine->step_counts[row] > n_reading) {
            n_reading = engine->step_counts[row];
            depth = before + n_reading / 2;
        }
    }
    if (n_reading >= TOKENS_MIN && engine->prefix != NULL) {
        firn_prefix_learn_compute(engine->prefix, n_tokens, depth, forward_ns);
    }
}

bool firni_step(firn_engine *engine)
{
    if (engine->n_rows == 0) {
        return false;
    }
    answer_known(engine);
    if (engine->n_rows == 0) {
        return true;
    }
    uint64_t forward_ns = 0;
    firn_error error = { 0 };
    const uint64_t begin_ns = firni_now_ns(engine->env);
    const uint64_t n_before = engine->stats.generated_tokens;
    const uint32_t n_decoding = firni_step_decoding_rows(engine);
    const bool is_comparable = engine->draft_ops != NULL && only_generates(engine);
    bool in_round = firni_draft_propose(engine) && firni_round_open(engine);
    firn_status status = try_step(engine, in_round, &forward_ns, &error);
    if (status != FIRN_OK && in_round) {
        /* What there is no room for may be the guesses. */
        firni_round_drop_guesses(engine);
        in_round = false;
        status = try_step(engine, in_round, &forward_ns, &error);
    }
    firni_draft_settle(engine);
    if (status == FIRN_OK && is_comparable) {
        firni_draft_gate_learn(&engine->draft_gate, engine->n_rows, in_round, firni_now_ns(engine->env) - begin_ns,
                               engine->stats.generated_tokens - n_before);
    }
    if (status == FIRN_OK) {
        engine->stats.n_steps++;
        engine->stats.step_ns_total += forward_ns;
        learn_compute(engine, forward_ns);
        firni_step_learn(engine, n_decoding, firni_now_ns(engine->env) - begin_ns);
        publish_progress(engine);
    } else {
        /* No row has advanced. The newest gives way, so that those before it can go on. */
        firni_sequence *newest = engine->rows[engine->n_rows - 1];
        firni_log(engine->env, FIRN_LOG_ERROR, "request %llu failed: %s", (unsigned long long)newest->id,
                  error.message);
        engine->stats.n_failed++;
        firni_sequence_end(newest, FIRN_FINISH_ERROR, NULL, NULL, 0, &error);
    }
    remove_ended(engine);
    return true;
}
