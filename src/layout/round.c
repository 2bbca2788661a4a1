/*
 * Speculative rounds: begin, append the drafted tokens, then keep all of them or the first few of each row. The
 * dispatcher remembers where each row began; layouts that can drop tokens need no more than that.
 *
 *      base            base + keep         row_tokens
 *      |-- accepted ---|----- rejected ----|
 *                      <------- drop ------>
 *
 * What a rollback leaves must be what plain decoding would have left. For blocks that is so by construction: lanes
 * beyond a row's count are undefined and read by nobody, and blocks that lose their last token are released. Blocks
 * that fell out of a window stay until the round has ended, since a rollback may move the window back over them.
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

/* The arrays outlive the round: a steady batch speculates without an allocation. */
static firn_status make_room(firn_cache *cache, uint32_t n_rows, firn_error *err)
{
    firni_round *round = &cache->round;
    if (n_rows <= round->capacity_rows) {
        return FIRN_OK;
    }
    const uint32_t capacity_rows = n_rows > 2 * round->capacity_rows ? n_rows : 2 * round->capacity_rows;
    uint32_t *base = firni_calloc(cache->env, capacity_rows, sizeof *base);
    uint32_t *drop = firni_calloc(cache->env, capacity_rows, sizeof *drop);
    if (base == NULL || drop == NULL) {
        firni_free(cache->env, base);
        firni_free(cache->env, drop);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a speculative round of %u rows", n_rows);
    }
    firni_free(cache->env, round->base);
    firni_free(cache->env, round->drop);
    round->base = base;
    round->drop = drop;
    round->capacity_rows = capacity_rows;
    return FIRN_OK;
}

firn_status firn_cache_spec_begin(firn_cache *cache, firn_error *err)
{
    if (cache->round.is_open) {
        return firni_fail(err, FIRN_ERR_STATE, "a speculative round is open already");
    }
    const uint32_t n_rows = firn_cache_batch_size(cache);
    firn_status status = make_room(cache, n_rows, err);
    if (status == FIRN_OK && cache->ops->spec_begin != NULL) {
        status = cache->ops->spec_begin(cache, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    /* Only now, when nothing can fail, does the round exist. */
    for (uint32_t r = 0; r < n_rows; r++) {
        cache->round.base[r] = firn_cache_row_tokens(cache, r);
    }
    cache->round.is_open = true;
    return FIRN_OK;
}

firn_status firn_cache_spec_commit(firn_cache *cache, firn_error *err)
{
    if (!cache->round.is_open) {
        return firni_fail(err, FIRN_ERR_STATE, "commit without a speculative round");
    }
    if (cache->ops->spec_commit != NULL) {
        cache->ops->spec_commit(cache);
    }
    cache->round.is_open = false;
    firn_cache_settle(cache);
    return FIRN_OK;
}

firn_status firn_cache_spec_rollback(firn_cache *cache, const uint32_t *keep, firn_error *err)
{
    if (!cache->round.is_open) {
        return firni_fail(err, FIRN_ERR_STATE, "rollback without a speculative round");
    }
    /* Every row is checked before the first one is cut; a refused rollback leaves the round open. */
    firni_round *round = &cache->round;
    const uint32_t n_rows = firn_cache_batch_size(cache);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t n_appended = firn_cache_row_tokens(cache, r) - round->base[r];
        if (keep[r] > n_appended) {
            return firni_fail(err, FIRN_ERR_INVALID, "row %u appended %u tokens in this round; %u cannot be kept", r,
                              n_appended, keep[r]);
        }
        round->drop[r] = n_appended - keep[r];
    }
    if (cache->ops->spec_rollback != NULL) {
        cache->ops->spec_rollback(cache, round->drop);
    } else {
        for (uint32_t r = 0; r < n_rows; r++) {
            if (round->drop[r] > 0) {
                cache->ops->trim_row(cache, r, round->drop[r]);
            }
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        assert(firn_cache_row_tokens(cache, r) == round->base[r] + keep[r]);
    }
    round->is_open = false;
    firn_cache_settle(cache);
    return FIRN_OK;
}
