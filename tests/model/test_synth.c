/*
 * Synthetic models: what is written opens and runs, the same options give the same bytes, impossible shapes are named.
 */
#include "model_fixture.h"

#include <errno.h>
#include <unistd.h>

#include "model/synth_quantise.h"

static char *dir;

static const firni_synth_options tiny = {
    .architecture = "llama", .type = FIRNI_WEIGHT_Q8_0, .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = 300, .n_ctx = 512, .seed = 9,
};

/* A shape whose rows are whole blocks of the type. */
static firni_synth_options shape_for(firni_weight_type type)
{
    firni_synth_options options = tiny;
    options.type = type;
    if (firni_weight_block_cols(type) == 256) {
        options.n_embd = options.n_ff = 256;
        options.head_dim = 64;
    }
    return options;
}

static double deviation(const float *x, size_t n)
{
    double sum = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    const double mean = sum / (double)n;
    return sqrt(squares / (double)n - mean * mean);
}

static void every_architecture_and_type_runs_with_sane_logits(void **state)
{
    (void)state;
    static const char *const architectures[] = { "llama",   "qwen2",  "qwen3",     "gemma3", "gemma4",
                                                 "gpt-oss", "qwen35", "qwen3next", "mamba2" };
    enum { N_ARCHITECTURES = sizeof architectures / sizeof architectures[0] };
    const firn_token tokens[20] = { 1, 2, 3, 44, 5, 6, 77, 8, 9, 110, 11, 12, 13, 140, 15, 160, 17, 18, 19, 200 };
    for (uint32_t i = 0; i < N_ARCHITECTURES * FIRNI_WEIGHT_TYPES * 2; i++) {
        firni_synth_options options = shape_for((firni_weight_type)(i / N_ARCHITECTURES % FIRNI_WEIGHT_TYPES));
        options.architecture = architectures[i % N_ARCHITECTURES];
        options.is_tied = i / N_ARCHITECTURES / FIRNI_WEIGHT_TYPES == 1;
        options.n_layers = 12; /* whole periods of every architecture */
        char *path = small_model(dir, "run.gguf", &options);
        fixture f = fixture_open(&(fixture_options){ .path = path });
        const firn_model_info *info = firn_model_get_info(f.model);
        assert_string_equal(info->architecture, options.architecture);
        assert_string_equal(info->weight_type, firni_weight_type_name(options.type));
        assert_int_equal(info->n_vocab, 300);
        float *logits = fixture_logits(&f, tokens, 20, 20);
        const double d = deviation(logits, 20 * 300);
        if (d < 0.5 || d > 2.0) {
            fail_msg("%s %s: logits of deviation %g", options.architecture, info->weight_type, d);
        }
        free(logits);
        fixture_close(&f);
        free(path);
    }
}

