/*
 * Forwards that are refused: wrong arguments, caches that do not fit, memory and context that run out. Each leaves
 * every layer of every row as it was.
 */
#include "model_fixture.h"

static char *dir;
static char *path;

static const firni_synth_options tiny = {
    .architecture = "qwen2", .type = FIRNI_WEIGHT_F16, .n_layers = 3, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = 272, .n_ctx = 1024, .seed = 3,
};

/* A forward that must fail with `expected` and these words, and change no row. */
static void refuse(fixture *f, const firn_forward_input *input, firn_status expected, const char *words)
{
    firn_error err = { .message = "" };
    uint32_t before[64];
    for (uint32_t l = 0; l < f->n_layers; l++) {
        before[l] = firn_cache_batch_size(input->caches[l]) == 0 ? 0 : firn_cache_row_tokens(input->caches[l], 0);
    }
    const firn_status status = firn_model_forward(f->model, input, &err);
    if (status != expected || strstr(err.message, words) == NULL) {
        fail_msg("%s, \"%s\"; expected %s with \"%s\"", firn_status_name(status), err.message,
                 firn_status_name(expected), words);
    }
    for (uint32_t l = 0; l < f->n_layers; l++) {
        const bool is_empty = firn_cache_batch_size(input->caches[l]) == 0;
        assert_int_equal(is_empty ? 0 : firn_cache_row_tokens(input->caches[l], 0), before[l]);
        firn_cache_check(input->caches[l]);
    }
}

static void wrong_tokens_and_counts_are_refused(void **state)
{
    (void)state;
    fixture f = fixture_open(&(fixture_options){ .path = path, .max_batch_tokens = 8 });
    float logits[8 * 272];
    firn_token tokens[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    uint32_t counts[2] = { 9, 0 };
    batch b = batch_create(&f, 1);
    firn_forward_input input = { .tokens = tokens, .counts = counts, .n_rows = 1, .caches = b.layers,
                                 .logits = logits };
    refuse(&f, &input, FIRN_ERR_INVALID, "9 tokens: this model was opened for 8");
    counts[0] = UINT32_MAX;
    refuse(&f, &input, FIRN_ERR_INVALID, "4294967295 tokens");
    counts[0] = 3;
    tokens[2] = 272;
    refuse(&f, &input, FIRN_ERR_INVALID, "token 272 is outside the vocabulary of 272");
    tokens[2] = FIRN_TOKEN_NONE;
    refuse(&f, &input, FIRN_ERR_INVALID, "outside the vocabulary");
    tokens[2] = 271;
    input.n_rows = 2;
    refuse(&f, &input, FIRN_ERR_INVALID, "the cache of layer 0 has 1 rows, the batch 2");
    input.n_rows = 65;
    uint32_t many[65] = { 0 };
    input.counts = many;
    refuse(&f, &input, FIRN_ERR_INVALID, "65 rows: this model was opened for 64");
    batch_destroy(&f, &b);
    fixture_close(&f);
}

static void caches_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    fixture f = fixture_open(&(fixture_options){ .path = path });
    float logits[272];
    const firn_token tokens[4] = { 1, 2, 3, 4 };
    const uint32_t counts[1] = { 4 };
    batch b = batch_create(&f, 1);
    const firn_forward_input input = { .tokens = tokens, .counts = counts, .n_rows = 1, .caches = b.layers,
                                       .logits = logits };
    assert_ok(firn_model_forward(f.model, &input, NULL));
    assert_ok(firn_cache_trim_row(b.layers[2], 0, 1, NULL));
    refuse(&f, &input, FIRN_ERR_INVALID, "row 0 has 3 tokens in layer 2 and 4 in layer 0");
    firn_cache_options other = firn_model_schema(f.model)->layers[1];
    other.head_dim = 32;
    other.value_dim = 32;
    firn_cache *own = b.layers[1];
    assert_ok(firn_cache_create(&other, f.pool, NULL, &b.layers[1], NULL));
    assert_ok(firn_cache_add_row(b.layers[1], NULL));
    refuse(&f, &input, FIRN_ERR_INVALID, "the cache of layer 1 is");
    firn_cache_destroy(b.layers[1]);
    b.layers[1] = own;
    batch_destroy(&f, &b);
    fixture_close(&f);
}

static void forwards_of_nothing_do_nothing(void **state)
{
    (void)state;
    fixture f = fixture_open(&(fixture_options){ .path = path });
    const uint32_t counts[2] = { 0, 0 };
    batch none = batch_create(&f, 0);
    batch two = batch_create(&f, 2);
    firn_forward_input input = { .counts = counts, .n_rows = 0, .caches = none.layers };
    assert_ok(firn_model_forward(f.model, &input, NULL));
    input.n_rows = 2;
    input.caches = two.layers;
    assert_ok(firn_model_forward(f.model, &input, NULL));
    assert_int_equal(firn_cache_offset(two.layers[0]), 0);
    batch_destroy(&f, &none);
    batch_destroy(&f, &two);
    fixture_close(&f);
}

