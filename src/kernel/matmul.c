/*
 * The matrix product as callers see it: prepares activations and divides output panels over the workers. The sums
 * themselves are made by the variants.
 *
 * Work is cut into chunks of panels that stay in a core's second-level cache while all tokens pass over them. How a
 * variant goes through a chunk is its own affair; tasks never share an output, so K is not cut between them.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "kernel/kernel_impl.h"
#include "kernel/packed.h"

enum {
    CHUNK_BYTES = 192 * 1024, /* of weights; half of a common second-level cache */
    CHUNK_PANELS_MIN = 4,     /* what one token's register tile takes at a time */
    TASKS_PER_THREAD = 4,     /* enough to balance threads of unequal speed */
    PREPARE_TOKENS = 16,      /* tokens of one prepare task */
    SCRATCH_ALIGN = 64
};

typedef struct matmul_run {
    const firni_kernels *kernels;
    const firni_matrix *w;
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
    uint32_t n_tokens;
    uint32_t n_panels;
    uint32_t chunk_panels;
    const void *acts;
    void *scratch;
} matmul_run;

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

size_t firni_matmul_scratch_bytes(uint32_t n_cols, uint32_t n_tokens)
{
    /* f32 rows are the largest form: 4 bytes an element, against 2 and 16 for each 32 of grouped formats, whose rows
     * fill whole segments. */
    return (size_t)firni_segment_count(n_cols) * FIRNI_SEGMENT_COLS * n_tokens * sizeof(float);
}

static void prepare_task(void *ctx, uint32_t index, uint32_t thread)
{
    const matmul_run *run = ctx;
    (void)thread;
    const uint32_t begin = index * PREPARE_TOKENS;
    const uint32_t end = min_u32(begin + PREPARE_TOKENS, run->n_tokens);
    run->kernels->prepare(run->w->type, run->x, run->x_stride, run->w->n_cols, begin, end, run->n_tokens, run->scratch);
}

static void panels_task(void *ctx, uint32_t index, uint32_t thread)
{
    const matmul_run *run = ctx;
    (void)thread;
    const uint32_t begin = index * run->chunk_panels;
    const uint32_t end = min_u32(begin + run->chunk_panels, run->n_panels);
    run->kernels->matmul_panels(run->w, run->acts, run->y, run->y_stride, run->n_tokens, begin, end);
}

static uint32_t chunk_panels_of(const firni_matrix *w, uint32_t n_panels, uint32_t n_tokens, uint32_t n_threads)
{
    const size_t panel_bytes = firni_panel_bytes(w->type, w->n_cols);
    const uint32_t fitting = (uint32_t)(CHUNK_BYTES / (panel_bytes + 1));
    const uint32_t cached = firni_is_expanded_once(w->type, n_tokens) ? max_u32(fitting, FIRNI_MANY_PANELS) : fitting;
    const uint32_t balanced = n_panels / (n_threads * TASKS_PER_THREAD);
    const uint32_t chunk = max_u32(min_u32(cached, balanced), CHUNK_PANELS_MIN);
    return chunk / CHUNK_PANELS_MIN * CHUNK_PANELS_MIN;
}

void firni_matmul(const firni_kernels *kernels, firn_workers *workers, const firni_matrix *w, const float *x,
                  size_t x_stride, float *y, size_t y_stride, uint32_t n_tokens, void *scratch)
{
    assert(x_stride >= w->n_cols && y_stride >= w->n_rows);
    assert(w->n_cols == 0 || firni_weight_row_bytes(w->type, w->n_cols) != 0);
    assert((uintptr_t)scratch % SCRATCH_ALIGN == 0);

    matmul_run run = {
        .kernels = kernels,
        .w = w,
        .x = x,
        .x_stride = x_stride,
        .y = y,
        .y_stride = y_stride,
        .n_tokens = n_tokens,
        .n_panels = firni_panel_count(w->n_rows),
        .chunk_panels = chunk_panels_of(w, firni_panel_count(w->n_rows), n_tokens, firn_workers_count(workers)),
        .acts = scratch,
        .scratch = scratch,
    };
    if (n_tokens == 0 || run.n_panels == 0) {
        return;
    }
    const bool usable_in_place = !firni_weight_is_grouped(w->type) && (x_stride == w->n_cols || n_tokens == 1);
    if (usable_in_place) {
        run.acts = x;
    } else {
        const uint32_t n_tasks = n_tokens / PREPARE_TOKENS + (n_tokens % PREPARE_TOKENS != 0);
        firn_workers_run(n_tasks > 1 ? workers : NULL, n_tasks, prepare_task, &run);
    }
    const uint32_t n_tasks = run.n_panels / run.chunk_panels + (run.n_panels % run.chunk_panels != 0);
    firn_workers_run(n_tasks > 1 ? workers : NULL, n_tasks, panels_task, &run);
}

