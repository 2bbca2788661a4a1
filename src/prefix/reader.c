/*
 * Reads from the tier below that are in flight. Owns the read from the lookup's handle to the state in the tree; joins
 * what would be read twice.
 *
 *      lookup --- found below --> worth it? --> room in the pool? --> restore_request --> (tier's thread) --> inbox
 *                      |        no: BREAKEVEN    no: NO_MEMORY                                                  |
 *                      '-- covered by a read in flight: wait for that one                                       v
 *                                                                    waiters settle <-- state goes into the tree, saved
 *
 * Of whole blocks that RAM has nothing is read: they go along as the head of the restored state. When the last lease
 * stops waiting the read is not wanted any more, and the tier ends it early where it can; what arrives intact all the
 * same is kept for the next one who asks. What does not go into the tree is counted as wasted.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

/* A read that nobody wants any more ends with the part that it is at, which takes a healthy device no longer. */
#define HELD_UP_NS UINT64_C(50000000)

static void read_destroy(firn_prefix *prefix, firni_read *read)
{
    assert(read->waiters == NULL && read->handle == NULL);
    for (size_t i = 0; read->head != NULL && i < (size_t)read->n_head_blocks * prefix->n_layers; i++) {
        firn_block_release(read->head[i]);
    }
    if (read->early != NULL) {
        firni_caches_destroy(prefix, read->early);
    }
    firni_free(prefix->env, read->early);
    firni_free(prefix->env, read->head);
    firni_free(prefix->env, read->ns);
    firni_free(prefix->env, read->tokens);
    firni_free(prefix->env, read);
}

/* A read's waiters are a list through the leases; it has as many as requests share a prompt. */
static void start_waiting(firni_read *read, firn_lease *lease)
{
    lease->read = read;
    lease->waited = true;
    const uint64_t patience_ns = firni_gate_patience_ns(lease->compute_ns);
    lease->look_ns = patience_ns < UINT64_MAX - lease->since_ns ? lease->since_ns + patience_ns : UINT64_MAX;
    lease->next_waiter = read->waiters;
    read->waiters = lease;
}

void firni_read_leave(firn_lease *lease)
{
    if (lease->read == NULL) {
        return;
    }
    firn_lease **link = &lease->read->waiters;
    while (*link != lease) {
        link = &(*link)->next_waiter;
    }
    *link = lease->next_waiter;
    lease->next_waiter = NULL;
    if (lease->read->waiters == NULL) {
        atomic_store(&lease->read->unwanted, true);
    }
    lease->read = NULL;
}

/* On the tier's thread. */
static bool is_wanted(void *ctx)
{
    firni_read *read = ctx;
    return !atomic_load(&read->unwanted);
}

static void on_progress(void *ctx, const firn_restore_progress *progress)
{
    firni_early_report(ctx, progress);
}

/* A read in flight that brings at least the first n_tokens of the lease's prompt. */
static firni_read *find_covering(const firn_prefix *prefix, const firn_lease *lease, uint32_t n_tokens)
{
    for (firni_read *read = prefix->reads; read != NULL; read = read->next) {
        if (!atomic_load(&read->unwanted) && read->n_tokens >= n_tokens && strcmp(read->ns, lease->ns) == 0 &&
            firni_tokens_common(read->tokens, lease->prompt, n_tokens) == n_tokens) {
            return read;
        }
    }
    return NULL;
}

/* Whether a read has been in flight for longer than anyone waits. Then nobody waits for another one either, until that
 * one has ended: a tier that hangs costs one deadline, not one for each request. */
static bool does_not_answer(const firn_prefix *prefix, uint64_t now_ns)
{
    for (const firni_read *read = prefix->reads; read != NULL; read = read->next) {
        if (now_ns - read->started_ns >= prefix->options.restore_deadline_ns) {
            return true;
        }
    }
    return false;
}

/* On the tier's thread. */
static void restore_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    firni_read *read = ctx;
    read->reason = reason;
    read->ended_ns = firni_now_ns(read->prefix->env);
    if (reason == FIRN_REASON_NONE && restored != NULL) {
        read->restored = *restored;
        memset(restored, 0, sizeof *restored); /* ours now, whatever the tier does with the struct */
    }
    firni_inbox *inbox = &read->prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    read->has_ended = true; /* for whoever waits for a layer, on the thread that takes the message later */
    (void)pthread_mutex_unlock(&inbox->mutex);
    firni_inbox_post(read->prefix, &read->message);
}

