/*
 * The sampler against a naive reference that sorts everything, exact distributions, and hostile input.
 */
#include "support/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler_impl.h"
#include "firn/sampling.h"

#define N_MAX 600

/* ---- the naive reference -------------------------------------------------------------------------------------- */

typedef struct reference {
    firn_sampling sampling;
    uint32_t n_vocab;
    firn_token history[4096]; /* prompt and answer */
    bool is_prompt[4096];
    uint32_t n_history;
    uint64_t n_choices;
} reference;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void reference_accept(reference *r, firn_token token, bool is_prompt)
{
    r->history[r->n_history] = token;
    r->is_prompt[r->n_history++] = is_prompt;
}

/* The formulas of sampling.h, token by token. */
static float reference_logit(const reference *r, float logit, firn_token token)
{
    const firn_sampling *s = &r->sampling;
    logit = isfinite(logit) ? logit : -INFINITY;
    for (uint32_t i = 0; i < s->n_biases; i++) {
        if (s->biases[i].token == token) {
            logit = s->biases[i].bias <= -100.0f ? -INFINITY : logit + s->biases[i].bias;
        }
    }
    const uint32_t n_last = s->penalty_last_n != 0 ? s->penalty_last_n : 64;
    bool was_seen = false;
    uint32_t n_answer = 0;
    for (uint32_t i = 0; i < r->n_history; i++) {
        was_seen |= r->history[i] == token && r->n_history - i <= n_last;
        n_answer += r->history[i] == token && !r->is_prompt[i];
    }
    if (was_seen && s->repetition_penalty != 0.0f) {
        logit = logit > 0.0f ? logit / s->repetition_penalty : logit * s->repetition_penalty;
    }
    if (n_answer > 0) {
        logit = logit - s->presence_penalty - s->frequency_penalty * (float)n_answer;
    }
    return logit;
}

typedef struct entry {
    float logit;
    firn_token token;
    double p;
} entry;

static int by_logit(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : (x->token < y->token ? -1 : 1);
}

static int by_token(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->token < y->token ? -1 : 1;
}

/* The kept tokens with their weights, in the order of ids; returns how many. */
static uint32_t reference_distribution(const reference *r, const float *logits, entry *out)
{
    const firn_sampling *s = &r->sampling;
    uint32_t n = r->n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (entry){ .logit = reference_logit(r, logits[i], i), .token = i };
    }
    qsort(out, n, sizeof *out, by_logit);
    if (s->temperature == 0.0f || out[0].logit == -INFINITY) {
        out[0].p = 1.0;
        return 1;
    }
    if (s->top_k > 0 && s->top_k < n) {
        n = s->top_k;
    }
    double total = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        out[i].p = exp(((double)out[i].logit - (double)out[0].logit) / (double)s->temperature);
        total += out[i].p;
    }
    if (s->top_p > 0.0f && s->top_p < 1.0f) {
        double sum = 0.0;
        uint32_t n_kept = 0;
        while (n_kept < n && sum < (double)s->top_p * total) {
            sum += out[n_kept++].p;
        }
        n = n_kept;
    }
    uint32_t n_kept = 0;
    while (n_kept < n && out[n_kept].p > 0.0 && out[n_kept].p >= (double)s->min_p) {
        n_kept++;
    }
    qsort(out, n_kept, sizeof *out, by_token);
    return n_kept;
}

static firn_token reference_choose(reference *r, const float *logits)
{
    entry entries[N_MAX];
    const uint32_t n = reference_distribution(r, logits, entries);
    if (r->sampling.temperature == 0.0f || n == 1) {
        r->n_choices += r->sampling.temperature != 0.0f;
        return entries[0].token;
    }
    double total = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        total += entries[i].p;
    }
    const uint64_t bits = mix(mix(r->sampling.seed) + ++r->n_choices * 0x9e3779b97f4a7c15u);
    const double target = (double)(bits >> 11) * 0x1p-53 * total;
    double reached = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        reached += entries[i].p;
        if (reached > target) {
            return entries[i].token;
        }
    }
    return entries[n - 1].token;
}

/* ---- helpers --------------------------------------------------------------------------------------------------- */

