/*
 * Nodes and their sorted children. Owns the memory of a node and the order among siblings; blocks, recency and
 * accounting are the tree's (tree.c).
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "prefix/tree_impl.h"

firni_node *firni_node_create(const firn_env *env, uint32_t n_layers)
{
    firni_node *node = firni_calloc(env, 1, sizeof *node + n_layers * sizeof node->blocks[0]);
    if (node != NULL) {
        node->children = &node->only_child;
        node->n_children_max = 1;
    }
    return node;
}

void firni_node_destroy(const firn_env *env, firni_node *node)
{
    if (node == NULL) {
        return;
    }
    assert(node->n_children == 0 && node->heap == NULL && node->checkpoints == NULL);
    if (node->children != &node->only_child) {
        firni_free(env, node->children);
    }
    firni_free(env, node->ns);
    firni_free(env, node);
}

/* The one place where tokens are compared. A vectorised loop would not pay: a comparison ends at the first difference,
 * and a whole block is 64 tokens. */
uint32_t firni_tokens_common(const firn_token *a, const firn_token *b, uint32_t n_max)
{
    uint32_t n = 0;
    while (n < n_max && a[n] == b[n]) {
        n++;
    }
    return n;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Tokens that `child` and the sequence begin with in common. */
static uint32_t common_with(const firni_node *child, const firn_token *tokens, uint32_t n_tokens)
{
    return firni_tokens_common(child->tokens, tokens, min_u32(child->n_tokens, n_tokens));
}

/* Lexicographic: whether `child` stands before the sequence. A beginning stands before what it begins. */
static bool stands_before(const firni_node *child, const firn_token *tokens, uint32_t n_tokens)
{
    const uint32_t n = common_with(child, tokens, n_tokens);
    if (n == child->n_tokens || n == n_tokens) {
        return child->n_tokens < n_tokens;
    }
    return child->tokens[n] < tokens[n];
}

/* A binary search: a node below a much-used system prompt may have thousands of children. */
firni_place firni_node_place(const firni_node *parent, const firn_token *tokens, uint32_t n_tokens)
{
    uint32_t low = 0;
    uint32_t high = parent->n_children;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (stands_before(parent->children[middle], tokens, n_tokens)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    firni_place place = { .index = low };
    /* In sorted order the longest common beginning is with one of the two neighbours. */
    if (low < parent->n_children) {
        place.best = parent->children[low];
        place.n_common = common_with(place.best, tokens, n_tokens);
    }
    if (low > 0) {
        firni_node *before = parent->children[low - 1];
        const uint32_t n = common_with(before, tokens, n_tokens);
        if (place.best == NULL || n > place.n_common) {
            place.best = before;
            place.n_common = n;
        }
    }
    return place;
}

bool firni_node_reserve_child(const firn_env *env, firni_node *parent)
{
    if (parent->n_children < parent->n_children_max) {
        return true;
    }
    /* The first child needs no memory of its own: most nodes never have a second. */
    const bool inside = parent->children == &parent->only_child;
    const size_t n_new = inside ? 4 : (size_t)parent->n_children_max * 2;
    if (n_new > UINT32_MAX) {
        return false;
    }
    firni_node **grown = firni_grow(env, inside ? NULL : parent->children, inside ? 0 : parent->n_children, n_new,
                                    sizeof(firni_node *));
    if (grown == NULL) {
        return false;
    }
    if (inside) {
        grown[0] = parent->only_child;
    }
    parent->children = grown;
    parent->n_children_max = (uint32_t)n_new;
    return true;
}

/* Only whole nodes have children: a tail that could be continued would have to be split. */
void firni_node_link(firni_node *parent, firni_node *child, uint32_t index)
{
    assert(index <= parent->n_children && parent->n_children < parent->n_children_max);
    assert(child->parent == NULL && (parent->parent == NULL || parent->n_tokens == FIRN_BLOCK_TOKENS));
    memmove(&parent->children[index + 1], &parent->children[index],
            (parent->n_children - index) * sizeof parent->children[0]);
    parent->children[index] = child;
    parent->n_children++;
    child->parent = parent;
}

void firni_node_unlink(firni_node *child)
{
    firni_node *parent = child->parent;
    /* Its own tokens lead to it, so a child need not know its index. */
    const uint32_t index = firni_node_place(parent, child->tokens, child->n_tokens).index;
    assert(parent->children[index] == child);
    parent->n_children--;
    memmove(&parent->children[index], &parent->children[index + 1],
            (parent->n_children - index) * sizeof parent->children[0]);
    child->parent = NULL;
}
