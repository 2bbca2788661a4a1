/*
 * lloyd_tables: Lloyd-Max quantisers of the unit normal distribution for 2, 3, 4, 5 and 8 bits, as integers.
 *
 * The tables are made by tools/lloyd_max.c, which says how, and checked in, so that no build depends on the last bit
 * of a mathematical library. tests/kernel/test_lloyd.sh makes them again and compares.
 */
#ifndef FIRNI_LLOYD_TABLES_H
#define FIRNI_LLOYD_TABLES_H

#include <stdint.h>

/* Code c stands for unit * (levels[c] - centre). Levels ascend from 0 to 2 * centre, and levels[n - 1 - c] is
 * 2 * centre - levels[c]. */
typedef struct firni_lloyd {
    float unit;
    int32_t centre;
    const uint8_t *bytes;    /* the levels of up to 5 bits, in 16 or 32 bytes; NULL: they are wider */
    const uint16_t *levels;  /* the same as words */
    const float *thresholds; /* n - 1: a number takes the code that is the number of thresholds below it */
} firni_lloyd;

/* `bits` is one of 2, 3, 4, 5, 8. Static storage. */
const firni_lloyd *firni_lloyd_of(uint32_t bits);

#endif
