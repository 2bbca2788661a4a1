/*
 * The dispatcher, first part: life of a cache, its identity and accounting, trimming, precision and the dense view.
 * Owns what all layouts have in common, and checks it once; knows no storage family. Rows are batch.c, append and
 * attention append.c, rounds round.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* The list is cut when it grows beyond the buffer: the message stays one readable line. */
static firn_status fail_unknown_layout(const char *family, firn_error *err)
{
    char known[256] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < firni_layout_count() && len < sizeof known; i++) {
        const int n =
            snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "", firni_layout_at(i)->family);
        len += n > 0 ? (size_t)n : 0;
    }
    return firni_fail(err, FIRN_ERR_UNSUPPORTED, "no layout is called \"%.64s\"; there are: %s", family, known);
}

firn_status firn_cache_create(const firn_cache_options *options, firn_pool *pool, const firn_env *env, firn_cache **out,
                              firn_error *err)
{
    *out = NULL;
    if (options->layout == NULL || options->layout[0] == '\0') {
        return firni_fail(err, FIRN_ERR_INVALID, "a cache needs the family of a layout");
    }
    const firni_layout *layout = firni_layout_find(options->layout);
    if (layout == NULL) {
        return fail_unknown_layout(options->layout, err);
    }
    return firni_cache_create_with(layout, options, pool, env, out, err);
}

firn_status firni_cache_create_with(const firni_layout *layout, const firn_cache_options *options, firn_pool *pool,
                                    const firn_env *env, firn_cache **out, firn_error *err)
{
    *out = NULL;
    /* A layout without an identity would let foreign state in wherever signatures are compared: not a state that a
     * caller could handle. */
    assert(pool != NULL && layout->family != NULL && layout->family[0] != '\0');
    assert(layout->instance_bytes >= sizeof(firn_cache));
    if (options->max_tokens > FIRNI_ROW_TOKENS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "max_tokens is %u; a row holds at most %u", options->max_tokens,
                          FIRNI_ROW_TOKENS_MAX);
    }
    /* Who has no precision to change has no use for the place where it changes. */
    if (options->start != 0 && layout->max_append_tokens == NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s has one precision; a start of %u tokens does not fit",
                          layout->family, options->start);
    }
    if ((options->attention != NULL || options->recurrent != NULL) && !layout->takes_recur) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s is not made of an attention and a recurrent part", layout->family);
    }
    /* Chosen once: all state of a cache is made by one kernel. */
    const firni_kernels *kernels = firni_kernels_select(options->kernel, err);
    if (kernels == NULL) {
        return FIRN_ERR_UNSUPPORTED;
    }
    firn_cache *cache = firni_calloc(env, 1, layout->instance_bytes);
    if (cache == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a %s cache", layout->family);
    }
    cache->ops = layout;
    cache->env = env;
    cache->pool = pool;
    cache->kernels = kernels;
    cache->options = *options;
    cache->options.layout = layout->family; /* the caller's strings need not outlive the call */
    cache->options.kernel = kernels->name;
    (void)snprintf(cache->signature, sizeof cache->signature, "%s", layout->family);
    const firn_status status = layout->init(cache, err);
    if (status != FIRN_OK) {
        firn_cache_destroy(cache);
        return status;
    }
    assert(strncmp(cache->signature, layout->family, strlen(layout->family)) == 0);
    assert(cache->block_bytes > 0 || cache->fixed_bytes > 0);
    assert(cache->describe[0] != '\0' && layout->batch_size(cache) == 0);
    *out = cache;
    return FIRN_OK;
}

void firn_cache_destroy(firn_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    cache->ops->deinit(cache);
    firni_free(cache->env, cache->round.base);
    firni_free(cache->env, cache->round.drop);
    firni_free(cache->env, cache);
}

firn_status firn_cache_make_empty(const firn_cache *cache, firn_cache **out, firn_error *err)
{
    const firn_status status = firni_cache_create_with(cache->ops, &cache->options, cache->pool, cache->env, out, err);
    assert(status != FIRN_OK || strcmp((*out)->describe, cache->describe) == 0);
    return status;
}

/* ---- identity and accounting ------------------------------------------------------------------------------------- */

const char *firn_cache_signature(const firn_cache *cache)
{
    return cache->signature;
}

void firni_cache_set_describe(firn_cache *cache, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int len = vsnprintf(cache->describe, sizeof cache->describe, format, args);
    va_end(args);
    assert(len > 0 && (size_t)len < sizeof cache->describe);
    (void)len;
}

const firn_cache_options *firn_cache_get_options(const firn_cache *cache)
{
    return &cache->options;
}

const char *firn_cache_describe(const firn_cache *cache)
{
    return cache->describe;
}

uint32_t firn_cache_composed(const firn_cache *cache, firn_cache *const **parts)
{
    *parts = NULL;
    return cache->ops->composed != NULL ? cache->ops->composed(cache, parts) : 0;
}

