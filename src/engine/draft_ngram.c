/*
 * Guesses without a second model: the row's last few tokens are looked for earlier in the row, and what followed them
 * there is the guess. Source: Saxena, "Prompt lookup decoding" (2023). Owns no state.
 *
 *      ... the old mill by the river ... they met at the old mill        guess: by the river
 *          ~~~~~~~~~~~~ ^                             ~~~~~~~~~~~~
 *
 * The longest match wins, up to LOOKUP_MAX tokens; the latest among equals, because texts change their subject. One
 * pass over the row's tokens finds it: comparing 30,000 of them takes some ten microseconds, nothing beside a forward,
 * and an index would have to be kept for every row that never repeats itself.
 */
#include <assert.h>

#include "engine/engine_impl.h"

enum {
    LOOKUP_MAX = 4, /* longer matches do not guess better */
    LOOKUP_MIN = 2  /* one token follows too much to say anything */
};

/* Tokens before `end` that equal the row's last ones, at most LOOKUP_MAX. */
static uint32_t match_length(const firn_token *tokens, uint32_t n_tokens, uint32_t end)
{
    uint32_t n = 0;
    while (n < LOOKUP_MAX && n < end && tokens[end - 1 - n] == tokens[n_tokens - 1 - n]) {
        n++;
    }
    return n;
}

/* Where the best earlier occurrence of the row's end ends; 0: there is none. */
static uint32_t find_earlier(const firn_token *tokens, uint32_t n_tokens)
{
    uint32_t best_end = 0;
    uint32_t n_best = LOOKUP_MIN - 1;
    for (uint32_t end = n_tokens - 1; end >= LOOKUP_MIN && n_best < LOOKUP_MAX; end--) {
        const uint32_t n = match_length(tokens, n_tokens, end);
        if (n > n_best) {
            n_best = n;
            best_end = end;
        }
    }
    return best_end;
}

static void propose(firn_engine *engine)
{
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        firni_draft *draft = &sequence->draft;
        if (draft->n_wanted == 0) {
            continue;
        }
        const uint32_t from = find_earlier(sequence->tokens, sequence->n_tokens);
        if (from == 0) {
            continue;
        }
        /* Towards the end of the row this reads guesses just written: a row that repeats itself goes on doing so. */
        for (uint32_t i = 0; i < draft->n_wanted; i++) {
            sequence->tokens[sequence->n_tokens + i] = sequence->tokens[from + i];
        }
        draft->n_proposed = draft->n_wanted;
    }
}

const firni_draft_ops firni_draft_ngram = {
    .name = "ngram",
    .propose = propose,
};
