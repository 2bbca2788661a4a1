/*
 * Lookups in the tier below that are in flight. Owns the thread that asks, its queue, and each lookup from the copied
 * prompt to the answer; joins what would be looked up twice. What an answer is worth is decided by lease.c.
 *
 *      acquire --> queue --> finder's thread: firn_tier_find --> inbox --> waiters look on: read, or settle
 *           |                   '-- all of it is stored: are the logits behind it? --'
 *           '-- the same prompt is being looked up: wait for that one
 *
 * An index is searched in memory that may have to be fetched from a device first, which takes as long as the device
 * does, or for ever. So no lookup is waited for on the token loop: who asks has a lease that is not ready.
 *
 *  - A lookup whose last waiter has left is taken out of the queue; one that has begun runs to its end, and its handle
 *    is given back.
 *  - One that has not ended within the deadline costs everyone who waits for the tier that deadline, together. Until it
 *    has ended nobody waits for another: a tier that hangs costs one deadline, not one for each request.
 *  - The thread and what it uses are an allocation of their own. Where a tier does not return by the end of the tree,
 *    they are left behind (as base/bounded.h does) and go when its call does.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/condition.h"
#include "prefix/prefix_impl.h"

/* A lookup that nobody waits for any more has ended by then on a healthy device. */
#define HELD_UP_NS UINT64_C(50000000)
/* Logits save one token of computing. A device that has something else to do is not waited for. */
#define OBJECT_NS_MAX UINT64_C(20000000)

struct firni_finder {
    const firn_env *env;
    firn_tier *tier;
    firn_prefix *prefix;      /* not touched once is_alone */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t queued;    /* something to do */
    pthread_cond_t ended;     /* running has become NULL, or its object is there */
    uint32_t n_logits;        /* numbers behind a token; 0: they are not asked for */
    uint64_t object_ns_max;   /* how long they are waited for */
    /* Guarded by mutex. */
    firni_find *head, *tail;  /* not begun */
    firni_find *running;      /* until its message has been posted */
    bool is_telling;          /* running has its answer, which is being posted */
    bool stopping;
    bool is_alone;            /* the tree has gone: who ends the call frees all of it */
};

static void find_destroy(const firn_env *env, firni_find *find)
{
    assert(find->waiters == NULL && find->match.handle == NULL && find->whole.handle == NULL);
    firni_logits_release(env, find->logits);
    firni_free(env, find->ns);
    firni_free(env, find->tokens);
    firni_free(env, find);
}

static void finder_destroy(firni_finder *finder)
{
    (void)pthread_mutex_destroy(&finder->mutex);
    (void)pthread_cond_destroy(&finder->queued);
    (void)pthread_cond_destroy(&finder->ended);
    firni_free(finder->env, finder);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* The next lookup, or NULL at the end. */
static firni_find *take_next(firni_finder *finder)
{
    (void)pthread_mutex_lock(&finder->mutex);
    while (finder->head == NULL && !finder->stopping) {
        (void)pthread_cond_wait(&finder->queued, &finder->mutex);
    }
    firni_find *find = finder->stopping ? NULL : finder->head;
    if (find != NULL) {
        finder->head = find->next_queued;
        finder->tail = finder->head != NULL ? finder->tail : NULL;
        finder->running = find;
    }
    (void)pthread_mutex_unlock(&finder->mutex);
    return find;
}

/* Hands the answer over. False: there is nobody left to have it. */
static bool tell(firni_finder *finder, firni_find *find)
{
    (void)pthread_mutex_lock(&finder->mutex);
    const bool is_alone = finder->is_alone;
    finder->is_telling = !is_alone;
    (void)pthread_mutex_unlock(&finder->mutex);
    if (is_alone) {
        return false;
    }
    firni_inbox_post(finder->prefix, &find->message);
    (void)pthread_mutex_lock(&finder->mutex);
    finder->running = NULL;
    finder->is_telling = false;
    (void)pthread_cond_broadcast(&finder->ended);
    (void)pthread_mutex_unlock(&finder->mutex);
    return true;
}

/* Whether the tree, and with it perhaps the tier, is about to go, or has gone. */
static bool is_over(firni_finder *finder)
{
    (void)pthread_mutex_lock(&finder->mutex);
    const bool over = finder->stopping;
    (void)pthread_mutex_unlock(&finder->mutex);
    return over;
}

/* What a read of an object is answered to. */
typedef struct object_wait {
    firni_finder *finder;
    firni_find *find;
} object_wait;

/* On the tier's thread, or within the call that asks. */
static void object_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    const object_wait *wait = ctx;
    firni_finder *finder = wait->finder;
    (void)pthread_mutex_lock(&finder->mutex);
    if (reason == FIRN_REASON_NONE && restored != NULL) {
        wait->find->object = *restored;
        memset(restored, 0, sizeof *restored);
    }
    wait->find->has_object = true;
    (void)pthread_cond_broadcast(&finder->ended);
    (void)pthread_mutex_unlock(&finder->mutex);
}

