/*
 * Every invariant of the RAM tier, as code. Reads everything, changes nothing; for tests, between any two calls.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

typedef struct check_totals {
    uint64_t n_nodes, n_pinned, n_unsaved, n_waiting, n_storing, n_block_refs, n_clean_leaves, n_unsaved_leaves;
} check_totals;

/* One node: its place in the sequence, its marks, its heap, its blocks. */
static void check_node(const firn_prefix *prefix, const firni_node *node, check_totals *totals)
{
    const firni_node *parent = node->parent;
    const bool is_free_leaf = node->n_children == 0 && node->n_pins == 0;
    assert(node->ns == NULL);
    assert(node->n_tokens >= 1 && node->n_tokens <= FIRN_BLOCK_TOKENS);
    assert(node->first_token == parent->first_token + parent->n_tokens && node->first_token % FIRN_BLOCK_TOKENS == 0);
    assert(node->n_children == 0 || node->n_tokens == FIRN_BLOCK_TOKENS);
    assert(node->used <= prefix->stamp);
    assert(parent->parent == NULL || node->used < parent->used);
    assert(!node->unsaved || prefix->options.tier != NULL);
    assert(!node->waiting || (node->unsaved && !node->storing));
    assert(!node->storing || node->n_pins > 0);
    assert(!node->store_again || node->storing);
    assert(node->heap == (!is_free_leaf ? NULL : node->unsaved ? &prefix->unsaved : &prefix->clean));
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        assert(node->blocks[layer] != NULL);
        assert(firni_blockset_refs(&prefix->blocks, node->blocks[layer]) >= 1);
        assert(firn_block_refs(node->blocks[layer]) >= firni_blockset_refs(&prefix->blocks, node->blocks[layer]));
        totals->n_block_refs++;
    }
    totals->n_nodes++;
    totals->n_pinned += node->n_pins > 0;
    totals->n_unsaved += node->unsaved;
    totals->n_waiting += node->waiting;
    totals->n_storing += node->storing;
    totals->n_clean_leaves += is_free_leaf && !node->unsaved;
    totals->n_unsaved_leaves += is_free_leaf && node->unsaved;
}

static void check_children(const firni_node *node)
{
    assert(node->n_children <= node->n_children_max);
    assert(node->children == &node->only_child ? node->n_children_max == 1 : node->n_children_max > 1);
    for (uint32_t i = 0; i < node->n_children; i++) {
        const firni_node *child = node->children[i];
        assert(child->parent == node);
        if (i > 0) {
            /* Strictly sorted, and neither begins the other. */
            const firni_node *before = node->children[i - 1];
            const uint32_t n_max = before->n_tokens < child->n_tokens ? before->n_tokens : child->n_tokens;
            const uint32_t n = firni_tokens_common(before->tokens, child->tokens, n_max);
            assert(n < n_max && before->tokens[n] < child->tokens[n]);
        }
    }
}

/* The node after `node` in depth-first order within one root's tree; NULL at the end. No recursion: paths are as long
 * as prompts. */
static const firni_node *next_node(const firni_node *node)
{
    if (node->n_children > 0) {
        return node->children[0];
    }
    while (node->parent != NULL) {
        const firni_node *parent = node->parent;
        const uint32_t index = firni_node_place(parent, node->tokens, node->n_tokens).index;
        assert(parent->children[index] == node);
        if (index + 1 < parent->n_children) {
            return parent->children[index + 1];
        }
        node = parent;
    }
    return NULL;
}

/* Returns the length. */
static uint64_t check_list(const firn_prefix *prefix, firni_list_id id)
{
    uint64_t n = 0;
    const firni_node *before = NULL;
    for (const firni_node *node = prefix->lists[id].next; node != NULL; node = node->links[id].next) {
        assert(node->links[id].prev == before);
        assert(id == FIRNI_LIST_UNSAVED ? node->unsaved : node->waiting);
        before = node;
        n++;
    }
    assert(prefix->lists[id].prev == before);
    return n;
}

