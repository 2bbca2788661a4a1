/*
 * How far a prompt is stored, and how much of that can be used. Reads the tree, changes nothing.
 *
 * What is usable is decided by usable.c, for the tree as for every tier. Here a path of nodes is described to it: each
 * node remembers the answers that the rows it came from gave about themselves (can they be cut after any token, from
 * where can they resume, where did they end), combined over all layers.
 */
#include <assert.h>

#include "prefix/tree_impl.h"

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

/* Steps are asked for from the deepest one up: the walk is the node that comes next. */
static firni_path_step describe_node(void *ctx, uint32_t index)
{
    firni_node **next = ctx;
    const firni_node *node = *next;
    assert(node->first_token == index * FIRN_BLOCK_TOKENS);
    (void)index;
    *next = node->parent;
    return (firni_path_step){
        .first_token = node->first_token,
        .n_tokens = node->n_tokens,
        .reusable_from = node->reusable_from,
        .has_windows = true,
        .cut_anywhere = node->cut_anywhere,
        .boundary = node->boundary,
    };
}

uint32_t firni_node_usable(const firni_families *families, firni_node *node, uint32_t n_max, firni_node **last)
{
    *last = NULL;
    if (node == NULL || node->parent == NULL) {
        return 0;
    }
    firni_node *next = node;
    const uint32_t n_steps = node->first_token / FIRN_BLOCK_TOKENS + 1;
    const uint32_t n = firni_usable_prefix(families, n_steps, describe_node, &next, n_max);
    if (n > 0) {
        while (node->first_token >= n) {
            node = node->parent;
        }
        *last = node;
    }
    return n;
}
