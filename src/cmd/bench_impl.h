/*
 * bench: what `firn bench` measures, one concern per file.
 *
 *   cmd_bench.c      flags, the order of things
 *   bench_forward.c  prefill and decode: the model driven directly, over ragged caches
 *   bench_deep.c     decode at the end of long contexts, whose state is made up
 *   bench_rows.c     the rows of both, and how state is made up
 *   bench_ttft.c     time to first token through the engine: cold, from RAM, from disk
 *   bench_resume.c   time to first token after a restart: the same prompt, its continuation, a branch
 *   bench_request.c  one request through an engine
 *   bench_busy.c     rows that decode meanwhile, and the memory of the process
 *   bench_watch.c    rows that decode meanwhile, and when each of their tokens came
 *   bench_beside.c   a long prompt beside rows that decode
 *   bench_saving.c   a conversation saved and restored beside rows that decode
 *   bench_shared.c   users who share a prompt and come back in turn
 *   bench_sampling.c what a step spends beside its forward
 *   bench_draft.c    decode through the engine, plain and with guesses
 *   bench_memory.c   what this machine can stream from memory: the bound of decode
 *   bench_multiply.c what this machine can multiply: the bound of prefill
 *   bench_files.c    what this machine can read from the cache's own files: the bound of a restore
 *   bench_report.c   table and JSON
 *   bench_report_engine.c  the same for what rows and users get from the engine
 *
 * Every measurement checks its result before it is timed, and every ratio compares two things of the same run.
 */
#ifndef FIRNI_BENCH_IMPL_H
#define FIRNI_BENCH_IMPL_H

#include <stdatomic.h>

#include "cmd/stack.h"

#define FIRNI_BENCH_RUNS_MAX 64u
#define FIRNI_BENCH_BATCHES_MAX 8u
#define FIRNI_BENCH_DEPTHS_MAX 8u

/* One number, measured several times. */
typedef struct firni_sample {
    double values[FIRNI_BENCH_RUNS_MAX];
    uint32_t n;
} firni_sample;

void firni_sample_add(firni_sample *sample, double value);
double firni_sample_median(const firni_sample *sample); /* 0 when empty, like the next two */
double firni_sample_min(const firni_sample *sample);
double firni_sample_max(const firni_sample *sample);

typedef struct firni_bench_options {
    uint32_t n_prompt;      /* tokens of the timed prefill */
    uint32_t n_gen;         /* tokens each row generates; 0: no decode */
    uint32_t n_depth;       /* tokens before the prompt, not timed */
    bool shares_depth;      /* they are the same ones in every row, held once */
    bool is_depth_made_up;  /* their state is not computed */
    uint32_t n_runs;
    uint32_t batches[FIRNI_BENCH_BATCHES_MAX];
    uint32_t n_batches;
    uint32_t n_chunk;       /* prompt tokens per forward */
    uint32_t deep[FIRNI_BENCH_DEPTHS_MAX]; /* contexts of made-up state, more than n_gen tokens each */
    uint32_t n_deep;
    uint32_t n_ttft;        /* 0: no time to first token */
    uint32_t n_resume;      /* tokens of the prompt of a restart; 0: no restarts */
    uint32_t n_beside;      /* tokens of a prompt beside rows that decode; 0: none */
    uint32_t n_saving;      /* tokens of a conversation that is saved and restored beside such rows; 0: none */
    uint32_t n_shared;      /* tokens that users share; 0: none */
    bool measures_sampling;
    uint64_t max_itl_ns;    /* of these rows, see firn_engine_options */
    uint32_t n_draft;       /* tokens of the answers that compare speculation with plain decoding; 0: no */
    bool draft_always;      /* see firn_engine_options */
    uint32_t n_draft_max;   /* guesses of a step; 0: the engine's default */
    const char *dir;        /* the restore's files go into a new directory in here */
} firni_bench_options;

/* Decode of one batch size. */
typedef struct firni_bench_decode {
    uint32_t n_rows;
    firni_sample tokens_per_second; /* all rows together */
    uint64_t step_bytes;            /* weights and mean key/value bytes that a step reads */
} firni_bench_decode;

