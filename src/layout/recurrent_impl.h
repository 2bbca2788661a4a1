/*
 * recurrent: what the layouts of recurrent layers share. A row is one block of fixed size:
 *
 *      0                              state_offset                                   fixed_bytes
 *      | conv [conv_width - 1][channels] | state [n_state_heads][tiles][head_dim][16] | unused |      all f32
 *
 * `conv` holds the last inputs of the convolution, oldest first; before the first token they are zero, as the state is.
 * The state of a head lies in tiles of 16 columns (kernel/recur.h).
 *
 *      recurrent.c         geometry, a step: record, convolve, update
 *      recurrent_round.c   speculative rounds: a snapshot, the tokens of the round, replay
 *      recurrent_view.c    planes and the dense view
 *      gated_delta.c, mamba2.c   the tables
 */
#ifndef FIRNI_RECURRENT_IMPL_H
#define FIRNI_RECURRENT_IMPL_H

#include "layout/layout_impl.h"

/* Where the parts of a token's channels begin, and of a row's block. */
typedef struct firni_recurrent_geometry {
    bool is_delta;          /* keys and queries have length 1; the delta rule */
    uint32_t n_channels;
    uint32_t q_channel;
    uint32_t k_channel;
    uint32_t v_channel;
    uint32_t head_floats;   /* of one state matrix, in tiles */
    size_t state_offset;    /* bytes */
} firni_recurrent_geometry;

/* One row of an open round. A record is what replaying one token takes: its inputs, what the convolution made of them,
 * decay and strength of each head. */
typedef struct firni_recurrent_kept {
    firn_block *snapshot;   /* the state when the round began; NULL: an empty row */
    float *records;         /* outlives the round */
    uint32_t n_records;     /* tokens of this round */
    uint32_t n_records_max;
} firni_recurrent_kept;

typedef struct firni_recurrent_cache {
    firni_block_cache rows;
    firni_recurrent_geometry geometry;
    firni_recurrent_kept *kept; /* [n_kept_max]; rows do not move while a round is open */
    uint32_t n_kept_max;
} firni_recurrent_cache;

static_assert(offsetof(firni_recurrent_cache, rows) == 0, "a recurrent cache is a block cache");

FIRNI_INLINE const firni_recurrent_geometry *firni_recurrent_geometry_of(const firn_cache *cache)
{
    return &((const firni_recurrent_cache *)cache)->geometry;
}

FIRNI_INLINE float *firni_recurrent_conv(const firn_block *block)
{
    return (float *)(void *)firn_block_data(block);
}

FIRNI_INLINE float *firni_recurrent_state(const firn_cache *cache, const firn_block *block, uint32_t head)
{
    const firni_recurrent_geometry *geometry = firni_recurrent_geometry_of(cache);
    float *first = (float *)(void *)(firn_block_data(block) + geometry->state_offset);
    return first + (size_t)head * geometry->head_floats;
}

/* The update of one head by n_tokens tokens whose convolved channels, decays and strengths lie as the strides of `task`
 * say; `x`, `decay` and `strength` are of the first token. */
void firni_recurrent_fill_task(const firn_cache *cache, firn_block *block, uint32_t head, const float *x,
                               const float *decay, const float *strength, firni_recur_task *task);

/* Checks and completes the options; fills the geometry but for the channels' order. */
firn_status firni_recurrent_init(firn_cache *cache, firn_error *err);

/* Table members of this name. */
void firni_recurrent_deinit(firn_cache *cache);
firn_status firni_recurrent_share_row(firn_cache *cache, const firn_cache *source, uint32_t row, firn_error *err);
bool firni_recurrent_can_publish(const firn_cache *cache, uint32_t row, uint32_t tokens);
uint64_t firni_recurrent_bytes_per_token(const firn_cache *cache);
uint32_t firni_recurrent_fixed_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
firn_status firni_recurrent_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err);
void firni_recurrent_recur(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts,
                           firn_workers *workers);
firn_status firni_recurrent_dense(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);
firn_status firni_recurrent_spec_begin(firn_cache *cache, firn_error *err);
void firni_recurrent_spec_commit(firn_cache *cache);
void firni_recurrent_spec_rollback(firn_cache *cache, const uint32_t *drop);
void firni_recurrent_check(const firn_cache *cache);

/* ---- recurrent_round.c, for a step in an open round ---- */

/* Room for counts[r] more records in each row. Errors: NO_MEMORY. */
firn_status firni_recurrent_reserve_records(firn_cache *cache, const uint32_t *counts, firn_error *err);
/* Before the convolution: begins the records of these tokens. */
void firni_recurrent_record_inputs(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts);
/* After it, for the same tokens. */
void firni_recurrent_record_convolved(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts);

/* The members that both tables have alike. */
#define FIRNI_RECURRENT_MEMBERS                                                                                       \
    .instance_bytes = sizeof(firni_recurrent_cache), .deinit = firni_recurrent_deinit,                               \
    .batch_size = firni_rows_batch_size, .row_tokens = firni_rows_tokens, .add_row = firni_rows_add,                  \
    .view_row = firni_rows_view, .adopt_row = firni_rows_adopt, .share_row = firni_recurrent_share_row,               \
    .filter_rows = firni_rows_filter, .trimmable_tokens = firni_rows_trimmable,                                       \
    .can_publish_row = firni_recurrent_can_publish, .bytes_per_token = firni_recurrent_bytes_per_token,               \
    .projected_bytes = firni_rows_projected_bytes, .working_bytes = firni_rows_working_bytes,                         \
    .fixed_planes = firni_recurrent_fixed_planes, .reserve = firni_recurrent_reserve,                                 \
    .recur = firni_recurrent_recur, .state = firni_recurrent_dense, .spec_begin = firni_recurrent_spec_begin,         \
    .spec_commit = firni_recurrent_spec_commit, .spec_rollback = firni_recurrent_spec_rollback,                       \
    .check = firni_recurrent_check

#endif
