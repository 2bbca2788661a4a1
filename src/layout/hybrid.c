/*
 * hybrid: keys and values, and a recurrent state, of one layer side by side, as in layers that run attention and
 * Mamba-2 in parallel over the same tokens (Falcon-H1, arXiv 2507.22448, section 2).
 *
 *      parts[0], attention    [b0][b1][b2]       any layout of blocks: plain, a window, quantised, latent
 *      parts[1], recurrent    [f]                gated DeltaNet or Mamba-2
 *
 * Two caches behind one, with the same rows. An append brings the keys and values and what goes through the state, so
 * that both parts advance by the same tokens or neither does; every other operation is done to both or to neither as
 * well. What a row allows is what both parts allow: it is not trimmed, and is published at its own count alone.
 *
 * For others a row is the blocks of the one part with the state of the other: trees and tiers, which know rows that
 * have both, need to know no more. Owns the pairing; what blocks and states are, the parts know.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/recurrent_impl.h"

enum { PART_ATTENTION, PART_RECURRENT, N_PARTS };

typedef struct hybrid_cache {
    firn_cache base;
    firn_cache *parts[N_PARTS];
    uint32_t *keep;      /* scratch of a rollback: grows where rounds begin, since a rollback allocates nothing */
    uint32_t n_keep_max;
} hybrid_cache;

static_assert(offsetof(hybrid_cache, base) == 0, "a hybrid cache is a cache");

static firn_cache *attention_of(const firn_cache *cache)
{
    return ((const hybrid_cache *)cache)->parts[PART_ATTENTION];
}

static firn_cache *recurrent_of(const firn_cache *cache)
{
    return ((const hybrid_cache *)cache)->parts[PART_RECURRENT];
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Both parts keep their rows in rows.c, one of blocks alone and one of a state alone: no part is itself composed. */
static firn_status find_parts(const firn_cache_options *options, const firni_layout **attention,
                              const firni_layout **recurrent, firn_error *err)
{
    if (options->attention == NULL || options->recurrent == NULL || options->recurrent->layout == NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "hybrid needs the layouts of its attention and of its recurrent part");
    }
    *attention = firni_layout_find(options->attention);
    *recurrent = firni_layout_find(options->recurrent->layout);
    if (*attention == NULL || (*attention)->attend == NULL || (*attention)->adopt_row != firni_rows_adopt ||
        (*attention)->fixed_planes != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "hybrid cannot have \"%.64s\" as its attention part",
                          options->attention);
    }
    if (*recurrent == NULL || (*recurrent)->share_row != firni_recurrent_share_row) {
        return firni_fail(err, FIRN_ERR_INVALID, "hybrid cannot have \"%.64s\" as its recurrent part",
                          options->recurrent->layout);
    }
    return FIRN_OK;
}

/* The options are those of the attention part, with the other part's hung on: so they say what an append takes. */
static void complete(hybrid_cache *cache)
{
    firn_cache *base = &cache->base;
    const firn_cache *attention = cache->parts[PART_ATTENTION];
    const firn_cache *recurrent = cache->parts[PART_RECURRENT];
    const uint32_t max_tokens = base->options.max_tokens;
    base->options = attention->options;
    base->options.layout = base->ops->family;
    base->options.attention = attention->ops->family;
    base->options.recurrent = &recurrent->options;
    base->options.max_tokens = max_tokens;
    base->block_bytes = attention->block_bytes;
    base->fixed_bytes = recurrent->fixed_bytes;
    const int len = snprintf(base->signature, sizeof base->signature, "%s(%s,%s)", base->ops->family,
                             attention->signature, recurrent->signature);
    assert(len > 0 && (size_t)len < sizeof base->signature);
    (void)len;
    firni_cache_set_describe(base, "%s%s +%s", base->signature, attention->describe + strlen(attention->signature),
                             recurrent->describe + strlen(recurrent->signature));
}

static firn_status hybrid_init(firn_cache *base, firn_error *err)
{
    hybrid_cache *cache = (hybrid_cache *)base;
    const firni_layout *layouts[N_PARTS] = { NULL };
    firn_status status = find_parts(&base->options, &layouts[PART_ATTENTION], &layouts[PART_RECURRENT], err);
    if (status != FIRN_OK) {
        return status;
    }
    firn_cache_options options = base->options;
    options.attention = NULL;
    options.recurrent = NULL;
    status = firni_cache_create_with(layouts[PART_ATTENTION], &options, base->pool, base->env,
                                     &cache->parts[PART_ATTENTION], err);
    if (status == FIRN_OK) {
        options = *base->options.recurrent;
        options.max_tokens = base->options.max_tokens;
        options.kernel = base->options.kernel;
        status = firni_cache_create_with(layouts[PART_RECURRENT], &options, base->pool, base->env,
                                         &cache->parts[PART_RECURRENT], err);
    }
    if (status == FIRN_OK) {
        complete(cache);
    }
    return status;
}

