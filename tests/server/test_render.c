/*
 * Answers as JSON and as server-sent events, in both formats, over a small vocabulary made by hand: its tokens hold
 * quotes, newlines, parts of a character, and bytes that are no UTF-8 at all.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/vocab_spec.h"
#include "server/transcript.h"
#include "support/support.h"

enum { TOKEN_UNK, TOKEN_BOS, TOKEN_EOS, TOKEN_E2, TOKEN_82, TOKEN_AC, TOKEN_FF, TOKEN_WORD, TOKEN_QUOTE, N_PIECES };

static firn_tokenizer *make_tokenizer(void)
{
    static const char *const texts[N_PIECES] = { "<unk>",  "<s>",    "</s>",       "<0xE2>", "<0x82>",
                                                 "<0xAC>", "<0xFF>", "wo\xc3\xa9", "\"\n\\" };
    static const uint8_t types[N_PIECES] = { FIRNI_PIECE_UNKNOWN, FIRNI_PIECE_CONTROL, FIRNI_PIECE_CONTROL,
                                             FIRNI_PIECE_BYTE,    FIRNI_PIECE_BYTE,    FIRNI_PIECE_BYTE,
                                             FIRNI_PIECE_BYTE,    FIRNI_PIECE_NORMAL,  FIRNI_PIECE_NORMAL };
    firni_gguf_string pieces[N_PIECES];
    float scores[N_PIECES] = { 0 };
    uint8_t own_types[N_PIECES];
    memcpy(own_types, types, sizeof own_types);
    for (size_t i = 0; i < N_PIECES; i++) {
        pieces[i] = (firni_gguf_string){ .data = texts[i], .len_bytes = strlen(texts[i]) };
    }
    const firni_vocab_spec spec = { .kind = FIRNI_VOCAB_SPM, .n_tokens = N_PIECES, .pieces = pieces, .scores = scores,
                                    .types = own_types, .bos = TOKEN_BOS, .eos = TOKEN_EOS, .unk = TOKEN_UNK,
                                    .eot = FIRN_TOKEN_NONE };
    firn_tokenizer *tokenizer = NULL;
    firn_error err;
    if (firni_tokenizer_create(&spec, NULL, &tokenizer, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    return tokenizer;
}

static const firn_token prompt[] = { TOKEN_BOS, TOKEN_WORD, TOKEN_FF };

static void start(firni_answer *answer, const firn_tokenizer *tokenizer)
{
    *answer = (firni_answer){
        .id = "id-1", .created_s = 1700000000, .model = "m", .fingerprint = "fp_1", .tokenizer = tokenizer,
        .prompt = prompt, .n_prompt = 3, .ended = true, .finish = FIRN_FINISH_STOP,
        .usage = { .draft = { .n_rounds = 4, .drafted_tokens = 20, .accepted_tokens = 7, .round_tokens = 10 },
                   .prompt_tokens = 300, .completion_tokens = 4, .first_token_ns = 1500000, .total_ns = 2000000,
                   .cache = { .n_tokens = 192, .ram_tokens = 128, .disk_tokens = 64, .reason = FIRN_REASON_DIVERGED,
                              .first_divergence = 2, .diverged = true, .stored_token = TOKEN_QUOTE } },
    };
    firni_pieces_init(&answer->pieces, NULL);
}

static void add(firni_answer *answer, firn_token token, const char *text, const firn_logprobs *logprobs)
{
    assert_true(firni_pieces_add(&answer->pieces, token, text, strlen(text), logprobs));
}

static const json_t *at(const json_t *object, const char *path)
{
    char copy[128];
    (void)snprintf(copy, sizeof copy, "%s", path);
    const json_t *value = object;
    for (char *rest = copy, *name = strtok_r(rest, ".", &rest); name != NULL; name = strtok_r(NULL, ".", &rest)) {
        value =
            name[0] >= '0' && name[0] <= '9' ? json_array_get(value, (size_t)atoi(name)) : json_object_get(value, name);
        if (value == NULL) {
            fail_msg("no %s (at %s)", path, name);
        }
    }
    return value;
}

#define assert_text(object, path, expected) assert_string_equal(json_string_value(at(object, path)), expected)
#define assert_number(object, path, expected) assert_int_equal(json_integer_value(at(object, path)), expected)

static void check_usage(const json_t *object)
{
    assert_number(object, "usage.prompt_tokens", 300);
    assert_number(object, "usage.completion_tokens", 4);
    assert_number(object, "usage.total_tokens", 304);
    assert_number(object, "usage.prompt_tokens_details.cached_tokens", 192);
    assert_number(object, "firn.ram", 128);
    assert_number(object, "firn.disk", 64);
    assert_number(object, "firn.computed", 108);
    assert_text(object, "firn.reason", "diverged");
    assert_number(object, "firn.first_divergence", 2);
    assert_true(json_is_true(at(object, "firn.diverged")));
    assert_number(object, "firn.difference.stored.id", TOKEN_QUOTE);
    assert_text(object, "firn.difference.stored.text", "\"\n\\");
    assert_number(object, "firn.difference.prompt.id", TOKEN_FF);
    assert_text(object, "firn.difference.prompt.text", "\xef\xbf\xbd");
    assert_true(json_real_value(at(object, "firn.first_token_ms")) == 1.5);
    assert_number(object, "firn.draft.rounds", 4);
    assert_number(object, "firn.draft.drafted", 20);
    assert_number(object, "firn.draft.accepted", 7);
    assert_true(json_real_value(at(object, "firn.draft.tokens_per_round")) == 2.5);
}

static void whole_answers_have_text_usage_and_the_cache_explained(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = make_tokenizer();
    firni_answer answer;
    start(&answer, tokenizer);
    add(&answer, TOKEN_WORD, "wo\xc3\xa9", NULL);
    add(&answer, TOKEN_QUOTE, "\"\n\\", NULL);
    firni_buffer_text(&answer.pieces.text, "tail");

    json_t *whole = firni_wire_completions.render(&answer);
    assert_text(whole, "object", "text_completion");
    assert_text(whole, "choices.0.text", "wo\xc3\xa9\"\n\\tail");
    assert_text(whole, "choices.0.finish_reason", "stop");
    assert_true(json_is_null(at(whole, "choices.0.logprobs")));
    check_usage(whole);
    json_decref(whole);

    answer.finish = FIRN_FINISH_LENGTH;
    whole = firni_wire_chat.render(&answer);
    assert_text(whole, "object", "chat.completion");
    assert_text(whole, "choices.0.message.role", "assistant");
    assert_text(whole, "choices.0.message.content", "wo\xc3\xa9\"\n\\tail");
    assert_text(whole, "choices.0.finish_reason", "length");
    check_usage(whole);
    json_decref(whole);

    firni_pieces_deinit(&answer.pieces);
    firni_tokenizer_destroy(tokenizer);
}

static void an_answer_without_tokens_is_an_empty_text(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = make_tokenizer();
    firni_answer answer;
    start(&answer, tokenizer);
    json_t *whole = firni_wire_completions.render(&answer);
    assert_text(whole, "choices.0.text", "");
    json_decref(whole);
    whole = firni_wire_chat.render(&answer);
    assert_text(whole, "choices.0.message.content", "");
    json_decref(whole);
    firni_tokenizer_destroy(tokenizer);
}

static const firn_logprobs word_logprobs = { .token = TOKEN_WORD,
                                             .logprob = -0.5f,
                                             .n_top = 2,
                                             .top_tokens = { TOKEN_WORD, TOKEN_FF },
                                             .top_logprobs = { -0.5f, -1.25f } };

static void logprobs_take_the_form_of_each_format(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = make_tokenizer();
    firni_answer answer;
    start(&answer, tokenizer);
    answer.wants_logprobs = true;
    firn_logprobs second = { .token = TOKEN_E2, .logprob = -INFINITY };
    add(&answer, TOKEN_WORD, "wo\xc3\xa9", &word_logprobs);
    add(&answer, TOKEN_E2, "", &second);

    json_t *whole = firni_wire_completions.render(&answer);
    assert_text(whole, "choices.0.logprobs.tokens.0", "wo\xc3\xa9");
    assert_text(whole, "choices.0.logprobs.tokens.1", "\xef\xbf\xbd");
    assert_true(json_real_value(at(whole, "choices.0.logprobs.token_logprobs.0")) == -0.5);
    assert_true(json_real_value(at(whole, "choices.0.logprobs.token_logprobs.1")) == -9999.0);
    assert_number(whole, "choices.0.logprobs.text_offset.0", 0);
    assert_number(whole, "choices.0.logprobs.text_offset.1", 3); /* code points, not bytes */
    assert_true(json_real_value(json_object_get(at(whole, "choices.0.logprobs.top_logprobs.0"), "wo\xc3\xa9")) == -0.5);
    assert_true(json_real_value(json_object_get(at(whole, "choices.0.logprobs.top_logprobs.0"), "\xef\xbf\xbd")) ==
                -1.25);
    json_decref(whole);

    whole = firni_wire_chat.render(&answer);
    assert_text(whole, "choices.0.logprobs.content.0.token", "wo\xc3\xa9");
    assert_number(whole, "choices.0.logprobs.content.0.bytes.3", 0xa9);
    assert_number(whole, "choices.0.logprobs.content.0.top_logprobs.1.bytes.0", 0xff);
    assert_true(json_real_value(at(whole, "choices.0.logprobs.content.0.top_logprobs.1.logprob")) == -1.25);
    assert_number(whole, "choices.0.logprobs.content.1.bytes.0", 0xe2);
    json_decref(whole);
    firni_pieces_deinit(&answer.pieces);
    firni_tokenizer_destroy(tokenizer);
}

