/*
 * single_row: a model, its workers and one row of state, for commands that evaluate one token list after another.
 */
#ifndef FIRNI_SINGLE_ROW_H
#define FIRNI_SINGLE_ROW_H

#include "firn/model.h"

typedef struct firni_single_row {
    const firn_env *env;
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    firn_cache **caches; /* one per layer of the schema, with one row each */
} firni_single_row;

/* options->workers and max_rows are filled in; 0 threads: all cores. The pool grows with what the row needs. After a
 * failure, too, the row is to be closed. Errors: those of firn_model_open, NO_MEMORY. */
firn_status firni_single_row_open(firni_single_row *row, const firn_model_options *options, uint32_t n_threads,
                                  const firn_env *env, firn_error *err);
/* Forgets all tokens. Errors: NO_MEMORY; the row has none or all of them then, and may be restarted again. */
firn_status firni_single_row_restart(firni_single_row *row, firn_error *err);
/* Forwards the row's next tokens, no more than options->max_batch_tokens, in one step but for where a layer changes
 * precision; logits: [n_tokens, n_vocab], of every position. want: n_tokens bytes of 1. Errors: those of
 * firn_model_forward. */
firn_status firni_single_row_forward(firni_single_row *row, const firn_token *tokens, uint32_t n_tokens,
                                     const uint8_t *want, float *logits, firn_error *err);
void firni_single_row_close(firni_single_row *row); /* accepts a zeroed row */

#endif
