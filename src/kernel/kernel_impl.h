/*
 * kernel: the arithmetic, one table of functions per instruction set.
 *
 * The scalar file is the definition. Every variant gives the same bits as the scalar reference, for every function, so
 * state made on one processor continues on another: that is stronger than "never differs from itself", and it makes
 * each kernel testable with memcmp. What makes this possible (docs/ARITHMETIC.md has the whole of it):
 *
 *   - one output is one chain: a matrix product sums over K in ascending order in one lane, with one rounding per
 *     fused multiply-add (f32) or exact integers per group (q8_0, q4_K), whatever the number of tokens or threads;
 *   - a reduction over a vector is done in 16 virtual lanes (element i goes to lane i % 16, ascending), then folded
 *     8+8, 4+4, 2+2, 1+1, whatever the width of a register;
 *   - attention walks 64-token tiles aligned to absolute positions, oldest first, with an online softmax; lanes beyond
 *     a query's own position are masked and cannot influence its bits;
 *   - exp is one polynomial, the same operations everywhere; nothing is contracted or reassociated by the compiler.
 *
 * Integer weights (q8_0 and all with fewer bits) are multiplied by activations quantised to 16 bits per group of 32,
 * which costs the same as 8 bits where there is no byte dot product and is some 250 times finer.
 *
 * Nothing here allocates, takes locks or knows rows, models or files.
 */
#ifndef FIRNI_KERNEL_IMPL_H
#define FIRNI_KERNEL_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "firn/array.h"
#include "firn/workers.h"
#include "kernel/recur.h"

/* ---- packed matrices ----------------------------------------------------------------------------------------- */

/* Weight element formats, in their GGUF meaning. From q8_0 on they are grouped: integers that share scales. */
typedef enum firni_weight_type {
    FIRNI_WEIGHT_F32 = 0,
    FIRNI_WEIGHT_F16 = 1,
    FIRNI_WEIGHT_BF16 = 2,
    FIRNI_WEIGHT_Q8_0 = 3,   /* groups of 32: f16 scale, 32 signed bytes */
    FIRNI_WEIGHT_Q4_0 = 4,   /* groups of 32: f16 scale, 4 bits less 8 */
    FIRNI_WEIGHT_Q4_1 = 5,   /* groups of 32: f16 scale and minimum, 4 bits */
    FIRNI_WEIGHT_Q5_0 = 6,   /* groups of 32: f16 scale, 5 bits less 16 */
    FIRNI_WEIGHT_Q5_1 = 7,   /* groups of 32: f16 scale and minimum, 5 bits */
    FIRNI_WEIGHT_Q4_K = 8,   /* blocks of 256: f16 scale and minimum; for each 32 6 bits of both, 4 bits */
    FIRNI_WEIGHT_Q5_K = 9,   /* the same with 5 bits */
    FIRNI_WEIGHT_Q6_K = 10,  /* blocks of 256: f16 scale; for each 16 a signed byte of scale, 6 bits less 32 */
    FIRNI_WEIGHT_MXFP4 = 11, /* groups of 32: a power of two, 4-bit floats (e2m1) */
    FIRNI_WEIGHT_TYPES
} firni_weight_type;

const char *firni_weight_type_name(firni_weight_type type); /* "f32", "q8_0", "q4_K", ... */
/* Elements that only exist together: 1, 32 or 256. Rows have a multiple of it. */
uint32_t firni_weight_block_cols(firni_weight_type type);
/* Bytes of one row of n_cols elements as it lies in a GGUF file; 0 when n_cols does not fit the type's block. */
size_t firni_weight_row_bytes(firni_weight_type type, uint32_t n_cols);
/* Row-major elements as they lie in a GGUF file, as f32. */
void firni_weight_row_to_f32(firni_weight_type type, const void *row, uint32_t n_cols, float *out);

/* A matrix in the interleaved form that all variants read: panels of 16 output rows, lanes are rows, so that one token
 * and a thousand take the same arithmetic path. The last panel is padded with zero rows. */
typedef struct firni_matrix {
    firni_weight_type type;
    uint32_t n_rows; /* outputs */
    uint32_t n_cols; /* inputs, K */
    const uint8_t *panels;
} firni_matrix;

#define FIRNI_PANEL_ROWS 16u

size_t firni_matrix_bytes(firni_weight_type type, uint32_t n_rows, uint32_t n_cols);
/* Packs rows [first_panel * 16, ...) of a row-major source for panels [first_panel, first_panel + n_panels) into dst,
 * which is the start of the whole packed matrix (64-byte aligned). */
void firni_matrix_pack(firni_weight_type type, uint32_t n_rows, uint32_t n_cols, const void *src, uint8_t *dst,
                       uint32_t first_panel, uint32_t n_panels);

