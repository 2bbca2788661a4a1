/*
 * draft: guesses of what a row will say next, so that one forward may yield several tokens.
 *
 *      propose               forward                       take                       close
 *      guesses behind   -->  last token and guesses   -->  plain decoding, for   -->  every layer rolls back to
 *      the row's tokens      as one piece per row          as long as they hold       what was kept
 *
 *      tokens  [ prompt and answer ........ last ][ g1 g2 g3 ]
 *                                                 ^ n_tokens  ^ n_tokens + n_proposed
 *
 *   draft.c        how many guesses each row gets
 *   draft_gate.c   whether guessing pays at all
 *   draft_ngram.c  a source: what followed the same words earlier in the row
 *   draft_model.c  a source: a smaller model with the same tokenizer
 *   verify.c       the round around the forward, and what of a row's guesses is kept
 *
 * A guess never changes an answer. At each position the sampler chooses from the model's own logits, with the request's
 * own random number for that position, exactly as plain decoding would; a guess that equals the choice has merely been
 * forwarded already, so that the next position's logits are there too. Greedy and sampled answers are hence the same
 * tokens with the same log-probabilities, whatever is guessed.
 *
 * This is the rejection sampling of Leviathan, Kalman, Matias, "Fast inference from transformers via speculative
 * decoding" (arXiv 2211.17192) for a proposal that is one token x: x is accepted with probability p(x), and a rejected
 * one is replaced by a draw from p without x. Drawing from p first and comparing afterwards does both at once, and ties
 * the answer to the seed alone (Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
 * speculative decoding", arXiv 2408.07978). Their general form, which accepts a sampled x with min(1, p(x) / q(x)),
 * accepts a little more, but then the same seed gives other words when a drafter's state was evicted, or when other
 * rows took its turn.
 */
#ifndef FIRNI_DRAFT_IMPL_H
#define FIRNI_DRAFT_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "firn/identity.h"
#include "firn/prefix.h"
#include "firn/status.h"

struct firni_sequence;
struct firni_choice;
struct firn_engine;

/* What a request keeps for speculation. */
typedef struct firni_draft {
    uint32_t n_wanted;    /* guesses that the row may have in this step */
    uint32_t n_proposed;  /* guesses it has, behind its tokens */
    uint32_t length;      /* guesses it would like: grows while they hold, shrinks when they do not */
    uint32_t n_failures;  /* rounds in a row in which not one guess held */
    uint32_t pause;       /* steps to sit out after these */
    firn_lease *lease;    /* on the source's own tree, while the request waits */
} firni_draft;

/* One kind of guessing. All but `propose` may be NULL together: the source keeps no state. */
typedef struct firni_draft_ops {
    const char *name;
    firn_status (*create)(struct firn_engine *engine, firn_error *err);
    void (*destroy)(struct firn_engine *engine); /* also after a failed create */
    /* Most bytes of the pool that a request of `tokens` tokens takes; any thread. */
    uint64_t (*request_bytes)(const struct firn_engine *engine, uint32_t tokens);
    /* Bytes of the source's tree that cannot be evicted now. */
    uint64_t (*unevictable_bytes)(const struct firn_engine *engine);
    firn_prefix *(*tree)(const struct firn_engine *engine); /* NULL without a prefix cache */
    /* Starts the lookup of a waiting request: draft.lease. */
    void (*look_up)(struct firn_engine *engine, struct firni_sequence *sequence);
    void (*join)(struct firn_engine *engine, struct firni_sequence *sequence); /* benign when it fails */
    void (*read)(struct firn_engine *engine);    /* at the begin of each step */
    /* Writes up to draft.n_wanted guesses behind the tokens of each row and sets its draft.n_proposed (0 before). */
    void (*propose)(struct firn_engine *engine);
    void (*settle)(struct firn_engine *engine);  /* rows have taken what held: takes the rest back */
    void (*leave)(struct firn_engine *engine);   /* rows whose sequence has ended go */
} firni_draft_ops;

extern const firni_draft_ops firni_draft_ngram, firni_draft_by_model;

/* ---- draft.c ---- */

#define FIRNI_DRAFT_TOKENS_DEFAULT 8u
#define FIRNI_DRAFT_TOKENS_MAX 64u

/* Most guesses of one step over all rows: bounds the step's buffers. 0 without a source. */
uint32_t firni_draft_step_max(const struct firn_engine *engine);
/* The request got its row; so it does in the source. Releases the lease. */
void firni_draft_join(struct firn_engine *engine, struct firni_sequence *sequence);
/* Starts the source's lookup of a waiting request; whether it is over; gives up what it was promised. */
void firni_draft_look_up(struct firn_engine *engine, struct firni_sequence *sequence);
bool firni_draft_ready(struct firni_sequence *sequence);
void firni_draft_release(struct firni_sequence *sequence);
uint64_t firni_draft_request_bytes(const struct firn_engine *engine, uint32_t tokens);
uint64_t firni_draft_unevictable_bytes(const struct firn_engine *engine);
firn_prefix *firni_draft_tree(const struct firn_engine *engine); /* or NULL */
void firni_draft_settle(struct firn_engine *engine);
void firni_draft_leave(struct firn_engine *engine);
/* Fills the guesses of all rows for this step; whether there are any. */
bool firni_draft_propose(struct firn_engine *engine);
/* Learns from a round: so many of the row's guesses held. */
void firni_draft_learn(const struct firn_engine *engine, firni_draft *draft, uint32_t n_held);

/* ---- draft_gate.c ---- */

#define FIRNI_DRAFT_GATE_CLASSES 9u

/* All zero is a gate that knows nothing yet. Times are per generated token. */
typedef struct firni_draft_gate_class {
    double plain_ns, guessing_ns;
    uint32_t n_plain, n_guessing;  /* samples in these, as far as they count */
    uint32_t n_since_plain;        /* guessing steps since the last plain one */
    uint32_t rest;                 /* plain steps to come */
    uint32_t n_failures;           /* in a row: how often guessing turned out slower */
} firni_draft_gate_class;

typedef struct firni_draft_gate {
    firni_draft_gate_class classes[FIRNI_DRAFT_GATE_CLASSES]; /* by number of rows */
} firni_draft_gate;

/* Whether the next step of so many rows should guess. */
bool firni_draft_gate_is_open(firni_draft_gate *gate, uint32_t n_rows);
/* One step that only generated. */
void firni_draft_gate_learn(firni_draft_gate *gate, uint32_t n_rows, bool guessed, uint64_t step_ns, uint64_t n_tokens);

/* ---- verify.c ---- */

/* Opens a round in every layer; without memory for it no row has guesses any more, and the step is a plain one. */
bool firni_round_open(struct firn_engine *engine);
/* The same for any caches, and without a word to the rows. */
bool firni_round_open_in(firn_cache *const *caches, uint32_t n_layers);
void firni_round_close_in(firn_cache *const *caches, uint32_t n_layers, uint32_t n_rows, const uint32_t *appended,
                          const uint32_t *kept);
/* Closes it in every layer: of step_counts[row] tokens the first step_kept[row] stay. */
void firni_round_close(struct firn_engine *engine);
/* Gives the row's guesses up, before they were forwarded. */
void firni_round_drop_guesses(struct firn_engine *engine);
/* Chooses tokens for a row whose last token was forwarded, as far as its guesses hold; logits: of that token, then of
 * each guess. Adds the guesses that held to sequence.n_cached. made: the first choice, if it was made already,
 * or NULL. */
void firni_verify_row(struct firn_engine *engine, struct firni_sequence *sequence, const float *logits,
                      const struct firni_choice *made);

#endif
