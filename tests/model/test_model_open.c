/*
 * Opening models that are damaged, contradictory or of kinds that this build does not run; memory that runs out; and
 * forwards with wrong arguments. Each is refused with a message that names the cause, and changes nothing.
 */
#include "model_image.h"

#include "model/ggml_type.h"

static char *dir;

static const firni_synth_options tiny = {
    .architecture = "llama", .type = FIRNI_WEIGHT_Q8_0, .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = 272, .n_ctx = 1024, .seed = 3, .rope_scaling = FIRNI_ROPE_SCALING_YARN,
    .rope_factor = 4.0F,
};

static image load_tiny(void)
{
    return image_of(dir, &tiny);
}

static void unknown_architectures_are_refused_with_those_known(void **state)
{
    (void)state;
    image im = load_tiny();
    firn_error err;
    assert_ok(open_image(dir, &im, NULL, &err));
    memcpy(im.data + behind_name(&im, "general.architecture") + 4 + 8, "blama", 5);
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'blama' is not supported", "llama, qwen2, qwen3");
    im = load_tiny();
    rename_item(&im, "general.architecture", "general.architectura");
    expect(dir, &im, FIRN_ERR_FORMAT, "'general.architecture' is missing", "");
}

static void unsupported_weight_types_are_named(void **state)
{
    (void)state;
    image im = load_tiny();
    set_tensor_type(&im, "blk.1.ffn_up.weight", 20);
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'blk.1.ffn_up.weight' is of type IQ4_NL", FIRNI_GGML_TYPES_SUPPORTED);
    im = load_tiny();
    set_tensor_type(&im, "blk.0.attn_k.weight", 12345);
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'blk.0.attn_k.weight' is of type ? (12345)", FIRNI_GGML_TYPES_SUPPORTED);
}

static void tensors_that_do_not_fit_the_architecture_are_named(void **state)
{
    (void)state;
    image im = load_tiny();
    rename_item(&im, "blk.1.ffn_down.weight", "blk.1.ffn_dawn.weight");
    expect(dir, &im, FIRN_ERR_FORMAT, "'blk.1.ffn_down.weight' [96, 64] is missing", "");
    im = load_tiny();
    set_u32_key(&im, "llama.feed_forward_length", 128);
    expect(dir, &im, FIRN_ERR_FORMAT, "'blk.0.ffn_gate.weight' has the shape [64, 96, 1, 1]",
           "expected [64, 128, 1, 1]");
    im = load_tiny();
    set_u32_key(&im, "llama.block_count", 1);
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'blk.1.", "is not part of the architecture 'llama'");
    im = load_tiny();
    rename_item(&im, "token_embd.weight", "token_embx.weight");
    expect(dir, &im, FIRN_ERR_FORMAT, "'token_embd.weight' is missing", "");
}

static void keys_out_of_range_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        firn_status status;
        const char *words;
    } cases[] = {
        { "llama.block_count", 0, FIRN_ERR_FORMAT, "'llama.block_count' is 0" },
        { "llama.block_count", UINT32_MAX, FIRN_ERR_FORMAT, "'llama.block_count' is 4294967295" },
        { "llama.embedding_length", 0, FIRN_ERR_FORMAT, "'llama.embedding_length' is 0" },
        { "llama.feed_forward_length", 1u << 30, FIRN_ERR_FORMAT, "'llama.feed_forward_length'" },
        { "llama.attention.head_count", 0, FIRN_ERR_FORMAT, "'llama.attention.head_count' is 0" },
        { "llama.attention.head_count_kv", 3, FIRN_ERR_FORMAT, "4 query heads are not a multiple of 3" },
        { "llama.attention.key_length", 4096, FIRN_ERR_FORMAT, "'llama.attention.key_length'" },
        { "llama.rope.dimension_count", 15, FIRN_ERR_FORMAT, "an odd number" },
        { "llama.rope.dimension_count", 18, FIRN_ERR_FORMAT, "'llama.rope.dimension_count' is 18" },
        { "llama.rope.freq_base", 0, FIRN_ERR_FORMAT, "'llama.rope.freq_base' is 0" },
        { "llama.rope.freq_base", 0x7fc00000, FIRN_ERR_FORMAT, "'llama.rope.freq_base' is not a finite" },
        { "llama.rope.scaling.factor", 0xbf800000, FIRN_ERR_FORMAT, "'llama.rope.scaling.factor' is -1" },
        { "llama.rope.scaling.original_context_length", 0, FIRN_ERR_FORMAT, "original_context_length' is 0" },
        { "llama.attention.layer_norm_rms_epsilon", 0, FIRN_ERR_FORMAT, "layer_norm_rms_epsilon' is 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        image im = load_tiny();
        set_u32_key(&im, cases[i].key, cases[i].value);
        expect(dir, &im, cases[i].status, cases[i].words, "");
    }
    image im = load_tiny();
    rename_item(&im, "llama.block_count", "llama.bloxk_count");
    expect(dir, &im, FIRN_ERR_FORMAT, "'llama.block_count' is missing", "");
    im = load_tiny();
    rename_item(&im, "llama.context_length", "llama.context_leng__");
    expect(dir, &im, FIRN_ERR_FORMAT, "'llama.context_length' is missing", "");
    im = load_tiny();
    memcpy(im.data + behind_name(&im, "llama.rope.scaling.type") + 4 + 8, "yawn", 4);
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'yawn'", "none, linear, llama3 and yarn");
}

