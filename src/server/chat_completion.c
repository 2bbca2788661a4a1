/*
 * The OpenAI chat completion format: POST /v1/chat/completions.
 *
 * Text only: contents are strings or arrays of text parts. Tools, images, audio and enforced response formats are
 * refused by name.
 */
#include <string.h>

#include "base/base_impl.h"
#include "server/json_field.h"
#include "server/transcript.h"

/* Concatenates the text parts of a content array behind *joined and advances it. ask->joined is as large as the whole
 * body's text, so that it always fits. */
static bool join_parts(const json_t *parts, size_t message, char **joined, firni_problem *problem)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type == NULL || strcmp(type, "text") != 0) {
            return firni_problem_field(problem, "unsupported", "messages",
                                       "messages[%zu].content[%zu]: only parts of type \"text\" are supported", message,
                                       i);
        }
        if (!json_is_string(text)) {
            return firni_problem_field(problem, "invalid_type", "messages",
                                       "messages[%zu].content[%zu].text must be a string", message, i);
        }
        memcpy(*joined, json_string_value(text), json_string_length(text));
        *joined += json_string_length(text);
    }
    *(*joined)++ = '\0';
    return true;
}

/* Bytes that join_parts() will write for all messages. */
static size_t joined_bytes(const json_t *messages)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *parts = json_object_get(json_array_get(messages, i), "content");
        if (!json_is_array(parts)) {
            continue;
        }
        for (size_t p = 0; p < json_array_size(parts); p++) {
            n_bytes += json_string_length(json_object_get(json_array_get(parts, p), "text"));
        }
        n_bytes++;
    }
    return n_bytes; /* less than the body's own size: cannot overflow */
}

/* The role as the tokenizer names it. Tool messages and the like are refused here: the templates have no place for
 * them. */
static bool parse_role(const json_t *message, size_t i, const char **out, firni_problem *problem)
{
    static const char *const roles[] = { "system", "user", "assistant" };
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL) {
        return firni_problem_field(problem, "invalid_type", "messages", "messages[%zu].role must be a string", i);
    }
    if (strcmp(role, "developer") == 0) { /* the API's newer word for the same role */
        role = "system";
    }
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        if (strcmp(role, roles[r]) == 0) {
            *out = roles[r];
            return true;
        }
    }
    return firni_problem_field(problem, "invalid_value", "messages",
                               "messages[%zu].role must be system, developer, user or assistant, not \"%.40s\"", i,
                               role);
}

static bool parse_message(const json_t *message, size_t i, char **joined, firn_chat_message *out,
                          firni_problem *problem)
{
    if (!json_is_object(message)) {
        return firni_problem_field(problem, "invalid_type", "messages", "messages[%zu] must be an object, not %s", i,
                                   firni_json_type_name(message));
    }
    if (!parse_role(message, i, &out->role, problem)) {
        return false;
    }
    const json_t *calls = firni_field(message, "tool_calls");
    if (calls != NULL && json_array_size(calls) > 0) {
        return firni_problem_field(problem, "unsupported", "messages", "messages[%zu].tool_calls is not supported", i);
    }
    const json_t *content = firni_field(message, "content");
    if (json_is_string(content)) {
        out->content = json_string_value(content);
        return true;
    }
    if (json_is_array(content)) {
        out->content = *joined;
        return join_parts(content, i, joined, problem);
    }
    return firni_problem_field(problem, "invalid_type", "messages",
                               "messages[%zu].content must be a string or an array of text parts%s%s", i,
                               content != NULL ? ", not " : "", content != NULL ? firni_json_type_name(content) : "");
}

/* The contents stay in the parsed body; only those that came in parts are copied, one after the other, into
 * ask->joined. */
static bool parse_messages(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    const json_t *messages = firni_field(body, "messages");
    if (messages == NULL) {
        return firni_problem_field(problem, "missing", "messages", "messages is required");
    }
    if (!json_is_array(messages)) {
        return firni_problem_field(problem, "invalid_type", "messages", "messages must be an array, not %s",
                                   firni_json_type_name(messages));
    }
    const size_t n_messages = json_array_size(messages);
    if (n_messages == 0 || n_messages > UINT32_MAX) {
        return firni_problem_field(problem, "invalid_value", "messages", "messages is empty");
    }
    ask->messages = firni_calloc(ask->env, n_messages, sizeof *ask->messages);
    ask->joined = firni_calloc(ask->env, joined_bytes(messages) + 1, 1);
    if (ask->messages == NULL || ask->joined == NULL) {
        return firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
    }
    char *joined = ask->joined;
    for (size_t i = 0; i < n_messages; i++) {
        if (!parse_message(json_array_get(messages, i), i, &joined, &ask->messages[i], problem)) {
            return false;
        }
    }
    ask->kind = FIRNI_PROMPT_MESSAGES;
    ask->n_messages = (uint32_t)n_messages;
    return true;
}

/* Fields of the API that would change the answer and that are not offered. */
static bool parse_refused(const json_t *body, firni_problem *problem)
{
    static const char *const lists[] = { "tools", "functions" };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const json_t *list = firni_field(body, lists[i]);
        if (list != NULL && !(json_is_array(list) && json_array_size(list) == 0)) {
            return firni_problem_field(problem, "unsupported", lists[i], "%s is not supported", lists[i]);
        }
    }
    const json_t *format = firni_field(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format != NULL && (type == NULL || strcmp(type, "text") != 0)) {
        return firni_problem_field(problem, "unsupported", "response_format",
                                   "response_format: only {\"type\": \"text\"} is supported");
    }
    return true;
}