static void the_seed_decides_every_byte(void **state)
{
    (void)state;
    size_t n[3];
    char *files[3];
    for (uint32_t i = 0; i < 3; i++) {
        firni_synth_options options = tiny;
        options.seed = i == 2 ? 10 : 9;
        char *path = small_model(dir, "seed.gguf", &options);
        files[i] = read_whole(path, &n[i]);
        free(path);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(files[0], files[1], n[0]);
    assert_true(n[2] != n[0] || memcmp(files[0], files[2], n[0]) != 0);
    for (uint32_t i = 0; i < 3; i++) {
        free(files[i]);
    }
}

/* Root of the mean squared difference of the weights, over their deviation: what rounding to the nearest leaves. */
static void rounding_to_a_type_loses_what_its_bits_lose(void **state)
{
    (void)state;
    static const double losses[FIRNI_WEIGHT_TYPES] = {
        [FIRNI_WEIGHT_F32] = 1e-12,  [FIRNI_WEIGHT_F16] = 5e-4,   [FIRNI_WEIGHT_BF16] = 4e-3,
        [FIRNI_WEIGHT_Q8_0] = 8e-3,  [FIRNI_WEIGHT_Q4_0] = 0.11,  [FIRNI_WEIGHT_Q4_1] = 0.1,
        [FIRNI_WEIGHT_Q5_0] = 0.055, [FIRNI_WEIGHT_Q5_1] = 0.05,  [FIRNI_WEIGHT_Q4_K] = 0.1,
        [FIRNI_WEIGHT_Q5_K] = 0.05,  [FIRNI_WEIGHT_Q6_K] = 0.025, [FIRNI_WEIGHT_MXFP4] = 0.15,
    };
    enum { N = 4096 };
    test_rng rng = test_rng_create("rounding", 21);
    float *row = malloc(N * sizeof *row);
    float *back = malloc(N * sizeof *back);
    uint8_t *encoded = malloc(N * sizeof *row);
    for (uint32_t i = 0; i < N; i++) {
        row[i] = 0.02F * test_rng_normal(&rng);
    }
    for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
        double sum = 0.0;
        firni_synth_quantise_row(type, row, N, encoded);
        firni_weight_row_to_f32(type, encoded, N, back);
        for (uint32_t i = 0; i < N; i++) {
            const double d = (double)back[i] - (double)row[i];
            sum += d * d;
        }
        const double loss = sqrt(sum / N) / 0.02;
        print_message("%s: %.2e of the deviation\n", firni_weight_type_name(type), loss);
        assert_true(loss <= losses[type]);
        assert_true(type == FIRNI_WEIGHT_F32 || loss >= losses[type] / 3); /* and no type is better than it can be */
    }
    free(row);
    free(back);
    free(encoded);
}

static void rows_of_zeros_and_extremes_survive_rounding(void **state)
{
    (void)state;
    float row[256], back[256];
    uint8_t encoded[1024];
    for (firni_weight_type type = FIRNI_WEIGHT_F32; type < FIRNI_WEIGHT_TYPES; type++) {
        for (uint32_t filling = 0; filling < 4; filling++) {
            const float value = filling == 0 ? 0.0F : filling == 1 ? 1e-30F : filling == 2 ? -3.0F : 100.0F;
            for (uint32_t i = 0; i < 256; i++) {
                row[i] = value;
            }
            firni_synth_quantise_row(type, row, 256, encoded);
            firni_weight_row_to_f32(type, encoded, 256, back);
            for (uint32_t i = 0; i < 256; i++) {
                assert_true(fabsf(back[i] - value) <= 0.3F * fabsf(value) + 1e-30F);
            }
        }
    }
}

static void wishes_become_shapes_of_about_that_size(void **state)
{
    (void)state;
    firni_synth_options o = { .architecture = "llama" };
    firni_synth_shape(450000000, &o);
    assert_int_equal(o.n_layers, 16);
    assert_int_equal(o.n_embd, 1024);
    assert_int_equal(o.n_heads, 16);
    assert_int_equal(o.n_kv_heads, 8);
    assert_int_equal(o.head_dim, 64);
    assert_int_equal(o.n_ff, 6912);
    assert_int_equal(o.n_vocab, 32000);
    static const char *const others[] = { "gemma3", "gemma4", "gpt-oss" };
    for (size_t i = 0; i < 2 * (sizeof others / sizeof others[0]); i++) {
        firni_synth_options other = { .architecture = others[i / 2] };
        const double wish = i % 2 == 0 ? 250e6 : 450e6;
        firni_synth_shape((uint64_t)wish, &other);
        const double ratio = (double)firni_synth_n_params(&other) / wish;
        if (ratio < 0.75 || ratio > 1.25) {
            fail_msg("%s of %g: %g times as many", others[i / 2], wish, ratio);
        }
    }
    static const uint64_t wishes[] = { 500000, 5000000, 60000000, 135000000, 1100000000, 3000000000, 8000000000 };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        firni_synth_shape(wishes[i], &o);
        const double ratio = (double)firni_synth_n_params(&o) / (double)wishes[i];
        if (ratio < 0.8 || ratio > 1.25) {
            fail_msg("%llu wished, %llu given", (unsigned long long)wishes[i],
                     (unsigned long long)firni_synth_n_params(&o));
        }
    }
}