/* The logits behind all of the prompt, or NULL. They are read here and not with the state, because they decide what
 * state is of use: all of it, or what leaves a token to compute. */
static firni_logits *fetch_logits(firni_finder *finder, firni_find *find)
{
    object_wait wait = { .finder = finder, .find = find };
    const uint64_t until_ns = firni_now_ns(finder->env) + finder->object_ns_max;
    if (firn_tier_restore_object_async(finder->tier, find->whole.handle, until_ns, object_done, &wait, NULL) !=
        FIRN_OK) {
        return NULL;
    }
    (void)pthread_mutex_lock(&finder->mutex);
    while (!find->has_object) {
        (void)pthread_cond_wait(&finder->ended, &finder->mutex);
    }
    (void)pthread_mutex_unlock(&finder->mutex);
    firni_logits *logits = firni_logits_of_object(finder->env, find, finder->n_logits);
    firn_restored_deinit(&find->object);
    return logits;
}

static void look_up(firni_finder *finder, firni_find *find)
{
    find->match = firn_tier_find(finder->tier, find->tokens, find->n_tokens, find->ns);
    /* Only a prompt that is stored to its end can have its logits there. */
    if (finder->n_logits == 0 || find->match.matched_len < find->n_tokens || is_over(finder)) {
        return;
    }
    find->whole = firn_tier_find_exact(finder->tier, find->tokens, find->n_tokens, find->ns);
    if (find->whole.handle != NULL && !is_over(finder)) {
        find->logits = fetch_logits(finder, find);
    }
}

static void *finder_main(void *ctx)
{
    firni_finder *finder = ctx;
    firni_find *find;
    while ((find = take_next(finder)) != NULL) {
        look_up(finder, find);
        find->ended_ns = firni_now_ns(finder->env);
        if (!tell(finder, find)) {
            find->match.handle = find->whole.handle = NULL; /* the tier may have gone as well: not given back */
            find_destroy(finder->env, find);
            finder_destroy(finder);
            return NULL;
        }
    }
    return NULL;
}

/* ---- the engine's side ------------------------------------------------------------------------------------------- */

static void start_waiting(firni_find *find, firn_lease *lease)
{
    lease->find = find;
    lease->waited = true;
    lease->next_waiter = find->waiters;
    find->waiters = lease;
}

static void unlink_find(firn_prefix *prefix, firni_find *find)
{
    if (find->prev != NULL) {
        find->prev->next = find->next;
    } else {
        prefix->finds = find->next;
    }
    if (find->next != NULL) {
        find->next->prev = find->prev;
    } else {
        prefix->finds_last = find->prev;
    }
}

/* Whether the lookup had not begun, and does not any more. */
static bool recall(firni_finder *finder, firni_find *find)
{
    (void)pthread_mutex_lock(&finder->mutex);
    firni_find **link = &finder->head;
    firni_find *previous = NULL;
    while (*link != NULL && *link != find) {
        previous = *link;
        link = &previous->next_queued;
    }
    const bool was_queued = *link != NULL;
    if (was_queued) {
        *link = find->next_queued;
        finder->tail = finder->tail == find ? previous : finder->tail;
    }
    (void)pthread_mutex_unlock(&finder->mutex);
    return was_queued;
}

