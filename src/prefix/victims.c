/*
 * The heap of nodes that may leave. Owns their order; who is in it is the tree's decision, who comes first is the
 * policy's. A plain binary heap (Williams 1964) whose members know their own index.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "prefix/tree_impl.h"

const firni_policy *firni_policy_find(const char *name)
{
    static const firni_policy *const policies[] = { &firni_policy_lru, &firni_policy_cost };
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        if (name == NULL || strcmp(name, policies[i]->name) == 0) {
            return policies[i];
        }
    }
    return NULL;
}

bool firni_heap_reserve(const firn_env *env, firni_heap *heap, size_t n_nodes_max)
{
    if (n_nodes_max <= heap->n_nodes_max) {
        return true;
    }
    /* Doubling keeps a million insertions linear. */
    const size_t n_doubled = heap->n_nodes_max * 2;
    const size_t n_new = n_doubled > n_nodes_max ? n_doubled : n_nodes_max + 16;
    firni_node **grown = firni_grow(env, heap->nodes, heap->n_nodes, n_new, sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    heap->nodes = grown;
    heap->n_nodes_max = n_new;
    return true;
}

void firni_heap_deinit(const firn_env *env, firni_heap *heap)
{
    assert(heap->n_nodes == 0);
    firni_free(env, heap->nodes);
    heap->nodes = NULL;
    heap->n_nodes_max = 0;
}

static bool leaves_before(const firni_heap *heap, const firni_node *a, const firni_node *b)
{
    return heap->by_priority && a->priority != b->priority ? a->priority < b->priority
                                                           : heap->policy->leaves_before(a, b);
}

static void put_at(firni_heap *heap, size_t index, firni_node *node)
{
    heap->nodes[index] = node;
    node->heap_index = index;
}

/* Moves `node`, whose slot is free, towards the top or the bottom until the heap is in order. */
static void settle_at(firni_heap *heap, size_t index, firni_node *node)
{
    while (index > 0 && leaves_before(heap, node, heap->nodes[(index - 1) / 2])) {
        put_at(heap, index, heap->nodes[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (size_t child = 2 * index + 1; child < heap->n_nodes; child = 2 * index + 1) {
        if (child + 1 < heap->n_nodes && leaves_before(heap, heap->nodes[child + 1], heap->nodes[child])) {
            child++;
        }
        if (!leaves_before(heap, heap->nodes[child], node)) {
            break;
        }
        put_at(heap, index, heap->nodes[child]);
        index = child;
    }
    put_at(heap, index, node);
}

void firni_heap_add(firni_heap *heap, firni_node *node)
{
    assert(node->heap == NULL && heap->n_nodes < heap->n_nodes_max);
    node->heap = heap;
    heap->n_nodes++;
    put_at(heap, heap->n_nodes - 1, node);
    settle_at(heap, heap->n_nodes - 1, node);
}

/* The last node takes the free place and finds its own from there. */
void firni_heap_remove(firni_node *node)
{
    firni_heap *heap = node->heap;
    assert(heap != NULL && heap->nodes[node->heap_index] == node);
    firni_node *last = heap->nodes[--heap->n_nodes];
    if (last != node) {
        settle_at(heap, node->heap_index, last);
    }
    node->heap = NULL;
}

/* A touched leaf has become newer and sinks; nothing ever becomes older, but the order does not rely on it. */
void firni_heap_moved(firni_node *node)
{
    settle_at(node->heap, node->heap_index, node);
}

firni_node *firni_heap_first(const firni_heap *heap)
{
    return heap->n_nodes > 0 ? heap->nodes[0] : NULL;
}

void firni_heap_check(const firni_heap *heap)
{
    assert(heap->n_nodes <= heap->n_nodes_max);
    for (size_t i = 0; i < heap->n_nodes; i++) {
        assert(heap->nodes[i]->heap == heap && heap->nodes[i]->heap_index == i);
        assert(i == 0 || !leaves_before(heap, heap->nodes[i], heap->nodes[(i - 1) / 2]));
    }
}
