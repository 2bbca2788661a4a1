/*
 * One forward: tokens of a ragged batch through all layers, logits where they are wanted.
 *
 *   1. check everything that the caller passed
 *   2. plan: each token's position, and which tokens the wanted logits depend on
 *   3. reserve room in every cache; from here on nothing can fail but the caller's own state, when it is still arriving
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
#include "model/packed_file.h"

#define SCRATCH_ALIGN 64u

static_assert(FIRNI_ROPES_MAX == 2, "scratch is laid out for two rotations");

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
    firni_widths widths = firni_step_widths(hp);
    if (model->arch->widths != NULL) {
        model->arch->widths(hp, &widths);
    }
    const size_t matmul_bytes = firni_matmul_scratch_bytes(widths.inputs_max, model->max_batch_tokens);
    const size_t extra_bytes =
        model->arch->extra_bytes != NULL ? model->arch->extra_bytes(hp, model->max_batch_tokens) : 0;
    size_t total = 0;
    size_t x, h, wide, cos_sin[FIRNI_ROPES_MAX], matmul, extra, positions, wanted, needed;
    const bool fits = lay_out(&total, n * hp->n_embd, sizeof(float), &x) &&
                      lay_out(&total, n * widths.h, sizeof(float), &h) &&
                      lay_out(&total, n * widths.wide, sizeof(float), &wide) &&
                      lay_out(&total, n * hp->ropes[0].n_dims, sizeof(float), &cos_sin[0]) &&
                      lay_out(&total, n * hp->ropes[1].n_dims, sizeof(float), &cos_sin[1]) &&
                      lay_out(&total, matmul_bytes, 1, &matmul) &&
                      lay_out(&total, extra_bytes, 1, &extra) &&
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
        .cos_sin = { (void *)(memory + cos_sin[0]), (void *)(memory + cos_sin[1]) },
        .matmul = memory + matmul,
        .extra = memory + extra,
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
    for (uint32_t i = 0; i < model->hparams.n_caches; i++) {
        const firn_cache *cache = input->caches[i];
        if (strcmp(firn_cache_describe(cache), model->cache_describes[i]) != 0) {
            return firni_fail(err, FIRN_ERR_INVALID, "the cache of layer %lu is \"%s\"; the model needs \"%s\"",
                              (unsigned long)i, firn_cache_describe(cache), model->cache_describes[i]);
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

/* Everything that depends on a token alone: its embedding row and the rotation of its position. */
static void embed_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const firn_model *model = ctx;
    const firni_scratch *s = &model->scratch;
    const firni_row_table *table = &model->embedding;
    float *x = step->x + (size_t)token * table->n_cols;
    firni_weight_row_to_f32(table->type, table->rows + (size_t)step->tokens[token] * table->row_bytes, table->n_cols,
                            x);
    if (step->hparams->embedding_scale != 1.0F) {
        for (uint32_t i = 0; i < table->n_cols; i++) {
            x[i] *= step->hparams->embedding_scale;
        }
    }
    for (uint32_t i = 0; i < step->hparams->n_ropes; i++) {
        const firni_rope *rope = &model->ropes[i];
        firni_rope_angles(rope, s->positions[token], s->cos_sin[i] + (size_t)token * rope->n_dims);
    }
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

/* Does nothing for most models: output matrices rarely have a bias, and few models cap their logits. */
static void finish_logits_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const finish_ctx *f = ctx;
    float *logits = f->logits + (size_t)token * f->projection->n_rows;
    firni_projection_finish(step->kernels, f->projection, logits);
    if (step->hparams->logit_softcap != 0.0F) {
        step->kernels->softcap(logits, f->projection->n_rows, step->hparams->logit_softcap);
    }
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
    for (uint32_t i = 0; i < hp->n_caches; i++) {
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
        .tokens = input->tokens,
        .cos_sin = { s->cos_sin[0], s->cos_sin[1] },
        .x = s->x,
        .h = s->h,
        .wide = s->wide,
        .matmul_scratch = s->matmul,
        .extra = s->extra,
        .multiply_adds = &model->multiply_adds,
    };
    firni_step_each_token(&step, embed_token, model);
    /* From here on nothing fails but what the caller may be waiting for. */
    if (model->arch->begin != NULL) {
        model->arch->begin(&step, model->layers);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        if (input->cache_ready != NULL && !input->cache_ready(input->cache_ctx, hp->layers[i].cache)) {
            return firni_fail(err, FIRN_ERR_CANCELLED, "the state of layer %lu did not come", (unsigned long)i);
        }
        step.layer = i;
        step.cache = input->caches[hp->layers[i].cache];
        step.is_last_to_store = i == model->last_storing_layer;
        model->arch->forward_layer(&step, model->layers, i);
    }
    /* Only now: later layers may have looked at what earlier ones stored. */
    for (uint32_t i = 0; i < hp->n_caches; i++) {
        firn_cache_settle(input->caches[i]);
    }
    assert(step.n_tokens == n_needed);
    if (n_wanted > 0) {
        compute_logits(model, &step, n_wanted, input->logits);
        if (model->packed_keeper != NULL) {
            firni_packed_keeper_begin(model->packed_keeper);
        }
    }
    return FIRN_OK;
}
