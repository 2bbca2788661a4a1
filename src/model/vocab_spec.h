/*
 * A vocabulary as plain data: what a GGUF file or a tokenizer.json says, before it becomes a tokenizer. This is the
 * neutral ground between the readers (vocab_gguf.c, vocab_json.c), the writer of synthetic models and the tokenizer.
 */
#ifndef FIRNI_VOCAB_SPEC_H
#define FIRNI_VOCAB_SPEC_H

#include "firn/tokenizer.h"
#include "model/gguf.h"

typedef enum firni_vocab_kind {
    FIRNI_VOCAB_BPE = 0, /* byte-level BPE; tokenizer.ggml.model "gpt2" */
    FIRNI_VOCAB_SPM = 1  /* SentencePiece-style BPE with scores and byte fallback; "llama" */
} firni_vocab_kind;

/* Values of tokenizer.ggml.token_type. */
typedef enum firni_piece_type {
    FIRNI_PIECE_NORMAL = 1,
    FIRNI_PIECE_UNKNOWN = 2,
    FIRNI_PIECE_CONTROL = 3,
    FIRNI_PIECE_USER_DEFINED = 4,
    FIRNI_PIECE_UNUSED = 5,
    FIRNI_PIECE_BYTE = 6
} firni_piece_type;

/* All strings point into `arena`, or into whatever the filler states; one firni_vocab_spec_deinit releases all. */
typedef struct firni_vocab_spec {
    firni_vocab_kind kind;
    char pre[64];                   /* split: "gpt-2", "llama-bpe", "qwen2", ...; "" for SPM */
    uint32_t n_tokens;
    firni_gguf_string *pieces;      /* as stored: byte-level alphabet (BPE) or U+2581 for space (SPM) */
    float *scores;                  /* SPM only, else NULL */
    uint8_t *types;                 /* firni_piece_type */
    uint32_t n_merges;
    firni_gguf_string *merges;      /* BPE: "left right" */
    firn_token bos, eos, unk;       /* FIRN_TOKEN_NONE when absent */
    firn_token eot;
    bool add_bos, add_eos, add_space_prefix;
    char *chat_template;            /* NUL-terminated, or NULL */
    void *arena;
    const firn_env *env;
} firni_vocab_spec;

void firni_vocab_spec_deinit(firni_vocab_spec *spec); /* accepts a zeroed struct */
/* The strings stay borrowed from the mapping: close the file after the tokenizer has been created. */
firn_status firni_vocab_from_gguf(const firni_gguf *gguf, const firn_env *env, firni_vocab_spec *out, firn_error *err);
/* A Hugging Face tokenizer.json of a BPE kind. */
firn_status firni_vocab_from_json(const char *path, const firn_env *env, firni_vocab_spec *out, firn_error *err);
/* The two halves of merge `index`, or why it has none. */
typedef firn_status (*firni_merge_halves)(void *ctx, size_t index, firni_gguf_string *left, firni_gguf_string *right);
/* For the SentencePiece kind: makes spec->scores of ranked merges; pieces and types are there. `where` begins messages.
 * Errors: FORMAT (a merge makes no piece), UNSUPPORTED (merges that no scores can express), NO_MEMORY, those
 * of halves. */
firn_status firni_vocab_score_merges(firni_vocab_spec *spec, const char *where, size_t n_merges,
                                     firni_merge_halves halves, void *ctx, firn_error *err);
/* Whether the piece names a byte, "<0xNN>", as vocabularies with byte fallback spell it. */
bool firni_vocab_is_byte_name(const char *piece, size_t len_bytes);
/* Writes the tokenizer.ggml.* keys. Errors: NO_MEMORY, with nothing written; others are kept by the writer. */
firn_status firni_vocab_to_gguf(const firni_vocab_spec *spec, firni_gguf_writer *writer);

/* Compiles a specification into a tokenizer; copies everything it keeps. Errors: UNSUPPORTED (unknown split, listed),
 * FORMAT (contradictory vocabulary), NO_MEMORY. */
firn_status firni_tokenizer_create(const firni_vocab_spec *spec, const firn_env *env, firn_tokenizer **out,
                                   firn_error *err);
void firni_tokenizer_destroy(firn_tokenizer *tokenizer); /* accepts NULL */

#endif
