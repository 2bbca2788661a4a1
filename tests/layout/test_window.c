/*
 * kv:window beyond the conformance suite: rows around and beyond the end of their window in every operation that moves
 * or cuts them, what may be cut and published, donors, rounds, and memory.
 */
#include "layout/rig.h"

static const uint32_t windows[] = { 1, 20, RIG_T, RIG_T + 37, 3 * RIG_T };
#define N_WINDOWS (sizeof windows / sizeof windows[0])

static firn_cache_options options_of(uint32_t window)
{
    return (firn_cache_options){
        .layout = "kv:window", .dtype = FIRN_DTYPE_F16, .n_kv_heads = 2, .head_dim = 8, .value_dim = 8,
        .window = window,
    };
}

/* The counts at which a window fills, slides, and has been exchanged for other tokens twice. */
static void edges_of(uint32_t window, uint32_t edges[4])
{
    edges[0] = window - 1;
    edges[1] = window;
    edges[2] = window + 1;
    edges[3] = 2 * window + 3;
}

/* A batch of the four edges, fed in steps of at most n_step tokens. */
static firn_cache *batch_at_edges(const firn_cache_options *options, firn_pool *pool, uint32_t n_step,
                                  rig_tokens rows[4])
{
    uint32_t edges[4];
    edges_of(options->window, edges);
    firn_cache *cache = rig_cache(options, pool);
    for (uint32_t r = 0; r < 4; r++) {
        rows[r] = rig_sequence(r, edges[r]);
        assert_ok(firn_cache_add_row(cache, NULL));
        for (uint32_t done = 0; done < edges[r];) {
            const uint32_t n = edges[r] - done < n_step ? edges[r] - done : n_step;
            assert_ok(rig_feed_row(cache, r, rows[r].id + done, n, NULL));
            firn_cache_settle(cache);
            done += n;
        }
    }
    return cache;
}

/* Feeds n more tokens to a row and to its model. */
static void extend(firn_cache *cache, uint32_t row, rig_tokens *tokens, uint32_t who, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens->id[tokens->n + i] = ((uint64_t)(who + 50) << 32) + tokens->n + i;
    }
    assert_ok(rig_feed_row(cache, row, tokens->id + tokens->n, n, NULL));
    firn_cache_settle(cache);
    tokens->n += n;
}

static void for_each_window(void (*test)(const firn_cache_options *options, firn_pool *pool))
{
    for (size_t w = 0; w < N_WINDOWS; w++) {
        const firn_cache_options options = options_of(windows[w]);
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        test(&options, pool);
        assert_int_equal(rig_stats(pool).used_bytes, 0);
        firn_pool_destroy(pool);
    }
}

/* ---- rows at the edges ------------------------------------------------------------------------------------------- */

/* Every holder goes on by itself, and none notices the others. */
static void check_moves(const firn_cache_options *options, firn_pool *pool)
{
    static const uint32_t steps[] = { 1, 29, RIG_TOKENS_MAX };
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        const uint64_t copied = rig_stats(pool).copied_bytes;
        rig_tokens rows[4];
        const rig_tokens *const all[] = { &rows[0], &rows[1], &rows[2], &rows[3], &rows[3] };
        firn_cache *batch = batch_at_edges(options, pool, steps[s], rows);
        rig_assert_rows(batch, all, 4);
        firn_cache *serial[4];
        firn_cache *merged;
        firn_cache *adopted;
        assert_ok(firn_cache_make_empty(batch, &merged, NULL));
        assert_ok(firn_cache_make_empty(batch, &adopted, NULL));
        for (uint32_t r = 0; r < 4; r++) {
            const firn_row_view view = firn_cache_view_row(batch, r);
            assert_int_equal(view.first_block, firn_cache_first_block_needed(batch, rows[r].n));
            assert_ok(firn_cache_extract_row(batch, r, &serial[r], NULL));
            assert_ok(firn_cache_adopt_row(adopted, &view, NULL));
        }
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ batch, serial[3] }, 2, NULL));
        rig_assert_rows(merged, all, 5);
        assert_ok(firn_cache_filter_rows(batch, (uint32_t[]){ 3, 0, 2 }, 3, NULL));
        rig_assert_rows(batch, (const rig_tokens *[]){ &rows[3], &rows[0], &rows[2] }, 3);
        assert_int_equal(rig_stats(pool).copied_bytes, copied);
        for (uint32_t r = 0; r < 4; r++) {
            rig_tokens here = rows[r];
            rig_tokens there = rows[r];
            extend(serial[r], 0, &here, 0, RIG_T + 5);
            rig_assert_row(serial[r], &here);
            extend(adopted, r, &there, 1, 1);
            rig_assert_rows(merged, all, 5);
            firn_cache_destroy(serial[r]);
        }
        firn_cache_destroy(adopted);
        firn_cache_destroy(batch);
        rig_assert_rows(merged, all, 5);
        firn_cache_destroy(merged);
    }
}