static firn_sampler *make(const firn_sampling *sampling, uint32_t n_vocab)
{
    firn_sampler *sampler = NULL;
    firn_error err = { 0 };
    if (firn_sampler_create(sampling, n_vocab, NULL, &sampler, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    return sampler;
}

static firn_token choose_once(const firn_sampling *sampling, const float *logits, uint32_t n_vocab)
{
    firn_sampler *sampler = make(sampling, n_vocab);
    const firn_token token = firn_sampler_choose(sampler, logits);
    firn_sampler_destroy(sampler);
    return token;
}

/* Which tokens ever come out, as a bit set over at most 64 tokens. */
static uint64_t support_of(firn_sampling sampling, const float *logits, uint32_t n_vocab)
{
    sampling.has_seed = true;
    firn_sampler *sampler = make(&sampling, n_vocab);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        tokens |= (uint64_t)1 << firn_sampler_choose(sampler, logits);
    }
    firn_sampler_destroy(sampler);
    return tokens;
}

/* ---- tests ----------------------------------------------------------------------------------------------------- */

static void greedy_takes_the_largest_and_the_smallest_id_among_equals(void **state)
{
    (void)state;
    const firn_sampling greedy = { 0 };
    const float logits[] = { -1.0f, 3.0f, 2.0f, 3.0f };
    assert_int_equal(choose_once(&greedy, logits, 4), 1);
    assert_int_equal(choose_once(&greedy, logits + 2, 1), 0);
}

static void greedy_leaves_the_logits_untouched_even_with_penalties(void **state)
{
    (void)state;
    const firn_logit_bias bias = { .token = 0, .bias = 5.0f };
    const firn_sampling sampling = { .repetition_penalty = 2.0f, .presence_penalty = 1.0f, .biases = &bias,
                                     .n_biases = 1 };
    float logits[] = { 1.0f, NAN, 3.0f };
    float before[3];
    memcpy(before, logits, sizeof logits);
    firn_sampler *sampler = make(&sampling, 3);
    firn_sampler_accept(sampler, 2, false);
    assert_int_equal(firn_sampler_choose(sampler, logits), 0);
    assert_memory_equal(logits, before, sizeof logits);
    firn_sampler_destroy(sampler);
}

static void logits_that_are_not_finite_count_as_the_smallest(void **state)
{
    (void)state;
    const float some[] = { NAN, INFINITY, -5.0f, -INFINITY };
    const float none[] = { NAN, INFINITY, -INFINITY, -NAN };
    const firn_sampling greedy = { 0 };
    const firn_sampling warm = { .temperature = 1.0f, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f };
    assert_int_equal(choose_once(&greedy, some, 4), 2);
    assert_int_equal(choose_once(&greedy, none, 4), 0);
    assert_int_equal(support_of(warm, some, 4), 1u << 2);
    assert_int_equal(support_of(warm, none, 4), 1u << 0);
}

static void each_filter_keeps_exactly_its_tokens(void **state)
{
    (void)state;
    /* Probabilities 0.4, 0.1, 0.3, 0.2 at temperature 1. */
    const float logits[] = { logf(0.4f), logf(0.1f), logf(0.3f), logf(0.2f) };
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f }, logits, 4), 0xF);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_k = 1 }, logits, 4), 0x1);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_k = 2 }, logits, 4), 0x5);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_k = 9 }, logits, 4), 0xF);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_p = 0.39f }, logits, 4), 0x1);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_p = 0.41f }, logits, 4), 0x5);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_p = 0.71f }, logits, 4), 0xD);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_p = 1.0f }, logits, 4), 0xF);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_p = 1e-30f }, logits, 4), 0x1);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .min_p = 0.4f }, logits, 4), 0xD);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .min_p = 0.6f }, logits, 4), 0x5);
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .min_p = 1.0f }, logits, 4), 0x1);
    /* top-p acts on what top-k left: 0.4 of 0.7 is 0.57. */
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_k = 2, .top_p = 0.5f }, logits, 4), 0x1);
}

static void equal_logits_are_kept_by_the_smaller_id(void **state)
{
    (void)state;
    const float logits[] = { 0.0f, 1.0f, 1.0f, 1.0f, 1.0f };
    assert_int_equal(support_of((firn_sampling){ .temperature = 1.0f, .top_k = 2 }, logits, 5), 0x6);
    assert_int_equal(support_of((firn_sampling){ .temperature = 0.01f, .top_p = 0.6f }, logits, 5), 0xE);
}

