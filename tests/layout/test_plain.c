/*
 * kv:plain: options, planes, the dense view element by element, and attention against a naive one in double precision.
 */
#include <math.h>

#include "layout/rig.h"

static firn_cache_options plain(firn_dtype dtype, rig_geometry geometry)
{
    firn_cache_options options = rig_options(0, dtype, geometry);
    options.layout = "kv:plain";
    return options;
}

static void defaults_are_filled_in_and_described(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = { .layout = "kv:plain", .n_kv_heads = 8, .head_dim = 64 };
    firn_cache *cache = rig_cache(&options, pool);
    assert_int_equal(firn_cache_get_options(cache)->dtype, FIRN_DTYPE_F16);
    assert_int_equal(firn_cache_get_options(cache)->value_dim, 64);
    assert_non_null(firn_cache_get_options(cache)->kernel);
    assert_string_equal(firn_cache_describe(cache), "kv:plain f16 heads=8 dim=64/64 block=64");
    assert_int_equal(firn_cache_bytes_per_token(cache), 8 * (64 + 64) * 2);
    assert_int_equal(firn_cache_block_bytes(cache), 8 * (64 + 64) * 2 * 64);
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    assert_int_equal(firn_cache_planes(cache, planes), 2);
    assert_string_equal(planes[0].name, "k");
    assert_int_equal(planes[0].shape[1], 64); /* head_dim, tokens */
    assert_int_equal(planes[1].offset_bytes, 8 * 64 * 64 * 2);
    assert_string_equal(planes[1].name, "v");
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options good = { .layout = "kv:plain", .n_kv_heads = 8, .head_dim = 64 };
    firn_cache_options bad[7] = { good, good, good, good, good, good, good };
    bad[0].n_kv_heads = 0;
    bad[1].n_kv_heads = 1025;
    bad[2].head_dim = 0;
    bad[3].head_dim = 1025;
    bad[4].value_dim = 1025;
    bad[5].dtype = FIRN_DTYPE_I8;
    bad[6].dtype = (firn_dtype)99;
    for (size_t i = 0; i < 7; i++) {
        firn_cache *cache;
        firn_error err;
        assert_status(firn_cache_create(&bad[i], pool, NULL, &cache, &err), FIRN_ERR_INVALID);
        assert_null(cache);
        assert_non_null(strstr(err.message, "kv:plain"));
    }
    firn_pool_destroy(pool);
}

/* The element as it is stored: converted by the kernel's own conversion, one at a time. */
static void stored_element(uint8_t *out, firn_dtype dtype, float x)
{
    const firni_kernels *kernels = firni_kernels_select("scalar", NULL);
    assert_non_null(kernels);
    uint16_t half;
    switch (dtype) {
    case FIRN_DTYPE_F32: memcpy(out, &x, 4); return;
    case FIRN_DTYPE_F16: kernels->f32_to_f16(&half, &x, 1); break;
    default: kernels->f32_to_bf16(&half, &x, 1); break;
    }
    memcpy(out, &half, 2);
}

static void the_dense_view_has_each_element_in_its_place(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 70, 0, 3, 2 * RIG_T, 130 };
    enum { N_ROWS = 5, S = 130 };
    for (size_t d = 0; d < RIG_N_DTYPES; d++) {
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const rig_geometry geometry = rig_geometries[2];
        const firn_cache_options options = plain(rig_dtypes[d], geometry);
        firn_cache *cache = rig_cache(&options, pool);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            const rig_tokens tokens = rig_sequence(r, lengths[r]);
            assert_ok(firn_cache_add_row(cache, NULL));
            assert_ok(rig_feed_row(cache, r, tokens.id, tokens.n, NULL));
        }
        firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
        uint32_t n_tensors;
        assert_ok(firn_cache_state(cache, tensors, &n_tensors, NULL));
        assert_int_equal(n_tensors, 2);
        for (uint32_t t = 0; t < 2; t++) {
            const uint32_t dim = t == 0 ? geometry.head_dim : geometry.value_dim;
            const uint64_t shape[4] = { N_ROWS, geometry.n_kv_heads, S, dim };
            const size_t element_bytes = firn_dtype_bytes(rig_dtypes[d]);
            assert_memory_equal(tensors[t].shape, shape, sizeof shape);
            assert_true(tensors[t].owned);
            assert_int_equal(tensors[t].n_bytes, shape[0] * shape[1] * shape[2] * shape[3] * element_bytes);
            const uint8_t *got = tensors[t].data;
            float values[3 * 20];
            for (uint32_t r = 0; r < N_ROWS; r++) {
                const rig_tokens tokens = rig_sequence(r, lengths[r]);
                for (uint32_t s = 0; s < S; s++) {
                    const uint32_t pad = S - lengths[r];
                    memset(values, 0, sizeof values);
                    if (s >= pad) {
                        rig_fill(values, tokens.id[s - pad], t, (size_t)geometry.n_kv_heads * dim);
                    }
                    for (uint32_t i = 0; i < geometry.n_kv_heads * dim; i++) {
                        const size_t at = (((size_t)r * geometry.n_kv_heads + i / dim) * S + s) * dim + i % dim;
                        uint8_t expected[4] = { 0 };
                        stored_element(expected, rig_dtypes[d], values[i]);
                        assert_memory_equal(got + at * element_bytes, expected, element_bytes);
                    }
                }
            }
            firn_tensor_deinit(&tensors[t]);
        }
        firn_cache_destroy(cache);
        firn_pool_destroy(pool);
    }
}

