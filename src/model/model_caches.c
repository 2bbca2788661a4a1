/*
 * The caches that a model needs: its layers' geometry with the user's choice of how state is kept, checked before a
 * weight is read. A choice that some layer cannot take is refused as a whole, naming those layers: half a model in
 * another precision is not what anybody asked for.
 */
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/model_impl.h"

static firn_dtype plain_dtype(const firn_model_options *options)
{
    return options->kv_dtype == FIRN_DTYPE_NONE ? FIRN_DTYPE_F16 : options->kv_dtype;
}

static firn_status check_scheme(const firn_model_options *options, firn_error *err)
{
    const firn_kv_scheme *scheme = &options->kv_scheme;
    const firn_dtype dtype = plain_dtype(options);
    if (scheme->kind != FIRN_KV_PLAIN && scheme->kind != FIRN_KV_AFFINE && scheme->kind != FIRN_KV_TURBO) {
        return firni_fail(err, FIRN_ERR_INVALID, "attention state of kind %d", (int)scheme->kind);
    }
    if (dtype != FIRN_DTYPE_F32 && dtype != FIRN_DTYPE_F16 && dtype != FIRN_DTYPE_BF16) {
        return firni_fail(err, FIRN_ERR_INVALID, "state of type %s: attention state is f32, f16 or bf16",
                          firn_dtype_name(dtype));
    }
    if (scheme->kind != FIRN_KV_PLAIN && options->kv_dtype != FIRN_DTYPE_NONE) {
        return firni_fail(err, FIRN_ERR_INVALID, "quantised state has no element type; %s was given",
                          firn_dtype_name(options->kv_dtype));
    }
    if (scheme->kind == FIRN_KV_PLAIN && (scheme->key_bits != 0 || scheme->value_bits != 0 || scheme->group != 0)) {
        return firni_fail(err, FIRN_ERR_INVALID, "bits of %u and %u and groups of %u belong to quantised state",
                          scheme->key_bits, scheme->value_bits, scheme->group);
    }
    if (scheme->kind == FIRN_KV_PLAIN && scheme->delay_tokens != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a delay of %u tokens belongs to quantised state",
                          scheme->delay_tokens);
    }
    return FIRN_OK;
}

/* The family of a layer that keeps all tokens or a window of them. */
static const char *quantised_layout(const firn_kv_scheme *scheme, bool is_window)
{
    const bool is_delayed = scheme->delay_tokens > 0;
    if (scheme->kind == FIRN_KV_TURBO) {
        return is_delayed ? "kv:delayed-turboquant" : "kv:turboquant";
    }
    if (is_window) {
        return is_delayed ? "kv:delayed-window-quant" : "kv:window-quant";
    }
    return is_delayed ? "kv:delayed-quant" : "kv:quant";
}

/* As a user types it. */
static void name_scheme(firn_model *model, const firn_model_options *options)
{
    const firn_kv_scheme *scheme = &options->kv_scheme;
    const unsigned key_bits = scheme->key_bits != 0 ? scheme->key_bits : 8;
    const unsigned value_bits = scheme->value_bits != 0 ? scheme->value_bits : 3;
    switch (scheme->kind) {
    case FIRN_KV_AFFINE: (void)snprintf(model->kv_name, sizeof model->kv_name, "q%u", key_bits); break;
    case FIRN_KV_TURBO:
        (void)snprintf(model->kv_name, sizeof model->kv_name, "turbo:k%uv%u", key_bits, value_bits);
        break;
    case FIRN_KV_PLAIN:
        (void)snprintf(model->kv_name, sizeof model->kv_name, "%s", firn_dtype_name(plain_dtype(options)));
        break;
    }
}

/* From the plain layouts that architectures ask for to those of the scheme; INVALID when there is none for it. Layouts
 * without keys and values stay as they are. */
static firn_status apply_scheme(const firn_model_options *options, firn_cache_options *cache, firn_error *err)
{
    const firn_kv_scheme *scheme = &options->kv_scheme;
    const bool is_plain = strcmp(cache->layout, "kv:plain") == 0;
    const bool is_window = strcmp(cache->layout, "kv:window") == 0;
    if (scheme->kind == FIRN_KV_PLAIN || strncmp(cache->layout, "kv:", 3) != 0) {
        cache->dtype = plain_dtype(options);
        return FIRN_OK;
    }
    if (!is_plain && !is_window) {
        return firni_fail(err, FIRN_ERR_INVALID, "it has no form for %s, which holds compressed state already",
                          cache->layout);
    }
    if (is_window && scheme->kind == FIRN_KV_TURBO) {
        return firni_fail(err, FIRN_ERR_INVALID, "it has no form for windows, such as theirs of %u tokens",
                          cache->window);
    }
    cache->key_bits = scheme->key_bits;
    cache->value_bits = scheme->value_bits;
    cache->group = scheme->group;
    cache->start = scheme->delay_tokens;
    cache->layout = quantised_layout(scheme, is_window);
    return FIRN_OK;
}

