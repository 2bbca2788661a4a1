/*
 * Arithmetic over a whole vocabulary: cleaning, the largest logit, exponential weights, sums. Owns no state.
 *
 * A vocabulary has up to some 150,000 tokens and every row needs this at every step, so all of it runs in blocks of a
 * constant size over contiguous arrays, which compilers turn into vector code of any width. Arrays are padded to whole
 * blocks; padding has logit -infinity and weight 0.
 *
 * exp is ours for two reasons: libm's cannot be vectorised, and its last bit differs between systems, which would let
 * the same seed choose different tokens. Argument reduction after Cody and Waite, "Software Manual for the Elementary
 * Functions" (1980), chapter 6; then the Taylor polynomial of degree 13, whose remainder on |r| <= ln(2) / 2 is below
 * 2^-57 of the result.
 */
#include <assert.h>
#include <float.h>
#include <string.h>

#include "engine/sampler_impl.h"

#define LANES 8u

/* Below this, exp is less than 1e-304: such a candidate has no weight at all. */
#define EXP_LEAST (-700.0)

/* exp(x) for EXP_LEAST <= x <= 0. */
FIRNI_INLINE double exp_reduced(double x)
{
    /* Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the mantissa. */
    const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52;
    const double k = shifted - 0x1.8p52;
    const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    /* Pairs of coefficients, then pairs of pairs (Estrin's scheme): the chain of dependent operations is short. */
    const double r2 = r * r, r4 = r2 * r2;
    const double p0 = (1.0 + r) + (1.0 / 2.0 + r * (1.0 / 6.0)) * r2;
    const double p4 = (1.0 / 24.0 + r * (1.0 / 120.0)) + (1.0 / 720.0 + r * (1.0 / 5040.0)) * r2;
    const double p8 = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + (1.0 / 3628800.0 + r * (1.0 / 39916800.0)) * r2;
    const double p12 = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0);
    double p = (p0 + p4 * r4) + (p8 + p12 * r4) * (r4 * r4);
    /* p * 2^k: k is added to the exponent field. p lies in [0.7, 1.42], so no carry can leave it. */
    uint64_t bits, power;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 52;
    memcpy(&p, &bits, sizeof p);
    return p;
}

static void clean_block(float *restrict out, const float *restrict logits)
{
    for (uint32_t i = 0; i < FIRNI_VOCAB_BLOCK; i++) {
        out[i] = fabsf(logits[i]) <= FLT_MAX ? logits[i] : -INFINITY;
    }
}

void firni_vocab_clean(float *out, const float *logits, uint32_t n_vocab)
{
    const uint32_t n_whole = n_vocab - n_vocab % FIRNI_VOCAB_BLOCK;
    for (uint32_t i = 0; i < n_whole; i += FIRNI_VOCAB_BLOCK) {
        clean_block(out + i, logits + i);
    }
    for (uint32_t i = n_whole; i < firni_vocab_padded(n_vocab); i++) {
        out[i] = i < n_vocab ? firni_logit_clean(logits[i]) : -INFINITY;
    }
}

float firni_vocab_max(const float *logits, uint32_t n_vocab)
{
    float lanes[LANES];
    for (uint32_t j = 0; j < LANES; j++) {
        lanes[j] = -INFINITY;
    }
    for (uint32_t i = 0; i < firni_vocab_padded(n_vocab); i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
        }
    }
    float largest = lanes[0];
    for (uint32_t j = 1; j < LANES; j++) {
        largest = lanes[j] > largest ? lanes[j] : largest;
    }
    return largest;
}

firn_token firni_vocab_find(const float *logits, uint32_t n_vocab, float logit)
{
    uint32_t i = 0;
    while (i + 1 < n_vocab && logits[i] != logit) {
        i++;
    }
    return i;
}

double firni_exp_weight(float logit, float largest, double scale)
{
    const double x = ((double)logit - (double)largest) * scale;
    return x >= EXP_LEAST ? exp_reduced(x) : 0.0;
}

void firni_vocab_weights(const float *logits, uint32_t n_vocab, float largest, double scale, double *weights)
{
    const double shift = (double)largest;
    for (uint32_t i = 0; i < firni_vocab_padded(n_vocab); i += LANES) {
        /* One operation over all lanes at a time: loops without branches are what gets vectorised. */
        double x[LANES], y[LANES];
        for (uint32_t j = 0; j < LANES; j++) {
            x[j] = ((double)logits[i + j] - shift) * scale;
        }
        for (uint32_t j = 0; j < LANES; j++) {
            y[j] = x[j] > EXP_LEAST ? x[j] : EXP_LEAST;
        }
        for (uint32_t j = 0; j < LANES; j++) {
            y[j] = exp_reduced(y[j]);
        }
        for (uint32_t j = 0; j < LANES; j++) {
            weights[i + j] = x[j] >= EXP_LEAST ? y[j] : 0.0;
        }
    }
}

double firni_block_sum(const double *weights, double weight_min)
{
    double lanes[LANES] = { 0.0 };
    for (uint32_t i = 0; i < FIRNI_VOCAB_BLOCK; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lanes[j] += weights[i + j] >= weight_min ? weights[i + j] : 0.0;
        }
    }
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double firni_vocab_sum(const double *weights, uint32_t n_vocab, double weight_min)
{
    double total = 0.0;
    for (uint32_t i = 0; i < firni_vocab_padded(n_vocab); i += FIRNI_VOCAB_BLOCK) {
        total += firni_block_sum(weights + i, weight_min);
    }
    return total;
}
