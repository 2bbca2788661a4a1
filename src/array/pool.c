/*
 * The block pool: reference-counted, page-aligned memory within one byte budget.
 *
 * A block is a small header, and the data that direct I/O reads into and writes from; both are parts of a slab
 * (pool_impl.h), or two allocations where a slab would be too much. A freed block goes to the idle list of its size, so
 * that a steady load never calls the allocator. Idle blocks count against the budget; they are given back when a block
 * of another size needs their room. What is left of one that was in a slab is hollow, and waits in a list like the idle
 * ones to be used again.
 *
 *      idle --> [96 KiB] --next_size--> [32 KiB] --next_size--> NULL      one block of each size that has any
 *                  |                        |
 *              next_same                next_same                         the others of the same size
 *                  v                        v
 *               [96 KiB]                   NULL
 *
 * The lists run through the headers, so keeping a block never needs memory. There are as many sizes as there are
 * different layer geometries, a handful. The mutex guards lists and counters; zeroing, allocating and releasing happen
 * outside of it.
 *
 * Invariant at every unlock: used + idle <= budget, where `used` includes blocks that are about to be allocated.
 */
#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "array/pool_impl.h"
#include "base/base_impl.h"

struct firn_pool {
    const firn_env *env;
    pthread_mutex_t mutex;
    firn_pool_stats stats; /* guarded by mutex, except for the constant budget_bytes */
    firn_block *idle;      /* guarded by mutex */
    firn_block *hollow;    /* guarded by mutex: blocks of slabs, without memory, which count for nothing */
    firni_slab *slabs;     /* guarded by mutex */
};

/* ---- lists by size; the caller holds the mutex ------------------------------------------------------------------- */

/* Takes the first block of the size that *link stands for; the next of the same size moves up into its place. */
static firn_block *list_pop(firn_block **link)
{
    firn_block *block = *link;
    if (block->next_same != NULL) {
        block->next_same->next_size = block->next_size;
        *link = block->next_same;
    } else {
        *link = block->next_size;
    }
    block->next_same = NULL;
    block->next_size = NULL;
    return block;
}

/* Where the first block of a size is, or would be. */
static firn_block **list_find(firn_block **list, size_t n_bytes)
{
    firn_block **link = list;
    while (*link != NULL && (*link)->n_bytes != n_bytes) {
        link = &(*link)->next_size;
    }
    return link;
}

/* Last in, first out: the block that was freed last is the one that may still be in a cache. */
static void list_push(firn_block **list, firn_block *block)
{
    firn_block **link = list_find(list, block->n_bytes);
    if (*link != NULL) {
        block->next_size = (*link)->next_size;
        (*link)->next_size = NULL;
    }
    block->next_same = *link;
    *link = block;
}

static firn_block *idle_pop(firn_pool *pool, firn_block **link)
{
    firn_block *block = list_pop(link);
    pool->stats.idle_bytes -= block->n_bytes;
    return block;
}

static void idle_push(firn_pool *pool, firn_block *block)
{
    list_push(&pool->idle, block);
    pool->stats.idle_bytes += block->n_bytes;
}

static firn_block *idle_take(firn_pool *pool, size_t n_bytes)
{
    firn_block **link = list_find(&pool->idle, n_bytes);
    return *link != NULL ? idle_pop(pool, link) : NULL;
}

static void hollow_push(firn_pool *pool, firn_block *block)
{
    list_push(&pool->hollow, block);
    block->slab->n_hollow++;
}

static firn_block *hollow_take(firn_pool *pool, size_t n_bytes)
{
    firn_block **link = list_find(&pool->hollow, n_bytes);
    firn_block *block = *link != NULL ? list_pop(link) : NULL;
    if (block != NULL) {
        block->slab->n_hollow--;
    }
    return block;
}

static void slab_link(firn_pool *pool, firni_slab *slab)
{
    slab->next = pool->slabs;
    if (slab->next != NULL) {
        slab->next->previous = slab;
    }
    pool->slabs = slab;
}

static void slab_unlink(firn_pool *pool, firni_slab *slab)
{
    if (slab->previous != NULL) {
        slab->previous->next = slab->next;
    } else {
        pool->slabs = slab->next;
    }
    if (slab->next != NULL) {
        slab->next->previous = slab->previous;
    }
}

/* Takes all blocks of a slab out of the hollow list: they are going to be freed with it. */
static void hollow_remove(firn_pool *pool, const firni_slab *slab)
{
    firn_block **first = list_find(&pool->hollow, slab->blocks[0].n_bytes);
    firn_block *next_size = *first != NULL ? (*first)->next_size : NULL;
    firn_block *kept = NULL;
    for (firn_block *block = *first, *next; block != NULL; block = next) {
        next = block->next_same;
        if (block->slab != slab) {
            block->next_same = kept;
            block->next_size = NULL;
            kept = block;
        }
    }
    if (kept != NULL) {
        kept->next_size = next_size;
    }
    *first = kept != NULL ? kept : next_size;
}

