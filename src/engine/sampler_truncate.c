/*
 * top-k and top-p on a partial selection: in time linear in the vocabulary for all but contrived logits, never sorting
 * it. Owns no state.
 *
 * Sources: a bounded heap for the k best; for top-p ("nucleus", Holtzman et al. 2020, section 3.1) a quickselect
 * (Hoare, "Algorithm 65: Find", 1961) whose rank is a sum of weights instead of a count.
 */
#include <assert.h>
#include <string.h>

#include "engine/sampler_impl.h"

static void swap(firni_candidate *a, firni_candidate *b)
{
    const firni_candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* Restores the heap below `at`: a parent comes after its children, so that the root is the worst of the k best. */
static void sift_down(firni_candidate *heap, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t worst = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++) {
            if (firni_candidate_before(&heap[worst], &heap[child])) {
                worst = child;
            }
        }
        if (worst == at) {
            return;
        }
        swap(&heap[at], &heap[worst]);
        at = worst;
    }
}

void firni_truncate_top_k(const float *logits, uint32_t n_vocab, uint32_t k, float largest, double scale,
                          double *weights, firni_candidate *scratch)
{
    assert(k >= 1 && k < n_vocab);
    for (uint32_t i = 0; i < k; i++) {
        scratch[i] = (firni_candidate){ .logit = logits[i], .token = i };
    }
    for (uint32_t i = k / 2; i-- > 0;) {
        sift_down(scratch, k, i);
    }
    for (uint32_t i = k; i < n_vocab; i++) {
        /* Ids ascend: an equal logit comes after the root and is not wanted. */
        if (logits[i] > scratch[0].logit) {
            scratch[0] = (firni_candidate){ .logit = logits[i], .token = i };
            sift_down(scratch, k, 0);
        }
    }
    memset(weights, 0, firni_vocab_padded(n_vocab) * sizeof *weights);
    for (uint32_t i = 0; i < k; i++) {
        weights[scratch[i].token] = firni_exp_weight(scratch[i].logit, largest, scale);
    }
}

/* Moves what comes before `pivot` to the front; returns how many, and their weight. The pivot itself goes behind. */
static uint32_t partition(firni_candidate *candidates, uint32_t n, firni_candidate pivot, double *weight)
{
    uint32_t n_before = 0;
    *weight = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        if (firni_candidate_before(&candidates[i], &pivot)) {
            *weight += candidates[i].weight;
            swap(&candidates[i], &candidates[n_before++]);
        }
    }
    return n_before;
}

/* The last candidate of the shortest prefix of the order whose weights reach `target`; permutes candidates. */
static firni_candidate find_cut(firni_candidate *candidates, uint32_t n, double target)
{
    /* candidates[0..n) hold the cut; what came before them in order weighs `settled`. */
    double settled = 0.0;
    uint64_t round = 0;
    while (n > 1) {
        /* Mixed bits as the pivot's place: no arrangement of logits is slow every time, and nothing depends on it. */
        const firni_candidate pivot = candidates[firni_mix64(++round) % n];
        double weight_before;
        const uint32_t n_before = partition(candidates, n, pivot, &weight_before);
        if (n_before > 0 && settled + weight_before >= target) {
            n = n_before;
            continue;
        }
        settled += weight_before + pivot.weight;
        if (settled >= target) {
            return pivot;
        }
        /* The cut comes after the pivot: drop the front and the pivot. */
        uint32_t n_after = 0;
        for (uint32_t i = n_before; i < n; i++) {
            if (firni_candidate_before(&pivot, &candidates[i])) {
                candidates[n_after++] = candidates[i];
            }
        }
        if (n_after == 0) {
            return pivot; /* rounding of the sums: everything is needed */
        }
        n = n_after;
    }
    return candidates[0];
}

void firni_truncate_top_p(const float *logits, uint32_t n_vocab, double share, double *weights,
                          firni_candidate *scratch)
{
    assert(share > 0.0 && share < 1.0);
    const double total = firni_vocab_sum(weights, n_vocab, 0.0);
    const double target = share * total;
    /* What is lighter than this cannot be needed: all of it together weighs less than what may be missing. Most of a
     * vocabulary goes here, and a float of difference keeps rounding out of the argument. */
    const double lightest = (total - target) / n_vocab * 0.999999;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        /* Written without a branch: n never runs ahead of i, and what is not wanted is overwritten by the next. */
        scratch[n] = (firni_candidate){ .weight = weights[i], .logit = logits[i], .token = i };
        n += weights[i] >= lightest;
    }
    assert(n >= 1); /* the best weighs 1, the total at most n_vocab */
    const firni_candidate cut = find_cut(scratch, n, target);
    for (uint32_t i = 0; i < n_vocab; i++) {
        /* The mask rather than a branch: which side a token is on is not predictable near the cut. */
        const bool is_kept = logits[i] > cut.logit || (logits[i] == cut.logit && i <= cut.token);
        weights[i] = is_kept ? weights[i] : 0.0;
    }
}
