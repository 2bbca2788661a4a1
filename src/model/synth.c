/*
 * Writes synthetic models: keys, then one tensor after the other, each made row by row from a seeded generator.
 *
 * Owns numbers and the walks; what a model consists of is its architecture's file. Numbers come from splitmix64
 * (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), one stream per tensor; a weight is the
 * sum of four uniform 16-bit numbers, near enough to normal.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"
#include "model/ggml_type.h"
#include "model/synth_impl.h"
#include "model/synth_quantise.h"

#define ROWS_PER_WRITE 64u

/* How the elements of a tensor are drawn. */
typedef struct tensor_plan {
    char name[FIRNI_TENSOR_NAME_BYTES];
    firni_weight_type type;
    uint32_t n_cols;
    uint32_t n_rows;             /* of all experts together */
    uint32_t n_experts;          /* 0: no dimension for them */
    bool is_vector;
    float mean;
    float deviation;
    const float *values;         /* not NULL: the one row itself, nothing is drawn */
} tensor_plan;

typedef enum walk_kind { WALK_COUNT, WALK_DECLARE, WALK_WRITE } walk_kind;

struct firni_synth {
    const firni_synth_options *options;
    const firni_synth_arch *arch;
    const firn_env *env;
    firni_gguf_writer *writer;
    walk_kind walk;
    uint64_t n_elements_total;   /* what WALK_COUNT has counted */
    uint32_t n_cols_max;
    uint64_t n_elements_done;
    const float *rope_divisors;  /* NULL, or [head_dim / 2] */
    float *row;                  /* one row as f32 */
    uint8_t *encoded;            /* ROWS_PER_WRITE rows as they lie in the file */
    firn_status status;
    firn_error *err;
};

/* ---- numbers ---- */

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, deviation 1: four uniform numbers have the variance 4 * 65536^2 / 12. */
static float draw(uint64_t *state)
{
    const uint64_t bits = splitmix(state);
    const uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) + (uint32_t)(bits >> 32 & 0xffff) +
                         (uint32_t)(bits >> 48);
    return ((float)sum - 131070.0F) * (1.0F / 37837.0F);
}

/* Where a tensor's numbers begin: its name decides (FNV-1a), so that one more tensor changes no other. */
static uint64_t stream_of(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    }
    uint64_t state = seed ^ hash;
    return splitmix(&state);
}

/* Some rows at a time: a tensor may be larger than memory. */
static void write_tensor(firni_synth *s, const tensor_plan *plan)
{
    const size_t row_bytes = firni_weight_row_bytes(plan->type, plan->n_cols);
    uint64_t state = stream_of(s->options->seed, plan->name);
    for (uint32_t row = 0; row < plan->n_rows && s->status == FIRN_OK;) {
        const uint32_t left = plan->n_rows - row;
        const uint32_t n = left < ROWS_PER_WRITE ? left : ROWS_PER_WRITE;
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t k = 0; k < plan->n_cols; k++) {
                s->row[k] = plan->values != NULL ? plan->values[k] : plan->mean + plan->deviation * draw(&state);
            }
            firni_synth_quantise_row(plan->type, s->row, plan->n_cols, s->encoded + i * row_bytes);
        }
        s->status = firni_gguf_write_data(s->writer, s->encoded, n * row_bytes, s->err);
        row += n;
        s->n_elements_done += (uint64_t)n * plan->n_cols;
        if (s->options->progress != NULL) {
            s->options->progress(s->options->progress_ctx,
                                 (float)((double)s->n_elements_done / (double)s->n_elements_total));
        }
    }
    if (s->status == FIRN_OK) {
        s->status = firni_gguf_end_tensor(s->writer, s->err);
    }
}

static void visit(firni_synth *s, const tensor_plan *plan)
{
    if (s->status != FIRN_OK) {
        return;
    }
    switch (s->walk) {
    case WALK_COUNT:
        s->n_elements_total += (uint64_t)plan->n_rows * plan->n_cols;
        s->n_cols_max = plan->n_cols > s->n_cols_max ? plan->n_cols : s->n_cols_max;
        /* A row must be whole groups of its format. */
        if (firni_weight_row_bytes(plan->type, plan->n_cols) == 0) {
            s->status = firni_fail(s->err, FIRN_ERR_INVALID, "'%s' has rows of %lu weights, which are not whole groups "
                                   "of %s: width, ffn and heads * head-dim must be multiples of a group", plan->name,
                                   (unsigned long)plan->n_cols, firni_weight_type_name(plan->type));
        }
        break;
    case WALK_DECLARE: {
        const uint32_t n_experts = plan->n_experts > 0 ? plan->n_experts : 1;
        const uint64_t shape[3] = { plan->n_cols, plan->n_rows / n_experts, n_experts };
        firni_gguf_declare_tensor(s->writer, plan->name, firni_ggml_type_of_weight(plan->type), shape,
                                  plan->is_vector ? 1 : plan->n_experts > 0 ? 3 : 2,
                                  plan->n_rows * (uint64_t)firni_weight_row_bytes(plan->type, plan->n_cols));
        break;
    }
    case WALK_WRITE: write_tensor(s, plan); break;
    }
}

