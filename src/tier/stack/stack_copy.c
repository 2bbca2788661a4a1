/*
 * Copying down: what the upper took goes into the lower as well. Owns the thread and when it works; the list is
 * stack_list.c's.
 *
 *      list --coldest--> lower: there already? --no--> upper: find_exact, restore --release--> lower: store --> pin
 *
 * It works when nobody has used the stack for a while; at once when the upper is three quarters full, when a quarter of
 * its budget has not been copied, when the list is half full, or when somebody flushes. One path is in memory at once,
 * in a pool of the stack's own (stack_scratch.c). The lower's store writes what the lower lacks and no more.
 *
 * The upper evicts what has not been used longest. What has not been copied was stored last, so before it goes, all the
 * rest has gone: by keeping it below half of the budget, stores that wait for it lose nothing.
 */
#include <assert.h>

#include "tier/stack/stack_impl.h"

#define PAUSE_NS_MIN UINT64_C(100000000)
#define PAUSE_NS_MAX UINT64_C(30000000000)
#define REFUSALS_MAX 3u /* in a row, after which a flush gives up */
#define NEVER_NS     UINT64_C(3600000000000)

typedef enum copy_outcome {
    COPY_DONE,
    COPY_LOST,  /* the upper has it no more, and the lower never had it */
    COPY_LATER, /* one of the tiers, or the pool, refuses now */
    COPY_REFUSED /* the lower will never take it */
} copy_outcome;

/* ---- one path ---------------------------------------------------------------------------------------------------- */

static void set_above(firni_stacked *stacked, bool is_above)
{
    pthread_mutex_lock(&stacked->mutex);
    while (is_above && stacked->n_replacing > 0 && !stacked->is_stopping) {
        (void)pthread_cond_wait(&stacked->changed, &stacked->mutex);
    }
    stacked->is_copier_above = is_above;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
}

/* DONE: the lower has it. LOST: it has not. LATER: it cannot say. */
static copy_outcome look_below(firni_stacked *stacked, const firni_copy *copy)
{
    const firn_match match = firn_tier_find_exact(stacked->lower, copy->tokens, copy->n_tokens, copy->ns);
    firn_tier_release(stacked->lower, match.handle);
    if (match.handle != NULL) {
        return COPY_DONE;
    }
    /* What is damaged or expired there is replaced. */
    const bool is_bad = match.reason == FIRN_REASON_CORRUPT || match.reason == FIRN_REASON_EXPIRED;
    return firni_is_fault(match.reason) && !is_bad ? COPY_LATER : COPY_LOST;
}

/* The state from the upper, which is left before the lower is entered. */
static copy_outcome fetch(firni_stacked *stacked, const firni_copy *copy, firn_pool *pool, firn_restored *out)
{
    set_above(stacked, true);
    *out = (firn_restored){ 0 };
    const firn_match match = firn_tier_find_exact(stacked->upper, copy->tokens, copy->n_tokens, copy->ns);
    firn_reason reason = match.reason;
    if (match.handle != NULL) {
        reason = firn_tier_restore_into(stacked->upper, match.handle, pool, out);
        firn_tier_release(stacked->upper, match.handle);
    }
    set_above(stacked, false);
    switch (reason) {
    case FIRN_REASON_NONE: return COPY_DONE;
    case FIRN_REASON_NO_MEMORY: /* also state that is larger than the bound: then it is so each time */
    case FIRN_REASON_IO_ERROR:
    case FIRN_REASON_READ_ONLY:
    case FIRN_REASON_DEADLINE: return COPY_LATER;
    case FIRN_REASON_GONE: return match.handle != NULL ? COPY_LOST : COPY_LATER; /* a record; or all of the tier */
    default: return COPY_LOST;
    }
}

/* LOADING: somebody reads below what this would replace. */
static bool is_passing(firn_reason reason)
{
    return firni_is_fault(reason) || reason == FIRN_REASON_NO_MEMORY || reason == FIRN_REASON_LOADING;
}

