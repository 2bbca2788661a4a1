/*
 * flags: the pieces behind firni_flags_parse(), one concern per file.
 *
 *   flags.c         walks argv, decides what is a flag, a value or a positional word
 *   flags_value.c   text to a flag's target and back, with units, bounds and choices
 *   flags_config.c  reads "flag = value" files
 *   flags_help.c    prints --help
 *
 * A value is checked completely before its target is written, and every message names the flag and what is allowed.
 */
#ifndef FIRNI_FLAGS_IMPL_H
#define FIRNI_FLAGS_IMPL_H

#include <stddef.h>
#include <stdio.h>

#include "cmd/cmd.h"

/* The flag called name[0..len_name), or NULL. */
const firni_flag *firni_flags_find(const firni_flag *flags, uint32_t n_flags, const char *name, size_t len_name);

/* Parses `text` into the flag's target. On failure the target is unchanged and `message` (NUL-terminated, cut to
 * message_bytes) says what is expected. FIRNI_FLAG_STRING keeps the pointer. */
bool firni_flag_set(const firni_flag *flag, const char *text, char *message, size_t message_bytes);
/* The target's present value as text a user could type; "" when there is none (a NULL string, a false bool). */
void firni_flag_value_text(const firni_flag *flag, char *out, size_t out_bytes);
/* The bounds or choices as text, "" when there are none. */
void firni_flag_allowed_text(const firni_flag *flag, char *out, size_t out_bytes);

/* Applies a config file. Returns 0, or the exit status after having said why. */
int firni_flags_read_config(const firni_command *command, const firni_flag *flags, uint32_t n_flags, const char *path);

void firni_flags_print_help(const firni_command *command, const firni_flag *flags, uint32_t n_flags, FILE *out);

#endif
