/*
 * kv:delayed-quant, kv:delayed-window-quant, kv:delayed-turboquant: plain blocks until a row has `start` tokens,
 * quantised ones from the next token on. Short prompts lose nothing, long ones take little memory.
 *
 *      parts[0], plain         [p0][p1]|                     n <= start: all tokens of the row
 *      parts[1], quantised             |[q0][q1][q2]...      n > start: all tokens, the first `start` ones included
 *                                    start
 *
 * Two caches behind one. Every row is in both, and one of the two is empty. A row's state is a function of its tokens
 * alone: it is converted as a whole by the append that begins at exactly `start`, wherever chunks, rounds or the
 * prompts of its siblings end; an append across `start` is refused, so that callers split there. A converted row that
 * is cut back to `start` stays converted, which is what its next append would make of it anyway; it is not cut below.
 *
 * What others hold of a row, by view, in trees and tiers, is the quantised form alone: a row that is not converted
 * publishes nothing, since short prompts are cheap to compute again. Merges, extracts and donors share either form.
 *
 * Owns the boundary. The conversion is delayed_work.c; what rows and blocks are, the parts know.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/delayed_impl.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */

static firn_status create_parts(firni_delayed_cache *cache, const firni_layout *plain, const firni_layout *quantised,
                                firn_error *err)
{
    firn_cache *base = &cache->base;
    firn_cache_options options = base->options;
    options.start = 0;
    options.key_bits = options.value_bits = options.group = 0;
    const firn_status status = firni_cache_create_with(plain, &options, base->pool, base->env,
                                                       &cache->parts[FIRNI_PART_PLAIN], err);
    if (status != FIRN_OK) {
        return status;
    }
    options = base->options;
    options.start = 0;
    options.dtype = FIRN_DTYPE_NONE;
    return firni_cache_create_with(quantised, &options, base->pool, base->env, &cache->parts[FIRNI_PART_QUANTISED],
                                   err);
}

/* The options that the parts have completed, and one line that says all of them. */
static void describe(firni_delayed_cache *cache)
{
    firn_cache *base = &cache->base;
    const firn_cache *quantised = cache->parts[FIRNI_PART_QUANTISED];
    const uint32_t start = base->options.start;
    const char *family = base->options.layout;
    base->options = quantised->options;
    base->options.layout = family;
    base->options.dtype = cache->parts[FIRNI_PART_PLAIN]->options.dtype;
    base->options.start = start;
    base->block_bytes = quantised->block_bytes;
    int len = snprintf(base->signature, sizeof base->signature, "%s%s:%u", family,
                       quantised->signature + strlen(quantised->ops->family), start);
    assert(len > 0 && (size_t)len < sizeof base->signature);
    firni_cache_set_describe(base, "%s %s%s", base->signature, firn_dtype_name(base->options.dtype),
                             quantised->describe + strlen(quantised->signature));
}

static firn_status init(firn_cache *base, const firni_layout *plain, const firni_layout *quantised, firn_error *err)
{
    firni_delayed_cache *cache = firni_delayed_of(base);
    if (base->options.start < 1 || base->options.start > FIRNI_ROW_TOKENS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s is quantised after a start of 1 to %u tokens, not %u",
                          base->ops->family, FIRNI_ROW_TOKENS_MAX, base->options.start);
    }
    const firn_status status = create_parts(cache, plain, quantised, err);
    if (status != FIRN_OK) {
        return status;
    }
    describe(cache);
    const firn_cache_options *options = &base->options;
    const size_t n_block_heads = (size_t)FIRN_BLOCK_TOKENS * options->n_kv_heads;
    cache->k = firni_calloc(base->env, n_block_heads * options->head_dim, sizeof *cache->k);
    cache->v = firni_calloc(base->env, n_block_heads * options->value_dim, sizeof *cache->v);
    if (cache->k == NULL || cache->v == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a block of keys and values of %s", base->signature);
    }
    return FIRN_OK;
}

