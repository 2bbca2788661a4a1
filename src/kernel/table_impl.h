/*
 * table: the kernel table of a vector variant. Including this header defines LANES_TABLE from the algorithms of the
 * lanes that were included before.
 */
#ifndef FIRNI_TABLE_IMPL_H
#define FIRNI_TABLE_IMPL_H

#include "kernel/attend_impl.h"
#include "kernel/latent_impl.h"
#include "kernel/matmul_impl.h"
#include "kernel/quant_impl.h"
#include "kernel/quant_store_impl.h"
#include "kernel/recur_impl.h"
#include "kernel/vector_impl.h"

#define LANES_TABLE                                                                                                   \
    {                                                                                                                 \
        .name = LANES_NAME, .matmul_panels = lanes_matmul_panels, .prepare = lanes_prepare,                           \
        .attend_plain = lanes_attend_plain, .store_plain = lanes_store_plain, .attend_quant = lanes_attend_quant,     \
        .store_quant = lanes_store_quant, .attend_latent = lanes_attend_latent, .store_latent = lanes_store_latent,   \
        .index_scores = lanes_index_scores, .rms_norm = lanes_rms_norm, .add = lanes_add_to,                          \
        .silu_mul = lanes_silu_mul, .gelu_mul = lanes_gelu_mul,                                                       \
        .sigmoid_mul = lanes_sigmoid_mul, .softcap = lanes_softcap, .rope = lanes_rope, .exp_sum = lanes_exp_sum,     \
        .conv_silu = lanes_conv_silu, .l2_norm = lanes_l2_norm, .recur = lanes_recur,                                 \
        .max = lanes_max, .f32_to_f16 = lanes_f32_to_f16, .f16_to_f32 = lanes_f16_to_f32,                             \
        .f32_to_bf16 = lanes_f32_to_bf16, .bf16_to_f32 = lanes_bf16_to_f32,                                           \
    }

#endif
