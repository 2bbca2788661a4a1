/*
 * kv:plain: keys and values as f32, f16 or bf16, one block for 64 tokens of all heads. The reference family.
 *
 *      0                        v_offset (64-byte aligned)            block_bytes (multiple of 4096)
 *      | K [n_kv_heads][head_dim][64] | V [n_kv_heads][64][value_dim] | unused |
 *
 * Keys lie dimension-major: the 64 tokens of one dimension are neighbours, so scores are computed with tokens in the
 * lanes of a register and without a sum across it. Values lie token-major, since each is scaled as a whole.
 *
 * Owns geometry and the order of storing, for window.c as well. The arithmetic is the kernel's, rows are rows.c, the
 * cutting into tasks is tasks.c.
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

#define PLANE_ALIGN 64u

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
    if (options->key_bits != 0 || options->value_bits != 0 || options->group != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s does not quantise: bits of %u and %u and groups of %u do not fit",
                          family, options->key_bits, options->value_bits, options->group);
    }
    if (options->n_kv_heads < 1 || options->n_kv_heads > FIRNI_KV_HEADS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes 1 to %u key/value heads, not %u", family, FIRNI_KV_HEADS_MAX,
                          options->n_kv_heads);
    }
    if (options->head_dim < 1 || options->head_dim > FIRNI_HEAD_DIM_MAX || options->value_dim > FIRNI_HEAD_DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s takes heads of 1 to %u elements, not %u and %u", family,
                          FIRNI_HEAD_DIM_MAX, options->head_dim, options->value_dim);
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
    firni_cache_set_describe(cache, "%s %s heads=%u dim=%u/%u block=%u", cache->signature,
                             firn_dtype_name(options->dtype), options->n_kv_heads, options->head_dim,
                             options->value_dim, FIRN_BLOCK_TOKENS);
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

/* ---- append and attend ------------------------------------------------------------------------------------------- */

static void store_token(const firn_cache *cache, uint8_t *block, uint32_t lane, const float *k, const float *v)
{
    cache->kernels->store_plain(geometry_of(cache), block, lane, k, v);
}

void firni_plain_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    firni_append_tokens(cache, input, counts, workers, store_token);
}

static void attend_span(const firn_cache *cache, firni_attend_task *task)
{
    task->geometry = geometry_of(cache);
    cache->kernels->attend_plain(task);
}

void firni_plain_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers)
{
    firni_attend_heads(cache, input, counts, workers, attend_span);
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
    FIRNI_ROWS_MEMBERS,
    .bytes_per_token = firni_plain_bytes_per_token,
    .planes = firni_plain_planes,
    .append = firni_plain_append,
    .attend = firni_plain_attend,
    .state = firni_plain_state,
};
