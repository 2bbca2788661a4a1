/*
 * Asynchronous restores: one thread that reads, one that watches deadlines.
 *
 *      caller --> queue --> reader --done--> caller's callback
 *                   \---------\--- watcher: at the deadline, done with DEADLINE
 *
 * A job is answered once: whoever sets is_answered under the mutex calls done. A read that hangs costs its deadline and
 * no more; its job, its pinned handle and the memory that the kernel may still write into stay with the reader until
 * the read returns, and are dropped then. Between two parts of a read the reader asks whether it is still wanted, and
 * says how far it is; the watcher waits for the end of such a call, so that none comes after the answer.
 *
 * A queue of its own, bounded, rather than a thread per read: one device has one queue worth filling, and read_batch
 * already fills it with the parts of a single restore.
 *
 * The reader also does the upkeep of recency and expiry, and packs idle records, when nothing is queued. Owns the queue
 * and both threads; does not know how a restore works.
 */
#include <assert.h>
#include <errno.h>

#include "base/condition.h"
#include "tier/disk/disk_impl.h"

#define QUEUE_MAX          64u
#define UPKEEP_INTERVAL_NS UINT64_C(30000000000)
#define UPKEEP_INTERVAL_NS_MIN UINT64_C(5000000000) /* of a tier that compresses what has been idle for less */
/* The clock of the environment need not run like the one that a thread sleeps by, so no sleep is longer than this while
 * a deadline is near. */
#define WATCH_INTERVAL_NS UINT64_C(100000000)

typedef struct restore_request {
    struct restore_request *next;
    firn_tier_handle *handle; /* pinned and referenced */
    bool is_object;
    uint64_t deadline_ns; /* UINT64_MAX: none */
    firn_restore_request wanted; /* head: a copy of one reference each */
    bool is_answered; /* guarded by the worker's mutex */
    bool is_in_call;  /* the same: a question or a report is on its way to the caller */
} restore_request;

struct firni_worker {
    firni_disk *disk;
    pthread_mutex_t mutex;
    pthread_cond_t reader_wakes, watcher_wakes;
    pthread_t reader, watcher;
    bool has_reader, has_watcher;
    /* Guarded by mutex. */
    restore_request *first, *last; /* queued */
    uint32_t n_queued;
    restore_request *running;
    bool upkeep_due, is_stopping;
};

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Waits on a condition of the worker for at most n nanoseconds; the mutex is held. */
static void wait_for(firni_worker *worker, pthread_cond_t *condition, uint64_t n_ns)
{
    const struct timespec until = firni_condition_deadline(n_ns);
    (void)pthread_cond_timedwait(condition, &worker->mutex, &until);
}

static size_t head_blocks(const firni_disk *disk, const firn_restore_request *wanted)
{
    return (size_t)wanted->n_head_blocks * disk->plan.n_layers;
}

/* The caller's blocks, kept until the read has ended. */
static bool take_head(const firni_disk *disk, firn_restore_request *wanted)
{
    const size_t n = head_blocks(disk, wanted);
    firn_block **head = firni_calloc(disk->env, n + 1, sizeof *head);
    for (size_t i = 0; head != NULL && i < n; i++) {
        head[i] = wanted->head[i] != NULL ? firn_block_retain(wanted->head[i]) : NULL;
    }
    wanted->head = head;
    return head != NULL;
}

/* Ends what a request holds: its pin, its reference, the head. */
static void drop_request(firni_disk *disk, restore_request *request)
{
    firn_block **head = (firn_block **)(uintptr_t)request->wanted.head; /* take_head() made it */
    for (size_t i = 0; head != NULL && i < head_blocks(disk, &request->wanted); i++) {
        firn_block_release(head[i]);
    }
    firni_free(disk->env, head);
    firni_disk_release(&disk->tier, request->handle);
    firni_free(disk->env, request);
}

/* ---- the reader -------------------------------------------------------------------------------------------------- */

/* False when the request has been answered: then the caller must not be called any more. */
static bool begin_call(firni_worker *worker, restore_request *request)
{
    pthread_mutex_lock(&worker->mutex);
    request->is_in_call = !request->is_answered;
    const bool may_call = request->is_in_call;
    pthread_mutex_unlock(&worker->mutex);
    return may_call;
}