static void deinit(firn_cache *base)
{
    hybrid_cache *cache = (hybrid_cache *)base;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firn_cache_destroy(cache->parts[i]);
    }
    firni_free(base->env, cache->keep);
}

static uint32_t composed(const firn_cache *cache, firn_cache *const **parts)
{
    *parts = ((const hybrid_cache *)cache)->parts;
    return N_PARTS;
}

/* ---- rows joining and leaving ------------------------------------------------------------------------------------ */

static uint32_t batch_size(const firn_cache *cache)
{
    return firni_rows_batch_size(attention_of(cache));
}

static uint32_t row_tokens(const firn_cache *cache, uint32_t row)
{
    return firni_rows_tokens(attention_of(cache), row);
}

static firn_row_view view_row(const firn_cache *cache, uint32_t row)
{
    firn_row_view view = firni_rows_view(attention_of(cache), row);
    view.fixed = firni_rows_view(recurrent_of(cache), row).fixed;
    return view;
}

/* Whether the attention part's new last row has its other half now; else it is dropped. */
static firn_status pair(firn_cache *cache, firn_status status)
{
    if (status != FIRN_OK) {
        firni_rows_drop_last(attention_of(cache));
    }
    return status;
}

static firn_status add_row(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_rows_add(attention_of(cache), err);
    return status == FIRN_OK ? pair(cache, firni_rows_add(recurrent_of(cache), err)) : status;
}

static firn_status adopt_row(firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    firn_row_view blocks = *view;
    blocks.fixed = NULL;
    const firn_row_view state = { .fixed = view->fixed, .n_tokens = view->n_tokens };
    const firn_status status = firni_rows_adopt(attention_of(cache), &blocks, err);
    return status == FIRN_OK ? pair(cache, firni_rows_adopt(recurrent_of(cache), &state, err)) : status;
}

/* In an open round the recurrent part gives a copy of its state. */
static firn_status share_row(firn_cache *cache, const firn_cache *source, uint32_t row, firn_error *err)
{
    const firn_row_view blocks = firni_rows_view(attention_of(source), row);
    const firn_status status = firni_rows_adopt(attention_of(cache), &blocks, err);
    return status == FIRN_OK
               ? pair(cache, firni_recurrent_share_row(recurrent_of(cache), recurrent_of(source), row, err))
               : status;
}

static void filter_rows(firn_cache *cache, const uint32_t *keep, uint32_t n_keep)
{
    firni_rows_filter(attention_of(cache), keep, n_keep);
    firni_rows_filter(recurrent_of(cache), keep, n_keep);
}

static void settle(firn_cache *cache)
{
    firn_cache_settle(attention_of(cache));
}

/* ---- what the state allows, and what it
 * takes --------------------------------------------------------------------- */

static uint32_t trimmable_tokens(const firn_cache *cache, uint32_t row)
{
    return firni_rows_trimmable(recurrent_of(cache), row); /* none, whatever the blocks allow */
}

static bool can_publish_row(const firn_cache *cache, uint32_t row, uint32_t tokens)
{
    return firn_cache_can_publish_row(attention_of(cache), row, tokens) &&
           firn_cache_can_publish_row(recurrent_of(cache), row, tokens);
}

static uint64_t bytes_per_token(const firn_cache *cache)
{
    return firn_cache_bytes_per_token(attention_of(cache));
}

static uint64_t projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    return firn_cache_projected_bytes(attention_of(cache), tokens) +
           firn_cache_projected_bytes(recurrent_of(cache), tokens);
}

static uint64_t working_bytes(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens)
{
    return firn_cache_working_bytes(attention_of(cache), tokens, step_tokens) +
           firn_cache_working_bytes(recurrent_of(cache), tokens, step_tokens);
}

static uint32_t first_block_needed(const firn_cache *cache, uint32_t n_tokens)
{
    return firn_cache_first_block_needed(attention_of(cache), n_tokens);
}

static uint32_t planes(const firn_cache *cache, firn_plane out[FIRN_CACHE_PLANES_MAX])
{
    return firn_cache_planes(attention_of(cache), out);
}