uint64_t firn_cache_bytes_per_token(const firn_cache *cache)
{
    return cache->ops->bytes_per_token(cache);
}

uint64_t firn_cache_projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    return cache->ops->projected_bytes(cache, tokens);
}

uint64_t firn_cache_working_bytes(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens)
{
    const uint64_t n_bytes = cache->ops->working_bytes(cache, tokens, step_tokens);
    assert(n_bytes >= cache->ops->projected_bytes(cache, tokens));
    return n_bytes;
}

uint32_t firn_cache_first_block_needed(const firn_cache *cache, uint32_t n_tokens)
{
    if (cache->block_bytes == 0) {
        return firni_blocks_of(n_tokens);
    }
    return cache->ops->first_block_needed != NULL ? cache->ops->first_block_needed(cache, n_tokens) : 0;
}

size_t firn_cache_fixed_bytes(const firn_cache *cache)
{
    return cache->fixed_bytes;
}

uint32_t firn_cache_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const uint32_t n_planes = cache->ops->planes != NULL ? cache->ops->planes(cache, planes) : 0;
    assert(n_planes <= FIRN_CACHE_PLANES_MAX);
    return n_planes;
}

uint32_t firn_cache_fixed_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const uint32_t n_planes = cache->ops->fixed_planes != NULL ? cache->ops->fixed_planes(cache, planes) : 0;
    assert(n_planes <= FIRN_CACHE_PLANES_MAX && (n_planes == 0 || cache->fixed_bytes > 0));
    return n_planes;
}

size_t firn_cache_block_bytes(const firn_cache *cache)
{
    return cache->block_bytes;
}

firn_pool *firn_cache_get_pool(const firn_cache *cache)
{
    return cache->pool;
}

bool firn_cache_can_publish_row(const firn_cache *cache, uint32_t row, uint32_t tokens)
{
    const uint32_t n_tokens = firn_cache_row_tokens(cache, row);
    /* Tokens that the row does not have are refused for every layout. */
    if (cache->ops->can_publish_row != NULL) {
        return tokens <= n_tokens && cache->ops->can_publish_row(cache, row, tokens);
    }
    return tokens <= n_tokens;
}

/* ---- trimming ---------------------------------------------------------------------------------------------------- */

/* In an open round only the round's own tokens can go: its beginning is what a rollback returns to. */
static uint32_t cap_by_round(const firn_cache *cache, uint32_t row, uint32_t n_tokens)
{
    const uint32_t n_held = firn_cache_row_tokens(cache, row);
    const uint32_t n_max = cache->round.is_open ? n_held - cache->round.base[row] : n_held;
    return n_tokens < n_max ? n_tokens : n_max;
}

static uint32_t undoable_tokens(const firn_cache *cache, uint32_t row)
{
    return cache->ops->undoable_tokens != NULL ? cap_by_round(cache, row, cache->ops->undoable_tokens(cache, row))
                                               : firn_cache_trimmable_tokens(cache, row);
}

uint32_t firn_cache_trimmable_tokens(const firn_cache *cache, uint32_t row)
{
    const uint32_t n_held = firn_cache_row_tokens(cache, row);
    const uint32_t n_layout = cache->ops->trimmable_tokens != NULL ? cache->ops->trimmable_tokens(cache, row) : n_held;
    return cap_by_round(cache, row, n_layout);
}

/* By capability, row by row: a window layout is trimmable while nothing has fallen out of its rows. */
bool firn_cache_is_trimmable(const firn_cache *cache)
{
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        if (firn_cache_trimmable_tokens(cache, r) < firn_cache_row_tokens(cache, r)) {
            return false;
        }
    }
    return true;
}

static firn_status check_trim(const firn_cache *cache, uint32_t row, uint32_t n_tokens, bool bypass, firn_error *err)
{
    const uint32_t n_max = bypass ? undoable_tokens(cache, row) : firn_cache_trimmable_tokens(cache, row);
    if (n_tokens > n_max) {
        return firni_fail(err, FIRN_ERR_TRIM, "%s: row %u of %u tokens cannot drop %u, only %u", cache->signature,
                          row, firn_cache_row_tokens(cache, row), n_tokens, n_max);
    }
    return FIRN_OK;
}

static void trim_checked(firn_cache *cache, uint32_t row, uint32_t n_tokens)
{
    const uint32_t n_before = firn_cache_row_tokens(cache, row);
    if (n_tokens > 0) {
        cache->ops->trim_row(cache, row, n_tokens);
    }
    assert(firn_cache_row_tokens(cache, row) == n_before - n_tokens);
    (void)n_before;
}

