/*
 * The dense view, as an outside engine would use it: attention in double precision over state() and dense_mask(), with
 * ragged rows, gives what attend gives.
 */
#include <math.h>

#include "layout/rig.h"

enum { N_QUERIES = 3, N_ROWS = 4 };

/* softmax(scale q.k) v over the columns that the mask lets through; false when it lets none. */
static bool attend_dense(const float *q, const float *k, const float *v, const uint8_t *mask, uint32_t width,
                         uint32_t head_dim, uint32_t value_dim, float scale, double *out)
{
    double *score = calloc(width, sizeof *score);
    assert_non_null(score);
    double max = -INFINITY;
    for (uint32_t c = 0; c < width; c++) {
        for (uint32_t d = 0; d < head_dim; d++) {
            score[c] += (double)q[d] * (double)k[(size_t)c * head_dim + d];
        }
        score[c] *= (double)scale;
        max = mask[c] != 0 && score[c] > max ? score[c] : max;
    }
    double sum = 0.0;
    for (uint32_t j = 0; j < value_dim; j++) {
        out[j] = 0.0;
    }
    for (uint32_t c = 0; c < width; c++) {
        const double weight = mask[c] != 0 ? exp(score[c] - max) : 0.0;
        sum += weight;
        for (uint32_t j = 0; j < value_dim; j++) {
            out[j] += weight * (double)v[(size_t)c * value_dim + j];
        }
    }
    for (uint32_t j = 0; j < value_dim; j++) {
        out[j] /= sum;
    }
    free(score);
    return sum > 0.0;
}

/* Rows of these lengths in one batch, f32 state, the last query of each. */
static void check(const char *layout, uint32_t window, const uint32_t lengths[N_ROWS])
{
    const firn_cache_options options = { .layout = layout, .dtype = FIRN_DTYPE_F32, .n_kv_heads = 2, .head_dim = 16,
                                         .value_dim = 12, .window = window };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *batch = rig_cache(&options, pool);
    uint64_t ids[N_ROWS];
    uint32_t counts[N_ROWS];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        const rig_tokens tokens = rig_sequence(r, lengths[r]);
        assert_ok(firn_cache_add_row(batch, NULL));
        assert_ok(rig_feed_row(batch, r, tokens.id, tokens.n, NULL));
        counts[r] = lengths[r] > 0 ? 1 : 0;
        ids[rig_sum(counts, r)] = lengths[r] > 0 ? tokens.id[tokens.n - 1] : 0;
    }
    size_t n_floats;
    float *attended = rig_attend(batch, NULL, ids, counts, NULL, &n_floats);
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(batch, tensors, &n_tensors, NULL));
    const uint32_t width = firn_cache_dense_width(batch);
    assert_int_equal(width, tensors[0].shape[2]);
    uint8_t *mask = malloc((size_t)N_ROWS * N_QUERIES * width + 1);
    assert_non_null(mask);
    firn_cache_dense_mask(batch, N_QUERIES, mask);

    const uint32_t n_heads = options.n_kv_heads * RIG_GROUP;
    const float *out = attended;
    for (uint32_t r = 0, token = 0; r < N_ROWS; r++) {
        const uint8_t *rows_mask = mask + (size_t)r * N_QUERIES * width;
        for (uint32_t i = 0; i < N_QUERIES; i++) {
            uint32_t n_seen = 0;
            for (uint32_t c = 0; c < width; c++) {
                n_seen += rows_mask[i * width + c];
            }
            /* What is both in the window and shown; the last query's whole window always is. */
            const uint32_t back = N_QUERIES - 1 - i;
            const uint32_t shown = window > 0 && window < lengths[r] ? window : lengths[r];
            assert_int_equal(n_seen, shown > back ? shown - back : 0);
        }
        if (counts[r] == 0) {
            continue;
        }
        float *q = rig_floats(&ids[token++], 1, 2, (size_t)n_heads * options.head_dim);
        for (uint32_t h = 0; h < n_heads; h++) {
            double expected[12];
            const size_t head = (size_t)r * options.n_kv_heads + h / RIG_GROUP;
            const float *k = (const float *)tensors[0].data + head * width * options.head_dim;
            const float *v = (const float *)tensors[1].data + head * width * options.value_dim;
            assert_true(attend_dense(q + (size_t)h * options.head_dim, k, v, rows_mask + (N_QUERIES - 1) * width, width,
                                     options.head_dim, options.value_dim, 0.25f, expected));
            for (uint32_t j = 0; j < options.value_dim; j++, out++) {
                assert_true(fabs((double)*out - expected[j]) < 1e-5);
            }
        }
        free(q);
    }
    for (uint32_t i = 0; i < n_tensors; i++) {
        firn_tensor_deinit(&tensors[i]);
    }
    free(mask);
    free(attended);
    firn_cache_destroy(batch);
    firn_pool_destroy(pool);
}

static void attention_over_the_dense_view_and_its_mask_is_that_of_the_cache(void **state)
{
    (void)state;
    static const uint32_t lengths[][N_ROWS] = { { 5, 0, 130, 64 }, { 1, 2, 3, 4 }, { 200, 63, 65, 1 } };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check("kv:plain", 0, lengths[i]);
        check("kv:window", 20, lengths[i]);
        check("kv:window", 101, lengths[i]);
    }
}

static void recurrent_and_empty_caches_have_no_columns(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options plain = { .layout = "kv:plain", .n_kv_heads = 1, .head_dim = 8 };
    const firn_cache_options recurrent = { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 8, .value_dim = 8,
                                           .n_state_heads = 2, .conv_width = 4 };
    firn_cache *empty = rig_cache(&plain, pool);
    firn_cache *fixed = rig_cache(&recurrent, pool);
    assert_ok(firn_cache_add_row(fixed, NULL));
    assert_int_equal(firn_cache_dense_width(empty), 0);
    assert_int_equal(firn_cache_dense_width(fixed), 0);
    firn_cache_dense_mask(fixed, 1, NULL);
    firn_cache_destroy(empty);
    firn_cache_destroy(fixed);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_over_the_dense_view_and_its_mask_is_that_of_the_cache),
        cmocka_unit_test(recurrent_and_empty_caches_have_no_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
