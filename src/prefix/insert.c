/*
 * From rows to nodes: what put() and a finished read add to the tree. Owns the plan of an insertion; copies tokens,
 * never state.
 *
 *   1  check that the rows are what the tree can hold
 *   2  walk down what is there already; the place where it ends is the plan
 *   3  create the new nodes and reserve every table: all that can fail
 *   4  evict for the budget; what still does not fit is cut off at the end
 *   5  link
 *
 * Where the tree already has a node for the same tokens it keeps its own blocks. A tail that is the beginning of the
 * new tokens grows in its own place: leases and stores that use the shorter one hold references of their own.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

typedef struct insertion_plan {
    firni_node *anchor;       /* deepest node that is there already; a root when there is none */
    firni_node *grows;        /* child of the anchor that is a beginning of the next tokens, or NULL */
    uint32_t n_held;          /* tokens on the path to the anchor */
    uint32_t n_steps;         /* blocks to add, the one that grows included */
    firni_node *head, *tail;  /* new nodes, linked among themselves */
    bool cut_anywhere;
    uint32_t reusable_from;
} insertion_plan;

static uint32_t step_tokens(const firni_insertion *in, uint32_t at)
{
    const uint32_t n_left = in->n_tokens - at;
    return n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
}

/* Step 1. Fills prefix->views, borrowed from the rows until the insertion is over. The rows answer for themselves what
 * can be done with their state; what the tree has no place for (fixed-size state, dropped blocks) is refused here. */
static firn_reason check_rows(const firn_prefix *prefix, const firni_insertion *in, insertion_plan *plan)
{
    plan->cut_anywhere = true;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_cache *cache = in->caches[layer];
        if (firn_cache_get_pool(cache) != prefix->options.pool ||
            strcmp(firn_cache_describe(cache), firn_cache_describe(prefix->shapes[layer])) != 0) {
            return FIRN_REASON_WRONG_IDENTITY;
        }
        if (firn_cache_batch_size(cache) != 1 || !firn_cache_can_publish_row(cache, 0, in->n_tokens)) {
            return FIRN_REASON_COUNT_MISMATCH;
        }
        const firn_row_view view = firn_cache_view_row(cache, 0);
        if (view.first_block > 0 || view.fixed != NULL) {
            return FIRN_REASON_FAMILY_MISSING;
        }
        if (view.n_tokens < in->n_tokens) {
            return FIRN_REASON_COUNT_MISMATCH;
        }
        const uint32_t reusable_from = firn_cache_minimum_reusable_offset(cache, 0);
        plan->reusable_from = reusable_from > plan->reusable_from ? reusable_from : plan->reusable_from;
        plan->cut_anywhere = plan->cut_anywhere && firn_cache_is_trimmable(cache);
        prefix->views[layer] = view;
    }
    return FIRN_REASON_NONE;
}

/* Step 2. Goes down as long as a node holds all of the next 64 tokens, or all that are left. Where that ends, the best
 * child either differs, and the new node becomes its sibling, or is wholly a beginning of what comes, and grows. */
static void find_place(const firni_insertion *in, firni_node *root, insertion_plan *plan)
{
    plan->anchor = root;
    while (plan->n_held < in->n_tokens) {
        const uint32_t n_step = step_tokens(in, plan->n_held);
        const firni_place place = firni_node_place(plan->anchor, &in->tokens[plan->n_held], n_step);
        if (place.best == NULL || place.n_common < n_step) {
            plan->grows = place.best != NULL && place.n_common == place.best->n_tokens ? place.best : NULL;
            break;
        }
        plan->anchor = place.best;
        plan->n_held += n_step;
    }
    const uint32_t n_new = in->n_tokens - plan->n_held;
    plan->n_steps = n_new / FIRN_BLOCK_TOKENS + (n_new % FIRN_BLOCK_TOKENS != 0);
}

/* New nodes form a chain that nothing refers to yet, so it can be shortened from its end, or thrown away. */
static void drop_last_new(firn_prefix *prefix, insertion_plan *plan)
{
    firni_node *last = plan->tail;
    plan->tail = last->parent;
    if (last == plan->head) {
        plan->head = NULL;
    } else {
        firni_node_unlink(last);
    }
    firni_node_destroy(prefix->env, last);
}