typedef struct firni_kernels firni_kernels;

/* Scratch for one firni_matmul: activations in the form that the weight type wants. Bytes for up to n_tokens tokens. */
size_t firni_matmul_scratch_bytes(uint32_t n_cols, uint32_t n_tokens);

/* y[t][r] = sum over k of w[r][k] * x[t][k], for n_tokens tokens; x_stride and y_stride in floats. scratch is 64-byte
 * aligned. Splits output rows over the workers. */
void firni_matmul(const firni_kernels *kernels, firn_workers *workers, const firni_matrix *w, const float *x,
                  size_t x_stride, float *y, size_t y_stride, uint32_t n_tokens, void *scratch);

/* One of several products of different matrices of one shape and type (experts, heads), each with tokens of its own. */
typedef struct firni_matmul_item {
    const firni_matrix *w;
    const float *x;
    float *y;
    uint32_t n_tokens;
    void *acts; /* filled in by firni_matmul_each */
} firni_matmul_item;

/* Bytes for items with n_tokens tokens together. */
size_t firni_matmul_each_scratch_bytes(uint32_t n_cols, uint32_t n_tokens, uint32_t n_items);
/* firni_matmul of every item, to the bit; the workers start once for all. Strides are common to the items. */
void firni_matmul_each(const firni_kernels *kernels, firn_workers *workers, firni_matmul_item *items, uint32_t n_items,
                       size_t x_stride, size_t y_stride, void *scratch);

/* ---- attention over plain blocks ------------------------------------------------------------------------------ */

/* A plain block, dtype elements:   K plane [n_kv_heads][head_dim][64]   keys dimension-major: lanes are tokens
 *                                  V plane [n_kv_heads][64][value_dim]  values token-major
 * The V plane starts at v_offset_bytes. Lanes at and beyond the stored count are undefined. */
typedef struct firni_plain_geometry {
    firn_dtype dtype; /* F32, F16 or BF16 */
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t value_dim;
    uint32_t v_offset_bytes;
} firni_plain_geometry;

/* A quantised block: six planes, or five, whose bits and order quantised.h draws. */
typedef struct firni_quant_geometry {
    uint32_t n_kv_heads;
    uint32_t head_dim;   /* multiples of group, which is 32 or 64 */
    uint32_t value_dim;
    uint32_t group;      /* elements of a token that share a scale */
    uint32_t key_bits;   /* 8, 5, 4 or 2 */
    uint32_t value_bits; /* 8 or 4; rotated: 8, 5, 4, 3 or 2 */
    bool rotated;        /* values are rotated and coded for a normal distribution; groups of 32, no biases */
    /* Offsets from the start of a block, set by firni_quant_place; keys' codes begin at 0. */
    uint32_t k_scales;
    uint32_t k_biases;
    uint32_t v_codes;
    uint32_t v_scales;
    uint32_t v_biases; /* end of the planes when rotated */
} firni_quant_geometry;

/* A latent block, dtype elements, one head:   keys [64][head_dim] token-major; the value of a token is the first
 *                                             value_dim elements of its key
 *                                             index keys [index_dim][64] dimension-major, at index_offset_bytes */
typedef struct firni_latent_geometry {
    firn_dtype dtype; /* F32, F16 or BF16 */
    uint32_t head_dim;
    uint32_t value_dim; /* at most head_dim */
    uint32_t index_dim; /* 0: no index keys */
    uint32_t index_offset_bytes;
} firni_latent_geometry;

/* Where the row of a query lies: blocks[b] covers tokens [64 * (first_block + b), ...). */
typedef struct firni_attend_row {
    firn_block *const *blocks;
    uint32_t first_block;
    uint32_t position; /* of the query */
} firni_attend_row;

/* n_queries queries for one KV group, all group_size query heads that read kv_head: consecutive ones of one row, or one
 * of each of several rows.
 *   q:   query i, head g at q + i * q_stride + g * head_dim
 *   out: likewise with out_stride and value_dim
 * Query i has position first_position + i; blocks[b] covers tokens [64 * (first_block + b), ...). Queries see tokens
 * [max(0, position - window + 1), position]; window 0 means all.
 * Several rows: rows[i] says the same of query i instead. A tile that is the same block in neighbouring rows is read
 * once for them. */
typedef struct firni_attend_task {
    const firni_plain_geometry *geometry; /* of attend_plain */
    const firni_quant_geometry *quant;    /* of attend_quant */
    const firni_latent_geometry *latent;  /* of attend_latent */
    firn_block *const *blocks;
    uint32_t first_block;
    const firni_attend_row *rows; /* NULL, or [n_queries]: blocks, first_block and first_position are not read */
    uint32_t kv_head;
    uint32_t group_size;
    uint32_t n_queries;
    uint32_t first_position;
    uint32_t window;
    const float *q;
    float *out;
    size_t q_stride;
    size_t out_stride;
    float scale;
    float softcap;      /* 0: none */
    const float *sinks; /* NULL, or [group_size] */
    /* Of attend_latent: NULL, or the only tokens that the task's only query sees, ascending, at least one. */
    const uint32_t *selected;
    uint32_t n_selected;
} firni_attend_task;

