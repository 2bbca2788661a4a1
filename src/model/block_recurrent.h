/*
 * Recurrent blocks: gated DeltaNet and Mamba-2 over a layer's recurrent state, and what they have in common.
 */
#ifndef FIRNI_BLOCK_RECURRENT_H
#define FIRNI_BLOCK_RECURRENT_H

#include "model/arch_impl.h"

/* Gated DeltaNet over the layer's recurrent state. */
typedef struct firni_gated_delta {
    const float *norm;
    firni_projection qkv_gate;  /* channels of the convolution, then the output gate */
    firni_projection gates;     /* alpha and beta of each head; or, for each key head, its betas and then its alphas */
    bool gates_by_key_head;
    const float *conv;          /* [conv_width][channels] */
    const float *dt_bias;       /* [n_heads] */
    const float *a;             /* [n_heads] negative: the logarithm of a decay */
    const float *out_norm;      /* [value_dim] */
    firni_projection out;
} firni_gated_delta;

typedef struct firni_gated_delta_traits {
    bool gates_by_key_head;     /* one tensor ssm_ba in place of ssm_alpha and ssm_beta */
} firni_gated_delta_traits;

firn_status firni_gated_delta_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                   const firni_gated_delta_traits *traits, firni_gated_delta *out, firn_error *err);
void firni_gated_delta_forward(firni_step *step, const firni_gated_delta *block);
void firni_gated_delta_widths(const firni_hparams *hparams, firni_widths *widths);

/* ---- block_recurrent.c: what recurrent blocks have in common ---- */

uint32_t firni_ssm_channels(const firni_ssm_params *ssm);
/* The convolution's weights, [conv_width][channels] instead of a row for each channel. */
firn_status firni_load_conv(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, const float **out,
                            firn_error *err);
void firni_recurrent_cache_options(const firni_hparams *hparams, const char *layout, firn_cache_options *out);
/* log(1 + exp(x)) */
double firni_softplus(double x);

#endif
