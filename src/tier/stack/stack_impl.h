/*
 * stack: one tier over another as a firn_tier. This header is the map of the folder.
 *
 *      stack_tier.c      creation, end, statistics, the table of operations
 *      stack_lower.c     calls to the lower tier that are waited for with a bound
 *      stack_find.c      lookups in one or both; handles
 *      stack_restore.c   restores from where the handle is, and from the lower when the upper fails
 *      stack_carry.c     state that outlives the call that brought it
 *      stack_scratch.c   memory for state between the tiers
 *      stack_promote.c   from the lower into the upper, behind the caller's back
 *      stack_store.c     stores: the upper, else the lower
 *      stack_list.c      which paths the lower still lacks
 *      stack_resume.c    what a former process had not copied
 *      stack_copy.c      from the upper into the lower, when there is time; flushing
 *      stack_keep.c      what is kept by name in both
 *      stack_listing.c   lists of names from both
 *
 * Locks: `mutex` alone, for a few instructions; no call to either tier is made under it, so that the locks of the tiers
 * are neither above nor below it.
 *
 * A call to the lower may never return. Threads that make one hold nothing of the upper meanwhile, neither a handle nor
 * a lock, so the upper can be used on, and taken down, without them.
 */
#ifndef FIRNI_STACK_IMPL_H
#define FIRNI_STACK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base_impl.h"
#include "firn/keep.h"
#include "firn/stack.h"

typedef struct firni_stacked firni_stacked;

/* ---- stack_carry.c ----------------------------------------------------------------------------------------------- */

/* A copy of state whose blocks are shared with the original. */
typedef struct firni_carried {
    const firn_env *env;
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    firn_cache **caches;
    uint32_t n_caches;
    firn_attachment *attachments;
    uint32_t n_attachments;
    int priority;
    uint64_t n_bytes;            /* of the pool, shared or not */
    struct firni_carried *next;  /* in a queue */
} firni_carried;

/* NULL: no memory. Nothing of `input` is needed afterwards. */
firni_carried *firni_carried_create(const firn_env *env, const firn_store_input *input);
/* Gives it blocks of another pool, so that the original's are free. False: no memory, and it shares some still. */
bool firni_carried_move(firni_carried *carried, firn_pool *pool);
void firni_carried_destroy(firni_carried *carried); /* accepts NULL */
firn_store_input firni_carried_input(const firni_carried *carried);
uint64_t firni_input_bytes(const firn_store_input *input);
/* Deep copies; NULL with *ok false without memory. */
firn_attachment *firni_attachments_copy(const firn_env *env, const firn_attachment *from, uint32_t n, bool *ok);
/* NULL: no memory; also for no tokens at all there is something. */
firn_token *firni_tokens_copy(const firn_env *env, const firn_token *tokens, uint32_t n_tokens);

/* ---- stack_scratch.c --------------------------------------------------------------------------------------------- */

/* A pool that is there while somebody uses it. Guarded by the stack's mutex. */
typedef struct firni_scratch {
    firn_pool *pool;
    uint64_t budget_bytes;
    uint32_t n_users;
} firni_scratch;

firn_pool *firni_scratch_enter(firni_stacked *stacked, firni_scratch *scratch); /* NULL: no memory */
void firni_scratch_leave(firni_stacked *stacked, firni_scratch *scratch);
void firni_scratch_end(firni_scratch *scratch); /* nobody uses it, and the tiers have gone */
/* A serial cache of the same bits with blocks of another pool; NULL: no memory. */
firn_cache *firni_cache_copy(const firn_env *env, const firn_cache *from, firn_pool *pool);

/* ---- stack_list.c ------------------------------------------------------------------------------------------------ */

/* A path that the lower may lack. */
typedef struct firni_copy {
    struct firni_copy *next;
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    uint64_t n_bytes;       /* what its state takes, at most */
    int priority;
    bool has_attachments;   /* the lower's may be older, or missing, also where it has the tokens */
    bool is_whole;          /* what can be resumed of it includes each shorter prefix */
    char *pin;              /* to be pinned below under this name; NULL: not */
    uint64_t until_wall_ns;
    bool is_resumed;        /* it is looked at again after a start, and need not be above any more */
    bool is_unpinned;       /* the pin was removed while this was being copied */
} firni_copy;

