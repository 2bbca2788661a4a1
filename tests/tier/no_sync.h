/*
 * A test program without syncs: what is synced is decided by the system when it likes, as after a process that died.
 *
 * Hundreds of stores are hundreds of syncs, of a disk that takes milliseconds for each and is shared with other tests.
 * Where nothing but the power could tell the difference they are left out; whether all of them are made, and in the
 * right order, is tested by those programs that lose power (crash_model.h) or count calls (libc_seam.h).
 *
 * LMDB and io.c call libc, and so bind to what the executable defines. Included by one file of a program.
 */
#ifndef FIRN_TESTS_NO_SYNC_H
#define FIRN_TESTS_NO_SYNC_H

#include <fcntl.h>
#include <unistd.h>

int fdatasync(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int fsync(int fd)
{
    return fdatasync(fd);
}

#endif
