/*
 * engine: how requests become tokens. The module's map:
 *
 *      any thread                         engine thread
 *      submit --> inbox (bounded) -->  waiting --> running rows --> finished
 *      cancel --> flag in sequence        |            |                |
 *                                      lease        one row in       published into the
 *                                 (prefix lookup,   every layer's    token tree, row
 *                                  tier read)       batched cache    filtered out
 *
 *   engine.c     creation, the thread's loop, shutdown, statistics
 *   intake.c     submit and cancel: everything other threads may touch
 *   sequence.c   one request's own state; its life from copy to END event
 *   admission.c  who may join, against the KV budget; joining = lend + merge
 *   early_start.c  a row's first chunk while its restore is still arriving
 *   step.c       one forward over all rows; sampling; leaving = publish + filter
 *   step_plan.c  what each row brings to it: the division of the chunk
 *   choose.c     rows' next tokens, over the threads of the forward
 *   pace.c       how large the chunk may be beside rows that decode
 *   publish.c    what of a row goes into the token tree, and when
 *   draft_impl.h speculation: guesses, verify rounds
 *
 * The memory promise: reserved_bytes (firni_request_bytes of all running rows, and of those whose lookup has begun) +
 * unevictable bytes of the tree never exceed the pool's budget when a request is let in, so that a running row can
 * always get its next block, by evicting clean tree nodes if need be. What a row publishes is counted in its
 * reservation until it ends, then in the tree.
 *
 * Locking: one mutex, engine.mutex, guards the members so marked; nothing is called under it. It nests inside nothing.
 */
#ifndef FIRNI_ENGINE_IMPL_H
#define FIRNI_ENGINE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base_impl.h"
#include "engine/draft_impl.h"
#include "engine/pace_impl.h"
#include "engine/text_stream.h"
#include "firn/engine.h"
#include "layout/family_impl.h"

/* ---- keeper.c: what has to do with the disk and need not be waited for ---- */

typedef struct firni_keeper firni_keeper;

/* Something to do on the keeper's thread. Made by whoever posts it; freed by run, or by drop when it found no place. */
typedef struct firni_task {
    struct firni_task *next;
    void (*run)(struct firni_task *task);
    void (*drop)(struct firni_task *task);
} firni_task;

firn_status firni_keeper_create(const firn_env *env, firni_keeper **out, firn_error *err);
/* Runs what is queued until bound_ns are over, drops the rest, waits for the task in hand. Accepts NULL. */
void firni_keeper_destroy(firni_keeper *keeper, uint64_t bound_ns);
/* Takes the task. False: the queue was full, and it has been dropped. In order; never blocks. */
bool firni_keeper_post(firni_keeper *keeper, firni_task *task);

/* ---- session.c ---- */

typedef struct firni_sessions firni_sessions;

firn_status firni_sessions_create(firn_engine *engine, firni_sessions **out, firn_error *err);
void firni_sessions_destroy(firni_sessions *sessions); /* accepts NULL; the keeper is gone */

/* ---- save.c ---- */

typedef struct firni_save firni_save;
typedef struct firni_unpin firni_unpin;

typedef enum firni_sequence_state {
    FIRNI_SEQUENCE_WAITING = 0, /* not in the batch */
    FIRNI_SEQUENCE_RUNNING = 1, /* has a row */
    FIRNI_SEQUENCE_ENDED = 2    /* END was sent; the row, if any, leaves at the end of this step */
} firni_sequence_state;

