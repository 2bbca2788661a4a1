/*
 * What tests of speculation share: requests, comparison of answers to the bit, and a source of guesses whose right and
 * wrong ones the test decides.
 */
#ifndef FIRN_TESTS_DRAFT_RIG_H
#define FIRN_TESTS_DRAFT_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine_impl.h"
#include "support/engine_fixture.h"

enum { PROMPT_MAX = 600 };

/* A text that repeats itself: phrases of a small stock, in a random order; never a control token. */
static inline void fill_phrases(firn_token *tokens, uint32_t n, uint64_t seed)
{
    enum { PHRASES = 5, WORDS = 9 };
    test_rng rng = { .state = seed };
    firn_token stock[PHRASES][WORDS];
    for (uint32_t i = 0; i < PHRASES * WORDS; i++) {
        stock[i / WORDS][i % WORDS] = 300 + test_rng_below(&rng, 200);
    }
    tokens[0] = 1;
    for (uint32_t i = 1; i < n;) {
        const uint32_t phrase = test_rng_below(&rng, PHRASES);
        for (uint32_t j = 0; j < WORDS && i < n; j++, i++) {
            tokens[i] = stock[phrase][j];
        }
    }
}

static inline firn_request make_request(const firn_token *prompt, uint32_t n_prompt, uint32_t max_tokens)
{
    return (firn_request){
        .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n_logprobs = 6, .ignore_end = true
    };
}

static inline void assert_same_answer(const test_answer *a, const test_answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_memory_equal(&a->logprobs[i].logprob, &b->logprobs[i].logprob, sizeof(float));
        assert_int_equal(a->logprobs[i].n_top, b->logprobs[i].n_top);
        assert_memory_equal(a->logprobs[i].top_logprobs, b->logprobs[i].top_logprobs, 5 * sizeof(float));
        assert_memory_equal(a->logprobs[i].top_tokens, b->logprobs[i].top_tokens, 5 * sizeof(firn_token));
    }
    assert_string_equal(a->text, b->text);
    assert_string_equal(a->stop_string, b->stop_string);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->usage.completion_tokens, b->usage.completion_tokens);
}

static inline void ask(test_stack *stack, firn_request request, test_answer *answer)
{
    firn_error err;
    const firn_status status = test_submit(stack, request, answer, &err);
    if (status != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    test_wait_end(answer);
    assert_int_equal(answer->n_ends, 1);
}

/* The last row leaves just after its END; numbers are published then. Stores hold blocks until they are done. */
static inline firn_engine_stats wait_idle(test_stack *stack)
{
    firn_engine_stats stats;
    for (int i = 0; i < 1000; i++) {
        firn_engine_get_stats(stack->engine, &stats);
        if (stats.n_running == 0 && stats.n_waiting == 0 && stats.prefix.n_queued == 0 &&
            stats.draft_prefix.n_queued == 0 && stats.n_submitted == stats.n_finished + stats.n_cancelled) {
            break;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return stats;
}

/* ---- a scripted source ---- */

/* The known answer, and how many guesses of each round are right before a wrong one. One test at a time. */
typedef struct script {
    const firn_token *tokens; /* the answer of plain decoding */
    uint32_t n_tokens;
    uint32_t n_prompt;
    uint32_t n_guesses;       /* of each round */
    uint32_t n_right;         /* of these; UINT32_MAX: another number each round */
    uint32_t n_rounds;
} script;

static inline script *the_script(void)
{
    static script instance;
    return &instance;
}

/* Takes no part in the engine's learning: each round gets what the script says. */
static inline void propose_by_script(firn_engine *engine)
{
    script *s = the_script();
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        firni_sequence *sequence = engine->rows[row];
        firni_draft *draft = &sequence->draft;
        draft->length = s->n_guesses;
        draft->n_proposed = draft->n_wanted < s->n_guesses ? draft->n_wanted : s->n_guesses;
        const uint32_t n_right = s->n_right != UINT32_MAX ? s->n_right : s->n_rounds++ % (s->n_guesses + 1);
        for (uint32_t i = 0; i < draft->n_proposed; i++) {
            const uint32_t at = sequence->n_tokens - s->n_prompt + i;
            const firn_token right = at < s->n_tokens ? s->tokens[at] : 5;
            sequence->tokens[sequence->n_tokens + i] = i < n_right ? right : right == 7 ? 8 : 7;
        }
    }
}

/* Set between requests only: the source looks at it while one runs. */
static inline void use_script(const test_answer *plain, uint32_t n_prompt, uint32_t n_guesses, uint32_t n_right)
{
    *the_script() = (script){ .tokens = plain->tokens,
                              .n_tokens = plain->n_tokens,
                              .n_prompt = n_prompt,
                              .n_guesses = n_guesses,
                              .n_right = n_right };
}

#endif
