/*
 * The byte-level alphabet: byte-level BPE vocabularies spell each byte as a printable character.
 *
 * Bytes that are printable in Latin-1 (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF) stand for themselves; the other 68, in
 * ascending order, are spelled U+0100, U+0101, ... U+0143. A space is thus U+0120. Source: Radford et al., "Language
 * Models are Unsupervised Multitask Learners" (2019), section 2.2, and its published code.
 */
#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

/* The byte that a character stands for, or -1. */
static int byte_of(uint32_t character)
{
    if ((character >= 0x21 && character <= 0x7E) || (character >= 0xA1 && character <= 0xFF && character != 0xAD)) {
        return (int)character;
    }
    if (character < 0x100 || character > 0x143) {
        return -1;
    }
    /* The other bytes, in order: 0x00-0x20, 0x7F-0xA0, 0xAD. */
    const int index = (int)(character - 0x100);
    return index <= 0x20 ? index : index <= 0x20 + 0x22 ? index - 0x21 + 0x7F : 0xAD;
}

bool firni_alphabet_decode(const char *piece, size_t len_bytes, char *out, size_t *out_bytes)
{
    size_t n = 0;
    size_t at = 0;
    while (at < len_bytes) {
        uint32_t character = 0;
        const uint32_t step = firni_utf8_decode(piece + at, len_bytes - at, &character);
        const int byte = step == 0 ? -1 : byte_of(character);
        if (byte < 0) {
            return false;
        }
        out[n++] = (char)byte;
        at += step;
    }
    *out_bytes = n;
    return true;
}
