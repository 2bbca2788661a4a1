/*
 * What other threads may do to the engine: submit and cancel. Owns the inbox, the list of live sequences and the limits
 * on what is accepted; hands everything else to the engine thread.
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

enum { SESSION_BYTES_MAX = 128, REQUEST_ID_BYTES_MAX = 64 };

void firni_engine_wake(void *ctx)
{
    firn_engine *engine = ctx;
    (void)pthread_mutex_lock(&engine->mutex);
    engine->woken = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->mutex);
}

/* How many tokens the request may generate: what it asked for, within the context and, when it asked for nothing, the
 * KV budget. Refuses what can never run. */
static firn_status resolve_max_tokens(const firn_engine *engine, const firn_request *request, uint32_t *out,
                                      firn_error *err)
{
    const uint32_t ctx_max = engine->options.ctx_tokens_max;
    if (request->n_prompt >= ctx_max) {
        return firni_fail(err, FIRN_ERR_CAPACITY,
                          "the prompt has %u tokens; the context holds %u, of which at least one is for the answer",
                          request->n_prompt, ctx_max);
    }
    if (request->max_tokens > ctx_max - request->n_prompt) {
        return firni_fail(err, FIRN_ERR_CAPACITY, "%u prompt tokens and %u to generate are more than the context of %u",
                          request->n_prompt, request->max_tokens, ctx_max);
    }
    firn_pool_stats pool;
    firn_pool_get_stats(engine->options.pool, &pool);
    const uint32_t n_asked = request->only_prefill ? 1 : request->max_tokens;
    uint32_t max_tokens = n_asked != 0 ? n_asked : ctx_max - request->n_prompt;
    while (n_asked == 0 && max_tokens > 1 &&
           firni_request_bytes(engine, request->n_prompt + max_tokens) > pool.budget_bytes) {
        max_tokens /= 2;
    }
    const uint64_t need_bytes = firni_request_bytes(engine, request->n_prompt + max_tokens);
    if (need_bytes > pool.budget_bytes) {
        return firni_fail(err, FIRN_ERR_CAPACITY,
                          "%u prompt tokens and %u to generate need %llu bytes of KV state; the budget is %llu bytes",
                          request->n_prompt, max_tokens, (unsigned long long)need_bytes,
                          (unsigned long long)pool.budget_bytes);
    }
    *out = max_tokens;
    return FIRN_OK;
}

static firn_status check_request(const firn_engine *engine, const firn_request *request, firn_error *err)
{
    assert(request->on_event != NULL);
    if (request->n_prompt == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "the prompt is empty: it must have at least one token");
    }
    for (uint32_t i = 0; i < request->n_prompt; i++) {
        if (request->prompt[i] >= engine->n_vocab) {
            return firni_fail(err, FIRN_ERR_INVALID, "prompt token %u is %u; the vocabulary has %u", i,
                              request->prompt[i], engine->n_vocab);
        }
    }
    if (request->n_logprobs > FIRN_LOGPROBS_MAX + 1) {
        return firni_fail(err, FIRN_ERR_INVALID, "logprobs: at most %d alternatives", FIRN_LOGPROBS_MAX);
    }
    if (request->n_stops > 16) {
        return firni_fail(err, FIRN_ERR_INVALID, "stop: at most 16 strings, %u were given", request->n_stops);
    }
    if (request->ns != NULL && strlen(request->ns) > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "cache namespace: longer than %d bytes", FIRN_NAMESPACE_BYTES_MAX);
    }
    if (request->cache.store > FIRN_STORE_NONE || request->cache.priority < FIRN_PRIORITY_MIN ||
        request->cache.priority > FIRN_PRIORITY_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "cache: store %d or priority %d is out of range",
                          (int)request->cache.store, request->cache.priority);
    }
    if (request->pin != NULL && (!request->only_prefill || request->pin[0] == '\0' ||
                                 strlen(request->pin) > FIRN_KEEP_NAME_BYTES_MAX)) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "a pin needs a name of at most %d bytes, and a request that only reads",
                          FIRN_KEEP_NAME_BYTES_MAX);
    }
    if (request->session != NULL && (request->session[0] == '\0' || strlen(request->session) > SESSION_BYTES_MAX)) {
        return firni_fail(err, FIRN_ERR_INVALID, "session: 1 to %d bytes", SESSION_BYTES_MAX);
    }
    if (request->request_id != NULL && (request->request_id[0] == '\0' ||
                                        strlen(request->request_id) > REQUEST_ID_BYTES_MAX ||
                                        strchr(request->request_id, FIRN_NAMESPACE_BELOW) != NULL)) {
        return firni_fail(err, FIRN_ERR_INVALID, "request id: 1 to %d bytes without U+001F", REQUEST_ID_BYTES_MAX);
    }
    return firn_sampling_check(&request->sampling, engine->n_vocab, err);
}

