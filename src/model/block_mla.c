/*
 * The latent attention block: all heads attend to one compressed vector per token, in the latent space.
 *
 *   1. norm; one product gives the queries' latent (or the queries) and the token's latent with its rope key
 *   2. norms of both latents, rotation of the rope key; latent and rope key are what is stored
 *   3. queries from their latent; per head, the part without position is multiplied by the head's key matrix, so that
 *      q.k of the head is a product in the latent space: no per-head key is ever built
 *   4. attention gives one latent per head, which the head's value matrix turns into its output
 *   5. output projection
 *
 * The matrices of heads take the path of every matrix product, so one token and a thousand give the same bits. With an
 * indexer (index_*), step 2 also makes an index key, and step 3 index queries and weights: kv:mla:dsa selects with
 * them.
 *
 * Owns the layout of its scratch. Sources: DeepSeek-V2 (arXiv 2405.04434, section 2.1, with the absorption it
 * describes), DeepSeek-V3.2-Exp (report, section 2.1).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"

#define SCRATCH_ALIGN 64u

/* ---- parameters ---- */

/* The scores' scale and the magnitude of the rotation share YaRN's temperature: with a multiplier m for all dimensions
 * the scale takes (0.1 m ln(factor) + 1)^2, and the rotation keeps its length. */
static void apply_yarn_multiplier(firni_keys *keys, firni_hparams *hp)
{
    firni_rope_params *rope = &hp->ropes[0];
    /* Files carry a tenth of the multiplier. */
    const float tenth = firni_key_f32(keys, "rope.scaling.yarn_log_multiplier", 0.0F, 100.0F, 0.0F);
    if (keys->status != FIRN_OK || rope->scaling != FIRNI_ROPE_SCALING_YARN || tenth == 0.0F) {
        return;
    }
    const double log_factor = log((double)rope->factor);
    const double temperature = (double)rope->attn_factor * ((double)tenth * log_factor + 1.0);
    hp->mla.scale = (float)((double)hp->mla.scale * temperature * temperature);
    if (rope->ext_factor != 0.0F) {
        rope->attn_factor = (float)((double)rope->attn_factor / (0.1 * log_factor + 1.0));
    }
}

/* Older files hold the heads' key and value matrices as one tensor, the former transposed. */
static void refuse_undivided(firni_keys *keys)
{
    char key[FIRNI_KEY_BYTES];
    firni_key_name(keys, "attention.key_length_mla", key);
    if (keys->status == FIRN_OK && firni_gguf_find(keys->gguf, key) == NULL &&
        firni_gguf_find_tensor(keys->gguf, "blk.0.attn_kv_b.weight") != NULL) {
        keys->status = firni_fail(keys->err, FIRN_ERR_UNSUPPORTED,
                                  "%s: key '%s' is missing and 'blk.0.attn_kv_b.weight' "
                                  "is there: a file from before key and value matrices were stored apart; convert the "
                                  "model again",
                                  firni_gguf_path(keys->gguf), key);
    }
}

void firni_read_mla(firni_keys *keys, firni_hparams *hp)
{
    const uint32_t none = 0;
    firni_mla_params *mla = &hp->mla;
    hp->n_heads = firni_key_u32(keys, "attention.head_count", 1, FIRNI_HEADS_MAX, NULL);
    mla->q_rank = firni_key_u32(keys, "attention.q_lora_rank", 0, FIRNI_WIDTH_MAX, &none);
    mla->kv_rank = firni_key_u32(keys, "attention.kv_lora_rank", 1, FIRNI_HEAD_DIM_MAX, NULL);
    refuse_undivided(keys);
    const uint32_t key_length = firni_key_u32(keys, "attention.key_length_mla", 1, FIRNI_HEAD_DIM_MAX, NULL);
    mla->value_dim = firni_key_u32(keys, "attention.value_length_mla", 1, FIRNI_HEAD_DIM_MAX, NULL);
    firni_read_rope(keys, hp, key_length);
    if (keys->status != FIRN_OK) {
        return;
    }
    const uint32_t rope_dim = hp->ropes[0].n_dims;
    if (rope_dim >= key_length || mla->kv_rank + rope_dim > FIRNI_HEAD_DIM_MAX) {
        keys->status = firni_fail(keys->err, FIRN_ERR_FORMAT, "%s: '%s.rope.dimension_count' %lu does not fit "
                                  "attention.key_length_mla %lu and attention.kv_lora_rank %lu",
                                  firni_gguf_path(keys->gguf), keys->architecture, (unsigned long)rope_dim,
                                  (unsigned long)key_length, (unsigned long)mla->kv_rank);
        return;
    }
    mla->nope_dim = key_length - rope_dim;
    mla->scale = (float)(1.0 / sqrt((double)key_length));
    apply_yarn_multiplier(keys, hp);
    hp->n_kv_heads = 1;
    hp->head_dim = mla->kv_rank + rope_dim;
    hp->value_dim = mla->kv_rank;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        firni_layer_shape *layer = &hp->layers[i];
        layer->n_heads = hp->n_heads;
        layer->n_kv_heads = 1;
        layer->head_dim = hp->head_dim;
        layer->value_dim = hp->value_dim;
    }
}