static void impossible_shapes_are_named(void **state)
{
    (void)state;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/impossible.gguf", dir);
    for (uint32_t i = 0; i < 8; i++) {
        static const char *const words[] = { "layers is 0", "heads must be a multiple", "head-dim even",
                                             "whole groups of q8_0", "vocabulary of 100", "'mamba'", "factor",
                                             "whole groups of q5_0" };
        firni_synth_options o = tiny;
        firn_error err = { .message = "" };
        o.n_layers = i == 0 ? 0 : o.n_layers;
        o.n_kv_heads = i == 1 ? 3 : o.n_kv_heads;
        o.head_dim = i == 2 ? 15 : o.head_dim;
        o.n_ff = i == 3 || i == 7 ? 100 : o.n_ff;
        o.n_vocab = i == 4 ? 100 : o.n_vocab;
        o.architecture = i == 5 ? "mamba" : o.architecture;
        o.rope_scaling = i == 6 ? FIRNI_ROPE_SCALING_LINEAR : o.rope_scaling;
        o.type = i == 7 ? FIRNI_WEIGHT_Q4_K : o.type;
        const firn_status status = firni_synth_write(&o, path, NULL, &err);
        assert_status(status, i == 5 ? FIRN_ERR_UNSUPPORTED : FIRN_ERR_INVALID);
        if (strstr(err.message, words[i]) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.message, words[i]);
        }
    }
}

static void the_own_vocabulary_encodes_and_decodes_any_bytes(void **state)
{
    (void)state;
    static const char text[] = "Firn: 99 % na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac\n\t\x01";
    char *path = small_model(dir, "vocab.gguf", &tiny);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    const firn_tokenizer *tokenizer = firn_model_tokenizer(f.model);
    const firn_encode_options options = { .add_bos = true };
    firn_token *tokens = NULL;
    uint32_t n = 0;
    char *back = NULL;
    size_t len = 0;
    assert_int_equal(firn_tokenizer_n_tokens(tokenizer), 300);
    assert_ok(firn_tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &tokens, &n, NULL));
    assert_int_equal(n, sizeof text); /* BOS and one token for each byte */
    assert_int_equal(tokens[0], firn_tokenizer_bos(tokenizer));
    assert_ok(firn_tokenizer_decode(tokenizer, tokens, n, false, &back, &len, NULL));
    assert_int_equal(len, sizeof text - 1);
    assert_memory_equal(back, text, len);
    assert_string_equal(firn_tokenizer_chat_family(tokenizer), "chatml");
    free(back);
    free(tokens);
    fixture_close(&f);
    free(path);
}

static void a_tokenizer_json_is_embedded_and_padded(void **state)
{
    (void)state;
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"<|end|>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]}}";
    char json_path[512];
    firn_token *tokens = NULL;
    uint32_t n = 0;
    (void)snprintf(json_path, sizeof json_path, "%s/tokenizer.json", dir);
    FILE *file = fopen(json_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(json, 1, sizeof json - 1, file), sizeof json - 1);
    assert_int_equal(fclose(file), 0);
    firni_synth_options options = tiny;
    options.tokenizer_json = json_path;
    options.n_vocab = 0;
    assert_ok(firni_synth_resolve(&options, NULL, NULL));
    assert_int_equal(options.n_vocab, 5);
    options.n_vocab = 64;
    char *path = small_model(dir, "json.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    const firn_tokenizer *tokenizer = firn_model_tokenizer(f.model);
    const firn_encode_options encode = { .add_bos = false };
    assert_int_equal(firn_tokenizer_n_tokens(tokenizer), 64);
    assert_ok(firn_tokenizer_encode(tokenizer, "abcab", 5, &encode, &tokens, &n, NULL));
    assert_int_equal(n, 3);
    assert_int_equal(tokens[0], 3);
    assert_int_equal(tokens[1], 2);
    assert_int_equal(tokens[2], 3);
    free(tokens);
    fixture_close(&f);
    free(path);
}

/* ---- rope ---- */

static float *rope_logits(const firni_synth_options *options)
{
    firn_token tokens[100];
    for (uint32_t i = 0; i < 100; i++) {
        tokens[i] = i * 37 % 256;
    }
    char *path = small_model(dir, "rope.gguf", options);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F32 });
    float *logits = fixture_logits(&f, tokens, 100, 100);
    fixture_close(&f);
    free(path);
    return logits;
}

