/*
 * The dense view: planes of ragged rows gathered into rectangles for engines that need them. The one place where
 * padding exists, and the one reader of the cache that copies; nothing inside Firn uses it to compute.
 *
 *      rows of 3 and 5 tokens       [ 0 0 a b c ]      right-justified: the newest tokens of all rows stand in one
 *                                   [ d e f g h ]      column, as attention masks of rectangular engines expect
 *
 * A window row shows the tokens of its window and no others, whatever blocks it still holds: equal rows look equal,
 * however they came about.
 */
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "layout/layout_impl.h"

/* Sizes of a plane in elements and bytes, whichever axis its tokens are on. */
typedef struct dense_shape {
    uint32_t n_heads;
    uint32_t inner;
    size_t element_bytes;
    bool is_token_major;
    uint32_t offset_bytes;
} dense_shape;

/* `n` elements that lie `stride_bytes` apart, side by side. Constant sizes let the compiler see plain moves. */
static void gather(uint8_t *dst, const uint8_t *src, uint32_t n, size_t stride_bytes, size_t element_bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *from = src + i * stride_bytes;
        switch (element_bytes) {
        case 4: memcpy(dst + i * (size_t)4, from, 4); break;
        case 2: memcpy(dst + i * (size_t)2, from, 2); break;
        default: memcpy(dst + i * element_bytes, from, element_bytes); break;
        }
    }
}

/* n_tokens from first_lane on of one head's plane of one block, token-major, to dst. */
static void copy_head(uint8_t *dst, const uint8_t *plane, uint32_t first_lane, uint32_t n_tokens,
                      const dense_shape *shape)
{
    const size_t token_bytes = shape->inner * shape->element_bytes;
    if (shape->is_token_major) {
        memcpy(dst, plane + first_lane * token_bytes, n_tokens * token_bytes);
        return;
    }
    const size_t lanes_bytes = FIRN_BLOCK_TOKENS * shape->element_bytes;
    for (uint32_t t = 0; t < n_tokens; t++) {
        gather(dst + t * token_bytes, plane + (first_lane + t) * shape->element_bytes, shape->inner, lanes_bytes,
               shape->element_bytes);
    }
}

uint32_t firni_dense_tokens(const firn_cache *cache, uint32_t n_tokens)
{
    const uint32_t window = cache->options.window;
    return window > 0 && window < n_tokens ? window : n_tokens;
}

/* The last n_shown tokens of a row into its [n_heads][width][inner] part of the rectangle. */
static void copy_row(uint8_t *dst, const firn_row_view *view, uint32_t n_shown, uint32_t width,
                     const dense_shape *shape)
{
    const size_t token_bytes = shape->inner * shape->element_bytes;
    const size_t head_bytes = token_bytes * FIRN_BLOCK_TOKENS;
    const uint32_t left_pad = width - n_shown;
    for (uint32_t h = 0; h < shape->n_heads; h++) {
        uint8_t *head = dst + h * (width * token_bytes);
        memset(head, 0, left_pad * token_bytes);
        head += left_pad * token_bytes;
        for (uint32_t at = view->n_tokens - n_shown; at < view->n_tokens;) {
            const uint32_t lane = at % FIRN_BLOCK_TOKENS;
            const uint32_t n_left = view->n_tokens - at;
            const uint32_t n = n_left < FIRN_BLOCK_TOKENS - lane ? n_left : FIRN_BLOCK_TOKENS - lane;
            const firn_block *block = view->blocks[at / FIRN_BLOCK_TOKENS - view->first_block];
            copy_head(head, firn_block_data(block) + shape->offset_bytes + h * head_bytes, lane, n, shape);
            head += n * token_bytes;
            at += n;
        }
    }
}

/* Whether the only row's only block holds the plane as the dense view wants it: from its first token on, and all heads
 * without a gap. */
static bool can_borrow(const firn_cache *cache, const dense_shape *shape)
{
    const uint32_t offset = firn_cache_offset(cache);
    return shape->is_token_major && firn_cache_batch_size(cache) == 1 && offset > 0 && offset <= FIRN_BLOCK_TOKENS &&
           firni_dense_tokens(cache, offset) == offset && (shape->n_heads == 1 || offset == FIRN_BLOCK_TOKENS);
}

firn_status firni_dense_plane(const firn_cache *cache, const firn_plane *plane, uint32_t token_axis,
                              firn_tensor *tensor, firn_error *err)
{
    assert(plane->n_dims == 3 && (token_axis == 1 || token_axis == 2));
    assert(plane->shape[token_axis] == FIRN_BLOCK_TOKENS);
    const dense_shape shape = {
        .n_heads = plane->shape[0],
        .inner = plane->shape[3 - token_axis],
        .element_bytes = firn_dtype_bytes(plane->dtype),
        .is_token_major = token_axis == 1,
        .offset_bytes = plane->offset_bytes,
    };
    const uint32_t n_rows = firn_cache_batch_size(cache);
    const uint32_t width = firni_dense_tokens(cache, firn_cache_offset(cache));
    const uint64_t extents[4] = { n_rows, shape.n_heads, width, shape.inner };

    if (can_borrow(cache, &shape)) {
        const firn_row_view view = firn_cache_view_row(cache, 0);
        *tensor = (firn_tensor){
            .dtype = plane->dtype,
            .n_dims = 4,
            .shape = { extents[0], extents[1], extents[2], extents[3] },
            .data = firn_block_data(view.blocks[0]) + shape.offset_bytes,
            .n_bytes = (uint64_t)shape.n_heads * width * shape.inner * shape.element_bytes,
            .owned = false,
        };
        return FIRN_OK;
    }
    const firn_status status = firni_tensor_alloc(tensor, plane->dtype, 4, extents, cache->env, err);
    if (status != FIRN_OK || tensor->n_bytes == 0) {
        return status;
    }
    /* Not empty, so there is at least one row. */
    const size_t row_bytes = (size_t)tensor->n_bytes / n_rows;
    for (uint32_t r = 0; r < n_rows; r++) {
        const firn_row_view view = firn_cache_view_row(cache, r);
        copy_row((uint8_t *)tensor->data + r * row_bytes, &view, firni_dense_tokens(cache, view.n_tokens), width,
                 &shape);
    }
    return FIRN_OK;
}

firn_status firni_dense_parts(firn_cache *const *parts, uint32_t n_parts, firn_tensor *tensors, uint32_t *n_tensors,
                              firn_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t n_part;
        const firn_status status = firn_cache_state(parts[i], tensors + n, &n_part, err);
        if (status != FIRN_OK) {
            while (n > 0) {
                firn_tensor_deinit(&tensors[--n]);
            }
            return status;
        }
        n += n_part;
    }
    *n_tensors = n;
    return FIRN_OK;
}