static firn_status quant_init(firn_cache *cache, firn_error *err)
{
    return init(cache, &firni_layout_plain, &firni_layout_quant, err);
}

static firn_status window_quant_init(firn_cache *cache, firn_error *err)
{
    return init(cache, &firni_layout_window, &firni_layout_window_quant, err);
}

static firn_status turboquant_init(firn_cache *cache, firn_error *err)
{
    return init(cache, &firni_layout_plain, &firni_layout_turboquant, err);
}

static void deinit(firn_cache *base)
{
    firni_delayed_cache *cache = firni_delayed_of(base);
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        firn_cache_destroy(cache->parts[i]);
        firni_free(base->env, cache->counts[i]);
    }
    firni_free(base->env, cache->k);
    firni_free(base->env, cache->v);
}

static uint32_t composed(const firn_cache *cache, firn_cache *const **parts)
{
    *parts = firni_const_delayed_of(cache)->parts;
    return FIRNI_N_PARTS;
}

/* ---- rows joining and leaving ------------------------------------------------------------------------------------ */

/* For one more row. */
static firn_status grow_counts(firni_delayed_cache *cache, firn_error *err)
{
    const uint32_t n_rows = firni_delayed_batch_size(&cache->base);
    if (n_rows < cache->n_counts_max) {
        return FIRN_OK;
    }
    const firn_env *env = cache->base.env;
    const uint32_t n_max = 2 * n_rows + 8;
    uint32_t *counts[FIRNI_N_PARTS] = { NULL };
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        counts[i] = firni_calloc(env, n_max, sizeof *counts[i]);
    }
    if (counts[FIRNI_PART_PLAIN] == NULL || counts[FIRNI_PART_QUANTISED] == NULL) {
        firni_free(env, counts[FIRNI_PART_PLAIN]);
        firni_free(env, counts[FIRNI_PART_QUANTISED]);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a batch of %u rows", n_rows + 1);
    }
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        firni_free(env, cache->counts[i]);
        cache->counts[i] = counts[i];
    }
    cache->n_counts_max = n_max;
    return FIRN_OK;
}

/* Appends to both parts what `views` show of a row, or nothing to any. */
static firn_status adopt_views(firni_delayed_cache *cache, const firn_row_view views[FIRNI_N_PARTS], firn_error *err)
{
    firn_status status = grow_counts(cache, err);
    if (status == FIRN_OK) {
        status = firni_rows_adopt(cache->parts[FIRNI_PART_QUANTISED], &views[FIRNI_PART_QUANTISED], err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    status = firni_rows_adopt(cache->parts[FIRNI_PART_PLAIN], &views[FIRNI_PART_PLAIN], err);
    if (status != FIRN_OK) {
        firni_rows_drop_last(cache->parts[FIRNI_PART_QUANTISED]);
    }
    return status;
}

static firn_status add_row(firn_cache *cache, firn_error *err)
{
    return adopt_views(firni_delayed_of(cache), (firn_row_view[FIRNI_N_PARTS]){ { .n_tokens = 0 } }, err);
}

/* A row that is not converted shows its count and the blocks that it no longer has, and none of those that it has: what
 * can be adopted is the quantised form alone, and at `start` a count would not tell the two apart. */
static firn_row_view view_row(const firn_cache *base, uint32_t row)
{
    const firn_row_view view = firni_rows_view(firni_delayed_part_of(firni_const_delayed_of(base), row), row);
    return firni_delayed_is_converted(firni_const_delayed_of(base), row)
               ? view
               : (firn_row_view){ .first_block = view.first_block, .n_tokens = view.n_tokens };
}

static firn_status adopt_row(firn_cache *base, const firn_row_view *view, firn_error *err)
{
    if (view->n_tokens > 0 && view->n_tokens < base->options.start) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: a row of %u tokens is plain, and blocks serve rows from %u on",
                          base->signature, view->n_tokens, base->options.start);
    }
    return adopt_views(firni_delayed_of(base), (firn_row_view[FIRNI_N_PARTS]){ [FIRNI_PART_QUANTISED] = *view }, err);
}