static void rows_around_their_window_merge_extract_adopt_and_go_on(void **state)
{
    (void)state;
    for_each_window(check_moves);
}

/* The definition: the shorter row's window begins in a block that the row still holds. */
static bool can_be(const firn_cache *cache, uint32_t first_block, uint32_t n_tokens)
{
    const uint32_t window = firn_cache_get_options(cache)->window;
    return first_block == 0 || (n_tokens >= window && (n_tokens - window) / RIG_T >= first_block);
}

static void check_cuts(const firn_cache_options *options, firn_pool *pool)
{
    rig_tokens rows[4];
    firn_cache *batch = batch_at_edges(options, pool, RIG_TOKENS_MAX, rows);
    for (uint32_t r = 0; r < 4; r++) {
        const firn_row_view view = firn_cache_view_row(batch, r);
        uint32_t n_max = 0;
        while (n_max < rows[r].n && can_be(batch, view.first_block, rows[r].n - n_max - 1)) {
            n_max++;
        }
        assert_int_equal(firn_cache_trimmable_tokens(batch, r), n_max);
        const uint32_t drops[] = { 0, 1, n_max / 2, n_max, n_max + 1 };
        for (size_t i = 0; i < sizeof drops / sizeof drops[0]; i++) {
            if (drops[i] > rows[r].n) {
                continue;
            }
            const uint32_t n_left = rows[r].n - drops[i];
            const bool is_possible = drops[i] <= n_max;
            assert_int_equal(firn_cache_can_publish_row(batch, r, n_left), is_possible);
            /* What is published is taken up by somebody else as a shorter row over the same blocks. */
            firn_cache *other;
            rig_tokens model = rows[r];
            model.n = n_left;
            const firn_row_view cut = {
                .blocks = view.blocks, .first_block = view.first_block, .n_tokens = n_left,
                .n_blocks = firni_blocks_of(n_left) > view.first_block ? firni_blocks_of(n_left) - view.first_block : 0,
            };
            assert_ok(firn_cache_make_empty(batch, &other, NULL));
            assert_status(firn_cache_adopt_row(other, &cut, NULL), is_possible ? FIRN_OK : FIRN_ERR_INVALID);
            if (is_possible) {
                extend(other, 0, &model, 3, 3);
                rig_assert_row(other, &model);
            }
            firn_cache_destroy(other);
            firn_cache *serial;
            model = rows[r];
            assert_ok(firn_cache_extract_row(batch, r, &serial, NULL));
            assert_status(firn_cache_trim_row(serial, 0, drops[i], NULL), is_possible ? FIRN_OK : FIRN_ERR_TRIM);
            model.n = is_possible ? n_left : rows[r].n;
            rig_assert_row(serial, &model);
            extend(serial, 0, &model, 4, RIG_T);
            rig_assert_row(serial, &model);
            firn_cache_destroy(serial);
        }
    }
    rig_assert_rows(batch, (const rig_tokens *[]){ &rows[0], &rows[1], &rows[2], &rows[3] }, 4);
    firn_cache_destroy(batch);
}

static void rows_are_cut_and_published_as_far_as_their_blocks_reach(void **state)
{
    (void)state;
    for_each_window(check_cuts);
}

