/*
 * One forward: tokens of a ragged batch through all layers, logits where they are wanted.
 *
 *   1. check everything that the caller passed
 *   2. plan: each token's position, and which tokens the wanted logits depend on
 *   3. reserve room in every cache; from here on nothing can fail
 *   4. embed, rotate, layers
 *   5. final norm and output matrix for the wanted tokens alone
 *
 * Owns the scratch and its sizes. Nothing is allocated here beyond cache blocks. After the last layer's keys and values
 * are stored only tokens whose logits are wanted matter, so the rest of that layer is spared for the others; in a
 * prefill that is nearly all of them.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/model_impl.h"

#define SCRATCH_ALIGN 64u

/* Adds an array to the layout of the scratch; false on overflow. */
static bool lay_out(size_t *total, size_t n, size_t element_bytes, size_t *offset)
{
    size_t bytes;
    *offset = *total;
    return firni_mul_size(n, element_bytes, &bytes) && firni_add_size(bytes, SCRATCH_ALIGN - 1, &bytes) &&
           firni_add_size(*total, bytes / SCRATCH_ALIGN * SCRATCH_ALIGN, total);
}

/* All arrays in one allocation, each at a cache line. Untouched parts cost no memory: a model that was opened for 512
 * tokens and decodes one at a time uses a few pages of it. */
firn_status firni_scratch_init(firn_model *model, firn_error *err)
{
    const firni_hparams *hp = &model->hparams;
    const size_t n = model->max_batch_tokens;
    const size_t matmul_bytes = firni_matmul_scratch_bytes(firni_step_inputs_max(hp), model->max_batch_tokens);
    size_t total = 0;
    size_t x, h, wide, cos_sin, matmul, positions, wanted, needed;
    const bool fits = lay_out(&total, n * hp->n_embd, sizeof(float), &x) &&
                      lay_out(&total, n * firni_step_h_width(hp), sizeof(float), &h) &&
                      lay_out(&total, n * firni_step_wide_width(hp), sizeof(float), &wide) &&
                      lay_out(&total, n * hp->rope.n_dims, sizeof(float), &cos_sin) &&
                      lay_out(&total, matmul_bytes, 1, &matmul) &&
                      lay_out(&total, n, sizeof(uint32_t), &positions) &&
                      lay_out(&total, n, sizeof(uint32_t), &wanted) &&
                      lay_out(&total, model->max_rows, sizeof(uint32_t), &needed);
    uint8_t *memory = fits ? firni_alloc_aligned(model->env, total, SCRATCH_ALIGN) : NULL;
    if (memory == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the %zu bytes that a forward of %lu tokens needs",
                          total, (unsigned long)model->max_batch_tokens);
    }
    model->scratch = (firni_scratch){
        .memory = memory,
        .x = (void *)(memory + x),
        .h = (void *)(memory + h),
        .wide = (void *)(memory + wide),
        .cos_sin = (void *)(memory + cos_sin),
        .matmul = memory + matmul,
        .positions = (void *)(memory + positions),
        .wanted = (void *)(memory + wanted),
        .needed = (void *)(memory + needed),
    };
    return FIRN_OK;
}

/* ---- 1. checks ---- */

/* Caches come from the caller, one for each layer: they must fit the model, and all layers must be at one position, or
 * the state would be of no prefix at all. */
static firn_status check_caches(const firn_model *model, const firn_forward_input *input, firn_error *err)
{
    for (uint32_t i = 0; i < model->hparams.n_layers; i++) {
        const firn_cache *cache = input->caches[i];
        const firn_cache_options *want = &model->cache_options[i];
        const firn_cache_options *have = firn_cache_get_options(cache);
        const uint32_t value_dim = have->value_dim == 0 ? have->head_dim : have->value_dim;
        if (have->n_kv_heads != want->n_kv_heads || have->head_dim != want->head_dim || value_dim != want->value_dim) {
            return firni_fail(err, FIRN_ERR_INVALID, "the cache of layer %lu is of another geometry: %s",
                              (unsigned long)i, firn_cache_describe(cache));
        }
        if (firn_cache_batch_size(cache) != input->n_rows) {
            return firni_fail(err, FIRN_ERR_INVALID, "the cache of layer %lu has %lu rows, the batch %lu",
                              (unsigned long)i, (unsigned long)firn_cache_batch_size(cache),
                              (unsigned long)input->n_rows);
        }
        for (uint32_t r = 0; r < input->n_rows; r++) {
            if (firn_cache_row_tokens(cache, r) != firn_cache_row_tokens(input->caches[0], r)) {
                return firni_fail(err, FIRN_ERR_INVALID, "row %lu has %lu tokens in layer %lu and %lu in layer 0",
                                  (unsigned long)r, (unsigned long)firn_cache_row_tokens(cache, r), (unsigned long)i,
                                  (unsigned long)firn_cache_row_tokens(input->caches[0], r));
            }
        }
    }
    return FIRN_OK;
}

/* The sum is kept in 64 bits: counts are whatever the caller says. */
static firn_status check_input(const firn_model *model, const firn_forward_input *input, uint32_t *n_tokens,
                               firn_error *err)
{
    uint64_t sum = 0;
    if (input->n_rows > model->max_rows) {
        return firni_fail(err, FIRN_ERR_INVALID, "%lu rows: this model was opened for %lu",
                          (unsigned long)input->n_rows, (unsigned long)model->max_rows);
    }
    for (uint32_t r = 0; r < input->n_rows; r++) {
        sum += input->counts[r];
    }
    if (sum > model->max_batch_tokens) {
        return firni_fail(err, FIRN_ERR_INVALID, "%llu tokens: this model was opened for %lu", (unsigned long long)sum,
                          (unsigned long)model->max_batch_tokens);
    }
    for (uint64_t i = 0; i < sum; i++) {
        if (input->tokens[i] >= model->hparams.n_vocab) {
            return firni_fail(err, FIRN_ERR_INVALID, "token %lu is outside the vocabulary of %lu",
                              (unsigned long)input->tokens[i], (unsigned long)model->hparams.n_vocab);
        }
    }
    *n_tokens = (uint32_t)sum;
    return check_caches(model, input, err);
}

