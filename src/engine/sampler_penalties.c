/*
 * Logit bias and penalties, and the memory of seen tokens they need. Work per token is proportional to what was seen,
 * not to the vocabulary.
 *
 * Sources: repetition penalty as in Keskar et al., "CTRL" (2019), section 4.1, with multiplication of negative logits
 * so that a penalty never rewards; presence and frequency penalties as in the OpenAI API reference.
 */
#include <assert.h>
#include <float.h>

#include "engine/sampler_impl.h"

static bool repeats(const firn_sampling *sampling)
{
    return sampling->repetition_penalty != 0.0f && sampling->repetition_penalty != 1.0f;
}

bool firni_sampler_seen_init(firni_sampler_seen *seen, const firn_sampling *sampling, uint32_t n_vocab,
                             const firn_env *env)
{
    *seen = (firni_sampler_seen){ 0 };
    if (repeats(sampling)) {
        const uint32_t n_last = sampling->penalty_last_n;
        seen->n_ring_max = n_last != 0 ? n_last : FIRNI_PENALTY_TOKENS_DEFAULT;
        seen->ring = firni_calloc(env, seen->n_ring_max, sizeof *seen->ring);
        seen->ring_stamps = firni_calloc(env, n_vocab, sizeof *seen->ring_stamps);
        if (seen->ring == NULL || seen->ring_stamps == NULL) {
            return false;
        }
    }
    if (sampling->presence_penalty != 0.0f || sampling->frequency_penalty != 0.0f) {
        seen->answer_counts = firni_calloc(env, n_vocab, sizeof *seen->answer_counts);
        seen->answer_tokens = firni_calloc(env, n_vocab, sizeof *seen->answer_tokens);
        if (seen->answer_counts == NULL || seen->answer_tokens == NULL) {
            return false;
        }
    }
    return true;
}

void firni_sampler_seen_deinit(firni_sampler_seen *seen, const firn_env *env)
{
    firni_free(env, seen->ring);
    firni_free(env, seen->ring_stamps);
    firni_free(env, seen->answer_counts);
    firni_free(env, seen->answer_tokens);
    *seen = (firni_sampler_seen){ 0 };
}

void firni_sampler_seen_accept(firni_sampler_seen *seen, firn_token token, bool is_prompt)
{
    if (seen->ring != NULL) {
        seen->ring[seen->ring_next] = token;
        seen->ring_next = (seen->ring_next + 1) % seen->n_ring_max;
        seen->n_ring += seen->n_ring < seen->n_ring_max;
    }
    if (seen->answer_counts != NULL && !is_prompt && seen->answer_counts[token]++ == 0) {
        seen->answer_tokens[seen->n_answer++] = token;
    }
}

/* A penalty on a huge logit may overflow; it then stays the largest or smallest finite one instead of dropping out. */
static float bounded(float logit)
{
    return logit > FLT_MAX ? FLT_MAX : logit < -FLT_MAX ? -FLT_MAX : logit;
}

static void penalise_repetition(firni_sampler_seen *seen, float penalty, float *logits)
{
    /* A token that stands twice in the ring is penalised once: its stamp says that this round had it already. */
    if (++seen->round == 0) {
        seen->round = 1; /* 2^32 rounds later a stale stamp could at most skip one penalty */
    }
    for (uint32_t i = 0; i < seen->n_ring; i++) {
        const firn_token token = seen->ring[i];
        float *logit = &logits[token];
        if (seen->ring_stamps[token] == seen->round || *logit == -INFINITY) {
            continue;
        }
        seen->ring_stamps[token] = seen->round;
        *logit = bounded(*logit > 0.0f ? *logit / penalty : *logit * penalty);
    }
}

static void penalise_answer(const firni_sampler_seen *seen, float presence, float frequency, float *logits)
{
    for (uint32_t i = 0; i < seen->n_answer; i++) {
        const firn_token token = seen->answer_tokens[i];
        assert(seen->answer_counts[token] > 0);
        if (logits[token] != -INFINITY) {
            logits[token] = bounded(logits[token] - presence - frequency * (float)seen->answer_counts[token]);
        }
    }
}

void firni_sampler_penalise(firni_sampler_seen *seen, const firn_sampling *sampling, float *logits)
{
    for (uint32_t i = 0; i < sampling->n_biases; i++) {
        const firn_logit_bias *bias = &sampling->biases[i];
        float *logit = &logits[bias->token];
        if (bias->bias <= -100.0f) {
            *logit = -INFINITY;
        } else if (*logit != -INFINITY) {
            *logit = bounded(*logit + bias->bias);
        }
    }
    if (seen->ring != NULL) {
        penalise_repetition(seen, sampling->repetition_penalty, logits);
    }
    if (seen->answer_counts != NULL) {
        penalise_answer(seen, sampling->presence_penalty, sampling->frequency_penalty, logits);
    }
}
