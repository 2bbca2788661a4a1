/*
 * Encoding and decoding against known answers and against naive implementations: byte-level BPE of the oracle's
 * vocabulary, SentencePiece BPE of the built-in model. What texts may and may not become, round trips, long inputs.
 */
#include <ctype.h>
#include <jansson.h>
#include <pthread.h>
#include <time.h>

#include "tokenizer/tokenizer_support.h"

#define BPE_MODEL "tests/oracle/vocab512.gguf"
#define SPM_MODEL "models/firn-tiny-q8_0.gguf"

/* ---- known answers ---- */

/* Ids that llama.cpp v0.5.0 gives for this vocabulary. */
static void ids_of_the_oracle_vocabulary_are_those_of_an_independent_implementation(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = test_tokenizer_open(BPE_MODEL, NULL);
    ASSERT_TOKENS(tokenizer, "the cold tier keeps what the model has already read", TEST_ADD_BOS, 508, 422, 368, 314,
                  400, 306, 260, 344, 408, 387, 321);
    ASSERT_TOKENS(tokenizer, "Hello, World! 123  456", TEST_ADD_BOS, 508, 72, 101, 108, 108, 111, 44, 32, 87, 273, 108,
                  100, 33, 32, 49, 50, 51, 32, 32, 52, 53, 54);
    ASSERT_TOKENS(tokenizer, "naïve café — “quotes” 日本語 🙂", TEST_ADD_BOS, 508, 110, 97, 195, 175, 118,
                  101, 269, 97, 102, 195, 169, 32, 226, 128, 148, 32, 226, 128, 156, 113, 117, 280, 297, 226, 128, 157,
                  32, 230, 151, 165, 230, 156, 172, 232, 170, 158, 32, 240, 159, 153, 130);
    assert_int_equal(firn_tokenizer_n_tokens(tokenizer), 512);
    assert_int_equal(firn_tokenizer_bos(tokenizer), 508);
    assert_int_equal(firn_tokenizer_eos(tokenizer), 511);
    assert_true(firn_tokenizer_is_end(tokenizer, 511));
    assert_false(firn_tokenizer_is_end(tokenizer, 510));
    assert_true(firn_tokenizer_is_special(tokenizer, 510));
    assert_false(firn_tokenizer_is_special(tokenizer, 72));
    assert_string_equal(firn_tokenizer_chat_family(tokenizer), "chatml");
    firni_tokenizer_destroy(tokenizer);
}

/* The ids of the reference figures come from SentencePiece itself. */
static void ids_of_the_built_in_vocabulary_are_those_of_sentencepiece(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/builtin/exact-q8_0.json", 0, NULL);
    const json_t *list = json_object_get(root, "tokens");
    const uint32_t n_expected = (uint32_t)json_array_size(list);
    assert_int_equal(n_expected, 300);
    firn_token expected[300];
    for (uint32_t i = 0; i < n_expected; i++) {
        expected[i] = (firn_token)json_integer_value(json_array_get(list, i));
    }
    json_decref(root);
    firn_tokenizer *tokenizer = test_tokenizer_open(SPM_MODEL, NULL);
    char *text = NULL;
    size_t len = 0;
    assert_ok(firn_tokenizer_decode(tokenizer, expected, n_expected, false, &text, &len, NULL));
    assert_memory_equal(text, "CHAPTER 36. The Quarter-Deck.\n", 30);
    uint32_t n = 0;
    firn_token *tokens = test_encode(tokenizer, text, len, TEST_ADD_BOS, &n);
    assert_int_equal(n, n_expected);
    assert_memory_equal(tokens, expected, sizeof expected);
    free(tokens);
    free(text);
    firni_tokenizer_destroy(tokenizer);
}

/* ---- naive implementations ---- */

typedef struct naive {
    firni_gguf *gguf;
    firni_vocab_spec spec;
    firn_token *by_bytes; /* ordered by spelling, then id */
} naive;

static int compare_strings(const firni_gguf_string *a, const firni_gguf_string *b)
{
    const size_t shorter = a->len_bytes < b->len_bytes ? a->len_bytes : b->len_bytes;
    const int order = memcmp(a->data, b->data, shorter);
    return order != 0 ? order : (a->len_bytes > b->len_bytes) - (a->len_bytes < b->len_bytes);
}

