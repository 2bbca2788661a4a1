/*
 * Architectures: one const table each, over blocks that they share.
 *
 *     model.c, forward.c        what all have in common: embedding, residual stream, final norm, output matrix
 *          |  firni_arch
 *          v
 *     arch_<name>.c             which blocks a layer is made of, and their variations
 *          |
 *          v
 *     block_attention.c, block_ffn.c, block_moe.c        the blocks, each with a load and a forward
 *          |
 *          v
 *     forward_step.c            what one forward works on; loops over tokens; projections
 *
 * A new architecture is a new arch_ file in arch_table.c; it brings further blocks as files of their own.
 */
#ifndef FIRNI_ARCH_IMPL_H
#define FIRNI_ARCH_IMPL_H

#include "firn/cache.h"
#include "firn/tokenizer.h"
#include "model/hparams.h"
#include "model/weights.h"

/* Rows of one float array per token, kept for later layers: firni_step_narrow moves them along. */
typedef struct firni_carried {
    float *rows;
    uint32_t stride;
} firni_carried;

#define FIRNI_CARRIED_MAX 4u

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
    const firn_token *tokens; /* [n_tokens], until the step narrows */
    bool is_last_to_store;    /* no later layer stores state: the block that stores narrows to the needed tokens */
    uint32_t layer;
    firn_cache *cache;        /* of the current layer; has room for counts where the layer stores */
    float *cos_sin[FIRNI_ROPES_MAX]; /* [n_tokens, ropes[i].n_dims] */
    float *x;                 /* [n_tokens, n_embd]: the residual stream */
    float *h;                 /* [n_tokens, h_width]: block inputs and attention outputs */
    float *wide;              /* [n_tokens, wide_width]: queries, keys, values; gates */
    void *matmul_scratch;
    uint64_t *multiply_adds;  /* the model's count */
    void *extra;              /* the architecture's own: extra_bytes, 64-byte aligned */
    firni_carried carried[FIRNI_CARRIED_MAX]; /* what else follows the tokens when the step narrows */
    uint32_t n_carried;
} firni_step;

/* Floats per token of h and wide, and the largest number of inputs of any projection inside a layer. */
typedef struct firni_widths {
    uint32_t h;
    uint32_t wide;
    uint32_t inputs_max;
} firni_widths;

/* What attention and feed-forward blocks of these layers need. */
firni_widths firni_step_widths(const firni_hparams *hparams);

/* Runs task(step, ctx, token) for every token, over the workers when there are enough. A task writes only what belongs
 * to its token, so the division changes no bits. */
void firni_step_each_token(firni_step *step, void (*task)(const firni_step *step, const void *ctx, uint32_t token),
                           const void *ctx);
/* y[t] = W x[t]; strides in floats. Scale and bias are left to firni_projection_finish. */
void firni_step_project(const firni_step *step, const firni_projection *projection, const float *x, uint32_t x_stride,
                        float *y, uint32_t y_stride);
/* Products of different matrices with tokens of their own: firni_matmul_each. */
void firni_step_multiply_each(const firni_step *step, firni_matmul_item *items, uint32_t n_items, size_t x_stride,
                              size_t y_stride, void *acts);
/* Applies scale and bias, where there are any, to the n_rows outputs of one token. */
void firni_projection_finish(const firni_kernels *kernels, const firni_projection *projection, float *y);
/* h = rms_norm(x) * weight */
void firni_step_norm(firni_step *step, const float *weight);
/* x += y, after finishing y, which is what `projection` gave: [n_tokens, n_embd]; y is overwritten. */
void firni_step_add_residual(firni_step *step, float *y, const firni_projection *projection);
/* The same with an RMS norm of y in between; weight NULL: none. */
void firni_step_add_normed(firni_step *step, float *y, const firni_projection *projection, const float *weight);
/* Adds an array to those that follow the tokens. */
void firni_step_carry(firni_step *step, float *rows, uint32_t stride);
/* Drops all but the needed tokens from x, rotations, carried arrays, and `rows` (n_tokens rows, `stride`
 * floats each). */
void firni_step_narrow(firni_step *step, float *rows, uint32_t stride);

/* ---- blocks ---- */

/* Grouped-query attention with rotary positions over the layer's cache. */
typedef struct firni_attention {
    firni_layer_shape shape;
    float scale;               /* of scores */
    const float *norm;
    bool shares_state;         /* an earlier layer's keys and values are read; the layer has queries alone */
    bool values_are_keys;      /* no matrix for values: they are the keys before norm and rotation */
    bool norms_values;         /* RMS norm, without a weight, of each value head */
    bool has_gate;
    uint32_t k_offset;         /* floats of a token's queries, with their gates */
    uint32_t width;            /* of queries and, unless shared, keys and values; and of gates set apart */
    firni_projection qkv;      /* queries (each head followed by its gate, where there are gates), keys, values below
                                * each other; as many of them as the layer has */
    const float *q_norm;       /* [head_dim], NULL: none */
    const float *k_norm;
    firni_projection out;
    const float *post_norm;    /* [n_embd] of what the block adds, NULL: none */
    const float *sinks;        /* [n_heads] see firn_attend_input, NULL: none */
} firni_attention;