#define FIRNI_HEAD_DIM_MAX 1024u

/* ---- the table ------------------------------------------------------------------------------------------------ */

struct firni_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "neon" */

    /* Panels [panel_begin, panel_end) of y = w x; `acts` is what `prepare` made of x for this weight type. */
    void (*matmul_panels)(const firni_matrix *w, const void *acts, float *y, size_t y_stride, uint32_t n_tokens,
                          uint32_t panel_begin, uint32_t panel_end);
    /* Activations of n_tokens tokens in the form matmul_panels reads (scratch layout is private to matmul.c). */
    void (*prepare)(firni_weight_type type, const float *x, size_t x_stride, uint32_t n_cols, uint32_t token_begin,
                    uint32_t token_end, uint32_t n_tokens, void *acts);

    void (*attend_plain)(const firni_attend_task *task);
    /* Converts and stores one token's keys and values of all heads into lane `lane` of a plain block.
     *   k: [n_kv_heads, head_dim], v: [n_kv_heads, value_dim], both f32 */
    void (*store_plain)(const firni_plain_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                        const float *v);
    /* The same two for quantised blocks. */
    void (*attend_quant)(const firni_attend_task *task);
    void (*store_quant)(const firni_quant_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                        const float *v);

    /* The same two for latent blocks; k: [head_dim], index_key: [index_dim], not read without index keys. */
    void (*attend_latent)(const firni_attend_task *task);
    void (*store_latent)(const firni_latent_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                         const float *index_key);
    /* out[t] = sum over heads h, ascending, of weights[h] * max(0, q[h].index_key[t]), for all 64 tokens of a block; of
     * those that are not stored anything. q: [n_heads, index_dim]. */
    void (*index_scores)(const firni_latent_geometry *geometry, const uint8_t *block, const float *q,
                         const float *weights, uint32_t n_heads, float out[FIRN_BLOCK_TOKENS]);

    /* out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; in place allowed; weight NULL: ones */
    void (*rms_norm)(float *out, const float *x, const float *weight, uint32_t n, float eps);
    void (*add)(float *x, const float *y, uint32_t n);                       /* x += y */
    /* out = silu(gate) * up; out may be gate */
    void (*silu_mul)(float *out, const float *gate, const float *up, uint32_t n);
    /* The same with gelu in its tanh form, 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) (arXiv 1606.08415). */
    void (*gelu_mul)(float *out, const float *gate, const float *up, uint32_t n);
    void (*sigmoid_mul)(float *out, const float *gate, const float *up, uint32_t n); /* out = up / (1 + exp(-gate)) */
    void (*softcap)(float *x, uint32_t n, float cap); /* x = cap * tanh(x * (1 / cap)) */
    /* Rotates one vector of rot_dim elements. interleaved: pairs (2i, 2i+1), else (i, i + rot_dim/2).
     * cos_sin: rot_dim/2 pairs {cos, sin}. */
    void (*rope)(float *x, const float *cos_sin, uint32_t rot_dim, bool interleaved);
    /* Recurrent layers: recur.h. */
    void (*conv_silu)(const firni_conv_task *task);
    void (*l2_norm)(float *x, uint32_t n, float eps, float scale); /* x = x * (scale / max(|x|, eps)) */
    void (*recur)(const firni_recur_task *task);
    /* out[i] = exp(x[i] - max) and returns the sum, in 16 virtual lanes; for sampling and tests of exp. */
    float (*exp_sum)(float *out, const float *x, uint32_t n, float max);
    float (*max)(const float *x, uint32_t n);

    void (*f32_to_f16)(uint16_t *out, const float *x, size_t n);
    void (*f16_to_f32)(float *out, const uint16_t *x, size_t n);
    void (*f32_to_bf16)(uint16_t *out, const float *x, size_t n); /* round to nearest even; NaN stays NaN */
    void (*bf16_to_f32)(float *out, const uint16_t *x, size_t n);
};

/* The table for `name`, or for FIRN_KERNEL, or the best one of this processor, in this order of precedence. NULL with
 * an error when the named variant is unknown, was not built, or the processor lacks it (UNSUPPORTED; the message lists
 * the usable ones). Thread-safe; static storage. */
const firni_kernels *firni_kernels_select(const char *name, firn_error *err);
/* Usable variants on this processor: fills names (static strings), returns their number (at most 8). */
uint32_t firni_kernels_list(const char *names[8]);

#endif