/* ---- 2. plan ---- */

static bool is_wanted(const firn_forward_input *input, uint32_t token, bool is_last_of_row)
{
    return input->want_logits == NULL ? is_last_of_row : input->want_logits[token] != 0;
}

/* Fills positions, needed and wanted; returns the number of wanted logits. A row needs its tokens from the first wanted
 * one on; `wanted` counts places among the needed tokens of all rows. */
static uint32_t plan(const firn_model *model, const firn_forward_input *input, uint32_t *n_needed)
{
    const firni_scratch *s = &model->scratch;
    uint32_t token = 0;
    uint32_t n_wanted = 0;
    *n_needed = 0;
    for (uint32_t r = 0; r < input->n_rows; r++) {
        const uint32_t start = firn_cache_row_tokens(input->caches[0], r);
        s->needed[r] = 0;
        for (uint32_t i = 0; i < input->counts[r]; i++, token++) {
            s->positions[token] = start + i;
            const bool wanted = is_wanted(input, token, i + 1 == input->counts[r]);
            if (wanted && s->needed[r] == 0) {
                s->needed[r] = input->counts[r] - i;
            }
            if (wanted) {
                s->wanted[n_wanted++] = *n_needed + s->needed[r] - (input->counts[r] - i);
            }
        }
        *n_needed += s->needed[r];
    }
    return n_wanted;
}

/* ---- 4. and 5. ---- */

typedef struct embed_ctx {
    const firn_model *model;
    const firn_token *tokens;
} embed_ctx;

/* Everything that depends on a token alone: its embedding row and the rotation of its position. */
static void embed_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const embed_ctx *e = ctx;
    const firni_scratch *s = &e->model->scratch;
    const firni_row_table *table = &e->model->embedding;
    firni_weight_row_to_f32(table->type, table->rows + (size_t)e->tokens[token] * table->row_bytes, table->n_cols,
                            step->x + (size_t)token * table->n_cols);
    firni_rope_angles(&e->model->rope, s->positions[token], s->cos_sin + (size_t)token * e->model->rope.n_dims);
}

typedef struct final_norm_ctx {
    const float *weight;
    const uint32_t *wanted;
} final_norm_ctx;

/* Gathers: the wanted tokens' rows of x become the first rows of h. */
static void final_norm_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const final_norm_ctx *f = ctx;
    const size_t n = step->hparams->n_embd;
    step->kernels->rms_norm(step->h + token * n, step->x + f->wanted[token] * n, f->weight, (uint32_t)n,
                            step->hparams->rms_eps);
}

typedef struct finish_ctx {
    const firni_projection *projection;
    float *logits;
} finish_ctx;

/* Does nothing for most models: output matrices rarely have a bias. */
static void finish_logits_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const finish_ctx *f = ctx;
    firni_projection_finish(step->kernels, f->projection, f->logits + (size_t)token * f->projection->n_rows);
}

static void compute_logits(const firn_model *model, firni_step *step, uint32_t n_wanted, float *logits)
{
    const final_norm_ctx ctx = { .weight = model->output_norm, .wanted = model->scratch.wanted };
    step->n_tokens = n_wanted;
    firni_step_each_token(step, final_norm_token, &ctx);
    firni_step_project(step, &model->output, step->h, model->hparams.n_embd, logits, model->hparams.n_vocab);
    const finish_ctx finish = { .projection = &model->output, .logits = logits };
    firni_step_each_token(step, finish_logits_token, &finish);
}

firn_status firn_model_forward(firn_model *model, const firn_forward_input *input, firn_error *err)
{
    const firni_hparams *hp = &model->hparams;
    const firni_scratch *s = &model->scratch;
    uint32_t n_tokens = 0;
    uint32_t n_needed = 0;
    firn_status status = check_input(model, input, &n_tokens, err);
    if (status != FIRN_OK || n_tokens == 0) {
        return status;
    }
    const uint32_t n_wanted = plan(model, input, &n_needed);
    assert(n_wanted == 0 || input->logits != NULL);
    /* Room in every layer before any layer advances. A later layer's refusal leaves spare room in the earlier ones,
     * which shows nowhere: no row's tokens have changed. */
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        status = firn_cache_reserve(input->caches[i], input->counts, err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    firni_step step = {
        .kernels = model->kernels,
        .workers = model->workers,
        .hparams = hp,
        .n_rows = input->n_rows,
        .n_tokens = n_tokens,
        .counts = input->counts,
        .needed = s->needed,
        .n_needed = n_needed,
        .cos_sin = s->cos_sin,
        .x = s->x,
        .h = s->h,
        .wide = s->wide,
        .matmul_scratch = s->matmul,
    };
    const embed_ctx embed = { .model = model, .tokens = input->tokens };
    firni_step_each_token(&step, embed_token, &embed);
    /* From here on nothing fails. */
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        step.cache = input->caches[i];
        step.is_last_layer = i + 1 == hp->n_layers;
        model->arch->forward_layer(&step, model->layers, i);
    }
    assert(step.n_tokens == n_needed);
    if (n_wanted > 0) {
        compute_logits(model, &step, n_wanted, input->logits);
    }
    return FIRN_OK;
}
