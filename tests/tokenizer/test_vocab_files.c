/*
 * Vocabularies in files: GGUF keys that contradict each other, tokenizer.json files of both kinds and those that are
 * neither, and the way from one to the other.
 */
#include <unistd.h>

#include "tokenizer/tokenizer_support.h"

/* ---- GGUF ---- */

/* Writes a GGUF file of keys alone. */
typedef struct keys {
    const char *model, *pre;
    uint32_t n_tokens, n_types, n_scores; /* 0: no such key */
    int32_t last_type;
    const char *merge;          /* NULL: no such key */
    const char *wrong_type_key; /* this key becomes an f32 */
    const char *id_key;
    uint32_t id;
    int add_bos; /* -1: no such key */
} keys;

static const keys good_bpe = {
    .model = "gpt2", .pre = "gpt-2", .n_tokens = 3, .n_types = 3, .last_type = 1, .merge = "a b", .add_bos = -1
};
static const keys good_spm = {
    .model = "llama", .n_tokens = 3, .n_types = 3, .last_type = 1, .n_scores = 3, .add_bos = -1
};

/* Of the SentencePiece kind, with ranked merges. */
static const keys good_ranks = {
    .model = "gemma4", .n_tokens = 3, .n_types = 3, .last_type = 1, .merge = "a b", .add_bos = -1
};

static void write_keys(const char *path, const keys *k)
{
    static const firni_gguf_string pieces[] = { { "a", 1 }, { "b", 1 }, { "ab", 2 } };
    const int32_t types[] = { 1, 1, k->last_type, 1 };
    const float scores[] = { 0, 0, 0, 0 };
    firni_gguf_writer *writer = NULL;
    assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
    firni_gguf_put_string(writer, "general.architecture", "llama", 5);
    if (k->model != NULL) {
        firni_gguf_put_string(writer, "tokenizer.ggml.model", k->model, strlen(k->model));
    }
    if (k->pre != NULL) {
        firni_gguf_put_string(writer, "tokenizer.ggml.pre", k->pre, strlen(k->pre));
    }
    if (k->n_tokens > 0) {
        firni_gguf_put_string_array(writer, "tokenizer.ggml.tokens", pieces, k->n_tokens);
    }
    if (k->n_types > 0) {
        firni_gguf_put_array(writer, "tokenizer.ggml.token_type", FIRNI_GGUF_I32, types, k->n_types);
    }
    if (k->n_scores > 0) {
        firni_gguf_put_array(writer, "tokenizer.ggml.scores", FIRNI_GGUF_F32, scores, k->n_scores);
    }
    if (k->merge != NULL) {
        const firni_gguf_string merge = { .data = k->merge, .len_bytes = strlen(k->merge) };
        firni_gguf_put_string_array(writer, "tokenizer.ggml.merges", &merge, 1);
    }
    if (k->wrong_type_key != NULL) {
        firni_gguf_put_f32(writer, k->wrong_type_key, 1);
    }
    if (k->id_key != NULL) {
        firni_gguf_put_u32(writer, k->id_key, k->id);
    }
    if (k->add_bos >= 0) {
        firni_gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", k->add_bos == 1);
    }
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    assert_ok(firni_gguf_writer_finish(writer, NULL));
    firni_gguf_writer_destroy(writer);
}

/* Reads the keys and compiles them; returns what failed, with the message. */
static firn_status read_keys(const keys *k, firn_error *err)
{
    char *folder = test_dir_create();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/keys.gguf", folder);
    write_keys(path, k);
    firni_gguf *gguf = NULL;
    firni_vocab_spec spec = { 0 };
    firn_tokenizer *tokenizer = NULL;
    assert_ok(firni_gguf_open(path, NULL, &gguf, err));
    firn_status status = firni_vocab_from_gguf(gguf, NULL, &spec, err);
    if (status == FIRN_OK) {
        status = firni_tokenizer_create(&spec, NULL, &tokenizer, err);
    } else {
        assert_null(spec.pieces);
        assert_null(spec.types);
    }
    firni_tokenizer_destroy(tokenizer);
    firni_vocab_spec_deinit(&spec);
    firni_gguf_close(gguf);
    test_dir_remove(folder);
    free(folder);
    return status;
}

