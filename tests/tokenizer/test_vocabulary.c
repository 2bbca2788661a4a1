/*
 * The rules of a vocabulary, on vocabularies made by hand: splits, merges, special tokens, byte fallback, what is
 * contradictory, and what the digest covers.
 */
#include <math.h>

#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"
#include "tokenizer/tokenizer_support.h"

/* ---- characters ---- */

/* What passes here is given to PCRE2 unchecked. */
static void only_strict_utf8_is_a_character(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t len, character;
    } cases[] = {
        { "a", 1, 'a' },
        { "\x7F\x80", 1, 0x7F },
        { "\xC2\x80", 2, 0x80 },
        { "\xDF\xBF", 2, 0x7FF },
        { "\xE0\xA0\x80", 3, 0x800 },
        { "\xED\x9F\xBF", 3, 0xD7FF },
        { "\xEE\x80\x80", 3, 0xE000 },
        { "\xEF\xBF\xBF", 3, 0xFFFF },
        { "\xF0\x90\x80\x80", 4, 0x10000 },
        { "\xF4\x8F\xBF\xBF", 4, 0x10FFFF },
        { "\x80", 0, 0 },     /* a continuation alone */
        { "\xC1\xBF", 0, 0 }, /* overlong: two, three and four bytes */
        { "\xE0\x9F\xBF", 0, 0 },
        { "\xF0\x8F\xBF\xBF", 0, 0 },
        { "\xED\xA0\x80", 0, 0 }, /* surrogates */
        { "\xED\xBF\xBF", 0, 0 },
        { "\xF4\x90\x80\x80", 0, 0 }, /* beyond the last character */
        { "\xF5\x80\x80\x80", 0, 0 },
        { "\xC2", 0, 0 }, /* cut short, by the end and by another character */
        { "\xE2\x96", 0, 0 },
        { "\xF0\x9F\x99", 0, 0 },
        { "\xE2\x96z", 0, 0 },
        { "", 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t character = 0;
        assert_int_equal(firni_utf8_decode(cases[i].bytes, strlen(cases[i].bytes), &character), cases[i].len);
        assert_int_equal(character, cases[i].character);
    }
}

/* ---- splits ---- */

/* Asserts that a split cuts a text into these words, written with "|" between them. */
static void assert_words(const char *pre, const char *text, const char *expected)
{
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, pre);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    firni_encoder encoder;
    firni_encoder_init(&encoder, tokenizer, NULL);
    assert_ok(firni_split_text(&encoder, text, (uint32_t)strlen(text)));
    char words[512];
    size_t n = 0;
    uint32_t start = 0;
    for (size_t i = 0; i < encoder.n_ends; i++) {
        n += (size_t)snprintf(words + n, sizeof words - n, "%s%.*s", i == 0 ? "" : "|", (int)(encoder.ends[i] - start),
                              text + start);
        start = encoder.ends[i];
    }
    if (strcmp(words, expected) != 0) {
        fail_msg("%s cuts \"%s\" into \"%s\", not \"%s\"", pre, text, words, expected);
    }
    firni_encoder_deinit(&encoder);
    firni_tokenizer_destroy(tokenizer);
}

