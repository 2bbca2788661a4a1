/*
 * Synthetic models of gpt-oss. Owns their keys and tensors.
 */
#include "base/base_impl.h"
#include "model/hparams.h"
#include "model/synth_impl.h"

#define PERIOD 2u /* a window, then everything */

/* n_ff is that of one expert. */
static const firni_synth_preset presets[] = {
    { 2000000, 64, 4, 1, 32, 64, 512 },
    { 100000000, 256, 8, 2, 32, 256, 4096 },
    { 2000000000, 768, 12, 4, 64, 768, 32000 },
    { 10000000000, 1536, 24, 8, 64, 1536, 64000 },
    { UINT64_MAX, 2880, 64, 8, 64, 2880, 64000 },
};

static uint32_t experts_of(const firni_synth_options *o)
{
    return o->n_embd < 512 ? 8 : 16;
}

static uint32_t experts_used_of(const firni_synth_options *o)
{
    return o->n_embd < 512 ? 2 : 4;
}

static void put_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    firni_synth_put_common(s);
    firni_synth_put_attention(s);
    firni_synth_put_u32(s, "expert_count", experts_of(o));
    firni_synth_put_u32(s, "expert_used_count", experts_used_of(o));
    firni_synth_put_u32(s, "expert_feed_forward_length", o->n_ff);
    firni_synth_put_u32(s, "attention.sliding_window", o->n_ctx < 4096 ? o->n_ctx / 32 + 1 : 128);
}

static void visit_layer(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t q = o->n_heads * o->head_dim;
    const uint32_t kv = o->n_kv_heads * o->head_dim;
    const uint32_t n_experts = experts_of(o);
    const float in = firni_synth_in(o->n_embd);
    const int32_t l = (int32_t)layer;
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_q.weight", q, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_k.weight", kv, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_v.weight", kv, o->n_embd, in);
    firni_synth_vector(s, l, "attn_q.bias", q, 0.0F, 0.2F);
    firni_synth_vector(s, l, "attn_k.bias", kv, 0.0F, 0.2F);
    firni_synth_vector(s, l, "attn_v.bias", kv, 0.0F, 0.2F);
    firni_synth_matrix(s, l, "attn_output.weight", o->n_embd, q, firni_synth_residual(o, q));
    firni_synth_vector(s, l, "attn_output.bias", o->n_embd, 0.0F, 0.05F);
    firni_synth_vector(s, l, "attn_sinks.weight", o->n_heads, 0.0F, 1.0F);
    firni_synth_vector(s, l, "post_attention_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix_f32(s, l, "ffn_gate_inp.weight", n_experts, o->n_embd, 0.0F, in);
    firni_synth_vector(s, l, "ffn_gate_inp.bias", n_experts, 0.0F, 0.2F);
    firni_synth_experts(s, l, "ffn_gate_exps.weight", n_experts, o->n_ff, o->n_embd, in);
    firni_synth_experts(s, l, "ffn_up_exps.weight", n_experts, o->n_ff, o->n_embd, in);
    firni_synth_experts(s, l, "ffn_down_exps.weight", n_experts, o->n_embd, o->n_ff, firni_synth_residual(o, o->n_ff));
    firni_synth_matrix_f32(s, l, "ffn_gate_exps.bias", n_experts, o->n_ff, 0.0F, 0.2F);
    firni_synth_matrix_f32(s, l, "ffn_up_exps.bias", n_experts, o->n_ff, 0.0F, 0.2F);
    firni_synth_matrix_f32(s, l, "ffn_down_exps.bias", n_experts, o->n_embd, 0.0F, 0.05F);
}

const firni_synth_arch firni_synth_gpt_oss = {
    .name = "gpt-oss",
    .presets = presets,
    .layer_period = PERIOD,
    .check = firni_synth_check_attention,
    .keys = put_keys,
    .layer = visit_layer,
};