static copy_outcome store_down(firni_stacked *stacked, const firni_copy *copy, const firn_restored *restored)
{
    const firn_store_input input = { .tokens = copy->tokens,
                                     .n_tokens = copy->n_tokens,
                                     .caches = (const firn_cache *const *)restored->caches,
                                     .n_caches = restored->n_caches,
                                     .ns = copy->ns,
                                     .attachments = restored->attachments,
                                     .n_attachments = restored->n_attachments,
                                     .priority = copy->priority };
    firn_reason reason;
    const bool stored = firn_tier_store(stacked->lower, &input, &reason);
    pthread_mutex_lock(&stacked->mutex);
    stacked->counts.n_copies_refused += !stored;
    stacked->is_lower_dirty = stacked->is_lower_dirty || stored;
    pthread_mutex_unlock(&stacked->mutex);
    return stored               ? COPY_DONE
           : is_passing(reason) ? COPY_LATER
                                : COPY_REFUSED;
}

/* The pin follows its path. One that the lower does not take is the upper's alone. */
static void pin_down(firni_stacked *stacked, const firni_copy *copy)
{
    if (copy->until_wall_ns <= firni_wall_ns(stacked->env)) {
        return;
    }
    const firn_pin pin = { .name = copy->pin,
                           .ns = copy->ns,
                           .tokens = copy->tokens,
                           .n_tokens = copy->n_tokens,
                           .until_wall_ns = copy->until_wall_ns };
    firn_error err = { 0 };
    if (firn_tier_pin(stacked->lower, &pin, &err) != FIRN_OK) {
        firni_log(stacked->env, FIRN_LOG_WARN, "pin \"%.60s\" is in the upper tier alone: %s", copy->pin, err.message);
    }
    pthread_mutex_lock(&stacked->mutex);
    const bool is_unpinned = copy->is_unpinned;
    pthread_mutex_unlock(&stacked->mutex);
    if (is_unpinned) {
        (void)firn_tier_unpin(stacked->lower, copy->pin, NULL);
    }
}

static copy_outcome carry_down(firni_stacked *stacked, const firni_copy *copy)
{
    firn_pool *pool = firni_scratch_enter(stacked, &stacked->copy_scratch);
    if (pool == NULL) {
        return COPY_LATER;
    }
    firn_restored restored;
    copy_outcome outcome = fetch(stacked, copy, pool, &restored);
    if (outcome == COPY_DONE) {
        outcome = store_down(stacked, copy, &restored);
    }
    firn_restored_deinit(&restored);
    firni_scratch_leave(stacked, &stacked->copy_scratch);
    return outcome;
}

static copy_outcome copy_down(firni_stacked *stacked, const firni_copy *copy)
{
    const copy_outcome below = look_below(stacked, copy);
    copy_outcome outcome = below;
    if (below == COPY_LOST || (below == COPY_DONE && copy->has_attachments)) {
        outcome = carry_down(stacked, copy);
        outcome = outcome == COPY_LOST ? below : outcome; /* its attachments may be older there */
    }
    if (outcome == COPY_DONE && copy->pin != NULL) {
        pin_down(stacked, copy);
    }
    return outcome;
}

/* ---- when -------------------------------------------------------------------------------------------------------- */

static uint64_t waiting_bytes_locked(const firni_stacked *stacked)
{
    return stacked->list.n_bytes + (stacked->copying != NULL ? stacked->copying->n_bytes : 0);
}

static bool is_urgent_locked(const firni_stacked *stacked)
{
    const uint64_t budget_bytes = stacked->upper_budget_bytes;
    return stacked->n_flushing > 0 || stacked->list.n > stacked->options.copies_max / 2 ||
           stacked->list.n_tokens > stacked->options.copy_tokens_max / 2 ||
           (budget_bytes > 0 && (stacked->list.n_bytes > budget_bytes / 4 ||
                                 stacked->upper_physical_bytes > budget_bytes - budget_bytes / 4));
}

/* How long the thread has nothing to do; 0: it has. */
static uint64_t rest_of_wait_locked(const firni_stacked *stacked)
{
    const uint64_t now_ns = firni_now_ns(stacked->env);
    if (stacked->list.n == 0 || stacked->n_stuck > 0) {
        return NEVER_NS;
    }
    uint64_t begin_ns = is_urgent_locked(stacked) ? 0 : stacked->used_ns + stacked->options.demote_idle_ns;
    if (stacked->n_flushing == 0 && stacked->pause_until_ns > begin_ns) {
        begin_ns = stacked->pause_until_ns; /* a flush tries again at once, and gives up by itself */
    }
    return begin_ns > now_ns ? begin_ns - now_ns : 0;
}