static float largest_difference(const float *a, const float *b)
{
    float largest = 0.0F;
    for (size_t i = 0; i < 100 * 300; i++) {
        largest = fmaxf(largest, fabsf(a[i] - b[i]));
    }
    return largest;
}

static void rope_scalings_reach_the_model(void **state)
{
    (void)state;
    firni_synth_options options = tiny;
    options.type = FIRNI_WEIGHT_F32;
    float *none = rope_logits(&options);
    options.rope_factor = 8.0F;
    options.rope_original_context = 64;
    for (int scaling = FIRNI_ROPE_SCALING_LINEAR; scaling <= FIRNI_ROPE_SCALING_YARN; scaling++) {
        options.rope_scaling = (firni_rope_scaling)scaling;
        float *scaled = rope_logits(&options);
        assert_true(largest_difference(none, scaled) > 1e-2F);
        free(scaled);
    }
    /* Llama 3 files carry divisors; keys say the same. */
    options.rope_scaling = FIRNI_ROPE_SCALING_LLAMA3;
    float *from_keys = rope_logits(&options);
    options.rope_factors_as_tensor = true;
    float *from_tensor = rope_logits(&options);
    const float apart = largest_difference(from_keys, from_tensor);
    print_message("llama3 scaling by keys and by tensor differ by %.2e\n", (double)apart);
    assert_true(apart < 1e-4F);
    assert_true(largest_difference(none, from_tensor) > 1e-2F);
    free(from_keys);
    free(from_tensor);
    free(none);
}

static void a_full_disk_leaves_no_model(void **state)
{
    (void)state;
    bool clean = false;
    for (uint64_t n = 1; !clean; n += n < 10 ? 1 : 7) {
        test_world world;
        char path[512];
        firn_error err = { .message = "" };
        char *own = test_dir_create();
        (void)snprintf(path, sizeof path, "%s/x.gguf", own);
        test_world_init(&world);
        world.fail_io_at = n;
        world.fail_errno = ENOSPC;
        const firn_status status = firni_synth_write(&tiny, path, &world.env, &err);
        clean = !world.io_failed;
        assert_true(clean ? status == FIRN_OK : status == FIRN_ERR_IO && err.os_error == ENOSPC);
        if (clean) {
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(rmdir(own), 0);
        free(own);
        test_world_deinit(&world);
    }
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
        cmocka_unit_test(every_architecture_and_type_runs_with_sane_logits),
        cmocka_unit_test(the_seed_decides_every_byte),
        cmocka_unit_test(rounding_to_a_type_loses_what_its_bits_lose),
        cmocka_unit_test(rows_of_zeros_and_extremes_survive_rounding),
        cmocka_unit_test(wishes_become_shapes_of_about_that_size),
        cmocka_unit_test(impossible_shapes_are_named),
        cmocka_unit_test(the_own_vocabulary_encodes_and_decodes_any_bytes),
        cmocka_unit_test(a_tokenizer_json_is_embedded_and_padded),
        cmocka_unit_test(rope_scalings_reach_the_model),
        cmocka_unit_test(a_full_disk_leaves_no_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
