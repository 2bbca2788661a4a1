/*
 * A tier that can be slow, hang, fail and lie: a dict_tier behind a thread of its own and a pool of its own.
 *
 * State crosses by copy, as it does on a real device: what is stored shares no memory with the tree, and what is
 * restored takes blocks from the tree's pool, which may refuse.
 *
 * Everything is static inline, because only some test programs link the cache library. Knobs and counters are set and
 * read under fault_tier_lock().
 */
#ifndef FIRN_TESTS_FAULT_TIER_H
#define FIRN_TESTS_FAULT_TIER_H

#include <time.h>

#include "support/dict_tier.h"

typedef enum fault_lie {
    FAULT_LIE_NONE,
    FAULT_LIE_TOKENS, /* state of other tokens than asked for */
    FAULT_LIE_COUNT,  /* one token less than asked for */
    FAULT_LIE_LAYER   /* one layer is not there */
} fault_lie;

typedef struct fault_tier {
    firn_tier tier; /* first */
    dict_tier *dict;
    firn_pool *own_pool; /* of the stored copies */
    firn_pool *pool;     /* restored blocks come from here */
    pthread_t reader;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping;
    /* knobs */
    bool hang_stores, hang_reads, hang_finds;
    uint64_t store_delay_ns, read_delay_ns, find_delay_ns;
    firn_status start_status;  /* not OK: restore_async refuses with it */
    firn_reason find_reason;   /* not NONE: find answers a miss with it */
    firn_reason read_reason;   /* not NONE: reads fail with it */
    fault_lie lie;
    firn_flush_report flush_report;
    /* counters */
    uint32_t n_waiting_reads;  /* queued for the reader thread */
    uint32_t n_storing;        /* stores inside */
    uint32_t n_finding, n_finds; /* lookups inside, and all of them */
    uint32_t n_store_calls, n_reads;
    uint32_t last_store_tokens;
} fault_tier;

/* What a restore's answer passes through on its way back. */
typedef struct fault_read {
    fault_tier *fault;
    firn_restore_done done;
    void *ctx;
} fault_read;

static inline void fault_tier_lock(fault_tier *fault)
{
    pthread_mutex_lock(&fault->mutex);
}

static inline void fault_tier_unlock(fault_tier *fault)
{
    pthread_cond_broadcast(&fault->changed);
    pthread_mutex_unlock(&fault->mutex);
}

/* Sets one knob: fault_tier_set(fault, hang_reads, true). */
#define fault_tier_set(fault, knob, value)                                                                            \
    do {                                                                                                              \
        fault_tier_lock(fault);                                                                                       \
        (fault)->knob = (value);                                                                                      \
        fault_tier_unlock(fault);                                                                                     \
    } while (0)

static inline uint32_t fault_tier_get(fault_tier *fault, const uint32_t *counter)
{
    fault_tier_lock(fault);
    const uint32_t value = *counter;
    fault_tier_unlock(fault);
    return value;
}

static inline firn_block *fault_copy_block(const firn_block *from, firn_pool *pool)
{
    firn_block *copy = NULL;
    if (from != NULL && firn_block_alloc(pool, firn_block_bytes(from), &copy, NULL) == FIRN_OK) {
        memcpy(firn_block_data(copy), firn_block_data(from), firn_block_bytes(from));
    }
    return copy;
}

/* A deep copy of a serial cache of any layout into another pool; NULL when that pool refuses. */
static inline firn_cache *fault_copy(const firn_cache *from, firn_pool *pool)
{
    firn_cache *copy = NULL;
    const firn_row_view view = firn_cache_view_row(from, 0);
    firn_block **blocks = calloc(view.n_blocks + 1u, sizeof *blocks);
    bool ok = firn_cache_create(firn_cache_get_options(from), pool, NULL, &copy, NULL) == FIRN_OK;
    for (uint32_t i = 0; i < view.n_blocks && ok; i++) {
        blocks[i] = fault_copy_block(view.blocks[i], pool);
        ok = blocks[i] != NULL;
    }
    firn_row_view copied = view;
    copied.blocks = blocks;
    copied.fixed = ok ? fault_copy_block(view.fixed, pool) : NULL;
    ok = ok && (copied.fixed == NULL) == (view.fixed == NULL) &&
         firn_cache_adopt_row(copy, &copied, NULL) == FIRN_OK;
    for (uint32_t i = 0; i < view.n_blocks; i++) {
        firn_block_release(blocks[i]);
    }
    firn_block_release(copied.fixed);
    free(blocks);
    if (!ok) {
        firn_cache_destroy(copy);
        copy = NULL;
    }
    return copy;
}