/* The JSON of the nth "data: " event; NULL for [DONE]. */
static json_t *event_of(const firni_buffer *out, uint32_t n)
{
    const char *line = out->data;
    for (uint32_t i = 0;; i++) {
        assert_non_null(line);
        assert_int_equal(strncmp(line, "data: ", 6), 0);
        const char *end = strstr(line, "\n\n");
        assert_non_null(end);
        if (i == n) {
            json_error_t error;
            json_t *json = json_loadb(line + 6, (size_t)(end - line) - 6, 0, &error);
            if (json == NULL) {
                assert_int_equal(strncmp(line, "data: [DONE]\n\n", 14), 0);
            }
            return json;
        }
        line = end + 2;
    }
}

static void streams_send_a_chunk_for_each_token_with_text(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = make_tokenizer();
    const firni_wire *wires[] = { &firni_wire_completions, &firni_wire_chat };
    for (size_t w = 0; w < 2; w++) {
        const bool chat = w == 1;
        firni_answer answer;
        start(&answer, tokenizer);
        answer.wants_usage = true;
        add(&answer, TOKEN_WORD, "wo\xc3\xa9", NULL);
        add(&answer, TOKEN_E2, "", NULL); /* held back: no chunk */
        firni_buffer out;
        firni_buffer_init(&out, NULL);
        wires[w]->stream_begin(&answer, &out);
        for (uint32_t i = 0; i < 2; i++) {
            const firni_piece piece = firni_pieces_at(&answer.pieces, i);
            wires[w]->stream_piece(&answer, &piece, &out);
        }
        wires[w]->stream_end(&answer, &out);
        assert_false(out.failed);
        uint32_t n = 0;
        json_t *event = NULL;
        if (chat) {
            event = event_of(&out, n++);
            assert_text(event, "object", "chat.completion.chunk");
            assert_text(event, "choices.0.delta.role", "assistant");
            json_decref(event);
        }
        event = event_of(&out, n++);
        assert_text(event, "id", "id-1");
        assert_text(event, chat ? "choices.0.delta.content" : "choices.0.text", "wo\xc3\xa9");
        assert_true(json_is_null(at(event, "choices.0.finish_reason")));
        json_decref(event);
        event = event_of(&out, n++);
        assert_text(event, "choices.0.finish_reason", "stop");
        json_decref(event);
        event = event_of(&out, n++);
        assert_int_equal(json_array_size(at(event, "choices")), 0);
        check_usage(event);
        json_decref(event);
        assert_null(event_of(&out, n));
        firni_buffer_deinit(&out);
        firni_pieces_deinit(&answer.pieces);
    }
    firni_tokenizer_destroy(tokenizer);
}

