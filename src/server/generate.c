/*
 * One generation, and the two handlers that make one. Owns the order of things and the waiting; not the format (wire),
 * not the queue (feed), not the sending of a stream (stream.c).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/generate.h"

/* How often a waiting thread looks after its client, its deadline and the server's state. */
#define LOOK_NS UINT64_C(100000000)

/* The prompt as token ids: answer.prompt and n_prompt. */
static bool encode_prompt(firni_generation *generation, firni_problem *problem)
{
    const firni_ask *ask = &generation->ask;
    const firn_tokenizer *tokenizer = generation->answer.tokenizer;
    firn_error err = { 0 };
    firn_status status = FIRN_OK;
    uint32_t n_tokens = ask->n_tokens;
    switch (ask->kind) {
    case FIRNI_PROMPT_TOKENS: break;
    case FIRNI_PROMPT_TEXT: {
        const firn_encode_options options = { .add_bos = true, .parse_special = ask->parse_special };
        status =
            firn_tokenizer_encode(tokenizer, ask->text, ask->len_text, &options, &generation->encoded, &n_tokens, &err);
        break;
    }
    case FIRNI_PROMPT_MESSAGES:
        status = firn_tokenizer_chat(tokenizer, ask->messages, ask->n_messages, &generation->encoded, &n_tokens, &err);
        break;
    }
    if (status != FIRN_OK) {
        (void)firni_problem_from_error(problem, &err, generation->wire->prompt_param);
        if (status == FIRN_ERR_INVALID) { /* an order of roles that the template forbids */
            (void)snprintf(problem->param, sizeof problem->param, "%s", generation->wire->prompt_param);
        }
        return false;
    }
    if (n_tokens == 0) {
        return firni_problem_field(problem, "invalid_value", generation->wire->prompt_param,
                                   "the prompt has no tokens");
    }
    generation->answer.prompt = generation->encoded != NULL ? generation->encoded : ask->tokens;
    generation->answer.n_prompt = n_tokens;
    return true;
}

/* Hands the request to the engine, which copies all of it. */
static bool submit(firni_generation *generation, firni_problem *problem)
{
    const firni_ask *ask = &generation->ask;
    const firn_request request = {
        .prompt = generation->answer.prompt,
        .n_prompt = generation->answer.n_prompt,
        .max_tokens = ask->max_tokens,
        .ns = ask->ns,
        .sampling = ask->sampling,
        .stops = ask->stops,
        .n_stops = ask->n_stops,
        .n_logprobs = ask->n_logprobs,
        .ignore_end = ask->ignore_end,
        .is_new_text = ask->kind == FIRNI_PROMPT_MESSAGES,
        .no_cache = ask->no_cache,
        .cache = ask->cache,
        .session = ask->session[0] != '\0' ? ask->session : NULL,
        .request_id = ask->request_id[0] != '\0' ? ask->request_id : NULL,
        .on_event = firni_feed_on_event,
        .ctx = generation->feed,
    };
    firn_error err = { 0 };
    firni_feed_retain(generation->feed); /* before submit: the END event may come before it returns */
    const firn_status status =
        firn_engine_submit(generation->server->options.engine, &request, &generation->engine_id, &err);
    if (status != FIRN_OK) {
        firni_feed_release(generation->feed);
        err.status = status;
        return firni_problem_from_error(problem, &err, generation->wire->prompt_param);
    }
    return true;
}

