/*
 * Write-behind: unsaved paths on their way to the tier. Owns the store worker, its bounded queue, and the pauses after
 * a refusal; what a store consists of is store_job.c's.
 *
 *      put --> wanted (a list through the nodes) --pump--> queue --> worker: firn_tier_store --> inbox --> saved
 *                        ^                                                          | refused
 *                        '----------------- after a pause, doubled each time -------'
 *
 * One job stores one whole path: wanting a node withdraws its ancestors from the list. A job holds copies of the tokens
 * and caches of its own over the same blocks, so nothing it reads can change. The nodes stay readable and unsaved until
 * the tier has said yes; then all of the path is saved, except a tail that grew meanwhile.
 *
 * The pause is common to all jobs: a tier that refuses is ill for everyone. While it is, one job at a time probes it,
 * a different one each time.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

enum {
    PAUSE_DOUBLINGS_MAX = 6,   /* 64 times the first pause */
    UNSAVED_PRESS_SHARE = 8,   /* unsaved paths beyond 1/8 of the budget: store the oldest tails too */
    UNSAVED_ILL_SHARE = 4      /* unsaved paths may take 1/4 of the budget while the tier refuses */
};

/* ---- the worker ---- */

static bool store(firn_prefix *prefix, firni_job *job)
{
    const firn_store_input input = { .tokens = job->tokens,
                                     .n_tokens = job->n_tokens,
                                     .caches = (const firn_cache *const *)job->caches,
                                     .n_caches = prefix->n_layers,
                                     .ns = job->ns,
                                     .priority = job->priority };
    return firn_tier_store(prefix->options.tier, &input, &job->reason);
}

/* Takes one job at a time. The store runs without any lock, for as long as the tier needs. When the tree is destroyed
 * the job in hand is finished, because the tier may be in the middle of it; the queue is left to writer_deinit. */
static void *store_worker(void *ctx)
{
    firn_prefix *prefix = ctx;
    firni_writer *writer = &prefix->writer;
    for (;;) {
        (void)pthread_mutex_lock(&writer->mutex);
        while (writer->head == NULL && !writer->stopping) {
            (void)pthread_cond_wait(&writer->queued, &writer->mutex);
        }
        firni_job *job = writer->stopping ? NULL : writer->head;
        if (job != NULL) {
            writer->head = job->next;
            writer->tail = writer->head != NULL ? writer->tail : NULL;
        }
        (void)pthread_mutex_unlock(&writer->mutex);
        if (job == NULL) {
            return NULL;
        }
        const uint64_t started_ns = firni_now_ns(prefix->env);
        job->stored = job->logits != NULL ? firni_logits_job_store(prefix, job, &job->reason) : store(prefix, job);
        job->store_ns = firni_now_ns(prefix->env) - started_ns;
        firni_inbox_post(prefix, &job->message);
    }
}

static void enqueue(firni_writer *writer, firni_job *job, uint64_t now_ns)
{
    if (writer->n_jobs++ == 0) {
        writer->progress_ns = now_ns;
    }
    (void)pthread_mutex_lock(&writer->mutex);
    if (writer->tail != NULL) {
        writer->tail->next = job;
    } else {
        writer->head = job;
    }
    writer->tail = job;
    (void)pthread_cond_signal(&writer->queued);
    (void)pthread_mutex_unlock(&writer->mutex);
}

/* A job that was never begun. What it would have stored is wanted as before. */
static void take_back(firn_prefix *prefix, firni_job *job)
{
    firni_node *leaf = job->leaf;
    if (leaf != NULL) {
        leaf->storing = leaf->store_again = false;
        if (leaf->unsaved && !prefix->closing) {
            firni_wait_for_store(prefix, leaf);
        }
        firni_unpin(prefix, leaf);
    } else {
        job->logits->is_storing = false;
        job->logits->flush_mark = 0;
    }
    firni_job_destroy(prefix, job);
    prefix->writer.n_jobs--;
}