static void contradictory_gguf_keys_are_refused_and_named(void **state)
{
    (void)state;
    firn_error err = { 0 };
    assert_ok(read_keys(&good_bpe, &err));
    assert_ok(read_keys(&good_spm, &err));
    assert_ok(read_keys(&good_ranks, &err));
    struct {
        keys k;
        firn_status status;
        const char *key;
    } cases[19];
    size_t n = 0;
#define CASE(base, change, expected, named)                                                                            \
    do {                                                                                                               \
        cases[n].k = (base);                                                                                           \
        cases[n].k.change;                                                                                             \
        cases[n].status = (expected);                                                                                  \
        cases[n++].key = (named);                                                                                      \
    } while (0)
    CASE(good_bpe, model = NULL, FIRN_ERR_FORMAT, "tokenizer.ggml.model");
    CASE(good_bpe, model = "bert", FIRN_ERR_UNSUPPORTED, "known: gpt2, llama");
    CASE(good_bpe, pre = "viking", FIRN_ERR_UNSUPPORTED, "tokenizer.ggml.pre");
    CASE(good_bpe, n_tokens = 0, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens");
    CASE(good_bpe, n_types = 2, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type");
    CASE(good_bpe, n_types = 4, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type");
    CASE(good_bpe, last_type = 0, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type");
    CASE(good_bpe, last_type = -1, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type");
    CASE(good_bpe, merge = NULL, FIRN_ERR_FORMAT, "tokenizer.ggml.merges");
    CASE(good_bpe, merge = "b a", FIRN_ERR_FORMAT, "tokenizer.ggml.merges");
    CASE(good_spm, n_scores = 0, FIRN_ERR_FORMAT, "tokenizer.ggml.scores");
    CASE(good_spm, n_scores = 2, FIRN_ERR_FORMAT, "tokenizer.ggml.scores");
    CASE(good_ranks, merge = NULL, FIRN_ERR_FORMAT, "tokenizer.ggml.merges");
    CASE(good_ranks, merge = "ab", FIRN_ERR_FORMAT, "tokenizer.ggml.merges: entry 0");
    CASE(good_ranks, merge = "b a", FIRN_ERR_FORMAT, "makes no piece");
    CASE(good_bpe, id_key = "tokenizer.ggml.eos_token_id";
         cases[n].k.id = 3, FIRN_ERR_FORMAT, "tokenizer.ggml.eos_token_id");
    CASE(good_bpe, add_bos = 1, FIRN_ERR_FORMAT, "tokenizer.ggml.add_bos_token");
    CASE(good_bpe, wrong_type_key = "tokenizer.ggml.bos_token_id", FIRN_ERR_FORMAT, "tokenizer.ggml.bos_token_id");
    CASE(good_bpe, wrong_type_key = "tokenizer.chat_template", FIRN_ERR_FORMAT, "tokenizer.chat_template");
#undef CASE
    assert_int_equal(n, sizeof cases / sizeof cases[0]);
    for (size_t i = 0; i < n; i++) {
        assert_status(read_keys(&cases[i].k, &err), cases[i].status);
        if (strstr(err.message, cases[i].key) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, err.message, cases[i].key);
        }
    }
}

static void keys_that_are_left_out_have_the_formats_defaults(void **state)
{
    (void)state;
    struct {
        keys k;
        bool add_bos, add_space_prefix;
    } cases[] = { { .k = good_spm, .add_bos = true, .add_space_prefix = true },
                  { .k = good_bpe },
                  { .k = good_bpe, .add_bos = true },
                  { .k = good_ranks, .add_bos = true } };
    cases[2].k.pre = "llama3";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cases[i].k.id_key = "tokenizer.ggml.bos_token_id";
        char *folder = test_dir_create();
        char path[600];
        (void)snprintf(path, sizeof path, "%s/keys.gguf", folder);
        write_keys(path, &cases[i].k);
        firni_gguf *gguf = NULL;
        firni_vocab_spec spec = { 0 };
        assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
        assert_ok(firni_vocab_from_gguf(gguf, NULL, &spec, NULL));
        assert_int_equal(spec.bos, 0);
        assert_true(spec.eos == FIRN_TOKEN_NONE);
        assert_int_equal(spec.add_bos, cases[i].add_bos);
        assert_int_equal(spec.add_space_prefix, cases[i].add_space_prefix);
        assert_null(spec.chat_template);
        firni_vocab_spec_deinit(&spec);
        firni_gguf_close(gguf);
        test_dir_remove(folder);
        free(folder);
    }
}

/* ---- tokenizer.json ---- */

#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define QWEN2_SPLIT                                                                                                    \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}" \
    "+|"                                                                                                               \
    "\\\\p{N}| "                                                                                                       \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"}"
#define BPE_MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4},\"merges\":"
#define SPM_NORMALIZER                                                                                                 \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"            \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}"
#define SPM_MODEL(merges)                                                                                              \
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,"     \
    "\"<0x0A>\":2,\"\u2581\":3,\"a\":4,\"b\":5,\"ab\":6,\"\u2581a\":7,\"\u2581ab\":8},\"merges\":" merges "}"
#define SPM_MERGES "[\"a b\",\"\u2581 a\",\"\u2581a b\",\"\u2581 ab\"]"

static firn_status load_json(const char *text, const firn_env *env, firni_vocab_spec *spec, firn_error *err)
{
    char *folder = test_dir_create();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    const firn_status status = firni_vocab_from_json(path, env, spec, err);
    test_dir_remove(folder);
    free(folder);
    return status;
}

static firn_tokenizer *open_json(const char *text)
{
    firni_vocab_spec spec;
    firn_tokenizer *tokenizer = NULL;
    firn_error err = { 0 };
    if (load_json(text, NULL, &spec, &err) != FIRN_OK ||
        firni_tokenizer_create(&spec, NULL, &tokenizer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    firni_vocab_spec_deinit(&spec);
    return tokenizer;
}

static void merges_may_be_strings_or_pairs(void **state)
{
    (void)state;
    static const char *const texts[] = { "{" BYTE_LEVEL "," BPE_MODEL "[\"a b\",\"ab c\"]}}",
                                         "{" BYTE_LEVEL "," BPE_MODEL "[[\"a\",\"b\"],[\"ab\",\"c\"]]}}" };
    firn_digest digests[2];
    for (size_t i = 0; i < 2; i++) {
        firn_tokenizer *tokenizer = open_json(texts[i]);
        ASSERT_TOKENS(tokenizer, "abcab", 0, 4, 3);
        digests[i] = firn_tokenizer_digest(tokenizer);
        firni_tokenizer_destroy(tokenizer);
    }
    assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
}

static void added_tokens_have_their_kind_and_holes_are_unused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" QWEN2_SPLIT
        ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"normalizer\":{\"type\":\"NFC\"},"
        "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
        "\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"<start>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"}}]}]},"
        "\"added_tokens\":[{\"id\":9,\"content\":\"<start>\",\"special\":true},{\"id\":7,\"content\":\"<|im_end|>\","
        "\"special\":true},"
        "{\"id\":8,\"content\":\"<think>\",\"special\":false},{\"id\":3,\"content\":\"ab\",\"special\":false}]"
        "," BPE_MODEL "[\"a b\",\"ab c\"]}}";
    firni_vocab_spec spec;
    firn_error err = { 0 };
    assert_ok(load_json(text, NULL, &spec, &err));
    assert_string_equal(spec.pre, "qwen2");
    assert_int_equal(spec.n_tokens, 10);
    assert_int_equal(spec.bos, 9);
    assert_true(spec.add_bos);
    assert_int_equal(spec.eos, 7);
    static const uint8_t types[] = { 1, 1, 1, 4, 1, 5, 5, 3, 4, 3 };
    assert_memory_equal(spec.types, types, sizeof types);
    firni_vocab_spec_deinit(&spec);
    firn_tokenizer *tokenizer = open_json(text);
    ASSERT_TOKENS(tokenizer, "c<think>b", TEST_ADD_BOS, 9, 2, 8, 1);
    firni_tokenizer_destroy(tokenizer);
}

static void a_sentencepiece_vocabulary_gets_scores_for_its_merges(void **state)
{
    (void)state;
    static const char text[] =
        "{" SPM_NORMALIZER
        ",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}],"
            SPM_MODEL(SPM_MERGES) "}";
    firni_vocab_spec spec;
    firn_error err = { 0 };
    if (load_json(text, NULL, &spec, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(spec.kind, FIRNI_VOCAB_SPM);
    assert_true(spec.add_space_prefix);
    assert_int_equal(spec.unk, 0);
    assert_int_equal(spec.types[0], FIRNI_PIECE_UNKNOWN);
    assert_int_equal(spec.types[2], FIRNI_PIECE_BYTE);
    assert_true(spec.scores[6] > spec.scores[7] && spec.scores[7] > spec.scores[8]);
    firni_vocab_spec_deinit(&spec);
    firn_tokenizer *tokenizer = open_json(text);
    ASSERT_TOKENS(tokenizer, "ab\na", 0, 8, 2, 4);
    ASSERT_TOKENS(tokenizer, "?", 0, 3, 0);
    firni_tokenizer_destroy(tokenizer);
}

/* Gemma's files: spaces are marked, none is put in front, and a split at spaces finds none. A run of spaces that is a
 * token of its own is found whatever the spaces are spelled with. */
static void marked_spaces_are_spaces_before_anything_else(void **state)
{
    (void)state;
    static const char text[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"},"
        "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\"},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":9,\"content\":\"\u2581\u2581\u2581\",\"special\":false}]," SPM_MODEL(SPM_MERGES) "}";
    firn_tokenizer *tokenizer = open_json(text);
    ASSERT_TOKENS(tokenizer, "ab a", 0, 6, 7);
    ASSERT_TOKENS(tokenizer, "a   b", 0, 4, 9, 5);
    ASSERT_TOKENS(tokenizer, "a \u2581 b", 0, 4, 9, 5);
    ASSERT_TOKENS(tokenizer, "\u2581\u2581\u2581ab\u2581", 0, 9, 6, 3);
    ASSERT_TOKENS(tokenizer, "\u2581ab", 0, 8);
    firni_tokenizer_destroy(tokenizer);
}

static void json_files_of_another_kind_are_refused_and_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        firn_status status;
        const char *word;
    } cases[] = {
        { "{\"model\":", FIRN_ERR_FORMAT, "line 1" },
        { "[]", FIRN_ERR_FORMAT, "model" },
        { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", FIRN_ERR_UNSUPPORTED, "Unigram" },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", FIRN_ERR_UNSUPPORTED, "BPE" },
        { "{" BPE_MODEL "[]}}", FIRN_ERR_UNSUPPORTED, "neither byte-level nor" },
        { "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}," BPE_MODEL "[]}}",
          FIRN_ERR_UNSUPPORTED, "ByteLevel" },
        { "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"ByteLevel\","
          "\"add_prefix_space\":false}]}," BPE_MODEL "[]}}",
          FIRN_ERR_UNSUPPORTED, "Digits" },
        { "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+"
          "\"},\"behavior\":\"Isolated\"},"
          "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}," BPE_MODEL "[]}}",
          FIRN_ERR_UNSUPPORTED, "known splits" },
        { "{\"normalizer\":{\"type\":\"Lowercase\"}," BYTE_LEVEL "," BPE_MODEL "[]}}", FIRN_ERR_UNSUPPORTED,
          "Lowercase" },
        { "{" BYTE_LEVEL "," BPE_MODEL "[\"ab\"]}}", FIRN_ERR_FORMAT, "entry 0" },
        { "{" BYTE_LEVEL "," BPE_MODEL "[\"a b\",7]}}", FIRN_ERR_FORMAT, "entry 1" },
        { "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":0,\"content\":\"other\"}]," BPE_MODEL "[]}}", FIRN_ERR_FORMAT,
          "id 0" },
        { "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}]," BPE_MODEL "[]}}", FIRN_ERR_FORMAT,
          "\"x\"" },
        { "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":16777216,\"content\":\"x\"}]," BPE_MODEL "[]}}", FIRN_ERR_FORMAT,
          "\"x\"" },
        { "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":16777215,\"content\":\"x\"}]," BPE_MODEL "[]}}", FIRN_ERR_FORMAT,
          "16777215" },
        { "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":5}]," BPE_MODEL "[]}}", FIRN_ERR_FORMAT, "content" },
        { "{" SPM_NORMALIZER "," SPM_MODEL("[\"a b\",\"\u2581 a\",\"\u2581a b\"]") "}", FIRN_ERR_UNSUPPORTED, "pairs" },
        { "{" SPM_NORMALIZER "," SPM_MODEL("[\"b a\"]") "}", FIRN_ERR_FORMAT, "makes no piece" },
        { "{" SPM_NORMALIZER ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}," SPM_MODEL(SPM_MERGES) "}",
          FIRN_ERR_UNSUPPORTED, "splits at spaces" },
        { "{\"normalizer\":{\"type\":\"NFKC\"}," SPM_MODEL(SPM_MERGES) "}", FIRN_ERR_UNSUPPORTED, "NFKC" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firni_vocab_spec spec;
        firn_error err = { 0 };
        assert_status(load_json(cases[i].text, NULL, &spec, &err), cases[i].status);
        assert_null(spec.pieces);
        if (strstr(err.message, cases[i].word) == NULL) {
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.message, cases[i].word);
        }
    }
    firni_vocab_spec spec;
    firn_error err = { 0 };
    assert_status(firni_vocab_from_json("no/such/tokenizer.json", NULL, &spec, &err), FIRN_ERR_NOT_FOUND);
}

