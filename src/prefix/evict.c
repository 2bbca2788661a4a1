/*
 * Who leaves, and for what: the tree's own budget, and room in the pool. Owns no state.
 *
 *   1  window blocks that no end, branch or lease needs, and that can be read again
 *   2  checkpoints that the retention rule does not keep
 *   3  leaves, in the order of the policy (policy_*.c)
 *   4  window blocks as in 1 that the tier does not hold yet: only older positions lose by it
 *
 * Two different wants. The budget counts what the tree refers to, so every victim helps it. The pool gets memory back
 * only when a block's last reference goes: what a running row shares as well is passed over, unless something above it
 * would come free later.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

/* Removes a leaf, and what it leaves behind when nothing could be resumed there: where states are fixed in size, blocks
 * after the last checkpoint of a path. Restored state that nobody waited for and nobody used was read for nothing: only
 * now is that certain. */
static void evict(firn_prefix *prefix, firni_node *leaf)
{
    for (;;) {
        firni_node *parent = leaf->parent;
        prefix->stats.n_evicted++;
        prefix->policy_clock = leaf->rank > prefix->policy_clock ? leaf->rank : prefix->policy_clock;
        if (leaf->speculative) {
            prefix->stats.wasted_bytes += firni_node_bytes(prefix, leaf);
        }
        const bool is_last_of_root = parent->parent == NULL;
        firni_remove_leaf(prefix, leaf);
        if (is_last_of_root || prefix->families.n_fixed == 0 || parent->heap != &prefix->clean ||
            parent->checkpoints != NULL) {
            return;
        }
        leaf = parent;
    }
}

/* The next whose window blocks go before any leaf does, or after all of them. */
static firni_node *next_to_shed(const firn_prefix *prefix, bool unsaved)
{
    firni_node *node = firni_heap_first(&prefix->shed);
    return node != NULL && (unsaved || !node->unsaved) ? node : NULL;
}

/* The leaf that goes first, unless it is worth more than what it would make room for: then all others are. */
static firni_node *first_leaf(const firn_prefix *prefix, int priority)
{
    firni_node *leaf = firni_heap_first(&prefix->clean);
    return leaf != NULL && leaf->priority <= priority ? leaf : NULL;
}

/* Every node counts here, shared with rows or not: the budget bounds what the tree refers to, so that it cannot keep
 * the memory of rows that have ended. */
bool firni_evict_for_budget(firn_prefix *prefix, uint64_t bytes, int priority)
{
    const uint64_t budget_bytes = prefix->options.budget_bytes;
    while (prefix->blocks.held_bytes + bytes > budget_bytes) {
        firni_node *shed = next_to_shed(prefix, false);
        firni_node *leaf = first_leaf(prefix, priority);
        if (shed == NULL && leaf == NULL) {
            shed = next_to_shed(prefix, true);
        }
        if (shed != NULL) {
            firni_windows_shed(prefix, shed);
        } else if (leaf == NULL) {
            firni_writer_press(prefix, prefix->blocks.held_bytes + bytes - budget_bytes);
            return false;
        } else if (!firni_checkpoints_retain(prefix, leaf, NULL)) {
            evict(prefix, leaf);
        }
    }
    return true;
}

/* Whether a block's memory goes back to the pool with the tree's references to it: of all its nodes that share it, as
 * namespaces below one parent do. Other threads may let go of
 * references meanwhile: the answer can be too pessimistic, never wrong for long. */
static bool is_ours_alone(const firn_prefix *prefix, const firn_block *block)
{
    return block != NULL && firn_block_refs(block) <= firni_blockset_refs(&prefix->blocks, block);
}

/* Whether evicting `leaf`, and then what it leaves behind, gives the pool any memory. A row shares a prefix, so usually
 * all of the path is shared or nothing is; but the tree keeps the first row's block where a second row computed the
 * same tokens again, and then a shared leaf can stand below a block that only the tree holds. */
static bool frees_memory(const firn_prefix *prefix, const firni_node *leaf)
{
    for (const firni_node *node = leaf; node->parent != NULL; node = node->parent) {
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            if (is_ours_alone(prefix, node->blocks[layer])) {
                return true;
            }
            for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
                if (is_ours_alone(prefix, c->states[layer])) {
                    return true;
                }
            }
        }
    }
    return false;
}

static bool shedding_frees_memory(const firn_prefix *prefix, const firni_node *node)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) && is_ours_alone(prefix, node->blocks[layer])) {
            return true;
        }
    }
    return false;
}

/* Takes the node out of its heap for the length of one call, so that the next-oldest comes up. */
static void pass_over(firni_node *node, firni_node **passed_over)
{
    firni_heap_remove(node);
    node->aside = *passed_over;
    *passed_over = node;
}

static void make_room_by_shedding(firn_prefix *prefix, uint64_t bytes, bool unsaved, firni_node **passed_over)
{
    firni_node *node;
    while (firn_pool_room(prefix->options.pool) < bytes && (node = next_to_shed(prefix, unsaved)) != NULL) {
        if (shedding_frees_memory(prefix, node)) {
            firni_windows_shed(prefix, node);
        } else {
            pass_over(node, passed_over);
        }
    }
}

static void make_room_by_evicting(firn_prefix *prefix, uint64_t bytes, int priority, firni_node **passed_over)
{
    firni_node *leaf;
    while (firn_pool_room(prefix->options.pool) < bytes && (leaf = first_leaf(prefix, priority)) != NULL) {
        if (!frees_memory(prefix, leaf)) {
            pass_over(leaf, passed_over);
        } else if (!firni_checkpoints_retain(prefix, leaf, NULL)) {
            evict(prefix, leaf);
        }
    }
}

/* Back to where they were: their turn comes when the rows have ended. */
static void take_back(firn_prefix *prefix, firni_node *passed_over)
{
    while (passed_over != NULL) {
        firni_node *node = passed_over;
        passed_over = node->aside;
        firni_settle(prefix, node);
    }
}

bool firn_prefix_make_room(firn_prefix *prefix, uint64_t bytes)
{
    return firni_make_room_for(prefix, bytes, FIRN_PRIORITY_MAX);
}

bool firni_make_room_for(firn_prefix *prefix, uint64_t bytes, int priority)
{
    firni_inbox_drain(prefix);
    bytes += prefix->reading_bytes; /* which may be taken at any moment, by other threads */
    firn_pool *pool = prefix->options.pool;
    firni_node *passed_over = NULL;
    make_room_by_shedding(prefix, bytes, false, &passed_over);
    make_room_by_evicting(prefix, bytes, priority, &passed_over);
    const bool recalls = firn_pool_room(pool) < bytes && prefix->families.n_window > 0;
    if (recalls && firni_writer_recall(prefix)) {
        /* Stores that wait hold window blocks that may leave. */
        take_back(prefix, passed_over);
        passed_over = NULL;
        make_room_by_shedding(prefix, bytes, false, &passed_over);
        make_room_by_evicting(prefix, bytes, priority, &passed_over);
    }
    make_room_by_shedding(prefix, bytes, true, &passed_over);
    take_back(prefix, passed_over);
    /* What is left is pinned, shared or unsaved; only the last of these can be helped. */
    const uint64_t room_bytes = firn_pool_room(pool);
    if (room_bytes < bytes) {
        firni_writer_press(prefix, bytes - room_bytes);
    } else if (recalls) {
        firni_writer_pump(prefix); /* what was taken back */
    }
    return room_bytes >= bytes;
}
