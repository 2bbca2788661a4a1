/*
 * The set of blocks that the tree refers to. Owns the count of each and the sum of their bytes, each block once; holds
 * no references itself.
 */
#include <assert.h>

#include "base/base_impl.h"
#include "prefix/tree_impl.h"

enum { SLOTS_MIN = 64 };

/* Block structures lie at least 16 bytes apart, often a page: multiply and take high bits (Knuth's multiplicative
 * method) rather than trust the low ones. */
static size_t home_slot(const firni_blockset *set, const firn_block *block)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)block * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(mixed >> 32) & (set->n_slots - 1);
}

/* The slot of `block`, or the empty one where it would go. */
static size_t find_slot(const firni_blockset *set, const firn_block *block)
{
    size_t i = home_slot(set, block);
    while (set->slots[i].block != NULL && set->slots[i].block != block) {
        i = (i + 1) & (set->n_slots - 1);
    }
    return i;
}

/* The table never shrinks: it is as large as the budget once made it, 16 bytes for a block of at least 4096. */
bool firni_blockset_reserve(const firn_env *env, firni_blockset *set, size_t n_more)
{
    size_t n_slots = set->n_slots > 0 ? set->n_slots : SLOTS_MIN;
    /* At most two thirds full. */
    while ((set->n_blocks + n_more) * 3 > n_slots * 2) {
        n_slots *= 2;
    }
    if (n_slots == set->n_slots) {
        return true;
    }
    firni_blockset grown = { .n_slots = n_slots, .n_blocks = set->n_blocks, .held_bytes = set->held_bytes };
    grown.slots = firni_calloc(env, n_slots, sizeof *grown.slots);
    if (grown.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < set->n_slots; i++) {
        if (set->slots[i].block != NULL) {
            grown.slots[find_slot(&grown, set->slots[i].block)] = set->slots[i];
        }
    }
    firni_free(env, set->slots);
    *set = grown;
    return true;
}

void firni_blockset_deinit(const firn_env *env, firni_blockset *set)
{
    assert(set->n_blocks == 0 && set->held_bytes == 0);
    firni_free(env, set->slots);
    *set = (firni_blockset){ .slots = NULL };
}

/* Adding is split from reserving, so that an insertion that has begun to link nodes cannot fail any more. */
void firni_blockset_add(firni_blockset *set, firn_block *block)
{
    assert((set->n_blocks + 1) * 3 <= set->n_slots * 2);
    firni_blockset_slot *slot = &set->slots[find_slot(set, block)];
    if (slot->block == NULL) {
        slot->block = block;
        set->n_blocks++;
        set->held_bytes += firn_block_bytes(block);
    }
    slot->n_refs++;
}

void firni_blockset_remove(firni_blockset *set, firn_block *block)
{
    size_t hole = find_slot(set, block);
    assert(set->slots[hole].block == block && set->slots[hole].n_refs > 0);
    if (--set->slots[hole].n_refs > 0) {
        return;
    }
    set->n_blocks--;
    set->held_bytes -= firn_block_bytes(block);
    /* Close the gap, so that probing never needs tombstones: move back what would not be found across it. */
    const size_t mask = set->n_slots - 1;
    for (size_t i = (hole + 1) & mask; set->slots[i].block != NULL; i = (i + 1) & mask) {
        const size_t home = home_slot(set, set->slots[i].block);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            set->slots[hole] = set->slots[i];
            hole = i;
        }
    }
    set->slots[hole] = (firni_blockset_slot){ .block = NULL };
}

uint32_t firni_blockset_refs(const firni_blockset *set, const firn_block *block)
{
    return set->n_slots > 0 ? set->slots[find_slot(set, block)].n_refs : 0;
}