firn_status firn_engine_submit(firn_engine *engine, const firn_request *request, uint64_t *id, firn_error *err)
{
    *id = 0;
    uint32_t max_tokens = 0;
    firn_status status = check_request(engine, request, err);
    if (status == FIRN_OK) {
        status = resolve_max_tokens(engine, request, &max_tokens, err);
    }
    uint64_t new_id = 0;
    if (status == FIRN_OK) {
        /* A place in the queue is taken before the copy is made, so that a flood costs no memory. */
        (void)pthread_mutex_lock(&engine->mutex);
        if (engine->stopping) {
            status = firni_fail(err, FIRN_ERR_STATE, "the engine is stopping");
        } else if (engine->n_pending >= engine->options.queue_max) {
            status = firni_fail(err, FIRN_ERR_BUSY, "the queue is full: %u requests are waiting", engine->n_pending);
        } else {
            engine->n_pending++;
            new_id = ++engine->next_id;
        }
        (void)pthread_mutex_unlock(&engine->mutex);
    }
    firni_sequence *sequence = NULL;
    if (status == FIRN_OK) {
        status = firni_sequence_create(engine, request, max_tokens, new_id, &sequence, err);
    }
    (void)pthread_mutex_lock(&engine->mutex);
    if (status == FIRN_OK && engine->stopping) {
        /* The thread may already have emptied the inbox for the last time. */
        status = firni_fail(err, FIRN_ERR_STATE, "the engine is stopping");
    }
    if (status == FIRN_OK) {
        sequence->live_next = engine->live;
        engine->live = sequence;
        if (engine->inbox_tail == NULL) {
            engine->inbox_head = sequence;
        } else {
            engine->inbox_tail->next = sequence;
        }
        engine->inbox_tail = sequence;
        *id = new_id;
        engine->published.n_submitted++;
        engine->woken = true;
        (void)pthread_cond_signal(&engine->wake);
    } else {
        if (new_id != 0) {
            engine->n_pending--;
        }
        engine->published.n_refused++;
    }
    (void)pthread_mutex_unlock(&engine->mutex);
    if (status != FIRN_OK) {
        firni_sequence_destroy(sequence);
    }
    return status;
}

void firn_engine_cancel(firn_engine *engine, uint64_t id)
{
    (void)pthread_mutex_lock(&engine->mutex);
    for (firni_sequence *sequence = engine->live; sequence != NULL; sequence = sequence->live_next) {
        if (sequence->id == id) {
            atomic_store(&sequence->cancelled, true);
            engine->woken = true;
            (void)pthread_cond_signal(&engine->wake);
            break;
        }
    }
    (void)pthread_mutex_unlock(&engine->mutex);
}

void firni_intake_drain(firn_engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    firni_sequence *head = engine->inbox_head;
    firni_sequence *tail = engine->inbox_tail;
    engine->inbox_head = engine->inbox_tail = NULL;
    (void)pthread_mutex_unlock(&engine->mutex);
    if (head == NULL) {
        return;
    }
    if (engine->waiting_tail == NULL) {
        engine->waiting_head = head;
    } else {
        engine->waiting_tail->next = head;
    }
    engine->waiting_tail = tail;
}

void firni_intake_forget(firn_engine *engine, firni_sequence *sequence)
{
    (void)pthread_mutex_lock(&engine->mutex);
    firni_sequence **link = &engine->live;
    while (*link != sequence) {
        assert(*link != NULL);
        link = &(*link)->live_next;
    }
    *link = sequence->live_next;
    (void)pthread_mutex_unlock(&engine->mutex);
    firni_sequence_destroy(sequence);
}
