/*
 * The attention block: norm, projections, optional biases and head norms, rotation, cache, output.
 *
 * Owns no state: keys and values go into the layer's firn_cache, whatever its layout, and attention runs there.
 * Queries, keys and values of a token lie side by side in one buffer, so the cache is given strides instead of copies.
 * Sources: grouped-query attention (arXiv 2305.13245), rotary positions (arXiv 2104.09864), query and key norms as in
 * Qwen3 (arXiv 2505.09388).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

/* The block's input norm, and the norms of query and key heads where the architecture has them. */
static firn_status load_norms(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                              const firni_attention_traits *traits, firni_attention *out, firn_error *err)
{
    const bool has_qk_norm = traits->has_qk_norm;
    const uint32_t head_dim = hp->layers[layer].head_dim;
    char name[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(name, layer, "attn_norm.weight");
    firn_status status = firni_load_vector(loader, name, hp->n_embd, &out->norm, err);
    if (status == FIRN_OK && has_qk_norm) {
        firni_layer_tensor_name(name, layer, "attn_q_norm.weight");
        status = firni_load_vector(loader, name, head_dim, &out->q_norm, err);
    }
    if (status == FIRN_OK && has_qk_norm && !traits->shares_state) {
        firni_layer_tensor_name(name, layer, "attn_k_norm.weight");
        status = firni_load_vector(loader, name, head_dim, &out->k_norm, err);
    }
    return status;
}

/* Files hold keys and values of layers that do not use them. */
static void skip_keys_and_values(firni_loader *loader, uint32_t layer)
{
    static const char *const suffixes[] = { "attn_k.weight", "attn_k.bias", "attn_k.scale", "attn_k_norm.weight",
                                            "attn_v.weight", "attn_v.bias", "attn_v.scale" };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char name[FIRNI_TENSOR_NAME_BYTES];
        firni_layer_tensor_name(name, layer, suffixes[i]);
        firni_loader_skip(loader, name);
    }
}

firn_status firni_attention_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                                 const firni_attention_traits *traits, firni_attention *out, firn_error *err)
{
    char q[FIRNI_TENSOR_NAME_BYTES];
    char k[FIRNI_TENSOR_NAME_BYTES];
    char v[FIRNI_TENSOR_NAME_BYTES];
    char o[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(q, layer, "attn_q");
    firni_layer_tensor_name(k, layer, "attn_k");
    firni_layer_tensor_name(v, layer, "attn_v");
    firni_layer_tensor_name(o, layer, "attn_output");
    const firni_layer_shape *shape = &hp->layers[layer];
    const firni_stack_part qkv[] = {
        { .name = q, .n_rows = shape->n_heads * shape->head_dim * (traits->has_gate ? 2 : 1) },
        { .name = k, .n_rows = shape->n_kv_heads * shape->head_dim },
        { .name = v, .n_rows = shape->n_kv_heads * shape->value_dim },
    };
    const firni_stack_part output = { .name = o, .n_rows = hp->n_embd };
    char v_weight[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(v_weight, layer, "attn_v.weight");
    *out = (firni_attention){
        .shape = *shape,
        .scale = (float)(1.0 / sqrt((double)shape->head_dim)),
        .shares_state = traits->shares_state,
        .values_are_keys = traits->may_lack_values && !traits->shares_state && !firni_loader_has(loader, v_weight),
        .norms_values = traits->norms_values,
        .has_gate = traits->has_gate,
        .k_offset = qkv[0].n_rows,
        .width = qkv[0].n_rows + (traits->shares_state ? 0 : qkv[1].n_rows + qkv[2].n_rows) +
                 (traits->has_gate ? shape->n_heads * shape->head_dim : 0),
    };
    if (out->values_are_keys && shape->head_dim != shape->value_dim) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%s' is missing, and keys of %lu cannot be values of %lu",
                          firni_gguf_path(loader->gguf), v_weight, (unsigned long)shape->head_dim,
                          (unsigned long)shape->value_dim);
    }
    firn_status status = load_norms(loader, hp, layer, traits, out, err);
    if (status == FIRN_OK) {
        const uint32_t n_parts = out->shares_state ? 1 : out->values_are_keys ? 2 : 3;
        status = firni_load_projection(loader, qkv, n_parts, hp->n_embd, &out->qkv, err);
    }
    if (status == FIRN_OK && out->shares_state) {
        skip_keys_and_values(loader, layer);
    }
    if (status == FIRN_OK && traits->needs_qkv_bias && out->qkv.bias == NULL) {
        status = firni_fail(err, FIRN_ERR_FORMAT, "%s: tensors '%s.bias' and its neighbours are missing",
                            firni_gguf_path(loader->gguf), q);
    }
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &output, 1, shape->n_heads * shape->value_dim, &out->out, err);
    }
    return status;
}

/*      with gates   | q0 g0 q1 g1 ... | k | v | room |   becomes   | q0 q1 ...  (unused) | k | v | g0 g1 ... |
 *
 * Attention takes the query heads side by side. */
static float *gates_of(const firni_attention *attention, float *row)
{
    return row + attention->width - (size_t)attention->shape.n_heads * attention->shape.head_dim;
}

