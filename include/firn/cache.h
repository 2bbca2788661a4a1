/*
 * firn_cache: one layer's state for B rows, whatever the storage family.
 *
 * A scheduler that knows only this header can batch, split, trim, publish and roll back rows of any layout.
 *
 *   - Serial and batched are the same type: a serial cache is a batch of one row.
 *   - Rows are ragged. A row is a list of reference-counted blocks plus its own token count; there is no padding and
 *     no common length.
 *
 *         row 0  [b0][b1][b2..]         offset 150        blocks hold 64 tokens each, aligned to absolute positions:
 *         row 1  [b0][b4]               offset 128        token p lies in block p / 64, lane p % 64
 *         row 2                         offset 0
 *
 *   - Merging, extracting and filtering move references, never KV bytes. A partial tail block that is shared is copied
 *     on the first write to it; this is the only copy there is.
 *   - Everything that can fail happens before the first visible change: a failed call leaves the cache as it was.
 *   - What a layout can do is asked by capability (trimmable? publishable? how many tokens before a precision change?),
 *     never by kind.
 *
 * Threads: a cache belongs to one thread at a time. Blocks may be shared with other threads, caches may not.
 */
#ifndef FIRN_CACHE_H
#define FIRN_CACHE_H

#include "firn/array.h"
#include "firn/workers.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FIRN_TOKENS_UNLIMITED UINT32_MAX

typedef struct firn_cache firn_cache;

/* Layout and geometry of one layer's cache. All zero in a member means the stated default; a member that the family
 * does not use must be zero. */
typedef struct firn_cache_options {
    const char *layout;      /* family, e.g. "kv:plain"; required */
    firn_dtype dtype;        /* element type of plain planes; default FIRN_DTYPE_F16; none for quantised layouts, those
                              * of kv:delayed-* apart, which begin with plain ones */
    uint32_t n_kv_heads;     /* required by attention layouts, 1..1024 */
    uint32_t head_dim;       /* elements of one key; required by attention layouts, 1..1024 */
    uint32_t value_dim;      /* elements of one value; default head_dim */
    uint32_t n_state_heads;  /* required by recurrent layouts: state matrices of a row, [head_dim][value_dim] each, a
                                multiple of n_kv_heads, which counts their keys and queries; state is always f32 */
    uint32_t conv_width;     /* required by recurrent layouts: inputs that their convolution sees, 1..16 */
    bool keys_cycle;         /* recurrent layouts: state head h reads key head h % n_kv_heads; else heads in a row share
                                one: h / (n_state_heads / n_kv_heads) */
    uint32_t window;         /* required by window layouts: tokens that a query sees, itself included */
    uint32_t key_bits;       /* quantised layouts: bits of a code of keys; kv:quant 8 (default) or 4, kv:turboquant 8
                              * (default), 5, 4 or 2 */
    uint32_t value_bits;     /* the same of values; kv:quant key_bits, kv:turboquant 3 (default), 8, 5, 4 or 2 */
    uint32_t group;          /* elements of a head that share a scale: kv:quant 64 or 32 (default: 64 where it divides
                              * the heads), kv:turboquant 32 */
    uint32_t start;          /* kv:delayed-*: tokens that a row has when it goes over from plain to quantised blocks;
                              * required there, 1.. */
    uint32_t index_dim;      /* kv:mla:dsa: elements of an index key, 1..1024; required there */
    uint32_t index_top_k;    /* kv:mla:dsa: tokens that a query sees at most, 1..4096; required there */
    const char *attention;   /* hybrid: the layout of its keys and values, which the members above describe; required
                              * there, any kv:* but kv:delayed-* */
    const struct firn_cache_options *recurrent; /* hybrid: its recurrent part, an ssm:* layout; required there,
                                                 * copied */
    uint32_t max_tokens;     /* hard context bound of a row; 0 means none */
    const char *kernel;      /* "scalar", "avx2", "avx512", "neon"; NULL: FIRN_KERNEL or the best of this processor */
} firn_cache_options;

/* Creates an empty cache (zero rows) whose blocks come from `pool`, which must outlive it. `options` is copied.
 * Errors: INVALID (a member out of range), UNSUPPORTED (no such layout; message lists those that exist), NO_MEMORY. */
firn_status firn_cache_create(const firn_cache_options *options, firn_pool *pool, const firn_env *env, firn_cache **out,
                              firn_error *err);
/* dispose(): releases all rows. Safe on NULL, on an empty and on a half-built cache. Donors taken from it
 * stay valid. */
