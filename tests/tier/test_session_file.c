/* Session files: state that leaves a store and comes back into another one, and what a file that is not right says. */
#include "firn/session_file.h"
#include "tier/tier_fixture.h"

#define N_MAX 330u

typedef struct buffer {
    uint8_t *bytes;
    size_t n, n_max, at;
} buffer;

static bool sink(void *ctx, const void *bytes, size_t n)
{
    buffer *out = ctx;
    if (out->n + n > out->n_max) {
        return false;
    }
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return true;
}

static bool source(void *ctx, void *bytes, size_t n)
{
    buffer *in = ctx;
    if (in->at + n > in->n) {
        return false;
    }
    memcpy(bytes, in->bytes + in->at, n);
    in->at += n;
    return true;
}

static buffer make_buffer(void)
{
    buffer out = { .n_max = 8u << 20 };
    out.bytes = malloc(out.n_max);
    assert_non_null(out.bytes);
    return out;
}

static void write_session(const fixture *fix, const firn_token *tokens, uint32_t n, buffer *out)
{
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(fix, tokens, n, caches);
    assert_ok(firn_session_write(&fix->schema, "chat", tokens, n, (const firn_cache *const *)caches, sink, out, NULL,
                                 NULL));
    fixture_destroy_caches(caches);
}

static void what_was_exported_comes_back_in_every_family(void **state)
{
    (void)state;
    static const uint32_t counts[] = { 1, 63, 64, 65, 150, 256, N_MAX };
    firn_token tokens[N_MAX + 1];
    buffer file = make_buffer();
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
            if (firn_session_read(&fix.schema, fix.pool, source, &file, NULL, &restored, id, &err) != FIRN_OK) {
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

static firn_status read_bytes(const fixture *fix, buffer *file, firn_error *err)
{
    firn_restored restored;
    file->at = 0;
    const firn_status status = firn_session_read(&fix->schema, fix->pool, source, file, NULL, &restored, NULL, err);
    assert_true(status == FIRN_OK || (restored.caches == NULL && restored.tokens == NULL));
    firn_restored_deinit(&restored);
    return status;
}

static void every_flipped_bit_and_every_cut_is_noticed(void **state)
{
    (void)state;
    firn_token tokens[200];
    buffer file = make_buffer();
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
    buffer file = make_buffer();
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
    buffer file = make_buffer();
    file.n_max = 6000;
    fixture fix;
    fixture_init(&fix, NULL, NULL);
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(&fix, tokens, 100, caches);
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 100, (const firn_cache *const *)caches, sink, &file,
                                     NULL, NULL),
                  FIRN_ERR_IO);
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 99, (const firn_cache *const *)caches, sink, &file,
                                     NULL, NULL),
                  FIRN_ERR_IO); /* plain rows can be cut */
    assert_status(firn_session_write(&fix.schema, NULL, tokens, 101, (const firn_cache *const *)caches, sink, &file,
                                     NULL, NULL),
                  FIRN_ERR_INVALID);
    fixture_destroy_caches(caches);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
