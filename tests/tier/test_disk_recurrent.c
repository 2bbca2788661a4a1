/*
 * The real recurrent layouts through the disk: a model of two of them, attention, and both in one layer is stored,
 * restored by another process's view of the directory, and goes on as if it had never stopped, to the bit.
 */
#include "layout/recurrent_rig.h"
#include "tier/tier_fixture.h"

enum { LAYERS = 4, N = 150, MORE = 70 };

static const firn_cache_options beside = { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 8, .value_dim = 4,
                                           .n_state_heads = 2, .conv_width = 3 };

static const firn_cache_options layers[LAYERS] = {
    { .layout = "ssm:gated-delta", .n_kv_heads = 2, .head_dim = 5, .value_dim = 32, .n_state_heads = 6,
      .conv_width = 3, .kernel = "scalar" },
    { .layout = "kv:window", .dtype = FIRN_DTYPE_F16, .n_kv_heads = 2, .head_dim = 8, .window = 90,
      .kernel = "scalar" },
    { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 16, .value_dim = 8, .n_state_heads = 3, .conv_width = 4,
      .kernel = "scalar" },
    { .layout = "hybrid", .attention = "kv:plain", .n_kv_heads = 1, .head_dim = 32, .recurrent = &beside,
      .kernel = "scalar" },
};

/* Feeds tokens [from, from + n) of the sequence to each layer. */
static void feed(firn_cache *const caches[LAYERS], const firn_token *tokens, uint32_t from, uint32_t n)
{
    uint64_t ids[N + MORE];
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = fixture_mix(tokens[from + i] + ((uint64_t)(from + i) << 32));
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (layers[layer].recurrent != NULL) {
            assert_ok(rig_feed(caches[layer], ids, &n, NULL, NULL));
        } else if (firn_cache_fixed_bytes(caches[layer]) > 0) {
            assert_ok(recurrent_feed(caches[layer], ids, &n, NULL, NULL, NULL));
        } else {
            const size_t width = (size_t)layers[layer].n_kv_heads * layers[layer].head_dim;
            float *k = rig_floats(ids, n, 6, width), *v = rig_floats(ids, n, 7, width);
            const firn_append_input input = { .k = k, .v = v };
            assert_ok(firn_cache_append(caches[layer], &input, &n, NULL, NULL));
            firn_cache_settle(caches[layer]);
            free(k);
            free(v);
        }
    }
}

static void assert_equal_state(firn_cache *const a[LAYERS], firn_cache *const b[LAYERS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        firn_cache_check(a[layer]);
        assert_true(fixture_cache_equal(a[layer], b[layer]));
    }
}

static void a_recurrent_model_goes_on_where_it_was_stored(void **unused)
{
    (void)unused;
    test_rng rng = test_rng_create("recurrent", 41);
    firn_token tokens[N + MORE];
    fixture_random_tokens(&rng, tokens, N + MORE);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_schema schema = { .layers = layers, .n_layers = LAYERS, .identity_text = "weights: w\n" };
    char *dir = test_dir_create();
    const firn_disk_options options = { .dir = dir, .schema = &schema, .pool = pool };
    firn_tier *tier;
    assert_ok(firn_disk_open(&options, NULL, &tier, NULL));
    firn_cache *caches[LAYERS];
    const firn_cache *borrowed[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(firn_cache_create(&layers[layer], pool, NULL, &caches[layer], NULL));
        assert_ok(firn_cache_add_row(caches[layer], NULL));
        borrowed[layer] = caches[layer];
    }
    feed(caches, tokens, 0, N);
    const firn_store_input input = { .tokens = tokens, .n_tokens = N, .caches = borrowed, .n_caches = LAYERS };
    firn_reason reason;
    assert_true(firn_tier_store(tier, &input, &reason));
    firn_tier_destroy(tier);

    assert_ok(firn_disk_open(&options, NULL, &tier, NULL));
    const firn_match match = firn_tier_find(tier, tokens, N + MORE, NULL);
    assert_int_equal(match.prefix_len, N);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    assert_equal_state(restored.caches, caches);
    for (uint32_t at = N; at < N + MORE; at += MORE / 7) {
        feed(caches, tokens, at, MORE / 7);
        feed(restored.caches, tokens, at, MORE / 7);
        assert_equal_state(restored.caches, caches);
    }
    /* The state has moved on: what was stored has not. */
    firn_restored again;
    assert_int_equal(firn_tier_restore(tier, match.handle, 0, &again), FIRN_REASON_NONE);
    assert_int_equal(firn_cache_row_tokens(again.caches[0], 0), N);
    assert_false(fixture_cache_equal(again.caches[0], caches[0]));
    firn_restored_deinit(&again);
    firn_restored_deinit(&restored);
    firn_tier_release(tier, match.handle);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        firn_cache_destroy(caches[layer]);
    }
    firn_tier_destroy(tier);
    test_dir_remove(dir);
    free(dir);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recurrent_model_goes_on_where_it_was_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