static void streamed_logprobs_are_sent_even_without_text(void **state)
{
    (void)state;
    firn_tokenizer *tokenizer = make_tokenizer();
    firni_answer answer;
    start(&answer, tokenizer);
    answer.wants_logprobs = true;
    answer.n_text_points = 9;
    add(&answer, TOKEN_WORD, "", &word_logprobs);
    const firni_piece piece = firni_pieces_at(&answer.pieces, 0);
    firni_buffer out;
    firni_buffer_init(&out, NULL);
    firni_wire_completions.stream_piece(&answer, &piece, &out);
    firni_wire_chat.stream_piece(&answer, &piece, &out);
    json_t *event = event_of(&out, 0);
    assert_number(event, "choices.0.logprobs.text_offset.0", 9);
    json_decref(event);
    event = event_of(&out, 1);
    assert_text(event, "choices.0.logprobs.content.0.token", "wo\xc3\xa9");
    json_decref(event);
    firni_buffer_deinit(&out);
    firni_pieces_deinit(&answer.pieces);
    firni_tokenizer_destroy(tokenizer);
}

static void strings_are_valid_utf8_whatever_comes(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *expected;
    } cases[] = {
        { "", "" },
        { "plain", "plain" },
        { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
        { "a\xff" "b", "a\xef\xbf\xbd" "b" },
        { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },                          /* overlong */
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },          /* surrogate */
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd" },                          /* cut */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *text = firni_valid_text(cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(json_string_value(text), cases[i].expected);
        json_decref(text);
    }
    test_rng rng = test_rng_create("wild bytes", 11);
    for (uint32_t i = 0; i < 20000; i++) {
        char bytes[24];
        const uint32_t len = test_rng_below(&rng, sizeof bytes);
        for (uint32_t b = 0; b < len; b++) {
            bytes[b] = (char)test_rng_below(&rng, 256);
        }
        json_t *text = firni_valid_text(bytes, len);
        json_t *checked = json_stringn(json_string_value(text), json_string_length(text)); /* refuses what is invalid */
        assert_non_null(checked);
        assert_int_equal(firni_utf8_count(bytes, len),
                         firni_utf8_count(json_string_value(text), json_string_length(text)));
        json_decref(checked);
        json_decref(text);
    }
}

