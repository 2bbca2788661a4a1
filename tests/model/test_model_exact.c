/*
 * The promise that the bits of a token's logits depend on the model, the tokens before it and the state's element type,
 * and on nothing else: not on the chunks, the batch, the threads, the kernel variant, or the way that the row took
 * through merges, extracts, filters, trims and speculative rounds. Everything here is memcmp.
 */
#include "model_fixture.h"

#include "kernel/kernel_impl.h"

#define N_TOKENS 130u /* three blocks, the last one partial */
#define N_VOCAB 272u
#define ROWS_MAX 8u

static char *dir;

static const firni_synth_options tiny = {
    .architecture = "llama", .type = FIRNI_WEIGHT_Q8_0, .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
    .head_dim = 16, .n_ff = 96, .n_vocab = N_VOCAB, .n_ctx = 1024, .seed = 7,
};

/* What the tests run on: an architecture each, as deep as its layers take to repeat. The first runs with every type of
 * state, the others with one. */
typedef struct model_case {
    const char *architecture;
    firni_weight_type type;
    uint32_t head_dim;
    uint32_t n_layers;
} model_case;

static const model_case model_cases[] = {
    { "llama", FIRNI_WEIGHT_Q8_0, 16, 2 },
    { "qwen3", FIRNI_WEIGHT_F16, 16, 2 },
    { "gemma3", FIRNI_WEIGHT_Q8_0, 16, 6 },
    { "gemma4", FIRNI_WEIGHT_F16, 16, 6 },
    { "gpt-oss", FIRNI_WEIGHT_Q8_0, 16, 2 },
    { "deepseek2", FIRNI_WEIGHT_Q8_0, 16, 2 },
    { "deepseek32", FIRNI_WEIGHT_F16, 16, 2 },
    { "qwen35", FIRNI_WEIGHT_Q8_0, 16, 4 },
    { "qwen3next", FIRNI_WEIGHT_F16, 16, 4 },
    { "mamba2", FIRNI_WEIGHT_Q8_0, 16, 2 },
};

#define N_MODEL_CASES (sizeof model_cases / sizeof model_cases[0])

static char *tiny_model(const char *name, const model_case *model)
{
    firni_synth_options options = tiny;
    options.architecture = model->architecture;
    options.type = model->type;
    options.head_dim = model->head_dim;
    options.n_layers = model->n_layers;
    if (firni_weight_block_cols(model->type) == 256) { /* rows are whole blocks */
        options.n_embd = options.n_ff = 256;
        options.head_dim = 64;
    }
    return small_model(dir, name, &options);
}

static void random_tokens(test_rng *rng, firn_token *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = test_rng_below(rng, N_VOCAB);
    }
}

static void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    if (memcmp(a, b, n * sizeof *a) != 0) {
        size_t i = 0;
        while (memcmp(&a[i], &b[i], sizeof *a) == 0) {
            i++;
        }
        fail_msg("%s: logit %zu of position %zu: %.9g instead of %.9g", what, i % N_VOCAB, i / N_VOCAB, (double)a[i],
                 (double)b[i]);
    }
}

static const firn_dtype state_types[] = { FIRN_DTYPE_F32, FIRN_DTYPE_F16, FIRN_DTYPE_BF16 };

#define N_STATE_TYPES (sizeof state_types / sizeof state_types[0])

/* Every state type over the first model, one over each other. */
static void for_each_case(void (*test)(const model_case *model, firn_dtype kv, bool is_first))
{
    for (size_t m = 0; m < N_MODEL_CASES; m++) {
        for (size_t d = 0; d < (m == 0 ? N_STATE_TYPES : 1); d++) {
            test(&model_cases[m], state_types[(m + d) % N_STATE_TYPES], m == 0 && d == 0);
        }
    }
}

static void check_chunks(const model_case *model, firn_dtype kv, bool is_first)
{
    test_rng rng = test_rng_create("chunks", 11);
    firn_token tokens[N_TOKENS];
    char *path = tiny_model("chunks.gguf", model);
    random_tokens(&rng, tokens, N_TOKENS);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv });
    float *expected = fixture_logits(&f, tokens, N_TOKENS, N_TOKENS);
    for (uint32_t chunk = 1; chunk <= 100; chunk += is_first ? 1 : 9) {
        float *logits = fixture_logits(&f, tokens, N_TOKENS, chunk);
        assert_same_bits(logits, expected, (size_t)N_TOKENS * N_VOCAB, "chunk");
        free(logits);
    }
    free(expected);
    fixture_close(&f);
    free(path);
}

