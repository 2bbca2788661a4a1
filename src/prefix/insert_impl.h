/*
 * insert: the plan of one insertion, shared by insert_plan.c, which makes it, and insert.c, which carries it out.
 *
 *      root - [64] - [64] - [64] - [64] - [20]            the rows: 276 tokens, window blocks from the third on
 *              |______________|      |      |
 *               held, to the       steps: two blocks to add; the first may be a tail that grows
 *               anchor; its window
 *               blocks come back when they had been given up
 */
#ifndef FIRNI_INSERT_IMPL_H
#define FIRNI_INSERT_IMPL_H

#include "prefix/prefix_impl.h"

typedef struct firni_insertion_plan {
    firni_node *anchor;       /* deepest node that is there already; a root when there is none */
    firni_node *grows;        /* child of the anchor that is a beginning of the next tokens, or NULL */
    uint32_t n_held;          /* tokens on the path to the anchor, of the sequence */
    uint32_t n_steps;         /* blocks to add, the one that grows included */
    firni_node *head, *tail;  /* new nodes, linked among themselves */
    firni_checkpoint *checkpoint; /* new, with borrowed states; NULL when there is none to add */
    uint32_t first_window;    /* the first block of a window layer's row; of its end without window layers */
    bool refills;             /* nodes on the path to the anchor get window blocks back */
    bool cut_anywhere;
    uint32_t reusable_from;
} firni_insertion_plan;

/* The block of the rows at this index, or NULL where the layer has none. */
firn_block *firni_offered_block(const firn_prefix *prefix, uint32_t layer, uint32_t index);
/* Whether the node can take this block of a window layer from the rows: it lacks one, and the rows cover all of its
 * tokens. */
bool firni_can_refill(const firn_prefix *prefix, const firni_insertion *in, const firni_node *node, uint32_t layer);

/* Steps 1 and 2. Not NONE: why the tree has no place for these rows. */
firn_reason firni_plan_check(firn_prefix *prefix, firni_insertion *in, firni_insertion_plan *plan);
void firni_plan_place(const firn_prefix *prefix, const firni_insertion *in, firni_node *root,
                      firni_insertion_plan *plan);
/* Step 3: all that can fail. False without memory; firni_plan_abandon() then. */
bool firni_plan_prepare(firn_prefix *prefix, const firni_insertion *in, firni_insertion_plan *plan);
void firni_plan_abandon(firn_prefix *prefix, firni_insertion_plan *plan);
/* Step 4: evicts, and cuts the plan to what there is room for. Returns why it is cut, or NONE. */
firn_reason firni_plan_fit(firn_prefix *prefix, const firni_insertion *in, firni_insertion_plan *plan);

#endif
