/*
 * Synthetic models with recurrent layers: qwen35, qwen3next, mamba2.
 *
 * Owns their keys and tensors. Decays are those that such layers are initialised with: from a few tokens to hundreds.
 */
#include "base/base_impl.h"
#include "model/hparams.h"
#include "model/synth_impl.h"

#define CONV_WIDTH 4u
#define PERIOD 4u /* three recurrent layers to one of attention */
#define EXPERTS 8u
#define EXPERTS_USED 2u

static const firni_synth_preset hybrid_presets[] = {
    { 2000000, 64, 4, 2, 16, 192, 512 },
    { 30000000, 256, 4, 2, 64, 768, 4096 },
    { 250000000, 512, 4, 2, 128, 1536, 32000 },
    { 1000000000, 1024, 8, 2, 256, 3584, 32000 },
    { 3000000000, 2048, 8, 2, 256, 6144, 32000 },
    { UINT64_MAX, 4096, 16, 4, 256, 12288, 32000 },
};

/* Experts share the width that a dense block would have. */
static const firni_synth_preset expert_presets[] = {
    { 4000000, 64, 4, 2, 16, 64, 512 },
    { 60000000, 256, 4, 2, 64, 256, 4096 },
    { 1000000000, 512, 4, 2, 128, 512, 32000 },
    { UINT64_MAX, 2048, 16, 2, 256, 512, 32000 },
};

/* heads x head-dim is the width of values, twice that of the stream; kv-heads counts groups. */
static const firni_synth_preset mamba2_presets[] = {
    { 2000000, 64, 8, 1, 16, 0, 512 },
    { 30000000, 256, 8, 1, 64, 0, 4096 },
    { 150000000, 768, 24, 1, 64, 0, 32000 },
    { 500000000, 1024, 32, 1, 64, 0, 32000 },
    { UINT64_MAX, 2560, 80, 1, 64, 0, 32000 },
};

/* ---- recurrent layers ---- */

/* Of gated DeltaNet: values are twice as wide as the stream, in square states, two of which share a key. */
typedef struct delta_shape {
    uint32_t dim;
    uint32_t n_heads;
    uint32_t n_key_heads;
} delta_shape;

static delta_shape delta_of(const firni_synth_options *o)
{
    const uint32_t dim = o->n_embd >= 1024 ? 128 : o->n_embd >= 256 ? 64 : 16;
    const uint32_t n_heads = 2 * o->n_embd / dim;
    return (delta_shape){ .dim = dim, .n_heads = n_heads, .n_key_heads = n_heads / 2 };
}

static void put_ssm(firni_synth *s, uint32_t n_inner, uint32_t state, uint32_t n_heads, uint32_t n_groups)
{
    firni_synth_put_u32(s, "ssm.conv_kernel", CONV_WIDTH);
    firni_synth_put_u32(s, "ssm.inner_size", n_inner);
    firni_synth_put_u32(s, "ssm.state_size", state);
    firni_synth_put_u32(s, "ssm.time_step_rank", n_heads);
    firni_synth_put_u32(s, "ssm.group_count", n_groups);
}

static void visit_delta(firni_synth *s, uint32_t layer, bool gates_together)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const delta_shape d = delta_of(o);
    const uint32_t n_out = d.n_heads * d.dim;
    const uint32_t n_channels = 2 * d.n_key_heads * d.dim + n_out;
    const float in = firni_synth_in(o->n_embd);
    const int32_t l = (int32_t)layer;
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_qkv.weight", n_channels, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_gate.weight", n_out, o->n_embd, in);
    if (gates_together) {
        firni_synth_matrix(s, l, "ssm_ba.weight", 2 * d.n_heads, o->n_embd, in);
    } else {
        firni_synth_matrix(s, l, "ssm_alpha.weight", d.n_heads, o->n_embd, in);
        firni_synth_matrix(s, l, "ssm_beta.weight", d.n_heads, o->n_embd, in);
    }
    firni_synth_matrix_f32(s, l, "ssm_conv1d.weight", n_channels, CONV_WIDTH, 0.0F, 0.5F);
    firni_synth_vector(s, l, "ssm_dt.bias", d.n_heads, -3.0F, 0.7F);
    firni_synth_vector(s, l, "ssm_a", d.n_heads, -1.0F, 0.25F);
    firni_synth_vector(s, l, "ssm_norm.weight", d.dim, 1.0F, 0.1F);
    /* A gated output is about half as large as what it gates. */
    firni_synth_matrix(s, l, "ssm_out.weight", o->n_embd, n_out, 2.0F * firni_synth_residual(o, n_out));
}

