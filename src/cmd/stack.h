/*
 * stack: model, pool, disk tier and engine put together from a command's options.
 *
 *      workers <- model <- engine -> pool
 *                            \----> disk tier -> pool
 *
 * The commands that generate (serve, run, bench) open the same stack, so that they mean the same thing by the same
 * flag. What is special about a command stays in its own file.
 *
 * A cache directory that can not be used is not the end: the stack opens without a disk tier, and disk_state and
 * disk_message say why. The exceptions are a directory that another process is writing (unless disk_share) and one that
 * holds something foreign: both are refused, because going on would surprise whoever looks for the cache later.
 */
#ifndef FIRNI_STACK_H
#define FIRNI_STACK_H

#include "cmd/kv_flag.h"
#include "cmd/cmd.h"
#include "firn/disk.h"
#include "firn/engine.h"

/* All zero means the defaults. The strings are borrowed during firni_stack_open() only. */
typedef struct firni_stack_options {
    const char *model_path;      /* NULL: the built-in model */
    uint32_t n_threads;          /* 0: the physical cores this process may use */
    uint32_t ctx_tokens_max;     /* 0: the model's training context */
    uint32_t batch_rows_max;     /* 0: 16 */
    uint32_t chunk_tokens_max;   /* 0: 256 */
    uint64_t max_itl_ns;         /* between two tokens of a row beside prompts; 0: four of its own steps, at least 50
                                  * ms */
    uint32_t queue_max;          /* 0: 128 */
    const char *kv;              /* what --kv says (kv_flag.h); NULL: "f16" */
    const char *kv_group;        /* what --kv-group says; NULL: the default */
    uint32_t kv_delay_tokens;    /* what --kv-delay says; 0: none */
    const char *kernel;          /* NULL: the best of this processor */
    uint64_t ram_budget_bytes;   /* 0: a quarter of the memory this process may use */
    uint64_t disk_budget_bytes;  /* 0: 16 GiB */
    const char *cache_dir;       /* NULL: $XDG_CACHE_HOME/firn, or ~/.cache/firn */
    const char *cache_below;     /* a second directory under cache_dir: see firn/stack.h; NULL: none */
    uint64_t cache_below_budget_bytes; /* of it; 0: 64 GiB */
    const char *cache_key_file;  /* the key of an encrypted cache_dir; NULL: that of the environment, if any */
    const char *packed_dir;      /* of packed weights: "auto", "off" or a directory (stack_packed.h); NULL: "auto" */
    bool no_disk;                /* no disk tier */
    const char *durability;      /* "none", "batch" or "always"; NULL: "batch" */
    uint64_t ttl_ns;             /* 0: no limit */
    uint64_t demote_idle_ns;     /* state not used for this long is compressed on disk; 0: never */
    uint64_t disk_min_free_bytes; /* 0: the tier's default */
    uint32_t checkpoint_tokens;  /* of a request with an id, every so many generated tokens; 0: none */
    uint64_t checkpoint_ttl_ns;  /* 0: 1 h */
    bool disk_share;             /* when another process is the writer, read its cache and store nothing */
    const char *policy;          /* which state leaves RAM first: "lru" or "cost"; NULL: "lru" */
    const char *admission;       /* what may come in: "always" or "second"; NULL: "always" */
    bool disk_read_only;         /* look into the disk tier, and never write */
    bool no_prefix_cache;        /* compute every prompt in full; implies no_disk */
    bool restore_always;         /* restore also where computing is expected to be faster */
    const char *draft;           /* "ngram", or the file of a drafter; NULL: no speculation */
    bool draft_always;           /* guess also where it is slower */
    uint32_t draft_tokens_max;   /* guesses of a row and step; 0: 8 */
    bool no_engine;              /* leave `engine` NULL: for commands that drive the model themselves */
    void (*progress)(void *label, float fraction); /* model loading; may be NULL */
    void *progress_label;
} firni_stack_options;

/* The flags of these options, as the head of a command's table:
 *
 *      const firni_flag flags[] = { FIRNI_STACK_FLAGS(options), { .name = "port", ... } };
 */
