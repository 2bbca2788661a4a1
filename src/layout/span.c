/*
 * Cuts the packed tokens of one append or attend into spans for the workers. A span is found by its index alone, by a
 * walk over the counts, so that nothing is allocated for a list of them; the walk is short against a span's work.
 */
#include "layout/layout_impl.h"

/* Spans of the last `count` (> 0) tokens of a row that ends at n_tokens. */
static uint32_t spans_of_row(uint32_t n_tokens, uint32_t count, uint32_t step)
{
    return (n_tokens - 1) / step - (n_tokens - count) / step + 1;
}

uint32_t firni_span_count(const firni_rows *rows, const uint32_t *counts, uint32_t step)
{
    uint32_t n_spans = 0;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        assert(counts[r] <= rows->row[r].n_tokens);
        n_spans += counts[r] > 0 ? spans_of_row(rows->row[r].n_tokens, counts[r], step) : 0;
    }
    return n_spans;
}

firni_span firni_span_at(const firni_rows *rows, const uint32_t *counts, uint32_t step, uint32_t index)
{
    uint64_t packed = 0;
    uint32_t r = 0;
    for (;; r++) {
        assert(r < rows->n_rows);
        const uint32_t n_spans = counts[r] > 0 ? spans_of_row(rows->row[r].n_tokens, counts[r], step) : 0;
        if (index < n_spans) {
            break;
        }
        index -= n_spans;
        packed += counts[r];
    }
    const uint32_t end = rows->row[r].n_tokens;
    const uint32_t start = end - counts[r];
    const uint32_t cut = (start / step + index) * step; /* the last cut at or before this span */
    const uint32_t first = cut > start ? cut : start;
    const uint32_t n_left = end - first;
    const uint32_t n_to_cut = step - first % step;
    return (firni_span){
        .row = r,
        .position = first,
        .n_tokens = n_left < n_to_cut ? n_left : n_to_cut,
        .packed = packed + (first - start),
    };
}