static firn_status share_row(firn_cache *base, const firn_cache *source, uint32_t row, firn_error *err)
{
    const firni_delayed_cache *from = firni_const_delayed_of(source);
    const firn_row_view views[FIRNI_N_PARTS] = { firni_rows_view(from->parts[FIRNI_PART_PLAIN], row),
                                           firni_rows_view(from->parts[FIRNI_PART_QUANTISED], row) };
    return adopt_views(firni_delayed_of(base), views, err);
}

static void filter_rows(firn_cache *cache, const uint32_t *keep, uint32_t n_keep)
{
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        firni_rows_filter(firni_delayed_of(cache)->parts[i], keep, n_keep);
    }
}

/* The caller has asked how many can go; a rollback has begun at `start` or after it. */
static void trim_row(firn_cache *base, uint32_t row, uint32_t n_tokens)
{
    firni_delayed_cache *cache = firni_delayed_of(base);
    const bool converted = firni_delayed_is_converted(cache, row);
    assert(!converted || firni_delayed_row_tokens(base, row) - n_tokens >= base->options.start);
    firni_rows_trim(cache->parts[converted ? FIRNI_PART_QUANTISED : FIRNI_PART_PLAIN], row, n_tokens);
}

static void settle(firn_cache *cache)
{
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        firn_cache_settle(firni_delayed_of(cache)->parts[i]);
    }
}

/* ---- what the state allows --------------------------------------------------------------------------------------- */

static uint32_t trimmable_tokens(const firn_cache *base, uint32_t row)
{
    const firni_delayed_cache *cache = firni_const_delayed_of(base);
    const uint32_t n_part = firn_cache_trimmable_tokens(firni_delayed_part_of(cache, row), row);
    if (!firni_delayed_is_converted(cache, row)) {
        return n_part;
    }
    const uint32_t n_beyond = firni_delayed_row_tokens(base, row) - base->options.start;
    return n_part < n_beyond ? n_part : n_beyond;
}

static uint32_t minimum_reusable_offset(const firn_cache *cache, uint32_t row)
{
    return firni_delayed_is_converted(firni_const_delayed_of(cache), row) ? cache->options.start : 0;
}

static bool can_publish_row(const firn_cache *base, uint32_t row, uint32_t tokens)
{
    const firni_delayed_cache *cache = firni_const_delayed_of(base);
    return firni_delayed_is_converted(cache, row) && tokens >= base->options.start &&
           firn_cache_can_publish_row(cache->parts[FIRNI_PART_QUANTISED], row, tokens);
}

/* Tokens that may be appended to the row at once. A round that began before `start` cannot go beyond it: its rollback
 * could not bring the plain blocks back. */
uint32_t firni_delayed_row_max_append(const firn_cache *base, uint32_t row)
{
    const uint32_t start = base->options.start;
    const uint32_t n_tokens = firni_delayed_row_tokens(base, row);
    const bool from_start = n_tokens == start && (!base->round.is_open || base->round.base[row] == start);
    const bool is_converted = firni_delayed_is_converted(firni_const_delayed_of(base), row);
    return is_converted || from_start ? FIRN_TOKENS_UNLIMITED : start - n_tokens;
}

static uint32_t max_append_tokens(const firn_cache *cache)
{
    uint32_t n_max = FIRN_TOKENS_UNLIMITED;
    for (uint32_t r = 0; r < firni_delayed_batch_size(cache); r++) {
        const uint32_t n_row = firni_delayed_row_max_append(cache, r);
        n_max = n_row < n_max ? n_row : n_max;
    }
    return n_max;
}

/* ---- accounting -------------------------------------------------------------------------------------------------- */

static uint64_t bytes_per_token(const firn_cache *cache)
{
    return firni_quant_bytes_per_token(firni_const_delayed_of(cache)->parts[FIRNI_PART_QUANTISED]);
}

