/*
 * Rotary position tables: plain, linear, Llama 3 and YaRN frequencies, and the angles of a position.
 *
 * Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071, section 3: the ramp over "NTK by parts" and the
 * attention temperature 0.1 ln(s) + 1, here with the ext and attn factors that GGUF files carry); Llama 3.1's
 * published frequency smoothing.
 */
#include "model/rope.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/base_impl.h"

static const double two_pi = 6.283185307179586476925286766559;

/* The dimension whose wave turns `rotations` times within the original context (YaRN, equation 17 solved for d). */
static double yarn_dimension(const firni_rope_params *p, double rotations)
{
    return p->n_dims * log(p->original_context / (rotations * two_pi)) / (2.0 * log((double)p->base));
}

/* Share of the unscaled frequency that pair i keeps: 1 for fast waves, 0 for slow ones. */
static double yarn_keep(const firni_rope_params *p, uint32_t pair)
{
    const double low = fmax(0.0, floor(yarn_dimension(p, (double)p->beta_fast)));
    const double high = fmin(p->n_dims - 1.0, ceil(yarn_dimension(p, (double)p->beta_slow)));
    const double ramp = (pair - low) / fmax(0.001, high - low);
    return 1.0 - fmin(1.0, fmax(0.0, ramp));
}

/* Llama 3.1: waves longer than original/low are slowed by factor, shorter than original/high are kept. */
static double llama3_divisor(const firni_rope_params *p, double frequency)
{
    const double turns = p->original_context * frequency / two_pi;
    if (turns < (double)p->low_freq_factor) {
        return (double)p->factor;
    }
    if (turns > (double)p->high_freq_factor) {
        return 1.0;
    }
    const double smooth = (turns - (double)p->low_freq_factor) / (double)(p->high_freq_factor - p->low_freq_factor);
    return 1.0 / ((1.0 - smooth) / (double)p->factor + smooth);
}

/* Frequency of a pair after scaling; `frequency` is base^(-2 pair / n_dims), already over the file's divisor. */
static double scaled_frequency(const firni_rope_params *p, uint32_t pair, double frequency)
{
    switch (p->scaling) {
    case FIRNI_ROPE_SCALING_LINEAR: return frequency / (double)p->factor;
    case FIRNI_ROPE_SCALING_LLAMA3: return frequency / llama3_divisor(p, frequency);
    case FIRNI_ROPE_SCALING_YARN: {
        const double keep = yarn_keep(p, pair) * (double)p->ext_factor;
        return frequency / (double)p->factor * (1.0 - keep) + frequency * keep;
    }
    case FIRNI_ROPE_SCALING_NONE: break;
    }
    return frequency;
}

/* Interleaved multimodal positions: pairs take turns between time, height and width as far as each section reaches. Of
 * a text token these three are its position; a pair that no section reaches belongs to the fourth axis, at 0. */
static bool pair_turns(const firni_rope_params *p, uint32_t pair)
{
    const uint32_t n_all = p->sections[0] + p->sections[1] + p->sections[2] + p->sections[3];
    const uint32_t sector = n_all > 0 ? pair % n_all : 0;
    return n_all == 0 || sector < 3 * p->sections[sector % 3];
}

firn_status firni_rope_init(firni_rope *rope, const firni_rope_params *params, const float *factors,
                            const firn_env *env, firn_error *err)
{
    assert(params->n_dims >= 2 && params->n_dims % 2 == 0 && params->factor > 0.0F);
    *rope = (firni_rope){ .n_dims = params->n_dims, .interleaved = params->interleaved, .magnitude = 1.0, .env = env };
    rope->frequencies = firni_calloc(env, params->n_dims / 2, sizeof *rope->frequencies);
    if (rope->frequencies == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for rope frequencies");
    }
    for (uint32_t i = 0; i < params->n_dims / 2; i++) {
        double frequency = pow((double)params->base, -2.0 * i / params->n_dims);
        if (factors != NULL) {
            frequency /= (double)factors[i];
        }
        rope->frequencies[i] = pair_turns(params, i) ? scaled_frequency(params, i, frequency) : 0.0;
    }
    if (params->scaling == FIRNI_ROPE_SCALING_YARN) {
        rope->magnitude = (double)params->attn_factor;
        if (params->ext_factor != 0.0F) {
            rope->magnitude *= 1.0 + 0.1 * log((double)params->factor);
        }
    }
    return FIRN_OK;
}

void firni_rope_deinit(firni_rope *rope)
{
    firni_free(rope->env, rope->frequencies);
    rope->frequencies = NULL;
}

/* Each position from scratch: turning the previous position on by one step would be cheaper, but would make a token's
 * bits depend on where its chunk began. Double precision keeps the angle of token one million exact to 1e-10. */
void firni_rope_angles(const firni_rope *rope, uint32_t position, float *cos_sin)
{
    for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
        const double angle = position * rope->frequencies[i];
        cos_sin[2 * i] = (float)(cos(angle) * rope->magnitude);
        cos_sin[2 * i + 1] = (float)(sin(angle) * rope->magnitude);
    }
}

/* Nine digits identify an f32 exactly. */
void firni_rope_describe(const firni_rope_params *p, char *out, size_t out_bytes)
{
    static const char *const names[] = { "none", "linear", "llama3", "yarn" };
    const int n = snprintf(out, out_bytes, "%s dims=%lu base=%.9g scaling=%s",
                           p->interleaved ? "interleaved" : "half-split", (unsigned long)p->n_dims, (double)p->base,
                           names[p->scaling]);
    assert(n > 0 && (size_t)n < out_bytes);
    int used = n;
    if (p->sections[0] + p->sections[1] + p->sections[2] + p->sections[3] > 0) {
        used += snprintf(out + used, out_bytes - (size_t)used, " sections=%lu/%lu/%lu/%lu",
                         (unsigned long)p->sections[0], (unsigned long)p->sections[1], (unsigned long)p->sections[2],
                         (unsigned long)p->sections[3]);
        assert((size_t)used < out_bytes);
    }
    if (p->scaling != FIRNI_ROPE_SCALING_NONE) {
        const int more = snprintf(out + used, out_bytes - (size_t)used,
                                  " factor=%.9g original=%lu low=%.9g high=%.9g ext=%.9g attn=%.9g beta=%.9g/%.9g",
                                  (double)p->factor, (unsigned long)p->original_context, (double)p->low_freq_factor,
                                  (double)p->high_freq_factor, (double)p->ext_factor, (double)p->attn_factor,
                                  (double)p->beta_fast, (double)p->beta_slow);
        assert(more > 0 && (size_t)more < out_bytes - (size_t)used);
        (void)more;
    }
}
