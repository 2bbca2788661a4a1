/*
 * Rows that begin plain and go on quantised: the state is a function of the tokens alone, whatever the chunks, rounds,
 * merges and refusals on the way; and what cannot be is refused before anything has changed.
 */
#include "kernel/numbers.h"
#include "layout/rig.h"

enum { HEADS = 2, DIM = 64, ROWS_MAX = 4 };

static const firn_cache_options cases[] = {
    { .layout = "kv:delayed-quant", .key_bits = 8, .start = 40 },
    { .layout = "kv:delayed-quant", .key_bits = 4, .group = 32, .start = 64, .dtype = FIRN_DTYPE_F32 },
    { .layout = "kv:delayed-quant", .key_bits = 8, .start = 130, .dtype = FIRN_DTYPE_BF16 },
    { .layout = "kv:delayed-window-quant", .key_bits = 4, .window = 20, .start = 130 },
    { .layout = "kv:delayed-window-quant", .key_bits = 8, .window = RIG_T + 37, .start = 64 },
    { .layout = "kv:delayed-turboquant", .key_bits = 8, .value_bits = 3, .start = 64 },
    { .layout = "kv:delayed-turboquant", .key_bits = 5, .value_bits = 8, .start = 130, .dtype = FIRN_DTYPE_F32 },
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void for_each_case(void (*test)(const firn_cache_options *options))
{
    for (size_t i = 0; i < N_CASES; i++) {
        firn_cache_options options = cases[i];
        options.n_kv_heads = HEADS;
        options.head_dim = DIM;
        test(&options);
    }
}

static uint32_t start_of(const firn_cache *cache)
{
    return firn_cache_get_options(cache)->start;
}

/* Appends to one row in as few steps of up to n_step tokens as the boundary allows. */
static void feed(firn_cache *cache, uint32_t row, const uint64_t *ids, uint32_t n, uint32_t n_step)
{
    while (n > 0) {
        const uint32_t n_tokens = firn_cache_row_tokens(cache, row);
        const uint32_t n_left = n_tokens < start_of(cache) ? start_of(cache) - n_tokens : UINT32_MAX;
        uint32_t count = n < n_step ? n : n_step;
        count = count < n_left ? count : n_left;
        assert_ok(rig_feed_row(cache, row, ids, count, NULL));
        ids += count;
        n -= count;
    }
}

static firn_cache *fed(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    feed(cache, 0, tokens->id, tokens->n, UINT32_MAX);
    firn_cache_settle(cache);
    return cache;
}

static void add_fed(firn_cache *cache, const rig_tokens *tokens)
{
    assert_ok(firn_cache_add_row(cache, NULL));
    feed(cache, firn_cache_batch_size(cache) - 1, tokens->id, tokens->n, UINT32_MAX);
}

static bool is_converted(const firn_cache *cache, uint32_t row)
{
    return firn_cache_minimum_reusable_offset(cache, row) > 0;
}

static void assert_same_state(const firn_cache *a, const firn_cache *b)
{
    firn_tensor x[FIRN_CACHE_STATE_TENSORS_MAX], y[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_x, n_y;
    assert_ok(firn_cache_state(a, x, &n_x, NULL));
    assert_ok(firn_cache_state(b, y, &n_y, NULL));
    assert_int_equal(n_x, n_y);
    for (uint32_t i = 0; i < n_x; i++) {
        assert_int_equal(x[i].n_bytes, y[i].n_bytes);
        if (x[i].n_bytes > 0) {
            assert_memory_equal(x[i].data, y[i].data, x[i].n_bytes);
        }
        firn_tensor_deinit(&x[i]);
        firn_tensor_deinit(&y[i]);
    }
}

/* The dense view and the attention of each row, in one call for all, are what the row's tokens alone give. */
static void assert_rows(const firn_cache *cache, const rig_tokens *const *rows, uint32_t n_rows)
{
    firn_cache_check(cache);
    assert_int_equal(firn_cache_batch_size(cache), n_rows);
    uint32_t counts[ROWS_MAX];
    uint64_t ids[ROWS_MAX * RIG_QUERIES];
    uint32_t n_ids = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        assert_int_equal(firn_cache_row_tokens(cache, r), rows[r]->n);
        counts[r] = rig_queries(cache, r, RIG_QUERIES);
        memcpy(ids + n_ids, rows[r]->id + rows[r]->n - counts[r], counts[r] * sizeof ids[0]);
        n_ids += counts[r];
    }
    size_t n_floats;
    float *out = rig_attend(cache, NULL, ids, counts, NULL, &n_floats);
    const float *out_row = out;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    n_ids = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        firn_cache *alone = fed(firn_cache_get_options(cache), pool, rows[r]);
        if (is_converted(cache, r) && rows[r]->n == start_of(cache)) {
            assert_ok(firn_cache_reserve(alone, (uint32_t[]){ 1 }, NULL)); /* as the next append will */
        }
        assert_int_equal(is_converted(alone, 0), is_converted(cache, r));
        float *expected = rig_attend(alone, NULL, ids + n_ids, &counts[r], NULL, &n_floats);
        assert_memory_equal(out_row, expected, n_floats * sizeof *expected);
        free(expected);
        out_row += n_floats;
        n_ids += counts[r];
        firn_cache_destroy(alone);
    }
    free(out);
    firn_pool_destroy(pool);
}

