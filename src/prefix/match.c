/*
 * How far a prompt is stored, and how much of that can be used. Reads the tree, changes nothing.
 *
 * What is usable is decided by usable.c, for the tree as for every tier. Here a path of nodes is described to it: each
 * node remembers the answers that the rows it came from gave about themselves (can they be cut after any token, from
 * where can they resume, where did they end), combined over all layers.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

firni_match firni_match_tokens(firni_node *root, const firn_token *tokens, uint32_t n_tokens)
{
    firni_match match = { .node = NULL };
    firni_node *node = root;
    while (node != NULL && node->n_children > 0 && match.n_matched < n_tokens) {
        const uint32_t at = match.n_matched;
        const uint32_t n_left = n_tokens - at;
        const uint32_t n_wanted = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
        const firni_place place = firni_node_place(node, &tokens[at], n_wanted);
        match.n_matched += place.n_common;
        if (place.n_common > 0) {
            match.node = place.best;
        }
        if (place.n_common < FIRN_BLOCK_TOKENS) {
            /* The end of the way: the prompt is over, the stored tokens are, or they differ. Against nothing matched at
             * all, "differs" would only say that other prompts exist. */
            match.diverged = match.n_matched > 0 && match.n_matched < n_tokens && place.n_common < place.best->n_tokens;
            if (match.diverged) {
                match.stored_token = place.best->tokens[place.n_common];
            }
            break;
        }
        node = place.best;
    }
    return match;
}

/* Bit i: after i + 1 of the node's tokens. */
static uint64_t checkpoint_bits(const firni_node *node)
{
    uint64_t bits = 0;
    for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
        bits |= UINT64_C(1) << (c->n_tokens - node->first_token - 1);
    }
    return bits;
}

/* Steps are asked for from the deepest one up: the walk is the node that comes next. */
typedef struct walk {
    const firni_node *next;
    const firn_prefix *prefix;
} walk;

static firni_path_step describe_node(void *ctx, uint32_t index)
{
    walk *up = ctx;
    const firni_node *node = up->next;
    assert(node->first_token == index * FIRN_BLOCK_TOKENS);
    (void)index;
    up->next = node->parent;
    return (firni_path_step){
        .first_token = node->first_token,
        .n_tokens = node->n_tokens,
        .reusable_from = node->reusable_from,
        .n_windows = firni_count_windows(up->prefix, node),
        .checkpoints = checkpoint_bits(node),
        .cut_anywhere = node->cut_anywhere,
        .boundary = node->boundary,
    };
}

uint32_t firni_node_usable(const firn_prefix *prefix, firni_node *node, uint32_t n_max, firni_node **last)
{
    *last = NULL;
    if (node == NULL || node->parent == NULL) {
        return 0;
    }
    walk up = { .next = node, .prefix = prefix };
    const uint32_t n_steps = node->first_token / FIRN_BLOCK_TOKENS + 1;
    const uint32_t n = firni_usable_prefix(&prefix->families, n_steps, describe_node, &up, n_max);
    if (n > 0) {
        while (node->first_token >= n) {
            node = node->parent;
        }
        *last = node;
    }
    return n;
}

/* What `child` may be usable for beyond `best`: a cheap question that spares most walks. The node on the longest path
 * lacks it, or has no checkpoint there. */
static bool may_have_more(const firn_prefix *prefix, const firni_node *child, const firni_node *on_path, uint32_t end,
                          uint32_t best)
{
    if (prefix->families.n_fixed > 0) {
        const firni_checkpoint *c = child->checkpoints;
        while (c != NULL && c->n_tokens > end) {
            c = c->next;
        }
        return c != NULL && c->n_tokens > best;
    }
    return firni_count_windows(prefix, child) > firni_count_windows(prefix, on_path);
}

/* The siblings of `on_path` that begin with the same tokens: they stand beside it in order. */
static uint32_t best_of_siblings(const firn_prefix *prefix, firni_node *on_path, const firn_token *tokens,
                                 uint32_t n_max, uint32_t best, firni_node **last)
{
    const firni_node *parent = on_path->parent;
    const uint32_t first = on_path->first_token;
    const uint32_t n_step = n_max - first < FIRN_BLOCK_TOKENS ? n_max - first : FIRN_BLOCK_TOKENS;
    const uint32_t middle = firni_node_place(parent, on_path->tokens, on_path->n_tokens).index;
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = side == 0 ? middle : middle + 1; side == 0 ? i > 0 : i < parent->n_children;
             i = side == 0 ? i - 1 : i + 1) {
            firni_node *child = parent->children[side == 0 ? i - 1 : i];
            const uint32_t n = child->n_tokens < n_step ? child->n_tokens : n_step;
            const uint32_t end = first + firni_tokens_common(child->tokens, &tokens[first], n);
            if (end == first) {
                break;
            }
            firni_node *node;
            const uint32_t n_usable = may_have_more(prefix, child, on_path, end, best)
                                          ? firni_node_usable(prefix, child, end, &node)
                                          : 0;
            if (n_usable > best) {
                best = n_usable;
                *last = node;
            }
        }
    }
    return best;
}

/* A prompt that leaves a path inside a block shares the beginning of that block with all that left it there before.
 * Where blocks can be cut they all serve alike; a checkpoint or a window is in one of them. */
uint32_t firni_tokens_usable(const firn_prefix *prefix, firni_node *node, const firn_token *tokens, uint32_t n_max,
                             firni_node **last)
{
    uint32_t best = firni_node_usable(prefix, node, n_max, last);
    if (prefix->families.n_fixed == 0 && prefix->families.n_window == 0) {
        return best;
    }
    for (; node != NULL && node->parent != NULL && node->first_token + FIRN_BLOCK_TOKENS > best; node = node->parent) {
        if (node->parent->n_children > 1 && node->first_token < n_max) {
            best = best_of_siblings(prefix, node, tokens, n_max, best, last);
        }
    }
    return best;
}
