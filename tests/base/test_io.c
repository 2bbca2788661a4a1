/* The default files: batches larger than the queue, short reads, ends of files, holes, locks, errors as numbers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "support/support.h"

#define N_PAGES 300u
#define PAGE    4096u

typedef struct state {
    const firn_io *io;
    char *dir;
    char path[560];
    uint8_t *bytes; /* what the file holds */
    int fd;
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("io", 81);
    s->io = firn_io_default();
    s->dir = test_dir_create();
    (void)snprintf(s->path, sizeof s->path, "%s/file", s->dir);
    s->bytes = malloc(N_PAGES * PAGE);
    for (size_t i = 0; i < N_PAGES * PAGE; i++) {
        s->bytes[i] = (uint8_t)test_rng_u64(&rng);
    }
    s->fd = s->io->open(NULL, s->path, O_RDWR | O_CREAT, 0600);
    assert_true(s->fd >= 0);
    const struct iovec iov[2] = { { .iov_base = s->bytes, .iov_len = PAGE },
                                  { .iov_base = s->bytes + PAGE, .iov_len = (N_PAGES - 1) * PAGE } };
    assert_int_equal(s->io->pwritev(NULL, s->fd, iov, 2, 0), N_PAGES * PAGE);
    assert_int_equal(s->io->datasync(NULL, s->fd), 0);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    assert_int_equal(s->io->close(NULL, s->fd), 0);
    test_dir_remove(s->dir);
    free(s->bytes);
    free(s->dir);
    free(s);
    return 0;
}

typedef struct seen {
    uint32_t n_done, n_of[N_PAGES];
    const firn_io_read *reads;
    bool result_was_set;
} seen;

static void on_done(void *ctx, uint32_t index)
{
    seen *all = ctx;
    all->n_done++;
    all->n_of[index]++;
    all->result_was_set = all->result_was_set && all->reads[index].result != 12345;
}

static void a_batch_larger_than_the_queue_reads_everything_once(void **in)
{
    state *s = *in;
    uint8_t *found = calloc(N_PAGES, PAGE);
    struct iovec(*iov)[2] = calloc(N_PAGES, sizeof *iov);
    firn_io_read *reads = calloc(N_PAGES, sizeof *reads);
    for (uint32_t n_reads = 1; n_reads <= N_PAGES; n_reads += n_reads < 3 ? 1 : 99) {
        seen all = { .reads = reads, .result_was_set = true };
        memset(found, 0, N_PAGES * PAGE);
        for (uint32_t i = 0; i < n_reads; i++) {
            const uint32_t page = (i * 7) % N_PAGES; /* 7 and 300 have no common factor: each page once */
            iov[i][0] = (struct iovec){ .iov_base = found + page * PAGE, .iov_len = 100 };
            iov[i][1] = (struct iovec){ .iov_base = found + page * PAGE + 100, .iov_len = PAGE - 100 };
            reads[i] = (firn_io_read){ .fd = s->fd, .offset = page * PAGE, .iov = iov[i], .n_iov = 2, .result = 12345 };
        }
        assert_int_equal(s->io->read_batch(NULL, reads, n_reads, on_done, &all), 0);
        assert_int_equal(all.n_done, n_reads);
        assert_true(all.result_was_set);
        for (uint32_t i = 0; i < n_reads; i++) {
            assert_int_equal(all.n_of[i], 1);
            assert_int_equal(reads[i].result, PAGE);
            assert_memory_equal(iov[i][0].iov_base, s->bytes + reads[i].offset, PAGE);
        }
    }
    free(found);
    free(iov);
    free(reads);
}

static void a_read_past_the_end_says_how_much_there_was(void **in)
{
    state *s = *in;
    uint8_t *found = malloc(4 * PAGE);
    const struct iovec iov = { .iov_base = found, .iov_len = 4 * PAGE };
    firn_io_read reads[4] = {
        { .fd = s->fd, .offset = 0, .iov = &iov, .n_iov = 1 },
        { .fd = s->fd, .offset = (N_PAGES - 1) * PAGE, .iov = &iov, .n_iov = 1 },
        { .fd = s->fd, .offset = N_PAGES * PAGE, .iov = &iov, .n_iov = 1 },
        { .fd = -1, .offset = 0, .iov = &iov, .n_iov = 1 },
    };
    assert_int_equal(s->io->read_batch(NULL, reads, 4, NULL, NULL), 0);
    assert_int_equal(reads[0].result, 4 * PAGE);
    assert_int_equal(reads[1].result, PAGE);
    assert_int_equal(reads[2].result, 0);
    assert_int_equal(reads[3].result, -EBADF);
    assert_int_equal(s->io->pread(NULL, s->fd, found, 10, N_PAGES * PAGE - 4), 4);
    free(found);
}