/* ---- which layers refuse ----------------------------------------------------------------------------------------- */

/* Numbers in ascending order as "0-4, 6, 8-10"; what does not fit is left off with "...". */
typedef struct layer_list {
    char text[96];
    size_t len;
    uint32_t first, last; /* of the range that is not written yet */
    uint32_t n;
} layer_list;

static void write_range(layer_list *list)
{
    char range[32];
    const char *comma = list->len > 0 ? ", " : "";
    const int len = list->first == list->last
                        ? snprintf(range, sizeof range, "%s%u", comma, list->first)
                        : snprintf(range, sizeof range, "%s%u-%u", comma, list->first, list->last);
    if (list->len + (size_t)len + sizeof ", ..." < sizeof list->text) {
        memcpy(list->text + list->len, range, (size_t)len + 1);
        list->len += (size_t)len;
    } else if (list->len > 0 && list->text[list->len - 1] != '.') {
        memcpy(list->text + list->len, ", ...", sizeof ", ...");
        list->len += strlen(", ...");
    }
}

static void add_layer(layer_list *list, uint32_t layer)
{
    if (list->n > 0 && layer == list->last + 1) {
        list->last = layer;
    } else {
        if (list->n > 0) {
            write_range(list);
        }
        list->first = list->last = layer;
    }
    list->n++;
}

static firn_status fail_layers(const firn_model *model, layer_list *list, const char *why, firn_error *err)
{
    write_range(list);
    return firni_fail(err, FIRN_ERR_INVALID, "%s: state of %s does not fit layer%s %s: %s; f16, bf16 and f32 fit all",
                      firni_gguf_path(model->gguf), model->kv_name, list->n > 1 ? "s" : "", list->text, why);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* The layer's own words for its layout and geometry, or its refusal. An empty cache says them; it allocates
 * no blocks. */
static firn_status describe_cache(firn_model *model, uint32_t index, firn_pool *pool, firn_error *err)
{
    firn_cache *cache = NULL;
    const firn_status status = firn_cache_create(&model->cache_options[index], pool, model->env, &cache, err);
    if (status == FIRN_OK) {
        (void)snprintf(model->cache_describes[index], FIRNI_DESCRIBE_BYTES, "%s", firn_cache_describe(cache));
    }
    firn_cache_destroy(cache);
    return status;
}

/* The first refusal's reason stands for all of them: layers differ in few ways, and the user needs one. */
static firn_status plan_caches(firn_model *model, const firn_model_options *options, firn_pool *pool, firn_error *err)
{
    layer_list refused = { .n = 0 };
    uint32_t n_keyed = 0;
    firn_error why = { .message = "" };
    for (uint32_t i = 0; i < model->hparams.n_caches; i++) {
        const uint32_t layer = firni_hparams_storing_layer(&model->hparams, i);
        firn_cache_options *cache = &model->cache_options[i];
        model->arch->cache_options(&model->hparams, layer, cache);
        cache->kernel = model->kernels->name;
        firn_error refusal = { .message = "" };
        n_keyed += strncmp(cache->layout, "kv:", 3) == 0;
        firn_status status = apply_scheme(options, cache, &refusal);
        if (status == FIRN_OK) {
            status = describe_cache(model, i, pool, &refusal);
        }
        if (status == FIRN_ERR_INVALID && options->kv_scheme.kind != FIRN_KV_PLAIN) {
            why = refused.n == 0 ? refusal : why;
            add_layer(&refused, layer);
        } else if (status != FIRN_OK) {
            if (err != NULL) {
                *err = refusal;
            }
            return status;
        }
    }
    if (n_keyed == 0 && options->kv_scheme.kind != FIRN_KV_PLAIN) {
        return firni_fail(err, FIRN_ERR_INVALID, "%s: state of %s: no layer of this model has keys and values",
                          firni_gguf_path(model->gguf), model->kv_name);
    }
    return refused.n > 0 ? fail_layers(model, &refused, why.message, err) : FIRN_OK;
}

firn_status firni_model_plan_caches(firn_model *model, const firn_model_options *options, firn_error *err)
{
    firn_status status = check_scheme(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    name_scheme(model, options);
    const uint32_t n_caches = model->hparams.n_caches;
    model->cache_options = firni_calloc(model->env, n_caches, sizeof *model->cache_options);
    model->cache_describes = firni_calloc(model->env, n_caches, sizeof *model->cache_describes);
    if (model->cache_options == NULL || model->cache_describes == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the schema of %lu layers", (unsigned long)n_caches);
    }
    /* A cache needs a pool; the smallest budget there is, is never touched. */
    const firn_pool_options pool_options = { .budget_bytes = FIRN_BLOCK_ALIGN };
    firn_pool *pool = NULL;
    status = firn_pool_create(&pool_options, model->env, &pool, err);
    if (status == FIRN_OK) {
        status = plan_caches(model, options, pool, err);
        firn_pool_destroy(pool);
    }
    return status;
}
