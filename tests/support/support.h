/*
 * What tests share: a seeded generator that prints its seed, temporary directories, and a firn_env that counts and
 * fails on demand.
 */
#ifndef FIRN_TESTS_SUPPORT_H
#define FIRN_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "firn/env.h"
#include "firn/status.h"

/* ---- random numbers: splitmix64; FIRN_TEST_SEED replays ---- */

typedef struct test_rng {
    uint64_t state;
} test_rng;

test_rng test_rng_create(const char *what, uint64_t default_seed); /* prints "what: seed N" */
uint64_t test_rng_u64(test_rng *rng);
uint32_t test_rng_below(test_rng *rng, uint32_t bound);            /* [0, bound); bound 0 gives 0 */
float test_rng_unit(test_rng *rng);                                /* [-1, 1) */
float test_rng_normal(test_rng *rng);                              /* mean 0, deviation 1 */

/* ---- temporary directories ---- */

char *test_dir_create(void);            /* malloc'ed path of a new empty directory */
void test_dir_remove(const char *path); /* removes it with everything in it */

/* ---- assertions ---- */

#define assert_ok(call)                                                                                               \
    do {                                                                                                              \
        const firn_status assert_ok_status = (call);                                                                  \
        if (assert_ok_status != FIRN_OK) {                                                                            \
            fail_msg("%s: %s", #call, firn_status_name(assert_ok_status));                                            \
        }                                                                                                             \
    } while (0)
#define assert_status(call, expected) assert_string_equal(firn_status_name(call), firn_status_name(expected))

/* ---- a faulty world ---- */

/* Kinds of I/O calls, for aiming. */
typedef enum test_io_op {
    TEST_IO_OPEN, TEST_IO_PREAD, TEST_IO_PWRITEV, TEST_IO_READ_BATCH, TEST_IO_DATASYNC, TEST_IO_SYNC_DIR, TEST_IO_STAT,
    TEST_IO_PUNCH, TEST_IO_UNLINK, TEST_IO_MKDIR, TEST_IO_CHMOD, TEST_IO_STAT_PATH, TEST_IO_LOCK, TEST_IO_LIST_DIR,
    TEST_IO_STAT_FS, TEST_IO_RENAME, TEST_IO_OPS
} test_io_op;

/* Wraps the defaults. Pass &world.env to what is under test. All counters are atomic inside; set the aims only while
 * nothing runs.
 *
 *   for (uint64_t n = 1;; n++) {           the torture loop: fail the nth allocation until a run is clean
 *       test_world_init(&world);
 *       world.fail_alloc_at = n;
 *       ... scenario; assert before-or-after, never between ...
 *       const bool clean = !world.alloc_failed;
 *       test_world_deinit(&world);         asserts that nothing leaked
 *       if (clean) break;
 *   }
 */
typedef struct test_world {
    firn_env env;
    firn_allocator allocator;
    firn_io io;
    firn_clock clock;
    uint64_t fail_alloc_at;        /* 1-based; 0: never */
    uint64_t fail_io_at;           /* the nth I/O call of all kinds; 0: never */
    uint64_t fail_op_at[TEST_IO_OPS]; /* the nth call of one kind; 0: never */
    bool fail_on;                  /* also every later call of the kind that failed */
    int fail_errno;                /* default EIO */
    bool short_io;                 /* instead of failing, reads and writes transfer about half */
    uint64_t read_delay_ns;        /* slept before each read batch entry and pread */
    uint64_t clock_offset_ns;      /* added to both clocks */
    /* results */
    bool alloc_failed, io_failed;
    uint64_t n_allocs, n_live, n_io, n_ops[TEST_IO_OPS];
    uint64_t written_bytes, read_bytes;
    void *impl;
} test_world;

void test_world_init(test_world *world);
/* While threads run: the nth allocation from now fails; 0: none does. */
void test_world_aim_alloc(test_world *world, uint64_t n_from_now);
void test_world_deinit(test_world *world);

#endif
