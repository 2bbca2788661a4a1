/*
 * The stack itself: creation, the table of operations, statistics, the end.
 *
 * The end has a bound. First the threads are told to stop; what they are doing in a tier ends by itself or never:
 *
 *      threads ended, no call out      upper and lower are destroyed, and the stack
 *      somebody hangs in the lower     the upper is destroyed; the lower and the stack are left behind, which is logged
 *      somebody hangs in the upper     both are left behind
 */
#include <assert.h>
#include <string.h>

#include "base/condition.h"
#include "tier/stack/stack_impl.h"

#define LOWER_DEADLINE_NS UINT64_C(250000000)
#define LOWER_STORE_NS    UINT64_C(30000000000)
#define DEMOTE_IDLE_NS    UINT64_C(1000000000)
#define STORE_WAIT_NS     UINT64_C(1000000000)
#define COPIES_MAX        1024u
#define COPY_TOKENS_MAX   (UINT64_C(16) << 20)
#define COPY_BYTES_MAX    (UINT64_C(4) << 30)
#define PROMOTE_BYTES_MAX (UINT64_C(256) << 20)
#define PROMOTIONS_MAX    16u
#define STOP_NS           UINT64_C(5000000000)

/* ---- what all parts use ------------------------------------------------------------------------------------------ */

firni_stacked *firni_stacked_of(firn_tier *tier)
{
    return (firni_stacked *)tier;
}

void firni_stacked_wait_locked(firni_stacked *stacked, uint64_t ns)
{
    const struct timespec until = firni_condition_deadline(ns);
    (void)pthread_cond_timedwait(&stacked->changed, &stacked->mutex, &until);
}

void firni_stacked_note_use(firni_stacked *stacked)
{
    const uint64_t now_ns = firni_now_ns(stacked->env);
    pthread_mutex_lock(&stacked->mutex);
    stacked->used_ns = now_ns;
    pthread_mutex_unlock(&stacked->mutex);
}

