/*
 * Shapes of synthetic models: from a wish like "450M" to layers and widths.
 */
#include "model/synth_impl.h"

void firni_synth_shape(uint64_t n_params, firni_synth_options *out)
{
    const firni_synth_arch *arch = firni_synth_arch_find(out->architecture);
    /* An architecture that is not known is refused by whoever writes; a shape costs nothing. */
    arch = arch != NULL ? arch : &firni_synth_llama;
    const firni_synth_preset *p = arch->presets;
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
    /* The nearest whole number of periods, at least one, and no deeper than anything that is really built. What a
     * period adds is read off two models. */
    firni_synth_options probe = *out;
    probe.architecture = arch->name;
    probe.n_layers = arch->layer_period;
    const uint64_t one = firni_synth_n_params(&probe);
    probe.n_layers = 2 * arch->layer_period;
    const uint64_t each = firni_synth_n_params(&probe) - one;
    const uint64_t ends = one - each;
    const uint64_t left = n_params > ends ? n_params - ends : 0;
    const uint64_t n_max = 512 / arch->layer_period;
    const uint64_t n = (left + each / 2) / each;
    out->n_layers = (uint32_t)(n < 1 ? 1 : n > n_max ? n_max : n) * arch->layer_period;
}
