/*
 * How far a prompt is stored, and how much of that can be used. Reads the tree, changes nothing.
 *
 * The usable prefix is the smallest over what each layer can do. Which layers those are is never asked: each node
 * remembers the answers that the rows it came from gave about themselves (can they be cut after any token, from where
 * can they resume, where did they end), combined over all layers.
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

uint32_t firni_usable_prefix(firni_node *node, uint32_t n_max, firni_node **last)
{
    *last = NULL;
    for (; node != NULL && node->parent != NULL; node = node->parent) {
        const uint32_t end = node->first_token + node->n_tokens;
        const uint32_t n = end < n_max ? end : n_max;
        if (n <= node->first_token || n < node->reusable_from) {
            continue;
        }
        if (node->cut_anywhere || (node->boundary && n == end)) {
            *last = node;
            return n;
        }
    }
    return 0;
}
