/*
 * Rotary positions: from the file's parameters to cos/sin pairs.
 *
 * Angles are computed in double precision from the absolute position, each position by itself, so that a token's
 * rotation never depends on the chunk it came in. Where the pairs lie (adjacent, or half a head apart) is the
 * architecture's business and is carried along here for the kernels.
 */
#ifndef FIRNI_ROPE_H
#define FIRNI_ROPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

typedef enum firni_rope_scaling {
    FIRNI_ROPE_SCALING_NONE = 0,
    FIRNI_ROPE_SCALING_LINEAR,  /* all frequencies divided by factor */
    FIRNI_ROPE_SCALING_LLAMA3,  /* low frequencies divided, a smooth ramp between, high ones kept */
    FIRNI_ROPE_SCALING_YARN     /* arXiv 2309.00071 */
} firni_rope_scaling;

/* Parameters as the file gives them, defaults filled in. */
typedef struct firni_rope_params {
    uint32_t n_dims;               /* rotated dimensions of a head, even; the rest stays as it is */
    bool interleaved;              /* pairs (2i, 2i+1); else (i, i + n_dims/2) */
    uint32_t sections[4];          /* multimodal positions: pairs for time, height, width and a fourth axis, of which
                                      text has none; all 0: one position for all pairs */
    float base;
    firni_rope_scaling scaling;
    float factor;                  /* > 0 */
    uint32_t original_context;     /* tokens; LLAMA3 and YARN */
    float low_freq_factor;         /* LLAMA3 */
    float high_freq_factor;
    float ext_factor;              /* YARN: share of the ramp that is applied, usually 1 */
    float attn_factor;             /* YARN: multiplies cos and sin beside the formula's own magnitude */
    float beta_fast;
    float beta_slow;
} firni_rope_params;

typedef struct firni_rope {
    uint32_t n_dims;
    bool interleaved;
    double magnitude;              /* multiplies cos and sin */
    double *frequencies;           /* [n_dims / 2] radians per token */
    const firn_env *env;
} firni_rope;

/* factors: NULL, or [n_dims / 2] divisors of the frequencies (the tensor rope_freqs.weight). Errors: NO_MEMORY. */
firn_status firni_rope_init(firni_rope *rope, const firni_rope_params *params, const float *factors,
                            const firn_env *env, firn_error *err);
void firni_rope_deinit(firni_rope *rope); /* accepts a zeroed struct */
/* cos_sin: n_dims / 2 pairs {cos, sin} of one position. */
void firni_rope_angles(const firni_rope *rope, uint32_t position, float *cos_sin);
/* All parameters as one line, for the identity of the state. */
void firni_rope_describe(const firni_rope_params *params, char *out, size_t out_bytes);

#endif
