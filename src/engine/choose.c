/*
 * The choice of rows' next tokens, with their log-probabilities where those are asked for: what a step does between its
 * forward and the next one that grows with the vocabulary. Rows choose at the same time, over the threads of the
 * forward, which are idle then; each has a sampler of its own, so nothing depends on who chooses when.
 *
 * Owns no state. Telling anybody of the tokens is verify.c's and sequence.c's, in order, afterwards.
 */
#include "engine/engine_impl.h"
#include "model/model_workers.h"

/* Logits to be looked at, of all rows: below this a thread that has to be told would come too late. */
#define SHARED_LOGITS_MIN 8192u

void firni_choose_one(const firn_engine *engine, firni_choice *choice)
{
    const uint32_t n_logprobs = choice->sequence->n_logprobs;
    choice->token = firn_sampler_choose(choice->sequence->sampler, choice->logits);
    if (n_logprobs > 0) {
        firn_logprobs_compute(choice->logits, engine->n_vocab, choice->token, n_logprobs - 1, &choice->logprobs);
    }
}

static void choose_task(void *ctx, uint32_t index, uint32_t thread)
{
    firn_engine *engine = ctx;
    (void)thread;
    firni_choose_one(engine, &engine->step_choices[index]);
}

void firni_choose(firn_engine *engine, uint32_t n_choices)
{
    const bool is_shared = n_choices > 1 && (uint64_t)n_choices * engine->n_vocab >= SHARED_LOGITS_MIN;
    firn_workers_run(is_shared ? firni_model_workers(engine->options.model) : NULL, n_choices, choose_task, engine);
}
