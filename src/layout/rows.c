/*
 * Ragged rows: what all families share. Owns the block lists, the fixed-size state, sharing, copy-on-write and the
 * reservation of both; does not know what lies inside.
 *
 *      row   n_tokens 150      blocks  [b0][b1][b2][b3]      b0 b1  full, perhaps shared, not written again
 *                                                            b2     the tail, 22 tokens; copied before a write
 *                                                                   when shared
 *                                                            b3     reserved ahead, unshared, seen by nobody else
 *
 *      window of 100, 300 tokens       [b3][b4]              first_block 3: b0 to b2 hold no token of the last 100
 *      fixed state, any count          fixed [f]             copied before a write when shared
 *
 * Reserved blocks stay with the row that reserved them: a view, and so a merge, an extract, a donor or the prefix tree,
 * shows no block beyond ceil(n_tokens / 64). A trim releases all blocks that it empties and all that were reserved.
 * Blocks that fall out of a window stay until the row settles, because the queries of the step that moved the window
 * still see them. Lists and arrays grow geometrically and only where rows join or blocks are reserved.
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

/* The block index at which a row of n_tokens ends: 0 for families without token blocks. */
static uint32_t end_block(const firn_cache *cache, uint32_t n_tokens)
{
    return cache->block_bytes > 0 ? firni_blocks_of(n_tokens) : 0;
}

/* Blocks in the list that hold tokens of the row; what follows them is reserved. */
static uint32_t used_blocks(const firn_cache *cache, const firni_row *row)
{
    return end_block(cache, row->n_tokens) - row->first_block;
}

static uint32_t tail_index(const firni_row *row)
{
    return row->n_tokens / FIRN_BLOCK_TOKENS - row->first_block;
}

/* Whether the next token would be written into a block that somebody else holds. A row that ends at a block boundary
 * has no tail: its next token goes to a new block. This covers a trimmed row too, whose last block may be full of
 * tokens that are no longer its own. */
static bool tail_is_shared(const firn_cache *cache, const firni_row *row)
{
    return cache->block_bytes > 0 && row->n_tokens % FIRN_BLOCK_TOKENS != 0 &&
           firn_block_refs(row->blocks[tail_index(row)]) > 1;
}

/* Releases the row's blocks from list index n_keep on. */
static void drop_blocks(firni_row *row, uint32_t n_keep)
{
    while (row->n_blocks > n_keep) {
        firn_block_release(row->blocks[--row->n_blocks]);
    }
}

/* Releases the blocks before block `first`. */
static void drop_older_blocks(firni_row *row, uint32_t first)
{
    const uint32_t n_drop = first - row->first_block;
    assert(n_drop <= row->n_blocks);
    for (uint32_t i = 0; i < n_drop; i++) {
        firn_block_release(row->blocks[i]);
    }
    row->n_blocks -= n_drop;
    row->first_block = first;
    memmove(row->blocks, row->blocks + n_drop, row->n_blocks * sizeof row->blocks[0]);
}

static void row_deinit(const firn_env *env, firni_row *row)
{
    drop_blocks(row, 0);
    firn_block_release(row->fixed);
    firn_block_release(row->fixed_next);
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
        .first_block = row->first_block,
        .n_blocks = used_blocks(cache, row),
        .fixed = row->n_tokens > 0 ? row->fixed : NULL,
        .n_tokens = row->n_tokens,
    };
}

static firn_status check_block(const firn_cache *cache, const firn_block *block, size_t n_bytes, const char *what,
                               uint32_t index, firn_error *err)
{
    if (firn_block_bytes(block) != n_bytes) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s %u has %zu bytes; those of \"%s\" have %zu", what, index,
                          firn_block_bytes(block), cache->describe, n_bytes);
    }
    if (firni_block_pool(block) != cache->pool) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s %u belongs to another pool", what, index);
    }
    return FIRN_OK;
}

/* Views come from trees and tiers too, so their blocks are checked before they are trusted to hold this geometry. */
static firn_status check_view(const firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    const uint32_t end = end_block(cache, view->n_tokens);
    const uint32_t first_needed = firni_rows_first_block_needed(cache, view->n_tokens);
    if (view->first_block > first_needed) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: a row of %u tokens needs its blocks from %u on, not from %u",
                          cache->signature, view->n_tokens, first_needed, view->first_block);
    }
    if (view->n_blocks != end - view->first_block) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u blocks cannot be a row of %u tokens: %u are needed",
                          view->n_blocks, view->n_tokens, end - view->first_block);
    }
    const bool has_fixed = cache->fixed_bytes > 0 && view->n_tokens > 0;
    if (has_fixed != (view->fixed != NULL)) {
        return firni_fail(err, FIRN_ERR_INVALID, has_fixed ? "%s: a row of %u tokens needs its fixed-size state"
                                                           : "%s: a row of %u tokens has no fixed-size state",
                          cache->signature, view->n_tokens);
    }
    firn_status status = has_fixed ? check_block(cache, view->fixed, cache->fixed_bytes, "state", 0, err) : FIRN_OK;
    for (uint32_t i = 0; i < view->n_blocks && status == FIRN_OK; i++) {
        status = check_block(cache, view->blocks[i], cache->block_bytes, "block", i, err);
    }
    return status;
}

