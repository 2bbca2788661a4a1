/*
 * The key of an encrypted cache directory: a file, or a variable of the environment.
 *
 * Owns how a key is written down. Makes none: `openssl rand -hex 32` and `head -c 32 /dev/urandom` do.
 */
#include "cmd/cache_key.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/crypt_impl.h"

#define DIGITS (2u * FIRN_DISK_KEY_BYTES)

_Static_assert(FIRN_DISK_KEY_BYTES == FIRNI_CRYPT_KEY_BYTES, "one size of keys");

static int digit_value(char c)
{
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    const char *at = c != '\0' ? strchr(lower, c) : NULL;
    if (at != NULL) {
        return (int)(at - lower);
    }
    at = c != '\0' ? strchr(upper, c) : NULL;
    return at != NULL ? (int)(at - upper) : -1;
}

static bool parse_digits(const char *text, size_t n, uint8_t out[FIRN_DISK_KEY_BYTES])
{
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--; /* as editors and shells leave it */
    }
    bool good = n == DIGITS;
    for (size_t i = 0; i < FIRN_DISK_KEY_BYTES && good; i++) {
        const int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        out[i] = good ? (uint8_t)(16 * high + low) : 0;
    }
    return good;
}

static firn_status read_file(const char *path, firni_cache_key *out, firn_error *err)
{
    char bytes[DIGITS + 3]; /* one more than is any key's, with its end of line */
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return firni_fail_os(err, errno, "cannot open the key file %.200s", path);
    }
    setbuf(file, NULL); /* no copy of the key is left in a buffer */
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    const bool failed = ferror(file) != 0;
    const int code = errno;
    (void)fclose(file);
    out->is_given = !failed;
    if (n == FIRN_DISK_KEY_BYTES) {
        memcpy(out->bytes, bytes, sizeof out->bytes);
    } else {
        out->is_given = out->is_given && parse_digits(bytes, n, out->bytes);
    }
    firni_crypt_forget(bytes, sizeof bytes);
    if (failed) {
        return firni_fail_os(err, code, "cannot read the key file %.200s", path);
    }
    return out->is_given ? FIRN_OK
                         : firni_fail(err, FIRN_ERR_INVALID, "%.200s is no key: it takes %u bytes, or %u hexadecimal "
                                      "digits", path, FIRN_DISK_KEY_BYTES, DIGITS);
}

firn_status firni_cache_key_read(const char *path, firni_cache_key *out, firn_error *err)
{
    memset(out, 0, sizeof *out);
    if (path != NULL) {
        return read_file(path, out, err);
    }
    const char *text = getenv(FIRNI_CACHE_KEY_VARIABLE);
    if (text == NULL || text[0] == '\0') {
        return FIRN_OK;
    }
    out->is_given = parse_digits(text, strlen(text), out->bytes);
    return out->is_given ? FIRN_OK
                         : firni_fail(err, FIRN_ERR_INVALID, FIRNI_CACHE_KEY_VARIABLE " is no key: it takes %u "
                                      "hexadecimal digits", DIGITS);
}

void firni_cache_key_forget(firni_cache_key *key)
{
    firni_crypt_forget(key, sizeof *key);
}

const uint8_t *firni_cache_key_bytes(const firni_cache_key *key)
{
    return key->is_given ? key->bytes : NULL;
}
