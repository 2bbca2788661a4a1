/*
 * The GGUF writer: what it writes is what the reader reads, and nothing under the name until all of it is there.
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"

static char *dir;

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const float matrix[6] = { 1, 2, 3, 4, 5, 6 };
    static const int32_t list[3] = { -1, 0, 2147483647 };
    static const uint64_t shape[2] = { 3, 2 };
    const firni_gguf_string texts[2] = { { "a", 1 }, { "", 0 } };
    char path[512];
    firni_gguf_writer *writer = NULL;
    firni_gguf *gguf = NULL;
    (void)snprintf(path, sizeof path, "%s/written.gguf", dir);
    assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
    firni_gguf_put_u32(writer, "u", 4000000000u);
    firni_gguf_put_f32(writer, "f", 0.25F);
    firni_gguf_put_bool(writer, "b", true);
    firni_gguf_put_string(writer, "s", "text", 4);
    firni_gguf_put_array(writer, "a", FIRNI_GGUF_I32, list, 3);
    firni_gguf_put_string_array(writer, "t", texts, 2);
    firni_gguf_declare_tensor(writer, "w", 0, shape, 2, sizeof matrix);
    firni_gguf_declare_tensor(writer, "w2", 0, shape, 2, sizeof matrix);
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    assert_int_not_equal(access(path, F_OK), 0); /* nothing under the name yet */
    for (int i = 0; i < 2; i++) {
        assert_ok(firni_gguf_write_data(writer, matrix, 8, NULL));
        assert_ok(firni_gguf_write_data(writer, &matrix[2], 16, NULL));
        assert_ok(firni_gguf_end_tensor(writer, NULL));
    }
    assert_ok(firni_gguf_writer_finish(writer, NULL));
    firni_gguf_writer_destroy(writer);

    uint32_t u = 0;
    float f = 0;
    bool b = false;
    bool found = false;
    firni_gguf_string s;
    firn_error err;
    assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
    assert_ok(firni_gguf_get_u32(gguf, "u", &u, &found, NULL));
    assert_true(found && u == 4000000000u);
    assert_ok(firni_gguf_get_f32(gguf, "f", &f, &found, NULL));
    assert_true(found && f == 0.25F);
    assert_ok(firni_gguf_get_bool(gguf, "b", &b, &found, NULL));
    assert_true(found && b);
    assert_ok(firni_gguf_get_string(gguf, "s", &s, &found, NULL));
    assert_true(found && s.len_bytes == 4 && memcmp(s.data, "text", 4) == 0);
    assert_ok(firni_gguf_get_u32(gguf, "absent", &u, &found, NULL));
    assert_true(!found && u == 4000000000u);
    assert_status(firni_gguf_get_u32(gguf, "s", &u, &found, &err), FIRN_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'s'"));
    assert_status(firni_gguf_get_bool(gguf, "u", &b, &found, &err), FIRN_ERR_FORMAT);
    assert_status(firni_gguf_get_string(gguf, "t", &s, &found, &err), FIRN_ERR_FORMAT);
    assert_status(firni_gguf_get_f32(gguf, "u", &f, &found, &err), FIRN_ERR_FORMAT);
    const firni_gguf_value *a = firni_gguf_find(gguf, "a");
    assert_true(a != NULL && a->is_array && a->n == 3);
    assert_int_equal(firni_gguf_array_i32(a, 0), -1);
    assert_int_equal(firni_gguf_array_i32(a, 2), 2147483647);
    const firni_gguf_tensor *w = firni_gguf_find_tensor(gguf, "w2");
    assert_true(w != NULL && w->n_bytes == sizeof matrix);
    assert_memory_equal(w->data, matrix, sizeof matrix);
    firni_gguf_close(gguf);
}

static void an_unfinished_file_leaves_nothing_behind(void **state)
{
    (void)state;
    static const uint64_t shape[1] = { 4 };
    static const float data[5] = { 0 };
    char path[512];
    firni_gguf_writer *writer = NULL;
    char *own = test_dir_create();
    (void)snprintf(path, sizeof path, "%s/unfinished.gguf", own);
    assert_ok(firni_gguf_writer_create(path, NULL, &writer, NULL));
    firni_gguf_declare_tensor(writer, "w", 0, shape, 1, 16);
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    assert_status(firni_gguf_write_data(writer, data, 20, NULL), FIRN_ERR_INVALID); /* more than declared */
    assert_ok(firni_gguf_write_data(writer, data, 8, NULL));
    assert_status(firni_gguf_end_tensor(writer, NULL), FIRN_ERR_INVALID); /* less than declared */
    assert_status(firni_gguf_writer_finish(writer, NULL), FIRN_ERR_INVALID);
    firni_gguf_writer_destroy(writer);
    assert_int_equal(rmdir(own), 0); /* empty */
    free(own);
}

static void a_full_disk_or_memory_never_leaves_a_broken_file(void **state)
{
    (void)state;
    static const uint64_t shape[1] = { 4 };
    static const float data[4] = { 0 };
    for (uint32_t kind = 0; kind < 2; kind++) {
        bool clean = false;
        for (uint64_t n = 1; !clean; n++) {
            test_world world;
            char path[512];
            firni_gguf_writer *writer = NULL;
            char *own = test_dir_create();
            test_world_init(&world);
            (void)(kind == 0 ? (world.fail_alloc_at = n) : (world.fail_io_at = n));
            (void)snprintf(path, sizeof path, "%s/x.gguf", own);
            firn_status status = firni_gguf_writer_create(path, &world.env, &writer, NULL);
            if (status == FIRN_OK) {
                firni_gguf_put_string(writer, "s", "text", 4);
                firni_gguf_declare_tensor(writer, "w", 0, shape, 1, 16);
                status = firni_gguf_writer_begin_data(writer, NULL);
            }
            if (status == FIRN_OK) {
                status = firni_gguf_write_data(writer, data, 16, NULL);
            }
            if (status == FIRN_OK) {
                status = firni_gguf_end_tensor(writer, NULL);
            }
            if (status == FIRN_OK) {
                status = firni_gguf_writer_finish(writer, NULL);
            }
            const bool failed = world.alloc_failed || world.io_failed;
            world.fail_alloc_at = 0;
            world.fail_io_at = 0;
            firni_gguf_writer_destroy(writer);
            if (access(path, F_OK) == 0) {
                firni_gguf *gguf = NULL;
                assert_ok(firni_gguf_open(path, NULL, &gguf, NULL)); /* whatever is there is whole */
                firni_gguf_close(gguf);
                (void)unlink(path);
            } else {
                assert_int_not_equal(status, FIRN_OK);
            }
            assert_int_equal(rmdir(own), 0);
            free(own);
            test_world_deinit(&world);
            clean = !failed;
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    dir = test_dir_create();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_remove(dir);
    free(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(an_unfinished_file_leaves_nothing_behind),
        cmocka_unit_test(a_full_disk_or_memory_never_leaves_a_broken_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
