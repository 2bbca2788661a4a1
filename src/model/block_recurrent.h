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
    bool ignores_scales;        /* files may hold scales of these projections that are not meant to be applied */
} firni_gated_delta_traits;

firn_status firni_gated_delta_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer,
                                   const firni_gated_delta_traits *traits, firni_gated_delta *out, firn_error *err);
void firni_gated_delta_forward(firni_step *step, const firni_gated_delta *block);
void firni_gated_delta_widths(const firni_hparams *hparams, firni_widths *widths);

/* Mamba-2 over the layer's recurrent state. */
typedef struct firni_mamba2 {
    const float *norm;
    firni_projection in;        /* output gate, channels of the convolution, dt of each head */
    const float *conv;          /* [conv_width][channels] */
    const float *conv_bias;     /* [channels] */
    const float *dt_bias;       /* [n_heads] */
    const float *a;             /* [n_heads] negative: the logarithm of a decay per unit of dt */
    const float *skip;          /* [n_heads] */
    const float *out_norm;      /* [n_key_heads][n_out / n_key_heads] */
    firni_projection out;
} firni_mamba2;

firn_status firni_mamba2_load(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, firni_mamba2 *out,
                              firn_error *err);
void firni_mamba2_forward(firni_step *step, const firni_mamba2 *block);
void firni_mamba2_widths(const firni_hparams *hparams, firni_widths *widths);

/* ---- arch_hybrid.c: members of the tables of qwen35 and qwen3next ---- */

void firni_hybrid_read(firni_keys *keys, firni_hparams *hparams);
/* keys_cycle: as in firn_cache_options. */
void firni_hybrid_cache_options(const firni_hparams *hparams, uint32_t layer, bool keys_cycle, firn_cache_options *out);
firn_status firni_hybrid_load(firni_loader *loader, const firni_hparams *hparams, const firni_gated_delta_traits *delta,
                              const void **layers, firn_error *err);
void firni_hybrid_forward_layer(firni_step *step, const void *layers, uint32_t layer);
void firni_hybrid_widths(const firni_hparams *hparams, firni_widths *widths);

/* ---- block_recurrent.c: what recurrent blocks have in common ---- */

uint32_t firni_ssm_channels(const firni_ssm_params *ssm);
/* The convolution's weights, [conv_width][channels] instead of a row for each channel. */
firn_status firni_load_conv(firni_loader *loader, const firni_hparams *hparams, uint32_t layer, const float **out,
                            firn_error *err);
/* A tensor [n_cols, n_rows] as one vector, row by row. */
firn_status firni_load_rows(firni_loader *loader, const char *name, uint32_t n_rows, uint32_t n_cols,
                            const float **out, firn_error *err);
void firni_recurrent_cache_options(const firni_hparams *hparams, const char *layout, firn_cache_options *out);
/* log(1 + exp(x)) */
double firni_softplus(double x);

#endif