void firn_cache_destroy(firn_cache *cache);
/* makeEmptyBatch(): an empty cache of the same layout, geometry and pool. */
firn_status firn_cache_make_empty(const firn_cache *cache, firn_cache **out, firn_error *err);

/* ---- rows ---------------------------------------------------------------------------------------------------- */

/* mergeRows(): fills the empty cache `target` with the rows of sources[0] (any number of rows), then one row from each
 * further source, which must be serial (one row). Sources are borrowed and unchanged; afterwards both sides may be
 * written without the other seeing it. Copies no KV bytes. On failure the target stays empty.
 * Errors: STATE (target not empty, or in a speculative round; a source in a round), INVALID (a joining source is not
 * serial), SIGNATURE (layout, dtype, geometry or pool differ; the message names both sides), NO_MEMORY. */
firn_status firn_cache_merge_rows(firn_cache *target, const firn_cache *const *sources, uint32_t n_sources,
                                  firn_error *err);
/* extractRow(): an independent, owned serial cache that holds `row`. Errors: INVALID (row), STATE (open round),
 * NO_MEMORY. */
firn_status firn_cache_extract_row(const firn_cache *cache, uint32_t row, firn_cache **out, firn_error *err);
/* filterRows(): keeps rows keep[0..n_keep) in this order; n_keep may be 0. Errors: INVALID (a duplicate or an index out
 * of range), STATE (open round): nothing changed. */
firn_status firn_cache_filter_rows(firn_cache *cache, const uint32_t *keep, uint32_t n_keep, firn_error *err);
/* Appends one empty row at the end of the batch. Errors: STATE (open round), NO_MEMORY. */
firn_status firn_cache_add_row(firn_cache *cache, firn_error *err);

uint32_t firn_cache_batch_size(const firn_cache *cache);                       /* batchSize; 0 when empty */
uint32_t firn_cache_offset(const firn_cache *cache);                           /* offset: largest row count; 0 when
                                                                                * empty */
uint32_t firn_cache_row_tokens(const firn_cache *cache, uint32_t row);         /* rowOffsets[row] */
uint32_t firn_cache_left_pad(const firn_cache *cache, uint32_t row);           /* leftPad[row]: offset - row_tokens */
uint32_t firn_cache_max_tokens(const firn_cache *cache);                       /* maxTokens, or FIRN_TOKENS_UNLIMITED */

/* ---- trimming and precision ---------------------------------------------------------------------------------- */

/* How many of the row's last tokens can be dropped now. Plain storage: all of them. A window: as long as the blocks of
 * the shorter row's window are still here. Recurrent state: none. */
uint32_t firn_cache_trimmable_tokens(const firn_cache *cache, uint32_t row);
/* isTrimmable(): every row can drop any number of its tokens. */
bool firn_cache_is_trimmable(const firn_cache *cache);
/* trim(n, bypass): drops the last n tokens of every row. bypass serves the rollback of a speculative append: it skips
 * the trimmable check for layouts that can physically undo their last append. Errors: TRIM (some row holds fewer than
 * n tokens or cannot drop them; nothing changed). */
firn_status firn_cache_trim(firn_cache *cache, uint32_t n_tokens, bool bypass, firn_error *err);
firn_status firn_cache_trim_row(firn_cache *cache, uint32_t row, uint32_t n_tokens, firn_error *err);
/* minimumReusableOffset: the earliest prefix at which the kept representation can resume. Plain storage: 0. */
uint32_t firn_cache_minimum_reusable_offset(const firn_cache *cache, uint32_t row);
/* maxAppendTokens(): how many tokens may be appended to every row before one of them changes precision; the engine
 * splits its chunk there. Plain storage: FIRN_TOKENS_UNLIMITED. */
uint32_t firn_cache_max_append_tokens(const firn_cache *cache);
/* prefillMaintenance: brackets a prefill; commit names the rows whose prompt has ended, so that each row's own
 * precision boundary is fixed at its own prompt end. Layouts of one precision accept and ignore all three, in this
 * order. Errors: STATE (out of order), INVALID (row). */
firn_status firn_cache_prefill_begin(firn_cache *cache, firn_error *err);
firn_status firn_cache_prefill_commit(firn_cache *cache, const uint32_t *rows, uint32_t n_rows, firn_error *err);
firn_status firn_cache_prefill_end(firn_cache *cache, firn_error *err);

/* ---- accounting and identity --------------------------------------------------------------------------------- */

/* bytesPerToken(): physical growth per token and row, without block rounding; 0 for fixed-size state. */
uint64_t firn_cache_bytes_per_token(const firn_cache *cache);
/* projectedBytes(tokens): pool bytes that one unshared row holds at `tokens`, block rounding included. Equal to what is
 * really allocated. */
