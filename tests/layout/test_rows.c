/*
 * Conformance, rows: merge, extract, filter, add and adopt, over every registered layout, dtype and geometry. A layout
 * is covered by being registered.
 */
#include "layout/rig.h"

/* Row lengths at which a block begins, ends or is absent. */
static const uint32_t edges[] = { 0, 1, RIG_T - 1, RIG_T, RIG_T + 1 };
#define N_EDGES (sizeof edges / sizeof edges[0])

/* Equal but for where they lie. */
static void assert_same_options(const firn_cache_options *a, const firn_cache_options *b)
{
    firn_cache_options x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x.recurrent = y.recurrent = NULL;
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(a->recurrent != NULL, b->recurrent != NULL);
    assert_true(a->recurrent == NULL || memcmp(a->recurrent, b->recurrent, sizeof x) == 0);
}

static void check_empty(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(options, pool);
    firn_cache *same;
    assert_ok(firn_cache_make_empty(cache, &same, NULL));
    assert_memory_equal(firn_cache_signature(cache), options->layout, strlen(options->layout));
    assert_string_equal(firn_cache_describe(cache), firn_cache_describe(same));
    assert_non_null(strstr(firn_cache_describe(cache), options->layout));
    assert_ptr_equal(firn_cache_get_pool(same), pool);
    assert_same_options(firn_cache_get_options(cache), firn_cache_get_options(same));
    assert_int_equal(firn_cache_batch_size(cache), 0);
    assert_int_equal(firn_cache_offset(cache), 0);
    assert_true(firn_cache_is_trimmable(cache));
    assert_int_equal(firn_cache_max_tokens(cache), FIRN_TOKENS_UNLIMITED);
    rig_assert_rows(cache, NULL, 0);
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(cache, tensors, &n_tensors, NULL));
    for (uint32_t i = 0; i < n_tensors; i++) {
        assert_int_equal(tensors[i].n_bytes, 0);
        firn_tensor_deinit(&tensors[i]);
    }
    assert_ok(firn_cache_trim(cache, 3, false, NULL)); /* of no rows */
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_cache_destroy(cache);
    firn_cache_destroy(same);
    firn_cache_destroy(NULL);
    firn_pool_destroy(pool);
}

static void an_empty_cache_has_identity_and_no_rows(void **state)
{
    (void)state;
    rig_for_each_case(check_empty);
}

/* A running batch of two rows and one joining row, for every combination of lengths. */
static void check_merge(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (size_t i = 0; i < N_EDGES * N_EDGES * N_EDGES; i++) {
        const uint32_t lengths[3] = { edges[i % N_EDGES], edges[i / N_EDGES % N_EDGES], edges[i / N_EDGES / N_EDGES] };
        rig_tokens tokens[3];
        firn_cache *running = rig_cache(options, pool);
        for (uint32_t r = 0; r < 2; r++) {
            tokens[r] = rig_sequence(r, lengths[r]);
            assert_ok(firn_cache_add_row(running, NULL));
            assert_ok(rig_feed_row(running, r, tokens[r].id, tokens[r].n, NULL));
        }
        tokens[2] = rig_sequence(2, lengths[2]);
        firn_cache *joining = rig_fresh(options, pool, &tokens[2]);
        const uint64_t used = rig_stats(pool).used_bytes;

        firn_cache *merged;
        assert_ok(firn_cache_make_empty(running, &merged, NULL));
        const firn_cache *sources[] = { running, joining };
        assert_ok(firn_cache_merge_rows(merged, sources, 2, NULL));
        const rig_tokens *rows[] = { &tokens[0], &tokens[1], &tokens[2] };
        rig_assert_rows(merged, rows, 3);
        assert_int_equal(rig_stats(pool).used_bytes, used);
        assert_int_equal(rig_stats(pool).copied_bytes, 0);

        /* The sources are whole, also when the merged batch is gone. */
        rig_assert_rows(running, rows, 2);
        rig_assert_row(joining, &tokens[2]);
        firn_cache_destroy(merged);
        rig_assert_rows(running, rows, 2);
        firn_cache_destroy(running);
        firn_cache_destroy(joining);
    }
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void rows_of_every_length_merge(void **state)
{
    (void)state;
    rig_for_each_case(check_merge);
}

static void extend(firn_cache *cache, uint32_t row, rig_tokens *tokens, uint32_t family, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens->id[tokens->n + i] = ((uint64_t)(family + 100) << 32) + tokens->n + i;
    }
    assert_ok(rig_feed_row(cache, row, tokens->id + tokens->n, n, NULL));
    tokens->n += n;
}

