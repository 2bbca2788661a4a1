/*
 * Hyperparameters: the keys of a GGUF file that give a transformer its shape, read once and checked against limits, so
 * that later products of them cannot overflow and loops over them end.
 */
#ifndef FIRNI_HPARAMS_H
#define FIRNI_HPARAMS_H

#include "model/gguf.h"
#include "model/rope.h"

#define FIRNI_LAYERS_MAX 1024u
#define FIRNI_WIDTH_MAX (1u << 17)   /* n_embd */
#define FIRNI_FF_MAX (1u << 20)      /* n_ff */
#define FIRNI_HEADS_MAX 1024u
#define FIRNI_VOCAB_MAX (1u << 24)

typedef struct firni_hparams {
    char architecture[32];
    uint32_t n_vocab;
    uint32_t n_layers;
    uint32_t n_embd;
    uint32_t n_ff;
    uint32_t n_heads;
    uint32_t n_kv_heads;    /* divides n_heads */
    uint32_t head_dim;      /* of queries and keys; may differ from n_embd / n_heads */
    uint32_t value_dim;
    uint32_t n_ctx_train;
    float rms_eps;
    firni_rope_params rope;
} firni_hparams;

/* general.architecture as a C string. Errors: FORMAT (missing, not a string, longer than fits). */
firn_status firni_hparams_architecture(const firni_gguf *gguf, char out[32], firn_error *err);
/* Reads the keys "<architecture>.*". n_vocab is the number of rows of token_embd.weight. rope.interleaved is left to
 * the architecture. Errors: FORMAT (a key is missing, of another type or contradictory: named), UNSUPPORTED (a kind of
 * rope scaling or layer that this build does not know). */
firn_status firni_hparams_read(const firni_gguf *gguf, const char *architecture, firni_hparams *out, firn_error *err);

#endif
