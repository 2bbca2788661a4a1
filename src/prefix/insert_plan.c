/*
 * What an insertion adds to the tree and how much of it fits: steps 1 to 4 of insert.c. Owns the plan; changes nothing
 * in the tree but by eviction.
 */
#include <assert.h>
#include <string.h>

#include "prefix/insert_impl.h"

static uint32_t step_tokens(const firni_insertion *in, uint32_t at)
{
    const uint32_t n_left = in->n_tokens - at;
    return n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
}

firn_block *firni_offered_block(const firn_prefix *prefix, uint32_t layer, uint32_t index)
{
    const firn_row_view *view = &prefix->views[layer];
    return index >= view->first_block && index - view->first_block < view->n_blocks
               ? view->blocks[index - view->first_block]
               : NULL;
}

bool firni_can_refill(const firn_prefix *prefix, const firni_insertion *in, const firni_node *node, uint32_t layer)
{
    return (prefix->family[layer] & FIRNI_FAMILY_WINDOW) && node->blocks[layer] == NULL &&
           node->first_token + node->n_tokens <= in->n_tokens &&
           firni_offered_block(prefix, layer, node->first_token / FIRN_BLOCK_TOKENS) != NULL;
}

/* Step 1. Fills prefix->views, borrowed from the rows until the insertion is over. The rows answer for themselves what
 * can be done with their state. */
firn_reason firni_plan_check(firn_prefix *prefix, firni_insertion *in, firni_insertion_plan *plan)
{
    plan->cut_anywhere = true;
    plan->first_window = UINT32_MAX;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_cache *cache = in->caches[layer];
        const uint32_t family = prefix->family[layer];
        if (firn_cache_get_pool(cache) != prefix->options.pool ||
            strcmp(firn_cache_describe(cache), firn_cache_describe(prefix->shapes[layer])) != 0) {
            return FIRN_REASON_WRONG_IDENTITY;
        }
        if (firn_cache_batch_size(cache) != 1 || !firn_cache_can_publish_row(cache, 0, in->n_tokens)) {
            return FIRN_REASON_COUNT_MISMATCH;
        }
        const firn_row_view view = firn_cache_view_row(cache, 0);
        if (view.n_tokens < in->n_tokens) {
            return FIRN_REASON_COUNT_MISMATCH;
        }
        const bool has_fixed = (family & FIRNI_FAMILY_FIXED) != 0;
        if (has_fixed != (view.fixed != NULL) || ((family & FIRNI_FAMILY_FULL) && view.first_block > 0)) {
            return FIRN_REASON_FAMILY_MISSING;
        }
        if (family & FIRNI_FAMILY_WINDOW) {
            plan->first_window = view.first_block < plan->first_window ? view.first_block : plan->first_window;
        }
        const uint32_t reusable_from = firn_cache_minimum_reusable_offset(cache, 0);
        plan->reusable_from = reusable_from > plan->reusable_from ? reusable_from : plan->reusable_from;
        /* A window is cut wherever its blocks are, and a fixed-size state nowhere: both are asked for at lookup. So is
         * what lies before the first offset that serves. */
        const bool can_be_cut = firn_cache_trimmable_tokens(cache, 0) >= view.n_tokens - reusable_from;
        plan->cut_anywhere = plan->cut_anywhere && (family != FIRNI_FAMILY_FULL || can_be_cut);
        in->offered_bytes += (uint64_t)view.n_blocks * firn_cache_block_bytes(cache) +
                             (has_fixed ? firn_cache_fixed_bytes(cache) : 0);
        prefix->views[layer] = view;
    }
    return FIRN_REASON_NONE;
}

/* Step 2. Goes down as long as a node holds all of the next 64 tokens, or all that are left. Where that ends, the best
 * child either differs, and the new node becomes its sibling, or is wholly a beginning of what comes, and grows. */
