/*
 * Speculative rounds of recurrent layouts. A state cannot be trimmed, so a round keeps what it began with and what it
 * was fed:
 *
 *      begin      the row's block is retained: the first step of the round copies it on write, and leaves it as it is
 *      step       the inputs of the convolution, its results and the gates of each token are recorded
 *      commit     the retained block is released
 *      rollback   the retained block, with the first `keep` records replayed by the kernel of the step: the same
 *                 operations on the same numbers, so the same bits as if the other tokens had never been
 *
 * Rollback allocates nothing. It replays in the retained block when nobody else holds it, else in the row's own block,
 * which nobody else can hold: in an open round a donor is given a copy.
 */
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "layout/recurrent_impl.h"

static firni_recurrent_cache *recurrent_of(firn_cache *cache)
{
    return (firni_recurrent_cache *)cache;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Inputs, convolved channels, decays, strengths. */
static size_t record_floats(const firn_cache *cache)
{
    return 2 * (size_t)firni_recurrent_geometry_of(cache)->n_channels + 2 * (size_t)cache->options.n_state_heads;
}

static float *record_at(const firn_cache *cache, const firni_recurrent_kept *kept, uint32_t index)
{
    return kept->records + index * record_floats(cache);
}

firn_status firni_recurrent_reserve_records(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    for (uint32_t r = 0; r < recurrent->rows.rows.n_rows; r++) {
        firni_recurrent_kept *kept = &recurrent->kept[r];
        if (counts[r] <= kept->n_records_max - kept->n_records) {
            continue;
        }
        /* The dispatcher has bounded row_tokens + counts, and there are no more records than tokens. */
        const uint32_t n_max = kept->n_records + counts[r];
        const size_t n_floats = record_floats(cache);
        float *grown = firni_grow(cache->env, kept->records, kept->n_records, n_max, n_floats * sizeof *grown);
        if (grown == NULL) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to keep %u tokens of a speculative round", n_max);
        }
        kept->records = grown;
        kept->n_records_max = n_max;
    }
    return FIRN_OK;
}

void firni_recurrent_record_inputs(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    const uint32_t n_channels = recurrent->geometry.n_channels;
    const uint32_t n_heads = cache->options.n_state_heads;
    uint64_t packed = 0;
    for (uint32_t r = 0; r < recurrent->rows.rows.n_rows; r++) {
        firni_recurrent_kept *kept = &recurrent->kept[r];
        assert(counts[r] <= kept->n_records_max - kept->n_records);
        for (uint32_t i = 0; i < counts[r]; i++, packed++) {
            float *record = record_at(cache, kept, kept->n_records++);
            float *gates = record + 2 * (size_t)n_channels;
            memcpy(record, input->x + packed * input->x_stride, n_channels * sizeof *record);
            memcpy(gates, input->decay + packed * input->gate_stride, n_heads * sizeof *gates);
            memcpy(gates + n_heads, input->strength + packed * input->gate_stride, n_heads * sizeof *gates);
        }
    }
}

void firni_recurrent_record_convolved(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    const uint32_t n_channels = recurrent->geometry.n_channels;
    uint64_t packed = 0;
    for (uint32_t r = 0; r < recurrent->rows.rows.n_rows; r++) {
        const firni_recurrent_kept *kept = &recurrent->kept[r];
        for (uint32_t i = 0; i < counts[r]; i++, packed++) {
            float *record = record_at(cache, kept, kept->n_records - counts[r] + i);
            memcpy(record + n_channels, input->x + packed * input->x_stride, n_channels * sizeof *record);
        }
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

firn_status firni_recurrent_spec_begin(firn_cache *cache, firn_error *err)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    const firni_rows *rows = &recurrent->rows.rows;
    if (rows->n_rows > recurrent->n_kept_max) {
        firni_recurrent_kept *grown = firni_grow(cache->env, recurrent->kept, recurrent->n_kept_max,
                                                 rows->n_rows_max, sizeof *grown);
        if (grown == NULL) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a speculative round of %u rows", rows->n_rows);
        }
        memset(grown + recurrent->n_kept_max, 0, (rows->n_rows_max - recurrent->n_kept_max) * sizeof *grown);
        recurrent->kept = grown;
        recurrent->n_kept_max = rows->n_rows_max;
    }
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        firni_recurrent_kept *kept = &recurrent->kept[r];
        assert(kept->snapshot == NULL);
        kept->n_records = 0;
        kept->snapshot = rows->row[r].n_tokens > 0 ? firn_block_retain(rows->row[r].fixed) : NULL;
    }
    return FIRN_OK;
}

static void drop_snapshot(firni_recurrent_kept *kept)
{
    firn_block_release(kept->snapshot);
    kept->snapshot = NULL;
}

void firni_recurrent_spec_commit(firn_cache *cache)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    for (uint32_t r = 0; r < recurrent->rows.rows.n_rows; r++) {
        drop_snapshot(&recurrent->kept[r]);
    }
}

/* The convolution's last inputs after n records: those before the round move up, as far as the records do not replace
 * them. */
