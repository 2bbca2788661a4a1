/*
 * From a request body to a firni_ask: the JSON itself, and the fields that all wire formats share. A format's own
 * fields are in its file. Unknown fields are ignored; a known field that would change the answer and that Firn can not
 * honour is refused rather than ignored.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/json_field.h"
#include "server/transcript.h"

#define TOP_K_MAX 1000000

void firni_ask_init(firni_ask *ask, const firn_env *env)
{
    *ask = (firni_ask){ .env = env };
}

void firni_ask_deinit(firni_ask *ask)
{
    json_decref(ask->body);
    firni_free(ask->env, ask->joined);
    firni_free(ask->env, ask->tokens);
    firni_free(ask->env, ask->messages);
    firni_free(ask->env, ask->biases);
    *ask = (firni_ask){ .env = ask->env };
}

static bool no_memory(firni_problem *problem)
{
    return firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
}

/* The key of the member whose value, a number or a bare word (NaN, Infinity), ends shortly before body[at]: looks back
 * over the value's characters and the colon. Used only to name the field in a message; leaves "" when it can
 * not tell. */
static void key_before(const char *body, size_t at, char *key, size_t key_bytes)
{
    key[0] = '\0';
    while (at > 0 && (isalnum((unsigned char)body[at - 1]) || strchr("+-. \t\r\n", body[at - 1]) != NULL)) {
        at--;
    }
    if (at == 0 || body[at - 1] != ':') {
        return;
    }
    at--;
    while (at > 0 && strchr(" \t\r\n", body[at - 1]) != NULL) {
        at--;
    }
    if (at == 0 || body[at - 1] != '"') {
        return;
    }
    const size_t end = --at;
    while (at > 0 && body[at - 1] != '"') {
        at--;
    }
    if (at > 0 && end - at < key_bytes) {
        memcpy(key, body + at, end - at);
        key[end - at] = '\0';
    }
}

