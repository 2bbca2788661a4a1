/*
 * One HTTP request: which handler, what is refused before it, and its body within the limits.
 *
 * 1. Headers are there: route, method, key, content type, announced length. A refusal found here is sent after the body
 *    was read and dropped, so that a client which is still sending gets to read it; at once when the client waits for
 *    "100 Continue" or announces far too much.
 * 2. The body arrives in parts.
 * 3. The body is complete: the refusal, or the handler.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base_impl.h"
#include "server/serve_state.h"

/* Bytes beyond the limit that are still read and dropped, as a multiple of the limit. */
#define DISCARD_FACTOR 4u

static const firni_route routes[] = {
    { .path = "/", .label = FIRNI_ROUTE_INDEX, .handle = firni_handle_index },
    { .path = "/health", .label = FIRNI_ROUTE_HEALTH, .is_open = true, .handle = firni_handle_health },
    { .path = "/metrics", .label = FIRNI_ROUTE_METRICS, .handle = firni_handle_metrics },
    { .path = "/v1/models", .label = FIRNI_ROUTE_MODELS, .handle = firni_handle_models },
    { .path = "/v1/models/", .label = FIRNI_ROUTE_MODELS, .handle = firni_handle_model },
    { .path = "/v1/completions", .label = FIRNI_ROUTE_COMPLETIONS, .is_post = true,
      .handle = firni_handle_completions },
    { .path = "/v1/chat/completions", .label = FIRNI_ROUTE_CHAT, .is_post = true, .handle = firni_handle_chat },
    { .path = "/v1/firn/flush", .label = FIRNI_ROUTE_KEEP, .is_post = true, .handle = firni_handle_flush },
    { .path = "/v1/firn/warm", .label = FIRNI_ROUTE_KEEP, .is_post = true, .handle = firni_handle_warm },
    { .path = "/v1/firn/pins", .label = FIRNI_ROUTE_KEEP, .handle = firni_handle_pins },
    { .path = "/v1/firn/pins/", .label = FIRNI_ROUTE_KEEP, .takes_only_delete = true, .handle = firni_handle_pin },
    { .path = "/v1/firn/sessions", .label = FIRNI_ROUTE_SESSIONS, .handle = firni_handle_sessions },
    { .path = "/v1/firn/sessions/import", .label = FIRNI_ROUTE_SESSIONS, .is_post = true, .is_binary = true,
      .handle = firni_handle_import },
    { .path = "/v1/firn/sessions/", .label = FIRNI_ROUTE_SESSIONS, .takes_delete = true,
      .handle = firni_handle_session },
};

const char *firni_route_methods(const firni_route *route)
{
    return route->is_post             ? "POST, OPTIONS"
           : route->takes_only_delete ? "DELETE, OPTIONS"
           : route->takes_delete      ? "GET, HEAD, DELETE, OPTIONS"
                                      : "GET, HEAD, OPTIONS";
}

static uint64_t body_bytes_max(const firni_exchange *exchange)
{
    const firni_server_options *options = &exchange->server->options;
    return exchange->route != NULL && exchange->route->is_binary ? options->import_bytes_max : options->body_bytes_max;
}

/* Exact paths; some routes take a name behind their slash. A table of fourteen needs no better search. */
static const firni_route *find_route(const char *url, const char **rest)
{
    *rest = "";
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const size_t len = strlen(routes[i].path);
        if (strcmp(url, routes[i].path) == 0 && (len == 1 || url[len - 1] != '/')) {
            return &routes[i];
        }
        if (len > 1 && routes[i].path[len - 1] == '/' && strncmp(url, routes[i].path, len) == 0 && url[len] != '\0') {
            *rest = url + len;
            return &routes[i];
        }
    }
    return NULL;
}

/* Parameters such as charset are allowed behind it. A missing type is not: a browser sends one without asking the other
 * origin first, see auth.c. */
static bool is_json_type(const char *content_type)
{
    static const char json[] = "application/json";
    return content_type != NULL && strncasecmp(content_type, json, sizeof json - 1) == 0 &&
           strchr("; \t", content_type[sizeof json - 1]) != NULL; /* also the NUL at the end */
}

/* The HTTP library has refused lengths that are no number before. */
static uint64_t announced_bytes(const firni_exchange *exchange)
{
    const char *length = firni_request_header(exchange, "Content-Length");
    return length != NULL ? strtoull(length, NULL, 10) : 0;
}

static bool too_large(const firni_exchange *exchange, firni_problem *problem)
{
    return firni_problem_set(problem, 413, "body_too_large", NULL, "the body is larger than %llu bytes",
                             (unsigned long long)body_bytes_max(exchange));
}

