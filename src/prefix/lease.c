/*
 * Leases: what one request was promised. Owns the lookup in RAM, the decision whether a read below is worth it, the
 * pins, and the explanation of what was found.
 *
 *      acquire ---- RAM has enough, or there is no tier ----------------------------------------------> ready
 *         '-------- waits for a lookup -- it has no more, or took too long, or a read cannot start ---> ready
 *                         '-------------- waits for a read -- it ended, or was too slow: RAM again ---> ready
 *                                               '-------- release: it ends early, unless others wait
 *
 * A lease pins one node, the deepest it uses: its ancestors have a child and therefore stay, and the window blocks
 * among them that it needs are held. It also has references of its own to the blocks of that node, because a tail that
 * grows gets other blocks, and to the fixed-size states, because a checkpoint may be dropped.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"
#include "record/record_impl.h"

/* A wait is looked at again after so small a share of what it has lasted. */
enum { LOOK_SHARE = 8 };

/* A tail that has grown since in the tree, or a checkpoint that it has dropped, may give its memory back here: the
 * lease was then the last holder. */
static void drop_held(firn_lease *lease)
{
    for (uint32_t i = 0; i < 2 * lease->prefix->n_layers; i++) {
        firn_block_release(lease->held[i]);
        lease->held[i] = NULL;
    }
}

/* References to what may go while the node stays. */
static void take_held(firn_lease *lease)
{
    const uint32_t n_layers = lease->prefix->n_layers;
    const firni_checkpoint *checkpoint = firni_checkpoint_find(lease->node, lease->info.n_tokens);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        firn_block *block = lease->node->blocks[layer];
        firn_block *state = checkpoint != NULL ? checkpoint->states[layer] : NULL;
        lease->held[layer] = block != NULL ? firn_block_retain(block) : NULL;
        lease->held[n_layers + layer] = state != NULL ? firn_block_retain(state) : NULL;
    }
}

/* The first window block that what was promised needs. */
static uint32_t first_window(const firn_lease *lease)
{
    return firni_families_first_window(&lease->prefix->families, lease->info.n_tokens);
}

static void let_go(firn_prefix *prefix, firni_node *node, uint32_t first)
{
    if (node != NULL) {
        firni_windows_unhold(prefix, node, first);
        firni_unpin(prefix, node);
    }
}

/* The namespace's own path and those of the namespaces above it, each of which is whole: a row that went on from a
 * parent's path was put with all of it, sharing the blocks. The one that can be used for most wins, the own one among
 * equals; what is explained is the one that goes on longest. */
static firni_node *find_in_levels(firn_lease *lease, uint32_t n_max)
{
    const firn_prefix *prefix = lease->prefix;
    firni_levels levels;
    firni_levels_of(lease->ns, &levels);
    firni_node *best = NULL;
    lease->ram = (firni_match){ .node = NULL };
    lease->n_usable = 0;
    for (uint32_t level = 0; level < levels.n; level++) {
        firni_node *root = firni_root_find(prefix, levels.names[level]);
        const firni_match match = firni_match_tokens(root, lease->prompt, lease->n_prompt);
        const uint32_t n_limit = match.n_matched < n_max ? match.n_matched : n_max;
        firni_node *last = NULL;
        const uint32_t n_usable = firni_tokens_usable(prefix, match.node, lease->prompt, n_limit, &last);
        if (n_usable > lease->n_usable) {
            lease->n_usable = n_usable;
            best = last;
        }
        if (level == 0 || match.n_matched > lease->ram.n_matched) {
            lease->ram = match;
        }
    }
    return best;
}

/* Looks the prompt up in the tree and pins what can be used of it, instead of what was pinned before. The stamp says
 * whether anything has been used or put in since. */
