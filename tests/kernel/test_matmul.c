/*
 * The matrix product as callers use it: against double precision, and bit by bit against itself for one token and many,
 * for any number of threads, panels packed in pieces, and strides.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "firn/workers.h"
#include "kernel/kernel_impl.h"
#include "kernel/numbers.h"
#include "weight_rows.h"

enum { ALIGN = 64 };

typedef struct product {
    firni_matrix w;
    uint8_t *rows;     /* as in a file */
    uint8_t *panels;
    double *exact_w;   /* [n_rows][n_cols] */
    uint32_t n_tokens;
    float *x;          /* [n_tokens][n_cols] */
    float *y;          /* [n_tokens][n_rows] */
    void *scratch;
} product;

static void *aligned(size_t n_bytes) { return aligned_alloc(ALIGN, (n_bytes / ALIGN + 1) * ALIGN); }

static float uniform(void *rng) { return (float)(test_rng_u64(rng) >> 40) * 0x1p-23f - 1.0f; }

static void fill_rows(test_rng *rng, firni_weight_type type, size_t n_elements, uint8_t *rows, size_t n_bytes)
{
    if (firni_weight_block_cols(type) > 1) {
        for (size_t i = 0; i < n_bytes; i++) {
            rows[i] = (uint8_t)test_rng_u64(rng);
        }
        weight_rows_set_scales(type, rows, n_bytes, uniform, rng);
        return;
    }
    for (size_t i = 0; i < n_elements; i++) {
        const float x = test_rng_normal(rng) * 0.1f;
        const uint16_t half = type == FIRNI_WEIGHT_F16 ? firni_f16_from_f32(x) : firni_bf16_from_f32(x);
        const size_t size = type == FIRNI_WEIGHT_F32 ? 4 : 2;
        memcpy(rows + i * size, size == 4 ? (const void *)&x : (const void *)&half, size);
    }
}

static product product_create(test_rng *rng, firni_weight_type type, uint32_t n_rows, uint32_t n_cols,
                              uint32_t n_tokens)
{
    const size_t row_bytes = firni_weight_row_bytes(type, n_cols);
    product p = {
        .w = {.type = type, .n_rows = n_rows, .n_cols = n_cols},
        .rows = malloc(n_rows * row_bytes + 1),
        .panels = aligned(firni_matrix_bytes(type, n_rows, n_cols)),
        .exact_w = malloc(sizeof(double) * n_rows * n_cols),
        .n_tokens = n_tokens,
        .x = malloc(sizeof(float) * n_tokens * n_cols),
        .y = malloc(sizeof(float) * n_tokens * n_rows),
        .scratch = aligned(firni_matmul_scratch_bytes(n_cols, n_tokens)),
    };
    fill_rows(rng, type, (size_t)n_rows * n_cols, p.rows, n_rows * row_bytes);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t k = 0; k < n_cols; k++) {
            p.exact_w[(size_t)r * n_cols + k] = weight_exact(type, p.rows + r * row_bytes, k);
        }
    }
    for (size_t i = 0; i < (size_t)n_tokens * n_cols; i++) {
        p.x[i] = test_rng_normal(rng);
    }
    firni_matrix_pack(type, n_rows, n_cols, p.rows, p.panels, 0, (n_rows + 15) / 16);
    p.w.panels = p.panels;
    return p;
}

static void product_destroy(product *p)
{
    free(p->rows);
    free(p->panels);
    free(p->exact_w);
    free(p->x);
    free(p->y);
    free(p->scratch);
}

static product random_product(test_rng *rng, uint32_t n_tokens)
{
    const firni_weight_type type = (firni_weight_type)test_rng_below(rng, FIRNI_WEIGHT_TYPES);
    const uint32_t block_cols = firni_weight_block_cols(type);
    const uint32_t n_blocks = 1 + test_rng_below(rng, block_cols == 1 ? 200 : block_cols == 32 ? 8 : 3);
    const uint32_t n_cols = block_cols * n_blocks;
    return product_create(rng, type, 1 + test_rng_below(rng, 300), n_cols, n_tokens);
}