static void each_split_cuts_where_its_pattern_says(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *text, *words;
    } cases[] = {
        { "gpt-2", "Hello world's 12345 a_b", "Hello| world|'s| 12345| a|_|b" },
        { "gpt-2", "I'LL we'll", "I|'|LL| we|'ll" },
        { "gpt-2", "a  b\n\n c", "a| | b|\n\n| c" },
        { "gpt-2", "x \xC2\x85\u00a0y", "x| \xC2\x85|\u00a0|y" },
        { "llama-bpe", "I'LL 12345", "I|'LL| |123|45" },
        { "llama-bpe", "a\tb (c) !!\n\nd", "a|\tb| (|c|)| !!\n\n|d" },
        { "llama-bpe", "naïve ½²", "naïve| |½²" },
        { "dbrx", "I'LL 12345", "I|'LL| |123|45" },
        { "qwen2", "x 12 e\u0301", "x| |1|2| e|\u0301" },
        { "qwen35", "x 12 e\u0301", "x| |1|2| e\u0301" },
        { "gpt-4o", "HelloWorld ABCdef it's a/b/\n", "Hello|World| ABCdef| it's| a|/b|/\n" },
        { "deepseek-v3", "ab1234日本x. y", "ab|123|4|日本|x|.| y" },
        /* White space is Unicode's: not U+180E, not U+FEFF, not U+200B. */
        { "gpt-2", "I'\u017f", "I|'|\u017f" },
        { "qwen2", "I'\u017fx", "I|'\u017f|x" }, /* a long s is an s when case does not count */
        { "qwen2", "\u180e\u180ea", "\u180e\u180e|a" },
        { "gpt-2", "a\ufeffb\u200bc", "a|\ufeff|b|\u200b|c" },
        { "gpt-2", "\u3000\u3000x", "\u3000|\u3000|x" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_words(cases[i].pre, cases[i].text, cases[i].words);
    }
}

static void aliases_are_the_same_split(void **state)
{
    (void)state;
    static const struct {
        const char *alias, *name;
    } cases[] = { { "default", "gpt-2" },          { "llama3", "llama-bpe" }, { "llama-v3", "llama-bpe" },
                  { "deepseek-r1-qwen", "qwen2" }, { "smaug-bpe", "dbrx" },   { "llama4", "gpt-4o" },
                  { "qwen35", "qwen35" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const firni_split *split = firni_split_find(cases[i].alias);
        assert_non_null(split);
        assert_string_equal(split->name, cases[i].name);
    }
    assert_null(firni_split_find("llama"));
    assert_null(firni_split_find("v3"));
    assert_null(firni_split_find("|"));
    assert_null(firni_split_find(""));
}

static void an_unknown_split_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "superbpe");
    firn_tokenizer *tokenizer = NULL;
    firn_error err = { 0 };
    assert_status(firni_tokenizer_create(&vocab.spec, NULL, &tokenizer, &err), FIRN_ERR_UNSUPPORTED);
    assert_null(tokenizer);
    assert_non_null(strstr(err.message, "superbpe"));
    assert_non_null(strstr(err.message, "gpt-2"));
    assert_non_null(strstr(err.message, "deepseek-v3"));
}

/* ---- merges ---- */

static void merges_go_by_rank_then_from_the_left(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-2");
    const firn_token bc = test_vocab_add(&vocab, "bc", FIRNI_PIECE_NORMAL, 0);
    const firn_token ab = test_vocab_add(&vocab, "ab", FIRNI_PIECE_NORMAL, 0);
    const firn_token aa = test_vocab_add(&vocab, "aa", FIRNI_PIECE_NORMAL, 0);
    const firn_token abc = test_vocab_add(&vocab, "abc", FIRNI_PIECE_NORMAL, 0);
    test_vocab_merge(&vocab, "b c");
    test_vocab_merge(&vocab, "a b");
    test_vocab_merge(&vocab, "a a");
    test_vocab_merge(&vocab, "a bc");
    test_vocab_merge(&vocab, "b c"); /* said twice: the first counts */
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    ASSERT_TOKENS(tokenizer, "abc", 0, abc);
    ASSERT_TOKENS(tokenizer, "abb", 0, ab, 'b');
    ASSERT_TOKENS(tokenizer, "aaa", 0, aa, 'a');
    ASSERT_TOKENS(tokenizer, "aaaaabc", 0, aa, aa, abc);
    ASSERT_TOKENS(tokenizer, "bcb", 0, bc, 'b');
    firni_tokenizer_destroy(tokenizer);
}

