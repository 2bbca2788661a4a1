/*
 * Request bodies, well-formed and hostile: what is taken, what is refused, and which field the refusal names.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/transcript.h"
#include "support/support.h"

typedef struct refusal {
    const char *body;
    const char *param;    /* the field that must be named; "" for none */
    const char *code;
    const char *said;     /* part of the message, or NULL */
} refusal;

static void check_refusals(const firni_wire *wire, const refusal *cases, size_t n_cases)
{
    for (size_t i = 0; i < n_cases; i++) {
        firni_ask ask;
        firni_problem problem = { 0 };
        if (firni_ask_parse(wire, cases[i].body, strlen(cases[i].body), NULL, NULL, &ask, &problem)) {
            fail_msg("accepted: %s", cases[i].body);
        }
        if (problem.http_status != 400 || strcmp(problem.param, cases[i].param) != 0 ||
            strcmp(problem.code, cases[i].code) != 0 ||
            (cases[i].said != NULL && strstr(problem.message, cases[i].said) == NULL)) {
            fail_msg("%s\n  gave %u param \"%s\" code \"%s\": %s", cases[i].body, problem.http_status, problem.param,
                     problem.code, problem.message);
        }
    }
}

static firni_ask parse_ok(const firni_wire *wire, const char *body)
{
    firni_ask ask;
    firni_problem problem = { 0 };
    if (!firni_ask_parse(wire, body, strlen(body), NULL, NULL, &ask, &problem)) {
        fail_msg("refused: %s: %s", body, problem.message);
    }
    return ask;
}

#define COMPLETION(rest) "{\"prompt\":\"a\"" rest "}"
#define CHAT(rest) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" rest "}"

static void a_body_that_is_no_json_object_is_refused(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { "", "", "invalid_json", NULL },
        { "{", "", "invalid_json", NULL },
        { "[]", "", "invalid_json", "an array" },
        { "\"prompt\"", "", "invalid_json", NULL },
        { "{\"prompt\":\"a\"} x", "", "invalid_json", NULL },
        { "{\"prompt\":\"a\",}", "", "invalid_json", NULL },
        { "{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "invalid_json", "duplicate" },
        { "{\"prompt\":\"\xff\"}", "", "invalid_json", NULL },
        { "{\"prompt\":\"\xed\xa0\x80\"}", "", "invalid_json", NULL },
        { "{\"prompt\":\"\\ud800\"}", "", "invalid_json", NULL },
        { "{\"prompt\":\"a\\u0000b\"}", "", "invalid_value", "U+0000" },
        { "{'prompt':'a'}", "", "invalid_json", NULL },
    };
    check_refusals(&firni_wire_completions, cases, sizeof cases / sizeof cases[0]);
}

static void deep_nesting_is_refused_and_does_not_exhaust_the_stack(void **state)
{
    (void)state;
    const size_t depth = 100000;
    char *body = malloc(2 * depth + 32);
    assert_non_null(body);
    size_t n = (size_t)sprintf(body, "{\"prompt\":");
    memset(body + n, '[', depth);
    memset(body + n + depth, ']', depth);
    n += 2 * depth;
    body[n++] = '}';
    firni_ask ask;
    firni_problem problem = { 0 };
    assert_false(firni_ask_parse(&firni_wire_completions, body, n, NULL, NULL, &ask, &problem));
    assert_int_equal(problem.http_status, 400);
    free(body);
}

static void numbers_that_are_none_or_too_large_name_their_field(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { COMPLETION(",\"temperature\":NaN"), "temperature", "invalid_json", NULL },
        { COMPLETION(",\"temperature\": Infinity"), "temperature", "invalid_json", NULL },
        { COMPLETION(",\"temperature\":-Infinity"), "temperature", "invalid_json", NULL },
        { COMPLETION(",\"temperature\" : 1e999"), "temperature", "out_of_range", "temperature" },
        { COMPLETION(",\"max_tokens\":99999999999999999999999"), "max_tokens", "invalid_value", "whole" },
        { COMPLETION(",\"seed\":9223372036854775808"), "seed", "invalid_value", NULL },
        { COMPLETION(",\"max_tokens\":-1"), "max_tokens", "out_of_range", "between 1 and" },
        { COMPLETION(",\"max_tokens\":0"), "max_tokens", "out_of_range", NULL },
        { COMPLETION(",\"max_tokens\":4294967296"), "max_tokens", "out_of_range", NULL },
        { COMPLETION(",\"max_tokens\":1.5"), "max_tokens", "invalid_value", NULL },
        { "{\"prompt\":[1,99999999999999999999]}", "prompt", "out_of_range", "prompt[1]" },
    };
    check_refusals(&firni_wire_completions, cases, sizeof cases / sizeof cases[0]);
}

