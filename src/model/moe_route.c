/*
 * Chooses experts for one token.
 *
 *   1. scores to probabilities: softmax over all, sigmoid of each, or as they are
 *   2. for the choice a bias is added, and experts outside the best groups are left out
 *   3. the n_used best of what remains
 *   4. weights: probabilities of the chosen ones, without the bias; normalised and scaled as the model says
 *
 * A group is as good as the sum of its two best experts where there is a bias, else as its best one: both as their
 * models were trained. Sources: DeepSeek-V2 (arXiv 2405.04434, section 2.1.2, group-limited routing), DeepSeek-V3
 * (arXiv 2412.19437, section 2.1.2, the bias).
 */
#include "model/moe_route.h"

#include <assert.h>
#include <float.h>
#include <math.h>

/* What the sum of weights is at least, before it divides: the smallest normal number of 16 bits. */
#define WEIGHT_SUM_MIN 0x1p-14F

/* ---- 1. probabilities ---- */

static void softmax(const firni_kernels *kernels, float *x, uint32_t n)
{
    const float sum = kernels->exp_sum(x, x, n, kernels->max(x, n));
    for (uint32_t i = 0; i < n; i++) {
        x[i] /= sum;
    }
}

static void to_probabilities(const firni_kernels *kernels, firni_gating gating, float *scores, float *ones, uint32_t n)
{
    switch (gating) {
    case FIRNI_GATING_SOFTMAX: softmax(kernels, scores, n); break;
    case FIRNI_GATING_SIGMOID:
        for (uint32_t i = 0; i < n; i++) {
            ones[i] = 1.0F;
        }
        kernels->sigmoid_mul(scores, scores, ones, n);
        break;
    case FIRNI_GATING_SOFTMAX_CHOSEN: break;
    }
}

/* ---- 2. and 3. the choice ---- */

/* The first of the largest in [begin, end). What is -infinity is not looked at; there is something else. */
static uint32_t best_of(const float *x, uint32_t begin, uint32_t end)
{
    uint32_t best = end;
    for (uint32_t i = begin; i < end; i++) {
        if (x[i] > (best == end ? -INFINITY : x[best])) {
            best = i;
        }
    }
    assert(best < end);
    return best;
}

static float group_score(const float *selection, uint32_t begin, uint32_t end, bool sum_of_two)
{
    float first = -INFINITY;
    float second = -INFINITY;
    for (uint32_t i = begin; i < end; i++) {
        if (selection[i] > first) {
            second = first;
            first = selection[i];
        } else if (selection[i] > second) {
            second = selection[i];
        }
    }
    return sum_of_two && end - begin > 1 ? first + second : first;
}

/* A group stays when fewer than n_groups_used others are better: larger, or equal and before it. */
static bool group_stays(const firni_moe_params *params, const float *selection, uint32_t group, bool sum_of_two)
{
    const uint32_t size = params->n_experts / params->n_groups;
    const float own = group_score(selection, group * size, (group + 1) * size, sum_of_two);
    uint32_t n_better = 0;
    for (uint32_t g = 0; g < params->n_groups; g++) {
        const float other = g == group ? -INFINITY : group_score(selection, g * size, (g + 1) * size, sum_of_two);
        n_better += other > own || (other == own && g < group);
    }
    return n_better < params->n_groups_used;
}

/* Which groups stay is found before any is left out. */
static void leave_groups_out(const firni_moe_params *params, float *selection, bool sum_of_two)
{
    const uint32_t size = params->n_experts / params->n_groups;
    uint64_t stays = 0;
    for (uint32_t g = 0; g < params->n_groups; g++) {
        stays |= (uint64_t)group_stays(params, selection, g, sum_of_two) << g;
    }
    for (uint32_t i = 0; i < params->n_experts; i++) {
        selection[i] = (stays >> i / size & 1) != 0 ? selection[i] : -INFINITY;
    }
}

/* Scores of a damaged model may be anything; the choice still has to be one. */
static float comparable(float x)
{
    return x > -FLT_MAX ? x : -FLT_MAX;
}

void firni_moe_route(const firni_kernels *kernels, const firni_moe_params *params, const float *bias, float *scores,
                     float *selection, firni_chosen *chosen)
{
    const uint32_t n = params->n_experts;
    to_probabilities(kernels, params->gating, scores, selection, n);
    for (uint32_t i = 0; i < n; i++) {
        selection[i] = comparable(bias != NULL ? scores[i] + bias[i] : scores[i]);
    }
    if (params->n_groups_used < params->n_groups) {
        leave_groups_out(params, selection, bias != NULL);
    }
    for (uint32_t i = 0; i < params->n_used; i++) {
        const uint32_t best = best_of(selection, 0, n);
        selection[best] = -INFINITY;
        /* Inserted where it belongs: ascending by expert. */
        uint32_t at = i;
        for (; at > 0 && chosen[at - 1].expert > best; at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = (firni_chosen){ .expert = best };
    }
    /* ---- 4. weights, in the same order ---- */
    float *weights = selection;
    for (uint32_t i = 0; i < params->n_used; i++) {
        weights[i] = scores[chosen[i].expert];
    }
    if (params->gating == FIRNI_GATING_SOFTMAX_CHOSEN) {
        softmax(kernels, weights, params->n_used);
    }
    if (params->weights_norm) {
        float sum = 0.0F;
        for (uint32_t i = 0; i < params->n_used; i++) {
            sum += weights[i];
        }
        sum = sum > WEIGHT_SUM_MIN ? sum : WEIGHT_SUM_MIN;
        for (uint32_t i = 0; i < params->n_used; i++) {
            weights[i] /= sum;
        }
    }
    for (uint32_t i = 0; i < params->n_used; i++) {
        chosen[i].weight = weights[i] * params->weights_scale;
    }
}