firni_generation *firni_generation_start(firni_exchange *exchange, const firni_wire *wire, firni_ask *ask,
                                         firni_problem *problem)
{
    firni_server *server = exchange->server;
    firni_generation *generation = firni_calloc(server->env, 1, sizeof *generation);
    if (generation == NULL) {
        (void)firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
        firni_ask_deinit(ask);
        return NULL;
    }
    generation->server = server;
    generation->wire = wire;
    generation->connection = exchange->connection;
    generation->exchange_id = exchange->id;
    generation->ask = *ask;
    firni_ask_init(ask, server->env); /* taken */
    generation->deadline_ns = firni_now_ns(server->env) + server->options.request_ns_max;

    firni_answer *answer = &generation->answer;
    (void)snprintf(answer->id, sizeof answer->id, "%s%016" PRIx64, wire->id_prefix, exchange->id);
    answer->created_s = firni_wall_ns(server->env) / 1000000000u;
    answer->model = server->model_name;
    answer->fingerprint = server->fingerprint;
    answer->tokenizer = firn_model_tokenizer(server->options.model);
    answer->wants_usage = generation->ask.include_usage;
    answer->wants_logprobs = generation->ask.n_logprobs > 0;
    firni_pieces_init(&answer->pieces, server->env);

    generation->feed = firni_feed_create(server->env);
    if (generation->feed == NULL) {
        (void)firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
    } else if (encode_prompt(generation, problem) && submit(generation, problem)) {
        return generation;
    }
    answer->ended = true; /* nothing to cancel */
    firni_generation_destroy(generation);
    return NULL;
}

/* Takes over what the END event said. */
static firni_wait finish(firni_generation *generation, const firni_feed_end *end)
{
    firni_answer *answer = &generation->answer;
    firni_server *server = generation->server;
    answer->ended = true;
    answer->finish = end->finish;
    answer->usage = end->usage;
    switch (end->finish) {
    case FIRN_FINISH_ERROR:
        (void)firni_problem_from_error(&generation->problem, &end->error, generation->wire->prompt_param);
        return FIRNI_WAIT_FAILED;
    case FIRN_FINISH_CANCELLED: /* nobody here asked for it: the engine is stopping */
        (void)firni_problem_set(&generation->problem, 503, "stopping", NULL, "the server is stopping");
        return FIRNI_WAIT_FAILED;
    case FIRN_FINISH_STOP:
    case FIRN_FINISH_LENGTH: break;
    }
    firni_metrics_count_usage(&server->metrics, &answer->usage);
    const firn_usage *usage = &answer->usage;
    firni_log(server->env, FIRN_LOG_INFO,
              "%s: prompt %" PRIu32 " (ram %" PRIu32 ", disk %" PRIu32 ", %s), answer %" PRIu32 " (%s), "
              "first token %.1f ms, all %.1f ms",
              answer->id, usage->prompt_tokens, usage->cache.ram_tokens, usage->cache.disk_tokens,
              firn_reason_name(usage->cache.reason), usage->completion_tokens, firni_finish_name(answer->finish),
              (double)usage->first_token_ns * 1e-6, (double)usage->total_ns * 1e-6);
    return FIRNI_WAIT_ENDED;
}

firni_wait firni_generation_wait(firni_generation *generation)
{
    firni_server *server = generation->server;
    const uint64_t began_ns = firni_now_ns(server->env);
    for (;;) {
        bool ended = false;
        firni_feed_end end;
        const bool news = firni_feed_take(generation->feed, LOOK_NS, &generation->answer.pieces, &ended, &end);
        if (ended) {
            return finish(generation, &end);
        }
        if (atomic_load(&server->cancelling)) {
            (void)firni_problem_set(&generation->problem, 503, "stopping", NULL, "the server is stopping");
            return FIRNI_WAIT_FAILED;
        }
        const uint64_t now_ns = firni_now_ns(server->env);
        if (now_ns > generation->deadline_ns) {
            atomic_fetch_add_explicit(&server->metrics.n_timeouts, 1, memory_order_relaxed);
            (void)firni_problem_set(&generation->problem, 504, "request_timeout", NULL,
                                    "the request took longer than %" PRIu64 " seconds",
                                    server->options.request_ns_max / 1000000000u);
            return FIRNI_WAIT_FAILED;
        }
        /* By the clock, not when nothing came: tokens may come faster than LOOK_NS to the very end. */
        if (now_ns - generation->looked_ns >= LOOK_NS) {
            generation->looked_ns = now_ns;
            if (firni_client_gone(generation->connection)) {
                return FIRNI_WAIT_GONE;
            }
        }
        if (news) {
            return FIRNI_WAIT_NEWS;
        }
        if (generation->quiet_ns > 0 && now_ns - began_ns >= generation->quiet_ns) {
            return FIRNI_WAIT_QUIET;
        }
    }
}

