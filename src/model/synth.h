/*
 * Synthetic models: GGUF files of any supported shape with random weights, for benchmarks and tests.
 *
 * The same options give the same bytes, on every machine. Weights are scaled so that the residual stream and the logits
 * keep a sensible size at any depth; the text such a model writes is noise.
 */
#ifndef FIRNI_SYNTH_H
#define FIRNI_SYNTH_H

#include "kernel/kernel_impl.h"
#include "model/rope.h"
#include "model/vocab_spec.h"

typedef struct firni_synth_options {
    const char *architecture;       /* "llama", "qwen2", ...; required */
    firni_weight_type type;         /* of the matrices; norms and biases are f32 */
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx; /* all required */
    bool is_tied;                   /* the embedding serves as output matrix */
    uint64_t seed;
    float rope_base;                /* 0: 10000 */
    firni_rope_scaling rope_scaling;
    float rope_factor;              /* with a scaling; required then */
    uint32_t rope_original_context; /* 0: n_ctx */
    bool rope_factors_as_tensor;    /* LLAMA3: as rope_freqs.weight, the way published files carry it, not as keys */
    const char *tokenizer_json;     /* NULL: a byte-level vocabulary of its own */
    void (*progress)(void *ctx, float fraction);
    void *progress_ctx;
} firni_synth_options;

/* Whether a synthetic model of this architecture can be made, and the names of those that can ("llama, qwen2, ..."),
 * for messages; cut to out_bytes. */
bool firni_synth_knows(const char *architecture);
void firni_synth_arch_list(char *out, size_t out_bytes);
/* Fills the shape (layers to vocabulary) with one of options->architecture that has about n_params parameters. 450M of
 * llama gives the shape that the
 * benchmarks compare with: 16 layers, width 1024, 16 heads, 8 KV heads of 64, feed-forward 6912, vocabulary 32,000. */
void firni_synth_shape(uint64_t n_params, firni_synth_options *out);
/* Sets a vocabulary of 0 to the size of the tokenizer that the options name. Errors: those of firni_vocab_from_json. */
firn_status firni_synth_resolve(firni_synth_options *options, const firn_env *env, firn_error *err);
/* Parameters of a model of this shape; the architecture must be one that can be written. */
uint64_t firni_synth_n_params(const firni_synth_options *options);

/* Writes the file tensor by tensor; memory stays at a few rows. Errors: INVALID (a shape that no model can have:
 * named), UNSUPPORTED (architecture), IO, NO_MEMORY, and those of firni_vocab_from_json. */
firn_status firni_synth_write(const firni_synth_options *options, const char *path, const firn_env *env,
                              firn_error *err);

/* A byte-level BPE vocabulary of n_tokens: 256 bytes, a few special tokens, unused entries. When `base` is not NULL:
 * its entries first, then unused ones. Errors: INVALID (n_tokens below what is needed: named), NO_MEMORY. */
firn_status firni_synth_vocab(const firni_vocab_spec *base, uint32_t n_tokens, const firn_env *env,
                              firni_vocab_spec *out, firn_error *err);

#endif