/* Decode of one row whose context ends up at n_depth tokens. */
typedef struct firni_bench_deep {
    uint32_t n_depth;
    uint64_t token_bytes;           /* of state that a token adds */
    uint64_t row_bytes;             /* what the row holds in the end */
    firni_sample tokens_per_second;
} firni_bench_deep;

typedef struct firni_bench_ttft {
    uint32_t n_tokens;              /* of the prompt */
    uint32_t n_answer;              /* tokens compared between the three */
    firni_sample cold_seconds, ram_seconds, disk_seconds;
    uint32_t ram_tokens, disk_tokens; /* what came from there */
    uint64_t restored_bytes;
    firni_sample restore_rate;      /* bytes/s */
    firni_sample raw_rate;          /* bytes/s of the same files */
    bool is_direct;                 /* the raw read bypassed the page cache */
    firni_sample busy_seconds;      /* from disk, while other rows decode */
    firni_sample busy_share;        /* of their rate, that they had meanwhile */
    firni_sample extra_share;       /* of the restored bytes: peak memory beyond them */
} firni_bench_ttft;

/* What comes after a restart. */
typedef enum firni_bench_turn {
    FIRNI_BENCH_SAME,     /* the same prompt */
    FIRNI_BENCH_CONTINUE, /* prompt, answer, new tokens */
    FIRNI_BENCH_BRANCH,   /* the prompt without its last tokens, new tokens */
    FIRNI_BENCH_TURNS
} firni_bench_turn;

typedef struct firni_bench_resume {
    uint32_t n_prompt, n_answer, n_new, n_cut;
    firni_sample cold_seconds;
    firni_sample seconds[FIRNI_BENCH_TURNS];
    uint32_t prompt_tokens[FIRNI_BENCH_TURNS];   /* of the request */
    uint32_t computed_tokens[FIRNI_BENCH_TURNS]; /* what was not restored: the most of all runs */
} firni_bench_resume;

/* A long prompt and two rows that decode. */
typedef struct firni_bench_beside {
    uint32_t n_tokens;              /* of the prompt */
    firni_sample alone_seconds, beside_seconds; /* to its first token */
    firni_sample quiet_median;      /* seconds between two tokens of a row before it came */
    firni_sample beside_median, beside_p99; /* while it was read */
} firni_bench_beside;

/* A conversation, and two rows that decode. */
typedef struct firni_bench_saving {
    uint32_t n_tokens;
    uint64_t written_bytes, read_bytes;
    firni_sample step_seconds;      /* median of the rows, before */
    firni_sample save_seconds, restore_seconds; /* until it is durable; until its first token */
    firni_sample quiet_lost;        /* steps of each row in as long a time with nothing beside */
    firni_sample save_lost, restore_lost;       /* steps that each row lost meanwhile */
    firni_sample save_longest, restore_longest; /* steps' times between two tokens of a row, at most */
} firni_bench_saving;

#define FIRNI_BENCH_USERS 4u

/* Users who share the first n_tokens of their prompts, and add n_own in each of two turns. */
typedef struct firni_bench_shared {
    uint32_t n_tokens, n_own;
    firni_sample first_seconds;     /* to the first token of the first user's first turn: all is computed */
    firni_sample joined_seconds[FIRNI_BENCH_USERS - 1]; /* of the others' */
    firni_sample back_seconds[FIRNI_BENCH_USERS];       /* of the second turns */
    uint32_t back_computed_tokens;  /* of these: the most of all runs */
    uint64_t held_bytes;            /* by all of them after their first turns */
    uint64_t user_bytes;            /* by the first after its own */
} firni_bench_shared;

#define FIRNI_BENCH_SAMPLINGS 6u

/* One way to choose tokens. */
typedef struct firni_bench_sampling {
    const char *name;
    uint32_t n_rows;
    firni_sample step_seconds;
    firni_sample other_seconds;     /* of it, what was not forward */
} firni_bench_sampling;

#define FIRNI_BENCH_DRAFT_TEXTS 2u

/* One text, decoded plainly and with guesses. */
typedef struct firni_bench_draft {
    const char *name;
    firni_sample plain_rate, drafted_rate; /* tokens/s */
    firni_sample ratio;             /* of the two of each run */
    firn_draft_usage usage;
} firni_bench_draft;