static void chunks_of_1_to_100_give_the_same_bits(void **state)
{
    (void)state;
    for_each_case(check_chunks);
}

static void every_architecture_and_weight_type_is_exact_over_chunks(void **state)
{
    (void)state;
    static const model_case models[] = {
        { "llama", FIRNI_WEIGHT_F32, 16, 2 },   { "qwen2", FIRNI_WEIGHT_F16, 16, 2 },
        { "qwen2", FIRNI_WEIGHT_Q8_0, 24, 2 },  { "qwen3", FIRNI_WEIGHT_BF16, 32, 2 },
        { "qwen3", FIRNI_WEIGHT_Q8_0, 40, 2 },  { "gemma3", FIRNI_WEIGHT_BF16, 24, 6 },
        { "gemma4", FIRNI_WEIGHT_Q8_0, 40, 6 }, { "gpt-oss", FIRNI_WEIGHT_F16, 24, 2 },
        { "llama", FIRNI_WEIGHT_Q4_0, 16, 2 },  { "qwen2", FIRNI_WEIGHT_Q4_1, 16, 2 },
        { "qwen3", FIRNI_WEIGHT_Q5_0, 24, 2 },  { "llama", FIRNI_WEIGHT_Q5_1, 16, 2 },
        { "qwen3", FIRNI_WEIGHT_Q4_K, 64, 1 },  { "llama", FIRNI_WEIGHT_Q5_K, 64, 1 },
        { "qwen2", FIRNI_WEIGHT_Q6_K, 64, 1 },  { "gpt-oss", FIRNI_WEIGHT_MXFP4, 16, 2 },
        { "deepseek2", FIRNI_WEIGHT_BF16, 40, 2 }, { "deepseek32", FIRNI_WEIGHT_Q8_0, 40, 2 },
        { "qwen35", FIRNI_WEIGHT_F16, 32, 4 },  { "qwen3next", FIRNI_WEIGHT_F32, 16, 4 },
        { "qwen3next", FIRNI_WEIGHT_Q8_0, 24, 4 }, { "mamba2", FIRNI_WEIGHT_BF16, 24, 2 },
    };
    test_rng rng = test_rng_create("architectures", 12);
    firn_token tokens[N_TOKENS];
    random_tokens(&rng, tokens, N_TOKENS);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char *path = tiny_model("arch.gguf", &models[m]);
        fixture f = fixture_open(&(fixture_options){ .path = path, .kv = FIRN_DTYPE_F16, .n_threads = 2 });
        float *expected = fixture_logits(&f, tokens, N_TOKENS, 1);
        for (uint32_t chunk = 2; chunk <= N_TOKENS; chunk = chunk * 2 + 1) {
            float *logits = fixture_logits(&f, tokens, N_TOKENS, chunk);
            assert_same_bits(logits, expected, (size_t)N_TOKENS * N_VOCAB, models[m].architecture);
            free(logits);
        }
        free(expected);
        fixture_close(&f);
        free(path);
    }
}

/* The same logits with every variant, by one thread and by two. */
static void check_variants(const model_case *model, firn_dtype kv, const firn_token *tokens)
{
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    char *path = tiny_model("variants.gguf", model);
    float *expected = NULL;
    assert_in_range(n_names, 1, 8);
    for (uint32_t i = 0; i < 2 * n_names; i++) {
        fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv, .kernel = names[i / 2],
                                                     .n_threads = 1 + i % 2 });
        assert_string_equal(firn_model_get_info(f.model)->kernel, names[i / 2]);
        float *logits = fixture_logits(&f, tokens, N_TOKENS, 50);
        fixture_close(&f);
        if (expected == NULL) {
            expected = logits;
        } else {
            assert_same_bits(logits, expected, (size_t)N_TOKENS * N_VOCAB, names[i / 2]);
            free(logits);
        }
    }
    free(expected);
    free(path);
}

