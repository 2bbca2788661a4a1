/* The directory: modes, markers, locks, a second process, and what happens when it vanishes or fills. */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N 150u

typedef struct state {
    test_world world;
    fixture fix;
    char *parent;
    char dir[560];
    firn_token tokens[N + 1], more[N + 1];
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_directory", 31);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    fixture_random_tokens(&rng, s->more, N + 1);
    s->parent = test_dir_create();
    (void)snprintf(s->dir, sizeof s->dir, "%s/cache", s->parent);
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    test_dir_remove(s->parent);
    free(s->parent);
    free(s);
    return 0;
}

static firn_status try_open(const state *s, bool read_only, firn_tier **tier, firn_error *err)
{
    const firn_disk_options options = {
        .dir = s->dir, .schema = &s->fix.schema, .pool = s->fix.pool, .read_only = read_only
    };
    *err = (firn_error){ 0 };
    return firn_disk_open(&options, s->fix.env, tier, err);
}

static unsigned mode_of(const state *s, const char *name)
{
    char path[700];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/%s", s->dir, name);
    assert_int_equal(stat(path, &st), 0);
    return (unsigned)st.st_mode & 0777u;
}

static void files_are_private_whatever_the_umask(void **in)
{
    state *s = *in;
    const mode_t umasks[] = { 0, 022, 077 };
    for (size_t i = 0; i < 3; i++) {
        const mode_t before = umask(umasks[i]);
        (void)mkdir(s->dir, 0777); /* also when somebody else made it open to all */
        firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
        assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
        firn_tier_destroy(tier);
        (void)umask(before);
        assert_int_equal(mode_of(s, "."), 0700);
        assert_int_equal(mode_of(s, "index"), 0700);
        assert_int_equal(mode_of(s, "firn.lock"), 0600);
        assert_int_equal(mode_of(s, "index/data.mdb"), 0600);
        assert_int_equal(mode_of(s, "index/lock.mdb"), 0600);
        assert_int_equal(mode_of(s, "seg-00000001.firn"), 0600);
        test_dir_remove(s->dir);
    }
}

static void write_file(const state *s, const char *name, const char *text)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", s->dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_foreign_directory_is_refused_and_untouched(void **in)
{
    state *s = *in;
    firn_tier *tier;
    firn_error err;
    assert_int_equal(mkdir(s->dir, 0755), 0);
    write_file(s, "thesis.txt", "important");
    assert_status(try_open(s, false, &tier, &err), FIRN_ERR_FORMAT);
    assert_null(tier);
    assert_non_null(strstr(err.message, s->dir));
    assert_int_equal(mode_of(s, "."), 0755);
    write_file(s, "firn.lock", "firn disk tier, format 9\n");
    assert_status(try_open(s, false, &tier, &err), FIRN_ERR_FORMAT);
    write_file(s, "firn.lock", "");
    assert_status(try_open(s, false, &tier, &err), FIRN_ERR_FORMAT);
    assert_int_equal(mode_of(s, "thesis.txt") & 0600, 0600);
}

static void a_directory_left_by_a_crash_at_creation_is_taken_over(void **in)
{
    state *s = *in;
    assert_int_equal(mkdir(s->dir, 0700), 0);
    write_file(s, "firn.lock", "firn disk ti");
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
}

static void an_unusable_path_says_what_to_do(void **in)
{
    state *s = *in;
    firn_tier *tier;
    firn_error err;
    (void)snprintf(s->dir, sizeof s->dir, "%s/no/such/parent", s->parent);
    assert_status(try_open(s, false, &tier, &err), FIRN_ERR_IO);
    assert_int_equal(err.os_error, ENOENT);
    assert_non_null(strstr(err.message, s->dir));
    assert_status(try_open(s, true, &tier, &err), FIRN_ERR_IO);
    const firn_disk_options tiny = { .dir = s->dir, .budget_bytes = 1 << 20 };
    assert_status(firn_disk_open(&tiny, NULL, &tier, &err), FIRN_ERR_INVALID);
}

static void a_second_writer_is_refused_with_a_message(void **in)
{
    state *s = *in;
    firn_tier *second;
    firn_error err;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_status(try_open(s, false, &second, &err), FIRN_ERR_BUSY);
    assert_null(second);
    char pid[32];
    (void)snprintf(pid, sizeof pid, "pid %ld", (long)getpid());
    assert_non_null(strstr(err.message, pid));
    assert_non_null(strstr(err.message, "read-only"));
    firn_tier_destroy(tier);
    assert_ok(try_open(s, false, &second, &err)); /* the lock went with the first */
    firn_tier_destroy(second);
}

/* In a child process: a read-only look at a store that the parent is writing. Exits with 0 when all is right. */
static int read_as_other_process(const state *s)
{
    fixture fix;
    firn_reason reason;
    fixture_init(&fix, NULL, NULL);
    const firn_disk_options options = { .read_only = true };
    firn_tier *tier = fixture_open(&fix, s->dir, &options);
    const bool found = fixture_fetch(&fix, tier, NULL, s->tokens, N + 1, &reason) == N;
    const firn_reason refused = fixture_store(&fix, tier, NULL, s->more, N);
    uint64_t n_good, n_bad;
    const bool verified = firn_disk_verify(tier, &n_good, &n_bad, NULL) == FIRN_OK && n_good == 3 && n_bad == 0;
    firn_tier_destroy(tier);
    firn_tier *writer;
    firn_error err;
    const bool busy = try_open(s, false, &writer, &err) == FIRN_ERR_BUSY;
    return found && refused == FIRN_REASON_READ_ONLY && verified && busy ? 0 : 1;
}

