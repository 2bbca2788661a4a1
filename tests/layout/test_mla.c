/*
 * What latent layouts have of their own: one vector per token, attention in double precision, the selection of the
 * sparse form, index keys that never part from their latents, and signatures that keep a drafter's row apart.
 */
#include "layout/rig.h"

#include <math.h>

enum { N = 150, HEADS = 5, DIM = 40, VALUE = 32, INDEX_DIM = 12, INDEX_HEADS = 3 };

static const firn_cache_options dense_options = {
    .layout = "kv:mla", .dtype = FIRN_DTYPE_F32, .head_dim = DIM, .value_dim = VALUE,
};

static firn_cache_options sparse_options(uint32_t top_k)
{
    firn_cache_options options = dense_options;
    options.layout = "kv:mla:dsa";
    options.index_dim = INDEX_DIM;
    options.index_top_k = top_k;
    return options;
}

/* Everything that N tokens bring. */
typedef struct inputs {
    float k[N][DIM];
    float q[N][HEADS][DIM];
    float index_key[N][INDEX_DIM];
    float index_q[N][INDEX_HEADS][INDEX_DIM];
    float index_weights[N][INDEX_HEADS];
} inputs;

static inputs *random_inputs(test_rng *rng)
{
    inputs *in = malloc(sizeof *in);
    assert_non_null(in);
    float *all = (float *)in;
    for (size_t i = 0; i < sizeof *in / sizeof(float); i++) {
        all[i] = test_rng_normal(rng);
    }
    return in;
}

/* One row with n tokens of `in` from `first` on. */
static void feed(firn_cache *cache, const inputs *in, uint32_t first, uint32_t n)
{
    const bool sparse = firn_cache_get_options(cache)->index_dim > 0;
    const firn_append_input input = { .k = in->k[first], .index_key = sparse ? in->index_key[first] : NULL };
    assert_ok(firn_cache_append(cache, &input, &n, NULL, NULL));
}

/* Attention of the last n of the row's tokens, into out[position]. */
static void attend(const firn_cache *cache, const inputs *in, uint32_t n, firn_workers *workers,
                   float out[N][HEADS][VALUE])
{
    const bool sparse = firn_cache_get_options(cache)->index_dim > 0;
    const uint32_t first = firn_cache_row_tokens(cache, 0) - n;
    const firn_attend_input input = {
        .q = in->q[first][0],
        .out = out[first][0],
        .n_heads = HEADS,
        .scale = 0.3F,
        .index_q = sparse ? in->index_q[first][0] : NULL,
        .index_weights = sparse ? in->index_weights[first] : NULL,
        .n_index_heads = sparse ? INDEX_HEADS : 0,
    };
    assert_ok(firn_cache_attend(cache, &input, &n, workers, NULL));
}

static firn_cache *row_of(const firn_cache_options *options, firn_pool *pool, const inputs *in)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    feed(cache, in, 0, N);
    return cache;
}

/* ---- references ---- */

/* Which tokens the query at t sees: the top_k best by a plain sort of all scores, older ones first among equals. */
static void reference_selection(const inputs *in, uint32_t t, uint32_t top_k, bool seen[N])
{
    double scores[N];
    for (uint32_t s = 0; s <= t; s++) {
        scores[s] = 0.0;
        for (uint32_t h = 0; h < INDEX_HEADS; h++) {
            double dot = 0.0;
            for (uint32_t d = 0; d < INDEX_DIM; d++) {
                dot += (double)in->index_q[t][h][d] * (double)in->index_key[s][d];
            }
            scores[s] += (double)in->index_weights[t][h] * (dot > 0.0 ? dot : 0.0);
        }
    }
    for (uint32_t s = 0; s <= t; s++) {
        uint32_t n_better = 0;
        for (uint32_t other = 0; other <= t; other++) {
            n_better += scores[other] > scores[s] || (scores[other] == scores[s] && other < s);
        }
        seen[s] = n_better < top_k;
    }
}

static void reference_attention(const inputs *in, uint32_t t, uint32_t head, const bool seen[N], double out[VALUE])
{
    double weights[N];
    double sum = 0.0;
    for (uint32_t s = 0; s <= t; s++) {
        double dot = 0.0;
        for (uint32_t d = 0; d < DIM; d++) {
            dot += (double)in->q[t][head][d] * (double)in->k[s][d];
        }
        weights[s] = seen[s] ? exp(dot * (double)0.3F - 20.0) : 0.0;
        sum += weights[s];
    }
    for (uint32_t j = 0; j < VALUE; j++) {
        out[j] = 0.0;
        for (uint32_t s = 0; s <= t; s++) {
            out[j] += weights[s] / sum * (double)in->k[s][j];
        }
    }
}

