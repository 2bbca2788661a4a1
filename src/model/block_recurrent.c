/*
 * What recurrent blocks have in common: the shape of their layers as the keys say it, the weights of the convolution,
 * and the geometry of their caches.
 */
#include <math.h>

#include "base/base_impl.h"
#include "model/block_recurrent.h"

#define STATE_HEADS_MAX 1024u
#define STATE_DIM_MAX 1024u
#define INTERVAL_DEFAULT 4u

uint32_t firni_ssm_channels(const firni_ssm_params *ssm)
{
    return 2 * ssm->n_key_heads * ssm->key_dim + ssm->n_heads * ssm->value_dim;
}

void firni_read_ssm(firni_keys *keys, firni_hparams *hp)
{
    firni_ssm_params *ssm = &hp->ssm;
    ssm->conv_width = firni_key_u32(keys, "ssm.conv_kernel", 1, FIRNI_CONV_WIDTH_MAX, NULL);
    ssm->key_dim = firni_key_u32(keys, "ssm.state_size", 1, STATE_DIM_MAX, NULL);
    ssm->n_heads = firni_key_u32(keys, "ssm.time_step_rank", 1, STATE_HEADS_MAX, NULL);
    ssm->n_key_heads = firni_key_u32(keys, "ssm.group_count", 1, STATE_HEADS_MAX, NULL);
    const uint32_t n_inner = firni_key_u32(keys, "ssm.inner_size", 1, FIRNI_WIDTH_MAX, NULL);
    if (keys->status != FIRN_OK) {
        return;
    }
    ssm->value_dim = n_inner / ssm->n_heads;
    if (n_inner % ssm->n_heads != 0 || ssm->value_dim > STATE_DIM_MAX || ssm->n_heads % ssm->n_key_heads != 0) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT,
                                  "%s: keys '%s.ssm.*': %lu values in %lu heads over %lu groups do not divide evenly "
                                  "into heads of at most %u",
                                  firni_gguf_path(keys->gguf), keys->architecture, (unsigned long)n_inner,
                                  (unsigned long)ssm->n_heads, (unsigned long)ssm->n_key_heads, STATE_DIM_MAX);
    }
}

void firni_read_recurrent_layers(firni_keys *keys, firni_hparams *hp)
{
    static const uint32_t default_interval = INTERVAL_DEFAULT;
    uint32_t is_recurrent[FIRNI_LAYERS_MAX];
    if (!firni_key_u32_layers(keys, "attention.recurrent_layers", 0, 1, hp->n_layers, is_recurrent)) {
        const uint32_t interval =
            firni_key_u32(keys, "full_attention_interval", 1, FIRNI_LAYERS_MAX, &default_interval);
        for (uint32_t i = 0; i < hp->n_layers; i++) {
            is_recurrent[i] = (i + 1) % interval != 0;
        }
    }
    for (uint32_t i = 0; i < hp->n_layers && keys->status == FIRN_OK; i++) {
        if (is_recurrent[i]) {
            firni_layer_shape *layer = &hp->layers[i];
            layer->n_heads = layer->n_kv_heads = layer->head_dim = layer->value_dim = 0;
            layer->is_recurrent = true;
        }
    }
}

/* Some converters write one number a head as rows of one. */
firn_status firni_load_rows(firni_loader *loader, const char *name, uint32_t n_rows, uint32_t n_cols,
                            const float **out, firn_error *err)
{
    firni_row_table table;
    *out = NULL;
    const firn_status status = firni_load_row_table(loader, name, n_rows, n_cols, &table, err);
    if (status != FIRN_OK) {
        return status;
    }
    float *rows = firni_weights_alloc(loader->weights, (size_t)n_rows * n_cols * sizeof *rows);
    if (rows == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", firni_gguf_path(loader->gguf),
                          name);
    }
    for (size_t r = 0; r < n_rows; r++) {
        firni_weight_row_to_f32(table.type, table.rows + r * table.row_bytes, n_cols, rows + r * n_cols);
    }
    *out = rows;
    return FIRN_OK;
}

firn_status firni_load_conv(firni_loader *loader, const firni_hparams *hp, uint32_t layer, const float **out,
                            firn_error *err)
{
    const uint32_t width = hp->ssm.conv_width;
    const uint32_t n_channels = firni_ssm_channels(&hp->ssm);
    char name[FIRNI_TENSOR_NAME_BYTES];
    firni_row_table table;
    *out = NULL;
    firni_layer_tensor_name(name, layer, "ssm_conv1d.weight");
    const firn_status status = firni_load_row_table(loader, name, n_channels, width, &table, err);
    if (status != FIRN_OK) {
        return status;
    }
    float *conv = firni_weights_alloc(loader->weights, (size_t)width * n_channels * sizeof *conv);
    if (conv == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", firni_gguf_path(loader->gguf),
                          name);
    }
    for (uint32_t c = 0; c < n_channels; c++) {
        float row[FIRNI_CONV_WIDTH_MAX];
        firni_weight_row_to_f32(table.type, table.rows + c * table.row_bytes, width, row);
        for (uint32_t j = 0; j < width; j++) {
            conv[(size_t)j * n_channels + c] = row[j];
        }
    }
    *out = conv;
    return FIRN_OK;
}

void firni_recurrent_cache_options(const firni_hparams *hp, const char *layout, firn_cache_options *out)
{
    *out = (firn_cache_options){
        .layout = layout,
        .n_kv_heads = hp->ssm.n_key_heads,
        .head_dim = hp->ssm.key_dim,
        .value_dim = hp->ssm.value_dim,
        .n_state_heads = hp->ssm.n_heads,
        .conv_width = hp->ssm.conv_width,
    };
}

/* In double precision, like the rotations: a handful for each token and head. */
double firni_softplus(double x)
{
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
