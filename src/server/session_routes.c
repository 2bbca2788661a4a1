/*
 * Sessions over HTTP: GET /v1/firn/sessions, GET /v1/firn/sessions/ID/export, DELETE /v1/firn/sessions/ID,
 * POST /v1/firn/sessions/import.
 *
 * A user's key sees and touches the sessions of its own namespace; the operator names one with X-Firn-Namespace, and
 * lists all. An export is put together in memory; what it holds is limited by --max-import, as an import is.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "firn/session_file.h"
#include "server/json_field.h"
#include "server/serve_state.h"

#define SECOND_NS      UINT64_C(1000000000)
#define DEADLINE_NS    (60 * SECOND_NS)
#define IMPORT_TTL_NS  (UINT64_C(86400) * SECOND_NS)
static const char export_suffix[] = "/export";

/* The namespace that the request may speak of. */
static bool namespace_of(firni_exchange *exchange, char ns[FIRN_NAMESPACE_BYTES_MAX + 1], firni_problem *problem)
{
    const char *asked = firni_request_header(exchange, "X-Firn-Namespace");
    return firni_auth_namespace(exchange, asked != NULL ? asked : "", ns, problem);
}

static bool need_tier(const firni_exchange *exchange, firni_problem *problem)
{
    return exchange->server->options.tier != NULL ||
           firni_problem_set(problem, 409, "no_disk", NULL, "this server keeps no state on disk");
}

static bool fail(firni_problem *problem, firn_status status, const firn_error *err)
{
    const unsigned http_status = status == FIRN_ERR_NOT_FOUND                                   ? 404
                                 : status == FIRN_ERR_SIGNATURE                                 ? 409
                                 : status == FIRN_ERR_FORMAT || status == FIRN_ERR_CORRUPT ||
                                           status == FIRN_ERR_INVALID
                                     ? 400
                                     : 503;
    return firni_problem_set(problem, http_status, firn_status_name(status), NULL, "%s", err->message);
}

/* ---- list -------------------------------------------------------------------------------------------------------- */

typedef struct session_array {
    json_t *array;
    const char *ns; /* only of this namespace; NULL: of all */
    bool failed;
} session_array;

static bool add_session(void *ctx, const firn_session *session)
{
    session_array *list = ctx;
    if (list->ns != NULL && strcmp(list->ns, session->ns) != 0) {
        return true;
    }
    json_t *object = json_pack("{s:o, s:I, s:I}", "id", firni_valid_text(session->id, strlen(session->id)), "tokens",
                               (json_int_t)session->n_tokens, "used", (json_int_t)(session->used_wall_ns / SECOND_NS));
    const bool ok = object != NULL && firni_namespace_json(object, session->ns);
    list->failed = !ok || json_array_append(list->array, object) != 0;
    json_decref(object);
    return !list->failed;
}