static void finish_locked(firni_stacked *stacked, copy_outcome outcome)
{
    firni_copy *copy = stacked->copying;
    stacked->copying = NULL;
    if (outcome == COPY_LATER) {
        stacked->pause_ns = stacked->pause_ns == 0 ? PAUSE_NS_MIN
                            : stacked->pause_ns < PAUSE_NS_MAX / 2 ? 2 * stacked->pause_ns
                                                                   : PAUSE_NS_MAX;
        stacked->pause_until_ns = firni_now_ns(stacked->env) + stacked->pause_ns;
        stacked->n_refusals++;
        firni_copy_return_locked(stacked, copy);
    } else {
        stacked->pause_ns = 0;
        stacked->n_refusals = 0;
        stacked->is_copier_slow = false;
        stacked->counts.n_copied += outcome == COPY_DONE;
        stacked->counts.n_lost += outcome == COPY_LOST && !copy->is_resumed;
        stacked->counts.n_copies_dropped += outcome == COPY_REFUSED;
        firni_copy_destroy(stacked->env, copy);
    }
    pthread_cond_broadcast(&stacked->changed);
}

void *firni_copier_main(void *ctx)
{
    firni_stacked *stacked = ctx;
    set_above(stacked, true);
    firni_copy_resume(stacked);
    set_above(stacked, false);
    pthread_mutex_lock(&stacked->mutex);
    stacked->has_resumed = true;
    pthread_cond_broadcast(&stacked->changed);
    while (!stacked->is_stopping) {
        const uint64_t wait_ns = rest_of_wait_locked(stacked);
        if (wait_ns > 0) {
            firni_stacked_wait_locked(stacked, wait_ns);
            continue;
        }
        stacked->copying = firni_copy_take_locked(stacked);
        assert(stacked->copying != NULL);
        pthread_mutex_unlock(&stacked->mutex);
        const copy_outcome outcome = copy_down(stacked, stacked->copying);
        pthread_mutex_lock(&stacked->mutex);
        finish_locked(stacked, outcome);
    }
    stacked->is_copier_done = true;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
    return NULL;
}

/* ---- what the others ask for ------------------------------------------------------------------------------------- */

static bool is_whole(const firn_store_input *input)
{
    bool whole = input->n_caches > 0;
    for (uint32_t i = 0; whole && i < input->n_caches; i++) {
        whole = firn_cache_is_trimmable(input->caches[i]);
    }
    return whole;
}

void firni_copy_note(firni_stacked *stacked, const firn_store_input *input, const char *pin, uint64_t until_wall_ns)
{
    const firni_copy path = { .ns = (char *)(uintptr_t)input->ns,
                              .tokens = (firn_token *)(uintptr_t)input->tokens,
                              .n_tokens = input->n_tokens,
                              .n_bytes = firni_input_bytes(input),
                              .priority = input->priority,
                              .has_attachments = input->n_attachments > 0,
                              .is_whole = is_whole(input),
                              .pin = (char *)(uintptr_t)pin,
                              .until_wall_ns = until_wall_ns };
    firni_copy *copy = firni_copy_create(stacked->env, &path);
    const bool is_good = copy != NULL && copy->n_tokens <= stacked->options.copy_tokens_max;
    pthread_mutex_lock(&stacked->mutex);
    if (is_good) {
        firni_copy_append_locked(stacked, copy);
        pthread_cond_broadcast(&stacked->changed);
    } else {
        stacked->counts.n_copies_dropped++;
    }
    pthread_mutex_unlock(&stacked->mutex);
    if (!is_good) {
        firni_copy_destroy(stacked->env, copy);
    }
}

void firni_copy_make_way(firni_stacked *stacked)
{
    pthread_mutex_lock(&stacked->mutex);
    const uint64_t started_ns = firni_now_ns(stacked->env);
    uint64_t elapsed_ns = 0;
    while (!stacked->is_stopping && !stacked->is_copier_slow && stacked->n_stuck == 0 && stacked->pause_ns == 0 &&
           waiting_bytes_locked(stacked) > stacked->upper_budget_bytes / 2 && stacked->upper_budget_bytes > 0) {
        if (elapsed_ns >= stacked->options.store_wait_ns) {
            stacked->is_copier_slow = true; /* nobody waits again before something has been copied */
            break;
        }
        firni_stacked_wait_locked(stacked, stacked->options.store_wait_ns - elapsed_ns);
        elapsed_ns = firni_now_ns(stacked->env) - started_ns;
    }
    pthread_mutex_unlock(&stacked->mutex);
}

