/*
 * How attention state is kept is the user's choice: which layouts it becomes, what the identity says of it, that no bit
 * depends on chunks, how near the logits stay, and what is said of models that cannot.
 */
#include "model_fixture.h"

#define N_VOCAB 300u

static char *dir;

static const firni_synth_options llama = {
    .architecture = "llama", .type = FIRNI_WEIGHT_F32, .n_layers = 3, .n_embd = 128, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 64, .n_ff = 192, .n_vocab = N_VOCAB, .n_ctx = 1024, .seed = 11,
};

static const struct {
    const char *name;
    firn_kv_scheme scheme;
    const char *layer; /* what the identity says of a layer */
    double far;        /* largest difference of a logit from that with f32 state */
} schemes[] = {
    { "q8", { .kind = FIRN_KV_AFFINE }, "layer.0: kv:quant:8:64 heads=2 dim=64/64 block=64", 0.02 },
    { "q8", { .kind = FIRN_KV_AFFINE, .group = 32 }, "layer.2: kv:quant:8:32 heads=2", 0.02 },
    { "q4", { .kind = FIRN_KV_AFFINE, .key_bits = 4 }, "layer.1: kv:quant:4:64 heads=2", 0.4 },
    { "turbo:k8v3", { .kind = FIRN_KV_TURBO }, "layer.0: kv:turboquant:8:3 heads=2", 0.5 },
    { "turbo:k4v5",
      { .kind = FIRN_KV_TURBO, .key_bits = 4, .value_bits = 5 },
      "layer.0: kv:turboquant:4:5 heads=2",
      0.4 },
    { "q8",
      { .kind = FIRN_KV_AFFINE, .delay_tokens = 40 },
      "layer.0: kv:delayed-quant:8:64:40 f16 heads=2 dim=64/64 block=64",
      0.02 },
    { "q4",
      { .kind = FIRN_KV_AFFINE, .key_bits = 4, .delay_tokens = 64 },
      "layer.1: kv:delayed-quant:4:64:64 f16",
      0.4 },
    { "turbo:k8v3", { .kind = FIRN_KV_TURBO, .delay_tokens = 130 }, "layer.2: kv:delayed-turboquant:8:3:130 f16", 0.5 },
};
enum { N_SCHEMES = sizeof schemes / sizeof schemes[0], N_TOKENS = 150 };

static void fill_tokens(firn_token tokens[N_TOKENS])
{
    test_rng rng = { .state = 3 };
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = test_rng_below(&rng, N_VOCAB);
    }
}

static void logits_do_not_depend_on_chunks_and_stay_near_those_of_f32_state(void **state)
{
    (void)state;
    firn_token tokens[N_TOKENS];
    fill_tokens(tokens);
    char *path = small_model(dir, "near.gguf", &llama);
    fixture f32 = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F32 });
    float *exact = fixture_logits(&f32, tokens, N_TOKENS, N_TOKENS);
    for (uint32_t s = 0; s < N_SCHEMES; s++) {
        fixture f = fixture_open(&(fixture_options){ .path = path, .kv_scheme = schemes[s].scheme });
        float *whole = fixture_logits(&f, tokens, N_TOKENS, N_TOKENS);
        static const uint32_t chunks[] = { 1, 7, 33, 64 };
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            float *chunked = fixture_logits(&f, tokens, N_TOKENS, chunks[c]);
            assert_memory_equal(whole, chunked, (size_t)N_TOKENS * N_VOCAB * sizeof *whole);
            free(chunked);
        }
        double far = 0.0;
        for (size_t i = 0; i < (size_t)N_TOKENS * N_VOCAB; i++) {
            far = fmax(far, fabs((double)whole[i] - (double)exact[i]));
        }
        print_message("%s: logits differ by up to %.2e\n", schemes[s].name, far);
        assert_true(far > 0.0 && far < schemes[s].far);
        free(whole);
        fixture_close(&f);
    }
    free(exact);
    fixture_close(&f32);
    free(path);
}

static void the_choice_is_part_of_the_identity(void **state)
{
    (void)state;
    char *path = small_model(dir, "identity.gguf", &llama);
    firn_digest digests[N_SCHEMES];
    for (uint32_t s = 0; s < N_SCHEMES; s++) {
        fixture f = fixture_open(&(fixture_options){ .path = path, .kv_scheme = schemes[s].scheme });
        const firn_schema *schema = firn_model_schema(f.model);
        assert_string_equal(firn_model_get_info(f.model)->kv, schemes[s].name);
        if (strstr(schema->identity_text, schemes[s].layer) == NULL) {
            fail_msg("no \"%s\" in:\n%s", schemes[s].layer, schema->identity_text);
        }
        digests[s] = schema->identity;
        for (uint32_t i = 0; i < s; i++) {
            assert_memory_not_equal(digests[i].bytes, digests[s].bytes, sizeof digests[s].bytes);
        }
        fixture_close(&f);
    }
    free(path);
}

