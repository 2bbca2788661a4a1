/*
 * The GGUF reader against hostile, truncated and mutated files.
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/ggml_type.h"
#include "model/gguf.h"

static char *dir;

/* ---- files made byte by byte ---- */

typedef struct bytes {
    uint8_t data[8192];
    size_t n;
} bytes;

static void put(bytes *b, const void *data, size_t n)
{
    assert_true(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_le(bytes *b, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)(value >> (8 * i));
        put(b, &byte, 1);
    }
}

static void put_text(bytes *b, const char *text)
{
    put_le(b, strlen(text), 8);
    put(b, text, strlen(text));
}

static void put_head(bytes *b, uint64_t n_tensors, uint64_t n_keys)
{
    put(b, "GGUF", 4);
    put_le(b, 3, 4);
    put_le(b, n_tensors, 8);
    put_le(b, n_keys, 8);
}

static void put_key_u32(bytes *b, const char *key, uint32_t value)
{
    put_text(b, key);
    put_le(b, FIRNI_GGUF_U32, 4);
    put_le(b, value, 4);
}

static void put_tensor(bytes *b, const char *name, const uint64_t *shape, uint32_t n_dims, uint32_t type,
                       uint64_t offset)
{
    put_text(b, name);
    put_le(b, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) {
        put_le(b, shape[d], 8);
    }
    put_le(b, type, 4);
    put_le(b, offset, 8);
}

static void pad(bytes *b, size_t alignment)
{
    while (b->n % alignment != 0) {
        put_le(b, 0, 1);
    }
}

static char *write_bytes(const uint8_t *data, size_t n)
{
    const size_t path_bytes = strlen(dir) + 16;
    char *path = malloc(path_bytes);
    (void)snprintf(path, path_bytes, "%s/x.gguf", dir);
    (void)unlink(path); /* an older mapping of the same name stays what it was */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* Opens the bytes; on success touches everything that the accessors can reach. */
static firn_status open_and_walk(const uint8_t *data, size_t n, firn_error *err)
{
    firni_gguf *gguf = NULL;
    char *path = write_bytes(data, n);
    const firn_status status = firni_gguf_open(path, NULL, &gguf, err);
    free(path);
    if (status != FIRN_OK) {
        assert_null(gguf);
        return status;
    }
    static const char *const keys[] = { "a.u32", "a.name", "a.list", "a.flag", "a.text", "general.alignment" };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const firni_gguf_value *value = firni_gguf_find(gguf, keys[i]);
        if (value != NULL && value->type == FIRNI_GGUF_STRING) {
            const uint8_t *cursor = value->data;
            for (uint64_t s = 0; s < value->n; s++) {
                const firni_gguf_string text = firni_gguf_next_string(&cursor);
                for (size_t c = 0; c < text.len_bytes; c++) {
                    sum += (uint8_t)text.data[c];
                }
            }
        } else if (value != NULL && value->n > 0 && value->type == FIRNI_GGUF_U32) {
            sum += firni_gguf_array_u32(value, 0) + firni_gguf_array_u32(value, value->n - 1);
        }
    }
    for (uint64_t i = 0; i < firni_gguf_n_tensors(gguf); i++) {
        const firni_gguf_tensor *tensor = firni_gguf_tensor_at(gguf, i);
        for (uint64_t b = 0; b < tensor->n_bytes; b++) {
            sum += tensor->data[b];
        }
    }
    uint8_t digest[32];
    assert_ok(firni_gguf_fingerprint(gguf, digest, NULL));
    assert_true(sum < UINT64_MAX); /* keeps the walk from being optimised away */
    firni_gguf_close(gguf);
    return FIRN_OK;
}