/* One request. Created by submit on the caller's thread; then belongs to the engine thread, except `cancelled`. */
typedef struct firni_sequence {
    struct firni_sequence *next;       /* in inbox or waiting list */
    struct firni_sequence *live_next;  /* in engine.live; guarded by engine.mutex */
    uint64_t id;
    const firn_env *env;
    atomic_bool cancelled;

    firn_token *tokens;       /* prompt, then answer; room for n_prompt + max_tokens */
    uint32_t n_prompt;
    uint32_t n_tokens;        /* prompt and answer so far */
    uint32_t n_cached;        /* tokens the row holds; n_tokens - n_cached are to be forwarded */
    uint32_t max_tokens;
    uint32_t branch_at;       /* block boundary before the place where the prompt left what was stored; 0: nowhere */
    char *ns;
    bool ignore_end;
    firn_cache_policy cache;
    bool only_prefill;
    char *pin;
    uint64_t pin_until_wall_ns;
    char *session;
    struct firni_generation_keep *keep; /* its checkpoints; NULL: none */
    firn_finish finish;       /* of one that has ended */
    uint32_t n_logprobs;
    firn_sampler *sampler;
    firni_text_stream *stream;
    char **stops;
    uint32_t n_stops;
    void (*on_event)(void *ctx, const firn_event *event);
    void *ctx;

    firni_sequence_state state;
    firn_lease *lease;        /* while waiting, once acquired */
    firn_cache **started;     /* while waiting: a row that went on before its restore had ended, one per layer; or
                               * NULL */
    uint32_t n_start;         /* tokens of it that are being restored; n_cached has those forwarded since too */
    bool may_not_start;       /* it was tried */
    float *first_logits;      /* behind the prompt, when they are there before the row's first step; or NULL */
    const float *prompt_logits; /* during a step that read the prompt's last token: behind it */
    uint64_t reserved_bytes;  /* counted in engine.reserved_bytes from its lookup on */
    firni_draft draft;
    firn_usage usage;
    uint64_t submitted_ns;
} firni_sequence;

/* A row's next token. */
typedef struct firni_choice {
    firni_sequence *sequence;
    const float *logits;
    firn_token token;
    firn_logprobs logprobs;      /* when the sequence wants them */
} firni_choice;

struct firn_engine {
    const firn_env *env;
    firn_engine_options options; /* defaults filled in */
    const firn_schema *schema;
    uint32_t n_vocab;
    firn_prefix *prefix;         /* NULL with no_prefix_cache */
    pthread_t thread;

    /* ---- guarded by mutex ---- */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool woken;                  /* something happened since the engine thread last looked */
    bool stopping;
    uint64_t stop_deadline_ns;   /* running requests are cancelled at this time */
    uint64_t flush_bound_ns;
    firni_sequence *inbox_head, *inbox_tail;
    firni_sequence *live;        /* every sequence that has not been freed */
    uint32_t n_pending;          /* submitted and not yet running: bounded by queue_max */
    uint64_t next_id;
    firn_engine_stats published; /* snapshot for get_stats */
    firn_flush_report flush_report;

    /* ---- engine thread only ---- */
    firni_sequence *waiting_head, *waiting_tail;
    firni_sequence **rows;       /* [batch_rows_max]; row r of every cache belongs to rows[r] */
    uint32_t n_rows;
    firn_cache **caches;         /* [n_layers], n_rows rows each */
    firn_cache **shapes;         /* [n_layers], always empty: what submitting threads may ask about sizes */
    uint32_t families;           /* FIRNI_FAMILY_* that some layer belongs to */
    uint64_t reserved_bytes;
    firn_engine_stats stats;     /* counters; copied to `published` after each step */

    firni_keeper *keeper;        /* NULL without a tier */
    firni_sessions *sessions;
    firni_save *saves;           /* flushes that were asked for; guarded by mutex, but for the first once it has
                                  * begun */
    bool is_saving;
    firni_unpin *unpins;         /* guarded by mutex */
    uint64_t n_generation_checkpoints; /* guarded by mutex: counted by the keeper's thread */

    const firni_draft_ops *draft_ops; /* NULL: no speculation */
    struct firni_draft_model *draft_model; /* state of that source, or NULL */
    firni_draft_gate draft_gate;

    firni_pace pace;
    uint64_t heard_ns;           /* when rows last chose tokens */
    uint32_t n_chunk;            /* prompt tokens that the last step with any could bring */