/* V of one row in one block is where the dense view wants it when no head has a gap behind it; K never is. */
static void values_are_borrowed_where_memory_allows(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_kv_heads;
        uint32_t n_tokens;
        bool is_borrowed;
    } cases[] = {
        { 2, RIG_T, true }, { 2, RIG_T - 1, false }, { 2, RIG_T + 1, false }, { 1, 9, true }, { 1, RIG_T + 1, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const firn_cache_options options = plain(FIRN_DTYPE_F16, (rig_geometry){ cases[i].n_kv_heads, 16, 8 });
        const rig_tokens tokens = rig_sequence(0, cases[i].n_tokens);
        firn_cache *cache = rig_fresh(&options, pool, &tokens);
        firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
        uint32_t n_tensors;
        assert_ok(firn_cache_state(cache, tensors, &n_tensors, NULL));
        assert_true(tensors[0].owned);
        assert_int_equal(tensors[1].owned, !cases[i].is_borrowed);
        firn_plane planes[FIRN_CACHE_PLANES_MAX];
        (void)firn_cache_planes(cache, planes);
        /* Borrowed or not, token t of head h is at [h][t]. */
        const uint8_t *first = firn_block_data(firn_cache_view_row(cache, 0).blocks[0]) + planes[1].offset_bytes;
        for (uint32_t h = 0; h < cases[i].n_kv_heads; h++) {
            const uint32_t n = cases[i].n_tokens < RIG_T ? cases[i].n_tokens : RIG_T;
            assert_memory_equal((const uint8_t *)tensors[1].data + (size_t)h * cases[i].n_tokens * 16,
                                first + (size_t)h * RIG_T * 16, n * 16);
        }
        firn_tensor_deinit(&tensors[0]);
        firn_tensor_deinit(&tensors[1]);
        firn_cache_destroy(cache);
        firn_pool_destroy(pool);
    }
}

/* Softmax attention of one query head as in the textbook, over the values as given. */
static void naive_attention(double *out, const rig_tokens *tokens, uint32_t position, uint32_t head,
                            const firn_cache_options *options, const firn_attend_input *input)
{
    const uint32_t dim = options->head_dim;
    const uint32_t value_dim = options->value_dim;
    const uint32_t kv_head = head / (input->n_heads / options->n_kv_heads);
    float k[256];
    float v[256];
    double scores[RIG_TOKENS_MAX];
    const float *q = input->q + (size_t)position * input->n_heads * dim + (size_t)head * dim;
    double max = input->sinks != NULL ? (double)input->sinks[head] : -INFINITY;
    for (uint32_t t = 0; t <= position; t++) {
        rig_fill(k, tokens->id[t], 0, (size_t)options->n_kv_heads * dim);
        double score = 0.0;
        for (uint32_t i = 0; i < dim; i++) {
            score += (double)q[i] * (double)k[kv_head * dim + i];
        }
        score *= (double)input->scale;
        scores[t] = input->softcap > 0.0f ? (double)input->softcap * tanh(score / (double)input->softcap) : score;
        max = scores[t] > max ? scores[t] : max;
    }
    double sum = input->sinks != NULL ? exp((double)input->sinks[head] - max) : 0.0;
    memset(out, 0, value_dim * sizeof *out);
    for (uint32_t t = 0; t <= position; t++) {
        const double p = exp(scores[t] - max);
        rig_fill(v, tokens->id[t], 1, (size_t)options->n_kv_heads * value_dim);
        for (uint32_t i = 0; i < value_dim; i++) {
            out[i] += p * (double)v[kv_head * value_dim + i];
        }
        sum += p;
    }
    for (uint32_t i = 0; i < value_dim; i++) {
        out[i] /= sum;
    }
}