static void random_parameters_agree_with_the_naive_reference(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("sampler", 4242);
    static reference r;
    for (uint32_t round = 0; round < 400; round++) {
        firn_logit_bias biases[8];
        const uint32_t n_vocab = 1 + test_rng_below(&rng, N_MAX - 1);
        firn_sampling s = { .has_seed = true, .seed = test_rng_u64(&rng) };
        s.temperature = test_rng_below(&rng, 8) == 0 ? 0.0f : 0.05f + (1.0f + test_rng_unit(&rng)) * 2.0f;
        s.top_k = test_rng_below(&rng, 2) == 0 ? 0 : test_rng_below(&rng, n_vocab + 3);
        s.top_p = test_rng_below(&rng, 2) == 0 ? 0.0f : 0.5f + 0.5f * test_rng_unit(&rng);
        s.min_p = test_rng_below(&rng, 2) == 0 ? 0.0f : 0.25f + 0.25f * test_rng_unit(&rng);
        s.repetition_penalty = test_rng_below(&rng, 2) == 0 ? 0.0f : 0.5f + test_rng_unit(&rng) * 0.4f + 1.0f;
        s.presence_penalty = test_rng_below(&rng, 2) == 0 ? 0.0f : 2.0f * test_rng_unit(&rng);
        s.frequency_penalty = test_rng_below(&rng, 2) == 0 ? 0.0f : 2.0f * test_rng_unit(&rng);
        s.penalty_last_n = test_rng_below(&rng, 3) == 0 ? 1 + test_rng_below(&rng, 20) : 0;
        s.biases = biases;
        s.n_biases = test_rng_below(&rng, 9);
        for (uint32_t i = 0; i < s.n_biases; i++) {
            biases[i].token = test_rng_below(&rng, n_vocab);
            biases[i].bias = test_rng_below(&rng, 4) == 0 ? -100.0f : 5.0f * test_rng_unit(&rng);
        }
        r = (reference){ .sampling = s, .n_vocab = n_vocab };
        firn_sampler *sampler = make(&s, n_vocab);
        for (uint32_t i = test_rng_below(&rng, 100); i > 0; i--) {
            const firn_token token = test_rng_below(&rng, n_vocab);
            firn_sampler_accept(sampler, token, true);
            reference_accept(&r, token, true);
        }
        for (uint32_t step = 0; step < 30; step++) {
            float logits[N_MAX];
            for (uint32_t i = 0; i < n_vocab; i++) {
                /* Coarse values, so that equal logits are common. */
                logits[i] = test_rng_below(&rng, 50) == 0 ? NAN : roundf(12.0f * test_rng_normal(&rng)) / 4.0f;
            }
            const firn_token token = firn_sampler_choose(sampler, logits);
            assert_int_equal(token, reference_choose(&r, logits));
            firn_sampler_accept(sampler, token, false);
            reference_accept(&r, token, false);
        }
        firn_sampler_destroy(sampler);
    }
}

static void penalties_follow_their_formulas(void **state)
{
    (void)state;
    /* Greedy shows a penalty by who wins. Token 0 seen twice in the answer, token 1 once in the prompt. */
    const float positive[] = { 3.0f, 3.0f, 1.9f, 1.6f };
    firn_sampling s = { .repetition_penalty = 1.5f };
    firn_sampler *sampler = make(&s, 4);
    firn_sampler_accept(sampler, 1, true);
    firn_sampler_accept(sampler, 0, false);
    firn_sampler_accept(sampler, 0, false);
    assert_int_equal(firn_sampler_choose(sampler, positive), 0); /* 2, 2, 1.9, 1.6: once, however often seen */
    const float negative[] = { -1.0f, -1.1f, -1.4f, -9.0f };
    assert_int_equal(firn_sampler_choose(sampler, negative), 2); /* -1.5, -1.65, -1.4 */
    firn_sampler_destroy(sampler);

    s = (firn_sampling){ .presence_penalty = 1.0f, .frequency_penalty = 0.5f };
    sampler = make(&s, 4);
    firn_sampler_accept(sampler, 1, true);
    firn_sampler_accept(sampler, 0, false);
    firn_sampler_accept(sampler, 0, false);
    const float at_edge[] = { 3.0f, 0.9f, 0.95f, -1.0f };
    assert_int_equal(firn_sampler_choose(sampler, at_edge), 0);   /* 3 - 1 - 2 * 0.5 = 1: still the best */
    const float over_edge[] = { 3.0f, 1.05f, 0.95f, -1.0f };
    assert_int_equal(firn_sampler_choose(sampler, over_edge), 1); /* the prompt's token 1 is not penalised */
    firn_sampler_destroy(sampler);
}

