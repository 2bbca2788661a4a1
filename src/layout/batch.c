/*
 * The dispatcher, second part: rows joining, leaving and changing places. Every operation here is made of two table
 * members: share_row, which takes references, and filter_rows, which drops them; no KV byte is read or written.
 *
 *      merge    every row of the first source, then one of each other    share_row ...
 *      extract  one row into a new cache                                 share_row
 *      donor    every row into a cache that nobody appends to (donor.c)  share_row ...
 *      filter   the rows that stay, in a new order                       filter_rows
 *
 * Because both sides of a share hold the same blocks, neither may write to them; the layout's reserve sees to that.
 */
#include <string.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

uint32_t firn_cache_batch_size(const firn_cache *cache)
{
    return cache->ops->batch_size(cache);
}

uint32_t firn_cache_row_tokens(const firn_cache *cache, uint32_t row)
{
    assert(row < firn_cache_batch_size(cache));
    return cache->ops->row_tokens(cache, row);
}

uint32_t firn_cache_offset(const firn_cache *cache)
{
    uint32_t n_tokens_max = 0;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        const uint32_t n_tokens = firn_cache_row_tokens(cache, r);
        n_tokens_max = n_tokens > n_tokens_max ? n_tokens : n_tokens_max;
    }
    return n_tokens_max;
}

uint32_t firn_cache_left_pad(const firn_cache *cache, uint32_t row)
{
    return firn_cache_offset(cache) - firn_cache_row_tokens(cache, row);
}

uint32_t firn_cache_max_tokens(const firn_cache *cache)
{
    return cache->options.max_tokens > 0 ? cache->options.max_tokens : FIRN_TOKENS_UNLIMITED;
}

/* A round remembers counts by row index, and a rollback returns to them: rows must not move under it. */
static firn_status fail_if_in_round(const firn_cache *cache, const char *what, firn_error *err)
{
    return cache->round.is_open ? firni_fail(err, FIRN_ERR_STATE, "%s while a speculative round is open", what)
                                : FIRN_OK;
}

/* Into the end of `target`. On failure the target has the rows that it had. */
static firn_status share_row(firn_cache *target, const firn_cache *source, uint32_t row, firn_error *err)
{
    firn_status status;
    if (target->ops->share_row != NULL) {
        status = target->ops->share_row(target, source, row, err);
    } else {
        const firn_row_view view = source->ops->view_row(source, row);
        status = target->ops->adopt_row(target, &view, err);
    }
    assert(status != FIRN_OK ||
           firn_cache_row_tokens(target, firn_cache_batch_size(target) - 1) == firn_cache_row_tokens(source, row));
    return status;
}

