/*
 * Dtypes and dense arrays.
 */
#include <string.h>

#include "array/array_impl.h"
#include "support/support.h"

static void names_and_sizes_of_dtypes(void **state)
{
    (void)state;
    static const struct {
        firn_dtype dtype;
        const char *name;
        size_t n_bytes;
    } known[] = {
        { FIRN_DTYPE_F32, "f32", 4 }, { FIRN_DTYPE_F16, "f16", 2 }, { FIRN_DTYPE_BF16, "bf16", 2 },
        { FIRN_DTYPE_I8, "i8", 1 },   { FIRN_DTYPE_U8, "u8", 1 },   { FIRN_DTYPE_I32, "i32", 4 },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_string_equal(firn_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(firn_dtype_bytes(known[i].dtype), known[i].n_bytes);
        assert_int_equal(firn_dtype_parse(known[i].name), known[i].dtype);
    }
}

static void unknown_dtypes_are_safe_to_ask_about(void **state)
{
    (void)state;
    static const int unknown[] = { 0, 7, 1000, -1 };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_string_equal(firn_dtype_name((firn_dtype)unknown[i]), "?");
        assert_int_equal(firn_dtype_bytes((firn_dtype)unknown[i]), 0);
    }
    assert_int_equal(firn_dtype_parse(NULL), FIRN_DTYPE_NONE);
    assert_int_equal(firn_dtype_parse(""), FIRN_DTYPE_NONE);
    assert_int_equal(firn_dtype_parse("f64"), FIRN_DTYPE_NONE);
}

static void an_owned_array_is_sized_aligned_and_released(void **state)
{
    (void)state;
    test_world world;
    test_world_init(&world);
    firn_tensor tensor;
    const uint64_t shape[] = { 2, 3, 5, 7 };
    assert_ok(firni_tensor_alloc(&tensor, FIRN_DTYPE_F16, 4, shape, &world.env, NULL));
    assert_int_equal(tensor.n_bytes, 2 * 3 * 5 * 7 * 2);
    assert_int_equal((uintptr_t)tensor.data % 64, 0);
    assert_true(tensor.owned);
    assert_memory_equal(tensor.shape, shape, sizeof shape);
    firn_tensor_deinit(&tensor);
    assert_null(tensor.data);
    firn_tensor_deinit(&tensor);
    test_world_deinit(&world);
}

static void an_empty_array_owns_nothing(void **state)
{
    (void)state;
    firn_tensor tensor;
    const uint64_t shape[] = { UINT64_MAX, UINT64_MAX, 0, 7 };
    assert_ok(firni_tensor_alloc(&tensor, FIRN_DTYPE_F32, 4, shape, NULL, NULL));
    assert_int_equal(tensor.n_bytes, 0);
    assert_null(tensor.data);
    assert_false(tensor.owned);
    firn_tensor_deinit(&tensor);
}

static void an_impossible_array_is_refused(void **state)
{
    (void)state;
    firn_tensor tensor;
    const uint64_t shape[] = { UINT64_C(1) << 40, UINT64_C(1) << 40 };
    assert_status(firni_tensor_alloc(&tensor, FIRN_DTYPE_F32, 2, shape, NULL, NULL), FIRN_ERR_NO_MEMORY);
    assert_null(tensor.data);

    test_world world;
    test_world_init(&world);
    world.fail_alloc_at = 1;
    const uint64_t small[] = { 4 };
    assert_status(firni_tensor_alloc(&tensor, FIRN_DTYPE_F32, 1, small, &world.env, NULL), FIRN_ERR_NO_MEMORY);
    assert_null(tensor.data);
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes_of_dtypes),
        cmocka_unit_test(unknown_dtypes_are_safe_to_ask_about),
        cmocka_unit_test(an_owned_array_is_sized_aligned_and_released),
        cmocka_unit_test(an_empty_array_owns_nothing),
        cmocka_unit_test(an_impossible_array_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
