/*
 * Config files: "flag = value" lines with the names of the command's flags.
 *
 *      # a comment, at the start of a line or after white space
 *      model = /srv/models/x.gguf
 *      ctx = 8192
 *      cache-dir = "/var/cache/firn # main"     quotes keep spaces and '#'
 *      no-prefix-cache = true
 *
 * The file's text lives as long as the program, as argv does, since string flags point into it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/flags_impl.h"

#define CONFIG_BYTES_MAX (1u << 20)

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts white space off both ends, in place. */
static char *trim(char *text)
{
    while (is_space(*text)) {
        text++;
    }
    size_t len = strlen(text);
    while (len > 0 && is_space(text[len - 1])) {
        len--;
    }
    text[len] = '\0';
    return text;
}

/* The value's text without quotes or trailing comment; NULL when a quote is left open or followed by something. */
static char *cut_value(char *text)
{
    text = trim(text);
    if (*text == '"') {
        char *close = strchr(text + 1, '"');
        if (close == NULL) {
            return NULL;
        }
        *close = '\0';
        const char *rest = trim(close + 1);
        return *rest == '\0' || *rest == '#' ? text + 1 : NULL;
    }
    for (char *at = text; *at != '\0'; at++) {
        if (*at == '#' && (at == text || is_space(at[-1]))) {
            *at = '\0';
            break;
        }
    }
    return trim(text);
}

/* Reads the whole file; NULL after having said why. */
static char *read_text(const firni_command *command, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)firni_cmd_fail(command, "cannot open the config file %s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = malloc(CONFIG_BYTES_MAX + 1);
    const size_t n_bytes = text != NULL ? fread(text, 1, CONFIG_BYTES_MAX + 1, file) : 0;
    const bool is_bad = text == NULL || ferror(file) != 0;
    const bool is_large = n_bytes > CONFIG_BYTES_MAX;
    (void)fclose(file);
    if (is_bad || is_large) {
        (void)firni_cmd_fail(command, "cannot read the config file %s%s", path, is_large ? ": larger than 1 MiB" : "");
        free(text);
        return NULL;
    }
    text[n_bytes] = '\0';
    if (memchr(text, '\0', n_bytes) != NULL) {
        (void)firni_cmd_fail(command, "the config file %s holds a NUL byte", path);
        free(text);
        return NULL;
    }
    char *fitted = realloc(text, n_bytes + 1);
    return fitted != NULL ? fitted : text;
}

/* One line of the file; the status is that of a wrong command line, since the file is a part of it. */
static int apply_line(const firni_command *command, const firni_flag *flags, uint32_t n_flags, const char *path,
                      uint32_t line_number, char *line)
{
    line = trim(line);
    if (*line == '\0' || *line == '#') {
        return 0;
    }
    char *equals = strchr(line, '=');
    if (equals == NULL) {
        return firni_cmd_usage(command, "%s:%u: expected \"flag = value\"", path, line_number);
    }
    *equals = '\0';
    const char *name = trim(line);
    const firni_flag *flag = firni_flags_find(flags, n_flags, name, strlen(name));
    if (flag == NULL || strcmp(name, "config") == 0) {
        return firni_cmd_usage(command, "%s:%u: there is no flag \"%s\" to set here", path, line_number, name);
    }
    const char *value = cut_value(equals + 1);
    if (value == NULL) {
        return firni_cmd_usage(command, "%s:%u: a quoted value must end with a quote", path, line_number);
    }
    char message[400];
    if (!firni_flag_set(flag, value, message, sizeof message)) {
        return firni_cmd_usage(command, "%s:%u: %s", path, line_number, message);
    }
    return 0;
}

int firni_flags_read_config(const firni_command *command, const firni_flag *flags, uint32_t n_flags, const char *path)
{
    /* Kept on purpose: see the top. A command reads at most one file. */
    static char *kept_text;
    free(kept_text);
    kept_text = read_text(command, path);
    if (kept_text == NULL) {
        return 1;
    }
    uint32_t line_number = 0;
    for (char *line = kept_text; line != NULL;) {
        char *newline = strchr(line, '\n');
        if (newline != NULL) {
            *newline = '\0';
        }
        const int status = apply_line(command, flags, n_flags, path, ++line_number, line);
        if (status != 0) {
            return status;
        }
        line = newline != NULL ? newline + 1 : NULL;
    }
    return 0;
}
