/*
 * kv:quant and kv:window-quant: options, planes, what is stored element by element, attention against double precision,
 * numbers that cannot be stored, and the edges of a window. Rows and rounds are the conformance suite's.
 */
#include "layout/quant_rig.h"

static firn_cache_options quant(uint32_t bits, uint32_t group, uint32_t head_dim, uint32_t value_dim)
{
    return (firn_cache_options){ .layout = "kv:quant",
                                 .key_bits = bits,
                                 .group = group,
                                 .n_kv_heads = QUANT_RIG_HEADS,
                                 .head_dim = head_dim,
                                 .value_dim = value_dim };
}

static void defaults_are_filled_in_and_described(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options = { .layout = "kv:quant", .n_kv_heads = 8, .head_dim = 128 };
    firn_cache *cache = rig_cache(&options, pool);
    assert_int_equal(firn_cache_get_options(cache)->key_bits, 8);
    assert_int_equal(firn_cache_get_options(cache)->value_bits, 8);
    assert_int_equal(firn_cache_get_options(cache)->group, 64);
    assert_string_equal(firn_cache_signature(cache), "kv:quant:8:64");
    assert_string_equal(firn_cache_describe(cache), "kv:quant:8:64 heads=8 dim=128/128 block=64");
    assert_int_equal(firn_cache_bytes_per_token(cache), 8 * 2 * (128 + 2 * 4));
    assert_int_equal(firn_cache_block_bytes(cache), 8 * 2 * (128 + 2 * 4) * 64);
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    assert_int_equal(firn_cache_planes(cache, planes), 6);
    static const char *const names[] = { "k", "k.scale", "k.bias", "v", "v.scale", "v.bias" };
    for (uint32_t i = 0; i < 6; i++) {
        assert_string_equal(planes[i].name, names[i]);
    }
    firn_cache_destroy(cache);

    /* 64 does not divide 96. */
    const firn_cache_options odd = { .layout = "kv:quant", .key_bits = 4, .n_kv_heads = 1, .head_dim = 96 };
    cache = rig_cache(&odd, pool);
    assert_string_equal(firn_cache_signature(cache), "kv:quant:4:32");
    assert_int_equal(firn_cache_bytes_per_token(cache), 2 * (48 + 3 * 4));
    firn_cache_destroy(cache);

    const firn_cache_options window = { .layout = "kv:window-quant", .window = 100, .n_kv_heads = 1, .head_dim = 64 };
    cache = rig_cache(&window, pool);
    assert_string_equal(firn_cache_describe(cache), "kv:window-quant:8:64 heads=1 dim=64/64 window=100 block=64");
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

/* Each message has the numbers in question. */
static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    static const struct {
        firn_cache_options options;
        const char *message;
    } bad[] = {
        { { .n_kv_heads = 1, .head_dim = 80 }, "groups of 32 do not divide heads of 80 and 80 elements" },
        { { .n_kv_heads = 1, .head_dim = 96, .group = 64 }, "groups of 64 do not divide heads of 96 and 96" },
        { { .n_kv_heads = 1, .head_dim = 64, .value_dim = 20 }, "groups of 32 do not divide heads of 64 and 20" },
        { { .n_kv_heads = 1, .head_dim = 64, .group = 128 }, "groups of 32 or 64 elements, not 128" },
        { { .n_kv_heads = 1, .head_dim = 64, .key_bits = 5 }, "8 or 4 bits for keys and values alike, not 5 and 5" },
        { { .n_kv_heads = 1, .head_dim = 64, .key_bits = 8, .value_bits = 4 }, "alike, not 8 and 4" },
        { { .n_kv_heads = 1, .head_dim = 64, .dtype = FIRN_DTYPE_BF16 }, "an element type of bf16 does not fit" },
        { { .n_kv_heads = 0, .head_dim = 64 }, "1 to 1024 key/value heads, not 0" },
        { { .n_kv_heads = 1, .head_dim = 2048 }, "heads of up to 1024 elements, not 2048" },
        { { .n_kv_heads = 1, .head_dim = 64, .window = 9 }, "a window of 9 does not fit" },
        { { .layout = "kv:window-quant", .n_kv_heads = 1, .head_dim = 64 },
          "a window of 1 to 2147483647 tokens, not 0" },
        { { .layout = "kv:plain", .n_kv_heads = 1, .head_dim = 64, .key_bits = 8 }, "kv:plain does not quantise" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        firn_cache_options options = bad[i].options;
        options.layout = options.layout != NULL ? options.layout : "kv:quant";
        firn_cache *cache;
        firn_error err;
        assert_status(firn_cache_create(&options, pool, NULL, &cache, &err), FIRN_ERR_INVALID);
        assert_null(cache);
        if (strstr(err.message, bad[i].message) == NULL || strstr(err.message, options.layout) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.message, bad[i].message);
        }
    }
    firn_pool_destroy(pool);
}

