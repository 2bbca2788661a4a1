/*
 * usable: how much of a stored path a prompt can resume from, over all storage families.
 *
 * A position p is usable when, at p,
 *
 *      full layers     have the blocks of [0, p): every step of the path has them
 *      window layers   have their blocks from the start of the window before p on
 *      fixed layers    have a checkpoint: their state after exactly p tokens
 *
 * and p is not before the first offset at which the kept representation can resume. The token tree and every tier
 * describe their path as steps of 64 tokens and ask the one function below, so they can never disagree.
 *
 *      steps     | 0          | 1          | 2          | 3     |        windows of 100 tokens
 *      windows   | gone       | here       | here       | here  |
 *      states    |            |         *  |            |   *   |        * checkpoints, at 120 and 213
 *
 * At 213 the window begins in step 1 and all of it is here: usable. At 120 it begins in step 0: not.
 */
#ifndef FIRNI_USABLE_IMPL_H
#define FIRNI_USABLE_IMPL_H

#include "layout/family_impl.h"

/* The families of one schema. A zeroed struct with only the counts set serves schemas without windows.
 *
 * Window layers are of one *kind* when their caches describe themselves alike. Kinds are numbered by their windows,
 * longest first: what a row still holds of an old block is then its first few kinds, since it let go of the shorter
 * windows' before. */
typedef struct firni_families {
    const firn_env *env;
    uint32_t n_layers;
    uint32_t n_full, n_window, n_fixed; /* layers; one with blocks and a fixed-size state counts twice */
    firn_cache **windows;               /* an empty cache of each kind: knows its window's bounds */
    uint32_t n_windows;                 /* kinds */
    uint32_t *kinds;                    /* per layer: its kind; of no meaning for layers without a window */
} firni_families;

/* layers: one cache per layer of the schema, of any number of rows, borrowed for the call. Errors: NO_MEMORY. */
firn_status firni_families_init(firni_families *families, const firn_cache *const *layers, uint32_t n_layers,
                                const firn_env *env, firn_error *err);
void firni_families_deinit(firni_families *families); /* accepts a zeroed struct */
/* The first step whose window blocks a row of n_tokens needs: the smallest over the window layers. The number of the
 * row's steps when there are no window layers. */
uint32_t firni_families_first_window(const firni_families *families, uint32_t n_tokens);
/* Of how many kinds, counted from the longest window, a row of n_tokens needs the blocks of step `index`. */
uint32_t firni_families_windows_needed(const firni_families *families, uint32_t n_tokens, uint32_t index);

/* What one step of a path holds. All steps hold the blocks of the full layers. */
typedef struct firni_path_step {
    uint32_t first_token;   /* 64 times the index */
    uint32_t n_tokens;      /* 1..64; less than 64 only at the end of the path */
    uint32_t reusable_from; /* no shorter prefix can be resumed from this step's state */
    bool has_windows;       /* the blocks of all window layers are here */
    uint32_t n_windows;     /* without all: those of the first so many kinds are */
    bool cut_anywhere;      /* the token blocks can be cut after any token */
    bool boundary;          /* they can be cut at the step's end, where a row ended */
    uint64_t checkpoints;   /* bit i: the states of all fixed layers after i + 1 of the step's tokens are here */
} firni_path_step;

/* Describes step `index`. Asked for each step at most once, from the last one down without a gap, so that a walk from
 * child to parent will do. */
typedef firni_path_step (*firni_step_at)(void *ctx, uint32_t index);

/* The largest usable p <= n_max on a path of n_steps steps; 0: none. It lies in step (p - 1) / 64. */
uint32_t firni_usable_prefix(const firni_families *families, uint32_t n_steps, firni_step_at step_at, void *ctx,
                             uint32_t n_max);

#endif
