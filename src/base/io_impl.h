/*
 * io: the two ways of reading a batch. io.c owns the table of defaults; io_uring.c owns the ring.
 */
#ifndef FIRNI_IO_IMPL_H
#define FIRNI_IO_IMPL_H

#include <stdbool.h>

#include "firn/env.h"

#define FIRNI_IO_DIRECT_ALIGN 512u /* smallest unit in which direct I/O can make progress before the end of a file */

/* Reads iov in full, or up to the end of the file; `n_done` bytes of it are already there. Returns the bytes read in
 * total, or -errno. */
int64_t firni_io_read_all(int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset, uint64_t n_done);

/* Performs the batch on an io_uring. Returns false, with no read started and no callback made, when this kernel or its
 * policy does not offer one. */
bool firni_io_uring_read_batch(firn_io_read *reads, uint32_t n_reads, void (*done)(void *done_ctx, uint32_t index),
                               void *done_ctx);

#endif
