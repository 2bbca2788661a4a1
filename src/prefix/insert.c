/*
 * From rows to nodes: what put() and a finished read add to the tree. Owns the course of an insertion; copies tokens,
 * never state.
 *
 *   1  check that the rows are what the tree can hold
 *   2  walk down what is there already; the place where it ends is the plan
 *   3  create the new nodes and reserve every table: all that can fail
 *   4  evict for the budget; what still does not fit is cut off at the end
 *   5  link
 *
 * Where the tree already has a node for the same tokens it keeps its own blocks, and takes those of window layers that
 * it lacks. A tail that is the beginning of the new tokens grows in its own place: leases and stores that use the
 * shorter one hold references of their own. A fixed-size state becomes a checkpoint at the rows' own count.
 */
#include <assert.h>
#include <string.h>

#include "prefix/insert_impl.h"

/* The new reference before the old one goes: they may be to the same block. */
static void take_block(firn_prefix *prefix, firni_insertion *in, firni_node *node, uint32_t layer, firn_block *block)
{
    firn_block *old = node->blocks[layer];
    node->blocks[layer] = block;
    if (block != NULL) {
        firni_blockset_add(&prefix->blocks, block);
        (void)firn_block_retain(block);
        in->taken_bytes += firn_block_bytes(block);
    }
    if (old != NULL) {
        firni_blockset_remove(&prefix->blocks, old);
        firn_block_release(old);
    }
}

/* Gives the node these rows' blocks for its tokens, in place of those it has, and their capabilities. */
static void take_blocks(firn_prefix *prefix, firni_insertion *in, const firni_insertion_plan *plan, firni_node *node)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        take_block(prefix, in, node, layer, firni_offered_block(prefix, layer, node->first_token / FIRN_BLOCK_TOKENS));
    }
    node->cut_anywhere = plan->cut_anywhere;
    node->reusable_from = plan->reusable_from;
    node->boundary = node->first_token + node->n_tokens == in->n_tokens;
    node->windows_saved = in->is_stored && firni_has_windows(prefix, node);
    /* A tail that was unsaved is saved when the tier was where its longer form came from. */
    node->ram_only = in->ram_only && prefix->options.tier != NULL;
    if (prefix->options.tier == NULL || in->is_stored || in->ram_only) {
        firni_mark_saved(prefix, node);
    } else {
        firni_mark_unsaved(prefix, node);
    }
}

/* Window blocks that nodes on the path had given up, or never had, come back. Where the tier lacks them too, the last
 * node that ends within the rows is stored again, which takes those before it along. */
static void refill(firn_prefix *prefix, firni_insertion *in, const firni_insertion_plan *plan)
{
    firni_node *end = NULL;
    bool tier_lacks_some = false;
    for (firni_node *node = plan->anchor; node->parent != NULL; node = node->parent) {
        if (end == NULL && node->first_token + node->n_tokens <= in->n_tokens) {
            end = node;
        }
        bool refilled = false;
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            if (firni_can_refill(prefix, in, node, layer)) {
                take_block(prefix, in, node, layer,
                           firni_offered_block(prefix, layer, node->first_token / FIRN_BLOCK_TOKENS));
                refilled = true;
            }
        }
        if (refilled) {
            node->windows_saved = node->windows_saved || (in->is_stored && firni_has_windows(prefix, node));
            tier_lacks_some = tier_lacks_some || !node->windows_saved;
            firni_settle(prefix, node);
        }
    }
    if (tier_lacks_some && prefix->options.tier != NULL && !in->is_stored && !in->ram_only) {
        firni_mark_unsaved(prefix, end);
    }
}

/* Who puts tokens that others put for RAM alone, and wants them stored, gets them stored; and the path is worth what
 * the highest of its users gives it. From the end up, so that a parent never is of less than its child. */
