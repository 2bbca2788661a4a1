/*
 * The file of packed weights: what is written is what is mapped, any damage is found, and whatever ends a write leaves
 * the file that was there, or a whole new one, or none.
 */
#include "packed_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static void what_was_written_is_mapped_to_the_bit(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 1);
    firni_packed_place place = rig_place(&rig, 1, NULL);
    firni_packed *packed = NULL;
    assert_status(firni_packed_map(&place, NULL, &packed, NULL), FIRN_ERR_NOT_FOUND);
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    rig_expect_whole(&rig, &place);

    struct stat st;
    assert_int_equal(stat(place.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(rig.packed, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(files_ending(rig.packed, ".partial"), 0);

    /* In another order, too, and nothing that is not quite what is asked for. */
    assert_ok(firni_packed_map(&place, NULL, &packed, NULL));
    assert_non_null(firni_packed_find(packed, &rig.entries[4]));
    assert_non_null(firni_packed_find(packed, &rig.entries[0]));
    firni_packed_entry other = rig.entries[1];
    other.n_rows++;
    assert_null(firni_packed_find(packed, &other));
    other = rig.entries[1];
    other.type = FIRNI_WEIGHT_Q4_0;
    assert_null(firni_packed_find(packed, &other));
    other = rig.entries[1];
    other.name[0] = 'x';
    assert_null(firni_packed_find(packed, &other));
    firni_packed_unmap(packed);
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

static void flip(const char *path, uint64_t offset, uint8_t mask)
{
    const int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

static void expect_refused(const firni_packed_place *place, const char *what, uint64_t where)
{
    firni_packed *packed = NULL;
    firn_error err = { .message = "" };
    const firn_status status = firni_packed_map(place, NULL, &packed, &err);
    if ((status != FIRN_ERR_FORMAT && status != FIRN_ERR_CORRUPT) || packed != NULL || err.message[0] == '\0') {
        fail_msg("%s at %llu: %s, \"%s\"", what, (unsigned long long)where, firn_status_name(status), err.message);
    }
}

/* Every byte of the head, and of the panels one here and there. */
static void any_changed_byte_is_found(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 2);
    firni_packed_place place = rig_place(&rig, 2, NULL);
    test_rng rng = test_rng_create("any_changed_byte_is_found", 2);
    struct stat st;
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    assert_int_equal(stat(place.path, &st), 0);
    for (uint64_t at = 0; at < FIRNI_PACKED_ALIGN; at++) {
        const uint8_t mask = (uint8_t)(1u << test_rng_below(&rng, 8));
        flip(place.path, at, mask);
        expect_refused(&place, "head", at);
        flip(place.path, at, mask);
    }
    for (uint32_t i = 0; i < 40; i++) {
        const uint64_t at = FIRNI_PACKED_ALIGN + test_rng_u64(&rng) % ((uint64_t)st.st_size - FIRNI_PACKED_ALIGN);
        flip(place.path, at, 1);
        expect_refused(&place, "panels", at);
        flip(place.path, at, 1);
    }
    rig_expect_whole(&rig, &place);
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

static void a_file_of_another_length_is_refused(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 3);
    firni_packed_place place = rig_place(&rig, 3, NULL);
    struct stat st;
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    assert_int_equal(stat(place.path, &st), 0);
    const uint64_t whole = (uint64_t)st.st_size;
    assert_int_equal(truncate(place.path, (off_t)(whole + 1)), 0);
    expect_refused(&place, "longer", whole + 1);
    const uint64_t lengths[] = { whole - 1, whole - 4096, FIRNI_PACKED_CHUNK_BYTES, 4096, 4095, 200, 104, 103, 1, 0 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(truncate(place.path, (off_t)lengths[i]), 0);
        expect_refused(&place, "cut", lengths[i]);
    }
    /* What is damaged is replaced. */
    assert_ok(rig_write(&rig, &place, UINT64_MAX, true, NULL));
    rig_expect_whole(&rig, &place);
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

/* Numbers that no writer would write, behind checksums that hold: what is left when bytes are all there is to trust. */
static void a_head_with_good_checksums_and_bad_numbers_is_refused(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 4);
    firni_packed_place place = rig_place(&rig, 4, NULL);
    static const struct {
        uint64_t offset, n_bytes;
    } bad[] = { { 1, 16 }, { 0, 16 }, { UINT64_MAX - 4095, 8192 }, { 4096, UINT64_MAX }, { UINT64_C(1) << 40, 0 } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        firni_packed_head head;
        assert_true(firni_packed_head_plan(&place.source, rig.entries, RIG_ENTRIES, &head));
        firni_packed_entry entries[RIG_ENTRIES];
        memcpy(entries, rig.entries, sizeof entries);
        entries[3].offset = bad[i].offset;
        entries[3].n_bytes = bad[i].n_bytes;
        uint64_t *sums = calloc(head.n_chunks, sizeof *sums);
        uint8_t *bytes = malloc((size_t)head.panels_offset);
        assert_true(sums != NULL && bytes != NULL);
        firni_packed_head_encode(&head, entries, sums, bytes);
        firni_packed_head decoded;
        assert_ok(firni_packed_head_decode(bytes, head.panels_offset, head.file_bytes, &decoded, NULL));
        assert_status(firni_packed_head_verify(&decoded, bytes, NULL), FIRN_ERR_FORMAT);
        free(bytes);
        free(sums);
    }
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

static void a_file_under_another_models_name_is_refused(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 5);
    firni_packed_place place = rig_place(&rig, 5, NULL);
    firni_packed_place other = rig_place(&rig, 6, NULL);
    assert_string_not_equal(place.path, other.path);
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    assert_int_equal(rename(place.path, other.path), 0);
    expect_refused(&other, "other", 0);
    firni_packed_place_deinit(&place);
    firni_packed_place_deinit(&other);
    rig_deinit(&rig);
}

/* One call fails, of any kind, at any time: an error and what was there before, or success and a whole file. */
static void whatever_fails_leaves_the_old_file_or_a_whole_one(void **state)
{
    (void)state;
    static const int errnos[] = { ENOSPC, EROFS, EIO };
    for (uint32_t kind = 0; kind < 4; kind++) {
        packed_rig rig;
        rig_init(&rig, 7);
        uint32_t n_refused = 0;
        for (uint64_t n = 1;; n++) {
            test_world world;
            test_world_init(&world);
            firni_packed_place place = rig_place(&rig, 7, &world.env);
            firni_packed_place plain = rig_place(&rig, 7, NULL);
            const uint64_t n_setup = world.n_io;
            if (kind < 3) {
                world.fail_io_at = n_setup + n;
                world.fail_errno = errnos[kind];
                world.fail_on = kind == 0; /* a full disk stays full */
            } else {
                world.fail_alloc_at = world.n_allocs + n;
            }
            firn_error err = { .message = "" };
            const firn_status status = rig_write(&rig, &place, UINT64_MAX, true, &err);
            const bool clean = !world.io_failed && !world.alloc_failed;
            world.fail_io_at = 0;
            world.fail_on = false;
            if (status == FIRN_OK) {
                rig_expect_whole(&rig, &plain);
            } else {
                n_refused++;
                assert_true(err.message[0] != '\0' && !clean);
                firni_packed *packed = NULL;
                const firn_status mapped = firni_packed_map(&plain, NULL, &packed, NULL);
                assert_true(mapped == FIRN_OK || mapped == FIRN_ERR_NOT_FOUND);
                firni_packed_unmap(packed);
            }
            (void)unlink(place.path);
            firni_packed_place_deinit(&plain);
            firni_packed_place_deinit(&place);
            test_world_deinit(&world);
            if (clean) {
                break;
            }
        }
        assert_true(n_refused > (kind == 3 ? 2 : 5));
        rig_deinit(&rig);
    }
}

static void short_writes_are_carried_on(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 8);
    test_world world;
    test_world_init(&world);
    world.short_io = true;
    world.fail_on = true;
    world.fail_op_at[TEST_IO_PWRITEV] = 1;
    firni_packed_place place = rig_place(&rig, 8, &world.env);
    /* Each write moves half of what is left, and the last byte never comes: an error, and no file. */
    firn_error err = { .message = "" };
    assert_status(rig_write(&rig, &place, UINT64_MAX, false, &err), FIRN_ERR_IO);
    assert_int_equal(files_ending(rig.packed, ".packed"), 0);
    assert_int_equal(files_ending(rig.packed, ".partial"), 0);
    world.fail_on = false;
    world.fail_op_at[TEST_IO_PWRITEV] = world.n_ops[TEST_IO_PWRITEV] + 2;
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, &err));
    assert_true(world.io_failed);
    rig_expect_whole(&rig, &place);
    firni_packed_place_deinit(&place);
    test_world_deinit(&world);
    rig_deinit(&rig);
}

