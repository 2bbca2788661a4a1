/*
 * layout: storage families behind one table of functions.
 *
 *      firn_cache_*  (cache.c, batch.c, append.c, round.c, donor.c)     checks once what is common to all layouts
 *           |
 *           v   cache->ops
 *      firni_layout  { .signature = "kv:plain", ... }                   one const table per layout, one file per family
 *           |
 *           v
 *      firni_rows_*  (rows.c)                                           ragged rows of blocks and fixed-size states
 *
 * A cache is an instance struct of the layout's own size that begins with firn_cache, which begins with the table
 * pointer. The dispatcher has checked arguments, bounds, rounds and compatibility before it calls the table, so the
 * functions of a layout only do their work; those that return void cannot fail. The dispatcher asserts what they
 * promise. Members marked optional may be NULL, with the stated effect.
 *
 * Whatever can fail in a layout does so before its first visible change.
 */
#ifndef FIRNI_LAYOUT_IMPL_H
#define FIRNI_LAYOUT_IMPL_H

#include <assert.h>
#include <stddef.h>

#include "base/compiler.h"
#include "firn/cache.h"
#include "kernel/kernel_impl.h"

/* The context bound of a layout without one: positions are handed out as int32. */
#define FIRNI_ROW_TOKENS_MAX ((uint32_t)INT32_MAX)

/* Key/value heads of one layer at most: keeps every size of a block in 32 bits. */
#define FIRNI_KV_HEADS_MAX 1024u