static void raise_path(firn_prefix *prefix, const firni_insertion *in, firni_node *last)
{
    const bool wants_store = !in->ram_only && prefix->options.tier != NULL;
    for (firni_node *node = last; node->parent != NULL; node = node->parent) {
        if (wants_store && node->ram_only && node->first_token + node->n_tokens <= in->n_tokens) {
            node->ram_only = false;
            firni_checkpoint *checkpoint = firni_checkpoint_find(node, in->n_tokens);
            if (!in->is_stored && checkpoint != NULL && !checkpoint->unsaved) {
                checkpoint->unsaved = true;
                prefix->n_unsaved_checkpoints++;
            }
            if (!in->is_stored) {
                firni_mark_unsaved(prefix, node);
            }
        }
        if (node->priority < in->priority) {
            node->priority = (int8_t)in->priority;
            if (node->heap != NULL) {
                firni_heap_moved(node);
            }
        }
    }
}

/* The tail grows in its place. */
static void grow(firn_prefix *prefix, firni_insertion *in, const firni_insertion_plan *plan)
{
    firni_node *node = plan->grows;
    const uint32_t n_left = in->n_tokens - plan->n_held;
    node->n_tokens = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
    memcpy(node->tokens, &in->tokens[plan->n_held], node->n_tokens * sizeof node->tokens[0]);
    take_blocks(prefix, in, plan, node);
}

/* Step 5. Nothing here can fail. */
static void link_steps(firn_prefix *prefix, firni_insertion *in, firni_insertion_plan *plan)
{
    firni_node *last = plan->anchor;
    if (plan->refills) {
        refill(prefix, in, plan);
    }
    if (plan->grows != NULL && plan->n_steps > 0) {
        last = plan->grows;
        grow(prefix, in, plan);
        firni_windows_follow(prefix, last, false);
    }
    if (plan->head != NULL) {
        /* Only now: eviction may have taken siblings away. */
        firni_node *parent = last;
        firni_node_link(last, plan->head, firni_node_place(last, plan->head->tokens, plan->head->n_tokens).index);
        for (firni_node *node = plan->head; node != NULL; node = node->n_children > 0 ? node->children[0] : NULL) {
            prefix->n_nodes++;
            take_blocks(prefix, in, plan, node);
            firni_settle(prefix, node);
        }
        last = plan->tail;
        firni_windows_follow(prefix, last, false);
        firni_windows_follow(prefix, parent, false);
    }
    firni_checkpoint *checkpoint = plan->checkpoint;
    if (checkpoint != NULL) {
        plan->checkpoint = NULL;
        firni_checkpoint_link(prefix, last, checkpoint);
        in->taken_bytes += prefix->checkpoint_bytes;
    }
    in->added = plan->n_steps > 0 || plan->refills || checkpoint != NULL;
    raise_path(prefix, in, last);
    firni_touch(prefix, last);
    /* After touching, which takes the mark away. */
    firni_node *node = last;
    for (uint32_t i = 0; i < plan->n_steps; i++, node = node->parent) {
        node->speculative = in->unasked;
    }
    (void)firni_checkpoints_retain(prefix, last, checkpoint);
    if (plan->n_steps > 0 || plan->anchor->parent != NULL) {
        in->last = last;
    }
}

/* All of it is there. Whether it is also usable at this very count depends on where its own rows came from. */
static firn_reason usable_at_end(const firn_prefix *prefix, const firni_insertion *in)
{
    firni_node *last;
    return in->last != NULL && firni_node_usable(prefix, in->last, in->n_tokens, &last) == in->n_tokens
               ? FIRN_REASON_NONE
               : FIRN_REASON_FAMILY_MISSING;
}

