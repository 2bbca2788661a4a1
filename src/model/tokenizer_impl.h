/*
 * tokenizer: what its files share.
 *
 *   vocab_*.c  ->  firni_vocab_spec  ->  tokenizer.c  ->  firn_tokenizer (immutable)
 *                                                              |
 *   text --> tokenizer_encode.c: cuts out special tokens; one firni_encoder holds a call's memory
 *              |
 *              +-- tokenizer_bpe.c: words by tokenizer_split.c (PCRE2), bytes --+--> tokenizer_merge.c
 *              +-- tokenizer_spm.c: spaces, characters, byte fallback ----------+
 *
 * Every piece is kept as the bytes that it stands for: the byte-level alphabet and U+2581 are undone once, at creation.
 * Encoding then looks up bytes of the text itself, and decoding copies them.
 *
 * Kinds of tokens in a text. CONTROL and UNKNOWN pieces are spelled out by users without meaning them, so they are
 * recognised only with parse_special. USER_DEFINED pieces (Hugging Face: added tokens with special = false, such as
 * <think>) are part of the text language of their model: the original tokenizers always take them whole, and so does
 * this one. They are text for decoding too.
 *
 * Memory of the tokenizer and of a running call comes from the env given at creation.
 */
#ifndef FIRNI_TOKENIZER_IMPL_H
#define FIRNI_TOKENIZER_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/chat_impl.h"
#include "model/vocab_spec.h"

/* Text beyond this is refused: offsets are 32-bit, and merging needs 52 bytes of memory for a byte of text. */
#define FIRNI_TEXT_BYTES_MAX     ((size_t)1 << 30)
#define FIRNI_SPLIT_PATTERNS_MAX 3
#define FIRNI_ENDS_MAX           24

/* A way to cut text into words before byte-level merging; tokenizer_split.c has the table. */
typedef struct firni_split {
    const char *name;
    const char *aliases; /* other values of tokenizer.ggml.pre, "|"-separated */
    /* As a tokenizer.json spells them; each cuts the words that the one before has left. */
    const char *patterns[FIRNI_SPLIT_PATTERNS_MAX];
    bool ignore_merges; /* a word that is a piece is taken whole */
    bool adds_bos;      /* when the file does not say */
} firni_split;

/* A slot of the merge table; empty when merged is FIRN_TOKEN_NONE. */
typedef struct firni_pair_slot {
    firn_token left, right;
    uint32_t rank;
    firn_token merged;
} firni_pair_slot;

struct firn_tokenizer {
    const firn_env *env;
    firni_vocab_kind kind;
    bool add_bos, add_space_prefix;
    firn_token bos, eos, unk;
    uint32_t n_tokens;
    char *bytes;          /* all pieces, one after another, as the bytes that they stand for */
    uint32_t *starts;     /* n_tokens + 1 */
    uint8_t *types;       /* firni_piece_type */
    uint32_t *priorities; /* SPM: from the scores; lower merges first */
    uint8_t
        *neighbours; /* SPM: bit 256 * a + b is set when bytes a, b stand side by side in a piece that text becomes */
    /* Lookups: open addressing, capacities are powers of two, at most 3/4 full. */
    firn_token *piece_slots;
    uint32_t piece_mask;
    firni_pair_slot *pair_slots;
    uint32_t pair_mask;
    firn_token byte_tokens[256]; /* the token of a single byte, or FIRN_TOKEN_NONE */
    /* Special tokens ordered by their bytes, and for each first byte whether any (bit 0: user-defined, bit 1: others)
     * begins with it. */
    firn_token *specials;
    uint32_t n_specials;
    uint8_t special_starts[256];
    firn_token ends[FIRNI_ENDS_MAX];
    uint32_t n_ends;
    /* BPE: the compiled split. */
    const firni_split *split;
    pcre2_general_context *pcre_memory;
    pcre2_match_context *pcre_limits;
    pcre2_code *patterns[FIRNI_SPLIT_PATTERNS_MAX];
    firni_chat_style chat;
    firn_digest digest;
};

/* One stretch of text that is, or was, a unit of merging. A merged-away symbol has no length. */
typedef struct firni_symbol {
    uint32_t start, len_bytes;
    uint32_t prev, next; /* FIRN_TOKEN_NONE at the ends */
    firn_token token;    /* FIRN_TOKEN_NONE: a character that is no piece of its own */
} firni_symbol;

/* A possible merge of symbol `left` with its right neighbour. */
typedef struct firni_merge {
    uint64_t order;     /* priority << 32 | index of the left symbol: the lowest is next */
    uint32_t len_bytes; /* of both; no longer true when either has merged with something else */
    firn_token token;
} firni_merge;