static void a_huge_number_in_an_unknown_field_is_ignored(void **state)
{
    (void)state;
    firni_ask ask =
        parse_ok(&firni_wire_completions, COMPLETION(",\"x\":99999999999999999999,\"max_tokens\":7,\"seed\":5"));
    assert_int_equal(ask.max_tokens, 7);
    assert_true(ask.sampling.has_seed);
    assert_int_equal(ask.sampling.seed, 5);
    firni_ask_deinit(&ask);
}

static void ranges_are_checked(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { COMPLETION(",\"temperature\":-0.1"), "temperature", "out_of_range", NULL },
        { COMPLETION(",\"temperature\":10.5"), "temperature", "out_of_range", NULL },
        { COMPLETION(",\"top_p\":1.01"), "top_p", "out_of_range", NULL },
        { COMPLETION(",\"top_p\":0"), "top_p", "out_of_range", "above 0" },
        { COMPLETION(",\"top_p\":1e-50"), "top_p", "out_of_range", "above 0" },
        { COMPLETION(",\"min_p\":2"), "min_p", "out_of_range", NULL },
        { COMPLETION(",\"top_k\":-2"), "top_k", "out_of_range", NULL },
        { COMPLETION(",\"repetition_penalty\":0"), "repetition_penalty", "out_of_range", NULL },
        { COMPLETION(",\"presence_penalty\":2.5"), "presence_penalty", "out_of_range", NULL },
        { COMPLETION(",\"frequency_penalty\":-2.5"), "frequency_penalty", "out_of_range", NULL },
        { COMPLETION(",\"logprobs\":21"), "logprobs", "out_of_range", NULL },
        { COMPLETION(",\"n\":2"), "n", "unsupported", "one answer" },
        { COMPLETION(",\"n\":0"), "n", "unsupported", NULL },
        { COMPLETION(",\"best_of\":3"), "best_of", "unsupported", NULL },
        { COMPLETION(",\"logit_bias\":{\"5\":101}"), "logit_bias", "out_of_range", "token 5" },
        { COMPLETION(",\"logit_bias\":{\"5\":\"1\"}"), "logit_bias", "out_of_range", NULL },
        { COMPLETION(",\"logit_bias\":{\"five\":1}"), "logit_bias", "invalid_value", "five" },
        { COMPLETION(",\"logit_bias\":{\"-5\":1}"), "logit_bias", "invalid_value", NULL },
        { COMPLETION(",\"logit_bias\":{\"5 \":1}"), "logit_bias", "invalid_value", NULL },
        { COMPLETION(",\"logit_bias\":{\"4294967295\":1}"), "logit_bias", "invalid_value", NULL },
        { COMPLETION(",\"stop\":\"\""), "stop", "out_of_range", NULL },
        { COMPLETION(
              ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\","
              "\"15\",\"16\",\"17\"]"),
          "stop", "out_of_range", "at most 16" },
    };
    check_refusals(&firni_wire_completions, cases, sizeof cases / sizeof cases[0]);
}