static void attention_is_softmax_attention(void **state)
{
    (void)state;
    enum { N = 150 };
    static const double tolerance[] = { 2e-3, 2e-6, 1.6e-2 }; /* of f16, f32, bf16; values lie within 1 */
    const rig_geometry geometry = rig_geometries[2];
    const uint32_t n_heads = geometry.n_kv_heads * RIG_GROUP;
    const rig_tokens tokens = rig_sequence(0, N);
    const float sinks[] = { 0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -3.0f };
    float *q = rig_floats(tokens.id, N, 2, (size_t)n_heads * geometry.head_dim);
    float *out = calloc((size_t)N * n_heads * geometry.value_dim, sizeof *out);
    assert_non_null(out);
    for (size_t d = 0; d < RIG_N_DTYPES; d++) {
        for (uint32_t variant = 0; variant < 3; variant++) {
            firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
            const firn_cache_options options = plain(rig_dtypes[d], geometry);
            firn_cache *cache = rig_fresh(&options, pool, &tokens);
            const firn_attend_input input = {
                .q = q,
                .out = out,
                .n_heads = n_heads,
                .scale = 0.7f,
                .softcap = variant == 1 ? 1.5f : 0.0f,
                .sinks = variant == 2 ? sinks : NULL,
            };
            assert_ok(firn_cache_attend(cache, &input, &tokens.n, NULL, NULL));
            double worst = 0.0;
            for (uint32_t p = 0; p < N; p++) {
                for (uint32_t h = 0; h < n_heads; h++) {
                    double expected[64];
                    naive_attention(expected, &tokens, p, h, &options, &input);
                    for (uint32_t i = 0; i < geometry.value_dim; i++) {
                        const double got = (double)out[((size_t)p * n_heads + h) * geometry.value_dim + i];
                        worst = fmax(worst, fabs(got - expected[i]));
                    }
                }
            }
            print_message("%s variant %u: worst difference %.2e\n", firn_dtype_name(rig_dtypes[d]), variant, worst);
            assert_true(worst < tolerance[d]);
            firn_cache_destroy(cache);
            firn_pool_destroy(pool);
        }
    }
    free(out);
    free(q);
}

/* State made with one kernel is continued by another. */
static void kernels_agree_to_the_bit(void **state)
{
    (void)state;
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    const rig_tokens tokens = rig_sequence(0, 200);
    for (size_t d = 0; d < RIG_N_DTYPES; d++) {
        for (size_t g = 0; g < RIG_N_GEOMETRIES; g++) {
            firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
            firn_cache_options options = plain(rig_dtypes[d], rig_geometries[g]);
            options.kernel = "scalar";
            firn_cache *scalar = rig_fresh(&options, pool, &tokens);
            size_t n_floats;
            float *expected = rig_attend(scalar, NULL, tokens.id, &tokens.n, NULL, &n_floats);
            for (uint32_t i = 0; i < n_names; i++) {
                options.kernel = names[i];
                firn_cache *cache = rig_fresh(&options, pool, &tokens);
                assert_string_equal(firn_cache_get_options(cache)->kernel, names[i]);
                float *got = rig_attend(cache, NULL, tokens.id, &tokens.n, NULL, &n_floats);
                assert_memory_equal(got, expected, n_floats * sizeof *got);
                const firn_row_view a = firn_cache_view_row(scalar, 0);
                const firn_row_view b = firn_cache_view_row(cache, 0);
                for (uint32_t j = 0; j < a.n_blocks; j++) {
                    assert_memory_equal(firn_block_data(a.blocks[j]), firn_block_data(b.blocks[j]),
                                        firn_cache_block_bytes(cache));
                }
                free(got);
                firn_cache_destroy(cache);
            }
            free(expected);
            firn_cache_destroy(scalar);
            firn_pool_destroy(pool);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled_in_and_described),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(the_dense_view_has_each_element_in_its_place),
        cmocka_unit_test(values_are_borrowed_where_memory_allows),
        cmocka_unit_test(attention_is_softmax_attention),
        cmocka_unit_test(kernels_agree_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
