/*
 * What gpt-oss has of its own: alternating windows, sinks, the experts' activation, and what is said of files that lack
 * or contradict them.
 */
#include "model_image.h"

#include "model/arch_impl.h"

#define N_VOCAB 300u

static char *dir;

static const firni_synth_options small = {
    .architecture = "gpt-oss", .type = FIRNI_WEIGHT_F16, .n_layers = 4, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = N_VOCAB, .n_ctx = 1024, .seed = 6,
};

static image load_small(void)
{
    return image_of(dir, &small);
}

static void layers_with_and_without_a_window_alternate(void **state)
{
    (void)state;
    firni_synth_options options = small;
    options.rope_scaling = FIRNI_ROPE_SCALING_YARN;
    options.rope_factor = 32.0F;
    options.rope_original_context = 4096;
    char *path = small_model(dir, "layers.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    const firn_schema *schema = firn_model_schema(f.model);
    assert_int_equal(f.n_layers, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(schema->layers[i].layout, i % 2 == 0 ? "kv:window" : "kv:plain");
        assert_int_equal(schema->layers[i].window, i % 2 == 0 ? 33 : 0);
    }
    /* One rotation, scaled, for both. */
    assert_non_null(strstr(schema->identity_text, "rope: half-split dims=16 base=10000 scaling=yarn factor=32"));
    assert_null(strstr(schema->identity_text, "rope.1"));
    fixture_close(&f);
    free(path);
}

static void the_clamped_swiglu_is_its_formula_in_every_variant(void **state)
{
    (void)state;
    enum { N = 203 };
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    test_rng rng = test_rng_create("clamped swiglu", 3);
    float gate[N];
    float up[N];
    float first[N];
    for (uint32_t i = 0; i < N; i++) {
        gate[i] = 6.0F * test_rng_normal(&rng);
        up[i] = 6.0F * test_rng_normal(&rng);
    }
    gate[0] = INFINITY;
    up[1] = -INFINITY;
    gate[2] = NAN;
    up[3] = NAN;
    for (uint32_t v = 0; v < n_names; v++) {
        float out[N];
        const firni_kernels *kernels = firni_kernels_select(names[v], NULL);
        memcpy(out, gate, sizeof out);
        firni_swiglu_clamped(kernels, out, up, N);
        for (uint32_t i = 0; i < N; i++) {
            const double g = (double)gate[i] > 7.0 ? 7.0 : (double)gate[i];
            const double u = (double)up[i] > 7.0 ? 7.0 : (double)up[i] < -7.0 ? -7.0 : (double)up[i];
            const double expected = g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
            assert_int_equal(isnan(out[i]), isnan(expected));
            if (!isnan(expected)) {
                /* exp carries the rounding of its argument: half a unit of 1.702 g, and a few of its own. */
                const double relative = (fabs(1.702 * g) + 8.0) * 0x1p-24;
                assert_true(fabs((double)out[i] - expected) <= relative * fabs(expected) + 1e-30);
            }
        }
        if (v == 0) {
            memcpy(first, out, sizeof first);
        }
        assert_memory_equal(out + 4, first + 4, sizeof out - 4 * sizeof out[0]);
    }
}

static float *logits_of(const image *im)
{
    firn_token tokens[80];
    char path[512];
    firn_error err;
    for (uint32_t i = 0; i < 80; i++) {
        tokens[i] = i * 43 % 256;
    }
    assert_ok(open_image(dir, im, NULL, &err));
    (void)snprintf(path, sizeof path, "%s/changed.gguf", dir);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F32 });
    float *logits = fixture_logits(&f, tokens, 80, 80);
    fixture_close(&f);
    return logits;
}

/* With a window that every position fits into, only the last logits of the narrow one differ. */
static void windows_shape_what_lies_beyond_them(void **state)
{
    (void)state;
    image im = load_small();
    float *narrow = logits_of(&im);
    set_u32_key(&im, "gpt-oss.attention.sliding_window", 80);
    float *wide = logits_of(&im);
    set_u32_key(&im, "gpt-oss.attention.sliding_window", 200);
    float *wider = logits_of(&im);
    assert_memory_equal(narrow, wide, 33 * N_VOCAB * sizeof *wide);
    assert_memory_not_equal(narrow + 33 * N_VOCAB, wide + 33 * N_VOCAB, N_VOCAB * sizeof *wide);
    assert_memory_equal(wide, wider, 80 * N_VOCAB * sizeof *wide);
    free(narrow);
    free(wide);
    free(wider);
    free(im.data);
}

static void contradictory_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *words, *more_words;
    } cases[] = {
        { "gpt-oss.expert_count", 0, "'gpt-oss.expert_count' is 0", "" },
        { "gpt-oss.expert_count", 9, "'blk.0.ffn_gate_inp.weight' has the shape [64, 8", "[64, 9" },
        { "gpt-oss.expert_used_count", 9, "'gpt-oss.expert_used_count' is 9", "1 to 8" },
        { "gpt-oss.expert_feed_forward_length", 32, "'blk.0.ffn_gate_exps.weight' has the shape [64, 96, 8",
          "[64, 32, 8" },
        { "gpt-oss.attention.head_count", 8, "'blk.0.attn_q.weight' has the shape", "" },
        { "gpt-oss.attention.sliding_window", UINT32_MAX, "'gpt-oss.attention.sliding_window' is", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        image im = load_small();
        set_u32_key(&im, cases[i].key, cases[i].value);
        expect(dir, &im, FIRN_ERR_FORMAT, cases[i].words, cases[i].more_words);
    }
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        { "blk.2.attn_sinks.weight", "cls.2.attn_sinks.weight" },
        { "blk.0.post_attention_norm.weight", "cls.0.post_attention_norm.weight" },
        { "blk.3.ffn_up_exps.weight", "cls.3.ffn_up_exps.weight" },
        { "gpt-oss.expert_used_count", "gpt-oss.expert_used_couxx" },
        { "gpt-oss.expert_feed_forward_length", "gpt-oss.expert_feed_forward_lengxx" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        image im = load_small();
        rename_item(&im, names[i][0], names[i][1]);
        expect(dir, &im, FIRN_ERR_FORMAT, names[i][0], "is missing");
    }
}

static void memory_that_runs_out_while_opening_leaks_nothing(void **state)
{
    (void)state;
    image im = load_small();
    bool clean = false;
    for (uint64_t n = 1; !clean; n += n < 30 ? 1 : 3) {
        test_world world;
        firn_error err = { .message = "" };
        test_world_init(&world);
        world.fail_alloc_at = n;
        const firn_status status = open_image(dir, &im, &world.env, &err);
        clean = !world.alloc_failed;
        assert_true(status == FIRN_OK || (!clean && status == FIRN_ERR_NO_MEMORY));
        test_world_deinit(&world);
    }
    free(im.data);
}

static int set_up(void **state)
{
    (void)state;
    dir = test_dir_create();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_remove(dir);
    free(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_with_and_without_a_window_alternate),
        cmocka_unit_test(the_clamped_swiglu_is_its_formula_in_every_variant),
        cmocka_unit_test(windows_shape_what_lies_beyond_them),
        cmocka_unit_test(contradictory_files_are_named),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(memory_that_runs_out_while_opening_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