static void end_call(firni_worker *worker, restore_request *request)
{
    pthread_mutex_lock(&worker->mutex);
    request->is_in_call = false;
    pthread_cond_signal(&worker->watcher_wakes);
    pthread_mutex_unlock(&worker->mutex);
}

typedef struct running_restore {
    firni_worker *worker;
    restore_request *request;
} running_restore;

static bool is_wanted(void *ctx)
{
    const running_restore *running = ctx;
    const firn_restore_request *wanted = &running->request->wanted;
    bool answer = begin_call(running->worker, running->request);
    if (answer) {
        answer = wanted->is_wanted == NULL || wanted->is_wanted(wanted->ctx);
        end_call(running->worker, running->request);
    }
    return answer;
}

static void report(void *ctx, const firn_restore_progress *progress)
{
    const running_restore *running = ctx;
    const firn_restore_request *wanted = &running->request->wanted;
    if (wanted->progress != NULL && begin_call(running->worker, running->request)) {
        wanted->progress(wanted->ctx, progress);
        end_call(running->worker, running->request);
    }
}

static firn_reason restore(firni_worker *worker, restore_request *request, firn_restored *out)
{
    if (request->is_object) {
        return firni_disk_restore_object(worker->disk, request->handle, out);
    }
    running_restore running = { .worker = worker, .request = request };
    const firni_restore_want want = { .head = request->wanted.head,
                                      .n_head_blocks = request->wanted.n_head_blocks,
                                      .in_layer_order = request->wanted.in_layer_order,
                                      .caches_only = request->wanted.caches_only,
                                      .is_wanted = is_wanted,
                                      .progress = report,
                                      .ctx = &running };
    return firni_disk_restore_wanted(worker->disk, request->handle, request->wanted.n_tokens, &want, out);
}

/* Reads for one request. The watcher may answer it meanwhile; then the result is nobody's and is released here. */
static void run(firni_worker *worker, restore_request *request)
{
    firni_disk *disk = worker->disk;
    firn_restored restored;
    const firn_reason reason = restore(worker, request, &restored);
    pthread_mutex_lock(&worker->mutex);
    const bool too_late = request->is_answered;
    request->is_answered = true;
    worker->running = NULL;
    pthread_mutex_unlock(&worker->mutex);
    if (too_late) {
        pthread_mutex_lock(&disk->mutex);
        disk->stats.wasted_bytes += restored.n_bytes_read;
        pthread_mutex_unlock(&disk->mutex);
        firn_restored_deinit(&restored);
    } else {
        request->wanted.done(request->wanted.ctx, reason == FIRN_REASON_NONE ? &restored : NULL, reason);
    }
    drop_request(disk, request);
}

static uint64_t upkeep_interval_ns(const firni_disk *disk)
{
    const uint64_t idle_ns = disk->options.demote_idle_ns;
    if (idle_ns == 0 || idle_ns >= UPKEEP_INTERVAL_NS) {
        return UPKEEP_INTERVAL_NS;
    }
    return idle_ns > UPKEEP_INTERVAL_NS_MIN ? idle_ns : UPKEEP_INTERVAL_NS_MIN;
}

/* True: there is more to do as long as nobody wants anything. */
static bool do_upkeep(firni_disk *disk)
{
    bool more = false;
    firn_reason reason;
    firni_volume *volume = disk->options.read_only ? NULL : firni_disk_enter(disk, false, &reason);
    if (volume == NULL) {
        return false;
    }
    /* A store that holds the writer's lock does what is needed itself, and restores should not wait for it. */
    if (pthread_mutex_trylock(&disk->writer) == 0) {
        (void)firni_disk_upkeep(disk, volume);
        if (disk->options.demote_idle_ns > 0 && firni_disk_is_quiet(disk)) {
            firn_disk_demote_report report = { 0 };
            (void)firni_disk_demote_step(disk, volume, &report, &more);
        }
        pthread_mutex_unlock(&disk->writer);
    }
    firni_disk_leave(disk, volume);
    return more;
}