static void refusals_map_to_the_status_that_clients_know(void **state)
{
    (void)state;
    static const struct {
        firn_status status;
        unsigned http;
        const char *code, *type, *param;
    } cases[] = {
        { FIRN_ERR_INVALID, 400, "invalid_value", "invalid_request_error", "" },
        { FIRN_ERR_UNSUPPORTED, 400, "unsupported", "invalid_request_error", "messages" },
        { FIRN_ERR_CAPACITY, 400, "context_length_exceeded", "invalid_request_error", "messages" },
        { FIRN_ERR_BUSY, 429, "queue_full", "rate_limit_error", "" },
        { FIRN_ERR_STATE, 503, "stopping", "server_error", "" },
        { FIRN_ERR_NO_MEMORY, 503, "no_memory", "server_error", "" },
        { FIRN_ERR_IO, 500, "io", "server_error", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firni_problem problem;
        const firn_error err = { .status = cases[i].status, .message = "said \xff so" };
        assert_false(firni_problem_from_error(&problem, &err, "messages"));
        assert_int_equal(problem.http_status, cases[i].http);
        assert_int_equal(problem.retry_after_s > 0, cases[i].http == 429);
        json_t *json = firni_problem_json(&problem);
        assert_text(json, "error.code", cases[i].code);
        assert_text(json, "error.type", cases[i].type);
        if (cases[i].param[0] == '\0') {
            assert_true(json_is_null(at(json, "error.param")));
        } else {
            assert_text(json, "error.param", cases[i].param);
        }
        if (cases[i].status != FIRN_ERR_STATE) {
            assert_text(json, "error.message", "said \xef\xbf\xbd so");
        }
        json_decref(json);
    }
}

static void pieces_survive_every_failed_allocation(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firni_pieces pieces;
        firni_pieces_init(&pieces, &world.env);
        bool ok = true;
        for (uint32_t i = 0; i < 100 && ok; i++) {
            const uint32_t before = pieces.n_tokens;
            ok = firni_pieces_add(&pieces, i, "some text", 9, &word_logprobs);
            assert_int_equal(pieces.n_tokens, before + ok);
        }
        for (uint32_t i = 0; i < pieces.n_tokens; i++) {
            const firni_piece piece = firni_pieces_at(&pieces, i);
            assert_int_equal(piece.token, i);
            assert_int_equal(piece.len_text, 9);
            assert_memory_equal(piece.text, "some text", 9);
        }
        const bool clean = !world.alloc_failed;
        assert_int_equal(ok, clean);
        firni_pieces_deinit(&pieces);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answers_have_text_usage_and_the_cache_explained),
        cmocka_unit_test(an_answer_without_tokens_is_an_empty_text),
        cmocka_unit_test(logprobs_take_the_form_of_each_format),
        cmocka_unit_test(streams_send_a_chunk_for_each_token_with_text),
        cmocka_unit_test(streamed_logprobs_are_sent_even_without_text),
        cmocka_unit_test(strings_are_valid_utf8_whatever_comes),
        cmocka_unit_test(refusals_map_to_the_status_that_clients_know),
        cmocka_unit_test(pieces_survive_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