typedef struct firni_layout {
    const char *family;    /* what firn_cache_options.layout names; the beginning of every signature of the layout */
    size_t instance_bytes; /* of the layout's own struct, which begins with firn_cache */
    bool takes_recur;      /* an append passes its tokens through a recurrent state too: input->recur is given */

    /* Checks and completes cache->options, fills block_bytes, fixed_bytes, describe and what the layout adds, and, when
     * parameters belong to it, signature. The instance is zeroed; ops, env, pool, kernels are set, and signature is the
     * family. On failure the dispatcher calls deinit. */
    firn_status (*init)(firn_cache *cache, firn_error *err);
    /* Releases all rows and whatever init took; works on a half-built instance. */
    void (*deinit)(firn_cache *cache);

    /* ---- rows ---- */
    uint32_t (*batch_size)(const firn_cache *cache);
    uint32_t (*row_tokens)(const firn_cache *cache, uint32_t row);
    firn_status (*add_row)(firn_cache *cache, firn_error *err);
    firn_row_view (*view_row)(const firn_cache *cache, uint32_t row);
    /* Appends a row that retains the view's blocks. Checks that block count and sizes fit (INVALID). */
    firn_status (*adopt_row)(firn_cache *cache, const firn_row_view *view, firn_error *err);
    /* Appends a row that shares everything with a row of `source`, a compatible cache: what merge, extract and donors
     * are made of. Optional: adopt_row(view_row()). A layout with per-row facts beside its blocks needs its own. */
    firn_status (*share_row)(firn_cache *cache, const firn_cache *source, uint32_t row, firn_error *err);
    /* Keeps these rows in this order; indices are valid and distinct. */
    void (*filter_rows)(firn_cache *cache, const uint32_t *keep, uint32_t n_keep);
    /* Drops the last n_tokens (>= 1) of a row, no more than trimmable_tokens or undoable_tokens said. NULL for a layout
     * that can drop none: it has its own spec_rollback. */
    void (*trim_row)(firn_cache *cache, uint32_t row, uint32_t n_tokens);
    /* Lets go of what no later query can see; never called in an open round. Optional: nothing to let go. */
    void (*settle)(firn_cache *cache);

    /* ---- what the state allows ---- */
    /* Optional: every token of the row. */
    uint32_t (*trimmable_tokens)(const firn_cache *cache, uint32_t row);
    /* What trim() with bypass may drop. Optional: trimmable_tokens. */
    uint32_t (*undoable_tokens)(const firn_cache *cache, uint32_t row);
    /* Optional: 0. */
    uint32_t (*minimum_reusable_offset)(const firn_cache *cache, uint32_t row);
    /* Optional: FIRN_TOKENS_UNLIMITED. */
    uint32_t (*max_append_tokens)(const firn_cache *cache);
    /* Optional: tokens <= the row's own count. */
    bool (*can_publish_row)(const firn_cache *cache, uint32_t row, uint32_t tokens);
    /* Optional, each: nothing to do. commit may convert, and therefore fail before it changed anything. */
    void (*prefill_begin)(firn_cache *cache);
    firn_status (*prefill_commit)(firn_cache *cache, const uint32_t *rows, uint32_t n_rows, firn_error *err);
    void (*prefill_end)(firn_cache *cache);
    /* Optional: no parts. */
    uint32_t (*composed)(const firn_cache *cache, firn_cache *const **parts);

    /* ---- accounting ---- */
    uint64_t (*bytes_per_token)(const firn_cache *cache);
    uint64_t (*projected_bytes)(const firn_cache *cache, uint32_t tokens);
    uint64_t (*working_bytes)(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens);
    /* Optional: 0, for families whose rows need all their blocks, or have none. */
    uint32_t (*first_block_needed)(const firn_cache *cache, uint32_t n_tokens);
    /* Optional: no token blocks. */
    uint32_t (*planes)(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
    /* Optional: no fixed-size state. */
    uint32_t (*fixed_planes)(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);

    /* ---- work ---- */
    /* Makes the next append of at most counts[r] tokens infallible: allocates blocks, copies shared tails. On failure
     * the pool holds what it held before. */
    firn_status (*reserve)(firn_cache *cache, const uint32_t *counts, firn_error *err);
    /* Stores and advances; reserved before. Strides are set. NULL, like attend, for layouts that are not
     * attended to. */
    void (*append)(firn_cache *cache, const firn_append_input *input, const uint32_t *counts, firn_workers *workers);
    /* Allocates nothing. Strides are set. */
    void (*attend)(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                   firn_workers *workers);
    /* Passes tokens through the state and advances; reserved before. Strides are set. NULL for layouts that are
     * attended to. */
    void (*recur)(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts, firn_workers *workers);
    firn_status (*state)(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);

    /* ---- speculative rounds ---- */
    /* All optional: begin remembers the counts, commit forgets them, rollback trims every row. A layout that cannot
     * trim keeps a snapshot in begin and replays. drop[r] is the number of the round's last tokens to forget. */
    firn_status (*spec_begin)(firn_cache *cache, firn_error *err);
    void (*spec_commit)(firn_cache *cache);
    void (*spec_rollback)(firn_cache *cache, const uint32_t *drop);

    /* Asserts the layout's own invariants. */
    void (*check)(const firn_cache *cache);
} firni_layout;

/* A speculative round. base[r] is the row's count when it began; the array outlives the round and only grows. */
typedef struct firni_round {
    bool is_open;
    uint32_t *base;
    uint32_t *drop;
    uint32_t capacity_rows;
} firni_round;

struct firn_cache {
    const firni_layout *ops;
    const firn_env *env;
    firn_pool *pool;
    const firni_kernels *kernels;
    firn_cache_options options; /* completed; strings are static */
    size_t block_bytes;         /* of every token block; 0 without token blocks */
    size_t fixed_bytes;         /* of the fixed-size state of a row; 0 without one */
    char signature[64];         /* the family, with its parameters */
    char describe[192];         /* equal text: blocks may be exchanged */
    firni_round round;
    bool in_prefill;
};

static_assert(offsetof(struct firn_cache, ops) == 0, "the table pointer comes first");

/* Fills cache->describe, for init; asserts that it fits. */
void firni_cache_set_describe(firn_cache *cache, const char *format, ...) FIRNI_PRINTF(2, 3);

/* ---- registry.c ---- */

/* The table of this family, or NULL. */
const firni_layout *firni_layout_find(const char *family);
uint32_t firni_layout_count(void);
const firni_layout *firni_layout_at(uint32_t index);
/* Asked for families that are not in the table. A weak function that knows none: test programs define it again to bring
 * layouts of their own. */
const firni_layout *firni_layout_find_more(const char *family);

/* A cache of a table that need not be registered; otherwise as firn_cache_create(). */
firn_status firni_cache_create_with(const firni_layout *layout, const firn_cache_options *options, firn_pool *pool,
                                    const firn_env *env, firn_cache **out, firn_error *err);

/* ---- batch.c ---- */

/* Appends every row of `source` to `target`, another cache, sharing all blocks. After a failure the target has the
 * first few of them, for the caller to drop. Rounds and compatibility are the caller's concern. */
firn_status firni_cache_share_rows(firn_cache *target, const firn_cache *source, firn_error *err);

/* ---- rows.c: what all families share ---- */

/* One row. blocks[i] covers tokens [64 * (first_block + i), ...), up to ceil(n_tokens / 64) blocks from the row's
 * start. Blocks beyond them were reserved ahead: they are unshared, and neither views, merges nor filters of other rows
 * ever see them. */
typedef struct firni_row {
    firn_block **blocks;
    uint32_t first_block;  /* > 0 when older blocks fell out of the window */
    uint32_t n_blocks;     /* held, reserved ones included */
    uint32_t n_blocks_max; /* room in `blocks` */
    uint32_t n_tokens;
    firn_block *fixed;      /* fixed-size state at exactly n_tokens; NULL without one, and before the first reserve */
    uint32_t n_blocks_held; /* scratch of one reserve: what to fall back to */
    firn_block *fixed_next; /* scratch of one reserve */
} firni_row;

/* The block that holds the token at `position`, which the row has, or has reserved. */
FIRNI_INLINE firn_block *firni_row_block(const firni_row *row, uint32_t position)
{
    const uint32_t index = position / FIRN_BLOCK_TOKENS - row->first_block;
    assert(position / FIRN_BLOCK_TOKENS >= row->first_block && index < row->n_blocks);
    return row->blocks[index];
}

/* `row` has n_rows entries; `scratch` has the same room, so that filtering cannot fail. */
typedef struct firni_rows {
    firni_row *row;
    firni_row *scratch;
    uint32_t n_rows;
    uint32_t n_rows_max;
} firni_rows;

/* What a family's instance struct begins with; the functions below expect it. They serve three kinds of rows, told
 * apart by block_bytes, options.window and fixed_bytes: all blocks, the blocks of a window, a fixed-size state. */
typedef struct firni_block_cache {
    firn_cache base;
    firni_rows rows;
} firni_block_cache;

static_assert(offsetof(firni_block_cache, base) == 0, "a block cache is a cache");

FIRNI_INLINE uint32_t firni_blocks_of(uint32_t n_tokens)
{
    return n_tokens / FIRN_BLOCK_TOKENS + (n_tokens % FIRN_BLOCK_TOKENS != 0);
}

FIRNI_INLINE const firni_rows *firni_rows_of(const firn_cache *cache)
{
    return &((const firni_block_cache *)cache)->rows;
}

/* Table members of this name. */
void firni_rows_deinit(firn_cache *cache);
uint32_t firni_rows_batch_size(const firn_cache *cache);
uint32_t firni_rows_tokens(const firn_cache *cache, uint32_t row);
firn_status firni_rows_add(firn_cache *cache, firn_error *err);
firn_row_view firni_rows_view(const firn_cache *cache, uint32_t row);
firn_status firni_rows_adopt(firn_cache *cache, const firn_row_view *view, firn_error *err);
void firni_rows_filter(firn_cache *cache, const uint32_t *keep, uint32_t n_keep);
void firni_rows_trim(firn_cache *cache, uint32_t row, uint32_t n_tokens);
void firni_rows_settle(firn_cache *cache);
uint32_t firni_rows_first_block_needed(const firn_cache *cache, uint32_t n_tokens);
uint32_t firni_rows_trimmable(const firn_cache *cache, uint32_t row);
bool firni_rows_can_publish(const firn_cache *cache, uint32_t row, uint32_t tokens);
uint64_t firni_rows_projected_bytes(const firn_cache *cache, uint32_t tokens);
uint64_t firni_rows_working_bytes(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens);
firn_status firni_rows_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err);
void firni_rows_check(const firn_cache *cache);