static void repetition_looks_back_exactly_as_far_as_asked(void **state)
{
    (void)state;
    const float logits[] = { 2.0f, 1.5f, 0.0f };
    const firn_sampling s = { .repetition_penalty = 2.0f, .penalty_last_n = 3 };
    firn_sampler *sampler = make(&s, 3);
    firn_sampler_accept(sampler, 0, true);
    firn_sampler_accept(sampler, 2, true);
    firn_sampler_accept(sampler, 2, false);
    assert_int_equal(firn_sampler_choose(sampler, logits), 1);
    firn_sampler_accept(sampler, 2, false);
    assert_int_equal(firn_sampler_choose(sampler, logits), 0);
    firn_sampler_destroy(sampler);
}

static void a_bias_adds_and_minus_100_forbids(void **state)
{
    (void)state;
    const float logits[] = { 5.0f, 1.0f, 90.0f };
    const firn_logit_bias biases[] = { { 1, 4.5f }, { 2, -100.0f } };
    const firn_sampling s = { .biases = biases, .n_biases = 2 };
    assert_int_equal(choose_once(&s, logits, 3), 1);
    /* Everything forbidden: still a token. */
    const firn_logit_bias all[] = { { 0, -100.0f }, { 1, -1000.0f }, { 2, -100.0f } };
    const firn_sampling none = { .biases = all, .n_biases = 3, .temperature = 1.0f };
    assert_int_equal(choose_once(&none, logits, 3), 0);
}

static void a_penalty_never_overflows_into_nonsense(void **state)
{
    (void)state;
    const float logits[] = { FLT_MAX, -FLT_MAX, 0.0f };
    const firn_logit_bias bias = { .token = 0, .bias = FLT_MAX };
    const firn_sampling s = { .repetition_penalty = 1e-30f, .biases = &bias, .n_biases = 1 };
    firn_sampler *sampler = make(&s, 3);
    firn_sampler_accept(sampler, 0, true);
    assert_int_equal(firn_sampler_choose(sampler, logits), 0);
    firn_sampler_destroy(sampler);
}

static void a_seed_replays_and_other_seeds_differ(void **state)
{
    (void)state;
    float logits[64] = { 0.0f };
    firn_token first[100], again[100], other[100];
    firn_token *const outs[] = { first, again, other };
    const uint64_t seeds[] = { 7, 7, 8 };
    for (uint32_t run = 0; run < 3; run++) {
        const firn_sampling s = { .temperature = 1.0f, .has_seed = true, .seed = seeds[run] };
        firn_sampler *sampler = make(&s, 64);
        for (uint32_t i = 0; i < 100; i++) {
            outs[run][i] = firn_sampler_choose(sampler, logits);
        }
        firn_sampler_destroy(sampler);
    }
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
}

/* Chi-square over 12 cells has 11 degrees of freedom: 31.26 is exceeded with probability 0.001; the seed is fixed, so
 * the test is deterministic. */
static void frequencies_follow_the_exact_distribution(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 200000 };
    const float logits[N] = { 0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 1.5f, -2.0f, 0.25f, 0.75f, 1.25f, -0.5f, 2.25f };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const firn_sampling s = { .temperature = 0.8f, .has_seed = true, .seed = seed };
        firn_sampler *sampler = make(&s, N);
        uint32_t counts[N] = { 0 };
        for (uint32_t i = 0; i < DRAWS; i++) {
            counts[firn_sampler_choose(sampler, logits)]++;
        }
        firn_sampler_destroy(sampler);
        double total = 0.0, chi_square = 0.0;
        for (uint32_t i = 0; i < N; i++) {
            total += exp((double)logits[i] / (double)s.temperature);
        }
        for (uint32_t i = 0; i < N; i++) {
            const double expected = DRAWS * exp((double)logits[i] / (double)s.temperature) / total;
            chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
        print_message("chi-square, seed %u: %.2f\n", (unsigned)seed, chi_square);
        assert_true(chi_square < 31.26);
    }
}

