/*
 * The work of the delayed layouts (delayed.c): the conversion of rows that reach their boundary, and calls that are
 * divided between the two parts. Owns neither rows nor the boundary itself.
 */
#include <string.h>

#include "base/base_impl.h"
#include "layout/delayed_impl.h"

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
static void load_block(firni_delayed_cache *cache, const uint8_t *block)
{
    const firni_plain_geometry *g = &((const firni_plain_cache *)cache->parts[FIRNI_PART_PLAIN])->geometry;
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
static void convert_row(firni_delayed_cache *cache, uint32_t row)
{
    firn_cache *quantised = cache->parts[FIRNI_PART_QUANTISED];
    const firn_cache_options *options = &cache->base.options;
    const firn_append_input input = {
        .k = cache->k,
        .v = cache->v,
        .k_stride = options->n_kv_heads * options->head_dim,
        .v_stride = options->n_kv_heads * options->value_dim,
    };
    const firni_row *plain = &firni_rows_of(cache->parts[FIRNI_PART_PLAIN])->row[row];
    uint32_t *counts = cache->counts[FIRNI_PART_QUANTISED];
    memset(counts, 0, firni_delayed_batch_size(&cache->base) * sizeof *counts);
    for (uint32_t at = plain->first_block * FIRN_BLOCK_TOKENS; at < plain->n_tokens; at += FIRN_BLOCK_TOKENS) {
        const uint32_t n_left = plain->n_tokens - at;
        load_block(cache, firn_block_data(firni_row_block(plain, at)));
        counts[row] = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
        firni_quant_append(quantised, &input, counts, NULL);
    }
    assert(firni_rows_tokens(quantised, row) == options->start);
    firni_rows_restart(cache->parts[FIRNI_PART_PLAIN], row, 0);
}

/* Whether the row goes from one part to the other now. */
static bool is_due(const firni_delayed_cache *cache, uint32_t row, uint32_t count)
{
    return count > 0 && !firni_delayed_is_converted(cache, row) &&
           firni_rows_tokens(cache->parts[FIRNI_PART_PLAIN], row) == cache->base.options.start;
}

/* Rows that are due begin in the quantised part where their plain blocks begin; until then, and again after a refusal,
 * they are empty there. */
static void plan_counts(firni_delayed_cache *cache, const uint32_t *counts)
{
    for (uint32_t r = 0; r < firni_delayed_batch_size(&cache->base); r++) {
        cache->counts[FIRNI_PART_PLAIN][r] = 0;
        cache->counts[FIRNI_PART_QUANTISED][r] = counts[r];
        if (is_due(cache, r, counts[r])) {
            const firni_row *plain = &firni_rows_of(cache->parts[FIRNI_PART_PLAIN])->row[r];
            firni_rows_restart(cache->parts[FIRNI_PART_QUANTISED], r, plain->first_block);
            cache->counts[FIRNI_PART_QUANTISED][r] += plain->n_tokens - plain->first_block * FIRN_BLOCK_TOKENS;
        } else if (!firni_delayed_is_converted(cache, r)) {
            cache->counts[FIRNI_PART_PLAIN][r] = counts[r];
            cache->counts[FIRNI_PART_QUANTISED][r] = 0;
        }
    }
}

/* Both parts reserve, or neither; then nothing can fail, and what is due is converted. */
firn_status firni_delayed_reserve(firn_cache *base, const uint32_t *counts, firn_error *err)
{
    firni_delayed_cache *cache = firni_delayed_of(base);
    const uint32_t n_rows = firni_delayed_batch_size(base);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (counts[r] > firni_delayed_row_max_append(base, r)) {
            return firni_fail(err, FIRN_ERR_INVALID, "row %u has %u tokens and is quantised at %u: %u more in one "
                              "append, or in a round that began before, would cross that", r,
                              firni_delayed_row_tokens(base, r), base->options.start, counts[r]);
        }
    }
    plan_counts(cache, counts);
    firn_status status = firni_rows_reserve_begin(cache->parts[FIRNI_PART_QUANTISED],
                                                  cache->counts[FIRNI_PART_QUANTISED], err);
    if (status == FIRN_OK) {
        status = firni_rows_reserve_begin(cache->parts[FIRNI_PART_PLAIN], cache->counts[FIRNI_PART_PLAIN], err);
        if (status != FIRN_OK) {
            firni_rows_reserve_undo(cache->parts[FIRNI_PART_QUANTISED]);
        }
    }
    if (status == FIRN_OK) {
        firni_rows_reserve_end(cache->parts[FIRNI_PART_QUANTISED], cache->counts[FIRNI_PART_QUANTISED]);
        firni_rows_reserve_end(cache->parts[FIRNI_PART_PLAIN], cache->counts[FIRNI_PART_PLAIN]);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        if (counts[r] == 0 || firni_rows_tokens(cache->parts[FIRNI_PART_PLAIN], r) < base->options.start) {
            continue;
        }
        if (status == FIRN_OK) {
            convert_row(cache, r);
        } else {
            firni_rows_restart(cache->parts[FIRNI_PART_QUANTISED], r, 0);
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

/* The run after this one, with the counts of its rows alone in counts[FIRNI_PART_PLAIN]; false: none. A batch of one
 * form is one run. */
static bool next_run(const firni_delayed_cache *cache, const uint32_t *counts, row_run *run)
{
    const uint32_t n_rows = firni_delayed_batch_size(&cache->base);
    for (; run->first < run->end; run->first++) {
        run->packed += counts[run->first];
    }
    while (run->first < n_rows && counts[run->first] == 0) {
        run->first++;
    }
    if (run->first == n_rows) {
        return false;
    }
    run->is_converted = firni_delayed_is_converted(cache, run->first);
    run->end = run->first;
    while (run->end < n_rows &&
           (counts[run->end] == 0 || firni_delayed_is_converted(cache, run->end) == run->is_converted)) {
        run->end++;
    }
    memset(cache->counts[FIRNI_PART_PLAIN], 0, n_rows * sizeof *counts);
    memcpy(cache->counts[FIRNI_PART_PLAIN] + run->first, counts + run->first, (run->end - run->first) * sizeof *counts);
    return true;
}

void firni_delayed_append(firn_cache *base, const firn_append_input *input, const uint32_t *counts,
                          firn_workers *workers)
{
    firni_delayed_cache *cache = firni_delayed_of(base);
    for (row_run run = { .first = 0 }; next_run(cache, counts, &run);) {
        firn_append_input part = *input;
        part.k += run.packed * input->k_stride;
        part.v += run.packed * input->v_stride;
        firn_cache *to = cache->parts[run.is_converted];
        to->ops->append(to, &part, cache->counts[FIRNI_PART_PLAIN], workers);
    }
}

void firni_delayed_attend(const firn_cache *base, const firn_attend_input *input, const uint32_t *counts,
                   firn_workers *workers)
{
    const firni_delayed_cache *cache = firni_const_delayed_of(base);
    for (row_run run = { .first = 0 }; next_run(cache, counts, &run);) {
        firn_attend_input part = *input;
        part.q += run.packed * input->q_stride;
        part.out += run.packed * input->out_stride;
        const firn_cache *from = cache->parts[run.is_converted];
        from->ops->attend(from, &part, cache->counts[FIRNI_PART_PLAIN], workers);
    }
}

/* Each part's as wide as its own longest row. */
firn_status firni_delayed_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    return firni_dense_parts(firni_const_delayed_of(cache)->parts, FIRNI_N_PARTS, tensors, n_tensors, err);
}