static naive naive_open(const char *path)
{
    naive model = { 0 };
    assert_ok(firni_gguf_open(path, NULL, &model.gguf, NULL));
    assert_ok(firni_vocab_from_gguf(model.gguf, NULL, &model.spec, NULL));
    const uint32_t n = model.spec.n_tokens;
    model.by_bytes = calloc(n, sizeof *model.by_bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && compare_strings(&model.spec.pieces[model.by_bytes[at - 1]], &model.spec.pieces[i]) > 0; at--) {
            model.by_bytes[at] = model.by_bytes[at - 1];
        }
        model.by_bytes[at] = i;
    }
    return model;
}

static void naive_close(naive *model)
{
    free(model->by_bytes);
    firni_vocab_spec_deinit(&model->spec);
    firni_gguf_close(model->gguf);
}

static firn_token naive_find(const naive *model, const char *text, size_t len_bytes)
{
    const firni_gguf_string wanted = { .data = text, .len_bytes = len_bytes };
    uint32_t low = 0;
    uint32_t high = model->spec.n_tokens;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const int order = compare_strings(&model->spec.pieces[model->by_bytes[middle]], &wanted);
        if (order == 0) {
            return model->by_bytes[middle];
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return FIRN_TOKEN_NONE;
}

typedef struct part {
    size_t start, len;
} part;

static void join_parts(part *parts, size_t *n, size_t left)
{
    parts[left].len += parts[left + 1].len;
    (*n)--;
    memmove(&parts[left + 1], &parts[left + 2], (*n - left - 1) * sizeof *parts);
}

/* SentencePiece: again and again the best pair of all, by looking at every pair. Text is valid UTF-8. */
static uint32_t naive_spm(const naive *model, const char *text, firn_token *out)
{
    char marked[4096];
    size_t len = 3;
    memcpy(marked, "\u2581", 3); /* the space in front */
    for (const char *at = text; *at != '\0'; at++) {
        const bool space = *at == ' ';
        memcpy(marked + len, space ? "\u2581" : at, space ? 3 : 1);
        len += space ? 3 : 1;
    }
    part parts[4096];
    size_t n = 0;
    for (size_t at = 0; at < len;) {
        size_t step = 1;
        while (at + step < len && ((unsigned char)marked[at + step] & 0xC0) == 0x80) {
            step++;
        }
        parts[n++] = (part){ .start = at, .len = step };
        at += step;
    }
    for (;;) {
        size_t best = SIZE_MAX;
        float best_score = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const firn_token token = naive_find(model, marked + parts[i].start, parts[i].len + parts[i + 1].len);
            if (token != FIRN_TOKEN_NONE && model->spec.types[token] == FIRNI_PIECE_NORMAL &&
                (best == SIZE_MAX || model->spec.scores[token] > best_score)) {
                best = i;
                best_score = model->spec.scores[token];
            }
        }
        if (best == SIZE_MAX) {
            break;
        }
        join_parts(parts, &n, best);
    }
    uint32_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        const firn_token token = naive_find(model, marked + parts[i].start, parts[i].len);
        if (token != FIRN_TOKEN_NONE && model->spec.types[token] == FIRNI_PIECE_NORMAL) {
            out[n_tokens++] = token;
            continue;
        }
        for (size_t b = 0; b < parts[i].len; b++) {
            char name[8];
            (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned char)marked[parts[i].start + b]);
            out[n_tokens++] = naive_find(model, name, strlen(name));
        }
    }
    return n_tokens;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int class_of(char c)
{
    return is_space(c) ? 0 : isalpha((unsigned char)c) ? 1 : isdigit((unsigned char)c) ? 2 : 3;
}

/* The length of the GPT-2 word that ASCII text begins with, by hand. */
static size_t naive_word(const char *text)
{
    static const char *const endings[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (strncmp(text, endings[i], strlen(endings[i])) == 0) {
            return strlen(endings[i]);
        }
    }
    size_t n = text[0] == ' ' && text[1] != '\0' && !is_space(text[1]);
    if (!is_space(text[n])) {
        const int class = class_of(text[n]);
        while (text[n] != '\0' && class_of(text[n]) == class) {
            n++;
        }
        return n;
    }
    while (is_space(text[n])) {
        n++;
    }
    return n > 1 && text[n] != '\0' ? n - 1 : n; /* the last one may belong to the next word */
}

