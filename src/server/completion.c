/*
 * The OpenAI text completion format: POST /v1/completions.
 *
 * prompt: a string, an array with one string, an array of token ids, or an array with one such array. One prompt and
 * one answer per request.
 */
#include <string.h>

#include "base/base_impl.h"
#include "server/json_field.h"
#include "server/transcript.h"

#define MAX_TOKENS_DEFAULT 16 /* the API's default */

/* Ids are checked for their form here; whether the vocabulary has them only the engine knows. */
static bool parse_token_ids(const json_t *array, firni_ask *ask, firni_problem *problem)
{
    const size_t n_tokens = json_array_size(array);
    if (n_tokens == 0) {
        return firni_problem_field(problem, "invalid_value", "prompt", "prompt is empty");
    }
    if (n_tokens >= UINT32_MAX) {
        return firni_problem_field(problem, "out_of_range", "prompt", "prompt has too many tokens");
    }
    ask->tokens = firni_calloc(ask->env, n_tokens, sizeof *ask->tokens);
    if (ask->tokens == NULL) {
        return firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
    }
    for (size_t i = 0; i < n_tokens; i++) {
        const json_t *item = json_array_get(array, i);
        int64_t id;
        if (!json_is_number(item)) {
            return firni_problem_field(problem, "invalid_type", "prompt", "prompt[%zu] must be a token id, not %s", i,
                                       firni_json_type_name(item));
        }
        if (!firni_json_whole(item, &id) || id < 0 || id >= UINT32_MAX) {
            return firni_problem_field(problem, "out_of_range", "prompt", "prompt[%zu] is not a token id", i);
        }
        ask->tokens[i] = (firn_token)id;
    }
    ask->kind = FIRNI_PROMPT_TOKENS;
    ask->n_tokens = (uint32_t)n_tokens;
    return true;
}

/* Tells the four shapes apart by the first element. Several prompts in one request would be several answers, each with
 * its own cache lookup: they are refused with the advice to send several requests. */
static bool parse_prompt(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    const json_t *prompt = firni_field(body, "prompt");
    if (prompt == NULL) {
        return firni_problem_field(problem, "missing", "prompt", "prompt is required");
    }
    if (json_is_array(prompt)) {
        const json_t *first = json_array_get(prompt, 0);
        if (first == NULL || json_is_number(first)) {
            return parse_token_ids(prompt, ask, problem);
        }
        if (json_array_size(prompt) > 1) {
            return firni_problem_field(problem, "unsupported", "prompt", "one prompt per request: send %zu requests",
                                       json_array_size(prompt));
        }
        if (json_is_array(first)) {
            return parse_token_ids(first, ask, problem);
        }
        prompt = first;
    }
    if (!json_is_string(prompt)) {
        return firni_problem_field(problem, "invalid_type", "prompt",
                                   "prompt must be a string or an array of token ids, not %s",
                                   firni_json_type_name(prompt));
    }
    ask->kind = FIRNI_PROMPT_TEXT;
    ask->text = json_string_value(prompt);
    ask->len_text = json_string_length(prompt);
    return true;
}

/* Fields of the API that would change the answer and that are not offered. */
static bool parse_refused(const json_t *body, firni_problem *problem)
{
    bool echo = false;
    int64_t best_of = 1;
    const char *suffix = NULL;
    if (!firni_field_bool(body, "echo", &echo, problem) ||
        !firni_field_integer(body, "best_of", INT64_MIN, INT64_MAX, &best_of, problem) ||
        !firni_field_string(body, "suffix", &suffix, problem)) {
        return false;
    }
    if (echo) {
        return firni_problem_field(problem, "unsupported", "echo", "echo is not supported");
    }
    if (best_of != 1) {
        return firni_problem_field(problem, "unsupported", "best_of", "best_of must be 1");
    }
    if (suffix != NULL && suffix[0] != '\0') {
        return firni_problem_field(problem, "unsupported", "suffix", "suffix is not supported");
    }
    return true;
}

static bool parse(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    int64_t max_tokens = MAX_TOKENS_DEFAULT;
    int64_t n_logprobs = -1;
    if (!parse_prompt(body, ask, problem) || !parse_refused(body, problem) ||
        !firni_field_integer(body, "max_tokens", 1, INT32_MAX, &max_tokens, problem) ||
        !firni_field_integer(body, "logprobs", 0, FIRN_LOGPROBS_MAX, &n_logprobs, problem) ||
        !firni_field_bool(body, "parse_special", &ask->parse_special, problem)) {
        return false;
    }
    ask->max_tokens = (uint32_t)max_tokens;
    ask->n_logprobs = (uint32_t)(n_logprobs + 1); /* logprobs 0: the chosen token's alone */
    return true;
}

