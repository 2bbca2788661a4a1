/*
 * Synthetic models of deepseek2 and deepseek32. Owns their keys and tensors.
 *
 * head_dim is what a head's query has without a position, and a head's value; half of it again is rotated. deepseek2 is
 * of the lite form, whose queries have no latent; deepseek32 has one, which the indexer needs.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/hparams.h"
#include "model/synth_impl.h"

/* n_ff is that of the first layer, the only dense one; an expert has a quarter of it. */
static const firni_synth_preset presets[] = {
    { 5000000, 64, 4, 1, 32, 128, 512 },
    { 100000000, 256, 8, 1, 32, 512, 4096 },
    { 2000000000, 1024, 16, 1, 64, 2048, 32000 },
    { UINT64_MAX, 2048, 16, 1, 128, 5632, 64000 },
};

typedef struct shape {
    uint32_t nope, rope, kv_rank, q_rank, n_experts, n_used, n_ff_expert;
    uint32_t n_index_heads, index_dim, top_k;
} shape;

/* Whatever is an input of a quantised matrix is a multiple of 32. */
static uint32_t groups_of(uint32_t n)
{
    return (n + 31) / 32 * 32;
}

static bool is_sparse(const firni_synth_options *o)
{
    return strcmp(o->architecture, "deepseek32") == 0;
}

static shape shape_of(const firni_synth_options *o)
{
    const bool is_small = o->n_embd < 512;
    const uint32_t nope = groups_of(o->head_dim);
    return (shape){
        .nope = nope,
        .rope = nope / 2,
        .kv_rank = 4 * nope,
        .q_rank = is_sparse(o) ? groups_of(o->n_embd / 2) : 0,
        .n_experts = is_small ? 8 : 16,
        .n_used = is_small ? 2 : 4,
        .n_ff_expert = groups_of(o->n_ff / 4),
        .n_index_heads = is_small ? 4 : 16,
        .index_dim = nope,
        .top_k = o->n_ctx < 4096 ? o->n_ctx / 32 + 1 : 1024,
    };
}

static firn_status check(const firni_synth_options *o, firn_error *err)
{
    const shape s = shape_of(o);
    if (s.kv_rank + s.rope > FIRNI_HEAD_DIM_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "heads of %lu elements need a latent of %lu: more than %u",
                          (unsigned long)o->head_dim, (unsigned long)(s.kv_rank + s.rope), FIRNI_HEAD_DIM_MAX);
    }
    return FIRN_OK;
}

static void put_keys(firni_synth *synth)
{
    const firni_synth_options *o = firni_synth_get_options(synth);
    const shape s = shape_of(o);
    firni_synth_put_common(synth);
    firni_synth_put_u32(synth, "attention.head_count", o->n_heads);
    firni_synth_put_u32(synth, "attention.head_count_kv", 1);
    firni_synth_put_u32(synth, "attention.key_length", s.kv_rank + s.rope);
    firni_synth_put_u32(synth, "attention.value_length", s.kv_rank);
    firni_synth_put_u32(synth, "attention.key_length_mla", s.nope + s.rope);
    firni_synth_put_u32(synth, "attention.value_length_mla", s.nope);
    firni_synth_put_u32(synth, "attention.kv_lora_rank", s.kv_rank);
    firni_synth_put_u32(synth, "attention.q_lora_rank", s.q_rank);
    firni_synth_put_u32(synth, "rope.dimension_count", s.rope);
    firni_synth_put_f32(synth, "rope.freq_base", o->rope_base > 0.0F ? o->rope_base : 10000.0F);
    firni_synth_put_u32(synth, "feed_forward_length", o->n_ff);
    firni_synth_put_u32(synth, "leading_dense_block_count", 1);
    firni_synth_put_u32(synth, "expert_count", s.n_experts);
    firni_synth_put_u32(synth, "expert_used_count", s.n_used);
    firni_synth_put_u32(synth, "expert_feed_forward_length", s.n_ff_expert);
    firni_synth_put_u32(synth, "expert_shared_count", 1);
    firni_synth_put_u32(synth, "expert_gating_func", is_sparse(o) ? FIRNI_GATING_SIGMOID : FIRNI_GATING_SOFTMAX);
    firni_synth_put_bool(synth, "expert_weights_norm", is_sparse(o));
    if (is_sparse(o)) {
        firni_synth_put_u32(synth, "expert_group_count", 4);
        firni_synth_put_u32(synth, "expert_group_used_count", 2);
        firni_synth_put_u32(synth, "attention.indexer.head_count", s.n_index_heads);
        firni_synth_put_u32(synth, "attention.indexer.key_length", s.index_dim);
        firni_synth_put_u32(synth, "attention.indexer.top_k", s.top_k);
    }
}

