/*
 * synth: one walk over the keys and tensors of a synthetic model, and the architectures that can be walked.
 *
 * An architecture says what its file holds by calling the functions below, in file order. The same walk is taken three
 * times: to count parameters, to declare tensors, and to write them; so the three cannot disagree.
 *
 *      synth.c         numbers, encoding, the walks        synth_<family>.c    keys and tensors of a family
 *      synth_shape.c   from a wish to a shape              synth_table.c       the families by architecture
 */
#ifndef FIRNI_SYNTH_IMPL_H
#define FIRNI_SYNTH_IMPL_H

#include "model/synth.h"

typedef struct firni_synth firni_synth;

const firni_synth_options *firni_synth_get_options(const firni_synth *synth);

/* One tensor each. Elements are near to normal with this mean and deviation. Vectors are f32, matrices of the model's
 * type: [n_rows, n_cols]; experts: [n_experts, n_rows, n_cols]. `layer` < 0: the name is "<name>", else
 * "blk.<layer>.<name>". */
void firni_synth_vector(firni_synth *synth, int32_t layer, const char *name, uint32_t n, float mean, float deviation);
void firni_synth_matrix(firni_synth *synth, int32_t layer, const char *name, uint32_t n_rows, uint32_t n_cols,
                        float deviation);
void firni_synth_experts(firni_synth *synth, int32_t layer, const char *name, uint32_t n_experts, uint32_t n_rows,
                         uint32_t n_cols, float deviation);
/* A matrix that is f32 whatever the model's type, such as a convolution or a router. */
void firni_synth_matrix_f32(firni_synth *synth, int32_t layer, const char *name, uint32_t n_rows, uint32_t n_cols,
                            float mean, float deviation);
/* One vector with these very values. */
void firni_synth_values(firni_synth *synth, int32_t layer, const char *name, uint32_t n, const float *values);

/* "<architecture>.<suffix>" */
void firni_synth_put_u32(firni_synth *synth, const char *suffix, uint32_t value);
void firni_synth_put_f32(firni_synth *synth, const char *suffix, float value);
void firni_synth_put_bool(firni_synth *synth, const char *suffix, bool value);
void firni_synth_put_u32_array(firni_synth *synth, const char *suffix, const uint32_t *values, uint32_t n);
/* block_count to rms epsilon: what every architecture has. */
void firni_synth_put_common(firni_synth *synth);

/* Deviation of a projection that reads a normed vector of n: keeps its size. */
float firni_synth_in(uint32_t n);
/* Of one whose output, from n inputs of deviation 1, is added to the residual stream: smaller by the root of the number
 * of additions, so that the stream grows to about twice its size over the whole depth. */
float firni_synth_residual(const firni_synth_options *options, uint32_t n);

/* A shape that published models of about this size have; layers are chosen to meet the wish. */
typedef struct firni_synth_preset {
    uint64_t n_params_max;
    uint32_t n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
} firni_synth_preset;

/* The last one has n_params_max UINT64_MAX. */
extern const firni_synth_preset firni_synth_dense_presets[];

typedef struct firni_synth_arch {
    const char *name;
    const firni_synth_preset *presets;
    bool scales_embeddings; /* by sqrt(n_embd), when it reads them: they are smaller in the file */
    uint32_t layer_period;  /* layers of different kinds repeat after so many; their number is a multiple of it */
    /* INVALID when the shape does not fit this architecture; limits that all have in common were checked. */
    firn_status (*check)(const firni_synth_options *options, firn_error *err);
    void (*keys)(firni_synth *synth);
    void (*layer)(firni_synth *synth, uint32_t layer);
    void (*ends)(firni_synth *synth); /* tensors outside the layers beside the usual ones; may be NULL */
} firni_synth_arch;

/* NULL when no synthetic model of this architecture can be made. */
const firni_synth_arch *firni_synth_arch_find(const char *name);
/* Attention and its sizes: heads are there and fit each other. */
firn_status firni_synth_check_attention(const firni_synth_options *options, firn_error *err);
/* Heads, their size and rotation. */
void firni_synth_put_attention(firni_synth *synth);

extern const firni_synth_arch firni_synth_llama, firni_synth_qwen2, firni_synth_qwen3;
extern const firni_synth_arch firni_synth_gemma3, firni_synth_gemma4, firni_synth_gpt_oss;
extern const firni_synth_arch firni_synth_deepseek2, firni_synth_deepseek32;
extern const firni_synth_arch firni_synth_qwen35, firni_synth_qwen3next, firni_synth_mamba2;

#endif