static void threads_and_kernel_variants_give_the_same_bits(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("variants", 13);
    firn_token tokens[N_TOKENS];
    random_tokens(&rng, tokens, N_TOKENS);
    for (uint32_t type = 0; type < FIRNI_WEIGHT_TYPES; type++) {
        const model_case model = { "qwen3", (firni_weight_type)type, 16, 2 };
        /* State and weights do not meet in one kernel: after the first types, one state type each. */
        const bool all_states = type <= FIRNI_WEIGHT_Q8_0;
        for (size_t d = all_states ? 0 : type % N_STATE_TYPES; d < N_STATE_TYPES; d += all_states ? 1 : N_STATE_TYPES) {
            check_variants(&model, state_types[d], tokens);
        }
    }
    for (size_t m = 0; m < N_MODEL_CASES; m++) {
        check_variants(&model_cases[m], state_types[m % N_STATE_TYPES], tokens);
    }
}

static void check_wanted(const model_case *model, firn_dtype kv, bool is_first)
{
    test_rng rng = test_rng_create("wanted", 14);
    firn_token tokens[N_TOKENS];
    char *path = tiny_model("wanted.gguf", model);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv });
    float *some = malloc((size_t)N_TOKENS * N_VOCAB * sizeof *some);
    for (uint32_t round = 0; round < (is_first ? 30 : 10); round++) {
        const uint32_t counts[2] = { 1 + test_rng_below(&rng, N_TOKENS / 2), 1 + test_rng_below(&rng, N_TOKENS / 2) };
        const uint32_t n = counts[0] + counts[1];
        uint8_t want[N_TOKENS];
        random_tokens(&rng, tokens, n);
        for (uint32_t i = 0; i < n; i++) {
            want[i] = round == 0 ? 0 : test_rng_below(&rng, 1 + round % 8) == 0;
        }
        batch b = batch_create(&f, 2);
        const firn_forward_input input = { .tokens = tokens, .counts = counts, .n_rows = 2, .caches = b.layers,
                                           .want_logits = want, .logits = some };
        assert_ok(firn_model_forward(f.model, &input, NULL));
        batch_destroy(&f, &b);
        float *first = fixture_logits(&f, tokens, counts[0], counts[0]);
        float *second = fixture_logits(&f, tokens + counts[0], counts[1], counts[1]);
        const float *at = some;
        for (uint32_t i = 0; i < n; i++) {
            const float *expected = i < counts[0] ? first + (size_t)i * N_VOCAB
                                                  : second + (size_t)(i - counts[0]) * N_VOCAB;
            if (want[i]) {
                assert_same_bits(at, expected, N_VOCAB, "wanted");
                at += N_VOCAB;
            }
        }
        free(first);
        free(second);
    }
    free(some);
    fixture_close(&f);
    free(path);
}

static void wanting_some_logits_changes_none_of_them(void **state)
{
    (void)state;
    for_each_case(check_wanted);
}

/* ---- rows that come and go ---- */

/* One sequence that takes part in batches, with the logits it has when it runs alone. */
typedef struct sequence {
    firn_token tokens[N_TOKENS];
    float *expected;
    uint32_t n_done;
} sequence;

static sequence sequence_create(fixture *f, test_rng *rng)
{
    sequence s = { .n_done = 0 };
    random_tokens(rng, s.tokens, N_TOKENS);
    s.expected = fixture_logits(f, s.tokens, N_TOKENS, N_TOKENS);
    return s;
}

/* Forwards counts[r] tokens of each row's sequence and compares all logits. */
static void advance(fixture *f, batch *b, sequence *const *rows, uint32_t n_rows, const uint32_t *counts)
{
    firn_token tokens[ROWS_MAX * N_TOKENS];
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(tokens + n, rows[r]->tokens + rows[r]->n_done, counts[r] * sizeof *tokens);
        n += counts[r];
    }
    float *logits = malloc((size_t)(n + 1) * N_VOCAB * sizeof *logits);
    batch_forward(f, b, tokens, counts, true, logits);
    const float *at = logits;
    for (uint32_t r = 0; r < n_rows; r++) {
        assert_same_bits(at, rows[r]->expected + (size_t)rows[r]->n_done * N_VOCAB, (size_t)counts[r] * N_VOCAB, "row");
        at += (size_t)counts[r] * N_VOCAB;
        rows[r]->n_done += counts[r];
        assert_int_equal(firn_cache_row_tokens(b->layers[0], r), rows[r]->n_done);
    }
    free(logits);
}

