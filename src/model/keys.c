/*
 * Reads single keys of an architecture with their limits, and keeps the first error.
 *
 * Owns no memory. Which keys there are is hparams.c and the architectures' business.
 */
#include "model/keys.h"

#include <assert.h>
#include <stdio.h>

#include "base/base_impl.h"

/* An architecture's name has at most 31 bytes and suffixes are ours, so it always fits. */
void firni_key_name(const firni_keys *keys, const char *suffix, char out[FIRNI_KEY_BYTES])
{
    const int n = snprintf(out, FIRNI_KEY_BYTES, "%s.%s", keys->architecture, suffix);
    assert(n > 0 && n < (int)FIRNI_KEY_BYTES);
    (void)n;
}

static void fail_range(firni_keys *keys, const char *key, unsigned long value, uint32_t min, uint32_t max)
{
    keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s' is %lu, outside %lu to %lu",
                              firni_gguf_path(keys->gguf), key, value, (unsigned long)min, (unsigned long)max);
}

uint32_t firni_key_u32(firni_keys *keys, const char *suffix, uint32_t min, uint32_t max, const uint32_t *fallback)
{
    char key[FIRNI_KEY_BYTES];
    uint32_t value = 0;
    bool found = false;
    if (keys->status != FIRN_OK) {
        return min;
    }
    firni_key_name(keys, suffix, key);
    keys->status = firni_gguf_get_u32(keys->gguf, key, &value, &found, keys->err);
    if (keys->status != FIRN_OK) {
        return min;
    }
    if (!found && fallback != NULL) {
        value = *fallback;
    } else if (!found) {
        keys->status =
            firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s' is missing", firni_gguf_path(keys->gguf), key);
        return min;
    }
    if (value < min || value > max) {
        fail_range(keys, key, value, min, max);
        return min;
    }
    return value;
}

/* The comparison is written so that a NaN fails it. */
float firni_key_f32(firni_keys *keys, const char *suffix, float min, float max, float fallback)
{
    char key[FIRNI_KEY_BYTES];
    float value = fallback;
    bool found = false;
    if (keys->status != FIRN_OK) {
        return fallback;
    }
    firni_key_name(keys, suffix, key);
    keys->status = firni_gguf_get_f32(keys->gguf, key, &value, &found, keys->err);
    if (keys->status == FIRN_OK && found && !(value >= min && value <= max)) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s' is %g, outside %g to %g",
                                  firni_gguf_path(keys->gguf), key, (double)value, (double)min, (double)max);
    }
    return value;
}

bool firni_key_bool(firni_keys *keys, const char *suffix, bool fallback)
{
    char key[FIRNI_KEY_BYTES];
    bool value = fallback;
    bool found = false;
    if (keys->status == FIRN_OK) {
        firni_key_name(keys, suffix, key);
        keys->status = firni_gguf_get_bool(keys->gguf, key, &value, &found, keys->err);
    }
    return keys->status == FIRN_OK ? value : fallback;
}

/* Booleans are bytes in the file; converters write patterns of layers in either form. */
static uint32_t element(const firni_gguf_value *array, uint32_t index)
{
    return array->type == FIRNI_GGUF_BOOL ? array->data[index] != 0 : firni_gguf_array_u32(array, index);
}

bool firni_key_u32_layers(firni_keys *keys, const char *suffix, uint32_t min, uint32_t max, uint32_t n, uint32_t *out)
{
    char key[FIRNI_KEY_BYTES];
    if (keys->status != FIRN_OK) {
        return false;
    }
    firni_key_name(keys, suffix, key);
    const firni_gguf_value *value = firni_gguf_find(keys->gguf, key);
    if (value == NULL) {
        return false;
    }
    if (!value->is_array) {
        const uint32_t one = firni_key_u32(keys, suffix, min, max, NULL);
        for (uint32_t i = 0; i < n && keys->status == FIRN_OK; i++) {
            out[i] = one;
        }
        return keys->status == FIRN_OK;
    }
    const bool is_integer =
        value->type == FIRNI_GGUF_U32 || value->type == FIRNI_GGUF_I32 || value->type == FIRNI_GGUF_BOOL;
    if (!is_integer || value->n < n) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s' has %llu elements of type %d; %lu integers "
                                  "are needed, one for each layer", firni_gguf_path(keys->gguf), key,
                                  (unsigned long long)value->n, (int)value->type, (unsigned long)n);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (element(value, i) < min || element(value, i) > max) {
            fail_range(keys, key, element(value, i), min, max);
            return false;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i] = element(value, i);
    }
    return true;
}

void firni_key_fail(firni_keys *keys, const char *suffix, const char *what)
{
    char key[FIRNI_KEY_BYTES];
    if (keys->status == FIRN_OK) {
        firni_key_name(keys, suffix, key);
        keys->status =
            firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: key '%s' %s", firni_gguf_path(keys->gguf), key, what);
    }
}
