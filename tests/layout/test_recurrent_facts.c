/*
 * Recurrent layouts, what they say of themselves: identity, bytes, planes, what can be trimmed and published, and what
 * they refuse.
 */
#include "layout/recurrent_rig.h"

static void check_bytes(const firn_cache_options *options)
{
    static const uint32_t lengths[] = { 0, 1, RIG_T - 1, RIG_T, RIG_T + 1, 3 * RIG_T };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(options, pool);
    const size_t fixed_bytes = firn_cache_fixed_bytes(cache);
    assert_true(fixed_bytes > 0);
    assert_int_equal(firn_cache_block_bytes(cache), 0);
    assert_int_equal(firn_cache_bytes_per_token(cache), 0);
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const rig_tokens tokens = rig_sequence(i, lengths[i]);
        assert_ok(firn_cache_add_row(cache, NULL));
        assert_ok(recurrent_feed_row(cache, i, tokens.id, tokens.n, NULL));
        assert_int_equal(firn_cache_projected_bytes(cache, lengths[i]), lengths[i] > 0 ? fixed_bytes : 0);
        n_bytes += firn_cache_projected_bytes(cache, lengths[i]);
        assert_int_equal(rig_stats(pool).used_bytes, n_bytes);
        /* While a shared state is copied there are two of them, and never more. */
        assert_int_equal(firn_cache_working_bytes(cache, lengths[i], 8), lengths[i] > 0 ? 2 * fixed_bytes : 0);
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void projected_bytes_are_what_is_taken(void **state)
{
    (void)state;
    recurrent_for_each_case(check_bytes);
}

static void check_count(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (uint32_t n = 3 * RIG_T - 1; n <= 3 * RIG_T + 1; n++) {
        const rig_tokens tokens = rig_sequence(0, n);
        firn_cache *cache = recurrent_fresh(options, pool, &tokens);
        firn_error err;
        assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 0);
        assert_false(firn_cache_is_trimmable(cache));
        assert_status(firn_cache_trim(cache, 1, false, &err), FIRN_ERR_TRIM);
        assert_non_null(strstr(err.message, options->layout));
        assert_status(firn_cache_trim(cache, 1, true, NULL), FIRN_ERR_TRIM);
        assert_ok(firn_cache_trim(cache, 0, false, NULL));
        for (uint32_t m = n - RIG_T - 1; m <= n + 2; m++) {
            assert_int_equal(firn_cache_can_publish_row(cache, 0, m), m == n);
        }
        assert_false(firn_cache_can_publish_row(cache, 0, 0));
        /* Not with tokens that may be taken back. */
        assert_ok(firn_cache_spec_begin(cache, NULL));
        assert_ok(recurrent_feed_row(cache, 0, tokens.id, 1, NULL));
        assert_false(firn_cache_can_publish_row(cache, 0, n + 1));
        assert_false(firn_cache_can_publish_row(cache, 0, n));
        assert_ok(firn_cache_spec_rollback(cache, (const uint32_t[]){ 0 }, NULL));
        assert_true(firn_cache_can_publish_row(cache, 0, n));
        recurrent_assert_row(cache, &tokens);
        firn_cache_destroy(cache);
    }
    firn_pool_destroy(pool);
}

static void a_state_stands_for_its_own_count_alone(void **state)
{
    (void)state;
    recurrent_for_each_case(check_count);
}

