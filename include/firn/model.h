/*
 * A model: GGUF weights on the CPU, one forward over a ragged batch.
 *
 * The model owns weights and scratch, never state: the state of each layer is a firn_cache that the caller passes in.
 * The bits of a token's logits do not depend on the batch, the chunk or the number of threads.
 *
 * Threads: one forward at a time per model.
 */
#ifndef FIRN_MODEL_H
#define FIRN_MODEL_H

#include "firn/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_model firn_model;

/* How attention layers keep keys and values. Recurrent layers are not asked. */
typedef enum firn_kv_kind {
    FIRN_KV_PLAIN = 0,  /* elements of kv_dtype: kv:plain, kv:window */
    FIRN_KV_AFFINE = 1, /* kv:quant, kv:window-quant */
    FIRN_KV_TURBO = 2   /* kv:turboquant; a model with window layers is refused */
} firn_kv_kind;

/* Zero in a member: the layout's default. Members of other kinds are zero. */
typedef struct firn_kv_scheme {
    firn_kv_kind kind;
    uint32_t key_bits;   /* AFFINE: 8 (default) or 4; TURBO: 8 (default), 5, 4, 2 */
    uint32_t value_bits; /* TURBO: 3 (default), 8, 5, 4, 2 */
    uint32_t group;      /* AFFINE: 64 or 32; default 64 where it divides a layer's heads, else 32 */
    uint32_t delay_tokens; /* AFFINE, TURBO: a row's state is f16 until it has so many tokens, and is then converted;
                            * 0: quantised from the first one on */
} firn_kv_scheme;

typedef struct firn_model_options {
    const char *path;            /* GGUF file; required */
    firn_kv_scheme kv_scheme;    /* state of attention layers; default FIRN_KV_PLAIN */
    firn_dtype kv_dtype;         /* of FIRN_KV_PLAIN; default FIRN_DTYPE_F16 */
    firn_workers *workers;       /* borrowed; NULL: single-threaded */
    const char *kernel;          /* NULL: FIRN_KERNEL or the best of this processor */
    uint32_t max_batch_tokens;   /* most tokens of one forward; sizes the scratch; 0: 512 */
    uint32_t max_rows;           /* most rows of one forward; 0: 64 */
    void (*progress)(void *ctx, float fraction); /* load progress, may be NULL */
    void *progress_ctx;
    /* Weights in the form that kernels read, kept in a file for the next start, which maps it: a directory of its own
     * for such files, made when it is not there; NULL: none is read or written. A file is written after the first
     * forward, on a thread of its own; whatever keeps it from being read or written is logged, and costs time alone. */
    const char *packed_dir;
    uint64_t packed_bytes_max;   /* of all such files; others make room, the oldest first; 0: no limit */
    uint64_t packed_bytes_min;   /* smaller weights are not kept: packing them takes no time; 0: 32 MiB */
} firn_model_options;

/* Opens and checks the file, repacks the weights or maps them as packed before. Errors: IO, FORMAT (truncated, hostile,
 * contradictory; the message names the key or tensor), UNSUPPORTED (architecture or weight type; the message lists
 * those supported), INVALID (options out of range or in contradiction; layers that cannot keep state as kv_scheme says,
 * which the message names), NO_MEMORY. */
firn_status firn_model_open(const firn_model_options *options, const firn_env *env, firn_model **out, firn_error *err);
void firn_model_close(firn_model *model); /* accepts NULL */

typedef struct firn_model_info {
    const char *name;            /* general.name, or the file's base name */
    const char *architecture;    /* "llama", "qwen2", "qwen3" */
    const char *kernel;          /* chosen kernel variant */
    const char *weight_type;     /* type of most weights, e.g. "q8_0" */
    const char *kv;              /* state of attention layers: "f16", "q8", "turbo:k8v3" */
    uint32_t n_vocab, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ctx_train;
    uint64_t n_params;
    uint64_t weight_bytes;       /* as packed in memory */
    bool weights_mapped;         /* they lie in a file of packed_dir, shared with other processes */
    uint64_t open_ns;            /* that opening took */
    uint64_t packed_bytes_due;   /* of a file that is going to be written to packed_dir; 0: none */
} firn_model_info;

/* All pointers live as long as the model. */
const firn_model_info *firn_model_get_info(const firn_model *model);
const firn_schema *firn_model_schema(const firn_model *model);      /* one cache per layer, and the identity */
const firn_tokenizer *firn_model_tokenizer(const firn_model *model);

typedef struct firn_forward_input {
    const firn_token *tokens;    /* packed over rows: sum(counts) ids */
    const uint32_t *counts;      /* [n_rows]; 0 is allowed */
    uint32_t n_rows;
    firn_cache *const *caches;   /* [n_layers], each with n_rows rows; advanced by counts */
    const uint8_t *want_logits;  /* [sum(counts)] 0 or 1: positions whose logits are wanted; NULL: the last of each
                                  * row */
    float *logits;               /* out: [number wanted, n_vocab] f32, in packed order */
    /* Optional. Asked before a layer uses caches[cache], in the order of the layers; may wait. False: the forward ends
     * with CANCELLED, and the caches are fit for nothing but being destroyed. */
    bool (*cache_ready)(void *ctx, uint32_t cache);
    void *cache_ctx;
} firn_forward_input;

/* One step. All caches are reserved before anything changes, so that either every layer advances or none does.
 * Errors: INVALID (token id outside the vocabulary, more tokens or rows than the options allow), CAPACITY, NO_MEMORY,
 * CANCELLED (cache_ready). Allocates nothing beyond cache blocks. */
firn_status firn_model_forward(firn_model *model, const firn_forward_input *input, firn_error *err);
/* Multiply-adds of weights and activations that all forwards so far have done; attention and recurrence not counted. */
uint64_t firn_model_multiply_adds(const firn_model *model);

#ifdef __cplusplus
}
#endif
#endif