/* A sequence of the pool that is in no row; there is one. */
static sequence *find_free(sequence *pool, sequence *const *rows, uint32_t n_rows)
{
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        bool is_taken = false;
        for (uint32_t r = 0; r < n_rows; r++) {
            is_taken = is_taken || rows[r] == &pool[i];
        }
        if (!is_taken) {
            return &pool[i];
        }
    }
    fail_msg("no free sequence");
    return NULL;
}

static void check_joins(const model_case *model, firn_dtype kv, bool is_first)
{
    test_rng rng = test_rng_create("joins and leaves", 15);
    char *path = tiny_model("joins.gguf", model);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv, .n_threads = 2 });
    sequence pool[ROWS_MAX];
    sequence *rows[ROWS_MAX];
    uint32_t n_rows = 0;
    uint32_t n_widest = 0;
    batch b = batch_create(&f, 0);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        pool[i] = sequence_create(&f, &rng);
    }
    for (uint32_t step = 0; step < (is_first ? 120 : 60); step++) {
        const uint32_t kind = test_rng_below(&rng, 5);
        if (kind == 0 && n_rows < ROWS_MAX) {
            /* A free sequence starts again: its prompt runs alone, then it joins. */
            sequence *free_one = find_free(pool, rows, n_rows);
            batch joining = batch_create(&f, 1);
            free_one->n_done = 0;
            rows[n_rows] = free_one;
            const uint32_t prompt = test_rng_below(&rng, 70);
            advance(&f, &joining, &rows[n_rows], 1, &prompt);
            batch_join(&f, &b, &joining);
            n_rows++;
        } else if (kind == 1 && n_rows > 0) {
            /* Some leave, and the others change places. */
            uint32_t keep[ROWS_MAX];
            sequence *kept[ROWS_MAX];
            uint32_t n_keep = 0;
            for (uint32_t r = 0; r < n_rows; r++) {
                if (test_rng_below(&rng, 4) != 0) {
                    const uint32_t at = test_rng_below(&rng, n_keep + 1);
                    memmove(&keep[at + 1], &keep[at], (n_keep - at) * sizeof *keep);
                    memmove(&kept[at + 1], &kept[at], (n_keep - at) * sizeof *kept);
                    keep[at] = r;
                    kept[at] = rows[r];
                    n_keep++;
                }
            }
            batch_filter(&f, &b, keep, n_keep);
            memcpy(rows, kept, n_keep * sizeof *rows);
            n_rows = n_keep;
        } else if (n_rows > 0) {
            uint32_t counts[ROWS_MAX];
            for (uint32_t r = 0; r < n_rows; r++) {
                const uint32_t left = N_TOKENS - rows[r]->n_done;
                const uint32_t wish = test_rng_below(&rng, 3) == 0 ? test_rng_below(&rng, 20) : 1;
                counts[r] = wish < left ? wish : left;
            }
            advance(&f, &b, rows, n_rows, counts);
        }
        n_widest = n_rows > n_widest ? n_rows : n_widest;
    }
    assert_in_range(n_widest, 3, ROWS_MAX); /* the walk was worth something */
    batch_destroy(&f, &b);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        free(pool[i].expected);
    }
    fixture_close(&f);
    free(path);
}

static void rows_joining_and_leaving_never_change_a_neighbour(void **state)
{
    (void)state;
    for_each_case(check_joins);
}