void firni_read_mla_index(firni_keys *keys, firni_hparams *hp)
{
    firni_mla_params *mla = &hp->mla;
    mla->n_index_heads = firni_key_u32(keys, "attention.indexer.head_count", 1, FIRNI_HEADS_MAX, NULL);
    mla->index_dim = firni_key_u32(keys, "attention.indexer.key_length", hp->ropes[0].n_dims, FIRNI_HEAD_DIM_MAX, NULL);
    mla->index_top_k = firni_key_u32(keys, "attention.indexer.top_k", 1, 4096, NULL);
    mla->index_eps = firni_key_f32(keys, "attention.layer_norm_epsilon", 1e-12F, 1.0F, 1e-6F);
    if (keys->status == FIRN_OK && mla->q_rank == 0) {
        firni_key_fail(keys, "attention.q_lora_rank", "is missing: index queries are made from the queries' latent");
    }
}

void firni_mla_cache_options(const firni_hparams *hp, uint32_t layer, firn_cache_options *out)
{
    const firni_layer_shape *shape = &hp->layers[layer];
    *out = (firn_cache_options){
        .layout = hp->mla.n_index_heads > 0 ? "kv:mla:dsa" : "kv:mla",
        .n_kv_heads = 1,
        .head_dim = shape->head_dim,
        .value_dim = shape->value_dim,
        .index_dim = hp->mla.index_dim,
        .index_top_k = hp->mla.index_top_k,
    };
}

/* ---- load ---- */

typedef char tensor_name[FIRNI_TENSOR_NAME_BYTES];

static firn_status load_vector(firni_loader *loader, uint32_t layer, const char *suffix, uint32_t n, const float **out,
                               firn_error *err)
{
    tensor_name name;
    firni_layer_tensor_name(name, layer, suffix);
    return firni_load_vector(loader, name, n, out, err);
}

static firn_status load_one(firni_loader *loader, uint32_t layer, const char *suffix, uint32_t n_rows, uint32_t n_cols,
                            firni_projection *out, firn_error *err)
{
    tensor_name name;
    firni_layer_tensor_name(name, layer, suffix);
    const firni_stack_part part = { .name = name, .n_rows = n_rows };
    return firni_load_projection(loader, &part, 1, n_cols, out, err);
}

static firn_status load_two(firni_loader *loader, uint32_t layer, const char *const suffixes[2],
                            const uint32_t n_rows[2], uint32_t n_cols, firni_projection *out, firn_error *err)
{
    tensor_name first;
    tensor_name second;
    firni_layer_tensor_name(first, layer, suffixes[0]);
    firni_layer_tensor_name(second, layer, suffixes[1]);
    const firni_stack_part parts[] = {
        { .name = first, .n_rows = n_rows[0] },
        { .name = second, .n_rows = n_rows[1] },
    };
    return firni_load_projection(loader, parts, 2, n_cols, out, err);
}

static firn_status load_heads(firni_loader *loader, uint32_t layer, const char *suffix, uint32_t n_rows,
                              uint32_t n_cols, uint32_t n_heads, const firni_projection **out, firn_error *err)
{
    tensor_name name;
    firni_layer_tensor_name(name, layer, suffix);
    const firni_stack_part part = { .name = name, .n_rows = n_rows };
    return firni_load_projections(loader, &part, 1, n_cols, n_heads, out, err);
}

