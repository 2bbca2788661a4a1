/*
 * Opens a model: file, hyperparameters, tokenizer, weights, scratch, schema, in this order. Owns all of them.
 *
 * What a model computes is in forward.c and below; what its state depends on is in model_schema.c.
 */
#include <math.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/gguf_impl.h"
#include "model/model_impl.h"
#include "model/model_workers.h"
#include "model/packed_file.h"
#include "model/vocab_spec.h"

#define BATCH_TOKENS_DEFAULT 512u
#define BATCH_TOKENS_MAX (1u << 16)
#define ROWS_DEFAULT 64u
#define ROWS_MAX (1u << 12)

/* Limits keep products of options and hyperparameters far from overflow. */
static firn_status check_options(const firn_model_options *options, firn_error *err)
{
    if (options->path == NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "a model needs a path");
    }
    if (options->max_batch_tokens > BATCH_TOKENS_MAX || options->max_rows > ROWS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a forward of %lu tokens and %lu rows: at most %u and %u",
                          (unsigned long)options->max_batch_tokens, (unsigned long)options->max_rows, BATCH_TOKENS_MAX,
                          ROWS_MAX);
    }
    return FIRN_OK;
}

/* The architecture decides how everything after it is read. */
static firn_status read_architecture(firn_model *model, firn_error *err)
{
    char name[32];
    firn_status status = firni_hparams_architecture(model->gguf, name, err);
    if (status != FIRN_OK) {
        return status;
    }
    model->arch = firni_arch_find(name);
    if (model->arch == NULL) {
        char known[200];
        firni_arch_list(known, sizeof known);
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "%s: architecture '%s' is not supported; this build runs %s",
                          firni_gguf_path(model->gguf), name, known);
    }
    status = firni_hparams_read(model->gguf, name, model->arch->read, &model->hparams, err);
    for (uint32_t i = 0; i < FIRNI_ROPES_MAX; i++) {
        model->hparams.ropes[i].interleaved = model->arch->rope_interleaved;
    }
    for (uint32_t i = 0; i < model->hparams.n_layers; i++) {
        if (i == firni_hparams_storing_layer(&model->hparams, model->hparams.layers[i].cache)) {
            model->last_storing_layer = i;
        }
    }
    return status;
}

/* Before the weights: a file without a usable vocabulary is refused at once, not after seconds of packing. */
static firn_status build_tokenizer(firn_model *model, firn_error *err)
{
    firni_vocab_spec spec = { .n_tokens = 0 };
    firn_status status = firni_vocab_from_gguf(model->gguf, model->env, &spec, err);
    if (status == FIRN_OK) {
        status = firni_tokenizer_create(&spec, model->env, &model->tokenizer, err);
    }
    firni_vocab_spec_deinit(&spec);
    if (status == FIRN_OK && firn_tokenizer_n_tokens(model->tokenizer) > model->hparams.n_vocab) {
        /* More embedding rows than tokens are padding; fewer would be read beyond the end. */
        status = firni_fail(err, FIRN_ERR_FORMAT, "%s: %lu tokens, but 'token_embd.weight' has %lu rows",
                            firni_gguf_path(model->gguf), (unsigned long)firn_tokenizer_n_tokens(model->tokenizer),
                            (unsigned long)model->hparams.n_vocab);
    }
    return status;
}

/* Llama 3 files carry their frequency scaling, of the first rotation, as divisors in a tensor. Zero or NaN among them
 * would turn positions into infinities that reach every logit. */
static firn_status build_rope(firn_model *model, firni_loader *loader, firn_error *err)
{
    static const char name[] = "rope_freqs.weight";
    const firni_rope_params *params = &model->hparams.ropes[0];
    const float *factors = NULL;
    if (firni_loader_has(loader, name)) {
        const firn_status status = firni_load_vector(loader, name, params->n_dims / 2, &factors, err);
        if (status != FIRN_OK) {
            return status;
        }
        for (uint32_t i = 0; i < params->n_dims / 2; i++) {
            /* A negative one turns the other way: odd, but well defined. 1e30 is how files say that a pair does not
             * turn. */
            if (!(fabsf(factors[i]) > 1e-9F && fabsf(factors[i]) < 1e31F)) {
                return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%s': divisor %lu is %g",
                                  firni_gguf_path(model->gguf), name, (unsigned long)i, (double)factors[i]);
            }
        }
    }
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < model->hparams.n_ropes && status == FIRN_OK; i++) {
        status = firni_rope_init(&model->ropes[i], &params[i], i == 0 ? factors : NULL, model->env, err);
    }
    return status;
}

/* Tensors outside the layers. Without an output matrix the embedding serves as one. */
static firn_status load_ends(firn_model *model, firni_loader *loader, firn_error *err)
{
    const firni_hparams *hp = &model->hparams;
    const bool tied = !firni_loader_has(loader, "output.weight");
    const firni_stack_part output = {
        .name = tied ? "token_embd" : "output",
        .n_rows = hp->n_vocab,
    };
    firn_status status = firni_load_row_table(loader, "token_embd.weight", hp->n_vocab, hp->n_embd, &model->embedding,
                                              err);
    if (status == FIRN_OK) {
        status = firni_load_vector(loader, "output_norm.weight", hp->n_embd, &model->output_norm, err);
    }
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &output, 1, hp->n_embd, &model->output, err);
    }
    return status;
}