static void visit_named(firni_synth *s, int32_t layer, const char *name, tensor_plan plan)
{
    if (layer < 0) {
        (void)snprintf(plan.name, sizeof plan.name, "%s", name);
    } else {
        firni_layer_tensor_name(plan.name, (uint32_t)layer, name);
    }
    visit(s, &plan);
}

void firni_synth_vector(firni_synth *s, int32_t layer, const char *name, uint32_t n, float mean, float deviation)
{
    visit_named(s, layer, name, (tensor_plan){ .type = FIRNI_WEIGHT_F32, .n_cols = n, .n_rows = 1, .is_vector = true,
                                               .mean = mean, .deviation = deviation });
}

void firni_synth_values(firni_synth *s, int32_t layer, const char *name, uint32_t n, const float *values)
{
    visit_named(s, layer, name, (tensor_plan){ .type = FIRNI_WEIGHT_F32, .n_cols = n, .n_rows = 1, .is_vector = true,
                                               .values = values });
}

/* Rows that are not whole blocks of 256 take the nearest type with blocks of 32, as converters of real
 * models choose. */
static firni_weight_type type_for(firni_weight_type type, uint32_t n_cols)
{
    if (firni_weight_row_bytes(type, n_cols) != 0) {
        return type;
    }
    switch (type) {
    case FIRNI_WEIGHT_Q4_K: return FIRNI_WEIGHT_Q5_0;
    case FIRNI_WEIGHT_Q5_K: return FIRNI_WEIGHT_Q5_1;
    case FIRNI_WEIGHT_Q6_K: return FIRNI_WEIGHT_Q8_0;
    default: return type;
    }
}

void firni_synth_matrix(firni_synth *s, int32_t layer, const char *name, uint32_t n_rows, uint32_t n_cols,
                        float deviation)
{
    visit_named(s, layer, name, (tensor_plan){ .type = type_for(s->options->type, n_cols), .n_cols = n_cols,
                                               .n_rows = n_rows, .deviation = deviation });
}

void firni_synth_matrix_f32(firni_synth *s, int32_t layer, const char *name, uint32_t n_rows, uint32_t n_cols,
                            float mean, float deviation)
{
    visit_named(s, layer, name, (tensor_plan){ .type = FIRNI_WEIGHT_F32, .n_cols = n_cols, .n_rows = n_rows,
                                               .mean = mean, .deviation = deviation });
}

void firni_synth_experts(firni_synth *s, int32_t layer, const char *name, uint32_t n_experts, uint32_t n_rows,
                         uint32_t n_cols, float deviation)
{
    visit_named(s, layer, name, (tensor_plan){ .type = type_for(s->options->type, n_cols), .n_cols = n_cols,
                                               .n_rows = n_experts * n_rows, .n_experts = n_experts,
                                               .deviation = deviation });
}

float firni_synth_in(uint32_t n)
{
    return 1.0F / sqrtf((float)n);
}

float firni_synth_residual(const firni_synth_options *o, uint32_t n)
{
    return 1.0F / sqrtf(2.0F * (float)o->n_layers) / sqrtf((float)n);
}

const firni_synth_options *firni_synth_get_options(const firni_synth *s)
{
    return s->options;
}

/* Every tensor of the model, in file order. Tied embeddings have the output matrix's deviation, which matters more. */
static void walk(firni_synth *s, walk_kind kind)
{
    const firni_synth_options *o = s->options;
    const float in = firni_synth_in(o->n_embd);
    s->walk = kind;
    firni_synth_matrix(s, -1, "token_embd.weight", o->n_vocab, o->n_embd,
                       o->is_tied || s->arch->scales_embeddings ? in : 1.0F);
    for (uint32_t i = 0; i < o->n_layers; i++) {
        s->arch->layer(s, i);
    }
    if (s->rope_divisors != NULL) {
        firni_synth_values(s, -1, "rope_freqs.weight", o->head_dim / 2, s->rope_divisors);
    }
    if (s->arch->ends != NULL) {
        s->arch->ends(s);
    }
    firni_synth_vector(s, -1, "output_norm.weight", o->n_embd, 1.0F, 0.1F);
    if (!o->is_tied) {
        firni_synth_matrix(s, -1, "output.weight", o->n_vocab, o->n_embd, in);
    }
}

