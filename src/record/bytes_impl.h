/*
 * Little-endian numbers in byte buffers: what records and index values are made of. Byte by byte, so that the stored
 * bytes are the same on every machine.
 */
#ifndef FIRNI_BYTES_IMPL_H
#define FIRNI_BYTES_IMPL_H

#include <stdint.h>

#include "base/compiler.h"

FIRNI_INLINE void firni_put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

FIRNI_INLINE void firni_put_u32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

FIRNI_INLINE void firni_put_u64(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

FIRNI_INLINE uint16_t firni_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)at[1] << 8);
}

FIRNI_INLINE uint32_t firni_get_u32(const uint8_t *at)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        value |= (uint32_t)at[i] << (8 * i);
    }
    return value;
}

FIRNI_INLINE uint64_t firni_get_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

#endif
