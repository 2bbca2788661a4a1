/*
 * Rotary frequencies against figures computed from the published formulas with other software, and the angles of
 * positions.
 */
#include "support/support.h"

#include <math.h>

#include "model/rope.h"

typedef struct figure {
    uint32_t pair;
    double frequency;
} figure;

static void expect_frequencies(const firni_rope_params *params, const figure *figures, size_t n)
{
    firni_rope rope;
    assert_ok(firni_rope_init(&rope, params, NULL, NULL, NULL));
    for (size_t i = 0; i < n; i++) {
        const double got = rope.frequencies[figures[i].pair];
        if (fabs(got / figures[i].frequency - 1.0) > 1e-9) {
            fail_msg("pair %u: %.17g instead of %.17g", figures[i].pair, got, figures[i].frequency);
        }
    }
    firni_rope_deinit(&rope);
}

static void yarn_follows_the_paper(void **state)
{
    (void)state;
    /* dim 128, base 1e6, factor 4 over 32768 tokens: pairs below 23 turn fast and are kept, those from 40 on are slow
     * and divided by 4. */
    static const figure figures[] = {
        { 0, 1.0 },
        { 10, 0.11547819846894582 },
        { 23, 0.006978305848598663 },
        { 24, 0.005375321490790102 },
        { 30, 0.001064360981247002 },
        { 35, 0.0002462584069089387 },
        { 39, 6.490394320837029e-05 },
        { 40, 4.445698525097307e-05 },
        { 63, 3.102344401879299e-07 },
    };
    firni_rope_params params = {
        .n_dims = 128, .base = 1e6F, .scaling = FIRNI_ROPE_SCALING_YARN, .factor = 4.0F, .original_context = 32768,
        .ext_factor = 1.0F, .attn_factor = 1.0F, .beta_fast = 32.0F, .beta_slow = 1.0F,
    };
    expect_frequencies(&params, figures, sizeof figures / sizeof figures[0]);
    firni_rope rope;
    float cos_sin[128];
    assert_ok(firni_rope_init(&rope, &params, NULL, NULL, NULL));
    assert_true(fabs(rope.magnitude - 1.138629436111989) < 1e-12); /* 0.1 ln 4 + 1 */
    firni_rope_angles(&rope, 0, cos_sin);
    assert_true(cos_sin[0] == (float)1.138629436111989 && cos_sin[1] == 0.0F);
    firni_rope_deinit(&rope);
    /* Without the ramp YaRN is linear scaling, and only the file's own factor multiplies. */
    params.ext_factor = 0.0F;
    params.attn_factor = 1.5F;
    assert_ok(firni_rope_init(&rope, &params, NULL, NULL, NULL));
    assert_true(rope.frequencies[0] == 0.25 && rope.magnitude == 1.5);
    firni_rope_deinit(&rope);
}

static void llama3_scaling_follows_its_publication(void **state)
{
    (void)state;
    static const figure figures[] = {
        { 0, 1.0 },
        { 20, 0.016560440080994446 },
        { 28, 0.003211445994752591 },
        { 29, 0.002166570763503359 },
        { 30, 0.0013718935677611381 },
        { 33, 0.00031269375038406517 },
        { 35, 9.556212353964683e-05 },
        { 36, 7.78465527393245e-05 },
        { 63, 3.068925988914511e-07 },
    };
    const firni_rope_params params = {
        .n_dims = 128, .base = 5e5F, .scaling = FIRNI_ROPE_SCALING_LLAMA3, .factor = 8.0F, .original_context = 8192,
        .low_freq_factor = 1.0F, .high_freq_factor = 4.0F,
    };
    expect_frequencies(&params, figures, sizeof figures / sizeof figures[0]);
}

static void linear_scaling_and_divisors_divide(void **state)
{
    (void)state;
    static const figure halves[] = { { 0, 0.5 }, { 1, 0.05 }, { 2, 0.005 }, { 3, 0.0005 } };
    static const float divisors[4] = { 2.0F, 1.0F, 4.0F, -1.0F };
    firni_rope_params params = {
        .n_dims = 8, .base = 1e4F, .scaling = FIRNI_ROPE_SCALING_LINEAR, .factor = 2.0F,
    };
    firni_rope rope;
    expect_frequencies(&params, halves, 4);
    params.scaling = FIRNI_ROPE_SCALING_NONE;
    assert_ok(firni_rope_init(&rope, &params, divisors, NULL, NULL));
    assert_true(fabs(rope.frequencies[0] - 0.5) < 1e-15 && fabs(rope.frequencies[1] - 0.1) < 1e-15);
    assert_true(fabs(rope.frequencies[2] - 0.0025) < 1e-15 && fabs(rope.frequencies[3] + 0.001) < 1e-15);
    firni_rope_deinit(&rope);
}

static void angles_stay_exact_at_far_positions(void **state)
{
    (void)state;
    const firni_rope_params params = { .n_dims = 4, .base = 1e4F, .factor = 1.0F };
    static const uint32_t positions[] = { 0, 1, 63, 64, 4096, 131071, 1048575, 2147483646 };
    firni_rope rope;
    assert_ok(firni_rope_init(&rope, &params, NULL, NULL, NULL));
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        float cos_sin[4];
        firni_rope_angles(&rope, positions[i], cos_sin);
        /* The first pair turns one radian per token. */
        assert_true(fabs((double)cos_sin[0] - cos((double)positions[i])) < 1e-7);
        assert_true(fabs((double)cos_sin[1] - sin((double)positions[i])) < 1e-7);
        assert_true(fabs((double)cos_sin[2] - cos(positions[i] * 0.01)) < 1e-7);
        assert_true(fabs((double)cos_sin[3] - sin(positions[i] * 0.01)) < 1e-7);
    }
    firni_rope_deinit(&rope);
}

static void descriptions_tell_parameters_apart(void **state)
{
    (void)state;
    const firni_rope_params base = { .n_dims = 64, .base = 1e4F, .factor = 1.0F, .scaling = FIRNI_ROPE_SCALING_YARN,
                                     .original_context = 100, .ext_factor = 1.0F, .attn_factor = 1.0F };
    firni_rope_params others[9];
    char expected[400];
    char text[400];
    for (size_t i = 0; i < 9; i++) {
        others[i] = base;
    }
    others[0].n_dims = 32;
    others[1].interleaved = true;
    others[2].base = 10001.0F;
    others[3].scaling = FIRNI_ROPE_SCALING_LINEAR;
    others[4].factor = 2.0F;
    others[5].original_context = 101;
    others[6].ext_factor = 0.5F;
    others[7].attn_factor = 1.1F;
    others[8].beta_fast = 31.0F;
    firni_rope_describe(&base, expected, sizeof expected);
    for (size_t i = 0; i < 9; i++) {
        firni_rope_describe(&others[i], text, sizeof text);
        assert_string_not_equal(text, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yarn_follows_the_paper),
        cmocka_unit_test(llama3_scaling_follows_its_publication),
        cmocka_unit_test(linear_scaling_and_divisors_divide),
        cmocka_unit_test(angles_stay_exact_at_far_positions),
        cmocka_unit_test(descriptions_tell_parameters_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