enum MHD_Result firni_handle_sessions(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    const bool is_all = firni_auth_is_operator(exchange) && firni_request_header(exchange, "X-Firn-Namespace") == NULL;
    if (!namespace_of(exchange, ns, &problem)) {
        return firni_reply_problem(exchange, &problem);
    }
    session_array list = { .array = json_array(), .ns = is_all ? NULL : ns };
    firn_tier *tier = exchange->server->options.tier;
    if (tier != NULL && list.array != NULL) {
        (void)firn_tier_each_session(tier, add_session, &list, NULL);
    }
    if (list.failed) {
        json_decref(list.array);
        list.array = NULL;
    }
    return firni_reply_json_new(exchange, 200, list.array != NULL ? json_pack("{s:o}", "sessions", list.array) : NULL);
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static bool append(void *ctx, const void *bytes, size_t n_bytes)
{
    firni_exchange *exchange = ctx; /* its body's buffer is free: this request has none */
    if (exchange->body.len + n_bytes > exchange->server->options.import_bytes_max) {
        return false;
    }
    firni_buffer_append(&exchange->body, bytes, n_bytes);
    return !exchange->body.failed;
}

static bool fail_export(const firni_exchange *exchange, firni_problem *problem, firn_status status,
                        const firn_error *err)
{
    switch (status) {
    case FIRN_ERR_IO: /* the buffer refused */
        return firni_problem_set(problem, 413, "too_large", NULL,
                                 "the session is larger than --max-import (%llu bytes)",
                                 (unsigned long long)exchange->server->options.import_bytes_max);
    case FIRN_ERR_STATE: return firni_problem_set(problem, 410, "gone", NULL, "%s", err->message);
    case FIRN_ERR_CORRUPT: return firni_problem_set(problem, 503, firn_status_name(status), NULL, "%s", err->message);
    default: return fail(problem, status, err);
    }
}

static enum MHD_Result export_session(firni_exchange *exchange, const char *ns, const char *id)
{
    const firni_server_options *options = &exchange->server->options;
    firn_error err = { 0 };
    uint32_t n_tokens;
    const firn_status status = firn_session_export(options->tier, firn_model_schema(options->model), ns, id, append,
                                                   exchange, exchange->server->env, &n_tokens, &err);
    if (status != FIRN_OK) {
        firni_problem problem = { 0 };
        (void)fail_export(exchange, &problem, status, &err);
        return firni_reply_problem(exchange, &problem);
    }
    return firni_reply_buffer(exchange, 200, "application/octet-stream", &exchange->body);
}

enum MHD_Result firni_handle_session(firni_exchange *exchange)
{
    firni_problem problem = { 0 };
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1], id[FIRN_SESSION_ID_BYTES_MAX + 1] = "";
    const size_t n_rest = strlen(exchange->path_rest), n_suffix = sizeof export_suffix - 1;
    const bool is_export =
        n_rest > n_suffix && strcmp(exchange->path_rest + n_rest - n_suffix, export_suffix) == 0;
    const size_t n_id = is_export ? n_rest - n_suffix : n_rest;
    if (n_id <= FIRN_SESSION_ID_BYTES_MAX) {
        memcpy(id, exchange->path_rest, n_id);
        id[n_id] = '\0';
    }
    if (id[0] == '\0' || is_export == exchange->is_delete) {
        (void)firni_problem_set(&problem, 404, "not_found", NULL,
                                "sessions are exported with GET .../ID/export and removed with DELETE .../ID");
    } else if (need_tier(exchange, &problem) && namespace_of(exchange, ns, &problem)) {
        if (is_export) {
            return export_session(exchange, ns, id);
        }
        firn_engine_forget_session(exchange->server->options.engine, ns, id);
        return firni_reply_json_new(exchange, 200, json_pack("{s:b}", "removed", 1));
    }
    return firni_reply_problem(exchange, &problem);
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

typedef struct body_source {
    const firni_buffer *body;
    size_t at;
} body_source;

static bool take(void *ctx, void *bytes, size_t n_bytes)
{
    body_source *in = ctx;
    if (n_bytes > in->body->len - in->at) {
        return false;
    }
    memcpy(bytes, in->body->data + in->at, n_bytes);
    in->at += n_bytes;
    return true;
}

/* Nothing is lost when it cannot be kept, for the file is still there. */
static bool keep(firni_exchange *exchange, const char *ns, const char *id, const firn_restored *restored,
                 bool *is_pinned, firni_problem *problem)
{
    firn_reason reason;
    firn_error err = { 0 };
    const uint64_t until_ns = firni_wall_ns(exchange->server->env) + IMPORT_TTL_NS;
    const firn_status status = firn_session_keep(exchange->server->options.tier, ns, id, restored, until_ns, is_pinned,
                                                 &reason, &err);
    if (status == FIRN_ERR_IO && reason != FIRN_REASON_NONE) {
        return firni_problem_set(problem, 507, firn_reason_name(reason), NULL, "%s", err.message);
    }
    return status == FIRN_OK || fail(problem, status, &err);
}

enum MHD_Result firni_handle_import(firni_exchange *exchange)
{
    const firni_server_options *options = &exchange->server->options;
    firni_problem problem = { 0 };
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1], id[FIRN_SESSION_ID_BYTES_MAX + 1];
    firn_restored restored = { 0 };
    bool is_pinned = false;
    body_source in = { .body = &exchange->body };
    firn_error err = { 0 };
    if (need_tier(exchange, &problem) && namespace_of(exchange, ns, &problem)) {
        firn_status status = firn_session_read(firn_model_schema(options->model), options->pool, take, &in,
                                               exchange->server->env, &restored, id, &err);
        if (status == FIRN_OK && id[0] == '\0') {
            (void)snprintf(id, sizeof id, "imported %016llx", (unsigned long long)exchange->id);
        }
        if (status != FIRN_OK) {
            (void)fail(&problem, status, &err);
        } else if (keep(exchange, ns, id, &restored, &is_pinned, &problem)) {
            firni_log(exchange->server->env, FIRN_LOG_INFO, "imported a session of %u tokens", restored.n_tokens);
        }
    }
    json_t *reply = problem.http_status == 0
                        ? json_pack("{s:o, s:I, s:b}", "id", firni_valid_text(id, strlen(id)), "tokens",
                                    (json_int_t)restored.n_tokens, "pinned", (int)is_pinned)
                        : NULL;
    firn_restored_deinit(&restored);
    return problem.http_status != 0 ? firni_reply_problem(exchange, &problem)
                                    : firni_reply_json_new(exchange, 200, reply);
}
