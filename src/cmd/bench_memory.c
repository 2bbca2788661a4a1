/*
 * What this machine can stream from memory with the same threads: all of a buffer larger than any cache is read. Decode
 * cannot be faster than its bytes at this rate.
 */
#define _GNU_SOURCE /* madvise: large pages, as the weights have them */
#include <string.h>
#include <sys/mman.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "cmd/bench_stream.h"

#define BUFFER_BYTES (UINT64_C(512) << 20)
#define PART_BYTES (UINT64_C(4) << 20)
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

typedef struct stream_job {
    const uint64_t *words;
    _Atomic uint64_t sum;   /* keeps the reads from being optimised away */
} stream_job;

static void read_part(void *ctx, uint32_t index, uint32_t thread)
{
    (void)thread;
    stream_job *job = ctx;
    const size_t n_words = PART_BYTES / sizeof *job->words;
    job->sum += firni_stream_read(job->words + index * n_words, n_words);
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
        if (job.sum != BUFFER_BYTES / (8 * FIRNI_STREAM_LINE_WORDS) * UINT64_C(0x0101010101010101)) {
            status = firni_fail(err, FIRN_ERR_STATE, "the streaming read saw other bytes than were written");
        }
        firni_sample_add(&bench->stream_rate, (double)BUFFER_BYTES / ((double)elapsed_ns * 1e-9));
    }
    firni_free(bench->env, buffer);
    return status;
}
