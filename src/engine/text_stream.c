/*
 * From token bytes to text: see text_stream.h.
 *
 * Each stop string keeps how many of its bytes the text so far ends with, and moves on byte by byte through its failure
 * table. The largest of these numbers is exactly the tail to hold back. Source: Knuth, Morris, Pratt, "Fast pattern
 * matching in strings" (SIAM J. Comput. 6, 1977). UTF-8 well-formedness: The Unicode Standard 15, table 3-7.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "engine/text_stream.h"

typedef struct stop_matcher {
    uint8_t *bytes;
    uint32_t *fallback;  /* [len] length of the longest proper prefix that bytes[0..i] ends with */
    uint32_t len;
    uint32_t n_matched;  /* the text ends with this many first bytes; < len until the stop is complete */
} stop_matcher;

struct firni_text_stream {
    stop_matcher *stops;
    uint32_t n_stops;
    uint8_t *buffer;      /* [0, n_released) was handed out by the last call, [n_released, n_bytes) is held */
    size_t n_released;
    size_t n_bytes;
    size_t capacity;
    bool strips_space;    /* one space is still to be dropped if it comes first */
    bool stopped;
    const firn_env *env;
};

/* Longest tail that UTF-8 can make hold: a lead byte and two continuation bytes. */
#define UTF8_HELD_MAX 3u

static bool stop_matcher_init(stop_matcher *stop, const char *text, const firn_env *env)
{
    stop->len = (uint32_t)strlen(text);
    stop->bytes = firni_calloc(env, stop->len, 1);
    stop->fallback = firni_calloc(env, stop->len, sizeof *stop->fallback);
    if (stop->bytes == NULL || stop->fallback == NULL) {
        return false;
    }
    memcpy(stop->bytes, text, stop->len);
    uint32_t n_matched = 0;
    for (uint32_t i = 1; i < stop->len; i++) {
        while (n_matched > 0 && stop->bytes[i] != stop->bytes[n_matched]) {
            n_matched = stop->fallback[n_matched - 1];
        }
        n_matched += stop->bytes[i] == stop->bytes[n_matched];
        stop->fallback[i] = n_matched;
    }
    return true;
}

/* Returns whether the byte completes the stop. */
static bool stop_matcher_take(stop_matcher *stop, uint8_t byte)
{
    assert(stop->n_matched < stop->len);
    while (stop->n_matched > 0 && byte != stop->bytes[stop->n_matched]) {
        stop->n_matched = stop->fallback[stop->n_matched - 1];
    }
    stop->n_matched += byte == stop->bytes[stop->n_matched];
    return stop->n_matched == stop->len;
}

firn_status firni_text_stream_create(const char *const *stops, uint32_t n_stops, const firn_env *env,
                                     firni_text_stream **out, firn_error *err)
{
    *out = NULL;
    if (n_stops > FIRNI_STOPS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u stop strings; at most %u are allowed", n_stops, FIRNI_STOPS_MAX);
    }
    size_t len_longest = 0;
    for (uint32_t i = 0; i < n_stops; i++) {
        const size_t len = strlen(stops[i]);
        if (len == 0 || len > FIRNI_STOP_BYTES_MAX) {
            return firni_fail(err, FIRN_ERR_INVALID, "stop string %u has %zu bytes; allowed is 1..%u", i, len,
                              FIRNI_STOP_BYTES_MAX);
        }
        len_longest = len > len_longest ? len : len_longest;
    }
    firni_text_stream *stream = firni_calloc(env, 1, sizeof *stream);
    if (stream == NULL) {
        goto fail;
    }
    stream->env = env;
    /* Not cleared: of the room for a longest piece, most answers touch a few hundred bytes. */
    stream->capacity = len_longest + UTF8_HELD_MAX + FIRNI_PIECE_BYTES_MAX;
    stream->buffer = firni_alloc_aligned(env, stream->capacity, 1);
    stream->stops = firni_calloc(env, n_stops, sizeof *stream->stops);
    if (stream->buffer == NULL || (n_stops > 0 && stream->stops == NULL)) {
        goto fail;
    }
    stream->n_stops = n_stops;
    for (uint32_t i = 0; i < n_stops; i++) {
        if (!stop_matcher_init(&stream->stops[i], stops[i], env)) {
            goto fail;
        }
    }
    *out = stream;
    return FIRN_OK;

fail:
    firni_text_stream_destroy(stream);
    return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the text of an answer");
}

