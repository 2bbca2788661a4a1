/*
 * Promotion: what the lower gave goes into the upper, after the caller has it. Owns the queue and the thread.
 *
 *      restore --shares the blocks; once the caller has them, copies them--> queue --thread--> upper.store
 *
 * The queue is bounded in number and in bytes. It holds copies because the blocks of a restore are the pool's that
 * requests live on: state that waits here must not keep eviction there from making room.
 *
 * Nobody waits for it. What finds no room in the queue, or an upper that has just refused a store, is dropped and
 * counted: the lower has it, and the next restore brings another chance. What has been promoted is below already, so it
 * is not noted to be copied down.
 */
#include <assert.h>

#include "tier/stack/stack_impl.h"

static bool reserve(firni_stacked *stacked, uint64_t n_bytes)
{
    pthread_mutex_lock(&stacked->mutex);
    const bool has_room = !stacked->is_stopping && stacked->n_promoting < stacked->options.promotions_max &&
                          n_bytes <= stacked->options.promote_bytes_max &&
                          stacked->counts.promoting_bytes <= stacked->options.promote_bytes_max - n_bytes &&
                          firni_now_ns(stacked->env) >= stacked->upper_rest_until_ns;
    if (has_room) {
        stacked->n_promoting++;
        stacked->counts.promoting_bytes += n_bytes;
    } else {
        stacked->counts.n_promotions_dropped++;
    }
    pthread_mutex_unlock(&stacked->mutex);
    return has_room;
}

static void give_back_locked(firni_stacked *stacked, uint64_t n_bytes)
{
    assert(stacked->n_promoting > 0 && stacked->counts.promoting_bytes >= n_bytes);
    stacked->n_promoting--;
    stacked->counts.promoting_bytes -= n_bytes;
}

firni_carried *firni_promotion_create(firni_stacked *stacked, const char *ns, const firn_restored *restored)
{
    if (stacked->options.no_promotion) {
        return NULL;
    }
    const firn_store_input input = { .tokens = restored->tokens,
                                     .n_tokens = restored->n_tokens,
                                     .caches = (const firn_cache *const *)restored->caches,
                                     .n_caches = restored->n_caches,
                                     .ns = ns,
                                     .attachments = restored->attachments,
                                     .n_attachments = restored->n_attachments };
    const uint64_t n_bytes = firni_input_bytes(&input);
    if (!reserve(stacked, n_bytes)) {
        return NULL;
    }
    firni_carried *carried = firni_carried_create(stacked->env, &input);
    if (carried == NULL) {
        pthread_mutex_lock(&stacked->mutex);
        give_back_locked(stacked, n_bytes);
        stacked->counts.n_promotions_dropped++;
        pthread_mutex_unlock(&stacked->mutex);
    }
    return carried;
}

/* Its blocks are given back before the place in the queue is: what is held never exceeds what is counted. */
static void end(firni_stacked *stacked, firni_carried *carried, bool has_pool, uint64_t *counter)
{
    const uint64_t n_bytes = carried->n_bytes;
    firni_carried_destroy(carried);
    if (has_pool) {
        firni_scratch_leave(stacked, &stacked->promote_scratch);
    }
    pthread_mutex_lock(&stacked->mutex);
    give_back_locked(stacked, n_bytes);
    (*counter)++;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
}

void firni_promotion_start(firni_stacked *stacked, firni_carried *carried)
{
    if (carried == NULL) {
        return;
    }
    firn_pool *pool = firni_scratch_enter(stacked, &stacked->promote_scratch);
    if (pool == NULL || !firni_carried_move(carried, pool)) {
        end(stacked, carried, pool != NULL, &stacked->counts.n_promotions_dropped);
        return;
    }
    pthread_mutex_lock(&stacked->mutex);
    if (stacked->is_stopping) { /* a restore that ends with the stack: the thread may have gone */
        pthread_mutex_unlock(&stacked->mutex);
        end(stacked, carried, true, &stacked->counts.n_promotions_dropped);
        return;
    }
    if (stacked->promote_last == NULL) {
        stacked->promote_first = carried;
    } else {
        stacked->promote_last->next = carried;
    }
    stacked->promote_last = carried;
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
}

static firni_carried *take_locked(firni_stacked *stacked)
{
    firni_carried *carried = stacked->promote_first;
    if (carried != NULL) {
        stacked->promote_first = carried->next;
        stacked->promote_last = stacked->promote_first == NULL ? NULL : stacked->promote_last;
    }
    return carried;
}

void *firni_promoter_main(void *ctx)
{
    firni_stacked *stacked = ctx;
    pthread_mutex_lock(&stacked->mutex);
    while (!stacked->is_stopping) {
        firni_carried *carried = take_locked(stacked);
        if (carried == NULL) {
            (void)pthread_cond_wait(&stacked->changed, &stacked->mutex);
            continue;
        }
        stacked->is_promoter_above = true;
        pthread_mutex_unlock(&stacked->mutex);
        firni_copy_make_way(stacked);
        const firn_store_input input = firni_carried_input(carried);
        firn_reason reason;
        const bool stored = firn_tier_store(stacked->upper, &input, &reason);
        firni_stacked_note_upper(stacked, reason);
        pthread_mutex_lock(&stacked->mutex);
        stacked->is_promoter_above = false;
        pthread_mutex_unlock(&stacked->mutex);
        end(stacked, carried, true, stored ? &stacked->counts.n_promoted : &stacked->counts.n_promotions_failed);
        pthread_mutex_lock(&stacked->mutex);
    }
    stacked->is_promoter_done = true;
    firni_carried *carried;
    while ((carried = take_locked(stacked)) != NULL) {
        pthread_mutex_unlock(&stacked->mutex);
        end(stacked, carried, true, &stacked->counts.n_promotions_dropped);
        pthread_mutex_lock(&stacked->mutex);
    }
    pthread_cond_broadcast(&stacked->changed);
    pthread_mutex_unlock(&stacked->mutex);
    return NULL;
}
