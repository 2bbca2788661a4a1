/*
 * kv:delayed-quant, kv:delayed-window-quant, kv:delayed-turboquant: plain blocks until a row has `start` tokens, quantised
 * ones from the next token on. Short prompts lose nothing, long ones take little memory.
 *
 *      parts[0], plain         [p0][p1]|                     n <= start: all tokens of the row
 *      parts[1], quantised             |[q0][q1][q2]...      n > start: all tokens, the first `start` ones included
 *                                    start
 *
 * Two caches behind one. Every row is in both, and one of the two is empty. A row's state is a function of its tokens
 * alone: it is converted as a whole by the append that begins at exactly `start`, wherever chunks, rounds or the prompts of
 * its siblings end; an append across `start` is refused, so that callers split there. A converted row that is cut back to
 * `start` stays converted, which is what its next append would make of it anyway; it is not cut below.
 *
 * What others hold of a row, by view, in trees and tiers, is the quantised form alone: a row that is not converted
 * publishes nothing, since short prompts are cheap to compute again. Merges, extracts and donors share either form.
 *
 * Owns the boundary and the conversion. What rows and blocks are, the parts know.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

enum { PLAIN, QUANTISED, N_PARTS };

typedef struct delayed_cache {
    firn_cache base;
    firn_cache *parts[N_PARTS];
    float *k, *v;              /* one block of tokens on its way from one part to the other: [64][heads][dim] */
    uint32_t *counts[N_PARTS]; /* scratch of one call: what each part appends to its rows */
    uint32_t n_counts_max;     /* room in both; grows where rows join */
} delayed_cache;

static_assert(offsetof(delayed_cache, base) == 0, "a delayed cache is a cache");

static delayed_cache *delayed_of(firn_cache *cache)
{
    return (delayed_cache *)cache;
}

static const delayed_cache *const_delayed_of(const firn_cache *cache)
{
    return (const delayed_cache *)cache;
}

static uint32_t batch_size(const firn_cache *cache)
{
    return firni_rows_batch_size(const_delayed_of(cache)->parts[PLAIN]);
}

/* No row is converted before it has tokens. */
static bool is_converted(const delayed_cache *cache, uint32_t row)
{
    return firni_rows_tokens(cache->parts[QUANTISED], row) > 0;
}

/* The part that has the row's tokens. */
static const firn_cache *part_of(const delayed_cache *cache, uint32_t row)
{
    return cache->parts[is_converted(cache, row) ? QUANTISED : PLAIN];
}

static uint32_t row_tokens(const firn_cache *cache, uint32_t row)
{
    return firni_rows_tokens(part_of(const_delayed_of(cache), row), row);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static firn_status create_parts(delayed_cache *cache, const firni_layout *plain, const firni_layout *quantised,
                                firn_error *err)
{
    firn_cache *base = &cache->base;
    firn_cache_options options = base->options;
    options.start = 0;
    options.key_bits = options.value_bits = options.group = 0;
    firn_status status = firni_cache_create_with(plain, &options, base->pool, base->env, &cache->parts[PLAIN], err);
    if (status != FIRN_OK) {
        return status;
    }
    options = base->options;
    options.start = 0;
    options.dtype = FIRN_DTYPE_NONE;
    return firni_cache_create_with(quantised, &options, base->pool, base->env, &cache->parts[QUANTISED], err);
}

/* The options that the parts have completed, and one line that says all of them. */
static void describe(delayed_cache *cache)
{
    firn_cache *base = &cache->base;
    const firn_cache *quantised = cache->parts[QUANTISED];
    const uint32_t start = base->options.start;
    const char *family = base->options.layout;
    base->options = quantised->options;
    base->options.layout = family;
    base->options.dtype = cache->parts[PLAIN]->options.dtype;
    base->options.start = start;
    base->block_bytes = quantised->block_bytes;
    int len = snprintf(base->signature, sizeof base->signature, "%s%s:%u", family,
                       quantised->signature + strlen(quantised->ops->family), start);
    assert(len > 0 && (size_t)len < sizeof base->signature);
    len = snprintf(base->describe, sizeof base->describe, "%s %s%s", base->signature,
                   firn_dtype_name(base->options.dtype), quantised->describe + strlen(quantised->signature));
    assert(len > 0 && (size_t)len < sizeof base->describe);
    (void)len;
}

static firn_status init(firn_cache *base, const firni_layout *plain, const firni_layout *quantised, firn_error *err)
{
    delayed_cache *cache = delayed_of(base);
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
    delayed_cache *cache = delayed_of(base);
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firn_cache_destroy(cache->parts[i]);
        firni_free(base->env, cache->counts[i]);
    }
    firni_free(base->env, cache->k);
    firni_free(base->env, cache->v);
}