static void products_agree_with_double_precision(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("exactness", 1);
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    for (int round = 0; round < 120; round++) {
        product p = random_product(&rng, 1 + test_rng_below(&rng, 9));
        firni_matmul(kernels, NULL, &p.w, p.x, p.w.n_cols, p.y, p.w.n_rows, p.n_tokens, p.scratch);
        /* f32 rounding of a chain; for grouped weights also half a step of 1/32767 of the largest activation in each
         * term. */
        const bool grouped = firni_weight_block_cols(p.w.type) > 1;
        const double step = grouped ? 0.5 / 32767 : 0.0;
        for (uint32_t t = 0; t < p.n_tokens; t++) {
            double largest = 0.0;
            for (uint32_t k = 0; k < p.w.n_cols; k++) {
                largest = fmax(largest, fabs((double)p.x[t * p.w.n_cols + k]));
            }
            for (uint32_t r = 0; r < p.w.n_rows; r++) {
                double exact = 0.0, magnitude = 0.0, weights = 0.0;
                for (uint32_t k = 0; k < p.w.n_cols; k++) {
                    const double term = p.exact_w[(size_t)r * p.w.n_cols + k] * (double)p.x[t * p.w.n_cols + k];
                    exact += term;
                    magnitude += fabs(term);
                    weights += fabs(p.exact_w[(size_t)r * p.w.n_cols + k]);
                }
                const double tolerance = 1e-6 * magnitude + step * weights * largest + 1e-30;
                assert_true(fabs((double)p.y[t * p.w.n_rows + r] - exact) <= tolerance);
            }
        }
        product_destroy(&p);
    }
}

static void many_tokens_give_the_bits_of_one_at_a_time(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("one and many", 2);
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    for (uint32_t n_tokens = 1; n_tokens <= 48; n_tokens++) {
        for (int round = 0; round < 8; round++) {
            product p = random_product(&rng, n_tokens);
            firni_matmul(kernels, NULL, &p.w, p.x, p.w.n_cols, p.y, p.w.n_rows, n_tokens, p.scratch);
            float *alone = malloc(sizeof(float) * p.w.n_rows);
            for (uint32_t t = 0; t < n_tokens; t++) {
                const float *x = p.x + (size_t)t * p.w.n_cols;
                firni_matmul(kernels, NULL, &p.w, x, p.w.n_cols, alone, p.w.n_rows, 1, p.scratch);
                assert_memory_equal(alone, p.y + (size_t)t * p.w.n_rows, sizeof(float) * p.w.n_rows);
            }
            free(alone);
            product_destroy(&p);
        }
    }
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("threads", 3);
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    firn_workers *teams[4] = {NULL}; /* NULL runs inline */
    for (uint32_t n = 1; n <= 3; n++) {
        assert_ok(firn_workers_create(n, NULL, &teams[n], NULL));
    }
    for (int round = 0; round < 2 * FIRNI_WEIGHT_TYPES; round++) {
        const firni_weight_type type = (firni_weight_type)(round % FIRNI_WEIGHT_TYPES);
        const uint32_t n_tokens = round < FIRNI_WEIGHT_TYPES ? 1 + test_rng_below(&rng, 40) : 1;
        const uint32_t n_cols = firni_weight_block_cols(type) == 256 ? 256 : 96;
        product p = product_create(&rng, type, 1000 + test_rng_below(&rng, 60), n_cols, n_tokens);
        const size_t y_floats = (size_t)p.n_tokens * p.w.n_rows;
        float *first = malloc(sizeof(float) * y_floats);
        for (unsigned i = 0; i < 4; i++) {
            memset(p.y, 0xff, sizeof(float) * y_floats);
            firni_matmul(kernels, teams[i], &p.w, p.x, p.w.n_cols, p.y, p.w.n_rows, p.n_tokens, p.scratch);
            if (i == 0) {
                memcpy(first, p.y, sizeof(float) * y_floats);
            }
            assert_memory_equal(first, p.y, sizeof(float) * y_floats);
        }
        free(first);
        product_destroy(&p);
    }
    for (uint32_t n = 1; n <= 3; n++) {
        firn_workers_destroy(teams[n]);
    }
}

