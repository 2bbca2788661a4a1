/*
 * Buffers and valid JSON strings. Well-formed UTF-8 is table 3-7 of the Unicode standard: no overlong forms, no
 * surrogates, nothing beyond U+10FFFF.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/json_text.h"

#define BUFFER_BYTES_MIN 256u
/* Nine digits bring a float back to the bit; more would only look precise. */
#define DUMP_FLAGS (JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))

void firni_buffer_init(firni_buffer *buffer, const firn_env *env)
{
    *buffer = (firni_buffer){ .env = env };
}

void firni_buffer_deinit(firni_buffer *buffer)
{
    firni_free(buffer->env, buffer->data);
    *buffer = (firni_buffer){ .env = buffer->env };
}

/* Makes room for n_bytes more and the NUL. */
static bool reserve(firni_buffer *buffer, size_t n_bytes)
{
    size_t needed;
    if (buffer->failed || !firni_add_size(buffer->len, n_bytes, &needed) || !firni_add_size(needed, 1, &needed)) {
        buffer->failed = true;
        return false;
    }
    if (needed <= buffer->cap) {
        return true;
    }
    size_t cap = buffer->cap == 0 ? BUFFER_BYTES_MIN : buffer->cap;
    while (cap < needed) {
        cap = cap > SIZE_MAX / 2 ? needed : cap * 2;
    }
    char *data = firni_grow(buffer->env, buffer->data, buffer->len, cap, 1);
    if (data == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->cap = cap;
    return true;
}

void firni_buffer_append(firni_buffer *buffer, const void *bytes, size_t n_bytes)
{
    if (!reserve(buffer, n_bytes)) {
        return;
    }
    if (n_bytes > 0) {
        memcpy(buffer->data + buffer->len, bytes, n_bytes);
    }
    buffer->len += n_bytes;
    buffer->data[buffer->len] = '\0';
}

void firni_buffer_text(firni_buffer *buffer, const char *text)
{
    firni_buffer_append(buffer, text, strlen(text));
}

void firni_buffer_format(firni_buffer *buffer, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    const int n_bytes = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n_bytes < 0 || (size_t)n_bytes >= sizeof line) { /* a cut line would be wrong rather than short */
        buffer->failed = true;
        return;
    }
    firni_buffer_append(buffer, line, (size_t)n_bytes);
}

/* json_dump_callback_t */
static int append_dumped(const char *bytes, size_t n_bytes, void *ctx)
{
    firni_buffer *buffer = ctx;
    firni_buffer_append(buffer, bytes, n_bytes);
    return buffer->failed ? -1 : 0;
}

void firni_buffer_json_new(firni_buffer *buffer, json_t *value)
{
    if (value == NULL || json_dump_callback(value, append_dumped, buffer, DUMP_FLAGS) != 0) {
        buffer->failed = true;
    }
    json_decref(value);
}

size_t firni_utf8_sequence(const char *bytes, size_t n_bytes)
{
    if (n_bytes == 0) {
        return 0;
    }
    const unsigned char *s = (const unsigned char *)bytes;
    /* The second byte's range is narrower after E0, ED, F0 and F4; all others are 80..BF. */
    unsigned low = 0x80, high = 0xBF;
    size_t len;
    if (s[0] < 0x80) {
        return 1;
    } else if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        len = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        len = 3;
        low = s[0] == 0xE0 ? 0xA0 : 0x80;
        high = s[0] == 0xED ? 0x9F : 0xBF;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        len = 4;
        low = s[0] == 0xF0 ? 0x90 : 0x80;
        high = s[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (n_bytes < len || s[1] < low || s[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < len; i++) {
        if (s[i] < 0x80 || s[i] > 0xBF) {
            return 0;
        }
    }
    return len;
}

size_t firni_utf8_count(const char *bytes, size_t n_bytes)
{
    size_t n_points = 0;
    for (size_t at = 0; at < n_bytes; n_points++) {
        const size_t len = firni_utf8_sequence(bytes + at, n_bytes - at);
        at += len > 0 ? len : 1;
    }
    return n_points;
}

/* Every byte that does not begin a valid sequence is replaced by itself, so that positions stay explicable. */
json_t *firni_valid_text(const char *bytes, size_t n_bytes)
{
    size_t n_valid = 0;
    while (n_valid < n_bytes) {
        const size_t len = firni_utf8_sequence(bytes + n_valid, n_bytes - n_valid);
        if (len == 0) {
            break;
        }
        n_valid += len;
    }
    if (n_valid == n_bytes) { /* the common case: nothing to replace, no copy */
        return json_stringn_nocheck(n_bytes > 0 ? bytes : "", n_bytes);
    }
    firni_buffer clean = { 0 };
    firni_buffer_append(&clean, bytes, n_valid);
    for (size_t at = n_valid; at < n_bytes;) {
        const size_t len = firni_utf8_sequence(bytes + at, n_bytes - at);
        firni_buffer_append(&clean, len > 0 ? bytes + at : "\xEF\xBF\xBD", len > 0 ? len : 3);
        at += len > 0 ? len : 1;
    }
    json_t *text = clean.failed ? NULL : json_stringn_nocheck(clean.data, clean.len);
    firni_buffer_deinit(&clean);
    return text;
}