static uint64_t projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    return firni_rows_projected_bytes(firni_const_delayed_of(cache)->parts[tokens > cache->options.start], tokens);
}

/* The step that begins at `start` has both forms. */
static uint64_t working_bytes(const firn_cache *base, uint32_t tokens, uint32_t step_tokens)
{
    const firni_delayed_cache *cache = firni_const_delayed_of(base);
    const uint32_t start = base->options.start;
    if (tokens <= start) {
        return firni_rows_working_bytes(cache->parts[FIRNI_PART_PLAIN], tokens, step_tokens);
    }
    const uint32_t n_first = tokens - start > step_tokens ? start + step_tokens : tokens;
    const uint64_t both = firni_rows_working_bytes(cache->parts[FIRNI_PART_PLAIN], start, step_tokens) +
                          firni_rows_working_bytes(cache->parts[FIRNI_PART_QUANTISED], n_first, step_tokens);
    const uint64_t after = firni_rows_working_bytes(cache->parts[FIRNI_PART_QUANTISED], tokens, step_tokens);
    return both > after ? both : after;
}

static uint32_t planes(const firn_cache *cache, firn_plane out[FIRN_CACHE_PLANES_MAX])
{
    return firni_quant_planes(firni_const_delayed_of(cache)->parts[FIRNI_PART_QUANTISED], out);
}

/* ---- invariants -------------------------------------------------------------------------------------------------- */

static void check(const firn_cache *base)
{
    const firni_delayed_cache *cache = firni_const_delayed_of(base);
    assert(firni_rows_batch_size(cache->parts[FIRNI_PART_QUANTISED]) == firni_delayed_batch_size(base));
    for (uint32_t i = 0; i < FIRNI_N_PARTS; i++) {
        firn_cache_check(cache->parts[i]);
    }
    for (uint32_t r = 0; r < firni_delayed_batch_size(base); r++) {
        const uint32_t n_plain = firni_rows_tokens(cache->parts[FIRNI_PART_PLAIN], r);
        const uint32_t n_quantised = firni_rows_tokens(cache->parts[FIRNI_PART_QUANTISED], r);
        assert(n_plain <= base->options.start && (n_quantised == 0 || n_quantised >= base->options.start));
        assert(n_plain == 0 || n_quantised == 0);
        (void)n_plain;
        (void)n_quantised;
    }
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

/* No prefill members: the boundary is at `start` for every row, wherever prompts end. */
#define DELAYED_MEMBERS                                                                                               \
    .instance_bytes = sizeof(firni_delayed_cache), .deinit = deinit, .batch_size = firni_delayed_batch_size,          \
    .row_tokens = firni_delayed_row_tokens, .add_row = add_row, .view_row = view_row, .adopt_row = adopt_row,         \
    .share_row = share_row, .filter_rows = filter_rows, .trim_row = trim_row, .trimmable_tokens = trimmable_tokens,   \
    .minimum_reusable_offset = minimum_reusable_offset, .max_append_tokens = max_append_tokens,                       \
    .can_publish_row = can_publish_row, .composed = composed, .bytes_per_token = bytes_per_token,                     \
    .projected_bytes = projected_bytes, .working_bytes = working_bytes, .planes = planes,                             \
    .reserve = firni_delayed_reserve, .append = firni_delayed_append, .attend = firni_delayed_attend,                 \
    .state = firni_delayed_state, .check = check

const firni_layout firni_layout_delayed_quant = {
    .family = "kv:delayed-quant",
    .init = quant_init,
    DELAYED_MEMBERS,
};

/* Both parts need the same blocks of a row. */
const firni_layout firni_layout_delayed_window_quant = {
    .family = "kv:delayed-window-quant",
    .init = window_quant_init,
    DELAYED_MEMBERS,
    .settle = settle,
    .first_block_needed = firni_rows_first_block_needed,
};

const firni_layout firni_layout_delayed_turboquant = {
    .family = "kv:delayed-turboquant",
    .init = turboquant_init,
    DELAYED_MEMBERS,
};
