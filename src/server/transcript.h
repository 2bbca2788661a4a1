/*
 * transcript: what a client asks for and what it gets, whatever the wire format.
 *
 *      body --parse--> firni_ask --generate.c--> firni_answer --render--> JSON, or server-sent events
 *           \______ firni_wire ______/                      \___ firni_wire ___/
 *
 * A wire format (OpenAI completions, OpenAI chat) is one file that defines one firni_wire; everything between its parse
 * and its render is shared. Parsing and rendering are pure: no engine, no socket.
 */
#ifndef FIRNI_TRANSCRIPT_H
#define FIRNI_TRANSCRIPT_H

#include <jansson.h>

#include "firn/engine.h"
#include "server/json_text.h"
#include "server/problem.h"

#define FIRNI_STOPS_MAX 16u
#define FIRNI_STOP_BYTES_MAX 1024u
#define FIRNI_BIASES_MAX 1024u

typedef enum firni_prompt_kind { FIRNI_PROMPT_TEXT, FIRNI_PROMPT_TOKENS, FIRNI_PROMPT_MESSAGES } firni_prompt_kind;

/* One checked request. Strings point into `body` or `joined`; all is owned and released by firni_ask_deinit(). */
typedef struct firni_ask {
    const firn_env *env;
    json_t *body;
    char *joined;                  /* message contents that came in parts, one after the other */
    firni_prompt_kind kind;
    const char *text;              /* TEXT */
    size_t len_text;
    firn_token *tokens;            /* TOKENS */
    uint32_t n_tokens;
    firn_chat_message *messages;   /* MESSAGES */
    uint32_t n_messages;
    firn_sampling sampling;        /* biases points to `biases` */
    firn_logit_bias *biases;
    const char *stops[FIRNI_STOPS_MAX];
    uint32_t n_stops;
    uint32_t max_tokens;           /* 0: up to the context bound */
    uint32_t n_logprobs;           /* as in firn_request: 0 none, else 1 + alternatives */
    bool stream, include_usage;
    bool ignore_end, no_cache, parse_special;
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    firn_cache_policy cache;
    char session[129], request_id[65]; /* "": none */
} firni_ask;

void firni_ask_init(firni_ask *ask, const firn_env *env);
void firni_ask_deinit(firni_ask *ask); /* accepts a zeroed ask */

/* Generated tokens in order. text holds the released bytes of all of them; token i's end at text_ends[i]; bytes behind
 * the last token's were held back and released at the end. logprobs is NULL unless they were asked for. */
typedef struct firni_pieces {
    const firn_env *env;
    uint32_t n_tokens, cap;
    firn_token *tokens;
    size_t *text_ends;
    firn_logprobs *logprobs;
    firni_buffer text;
} firni_pieces;

void firni_pieces_init(firni_pieces *pieces, const firn_env *env);
void firni_pieces_deinit(firni_pieces *pieces); /* accepts a zeroed object */
void firni_pieces_clear(firni_pieces *pieces);  /* keeps the memory */
/* Appends one token. Returns false, nothing changed, without memory. */
bool firni_pieces_add(firni_pieces *pieces, firn_token token, const char *text, size_t len_text,
                      const firn_logprobs *logprobs);
/* Appends everything of `from`. */
bool firni_pieces_append(firni_pieces *pieces, const firni_pieces *from);

/* One token of an answer, borrowed from its pieces. */
typedef struct firni_piece {
    firn_token token;
    const char *text;
    size_t len_text;
    const firn_logprobs *logprobs;
} firni_piece;

firni_piece firni_pieces_at(const firni_pieces *pieces, uint32_t index);
/* The bytes behind the last token's. */
firni_piece firni_pieces_tail(const firni_pieces *pieces);

/* What a request has produced so far. While streaming, `pieces` holds what has not been sent yet. */
typedef struct firni_answer {
    char id[40];                   /* with the wire format's prefix */
    uint64_t created_s;            /* seconds since 1970 */
    const char *model;             /* borrowed */
    const char *fingerprint;       /* borrowed */
    const firn_tokenizer *tokenizer;
    const firn_token *prompt;      /* borrowed; explains a divergence */
    uint32_t n_prompt;
    bool wants_usage;              /* the stream ends with a usage chunk */
    bool wants_logprobs;
    firni_pieces pieces;
    size_t n_text_points;          /* code points of text sent in earlier chunks */
    bool ended;
    firn_finish finish;            /* the rest is set once ended */
    firn_usage usage;
} firni_answer;

/* One wire format. */
typedef struct firni_wire {
    const char *name;              /* "completions": label in metrics and log */
    const char *id_prefix;         /* "cmpl-" */
    const char *prompt_param;      /* the field that holds the prompt, named in errors */
    /* Checks a parsed body; fills *ask but for what is common to all formats. */
    bool (*parse)(const json_t *body, firni_ask *ask, firni_problem *problem);
    /* The whole answer; NULL without memory. */
    json_t *(*render)(const firni_answer *answer);
    /* Server-sent events: once before the first token, once for each token, once after the last (answer->ended). */
    void (*stream_begin)(const firni_answer *answer, firni_buffer *out);
    void (*stream_piece)(const firni_answer *answer, const firni_piece *piece, firni_buffer *out);
    void (*stream_end)(const firni_answer *answer, firni_buffer *out);
} firni_wire;

extern const firni_wire firni_wire_completions, firni_wire_chat;

/* Parses and checks a request: JSON, the format's own fields, then the common ones. ns_header is the value of the
 * X-Firn-Namespace header or NULL. On failure *ask holds nothing and *problem is filled. */
bool firni_ask_parse(const firni_wire *wire, const char *body, size_t n_bytes, const char *ns_header,
                     const firn_env *env, firni_ask *ask, firni_problem *problem);

/* Takes what may also come as a header, X-Firn-Session and X-Firn-Request-Id (NULL: absent): a header and a field that
 * differ are refused. */
bool firni_ask_take_headers(firni_ask *ask, const char *session, const char *request_id, firni_problem *problem);

/* Appends "data: VALUE\n\n" and drops the reference. */
void firni_sse_data_new(firni_buffer *out, json_t *value);

/* ---- parts that wire formats share ---- */

const char *firni_finish_name(firn_finish finish); /* "stop", "length" */
json_t *firni_usage_json(const firn_usage *usage);
/* The last chunk of a stream: no choices, usage and the "firn" object. */
json_t *firni_usage_chunk_json(const firni_answer *answer, const char *object);
/* Where the prompt's tokens came from and why not more: the "firn" object. */
json_t *firni_cache_json(const firni_answer *answer);
/* A log-probability as JSON can hold it: minus infinity becomes -9999. */
json_t *firni_logprob_json(float logprob);
/* The bytes of a token as text. */
json_t *firni_token_text(const firn_tokenizer *tokenizer, firn_token token);

#endif
