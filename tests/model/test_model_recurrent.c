/*
 * Models with recurrent layers: qwen35, qwen3next, mamba2. What their files must hold, what their rows cost, and the
 * facts of their arithmetic that the oracle files do not single out.
 */
#include "model_image.h"

static char *dir;

static firni_synth_options small_options(const char *architecture)
{
    return (firni_synth_options){
        .architecture = architecture, .type = FIRNI_WEIGHT_F32, .n_layers = 4, .n_embd = 64, .n_heads = 4,
        .n_kv_heads = 2, .head_dim = 16, .n_ff = 96, .n_vocab = 272, .n_ctx = 1024, .seed = 5,
    };
}

static image load_small(const char *architecture)
{
    const firni_synth_options options = small_options(architecture);
    return image_of(dir, &options);
}

static void contradictory_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *suffix;
        uint32_t value;
        const char *words, *more_words;
    } cases[] = {
        { "qwen35", "ssm.conv_kernel", 0, "'qwen35.ssm.conv_kernel' is 0", "1 to 16" },
        { "qwen35", "ssm.conv_kernel", 17, "'qwen35.ssm.conv_kernel' is 17", "1 to 16" },
        { "qwen35", "ssm.conv_kernel", 3, "'blk.0.ssm_conv1d.weight' has the shape [4", "expected [3" },
        { "qwen35", "ssm.inner_size", 129, "'qwen35.ssm.*': 129 values in 8 heads over 4 groups", "" },
        { "qwen35", "ssm.group_count", 3, "'qwen35.ssm.*': 128 values in 8 heads over 3 groups", "" },
        { "qwen35", "ssm.state_size", 32, "'blk.0.ssm_conv1d.weight' has the shape", "" },
        { "qwen35", "ssm.time_step_rank", 4, "'blk.0.ssm_dt.bias' has the shape [8", "expected [4" },
        { "qwen35", "attention.value_length", 8, "'qwen35.attention.value_length' differs from key_length", "" },
        { "qwen35", "full_attention_interval", 0, "'qwen35.full_attention_interval' is 0", "" },
        { "qwen35", "full_attention_interval", 2, "'blk.1.attn_q_norm.weight' [16, 1] is missing", "" },
        { "qwen3next", "ssm.state_size", 2048, "'qwen3next.ssm.state_size' is 2048", "" },
        { "qwen3next", "expert_used_count", 9, "'qwen3next.expert_used_count' is 9", "1 to 8" },
        { "qwen3next", "expert_count", 9, "'blk.0.ffn_gate_inp.weight' has the shape [64, 8", "[64, 9" },
        { "mamba2", "ssm.time_step_rank", 8, "'blk.0.ssm_dt.bias' has the shape [4", "expected [8" },
        { "mamba2", "ssm.group_count", 4, "'blk.0.ssm_conv1d.bias' has the shape", "" },
        { "mamba2", "ssm.inner_size", 0, "'mamba2.ssm.inner_size' is 0", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[96];
        image im = load_small(cases[i].architecture);
        (void)snprintf(key, sizeof key, "%s.%s", cases[i].architecture, cases[i].suffix);
        set_u32_key(&im, key, cases[i].value);
        expect(dir, &im, FIRN_ERR_FORMAT, cases[i].words, cases[i].more_words);
    }
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    static const char *const names[][3] = {
        { "qwen35", "qwen35.ssm.state_size", "qwen35.ssm.state_sixx" },
        { "qwen35", "qwen35.ssm.inner_size", "qwen35.ssm.inner_sixx" },
        { "qwen35", "qwen35.feed_forward_length", "qwen35.feed_forward_lengxx" },
        { "qwen35", "blk.0.ssm_a", "cls.0.ssm_a" },
        { "qwen35", "blk.1.ssm_dt.bias", "cls.1.ssm_dt.bias" },
        { "qwen35", "blk.1.ssm_beta.weight", "cls.1.ssm_beta.weight" },
        { "qwen35", "blk.2.attn_gate.weight", "cls.2.attn_gate.weight" },
        { "qwen35", "blk.3.attn_q_norm.weight", "cls.3.attn_q_norm.weight" },
        { "qwen35", "blk.3.post_attention_norm.weight", "cls.3.post_attention_norm.weight" },
        { "qwen3next", "qwen3next.expert_count", "qwen3next.expert_couxx" },
        { "qwen3next", "blk.0.ssm_ba.weight", "cls.0.ssm_ba.weight" },
        { "qwen3next", "blk.2.ffn_up_exps.weight", "cls.2.ffn_up_exps.weight" },
        { "mamba2", "mamba2.ssm.conv_kernel", "mamba2.ssm.conv_kernxx" },
        { "mamba2", "blk.0.ssm_conv1d.bias", "cls.0.ssm_conv1d.bias" },
        { "mamba2", "blk.1.ssm_d", "cls.1.ssm_d" },
        { "mamba2", "blk.3.ssm_norm.weight", "cls.3.ssm_norm.weight" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        image im = load_small(names[i][0]);
        rename_item(&im, names[i][1], names[i][2]);
        expect(dir, &im, FIRN_ERR_FORMAT, names[i][1], "is missing");
    }
}

static void memory_that_runs_out_while_opening_leaks_nothing(void **state)
{
    (void)state;
    static const char *const architectures[] = { "qwen35", "qwen3next", "mamba2" };
    for (size_t a = 0; a < 3; a++) {
        image im = load_small(architectures[a]);
        bool clean = false;
        for (uint64_t n = 1; !clean; n += n < 40 ? 1 : 5) {
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
}

/* ---- what rows cost --------------------------------------------------------------------------------------------- */

static void layers_say_which_kind_they_are(void **state)
{
    (void)state;
    const firni_synth_options options = small_options("qwen35");
    char *path = small_model(dir, "kinds.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F16 });
    const firn_schema *schema = firn_model_schema(f.model);
    assert_int_equal(schema->n_layers, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(schema->layers[i].layout, i == 3 ? "kv:plain" : "ssm:gated-delta");
    }
    assert_non_null(strstr(schema->identity_text, "layer.0: ssm:gated-delta f32 heads=8%4 dim=16/16 conv=4\n"));
    assert_non_null(strstr(schema->identity_text, "layer.3: kv:plain f16"));
    fixture_close(&f);
    free(path);
}

static void a_mamba2_row_does_not_grow(void **state)
{
    (void)state;
    const firni_synth_options options = small_options("mamba2");
    char *path = small_model(dir, "rows.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    assert_int_equal(firn_model_get_info(f.model)->n_heads, 0);
    assert_null(strstr(firn_model_schema(f.model)->identity_text, "rope"));
    firn_token tokens[300];
    for (uint32_t i = 0; i < 300; i++) {
        tokens[i] = i % 272;
    }
    batch b = batch_create(&f, 1);
    firn_pool_stats stats;
    batch_feed(&f, &b, tokens, 1, 1, NULL);
    firn_pool_get_stats(f.pool, &stats);
    const uint64_t after_one = stats.used_bytes;
    batch_feed(&f, &b, tokens + 1, 299, 64, NULL);
    firn_pool_get_stats(f.pool, &stats);
    assert_int_equal(stats.used_bytes, after_one);
    assert_int_equal(stats.used_bytes, 4 * firn_cache_projected_bytes(b.layers[0], 300));
    batch_destroy(&f, &b);
    fixture_close(&f);
    free(path);
}

/* ---- facts of the
 * arithmetic -------------------------------------------------------------------------------------- */

static float *logits_of(const char *path, const firn_token *tokens, uint32_t n)
{
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F32 });
    float *logits = fixture_logits(&f, tokens, n, n);
    fixture_close(&f);
    return logits;
}

/* Where the oracle's sections leave a pair out it stays unrotated: with sections that reach every pair, or with none,
 * tokens after the first get other logits. */
static void a_pair_that_no_section_reaches_does_not_turn(void **state)
{
    (void)state;
    const firn_token tokens[6] = { 1, 20, 300, 4, 50, 6 };
    size_t n_bytes = 0;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/sections.gguf", dir);
    float *expected = logits_of("tests/oracle/qwen35.gguf", tokens, 6);
    for (uint32_t kind = 0; kind < 3; kind++) {
        static const uint32_t sections[3][4] = { { 4, 2, 2, 0 }, { 3, 3, 2, 0 }, { 0, 0, 0, 0 } };
        image im = { .data = read_whole("tests/oracle/qwen35.gguf", &n_bytes), .n = n_bytes };
        /* Behind the key: the types of the value and its elements, their number, the elements. */
        memcpy(im.data + behind_name(&im, "qwen35.rope.dimension_sections") + 4 + 4 + 8, sections[kind], 16);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(im.data, 1, im.n, file), im.n);
        assert_int_equal(fclose(file), 0);
        float *logits = logits_of(path, tokens, 6);
        assert_memory_equal(logits, expected, 512 * sizeof *logits);
        const int rest = memcmp(logits + 512, expected + 512, 5 * 512 * sizeof *logits);
        assert_true(kind == 0 ? rest == 0 : rest != 0);
        free(logits);
        free(im.data);
    }
    free(expected);
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
        cmocka_unit_test(contradictory_files_are_named),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(memory_that_runs_out_while_opening_leaks_nothing),
        cmocka_unit_test(layers_say_which_kind_they_are),
        cmocka_unit_test(a_mamba2_row_does_not_grow),
        cmocka_unit_test(a_pair_that_no_section_reaches_does_not_turn),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