/* Adds one token to the four parallel arrays of the format. Returns whether memory sufficed. */
static bool add_logprobs(const firni_answer *answer, const firn_logprobs *logprobs, size_t text_offset, json_t *object)
{
    json_t *top = json_object();
    bool ok = top != NULL;
    for (uint32_t i = 0; ok && i < logprobs->n_top; i++) {
        uint32_t n_bytes = 0;
        const char *bytes = firn_tokenizer_piece(answer->tokenizer, logprobs->top_tokens[i], &n_bytes);
        json_t *key = firni_valid_text(bytes != NULL ? bytes : "", n_bytes); /* valid UTF-8, as a key must be */
        ok = key != NULL && json_object_setn_new_nocheck(top, json_string_value(key), json_string_length(key),
                                                         firni_logprob_json(logprobs->top_logprobs[i])) == 0;
        json_decref(key);
    }
    ok = ok && json_array_append_new(json_object_get(object, "tokens"),
                                     firni_token_text(answer->tokenizer, logprobs->token)) == 0;
    ok = ok && json_array_append_new(json_object_get(object, "token_logprobs"),
                                     firni_logprob_json(logprobs->logprob)) == 0;
    ok = ok && json_array_append_new(json_object_get(object, "text_offset"),
                                     json_integer((json_int_t)text_offset)) == 0;
    ok = ok && json_array_append(json_object_get(object, "top_logprobs"), top) == 0;
    json_decref(top);
    return ok;
}

/* The format's four parallel arrays: element i of each belongs to token i. */
static json_t *empty_logprobs(void)
{
    return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

/* The object around one choice. Takes logprobs (NULL: no memory). */
static json_t *envelope(const firni_answer *answer, json_t *text, json_t *logprobs, const char *finish)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:[{s:i, s:o, s:o, s:s?}]}",
                     "id", answer->id, "object", "text_completion", "created", (json_int_t)answer->created_s,
                     "model", answer->model, "system_fingerprint", answer->fingerprint,
                     "choices", "index", 0, "text", text, "logprobs", logprobs, "finish_reason", finish);
}

/* Offsets count code points of the text, not bytes: that is what the API's clients index with. */
static json_t *render(const firni_answer *answer)
{
    json_t *logprobs = answer->wants_logprobs ? empty_logprobs() : json_null();
    bool ok = logprobs != NULL;
    size_t offset = 0;
    for (uint32_t i = 0; ok && answer->wants_logprobs && i < answer->pieces.n_tokens; i++) {
        const firni_piece piece = firni_pieces_at(&answer->pieces, i);
        ok = piece.logprobs == NULL || add_logprobs(answer, piece.logprobs, offset, logprobs);
        offset += firni_utf8_count(piece.text, piece.len_text);
    }
    if (!ok) {
        json_decref(logprobs);
        return NULL;
    }
    json_t *text = firni_valid_text(answer->pieces.text.data, answer->pieces.text.len);
    json_t *object = envelope(answer, text, logprobs, firni_finish_name(answer->finish));
    if (object != NULL && (json_object_set_new(object, "usage", firni_usage_json(&answer->usage)) != 0 ||
                           json_object_set_new(object, "firn", firni_cache_json(answer)) != 0)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void stream_begin(const firni_answer *answer, firni_buffer *out)
{
    (void)answer; /* the format has no opening event */
    (void)out;
}

static void stream_piece(const firni_answer *answer, const firni_piece *piece, firni_buffer *out)
{
    json_t *logprobs = json_null();
    if (piece->logprobs != NULL) {
        logprobs = empty_logprobs();
        if (logprobs == NULL || !add_logprobs(answer, piece->logprobs, answer->n_text_points, logprobs)) {
            json_decref(logprobs);
            out->failed = true;
            return;
        }
    } else if (piece->len_text == 0) {
        return; /* text that is held back comes with a later token */
    }
    firni_sse_data_new(out, envelope(answer, firni_valid_text(piece->text, piece->len_text), logprobs, NULL));
}

static void stream_end(const firni_answer *answer, firni_buffer *out)
{
    firni_sse_data_new(out, envelope(answer, json_string(""), json_null(), firni_finish_name(answer->finish)));
    if (answer->wants_usage) {
        firni_sse_data_new(out, firni_usage_chunk_json(answer, "text_completion"));
    }
    firni_buffer_text(out, "data: [DONE]\n\n");
}

const firni_wire firni_wire_completions = {
    .name = "completions",
    .id_prefix = "cmpl-",
    .prompt_param = "prompt",
    .parse = parse,
    .render = render,
    .stream_begin = stream_begin,
    .stream_piece = stream_piece,
    .stream_end = stream_end,
};
