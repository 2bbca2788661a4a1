/*
 * serve_state: the server's insides, shared by its files, and the state of one HTTP request (an exchange).
 */
#ifndef FIRNI_SERVE_STATE_H
#define FIRNI_SERVE_STATE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/metrics.h"
#include "server/server_impl.h"
#include "server/transcript.h"

struct firni_server {
    const firn_env *env;
    firni_server_options options;   /* defaults filled in */
    const firn_model_info *model_info;
    char *model_name;               /* the model's own name as valid UTF-8 */
    char fingerprint[20];           /* of the state identity: equal means equal bits for equal requests */
    char url[320];
    uint32_t port;
    bool loopback;                  /* bound to this machine only */
    struct MHD_Daemon *daemon;      /* for the thread that started it; connections' threads must not read it */
    uint64_t started_s;
    firni_metrics metrics;
    atomic_uint_fast64_t n_ids;     /* for the ids of answers */
    atomic_bool stopping;           /* new requests are refused */
    atomic_bool cancelling;         /* running ones are cancelled */
    pthread_mutex_t mutex;          /* guards n_serving */
    pthread_cond_t idle;            /* n_serving reached 0 */
    uint32_t n_serving;             /* exchanges between the end of their body and the end of their reply */
};

struct firni_route;

/* One HTTP request, from its headers to the end of the reply. Belongs to the connection's thread. */
typedef struct firni_exchange {
    firni_server *server;
    struct MHD_Connection *connection;
    const struct firni_route *route; /* NULL: no such path */
    const char *path_rest;           /* of a route that takes a name behind its path; "" otherwise */
    uint64_t id;
    uint64_t started_ns;
    firni_buffer body;
    uint64_t n_body_bytes;           /* seen, kept or not */
    firni_problem problem;           /* found before the body was read: sent after it */
    bool counted;                    /* in firn_http_requests_total */
    bool serving;                    /* counted in n_serving */
    bool is_delete;                  /* the method */
    bool prefers_close;
} firni_exchange;

typedef enum MHD_Result (*firni_handler)(firni_exchange *exchange);

/* ---- http.c ---- */

const char *firni_request_header(const firni_exchange *exchange, const char *name); /* NULL when absent */
/* Queue a reply; each returns what the access handler returns. A NULL json (no memory) becomes a 503. */
enum MHD_Result firni_reply_json_new(firni_exchange *exchange, unsigned http_status, json_t *json);
enum MHD_Result firni_reply_buffer(firni_exchange *exchange, unsigned http_status, const char *content_type,
                                   firni_buffer *take);
enum MHD_Result firni_reply_problem(firni_exchange *exchange, const firni_problem *problem);
enum MHD_Result firni_reply_empty(firni_exchange *exchange, unsigned http_status, const char *allow);
/* Counts the exchange once, before the client can know its status: a scrape after the reply must show it. Status 0: no
 * reply was possible. */
void firni_exchange_count(firni_exchange *exchange, unsigned http_status);
/* Adds the headers that all replies have, queues and drops the response. */
enum MHD_Result firni_reply_response(firni_exchange *exchange, unsigned http_status, struct MHD_Response *response);
/* Switches the idle timeout of the connection off while its thread waits for the engine, and on again. */
void firni_idle_timeout_off(struct MHD_Connection *connection);
void firni_idle_timeout_on(struct MHD_Connection *connection, const firni_server *server);
/* Whether the client has closed its side. Never blocks. */
bool firni_client_gone(struct MHD_Connection *connection);

/* ---- auth.c ---- */

/* Whether the request may be served: Host, then API key. is_open: the route needs no key. */
bool firni_auth_check(const firni_exchange *exchange, bool is_open, firni_problem *problem);
/* Whether it carries the operator's key, or none is asked for. */
bool firni_auth_is_operator(const firni_exchange *exchange);
/* The namespace of a request that asks for this one ("": for none): the one that its key is bound to, else the asked
 * one, below the operator's parent when there is one. False: it may not have it. */
bool firni_auth_namespace(const firni_exchange *exchange, const char *asked, char out[FIRN_NAMESPACE_BYTES_MAX + 1],
                          firni_problem *problem);
/* Compares in a time that depends on the lengths alone. */
bool firni_auth_equal(const char *presented, const char *expected);
/* Whether a Host header names this machine itself or an address: a name that an attacker's DNS could point here is
 * neither. */
bool firni_auth_host_allowed(const char *host);

/* ---- route.c ---- */

typedef struct firni_route {
    const char *path;        /* a trailing '/' takes a name behind it */
    firni_route_label label;
    bool is_post, is_open;
    firni_handler handle;
    bool takes_delete;       /* DELETE as well, unless... */
    bool takes_only_delete;  /* ...nothing else */
    bool is_binary;          /* its body is application/octet-stream, with a limit of its own */
} firni_route;

enum MHD_Result firni_route_access(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *upload_data, size_t *upload_data_size,
                                   void **con_cls);
void firni_route_completed(void *ctx, struct MHD_Connection *connection, void **con_cls,
                           enum MHD_RequestTerminationCode code);

/* ---- handlers ---- */

enum MHD_Result firni_handle_index(firni_exchange *exchange);
enum MHD_Result firni_handle_health(firni_exchange *exchange);
enum MHD_Result firni_handle_metrics(firni_exchange *exchange);
enum MHD_Result firni_handle_models(firni_exchange *exchange);
enum MHD_Result firni_handle_model(firni_exchange *exchange);
enum MHD_Result firni_handle_completions(firni_exchange *exchange);
enum MHD_Result firni_handle_chat(firni_exchange *exchange);
enum MHD_Result firni_handle_flush(firni_exchange *exchange);
enum MHD_Result firni_handle_warm(firni_exchange *exchange);
enum MHD_Result firni_handle_pins(firni_exchange *exchange);
enum MHD_Result firni_handle_pin(firni_exchange *exchange);
enum MHD_Result firni_handle_sessions(firni_exchange *exchange);
enum MHD_Result firni_handle_session(firni_exchange *exchange);
enum MHD_Result firni_handle_import(firni_exchange *exchange);

/* "POST, OPTIONS": what a route answers to. */
const char *firni_route_methods(const firni_route *route);

/* ---- listen.c ---- */

/* A bound, listening socket. *port is the real one; *loopback whether only this machine can reach it. */
firn_status firni_listen_open(const char *host, uint32_t port, int *fd, uint32_t *real_port, bool *loopback,
                              firn_error *err);

#endif