static void exponential_weights_are_accurate_and_the_same_one_by_one(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("exp", 5);
    enum { N = 4 * FIRNI_VOCAB_BLOCK };
    float logits[N];
    double weights[N];
    for (uint32_t round = 0; round < 200; round++) {
        for (uint32_t i = 0; i < N; i++) {
            logits[i] = -fabsf(test_rng_unit(&rng)) * (round < 100 ? 1.0f : 710.0f);
        }
        logits[0] = 0.0f;
        logits[1] = -INFINITY;
        logits[2] = -FLT_MAX;
        logits[3] = -FLT_TRUE_MIN;
        firni_vocab_weights(logits, N, 0.0f, 1.0, weights);
        assert_true(weights[0] == 1.0 && weights[1] == 0.0 && weights[2] == 0.0 && weights[3] == 1.0);
        for (uint32_t i = 4; i < N; i++) {
            const double expected = logits[i] >= -700.0f ? exp((double)logits[i]) : 0.0;
            assert_true(fabs(weights[i] - expected) <= 4.0 * DBL_EPSILON * expected);
            const double alone = firni_exp_weight(logits[i], 0.0f, 1.0);
            assert_memory_equal(&alone, &weights[i], sizeof alone);
        }
    }
}

static void logprobs_agree_with_a_double_reference(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("logprobs", 99);
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t n = 1 + test_rng_below(&rng, N_MAX - 1);
        const uint32_t n_top = test_rng_below(&rng, FIRN_LOGPROBS_MAX + 1);
        float logits[N_MAX];
        entry sorted[N_MAX];
        double sum = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            logits[i] = roundf(20.0f * test_rng_normal(&rng)) / 4.0f;
            sorted[i] = (entry){ .logit = logits[i], .token = i };
            sum += exp((double)logits[i]);
        }
        qsort(sorted, n, sizeof *sorted, by_logit);
        const firn_token token = test_rng_below(&rng, n);
        firn_logprobs out;
        firn_logprobs_compute(logits, n, token, n_top, &out);
        assert_int_equal(out.token, token);
        assert_true(fabs((double)out.logprob - ((double)logits[token] - log(sum))) < 1e-5);
        assert_int_equal(out.n_top, n_top < n ? n_top : n);
        for (uint32_t i = 0; i < out.n_top; i++) {
            assert_int_equal(out.top_tokens[i], sorted[i].token);
            assert_true(fabs((double)out.top_logprobs[i] - ((double)sorted[i].logit - log(sum))) < 1e-5);
        }
    }
}

static void logprobs_of_hostile_logits_are_finite(void **state)
{
    (void)state;
    firn_logprobs out;
    const float huge[] = { FLT_MAX, -FLT_MAX, NAN, INFINITY, -INFINITY };
    firn_logprobs_compute(huge, 5, 0, 5, &out);
    assert_true(out.logprob == 0.0f);
    assert_int_equal(out.n_top, 5);
    for (uint32_t i = 1; i < 5; i++) {
        assert_true(out.top_logprobs[i] == -9999.0f);
    }
    const float none[] = { NAN, -INFINITY };
    firn_logprobs_compute(none, 2, 1, 2, &out);
    assert_true(out.logprob == -9999.0f);
    assert_int_equal(out.top_tokens[0], 0);
}