void firni_plan_place(const firn_prefix *prefix, const firni_insertion *in, firni_node *root,
                      firni_insertion_plan *plan)
{
    plan->anchor = root;
    while (plan->n_held < in->n_tokens) {
        const uint32_t n_step = step_tokens(in, plan->n_held);
        const firni_place place = firni_node_place(plan->anchor, &in->tokens[plan->n_held], n_step);
        if (place.best == NULL || place.n_common < n_step) {
            plan->grows = place.best != NULL && place.n_common == place.best->n_tokens ? place.best : NULL;
            break;
        }
        plan->anchor = place.best;
        plan->n_held += n_step;
        for (uint32_t layer = 0; layer < prefix->n_layers && !plan->refills; layer++) {
            plan->refills = firni_can_refill(prefix, in, plan->anchor, layer);
        }
    }
    const uint32_t n_new = in->n_tokens - plan->n_held;
    plan->n_steps = n_new / FIRN_BLOCK_TOKENS + (n_new % FIRN_BLOCK_TOKENS != 0);
}

/* New nodes form a chain that nothing refers to yet, so it can be shortened from its end, or thrown away. */
static void drop_last_new(firn_prefix *prefix, firni_insertion_plan *plan)
{
    firni_node *last = plan->tail;
    plan->tail = last->parent;
    if (last == plan->head) {
        plan->head = NULL;
    } else {
        firni_node_unlink(last);
    }
    firni_node_destroy(prefix->env, last);
}

void firni_plan_abandon(firn_prefix *prefix, firni_insertion_plan *plan)
{
    while (plan->head != NULL) {
        drop_last_new(prefix, plan);
    }
    firni_checkpoint_destroy(prefix, plan->checkpoint);
    plan->checkpoint = NULL;
}

static bool make_checkpoint(firn_prefix *prefix, const firni_insertion *in, firni_insertion_plan *plan)
{
    const bool is_there = plan->n_steps == 0 && firni_checkpoint_find(plan->anchor, in->n_tokens) != NULL;
    if (prefix->families.n_fixed == 0 || is_there) {
        return true;
    }
    plan->checkpoint = firni_checkpoint_create(prefix, in->n_tokens);
    if (plan->checkpoint == NULL) {
        return false;
    }
    plan->checkpoint->unsaved = prefix->options.tier != NULL && !in->is_stored && !in->ram_only;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        plan->checkpoint->states[layer] = prefix->views[layer].fixed;
    }
    return true;
}

/* Step 3. The heaps get room for every node there will be: moving between them must never fail later. */
bool firni_plan_prepare(firn_prefix *prefix, const firni_insertion *in, firni_insertion_plan *plan)
{
    const uint32_t n_new = plan->n_steps - (plan->grows != NULL ? 1 : 0);
    uint32_t at = plan->n_held + (plan->grows != NULL ? step_tokens(in, plan->n_held) : 0);
    for (uint32_t i = 0; i < n_new; i++) {
        firni_node *node = firni_node_create(prefix->env, prefix->n_layers);
        if (node == NULL) {
            return false;
        }
        node->first_token = at;
        node->priority = (int8_t)in->priority;
        node->n_tokens = step_tokens(in, at);
        memcpy(node->tokens, &in->tokens[at], node->n_tokens * sizeof node->tokens[0]);
        at += node->n_tokens;
        if (plan->tail != NULL) {
            firni_node_link(plan->tail, node, 0);
        } else {
            plan->head = node;
        }
        plan->tail = node;
    }
    /* All nodes of the path may take blocks, and a checkpoint may. */
    size_t n_blocks;
    const size_t n_path = in->n_tokens / FIRN_BLOCK_TOKENS + 2;
    const size_t n_nodes = prefix->n_nodes + n_new;
    return make_checkpoint(prefix, in, plan) &&
           firni_mul_size(plan->refills ? n_path : (size_t)plan->n_steps + 1, prefix->n_layers, &n_blocks) &&
           firni_blockset_reserve(prefix->env, &prefix->blocks, n_blocks) &&
           firni_heap_reserve(prefix->env, &prefix->clean, n_nodes) &&
           firni_heap_reserve(prefix->env, &prefix->unsaved, n_nodes) &&
           (prefix->families.n_window == 0 || firni_heap_reserve(prefix->env, &prefix->shed, n_nodes)) &&
           (plan->n_steps == 0 ||
            firni_node_reserve_child(prefix->env, plan->grows != NULL ? plan->grows : plan->anchor));
}