void firni_generation_destroy(firni_generation *generation)
{
    if (generation == NULL) {
        return;
    }
    firni_server *server = generation->server;
    if (!generation->answer.ended) {
        if (generation->problem.http_status == 0) { /* not our doing */
            atomic_fetch_add_explicit(&server->metrics.n_disconnects, 1, memory_order_relaxed);
            firni_log(server->env, FIRN_LOG_INFO, "%s: the client went away", generation->answer.id);
        }
        firn_engine_cancel(server->options.engine, generation->engine_id);
    }
    firni_feed_release(generation->feed);
    firni_pieces_deinit(&generation->answer.pieces);
    firni_ask_deinit(&generation->ask);
    free(generation->encoded); /* the tokenizer's malloc */
    firni_free(server->env, generation);
}

/* Waits for the whole answer and replies with it. */
static enum MHD_Result reply_whole(firni_exchange *exchange, firni_generation *generation)
{
    firni_idle_timeout_off(exchange->connection);
    firni_wait wait;
    do {
        wait = firni_generation_wait(generation);
    } while (wait == FIRNI_WAIT_NEWS);
    firni_idle_timeout_on(exchange->connection, exchange->server);
    enum MHD_Result result = MHD_NO; /* a client that is gone gets its connection closed */
    if (wait == FIRNI_WAIT_ENDED) {
        result = firni_reply_json_new(exchange, 200, generation->wire->render(&generation->answer));
    } else if (wait == FIRNI_WAIT_FAILED) {
        result = firni_reply_problem(exchange, &generation->problem);
    }
    firni_generation_destroy(generation);
    return result;
}

/* What both formats do: check, start, and reply in one piece or as a stream. */
static enum MHD_Result handle(firni_exchange *exchange, const firni_wire *wire)
{
    firni_server *server = exchange->server;
    firni_problem problem = { 0 };
    firni_ask ask;
    if (atomic_load(&server->stopping)) {
        (void)firni_problem_set(&problem, 503, "stopping", NULL, "the server is stopping");
        return firni_reply_problem(exchange, &problem);
    }
    const char *body = exchange->body.data != NULL ? exchange->body.data : "";
    if (!firni_ask_parse(wire, body, exchange->body.len, firni_request_header(exchange, "X-Firn-Namespace"),
                         server->env, &ask, &problem)) {
        return firni_reply_problem(exchange, &problem);
    }
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    if (!firni_ask_take_headers(&ask, firni_request_header(exchange, "X-Firn-Session"),
                                firni_request_header(exchange, "X-Firn-Request-Id"), &problem) ||
        !firni_auth_namespace(exchange, ask.ns, ns, &problem)) {
        firni_ask_deinit(&ask);
        return firni_reply_problem(exchange, &problem);
    }
    memcpy(ask.ns, ns, sizeof ns);
    firni_buffer_deinit(&exchange->body); /* the parsed form has everything */
    const bool stream = ask.stream;
    firni_generation *generation = firni_generation_start(exchange, wire, &ask, &problem);
    if (generation == NULL) {
        return firni_reply_problem(exchange, &problem);
    }
    return stream ? firni_stream_reply(exchange, generation) : reply_whole(exchange, generation);
}

enum MHD_Result firni_handle_completions(firni_exchange *exchange)
{
    return handle(exchange, &firni_wire_completions);
}

enum MHD_Result firni_handle_chat(firni_exchange *exchange)
{
    return handle(exchange, &firni_wire_chat);
}