typedef struct firni_bench {
    const firni_command *command;
    const firn_env *env;
    firni_bench_options options;
    const firni_stack *stack;       /* without engine and disk */
    firni_sample stream_rate;       /* bytes/s, all threads */
    firni_sample multiply_rate;     /* operations/s, two for each multiply-add, all threads */
    firni_sample prefill_rate;      /* tokens/s */
    uint64_t prefill_multiply_adds; /* of weights, in one prefill */
    firni_bench_decode decode[FIRNI_BENCH_BATCHES_MAX];
    firni_bench_deep deep[FIRNI_BENCH_DEPTHS_MAX];
    firni_bench_ttft ttft;
    firni_bench_resume resume;
    firni_bench_beside beside;
    firni_bench_saving saving;
    firni_bench_shared shared;
    firni_bench_sampling sampling[FIRNI_BENCH_SAMPLINGS];
    firni_bench_draft draft[FIRNI_BENCH_DRAFT_TEXTS];
} firni_bench;

/* ---- bench_rows.c ---- */

/* caches: [n_layers], NULL where there is none. What a call that failed has left there is to be cleared, too. */

/* One row, of n_made_up tokens (>= 0). UNSUPPORTED for layers whose state cannot be made up. */
firn_status firni_bench_row_begin(const firni_bench *bench, uint64_t seed, uint32_t n_made_up, firn_cache **caches,
                                  firn_error *err);
/* A row of its own, like row 0 of `from`, sharing the blocks. */
firn_status firni_bench_row_copy(const firni_bench *bench, firn_cache *const *from, firn_cache **caches,
                                 firn_error *err);
void firni_bench_row_clear(const firni_bench *bench, firn_cache **caches); /* accepts NULL */
/* n_gen greedy tokens of n_rows rows, behind next[n_rows]; answer[n_gen]: row 0's. logits: [n_rows, n_vocab]. The time
 * has the choice of tokens in it, as a caller's would. */
firn_status firni_bench_decode_rows(const firni_bench *bench, firn_cache *const *caches, uint32_t n_rows,
                                    firn_token *next, float *logits, firn_token *answer, uint64_t *elapsed_ns,
                                    firn_error *err);

/* ---- bench_request.c ---- */

#define FIRNI_BENCH_DISK_BUDGET_BYTES (UINT64_C(1) << 40) /* nothing is to be evicted here */
#define FIRNI_BENCH_FLUSH_NS (UINT64_C(120) * 1000000000u)

/* tokens: room for n_max. */
typedef struct firni_bench_answer {
    firn_token *tokens;
    uint32_t n_max;
    uint32_t n_tokens;
    firn_usage usage;
    bool is_fresh;                  /* to be computed without the cache, and left out of it */
    bool is_ram_only;               /* to be kept in RAM alone */
} firni_bench_answer;

/* Runs the prompt for exactly n_max tokens and waits. Errors: the request's own. */
firn_status firni_bench_ask(firn_engine *engine, const firn_token *prompt, uint32_t n_prompt,
                            firni_bench_answer *answer, firn_error *err);

/* An engine over a disk tier in `dir`, for one request at a time beside FIRNI_BENCH_BUSY_ROWS others. */
typedef struct firni_bench_session {
    firn_tier *tier;
    firn_engine *engine;
} firni_bench_session;

firn_status firni_bench_session_open(firni_bench_session *session, const firni_bench *bench, const char *dir,
                                     uint32_t ctx_tokens, firn_error *err);
/* Flushes; STATE when something did not reach the disk, since a later run would be a cold one. Accepts what a failed
 * open has left. */
firn_status firni_bench_session_close(firni_bench_session *session, firn_error *err);

/* ---- bench_busy.c ---- */

#define FIRNI_BENCH_BUSY_ROWS 4u

/* Rows that decode until they are stopped. */
typedef struct firni_bench_rows {
    firn_engine *engine;
    uint64_t ids[FIRNI_BENCH_BUSY_ROWS];
    uint32_t n;
    atomic_uint_fast64_t n_tokens; /* of all rows */
    atomic_uint n_ended;
} firni_bench_rows;

/* Returns when all are decoding. Stop them also after an error. */
firn_status firni_bench_rows_start(firni_bench_rows *rows, const firni_bench *bench, firn_engine *engine,
                                   uint32_t ctx_tokens, firn_error *err);