static void compare_with_reference(const firn_cache_options *options, uint64_t seed)
{
    test_rng rng = test_rng_create(options->layout, seed);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    inputs *in = random_inputs(&rng);
    firn_cache *cache = row_of(options, pool, in);
    static float out[N][HEADS][VALUE];
    attend(cache, in, N, NULL, out);
    for (uint32_t t = 0; t < N; t++) {
        bool seen[N];
        reference_selection(in, t, options->index_top_k > 0 ? options->index_top_k : N, seen);
        for (uint32_t h = 0; h < HEADS; h++) {
            double expected[VALUE];
            reference_attention(in, t, h, seen, expected);
            for (uint32_t j = 0; j < VALUE; j++) {
                if (!(fabs((double)out[t][h][j] - expected[j]) < 2e-5)) {
                    fail_msg("%s: token %u, head %u: %g instead of %g", options->layout, t, h, (double)out[t][h][j],
                             expected[j]);
                }
            }
        }
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    free(in);
}

static void values_are_the_first_elements_of_keys(void **state)
{
    (void)state;
    compare_with_reference(&dense_options, 1);
}

static void a_sparse_query_sees_the_best_tokens_and_nothing_else(void **state)
{
    (void)state;
    static const uint32_t tops[] = { 1, 2, 17, 64, N - 1 };
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++) {
        const firn_cache_options options = sparse_options(tops[i]);
        compare_with_reference(&options, 2 + i);
    }
}

/* ---- selection ---- */

static void few_tokens_give_the_bits_of_dense_attention(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("dense and sparse", 11);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    inputs *in = random_inputs(&rng);
    static float dense[N][HEADS][VALUE];
    static float sparse[N][HEADS][VALUE];
    const firn_cache_options all = sparse_options(N);
    const firn_cache_options some = sparse_options(100);
    firn_cache *a = row_of(&dense_options, pool, in);
    firn_cache *b = row_of(&all, pool, in);
    firn_cache *c = row_of(&some, pool, in);
    attend(a, in, N, NULL, dense);
    attend(b, in, N, NULL, sparse);
    assert_memory_equal(dense, sparse, sizeof dense);
    attend(c, in, N, NULL, sparse);
    assert_memory_equal(dense, sparse, 100 * sizeof dense[0]);
    for (uint32_t t = 100; t < N; t++) {
        assert_memory_not_equal(dense[t], sparse[t], sizeof dense[t]);
    }
    firn_cache_destroy(a);
    firn_cache_destroy(b);
    firn_cache_destroy(c);
    firn_pool_destroy(pool);
    free(in);
}

/* Twenty different index keys, over and over: most scores occur several times. */
static void equal_scores_go_to_the_older_token(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("ties", 12);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    inputs *in = random_inputs(&rng);
    for (uint32_t t = 20; t < N; t++) {
        memcpy(in->index_key[t], in->index_key[t % 20], sizeof in->index_key[t]);
    }
    static float out[N][HEADS][VALUE];
    for (uint32_t top_k = 1; top_k < 60; top_k += 7) {
        const firn_cache_options options = sparse_options(top_k);
        firn_cache *cache = row_of(&options, pool, in);
        attend(cache, in, N, NULL, out);
        for (uint32_t t = 0; t < N; t++) {
            bool seen[N];
            double expected[VALUE];
            reference_selection(in, t, top_k, seen);
            reference_attention(in, t, 0, seen, expected);
            for (uint32_t j = 0; j < VALUE; j++) {
                assert_true(fabs((double)out[t][0][j] - expected[j]) < 2e-5);
            }
        }
        firn_cache_destroy(cache);
    }
    firn_pool_destroy(pool);
    free(in);
}

