/*
 * Building on a read that has not ended: caches over blocks that are still being filled, one layer after the other.
 *
 *      tier's thread     report: memory is there | layer 0 is there | ... | the last one is there | answer
 *      engine's thread     start: caches         | forward: await 0 | use | await 1 ...           | the lease is ready
 *
 * A forward must not write into blocks that are arriving, nor may it copy them before they have arrived, which is what
 * the first append to a shared tail or state would do. So the started caches have a tail and a state of their own,
 * which are filled from the arrived ones when their layer is awaited.
 *
 *      arriving   | block | block | tail |  state              started   | block | block | own tail |  own state
 *                     `-------`------------- shared -----------------------'-------'
 *
 * Owns the started caches' own blocks until they have been filled. Whether starting is worth it is the engine's
 * question.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/condition.h"
#include "prefix/prefix_impl.h"

#define WAIT_NS_MAX UINT64_C(5000000) /* at a time: the bound is measured on the environment's clock */

/* What is copied when a layer has arrived. */
typedef struct early_copy {
    firn_block *from; /* one reference */
    uint8_t *to;      /* in a block of the started cache */
} early_copy;

typedef struct firni_early {
    early_copy copies[2]; /* per layer: tail, state; from is NULL where there is none */
} firni_early;

/* ---- the tier's side --------------------------------------------------------------------------------------------- */

/* Caches that share the arriving blocks, or NULL without memory. */
static firn_cache **share_caches(const firn_prefix *prefix, const firn_restore_progress *progress)
{
    firn_cache **caches = firni_calloc(prefix->env, prefix->n_layers, sizeof *caches);
    firn_status status = caches != NULL && progress->n_caches == prefix->n_layers ? FIRN_OK : FIRN_ERR_NO_MEMORY;
    for (uint32_t layer = 0; layer < prefix->n_layers && status == FIRN_OK; layer++) {
        const firn_row_view view = firn_cache_view_row(progress->caches[layer], 0);
        status = firn_cache_make_empty(prefix->shapes[layer], &caches[layer], NULL);
        if (status == FIRN_OK) {
            status = firn_cache_adopt_row(caches[layer], &view, NULL);
        }
    }
    if (status != FIRN_OK && caches != NULL) {
        firni_caches_destroy(prefix, caches);
        firni_free(prefix->env, caches);
        caches = NULL;
    }
    return caches;
}

void firni_early_report(firni_read *read, const firn_restore_progress *progress)
{
    firn_prefix *prefix = read->prefix;
    firni_inbox *inbox = &prefix->inbox;
    const uint64_t now_ns = firni_now_ns(prefix->env);
    /* Only this thread sets it, and the engine's only reads it while the read has not ended. */
    firn_cache **early = read->early == NULL && progress->caches != NULL ? share_caches(prefix, progress) : NULL;
    (void)pthread_mutex_lock(&inbox->mutex);
    read->early = early != NULL ? early : read->early;
    read->n_layers_ready = progress->n_layers;
    read->n_bytes_done = progress->n_bytes;
    read->n_bytes_total = progress->n_bytes_total;
    read->began_ns = read->began_ns > 0 ? read->began_ns : now_ns;
    read->reported_ns = now_ns;
    (void)pthread_cond_broadcast(&inbox->posted);
    (void)pthread_mutex_unlock(&inbox->mutex);
    if (progress->n_layers > 0 && prefix->options.notify != NULL) {
        prefix->options.notify(prefix->options.notify_ctx); /* a row may start */
    }
}

/* ---- the engine's side ------------------------------------------------------------------------------------------- */

void firni_early_destroy(firn_lease *lease)
{
    for (uint32_t layer = 0; lease->early != NULL && layer < lease->prefix->n_layers; layer++) {
        firn_block_release(lease->early[layer].copies[0].from);
        firn_block_release(lease->early[layer].copies[1].from);
    }
    firni_free(lease->prefix->env, lease->early);
    lease->early = NULL;
}

bool firni_early_is_possible(const firn_prefix *prefix)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        firn_cache *const *parts;
        if (firn_cache_composed(prefix->shapes[layer], &parts) > 0) {
            return false;
        }
    }
    return true;
}

bool firn_lease_may_start(const firn_lease *lease, firn_lease_start *out)
{
    const firni_read *read = lease->read;
    *out = (firn_lease_start){ .n_tokens = 0 };
    if (read == NULL || lease->early != NULL) {
        return false;
    }
    firni_inbox *inbox = &lease->prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    const bool is_layered = read->early != NULL && !read->has_ended && read->n_bytes_done > 0;
    const uint64_t n_done = read->n_bytes_done;
    const uint64_t n_left = read->n_bytes_total > n_done ? read->n_bytes_total - n_done : 0;
    const uint64_t took_ns = read->reported_ns - read->began_ns;
    (void)pthread_mutex_unlock(&inbox->mutex);
    if (!is_layered || read->n_tokens >= lease->n_prompt || !firni_early_is_possible(lease->prefix)) {
        return false;
    }
    /* Only tokens that the lease's own prompt has may be built upon. */
    if (firni_tokens_common(read->tokens, lease->prompt, read->n_tokens) != read->n_tokens) {
        return false;
    }
    out->n_tokens = read->n_tokens;
    out->remaining_ns = (uint64_t)((double)took_ns * (double)n_left / (double)n_done);
    return true;
}

