/*
 * kv:plain: keys and values as f32, f16 or bf16, one block for 64 tokens of all heads. The reference family.
 *
 *      0                        v_offset (64-byte aligned)            block_bytes (multiple of 4096)
 *      | K [n_kv_heads][head_dim][64] | V [n_kv_heads][64][value_dim] | unused |
 *
 * Keys lie dimension-major: the 64 tokens of one dimension are neighbours, so scores are computed with tokens in the
 * lanes of a register and without a sum across it. Values lie token-major, since each is scaled as a whole.
 *
 * Owns geometry, the cutting into tasks and the order of storing, for window.c as well. The arithmetic is the kernel's,
 * rows are rows.c.
 */
#include <stdio.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

#define PLANE_ALIGN 64u

#define HEADS_MAX 1024u
#define DIM_MAX   FIRNI_HEAD_DIM_MAX

/* Queries of one attention task. A task reads the row's blocks of one KV head once for all its queries, so more of them
 * save reading; fewer spread a prefill better over the workers. */
#define TASK_QUERIES 16u

/* Below this many tokens an append is done before another thread would have woken up. */
#define TOKENS_FOR_WORKERS 16u

static const firni_plain_geometry *geometry_of(const firn_cache *cache)
{
    return &((const firni_plain_cache *)cache)->geometry;
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

/* The bounds are those of the kernels, and keep every size below in 32 bits. */
static firn_status complete_options(const char *family, firn_cache_options *options, firn_error *err)
{
    options->dtype = options->dtype != FIRN_DTYPE_NONE ? options->dtype : FIRN_DTYPE_F16;
    options->value_dim = options->value_dim != 0 ? options->value_dim : options->head_dim;
    if (options->dtype != FIRN_DTYPE_F32 && options->dtype != FIRN_DTYPE_F16 && options->dtype != FIRN_DTYPE_BF16) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s stores f32, f16 or bf16, not dtype %d (%s)", family,
                          (int)options->dtype, firn_dtype_name(options->dtype));
    }
    if (options->n_kv_heads < 1 || options->n_kv_heads > HEADS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes 1 to %u key/value heads, not %u", family, HEADS_MAX,
                          options->n_kv_heads);
    }
    if (options->head_dim < 1 || options->head_dim > DIM_MAX || options->value_dim > DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes heads of 1 to %u elements, not %u and %u", family,
                          DIM_MAX, options->head_dim, options->value_dim);
    }
    return FIRN_OK;
}

firn_status firni_plain_init_geometry(firn_cache *cache, firn_error *err)
{
    const firn_status status = complete_options(cache->ops->family, &cache->options, err);
    if (status != FIRN_OK) {
        return status;
    }
    /* At most 2^10 heads of 2^10 elements of 4 bytes for 64 tokens: each plane fits in 2^28 bytes. */
    const firn_cache_options *options = &cache->options;
    const uint64_t element_bytes = firn_dtype_bytes(options->dtype);
    const uint64_t lane_bytes = options->n_kv_heads * element_bytes * FIRN_BLOCK_TOKENS;
    const uint64_t v_offset_bytes = firni_round_up(lane_bytes * options->head_dim, PLANE_ALIGN);
    ((firni_plain_cache *)cache)->geometry = (firni_plain_geometry){
        .dtype = options->dtype,
        .n_kv_heads = options->n_kv_heads,
        .head_dim = options->head_dim,
        .value_dim = options->value_dim,
        .v_offset_bytes = (uint32_t)v_offset_bytes,
    };
    cache->block_bytes = (size_t)firni_round_up(v_offset_bytes + lane_bytes * options->value_dim, FIRN_BLOCK_ALIGN);
    return FIRN_OK;
}

static firn_status plain_init(firn_cache *cache, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (options->window != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "kv:plain keeps all tokens; a window of %u belongs to kv:window",
                          options->window);
    }
    const firn_status status = firni_plain_init_geometry(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    const int len = snprintf(cache->describe, sizeof cache->describe, "%s %s heads=%u dim=%u/%u block=%u",
                             cache->signature, firn_dtype_name(options->dtype), options->n_kv_heads,
                             options->head_dim, options->value_dim, FIRN_BLOCK_TOKENS);
    assert(len > 0 && (size_t)len < sizeof cache->describe);
    (void)len;
    return FIRN_OK;
}

/* Without the padding between planes and the rounding of blocks: what one more token adds on average. */
uint64_t firni_plain_bytes_per_token(const firn_cache *cache)
{
    const firn_cache_options *options = &cache->options;
    return (uint64_t)options->n_kv_heads * (options->head_dim + options->value_dim) * firn_dtype_bytes(options->dtype);
}

uint32_t firni_plain_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const firni_plain_geometry *geometry = geometry_of(cache);
    const uint32_t lane_bytes = geometry->n_kv_heads * FIRN_BLOCK_TOKENS * (uint32_t)firn_dtype_bytes(geometry->dtype);
    planes[0] = (firn_plane){
        .name = "k",
        .dtype = geometry->dtype,
        .n_dims = 3,
        .shape = { geometry->n_kv_heads, geometry->head_dim, FIRN_BLOCK_TOKENS },
        .offset_bytes = 0,
        .n_bytes = lane_bytes * geometry->head_dim,
    };
    planes[1] = (firn_plane){
        .name = "v",
        .dtype = geometry->dtype,
        .n_dims = 3,
        .shape = { geometry->n_kv_heads, FIRN_BLOCK_TOKENS, geometry->value_dim },
        .offset_bytes = geometry->v_offset_bytes,
        .n_bytes = lane_bytes * geometry->value_dim,
    };
    return 2;
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

