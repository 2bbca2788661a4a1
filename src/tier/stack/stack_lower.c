/*
 * Calls to the lower tier that are waited for with a bound. Owns who waits, who has left, and when the lower is asked
 * again; not what is asked.
 *
 *      caller: run --> a thread of its own: work(call) --in time--> caller reads the results, drops the call
 *                 '-- gives up: the call is the thread's, which drops it whenever the lower comes back
 *
 * A lower that hangs costs one bound, not one for each caller: while a call that was given up has not come back, and a
 * pause long afterwards, nobody asks. The pause is doubled each time and forgotten when a call succeeds.
 */
#include <assert.h>

#include "base/bounded.h"
#include "tier/stack/stack_impl.h"

#define REST_NS_MIN UINT64_C(1000000000)
#define REST_NS_MAX UINT64_C(30000000000)

static bool may_ask_locked(const firni_stacked *stacked)
{
    return !stacked->is_stopping && stacked->n_stuck == 0 && firni_now_ns(stacked->env) >= stacked->rest_until_ns;
}

bool firni_below_may_ask(firni_stacked *stacked)
{
    pthread_mutex_lock(&stacked->mutex);
    const bool may_ask = may_ask_locked(stacked);
    pthread_mutex_unlock(&stacked->mutex);
    return may_ask;
}

static void rest_locked(firni_stacked *stacked)
{
    stacked->rest_ns = stacked->rest_ns == 0                  ? REST_NS_MIN
                       : stacked->rest_ns < REST_NS_MAX / 2   ? 2 * stacked->rest_ns
                                                              : REST_NS_MAX;
    stacked->rest_until_ns = firni_now_ns(stacked->env) + stacked->rest_ns;
}

void firni_below_rest(firni_stacked *stacked)
{
    pthread_mutex_lock(&stacked->mutex);
    rest_locked(stacked);
    pthread_mutex_unlock(&stacked->mutex);
}

void firni_below_well(firni_stacked *stacked)
{
    pthread_mutex_lock(&stacked->mutex);
    stacked->rest_ns = 0;
    stacked->rest_until_ns = 0;
    pthread_mutex_unlock(&stacked->mutex);
}

static void run(void *ctx)
{
    firni_below *call = ctx;
    firni_stacked *stacked = call->stacked;
    call->work(call);
    pthread_mutex_lock(&stacked->mutex);
    call->has_ended = true;
    const bool is_mine = call->is_abandoned;
    if (is_mine) {
        /* Its results may be promises of the lower: they are given back before the lower may go. */
        pthread_mutex_unlock(&stacked->mutex);
        call->drop(call);
        pthread_mutex_lock(&stacked->mutex);
        stacked->n_stuck--;
        stacked->rest_until_ns = 0;
    }
    stacked->n_below--;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
}

bool firni_below_run(firni_stacked *stacked, firni_below *call, uint64_t bound_ns)
{
    assert(call->work != NULL && call->drop != NULL);
    call->stacked = stacked;
    pthread_mutex_lock(&stacked->mutex);
    const bool may_ask = may_ask_locked(stacked);
    stacked->n_below += may_ask;
    pthread_mutex_unlock(&stacked->mutex);
    if (!may_ask) {
        call->drop(call);
        return false;
    }
    (void)firni_run_bounded(stacked->env, bound_ns, run, call);
    /* It may have come back between the end of the waiting and here: then it has made it. */
    pthread_mutex_lock(&stacked->mutex);
    const bool has_ended = call->has_ended;
    if (!has_ended) {
        call->is_abandoned = true;
        stacked->n_stuck++;
        stacked->counts.n_lower_late++;
        rest_locked(stacked);
    }
    pthread_mutex_unlock(&stacked->mutex);
    return has_ended;
}
