/*
 * Verify rounds: the engine's side of firn_cache_spec_begin() and its two ends, and the choice of tokens as far as the
 * guesses hold. Owns no state.
 *
 * Only the contract is used: a layer is told how many of each row's tokens stay, and does what its family needs. Rows
 * that read their prompt or had no guess keep all they appended.
 */
#include <assert.h>

#include "engine/engine_impl.h"

void firni_round_drop_guesses(firn_engine *engine)
{
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        engine->rows[row]->draft.n_proposed = 0;
    }
}

bool firni_round_open_in(firn_cache *const *caches, uint32_t n_layers)
{
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        if (firn_cache_spec_begin(caches[layer], NULL) == FIRN_OK) {
            continue;
        }
        while (layer-- > 0) {
            (void)firn_cache_spec_commit(caches[layer], NULL);
        }
        return false;
    }
    return true;
}

bool firni_round_open(firn_engine *engine)
{
    const bool opened = firni_round_open_in(engine->caches, engine->schema->n_layers);
    if (!opened) {
        firni_round_drop_guesses(engine);
    }
    return opened;
}

void firni_round_close_in(firn_cache *const *caches, uint32_t n_layers, uint32_t n_rows, const uint32_t *appended,
                          const uint32_t *kept)
{
    bool all = true;
    for (uint32_t row = 0; row < n_rows; row++) {
        assert(kept[row] <= appended[row]);
        all = all && kept[row] == appended[row];
    }
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const firn_status status = all ? firn_cache_spec_commit(caches[layer], NULL)
                                       : firn_cache_spec_rollback(caches[layer], kept, NULL);
        assert(status == FIRN_OK); /* the round is open, and no row keeps more than it appended */
        (void)status;
    }
}

void firni_round_close(firn_engine *engine)
{
    firni_round_close_in(engine->caches, engine->schema->n_layers, engine->n_rows, engine->step_counts,
                         engine->step_kept);
}

/* Before the token is taken: the END event that may follow carries the numbers. */
static void count_token(firn_engine *engine, firni_sequence *sequence, bool held)
{
    firn_draft_usage *const both[2] = { &engine->stats.draft, &sequence->usage.draft };
    for (uint32_t i = 0; i < 2; i++) {
        both[i]->round_tokens++;
        both[i]->accepted_tokens += held;
    }
}

static void count_round(firn_engine *engine, firni_sequence *sequence)
{
    firn_draft_usage *const both[2] = { &engine->stats.draft, &sequence->usage.draft };
    for (uint32_t i = 0; i < 2; i++) {
        both[i]->n_rounds++;
        both[i]->drafted_tokens += sequence->draft.n_proposed;
    }
}

void firni_verify_row(firn_engine *engine, firni_sequence *sequence, const float *logits, const firni_choice *made)
{
    const firn_tokenizer *tokenizer = firn_model_tokenizer(engine->options.model);
    const uint32_t n_proposed = sequence->draft.n_proposed;
    uint32_t n_held = 0;
    bool goes_on = true;
    if (n_proposed > 0) {
        count_round(engine, sequence);
    }
    while (goes_on) {
        /* Read before the chosen token takes its place. */
        const firn_token guess = n_held < n_proposed ? sequence->tokens[sequence->n_tokens] : FIRN_TOKEN_NONE;
        firni_choice own = { .sequence = sequence, .logits = logits };
        const firni_choice *choice = made;
        if (choice == NULL) {
            firni_choose_one(engine, &own);
            choice = &own;
        }
        const bool held = choice->token == guess;
        if (n_proposed > 0) {
            count_token(engine, sequence, held);
        }
        n_held += held;
        firni_sequence_take_token(sequence, choice->token, &choice->logprobs, tokenizer);
        engine->stats.generated_tokens++;
        /* A row that has ended keeps what plain decoding would have forwarded: not its last token. */
        goes_on = held && sequence->state != FIRNI_SEQUENCE_ENDED;
        sequence->n_cached += goes_on;
        logits += engine->n_vocab;
        made = NULL;
    }
    engine->stats.n_finished += sequence->state == FIRNI_SEQUENCE_ENDED;
    if (n_proposed > 0) {
        firni_draft_learn(engine, &sequence->draft, n_held);
    }
    sequence->draft.n_proposed = 0;
}
