/*
 * The dispatcher, third part: the token loop. Bounds, strides and counts are checked here; storing and reading elements
 * is the layout's.
 *
 * An append is two steps so that a step of the whole model can be refused as a whole: the engine reserves in all layers
 * first, where memory may run out, and appends afterwards, where nothing can. Whoever does not reserve pays nothing for
 * it: append does. Beyond reserve nothing here allocates.
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

/* Bounds every stride that is computed here: 65536 heads of 1024 elements fit in 32 bits. */
#define N_HEADS_MAX 65535u
#define N_INDEX_HEADS_MAX 1024u

/* Sums for the asserts: 64 bits, since rows are bounded but their number is not. */
static uint64_t total_tokens(const firn_cache *cache)
{
    uint64_t n_tokens = 0;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        n_tokens += firn_cache_row_tokens(cache, r);
    }
    return n_tokens;
}

static uint64_t total_counts(const firn_cache *cache, const uint32_t *counts)
{
    uint64_t n_tokens = 0;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        n_tokens += counts[r];
    }
    return n_tokens;
}

firn_status firn_cache_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err)
{
    /* Compared by subtraction: counts come from the caller and may be anything. */
    const uint32_t n_layout_max = firn_cache_max_tokens(cache);
    const uint32_t n_max = n_layout_max < FIRNI_ROW_TOKENS_MAX ? n_layout_max : FIRNI_ROW_TOKENS_MAX;
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        const uint32_t n_tokens = firn_cache_row_tokens(cache, r);
        if (counts[r] > n_max - n_tokens) {
            return firni_fail(err, FIRN_ERR_CAPACITY, "row %u has %u tokens; %u more exceed its bound of %u", r,
                              n_tokens, counts[r], n_max);
        }
    }
    return cache->ops->reserve(cache, counts, err);
}

/* Index keys and queries belong to layouts that have them, and to no other. */
static firn_status check_index(const firn_cache *cache, bool is_given, firn_error *err)
{
    const bool is_needed = cache->options.index_dim > 0;
    if (is_given == is_needed) {
        return FIRN_OK;
    }
    return firni_fail(err, FIRN_ERR_INVALID, is_needed ? "%s needs index keys and index queries beside keys and queries"
                                                       : "%s has no index keys", cache->signature);
}

/* What passes through a state is given where there is one beside keys and values, and nowhere else. */
static firn_status check_recur(const firn_cache *cache, bool is_given, firn_error *err)
{
    if (is_given == cache->ops->takes_recur) {
        return FIRN_OK;
    }
    return firni_fail(err, FIRN_ERR_INVALID, is_given ? "%s has no recurrent state beside its keys and values"
                                                      : "%s needs the inputs of its recurrent state beside keys and "
                                                        "values", cache->signature);
}

firn_status firn_cache_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err)
{
    if (cache->ops->append == NULL) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "%s holds no keys and values to append to", cache->signature);
    }
    firn_status status = check_index(cache, input->index_key != NULL, err);
    if (status == FIRN_OK) {
        status = check_recur(cache, input->recur != NULL, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    /* Before blocks are taken, so that a step needs no more than working_bytes says. */
    firn_cache_settle(cache);
    /* Always: between a reserve and this append a tail may have been shared. It costs a look at each row. */
    status = firn_cache_reserve(cache, counts, err);
    if (status != FIRN_OK) {
        return status;
    }
    const uint64_t n_after = total_tokens(cache) + total_counts(cache, counts);
    firn_append_input dense = *input;
    const uint32_t k_floats = cache->options.n_kv_heads * cache->options.head_dim;
    const uint32_t v_floats = cache->options.n_kv_heads * cache->options.value_dim;
    dense.k_stride = input->k_stride != 0 ? input->k_stride : k_floats;
    dense.v_stride = input->v_stride != 0 ? input->v_stride : v_floats;
    /* A smaller stride would let tokens overlap, which no caller can mean. */
    assert(dense.k_stride >= k_floats && dense.v_stride >= v_floats);
    dense.index_stride = input->index_stride != 0 ? input->index_stride : cache->options.index_dim;
    assert(dense.index_stride >= cache->options.index_dim);
    cache->ops->append(cache, &dense, counts, workers);
    assert(total_tokens(cache) == n_after);
    (void)n_after;
    return FIRN_OK;
}

/* After a step a row has let go of what only that step's queries could see. A row of as many tokens as end with the
 * first query needs the blocks that this query needs. */
static firn_status check_window(const firn_cache *cache, uint32_t row, uint32_t count, firn_error *err)
{
    if (count == 0 || cache->ops->first_block_needed == NULL) {
        return FIRN_OK;
    }
    const firn_row_view view = firn_cache_view_row(cache, row);
    const uint32_t first_needed = firn_cache_first_block_needed(cache, view.n_tokens - count + 1);
    if (view.first_block > first_needed) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u queries for row %u see tokens from block %u on; it holds them "
                          "from block %u on", count, row, first_needed, view.first_block);
    }
    return FIRN_OK;
}