/* clang-format off */
#define FIRNI_STACK_FLAGS(o)                                                                                           \
    { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &(o).model_path, .value_name = "FILE",      \
      .help = "GGUF model to load (default: the built-in one)" },                                                      \
    { .name = "threads", .letter = 't', .kind = FIRNI_FLAG_U32, .target = &(o).n_threads, .value_name = "N",           \
      .help = "threads of a forward (0: the cores that it may use)", .min = 0, .max = 64 },                            \
    { .name = "ctx", .letter = 'c', .kind = FIRNI_FLAG_U32, .target = &(o).ctx_tokens_max, .value_name = "TOKENS",     \
      .help = "most tokens of one request, prompt and answer (0: as trained)", .min = 0, .max = 16777216 },            \
    { .name = "max-batch", .kind = FIRNI_FLAG_U32, .target = &(o).batch_rows_max, .value_name = "ROWS",                \
      .help = "requests decoding at once (0: 16)", .min = 0, .max = 256 },                                             \
    { .name = "chunk", .kind = FIRNI_FLAG_U32, .target = &(o).chunk_tokens_max, .value_name = "TOKENS",                \
      .help = "prompt tokens of one step (0: 256)", .min = 0, .max = 8192 },                                           \
    { .name = "max-itl", .kind = FIRNI_FLAG_SECONDS, .target = &(o).max_itl_ns, .value_name = "TIME",                  \
      .help = "most time between two tokens of an answer while prompts are read, e.g. 0.2 (0: 4 steps; 1h: any)" },   \
    { .name = "queue", .kind = FIRNI_FLAG_U32, .target = &(o).queue_max, .value_name = "N",                            \
      .help = "requests that may wait (0: 128)", .min = 0, .max = 65536 },                                             \
    FIRNI_KV_FLAGS((o).kv, (o).kv_group, (o).kv_delay_tokens),                                                         \
    { .name = "kernel", .kind = FIRNI_FLAG_STRING, .target = &(o).kernel, .value_name = "NAME",                        \
      .help = "kernel variant (default: the best of this processor)" },                                                \
    { .name = "ram-budget", .kind = FIRNI_FLAG_BYTES, .target = &(o).ram_budget_bytes, .value_name = "BYTES",          \
      .help = "most memory for key/value state, e.g. 4G (0: a quarter of memory)" },                                   \
    { .name = "disk-budget", .kind = FIRNI_FLAG_BYTES, .target = &(o).disk_budget_bytes, .value_name = "BYTES",        \
      .help = "most bytes on disk, e.g. 64G (0: 16G)" },                                                               \
    { .name = "cache-dir", .kind = FIRNI_FLAG_STRING, .target = &(o).cache_dir, .value_name = "DIR",                   \
      .help = "where state is kept across restarts (default: $XDG_CACHE_HOME/firn or ~/.cache/firn)" },                \
    { .name = "cache-below", .kind = FIRNI_FLAG_STRING, .target = &(o).cache_below, .value_name = "DIR",               \
      .help = "a larger, slower directory under --cache-dir, with its own copy of all state" },                        \
    { .name = "cache-below-budget", .kind = FIRNI_FLAG_BYTES, .target = &(o).cache_below_budget_bytes,                 \
      .value_name = "BYTES", .help = "most bytes in --cache-below (0: 64G)" },                                         \
    { .name = "cache-key-file", .kind = FIRNI_FLAG_STRING, .target = &(o).cache_key_file, .value_name = "FILE",        \
      .help = "encrypt the cache with this key: 32 bytes or 64 hexadecimal digits (default: $FIRN_CACHE_KEY)" },       \
    { .name = "packed-dir", .kind = FIRNI_FLAG_STRING, .target = &(o).packed_dir, .value_name = "DIR",                 \
      .help = "keep weights as kernels read them, for a quick start: auto (in the cache directory), off, or where" },  \
    { .name = "no-disk", .kind = FIRNI_FLAG_BOOL, .target = &(o).no_disk, .help = "keep state in RAM only" },          \
    { .name = "durability", .kind = FIRNI_FLAG_STRING, .target = &(o).durability, .value_name = "WHEN",                \
      .help = "when stored state is synced: none, batch, always (default: batch)", .choices = "none|batch|always" },   \
    { .name = "disk-min-free", .kind = FIRNI_FLAG_BYTES, .target = &(o).disk_min_free_bytes, .value_name = "BYTES",    \
      .help = "leave this much of the file system free (0: 5 %, at most 2G)" },                                      \
    { .name = "ttl", .kind = FIRNI_FLAG_SECONDS, .target = &(o).ttl_ns, .value_name = "TIME",                          \
      .help = "stored state older than this is not used, e.g. 7d (0: no limit)" },                                     \
    { .name = "demote-idle", .kind = FIRNI_FLAG_SECONDS, .target = &(o).demote_idle_ns, .value_name = "TIME",          \
      .help = "compress on disk what was not used for this long, while nobody asks, e.g. 1d (0: never)" },             \
    { .name = "policy", .kind = FIRNI_FLAG_STRING, .target = &(o).policy, .value_name = "NAME",                        \
      .help = "what leaves RAM first: lru, or cost (saves least computation per byte) (default: lru)",                 \
      .choices = "lru|cost" },                                                                                         \
    { .name = "admission", .kind = FIRNI_FLAG_STRING, .target = &(o).admission, .value_name = "RULE",                  \
      .help = "what RAM takes in: always, or second (while starved, what is asked for twice) (default: always)",       \
      .choices = "always|second" },                                                                                    \
    { .name = "draft", .kind = FIRNI_FLAG_STRING, .target = &(o).draft, .value_name = "SOURCE",                        \
      .help = "guess tokens ahead, answers stay the same: ngram (from the text so far), or a small GGUF model" },      \
    { .name = "draft-max", .kind = FIRNI_FLAG_U32, .target = &(o).draft_tokens_max, .value_name = "TOKENS",            \
      .help = "most guesses of a request and step (0: 8)", .min = 0, .max = 64 },                                      \
    { .name = "restore-always", .kind = FIRNI_FLAG_BOOL, .target = &(o).restore_always,                                \
      .help = "read the disk also where computing is expected to be faster" },                                         \
    { .name = "draft-always", .kind = FIRNI_FLAG_BOOL, .target = &(o).draft_always,                                    \
      .help = "guess also where that has turned out slower than plain decoding" }
