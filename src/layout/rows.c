/*
 * Ragged rows of blocks: what every block-based family shares. Owns the block lists, sharing, copy-on-write and the
 * reservation of blocks; does not know what lies inside a block.
 *
 *      row   n_tokens 150      blocks  [b0][b1][b2][b3]      b0 b1  full, perhaps shared, not written again
 *                                                            b2     the tail, 22 tokens; copied before a write
 *                                                                   when shared
 *                                                            b3     reserved ahead, unshared, seen by nobody else
 *
 * Reserved blocks stay with the row that reserved them: a view, and so a merge, an extract, a donor or the prefix tree,
 * shows the first ceil(n_tokens / 64) blocks only. A trim releases all blocks that it empties and all that were
 * reserved. Lists and arrays grow geometrically and only where rows join or blocks are reserved.
 */
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "layout/layout_impl.h"

#define ROWS_FIRST   8u  /* room for rows when the first one joins */
#define BLOCKS_FIRST 16u /* room in a new row's list: 1024 tokens */

static firni_rows *rows_of(firn_cache *cache)
{
    return &((firni_block_cache *)cache)->rows;
}

/* Whether the next token would be written into a block that somebody else holds. A row that ends at a block boundary
 * has no tail: its next token goes to a new block. This covers a trimmed row too, whose last block may be full of
 * tokens that are no longer its own. */
static bool tail_is_shared(const firni_row *row)
{
    return row->n_tokens % FIRN_BLOCK_TOKENS != 0 &&
           firn_block_refs(row->blocks[row->n_tokens / FIRN_BLOCK_TOKENS]) > 1;
}

/* Releases the row's blocks from index n_keep on. */
static void drop_blocks(firni_row *row, uint32_t n_keep)
{
    while (row->n_blocks > n_keep) {
        firn_block_release(row->blocks[--row->n_blocks]);
    }
}

static void row_deinit(const firn_env *env, firni_row *row)
{
    drop_blocks(row, 0);
    firni_free(env, row->blocks);
    *row = (firni_row){ .blocks = NULL };
}

/* ---- room in arrays ---------------------------------------------------------------------------------------------- */

/* Doubling: a row of n blocks has moved its list log2(n) times, and a decode loop almost never. */
static firn_status grow_list(const firn_env *env, firni_row *row, uint32_t n_blocks, firn_error *err)
{
    if (n_blocks <= row->n_blocks_max) {
        return FIRN_OK;
    }
    uint32_t n_max = row->n_blocks_max > 0 ? 2 * row->n_blocks_max : BLOCKS_FIRST;
    n_max = n_max > n_blocks ? n_max : n_blocks;
    firn_block **grown = firni_grow(env, row->blocks, row->n_blocks, n_max, sizeof *grown);
    if (grown == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a row of %u blocks", n_blocks);
    }
    row->blocks = grown;
    row->n_blocks_max = n_max;
    return FIRN_OK;
}

/* Room for one row more. n_rows_max follows only when both arrays have it, so a refusal half-way is harmless. */
static firn_status grow_rows(const firn_env *env, firni_rows *rows, firn_error *err)
{
    if (rows->n_rows < rows->n_rows_max) {
        return FIRN_OK;
    }
    const uint32_t n_max = rows->n_rows_max > 0 ? 2 * rows->n_rows_max : ROWS_FIRST;
    firni_row *row = firni_grow(env, rows->row, rows->n_rows, n_max, sizeof *row);
    rows->row = row != NULL ? row : rows->row;
    firni_row *scratch = row != NULL ? firni_grow(env, rows->scratch, 0, n_max, sizeof *scratch) : NULL;
    if (scratch == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a batch of %u rows", rows->n_rows + 1);
    }
    rows->scratch = scratch;
    rows->n_rows_max = n_max;
    return FIRN_OK;
}

/* ---- rows joining and leaving ------------------------------------------------------------------------------------ */

void firni_rows_deinit(firn_cache *cache)
{
    firni_rows *rows = rows_of(cache);
    firni_rows_filter(cache, NULL, 0);
    firni_free(cache->env, rows->row);
    firni_free(cache->env, rows->scratch);
    *rows = (firni_rows){ .row = NULL };
}

