/*
 * cache_model: a subcommand of `firn cache` that looks at the store with a model's eyes: model, tier and a prompt's
 * tokens.
 */
#ifndef FIRNI_CACHE_MODEL_H
#define FIRNI_CACHE_MODEL_H

#include "cmd/stack.h"

typedef struct firni_cache_model {
    const firni_command *self;
    const firn_env *env;
    firni_stack_options options;
    const char *prompt_path;   /* NULL: none is wanted */
    const char *ns;            /* NULL: "" */
    char stored_ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    bool json;
    /* While open: */
    firni_stack *stack;        /* without an engine */
    firn_token *tokens;
    uint32_t n_tokens;
} firni_cache_model;

/* The flags of these members, as the head of a subcommand's table. */
/* clang-format off */
#define FIRNI_CACHE_MODEL_FLAGS(m)                                                                                     \
    { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &(m).options.model_path,                    \
      .value_name = "FILE", .help = "GGUF model (default: the built-in one)" },                                        \
    FIRNI_KV_FLAGS((m).options.kv, (m).options.kv_group, (m).options.kv_delay_tokens),                                 \
    { .name = "cache-dir", .kind = FIRNI_FLAG_STRING, .target = &(m).options.cache_dir, .value_name = "DIR",           \
      .help = "the directory (default: the one that serve and run use)" },                                             \
    { .name = "cache-key-file", .kind = FIRNI_FLAG_STRING, .target = &(m).options.cache_key_file,                      \
      .value_name = "FILE", .help = "the key of an encrypted one (default: $FIRN_CACHE_KEY)" },                        \
    { .name = "ttl", .kind = FIRNI_FLAG_SECONDS, .target = &(m).options.ttl_ns, .value_name = "TIME",                  \
      .help = "what serve is given: older state is not used (0: no limit)" },                                          \
    { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &(m).ns, .value_name = "NS",                           \
      .help = "whose state (default: that of requests without one)" },                                                 \
    { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &(m).json, .help = "print JSON" }
/* clang-format on */

/* Opens the model and the store, read-only unless `writes`, and encodes the prompt as the completions endpoint does.
 * Returns 0, or the exit status after a message; close in both cases. */
int firni_cache_model_open(firni_cache_model *view, bool writes);
void firni_cache_model_close(firni_cache_model *view);

#endif