/* Four holders of one row part ways: source, merged batch, an extract of it, and a row adopted from a view. */
static void check_independence(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (size_t e = 0; e < N_EDGES; e++) {
        rig_tokens a = rig_sequence(0, edges[e] + RIG_T);
        firn_cache *source = rig_fresh(options, pool, &a);
        firn_cache *merged;
        firn_cache *extracted;
        const uint64_t copied = rig_stats(pool).copied_bytes;
        assert_ok(firn_cache_make_empty(source, &merged, NULL));
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ source, source }, 2, NULL));
        assert_ok(firn_cache_extract_row(merged, 1, &extracted, NULL));
        const firn_row_view view = firn_cache_view_row(source, 0);
        assert_ok(firn_cache_adopt_row(extracted, &view, NULL));
        assert_int_equal(rig_stats(pool).copied_bytes, copied);
        assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(source, a.n));

        /* Each writer copies the tail and the state of the row that it writes, and nothing of its other rows. */
        const uint64_t tail_bytes =
            (a.n % RIG_T != 0 ? firn_cache_block_bytes(source) : 0) + firn_cache_fixed_bytes(source);
        rig_tokens rows[5] = { a, a, a, a, a };
        extend(source, 0, &rows[0], 0, 3);
        assert_int_equal(rig_stats(pool).copied_bytes, copied + tail_bytes);
        extend(merged, 0, &rows[1], 1, RIG_T);
        assert_int_equal(rig_stats(pool).copied_bytes, copied + 2 * tail_bytes);
        extend(extracted, 0, &rows[3], 3, 1);
        if (firn_cache_trimmable_tokens(merged, 1) >= 5) {
            assert_ok(firn_cache_trim_row(merged, 1, 5, NULL));
            rows[2].n -= 5;
            extend(merged, 1, &rows[2], 2, 9);
        }
        extend(extracted, 1, &rows[4], 4, 2);
        rig_assert_row(source, &rows[0]);
        rig_assert_rows(merged, (const rig_tokens *[]){ &rows[1], &rows[2] }, 2);
        rig_assert_rows(extracted, (const rig_tokens *[]){ &rows[3], &rows[4] }, 2);
        firn_cache_destroy(source);
        firn_cache_destroy(merged);
        rig_assert_rows(extracted, (const rig_tokens *[]){ &rows[3], &rows[4] }, 2);
        firn_cache_destroy(extracted);
    }
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void holders_of_a_row_do_not_see_each_others_writes(void **state)
{
    (void)state;
    rig_for_each_case(check_independence);
}

static firn_cache *batch_of(const firn_cache_options *options, firn_pool *pool, rig_tokens *tokens, uint32_t n_rows,
                            uint32_t step)
{
    firn_cache *cache = rig_cache(options, pool);
    for (uint32_t r = 0; r < n_rows; r++) {
        tokens[r] = rig_sequence(r, r * step);
        assert_ok(firn_cache_add_row(cache, NULL));
        assert_ok(rig_feed_row(cache, r, tokens[r].id, tokens[r].n, NULL));
    }
    firn_cache_settle(cache);
    return cache;
}

