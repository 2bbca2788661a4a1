/*
 * sampler: what is behind firn/sampling.h, one concern per file.
 *
 *   sampler.c            checks, creation, the choice
 *   sampler_penalties.c  which tokens were seen; logit bias and penalties
 *   sampler_truncate.c   top-k and top-p without sorting the vocabulary
 *   sampler_vocab.c      arithmetic over a whole vocabulary: exponentials, sums
 *   logprobs.c           log-probabilities; needs no sampler
 *
 * All truncations keep a *prefix of one order*: larger logits first, smaller ids first among equals. So a truncation is
 * one number pair, the last candidate kept (the cut), and the survivors can be walked in the order of ids whatever
 * algorithm found the cut: what is dropped gets weight 0. The choice thus depends on logits and seed, never on how a
 * partition happened to move things.
 */
#ifndef FIRNI_SAMPLER_IMPL_H
#define FIRNI_SAMPLER_IMPL_H

#include <math.h>
#include <stdbool.h>

#include "base/base_impl.h"
#include "firn/sampling.h"

typedef struct firni_candidate {
    double weight;      /* exp((logit - largest logit) / temperature); the best has 1 */
    float logit;
    firn_token token;
} firni_candidate;

/* Whether a comes before b. Total: no two candidates are equal. */
FIRNI_INLINE bool firni_candidate_before(const firni_candidate *a, const firni_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

/* A logit as the sampler counts it: what is not finite is the smallest there is. */
FIRNI_INLINE float firni_logit_clean(float logit)
{
    return isfinite(logit) ? logit : -INFINITY;
}

/* Finalizer of splitmix64: a bijection of 64 bits with full avalanche. Source: Steele, Lea, Flood, "Fast splittable
 * pseudorandom number generators" (OOPSLA 2014), with Stafford's variant 13 constants. */
FIRNI_INLINE uint64_t firni_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What firn_sampler_choose() would choose from these logits as its next choice but n_ahead: with that choice's own
 * random number, and the penalties of what was seen so far. A guess, which changes nothing. */
firn_token firni_sampler_guess(firn_sampler *sampler, const float *logits, uint32_t n_ahead);

/* How many random numbers were drawn, and going on as if so many had been: with the seed, all the state there is beside
 * the tokens that were accepted. */
uint64_t firni_sampler_choices(const firn_sampler *sampler);
void firni_sampler_skip(firn_sampler *sampler, uint64_t n_choices);

/* ---- penalties ------------------------------------------------------------------------------------------------ */

/* What was seen. Arrays are NULL when their penalty is off. */
typedef struct firni_sampler_seen {
    firn_token *ring;         /* the last n_ring_max tokens, for the repetition penalty */
    uint32_t n_ring_max;
    uint32_t n_ring;          /* tokens held, at most n_ring_max */
    uint32_t ring_next;       /* where the next token goes */
    uint32_t *ring_stamps;    /* [n_vocab]: the round in which a token was last penalised */
    uint32_t round;
    uint32_t *answer_counts;  /* [n_vocab], for presence and frequency */
    firn_token *answer_tokens;/* the n_answer tokens whose count is not 0 */
    uint32_t n_answer;
} firni_sampler_seen;

#define FIRNI_PENALTY_TOKENS_DEFAULT 64u
#define FIRNI_PENALTY_TOKENS_MAX 1048576u

/* False when memory was refused; what was allocated is released by firni_sampler_seen_deinit(). */
bool firni_sampler_seen_init(firni_sampler_seen *seen, const firn_sampling *sampling, uint32_t n_vocab,
                             const firn_env *env);
void firni_sampler_seen_deinit(firni_sampler_seen *seen, const firn_env *env);
void firni_sampler_seen_accept(firni_sampler_seen *seen, firn_token token, bool is_prompt);
/* Applies bias, then penalties, to logits [n_vocab] in place. */
void firni_sampler_penalise(firni_sampler_seen *seen, const firn_sampling *sampling, float *logits);

/* ---- whole vocabularies --------------------------------------------------------------------------------------- */

#define FIRNI_VOCAB_BLOCK 64u

FIRNI_INLINE uint32_t firni_vocab_padded(uint32_t n_vocab)
{
    return (n_vocab + FIRNI_VOCAB_BLOCK - 1) / FIRNI_VOCAB_BLOCK * FIRNI_VOCAB_BLOCK;
}

/* All arrays but the source of clean() have firni_vocab_padded(n_vocab) elements. */
void firni_vocab_clean(float *out, const float *logits, uint32_t n_vocab);
float firni_vocab_max(const float *logits, uint32_t n_vocab);
firn_token firni_vocab_find(const float *logits, uint32_t n_vocab, float logit); /* the smallest id that has it */
/* exp((logit - largest) * scale), the same bits from both. */
double firni_exp_weight(float logit, float largest, double scale);
void firni_vocab_weights(const float *logits, uint32_t n_vocab, float largest, double scale, double *weights);
/* Sum of the weights that are at least weight_min; over the vocabulary it is the sum of its blocks, in order. */
double firni_block_sum(const double *weights, double weight_min);
double firni_vocab_sum(const double *weights, uint32_t n_vocab, double weight_min);

/* ---- truncation ----------------------------------------------------------------------------------------------- */

/* Gives weight 0 to all but the first k of the order, 1 <= k < n_vocab, and the others theirs. scratch has room for k
 * candidates. */
void firni_truncate_top_k(const float *logits, uint32_t n_vocab, uint32_t k, float largest, double scale,
                          double *weights, firni_candidate *scratch);
/* Gives weight 0 to all behind the shortest prefix of the order whose weights reach `share` of their sum. scratch has
 * room for n_vocab candidates. */
void firni_truncate_top_p(const float *logits, uint32_t n_vocab, double share, double *weights,
                          firni_candidate *scratch);

#endif
