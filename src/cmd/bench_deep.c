/*
 * Decode of one row at the end of a long context, without the minutes that reading one would take.
 *
 * The state is made up: keys and values are random numbers that are appended to every layer as a forward would append
 * them, so they take the storage form, the blocks and the memory that they would have; a recurrent state is zero. What a
 * step does depends on how much state there is, not on what it says. The text that comes out is of no meaning; it must
 * be the same in every run.
 */
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "engine/sampler_impl.h"

#define FILL_TOKENS 256u /* of one append; the same numbers again for the next */

typedef struct deep_bench {
    firni_bench *bench;
    const firn_schema *schema;
    uint32_t n_vocab;
    firn_cache **filled; /* [n_layers]: one row of depth - n_gen tokens each */
    firn_cache **work;   /* [n_layers]: what the present run goes on with */
    float *logits;       /* [n_vocab] */
    firn_token *answer;  /* [n_gen] of the first run */
    firn_token *again;   /* [n_gen] */
} deep_bench;

static void destroy_caches(const deep_bench *d, firn_cache **caches)
{
    for (uint32_t i = 0; caches != NULL && i < d->schema->n_layers; i++) {
        firn_cache_destroy(caches[i]);
        caches[i] = NULL;
    }
}

static void deinit(deep_bench *d)
{
    const firn_env *env = d->bench->env;
    destroy_caches(d, d->filled);
    destroy_caches(d, d->work);
    firni_free(env, d->filled);
    firni_free(env, d->work);
    firni_free(env, d->logits);
    firni_free(env, d->answer);
    firni_free(env, d->again);
}

static firn_status init(deep_bench *d, firni_bench *bench, firn_error *err)
{
    const firn_env *env = bench->env;
    const uint32_t n_gen = bench->options.n_gen;
    *d = (deep_bench){ .bench = bench, .schema = firn_model_schema(bench->stack->model) };
    d->n_vocab = firn_model_get_info(bench->stack->model)->n_vocab;
    d->filled = firni_calloc(env, d->schema->n_layers, sizeof(firn_cache *));
    d->work = firni_calloc(env, d->schema->n_layers, sizeof(firn_cache *));
    d->logits = firni_calloc(env, d->n_vocab, sizeof *d->logits);
    d->answer = firni_calloc(env, n_gen, sizeof *d->answer);
    d->again = firni_calloc(env, n_gen, sizeof *d->again);
    return d->filled != NULL && d->work != NULL && d->logits != NULL && d->answer != NULL && d->again != NULL
               ? FIRN_OK
               : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the benchmark's buffers");
}

/* ---- state that nobody has computed ------------------------------------------------------------------------------ */

/* Numbers in [-1, 1), the same for the same seed. */
static void fill_random(float *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)(int32_t)(firni_mix64(seed + i) >> 32) * 0x1p-31F;
    }
}

static firn_status append_all(const deep_bench *d, firn_cache *cache, const firn_append_input *input, uint32_t n,
                              firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t done = 0; done < n && status == FIRN_OK;) {
        uint32_t count = n - done < FILL_TOKENS ? n - done : FILL_TOKENS;
        const uint32_t n_max = firn_cache_max_append_tokens(cache);
        count = count < n_max ? count : n_max;
        status = firn_cache_append(cache, input, &count, d->bench->stack->workers, err);
        done += count;
    }
    firn_cache_settle(cache);
    return status;
}

static firn_status fill_blocks(const deep_bench *d, firn_cache *cache, uint32_t layer, uint32_t n, firn_error *err)
{
    const firn_cache_options *o = firn_cache_get_options(cache);
    const size_t n_k = (size_t)FILL_TOKENS * o->n_kv_heads * o->head_dim;
    const size_t n_v = (size_t)FILL_TOKENS * o->n_kv_heads * o->value_dim;
    const size_t n_index = (size_t)FILL_TOKENS * o->index_dim;
    float *numbers = firni_calloc(d->bench->env, n_k + n_v + n_index, sizeof *numbers);
    if (numbers == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u tokens of made-up state", FILL_TOKENS);
    }
    fill_random(numbers, n_k + n_v + n_index, layer);
    const firn_append_input input = {
        .k = numbers,
        .v = numbers + n_k,
        .index_key = n_index > 0 ? numbers + n_k + n_v : NULL,
    };
    firn_status status = firn_cache_add_row(cache, err);
    if (status == FIRN_OK) {
        status = append_all(d, cache, &input, n, err);
    }
    firni_free(d->bench->env, numbers);
    return status;
}

