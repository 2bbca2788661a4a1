/*
 * Conformance, tokens coming: append, reserve, attend and accounting, over every registered layout, dtype and geometry.
 * A layout is covered by being registered.
 */
#include "layout/rig.h"

/* ---- exactness --------------------------------------------------------------------------------------------------- */

/* Attention of all tokens of a row, appended and attended to in chunks of `chunk`. */
static float *attend_in_chunks(const firn_cache_options *options, const rig_tokens *tokens, uint32_t chunk,
                               firn_workers *workers, size_t *n_floats)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    float *all = NULL;
    *n_floats = 0;
    for (uint32_t i = 0; i < tokens->n; i += chunk) {
        const uint32_t n = tokens->n - i < chunk ? tokens->n - i : chunk;
        assert_ok(rig_feed(cache, tokens->id + i, &n, workers, NULL));
        size_t n_part;
        float *part = rig_attend(cache, NULL, tokens->id + i, &n, workers, &n_part);
        all = realloc(all, (*n_floats + n_part) * sizeof *all);
        assert_non_null(all);
        memcpy(all + *n_floats, part, n_part * sizeof *all);
        *n_floats += n_part;
        free(part);
    }
    rig_assert_row(cache, tokens);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    return all;
}

static void check_chunks(const firn_cache_options *options)
{
    const rig_tokens tokens = rig_sequence(0, 2 * RIG_T + 9);
    size_t n_expected;
    float *expected = attend_in_chunks(options, &tokens, 1, NULL, &n_expected);
    static const uint32_t chunks[] = { 7, 16, RIG_T, RIG_T + 1, RIG_TOKENS_MAX };
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
            firn_workers *workers;
            assert_ok(firn_workers_create(n_threads, NULL, &workers, NULL));
            size_t n_floats;
            float *got = attend_in_chunks(options, &tokens, chunks[c], workers, &n_floats);
            assert_int_equal(n_floats, n_expected);
            assert_memory_equal(got, expected, n_floats * sizeof *got);
            free(got);
            firn_workers_destroy(workers);
        }
    }
    free(expected);
}

static void attention_does_not_depend_on_chunks_or_threads(void **state)
{
    (void)state;
    rig_for_each_case(check_chunks);
}

/* Prefill and decode of several rows in one call. */
static void check_batches(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_workers *workers;
    assert_ok(firn_workers_create(2, NULL, &workers, NULL));
    const uint32_t counts[5] = { 1, 40, 0, RIG_T + 30, 1 };
    const uint32_t before[5] = { 5, RIG_T - 3, 17, 0, 2 * RIG_T };
    rig_tokens rows[5];
    uint64_t ids[512];
    uint32_t n_ids = 0;
    firn_cache *batch = rig_cache(options, pool);
    for (uint32_t r = 0; r < 5; r++) {
        rows[r] = rig_sequence(r, before[r] + counts[r]);
        assert_ok(firn_cache_add_row(batch, NULL));
        assert_ok(rig_feed_row(batch, r, rows[r].id, before[r], NULL));
        memcpy(ids + n_ids, rows[r].id + before[r], counts[r] * sizeof ids[0]);
        n_ids += counts[r];
    }
    assert_ok(rig_feed(batch, ids, counts, workers, NULL));
    rig_assert_rows(batch, (const rig_tokens *[]){ &rows[0], &rows[1], &rows[2], &rows[3], &rows[4] }, 5);
    size_t n_floats;
    float *out = rig_attend(batch, NULL, ids, counts, workers, &n_floats);
    const float *out_row = out;
    for (uint32_t r = 0; r < 5; r++) {
        firn_cache *alone = rig_fed(options, pool, &rows[r]);
        float *expected = rig_attend(alone, NULL, rows[r].id + before[r], &counts[r], NULL, &n_floats);
        assert_memory_equal(out_row, expected, n_floats * sizeof *expected);
        out_row += n_floats;
        free(expected);
        firn_cache_destroy(alone);
    }
    free(out);
    firn_workers_destroy(workers);
    firn_cache_destroy(batch);
    firn_pool_destroy(pool);
}

static void attention_in_a_mixed_batch_is_that_of_each_row_alone(void **state)
{
    (void)state;
    rig_for_each_case(check_batches);
}