static void check_filter(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens tokens[6];
    firn_cache *cache = batch_of(options, pool, tokens, 6, 33);
    const rig_tokens *all[] = { &tokens[0], &tokens[1], &tokens[2], &tokens[3], &tokens[4], &tokens[5] };

    firn_error err;
    assert_status(firn_cache_filter_rows(cache, (uint32_t[]){ 0, 6 }, 2, &err), FIRN_ERR_INVALID);
    assert_status(firn_cache_filter_rows(cache, (uint32_t[]){ 0, UINT32_MAX }, 2, &err), FIRN_ERR_INVALID);
    assert_status(firn_cache_filter_rows(cache, (uint32_t[]){ 3, 1, 3 }, 3, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "row 3 twice"));
    assert_status(firn_cache_filter_rows(cache, (uint32_t[]){ 0, 1, 2, 3, 4, 5, 0 }, 7, &err), FIRN_ERR_INVALID);
    rig_assert_rows(cache, all, 6);

    assert_ok(firn_cache_filter_rows(cache, (uint32_t[]){ 5, 0, 3 }, 3, NULL));
    rig_assert_rows(cache, (const rig_tokens *[]){ &tokens[5], &tokens[0], &tokens[3] }, 3);
    const uint64_t bytes =
        firn_cache_projected_bytes(cache, tokens[5].n) + firn_cache_projected_bytes(cache, tokens[3].n);
    assert_int_equal(rig_stats(pool).used_bytes, bytes);
    assert_int_equal(rig_stats(pool).copied_bytes, 0);
    assert_ok(firn_cache_filter_rows(cache, (uint32_t[]){ 0, 1, 2 }, 3, NULL));
    rig_assert_rows(cache, (const rig_tokens *[]){ &tokens[5], &tokens[0], &tokens[3] }, 3);

    assert_ok(firn_cache_filter_rows(cache, NULL, 0, NULL));
    rig_assert_rows(cache, NULL, 0);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    /* An emptied cache is as good as a new one. */
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(rig_feed_row(cache, 0, tokens[4].id, tokens[4].n, NULL));
    rig_assert_row(cache, &tokens[4]);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void filter_keeps_rows_in_the_given_order(void **state)
{
    (void)state;
    rig_for_each_case(check_filter);
}

static void check_adopt(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache_options bounded = *options;
    bounded.max_tokens = 2 * RIG_T;
    rig_tokens tokens[3];
    firn_cache *source = batch_of(options, pool, tokens, 3, RIG_T + 3);
    firn_cache *cache = rig_cache(&bounded, pool);
    for (uint32_t r = 0; r < 2; r++) {
        const firn_row_view view = firn_cache_view_row(source, r);
        assert_ok(firn_cache_adopt_row(cache, &view, NULL));
    }
    const rig_tokens *rows[] = { &tokens[0], &tokens[1] };
    rig_assert_rows(cache, rows, 2);

    const firn_row_view good = firn_cache_view_row(source, 1);
    firn_row_view bad = firn_cache_view_row(source, 2);
    assert_status(firn_cache_adopt_row(cache, &bad, NULL), FIRN_ERR_INVALID); /* beyond max_tokens */
    bad = good;
    bad.n_tokens = UINT32_MAX;
    assert_status(firn_cache_adopt_row(source, &bad, NULL), FIRN_ERR_INVALID);
    if (good.n_blocks > 0) {
        bad = good;
        bad.n_blocks--;
        assert_status(firn_cache_adopt_row(cache, &bad, NULL), FIRN_ERR_INVALID);
        bad = good;
        bad.n_tokens = RIG_T; /* one block too many */
        assert_status(firn_cache_adopt_row(cache, &bad, NULL), FIRN_ERR_INVALID);

        firn_block *odd[2];
        assert_ok(firn_block_alloc(pool, firn_cache_block_bytes(cache) + 1, &odd[1], NULL));
        odd[0] = good.blocks[0];
        bad = good;
        bad.blocks = odd;
        assert_status(firn_cache_adopt_row(cache, &bad, NULL), FIRN_ERR_INVALID); /* size */
        firn_block_release(odd[1]);

        firn_pool *other = rig_pool(RIG_BIG_BUDGET, NULL);
        assert_ok(firn_block_alloc(other, firn_cache_block_bytes(cache), &odd[1], NULL));
        assert_status(firn_cache_adopt_row(cache, &bad, NULL), FIRN_ERR_INVALID); /* pool */
        firn_block_release(odd[1]);
        firn_pool_destroy(other);
    }
    rig_assert_rows(cache, rows, 2);
    firn_cache_destroy(source);
    rig_assert_rows(cache, rows, 2);
    firn_cache_destroy(cache);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void an_adopted_row_is_the_row_that_was_viewed(void **state)
{
    (void)state;
    rig_for_each_case(check_adopt);
}

static void check_merge_errors(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_pool *other_pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens tokens[3];
    firn_error err;
    firn_cache *batch = batch_of(options, pool, tokens, 3, 40);
    firn_cache *serial = rig_fresh(options, pool, &tokens[2]);
    firn_cache *foreign = rig_fresh(options, other_pool, &tokens[2]);
    firn_cache *target;
    assert_ok(firn_cache_make_empty(batch, &target, NULL));

    assert_status(firn_cache_merge_rows(serial, (const firn_cache *[]){ batch }, 1, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ serial, batch }, 2, &err), FIRN_ERR_INVALID);
    assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ serial, target }, 2, &err), FIRN_ERR_INVALID);
    assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ serial, foreign }, 2, &err),
                  FIRN_ERR_SIGNATURE);
    assert_non_null(strstr(err.message, "pool"));

    /* Each difference of dtype or geometry is refused, with both sides in the message. */
    firn_cache_options different[4] = { *options, *options, *options, *options };
    different[0].dtype = options->dtype == FIRN_DTYPE_F32 ? FIRN_DTYPE_F16 : FIRN_DTYPE_F32;
    different[1].n_kv_heads++;
    different[2].head_dim++;
    different[3].value_dim++;
    for (size_t i = 0; i < 4; i++) {
        if (!rig_accepts(&different[i])) {
            continue; /* such as one element more than a multiple of a group */
        }
        firn_cache *stranger = rig_fresh(&different[i], pool, &tokens[1]);
        assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ batch, stranger }, 2, &err),
                      FIRN_ERR_SIGNATURE);
        assert_non_null(strstr(err.message, firn_cache_describe(target)));
        assert_non_null(strstr(err.message, firn_cache_describe(stranger)));
        firn_cache_destroy(stranger);
    }
    firn_cache_options bounded = *options;
    bounded.max_tokens = 79;
    firn_cache *small = rig_cache(&bounded, pool);
    assert_status(firn_cache_merge_rows(small, (const firn_cache *[]){ batch }, 1, NULL), FIRN_ERR_INVALID);
    assert_int_equal(firn_cache_batch_size(small), 0);
    firn_cache_destroy(small);

    rig_assert_rows(target, NULL, 0);
    assert_ok(firn_cache_merge_rows(target, NULL, 0, NULL));
    assert_ok(firn_cache_merge_rows(target, (const firn_cache *[]){ target }, 1, NULL)); /* no rows of its own */
    rig_assert_rows(target, NULL, 0);
    assert_ok(firn_cache_merge_rows(target, (const firn_cache *[]){ batch, serial }, 2, NULL));
    rig_assert_rows(target, (const rig_tokens *[]){ &tokens[0], &tokens[1], &tokens[2], &tokens[2] }, 4);
    firn_cache *none;
    assert_status(firn_cache_extract_row(target, 4, &none, NULL), FIRN_ERR_INVALID);
    assert_null(none);
    firn_cache_destroy(target);
    firn_cache_destroy(foreign);
    firn_cache_destroy(serial);
    firn_cache_destroy(batch);
    firn_pool_destroy(other_pool);
    firn_pool_destroy(pool);
}

