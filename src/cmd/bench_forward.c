/*
 * Prefill and decode rates: the model driven directly, without engine, so that nothing but the forward is timed.
 *
 *   1. each row gets its own tokens and is prefilled to depth + prompt (rows that shared blocks would be read once for
 *      all; when that is what is asked for, they share the depth); the depth's state may be made up instead;
 *   2. the prefill is repeated in other chunks, and the decode alone and in each batch: logits and tokens must be the
 *      same bits; this also warms everything up;
 *   3. then the same is timed n_runs times, each time from the same state, which copies of the caches' references keep.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

typedef struct forward_bench {
    firni_bench *bench;
    firn_model *model;
    uint32_t n_layers, n_vocab;
    uint32_t n_rows_max;
    firn_token *tokens;          /* [n_rows_max][depth + prompt] */
    firn_cache **ready;          /* [n_rows_max][n_layers]: depth + prompt tokens each */
    firn_cache **deep;           /* [n_layers]: row 0 at `depth` tokens */
    firn_cache **work;           /* [n_layers] what the present run writes to */
    float *logits;               /* [n_rows_max, n_vocab] */
    float *first_logits;         /* [n_vocab] after row 0's prompt */
    uint8_t *wanted;             /* [chunk] */
    firn_token *answer;          /* [n_gen] of row 0 alone: what every batch must repeat */
    firn_token *next;            /* [n_rows_max] */
} forward_bench;

static void deinit(forward_bench *f)
{
    const firn_env *env = f->bench->env;
    firni_bench_row_clear(f->bench, f->work);
    firni_bench_row_clear(f->bench, f->deep);
    for (uint32_t row = 0; f->ready != NULL && row < f->n_rows_max; row++) {
        firni_bench_row_clear(f->bench, f->ready + (size_t)row * f->n_layers);
    }
    firni_free(env, f->tokens);
    firni_free(env, f->ready);
    firni_free(env, f->deep);
    firni_free(env, f->work);
    firni_free(env, f->logits);
    firni_free(env, f->first_logits);
    firni_free(env, f->wanted);
    firni_free(env, f->answer);
    firni_free(env, f->next);
}

static firn_status init(forward_bench *f, firni_bench *bench, firn_error *err)
{
    const firni_bench_options *o = &bench->options;
    const firn_env *env = bench->env;
    *f = (forward_bench){ .bench = bench, .model = bench->stack->model, .n_rows_max = 1 };
    f->n_layers = firn_model_schema(f->model)->n_layers;
    f->n_vocab = firn_model_get_info(f->model)->n_vocab;
    for (uint32_t i = 0; i < o->n_batches; i++) {
        f->n_rows_max = o->batches[i] > f->n_rows_max ? o->batches[i] : f->n_rows_max;
    }
    const size_t n_context = (size_t)o->n_depth + o->n_prompt;
    f->tokens = firni_calloc(env, f->n_rows_max * n_context, sizeof *f->tokens);
    f->ready = firni_calloc(env, (size_t)f->n_rows_max * f->n_layers, sizeof *f->ready);
    f->deep = firni_calloc(env, f->n_layers, sizeof *f->deep);
    f->work = firni_calloc(env, f->n_layers, sizeof *f->work);
    f->logits = firni_calloc(env, (size_t)f->n_rows_max * f->n_vocab, sizeof *f->logits);
    f->first_logits = firni_calloc(env, f->n_vocab, sizeof *f->first_logits);
    f->wanted = firni_calloc(env, o->n_chunk, sizeof *f->wanted);
    f->answer = firni_calloc(env, (size_t)o->n_gen + 1, sizeof *f->answer);
    f->next = firni_calloc(env, f->n_rows_max, sizeof *f->next);
    if (f->tokens == NULL || f->ready == NULL || f->deep == NULL || f->work == NULL || f->logits == NULL ||
        f->first_logits == NULL || f->wanted == NULL || f->answer == NULL || f->next == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the benchmark's buffers");
    }
    for (uint32_t row = 0; row < f->n_rows_max; row++) {
        firni_bench_fill_tokens(bench, row, f->tokens + row * n_context, (uint32_t)n_context);
    }
    return FIRN_OK;
}

/* ---- prefill ---------------------------------------------------------------------------------------------------- */

/* The next chunk of a row with n_left tokens to read: it ends where a layer changes precision. */
static uint32_t chunk_tokens(const forward_bench *f, firn_cache *const *caches, uint32_t n_left, uint32_t n_chunk)
{
    uint32_t count = n_left < n_chunk ? n_left : n_chunk;
    for (uint32_t layer = 0; layer < f->n_layers; layer++) {
        const uint32_t n_max = firn_cache_max_append_tokens(caches[layer]);
        count = count < n_max ? count : n_max;
    }
    return count;
}