/* What the table of a layout of blocks begins with, and what one adds whose rows keep a window of them. */
#define FIRNI_ROWS_MEMBERS                                                                                            \
    .deinit = firni_rows_deinit, .batch_size = firni_rows_batch_size, .row_tokens = firni_rows_tokens,                \
    .add_row = firni_rows_add, .view_row = firni_rows_view, .adopt_row = firni_rows_adopt,                            \
    .filter_rows = firni_rows_filter, .trim_row = firni_rows_trim, .projected_bytes = firni_rows_projected_bytes,     \
    .working_bytes = firni_rows_working_bytes, .reserve = firni_rows_reserve, .check = firni_rows_check
#define FIRNI_WINDOW_MEMBERS                                                                                          \
    .settle = firni_rows_settle, .trimmable_tokens = firni_rows_trimmable, .can_publish_row = firni_rows_can_publish, \
    .first_block_needed = firni_rows_first_block_needed

/* firni_rows_reserve() in its steps, for who reserves in two caches at once. begin adds what is lacking and undoes it
 * when it fails; undo does so later, when nothing else was done to the rows since; end exchanges shared tails and
 * states for their copies and cannot fail. */
firn_status firni_rows_reserve_begin(firn_cache *cache, const uint32_t *counts, firn_error *err);
void firni_rows_reserve_undo(firn_cache *cache);
void firni_rows_reserve_end(firn_cache *cache, const uint32_t *counts);

