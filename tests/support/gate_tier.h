/*
 * A tier in front of another that can refuse, fail and hang, call by call. What passes is the other tier's answer.
 *
 * Everything is static inline, because only some test programs link the cache library. Knobs and counters are under
 * the gate's mutex: use gate_set() and gate_get() while other threads use the tier.
 */
#ifndef FIRN_TESTS_GATE_TIER_H
#define FIRN_TESTS_GATE_TIER_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "firn/keep.h"
#include "support/support.h"

typedef enum gate_call {
    GATE_FIND, GATE_RESTORE, GATE_STORE, GATE_FLUSH, GATE_STATS, GATE_KEEP, GATE_CALLS
} gate_call;

typedef struct gate_tier {
    firn_tier tier; /* first */
    firn_tier *inner;
    bool is_borrowed; /* `inner` is somebody else's */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool hang[GATE_CALLS];            /* until it is false again */
    firn_reason refuse[GATE_CALLS];   /* not NONE: the answer */
    bool show_then_fail;              /* with refuse[RESTORE]: shows caches in layer order before it fails */
    bool fake_stats;
    firn_tier_stats stats;            /* with fake_stats: the answer */
    uint32_t n[GATE_CALLS], n_inside[GATE_CALLS];
} gate_tier;

#define gate_set(gate, knob, value)                                                                                   \
    do {                                                                                                              \
        pthread_mutex_lock(&(gate)->mutex);                                                                           \
        (gate)->knob = (value);                                                                                       \
        pthread_cond_broadcast(&(gate)->changed);                                                                     \
        pthread_mutex_unlock(&(gate)->mutex);                                                                         \
    } while (0)

static inline uint32_t gate_get(gate_tier *gate, const uint32_t *counter)
{
    pthread_mutex_lock(&gate->mutex);
    const uint32_t value = *counter;
    pthread_mutex_unlock(&gate->mutex);
    return value;
}

/* Passes the gate; returns what the call is to be answered with, or NONE. */
static inline firn_reason gate_enter(gate_tier *gate, gate_call call)
{
    pthread_mutex_lock(&gate->mutex);
    gate->n[call]++;
    gate->n_inside[call]++;
    pthread_cond_broadcast(&gate->changed);
    while (gate->hang[call]) {
        pthread_cond_wait(&gate->changed, &gate->mutex);
    }
    gate->n_inside[call]--;
    const firn_reason reason = gate->refuse[call];
    pthread_mutex_unlock(&gate->mutex);
    return reason;
}

/* Waits until a call of this kind hangs inside. */
static inline void gate_wait_inside(gate_tier *gate, gate_call call)
{
    pthread_mutex_lock(&gate->mutex);
    while (gate->n_inside[call] == 0) {
        pthread_cond_wait(&gate->changed, &gate->mutex);
    }
    pthread_mutex_unlock(&gate->mutex);
}

static inline gate_tier *gate_of(firn_tier *tier)
{
    return (gate_tier *)tier;
}

static inline firn_match gate_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_FIND);
    return reason != FIRN_REASON_NONE ? (firn_match){ .reason = reason }
                                      : firn_tier_find(gate_of(tier)->inner, prompt, n_tokens, ns);
}

static inline firn_match gate_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_FIND);
    return reason != FIRN_REASON_NONE ? (firn_match){ .reason = reason }
                                      : firn_tier_find_exact(gate_of(tier)->inner, tokens, n_tokens, ns);
}

static inline firn_reason gate_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_RESTORE);
    return reason != FIRN_REASON_NONE ? reason : firn_tier_restore(gate_of(tier)->inner, handle, n_tokens, out);
}

static inline firn_reason gate_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool,
                                            firn_restored *out)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_RESTORE);
    return reason != FIRN_REASON_NONE ? reason : firn_tier_restore_into(gate_of(tier)->inner, handle, pool, out);
}

static inline firn_status gate_restore_request(firn_tier *tier, firn_tier_handle *handle,
                                               const firn_restore_request *request, firn_error *err)
{
    gate_tier *gate = gate_of(tier);
    const firn_reason reason = gate_enter(gate, GATE_RESTORE);
    if (reason == FIRN_REASON_NONE) {
        return firn_tier_restore_request(gate->inner, handle, request, err);
    }
    if (gate->show_then_fail && request->progress != NULL) {
        firn_cache *none = NULL;
        const firn_restore_progress progress = { .caches = &none, .n_caches = 1 };
        request->progress(request->ctx, &progress);
    }
    request->done(request->ctx, NULL, reason);
    return FIRN_OK;
}

static inline firn_status gate_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                             uint64_t deadline_ns, firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_restore_request request = {
        .n_tokens = n_tokens, .deadline_ns = deadline_ns, .done = done, .ctx = ctx
    };
    return gate_restore_request(tier, handle, &request, err);
}

static inline firn_status gate_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                                    firn_restore_done done, void *ctx, firn_error *err)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_RESTORE);
    if (reason == FIRN_REASON_NONE) {
        return firn_tier_restore_object_async(gate_of(tier)->inner, handle, deadline_ns, done, ctx, err);
    }
    done(ctx, NULL, reason);
    return FIRN_OK;
}

static inline bool gate_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    *reason = gate_enter(gate_of(tier), GATE_STORE);
    return *reason == FIRN_REASON_NONE && firn_tier_store(gate_of(tier)->inner, input, reason);
}

