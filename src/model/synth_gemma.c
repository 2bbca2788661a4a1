/*
 * Synthetic models of the Gemma family: gemma3 and gemma4.
 *
 * Owns their keys and tensors. Norms after a block decide how much it adds, so they carry what the last projection of a
 * block carries in other families.
 */
#include <math.h>

#include "base/base_impl.h"
#include "model/hparams.h"
#include "model/synth_impl.h"

/* Layers of one period: five with a window and one without; and for gemma4 twice two and one, the second half of all
 * layers reading the state of the first. */
#define PERIOD 6u
#define GEMMA4_PERIOD 3u

static const firni_synth_preset presets[] = {
    { 2000000, 64, 4, 1, 32, 192, 512 },
    { 40000000, 256, 4, 1, 64, 1024, 4096 },
    { 900000000, 1024, 4, 1, 256, 4096, 32000 },
    { 2000000000, 1152, 4, 1, 256, 6912, 64000 },
    { 8000000000, 2560, 8, 4, 256, 10240, 64000 },
    { UINT64_MAX, 3840, 16, 8, 256, 15360, 64000 },
};

/* A 32nd of the context, as published models have it at 32k; short contexts get one that tests can leave. */
static uint32_t window_of(const firni_synth_options *o)
{
    const uint32_t window = o->n_ctx / 32;
    return window < 1 ? 1 : window;
}

static float branch_weight(const firni_synth_options *o)
{
    return 1.0F / sqrtf(2.0F * (float)o->n_layers);
}

/* ---- gemma3 ---- */

static void put_gemma3_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    firni_synth_put_common(s);
    firni_synth_put_attention(s);
    firni_synth_put_u32(s, "attention.sliding_window", window_of(o));
    firni_synth_put_f32(s, "rope.freq_base_swa", 10000.0F);
}

/* What both have, in sizes of the layer. Scores of normed queries and keys need a scale of their own where the model
 * has none: their norms' weights carry it. */
static void visit_blocks(firni_synth *s, int32_t l, uint32_t head_dim, float qk_weight)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t q = o->n_heads * head_dim;
    const uint32_t kv = o->n_kv_heads * head_dim;
    const float in = firni_synth_in(o->n_embd);
    const float branch = branch_weight(o);
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_q.weight", q, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_k.weight", kv, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_v.weight", kv, o->n_embd, in);
    firni_synth_vector(s, l, "attn_q_norm.weight", head_dim, qk_weight, 0.1F * qk_weight);
    firni_synth_vector(s, l, "attn_k_norm.weight", head_dim, qk_weight, 0.1F * qk_weight);
    firni_synth_matrix(s, l, "attn_output.weight", o->n_embd, q, firni_synth_in(q));
    firni_synth_vector(s, l, "post_attention_norm.weight", o->n_embd, branch, 0.1F * branch);
    firni_synth_vector(s, l, "ffn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "ffn_gate.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_up.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_down.weight", o->n_embd, o->n_ff, firni_synth_in(o->n_ff));
    firni_synth_vector(s, l, "post_ffw_norm.weight", o->n_embd, branch, 0.1F * branch);
}

static void visit_gemma3_layer(firni_synth *s, uint32_t layer)
{
    visit_blocks(s, (int32_t)layer, firni_synth_get_options(s)->head_dim, 1.0F);
}

const firni_synth_arch firni_synth_gemma3 = {
    .name = "gemma3",
    .presets = presets,
    .layer_period = PERIOD,
    .scales_embeddings = true,
    .check = firni_synth_check_attention,
    .keys = put_gemma3_keys,
    .layer = visit_gemma3_layer,
};

/* ---- gemma4 ---- */

static bool has_window(uint32_t layer)
{
    return layer % GEMMA4_PERIOD != GEMMA4_PERIOD - 1;
}

/* Heads without a window are twice as large. */
static uint32_t head_dim_of(const firni_synth_options *o, uint32_t layer)
{
    return has_window(layer) ? o->head_dim : 2 * o->head_dim;
}

