/*
 * Batches of reads on an io_uring: up to QUEUE_DEPTH in flight, completed in whatever order the device answers.
 *
 * Owns one ring for the length of a call: a ring per thread would need state that outlives calls, and setting one up
 * costs some tens of microseconds against the milliseconds of a batch. Does not own the portable path (io.c), which
 * also finishes what a ring leaves short.
 *
 * Source: the interface of liburing 2.x (io_uring_setup(7)).
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>

#include "base/io_impl.h"

#define QUEUE_DEPTH     32u
#define IOV_MAX_ENTRIES 1024u

/* Places one read in the submission queue, which has room for it by construction. */
static void prepare_read(struct io_uring *ring, const firn_io_read *read, uint32_t index)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    assert(sqe != NULL);
    io_uring_prep_readv(sqe, read->fd, read->iov, read->n_iov, read->offset);
    io_uring_sqe_set_data64(sqe, index);
}

/* The final result of a read for which the ring answered `result`. */
static int64_t finish_read(const firn_io_read *read, int32_t result)
{
    if (result == -EINTR || result == -EAGAIN) {
        return firni_io_read_all(read->fd, read->iov, read->n_iov, read->offset, 0);
    }
    /* Whole or short: going on from what is there ends at the full length or at the end of the file. */
    return result > 0 ? firni_io_read_all(read->fd, read->iov, read->n_iov, read->offset, (uint64_t)result) : result;
}

/* Waits for one completion, sets its result and reports it. */
static void reap_one(struct io_uring *ring, firn_io_read *reads, void (*done)(void *done_ctx, uint32_t index),
                     void *done_ctx)
{
    struct io_uring_cqe *cqe = NULL;
    int waited;
    do {
        waited = io_uring_wait_cqe(ring, &cqe);
    } while (waited == -EINTR || waited == -EAGAIN);
    /* Waiting on a ring of our own with a read in flight has no other way to fail; leaving with the read still out
     * would let the kernel write into memory that the caller frees. */
    assert(waited == 0);
    const uint32_t index = (uint32_t)io_uring_cqe_get_data64(cqe);
    const int32_t result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    reads[index].result = finish_read(&reads[index], result);
    if (done != NULL) {
        done(done_ctx, index);
    }
}

bool firni_io_uring_read_batch(firn_io_read *reads, uint32_t n_reads, void (*done)(void *done_ctx, uint32_t index),
                               void *done_ctx)
{
    struct io_uring ring;
    if (io_uring_queue_init(n_reads < QUEUE_DEPTH ? n_reads : QUEUE_DEPTH, &ring, 0) < 0) {
        return false; /* ENOSYS, EPERM or ENOMEM: the portable path needs none of it */
    }
    uint32_t n_started = 0, n_in_flight = 0;
    bool ring_works = true;
    while (n_started < n_reads || n_in_flight > 0) {
        uint32_t n_prepared = 0;
        while (ring_works && n_started + n_prepared < n_reads && n_in_flight + n_prepared < QUEUE_DEPTH &&
               reads[n_started + n_prepared].n_iov <= IOV_MAX_ENTRIES) {
            prepare_read(&ring, &reads[n_started + n_prepared], n_started + n_prepared);
            n_prepared++;
        }
        if (n_prepared > 0) {
            int submitted;
            do {
                submitted = io_uring_submit(&ring);
            } while (submitted == -EINTR);
            /* What was not taken stays in the queue of this ring and is never submitted: it is read below. */
            ring_works = submitted == (int)n_prepared;
            n_in_flight += submitted > 0 ? (uint32_t)submitted : 0;
            n_started += submitted > 0 ? (uint32_t)submitted : 0;
        }
        if (n_in_flight > 0) {
            reap_one(&ring, reads, done, done_ctx);
            n_in_flight--;
        } else if (n_started < n_reads) {
            firn_io_read *read = &reads[n_started];
            read->result = firni_io_read_all(read->fd, read->iov, read->n_iov, read->offset, 0);
            n_started++;
            if (done != NULL) {
                done(done_ctx, n_started - 1);
            }
        }
    }
    io_uring_queue_exit(&ring);
    return true;
}
