/* Session files: state that leaves a store and comes back into another one, and what a file that is not right says. */
#include "firn/keep.h"
#include "firn/session_file.h"
#include "tier/session_buffer.h"
#include "tier/tier_fixture.h"

#define N_MAX 330u

static void write_session(const fixture *fix, const firn_token *tokens, uint32_t n, session_buffer *out)
{
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(fix, tokens, n, caches);
    assert_ok(firn_session_write(&fix->schema, "chat", tokens, n, (const firn_cache *const *)caches, session_sink, out,
                                 NULL, NULL));
    fixture_destroy_caches(caches);
}

static void what_was_exported_comes_back_in_every_family(void **state)
{
    (void)state;
    static const uint32_t counts[] = { 1, 63, 64, 65, 150, 256, N_MAX };
    firn_token tokens[N_MAX + 1];
    session_buffer file = session_buffer_make();
    test_rng rng = test_rng_create("session_file", 91);
    fixture_random_tokens(&rng, tokens, N_MAX + 1);
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        fixture fix;
        fixture_init(&fix, NULL, &(fixture_options){ .schema = schema });
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            file.n = file.at = 0;
            write_session(&fix, tokens, counts[i], &file);
            assert_int_equal(file.n % 4096, 0);
            firn_restored restored;
            char id[FIRN_SESSION_ID_BYTES_MAX + 1];
            firn_error err = { 0 };
            if (firn_session_read(&fix.schema, fix.pool, session_source, &file, NULL, &restored, id, &err) != FIRN_OK) {
                fail_msg("%s", err.message);
            }
            assert_string_equal(id, "chat");
            assert_int_equal(file.at, file.n);
            fixture_assert_state(&fix, &restored, tokens, counts[i]);
            firn_restored_deinit(&restored);
        }
        fixture_deinit(&fix);
    }
    free(file.bytes);
}

static firn_status read_bytes(const fixture *fix, session_buffer *file, firn_error *err)
{
    firn_restored restored;
    file->at = 0;
    const firn_status status =
        firn_session_read(&fix->schema, fix->pool, session_source, file, NULL, &restored, NULL, err);
    assert_true(status == FIRN_OK || (restored.caches == NULL && restored.tokens == NULL));
    firn_restored_deinit(&restored);
    return status;
}

static void every_flipped_bit_and_every_cut_is_noticed(void **state)
{
    (void)state;
    firn_token tokens[200];
    session_buffer file = session_buffer_make();
    test_rng rng = test_rng_create("session_damage", 92);
    fixture_random_tokens(&rng, tokens, 200);
    fixture fix;
    fixture_init(&fix, NULL, &(fixture_options){ .schema = FIXTURE_ALL });
    write_session(&fix, tokens, 200, &file);
    for (size_t at = 0; at < file.n; at += at < 2048 ? 1 : 509) {
        file.bytes[at] = (uint8_t)(file.bytes[at] ^ 1u << at % 8);
        assert_int_not_equal(read_bytes(&fix, &file, NULL), FIRN_OK);
        file.bytes[at] = (uint8_t)(file.bytes[at] ^ 1u << at % 8);
    }
    const size_t n = file.n;
    for (file.n = 0; file.n < n; file.n += file.n < 200 ? 7 : 3001) {
        assert_int_not_equal(read_bytes(&fix, &file, NULL), FIRN_OK);
    }
    file.n = n;
    assert_ok(read_bytes(&fix, &file, NULL));
    fixture_deinit(&fix);
    free(file.bytes);
}

static void another_model_is_told_what_differs(void **state)
{
    (void)state;
    firn_token tokens[100] = { 1, 2, 3 };
    session_buffer file = session_buffer_make();
    fixture fix, other;
    fixture_init(&fix, NULL, NULL);
    fixture_init(&other, NULL, &(fixture_options){ .tokenizer = "t2" });
    write_session(&fix, tokens, 100, &file);
    firn_error err = { 0 };
    assert_status(read_bytes(&other, &file, &err), FIRN_ERR_SIGNATURE);
    assert_non_null(strstr(err.message, "tokenizer"));
    assert_non_null(strstr(err.message, "t2"));
    memcpy(file.bytes, "GGUF", 4);
    assert_status(read_bytes(&fix, &file, &err), FIRN_ERR_FORMAT);
    fixture_deinit(&fix);
    fixture_deinit(&other);
    free(file.bytes);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    firn_token tokens[100] = { 1, 2, 3 };
    session_buffer file = session_buffer_make();
    file.n_max = 6000;
    fixture fix;
    fixture_init(&fix, NULL, NULL);
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(&fix, tokens, 100, caches);
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 100, (const firn_cache *const *)caches, session_sink,
                                     &file, NULL, NULL),
                  FIRN_ERR_IO);
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 99, (const firn_cache *const *)caches, session_sink,
                                     &file, NULL, NULL),
                  FIRN_ERR_IO); /* plain rows can be cut */
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 101, (const firn_cache *const *)caches, session_sink,
                                     &file, NULL, NULL),
                  FIRN_ERR_INVALID);
    fixture_destroy_caches(caches);
    fixture_deinit(&fix);
    free(file.bytes);
}