/* ---- from one to the other ---- */

static void a_vocabulary_survives_being_written_as_gguf(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" BYTE_LEVEL ",\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true},{\"id\":6,\"content\":\"<"
        "think>\"}]," BPE_MODEL "[\"a b\",\"ab c\"]}}",
        "{" SPM_NORMALIZER ",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}],"
            SPM_MODEL(SPM_MERGES) "}"
    };
    for (size_t i = 0; i < 2; i++) {
        char *folder = test_dir_create();
        char path[600];
        (void)snprintf(path, sizeof path, "%s/vocabulary.gguf", folder);
        firni_vocab_spec spec;
        assert_ok(load_json(texts[i], NULL, &spec, NULL));
        char *chat_template = strdup("{{ bos_token }}<|im_start|>");
        spec.chat_template = chat_template;
        firn_tokenizer *before = NULL;
        assert_ok(firni_tokenizer_create(&spec, NULL, &before, NULL));
        firni_gguf_writer *writer = NULL;
        assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
        assert_ok(firni_vocab_to_gguf(&spec, writer));
        assert_ok(firni_gguf_writer_begin_data(writer, NULL));
        assert_ok(firni_gguf_writer_finish(writer, NULL));
        firni_gguf_writer_destroy(writer);
        spec.chat_template = NULL;
        free(chat_template);
        firni_vocab_spec_deinit(&spec);

        firn_tokenizer *after = test_tokenizer_open(path, NULL);
        const firn_digest digests[] = { firn_tokenizer_digest(before), firn_tokenizer_digest(after) };
        assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
        assert_string_equal(firn_tokenizer_chat_family(after), "chatml");
        assert_int_equal(firn_tokenizer_bos(after), firn_tokenizer_bos(before));
        firni_tokenizer_destroy(before);
        firni_tokenizer_destroy(after);
        test_dir_remove(folder);
        free(folder);
    }
}

