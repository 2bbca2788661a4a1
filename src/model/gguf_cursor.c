/*
 * Reading the header of a GGUF file item by item, never past its end, and what a name may look like.
 *
 * Owns nothing: a cursor is a view of the mapping. A failed read leaves the cursor where it was.
 */
#include "model/gguf_impl.h"

#include <string.h>

#include "base/base_impl.h"

uint64_t firni_gguf_left(const firni_gguf_cursor *c)
{
    return (uint64_t)(c->end - c->at);
}

bool firni_gguf_read_u32(firni_gguf_cursor *c, uint32_t *out)
{
    if (firni_gguf_left(c) < 4) {
        return false;
    }
    *out = (uint32_t)c->at[0] | (uint32_t)c->at[1] << 8 | (uint32_t)c->at[2] << 16 | (uint32_t)c->at[3] << 24;
    c->at += 4;
    return true;
}

bool firni_gguf_read_u64(firni_gguf_cursor *c, uint64_t *out)
{
    uint32_t low = 0;
    uint32_t high = 0;
    if (firni_gguf_left(c) < 8) {
        return false;
    }
    (void)firni_gguf_read_u32(c, &low);
    (void)firni_gguf_read_u32(c, &high);
    *out = (uint64_t)high << 32 | low;
    return true;
}

/* The length is compared with what remains before anything is added to a pointer. */
bool firni_gguf_read_string(firni_gguf_cursor *c, firni_gguf_string *out)
{
    uint64_t len = 0;
    const uint8_t *before = c->at;
    if (!firni_gguf_read_u64(c, &len) || len > firni_gguf_left(c)) {
        c->at = before;
        return false;
    }
    *out = (firni_gguf_string){ .data = (const char *)c->at, .len_bytes = (size_t)len };
    c->at += len;
    return true;
}

/* A cut file and a wrong length look alike from here; the place tells which. */
firn_status firni_gguf_fail_truncated(const firni_gguf_cursor *c, const char *what, firn_error *err)
{
    return firni_fail(err, FIRN_ERR_FORMAT, "%s: the file ends, or a length is wrong, inside %s at byte %llu", c->path,
                      what, (unsigned long long)(c->at - c->start));
}

/* Length of the UTF-8 sequence at s, or 0 when it is malformed (overlong, surrogate, beyond U+10FFFF, cut). */
static size_t utf8_sequence(const uint8_t *s, size_t left)
{
    const uint8_t b = s[0];
    if (b < 0x80) {
        return 1;
    }
    const size_t len = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
    if (b < 0xc2 || b > 0xf4 || left < len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((b == 0xe0 && s[1] < 0xa0) || (b == 0xed && s[1] > 0x9f) || (b == 0xf0 && s[1] < 0x90) ||
        (b == 0xf4 && s[1] > 0x8f)) {
        return 0;
    }
    return len;
}

/* Names appear in messages and in lookups: well-formed UTF-8, no control characters, not empty, not huge. */
bool firni_gguf_name_is_sound(firni_gguf_string name)
{
    if (name.len_bytes == 0 || name.len_bytes > FIRNI_GGUF_NAME_BYTES_MAX) {
        return false;
    }
    const uint8_t *s = (const uint8_t *)name.data;
    for (size_t i = 0; i < name.len_bytes;) {
        const size_t len = utf8_sequence(s + i, name.len_bytes - i);
        if (len == 0 || s[i] < 0x20 || s[i] == 0x7f) {
            return false;
        }
        i += len;
    }
    return true;
}

/* Not strcmp: names may contain anything but control characters, and are not terminated. */
int firni_gguf_string_compare(firni_gguf_string a, firni_gguf_string b)
{
    const size_t n = a.len_bytes < b.len_bytes ? a.len_bytes : b.len_bytes;
    const int order = n == 0 ? 0 : memcmp(a.data, b.data, n);
    return order != 0 ? order : (a.len_bytes > b.len_bytes) - (a.len_bytes < b.len_bytes);
}
