/*
 * Pins by name: paths that stay in the tree until their end date. Owns the list of them, and what they take.
 *
 * A pin holds what a lease would: the end of its path, whose ancestors stay because they have a child; the window
 * blocks before the end; and the checkpoint there, which the retention rule then leaves alone. Since nothing of it can
 * be evicted, pins together may take half of the tree's budget.
 */
#include <inttypes.h>
#include <string.h>

#include "prefix/prefix_impl.h"

enum { BUDGET_SHARE = 2 }; /* pins may take one part in so many */

static uint32_t first_window(const firn_prefix *prefix, uint32_t n_tokens)
{
    return firni_families_first_window(&prefix->families, n_tokens);
}

/* Bytes that a pin of this path would keep which no other keeps. */
static uint64_t new_bytes(const firn_prefix *prefix, const firni_node *end)
{
    uint64_t n_bytes = 0;
    for (const firni_node *node = end; node->parent != NULL; node = node->parent) {
        n_bytes += node->n_standing == 0 ? prefix->node_bytes : 0;
    }
    return n_bytes + prefix->checkpoint_bytes;
}

/* Counts the path's nodes in, or out. */
static void count_path(firn_prefix *prefix, firni_node *end, bool in)
{
    uint64_t n_bytes = prefix->checkpoint_bytes;
    for (firni_node *node = end; node->parent != NULL; node = node->parent) {
        const bool changes = in ? node->n_standing++ == 0 : --node->n_standing == 0;
        n_bytes += changes ? prefix->node_bytes : 0;
    }
    prefix->pinned_bytes = in ? prefix->pinned_bytes + n_bytes : prefix->pinned_bytes - n_bytes;
    prefix->n_pins = in ? prefix->n_pins + 1 : prefix->n_pins - 1;
}

static void destroy_pin(firn_prefix *prefix, firni_ram_pin *pin)
{
    count_path(prefix, pin->node, false);
    if (pin->checkpoint != NULL) {
        pin->checkpoint->n_pins--;
    }
    firni_windows_unhold(prefix, pin->node, first_window(prefix, pin->n_tokens));
    firni_unpin(prefix, pin->node);
    firni_free(prefix->env, pin->name);
    firni_free(prefix->env, pin);
}

static firni_ram_pin **find_link(firn_prefix *prefix, const char *name)
{
    firni_ram_pin **link = &prefix->pins;
    while (*link != NULL && strcmp((*link)->name, name) != 0) {
        link = &(*link)->next;
    }
    return link;
}

bool firn_prefix_unpin(firn_prefix *prefix, const char *name)
{
    firni_ram_pin **link = find_link(prefix, name);
    firni_ram_pin *pin = *link;
    if (pin != NULL) {
        *link = pin->next;
        destroy_pin(prefix, pin);
    }
    return pin != NULL;
}

firn_status firn_prefix_pin(firn_prefix *prefix, const char *name, const firn_token *tokens, uint32_t n_tokens,
                            const char *ns, uint64_t until_wall_ns, firn_error *err)
{
    firni_inbox_drain(prefix);
    if (n_tokens < prefix->options.min_tokens) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "pin \"%.60s\" has %u tokens; less than %u are sooner computed than kept", name, n_tokens,
                          prefix->options.min_tokens);
    }
    const firni_match match = firni_match_tokens(firni_root_find(prefix, ns != NULL ? ns : ""), tokens, n_tokens);
    firni_node *end = NULL;
    if (match.n_matched < n_tokens || firni_tokens_usable(prefix, match.node, tokens, n_tokens, &end) < n_tokens) {
        return firni_fail(err, FIRN_ERR_NOT_FOUND, "pin \"%.60s\": %u of its %u tokens are in RAM", name,
                          match.n_matched, n_tokens);
    }
    const uint64_t share = prefix->options.budget_bytes / BUDGET_SHARE, n_bytes = new_bytes(prefix, end);
    if (prefix->pinned_bytes + n_bytes > share) {
        return firni_fail(err, FIRN_ERR_CAPACITY,
                          "pin \"%.60s\" would keep %" PRIu64 " bytes beside the %" PRIu64 " that are pinned; pins may "
                          "take %" PRIu64 ", one half of the RAM budget",
                          name, n_bytes, prefix->pinned_bytes, share);
    }
    firni_ram_pin *pin = firni_calloc(prefix->env, 1, sizeof *pin);
    char *own_name = firni_strdup(prefix->env, name);
    if (pin == NULL || own_name == NULL) {
        firni_free(prefix->env, pin);
        firni_free(prefix->env, own_name);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a pin");
    }
    *pin = (firni_ram_pin){ .name = own_name,
                            .until_wall_ns = until_wall_ns,
                            .node = end,
                            .n_tokens = n_tokens,
                            .checkpoint = firni_checkpoint_find(end, n_tokens) };
    firni_pin(prefix, end);
    firni_windows_hold(prefix, end, first_window(prefix, n_tokens));
    if (pin->checkpoint != NULL) {
        pin->checkpoint->n_pins++;
    }
    count_path(prefix, end, true);
    (void)firn_prefix_unpin(prefix, name); /* the one before, once what both need is held */
    pin->next = prefix->pins;
    prefix->pins = pin;
    return FIRN_OK;
}

void firni_pins_release(firn_prefix *prefix)
{
    while (prefix->pins != NULL) {
        firni_ram_pin *pin = prefix->pins;
        prefix->pins = pin->next;
        destroy_pin(prefix, pin);
    }
}

void firni_pins_expire(firn_prefix *prefix)
{
    const uint64_t now_ns = prefix->pins != NULL ? firni_wall_ns(prefix->env) : 0;
    for (firni_ram_pin **link = &prefix->pins; *link != NULL;) {
        firni_ram_pin *pin = *link;
        if (pin->until_wall_ns <= now_ns) {
            *link = pin->next;
            destroy_pin(prefix, pin);
        } else {
            link = &pin->next;
        }
    }
}

uint64_t firni_pins_next_ns(const firn_prefix *prefix)
{
    uint64_t next_ns = UINT64_MAX;
    const uint64_t now_ns = prefix->pins != NULL ? firni_wall_ns(prefix->env) : 0;
    for (const firni_ram_pin *pin = prefix->pins; pin != NULL; pin = pin->next) {
        const uint64_t left_ns = pin->until_wall_ns > now_ns ? pin->until_wall_ns - now_ns : 0;
        next_ns = left_ns < next_ns ? left_ns : next_ns;
    }
    return next_ns;
}
