/*
 * cache_view: what the subcommands of `firn cache` share: the flags, the opened store, and how things are written.
 *
 *      cmd_cache.c      the table of subcommands        cache_listing.c   all records, tied into chains and groups
 *      cache_view.c     opening and closing, texts      cache_files.c     the files of a directory, by name
 *      cache_VERB.c     one subcommand each: a firni_command of its own, with its own flags and help
 *
 * Whoever only looks opens the directory read-only, so that a running server is not disturbed; nothing is created by
 * looking. Whoever changes something takes the writer's lock, and is refused while a server runs.
 */
#ifndef FIRNI_CACHE_VIEW_H
#define FIRNI_CACHE_VIEW_H

#include <jansson.h>

#include "cmd/cmd.h"
#include "firn/disk.h"

typedef struct firni_cache_view {
    const firni_command *self;
    const firn_env *env;
    const char *dir;          /* of the open store: the cache directory, or the drafter's in it; NULL: the default */
    const char *key_file;     /* NULL: the key of the environment, if any */
    uint64_t budget_bytes;
    bool json;
    bool writes;              /* opens as the writer */
    firn_tier *tier;          /* while open */
} firni_cache_view;

/* The flags of these members, as the head of a subcommand's table. */
/* clang-format off */
#define FIRNI_CACHE_FLAGS(v)                                                                                           \
    { .name = "cache-dir", .kind = FIRNI_FLAG_STRING, .target = &(v).dir, .value_name = "DIR",                         \
      .help = "the directory (default: the one that serve and run use)" },                                             \
    { .name = "cache-key-file", .kind = FIRNI_FLAG_STRING, .target = &(v).key_file, .value_name = "FILE",              \
      .help = "the key of an encrypted one (default: $FIRN_CACHE_KEY)" },                                              \
    { .name = "disk-budget", .kind = FIRNI_FLAG_BYTES, .target = &(v).budget_bytes, .value_name = "BYTES",             \
      .help = "budget to compare with: what serve is given (0: 16G)" },                                                \
    { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &(v).json, .help = "print JSON" }
/* clang-format on */

/* Lets `act` work on the cache directory, and then on the drafter's in it, if there is one; no store is opened. Returns
 * the exit status: the first that is not 0 ends it, with a message printed. */
int firni_cache_each_directory(firni_cache_view *view, int (*act)(firni_cache_view *view, void *ctx), void *ctx);
/* Opens the store, lets `act` work on it, closes it; then the same with the drafter's store in it, if there is one.
 * Returns the exit status: the first that is not 0 ends it, with a message printed. */
int firni_cache_each_store(firni_cache_view *view, int (*act)(firni_cache_view *view, void *ctx), void *ctx);

/* Parses the flags of a subcommand without words of its own, then firni_cache_each_store(). */
int firni_cache_run(firni_cache_view *view, const firni_flag *flags, uint32_t n_flags, int argc, char **argv,
                    int (*act)(firni_cache_view *view, void *ctx), void *ctx);

/* ---- texts ---- */

/* UTC in ISO 8601: sorts as text and means the same on every machine that shares a directory. */
#define FIRNI_TIME_TEXT_BYTES 32
const char *firni_cache_time_text(uint64_t wall_ns, char out[FIRNI_TIME_TEXT_BYTES]);
/* What tells a person which model it is, in one line. */
const char *firni_cache_identity_label(const char *identity_text, char *out, size_t out_bytes);
/* A namespace that is no UTF-8 cannot be a JSON string; it is null then. */
json_t *firni_cache_namespace_json(const char *ns);
void firni_cache_hex_text(const firn_digest *digest, char out[2 * FIRN_DIGEST_BYTES + 1]);
/* Prints and releases `value`; returns the exit status. */
int firni_cache_print_json(const firni_cache_view *view, json_t *value);

/* ---- the subcommands ---- */

extern const firni_command firni_cache_stat, firni_cache_ls, firni_cache_verify, firni_cache_fsck, firni_cache_explain,
    firni_cache_prune, firni_cache_pin, firni_cache_unpin, firni_cache_export, firni_cache_import, firni_cache_wipe,
    firni_cache_replay;

#endif
