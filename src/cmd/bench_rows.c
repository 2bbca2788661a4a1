/*
 * Rows as the forwards of a benchmark need them: begun, copied, decoded; and state that nobody has computed.
 *
 * State is made up where reading its tokens would take minutes: keys and values are random numbers that are appended to
 * every layer as a forward would append them, so they take the storage form, the blocks and the memory that they would
 * have; a recurrent state is zero. What a step does depends on how much state there is, not on what it says. Numbers
 * are of ordinary size, so that nothing is slow or fast for their sake. The text that comes out is of no meaning; it
 * must be the same in every run.
 */
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "engine/sampler_impl.h"

#define FILL_TOKENS 256u /* of one append; the same numbers again for the next */

static uint32_t count_layers(const firni_bench *bench)
{
    return firn_model_schema(bench->stack->model)->n_layers;
}

void firni_bench_row_clear(const firni_bench *bench, firn_cache **caches)
{
    for (uint32_t i = 0; caches != NULL && i < count_layers(bench); i++) {
        firn_cache_destroy(caches[i]);
        caches[i] = NULL;
    }
}

firn_status firni_bench_row_copy(const firni_bench *bench, firn_cache *const *from, firn_cache **caches,
                                 firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < count_layers(bench) && status == FIRN_OK; i++) {
        status = firn_cache_extract_row(from[i], 0, &caches[i], err);
    }
    return status;
}

/* ---- state that nobody has computed ------------------------------------------------------------------------------ */

/* Numbers in [-1, 1), the same for the same seed. */
static void fill_random(float *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)(int32_t)(firni_mix64(seed + i) >> 32) * 0x1p-31F;
    }
}

static firn_status append_all(const firni_bench *bench, firn_cache *cache, const firn_append_input *input, uint32_t n,
                              firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t done = 0; done < n && status == FIRN_OK;) {
        uint32_t count = n - done < FILL_TOKENS ? n - done : FILL_TOKENS;
        const uint32_t n_max = firn_cache_max_append_tokens(cache);
        count = count < n_max ? count : n_max;
        status = firn_cache_append(cache, input, &count, bench->stack->workers, err);
        done += count;
    }
    firn_cache_settle(cache);
    return status;
}

static firn_status fill_blocks(const firni_bench *bench, firn_cache *cache, uint64_t seed, uint32_t n, firn_error *err)
{
    const firn_cache_options *o = firn_cache_get_options(cache);
    const size_t n_k = (size_t)FILL_TOKENS * o->n_kv_heads * o->head_dim;
    const size_t n_v = (size_t)FILL_TOKENS * o->n_kv_heads * o->value_dim;
    const size_t n_index = (size_t)FILL_TOKENS * o->index_dim;
    float *numbers = firni_calloc(bench->env, n_k + n_v + n_index, sizeof *numbers);
    if (numbers == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u tokens of made-up state", FILL_TOKENS);
    }
    fill_random(numbers, n_k + n_v + n_index, seed);
    const firn_append_input input = {
        .k = numbers,
        .v = numbers + n_k,
        .index_key = n_index > 0 ? numbers + n_k + n_v : NULL,
    };
    firn_status status = firn_cache_add_row(cache, err);
    if (status == FIRN_OK) {
        status = append_all(bench, cache, &input, n, err);
    }
    firni_free(bench->env, numbers);
    return status;
}

static firn_status fill_state(const firni_bench *bench, firn_cache *cache, uint32_t n, firn_error *err)
{
    firn_block *state;
    firn_status status = firn_block_alloc(bench->stack->pool, firn_cache_fixed_bytes(cache), &state, err);
    if (status == FIRN_OK) {
        status = firn_cache_adopt_row(cache, &(firn_row_view){ .fixed = state, .n_tokens = n }, err);
        firn_block_release(state);
    }
    return status;
}

static firn_status fill(const firni_bench *bench, firn_cache *cache, uint64_t seed, uint32_t n, firn_error *err)
{
    const bool has_blocks = firn_cache_block_bytes(cache) > 0;
    if (has_blocks && firn_cache_fixed_bytes(cache) > 0) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "the state of layers of %s cannot be made up",
                          firn_cache_signature(cache));
    }
    return has_blocks ? fill_blocks(bench, cache, seed, n, err) : fill_state(bench, cache, n, err);
}

firn_status firni_bench_row_begin(const firni_bench *bench, uint64_t seed, uint32_t n_made_up, firn_cache **caches,
                                  firn_error *err)
{
    const firn_schema *schema = firn_model_schema(bench->stack->model);
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < schema->n_layers && status == FIRN_OK; i++) {
        status = firn_cache_create(&schema->layers[i], bench->stack->pool, bench->env, &caches[i], err);
        if (status == FIRN_OK) {
            status = n_made_up > 0 ? fill(bench, caches[i], firni_mix64(seed) + i, n_made_up, err)
                                   : firn_cache_add_row(caches[i], err);
        }
    }
    return status;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static firn_token best_token(const float *logits, uint32_t n_vocab)
{
    firn_token best = 0;
    for (uint32_t i = 1; i < n_vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

firn_status firni_bench_decode_rows(const firni_bench *bench, firn_cache *const *caches, uint32_t n_rows,
                                    firn_token *next, float *logits, firn_token *answer, uint64_t *elapsed_ns,
                                    firn_error *err)
{
    firn_model *model = bench->stack->model;
    const uint32_t n_vocab = firn_model_get_info(model)->n_vocab;
    uint32_t *counts = firni_calloc(bench->env, n_rows, sizeof *counts);
    if (counts == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to decode %u rows", n_rows);
    }
    for (uint32_t row = 0; row < n_rows; row++) {
        counts[row] = 1;
    }
    firn_status status = FIRN_OK;
    const uint64_t begin_ns = firni_now_ns(bench->env);
    for (uint32_t step = 0; step < bench->options.n_gen && status == FIRN_OK; step++) {
        const firn_forward_input input = {
            .tokens = next,
            .counts = counts,
            .n_rows = n_rows,
            .caches = caches,
            .logits = logits,
        };
        status = firn_model_forward(model, &input, err);
        for (uint32_t row = 0; row < n_rows && status == FIRN_OK; row++) {
            next[row] = best_token(logits + (size_t)row * n_vocab, n_vocab);
        }
        answer[step] = next[0];
    }
    *elapsed_ns = firni_now_ns(bench->env) - begin_ns;
    firni_free(bench->env, counts);
    return status;
}