/* ---- step 4 ---- */

static int64_t new_bytes(const firn_prefix *prefix, const firn_block *block)
{
    return block != NULL && firni_blockset_refs(&prefix->blocks, block) == 0 ? (int64_t)firn_block_bytes(block) : 0;
}

/* Bytes that the tree holds more, or less, after step `i` of the plan. */
static int64_t step_bytes(const firn_prefix *prefix, const firni_insertion_plan *plan, uint32_t i)
{
    int64_t bytes = 0;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_block *block = firni_offered_block(prefix, layer, plan->n_held / FIRN_BLOCK_TOKENS + i);
        const firn_block *old = i == 0 && plan->grows != NULL ? plan->grows->blocks[layer] : NULL;
        bytes += new_bytes(prefix, block);
        if (old != NULL && old != block && firni_blockset_refs(&prefix->blocks, old) == 1) {
            bytes -= (int64_t)firn_block_bytes(old);
        }
    }
    return bytes;
}

/* Bytes of the window blocks that come back, and of the checkpoint. */
static int64_t other_bytes(const firn_prefix *prefix, const firni_insertion *in, const firni_insertion_plan *plan)
{
    int64_t bytes = 0;
    for (const firni_node *node = plan->anchor; plan->refills && node->parent != NULL; node = node->parent) {
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            if (firni_can_refill(prefix, in, node, layer)) {
                bytes += new_bytes(prefix, firni_offered_block(prefix, layer, node->first_token / FIRN_BLOCK_TOKENS));
            }
        }
    }
    for (uint32_t layer = 0; layer < prefix->n_layers && plan->checkpoint != NULL; layer++) {
        bytes += new_bytes(prefix, plan->checkpoint->states[layer]);
    }
    return bytes;
}

static int64_t added_bytes(const firn_prefix *prefix, const firni_insertion *in, const firni_insertion_plan *plan)
{
    int64_t bytes = other_bytes(prefix, in, plan);
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        bytes += step_bytes(prefix, plan, i);
    }
    return bytes;
}

/* Growing a tail adds nothing, or even frees something when the new block is known already: hence the sign. */
static bool fits_budget(const firn_prefix *prefix, int64_t bytes)
{
    return bytes <= 0 || prefix->blocks.held_bytes + (uint64_t)bytes <= prefix->options.budget_bytes;
}

/* How many steps an ill tier leaves: what it does not take cannot be evicted, and nor can the path before it, so both
 * are kept to a share. */
static uint32_t steps_unsaved_max(const firn_prefix *prefix, const firni_insertion_plan *plan)
{
    const uint64_t max_bytes = firni_unsaved_bytes_max(prefix);
    uint64_t bytes = prefix->stuck_bytes + (plan->checkpoint != NULL ? prefix->checkpoint_bytes : 0);
    for (const firni_node *node = plan->anchor; node->parent != NULL && !node->stuck; node = node->parent) {
        bytes += prefix->node_bytes;
    }
    if (bytes > max_bytes || prefix->node_bytes == 0) {
        return bytes > max_bytes ? 0 : plan->n_steps;
    }
    const uint64_t n_left = (max_bytes - bytes) / prefix->node_bytes;
    return n_left < plan->n_steps ? (uint32_t)n_left : plan->n_steps;
}

/* Whether the rows' state is of use when its end is missing: not where it cannot be cut, and not where the window
 * before the cut has left the rows. */
static bool can_lose_its_end(const firn_prefix *prefix, const firni_insertion_plan *plan, uint32_t n_fit)
{
    const uint32_t end = plan->n_held + n_fit * FIRN_BLOCK_TOKENS;
    return plan->cut_anywhere && prefix->families.n_fixed == 0 &&
           (prefix->families.n_window == 0 ||
            plan->first_window <= firni_families_first_window(&prefix->families, end));
}

