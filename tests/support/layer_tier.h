/*
 * A tier that delivers layer by layer, as slowly as a test wants, and fails at the layer that a test names: a
 * fault_tier for what it stores, and a thread for each read.
 *
 * What has not been delivered yet is garbage: a forward that uses a layer too soon has another answer.
 */
#ifndef FIRN_TESTS_LAYER_TIER_H
#define FIRN_TESTS_LAYER_TIER_H

#include "support/fault_tier.h"

enum { LAYER_READS_MAX = 64 };

typedef struct layer_tier {
    firn_tier tier; /* first */
    dict_tier *dict;
    firn_pool *own_pool; /* of what is stored */
    firn_pool *pool;     /* restored blocks come from here: the tree's */
    pthread_mutex_t mutex;
    /* knobs, set while nothing is read */
    uint64_t layer_ns;     /* before each layer but the last */
    uint64_t last_layer_ns; /* before the last one */
    uint32_t fail_layer;   /* the read fails instead of delivering it; UINT32_MAX: none */
    /* guarded by mutex */
    pthread_t threads[LAYER_READS_MAX];
    uint32_t n_reads;
} layer_tier;

typedef struct layer_read {
    layer_tier *tier;
    firn_restore_request request;
    firn_restored stored; /* what is delivered, in memory of the tier's */
} layer_read;

static inline firn_match layer_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    return firn_tier_find(&((layer_tier *)tier)->dict->tier, prompt, n_tokens, ns);
}

static inline firn_reason layer_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens,
                                        firn_restored *out)
{
    (void)tier, (void)handle, (void)n_tokens, (void)out;
    return FIRN_REASON_DISABLED;
}

/* Every byte of the row's blocks: garbage, or what `from` has. */
static inline void layer_fill(const firn_cache *to, const firn_cache *from)
{
    const firn_row_view a = firn_cache_view_row(to, 0), b = firn_cache_view_row(from, 0);
    for (uint32_t i = 0; i <= a.n_blocks; i++) {
        firn_block *block = i < a.n_blocks ? a.blocks[i] : a.fixed;
        const firn_block *source = i < a.n_blocks ? b.blocks[i] : b.fixed;
        if (block != NULL && to == from) {
            memset(firn_block_data(block), 0xab, firn_block_bytes(block));
        } else if (block != NULL) {
            memcpy(firn_block_data(block), firn_block_data(source), firn_block_bytes(block));
        }
    }
}

static inline void layer_sleep(uint64_t ns)
{
    const struct timespec pause = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
    (void)nanosleep(&pause, NULL);
}

static inline void *layer_main(void *ctx)
{
    layer_read *read = ctx;
    layer_tier *tier = read->tier;
    const firn_restore_request *request = &read->request;
    const uint32_t n_layers = read->stored.n_caches;
    firn_restored out = { .n_tokens = read->stored.n_tokens, .n_caches = n_layers, .n_bytes_read = n_layers };
    out.tokens = dict_copy_tokens(read->stored.tokens, read->stored.n_tokens);
    out.caches = calloc(n_layers, sizeof *out.caches);
    firn_reason reason = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < n_layers; i++) {
        out.caches[i] = fault_copy(read->stored.caches[i], tier->pool);
        assert_non_null(out.caches[i]);
        layer_fill(out.caches[i], out.caches[i]);
    }
    for (uint32_t layer = 0; layer <= n_layers && reason == FIRN_REASON_NONE; layer++) {
        const firn_restore_progress progress = { .caches = out.caches, .n_caches = n_layers, .n_layers = layer,
                                                 .n_bytes = layer, .n_bytes_total = n_layers };
        if (request->progress != NULL && request->in_layer_order) {
            request->progress(request->ctx, &progress);
        }
        if (layer == n_layers) {
            break;
        }
        layer_sleep(layer + 1 < n_layers ? tier->layer_ns : tier->last_layer_ns);
        reason = layer == tier->fail_layer ? FIRN_REASON_CORRUPT
                 : !request->is_wanted(request->ctx) ? FIRN_REASON_CANCELLED
                                                     : FIRN_REASON_NONE;
        if (reason == FIRN_REASON_NONE) {
            layer_fill(out.caches[layer], read->stored.caches[layer]);
        }
    }
    firn_restored_deinit(&read->stored);
    if (reason != FIRN_REASON_NONE) {
        firn_restored_deinit(&out);
    }
    request->done(request->ctx, reason == FIRN_REASON_NONE ? &out : NULL, reason);
    free(read);
    return NULL;
}

static inline firn_status layer_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                        firn_error *err)
{
    (void)err;
    layer_tier *layers = (layer_tier *)tier;
    layer_read *read = calloc(1, sizeof *read);
    assert_non_null(read);
    read->tier = layers;
    read->request = *request;
    assert_int_equal(firn_tier_restore(&layers->dict->tier, handle, request->n_tokens, &read->stored),
                     FIRN_REASON_NONE);
    pthread_mutex_lock(&layers->mutex);
    assert_true(layers->n_reads < LAYER_READS_MAX);
    assert_int_equal(pthread_create(&layers->threads[layers->n_reads++], NULL, layer_main, read), 0);
    pthread_mutex_unlock(&layers->mutex);
    return FIRN_OK;
}

static inline bool layer_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    layer_tier *layers = (layer_tier *)tier;
    firn_cache **copies = calloc(input->n_caches, sizeof *copies);
    firn_store_input copied = *input;
    for (uint32_t i = 0; i < input->n_caches; i++) {
        copies[i] = fault_copy(input->caches[i], layers->own_pool);
    }
    copied.caches = (const firn_cache *const *)copies;
    const bool stored = firn_tier_store(&layers->dict->tier, &copied, reason);
    for (uint32_t i = 0; i < input->n_caches; i++) {
        firn_cache_destroy(copies[i]);
    }
    free(copies);
    return stored;
}

static inline void layer_release(firn_tier *tier, firn_tier_handle *handle)
{
    firn_tier_release(&((layer_tier *)tier)->dict->tier, handle);
}

static inline void layer_destroy(firn_tier *tier)
{
    layer_tier *layers = (layer_tier *)tier;
    for (uint32_t i = 0; i < layers->n_reads; i++) {
        pthread_join(layers->threads[i], NULL);
    }
    firn_tier_destroy(&layers->dict->tier);
    firn_pool_destroy(layers->own_pool);
    pthread_mutex_destroy(&layers->mutex);
    free(layers);
}

/* Never NULL; set `pool` before the first read. Destroy with firn_tier_destroy(&layers->tier) before that pool. */
static inline layer_tier *layer_tier_create(void)
{
    static const firn_tier_ops ops = {
        .name = "layers",
        .find = layer_find,
        .restore = layer_restore,
        .restore_request = layer_request,
        .store = layer_store,
        .release = layer_release,
        .destroy = layer_destroy,
    };
    layer_tier *layers = calloc(1, sizeof *layers);
    assert_non_null(layers);
    layers->tier.ops = &ops;
    layers->fail_layer = UINT32_MAX;
    const firn_pool_options options = { .budget_bytes = UINT64_C(1) << 30 };
    assert_ok(firn_pool_create(&options, NULL, &layers->own_pool, NULL));
    layers->dict = dict_tier_create(NULL);
    pthread_mutex_init(&layers->mutex, NULL);
    return layers;
}

#endif
