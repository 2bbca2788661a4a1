/*
 * Start and stop: defaults, the listening socket, the HTTP library's daemon, and the order in which everything ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "base/condition.h"
#include "server/serve_state.h"

#define MIB (UINT64_C(1) << 20)
#define SECOND_NS UINT64_C(1000000000)
#define REPLY_NS SECOND_NS /* for the replies of cancelled requests to go out */
#define THREAD_STACK_BYTES ((size_t)1 << 20) /* twice what the JSON parser's deepest nesting (2,048) takes */

/* MHD reports protocol errors of clients; they are not ours to fix, so they are for debugging only. */
static void log_daemon(void *ctx, const char *format, va_list args)
{
    const firni_server *server = ctx;
    char line[512];
    (void)vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\r\n")] = '\0';
    firni_log(server->env, FIRN_LOG_DEBUG, "http: %s", line);
}

/* After this no member means "default" any more, but the model's context and the API key. */
static firni_server_options with_defaults(const firni_server_options *given)
{
    firni_server_options options = *given;
    options.host = given->host != NULL ? given->host : "127.0.0.1";
    options.body_bytes_max = given->body_bytes_max != 0 ? given->body_bytes_max : 8 * MIB;
    options.import_bytes_max = given->import_bytes_max != 0 ? given->import_bytes_max : 1024 * MIB;
    options.header_bytes_max = given->header_bytes_max != 0 ? given->header_bytes_max : 65536;
    options.connections_max = given->connections_max != 0 ? given->connections_max : 256;
    options.idle_seconds = given->idle_seconds != 0 ? given->idle_seconds : 60;
    options.body_ns_max = given->body_ns_max != 0 ? given->body_ns_max : 120 * SECOND_NS;
    options.sse_quiet_ns_max = given->sse_quiet_ns_max != 0 ? given->sse_quiet_ns_max : 5 * SECOND_NS;
    options.request_ns_max = given->request_ns_max != 0 ? given->request_ns_max : 3600 * SECOND_NS;
    return options;
}

/* The daemon takes the socket over only on success. POLL rather than select: descriptors beyond 1,023 are ordinary with
 * that many connections. ITC is what quiescing needs. */
static firn_status start_daemon(firni_server *server, int fd, firn_error *err)
{
    const firni_server_options *options = &server->options;
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
                           MHD_USE_ITC | MHD_USE_ERROR_LOG;
    errno = 0;
    /* clang-format off */
    server->daemon = MHD_start_daemon(flags, (uint16_t)server->port, NULL, NULL, firni_route_access, server,
        MHD_OPTION_EXTERNAL_LOGGER, log_daemon, server,
        MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_COMPLETED, firni_route_completed, server,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)options->connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)options->idle_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)options->header_bytes_max,
        MHD_OPTION_THREAD_STACK_SIZE, THREAD_STACK_BYTES,
        MHD_OPTION_END);
    /* clang-format on */
    return server->daemon != NULL ? FIRN_OK
                                  : firni_fail_os(err, errno != 0 ? errno : ENOMEM, "the HTTP server could not start");
}

/* What a client on this machine would type; an IPv6 address goes in brackets (RFC 3986, section 3.2.2). */
static void set_url(firni_server *server)
{
    const char *host = server->options.host;
    const bool is_v6 = strchr(host, ':') != NULL;
    (void)snprintf(server->url, sizeof server->url, "http://%s%.255s%s:%u", is_v6 ? "[" : "", host, is_v6 ? "]" : "",
                   (unsigned)server->port);
}

/* A name of the model that can stand in JSON; NULL without memory. Files may hold anything. */
static char *valid_name(const firn_env *env, const char *name)
{
    json_t *text = firni_valid_text(name, strlen(name));
    char *copy = text != NULL ? firni_strdup(env, json_string_value(text)) : NULL;
    json_decref(text);
    return copy;
}

static void free_server(firni_server *server)
{
    firni_free(server->env, server->model_name);
    firni_free(server->env, server);
}