static void a_pool_without_room_refuses_before_any_layer_advances(void **state)
{
    (void)state;
    fixture f = fixture_open(&(fixture_options){ .path = path });
    firn_token tokens[65];
    float expected[272];
    float logits[272];
    for (uint32_t i = 0; i < 65; i++) {
        tokens[i] = i;
    }
    batch reference = batch_create(&f, 1);
    batch_feed(&f, &reference, tokens, 64, 64, NULL);
    const uint32_t one = 1;
    batch_forward(&f, &reference, tokens + 64, &one, false, expected);
    const size_t block_bytes = firn_cache_block_bytes(reference.layers[0]);
    batch_destroy(&f, &reference);

    /* Room for one block in each layer, then for all but the last layer's second. */
    firn_pool *roomy = f.pool;
    for (uint32_t n_blocks = 0; n_blocks <= 6; n_blocks++) {
        const firn_pool_options options = { .budget_bytes = n_blocks * block_bytes + (n_blocks == 0) };
        assert_ok(firn_pool_create(&options, NULL, &f.pool, NULL));
        batch b = batch_create(&f, 1);
        const uint32_t count = 64;
        firn_forward_input input = { .tokens = tokens, .counts = &count, .n_rows = 1, .caches = b.layers,
                                     .logits = logits };
        if (n_blocks < 3) {
            refuse(&f, &input, FIRN_ERR_NO_MEMORY, "");
        } else {
            assert_ok(firn_model_forward(f.model, &input, NULL));
            input.tokens = tokens + 64;
            input.counts = &one;
            if (n_blocks < 6) {
                refuse(&f, &input, FIRN_ERR_NO_MEMORY, "");
            } else {
                assert_ok(firn_model_forward(f.model, &input, NULL));
                assert_memory_equal(logits, expected, sizeof logits);
            }
        }
        batch_destroy(&f, &b);
        firn_pool_destroy(f.pool);
    }
    f.pool = roomy;
    fixture_close(&f);
}

static void the_context_bound_refuses_before_any_layer_advances(void **state)
{
    (void)state;
    fixture f = fixture_open(&(fixture_options){ .path = path });
    float logits[272];
    const firn_token tokens[5] = { 1, 2, 3, 4, 5 };
    uint32_t count = 4;
    batch b = { .layers = { NULL } };
    for (uint32_t l = 0; l < f.n_layers; l++) {
        firn_cache_options options = firn_model_schema(f.model)->layers[l];
        options.max_tokens = l + 1 == f.n_layers ? 6 : 0; /* the last one is the tightest */
        assert_ok(firn_cache_create(&options, f.pool, NULL, &b.layers[l], NULL));
        assert_ok(firn_cache_add_row(b.layers[l], NULL));
    }
    const firn_forward_input input = { .tokens = tokens, .counts = &count, .n_rows = 1, .caches = b.layers,
                                       .logits = logits };
    assert_ok(firn_model_forward(f.model, &input, NULL));
    count = 3;
    refuse(&f, &input, FIRN_ERR_CAPACITY, "");
    count = 2;
    assert_ok(firn_model_forward(f.model, &input, NULL));
    batch_destroy(&f, &b);
    fixture_close(&f);
}

static void a_forward_allocates_nothing_but_blocks(void **state)
{
    (void)state;
    test_world world;
    test_world_init(&world);
    firn_model *model = NULL;
    firn_pool *pool = NULL;
    firn_cache *caches[3];
    float logits[272];
    const firn_token tokens[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    const uint32_t counts[2] = { 10, 1 };
    const firn_pool_options pool_options = { .budget_bytes = 1 << 20 };
    assert_ok(firn_model_open(&(firn_model_options){ .path = path }, &world.env, &model, NULL));
    assert_ok(firn_pool_create(&pool_options, &world.env, &pool, NULL));
    for (uint32_t l = 0; l < 3; l++) {
        assert_ok(firn_cache_create(&firn_model_schema(model)->layers[l], pool, &world.env, &caches[l], NULL));
        assert_ok(firn_cache_add_row(caches[l], NULL));
    }
    firn_forward_input input = { .tokens = tokens, .counts = counts, .n_rows = 1, .caches = caches, .logits = logits };
    assert_ok(firn_model_forward(model, &input, NULL)); /* takes the first blocks */
    const uint64_t n_allocs = world.n_allocs;
    input.counts = &counts[1];
    for (uint32_t i = 0; i < 40; i++) {
        assert_ok(firn_model_forward(model, &input, NULL));
    }
    assert_int_equal(world.n_allocs, n_allocs);
    for (uint32_t l = 0; l < 3; l++) {
        firn_cache_destroy(caches[l]);
    }
    firn_pool_destroy(pool);
    firn_model_close(model);
    test_world_deinit(&world);
}

static int set_up(void **state)
{
    (void)state;
    dir = test_dir_create();
    path = small_model(dir, "tiny.gguf", &tiny);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_remove(dir);
    free(dir);
    free(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_tokens_and_counts_are_refused),
        cmocka_unit_test(caches_that_do_not_belong_together_are_refused),
        cmocka_unit_test(forwards_of_nothing_do_nothing),
        cmocka_unit_test(a_pool_without_room_refuses_before_any_layer_advances),
        cmocka_unit_test(the_context_bound_refuses_before_any_layer_advances),
        cmocka_unit_test(a_forward_allocates_nothing_but_blocks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
