/*
 * Architectures: one const table each, over blocks that they share.
 *
 *     model.c, forward.c        what all have in common: embedding, residual stream, final norm, output matrix
 *          |  firni_arch
 *          v
 *     arch_<name>.c             which blocks a layer is made of, and their variations
 *          |
 *          v
 *     block_attention.c, block_ffn.c        the blocks, each with a load and a forward
 *          |
 *          v
 *     forward_step.c            what one forward works on; loops over tokens; projections
 *
 * A new architecture is a new arch_ file in arch_table.c; it brings further blocks as files of their own.
 */
#ifndef FIRNI_ARCH_IMPL_H
#define FIRNI_ARCH_IMPL_H

#include "firn/cache.h"
#include "model/hparams.h"
#include "model/weights.h"

/* What one forward works on. All arrays are the model's scratch, sized when it opened. */
typedef struct firni_step {
    const firni_kernels *kernels;
    firn_workers *workers;
    const firni_hparams *hparams;
    uint32_t n_rows;
    uint32_t n_tokens;
    const uint32_t *counts;   /* [n_rows] tokens of each row; their sum is n_tokens */
    const uint32_t *needed;   /* [n_rows] how many last tokens of each row the logits depend on beyond the state */
    uint32_t n_needed;        /* sum of needed */
    bool is_last_layer;       /* the block that stores the state then narrows to the needed tokens */
    firn_cache *cache;        /* of the current layer; has room for counts */
    const float *cos_sin;     /* [n_tokens, rope.n_dims] */
    float *x;                 /* [n_tokens, n_embd]: the residual stream */
    float *h;                 /* [n_tokens, h_width]: block inputs and attention outputs */
    float *wide;              /* [n_tokens, wide_width]: queries, keys, values; gates */
    void *matmul_scratch;
} firni_step;

/* Floats per token of h and wide, and the largest number of inputs of any projection inside a layer. */
uint32_t firni_step_h_width(const firni_hparams *hparams);
uint32_t firni_step_wide_width(const firni_hparams *hparams);
uint32_t firni_step_inputs_max(const firni_hparams *hparams);

/* Runs task(step, ctx, token) for every token, over the workers when there are enough. A task writes only what belongs
 * to its token, so the division changes no bits. */
void firni_step_each_token(firni_step *step, void (*task)(const firni_step *step, const void *ctx, uint32_t token),
                           const void *ctx);
/* y[t] = W x[t]; strides in floats. Scale and bias are left to firni_projection_finish. */
void firni_step_project(const firni_step *step, const firni_projection *projection, const float *x, uint32_t x_stride,
                        float *y, uint32_t y_stride);
/* Applies scale and bias, where there are any, to the n_rows outputs of one token. */
void firni_projection_finish(const firni_kernels *kernels, const firni_projection *projection, float *y);
/* h = rms_norm(x) * weight */
void firni_step_norm(firni_step *step, const float *weight);
/* x += y, after finishing y, which is what `projection` gave: [n_tokens, n_embd]; y is overwritten. */
void firni_step_add_residual(firni_step *step, float *y, const firni_projection *projection);
/* Drops all but the needed tokens from x and from `rows` (n_tokens rows, `stride` floats each). */
void firni_step_narrow(firni_step *step, float *rows, uint32_t stride);

/* ---- blocks ---- */

/* Grouped-query attention with rotary positions over the layer's cache. */
typedef struct firni_attention {
    const float *norm;
    firni_projection qkv;      /* queries, keys, values below each other */
    const float *q_norm;       /* [head_dim], NULL: none */
    const float *k_norm;
    firni_projection out;
} firni_attention;

typedef struct firni_attention_traits {
    bool needs_qkv_bias; /* its absence is an error; everywhere else biases are what the file says */
    bool has_qk_norm;    /* RMS norm of each query and key head before the rotation */
} firni_attention_traits;

firn_status firni_attention_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                 const firni_attention_traits *traits, firni_attention *out, firn_error *err);
void firni_attention_forward(firni_step *step, const firni_attention *attention);

/* SwiGLU: down(silu(gate(h)) * up(h)). */
typedef struct firni_ffn {
    const float *norm;
    firni_projection gate_up;
    firni_projection down;
} firni_ffn;

firn_status firni_ffn_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, firni_ffn *out,
                           firn_error *err);
void firni_ffn_forward(firni_step *step, const firni_ffn *ffn);

/* A layer of attention then SwiGLU, which llama, qwen2 and qwen3 have in common. */
typedef struct firni_dense_layer {
    firni_attention attention;
    firni_ffn ffn;
} firni_dense_layer;

/* *layers: [n_layers] firni_dense_layer, owned by the loader's weights. */
firn_status firni_dense_load(firni_loader *loader, const firni_hparams *hparams, const firni_attention_traits *traits,
                             const void **layers, firn_error *err);
void firni_dense_forward_layer(firni_step *step, const void *layers, uint32_t layer);
void firni_dense_cache_options(const firni_hparams *hparams, uint32_t layer, firn_cache_options *out);

/* ---- the table ---- */

typedef struct firni_arch {
    const char *name;              /* general.architecture */
    bool rope_interleaved;
    /* Layout and geometry of a layer's state; dtype and kernel are filled in by the model. */
    void (*cache_options)(const firni_hparams *hparams, uint32_t layer, firn_cache_options *out);
    /* Loads the tensors of all layers; *layers is passed to forward_layer. */
    firn_status (*load)(firni_loader *loader, const firni_hparams *hparams, const void **layers, firn_error *err);
    /* x becomes the layer's output; appends to step->cache. Cannot fail: the cache has room. */
    void (*forward_layer)(firni_step *step, const void *layers, uint32_t layer);
} firni_arch;

extern const firni_arch firni_arch_llama, firni_arch_qwen2, firni_arch_qwen3;

/* NULL when there is no such architecture. */
const firni_arch *firni_arch_find(const char *name);
/* "llama, qwen2, qwen3", for messages; cut to out_bytes. */
void firni_arch_list(char *out, size_t out_bytes);

#endif