static firn_status init_waiting(firni_server *server, firn_error *err)
{
    int rc = firni_condition_init(&server->idle);
    if (rc == 0 && (rc = pthread_mutex_init(&server->mutex, NULL)) != 0) {
        (void)pthread_cond_destroy(&server->idle);
    }
    return rc == 0 ? FIRN_OK : firni_fail_os(err, rc, "the HTTP server could not start");
}

firn_status firni_server_start(const firni_server_options *options, const firn_env *env, firni_server **out,
                               firn_error *err)
{
    *out = NULL;
    if (options->engine == NULL || options->model == NULL || options->port > 65535) {
        return firni_fail(err, FIRN_ERR_INVALID, "the server needs an engine, a model and a port up to 65535");
    }
    firni_server *server = firni_calloc(env, 1, sizeof *server);
    if (server == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory");
    }
    server->env = env;
    server->options = with_defaults(options);
    server->model_info = firn_model_get_info(options->model);
    server->model_name = valid_name(env, server->model_info->name);
    if (server->model_name == NULL) {
        free_server(server);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory");
    }
    server->started_s = firni_wall_ns(env) / SECOND_NS;
    const firn_digest *identity = &firn_model_schema(options->model)->identity;
    (void)snprintf(server->fingerprint, sizeof server->fingerprint, "fp_%02x%02x%02x%02x%02x%02x", identity->bytes[0],
                   identity->bytes[1], identity->bytes[2], identity->bytes[3], identity->bytes[4], identity->bytes[5]);
    int fd = -1;
    firn_status status =
        firni_listen_open(server->options.host, options->port, &fd, &server->port, &server->loopback, err);
    if (status != FIRN_OK) {
        free_server(server);
        return status;
    }
    set_url(server);
    status = init_waiting(server, err);
    if (status == FIRN_OK) {
        status = start_daemon(server, fd, err);
        if (status != FIRN_OK) {
            (void)pthread_mutex_destroy(&server->mutex);
            (void)pthread_cond_destroy(&server->idle);
        }
    }
    if (status != FIRN_OK) {
        (void)close(fd);
        free_server(server);
        return status;
    }
    *out = server;
    return FIRN_OK;
}

uint32_t firni_server_port(const firni_server *server)
{
    return server->port;
}

bool firni_server_is_exposed(const firni_server *server)
{
    return !server->loopback && server->options.api_key == NULL && server->options.keys == NULL;
}

const char *firni_server_url(const firni_server *server)
{
    return server->url;
}

/* Waits until no exchange is being served, or for bound_ns. */
static bool wait_idle(firni_server *server, uint64_t bound_ns)
{
    const struct timespec deadline = firni_condition_deadline(bound_ns);
    (void)pthread_mutex_lock(&server->mutex);
    int rc = 0;
    while (server->n_serving > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&server->idle, &server->mutex, &deadline);
    }
    const bool idle = server->n_serving == 0;
    (void)pthread_mutex_unlock(&server->mutex);
    return idle;
}

void firni_server_stop(firni_server *server, uint64_t finish_ns)
{
    if (server == NULL) {
        return;
    }
    /* 1. Nobody new: not as a connection, not as a request on one that is kept alive. */
    atomic_store(&server->stopping, true);
    const int fd = MHD_quiesce_daemon(server->daemon);
    /* 2. Those running finish, or are cancelled, and their replies go out. */
    if (!wait_idle(server, finish_ns)) {
        atomic_store(&server->cancelling, true);
        (void)wait_idle(server, REPLY_NS);
    }
    /* 3. Connections are closed; their threads end within one look at the state above. */
    atomic_store(&server->cancelling, true);
    MHD_stop_daemon(server->daemon);
    if (fd >= 0) {
        (void)close(fd);
    }
    (void)pthread_mutex_destroy(&server->mutex);
    (void)pthread_cond_destroy(&server->idle);
    free_server(server);
}