static uint32_t composed(const firn_cache *cache, firn_cache *const **parts)
{
    *parts = const_delayed_of(cache)->parts;
    return N_PARTS;
}

/* ---- rows joining and leaving ------------------------------------------------------------------------------------ */

/* For one more row. */
static firn_status grow_counts(delayed_cache *cache, firn_error *err)
{
    const uint32_t n_rows = batch_size(&cache->base);
    if (n_rows < cache->n_counts_max) {
        return FIRN_OK;
    }
    const firn_env *env = cache->base.env;
    const uint32_t n_max = 2 * n_rows + 8;
    uint32_t *counts[N_PARTS] = { NULL };
    for (uint32_t i = 0; i < N_PARTS; i++) {
        counts[i] = firni_calloc(env, n_max, sizeof *counts[i]);
    }
    if (counts[PLAIN] == NULL || counts[QUANTISED] == NULL) {
        firni_free(env, counts[PLAIN]);
        firni_free(env, counts[QUANTISED]);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a batch of %u rows", n_rows + 1);
    }
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firni_free(env, cache->counts[i]);
        cache->counts[i] = counts[i];
    }
    cache->n_counts_max = n_max;
    return FIRN_OK;
}

/* Appends to both parts what `views` show of a row, or nothing to any. */
static firn_status adopt_views(delayed_cache *cache, const firn_row_view views[N_PARTS], firn_error *err)
{
    firn_status status = grow_counts(cache, err);
    if (status == FIRN_OK) {
        status = firni_rows_adopt(cache->parts[QUANTISED], &views[QUANTISED], err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    status = firni_rows_adopt(cache->parts[PLAIN], &views[PLAIN], err);
    if (status != FIRN_OK) {
        firni_rows_drop_last(cache->parts[QUANTISED]);
    }
    return status;
}

static firn_status add_row(firn_cache *cache, firn_error *err)
{
    return adopt_views(delayed_of(cache), (firn_row_view[N_PARTS]){ { .n_tokens = 0 }, { .n_tokens = 0 } }, err);
}

/* A row that is not converted shows its count and the blocks that it no longer has, and none of those that it has: what
 * can be adopted is the quantised form alone, and at `start` a count would not tell the two apart. */
static firn_row_view view_row(const firn_cache *base, uint32_t row)
{
    const firn_row_view view = firni_rows_view(part_of(const_delayed_of(base), row), row);
    return is_converted(const_delayed_of(base), row)
               ? view
               : (firn_row_view){ .first_block = view.first_block, .n_tokens = view.n_tokens };
}

static firn_status adopt_row(firn_cache *base, const firn_row_view *view, firn_error *err)
{
    if (view->n_tokens > 0 && view->n_tokens < base->options.start) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: a row of %u tokens is plain, and blocks of others serve rows from %u on",
                          base->signature, view->n_tokens, base->options.start);
    }
    return adopt_views(delayed_of(base), (firn_row_view[N_PARTS]){ [QUANTISED] = *view }, err);
}

static firn_status share_row(firn_cache *base, const firn_cache *source, uint32_t row, firn_error *err)
{
    const delayed_cache *from = const_delayed_of(source);
    const firn_row_view views[N_PARTS] = { firni_rows_view(from->parts[PLAIN], row),
                                           firni_rows_view(from->parts[QUANTISED], row) };
    return adopt_views(delayed_of(base), views, err);
}

static void filter_rows(firn_cache *cache, const uint32_t *keep, uint32_t n_keep)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firni_rows_filter(delayed_of(cache)->parts[i], keep, n_keep);
    }
}

/* The caller has asked how many can go; a rollback has begun at `start` or after it. */
static void trim_row(firn_cache *base, uint32_t row, uint32_t n_tokens)
{
    delayed_cache *cache = delayed_of(base);
    const bool converted = is_converted(cache, row);
    assert(!converted || row_tokens(base, row) - n_tokens >= base->options.start);
    firni_rows_trim(cache->parts[converted ? QUANTISED : PLAIN], row, n_tokens);
}

static void settle(firn_cache *cache)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firn_cache_settle(delayed_of(cache)->parts[i]);
    }
}

/* ---- what the state allows --------------------------------------------------------------------------------------- */

static uint32_t trimmable_tokens(const firn_cache *base, uint32_t row)
{
    const delayed_cache *cache = const_delayed_of(base);
    const uint32_t n_part = firn_cache_trimmable_tokens(part_of(cache, row), row);
    const uint32_t n_beyond = is_converted(cache, row) ? row_tokens(base, row) - base->options.start : n_part;
    return n_part < n_beyond ? n_part : n_beyond;
}

