/*
 * See pace_impl.h.
 */
#include <assert.h>

#include "engine/pace_impl.h"

#define SAMPLES_WEIGHT 8u /* a new plain step counts one eighth */
#define TOKEN_KEEP     0.9
/* A sample so many times what was expected was interrupted: it counts as this much. */
#define OUTLIER_FACTOR 4.0
/* Once a plain step is known, one that took this many times as long, or as short, counts as this: so the value stays
 * near the median of steps of which some are interrupted, and still follows those that grow with the rows' contexts. */
#define PLAIN_FACTOR 1.25
/* Until steps were seen: of a hundred, one takes a sixth longer than expected. */
#define EXCESS_FIRST 1.18
/* The quantile is found by steps: up by this where it was exceeded, down by a 99th of it where not. */
#define EXCESS_STEP 0.05
/* Without rows a small chunk takes what reading the weights takes, which says nothing about its tokens. */
#define ALONE_TOKENS_MIN 16u

static uint32_t class_of(uint32_t n_rows)
{
    uint32_t i = 0;
    while (i + 1 < FIRNI_PACE_CLASSES && (1u << i) < n_rows) {
        i++;
    }
    return i;
}

/* 0: not known. */
static double plain_ns(const firni_pace *pace, uint32_t n_rows)
{
    return n_rows > 0 ? pace->classes[class_of(n_rows)].plain_ns : 0.0;
}

static bool is_known(const firni_pace *pace, uint32_t n_rows)
{
    return n_rows == 0 || pace->classes[class_of(n_rows)].n_samples > 0;
}

static double clamp_outlier(double value, double expected)
{
    return expected > 0.0 && value > OUTLIER_FACTOR * expected ? OUTLIER_FACTOR * expected : value;
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

static double excess_of(const firni_pace *pace)
{
    return pace->excess > 0.0 ? pace->excess : EXCESS_FIRST;
}

static void learn_excess(firni_pace *pace, double expected_ns, double ns)
{
    const double excess = excess_of(pace);
    const double change = ns > excess * expected_ns ? EXCESS_STEP : -EXCESS_STEP / 99.0;
    pace->excess = clamp(excess * (1.0 + change), FIRNI_PACE_EXCESS_MIN, FIRNI_PACE_EXCESS_MAX);
}

void firni_pace_learn_plain(firni_pace *pace, uint32_t n_rows, uint64_t ns)
{
    assert(n_rows > 0);
    firni_pace_class *c = &pace->classes[class_of(n_rows)];
    double value = clamp_outlier((double)ns, c->plain_ns);
    if (c->n_samples == SAMPLES_WEIGHT) {
        value = clamp(value, c->plain_ns / PLAIN_FACTOR, c->plain_ns * PLAIN_FACTOR);
    }
    c->n_samples += c->n_samples < SAMPLES_WEIGHT;
    c->plain_ns += (value - c->plain_ns) / c->n_samples;
}

void firni_pace_learn_prompt(firni_pace *pace, uint32_t n_rows, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns)
{
    if (n_tokens == 0 || !is_known(pace, n_rows) || (n_rows == 0 && n_tokens < ALONE_TOKENS_MIN)) {
        return;
    }
    const double added_ns = (double)ns - plain_ns(pace, n_rows);
    const double value = added_ns > 0.0 ? added_ns / n_tokens : 0.0;
    const double expected = firni_trend_at(&pace->token, depth_tokens, false);
    if (n_rows > 0 && expected > 0.0 && n_tokens >= FIRNI_PACE_TOKENS_MIN) {
        learn_excess(pace, plain_ns(pace, n_rows) + n_tokens * expected, (double)ns);
    }
    firni_trend_add(&pace->token, depth_tokens, clamp_outlier(value, expected), TOKEN_KEEP);
    if (n_tokens >= pace->largest) {
        pace->largest = n_tokens;
        pace->largest_ns = (double)ns;
    }
}

/* What a token adds to many cannot be told from a few, which come along while the weights are read. But so many times
 * the tokens take at most so many times the time: by that the chunk grows to a size that was never tried. */
static double tokens_tried(const firni_pace *pace, double room_ns, uint32_t n_max)
{
    double n = pace->largest;
    if (n > 0.0 && room_ns > pace->largest_ns) {
        n = pace->largest_ns * n_max < room_ns * n ? n_max : n * room_ns / pace->largest_ns;
    }
    return n < n_max ? n : n_max;
}

uint32_t firni_pace_tokens(const firni_pace *pace, uint32_t n_rows, uint32_t depth_tokens, uint64_t bound_ns,
                           uint64_t used_ns, uint32_t n_max)
{
    if (n_rows == 0 || bound_ns >= FIRNI_PACE_NS_NONE) {
        return n_max;
    }
    if (!is_known(pace, n_rows)) {
        return 0; /* such a step is cheap, and comes once for each size of batch */
    }
    const double plain = plain_ns(pace, n_rows);
    const double steps = FIRNI_PACE_STEPS_MAX * plain;
    const double usual = steps > FIRNI_PACE_NS_MIN ? steps : FIRNI_PACE_NS_MIN;
    const double bound = bound_ns > 0 ? (double)bound_ns : usual;
    const double room = bound / excess_of(pace) - (double)used_ns;
    const double token = firni_trend_at(&pace->token, depth_tokens, false);
    const double n_limit = tokens_tried(pace, room, n_max);
    double n = n_limit;
    if (room - plain < token * n_limit) {
        n = room > plain ? (room - plain) / token : 0.0; /* token > 0: less than nothing is not asked for */
    }
    const double n_least = FIRNI_PACE_TOKENS_MIN < n_max ? FIRNI_PACE_TOKENS_MIN : n_max;
    return (uint32_t)(n > n_least ? n : n_least);
}