static void assert_row(const firn_cache *cache, const rig_tokens *tokens)
{
    assert_rows(cache, &tokens, 1);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *alone = fed(firn_cache_get_options(cache), pool, tokens);
    if (is_converted(cache, 0) == is_converted(alone, 0)) {
        assert_same_state(cache, alone);
    }
    firn_cache_destroy(alone);
    firn_pool_destroy(pool);
}

static void append_ids(rig_tokens *tokens, const rig_tokens *more, uint32_t n)
{
    memcpy(tokens->id + tokens->n, more->id, n * sizeof more->id[0]);
    tokens->n += n;
}

/* ---- what a converted row is ------------------------------------------------------------------------------------- */

static void round_as_stored(float *x, size_t n, firn_dtype dtype)
{
    for (size_t i = 0; i < n; i++) {
        if (dtype == FIRN_DTYPE_F16) {
            x[i] = firni_f16_to_f32(firni_f16_from_f32(x[i]));
        } else if (dtype == FIRN_DTYPE_BF16) {
            x[i] = firni_bf16_to_f32(firni_bf16_from_f32(x[i]));
        }
    }
}

static void check_conversion(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, options->start + 9);
    firn_cache *cache = fed(options, pool, &tokens);
    firn_cache *const *parts;
    assert_int_equal(firn_cache_composed(cache, &parts), 2);
    firn_cache *quantised;
    assert_ok(firn_cache_make_empty(parts[1], &quantised, NULL));
    assert_ok(firn_cache_add_row(quantised, NULL));
    float *k = rig_floats(tokens.id, tokens.n, 0, HEADS * DIM);
    float *v = rig_floats(tokens.id, tokens.n, 1, HEADS * DIM);
    round_as_stored(k, (size_t)options->start * HEADS * DIM, firn_cache_get_options(cache)->dtype);
    round_as_stored(v, (size_t)options->start * HEADS * DIM, firn_cache_get_options(cache)->dtype);
    assert_ok(firn_cache_append(quantised, &(firn_append_input){ .k = k, .v = v }, &tokens.n, NULL, NULL));
    firn_cache_settle(quantised);
    assert_same_state(parts[1], quantised);
    assert_int_equal(firn_cache_view_row(cache, 0).first_block, firn_cache_view_row(quantised, 0).first_block);
    const uint32_t n_queries = rig_queries(cache, 0, 9);
    const uint64_t *ids = tokens.id + tokens.n - n_queries;
    size_t n_floats;
    float *out = rig_attend(cache, NULL, ids, &n_queries, NULL, &n_floats);
    float *expected = rig_attend(quantised, NULL, ids, &n_queries, NULL, &n_floats);
    assert_memory_equal(out, expected, n_floats * sizeof *out);
    free(out);
    free(expected);
    free(k);
    free(v);
    firn_cache_destroy(quantised);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void a_converted_row_is_a_quantised_row_fed_with_what_the_plain_blocks_held(void **state)
{
    (void)state;
    for_each_case(check_conversion);
}