/* ---- killed ---- */

typedef struct deadly {
    firn_io io;
    uint32_t n_left;
} deadly;

static void count_down(deadly *d)
{
    if (--d->n_left == 0) {
        (void)kill(getpid(), SIGKILL);
    }
}

static int64_t deadly_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    count_down(ctx);
    return firn_io_default()->pwritev(NULL, fd, iov, n_iov, offset);
}

static int deadly_datasync(void *ctx, int fd)
{
    count_down(ctx);
    return firn_io_default()->datasync(NULL, fd);
}

static int deadly_rename(void *ctx, const char *from, const char *to)
{
    count_down(ctx);
    return firn_io_default()->rename(NULL, from, to);
}

static int deadly_sync_dir(void *ctx, const char *path)
{
    count_down(ctx);
    return firn_io_default()->sync_dir(NULL, path);
}

static bool write_in_a_child_that_dies(packed_rig *rig, uint32_t at)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        deadly d = { .io = *firn_io_default(), .n_left = at };
        d.io.pwritev = deadly_pwritev;
        d.io.datasync = deadly_datasync;
        d.io.rename = deadly_rename;
        d.io.sync_dir = deadly_sync_dir;
        d.io.ctx = &d;
        const firn_env env = { .io = &d.io };
        firni_packed_place place = rig_place(rig, 9, &env);
        _exit(rig_write(rig, &place, UINT64_MAX, false, NULL) == FIRN_OK ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status);
}

