/*
 * kv_flag: --kv, --kv-group and --kv-delay, which every command that opens a model has.
 */
#ifndef FIRNI_KV_FLAG_H
#define FIRNI_KV_FLAG_H

#include "cmd/cmd.h"
#include "firn/model.h"

#define FIRNI_KV_CHOICES "f16|bf16|f32|q8|q4|turbo[:kKvV]"

/* Whether `text` is one of the choices; K is 8, 5, 4 or 2, V is 8, 5, 4, 3 or 2. */
bool firni_kv_accepts(const char *text);

/* Sets kv_dtype and kv_scheme. NULL and 0: the default. Errors: INVALID (no such choice; a group or a delay where there
 * is none). */
firn_status firni_kv_set(const char *kv, const char *group, uint32_t delay_tokens, firn_model_options *options,
                         firn_error *err);

/* The three entries of a command's table of flags; the targets are two strings and a uint32_t. */
#define FIRNI_KV_FLAGS(kv_target, group_target, delay_target)                                                          \
    { .name = "kv", .kind = FIRNI_FLAG_STRING, .target = &(kv_target), .value_name = "TYPE",                           \
      .help = "how keys and values are kept; turbo is turbo:k8v3 (default: f16)", .choices = FIRNI_KV_CHOICES,         \
      .accepts = firni_kv_accepts },                                                                                   \
    { .name = "kv-group", .kind = FIRNI_FLAG_STRING, .target = &(group_target), .value_name = "N",                     \
      .help = "elements that share a scale with --kv q8 and q4 (default: 64 where it divides the heads)",              \
      .choices = "32|64" },                                                                                            \
    { .name = "kv-delay", .kind = FIRNI_FLAG_U32, .target = &(delay_target), .value_name = "TOKENS",                   \
      .help = "keep f16 until a row has so many tokens, with --kv q8, q4 and turbo (0: from the start)", .min = 0,     \
      .max = 16777216 }

#endif