/* Step 3. The heaps get room for every node there will be: moving between them must never fail later. */
static bool prepare(firn_prefix *prefix, const firni_insertion *in, insertion_plan *plan)
{
    const uint32_t n_new = plan->n_steps - (plan->grows != NULL ? 1 : 0);
    uint32_t at = plan->n_held + (plan->grows != NULL ? step_tokens(in, plan->n_held) : 0);
    for (uint32_t i = 0; i < n_new; i++) {
        firni_node *node = firni_node_create(prefix->env, prefix->n_layers);
        if (node == NULL) {
            return false;
        }
        node->first_token = at;
        node->n_tokens = step_tokens(in, at);
        memcpy(node->tokens, &in->tokens[at], node->n_tokens * sizeof node->tokens[0]);
        at += node->n_tokens;
        if (plan->tail != NULL) {
            firni_node_link(plan->tail, node, 0);
        } else {
            plan->head = node;
        }
        plan->tail = node;
    }
    size_t n_blocks;
    const size_t n_nodes = prefix->n_nodes + n_new;
    return firni_mul_size(plan->n_steps, prefix->n_layers, &n_blocks) &&
           firni_blockset_reserve(prefix->env, &prefix->blocks, n_blocks) &&
           firni_heap_reserve(prefix->env, &prefix->clean, n_nodes) &&
           firni_heap_reserve(prefix->env, &prefix->unsaved, n_nodes) &&
           firni_node_reserve_child(prefix->env, plan->grows != NULL ? plan->grows : plan->anchor);
}

/* Bytes that the tree holds more, or less, after step `i` of the plan. */
static int64_t step_bytes(const firn_prefix *prefix, const insertion_plan *plan, uint32_t i)
{
    int64_t bytes = 0;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_block *block = prefix->views[layer].blocks[plan->n_held / FIRN_BLOCK_TOKENS + i];
        const firn_block *old = i == 0 && plan->grows != NULL ? plan->grows->blocks[layer] : NULL;
        if (firni_blockset_refs(&prefix->blocks, block) == 0) {
            bytes += (int64_t)firn_block_bytes(block);
        }
        if (old != NULL && old != block && firni_blockset_refs(&prefix->blocks, old) == 1) {
            bytes -= (int64_t)firn_block_bytes(old);
        }
    }
    return bytes;
}

static int64_t added_bytes(const firn_prefix *prefix, const insertion_plan *plan)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        bytes += step_bytes(prefix, plan, i);
    }
    return bytes;
}

/* Growing a tail adds nothing, or even frees something when the new block is known already: hence the sign. */
static bool fits_budget(const firn_prefix *prefix, int64_t bytes)
{
    return bytes <= 0 || prefix->blocks.held_bytes + (uint64_t)bytes <= prefix->options.budget_bytes;
}

/* Step 4: how many of the plan's blocks can be taken. A row too long for the budget is not refused as a whole: its head
 * is what the next prompt begins with. */
static uint32_t fit(firn_prefix *prefix, const firni_insertion *in, const insertion_plan *plan, firn_reason *reason)
{
    uint32_t n_fit = plan->n_steps;
    int64_t bytes = added_bytes(prefix, plan);
    /* Eviction may take the other node that shared a block, which makes the block count again: hence the loop. */
    while (!fits_budget(prefix, bytes) && firni_evict_for_budget(prefix, (uint64_t)bytes)) {
        bytes = added_bytes(prefix, plan);
    }
    while (n_fit > 0 && !fits_budget(prefix, bytes)) {
        bytes -= step_bytes(prefix, plan, --n_fit);
        *reason = FIRN_REASON_NO_MEMORY;
    }
    if (prefix->options.tier != NULL && !in->is_stored && firni_writer_is_ill(prefix, firni_now_ns(prefix->env))) {
        const uint64_t n_unsaved_max = firni_unsaved_bytes_max(prefix) / prefix->node_bytes;
        const uint64_t n_left = n_unsaved_max > prefix->n_unsaved ? n_unsaved_max - prefix->n_unsaved : 0;
        if (n_fit > n_left) {
            n_fit = (uint32_t)n_left;
            *reason = prefix->writer.n_refused > 0 ? prefix->writer.last_refusal : FIRN_REASON_DEADLINE;
        }
    }
    /* State that cannot be cut is worth nothing without its end. */
    return n_fit < plan->n_steps && !plan->cut_anywhere ? 0 : n_fit;
}

/* Gives the node these rows' blocks for its tokens, in place of those it has, and their capabilities. */
static void take_blocks(firn_prefix *prefix, const firni_insertion *in, const insertion_plan *plan, firni_node *node)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        firn_block *old = node->blocks[layer];
        firn_block *block = prefix->views[layer].blocks[node->first_token / FIRN_BLOCK_TOKENS];
        /* The new one first: it may be the old one. */
        firni_blockset_add(&prefix->blocks, block);
        node->blocks[layer] = firn_block_retain(block);
        if (old != NULL) {
            firni_blockset_remove(&prefix->blocks, old);
            firn_block_release(old);
        }
    }
    node->cut_anywhere = plan->cut_anywhere;
    node->reusable_from = plan->reusable_from;
    node->boundary = node->first_token + node->n_tokens == in->n_tokens;
    /* A tail that was unsaved is saved when the tier was where its longer form came from. */
    if (prefix->options.tier == NULL || in->is_stored) {
        firni_mark_saved(prefix, node);
    } else {
        firni_mark_unsaved(prefix, node);
    }
}

