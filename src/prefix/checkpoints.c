/*
 * Checkpoints of fixed-size state: their memory, and the rule of which are kept.
 *
 * A state cannot be cut, so a prompt resumes at a checkpoint or not at all, and each costs as much as thousands of
 * tokens. Of a conversation the tree keeps those nearest to 0, 2, 32 and 512 blocks before the end of its prompt, the
 * first one inside the block that follows, and the latest; the others are dropped when newer ones arrive:
 *
 *      blocks   0                                      480          510  512
 *               |---*------------------------------------*-----------*----*-*----*
 *                   -512 blocks                          -32         -2   0 |    the latest: where the answer ended
 *                                                                           the prompt without its last token
 *
 * An answer that is continued resumes where it ended; one that is written again, where the prompt did; an edit further
 * up, further up. By the design measurements on 710 recorded agent sessions four checkpoints keep 99.7 % of the hits
 * that keeping all of them would give.
 *
 * Prompts are given to the tree at block boundaries and one token before their end, answers at their exact end: so the
 * end of the prompt is the last checkpoint at a boundary, and what stands first in the block after it, or one token
 * before it, is the prompt that may be asked once more.
 *
 * Where conversations part, what lies above belongs to all of them: the rule stops at the first branch above the end.
 * So the last checkpoint at or before a branch stays for whoever leaves there next.
 *
 * A prompt whose last logits are kept is resumed at its very end, which need not be a boundary: that checkpoint stays
 * as long as the logits do.
 *
 * A checkpoint that the tier does not hold yet is not dropped. It is stored first. The exception is one inside a block
 * whose beginning has one too: when the conversation has gone on to another prompt, it could save no more than the
 * tokens between the two, and a state that is never written is a state less to write in each turn.
 */
#include <assert.h>
#include <stddef.h>

#include "prefix/prefix_impl.h"

/* Distances of what is kept from the end of the prompt, in tokens. */
static const uint32_t distances[] = { 0, 2 * FIRN_BLOCK_TOKENS, 32 * FIRN_BLOCK_TOKENS, 512 * FIRN_BLOCK_TOKENS };

enum { N_DISTANCES = sizeof distances / sizeof distances[0] };

firni_checkpoint *firni_checkpoint_create(const firn_prefix *prefix, uint32_t n_tokens)
{
    firni_checkpoint *checkpoint =
        firni_calloc(prefix->env, 1, sizeof *checkpoint + prefix->n_layers * sizeof checkpoint->states[0]);
    if (checkpoint != NULL) {
        checkpoint->n_tokens = n_tokens;
    }
    return checkpoint;
}

void firni_checkpoint_destroy(const firn_prefix *prefix, firni_checkpoint *checkpoint)
{
    firni_free(prefix->env, checkpoint);
}

firni_checkpoint *firni_checkpoint_find(const firni_node *node, uint32_t n_tokens)
{
    firni_checkpoint *checkpoint = node->checkpoints;
    while (checkpoint != NULL && checkpoint->n_tokens > n_tokens) {
        checkpoint = checkpoint->next;
    }
    return checkpoint != NULL && checkpoint->n_tokens == n_tokens ? checkpoint : NULL;
}

void firni_checkpoint_link(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint)
{
    assert(checkpoint->n_tokens > node->first_token && checkpoint->n_tokens <= node->first_token + node->n_tokens);
    firni_checkpoint **link = &node->checkpoints;
    while (*link != NULL && (*link)->n_tokens > checkpoint->n_tokens) {
        link = &(*link)->next;
    }
    assert(*link == NULL || (*link)->n_tokens < checkpoint->n_tokens);
    checkpoint->next = *link;
    *link = checkpoint;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if (checkpoint->states[layer] != NULL) {
            firni_blockset_add(&prefix->blocks, checkpoint->states[layer]);
            (void)firn_block_retain(checkpoint->states[layer]);
        }
    }
    prefix->n_checkpoints++;
    prefix->n_unsaved_checkpoints += checkpoint->unsaved;
    firni_update_unsaved(prefix, node);
    firni_count_stuck(prefix, node);
}

void firni_checkpoint_drop(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint)
{
    firni_checkpoint **link = &node->checkpoints;
    while (*link != checkpoint) {
        link = &(*link)->next;
    }
    *link = checkpoint->next;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if (checkpoint->states[layer] != NULL) {
            firni_blockset_remove(&prefix->blocks, checkpoint->states[layer]);
            firn_block_release(checkpoint->states[layer]);
        }
    }
    prefix->n_checkpoints--;
    prefix->n_unsaved_checkpoints -= checkpoint->unsaved;
    firni_checkpoint_destroy(prefix, checkpoint);
    firni_update_unsaved(prefix, node);
    firni_count_stuck(prefix, node);
}