/* From one store through a file into another. */
static void a_session_moves_between_stores(void **state)
{
    (void)state;
    enum { N = 150 };
    firn_token tokens[N + 1];
    test_rng rng = test_rng_create("session_move", 93);
    fixture_random_tokens(&rng, tokens, N + 1);
    session_buffer file = session_buffer_make();
    fixture fix;
    fixture_init(&fix, NULL, &(fixture_options){ .schema = FIXTURE_ALL });
    char *dir = test_dir_create(), *other_dir = test_dir_create();
    firn_tier *tier = fixture_open(&fix, dir, NULL), *other = fixture_open(&fix, other_dir, NULL);
    uint32_t n = 7;
    firn_error err = { 0 };
    assert_status(firn_session_export(tier, &fix.schema, "anna", "chat", session_sink, &file, NULL, &n, &err),
                  FIRN_ERR_NOT_FOUND);
    const firn_session session = { .id = "chat", .ns = "anna", .tokens = tokens, .n_tokens = N };
    assert_ok(firn_tier_put_session(tier, &session, NULL));
    assert_status(firn_session_export(tier, &fix.schema, "anna", "chat", session_sink, &file, NULL, &n, &err),
                  FIRN_ERR_STATE);
    assert_non_null(strstr(err.message, "of the session's 150 tokens 0 are stored"));
    assert_true(file.n == 0 && n == 0);

    assert_int_equal(fixture_store(&fix, tier, "anna", tokens, N), FIRN_REASON_NONE);
    assert_ok(firn_session_export(tier, &fix.schema, "anna", "chat", session_sink, &file, NULL, &n, NULL));
    assert_int_equal(n, N);
    firn_restored restored;
    char id[FIRN_SESSION_ID_BYTES_MAX + 1];
    assert_ok(firn_session_read(&fix.schema, fix.pool, session_source, &file, NULL, &restored, id, NULL));
    bool is_pinned = false;
    firn_reason reason;
    assert_ok(firn_session_keep(other, "bert", id, &restored, UINT64_C(1) << 62, &is_pinned, &reason, NULL));
    assert_true(is_pinned && reason == FIRN_REASON_NONE);
    firn_restored_deinit(&restored);

    firn_match match = firn_tier_find_exact(other, tokens, N, "bert");
    assert_int_equal(firn_tier_restore(other, match.handle, 0, &restored), FIRN_REASON_NONE);
    firn_tier_release(other, match.handle);
    fixture_assert_state(&fix, &restored, tokens, N);
    firn_restored_deinit(&restored);
    firn_tier_stats stats;
    firn_tier_get_stats(other, &stats);
    assert_int_equal(stats.n_pins, 1);

    /* A prompt's stored beginning is the same state under no name. */
    file.n = file.at = 0;
    assert_ok(
        firn_session_export_prompt(other, &fix.schema, "bert", tokens, N + 1, session_sink, &file, NULL, &n, NULL));
    assert_int_equal(n, N);
    assert_ok(firn_session_read(&fix.schema, fix.pool, session_source, &file, NULL, &restored, id, NULL));
    assert_string_equal(id, "");
    fixture_assert_state(&fix, &restored, tokens, N);
    firn_restored_deinit(&restored);
    assert_status(
        firn_session_export_prompt(other, &fix.schema, "anna", tokens, N + 1, session_sink, &file, NULL, &n, NULL),
        FIRN_ERR_STATE);
    firn_tier_destroy(tier);
    firn_tier_destroy(other);
    test_dir_remove(dir);
    test_dir_remove(other_dir);
    free(dir);
    free(other_dir);
    fixture_deinit(&fix);
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_exported_comes_back_in_every_family),
        cmocka_unit_test(every_flipped_bit_and_every_cut_is_noticed),
        cmocka_unit_test(another_model_is_told_what_differs),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(a_session_moves_between_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