/* ---- flushing ---------------------------------------------------------------------------------------------------- */

typedef struct low_flush {
    firni_below call; /* first */
    uint64_t bound_ns;
    firn_flush_report report;
} low_flush;

static void flush_below(firni_below *call)
{
    low_flush *job = (low_flush *)call;
    job->report = firn_tier_flush(call->stacked->lower, job->bound_ns);
}

static void drop_flush(firni_below *call)
{
    firni_free(call->stacked->env, call);
}

/* The lower's own part; not asked for when it has been given nothing since the last time. */
static void flush_lower(firni_stacked *stacked, uint64_t bound_ns, firn_flush_report *report)
{
    pthread_mutex_lock(&stacked->mutex);
    const bool is_dirty = stacked->is_lower_dirty;
    stacked->is_lower_dirty = false;
    pthread_mutex_unlock(&stacked->mutex);
    if (!is_dirty) {
        return;
    }
    firn_flush_report below = { .durable = false };
    low_flush *job = firni_calloc(stacked->env, 1, sizeof *job);
    if (job != NULL) {
        *job = (low_flush){ .call = { .stacked = stacked, .work = flush_below, .drop = drop_flush },
                            .bound_ns = bound_ns };
        if (firni_below_run(stacked, &job->call, bound_ns)) {
            below = job->report;
            drop_flush(&job->call);
        }
    }
    report->durable = report->durable && below.durable;
    report->n_flushed += below.n_flushed;
    report->n_missing += below.n_missing;
    report->n_failed += below.n_failed;
    pthread_mutex_lock(&stacked->mutex);
    stacked->is_lower_dirty = stacked->is_lower_dirty || !below.durable;
    pthread_mutex_unlock(&stacked->mutex);
}

/* Until nothing waits to be copied, the time is up, or one path after the other is refused. */
static void copy_all(firni_stacked *stacked, uint64_t started_ns, uint64_t bound_ns, firn_flush_report *report)
{
    pthread_mutex_lock(&stacked->mutex);
    const uint64_t n_before = stacked->counts.n_copied;
    const uint64_t n_lost = stacked->counts.n_lost;
    stacked->n_flushing++;
    stacked->n_refusals = 0;
    pthread_cond_broadcast(&stacked->changed);
    uint64_t elapsed_ns = firni_now_ns(stacked->env) - started_ns;
    while ((stacked->list.n > 0 || stacked->copying != NULL || !stacked->has_resumed) && elapsed_ns < bound_ns &&
           !stacked->is_stopping && stacked->n_refusals < REFUSALS_MAX && stacked->n_stuck == 0) {
        firni_stacked_wait_locked(stacked, bound_ns - elapsed_ns);
        elapsed_ns = firni_now_ns(stacked->env) - started_ns;
    }
    stacked->n_flushing--;
    report->n_flushed += stacked->counts.n_copied - n_before;
    report->n_failed += stacked->counts.n_lost - n_lost;
    report->n_missing += stacked->list.n + (stacked->copying != NULL || !stacked->has_resumed);
    pthread_mutex_unlock(&stacked->mutex);
}

firn_flush_report firni_stacked_flush(firn_tier *tier, uint64_t bound_ns)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const uint64_t started_ns = firni_now_ns(stacked->env);
    firn_flush_report report = firn_tier_flush(stacked->upper, bound_ns);
    copy_all(stacked, started_ns, bound_ns, &report);
    const uint64_t elapsed_ns = firni_now_ns(stacked->env) - started_ns;
    flush_lower(stacked, bound_ns > elapsed_ns ? bound_ns - elapsed_ns : 0, &report);
    report.durable = report.durable && report.n_missing == 0 && report.n_failed == 0;
    report.elapsed_ns = firni_now_ns(stacked->env) - started_ns;
    return report;
}
