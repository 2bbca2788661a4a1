/*
 * What all subcommands share besides flags: messages, progress, the log to stderr, where the built-in model is.
 */
#define _GNU_SOURCE /* readlink on /proc/self/exe is Linux; on other systems the built-in model needs $FIRN_MODEL */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"

/* Whatever the command has printed so far comes first, also when both streams are one terminal or file. */
static void say(const firni_command *command, const char *format, va_list args)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "firn %s: ", command->name);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
}

int firni_cmd_fail(const firni_command *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(command, format, args);
    va_end(args);
    return 1;
}

int firni_cmd_usage(const firni_command *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(command, format, args);
    va_end(args);
    (void)fprintf(stderr, "Try: firn %s --help\n", command->name);
    return 2;
}

void firni_cmd_progress(void *label, float fraction)
{
    if (isatty(STDERR_FILENO) == 0) {
        return;
    }
    if (fraction >= 1.0f) {
        (void)fputs("\r\033[K", stderr); /* the line makes room for what comes next */
    } else {
        (void)fprintf(stderr, "\r%s %3.0f %%", (const char *)label, (double)fraction * 100.0);
    }
    (void)fflush(stderr);
}

char *firni_cmd_read_stream(FILE *file, size_t n_bytes_max, size_t *len_bytes)
{
    char *text = NULL;
    size_t n = 0;
    size_t capacity = 0;
    size_t got = 0;
    do {
        n += got;
        if (n == capacity) {
            capacity = capacity == 0 ? 65536 : capacity * 2;
            errno = EFBIG;
            char *grown = capacity <= n_bytes_max ? realloc(text, capacity + 1) : NULL;
            if (grown == NULL) {
                free(text);
                return NULL;
            }
            text = grown;
        }
        got = fread(text + n, 1, capacity - n, file);
    } while (got > 0);
    if (ferror(file) != 0) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    *len_bytes = n;
    return text;
}

char *firni_cmd_read_file(const firni_command *command, const char *path, size_t n_bytes_max, size_t *len_bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)firni_cmd_fail(command, "cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = firni_cmd_read_stream(file, n_bytes_max, len_bytes);
    if (text == NULL) {
        (void)firni_cmd_fail(command, "cannot read %s: %s", path, strerror(errno));
    }
    (void)fclose(file);
    return text;
}

/* DIR/relative when it is readable, malloc'ed; else NULL. */
static char *readable_below(const char *dir, const char *relative)
{
    const size_t n_bytes = strlen(dir) + strlen(relative) + 2;
    char *path = malloc(n_bytes);
    if (path == NULL) {
        return NULL;
    }
    (void)snprintf(path, n_bytes, "%s/%s", dir, relative);
    if (access(path, R_OK) == 0) {
        return path;
    }
    free(path);
    return NULL;
}

char *firni_cmd_builtin_model(void)
{
    const char *chosen = getenv("FIRN_MODEL");
    if (chosen != NULL && chosen[0] != '\0') {
        return strdup(chosen);
    }
    char program[4096];
    const ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    if (len <= 0) {
        return NULL;
    }
    program[len] = '\0';
    char *slash = strrchr(program, '/');
    if (slash == NULL) {
        return NULL;
    }
    *slash = '\0';
    static const char *const places[] = {
        "../models/firn-tiny-q8_0.gguf",      /* build/ */
        "../../models/firn-tiny-q8_0.gguf",   /* build/san-.../ */
        "../share/firn/firn-tiny-q8_0.gguf"   /* an installed prefix */
    };
    char *found = NULL;
    for (size_t i = 0; found == NULL && i < sizeof places / sizeof places[0]; i++) {
        found = readable_below(program, places[i]);
    }
    return found;
}

const char *firni_cmd_size_text(uint64_t n_bytes, char out[FIRNI_SIZE_TEXT_BYTES])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double size = (double)n_bytes;
    size_t unit = 0;
    while (size >= 1000.0) { /* not 1024: three digits always fit */
        size /= 1024.0;
        unit++;
    }
    (void)snprintf(out, FIRNI_SIZE_TEXT_BYTES, "%.3g %s", size, units[unit]);
    return out;
}

static void write_log(void *ctx, firn_log_level level, const char *message)
{
    static const char *const names[] = {
        [FIRN_LOG_ERROR] = "error: ", [FIRN_LOG_WARN] = "warning: ", [FIRN_LOG_INFO] = "", [FIRN_LOG_DEBUG] = "debug: "
    };
    const firn_log_level *least = ctx;
    if (level <= *least) {
        /* One call per line: several threads log. */
        (void)fprintf(stderr, "firn: %s%s\n", names[level], message);
    }
}

const firn_env *firni_cmd_env(firn_log_level level)
{
#define LOG_OF(name) [name] = { .write = write_log, .ctx = &levels[name] }
#define ENV_OF(name) [name] = { .log = &logs[name] }
    static firn_log_level levels[] = { FIRN_LOG_ERROR, FIRN_LOG_WARN, FIRN_LOG_INFO, FIRN_LOG_DEBUG };
    static const firn_log logs[] = {
        LOG_OF(FIRN_LOG_ERROR), LOG_OF(FIRN_LOG_WARN), LOG_OF(FIRN_LOG_INFO), LOG_OF(FIRN_LOG_DEBUG)
    };
    static const firn_env envs[] = {
        ENV_OF(FIRN_LOG_ERROR), ENV_OF(FIRN_LOG_WARN), ENV_OF(FIRN_LOG_INFO), ENV_OF(FIRN_LOG_DEBUG)
    };
#undef LOG_OF
#undef ENV_OF
    assert((unsigned)level < sizeof envs / sizeof envs[0]);
    return &envs[level];
}
