/*
 * The engine: requests in, tokens out, one model, many rows.
 *
 * One engine thread owns the model, all caches and the token tree. Requests join and leave at any step; prompts are
 * prefilled in chunks packed together with the decode steps of running rows. Other threads talk to it through a bounded
 * queue (submit, cancel) and hear back through the request's callback.
 */
#ifndef FIRN_ENGINE_H
#define FIRN_ENGINE_H

#include "firn/keep.h"
#include "firn/model.h"
#include "firn/prefix.h"
#include "firn/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_engine firn_engine;

typedef struct firn_engine_options {
    firn_model *model;          /* required; owned by the engine thread until destroy */
    firn_pool *pool;            /* required: running rows and cached prefixes */
    firn_tier *tier;            /* tier below the RAM tree, or NULL */
    uint32_t ctx_tokens_max;    /* most tokens of one request, prompt and answer; 0: the model's training context */
    uint32_t batch_rows_max;    /* rows decoding at once; 0: 16 */
    uint32_t chunk_tokens_max;  /* prompt tokens per step; 0: 256 */
    uint64_t max_itl_ns;        /* most time between two tokens of a row while prompts are read beside it: their chunks
                                 * are made as small as that takes, but a step reads some of each. Answers do not
                                 * change. 0: four times what the rows' own step takes, at least 50 ms; an hour: whole
                                 * chunks always */
    uint32_t queue_max;         /* requests waiting; beyond it submit answers BUSY; 0: 128 */
    bool no_prefix_cache;       /* compute every prompt in full */
    bool restore_always;        /* read from the tier also where computing is expected to be faster */
    uint64_t layered_bytes_min; /* restores of so much or more arrive layer by layer, and the prompt goes on before
                                 * their end; 0: 16 MiB */
    const char *policy;         /* which state leaves RAM first, and what may come in: firn_prefix_options; NULL: its */
    const char *admission;      /* defaults */
    /* Speculation: guessed tokens are forwarded together with a row's last one, and kept as far as they are what the
     * model chooses. Answers do not change. The model must be opened for this many more tokens of one forward:
     * batch_rows_max * draft_tokens_max, at most 128. */
    bool draft_ngram;           /* guess what followed the same words earlier in the row */
    firn_model *draft_model;    /* guess with this model, which has the same tokenizer and was opened for chunk and rows
                                 * as the model; owned by the engine thread until destroy. Not with draft_ngram */
    firn_tier *draft_tier;      /* tier below the drafter's own RAM tree, of its own schema, or NULL */
    bool draft_always;          /* guess also where it has turned out slower than plain decoding: for measurements */
    uint32_t draft_tokens_max;  /* most guesses of a row and step, at most 64; 0: 8 */
    /* Requests with an id leave a checkpoint in the tier each time they have generated so many tokens, so that the same
     * request can go on after the process was killed. 0: they do not. */
    uint32_t checkpoint_tokens;
    uint64_t checkpoint_ttl_ns; /* how long one is kept that nobody comes back for; 0: 1 h */
} firn_engine_options;

typedef enum firn_finish {
    FIRN_FINISH_STOP = 0,      /* end token or stop string */
    FIRN_FINISH_LENGTH = 1,    /* max_tokens or the context bound */
    FIRN_FINISH_CANCELLED = 2, /* cancelled by its owner or by shutdown */
    FIRN_FINISH_ERROR = 3      /* see firn_event.error */
} firn_finish;

/* What speculation did. A round is one forward of one row with guesses. */
typedef struct firn_draft_usage {
    uint64_t n_rounds;
    uint64_t drafted_tokens;
    uint64_t accepted_tokens;   /* of the drafted ones: what the model chose too */
    uint64_t round_tokens;      /* generated in these rounds: the accepted ones, and what the model chose next */
} firn_draft_usage;

/* How a request stands to the conversation that it named. */
typedef enum firn_session_state {
    FIRN_SESSION_NONE = 0,      /* it named none */
    FIRN_SESSION_NEW = 1,       /* the first that is known of it */
    FIRN_SESSION_CONTINUED = 2, /* the prompt goes on where the last request ended */
    FIRN_SESSION_BRANCHED = 3   /* the history was edited, or an earlier turn was taken up again */
} firn_session_state;

typedef struct firn_usage {
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t resumed_tokens;    /* of these, from a generation checkpoint: not computed again */
    firn_session_state session;
    uint32_t session_tokens;    /* where the session's last request ended; 0: it is new */
    firn_lease_info cache;      /* what was not computed, and why not more */
    uint64_t first_token_ns;    /* submit to first token */
    uint64_t total_ns;          /* submit to end */
    uint64_t prefill_ns;        /* forward time of the prompt's chunks, shared steps counted whole */
    firn_draft_usage draft;
} firn_usage;

typedef enum firn_event_kind { FIRN_EVENT_TOKEN = 0, FIRN_EVENT_END = 1 } firn_event_kind;

/* One event of a request. Pointers are valid during the callback. */
typedef struct firn_event {
    firn_event_kind kind;
    /* TOKEN */
    firn_token token;
    const char *text;           /* bytes released by this token: complete UTF-8, stop strings held back; may be empty */
    size_t len_text;
    const firn_logprobs *logprobs; /* NULL unless asked for */
    /* END (text may carry held-back bytes) */
    firn_finish finish;
    const char *stop_string;    /* the stop string that ended it, or NULL */
    const firn_usage *usage;
    const firn_error *error;    /* with FIRN_FINISH_ERROR */
} firn_event;