void firni_rows_drop_last(firn_cache *cache);
/* Lets go of all blocks of a row without fixed-size state, which then goes on as if it had had first_block full blocks
 * and had let go of them: 0 for an empty row. */
void firni_rows_restart(firn_cache *cache, uint32_t row, uint32_t first_block);

/* Advances every row by counts[r]; reserved before. */
void firni_rows_advance(firn_cache *cache, const uint32_t *counts);

/* ---- span.c: the new tokens of one call, cut into independent tasks ---- */

/* Some consecutive tokens of one row among the counts[r] last tokens of each row. */
typedef struct firni_span {
    uint32_t row;
    uint32_t position; /* absolute, of the first one */
    uint32_t n_tokens;
    uint64_t packed; /* index of the first one among the packed tokens of the call */
} firni_span;

/* Cuts wherever an absolute position is a multiple of `step`: with step = 64 no two spans touch the same block. */
uint32_t firni_span_count(const firni_rows *rows, const uint32_t *counts, uint32_t step);
firni_span firni_span_at(const firni_rows *rows, const uint32_t *counts, uint32_t step, uint32_t index);

/* ---- tasks.c: append and attend of families whose tokens are keys and values of heads in blocks ---- */

/* Stores one token of all heads into a lane of a private block. */
typedef void firni_store_token(const firn_cache *cache, uint8_t *block, uint32_t lane, const float *k, const float *v);
/* Completes the task with the geometry, and runs the kernel. */
typedef void firni_attend_span(const firn_cache *cache, firni_attend_task *task);

/* Advances the rows, and stores. */
void firni_append_tokens(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                         firn_workers *workers, firni_store_token *store);
void firni_attend_heads(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers, firni_attend_span *attend);

/* ---- dense.c: blocks to rectangles ---- */