static inline void gate_release(firn_tier *tier, firn_tier_handle *handle)
{
    firn_tier_release(gate_of(tier)->inner, handle);
}

static inline firn_flush_report gate_flush(firn_tier *tier, uint64_t bound_ns)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_FLUSH);
    return reason != FIRN_REASON_NONE ? (firn_flush_report){ .durable = false }
                                      : firn_tier_flush(gate_of(tier)->inner, bound_ns);
}

static inline void gate_get_stats(firn_tier *tier, firn_tier_stats *out)
{
    gate_tier *gate = gate_of(tier);
    const firn_reason reason = gate_enter(gate, GATE_STATS);
    firn_tier_get_stats(gate->inner, out);
    pthread_mutex_lock(&gate->mutex);
    *out = gate->fake_stats ? gate->stats : *out;
    pthread_mutex_unlock(&gate->mutex);
    out->state = reason != FIRN_REASON_NONE ? reason : out->state;
}

static inline const firn_schema *gate_schema(firn_tier *tier)
{
    return firn_tier_schema(gate_of(tier)->inner);
}

static inline firn_status gate_keep(firn_tier *tier, firn_error *err)
{
    const firn_reason reason = gate_enter(gate_of(tier), GATE_KEEP);
    if (reason == FIRN_REASON_NONE) {
        return FIRN_OK;
    }
    if (err != NULL) {
        (void)snprintf(err->message, sizeof err->message, "the gate says %s", firn_reason_name(reason));
    }
    return FIRN_ERR_IO;
}

static inline firn_status gate_pin(firn_tier *tier, const firn_pin *pin, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_pin(gate_of(tier)->inner, pin, err) : status;
}

static inline firn_status gate_unpin(firn_tier *tier, const char *name, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_unpin(gate_of(tier)->inner, name, err) : status;
}

static inline firn_status gate_each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx,
                                        firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_each_pin(gate_of(tier)->inner, visit, ctx, err) : status;
}

static inline firn_status gate_put_session(firn_tier *tier, const firn_session *session, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_put_session(gate_of(tier)->inner, session, err) : status;
}

static inline firn_status gate_get_session(firn_tier *tier, const char *ns, const char *id,
                                           void (*found)(void *ctx, const firn_session *session), void *ctx,
                                           firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_get_session(gate_of(tier)->inner, ns, id, found, ctx, err) : status;
}

static inline firn_status gate_remove_session(firn_tier *tier, const char *ns, const char *id, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_remove_session(gate_of(tier)->inner, ns, id, err) : status;
}

static inline firn_status gate_each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session),
                                            void *ctx, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_each_session(gate_of(tier)->inner, visit, ctx, err) : status;
}

static inline bool gate_put_object(firn_tier *tier, const firn_object *object, firn_reason *reason)
{
    *reason = gate_enter(gate_of(tier), GATE_KEEP);
    return *reason == FIRN_REASON_NONE && firn_tier_put_object(gate_of(tier)->inner, object, reason);
}

static inline firn_tier_handle *gate_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason)
{
    *reason = gate_enter(gate_of(tier), GATE_KEEP);
    return *reason == FIRN_REASON_NONE ? firn_tier_find_object(gate_of(tier)->inner, ns, key, reason) : NULL;
}

static inline firn_status gate_remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_remove_object(gate_of(tier)->inner, ns, key, err) : status;
}

static inline firn_status gate_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object),
                                           void *ctx, firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_each_object(gate_of(tier)->inner, visit, ctx, err) : status;
}

static inline firn_status gate_forget(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                                      firn_error *err)
{
    const firn_status status = gate_keep(tier, err);
    return status == FIRN_OK ? firn_tier_forget(gate_of(tier)->inner, ns, tokens, n_tokens, err) : status;
}

static inline void gate_destroy(firn_tier *tier)
{
    gate_tier *gate = gate_of(tier);
    firn_tier_destroy(gate->is_borrowed ? NULL : gate->inner);
    pthread_mutex_destroy(&gate->mutex);
    pthread_cond_destroy(&gate->changed);
    free(gate);
}

/* Never NULL. Takes `inner` over; firn_tier_destroy(&gate->tier) destroys both. */
static inline gate_tier *gate_create(firn_tier *inner)
{
    static const firn_keep_ops keep = {
        .pin = gate_pin,
        .unpin = gate_unpin,
        .each_pin = gate_each_pin,
        .put_session = gate_put_session,
        .get_session = gate_get_session,
        .remove_session = gate_remove_session,
        .each_session = gate_each_session,
        .put_object = gate_put_object,
        .find_object = gate_find_object,
        .remove_object = gate_remove_object,
        .each_object = gate_each_object,
        .forget = gate_forget,
    };
    static const firn_tier_ops ops = {
        .name = "gate",
        .find = gate_find,
        .find_exact = gate_find_exact,
        .restore = gate_restore,
        .restore_async = gate_restore_async,
        .restore_request = gate_restore_request,
        .restore_into = gate_restore_into,
        .restore_object_async = gate_restore_object_async,
        .store = gate_store,
        .release = gate_release,
        .flush = gate_flush,
        .get_stats = gate_get_stats,
        .schema = gate_schema,
        .keep = &keep,
        .destroy = gate_destroy,
    };
    gate_tier *gate = calloc(1, sizeof *gate);
    assert_non_null(gate);
    gate->tier.ops = &ops;
    gate->inner = inner;
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->changed, NULL);
    return gate;
}

#endif
