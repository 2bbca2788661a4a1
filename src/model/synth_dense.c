/*
 * Synthetic models of the dense family: llama, qwen2 and qwen3.
 *
 * Owns their keys and tensors, and what other families with attention share of both.
 */
#include <math.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/hparams.h"
#include "model/synth_impl.h"

const firni_synth_preset firni_synth_dense_presets[] = {
    { 2000000, 64, 4, 2, 16, 192, 512 },
    { 30000000, 256, 8, 4, 32, 768, 4096 },
    { 200000000, 512, 8, 4, 64, 1536, 32000 },
    { 900000000, 1024, 16, 8, 64, 6912, 32000 },
    { 2000000000, 2048, 32, 8, 64, 8192, 32000 },
    { 5000000000, 3072, 24, 8, 128, 8192, 32000 },
    { 20000000000, 4096, 32, 8, 128, 14336, 32000 },
    { UINT64_MAX, 8192, 64, 8, 128, 28672, 32000 },
};

firn_status firni_synth_check_attention(const firni_synth_options *o, firn_error *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } limits[] = {
        { "heads", o->n_heads, FIRNI_HEADS_MAX },
        { "kv-heads", o->n_kv_heads, FIRNI_HEADS_MAX },
        { "head-dim", o->head_dim, FIRNI_HEAD_DIM_MAX },
        { "ffn", o->n_ff, FIRNI_FF_MAX },
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].value == 0 || limits[i].value > limits[i].max) {
            return firni_fail(err, FIRN_ERR_INVALID, "%s is %lu, outside 1 to %lu", limits[i].name,
                              (unsigned long)limits[i].value, (unsigned long)limits[i].max);
        }
    }
    if (o->n_heads % o->n_kv_heads != 0 || o->head_dim % 2 != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "heads must be a multiple of kv-heads, and head-dim even");
    }
    return FIRN_OK;
}

void firni_synth_put_attention(firni_synth *s)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    firni_synth_put_u32(s, "feed_forward_length", o->n_ff);
    firni_synth_put_u32(s, "attention.head_count", o->n_heads);
    firni_synth_put_u32(s, "attention.head_count_kv", o->n_kv_heads);
    firni_synth_put_u32(s, "attention.key_length", o->head_dim);
    firni_synth_put_u32(s, "attention.value_length", o->head_dim);
    firni_synth_put_u32(s, "rope.dimension_count", o->head_dim);
    firni_synth_put_f32(s, "rope.freq_base", o->rope_base == 0.0F ? 10000.0F : o->rope_base);
}

static void put_keys(firni_synth *s)
{
    firni_synth_put_common(s);
    firni_synth_put_attention(s);
}

static void visit_layer(firni_synth *s, uint32_t layer, bool has_bias, bool has_qk_norm)
{
    const firni_synth_options *o = firni_synth_get_options(s);
    const uint32_t q = o->n_heads * o->head_dim;
    const uint32_t kv = o->n_kv_heads * o->head_dim;
    const float in = firni_synth_in(o->n_embd);
    const int32_t l = (int32_t)layer;
    firni_synth_vector(s, l, "attn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "attn_q.weight", q, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_k.weight", kv, o->n_embd, in);
    firni_synth_matrix(s, l, "attn_v.weight", kv, o->n_embd, in);
    if (has_bias) {
        firni_synth_vector(s, l, "attn_q.bias", q, 0.0F, 0.2F);
        firni_synth_vector(s, l, "attn_k.bias", kv, 0.0F, 0.2F);
        firni_synth_vector(s, l, "attn_v.bias", kv, 0.0F, 0.2F);
    }
    if (has_qk_norm) {
        firni_synth_vector(s, l, "attn_q_norm.weight", o->head_dim, 1.0F, 0.1F);
        firni_synth_vector(s, l, "attn_k_norm.weight", o->head_dim, 1.0F, 0.1F);
    }
    firni_synth_matrix(s, l, "attn_output.weight", o->n_embd, q, firni_synth_residual(o, q));
    firni_synth_vector(s, l, "ffn_norm.weight", o->n_embd, 1.0F, 0.1F);
    firni_synth_matrix(s, l, "ffn_gate.weight", o->n_ff, o->n_embd, in);
    firni_synth_matrix(s, l, "ffn_up.weight", o->n_ff, o->n_embd, in);
    /* A gated product is about half as large as its factors. */
    firni_synth_matrix(s, l, "ffn_down.weight", o->n_embd, o->n_ff, 2.0F * firni_synth_residual(o, o->n_ff));
}

static void visit_llama_layer(firni_synth *s, uint32_t layer)
{
    visit_layer(s, layer, false, false);
}

static void visit_qwen2_layer(firni_synth *s, uint32_t layer)
{
    visit_layer(s, layer, true, false);
}

static void visit_qwen3_layer(firni_synth *s, uint32_t layer)
{
    visit_layer(s, layer, false, true);
}

#define DENSE(arch, layer_function)                                                                                   \
    {                                                                                                                 \
        .name = arch, .presets = firni_synth_dense_presets, .layer_period = 1, .check = firni_synth_check_attention,  \
        .keys = put_keys, .layer = layer_function,                                                                    \
    }

const firni_synth_arch firni_synth_llama = DENSE("llama", visit_llama_layer);
const firni_synth_arch firni_synth_qwen2 = DENSE("qwen2", visit_qwen2_layer);
const firni_synth_arch firni_synth_qwen3 = DENSE("qwen3", visit_qwen3_layer);