static void check_planes(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(options, pool);
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    assert_int_equal(firn_cache_planes(cache, planes), 0);
    const uint32_t n_planes = firn_cache_fixed_planes(cache, planes);
    assert_int_equal(n_planes, options->conv_width > 1 ? 2 : 1);
    assert_string_equal(planes[n_planes - 1].name, "state");
    uint64_t end = 0;
    for (uint32_t i = 0; i < n_planes; i++) {
        uint64_t n_bytes = firn_dtype_bytes(planes[i].dtype);
        for (uint32_t d = 0; d < planes[i].n_dims; d++) {
            n_bytes *= planes[i].shape[d];
        }
        assert_int_equal(n_bytes, planes[i].n_bytes);
        assert_true(planes[i].offset_bytes >= end);
        end = (uint64_t)planes[i].offset_bytes + n_bytes;
    }
    assert_true(end <= firn_cache_fixed_bytes(cache) && end + FIRN_BLOCK_ALIGN > firn_cache_fixed_bytes(cache));
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void planes_cover_the_state(void **state)
{
    (void)state;
    recurrent_for_each_case(check_planes);
}

static void each_kind_of_layout_refuses_the_other_kind_of_call(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(0, 2);
    const uint32_t one = 1;
    firn_error err;
    firn_cache *recurrent = recurrent_fresh(&recurrent_cases[0], pool, &tokens);
    assert_status(firn_cache_append(recurrent, &(const firn_append_input){ .k = NULL }, &one, NULL, &err),
                  FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "ssm:gated-delta"));
    assert_status(firn_cache_attend(recurrent, &(const firn_attend_input){ .n_heads = 2 }, &one, NULL, &err),
                  FIRN_ERR_UNSUPPORTED);
    recurrent_assert_row(recurrent, &tokens);
    const firn_cache_options plain = rig_options(0, FIRN_DTYPE_F16, rig_geometries[0]);
    firn_cache *attended = rig_fresh(&plain, pool, &tokens);
    assert_status(firn_cache_recur(attended, &(const firn_recur_input){ .x = NULL }, &one, NULL, &err),
                  FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "kv:plain"));
    rig_assert_row(attended, &tokens);
    firn_cache_destroy(attended);
    firn_cache_destroy(recurrent);
    firn_pool_destroy(pool);
}

static void options_out_of_range_are_named(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (size_t c = 0; c < sizeof recurrent_cases / sizeof recurrent_cases[0]; c++) {
        firn_cache_options bad[8];
        for (size_t i = 0; i < 8; i++) {
            bad[i] = recurrent_cases[c];
        }
        bad[0].window = 64;
        bad[1].n_kv_heads = 0;
        bad[2].n_state_heads = 0;
        bad[3].n_kv_heads = recurrent_cases[c].n_state_heads + 1;
        bad[4].head_dim = 1025;
        bad[5].value_dim = 1025;
        bad[6].conv_width = 0;
        bad[7].n_state_heads = bad[7].n_kv_heads * 512; /* more than a block should have */
        bad[7].head_dim = bad[7].value_dim = 1024;
        for (size_t i = 0; i < 8; i++) {
            firn_error err = { .message = "" };
            firn_cache *cache;
            assert_status(firn_cache_create(&bad[i], pool, NULL, &cache, &err), FIRN_ERR_INVALID);
            assert_null(cache);
            assert_non_null(strstr(err.message, bad[i].layout));
        }
    }
    firn_pool_destroy(pool);
}

/* What shapes the state is in the description, which decides who may exchange it. */
static void other_geometries_do_not_mix(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *base = rig_cache(&recurrent_cases[0], pool);
    assert_string_equal(firn_cache_signature(base), "ssm:gated-delta");
    for (uint32_t i = 0; i < 6; i++) {
        firn_cache_options other = recurrent_cases[0];
        other.n_kv_heads = i == 0 ? 4 : other.n_kv_heads;
        other.head_dim = i == 1 ? 9 : other.head_dim;
        other.value_dim = i == 2 ? 11 : other.value_dim;
        other.conv_width = i == 3 ? 3 : other.conv_width;
        other.keys_cycle = i == 4 ? false : other.keys_cycle;
        other.layout = i == 5 ? "ssm:mamba2" : other.layout;
        firn_cache *cache = rig_cache(&other, pool);
        firn_cache *target = rig_cache(&recurrent_cases[0], pool);
        assert_string_not_equal(firn_cache_describe(cache), firn_cache_describe(base));
        assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ cache }, 1, NULL), FIRN_ERR_SIGNATURE);
        firn_cache_destroy(target);
        firn_cache_destroy(cache);
    }
    /* What is not part of the state is not part of the description. */
    firn_cache_options halves = recurrent_cases[0];
    halves.dtype = FIRN_DTYPE_F16;
    firn_cache *cache = rig_cache(&halves, pool);
    assert_string_equal(firn_cache_describe(cache), firn_cache_describe(base));
    firn_cache_destroy(cache);
    firn_cache_destroy(base);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(projected_bytes_are_what_is_taken),
        cmocka_unit_test(a_state_stands_for_its_own_count_alone),
        cmocka_unit_test(planes_cover_the_state),
        cmocka_unit_test(each_kind_of_layout_refuses_the_other_kind_of_call),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(other_geometries_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