bool firni_writer_recall(firn_prefix *prefix)
{
    firni_writer *writer = &prefix->writer;
    if (!writer->has_mutex) {
        return false;
    }
    (void)pthread_mutex_lock(&writer->mutex);
    firni_job *job = writer->head;
    writer->head = writer->tail = NULL;
    (void)pthread_mutex_unlock(&writer->mutex);
    const bool any = job != NULL;
    while (job != NULL) {
        firni_job *next = job->next;
        take_back(prefix, job);
        job = next;
    }
    return any;
}

/* ---- the end of a job ---- */

/* The path stays unsaved, waits behind all others, and has had its turn in the current flush. */
static void refused(firn_prefix *prefix, firni_node *leaf, firn_reason reason)
{
    firni_writer *writer = &prefix->writer;
    for (firni_node *node = leaf; node->parent != NULL; node = node->parent) {
        node->flush_mark = prefix->flush_number;
    }
    firni_stop_waiting(prefix, leaf);
    if (leaf->unsaved) {
        firni_wait_for_store(prefix, leaf);
    }
    prefix->stats.n_store_failures++;
    prefix->stats.reasons[reason]++;
    if (writer->n_refused == 0) {
        firni_log(prefix->env, FIRN_LOG_WARN, "tier refuses stores (%s): state stays in RAM and is tried again",
                  firn_reason_name(reason));
    }
    writer->last_refusal = reason;
    /* Jobs that were queued together fail together: that is one refusal, not a reason for ever longer pauses. */
    const uint64_t now_ns = firni_now_ns(prefix->env);
    if (writer->n_refused == 0 || now_ns >= writer->next_try_ns) {
        const uint32_t n_doublings = writer->n_refused < PAUSE_DOUBLINGS_MAX ? writer->n_refused : PAUSE_DOUBLINGS_MAX;
        writer->next_try_ns = now_ns + (prefix->options.retry_ns_min << n_doublings);
        writer->n_refused++;
    }
}

/* A checkpoint that the tail has grown past, or that stands inside: it is not stored along with the next one. */
static bool has_more_to_store(const firn_prefix *prefix, const firni_node *node)
{
    const firni_checkpoint *c = node->checkpoints;
    if (c != NULL && node->n_tokens < FIRN_BLOCK_TOKENS && c->n_tokens == node->first_token + node->n_tokens) {
        c = c->next; /* a tail is left to grow */
    }
    while (c != NULL && !c->unsaved) {
        c = c->next;
    }
    return prefix->families.n_fixed > 0 && c != NULL;
}

/* On the engine thread. */
void firni_job_ended(firn_prefix *prefix, firni_job *job)
{
    firni_writer *writer = &prefix->writer;
    firni_node *leaf = job->leaf;
    assert(writer->n_jobs > 0);
    writer->n_jobs--;
    writer->progress_ns = firni_now_ns(prefix->env);
    if (leaf == NULL) {
        firni_logits_job_ended(prefix, job);
        firni_job_destroy(prefix, job);
        firni_writer_pump(prefix);
        return;
    }
    assert(leaf->storing);
    leaf->storing = false;
    if (job->stored) {
        prefix->stats.n_stores++;
        firni_latency_add(&prefix->stats.store_latency, job->store_ns);
        if (writer->n_refused > 0) {
            firni_log(prefix->env, FIRN_LOG_INFO, "tier accepts stores again");
        }
        writer->n_refused = 0;
        writer->next_try_ns = 0;
        firni_job_mark_saved(prefix, job);
        if (leaf->unsaved && has_more_to_store(prefix, leaf)) {
            firni_wait_for_store(prefix, leaf);
        }
        for (firni_node *node = leaf; leaf->store_again && node->parent != NULL; node = node->parent) {
            if (node->unsaved && !node->storing) {
                firni_wait_for_store(prefix, node);
            }
        }
    } else if (job->reason == FIRN_REASON_PRIORITY) {
        prefix->stats.reasons[job->reason]++; /* no illness of the tier: it keeps what is worth more */
        firni_job_keep_in_ram(prefix, job);
    } else {
        refused(prefix, leaf, job->reason);
    }
    leaf->store_again = false;
    /* What the rule would not keep had to wait for the store. */
    (void)firni_checkpoints_retain(prefix, leaf, NULL);
    firni_unpin(prefix, leaf);
    firni_job_destroy(prefix, job);
    firni_writer_pump(prefix);
}