/* ---- hybrid models ---- */

static firn_status check_hybrid(const firni_synth_options *o, firn_error *err)
{
    const firn_status status = firni_synth_check_attention(o, err);
    const delta_shape d = delta_of(o);
    if (status == FIRN_OK && (2 * o->n_embd % d.dim != 0 || d.n_heads % 2 != 0)) {
        return firni_fail(err, FIRN_ERR_INVALID, "width is %lu; recurrent layers of it need a multiple of %lu",
                          (unsigned long)o->n_embd, (unsigned long)d.dim);
    }
    return status;
}

static void put_hybrid_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const delta_shape d = delta_of(o);
    firni_synth_put_common(s);
    firni_synth_put_attention(s);
    firni_synth_put_u32(s, "full_attention_interval", PERIOD);
    put_ssm(s, d.n_heads * d.dim, d.dim, d.n_heads, d.n_key_heads);
}

/* Pairs turn by the sections in turn: these reach each of them. Other readers of such files demand the key. */
static void put_qwen35_keys(firni_synth *s)
{
    const uint32_t n_pairs = firni_synth_get_options(s)->head_dim / 2;
    const uint32_t sections[4] = { (n_pairs + 2) / 3, (n_pairs + 1) / 3, n_pairs / 3, 0 };
    put_hybrid_keys(s);
    firni_synth_put_u32_array(s, "rope.dimension_sections", sections, 4);
}

static void put_expert_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    put_hybrid_keys(s);
    firni_synth_put_u32(s, "expert_count", EXPERTS);
    firni_synth_put_u32(s, "expert_used_count", EXPERTS_USED);
    firni_synth_put_u32(s, "expert_feed_forward_length", o->n_ff);
    firni_synth_put_u32(s, "expert_shared_feed_forward_length", o->n_ff);
}

static void visit_attention(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t q = o->n_heads * o->head_dim;
    const uint32_t kv = o->n_kv_heads * o->head_dim;
    const float in = firni_synth_in(o->n_embd);
    const int32_t l = (int32_t)layer;
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_q.weight", 2 * q, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_k.weight", kv, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_v.weight", kv, o->n_embd, in);
    firni_synth_vector(s, l, "attn_q_norm.weight", o->head_dim, 1.0F, 0.1F);
    firni_synth_vector(s, l, "attn_k_norm.weight", o->head_dim, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_output.weight", o->n_embd, q, 2.0F * firni_synth_residual(o, q));
}

static void visit_mixer(firni_synth *s, uint32_t layer, bool gates_together)
{
    if (layer % PERIOD != PERIOD - 1) {
        visit_delta(s, layer, gates_together);
    } else {
        visit_attention(s, layer);
    }
    firni_synth_vector(s, (int32_t)layer, "post_attention_norm.weight", firni_synth_get_options(s)->n_embd, 1.0F, 0.1F);
}

static void visit_qwen35_layer(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const int32_t l = (int32_t)layer;
    const float in = firni_synth_in(o->n_embd);
    visit_mixer(s, layer, false);
    firni_synth_matrix(s, l, "ffn_gate.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_up.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_down.weight", o->n_embd, o->n_ff, 2.0F * firni_synth_residual(o, o->n_ff));
}

static void visit_qwen3next_layer(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const int32_t l = (int32_t)layer;
    const float in = firni_synth_in(o->n_embd);
    const float out = 2.0F * firni_synth_residual(o, o->n_ff);
    visit_mixer(s, layer, true);
    firni_synth_matrix_f32(s, l, "ffn_gate_inp.weight", EXPERTS, o->n_embd, 0.0F, in);
    firni_synth_experts(s, l, "ffn_gate_exps.weight", EXPERTS, o->n_ff, o->n_embd, in);
    firni_synth_experts(s, l, "ffn_up_exps.weight", EXPERTS, o->n_ff, o->n_embd, in);
    firni_synth_experts(s, l, "ffn_down_exps.weight", EXPERTS, o->n_embd, o->n_ff, out);
    firni_synth_matrix_f32(s, l, "ffn_gate_inp_shexp.weight", 1, o->n_embd, 0.0F, in);
    firni_synth_matrix(s, l, "ffn_gate_shexp.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_up_shexp.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_down_shexp.weight", o->n_embd, o->n_ff, out);
}

/* ---- mamba2 ---- */

static uint32_t mamba2_state(const firni_synth_options *o)
{
    return o->n_embd >= 256 ? 128 : 16;
}

static firn_status check_mamba2(const firni_synth_options *o, firn_error *err)
{
    if (o->n_heads == 0 || o->n_heads > FIRNI_HEADS_MAX || o->head_dim == 0 || o->head_dim > FIRNI_HEAD_DIM_MAX ||
        o->n_kv_heads == 0 || o->n_heads % o->n_kv_heads != 0) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "heads must be a multiple of kv-heads, which count groups, and head-dim "
                          "within 1 to %u",
                          FIRNI_HEAD_DIM_MAX);
    }
    return FIRN_OK;
}

