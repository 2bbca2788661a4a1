/*
 * The streaming read: what memory gives to one thread when nothing but memory is the limit. One place for `firn bench`
 * and for the benchmark of kernels, so that their shares of it are shares of the same thing.
 */
#ifndef FIRNI_BENCH_STREAM_H
#define FIRNI_BENCH_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { FIRNI_STREAMS = 4, FIRNI_STREAM_LINE_WORDS = 8 /* 64 bytes */, FIRNI_STREAM_AHEAD_WORDS = 256 };

/* The sum of one word of each cache line: the whole line has to come. Four streams, fetched ahead, as a product reads
 * its panels: one stream gives two thirds of what memory has. n_words is a multiple of the lines of all streams. */
FIRNI_INLINE uint64_t firni_stream_read(const uint64_t *words, size_t n_words)
{
    const size_t n = n_words / FIRNI_STREAMS; /* of a stream */
    uint64_t sums[FIRNI_STREAMS] = {0};
    for (size_t i = 0; i < n; i += FIRNI_STREAM_LINE_WORDS) {
        for (size_t j = 0; j < FIRNI_STREAMS; j++) {
            __builtin_prefetch(words + j * n + i + FIRNI_STREAM_AHEAD_WORDS);
            sums[j] += words[j * n + i];
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

#endif