firn_status firni_rows_adopt(firn_cache *cache, const firn_row_view *view, firn_error *err)
{
    firni_rows *rows = rows_of(cache);
    firni_row row = { .n_tokens = view->n_tokens, .first_block = view->first_block };
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
    row.fixed = view->fixed != NULL ? firn_block_retain(view->fixed) : NULL;
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

void firni_rows_drop_last(firn_cache *cache)
{
    firni_rows *rows = rows_of(cache);
    assert(rows->n_rows > 0);
    row_deinit(cache->env, &rows->row[--rows->n_rows]);
}

void firni_rows_restart(firn_cache *cache, uint32_t index, uint32_t first_block)
{
    firni_row *row = &rows_of(cache)->row[index];
    assert(cache->fixed_bytes == 0);
    drop_blocks(row, 0);
    row->first_block = first_block;
    row->n_tokens = first_block * FIRN_BLOCK_TOKENS;
}

/* ---- tokens coming and going ------------------------------------------------------------------------------------- */

void firni_rows_trim(firn_cache *cache, uint32_t index, uint32_t n_tokens)
{
    firni_row *row = &rows_of(cache)->row[index];
    /* With the emptied blocks go the reserved ones: what a trimmed row holds is what projected_bytes says. */
    row->n_tokens -= n_tokens;
    assert(row->first_block <= firni_rows_first_block_needed(cache, row->n_tokens));
    drop_blocks(row, used_blocks(cache, row));
}

void firni_rows_settle(firn_cache *cache)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const uint32_t first = firni_rows_first_block_needed(cache, rows->row[r].n_tokens);
        if (first > rows->row[r].first_block) {
            drop_older_blocks(&rows->row[r], first);
        }
    }
}

/* ---- what the blocks in a row
 * allow -------------------------------------------------------------------------------- */

/* A query at position n sees the `window` tokens up to itself. The one before them is kept too: a prefix is then
 * resumable where it covers the window before its end, whatever comes next. */
uint32_t firni_rows_first_block_needed(const firn_cache *cache, uint32_t n_tokens)
{
    if (cache->block_bytes == 0) {
        return 0;
    }
    const uint32_t window = cache->options.window;
    return window > 0 && n_tokens > window ? (n_tokens - window) / FIRN_BLOCK_TOKENS : 0;
}

/* Down to the shortest row whose window begins in a block that is still here. */
uint32_t firni_rows_trimmable(const firn_cache *cache, uint32_t index)
{
    const firni_row *row = &firni_rows_of(cache)->row[index];
    if (cache->fixed_bytes > 0) {
        return 0;
    }
    const uint32_t n_min = row->first_block > 0 ? row->first_block * FIRN_BLOCK_TOKENS + cache->options.window : 0;
    return row->n_tokens > n_min ? row->n_tokens - n_min : 0;
}

bool firni_rows_can_publish(const firn_cache *cache, uint32_t index, uint32_t tokens)
{
    const firni_row *row = &firni_rows_of(cache)->row[index];
    if (cache->fixed_bytes > 0) {
        return tokens == row->n_tokens;
    }
    return tokens <= row->n_tokens && firni_rows_first_block_needed(cache, tokens) >= row->first_block;
}

uint64_t firni_rows_projected_bytes(const firn_cache *cache, uint32_t tokens)
{
    const uint64_t n_blocks = end_block(cache, tokens) - firni_rows_first_block_needed(cache, tokens);
    return n_blocks * cache->block_bytes + (tokens > 0 ? cache->fixed_bytes : 0);
}

/* A window row holds the window before a step and the step's own tokens, which together may begin and end anywhere in a
 * block; with a copy of a shared tail. Fixed state is there twice while it is copied. */
uint64_t firni_rows_working_bytes(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens)
{
    const uint64_t n_all = end_block(cache, tokens);
    const uint64_t window = cache->options.window;
    const uint64_t n_live = window > 0 ? (window + step_tokens) / FIRN_BLOCK_TOKENS + 2 : n_all;
    const uint64_t n_blocks = n_live < n_all ? n_live : n_all;
    return tokens > 0 ? (n_blocks + 1) * cache->block_bytes + 2 * (uint64_t)cache->fixed_bytes : 0;
}

/* ----
 * reserving ----------------------------------------------------------------------------------------------------- */