static void only_some_splits_take_a_whole_word_without_merges(void **state)
{
    (void)state;
    static const char *const pres[] = { "llama-bpe", "dbrx" };
    for (size_t i = 0; i < 2; i++) {
        test_vocab vocab;
        test_vocab_init_bytes(&vocab, pres[i]);
        /* No merges lead there. */
        const firn_token hello = test_vocab_add(&vocab, "\u0120hey", FIRNI_PIECE_NORMAL, 0);
        firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
        if (i == 0) {
            ASSERT_TOKENS(tokenizer, " hey", 0, hello);
            ASSERT_TOKENS(tokenizer, " heyy", 0, ' ', 'h', 'e', 'y', 'y');
        } else {
            ASSERT_TOKENS(tokenizer, " hey", 0, ' ', 'h', 'e', 'y');
        }
        test_assert_decodes(tokenizer, &hello, 1, false, " hey", 4);
        firni_tokenizer_destroy(tokenizer);
    }
}

static void a_byte_without_a_piece_is_unsupported(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-2");
    vocab.types['x'] = FIRNI_PIECE_UNUSED;
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    static const char *const texts[] = { "x", "axb", "\xFFx" };
    for (size_t i = 0; i < 3; i++) {
        firn_token *tokens = NULL;
        uint32_t n = 0;
        firn_error err = { 0 };
        assert_status(firn_tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), NULL, &tokens, &n, &err),
                      FIRN_ERR_UNSUPPORTED);
        assert_null(tokens);
        assert_non_null(strstr(err.message, "0x78"));
    }
    ASSERT_TOKENS(tokenizer, "ab", 0, 'a', 'b');
    firni_tokenizer_destroy(tokenizer);
}

/* ---- special tokens ---- */

static void special_tokens_are_found_leftmost_and_longest(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-2");
    const firn_token a = test_vocab_add(&vocab, "<a>", FIRNI_PIECE_CONTROL, 0);
    const firn_token a_long = test_vocab_add(&vocab, "<a><a>!", FIRNI_PIECE_CONTROL, 0);
    const firn_token a_again = test_vocab_add(&vocab, "<a>", FIRNI_PIECE_CONTROL, 0);
    const firn_token think = test_vocab_add(&vocab, "<think>", FIRNI_PIECE_USER_DEFINED, 0);
    const firn_token unknown = test_vocab_add(&vocab, "<unk>", FIRNI_PIECE_UNKNOWN, 0);
    (void)test_vocab_add(&vocab, "", FIRNI_PIECE_CONTROL, 0);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    ASSERT_TOKENS(tokenizer, "<a>", TEST_PARSE_SPECIAL, a);
    ASSERT_TOKENS(tokenizer, "<a><a>", TEST_PARSE_SPECIAL, a, a);
    ASSERT_TOKENS(tokenizer, "<a><a>!", TEST_PARSE_SPECIAL, a_long);
    ASSERT_TOKENS(tokenizer, "x<a>y<think><unk>", TEST_PARSE_SPECIAL, 'x', a, 'y', think, unknown);
    ASSERT_TOKENS(tokenizer, "<<a>", TEST_PARSE_SPECIAL, '<', a);
    /* User-defined tokens are the model's text language: always taken; the others never. */
    ASSERT_TOKENS(tokenizer, "<a><think>", 0, '<', 'a', '>', think);
    ASSERT_TOKENS(tokenizer, "<unk>", 0, '<', 'u', 'n', 'k', '>');
    ASSERT_TOKENS(tokenizer, "<thin", TEST_PARSE_SPECIAL, '<', 't', 'h', 'i', 'n');
    assert_true(firn_tokenizer_is_special(tokenizer, think));
    assert_true(firn_tokenizer_is_special(tokenizer, a));
    assert_false(firn_tokenizer_is_special(tokenizer, 'a'));
    /* Decoding leaves out control tokens only: what text became must come back. */
    const firn_token tokens[] = { a, 'x', think, a_again };
    test_assert_decodes(tokenizer, tokens, 4, false, "x<think>", 8);
    test_assert_decodes(tokenizer, tokens, 4, true, "<a>x<think><a>", 14);
    firni_tokenizer_destroy(tokenizer);
}

