/*
 * Shapes of synthetic models: from a wish like "450M" to layers and widths, and the count of parameters of a shape.
 */
#include "model/synth.h"

/* Shapes that published models of about this size have. Layers are then chosen to meet the count. */
static const struct preset {
    uint64_t n_params_max;
    uint32_t n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
} presets[] = {
    { 2000000, 64, 4, 2, 16, 192, 512 },
    { 30000000, 256, 8, 4, 32, 768, 4096 },
    { 200000000, 512, 8, 4, 64, 1536, 32000 },
    { 900000000, 1024, 16, 8, 64, 6912, 32000 },
    { 2000000000, 2048, 32, 8, 64, 8192, 32000 },
    { 5000000000, 3072, 24, 8, 128, 8192, 32000 },
    { 20000000000, 4096, 32, 8, 128, 14336, 32000 },
    { UINT64_MAX, 8192, 64, 8, 128, 28672, 32000 },
};

/* Attention, SwiGLU and two norms. Biases and head norms of some architectures are left out: a few thousand. */
static uint64_t layer_params(const firni_synth_options *o)
{
    const uint64_t width = o->n_embd;
    const uint64_t q = (uint64_t)o->n_heads * o->head_dim;
    const uint64_t kv = (uint64_t)o->n_kv_heads * o->head_dim;
    return width * (2 * q + 2 * kv) + 3 * width * o->n_ff + 2 * width;
}

/* Embedding, output matrix, final norm. */
static uint64_t end_params(const firni_synth_options *o)
{
    return (uint64_t)o->n_vocab * o->n_embd * (o->is_tied ? 1 : 2) + o->n_embd;
}

void firni_synth_shape(uint64_t n_params, firni_synth_options *out)
{
    const struct preset *p = presets;
    while (n_params > p->n_params_max) {
        p++;
    }
    out->n_embd = p->n_embd;
    out->n_heads = p->n_heads;
    out->n_kv_heads = p->n_kv_heads;
    out->head_dim = p->head_dim;
    out->n_ff = p->n_ff;
    out->n_vocab = p->n_vocab;
    out->n_ctx = 32768;
    /* The nearest whole number of layers, at least one, and no deeper than anything that is really built. */
    const uint64_t ends = end_params(out);
    const uint64_t each = layer_params(out);
    const uint64_t left = n_params > ends ? n_params - ends : 0;
    const uint64_t n_layers = (left + each / 2) / each;
    out->n_layers = n_layers < 1 ? 1 : n_layers > 512 ? 512 : (uint32_t)n_layers;
}

uint64_t firni_synth_n_params(const firni_synth_options *o)
{
    return layer_params(o) * o->n_layers + end_params(o);
}
