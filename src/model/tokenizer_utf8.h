/*
 * One character of UTF-8, strictly: no overlong forms, no surrogates, nothing beyond U+10FFFF (Unicode 15, table 3-7).
 */
#ifndef FIRNI_TOKENIZER_UTF8_H
#define FIRNI_TOKENIZER_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The length of the character that `text` begins with, 1 to 4, and the character itself; 0 when there is none. */
static inline uint32_t firni_utf8_decode(const char *text, size_t len_bytes, uint32_t *out)
{
    const unsigned char *s = (const unsigned char *)text;
    if (len_bytes == 0) {
        return 0;
    }
    const uint32_t lead = s[0];
    if (lead < 0x80) {
        *out = lead;
        return 1;
    }
    const uint32_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || n > len_bytes) {
        return 0;
    }
    uint32_t character = lead & (0x7Fu >> n);
    for (uint32_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
        character = character << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (character < least[n] || character > 0x10FFFF || (character >= 0xD800 && character <= 0xDFFF)) {
        return 0;
    }
    *out = character;
    return n;
}

#endif
