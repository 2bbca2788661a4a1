/*
 * Which window blocks are needed, and giving up the others. Owns the holds on them; the order in which they go is the
 * policy's, when they go is evict.c's decision.
 *
 *      window of 100      [0] [1] [2] [3] [4] [5] [6] [7] -- end, at 500
 *                               \                 held: the window before the end and a margin of two blocks
 *                                '- [3'] -- end, at 230
 *
 * A position needs only the window before it. So of a long conversation the tree needs the window blocks of its end;
 * those of a branch, where another conversation may leave again; and those that a lease was promised. What no end and
 * no branch holds serves older positions alone, and goes first when memory is short. The margin is for the prompt that
 * comes back with its last answer rewritten.
 *
 * Ends and branches change when nodes come and go; each change is a walk as long as the window.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

enum { MARGIN_BLOCKS = 2 };

uint32_t firni_count_windows(const firn_prefix *prefix, const firni_node *node)
{
    const firni_families *families = &prefix->families;
    uint32_t n_kinds = families->n_windows;
    for (uint32_t layer = 0; layer < prefix->n_layers && n_kinds > 0; layer++) {
        if ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) && node->blocks[layer] == NULL &&
            families->kinds[layer] < n_kinds) {
            n_kinds = families->kinds[layer];
        }
    }
    return n_kinds;
}

bool firni_has_windows(const firn_prefix *prefix, const firni_node *node)
{
    return firni_count_windows(prefix, node) == prefix->families.n_windows;
}

static bool has_any_window(const firn_prefix *prefix, const firni_node *node)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) && node->blocks[layer] != NULL) {
            return true;
        }
    }
    return false;
}

void firni_windows_hold(firn_prefix *prefix, firni_node *node, uint32_t first)
{
    if (prefix->families.n_window == 0) {
        return;
    }
    for (; node->parent != NULL && node->first_token / FIRN_BLOCK_TOKENS >= first; node = node->parent) {
        if (node->window_holds++ == 0) {
            firni_count_stuck(prefix, node);
            firni_settle(prefix, node);
        }
    }
}

void firni_windows_unhold(firn_prefix *prefix, firni_node *node, uint32_t first)
{
    if (prefix->families.n_window == 0) {
        return;
    }
    for (; node->parent != NULL && node->first_token / FIRN_BLOCK_TOKENS >= first; node = node->parent) {
        assert(node->window_holds > 0);
        if (--node->window_holds == 0) {
            firni_count_stuck(prefix, node);
            firni_settle(prefix, node);
        }
    }
}

/* The first block that an end or a branch at n_tokens holds. */
static uint32_t first_held(const firn_prefix *prefix, uint32_t n_tokens)
{
    const uint32_t first = firni_families_first_window(&prefix->families, n_tokens);
    return first > MARGIN_BLOCKS ? first - MARGIN_BLOCKS : 0;
}

void firni_windows_follow(firn_prefix *prefix, firni_node *node, bool gone)
{
    if (prefix->families.n_window == 0 || node->parent == NULL) {
        return;
    }
    const bool is_end = !gone && node->n_children != 1;
    const uint32_t end = is_end ? node->first_token + node->n_tokens : 0;
    const uint32_t before = node->window_end;
    if (end == before) {
        return;
    }
    /* The new hold first: what both need is never without one. */
    node->window_end = end;
    if (end > 0) {
        firni_windows_hold(prefix, node, first_held(prefix, end));
    }
    if (before > 0) {
        firni_windows_unhold(prefix, node, first_held(prefix, before));
    }
}

bool firni_may_shed(const firn_prefix *prefix, const firni_node *node)
{
    return prefix->families.n_window > 0 && node->window_holds == 0 && has_any_window(prefix, node);
}

void firni_windows_shed(firn_prefix *prefix, firni_node *node)
{
    assert(firni_may_shed(prefix, node));
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) && node->blocks[layer] != NULL) {
            firni_blockset_remove(&prefix->blocks, node->blocks[layer]);
            firn_block_release(node->blocks[layer]);
            node->blocks[layer] = NULL;
        }
    }
    prefix->stats.n_shed++;
    firni_settle(prefix, node);
}