void firni_text_stream_destroy(firni_text_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    const firn_env *env = stream->env;
    for (uint32_t i = 0; i < stream->n_stops; i++) {
        firni_free(env, stream->stops[i].bytes);
        firni_free(env, stream->stops[i].fallback);
    }
    firni_free(env, stream->stops);
    firni_free(env, stream->buffer);
    firni_free(env, stream);
}

void firni_text_stream_strip_leading_space(firni_text_stream *stream)
{
    assert(stream->n_bytes == 0 && !stream->stopped);
    stream->strips_space = true;
}

/* Bytes of the sequence that `lead` begins; 0 when it begins none. */
static size_t utf8_length(uint8_t lead)
{
    return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

/* Whether `second` may follow `lead`: shortest form, no surrogates, nothing beyond U+10FFFF. */
static bool utf8_second_fits(uint8_t lead, uint8_t second)
{
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

/* How many last bytes are a sequence that more bytes could complete. */
static size_t utf8_incomplete_tail(const uint8_t *bytes, size_t n_bytes)
{
    for (size_t n_tail = 1; n_tail <= UTF8_HELD_MAX && n_tail <= n_bytes; n_tail++) {
        const uint8_t *tail = bytes + n_bytes - n_tail;
        if ((tail[0] & 0xC0) == 0x80) {
            continue; /* a continuation byte: its lead stands further to the left */
        }
        const bool is_started = utf8_length(tail[0]) > n_tail && (n_tail < 2 || utf8_second_fits(tail[0], tail[1]));
        return is_started ? n_tail : 0;
    }
    return 0;
}

/* Forgets what the last call handed out. */
static void drop_released(firni_text_stream *stream)
{
    memmove(stream->buffer, stream->buffer + stream->n_released, stream->n_bytes - stream->n_released);
    stream->n_bytes -= stream->n_released;
    stream->n_released = 0;
}

/* Moves every matcher on by one byte. True when one is complete: *index is the longest of those. */
static bool match_byte(firni_text_stream *stream, uint8_t byte, uint32_t *index)
{
    bool is_complete = false;
    for (uint32_t i = 0; i < stream->n_stops; i++) {
        if (stop_matcher_take(&stream->stops[i], byte) &&
            (!is_complete || stream->stops[i].len > stream->stops[*index].len)) {
            is_complete = true;
            *index = i;
        }
    }
    return is_complete;
}

bool firni_text_stream_push(firni_text_stream *stream, const char *bytes, size_t n_bytes, const char **text,
                            size_t *len_text, uint32_t *stop_index)
{
    drop_released(stream);
    *text = (const char *)stream->buffer;
    *len_text = 0;
    if (stream->stopped) {
        return true;
    }
    if (stream->strips_space && n_bytes > 0) {
        stream->strips_space = false;
        if (bytes[0] == ' ') {
            bytes++;
            n_bytes--;
        }
    }
    n_bytes = n_bytes < FIRNI_PIECE_BYTES_MAX ? n_bytes : FIRNI_PIECE_BYTES_MAX;
    for (size_t i = 0; i < n_bytes; i++) {
        assert(stream->n_bytes < stream->capacity);
        const uint8_t byte = (uint8_t)bytes[i];
        stream->buffer[stream->n_bytes++] = byte;
        if (match_byte(stream, byte, stop_index)) {
            const uint32_t len_stop = stream->stops[*stop_index].len;
            assert(len_stop <= stream->n_bytes); /* its bytes were held back */
            *len_text = stream->n_bytes - len_stop;
            stream->n_released = stream->n_bytes;
            stream->stopped = true;
            return true;
        }
    }
    size_t n_held = 0;
    for (uint32_t i = 0; i < stream->n_stops; i++) {
        n_held = stream->stops[i].n_matched > n_held ? stream->stops[i].n_matched : n_held;
    }
    assert(n_held <= stream->n_bytes);
    const size_t n_free = stream->n_bytes - n_held;
    stream->n_released = n_free - utf8_incomplete_tail(stream->buffer, n_free);
    *len_text = stream->n_released;
    return false;
}

void firni_text_stream_end(firni_text_stream *stream, const char **text, size_t *len_text)
{
    drop_released(stream);
    *text = (const char *)stream->buffer;
    *len_text = stream->n_bytes;
    stream->n_released = stream->n_bytes;
    stream->stopped = true;
}