/* A small sound file: every kind of item once. */
static bytes sound_file(void)
{
    static const uint64_t matrix[2] = { 32, 3 };
    static const uint64_t vector[1] = { 5 };
    bytes b = { .n = 0 };
    put_head(&b, 2, 6);
    put_key_u32(&b, "a.u32", 7);
    put_text(&b, "a.name");
    put_le(&b, FIRNI_GGUF_STRING, 4);
    put_text(&b, "value");
    put_text(&b, "a.list");
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, FIRNI_GGUF_U32, 4);
    put_le(&b, 3, 8);
    put_le(&b, 1, 4);
    put_le(&b, 2, 4);
    put_le(&b, 3, 4);
    put_text(&b, "a.flag");
    put_le(&b, FIRNI_GGUF_BOOL, 4);
    put_le(&b, 1, 1);
    put_text(&b, "a.text");
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, FIRNI_GGUF_STRING, 4);
    put_le(&b, 2, 8);
    put_text(&b, "one");
    put_text(&b, "");
    put_key_u32(&b, "general.alignment", 32);
    put_tensor(&b, "m.weight", matrix, 2, 8, 0);   /* Q8_0: 3 * 34 = 102 bytes */
    put_tensor(&b, "v.weight", vector, 1, 0, 128); /* F32: 20 bytes */
    pad(&b, 32);
    for (uint32_t i = 0; i < 128 + 20; i++) {
        put_le(&b, i, 1);
    }
    return b;
}