static void a_killed_writer_leaves_none_or_a_whole_file_and_the_next_one_cleans_up(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 9);
    firni_packed_place place = rig_place(&rig, 9, NULL);
    uint32_t n_killed = 0;
    for (uint32_t at = 1; write_in_a_child_that_dies(&rig, at); at++) {
        n_killed++;
        const uint32_t n_left = files_ending(rig.packed, ".packed");
        if (n_left != 0) {
            rig_expect_whole(&rig, &place);
        } else {
            assert_int_equal(files_ending(rig.packed, ".partial"), 1);
        }
        assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
        rig_expect_whole(&rig, &place);
        assert_int_equal(files_ending(rig.packed, ".partial"), 0);
        assert_int_equal(unlink(place.path), 0);
    }
    assert_true(n_killed >= 7); /* 4 pieces, head, sync, rename, and the sync of the directory */
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

static void one_writes_at_a_time_and_a_stop_ends_it(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 10);
    firni_packed_place place = rig_place(&rig, 10, NULL);
    assert_int_equal(mkdir(rig.packed, 0700), 0);
    const int fd = open(place.lock_path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(firn_io_default()->lock(NULL, fd), 0);
    assert_status(rig_write(&rig, &place, UINT64_MAX, false, NULL), FIRN_ERR_BUSY);
    assert_int_equal(close(fd), 0);
    atomic_store(&rig.stop, true);
    assert_status(rig_write(&rig, &place, UINT64_MAX, false, NULL), FIRN_ERR_CANCELLED);
    assert_int_equal(files_ending(rig.packed, ".packed") + files_ending(rig.packed, ".partial"), 0);
    atomic_store(&rig.stop, false);
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_mapped_to_the_bit),
        cmocka_unit_test(any_changed_byte_is_found),
        cmocka_unit_test(a_file_of_another_length_is_refused),
        cmocka_unit_test(a_head_with_good_checksums_and_bad_numbers_is_refused),
        cmocka_unit_test(a_file_under_another_models_name_is_refused),
        cmocka_unit_test(whatever_fails_leaves_the_old_file_or_a_whole_one),
        cmocka_unit_test(short_writes_are_carried_on),
        cmocka_unit_test(a_killed_writer_leaves_none_or_a_whole_file_and_the_next_one_cleans_up),
        cmocka_unit_test(one_writes_at_a_time_and_a_stop_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