static inline void fault_nap(fault_tier *fault, const bool *hang, const uint64_t *delay_ns)
{
    fault_tier_lock(fault);
    while (*hang && !fault->stopping) {
        pthread_cond_wait(&fault->changed, &fault->mutex);
    }
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = (long)*delay_ns };
    fault_tier_unlock(fault);
    (void)nanosleep(&pause, NULL);
}

static inline firn_match fault_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    fault_tier *fault = (fault_tier *)tier;
    fault_tier_lock(fault);
    fault->n_finds++;
    fault->n_finding++;
    fault_tier_unlock(fault);
    fault_nap(fault, &fault->hang_finds, &fault->find_delay_ns);
    fault_tier_lock(fault);
    /* A tier that is going promises nothing any more. */
    const firn_reason reason = fault->stopping ? FIRN_REASON_GONE : fault->find_reason;
    fault_tier_unlock(fault);
    firn_match match = { .reason = reason };
    if (reason == FIRN_REASON_NONE) {
        match = firn_tier_find(&fault->dict->tier, prompt, n_tokens, ns);
    }
    fault_tier_lock(fault);
    fault->n_finding--;
    fault_tier_unlock(fault);
    return match;
}

static inline firn_reason fault_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                        firn_restored *out)
{
    (void)tier, (void)handle, (void)n_tokens, (void)out;
    return FIRN_REASON_DISABLED; /* the tree only reads asynchronously */
}

/* On the reader thread, with what the dictionary answered. */
static inline void fault_answer(void *ctx, firn_restored *restored, firn_reason reason)
{
    fault_read *read = ctx;
    fault_tier *fault = read->fault;
    fault_tier_lock(fault);
    const fault_lie lie = fault->lie;
    fault_tier_unlock(fault);
    for (uint32_t i = 0; restored != NULL && i < restored->n_caches; i++) {
        firn_cache *copy = fault_copy(restored->caches[i], fault->pool);
        firn_cache_destroy(restored->caches[i]);
        restored->caches[i] = copy;
        if (copy == NULL) {
            reason = FIRN_REASON_NO_MEMORY;
        } else {
            const firn_row_view view = firn_cache_view_row(copy, 0);
            restored->n_bytes_read += view.n_blocks * firn_cache_block_bytes(copy);
            restored->n_bytes_read += view.fixed != NULL ? firn_cache_fixed_bytes(copy) : 0;
        }
    }
    if (restored != NULL && reason != FIRN_REASON_NONE) {
        firn_restored_deinit(restored);
        restored = NULL;
    }
    if (restored != NULL && lie == FAULT_LIE_TOKENS) {
        restored->tokens[restored->n_tokens / 2]++;
    } else if (restored != NULL && lie == FAULT_LIE_COUNT) {
        restored->n_tokens--;
    } else if (restored != NULL && lie == FAULT_LIE_LAYER) {
        firn_cache_destroy(restored->caches[0]);
        restored->caches[0] = NULL;
    }
    read->done(read->ctx, restored, reason);
    free(read);
}

static inline void *fault_reader(void *ctx)
{
    fault_tier *fault = ctx;
    for (;;) {
        fault_tier_lock(fault);
        while (fault->n_waiting_reads == 0 && !fault->stopping) {
            pthread_cond_wait(&fault->changed, &fault->mutex);
        }
        const bool stop = fault->n_waiting_reads == 0;
        fault_tier_unlock(fault);
        if (stop) {
            return NULL;
        }
        fault_nap(fault, &fault->hang_reads, &fault->read_delay_ns);
        fault_tier_lock(fault);
        fault->n_waiting_reads--;
        fault->n_reads++;
        const firn_reason reason = fault->read_reason;
        fault_tier_unlock(fault);
        (void)dict_tier_complete(fault->dict, reason);
    }
}

