/*
 * What deepseek2 and deepseek32 have of their own: latent state, YaRN's temperature in the scale of scores, and what is
 * said of files that lack or contradict their keys and tensors.
 */
#include "model_image.h"

#include "model/arch_impl.h"

static char *dir;

static const firni_synth_options lite = {
    .architecture = "deepseek2", .type = FIRNI_WEIGHT_F16, .n_layers = 3, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1,
    .head_dim = 32, .n_ff = 128, .n_vocab = 300, .n_ctx = 1024, .seed = 6,
};

static firni_synth_options sparse(void)
{
    firni_synth_options options = lite;
    options.architecture = "deepseek32";
    return options;
}

static void state_is_one_latent_for_all_heads(void **state)
{
    (void)state;
    const firni_synth_options both[] = { lite, sparse() };
    for (size_t i = 0; i < 2; i++) {
        char *path = small_model(dir, "layers.gguf", &both[i]);
        fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_BF16 });
        const firn_cache_options *layer = &firn_model_schema(f.model)->layers[2];
        assert_string_equal(layer->layout, i == 0 ? "kv:mla" : "kv:mla:dsa");
        assert_int_equal(layer->n_kv_heads, 1);
        assert_int_equal(layer->head_dim, 128 + 16);
        assert_int_equal(layer->value_dim, 128);
        assert_int_equal(layer->index_dim, i == 0 ? 0 : 32);
        assert_int_equal(layer->index_top_k, i == 0 ? 0 : 33);
        batch b = batch_create(&f, 1);
        assert_int_equal(firn_cache_bytes_per_token(b.layers[0]), 2 * (128 + 16 + (i == 0 ? 0 : 32)));
        batch_destroy(&f, &b);
        fixture_close(&f);
        free(path);
    }
}

/* Keys of a file with nothing else in it, read through the architecture's own reader. */
static firn_status read_keys(float log_multiplier, bool has_yarn, firni_hparams *hp, firn_error *err)
{
    char path[512];
    firni_gguf_writer *writer;
    firni_gguf *gguf;
    const float nothing[4] = { 0 };
    const uint64_t shape[2] = { 2, 2 };
    (void)snprintf(path, sizeof path, "%s/keys.gguf", dir);
    assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        { "block_count", 2 }, { "embedding_length", 64 }, { "context_length", 4096 }, { "attention.head_count", 4 },
        { "attention.kv_lora_rank", 64 }, { "attention.key_length_mla", 48 }, { "attention.value_length_mla", 32 },
        { "rope.dimension_count", 16 }, { "feed_forward_length", 128 }, { "leading_dense_block_count", 1 },
        { "expert_count", 4 }, { "expert_used_count", 2 }, { "expert_feed_forward_length", 64 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char key[96];
        (void)snprintf(key, sizeof key, "deepseek2.%s", numbers[i].key);
        firni_gguf_put_u32(writer, key, numbers[i].value);
    }
    if (has_yarn) {
        firni_gguf_put_string(writer, "deepseek2.rope.scaling.type", "yarn", 4);
        firni_gguf_put_f32(writer, "deepseek2.rope.scaling.factor", 40.0F);
        firni_gguf_put_u32(writer, "deepseek2.rope.scaling.original_context_length", 4096);
        firni_gguf_put_f32(writer, "deepseek2.rope.scaling.yarn_log_multiplier", log_multiplier);
    }
    firni_gguf_declare_tensor(writer, "token_embd.weight", 0, shape, 2, sizeof nothing);
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    assert_ok(firni_gguf_write_data(writer, nothing, sizeof nothing, NULL));
    assert_ok(firni_gguf_end_tensor(writer, NULL));
    assert_ok(firni_gguf_writer_finish(writer, NULL));
    firni_gguf_writer_destroy(writer);
    assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
    const firn_status status = firni_hparams_read(gguf, "deepseek2", firni_arch_find("deepseek2")->read, hp, err);
    firni_gguf_close(gguf);
    return status;
}

/* V2 and V3: factor 40, multiplier 0.1 m with m = 0.707 or 1; the scale takes (0.1 m ln 40 + 1)^2. */
static void yarn_warms_the_scores_and_not_the_rotation(void **state)
{
    (void)state;
    firni_hparams *hp = calloc(1, sizeof *hp);
    firn_error err = { .message = "" };
    assert_non_null(hp);
    assert_ok(read_keys(0.0F, false, hp, &err));
    assert_true(fabs((double)hp->mla.scale - 0.144337567) < 1e-7);
    static const struct {
        float multiplier;
        double scale;
    } cases[] = { { 0.0707F, 0.144337567 * 1.589626 }, { 0.1F, 0.144337567 * 1.873849 } };
    for (size_t i = 0; i < 2; i++) {
        firni_rope rope;
        assert_ok(read_keys(cases[i].multiplier, true, hp, &err));
        assert_true(fabs((double)hp->mla.scale / cases[i].scale - 1.0) < 1e-5);
        assert_ok(firni_rope_init(&rope, &hp->ropes[0], NULL, NULL, NULL));
        assert_true(fabs(rope.magnitude - 1.0) < 1e-6);
        firni_rope_deinit(&rope);
    }
    free(hp);
}

