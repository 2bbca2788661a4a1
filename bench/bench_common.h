/*
 * What benchmarks share: how they fail, made-up numbers, order. Each defines BENCH_NAME before it includes this.
 */
#ifndef FIRN_BENCH_COMMON_H
#define FIRN_BENCH_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "firn/status.h"

static inline void fatal(const char *why)
{
    fprintf(stderr, "%s: %s\n", BENCH_NAME, why);
    exit(1);
}

static inline void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", BENCH_NAME, what, why);
    exit(1);
}

static inline void check_ok(firn_status status, const firn_error *err)
{
    if (status != FIRN_OK) {
        fail(firn_status_name(status), err->message);
    }
}

/* splitmix64's output function (Steele, Lea, Flood 2014). */
static inline uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
