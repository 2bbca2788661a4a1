/*
 * Who leaves, and for what: the tree's own budget, and room in the pool. Owns no state.
 *
 * Two different wants. The budget counts what the tree refers to, so every victim helps it. The pool gets memory back
 * only when a block's last reference goes: a leaf whose blocks a running row shares as well is passed over, unless
 * something above it would come free later.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

/* Restored state that nobody waited for and nobody used was read for nothing: only now is that certain. */
static void evict(firn_prefix *prefix, firni_node *leaf)
{
    prefix->stats.n_evicted++;
    if (leaf->speculative) {
        prefix->stats.wasted_bytes += prefix->node_bytes;
    }
    firni_remove_leaf(prefix, leaf);
}

/* Every node counts here, shared with rows or not: the budget bounds what the tree refers to, so that it cannot keep
 * the memory of rows that have ended. */
bool firni_evict_for_budget(firn_prefix *prefix, uint64_t bytes)
{
    const uint64_t budget_bytes = prefix->options.budget_bytes;
    while (prefix->blocks.held_bytes + bytes > budget_bytes) {
        firni_node *victim = firni_heap_first(&prefix->clean);
        if (victim == NULL) {
            firni_writer_press(prefix, prefix->blocks.held_bytes + bytes - budget_bytes);
            return false;
        }
        evict(prefix, victim);
    }
    return true;
}

/* Whether evicting `leaf`, and then what it leaves behind, gives the pool any memory. A row shares a prefix, so usually
 * all of the path is shared or nothing is; but the tree keeps the first row's block where a second row computed the
 * same tokens again, and then a shared leaf can stand below a block that only the tree holds. Other threads may let go
 * of references meanwhile: the answer can be too pessimistic, never wrong for long. */
static bool frees_memory(const firn_prefix *prefix, const firni_node *leaf)
{
    for (const firni_node *node = leaf; node->parent != NULL; node = node->parent) {
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            if (firn_block_refs(node->blocks[layer]) == 1) {
                return true;
            }
        }
    }
    return false;
}

bool firn_prefix_make_room(firn_prefix *prefix, uint64_t bytes)
{
    firni_inbox_drain(prefix);
    firn_pool *pool = prefix->options.pool;
    firni_node *passed_over = NULL;
    firni_node *victim;
    while (firn_pool_room(pool) < bytes && (victim = firni_heap_first(&prefix->clean)) != NULL) {
        if (frees_memory(prefix, victim)) {
            evict(prefix, victim);
        } else {
            /* Out of the heap for the length of this call, so that the next-oldest comes up. */
            firni_heap_remove(victim);
            victim->aside = passed_over;
            passed_over = victim;
        }
    }
    /* Back to where they were: their turn comes when the rows have ended. */
    while (passed_over != NULL) {
        firni_node *node = passed_over;
        passed_over = node->aside;
        firni_settle(prefix, node);
    }
    /* What is left is pinned, shared or unsaved; only the last of these can be helped. */
    const uint64_t room_bytes = firn_pool_room(pool);
    if (room_bytes < bytes) {
        firni_writer_press(prefix, bytes - room_bytes);
    }
    return room_bytes >= bytes;
}