uint64_t firn_cache_projected_bytes(const firn_cache *cache, uint32_t tokens);
/* canPublishRow(): whether the row may be published as covering exactly `tokens`. Trimmable layouts: tokens <= own
 * count; recurrent state: only its own count. */
bool firn_cache_can_publish_row(const firn_cache *cache, uint32_t row, uint32_t tokens);
/* The most pool bytes that one unshared row holds at any moment on its way to `tokens`, in steps of at most step_tokens
 * outside speculative rounds: with what a step still sees, and with the copy of a shared tail or state. What admission
 * reserves. */
uint64_t firn_cache_working_bytes(const firn_cache *cache, uint32_t tokens, uint32_t step_tokens);
/* The first block without which a row of n_tokens cannot go on: 0 for full attention, the start of the last window for
 * window layouts. The number of blocks of the row when it has no token blocks at all. */
uint32_t firn_cache_first_block_needed(const firn_cache *cache, uint32_t n_tokens);
/* Bytes of the fixed-size state of one row; 0 for layouts without one. */
size_t firn_cache_fixed_bytes(const firn_cache *cache);
/* signature(): stable identity of the layout with its parameters, e.g. "kv:plain". Never NULL or empty; lives as long
 * as the cache. */
const char *firn_cache_signature(const firn_cache *cache);
/* Layout and geometry as given at creation with defaults filled in; lives as long as the cache. */
const firn_cache_options *firn_cache_get_options(const firn_cache *cache);
/* Layout, dtype and geometry as one readable line, e.g. "kv:plain f16 heads=8 dim=64/64 block=64"; equal lines mean
 * that blocks may be exchanged. Lives as long as the cache. */
const char *firn_cache_describe(const firn_cache *cache);
/* composed: the caches that a composing layout holds, borrowed, to be looked at only; 0 and *parts = NULL for a simple
 * layout. hybrid: attention, recurrent. kv:delayed-*: plain, quantised; a row has its tokens in one of them. kv:mla:dsa
 * is simple: latents and index keys are planes of one block, so nothing can ever part them. */
uint32_t firn_cache_composed(const firn_cache *cache, firn_cache *const **parts);

/* ---- append and attend --------------------------------------------------------------------------------------- */

/* New keys and values, packed over rows: token i of the packed order belongs to the row whose turn it is when counts
 * are laid end to end. Prefill chunks and decode steps mix freely in one call.
 *   k: [sum(counts), n_kv_heads, head_dim]   f32, consecutive tokens k_stride floats apart (0: dense)
 *   v: [sum(counts), n_kv_heads, value_dim]  f32, consecutive tokens v_stride floats apart (0: dense)
 * Latent layouts (kv:mla) have one head, whose value is the first value_dim elements of its key: v is not read. */
typedef struct firn_append_input {
    const float *k;
    const float *v;
    uint32_t k_stride;
    uint32_t v_stride;
    const float *index_key; /* kv:mla:dsa: [sum(counts), index_dim] f32; NULL elsewhere */
    uint32_t index_stride;  /* floats from token to token; 0: dense */
    const struct firn_recur_input *recur; /* hybrid: the same tokens on their way through the recurrent part, whose
                                           * outputs are written as by firn_cache_recur(); NULL elsewhere */
} firn_append_input;

/* Makes room for counts[r] more tokens in each row r (blocks allocated, shared tails copied, rows converted that change
 * precision here), so that the next append of at most these counts cannot fail. Errors: CAPACITY (max_tokens), INVALID
 * (more than firn_cache_max_append_tokens() for a row), NO_MEMORY: no row's tokens changed. */
firn_status firn_cache_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err);
/* Converts and stores; advances each row by counts[r]. counts[r] may be 0. Reserves first when the caller has not.
 * Errors: as reserve. `workers` may be NULL. */
firn_status firn_cache_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err);

/* One attention over the rows' own blocks. Query i of a row (of its counts[r]) has the position
 * row_tokens - counts[r] + i and sees every stored token up to and including itself (within the layout's window).
 *   q:   [sum(counts), n_heads, head_dim]  f32, consecutive tokens q_stride floats apart (0: dense)
 *   out: [sum(counts), n_heads, value_dim] f32, consecutive tokens out_stride floats apart (0: dense)
 * n_heads is a multiple of n_kv_heads: query head h reads KV head h / (n_heads / n_kv_heads).
 * The result for a query depends on nothing but the stored bits of its row: not on the batch, the chunk or the
 * threads. */
