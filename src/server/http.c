/*
 * Replies: queueing, the headers that all of them have, error objects. Also the two things that a waiting thread asks
 * of its connection: leave me alone (idle timeout), and is the client still there.
 */
/* POLLRDHUP: the peer's close must be seen even while bytes of it are still unread, which MSG_PEEK can not tell. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/serve_state.h"

const char *firni_request_header(const firni_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

/* Header names as RFC 9110 has them, separated by commas: what may be repeated in a reply. */
static bool is_name_list(const char *text)
{
    return text != NULL && text[0] != '\0' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ") == strlen(text);
}

/* Cross-origin access only where it was asked for at start, and only for that origin. */
static void add_cors(const firni_exchange *exchange, struct MHD_Response *response)
{
    const char *allowed = exchange->server->options.cors_origin;
    const char *origin = firni_request_header(exchange, "Origin");
    if (allowed == NULL) {
        return;
    }
    (void)MHD_add_response_header(response, "Vary", "Origin");
    if (origin == NULL || (strcmp(allowed, "*") != 0 && strcmp(allowed, origin) != 0)) {
        return;
    }
    const char *wanted = firni_request_header(exchange, "Access-Control-Request-Headers");
    (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", allowed);
    (void)MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    (void)MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                  is_name_list(wanted) ? wanted : "Authorization, Content-Type, X-Firn-Namespace");
    (void)MHD_add_response_header(response, "Access-Control-Max-Age", "600");
}

void firni_exchange_count(firni_exchange *exchange, unsigned http_status)
{
    if (!exchange->counted) {
        exchange->counted = true;
        firni_metrics_count_http(&exchange->server->metrics,
                                 exchange->route != NULL ? exchange->route->label : FIRNI_ROUTE_OTHER, http_status);
    }
}

enum MHD_Result firni_reply_response(firni_exchange *exchange, unsigned http_status, struct MHD_Response *response)
{
    if (response == NULL) {
        return MHD_NO; /* no memory for any answer: the connection is closed */
    }
    char request_id[24];
    (void)snprintf(request_id, sizeof request_id, "%016llx", (unsigned long long)exchange->id);
    (void)MHD_add_response_header(response, "X-Request-Id", request_id);
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    add_cors(exchange, response);
    if (exchange->prefers_close || atomic_load(&exchange->server->stopping)) {
        (void)MHD_add_response_header(response, "Connection", "close");
    }
    const enum MHD_Result result = MHD_queue_response(exchange->connection, http_status, response);
    MHD_destroy_response(response);
    if (result == MHD_YES) {
        firni_exchange_count(exchange, http_status);
    }
    return result;
}

/* The bytes of a buffer become the response's own; they must have come from malloc for that, so they are copied. */
static struct MHD_Response *response_of(const firni_buffer *buffer, const char *content_type)
{
    struct MHD_Response *response = NULL;
    if (!buffer->failed && buffer->data != NULL) {
        response = MHD_create_response_from_buffer(buffer->len, buffer->data, MHD_RESPMEM_MUST_COPY);
    }
    if (response != NULL) {
        (void)MHD_add_response_header(response, "Content-Type", content_type);
    }
    return response;
}

enum MHD_Result firni_reply_buffer(firni_exchange *exchange, unsigned http_status, const char *content_type,
                                   firni_buffer *take)
{
    struct MHD_Response *response = response_of(take, content_type);
    firni_buffer_deinit(take);
    return firni_reply_response(exchange, http_status, response);
}

enum MHD_Result firni_reply_json_new(firni_exchange *exchange, unsigned http_status, json_t *json)
{
    firni_buffer text;
    firni_buffer_init(&text, exchange->server->env);
    firni_buffer_json_new(&text, json);
    firni_buffer_text(&text, "\n");
    if (!text.failed) {
        return firni_reply_buffer(exchange, http_status, "application/json", &text);
    }
    firni_buffer_deinit(&text);
    char no_memory[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                       "\"code\":\"no_memory\"}}\n";
    struct MHD_Response *response =
        MHD_create_response_from_buffer(sizeof no_memory - 1, no_memory, MHD_RESPMEM_MUST_COPY);
    if (response != NULL) {
        (void)MHD_add_response_header(response, "Content-Type", "application/json");
    }
    return firni_reply_response(exchange, 503, response);
}

/* What goes with a refusal beside the object: how to authenticate, when to come back, which methods there are. */
static void add_problem_headers(const firni_exchange *exchange, const firni_problem *problem,
                                struct MHD_Response *response)
{
    if (problem->http_status == 401) {
        (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    }
    if (problem->http_status == 405) {
        (void)MHD_add_response_header(response, "Allow", firni_route_methods(exchange->route));
    }
    if (problem->retry_after_s > 0) {
        char seconds[16];
        (void)snprintf(seconds, sizeof seconds, "%u", problem->retry_after_s);
        (void)MHD_add_response_header(response, "Retry-After", seconds);
    }
}

enum MHD_Result firni_reply_problem(firni_exchange *exchange, const firni_problem *problem)
{
    firni_buffer text;
    firni_buffer_init(&text, exchange->server->env);
    firni_buffer_json_new(&text, firni_problem_json(problem));
    firni_buffer_text(&text, "\n");
    struct MHD_Response *response = response_of(&text, "application/json");
    firni_buffer_deinit(&text);
    if (response == NULL) {
        return firni_reply_json_new(exchange, 503, NULL);
    }
    add_problem_headers(exchange, problem, response);
    firni_log(exchange->server->env, FIRN_LOG_INFO, "%016llx %s: %u %s", (unsigned long long)exchange->id,
              firni_route_name(exchange->route != NULL ? exchange->route->label : FIRNI_ROUTE_OTHER),
              problem->http_status, problem->message);
    return firni_reply_response(exchange, problem->http_status, response);
}

enum MHD_Result firni_reply_empty(firni_exchange *exchange, unsigned http_status, const char *allow)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (response != NULL) {
        (void)MHD_add_response_header(response, "Allow", allow);
    }
    return firni_reply_response(exchange, http_status, response);
}

void firni_idle_timeout_off(struct MHD_Connection *connection)
{
    (void)MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
}

void firni_idle_timeout_on(struct MHD_Connection *connection, const firni_server *server)
{
    /* Setting it from 0 also restarts the count: the time spent waiting is not the client's. */
    (void)MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)server->options.idle_seconds);
}

/* A client that only closes its sending side counts as gone, too: HTTP clients do not do that while they wait. */
bool firni_client_gone(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == NULL) {
        return true;
    }
    struct pollfd poll_fd = { .fd = info->connect_fd, .events = POLLRDHUP };
    return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}
