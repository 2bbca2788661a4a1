/*
 * gemma4: Gemma 4 text models. As gemma3 (arch_gemma3.c), and
 *
 *   - heads of layers with a window have a size, and may have a number, of their own;
 *   - the last layers hold no keys and values: they read those of the last earlier layer of their kind;
 *   - values are normed, without a weight, and where a file has no matrix for them they are the keys;
 *   - per-layer inputs (block_layer_input.c), and a factor on what leaves a layer;
 *   - scores are not scaled, since queries and keys are normed; logits are capped.
 *
 * Source: the published model code of the family.
 */
#include <math.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

typedef struct gemma4_layer {
    firni_attention attention;
    firni_ffn ffn;
    firni_layer_input input;
    float out_scale;
} gemma4_layer;

typedef struct gemma4 {
    firni_layer_inputs inputs;
    gemma4_layer layers[];
} gemma4;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Sizes of heads by kind of layer, numbers of heads by layer. */
static void read_heads(firni_keys *keys, firni_hparams *hp)
{
    uint32_t n_heads[FIRNI_LAYERS_MAX];
    uint32_t n_kv_heads[FIRNI_LAYERS_MAX];
    hp->head_dim = firni_key_u32(keys, "attention.key_length", 1, FIRNI_HEAD_DIM_MAX, NULL);
    hp->value_dim = firni_key_u32(keys, "attention.value_length", 1, FIRNI_HEAD_DIM_MAX, &hp->head_dim);
    const uint32_t key_swa = firni_key_u32(keys, "attention.key_length_swa", 1, FIRNI_HEAD_DIM_MAX, &hp->head_dim);
    const uint32_t value_swa = firni_key_u32(keys, "attention.value_length_swa", 1, FIRNI_HEAD_DIM_MAX, &key_swa);
    const bool has_both =
        firni_key_u32_layers(keys, "attention.head_count", 1, FIRNI_HEADS_MAX, hp->n_layers, n_heads) &&
        firni_key_u32_layers(keys, "attention.head_count_kv", 1, FIRNI_HEADS_MAX, hp->n_layers, n_kv_heads);
    if (!has_both) {
        firni_key_fail(keys, "attention.head_count", "or head_count_kv is missing");
        return;
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        firni_layer_shape *layer = &hp->layers[i];
        layer->n_heads = n_heads[i];
        layer->n_kv_heads = n_kv_heads[i];
        layer->head_dim = layer->window > 0 ? key_swa : hp->head_dim;
        layer->value_dim = layer->window > 0 ? value_swa : hp->value_dim;
        if (n_heads[i] % n_kv_heads[i] != 0) {
            firni_key_fail(keys, "attention.head_count", "is not a multiple of head_count_kv in some layer");
        }
    }
    hp->n_heads = n_heads[0];
    hp->n_kv_heads = n_kv_heads[0];
}

/* Layers alternate in kind, so the last earlier one of a kind is nearly always the last or the last but one that
 * stores. It is looked for all the same: nothing in the format promises that. */
static void share_caches(firni_keys *keys, firni_hparams *hp)
{
    static const char key[] = "attention.shared_kv_layers";
    const uint32_t none = 0;
    const uint32_t n_shared = firni_key_u32(keys, key, 0, hp->n_layers > 0 ? hp->n_layers - 1 : 0, &none);
    if (keys->status != FIRN_OK) {
        return;
    }
    hp->n_caches = hp->n_layers - n_shared;
    for (uint32_t i = hp->n_caches; i < hp->n_layers; i++) {
        firni_layer_shape *layer = &hp->layers[i];
        uint32_t donor = hp->n_caches;
        while (donor > 0 && hp->layers[donor - 1].window != layer->window) {
            donor--;
        }
        if (donor == 0) {
            firni_key_fail(keys, key, "leaves a kind of layer without one that stores");
            return;
        }
        if (hp->layers[donor - 1].n_kv_heads != layer->n_kv_heads) {
            firni_key_fail(keys, "attention.head_count_kv", "differs between layers that share their keys and values");
            return;
        }
        layer->cache = donor - 1;
    }
}

static void read_ffn(firni_keys *keys, firni_hparams *hp)
{
    uint32_t n_ff[FIRNI_LAYERS_MAX];
    if (!firni_key_u32_layers(keys, "feed_forward_length", 1, FIRNI_FF_MAX, hp->n_layers, n_ff)) {
        firni_key_fail(keys, "feed_forward_length", "is missing");
        return;
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i].n_ff = n_ff[i];
    }
    hp->n_ff = n_ff[0];
}