static void panels_may_be_packed_in_pieces(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("packing", 4);
    for (int round = 0; round < 40; round++) {
        product p = random_product(&rng, 1);
        const uint32_t n_panels = (p.w.n_rows + 15) / 16;
        const size_t n_bytes = firni_matrix_bytes(p.w.type, p.w.n_rows, p.w.n_cols);
        /* As large as the file's rows, but for the scales of two formats. */
        const size_t file_bytes = (size_t)n_panels * 16 * firni_weight_row_bytes(p.w.type, p.w.n_cols);
        const bool spread = p.w.type == FIRNI_WEIGHT_Q4_K || p.w.type == FIRNI_WEIGHT_Q5_K;
        assert_int_equal(n_bytes, file_bytes + (spread ? (size_t)n_panels * 16 * 4 * (p.w.n_cols / 256) : 0));
        uint8_t *pieces = aligned(n_bytes);
        memset(pieces, 0xff, n_bytes);
        for (uint32_t first = 0; first < n_panels;) {
            const uint32_t n = 1 + test_rng_below(&rng, n_panels - first);
            const uint8_t *src = p.rows + (size_t)first * 16 * firni_weight_row_bytes(p.w.type, p.w.n_cols);
            firni_matrix_pack(p.w.type, p.w.n_rows, p.w.n_cols, src, pieces, first, n);
            first += n;
        }
        assert_memory_equal(pieces, p.panels, n_bytes);
        free(pieces);
        product_destroy(&p);
    }
}

static void strides_are_respected_and_the_gaps_untouched(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("strides", 5);
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    for (int round = 0; round < 40; round++) {
        product p = random_product(&rng, 1 + test_rng_below(&rng, 20));
        const size_t x_stride = p.w.n_cols + 7;
        const size_t y_stride = p.w.n_rows + 5;
        float *x = malloc(sizeof(float) * p.n_tokens * x_stride);
        float *y = malloc(sizeof(float) * p.n_tokens * y_stride);
        for (size_t i = 0; i < p.n_tokens * x_stride; i++) {
            x[i] = NAN;
        }
        for (size_t i = 0; i < p.n_tokens * y_stride; i++) {
            y[i] = 12345.0f;
        }
        for (uint32_t t = 0; t < p.n_tokens; t++) {
            memcpy(x + t * x_stride, p.x + (size_t)t * p.w.n_cols, sizeof(float) * p.w.n_cols);
        }
        firni_matmul(kernels, NULL, &p.w, p.x, p.w.n_cols, p.y, p.w.n_rows, p.n_tokens, p.scratch);
        firni_matmul(kernels, NULL, &p.w, x, x_stride, y, y_stride, p.n_tokens, p.scratch);
        for (uint32_t t = 0; t < p.n_tokens; t++) {
            assert_memory_equal(y + t * y_stride, p.y + (size_t)t * p.w.n_rows, sizeof(float) * p.w.n_rows);
            for (size_t i = p.w.n_rows; i < y_stride; i++) {
                assert_true(y[t * y_stride + i] == 12345.0f);
            }
        }
        free(x);
        free(y);
        product_destroy(&p);
    }
}

