/*
 * Model files with one thing changed: a sound synthetic model as bytes, edits of its keys and tensors, and what opening
 * the result says. Header only.
 */
#ifndef FIRN_TESTS_MODEL_IMAGE_H
#define FIRN_TESTS_MODEL_IMAGE_H

#include "model_fixture.h"

#include <unistd.h>

typedef struct image {
    char *data;
    size_t n;
} image;

static inline image image_of(const char *dir, const firni_synth_options *options)
{
    image out;
    char *path = small_model(dir, "sound.gguf", options);
    out.data = read_whole(path, &out.n);
    free(path);
    return out;
}

/* Where the bytes behind a length-prefixed name begin. */
static inline size_t behind_name(const image *im, const char *name)
{
    const size_t len = strlen(name);
    for (size_t i = 8; i + len < im->n; i++) {
        uint64_t prefix;
        memcpy(&prefix, im->data + i - 8, sizeof prefix);
        if (prefix == len && memcmp(im->data + i, name, len) == 0) {
            return i + len;
        }
    }
    fail_msg("no '%s' in the file", name);
    return 0;
}

static inline void set_u32_key(image *im, const char *key, uint32_t value)
{
    memcpy(im->data + behind_name(im, key) + 4, &value, sizeof value);
}

static inline void rename_item(image *im, const char *from, const char *to)
{
    assert_int_equal(strlen(from), strlen(to));
    memcpy(im->data + behind_name(im, from) - strlen(from), to, strlen(to));
}

/* Of a tensor of two dimensions. */
static inline void set_tensor_type(image *im, const char *name, uint32_t ggml_type)
{
    memcpy(im->data + behind_name(im, name) + 4 + 16, &ggml_type, sizeof ggml_type);
}

static inline firn_status open_image(const char *dir, const image *im, const firn_env *env, firn_error *err)
{
    char path[512];
    firn_model *model = NULL;
    (void)snprintf(path, sizeof path, "%s/changed.gguf", dir);
    (void)unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(im->data, 1, im->n, file), im->n);
    assert_int_equal(fclose(file), 0);
    const firn_model_options options = { .path = path, .max_batch_tokens = 16, .max_rows = 2 };
    const firn_status status = firn_model_open(&options, env, &model, err);
    assert_true((status == FIRN_OK) == (model != NULL));
    firn_model_close(model);
    return status;
}

/* Takes the image. */
static inline void expect(const char *dir, image *im, firn_status expected, const char *words, const char *more_words)
{
    firn_error err = { .message = "" };
    const firn_status status = open_image(dir, im, NULL, &err);
    if (status != expected || strstr(err.message, words) == NULL || strstr(err.message, more_words) == NULL) {
        fail_msg("%s, \"%s\"; expected %s with \"%s\" and \"%s\"", firn_status_name(status), err.message,
                 firn_status_name(expected), words, more_words);
    }
    free(im->data);
}

#endif