static void a_sound_file_opens(void **state)
{
    (void)state;
    firn_error err = { .message = "" };
    const bytes b = sound_file();
    firni_gguf *gguf = NULL;
    char *path = write_bytes(b.data, b.n);
    if (firni_gguf_open(path, NULL, &gguf, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(firni_gguf_n_tensors(gguf), 2);
    assert_int_equal(firni_gguf_file_bytes(gguf), b.n);
    assert_string_equal(firni_gguf_path(gguf), path);
    const firni_gguf_tensor *m = firni_gguf_find_tensor(gguf, "m.weight");
    const firni_gguf_tensor *v = firni_gguf_find_tensor(gguf, "v.weight");
    assert_non_null(m);
    assert_non_null(v);
    assert_null(firni_gguf_find_tensor(gguf, "m.weigh"));
    assert_null(firni_gguf_find(gguf, "a."));
    assert_int_equal(m->n_bytes, 102);
    assert_int_equal(m->shape[0], 32);
    assert_int_equal(m->shape[1], 3);
    assert_int_equal(m->shape[2], 1);
    assert_int_equal(v->n_bytes, 20);
    assert_int_equal(v->data - m->data, 128);
    assert_int_equal(v->data[0], 128);
    firni_gguf_close(gguf);
    free(path);
}

static void a_file_cut_at_any_byte_is_refused(void **state)
{
    (void)state;
    const bytes b = sound_file();
    for (size_t n = 0; n < b.n; n++) {
        firn_error err = { .message = "" };
        const firn_status status = open_and_walk(b.data, n, &err);
        if (status != FIRN_ERR_FORMAT || err.message[0] == '\0') {
            fail_msg("cut at %zu of %zu: %s", n, b.n, firn_status_name(status));
        }
    }
}

static void a_file_with_any_byte_changed_is_read_safely(void **state)
{
    (void)state;
    static const uint8_t values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
    const bytes b = sound_file();
    uint32_t n_opened = 0;
    uint32_t n_refused = 0;
    for (size_t at = 0; at < b.n; at++) {
        for (size_t v = 0; v < sizeof values; v++) {
            bytes changed = b;
            firn_error err = { .message = "" };
            changed.data[at] = values[v];
            const firn_status status = open_and_walk(changed.data, changed.n, &err);
            assert_true(status == FIRN_OK || status == FIRN_ERR_FORMAT || status == FIRN_ERR_UNSUPPORTED);
            n_opened += status == FIRN_OK;
            n_refused += status != FIRN_OK;
        }
    }
    print_message("%u changed files opened, %u refused\n", n_opened, n_refused);
    assert_true(n_refused > 500);
}

static void several_changes_at_once_are_read_safely(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("mutations", 21);
    const bytes b = sound_file();
    for (uint32_t i = 0; i < 4000; i++) {
        bytes changed = b;
        firn_error err = { .message = "" };
        const uint32_t n_changes = 1 + test_rng_below(&rng, 6);
        for (uint32_t c = 0; c < n_changes; c++) {
            changed.data[test_rng_below(&rng, (uint32_t)b.n)] = (uint8_t)test_rng_u64(&rng);
        }
        const firn_status status = open_and_walk(changed.data, changed.n, &err);
        assert_true(status == FIRN_OK || status == FIRN_ERR_FORMAT || status == FIRN_ERR_UNSUPPORTED);
    }
}

/* ---- one contradiction at a time ---- */

static void expect(const char *what, const bytes *b, firn_status expected, const char *words)
{
    firn_error err = { .message = "" };
    const firn_status status = open_and_walk(b->data, b->n, &err);
    if (status != expected || strstr(err.message, words) == NULL) {
        fail_msg("%s: %s, \"%s\"; expected %s with \"%s\"", what, firn_status_name(status), err.message,
                 firn_status_name(expected), words);
    }
}

static void what_is_not_gguf_v3_is_named(void **state)
{
    (void)state;
    bytes b = { .n = 0 };
    put(&b, "PK\003\004 a zip archive", 17);
    expect("another format", &b, FIRN_ERR_FORMAT, "not a GGUF file");
    for (uint32_t version = 1; version <= 4; version++) {
        b = sound_file();
        b.data[4] = (uint8_t)version;
        if (version != 3) {
            expect("another version", &b, FIRN_ERR_UNSUPPORTED, "this build reads version 3");
        }
    }
    b = sound_file();
    memcpy(b.data + 4, "\0\0\0\3", 4);
    expect("big-endian", &b, FIRN_ERR_UNSUPPORTED, "big-endian");
}

static void keys_that_contradict_are_named(void **state)
{
    (void)state;
    bytes b = { .n = 0 };
    put_head(&b, 0, UINT64_MAX);
    expect("too many keys", &b, FIRN_ERR_FORMAT, "keys");

    b.n = 0;
    put_head(&b, 0, 2);
    put_key_u32(&b, "twice", 1);
    put_key_u32(&b, "twice", 1);
    expect("a key twice", &b, FIRN_ERR_FORMAT, "'twice' appears twice");

    b.n = 0;
    put_head(&b, 0, 1);
    put_key_u32(&b, "bad\xff", 1);
    expect("a key that is not UTF-8", &b, FIRN_ERR_FORMAT, "not UTF-8");

    b.n = 0;
    put_head(&b, 0, 1);
    put_key_u32(&b, "", 1);
    expect("an empty key", &b, FIRN_ERR_FORMAT, "empty");

    b.n = 0;
    put_head(&b, 0, 1);
    put_le(&b, UINT64_MAX, 8);
    put(&b, "abcdefgh", 8);
    expect("a key longer than the file", &b, FIRN_ERR_FORMAT, "name of a key");

    b.n = 0;
    put_head(&b, 0, 1);
    put_text(&b, "nested");
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, 1, 8);
    expect("nested arrays", &b, FIRN_ERR_FORMAT, "arrays of arrays");

    b.n = 0;
    put_head(&b, 0, 1);
    put_text(&b, "odd");
    put_le(&b, 13, 4);
    put_le(&b, 0, 8);
    expect("an unknown type", &b, FIRN_ERR_FORMAT, "unknown value type 13");

    b.n = 0;
    put_head(&b, 0, 1);
    put_text(&b, "list");
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, FIRNI_GGUF_U64, 4);
    put_le(&b, (UINT64_MAX / 8) + 2, 8); /* times 8 is a small number */
    put_le(&b, 0, 8);
    expect("an array whose size wraps", &b, FIRN_ERR_FORMAT, "elements do not fit");

    b.n = 0;
    put_head(&b, 0, 1);
    put_text(&b, "texts");
    put_le(&b, FIRNI_GGUF_ARRAY, 4);
    put_le(&b, FIRNI_GGUF_STRING, 4);
    put_le(&b, (uint64_t)1 << 60, 8);
    put_text(&b, "one");
    expect("more strings than fit", &b, FIRN_ERR_FORMAT, "string 1 of");

    b.n = 0;
    put_head(&b, 0, 1);
    put_text(&b, "flag");
    put_le(&b, FIRNI_GGUF_BOOL, 4);
    put_le(&b, 2, 1);
    expect("a boolean of 2", &b, FIRN_ERR_FORMAT, "boolean");
}