static void hold_ram(firn_lease *lease)
{
    firn_prefix *prefix = lease->prefix;
    /* One token is left to compute, unless what computing it gives is there already. */
    if (lease->logits == NULL) {
        lease->logits = firni_logits_find(prefix, lease->prompt, lease->n_prompt, lease->ns);
    }
    firni_node *last = find_in_levels(lease, lease->logits != NULL ? lease->n_prompt : lease->n_prompt - 1);
    lease->ram.node = NULL;
    /* Less than the minimum is as good as nothing: it is not pinned, and not a use either. */
    if (lease->n_usable < prefix->options.min_tokens) {
        last = NULL;
    }
    firni_node *before = lease->node; /* let go only after the new one is held: they may be the same */
    const uint32_t first_before = first_window(lease);
    lease->node = last;
    lease->info.n_tokens = last != NULL ? lease->n_usable : 0;
    drop_held(lease);
    if (last != NULL) {
        firni_pin(prefix, last);
        firni_windows_hold(prefix, last, first_window(lease));
        firni_touch(prefix, last);
        take_held(lease);
    }
    let_go(prefix, before, first_before);
    lease->stamp = prefix->stamp;
}

/* A reason of the tier that says more than "there is nothing more". */
static bool is_telling(firn_reason reason)
{
    return reason != FIRN_REASON_NONE && reason != FIRN_REASON_NO_PREFIX && reason != FIRN_REASON_DIVERGED &&
           reason != FIRN_REASON_BELOW_MIN;
}

/* Where the prompt leaves everything that is stored, in RAM or below. */
static void explain_divergence(firn_lease *lease)
{
    firn_lease_info *info = &lease->info;
    /* The longer match decides; between equals, the side that has a token to show. */
    const bool below_is_longer = lease->below.matched_len > lease->ram.n_matched;
    const bool below_says_more = lease->below.matched_len == lease->ram.n_matched && !lease->ram.diverged;
    info->first_divergence = lease->ram.n_matched;
    info->diverged = lease->ram.diverged;
    info->stored_token = lease->ram.stored_token;
    if (below_is_longer || (below_says_more && lease->below.diverged)) {
        info->first_divergence = lease->below.matched_len;
        info->diverged = lease->below.diverged;
        info->stored_token = lease->below.stored_token;
    }
    /* As in RAM: against nothing matched at all, a difference would only say that other prompts exist. */
    if (info->first_divergence == 0 || !info->diverged) {
        info->diverged = false;
        info->stored_token = 0;
    }
}

/* The first that applies, from the most telling to the least. */
static firn_reason explain(const firn_lease *lease, firn_reason failure)
{
    const firn_lease_info *info = &lease->info;
    const uint32_t n_max = lease->n_prompt - 1;
    if (info->n_tokens >= n_max && n_max > 0) {
        return FIRN_REASON_NONE;
    }
    if (failure != FIRN_REASON_NONE) {
        return failure; /* there was more below, and this kept it there */
    }
    if (is_telling(lease->below.reason) && (info->n_tokens == 0 || lease->below.matched_len > lease->ram.n_matched)) {
        return lease->below.reason;
    }
    if (info->first_divergence == 0) {
        return FIRN_REASON_NO_PREFIX;
    }
    if (lease->n_usable < lease->ram.n_matched && lease->n_usable < n_max) {
        return FIRN_REASON_FAMILY_MISSING;
    }
    if (info->n_tokens == 0) {
        return FIRN_REASON_BELOW_MIN;
    }
    return info->diverged ? FIRN_REASON_DIVERGED : FIRN_REASON_NONE;
}

void firni_lease_finish(firn_lease *lease, firn_reason failure, uint64_t restore_ns)
{
    assert(!lease->ready && lease->read == NULL && lease->find == NULL);
    firn_prefix_stats *stats = &lease->prefix->stats;
    firn_lease_info *info = &lease->info;
    /* The read has put its state into the tree; or, when it failed, another request may have put its own. */
    if (lease->waited) {
        hold_ram(lease);
    }
    const bool restored = lease->waited && failure == FIRN_REASON_NONE && info->n_tokens > info->ram_tokens;
    /* What RAM had when the lookup began is from RAM; the rest was read. Without a read that helped, all is. */
    if (!restored) {
        info->ram_tokens = info->n_tokens;
    }
    info->disk_tokens = info->n_tokens - info->ram_tokens;
    info->below_tokens = lease->is_from_below ? info->disk_tokens : 0;
    info->restore_ns = restore_ns;
    explain_divergence(lease);
    info->reason = explain(lease, failure);
    lease->ready = true;

    stats->n_logits_hits += info->n_tokens == lease->n_prompt;
    stats->n_hits_ram += info->ram_tokens > 0;
    stats->n_hits_disk += info->disk_tokens > 0;
    stats->hit_tokens_ram += info->ram_tokens;
    stats->hit_tokens_disk += info->disk_tokens;
    stats->hit_tokens_below += info->below_tokens;
    stats->miss_tokens += lease->n_prompt - info->n_tokens;
    stats->reasons[info->reason]++;
}