static void wrong_types_name_their_field(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { "{}", "prompt", "missing", NULL },
        { "{\"prompt\":null}", "prompt", "missing", NULL },
        { "{\"prompt\":5}", "prompt", "invalid_type", "a number" },
        { "{\"prompt\":[]}", "prompt", "invalid_value", "empty" },
        { "{\"prompt\":[[]]}", "prompt", "invalid_value", "empty" },
        { "{\"prompt\":[\"a\",\"b\"]}", "prompt", "unsupported", "send 2 requests" },
        { "{\"prompt\":[1,\"b\"]}", "prompt", "invalid_type", "prompt[1]" },
        { "{\"prompt\":[-1]}", "prompt", "out_of_range", NULL },
        { "{\"prompt\":[1.5]}", "prompt", "out_of_range", NULL },
        { "{\"prompt\":[{\"a\":1}]}", "prompt", "invalid_type", NULL },
        { COMPLETION(",\"stream\":1"), "stream", "invalid_type", NULL },
        { COMPLETION(",\"stream\":\"true\""), "stream", "invalid_type", "a string" },
        { COMPLETION(",\"stream_options\":[]"), "stream_options", "invalid_type", NULL },
        { COMPLETION(",\"stream_options\":{\"include_usage\":true}"), "stream_options", "invalid_value", NULL },
        { COMPLETION(",\"stream\":true,\"stream_options\":{\"include_usage\":1}"), "include_usage", "invalid_type",
          NULL },
        { COMPLETION(",\"temperature\":\"0\""), "temperature", "invalid_type", "a string" },
        { COMPLETION(",\"temperature\":[0]"), "temperature", "invalid_type", NULL },
        { COMPLETION(",\"top_k\":true"), "top_k", "invalid_type", NULL },
        { COMPLETION(",\"seed\":\"1\""), "seed", "invalid_type", NULL },
        { COMPLETION(",\"stop\":5"), "stop", "invalid_type", NULL },
        { COMPLETION(",\"stop\":[\"a\",5]"), "stop", "invalid_type", NULL },
        { COMPLETION(",\"logit_bias\":[1]"), "logit_bias", "invalid_type", NULL },
        { COMPLETION(",\"logprobs\":true"), "logprobs", "invalid_type", NULL },
        { COMPLETION(",\"model\":5"), "model", "invalid_type", NULL },
        { COMPLETION(",\"cache_namespace\":5"), "cache_namespace", "invalid_type", NULL },
        { COMPLETION(",\"echo\":true"), "echo", "unsupported", NULL },
        { COMPLETION(",\"suffix\":\"x\""), "suffix", "unsupported", NULL },
    };
    check_refusals(&firni_wire_completions, cases, sizeof cases / sizeof cases[0]);
}

