/*
 * Text to token ids and back, as the model's GGUF file defines it.
 *
 * Two families: byte-level BPE (GPT-2, Llama 3, Qwen2 splits) and SentencePiece-style BPE with byte fallback. Text from
 * a user never becomes a special token unless parse_special is asked for. User-defined tokens (added tokens that are
 * not special to the original tokenizer, such as <think>) are the exception: they belong to the model's text, so they
 * are always recognised and always decoded. Tokens that frame messages or end an answer never count as user-defined.
 *
 * A tokenizer is immutable after creation; all functions are thread-safe.
 */
#ifndef FIRN_TOKENIZER_H
#define FIRN_TOKENIZER_H

#include "firn/identity.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_tokenizer firn_tokenizer;

#define FIRN_TOKEN_NONE UINT32_MAX

typedef struct firn_encode_options {
    bool add_bos;        /* put BOS in front when the model wants one (tokenizer.ggml.add_bos_token) */
    bool parse_special;  /* spelled-out special tokens in the text become their ids */
} firn_encode_options;

/* Encodes len_bytes of text. Invalid UTF-8 is encoded byte by byte where the vocabulary can, and is never an error.
 * *out is allocated with malloc and released with free(). Errors: NO_MEMORY, UNSUPPORTED (the text holds something that
 * the vocabulary cannot express at all). */
firn_status firn_tokenizer_encode(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes,
                                  const firn_encode_options *options, firn_token **out, uint32_t *n_tokens,
                                  firn_error *err);
/* The bytes of one token, not NUL-terminated, which may be part of a UTF-8 sequence; *len_bytes is set. Special tokens
 * give their spelling. NULL for an id outside the vocabulary. Lives as long as the tokenizer. SentencePiece's leading
 * space is included: see firn_tokenizer_strips_leading_space(). */
const char *firn_tokenizer_piece(const firn_tokenizer *tokenizer, firn_token token, uint32_t *len_bytes);
/* Decodes a sequence; special tokens are left out unless keep_special. *out is malloc'ed and NUL-terminated beyond
 * *len_bytes. */
firn_status firn_tokenizer_decode(const firn_tokenizer *tokenizer, const firn_token *tokens, uint32_t n_tokens,
                                  bool keep_special, char **out, size_t *len_bytes, firn_error *err);
bool firn_tokenizer_strips_leading_space(const firn_tokenizer *tokenizer);

uint32_t firn_tokenizer_n_tokens(const firn_tokenizer *tokenizer);
firn_token firn_tokenizer_bos(const firn_tokenizer *tokenizer);  /* FIRN_TOKEN_NONE when there is none */
firn_token firn_tokenizer_eos(const firn_tokenizer *tokenizer);
bool firn_tokenizer_is_end(const firn_tokenizer *tokenizer, firn_token token);     /* EOS, EOT, <|im_end|>, ... */
bool firn_tokenizer_is_special(const firn_tokenizer *tokenizer, firn_token token); /* control or user-defined */
/* Control tokens are part of an answer's ids, not of its text; user-defined ones, such as <think>, are both. */
bool firn_tokenizer_is_control(const firn_tokenizer *tokenizer, firn_token token);
/* Digest of everything that shapes ids: pieces, scores, types, merges, split, special ids. Part of state identity. */
firn_digest firn_tokenizer_digest(const firn_tokenizer *tokenizer);

/* ---- chat ---------------------------------------------------------------------------------------------------- */

typedef struct firn_chat_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8 */
} firn_chat_message;

/* The recognised family of the model's chat template: "chatml", "llama3", "mistral", "gemma", "gemma4", "harmony",
 * "plain", or NULL when there is a template that is not recognised (chat is then refused; completions still work). */
const char *firn_tokenizer_chat_family(const firn_tokenizer *tokenizer);
/* Renders messages into token ids, ready for the assistant's answer. Contents are encoded without parsing special
 * tokens. Errors: UNSUPPORTED (unrecognised template; the message says so), INVALID (an unknown role or an order that
 * the family forbids), NO_MEMORY. *out is released with free(). */
firn_status firn_tokenizer_chat(const firn_tokenizer *tokenizer, const firn_chat_message *messages, uint32_t n_messages,
                                firn_token **out, uint32_t *n_tokens, firn_error *err);

#ifdef __cplusplus
}
#endif
#endif