/* Byte-level BPE of ASCII text: each merge of the list in turn, wherever it applies. */
static uint32_t naive_bpe(const naive *model, const char *text, firn_token *out)
{
    uint32_t n_tokens = 0;
    for (size_t start = 0, len = 0; text[start] != '\0'; start += len) {
        len = naive_word(text + start);
        char spelled[8192];
        part parts[4096];
        size_t n = 0;
        size_t at = 0;
        for (size_t i = 0; i < len; i++) {
            const unsigned char c = (unsigned char)text[start + i];
            /* ASCII that is not printable is spelled U+0100 + its rank among the bytes that are not. */
            const unsigned shifted = c <= 0x20 ? 0x100u + c : 0x121u;
            const size_t size = c > 0x20 && c < 0x7F ? 1 : 2;
            spelled[at] = size == 1 ? (char)c : (char)(0xC0 | shifted >> 6);
            spelled[at + 1] = (char)(0x80 | (shifted & 0x3F));
            parts[n++] = (part){ .start = at, .len = size };
            at += size;
        }
        for (uint32_t m = 0; m < model->spec.n_merges; m++) {
            const firni_gguf_string *merge = &model->spec.merges[m];
            for (size_t i = 0; i + 1 < n; i++) {
                const part left = parts[i];
                const part right = parts[i + 1];
                if (merge->len_bytes == left.len + 1 + right.len && merge->data[left.len] == ' ' &&
                    memcmp(merge->data, spelled + left.start, left.len) == 0 &&
                    memcmp(merge->data + left.len + 1, spelled + right.start, right.len) == 0) {
                    join_parts(parts, &n, i);
                }
            }
        }
        for (size_t i = 0; i < n; i++) {
            out[n_tokens++] = naive_find(model, spelled + parts[i].start, parts[i].len);
        }
    }
    return n_tokens;
}

static void assert_agrees(const firn_tokenizer *tokenizer, const char *text, const firn_token *expected,
                          uint32_t n_expected)
{
    uint32_t n = 0;
    firn_token *tokens = test_encode(tokenizer, text, strlen(text), 0, &n);
    if (n != n_expected || memcmp(tokens, expected, n * sizeof *tokens) != 0) {
        fail_msg("\"%s\": %u tokens that are not the naive implementation's %u", text, n, n_expected);
    }
    free(tokens);
}

/* A text of words that the vocabularies know in part, and of everything else. */
static size_t random_text(test_rng *rng, bool ascii, char *out, size_t out_bytes)
{
    static const char *const words[] = { "the ", " model",      "tier",   "'s",     "'ll ",        "  ", "\n",
                                         "\t\t", " keeps what", "sister", "re",     "123",         "; ", "...",
                                         "ing",  "aaaaaaa",     "Hello",  " I am ", "of the Lord", "?!", "     " };
    static const char *const others[] = { "é", "日本", "🙂", "\u2581", "“", "’", "naïve", "\u00a0", "\u0301", "Ω" };
    size_t n = 0;
    const uint32_t n_words = 1 + test_rng_below(rng, 20);
    for (uint32_t i = 0; i < n_words; i++) {
        char letter[2] = { (char)(1 + test_rng_below(rng, 127)), '\0' };
        const uint32_t kind = test_rng_below(rng, 10);
        const char *word = kind < 6 || (ascii && kind < 8) ? words[test_rng_below(rng, sizeof words / sizeof words[0])]
                           : kind < 8 ? others[test_rng_below(rng, sizeof others / sizeof others[0])]
                                      : letter;
        if (n + strlen(word) + 1 < out_bytes) {
            memcpy(out + n, word, strlen(word));
            n += strlen(word);
        }
    }
    out[n] = '\0';
    return n;
}