static firn_status load_index(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_mla *out,
                              firn_error *err)
{
    const firni_mla_params *p = &hp->mla;
    static const char *const first[2] = { "indexer.attn_k", "indexer.proj" };
    const uint32_t n_rows[2] = { p->index_dim, p->n_index_heads };
    firn_status status = load_two(loader, layer, first, n_rows, hp->n_embd, &out->index_first, err);
    if (status == FIRN_OK) {
        status = load_one(loader, layer, "indexer.attn_q_b", p->n_index_heads * p->index_dim, p->q_rank, &out->index_q,
                          err);
    }
    if (status == FIRN_OK) {
        status = load_vector(loader, layer, "indexer.k_norm.weight", p->index_dim, &out->index_norm, err);
    }
    if (status == FIRN_OK) {
        status = load_vector(loader, layer, "indexer.k_norm.bias", p->index_dim, &out->index_norm_bias, err);
    }
    return status;
}

firn_status firni_mla_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_mla *out,
                           firn_error *err)
{
    const firni_mla_params *p = &hp->mla;
    const uint32_t n_heads = hp->layers[layer].n_heads;
    const uint32_t q_rows = n_heads * (p->nope_dim + hp->ropes[0].n_dims);
    const char *const first[2] = { p->q_rank > 0 ? "attn_q_a" : "attn_q", "attn_kv_a_mqa" };
    const uint32_t first_rows[2] = { p->q_rank > 0 ? p->q_rank : q_rows, hp->layers[layer].head_dim };
    *out = (firni_mla){ .norm = NULL };
    firn_status status = load_vector(loader, layer, "attn_norm.weight", hp->n_embd, &out->norm, err);
    if (status == FIRN_OK) {
        status = load_two(loader, layer, first, first_rows, hp->n_embd, &out->first, err);
    }
    if (status == FIRN_OK && p->q_rank > 0) {
        status = load_vector(loader, layer, "attn_q_a_norm.weight", p->q_rank, &out->q_norm, err);
    }
    if (status == FIRN_OK && p->q_rank > 0) {
        status = load_one(loader, layer, "attn_q_b", q_rows, p->q_rank, &out->q, err);
    }
    if (status == FIRN_OK) {
        status = load_vector(loader, layer, "attn_kv_a_norm.weight", p->kv_rank, &out->kv_norm, err);
    }
    if (status == FIRN_OK) {
        status = load_heads(loader, layer, "attn_k_b", p->kv_rank, p->nope_dim, n_heads, &out->k_up, err);
    }
    if (status == FIRN_OK) {
        status = load_heads(loader, layer, "attn_v_b", p->value_dim, p->kv_rank, n_heads, &out->v_up, err);
    }
    if (status == FIRN_OK) {
        status = load_one(loader, layer, "attn_output", hp->n_embd, n_heads * p->value_dim, &out->out, err);
    }
    return status == FIRN_OK && p->n_index_heads > 0 ? load_index(loader, hp, layer, out, err) : status;
}

/* ---- scratch ---- */

typedef struct mla_arrays {
    float *first;         /* [n_tokens, first.n_rows] */
    float *q;             /* [n_tokens, n_heads * (nope + rope)]; then values [n_tokens, n_heads * value_dim] */
    float *index_first;   /* [n_tokens, index_dim + n_index_heads] */
    float *index_q;       /* [n_tokens, n_index_heads * index_dim] */
    firni_matmul_item *items; /* [n_heads] */
    void *acts;
} mla_arrays;

static void *place(uint8_t *base, size_t *at, size_t n_bytes)
{
    void *array = base != NULL ? base + *at : NULL;
    *at += firni_round_up(n_bytes, SCRATCH_ALIGN);
    return array;
}

/* With base NULL only the size counts. */
static size_t lay_out(const firni_hparams *hp, uint32_t n_tokens, uint8_t *base, mla_arrays *out)
{
    const firni_mla_params *p = &hp->mla;
    const size_t n = n_tokens;
    const size_t qk = p->nope_dim + hp->ropes[0].n_dims;
    const size_t q_width = hp->n_heads * (qk > p->value_dim ? qk : p->value_dim);
    const size_t first = (p->q_rank > 0 ? p->q_rank : hp->n_heads * qk) + hp->head_dim;
    const uint32_t inputs = p->nope_dim > p->kv_rank ? p->nope_dim : p->kv_rank;
    size_t at = 0;
    out->first = place(base, &at, n * first * sizeof(float));
    out->q = place(base, &at, n * q_width * sizeof(float));
    out->index_first = place(base, &at, n * (p->index_dim + p->n_index_heads) * sizeof(float));
    out->index_q = place(base, &at, n * p->n_index_heads * p->index_dim * sizeof(float));
    out->items = place(base, &at, hp->n_heads * sizeof(firni_matmul_item));
    out->acts = place(base, &at, firni_matmul_each_scratch_bytes(inputs, n_tokens * hp->n_heads, hp->n_heads));
    return at;
}