/* Blocks in the list that the row needs for `count` more tokens. */
static uint32_t blocks_needed(const firn_cache *cache, const firni_row *row, uint32_t count)
{
    const uint32_t n_needed = end_block(cache, row->n_tokens + count) - row->first_block;
    return n_needed > row->n_blocks_held ? n_needed : row->n_blocks_held;
}

/* Appends what the row lacks to its list: blocks for new tokens and, last, one for a copy of a shared tail; and a block
 * for its first fixed state, or for a copy of a shared one. */
static firn_status reserve_row(firn_cache *cache, firni_row *row, uint32_t count, firn_error *err)
{
    const bool copies = count > 0 && tail_is_shared(cache, row);
    const uint32_t n_blocks = blocks_needed(cache, row, count) + (copies ? 1 : 0);
    firn_status status = grow_list(cache->env, row, n_blocks, err);
    while (status == FIRN_OK && row->n_blocks < n_blocks) {
        status = firn_block_alloc(cache->pool, cache->block_bytes, &row->blocks[row->n_blocks], err);
        row->n_blocks += status == FIRN_OK;
    }
    const bool wants_fixed = count > 0 && cache->fixed_bytes > 0;
    if (status == FIRN_OK && wants_fixed && (row->fixed == NULL || firn_block_refs(row->fixed) > 1)) {
        status = firn_block_alloc(cache->pool, cache->fixed_bytes, &row->fixed_next, err);
    }
    return status;
}

/* Back to what the row held before. */
static void unreserve_row(firni_row *row)
{
    drop_blocks(row, row->n_blocks_held);
    firn_block_release(row->fixed_next);
    row->fixed_next = NULL;
}

static void copy_block(firn_cache *cache, firn_block *to, const firn_block *from, size_t n_bytes)
{
    memcpy(firn_block_data(to), firn_block_data(from), n_bytes);
    firni_pool_count_copied(cache->pool, n_bytes);
}

/* Puts a private copy, for which the list's last block was allocated, in the place of the shared tail. */
static void copy_tail(firn_cache *cache, firni_row *row)
{
    firn_block **tail = &row->blocks[tail_index(row)];
    firn_block *copy = row->blocks[--row->n_blocks];
    copy_block(cache, copy, *tail, cache->block_bytes);
    firn_block_release(*tail);
    *tail = copy;
}

/* The state of a row without tokens is all zero, as the pool hands it out. */
static void exchange_fixed(firn_cache *cache, firni_row *row)
{
    if (row->fixed != NULL) {
        copy_block(cache, row->fixed_next, row->fixed, cache->fixed_bytes);
        firn_block_release(row->fixed);
    }
    row->fixed = row->fixed_next;
    row->fixed_next = NULL;
}

/* Remembers what every row holds, then adds what is lacking. */
firn_status firni_rows_reserve_begin(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        rows->row[r].n_blocks_held = rows->row[r].n_blocks;
    }
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const firn_status status = reserve_row(cache, &rows->row[r], counts[r], err);
        if (status != FIRN_OK) {
            firni_rows_reserve_undo(cache);
            return status;
        }
    }
    return FIRN_OK;
}

void firni_rows_reserve_undo(firn_cache *cache)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        unreserve_row(&rows->row[r]);
    }
}

/* Whether a copy was planned is read off the row, not off the reference count, which another thread may have lowered
 * since. */
void firni_rows_reserve_end(firn_cache *cache, const uint32_t *counts)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        firni_row *row = &rows->row[r];
        if (row->n_blocks > blocks_needed(cache, row, counts[r])) {
            copy_tail(cache, row);
        }
        if (row->fixed_next != NULL) {
            exchange_fixed(cache, row);
        }
    }
}

firn_status firni_rows_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    const firn_status status = firni_rows_reserve_begin(cache, counts, err);
    if (status == FIRN_OK) {
        firni_rows_reserve_end(cache, counts);
    }
    return status;
}

/* The rule of the block is asserted where tokens come to be, not only where bytes are written. */
void firni_rows_advance(firn_cache *cache, const uint32_t *counts)
{
    firni_rows *rows = rows_of(cache);
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        firni_row *row = &rows->row[r];
        assert(counts[r] == 0 || !tail_is_shared(cache, row));
        row->n_tokens += counts[r];
        assert(used_blocks(cache, row) <= row->n_blocks);
        assert(counts[r] == 0 || cache->fixed_bytes == 0 || firn_block_refs(row->fixed) == 1);
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
        const uint32_t n_used = used_blocks(cache, row);
        assert(n_used <= row->n_blocks && row->n_blocks <= row->n_blocks_max);
        assert(row->first_block <= firni_rows_first_block_needed(cache, row->n_tokens));
        assert(row->fixed_next == NULL && (cache->fixed_bytes > 0 || row->fixed == NULL));
        assert(cache->fixed_bytes == 0 || row->n_tokens == 0 || row->fixed != NULL);
        assert(row->fixed == NULL || firn_block_bytes(row->fixed) == cache->fixed_bytes);
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