uint64_t firni_synth_n_params(const firni_synth_options *o)
{
    firni_synth s = { .options = o, .arch = firni_synth_arch_find(o->architecture) };
    assert(s.arch != NULL && "an architecture that can be written");
    walk(&s, WALK_COUNT);
    return s.n_elements_total;
}

/* ---- keys ---- */

static void full_key(const firni_synth *s, const char *suffix, char key[96])
{
    (void)snprintf(key, 96, "%s.%s", s->options->architecture, suffix);
}

void firni_synth_put_u32(firni_synth *s, const char *suffix, uint32_t value)
{
    char key[96];
    full_key(s, suffix, key);
    firni_gguf_put_u32(s->writer, key, value);
}

void firni_synth_put_f32(firni_synth *s, const char *suffix, float value)
{
    char key[96];
    full_key(s, suffix, key);
    firni_gguf_put_f32(s->writer, key, value);
}

void firni_synth_put_bool(firni_synth *s, const char *suffix, bool value)
{
    char key[96];
    full_key(s, suffix, key);
    firni_gguf_put_bool(s->writer, key, value);
}

void firni_synth_put_u32_array(firni_synth *s, const char *suffix, const uint32_t *values, uint32_t n)
{
    char key[96];
    full_key(s, suffix, key);
    firni_gguf_put_array(s->writer, key, FIRNI_GGUF_U32, values, n);
}

void firni_synth_put_common(firni_synth *s)
{
    const firni_synth_options *o = s->options;
    firni_synth_put_u32(s, "block_count", o->n_layers);
    firni_synth_put_u32(s, "context_length", o->n_ctx);
    firni_synth_put_u32(s, "embedding_length", o->n_embd);
    firni_synth_put_u32(s, "vocab_size", o->n_vocab);
    firni_synth_put_f32(s, "attention.layer_norm_rms_epsilon", 1e-5F);
}

/* Divisors in a tensor take the place of scaling keys. */
static void put_rope_scaling(firni_synth *s)
{
    static const char *const names[] = { "none", "linear", "llama3", "yarn" };
    const firni_synth_options *o = s->options;
    char key[96];
    if (o->rope_scaling == FIRNI_ROPE_SCALING_NONE || s->rope_divisors != NULL) {
        return;
    }
    full_key(s, "rope.scaling.type", key);
    firni_gguf_put_string(s->writer, key, names[o->rope_scaling], strlen(names[o->rope_scaling]));
    firni_synth_put_f32(s, "rope.scaling.factor", o->rope_factor);
    firni_synth_put_u32(s, "rope.scaling.original_context_length",
                        o->rope_original_context == 0 ? o->n_ctx : o->rope_original_context);
}

/* False when there was no memory for the vocabulary's arrays. */
static bool put_keys(firni_synth *s, const firni_vocab_spec *vocab)
{
    const firni_synth_options *o = s->options;
    char name[96];
    const int n = snprintf(name, sizeof name, "synthetic %s of %.1fM parameters, seed %llu", o->architecture,
                           (double)s->n_elements_total / 1e6, (unsigned long long)o->seed);
    firni_gguf_put_string(s->writer, "general.architecture", o->architecture, strlen(o->architecture));
    firni_gguf_put_string(s->writer, "general.name", name, (size_t)n);
    s->arch->keys(s);
    put_rope_scaling(s);
    return firni_vocab_to_gguf(vocab, s->writer) == FIRN_OK;
}

/* ---- the whole ---- */

/* The same limits that opening the file will apply, named after the flags of `firn synth`. */
static firn_status check_shape(const firni_synth_options *o, firn_error *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } limits[] = {
        { "layers", o->n_layers, FIRNI_LAYERS_MAX },
        { "width", o->n_embd, FIRNI_WIDTH_MAX },
        { "vocab", o->n_vocab, FIRNI_VOCAB_MAX },
        { "ctx", o->n_ctx, 1u << 30 },
    };
    const firni_synth_arch *arch = firni_synth_arch_find(o->architecture);
    if (arch == NULL) {
        char known[200];
        firni_synth_arch_list(known, sizeof known);
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "architecture '%s': this build writes %s", o->architecture, known);
    }
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].value == 0 || limits[i].value > limits[i].max) {
            return firni_fail(err, FIRN_ERR_INVALID, "%s is %lu, outside 1 to %lu", limits[i].name,
                              (unsigned long)limits[i].value, (unsigned long)limits[i].max);
        }
    }
    if (o->n_layers % arch->layer_period != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "layers is %lu; those of %s repeat every %lu",
                          (unsigned long)o->n_layers, arch->name, (unsigned long)arch->layer_period);
    }
    if (o->rope_scaling != FIRNI_ROPE_SCALING_NONE && !(o->rope_factor >= 1.0F)) {
        return firni_fail(err, FIRN_ERR_INVALID, "a rope scaling needs a factor of 1 or more");
    }
    return arch->check(o, err);
}