/* Guarded by the stack's mutex. */
typedef struct firni_copy_list {
    firni_copy *first, *last; /* the coldest first */
    uint32_t n;
    uint64_t n_tokens, n_bytes;
} firni_copy_list;

/* A copy of it with memory of its own; NULL: none. */
firni_copy *firni_copy_create(const firn_env *env, const firni_copy *from);
void firni_copy_destroy(const firn_env *env, firni_copy *copy); /* accepts NULL */
/* Appends the copy, whose path takes the place of those that it makes needless. */
void firni_copy_append_locked(firni_stacked *stacked, firni_copy *copy);
/* Puts one back that could not be copied. */
void firni_copy_return_locked(firni_stacked *stacked, firni_copy *copy);
/* The next of the lowest priority, taken out; NULL: none waits. */
firni_copy *firni_copy_take_locked(firni_stacked *stacked);
/* Takes those of one namespace out that lie on this path and are not to be pinned. */
void firni_copy_forget(firni_stacked *stacked, const char *ns, const firn_token *tokens, uint32_t n_tokens);
bool firni_copy_unpin(firni_stacked *stacked, const char *name); /* true: it was waiting to be pinned */

/* ---- the stack --------------------------------------------------------------------------------------------------- */

struct firni_stacked {
    firn_tier tier; /* first */
    const firn_env *env;
    firn_stack_options options; /* with the defaults filled in */
    firn_tier *upper, *lower;
    pthread_t promoter, copier;
    bool has_promoter, has_copier;
    pthread_mutex_t mutex;
    pthread_cond_t changed;     /* of anything below; timed by the monotonic clock */
    /* All guarded by mutex. */
    bool is_stopping;
    firn_stack_stats counts;    /* without the tiers' own */
    firn_tier_stats own;        /* hits, misses, stores: as the stack's callers see them */
    firn_tier_stats lower_last; /* as it was when it last answered */
    uint64_t used_ns;           /* when the stack was last used */
    /* the lower */
    uint32_t n_below;           /* bounded calls inside it */
    uint32_t n_stuck;           /* of these, nobody waits for */
    uint64_t rest_until_ns, rest_ns;
    bool is_lower_dirty;        /* something was stored there since its last flush that was durable */
    /* the upper */
    uint64_t upper_rest_until_ns; /* it has refused a store: nothing is promoted before */
    uint64_t upper_budget_bytes, upper_physical_bytes;
    uint32_t n_restoring;       /* asynchronous restores that are not answered */
    /* promotion */
    firni_carried *promote_first, *promote_last;
    uint32_t n_promoting;
    firni_scratch promote_scratch, copy_scratch;
    bool is_promoter_done, is_promoter_above; /* its thread has ended; it is inside the upper */
    /* copying */
    firni_copy_list list;
    firni_copy *copying;        /* not in the list */
    uint32_t n_replacing;       /* stores that the copier's reading is in the way of: it reads nothing new meanwhile */
    uint32_t n_flushing;        /* callers that wait for the list to be empty */
    uint64_t pause_until_ns, pause_ns; /* after the lower, the upper or the pool refused */
    uint32_t n_refusals;        /* in a row */
    bool is_copier_slow;        /* a store has waited in vain, and nothing was copied since */
    bool is_copier_done, is_copier_above;
    bool has_resumed;           /* the copier has looked at what the upper knows by name */
};

firni_stacked *firni_stacked_of(firn_tier *tier);
/* Waits for a change, no longer than ns; the mutex is held. */
void firni_stacked_wait_locked(firni_stacked *stacked, uint64_t ns);
void firni_stacked_note_use(firni_stacked *stacked);
/* A failure of the tier, not of what was asked: another tier may do better. */
bool firni_is_fault(firn_reason reason);

/* ---- stack_lower.c ----------------------------------------------------------------------------------------------- */