static void mutated_models_are_read_safely(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("mutated models", 31);
    image im = load_tiny();
    const size_t n_header = behind_name(&im, "output.weight");
    char *sound = malloc(im.n);
    memcpy(sound, im.data, im.n);
    uint32_t n_refused = 0;
    for (uint32_t i = 0; i < 1500; i++) {
        firn_error err = { .message = "" };
        /* Most of the header is vocabulary; aim at keys and the tensor table too. */
        const uint32_t n_changes = 1 + test_rng_below(&rng, 3);
        for (uint32_t c = 0; c < n_changes; c++) {
            const size_t from = i % 3 == 0 ? 0 : i % 3 == 1 ? n_header - 1500 : 0;
            const size_t span = i % 3 == 0 ? n_header : i % 3 == 1 ? 1500 : 900;
            im.data[from + test_rng_below(&rng, (uint32_t)span)] = (char)test_rng_u64(&rng);
        }
        const firn_status status = open_image(dir, &im, NULL, &err);
        n_refused += status != FIRN_OK;
        assert_true(status == FIRN_OK || err.message[0] != '\0');
        memcpy(im.data, sound, im.n);
    }
    print_message("%u of 1500 refused\n", n_refused);
    assert_true(n_refused > 300);
    free(sound);
    free(im.data);
}

static void memory_that_runs_out_while_opening_leaks_nothing(void **state)
{
    (void)state;
    image im = load_tiny();
    bool clean = false;
    uint32_t n_refused = 0;
    for (uint64_t n = 1; !clean; n++) {
        test_world world;
        firn_error err = { .message = "" };
        test_world_init(&world);
        world.fail_alloc_at = n;
        const firn_status status = open_image(dir, &im, &world.env, &err);
        clean = !world.alloc_failed;
        /* Some memory only makes things faster, such as compiled patterns: those do without. */
        assert_true(status == FIRN_OK || (!clean && status == FIRN_ERR_NO_MEMORY));
        n_refused += status != FIRN_OK;
        test_world_deinit(&world); /* asserts that nothing leaked */
    }
    assert_true(n_refused > 20);
    free(im.data);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    char *path = small_model(dir, "options.gguf", &tiny);
    firn_model *model = NULL;
    firn_error err;
    assert_status(firn_model_open(&(firn_model_options){ .path = NULL }, NULL, &model, &err), FIRN_ERR_INVALID);
    assert_status(firn_model_open(&(firn_model_options){ .path = path, .kv_dtype = FIRN_DTYPE_I8 }, NULL, &model, &err),
                  FIRN_ERR_INVALID);
    assert_status(firn_model_open(&(firn_model_options){ .path = path, .max_rows = UINT32_MAX }, NULL, &model, &err),
                  FIRN_ERR_INVALID);
    assert_status(firn_model_open(&(firn_model_options){ .path = path, .kernel = "mmx" }, NULL, &model, &err),
                  FIRN_ERR_UNSUPPORTED);
    assert_status(firn_model_open(&(firn_model_options){ .path = dir }, NULL, &model, &err), FIRN_ERR_IO);
    assert_null(model);
    firn_model_close(NULL);
    free(path);
}

/* ---- what an open model says of itself ---- */

