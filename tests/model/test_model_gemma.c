/*
 * What gemma3 and gemma4 have of their own: which layers see how much, which store and which share, how their keys are
 * read, and what is said of files that contradict themselves.
 */
#include "model_image.h"

#include "model/arch_impl.h"
#include "model/ggml_type.h"
#include "model/gguf_impl.h"

#define N_VOCAB 300u

static char *dir;

static const firni_synth_options gemma3 = {
    .architecture = "gemma3", .type = FIRNI_WEIGHT_F32, .n_layers = 6, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = N_VOCAB, .n_ctx = 1024, .seed = 5,
};

static firni_synth_options gemma4(void)
{
    firni_synth_options options = gemma3;
    options.architecture = "gemma4";
    return options;
}

static image load3(void)
{
    return image_of(dir, &gemma3);
}

static image load4(void)
{
    const firni_synth_options options = gemma4();
    return image_of(dir, &options);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static void assert_layer(const fixture *f, uint32_t cache, const char *layout, uint32_t window, uint32_t head_dim)
{
    const firn_cache_options *options = &firn_model_schema(f->model)->layers[cache];
    assert_string_equal(options->layout, layout);
    assert_int_equal(options->window, window);
    assert_int_equal(options->head_dim, head_dim);
}

static void assert_identity(const fixture *f, const char *words)
{
    if (strstr(firn_model_schema(f->model)->identity_text, words) == NULL) {
        fail_msg("no \"%s\" in:\n%s", words, firn_model_schema(f->model)->identity_text);
    }
}

static void every_sixth_layer_of_gemma3_sees_everything(void **state)
{
    (void)state;
    char *path = small_model(dir, "layers3.gguf", &gemma3);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    assert_int_equal(f.n_layers, 6);
    for (uint32_t i = 0; i < 5; i++) {
        assert_layer(&f, i, "kv:window", 32, 16);
    }
    assert_layer(&f, 5, "kv:plain", 0, 16);
    assert_identity(&f, "rope: half-split dims=16");
    assert_identity(&f, "rope.1: half-split dims=16");
    assert_identity(&f, "layer.0: kv:window f16 heads=2 dim=16/16 window=32");
    fixture_close(&f);
    free(path);
}

static void only_layers_that_see_everything_are_stretched(void **state)
{
    (void)state;
    firni_synth_options options = gemma3;
    options.rope_base = 1e6F;
    options.rope_scaling = FIRNI_ROPE_SCALING_LINEAR;
    options.rope_factor = 8.0F;
    char *path = small_model(dir, "stretched.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    assert_identity(&f, "rope: half-split dims=16 base=1000000 scaling=linear factor=8");
    assert_identity(&f, "rope.1: half-split dims=16 base=10000 scaling=none\n");
    fixture_close(&f);
    free(path);
}

static void the_second_half_of_gemma4_stores_nothing(void **state)
{
    (void)state;
    const firni_synth_options options = gemma4();
    char *path = small_model(dir, "layers4.gguf", &options);
    fixture f = fixture_open(&(fixture_options){ .path = path });
    assert_int_equal(firn_model_get_info(f.model)->n_layers, 6);
    assert_int_equal(f.n_layers, 3);
    assert_layer(&f, 0, "kv:window", 32, 16);
    assert_layer(&f, 1, "kv:window", 32, 16);
    assert_layer(&f, 2, "kv:plain", 0, 32);
    assert_identity(&f, "rope: half-split dims=32");
    assert_identity(&f, "rope.1: half-split dims=16");
    fixture_close(&f);
    free(path);
}

/* ---- whose weights count ----------------------------------------------------------------------------------------- */

/* Where a tensor's data lies in the file. */
static char *tensor_data(const image *im, const char *path, const char *name, uint64_t *n_bytes)
{
    firni_gguf *gguf = NULL;
    assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
    const firni_gguf_tensor *tensor = firni_gguf_find_tensor(gguf, name);
    assert_non_null(tensor);
    /* The last tensor ends where the file does. */
    const firni_gguf_tensor *last = firni_gguf_tensor_at(gguf, 0);
    for (uint64_t i = 1; i < firni_gguf_n_tensors(gguf); i++) {
        const firni_gguf_tensor *t = firni_gguf_tensor_at(gguf, i);
        last = t->data > last->data ? t : last;
    }
    const size_t from_end = (size_t)(last->data + last->n_bytes - tensor->data);
    *n_bytes = tensor->n_bytes;
    /* Behind it at most the padding of an alignment. */
    size_t pad = 0;
    while (pad < 64 && memcmp(im->data + im->n - from_end - pad, tensor->data, (size_t)tensor->n_bytes) != 0) {
        pad++;
    }
    assert_true(pad < 64);
    firni_gguf_close(gguf);
    return im->data + im->n - from_end - pad;
}

static float *logits_of(const image *im)
{
    firn_token tokens[100];
    char path[512];
    firn_error err;
    for (uint32_t i = 0; i < 100; i++) {
        tokens[i] = i * 41 % 256;
    }
    assert_ok(open_image(dir, im, NULL, &err));
    (void)snprintf(path, sizeof path, "%s/changed.gguf", dir);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F32 });
    float *logits = fixture_logits(&f, tokens, 100, 64);
    fixture_close(&f);
    return logits;
}