/* Forwards n tokens of one row; the last one's logits go to f->logits. */
static firn_status prefill(forward_bench *f, firn_cache *const *caches, const firn_token *tokens, uint32_t n,
                           uint32_t n_chunk, firn_error *err)
{
    assert(n_chunk <= f->bench->options.n_chunk);
    for (uint32_t done = 0; done < n;) {
        const uint32_t count = chunk_tokens(f, caches, n - done, n_chunk);
        memset(f->wanted, 0, count);
        f->wanted[count - 1] = done + count == n;
        const firn_forward_input input = {
            .tokens = tokens + done,
            .counts = &count,
            .n_rows = 1,
            .caches = caches,
            .want_logits = f->wanted,
            .logits = f->logits,
        };
        const firn_status status = firn_model_forward(f->model, &input, err);
        if (status != FIRN_OK) {
            return status;
        }
        done += count;
    }
    return FIRN_OK;
}

/* Step 1: every row its own blocks; row 0 leaves a copy at `depth` and the logits after its prompt for comparison. */
static firn_status prepare_rows(forward_bench *f, firn_error *err)
{
    const firni_bench_options *o = &f->bench->options;
    const uint32_t n_context = o->n_depth + o->n_prompt;
    firn_status status = FIRN_OK;
    for (uint32_t row = 0; row < f->n_rows_max && status == FIRN_OK; row++) {
        firn_cache **caches = f->ready + (size_t)row * f->n_layers;
        const firn_token *tokens = f->tokens + (size_t)row * n_context;
        const bool shares = row > 0 && o->shares_depth;
        const uint32_t n_made_up = o->is_depth_made_up ? o->n_depth : 0;
        status = shares ? firni_bench_row_copy(f->bench, f->deep, caches, err)
                        : firni_bench_row_begin(f->bench, row, n_made_up, caches, err);
        if (status == FIRN_OK && o->n_depth > n_made_up && !shares) {
            status = prefill(f, caches, tokens, o->n_depth, o->n_chunk, err);
        }
        if (status == FIRN_OK && row == 0) {
            status = firni_bench_row_copy(f->bench, caches, f->deep, err);
        }
        if (status == FIRN_OK) {
            status = prefill(f, caches, tokens + o->n_depth, o->n_prompt, o->n_chunk, err);
        }
        if (row == 0) {
            memcpy(f->first_logits, f->logits, f->n_vocab * sizeof *f->logits);
        }
    }
    return status;
}

/* Prefills row 0's prompt from `deep`; *elapsed_ns covers the forwards alone. */
static firn_status run_prefill(forward_bench *f, uint32_t n_chunk, uint64_t *elapsed_ns, firn_error *err)
{
    const firni_bench_options *o = &f->bench->options;
    firn_status status = firni_bench_row_copy(f->bench, f->deep, f->work, err);
    if (status == FIRN_OK) {
        const uint64_t before = firn_model_multiply_adds(f->model);
        const uint64_t begin_ns = firni_now_ns(f->bench->env);
        status = prefill(f, f->work, f->tokens + o->n_depth, o->n_prompt, n_chunk, err);
        *elapsed_ns = firni_now_ns(f->bench->env) - begin_ns;
        f->bench->prefill_multiply_adds = firn_model_multiply_adds(f->model) - before;
    }
    firni_bench_row_clear(f->bench, f->work);
    if (status == FIRN_OK && memcmp(f->logits, f->first_logits, f->n_vocab * sizeof *f->logits) != 0) {
        status = firni_fail(err, FIRN_ERR_STATE, "a prefill in chunks of %u gave other logits than one of %u", n_chunk,
                            o->n_chunk);
    }
    return status;
}

/* Steps 2 and 3 for the prefill. */
static firn_status measure_prefill(forward_bench *f, firn_error *err)
{
    const firni_bench_options *o = &f->bench->options;
    uint64_t elapsed_ns = 0;
    /* An odd chunk, aligned to nothing. */
    firn_status status = run_prefill(f, o->n_chunk > 61 ? 61 : o->n_chunk, &elapsed_ns, err);
    for (uint32_t run = 0; run < o->n_runs && status == FIRN_OK; run++) {
        status = run_prefill(f, o->n_chunk, &elapsed_ns, err);
        if (status == FIRN_OK) {
            firni_sample_add(&f->bench->prefill_rate, o->n_prompt / ((double)elapsed_ns * 1e-9));
        }
    }
    return status;
}

/* ---- decode ----------------------------------------------------------------------------------------------------- */