uint32_t firni_rows_batch_size(const firn_cache *cache)
{
    return firni_rows_of(cache)->n_rows;
}

uint32_t firni_rows_tokens(const firn_cache *cache, uint32_t row)
{
    return firni_rows_of(cache)->row[row].n_tokens;
}

firn_status firni_rows_add(firn_cache *cache, firn_error *err)
{
    firni_rows *rows = rows_of(cache);
    const firn_status status = grow_rows(cache->env, rows, err);
    if (status == FIRN_OK) {
        rows->row[rows->n_rows++] = (firni_row){ .n_tokens = 0 };
    }
    return status;
}

/* Reserved blocks are left out: whoever retained one would make it shared, and the row could no longer write to it. */
firn_row_view firni_rows_view(const firn_cache *cache, uint32_t index)
{
    const firni_row *row = &firni_rows_of(cache)->row[index];
    return (firn_row_view){
        .blocks = row->blocks,
        .n_blocks = firni_blocks_of(row->n_tokens),
        .n_tokens = row->n_tokens,
    };
}

/* Views come from trees and tiers too, so their blocks are checked before they are trusted to hold this geometry. */
static firn_status check_view(const firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    if (view->first_block != 0 || view->fixed != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s keeps all blocks of a row and no fixed state",
                          cache->ops->signature);
    }
    if (view->n_blocks != firni_blocks_of(view->n_tokens)) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u blocks cannot be a row of %u tokens: %u are needed",
                          view->n_blocks, view->n_tokens, firni_blocks_of(view->n_tokens));
    }
    for (uint32_t i = 0; i < view->n_blocks; i++) {
        if (firn_block_bytes(view->blocks[i]) != cache->block_bytes) {
            return firni_fail(err, FIRN_ERR_INVALID, "block %u has %zu bytes; blocks of \"%s\" have %zu", i,
                              firn_block_bytes(view->blocks[i]), cache->describe, cache->block_bytes);
        }
        if (firni_block_pool(view->blocks[i]) != cache->pool) {
            return firni_fail(err, FIRN_ERR_INVALID, "block %u belongs to another pool", i);
        }
    }
    return FIRN_OK;
}

firn_status firni_rows_adopt(firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    firni_rows *rows = rows_of(cache);
    firni_row row = { .n_tokens = view->n_tokens };
    firn_status status = check_view(cache, view, err);
    if (status == FIRN_OK) {
        status = grow_rows(cache->env, rows, err);
    }
    if (status == FIRN_OK) {
        status = grow_list(cache->env, &row, view->n_blocks, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    for (uint32_t i = 0; i < view->n_blocks; i++) {
        row.blocks[i] = firn_block_retain(view->blocks[i]);
    }
    row.n_blocks = view->n_blocks;
    rows->row[rows->n_rows++] = row;
    return FIRN_OK;
}

/* Through the second array, because rows may change places; the arrays then swap their roles. */
void firni_rows_filter(firn_cache *cache, const uint32_t *keep, uint32_t n_keep)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t i = 0; i < n_keep; i++) {
        rows->scratch[i] = rows->row[keep[i]];
        rows->row[keep[i]] = (firni_row){ .blocks = NULL };
    }
    /* What is left in the old array was not kept. */
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        row_deinit(cache->env, &rows->row[r]);
    }
    firni_row *filtered = rows->scratch;
    rows->scratch = rows->row;
    rows->row = filtered;
    rows->n_rows = n_keep;
}

/* ---- tokens coming and going ------------------------------------------------------------------------------------- */

void firni_rows_trim(firn_cache *cache, uint32_t index, uint32_t n_tokens)
{
    firni_row *row = &rows_of(cache)->row[index];
    /* With the emptied blocks go the reserved ones: what a trimmed row holds is what projected_bytes says. */
    row->n_tokens -= n_tokens;
    drop_blocks(row, firni_blocks_of(row->n_tokens));
}

uint64_t firni_rows_projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    return (uint64_t)firni_blocks_of(tokens) * cache->block_bytes;
}