static uint32_t minimum_reusable_offset(const firn_cache *cache, uint32_t row)
{
    return is_converted(const_delayed_of(cache), row) ? cache->options.start : 0;
}

static bool can_publish_row(const firn_cache *base, uint32_t row, uint32_t tokens)
{
    const delayed_cache *cache = const_delayed_of(base);
    return is_converted(cache, row) && tokens >= base->options.start &&
           firn_cache_can_publish_row(cache->parts[QUANTISED], row, tokens);
}

/* Tokens that may be appended to the row at once. A round that began before `start` cannot go beyond it: its rollback
 * could not bring the plain blocks back. */
static uint32_t row_max_append(const firn_cache *base, uint32_t row)
{
    const uint32_t start = base->options.start;
    const uint32_t n_tokens = row_tokens(base, row);
    const bool from_start = n_tokens == start && (!base->round.is_open || base->round.base[row] == start);
    return is_converted(const_delayed_of(base), row) || from_start ? FIRN_TOKENS_UNLIMITED : start - n_tokens;
}

static uint32_t max_append_tokens(const firn_cache *cache)
{
    uint32_t n_max = FIRN_TOKENS_UNLIMITED;
    for (uint32_t r = 0; r < batch_size(cache); r++) {
        const uint32_t n_row = row_max_append(cache, r);
        n_max = n_row < n_max ? n_row : n_max;
    }
    return n_max;
}

/* ---- accounting -------------------------------------------------------------------------------------------------- */

static uint64_t bytes_per_token(const firn_cache *cache)
{
    return firni_quant_bytes_per_token(const_delayed_of(cache)->parts[QUANTISED]);
}

static uint64_t projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    return firni_rows_projected_bytes(const_delayed_of(cache)->parts[tokens > cache->options.start], tokens);
}

/* The step that begins at `start` has both forms. */
static uint64_t working_bytes(const firn_cache *base, uint32_t tokens, uint32_t step_tokens)
{
    const delayed_cache *cache = const_delayed_of(base);
    const uint32_t start = base->options.start;
    if (tokens <= start) {
        return firni_rows_working_bytes(cache->parts[PLAIN], tokens, step_tokens);
    }
    const uint32_t n_first = tokens - start > step_tokens ? start + step_tokens : tokens;
    const uint64_t both = firni_rows_working_bytes(cache->parts[PLAIN], start, step_tokens) +
                          firni_rows_working_bytes(cache->parts[QUANTISED], n_first, step_tokens);
    const uint64_t after = firni_rows_working_bytes(cache->parts[QUANTISED], tokens, step_tokens);
    return both > after ? both : after;
}

static uint32_t planes(const firn_cache *cache, firn_plane out[FIRN_CACHE_PLANES_MAX])
{
    return firni_quant_planes(const_delayed_of(cache)->parts[QUANTISED], out);
}

/* ---- conversion -------------------------------------------------------------------------------------------------- */

static void load_elements(const firni_kernels *kernels, firn_dtype dtype, float *out, const uint8_t *x, uint32_t n)
{
    switch (dtype) {
    case FIRN_DTYPE_F16: kernels->f16_to_f32(out, (const uint16_t *)(const void *)x, n); break;
    case FIRN_DTYPE_BF16: kernels->bf16_to_f32(out, (const uint16_t *)(const void *)x, n); break;
    default: memcpy(out, x, n * sizeof *out); break;
    }
}

/* All 64 tokens of a plain block, in the order in which they were appended; those that the row does not have are not
 * used. */
static void load_block(delayed_cache *cache, const uint8_t *block)
{
    const firni_plain_geometry *g = &((const firni_plain_cache *)cache->parts[PLAIN])->geometry;
    const firni_kernels *kernels = cache->base.kernels;
    const size_t element_bytes = firn_dtype_bytes(g->dtype);
    const uint32_t n_key = g->n_kv_heads * g->head_dim;
    for (uint32_t i = 0; i < n_key; i++) {
        float lanes[FIRN_BLOCK_TOKENS];
        load_elements(kernels, g->dtype, lanes, block + i * (FIRN_BLOCK_TOKENS * element_bytes), FIRN_BLOCK_TOKENS);
        for (uint32_t t = 0; t < FIRN_BLOCK_TOKENS; t++) {
            cache->k[(size_t)t * n_key + i] = lanes[t];
        }
    }
    const uint8_t *values = block + g->v_offset_bytes;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        for (uint32_t t = 0; t < FIRN_BLOCK_TOKENS; t++) {
            load_elements(kernels, g->dtype, cache->v + ((size_t)t * g->n_kv_heads + h) * g->value_dim, values,
                          g->value_dim);
            values += g->value_dim * element_bytes;
        }
    }
}