static void a_wrong_merge_is_refused_and_leaves_the_target_empty(void **state)
{
    (void)state;
    rig_for_each_case(check_merge_errors);
}

static void check_rows_in_round(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens tokens[2];
    firn_cache *cache = batch_of(options, pool, tokens, 2, 40);
    firn_cache *other;
    firn_cache *extracted;
    assert_ok(firn_cache_make_empty(cache, &other, NULL));
    assert_ok(firn_cache_spec_begin(cache, NULL));
    const firn_row_view view = firn_cache_view_row(cache, 1);
    assert_status(firn_cache_add_row(cache, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_filter_rows(cache, (uint32_t[]){ 0 }, 1, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_adopt_row(cache, &view, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_extract_row(cache, 0, &extracted, NULL), FIRN_ERR_STATE);
    assert_status(firn_cache_merge_rows(other, (const firn_cache *[]){ cache }, 1, NULL), FIRN_ERR_STATE);
    assert_ok(firn_cache_spec_begin(other, NULL));
    assert_status(firn_cache_merge_rows(other, NULL, 0, NULL), FIRN_ERR_STATE);
    assert_ok(firn_cache_spec_commit(other, NULL));
    assert_ok(firn_cache_spec_commit(cache, NULL));
    rig_assert_rows(cache, (const rig_tokens *[]){ &tokens[0], &tokens[1] }, 2);
    assert_ok(firn_cache_merge_rows(other, (const firn_cache *[]){ cache }, 1, NULL));
    firn_cache_destroy(other);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void rows_neither_come_nor_go_during_a_round(void **state)
{
    (void)state;
    rig_for_each_case(check_rows_in_round);
}

static void an_unknown_layout_lists_those_that_exist(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache;
    firn_error err;
    firn_cache_options options = { .layout = "kv:unheard-of", .n_kv_heads = 1, .head_dim = 8 };
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_UNSUPPORTED);
    assert_null(cache);
    assert_non_null(strstr(err.message, "kv:unheard-of"));
    for (uint32_t l = 0; l < firni_layout_count(); l++) {
        assert_non_null(strstr(err.message, firni_layout_at(l)->family));
    }
    options.layout = NULL;
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    options.layout = "";
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    options.layout = firni_layout_at(0)->family;
    options.kernel = "abacus";
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_UNSUPPORTED);
    assert_null(cache);
    options.kernel = NULL;
    options.max_tokens = UINT32_MAX;
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_cache_has_identity_and_no_rows),
        cmocka_unit_test(rows_of_every_length_merge),
        cmocka_unit_test(holders_of_a_row_do_not_see_each_others_writes),
        cmocka_unit_test(filter_keeps_rows_in_the_given_order),
        cmocka_unit_test(an_adopted_row_is_the_row_that_was_viewed),
        cmocka_unit_test(a_wrong_merge_is_refused_and_leaves_the_target_empty),
        cmocka_unit_test(rows_neither_come_nor_go_during_a_round),
        cmocka_unit_test(an_unknown_layout_lists_those_that_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
