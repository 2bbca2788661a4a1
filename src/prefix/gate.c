/*
 * See gate_impl.h. Least squares over exponentially weighted samples; the sums are all that is kept.
 */
#include "prefix/gate_impl.h"

#define COMPUTE_KEEP 0.9
#define RESTORE_KEEP 0.8
/* The spread of x below which a slope would be noise: a share of its mean square. */
#define SPREAD_MIN 0.01
/* A read this many times slower or faster than expected says that the device is not the one that was
 * measured before. */
#define CHANGE_FACTOR 4.0
/* Shares of the time that computing takes: waited for in any case, and by when a read must be expected to end. With the
 * first, a prompt whose read is given up takes less than a tenth longer than without a tier. */
#define PATIENCE_SHARE 0.08
#define WORTH_SHARE    0.9
/* Nor is there anything to gain from giving up sooner than this: what it may cost, nobody notices. */
#define PATIENCE_NS_MIN UINT64_C(5000000)
/* Without news: a read that takes so many times what was expected is given up. */
#define LATE_FACTOR 2.0
#define PROBE_PAUSE_NS UINT64_C(30000000000)

void firni_trend_add(firni_trend *trend, double x, double y, double keep)
{
    *trend = (firni_trend){ .n = keep * trend->n + 1.0,
                            .x = keep * trend->x + x,
                            .y = keep * trend->y + y,
                            .xx = keep * trend->xx + x * x,
                            .xy = keep * trend->xy + x * y };
}

double firni_trend_at(const firni_trend *trend, double x, bool through_origin)
{
    if (trend->n <= 0.0) {
        return 0.0;
    }
    const double mean_x = trend->x / trend->n, mean_y = trend->y / trend->n;
    const double spread = trend->xx / trend->n - mean_x * mean_x;
    double slope = through_origin && mean_x > 0.0 ? mean_y / mean_x : 0.0;
    if (spread > SPREAD_MIN * trend->xx / trend->n) {
        const double fitted = (trend->xy / trend->n - mean_x * mean_y) / spread;
        /* Neither falls as x grows, and neither is below zero at 0: then noise is all there is. */
        const bool is_sound = fitted >= 0.0 && mean_y - fitted * mean_x >= 0.0;
        slope = is_sound ? fitted : slope;
    }
    const double y = mean_y + slope * (x - mean_x);
    return y > 0.0 ? y : 0.0;
}

void firni_gate_learn_compute(firni_gate *gate, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns)
{
    if (n_tokens > 0) {
        firni_trend_add(&gate->compute, (double)depth_tokens, (double)ns / (double)n_tokens, COMPUTE_KEEP);
    }
}

void firni_gate_learn_restore(firni_gate *gate, uint64_t n_bytes, uint64_t ns)
{
    const double expected = firni_gate_restore_ns(gate, n_bytes);
    if (expected > 0.0 && ((double)ns > CHANGE_FACTOR * expected || (double)ns * CHANGE_FACTOR < expected)) {
        gate->restore = (firni_trend){ .n = 0.0 };
    }
    firni_trend_add(&gate->restore, (double)n_bytes, (double)ns, RESTORE_KEEP);
}

/* A line over the depth: the tokens' times add up to that of the one in the middle, times their number. */
double firni_gate_compute_ns(const firni_gate *gate, uint32_t from, uint32_t to)
{
    const double n = to > from ? (double)(to - from) : 0.0;
    if (gate->compute.n <= 0.0) {
        return n * gate->compute_ns_min;
    }
    return n * firni_trend_at(&gate->compute, ((double)from + (double)to) / 2.0, false);
}

double firni_gate_restore_ns(const firni_gate *gate, uint64_t n_bytes)
{
    return firni_trend_at(&gate->restore, (double)n_bytes, true);
}

firni_gate_answer firni_gate_ask(firni_gate *gate, double compute_ns, uint64_t n_bytes, uint64_t now_ns)
{
    const double restore_ns = firni_gate_restore_ns(gate, n_bytes);
    if (compute_ns <= 0.0 || restore_ns <= WORTH_SHARE * compute_ns) {
        gate->next_probe_ns = 0;
        return FIRNI_GATE_OPEN;
    }
    if (gate->next_probe_ns == 0) {
        gate->next_probe_ns = now_ns + PROBE_PAUSE_NS;
    }
    if (now_ns < gate->next_probe_ns) {
        return FIRNI_GATE_SHUT;
    }
    gate->next_probe_ns = now_ns + PROBE_PAUSE_NS;
    return FIRNI_GATE_PROBE;
}

uint64_t firni_gate_patience_ns(double compute_ns)
{
    if (compute_ns <= 0.0) {
        return UINT64_MAX;
    }
    const uint64_t share_ns = (uint64_t)(PATIENCE_SHARE * compute_ns);
    return share_ns > PATIENCE_NS_MIN ? share_ns : PATIENCE_NS_MIN;
}

bool firni_gate_gives_up(const firni_gate *gate, double compute_ns, uint64_t waited_ns, uint64_t read_ns,
                         uint64_t n_done, uint64_t n_bytes)
{
    if (waited_ns < firni_gate_patience_ns(compute_ns)) {
        return false;
    }
    const double expected = firni_gate_restore_ns(gate, n_bytes);
    if (n_done == 0) {
        return expected <= 0.0 || expected > WORTH_SHARE * compute_ns || (double)read_ns > LATE_FACTOR * expected;
    }
    /* What is left, at the rate so far. */
    const double left_ns = n_bytes > n_done ? (double)read_ns * (double)(n_bytes - n_done) / (double)n_done : 0.0;
    return (double)waited_ns + left_ns > WORTH_SHARE * compute_ns;
}
