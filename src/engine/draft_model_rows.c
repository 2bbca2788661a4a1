/*
 * The drafter in a step: it reads what the model reads, guesses token by token for all rows at once, and takes back
 * what the model did not choose. Owns no state; see draft_model_impl.h.
 *
 *   1. read     prompts in chunks, in the same step as the model, so that the first answer token finds it ready
 *   2. propose  a round: forward what is left to read with the last token, then each guess but the last
 *   3. settle   after the model's round: roll back to what the row kept
 *
 * A row that has sat out some steps is behind; it is not read along token by token, which would cost a forward each,
 * but when it guesses again, or when there is enough for a forward to be worth it.
 */
#include <assert.h>
#include <string.h>

#include "engine/draft_model_impl.h"
#include "engine/sampler_impl.h"

enum { BEHIND_MAX = 16 /* tokens to read that do not keep a row from guessing */ };

/* What this forward may allocate. */
static uint64_t need_bytes(const firni_draft_model *drafter)
{
    uint64_t bytes = 0;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        const uint32_t n_read = firn_cache_row_tokens(drafter->caches[0], row);
        for (uint32_t layer = 0; layer < drafter->schema->n_layers && drafter->step_counts[row] > 0; layer++) {
            bytes += firni_row_need_bytes(drafter->caches[layer], n_read, drafter->step_counts[row]);
        }
    }
    return bytes;
}

/* One forward of step_counts tokens each, from where each row has read to; logits behind the last token of each when
 * they are wanted. False: nothing has advanced. */
static bool forward(firn_engine *engine, firni_draft_model *drafter, bool wants_logits)
{
    uint32_t n_tokens = 0;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        const firni_sequence *sequence = drafter->rows[row];
        const uint32_t n_read = firn_cache_row_tokens(drafter->caches[0], row);
        const uint32_t count = drafter->step_counts[row];
        memcpy(drafter->step_tokens + n_tokens, sequence->tokens + n_read, count * sizeof(firn_token));
        memset(drafter->step_wanted + n_tokens, 0, count);
        n_tokens += count;
        if (count > 0) {
            drafter->step_wanted[n_tokens - 1] = wants_logits;
        }
    }
    assert(n_tokens <= drafter->n_step_tokens_max);
    firni_make_room(engine, need_bytes(drafter));
    const firn_forward_input input = {
        .tokens = drafter->step_tokens,
        .counts = drafter->step_counts,
        .n_rows = drafter->n_rows,
        .caches = drafter->caches,
        .want_logits = drafter->step_wanted,
        .logits = drafter->step_logits,
    };
    return n_tokens > 0 && firn_model_forward(drafter->model, &input, NULL) == FIRN_OK;
}

/* ---- 1. read ---- */

/* Tokens that the row should read now: its prompt but for the last token, which is read with the first guess; later
 * only when there are many, or as many as a step may append (`limit`), which would keep it from guessing. */
static uint32_t to_read(const firni_draft_model *drafter, uint32_t row, uint32_t limit)
{
    const firni_sequence *sequence = drafter->rows[row];
    const uint32_t n_read = firn_cache_row_tokens(drafter->caches[0], row);
    const uint32_t end = n_read + 1 < sequence->n_prompt ? sequence->n_prompt - 1 : sequence->n_tokens - 1;
    const uint32_t n_left = end > n_read ? end - n_read : 0;
    return n_read + 1 < sequence->n_prompt || n_left >= BEHIND_MAX || n_left >= limit ? n_left : 0;
}

void firni_draft_model_read(firn_engine *engine)
{
    firni_draft_model *drafter = engine->draft_model;
    uint32_t limit = engine->options.chunk_tokens_max;
    for (uint32_t layer = 0; layer < drafter->schema->n_layers; layer++) {
        const uint32_t layer_limit = firn_cache_max_append_tokens(drafter->caches[layer]);
        limit = layer_limit < limit ? layer_limit : limit;
    }
    uint32_t n_reading = 0;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        n_reading += to_read(drafter, row, limit) > 0;
    }
    if (n_reading == 0) {
        return;
    }
    uint32_t budget = engine->n_chunk > 0 ? engine->n_chunk : engine->options.chunk_tokens_max;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        const uint32_t n_left = to_read(drafter, row, limit);
        uint32_t count = 0;
        if (n_left > 0) {
            const uint32_t share = budget / n_reading > 0 ? budget / n_reading : budget > 0;
            count = n_left < share ? n_left : share;
            count = count < limit ? count : limit;
            budget -= count;
            n_reading--;
        }
        drafter->step_counts[row] = count;
    }
    for (uint32_t layer = 0; layer < drafter->schema->n_layers; layer++) {
        (void)firn_cache_prefill_begin(drafter->caches[layer], NULL);
    }
    const bool advanced = forward(engine, drafter, false);
    uint32_t n_ended = 0;
    for (uint32_t row = 0; row < drafter->n_rows && advanced; row++) {
        const uint32_t n_read = firn_cache_row_tokens(drafter->caches[0], row);
        if (drafter->step_counts[row] > 0 && n_read + 1 == drafter->rows[row]->n_prompt) {
            drafter->keep[n_ended++] = row;
        }
    }
    for (uint32_t layer = 0; layer < drafter->schema->n_layers; layer++) {
        if (n_ended > 0) {
            (void)firn_cache_prefill_commit(drafter->caches[layer], drafter->keep, n_ended, NULL);
        }
        (void)firn_cache_prefill_end(drafter->caches[layer], NULL);
    }
    for (uint32_t i = 0; i < n_ended; i++) {
        firni_draft_model_publish(engine, drafter->keep[i]);
    }
}