void firni_find_leave(firn_lease *lease)
{
    firni_find *find = lease->find;
    if (find == NULL) {
        return;
    }
    firn_lease **link = &find->waiters;
    while (*link != lease) {
        link = &(*link)->next_waiter;
    }
    *link = lease->next_waiter;
    lease->next_waiter = NULL;
    lease->find = NULL;
    firn_prefix *prefix = lease->prefix;
    if (find->waiters == NULL && recall(prefix->finder, find)) {
        unlink_find(prefix, find);
        find_destroy(prefix->env, find);
    }
}

/* The answer to the same question is on its way. */
static firni_find *find_same(const firn_prefix *prefix, const firn_lease *lease)
{
    for (firni_find *find = prefix->finds; find != NULL; find = find->next) {
        if (find->n_tokens == lease->n_prompt && strcmp(find->ns, lease->ns) == 0 &&
            memcmp(find->tokens, lease->prompt, find->n_tokens * sizeof *find->tokens) == 0) {
            return find;
        }
    }
    return NULL;
}

bool firni_finds_are_stuck(const firn_prefix *prefix, uint64_t now_ns)
{
    /* The first is the oldest. */
    return prefix->finds != NULL && now_ns - prefix->finds->started_ns >= prefix->options.restore_deadline_ns;
}

uint64_t firni_finds_stuck_at_ns(const firn_prefix *prefix)
{
    return prefix->finds != NULL ? prefix->finds->started_ns + prefix->options.restore_deadline_ns : UINT64_MAX;
}

/* Whether a lookup that was given up is still on its way. */
static bool is_held_up(const firn_prefix *prefix, uint64_t now_ns)
{
    const firni_find *oldest = prefix->finds;
    return oldest != NULL && oldest->waiters == NULL && now_ns - oldest->started_ns >= HELD_UP_NS;
}

static firni_find *find_create(const firn_prefix *prefix, const firn_lease *lease, uint64_t now_ns)
{
    firni_find *find = firni_calloc(prefix->env, 1, sizeof *find);
    if (find == NULL) {
        return NULL;
    }
    find->message.kind = FIRNI_MESSAGE_FOUND;
    find->started_ns = now_ns;
    find->n_tokens = lease->n_prompt;
    find->ns = firni_strdup(prefix->env, lease->ns);
    find->tokens = firni_calloc(prefix->env, find->n_tokens, sizeof *find->tokens);
    if (find->ns == NULL || find->tokens == NULL) {
        find_destroy(prefix->env, find);
        return NULL;
    }
    /* A copy: the lease may be released before the tier has answered. */
    memcpy(find->tokens, lease->prompt, find->n_tokens * sizeof *find->tokens);
    return find;
}

static void enqueue(firni_finder *finder, firni_find *find)
{
    (void)pthread_mutex_lock(&finder->mutex);
    if (finder->tail != NULL) {
        finder->tail->next_queued = find;
    } else {
        finder->head = find;
    }
    finder->tail = find;
    (void)pthread_cond_signal(&finder->queued);
    (void)pthread_mutex_unlock(&finder->mutex);
}

