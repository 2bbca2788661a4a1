/*
 * Dense arrays: the sizing, the allocation and the release of owned data. What a tensor means is its filler's business.
 */
#include <assert.h>
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"

#define DATA_ALIGN 64u /* a cache line, and the widest vector register */

firn_status firni_tensor_alloc(firn_tensor *tensor, firn_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                               const firn_env *env, firn_error *err)
{
    assert(n_dims <= FIRN_TENSOR_DIMS_MAX && firn_dtype_bytes(dtype) > 0);
    *tensor = (firn_tensor){ .dtype = FIRN_DTYPE_NONE };
    /* A zero extent is looked for first: the other extents of an empty array must not overflow the product. */
    size_t n_bytes = firn_dtype_bytes(dtype);
    for (uint32_t i = 0; i < n_dims; i++) {
        n_bytes = shape[i] == 0 ? 0 : n_bytes;
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        if (shape[i] > SIZE_MAX || !firni_mul_size(n_bytes, (size_t)shape[i], &n_bytes)) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "a dense array of this shape exceeds the address space");
        }
    }
    void *data = NULL;
    if (n_bytes > 0) {
        data = firni_alloc_aligned(env, n_bytes, DATA_ALIGN);
        if (data == NULL) {
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a dense array of %zu bytes", n_bytes);
        }
    }
    tensor->dtype = dtype;
    tensor->n_dims = n_dims;
    memcpy(tensor->shape, shape, n_dims * sizeof shape[0]);
    tensor->data = data;
    tensor->n_bytes = n_bytes;
    tensor->owned = data != NULL;
    tensor->allocator = env != NULL ? env->allocator : NULL;
    return FIRN_OK;
}

void firn_tensor_deinit(firn_tensor *tensor)
{
    if (tensor->owned) {
        const firn_allocator *allocator = tensor->allocator != NULL ? tensor->allocator : firn_allocator_default();
        allocator->release(allocator->ctx, tensor->data);
    }
    *tensor = (firn_tensor){ .dtype = FIRN_DTYPE_NONE };
}
