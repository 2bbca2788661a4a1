/*
 * Per-layer inputs: what a layer gets of a token beside the residual stream. A second embedding table gives every
 * token a short vector for each layer, the first embedding is projected to another one, and each layer adds a gated
 * projection of their sum.
 *
 *      p = rms_norm(W x / sqrt(n_embd)) + e * sqrt(n_layer_input), over sqrt(2)          once, for all layers
 *      x += rms_norm(proj(gelu(gate(x)) * p[layer]))                                     at the end of each layer
 *
 * Owns the step's extra memory, where p lies for all tokens and layers; it follows the tokens when the step narrows.
 * Source: Gemma 3n's published model code, whose text models Gemma 4 continues.
 */
#include <math.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

static uint32_t width_of(const firni_hparams *hp)
{
    return hp->n_layers * hp->n_layer_input;
}

size_t firni_layer_inputs_bytes(const firni_hparams *hp, uint32_t n_tokens)
{
    return (size_t)n_tokens * width_of(hp) * sizeof(float);
}

void firni_layer_inputs_widths(const firni_hparams *hp, firni_widths *widths)
{
    widths->wide = widths->wide > width_of(hp) ? widths->wide : width_of(hp);
    widths->inputs_max = widths->inputs_max > hp->n_layer_input ? widths->inputs_max : hp->n_layer_input;
}

firn_status firni_layer_inputs_load(firni_loader *loader, const firni_hparams *hp, firni_layer_inputs *out,
                                    firn_error *err)
{
    const firni_stack_part part = { .name = "per_layer_model_proj", .n_rows = width_of(hp) };
    *out = (firni_layer_inputs){ .norm = NULL };
    firn_status status = firni_load_row_table(loader, "per_layer_token_embd.weight", hp->n_vocab, width_of(hp),
                                              &out->embedding, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &part, 1, hp->n_embd, &out->projection, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_vector(loader, "per_layer_proj_norm.weight", hp->n_layer_input, &out->norm, err);
    }
    return status;
}

firn_status firni_layer_input_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                                   firni_layer_input *out, firn_error *err)
{
    char gate[FIRNI_TENSOR_NAME_BYTES];
    char projection[FIRNI_TENSOR_NAME_BYTES];
    char norm[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(gate, layer, "inp_gate");
    firni_layer_tensor_name(projection, layer, "proj");
    firni_layer_tensor_name(norm, layer, "post_norm.weight");
    const firni_stack_part gate_part = { .name = gate, .n_rows = hp->n_layer_input };
    const firni_stack_part projection_part = { .name = projection, .n_rows = hp->n_embd };
    *out = (firni_layer_input){ .norm = NULL };
    firn_status status = firni_load_projection(loader, &gate_part, 1, hp->n_embd, &out->gate, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &projection_part, 1, hp->n_layer_input, &out->projection, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_vector(loader, norm, hp->n_embd, &out->norm, err);
    }
    return status;
}

/* All layers' inputs of one token. The table's row is widened into the token's part of `wide`, unused as yet. */
static void mix_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_layer_inputs *inputs = ctx;
    const firni_hparams *hp = step->hparams;
    const firni_row_table *table = &inputs->embedding;
    const uint32_t width = width_of(hp);
    const float from_stream = (float)(1.0 / sqrt((double)hp->n_embd));
    const float from_table = (float)sqrt((double)hp->n_layer_input);
    const float half_root = (float)sqrt(0.5);
    float *out = (float *)step->extra + (size_t)token * width;
    float *row = step->wide + (size_t)token * width;
    firni_projection_finish(step->kernels, &inputs->projection, out);
    firni_weight_row_to_f32(table->type, table->rows + (size_t)step->tokens[token] * table->row_bytes, width, row);
    for (uint32_t i = 0; i < width; i++) {
        out[i] *= from_stream;
    }
    for (uint32_t layer = 0; layer < hp->n_layers; layer++) {
        float *part = out + (size_t)layer * hp->n_layer_input;
        step->kernels->rms_norm(part, part, inputs->norm, hp->n_layer_input, hp->rms_eps);
    }
    for (uint32_t i = 0; i < width; i++) {
        out[i] = (row[i] * from_table + out[i]) * half_root;
    }
}

void firni_layer_inputs_begin(firni_step *step, const firni_layer_inputs *inputs)
{
    const uint32_t width = width_of(step->hparams);
    firni_step_project(step, &inputs->projection, step->x, step->hparams->n_embd, step->extra, width);
    firni_step_each_token(step, mix_token, inputs);
    firni_step_carry(step, step->extra, width);
}

static void gate_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_layer_input *input = ctx;
    const uint32_t n = step->hparams->n_layer_input;
    const float *own = (const float *)step->extra + (size_t)token * width_of(step->hparams) + (size_t)step->layer * n;
    float *gate = step->wide + (size_t)token * n;
    firni_projection_finish(step->kernels, &input->gate, gate);
    step->kernels->gelu_mul(gate, gate, own, n);
}

void firni_layer_input_forward(firni_step *step, const firni_layer_input *input)
{
    const uint32_t n = step->hparams->n_layer_input;
    if (step->n_tokens == 0) {
        return;
    }
    firni_step_project(step, &input->gate, step->x, step->hparams->n_embd, step->wide, n);
    firni_step_each_token(step, gate_token, input);
    firni_step_project(step, &input->projection, step->wide, n, step->h, step->hparams->n_embd);
    firni_step_add_normed(step, step->h, &input->projection, input->norm);
}
