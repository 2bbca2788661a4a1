/*
 * Real file systems of the test's own, where the system lets it mount one: full at each page, and taken away under the
 * tier. Elsewhere the same faults come from the seams (test_disk_faults.c, test_disk_torture.c).
 */
#define _GNU_SOURCE /* MNT_DETACH */
#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N            150u
#define DISK_BYTES   (UINT64_C(4) << 20)
#define PAGE_BYTES   4096u
#define ROOM_MAX     (UINT64_C(192) << 10) /* more than any store of the test needs */
#define ROOM_RESERVE (UINT64_C(512) << 10) /* more than a tier may want to leave free of so small a disk */

typedef struct state {
    test_world world;
    fixture fix;
    char *mount_point;
    char dir[600], filler[600];
    bool is_mounted;
    firn_token tokens[N + 1], more[N + 1];
} state;

static bool mount_here(state *s)
{
    s->is_mounted = mount("tmpfs", s->mount_point, "tmpfs", MS_NODEV | MS_NOSUID, "size=4m") == 0;
    return s->is_mounted;
}

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_mount", 61);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    fixture_random_tokens(&rng, s->more, N + 1);
    s->mount_point = test_dir_create();
    (void)snprintf(s->dir, sizeof s->dir, "%s/cache", s->mount_point);
    (void)snprintf(s->filler, sizeof s->filler, "%s/filler", s->mount_point);
    (void)mount_here(s);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    while (s->is_mounted && umount2(s->mount_point, MNT_DETACH) == 0) {
    }
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    test_dir_remove(s->mount_point);
    free(s->mount_point);
    free(s);
    return 0;
}

static uint64_t free_bytes(const state *s)
{
    struct statvfs now;
    assert_int_equal(statvfs(s->mount_point, &now), 0);
    return (uint64_t)now.f_bavail * now.f_frsize;
}

/* Makes a file that leaves this much of the disk. */
static void leave_free(const state *s, uint64_t n_bytes)
{
    (void)unlink(s->filler);
    const int fd = open(s->filler, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_true(free_bytes(s) > n_bytes);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)(free_bytes(s) - n_bytes)), 0);
    (void)close(fd);
}

static firn_reason state_of(firn_tier *tier)
{
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    return stats.state;
}

static void a_file_system_full_at_any_page_is_a_named_state_and_loses_nothing(void **in)
{
    state *s = *in;
    if (!s->is_mounted) {
        skip();
    }
    firn_reason reason;
    const firn_disk_options to_the_last_page = { .min_free_bytes = FIRN_DISK_NO_RESERVE };
    firn_tier *tier = fixture_open(&s->fix, s->dir, &to_the_last_page);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(tier, UINT64_C(5000000000)).durable);
    uint32_t n_refused = 0, n_stored = 0;
    for (uint64_t room = 0; room <= ROOM_MAX; room += 2 * PAGE_BYTES) {
        leave_free(s, room);
        s->more[N - 1]++; /* another tail each time */
        const firn_reason stored = fixture_store(&s->fix, tier, NULL, s->more, N);
        if (stored == FIRN_REASON_NONE) {
            n_stored++;
        } else {
            n_refused++;
            assert_int_equal(stored, FIRN_REASON_DISK_FULL); /* also where LMDB says EIO of a write that was cut
                                                              * short */
            assert_int_equal(state_of(tier), stored);
        }
        const bool is_whole = fixture_fetch(&s->fix, tier, NULL, s->more, N + 1, &reason) == N;
        assert_int_equal(is_whole, stored == FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
        fixture_check(tier);
    }
    print_message("%u stores refused, %u found room\n", n_refused, n_stored);
    assert_true(n_refused > 3 && n_stored > 3);
    leave_free(s, ROOM_RESERVE);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_NONE);
    assert_int_equal(state_of(tier), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
    /* A start on a full disk is a start: what is there is served. */
    leave_free(s, 0);
    tier = fixture_open(&s->fix, s->dir, &to_the_last_page);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    firn_tier_destroy(tier);
}

static void a_disk_too_full_for_a_new_store_says_so(void **in)
{
    state *s = *in;
    if (!s->is_mounted) {
        skip();
    }
    for (uint64_t room = 0; room <= UINT64_C(64) << 10; room += PAGE_BYTES) {
        leave_free(s, room);
        firn_tier *tier = NULL;
        firn_error err = { 0 };
        const firn_disk_options options = { .dir = s->dir, .schema = &s->fix.schema, .pool = s->fix.pool };
        if (firn_disk_open(&options, s->fix.env, &tier, &err) == FIRN_OK) {
            firn_tier_destroy(tier);
        } else {
            assert_int_equal(err.status, FIRN_ERR_IO);
            assert_int_equal(err.os_error, ENOSPC);
            assert_non_null(strstr(err.message, s->dir));
        }
    }
    leave_free(s, ROOM_RESERVE); /* whatever the attempts left behind is taken over */
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void an_unmounted_file_system_is_gone_and_another_one_is_taken_up(void **in)
{
    state *s = *in;
    if (!s->is_mounted) {
        skip();
    }
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(umount2(s->mount_point, MNT_DETACH), 0);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_GONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_GONE);
    assert_int_equal(state_of(tier), FIRN_REASON_GONE);
    /* Nothing was made in the directory that the mount had covered: it is another file system, perhaps the root's. */
    assert_int_not_equal(access(s->dir, F_OK), 0);
    assert_true(mount_here(s));
    assert_int_equal(mkdir(s->dir, 0700), 0);
    s->world.clock_offset_ns += UINT64_C(60000000000);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_system_full_at_any_page_is_a_named_state_and_loses_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_disk_too_full_for_a_new_store_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(an_unmounted_file_system_is_gone_and_another_one_is_taken_up, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
