/*
 * Stores: into the upper, and into the lower at once when the upper refuses. Owns the decision; what goes down later is
 * stack_copy.c's.
 *
 * The lower may hang, and the caches of a store are the caller's: what it is given is a copy that shares their blocks,
 * which it may keep when nobody waits any more. Such a store is answered with false, and may come to be after all: it
 * holds what its name says, whoever finds it.
 */
#include "tier/stack/stack_impl.h"

#define UPPER_REST_NS UINT64_C(1000000000)

void firni_stacked_note_upper(firni_stacked *stacked, firn_reason reason)
{
    firn_tier_stats stats;
    firn_tier_get_stats(stacked->upper, &stats);
    pthread_mutex_lock(&stacked->mutex);
    stacked->upper_budget_bytes = stats.budget_bytes;
    stacked->upper_physical_bytes = stats.physical_bytes;
    stacked->upper_rest_until_ns = firni_is_fault(reason) ? firni_now_ns(stacked->env) + UPPER_REST_NS : 0;
    pthread_mutex_unlock(&stacked->mutex);
}

typedef struct low_store {
    firni_below call; /* first */
    firni_carried *carried;
    bool stored;
    firn_reason reason;
} low_store;

static void store_below(firni_below *call)
{
    low_store *job = (low_store *)call;
    const firn_store_input input = firni_carried_input(job->carried);
    job->stored = firn_tier_store(call->stacked->lower, &input, &job->reason);
}

static void drop_store(firni_below *call)
{
    low_store *job = (low_store *)call;
    firni_carried_destroy(job->carried);
    firni_free(call->stacked->env, job);
}

/* NONE: the lower has it. */
static firn_reason store_low(firni_stacked *stacked, const firn_store_input *input)
{
    low_store *job = firni_calloc(stacked->env, 1, sizeof *job);
    if (job == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    job->call = (firni_below){ .stacked = stacked, .work = store_below, .drop = drop_store };
    job->carried = firni_carried_create(stacked->env, input);
    if (job->carried == NULL) {
        drop_store(&job->call);
        return FIRN_REASON_NO_MEMORY;
    }
    firn_reason reason = FIRN_REASON_DEADLINE;
    if (firni_below_run(stacked, &job->call, stacked->options.lower_store_ns)) {
        reason = job->reason;
        drop_store(&job->call);
    }
    return reason;
}

/* A store that would replace what somebody reads is refused. Where that is the copier, which the caller knows nothing
 * of, it is let finish, within the bound of other waits for it. */
static bool store_high(firni_stacked *stacked, const firn_store_input *input, firn_reason *reason)
{
    if (firn_tier_store(stacked->upper, input, reason) || *reason != FIRN_REASON_LOADING) {
        return *reason == FIRN_REASON_NONE;
    }
    const uint64_t until_ns = firni_now_ns(stacked->env) + stacked->options.store_wait_ns;
    pthread_mutex_lock(&stacked->mutex);
    stacked->n_replacing++;
    uint64_t now_ns = firni_now_ns(stacked->env);
    while (stacked->is_copier_above && !stacked->is_stopping && now_ns < until_ns) {
        firni_stacked_wait_locked(stacked, until_ns - now_ns);
        now_ns = firni_now_ns(stacked->env);
    }
    pthread_mutex_unlock(&stacked->mutex);
    const bool stored = firn_tier_store(stacked->upper, input, reason);
    pthread_mutex_lock(&stacked->mutex);
    stacked->n_replacing--;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
    return stored;
}

bool firni_stacked_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firni_stacked_note_use(stacked);
    firni_copy_make_way(stacked);
    bool stored = store_high(stacked, input, reason);
    const bool is_above = stored;
    firni_stacked_note_upper(stacked, *reason);
    /* Attachments alone that are worth less than any state save less than their way down costs, and would take their
     * state there as worth as little. */
    const bool is_least = input->n_caches == 0 && input->n_tokens > 0 && input->priority == FIRN_PRIORITY_MIN;
    /* Of others the state may be below alone. */
    const bool is_elsewhere = input->n_caches == 0 && !is_least && *reason == FIRN_REASON_FAMILY_MISSING;
    if (is_above && !is_least) {
        firni_copy_note(stacked, input, NULL, 0);
    } else if (!is_above && (firni_is_fault(*reason) || is_elsewhere)) {
        stored = store_low(stacked, input) == FIRN_REASON_NONE;
        *reason = stored ? FIRN_REASON_NONE : *reason; /* the upper's: that is what has to be seen to */
    }
    pthread_mutex_lock(&stacked->mutex);
    stacked->own.n_stores += stored;
    stacked->own.n_store_refused += !stored;
    stacked->counts.n_stored_below += stored && !is_above;
    stacked->is_lower_dirty = stacked->is_lower_dirty || (stored && !is_above);
    pthread_mutex_unlock(&stacked->mutex);
    return stored;
}
