/*
 * Where packed weights lie: which files of their directory stay, which make room, and that nothing else is touched.
 */
#include "packed_rig.h"

#include <fcntl.h>

#define MIB (UINT64_C(1) << 20)

static void exists(const char *path, bool expected)
{
    struct stat st;
    if ((stat(path, &st) == 0) != expected) {
        fail_msg("%s %s", path, expected ? "is gone" : "is still there");
    }
}

/* Another model file with packed weights of its own; both paths are written to. */
static void add_model(packed_rig *rig, const char *name, uint8_t fingerprint, char model[512], char packed[512])
{
    packed_rig other = *rig;
    (void)snprintf(model, 512, "%s/%s", rig->dir, name);
    (void)snprintf(other.model, sizeof other.model, "%s", model);
    rig_write_model(model, name);
    firni_packed_place place = rig_place(&other, fingerprint, NULL);
    assert_ok(rig_write(&other, &place, UINT64_MAX, false, NULL));
    (void)snprintf(packed, 512, "%s", place.path);
    firni_packed_place_deinit(&place);
}

static void set_age(const char *path, time_t seconds)
{
    const struct timespec times[2] = { { .tv_sec = 1700000000 - seconds }, { .tv_sec = 1700000000 - seconds } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void a_model_that_has_changed_or_gone_loses_its_file_and_others_keep_theirs(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 1);
    char kept_model[512], kept[512], changed_model[512], changed[512], gone_model[512], gone[512];
    char foreign[600], name[600];
    add_model(&rig, "kept.gguf", 1, kept_model, kept);
    add_model(&rig, "changed.gguf", 2, changed_model, changed);
    add_model(&rig, "gone.gguf", 3, gone_model, gone);
    rig_write_model(changed_model, "other bytes");
    assert_int_equal(unlink(gone_model), 0);
    (void)snprintf(foreign, sizeof foreign, "%s/notes.txt", rig.packed);
    (void)snprintf(name, sizeof name, "%s/0123.packed", rig.packed);
    rig_write_model(foreign, "mine");
    rig_write_model(name, "mine");

    firni_packed_place place = rig_place(&rig, 4, NULL);
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, NULL));
    exists(place.path, true);
    exists(kept, true);
    exists(changed, false);
    exists(gone, false);
    exists(foreign, true);
    exists(name, true);
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

static void a_changed_model_is_another_source(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 2);
    firni_packed_place before = rig_place(&rig, 1, NULL);
    firni_packed_place again = rig_place(&rig, 1, NULL);
    assert_string_equal(before.path, again.path);
    set_age(rig.model, 77); /* the same bytes of the same fingerprint: who knows what else */
    firni_packed_place later = rig_place(&rig, 1, NULL);
    assert_string_not_equal(before.path, later.path);
    firni_packed_place_deinit(&before);
    firni_packed_place_deinit(&again);
    firni_packed_place_deinit(&later);
    rig_deinit(&rig);
}

static void the_oldest_files_make_room_and_the_limit_holds(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 3);
    char models[3][512], files[3][512];
    for (uint8_t i = 0; i < 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "m%u.gguf", i);
        add_model(&rig, name, (uint8_t)(10 + i), models[i], files[i]);
    }
    set_age(files[0], 20);
    set_age(files[1], 40);
    set_age(files[2], 30);
    firni_packed_place place = rig_place(&rig, 1, NULL);
    firn_error err = { .message = "" };
    /* A file is a little more than 6 MiB: three fit 20, one alone fits 7. */
    assert_ok(rig_write(&rig, &place, 20 * MIB, false, &err));
    exists(files[1], false);
    exists(files[0], true);
    exists(files[2], true);
    assert_true(firni_packed_dir_bytes(rig.packed, NULL) <= 20 * MIB);
    assert_status(rig_write(&rig, &place, 6 * MIB, true, &err), FIRN_ERR_CAPACITY);
    exists(place.path, true); /* refused before anything was removed */
    exists(files[0], true);
    assert_ok(rig_write(&rig, &place, 7 * MIB, true, &err));
    exists(files[0], false);
    exists(files[2], false);
    assert_true(firni_packed_dir_bytes(rig.packed, NULL) <= 7 * MIB);
    rig_expect_whole(&rig, &place);
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

/* ---- the file system ---- */

typedef struct made_fs {
    firn_io io;
    uint64_t free_bytes;
} made_fs;

static int made_stat_fs(void *ctx, const char *path, firn_io_fs *out)
{
    (void)path;
    *out = (firn_io_fs){ .size_bytes = 1000 * MIB, .free_bytes = ((const made_fs *)ctx)->free_bytes };
    return 0;
}

static void the_reserve_of_the_file_system_stays_free(void **state)
{
    (void)state;
    packed_rig rig;
    rig_init(&rig, 4);
    made_fs fs = { .io = *firn_io_default(), .free_bytes = 56 * MIB }; /* a twentieth is 50 */
    fs.io.stat_fs = made_stat_fs;
    fs.io.ctx = &fs;
    const firn_env env = { .io = &fs.io };
    firni_packed_place place = rig_place(&rig, 1, &env);
    firn_error err = { .message = "" };
    assert_status(rig_write(&rig, &place, UINT64_MAX, false, &err), FIRN_ERR_CAPACITY);
    assert_non_null(strstr(err.message, "56 MiB are free"));
    assert_int_equal(files_ending(rig.packed, ".packed") + files_ending(rig.packed, ".partial"), 0);
    fs.free_bytes = 57 * MIB;
    assert_ok(rig_write(&rig, &place, UINT64_MAX, false, &err));
    firni_packed_place_deinit(&place);
    rig_deinit(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_has_changed_or_gone_loses_its_file_and_others_keep_theirs),
        cmocka_unit_test(a_changed_model_is_another_source),
        cmocka_unit_test(the_oldest_files_make_room_and_the_limit_holds),
        cmocka_unit_test(the_reserve_of_the_file_system_stays_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