    /* Buffers of one step, sized at creation so that the token loop allocates nothing. */
    firn_token *step_tokens;     /* [batch_rows_max + chunk_tokens_max + firni_draft_step_max()] */
    uint8_t *step_wanted;        /* the same */
    uint32_t *step_counts;       /* [batch_rows_max] */
    uint32_t *step_kept;         /* [batch_rows_max] of step_counts: what is left when guesses have been given up */
    uint32_t *step_keep;         /* [batch_rows_max] row numbers for filter and commit */
    firni_choice *step_choices;  /* [batch_rows_max] of the rows that have no guesses, in their order */
    float *step_logits;          /* [batch_rows_max + firni_draft_step_max(), n_vocab] */
};

/* ---- sequence.c ---- */

/* Copies the request; *out is freed with firni_sequence_destroy. */
firn_status firni_sequence_create(firn_engine *engine, const firn_request *request, uint32_t max_tokens, uint64_t id,
                                  firni_sequence **out, firn_error *err);
void firni_sequence_destroy(firni_sequence *sequence); /* accepts NULL */
/* Sends END once; later calls do nothing. `text` is what the stop or the end released. */
void firni_sequence_end(firni_sequence *sequence, firn_finish finish, const char *stop_string, const char *text,
                        size_t len_text, const firn_error *error);
/* Takes a chosen token: appends, sends TOKEN, ends the sequence when it is finished. logprobs: when it wants them. */
void firni_sequence_take_token(firni_sequence *sequence, firn_token token, const firn_logprobs *logprobs,
                               const firn_tokenizer *tokenizer);

/* Takes a token that was generated before: as above, without log-probabilities and without a row. */
void firni_sequence_replay_token(firni_sequence *sequence, firn_token token, const firn_tokenizer *tokenizer);

/* ---- session.c ---- */

/* How the request stands to its session; on the submitting thread, before it is queued. */
void firni_session_begin(firn_engine *engine, firni_sequence *sequence);
/* Where the row ended. On the engine thread. */
void firni_session_note(firn_engine *engine, const firni_sequence *sequence);
uint64_t firni_sessions_count(firni_sessions *sessions);

/* ---- generation.c ---- */

/* Gives the sequence checkpoints, and what an earlier one of the same id left; on the submitting thread. *seed: the
 * random numbers' of the request, replaced by those of the earlier one. */
void firni_generation_begin(firn_engine *engine, const firn_request *request, firni_sequence *sequence, uint64_t *seed);
/* Sends what was generated before. Call once, before the lookup. */
void firni_generation_replay(firn_engine *engine, firni_sequence *sequence);
/* After a step: stores a checkpoint of the row when one is due. */
void firni_generation_progress(firn_engine *engine, uint32_t row);
/* The request has ended: nothing of it is needed any more, unless the engine stops and it may come back. */
void firni_generation_end(firn_engine *engine, firni_sequence *sequence);
void firni_generation_destroy_keep(firni_sequence *sequence);
/* The namespace that the sequence is looked up in. */
const char *firni_generation_namespace(const firni_sequence *sequence);

/* ---- save.c ---- */

/* Goes on with flushes and ends pins; returns whether it waits for something. */
bool firni_save_advance(firn_engine *engine);
void firni_saves_abandon(firn_engine *engine, const firn_flush_report *report); /* all that are left get this answer */

/* ---- intake.c ---- */

void firni_engine_wake(void *engine); /* any thread */
/* Moves the inbox to the waiting list. */
void firni_intake_drain(firn_engine *engine);
/* Removes from `live` and frees. */
void firni_intake_forget(firn_engine *engine, firni_sequence *sequence);

/* ---- admission.c ---- */

/* Bytes a row of `tokens` tokens takes over all layers. */
uint64_t firni_projected_bytes(const firn_engine *engine, uint32_t tokens);
/* The same over any caches. */
uint64_t firni_shapes_bytes(firn_cache *const *shapes, uint32_t n_layers, uint32_t tokens);
/* Most bytes that a request of `tokens` tokens takes: its row, at any moment on its way there, what the tree may have
 * to keep of it until it is stored while the row goes on without it, and what the source of guesses needs for it. */
