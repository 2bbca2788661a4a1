/*
 * Whether guessing pays on this machine, with this model, at this load. Owns the measurement and the decision.
 *
 * A forward of nine tokens costs little more than one of one token when it waits for memory, and nine times as much
 * when it computes; a drafter's own forwards come on top. Which it is depends on the model's size, the processor's
 * caches, the rows in the batch and on what else the machine does, so it is measured: time per generated token of steps
 * with guesses and of steps without, apart for each size of batch. Where guessing is slower it rests, for twice as many
 * steps each time that it was tried in vain.
 *
 *      plain plain ... | guesses ... (now and then a plain step) ... slower: | rest, plain | guesses ...
 *
 * Answers do not depend on who guesses what, so that a decision by the clock changes nothing but the time.
 */
#include <assert.h>

#include "engine/draft_impl.h"

enum {
    SAMPLES_MIN = 6,       /* steps of a kind before they are compared */
    WEIGHT = 8,            /* a new sample counts one eighth */
    RECHECK_STEPS = 64,    /* guessing steps between two plain ones */
    REST_STEPS = 32,       /* the first rest */
    REST_DOUBLINGS_MAX = 6
};

/* 1, 2, 3..4, 5..8, ... rows */
static firni_draft_gate_class *class_of(firni_draft_gate *gate, uint32_t n_rows)
{
    uint32_t i = 0;
    while (i + 1 < FIRNI_DRAFT_GATE_CLASSES && (1u << i) < n_rows) {
        i++;
    }
    return &gate->classes[i];
}

/* A mean of the first few, then one that forgets. A step that was interrupted for long says little about the next. */
static void add_sample(double *mean, uint32_t *n_samples, double value)
{
    if (*n_samples > 0 && value > 4.0 * *mean) {
        value = 4.0 * *mean;
    }
    *n_samples += *n_samples < WEIGHT;
    *mean += (value - *mean) / *n_samples;
}

bool firni_draft_gate_is_open(firni_draft_gate *gate, uint32_t n_rows)
{
    firni_draft_gate_class *c = class_of(gate, n_rows);
    if (c->rest > 0) {
        c->rest--;
        return false;
    }
    if (c->n_plain < SAMPLES_MIN) {
        return false; /* nothing to compare with yet */
    }
    if (c->n_since_plain >= RECHECK_STEPS) {
        c->n_since_plain = 0;
        return false;
    }
    return true;
}

void firni_draft_gate_learn(firni_draft_gate *gate, uint32_t n_rows, bool guessed, uint64_t step_ns, uint64_t n_tokens)
{
    assert(n_tokens > 0);
    firni_draft_gate_class *c = class_of(gate, n_rows);
    const double ns_per_token = (double)step_ns / (double)n_tokens;
    if (!guessed) {
        c->n_since_plain = 0;
        add_sample(&c->plain_ns, &c->n_plain, ns_per_token);
        return;
    }
    c->n_since_plain++;
    add_sample(&c->guessing_ns, &c->n_guessing, ns_per_token);
    if (c->n_guessing < SAMPLES_MIN) {
        return;
    }
    if (c->guessing_ns <= c->plain_ns) {
        c->n_failures = 0;
        return;
    }
    c->rest = (uint32_t)REST_STEPS << c->n_failures;
    c->n_failures += c->n_failures < REST_DOUBLINGS_MAX;
    c->n_guessing = 0; /* measured anew after the rest: it may be another text, or another load */
    c->guessing_ns = 0.0;
}