/* How far the prompt could be resumed with the tier's n_tokens put into the tree. Where the tree already holds more
 * tokens of the last block than these, but not its window blocks, they cannot be put in: the end is then out of reach
 * until a longer row comes by. */
static uint32_t reachable(const firn_lease *lease, uint32_t n_tokens)
{
    const firn_prefix *prefix = lease->prefix;
    if (prefix->families.n_window == 0 || n_tokens == 0) {
        return n_tokens;
    }
    const firni_match match =
        firni_match_tokens(firni_root_find(prefix, lease->ns), lease->prompt, n_tokens);
    if (match.n_matched < n_tokens || match.node->first_token + match.node->n_tokens == n_tokens ||
        firni_has_windows(prefix, match.node)) {
        return n_tokens;
    }
    return prefix->families.n_fixed > 0 ? 0 : match.node->first_token;
}

/* Asks the tier whether it has more, unless it could not be worth a read. The wait for its answer is bounded as one for
 * a read is: by the deadline, and by a share of the time that computing takes. Returns why it is not asked, or NONE. */
static firn_reason look_below(firn_lease *lease)
{
    firn_prefix *prefix = lease->prefix;
    const uint32_t n_held = lease->info.n_tokens;
    if (prefix->options.tier == NULL || n_held + 1 >= lease->n_prompt ||
        lease->n_prompt <= prefix->options.min_tokens) {
        return FIRN_REASON_NONE;
    }
    lease->compute_ns = prefix->options.restore_always
                            ? 0.0
                            : firni_gate_compute_ns(&prefix->gate, n_held, lease->n_prompt - 1);
    lease->since_ns = firni_now_ns(prefix->env);
    const uint64_t patience_ns = firni_gate_patience_ns(lease->compute_ns);
    lease->look_ns = patience_ns < UINT64_MAX - lease->since_ns ? lease->since_ns + patience_ns : UINT64_MAX;
    return firni_find_start(prefix, lease);
}

/* Waits for what the tier has more when the gain is worth a read. Returns why not, or NONE. */
static firn_reason read_below(firn_lease *lease, firn_match *match)
{
    const uint32_t n_held = lease->info.n_tokens;
    const uint32_t n_below = reachable(lease, match->prefix_len);
    /* The same measure as for keeping: below min_tokens a prefix is sooner computed than fetched. */
    if (n_below >= n_held + lease->prefix->options.min_tokens) {
        return firni_read_start(lease->prefix, lease, match);
    }
    return n_below > n_held && n_held > 0 ? FIRN_REASON_BREAKEVEN : FIRN_REASON_NONE;
}

void firni_lease_found(firn_lease *lease, firn_match *match, uint64_t took_ns)
{
    lease->below = *match;        /* kept for the explanation */
    lease->below.handle = NULL;   /* goes to the read, or back */
    /* Requests that ran meanwhile may have put more of the prompt. */
    if (lease->stamp != lease->prefix->stamp) {
        hold_ram(lease);
    }
    lease->info.ram_tokens = lease->info.n_tokens;
    lease->waited = false;
    /* A read's wait is counted together with the tier's own time for the answer; how long that lay in the inbox while
     * a step was computed is not the tier's. */
    lease->since_ns = firni_now_ns(lease->prefix->env) - took_ns;
    const firn_reason failure = read_below(lease, match);
    if (lease->read == NULL) {
        firni_lease_finish(lease, failure, 0);
    }
}

