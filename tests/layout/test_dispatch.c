/*
 * The dispatcher and the optional members of the table: a member that is NULL has its stated default, one that is there
 * is asked. The probe is kv:plain with some members exchanged, not registered anywhere.
 */
#include "layout/rig.h"

#include <unistd.h>

static const firn_cache_options probe_options = { .n_kv_heads = 1, .head_dim = 8, .dtype = FIRN_DTYPE_F32 };

static firn_cache *probe(const firni_layout *layout, firn_pool *pool, uint32_t n_tokens)
{
    firn_cache *cache;
    assert_ok(firni_cache_create_with(layout, &probe_options, pool, NULL, &cache, NULL));
    const rig_tokens tokens = rig_sequence(0, n_tokens);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(rig_feed(cache, tokens.id, &tokens.n, NULL, NULL));
    return cache;
}

static void missing_members_have_their_defaults(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firni_layout layout = firni_layout_plain;
    layout.planes = NULL;
    firn_cache *cache = probe(&layout, pool, 100);
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    firn_cache *const *parts;
    assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 100);
    assert_true(firn_cache_is_trimmable(cache));
    assert_int_equal(firn_cache_minimum_reusable_offset(cache, 0), 0);
    assert_int_equal(firn_cache_max_append_tokens(cache), FIRN_TOKENS_UNLIMITED);
    assert_true(firn_cache_can_publish_row(cache, 0, 0));
    assert_true(firn_cache_can_publish_row(cache, 0, 100));
    assert_false(firn_cache_can_publish_row(cache, 0, 101));
    assert_int_equal(firn_cache_planes(cache, planes), 0);
    assert_int_equal(firn_cache_composed(cache, &parts), 0);
    assert_null(parts);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* ---- a layout that forgets: the last 10 tokens can be dropped, 20 by an undo ------------------------------------- */

static uint32_t last_10(const firn_cache *cache, uint32_t row)
{
    const uint32_t n_tokens = firni_rows_tokens(cache, row);
    return n_tokens < 10 ? n_tokens : 10;
}

static uint32_t last_20(const firn_cache *cache, uint32_t row)
{
    const uint32_t n_tokens = firni_rows_tokens(cache, row);
    return n_tokens < 20 ? n_tokens : 20;
}

static uint32_t constant_7(const firn_cache *cache)
{
    (void)cache;
    return 7;
}

static uint32_t constant_5(const firn_cache *cache, uint32_t row)
{
    (void)cache;
    (void)row;
    return 5;
}

static bool only_own_count(const firn_cache *cache, uint32_t row, uint32_t tokens)
{
    return tokens == firni_rows_tokens(cache, row);
}

static uint32_t itself(const firn_cache *cache, firn_cache *const **parts)
{
    *parts = (firn_cache *const *)(uintptr_t)cache;
    return 1;
}

