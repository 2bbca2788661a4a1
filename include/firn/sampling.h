/*
 * From logits to a token: penalties, temperature, truncation, choice.
 *
 * Order: logit bias, repetition/presence/frequency penalties, temperature, top-k, top-p, min-p, choice. temperature 0
 * is greedy: the largest logit, the smallest id among equals. With a seed the choice depends only on the seed, the
 * request's own tokens and its logits.
 */
#ifndef FIRN_SAMPLING_H
#define FIRN_SAMPLING_H

#include "firn/identity.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_logit_bias {
    firn_token token;
    float bias;           /* added to the logit; -100 or less forbids */
} firn_logit_bias;

/* All zero is greedy without penalties. */
typedef struct firn_sampling {
    float temperature;         /* 0..10; 0: greedy */
    uint32_t top_k;            /* 0: off */
    float top_p;               /* (0,1]; 0 or 1: off */
    float min_p;               /* [0,1]; 0: off */
    float repetition_penalty;  /* (0,10]; 0 or 1: off; divides positive logits, multiplies negative ones */
    float presence_penalty;    /* -2..2 */
    float frequency_penalty;   /* -2..2 */
    uint32_t penalty_last_n;   /* tokens looked back at; 0: 64 for repetition; presence and frequency see the answer */
    uint64_t seed;
    bool has_seed;             /* false: a seed from the clock */
    const firn_logit_bias *biases;
    uint32_t n_biases;         /* at most 1024 */
} firn_sampling;

#define FIRN_LOGPROBS_MAX 20

/* The chosen token's log-probability under the untouched softmax, and the best alternatives, most likely first. */
typedef struct firn_logprobs {
    firn_token token;
    float logprob;
    uint32_t n_top;
    firn_token top_tokens[FIRN_LOGPROBS_MAX];
    float top_logprobs[FIRN_LOGPROBS_MAX];
} firn_logprobs;

/* Checks ranges; names the member and the allowed range on failure (INVALID). n_vocab bounds the biases' tokens. */
firn_status firn_sampling_check(const firn_sampling *sampling, uint32_t n_vocab, firn_error *err);

typedef struct firn_sampler firn_sampler;

/* `sampling` (biases included) is copied. Allocates all it will ever need. */
firn_status firn_sampler_create(const firn_sampling *sampling, uint32_t n_vocab, const firn_env *env,
                                firn_sampler **out, firn_error *err);
void firn_sampler_destroy(firn_sampler *sampler); /* accepts NULL */
/* Tells the sampler of a token of the prompt or of the answer, in order. */
void firn_sampler_accept(firn_sampler *sampler, firn_token token, bool is_prompt);
/* Chooses a token from logits [n_vocab]; logits are not changed. Never fails: logits that are not finite count as the
 * smallest. */
firn_token firn_sampler_choose(firn_sampler *sampler, const float *logits);
/* Log-probabilities of `token` and the n_top best (0..20) under softmax(logits). */
void firn_logprobs_compute(const float *logits, uint32_t n_vocab, firn_token token, uint32_t n_top, firn_logprobs *out);

#ifdef __cplusplus
}
#endif
#endif
