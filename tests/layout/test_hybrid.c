/*
 * Layers of attention and a recurrent state side by side: each part is, to the bit, what a cache of its own would be,
 * and both advance, roll back and leave together. What all layouts have in common is tested where all are.
 */
#include "layout/rig.h"

enum { HEADS = 2, DIM = 16, ROWS = 3 };

static firn_cache_options options_of(const firn_cache_options *recurrent)
{
    return (firn_cache_options){ .layout = "hybrid", .attention = "kv:plain", .n_kv_heads = HEADS, .head_dim = DIM,
                                 .recurrent = recurrent };
}

static void it_says_what_it_is_made_of(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = options_of(&rig_mamba2);
    firn_cache *cache = rig_cache(&options, pool);
    assert_string_equal(firn_cache_signature(cache), "hybrid(kv:plain,ssm:mamba2)");
    assert_string_equal(firn_cache_describe(cache),
                        "hybrid(kv:plain,ssm:mamba2) f16 heads=2 dim=16/16 block=64 + f32 heads=2/1 dim=3/5 conv=3");
    firn_cache *const *parts;
    assert_int_equal(firn_cache_composed(cache, &parts), 2);
    assert_string_equal(firn_cache_signature(parts[0]), "kv:plain");
    assert_string_equal(firn_cache_signature(parts[1]), "ssm:mamba2");
    assert_int_equal(firn_cache_block_bytes(cache), firn_cache_block_bytes(parts[0]));
    assert_int_equal(firn_cache_fixed_bytes(cache), firn_cache_fixed_bytes(parts[1]));
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    assert_int_equal(firn_cache_planes(cache, planes), 2);
    assert_int_equal(firn_cache_fixed_planes(cache, planes), 2);
    /* Of another recurrent part: other blocks. */
    const firn_cache_options other = options_of(&rig_gated_delta);
    firn_cache *target = rig_cache(&other, pool);
    firn_error err;
    const firn_cache *const sources[] = { cache };
    assert_status(firn_cache_merge_rows(target, sources, 1, &err), FIRN_ERR_SIGNATURE);
    assert_non_null(strstr(err.message, "ssm:mamba2"));
    assert_non_null(strstr(err.message, "ssm:gated-delta"));
    firn_cache_destroy(target);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* One append of packed rows beside the same tokens through a plain and a recurrent cache. */
static void check_parts(const firn_cache_options *recurrent)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = options_of(recurrent);
    firn_cache_options plain = options;
    plain.layout = "kv:plain";
    plain.attention = NULL;
    plain.recurrent = NULL;
    firn_cache *both = rig_cache(&options, pool);
    firn_cache *blocks = rig_cache(&plain, pool);
    firn_cache *states = rig_cache(recurrent, pool);
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_ok(firn_cache_add_row(both, NULL));
        assert_ok(firn_cache_add_row(blocks, NULL));
        assert_ok(firn_cache_add_row(states, NULL));
    }
    for (uint32_t step = 0; step < 4; step++) {
        const uint32_t counts[ROWS] = { step % 2, 70, 3 * step };
        uint64_t ids[1 + 70 + 9];
        const uint64_t n = rig_sum(counts, ROWS);
        for (uint64_t i = 0; i < n; i++) {
            ids[i] = 1000 * (step + 1) + i;
        }
        float *k = rig_floats(ids, n, 0, HEADS * DIM);
        float *v = rig_floats(ids, n, 1, HEADS * DIM);
        rig_recur with = rig_recur_of(recurrent, ids, n);
        rig_recur alone = rig_recur_of(recurrent, ids, n);
        const firn_append_input input = { .k = k, .v = v, .recur = &with.input };
        assert_ok(firn_cache_append(both, &input, counts, NULL, NULL));
        assert_ok(rig_feed(blocks, ids, counts, NULL, NULL));
        assert_ok(firn_cache_recur(states, &alone.input, counts, NULL, NULL));
        assert_memory_equal(with.out, alone.out, n * with.n_out * sizeof *with.out);
        size_t n_floats;
        float *attended = rig_attend(both, NULL, ids, counts, NULL, &n_floats);
        float *expected = rig_attend(blocks, NULL, ids, counts, NULL, &n_floats);
        assert_memory_equal(attended, expected, n_floats * sizeof *attended);
        free(attended);
        free(expected);
        rig_recur_deinit(&with);
        rig_recur_deinit(&alone);
        free(k);
        free(v);
        for (uint32_t r = 0; r < ROWS; r++) {
            const firn_row_view a = firn_cache_view_row(both, r);
            const firn_row_view b = firn_cache_view_row(states, r);
            assert_int_equal(a.n_tokens, firn_cache_row_tokens(blocks, r));
            assert_int_equal(a.fixed != NULL, b.fixed != NULL);
            assert_true(a.fixed == NULL || memcmp(firn_block_data(a.fixed), firn_block_data(b.fixed),
                                                  firn_cache_fixed_bytes(states)) == 0);
        }
    }
    assert_int_equal(firn_cache_projected_bytes(both, 100),
                     firn_cache_projected_bytes(blocks, 100) + firn_cache_projected_bytes(states, 100));
    firn_cache_destroy(both);
    firn_cache_destroy(blocks);
    firn_cache_destroy(states);
    firn_pool_destroy(pool);
}

static void each_part_is_what_it_would_be_alone(void **state)
{
    (void)state;
    check_parts(&rig_mamba2);
    check_parts(&rig_gated_delta);
}

