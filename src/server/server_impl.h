/*
 * server: the engine behind the OpenAI HTTP API.
 *
 *      route.c    one HTTP request: body, limits, refusals, which handler
 *      auth.c     API key, Host header                        http.c      replies and their headers
 *      request_json.c, completion.c, chat_completion.c        transcript.h: what is asked and answered
 *      generate.c one generation: tokens, engine, waiting     feed.c      engine thread -> connection thread
 *      warm.c     prompts read ahead, and their pins          keep_routes.c, session_routes.c   what is kept
 *      stream.c   server-sent events                          models.c, health.c, metrics.c
 *
 * Threads: libmicrohttpd gives each connection a thread, and the number of connections has a limit. A connection's
 * thread waits for its own generation only, and looks every 100 ms whether the client is still there; one that has gone
 * is cancelled in the engine. The engine's thread never waits for a connection.
 *
 * What is bounded: connections, header bytes, body bytes, time between bytes, time for a body, time of a request. The
 * queue of requests is the engine's (429 when it is full).
 */
#ifndef FIRNI_SERVER_IMPL_H
#define FIRNI_SERVER_IMPL_H

#include "firn/engine.h"
#include "server/api_keys.h"
#include "server/warm.h"

typedef struct firni_server firni_server;

/* All zero in a member means the stated default. Strings and objects are borrowed until firni_server_stop(). */
typedef struct firni_server_options {
    firn_engine *engine;           /* required */
    const firn_model *model;       /* required; only immutable parts are read */
    uint32_t ctx_tokens_max;       /* for /v1/models; 0: the model's training context */
    firn_reason disk_state;        /* of a stack without a disk tier: why there is none; NONE when there is one */
    const char *host;              /* NULL: "127.0.0.1" */
    uint32_t port;                 /* 0: any free one; see firni_server_port() */
    const char *api_key;           /* the operator's; NULL: none needed, unless there are users' keys */
    const firni_api_keys *keys;    /* users' keys, each bound to a namespace; NULL: none */
    const char *parent;            /* namespace above all those that requests name; NULL: none */
    firni_warmer *warmer;          /* required for /v1/firn/warm and pins */
    firn_tier *tier;               /* for sessions; NULL: none */
    firn_pool *pool;               /* for imported ones */
    uint64_t import_bytes_max;     /* 0: 1 GiB */
    const char *cors_origin;       /* "*" or one origin; NULL: no CORS headers */
    uint64_t body_bytes_max;       /* 0: 8 MiB */
    uint32_t header_bytes_max;     /* memory of one connection for headers and I/O; 0: 64 KiB */
    uint32_t connections_max;      /* 0: 256 */
    uint32_t idle_seconds;         /* connection without a byte; 0: 60 */
    uint64_t body_ns_max;          /* from the first to the last byte of a body; 0: 120 s */
    uint64_t sse_quiet_ns_max;     /* a stream that has nothing to say sends a comment after this; 0: 5 s */
    uint64_t request_ns_max;       /* one generation, waiting included; 0: 1 h */
} firni_server_options;

/* Starts serving. Errors: IO (address in use or not available: the message says what to do), INVALID, NO_MEMORY. */
firn_status firni_server_start(const firni_server_options *options, const firn_env *env, firni_server **out,
                               firn_error *err);
uint32_t firni_server_port(const firni_server *server);
/* Whether other machines can reach it without a key. */
bool firni_server_is_exposed(const firni_server *server);
/* "http://127.0.0.1:8080"; lives as long as the server. */
const char *firni_server_url(const firni_server *server);
/* Stops accepting, gives running requests finish_ns to finish, cancels the rest and has up to a second for their
 * replies; then closes all connections and frees. Accepts NULL. */
void firni_server_stop(firni_server *server, uint64_t finish_ns);

#endif
