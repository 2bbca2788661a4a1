/*
 * The feed-forward block: norm, gate and up projection in one pass, SwiGLU or its GELU sibling, down projection.
 * Source: GLU variants (arXiv 2002.05202).
 */
#include "model/arch_impl.h"

/* Gate and up read the same input and are stacked; down has one of its own. */
firn_status firni_ffn_load_after(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                                 const char *norm_suffix, firni_ffn *out, firn_error *err)
{
    char norm[FIRNI_TENSOR_NAME_BYTES];
    char gate[FIRNI_TENSOR_NAME_BYTES];
    char up[FIRNI_TENSOR_NAME_BYTES];
    char down[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(norm, layer, norm_suffix);
    firni_layer_tensor_name(gate, layer, "ffn_gate");
    firni_layer_tensor_name(up, layer, "ffn_up");
    firni_layer_tensor_name(down, layer, "ffn_down");
    const uint32_t n_ff = hp->layers[layer].n_ff;
    const firni_stack_part gate_up[] = {
        { .name = gate, .n_rows = n_ff },
        { .name = up, .n_rows = n_ff },
    };
    const firni_stack_part output = { .name = down, .n_rows = hp->n_embd };
    *out = (firni_ffn){ .n_ff = n_ff };
    firn_status status = firni_load_vector(loader, norm, hp->n_embd, &out->norm, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, gate_up, 2, hp->n_embd, &out->gate_up, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &output, 1, n_ff, &out->down, err);
    }
    /* Files with both a scale and a bias are written for this order here, and for the other one in attention. */
    out->gate_up.is_bias_first = true;
    out->down.is_bias_first = true;
    return status;
}

firn_status firni_ffn_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_ffn *out,
                           firn_error *err)
{
    return firni_ffn_load_after(loader, hp, layer, "ffn_norm.weight", out, err);
}

/* The product takes the gate's place. */
static void gate_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_ffn *ffn = ctx;
    const uint32_t n_ff = ffn->n_ff;
    float *gate = step->wide + (size_t)token * 2 * n_ff;
    firni_projection_finish(step->kernels, &ffn->gate_up, gate);
    if (ffn->is_gelu) {
        step->kernels->gelu_mul(gate, gate, gate + n_ff, n_ff);
    } else {
        step->kernels->silu_mul(gate, gate, gate + n_ff, n_ff);
    }
}

/* x += down(act(gate) * up), gate and up from norm(x). Without tokens, after narrowing, there is nothing to do. */
void firni_ffn_forward(firni_step *step, const firni_ffn *ffn)
{
    const firni_hparams *hp = step->hparams;
    if (step->n_tokens == 0) {
        return;
    }
    firni_step_norm(step, ffn->norm);
    firni_step_project(step, &ffn->gate_up, step->h, hp->n_embd, step->wide, 2 * ffn->n_ff);
    firni_step_each_token(step, gate_token, ffn);
    /* The products lie in the first half of each row, so the stride stays that of both halves. */
    firni_step_project(step, &ffn->down, step->wide, 2 * ffn->n_ff, step->h, hp->n_embd);
    firni_step_add_normed(step, step->h, &ffn->down, ffn->post_norm);
}