static void sentencepiece_ids_equal_a_naive_implementation(void **state)
{
    (void)state;
    static const char *const texts[] = { "a",
                                         " a",
                                         "My dear sister,",
                                         "In the beginning God created the heaven and the earth.",
                                         "Call me Ishmael.  Some years ago",
                                         "1793",
                                         "étude 🙂 日本",
                                         "\n\n\tx",
                                         "aaaaaaaaaaaaaaaaaaaa" };
    test_rng rng = test_rng_create("sentencepiece", 11);
    naive model = naive_open(SPM_MODEL);
    firn_tokenizer *tokenizer = test_tokenizer_open(SPM_MODEL, NULL);
    firn_token expected[4096];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_agrees(tokenizer, texts[i], expected, naive_spm(&model, texts[i], expected));
    }
    for (uint32_t i = 0; i < 1000; i++) {
        char text[512];
        (void)random_text(&rng, false, text, sizeof text);
        assert_agrees(tokenizer, text, expected, naive_spm(&model, text, expected));
    }
    firni_tokenizer_destroy(tokenizer);
    naive_close(&model);
}

static void byte_level_ids_equal_a_naive_implementation(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("byte-level", 12);
    naive model = naive_open(BPE_MODEL);
    firn_tokenizer *tokenizer = test_tokenizer_open(BPE_MODEL, NULL);
    firn_token expected[4096];
    for (uint32_t i = 0; i < 2000; i++) {
        char text[512];
        (void)random_text(&rng, true, text, sizeof text);
        assert_agrees(tokenizer, text, expected, naive_bpe(&model, text, expected));
    }
    firni_tokenizer_destroy(tokenizer);
    naive_close(&model);
}

/* ---- round trips ---- */

static void assert_round_trip(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes)
{
    for (unsigned how = 0; how < 4; how++) {
        uint32_t n = 0;
        firn_token *tokens = test_encode(tokenizer, text, len_bytes, how, &n);
        /* Kept special tokens give their spelling; BOS is not part of the text. */
        const uint32_t skipped = (how & TEST_ADD_BOS) != 0 && firn_tokenizer_bos(tokenizer) != FIRN_TOKEN_NONE;
        test_assert_decodes(tokenizer, tokens + skipped, n - skipped, true, text, len_bytes);
        if ((how & TEST_PARSE_SPECIAL) == 0) {
            test_assert_decodes(tokenizer, tokens, n, false, text, len_bytes);
        }
        free(tokens);
    }
}

static void texts_come_back_byte_for_byte(void **state)
{
    (void)state;
    static const char *const texts[] = { "",
                                         " ",
                                         "  ",
                                         "\n",
                                         " leading and trailing ",
                                         "\r\n\t\v\f",
                                         "<|im_end|>",
                                         "<|bos|> <|eos|>",
                                         "<s></s><unk>",
                                         "<0x41>",
                                         "\xC3",
                                         "\xC3(",
                                         "\xF0\x9F\x99",
                                         "a\xFFz",
                                         "\xED\xA0\x80",
                                         "\xC0\x80",
                                         "\xF5\x80\x80\x80",
                                         "\xE2\x96",
                                         "日本\xE6語",
                                         "👩‍👩‍👧‍👦",
                                         "e\u0301",
                                         "\u200b\u200d\ufeff",
                                         "\x01\x1b[0m\x7f" };
    test_rng rng = test_rng_create("round trip", 13);
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    for (size_t m = 0; m < 2; m++) {
        firn_tokenizer *tokenizer = test_tokenizer_open(models[m], NULL);
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            assert_round_trip(tokenizer, texts[i], strlen(texts[i]));
        }
        for (uint32_t i = 0; i < 3000; i++) {
            char text[64];
            const size_t len = test_rng_below(&rng, sizeof text);
            for (size_t at = 0; at < len; at++) {
                /* Bytes of all kinds, with the lead and continuation bytes of UTF-8 more often than chance. */
                const uint32_t kind = test_rng_below(&rng, 4);
                text[at] = (char)(kind == 0   ? test_rng_below(&rng, 256)
                                  : kind == 1 ? 0x80 + test_rng_below(&rng, 64)
                                  : kind == 2 ? 0xC0 + test_rng_below(&rng, 64)
                                              : 0x20 + test_rng_below(&rng, 96));
            }
            bool has_mark = false; /* SentencePiece cannot tell U+2581 from a space */
            for (size_t at = 0; at + 2 < len; at++) {
                has_mark = has_mark || memcmp(text + at, "\u2581", 3) == 0;
            }
            if (!has_mark) {
                assert_round_trip(tokenizer, text, len);
            }
        }
        firni_tokenizer_destroy(tokenizer);
    }
}