/* Step 5. Nothing here can fail. */
static void link_steps(firn_prefix *prefix, firni_insertion *in, insertion_plan *plan, uint32_t n_fit)
{
    const uint32_t n_new_kept = n_fit > 0 && plan->grows != NULL ? n_fit - 1 : n_fit;
    uint32_t n_new = plan->n_steps - (plan->grows != NULL ? 1 : 0);
    for (; n_new > n_new_kept; n_new--) {
        drop_last_new(prefix, plan);
    }
    firni_node *last = plan->anchor;
    if (plan->grows != NULL && n_fit > 0) {
        last = plan->grows;
        const uint32_t n_step = step_tokens(in, plan->n_held);
        memcpy(last->tokens, &in->tokens[plan->n_held], n_step * sizeof last->tokens[0]);
        last->n_tokens = n_step;
        take_blocks(prefix, in, plan, last);
    }
    if (plan->head != NULL) {
        /* Only now: eviction may have taken siblings away. */
        firni_node_link(last, plan->head, firni_node_place(last, plan->head->tokens, plan->head->n_tokens).index);
        for (firni_node *node = plan->head; node != NULL; node = node->n_children > 0 ? node->children[0] : NULL) {
            prefix->n_nodes++;
            take_blocks(prefix, in, plan, node);
            firni_settle(prefix, node);
        }
        last = plan->tail;
    }
    in->n_taken = n_fit;
    in->n_kept = last->first_token + last->n_tokens;
    firni_touch(prefix, last);
    /* After touching, which takes the mark away. */
    for (uint32_t i = 0; i < n_fit; i++, last = last->parent) {
        last->speculative = in->unasked;
    }
}

firn_reason firni_insert(firn_prefix *prefix, firni_insertion *in)
{
    insertion_plan plan = { .anchor = NULL };
    in->last = NULL;
    in->n_kept = in->n_taken = 0;
    firn_reason reason = check_rows(prefix, in, &plan);
    if (reason != FIRN_REASON_NONE) {
        return reason;
    }
    firni_node *root = firni_root_make(prefix, in->ns);
    if (root == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    find_place(in, root, &plan);
    if (plan.n_steps == 0) {
        /* All there already. Whether it is also usable at this very count depends on where its own row came from. */
        firni_touch(prefix, plan.anchor);
        in->last = plan.anchor;
        in->n_kept = in->n_tokens;
        const bool reaches_end = plan.anchor->first_token + plan.anchor->n_tokens == in->n_tokens;
        return plan.anchor->cut_anywhere || (reaches_end && plan.anchor->boundary) ? FIRN_REASON_NONE
                                                                                   : FIRN_REASON_FAMILY_MISSING;
    }

    /* Held while room is made, so that eviction cannot take the place where the new nodes are to hang. */
    firni_node *pinned = plan.grows != NULL ? plan.grows : plan.anchor;
    firni_pin(prefix, pinned);
    if (prepare(prefix, in, &plan)) {
        const uint32_t n_fit = fit(prefix, in, &plan, &reason);
        link_steps(prefix, in, &plan, n_fit);
        if (n_fit > 0 || plan.anchor->parent != NULL) {
            in->last = plan.tail != NULL ? plan.tail : n_fit > 0 ? plan.grows : plan.anchor;
        }
    } else {
        reason = FIRN_REASON_NO_MEMORY;
        while (plan.head != NULL) {
            drop_last_new(prefix, &plan);
        }
    }
    firni_unpin(prefix, pinned); /* frees a root that stayed empty */
    return reason;
}

bool firn_prefix_put(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                     const firn_cache *const *caches, firn_reason *reason_out)
{
    assert(tokens != NULL && caches != NULL);
    firni_inbox_drain(prefix);
    firni_insertion in = { .ns = ns != NULL ? ns : "", .tokens = tokens, .n_tokens = n_tokens, .caches = caches };
    firn_reason reason = FIRN_REASON_BELOW_MIN;
    if (strlen(in.ns) > FIRN_NAMESPACE_BYTES_MAX) {
        reason = FIRN_REASON_DISABLED; /* no lookup could ever name it */
    } else if (n_tokens >= prefix->options.min_tokens) {
        reason = firni_insert(prefix, &in);
    }
    /* Tails are left to grow: only whole blocks are stored now. */
    firni_node *node = in.last;
    while (node != NULL && node->parent != NULL && (node->n_tokens < FIRN_BLOCK_TOKENS || !node->unsaved)) {
        node = node->parent;
    }
    if (node != NULL && node->parent != NULL) {
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
    return in.n_taken > 0 || reason == FIRN_REASON_NONE;
}