static void tokens_that_frame_messages_are_control_whatever_the_file_says(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "llama-bpe");
    const firn_token start = test_vocab_add(&vocab, "<|im_start|>", FIRNI_PIECE_USER_DEFINED, 0);
    const firn_token end = test_vocab_add(&vocab, "<|im_end|>", FIRNI_PIECE_USER_DEFINED, 0);
    vocab.spec.eos = test_vocab_add(&vocab, "[stop]", FIRNI_PIECE_USER_DEFINED, 0);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    static const char text[] = "<|im_start|><|im_end|>[stop]";
    uint32_t n = 0;
    firn_token *tokens = test_encode(tokenizer, text, strlen(text), 0, &n);
    assert_int_equal(n, strlen(text));
    free(tokens);
    ASSERT_TOKENS(tokenizer, text, TEST_PARSE_SPECIAL, start, end, vocab.spec.eos);
    assert_true(firn_tokenizer_is_end(tokenizer, end));
    assert_true(firn_tokenizer_is_end(tokenizer, vocab.spec.eos));
    assert_false(firn_tokenizer_is_end(tokenizer, start));
    firni_tokenizer_destroy(tokenizer);
}

static void in_the_harmony_format_end_closes_a_message_not_the_answer(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-4o");
    const firn_token end = test_vocab_add(&vocab, "<|end|>", FIRNI_PIECE_CONTROL, 0);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    assert_true(firn_tokenizer_is_end(tokenizer, end));
    firni_tokenizer_destroy(tokenizer);
    const firn_token back = test_vocab_add(&vocab, "<|return|>", FIRNI_PIECE_CONTROL, 0);
    const firn_token call = test_vocab_add(&vocab, "<|call|>", FIRNI_PIECE_CONTROL, 0);
    tokenizer = test_vocab_compile(&vocab);
    assert_false(firn_tokenizer_is_end(tokenizer, end));
    assert_true(firn_tokenizer_is_end(tokenizer, back));
    assert_true(firn_tokenizer_is_end(tokenizer, call));
    firni_tokenizer_destroy(tokenizer);
}

/* No merge and no whole word may lead to a control token. */
static void no_merge_makes_a_control_token(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "llama-bpe");
    const firn_token control = test_vocab_add(&vocab, "ab", FIRNI_PIECE_CONTROL, 0);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    ASSERT_TOKENS(tokenizer, "ab", 0, 'a', 'b');
    ASSERT_TOKENS(tokenizer, "ab", TEST_PARSE_SPECIAL, control);
    firni_tokenizer_destroy(tokenizer);
    test_vocab_merge(&vocab, "a b");
    firn_error err = { 0 };
    assert_status(firni_tokenizer_create(&vocab.spec, NULL, &tokenizer, &err), FIRN_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tokenizer.ggml.merges"));
}

/* ---- SentencePiece ---- */