/* What is wrong with the headers; true when nothing is. */
static bool check_headers(const firni_exchange *exchange, const char *url, const char *method, firni_problem *problem)
{
    const bool is_options = strcmp(method, "OPTIONS") == 0; /* browsers send it without a key */
    if (!firni_auth_check(exchange, is_options || (exchange->route != NULL && exchange->route->is_open), problem)) {
        return false;
    }
    if (exchange->route == NULL) {
        return firni_problem_set(problem, 404, "not_found", NULL, "there is nothing at %.200s", url);
    }
    if (is_options) {
        return true;
    }
    const bool is_post = strcmp(method, "POST") == 0;
    const bool is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    const bool is_delete = strcmp(method, "DELETE") == 0;
    const firni_route *route = exchange->route;
    const bool fits = route->is_post             ? is_post
                      : route->takes_only_delete ? is_delete
                                                 : is_get || (route->takes_delete && is_delete);
    if (!fits) {
        return firni_problem_set(problem, 405, "method_not_allowed", NULL, "%.20s is not allowed at %.200s", method,
                                 url);
    }
    if (!exchange->route->is_post) {
        return true;
    }
    if (route->is_binary) {
        const char *type = firni_request_header(exchange, "Content-Type");
        if (type == NULL || strcasecmp(type, "application/octet-stream") != 0) {
            return firni_problem_set(problem, 415, "unsupported_media_type", NULL,
                                     "send the header \"Content-Type: application/octet-stream\"");
        }
    } else if (!is_json_type(firni_request_header(exchange, "Content-Type"))) {
        return firni_problem_set(problem, 415, "unsupported_media_type", NULL,
                                 "send the header \"Content-Type: application/json\"");
    }
    if (firni_request_header(exchange, "Content-Length") == NULL &&
        firni_request_header(exchange, "Transfer-Encoding") == NULL) {
        return firni_problem_set(problem, 411, "length_required", NULL, "the request has no body");
    }
    if (announced_bytes(exchange) > body_bytes_max(exchange)) {
        return too_large(exchange, problem);
    }
    return true;
}

/* Step 1. */
static enum MHD_Result begin(firni_server *server, struct MHD_Connection *connection, const char *url,
                             const char *method, void **con_cls)
{
    firni_exchange *exchange = firni_calloc(server->env, 1, sizeof *exchange);
    if (exchange == NULL) {
        return MHD_NO;
    }
    *con_cls = exchange;
    exchange->server = server;
    exchange->connection = connection;
    exchange->route = find_route(url, &exchange->path_rest);
    exchange->is_delete = strcmp(method, "DELETE") == 0;
    exchange->started_ns = firni_now_ns(server->env);
    exchange->id = server->started_s << 24 ^ atomic_fetch_add(&server->n_ids, 1);
    firni_buffer_init(&exchange->body, server->env);
    if (check_headers(exchange, url, method, &exchange->problem)) {
        return MHD_YES;
    }
    if (firni_request_header(exchange, "Expect") != NULL ||
        announced_bytes(exchange) > DISCARD_FACTOR * body_bytes_max(exchange)) {
        exchange->prefers_close = true;
        return firni_reply_problem(exchange, &exchange->problem);
    }
    return MHD_YES;
}

/* Step 2: keeps bytes up to the limit, drops those of a refused body, cuts off what does not end. */
static enum MHD_Result receive(firni_exchange *exchange, const char *bytes, size_t *n_bytes)
{
    const firni_server_options *options = &exchange->server->options;
    exchange->n_body_bytes += *n_bytes;
    if (firni_now_ns(exchange->server->env) - exchange->started_ns > options->body_ns_max) {
        firni_exchange_count(exchange, 408); /* no reply can be sent amid a body: the connection is closed */
        return MHD_NO;
    }
    if (exchange->n_body_bytes > body_bytes_max(exchange)) {
        if (exchange->n_body_bytes > DISCARD_FACTOR * body_bytes_max(exchange)) {
            firni_exchange_count(exchange, 413);
            return MHD_NO;
        }
        firni_buffer_deinit(&exchange->body);
        if (exchange->problem.http_status == 0) {
            (void)too_large(exchange, &exchange->problem);
        }
    }
    if (exchange->problem.http_status == 0) {
        firni_buffer_append(&exchange->body, bytes, *n_bytes);
        if (exchange->body.failed) {
            (void)firni_problem_set(&exchange->problem, 503, "no_memory", NULL, "no memory for the body");
        }
    }
    *n_bytes = 0;
    return MHD_YES;
}

/* Step 3. From here on a stopping server waits for the reply. */
static enum MHD_Result dispatch(firni_exchange *exchange, const char *method)
{
    firni_server *server = exchange->server;
    if (exchange->problem.http_status != 0) {
        return firni_reply_problem(exchange, &exchange->problem);
    }
    if (strcmp(method, "OPTIONS") == 0) {
        return firni_reply_empty(exchange, 204, firni_route_methods(exchange->route));
    }
    (void)pthread_mutex_lock(&server->mutex);
    exchange->serving = true;
    server->n_serving++;
    (void)pthread_mutex_unlock(&server->mutex);
    return exchange->route->handle(exchange);
}

enum MHD_Result firni_route_access(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *upload_data, size_t *upload_data_size,
                                   void **con_cls)
{
    (void)version;
    firni_exchange *exchange = *con_cls;
    if (exchange == NULL) {
        return begin(ctx, connection, url, method, con_cls);
    }
    if (*upload_data_size > 0) {
        return receive(exchange, upload_data, upload_data_size);
    }
    return dispatch(exchange, method);
}

void firni_route_completed(void *ctx, struct MHD_Connection *connection, void **con_cls,
                           enum MHD_RequestTerminationCode code)
{
    firni_server *server = ctx;
    firni_exchange *exchange = *con_cls;
    (void)connection;
    (void)code;
    if (exchange == NULL) {
        return;
    }
    *con_cls = NULL;
    firni_exchange_count(exchange, 0);
    (void)pthread_mutex_lock(&server->mutex);
    if (exchange->serving && --server->n_serving == 0) {
        (void)pthread_cond_broadcast(&server->idle);
    }
    (void)pthread_mutex_unlock(&server->mutex);
    firni_buffer_deinit(&exchange->body);
    firni_free(server->env, exchange);
}
