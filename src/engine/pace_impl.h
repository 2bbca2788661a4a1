/*
 * pace: how many prompt tokens a step may bring beside rows that decode, so that these hear from it in time.
 *
 *      time of a step  =  plain(rows)  +  tokens of prompts * token(depth)
 *
 * Both are measured: plain steps apart for each size of batch, what a prompt's token adds as a straight line over its
 * depth, older samples counting less. The rows' bound is either given or a multiple of their own plain step, which is
 * the usual one: other work on the machine makes some steps long, and a bound of their mean would be longer than what
 * the rows are used to.
 *
 * A step is planned for so much of the bound that 99 of 100 stay within it, learnt from how far steps exceeded what was
 * expected of them. That costs the prompt little, as long as small chunks are computed nearly as fast as large ones.
 *
 * The bound is kept as long as a few tokens of a prompt fit into it: no prompt waits for the rows to end. Bits do not
 * depend on chunks, so that a decision by the clock changes nothing but the time.
 *
 * Owns the samples. Knows no clock: times are passed in.
 */
#ifndef FIRNI_PACE_IMPL_H
#define FIRNI_PACE_IMPL_H

#include "prefix/gate_impl.h"

#define FIRNI_PACE_CLASSES 9u /* 1, 2, 3..4, ..., 129..256 rows */
/* Without a bound: this many plain steps between two tokens of a row, or 20 tokens a second, which is faster than
 * anybody reads: prompts beside a small model are not to wait for what nobody would notice. */
#define FIRNI_PACE_STEPS_MAX 4u
#define FIRNI_PACE_NS_MIN    50e6
/* A bound that is none: chunks do not depend on any clock. */
#define FIRNI_PACE_NS_NONE   UINT64_C(3600000000000)
/* What a step brings of prompts at least, unless the rows' own step is not known yet. */
#define FIRNI_PACE_TOKENS_MIN 4u
/* A step is planned to take the bound divided by at least, and at most, this. Where steps vary more, on a machine with
 * many times more work than processors, the bound is given up rather than the prompt held up further. */
#define FIRNI_PACE_EXCESS_MIN 1.05
#define FIRNI_PACE_EXCESS_MAX 1.35

typedef struct firni_pace_class {
    double plain_ns;
    uint32_t n_samples;
} firni_pace_class;

typedef struct firni_pace {
    firni_pace_class classes[FIRNI_PACE_CLASSES];
    firni_trend token;    /* ns that a prompt's token adds, by its depth */
    uint32_t largest;     /* most of them in one of these steps, */
    double largest_ns;    /* and what that step took */
    double excess;        /* 99 of 100 steps take at most so many times what was expected; 0: none was seen */
} firni_pace;

/* A step of n_rows rows that brought one token each, and their guesses. */
void firni_pace_learn_plain(firni_pace *pace, uint32_t n_rows, uint64_t ns);
/* A step with n_tokens of prompts, at depth_tokens on the average, beside n_rows (>= 0) rows that decode. */
void firni_pace_learn_prompt(firni_pace *pace, uint32_t n_rows, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns);
/* Most tokens of prompts, at depth_tokens, in a step that begins used_ns after n_rows rows last heard something.
 * bound_ns: 0 for the usual one, above. Returns n_max without rows, or without a bound; 0 to ask for a plain step. */
uint32_t firni_pace_tokens(const firni_pace *pace, uint32_t n_rows, uint32_t depth_tokens, uint64_t bound_ns,
                           uint64_t used_ns, uint32_t n_max);

#endif