static void *read_loop(void *ctx)
{
    firni_worker *worker = ctx;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->is_stopping) {
        restore_request *request = worker->first;
        if (request != NULL) {
            worker->first = request->next;
            worker->last = worker->first == NULL ? NULL : worker->last;
            worker->n_queued--;
            worker->running = request;
            pthread_mutex_unlock(&worker->mutex);
            run(worker, request);
            pthread_mutex_lock(&worker->mutex);
        } else if (worker->upkeep_due) {
            worker->upkeep_due = false;
            pthread_mutex_unlock(&worker->mutex);
            const bool more = do_upkeep(worker->disk);
            pthread_mutex_lock(&worker->mutex);
            worker->upkeep_due = worker->upkeep_due || more;
        } else {
            const uint64_t started_ns = firni_now_ns(worker->disk->env);
            const uint64_t interval_ns = upkeep_interval_ns(worker->disk);
            wait_for(worker, &worker->reader_wakes, interval_ns);
            worker->upkeep_due =
                worker->upkeep_due || firni_now_ns(worker->disk->env) - started_ns >= interval_ns;
        }
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

/* ---- the watcher ------------------------------------------------------------------------------------------------- */

/* Unlinks a queued request that is overdue; the mutex is held. */
static restore_request *take_overdue_locked(firni_worker *worker, uint64_t now_ns)
{
    restore_request *before = NULL;
    for (restore_request *request = worker->first; request != NULL; before = request, request = request->next) {
        if (request->deadline_ns <= now_ns) {
            if (before == NULL) {
                worker->first = request->next;
            } else {
                before->next = request->next;
            }
            worker->last = worker->last == request ? before : worker->last;
            worker->n_queued--;
            return request;
        }
    }
    return NULL;
}

/* Answers one overdue request, if there is any. The mutex is held, and released in between. */
static bool answer_overdue(firni_worker *worker)
{
    const uint64_t now_ns = firni_now_ns(worker->disk->env);
    restore_request *queued = take_overdue_locked(worker, now_ns);
    restore_request *running = worker->running;
    if (queued == NULL && (running == NULL || running->is_answered || running->deadline_ns > now_ns)) {
        return false;
    }
    if (queued == NULL && running->is_in_call) {
        (void)pthread_cond_wait(&worker->watcher_wakes, &worker->mutex);
        return true; /* look again: it may have been answered */
    }
    restore_request *request = queued != NULL ? queued : running;
    /* What done needs is copied: a running request may be freed by the reader as soon as the mutex is open. */
    const firn_restore_done done = request->wanted.done;
    void *done_ctx = request->wanted.ctx;
    request->is_answered = true;
    pthread_mutex_unlock(&worker->mutex);
    done(done_ctx, NULL, FIRN_REASON_DEADLINE);
    if (queued != NULL) {
        drop_request(worker->disk, queued);
    }
    pthread_mutex_lock(&worker->mutex);
    return true;
}

/* The earliest deadline of what is not answered yet. */
static bool has_deadline_locked(const firni_worker *worker, uint64_t *earliest_ns)
{
    *earliest_ns = worker->running != NULL && !worker->running->is_answered ? worker->running->deadline_ns : UINT64_MAX;
    for (const restore_request *request = worker->first; request != NULL; request = request->next) {
        *earliest_ns = request->deadline_ns < *earliest_ns ? request->deadline_ns : *earliest_ns;
    }
    return *earliest_ns != UINT64_MAX;
}

static void *watch_loop(void *ctx)
{
    firni_worker *worker = ctx;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->is_stopping) {
        uint64_t earliest_ns;
        if (answer_overdue(worker)) {
            continue;
        }
        if (has_deadline_locked(worker, &earliest_ns)) {
            const uint64_t now_ns = firni_now_ns(worker->disk->env);
            const uint64_t left_ns = earliest_ns > now_ns ? earliest_ns - now_ns : 0;
            wait_for(worker, &worker->watcher_wakes, left_ns < WATCH_INTERVAL_NS ? left_ns : WATCH_INTERVAL_NS);
        } else {
            (void)pthread_cond_wait(&worker->watcher_wakes, &worker->mutex);
        }
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

firn_status firni_worker_create(firni_disk *disk, firni_worker **out, firn_error *err)
{
    *out = NULL;
    firni_worker *worker = firni_calloc(disk->env, 1, sizeof *worker);
    if (worker == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the disk tier's worker");
    }
    worker->disk = disk;
    worker->upkeep_due = disk->options.ttl_ns > 0; /* what expired while nobody was there */
    (void)pthread_mutex_init(&worker->mutex, NULL);
    if (firni_condition_init(&worker->reader_wakes) == 0 && firni_condition_init(&worker->watcher_wakes) == 0) {
        worker->has_reader = pthread_create(&worker->reader, NULL, read_loop, worker) == 0;
        worker->has_watcher = worker->has_reader && pthread_create(&worker->watcher, NULL, watch_loop, worker) == 0;
    }
    if (!worker->has_watcher) {
        firni_worker_destroy(worker);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "cannot start the disk tier's threads");
    }
    *out = worker;
    return FIRN_OK;
}

void firni_worker_destroy(firni_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    pthread_mutex_lock(&worker->mutex);
    worker->is_stopping = true;
    restore_request *request = worker->first;
    worker->first = NULL;
    pthread_cond_broadcast(&worker->reader_wakes);
    pthread_cond_broadcast(&worker->watcher_wakes);
    pthread_mutex_unlock(&worker->mutex);
    while (request != NULL) {
        restore_request *next = request->next;
        request->wanted.done(request->wanted.ctx, NULL, FIRN_REASON_GONE);
        drop_request(worker->disk, request);
        request = next;
    }
    if (worker->has_reader) {
        (void)pthread_join(worker->reader, NULL);
    }
    if (worker->has_watcher) {
        (void)pthread_join(worker->watcher, NULL);
    }
    (void)pthread_cond_destroy(&worker->reader_wakes);
    (void)pthread_cond_destroy(&worker->watcher_wakes);
    (void)pthread_mutex_destroy(&worker->mutex);
    firni_free(worker->disk->env, worker);
}

void firni_worker_wake(firni_worker *worker)
{
    if (worker != NULL) {
        pthread_mutex_lock(&worker->mutex);
        worker->upkeep_due = true;
        pthread_cond_signal(&worker->reader_wakes);
        pthread_mutex_unlock(&worker->mutex);
    }
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Takes a copy of the request with a pin and references of its own, so that the caller may release its handle. */
static firn_status enqueue(firni_disk *disk, firn_tier_handle *handle, const firn_restore_request *wanted,
                           bool is_object, firn_error *err)
{
    firni_worker *worker = disk->worker;
    assert(worker != NULL); /* without a schema no lookup hands out a handle */
    restore_request *request = firni_calloc(disk->env, 1, sizeof *request);
    if (request == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to queue a restore");
    }
    *request = (restore_request){ .handle = handle, .is_object = is_object, .wanted = *wanted };
    request->deadline_ns = wanted->deadline_ns == 0 ? UINT64_MAX : wanted->deadline_ns;
    if (!take_head(disk, &request->wanted)) {
        firni_free(disk->env, request);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to queue a restore");
    }
    atomic_fetch_add(&request->handle->refs, 1);
    pthread_mutex_lock(&disk->mutex);
    firni_handle_pin_locked(disk, request->handle);
    pthread_mutex_unlock(&disk->mutex);
    pthread_mutex_lock(&worker->mutex);
    const bool is_full = worker->n_queued >= QUEUE_MAX;
    if (!is_full) {
        if (worker->last == NULL) {
            worker->first = request;
        } else {
            worker->last->next = request;
        }
        worker->last = request;
        worker->n_queued++;
        pthread_cond_signal(&worker->reader_wakes);
        pthread_cond_signal(&worker->watcher_wakes);
    }
    pthread_mutex_unlock(&worker->mutex);
    if (is_full) {
        drop_request(disk, request);
        return firni_fail(err, FIRN_ERR_BUSY, "%u restores are waiting for the disk", QUEUE_MAX);
    }
    return FIRN_OK;
}

firn_status firni_disk_restore_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                       firn_error *err)
{
    return enqueue(firni_disk_of(tier), handle, request, false, err);
}

firn_status firni_disk_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, uint64_t deadline_ns,
                                     firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_restore_request request = {
        .n_tokens = n_tokens, .deadline_ns = deadline_ns, .done = done, .ctx = ctx
    };
    return enqueue(firni_disk_of(tier), handle, &request, false, err);
}

firn_status firni_disk_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                            firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_restore_request request = { .deadline_ns = deadline_ns, .done = done, .ctx = ctx };
    return enqueue(firni_disk_of(tier), handle, &request, true, err);
}