static void every_single_byte_comes_back(void **state)
{
    (void)state;
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    for (size_t m = 0; m < 2; m++) {
        firn_tokenizer *tokenizer = test_tokenizer_open(models[m], NULL);
        for (uint32_t byte = 0; byte < 256; byte++) {
            const char text = (char)byte;
            assert_round_trip(tokenizer, &text, 1);
        }
        firni_tokenizer_destroy(tokenizer);
    }
}

static void an_empty_text_has_no_tokens_but_bos(void **state)
{
    (void)state;
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    for (size_t m = 0; m < 2; m++) {
        firn_tokenizer *tokenizer = test_tokenizer_open(models[m], NULL);
        uint32_t n = 7;
        firn_token *tokens = test_encode(tokenizer, NULL, 0, 0, &n);
        assert_int_equal(n, 0);
        assert_non_null(tokens);
        free(tokens);
        ASSERT_TOKENS(tokenizer, "", TEST_ADD_BOS, firn_tokenizer_bos(tokenizer));
        firni_tokenizer_destroy(tokenizer);
    }
}

static void decoding_refuses_ids_outside_the_vocabulary(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = test_tokenizer_open(BPE_MODEL, NULL);
    const firn_token tokens[] = { 72, 512 };
    char *text = NULL;
    size_t len = 0;
    firn_error err = { 0 };
    assert_status(firn_tokenizer_decode(tokenizer, tokens, 2, false, &text, &len, &err), FIRN_ERR_INVALID);
    assert_null(text);
    assert_non_null(strstr(err.message, "512"));
    uint32_t len_piece = 7;
    assert_null(firn_tokenizer_piece(tokenizer, 512, &len_piece));
    assert_int_equal(len_piece, 0);
    assert_false(firn_tokenizer_is_special(tokenizer, FIRN_TOKEN_NONE));
    assert_false(firn_tokenizer_is_end(tokenizer, FIRN_TOKEN_NONE));
    firni_tokenizer_destroy(tokenizer);
}

/* ---- bounds ---- */

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Half a million of each; anything quadratic would take hours. */
static void long_inputs_take_bounded_time(void **state)
{
    (void)state;
    static const char *const units[] = { "a",    " ", "\n",        "the ", "日",   "🙂",
                                         "\x80", "<", "<|im_end|", "'",    "aA1 ", "\u0301" };
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    const size_t n_bytes = 500000;
    char *text = malloc(n_bytes + 16);
    assert_non_null(text);
    for (size_t m = 0; m < 2; m++) {
        firn_tokenizer *tokenizer = test_tokenizer_open(models[m], NULL);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = 0;
            while (len < n_bytes) {
                memcpy(text + len, units[u], strlen(units[u]));
                len += strlen(units[u]);
            }
            const double start = cpu_seconds();
            uint32_t n = 0;
            firn_token *tokens = test_encode(tokenizer, text, len, TEST_PARSE_SPECIAL, &n);
            assert_true(cpu_seconds() - start < 5.0);
            test_assert_decodes(tokenizer, tokens, n, true, text, len);
            free(tokens);
        }
        firni_tokenizer_destroy(tokenizer);
    }
    free(text);
}

static void texts_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = test_tokenizer_open(BPE_MODEL, NULL);
    firn_token *tokens = NULL;
    uint32_t n = 0;
    firn_error err = { 0 };
    /* Refused by its length alone: the bytes are never looked at. */
    assert_status(firn_tokenizer_encode(tokenizer, "x", ((size_t)1 << 30) + 1, NULL, &tokens, &n, &err),
                  FIRN_ERR_UNSUPPORTED);
    assert_null(tokens);
    firni_tokenizer_destroy(tokenizer);
}

/* ---- threads, memory ---- */

typedef struct job {
    const firn_tokenizer *tokenizer;
    uint64_t seed;
    uint64_t sum;
} job;

