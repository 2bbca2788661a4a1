/*
 * What every part of the RAM tier does to nodes: roots, pins, recency, unsaved marks, removal. Owns the rule of where a
 * node waits; deciding what to insert, evict or store lies elsewhere.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

/* ---- roots ---- */

/* Index of the first root that does not stand before `ns`. Namespaces are few, or short-lived: a sorted array will
 * do. */
static uint32_t root_place(const firn_prefix *prefix, const char *ns)
{
    uint32_t low = 0;
    uint32_t high = prefix->n_roots;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (strcmp(prefix->roots[middle]->ns, ns) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

firni_node *firni_root_find(const firn_prefix *prefix, const char *ns)
{
    const uint32_t index = root_place(prefix, ns);
    const bool found = index < prefix->n_roots && strcmp(prefix->roots[index]->ns, ns) == 0;
    return found ? prefix->roots[index] : NULL;
}

firni_node *firni_root_make(firn_prefix *prefix, const char *ns)
{
    firni_node *root = firni_root_find(prefix, ns);
    if (root != NULL) {
        return root;
    }
    if (prefix->n_roots == prefix->n_roots_max) {
        const uint32_t n_new = prefix->n_roots_max * 2 + 4;
        firni_node **grown = firni_grow(prefix->env, prefix->roots, prefix->n_roots, n_new, sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        prefix->roots = grown;
        prefix->n_roots_max = n_new;
    }
    /* Room in the array first: what follows can be undone by destroying the node. */
    root = firni_node_create(prefix->env, 0);
    if (root == NULL || (root->ns = firni_strdup(prefix->env, ns)) == NULL) {
        firni_node_destroy(prefix->env, root);
        return NULL;
    }
    const uint32_t index = root_place(prefix, ns);
    memmove(&prefix->roots[index + 1], &prefix->roots[index], (prefix->n_roots - index) * sizeof prefix->roots[0]);
    prefix->roots[index] = root;
    prefix->n_roots++;
    return root;
}

/* Namespaces come and go with users: one without state costs nothing. */
void firni_root_drop_if_empty(firn_prefix *prefix, firni_node *root)
{
    if (root->n_children > 0 || root->n_pins > 0) {
        return;
    }
    const uint32_t index = root_place(prefix, root->ns);
    assert(prefix->roots[index] == root);
    prefix->n_roots--;
    memmove(&prefix->roots[index], &prefix->roots[index + 1], (prefix->n_roots - index) * sizeof prefix->roots[0]);
    firni_node_destroy(prefix->env, root);
}

const char *firni_node_namespace(const firni_node *node)
{
    while (node->parent != NULL) {
        node = node->parent;
    }
    return node->ns;
}

/* ---- pins and recency ---- */

/* A leaf with a checkpoint stands for all tokens since the one before it on its path. */
static uint32_t first_token_saved(const firni_node *node)
{
    if (node->checkpoints == NULL) {
        return node->first_token;
    }
    for (const firni_node *above = node->parent; above->parent != NULL; above = above->parent) {
        if (above->checkpoints != NULL) {
            return above->checkpoints->n_tokens;
        }
    }
    return 0;
}

static void rank_leaf(const firn_prefix *prefix, firni_node *node)
{
    if (prefix->clean.policy->rank == NULL) {
        return;
    }
    const uint32_t first_token = first_token_saved(node);
    const firni_use use = {
        .clock = node->clock,
        .first_token = first_token,
        .n_tokens = node->first_token + node->n_tokens - first_token,
        .bytes = firni_node_bytes(prefix, node),
        .unit_bytes = prefix->node_bytes > 0 ? prefix->node_bytes : prefix->checkpoint_bytes,
    };
    node->rank = prefix->clean.policy->rank(&use);
}

void firni_settle(firn_prefix *prefix, firni_node *node)
{
    /* A parent can only shed: it becomes a candidate as a whole when its last child has left. */
    firni_heap *heap = NULL;
    if (node->parent != NULL && node->n_children == 0 && node->n_pins == 0) {
        heap = node->unsaved ? &prefix->unsaved : &prefix->clean;
    } else if (node->parent != NULL && firni_may_shed(prefix, node)) {
        heap = &prefix->shed;
    }
    if (heap == &prefix->clean) {
        rank_leaf(prefix, node);
    }
    if (node->heap == heap) {
        if (heap != NULL) {
            firni_heap_moved(node);
        }
        return;
    }
    if (node->heap != NULL) {
        firni_heap_remove(node);
    }
    if (heap != NULL) {
        firni_heap_add(heap, node);
    }
}

void firni_pin(firn_prefix *prefix, firni_node *node)
{
    if (node->n_pins++ == 0 && node->parent != NULL) {
        prefix->n_pinned++;
        firni_settle(prefix, node);
    }
}

/* The last pin of a root without children was what kept it. */
void firni_unpin(firn_prefix *prefix, firni_node *node)
{
    assert(node->n_pins > 0);
    if (--node->n_pins > 0) {
        return;
    }
    if (node->parent == NULL) {
        firni_root_drop_if_empty(prefix, node);
        return;
    }
    prefix->n_pinned--;
    firni_settle(prefix, node);
}

/* From the bottom up, so that each parent gets a newer stamp than its child: tails grow old before their heads. */
void firni_touch(firn_prefix *prefix, firni_node *node)
{
    for (; node->parent != NULL; node = node->parent) {
        node->used = ++prefix->stamp;
        node->clock = prefix->policy_clock;
        node->speculative = false;
        if (node->heap != NULL) {
            if (node->heap == &prefix->clean) {
                rank_leaf(prefix, node);
            }
            firni_heap_moved(node);
        }
    }
}

/* ---- unsaved nodes ---- */

/* Doubly linked through the nodes: nothing to allocate, and a node that was saved by another path's store leaves the
 * middle of the list in constant time. */

static void list_append(firn_prefix *prefix, firni_list_id id, firni_node *node)
{
    firni_link *list = &prefix->lists[id];
    node->links[id] = (firni_link){ .prev = list->prev };
    if (list->prev != NULL) {
        list->prev->links[id].next = node;
    } else {
        list->next = node;
    }
    list->prev = node;
}

static void list_remove(firn_prefix *prefix, firni_list_id id, firni_node *node)
{
    firni_link *list = &prefix->lists[id];
    const firni_link link = node->links[id];
    if (link.prev != NULL) {
        link.prev->links[id].next = link.next;
    } else {
        list->next = link.next;
    }
    if (link.next != NULL) {
        link.next->links[id].prev = link.prev;
    } else {
        list->prev = link.prev;
    }
}

/* A path leaves from its end. So what is unsaved keeps all of its path here, but for the window blocks that nobody
 * holds: a bound, since a held window block may be missing. */
void firni_count_stuck(firn_prefix *prefix, firni_node *node)
{
    uint64_t bytes = 0;
    if (node->stuck) {
        bytes = prefix->node_bytes - (node->window_holds > 0 ? 0 : prefix->window_bytes);
        for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
            bytes += prefix->checkpoint_bytes;
        }
    }
    prefix->stuck_bytes += bytes - node->stuck_bytes;
    node->stuck_bytes = bytes;
}

/* The walk ends at the first node that stays as it was. */
static void follow_stuck(firn_prefix *prefix, firni_node *node)
{
    for (; node->parent != NULL; node = node->parent) {
        const bool stuck = node->unsaved || node->n_stuck_children > 0;
        if (stuck == node->stuck) {
            return;
        }
        node->stuck = stuck;
        firni_count_stuck(prefix, node);
        node->parent->n_stuck_children += stuck ? 1u : -1u;
    }
}

void firni_update_unsaved(firn_prefix *prefix, firni_node *node)
{
    bool unsaved = node->blocks_unsaved;
    for (const firni_checkpoint *c = node->checkpoints; c != NULL && !unsaved; c = c->next) {
        unsaved = c->unsaved;
    }
    if (unsaved == node->unsaved) {
        return;
    }
    if (unsaved) {
        list_append(prefix, FIRNI_LIST_UNSAVED, node);
        node->unsaved_since = prefix->flush_number;
        prefix->n_unsaved++;
    } else {
        firni_stop_waiting(prefix, node); /* a saved node has nothing to wait for */
        list_remove(prefix, FIRNI_LIST_UNSAVED, node);
        prefix->n_unsaved--;
        prefix->n_saved++;
    }
    node->unsaved = unsaved;
    follow_stuck(prefix, node);
    firni_settle(prefix, node);
}

void firni_mark_unsaved(firn_prefix *prefix, firni_node *node)
{
    node->blocks_unsaved = true;
    firni_update_unsaved(prefix, node);
}

void firni_mark_saved(firn_prefix *prefix, firni_node *node)
{
    node->blocks_unsaved = false;
    firni_update_unsaved(prefix, node);
}

void firni_wait_for_store(firn_prefix *prefix, firni_node *node)
{
    if (!node->waiting) {
        node->waiting = true;
        list_append(prefix, FIRNI_LIST_WAITING, node);
    }
}

void firni_stop_waiting(firn_prefix *prefix, firni_node *node)
{
    if (node->waiting) {
        node->waiting = false;
        list_remove(prefix, FIRNI_LIST_WAITING, node);
    }
}

/* ---- removal ---- */

uint64_t firni_node_bytes(const firn_prefix *prefix, const firni_node *node)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        bytes += node->blocks[layer] != NULL ? firn_block_bytes(node->blocks[layer]) : 0;
    }
    for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
        bytes += prefix->checkpoint_bytes;
    }
    return bytes;
}

void firni_remove_leaf(firn_prefix *prefix, firni_node *leaf)
{
    assert(leaf->n_children == 0 && leaf->n_pins == 0 && !leaf->storing);
    while (leaf->checkpoints != NULL) {
        firni_checkpoint_drop(prefix, leaf, leaf->checkpoints);
    }
    firni_mark_saved(prefix, leaf); /* only without a tier to store it: destruction */
    firni_windows_follow(prefix, leaf, true);
    if (leaf->heap != NULL) {
        firni_heap_remove(leaf);
    }
    /* The blocks' memory goes back to the pool now, unless a row, a lease or a store still shares them. */
    firni_node *parent = leaf->parent;
    firni_node_unlink(leaf);
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if (leaf->blocks[layer] != NULL) {
            firni_blockset_remove(&prefix->blocks, leaf->blocks[layer]);
            firn_block_release(leaf->blocks[layer]);
        }
    }
    prefix->n_nodes--;
    firni_node_destroy(prefix->env, leaf);
    if (parent->parent == NULL) {
        firni_root_drop_if_empty(prefix, parent);
    } else {
        firni_windows_follow(prefix, parent, false);
        firni_settle(prefix, parent);
    }
}