/* How many of a row's n_tokens the dense view shows: with a window, its last ones. */
uint32_t firni_dense_tokens(const firn_cache *cache, uint32_t n_tokens);
/* One plane of all rows as [batch, shape[0], S, inner], right-justified, padding zero; S as firn_cache_state() says.
 * token_axis (1 or 2) is the axis of plane->shape that runs over the block's tokens; inner is the other one. The data
 * is borrowed from the block where one row's plane already lies like this, and owned otherwise. Errors: NO_MEMORY; the
 * tensor is zeroed then. */
firn_status firni_dense_plane(const firn_cache *cache, const firn_plane *plane, uint32_t token_axis,
                              firn_tensor *tensor, firn_error *err);
/* The tensors of each part of a composing layout, in order. Errors: as firn_cache_state(); none is left then. */
firn_status firni_dense_parts(firn_cache *const *parts, uint32_t n_parts, firn_tensor *tensors, uint32_t *n_tensors,
                              firn_error *err);

/* ---- layouts ---- */

extern const firni_layout firni_layout_plain, firni_layout_window;
extern const firni_layout firni_layout_gated_delta, firni_layout_mamba2;
extern const firni_layout firni_layout_quant, firni_layout_window_quant, firni_layout_turboquant;
extern const firni_layout firni_layout_delayed_quant, firni_layout_delayed_window_quant,
    firni_layout_delayed_turboquant;
extern const firni_layout firni_layout_hybrid;

/* Of plain.c, which window.c shares: the same blocks, of which a row keeps fewer. */
typedef struct firni_plain_cache {
    firni_block_cache rows;
    firni_plain_geometry geometry;
} firni_plain_cache;

static_assert(offsetof(firni_plain_cache, rows) == 0, "a plain cache is a block cache");

/* Completes the options and the geometry; `describe` is left to the layout. */
firn_status firni_plain_init_geometry(firn_cache *cache, firn_error *err);
uint64_t firni_plain_bytes_per_token(const firn_cache *cache);
uint32_t firni_plain_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
void firni_plain_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                        firn_workers *workers);
void firni_plain_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers);
firn_status firni_plain_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);

/* Of quant.c, which window_quant.c and turboquant.c share. */
typedef struct firni_quant_cache {
    firni_block_cache rows;
    firni_quant_geometry geometry;
} firni_quant_cache;

static_assert(offsetof(firni_quant_cache, rows) == 0, "a quantised cache is a block cache");

/* Completes the options of an affine family (bits, group, head sizes), its geometry and its signature. */
firn_status firni_quant_init_affine(firn_cache *cache, firn_error *err);
/* The checks that all quantised families share: heads, dtype, no window unless the family has one. */
firn_status firni_quant_check_options(const firn_cache *cache, bool has_window, firn_error *err);
/* The geometry of options that are complete. */
void firni_quant_set_geometry(firn_cache *cache, bool rotated);
/* signature + heads, dimensions and, when there is one, window. */
void firni_quant_describe(firn_cache *cache);
uint64_t firni_quant_bytes_per_token(const firn_cache *cache);
uint32_t firni_quant_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
void firni_quant_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                        firn_workers *workers);
void firni_quant_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers);
/* quant_dense.c: the dense view in the form that the public header describes. */
firn_status firni_quant_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);

/* Of mla.c, which mla_dsa.c shares. */
extern const firni_layout firni_layout_mla, firni_layout_mla_mtp, firni_layout_mla_dsa;

typedef struct firni_mla_cache {
    firni_block_cache rows;
    firni_latent_geometry geometry;
} firni_mla_cache;

static_assert(offsetof(firni_mla_cache, rows) == 0, "a latent cache is a block cache");

/* Completes the options, with index_dim as they say, and the geometry; `describe` is left to the layout. */
firn_status firni_mla_init_geometry(firn_cache *cache, firn_error *err);
uint64_t firni_mla_bytes_per_token(const firn_cache *cache);
uint32_t firni_mla_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
void firni_mla_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts, firn_workers *workers);
firn_status firni_mla_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);
/* The task of the queries of a span, all heads. */
firni_attend_task firni_mla_task(const firn_cache *cache, const firn_attend_input *input, const firni_span *span);

#endif