static void activations_of_every_size_survive_quantisation(void **state)
{
    (void)state;
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    test_rng rng = test_rng_create("magnitudes", 6);
    /* Large, small, so small that the group counts as zero, and all zero. */
    const float scales[] = {1e30f, 1.0f, 1e-25f, 1e-33f, 0.0f};
    for (firni_weight_type type = FIRNI_WEIGHT_Q8_0; type < FIRNI_WEIGHT_TYPES; type++) {
        const uint32_t n = firni_weight_block_cols(type);
        product p = product_create(&rng, type, 16, n, 5);
        for (uint32_t t = 0; t < 5; t++) {
            for (uint32_t k = 0; k < n; k++) {
                p.x[t * n + k] = scales[t] * (k % 2 == 0 ? 1.0f : -0.25f);
            }
        }
        firni_matmul(kernels, NULL, &p.w, p.x, n, p.y, 16, 5, p.scratch);
        for (uint32_t t = 0; t < 5; t++) {
            for (uint32_t r = 0; r < 16; r++) {
                double exact = 0.0, magnitude = 0.0;
                for (uint32_t k = 0; k < n; k++) {
                    exact += p.exact_w[r * n + k] * (double)p.x[t * n + k];
                    magnitude += fabs(p.exact_w[r * n + k] * (double)p.x[t * n + k]);
                }
                if (t < 3) {
                    assert_true(fabs((double)p.y[t * 16 + r] - exact) <= 1e-4 * magnitude);
                } else {
                    assert_true(p.y[t * 16 + r] == 0.0f);
                }
            }
        }
        product_destroy(&p);
    }
}

static void an_activation_that_is_no_number_cannot_pass_for_one(void **state)
{
    (void)state;
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    test_rng rng = test_rng_create("not numbers", 7);
    for (uint32_t i = 0; i < n_names; i++) {
        const firni_kernels *kernels = firni_kernels_select(names[i], NULL);
        for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
            const uint32_t n = firni_weight_block_cols(type) == 256 ? 256 : 64;
            product p = product_create(&rng, type, 20, n, 3);
            p.x[n + 40] = i % 2 == 0 ? NAN : -INFINITY;
            firni_matmul(kernels, NULL, &p.w, p.x, n, p.y, 20, 3, p.scratch);
            for (uint32_t r = 0; r < 20; r++) {
                assert_true(isfinite(p.y[r]) && isfinite(p.y[40 + r]));
                assert_true(!isfinite(p.y[20 + r]));
            }
            product_destroy(&p);
        }
    }
}

/* A file may hold anything: scales that are NaN or infinite reach the outputs of their own row and no other. */
static void hostile_scales_stay_in_their_row(void **state)
{
    (void)state;
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    static const uint16_t halves[] = {0x7e00, 0xffff, 0x7c00, 0xfc00};
    test_rng rng = test_rng_create("hostile scales", 9);
    for (uint32_t i = 0; i < n_names * 4; i++) {
        const firni_kernels *kernels = firni_kernels_select(names[i / 4], NULL);
        for (firni_weight_type type = FIRNI_WEIGHT_Q8_0; type < FIRNI_WEIGHT_TYPES; type++) {
            const weight_fields fields = weight_fields_of(type);
            const uint32_t n = 256;
            product p = product_create(&rng, type, 20, n, 7);
            uint8_t *block = p.rows + 3 * firni_weight_row_bytes(type, n);
            if (fields.scale_at < 0) {
                block[0] = 255;
            } else {
                memcpy(block + fields.scale_at, &halves[i % 4], 2);
            }
            firni_matrix_pack(type, 20, n, p.rows, p.panels, 0, 2);
            firni_matmul(kernels, NULL, &p.w, p.x, n, p.y, 20, 7, p.scratch);
            float *row = malloc(n * sizeof *row);
            firni_weight_row_to_f32(type, block, n, row);
            assert_true(!isfinite(row[0]));
            free(row);
            for (uint32_t r = 0; r < 7 * 20; r++) {
                assert_true(r % 20 == 3 ? !isfinite(p.y[r]) : isfinite(p.y[r]));
            }
            product_destroy(&p);
        }
    }
}

/* Every byte of a block at random, NaN included: nothing is read or written outside, and nothing traps. */
static void rows_of_any_bytes_are_computed_with(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("any bytes", 10);
    const firni_kernels *kernels = firni_kernels_select(NULL, NULL);
    for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
        for (uint32_t filling = 0; filling < 3; filling++) {
            product p = product_create(&rng, type, 17, 256, 3);
            const size_t n_bytes = 17 * firni_weight_row_bytes(type, 256);
            for (size_t i = 0; i < n_bytes; i++) {
                p.rows[i] = filling == 0 ? 0xff : filling == 1 ? 0 : (uint8_t)test_rng_u64(&rng);
            }
            firni_matrix_pack(type, 17, 256, p.rows, p.panels, 0, 2);
            firni_matmul(kernels, NULL, &p.w, p.x, 256, p.y, 17, 3, p.scratch);
            for (uint32_t i = 0; i < 3 * 17; i++) {
                assert_true(filling != 1 || p.y[i] == 0.0f || type == FIRNI_WEIGHT_MXFP4);
            }
            product_destroy(&p);
        }
    }
}

