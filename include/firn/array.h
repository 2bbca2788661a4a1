/*
 * Dtypes, the block pool and dense arrays.
 *
 * A *block* is one 4 KiB-aligned allocation that holds all planes of one layer for up to 64 tokens (or a fixed-size
 * state, for recurrent layers). Blocks are reference-counted and shared freely between running rows, the prefix tree
 * and tier workers. The one rule: a block with more than one reference is never written. Whoever wants to write a
 * shared block copies it first.
 *
 *      row A: [b0][b1][b2]          b0, b1 have two references: read-only
 *      row B: [b0][b1][b3]          b2, b3 have one: their owner appends into them
 *
 * A *pool* hands out blocks within a byte budget; the budget counts a shared block once.
 */
#ifndef FIRN_ARRAY_H
#define FIRN_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FIRN_BLOCK_TOKENS 64u     /* T: tokens a block covers */
#define FIRN_BLOCK_ALIGN 4096u    /* alignment and size granularity of block memory, bytes */

/* Element types of planes and dense arrays. Persisted in records: append, never renumber. */
typedef enum firn_dtype {
    FIRN_DTYPE_NONE = 0,
    FIRN_DTYPE_F32 = 1,
    FIRN_DTYPE_F16 = 2,
    FIRN_DTYPE_BF16 = 3,
    FIRN_DTYPE_I8 = 4,
    FIRN_DTYPE_U8 = 5,
    FIRN_DTYPE_I32 = 6
} firn_dtype;

size_t firn_dtype_bytes(firn_dtype dtype);          /* bytes of one element; 0 for an unknown dtype */
const char *firn_dtype_name(firn_dtype dtype);      /* "f32", "f16", ...; "?" for an unknown dtype */
firn_dtype firn_dtype_parse(const char *name);      /* FIRN_DTYPE_NONE when unknown or NULL */

#define FIRN_TENSOR_DIMS_MAX 4

/* A dense row-major array. owned: release data with firn_tensor_deinit(); otherwise data is borrowed and the function
 * that filled the tensor says until when. */
typedef struct firn_tensor {
    firn_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[FIRN_TENSOR_DIMS_MAX];
    void *data;
    uint64_t n_bytes;
    bool owned;
    const firn_allocator *allocator; /* of owned data */
} firn_tensor;

void firn_tensor_deinit(firn_tensor *tensor); /* accepts a zeroed or borrowed tensor */

typedef struct firn_pool firn_pool;
typedef struct firn_block firn_block;

typedef struct firn_pool_options {
    uint64_t budget_bytes; /* most bytes of block memory held at once, idle blocks included; required */
} firn_pool_options;

typedef struct firn_pool_stats {
    uint64_t budget_bytes;
    uint64_t used_bytes;      /* in blocks with at least one reference, each counted once */
    uint64_t idle_bytes;      /* freed blocks kept for reuse; given back under pressure */
    uint64_t used_bytes_peak;
    uint64_t n_blocks;        /* live blocks */
    uint64_t copied_bytes;    /* KV bytes ever copied by copy-on-write; merges, extracts and filters add nothing */
    uint64_t n_refused;       /* allocations refused by the budget or the allocator */
} firn_pool_stats;

/* Creates an empty pool. The pool must outlive its blocks. Errors: INVALID (budget 0), NO_MEMORY. */
firn_status firn_pool_create(const firn_pool_options *options, const firn_env *env, firn_pool **out, firn_error *err);
/* Asserts that no block is alive. Accepts NULL. */
void firn_pool_destroy(firn_pool *pool);
void firn_pool_get_stats(firn_pool *pool, firn_pool_stats *out); /* thread-safe */
/* Bytes that could still be allocated now: budget minus used. Thread-safe. */
uint64_t firn_pool_room(firn_pool *pool);

/* Allocates one zeroed block of n_bytes (rounded up to FIRN_BLOCK_ALIGN) with one reference. Thread-safe.
 * Errors: NO_MEMORY (message names budget and use); *out is NULL then. */
firn_status firn_block_alloc(firn_pool *pool, size_t n_bytes, firn_block **out, firn_error *err);
firn_block *firn_block_retain(firn_block *block);   /* thread-safe; returns its argument */
void firn_block_release(firn_block *block);         /* thread-safe; accepts NULL; frees at zero */
uint8_t *firn_block_data(const firn_block *block);  /* valid while a reference is held; write only when unshared */
size_t firn_block_bytes(const firn_block *block);   /* allocated size: a multiple of FIRN_BLOCK_ALIGN */
uint32_t firn_block_refs(const firn_block *block);  /* 1 means the only holder is the caller */

#ifdef __cplusplus
}
#endif
#endif