typedef struct firn_attend_input {
    const float *q;
    float *out;
    uint32_t q_stride;
    uint32_t out_stride;
    uint32_t n_heads;
    float scale;          /* multiplies q.k; usually 1/sqrt(head_dim) */
    float softcap;        /* 0: none; else scores become softcap * tanh(score / softcap) */
    const float *sinks;   /* NULL, or [n_heads]: a logit per head that takes part in the softmax without a value */
    /* kv:mla:dsa, NULL and 0 elsewhere: what scores the index keys. The score of a token is the sum over index heads of
     * weight * max(0, query.index key); each query sees the index_top_k best of the tokens up to itself, the older one
     * among equals, and nothing else. */
    const float *index_q;       /* [sum(counts), n_index_heads, index_dim] f32 */
    const float *index_weights; /* [sum(counts), n_index_heads] f32 */
    uint32_t n_index_heads;
    uint32_t index_q_stride;    /* floats from token to token; 0: dense */
    uint32_t index_weights_stride;
} firn_attend_input;

/* Errors: INVALID (n_heads, counts larger than a row, the window of a row's first query has been settled away).
 * Allocates nothing. `workers` may be NULL. */
firn_status firn_cache_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err);

/* The new tokens of recurrent layouts, packed over rows as for append. First each channel of x passes through a short
 * causal convolution and silu; its channels are then queries, keys and values, and each state head h takes one token
 * after the other:
 *   ssm:gated-delta  channels q [n_kv_heads, head_dim], k likewise, v [n_state_heads, value_dim]; q and k are divided
 *                    by their lengths; S = decay * S, S += k (x) strength * (v - S^T k); out = S^T q
 *   ssm:mamba2       channels v [n_state_heads, value_dim], k [n_kv_heads, head_dim], q likewise;
 *                    S = decay * S + k (x) strength * v; out = S^T q + skip * v
 * The result for a token depends on nothing but the tokens before it in its row: not on the batch, the chunk or the
 * threads. */
typedef struct firn_recur_input {
    float *x;                 /* [sum(counts), channels], x_stride floats apart (0: dense); overwritten */
    const float *decay;       /* [sum(counts), n_state_heads], gate_stride floats apart (0: dense); >= 0 */
    const float *strength;    /* likewise */
    float *out;               /* [sum(counts), n_state_heads, value_dim], out_stride floats apart (0: dense) */
    uint32_t x_stride;
    uint32_t gate_stride;
    uint32_t out_stride;
    const float *conv_weight; /* [conv_width, channels], of the oldest input first */
    const float *conv_bias;   /* [channels], or NULL */
    const float *skip;        /* ssm:mamba2: [n_state_heads]; else NULL */
    float scale;              /* ssm:gated-delta: multiplies queries; usually 1/sqrt(head_dim) */
    float norm_eps;           /* ssm:gated-delta: the least length of a query or key */
} firn_recur_input;

/* Passes the tokens through the state, writes their outputs and advances each row by counts[r]. Reserves first when the
 * caller has not. Errors: UNSUPPORTED (the layout is attended to instead, or takes this with its append), and as
 * reserve: nothing changed. */
firn_status firn_cache_recur(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts,
                             firn_workers *workers, firn_error *err);

/* Ends a step: lets go of blocks that no query of a later token can see. Not in an open round, which keeps them until
 * it ends; commit and rollback settle too. An append settles first. Whoever shares this cache's rows with later layers
 * of the same step calls it after them. */
void firn_cache_settle(firn_cache *cache);

/* ---- donors -------------------------------------------------------------------------------------------------- */

/* A read-only snapshot of all rows. It stays valid and unchanged while the cache it came from appends, trims, merges
 * or is destroyed; the pool must outlive it. */
typedef struct firn_donor firn_donor;

/* captureDonorRows(): the state as of now, for layers that share it. Errors: NO_MEMORY. */
firn_status firn_cache_capture_donor(const firn_cache *cache, firn_donor **out, firn_error *err);
void firn_donor_destroy(firn_donor *donor); /* accepts NULL */
uint32_t firn_donor_batch_size(const firn_donor *donor);
uint32_t firn_donor_row_tokens(const firn_donor *donor, uint32_t row);
/* captureDonorAttention(): attends to the snapshot exactly as firn_cache_attend would have at capture time. */
firn_status firn_donor_attend(const firn_donor *donor, const firn_attend_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err);

/* ---- speculative rounds -------------------------------------------------------------------------------------- */