static inline firn_status fault_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                              uint64_t deadline_ns, firn_restore_done done, void *ctx, firn_error *err)
{
    fault_tier *fault = (fault_tier *)tier;
    fault_tier_lock(fault);
    const firn_status status = fault->start_status;
    fault_tier_unlock(fault);
    if (status != FIRN_OK) {
        return status;
    }
    fault_read *read = calloc(1, sizeof *read);
    assert_non_null(read);
    *read = (fault_read){ .fault = fault, .done = done, .ctx = ctx };
    (void)firn_tier_restore_async(&fault->dict->tier, handle, n_tokens, deadline_ns, fault_answer, read, err);
    fault_tier_lock(fault);
    fault->n_waiting_reads++;
    fault_tier_unlock(fault);
    return FIRN_OK;
}

static inline bool fault_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    fault_tier *fault = (fault_tier *)tier;
    fault_tier_lock(fault);
    fault->n_storing++;
    fault->n_store_calls++;
    fault_tier_unlock(fault);
    fault_nap(fault, &fault->hang_stores, &fault->store_delay_ns);
    firn_cache **copies = calloc(input->n_caches, sizeof *copies);
    firn_store_input copied = *input;
    for (uint32_t i = 0; i < input->n_caches; i++) {
        copies[i] = fault_copy(input->caches[i], fault->own_pool);
    }
    copied.caches = (const firn_cache *const *)copies;
    const bool stored = firn_tier_store(&fault->dict->tier, &copied, reason);
    for (uint32_t i = 0; i < input->n_caches; i++) {
        firn_cache_destroy(copies[i]);
    }
    free(copies);
    fault_tier_lock(fault);
    fault->n_storing--;
    fault->last_store_tokens = input->n_tokens;
    fault_tier_unlock(fault);
    return stored;
}

static inline void fault_release(firn_tier *tier, firn_tier_handle *handle)
{
    firn_tier_release(&((fault_tier *)tier)->dict->tier, handle);
}

static inline firn_flush_report fault_flush(firn_tier *tier, uint64_t bound_ns)
{
    (void)bound_ns;
    return ((fault_tier *)tier)->flush_report;
}

static inline void fault_destroy(firn_tier *tier)
{
    fault_tier *fault = (fault_tier *)tier;
    fault_tier_set(fault, stopping, true);
    pthread_join(fault->reader, NULL);
    fault_tier_lock(fault);
    while (fault->n_finding > 0) { /* left behind by a tree */
        pthread_cond_wait(&fault->changed, &fault->mutex);
    }
    fault_tier_unlock(fault);
    firn_tier_destroy(&fault->dict->tier);
    firn_pool_destroy(fault->own_pool);
    pthread_mutex_destroy(&fault->mutex);
    pthread_cond_destroy(&fault->changed);
    free(fault);
}

/* Never NULL; `pool` is the tree's. Destroy with firn_tier_destroy(&fault->tier) before that pool. */
static inline fault_tier *fault_tier_create(firn_pool *pool)
{
    static const firn_tier_ops ops = {
        .name = "fault",
        .find = fault_find,
        .restore = fault_restore,
        .restore_async = fault_restore_async,
        .store = fault_store,
        .release = fault_release,
        .flush = fault_flush,
        .destroy = fault_destroy,
    };
    fault_tier *fault = calloc(1, sizeof *fault);
    assert_non_null(fault);
    fault->tier.ops = &ops;
    fault->pool = pool;
    const firn_pool_options options = { .budget_bytes = UINT64_C(1) << 30 };
    assert_ok(firn_pool_create(&options, NULL, &fault->own_pool, NULL));
    fault->dict = dict_tier_create(NULL);
    fault->dict->hold_async = true;
    fault->flush_report.durable = true;
    pthread_mutex_init(&fault->mutex, NULL);
    pthread_cond_init(&fault->changed, NULL);
    assert_int_equal(pthread_create(&fault->reader, NULL, fault_reader, fault), 0);
    return fault;
}

#endif