static void scores_that_are_no_numbers_do_no_harm(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("nan scores", 13);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    inputs *in = random_inputs(&rng);
    for (uint32_t t = 0; t < N; t += 3) {
        in->index_weights[t][0] = t % 2 == 0 ? NAN : INFINITY;
    }
    const firn_cache_options options = sparse_options(9);
    static float out[N][HEADS][VALUE];
    firn_cache *cache = row_of(&options, pool, in);
    attend(cache, in, N, NULL, out);
    for (uint32_t t = 0; t < N; t++) {
        for (uint32_t j = 0; j < VALUE; j++) {
            assert_true(isfinite(out[t][0][j]));
        }
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    free(in);
}

static void heads_may_be_divided_over_threads(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("threads", 14);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    inputs *in = random_inputs(&rng);
    const firn_cache_options sparse = sparse_options(30);
    const firn_cache_options *const both[] = { &dense_options, &sparse };
    for (uint32_t threads = 2; threads <= 8; threads += 2) {
        firn_workers *workers;
        assert_ok(firn_workers_create(threads, NULL, &workers, NULL));
        for (size_t i = 0; i < 2; i++) {
            static float alone[N][HEADS][VALUE];
            static float shared[N][HEADS][VALUE];
            firn_cache *cache = row_of(both[i], pool, in);
            attend(cache, in, 1, NULL, alone);
            attend(cache, in, 1, workers, shared);
            assert_memory_equal(alone[N - 1], shared[N - 1], sizeof alone[0]);
            firn_cache_destroy(cache);
        }
        firn_workers_destroy(workers);
    }
    firn_pool_destroy(pool);
    free(in);
}

/* ---- what is stored ---- */

static void a_token_costs_its_latent_and_rope_key_once(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options v3 = { .layout = "kv:mla", .head_dim = 576, .value_dim = 512 };
    firn_cache_options v32 = v3;
    v32.layout = "kv:mla:dsa";
    v32.index_dim = 128;
    v32.index_top_k = 2048;
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    firn_cache *cache = rig_cache(&v3, pool);
    assert_int_equal(firn_cache_bytes_per_token(cache), 576 * 2);
    assert_int_equal(firn_cache_block_bytes(cache), 64 * 576 * 2);
    assert_int_equal(firn_cache_planes(cache, planes), 1);
    assert_string_equal(planes[0].name, "latent");
    assert_int_equal(planes[0].n_bytes, 64 * 576 * 2);
    firn_cache_destroy(cache);
    cache = rig_cache(&v32, pool);
    assert_int_equal(firn_cache_bytes_per_token(cache), (576 + 128) * 2);
    assert_int_equal(firn_cache_block_bytes(cache), 64 * (576 + 128) * 2);
    assert_int_equal(firn_cache_planes(cache, planes), 2);
    assert_string_equal(planes[1].name, "index");
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* Cut back, gone on with other tokens: queries select by the index keys of the new ones. */
static void index_keys_are_cut_and_replaced_with_their_latents(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("cuts", 15);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = sparse_options(20);
    static float expected[N][HEADS][VALUE];
    static float got[N][HEADS][VALUE];
    for (uint32_t cut = 1; cut < N; cut += 13) {
        inputs *first = random_inputs(&rng);
        inputs *second = random_inputs(&rng);
        memcpy(second->k, first->k, (N - cut) * sizeof first->k[0]);
        memcpy(second->index_key, first->index_key, (N - cut) * sizeof first->index_key[0]);
        firn_cache *changed = row_of(&options, pool, first);
        firn_cache *fresh = row_of(&options, pool, second);
        firn_donor *donor;
        assert_ok(firn_cache_capture_donor(changed, &donor, NULL));
        if (cut % 2 == 0) {
            assert_ok(firn_cache_trim(changed, cut, false, NULL));
            feed(changed, second, N - cut, cut);
        } else {
            /* The same by way of a round. */
            assert_ok(firn_cache_trim(changed, cut, false, NULL));
            assert_ok(firn_cache_spec_begin(changed, NULL));
            feed(changed, first, N - cut, cut);
            assert_ok(firn_cache_spec_rollback(changed, (uint32_t[]){ 0 }, NULL));
            feed(changed, second, N - cut, cut);
        }
        firn_cache_check(changed);
        attend(changed, second, cut, NULL, got);
        attend(fresh, second, cut, NULL, expected);
        assert_memory_equal(got[N - cut], expected[N - cut], cut * sizeof got[0]);
        firn_donor_destroy(donor);
        firn_cache_destroy(changed);
        firn_cache_destroy(fresh);
        free(first);
        free(second);
    }
    firn_pool_destroy(pool);
}

static void a_drafter_s_row_is_never_the_model_s(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache_options drafter = dense_options;
    drafter.layout = "kv:mla:mtp";
    const rig_tokens tokens = rig_sequence(0, 70);
    firn_cache *model = rig_fresh(&dense_options, pool, &tokens);
    firn_cache *target = rig_cache(&drafter, pool);
    firn_error err = { .message = "" };
    assert_string_equal(firn_cache_signature(model), "kv:mla");
    assert_string_equal(firn_cache_signature(target), "kv:mla:mtp");
    assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ model }, 1, &err), FIRN_ERR_SIGNATURE);
    assert_non_null(strstr(err.message, "kv:mla:mtp"));
    assert_int_equal(firn_cache_batch_size(target), 0);
    firn_cache_destroy(model);
    firn_cache_destroy(target);
    firn_pool_destroy(pool);
}