static void rows_convert_to_f32_as_they_lie_in_a_file(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("rows", 8);
    for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
        const uint32_t n = firni_weight_block_cols(type) == 256 ? 512 : 96;
        product p = product_create(&rng, type, 3, n, 1);
        float row[512];
        for (uint32_t r = 0; r < 3; r++) {
            firni_weight_row_to_f32(type, p.rows + r * firni_weight_row_bytes(type, n), n, row);
            for (uint32_t k = 0; k < n; k++) {
                assert_true(fabs((double)row[k] - p.exact_w[r * n + k]) <= 1e-7 * fabs(p.exact_w[r * n + k]));
            }
        }
        product_destroy(&p);
    }
}

static void row_sizes_follow_the_file_format(void **state)
{
    (void)state;
    assert_int_equal(firni_weight_row_bytes(FIRNI_WEIGHT_F32, 5), 20);
    assert_int_equal(firni_weight_row_bytes(FIRNI_WEIGHT_F16, 5), 10);
    assert_int_equal(firni_weight_row_bytes(FIRNI_WEIGHT_BF16, 5), 10);
    assert_int_equal(firni_weight_row_bytes(FIRNI_WEIGHT_Q8_0, 64), 68);
    assert_int_equal(firni_weight_row_bytes(FIRNI_WEIGHT_Q8_0, 65), 0); /* groups of 32 only */
    static const struct {
        firni_weight_type type;
        const char *name;
        size_t bytes_of_256;
    } grouped[] = {
        { FIRNI_WEIGHT_Q8_0, "q8_0", 272 }, { FIRNI_WEIGHT_Q4_0, "q4_0", 144 }, { FIRNI_WEIGHT_Q4_1, "q4_1", 160 },
        { FIRNI_WEIGHT_Q5_0, "q5_0", 176 }, { FIRNI_WEIGHT_Q5_1, "q5_1", 192 }, { FIRNI_WEIGHT_Q4_K, "q4_K", 144 },
        { FIRNI_WEIGHT_Q5_K, "q5_K", 176 }, { FIRNI_WEIGHT_Q6_K, "q6_K", 210 }, { FIRNI_WEIGHT_MXFP4, "mxfp4", 136 },
    };
    for (size_t i = 0; i < sizeof grouped / sizeof grouped[0]; i++) {
        const uint32_t block_cols = firni_weight_block_cols(grouped[i].type);
        assert_string_equal(firni_weight_type_name(grouped[i].type), grouped[i].name);
        assert_int_equal(firni_weight_row_bytes(grouped[i].type, 256), grouped[i].bytes_of_256);
        assert_int_equal(firni_weight_row_bytes(grouped[i].type, 256 + block_cols / 2), 0);
    }
    assert_string_equal(firni_weight_type_name(FIRNI_WEIGHT_BF16), "bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_double_precision),
        cmocka_unit_test(many_tokens_give_the_bits_of_one_at_a_time),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(panels_may_be_packed_in_pieces),
        cmocka_unit_test(strides_are_respected_and_the_gaps_untouched),
        cmocka_unit_test(activations_of_every_size_survive_quantisation),
        cmocka_unit_test(an_activation_that_is_no_number_cannot_pass_for_one),
        cmocka_unit_test(hostile_scales_stay_in_their_row),
        cmocka_unit_test(rows_of_any_bytes_are_computed_with),
        cmocka_unit_test(rows_convert_to_f32_as_they_lie_in_a_file),
        cmocka_unit_test(row_sizes_follow_the_file_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