static void read(firni_keys *keys, firni_hparams *hp)
{
    const uint32_t none = 0;
    firni_read_common(keys, hp);
    firni_read_windows(keys, hp, 0, true);
    read_heads(keys, hp);
    share_caches(keys, hp);
    read_ffn(keys, hp);
    firni_read_no_experts(keys);
    firni_read_rope(keys, hp, hp->head_dim);
    uint32_t head_dim_swa = hp->head_dim;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        head_dim_swa = hp->layers[i].window > 0 ? hp->layers[i].head_dim : head_dim_swa;
    }
    firni_read_window_rope(keys, hp, head_dim_swa, 10000.0F);
    hp->attention_scale = firni_key_f32(keys, "attention.scale", 0.0F, 1e3F, 0.0F);
    if (hp->attention_scale == 0.0F) {
        hp->attention_scale = 1.0F;
    }
    hp->n_layer_input = firni_key_u32(keys, "embedding_length_per_layer_input", 0, FIRNI_LAYER_INPUT_MAX, &none);
    hp->logit_softcap = firni_key_f32(keys, "final_logit_softcapping", 0.0F, 1e6F, 0.0F);
    hp->embedding_scale = (float)sqrt((double)hp->n_embd);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static firn_status load_post_norms(firni_loader *loader, const firni_hparams *hp, uint32_t layer, gemma4_layer *out,
                                   firn_error *err)
{
    char name[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(name, layer, "post_attention_norm.weight");
    firn_status status = firni_load_vector(loader, name, hp->n_embd, &out->attention.post_norm, err);
    if (status == FIRN_OK) {
        firni_layer_tensor_name(name, layer, "post_ffw_norm.weight");
        status = firni_load_vector(loader, name, hp->n_embd, &out->ffn.post_norm, err);
    }
    return status;
}

static firn_status load_out_scale(firni_loader *loader, uint32_t layer, float *out, firn_error *err)
{
    char name[FIRNI_TENSOR_NAME_BYTES];
    const float *scale = NULL;
    *out = 1.0F;
    firni_layer_tensor_name(name, layer, "layer_output_scale.weight");
    if (!firni_loader_has(loader, name)) {
        return FIRN_OK;
    }
    const firn_status status = firni_load_vector(loader, name, 1, &scale, err);
    if (status == FIRN_OK) {
        *out = scale[0];
    }
    return status;
}

static firn_status load_layer(firni_loader *loader, const firni_hparams *hp, uint32_t layer, gemma4_layer *out,
                              firn_error *err)
{
    const firni_attention_traits traits = {
        .has_qk_norm = true,
        .shares_state = firni_hparams_storing_layer(hp, hp->layers[layer].cache) != layer,
        .may_lack_values = true,
        .norms_values = true,
    };
    firn_status status = firni_attention_load(loader, hp, layer, &traits, &out->attention, err);
    if (status == FIRN_OK) {
        status = firni_ffn_load(loader, hp, layer, &out->ffn, err);
    }
    if (status == FIRN_OK) {
        status = load_post_norms(loader, hp, layer, out, err);
    }
    if (status == FIRN_OK && hp->n_layer_input > 0) {
        status = firni_layer_input_load(loader, hp, layer, &out->input, err);
    }
    if (status == FIRN_OK) {
        status = load_out_scale(loader, layer, &out->out_scale, err);
    }
    out->attention.scale = hp->attention_scale;
    out->ffn.is_gelu = true;
    return status;
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    *layers = NULL;
    gemma4 *model = firni_weights_alloc(loader->weights, sizeof *model + hp->n_layers * sizeof model->layers[0]);
    if (model == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    firn_status status =
        hp->n_layer_input > 0 ? firni_layer_inputs_load(loader, hp, &model->inputs, err) : FIRN_OK;
    for (uint32_t i = 0; i < hp->n_layers && status == FIRN_OK; i++) {
        status = load_layer(loader, hp, i, &model->layers[i], err);
    }
    *layers = status == FIRN_OK ? model : NULL;
    return status;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void begin(firni_step *step, const void *layers)
{
    const gemma4 *model = layers;
    if (step->hparams->n_layer_input > 0) {
        firni_layer_inputs_begin(step, &model->inputs);
    }
}

static void scale_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const float *scale = ctx;
    const uint32_t n = step->hparams->n_embd;
    float *x = step->x + (size_t)token * n;
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= *scale;
    }
}

static void forward_layer(firni_step *step, const void *layers, uint32_t layer)
{
    const gemma4 *model = layers;
    const gemma4_layer *l = &model->layers[layer];
    firni_attention_forward(step, &l->attention);
    firni_ffn_forward(step, &l->ffn);
    if (step->hparams->n_layer_input > 0) {
        firni_layer_input_forward(step, &l->input);
    }
    if (l->out_scale != 1.0F) {
        firni_step_each_token(step, scale_token, &l->out_scale);
    }
}

const firni_arch firni_arch_gemma4 = {
    .name = "gemma4",
    .rope_interleaved = false,
    .read = read,
    .cache_options = firni_dense_cache_options,
    .load = load,
    .widths = firni_layer_inputs_widths,
    .extra_bytes = firni_layer_inputs_bytes,
    .begin = begin,
    .forward_layer = forward_layer,
};