/* How many of the plan's steps may come in under the rule of admission: all of them while there is room, or where
 * somebody waits for what was read. */
static uint32_t steps_admitted(const firn_prefix *prefix, const firni_insertion *in, const firni_insertion_plan *plan,
                               int64_t bytes)
{
    const firni_admission *admission = &prefix->admission;
    const firni_node *victim = firni_heap_first(&prefix->clean);
    if (admission->seen == NULL || in->is_stored || fits_budget(prefix, bytes) || victim == NULL ||
        !firni_admission_is_starved(admission, victim->used, firni_now_ns(prefix->env))) {
        return plan->n_steps;
    }
    uint64_t digest = firni_admission_digest(0, NULL, 0);
    uint32_t n_steps = 0;
    for (uint32_t at = 0; at + FIRN_BLOCK_TOKENS <= in->n_tokens && n_steps < plan->n_steps; at += FIRN_BLOCK_TOKENS) {
        digest = firni_admission_digest(digest, in->tokens + at, FIRN_BLOCK_TOKENS);
        if (at >= plan->n_held && !firni_admission_is_known(admission, digest)) {
            break;
        }
        n_steps += at >= plan->n_held;
    }
    return n_steps;
}

/* A row too long for the budget is not refused as a whole: its head is what the next prompt begins with. */
firn_reason firni_plan_fit(firn_prefix *prefix, const firni_insertion *in, firni_insertion_plan *plan)
{
    firn_reason reason = FIRN_REASON_NONE;
    uint32_t n_fit = plan->n_steps;
    int64_t bytes = added_bytes(prefix, in, plan);
    const uint32_t n_admitted = steps_admitted(prefix, in, plan, bytes);
    while (n_fit > n_admitted) {
        bytes -= step_bytes(prefix, plan, --n_fit);
        reason = FIRN_REASON_NO_MEMORY;
    }
    /* Eviction may take the other node that shared a block, which makes the block count again: hence the loop. */
    while (!fits_budget(prefix, bytes) && firni_evict_for_budget(prefix, (uint64_t)bytes, in->priority)) {
        bytes = added_bytes(prefix, in, plan);
        for (uint32_t i = n_fit; i < plan->n_steps; i++) {
            bytes -= step_bytes(prefix, plan, i);
        }
    }
    while (n_fit > 0 && !fits_budget(prefix, bytes)) {
        bytes -= step_bytes(prefix, plan, --n_fit);
        reason = FIRN_REASON_NO_MEMORY;
    }
    if (!fits_budget(prefix, bytes)) {
        plan->refills = false;
        firni_checkpoint_destroy(prefix, plan->checkpoint);
        plan->checkpoint = NULL;
        reason = FIRN_REASON_NO_MEMORY;
    }
    if (prefix->options.tier != NULL && !in->is_stored && !in->ram_only &&
        firni_writer_is_ill(prefix, firni_now_ns(prefix->env))) {
        const uint32_t n_max = steps_unsaved_max(prefix, plan);
        const bool refuses_all = n_max == 0 && plan->checkpoint != NULL;
        if (n_fit > n_max || refuses_all) {
            n_fit = n_max;
            reason = prefix->writer.n_refused > 0 ? prefix->writer.last_refusal : FIRN_REASON_DEADLINE;
            firni_checkpoint_destroy(prefix, plan->checkpoint);
            plan->checkpoint = NULL;
        }
    }
    if (n_fit < plan->n_steps) {
        n_fit = can_lose_its_end(prefix, plan, n_fit) ? n_fit : 0;
        /* A state belongs to the end that is cut off. */
        firni_checkpoint_destroy(prefix, plan->checkpoint);
        plan->checkpoint = NULL;
    }
    uint32_t n_new = plan->n_steps - (plan->grows != NULL ? 1 : 0);
    for (const uint32_t n_kept = n_fit > 0 && plan->grows != NULL ? n_fit - 1 : n_fit; n_new > n_kept; n_new--) {
        drop_last_new(prefix, plan);
    }
    plan->n_steps = n_fit;
    return reason;
}
