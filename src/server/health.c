/*
 * GET /health (open: for load balancers), GET /metrics, and GET / as a signpost.
 */
#include "server/serve_state.h"

/* A stack without a tier says why; one with a tier asks it how it is now. */
static firn_reason disk_state(const firni_server *server, const firn_engine_stats *stats)
{
    return server->options.disk_state != FIRN_REASON_NONE ? server->options.disk_state : stats->tier.state;
}

/* 503 once a stop was asked for: a load balancer must not send more. A disk in trouble does not make it unhealthy. */
enum MHD_Result firni_handle_health(firni_exchange *exchange)
{
    firni_server *server = exchange->server;
    const bool stopping = atomic_load(&server->stopping);
    firn_engine_stats stats;
    firn_engine_get_stats(server->options.engine, &stats);
    json_t *object = json_pack("{s:s, s:s, s:I, s:I}", "status", stopping ? "stopping" : "ok", "disk",
                               firn_reason_name(disk_state(server, &stats)), "running", (json_int_t)stats.n_running,
                               "waiting", (json_int_t)stats.n_waiting);
    firn_stack_stats tiers;
    if (object != NULL && firn_stack_get_stats(server->options.tier, &tiers)) {
        json_t *states = json_pack("{s:s, s:s}", "upper", firn_reason_name(tiers.upper.state), "lower",
                                   firn_reason_name(tiers.lower.state));
        if (states == NULL || json_object_set_new(object, "tiers", states) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return firni_reply_json_new(exchange, stopping ? 503 : 200, object);
}

/* Asked through the connection: server->daemon is set only when the daemon's threads are already running. */
static uint32_t count_connections(const firni_exchange *exchange)
{
    const union MHD_ConnectionInfo *own = MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_DAEMON);
    const union MHD_DaemonInfo *info =
        own != NULL ? MHD_get_daemon_info(own->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS) : NULL;
    return info != NULL ? info->num_connections : 0;
}

enum MHD_Result firni_handle_metrics(firni_exchange *exchange)
{
    firni_server *server = exchange->server;
    const firn_model_info *info = server->model_info;
    firn_stack_stats tiers;
    const bool is_stack = firn_stack_get_stats(server->options.tier, &tiers);
    const firni_metrics_view view = {
        .model = server->model_name,
        .architecture = info->architecture,
        .kernel = info->kernel,
        .weight_type = info->weight_type,
        .started_s = server->started_s,
        .n_connections = count_connections(exchange),
        .tiers = is_stack ? &tiers : NULL,
        .disk_state = server->options.disk_state,
    };
    firn_engine_stats stats;
    firn_engine_get_stats(server->options.engine, &stats);
    firni_buffer text;
    firni_buffer_init(&text, server->env);
    firni_metrics_render(&server->metrics, &stats, &view, &text);
    return firni_reply_buffer(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

/* What someone sees who opens the address in a browser. */
enum MHD_Result firni_handle_index(firni_exchange *exchange)
{
    return firni_reply_json_new(exchange, 200,
                                json_pack("{s:s, s:[s, s, s, s, s, s, s, s, s, s, s, s]}", "server", "firn",
                                          "endpoints", "GET /health", "GET /metrics", "GET /v1/models",
                                          "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/firn/flush",
                                          "POST /v1/firn/warm", "GET /v1/firn/pins", "DELETE /v1/firn/pins/NAME",
                                          "GET /v1/firn/sessions", "GET /v1/firn/sessions/ID/export",
                                          "POST /v1/firn/sessions/import"));
}
