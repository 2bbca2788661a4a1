/*
 * generate: one generation, from a checked request to its last token.
 *
 *      start: tokens, submit --> wait: news | ended | failed | gone --> destroy (cancels what has not ended)
 *
 * A generation belongs to its connection's thread.
 */
#ifndef FIRNI_GENERATE_H
#define FIRNI_GENERATE_H

#include "server/feed.h"
#include "server/serve_state.h"

typedef enum firni_wait {
    FIRNI_WAIT_NEWS,    /* answer.pieces has something new */
    FIRNI_WAIT_ENDED,   /* answer is complete (and may have news) */
    FIRNI_WAIT_FAILED,  /* `problem` says why */
    FIRNI_WAIT_GONE,    /* the client went away */
    FIRNI_WAIT_QUIET    /* nothing came for quiet_ns */
} firni_wait;

typedef struct firni_generation {
    firni_server *server;
    const firni_wire *wire;
    struct MHD_Connection *connection;
    uint64_t exchange_id;
    firni_ask ask;
    firn_token *encoded;        /* the tokenizer's array; NULL when the client sent tokens */
    firni_feed *feed;
    firni_answer answer;
    firni_problem problem;
    uint64_t engine_id;
    uint64_t deadline_ns;
    uint64_t quiet_ns;          /* 0: a wait never ends in QUIET */
    uint64_t looked_ns;         /* when the client was last seen to be there */
} firni_generation;

/* Takes *ask and hands the request to the engine. NULL with *problem filled when it is refused. */
firni_generation *firni_generation_start(firni_exchange *exchange, const firni_wire *wire, firni_ask *ask,
                                         firni_problem *problem);
/* Waits for the next of the five. */
firni_wait firni_generation_wait(firni_generation *generation);
void firni_generation_destroy(firni_generation *generation); /* accepts NULL */

/* Replies with server-sent events. Takes the generation. stream.c */
enum MHD_Result firni_stream_reply(firni_exchange *exchange, firni_generation *generation);

#endif