uint64_t firni_request_bytes(const firn_engine *engine, uint32_t tokens);
/* Bytes that a tree with a tier below it cannot let go of now, with nodes of node_bytes; 0 for NULL. */
uint64_t firni_unevictable_bytes(const firn_prefix *prefix, uint64_t node_bytes);
/* Destroys one cache per layer, and the array; accepts NULL and half-filled arrays. */
void firni_destroy_caches(const firn_engine *engine, firn_cache **caches);
void firni_caches_release(const firn_env *env, firn_cache **caches, uint32_t n_layers);
/* Forgets the row that was started early; accepts that there is none. */
void firni_started_drop(const firn_engine *engine, firni_sequence *sequence);
/* Starts lookups for the first waiting requests, ends cancelled ones, lets in those that fit. */
void firni_admit(firn_engine *engine);

/* ---- early_start.c ---- */

/* Forwards the next chunk of a waiting sequence when its restore is arriving layer by layer and soon all there. */
void firni_early_start(firn_engine *engine, firni_sequence *sequence);

/* ---- publish.c ---- */

/* Puts the state that row `row` has computed into the tree. Benign when it fails: the tree counts the reason. */
void firni_publish(firn_engine *engine, uint32_t row);
/* How many of the next `count` (> 0) tokens the row should read in one step, so that it stops where it is published. */
uint32_t firni_publish_chunk(const firn_engine *engine, const firni_sequence *sequence, uint32_t count);
/* After a step that advanced the row by n_kept tokens. */
void firni_publish_progress(firn_engine *engine, uint32_t row, uint32_t n_kept);
/* Bytes of one layer that a running row of `tokens` tokens may leave behind in the tree, unsaved. */
uint64_t firni_published_bytes(const firn_engine *engine, const firn_cache *shape, uint32_t tokens);

/* ---- step_plan.c ---- */

/* Fills step_counts, step_tokens and step_wanted, and n_chunk. */
void firni_step_plan(firn_engine *engine);
/* Rows that have heard at least one token, and wait for the next. */
uint32_t firni_step_decoding_rows(const firn_engine *engine);
/* How many tokens of prompts, at such a depth, these rows can wait for now; 0: none yet. */
uint32_t firni_step_chunk_tokens(const firn_engine *engine, uint32_t depth_tokens);
/* After a step that took step_ns, and began with n_decoding of these rows. */
void firni_step_learn(firn_engine *engine, uint32_t n_decoding, uint64_t step_ns);

/* ---- choose.c ---- */

/* Fills token and logprobs. */
void firni_choose_one(const firn_engine *engine, firni_choice *choice);
/* The same for step_choices[0..n_choices), on several threads at once where that is faster. */
void firni_choose(firn_engine *engine, uint32_t n_choices);

/* ---- step.c ---- */

/* One forward over all rows, or nothing when there is none. Returns whether there was one. */
bool firni_step(firn_engine *engine);
/* Ends and removes rows whose sequence was cancelled, publishing what they computed. */
void firni_drop_cancelled(firn_engine *engine);
/* Evicts clean nodes until the pool has this much room, if that is possible. */
void firni_make_room(firn_engine *engine, uint64_t need_bytes);
/* Bytes that a step of `count` tokens may allocate in one layer for a row of `before`. */
uint64_t firni_row_need_bytes(const firn_cache *cache, uint32_t before, uint32_t count);
/* Puts the first n_tokens of a row's state into a tree. Benign when it fails: the tree counts the reason. */
void firni_publish_row(const firn_env *env, firn_prefix *prefix, firn_cache *const *caches, uint32_t n_layers,
                       uint32_t row, const firni_sequence *sequence, uint32_t n_tokens);

#endif