/* Counts the prompt's blocks as asked for, once a request: what is put of it afterwards is no second sighting. */
static void note_sightings(firn_prefix *prefix, const firn_token *prompt, uint32_t n_tokens)
{
    firni_admission *admission = &prefix->admission;
    if (admission->seen == NULL) {
        return;
    }
    firni_admission_mark(admission, prefix->stamp, firni_now_ns(prefix->env));
    uint64_t digest = firni_admission_digest(0, NULL, 0);
    for (uint32_t at = 0; at + FIRN_BLOCK_TOKENS <= n_tokens; at += FIRN_BLOCK_TOKENS) {
        digest = firni_admission_digest(digest, prompt + at, FIRN_BLOCK_TOKENS);
        firni_admission_saw(admission, digest);
    }
}

firn_status firn_prefix_acquire(firn_prefix *prefix, const firn_token *prompt, uint32_t n_tokens, const char *ns,
                                firn_lease **out, firn_error *err)
{
    return firn_prefix_acquire_with(prefix, prompt, n_tokens, ns, 0, out, err);
}

firn_status firn_prefix_acquire_with(firn_prefix *prefix, const firn_token *prompt, uint32_t n_tokens, const char *ns,
                                     int priority, firn_lease **out, firn_error *err)
{
    *out = NULL;
    firni_inbox_drain(prefix);
    ns = ns != NULL ? ns : "";
    if (n_tokens == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "an empty prompt has no prefix to look up");
    }
    if (strlen(ns) > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a cache namespace has at most %u bytes",
                          (unsigned)FIRN_NAMESPACE_BYTES_MAX);
    }
    const size_t held_bytes = 2 * (size_t)prefix->n_layers * sizeof(firn_block *);
    firn_lease *lease = firni_calloc(prefix->env, 1, sizeof *lease + held_bytes);
    if (lease == NULL) {
        goto fail;
    }
    lease->prefix = prefix;
    lease->n_prompt = n_tokens;
    lease->priority = priority;
    lease->ns = firni_strdup(prefix->env, ns);
    lease->prompt = firni_calloc(prefix->env, n_tokens, sizeof *lease->prompt);
    if (lease->ns == NULL || lease->prompt == NULL) {
        goto fail;
    }
    memcpy(lease->prompt, prompt, n_tokens * sizeof *lease->prompt);

    /* Nothing below can fail: the lookup has begun. */
    lease->next = prefix->leases;
    if (lease->next != NULL) {
        lease->next->prev = lease;
    }
    prefix->leases = lease;
    prefix->stats.n_lookups++;
    note_sightings(prefix, prompt, n_tokens);
    lease->deadline_ns = firni_now_ns(prefix->env) + prefix->options.restore_deadline_ns;
    hold_ram(lease);
    lease->info.ram_tokens = lease->info.n_tokens;
    const firn_reason failure = look_below(lease);
    if (lease->find == NULL) {
        firni_lease_finish(lease, failure, 0);
    }
    *out = lease;
    return FIRN_OK;

fail:
    if (lease != NULL) {
        firni_free(prefix->env, lease->ns);
        firni_free(prefix->env, lease->prompt);
        firni_free(prefix->env, lease);
    }
    return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a lookup of %u tokens", n_tokens);
}

/* How far the read is, against the time that computing takes. A lookup does not say how far it is: it has its share of
 * that time. */
static bool is_too_slow(firn_lease *lease, uint64_t now_ns)
{
    firn_prefix *prefix = lease->prefix;
    firni_read *read = lease->read;
    if (now_ns < lease->look_ns || read == NULL) {
        return now_ns >= lease->look_ns;
    }
    firni_inbox *inbox = &prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    const bool has_ended = read->has_ended;
    const uint64_t n_done = read->n_bytes_done;
    const uint64_t began_ns = read->began_ns > 0 ? read->began_ns : read->started_ns;
    (void)pthread_mutex_unlock(&inbox->mutex);
    const uint64_t waited_ns = now_ns - lease->since_ns;
    lease->look_ns = now_ns + waited_ns / LOOK_SHARE + 1;
    return !has_ended && firni_gate_gives_up(&prefix->gate, lease->compute_ns, waited_ns,
                                             now_ns > began_ns ? now_ns - began_ns : 0, n_done, read->room_bytes);
}