static void count_used(firn_pool *pool, size_t n_bytes)
{
    pool->stats.used_bytes += n_bytes;
    pool->stats.n_blocks++;
    if (pool->stats.used_bytes > pool->stats.used_bytes_peak) {
        pool->stats.used_bytes_peak = pool->stats.used_bytes;
    }
}

/* ---- memory of one block; no lock is held ------------------------------------------------------------------------ */

static void block_free_memory(const firn_env *env, firn_block *block)
{
    if (block != NULL) {
        firni_free(env, block->data);
        firni_free(env, block);
    }
}

/* Gives back what an idle block holds. The last one of a slab takes the slab along. */
static void give_back(firn_pool *pool, firn_block *block)
{
    if (block->slab == NULL) {
        block_free_memory(pool->env, block);
        return;
    }
    firni_slab *slab = block->slab;
    firni_slab_hollow_out(block);
    (void)pthread_mutex_lock(&pool->mutex);
    hollow_push(pool, block);
    const bool is_done = slab->n_hollow == slab->n_blocks;
    if (is_done) {
        hollow_remove(pool, slab);
        slab_unlink(pool, slab);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    if (is_done) {
        firni_slab_destroy(slab, pool->env);
    }
}

/* The first block of a new slab; the others become idle, as far as the budget has room for them, or hollow. NULL where
 * there is to be no slab, or no memory for one. Nothing of a slab is in memory until it is written to. */
static firn_block *block_of_new_slab(firn_pool *pool, size_t n_bytes, uint64_t used_bytes)
{
    const size_t slab_bytes = firni_slab_bytes(n_bytes, pool->stats.budget_bytes, used_bytes);
    firni_slab *slab = slab_bytes != 0 ? firni_slab_create(pool, n_bytes, slab_bytes, pool->env) : NULL;
    if (slab == NULL) {
        return NULL;
    }
    uint32_t n_hollow = 0;
    (void)pthread_mutex_lock(&pool->mutex);
    slab_link(pool, slab);
    for (uint32_t i = slab->n_blocks - 1; i > 0; i--) {
        if (n_bytes <= pool->stats.budget_bytes - pool->stats.used_bytes - pool->stats.idle_bytes) {
            idle_push(pool, &slab->blocks[i]);
        } else {
            hollow_push(pool, &slab->blocks[i]);
            n_hollow++;
        }
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    if (n_hollow > 0) {
        firni_slab_hollow_out(&slab->blocks[0]); /* small pages, so that hollow ones stay out of memory */
    }
    return &slab->blocks[0];
}

/* Without a reference yet; the data is not zeroed, because a reused block needs that as well. */
static firn_block *block_new_memory(firn_pool *pool, size_t n_bytes)
{
    firn_block *block = firni_calloc(pool->env, 1, sizeof *block);
    if (block == NULL) {
        return NULL;
    }
    block->pool = pool;
    block->n_bytes = n_bytes;
    block->data = firni_alloc_aligned(pool->env, n_bytes, FIRN_BLOCK_ALIGN);
    if (block->data == NULL) {
        block_free_memory(pool->env, block);
        return NULL;
    }
    assert((uintptr_t)block->data % FIRN_BLOCK_ALIGN == 0);
    return block;
}

static void give_back_list(firn_pool *pool, firn_block *list)
{
    while (list != NULL) {
        firn_block *next = list->next_same;
        list->next_same = NULL;
        give_back(pool, list);
        list = next;
    }
}

/* ---- pool -------------------------------------------------------------------------------------------------------- */

firn_status firn_pool_create(const firn_pool_options *options, const firn_env *env, firn_pool **out, firn_error *err)
{
    *out = NULL;
    if (options->budget_bytes == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a block pool needs a budget of at least one byte");
    }
    firn_pool *pool = firni_calloc(env, 1, sizeof *pool);
    if (pool == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a block pool");
    }
    if (pthread_mutex_init(&pool->mutex, NULL) != 0) {
        firni_free(env, pool);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no resources for a mutex");
    }
    pool->env = env;
    pool->stats.budget_bytes = options->budget_bytes;
    *out = pool;
    return FIRN_OK;
}

void firn_pool_destroy(firn_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    /* A live block would point into freed memory when it is released. */
    assert(pool->stats.n_blocks == 0 && pool->stats.used_bytes == 0);
    /* Blocks of slabs go with their slabs. */
    while (pool->idle != NULL) {
        firn_block *block = idle_pop(pool, &pool->idle);
        if (block->slab == NULL) {
            block_free_memory(pool->env, block);
        }
    }
    assert(pool->stats.idle_bytes == 0);
    for (firni_slab *slab = pool->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        firni_slab_destroy(slab, pool->env);
    }
    (void)pthread_mutex_destroy(&pool->mutex);
    firni_free(pool->env, pool);
}

void firn_pool_get_stats(firn_pool *pool, firn_pool_stats *out)
{
    (void)pthread_mutex_lock(&pool->mutex);
    *out = pool->stats;
    (void)pthread_mutex_unlock(&pool->mutex);
}

uint64_t firn_pool_room(firn_pool *pool)
{
    (void)pthread_mutex_lock(&pool->mutex);
    const uint64_t room = pool->stats.budget_bytes - pool->stats.used_bytes;
    (void)pthread_mutex_unlock(&pool->mutex);
    return room;
}

void firni_pool_count_copied(firn_pool *pool, uint64_t n_bytes)
{
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stats.copied_bytes += n_bytes;
    (void)pthread_mutex_unlock(&pool->mutex);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Makes room in the budget for n_bytes and counts them as used. An idle or hollow block of this size comes back in
 * *reused. Otherwise the caller has to allocate, after releasing *evicted: the idle blocks whose room was needed. */
static bool take_room(firn_pool *pool, size_t n_bytes, firn_block **reused, firn_block **evicted, uint64_t *used_bytes)
{
    *evicted = NULL;
    (void)pthread_mutex_lock(&pool->mutex);
    *used_bytes = pool->stats.used_bytes;
    const bool fits = n_bytes <= pool->stats.budget_bytes - pool->stats.used_bytes;
    *reused = fits ? idle_take(pool, n_bytes) : NULL;
    if (fits) {
        const uint64_t idle_bytes_max = pool->stats.budget_bytes - pool->stats.used_bytes - n_bytes;
        while (pool->stats.idle_bytes > idle_bytes_max) {
            firn_block *block = idle_pop(pool, &pool->idle);
            block->next_same = *evicted;
            *evicted = block;
        }
        count_used(pool, n_bytes);
        if (*reused == NULL) {
            *reused = hollow_take(pool, n_bytes);
        }
    } else {
        pool->stats.n_refused++;
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return fits;
}

/* After the allocator refused what the budget had granted. */
static void give_back_room(firn_pool *pool, size_t n_bytes)
{
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stats.used_bytes -= n_bytes;
    pool->stats.n_blocks--;
    pool->stats.n_refused++;
    (void)pthread_mutex_unlock(&pool->mutex);
}

firn_status firn_block_alloc(firn_pool *pool, size_t n_bytes, firn_block **out, firn_error *err)
{
    const firn_status status = firni_block_alloc_undefined(pool, n_bytes, out, err);
    if (status == FIRN_OK) {
        memset((*out)->data, 0, (*out)->n_bytes);
    }
    return status;
}

firn_status firni_block_alloc_undefined(firn_pool *pool, size_t n_bytes, firn_block **out, firn_error *err)
{
    *out = NULL;
    if (n_bytes == 0 || n_bytes > SIZE_MAX - FIRN_BLOCK_ALIGN) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "a block of %zu bytes is outside of the address space", n_bytes);
    }
    n_bytes = (size_t)firni_round_up(n_bytes, FIRN_BLOCK_ALIGN);

    firn_block *block;
    firn_block *evicted;
    uint64_t used_bytes;
    if (!take_room(pool, n_bytes, &block, &evicted, &used_bytes)) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "the pool is full: %zu bytes more than %llu used of %llu", n_bytes,
                          (unsigned long long)used_bytes, (unsigned long long)pool->stats.budget_bytes);
    }
    /* Evicted memory goes before new memory comes: the process never holds more than the budget for this call. */
    give_back_list(pool, evicted);
    if (block == NULL) {
        block = block_of_new_slab(pool, n_bytes, used_bytes);
    }
    if (block == NULL) {
        block = block_new_memory(pool, n_bytes);
    }
    if (block == NULL) {
        give_back_room(pool, n_bytes);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "the allocator refused a block of %zu bytes (%llu used of %llu)",
                          n_bytes, (unsigned long long)used_bytes, (unsigned long long)pool->stats.budget_bytes);
    }
    atomic_store_explicit(&block->refs, 1, memory_order_relaxed);
    *out = block;
    return FIRN_OK;
}