static void check_bad_views(const firn_cache_options *options, firn_pool *pool)
{
    rig_tokens rows[4];
    firn_error err;
    firn_cache *cache = batch_at_edges(options, pool, RIG_TOKENS_MAX, rows);
    const firn_row_view good = firn_cache_view_row(cache, 3);
    firn_row_view bad = good;
    bad.first_block++;
    bad.n_blocks--;
    bad.blocks++;
    assert_status(firn_cache_adopt_row(cache, &bad, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "needs its blocks from"));
    bad = good;
    bad.n_blocks--;
    assert_status(firn_cache_adopt_row(cache, &bad, &err), FIRN_ERR_INVALID);
    bad = good;
    bad.first_block = UINT32_MAX;
    assert_status(firn_cache_adopt_row(cache, &bad, &err), FIRN_ERR_INVALID);
    assert_int_equal(firn_cache_batch_size(cache), 4);
    firn_cache_destroy(cache);
}

static void views_that_lack_a_part_of_the_window_are_refused(void **state)
{
    (void)state;
    for_each_window(check_bad_views);
}

static void windows_out_of_range_are_refused(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache;
    firn_error err;
    firn_cache_options options = options_of(0);
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "not 0"));
    options.window = UINT32_MAX;
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    options.window = 64;
    options.layout = "kv:plain";
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "64"));
    assert_null(cache);
    /* Windows of different sizes are different state. */
    const firn_cache_options narrow = options_of(20);
    const firn_cache_options wide = options_of(21);
    const rig_tokens tokens = rig_sequence(0, 10);
    firn_cache *target = rig_cache(&narrow, pool);
    firn_cache *stranger = rig_fresh(&wide, pool, &tokens);
    assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ stranger }, 1, &err), FIRN_ERR_SIGNATURE);
    assert_non_null(strstr(err.message, "window=21"));
    firn_cache_destroy(target);
    firn_cache_destroy(stranger);
    firn_pool_destroy(pool);
}

/* ---- what a query sees ------------------------------------------------------------------------------------------- */

/* Attention of the last token, after one other token has been put at `place`. */
static float *attend_with_stranger(const firn_cache_options *options, firn_pool *pool, uint32_t n, uint32_t place,
                                   size_t *n_floats)
{
    rig_tokens tokens = rig_sequence(0, n);
    if (place < n) {
        tokens.id[place] = UINT64_C(99) << 32;
    }
    firn_cache *cache = rig_fed(options, pool, &tokens);
    const uint32_t one = 1;
    float *out = rig_attend(cache, NULL, &tokens.id[n - 1], &one, NULL, n_floats);
    firn_cache_settle(cache);
    float *settled = rig_attend(cache, NULL, &tokens.id[n - 1], &one, NULL, n_floats);
    assert_memory_equal(out, settled, *n_floats * sizeof *out);
    free(settled);
    firn_cache_destroy(cache);
    return out;
}

static void check_sight(const firn_cache_options *options, firn_pool *pool)
{
    const uint32_t n = 2 * options->window + 9;
    const uint32_t oldest = n - options->window;
    size_t n_floats;
    float *expected = attend_with_stranger(options, pool, n, UINT32_MAX, &n_floats);
    float *unseen = attend_with_stranger(options, pool, n, oldest - 1, &n_floats);
    float *seen = attend_with_stranger(options, pool, n, oldest, &n_floats);
    assert_memory_equal(unseen, expected, n_floats * sizeof *expected);
    assert_memory_not_equal(seen, expected, n_floats * sizeof *expected);
    free(unseen);
    free(seen);
    free(expected);
}

static void a_query_sees_its_window_and_nothing_before_it(void **state)
{
    (void)state;
    for_each_window(check_sight);
}

