/*
 * Slabs: memory for blocks of one size in huge pages; see pool_impl.h. Owns how memory is asked for and given back;
 * the pool owns which block is in which state.
 */
#define _GNU_SOURCE /* madvise */

#include <assert.h>
#include <sys/mman.h>

#include "array/pool_impl.h"
#include "base/base_impl.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define SLAB_BYTES_USUAL ((uint64_t)64 << 20)
#define SLAB_BYTES_MAX ((uint64_t)256 << 20)
#define BLOCKS_MAX 2048u  /* of a slab that is not a single huge page: a walk over them is short */
#define SHARE_MOST 64u    /* a slab is at most this part of the budget: its idle blocks count */
#define SHARE_LEAST 4096u /* and not much less: a process may have 65,530 mappings, and a slab is up to three */

size_t firni_slab_bytes(size_t block_bytes, uint64_t budget_bytes, uint64_t used_bytes)
{
    const uint64_t share = budget_bytes / SHARE_LEAST;
    const uint64_t least = share < SLAB_BYTES_MAX ? share : SLAB_BYTES_MAX;
    const uint64_t usual = least > SLAB_BYTES_USUAL ? least : SLAB_BYTES_USUAL;
    const uint64_t wanted = used_bytes / 2 < usual ? used_bytes / 2 : usual; /* a pool that holds little stays small */
    const uint64_t most = budget_bytes / SHARE_MOST < wanted ? budget_bytes / SHARE_MOST : wanted;
    size_t n_bytes = HUGE_PAGE_BYTES;
    while (n_bytes <= most / 2 && n_bytes / block_bytes < BLOCKS_MAX) {
        n_bytes *= 2;
    }
    return n_bytes <= most && block_bytes <= n_bytes / 4 ? n_bytes : 0;
}

firni_slab *firni_slab_create(firn_pool *pool, size_t block_bytes, size_t slab_bytes, const firn_env *env)
{
    const uint32_t n_blocks = (uint32_t)(slab_bytes / block_bytes);
    firni_slab *slab = firni_calloc(env, 1, sizeof *slab + n_blocks * sizeof slab->blocks[0]);
    uint8_t *memory = slab != NULL ? firni_alloc_aligned(env, slab_bytes, HUGE_PAGE_BYTES) : NULL;
    if (memory == NULL) {
        firni_free(env, slab);
        return NULL;
    }
    slab->memory = memory;
    slab->n_bytes = slab_bytes;
    slab->n_blocks = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++) {
        slab->blocks[i].pool = pool;
        slab->blocks[i].slab = slab;
        slab->blocks[i].data = memory + i * block_bytes;
        slab->blocks[i].n_bytes = block_bytes;
    }
    /* Not the last huge page where blocks end inside it: bytes that nobody counts would be in memory with them. */
    (void)madvise(memory, n_blocks * block_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    return slab;
}

void firni_slab_destroy(firni_slab *slab, const firn_env *env)
{
    /* The allocator may hand the memory to somebody who wants small pages left alone as the system does by default. */
    firni_free(env, slab->memory);
    firni_free(env, slab);
}

/* From now on the system must not make the slab's pages huge again behind our back: that would bring in memory that was
 * given back. Those of its huge pages that are in use as a whole stay. */
void firni_slab_hollow_out(const firn_block *block)
{
    const firni_slab *slab = block->slab;
    assert(block->data >= slab->memory && block->data + block->n_bytes <= slab->memory + slab->n_bytes);
    (void)madvise(slab->memory, slab->n_bytes, MADV_NOHUGEPAGE);
    (void)madvise(block->data, block->n_bytes, MADV_DONTNEED);
}
