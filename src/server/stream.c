/*
 * Server-sent events: an answer as it is made. The connection's thread asks for bytes; it waits here for tokens and
 * gives what they render to. Format: the WHATWG HTML standard, section 9.2 (server-sent events).
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/generate.h"

#define BLOCK_BYTES 16384u

/* One streaming reply; the context of its response. Invariant: out[n_sent, len) is rendered and not sent. */
typedef struct stream_state {
    firni_generation *generation;
    firni_buffer out;   /* rendered; sent up to n_sent */
    size_t n_sent;
    bool begun, done;   /* done: nothing will be rendered any more */
} stream_state;

/* Renders all that has arrived; the tokens of one step of a fast engine may come together. */
static void render_news(stream_state *stream)
{
    firni_generation *generation = stream->generation;
    firni_answer *answer = &generation->answer;
    if (!stream->begun) {
        stream->begun = true;
        generation->wire->stream_begin(answer, &stream->out);
    }
    for (uint32_t i = 0; i < answer->pieces.n_tokens; i++) {
        const firni_piece piece = firni_pieces_at(&answer->pieces, i);
        generation->wire->stream_piece(answer, &piece, &stream->out);
        answer->n_text_points += firni_utf8_count(piece.text, piece.len_text);
    }
    const firni_piece tail = firni_pieces_tail(&answer->pieces);
    if (tail.len_text > 0) {
        generation->wire->stream_piece(answer, &tail, &stream->out);
    }
    firni_pieces_clear(&answer->pieces);
}

/* Waits for something and renders it. False when the stream is to be cut. */
static bool advance(stream_state *stream)
{
    firni_generation *generation = stream->generation;
    const firni_wait wait = firni_generation_wait(generation);
    switch (wait) {
    case FIRNI_WAIT_GONE: return false;
    case FIRNI_WAIT_NEWS: render_news(stream); break;
    case FIRNI_WAIT_QUIET: /* a comment, which every reader of events skips: proxies close what is silent */
        firni_buffer_text(&stream->out, ": reading the prompt\n\n");
        break;
    case FIRNI_WAIT_ENDED:
        render_news(stream);
        generation->wire->stream_end(&generation->answer, &stream->out);
        stream->done = true;
        break;
    case FIRNI_WAIT_FAILED: /* the status line is long sent: the error is an event, and there is no [DONE] */
        firni_sse_data_new(&stream->out, firni_problem_json(&generation->problem));
        stream->done = true;
        break;
    }
    return !stream->out.failed;
}

/* MHD_ContentReaderCallback: runs on the connection's thread and may block. */
static ssize_t read_some(void *ctx, uint64_t position, char *bytes, size_t n_bytes_max)
{
    (void)position;
    stream_state *stream = ctx;
    if (stream->n_sent == stream->out.len) {
        stream->n_sent = 0;
        stream->out.len = 0;
        if (stream->done) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        firni_generation *generation = stream->generation;
        firni_idle_timeout_off(generation->connection);
        while (stream->out.len == 0) { /* a token may render to nothing */
            if (!advance(stream)) {
                return MHD_CONTENT_READER_END_WITH_ERROR;
            }
        }
        firni_idle_timeout_on(generation->connection, generation->server);
    }
    const size_t n_left = stream->out.len - stream->n_sent;
    const size_t n_bytes = n_left < n_bytes_max ? n_left : n_bytes_max;
    memcpy(bytes, stream->out.data + stream->n_sent, n_bytes);
    stream->n_sent += n_bytes;
    return (ssize_t)n_bytes;
}

/* Called by the HTTP library when the reply is over, however it ended. */
static void free_stream(void *ctx)
{
    stream_state *stream = ctx;
    const firn_env *env = stream->generation->server->env;
    firni_buffer_deinit(&stream->out);
    firni_generation_destroy(stream->generation); /* cancels when the client left early */
    firni_free(env, stream);
}

enum MHD_Result firni_stream_reply(firni_exchange *exchange, firni_generation *generation)
{
    const firn_env *env = exchange->server->env;
    stream_state *stream = firni_calloc(env, 1, sizeof *stream);
    if (stream == NULL) {
        (void)firni_problem_set(&generation->problem, 503, "no_memory", NULL, "out of memory");
        firni_generation_destroy(generation);
        return firni_reply_json_new(exchange, 503, NULL);
    }
    stream->generation = generation;
    generation->quiet_ns = exchange->server->options.sse_quiet_ns_max;
    firni_buffer_init(&stream->out, env);
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_some, stream,
                                                                      free_stream);
    if (response == NULL) {
        free_stream(stream);
        return firni_reply_json_new(exchange, 503, NULL);
    }
    (void)MHD_add_response_header(response, "Content-Type", "text/event-stream");
    (void)MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies must not collect tokens */
    return firni_reply_response(exchange, 200, response);
}