static void sentencepiece_merges_by_score_and_marks_spaces(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_spm(&vocab, true);
    const firn_token space = test_vocab_add(&vocab, "\u2581", FIRNI_PIECE_NORMAL, -9);
    const firn_token a = test_vocab_add(&vocab, "a", FIRNI_PIECE_NORMAL, -8);
    const firn_token b = test_vocab_add(&vocab, "b", FIRNI_PIECE_NORMAL, -8);
    const firn_token aa = test_vocab_add(&vocab, "aa", FIRNI_PIECE_NORMAL, -3);
    const firn_token ab = test_vocab_add(&vocab, "ab", FIRNI_PIECE_NORMAL, -2);
    const firn_token space_a = test_vocab_add(&vocab, "\u2581a", FIRNI_PIECE_NORMAL, -4);
    const firn_token e_b = test_vocab_add(&vocab, "éb", FIRNI_PIECE_NORMAL, -5);
    (void)test_vocab_add(&vocab, " a", FIRNI_PIECE_NORMAL, 9); /* a real space: never reached */
    (void)test_vocab_add(&vocab, "bb", FIRNI_PIECE_UNUSED, 9);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    const firn_token byte_0 = 3;
    ASSERT_TOKENS(tokenizer, "a", 0, space_a);
    ASSERT_TOKENS(tokenizer, "aab", 0, space_a, ab); /* ab before aa, then the space joins */
    ASSERT_TOKENS(tokenizer, "baaa", 0, space, b, aa, a);
    ASSERT_TOKENS(tokenizer, "bb", 0, space, b, b);
    /* U+2581 in the text is a space. */
    ASSERT_TOKENS(tokenizer, "\u2581a", 0, space, space_a);
    /* A character that is no piece joins by its text, and falls back to bytes when it does not. */
    ASSERT_TOKENS(tokenizer, "éb", 0, space, e_b);
    ASSERT_TOKENS(tokenizer, "é\xFF", 0, space, byte_0 + 0xC3, byte_0 + 0xA9, byte_0 + 0xFF);
    ASSERT_TOKENS(tokenizer, "a", TEST_ADD_BOS, 1, space_a);
    /* A control token begins a new text, with a space of its own; decoding takes both away. */
    ASSERT_TOKENS(tokenizer, "a</s>a", TEST_PARSE_SPECIAL, space_a, 2, space_a);
    const firn_token tokens[] = { 1, space_a, 2, space_a, space_a };
    test_assert_decodes(tokenizer, tokens, 5, false, "aa a", 4);
    test_assert_decodes(tokenizer, tokens, 5, true, "<s>a</s>a a", 11);
    assert_true(firn_tokenizer_strips_leading_space(tokenizer));
    uint32_t len = 0;
    const char *piece = firn_tokenizer_piece(tokenizer, space_a, &len);
    assert_int_equal(len, 2);
    assert_memory_equal(piece, " a", 2);
    firni_tokenizer_destroy(tokenizer);

    vocab.spec.add_space_prefix = false;
    tokenizer = test_vocab_compile(&vocab);
    ASSERT_TOKENS(tokenizer, "a a", 0, a, space_a);
    test_assert_decodes(tokenizer, tokens + 1, 1, false, " a", 2);
    assert_false(firn_tokenizer_strips_leading_space(tokenizer));
    firni_tokenizer_destroy(tokenizer);
}

static void without_bytes_a_run_of_unknown_characters_is_one_unknown_token(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_spm(&vocab, false);
    const firn_token space = test_vocab_add(&vocab, "\u2581", FIRNI_PIECE_NORMAL, -1);
    const firn_token a = test_vocab_add(&vocab, "a", FIRNI_PIECE_NORMAL, -2);
    firn_tokenizer *tokenizer = test_vocab_compile(&vocab);
    ASSERT_TOKENS(tokenizer, "a日本a日", 0, space, a, 0, a, 0);
    ASSERT_TOKENS(tokenizer, "\xFF\xFE", 0, space, 0);
    firni_tokenizer_destroy(tokenizer);

    vocab.spec.unk = FIRN_TOKEN_NONE;
    tokenizer = test_vocab_compile(&vocab);
    firn_token *tokens = NULL;
    uint32_t n = 0;
    firn_error err = { 0 };
    assert_status(firn_tokenizer_encode(tokenizer, "a日", 4, NULL, &tokens, &n, &err), FIRN_ERR_UNSUPPORTED);
    assert_null(tokens);
    assert_non_null(strstr(err.message, "0xE6"));
    firni_tokenizer_destroy(tokenizer);
}

/* ---- contradictions ---- */