static void refused_memory_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" BYTE_LEVEL "," BPE_MODEL "[\"a b\",\"ab c\"]}}",
        "{" SPM_NORMALIZER ",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}],"
            SPM_MODEL(SPM_MERGES) "}"
    };
    for (size_t i = 0; i < 2; i++) {
        uint32_t n_failed = 0;
        for (uint64_t nth = 1;; nth++) {
            test_world world;
            test_world_init(&world);
            world.fail_alloc_at = nth;
            firni_vocab_spec spec;
            const firn_status status = load_json(texts[i], &world.env, &spec, NULL);
            const bool clean = !world.alloc_failed;
            assert_status(status, clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
            n_failed += !clean;
            firni_vocab_spec_deinit(&spec);
            test_world_deinit(&world);
            if (clean) {
                break;
            }
        }
        assert_true(n_failed >= 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictory_gguf_keys_are_refused_and_named),
        cmocka_unit_test(keys_that_are_left_out_have_the_formats_defaults),
        cmocka_unit_test(merges_may_be_strings_or_pairs),
        cmocka_unit_test(added_tokens_have_their_kind_and_holes_are_unused),
        cmocka_unit_test(a_sentencepiece_vocabulary_gets_scores_for_its_merges),
        cmocka_unit_test(marked_spaces_are_spaces_before_anything_else),
        cmocka_unit_test(json_files_of_another_kind_are_refused_and_say_why),
        cmocka_unit_test(a_vocabulary_survives_being_written_as_gguf),
        cmocka_unit_test(refused_memory_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