/* From the blocks of one part to those that are reserved in the other, which begins at the same block: what has left a
 * window stays away. Then the plain blocks are let go of; who shares them keeps them. */
static void convert_row(delayed_cache *cache, uint32_t row)
{
    firn_cache *quantised = cache->parts[QUANTISED];
    const firn_cache_options *options = &cache->base.options;
    const firn_append_input input = {
        .k = cache->k,
        .v = cache->v,
        .k_stride = options->n_kv_heads * options->head_dim,
        .v_stride = options->n_kv_heads * options->value_dim,
    };
    const firni_row *plain = &firni_rows_of(cache->parts[PLAIN])->row[row];
    uint32_t *counts = cache->counts[QUANTISED];
    memset(counts, 0, batch_size(&cache->base) * sizeof *counts);
    for (uint32_t at = plain->first_block * FIRN_BLOCK_TOKENS; at < plain->n_tokens; at += FIRN_BLOCK_TOKENS) {
        const uint32_t n_left = plain->n_tokens - at;
        load_block(cache, firn_block_data(firni_row_block(plain, at)));
        counts[row] = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
        firni_quant_append(quantised, &input, counts, NULL);
    }
    assert(firni_rows_tokens(quantised, row) == options->start);
    firni_rows_restart(cache->parts[PLAIN], row, 0);
}

/* Whether the row goes from one part to the other now. */
static bool is_due(const delayed_cache *cache, uint32_t row, uint32_t count)
{
    return count > 0 && !is_converted(cache, row) &&
           firni_rows_tokens(cache->parts[PLAIN], row) == cache->base.options.start;
}

/* Rows that are due begin in the quantised part where their plain blocks begin; until then, and again after a refusal,
 * they are empty there. */
static void plan_counts(delayed_cache *cache, const uint32_t *counts)
{
    for (uint32_t r = 0; r < batch_size(&cache->base); r++) {
        cache->counts[PLAIN][r] = 0;
        cache->counts[QUANTISED][r] = counts[r];
        if (is_due(cache, r, counts[r])) {
            const firni_row *plain = &firni_rows_of(cache->parts[PLAIN])->row[r];
            firni_rows_restart(cache->parts[QUANTISED], r, plain->first_block);
            cache->counts[QUANTISED][r] += plain->n_tokens - plain->first_block * FIRN_BLOCK_TOKENS;
        } else if (!is_converted(cache, r)) {
            cache->counts[PLAIN][r] = counts[r];
            cache->counts[QUANTISED][r] = 0;
        }
    }
}

/* Both parts reserve, or neither; then nothing can fail, and what is due is converted. */
static firn_status reserve(firn_cache *base, const uint32_t *counts, firn_error *err)
{
    delayed_cache *cache = delayed_of(base);
    const uint32_t n_rows = batch_size(base);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (counts[r] > row_max_append(base, r)) {
            return firni_fail(err, FIRN_ERR_INVALID, "row %u has %u tokens and is quantised at %u: %u more in one append, "
                              "or in a round that began before, would cross that", r, row_tokens(base, r),
                              base->options.start, counts[r]);
        }
    }
    plan_counts(cache, counts);
    firn_status status = firni_rows_reserve_begin(cache->parts[QUANTISED], cache->counts[QUANTISED], err);
    if (status == FIRN_OK) {
        status = firni_rows_reserve_begin(cache->parts[PLAIN], cache->counts[PLAIN], err);
        if (status != FIRN_OK) {
            firni_rows_reserve_undo(cache->parts[QUANTISED]);
        }
    }
    if (status == FIRN_OK) {
        firni_rows_reserve_end(cache->parts[QUANTISED], cache->counts[QUANTISED]);
        firni_rows_reserve_end(cache->parts[PLAIN], cache->counts[PLAIN]);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        if (counts[r] == 0 || firni_rows_tokens(cache->parts[PLAIN], r) < base->options.start) {
            continue;
        }
        if (status == FIRN_OK) {
            convert_row(cache, r);
        } else {
            firni_rows_restart(cache->parts[QUANTISED], r, 0);
        }
    }
    return status;
}

/* ---- append and attend ------------------------------------------------------------------------------------------- */

