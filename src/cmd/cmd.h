/*
 * cmd: the `firn` program. One file per subcommand; this header is what they share: the command table's entry and
 * declarative flags, so that parsing, ranges, --help and the config file are written once.
 *
 * Exit status: 0 success, 1 the operation failed (one line "firn COMMAND: message" on stderr), 2 wrong usage (message
 * and a hint at --help on stderr).
 */
#ifndef FIRNI_CMD_H
#define FIRNI_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
#include "firn/env.h"
#include "firn/status.h"

typedef enum firni_flag_kind {
    FIRNI_FLAG_BOOL,     /* bool; no value on the command line */
    FIRNI_FLAG_U32,      /* uint32_t */
    FIRNI_FLAG_U64,      /* uint64_t */
    FIRNI_FLAG_BYTES,    /* uint64_t; "512M", "16G", "4096": K, M, G, T are powers of 1024 */
    FIRNI_FLAG_COUNT,    /* uint64_t; "450M", "1.5B": K, M, B are powers of 1000 */
    FIRNI_FLAG_SECONDS,  /* uint64_t nanoseconds; "30", "1.5", "10m", "2h", "7d" */
    FIRNI_FLAG_FLOAT,    /* float; NaN and infinities are refused */
    FIRNI_FLAG_STRING    /* const char *; points into argv or the config's memory */
} firni_flag_kind;

/* min and max bound numbers (inclusive); both 0 means no bound. choices, when not NULL, is a "|"-separated list that a
 * string must be one of; where `accepts` is set it decides instead, and choices only say what it takes. The target
 * holds the default before parsing; help text shows it. */
typedef struct firni_flag {
    const char *name;        /* "ctx" for --ctx */
    char letter;             /* 'm' for -m, or 0 */
    firni_flag_kind kind;
    void *target;
    const char *value_name;  /* "TOKENS"; NULL for bools */
    const char *help;        /* one line, no full stop needed */
    double min, max;
    const char *choices;
    bool (*accepts)(const char *text);
} firni_flag;

typedef struct firni_command {
    const char *name;        /* "serve" */
    const char *summary;     /* one line for `firn --help` */
    const char *synopsis;    /* "serve -m MODEL.gguf [flags]" */
    const char *details;     /* paragraphs under the flags in --help, or NULL */
    int (*run)(const struct firni_command *self, int argc, char **argv); /* argv[0] is the first word after the name */
} firni_command;

/* Parses argv. Positional words are collected in order; more than n_positional_max is wrong usage. "--flag value",
 * "--flag=value", "-m value" and "--" are understood; --help prints and returns 0 with *done. When a flag named
 * "config" exists and was given, the file ("flag = value" lines, # comments) is read first; the command line wins.
 * Returns 0 to go on, or the exit status when *done. */
int firni_flags_parse(const firni_command *command, const firni_flag *flags, uint32_t n_flags, int argc, char **argv,
                      const char **positional, uint32_t n_positional_max, uint32_t *n_positional, bool *done);

/* Prints "firn COMMAND: message" to stderr and returns 1; firni_cmd_usage: the same with the hint, returns 2. */
int firni_cmd_fail(const firni_command *command, const char *format, ...) FIRNI_PRINTF(2, 3);
int firni_cmd_usage(const firni_command *command, const char *format, ...) FIRNI_PRINTF(2, 3);

/* A progress line on stderr when that is a terminal, nothing otherwise. Usable as firn_model_options.progress with ctx
 * = the label. */
void firni_cmd_progress(void *label, float fraction);

/* All that is left of a stream, or a whole file, malloc'ed and followed by a NUL that len_bytes does not count; it must
 * be smaller than n_bytes_max, a power of two. NULL: with errno set, respectively a message printed. */
#define FIRNI_TEXT_BYTES_MAX ((size_t)1 << 30)
char *firni_cmd_read_stream(FILE *file, size_t n_bytes_max, size_t *len_bytes);
char *firni_cmd_read_file(const firni_command *command, const char *path, size_t n_bytes_max, size_t *len_bytes);

/* Where the built-in model is: $FIRN_MODEL, beside the program (../models, ../../models from build/, ../share/firn), or
 * NULL. The string is malloc'ed. */
char *firni_cmd_builtin_model(void);

/* An environment whose log goes to stderr down to `level`; static storage per level. */
const firn_env *firni_cmd_env(firn_log_level level);

/* "1.5 GiB" into out; returns out. */
#define FIRNI_SIZE_TEXT_BYTES 32
const char *firni_cmd_size_text(uint64_t n_bytes, char out[FIRNI_SIZE_TEXT_BYTES]);

extern const firni_command firni_cmd_serve, firni_cmd_run, firni_cmd_tokenize, firni_cmd_logits, firni_cmd_bench,
    firni_cmd_synth, firni_cmd_cache, firni_cmd_perplexity;

#endif
