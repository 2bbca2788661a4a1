/*
 * vocab_json: reading a Hugging Face tokenizer.json, in three files.
 *
 *   vocab_json.c          the file, its pieces and added tokens, the well-known ids
 *   vocab_json_kind.c     which kind of vocabulary its pipeline describes, and whether that is one of ours
 *   vocab_json_merges.c   merges: as they are for byte-level BPE, turned into scores for the SentencePiece kind
 *
 * A tokenizer.json describes a pipeline of interchangeable parts. Only pipelines that mean exactly what this project's
 * tokenizer does are accepted; the error names the part that does not. One exception: an NFC normaliser before
 * byte-level BPE is accepted and not applied, as GGUF files of the same models cannot ask for it (texts are then taken
 * as written). Flags of added tokens about neighbouring white space (lstrip, rstrip, single_word) are not read either.
 */
#ifndef FIRNI_VOCAB_JSON_IMPL_H
#define FIRNI_VOCAB_JSON_IMPL_H

#include <jansson.h>

#include "model/tokenizer_impl.h"

typedef struct firni_json_vocab {
    const char *path;
    const firn_env *env;
    firn_error *err;
    firni_vocab_spec *spec;
    json_t *root;
    json_t *model;  /* borrowed: root.model */
    json_t *vocab;  /* borrowed: root.model.vocab */
    json_t *merges; /* borrowed: root.model.merges */
    char *arena;    /* the spec's; strings are appended */
    size_t arena_used, arena_bytes;
} firni_json_vocab;

/* A member that is a string, or NULL. */
const char *firni_json_text(const json_t *object, const char *name);
/* Copies text into the arena. */
firni_gguf_string firni_json_keep(firni_json_vocab *in, const char *text, size_t len_bytes);

/* Sets spec->kind, pre, add_space_prefix. */
firn_status firni_json_read_kind(firni_json_vocab *in);
/* The two halves of merges[index], borrowed from the JSON; FORMAT when it is neither "a b" nor ["a", "b"]. */
firn_status firni_json_merge_halves(firni_json_vocab *in, size_t index, firni_gguf_string *left,
                                    firni_gguf_string *right);
/* Set spec->merges, or spec->scores. Pieces and types are there. */
firn_status firni_json_read_merges(firni_json_vocab *in);
firn_status firni_json_score_merges(firni_json_vocab *in);

#endif
