/*
 * The sampler: parameter checks, creation, and the choice of a token from logits. Penalties, truncation and
 * log-probabilities are their own files; see sampler_impl.h for the order that ties them together.
 *
 * Random numbers are counter-based: choice i of a request uses mix(key + i * gamma), key = mix(seed). There is no state
 * to carry but the counter. The distribution is computed in double from the f32 logits.
 */
#include <assert.h>
#include <string.h>

#include "engine/sampler_impl.h"

struct firn_sampler {
    firn_sampling sampling;       /* biases point to own_biases */
    firn_logit_bias *own_biases;
    uint32_t n_vocab;
    uint64_t random_key;
    uint64_t n_choices;
    firni_sampler_seen seen;
    float *logits;                /* [padded n_vocab] the logits after bias and penalties */
    double *weights;              /* [padded n_vocab] by token; NULL when greedy */
    firni_candidate *scratch;     /* [n_vocab]; NULL without top-k and top-p */
    const firn_env *env;
};

/* One member against its range; the message has what a caller of an API needs to mend it. */
static firn_status check_range(const char *member, double value, double low, double high, const char *allowed,
                               firn_error *err)
{
    /* Written so that NaN fails. */
    if (value >= low && value <= high) {
        return FIRN_OK;
    }
    return firni_fail(err, FIRN_ERR_INVALID, "%s is %g; allowed is %s", member, value, allowed);
}

/* The seam between a user's numbers and array indices: after this, bias tokens are inside the vocabulary. */
static firn_status check_biases(const firn_sampling *sampling, uint32_t n_vocab, firn_error *err)
{
    if (sampling->n_biases > 1024) {
        return firni_fail(err, FIRN_ERR_INVALID, "n_biases is %u; allowed is 0..1024", sampling->n_biases);
    }
    if (sampling->n_biases > 0 && sampling->biases == NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "biases is NULL while n_biases is %u", sampling->n_biases);
    }
    for (uint32_t i = 0; i < sampling->n_biases; i++) {
        const firn_logit_bias *bias = &sampling->biases[i];
        if (bias->token >= n_vocab) {
            return firni_fail(err, FIRN_ERR_INVALID, "biases: token %u is outside the vocabulary of %u", bias->token,
                              n_vocab);
        }
        if (!isfinite(bias->bias)) {
            return firni_fail(err, FIRN_ERR_INVALID, "biases: the bias of token %u is not finite", bias->token);
        }
    }
    return FIRN_OK;
}

