/*
 * The Lloyd-Max tables have the two properties of a quantiser of least mean squared error, as closely as integers
 * allow, and its error; and rotation is what it says.
 */
#include <math.h>
#include <string.h>

#include "kernel/quantised.h"
#include "support/support.h"

static const uint32_t widths[] = { 2, 3, 4, 5, 8 };
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

static double density(double x) { return exp(-0.5 * x * x) / sqrt(2.0 * acos(-1.0)); }
static double below(double x) { return 0.5 * erfc(-x / sqrt(2.0)); }

static double level_of(const firni_lloyd *lloyd, uint32_t code)
{
    return (double)lloyd->unit * (lloyd->levels[code] - lloyd->centre);
}

static void levels_are_the_means_of_their_cells(void **state)
{
    (void)state;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        const firni_lloyd *lloyd = firni_lloyd_of(widths[w]);
        const uint32_t n = 1u << widths[w];
        for (uint32_t code = 0; code < n; code++) {
            const double from = code == 0 ? -40.0 : (double)lloyd->thresholds[code - 1];
            const double to = code + 1 == n ? 40.0 : (double)lloyd->thresholds[code];
            const double mean = (density(from) - density(to)) / (below(to) - below(from));
            /* Half a unit of the level's own rounding, as much of its neighbours', which move the cell. */
            assert_true(fabs(level_of(lloyd, code) - mean) <= (double)lloyd->unit);
            assert_int_equal(lloyd->levels[n - 1 - code], 2 * lloyd->centre - lloyd->levels[code]);
            assert_true(widths[w] == 8 || lloyd->bytes[code] == lloyd->levels[code]);
        }
        assert_int_equal(lloyd->levels[0], 0);
    }
}

static void thresholds_are_halfway_between_levels(void **state)
{
    (void)state;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        const firni_lloyd *lloyd = firni_lloyd_of(widths[w]);
        for (uint32_t code = 0; code + 1 < 1u << widths[w]; code++) {
            const double middle = 0.5 * (level_of(lloyd, code) + level_of(lloyd, code + 1));
            assert_true(fabs((double)lloyd->thresholds[code] - middle) <= 1e-6);
            /* A number on a threshold takes the code below it. */
            assert_int_equal(firni_lloyd_code(lloyd, widths[w], lloyd->thresholds[code]), code);
            assert_int_equal(firni_lloyd_code(lloyd, widths[w], nextafterf(lloyd->thresholds[code], 9.0f)), code + 1);
        }
        assert_int_equal(firni_lloyd_code(lloyd, widths[w], INFINITY), (1u << widths[w]) - 1);
        assert_int_equal(firni_lloyd_code(lloyd, widths[w], -INFINITY), 0);
    }
}

/* Mean squared errors of the best quantisers (Max 1960, table I; 8 bits: the limit of Panter and Dite, from above),
 * which the rounding of levels to integers must not spoil by more than 2 %. */
static void the_error_is_that_of_the_best_quantiser(void **state)
{
    (void)state;
    static const double best[N_WIDTHS] = { 0.1175, 0.03454, 0.009497, 0.002499, 4.15e-5 };
    for (size_t w = 0; w < N_WIDTHS; w++) {
        const firni_lloyd *lloyd = firni_lloyd_of(widths[w]);
        double error = 0.0;
        const double step = 1e-4;
        for (double x = -8.0; x < 8.0; x += step) {
            const double y = x + 0.5 * step;
            const double difference = y - level_of(lloyd, firni_lloyd_code(lloyd, widths[w], (float)y));
            error += difference * difference * density(y) * step;
        }
        print_message("%u bits: mean squared error %.4g, of the best quantiser %.4g\n", widths[w], error, best[w]);
        assert_true(error < best[w] * 1.02);
    }
}

static void rotation_keeps_lengths_and_is_undone(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("rotation", 5);
    for (uint32_t n = 64; n <= 512; n *= 2) {
        float x[512];
        float y[512];
        double before = 0.0;
        double after = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = y[i] = test_rng_normal(&rng);
            before += (double)x[i] * (double)x[i];
        }
        firni_rotate(y, n);
        for (uint32_t i = 0; i < n; i++) {
            after += (double)y[i] * (double)y[i];
        }
        /* Up to the factor that makes both ways a power of two. */
        const double factor = (double)firni_rotate_factor(n, false);
        assert_true(fabs(after / (factor * factor * n) / before - 1.0) < 1e-5);
        assert_true(firni_rotate_factor(n, false) * firni_rotate_factor(n, true) * (float)n == 1.0f);
        firni_rotate_back(y, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(fabsf(y[i] - x[i]) < 1e-5f);
        }
    }
}

/* A spike becomes equal elements; a constant, which the transform alone would gather in one, becomes noise. */
static void rotation_leaves_no_outlier(void **state)
{
    (void)state;
    for (uint32_t n = 64; n <= 512; n *= 2) {
        for (uint32_t at = 0; at < n; at++) {
            float x[512] = {0};
            x[at] = 1.0f;
            firni_rotate(x, n);
            for (uint32_t i = 0; i < n; i++) {
                assert_true(fabsf(x[i]) == firni_rotate_factor(n, false));
            }
        }
        float x[512];
        for (uint32_t i = 0; i < n; i++) {
            x[i] = 1.0f;
        }
        firni_rotate(x, n);
        for (uint32_t i = 0; i < n; i++) {
            /* Without the signs one element would be n: 8 to 23 times the deviation of noise. */
            assert_true(fabsf(x[i]) <= 4.5f * sqrtf((float)n) * firni_rotate_factor(n, false));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_the_means_of_their_cells),
        cmocka_unit_test(thresholds_are_halfway_between_levels),
        cmocka_unit_test(the_error_is_that_of_the_best_quantiser),
        cmocka_unit_test(rotation_keeps_lengths_and_is_undone),
        cmocka_unit_test(rotation_leaves_no_outlier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