/* Each token's attention at its own step. */
static float *outputs_in_chunks(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens,
                                uint32_t n_chunk)
{
    const size_t n_each = (size_t)HEADS * RIG_GROUP * DIM;
    float *all = calloc(tokens->n * n_each, sizeof *all);
    assert_non_null(all);
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    for (uint32_t n = 0; n < tokens->n;) {
        const uint32_t n_max = firn_cache_max_append_tokens(cache);
        assert_true(n_max == (n < options->start ? options->start - n : FIRN_TOKENS_UNLIMITED));
        uint32_t count = tokens->n - n < n_chunk ? tokens->n - n : n_chunk;
        count = count < n_max ? count : n_max;
        assert_ok(rig_feed(cache, tokens->id + n, &count, NULL, NULL));
        size_t n_floats;
        float *out = rig_attend(cache, NULL, tokens->id + n, &count, NULL, &n_floats);
        memcpy(all + n * n_each, out, n_floats * sizeof *out);
        free(out);
        n += count;
        firn_cache_settle(cache);
    }
    assert_row(cache, tokens);
    firn_cache_destroy(cache);
    return all;
}

static void check_chunks(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(1, options->start + 70);
    const size_t n_bytes = (size_t)tokens.n * HEADS * RIG_GROUP * DIM * sizeof(float);
    float *whole = outputs_in_chunks(options, pool, &tokens, UINT32_MAX);
    static const uint32_t chunks[] = { 1, 7, 33, 64 };
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *out = outputs_in_chunks(options, pool, &tokens, chunks[i]);
        assert_memory_equal(out, whole, n_bytes);
        free(out);
    }
    free(whole);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void no_bit_depends_on_chunks(void **state)
{
    (void)state;
    for_each_case(check_chunks);
}

/* ---- batches of both forms --------------------------------------------------------------------------------------- */

/* Rows before, at and beyond the boundary side by side; `around` moves the row that matters over it. */
static void check_batches(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (uint32_t around = 0; around < 3; around++) {
        rig_tokens a = rig_sequence(0, options->start - 1 + around);
        rig_tokens b = rig_sequence(1, 3);
        rig_tokens c = rig_sequence(2, options->start + 70);
        rig_tokens d = rig_sequence(3, options->start);
        const rig_tokens before[] = { a, b, c, d };
        firn_cache *running = fed(options, pool, &a);
        add_fed(running, &b);
        firn_cache *serials[] = { running, fed(options, pool, &c), fed(options, pool, &d) };
        firn_cache *batch;
        assert_ok(firn_cache_make_empty(running, &batch, NULL));
        const uint64_t copied = rig_stats(pool).copied_bytes;
        assert_ok(firn_cache_merge_rows(batch, (const firn_cache *const *)serials, 3, NULL));
        firn_donor *donor;
        assert_ok(firn_cache_capture_donor(batch, &donor, NULL));
        firn_cache *extracted;
        assert_ok(firn_cache_extract_row(batch, 0, &extracted, NULL));
        assert_int_equal(rig_stats(pool).copied_bytes, copied);
        const uint64_t last[] = { a.id[a.n - 1], b.id[b.n - 1], c.id[c.n - 1], d.id[d.n - 1] };
        const uint32_t ones[] = { 1, 1, 1, 1 };
        size_t n_floats;
        float *at_capture = rig_attend(batch, NULL, last, ones, NULL, &n_floats);
        assert_rows(batch, (const rig_tokens *[]){ &a, &b, &c, &d }, 4);

        /* One append for rows of both forms, some of which are converted by it; then further ones. */
        rig_tokens *const rows[] = { &a, &b, &c, &d };
        for (uint32_t step = 0; step < 3; step++) {
            const rig_tokens more = rig_sequence(4 + step, 4);
            for (uint32_t r = 0; r < 4; r++) {
                append_ids(rows[r], &(rig_tokens){ .id = { more.id[r] }, .n = 1 }, 1);
            }
            assert_ok(rig_feed(batch, more.id, ones, NULL, NULL));
            firn_cache_settle(batch);
            assert_rows(batch, (const rig_tokens *const *)rows, 4);
        }
        const rig_tokens more = rig_sequence(8, 80);
        feed(extracted, 0, more.id, more.n, 9);
        rig_tokens grown = before[0];
        append_ids(&grown, &more, more.n);
        assert_row(extracted, &grown);

        /* Who shared the rows before has noticed nothing. */
        assert_rows(running, (const rig_tokens *[]){ &before[0], &before[1] }, 2);
        assert_row(serials[1], &before[2]);
        assert_row(serials[2], &before[3]);
        float *later = rig_attend(batch, donor, last, ones, NULL, &n_floats);
        assert_memory_equal(at_capture, later, n_floats * sizeof *later);
        free(at_capture);
        free(later);

        assert_ok(firn_cache_filter_rows(batch, (uint32_t[]){ 2, 1, 0 }, 3, NULL));
        assert_rows(batch, (const rig_tokens *[]){ &c, &b, &a }, 3);
        firn_donor_destroy(donor);
        firn_cache_destroy(extracted);
        firn_cache_destroy(batch);
        for (uint32_t i = 0; i < 3; i++) {
            firn_cache_destroy(serials[i]);
        }
        assert_int_equal(rig_stats(pool).used_bytes, 0);
    }
    firn_pool_destroy(pool);
}