/* Ends first: they are the largest tensors, and the most telling when a file is not what its keys say. */
static firn_status load_weights(firn_model *model, const firn_model_options *options, firn_error *err)
{
    firni_loader loader;
    model->weights.env = model->env;
    firn_status status = firni_loader_init(&loader, model->gguf, &model->weights, model->workers, model->env, err);
    if (status != FIRN_OK) {
        return status;
    }
    loader.progress = options->progress;
    loader.progress_ctx = options->progress_ctx;
    status = build_rope(model, &loader, err);
    if (status == FIRN_OK) {
        status = load_ends(model, &loader, err);
    }
    if (status == FIRN_OK) {
        status = model->arch->load(&loader, &model->hparams, &model->layers, err);
    }
    if (status == FIRN_OK) {
        status = firni_loader_check_all_used(&loader, model->arch->name, err);
    }
    if (status == FIRN_OK && loader.progress != NULL) {
        loader.progress(loader.progress_ctx, 1.0F);
    }
    firni_loader_deinit(&loader);
    return status;
}

/* general.name when it is fit to be shown, else the file's base name. */
static firn_status copy_name(firn_model *model, firn_error *err)
{
    const char *path = firni_gguf_path(model->gguf);
    const char *slash = strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    firni_gguf_string name = { .data = NULL, .len_bytes = 0 };
    bool found = false;
    const firn_status status = firni_gguf_get_string(model->gguf, "general.name", &name, &found, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (!found || !firni_gguf_name_is_sound(name)) {
        name = (firni_gguf_string){ .data = base, .len_bytes = strlen(base) };
    }
    model->name = firni_calloc(model->env, name.len_bytes + 1, 1);
    if (model->name == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for its name", path);
    }
    memcpy(model->name, name.data, name.len_bytes);
    return FIRN_OK;
}

/* Facts as of now; all pointers lead into the model itself. */
static void fill_info(firn_model *model)
{
    const firni_hparams *hp = &model->hparams;
    model->info = (firn_model_info){
        .name = model->name,
        .architecture = model->arch->name,
        .kernel = model->kernels->name,
        .weight_type = firni_weight_type_name(firni_weights_main_type(&model->weights)),
        .kv = model->kv_name,
        .n_vocab = hp->n_vocab,
        .n_layers = hp->n_layers,
        .n_embd = hp->n_embd,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .n_ctx_train = hp->n_ctx_train,
        .n_params = model->weights.n_params,
        .weight_bytes = model->weights.packed_bytes,
        .weights_mapped = model->weights.packed != NULL,
        .packed_bytes_due = firni_model_packed_bytes_due(model),
    };
}

/* Cheap checks come before expensive ones. Whatever exists when a step fails is released by firn_model_close, which
 * takes a model in any state of construction. */
static firn_status open_into(firn_model *model, const firn_model_options *options, firn_error *err)
{
    model->kernels = firni_kernels_select(options->kernel, err);
    if (model->kernels == NULL) {
        return FIRN_ERR_UNSUPPORTED;
    }
    firn_status status = firni_gguf_open(options->path, model->env, &model->gguf, err);
    if (status == FIRN_OK) {
        status = read_architecture(model, err);
    }
    if (status == FIRN_OK) {
        status = firni_model_plan_caches(model, options, err);
    }
    if (status == FIRN_OK) {
        status = copy_name(model, err);
    }
    if (status == FIRN_OK) {
        status = build_tokenizer(model, err);
    }
    if (status == FIRN_OK) {
        status = firni_gguf_fingerprint(model->gguf, model->fingerprint, err);
    }
    if (status == FIRN_OK) {
        firni_model_find_packed(model, options);
        status = load_weights(model, options, err);
    }
    if (status == FIRN_OK) {
        status = firni_scratch_init(model, err);
    }
    if (status == FIRN_OK) {
        status = firni_model_build_schema(model, err);
    }
    if (status == FIRN_OK) {
        firni_model_keep_packed(model, options);
    }
    return status;
}

firn_status firn_model_open(const firn_model_options *options, const firn_env *env, firn_model **out, firn_error *err)
{
    *out = NULL;
    const uint64_t began_ns = firni_now_ns(env);
    firn_status status = check_options(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    firn_model *model = firni_calloc(env, 1, sizeof *model);
    if (model == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to open it", options->path);
    }
    model->env = env;
    model->workers = options->workers;
    model->max_batch_tokens = options->max_batch_tokens == 0 ? BATCH_TOKENS_DEFAULT : options->max_batch_tokens;
    model->max_rows = options->max_rows == 0 ? ROWS_DEFAULT : options->max_rows;
    status = open_into(model, options, err);
    if (status != FIRN_OK) {
        firn_model_close(model);
        return status;
    }
    fill_info(model);
    model->info.open_ns = firni_now_ns(env) - began_ns;
    *out = model;
    return FIRN_OK;
}

/* In reverse order of construction; the weights' row table points into the file, which goes last. What writes packed
 * weights reads them. */
void firn_model_close(firn_model *model)
{
    if (model == NULL) {
        return;
    }
    firni_packed_keeper_destroy(model->packed_keeper);
    firn_identity_destroy(model->identity);
    firni_free(model->env, model->cache_options);
    firni_free(model->env, model->cache_describes);
    firni_free(model->env, model->scratch.memory);
    firni_weights_deinit(&model->weights);
    for (uint32_t i = 0; i < FIRNI_ROPES_MAX; i++) {
        firni_rope_deinit(&model->ropes[i]);
    }
    firni_tokenizer_destroy(model->tokenizer);
    firni_free(model->env, model->name);
    firni_gguf_close(model->gguf);
    firni_free(model->env, model);
}

const firn_model_info *firn_model_get_info(const firn_model *model)
{
    return &model->info;
}

const firn_schema *firn_model_schema(const firn_model *model)
{
    return &model->schema;
}

const firn_tokenizer *firn_model_tokenizer(const firn_model *model)
{
    return model->tokenizer;
}

uint64_t firn_model_multiply_adds(const firn_model *model)
{
    return model->multiply_adds;
}

firn_workers *firni_model_workers(const firn_model *model)
{
    return model->workers;
}