static uint32_t fixed_planes(const firn_cache *cache, firn_plane out[FIRN_CACHE_PLANES_MAX])
{
    return firn_cache_fixed_planes(recurrent_of(cache), out);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Both parts reserve, or neither. */
static firn_status reserve(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    firn_cache *attention = attention_of(cache);
    firn_status status = firni_rows_reserve_begin(attention, counts, err);
    if (status != FIRN_OK) {
        return status;
    }
    status = firni_recurrent_reserve(recurrent_of(cache), counts, err);
    if (status != FIRN_OK) {
        firni_rows_reserve_undo(attention);
        return status;
    }
    firni_rows_reserve_end(attention, counts);
    return FIRN_OK;
}

static void append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts, firn_workers *workers)
{
    firn_cache *attention = attention_of(cache);
    attention->ops->append(attention, input, counts, workers);
    /* Reserved before, so it cannot fail. */
    const firn_status status = firn_cache_recur(recurrent_of(cache), input->recur, counts, workers, NULL);
    assert(status == FIRN_OK);
    (void)status;
}

static void attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                   firn_workers *workers)
{
    const firn_cache *attention = attention_of(cache);
    attention->ops->attend(attention, input, counts, workers);
}

static firn_status state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    return firni_dense_parts(((const hybrid_cache *)cache)->parts, N_PARTS, tensors, n_tensors, err);
}

/* ---- speculative
 * rounds ------------------------------------------------------------------------------------------- */

/* Each part has its own round, opened and closed with this one. The recurrent part's first: taking back that it began
 * changes nothing, while the end of the other's lets go of blocks. */
static firn_status spec_begin(firn_cache *base, firn_error *err)
{
    hybrid_cache *cache = (hybrid_cache *)base;
    const uint32_t n_rows = batch_size(base);
    if (n_rows > cache->n_keep_max) {
        uint32_t *keep = firni_calloc(base->env, 2 * (size_t)n_rows, sizeof *keep);
        if (keep == NULL) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a speculative round of %u rows", n_rows);
        }
        firni_free(base->env, cache->keep);
        cache->keep = keep;
        cache->n_keep_max = 2 * n_rows;
    }
    firn_status status = firn_cache_spec_begin(cache->parts[PART_RECURRENT], err);
    if (status == FIRN_OK) {
        status = firn_cache_spec_begin(cache->parts[PART_ATTENTION], err);
        if (status != FIRN_OK) {
            (void)firn_cache_spec_commit(cache->parts[PART_RECURRENT], NULL);
        }
    }
    return status;
}

static void spec_commit(firn_cache *base)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        const firn_status status = firn_cache_spec_commit(((hybrid_cache *)base)->parts[i], NULL);
        assert(status == FIRN_OK);
        (void)status;
    }
}

static void spec_rollback(firn_cache *base, const uint32_t *drop)
{
    hybrid_cache *cache = (hybrid_cache *)base;
    for (uint32_t r = 0; r < batch_size(base); r++) {
        cache->keep[r] = row_tokens(base, r) - base->round.base[r] - drop[r];
    }
    for (uint32_t i = 0; i < N_PARTS; i++) {
        const firn_status status = firn_cache_spec_rollback(cache->parts[i], cache->keep, NULL);
        assert(status == FIRN_OK);
        (void)status;
    }
}

/* ----
 * invariants --------------------------------------------------------------------------------------------------- */

static void check(const firn_cache *base)
{
    const firn_cache *attention = attention_of(base);
    const firn_cache *recurrent = recurrent_of(base);
    firn_cache_check(attention);
    firn_cache_check(recurrent);
    assert(firni_rows_batch_size(attention) == firni_rows_batch_size(recurrent));
    assert(attention->round.is_open == base->round.is_open && recurrent->round.is_open == base->round.is_open);
    for (uint32_t r = 0; r < batch_size(base); r++) {
        assert(firni_rows_tokens(attention, r) == firni_rows_tokens(recurrent, r));
    }
}

const firni_layout firni_layout_hybrid = {
    .family = "hybrid",
    .instance_bytes = sizeof(hybrid_cache),
    .takes_recur = true,
    .init = hybrid_init,
    .deinit = deinit,
    .batch_size = batch_size,
    .row_tokens = row_tokens,
    .add_row = add_row,
    .view_row = view_row,
    .adopt_row = adopt_row,
    .share_row = share_row,
    .filter_rows = filter_rows,
    .settle = settle,
    .trimmable_tokens = trimmable_tokens,
    .can_publish_row = can_publish_row,
    .composed = composed,
    .bytes_per_token = bytes_per_token,
    .projected_bytes = projected_bytes,
    .working_bytes = working_bytes,
    .first_block_needed = first_block_needed,
    .planes = planes,
    .fixed_planes = fixed_planes,
    .reserve = reserve,
    .append = append,
    .attend = attend,
    .state = state,
    .spec_begin = spec_begin,
    .spec_commit = spec_commit,
    .spec_rollback = spec_rollback,
    .check = check,
};
