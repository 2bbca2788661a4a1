/*
 * Spans: packed tokens cut into tasks. Together they cover every new token once, and never reach over a cut.
 */
#include "layout/rig.h"

static void spans_cover_every_token_once_and_stop_at_cuts(void **state)
{
    (void)state;
    enum { N_ROWS = 5 };
    test_rng rng = test_rng_create("spans", 3);
    for (int round = 0; round < 2000; round++) {
        firni_row row[N_ROWS] = { { .blocks = NULL } };
        uint32_t counts[N_ROWS];
        for (uint32_t r = 0; r < N_ROWS; r++) {
            row[r].n_tokens = test_rng_below(&rng, 300);
            counts[r] = test_rng_below(&rng, 2) == 0 ? 0 : test_rng_below(&rng, row[r].n_tokens + 1);
        }
        const firni_rows rows = { .row = row, .n_rows = N_ROWS };
        const uint32_t step = 1 + test_rng_below(&rng, 80);
        const uint32_t n_spans = firni_span_count(&rows, counts, step);
        uint32_t index = 0;
        uint64_t packed = 0;
        for (uint32_t r = 0; r < N_ROWS; r++) {
            for (uint32_t p = row[r].n_tokens - counts[r]; p < row[r].n_tokens;) {
                assert_true(index < n_spans);
                const firni_span span = firni_span_at(&rows, counts, step, index++);
                assert_int_equal(span.row, r);
                assert_int_equal(span.position, p);
                assert_int_equal(span.packed, packed);
                assert_true(span.n_tokens > 0);
                assert_int_equal(span.position / step, (span.position + span.n_tokens - 1) / step);
                p += span.n_tokens;
                packed += span.n_tokens;
                assert_true(p <= row[r].n_tokens);
                assert_true(p == row[r].n_tokens || p % step == 0);
            }
        }
        assert_int_equal(index, n_spans);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_cover_every_token_once_and_stop_at_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