/* No element is further from what was given than half a step, and what the roundings of scale and bias add. */
static void stored_numbers_are_within_half_a_step(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t bits = i % 2 == 0 ? 8 : 4;
        const firn_cache_options options = quant(bits, i < 2 ? 32 : 64, 64, 128);
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const rig_tokens tokens = rig_sequence(1, RIG_T + 20);
        firn_cache *cache = rig_fresh(&options, pool, &tokens);
        quant_rig_row stored = quant_rig_stored(cache);
        quant_rig_row given = quant_rig_given(&options, &tokens);
        double worst = 0.0;
        for (size_t j = 0; j < (size_t)QUANT_RIG_HEADS * tokens.n * 64; j++) {
            worst = fmax(worst, fabs((double)stored.k[j] - (double)given.k[j]));
        }
        for (size_t j = 0; j < (size_t)QUANT_RIG_HEADS * tokens.n * 128; j++) {
            worst = fmax(worst, fabs((double)stored.v[j] - (double)given.v[j]));
        }
        /* Numbers lie in [-1, 1): a step is at most 2 / levels; f16 rounds a bias by 2^-12 and a range by 2^-11. */
        const double limit = 1.0 / (double)((1u << bits) - 1) + 0x1p-12 + 0x1p-11;
        print_message("%u bits: %.2e of %.2e\n", bits, worst, limit);
        assert_true(worst < limit);
        quant_rig_free(&stored);
        quant_rig_free(&given);
        firn_cache_destroy(cache);
        firn_pool_destroy(pool);
    }
}

/* Queries and weights of 16 bits add some 1e-5 to what the stored numbers would give. */
static void attention_is_softmax_attention_over_what_is_stored(void **state)
{
    (void)state;
    const firn_cache_options options[] = { quant(8, 64, 64, 64), quant(8, 32, 32, 96), quant(4, 64, 128, 64),
                                           quant(4, 32, 64, 64) };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const quant_rig_errors errors = quant_rig_measure(&options[i]);
        assert_true(errors.stored < 1e-4);
        assert_true(errors.given < (options[i].key_bits == 8 ? 5e-3 : 8e-2));
    }
}

/* What a window layout computes is what the full one would with the same window; the row keeps no more than that. */
static void a_window_sees_its_last_tokens(void **state)
{
    (void)state;
    for (uint32_t window = 1; window < 250; window += 83) {
        firn_cache_options options = quant(8, 64, 64, 64);
        options.layout = "kv:window-quant";
        options.window = window;
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const rig_tokens tokens = rig_sequence(3, 300);
        firn_cache *cache = rig_fed(&options, pool, &tokens);
        quant_rig_row given = quant_rig_given(&options, &tokens);
        assert_true(quant_rig_worst(cache, &tokens, &given) < 2e-2);
        firn_cache_settle(cache);
        assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, tokens.n));
        assert_int_equal(firn_cache_view_row(cache, 0).first_block, (tokens.n - window) / RIG_T);
        quant_rig_free(&given);
        firn_cache_destroy(cache);
        firn_pool_destroy(pool);
    }
}

/* Attention of the last query of a row of n tokens. */
static float *attend_last(firn_cache *cache, const rig_tokens *tokens, size_t *n_floats)
{
    const uint32_t one = 1;
    return rig_attend(cache, NULL, tokens->id + tokens->n - 1, &one, NULL, n_floats);
}

/* At offsets W - 1, W, W + 1 and 2 W + 3, however the row came there: token by token, merged, extracted, cut back. */
static void the_edges_of_a_window_are_exact(void **state)
{
    (void)state;
    enum { W = 100 };
    static const uint32_t offsets[] = { W - 1, W, W + 1, 2 * W + 3 };
    firn_cache_options options = quant(4, 32, 64, 64);
    options.layout = "kv:window-quant";
    options.window = W;
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const rig_tokens tokens = rig_sequence(2, offsets[i]);
        const rig_tokens more = rig_sequence(2, offsets[i] + 5);
        firn_cache *at_once = rig_fresh(&options, pool, &tokens);
        size_t n_floats;
        float *expected = attend_last(at_once, &tokens, &n_floats);

        firn_cache *stepwise = rig_cache(&options, pool);
        assert_ok(firn_cache_add_row(stepwise, NULL));
        for (uint32_t t = 0; t < more.n; t++) {
            const uint32_t one = 1;
            assert_ok(rig_feed(stepwise, more.id + t, &one, NULL, NULL));
        }
        assert_ok(firn_cache_trim(stepwise, 5, false, NULL));
        firn_cache *merged;
        assert_ok(firn_cache_make_empty(stepwise, &merged, NULL));
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ stepwise, at_once }, 2, NULL));
        firn_cache *extracted;
        assert_ok(firn_cache_extract_row(merged, 0, &extracted, NULL));
        firn_cache *const rows[] = { stepwise, extracted };
        for (size_t r = 0; r < 2; r++) {
            firn_cache_check(rows[r]);
            float *got = attend_last(rows[r], &tokens, &n_floats);
            assert_memory_equal(got, expected, n_floats * sizeof *got);
            free(got);
        }
        free(expected);
        firn_cache_destroy(extracted);
        firn_cache_destroy(merged);
        firn_cache_destroy(stepwise);
        firn_cache_destroy(at_once);
        firn_pool_destroy(pool);
    }
}

