/*
 * The numbers of the scalar reference against double precision: exp and tanh in units of the last place, the 16-bit
 * conversions exhaustively, the vector functions within stated tolerances.
 */
#include <math.h>
#include <string.h>

#include "support/support.h"

/* exp and tanh are private to the reference: compile a second one here. */
#define firni_kernels_scalar kernels_under_test
#include "kernel/kernel_scalar.c"
#undef firni_kernels_scalar

/* Distance of x from the exact value, in units of the last place of the nearest f32. */
static double ulps(float x, double exact)
{
    const float nearest = (float)exact;
    const double unit = (double)nextafterf(fabsf(nearest), INFINITY) - fabs((double)nearest);
    return fabs((double)x - exact) / unit;
}

static void exp_is_within_one_unit_of_the_last_place(void **state)
{
    (void)state;
    double worst = 0.0;
    /* Every 499th f32 of either sign, over all exponents that have a finite, normal result. */
    for (uint32_t bits = 0; bits < 0x43000000u; bits += 499) {
        const float magnitude = firni_f32_from_bits(bits);
        if (magnitude <= FIRNI_EXP_HIGH) {
            worst = fmax(worst, ulps(scalar_exp(magnitude), exp((double)magnitude)));
        }
        if (-magnitude >= FIRNI_EXP_LOW) {
            worst = fmax(worst, ulps(scalar_exp(-magnitude), exp(-(double)magnitude)));
        }
    }
    print_message("exp: largest error %.3f ulp\n", worst);
    assert_true(worst < 1.0);
}

static void exp_has_exact_edges(void **state)
{
    (void)state;
    assert_true(scalar_exp(0.0f) == 1.0f);
    assert_true(scalar_exp(-0.0f) == 1.0f);
    assert_true(scalar_exp(-INFINITY) == 0.0f && !signbit(scalar_exp(-INFINITY)));
    assert_true(scalar_exp(FIRNI_SCORE_LOWEST) == 0.0f);
    assert_true(scalar_exp(nextafterf(FIRNI_EXP_LOW, -INFINITY)) == 0.0f);
    assert_true(scalar_exp(FIRNI_EXP_LOW) > 0.0f && isnormal(scalar_exp(FIRNI_EXP_LOW)));
    assert_true(isfinite(scalar_exp(FIRNI_EXP_HIGH)));
    assert_true(scalar_exp(nextafterf(FIRNI_EXP_HIGH, INFINITY)) == INFINITY);
    assert_true(scalar_exp(INFINITY) == INFINITY);
    assert_true(isnan(scalar_exp(NAN)));
}

static void tanh_is_within_three_units_of_the_last_place(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint32_t bits = 0x30000000u; bits < 0x42000000u; bits += 499) {
        const float x = firni_f32_from_bits(bits);
        worst = fmax(worst, ulps(scalar_tanh(x), tanh((double)x)));
        worst = fmax(worst, ulps(scalar_tanh(-x), tanh(-(double)x)));
    }
    print_message("tanh: largest error %.3f ulp\n", worst);
    assert_true(worst < 3.0);
    assert_true(scalar_tanh(0.0f) == 0.0f);
    assert_true(scalar_tanh(1000.0f) == 1.0f && scalar_tanh(-1000.0f) == -1.0f);
    assert_true(isnan(scalar_tanh(NAN)));
}

/* ---- 16-bit conversions --------------------------------------------------------------------------------------- */