static void part_gates(const firni_attention *attention, float *row)
{
    const size_t dim = attention->shape.head_dim;
    float *gates = gates_of(attention, row);
    for (size_t head = 0; head < attention->shape.n_heads; head++) {
        memcpy(gates + head * dim, row + (2 * head + 1) * dim, dim * sizeof *gates);
        memmove(row + head * dim, row + 2 * head * dim, dim * sizeof *row);
    }
}

/* Between projection and cache, for one token: biases, head norms, rotation of queries and keys. Values come first
 * where they are made of keys, before these are changed. */
static void finish_heads(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_attention *attention = ctx;
    const firni_hparams *hp = step->hparams;
    const firni_layer_shape *shape = &attention->shape;
    const firni_rope_params *rope = &hp->ropes[shape->rope];
    const firni_kernels *kernels = step->kernels;
    float *row = step->wide + (size_t)token * attention->width;
    const float *cos_sin = step->cos_sin[shape->rope] + (size_t)token * rope->n_dims;
    firni_projection_finish(kernels, &attention->qkv, row);
    if (attention->has_gate) {
        part_gates(attention, row);
    }
    float *keys = row + attention->k_offset;
    float *values = keys + (size_t)shape->n_kv_heads * shape->head_dim;
    if (attention->values_are_keys) {
        memcpy(values, keys, (size_t)shape->n_kv_heads * shape->head_dim * sizeof *values);
    }
    for (uint32_t head = 0; head < shape->n_kv_heads && attention->norms_values && !attention->shares_state; head++) {
        float *value = values + (size_t)head * shape->value_dim;
        kernels->rms_norm(value, value, NULL, shape->value_dim, hp->rms_eps);
    }
    const uint32_t n_vectors = shape->n_heads + (attention->shares_state ? 0 : shape->n_kv_heads);
    for (uint32_t head = 0; head < n_vectors; head++) {
        float *vector = head < shape->n_heads ? row + (size_t)head * shape->head_dim
                                              : keys + (size_t)(head - shape->n_heads) * shape->head_dim;
        if (attention->q_norm != NULL) {
            kernels->rms_norm(vector, vector, head < shape->n_heads ? attention->q_norm : attention->k_norm,
                              shape->head_dim, hp->rms_eps);
        }
        kernels->rope(vector, cos_sin, rope->n_dims, rope->interleaved);
    }
}

/* Stores the step's keys and values. */
static void store(firni_step *step, const firni_attention *attention)
{
    const firni_layer_shape *shape = &attention->shape;
    const firn_append_input append = {
        .k = step->wide + attention->k_offset,
        .v = step->wide + attention->k_offset + shape->n_kv_heads * shape->head_dim,
        .k_stride = attention->width,
        .v_stride = attention->width,
    };
    /* Cannot fail: forward.c has reserved, and an append converts and stores. */
    const firn_status status = firn_cache_append(step->cache, &append, step->counts, step->workers, NULL);
    assert(status == FIRN_OK && "the cache was reserved");
    (void)status;
}

/* The outputs of all heads of a token times the sigmoids of their gates. */
static void apply_gates(const firni_step *step, const void *ctx, uint32_t token)
{
    const firni_attention *attention = ctx;
    const uint32_t n = attention->shape.n_heads * attention->shape.value_dim;
    float *out = step->h + (size_t)token * n;
    step->kernels->sigmoid_mul(out, gates_of(attention, step->wide + (size_t)token * attention->width), out, n);
}

/* x += out(attend(rotate(qkv(norm(x))))), the sum's right side normed where the architecture does so.
 *
 * Keys and values are stored before attention runs, so a token sees itself and all before it in its row. In the last
 * layer that stores that is all that most prompt tokens are needed for: the rest is computed for the others alone. A
 * layer without state of its own reads that of an earlier one, which holds the same tokens. */
void firni_attention_forward(firni_step *step, const firni_attention *attention)
{
    const firni_layer_shape *shape = &attention->shape;
    const uint32_t n_embd = step->hparams->n_embd;
    const uint32_t stride = attention->width;
    firni_step_norm(step, attention->norm);
    firni_step_project(step, &attention->qkv, step->h, n_embd, step->wide, stride);
    firni_step_each_token(step, finish_heads, attention);
    if (!attention->shares_state) {
        store(step, attention);
    }
    if (step->is_last_to_store && step->n_needed < step->n_tokens) {
        firni_step_narrow(step, step->wide, stride);
    }
    if (step->n_tokens == 0) {
        return;
    }
    /* The input norm's output in h is used up: attention writes over it. */
    const firn_attend_input attend = {
        .q = step->wide,
        .out = step->h,
        .q_stride = stride,
        .out_stride = shape->n_heads * shape->value_dim,
        .n_heads = shape->n_heads,
        .scale = attention->scale,
        .sinks = attention->sinks,
    };
    const firn_status status = firn_cache_attend(step->cache, &attend, step->counts, step->workers, NULL);
    assert(status == FIRN_OK && "the geometry was checked");
    (void)status;
    if (attention->has_gate) {
        firni_step_each_token(step, apply_gates, attention);
    }
    /* Queries, keys and values are done with: their buffer takes the block's output. */
    firni_step_project(step, &attention->out, step->h, attend.out_stride, step->wide, n_embd);
    firni_step_add_normed(step, step->wide, &attention->out, attention->post_norm);
}
