/*
 * array, the part that only the library's own folders see: owned dense arrays, the counter that proves that merges
 * copy nothing, and the pool of a block.
 */
#ifndef FIRNI_ARRAY_IMPL_H
#define FIRNI_ARRAY_IMPL_H

#include "firn/array.h"

/* Gives `tensor` this dtype and shape and owned data of undefined contents, 64-byte aligned; an array without elements
 * has no data and owns nothing. Errors: NO_MEMORY (also when the size overflows); the tensor is zeroed then. */
firn_status firni_tensor_alloc(firn_tensor *tensor, firn_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                               const firn_env *env, firn_error *err);

/* firn_block_alloc() without the zeroing, for a caller that overwrites every byte before anyone reads the block. */
firn_status firni_block_alloc_undefined(firn_pool *pool, size_t n_bytes, firn_block **out, firn_error *err);

/* Adds to firn_pool_stats.copied_bytes. Every copy-on-write of a block says so here. Thread-safe. */
void firni_pool_count_copied(firn_pool *pool, uint64_t n_bytes);
/* The pool that a block returns to. */
firn_pool *firni_block_pool(const firn_block *block);

#endif