/* A read that could not even be started is a miss like any other. */
static firn_reason reason_of_status(firn_status status)
{
    switch (status) {
    case FIRN_ERR_NO_MEMORY: return FIRN_REASON_NO_MEMORY;
    case FIRN_ERR_BUSY: return FIRN_REASON_QUEUE_FULL;
    case FIRN_ERR_DEADLINE: return FIRN_REASON_DEADLINE;
    case FIRN_ERR_UNSUPPORTED: return FIRN_REASON_DISABLED;
    case FIRN_ERR_CORRUPT:
    case FIRN_ERR_FORMAT: return FIRN_REASON_CORRUPT;
    default: return FIRN_REASON_IO_ERROR;
    }
}

uint64_t firni_state_bytes(const firn_prefix *prefix, uint32_t n_tokens)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        bytes += firn_cache_projected_bytes(prefix->shapes[layer], n_tokens);
    }
    return bytes;
}

/* Whether a row of n_tokens needs this block of the layer. */
static bool needs_block(const firn_prefix *prefix, uint32_t layer, uint32_t n_tokens, uint32_t index)
{
    const firn_cache *shape = prefix->shapes[layer];
    return firn_cache_block_bytes(shape) > 0 && ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) == 0 ||
                                                 index >= firn_cache_first_block_needed(shape, n_tokens));
}

/* A tier reads a record whole when any layer of it is lacking: then none of the node's blocks spares anything. */
static bool has_all_needed(const firn_prefix *prefix, const firni_node *node, uint32_t n_tokens, uint32_t index)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        if (node->blocks[layer] == NULL && needs_block(prefix, layer, n_tokens, index)) {
            return false;
        }
    }
    return true;
}

/* References to the whole blocks that the tree has of the first n_tokens. Without memory there is no head, which only
 * means that more is read; as with a tier that knows no heads. Returns their bytes. */
static uint64_t take_head(firn_prefix *prefix, firni_read *read)
{
    if (prefix->options.tier->ops->restore_request == NULL) {
        return 0;
    }
    const firni_match match =
        firni_match_tokens(firni_root_find(prefix, read->ns), read->tokens, read->n_tokens);
    const uint32_t n_blocks = match.n_matched / FIRN_BLOCK_TOKENS;
    read->head =
        n_blocks > 0 ? firni_calloc(prefix->env, (size_t)n_blocks * prefix->n_layers, sizeof *read->head) : NULL;
    if (read->head == NULL) {
        return 0;
    }
    uint64_t bytes = 0;
    read->n_head_blocks = n_blocks;
    for (const firni_node *node = match.node; node->parent != NULL; node = node->parent) {
        const uint32_t index = node->first_token / FIRN_BLOCK_TOKENS;
        if (index >= n_blocks || !has_all_needed(prefix, node, read->n_tokens, index)) {
            continue;
        }
        for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
            if (needs_block(prefix, layer, read->n_tokens, index)) {
                read->head[(size_t)layer * n_blocks + index] = firn_block_retain(node->blocks[layer]);
                bytes += firn_block_bytes(node->blocks[layer]);
            }
        }
    }
    return bytes;
}

static firni_read *read_create(firn_prefix *prefix, const firn_lease *lease, uint32_t n_tokens)
{
    firni_read *read = firni_calloc(prefix->env, 1, sizeof *read);
    if (read == NULL) {
        return NULL;
    }
    read->message.kind = FIRNI_MESSAGE_READ;
    read->prefix = prefix;
    read->n_tokens = n_tokens;
    read->priority = lease->priority;
    read->room_bytes = firni_state_bytes(prefix, n_tokens);
    read->started_ns = firni_now_ns(prefix->env);
    read->ns = firni_strdup(prefix->env, lease->ns);
    read->tokens = firni_calloc(prefix->env, n_tokens, sizeof *read->tokens);
    if (read->ns == NULL || read->tokens == NULL) {
        read_destroy(prefix, read);
        return NULL;
    }
    /* A copy: the lease may be released before the read has ended. */
    memcpy(read->tokens, lease->prompt, n_tokens * sizeof *read->tokens);
    const uint64_t head_bytes = take_head(prefix, read);
    read->room_bytes -= head_bytes < read->room_bytes ? head_bytes : read->room_bytes;
    return read;
}

/* From here on the read can not be joined and its bytes are not reserved any more. */
static void unlink_read(firn_prefix *prefix, firni_read *read)
{
    if (read->prev != NULL) {
        read->prev->next = read->next;
    } else {
        prefix->reads = read->next;
    }
    if (read->next != NULL) {
        read->next->prev = read->prev;
    }
    prefix->reading_bytes -= read->room_bytes;
}

