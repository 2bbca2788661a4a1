/*
 * Memory for state that is carried from one tier to the other: a pool of the stack's own, so that what requests were
 * promised of theirs stays theirs. Owns when that pool is made and given up.
 *
 * The last user that leaves gives all of it back, idle blocks included: between two copies nothing is held. Only
 * a tier that keeps what it was given in memory makes the pool stay, until the stack ends.
 */
#include <assert.h>
#include <string.h>

#include "tier/stack/stack_impl.h"

firn_pool *firni_scratch_enter(firni_stacked *stacked, firni_scratch *scratch)
{
    pthread_mutex_lock(&stacked->mutex);
    if (scratch->pool == NULL) {
        const firn_pool_options options = { .budget_bytes = scratch->budget_bytes };
        (void)firn_pool_create(&options, stacked->env, &scratch->pool, NULL); /* NULL without memory */
    }
    scratch->n_users += scratch->pool != NULL;
    firn_pool *pool = scratch->pool;
    pthread_mutex_unlock(&stacked->mutex);
    return pool;
}

static void give_back(firni_scratch *scratch)
{
    firn_pool_stats stats;
    firn_pool_get_stats(scratch->pool, &stats);
    if (stats.n_blocks == 0) {
        firn_pool_destroy(scratch->pool);
        scratch->pool = NULL;
    }
}

void firni_scratch_leave(firni_stacked *stacked, firni_scratch *scratch)
{
    pthread_mutex_lock(&stacked->mutex);
    assert(scratch->pool != NULL && scratch->n_users > 0);
    if (--scratch->n_users == 0) {
        give_back(scratch);
    }
    pthread_mutex_unlock(&stacked->mutex);
}

void firni_scratch_end(firni_scratch *scratch)
{
    assert(scratch->n_users == 0);
    if (scratch->pool != NULL) {
        give_back(scratch);
        assert(scratch->pool == NULL); /* both tiers have gone, and all that they kept */
    }
}

/* ---- rows in another pool ---------------------------------------------------------------------------------------- */

static bool copy_block(const firn_block *from, firn_pool *pool, firn_block **out)
{
    if (from == NULL) {
        return true;
    }
    if (firn_block_alloc(pool, firn_block_bytes(from), out, NULL) != FIRN_OK) {
        return false;
    }
    memcpy(firn_block_data(*out), firn_block_data(from), firn_block_bytes(from));
    return true;
}

firn_cache *firni_cache_copy(const firn_env *env, const firn_cache *from, firn_pool *pool)
{
    firn_cache *copy = NULL;
    const firn_row_view view = firn_cache_view_row(from, 0);
    firn_row_view copied = view;
    firn_block *fixed = NULL;
    firn_block **blocks = firni_calloc(env, (size_t)view.n_blocks + 1, sizeof *blocks);
    bool ok = blocks != NULL && firn_cache_create(firn_cache_get_options(from), pool, env, &copy, NULL) == FIRN_OK;
    for (uint32_t i = 0; ok && i < view.n_blocks; i++) {
        ok = copy_block(view.blocks[i], pool, &blocks[i]);
    }
    ok = ok && copy_block(view.fixed, pool, &fixed);
    copied.blocks = blocks;
    copied.fixed = fixed;
    ok = ok && firn_cache_adopt_row(copy, &copied, NULL) == FIRN_OK;
    for (uint32_t i = 0; blocks != NULL && i < view.n_blocks; i++) {
        firn_block_release(blocks[i]); /* the row has references of its own */
    }
    firn_block_release(fixed);
    firni_free(env, blocks);
    if (!ok) {
        firn_cache_destroy(copy);
        copy = NULL;
    }
    return copy;
}