/* Blocks that the row needs for `count` more tokens. */
static uint32_t blocks_needed(const firni_row *row, uint32_t count)
{
    const uint32_t n_needed = firni_blocks_of(row->n_tokens + count);
    return n_needed > row->n_blocks_held ? n_needed : row->n_blocks_held;
}

/* Appends what the row lacks to its list: blocks for new tokens and, last, one for a copy of a shared tail. */
static firn_status reserve_row(firn_cache *cache, firni_row *row, uint32_t count, firn_error *err)
{
    const bool copies = count > 0 && tail_is_shared(row);
    const uint32_t n_blocks = blocks_needed(row, count) + (copies ? 1 : 0);
    firn_status status = grow_list(cache->env, row, n_blocks, err);
    while (status == FIRN_OK && row->n_blocks < n_blocks) {
        status = firn_block_alloc(cache->pool, cache->block_bytes, &row->blocks[row->n_blocks], err);
        row->n_blocks += status == FIRN_OK;
    }
    return status;
}

/* Puts a private copy, for which the list's last block was allocated, in the place of the shared tail. */
static void copy_tail(firn_cache *cache, firni_row *row)
{
    firn_block **tail = &row->blocks[row->n_tokens / FIRN_BLOCK_TOKENS];
    firn_block *copy = row->blocks[--row->n_blocks];
    memcpy(firn_block_data(copy), firn_block_data(*tail), cache->block_bytes);
    firni_pool_count_copied(cache->pool, cache->block_bytes);
    firn_block_release(*tail);
    *tail = copy;
}

/* Three steps: remember what every row holds; add what is lacking, which may fail and is then undone; exchange shared
 * tails for their copies, which cannot. */
firn_status firni_rows_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        rows->row[r].n_blocks_held = rows->row[r].n_blocks;
    }
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const firn_status status = reserve_row(cache, &rows->row[r], counts[r], err);
        if (status != FIRN_OK) {
            for (uint32_t i = 0; i <= r; i++) {
                drop_blocks(&rows->row[i], rows->row[i].n_blocks_held);
            }
            return status;
        }
    }
    /* Nothing can fail any more. Whether a copy was planned is read off the list, not off the reference count, which
     * another thread may have lowered since. */
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        if (rows->row[r].n_blocks > blocks_needed(&rows->row[r], counts[r])) {
            copy_tail(cache, &rows->row[r]);
        }
    }
    return FIRN_OK;
}

/* The rule of the block is asserted where tokens come to be, not only where bytes are written. */
void firni_rows_advance(firn_cache *cache, const uint32_t *counts)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        firni_row *row = &rows->row[r];
        assert(counts[r] == 0 || !tail_is_shared(row));
        row->n_tokens += counts[r];
        assert(firni_blocks_of(row->n_tokens) <= row->n_blocks);
    }
}

/* ---- invariants -------------------------------------------------------------------------------------------------- */

/* How often the rows of this cache hold `block`: no more often than it is referenced, or somebody writes what another
 * row reads. */
static uint32_t count_holders(const firni_rows *rows, const firn_block *block)
{
    uint32_t n_holders = 0;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        for (uint32_t i = 0; i < rows->row[r].n_blocks; i++) {
            n_holders += rows->row[r].blocks[i] == block;
        }
    }
    return n_holders;
}

void firni_rows_check(const firn_cache *cache)
{
    const firni_rows *rows = firni_rows_of(cache);
    assert(rows->n_rows <= rows->n_rows_max);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const firni_row *row = &rows->row[r];
        const uint32_t n_used = firni_blocks_of(row->n_tokens);
        assert(n_used <= row->n_blocks && row->n_blocks <= row->n_blocks_max);
        for (uint32_t i = 0; i < row->n_blocks; i++) {
            const firn_block *block = row->blocks[i];
            assert(firn_block_bytes(block) == cache->block_bytes && firni_block_pool(block) == cache->pool);
            assert(i < n_used || firn_block_refs(block) == 1);
            /* Only the tail and what follows it is ever written. */
            const uint32_t n_holders = i + 1 < n_used ? 0 : count_holders(rows, block);
            assert(n_holders <= firn_block_refs(block));
            (void)n_holders;
        }
        (void)n_used;
    }
}