bool firni_is_fault(firn_reason reason)
{
    switch (reason) {
    case FIRN_REASON_CORRUPT:
    case FIRN_REASON_EXPIRED:
    case FIRN_REASON_QUEUE_FULL:
    case FIRN_REASON_DISK_FULL:
    case FIRN_REASON_READ_ONLY:
    case FIRN_REASON_IO_ERROR:
    case FIRN_REASON_DEADLINE:
    case FIRN_REASON_GONE:
    case FIRN_REASON_PINNED:
    case FIRN_REASON_PRIORITY:
    case FIRN_REASON_WRONG_KEY: return true;
    default: return false;
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

typedef struct low_stats {
    firni_below call; /* first */
    firn_tier_stats stats;
} low_stats;

static void stats_below(firni_below *call)
{
    firn_tier_get_stats(call->stacked->lower, &((low_stats *)call)->stats);
}

static void drop_stats(firni_below *call)
{
    firni_free(call->stacked->env, call);
}

/* The lower's, or those it last told; then its state says that it does not answer. */
static firn_tier_stats ask_lower(firni_stacked *stacked)
{
    low_stats *job = firni_calloc(stacked->env, 1, sizeof *job);
    bool is_fresh = false;
    firn_tier_stats stats = { 0 };
    if (job != NULL) {
        job->call = (firni_below){ .stacked = stacked, .work = stats_below, .drop = drop_stats };
        is_fresh = firni_below_run(stacked, &job->call, stacked->options.lower_deadline_ns);
        if (is_fresh) {
            stats = job->stats;
            drop_stats(&job->call);
        }
    }
    pthread_mutex_lock(&stacked->mutex);
    if (is_fresh) {
        stacked->lower_last = stats;
    } else {
        stats = stacked->lower_last;
        stats.state = stats.state != FIRN_REASON_NONE ? stats.state : FIRN_REASON_DEADLINE;
    }
    pthread_mutex_unlock(&stacked->mutex);
    return stats;
}

static void get_all(firni_stacked *stacked, firn_stack_stats *out)
{
    firn_tier_stats upper;
    firn_tier_get_stats(stacked->upper, &upper);
    const firn_tier_stats lower = ask_lower(stacked);
    pthread_mutex_lock(&stacked->mutex);
    *out = stacked->counts;
    out->n_copies_waiting = stacked->list.n + (stacked->copying != NULL);
    out->is_lower_resting = stacked->n_stuck > 0 || firni_now_ns(stacked->env) < stacked->rest_until_ns;
    pthread_mutex_unlock(&stacked->mutex);
    out->upper = upper;
    out->lower = lower;
}

/* Bytes and events of both; lookups and stores as the stack's callers saw them; pins as the larger of the two: the
 * lower's are the upper's again. */
static void get_stats(firn_tier *tier, firn_tier_stats *out)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firn_stack_stats both;
    get_all(stacked, &both);
    const firn_tier_stats *upper = &both.upper, *lower = &both.lower;
    pthread_mutex_lock(&stacked->mutex);
    *out = stacked->own;
    pthread_mutex_unlock(&stacked->mutex);
    out->n_records = upper->n_records + lower->n_records;
    out->physical_bytes = upper->physical_bytes + lower->physical_bytes;
    out->budget_bytes = upper->budget_bytes + lower->budget_bytes;
    out->written_bytes = upper->written_bytes + lower->written_bytes;
    out->unique_bytes = upper->unique_bytes + lower->unique_bytes;
    out->read_bytes = upper->read_bytes + lower->read_bytes;
    out->wasted_bytes = upper->wasted_bytes + lower->wasted_bytes;
    out->n_cancelled = upper->n_cancelled + lower->n_cancelled;
    out->n_evicted = upper->n_evicted + lower->n_evicted;
    out->n_quarantined = upper->n_quarantined + lower->n_quarantined;
    out->n_demoted = upper->n_demoted + lower->n_demoted;
    out->demoted_saved_bytes = upper->demoted_saved_bytes + lower->demoted_saved_bytes;
    out->n_pins = upper->n_pins > lower->n_pins ? upper->n_pins : lower->n_pins;
    out->pinned_bytes = upper->pinned_bytes > lower->pinned_bytes ? upper->pinned_bytes : lower->pinned_bytes;
    out->state = upper->state != FIRN_REASON_NONE ? upper->state : lower->state;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void free_stacked(firni_stacked *stacked)
{
    const firn_env *env = stacked->env;
    firni_copy *copy;
    while ((copy = firni_copy_take_locked(stacked)) != NULL) {
        firni_copy_destroy(env, copy);
    }
    assert(stacked->promote_first == NULL && stacked->copying == NULL);
    firni_scratch_end(&stacked->promote_scratch);
    firni_scratch_end(&stacked->copy_scratch);
    (void)pthread_cond_destroy(&stacked->changed);
    (void)pthread_mutex_destroy(&stacked->mutex);
    firni_free(env, stacked);
}

/* Waits until neither of the stack's threads is inside what `is_inside` looks at; false: the time is up. */
static bool wait_for_locked(firni_stacked *stacked, bool (*is_inside)(const firni_stacked *), uint64_t until_ns)
{
    while (is_inside(stacked)) {
        const uint64_t now_ns = firni_now_ns(stacked->env);
        if (now_ns >= until_ns) {
            return false;
        }
        firni_stacked_wait_locked(stacked, until_ns - now_ns);
    }
    return true;
}

static bool is_any_above(const firni_stacked *stacked)
{
    return stacked->is_promoter_above || stacked->is_copier_above;
}

static bool is_any_out(const firni_stacked *stacked)
{
    return is_any_above(stacked) || stacked->n_below > 0 || (stacked->has_copier && !stacked->is_copier_done) ||
           (stacked->has_promoter && !stacked->is_promoter_done);
}

static void end_thread(pthread_t thread, bool has_thread, bool is_done)
{
    if (has_thread && is_done) {
        (void)pthread_join(thread, NULL);
    } else if (has_thread) {
        (void)pthread_detach(thread);
    }
}

static void destroy(firn_tier *tier)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const firn_env *env = stacked->env;
    firn_tier *upper = stacked->upper, *lower = stacked->lower;
    const uint64_t until_ns = firni_now_ns(env) + stacked->options.stop_ns;
    pthread_mutex_lock(&stacked->mutex);
    stacked->is_stopping = true;
    pthread_cond_broadcast(&stacked->changed);
    const bool all_out = wait_for_locked(stacked, is_any_out, until_ns);
    const bool is_above = is_any_above(stacked);
    const bool is_promoter_done = stacked->is_promoter_done, is_copier_done = stacked->is_copier_done;
    pthread_mutex_unlock(&stacked->mutex);
    end_thread(stacked->promoter, stacked->has_promoter, is_promoter_done);
    end_thread(stacked->copier, stacked->has_copier, is_copier_done);
    if (!is_above) {
        firn_tier_destroy(upper); /* its restores that are out are answered, here at the latest */
    }
    if (all_out) {
        firn_tier_destroy(lower);
        pthread_mutex_lock(&stacked->mutex);
        const bool is_answered = stacked->n_restoring == 0;
        pthread_mutex_unlock(&stacked->mutex);
        if (is_answered) { /* else one of them was left behind, with a restore that may still answer */
            free_stacked(stacked);
            return;
        }
    }
    firni_log(env, FIRN_LOG_ERROR, "a stack of tiers does not answer; the %s is left behind with what it uses",
              is_above ? "upper tier, with the lower," : "lower tier");
}

static const firn_schema *schema_of(firn_tier *tier)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const firn_schema *schema = firn_tier_schema(stacked->upper);
    return schema != NULL ? schema : firn_tier_schema(stacked->lower);
}