void firni_bench_rows_stop(firni_bench_rows *rows);
double firni_bench_rows_rate(firni_bench_rows *rows, const firn_env *env, uint64_t for_ns); /* tokens/s, of all */

/* ---- bench_watch.c ---- */

#define FIRNI_BENCH_WATCH_TOKENS_MAX 8192u /* of each row and its prompt: the context that the engine needs at least */

typedef struct firni_bench_watch firni_bench_watch;

firn_status firni_bench_watch_create(const firni_bench *bench, firni_bench_watch **out, firn_error *err);
void firni_bench_watch_destroy(firni_bench_watch *watch); /* accepts NULL; stop it before */
/* Forgets what it has seen, and returns when the 1..8 rows have decoded for a while. Stop them also after an error. */
firn_status firni_bench_watch_start(firni_bench_watch *watch, firn_engine *engine, uint32_t n_rows,
                                    const firn_sampling *sampling, uint32_t n_logprobs, firn_error *err);
/* STATE when a row ended before. What was seen can still be asked for. */
firn_status firni_bench_watch_stop(firni_bench_watch *watch, firn_error *err);
/* Of the times between two tokens of a row that ended in (from_ns, to_ns], in seconds; 0 when there are none. */
double firni_bench_watch_quantile(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns, double share);
double firni_bench_watch_mean(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns);
/* Tokens that a row heard less than it would have, one each step_seconds. */
double firni_bench_watch_lost(firni_bench_watch *watch, uint64_t from_ns, uint64_t to_ns, double step_seconds);

/* Resident memory at one moment, to tell how far its peak rose above what the pool's blocks account for. */
typedef struct firni_bench_memory {
    bool is_known;
    uint64_t resident_bytes;
    firn_pool_stats pool;
} firni_bench_memory;

void firni_bench_memory_begin(firni_bench_memory *memory, firn_pool *pool);
uint64_t firni_bench_memory_extra(const firni_bench_memory *memory, firn_pool *pool);

/* Fills prefill_rate and decode. Errors: those of the parts; STATE when two ways that must agree to the bit do not. */
firn_status firni_bench_forward(firni_bench *bench, firn_error *err);
/* Fills deep. Errors: as before; UNSUPPORTED for layers whose state cannot be made up. */
firn_status firni_bench_measure_deep(firni_bench *bench, firn_error *err);
/* Fills ttft. */
firn_status firni_bench_measure_ttft(firni_bench *bench, firn_error *err);
/* Fills resume. */
firn_status firni_bench_measure_resume(firni_bench *bench, firn_error *err);
/* Fills beside. */
firn_status firni_bench_measure_beside(firni_bench *bench, firn_error *err);
/* Fills saving. */
firn_status firni_bench_measure_saving(firni_bench *bench, firn_error *err);
/* Fills shared. */
firn_status firni_bench_measure_shared(firni_bench *bench, firn_error *err);
/* Fills sampling. */
firn_status firni_bench_measure_sampling(firni_bench *bench, firn_error *err);
/* Fills draft. */
firn_status firni_bench_measure_draft(firni_bench *bench, firn_error *err);
/* Adds n_runs readings of a buffer larger than any cache to stream_rate. */
firn_status firni_bench_stream(firni_bench *bench, uint32_t n_runs, firn_error *err);

/* Adds n_runs readings of the register tile to multiply_rate. */
firn_status firni_bench_multiply(firni_bench *bench, uint32_t n_runs, firn_error *err);

/* n different-looking ids of the model's vocabulary, none special; the same for the same seed. */
void firni_bench_fill_tokens(const firni_bench *bench, uint64_t seed, firn_token *out, uint32_t n);

/* Makes the kernel forget its copies of the segment files in `dir`. */
void firni_bench_drop_cached(const char *dir);
/* Reads all segment files in `dir` with many requests in flight; *rate in bytes/s. */
firn_status firni_bench_read_files(const firn_env *env, const char *dir, double *rate, bool *is_direct,
                                   firn_error *err);

void firni_bench_print(const firni_bench *bench);
/* Returns the exit status. */
int firni_bench_print_json(const firni_bench *bench);

#endif
