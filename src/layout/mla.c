/*
 * kv:mla: the compressed state of multi-head latent attention, one vector per token for all query heads.
 *
 *      0                                     index_offset (64-byte aligned)    block_bytes (multiple of 4096)
 *      | keys [64][latent | rope key]        | index keys [index_dim][64]      | unused |
 *                                             kv:mla:dsa alone
 *
 * A key is the token's latent, after its norm, followed by its rotated position key; its value is the latent itself. It
 * is stored once: no per-head keys or values and no second copy as values exist. Keys lie token-major, so that the same
 * bytes serve as values and a sparse query reads the tokens it selected and no others. Index keys lie in the same
 * block: latents and index keys of a token cannot advance, be cut, shared or stored apart from each other.
 *
 * kv:mla:mtp is the same for the row of a drafter that has a layer of its own: another signature, so that a drafter's
 * state is never taken for the model's.
 *
 * Owns geometry and order of storing, for mla_dsa.c as well. The arithmetic is the kernel's, rows are rows.c.
 * Source: DeepSeek-V2 (arXiv 2405.04434, section 2.1).
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

#define PLANE_ALIGN 64u

/* Queries of one attention task. */
#define TASK_QUERIES 16u

static const firni_latent_geometry *geometry_of(const firn_cache *cache)
{
    return &((const firni_mla_cache *)cache)->geometry;
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

static firn_status complete_options(const char *family, firn_cache_options *options, firn_error *err)
{
    options->dtype = options->dtype != FIRN_DTYPE_NONE ? options->dtype : FIRN_DTYPE_F16;
    options->n_kv_heads = options->n_kv_heads != 0 ? options->n_kv_heads : 1;
    options->value_dim = options->value_dim != 0 ? options->value_dim : options->head_dim;
    if (options->dtype != FIRN_DTYPE_F32 && options->dtype != FIRN_DTYPE_F16 && options->dtype != FIRN_DTYPE_BF16) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s stores f32, f16 or bf16, not dtype %d (%s)", family,
                          (int)options->dtype, firn_dtype_name(options->dtype));
    }
    if (options->n_kv_heads != 1) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s has one key/value head, not %u", family, options->n_kv_heads);
    }
    if (options->head_dim < 1 || options->head_dim > FIRNI_HEAD_DIM_MAX || options->value_dim > options->head_dim) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes keys of 1 to %u elements that begin with their value, not "
                          "%u and %u", family, FIRNI_HEAD_DIM_MAX, options->head_dim, options->value_dim);
    }
    if (options->window != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s keeps all tokens; a window of %u does not fit", family,
                          options->window);
    }
    if (options->key_bits != 0 || options->value_bits != 0 || options->group != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s does not quantise: bits of %u and %u and groups of %u do not fit",
                          family, options->key_bits, options->value_bits, options->group);
    }
    return FIRN_OK;
}

firn_status firni_mla_init_geometry(firn_cache *cache, firn_error *err)
{
    const firn_status status = complete_options(cache->ops->family, &cache->options, err);
    if (status != FIRN_OK) {
        return status;
    }
    /* At most 2^10 elements of 4 bytes for 64 tokens in each plane. */
    const firn_cache_options *options = &cache->options;
    const uint32_t lane_bytes = (uint32_t)firn_dtype_bytes(options->dtype) * FIRN_BLOCK_TOKENS;
    const uint64_t index_offset_bytes = firni_round_up((uint64_t)lane_bytes * options->head_dim, PLANE_ALIGN);
    ((firni_mla_cache *)cache)->geometry = (firni_latent_geometry){
        .dtype = options->dtype,
        .head_dim = options->head_dim,
        .value_dim = options->value_dim,
        .index_dim = options->index_dim,
        .index_offset_bytes = (uint32_t)index_offset_bytes,
    };
    const uint64_t n_bytes = index_offset_bytes + (uint64_t)lane_bytes * options->index_dim;
    cache->block_bytes = (size_t)firni_round_up(n_bytes, FIRN_BLOCK_ALIGN);
    return FIRN_OK;
}

static firn_status mla_init(firn_cache *cache, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (options->index_dim != 0 || options->index_top_k != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s has no index keys: %u elements and %u tokens belong to kv:mla:dsa",
                          cache->ops->family, options->index_dim, options->index_top_k);
    }
    const firn_status status = firni_mla_init_geometry(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_cache_set_describe(cache, "%s %s dim=%u/%u block=%u", cache->signature, firn_dtype_name(options->dtype),
                             options->head_dim, options->value_dim, FIRN_BLOCK_TOKENS);
    return FIRN_OK;
}

/* What one more token adds, without the rounding of blocks: its value costs nothing beside its key. */
uint64_t firni_mla_bytes_per_token(const firn_cache *cache)
{
    const firn_cache_options *options = &cache->options;
    return (uint64_t)(options->head_dim + options->index_dim) * firn_dtype_bytes(options->dtype);
}