firn_reason firni_insert(firn_prefix *prefix, firni_insertion *in)
{
    firni_insertion_plan plan = { .anchor = NULL };
    in->last = NULL;
    in->added = false;
    in->offered_bytes = in->taken_bytes = 0;
    firn_reason reason = firni_plan_check(prefix, in, &plan);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    firni_node *root = firni_root_make(prefix, in->ns);
    if (root == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    firni_plan_place(prefix, in, root, &plan);

    /* Held while room is made, so that eviction cannot take the place where the new nodes are to hang, nor the window
     * blocks that they continue. */
    firni_node *pinned = plan.grows != NULL ? plan.grows : plan.anchor;
    const uint32_t first_held = plan.first_window;
    firni_pin(prefix, pinned);
    firni_windows_hold(prefix, pinned, first_held);
    if (firni_plan_prepare(prefix, in, &plan)) {
        reason = firni_plan_fit(prefix, in, &plan);
        link_steps(prefix, in, &plan);
        if (reason == FIRN_REASON_NONE) {
            reason = usable_at_end(prefix, in);
        }
    } else {
        reason = FIRN_REASON_NO_MEMORY;
        firni_plan_abandon(prefix, &plan);
    }
    firni_windows_unhold(prefix, pinned, first_held);
    firni_unpin(prefix, pinned); /* frees a root that stayed empty */
    return reason;
}

/* Whether the node ends inside a block, and nothing stands in it that is worth a store of its own. */
static bool is_growing(const firni_node *node)
{
    const firni_checkpoint *c = node->checkpoints != NULL ? node->checkpoints->next : NULL;
    while (c != NULL && firni_checkpoint_is_covered(node, c)) {
        c = c->next;
    }
    return node->n_tokens < FIRN_BLOCK_TOKENS && c == NULL;
}

/* The node whose path is to be stored now. Tails are left to grow: whole blocks are stored, and checkpoints that a tail
 * has grown past. */
static firni_node *to_store(const firn_prefix *prefix, firni_node *node)
{
    if (node != NULL && prefix->families.n_fixed > 0) {
        /* Blocks cannot be stored without a checkpoint at their end: those before this one have had their turn. */
        return node->unsaved && node->checkpoints != NULL && !is_growing(node) ? node : NULL;
    }
    while (node != NULL && node->parent != NULL && (node->n_tokens < FIRN_BLOCK_TOKENS || !node->unsaved)) {
        node = node->parent;
    }
    firni_node *last;
    const bool usable = node != NULL && node->parent != NULL &&
                        (prefix->families.n_window == 0 ||
                         firni_node_usable(prefix, node, node->first_token + node->n_tokens, &last) ==
                             node->first_token + node->n_tokens);
    return usable ? node : NULL;
}

bool firn_prefix_put(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                     const firn_cache *const *caches, firn_reason *reason_out)
{
    return firn_prefix_put_with(prefix, tokens, n_tokens, ns, caches, (firn_cache_policy){ 0 }, reason_out);
}

bool firn_prefix_put_with(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                          const firn_cache *const *caches, firn_cache_policy policy, firn_reason *reason_out)
{
    assert(tokens != NULL && caches != NULL && policy.store != FIRN_STORE_NONE);
    firni_inbox_drain(prefix);
    firni_insertion in = { .ns = ns != NULL ? ns : "",
                           .tokens = tokens,
                           .n_tokens = n_tokens,
                           .caches = caches,
                           .ram_only = policy.store == FIRN_STORE_RAM,
                           .priority = policy.priority };
    firn_reason reason = FIRN_REASON_BELOW_MIN;
    if (strlen(in.ns) > FIRN_NAMESPACE_BYTES_MAX) {
        reason = FIRN_REASON_DISABLED; /* no lookup could ever name it */
    } else if (n_tokens >= prefix->options.min_tokens) {
        reason = firni_insert(prefix, &in);
    }
    firni_node *node = to_store(prefix, in.last);
    if (node != NULL) {
        firni_writer_want(prefix, node);
    }
    firni_writer_pump(prefix);
    if (node != NULL && node->waiting && prefix->writer.n_jobs >= prefix->options.write_queue_max) {
        prefix->stats.reasons[FIRN_REASON_QUEUE_FULL]++;
    }
    if (reason != FIRN_REASON_NONE) {
        prefix->stats.reasons[reason]++;
    }
    if (reason_out != NULL) {
        *reason_out = reason;
    }
    return in.added || reason == FIRN_REASON_NONE;
}