size_t firni_mla_scratch_bytes(const firni_hparams *hp, uint32_t n_tokens)
{
    mla_arrays arrays;
    return lay_out(hp, n_tokens, NULL, &arrays);
}

/* ---- forward ---- */

typedef struct mla_call {
    const firni_mla *mla;
    const mla_arrays *arrays;
} mla_call;

/* Mean and variance in double precision: one sum each, in ascending order. */
static void layer_norm(float *x, const float *weight, const float *bias, uint32_t n, float eps)
{
    double mean = 0.0;
    double square = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        mean += (double)x[i];
    }
    mean /= n;
    for (uint32_t i = 0; i < n; i++) {
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    const double scale = 1.0 / sqrt(square / n + (double)eps);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = (float)(((double)x[i] - mean) * scale) * weight[i] + bias[i];
    }
}

/* Step 2 for one token. */
static void finish_first(const firni_step *step, const void *ctx, uint32_t token)
{
    const mla_call *call = ctx;
    const firni_hparams *hp = step->hparams;
    const firni_mla_params *p = &hp->mla;
    const firni_rope_params *rope = &hp->ropes[0];
    const firni_projection *first = &call->mla->first;
    const float *cos_sin = step->cos_sin[0] + (size_t)token * rope->n_dims;
    float *row = call->arrays->first + (size_t)token * first->n_rows;
    float *latent = row + first->n_rows - hp->head_dim;
    firni_projection_finish(step->kernels, first, row);
    if (p->q_rank > 0) {
        step->kernels->rms_norm(row, row, call->mla->q_norm, p->q_rank, hp->rms_eps);
    }
    step->kernels->rms_norm(latent, latent, call->mla->kv_norm, p->kv_rank, hp->rms_eps);
    step->kernels->rope(latent + p->kv_rank, cos_sin, rope->n_dims, rope->interleaved);
    if (p->n_index_heads > 0) {
        float *key = call->arrays->index_first + (size_t)token * call->mla->index_first.n_rows;
        firni_projection_finish(step->kernels, &call->mla->index_first, key);
        layer_norm(key, call->mla->index_norm, call->mla->index_norm_bias, p->index_dim, p->index_eps);
        /* The indexer rotates the first dimensions, in halves, whatever the heads do. */
        step->kernels->rope(key, cos_sin, rope->n_dims, false);
    }
}

/* Step 3 for one token: positions go straight to their place behind the absorbed part. */
static void finish_queries(const firni_step *step, const void *ctx, uint32_t token)
{
    const mla_call *call = ctx;
    const firni_hparams *hp = step->hparams;
    const firni_mla_params *p = &hp->mla;
    const firni_rope_params *rope = &hp->ropes[0];
    const float *cos_sin = step->cos_sin[0] + (size_t)token * rope->n_dims;
    const size_t qk = p->nope_dim + rope->n_dims;
    float *q = p->q_rank > 0 ? call->arrays->q + token * hp->n_heads * qk
                             : call->arrays->first + (size_t)token * call->mla->first.n_rows;
    if (p->q_rank > 0) {
        firni_projection_finish(step->kernels, &call->mla->q, q);
    }
    for (uint32_t h = 0; h < hp->n_heads; h++) {
        float *position = step->wide + ((size_t)token * hp->n_heads + h) * hp->head_dim + p->kv_rank;
        memcpy(position, q + h * qk + p->nope_dim, rope->n_dims * sizeof(float));
        step->kernels->rope(position, cos_sin, rope->n_dims, rope->interleaved);
    }
    if (p->n_index_heads == 0) {
        return;
    }
    float *index_q = call->arrays->index_q + (size_t)token * p->n_index_heads * p->index_dim;
    firni_projection_finish(step->kernels, &call->mla->index_q, index_q);
    for (uint32_t h = 0; h < p->n_index_heads; h++) {
        step->kernels->rope(index_q + (size_t)h * p->index_dim, cos_sin, rope->n_dims, false);
    }
}