static void assert_contradiction(const test_vocab *vocab, const char *key)
{
    firn_tokenizer *tokenizer = NULL;
    firn_error err = { 0 };
    assert_status(firni_tokenizer_create(&vocab->spec, NULL, &tokenizer, &err), FIRN_ERR_FORMAT);
    assert_null(tokenizer);
    if (strstr(err.message, key) == NULL) {
        fail_msg("\"%s\" does not name %s", err.message, key);
    }
}

static void contradictions_are_refused_and_named(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-2");
    static const char *const bad_merges[] = { "a", "", "a b", " b", "a ", "é? b", "a b c" };
    for (size_t i = 0; i < sizeof bad_merges / sizeof bad_merges[0]; i++) {
        vocab.spec.n_merges = 0;
        test_vocab_merge(&vocab, bad_merges[i]);
        assert_contradiction(&vocab, "tokenizer.ggml.merges");
    }
    vocab.spec.n_merges = 0;
    vocab.types[7] = 0;
    assert_contradiction(&vocab, "tokenizer.ggml.token_type");
    vocab.types[7] = 7;
    assert_contradiction(&vocab, "tokenizer.ggml.token_type");
    vocab.types[7] = FIRNI_PIECE_NORMAL;
    vocab.spec.eos = 256;
    assert_contradiction(&vocab, "eos_token_id");
    vocab.spec.eos = FIRN_TOKEN_NONE;
    vocab.spec.add_bos = true;
    assert_contradiction(&vocab, "add_bos_token");
    vocab.spec.add_bos = false;
    vocab.spec.n_tokens = 0;
    assert_contradiction(&vocab, "tokenizer.ggml.tokens");

    test_vocab_init_spm(&vocab, true);
    vocab.scores[5] = NAN;
    assert_contradiction(&vocab, "tokenizer.ggml.scores");
    vocab.scores[5] = 0;
    vocab.pieces[9] = (firni_gguf_string){ .data = "<0x0g>", .len_bytes = 6 };
    assert_contradiction(&vocab, "tokenizer.ggml.tokens");
    vocab.pieces[9] = (firni_gguf_string){ .data = "<0x06", .len_bytes = 5 };
    assert_contradiction(&vocab, "tokenizer.ggml.tokens");
}

/* ---- the digest ---- */

static bool same_digest(const test_vocab *vocab, const firn_digest *digest)
{
    firn_tokenizer *tokenizer = test_vocab_compile(vocab);
    const firn_digest own = firn_tokenizer_digest(tokenizer);
    firni_tokenizer_destroy(tokenizer);
    return memcmp(&own, digest, sizeof own) == 0;
}

static firn_digest digest_of(const test_vocab *vocab)
{
    firn_tokenizer *tokenizer = test_vocab_compile(vocab);
    const firn_digest own = firn_tokenizer_digest(tokenizer);
    firni_tokenizer_destroy(tokenizer);
    return own;
}

