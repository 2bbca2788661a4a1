/*
 * mamba2: Mamba-2 models, of nothing but recurrent layers: no attention, no positions, no feed-forward blocks. What a
 * row holds does not grow with its tokens.
 */
#include "base/base_impl.h"
#include "model/block_recurrent.h"

static void read(firni_keys *keys, firni_hparams *hp)
{
    firni_read_common(keys, hp);
    firni_read_ssm(keys, hp);
    firni_read_no_experts(keys);
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i].is_recurrent = true;
    }
}

static void cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    (void)layer;
    firni_recurrent_cache_options(hp, "ssm:mamba2", out);
}

static firn_status load(firni_loader *loader, const firni_hparams *hp, const void **layers, firn_error *err)
{
    *layers = NULL;
    firni_mamba2 *array = firni_weights_alloc(loader->weights, hp->n_layers * sizeof *array);
    if (array == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %lu layers", (unsigned long)hp->n_layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const firn_status status = firni_mamba2_load(loader, hp, i, &array[i], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    *layers = array;
    return FIRN_OK;
}

static void forward_layer(firni_step *step, const void *layers, uint32_t layer)
{
    firni_mamba2_forward(step, (const firni_mamba2 *)layers + layer);
}

const firni_arch firni_arch_mamba2 = {
    .name = "mamba2",
    .read = read,
    .cache_options = cache_options,
    .load = load,
    .widths = firni_mamba2_widths,
    .forward_layer = forward_layer,
};