static void more_parts_than_one_call_takes_are_read_too(void **in)
{
    state *s = *in;
    const uint32_t n_parts = 2500;
    uint8_t *found = malloc(n_parts * 3);
    struct iovec *iov = calloc(n_parts, sizeof *iov);
    for (uint32_t i = 0; i < n_parts; i++) {
        iov[i] = (struct iovec){ .iov_base = found + 3 * (size_t)i, .iov_len = 3 };
    }
    firn_io_read reads[2] = { { .fd = s->fd, .offset = 5, .iov = iov, .n_iov = n_parts },
                              { .fd = s->fd, .offset = 5, .iov = iov, .n_iov = n_parts } };
    assert_int_equal(s->io->read_batch(NULL, reads, 2, NULL, NULL), 0);
    assert_int_equal(reads[1].result, 3 * n_parts);
    assert_memory_equal(found, s->bytes + 5, 3 * n_parts);
    free(found);
    free(iov);
}

static void punching_gives_blocks_back_and_reads_as_zeros(void **in)
{
    state *s = *in;
    firn_io_stat before, after;
    assert_int_equal(s->io->stat(NULL, s->fd, &before), 0);
    const int punched = s->io->punch(NULL, s->fd, 8 * PAGE, 64 * PAGE);
    if (punched == -EOPNOTSUPP) {
        skip();
    }
    assert_int_equal(punched, 0);
    assert_int_equal(s->io->stat(NULL, s->fd, &after), 0);
    assert_int_equal(after.size_bytes, before.size_bytes);
    assert_true(after.physical_bytes + 60 * PAGE <= before.physical_bytes);
    uint8_t found[PAGE];
    const uint8_t zeros[PAGE] = { 0 };
    assert_int_equal(s->io->pread(NULL, s->fd, found, PAGE, 20 * PAGE), PAGE);
    assert_memory_equal(found, zeros, PAGE);
}

static void a_lock_excludes_other_open_files_until_it_is_closed(void **in)
{
    state *s = *in;
    const int other = s->io->open(NULL, s->path, O_RDWR, 0);
    assert_int_equal(s->io->lock(NULL, s->fd), 0);
    assert_int_equal(s->io->lock(NULL, other), -EAGAIN);
    const int third = s->io->open(NULL, s->path, O_RDWR, 0);
    assert_int_equal(s->io->close(NULL, third), 0); /* closing a bystander keeps the lock */
    assert_int_equal(s->io->lock(NULL, other), -EAGAIN);
    assert_int_equal(s->io->close(NULL, s->fd), 0);
    s->fd = other;
    assert_int_equal(s->io->lock(NULL, other), 0);
}

static void count_name(void *ctx, const char *name)
{
    *(uint32_t *)ctx += strcmp(name, "file") == 0 || strcmp(name, "sub") == 0 ? 1 : 100;
}

static void directories_and_links_are_seen(void **in)
{
    state *s = *in;
    char sub[600];
    (void)snprintf(sub, sizeof sub, "%s/sub", s->dir);
    assert_int_equal(s->io->mkdir(NULL, sub, 0700), 0);
    assert_int_equal(s->io->mkdir(NULL, sub, 0700), -EEXIST);
    assert_int_equal(s->io->chmod(NULL, sub, 0500), 0);
    uint32_t n_names = 0;
    assert_int_equal(s->io->list_dir(NULL, s->dir, count_name, &n_names), 0);
    assert_int_equal(n_names, 2);
    assert_int_equal(s->io->sync_dir(NULL, s->dir), 0);
    firn_io_stat by_fd, by_path;
    assert_int_equal(s->io->stat(NULL, s->fd, &by_fd), 0);
    assert_int_equal(s->io->stat_path(NULL, s->path, &by_path), 0);
    assert_int_equal(by_fd.inode, by_path.inode);
    assert_int_equal(by_fd.n_links, 1);
    assert_int_equal(s->io->unlink(NULL, s->path), 0);
    assert_int_equal(s->io->stat(NULL, s->fd, &by_fd), 0);
    assert_int_equal(by_fd.n_links, 0);
    assert_int_equal(s->io->stat_path(NULL, s->path, &by_path), -ENOENT);
    assert_int_equal(s->io->open(NULL, s->path, O_RDONLY, 0), -ENOENT);
    assert_int_equal(s->io->list_dir(NULL, s->path, count_name, &n_names), -ENOENT);
    assert_int_equal(s->io->unlink(NULL, s->path), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_batch_larger_than_the_queue_reads_everything_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_past_the_end_says_how_much_there_was, setup, teardown),
        cmocka_unit_test_setup_teardown(more_parts_than_one_call_takes_are_read_too, setup, teardown),
        cmocka_unit_test_setup_teardown(punching_gives_blocks_back_and_reads_as_zeros, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lock_excludes_other_open_files_until_it_is_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(directories_and_links_are_seen, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
