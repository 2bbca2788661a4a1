/*
 * The gated DeltaNet block: norm, projections, gates, convolution and delta rule in the layer's cache, gated output
 * norm.
 *
 *      a token's part of `wide`:
 *      | q k v: channels of the convolution | output gate | alpha, beta as projected | decay | strength |
 *
 * Owns no state. The outputs take the place of the values they came from.
 * Source: gated DeltaNet (arXiv 2412.06464) as in Qwen3-Next.
 */
#include <assert.h>
#include <math.h>

#include "base/base_impl.h"
#include "model/block_recurrent.h"

/* Offsets within a token's part of `wide`. */
typedef struct delta_places {
    uint32_t values;
    uint32_t out_gate;
    uint32_t gates;
    uint32_t decay;
    uint32_t strength;
    uint32_t stride;
} delta_places;

static delta_places places_of(const firni_ssm_params *ssm)
{
    const uint32_t n_channels = firni_ssm_channels(ssm);
    const uint32_t n_out = ssm->n_heads * ssm->value_dim;
    return (delta_places){
        .values = n_channels - n_out,
        .out_gate = n_channels,
        .gates = n_channels + n_out,
        .decay = n_channels + n_out + 2 * ssm->n_heads,
        .strength = n_channels + n_out + 3 * ssm->n_heads,
        .stride = n_channels + n_out + 4 * ssm->n_heads,
    };
}