static void *encode_many(void *arg)
{
    job *own = arg;
    test_rng rng = { .state = own->seed };
    for (uint32_t i = 0; i < 300; i++) {
        char text[512];
        const size_t len = random_text(&rng, false, text, sizeof text);
        firn_token *tokens = NULL;
        uint32_t n = 0;
        if (firn_tokenizer_encode(own->tokenizer, text, len, NULL, &tokens, &n, NULL) != FIRN_OK) {
            return NULL;
        }
        for (uint32_t t = 0; t < n; t++) {
            own->sum = own->sum * 31 + tokens[t];
        }
        free(tokens);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    for (size_t m = 0; m < 2; m++) {
        firn_tokenizer *tokenizer = test_tokenizer_open(models[m], NULL);
        job alone = { .tokenizer = tokenizer, .seed = 5 };
        (void)encode_many(&alone);
        assert_true(alone.sum != 0);
        job jobs[4];
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++) {
            jobs[i] = (job){ .tokenizer = tokenizer, .seed = 5 };
            assert_int_equal(pthread_create(&threads[i], NULL, encode_many, &jobs[i]), 0);
        }
        for (size_t i = 0; i < 4; i++) {
            (void)pthread_join(threads[i], NULL);
            assert_true(jobs[i].sum == alone.sum);
        }
        firni_tokenizer_destroy(tokenizer);
    }
}

/* One whole life; returns whether everything succeeded. A failure must be NO_MEMORY and leave nothing behind. */
static bool live_once(const char *path, const firn_env *env)
{
    static const char text[] = "the cold tier\xFF keeps 日本 <|im_end|> what the model has already read";
    const firn_chat_message message = { .role = "user", .content = text };
    firni_gguf *gguf = NULL;
    firni_vocab_spec spec = { 0 };
    firn_tokenizer *tokenizer = NULL;
    firn_token *tokens = NULL;
    firn_token *chat = NULL;
    uint32_t n = 0;
    firn_status status = firni_gguf_open(path, env, &gguf, NULL);
    if (status == FIRN_OK) {
        status = firni_vocab_from_gguf(gguf, env, &spec, NULL);
        assert_true(status == FIRN_OK || spec.pieces == NULL);
    }
    if (status == FIRN_OK) {
        status = firni_tokenizer_create(&spec, env, &tokenizer, NULL);
        assert_true((status == FIRN_OK) == (tokenizer != NULL));
    }
    if (status == FIRN_OK) {
        const firn_encode_options options = { .add_bos = true, .parse_special = true };
        status = firn_tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &tokens, &n, NULL);
        assert_true((status == FIRN_OK) == (tokens != NULL));
    }
    if (status == FIRN_OK) {
        status = firn_tokenizer_chat(tokenizer, &message, 1, &chat, &n, NULL);
        assert_true((status == FIRN_OK) == (chat != NULL));
    }
    assert_true(status == FIRN_OK || status == FIRN_ERR_NO_MEMORY);
    free(tokens);
    free(chat);
    firni_tokenizer_destroy(tokenizer);
    firni_vocab_spec_deinit(&spec);
    firni_gguf_close(gguf);
    return status == FIRN_OK;
}

static void refused_memory_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    const char *const models[] = { BPE_MODEL, SPM_MODEL };
    for (size_t m = 0; m < 2; m++) {
        uint32_t n_failed = 0;
        for (uint64_t nth = 1;; nth++) {
            test_world world;
            test_world_init(&world);
            world.fail_alloc_at = nth;
            const bool done = live_once(models[m], &world.env);
            const bool clean = !world.alloc_failed;
            n_failed += !done;
            test_world_deinit(&world); /* asserts that nothing leaked */
            assert_true(done || !clean);
            if (clean) {
                break;
            }
        }
        assert_true(n_failed > 15);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_the_oracle_vocabulary_are_those_of_an_independent_implementation),
        cmocka_unit_test(ids_of_the_built_in_vocabulary_are_those_of_sentencepiece),
        cmocka_unit_test(sentencepiece_ids_equal_a_naive_implementation),
        cmocka_unit_test(byte_level_ids_equal_a_naive_implementation),
        cmocka_unit_test(texts_come_back_byte_for_byte),
        cmocka_unit_test(every_single_byte_comes_back),
        cmocka_unit_test(an_empty_text_has_no_tokens_but_bos),
        cmocka_unit_test(decoding_refuses_ids_outside_the_vocabulary),
        cmocka_unit_test(long_inputs_take_bounded_time),
        cmocka_unit_test(texts_beyond_the_limit_are_refused),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(refused_memory_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