static void the_digest_covers_all_that_shapes_ids(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "llama-bpe");
    (void)test_vocab_add(&vocab, "ab", FIRNI_PIECE_NORMAL, 0);
    (void)test_vocab_add(&vocab, "abc", FIRNI_PIECE_NORMAL, 0);
    test_vocab_merge(&vocab, "a b");
    test_vocab_merge(&vocab, "ab c");
    const firn_digest digest = digest_of(&vocab);
    assert_true(same_digest(&vocab, &digest));

    /* An alias of the split, another template: the same tokens for the same text. */
    (void)snprintf(vocab.spec.pre, sizeof vocab.spec.pre, "llama3");
    char template_text[] = "<|im_start|>";
    vocab.spec.chat_template = template_text;
    assert_true(same_digest(&vocab, &digest));

    (void)snprintf(vocab.spec.pre, sizeof vocab.spec.pre, "dbrx");
    assert_false(same_digest(&vocab, &digest));
    (void)snprintf(vocab.spec.pre, sizeof vocab.spec.pre, "llama-bpe");
    vocab.types[4] = FIRNI_PIECE_UNUSED;
    assert_false(same_digest(&vocab, &digest));
    vocab.types[4] = FIRNI_PIECE_NORMAL;
    vocab.spec.n_merges = 1;
    assert_false(same_digest(&vocab, &digest));
    vocab.spec.n_merges = 2;
    const firni_gguf_string merge = vocab.merges[0];
    vocab.merges[0] = vocab.merges[1];
    vocab.merges[1] = merge;
    assert_false(same_digest(&vocab, &digest));
    vocab.merges[1] = vocab.merges[0];
    vocab.merges[0] = merge;
    vocab.spec.eos = 4;
    assert_false(same_digest(&vocab, &digest));
    vocab.spec.eos = FIRN_TOKEN_NONE;
    vocab.spec.eot = 4;
    assert_false(same_digest(&vocab, &digest));
    vocab.spec.eot = FIRN_TOKEN_NONE;
    vocab.spec.bos = 4;
    const firn_digest with_bos = digest_of(&vocab);
    assert_false(same_digest(&vocab, &digest));
    vocab.spec.add_bos = true;
    assert_false(same_digest(&vocab, &with_bos));
    vocab.spec.add_bos = false;
    vocab.spec.bos = FIRN_TOKEN_NONE;
    (void)test_vocab_add(&vocab, "[more]", FIRNI_PIECE_UNUSED, 0);
    assert_false(same_digest(&vocab, &digest));
    vocab.spec.n_tokens--;
    assert_true(same_digest(&vocab, &digest));

    test_vocab_init_spm(&vocab, true);
    const firn_digest spm = digest_of(&vocab);
    vocab.scores[8] = -1;
    assert_false(same_digest(&vocab, &spm));
    vocab.scores[8] = 0;
    vocab.spec.add_space_prefix = false;
    assert_false(same_digest(&vocab, &spm));
}

/* Lengths lead, so that pieces cannot run together. */
static void the_digest_keeps_neighbouring_pieces_apart(void **state)
{
    (void)state;
    test_vocab vocab;
    test_vocab_init_bytes(&vocab, "gpt-2");
    const uint32_t n = vocab.spec.n_tokens;
    (void)test_vocab_add(&vocab, "[ab", FIRNI_PIECE_UNUSED, 0);
    (void)test_vocab_add(&vocab, "c]", FIRNI_PIECE_UNUSED, 0);
    const firn_digest digest = digest_of(&vocab);
    vocab.spec.n_tokens = n;
    (void)test_vocab_add(&vocab, "[a", FIRNI_PIECE_UNUSED, 0);
    (void)test_vocab_add(&vocab, "bc]", FIRNI_PIECE_UNUSED, 0);
    assert_false(same_digest(&vocab, &digest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_strict_utf8_is_a_character),
        cmocka_unit_test(each_split_cuts_where_its_pattern_says),
        cmocka_unit_test(aliases_are_the_same_split),
        cmocka_unit_test(an_unknown_split_is_refused_with_the_known_ones),
        cmocka_unit_test(merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(only_some_splits_take_a_whole_word_without_merges),
        cmocka_unit_test(a_byte_without_a_piece_is_unsupported),
        cmocka_unit_test(special_tokens_are_found_leftmost_and_longest),
        cmocka_unit_test(tokens_that_frame_messages_are_control_whatever_the_file_says),
        cmocka_unit_test(in_the_harmony_format_end_closes_a_message_not_the_answer),
        cmocka_unit_test(no_merge_makes_a_control_token),
        cmocka_unit_test(sentencepiece_merges_by_score_and_marks_spaces),
        cmocka_unit_test(without_bytes_a_run_of_unknown_characters_is_one_unknown_token),
        cmocka_unit_test(contradictions_are_refused_and_named),
        cmocka_unit_test(the_digest_covers_all_that_shapes_ids),
        cmocka_unit_test(the_digest_keeps_neighbouring_pieces_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