/* Whether a read that was given up is still on its way: the tier is not done with what nobody could wait for. */
static bool is_held_up(const firn_prefix *prefix, uint64_t now_ns)
{
    for (const firni_read *read = prefix->reads; read != NULL; read = read->next) {
        if (atomic_load(&read->unwanted) && now_ns - read->started_ns >= HELD_UP_NS) {
            return true;
        }
    }
    return false;
}

static bool is_worth_it(firn_prefix *prefix, const firn_lease *lease, const firni_read *read, uint64_t now_ns)
{
    const bool held_up = lease->compute_ns > 0.0 && is_held_up(prefix, now_ns);
    const firni_gate_answer answer =
        held_up ? FIRNI_GATE_SHUT : firni_gate_ask(&prefix->gate, lease->compute_ns, read->room_bytes, now_ns);
    prefix->stats.n_restores_refused += answer == FIRNI_GATE_SHUT;
    prefix->stats.n_restore_probes += answer == FIRNI_GATE_PROBE;
    return answer != FIRNI_GATE_SHUT;
}

firn_reason firni_read_start(firn_prefix *prefix, firn_lease *lease, firn_match *match)
{
    firn_tier *tier = prefix->options.tier;
    const uint64_t now_ns = firni_now_ns(prefix->env);
    if (does_not_answer(prefix, now_ns)) {
        return FIRN_REASON_DEADLINE;
    }
    lease->compute_ns = prefix->options.restore_always
                            ? 0.0
                            : firni_gate_compute_ns(&prefix->gate, lease->info.n_tokens, match->prefix_len);
    firni_read *read = find_covering(prefix, lease, match->prefix_len);
    if (read != NULL) {
        start_waiting(read, lease);
        prefix->stats.n_restores_joined++;
        return FIRN_REASON_NONE;
    }
    assert(match->handle != NULL); /* its read would cover this one */
    read = read_create(prefix, lease, match->prefix_len);
    if (read != NULL && !is_worth_it(prefix, lease, read, now_ns)) {
        read_destroy(prefix, read);
        return FIRN_REASON_BREAKEVEN;
    }
    if (read == NULL || read->room_bytes > prefix->options.budget_bytes ||
        !firni_make_room_for(prefix, read->room_bytes, read->priority)) {
        if (read != NULL) {
            read_destroy(prefix, read);
        }
        return FIRN_REASON_NO_MEMORY;
    }
    read->handle = match->handle;
    match->handle = NULL;
    read->next = prefix->reads;
    if (read->next != NULL) {
        read->next->prev = read;
    }
    prefix->reads = read;
    prefix->reading_bytes += read->room_bytes;
    start_waiting(read, lease);
    /* Twice what a lease waits: what comes late is still worth keeping. */
    const uint64_t give_up_ns = now_ns + 2 * prefix->options.restore_deadline_ns;
    const firn_restore_request request = { .n_tokens = read->n_tokens,
                                           .deadline_ns = give_up_ns,
                                           .head = read->head,
                                           .n_head_blocks = read->n_head_blocks,
                                           .in_layer_order = read->room_bytes >= prefix->options.layered_bytes_min &&
                                                             firni_early_is_possible(prefix),
                                           .caches_only = true, /* logits have come with the lookup */
                                           .is_wanted = is_wanted,
                                           .progress = on_progress,
                                           .done = restore_done,
                                           .ctx = read };
    prefix->stats.n_restores++;
    const firn_status status = firn_tier_restore_request(tier, read->handle, &request, NULL);
    if (status != FIRN_OK) {
        firni_read_leave(lease);
        unlink_read(prefix, read);
        match->handle = read->handle;
        read->handle = NULL;
        read_destroy(prefix, read);
        prefix->stats.n_restores_failed++;
        return reason_of_status(status);
    }
    return FIRN_REASON_NONE;
}

/* The tier promises all of this; state for other tokens would be a wrong answer, so it is checked all the same. */
static firn_reason check_restored(const firn_prefix *prefix, const firni_read *read)
{
    const firn_restored *restored = &read->restored;
    if (restored->n_tokens != read->n_tokens || restored->n_caches != prefix->n_layers) {
        return FIRN_REASON_COUNT_MISMATCH;
    }
    if (firni_tokens_common(restored->tokens, read->tokens, read->n_tokens) != read->n_tokens) {
        return FIRN_REASON_CORRUPT;
    }
    for (uint32_t layer = 0; layer < restored->n_caches; layer++) {
        if (restored->caches[layer] == NULL) {
            return FIRN_REASON_FAMILY_MISSING;
        }
    }
    return FIRN_REASON_NONE;
}

