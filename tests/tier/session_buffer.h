/* A session file in memory, with an end. */
#ifndef FIRN_TEST_SESSION_BUFFER_H
#define FIRN_TEST_SESSION_BUFFER_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

typedef struct session_buffer {
    uint8_t *bytes;
    size_t n, n_max, at;
} session_buffer;

static inline session_buffer session_buffer_make(void)
{
    session_buffer out = { .n_max = 8u << 20 };
    out.bytes = malloc(out.n_max);
    assert_non_null(out.bytes);
    return out;
}

static inline bool session_sink(void *ctx, const void *bytes, size_t n)
{
    session_buffer *out = ctx;
    if (out->n + n > out->n_max) {
        return false;
    }
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return true;
}

static inline bool session_source(void *ctx, void *bytes, size_t n)
{
    session_buffer *in = ctx;
    if (in->at + n > in->n) {
        return false;
    }
    memcpy(bytes, in->bytes + in->at, n);
    in->at += n;
    return true;
}

#endif
