/*
 * kv:mla:dsa: latent attention over the tokens that an indexer selects (sparse attention of DeepSeek-V3.2).
 *
 * Each token also has an index key, in the same block as its latent (mla.c draws it). A query's index heads score all
 * tokens up to itself; it then attends to the index_top_k best of them, in the order of their positions, within tiles
 * aligned as always. While a query has no more than index_top_k tokens before and with itself it sees them all, and the
 * result is that of kv:mla to the bit.
 *
 * Owns the selection. Scores are streamed tile by tile through a bounded list of candidates, so that a query of any
 * depth needs no memory but its task's stack. Source: DeepSeek-V3.2-Exp (report, section 2.1).
 */
#include <float.h>
#include <math.h>

#include "base/base_impl.h"
#include "layout/layout_impl.h"

#define TOP_K_MAX 4096u

/* ---- selection --------------------------------------------------------------------------------------------------- */

typedef struct candidate {
    float score;
    uint32_t position;
} candidate;

/* Candidates so far; the list is cut back to the top_k best whenever it is full. */
typedef struct selection {
    uint32_t top_k;
    uint32_t n;
    uint32_t n_max;
    float least; /* what a later token must exceed: those that are kept are older */
    candidate list[2 * TOP_K_MAX];
} selection;

/* Larger scores first, the older token among equals: a total order, so what is best does not depend on how it
 * is found. */
static bool is_better(const candidate *a, const candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->position < b->position);
}

static void swap(candidate *a, candidate *b)
{
    const candidate c = *a;
    *a = *b;
    *b = c;
}

/* Moves the n best of list[0..end) to the front, in any order (quickselect, Hoare's FIND). */
static void move_best(candidate *list, uint32_t end, uint32_t n)
{
    uint32_t begin = 0;
    while (end - begin > 1 && n > begin && n < end) {
        const candidate pivot = list[begin + (end - begin) / 2];
        uint32_t better = begin; /* [begin, better) are better than the pivot, [worse, end) are worse */
        uint32_t worse = end;
        for (uint32_t i = begin; i < worse;) {
            if (is_better(&list[i], &pivot)) {
                swap(&list[i++], &list[better++]);
            } else if (is_better(&pivot, &list[i])) {
                swap(&list[i], &list[--worse]);
            } else {
                i++;
            }
        }
        /* Positions differ, so the pivot alone stands between. */
        if (n <= better) {
            end = better;
        } else if (n >= worse) {
            begin = worse;
        } else {
            return;
        }
    }
}

static void cut_back(selection *s)
{
    if (s->n <= s->top_k) {
        return;
    }
    move_best(s->list, s->n, s->top_k);
    s->n = s->top_k;
    s->least = s->list[0].score;
    for (uint32_t i = 1; i < s->n; i++) {
        s->least = s->list[i].score < s->least ? s->list[i].score : s->least;
    }
}

/* Tokens come in ascending order of position. NaN, which only a damaged model gives, counts as the least. */
static void offer(selection *s, float score, uint32_t position)
{
    const float comparable = score > -FLT_MAX ? score : -FLT_MAX;
    if (comparable <= s->least && s->n >= s->top_k) {
        return;
    }
    if (s->n == s->n_max) {
        cut_back(s);
        if (comparable <= s->least) {
            return;
        }
    }
    s->list[s->n++] = (candidate){ .score = comparable, .position = position };
}

/* Restores the order of a heap below `root`: no entry is smaller than the two below it. */
static void sift_down(uint32_t *heap, uint32_t n, uint32_t root)
{
    for (uint32_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        child += child + 1 < n && heap[child + 1] > heap[child];
        if (heap[root] >= heap[child]) {
            return;
        }
        const uint32_t smaller = heap[root];
        heap[root] = heap[child];
        heap[child] = smaller;
        root = child;
    }
}

