/*
 * What of a running row goes into the token tree, and when. Owns the choice of the counts; the tree owns what becomes
 * of them.
 *
 *      prompt, then answer   0 ......................... N ........... end
 *      all blocks kept                                   *              *      all positions before are there too
 *      windows               *    *    *    *    *    *  *              *      at block ends, before the blocks go
 *      fixed-size state                 *           *  *-1 *            *      where somebody may come back to
 *      last logits                                       *
 *
 * Blocks of a window leave the row as it goes on, so they are put whenever a chunk ends with a block, which it does if
 * it can: never more than a block behind. A state of fixed size serves its own count alone and is large, so only counts
 * are put that the tree's retention rule would keep: the last block boundary that leaves a token of the prompt to
 * compute, 2, 32 and 512 blocks before it, the boundary before the place where this prompt left what was stored, for
 * the next that leaves it there, the prompt's own end, where its last logits belong, and the end.
 *
 * And the prompt without its last token: whoever asks the same again when the logits have gone, or were not stored,
 * must forward one token for its logits, and from here it is only that one. The price is a step of its own for the last
 * token. A prompt that fits into one block is sooner computed.
 */
#include <assert.h>

#include "engine/engine_impl.h"

static const uint32_t blocks_before_end[] = { 0, 2, 32, 512 };

enum { N_BEFORE_END = sizeof blocks_before_end / sizeof blocks_before_end[0] };

void firni_publish_row(const firn_env *env, firn_prefix *prefix, firn_cache *const *caches, uint32_t n_layers,
                       uint32_t row, const firni_sequence *sequence, uint32_t n_tokens)
{
    firn_cache **serial = firni_calloc(env, n_layers, sizeof *serial);
    bool complete = serial != NULL && n_tokens > 0;
    for (uint32_t layer = 0; complete && layer < n_layers; layer++) {
        complete = firn_cache_can_publish_row(caches[layer], row, n_tokens) &&
                   firn_cache_extract_row(caches[layer], row, &serial[layer], NULL) == FIRN_OK;
    }
    if (complete) {
        firn_reason reason;
        (void)firn_prefix_put_with(prefix, sequence->tokens, n_tokens, sequence->ns, (const firn_cache *const *)serial,
                                   sequence->cache, &reason);
    }
    firni_caches_release(env, serial, n_layers);
}

void firni_publish(firn_engine *engine, uint32_t row)
{
    const firni_sequence *sequence = engine->rows[row];
    if (engine->prefix != NULL && sequence->cache.store != FIRN_STORE_NONE) {
        firni_publish_row(engine->env, engine->prefix, engine->caches, engine->schema->n_layers, row, sequence,
                          sequence->n_cached);
    }
}

/* The first count after n_tokens at which the prompt's state is wanted; UINT32_MAX: none. */
static uint32_t next_wanted(const firni_sequence *sequence, uint32_t n_tokens)
{
    const uint32_t last = (sequence->n_prompt - 1) / FIRN_BLOCK_TOKENS;
    uint32_t next = sequence->branch_at > n_tokens ? sequence->branch_at : UINT32_MAX;
    for (uint32_t i = 0; i < N_BEFORE_END && blocks_before_end[i] < last; i++) {
        const uint32_t wanted = (last - blocks_before_end[i]) * FIRN_BLOCK_TOKENS;
        next = wanted > n_tokens && wanted < next ? wanted : next;
    }
    const uint32_t all_but_one = sequence->n_prompt - 1;
    return last > 0 && all_but_one > n_tokens && all_but_one < next ? all_but_one : next;
}

static bool is_reading(const firni_sequence *sequence, uint32_t n_tokens)
{
    return n_tokens < sequence->n_prompt;
}

uint32_t firni_publish_chunk(const firn_engine *engine, const firni_sequence *sequence, uint32_t count)
{
    const bool in_parts = (engine->families & (FIRNI_FAMILY_WINDOW | FIRNI_FAMILY_FIXED)) != 0;
    const uint32_t before = sequence->n_cached;
    if (engine->prefix == NULL || sequence->cache.store == FIRN_STORE_NONE || !in_parts ||
        !is_reading(sequence, before)) {
        return count;
    }
    const uint32_t wanted =
        (engine->families & FIRNI_FAMILY_FIXED) != 0 ? next_wanted(sequence, before) : UINT32_MAX;
    uint32_t end = wanted - before < count ? wanted : before + count;
    if (end < sequence->n_prompt && end / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS > before) {
        end = end / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS;
    }
    assert(end > before && end - before <= count);
    return end - before;
}

void firni_publish_progress(firn_engine *engine, uint32_t row, uint32_t n_kept)
{
    firni_sequence *sequence = engine->rows[row];
    const uint32_t before = sequence->n_cached - n_kept;
    if (n_kept == 0 || !is_reading(sequence, before)) {
        return;
    }
    const bool has_read_all = sequence->n_cached >= sequence->n_prompt;
    if (has_read_all || ((engine->families & FIRNI_FAMILY_FIXED) != 0
                             ? next_wanted(sequence, before) == sequence->n_cached
                             : (engine->families & FIRNI_FAMILY_WINDOW) != 0 &&
                                   sequence->n_cached % FIRN_BLOCK_TOKENS == 0)) {
        firni_publish(engine, row);
    }
    if (sequence->prompt_logits != NULL && engine->prefix != NULL && sequence->cache.store != FIRN_STORE_NONE) {
        firn_prefix_keep_logits(engine->prefix, sequence->tokens, sequence->n_prompt, sequence->ns,
                                sequence->prompt_logits, engine->n_vocab, sequence->cache.store);
    }
    sequence->prompt_logits = NULL;
}

/* Of a window the tree keeps the blocks before the row's last put position, with the margin of src/prefix/windows.c,
 * and a store in progress keeps those before its own, with the chunk that it takes along. */
enum { WINDOWS_PUBLISHED = 2, WINDOW_BLOCKS_MORE = 10 };

uint64_t firni_published_bytes(const firn_engine *engine, const firn_cache *shape, uint32_t tokens)
{
    if (engine->prefix == NULL || engine->options.tier == NULL) {
        return 0; /* what is not written behind may leave at any time */
    }
    /* Those before the end, all of the prompt but one token, all of it, the branch, and the end. */
    uint64_t bytes = (N_BEFORE_END + 4) * (uint64_t)firn_cache_fixed_bytes(shape);
    if ((firni_family_of(shape) & FIRNI_FAMILY_WINDOW) != 0) {
        const uint64_t fixed_bytes = tokens > 0 ? firn_cache_fixed_bytes(shape) : 0;
        bytes += WINDOWS_PUBLISHED * (firn_cache_projected_bytes(shape, tokens) - fixed_bytes) +
                 WINDOW_BLOCKS_MORE * (uint64_t)firn_cache_block_bytes(shape);
    }
    return bytes;
}