/* ---- what is wanted ---- */

void firni_writer_want(firn_prefix *prefix, firni_node *node)
{
    assert(node->unsaved);
    /* A second job for the same leaf would race with the first for no gain. */
    if (node->storing) {
        node->store_again = true;
        return;
    }
    for (firni_node *above = node->parent; above->parent != NULL; above = above->parent) {
        if (!has_more_to_store(prefix, above)) {
            firni_stop_waiting(prefix, above);
        }
    }
    firni_wait_for_store(prefix, node);
}

/* Bytes that come free for eviction when the path to an unsaved leaf is stored: up to where another one keeps it. */
static uint64_t bytes_kept_by(const firni_node *leaf)
{
    uint64_t bytes = leaf->stuck_bytes;
    const firni_node *node = leaf->parent;
    for (; node->parent != NULL && node->n_stuck_children == 1; node = node->parent) {
        bytes += node->stuck_bytes;
    }
    return bytes;
}

/* Wants the least recently used unsaved leaves until they keep `bytes`, or as many are looked at as the queue takes. */
static void want_oldest(firn_prefix *prefix, uint64_t bytes)
{
    firni_node *seen = NULL;
    uint64_t wanted_bytes = 0;
    firni_node *leaf = firni_heap_first(&prefix->unsaved);
    for (uint32_t n = 0; leaf != NULL && wanted_bytes < bytes && n < prefix->options.write_queue_max; n++) {
        firni_writer_want(prefix, leaf);
        wanted_bytes += bytes_kept_by(leaf);
        /* Out of the heap to reach the next-oldest; all go back below. */
        firni_heap_remove(leaf);
        leaf->aside = seen;
        seen = leaf;
        leaf = firni_heap_first(&prefix->unsaved);
    }
    while (seen != NULL) {
        leaf = seen;
        seen = leaf->aside;
        firni_settle(prefix, leaf);
    }
}

void firni_writer_press(firn_prefix *prefix, uint64_t bytes)
{
    if (prefix->options.tier != NULL) {
        want_oldest(prefix, bytes);
        firni_writer_pump(prefix);
    }
}

/* No position at or below the node can be resumed, so a store of it would be of no use to anyone: it may leave. What is
 * above it has been left to its store, and is wanted for itself now. */
static void give_up(firn_prefix *prefix, firni_node *node)
{
    firni_stop_waiting(prefix, node);
    firni_mark_saved(prefix, node);
    prefix->stats.reasons[FIRN_REASON_FAMILY_MISSING]++;
    firni_node *above = node->parent;
    if (above->parent != NULL && above->unsaved && !above->storing) {
        firni_wait_for_store(prefix, above);
    }
}