static void rows_of_both_forms_share_a_batch(void **state)
{
    (void)state;
    for_each_case(check_batches);
}

/* ---- refused crossings, trims, rounds ---------------------------------------------------------------------------- */

static void check_crossing(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens a = rig_sequence(0, options->start - 3);
    const rig_tokens b = rig_sequence(1, options->start + 5);
    firn_cache *cache = fed(options, pool, &a);
    add_fed(cache, &b);
    firn_cache_settle(cache);
    const firn_pool_stats before = rig_stats(pool);
    const rig_tokens more = rig_sequence(2, 8);
    firn_error err;
    assert_int_equal(firn_cache_max_append_tokens(cache), 3);
    assert_status(rig_feed(cache, more.id, (uint32_t[]){ 4, 4 }, NULL, &err), FIRN_ERR_INVALID);
    char expected[64];
    (void)snprintf(expected, sizeof expected, "row 0 has %u tokens and is quantised at %u", a.n, options->start);
    assert_non_null(strstr(err.message, expected));
    assert_int_equal(rig_stats(pool).used_bytes, before.used_bytes);
    assert_int_equal(rig_stats(pool).copied_bytes, before.copied_bytes);
    assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void an_append_across_the_boundary_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    for_each_case(check_crossing);
}

static void check_trims(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (uint32_t drop = 1; drop <= 4; drop++) {
        rig_tokens tokens = rig_sequence(0, options->start + 3);
        firn_cache *cache = fed(options, pool, &tokens);
        assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 3);
        if (drop == 4) {
            assert_status(firn_cache_trim(cache, drop, false, NULL), FIRN_ERR_TRIM);
        } else {
            assert_ok(firn_cache_trim_row(cache, 0, drop, NULL));
            tokens.n -= drop;
        }
        assert_true(is_converted(cache, 0));
        assert_row(cache, &tokens);
        const rig_tokens more = rig_sequence(1, 70);
        feed(cache, 0, more.id, more.n, UINT32_MAX);
        append_ids(&tokens, &more, more.n);
        firn_cache_settle(cache);
        assert_row(cache, &tokens);
        firn_cache_destroy(cache);
    }
    rig_tokens tokens = rig_sequence(0, options->start < 20 ? options->start : 20);
    firn_cache *cache = fed(options, pool, &tokens);
    assert_true(firn_cache_is_trimmable(cache));
    assert_ok(firn_cache_trim_row(cache, 0, 15, NULL));
    tokens.n -= 15;
    assert_row(cache, &tokens);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void a_converted_row_is_cut_down_to_the_boundary_and_no_further(void **state)
{
    (void)state;
    for_each_case(check_trims);
}

