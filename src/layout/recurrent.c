/*
 * Recurrent layers: geometry, and a step of many rows.
 *
 * A step is three passes over the tokens of the call, each cut into tasks that write apart from each other:
 *
 *      record      in an open round, the inputs
 *      convolve    task: the channels of one head of one row      conv tail, x in place; lengths of keys and queries
 *      update      task: one state head of one row                state, out
 *
 * Within a task tokens go one after the other, so a token's bits do not depend on how many are in the call, nor on the
 * other rows or the threads. The arithmetic is the kernel's, rows are rows.c.
 */
#include "base/base_impl.h"
#include "layout/recurrent_impl.h"

#define STATE_ALIGN 64u
#define HEADS_MAX 1024u
#define DIM_MAX 1024u
#define FIXED_BYTES_MAX (1u << 30)

/* Below these numbers of tokens a pass is done before another thread would have woken up. A state is large enough for
 * any. */
#define TOKENS_FOR_WORKERS 4u

static firni_recurrent_cache *recurrent_of(firn_cache *cache)
{
    return (firni_recurrent_cache *)cache;
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

static firn_status check_options(const char *family, const firn_cache_options *options, firn_error *err)
{
    if (options->window != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s has no window; %u was given", family, options->window);
    }
    if (options->n_kv_heads < 1 || options->n_kv_heads > HEADS_MAX || options->n_state_heads < 1 ||
        options->n_state_heads > HEADS_MAX || options->n_state_heads % options->n_kv_heads != 0) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "%s takes 1 to %u key heads and a multiple of them as state heads, not %u and %u", family,
                          HEADS_MAX, options->n_kv_heads, options->n_state_heads);
    }
    if (options->head_dim < 1 || options->head_dim > DIM_MAX || options->value_dim > DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes state matrices of 1 to %u elements each way, not %u and %u",
                          family, DIM_MAX, options->head_dim, options->value_dim);
    }
    if (options->conv_width < 1 || options->conv_width > FIRNI_CONV_WIDTH_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes a convolution over 1 to %u tokens, not %u", family,
                          FIRNI_CONV_WIDTH_MAX, options->conv_width);
    }
    return FIRN_OK;
}

firn_status firni_recurrent_init(firn_cache *cache, firn_error *err)
{
    firn_cache_options *options = &cache->options;
    /* Rounding a state once a token would add up over thousands of them: it is f32 whatever keys and values are. */
    options->dtype = FIRN_DTYPE_F32;
    options->value_dim = options->value_dim != 0 ? options->value_dim : options->head_dim;
    const firn_status status = check_options(cache->ops->family, options, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_recurrent_geometry *geometry = &recurrent_of(cache)->geometry;
    /* At most 3 * 2^20 channels and 2^20 floats a head. */
    geometry->n_channels =
        2 * options->n_kv_heads * options->head_dim + options->n_state_heads * options->value_dim;
    geometry->head_floats = (uint32_t)firni_round_up(options->value_dim, FIRNI_STATE_COLUMNS) * options->head_dim;
    const uint64_t conv_floats = (uint64_t)(options->conv_width - 1) * geometry->n_channels;
    const uint64_t state_offset = firni_round_up(conv_floats * sizeof(float), STATE_ALIGN);
    const uint64_t state_floats = (uint64_t)options->n_state_heads * geometry->head_floats;
    const uint64_t fixed_bytes = firni_round_up(state_offset + state_floats * sizeof(float), FIRN_BLOCK_ALIGN);
    if (fixed_bytes > FIXED_BYTES_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: %u heads of %u by %u are a state of %llu bytes; at most %u",
                          cache->ops->family, options->n_state_heads, options->head_dim, options->value_dim,
                          (unsigned long long)fixed_bytes, FIXED_BYTES_MAX);
    }
    geometry->state_offset = (size_t)state_offset;
    cache->fixed_bytes = (size_t)fixed_bytes;
    firni_cache_set_describe(cache, "%s f32 heads=%u%s%u dim=%u/%u conv=%u", cache->signature, options->n_state_heads,
                             options->keys_cycle ? "%" : "/", options->n_kv_heads, options->head_dim,
                             options->value_dim, options->conv_width);
    return FIRN_OK;
}

uint64_t firni_recurrent_bytes_per_token(const firn_cache *cache)
{
    (void)cache;
    return 0;
}

/* In an open round a row's state covers tokens that may be taken back. */
bool firni_recurrent_can_publish(const firn_cache *cache, uint32_t row, uint32_t tokens)
{
    return !cache->round.is_open && firni_rows_can_publish(cache, row, tokens);
}