static void stop_waiting(firn_lease *lease, firn_reason reason, uint64_t now_ns)
{
    firni_early_destroy(lease);
    firni_find_leave(lease);
    firni_read_leave(lease);
    firni_lease_finish(lease, reason, now_ns - lease->since_ns);
}

/* When it waits no longer, whatever happens. A lookup waits for those before it, so what holds them up is its
 * end too. */
static uint64_t wait_end_ns(const firn_lease *lease)
{
    const uint64_t stuck_ns = lease->find != NULL ? firni_finds_stuck_at_ns(lease->prefix) : UINT64_MAX;
    return stuck_ns < lease->deadline_ns ? stuck_ns : lease->deadline_ns;
}

/* The read itself may go on: for others, or to its next part. */
static void expire(firn_lease *lease, uint64_t now_ns)
{
    if (lease->ready) {
        return;
    }
    if (now_ns >= wait_end_ns(lease)) {
        stop_waiting(lease, FIRN_REASON_DEADLINE, now_ns);
    } else if (is_too_slow(lease, now_ns)) {
        lease->prefix->stats.n_restores_given_up++;
        stop_waiting(lease, FIRN_REASON_BREAKEVEN, now_ns);
    }
}

void firni_leases_expire(firn_prefix *prefix, uint64_t now_ns)
{
    for (firn_lease *lease = prefix->leases; lease != NULL; lease = lease->next) {
        expire(lease, now_ns);
    }
}

uint64_t firni_leases_next_deadline(const firn_prefix *prefix)
{
    uint64_t next_ns = UINT64_MAX;
    for (const firn_lease *lease = prefix->leases; lease != NULL; lease = lease->next) {
        if (!lease->ready) {
            const uint64_t end_ns = wait_end_ns(lease);
            const uint64_t look_ns = lease->look_ns < end_ns ? lease->look_ns : end_ns;
            next_ns = look_ns < next_ns ? look_ns : next_ns;
        }
    }
    return next_ns;
}

bool firn_lease_ready(firn_lease *lease)
{
    if (!lease->ready) {
        firni_inbox_drain(lease->prefix);
        expire(lease, firni_now_ns(lease->prefix->env));
    }
    return lease->ready;
}

firn_lease_info firn_lease_result(firn_lease *lease)
{
    assert(lease->ready);
    return lease->info;
}

const float *firn_lease_logits(const firn_lease *lease)
{
    assert(lease->ready);
    return lease->logits != NULL && lease->info.n_tokens == lease->n_prompt ? lease->logits->values : NULL;
}

firn_status firn_lease_lend(firn_lease *lease, firn_cache **caches, firn_error *err)
{
    assert(lease->ready);
    const firni_path_end end = { .node = lease->node,
                                 .n_tokens = lease->info.n_tokens,
                                 .tail = lease->held,
                                 .states = lease->held + lease->prefix->n_layers };
    return firni_adopt_path(lease->prefix, &end, caches, NULL, err);
}

void firn_lease_release(firn_lease *lease)
{
    if (lease == NULL) {
        return;
    }
    firn_prefix *prefix = lease->prefix;
    firni_early_destroy(lease);
    firni_find_leave(lease);
    firni_read_leave(lease);
    firni_logits_release(prefix->env, lease->logits);
    drop_held(lease);
    let_go(prefix, lease->node, first_window(lease));
    if (lease->prev != NULL) {
        lease->prev->next = lease->next;
    } else {
        prefix->leases = lease->next;
    }
    if (lease->next != NULL) {
        lease->next->prev = lease->prev;
    }
    firni_free(prefix->env, lease->ns);
    firni_free(prefix->env, lease->prompt);
    firni_free(prefix->env, lease);
}