static void check_trims(const model_case *model, firn_dtype kv, bool is_first)
{
    test_rng rng = test_rng_create("extract and trim", 16);
    char *path = tiny_model("trim.gguf", model);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv });
    sequence a = sequence_create(&f, &rng);
    sequence c = sequence_create(&f, &rng);
    sequence *rows[2] = { &a, &c };
    batch b = batch_create(&f, 2);
    const uint32_t counts[2] = { 100, 67 };
    advance(&f, &b, rows, 2, counts);
    for (uint32_t round = 0; round < (is_first ? 20 : 8); round++) {
        /* Take a row out, cut it anywhere it can be, feed the rest again; the batch goes on untouched. */
        const uint32_t row = test_rng_below(&rng, 2);
        sequence copy = *rows[row];
        sequence *alone[1] = { &copy };
        batch single = batch_extract(&f, &b, row);
        const uint32_t n_cut = test_rng_below(&rng, batch_trimmable(&f, &single) + 1);
        batch_trim(&f, &single, 0, n_cut);
        copy.n_done -= n_cut;
        const uint32_t rest = N_TOKENS - copy.n_done;
        advance(&f, &single, alone, 1, &rest);
        batch_destroy(&f, &single);
        if (rows[0]->n_done < N_TOKENS && rows[1]->n_done < N_TOKENS) {
            const uint32_t ones[2] = { 1, 1 };
            advance(&f, &b, rows, 2, ones);
        }
    }
    batch_destroy(&f, &b);
    free(a.expected);
    free(c.expected);
    fixture_close(&f);
    free(path);
}

static void extracted_and_trimmed_rows_continue_as_if_alone(void **state)
{
    (void)state;
    for_each_case(check_trims);
}

static void check_rounds(const model_case *model, firn_dtype kv, bool is_first)
{
    (void)is_first;
    enum { N_DRAFTED = 6 };
    test_rng rng = test_rng_create("rounds", 17);
    char *path = tiny_model("rounds.gguf", model);
    fixture f = fixture_open(&(fixture_options){ .path = path, .kv = kv });
    sequence a = sequence_create(&f, &rng);
    sequence c = sequence_create(&f, &rng);
    sequence *rows[2] = { &a, &c };
    batch b = batch_create(&f, 2);
    float logits[2 * N_DRAFTED * N_VOCAB];
    const uint32_t prompts[2] = { 60, 1 };
    advance(&f, &b, rows, 2, prompts);
    for (uint32_t n_accepted = 0; n_accepted <= N_DRAFTED; n_accepted++) {
        /* Row 0 is right in its first n_accepted drafts, row 1 in the others' number; the rest is wrong. */
        const uint32_t keep[2] = { n_accepted, N_DRAFTED - n_accepted };
        const uint32_t counts[2] = { N_DRAFTED, N_DRAFTED };
        firn_token drafted[2 * N_DRAFTED];
        for (uint32_t i = 0; i < 2 * N_DRAFTED; i++) {
            const sequence *s = rows[i / N_DRAFTED];
            const firn_token right = s->tokens[s->n_done + i % N_DRAFTED];
            drafted[i] = i % N_DRAFTED < keep[i / N_DRAFTED] ? right : (right + 1) % N_VOCAB;
        }
        for (uint32_t l = 0; l < f.n_layers; l++) {
            assert_ok(firn_cache_spec_begin(b.layers[l], NULL));
        }
        batch_forward(&f, &b, drafted, counts, true, logits);
        for (uint32_t l = 0; l < f.n_layers; l++) {
            assert_ok(firn_cache_spec_rollback(b.layers[l], keep, NULL));
        }
        for (uint32_t r = 0; r < 2; r++) {
            assert_same_bits(logits + (size_t)r * N_DRAFTED * N_VOCAB,
                             rows[r]->expected + (size_t)rows[r]->n_done * N_VOCAB, (size_t)keep[r] * N_VOCAB,
                             "verified");
            rows[r]->n_done += keep[r];
        }
        const uint32_t ones[2] = { 1, 1 };
        advance(&f, &b, rows, 2, ones);
    }
    batch_destroy(&f, &b);
    free(a.expected);
    free(c.expected);
    fixture_close(&f);
    free(path);
}

static void speculative_rounds_leave_what_plain_decoding_leaves(void **state)
{
    (void)state;
    for_each_case(check_rounds);
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
        cmocka_unit_test(chunks_of_1_to_100_give_the_same_bits),
        cmocka_unit_test(every_architecture_and_weight_type_is_exact_over_chunks),
        cmocka_unit_test(threads_and_kernel_variants_give_the_same_bits),
        cmocka_unit_test(wanting_some_logits_changes_none_of_them),
        cmocka_unit_test(rows_joining_and_leaving_never_change_a_neighbour),
        cmocka_unit_test(extracted_and_trimmed_rows_continue_as_if_alone),
        cmocka_unit_test(speculative_rounds_leave_what_plain_decoding_leaves),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