/* Neighbouring rows of one form, and the packed tokens before them. */
typedef struct row_run {
    uint32_t first, end; /* rows */
    bool is_converted;
    uint64_t packed;
} row_run;

/* The run after this one, with the counts of its rows alone in counts[PLAIN]; false: none. A batch of one form is one
 * run. */
static bool next_run(const delayed_cache *cache, const uint32_t *counts, row_run *run)
{
    const uint32_t n_rows = batch_size(&cache->base);
    for (; run->first < run->end; run->first++) {
        run->packed += counts[run->first];
    }
    while (run->first < n_rows && counts[run->first] == 0) {
        run->first++;
    }
    if (run->first == n_rows) {
        return false;
    }
    run->is_converted = is_converted(cache, run->first);
    run->end = run->first;
    while (run->end < n_rows && (counts[run->end] == 0 || is_converted(cache, run->end) == run->is_converted)) {
        run->end++;
    }
    memset(cache->counts[PLAIN], 0, n_rows * sizeof *counts);
    memcpy(cache->counts[PLAIN] + run->first, counts + run->first, (run->end - run->first) * sizeof *counts);
    return true;
}

static void append(firn_cache *base, const firn_append_input *input, const uint32_t *counts, firn_workers *workers)
{
    delayed_cache *cache = delayed_of(base);
    for (row_run run = { .first = 0 }; next_run(cache, counts, &run);) {
        firn_append_input part = *input;
        part.k += run.packed * input->k_stride;
        part.v += run.packed * input->v_stride;
        firn_cache *to = cache->parts[run.is_converted];
        to->ops->append(to, &part, cache->counts[PLAIN], workers);
    }
}

static void attend(const firn_cache *base, const firn_attend_input *input, const uint32_t *counts,
                   firn_workers *workers)
{
    const delayed_cache *cache = const_delayed_of(base);
    for (row_run run = { .first = 0 }; next_run(cache, counts, &run);) {
        firn_attend_input part = *input;
        part.q += run.packed * input->q_stride;
        part.out += run.packed * input->out_stride;
        const firn_cache *from = cache->parts[run.is_converted];
        from->ops->attend(from, &part, cache->counts[PLAIN], workers);
    }
}

/* The tensors of the one part, then those of the other, each as wide as its own longest row. */
static firn_status state(const firn_cache *base, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    const delayed_cache *cache = const_delayed_of(base);
    uint32_t n_plain, n_quantised;
    firn_status status = firn_cache_state(cache->parts[PLAIN], tensors, &n_plain, err);
    if (status != FIRN_OK) {
        return status;
    }
    status = firn_cache_state(cache->parts[QUANTISED], tensors + n_plain, &n_quantised, err);
    if (status != FIRN_OK) {
        for (uint32_t i = 0; i < n_plain; i++) {
            firn_tensor_deinit(&tensors[i]);
        }
        return status;
    }
    *n_tensors = n_plain + n_quantised;
    return FIRN_OK;
}

static void check(const firn_cache *base)
{
    const delayed_cache *cache = const_delayed_of(base);
    assert(firni_rows_batch_size(cache->parts[QUANTISED]) == batch_size(base));
    for (uint32_t i = 0; i < N_PARTS; i++) {
        firn_cache_check(cache->parts[i]);
    }
    for (uint32_t r = 0; r < batch_size(base); r++) {
        const uint32_t n_plain = firni_rows_tokens(cache->parts[PLAIN], r);
        const uint32_t n_quantised = firni_rows_tokens(cache->parts[QUANTISED], r);
        assert(n_plain <= base->options.start && (n_quantised == 0 || n_quantised >= base->options.start));
        assert(n_plain == 0 || n_quantised == 0);
        (void)n_plain;
        (void)n_quantised;
    }
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

/* No prefill members: the boundary is at `start` for every row, wherever prompts end. */
#define DELAYED_MEMBERS                                                                                               \
    .instance_bytes = sizeof(delayed_cache), .deinit = deinit, .batch_size = batch_size, .row_tokens = row_tokens,    \
    .add_row = add_row, .view_row = view_row, .adopt_row = adopt_row, .share_row = share_row,                         \
    .filter_rows = filter_rows, .trim_row = trim_row, .trimmable_tokens = trimmable_tokens,                           \
    .minimum_reusable_offset = minimum_reusable_offset, .max_append_tokens = max_append_tokens,                       \
    .can_publish_row = can_publish_row, .composed = composed, .bytes_per_token = bytes_per_token,                     \
    .projected_bytes = projected_bytes, .working_bytes = working_bytes, .planes = planes, .reserve = reserve,         \
    .append = append, .attend = attend, .state = state, .check = check

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
