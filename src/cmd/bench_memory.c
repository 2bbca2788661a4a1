/*
 * What this machine can stream from memory with the same threads: all of a buffer larger than any cache is read. Decode
 * cannot be faster than its bytes at this rate.
 */
#define _GNU_SOURCE /* madvise: large pages, as the weights have them */
#include <string.h>
#include <sys/mman.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define BUFFER_BYTES (UINT64_C(512) << 20)
#define PART_BYTES (UINT64_C(4) << 20)
#define LINE_WORDS 8u /* 64 bytes */
#define N_STREAMS 4u
#define AHEAD_WORDS 256u
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

typedef struct stream_job {
    const uint64_t *words;
    _Atomic uint64_t sum;   /* keeps the reads from being optimised away */
} stream_job;

/* One word of each cache line: the whole line has to come, and nothing but memory is the limit. Four streams a thread,
 * fetched ahead, as a product reads its panels: one stream gives two thirds of what memory has. */
static void read_part(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    stream_job *job = ctx;
    const size_t n_words = PART_BYTES / sizeof *job->words / N_STREAMS; /* of a stream */
    const uint64_t *words = job->words + index * N_STREAMS * n_words;
    uint64_t sums[N_STREAMS] = {0};
    for (size_t i = 0; i < n_words; i += LINE_WORDS) {
        for (uint32_t j = 0; j < N_STREAMS; j++) {
            __builtin_prefetch(words + j * n_words + i + AHEAD_WORDS);
            sums[j] += words[j * n_words + i];
        }
    }
    for (uint32_t j = 0; j < N_STREAMS; j++) {
        job->sum += sums[j];
    }
}

firn_status firni_bench_stream(firni_bench *bench, uint32_t n_runs, firn_error *err)
{
    uint8_t *buffer = firni_alloc_aligned(bench->env, BUFFER_BYTES, HUGE_PAGE_BYTES);
    if (buffer == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the streaming read's buffer of 512 MiB");
    }
    (void)madvise(buffer, BUFFER_BYTES, MADV_HUGEPAGE);
    memset(buffer, 1, BUFFER_BYTES);
    stream_job job = { .words = (const uint64_t *)(const void *)buffer };
    const uint32_t n_parts = BUFFER_BYTES / PART_BYTES;
    firn_status status = FIRN_OK;
    for (uint32_t run = 0; run < n_runs && status == FIRN_OK; run++) {
        job.sum = 0;
        const uint64_t begin_ns = firni_now_ns(bench->env);
        firn_workers_run(bench->stack->workers, n_parts, read_part, &job);
        const uint64_t elapsed_ns = firni_now_ns(bench->env) - begin_ns;
        if (job.sum != BUFFER_BYTES / (8 * LINE_WORDS) * UINT64_C(0x0101010101010101)) {
            status = firni_fail(err, FIRN_ERR_STATE, "the streaming read saw other bytes than were written");
        }
        firni_sample_add(&bench->stream_rate, (double)BUFFER_BYTES / ((double)elapsed_ns * 1e-9));
    }
    firni_free(bench->env, buffer);
    return status;
}
