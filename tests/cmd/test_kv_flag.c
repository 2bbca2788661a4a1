/*
 * --kv, --kv-group and --kv-delay: what is taken, what it becomes, what is refused.
 */
#include <string.h>

#include "cmd/kv_flag.h"
#include "support/support.h"

static void every_choice_becomes_options(void **state)
{
    (void)state;
    static const struct {
        const char *kv, *group;
        firn_dtype dtype;
        firn_kv_scheme scheme;
    } good[] = {
        { NULL, NULL, FIRN_DTYPE_F16, { .kind = FIRN_KV_PLAIN } },
        { "f32", NULL, FIRN_DTYPE_F32, { .kind = FIRN_KV_PLAIN } },
        { "bf16", NULL, FIRN_DTYPE_BF16, { .kind = FIRN_KV_PLAIN } },
        { "q8", NULL, FIRN_DTYPE_NONE, { .kind = FIRN_KV_AFFINE, .key_bits = 8 } },
        { "q4", "32", FIRN_DTYPE_NONE, { .kind = FIRN_KV_AFFINE, .key_bits = 4, .group = 32 } },
        { "q8", NULL, FIRN_DTYPE_NONE, { .kind = FIRN_KV_AFFINE, .key_bits = 8, .delay_tokens = 512 } },
        { "turbo", NULL, FIRN_DTYPE_NONE, { .kind = FIRN_KV_TURBO, .delay_tokens = 1 } },
        { "turbo", NULL, FIRN_DTYPE_NONE, { .kind = FIRN_KV_TURBO } },
        { "turbo:k5v2", NULL, FIRN_DTYPE_NONE, { .kind = FIRN_KV_TURBO, .key_bits = 5, .value_bits = 2 } },
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        firn_model_options options = { .path = "kept" };
        assert_true(good[i].kv == NULL || firni_kv_accepts(good[i].kv));
        assert_ok(firni_kv_set(good[i].kv, good[i].group, good[i].scheme.delay_tokens, &options, NULL));
        assert_string_equal(options.path, "kept");
        assert_int_equal(options.kv_dtype, good[i].dtype);
        assert_int_equal(options.kv_scheme.kind, good[i].scheme.kind);
        assert_int_equal(options.kv_scheme.key_bits, good[i].scheme.key_bits);
        assert_int_equal(options.kv_scheme.value_bits, good[i].scheme.value_bits);
        assert_int_equal(options.kv_scheme.group, good[i].scheme.group);
        assert_int_equal(options.kv_scheme.delay_tokens, good[i].scheme.delay_tokens);
    }
}

static void anything_else_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "",           "q",           "q5",          "Q8",
                                       "f8",         "turbo:",      "turbo:k8",    "turbo:k8v",
                                       "turbo:k8v6", "turbo:k3v3",  "turbo:k8v33", "turbok8v3",
                                       "turbo:v3k8", "turbo:k8v3 ", "i8",          "f16|bf16|f32" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        firn_model_options options = { .path = NULL };
        firn_error err;
        assert_false(firni_kv_accepts(bad[i]));
        assert_status(firni_kv_set(bad[i], NULL, 0, &options, &err), FIRN_ERR_INVALID);
        assert_non_null(strstr(err.message, FIRNI_KV_CHOICES));
    }
}

static void a_group_goes_with_affine_state_only(void **state)
{
    (void)state;
    static const char *const without[] = { NULL, "f16", "turbo" };
    for (size_t i = 0; i < 3; i++) {
        firn_model_options options = { .path = NULL };
        firn_error err;
        assert_status(firni_kv_set(without[i], "64", 0, &options, &err), FIRN_ERR_INVALID);
        assert_non_null(strstr(err.message, "--kv-group 64 goes with --kv q8 and q4"));
    }
}

static void a_delay_goes_with_quantised_state_only(void **state)
{
    (void)state;
    static const char *const without[] = { NULL, "f16", "bf16", "f32" };
    for (size_t i = 0; i < 4; i++) {
        firn_model_options options = { .path = NULL };
        firn_error err;
        assert_status(firni_kv_set(without[i], NULL, 512, &options, &err), FIRN_ERR_INVALID);
        assert_non_null(strstr(err.message, "--kv-delay 512 goes with --kv q8, q4 and turbo, not with"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_becomes_options),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(a_group_goes_with_affine_state_only),
        cmocka_unit_test(a_delay_goes_with_quantised_state_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