static void check_rounds(const firn_cache_options *options)
{
    enum { DRAFTS = 4 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const uint32_t bases[] = { options->start - DRAFTS - 1, options->start - DRAFTS, options->start,
                               options->start + 1 };
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t keep = 0; keep <= DRAFTS; keep++) {
            rig_tokens a = rig_sequence(0, bases[i]);
            rig_tokens b = rig_sequence(1, options->start + 20);
            firn_cache *cache = fed(options, pool, &a);
            add_fed(cache, &b);
            const rig_tokens drafts = rig_sequence(2, 2 * DRAFTS);
            assert_ok(firn_cache_spec_begin(cache, NULL));
            assert_ok(rig_feed(cache, drafts.id, (uint32_t[]){ DRAFTS, DRAFTS }, NULL, NULL));
            if (bases[i] + DRAFTS == options->start) {
                /* Not within a round that its rollback would take back over the boundary. */
                assert_int_equal(firn_cache_max_append_tokens(cache), 0);
                assert_status(rig_feed_row(cache, 0, drafts.id, 1, NULL), FIRN_ERR_INVALID);
            }
            assert_ok(firn_cache_spec_rollback(cache, (uint32_t[]){ keep, DRAFTS - keep }, NULL));
            append_ids(&a, &drafts, keep);
            append_ids(&b, &(rig_tokens){ .id = { drafts.id[4], drafts.id[5], drafts.id[6], drafts.id[7] } },
                       DRAFTS - keep);
            assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
            const rig_tokens next = rig_sequence(3, 11);
            feed(cache, 0, next.id, next.n, UINT32_MAX);
            append_ids(&a, &next, next.n);
            assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
            firn_cache_destroy(cache);
        }
    }
    firn_pool_destroy(pool);
}

static void a_rolled_back_round_equals_plain_appends(void **state)
{
    (void)state;
    for_each_case(check_rounds);
}

/* ---- accounting, exchange, refusals ------------------------------------------------------------------------------ */

static void check_projection(const firn_cache_options *options)
{
    const rig_tokens tokens = rig_sequence(0, options->start + 3 * RIG_T);
    firn_pool *shape_pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *shape = rig_cache(options, shape_pool);
    /* No more than admission reserves, from the first token on. */
    firn_pool *pool = rig_pool(firn_cache_working_bytes(shape, tokens.n, 1), NULL);
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    for (uint32_t n = 1; n <= tokens.n; n++) {
        feed(cache, 0, &tokens.id[n - 1], 1, 1);
        firn_cache_settle(cache);
        assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, n));
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    firn_cache_destroy(shape);
    firn_pool_destroy(shape_pool);
}

static void projected_bytes_are_what_the_pool_counts(void **state)
{
    (void)state;
    for_each_case(check_projection);
}

