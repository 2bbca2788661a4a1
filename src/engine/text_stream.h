/*
 * text_stream: the bytes of an answer's tokens in, text that may be shown out.
 *
 *      pieces   "Hel" "lo \xE2\x82" "\xAC EN" "D more"        stop string "END"
 *      text     "Hel" "lo "         "\xE2\x82\xAC "  ""       stopped
 *
 * Two things are held back at the end: an incomplete UTF-8 sequence, and the longest tail that a stop string could
 * begin with. A stop string is recognised by bytes, whatever tokens it is spread over: the one that is completed first
 * wins, the longest among those completed by the same byte, the first listed among equals. Text before it is released;
 * it and what follows is dropped.
 *
 * One stream belongs to one answer and one thread. All memory is allocated at creation.
 */
#ifndef FIRNI_TEXT_STREAM_H
#define FIRNI_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

typedef struct firni_text_stream firni_text_stream;

#define FIRNI_STOP_BYTES_MAX 4096u   /* of one stop string */
#define FIRNI_STOPS_MAX 16u
#define FIRNI_PIECE_BYTES_MAX 65536u /* of one token; a longer piece, which no sane vocabulary has, is cut there */

/* The stops are copied. Errors: INVALID (an empty or too long stop string, too many), NO_MEMORY. */
firn_status firni_text_stream_create(const char *const *stops, uint32_t n_stops, const firn_env *env,
                                     firni_text_stream **out, firn_error *err);
void firni_text_stream_destroy(firni_text_stream *stream); /* accepts NULL */

/* Before the first push: drops one space at the very beginning, which SentencePiece vocabularies put before a first
 * word. */
void firni_text_stream_strip_leading_space(firni_text_stream *stream);

/* Takes one token's bytes. *text (never NULL, not NUL-terminated, *len_text may be 0) is valid until the next call.
 * Returns true when a stop string was completed, with its index; further pushes then give nothing. */
bool firni_text_stream_push(firni_text_stream *stream, const char *bytes, size_t n_bytes, const char **text,
                            size_t *len_text, uint32_t *stop_index);

/* The answer is over: releases what is held, an incomplete sequence as it is. Nothing is left afterwards. */
void firni_text_stream_end(firni_text_stream *stream, const char **text, size_t *len_text);

#endif