/* f->work = a batch of the first n_rows rows. */
static firn_status merge_rows(forward_bench *f, uint32_t n_rows, firn_error *err)
{
    const firn_cache **sources = firni_calloc(f->bench->env, n_rows, sizeof *sources);
    firn_status status =
        sources == NULL ? firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to merge %u rows", n_rows) : FIRN_OK;
    for (uint32_t layer = 0; layer < f->n_layers && status == FIRN_OK; layer++) {
        for (uint32_t row = 0; row < n_rows; row++) {
            sources[row] = f->ready[(size_t)row * f->n_layers + layer];
        }
        status = firn_cache_make_empty(sources[0], &f->work[layer], err);
        if (status == FIRN_OK) {
            status = firn_cache_merge_rows(f->work[layer], sources, n_rows, err);
        }
    }
    firni_free(f->bench->env, sources);
    return status;
}

/* Greedy decode of n_rows rows; row 0's tokens go to `answer`. */
static firn_status run_decode(forward_bench *f, uint32_t n_rows, firn_token *answer, uint64_t *elapsed_ns,
                              firn_error *err)
{
    const firni_bench_options *o = &f->bench->options;
    const size_t n_context = (size_t)o->n_depth + o->n_prompt;
    firn_status status = merge_rows(f, n_rows, err);
    for (uint32_t row = 0; row < n_rows; row++) {
        f->next[row] = f->tokens[row * n_context]; /* any token does as the first of the answer */
    }
    if (status == FIRN_OK) {
        status = firni_bench_decode_rows(f->bench, f->work, n_rows, f->next, f->logits, answer, elapsed_ns, err);
    }
    firni_bench_row_clear(f->bench, f->work);
    return status;
}

/* Bytes a step reads: all packed weights once, and each row's keys and values at the middle of the run; those of a
 * shared depth once for all. */
static uint64_t step_bytes(const forward_bench *f, uint32_t n_rows)
{
    const firni_bench_options *o = &f->bench->options;
    uint64_t token_bytes = 0;
    for (uint32_t i = 0; i < f->n_layers; i++) {
        token_bytes += firn_cache_bytes_per_token(f->ready[i]);
    }
    const uint64_t n_own = (uint64_t)o->n_prompt + o->n_gen / 2;
    const uint64_t n_tokens = (o->shares_depth ? 1 : n_rows) * (uint64_t)o->n_depth + n_rows * n_own;
    return firn_model_get_info(f->model)->weight_bytes + n_tokens * token_bytes;
}

/* Steps 2 and 3 for one batch size: run 0 checks and warms up, the others are timed and checked. */
static firn_status measure_decode(forward_bench *f, firni_bench_decode *decode, firn_token *answer, firn_error *err)
{
    const firni_bench_options *o = &f->bench->options;
    decode->step_bytes = step_bytes(f, decode->n_rows);
    firn_status status = FIRN_OK;
    for (uint32_t run = 0; run <= o->n_runs && status == FIRN_OK; run++) {
        uint64_t elapsed_ns = 0;
        status = run_decode(f, decode->n_rows, answer, &elapsed_ns, err);
        if (status == FIRN_OK && memcmp(answer, f->answer, o->n_gen * sizeof *answer) != 0) {
            status = firni_fail(err, FIRN_ERR_STATE, "row 0 decoded other tokens in a batch of %u than alone",
                                decode->n_rows);
        }
        if (status == FIRN_OK && run > 0) {
            firni_sample_add(&decode->tokens_per_second, decode->n_rows * o->n_gen / ((double)elapsed_ns * 1e-9));
        }
    }
    return status;
}

firn_status firni_bench_forward(firni_bench *bench, firn_error *err)
{
    const firni_bench_options *o = &bench->options;
    forward_bench f;
    firn_status status = init(&f, bench, err);
    if (status == FIRN_OK) {
        status = prepare_rows(&f, err);
    }
    if (status == FIRN_OK) {
        status = measure_prefill(&f, err);
    }
    firn_token *answer = firni_calloc(bench->env, (size_t)o->n_gen + 1, sizeof *answer);
    if (status == FIRN_OK && answer == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u tokens", o->n_gen);
    }
    if (status == FIRN_OK && o->n_gen > 0) {
        uint64_t elapsed_ns;
        status = run_decode(&f, 1, f.answer, &elapsed_ns, err);
    }
    for (uint32_t i = 0; i < o->n_batches && o->n_gen > 0 && status == FIRN_OK; i++) {
        bench->decode[i].n_rows = o->batches[i];
        status = measure_decode(&f, &bench->decode[i], answer, err);
    }
    firni_free(bench->env, answer);
    deinit(&f);
    return status;
}