uint32_t firni_mla_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const firni_latent_geometry *geometry = geometry_of(cache);
    const uint32_t lane_bytes = FIRN_BLOCK_TOKENS * (uint32_t)firn_dtype_bytes(geometry->dtype);
    planes[0] = (firn_plane){
        .name = "latent",
        .dtype = geometry->dtype,
        .n_dims = 3,
        .shape = { 1, FIRN_BLOCK_TOKENS, geometry->head_dim },
        .offset_bytes = 0,
        .n_bytes = lane_bytes * geometry->head_dim,
    };
    if (geometry->index_dim == 0) {
        return 1;
    }
    planes[1] = (firn_plane){
        .name = "index",
        .dtype = geometry->dtype,
        .n_dims = 3,
        .shape = { 1, geometry->index_dim, FIRN_BLOCK_TOKENS },
        .offset_bytes = geometry->index_offset_bytes,
        .n_bytes = lane_bytes * geometry->index_dim,
    };
    return 2;
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

static void store_token(const firn_cache *cache, uint8_t *block, uint32_t lane, const float *k, const float *index_key)
{
    cache->kernels->store_latent(geometry_of(cache), block, lane, k, index_key);
}

/* Index keys travel as the second array of a token, in the place of values. */
void firni_mla_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts, firn_workers *workers)
{
    const bool has_index = input->index_key != NULL;
    const firn_append_input arrays = {
        .k = input->k,
        .k_stride = input->k_stride,
        .v = has_index ? input->index_key : input->k,
        .v_stride = has_index ? input->index_stride : input->k_stride,
    };
    firni_append_tokens(cache, &arrays, counts, workers, store_token);
}

/* ---- attend ------------------------------------------------------------------------------------------------------ */

typedef struct attend_job {
    const firn_cache *cache;
    const firn_attend_input *input;
    const uint32_t *counts;
    uint32_t n_parts; /* of the heads */
} attend_job;

firni_attend_task firni_mla_task(const firn_cache *cache, const firn_attend_input *input, const firni_span *span)
{
    return (firni_attend_task){
        .latent = geometry_of(cache),
        .blocks = firni_rows_of(cache)->row[span->row].blocks,
        .group_size = input->n_heads,
        .n_queries = span->n_tokens,
        .first_position = span->position,
        .q = input->q + span->packed * input->q_stride,
        .out = input->out + span->packed * input->out_stride,
        .q_stride = input->q_stride,
        .out_stride = input->out_stride,
        .scale = input->scale,
        .softcap = input->softcap,
        .sinks = input->sinks,
    };
}

/* Some queries of one row, for some of the heads. */
static void attend_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const attend_job *job = ctx;
    const firni_latent_geometry *geometry = geometry_of(job->cache);
    const firni_span span =
        firni_span_at(firni_rows_of(job->cache), job->counts, TASK_QUERIES, index / job->n_parts);
    const uint32_t part = index % job->n_parts;
    const uint32_t begin = (uint32_t)((uint64_t)job->input->n_heads * part / job->n_parts);
    const uint32_t end = (uint32_t)((uint64_t)job->input->n_heads * (part + 1) / job->n_parts);
    firni_attend_task task = firni_mla_task(job->cache, job->input, &span);
    task.group_size = end - begin;
    task.q += (size_t)begin * geometry->head_dim;
    task.out += (size_t)begin * geometry->value_dim;
    task.sinks = task.sinks != NULL ? task.sinks + begin : NULL;
    job->cache->kernels->attend_latent(&task);
}

/* All heads read the same keys, so one pass over a row's blocks serves them all; they are divided only when there are
 * fewer spans than threads, as in the decode of one row. A head's bits do not depend on its company. */
static void mla_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                       firn_workers *workers)
{
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, TASK_QUERIES);
    const uint32_t n_threads = firn_workers_count(workers);
    uint32_t n_parts = n_spans == 0 || n_spans >= n_threads ? 1 : (n_threads + n_spans - 1) / n_spans;
    n_parts = n_parts < input->n_heads ? n_parts : input->n_heads;
    attend_job job = { .cache = cache, .input = input, .counts = counts, .n_parts = n_parts };
    firn_workers_run(workers, n_spans * n_parts, attend_task, &job);
}

/* ---- dense view -------------------------------------------------------------------------------------------------- */

/* Latents with rope keys [B, 1, S, head_dim], borrowed where one block is all; then index keys [B, 1, S, index_dim]. */
firn_status firni_mla_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err)
{
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    const uint32_t n_planes = firni_mla_planes(cache, planes);
    firn_status status = firni_dense_plane(cache, &planes[0], 1, &tensors[0], err);
    if (status == FIRN_OK && n_planes > 1) {
        status = firni_dense_plane(cache, &planes[1], 2, &tensors[1], err);
        if (status != FIRN_OK) {
            firn_tensor_deinit(&tensors[0]);
        }
    }
    *n_tensors = status == FIRN_OK ? n_planes : 0;
    return status;
}

#define MLA_MEMBERS                                                                                                   \
    .instance_bytes = sizeof(firni_mla_cache), .init = mla_init, FIRNI_ROWS_MEMBERS,                                  \
    .bytes_per_token = firni_mla_bytes_per_token, .planes = firni_mla_planes, .append = firni_mla_append,             \
    .attend = mla_attend, .state = firni_mla_state

const firni_layout firni_layout_mla = { .family = "kv:mla", MLA_MEMBERS };
const firni_layout firni_layout_mla_mtp = { .family = "kv:mla:mtp", MLA_MEMBERS };
