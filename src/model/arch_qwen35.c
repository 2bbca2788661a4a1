/*
 * qwen35: Qwen3.5 dense models: three layers of gated DeltaNet to one of full attention, each followed by SwiGLU. Attention
 * has an RMS norm on each query and key head, rotates a part of each head, and multiplies its output by a gate that comes
 * with the queries. State head h reads key head h modulo their number, which is how the files order the heads.
 */
#include "base/base_impl.h"
#include "model/block_recurrent.h"

typedef struct qwen35_layer {
    bool is_recurrent;
    firni_attention attention;
    firni_gated_delta delta;
    firni_ffn ffn;
} qwen35_layer;

/* Text has one position for all axes, so the sections matter only for pairs that none of them reaches. */
static void read_sections(firni_keys *keys, firni_hparams *hp)
{
    uint32_t sections[4];
    if (firni_key_u32_layers(keys, "rope.dimension_sections", 0, FIRNI_HEAD_DIM_MAX, 4, sections)) {
        for (uint32_t i = 0; i < 4; i++) {
            hp->ropes[0].sections[i] = sections[i];
        }
    }
}

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_attention(keys, hp);
    if (keys->status == FIRN_OK && hp->value_dim != hp->head_dim) {
        firni_key_fail(keys, "attention.value_length", "differs from key_length, but gates have the size of both");
    }
    firni_read_ffn(keys, hp);
    firni_read_no_experts(keys);
    firni_read_rope(keys, hp, hp->head_dim);
    read_sections(keys, hp);
    firni_read_ssm(keys, hp);
    firni_read_recurrent_layers(keys, hp);
}

static void cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    if (hp->layers[layer].is_recurrent) {
        firni_recurrent_cache_options(hp, "ssm:gated-delta", out);
        out->keys_cycle = true;
    } else {
        firni_dense_cache_options(hp, layer, out);
    }
}

static firn_status load_layer(firni_loader *loader, const firni_hparams *hp, uint32_t index, qwen35_layer *layer,
                              firn_error *err)
{
    static const firni_attention_traits attention = { .has_qk_norm = true, .has_gate = true };
    static const firni_gated_delta_traits delta = { .gates_by_key_head = false };
    *layer = (qwen35_layer){ .is_recurrent = hp->layers[index].is_recurrent };
    const firn_status status = layer->is_recurrent
                                   ? firni_gated_delta_load(loader, hp, index, &delta, &layer->delta, err)
                                   : firni_attention_load(loader, hp, index, &attention, &layer->attention, err);
    return status != FIRN_OK
               ? status
               : firni_ffn_load_after(loader, hp, index, "post_attention_norm.weight", &layer->ffn, err);
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    *layers = NULL;
    qwen35_layer *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firn_status status = load_layer(loader, hp, i, &array[i], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

static void forward_layer(firni_step *step, const void *layers, uint32_t index)
{
    const qwen35_layer *layer = (const qwen35_layer *)layers + index;
    if (layer->is_recurrent) {
        firni_gated_delta_forward(step, &layer->delta);
    } else {
        firni_attention_forward(step, &layer->attention);
    }
    firni_ffn_forward(step, &layer->ffn);
}

/* Queries come with gates of their size, which are moved behind the values. */
static void widths(const firni_hparams *hp, firni_widths *out)
{
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firni_layer_shape *l = &hp->layers[i];
        const uint32_t wide = 3 * l->n_heads * l->head_dim + l->n_kv_heads * (l->head_dim + l->value_dim);
        out->wide = out->wide > wide ? out->wide : wide;
    }
    firni_gated_delta_widths(hp, out);
}

const firni_arch firni_arch_qwen35 = {
    .name = "qwen35",
    .rope_interleaved = false,
    .read = read,
    .cache_options = cache_options,
    .load = load,
    .widths = widths,
    .forward_layer = forward_layer,
};