firn_status firn_sampling_check(const firn_sampling *sampling, uint32_t n_vocab, firn_error *err)
{
    const struct {
        const char *member;
        double value, low, high;
        const char *allowed;
    } ranges[] = {
        { "temperature", (double)sampling->temperature, 0.0, 10.0, "0..10" },
        { "top_p", (double)sampling->top_p, 0.0, 1.0, "0..1" },
        { "min_p", (double)sampling->min_p, 0.0, 1.0, "0..1" },
        { "repetition_penalty", (double)sampling->repetition_penalty, 0.0, 10.0, "0..10" },
        { "presence_penalty", (double)sampling->presence_penalty, -2.0, 2.0, "-2..2" },
        { "frequency_penalty", (double)sampling->frequency_penalty, -2.0, 2.0, "-2..2" },
        { "penalty_last_n", (double)sampling->penalty_last_n, 0.0, FIRNI_PENALTY_TOKENS_MAX, "0..1048576" },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const firn_status status = check_range(ranges[i].member, ranges[i].value, ranges[i].low,
                                               ranges[i].high, ranges[i].allowed, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return check_biases(sampling, n_vocab, err);
}

static bool needs_scratch(const firn_sampling *sampling)
{
    return sampling->top_k > 0 || (sampling->top_p > 0.0f && sampling->top_p < 1.0f);
}

/* Not cleared: megabytes for a large vocabulary, all written before they are read. */
static void *alloc_vocab(uint32_t n_vocab, size_t element_bytes, const firn_env *env)
{
    size_t n_bytes;
    return firni_mul_size(firni_vocab_padded(n_vocab), element_bytes, &n_bytes) ? firni_alloc_aligned(env, n_bytes, 64)
                                                                                : NULL;
}

firn_status firn_sampler_create(const firn_sampling *sampling, uint32_t n_vocab, const firn_env *env,
                                firn_sampler **out, firn_error *err)
{
    *out = NULL;
    if (n_vocab == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a sampler needs a vocabulary of at least one token");
    }
    const firn_status status = firn_sampling_check(sampling, n_vocab, err);
    if (status != FIRN_OK) {
        return status;
    }
    firn_sampler *sampler = firni_calloc(env, 1, sizeof *sampler);
    if (sampler == NULL) {
        goto fail;
    }
    sampler->sampling = *sampling;
    sampler->n_vocab = n_vocab;
    sampler->env = env;
    sampler->random_key =
        firni_mix64(sampling->has_seed ? sampling->seed : firni_wall_ns(env) ^ firni_mix64(firni_now_ns(env)));
    sampler->logits = alloc_vocab(n_vocab, sizeof *sampler->logits, env);
    if (sampler->logits == NULL || !firni_sampler_seen_init(&sampler->seen, sampling, n_vocab, env)) {
        goto fail;
    }
    if (sampling->temperature > 0.0f) {
        sampler->weights = alloc_vocab(n_vocab, sizeof *sampler->weights, env);
        sampler->scratch = needs_scratch(sampling) ? alloc_vocab(n_vocab, sizeof *sampler->scratch, env) : NULL;
        if (sampler->weights == NULL || (needs_scratch(sampling) && sampler->scratch == NULL)) {
            goto fail;
        }
    }
    if (sampling->n_biases > 0) {
        sampler->own_biases = firni_calloc(env, sampling->n_biases, sizeof *sampler->own_biases);
        if (sampler->own_biases == NULL) {
            goto fail;
        }
        memcpy(sampler->own_biases, sampling->biases, sampling->n_biases * sizeof *sampler->own_biases);
    }
    sampler->sampling.biases = sampler->own_biases;
    *out = sampler;
    return FIRN_OK;

fail:
    firn_sampler_destroy(sampler);
    return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a sampler over %u tokens", n_vocab);
}

void firn_sampler_destroy(firn_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    const firn_env *env = sampler->env;
    firni_sampler_seen_deinit(&sampler->seen, env);
    firni_free(env, sampler->logits);
    firni_free(env, sampler->weights);
    firni_free(env, sampler->scratch);
    firni_free(env, sampler->own_biases);
    firni_free(env, sampler);
}

void firn_sampler_accept(firn_sampler *sampler, firn_token token, bool is_prompt)
{
    assert(token < sampler->n_vocab);
    firni_sampler_seen_accept(&sampler->seen, token, is_prompt);
}

uint64_t firni_sampler_choices(const firn_sampler *sampler)
{
    return sampler->n_choices;
}

void firni_sampler_skip(firn_sampler *sampler, uint64_t n_choices)
{
    sampler->n_choices = n_choices;
}

/* Uniform in [0, 1): 53 bits of the number of the request's sequence that belongs to this choice. */
static double uniform_of(const firn_sampler *sampler, uint64_t choice)
{
    const uint64_t bits = firni_mix64(sampler->random_key + choice * 0x9e3779b97f4a7c15u);
    return (double)(bits >> 11) * 0x1p-53;
}

/* Inverts the cumulative distribution over the tokens that weigh at least `weight_min`, in the order of ids: block by
 * block to the one that holds the target, then token by token. */
static firn_token draw(const firn_sampler *sampler, uint64_t choice, double weight_min)
{
    const double *weights = sampler->weights;
    const double target = uniform_of(sampler, choice) * firni_vocab_sum(weights, sampler->n_vocab, weight_min);
    double reached = 0.0;
    uint32_t last_block = 0;
    for (uint32_t i = 0; i < sampler->n_vocab; i += FIRNI_VOCAB_BLOCK) {
        const double sum = firni_block_sum(weights + i, weight_min);
        if (sum > 0.0) {
            last_block = i;
            if (reached + sum > target) {
                break;
            }
            reached += sum;
        }
    }
    firn_token chosen = sampler->n_vocab;
    for (uint32_t i = last_block; i < last_block + FIRNI_VOCAB_BLOCK; i++) {
        if (weights[i] > 0.0 && weights[i] >= weight_min) {
            chosen = i; /* stays the last one when rounding leaves the target just out of reach */
            reached += weights[i];
            if (reached > target) {
                break;
            }
        }
    }
    assert(chosen < sampler->n_vocab);
    return chosen;
}

/* The choice with this number; *drew: whether it took its random number. */
static firn_token pick(firn_sampler *sampler, const float *logits, uint64_t choice, bool *drew)
{
    const firn_sampling *sampling = &sampler->sampling;
    const uint32_t n_vocab = sampler->n_vocab;
    firni_vocab_clean(sampler->logits, logits, n_vocab);
    firni_sampler_penalise(&sampler->seen, sampling, sampler->logits);
    const float largest = firni_vocab_max(sampler->logits, n_vocab);
    *drew = sampling->temperature > 0.0f && largest > -INFINITY;
    if (!*drew) {
        return firni_vocab_find(sampler->logits, n_vocab, largest);
    }
    const double scale = 1.0 / (double)sampling->temperature;
    if (sampling->top_k > 0 && sampling->top_k < n_vocab) {
        firni_truncate_top_k(sampler->logits, n_vocab, sampling->top_k, largest, scale, sampler->weights,
                             sampler->scratch);
    } else {
        firni_vocab_weights(sampler->logits, n_vocab, largest, scale, sampler->weights);
    }
    if (sampling->top_p > 0.0f && sampling->top_p < 1.0f) {
        firni_truncate_top_p(sampler->logits, n_vocab, (double)sampling->top_p, sampler->weights, sampler->scratch);
    }
    /* The best candidate weighs 1, so that min_p of its probability is a weight of min_p. */
    return draw(sampler, choice, (double)sampling->min_p);
}

firn_token firn_sampler_choose(firn_sampler *sampler, const float *logits)
{
    bool drew;
    const firn_token token = pick(sampler, logits, sampler->n_choices + 1, &drew);
    sampler->n_choices += drew;
    return token;
}

firn_token firni_sampler_guess(firn_sampler *sampler, const float *logits, uint32_t n_ahead)
{
    bool drew;
    return pick(sampler, logits, sampler->n_choices + 1 + n_ahead, &drew);
}