static void put_mamba2_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    firni_synth_put_common(s);
    put_ssm(s, o->n_heads * o->head_dim, mamba2_state(o), o->n_heads, o->n_kv_heads);
}

static void visit_mamba2_layer(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t n_out = o->n_heads * o->head_dim;
    const uint32_t n_channels = n_out + 2 * o->n_kv_heads * mamba2_state(o);
    const int32_t l = (int32_t)layer;
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "ssm_in.weight", n_out + n_channels + o->n_heads, o->n_embd, firni_synth_in(o->n_embd));
    firni_synth_matrix_f32(s, l, "ssm_conv1d.weight", n_channels, CONV_WIDTH, 0.0F, 0.5F);
    firni_synth_vector(s, l, "ssm_conv1d.bias", n_channels, 0.0F, 0.1F);
    firni_synth_vector(s, l, "ssm_dt.bias", o->n_heads, -3.0F, 0.7F);
    firni_synth_matrix_f32(s, l, "ssm_a", o->n_heads, 1, -1.0F, 0.25F);
    firni_synth_matrix_f32(s, l, "ssm_d", o->n_heads, 1, 1.0F, 0.1F);
    if (o->n_kv_heads == 1) {
        firni_synth_vector(s, l, "ssm_norm.weight", n_out, 1.0F, 0.1F);
    } else {
        firni_synth_matrix_f32(s, l, "ssm_norm.weight", o->n_kv_heads, n_out / o->n_kv_heads, 1.0F, 0.1F);
    }
    firni_synth_matrix(s, l, "ssm_out.weight", o->n_embd, n_out, firni_synth_residual(o, n_out));
}

const firni_synth_arch firni_synth_qwen35 = {
    .name = "qwen35",
    .presets = hybrid_presets,
    .layer_period = PERIOD,
    .check = check_hybrid,
    .keys = put_qwen35_keys,
    .layer = visit_qwen35_layer,
};

const firni_synth_arch firni_synth_qwen3next = {
    .name = "qwen3next",
    .presets = expert_presets,
    .layer_period = PERIOD,
    .check = check_hybrid,
    .keys = put_expert_keys,
    .layer = visit_qwen3next_layer,
};

const firni_synth_arch firni_synth_mamba2 = {
    .name = "mamba2",
    .presets = mamba2_presets,
    .layer_period = 1,
    .check = check_mamba2,
    .keys = put_mamba2_keys,
    .layer = visit_mamba2_layer,
};