static void hostile_parameters_are_refused_by_name(void **state)
{
    (void)state;
    const firn_logit_bias outside = { .token = 10, .bias = 0.0f };
    const firn_logit_bias endless = { .token = 1, .bias = NAN };
    const struct {
        firn_sampling sampling;
        const char *member;
    } cases[] = {
        { { .temperature = -0.1f }, "temperature" },
        { { .temperature = 10.5f }, "temperature" },
        { { .temperature = NAN }, "temperature" },
        { { .temperature = INFINITY }, "temperature" },
        { { .top_p = -0.5f }, "top_p" },
        { { .top_p = 1.01f }, "top_p" },
        { { .top_p = NAN }, "top_p" },
        { { .min_p = -1.0f }, "min_p" },
        { { .min_p = 1.5f }, "min_p" },
        { { .repetition_penalty = -1.0f }, "repetition_penalty" },
        { { .repetition_penalty = 10.1f }, "repetition_penalty" },
        { { .repetition_penalty = NAN }, "repetition_penalty" },
        { { .presence_penalty = 2.1f }, "presence_penalty" },
        { { .frequency_penalty = -2.1f }, "frequency_penalty" },
        { { .penalty_last_n = UINT32_MAX }, "penalty_last_n" },
        { { .n_biases = 1 }, "biases" },
        { { .biases = &outside, .n_biases = 1025 }, "n_biases" },
        { { .biases = &outside, .n_biases = 1 }, "biases" },
        { { .biases = &endless, .n_biases = 1 }, "biases" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firn_error err = { 0 };
        firn_sampler *sampler = (firn_sampler *)&err;
        assert_status(firn_sampling_check(&cases[i].sampling, 10, &err), FIRN_ERR_INVALID);
        if (strstr(err.message, cases[i].member) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, err.message, cases[i].member);
        }
        assert_status(firn_sampler_create(&cases[i].sampling, 10, NULL, &sampler, NULL), FIRN_ERR_INVALID);
        assert_null(sampler);
    }
    const firn_sampling fine = { .temperature = 10.0f, .top_p = 1.0f, .min_p = 1.0f, .repetition_penalty = 10.0f,
                                 .presence_penalty = -2.0f, .frequency_penalty = 2.0f, .top_k = UINT32_MAX };
    assert_ok(firn_sampling_check(&fine, 10, NULL));
    firn_sampler *sampler;
    assert_status(firn_sampler_create(&fine, 0, NULL, &sampler, NULL), FIRN_ERR_INVALID);
}

static void choosing_allocates_nothing_and_every_refused_allocation_is_an_error(void **state)
{
    (void)state;
    const firn_logit_bias bias = { .token = 1, .bias = 1.0f };
    const firn_sampling s = { .temperature = 1.0f, .top_k = 40, .top_p = 0.9f, .repetition_penalty = 1.1f,
                              .presence_penalty = 0.5f, .biases = &bias, .n_biases = 1 };
    float logits[100] = { 0.0f };
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firn_sampler *sampler = NULL;
        const firn_status status = firn_sampler_create(&s, 100, &world.env, &sampler, NULL);
        const bool clean = !world.alloc_failed;
        assert_status(status, clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
        if (clean) {
            const uint64_t n_allocs = world.n_allocs;
            for (uint32_t i = 0; i < 50; i++) {
                firn_sampler_accept(sampler, firn_sampler_choose(sampler, logits), false);
            }
            assert_int_equal(world.n_allocs, n_allocs);
        }
        firn_sampler_destroy(sampler);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_smallest_id_among_equals),
        cmocka_unit_test(greedy_leaves_the_logits_untouched_even_with_penalties),
        cmocka_unit_test(logits_that_are_not_finite_count_as_the_smallest),
        cmocka_unit_test(each_filter_keeps_exactly_its_tokens),
        cmocka_unit_test(equal_logits_are_kept_by_the_smaller_id),
        cmocka_unit_test(random_parameters_agree_with_the_naive_reference),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(repetition_looks_back_exactly_as_far_as_asked),
        cmocka_unit_test(a_bias_adds_and_minus_100_forbids),
        cmocka_unit_test(a_penalty_never_overflows_into_nonsense),
        cmocka_unit_test(a_seed_replays_and_other_seeds_differ),
        cmocka_unit_test(frequencies_follow_the_exact_distribution),
        cmocka_unit_test(exponential_weights_are_accurate_and_the_same_one_by_one),
        cmocka_unit_test(logprobs_agree_with_a_double_reference),
        cmocka_unit_test(logprobs_of_hostile_logits_are_finite),
        cmocka_unit_test(hostile_parameters_are_refused_by_name),
        cmocka_unit_test(choosing_allocates_nothing_and_every_refused_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
