/*
 * See pace_impl.h.
 */
#include <assert.h>

#include "engine/pace_impl.h"

#define SAMPLES_WEIGHT 8u /* a new plain step counts one eighth */
#define TOKEN_KEEP     0.9
/* A step is planned for this share of the bound: of a hundred, one takes a tenth longer than its like. */
#define AIM_SHARE 0.85
/* A sample so many times what was expected was interrupted: it counts as this much. */
#define OUTLIER_FACTOR 4.0
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

void firni_pace_learn_plain(firni_pace *pace, uint32_t n_rows, uint64_t ns)
{
    assert(n_rows > 0);
    firni_pace_class *c = &pace->classes[class_of(n_rows)];
    const double value = clamp_outlier((double)ns, c->plain_ns);
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
    firni_trend_add(&pace->token, depth_tokens, clamp_outlier(value, expected), TOKEN_KEEP);
    if (n_tokens >= pace->largest) {
        pace->largest = n_tokens;
        pace->largest_ns = (double)ns;
    }
}

/* What a token adds to many cannot be told from a few, which come along while the weights are read. But so many times the
 * tokens take at most so many times the time: by that the chunk grows to a size that was never tried. */
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
    const double usual = FIRNI_PACE_STEPS_MAX * plain > FIRNI_PACE_NS_MIN ? FIRNI_PACE_STEPS_MAX * plain : FIRNI_PACE_NS_MIN;
    const double bound = bound_ns > 0 ? (double)bound_ns : usual;
    const double room = AIM_SHARE * bound - (double)used_ns;
    const double token = firni_trend_at(&pace->token, depth_tokens, false);
    const double n_limit = tokens_tried(pace, room, n_max);
    double n = n_limit;
    if (room - plain < token * n_limit) {
        n = room > plain ? (room - plain) / token : 0.0; /* token > 0: less than nothing is not asked for */
    }
    const double n_least = FIRNI_PACE_TOKENS_MIN < n_max ? FIRNI_PACE_TOKENS_MIN : n_max;
    return (uint32_t)(n > n_least ? n : n_least);
}