firn_block *firn_block_retain(firn_block *block)
{
    /* Relaxed: the caller holds a reference already, so the block cannot go away meanwhile. */
    const unsigned before = atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    assert(before > 0 && before < UINT32_MAX);
    (void)before;
    return block;
}

void firn_block_release(firn_block *block)
{
    if (block == NULL) {
        return;
    }
    /* Release orders this holder's reads before the drop; acquire orders every other holder's before the reuse. */
    const unsigned before = atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) {
        /* Until the lock is held the bytes still count as used: never fewer than are really taken. */
        firn_pool *pool = block->pool;
        (void)pthread_mutex_lock(&pool->mutex);
        pool->stats.used_bytes -= block->n_bytes;
        pool->stats.n_blocks--;
        idle_push(pool, block);
        (void)pthread_mutex_unlock(&pool->mutex);
    }
}

uint8_t *firn_block_data(const firn_block *block)
{
    return block->data;
}

size_t firn_block_bytes(const firn_block *block)
{
    return block->n_bytes;
}

firn_pool *firni_block_pool(const firn_block *block)
{
    return block->pool;
}

/* Acquire: whoever sees 1 and starts to write must not overtake the reads of a holder that let go. */
uint32_t firn_block_refs(const firn_block *block)
{
    return atomic_load_explicit(&block->refs, memory_order_acquire);
}
