/*
 * Every invariant of the RAM tier, as code. Reads everything, changes nothing; for tests, between any two calls.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

typedef struct check_totals {
    uint64_t n_nodes, n_pinned, n_unsaved, n_waiting, n_storing, n_block_refs, n_clean_leaves, n_unsaved_leaves;
    uint64_t n_shed, n_window_holds, n_checkpoints, n_unsaved_checkpoints, stuck_bytes;
} check_totals;

/* How many window holds an end at n_tokens has: the same margin as windows.c gives it, or none for a lease. */
static uint64_t count_holds(const firn_prefix *prefix, const firni_node *node, uint32_t n_tokens, uint32_t n_margin)
{
    const uint32_t first = firni_families_first_window(&prefix->families, n_tokens);
    const uint32_t last = node->first_token / FIRN_BLOCK_TOKENS;
    assert(first <= last);
    return last - (first > n_margin ? first - n_margin : 0) + 1;
}

/* The blocks of one node: those of full layers are there, and so are, from the same block on, those of windows that
 * somebody holds and that were there when the hold began. */
static void check_blocks_of(const firn_prefix *prefix, const firni_node *node, check_totals *totals)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_block *block = node->blocks[layer];
        const uint32_t family = prefix->family[layer];
        assert((family & FIRNI_FAMILY_FULL) == 0 || block != NULL);
        assert((family & (FIRNI_FAMILY_FULL | FIRNI_FAMILY_WINDOW)) != 0 || block == NULL);
        if (block != NULL) {
            assert(firni_blockset_refs(&prefix->blocks, block) >= 1);
            assert(firn_block_refs(block) >= firni_blockset_refs(&prefix->blocks, block));
            totals->n_block_refs++;
        }
        (void)family;
    }
}

static void check_checkpoints(const firn_prefix *prefix, const firni_node *node, check_totals *totals)
{
    bool unsaved = node->blocks_unsaved;
    for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
        assert(prefix->families.n_fixed > 0);
        assert(c->n_tokens > node->first_token && c->n_tokens <= node->first_token + node->n_tokens);
        assert(c->next == NULL || c->next->n_tokens < c->n_tokens);
        assert(!c->unsaved || prefix->options.tier != NULL);
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            const firn_block *state = c->states[layer];
            assert((state != NULL) == ((prefix->family[layer] & FIRNI_FAMILY_FIXED) != 0));
            assert(state == NULL || firni_blockset_refs(&prefix->blocks, state) >= 1);
            totals->n_block_refs += state != NULL;
        }
        totals->n_checkpoints++;
        totals->n_unsaved_checkpoints += c->unsaved;
        unsaved = unsaved || c->unsaved;
    }
    assert(node->unsaved == unsaved);
    (void)unsaved;
}

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
    const bool may_shed = !is_free_leaf && firni_may_shed(prefix, node);
    assert(node->heap == (is_free_leaf ? (node->unsaved ? &prefix->unsaved : &prefix->clean)
                          : may_shed   ? &prefix->shed
                                       : NULL));
    if (prefix->families.n_window > 0) {
        /* An end or a branch, and only that, holds the window before it. */
        assert(node->window_end == (node->n_children != 1 ? node->first_token + node->n_tokens : 0));
        totals->n_window_holds += node->window_holds;
        totals->n_window_holds -= node->window_end > 0 ? count_holds(prefix, node, node->window_end, 2) : 0;
    }
    totals->n_shed += may_shed;
    uint32_t n_stuck_children = 0;
    for (uint32_t i = 0; i < node->n_children; i++) {
        n_stuck_children += node->children[i]->stuck;
    }
    assert(node->n_stuck_children == n_stuck_children);
    assert(node->stuck == (node->unsaved || n_stuck_children > 0) && (node->stuck || node->stuck_bytes == 0));
    totals->stuck_bytes += node->stuck_bytes;
    (void)n_stuck_children;
    check_blocks_of(prefix, node, totals);
    check_checkpoints(prefix, node, totals);
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