/* ---- 2. propose ---- */

/* The two files may pad their vocabulary differently; what only the drafter has cannot be guessed. */
static const float *logits_for_sampler(const firn_engine *engine, const firni_draft_model *drafter, const float *logits)
{
    if (drafter->n_vocab >= engine->n_vocab) {
        return logits;
    }
    memcpy(drafter->row_logits, logits, drafter->n_vocab * sizeof *logits);
    return drafter->row_logits;
}

/* Guess number `n_ahead` of each row that takes part in this forward; those that want one more take part in the next.
 * Returns how many do. */
static uint32_t take_guesses(firn_engine *engine, firni_draft_model *drafter, uint32_t n_ahead)
{
    const float *logits = drafter->step_logits;
    uint32_t n_going_on = 0;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        firni_sequence *sequence = drafter->rows[row];
        firni_draft *draft = &sequence->draft;
        drafter->appended[row] += drafter->step_counts[row];
        if (drafter->step_counts[row] == 0) {
            continue;
        }
        const float *usable = logits_for_sampler(engine, drafter, logits);
        sequence->tokens[sequence->n_tokens + n_ahead] = firni_sampler_guess(sequence->sampler, usable, n_ahead);
        draft->n_proposed = n_ahead + 1;
        drafter->step_counts[row] = draft->n_proposed < draft->n_wanted;
        n_going_on += drafter->step_counts[row];
        logits += drafter->n_vocab;
    }
    return n_going_on;
}

/* Who guesses: rows that were asked to, are not far behind, and stay within their cache's bound. */
static uint32_t plan_first(firn_engine *engine, firni_draft_model *drafter)
{
    uint32_t limit = engine->options.chunk_tokens_max;
    for (uint32_t layer = 0; layer < drafter->schema->n_layers; layer++) {
        const uint32_t layer_limit = firn_cache_max_append_tokens(drafter->caches[layer]);
        limit = layer_limit < limit ? layer_limit : limit;
    }
    uint32_t n_guessing = 0;
    uint32_t budget = drafter->n_step_tokens_max;
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        const firni_sequence *sequence = drafter->rows[row];
        const uint32_t n_behind = sequence->n_tokens - firn_cache_row_tokens(drafter->caches[0], row);
        const uint32_t n_appended = n_behind + sequence->draft.n_wanted - 1;
        const bool guesses = sequence->draft.n_wanted > 0 && n_behind <= BEHIND_MAX && n_behind <= budget &&
                             n_appended <= limit &&
                             sequence->n_tokens + sequence->draft.n_wanted <= firn_cache_max_tokens(drafter->caches[0]);
        drafter->step_counts[row] = guesses ? n_behind : 0;
        drafter->appended[row] = 0;
        budget -= drafter->step_counts[row];
        n_guessing += guesses;
    }
    return n_guessing;
}

void firni_draft_model_propose(firn_engine *engine)
{
    firni_draft_model *drafter = engine->draft_model;
    uint32_t n_going_on = plan_first(engine, drafter);
    if (n_going_on == 0 || !firni_round_open_in(drafter->caches, drafter->schema->n_layers)) {
        return;
    }
    drafter->in_round = true;
    /* A forward that fails ends the guessing; what was guessed before is as good as ever. */
    for (uint32_t n_ahead = 0; n_going_on > 0 && forward(engine, drafter, true); n_ahead++) {
        n_going_on = take_guesses(engine, drafter, n_ahead);
    }
}

/* ---- 3. settle ---- */

void firni_draft_model_settle(firn_engine *engine)
{
    firni_draft_model *drafter = engine->draft_model;
    if (!drafter->in_round) {
        return;
    }
    for (uint32_t row = 0; row < drafter->n_rows; row++) {
        const uint32_t before = firn_cache_row_tokens(drafter->caches[0], row) - drafter->appended[row];
        /* The model's own row is at the end of what held, without the token chosen last: so far both agree. */
        const uint32_t n_valid = drafter->rows[row]->n_cached;
        const uint32_t n_new = n_valid > before ? n_valid - before : 0;
        drafter->keep[row] = n_new < drafter->appended[row] ? n_new : drafter->appended[row];
    }
    firni_round_close_in(drafter->caches, drafter->schema->n_layers, drafter->n_rows, drafter->appended, drafter->keep);
    drafter->in_round = false;
}