/* Logits after the data of `to` has become that of `from`, both of one size. */
static float *logits_after_copy(const char *from, const char *to, const char *gone)
{
    image im = load4();
    char path[512];
    uint64_t n_from;
    uint64_t n_to;
    (void)snprintf(path, sizeof path, "%s/sound.gguf", dir);
    if (from != NULL) {
        const char *source = tensor_data(&im, path, from, &n_from);
        char *target = tensor_data(&im, path, to, &n_to);
        assert_int_equal(n_from, n_to);
        memcpy(target, source, (size_t)n_to);
    }
    if (gone != NULL) {
        /* Tensors of this prefix are left aside. */
        char other[64];
        (void)snprintf(other, sizeof other, "cls%s", gone + 3);
        rename_item(&im, gone, other);
    }
    float *logits = logits_of(&im);
    free(im.data);
    return logits;
}

static bool are_equal(const float *a, const float *b)
{
    return memcmp(a, b, 100 * N_VOCAB * sizeof *a) == 0;
}

static void layers_that_share_read_the_last_earlier_one_of_their_kind(void **state)
{
    (void)state;
    float *sound = logits_after_copy(NULL, NULL, NULL);
    /* Layers 3 and 4 read layer 1, layer 5 reads layer 2. Their own keys and values count for nothing. */
    float *own_keys = logits_after_copy("blk.0.attn_k.weight", "blk.4.attn_k.weight", NULL);
    float *own_values = logits_after_copy("blk.2.attn_v.weight", "blk.5.attn_v.weight", NULL);
    float *no_keys = logits_after_copy(NULL, NULL, "blk.3.attn_k.weight");
    float *queries = logits_after_copy("blk.0.attn_q.weight", "blk.4.attn_q.weight", NULL);
    float *donor = logits_after_copy("blk.0.attn_k.weight", "blk.1.attn_k.weight", NULL);
    assert_true(are_equal(sound, own_keys));
    assert_true(are_equal(sound, own_values));
    assert_true(are_equal(sound, no_keys));
    assert_false(are_equal(sound, queries));
    assert_false(are_equal(sound, donor));
    free(sound);
    free(own_keys);
    free(own_values);
    free(no_keys);
    free(queries);
    free(donor);
}