/* In place: the library's sort may allocate. */
static void sort_ascending(uint32_t *x, uint32_t n)
{
    for (uint32_t i = n / 2; i > 0; i--) {
        sift_down(x, n, i - 1);
    }
    for (uint32_t end = n; end > 1; end--) {
        const uint32_t largest = x[0];
        x[0] = x[end - 1];
        x[end - 1] = largest;
        sift_down(x, end - 1, 0);
    }
}

/* ---- attend ------------------------------------------------------------------------------------------------------ */

typedef struct attend_job {
    const firn_cache *cache;
    const firn_attend_input *input;
    const uint32_t *counts;
} attend_job;

/* Scores all tokens up to the query's position and keeps the best; returns their number, ascending in `selected`. */
static uint32_t select_tokens(const attend_job *job, const firni_attend_task *task, const firni_span *span,
                              uint32_t selected[TOP_K_MAX])
{
    const firn_attend_input *input = job->input;
    const uint32_t n_visible = task->first_position + 1;
    const float *q = input->index_q + span->packed * input->index_q_stride;
    const float *weights = input->index_weights + span->packed * input->index_weights_stride;
    selection s;
    s.top_k = job->cache->options.index_top_k;
    s.n = 0;
    s.n_max = 2 * s.top_k;
    s.least = -INFINITY;
    for (uint32_t first = 0; first < n_visible; first += FIRN_BLOCK_TOKENS) {
        float scores[FIRN_BLOCK_TOKENS];
        const uint8_t *block = firn_block_data(task->blocks[first / FIRN_BLOCK_TOKENS]);
        job->cache->kernels->index_scores(task->latent, block, q, weights, input->n_index_heads, scores);
        for (uint32_t t = 0; t < FIRN_BLOCK_TOKENS && first + t < n_visible; t++) {
            offer(&s, scores[t], first + t);
        }
    }
    cut_back(&s);
    for (uint32_t i = 0; i < s.n; i++) {
        selected[i] = s.list[i].position;
    }
    sort_ascending(selected, s.n);
    return s.n;
}

/* One query, all heads: they share the selection. */
static void attend_task(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    const attend_job *job = ctx;
    const firni_span span = firni_span_at(firni_rows_of(job->cache), job->counts, 1, index);
    firni_attend_task task = firni_mla_task(job->cache, job->input, &span);
    uint32_t selected[TOP_K_MAX];
    if (span.position + 1 > job->cache->options.index_top_k) {
        task.n_selected = select_tokens(job, &task, &span, selected);
        task.selected = selected;
    }
    job->cache->kernels->attend_latent(&task);
}

static void dsa_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                       firn_workers *workers)
{
    attend_job job = { .cache = cache, .input = input, .counts = counts };
    firn_workers_run(workers, firni_span_count(firni_rows_of(cache), counts, 1), attend_task, &job);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static firn_status dsa_init(firn_cache *cache, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (options->index_dim < 1 || options->index_dim > FIRNI_HEAD_DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "kv:mla:dsa takes index keys of 1 to %u elements, not %u",
                          FIRNI_HEAD_DIM_MAX, options->index_dim);
    }
    if (options->index_top_k < 1 || options->index_top_k > TOP_K_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "kv:mla:dsa selects 1 to %u tokens, not %u", TOP_K_MAX,
                          options->index_top_k);
    }
    const firn_status status = firni_mla_init_geometry(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_cache_set_describe(cache, "%s %s dim=%u/%u index=%u top=%u block=%u", cache->signature,
                             firn_dtype_name(options->dtype), options->head_dim, options->value_dim,
                             options->index_dim, options->index_top_k, FIRN_BLOCK_TOKENS);
    return FIRN_OK;
}

const firni_layout firni_layout_mla_dsa = {
    .family = "kv:mla:dsa",
    .instance_bytes = sizeof(firni_mla_cache),
    .init = dsa_init,
    FIRNI_ROWS_MEMBERS,
    .bytes_per_token = firni_mla_bytes_per_token,
    .planes = firni_mla_planes,
    .append = firni_mla_append,
    .attend = dsa_attend,
    .state = firni_mla_state,
};