static void a_window_that_is_not_full_gives_the_bits_of_plain_state(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, 3 * RIG_T);
    const firn_cache_options window = options_of(3 * RIG_T);
    firn_cache_options plain = window;
    plain.layout = "kv:plain";
    plain.window = 0;
    firn_cache *a = rig_fed(&window, pool, &tokens);
    firn_cache *b = rig_fed(&plain, pool, &tokens);
    size_t n_floats;
    float *x = rig_attend(a, NULL, tokens.id, &tokens.n, NULL, &n_floats);
    float *y = rig_attend(b, NULL, tokens.id, &tokens.n, NULL, &n_floats);
    assert_memory_equal(x, y, n_floats * sizeof *x);
    free(x);
    free(y);
    firn_cache_destroy(a);
    firn_cache_destroy(b);
    firn_pool_destroy(pool);
}

static void check_late_queries(const firn_cache_options *options, firn_pool *pool)
{
    rig_tokens tokens = rig_sequence(0, options->window + 2 * RIG_T);
    firn_cache *cache = rig_fresh(options, pool, &tokens);
    const uint32_t n_possible = rig_queries(cache, 0, tokens.n);
    const uint32_t n_heads = options->n_kv_heads;
    float *q = rig_floats(tokens.id, tokens.n, 2, (size_t)n_heads * options->head_dim);
    float *out = calloc((size_t)tokens.n * n_heads * options->value_dim, sizeof *out);
    const firn_attend_input input = { .q = q, .out = out, .n_heads = n_heads, .scale = 1.0f };
    firn_error err;
    assert_ok(firn_cache_attend(cache, &input, &n_possible, NULL, NULL));
    const uint32_t too_many = n_possible + 1;
    assert_status(firn_cache_attend(cache, &input, &too_many, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "from block"));
    free(q);
    free(out);
    firn_cache_destroy(cache);
}

static void a_query_whose_window_is_gone_is_refused(void **state)
{
    (void)state;
    for_each_window(check_late_queries);
}

static void check_dense(const firn_cache_options *options, firn_pool *pool)
{
    firn_cache_options exact = *options;
    exact.dtype = FIRN_DTYPE_F32;
    rig_tokens rows[4];
    firn_cache *batch = batch_at_edges(&exact, pool, 17, rows);
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(batch, tensors, &n_tensors, NULL));
    const uint32_t n_floats = exact.n_kv_heads * exact.head_dim;
    float *fed = calloc(n_floats, sizeof *fed);
    for (uint32_t what = 0; what < 2; what++) {
        assert_int_equal(tensors[what].shape[2], exact.window);
        for (uint32_t r = 0; r < 4; r++) {
            for (uint32_t i = 0; i < exact.window; i++) {
                const uint32_t n_pad = rows[r].n < exact.window ? exact.window - rows[r].n : 0;
                if (i < n_pad) {
                    memset(fed, 0, n_floats * sizeof *fed);
                } else {
                    rig_fill(fed, rows[r].id[rows[r].n - exact.window + i], what, n_floats);
                }
                for (uint32_t h = 0; h < exact.n_kv_heads; h++) {
                    const float *at = (const float *)tensors[what].data +
                                      ((r * exact.n_kv_heads + h) * (size_t)exact.window + i) * exact.head_dim;
                    assert_memory_equal(at, fed + h * exact.head_dim, exact.head_dim * sizeof *fed);
                }
            }
        }
        firn_tensor_deinit(&tensors[what]);
    }
    free(fed);
    firn_cache_destroy(batch);
}

static void the_dense_view_shows_the_tokens_of_the_window(void **state)
{
    (void)state;
    for_each_window(check_dense);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_around_their_window_merge_extract_adopt_and_go_on),
        cmocka_unit_test(rows_are_cut_and_published_as_far_as_their_blocks_reach),
        cmocka_unit_test(views_that_lack_a_part_of_the_window_are_refused),
        cmocka_unit_test(windows_out_of_range_are_refused),
        cmocka_unit_test(a_query_sees_its_window_and_nothing_before_it),
        cmocka_unit_test(a_window_that_is_not_full_gives_the_bits_of_plain_state),
        cmocka_unit_test(a_query_whose_window_is_gone_is_refused),
        cmocka_unit_test(the_dense_view_shows_the_tokens_of_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