static void a_layer_without_values_uses_its_keys(void **state)
{
    (void)state;
    float *sound = logits_after_copy(NULL, NULL, NULL);
    float *same = logits_after_copy("blk.2.attn_k.weight", "blk.2.attn_v.weight", NULL);
    float *without = logits_after_copy(NULL, NULL, "blk.2.attn_v.weight");
    assert_true(are_equal(same, without));
    assert_false(are_equal(sound, without));
    free(sound);
    free(same);
    free(without);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

typedef struct pattern {
    enum { PATTERN_NONE, PATTERN_PERIOD, PATTERN_I32, PATTERN_BOOL } kind;
    uint32_t period;
    uint32_t window;
    uint32_t n_layers;
    float scale;
} pattern;

/* The hyperparameters of a file that has nothing but keys and an embedding. */
static firn_status read_gemma3(const pattern *p, firni_hparams *out, firn_error *err)
{
    char path[512];
    firni_gguf_writer *writer = NULL;
    firni_gguf *gguf = NULL;
    int32_t flags[64];
    uint8_t bytes[64];
    const float embedding[4 * 8] = { 0.0F };
    const uint64_t shape[2] = { 8, 4 };
    for (uint32_t i = 0; i < 64; i++) {
        flags[i] = i % 3 != 0;
        bytes[i] = i % 3 != 0;
    }
    (void)snprintf(path, sizeof path, "%s/keys.gguf", dir);
    (void)unlink(path);
    assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
    firni_gguf_put_string(writer, "general.architecture", "gemma3", 6);
    firni_gguf_put_u32(writer, "gemma3.block_count", p->n_layers);
    firni_gguf_put_u32(writer, "gemma3.embedding_length", 64);
    firni_gguf_put_u32(writer, "gemma3.context_length", 4096);
    firni_gguf_put_u32(writer, "gemma3.feed_forward_length", 64);
    firni_gguf_put_u32(writer, "gemma3.attention.head_count", 4);
    firni_gguf_put_u32(writer, "gemma3.attention.key_length", 32);
    firni_gguf_put_u32(writer, "gemma3.attention.value_length", 32);
    if (p->window > 0) {
        firni_gguf_put_u32(writer, "gemma3.attention.sliding_window", p->window);
    }
    if (p->scale != 0.0F) {
        firni_gguf_put_f32(writer, "gemma3.attention.scale", p->scale);
    }
    switch (p->kind) {
    case PATTERN_NONE: break;
    case PATTERN_PERIOD: firni_gguf_put_u32(writer, "gemma3.attention.sliding_window_pattern", p->period); break;
    case PATTERN_I32:
        firni_gguf_put_array(writer, "gemma3.attention.sliding_window_pattern", FIRNI_GGUF_I32, flags, p->period);
        break;
    case PATTERN_BOOL:
        firni_gguf_put_array(writer, "gemma3.attention.sliding_window_pattern", FIRNI_GGUF_BOOL, bytes, p->period);
        break;
    }
    firni_gguf_declare_tensor(writer, "token_embd.weight", FIRNI_GGML_F32, shape, 2, sizeof embedding);
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    assert_ok(firni_gguf_write_data(writer, embedding, sizeof embedding, NULL));
    assert_ok(firni_gguf_end_tensor(writer, NULL));
    assert_ok(firni_gguf_writer_finish(writer, NULL));
    firni_gguf_writer_destroy(writer);
    assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
    const firn_status status = firni_hparams_read(gguf, "gemma3", firni_arch_gemma3.read, out, err);
    firni_gguf_close(gguf);
    return status;
}

static void patterns_of_windows_are_read_in_every_form(void **state)
{
    (void)state;
    static const struct {
        pattern pattern;
        const char *layers; /* w: with a window, f: full */
    } cases[] = {
        { { .kind = PATTERN_NONE, .window = 16, .n_layers = 8 }, "wwwwwfww" },
        { { .kind = PATTERN_PERIOD, .period = 2, .window = 16, .n_layers = 8 }, "wfwfwfwf" },
        { { .kind = PATTERN_PERIOD, .period = 0, .window = 16, .n_layers = 8 }, "wwwwwfww" },
        { { .kind = PATTERN_PERIOD, .period = 1, .window = 16, .n_layers = 3 }, "fff" },
        { { .kind = PATTERN_I32, .period = 7, .window = 16, .n_layers = 7 }, "fwwfwwf" },
        { { .kind = PATTERN_BOOL, .period = 9, .window = 16, .n_layers = 7 }, "fwwfwwf" },
        { { .kind = PATTERN_BOOL, .period = 7, .window = 0, .n_layers = 7 }, "fffffff" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firni_hparams hp;
        assert_ok(read_gemma3(&cases[i].pattern, &hp, NULL));
        assert_int_equal(strlen(cases[i].layers), hp.n_layers);
        for (uint32_t l = 0; l < hp.n_layers; l++) {
            const bool has_window = cases[i].layers[l] == 'w';
            assert_int_equal(hp.layers[l].window, has_window ? 16 : 0);
            assert_int_equal(hp.layers[l].rope, has_window ? 1 : 0);
        }
    }
    firni_hparams hp;
    firn_error err;
    const pattern short_one = { .kind = PATTERN_I32, .period = 6, .window = 16, .n_layers = 7 };
    assert_status(read_gemma3(&short_one, &hp, &err), FIRN_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'gemma3.attention.sliding_window_pattern' has 6 elements"));
}

static void the_score_scale_comes_from_the_file_or_the_size(void **state)
{
    (void)state;
    firni_hparams hp;
    const pattern said = { .window = 16, .n_layers = 62, .scale = 0.375F };
    const pattern small = { .window = 16, .n_layers = 48 };
    const pattern large = { .window = 16, .n_layers = 62 };
    assert_ok(read_gemma3(&said, &hp, NULL));
    assert_true(hp.attention_scale == 0.375F);
    assert_ok(read_gemma3(&small, &hp, NULL));
    assert_true(hp.attention_scale == (float)(1.0 / sqrt(32.0)));
    assert_ok(read_gemma3(&large, &hp, NULL));
    assert_true(hp.attention_scale == (float)(1.0 / sqrt(64.0 / 4.0)));
    assert_true(hp.embedding_scale == 8.0F);
}

static void contradictory_files_are_named(void **state)
{
    (void)state;
    static const struct {
        bool is_4;
        const char *key;
        uint32_t value;
        const char *words, *more_words;
    } cases[] = {
        { false, "gemma3.attention.sliding_window", UINT32_MAX, "'gemma3.attention.sliding_window' is 4294967295", "" },
        { false, "gemma3.rope.freq_base_swa", 0, "'gemma3.rope.freq_base_swa' is 0", "" },
        { false, "gemma3.attention.head_count_kv", 3, "4 query heads are not a multiple of 3", "" },
        { false, "gemma3.attention.key_length", 8, "'gemma3.rope.dimension_count' is 16", "2 to 8" },
        { true, "gemma4.attention.shared_kv_layers", 6, "'gemma4.attention.shared_kv_layers' is 6", "0 to 5" },
        { true, "gemma4.attention.shared_kv_layers", 5, "'gemma4.attention.shared_kv_layers' leaves a kind", "" },
        { true, "gemma4.attention.key_length_swa", 15, "'gemma4.rope.dimension_count_swa' is 16", "2 to 15" },
        { true, "gemma4.attention.key_length_swa", 32, "'blk.0.attn_q_norm.weight' has the shape [16", "[32" },
        { true, "gemma4.attention.head_count_kv", 3, "'gemma4.attention.head_count' is not a multiple", "" },
        { true, "gemma4.attention.value_length", 0, "'gemma4.attention.value_length' is 0", "" },
        { true, "gemma4.embedding_length_per_layer_input", 16, "'per_layer_token_embd.weight' has the shape [192",
          "expected [96, 300" },
        { true, "gemma4.rope.dimension_count_swa", 9, "'gemma4.rope.dimension_count_swa' is an odd number", "" },
        { true, "gemma4.final_logit_softcapping", 0x7f800000, "'gemma4.final_logit_softcapping'", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        image im = cases[i].is_4 ? load4() : load3();
        set_u32_key(&im, cases[i].key, cases[i].value);
        expect(dir, &im, FIRN_ERR_FORMAT, cases[i].words, cases[i].more_words);
    }
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    static const struct {
        bool is_4;
        const char *name, *renamed, *words;
    } cases[] = {
        { false, "blk.1.post_attention_norm.weight", "cls.1.post_attention_norm.weight",
          "'blk.1.post_attention_norm.weight' [64, 1] is missing" },
        { false, "blk.5.post_ffw_norm.weight", "cls.5.post_ffw_norm.weight", "'blk.5.post_ffw_norm.weight'" },
        { false, "blk.5.attn_v.weight", "cls.5.attn_v.weight", "'blk.5.attn_v.weight' [64, 32] is missing" },
        { true, "gemma4.attention.sliding_window_pattern", "gemma4.attention.sliding_window_pattexx",
          "'gemma4.attention.sliding_window_pattern' is missing" },
        { true, "gemma4.attention.key_length", "gemma4.attention.key_lengxx",
          "'gemma4.attention.key_length' is missing" },
        { true, "gemma4.attention.head_count_kv", "gemma4.attention.head_count_xx", "head_count_kv is missing" },
        { true, "gemma4.feed_forward_length", "gemma4.feed_forward_lengxx",
          "'gemma4.feed_forward_length' is missing" },
        { true, "blk.4.proj.weight", "cls.4.proj.weight", "'blk.4.proj.weight' [32, 64] is missing" },
        { true, "per_layer_proj_norm.weight", "per_layer_proj_noxx.weight", "'per_layer_proj_norm.weight'" },
        { true, "blk.0.attn_k_norm.weight", "cls.0.attn_k_norm.weight", "'blk.0.attn_k_norm.weight'" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        image im = cases[i].is_4 ? load4() : load3();
        rename_item(&im, cases[i].name, cases[i].renamed);
        expect(dir, &im, FIRN_ERR_FORMAT, cases[i].words, "");
    }
    /* Without a pattern's companion nothing is wrong: layers then see everything. */
    image im = load3();
    firn_error err;
    rename_item(&im, "gemma3.attention.sliding_window", "gemma3.attention.sliding_windxx");
    assert_ok(open_image(dir, &im, NULL, &err));
    free(im.data);
}

static void memory_that_runs_out_while_opening_leaks_nothing(void **state)
{
    (void)state;
    image im = load4();
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
        cmocka_unit_test(every_sixth_layer_of_gemma3_sees_everything),
        cmocka_unit_test(only_layers_that_see_everything_are_stretched),
        cmocka_unit_test(the_second_half_of_gemma4_stores_nothing),
        cmocka_unit_test(layers_that_share_read_the_last_earlier_one_of_their_kind),
        cmocka_unit_test(a_layer_without_values_uses_its_keys),
        cmocka_unit_test(patterns_of_windows_are_read_in_every_form),
        cmocka_unit_test(the_score_scale_comes_from_the_file_or_the_size),
        cmocka_unit_test(contradictory_files_are_named),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(memory_that_runs_out_while_opening_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