static void contradictory_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *words, *more_words;
    } cases[] = {
        { "deepseek32.attention.kv_lora_rank", 1025, "'deepseek32.attention.kv_lora_rank' is 1025", "1 to 1024" },
        { "deepseek32.attention.kv_lora_rank", 1020, "'deepseek32.rope.dimension_count' 16", "kv_lora_rank 1020" },
        { "deepseek32.attention.kv_lora_rank", 64, "'blk.0.attn_kv_a_mqa.weight' has the shape [64, 144", "[64, 80" },
        { "deepseek32.attention.key_length_mla", 16, "'deepseek32.rope.dimension_count' 16", "key_length_mla 16" },
        { "deepseek32.attention.value_length_mla", 64, "'blk.0.attn_v_b.weight' has the shape [128, 32, 4",
          "[128, 64, 4" },
        { "deepseek32.attention.q_lora_rank", 0, "'deepseek32.attention.q_lora_rank'", "index queries" },
        { "deepseek32.attention.indexer.head_count", 8, "'blk.0.indexer.proj.weight' has the shape [64, 4", "[64, 8" },
        { "deepseek32.attention.indexer.key_length", 8, "'deepseek32.attention.indexer.key_length' is 8", "16 to" },
        { "deepseek32.attention.indexer.top_k", 0, "'deepseek32.attention.indexer.top_k' is 0", "1 to 4096" },
        { "deepseek32.expert_used_count", 9, "'deepseek32.expert_used_count' is 9", "1 to 8" },
        { "deepseek32.expert_group_count", 3, "'deepseek32.expert_count' 8 is not a multiple", "3" },
        { "deepseek32.expert_group_used_count", 5, "'deepseek32.expert_group_used_count' is 5", "0 to 4" },
        { "deepseek32.expert_used_count", 5, "'deepseek32.expert_used_count' 5 is more than the 4", "groups" },
        { "deepseek32.leading_dense_block_count", 4, "'deepseek32.leading_dense_block_count' is 4", "0 to 3" },
        { "deepseek32.leading_dense_block_count", 0, "'blk.0.ffn_gate_inp.weight' [64, 8] is missing", "" },
        { "deepseek32.expert_shared_count", 0, "'blk.1.ffn_gate_shexp.weight' is not part", "deepseek32" },
    };
    const firni_synth_options options = sparse();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        image im = image_of(dir, &options);
        set_u32_key(&im, cases[i].key, cases[i].value);
        const bool is_extra = strstr(cases[i].words, "is not part") != NULL;
        expect(dir, &im, is_extra ? FIRN_ERR_UNSUPPORTED : FIRN_ERR_FORMAT, cases[i].words, cases[i].more_words);
    }
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        { "deepseek32.attention.kv_lora_rank", "deepseek32.attention.kv_lora_ranx" },
        { "deepseek32.attention.key_length_mla", "deepseek32.attention.key_length_mlx" },
        { "deepseek32.attention.indexer.top_k", "deepseek32.attention.indexer.top_x" },
        { "deepseek32.expert_count", "deepseek32.expert_counx" },
        { "blk.2.attn_k_b.weight", "cls.2.attn_k_b.weight" },
        { "blk.0.attn_kv_a_norm.weight", "cls.0.attn_kv_a_norm.weight" },
        { "blk.1.indexer.k_norm.bias", "cls.1.indexer.k_norm.bias" },
        { "blk.1.ffn_down_exps.weight", "cls.1.ffn_down_exps.weight" },
    };
    const firni_synth_options options = sparse();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        image im = image_of(dir, &options);
        rename_item(&im, names[i][0], names[i][1]);
        expect(dir, &im, FIRN_ERR_FORMAT, names[i][0], "is missing");
    }
}

/* Files from before key and value matrices were stored apart. */
static void older_files_are_refused_with_what_to_do(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        { "deepseek2.attention.key_length_mla", "deepseek2.attention.key_length_xxx" },
        { "blk.0.attn_norm.weight", "blk.0.attn_kv_b.weight" },
    };
    image im = image_of(dir, &lite);
    for (size_t i = 0; i < 2; i++) {
        rename_item(&im, names[i][0], names[i][1]);
    }
    expect(dir, &im, FIRN_ERR_UNSUPPORTED, "'deepseek2.attention.key_length_mla' is missing",
           "convert the model again");
}

static void memory_that_runs_out_while_opening_leaks_nothing(void **state)
{
    (void)state;
    const firni_synth_options options = sparse();
    image im = image_of(dir, &options);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_is_one_latent_for_all_heads),
        cmocka_unit_test(yarn_warms_the_scores_and_not_the_rotation),
        cmocka_unit_test(contradictory_files_are_named),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(older_files_are_refused_with_what_to_do),
        cmocka_unit_test(memory_that_runs_out_while_opening_leaks_nothing),
    };
    dir = test_dir_create();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove(dir);
    free(dir);
    return failed;
}