static void replay_conv(const firn_cache *cache, const firni_recurrent_kept *kept, firn_block *block, uint32_t n)
{
    const size_t n_channels = firni_recurrent_geometry_of(cache)->n_channels;
    const uint32_t n_past = cache->options.conv_width - 1;
    const uint32_t n_new = n < n_past ? n : n_past;
    float *conv = firni_recurrent_conv(block);
    memmove(conv, conv + n_new * n_channels, (n_past - n_new) * n_channels * sizeof *conv);
    for (uint32_t i = 0; i < n_new; i++) {
        memcpy(conv + (n_past - n_new + i) * n_channels, record_at(cache, kept, n - n_new + i),
               n_channels * sizeof *conv);
    }
}

/* Brings a block with the state at the round's beginning to the state after the first n records. */
static void replay(const firn_cache *cache, const firni_recurrent_kept *kept, firn_block *block, uint32_t n)
{
    const uint32_t n_channels = firni_recurrent_geometry_of(cache)->n_channels;
    const uint32_t n_heads = cache->options.n_state_heads;
    replay_conv(cache, kept, block, n);
    for (uint32_t head = 0; head < n_heads; head++) {
        const float *first = kept->records;
        const float *gates = first + 2 * (size_t)n_channels;
        firni_recur_task task = {
            .x_stride = record_floats(cache),
            .gate_stride = record_floats(cache),
            .n_tokens = n,
        };
        firni_recurrent_fill_task(cache, block, head, first + n_channels, gates, gates + n_heads, &task);
        cache->kernels->recur(&task);
    }
}

/* The row's block becomes the snapshot with `keep` tokens replayed. */
static void rewind_row(firn_cache *cache, firni_row *row, firni_recurrent_kept *kept, uint32_t keep)
{
    /* Nothing to replay, or the snapshot is ours alone: it becomes the row's block. */
    if (keep == 0 || (kept->snapshot != NULL && firn_block_refs(kept->snapshot) == 1)) {
        firn_block_release(row->fixed);
        row->fixed = kept->snapshot;
        kept->snapshot = NULL;
    } else if (kept->snapshot != NULL) {
        assert(firn_block_refs(row->fixed) == 1 && "a state in an open round is the row's own");
        memcpy(firn_block_data(row->fixed), firn_block_data(kept->snapshot), cache->fixed_bytes);
        firni_pool_count_copied(cache->pool, cache->fixed_bytes);
    } else {
        assert(firn_block_refs(row->fixed) == 1 && "a state in an open round is the row's own");
        memset(firn_block_data(row->fixed), 0, cache->fixed_bytes);
    }
    if (keep > 0) {
        replay(cache, kept, row->fixed, keep);
    }
}

void firni_recurrent_spec_rollback(firn_cache *cache, const uint32_t *drop)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    for (uint32_t r = 0; r < recurrent->rows.rows.n_rows; r++) {
        firni_row *row = &recurrent->rows.rows.row[r];
        firni_recurrent_kept *kept = &recurrent->kept[r];
        if (drop[r] > 0) {
            rewind_row(cache, row, kept, kept->n_records - drop[r]);
            row->n_tokens -= drop[r];
        }
        drop_snapshot(kept);
    }
}

/* A row that has gone on in an open round is copied: were it shared, a rollback would have no block of its own to
 * replay in. */
firn_status firni_recurrent_share_row(firn_cache *cache, const firn_cache *source, uint32_t row, firn_error *err)
{
    const firni_recurrent_cache *from = (const firni_recurrent_cache *)source;
    firn_row_view view = firni_rows_view(source, row);
    if (!source->round.is_open || from->kept[row].n_records == 0) {
        return firni_rows_adopt(cache, &view, err);
    }
    firn_block *copy = NULL;
    firn_status status = firn_block_alloc(cache->pool, cache->fixed_bytes, &copy, err);
    if (status != FIRN_OK) {
        return status;
    }
    memcpy(firn_block_data(copy), firn_block_data(view.fixed), cache->fixed_bytes);
    firni_pool_count_copied(cache->pool, cache->fixed_bytes);
    view.fixed = copy;
    status = firni_rows_adopt(cache, &view, err);
    firn_block_release(copy);
    return status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void firni_recurrent_deinit(firn_cache *cache)
{
    firni_recurrent_cache *recurrent = recurrent_of(cache);
    for (uint32_t i = 0; i < recurrent->n_kept_max; i++) {
        drop_snapshot(&recurrent->kept[i]);
        firni_free(cache->env, recurrent->kept[i].records);
    }
    firni_free(cache->env, recurrent->kept);
    recurrent->kept = NULL;
    recurrent->n_kept_max = 0;
    firni_rows_deinit(cache);
}

void firni_recurrent_check(const firn_cache *cache)
{
    const firni_recurrent_cache *recurrent = (const firni_recurrent_cache *)cache;
    for (uint32_t i = 0; i < recurrent->n_kept_max; i++) {
        const firni_recurrent_kept *kept = &recurrent->kept[i];
        assert(kept->snapshot == NULL || (cache->round.is_open && i < recurrent->rows.rows.n_rows));
        assert(kept->n_records <= kept->n_records_max);
        (void)kept;
    }
    firni_rows_check(cache);
}