static void tensors_that_contradict_are_named(void **state)
{
    (void)state;
    static const uint64_t four[1] = { 4 };
    static const uint64_t zero[2] = { 4, 0 };
    static const uint64_t huge[4] = { (uint64_t)1 << 32, (uint64_t)1 << 32, 2, 2 };
    static const uint64_t large[2] = { (uint64_t)1 << 62, 1 };
    static const uint64_t odd[2] = { 33, 2 };
    static const uint64_t five[5] = { 1, 1, 1, 1, 1 };
    const struct {
        const char *what;
        const char *words;
        const uint64_t *shape;
        uint32_t n_dims, type;
        uint64_t offset;
    } cases[] = {
        { "a dimension of 0", "'t': dimension 1 is 0", zero, 2, 0, 0 },
        { "a product that overflows", "too many elements", huge, 4, 0, 0 },
        { "a size that overflows", "overflows", large, 2, 0, 0 },
        { "rows that are not whole blocks", "Q8_0 blocks of 32", odd, 2, 8, 0 },
        { "no dimensions", "0 dimensions", four, 0, 0, 0 },
        { "five dimensions", "5 dimensions", five, 5, 0, 0 },
        { "an odd offset", "offset 4 is not a multiple", four, 1, 0, 4 },
        { "an offset outside", "outside", four, 1, 0, (uint64_t)1 << 40 },
        { "an offset that wraps", "outside", four, 1, 0, UINT64_MAX - 31 },
        { "an unknown type outside", "outside", four, 1, 77, 4096 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bytes b = { .n = 0 };
        put_head(&b, 1, 0);
        put_tensor(&b, "t", cases[i].shape, cases[i].n_dims, cases[i].type, cases[i].offset);
        pad(&b, 32);
        put_le(&b, 0, 8);
        put_le(&b, 0, 8);
        expect(cases[i].what, &b, FIRN_ERR_FORMAT, cases[i].words);
    }
    bytes b = { .n = 0 };
    put_head(&b, UINT64_MAX / 2, 0);
    expect("too many tensors", &b, FIRN_ERR_FORMAT, "tensors");

    b.n = 0;
    put_head(&b, 2, 0);
    put_tensor(&b, "t", four, 1, 0, 0);
    put_tensor(&b, "t", four, 1, 0, 32);
    pad(&b, 32);
    put_le(&b, 0, 8);
    b.n += 64;
    expect("a tensor twice", &b, FIRN_ERR_FORMAT, "'t' appears twice");

    static const uint64_t nine[1] = { 9 };
    b.n = 0;
    put_head(&b, 2, 0);
    put_tensor(&b, "second", four, 1, 0, 32);
    put_tensor(&b, "first", nine, 1, 0, 0);
    pad(&b, 32);
    b.n += 64;
    expect("tensors that overlap", &b, FIRN_ERR_FORMAT, "'first' and 'second' overlap");

    static const uint32_t alignments[] = { 0, 1, 4, 24, 1u << 21 };
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        b.n = 0;
        put_head(&b, 1, 1);
        put_key_u32(&b, "general.alignment", alignments[i]);
        put_tensor(&b, "t", four, 1, 0, 0);
        b.n += 64;
        expect("an alignment", &b, FIRN_ERR_FORMAT, "general.alignment");
    }
}

/* Of every type that the kernels know, at its exact size: one byte less, or one column too many, is refused. */
static void tensors_of_every_weight_type_are_measured(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < FIRNI_WEIGHT_TYPES; type++) {
        const uint32_t ggml_type = firni_ggml_type_of_weight((firni_weight_type)type);
        const uint32_t block_cols = firni_weight_block_cols((firni_weight_type)type);
        const size_t n_bytes = 3 * firni_weight_row_bytes((firni_weight_type)type, 2 * block_cols);
        const uint64_t shape[2] = { 2 * block_cols, 3 };
        const uint64_t odd[2] = { 2 * block_cols + 1, 3 };
        firni_gguf *gguf = NULL;
        bytes b = { .n = 0 };
        put_head(&b, 1, 0);
        put_tensor(&b, "t", shape, 2, ggml_type, 0);
        pad(&b, 32);
        const size_t data_at = b.n;
        b.n += n_bytes;
        char *path = write_bytes(b.data, b.n);
        assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
        assert_int_equal(firni_gguf_find_tensor(gguf, "t")->n_bytes, n_bytes);
        firni_gguf_close(gguf);
        free(path);
        b.n = data_at + n_bytes - 1;
        expect(firni_ggml_type_name(ggml_type), &b, FIRN_ERR_FORMAT, "outside");
        if (block_cols > 1) {
            char words[64];
            (void)snprintf(words, sizeof words, "%s blocks of %u", firni_ggml_type_name(ggml_type), block_cols);
            b.n = 0;
            put_head(&b, 1, 0);
            put_tensor(&b, "t", odd, 2, ggml_type, 0);
            pad(&b, 32);
            b.n += 2 * n_bytes;
            expect(firni_ggml_type_name(ggml_type), &b, FIRN_ERR_FORMAT, words);
        }
    }
}