void firni_writer_pump(firn_prefix *prefix)
{
    firni_writer *writer = &prefix->writer;
    if (prefix->options.tier == NULL || prefix->closing) {
        return;
    }
    /* Unsaved nodes cannot be evicted, nor can their paths: do not wait for a shortage before tails are stored. */
    const uint64_t press_bytes = prefix->options.budget_bytes / UNSAVED_PRESS_SHARE;
    if (prefix->stuck_bytes > press_bytes) {
        want_oldest(prefix, prefix->stuck_bytes - press_bytes);
    }
    const uint64_t now_ns = firni_now_ns(prefix->env);
    /* A flush has a bound of its own: it waits for no pause and probes with everything. */
    const bool probing = writer->n_refused > 0 && !prefix->flushing;
    const uint32_t n_jobs_max = probing ? 1 : prefix->options.write_queue_max;
    firni_node *leaf;
    while ((leaf = prefix->lists[FIRNI_LIST_WAITING].next) != NULL && writer->n_jobs < n_jobs_max) {
        if (probing && now_ns < writer->next_try_ns) {
            break;
        }
        if (prefix->flushing && leaf->flush_mark == prefix->flush_number) {
            break; /* everything has had its turn in this flush: refused nodes go to the end of the list */
        }
        firn_reason reason = FIRN_REASON_FAMILY_MISSING;
        firni_job_give_up(prefix, leaf);
        firni_job *job = leaf->unsaved ? firni_job_create(prefix, leaf, &reason) : NULL;
        if (job == NULL && reason == FIRN_REASON_FAMILY_MISSING) {
            give_up(prefix, leaf);
            continue;
        }
        if (job != NULL && job->leaf->storing) {
            /* The path ends further down, where a store is on its way. */
            job->leaf->store_again = true;
            firni_stop_waiting(prefix, leaf);
            firni_job_destroy(prefix, job);
            continue;
        }
        if (job == NULL) {
            refused(prefix, leaf, reason);
            if (prefix->flushing) {
                continue;
            }
            break;
        }
        firni_stop_waiting(prefix, leaf);
        firni_stop_waiting(prefix, job->leaf);
        job->leaf->storing = true;
        firni_pin(prefix, job->leaf);
        enqueue(writer, job, now_ns);
    }
    firni_job *job;
    while (prefix->flushing && writer->n_jobs < n_jobs_max && (job = firni_logits_job_next(prefix)) != NULL) {
        enqueue(writer, job, now_ns);
    }
}

/* A store that does not end looks like health to a counter of refusals, hence the look at the clock. */
bool firni_writer_is_ill(const firn_prefix *prefix, uint64_t now_ns)
{
    const firni_writer *writer = &prefix->writer;
    return writer->n_refused > 0 ||
           (writer->n_jobs > 0 && now_ns - writer->progress_ns > prefix->options.restore_deadline_ns);
}

uint64_t firni_unsaved_bytes_max(const firn_prefix *prefix)
{
    return prefix->options.budget_bytes / UNSAVED_ILL_SHARE;
}

/* ---- start and stop ---- */

firn_status firni_writer_init(firn_prefix *prefix, firn_error *err)
{
    firni_writer *writer = &prefix->writer;
    int error = pthread_mutex_init(&writer->mutex, NULL);
    if (error == 0) {
        error = pthread_cond_init(&writer->queued, NULL);
        if (error != 0) {
            (void)pthread_mutex_destroy(&writer->mutex);
        }
    }
    if (error != 0) {
        return firni_fail_os(err, error, "cannot create the write queue of the RAM tier");
    }
    writer->has_mutex = true;
    error = pthread_create(&writer->thread, NULL, store_worker, prefix);
    if (error != 0) {
        return firni_fail_os(err, error, "cannot start the store worker of the RAM tier");
    }
    writer->has_thread = true;
    return FIRN_OK;
}

void firni_writer_deinit(firn_prefix *prefix)
{
    firni_writer *writer = &prefix->writer;
    if (!writer->has_mutex) {
        return;
    }
    (void)pthread_mutex_lock(&writer->mutex);
    writer->stopping = true;
    firni_job *dropped = writer->head;
    writer->head = writer->tail = NULL;
    (void)pthread_cond_signal(&writer->queued);
    (void)pthread_mutex_unlock(&writer->mutex);
    if (writer->has_thread) {
        (void)pthread_join(writer->thread, NULL);
    }
    /* The worker is gone, and the inbox holds what it finished; these were never begun. */
    while (dropped != NULL) {
        firni_job *next = dropped->next;
        take_back(prefix, dropped);
        dropped = next;
    }
    (void)pthread_mutex_destroy(&writer->mutex);
    (void)pthread_cond_destroy(&writer->queued);
    writer->has_mutex = writer->has_thread = false;
}