/* The memory of one encode call. */
typedef struct firni_encoder {
    const firn_tokenizer *tokenizer;
    const firn_env *env;
    firn_error *err;
    firn_token *tokens;
    size_t n_tokens, cap_tokens;
    firni_symbol *symbols;
    size_t cap_symbols;
    firni_merge *heap;
    size_t cap_heap;
    char *text; /* SPM: a stretch of the text with its first space in place */
    size_t cap_text;
    char *spaced; /* SPM: the text with U+2581 as spaces, when it has any */
    size_t cap_spaced;
    uint32_t *ends, *next_ends; /* BPE: where words end */
    size_t n_ends, cap_ends, cap_next_ends;
    pcre2_match_data *match;
    bool after_control; /* nothing but control tokens stands directly before */
} firni_encoder;

/* The bytes of a piece, without a range check. */
static inline const char *firni_piece_bytes(const firn_tokenizer *tokenizer, firn_token token, uint32_t *len_bytes)
{
    *len_bytes = tokenizer->starts[token + 1] - tokenizer->starts[token];
    return tokenizer->bytes + tokenizer->starts[token];
}

/* tokenizer.c. A token that frames messages, or ends an answer, is CONTROL even where its file says USER_DEFINED: what
 * a user writes must never become one. */
firni_piece_type firni_piece_type_of(const firni_vocab_spec *spec, firn_token token);

/* tokenizer_pieces.c: fills bytes, starts, types, priorities and, for SPM, byte_tokens. formed: n_tokens flags, set for
 * the pieces that text can become. */
firn_status firni_pieces_create(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, uint8_t *formed,
                                firn_error *err);

static inline bool firni_has_neighbours(const firn_tokenizer *tokenizer, unsigned char a, unsigned char b)
{
    return (tokenizer->neighbours[32u * a + b / 8u] & (1u << (b % 8u))) != 0;
}

/* tokenizer_lookup.c. A lookup that finds nothing gives FIRN_TOKEN_NONE, or NULL. */
firn_status firni_lookup_create(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, const uint8_t *formed,
                                firn_error *err);
firn_token firni_lookup_piece(const firn_tokenizer *tokenizer, const char *bytes, uint32_t len_bytes);
const firni_pair_slot *firni_lookup_pair(const firn_tokenizer *tokenizer, firn_token left, firn_token right);

/* tokenizer_special.c. match: the longest special token that text begins with; exact: the one spelled so. */
firn_status firni_special_create(firn_tokenizer *tokenizer, firn_error *err);
firn_token firni_special_match(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes, bool parse_special);
firn_token firni_special_exact(const firn_tokenizer *tokenizer, const char *text);

/* tokenizer_split.c */
const firni_split *firni_split_find(const char *name);
const firni_split *firni_split_recognise(const char *const *patterns, uint32_t n_patterns, bool ignore_merges);
void firni_split_names(char *out, size_t out_bytes);
firn_status firni_split_compile(firn_tokenizer *tokenizer, const firni_split *split, firn_error *err);
/* Sets encoder->ends for valid UTF-8. */
firn_status firni_split_text(firni_encoder *encoder, const char *text, uint32_t len_bytes);

/* tokenizer_alphabet.c: the byte-level alphabet. decode returns false, with *out_bytes untouched, when the piece is not
 * wholly made of it; out has room for len_bytes. */
bool firni_alphabet_decode(const char *piece, size_t len_bytes, char *out, size_t *out_bytes);

/* tokenizer_merge.c: merges n symbols of the encoder, those of one word or text, until no pair is left to merge. The
 * survivors are linked from symbol 0. */
typedef bool (*firni_join)(const firn_tokenizer *tokenizer, const char *text, const firni_symbol *left,
                           const firni_symbol *right, uint32_t *priority, firn_token *token);
firn_status firni_merge_all(firni_encoder *encoder, const char *text, uint32_t n_symbols, firni_join join);

/* tokenizer_bpe.c, tokenizer_spm.c: encode text that holds no special token. */
firn_status firni_bpe_text(firni_encoder *encoder, const char *text, uint32_t len_bytes);
firn_status firni_spm_text(firni_encoder *encoder, const char *text, uint32_t len_bytes, bool space_prefix);

/* tokenizer_encode.c. take hands the tokens over, malloc'ed; deinit follows in any case. */
void firni_encoder_init(firni_encoder *encoder, const firn_tokenizer *tokenizer, firn_error *err);
void firni_encoder_deinit(firni_encoder *encoder);
firn_status firni_encoder_push(firni_encoder *encoder, firn_token token);
firn_status firni_encoder_text(firni_encoder *encoder, const char *text, size_t len_bytes, bool parse_special);
firn_status firni_encoder_take(firni_encoder *encoder, firn_token **out, uint32_t *n_tokens);
/* Makes *array hold n elements; contents are kept up to n_used. */
firn_status firni_encoder_reserve(firni_encoder *encoder, void **array, size_t *cap, size_t n_used, size_t n,
                                  size_t element_bytes);

/* tokenizer_digest.c */
firn_status firni_vocab_digest(const firni_vocab_spec *spec, const firni_split *split, firn_digest *out,
                               firn_error *err);

#endif