/* An eighth of the width, in whole groups of every weight format. */
static uint32_t layer_input_of(const firni_synth_options *o)
{
    const uint32_t n = o->n_embd / 8 / 32 * 32;
    return n > 32 ? n : 32;
}

static firn_status check_gemma4(const firni_synth_options *o, firn_error *err)
{
    const firn_status status = firni_synth_check_attention(o, err);
    if (status == FIRN_OK && o->head_dim > FIRNI_HEAD_DIM_MAX / 2) {
        return firni_fail(err, FIRN_ERR_INVALID, "head-dim is %lu; layers without a window have twice as much, at most "
                          "%u", (unsigned long)o->head_dim, FIRNI_HEAD_DIM_MAX);
    }
    return status;
}

static void put_gemma4_keys(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    uint32_t pattern[FIRNI_LAYERS_MAX];
    for (uint32_t i = 0; i < o->n_layers; i++) {
        pattern[i] = has_window(i);
    }
    firni_synth_put_common(s);
    firni_synth_put_u32(s, "feed_forward_length", o->n_ff);
    firni_synth_put_u32(s, "attention.head_count", o->n_heads);
    firni_synth_put_u32(s, "attention.head_count_kv", o->n_kv_heads);
    firni_synth_put_u32(s, "attention.key_length", 2 * o->head_dim);
    firni_synth_put_u32(s, "attention.value_length", 2 * o->head_dim);
    firni_synth_put_u32(s, "attention.key_length_swa", o->head_dim);
    firni_synth_put_u32(s, "attention.value_length_swa", o->head_dim);
    firni_synth_put_u32(s, "attention.sliding_window", window_of(o));
    firni_synth_put_u32_array(s, "attention.sliding_window_pattern", pattern, o->n_layers);
    firni_synth_put_u32(s, "attention.shared_kv_layers", o->n_layers / 2);
    firni_synth_put_u32(s, "rope.dimension_count", 2 * o->head_dim);
    firni_synth_put_u32(s, "rope.dimension_count_swa", o->head_dim);
    firni_synth_put_f32(s, "rope.freq_base", o->rope_base == 0.0F ? 10000.0F : o->rope_base);
    firni_synth_put_f32(s, "rope.freq_base_swa", 10000.0F);
    firni_synth_put_u32(s, "embedding_length_per_layer_input", layer_input_of(o));
    firni_synth_put_f32(s, "final_logit_softcapping", 30.0F);
}

static void visit_gemma4_layer(firni_synth *s, uint32_t layer)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const int32_t l = (int32_t)layer;
    const uint32_t n_input = layer_input_of(o);
    const uint32_t head_dim = head_dim_of(o, layer);
    const float branch = branch_weight(o);
    visit_blocks(s, l, head_dim, powf((float)head_dim, -0.25F));
    firni_synth_matrix(s, l, "inp_gate.weight", n_input, o->n_embd, firni_synth_in(o->n_embd));
    firni_synth_matrix(s, l, "proj.weight", o->n_embd, n_input, firni_synth_in(n_input));
    firni_synth_vector(s, l, "post_norm.weight", o->n_embd, branch, 0.1F * branch);
    firni_synth_vector(s, l, "layer_output_scale.weight", 1, 1.0F, 0.05F);
}

static void visit_gemma4_ends(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t n_input = layer_input_of(o);
    const uint32_t width = o->n_layers * n_input;
    firni_synth_matrix(s, -1, "per_layer_token_embd.weight", o->n_vocab, width, firni_synth_in(n_input));
    firni_synth_matrix(s, -1, "per_layer_model_proj.weight", width, o->n_embd, 1.0F);
    firni_synth_vector(s, -1, "per_layer_proj_norm.weight", n_input, 1.0F, 0.1F);
}

const firni_synth_arch firni_synth_gemma4 = {
    .name = "gemma4",
    .presets = presets,
    .layer_period = 2 * GEMMA4_PERIOD,
    .scales_embeddings = true,
    .check = check_gemma4,
    .keys = put_gemma4_keys,
    .layer = visit_gemma4_layer,
    .ends = visit_gemma4_ends,
};