static void present_members_are_asked(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firni_layout layout = firni_layout_plain;
    layout.family = "probe:forgetful";
    layout.trimmable_tokens = last_10;
    layout.minimum_reusable_offset = constant_5;
    layout.max_append_tokens = constant_7;
    layout.can_publish_row = only_own_count;
    layout.composed = itself;
    firn_cache *cache = probe(&layout, pool, 100);
    firn_cache *const *parts;
    assert_string_equal(firn_cache_signature(cache), "probe:forgetful");
    assert_string_equal(firn_cache_get_options(cache)->layout, "probe:forgetful");
    assert_int_equal(firn_cache_trimmable_tokens(cache, 0), 10);
    assert_false(firn_cache_is_trimmable(cache));
    assert_int_equal(firn_cache_minimum_reusable_offset(cache, 0), 5);
    assert_int_equal(firn_cache_max_append_tokens(cache), 7);
    assert_false(firn_cache_can_publish_row(cache, 0, 99));
    assert_true(firn_cache_can_publish_row(cache, 0, 100));
    assert_int_equal(firn_cache_composed(cache, &parts), 1);

    /* Without undoable_tokens a bypass gains nothing. */
    assert_status(firn_cache_trim(cache, 11, false, NULL), FIRN_ERR_TRIM);
    assert_status(firn_cache_trim(cache, 11, true, NULL), FIRN_ERR_TRIM);
    assert_status(firn_cache_trim_row(cache, 0, 11, NULL), FIRN_ERR_TRIM);
    firn_cache_destroy(cache);

    layout.undoable_tokens = last_20;
    cache = probe(&layout, pool, 100);
    assert_status(firn_cache_trim(cache, 11, false, NULL), FIRN_ERR_TRIM);
    assert_status(firn_cache_trim(cache, 21, true, NULL), FIRN_ERR_TRIM);
    assert_ok(firn_cache_trim(cache, 11, true, NULL));
    assert_int_equal(firn_cache_row_tokens(cache, 0), 89);
    assert_ok(firn_cache_trim_row(cache, 0, 10, NULL));
    assert_int_equal(firn_cache_row_tokens(cache, 0), 79);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* ---- prefill brackets and rounds of a layout with work to do ----------------------------------------------------- */

/* Recorded where the callbacks can reach it: behind the instance. */
typedef struct recorder {
    firni_block_cache cache;
    firni_plain_geometry geometry; /* kv:plain's own member, which its functions expect here */
    char calls[64];
} recorder;

static void record(const firn_cache *cache, const char *call)
{
    recorder *r = (recorder *)(uintptr_t)cache;
    strcat(r->calls, call);
}

static void on_prefill_begin(firn_cache *cache)
{
    record(cache, "b");
}

static firn_status on_prefill_commit(firn_cache *cache, const uint32_t *rows, uint32_t n_rows, firn_error *err)
{
    (void)rows;
    (void)err;
    record(cache, n_rows == 1 ? "c" : "x");
    return FIRN_OK;
}

static void on_prefill_end(firn_cache *cache)
{
    record(cache, "e");
}

static firn_status on_spec_begin(firn_cache *cache, firn_error *err)
{
    (void)err;
    record(cache, "B");
    return FIRN_OK;
}

static firn_status refuse_spec_begin(firn_cache *cache, firn_error *err)
{
    (void)cache;
    (void)err;
    return FIRN_ERR_NO_MEMORY;
}

static void on_spec_commit(firn_cache *cache)
{
    record(cache, "C");
}

static void on_spec_rollback(firn_cache *cache, const uint32_t *drop)
{
    record(cache, "R");
    for (uint32_t r = 0; r < firni_rows_batch_size(cache); r++) {
        firni_rows_trim(cache, r, drop[r]);
    }
}

static firn_status on_share_row(firn_cache *cache, const firn_cache *source, uint32_t row, firn_error *err)
{
    record(cache, "s");
    const firn_row_view view = firni_rows_view(source, row);
    return firni_rows_adopt(cache, &view, err);
}

static void hooks_are_called_in_order_and_a_refused_begin_opens_no_round(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firni_layout layout = firni_layout_plain;
    layout.instance_bytes = sizeof(recorder);
    layout.prefill_begin = on_prefill_begin;
    layout.prefill_commit = on_prefill_commit;
    layout.prefill_end = on_prefill_end;
    layout.spec_begin = on_spec_begin;
    layout.spec_commit = on_spec_commit;
    layout.spec_rollback = on_spec_rollback;
    layout.share_row = on_share_row;
    firn_cache *cache = probe(&layout, pool, 10);
    const rig_tokens more = rig_sequence(1, 4);
    const uint32_t row = 0;
    assert_ok(firn_cache_prefill_begin(cache, NULL));
    assert_ok(firn_cache_prefill_commit(cache, &row, 1, NULL));
    assert_ok(firn_cache_prefill_end(cache, NULL));
    assert_ok(firn_cache_spec_begin(cache, NULL));
    assert_ok(rig_feed(cache, more.id, &more.n, NULL, NULL));
    assert_ok(firn_cache_spec_rollback(cache, (uint32_t[]){ 1 }, NULL));
    assert_int_equal(firn_cache_row_tokens(cache, 0), 11);
    assert_ok(firn_cache_spec_begin(cache, NULL));
    assert_ok(firn_cache_spec_commit(cache, NULL));
    assert_string_equal(((recorder *)cache)->calls, "bceBRBC");

    firn_cache *extracted;
    assert_ok(firn_cache_extract_row(cache, 0, &extracted, NULL));
    assert_string_equal(((recorder *)extracted)->calls, "s");
    firn_cache_destroy(extracted);
    firn_cache_destroy(cache);

    layout.spec_begin = refuse_spec_begin;
    cache = probe(&layout, pool, 10);
    assert_status(firn_cache_spec_begin(cache, NULL), FIRN_ERR_NO_MEMORY);
    assert_status(firn_cache_spec_commit(cache, NULL), FIRN_ERR_STATE);
    assert_ok(firn_cache_add_row(cache, NULL));
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void every_registered_table_is_complete(void **state)
{
    (void)state;
    for (uint32_t l = 0; l < firni_layout_count(); l++) {
        const firni_layout *layout = firni_layout_at(l);
        assert_true(layout->family != NULL && layout->family[0] != '\0');
        assert_ptr_equal(firni_layout_find(layout->family), layout);
        assert_true(layout->init != NULL && layout->deinit != NULL && layout->batch_size != NULL);
        assert_true(layout->row_tokens != NULL && layout->add_row != NULL && layout->view_row != NULL);
        assert_true(layout->adopt_row != NULL && layout->filter_rows != NULL);
        assert_true(layout->trim_row != NULL || (layout->trimmable_tokens != NULL && layout->spec_rollback != NULL));
        assert_true(layout->bytes_per_token != NULL && layout->projected_bytes != NULL && layout->reserve != NULL);
        assert_true((layout->append != NULL && layout->attend != NULL) != (layout->recur != NULL));
        assert_non_null(layout->state);
        assert_non_null(layout->check);
    }
    assert_null(firni_layout_find("kv:nothing"));
}

/* A family that nobody tests would be one that nobody misses. */
static void every_registered_family_is_tested(void **state)
{
    (void)state;
    for (uint32_t l = 0; l < firni_layout_count(); l++) {
        const char *family = firni_layout_at(l)->family;
        bool is_tested = false;
        for (size_t i = 0; i < RIG_N_FAMILIES; i++) {
            is_tested = is_tested || strcmp(rig_families[i].layout, family) == 0;
        }
        for (size_t i = 0; rig_families_apart[i].layout != NULL; i++) {
            is_tested = is_tested || strcmp(rig_families_apart[i].layout, family) == 0;
            assert_int_equal(access(rig_families_apart[i].test, R_OK), 0);
        }
        if (!is_tested) {
            fail_msg("%s stands neither in rig_families nor in rig_families_apart", family);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_members_have_their_defaults),
        cmocka_unit_test(present_members_are_asked),
        cmocka_unit_test(hooks_are_called_in_order_and_a_refused_begin_opens_no_round),
        cmocka_unit_test(every_registered_table_is_complete),
        cmocka_unit_test(every_registered_family_is_tested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