/* One call to the lower. The first member of what has its arguments, as copies, and its results. */
typedef struct firni_below {
    firni_stacked *stacked;
    void (*work)(struct firni_below *call); /* on a thread that may be left behind with it */
    void (*drop)(struct firni_below *call); /* frees it, with results that nobody has taken */
    bool has_ended, is_abandoned;           /* guarded by the stack's mutex */
} firni_below;

/* Makes the call and waits for its end. True: it has come back, and is the caller's to drop. False: the lower is not
 * asked now, or has not answered in time; the call is gone. */
bool firni_below_run(firni_stacked *stacked, firni_below *call, uint64_t bound_ns);
bool firni_below_may_ask(firni_stacked *stacked);
/* The lower has failed: it is not asked for a while. */
void firni_below_rest(firni_stacked *stacked);
void firni_below_well(firni_stacked *stacked);

/* ---- stack_find.c ------------------------------------------------------------------------------------------------ */

typedef struct firni_stacked_handle {
    firni_stacked *stacked;
    atomic_uint refs;           /* the caller, restores under way */
    firn_tier *from;            /* which of the two */
    firn_tier_handle *handle;   /* its own; NULL once released */
    char *ns, *key;             /* key: of an object; else NULL */
    firn_token *tokens;
    uint32_t n_tokens;
} firni_stacked_handle;

firn_match firni_stacked_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns);
firn_match firni_stacked_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns);
firn_tier_handle *firni_stacked_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason);
void firni_stacked_release(firn_tier *tier, firn_tier_handle *handle);
void firni_stacked_handle_unref(firni_stacked_handle *handle);
/* The lower's handle for exactly these tokens, or for the object of this key; NULL: it has none, or does not say. */
firn_tier_handle *firni_below_find_exact(firni_stacked *stacked, const firni_stacked_handle *of, uint32_t n_tokens,
                                         uint64_t bound_ns);

/* ---- stack_restore.c --------------------------------------------------------------------------------------------- */

firn_reason firni_stacked_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out);
firn_reason firni_stacked_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool, firn_restored *out);
firn_status firni_stacked_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                        uint64_t deadline_ns, firn_restore_done done, void *ctx, firn_error *err);
firn_status firni_stacked_restore_request(firn_tier *tier, firn_tier_handle *handle,
                                          const firn_restore_request *request, firn_error *err);
firn_status firni_stacked_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                               firn_restore_done done, void *ctx, firn_error *err);

/* ---- stack_promote.c --------------------------------------------------------------------------------------------- */

/* What may be promoted of a restore, before it is handed over; NULL: nothing (counted). */
firni_carried *firni_promotion_create(firni_stacked *stacked, const char *ns, const firn_restored *restored);
void firni_promotion_start(firni_stacked *stacked, firni_carried *carried); /* accepts NULL */
void *firni_promoter_main(void *ctx);

/* ---- stack_store.c ----------------------------------------------------------------------------------------------- */

bool firni_stacked_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason);
/* After the upper was given something: why it refused, or NONE, and how full it is now. */
void firni_stacked_note_upper(firni_stacked *stacked, firn_reason reason);

/* ---- stack_copy.c ------------------------------------------------------------------------------------------------ */

/* Notes that the upper has this and the lower may not. pin: see firni_copy; NULL: none. */
void firni_copy_note(firni_stacked *stacked, const firn_store_input *input, const char *pin, uint64_t until_wall_ns);
/* Before the upper is given more: waits, with a bound, while too much of it has not been copied. */
void firni_copy_make_way(firni_stacked *stacked);
void *firni_copier_main(void *ctx);
/* stack_resume.c: notes what the upper knows by name, in the beginning. */
void firni_copy_resume(firni_stacked *stacked);
firn_flush_report firni_stacked_flush(firn_tier *tier, uint64_t bound_ns);

/* ---- stack_keep.c, stack_listing.c ------------------------------------------------------------------------------- */

extern const firn_keep_ops firni_stacked_keep;

firn_status firni_stacked_each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx,
                                   firn_error *err);
firn_status firni_stacked_each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session),
                                       void *ctx, firn_error *err);
firn_status firni_stacked_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                      firn_error *err);

#endif