firn_status firn_cache_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (cache->ops->attend == NULL) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "%s holds no keys and values to attend to", cache->signature);
    }
    /* Grouped queries: each KV head serves the same number of query heads. */
    if (input->n_heads == 0 || input->n_heads > N_HEADS_MAX || input->n_heads % options->n_kv_heads != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u query heads over %u key/value heads: a multiple is needed",
                          input->n_heads, options->n_kv_heads);
    }
    for (uint32_t r = 0; r < firn_cache_batch_size(cache); r++) {
        /* A query sees itself, so it must have been appended before. */
        if (counts[r] > firn_cache_row_tokens(cache, r)) {
            return firni_fail(err, FIRN_ERR_INVALID, "%u queries for row %u, which holds %u tokens", counts[r], r,
                              firn_cache_row_tokens(cache, r));
        }
        const firn_status status = check_window(cache, r, counts[r], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    const firn_status status = check_index(
        cache, input->index_q != NULL && input->index_weights != NULL && input->n_index_heads > 0, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (input->n_index_heads > N_INDEX_HEADS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u index heads are more than %u", input->n_index_heads,
                          N_INDEX_HEADS_MAX);
    }
    firn_attend_input dense = *input;
    const uint32_t q_floats = input->n_heads * options->head_dim;
    const uint32_t out_floats = input->n_heads * options->value_dim;
    dense.q_stride = input->q_stride != 0 ? input->q_stride : q_floats;
    dense.out_stride = input->out_stride != 0 ? input->out_stride : out_floats;
    assert(dense.q_stride >= q_floats && dense.out_stride >= out_floats);
    const uint32_t index_floats = input->n_index_heads * options->index_dim;
    dense.index_q_stride = input->index_q_stride != 0 ? input->index_q_stride : index_floats;
    dense.index_weights_stride = input->index_weights_stride != 0 ? input->index_weights_stride : input->n_index_heads;
    assert(dense.index_q_stride >= index_floats && dense.index_weights_stride >= input->n_index_heads);
    cache->ops->attend(cache, &dense, counts, workers);
    return FIRN_OK;
}

firn_status firn_cache_recur(firn_cache *cache, const firn_recur_input *input, const uint32_t *counts,
                             firn_workers *workers, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (cache->ops->recur == NULL) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, cache->ops->takes_recur
                                                         ? "%s passes tokens through its state as they are appended"
                                                         : "%s holds no recurrent state", cache->signature);
    }
    const firn_status status = firn_cache_reserve(cache, counts, err);
    if (status != FIRN_OK) {
        return status;
    }
    const uint64_t n_after = total_tokens(cache) + total_counts(cache, counts);
    firn_recur_input dense = *input;
    const uint32_t out_floats = options->n_state_heads * options->value_dim;
    const uint32_t x_floats = 2 * options->n_kv_heads * options->head_dim + out_floats;
    dense.x_stride = input->x_stride != 0 ? input->x_stride : x_floats;
    dense.gate_stride = input->gate_stride != 0 ? input->gate_stride : options->n_state_heads;
    dense.out_stride = input->out_stride != 0 ? input->out_stride : out_floats;
    assert(dense.x_stride >= x_floats && dense.out_stride >= out_floats);
    assert(dense.gate_stride >= options->n_state_heads);
    cache->ops->recur(cache, &dense, counts, workers);
    assert(total_tokens(cache) == n_after);
    (void)n_after;
    return FIRN_OK;
}

void firn_cache_settle(firn_cache *cache)
{
    if (cache->ops->settle != NULL && !cache->round.is_open) {
        cache->ops->settle(cache);
    }
}
