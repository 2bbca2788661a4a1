/*
 * Names, error details, overflow checks.
 */
#include "support/support.h"

#include <errno.h>
#include <string.h>

#include "base/base_impl.h"

static void every_reason_has_its_own_name(void **state)
{
    (void)state;
    for (int i = 0; i < FIRN_REASON_COUNT; i++) {
        assert_string_not_equal(firn_reason_name((firn_reason)i), "unknown");
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(firn_reason_name((firn_reason)i), firn_reason_name((firn_reason)j));
        }
    }
    assert_string_equal(firn_reason_name((firn_reason)999), "unknown");
    assert_string_equal(firn_reason_name((firn_reason)-1), "unknown");
}

static void every_status_has_its_own_name(void **state)
{
    (void)state;
    for (int i = FIRN_ERR_INVALID; i <= FIRN_ERR_KEY; i++) {
        assert_string_not_equal(firn_status_name((firn_status)i), "unknown");
        for (int j = FIRN_ERR_INVALID; j < i; j++) {
            assert_string_not_equal(firn_status_name((firn_status)i), firn_status_name((firn_status)j));
        }
    }
    assert_string_equal(firn_status_name(FIRN_OK), "ok");
}

static void fail_fills_the_detail_and_returns_the_status(void **state)
{
    (void)state;
    firn_error err;
    memset(&err, 0xee, sizeof err);
    assert_status(firni_fail(&err, FIRN_ERR_TRIM, "%d of %d", 3, 4), FIRN_ERR_TRIM);
    assert_int_equal(err.status, FIRN_ERR_TRIM);
    assert_int_equal(err.os_error, 0);
    assert_string_equal(err.message, "3 of 4");
    assert_status(firni_fail(NULL, FIRN_ERR_TRIM, "x"), FIRN_ERR_TRIM);
}

static void fail_os_appends_the_reason(void **state)
{
    (void)state;
    firn_error err;
    assert_status(firni_fail_os(&err, ENOSPC, "writing %s", "a"), FIRN_ERR_IO);
    assert_int_equal(err.os_error, ENOSPC);
    assert_non_null(strstr(err.message, "writing a: "));
    char longer[1000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_status(firni_fail_os(&err, EIO, "%s", longer), FIRN_ERR_IO);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
}

static void sizes_do_not_wrap(void **state)
{
    (void)state;
    size_t out = 7;
    assert_false(firni_mul_size(SIZE_MAX, 2, &out));
    assert_false(firni_add_size(SIZE_MAX, 1, &out));
    assert_int_equal(out, 7);
    assert_true(firni_mul_size(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(firni_mul_size(SIZE_MAX, 0, &out) && out == 0);
    assert_null(firni_calloc(NULL, SIZE_MAX, 2));
    assert_int_equal(firni_round_up(0, 64), 0);
    assert_int_equal(firni_round_up(65, 64), 128);
}

static void grow_keeps_the_old_elements(void **state)
{
    (void)state;
    test_world world;
    test_world_init(&world);
    uint32_t *a = firni_calloc(&world.env, 3, sizeof *a);
    a[2] = 5;
    world.fail_alloc_at = world.n_allocs + 1;
    assert_null(firni_grow(&world.env, a, 3, 10, sizeof *a));
    assert_int_equal(a[2], 5);
    uint32_t *b = firni_grow(&world.env, a, 3, 10, sizeof *b);
    assert_non_null(b);
    assert_int_equal(b[2], 5);
    firni_free(&world.env, b);
    test_world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reason_has_its_own_name),
        cmocka_unit_test(every_status_has_its_own_name),
        cmocka_unit_test(fail_fills_the_detail_and_returns_the_status),
        cmocka_unit_test(fail_os_appends_the_reason),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(grow_keeps_the_old_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