static void facts_and_identity_come_from_the_file(void **state)
{
    (void)state;
    char *path = small_model(dir, "facts.gguf", &tiny);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_BF16 });
    const firn_model_info *info = firn_model_get_info(f.model);
    const firn_schema *schema = firn_model_schema(f.model);
    assert_string_equal(info->architecture, "llama");
    assert_string_equal(info->weight_type, "q8_0");
    assert_int_equal(info->n_params, firni_synth_n_params(&tiny));
    assert_int_equal(info->n_embd, 64);
    assert_int_equal(info->n_ctx_train, 1024);
    assert_int_equal(schema->n_layers, 2);
    assert_int_equal(schema->layers[1].dtype, FIRN_DTYPE_BF16);
    static const char *const fields[] = {
        "architecture: llama\n",
        "weights: ",
        "tokenizer: ",
        "rope: interleaved dims=16 base=10000 scaling=yarn",
        "kv_dtype: bf16\n",
        "arithmetic: firn-arith-2\n",
        "block_tokens: 64\n",
        "layer.0: kv:plain bf16",
        "layer.1: kv:plain bf16",
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strstr(schema->identity_text, fields[i]) == NULL) {
            fail_msg("no \"%s\" in:\n%s", fields[i], schema->identity_text);
        }
    }
    fixture_close(&f);
    free(path);
}

static firn_digest identity_of(const firni_synth_options *options, firn_dtype kv)
{
    char *path = small_model(dir, "identity.gguf", options);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv });
    const firn_digest digest = firn_model_schema(f.model)->identity;
    fixture_close(&f);
    free(path);
    return digest;
}

static void anything_that_shapes_the_state_changes_the_identity(void **state)
{
    (void)state;
    firni_synth_options options = tiny;
    firn_digest digests[8];
    size_t n = 0;
    digests[n++] = identity_of(&options, FIRN_DTYPE_F16);
    const firn_digest again = identity_of(&options, FIRN_DTYPE_F16);
    assert_memory_equal(&again, &digests[0], sizeof again);
    digests[n++] = identity_of(&options, FIRN_DTYPE_F32);
    options.seed++; /* other weights under the same path */
    digests[n++] = identity_of(&options, FIRN_DTYPE_F16);
    options = tiny;
    options.rope_base = 20000.0F;
    digests[n++] = identity_of(&options, FIRN_DTYPE_F16);
    options = tiny;
    options.rope_factor = 2.0F;
    digests[n++] = identity_of(&options, FIRN_DTYPE_F16);
    options = tiny;
    options.n_vocab++;
    digests[n++] = identity_of(&options, FIRN_DTYPE_F16);
    for (size_t a = 0; a < n; a++) {
        for (size_t b = 0; b < a; b++) {
            assert_memory_not_equal(&digests[a], &digests[b], sizeof digests[a]);
        }
    }
}

static void names_and_templates_do_not_change_the_identity(void **state)
{
    (void)state;
    firn_digest digests[3];
    char other_path[512];
    (void)snprintf(other_path, sizeof other_path, "%s/changed.gguf", dir);
    for (int i = 0; i < 3; i++) {
        image im = load_tiny();
        firn_error err;
        if (i == 1) {
            im.data[behind_name(&im, "general.name") + 4 + 8] ^= 1;
        } else if (i == 2) {
            im.data[behind_name(&im, "tokenizer.chat_template") + 4 + 8 + 30] ^= 1;
        }
        assert_ok(open_image(dir, &im, NULL, &err));
        fixture f = fixture_open(&(fixture_options){ .path = other_path });
        digests[i] = firn_model_schema(f.model)->identity;
        fixture_close(&f);
        free(im.data);
    }
    assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
    assert_memory_equal(&digests[0], &digests[2], sizeof digests[0]);
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
        cmocka_unit_test(unknown_architectures_are_refused_with_those_known),
        cmocka_unit_test(unsupported_weight_types_are_named),
        cmocka_unit_test(tensors_that_do_not_fit_the_architecture_are_named),
        cmocka_unit_test(keys_out_of_range_are_named),
        cmocka_unit_test(mutated_models_are_read_safely),
        cmocka_unit_test(memory_that_runs_out_while_opening_leaks_nothing),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(facts_and_identity_come_from_the_file),
        cmocka_unit_test(anything_that_shapes_the_state_changes_the_identity),
        cmocka_unit_test(names_and_templates_do_not_change_the_identity),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