static void refuse_options(const firn_cache_options *options, const char *words)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache;
    firn_error err = { .message = "" };
    assert_status(firn_cache_create(options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
    if (strstr(err.message, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    }
    firn_pool_destroy(pool);
}

static void options_that_do_not_fit_are_named(void **state)
{
    (void)state;
    firn_cache_options options = dense_options;
    options.n_kv_heads = 2;
    refuse_options(&options, "kv:mla has one key/value head, not 2");
    options = dense_options;
    options.value_dim = DIM + 1;
    refuse_options(&options, "not 40 and 41");
    options = dense_options;
    options.window = 7;
    refuse_options(&options, "window of 7");
    options = dense_options;
    options.index_dim = 4;
    refuse_options(&options, "kv:mla has no index keys");
    options = sparse_options(0);
    refuse_options(&options, "selects 1 to 4096 tokens, not 0");
    options = sparse_options(4097);
    refuse_options(&options, "not 4097");
    options = sparse_options(5);
    options.index_dim = 0;
    refuse_options(&options, "index keys of 1 to 1024 elements, not 0");
}

static void index_inputs_are_required_and_refused(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = sparse_options(5);
    const float x[HEADS * DIM] = { 0 };
    float out[HEADS * VALUE];
    const uint32_t one = 1;
    firn_error err = { .message = "" };
    firn_cache *sparse = rig_cache(&options, pool);
    firn_cache *dense = rig_cache(&dense_options, pool);
    assert_ok(firn_cache_add_row(sparse, NULL));
    assert_ok(firn_cache_add_row(dense, NULL));
    firn_append_input append = { .k = x };
    assert_status(firn_cache_append(sparse, &append, &one, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "kv:mla:dsa needs index keys"));
    append.index_key = x;
    assert_status(firn_cache_append(dense, &append, &one, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "kv:mla has no index keys"));
    assert_int_equal(firn_cache_row_tokens(sparse, 0), 0);
    assert_int_equal(firn_cache_row_tokens(dense, 0), 0);
    assert_ok(firn_cache_append(sparse, &append, &one, NULL, NULL));
    firn_attend_input attend_input = { .q = x, .out = out, .n_heads = HEADS, .scale = 1.0F };
    assert_status(firn_cache_attend(sparse, &attend_input, &one, NULL, &err), FIRN_ERR_INVALID);
    attend_input.index_q = x;
    attend_input.index_weights = x;
    assert_status(firn_cache_attend(sparse, &attend_input, &one, NULL, &err), FIRN_ERR_INVALID);
    attend_input.n_index_heads = 1025;
    assert_status(firn_cache_attend(sparse, &attend_input, &one, NULL, &err), FIRN_ERR_INVALID);
    assert_non_null(strstr(err.message, "1025 index heads"));
    attend_input.n_index_heads = 2;
    assert_ok(firn_cache_attend(sparse, &attend_input, &one, NULL, NULL));
    firn_cache_destroy(sparse);
    firn_cache_destroy(dense);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_the_first_elements_of_keys),
        cmocka_unit_test(a_sparse_query_sees_the_best_tokens_and_nothing_else),
        cmocka_unit_test(few_tokens_give_the_bits_of_dense_attention),
        cmocka_unit_test(equal_scores_go_to_the_older_token),
        cmocka_unit_test(scores_that_are_no_numbers_do_no_harm),
        cmocka_unit_test(heads_may_be_divided_over_threads),
        cmocka_unit_test(a_token_costs_its_latent_and_rope_key_once),
        cmocka_unit_test(index_keys_are_cut_and_replaced_with_their_latents),
        cmocka_unit_test(a_drafter_s_row_is_never_the_model_s),
        cmocka_unit_test(options_that_do_not_fit_are_named),
        cmocka_unit_test(index_inputs_are_required_and_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