/* y[h] = W[h] x[h] for every head; heads x_head and y_head floats apart. */
static void project_heads(const firni_step *step, const mla_arrays *a, const firni_projection *heads, const float *x,
                          size_t x_head, size_t x_stride, float *y, size_t y_head, size_t y_stride)
{
    const uint32_t n_heads = step->hparams->n_heads;
    for (uint32_t h = 0; h < n_heads; h++) {
        assert(heads[h].n_matrices == 1);
        a->items[h] = (firni_matmul_item){
            .w = &heads[h].matrices[0],
            .x = x + h * x_head,
            .y = y + h * y_head,
            .n_tokens = step->n_tokens,
        };
    }
    firni_step_multiply_each(step, a->items, n_heads, x_stride, y_stride, a->acts);
}

static void store(firni_step *step, const firni_mla *mla, const mla_arrays *a)
{
    const firni_hparams *hp = step->hparams;
    const uint32_t stride = mla->first.n_rows;
    const bool has_index = hp->mla.n_index_heads > 0;
    const firn_append_input append = {
        .k = a->first + stride - hp->head_dim,
        .k_stride = stride,
        .index_key = has_index ? a->index_first : NULL,
        .index_stride = has_index ? mla->index_first.n_rows : 0,
    };
    /* Cannot fail: forward.c has reserved, and an append converts and stores. */
    const firn_status status = firn_cache_append(step->cache, &append, step->counts, step->workers, NULL);
    assert(status == FIRN_OK && "the cache was reserved");
    (void)status;
    if (step->is_last_to_store && step->n_needed < step->n_tokens) {
        if (has_index) {
            firni_step_carry(step, a->index_first, mla->index_first.n_rows);
        }
        firni_step_narrow(step, a->first, stride);
    }
}

static void attend(firni_step *step, const firni_mla *mla, const mla_arrays *a)
{
    const firni_hparams *hp = step->hparams;
    const bool has_index = hp->mla.n_index_heads > 0;
    const firn_attend_input input = {
        .q = step->wide,
        .out = step->h,
        .n_heads = hp->n_heads,
        .scale = hp->mla.scale,
        .index_q = has_index ? a->index_q : NULL,
        .index_weights = has_index ? a->index_first + hp->mla.index_dim : NULL,
        .index_weights_stride = has_index ? mla->index_first.n_rows : 0,
        .n_index_heads = hp->mla.n_index_heads,
    };
    const firn_status status = firn_cache_attend(step->cache, &input, step->counts, step->workers, NULL);
    assert(status == FIRN_OK && "the geometry was checked");
    (void)status;
}

void firni_mla_forward(firni_step *step, const firni_mla *mla, void *scratch)
{
    const firni_hparams *hp = step->hparams;
    const firni_mla_params *p = &hp->mla;
    const size_t n_heads = hp->n_heads;
    const uint32_t qk = p->nope_dim + hp->ropes[0].n_dims;
    const uint32_t first_rows = mla->first.n_rows;
    mla_arrays a;
    (void)lay_out(hp, step->n_tokens, scratch, &a);
    const mla_call call = { .mla = mla, .arrays = &a };
    firni_step_norm(step, mla->norm);
    firni_step_project(step, &mla->first, step->h, hp->n_embd, a.first, first_rows);
    if (p->n_index_heads > 0) {
        firni_step_project(step, &mla->index_first, step->h, hp->n_embd, a.index_first, mla->index_first.n_rows);
    }
    firni_step_each_token(step, finish_first, &call);
    store(step, mla, &a);
    if (step->n_tokens == 0) {
        return;
    }
    if (p->q_rank > 0) {
        firni_step_project(step, &mla->q, a.first, first_rows, a.q, (uint32_t)n_heads * qk);
    }
    if (p->n_index_heads > 0) {
        firni_step_project(step, &mla->index_q, a.first, first_rows, a.index_q, p->n_index_heads * p->index_dim);
    }
    firni_step_each_token(step, finish_queries, &call);
    const float *q = p->q_rank > 0 ? a.q : a.first;
    const size_t q_stride = p->q_rank > 0 ? n_heads * qk : first_rows;
    project_heads(step, &a, mla->k_up, q, qk, q_stride, step->wide, hp->head_dim, n_heads * hp->head_dim);
    attend(step, mla, &a);
    /* Queries are done with: values take their place, and the block's output that of the absorbed queries. */
    project_heads(step, &a, mla->v_up, step->h, p->kv_rank, n_heads * p->kv_rank, a.q, p->value_dim,
                  n_heads * p->value_dim);
    firni_step_project(step, &mla->out, a.q, (uint32_t)n_heads * p->value_dim, step->wide, hp->n_embd);
    firni_step_add_residual(step, step->wide, &mla->out);
}
