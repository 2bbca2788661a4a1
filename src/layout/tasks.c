/*
 * The work of one append or attend, cut into independent tasks for the workers: the same for every family whose tokens
 * are keys and values of heads in blocks. What is done to a token, or to a query, is the family's own.
 */
#include "layout/layout_impl.h"

/* Queries of one attention task. A task reads the row's blocks of one KV head once for all its queries, so more of them
 * save reading; fewer spread a prefill better over the workers. */
#define TASK_QUERIES 16u

/* Rows of one attention task that decode over common blocks, and how many blocks must be common. */
#define TASK_ROWS 16u
#define SHARED_BLOCKS_MIN 4u

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
    uint32_t rows_max; /* of one task */
} attend_job;

/* Whether row r > 0 decodes beside its neighbour over common blocks: worth reading once for both. */
static bool shares_with_previous(const attend_job *job, uint32_t r)
{
    if (job->counts[r] != 1 || job->counts[r - 1] != 1) {
        return false;
    }
    const firni_row *a = &firni_rows_of(job->cache)->row[r - 1];
    const firni_row *b = &firni_rows_of(job->cache)->row[r];
    const uint32_t first = a->first_block > b->first_block ? a->first_block : b->first_block;
    const uint32_t wanted = (first + SHARED_BLOCKS_MIN) * FIRN_BLOCK_TOKENS;
    return a->n_tokens >= wanted && b->n_tokens >= wanted &&
           a->blocks[first + SHARED_BLOCKS_MIN - 1 - a->first_block] ==
               b->blocks[first + SHARED_BLOCKS_MIN - 1 - b->first_block];
}

/* The rows, from r on, of the task that serves row r; 0 when an earlier row's task does. */
static uint32_t rows_of_task(const attend_job *job, uint32_t r)
{
    uint32_t n_before = 0;
    while (n_before < r && shares_with_previous(job, r - n_before)) {
        n_before++;
    }
    if (n_before % job->rows_max != 0) {
        return 0;
    }
    uint32_t n = 1;
    while (n < job->rows_max && r + n < firni_rows_of(job->cache)->n_rows && shares_with_previous(job, r + n)) {
        n++;
    }
    return n;
}

/* For one KV head some queries of one row, or one of each of several. A row's tokens are never divided: the sum over
 * them is one chain. */
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
    const uint32_t n_rows = rows_of_task(job, span.row);
    if (n_rows == 0) {
        return;
    }
    firni_attend_row several[TASK_ROWS];
    for (uint32_t i = 0; i < n_rows && n_rows > 1; i++) {
        const firni_row *row = &rows->row[span.row + i];
        several[i] = (firni_attend_row){
            .blocks = row->blocks,
            .first_block = row->first_block,
            .position = row->n_tokens - 1,
        };
    }
    firni_attend_task task = {
        .blocks = rows->row[span.row].blocks,
        .first_block = rows->row[span.row].first_block,
        .rows = n_rows > 1 ? several : NULL,
        .kv_head = kv_head,
        .group_size = group_size,
        .n_queries = n_rows > 1 ? n_rows : span.n_tokens,
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

/* Decode of B rows is B * n_kv_heads tasks; that a single row has no more than n_kv_heads is the price of exactness.
 * Rows that share blocks share tasks, as long as every thread is left with one. */
void firni_attend_heads(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                        firn_workers *workers, firni_attend_span *attend)
{
    attend_job job = { .cache = cache, .input = input, .counts = counts, .attend = attend };
    const uint32_t n_spans = firni_span_count(firni_rows_of(cache), counts, TASK_QUERIES);
    const uint32_t n_tasks = n_spans * cache->options.n_kv_heads;
    const uint32_t rows_max = n_tasks / firn_workers_count(workers);
    job.rows_max = rows_max < 1 ? 1 : rows_max < TASK_ROWS ? rows_max : TASK_ROWS;
    firn_workers_run(workers, n_tasks, attend_task, &job);
}