/* What was promised can be lent: what may go while the node stays has references, the other window blocks are held. */
static void check_held(const firn_lease *lease, check_totals *totals)
{
    const firn_prefix *prefix = lease->prefix;
    const uint32_t first = firni_families_first_window(&prefix->families, lease->info.n_tokens);
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        assert((lease->held[layer] != NULL) == (firn_cache_block_bytes(prefix->shapes[layer]) > 0));
        assert((lease->held[prefix->n_layers + layer] != NULL) == (firn_cache_fixed_bytes(prefix->shapes[layer]) > 0));
    }
    for (const firni_node *node = lease->node->parent;
         prefix->families.n_window > 0 && node->parent != NULL && node->first_token / FIRN_BLOCK_TOKENS >= first;
         node = node->parent) {
        assert(node->window_holds > 0);
        assert(firni_count_windows(prefix, node) >=
               firni_families_windows_needed(&prefix->families, lease->info.n_tokens,
                                             node->first_token / FIRN_BLOCK_TOKENS));
    }
    if (prefix->families.n_window > 0) {
        totals->n_window_holds -= count_holds(prefix, lease->node, lease->info.n_tokens, 0);
    }
}

/* Reads know their waiters and the other way round; a lease's node is pinned and still says what the prompt says. */
static void check_leases(const firn_prefix *prefix, check_totals *totals)
{
    uint64_t reading_bytes = 0;
    for (const firni_read *read = prefix->reads; read != NULL; read = read->next) {
        reading_bytes += read->room_bytes;
        for (const firn_lease *lease = read->waiters; lease != NULL; lease = lease->next_waiter) {
            assert(lease->read == read && !lease->ready && strcmp(lease->ns, read->ns) == 0);
        }
    }
    assert(reading_bytes == prefix->reading_bytes);
    for (const firni_find *find = prefix->finds; find != NULL; find = find->next) {
        assert(find->next != NULL ? find->next->prev == find : prefix->finds_last == find);
        for (const firn_lease *lease = find->waiters; lease != NULL; lease = lease->next_waiter) {
            assert(lease->find == find && lease->read == NULL && lease->n_prompt == find->n_tokens);
        }
    }
    for (const firn_lease *lease = prefix->leases; lease != NULL; lease = lease->next) {
        const firni_node *node = lease->node;
        assert(lease->ready == (lease->read == NULL && lease->find == NULL));
        assert(lease->info.n_tokens < lease->n_prompt);
        assert((node == NULL) == (lease->info.n_tokens == 0));
        if (node == NULL) {
            continue;
        }
        assert(node->n_pins > 0);
        check_held(lease, totals);
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

/* What is pinned by name is there, and no node counts a pin that is not. */
static void check_pins(const firn_prefix *prefix, check_totals *totals)
{
    uint64_t n_pins = 0;
    for (const firni_ram_pin *pin = prefix->pins; pin != NULL; pin = pin->next) {
        assert(pin->node->n_pins > 0 && pin->node->n_standing > 0);
        assert(pin->n_tokens > pin->node->first_token && pin->n_tokens <= pin->node->first_token + pin->node->n_tokens);
        assert(pin->checkpoint == firni_checkpoint_find(pin->node, pin->n_tokens));
        if (prefix->families.n_window > 0) {
            totals->n_window_holds -= count_holds(prefix, pin->node, pin->n_tokens, 0);
        }
        n_pins++;
    }
    assert(n_pins == prefix->n_pins);
    (void)n_pins;
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
    firni_heap_check(&prefix->shed);
    assert(totals.n_shed == prefix->shed.n_nodes);
    assert(totals.n_checkpoints == prefix->n_checkpoints && totals.stuck_bytes == prefix->stuck_bytes);
    assert(totals.n_unsaved_checkpoints == prefix->n_unsaved_checkpoints);
    check_blocks(&prefix->blocks, totals.n_block_refs);
    assert(prefix->blocks.held_bytes <= prefix->options.budget_bytes);
    check_leases(prefix, &totals);
    check_pins(prefix, &totals);
    assert(totals.n_window_holds == 0); /* each hold has an owner */
}