/* The set against its own slots, and against the references that the nodes have. */
static void check_blocks(const firni_blockset *set, uint64_t n_block_refs)
{
    uint64_t n_blocks = 0;
    uint64_t n_refs = 0;
    uint64_t held_bytes = 0;
    for (size_t i = 0; i < set->n_slots; i++) {
        if (set->slots[i].block != NULL) {
            n_blocks++;
            n_refs += set->slots[i].n_refs;
            held_bytes += firn_block_bytes(set->slots[i].block);
        }
    }
    assert(n_blocks == set->n_blocks && n_refs == n_block_refs && held_bytes == set->held_bytes);
    (void)n_blocks, (void)n_refs, (void)held_bytes, (void)n_block_refs;
}

/* Reads know their waiters and the other way round; a lease's node is pinned and still says what the prompt says. */
static void check_leases(const firn_prefix *prefix)
{
    uint64_t reading_bytes = 0;
    for (const firni_read *read = prefix->reads; read != NULL; read = read->next) {
        reading_bytes += read->room_bytes;
        for (const firn_lease *lease = read->waiters; lease != NULL; lease = lease->next_waiter) {
            assert(lease->read == read && !lease->ready && strcmp(lease->ns, read->ns) == 0);
        }
    }
    assert(reading_bytes == prefix->reading_bytes);
    for (const firn_lease *lease = prefix->leases; lease != NULL; lease = lease->next) {
        const firni_node *node = lease->node;
        assert(lease->ready == (lease->read == NULL));
        assert(lease->info.n_tokens < lease->n_prompt);
        assert((node == NULL) == (lease->info.n_tokens == 0));
        if (node == NULL) {
            continue;
        }
        assert(node->n_pins > 0);
        assert(lease->info.n_tokens > node->first_token && lease->info.n_tokens <= node->first_token + node->n_tokens);
        for (; node->parent != NULL; node = node->parent) {
            /* What was promised is still what the prompt says. */
            const uint32_t n_left = lease->info.n_tokens - node->first_token;
            const uint32_t n = n_left < node->n_tokens ? n_left : node->n_tokens;
            assert(firni_tokens_common(node->tokens, &lease->prompt[node->first_token], n) == n);
            (void)n;
        }
    }
    (void)reading_bytes;
}

void firn_prefix_check(const firn_prefix *prefix)
{
    check_totals totals = { 0 };
    for (uint32_t i = 0; i < prefix->n_roots; i++) {
        const firni_node *root = prefix->roots[i];
        assert(root->parent == NULL && root->ns != NULL && root->n_tokens == 0 && root->first_token == 0);
        assert(i == 0 || strcmp(prefix->roots[i - 1]->ns, root->ns) < 0);
        assert(root->n_children > 0 || root->n_pins > 0);
        for (const firni_node *node = root; node != NULL; node = next_node(node)) {
            check_children(node);
            if (node != root) {
                check_node(prefix, node, &totals);
            }
        }
    }
    assert(totals.n_nodes == prefix->n_nodes && totals.n_pinned == prefix->n_pinned);
    assert(totals.n_unsaved == prefix->n_unsaved && totals.n_storing == prefix->writer.n_jobs);
    assert(totals.n_unsaved == check_list(prefix, FIRNI_LIST_UNSAVED));
    assert(totals.n_waiting == check_list(prefix, FIRNI_LIST_WAITING));
    assert(totals.n_clean_leaves == prefix->clean.n_nodes && totals.n_unsaved_leaves == prefix->unsaved.n_nodes);
    firni_heap_check(&prefix->clean);
    firni_heap_check(&prefix->unsaved);
    check_blocks(&prefix->blocks, totals.n_block_refs);
    assert(prefix->blocks.held_bytes <= prefix->options.budget_bytes);
    check_leases(prefix);
}