typedef struct append_job {
    const firn_cache *cache;
    const firn_append_input *input;
    const uint32_t *counts;
} append_job;

/* The new tokens of one block: no two tasks write to the same block. */
static void append_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const append_job *job = ctx;
    const firni_rows *rows = firni_rows_of(job->cache);
    const firni_span span = firni_span_at(rows, job->counts, FIRN_BLOCK_TOKENS, index);
    const firn_block *block = firni_row_block(&rows->row[span.row], span.position);
    assert(firn_block_refs(block) == 1);
    const float *k = job->input->k + span.packed * job->input->k_stride;
    const float *v = job->input->v + span.packed * job->input->v_stride;
    for (uint32_t i = 0; i < span.n_tokens; i++) {
        job->cache->kernels->store_plain(geometry_of(job->cache), firn_block_data(block),
                                         (span.position + i) % FIRN_BLOCK_TOKENS, k, v);
        k += job->input->k_stride;
        v += job->input->v_stride;
    }
}

void firni_plain_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    /* First, because spans are the last counts[r] tokens of a row, here as in attend. */
    firni_rows_advance(cache, counts);
    append_job job = { .cache = cache, .input = input, .counts = counts };
    uint64_t n_tokens = 0;
    for (uint32_t r = 0; r < firni_rows_of(cache)->n_rows; r++) {
        n_tokens += counts[r];
    }
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, FIRN_BLOCK_TOKENS);
    firn_workers_run(n_tokens < TOKENS_FOR_WORKERS ? NULL : workers, n_spans, append_task, &job);
}

/* ---- attend ------------------------------------------------------------------------------------------------------ */

typedef struct attend_job {
    const firn_cache *cache;
    const firn_attend_input *input;
    const uint32_t *counts;
} attend_job;

/* Some queries of one row for one KV head. A row's tokens are never divided: the sum over them is one chain. */
static void attend_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const attend_job *job = ctx;
    const firn_attend_input *input = job->input;
    const firni_plain_geometry *geometry = geometry_of(job->cache);
    const firni_rows *rows = firni_rows_of(job->cache);
    const uint32_t kv_head = index % geometry->n_kv_heads;
    const firni_span span = firni_span_at(rows, job->counts, TASK_QUERIES, index / geometry->n_kv_heads);
    const uint32_t group_size = input->n_heads / geometry->n_kv_heads;
    const size_t first_head = (size_t)kv_head * group_size;
    const firni_attend_task task = {
        .geometry = geometry,
        .blocks = rows->row[span.row].blocks,
        .first_block = rows->row[span.row].first_block,
        .kv_head = kv_head,
        .group_size = group_size,
        .n_queries = span.n_tokens,
        .first_position = span.position,
        .window = job->cache->options.window,
        .q = input->q + span.packed * input->q_stride + first_head * geometry->head_dim,
        .out = input->out + span.packed * input->out_stride + first_head * geometry->value_dim,
        .q_stride = input->q_stride,
        .out_stride = input->out_stride,
        .scale = input->scale,
        .softcap = input->softcap,
        .sinks = input->sinks != NULL ? input->sinks + first_head : NULL,
    };
    job->cache->kernels->attend_plain(&task);
}

/* Decode of B rows is B * n_kv_heads tasks; that a single row has no more than n_kv_heads is the price of exactness. */
void firni_plain_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    attend_job job = { .cache = cache, .input = input, .counts = counts };
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, TASK_QUERIES);
    firn_workers_run(workers, n_spans * geometry_of(cache)->n_kv_heads, attend_task, &job);
}

/* ---- dense view -------------------------------------------------------------------------------------------------- */

/* K is always an owned temporary, since blocks hold keys dimension-major; V is borrowed where one block is all. */
firn_status firni_plain_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    (void)firni_plain_planes(cache, planes);
    firn_status status = firni_dense_plane(cache, &planes[0], 2, &tensors[0], err);
    if (status != FIRN_OK) {
        return status;
    }
    status = firni_dense_plane(cache, &planes[1], 1, &tensors[1], err);
    if (status != FIRN_OK) {
        firn_tensor_deinit(&tensors[0]);
        return status;
    }
    *n_tensors = 2;
    return FIRN_OK;
}

const firni_layout firni_layout_plain = {
    .family = "kv:plain",
    .instance_bytes = sizeof(firni_plain_cache),
    .init = plain_init,
    .deinit = firni_rows_deinit,
    .batch_size = firni_rows_batch_size,
    .row_tokens = firni_rows_tokens,
    .add_row = firni_rows_add,
    .view_row = firni_rows_view,
    .adopt_row = firni_rows_adopt,
    .filter_rows = firni_rows_filter,
    .trim_row = firni_rows_trim,
    .bytes_per_token = firni_plain_bytes_per_token,
    .projected_bytes = firni_rows_projected_bytes,
    .working_bytes = firni_rows_working_bytes,
    .planes = firni_plain_planes,
    .reserve = firni_rows_reserve,
    .append = firni_plain_append,
    .attend = firni_plain_attend,
    .state = firni_plain_state,
    .check = firni_rows_check,
};
