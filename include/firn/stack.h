/*
 * A stack: one tier over another, such as a fast disk over a large one. A stack is a tier itself, so stacks stack.
 *
 *      find, restore     upper --has it all?--> yes: from the upper
 *                          '-- no: ask the lower too; the longer prefix wins
 *      store             into the upper; into the lower at once when the upper refuses
 *      promotion         what the lower gave --a bounded queue, a thread--> upper
 *      copying down      what the upper took --a bounded list, a thread--> lower
 *
 * What it promises, beyond what every tier does:
 *
 *  - A store is kept when the upper has it, to the upper's own durability. Later it is copied down: when the stack was
 *    idle for demote_idle_ns, or at once when the upper comes near its budget, so that what the upper evicts is
 *    below by then. Nothing of it waits in memory but its tokens: the state is read from the upper when its turn comes,
 *    into memory of the stack's own, so that requests keep what they were promised of the pool.
 *    Stores wait for the copying, store_wait_ns at most, when more than half of the upper's budget has not been copied.
 *    State that was evicted before it was copied is counted (n_lost).
 *  - What waits to be copied is forgotten with the process (not with a flush, which copies it): it stays in the upper,
 *    and goes down with the next store of a path that continues it. Pins and ends of sessions are looked at again when
 *    a stack begins.
 *  - A prefix comes from one of the two tiers whole, never from both in parts.
 *  - The lower may hang. Nobody waits for it longer than lower_deadline_ns, and nobody asks it again before it has
 *    answered, or before a pause that doubles up to 30 s. The upper serves meanwhile.
 *  - A restore that fails in the upper is tried in the lower, unless layers of it have been handed out already.
 *
 * What is kept by name (firn/keep.h) lives in the upper. Pins are repeated in the lower once their path has gone down,
 * objects at once, so that a lost upper does not take them along; sessions go to the lower only when the upper refuses
 * them. Reads ask the lower for what the upper lacks. Removals are made in both: one that the lower did not confirm is
 * an error, and can be repeated.
 *
 * Threads: as for every tier. The two threads of a stack never hold up a caller.
 */
#ifndef FIRN_STACK_H
#define FIRN_STACK_H

#include "firn/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All-zero but for the tiers means the defaults. */
typedef struct firn_stack_options {
    firn_tier *upper, *lower;      /* required, of one schema; the stack's from success on */
    uint64_t lower_deadline_ns;    /* of a lookup or a name in the lower; 0: 250 ms */
    uint64_t lower_store_ns;       /* of a store that the upper has refused; 0: 30 s */
    uint64_t demote_idle_ns;       /* the stack has been idle so long: copy down; 0: 1 s */
    uint64_t store_wait_ns;        /* see above; 0: 1 s */
    uint32_t copies_max;           /* paths that may wait to be copied; 0: 1024 */
    uint64_t copy_tokens_max;      /* tokens of all of them; 0: 16 million, 64 MiB. Beyond either the coldest is
                                    * dropped from the list, and counted */
    uint64_t copy_bytes_max;       /* of memory, beside the tiers' pool, for one path while it is copied; 0: 4 GiB.
                                    * Larger state is not copied */
    bool no_promotion;             /* what comes from the lower stays there alone */
    uint64_t promote_bytes_max;    /* of memory, beside the tiers' pool, held by state on its way up; 0: 256 MiB. What
                                    * would exceed it is not promoted, and counted */
    uint32_t promotions_max;       /* that may wait; 0: 16 */
    uint64_t stop_ns;              /* destroying waits no longer for a tier that hangs; 0: 5 s. Then the stack is left
                                    * behind with the tier that hangs, which is logged as an error */
} firn_stack_options;

typedef struct firn_stack_stats {
    firn_tier_stats upper, lower;  /* their own; the lower's are the last known while it does not answer */
    uint64_t n_hits_upper, n_hits_lower; /* lookups of the stack, by who gave the handle */
    uint64_t n_lower_finds;        /* lookups for which the lower was asked */
    uint64_t n_lower_skipped;      /* lookups that would have asked it, but it was hanging or resting */
    uint64_t n_lower_late;         /* calls of any kind that did not come back in time */
    uint64_t n_fallbacks;          /* restores that failed in the upper and came from the lower */
    uint64_t n_promoted, n_promotions_dropped, n_promotions_failed;
    uint64_t promoting_bytes;      /* held now */
    uint64_t n_stored_below;       /* stores that the upper refused and the lower took */
    uint64_t n_copies_waiting;
    uint64_t n_copied;             /* paths that are in the lower now */
    uint64_t n_copies_refused;     /* attempts that the lower refused; the path is tried again */
    uint64_t n_copies_dropped;     /* paths that left the list, or did not get into it: the upper alone has them */
    uint64_t n_lost;               /* paths that were evicted from the upper, or damaged, before they were copied */
    bool is_lower_resting;         /* it is not asked now */
} firn_stack_stats;

/* Puts one tier over the other. Errors: INVALID (a tier is missing, or both are one), SIGNATURE (they are of different
 * schemas, as far as they can tell: the message names the first field that differs, with both values), NO_MEMORY. On
 * failure the tiers stay the caller's. */
firn_status firn_stack_create(const firn_stack_options *options, const firn_env *env, firn_tier **out, firn_error *err);
/* False: the tier is no stack, and *out is zeroed. Thread-safe; waits for the lower as a lookup does. */
bool firn_stack_get_stats(firn_tier *tier, firn_stack_stats *out);

#ifdef __cplusplus
}
#endif
#endif