/* A token whose key or value cannot be stored: those who see it get NaN, the others get what they would have got. */
static void a_number_that_cannot_be_stored_spoils_only_those_who_see_it(void **state)
{
    (void)state;
    static const float impossible[] = { NAN, INFINITY, -INFINITY, 1e38f };
    enum { DIM = 64, SPOILT = 70, N = 90 };
    for (uint32_t round = 0; round < 8; round++) {
        const bool in_key = round % 2 == 0;
        const firn_cache_options options = quant(8, 32, DIM, DIM);
        firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
        const rig_tokens tokens = rig_sequence(7, N);
        float *k = rig_floats(tokens.id, N, 0, (size_t)QUANT_RIG_HEADS * DIM);
        float *v = rig_floats(tokens.id, N, 1, (size_t)QUANT_RIG_HEADS * DIM);
        firn_cache *good = rig_fresh(&options, pool, &tokens);
        firn_cache *spoilt = rig_cache(&options, pool);
        assert_ok(firn_cache_add_row(spoilt, NULL));
        (in_key ? k : v)[SPOILT * QUANT_RIG_HEADS * DIM + DIM + 40] = impossible[round / 2]; /* head 1, group 1 */
        const firn_append_input input = { .k = k, .v = v };
        assert_ok(firn_cache_append(spoilt, &input, &tokens.n, NULL, NULL));
        size_t n_floats;
        float *expected = rig_attend(good, NULL, tokens.id, &tokens.n, NULL, &n_floats);
        float *got = rig_attend(spoilt, NULL, tokens.id, &tokens.n, NULL, &n_floats);
        for (size_t i = 0; i < n_floats; i++) {
            const size_t token = i / (QUANT_RIG_HEADS * RIG_GROUP * DIM);
            const size_t head = i / DIM % (QUANT_RIG_HEADS * RIG_GROUP) / RIG_GROUP;
            const bool sees = token >= SPOILT && head == 1 && (in_key || i % DIM >= 32);
            assert_true(sees ? isnan(got[i]) : memcmp(&got[i], &expected[i], sizeof got[i]) == 0);
        }
        free(got);
        free(expected);
        free(k);
        free(v);
        firn_cache_destroy(good);
        firn_cache_destroy(spoilt);
        firn_pool_destroy(pool);
    }
}

/* A group without a range, of any size that f16 holds, is stored as its bias. */
static void equal_elements_are_stored_as_they_are(void **state)
{
    (void)state;
    enum { DIM = 64, N = 6 };
    static const float constants[N] = { 0.0f, -0.0f, 1.5f, -3.0f, 60000.0f, 0x1p-24f };
    const firn_cache_options options = quant(4, 64, DIM, DIM);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    float x[N * QUANT_RIG_HEADS * DIM];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        x[i] = constants[i / (QUANT_RIG_HEADS * DIM)];
    }
    firn_cache *cache = rig_cache(&options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    const uint32_t n = N;
    const firn_append_input input = { .k = x, .v = x };
    assert_ok(firn_cache_append(cache, &input, &n, NULL, NULL));
    quant_rig_row stored = quant_rig_stored(cache);
    for (size_t i = 0; i < (size_t)QUANT_RIG_HEADS * N * DIM; i++) {
        const float expected = constants[i / DIM % N];
        assert_true(stored.k[i] == expected && stored.v[i] == expected);
    }
    quant_rig_free(&stored);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void other_bits_and_groups_do_not_mix(void **state)
{
    (void)state;
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_cache_options options[] = { quant(8, 64, 64, 64), quant(8, 32, 64, 64), quant(4, 64, 64, 64),
                                           quant(4, 32, 64, 64) };
    for (size_t i = 0; i < 16; i++) {
        firn_cache *source = rig_cache(&options[i / 4], pool);
        firn_cache *target = rig_cache(&options[i % 4], pool);
        assert_ok(firn_cache_add_row(source, NULL));
        assert_status(firn_cache_merge_rows(target, (const firn_cache *[]){ source }, 1, NULL),
                      i / 4 == i % 4 ? FIRN_OK : FIRN_ERR_SIGNATURE);
        firn_cache_destroy(source);
        firn_cache_destroy(target);
    }
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled_in_and_described),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(stored_numbers_are_within_half_a_step),
        cmocka_unit_test(attention_is_softmax_attention_over_what_is_stored),
        cmocka_unit_test(a_window_sees_its_last_tokens),
        cmocka_unit_test(the_edges_of_a_window_are_exact),
        cmocka_unit_test(a_number_that_cannot_be_stored_spoils_only_those_who_see_it),
        cmocka_unit_test(equal_elements_are_stored_as_they_are),
        cmocka_unit_test(other_bits_and_groups_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