void firni_checkpoint_mark_saved(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint)
{
    prefix->n_unsaved_checkpoints -= checkpoint->unsaved;
    checkpoint->unsaved = false;
    firni_update_unsaved(prefix, node);
}

/* ---- retention ---- */

/* What the rule keeps of one conversation: by distance, and these. */
enum { KEPT_LATEST = N_DISTANCES, KEPT_PROMPT, KEPT_FRESH, N_KEPT };

typedef struct kept_set {
    const firni_checkpoint *kept[N_KEPT];
} kept_set;

static uint32_t distance(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* The last checkpoint at a block boundary; when there is none, the last one. */
static uint32_t end_of_prompt(const firni_node *leaf)
{
    uint32_t latest = 0;
    for (const firni_node *node = leaf; node->parent != NULL; node = node->parent) {
        for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
            latest = latest > 0 ? latest : c->n_tokens;
            if (c->n_tokens % FIRN_BLOCK_TOKENS == 0) {
                return c->n_tokens;
            }
        }
    }
    return latest;
}

/* The nearest to each distance before `end`, between two as near the shorter; the first after it in its block, or the
 * one that lacks one token to it; and the latest. Past the last distance they only get further away. */
static void find_kept(const firni_node *leaf, uint32_t end, kept_set *set)
{
    for (const firni_node *node = leaf; node->parent != NULL; node = node->parent) {
        for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
            if (set->kept[KEPT_LATEST] == NULL) {
                set->kept[KEPT_LATEST] = c;
            }
            /* A prompt that ends at a boundary may have a checkpoint there too, with its logits. */
            if ((c->n_tokens > end && c->n_tokens - end < FIRN_BLOCK_TOKENS) || c->n_tokens + 1 == end) {
                set->kept[KEPT_PROMPT] = c;
            }
            for (uint32_t i = 0; i < N_DISTANCES; i++) {
                const uint32_t wanted = end > distances[i] ? end - distances[i] : 0;
                const firni_checkpoint *best = set->kept[i];
                if (best == NULL || distance(c->n_tokens, wanted) <= distance(best->n_tokens, wanted)) {
                    set->kept[i] = c;
                }
            }
        }
        const uint32_t last = end > distances[N_DISTANCES - 1] ? end - distances[N_DISTANCES - 1] : 0;
        const firni_checkpoint *best = set->kept[N_DISTANCES - 1];
        if (best != NULL && best->n_tokens <= last) {
            break;
        }
    }
}

static bool is_kept(const kept_set *set, const firni_checkpoint *checkpoint)
{
    for (size_t i = 0; i < sizeof set->kept / sizeof set->kept[0]; i++) {
        if (set->kept[i] == checkpoint) {
            return true;
        }
    }
    return checkpoint->has_logits;
}

bool firni_checkpoint_is_covered(const firni_node *node, const firni_checkpoint *checkpoint)
{
    const firni_checkpoint *before = node->parent->checkpoints;
    return checkpoint->n_tokens % FIRN_BLOCK_TOKENS != 0 && before != NULL && before->n_tokens == node->first_token;
}

bool firni_checkpoints_retain(firn_prefix *prefix, firni_node *node, const firni_checkpoint *fresh)
{
    if (prefix->families.n_fixed == 0 || node->parent == NULL) {
        return false;
    }
    /* To the end of the conversation. At a branch there is more than one, and each has applied the rule for itself. */
    while (node->n_children == 1) {
        node = node->children[0];
    }
    if (node->n_children > 1) {
        return false;
    }
    kept_set set = { .kept = { [KEPT_FRESH] = fresh } };
    find_kept(node, end_of_prompt(node), &set);
    bool dropped = false;
    for (; node->parent != NULL && node->n_children <= 1; node = node->parent) {
        firni_checkpoint *next;
        for (firni_checkpoint *c = node->checkpoints; c != NULL; c = next) {
            next = c->next;
            if (is_kept(&set, c) || c->n_pins > 0) {
                continue;
            }
            if (c->unsaved && !firni_checkpoint_is_covered(node, c)) {
                firni_writer_want(prefix, node);
            } else {
                firni_checkpoint_drop(prefix, node, c);
                prefix->stats.n_checkpoints_dropped++;
                dropped = true;
            }
        }
    }
    return dropped;
}