/* A verify round: begin, append the drafted tokens (in one append or in several), then commit all of them or roll back
 * to the first keep[r] of each row's tokens of the round. Rollback leaves exactly the state of never having processed
 * the others. Rows may not be added, filtered or merged while a round is open. Errors: STATE (begin twice, end without
 * begin), INVALID (keep larger than what the round appended), NO_MEMORY (begin). */
firn_status firn_cache_spec_begin(firn_cache *cache, firn_error *err);
firn_status firn_cache_spec_commit(firn_cache *cache, firn_error *err);
firn_status firn_cache_spec_rollback(firn_cache *cache, const uint32_t *keep, firn_error *err);

/* ---- dense view for outside engines -------------------------------------------------------------------------- */

/* state(): the state as dense arrays, in the layout's order (plain: K then V, each [B, n_kv_heads, S, dim] in the
 * storage dtype, S = offset, rows right-justified, padding zero; with a window each row shows its last tokens, at most
 * as many as the window has, and S is the largest number of them; quantised
 * layouts: docs/layouts/quantised.md; composing ones: the tensors of their parts in order, each as wide as its part;
 * recurrent: the convolution's last inputs [B, conv_width - 1, channels], then the matrices [B, n_state_heads,
 * head_dim, value_dim]). Sets *n_tensors; `tensors` has room for FIRN_CACHE_STATE_TENSORS_MAX. stateNeedsDispose is
 * tensors[i].owned: owned tensors are released with firn_tensor_deinit(), borrowed ones stay valid until the next call
 * that changes the cache. Errors: NO_MEMORY. */
#define FIRN_CACHE_STATE_TENSORS_MAX 8
firn_status firn_cache_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);
/* ropeOffsetArr: writes each row's token count, the position of its next token; offsets has room for batch_size. */
void firn_cache_rope_offsets(const firn_cache *cache, int32_t *offsets);
/* S of state(): columns of its rectangles. 0 for recurrent layouts and for an empty batch. */
uint32_t firn_cache_dense_width(const firn_cache *cache);
/* Which columns the last n_queries tokens of each row see: mask is [B, n_queries, S], 1 where query i, of the position
 * row_tokens - n_queries + i, sees the token of the column (causal, and within the layout's window), else 0. Padding is
 * seen by none, and queries before the row's first token see nothing. */
void firn_cache_dense_mask(const firn_cache *cache, uint32_t n_queries, uint8_t *mask);

/* ---- state as blocks: what prefix trees and tiers exchange --------------------------------------------------- */

/* A borrowed view of one row. A row that cannot be exchanged yet (kv:delayed-*, before its conversion) shows no blocks.
 * blocks[i] covers tokens [64 * (first_block + i), ...); first_block > 0 when a window
 * layout has let older blocks go. `fixed` is the fixed-size state of recurrent layouts, valid at exactly n_tokens. */
typedef struct firn_row_view {
    firn_block *const *blocks;
    uint32_t first_block;
    uint32_t n_blocks;
    firn_block *fixed;
    uint32_t n_tokens;
} firn_row_view;

/* Valid until the next call that changes the cache. */
firn_row_view firn_cache_view_row(const firn_cache *cache, uint32_t row);
/* Appends a row made of these blocks, retaining each; the caller keeps its own references. Copies no KV bytes.
 * Errors: INVALID (block count or sizes do not fit n_tokens; max_tokens), STATE (open round), NO_MEMORY. */
firn_status firn_cache_adopt_row(firn_cache *cache, const firn_row_view *view, firn_error *err);

/* One plane of a block, for records and dumps: where it lies and what its elements are. */
typedef struct firn_plane {
    const char *name; /* "k", "v"; static storage */
    firn_dtype dtype;
    uint32_t n_dims;
    uint32_t shape[FIRN_TENSOR_DIMS_MAX]; /* outermost first, as it lies in memory */
    uint32_t offset_bytes;                /* from the start of the block */
    uint32_t n_bytes;
} firn_plane;

#define FIRN_CACHE_PLANES_MAX 8
/* The planes of a token block, in memory order; returns their number. block_bytes: allocated size of one block, 0
 * without token blocks. */
uint32_t firn_cache_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
size_t firn_cache_block_bytes(const firn_cache *cache);
/* The planes of the fixed-size state, in memory order; 0 for layouts without one. */
uint32_t firn_cache_fixed_planes(const firn_cache *cache, firn_plane planes[FIRN_CACHE_PLANES_MAX]);
firn_pool *firn_cache_get_pool(const firn_cache *cache);

/* Asserts every invariant of the structure: block counts match token counts, sizes match the geometry, no block is
 * both shared and writable. For tests and debug builds. */
void firn_cache_check(const firn_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