firn_reason firni_find_start(firn_prefix *prefix, firn_lease *lease)
{
    const uint64_t now_ns = firni_now_ns(prefix->env);
    if (firni_finds_are_stuck(prefix, now_ns)) {
        return FIRN_REASON_DEADLINE;
    }
    if (lease->compute_ns > 0.0 && is_held_up(prefix, now_ns)) {
        return FIRN_REASON_BREAKEVEN;
    }
    firni_find *find = find_same(prefix, lease);
    if (find != NULL) {
        start_waiting(find, lease);
        prefix->stats.n_finds_joined++;
        return FIRN_REASON_NONE;
    }
    find = find_create(prefix, lease, now_ns);
    if (find == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    find->prev = prefix->finds_last;
    if (find->prev != NULL) {
        find->prev->next = find;
    } else {
        prefix->finds = find;
    }
    prefix->finds_last = find;
    start_waiting(find, lease);
    prefix->stats.n_finds++;
    enqueue(prefix->finder, find);
    return FIRN_REASON_NONE;
}

/* On the engine thread. The first waiter that reads what was found takes the handle, and the others join its read. */
void firni_find_ended(firn_prefix *prefix, firni_find *find)
{
    unlink_find(prefix, find);
    firn_match *match = find->logits != NULL ? &find->whole : &find->match;
    if (find->logits != NULL && !prefix->closing) {
        prefix->stats.n_logits_restored++;
        firni_logits_list(prefix, find->logits);
    }
    while (find->waiters != NULL) {
        firn_lease *lease = find->waiters;
        find->waiters = lease->next_waiter;
        lease->next_waiter = NULL;
        lease->find = NULL;
        if (find->logits != NULL && lease->logits == NULL) {
            lease->logits = firni_logits_retain(find->logits); /* also when the list has no room for them */
        }
        firni_lease_found(lease, match, find->ended_ns - find->started_ns);
    }
    firn_tier_release(prefix->options.tier, find->match.handle);
    firn_tier_release(prefix->options.tier, find->whole.handle);
    find->match.handle = find->whole.handle = NULL;
    find_destroy(prefix->env, find);
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

static int init_locks(firni_finder *finder)
{
    int error = firni_condition_init(&finder->ended);
    if (error != 0) {
        return error;
    }
    error = pthread_cond_init(&finder->queued, NULL);
    if (error == 0) {
        error = pthread_mutex_init(&finder->mutex, NULL);
        if (error == 0) {
            return 0;
        }
        (void)pthread_cond_destroy(&finder->queued);
    }
    (void)pthread_cond_destroy(&finder->ended);
    return error;
}

firn_status firni_finder_init(firn_prefix *prefix, firn_error *err)
{
    firni_finder *finder = firni_calloc(prefix->env, 1, sizeof *finder);
    if (finder == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for lookups of the RAM tier");
    }
    *finder = (firni_finder){ .env = prefix->env,
                              .tier = prefix->options.tier,
                              .prefix = prefix,
                              .n_logits = prefix->options.n_logits,
                              .object_ns_max = prefix->options.restore_deadline_ns };
    if (!prefix->options.restore_always && finder->object_ns_max > OBJECT_NS_MAX) {
        finder->object_ns_max = OBJECT_NS_MAX;
    }
    int error = init_locks(finder);
    if (error != 0) {
        firni_free(prefix->env, finder);
        return firni_fail_os(err, error, "cannot create the lookup queue of the RAM tier");
    }
    error = pthread_create(&finder->thread, NULL, finder_main, finder);
    if (error != 0) {
        finder_destroy(finder);
        return firni_fail_os(err, error, "cannot start the lookup thread of the RAM tier");
    }
    prefix->finder = finder;
    return FIRN_OK;
}

/* Waits for the running lookup; false: its time is up. Posting an answer takes no time that needs a bound. */
static bool wait_for_end_locked(firni_finder *finder, uint64_t bound_ns)
{
    const struct timespec until = firni_condition_deadline(bound_ns);
    int error = 0;
    while (finder->running != NULL && (error != ETIMEDOUT || finder->is_telling)) {
        error = finder->is_telling ? pthread_cond_wait(&finder->ended, &finder->mutex)
                                   : pthread_cond_timedwait(&finder->ended, &finder->mutex, &until);
    }
    return finder->running == NULL;
}

void firni_finder_deinit(firn_prefix *prefix)
{
    firni_finder *finder = prefix->finder;
    if (finder == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&finder->mutex);
    assert(finder->head == NULL); /* nobody waits: what had not begun was recalled */
    finder->stopping = true;
    (void)pthread_cond_signal(&finder->queued);
    const bool has_ended = wait_for_end_locked(finder, prefix->options.restore_deadline_ns);
    firni_find *left_behind = has_ended ? NULL : finder->running;
    const pthread_t thread = finder->thread;
    if (left_behind != NULL) {
        unlink_find(prefix, left_behind); /* while it is ours: the thread frees it as soon as it is alone */
    }
    finder->is_alone = !has_ended;
    (void)pthread_mutex_unlock(&finder->mutex);
    if (has_ended) {
        (void)pthread_join(thread, NULL);
        finder_destroy(finder);
    } else {
        (void)pthread_detach(thread);
        firni_log(prefix->env, FIRN_LOG_ERROR, "a lookup in the %s tier has not ended; its thread is left behind",
                  prefix->options.tier->ops->name);
    }
    prefix->finder = NULL;
}