static void chat_messages_are_checked(void **state)
{
    (void)state;
#define MESSAGE(text) "{\"messages\":[" text "]}"
    static const refusal cases[] = {
        { "{}", "messages", "missing", NULL },
        { "{\"messages\":\"hi\"}", "messages", "invalid_type", NULL },
        { "{\"messages\":[]}", "messages", "invalid_value", "empty" },
        { MESSAGE("5"), "messages", "invalid_type", "messages[0]" },
        { MESSAGE("{\"content\":\"a\"}"), "messages", "invalid_type", "role" },
        { MESSAGE("{\"role\":\"king\",\"content\":\"a\"}"), "messages", "invalid_value", "king" },
        { MESSAGE("{\"role\":\"user\"}"), "messages", "invalid_type", "content" },
        { MESSAGE("{\"role\":\"user\",\"content\":5}"), "messages", "invalid_type", "a number" },
        { MESSAGE("{\"role\":\"user\",\"content\":[5]}"), "messages", "unsupported", NULL },
        { MESSAGE("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}"), "messages", "unsupported", "text" },
        { MESSAGE("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}"), "messages", "invalid_type",
          NULL },
        { MESSAGE("{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}"), "messages", "unsupported", NULL },
        { CHAT(",\"tools\":[{}]"), "tools", "unsupported", NULL },
        { CHAT(",\"response_format\":{\"type\":\"json_object\"}"), "response_format", "unsupported", NULL },
        { CHAT(",\"logprobs\":1"), "logprobs", "invalid_type", NULL },
        { CHAT(",\"top_logprobs\":3"), "top_logprobs", "invalid_value", NULL },
        { CHAT(",\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "out_of_range", NULL },
        { CHAT(",\"max_completion_tokens\":0"), "max_completion_tokens", "out_of_range", NULL },
    };
    check_refusals(&firni_wire_chat, cases, sizeof cases / sizeof cases[0]);
}

static void the_apis_defaults_hold(void **state)
{
    (void)state;
    firni_ask ask = parse_ok(&firni_wire_completions, COMPLETION(""));
    assert_int_equal(ask.kind, FIRNI_PROMPT_TEXT);
    assert_string_equal(ask.text, "a");
    assert_int_equal(ask.max_tokens, 16);
    assert_true(ask.sampling.temperature == 1.0f);
    assert_int_equal(ask.n_logprobs, 0);
    assert_false(ask.stream || ask.include_usage || ask.no_cache || ask.ignore_end || ask.parse_special);
    assert_false(ask.sampling.has_seed);
    assert_string_equal(ask.ns, "");
    firni_ask_deinit(&ask);
    ask = parse_ok(&firni_wire_chat, CHAT(""));
    assert_int_equal(ask.max_tokens, 0);
    firni_ask_deinit(&ask);
}

static void every_field_arrives(void **state)
{
    (void)state;
    firni_ask ask = parse_ok(
        &firni_wire_completions,
        COMPLETION(
            ",\"model\":\"any\",\"user\":\"u\",\"n\":1,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
            "\"temperature\":0.5,\"top_k\":40,\"top_p\":0.9,\"min_p\":0.05,\"repetition_penalty\":1.1,"
            "\"presence_penalty\":-0.5,\"frequency_penalty\":0.25,\"logit_bias\":{\"7\":-100,\"8\":1.5},\"seed\":-3,"
            "\"stop\":[\"x\",\"yz\"],\"max_tokens\":5.0,\"logprobs\":3,\"cache_namespace\":\"ns\","
            "\"ignore_eos\":true,\"cache_prompt\":false,\"parse_special\":true"));
    assert_true(ask.stream && ask.include_usage && ask.ignore_end && ask.no_cache && ask.parse_special);
    assert_true(ask.sampling.temperature == 0.5f);
    assert_int_equal(ask.sampling.top_k, 40);
    assert_true(ask.sampling.top_p == 0.9f && ask.sampling.min_p == 0.05f);
    assert_true(ask.sampling.repetition_penalty == 1.1f);
    assert_true(ask.sampling.presence_penalty == -0.5f && ask.sampling.frequency_penalty == 0.25f);
    assert_int_equal(ask.sampling.n_biases, 2);
    assert_int_equal(ask.sampling.biases[0].token, 7);
    assert_true(ask.sampling.biases[0].bias == -100.0f && ask.sampling.biases[1].bias == 1.5f);
    assert_true(ask.sampling.has_seed);
    assert_true(ask.sampling.seed == (uint64_t)-3);
    assert_int_equal(ask.n_stops, 2);
    assert_string_equal(ask.stops[1], "yz");
    assert_int_equal(ask.max_tokens, 5);
    assert_int_equal(ask.n_logprobs, 4);
    assert_string_equal(ask.ns, "ns");
    firni_ask_deinit(&ask);
}

static void null_means_absent(void **state)
{
    (void)state;
    firni_ask ask = parse_ok(&firni_wire_completions,
        COMPLETION(",\"temperature\":null,\"top_p\":null,\"stop\":null,\"logit_bias\":null,\"seed\":null,\"n\":null,"
                   "\"stream\":null,\"stream_options\":null,\"logprobs\":null,\"max_tokens\":null,\"suffix\":null"));
    assert_true(ask.sampling.temperature == 1.0f);
    assert_int_equal(ask.max_tokens, 16);
    assert_false(ask.sampling.has_seed);
    firni_ask_deinit(&ask);
}

static void prompts_of_all_shapes_arrive(void **state)
{
    (void)state;
    firni_ask ask = parse_ok(&firni_wire_completions, "{\"prompt\":[\"one\"]}");
    assert_string_equal(ask.text, "one");
    firni_ask_deinit(&ask);
    ask = parse_ok(&firni_wire_completions, "{\"prompt\":[3,4,5]}");
    assert_int_equal(ask.kind, FIRNI_PROMPT_TOKENS);
    assert_int_equal(ask.n_tokens, 3);
    assert_int_equal(ask.tokens[2], 5);
    firni_ask_deinit(&ask);
    ask = parse_ok(&firni_wire_completions, "{\"prompt\":[[6,7]]}");
    assert_int_equal(ask.n_tokens, 2);
    assert_int_equal(ask.tokens[0], 6);
    firni_ask_deinit(&ask);
    ask =
        parse_ok(&firni_wire_chat, "{\"messages\":[{\"role\":\"developer\",\"content\":\"be\"},"
                                   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"he\"},"
                                   "{\"type\":\"text\",\"text\":\"llo\"}]},{\"role\":\"assistant\",\"content\":[]}]}");
    assert_int_equal(ask.n_messages, 3);
    assert_string_equal(ask.messages[0].role, "system");
    assert_string_equal(ask.messages[0].content, "be");
    assert_string_equal(ask.messages[1].content, "hello");
    assert_string_equal(ask.messages[2].content, "");
    firni_ask_deinit(&ask);
}

static void a_namespace_from_header_and_body_must_agree(void **state)
{
    (void)state;
    firni_ask ask;
    firni_problem problem = { 0 };
    const char *plain = COMPLETION("");
    const char *with = COMPLETION(",\"cache_namespace\":\"b\"");
    assert_true(firni_ask_parse(&firni_wire_completions, plain, strlen(plain), "a", NULL, &ask, &problem));
    assert_string_equal(ask.ns, "a");
    firni_ask_deinit(&ask);
    assert_true(firni_ask_parse(&firni_wire_completions, with, strlen(with), "b", NULL, &ask, &problem));
    assert_string_equal(ask.ns, "b");
    firni_ask_deinit(&ask);
    assert_false(firni_ask_parse(&firni_wire_completions, with, strlen(with), "a", NULL, &ask, &problem));
    assert_string_equal(problem.param, "cache_namespace");
    char longest[FIRN_NAMESPACE_BYTES_MAX + 2];
    memset(longest, 'n', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_false(firni_ask_parse(&firni_wire_completions, plain, strlen(plain), longest, NULL, &ask, &problem));
    longest[FIRN_NAMESPACE_BYTES_MAX] = '\0';
    assert_true(firni_ask_parse(&firni_wire_completions, plain, strlen(plain), longest, NULL, &ask, &problem));
    assert_int_equal(strlen(ask.ns), FIRN_NAMESPACE_BYTES_MAX);
    firni_ask_deinit(&ask);
}

/* Any cut of a valid body, and any one byte of it changed, is accepted or refused with a 400: never anything else. */
static void mangled_bodies_are_taken_or_refused(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\\u00e9\"}]}],\"stop\":[\"a\"],"
        "\"logit_bias\":{\"5\":1e1},\"seed\":12,\"logprobs\":true,\"top_logprobs\":2}",
        "{\"prompt\":[1,2,3],\"temperature\":0.5,\"max_tokens\":10,\"stop\":\"x\",\"cache_namespace\":\"n\"}",
    };
    const firni_wire *wires[] = { &firni_wire_chat, &firni_wire_completions };
    test_rng rng = test_rng_create("mangled bodies", 7);
    for (size_t b = 0; b < 2; b++) {
        const size_t len = strlen(bodies[b]);
        char copy[512];
        for (size_t i = 0; i < 20000; i++) {
            memcpy(copy, bodies[b], len);
            const size_t n_bytes = i <= len ? i : len;
            for (uint32_t change = 0; i > len && change <= i % 3; change++) {
                copy[test_rng_below(&rng, (uint32_t)len)] = (char)test_rng_below(&rng, 256);
            }
            firni_ask ask;
            firni_problem problem = { 0 };
            if (firni_ask_parse(wires[b], copy, n_bytes, NULL, NULL, &ask, &problem)) {
                firni_ask_deinit(&ask);
            } else {
                assert_int_equal(problem.http_status, 400);
                assert_true(problem.message[0] != '\0');
                json_t *json = firni_problem_json(&problem);
                assert_non_null(json);
                json_decref(json);
            }
        }
    }
}

static void parsing_survives_every_failed_allocation(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        CHAT(",\"logit_bias\":{\"5\":1}"), "{\"prompt\":[1,2,3],\"logit_bias\":{\"5\":1}}",
    };
    const firni_wire *wires[] = { &firni_wire_chat, &firni_wire_completions };
    for (size_t b = 0; b < 2; b++) {
        uint64_t n_refused = 0;
        for (uint64_t n = 1;; n++) {
            test_world world;
            test_world_init(&world);
            world.fail_alloc_at = n;
            firni_ask ask;
            firni_problem problem = { 0 };
            const bool ok = firni_ask_parse(wires[b], bodies[b], strlen(bodies[b]), NULL, &world.env, &ask, &problem);
            const bool clean = !world.alloc_failed;
            assert_int_equal(ok, clean);
            if (ok) {
                firni_ask_deinit(&ask);
            } else {
                assert_int_equal(problem.http_status, 503);
                n_refused++;
            }
            test_world_deinit(&world);
            if (clean) {
                break;
            }
        }
        assert_true(n_refused >= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_that_is_no_json_object_is_refused),
        cmocka_unit_test(deep_nesting_is_refused_and_does_not_exhaust_the_stack),
        cmocka_unit_test(numbers_that_are_none_or_too_large_name_their_field),
        cmocka_unit_test(a_huge_number_in_an_unknown_field_is_ignored),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(wrong_types_name_their_field),
        cmocka_unit_test(chat_messages_are_checked),
        cmocka_unit_test(the_apis_defaults_hold),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(null_means_absent),
        cmocka_unit_test(prompts_of_all_shapes_arrive),
        cmocka_unit_test(a_namespace_from_header_and_body_must_agree),
        cmocka_unit_test(mangled_bodies_are_taken_or_refused),
        cmocka_unit_test(parsing_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