/* Keys, values, queries and results as parts of wider rows of floats, as a fused projection leaves them. */
static void check_strides(const firn_cache_options *options)
{
    enum { PAD = 5, N = 70 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, N);
    const uint32_t n = N;
    const uint32_t k_floats = options->n_kv_heads * options->head_dim;
    const uint32_t v_floats = options->n_kv_heads * options->value_dim;
    const uint32_t q_floats = k_floats * RIG_GROUP;
    const uint32_t out_floats = v_floats * RIG_GROUP;
    const uint32_t n_index_heads = options->index_dim > 0 ? RIG_INDEX_HEADS : 0;
    const uint32_t index_floats = n_index_heads * options->index_dim;
    const uint32_t stride = q_floats + out_floats + index_floats + PAD;
    float *k = calloc((size_t)N * stride, sizeof *k);
    float *v = calloc((size_t)N * stride, sizeof *v);
    float *q = calloc((size_t)N * stride, sizeof *q);
    float *out = calloc((size_t)N * stride, sizeof *out);
    float *index = calloc((size_t)3 * N * stride, sizeof *index);
    float *index_q = index + (size_t)N * stride;
    float *index_weights = index_q + (size_t)N * stride;
    assert_non_null(index);
    assert_true(k != NULL && v != NULL && q != NULL && out != NULL);
    for (uint32_t i = 0; i < N; i++) {
        rig_fill(k + (size_t)i * stride, tokens.id[i], 0, k_floats);
        rig_fill(v + (size_t)i * stride, tokens.id[i], 1, v_floats);
        rig_fill(q + (size_t)i * stride, tokens.id[i], 2, q_floats);
        rig_fill(index + (size_t)i * stride, tokens.id[i], 3, options->index_dim);
        rig_fill(index_q + (size_t)i * stride, tokens.id[i], 4, index_floats);
        rig_fill(index_weights + (size_t)i * stride, tokens.id[i], 5, n_index_heads);
    }
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    rig_recur recur = { .out = NULL };
    firn_append_input input = { .k = k, .v = v, .k_stride = stride, .v_stride = stride,
                                .index_key = n_index_heads > 0 ? index : NULL, .index_stride = stride };
    if (options->recurrent != NULL) {
        recur = rig_recur_of(options->recurrent, tokens.id, N);
        input.recur = &recur.input;
    }
    assert_ok(firn_cache_append(cache, &input, &n, NULL, NULL));
    rig_recur_deinit(&recur);
    rig_assert_row(cache, &tokens);
    const firn_attend_input attend = {
        .q = q,
        .out = out,
        .q_stride = stride,
        .out_stride = stride,
        .n_heads = options->n_kv_heads * RIG_GROUP,
        .scale = 0.25f,
        .index_q = n_index_heads > 0 ? index_q : NULL,
        .index_weights = n_index_heads > 0 ? index_weights : NULL,
        .n_index_heads = n_index_heads,
        .index_q_stride = stride,
        .index_weights_stride = stride,
    };
    assert_ok(firn_cache_attend(cache, &attend, &n, NULL, NULL));
    size_t n_floats;
    float *dense = rig_attend(cache, NULL, tokens.id, &n, NULL, &n_floats);
    for (uint32_t i = 0; i < N; i++) {
        assert_memory_equal(out + (size_t)i * stride, dense + (size_t)i * out_floats, out_floats * sizeof *out);
        for (uint32_t j = out_floats; j < stride; j++) {
            assert_true(out[(size_t)i * stride + j] == 0.0f); /* nothing is written between the rows */
        }
    }
    free(dense);
    free(index);
    free(out);
    free(q);
    free(v);
    free(k);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void strides_change_nothing(void **state)
{
    (void)state;
    rig_for_each_case(check_strides);
}

static void check_attend_errors(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, 3);
    firn_cache *cache = rig_fresh(options, pool, &tokens);
    float q[1] = { 0 };
    float out[1] = { 0 };
    firn_attend_input input = { .q = q, .out = out, .n_heads = options->n_kv_heads, .scale = 1.0f };
    assert_status(firn_cache_attend(cache, &input, (uint32_t[]){ 4 }, NULL, NULL), FIRN_ERR_INVALID);
    input.n_heads = 0;
    assert_status(firn_cache_attend(cache, &input, (uint32_t[]){ 1 }, NULL, NULL), FIRN_ERR_INVALID);
    input.n_heads = UINT32_MAX / options->n_kv_heads * options->n_kv_heads;
    assert_status(firn_cache_attend(cache, &input, (uint32_t[]){ 1 }, NULL, NULL), FIRN_ERR_INVALID);
    if (options->n_kv_heads > 1) {
        input.n_heads = options->n_kv_heads + 1;
        assert_status(firn_cache_attend(cache, &input, (uint32_t[]){ 1 }, NULL, NULL), FIRN_ERR_INVALID);
    }
    assert_true(out[0] == 0.0f);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void a_wrong_attend_is_refused(void **state)
{
    (void)state;
    rig_for_each_case(check_attend_errors);
}

/* ---- bounds and accounting --------------------------------------------------------------------------------------- */

static void check_projection(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const uint32_t n_max = options->window > RIG_T ? 3 * options->window : 3 * RIG_T;
    const rig_tokens tokens = rig_sequence(0, n_max);
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_int_equal(firn_cache_projected_bytes(cache, 0), rig_stats(pool).used_bytes);
    const uint32_t one = 1;
    for (uint32_t n = 1; n <= n_max; n++) {
        assert_ok(rig_feed(cache, &tokens.id[n - 1], &one, NULL, NULL));
        firn_cache_settle(cache);
        assert_int_equal(firn_cache_projected_bytes(cache, n), rig_stats(pool).used_bytes);
        assert_true(firn_cache_projected_bytes(cache, n) >=
                    rig_shown(cache, n) * firn_cache_bytes_per_token(cache));
    }
    for (uint32_t n = n_max; firn_cache_trimmable_tokens(cache, 0) > 0;) {
        assert_ok(firn_cache_trim(cache, 1, false, NULL));
        assert_int_equal(firn_cache_projected_bytes(cache, --n), rig_stats(pool).used_bytes);
    }
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    const uint32_t n_planes = firn_cache_planes(cache, planes);
    uint64_t end = 0;
    for (uint32_t i = 0; i < n_planes; i++) {
        uint64_t n_bytes = firn_dtype_bytes(planes[i].dtype);
        for (uint32_t d = 0; d < planes[i].n_dims; d++) {
            n_bytes *= planes[i].shape[d];
        }
        assert_int_equal(planes[i].n_bytes, n_bytes);
        assert_true(planes[i].offset_bytes >= end && planes[i].offset_bytes % 64 == 0);
        end = planes[i].offset_bytes + n_bytes;
    }
    assert_true(end <= firn_cache_block_bytes(cache));
    assert_int_equal(firn_cache_block_bytes(cache) % FIRN_BLOCK_ALIGN, 0);
    firn_cache *const *parts = &cache;
    assert_true(firn_cache_composed(cache, &parts) > 0 || parts == NULL);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void projected_bytes_are_what_is_taken(void **state)
{
    (void)state;
    rig_for_each_case(check_projection);
}

static void check_max_tokens(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache_options bounded = *options;
    bounded.max_tokens = RIG_T + 2;
    const rig_tokens a = rig_sequence(0, RIG_T + 2);
    const rig_tokens b = rig_sequence(1, 3);
    firn_cache *cache = rig_fresh(&bounded, pool, &a);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(rig_feed_row(cache, 1, b.id, b.n, NULL));
    assert_int_equal(firn_cache_max_tokens(cache), RIG_T + 2);
    const uint64_t used = rig_stats(pool).used_bytes;
    static const uint32_t beyond[3][2] = { { 1, 0 }, { 0, RIG_T }, { UINT32_MAX, UINT32_MAX } };
    for (size_t i = 0; i < 3; i++) {
        assert_status(firn_cache_reserve(cache, beyond[i], NULL), FIRN_ERR_CAPACITY);
        if (beyond[i][0] <= 1) {
            firn_error err;
            assert_status(rig_feed(cache, a.id, beyond[i], NULL, &err), FIRN_ERR_CAPACITY);
            assert_non_null(strstr(err.message, i == 0 ? "row 0" : "row 1"));
        }
        rig_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
        assert_int_equal(rig_stats(pool).used_bytes, used);
    }
    firn_cache_destroy(cache);

    cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_status(firn_cache_reserve(cache, (uint32_t[]){ UINT32_MAX }, NULL), FIRN_ERR_CAPACITY);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void an_append_beyond_the_bound_changes_nothing(void **state)
{
    (void)state;
    rig_for_each_case(check_max_tokens);
}

/* Reserved blocks belong to the row that reserved them and show nowhere. */
static void check_reserve(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(1 << 20, NULL);
    rig_tokens tokens = rig_sequence(0, 2 * RIG_T + 20);
    rig_tokens start = rig_sequence(0, 50);
    firn_cache *cache = rig_fresh(options, pool, &start);
    firn_cache *other;
    assert_ok(firn_cache_extract_row(cache, 0, &other, NULL)); /* the tail is shared */
    assert_ok(firn_cache_reserve(cache, (uint32_t[]){ 2 * RIG_T - 30 }, NULL));
    const uint64_t reserved = rig_stats(pool).used_bytes;
    assert_int_equal(reserved, rig_row_bytes(cache, 50, 2 * RIG_T + 20) + firn_cache_projected_bytes(cache, 50));
    rig_assert_row(cache, &start);

    /* None of these takes a reserved block along. */
    firn_cache *merged;
    firn_cache *extracted;
    firn_donor *donor;
    assert_ok(firn_cache_make_empty(cache, &merged, NULL));
    assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ cache, other }, 2, NULL));
    assert_ok(firn_cache_extract_row(cache, 0, &extracted, NULL));
    assert_ok(firn_cache_capture_donor(cache, &donor, NULL));
    const firn_row_view view = firn_cache_view_row(cache, 0);
    assert_int_equal(view.n_blocks, firn_cache_view_row(other, 0).n_blocks);
    assert_ok(firn_cache_adopt_row(extracted, &view, NULL));
    rig_assert_rows(merged, (const rig_tokens *[]){ &start, &start }, 2);
    rig_assert_rows(extracted, (const rig_tokens *[]){ &start, &start }, 2);
    assert_int_equal(rig_stats(pool).used_bytes, reserved);
    firn_donor_destroy(donor);
    firn_cache_destroy(merged);
    firn_cache_destroy(extracted);
    firn_cache_destroy(other);

    /* The reserved tokens need no room in the pool. */
    firn_block *hog;
    assert_ok(firn_block_alloc(pool, (size_t)firn_pool_room(pool), &hog, NULL));
    const firn_pool_stats before = rig_stats(pool);
    for (uint32_t n = 50; n < 2 * RIG_T + 20; n += 7) {
        const uint32_t count = n + 7 < 2 * RIG_T + 20 ? 7 : 2 * RIG_T + 20 - n;
        assert_ok(rig_feed(cache, tokens.id + n, &count, NULL, NULL));
    }
    rig_assert_row(cache, &tokens);
    assert_int_equal(rig_stats(pool).copied_bytes, before.copied_bytes);
    firn_cache_settle(cache);
    assert_int_equal(rig_stats(pool).used_bytes + rig_row_bytes(cache, 50, 2 * RIG_T + 20),
                     before.used_bytes + firn_cache_projected_bytes(cache, 2 * RIG_T + 20));
    firn_block_release(hog);

    /* A filter keeps them with their row; a trim gives them back. */
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(firn_cache_reserve(cache, (uint32_t[]){ 3 * RIG_T, 0 }, NULL));
    assert_ok(firn_cache_filter_rows(cache, (uint32_t[]){ 1, 0 }, 2, NULL));
    assert_int_equal(rig_stats(pool).used_bytes, rig_row_bytes(cache, 2 * RIG_T + 20, 5 * RIG_T + 20));
    if (firn_cache_trimmable_tokens(cache, 1) > 0) {
        assert_ok(firn_cache_trim_row(cache, 1, 1, NULL));
        tokens.n--;
        assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, 2 * RIG_T + 19));
    }
    const rig_tokens none = { .n = 0 };
    rig_assert_rows(cache, (const rig_tokens *[]){ &none, &tokens }, 2);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void reserved_room_serves_its_row_alone(void **state)
{
    (void)state;
    rig_for_each_case(check_reserve);
}