typedef struct firni_attention_traits {
    bool needs_qkv_bias; /* its absence is an error; everywhere else biases are what the file says */
    bool has_qk_norm;    /* RMS norm of each query and key head before the rotation */
    bool shares_state;   /* see firni_attention; what the file has for keys and values is left aside */
    bool may_lack_values; /* without a matrix for values, keys serve as values */
    bool norms_values;
    bool has_gate;       /* each query head is followed by a gate, whose sigmoid its output is multiplied by */
} firni_attention_traits;

firn_status firni_attention_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                 const firni_attention_traits *traits, firni_attention *out, firn_error *err);
void firni_attention_forward(firni_step *step, const firni_attention *attention);

/* A gated feed-forward block: down(act(gate(h)) * up(h)). */
typedef struct firni_ffn {
    uint32_t n_ff;
    const float *norm;
    firni_projection gate_up;
    firni_projection down;
    const float *post_norm;    /* [n_embd] of what the block adds, NULL: none */
    bool is_gelu;              /* act is GELU in its tanh form; else SiLU */
} firni_ffn;

firn_status firni_ffn_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, firni_ffn *out,
                           firn_error *err);
/* The same with an input norm of another name: "post_attention_norm.weight". */
firn_status firni_ffn_load_after(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                 const char *norm_suffix, firni_ffn *out, firn_error *err);
void firni_ffn_forward(firni_step *step, const firni_ffn *ffn);

/* A mixture of experts: sum of weight * down(activate(gate(h), up(h))) over the experts that the router chooses for a
 * token, plus a shared expert that every token passes. */
typedef struct firni_moe_traits {
    const char *norm; /* suffix of the input norm's tensor; NULL: "ffn_norm.weight" */
    /* The product takes the place of `gate`: both have n elements, up behind gate. NULL: SwiGLU. Of the chosen experts;
     * the shared expert is SwiGLU. */
    void (*activate)(const firni_kernels *kernels, float *gate, const float *up, uint32_t n);
    bool ignores_scales; /* scales beside the chosen experts' matrices mean nothing in this architecture */
} firni_moe_traits;

typedef struct firni_moe {
    const float *norm;
    firni_projection router;
    const float *selection_bias;     /* [n_experts] added to scores for the choice alone; NULL: none */
    const firni_projection *gate_up; /* [n_experts] */
    const firni_projection *down;    /* [n_experts] */
    void (*activate)(const firni_kernels *kernels, float *gate, const float *up, uint32_t n);
    bool ignores_scales;
    firni_projection shared_gate_up; /* n_rows 0: no shared expert */
    firni_projection shared_down;
    firni_projection shared_gate;    /* of one row: its output times sigmoid of this; n_rows 0: times 1 */
} firni_moe;

firn_status firni_moe_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                           const firni_moe_traits *traits, firni_moe *out, firn_error *err);
/* x += mixture(norm(x)). `scratch`: firni_moe_scratch_bytes for the step's tokens, 64-byte aligned. */
void firni_moe_forward(firni_step *step, const firni_moe *moe, void *scratch);
/* An activation for firni_moe_traits: g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7) and u = up in [-7, 7]. */
void firni_swiglu_clamped(const firni_kernels *kernels, float *gate, const float *up, uint32_t n);
/* Never less for more tokens; 0 when no layer has experts. */
size_t firni_moe_scratch_bytes(const firni_hparams *hparams, uint32_t n_tokens);

/* Per-layer inputs: what all layers' are made of, and what one layer does with its own. */
typedef struct firni_layer_inputs {
    firni_row_table embedding;   /* rows of n_layers * n_layer_input */
    firni_projection projection; /* of the scaled embedding, to the same width */
    const float *norm;           /* [n_layer_input] */
} firni_layer_inputs;

typedef struct firni_layer_input {
    firni_projection gate;
    firni_projection projection;
    const float *norm;           /* [n_embd] of what the layer adds */
} firni_layer_input;

firn_status firni_layer_inputs_load(firni_loader *loader, const firni_hparams *hparams, firni_layer_inputs *out,
                                    firn_error *err);