firn_status firni_cache_share_rows(firn_cache *target, const firn_cache *source, firn_error *err)
{
    assert(target != source);
    const uint32_t n_rows = firn_cache_batch_size(source);
    for (uint32_t r = 0; r < n_rows; r++) {
        const firn_status status = share_row(target, source, r, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return FIRN_OK;
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Everything about a source that can be refused is refused before any row is shared. */
static firn_status check_source(const firn_cache *target, const firn_cache *source, uint32_t index, firn_error *err)
{
    if (source->round.is_open) {
        return firni_fail(err, FIRN_ERR_STATE, "source %u of a merge is in a speculative round", index);
    }
    if (index > 0 && firn_cache_batch_size(source) != 1) {
        return firni_fail(err, FIRN_ERR_INVALID, "source %u of a merge has %u rows; a joining source has one", index,
                          firn_cache_batch_size(source));
    }
    /* The description, not the signature: the same layout with other dimensions has other blocks. */
    if (strcmp(target->describe, source->describe) != 0) {
        return firni_fail(err, FIRN_ERR_SIGNATURE, "a cache of \"%s\" cannot take rows of \"%s\"", target->describe,
                          source->describe);
    }
    /* A block returns to the pool that it came from, and is counted there. */
    if (target->pool != source->pool) {
        return firni_fail(err, FIRN_ERR_SIGNATURE, "a cache of \"%s\" cannot take rows of \"%s\" from another pool",
                          target->describe, source->describe);
    }
    if (firn_cache_offset(source) > firn_cache_max_tokens(target)) {
        return firni_fail(err, FIRN_ERR_INVALID, "source %u of a merge has a row of %u tokens; the target takes %u",
                          index, firn_cache_offset(source), firn_cache_max_tokens(target));
    }
    return FIRN_OK;
}

firn_status firn_cache_merge_rows(firn_cache *target, const firn_cache *const *sources, uint32_t n_sources,
                                  firn_error *err)
{
    firn_status status = fail_if_in_round(target, "merge into a cache", err);
    if (status != FIRN_OK) {
        return status;
    }
    if (firn_cache_batch_size(target) != 0) {
        return firni_fail(err, FIRN_ERR_STATE, "the target of a merge has %u rows already",
                          firn_cache_batch_size(target));
    }
    for (uint32_t i = 0; i < n_sources; i++) {
        status = check_source(target, sources[i], i, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < n_sources; i++) {
        /* A source that is the target itself has no rows, for the target is empty. */
        status = sources[i] != target ? firni_cache_share_rows(target, sources[i], err) : FIRN_OK;
        if (status != FIRN_OK) {
            /* It was empty before; dropping references cannot fail. */
            target->ops->filter_rows(target, NULL, 0);
            break;
        }
    }
    assert(status == FIRN_OK || firn_cache_batch_size(target) == 0);
    return status;
}

/* ---- extract, filter, add, adopt --------------------------------------------------------------------------------- */

firn_status firn_cache_extract_row(const firn_cache *cache, uint32_t row, firn_cache **out, firn_error *err)
{
    *out = NULL;
    firn_status status = fail_if_in_round(cache, "extract of a row", err);
    if (status != FIRN_OK) {
        return status;
    }
    if (row >= firn_cache_batch_size(cache)) {
        return firni_fail(err, FIRN_ERR_INVALID, "extract of row %u in a batch of %u", row,
                          firn_cache_batch_size(cache));
    }
    /* Not a view into the batch: the row must outlive it without holding the other rows' memory. */
    firn_cache *serial;
    status = firn_cache_make_empty(cache, &serial, err);
    if (status != FIRN_OK) {
        return status;
    }
    status = share_row(serial, cache, row, err);
    if (status != FIRN_OK) {
        firn_cache_destroy(serial);
        return status;
    }
    *out = serial;
    return FIRN_OK;
}

firn_status firn_cache_filter_rows(firn_cache *cache, const uint32_t *keep, uint32_t n_keep, firn_error *err)
{
    const firn_status status = fail_if_in_round(cache, "filter", err);
    if (status != FIRN_OK) {
        return status;
    }
    const uint32_t n_rows = firn_cache_batch_size(cache);
    for (uint32_t i = 0; i < n_keep; i++) {
        if (keep[i] >= n_rows) {
            return firni_fail(err, FIRN_ERR_INVALID, "filter keeps row %u of a batch of %u", keep[i], n_rows);
        }
        /* Quadratic, but without memory that could be refused; after n_rows distinct ones the next is a duplicate. */
        for (uint32_t j = 0; j < i; j++) {
            if (keep[j] == keep[i]) {
                return firni_fail(err, FIRN_ERR_INVALID, "filter keeps row %u twice", keep[i]);
            }
        }
    }
    cache->ops->filter_rows(cache, keep, n_keep);
    assert(firn_cache_batch_size(cache) == n_keep);
    return FIRN_OK;
}

firn_status firn_cache_add_row(firn_cache *cache, firn_error *err)
{
    firn_status status = fail_if_in_round(cache, "add of a row", err);
    if (status == FIRN_OK) {
        const uint32_t n_rows = firn_cache_batch_size(cache);
        status = cache->ops->add_row(cache, err);
        assert(firn_cache_batch_size(cache) == n_rows + (status == FIRN_OK));
        (void)n_rows;
    }
    return status;
}

firn_row_view firn_cache_view_row(const firn_cache *cache, uint32_t row)
{
    assert(row < firn_cache_batch_size(cache));
    const firn_row_view view = cache->ops->view_row(cache, row);
    assert(view.n_tokens == firn_cache_row_tokens(cache, row));
    return view;
}

firn_status firn_cache_adopt_row(firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    firn_status status = fail_if_in_round(cache, "adopt of a row", err);
    if (status != FIRN_OK) {
        return status;
    }
    /* Both bounds: max_tokens may be unlimited, positions are not. */
    const uint32_t n_max = firn_cache_max_tokens(cache);
    if (view->n_tokens > n_max || view->n_tokens > FIRNI_ROW_TOKENS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "adopt of a row of %u tokens; the cache takes %u", view->n_tokens,
                          n_max);
    }
    const uint32_t n_rows = firn_cache_batch_size(cache);
    status = cache->ops->adopt_row(cache, view, err);
    assert(firn_cache_batch_size(cache) == n_rows + (status == FIRN_OK));
    (void)n_rows;
    return status;
}
