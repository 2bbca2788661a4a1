/*
 * Who may guess, and how much. Knows nothing of how guesses are made or verified.
 *
 * A guess costs part of a token's forward and saves all of one when it holds. Rows differ, and each changes as it goes,
 * so each learns for itself: the number of guesses doubles when all held, becomes one more than what held otherwise,
 * and a row whose guesses fail altogether sits out steps, twice as many after each failure. What a text gives away is
 * found within a few tokens, and a text that gives nothing away costs little.
 */
#include <assert.h>

#include "engine/engine_impl.h"

enum {
    LENGTH_FIRST = 4,       /* guesses of a row that nothing is known of */
    STEP_GUESSES_MAX = 128, /* of all rows together: by then a step is busy enough without more */
    PAUSE_DOUBLINGS_MAX = 5,
    PAUSE_MAX = 31          /* steps: one less than 2 to the doublings */
};

uint32_t firni_draft_step_max(const firn_engine *engine)
{
    if (engine->draft_ops == NULL) {
        return 0;
    }
    const uint32_t n_all = engine->options.batch_rows_max * engine->options.draft_tokens_max;
    return n_all < STEP_GUESSES_MAX ? n_all : STEP_GUESSES_MAX;
}

/* ---- what a source without state need not answer ---- */

uint64_t firni_draft_request_bytes(const firn_engine *engine, uint32_t tokens)
{
    const firni_draft_ops *ops = engine->draft_ops;
    return ops != NULL && ops->request_bytes != NULL ? ops->request_bytes(engine, tokens) : 0;
}

uint64_t firni_draft_unevictable_bytes(const firn_engine *engine)
{
    const firni_draft_ops *ops = engine->draft_ops;
    return ops != NULL && ops->unevictable_bytes != NULL ? ops->unevictable_bytes(engine) : 0;
}

firn_prefix *firni_draft_tree(const firn_engine *engine)
{
    const firni_draft_ops *ops = engine->draft_ops;
    return ops != NULL && ops->tree != NULL ? ops->tree(engine) : NULL;
}

void firni_draft_look_up(firn_engine *engine, firni_sequence *sequence)
{
    const firni_draft_ops *ops = engine->draft_ops;
    if (ops != NULL && ops->look_up != NULL) {
        ops->look_up(engine, sequence);
    }
}

bool firni_draft_ready(firni_sequence *sequence)
{
    return sequence->draft.lease == NULL || firn_lease_ready(sequence->draft.lease);
}

void firni_draft_release(firni_sequence *sequence)
{
    firn_lease_release(sequence->draft.lease);
    sequence->draft.lease = NULL;
}

void firni_draft_join(firn_engine *engine, firni_sequence *sequence)
{
    const firni_draft_ops *ops = engine->draft_ops;
    const uint32_t most = engine->options.draft_tokens_max;
    sequence->draft.length = most < LENGTH_FIRST ? most : LENGTH_FIRST;
    if (ops != NULL && ops->join != NULL) {
        ops->join(engine, sequence);
    }
    firni_draft_release(sequence);
}

void firni_draft_settle(firn_engine *engine)
{
    const firni_draft_ops *ops = engine->draft_ops;
    if (ops != NULL && ops->settle != NULL) {
        ops->settle(engine);
    }
}

void firni_draft_leave(firn_engine *engine)
{
    const firni_draft_ops *ops = engine->draft_ops;
    if (ops != NULL && ops->leave != NULL) {
        ops->leave(engine);
    }
}

/* ---- how many guesses ---- */

/* How many guesses the row can make use of: never more than what may still be generated after the next token, so that
 * guesses stay within the row's own array and within the bytes that were reserved for it. */
static uint32_t useful_guesses(const firni_sequence *sequence)
{
    const uint32_t n_left = sequence->max_tokens - sequence->usage.completion_tokens;
    assert(n_left >= 1); /* or the row would have ended */
    return sequence->draft.length < n_left - 1 ? sequence->draft.length : n_left - 1;
}

/* Only rows that are generating guess: a prompt is known. */
static bool is_generating(const firni_sequence *sequence)
{
    return sequence->n_cached >= sequence->n_prompt && sequence->n_tokens - sequence->n_cached == 1;
}

bool firni_draft_propose(firn_engine *engine)
{
    if (engine->draft_ops == NULL) {
        return false;
    }
    if (engine->draft_ops->read != NULL) {
        engine->draft_ops->read(engine);
    }
    if (!engine->options.draft_always && !firni_draft_gate_is_open(&engine->draft_gate, engine->n_rows)) {
        firni_round_drop_guesses(engine);
        return false;
    }
    /* Like a chunk of a prompt, guesses end where a layer changes precision. */
    uint32_t limit = engine->options.draft_tokens_max;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const uint32_t layer_limit = firn_cache_max_append_tokens(engine->caches[layer]);
        limit = layer_limit <= limit ? layer_limit - (layer_limit > 0) : limit;
    }
    uint32_t budget = firni_draft_step_max(engine);
    bool any = false;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        firni_draft *draft = &sequence->draft;
        draft->n_wanted = 0;
        draft->n_proposed = 0;
        if (!is_generating(sequence)) {
            continue;
        }
        if (draft->pause > 0) {
            draft->pause--;
            continue;
        }
        /* Even shares; what one row does not want is left for those behind it. */
        const uint32_t share = budget / (engine->n_rows - row) > 0 ? budget / (engine->n_rows - row) : budget > 0;
        const uint32_t n_useful = useful_guesses(sequence);
        draft->n_wanted = n_useful < share ? n_useful : share;
        draft->n_wanted = draft->n_wanted < limit ? draft->n_wanted : limit;
        budget -= draft->n_wanted;
        any = any || draft->n_wanted > 0;
    }
    if (!any) {
        return false;
    }
    engine->draft_ops->propose(engine);
    any = false;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_draft *draft = &engine->rows[row]->draft;
        assert(draft->n_proposed <= draft->n_wanted);
        any = any || draft->n_proposed > 0;
    }
    return any;
}

void firni_draft_learn(const firn_engine *engine, firni_draft *draft, uint32_t n_held)
{
    const uint32_t most = engine->options.draft_tokens_max;
    assert(n_held <= draft->n_proposed && draft->n_proposed > 0);
    if (n_held == draft->n_proposed) {
        draft->length = 2 * draft->length < most ? 2 * draft->length : most;
    } else {
        draft->length = n_held + 1;
    }
    if (n_held > 0) {
        draft->n_failures = 0;
    } else {
        draft->pause = draft->n_failures < PAUSE_DOUBLINGS_MAX ? (1u << draft->n_failures) - 1 : PAUSE_MAX;
        draft->n_failures++;
    }
}