/* ---- products of several matrices ------------------------------------------------------------------------------ */

typedef struct each_run {
    const firni_kernels *kernels;
    const firni_matmul_item *items;
    size_t x_stride;
    size_t y_stride;
    uint32_t n_panels;      /* of each matrix */
    uint32_t chunk_panels;
    uint32_t tasks_of_item; /* of the pass at hand */
} each_run;

static void each_prepare_task(void *ctx, uint32_t index, uint32_t thread)
{
    const each_run *run = ctx;
    (void)thread;
    const firni_matmul_item *item = &run->items[index / run->tasks_of_item];
    const uint32_t begin = index % run->tasks_of_item * PREPARE_TOKENS;
    const uint32_t end = min_u32(begin + PREPARE_TOKENS, item->n_tokens);
    if (begin < end) {
        run->kernels->prepare(item->w->type, item->x, run->x_stride, item->w->n_cols, begin, end, item->n_tokens,
                              item->acts);
    }
}

static void each_panels_task(void *ctx, uint32_t index, uint32_t thread)
{
    const each_run *run = ctx;
    (void)thread;
    const firni_matmul_item *item = &run->items[index / run->tasks_of_item];
    const uint32_t begin = index % run->tasks_of_item * run->chunk_panels;
    const uint32_t end = min_u32(begin + run->chunk_panels, run->n_panels);
    run->kernels->matmul_panels(item->w, item->acts, item->y, run->y_stride, item->n_tokens, begin, end);
}

size_t firni_matmul_each_scratch_bytes(uint32_t n_cols, uint32_t n_tokens, uint32_t n_items)
{
    return firni_matmul_scratch_bytes(n_cols, n_tokens) + (size_t)n_items * SCRATCH_ALIGN;
}

void firni_matmul_each(const firni_kernels *kernels, firn_workers *workers, firni_matmul_item *items, uint32_t n_items,
                       size_t x_stride, size_t y_stride, void *scratch)
{
    uint8_t *acts = scratch;
    uint32_t tokens_max = 0;
    assert((uintptr_t)scratch % SCRATCH_ALIGN == 0);
    for (uint32_t i = 0; i < n_items; i++) {
        const firni_matrix *w = items[i].w;
        assert(w->n_rows == items[0].w->n_rows && w->n_cols == items[0].w->n_cols && w->type == items[0].w->type);
        assert(x_stride >= w->n_cols && y_stride >= w->n_rows);
        items[i].acts = acts;
        acts += firni_matmul_scratch_bytes(w->n_cols, items[i].n_tokens);
        tokens_max = max_u32(tokens_max, items[i].n_tokens);
    }
    if (tokens_max == 0 || items[0].w->n_rows == 0) {
        return;
    }
    const uint32_t n_panels = firni_panel_count(items[0].w->n_rows);
    each_run run = {
        .kernels = kernels,
        .items = items,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .n_panels = n_panels,
        .chunk_panels = chunk_panels_of(items[0].w, n_panels * n_items, tokens_max, firn_workers_count(workers)),
    };
    run.tasks_of_item = tokens_max / PREPARE_TOKENS + (tokens_max % PREPARE_TOKENS != 0);
    firn_workers_run(tokens_max > PREPARE_TOKENS ? workers : NULL, n_items * run.tasks_of_item, each_prepare_task,
                     &run);
    run.tasks_of_item = n_panels / run.chunk_panels + (n_panels % run.chunk_panels != 0);
    firn_workers_run(n_items * run.tasks_of_item > 1 ? workers : NULL, n_items * run.tasks_of_item, each_panels_task,
                     &run);
}
