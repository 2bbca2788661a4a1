/*
 * What operators ask for: POST /v1/firn/flush, POST /v1/firn/warm, GET /v1/firn/pins, DELETE /v1/firn/pins/NAME.
 */
#include <string.h>

#include "base/base_impl.h"
#include "server/json_field.h"
#include "server/serve_state.h"

#define SECOND_NS   UINT64_C(1000000000)
#define FLUSH_S_MAX 3600

/* A body that may be empty. NULL with the problem set when it is no JSON object. */
static json_t *body_of(const firni_exchange *exchange, firni_problem *problem)
{
    json_error_t error;
    json_t *body = exchange->body.len == 0 ? json_object()
                                           : json_loadb(exchange->body.data, exchange->body.len,
                                                        JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(body)) {
        json_decref(body);
        (void)firni_problem_field(problem, "invalid_json", NULL, "the body must be a JSON object");
        return NULL;
    }
    return body;
}

static bool check_operator(const firni_exchange *exchange, firni_problem *problem)
{
    return firni_auth_is_operator(exchange) ||
           firni_problem_set(problem, 403, "operator_only", NULL,
                             "this takes the operator's key: the one of --api-key or FIRN_API_KEY");
}

enum MHD_Result firni_handle_flush(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    int64_t bound_s = 60;
    json_t *body = check_operator(exchange, &problem) ? body_of(exchange, &problem) : NULL;
    const bool ok = body != NULL && firni_field_integer(body, "seconds", 1, FLUSH_S_MAX, &bound_s, &problem);
    json_decref(body);
    firn_flush_report report = { 0 };
    if (ok) {
        firni_idle_timeout_off(exchange->connection);
        if (!firni_warm_flush(exchange->server->options.engine, (uint64_t)bound_s * SECOND_NS, &report)) {
            (void)firni_problem_set(&problem, 503, "stopping", NULL, "the server is stopping, and saves everything");
        }
        firni_idle_timeout_on(exchange->connection, exchange->server);
    }
    if (problem.http_status != 0) {
        return firni_reply_problem(exchange, &problem);
    }
    return firni_reply_json_new(exchange, 200,
                                json_pack("{s:b, s:I, s:I, s:I, s:f}", "durable", (int)report.durable, "flushed",
                                          (json_int_t)report.n_flushed, "missing", (json_int_t)report.n_missing,
                                          "failed", (json_int_t)report.n_failed, "elapsed_ms",
                                          (double)(report.elapsed_ns / 1000u) / 1000.0));
}

enum MHD_Result firni_handle_warm(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    firni_warm_report report = { .n_tokens = 0 };
    json_t *body = check_operator(exchange, &problem) ? body_of(exchange, &problem) : NULL;
    if (body != NULL) {
        firni_idle_timeout_off(exchange->connection);
        (void)firni_warm_body(exchange->server->options.warmer, body, NULL, &report, &problem);
        firni_idle_timeout_on(exchange->connection, exchange->server);
        json_decref(body);
    }
    if (problem.http_status != 0) {
        return firni_reply_problem(exchange, &problem);
    }
    return firni_reply_json_new(exchange, 200,
                                json_pack("{s:o, s:I, s:I, s:b, s:b, s:I}", "name",
                                          firni_valid_text(report.name, strlen(report.name)), "tokens",
                                          (json_int_t)report.n_tokens, "computed", (json_int_t)report.n_computed,
                                          "was_there", (int)report.was_there, "durable", (int)report.is_durable,
                                          "until", (json_int_t)(report.until_wall_ns / SECOND_NS)));
}

enum MHD_Result firni_handle_pins(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    if (!check_operator(exchange, &problem)) {
        return firni_reply_problem(exchange, &problem);
    }
    json_t *pins = firni_warm_pins_json(exchange->server->options.warmer);
    return firni_reply_json_new(exchange, 200, pins != NULL ? json_pack("{s:o}", "pins", pins) : NULL);
}

enum MHD_Result firni_handle_pin(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    if (check_operator(exchange, &problem) &&
        !firni_warm_unpin(exchange->server->options.warmer, exchange->path_rest)) {
        (void)firni_problem_set(&problem, 404, "not_found", NULL, "there is no pin \"%.200s\"", exchange->path_rest);
    }
    return problem.http_status != 0
               ? firni_reply_problem(exchange, &problem)
               : firni_reply_json_new(exchange, 200, json_pack("{s:b}", "removed", 1));
}