static const firn_tier_ops stack_ops = {
    .name = "stack",
    .find = firni_stacked_find,
    .find_exact = firni_stacked_find_exact,
    .restore = firni_stacked_restore,
    .restore_async = firni_stacked_restore_async,
    .restore_object_async = firni_stacked_restore_object_async,
    .restore_request = firni_stacked_restore_request,
    .restore_into = firni_stacked_restore_into,
    .store = firni_stacked_store,
    .release = firni_stacked_release,
    .flush = firni_stacked_flush,
    .get_stats = get_stats,
    .schema = schema_of,
    .keep = &firni_stacked_keep,
    .destroy = destroy,
};

bool firn_stack_get_stats(firn_tier *tier, firn_stack_stats *out)
{
    *out = (firn_stack_stats){ 0 };
    if (tier == NULL || tier->ops != &stack_ops) {
        return false;
    }
    get_all(firni_stacked_of(tier), out);
    return true;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static firn_status check(const firn_stack_options *options, firn_error *err)
{
    if (options->upper == NULL || options->lower == NULL || options->upper == options->lower) {
        return firni_fail(err, FIRN_ERR_INVALID, "a stack needs an upper and a lower tier, and they must be two");
    }
    const firn_schema *upper = firn_tier_schema(options->upper), *lower = firn_tier_schema(options->lower);
    if (upper == NULL || lower == NULL) {
        return FIRN_OK;
    }
    if (memcmp(&upper->identity, &lower->identity, sizeof upper->identity) != 0) {
        char difference[300];
        const bool differs =
            firn_identity_explain(upper->identity_text, lower->identity_text, difference, sizeof difference);
        return firni_fail(err, FIRN_ERR_SIGNATURE, "the tiers of a stack are of different models: %s (above, below)",
                          differs ? difference : "their identities differ");
    }
    if (upper->n_layers != lower->n_layers) {
        return firni_fail(err, FIRN_ERR_SIGNATURE, "the upper tier is of %u layers, the lower one of %u",
                          upper->n_layers, lower->n_layers);
    }
    return FIRN_OK;
}

static void fill_defaults(firn_stack_options *options)
{
    const firn_stack_options o = *options;
    options->lower_deadline_ns = o.lower_deadline_ns != 0 ? o.lower_deadline_ns : LOWER_DEADLINE_NS;
    options->lower_store_ns = o.lower_store_ns != 0 ? o.lower_store_ns : LOWER_STORE_NS;
    options->demote_idle_ns = o.demote_idle_ns != 0 ? o.demote_idle_ns : DEMOTE_IDLE_NS;
    options->store_wait_ns = o.store_wait_ns != 0 ? o.store_wait_ns : STORE_WAIT_NS;
    options->copies_max = o.copies_max != 0 ? o.copies_max : COPIES_MAX;
    options->copy_tokens_max = o.copy_tokens_max != 0 ? o.copy_tokens_max : COPY_TOKENS_MAX;
    options->promote_bytes_max = o.promote_bytes_max != 0 ? o.promote_bytes_max : PROMOTE_BYTES_MAX;
    options->copy_bytes_max = o.copy_bytes_max != 0 ? o.copy_bytes_max : COPY_BYTES_MAX;
    options->promotions_max = o.promotions_max != 0 ? o.promotions_max : PROMOTIONS_MAX;
    options->stop_ns = o.stop_ns != 0 ? o.stop_ns : STOP_NS;
}

/* The one of the threads that was started ends again: it has nothing to do. */
static void stop_threads(firni_stacked *stacked)
{
    pthread_mutex_lock(&stacked->mutex);
    stacked->is_stopping = true;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
    end_thread(stacked->promoter, stacked->has_promoter, true);
    end_thread(stacked->copier, stacked->has_copier, true);
}

firn_status firn_stack_create(const firn_stack_options *options, const firn_env *env, firn_tier **out, firn_error *err)
{
    *out = NULL;
    const firn_status status = check(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_stacked *stacked = firni_calloc(env, 1, sizeof *stacked);
    if (stacked == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a stack of tiers");
    }
    *stacked = (firni_stacked){ .tier = { .ops = &stack_ops },
                                .env = env,
                                .options = *options,
                                .upper = options->upper,
                                .lower = options->lower };
    fill_defaults(&stacked->options);
    stacked->promote_scratch.budget_bytes = stacked->options.promote_bytes_max;
    stacked->copy_scratch.budget_bytes = stacked->options.copy_bytes_max;
    stacked->used_ns = firni_now_ns(env);
    if (firni_condition_init(&stacked->changed) != 0) {
        firni_free(env, stacked);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no resources for a stack of tiers");
    }
    (void)pthread_mutex_init(&stacked->mutex, NULL);
    stacked->has_promoter = pthread_create(&stacked->promoter, NULL, firni_promoter_main, stacked) == 0;
    stacked->has_copier =
        stacked->has_promoter && pthread_create(&stacked->copier, NULL, firni_copier_main, stacked) == 0;
    if (!stacked->has_copier) {
        stop_threads(stacked);
        free_stacked(stacked);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "cannot start the threads of a stack of tiers");
    }
    *out = &stacked->tier;
    return FIRN_OK;
}
