/*
 * Log-probabilities under the untouched softmax of a token's logits, in double; independent of any sampler. Owns no
 * state, allocates nothing.
 */
#include <assert.h>

#include "engine/sampler_impl.h"

/* What a token without probability gets: a finite number, since JSON has no infinity. The value is the one that the
 * OpenAI API reference names for "very unlikely". */
#define LOGPROB_NONE (-9999.0f)

static float logprob_of(float logit, double log_sum)
{
    const double logprob = (double)logit - log_sum;
    return logprob > (double)LOGPROB_NONE ? (float)logprob : LOGPROB_NONE;
}

/* Keeps top[0..*n_top) in order, the n_max best so far. */
static void insert_top(firni_candidate *top, uint32_t *n_top, uint32_t n_max, firni_candidate candidate)
{
    if (*n_top == n_max) {
        if (n_max == 0 || !firni_candidate_before(&candidate, &top[n_max - 1])) {
            return;
        }
        (*n_top)--;
    }
    uint32_t at = (*n_top)++;
    for (; at > 0 && firni_candidate_before(&candidate, &top[at - 1]); at--) {
        top[at] = top[at - 1];
    }
    top[at] = candidate;
}

void firn_logprobs_compute(const float *logits, uint32_t n_vocab, firn_token token, uint32_t n_top, firn_logprobs *out)
{
    assert(n_vocab > 0 && token < n_vocab && n_top <= FIRN_LOGPROBS_MAX);
    *out = (firn_logprobs){ .token = token };
    firni_candidate top[FIRN_LOGPROBS_MAX];
    float block[FIRNI_VOCAB_BLOCK];
    float largest = -INFINITY;
    for (uint32_t i = 0; i < n_vocab; i += FIRNI_VOCAB_BLOCK) {
        const uint32_t n = n_vocab - i < FIRNI_VOCAB_BLOCK ? n_vocab - i : FIRNI_VOCAB_BLOCK;
        firni_vocab_clean(block, logits + i, n);
        const float block_max = firni_vocab_max(block, n);
        largest = block_max > largest ? block_max : largest;
        /* Ids ascend: a block whose best only equals the last of the list has nothing for it. */
        for (uint32_t j = 0; j < n && (out->n_top < n_top || (n_top > 0 && block_max > top[n_top - 1].logit)); j++) {
            insert_top(top, &out->n_top, n_top, (firni_candidate){ .logit = block[j], .token = i + j });
        }
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < n_vocab && largest != -INFINITY; i += FIRNI_VOCAB_BLOCK) {
        double weights[FIRNI_VOCAB_BLOCK];
        const uint32_t n = n_vocab - i < FIRNI_VOCAB_BLOCK ? n_vocab - i : FIRNI_VOCAB_BLOCK;
        firni_vocab_clean(block, logits + i, n);
        firni_vocab_weights(block, n, largest, 1.0, weights);
        sum += firni_block_sum(weights, 0.0);
    }
    /* Without one finite logit, log_sum is infinite and every token comes out as LOGPROB_NONE. */
    const double log_sum = sum > 0.0 ? (double)largest + log(sum) : INFINITY;
    out->logprob = logprob_of(firni_logit_clean(logits[token]), log_sum);
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = top[i].token;
        out->top_logprobs[i] = logprob_of(top[i].logit, log_sum);
    }
}