void firni_gated_delta_widths(const firni_hparams *hp, firni_widths *widths)
{
    const uint32_t stride = places_of(&hp->ssm).stride;
    const uint32_t n_out = hp->ssm.n_heads * hp->ssm.value_dim;
    widths->wide = widths->wide > stride ? widths->wide : stride;
    widths->h = widths->h > n_out ? widths->h : n_out;
    widths->inputs_max = widths->inputs_max > n_out ? widths->inputs_max : n_out;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static firn_status load_vectors(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_gated_delta *out,
                                firn_error *err)
{
    const struct {
        const char *suffix;
        uint32_t n;
        const float **vector;
    } vectors[] = {
        { "attn_norm.weight", hp->n_embd, &out->norm },
        { "ssm_dt.bias", hp->ssm.n_heads, &out->dt_bias },
        { "ssm_a", hp->ssm.n_heads, &out->a },
        { "ssm_norm.weight", hp->ssm.value_dim, &out->out_norm },
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        char name[FIRNI_TENSOR_NAME_BYTES];
        firni_layer_tensor_name(name, layer, vectors[i].suffix);
        const firn_status status = firni_load_vector(loader, name, vectors[i].n, vectors[i].vector, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return firni_load_conv(loader, hp, layer, &out->conv, err);
}

static firn_status load_gates(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_gated_delta *out,
                              firn_error *err)
{
    char first[FIRNI_TENSOR_NAME_BYTES];
    char second[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(first, layer, out->gates_by_key_head ? "ssm_ba" : "ssm_alpha");
    firni_layer_tensor_name(second, layer, "ssm_beta");
    const firni_stack_part apart[] = {
        { .name = first, .n_rows = hp->ssm.n_heads },
        { .name = second, .n_rows = hp->ssm.n_heads },
    };
    const firni_stack_part together = { .name = first, .n_rows = 2 * hp->ssm.n_heads };
    return out->gates_by_key_head ? firni_load_projection(loader, &together, 1, hp->n_embd, &out->gates, err)
                                  : firni_load_projection(loader, apart, 2, hp->n_embd, &out->gates, err);
}

/* Files may hold queries, keys, values and gates a second time, key head by key head, as older readers wanted them. */
static firn_status skip_second_form(firni_loader *loader, const firni_hparams *hp, uint32_t layer, uint32_t n_rows,
                                    firn_error *err)
{
    char weight[FIRNI_TENSOR_NAME_BYTES];
    char scale[FIRNI_TENSOR_NAME_BYTES];
    firni_row_table table;
    const float *ignored;
    firni_layer_tensor_name(weight, layer, "ssm_in.weight");
    firni_layer_tensor_name(scale, layer, "ssm_in.scale");
    firn_status status = FIRN_OK;
    if (firni_loader_has(loader, weight)) {
        status = firni_load_row_table(loader, weight, n_rows, hp->n_embd, &table, err);
    }
    if (status == FIRN_OK && firni_loader_has(loader, scale)) {
        status = firni_load_vector(loader, scale, 1, &ignored, err);
    }
    return status;
}

firn_status firni_gated_delta_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                                   const firni_gated_delta_traits *traits, firni_gated_delta *out, firn_error *err)
{
    char qkv[FIRNI_TENSOR_NAME_BYTES];
    char gate[FIRNI_TENSOR_NAME_BYTES];
    char o[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(qkv, layer, "attn_qkv");
    firni_layer_tensor_name(gate, layer, "attn_gate");
    firni_layer_tensor_name(o, layer, "ssm_out");
    const uint32_t n_out = hp->ssm.n_heads * hp->ssm.value_dim;
    const firni_stack_part qkv_gate[] = {
        { .name = qkv, .n_rows = firni_ssm_channels(&hp->ssm) },
        { .name = gate, .n_rows = n_out },
    };
    const firni_stack_part output = { .name = o, .n_rows = hp->n_embd };
    *out = (firni_gated_delta){ .gates_by_key_head = traits->gates_by_key_head };
    firn_status status = load_vectors(loader, hp, layer, out, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, qkv_gate, 2, hp->n_embd, &out->qkv_gate, err);
    }
    if (status == FIRN_OK) {
        status = skip_second_form(loader, hp, layer, out->qkv_gate.n_rows, err);
    }
    if (status == FIRN_OK) {
        status = load_gates(loader, hp, layer, out, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &output, 1, n_out, &out->out, err);
    }
    if (traits->ignores_scales) {
        out->qkv_gate.scale = NULL;
        out->out.scale = NULL;
    }
    return status;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* decay = exp(softplus(alpha + bias) a), strength = sigmoid(beta) */
static void gates_of_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_gated_delta *block = ctx;
    const firni_ssm_params *ssm = &step->hparams->ssm;
    const delta_places places = places_of(ssm);
    const uint32_t n_shared = ssm->n_heads / ssm->n_key_heads;
    float *row = step->wide + (size_t)token * places.stride;
    firni_projection_finish(step->kernels, &block->qkv_gate, row);
    firni_projection_finish(step->kernels, &block->gates, row + places.gates);
    for (uint32_t head = 0; head < ssm->n_heads; head++) {
        const uint32_t group = head / n_shared * 2 * n_shared + head % n_shared;
        const float *gates = row + places.gates;
        const double alpha = (double)(block->gates_by_key_head ? gates[group + n_shared] : gates[head]);
        const double beta = (double)(block->gates_by_key_head ? gates[group] : gates[ssm->n_heads + head]);
        const double rate = firni_softplus(alpha + (double)block->dt_bias[head]) * (double)block->a[head];
        row[places.decay + head] = (float)exp(rate);
        row[places.strength + head] = (float)(1.0 / (1.0 + exp(-beta)));
    }
}

/* h = rms_norm(out of each head) * silu(output gate) */
static void norm_outputs(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_gated_delta *block = ctx;
    const firni_ssm_params *ssm = &step->hparams->ssm;
    const delta_places places = places_of(ssm);
    const uint32_t n_out = ssm->n_heads * ssm->value_dim;
    const float *row = step->wide + (size_t)token * places.stride;
    float *h = step->h + (size_t)token * n_out;
    for (size_t head = 0; head < ssm->n_heads; head++) {
        const size_t at = head * ssm->value_dim;
        step->kernels->rms_norm(h + at, row + places.values + at, block->out_norm, ssm->value_dim,
                                step->hparams->rms_eps);
    }
    step->kernels->silu_mul(h, row + places.out_gate, h, n_out);
}

/* x += out(norm(recur(qkv(norm(x)))) * silu(gate)) */
void firni_gated_delta_forward(firni_step *step, const firni_gated_delta *block)
{
    const firni_hparams *hp = step->hparams;
    const firni_ssm_params *ssm = &hp->ssm;
    const delta_places places = places_of(ssm);
    firni_step_norm(step, block->norm);
    firni_step_project(step, &block->qkv_gate, step->h, hp->n_embd, step->wide, places.stride);
    firni_step_project(step, &block->gates, step->h, hp->n_embd, step->wide + places.gates, places.stride);
    firni_step_each_token(step, gates_of_token, block);
    const firn_recur_input recur = {
        .x = step->wide,
        .decay = step->wide + places.decay,
        .strength = step->wide + places.strength,
        .out = step->wide + places.values,
        .x_stride = places.stride,
        .gate_stride = places.stride,
        .out_stride = places.stride,
        .conv_weight = block->conv,
        .scale = (float)(1.0 / sqrt((double)ssm->key_dim)),
        .norm_eps = hp->rms_eps,
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
    firni_step_project(step, &block->out, step->h, ssm->n_heads * ssm->value_dim, step->wide, hp->n_embd);
    firni_step_add_residual(step, step->wide, &block->out);
}