/* The value of a half from its definition. */
static double half_value(uint32_t half, unsigned exponent_bits)
{
    const unsigned mantissa_bits = 15 - exponent_bits;
    const uint32_t mantissa = half & ((1u << mantissa_bits) - 1);
    const uint32_t exponent = half >> mantissa_bits & ((1u << exponent_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int unit = (exponent == 0 ? 1 : (int)exponent) - bias - (int)mantissa_bits;
    const double magnitude = ldexp((exponent == 0 ? 0 : 1u << mantissa_bits) + mantissa, unit);
    return half & 0x8000u ? -magnitude : magnitude;
}

typedef struct half_format {
    unsigned exponent_bits;
    uint32_t infinity;
    void (*widen)(float *out, const uint16_t *x, size_t n);
    void (*narrow)(uint16_t *out, const float *x, size_t n);
} half_format;

static void check_half_format(const half_format *format)
{
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t half = (uint16_t)i;
        float x;
        uint16_t back;
        format->widen(&x, &half, 1);
        format->narrow(&back, &x, 1);
        const uint32_t magnitude = i & 0x7fffu;
        if (magnitude > format->infinity) {
            assert_true(isnan(x));
            assert_true((back & 0x7fffu) > format->infinity && (back & 0x8000u) == (i & 0x8000u));
            continue;
        }
        assert_int_equal(back, half);
        if (magnitude == format->infinity) {
            assert_true(isinf(x));
        } else {
            assert_true((double)x == half_value(i, format->exponent_bits));
        }
        assert_true((signbit(x) != 0) == ((i & 0x8000u) != 0));
    }
    /* Between every two neighbours: below, at and above the middle. */
    for (uint32_t i = 0; i + 1 <= format->infinity; i++) {
        const double low = half_value(i, format->exponent_bits);
        const double high = half_value(i + 1, format->exponent_bits); /* of infinity: what would follow */
        const float middle = (float)((low + high) / 2);
        assert_true((double)middle == (low + high) / 2 || high > 0x1p127);
        if ((double)middle != (low + high) / 2) {
            continue; /* beyond f32: the largest bf16 and what would follow */
        }
        const float points[3] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, INFINITY)};
        uint16_t rounded[3];
        format->narrow(rounded, points, 3);
        assert_int_equal(rounded[0], i);
        assert_int_equal(rounded[1], i % 2 == 0 ? i : i + 1);
        assert_int_equal(rounded[2], i + 1);
    }
}

static void f16_conversions_are_exact_and_round_to_nearest_even(void **state)
{
    (void)state;
    check_half_format(&(half_format){.exponent_bits = 5, .infinity = 0x7c00u, .widen = scalar_f16_to_f32,
                                     .narrow = scalar_f32_to_f16});
}

static void bf16_conversions_are_exact_and_round_to_nearest_even(void **state)
{
    (void)state;
    check_half_format(&(half_format){.exponent_bits = 8, .infinity = 0x7f80u, .widen = scalar_bf16_to_f32,
                                     .narrow = scalar_f32_to_bf16});
}

static void a_nan_stays_a_nan_in_every_conversion(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("nan", 5);
    for (int i = 0; i < 100000; i++) {
        const uint32_t payload = (uint32_t)test_rng_u64(&rng) & 0x7fffffu;
        const float x = firni_f32_from_bits(0x7f800000u | (payload == 0 ? 1 : payload) | (uint32_t)(i % 2) << 31);
        uint16_t half;
        scalar_f32_to_f16(&half, &x, 1);
        assert_true((half & 0x7fffu) > 0x7c00u);
        scalar_f32_to_bf16(&half, &x, 1);
        assert_true((half & 0x7fffu) > 0x7f80u);
    }
}

/* ---- vector functions ----------------------------------------------------------------------------------------- */

enum { N_MAX = 300 };

