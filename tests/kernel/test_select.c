/* The choice of a variant: by argument, by environment, by processor. */
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "kernel/kernel_impl.h"

static void every_listed_variant_can_be_selected_and_is_complete(void **state)
{
    (void)state;
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    assert_in_range(n_names, 1, 8);
    assert_string_equal(names[n_names - 1], "scalar");
    for (uint32_t i = 0; i < n_names; i++) {
        const firni_kernels *kernels = firni_kernels_select(names[i], NULL);
        assert_non_null(kernels);
        assert_string_equal(kernels->name, names[i]);
        /* After the name every member is a function. */
        void (*functions[(sizeof(*kernels) - sizeof(kernels->name)) / sizeof(void (*)(void))])(void);
        memcpy(functions, (const char *)kernels + sizeof(kernels->name), sizeof(functions));
        for (size_t f = 0; f < sizeof(functions) / sizeof(functions[0]); f++) {
            assert_true(functions[f] != NULL);
        }
    }
}

static void the_argument_goes_before_the_environment_before_the_processor(void **state)
{
    (void)state;
    const char *names[8];
    firni_kernels_list(names);
    unsetenv("FIRN_KERNEL");
    assert_string_equal(firni_kernels_select(NULL, NULL)->name, names[0]);
    setenv("FIRN_KERNEL", "", 1);
    assert_string_equal(firni_kernels_select(NULL, NULL)->name, names[0]);
    setenv("FIRN_KERNEL", "scalar", 1);
    assert_string_equal(firni_kernels_select(NULL, NULL)->name, "scalar");
    assert_string_equal(firni_kernels_select(names[0], NULL)->name, names[0]);
    unsetenv("FIRN_KERNEL");
}

static void an_unknown_variant_is_refused_with_the_usable_ones(void **state)
{
    (void)state;
    firn_error err = {0};
    assert_null(firni_kernels_select("sse9", &err));
    assert_int_equal(err.status, FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "sse9"));
    assert_non_null(strstr(err.message, "scalar"));
    setenv("FIRN_KERNEL", "abacus", 1);
    assert_null(firni_kernels_select(NULL, &err));
    assert_non_null(strstr(err.message, "abacus"));
    unsetenv("FIRN_KERNEL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_variant_can_be_selected_and_is_complete),
        cmocka_unit_test(the_argument_goes_before_the_environment_before_the_processor),
        cmocka_unit_test(an_unknown_variant_is_refused_with_the_usable_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