typedef struct firn_request {
    const firn_token *prompt;   /* copied */
    uint32_t n_prompt;
    uint32_t max_tokens;        /* 0: up to the context bound */
    const char *ns;             /* cache namespace, copied; NULL: "" */
    firn_sampling sampling;     /* arrays copied */
    const char *const *stops;   /* stop strings, copied */
    uint32_t n_stops;           /* at most 16 */
    uint32_t n_logprobs;        /* 0: none; else the chosen token and this many - 1 of the best, at most 21 */
    bool ignore_end;            /* do not stop at end tokens */
    bool no_cache;              /* neither read nor fill the prefix cache, whatever `cache` says */
    firn_cache_policy cache;    /* what it may do with the cache */
    bool only_prefill;          /* read the prompt and generate nothing: END comes with LENGTH, and no TOKEN before
                                 * it */
    const char *pin;            /* with only_prefill: pin what was read in RAM, under this name, before END comes; END
                                 * has ERROR when that cannot be. Copied; NULL: do not */
    uint64_t pin_until_wall_ns;
    const char *session;        /* the conversation it belongs to, 1..128 bytes, copied; NULL: none. Where it ended is
                                 * remembered, in the tier as well: usage says how the next request stands to that */
    const char *request_id;     /* 1..64 bytes, copied; NULL: none. With checkpoint_tokens and a tier: a request with
                                 * the same id, namespace, prompt and parameters as one that was cut off goes on from
                                 * the last checkpoint; what it had generated comes as events first. submit() may wait
                                 * for one small read then. Not with n_logprobs */
    bool is_new_text;           /* the answer begins a text of its own (a chat turn): the space that a SentencePiece
                                   vocabulary puts before a first word is not part of it */
    /* Called on the engine thread, in order, END exactly once and last. Must not block or call the engine other than
     * firn_engine_cancel. */
    void (*on_event)(void *ctx, const firn_event *event);
    void *ctx;
} firn_request;

/* Starts the engine thread. Errors: INVALID (numbers out of range, a drafter with another vocabulary), NO_MEMORY, IO
 * (thread). */
firn_status firn_engine_create(const firn_engine_options *options, const firn_env *env, firn_engine **out,
                               firn_error *err);
/* Stops within about bound_ns: cancels what runs after half of it, flushes dirty state in the rest; report may be NULL.
 * Then destroys. Accepts NULL. */
void firn_engine_destroy(firn_engine *engine, uint64_t bound_ns, firn_flush_report *report);

/* Queues a request; thread-safe; *id is unique within the engine. Errors: INVALID (empty prompt, a token outside the
 * vocabulary, numbers out of range), CAPACITY (prompt + 1 beyond the context, or the KV budget could never hold it: the
 * message has the figures), BUSY (queue full), STATE (stopping), NO_MEMORY. No event is sent for a refused request. */
firn_status firn_engine_submit(firn_engine *engine, const firn_request *request, uint64_t *id, firn_error *err);
/* Stores everything that is not stored yet, as far as bound_ns allows, while requests go on; then calls done once, on
 * another thread. What is put meanwhile is not part of the report. Thread-safe. Errors: NO_MEMORY, STATE (stopping):
 * done is not called. */
firn_status firn_engine_flush(firn_engine *engine, uint64_t bound_ns,
                              void (*done)(void *ctx, const firn_flush_report *report), void *ctx, firn_error *err);
/* Ends a pin in RAM, soon; unknown names are ignored. Thread-safe. */
void firn_engine_unpin(firn_engine *engine, const char *name);
/* Forgets where a session ended, in RAM and in the tier. Thread-safe. */
void firn_engine_forget_session(firn_engine *engine, const char *ns, const char *id);
/* Asks a request to end; its END event still comes. Unknown ids are ignored. Thread-safe. */
void firn_engine_cancel(firn_engine *engine, uint64_t id);

typedef struct firn_engine_stats {
    uint64_t n_submitted, n_finished, n_cancelled, n_failed, n_refused;
    uint64_t n_waiting, n_running;
    uint64_t prompt_tokens, computed_prompt_tokens, generated_tokens;
    uint64_t n_steps, step_ns_total;
    uint64_t n_paced_steps;         /* whose prompts' chunk was cut for rows that decode */
    uint64_t n_early_starts;        /* rows that went on before their restore had ended */
    uint64_t n_early_failed;        /* of these, rows whose restore then failed: their prompts were computed */
    uint64_t early_layers;          /* layers that were forwarded while later ones were still being read */
    uint64_t n_sessions;                 /* remembered in RAM */
    uint64_t n_generation_checkpoints;   /* stored */
    uint64_t n_resumed, resumed_tokens;  /* requests that went on from one, and what they did not compute again */
    uint64_t n_kept_dropped;             /* notes of sessions and checkpoints that found no place in the queue */
    firn_draft_usage draft;
    firn_prefix_stats prefix;
    firn_pool_stats pool;
    firn_tier_stats tier;
    firn_prefix_stats draft_prefix; /* of the drafter's own state */
    firn_tier_stats draft_tier;
} firn_engine_stats;

void firn_engine_get_stats(firn_engine *engine, firn_engine_stats *out); /* thread-safe */

#ifdef __cplusplus
}
#endif
#endif