static void a_second_process_may_read_but_not_write(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_true(firn_tier_flush(tier, 1000000000).durable);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        /* A new program as far as LMDB can tell: nothing of the parent's store is touched. */
        _exit(read_as_other_process(s));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->more, N + 1, &reason), N);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static firn_reason state_of(firn_tier *tier)
{
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    return stats.state;
}

static void a_deleted_directory_gives_misses_and_recovers_when_it_is_back(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    const firn_match held = firn_tier_find(tier, s->tokens, N + 1, NULL);
    assert_non_null(held.handle);
    test_dir_remove(s->dir);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_GONE);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_GONE);
    assert_int_equal(state_of(tier), FIRN_REASON_GONE);
    assert_false(firn_tier_flush(tier, UINT64_C(20000000000)).durable);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(tier, held.handle, 0, &restored), FIRN_REASON_GONE);
    /* Back again: found after a pause, without a restart, as a new and empty store. */
    assert_int_equal(mkdir(s->dir, 0755), 0);
    s->world.clock_offset_ns += UINT64_C(60000000000);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_NO_PREFIX);
    assert_int_equal(state_of(tier), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    assert_int_equal(firn_tier_restore(tier, held.handle, 0, &restored), FIRN_REASON_GONE); /* of the old one */
    firn_tier_release(tier, held.handle);
    assert_int_equal(mode_of(s, "."), 0700);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void a_replaced_directory_is_noticed_by_the_next_store(void **in)
{
    state *s = *in;
    char aside[700];
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    (void)snprintf(aside, sizeof aside, "%s/aside", s->parent);
    assert_int_equal(rename(s->dir, aside), 0);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_GONE);
    assert_int_equal(rename(aside, s->dir), 0);
    s->world.clock_offset_ns += UINT64_C(60000000000);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_NONE);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N); /* with all it held */
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void what_the_system_refuses_is_a_named_state_and_serving_goes_on(void **in)
{
    state *s = *in;
    const struct {
        int number;
        firn_reason reason;
    } faults[] = { { ENOSPC, FIRN_REASON_DISK_FULL },
                   { EDQUOT, FIRN_REASON_DISK_FULL },
                   { EACCES, FIRN_REASON_READ_ONLY },
                   { EROFS, FIRN_REASON_READ_ONLY },
                   { EIO, FIRN_REASON_IO_ERROR } };
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        s->world.fail_errno = faults[i].number;
        s->world.fail_op_at[TEST_IO_PWRITEV] = s->world.n_ops[TEST_IO_PWRITEV] + 1;
        firn_tier_stats before, after;
        firn_tier_get_stats(tier, &before);
        assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), faults[i].reason);
        firn_tier_get_stats(tier, &after);
        assert_int_equal(after.state, faults[i].reason);
        assert_int_equal(after.n_store_refused, before.n_store_refused + 1);
        assert_int_equal(after.physical_bytes, fixture_disk_bytes(s->dir));
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->more, N + 1, &reason), 0);
        fixture_check(tier);
    }
    s->world.fail_op_at[TEST_IO_PWRITEV] = 0;
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->more, N), FIRN_REASON_NONE);
    assert_int_equal(state_of(tier), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
}

static void inspection_needs_no_schema(void **in)
{
    state *s = *in;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
    const firn_disk_options options = { .dir = s->dir, .read_only = true };
    assert_ok(firn_disk_open(&options, NULL, &tier, NULL));
    assert_int_equal(firn_tier_find(tier, s->tokens, N, NULL).reason, FIRN_REASON_DISABLED);
    const firn_store_input input = { .tokens = s->tokens, .n_tokens = 0 };
    firn_reason reason;
    assert_false(firn_tier_store(tier, &input, &reason));
    assert_int_equal(reason, FIRN_REASON_DISABLED);
    uint64_t n_good, n_bad;
    assert_ok(firn_disk_verify(tier, &n_good, &n_bad, NULL));
    assert_int_equal(n_good, 3);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_are_private_whatever_the_umask, setup, teardown),
        cmocka_unit_test_setup_teardown(a_foreign_directory_is_refused_and_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(a_directory_left_by_a_crash_at_creation_is_taken_over, setup, teardown),
        cmocka_unit_test_setup_teardown(an_unusable_path_says_what_to_do, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_writer_is_refused_with_a_message, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_process_may_read_but_not_write, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deleted_directory_gives_misses_and_recovers_when_it_is_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_replaced_directory_is_noticed_by_the_next_store, setup, teardown),
        cmocka_unit_test_setup_teardown(what_the_system_refuses_is_a_named_state_and_serving_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(inspection_needs_no_schema, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
