/*
 * gate: whether a read from the tier below is worth it, from what reading and computing have taken lately.
 *
 *      time of a read      by its bytes:   a + b x       latency and rate
 *      time of a token     by its depth:   a + b x       attention looks back further
 *
 * Both are straight lines fitted to the latest samples, older ones counting less. A read is worth it when it is
 * expected to end before computing would. It may be waited for without any promise for a small share of that time, and
 * longer only while what has arrived says that it will: so a tier that has become slow costs a prompt that share, once,
 * and is asked again after a pause.
 *
 * Owns the samples and the pause. Knows no clock: times are passed in.
 */
#ifndef FIRNI_GATE_IMPL_H
#define FIRNI_GATE_IMPL_H

#include <stdbool.h>
#include <stdint.h>

/* Weighted sums over the samples. */
typedef struct firni_trend {
    double n, x, y, xx, xy;
} firni_trend;

/* Older samples keep this share of their weight. */
void firni_trend_add(firni_trend *trend, double x, double y, double keep);
/* Never negative; 0 without samples. Where all samples lie at about one x, the line goes through the origin, or is
 * level. */
double firni_trend_at(const firni_trend *trend, double x, bool through_origin);

typedef struct firni_gate {
    firni_trend compute;     /* ns of a token, by depth */
    firni_trend restore;     /* ns of a read, by bytes */
    double compute_ns_min;   /* of a token, while nothing was measured */
    uint64_t next_probe_ns;  /* while it is shut; 0: it was open */
} firni_gate;

typedef enum firni_gate_answer {
    FIRNI_GATE_OPEN,
    FIRNI_GATE_SHUT,
    FIRNI_GATE_PROBE  /* expected to be slower, but it has been a while: try */
} firni_gate_answer;

void firni_gate_learn_compute(firni_gate *gate, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns);
/* n_bytes of a read came in ns; also of one that was given up. */
void firni_gate_learn_restore(firni_gate *gate, uint64_t n_bytes, uint64_t ns);
/* What computing tokens [from, to) would take; 0: not known. */
double firni_gate_compute_ns(const firni_gate *gate, uint32_t from, uint32_t to);
double firni_gate_restore_ns(const firni_gate *gate, uint64_t n_bytes); /* 0: not known */
/* Whether to read n_bytes instead of computing for compute_ns. */
firni_gate_answer firni_gate_ask(firni_gate *gate, double compute_ns, uint64_t n_bytes, uint64_t now_ns);
/* How long a read may be waited for whatever it does; UINT64_MAX: computing is not known. */
uint64_t firni_gate_patience_ns(double compute_ns);
/* Whether a wait of waited_ns should end, for a read that has brought n_done of n_bytes in read_ns. */
bool firni_gate_gives_up(const firni_gate *gate, double compute_ns, uint64_t waited_ns, uint64_t read_ns,
                         uint64_t n_done, uint64_t n_bytes);

#endif
