/*
 * json_text: growing byte buffers and JSON strings that are always valid.
 *
 * Model output may hold bytes that are no UTF-8 (a token that was cut, a byte token of a wild model). What leaves the
 * server is valid UTF-8 in any case: each offending byte becomes U+FFFD.
 */
#ifndef FIRNI_JSON_TEXT_H
#define FIRNI_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "firn/env.h"

/* Invariant: data holds len bytes and one NUL behind them, or is NULL while nothing was ever appended. `failed` is
 * sticky: once memory was refused, later appends do nothing, so that a caller checks once at the end. */
typedef struct firni_buffer {
    const firn_env *env;
    char *data;
    size_t len, cap;
    bool failed;
} firni_buffer;

void firni_buffer_init(firni_buffer *buffer, const firn_env *env);
void firni_buffer_deinit(firni_buffer *buffer); /* accepts a zeroed buffer */
void firni_buffer_append(firni_buffer *buffer, const void *bytes, size_t n_bytes);
void firni_buffer_text(firni_buffer *buffer, const char *text);
void firni_buffer_format(firni_buffer *buffer, const char *format, ...) FIRNI_PRINTF(2, 3);
/* Appends `value` as compact JSON and drops the reference; a NULL value (no memory while it was built) fails the
 * buffer. */
void firni_buffer_json_new(firni_buffer *buffer, json_t *value);

/* Length of the valid UTF-8 sequence at the start of bytes[0..n_bytes), or 0 when the first byte does not begin one. */
size_t firni_utf8_sequence(const char *bytes, size_t n_bytes);
/* Number of code points, each offending byte counting as one. */
size_t firni_utf8_count(const char *bytes, size_t n_bytes);
/* A new JSON string with each offending byte replaced; NULL without memory. */
json_t *firni_valid_text(const char *bytes, size_t n_bytes);

#endif