static void visit_attention(firni_synth *synth, int32_t l, const firni_synth_options *o, const shape *s)
{
    const float in = firni_synth_in(o->n_embd);
    const uint32_t q = o->n_heads * (s->nope + s->rope);
    const uint32_t values = o->n_heads * s->nope;
    firni_synth_vector(synth, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    if (s->q_rank > 0) {
        firni_synth_matrix(synth, l, "attn_q_a.weight", s->q_rank, o->n_embd, in);
        firni_synth_vector(synth, l, "attn_q_a_norm.weight", s->q_rank, 1.0F, 0.1F);
        firni_synth_matrix(synth, l, "attn_q_b.weight", q, s->q_rank, firni_synth_in(s->q_rank));
    } else {
        firni_synth_matrix(synth, l, "attn_q.weight", q, o->n_embd, in);
    }
    firni_synth_matrix(synth, l, "attn_kv_a_mqa.weight", s->kv_rank + s->rope, o->n_embd, in);
    firni_synth_vector(synth, l, "attn_kv_a_norm.weight", s->kv_rank, 1.0F, 0.1F);
    firni_synth_experts(synth, l, "attn_k_b.weight", o->n_heads, s->kv_rank, s->nope, firni_synth_in(s->kv_rank));
    firni_synth_experts(synth, l, "attn_v_b.weight", o->n_heads, s->nope, s->kv_rank, firni_synth_in(s->kv_rank));
    firni_synth_matrix(synth, l, "attn_output.weight", o->n_embd, values, firni_synth_residual(o, values));
    if (is_sparse(o)) {
        firni_synth_matrix(synth, l, "indexer.attn_k.weight", s->index_dim, o->n_embd, in);
        firni_synth_vector(synth, l, "indexer.k_norm.weight", s->index_dim, 1.0F, 0.1F);
        firni_synth_vector(synth, l, "indexer.k_norm.bias", s->index_dim, 0.0F, 0.1F);
        firni_synth_matrix_f32(synth, l, "indexer.proj.weight", s->n_index_heads, o->n_embd, 0.0F, in);
        firni_synth_matrix(synth, l, "indexer.attn_q_b.weight", s->n_index_heads * s->index_dim, s->q_rank,
                           firni_synth_in(s->q_rank));
    }
}

static void visit_layer(firni_synth *synth, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(synth);
    const shape s = shape_of(o);
    const float in = firni_synth_in(o->n_embd);
    const int32_t l = (int32_t)layer;
    visit_attention(synth, l, o, &s);
    firni_synth_vector(synth, l, "ffn_norm.weight", o->n_embd, 1.0F, 0.1F);
    if (layer == 0) {
        firni_synth_matrix(synth, l, "ffn_gate.weight", o->n_ff, o->n_embd, in);
        firni_synth_matrix(synth, l, "ffn_up.weight", o->n_ff, o->n_embd, in);
        firni_synth_matrix(synth, l, "ffn_down.weight", o->n_embd, o->n_ff, firni_synth_residual(o, o->n_ff));
        return;
    }
    const uint32_t n_ff = s.n_ff_expert;
    const float out = firni_synth_residual(o, n_ff);
    firni_synth_matrix_f32(synth, l, "ffn_gate_inp.weight", s.n_experts, o->n_embd, 0.0F, in);
    if (is_sparse(o)) {
        firni_synth_vector(synth, l, "exp_probs_b.bias", s.n_experts, 0.0F, 0.1F);
    }
    firni_synth_experts(synth, l, "ffn_gate_exps.weight", s.n_experts, n_ff, o->n_embd, in);
    firni_synth_experts(synth, l, "ffn_up_exps.weight", s.n_experts, n_ff, o->n_embd, in);
    firni_synth_experts(synth, l, "ffn_down_exps.weight", s.n_experts, o->n_embd, n_ff, out);
    firni_synth_matrix(synth, l, "ffn_gate_shexp.weight", n_ff, o->n_embd, in);
    firni_synth_matrix(synth, l, "ffn_up_shexp.weight", n_ff, o->n_embd, in);
    firni_synth_matrix(synth, l, "ffn_down_shexp.weight", o->n_embd, n_ff, out);
}

const firni_synth_arch firni_synth_deepseek2 = {
    .name = "deepseek2",
    .presets = presets,
    .layer_period = 1,
    .check = check,
    .keys = put_keys,
    .layer = visit_layer,
};

const firni_synth_arch firni_synth_deepseek32 = {
    .name = "deepseek32",
    .presets = presets,
    .layer_period = 1,
    .check = check,
    .keys = put_keys,
    .layer = visit_layer,
};
