/*
 * Every variant that this processor can run gives the bits of the scalar reference, in every function. Variants of
 * other processors: test_variants_emulated.sh.
 */
#include "support/support.h"
#include "kernel/variants_impl.h"
#include "variant_checks.h"

static void run(const char *what, void (*check)(variant_checks *checks), unsigned n_rounds)
{
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    test_rng rng = test_rng_create(what, 20261129);
    for (uint32_t i = 0; i < n_names; i++) {
        variant_checks checks = {
            .reference = &firni_kernels_scalar,
            .variant = firni_kernels_select(names[i], NULL),
            .random = test_rng_u64(&rng),
            .n_rounds = n_rounds,
        };
        check(&checks);
        assert_true(checks.n_compared > 0);
        assert_int_equal(checks.n_failed, 0);
    }
}

static void vector_functions_give_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("vectors", checks_vectors, 300);
}

static void conversions_give_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("conversions", checks_conversions, 1);
}

static void products_give_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("products", checks_matmul, 300);
}

static void attention_gives_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("attention", checks_attention, 100);
}

static void recurrent_layers_give_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("recurrence", checks_recurrence, 300);
}

static void attention_over_quantised_blocks_gives_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("quantised", checks_quantised, 60);
}

static void attention_over_latent_blocks_gives_the_bits_of_the_scalar_reference(void **state)
{
    (void)state;
    run("latent", checks_latent, 60);
}

/* The comparison itself must be able to fail. */
static float off_by_a_bit(float *out, const float *x, uint32_t n, float max)
{
    const float sum = firni_kernels_scalar.exp_sum(out, x, n, max);
    out[n - 1] = nextafterf(out[n - 1], 2.0f);
    return sum;
}

static void a_variant_that_is_one_bit_off_is_caught(void **state)
{
    (void)state;
    firni_kernels broken = firni_kernels_scalar;
    broken.name = "broken on purpose";
    broken.exp_sum = off_by_a_bit;
    variant_checks checks = {.reference = &firni_kernels_scalar, .variant = &broken, .random = 1, .n_rounds = 3};
    checks_vectors(&checks);
    assert_true(checks.n_failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_functions_give_the_bits_of_the_scalar_reference),
        cmocka_unit_test(conversions_give_the_bits_of_the_scalar_reference),
        cmocka_unit_test(products_give_the_bits_of_the_scalar_reference),
        cmocka_unit_test(attention_gives_the_bits_of_the_scalar_reference),
        cmocka_unit_test(recurrent_layers_give_the_bits_of_the_scalar_reference),
        cmocka_unit_test(attention_over_quantised_blocks_gives_the_bits_of_the_scalar_reference),
        cmocka_unit_test(attention_over_latent_blocks_gives_the_bits_of_the_scalar_reference),
        cmocka_unit_test(a_variant_that_is_one_bit_off_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
