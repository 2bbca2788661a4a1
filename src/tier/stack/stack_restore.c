/*
 * Restores: by the tier that gave the handle, and by the lower when the upper has failed. Owns the request on its way;
 * the answer's state belongs to whoever asked.
 *
 *      upper --reads--> done ------------------------------------------------> caller
 *                 '-- failed: lower.find_exact, lower --reads--> done --> promotion's copy --> caller
 *
 * A caller that was told of layers builds on the very caches that `done` is to bring. So once progress has shown them,
 * another tier's cannot take their place: the failure is the answer, and the next lookup goes past what failed.
 */
#include <assert.h>

#include "tier/stack/stack_impl.h"

/* ---- at once ----------------------------------------------------------------------------------------------------- */

static void count_restore(firni_stacked *stacked, firn_reason reason, bool is_fallback)
{
    pthread_mutex_lock(&stacked->mutex);
    if (reason == FIRN_REASON_NONE) {
        stacked->counts.n_fallbacks += is_fallback;
    } else if (reason != FIRN_REASON_CANCELLED) {
        stacked->own.n_misses++;
        stacked->own.miss_reasons[reason]++;
    }
    pthread_mutex_unlock(&stacked->mutex);
}

/* What a failure of the lower means for those who come next. */
static void note_lower(firni_stacked *stacked, firn_reason reason)
{
    if (reason == FIRN_REASON_DEADLINE || reason == FIRN_REASON_IO_ERROR) {
        firni_below_rest(stacked);
    } else if (reason == FIRN_REASON_NONE) {
        firni_below_well(stacked);
    }
}

firn_reason firni_stacked_restore(firn_tier *tier, firn_tier_handle *opaque, uint32_t n_tokens, firn_restored *out)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firni_stacked_handle *handle = (firni_stacked_handle *)opaque;
    const uint32_t n = n_tokens != 0 ? n_tokens : handle->n_tokens;
    firni_stacked_note_use(stacked);
    firn_tier *from = handle->from;
    firn_reason reason = firn_tier_restore(from, handle->handle, n_tokens, out);
    bool is_fallback = false;
    if (from == stacked->upper && firni_is_fault(reason)) {
        firn_tier_handle *below = firni_below_find_exact(stacked, handle, n, stacked->options.lower_deadline_ns);
        if (below != NULL) {
            from = stacked->lower;
            is_fallback = true;
            reason = firn_tier_restore(from, below, n_tokens, out);
            firn_tier_release(from, below);
        }
    }
    if (from == stacked->lower) {
        note_lower(stacked, reason);
        out->depth += reason == FIRN_REASON_NONE;
        if (reason == FIRN_REASON_NONE && handle->key == NULL) {
            firni_promotion_start(stacked, firni_promotion_create(stacked, handle->ns, out));
        }
    }
    count_restore(stacked, reason, is_fallback);
    return reason;
}

/* From where the handle is: this is one tier's copy on its way to another, and no promotion's reason. */
firn_reason firni_stacked_restore_into(firn_tier *tier, firn_tier_handle *opaque, firn_pool *pool, firn_restored *out)
{
    (void)tier;
    firni_stacked_handle *handle = (firni_stacked_handle *)opaque;
    return firn_tier_restore_into(handle->from, handle->handle, pool, out);
}

/* ---- on its way -------------------------------------------------------------------------------------------------- */

typedef struct restore_job {
    firni_stacked *stacked;
    firni_stacked_handle *handle; /* a reference */
    firn_restore_request wanted;  /* the caller's; head is the caller's own memory, gone after the start */
    bool is_object;
    bool is_lower, is_fallback;
    bool has_shown_caches;
} restore_job;

static void drop_job(restore_job *job)
{
    firni_stacked *stacked = job->stacked;
    firni_stacked_handle_unref(job->handle);
    firni_free(stacked->env, job);
    pthread_mutex_lock(&stacked->mutex);
    stacked->n_restoring--;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
}

static bool is_wanted(void *ctx)
{
    const restore_job *job = ctx;
    return job->wanted.is_wanted == NULL || job->wanted.is_wanted(job->wanted.ctx);
}

static void on_progress(void *ctx, const firn_restore_progress *progress)
{
    restore_job *job = ctx;
    job->has_shown_caches = job->has_shown_caches || progress->caches != NULL;
    if (job->wanted.progress != NULL) {
        job->wanted.progress(job->wanted.ctx, progress);
    }
}

static void on_done(void *ctx, firn_restored *restored, firn_reason reason);

/* Hands the request to a tier. The second time it is without a head and says nothing on the way: what was said of the
 * first attempt's bytes must not be taken back. */