/* clang-format on */

/* An open stack. The members are borrowed by whoever reads them and live until firni_stack_close(). */
typedef struct firni_stack {
    firn_workers *workers;
    firn_model *model;
    firn_model *draft_model;      /* NULL: no drafter */
    const char *draft_name;       /* what guesses, for a person; NULL: nothing does */
    firn_pool *pool;
    firn_tier *tier;              /* NULL: no disk tier; disk_state says why. A stack with cache_below */
    firn_tier *draft_tier;        /* the drafter's own, in a directory of its own in cache_dir; or NULL */
    firn_engine *engine;          /* NULL with no_engine */
    char *model_path;
    bool is_builtin;              /* the model is the built-in one */
    char *cache_dir;              /* NULL with no_disk, or when none could be derived */
    char *packed_dir;             /* NULL: weights are packed at each start */
    uint64_t ram_budget_bytes, disk_budget_bytes; /* of state */
    firn_reason disk_state;       /* NONE: open; DISABLED: not asked for; else why it is not there or not written */
    char disk_message[400];       /* one sentence for a person; "" while disk_state is NONE */
    char below_message[400];      /* why there is one directory where two were asked for; "": all is well */
    const firn_env *env;
} firni_stack;

/* Opens everything, in the order of the picture. On failure nothing stays open. Errors: NOT_FOUND (no built-in model),
 * BUSY and FORMAT (the cache directory; the message names the flags that help), and those of the parts. */
firn_status firni_stack_open(const firni_stack_options *options, const firn_env *env, firni_stack **out,
                             firn_error *err);

/* Where the cache goes when the user does not say: released with firni_free(); NULL when there is no home either, or no
 * memory. */
char *firni_stack_default_cache_dir(const firn_env *env);
/* Makes the parents of `dir`, private to the user. Failures are left for the tier to find: it names the path. */
void firni_stack_make_parents(const firn_env *env, const char *dir);

/* Closes in reverse: the engine stops and flushes within about bound_ns (report may be NULL; zeroed when there is no
 * engine), then tier, pool, model, workers. When a device does not answer for a minute more, what is left of the stack
 * is left behind, which is logged; the process had better end then. Accepts NULL. */
void firni_stack_close(firni_stack *stack, uint64_t bound_ns, firn_flush_report *report);

#endif