static void check_exchange(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const uint32_t start = options->start;
    for (uint32_t n = start - 1; n <= start; n++) {
        const rig_tokens tokens = rig_sequence(0, n);
        firn_cache *cache = fed(options, pool, &tokens);
        assert_false(firn_cache_can_publish_row(cache, 0, n));
        assert_false(firn_cache_can_publish_row(cache, 0, 1));
        assert_int_equal(firn_cache_minimum_reusable_offset(cache, 0), 0);
        const firn_row_view view = firn_cache_view_row(cache, 0);
        assert_int_equal(view.n_blocks, 0);
        assert_status(firn_cache_adopt_row(cache, &view, NULL), FIRN_ERR_INVALID);
        assert_row(cache, &tokens);
        firn_cache_destroy(cache);
    }
    const rig_tokens tokens = rig_sequence(0, start + 1);
    firn_cache *cache = fed(options, pool, &tokens);
    assert_true(firn_cache_can_publish_row(cache, 0, start + 1));
    assert_true(firn_cache_can_publish_row(cache, 0, start));
    assert_false(firn_cache_can_publish_row(cache, 0, start - 1));
    firn_row_view view = firn_cache_view_row(cache, 0);
    firn_cache *other;
    assert_ok(firn_cache_make_empty(cache, &other, NULL));
    assert_ok(firn_cache_adopt_row(other, &view, NULL));
    assert_ok(firn_cache_adopt_row(other, &(firn_row_view){ .n_tokens = 0 }, NULL));
    view.n_tokens = start; /* the last block, if the boundary is one, stays behind */
    view.n_blocks = start / RIG_T + (start % RIG_T != 0) - view.first_block;
    assert_ok(firn_cache_adopt_row(other, &view, NULL));
    const rig_tokens none = { .n = 0 };
    const rig_tokens cut = rig_sequence(0, start);
    assert_rows(other, (const rig_tokens *[]){ &tokens, &none, &cut }, 3);
    view.n_tokens = start - 1;
    view.n_blocks = (start - 1) / RIG_T + ((start - 1) % RIG_T != 0) - view.first_block;
    firn_error err;
    assert_status(firn_cache_adopt_row(other, &view, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "is plain"));
    const uint32_t row = 0;
    assert_ok(firn_cache_prefill_begin(other, NULL));
    assert_ok(firn_cache_prefill_commit(other, &row, 1, NULL));
    assert_ok(firn_cache_prefill_end(other, NULL));
    assert_rows(other, (const rig_tokens *[]){ &tokens, &none, &cut }, 3);
    firn_cache_destroy(other);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void others_see_the_quantised_form_alone(void **state)
{
    (void)state;
    for_each_case(check_exchange);
}

/* Rows of both forms with shared tails, one of which the append converts. */
static void check_refused_allocations(const firn_cache_options *options)
{
    bool is_clean = false;
    uint64_t n = 1;
    for (; !is_clean; n++) {
        test_world world;
        test_world_init(&world);
        firn_pool *pool = rig_pool(UINT64_C(16) << 20, &world.env);
        rig_tokens rows[] = { rig_sequence(0, options->start + 3), rig_sequence(1, options->start),
                              rig_sequence(2, 5) };
        const rig_tokens *before[] = { &rows[0], &rows[1], &rows[2] };
        firn_cache *cache;
        assert_ok(firn_cache_create(options, pool, &world.env, &cache, NULL));
        for (uint32_t r = 0; r < 3; r++) {
            add_fed(cache, &rows[r]);
        }
        firn_cache_settle(cache);
        firn_cache *sharer;
        assert_ok(firn_cache_make_empty(cache, &sharer, NULL));
        assert_ok(firn_cache_merge_rows(sharer, (const firn_cache *[]){ cache }, 1, NULL));
        const uint64_t used = rig_stats(pool).used_bytes;
        const rig_tokens more = rig_sequence(3, 3);
        const uint32_t ones[] = { 1, 1, 1 };
        world.fail_alloc_at = world.n_allocs + n;
        const firn_status status = rig_feed(cache, more.id, ones, NULL, NULL);
        is_clean = !world.alloc_failed;
        world.fail_alloc_at = 0;
        assert_status(status, is_clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
        assert_rows(sharer, before, 3);
        if (!is_clean) {
            assert_int_equal(rig_stats(pool).used_bytes, used);
            assert_false(is_converted(cache, 1));
            assert_rows(cache, before, 3);
            assert_ok(rig_feed(cache, more.id, ones, NULL, NULL));
        }
        for (uint32_t r = 0; r < 3; r++) {
            append_ids(&rows[r], &(rig_tokens){ .id = { more.id[r] } }, 1);
        }
        assert_rows(cache, before, 3);
        firn_cache_destroy(sharer);
        firn_cache_destroy(cache);
        assert_int_equal(rig_stats(pool).used_bytes, 0);
        firn_pool_destroy(pool);
        test_world_deinit(&world);
    }
    assert_true(n > 3);
}

static void a_refused_conversion_leaves_before_or_after(void **state)
{
    (void)state;
    for_each_case(check_refused_allocations);
}

static void check_refused_joins(const firn_cache_options *options)
{
    bool is_clean = false;
    for (uint64_t n = 1; !is_clean; n++) {
        test_world world;
        test_world_init(&world);
        firn_pool *pool = rig_pool(UINT64_C(16) << 20, &world.env);
        const rig_tokens tokens = rig_sequence(0, options->start + 3);
        world.fail_alloc_at = world.n_allocs + n;
        firn_cache *cache;
        firn_status status = firn_cache_create(options, pool, &world.env, &cache, NULL);
        if (status == FIRN_OK) {
            status = firn_cache_add_row(cache, NULL);
            firn_cache_check(cache);
            assert_int_equal(firn_cache_batch_size(cache), status == FIRN_OK);
        }
        is_clean = !world.alloc_failed;
        world.fail_alloc_at = 0;
        assert_status(status, is_clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
        if (is_clean) {
            feed(cache, 0, tokens.id, tokens.n, UINT32_MAX);
            firn_cache_settle(cache);
            assert_row(cache, &tokens);
        }
        firn_cache_destroy(cache);
        firn_pool_destroy(pool);
        test_world_deinit(&world);
    }
}

static void a_refused_creation_or_row_leaves_nothing(void **state)
{
    (void)state;
    for_each_case(check_refused_joins);
}

static void options_are_checked_and_named(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    static const struct {
        firn_cache_options options;
        const char *describe;
    } good[] = {
        { { .layout = "kv:delayed-quant", .start = 512 }, "kv:delayed-quant:8:64:512 f16 heads=2 dim=64/64 block=64" },
        { { .layout = "kv:delayed-window-quant", .key_bits = 4, .window = 100, .start = 7, .dtype = FIRN_DTYPE_F32 },
          "kv:delayed-window-quant:4:64:7 f32 heads=2 dim=64/64 window=100 block=64" },
        { { .layout = "kv:delayed-turboquant", .start = 512 },
          "kv:delayed-turboquant:8:3:512 f16 heads=2 dim=64/64 block=64" },
    };
    static const firn_cache_options bad[] = {
        { .layout = "kv:delayed-quant" },
        { .layout = "kv:delayed-quant", .start = UINT32_MAX },
        { .layout = "kv:delayed-quant", .start = 64, .window = 100 },
        { .layout = "kv:delayed-quant", .start = 64, .dtype = FIRN_DTYPE_U8 },
        { .layout = "kv:delayed-quant", .start = 64, .key_bits = 5 },
        { .layout = "kv:delayed-window-quant", .start = 64 },
        { .layout = "kv:quant", .start = 64 },
        { .layout = "kv:plain", .start = 64 },
    };
    firn_cache *cache;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        firn_cache_options options = good[i].options;
        options.n_kv_heads = HEADS;
        options.head_dim = DIM;
        cache = rig_cache(&options, pool);
        assert_string_equal(firn_cache_describe(cache), good[i].describe);
        firn_cache_destroy(cache);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        firn_cache_options options = bad[i];
        options.n_kv_heads = HEADS;
        options.head_dim = DIM;
        assert_status(firn_cache_create(&options, pool, NULL, &cache, NULL), FIRN_ERR_INVALID);
        assert_null(cache);
    }
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_converted_row_is_a_quantised_row_fed_with_what_the_plain_blocks_held),
        cmocka_unit_test(no_bit_depends_on_chunks),
        cmocka_unit_test(rows_of_both_forms_share_a_batch),
        cmocka_unit_test(an_append_across_the_boundary_is_refused_and_changes_nothing),
        cmocka_unit_test(a_converted_row_is_cut_down_to_the_boundary_and_no_further),
        cmocka_unit_test(a_rolled_back_round_equals_plain_appends),
        cmocka_unit_test(projected_bytes_are_what_the_pool_counts),
        cmocka_unit_test(others_see_the_quantised_form_alone),
        cmocka_unit_test(a_refused_conversion_leaves_before_or_after),
        cmocka_unit_test(a_refused_creation_or_row_leaves_nothing),
        cmocka_unit_test(options_are_checked_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
