/*
 * Namespaces as text; see ns_text.h.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cmd/ns_text.h"

void firni_ns_print(const char *ns)
{
    (void)putchar('"');
    for (; *ns != '\0'; ns++) {
        const unsigned char c = (unsigned char)*ns;
        if (c == FIRN_NAMESPACE_BELOW) {
            (void)fputs("\"/\"", stdout);
        } else if (c == '"' || c == '\\') {
            (void)printf("\\%c", c);
        } else if (c < 0x20 || c == 0x7F) {
            (void)printf("\\x%02x", (unsigned)c);
        } else {
            (void)putchar(c);
        }
    }
    (void)putchar('"');
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One escaped character behind its backslash; NULL: none of those above. */
static const char *read_escape(const char *at, char *out)
{
    if (*at == '"' || *at == '\\') {
        *out = *at;
        return at + 1;
    }
    const int high = *at == 'x' ? hex_digit(at[1]) : -1;
    const int low = high >= 0 ? hex_digit(at[2]) : -1;
    *out = (char)(high * 16 + low);
    return low >= 0 && *out != '\0' && *out != FIRN_NAMESPACE_BELOW ? at + 3 : NULL;
}

/* Quoted names with slashes between them. False: it is not written so, or too long. */
static bool read_quoted(const char *at, char out[FIRN_NAMESPACE_BYTES_MAX + 1])
{
    size_t n = 0;
    do {
        at++; /* the quote */
        while (*at != '"') {
            char c = *at;
            at = c == '\\' ? read_escape(at + 1, &c) : c != '\0' ? at + 1 : NULL;
            if (at == NULL || n == FIRN_NAMESPACE_BYTES_MAX) {
                return false;
            }
            out[n++] = c;
        }
        at++;
        if (at[0] == '/' && at[1] == '"' && n < FIRN_NAMESPACE_BYTES_MAX) {
            out[n++] = FIRN_NAMESPACE_BELOW;
            at++;
        }
    } while (*at == '"');
    out[n] = '\0';
    return *at == '\0';
}

int firni_ns_flag(const firni_command *self, const char **value, char out[FIRN_NAMESPACE_BYTES_MAX + 1])
{
    if (*value == NULL) {
        return 0;
    }
    if (**value == '"') {
        if (!read_quoted(*value, out)) {
            return firni_cmd_usage(self,
                                   "--namespace: %s is not a name as `firn cache stat` writes it, of at most %d bytes",
                                   *value, FIRN_NAMESPACE_BYTES_MAX);
        }
    } else if (strlen(*value) > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_cmd_usage(self, "--namespace: at most %d bytes", FIRN_NAMESPACE_BYTES_MAX);
    } else {
        (void)snprintf(out, FIRN_NAMESPACE_BYTES_MAX + 1, "%s", *value);
    }
    *value = out;
    return 0;
}
