/*
 * The work of one append or attend, cut into independent tasks for the workers: the same for every family whose tokens
 * are keys and values of heads in blocks. What is done to a token, or to a query, is the family's own.
 */
#include "layout/layout_impl.h"

/* Queries of one attention task. A task reads the row's blocks of one KV head once for all its queries, so more of them
 * save reading; fewer spread a prefill better over the workers. */
#define TASK_QUERIES 16u

/* Below this many tokens an append is done before another thread would have woken up. */
#define TOKENS_FOR_WORKERS 16u

/* ---- append ------------------------------------------------------------------------------------------------------ */

typedef struct append_job {
    const firn_cache *cache;
    const firn_append_input *input;
    const uint32_t *counts;
    firni_store_token *store;
} append_job;

/* The new tokens of one block: no two tasks write to the same block. */
static void append_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const append_job *job = ctx;
    const firni_rows *rows = firni_rows_of(job->cache);
    const firni_span span = firni_span_at(rows, job->counts, FIRN_BLOCK_TOKENS, index);
    const firn_block *block = firni_row_block(&rows->row[span.row], span.position);
    assert(firn_block_refs(block) == 1);
    const float *k = job->input->k + span.packed * job->input->k_stride;
    const float *v = job->input->v + span.packed * job->input->v_stride;
    for (uint32_t i = 0; i < span.n_tokens; i++) {
        job->store(job->cache, firn_block_data(block), (span.position + i) % FIRN_BLOCK_TOKENS, k, v);
        k += job->input->k_stride;
        v += job->input->v_stride;
    }
}

void firni_append_tokens(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                         firn_workers *workers, firni_store_token *store)
{
    /* First, because spans are the last counts[r] tokens of a row, here as in attend. */
    firni_rows_advance(cache, counts);
    append_job job = { .cache = cache, .input = input, .counts = counts, .store = store };
    uint64_t n_tokens = 0;
    for (uint32_t r = 0; r < firni_rows_of(cache)->n_rows; r++) {
        n_tokens += counts[r];
    }
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, FIRN_BLOCK_TOKENS);
    firn_workers_run(n_tokens < TOKENS_FOR_WORKERS ? NULL : workers, n_spans, append_task, &job);
}

/* ---- attend ------------------------------------------------------------------------------------------------------ */

typedef struct attend_job {
    const firn_cache *cache;
    const firn_attend_input *input;
    const uint32_t *counts;
    firni_attend_span *attend;
} attend_job;

/* Some queries of one row for one KV head. A row's tokens are never divided: the sum over them is one chain. */
static void attend_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const attend_job *job = ctx;
    const firn_attend_input *input = job->input;
    const firn_cache_options *options = &job->cache->options;
    const firni_rows *rows = firni_rows_of(job->cache);
    const uint32_t kv_head = index % options->n_kv_heads;
    const firni_span span = firni_span_at(rows, job->counts, TASK_QUERIES, index / options->n_kv_heads);
    const uint32_t group_size = input->n_heads / options->n_kv_heads;
    const size_t first_head = (size_t)kv_head * group_size;
    firni_attend_task task = {
        .blocks = rows->row[span.row].blocks,
        .first_block = rows->row[span.row].first_block,
        .kv_head = kv_head,
        .group_size = group_size,
        .n_queries = span.n_tokens,
        .first_position = span.position,
        .window = options->window,
        .q = input->q + span.packed * input->q_stride + first_head * options->head_dim,
        .out = input->out + span.packed * input->out_stride + first_head * options->value_dim,
        .q_stride = input->q_stride,
        .out_stride = input->out_stride,
        .scale = input->scale,
        .softcap = input->softcap,
        .sinks = input->sinks != NULL ? input->sinks + first_head : NULL,
    };
    job->attend(job->cache, &task);
}

/* Decode of B rows is B * n_kv_heads tasks; that a single row has no more than n_kv_heads is the price of exactness. */
void firni_attend_heads(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers, firni_attend_span *attend)
{
    attend_job job = { .cache = cache, .input = input, .counts = counts, .attend = attend };
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, TASK_QUERIES);
    firn_workers_run(workers, n_spans * cache->options.n_kv_heads, attend_task, &job);
}