/* Llama 3 scaling as divisors: the unscaled frequencies over the scaled ones. Stays NULL for everything else. */
static firn_status make_rope_divisors(const firni_synth_options *o, const firn_env *env, float **out, firn_error *err)
{
    firni_rope_params params = {
        .n_dims = o->head_dim,
        .base = o->rope_base == 0.0F ? 10000.0F : o->rope_base,
        .factor = 1.0F,
    };
    firni_rope plain = { .env = env };
    firni_rope scaled = { .env = env };
    *out = NULL;
    if (o->rope_scaling != FIRNI_ROPE_SCALING_LLAMA3 || !o->rope_factors_as_tensor) {
        return FIRN_OK;
    }
    firn_status status = firni_rope_init(&plain, &params, NULL, env, err);
    params.scaling = FIRNI_ROPE_SCALING_LLAMA3;
    params.factor = o->rope_factor;
    params.original_context = o->rope_original_context == 0 ? o->n_ctx : o->rope_original_context;
    params.low_freq_factor = 1.0F;
    params.high_freq_factor = 4.0F;
    if (status == FIRN_OK) {
        status = firni_rope_init(&scaled, &params, NULL, env, err);
    }
    if (status == FIRN_OK) {
        *out = firni_calloc(env, o->head_dim / 2, sizeof **out);
        status = *out != NULL ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for rope frequencies");
    }
    for (uint32_t i = 0; i < o->head_dim / 2 && status == FIRN_OK; i++) {
        (*out)[i] = (float)(plain.frequencies[i] / scaled.frequencies[i]);
    }
    firni_rope_deinit(&plain);
    firni_rope_deinit(&scaled);
    return status;
}

/* `base` backs the strings of `out` and is released after it. */
static firn_status make_vocab(const firni_synth_options *o, const firn_env *env, firni_vocab_spec *base,
                              firni_vocab_spec *out, firn_error *err)
{
    if (o->tokenizer_json == NULL) {
        return firni_synth_vocab(NULL, o->n_vocab, env, out, err);
    }
    const firn_status status = firni_vocab_from_json(o->tokenizer_json, env, base, err);
    return status == FIRN_OK ? firni_synth_vocab(base, o->n_vocab, env, out, err) : status;
}

static firn_status write_file(firni_synth *s, const firni_vocab_spec *vocab)
{
    s->row = firni_calloc(s->env, s->n_cols_max, sizeof *s->row);
    s->encoded = firni_calloc(s->env, (size_t)s->n_cols_max * ROWS_PER_WRITE, sizeof(float));
    if (s->row == NULL || s->encoded == NULL) {
        return firni_fail(s->err, FIRN_ERR_NO_MEMORY, "no memory for rows of %lu weights",
                          (unsigned long)s->n_cols_max);
    }
    if (!put_keys(s, vocab)) {
        return firni_fail(s->err, FIRN_ERR_NO_MEMORY, "no memory for a vocabulary of %u tokens", vocab->n_tokens);
    }
    walk(s, WALK_DECLARE);
    s->status = firni_gguf_writer_begin_data(s->writer, s->err);
    walk(s, WALK_WRITE);
    return s->status == FIRN_OK ? firni_gguf_writer_finish(s->writer, s->err) : s->status;
}

firn_status firni_synth_write(const firni_synth_options *options, const char *path, const firn_env *env,
                              firn_error *err)
{
    firni_synth s = { .options = options, .env = env, .status = FIRN_OK, .err = err };
    firni_vocab_spec base = { .n_tokens = 0 };
    firni_vocab_spec vocab = { .n_tokens = 0 };
    float *divisors = NULL;
    firn_status status = check_shape(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    s.arch = firni_synth_arch_find(options->architecture);
    walk(&s, WALK_COUNT);
    if (s.status != FIRN_OK) {
        return s.status;
    }
    status = make_vocab(options, env, &base, &vocab, err);
    if (status == FIRN_OK) {
        status = make_rope_divisors(options, env, &divisors, err);
        s.rope_divisors = divisors;
    }
    if (status == FIRN_OK) {
        status = firni_gguf_writer_create(path, env, &s.writer, err);
    }
    if (status == FIRN_OK) {
        status = write_file(&s, &vocab);
    }
    firni_gguf_writer_destroy(s.writer);
    firni_free(env, s.row);
    firni_free(env, s.encoded);
    firni_free(env, divisors);
    firni_vocab_spec_deinit(&vocab);
    firni_vocab_spec_deinit(&base);
    return status;
}