firn_status firni_recurrent_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    if (cache->round.is_open) {
        const firn_status status = firni_recurrent_reserve_records(cache, counts, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return firni_rows_reserve(cache, counts, err);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

typedef struct recur_job {
    firn_cache *cache;
    const firn_recur_input *input;
    const uint32_t *counts;
    uint32_t n_parts; /* tasks of one row */
} recur_job;

/* One task: a part of one row's tokens. */
typedef struct recur_place {
    uint32_t row;
    uint32_t part;
    uint64_t packed; /* index of the row's first token among the packed ones */
} recur_place;

/* Rows without tokens have tasks too, which do nothing: their number is small, and the index needs no list. */
static recur_place place_of(const recur_job *job, uint32_t index)
{
    recur_place place = { .row = index / job->n_parts, .part = index % job->n_parts };
    for (uint32_t r = 0; r < place.row; r++) {
        place.packed += job->counts[r];
    }
    return place;
}

/* Parts: query heads, key heads, value heads. Keys and queries are normalised here, once, and not by each of the state
 * heads that share them. */
static void convolve_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const recur_job *job = ctx;
    const recur_place place = place_of(job, index);
    const firn_cache *cache = job->cache;
    const firn_cache_options *options = &cache->options;
    const firni_recurrent_geometry *geometry = firni_recurrent_geometry_of(cache);
    const firn_recur_input *input = job->input;
    const uint32_t n_tokens = job->counts[place.row];
    if (n_tokens == 0) {
        return;
    }
    const bool is_query = place.part < options->n_kv_heads;
    const bool is_key = !is_query && place.part < 2 * options->n_kv_heads;
    const uint32_t dim = is_query || is_key ? options->head_dim : options->value_dim;
    uint32_t first = geometry->v_channel + (place.part - 2 * options->n_kv_heads) * dim;
    if (is_query) {
        first = geometry->q_channel + place.part * dim;
    } else if (is_key) {
        first = geometry->k_channel + (place.part - options->n_kv_heads) * dim;
    }
    float *x = input->x + place.packed * input->x_stride + first;
    const firni_conv_task task = {
        .x = x,
        .tail = firni_recurrent_conv(firni_rows_of(cache)->row[place.row].fixed) + first,
        .weight = input->conv_weight + first,
        .bias = input->conv_bias != NULL ? input->conv_bias + first : NULL,
        .x_stride = input->x_stride,
        .row_stride = geometry->n_channels,
        .n_tokens = n_tokens,
        .n_channels = dim,
        .width = options->conv_width,
    };
    cache->kernels->conv_silu(&task);
    for (uint32_t t = 0; t < n_tokens && geometry->is_delta && (is_query || is_key); t++) {
        cache->kernels->l2_norm(x + (size_t)t * input->x_stride, dim, input->norm_eps, is_query ? input->scale : 1.0F);
    }
}

void firni_recurrent_fill_task(const firn_cache *cache, firn_block *block, uint32_t head, const float *x,
                               const float *decay, const float *strength, firni_recur_task *task)
{
    const firn_cache_options *options = &cache->options;
    const firni_recurrent_geometry *geometry = firni_recurrent_geometry_of(cache);
    const uint32_t key_head = options->keys_cycle ? head % options->n_kv_heads
                                                  : head / (options->n_state_heads / options->n_kv_heads);
    assert(firn_block_refs(block) == 1);
    task->state = firni_recurrent_state(cache, block, head);
    task->q = x + geometry->q_channel + key_head * options->head_dim;
    task->k = x + geometry->k_channel + key_head * options->head_dim;
    task->v = x + geometry->v_channel + head * options->value_dim;
    task->decay = decay + head;
    task->strength = strength + head;
    task->n_keys = options->head_dim;
    task->n_values = options->value_dim;
    task->is_delta = geometry->is_delta;
}

/* Parts: state heads. */
static void update_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const recur_job *job = ctx;
    const recur_place place = place_of(job, index);
    const firn_recur_input *input = job->input;
    const uint32_t head = place.part;
    if (job->counts[place.row] == 0) {
        return;
    }
    firni_recur_task task = {
        .out = input->out + place.packed * input->out_stride + (size_t)head * job->cache->options.value_dim,
        .x_stride = input->x_stride,
        .gate_stride = input->gate_stride,
        .out_stride = input->out_stride,
        .n_tokens = job->counts[place.row],
        .skip = input->skip != NULL ? input->skip[head] : 0.0F,
    };
    firni_recurrent_fill_task(job->cache, firni_rows_of(job->cache)->row[place.row].fixed, head,
                              input->x + place.packed * input->x_stride,
                              input->decay + place.packed * input->gate_stride,
                              input->strength + place.packed * input->gate_stride, &task);
    job->cache->kernels->recur(&task);
}

void firni_recurrent_recur(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts,
                           firn_workers *workers)
{
    const firn_cache_options *options = &cache->options;
    const uint32_t n_rows = firni_rows_of(cache)->n_rows;
    uint64_t n_tokens = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        n_tokens += counts[r];
    }
    if (cache->round.is_open) {
        firni_recurrent_record_inputs(cache, input, counts);
    }
    recur_job convolve = {
        .cache = cache,
        .input = input,
        .counts = counts,
        .n_parts = 2 * options->n_kv_heads + options->n_state_heads,
    };
    firn_workers_run(n_tokens < TOKENS_FOR_WORKERS ? NULL : workers, n_rows * convolve.n_parts, convolve_task,
                     &convolve);
    if (cache->round.is_open) {
        firni_recurrent_record_convolved(cache, input, counts);
    }
    recur_job update = { .cache = cache, .input = input, .counts = counts, .n_parts = options->n_state_heads };
    firn_workers_run(workers, n_rows * update.n_parts, update_task, &update);
    firni_rows_advance(cache, counts);
}