static bool parse(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    int64_t max_tokens = 0; /* up to the context bound */
    int64_t n_top = 0;
    bool logprobs = false;
    if (!parse_messages(body, ask, problem) || !parse_refused(body, problem) ||
        !firni_field_integer(body, "max_tokens", 1, INT32_MAX, &max_tokens, problem) ||
        /* The newer name, after the older one: it wins when both are there. */
        !firni_field_integer(body, "max_completion_tokens", 1, INT32_MAX, &max_tokens, problem) ||
        !firni_field_bool(body, "logprobs", &logprobs, problem) ||
        !firni_field_integer(body, "top_logprobs", 0, FIRN_LOGPROBS_MAX, &n_top, problem)) {
        return false;
    }
    if (n_top > 0 && !logprobs) {
        return firni_problem_field(problem, "invalid_value", "top_logprobs",
                                   "top_logprobs is only allowed with \"logprobs\": true");
    }
    ask->max_tokens = (uint32_t)max_tokens;
    ask->n_logprobs = logprobs ? (uint32_t)n_top + 1 : 0;
    return true;
}

/* {"token", "logprob", "bytes"}: bytes are the token's own, which may be part of a character. */
static json_t *token_json(const firni_answer *answer, firn_token token, float logprob)
{
    uint32_t n_bytes = 0;
    const char *bytes = firn_tokenizer_piece(answer->tokenizer, token, &n_bytes);
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && bytes != NULL && i < n_bytes; i++) {
        (void)json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "token", firni_token_text(answer->tokenizer, token),
                     "logprob", firni_logprob_json(logprob), "bytes", list);
}

/* One generated token with its alternatives: an element of logprobs.content. */
static json_t *logprobs_json(const firni_answer *answer, const firn_logprobs *logprobs)
{
    json_t *object = token_json(answer, logprobs->token, logprobs->logprob);
    json_t *top = json_array();
    bool ok = object != NULL && top != NULL;
    for (uint32_t i = 0; ok && i < logprobs->n_top; i++) {
        ok = json_array_append_new(top, token_json(answer, logprobs->top_tokens[i], logprobs->top_logprobs[i])) == 0;
    }
    if (!ok || json_object_set(object, "top_logprobs", top) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(top);
    return object;
}

static json_t *render(const firni_answer *answer)
{
    json_t *logprobs = json_null();
    if (answer->wants_logprobs) {
        json_t *content = json_array();
        bool ok = content != NULL;
        for (uint32_t i = 0; ok && i < answer->pieces.n_tokens; i++) {
            const firni_piece piece = firni_pieces_at(&answer->pieces, i);
            ok = piece.logprobs == NULL || json_array_append_new(content, logprobs_json(answer, piece.logprobs)) == 0;
        }
        if (!ok) {
            json_decref(content);
            return NULL;
        }
        logprobs = json_pack("{s:o, s:n}", "content", content, "refusal");
    }
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:[{s:i, s:{s:s, s:o, s:n}, s:o, s:s}], s:o, s:o}",
                     "id", answer->id, "object", "chat.completion", "created", (json_int_t)answer->created_s,
                     "model", answer->model, "system_fingerprint", answer->fingerprint,
                     "choices", "index", 0,
                     "message", "role", "assistant",
                     "content", firni_valid_text(answer->pieces.text.data, answer->pieces.text.len), "refusal",
                     "logprobs", logprobs, "finish_reason", firni_finish_name(answer->finish),
                     "usage", firni_usage_json(&answer->usage), "firn", firni_cache_json(answer));
}

/* One chunk. Takes delta and logprobs (NULL: no memory). */
static void send_chunk(const firni_answer *answer, json_t *delta, json_t *logprobs, const char *finish,
                       firni_buffer *out)
{
    firni_sse_data_new(out, json_pack("{s:s, s:s, s:I, s:s, s:s, s:[{s:i, s:o, s:o, s:s?}]}",
                                      "id", answer->id, "object", "chat.completion.chunk",
                                      "created", (json_int_t)answer->created_s, "model", answer->model,
                                      "system_fingerprint", answer->fingerprint,
                                      "choices", "index", 0, "delta", delta, "logprobs", logprobs,
                                      "finish_reason", finish));
}

/* The first chunk names the role and has no text; it leaves with the first token, so that the first bytes a client sees
 * are not taken for one. */
static void stream_begin(const firni_answer *answer, firni_buffer *out)
{
    send_chunk(answer, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null(), NULL, out);
}

static void stream_piece(const firni_answer *answer, const firni_piece *piece, firni_buffer *out)
{
    json_t *logprobs = json_null();
    if (piece->logprobs != NULL) {
        logprobs = json_pack("{s:[o]}", "content", logprobs_json(answer, piece->logprobs));
    } else if (piece->len_text == 0) {
        return; /* text that is held back comes with a later token */
    }
    send_chunk(answer, json_pack("{s:o}", "content", firni_valid_text(piece->text, piece->len_text)), logprobs, NULL,
               out);
}

static void stream_end(const firni_answer *answer, firni_buffer *out)
{
    send_chunk(answer, json_object(), json_null(), firni_finish_name(answer->finish), out);
    if (answer->wants_usage) {
        firni_sse_data_new(out, firni_usage_chunk_json(answer, "chat.completion.chunk"));
    }
    firni_buffer_text(out, "data: [DONE]\n\n");
}

const firni_wire firni_wire_chat = {
    .name = "chat_completions",
    .id_prefix = "chatcmpl-",
    .prompt_param = "messages",
    .parse = parse,
    .render = render,
    .stream_begin = stream_begin,
    .stream_piece = stream_piece,
    .stream_end = stream_end,
};
