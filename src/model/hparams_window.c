/*
 * Reads what layers with a sliding window have beside the others: which they are, what they see, how they rotate.
 *
 * Files say which layers have a window in one of three ways: an array with one flag for each layer, the length of a
 * period whose last layer sees everything, or nothing at all, for the period that the architecture is known for.
 */
#include "base/base_impl.h"
#include "model/hparams.h"

#define WINDOW_MAX (1u << 30)

/* The flags of all layers from an array; false when the file has none. */
static bool read_flags(firni_keys *keys, const firni_hparams *hp, uint32_t *has_window)
{
    char key[FIRNI_KEY_BYTES];
    firni_key_name(keys, "attention.sliding_window_pattern", key);
    const firni_gguf_value *value = firni_gguf_find(keys->gguf, key);
    return value != NULL && value->is_array &&
           firni_key_u32_layers(keys, "attention.sliding_window_pattern", 0, 1, hp->n_layers, has_window);
}

void firni_read_windows(firni_keys *keys, firni_hparams *hp, uint32_t period, bool is_last_full)
{
    uint32_t has_window[FIRNI_LAYERS_MAX];
    const uint32_t none = 0;
    const uint32_t window = firni_key_u32(keys, "attention.sliding_window", 0, WINDOW_MAX, &none);
    if (keys->status != FIRN_OK || window == 0) {
        return;
    }
    if (!read_flags(keys, hp, has_window) && keys->status == FIRN_OK) {
        const uint32_t told = firni_key_u32(keys, "attention.sliding_window_pattern", 0, FIRNI_LAYERS_MAX, &none);
        period = told > 0 ? told : period;
        if (period == 0) {
            firni_key_fail(keys, "attention.sliding_window_pattern", "is missing");
            return;
        }
        for (uint32_t i = 0; i < hp->n_layers; i++) {
            has_window[i] = i % period != (is_last_full ? period - 1 : 0);
        }
    }
    for (uint32_t i = 0; i < hp->n_layers && keys->status == FIRN_OK; i++) {
        hp->layers[i].window = has_window[i] ? window : 0;
    }
}

void firni_read_window_rope(firni_keys *keys, firni_hparams *hp, uint32_t n_dims_default, float base_default)
{
    firni_rope_params *rope = &hp->ropes[1];
    *rope = (firni_rope_params){ .scaling = FIRNI_ROPE_SCALING_NONE, .factor = 1.0F };
    rope->n_dims = firni_key_u32(keys, "rope.dimension_count_swa", 2, n_dims_default, &n_dims_default);
    rope->base = firni_key_f32(keys, "rope.freq_base_swa", 1.0001F, 1e12F, base_default);
    if (keys->status == FIRN_OK && rope->n_dims % 2 != 0) {
        firni_key_fail(keys, "rope.dimension_count_swa", "is an odd number");
    }
    hp->n_ropes = 2;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        hp->layers[i].rope = hp->layers[i].window > 0 ? 1 : 0;
    }
}