/* A block of the started cache's own for one that is arriving. */
static firn_status own_block(const firn_prefix *prefix, firn_block *arriving, early_copy *copy, firn_block **own,
                             firn_error *err)
{
    const firn_status status = firn_block_alloc(prefix->options.pool, firn_block_bytes(arriving), own, err);
    if (status == FIRN_OK) {
        *copy = (early_copy){ .from = firn_block_retain(arriving), .to = firn_block_data(*own) };
    }
    return status;
}

static firn_status start_layer(const firn_lease *lease, uint32_t layer, firn_cache **out, firn_error *err)
{
    const firn_prefix *prefix = lease->prefix;
    firn_row_view view = firn_cache_view_row(lease->read->early[layer], 0);
    firn_block **blocks = firni_calloc(prefix->env, (size_t)view.n_blocks + 1, sizeof *blocks);
    firn_block *tail = NULL, *state = NULL;
    firn_status status = blocks != NULL ? firn_cache_make_empty(prefix->shapes[layer], out, err)
                                        : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to start a row");
    if (status == FIRN_OK && view.n_blocks > 0) {
        memcpy(blocks, view.blocks, view.n_blocks * sizeof *blocks);
        if (view.n_tokens % FIRN_BLOCK_TOKENS != 0) {
            status = own_block(prefix, blocks[view.n_blocks - 1], &lease->early[layer].copies[0], &tail, err);
            blocks[view.n_blocks - 1] = tail;
        }
        view.blocks = blocks;
    }
    if (status == FIRN_OK && view.fixed != NULL) {
        status = own_block(prefix, view.fixed, &lease->early[layer].copies[1], &state, err);
        view.fixed = state;
    }
    if (status == FIRN_OK) {
        status = firn_cache_adopt_row(*out, &view, err);
    }
    /* The row is their only owner now: nothing will copy them before they are filled. */
    firn_block_release(tail);
    firn_block_release(state);
    firni_free(prefix->env, blocks);
    return status;
}

firn_status firn_lease_start_caches(firn_lease *lease, firn_cache **caches, firn_error *err)
{
    const firn_prefix *prefix = lease->prefix;
    assert(lease->read != NULL && lease->read->early != NULL && lease->early == NULL);
    memset(caches, 0, prefix->n_layers * sizeof *caches);
    lease->early = firni_calloc(prefix->env, prefix->n_layers, sizeof *lease->early);
    firn_status status = lease->early != NULL
                             ? FIRN_OK
                             : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to start a row of %u layers",
                                          prefix->n_layers);
    for (uint32_t layer = 0; layer < prefix->n_layers && status == FIRN_OK; layer++) {
        status = start_layer(lease, layer, &caches[layer], err);
    }
    if (status != FIRN_OK) {
        firni_caches_destroy(prefix, caches);
        firni_early_destroy(lease);
    }
    return status;
}

/* Waits until the layer has arrived; false: it will not, or not in time. */
static bool wait_for_layer(firn_prefix *prefix, const firni_read *read, uint32_t layer, uint64_t until_ns)
{
    firni_inbox *inbox = &prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    while (!read->has_ended && read->n_layers_ready <= layer && firni_now_ns(prefix->env) < until_ns) {
        const struct timespec until = firni_condition_deadline(WAIT_NS_MAX);
        (void)pthread_cond_timedwait(&inbox->posted, &inbox->mutex, &until);
    }
    const bool arrived = read->has_ended ? read->reason == FIRN_REASON_NONE : read->n_layers_ready > layer;
    (void)pthread_mutex_unlock(&inbox->mutex);
    return arrived;
}

bool firn_lease_await_layer(firn_lease *lease, uint32_t layer, uint64_t until_ns)
{
    assert(lease->early != NULL && lease->read != NULL && layer < lease->prefix->n_layers);
    if (!wait_for_layer(lease->prefix, lease->read, layer, until_ns)) {
        return false;
    }
    for (uint32_t i = 0; i < 2; i++) {
        early_copy *copy = &lease->early[layer].copies[i];
        if (copy->from != NULL) {
            memcpy(copy->to, firn_block_data(copy->from), firn_block_bytes(copy->from));
            firn_block_release(copy->from);
            copy->from = NULL; /* a layer may be awaited again */
        }
    }
    return true;
}

bool firn_lease_is_arriving(const firn_lease *lease)
{
    firni_inbox *inbox = &lease->prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    const bool arriving = lease->read != NULL && !lease->read->has_ended &&
                          lease->read->n_layers_ready < lease->prefix->n_layers;
    (void)pthread_mutex_unlock(&inbox->mutex);
    return arriving;
}