static void check_steady_loop(const firn_cache_options *options)
{
    test_world world;
    test_world_init(&world);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, &world.env);
    firn_cache *cache;
    assert_ok(firn_cache_create(options, pool, &world.env, &cache, NULL));
    const rig_tokens tokens = rig_sequence(0, RIG_TOKENS_MAX);
    /* A first conversation warms the pool; the second takes what the first gave back. */
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_ok(firn_cache_add_row(cache, NULL));
        uint32_t count = 300;
        assert_ok(rig_feed(cache, tokens.id, &count, NULL, NULL));
        const uint64_t n_allocs = world.n_allocs;
        for (uint32_t n = 300; n < 560; n += 4) {
            count = 4;
            assert_ok(firn_cache_spec_begin(cache, NULL));
            assert_ok(rig_feed(cache, tokens.id + n, &count, NULL, NULL));
            size_t n_floats;
            free(rig_attend(cache, NULL, tokens.id + n, &count, NULL, &n_floats));
            assert_ok(firn_cache_spec_commit(cache, NULL));
        }
        assert_true(turn == 0 || world.n_allocs == n_allocs);
        assert_ok(firn_cache_filter_rows(cache, NULL, 0, NULL));
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    test_world_deinit(&world);
}

static void a_steady_token_loop_never_calls_the_allocator(void **state)
{
    (void)state;
    rig_for_each_layout(check_steady_loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_does_not_depend_on_chunks_or_threads),
        cmocka_unit_test(attention_in_a_mixed_batch_is_that_of_each_row_alone),
        cmocka_unit_test(strides_change_nothing),
        cmocka_unit_test(a_wrong_attend_is_refused),
        cmocka_unit_test(projected_bytes_are_what_is_taken),
        cmocka_unit_test(an_append_beyond_the_bound_changes_nothing),
        cmocka_unit_test(reserved_room_serves_its_row_alone),
        cmocka_unit_test(a_steady_token_loop_never_calls_the_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
