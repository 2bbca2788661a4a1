/*
 * draft_model: guesses by a second, smaller model with the same tokenizer. The inside, shared by
 *
 *   draft_model.c        life: creation and checks, its tree, joining and leaving
 *   draft_model_rows.c   what it does in a step: read along, guess, take back
 *
 * The drafter has a row for each request that it could join, in its own order:
 *
 *      engine.rows     A  B  C  D          A request without a row here (no memory for one) is decoded plainly:
 *      drafter.rows    A  C  D             a drafter that fails costs speed, never a request.
 *
 *      a row's tokens  [ prompt ........ answer ... last ][ g1 g2 g3 ]
 *      between steps   |------ n_read ------|                            behind by what it has not read yet
 *      while guessing  |------ n_read -------------------------------|   a round; then back to what was kept
 *
 * Its state is a function of the tokens, like the model's own. So it has a tree of its own over the same pool, with the
 * same rules for what may be cut where, and below it a tier of its own identity. Attachments, which bind method state
 * to one exact boundary, would give a hit only where a prompt ends as an earlier one did, and would copy what blocks
 * share.
 */
#ifndef FIRNI_DRAFT_MODEL_IMPL_H
#define FIRNI_DRAFT_MODEL_IMPL_H

#include "engine/engine_impl.h"

typedef struct firni_draft_model {
    firn_model *model;
    const firn_schema *schema;
    uint32_t n_vocab;           /* of the drafter's output; the file may pad it otherwise than the model's */
    firn_prefix *prefix;        /* NULL without a prefix cache */
    firn_cache **shapes;        /* [n_layers], always empty: sizes, for any thread */

    firni_sequence **rows;      /* [batch_rows_max]; row r of every cache belongs to rows[r] */
    uint32_t n_rows;
    firn_cache **caches;        /* [n_layers], n_rows rows each */

    bool in_round;              /* guesses were forwarded and not settled yet */
    uint32_t n_step_tokens_max;
    firn_token *step_tokens;    /* [n_step_tokens_max] */
    uint8_t *step_wanted;       /* the same */
    uint32_t *step_counts;      /* [batch_rows_max] */
    uint32_t *appended;         /* [batch_rows_max] tokens of the round */
    uint32_t *keep;             /* [batch_rows_max] of these, or row numbers for a filter */
    float *step_logits;         /* [batch_rows_max, n_vocab] */
    float *row_logits;          /* [engine.n_vocab]: one row's, when the two vocabularies are padded differently */
} firni_draft_model;

/* ---- draft_model_rows.c ---- */

/* Reads along: prompts in chunks, and rows that are far behind. */
void firni_draft_model_read(firn_engine *engine);
void firni_draft_model_propose(firn_engine *engine);
/* After the model's own round: takes back what did not hold. */
void firni_draft_model_settle(firn_engine *engine);

/* ---- draft_model.c ---- */

/* Puts the row's state into the drafter's tree; benign when it fails. */
void firni_draft_model_publish(firn_engine *engine, uint32_t row);

#endif