static firn_status start(restore_job *job, firn_tier *tier, firn_tier_handle *own, firn_error *err)
{
    if (job->is_object) {
        return firn_tier_restore_object_async(tier, own, job->wanted.deadline_ns, on_done, job, err);
    }
    firn_restore_request request = job->wanted;
    request.is_wanted = is_wanted;
    request.progress = on_progress;
    request.done = on_done;
    request.ctx = job;
    if (job->is_fallback) {
        request.head = NULL;
        request.n_head_blocks = 0;
        request.in_layer_order = false;
        request.progress = NULL;
    }
    return firn_tier_restore_request(tier, own, &request, err);
}

/* Time that is left for the lower to be asked in. */
static uint64_t left_ns(const restore_job *job)
{
    const uint64_t bound_ns = job->stacked->options.lower_deadline_ns;
    const uint64_t now_ns = firni_now_ns(job->stacked->env);
    if (job->wanted.deadline_ns == 0) {
        return bound_ns;
    }
    const uint64_t left = job->wanted.deadline_ns > now_ns ? job->wanted.deadline_ns - now_ns : 0;
    return left < bound_ns ? left : bound_ns;
}

/* The upper has failed. True: the lower is reading, or has answered already. */
static bool fall_back(restore_job *job, firn_reason reason)
{
    firni_stacked *stacked = job->stacked;
    const uint64_t bound_ns = left_ns(job);
    if (job->is_lower || !firni_is_fault(reason) || job->has_shown_caches || bound_ns == 0 || !is_wanted(job)) {
        return false;
    }
    const uint32_t n = job->wanted.n_tokens != 0 ? job->wanted.n_tokens : job->handle->n_tokens;
    firn_tier_handle *below = firni_below_find_exact(stacked, job->handle, n, bound_ns);
    if (below == NULL) {
        return false;
    }
    job->is_lower = true;
    job->is_fallback = true;
    /* From here on the job may be answered, and gone, before the call returns. */
    const bool has_started = start(job, stacked->lower, below, NULL) == FIRN_OK;
    firn_tier_release(stacked->lower, below);
    return has_started;
}

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    restore_job *job = ctx;
    firni_stacked *stacked = job->stacked;
    if (reason != FIRN_REASON_NONE && fall_back(job, reason)) {
        return;
    }
    firni_carried *carried = NULL;
    if (job->is_lower) {
        note_lower(stacked, reason);
        if (restored != NULL) {
            restored->depth++;
        }
        /* Before the caller has it: what it does with the caches afterwards is its own. */
        carried = reason == FIRN_REASON_NONE && !job->is_object
                      ? firni_promotion_create(stacked, job->handle->ns, restored)
                      : NULL;
    }
    count_restore(stacked, reason, job->is_fallback);
    job->wanted.done(job->wanted.ctx, restored, reason);
    firni_promotion_start(stacked, carried);
    drop_job(job);
}

static firn_status begin(firn_tier *tier, firn_tier_handle *opaque, const firn_restore_request *wanted, bool is_object,
                         firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firni_stacked_handle *handle = (firni_stacked_handle *)opaque;
    restore_job *job = firni_calloc(stacked->env, 1, sizeof *job);
    if (job == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to start a restore");
    }
    *job = (restore_job){ .stacked = stacked,
                          .handle = handle,
                          .wanted = *wanted,
                          .is_object = is_object,
                          .is_lower = handle->from == stacked->lower };
    assert(handle->handle != NULL); /* not released */
    firni_stacked_note_use(stacked);
    atomic_fetch_add(&handle->refs, 1);
    pthread_mutex_lock(&stacked->mutex);
    stacked->n_restoring++;
    pthread_mutex_unlock(&stacked->mutex);
    const firn_status status = start(job, handle->from, handle->handle, err);
    if (status != FIRN_OK) {
        drop_job(job);
    }
    return status;
}

firn_status firni_stacked_restore_request(firn_tier *tier, firn_tier_handle *handle,
                                          const firn_restore_request *request, firn_error *err)
{
    return begin(tier, handle, request, false, err);
}

firn_status firni_stacked_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                        uint64_t deadline_ns, firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_restore_request request = {
        .n_tokens = n_tokens, .deadline_ns = deadline_ns, .done = done, .ctx = ctx
    };
    return begin(tier, handle, &request, false, err);
}

firn_status firni_stacked_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                               firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_restore_request request = { .deadline_ns = deadline_ns, .done = done, .ctx = ctx };
    return begin(tier, handle, &request, true, err);
}