static void absent_and_unreadable_files_are_io_errors(void **state)
{
    (void)state;
    firni_gguf *gguf = NULL;
    firn_error err = { .message = "" };
    assert_status(firni_gguf_open("/nonexistent/x.gguf", NULL, &gguf, &err), FIRN_ERR_IO);
    assert_non_null(strstr(err.message, "/nonexistent/x.gguf"));
    assert_int_not_equal(err.os_error, 0);
    assert_status(firni_gguf_open("/", NULL, &gguf, &err), FIRN_ERR_IO);
    assert_null(gguf);
}

/* A model's keys and one tensor of n_bytes, with one thing changed by the caller. */
static bytes file_to_fingerprint(const char *name, uint32_t width, uint32_t padding_keys)
{
    static const uint64_t shape[1] = { 20 };
    bytes b = { .n = 0 };
    put_head(&b, 1, 2 + padding_keys);
    put_text(&b, "general.name");
    put_le(&b, FIRNI_GGUF_STRING, 4);
    put_text(&b, name);
    put_key_u32(&b, "llama.width", width);
    for (uint32_t i = 0; i < padding_keys; i++) {
        put_key_u32(&b, "tokenizer.padding", i);
    }
    put_tensor(&b, "w", shape, 1, 0, 0);
    pad(&b, 32);
    for (uint32_t i = 0; i < 80; i++) {
        put_le(&b, i, 1);
    }
    return b;
}

static bool same_fingerprint(const bytes *a, const bytes *b)
{
    uint8_t digests[2][32];
    for (int i = 0; i < 2; i++) {
        firni_gguf *gguf = NULL;
        char *path = write_bytes(i == 0 ? a->data : b->data, i == 0 ? a->n : b->n);
        assert_ok(firni_gguf_open(path, NULL, &gguf, NULL));
        assert_ok(firni_gguf_fingerprint(gguf, digests[i], NULL));
        firni_gguf_close(gguf);
        free(path);
    }
    return memcmp(digests[0], digests[1], 32) == 0;
}

static void fingerprints_tell_what_computes_from_what_is_said_about_it(void **state)
{
    (void)state;
    const bytes b = file_to_fingerprint("one name", 7, 0);
    bytes other = file_to_fingerprint("another, longer name", 7, 1);
    assert_true(same_fingerprint(&b, &b));
    assert_true(same_fingerprint(&b, &other));
    other = file_to_fingerprint("one name", 8, 0);
    assert_false(same_fingerprint(&b, &other));
    for (size_t i = 1; i <= 80; i++) { /* any bit of the weights */
        other = b;
        other.data[b.n - i] ^= 1;
        assert_false(same_fingerprint(&b, &other));
    }
}

static void the_same_bytes_of_another_type_have_another_fingerprint(void **state)
{
    (void)state;
    static const uint64_t shape[1] = { 256 };
    bytes files[2] = { { .n = 0 }, { .n = 0 } };
    for (int i = 0; i < 2; i++) {
        put_head(&files[i], 1, 0);
        put_tensor(&files[i], "w", shape, 1, i == 0 ? FIRNI_GGML_Q4_0 : FIRNI_GGML_Q4_K, 0); /* 144 bytes each */
        pad(&files[i], 32);
        for (uint32_t k = 0; k < 144; k++) {
            put_le(&files[i], k, 1);
        }
    }
    assert_true(same_fingerprint(&files[0], &files[0]));
    assert_false(same_fingerprint(&files[0], &files[1]));
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
        cmocka_unit_test(a_sound_file_opens),
        cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_file_with_any_byte_changed_is_read_safely),
        cmocka_unit_test(several_changes_at_once_are_read_safely),
        cmocka_unit_test(what_is_not_gguf_v3_is_named),
        cmocka_unit_test(keys_that_contradict_are_named),
        cmocka_unit_test(tensors_that_contradict_are_named),
        cmocka_unit_test(tensors_of_every_weight_type_are_measured),
        cmocka_unit_test(absent_and_unreadable_files_are_io_errors),
        cmocka_unit_test(fingerprints_tell_what_computes_from_what_is_said_about_it),
        cmocka_unit_test(the_same_bytes_of_another_type_have_another_fingerprint),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