/* Duplicate keys are refused: two readers of such a body would see two different requests. */
static json_t *parse_body(const char *body, size_t n_bytes, firni_problem *problem)
{
    json_error_t error;
    json_t *root = json_loadb(body, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        /* An integer beyond 64 bits: once more with reals, so that the check of its own field names it, or that it is
         * ignored when nobody reads it. */
        root = json_loadb(body, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    }
    if (root == NULL) {
        char key[48] = "";
        const size_t at = error.position > 0 && (size_t)error.position <= n_bytes ? (size_t)error.position : 0;
        key_before(body, at, key, sizeof key);
        switch (json_error_code(&error)) {
        case json_error_numeric_overflow:
            (void)firni_problem_field(problem, "out_of_range", key, "%s%sa number is too large (line %d, column %d)",
                                      key, key[0] != '\0' ? ": " : "", error.line, error.column);
            break;
        case json_error_null_character:
        case json_error_null_byte_in_key:
            (void)firni_problem_field(problem, "invalid_value", NULL,
                                      "strings may not contain the character U+0000 (line %d, column %d)", error.line,
                                      error.column);
            break;
        case json_error_out_of_memory: (void)no_memory(problem); break;
        default:
            (void)firni_problem_field(problem, "invalid_json", key,
                                      "the body is not valid JSON: %s (line %d, column %d)", error.text, error.line,
                                      error.column);
        }
        return NULL;
    }
    if (!json_is_object(root)) {
        (void)firni_problem_field(problem, "invalid_json", NULL, "the body must be a JSON object, not %s",
                                  firni_json_type_name(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

/* Ranges are those of firn/sampling.h, checked here so that a refusal names the request's field. */
static bool parse_sampling(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    firn_sampling *sampling = &ask->sampling;
    sampling->temperature = 1.0f; /* the API's default; all-zero would be greedy */
    int64_t top_k = 0, seed = 0;
    if (!firni_field_number(body, "temperature", 0.0, 10.0, &sampling->temperature, problem) ||
        !firni_field_number(body, "top_p", 0.0, 1.0, &sampling->top_p, problem) ||
        !firni_field_number(body, "min_p", 0.0, 1.0, &sampling->min_p, problem) ||
        !firni_field_number(body, "repetition_penalty", 0.0, 10.0, &sampling->repetition_penalty, problem) ||
        !firni_field_number(body, "presence_penalty", -2.0, 2.0, &sampling->presence_penalty, problem) ||
        !firni_field_number(body, "frequency_penalty", -2.0, 2.0, &sampling->frequency_penalty, problem) ||
        !firni_field_integer(body, "top_k", -1, TOP_K_MAX, &top_k, problem) ||
        !firni_field_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, problem)) {
        return false;
    }
    /* An explicit 0 is out of range for these two: the engine's 0 means "off", which is not what was asked for. */
    static const char *const above_zero[] = { "top_p", "repetition_penalty" };
    for (size_t i = 0; i < sizeof above_zero / sizeof above_zero[0]; i++) {
        const json_t *value = firni_field(body, above_zero[i]);
        if (value != NULL && (float)json_number_value(value) <= 0.0f) {
            return firni_problem_field(problem, "out_of_range", above_zero[i], "%s must be above 0", above_zero[i]);
        }
    }
    sampling->top_k = top_k > 0 ? (uint32_t)top_k : 0; /* -1 is the other common spelling of "off" */
    sampling->has_seed = firni_field(body, "seed") != NULL;
    sampling->seed = (uint64_t)seed;
    return true;
}

/* {"1234": -100, ...}: token ids as strings, as the API has it. */
static bool parse_logit_bias(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    json_t *biases = firni_field(body, "logit_bias");
    if (biases == NULL) {
        return true;
    }
    if (!json_is_object(biases)) {
        return firni_problem_field(problem, "invalid_type", "logit_bias",
                                   "logit_bias must be an object of token ids and numbers, not %s",
                                   firni_json_type_name(biases));
    }
    const size_t n_biases = json_object_size(biases);
    if (n_biases > FIRNI_BIASES_MAX) {
        return firni_problem_field(problem, "out_of_range", "logit_bias",
                                   "logit_bias may have at most %u entries, not %zu", FIRNI_BIASES_MAX, n_biases);
    }
    if (n_biases == 0) {
        return true;
    }
    ask->biases = firni_calloc(ask->env, n_biases, sizeof *ask->biases);
    if (ask->biases == NULL) {
        return no_memory(problem);
    }
    const char *key;
    json_t *value;
    uint32_t n = 0;
    json_object_foreach(biases, key, value)
    {
        char *end = NULL;
        errno = 0;
        const unsigned long long token = strtoull(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end != '\0' || errno != 0 || token >= UINT32_MAX) {
            return firni_problem_field(problem, "invalid_value", "logit_bias",
                                       "logit_bias: \"%.40s\" is not a token id", key);
        }
        const double bias = json_number_value(value); /* 0 when it is no number */
        if (!json_is_number(value) || !(bias >= -100.0 && bias <= 100.0)) {
            return firni_problem_field(problem, "out_of_range", "logit_bias",
                                       "logit_bias: the bias of token %llu must be a number between -100 and 100",
                                       token);
        }
        ask->biases[n++] = (firn_logit_bias){ .token = (firn_token)token, .bias = (float)bias };
    }
    ask->sampling.biases = ask->biases;
    ask->sampling.n_biases = n;
    return true;
}

/* An empty stop string would end every answer before it begins. */
static bool add_stop(const json_t *value, firni_ask *ask, firni_problem *problem)
{
    if (!json_is_string(value)) {
        return firni_problem_field(problem, "invalid_type", "stop",
                                   "stop must be a string or an array of strings, not %s", firni_json_type_name(value));
    }
    const size_t n_bytes = json_string_length(value);
    if (n_bytes == 0 || n_bytes > FIRNI_STOP_BYTES_MAX) {
        return firni_problem_field(problem, "out_of_range", "stop", "a stop string must have 1 to %u bytes, not %zu",
                                   FIRNI_STOP_BYTES_MAX, n_bytes);
    }
    ask->stops[ask->n_stops++] = json_string_value(value);
    return true;
}

static bool parse_stop(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    const json_t *stop = firni_field(body, "stop");
    if (stop == NULL) {
        return true;
    }
    if (!json_is_array(stop)) {
        return add_stop(stop, ask, problem);
    }
    const size_t n_stops = json_array_size(stop);
    if (n_stops > FIRNI_STOPS_MAX) {
        return firni_problem_field(problem, "out_of_range", "stop", "stop may hold at most %u strings, not %zu",
                                   FIRNI_STOPS_MAX, n_stops);
    }
    for (size_t i = 0; i < n_stops; i++) {
        if (!add_stop(json_array_get(stop, i), ask, problem)) {
            return false;
        }
    }
    return true;
}

/* The namespace may come from the body or from a header (which a gateway can set). Neither may override the other: the
 * header would be no fence otherwise. */
static bool parse_namespace(const json_t *body, const char *ns_header, firni_ask *ask, firni_problem *problem)
{
    const char *ns = ns_header;
    const char *ns_body = NULL;
    if (!firni_field_string(body, "cache_namespace", &ns_body, problem)) {
        return false;
    }
    if (ns_body != NULL && ns_header != NULL && strcmp(ns_body, ns_header) != 0) {
        return firni_problem_field(problem, "invalid_value", "cache_namespace",
                                   "cache_namespace and the X-Firn-Namespace header differ");
    }
    if (ns_body != NULL) {
        ns = ns_body;
    }
    if (ns == NULL) {
        return true;
    }
    const size_t n_bytes = strlen(ns);
    if (n_bytes > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_problem_field(problem, "out_of_range", "cache_namespace",
                                   "a cache namespace may have at most %d bytes, not %zu", FIRN_NAMESPACE_BYTES_MAX,
                                   n_bytes);
    }
    memcpy(ask->ns, ns, n_bytes + 1);
    return true;
}

static bool parse_stream(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    if (!firni_field_bool(body, "stream", &ask->stream, problem)) {
        return false;
    }
    const json_t *options = firni_field(body, "stream_options");
    if (options == NULL) {
        return true;
    }
    if (!json_is_object(options)) {
        return firni_problem_field(problem, "invalid_type", "stream_options",
                                   "stream_options must be an object, not %s", firni_json_type_name(options));
    }
    if (!ask->stream) {
        return firni_problem_field(problem, "invalid_value", "stream_options",
                                   "stream_options is only allowed with \"stream\": true");
    }
    return firni_field_bool(options, "include_usage", &ask->include_usage, problem);
}

/* {"firn": {"cache": {"read": bool, "store": "none"|"ram"|"disk", "priority": int}}} */
static bool parse_cache(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    const json_t *firn = firni_field(body, "firn");
    const json_t *cache = json_is_object(firn) ? firni_field(firn, "cache") : NULL;
    if ((firn != NULL && !json_is_object(firn)) || (cache != NULL && !json_is_object(cache))) {
        return firni_problem_field(problem, "invalid_type", "firn.cache", "firn and firn.cache must be objects");
    }
    if (cache == NULL) {
        return true;
    }
    static const struct {
        const char *name;
        firn_store_where where;
    } stores[] = { { "disk", FIRN_STORE_DISK }, { "ram", FIRN_STORE_RAM }, { "none", FIRN_STORE_NONE } };
    bool read = true;
    const char *store = "disk";
    int64_t priority = 0;
    if (!firni_field_bool(cache, "read", &read, problem) || !firni_field_string(cache, "store", &store, problem) ||
        !firni_field_integer(cache, "priority", FIRN_PRIORITY_MIN, FIRN_PRIORITY_MAX, &priority, problem)) {
        return false;
    }
    ask->cache = (firn_cache_policy){ .no_read = !read, .priority = (int)priority };
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        if (strcmp(store, stores[i].name) == 0) {
            ask->cache.store = stores[i].where;
            return true;
        }
    }
    return firni_problem_field(problem, "invalid_value", "firn.cache.store",
                               "firn.cache.store must be \"none\", \"ram\" or \"disk\", not \"%.40s\"", store);
}

/* One name that may come as a field or as a header; `out` holds what the field said. */
static bool take_header(char *out, size_t out_bytes, const char *field, const char *header, firni_problem *problem)
{
    if (header == NULL) {
        return true;
    }
    if (out[0] != '\0' && strcmp(out, header) != 0) {
        return firni_problem_field(problem, "invalid_value", field, "%s and its header differ", field);
    }
    if (strlen(header) >= out_bytes) {
        return firni_problem_field(problem, "out_of_range", field, "%s may have at most %zu bytes", field,
                                   out_bytes - 1);
    }
    memcpy(out, header, strlen(header) + 1);
    return true;
}

bool firni_ask_take_headers(firni_ask *ask, const char *session, const char *request_id, firni_problem *problem)
{
    return take_header(ask->session, sizeof ask->session, "firn_session", session, problem) &&
           take_header(ask->request_id, sizeof ask->request_id, "firn_request_id", request_id, problem);
}

static bool parse_names(const json_t *body, firni_ask *ask, firni_problem *problem)
{
    const char *session = NULL, *request_id = NULL;
    return firni_field_string(body, "firn_session", &session, problem) &&
           firni_field_string(body, "firn_request_id", &request_id, problem) &&
           firni_ask_take_headers(ask, session, request_id, problem);
}

/* The fields that mean the same in every format. */
static bool parse_common(const json_t *body, const char *ns_header, firni_ask *ask, firni_problem *problem)
{
    int64_t n = 1;
    const char *model = NULL; /* one model is served; any name is accepted, and the answer says which it was */
    bool cache_prompt = true;
    if (!firni_field_string(body, "model", &model, problem) ||
        !firni_field_integer(body, "n", INT64_MIN, INT64_MAX, &n, problem)) {
        return false;
    }
    if (n != 1) {
        return firni_problem_field(problem, "unsupported", "n",
                                   "n must be 1: one answer per request; send more requests for more answers");
    }
    if (!parse_stream(body, ask, problem) || !parse_sampling(body, ask, problem) ||
        !parse_logit_bias(body, ask, problem) || !parse_stop(body, ask, problem) ||
        !parse_namespace(body, ns_header, ask, problem) || !parse_cache(body, ask, problem) ||
        !parse_names(body, ask, problem) ||
        !firni_field_bool(body, "ignore_eos", &ask->ignore_end, problem) ||
        !firni_field_bool(body, "cache_prompt", &cache_prompt, problem)) {
        return false;
    }
    ask->no_cache = !cache_prompt;
    return true;
}

bool firni_ask_parse(const firni_wire *wire, const char *body, size_t n_bytes, const char *ns_header,
                     const firn_env *env, firni_ask *ask, firni_problem *problem)
{
    firni_ask_init(ask, env);
    ask->body = parse_body(body, n_bytes, problem);
    if (ask->body == NULL || !wire->parse(ask->body, ask, problem) ||
        !parse_common(ask->body, ns_header, ask, problem)) {
        firni_ask_deinit(ask);
        return false;
    }
    return true;
}