/* Bytes of the caches' blocks that came from the tree: they were offered to it, but not read. */
static uint64_t head_bytes(const firn_prefix *prefix, const firni_read *read)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < prefix->n_layers && read->head != NULL; layer++) {
        const firn_row_view view = firn_cache_view_row(read->restored.caches[layer], 0);
        for (uint32_t i = view.first_block; i < read->n_head_blocks && i - view.first_block < view.n_blocks; i++) {
            const firn_block *block = view.blocks[i - view.first_block];
            bytes += block == read->head[(size_t)layer * read->n_head_blocks + i] ? firn_block_bytes(block) : 0;
        }
    }
    return bytes;
}

/* Puts intact state into the tree; NONE, or why that gave nothing. */
static firn_reason keep_restored(firn_prefix *prefix, firni_read *read)
{
    firni_insertion in = { .ns = read->ns,
                           .tokens = read->tokens,
                           .n_tokens = read->n_tokens,
                           .caches = (const firn_cache *const *)read->restored.caches,
                           .is_stored = true,
                           .priority = read->priority,
                           .unasked = read->waiters == NULL };
    firn_reason reason = check_restored(prefix, read);
    if (reason == FIRN_REASON_NONE && !prefix->closing) {
        reason = firni_insert(prefix, &in);
        firni_logits_mark(prefix, read->tokens, read->n_tokens, read->ns);
        if (reason == FIRN_REASON_FAMILY_MISSING && in.added) {
            reason = FIRN_REASON_NONE; /* less than was read, but something: the waiters see how much */
        }
    }
    /* What RAM had already was read for nothing: the tier restores all that the position needs. */
    const uint64_t read_bytes = read->restored.n_bytes_read;
    prefix->stats.restored_bytes += read_bytes;
    if (in.taken_bytes == 0) {
        prefix->stats.wasted_bytes += read_bytes;
    } else {
        const uint64_t offered_bytes = in.offered_bytes - head_bytes(prefix, read);
        const uint64_t taken_bytes = in.taken_bytes < offered_bytes ? in.taken_bytes : offered_bytes;
        prefix->stats.wasted_bytes +=
            offered_bytes > 0 ? read_bytes * (offered_bytes - taken_bytes) / offered_bytes : read_bytes;
    }
    return reason;
}

/* What the gate learns of it: from when the tier began, which may have had others to read for before. One that was
 * given up tells by how far it had come. */
static void learn(firn_prefix *prefix, const firni_read *read)
{
    const bool whole = read->reason == FIRN_REASON_NONE;
    const uint64_t began_ns = read->began_ns > 0 ? read->began_ns : read->started_ns;
    const uint64_t n_bytes = whole ? read->restored.n_bytes_read : read->n_bytes_done;
    const uint64_t until_ns = whole ? read->ended_ns : read->reported_ns;
    if (n_bytes > 0 && until_ns > began_ns) {
        firni_gate_learn_restore(&prefix->gate, n_bytes, until_ns - began_ns);
    }
    if (whole) {
        firni_latency_add(&prefix->stats.restore_latency, read->ended_ns - read->started_ns);
    } else if (read->reason == FIRN_REASON_CANCELLED) {
        prefix->stats.n_restores_cancelled++;
    } else {
        prefix->stats.n_restores_failed++;
    }
}

/* On the engine thread. The state goes into the tree before the waiters look again, and they pin what they find; only
 * then are the restored caches destroyed. */
void firni_read_ended(firn_prefix *prefix, firni_read *read)
{
    unlink_read(prefix, read);
    firn_tier_release(prefix->options.tier, read->handle);
    read->handle = NULL;
    firn_reason reason = read->reason;
    learn(prefix, read);
    if (reason == FIRN_REASON_NONE) {
        reason = keep_restored(prefix, read);
    }
    while (read->waiters != NULL) {
        firn_lease *lease = read->waiters;
        firni_early_destroy(lease);
        firni_read_leave(lease);
        lease->is_from_below = read->restored.depth > 0;
        firni_lease_finish(lease, reason, read->ended_ns - read->started_ns);
    }
    firn_restored_deinit(&read->restored);
    read_destroy(prefix, read);
}