static void layers_with_a_window_keep_it(void **state)
{
    (void)state;
    firni_synth_options gemma = llama;
    gemma.architecture = "gemma3";
    gemma.n_layers = 6;
    char *path = small_model(dir, "window.gguf", &gemma);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_AFFINE } });
    for (uint32_t i = 0; i < f.n_layers; i++) {
        const firn_cache_options *layer = &firn_model_schema(f.model)->layers[i];
        assert_string_equal(layer->layout, layer->window > 0 ? "kv:window-quant" : "kv:quant");
    }
    firn_token tokens[N_TOKENS];
    fill_tokens(tokens);
    float *whole = fixture_logits(&f, tokens, N_TOKENS, N_TOKENS);
    float *chunked = fixture_logits(&f, tokens, N_TOKENS, 13);
    assert_memory_equal(whole, chunked, (size_t)N_TOKENS * N_VOCAB * sizeof *whole);
    free(whole);
    free(chunked);
    fixture_close(&f);

    f = fixture_open(&(fixture_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_AFFINE, .delay_tokens = 70 } });
    for (uint32_t i = 0; i < f.n_layers; i++) {
        const firn_cache_options *layer = &firn_model_schema(f.model)->layers[i];
        assert_string_equal(layer->layout, layer->window > 0 ? "kv:delayed-window-quant" : "kv:delayed-quant");
        assert_int_equal(layer->start, 70);
    }
    whole = fixture_logits(&f, tokens, N_TOKENS, N_TOKENS);
    chunked = fixture_logits(&f, tokens, N_TOKENS, 13);
    assert_memory_equal(whole, chunked, (size_t)N_TOKENS * N_VOCAB * sizeof *whole);
    free(whole);
    free(chunked);
    fixture_close(&f);
    free(path);
}

static void assert_refused(const firn_model_options *options, const char *message)
{
    firn_model *model;
    firn_error err;
    assert_status(firn_model_open(options, NULL, &model, &err), FIRN_ERR_INVALID);
    assert_null(model);
    if (strstr(err.message, message) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.message, message);
    }
}

static void layers_that_cannot_are_named_with_what_would_work(void **state)
{
    (void)state;
    firni_synth_options options = llama;
    options.head_dim = 96;
    char *path = small_model(dir, "heads96.gguf", &options);
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_TURBO } },
                   "state of turbo:k8v3 does not fit layers 0-2: kv:turboquant rotates heads of 64, 128, 256 or 512 "
                   "elements, not 96 and 96; f16, bf16 and f32 fit all");
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_AFFINE, .group = 64 } },
                   "state of q8 does not fit layers 0-2: kv:quant: groups of 64 do not divide heads of 96 and 96");
    free(path);
    options.head_dim = 80;
    options.n_layers = 1;
    path = small_model(dir, "heads80.gguf", &options);
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_AFFINE, .key_bits = 4 } },
                   "state of q4 does not fit layer 0: kv:quant: groups of 32 do not divide heads of 80 and 80");
    free(path);
    options = llama;
    options.architecture = "gemma3";
    options.n_layers = 12;
    path = small_model(dir, "turbo-window.gguf", &options);
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_TURBO } },
                   "does not fit layers 0-4, 6-10: it has no form for windows, such as theirs of 32 tokens");
    free(path);
}

static void compressed_and_recurrent_models_say_what_they_hold(void **state)
{
    (void)state;
    const firn_kv_scheme q8 = { .kind = FIRN_KV_AFFINE };
    assert_refused(
        &(firn_model_options){ .path = "tests/oracle/deepseek2.gguf", .kv_scheme = q8 },
        "state of q8 does not fit layers 0-2: it has no form for kv:mla, which holds compressed state already");
    assert_refused(&(firn_model_options){ .path = "tests/oracle/mamba2.gguf", .kv_scheme = q8 },
                   "state of q8: no layer of this model has keys and values");
    /* Of a hybrid model the attention layers take it, and the others have nothing to round. */
    fixture f = fixture_open(&(fixture_options){ .path = "tests/oracle/qwen35.gguf", .kv_scheme = q8 });
    const firn_schema *schema = firn_model_schema(f.model);
    assert_string_equal(schema->layers[0].layout, "ssm:gated-delta");
    assert_string_equal(schema->layers[3].layout, "kv:quant");
    fixture_close(&f);
}

static void options_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    char *path = small_model(dir, "options.gguf", &llama);
    assert_refused(&(firn_model_options){ .path = path,
                                          .kv_scheme = { .kind = FIRN_KV_AFFINE },
                                          .kv_dtype = FIRN_DTYPE_F16 },
                   "quantised state has no element type; f16 was given");
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .group = 64 } },
                   "groups of 64 belong to quantised state");
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .delay_tokens = 64 } },
                   "a delay of 64 tokens belongs to quantised state");
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = (firn_kv_kind)9 } }, "kind 9");
    assert_refused(&(firn_model_options){ .path = path, .kv_scheme = { .kind = FIRN_KV_AFFINE, .key_bits = 5 } },
                   "8 or 4 bits");
    free(path);
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
        cmocka_unit_test(logits_do_not_depend_on_chunks_and_stay_near_those_of_f32_state),
        cmocka_unit_test(the_choice_is_part_of_the_identity),
        cmocka_unit_test(layers_with_a_window_keep_it),
        cmocka_unit_test(layers_that_cannot_are_named_with_what_would_work),
        cmocka_unit_test(compressed_and_recurrent_models_say_what_they_hold),
        cmocka_unit_test(options_that_contradict_each_other_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