static firn_status fill_state(const deep_bench *d, firn_cache *cache, uint32_t n, firn_error *err)
{
    firn_block *state;
    firn_status status = firn_block_alloc(d->bench->stack->pool, firn_cache_fixed_bytes(cache), &state, err);
    if (status == FIRN_OK) {
        status = firn_cache_adopt_row(cache, &(firn_row_view){ .fixed = state, .n_tokens = n }, err);
        firn_block_release(state);
    }
    return status;
}

static firn_status fill(const deep_bench *d, uint32_t n, firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < d->schema->n_layers && status == FIRN_OK; i++) {
        status = firn_cache_create(&d->schema->layers[i], d->bench->stack->pool, d->bench->env, &d->filled[i], err);
        if (status != FIRN_OK) {
            break;
        }
        const bool has_blocks = firn_cache_block_bytes(d->filled[i]) > 0;
        if (has_blocks && firn_cache_fixed_bytes(d->filled[i]) > 0) {
            status = firni_fail(err, FIRN_ERR_UNSUPPORTED, "--deep cannot make up the state of layers of %s",
                                firn_cache_signature(d->filled[i]));
        } else {
            status = has_blocks ? fill_blocks(d, d->filled[i], i, n, err) : fill_state(d, d->filled[i], n, err);
        }
    }
    return status;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

/* n_gen greedy tokens behind the filled row, which stays as it is. */
static firn_status run_decode(deep_bench *d, firn_token *answer, uint64_t *elapsed_ns, firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < d->schema->n_layers && status == FIRN_OK; i++) {
        status = firn_cache_extract_row(d->filled[i], 0, &d->work[i], err);
    }
    const uint32_t count = 1;
    firn_token next;
    firni_bench_fill_tokens(d->bench, 1, &next, 1);
    const uint64_t begin_ns = firni_now_ns(d->bench->env);
    for (uint32_t step = 0; step < d->bench->options.n_gen && status == FIRN_OK; step++) {
        const firn_forward_input input = {
            .tokens = &next,
            .counts = &count,
            .n_rows = 1,
            .caches = d->work,
            .logits = d->logits,
        };
        status = firn_model_forward(d->bench->stack->model, &input, err);
        next = firni_bench_best_token(d->logits, d->n_vocab);
        answer[step] = next;
    }
    *elapsed_ns = firni_now_ns(d->bench->env) - begin_ns;
    destroy_caches(d, d->work);
    return status;
}

/* Run 0 warms up and says what the others must repeat. */
static firn_status measure_depth(deep_bench *d, firni_bench_deep *deep, firn_error *err)
{
    const firni_bench_options *o = &d->bench->options;
    firn_status status = fill(d, deep->n_depth - o->n_gen, err);
    for (uint32_t i = 0; i < d->schema->n_layers && status == FIRN_OK; i++) {
        deep->token_bytes += firn_cache_bytes_per_token(d->filled[i]);
        deep->row_bytes += firn_cache_projected_bytes(d->filled[i], deep->n_depth);
    }
    for (uint32_t run = 0; run <= o->n_runs && status == FIRN_OK; run++) {
        uint64_t elapsed_ns = 0;
        status = run_decode(d, run == 0 ? d->answer : d->again, &elapsed_ns, err);
        if (status != FIRN_OK || run == 0) {
            continue;
        }
        if (memcmp(d->answer, d->again, o->n_gen * sizeof *d->answer) != 0) {
            status = firni_fail(err, FIRN_ERR_STATE, "two decodes from the same state gave other tokens");
        } else {
            firni_sample_add(&deep->tokens_per_second, o->n_gen / ((double)elapsed_ns * 1e-9));
        }
    }
    destroy_caches(d, d->filled);
    return status;
}

firn_status firni_bench_measure_deep(firni_bench *bench, firn_error *err)
{
    deep_bench d;
    firn_status status = init(&d, bench, err);
    for (uint32_t i = 0; i < bench->options.n_deep && status == FIRN_OK; i++) {
        bench->deep[i].n_depth = bench->options.deep[i];
        status = measure_depth(&d, &bench->deep[i], err);
    }
    deinit(&d);
    return status;
}
