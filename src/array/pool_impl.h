/*
 * The inside of the pool: blocks, and slabs, which many of them are cut from.
 *
 * Attention walks through hundreds of megabytes of blocks at each token. In small pages a sixth of that time goes into
 * translating addresses, so blocks lie in huge pages: a slab is a piece of memory of one or a few huge pages, cut into
 * blocks of one size.
 *
 *      slab  [ block | block | block | block ... ]        each in use, idle, or hollow
 *
 * A block is *hollow* when its memory has been given back to the system and only its place in the slab is left: that is
 * how one block of a slab goes while its neighbours are in use. So bytes are counted block by block, as if each were
 * alone, and the budget stays true whichever blocks are freed. A slab all of whose blocks are hollow is freed.
 *
 * Source of the numbers: Linux, admin-guide/mm/transhuge; madvise(2).
 */
#ifndef FIRNI_POOL_IMPL_H
#define FIRNI_POOL_IMPL_H

#include <stdatomic.h>

#include "array/array_impl.h"

typedef struct firni_slab firni_slab;

struct firn_block {
    firn_pool *pool;
    uint8_t *data;
    size_t n_bytes;
    firni_slab *slab;      /* NULL: the data is an allocation of its own */
    atomic_uint refs;
    firn_block *next_same; /* guarded by the pool's mutex; only while idle or hollow */
    firn_block *next_size; /* guarded by the pool's mutex; only while idle or hollow, and first of its size */
};

struct firni_slab {
    firni_slab *previous;  /* guarded by the pool's mutex, as the next one is: all slabs of the pool */
    firni_slab *next;
    uint8_t *memory;
    size_t n_bytes;
    uint32_t n_blocks;
    uint32_t n_hollow;     /* guarded by the pool's mutex */
    firn_block blocks[];
};

/* Bytes of a slab of such blocks in a pool of that budget, so much of which is used; 0: they are better allocated one
 * by one, because they are large, or a slab would be much of the budget or of what is used. */
size_t firni_slab_bytes(size_t block_bytes, uint64_t budget_bytes, uint64_t used_bytes);
/* A slab whose blocks have no references; nothing of its memory is touched. NULL without memory. */
firni_slab *firni_slab_create(firn_pool *pool, size_t block_bytes, size_t slab_bytes, const firn_env *env);
void firni_slab_destroy(firni_slab *slab, const firn_env *env);
/* Gives the memory of a block back to the system; what it held is lost. Other blocks may be in use meanwhile. */
void firni_slab_hollow_out(const firn_block *block);

#endif