firn_status firni_layer_input_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                   firni_layer_input *out, firn_error *err);
/* Bytes of step->extra. */
size_t firni_layer_inputs_bytes(const firni_hparams *hparams, uint32_t n_tokens);
void firni_layer_inputs_widths(const firni_hparams *hparams, firni_widths *widths);
/* Before the first layer. */
void firni_layer_inputs_begin(firni_step *step, const firni_layer_inputs *inputs);
/* At the end of a layer. */
void firni_layer_input_forward(firni_step *step, const firni_layer_input *input);

/* Latent attention over kv:mla, or kv:mla:dsa where the model has an indexer. */
typedef struct firni_mla {
    const float *norm;
    firni_projection first;       /* the queries' latent, or the queries; then the latent with its rope key */
    const float *q_norm;          /* [q_rank] */
    firni_projection q;           /* from the queries' latent; n_rows 0: `first` gives queries */
    const float *kv_norm;         /* [kv_rank] */
    const firni_projection *k_up; /* [n_heads] nope_dim to kv_rank */
    const firni_projection *v_up; /* [n_heads] kv_rank to value_dim */
    firni_projection out;
    firni_projection index_first; /* index key, then a weight for each index head; n_rows 0: no indexer */
    firni_projection index_q;     /* from the queries' latent */
    const float *index_norm;      /* [index_dim] layer norm of index keys */
    const float *index_norm_bias;
} firni_mla;

/* Ranks, head sizes, scale; every layer gets them and a cache of its own. Reads the rope as well. */
void firni_read_mla(firni_keys *keys, firni_hparams *hp);
void firni_read_mla_index(firni_keys *keys, firni_hparams *hp);
firn_status firni_mla_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, firni_mla *out,
                           firn_error *err);
/* `scratch`: firni_mla_scratch_bytes for the step's tokens, 64-byte aligned. */
void firni_mla_forward(firni_step *step, const firni_mla *mla, void *scratch);
size_t firni_mla_scratch_bytes(const firni_hparams *hparams, uint32_t n_tokens);
void firni_mla_cache_options(const firni_hparams *hparams, uint32_t layer, firn_cache_options *out);

/* A layer of attention then SwiGLU, which llama, qwen2 and qwen3 have in common. */
typedef struct firni_dense_layer {
    firni_attention attention;
    firni_ffn ffn;
} firni_dense_layer;

/* *layers: [n_layers] firni_dense_layer, owned by the loader's weights. */
firn_status firni_dense_load(firni_loader *loader, const firni_hparams *hparams, const firni_attention_traits *traits,
                             const void **layers, firn_error *err);
void firni_dense_forward_layer(firni_step *step, const void *layers, uint32_t layer);
void firni_dense_read(firni_keys *keys, firni_hparams *hparams);
void firni_dense_cache_options(const firni_hparams *hparams, uint32_t layer, firn_cache_options *out);

/* ---- the table ---- */

typedef struct firni_arch {
    const char *name;              /* general.architecture */
    bool rope_interleaved;
    /* Reads the keys: shapes of all layers, ropes, and what the blocks need. */
    firni_hparams_reader read;
    /* Layout and geometry of the state that a layer stores; dtype and kernel are filled in by the model. Called for the
     * first layer of each cache. */
    void (*cache_options)(const firni_hparams *hparams, uint32_t layer, firn_cache_options *out);
    /* Loads the tensors of all layers; *layers is passed to the functions below. */
    firn_status (*load)(firni_loader *loader, const firni_hparams *hparams, const void **layers, firn_error *err);
    /* Raises the widths where the architecture's own blocks need more. Optional. */
    void (*widths)(const firni_hparams *hparams, firni_widths *widths);
    /* Bytes of step->extra for steps of at most n_tokens tokens. Optional: none. */
    size_t (*extra_bytes)(const firni_hparams *hparams, uint32_t n_tokens);
    /* Before the first layer: x holds the scaled embeddings. Optional. */
    void (*begin)(firni_step *step, const void *layers);
    /* x becomes the layer's output; appends to step->cache where the layer stores. Cannot fail: the cache has room. */
    void (*forward_layer)(firni_step *step, const void *layers, uint32_t layer);
} firni_arch;

extern const firni_arch firni_arch_deepseek2, firni_arch_deepseek32;
extern const firni_arch firni_arch_llama, firni_arch_qwen2, firni_arch_qwen3;
extern const firni_arch firni_arch_gemma3, firni_arch_gemma4, firni_arch_gpt_oss;
extern const firni_arch firni_arch_qwen35, firni_arch_qwen3next, firni_arch_mamba2;

/* NULL when there is no such architecture. */
const firni_arch *firni_arch_find(const char *name);
/* "llama, qwen2, ...", for messages; cut to out_bytes. */
void firni_arch_list(char *out, size_t out_bytes);

#endif