static void vector_functions_agree_with_double_precision(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("vectors", 9);
    for (int round = 0; round < 200; round++) {
        const uint32_t n = 1 + test_rng_below(&rng, N_MAX);
        float x[N_MAX], y[N_MAX], out[N_MAX];
        double squares = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = test_rng_normal(&rng) * 3.0f;
            y[i] = test_rng_normal(&rng);
            squares += (double)x[i] * x[i];
        }
        scalar_rms_norm(out, x, y, n, 1e-5f);
        for (uint32_t i = 0; i < n; i++) {
            const double exact = x[i] / sqrt(squares / n + (double)1e-5f) * y[i];
            assert_true(fabs(out[i] - exact) <= 1e-6 * fabs(exact) + 1e-30);
        }
        scalar_silu_mul(out, x, y, n);
        for (uint32_t i = 0; i < n; i++) {
            const double exact = x[i] / (1.0 + exp(-(double)x[i])) * y[i];
            assert_true(fabs(out[i] - exact) <= 5e-7 * fabs(exact) + 1e-30);
        }
        scalar_gelu_mul(out, x, y, n);
        for (uint32_t i = 0; i < n; i++) {
            const double g = x[i];
            const double gelu = 0.5 * g * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (g + 0.044715 * g * g * g)));
            /* 1 + tanh cancels for negative g: the error is of the size of g there. */
            assert_true(fabs(out[i] - gelu * y[i]) <= 3e-7 * fabs(g * y[i]) + 1e-30);
        }
        scalar_sigmoid_mul(out, x, y, n);
        for (uint32_t i = 0; i < n; i++) {
            const double exact = y[i] / (1.0 + exp(-(double)x[i]));
            assert_true(fabs(out[i] - exact) <= 5e-7 * fabs(exact) + 1e-30);
        }
        memcpy(out, x, n * sizeof *out);
        scalar_softcap(out, n, 2.0f);
        for (uint32_t i = 0; i < n; i++) {
            const double exact = 2.0 * tanh(x[i] / 2.0);
            assert_true(fabs(out[i] - exact) <= 5e-7 * fabs(exact) + 1e-30);
        }
        const float max = scalar_max(x, n);
        double exact_sum = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(x[i] <= max);
            exact_sum += exp((double)(x[i] - max));
        }
        assert_true(fabs(scalar_exp_sum(out, x, n, max) - exact_sum) <= 1e-6 * exact_sum);
    }
}

static void silu_has_the_right_limits(void **state)
{
    (void)state;
    const float gate[] = {-1000.0f, -90.0f, 0.0f, 90.0f, 1000.0f, NAN};
    const float up[] = {1, 1, 1, 1, 1, 1};
    float out[6];
    scalar_silu_mul(out, gate, up, 6);
    assert_true(out[0] == 0.0f && fabsf(out[1]) < 1e-36f && out[2] == 0.0f && out[3] == 90.0f && out[4] == 1000.0f);
    assert_true(isnan(out[5]));
}

static void rope_rotates_each_pair_in_both_arrangements(void **state)
{
    (void)state;
    enum { DIM = 8 };
    float cos_sin[DIM];
    for (int i = 0; i < DIM / 2; i++) {
        cos_sin[2 * i] = cosf(0.3f * (float)(i + 1));
        cos_sin[2 * i + 1] = sinf(0.3f * (float)(i + 1));
    }
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        float x[DIM] = {1, -2, 3, 4, -5, 6, 7, 8};
        float original[DIM];
        memcpy(original, x, sizeof(x));
        scalar_rope(x, cos_sin, DIM, interleaved != 0);
        for (int i = 0; i < DIM / 2; i++) {
            const int first = interleaved != 0 ? 2 * i : i;
            const int second = interleaved != 0 ? 2 * i + 1 : i + DIM / 2;
            const double a = original[first], b = original[second], c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            assert_true(fabs(x[first] - (a * c - b * s)) < 1e-6);
            assert_true(fabs(x[second] - (a * s + b * c)) < 1e-6);
        }
    }
}

static void norm_works_in_place_and_without_weights(void **state)
{
    (void)state;
    float x[20], ones[20], separate[20];
    for (int i = 0; i < 20; i++) {
        x[i] = (float)(i - 7);
        ones[i] = 1.0f;
    }
    scalar_rms_norm(separate, x, ones, 20, 1e-6f);
    scalar_rms_norm(x, x, NULL, 20, 1e-6f);
    assert_memory_equal(x, separate, sizeof(x));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_unit_of_the_last_place),
        cmocka_unit_test(exp_has_exact_edges),
        cmocka_unit_test(tanh_is_within_three_units_of_the_last_place),
        cmocka_unit_test(f16_conversions_are_exact_and_round_to_nearest_even),
        cmocka_unit_test(bf16_conversions_are_exact_and_round_to_nearest_even),
        cmocka_unit_test(a_nan_stays_a_nan_in_every_conversion),
        cmocka_unit_test(vector_functions_agree_with_double_precision),
        cmocka_unit_test(silu_has_the_right_limits),
        cmocka_unit_test(rope_rotates_each_pair_in_both_arrangements),
        cmocka_unit_test(norm_works_in_place_and_without_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