static void a_row_is_cut_by_nobody_and_published_at_its_own_count(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = options_of(&rig_mamba2);
    const rig_tokens tokens = rig_sequence(0, 150);
    firn_cache *cache = rig_fresh(&options, pool, &tokens);
    assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 0);
    assert_false(firn_cache_is_trimmable(cache));
    assert_status(firn_cache_trim_row(cache, 0, 1, NULL), FIRN_ERR_TRIM);
    assert_status(firn_cache_trim(cache, 1, true, NULL), FIRN_ERR_TRIM);
    for (uint32_t n = 0; n <= 151; n++) {
        assert_int_equal(firn_cache_can_publish_row(cache, 0, n), n == 150);
    }
    /* In a round a state covers tokens that may be taken back. */
    assert_ok(firn_cache_spec_begin(cache, NULL));
    const rig_tokens more = rig_sequence(1, 5);
    assert_ok(rig_feed_row(cache, 0, more.id, 5, NULL));
    assert_false(firn_cache_can_publish_row(cache, 0, 155));
    assert_ok(firn_cache_spec_rollback(cache, (uint32_t[]){ 3 }, NULL));
    rig_tokens kept = tokens;
    memcpy(kept.id + 150, more.id, 3 * sizeof kept.id[0]);
    kept.n = 153;
    rig_assert_row(cache, &kept);
    assert_true(firn_cache_can_publish_row(cache, 0, 153));
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* Blocks without the state at their count are no row, nor is a state without its blocks. */
static void half_a_row_is_not_adopted(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = options_of(&rig_gated_delta);
    const rig_tokens tokens = rig_sequence(0, 100);
    firn_cache *source = rig_fresh(&options, pool, &tokens);
    firn_cache *target = rig_cache(&options, pool);
    firn_row_view half = firn_cache_view_row(source, 0);
    half.fixed = NULL;
    firn_error err;
    assert_status(firn_cache_adopt_row(target, &half, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "ssm:gated-delta: a row of 100 tokens needs its fixed-size state"));
    half = firn_cache_view_row(source, 0);
    half.n_blocks = 1;
    assert_status(firn_cache_adopt_row(target, &half, &err), FIRN_ERR_INVALID);
    rig_assert_rows(target, NULL, 0);
    firn_cache_destroy(source);
    firn_cache_destroy(target);
    firn_pool_destroy(pool);
}

/* The recurrent part fails last: the attention part must take back what it has reserved. */
static void a_state_that_finds_no_memory_keeps_the_blocks_back(void **state)
{
    (void)state;
    const firn_cache_options options = options_of(&rig_mamba2);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(&options, pool);
    const uint64_t block_bytes = firn_cache_block_bytes(cache);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    pool = rig_pool(block_bytes, NULL);
    cache = rig_cache(&options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_status(firn_cache_reserve(cache, (uint32_t[]){ 5 }, NULL), FIRN_ERR_NO_MEMORY);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_cache_check(cache);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void refuse(firn_cache_options options, const char *message)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache;
    firn_error err;
    assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    assert_null(cache);
    if (strstr(err.message, message) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, message);
    }
    firn_pool_destroy(pool);
}

static void parts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    firn_cache_options options = options_of(NULL);
    refuse(options, "hybrid needs the layouts of");
    options = options_of(&rig_mamba2);
    options.attention = NULL;
    refuse(options, "hybrid needs the layouts of");
    static const char *const no_attention[] = { "ssm:mamba2", "hybrid", "kv:delayed-quant", "kv:unheard-of" };
    for (size_t i = 0; i < sizeof no_attention / sizeof no_attention[0]; i++) {
        options = options_of(&rig_mamba2);
        options.attention = no_attention[i];
        refuse(options, no_attention[i]);
    }
    firn_cache_options plain = { .layout = "kv:plain", .n_kv_heads = HEADS, .head_dim = DIM };
    options = options_of(&plain);
    refuse(options, "hybrid cannot have \"kv:plain\" as its recurrent part");
    firn_cache_options bad = rig_mamba2;
    bad.conv_width = 0;
    options = options_of(&bad);
    refuse(options, "ssm:mamba2 takes a convolution");
    plain.recurrent = &rig_mamba2;
    refuse(plain, "kv:plain is not made of an attention and a recurrent part");
}

static void an_append_without_its_other_half_is_refused(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = options_of(&rig_mamba2);
    const rig_tokens tokens = rig_sequence(0, 70);
    firn_cache *cache = rig_fresh(&options, pool, &tokens);
    const uint64_t id = 5;
    float *k = rig_floats(&id, 1, 0, HEADS * DIM);
    rig_recur recur = rig_recur_of(&rig_mamba2, &id, 1);
    firn_append_input input = { .k = k, .v = k };
    firn_error err;
    assert_status(firn_cache_append(cache, &input, (uint32_t[]){ 1 }, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "needs the inputs of its recurrent state"));
    assert_status(firn_cache_recur(cache, &recur.input, (uint32_t[]){ 1 }, NULL, &err), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "as they are appended"));
    rig_assert_row(cache, &tokens);
    const firn_cache_options plain = { .layout = "kv:plain", .n_kv_heads = HEADS, .head_dim = DIM };
    firn_cache *other = rig_cache(&plain, pool);
    input.recur = &recur.input;
    assert_status(firn_cache_append(other, &input, NULL, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "kv:plain has no recurrent state"));
    rig_recur_deinit(&recur);
    free(k);
    firn_cache_destroy(other);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_it_is_made_of),
        cmocka_unit_test(each_part_is_what_it_would_be_alone),
        cmocka_unit_test(a_row_is_cut_by_nobody_and_published_at_its_own_count),
        cmocka_unit_test(half_a_row_is_not_adopted),
        cmocka_unit_test(a_state_that_finds_no_memory_keeps_the_blocks_back),
        cmocka_unit_test(parts_that_do_not_fit_are_refused),
        cmocka_unit_test(an_append_without_its_other_half_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
