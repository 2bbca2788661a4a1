/*
 * The Mamba-2 block: norm, one projection for everything, convolution and state in the layer's cache, gate, output norm
 * over groups.
 *
 *      a token's part of `wide`:
 *      | output gate z | x B C: channels of the convolution | dt | decay |
 *
 * Owns no state. The outputs take the place of the values they came from, and what a token adds to the state, that of
 * dt. Source: arXiv 2405.21060, section 7.
 */
#include <assert.h>
#include <math.h>

#include "base/base_impl.h"
#include "model/block_recurrent.h"

/* Offsets within a token's part of `wide`; the gate is at 0, values are the first channels. */
typedef struct mamba2_places {
    uint32_t n_out;
    uint32_t channels;
    uint32_t dt;
    uint32_t decay;
    uint32_t stride;
} mamba2_places;

static mamba2_places places_of(const firni_ssm_params *ssm)
{
    const uint32_t n_out = ssm->n_heads * ssm->value_dim;
    const uint32_t dt = n_out + firni_ssm_channels(ssm);
    return (mamba2_places){
        .n_out = n_out,
        .channels = n_out,
        .dt = dt,
        .decay = dt + ssm->n_heads,
        .stride = dt + 2 * ssm->n_heads,
    };
}

void firni_mamba2_widths(const firni_hparams *hp, firni_widths *widths)
{
    const mamba2_places places = places_of(&hp->ssm);
    widths->wide = widths->wide > places.stride ? widths->wide : places.stride;
    widths->h = widths->h > places.n_out ? widths->h : places.n_out;
    widths->inputs_max = widths->inputs_max > places.n_out ? widths->inputs_max : places.n_out;
}

firn_status firni_mamba2_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_mamba2 *out,
                              firn_error *err)
{
    const firni_ssm_params *ssm = &hp->ssm;
    const mamba2_places places = places_of(ssm);
    const struct {
        const char *suffix;
        uint32_t n_rows;
        uint32_t n_cols;
        const float **vector;
    } vectors[] = {
        { "attn_norm.weight", 1, hp->n_embd, &out->norm },
        { "ssm_conv1d.bias", 1, firni_ssm_channels(ssm), &out->conv_bias },
        { "ssm_dt.bias", 1, ssm->n_heads, &out->dt_bias },
        { "ssm_a", ssm->n_heads, 1, &out->a },
        { "ssm_d", ssm->n_heads, 1, &out->skip },
        { "ssm_norm.weight", ssm->n_key_heads, places.n_out / ssm->n_key_heads, &out->out_norm },
    };
    char name[FIRNI_TENSOR_NAME_BYTES];
    *out = (firni_mamba2){ .norm = NULL };
    firn_status status = FIRN_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0] && status == FIRN_OK; i++) {
        firni_layer_tensor_name(name, layer, vectors[i].suffix);
        status = firni_load_rows(loader, name, vectors[i].n_rows, vectors[i].n_cols, vectors[i].vector, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_conv(loader, hp, layer, &out->conv, err);
    }
    if (status == FIRN_OK) {
        firni_layer_tensor_name(name, layer, "ssm_in");
        const firni_stack_part in = { .name = name, .n_rows = places.decay };
        status = firni_load_projection(loader, &in, 1, hp->n_embd, &out->in, err);
    }
    if (status == FIRN_OK) {
        firni_layer_tensor_name(name, layer, "ssm_out");
        const firni_stack_part output = { .name = name, .n_rows = hp->n_embd };
        status = firni_load_projection(loader, &output, 1, places.n_out, &out->out, err);
    }
    return status;
}

/* strength = softplus(dt + bias), decay = exp(strength a) */
static void gates_of_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_mamba2 *block = ctx;
    const mamba2_places places = places_of(&step->hparams->ssm);
    float *row = step->wide + (size_t)token * places.stride;
    firni_projection_finish(step->kernels, &block->in, row);
    for (uint32_t head = 0; head < step->hparams->ssm.n_heads; head++) {
        const double dt = firni_softplus((double)row[places.dt + head] + (double)block->dt_bias[head]);
        row[places.dt + head] = (float)dt;
        row[places.decay + head] = (float)exp(dt * (double)block->a[head]);
    }
}

/* h = rms_norm(out * silu(z)), each group by itself */
static void norm_outputs(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_mamba2 *block = ctx;
    const firni_ssm_params *ssm = &step->hparams->ssm;
    const mamba2_places places = places_of(ssm);
    const uint32_t n_group = places.n_out / ssm->n_key_heads;
    const float *row = step->wide + (size_t)token * places.stride;
    float *h = step->h + (size_t)token * places.n_out;
    step->kernels->silu_mul(h, row, row + places.channels, places.n_out);
    for (uint32_t at = 0; at < places.n_out; at += n_group) {
        step->kernels->rms_norm(h + at, h + at, block->out_norm + at, n_group, step->hparams->rms_eps);
    }
}

/* x += out(norm(recur(in(norm(x))) * silu(z))) */
void firni_mamba2_forward(firni_step *step, const firni_mamba2 *block)
{
    const firni_hparams *hp = step->hparams;
    const mamba2_places places = places_of(&hp->ssm);
    firni_step_norm(step, block->norm);
    firni_step_project(step, &block->in, step->h, hp->n_embd, step->wide, places.stride);
    firni_step_each_token(step, gates_of_token, block);
    const firn_recur_input recur = {
        .x = step->wide + places.channels,
        .decay = step->wide + places.decay,
        .strength = step->wide + places.dt,
        .out = step->wide + places.channels,
        .x_stride = places.stride,
        .gate_stride = places.stride,
        .out_stride = places.stride,
        .conv_weight = block->conv,
        .conv_bias = block->conv_bias,
        .skip = block->skip,
    };
    /* Cannot fail: forward.c has reserved. */
    const firn_status status = firn_cache_recur(step->cache, &recur, step->counts, step->workers, NULL);
    assert(status == FIRN_OK && "the cache was reserved");
    (void)status;
    if (step->is_last_to_store && step->n_needed < step->n_tokens) {
        firni_step_narrow(step, step->wide, places.stride);
    }
    if (step->n_tokens == 0) {
        return;
    }
    firni_step_each_token(step, norm_outputs, block);
    firni_step_project(step, &block->out, step->h, places.n_out, step->wide, hp->n_embd);
    firni_step_add_residual(step, step->wide, &block->out);
}