firn_status firn_cache_trim(firn_cache *cache, uint32_t n_tokens, bool bypass, firn_error *err)
{
    /* All rows are asked before the first one is cut. */
    const uint32_t n_rows = firn_cache_batch_size(cache);
    for (uint32_t r = 0; r < n_rows; r++) {
        const firn_status status = check_trim(cache, r, n_tokens, bypass, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        trim_checked(cache, r, n_tokens);
    }
    return FIRN_OK;
}

firn_status firn_cache_trim_row(firn_cache *cache, uint32_t row, uint32_t n_tokens, firn_error *err)
{
    const firn_status status = check_trim(cache, row, n_tokens, false, err);
    if (status == FIRN_OK) {
        trim_checked(cache, row, n_tokens);
    }
    return status;
}

/* ---- precision --------------------------------------------------------------------------------------------------- */

uint32_t firn_cache_minimum_reusable_offset(const firn_cache *cache, uint32_t row)
{
    assert(row < firn_cache_batch_size(cache));
    return cache->ops->minimum_reusable_offset != NULL ? cache->ops->minimum_reusable_offset(cache, row) : 0;
}

uint32_t firn_cache_max_append_tokens(const firn_cache *cache)
{
    return cache->ops->max_append_tokens != NULL ? cache->ops->max_append_tokens(cache) : FIRN_TOKENS_UNLIMITED;
}

/* The brackets are tracked here for every layout, so that an engine that calls them out of order finds out with
 * kv:plain already, and not with the first layout that relies on the order. */
firn_status firn_cache_prefill_begin(firn_cache *cache, firn_error *err)
{
    if (cache->in_prefill) {
        return firni_fail(err, FIRN_ERR_STATE, "a prefill has begun already");
    }
    if (cache->ops->prefill_begin != NULL) {
        cache->ops->prefill_begin(cache);
    }
    cache->in_prefill = true;
    return FIRN_OK;
}

firn_status firn_cache_prefill_commit(firn_cache *cache, const uint32_t *rows, uint32_t n_rows, firn_error *err)
{
    if (!cache->in_prefill) {
        return firni_fail(err, FIRN_ERR_STATE, "prefill_commit without prefill_begin");
    }
    const uint32_t n_held = firn_cache_batch_size(cache);
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i] >= n_held) {
            return firni_fail(err, FIRN_ERR_INVALID, "prefill_commit of row %u in a batch of %u", rows[i], n_held);
        }
    }
    return cache->ops->prefill_commit != NULL ? cache->ops->prefill_commit(cache, rows, n_rows, err) : FIRN_OK;
}

firn_status firn_cache_prefill_end(firn_cache *cache, firn_error *err)
{
    if (!cache->in_prefill) {
        return firni_fail(err, FIRN_ERR_STATE, "prefill_end without prefill_begin");
    }
    if (cache->ops->prefill_end != NULL) {
        cache->ops->prefill_end(cache);
    }
    cache->in_prefill = false;
    return FIRN_OK;
}

/* ---- dense view -------------------------------------------------------------------------------------------------- */

firn_status firn_cache_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    *n_tensors = 0;
    const firn_status status = cache->ops->state(cache, tensors, n_tensors, err);
    assert(*n_tensors <= FIRN_CACHE_STATE_TENSORS_MAX && (status == FIRN_OK || *n_tensors == 0));
    return status;
}

/* Counts are bounded by FIRNI_ROW_TOKENS_MAX, so every position fits. */
void firn_cache_rope_offsets(const firn_cache *cache, int32_t *offsets)
{
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        offsets[r] = (int32_t)firn_cache_row_tokens(cache, r);
    }
}

uint32_t firn_cache_dense_width(const firn_cache *cache)
{
    uint32_t width = 0;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache) && cache->block_bytes > 0; r++) {
        const uint32_t n_shown = firni_dense_tokens(cache, firn_cache_row_tokens(cache, r));
        width = n_shown > width ? n_shown : width;
    }
    return width;
}

/* Right-justified, so the last column is the row's last token, and column c stands width - 1 - c tokens before it. */
void firn_cache_dense_mask(const firn_cache *cache, uint32_t n_queries, uint8_t *mask)
{
    const uint32_t width = firn_cache_dense_width(cache);
    const uint32_t window = cache->options.window > 0 ? cache->options.window : UINT32_MAX;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        const uint32_t n_shown = firni_dense_tokens(cache, firn_cache_row_tokens(cache, r));
        for (uint32_t i = 0; i < n_queries; i++) {
            const uint32_t query_back = n_queries - 1 - i; /* tokens between it and the row's last one */
            for (uint32_t c = 0; c < width; c++) {
                const uint32_t back = width - 1 - c;
                *mask++ = back < n_shown && back >= query_back && back - query_back < window;
            }
        }
    }
}

/* ---- invariants -------------------------------------------------------------------------------------------------- */

/* What holds for every layout; the layout's own invariants follow. */
void firn_cache_check(const firn_cache *cache)
{
    const uint32_t n_max = firn_cache_max_tokens(cache);
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        const uint32_t n_tokens = firn_cache_row_tokens(cache, r);
        assert(n_tokens <= FIRNI_ROW_TOKENS_MAX && n_tokens <= n_max);
        assert(!cache->round.is_open || cache->round.base[r] <= n_tokens);
        (void)n_tokens;
    }
    (void)n_max;
    cache->ops->check(cache);
}
