/*
 * Writes synthetic models: keys, then one tensor after the other, each made row by row from a seeded generator.
 *
 * Owns the list of tensors of an architecture, which is declared and then walked again to write them, so the two can
 * not disagree. Numbers come from splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
 * 2014), one stream per tensor; a weight is the sum of four uniform 16-bit numbers, near enough to normal.
 */
#include "model/synth.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"
#include "model/ggml_type.h"

#define Q8_GROUP 32u
#define ROWS_PER_WRITE 64u

/* How the elements of a tensor are drawn. */
typedef struct tensor_plan {
    char name[FIRNI_TENSOR_NAME_BYTES];
    firni_weight_type type;
    uint32_t n_cols;
    uint32_t n_rows;
    bool is_vector;
    float mean;
    float deviation;
    const float *values;         /* not NULL: the one row itself, nothing is drawn */
} tensor_plan;

typedef struct synth {
    const firni_synth_options *options;
    const firn_env *env;
    const firni_kernels *kernels;
    firni_gguf_writer *writer;
    bool is_writing;             /* second walk */
    uint64_t n_elements_total;
    uint64_t n_elements_done;
    const float *rope_divisors;  /* NULL, or [head_dim / 2] */
    float *row;                  /* one row as f32 */
    uint8_t *encoded;            /* ROWS_PER_WRITE rows as they lie in the file */
    firn_status status;
    firn_error *err;
} synth;

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

/* Groups of 32: scale = largest magnitude / 127, as f16; elements to the nearest multiple. */
static void encode_q8_0(const synth *s, uint32_t n_cols, uint8_t *out)
{
    for (uint32_t g = 0; g < n_cols / Q8_GROUP; g++) {
        const float *x = s->row + (size_t)g * Q8_GROUP;
        float largest = 0.0F;
        for (uint32_t i = 0; i < Q8_GROUP; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
        }
        const float scale = largest / 127.0F;
        const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
        uint16_t half;
        s->kernels->f32_to_f16(&half, &scale, 1);
        memcpy(out, &half, sizeof half);
        for (uint32_t i = 0; i < Q8_GROUP; i++) {
            out[2 + i] = (uint8_t)(int8_t)lrintf(x[i] * inverse);
        }
        out += 2 + Q8_GROUP;
    }
}

/* One row of f32 as it lies in the file. */
static void encode_row(const synth *s, const tensor_plan *plan, uint8_t *out)
{
    switch (plan->type) {
    case FIRNI_WEIGHT_F16: s->kernels->f32_to_f16((void *)out, s->row, plan->n_cols); break;
    case FIRNI_WEIGHT_BF16: s->kernels->f32_to_bf16((void *)out, s->row, plan->n_cols); break;
    case FIRNI_WEIGHT_Q8_0: encode_q8_0(s, plan->n_cols, out); break;
    case FIRNI_WEIGHT_F32:
    case FIRNI_WEIGHT_TYPES: memcpy(out, s->row, plan->n_cols * sizeof(float)); break;
    }
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
static void write_tensor(synth *s, const tensor_plan *plan)
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
            encode_row(s, plan, s->encoded + i * row_bytes);
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

/* Declares the tensor on the first walk, writes it on the second. */
static void visit(synth *s, const tensor_plan *plan)
{
    if (s->status != FIRN_OK) {
        return;
    }
    if (s->is_writing) {
        write_tensor(s, plan);
    } else {
        const uint64_t shape[2] = { plan->n_cols, plan->n_rows };
        firni_gguf_declare_tensor(s->writer, plan->name, firni_ggml_type_of_weight(plan->type), shape,
                                  plan->is_vector ? 1 : 2,
                                  plan->n_rows * (uint64_t)firni_weight_row_bytes(plan->type, plan->n_cols));
        s->n_elements_total += (uint64_t)plan->n_rows * plan->n_cols;
    }
}

static void visit_vector(synth *s, const char *name, uint32_t n, float mean, float deviation)
{
    tensor_plan plan = { .type = FIRNI_WEIGHT_F32, .n_cols = n, .n_rows = 1, .is_vector = true, .mean = mean,
                         .deviation = deviation };
    (void)snprintf(plan.name, sizeof plan.name, "%s", name);
    visit(s, &plan);
}

static void visit_matrix(synth *s, const char *name, uint32_t n_rows, uint32_t n_cols, float deviation)
{
    tensor_plan plan = { .type = s->options->type, .n_cols = n_cols, .n_rows = n_rows, .deviation = deviation };
    (void)snprintf(plan.name, sizeof plan.name, "%s", name);
    visit(s, &plan);
}

/* Deviation 1/sqrt(inputs) keeps the size of a normed vector. What is added to the residual stream is smaller by the
 * root of the number of additions, so that the stream grows to about twice its size over the whole depth. */
static void visit_layer(synth *s, uint32_t layer)
{
    const firni_synth_options *o = s->options;
    const uint32_t q = o->n_heads * o->head_dim;
    const uint32_t kv = o->n_kv_heads * o->head_dim;
    const float in = 1.0F / sqrtf((float)o->n_embd);
    const float residual = 1.0F / sqrtf(2.0F * (float)o->n_layers);
    const bool has_bias = strcmp(o->architecture, "qwen2") == 0;
    const bool has_qk_norm = strcmp(o->architecture, "qwen3") == 0;
    const struct {
        const char *suffix;
        uint32_t n_rows, n_cols; /* n_rows 0: a vector of n_cols */
        float mean, deviation;
        bool is_present;
    } tensors[] = {
        { "attn_norm.weight", 0, o->n_embd, 1.0F, 0.1F, true },
        { "attn_q.weight", q, o->n_embd, 0.0F, in, true },
        { "attn_k.weight", kv, o->n_embd, 0.0F, in, true },
        { "attn_v.weight", kv, o->n_embd, 0.0F, in, true },
        { "attn_q.bias", 0, q, 0.0F, 0.2F, has_bias },
        { "attn_k.bias", 0, kv, 0.0F, 0.2F, has_bias },
        { "attn_v.bias", 0, kv, 0.0F, 0.2F, has_bias },
        { "attn_q_norm.weight", 0, o->head_dim, 1.0F, 0.1F, has_qk_norm },
        { "attn_k_norm.weight", 0, o->head_dim, 1.0F, 0.1F, has_qk_norm },
        { "attn_output.weight", o->n_embd, q, 0.0F, residual / sqrtf((float)q), true },
        { "ffn_norm.weight", 0, o->n_embd, 1.0F, 0.1F, true },
        { "ffn_gate.weight", o->n_ff, o->n_embd, 0.0F, in, true },
        { "ffn_up.weight", o->n_ff, o->n_embd, 0.0F, in, true },
        { "ffn_down.weight", o->n_embd, o->n_ff, 0.0F, 2.0F * residual / sqrtf((float)o->n_ff), true },
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        char name[FIRNI_TENSOR_NAME_BYTES];
        firni_layer_tensor_name(name, layer, tensors[i].suffix);
        if (tensors[i].is_present && tensors[i].n_rows == 0) {
            visit_vector(s, name, tensors[i].n_cols, tensors[i].mean, tensors[i].deviation);
        } else if (tensors[i].is_present) {
            visit_matrix(s, name, tensors[i].n_rows, tensors[i].n_cols, tensors[i].deviation);
        }
    }
}

/* Every tensor of the model, in file order. Tied embeddings have the output matrix's deviation, which matters more. */
static void visit_all(synth *s)
{
    const firni_synth_options *o = s->options;
    visit_matrix(s, "token_embd.weight", o->n_vocab, o->n_embd, o->is_tied ? 1.0F / sqrtf((float)o->n_embd) : 1.0F);
    for (uint32_t i = 0; i < o->n_layers; i++) {
        visit_layer(s, i);
    }
    if (s->rope_divisors != NULL) {
        const tensor_plan plan = { .name = "rope_freqs.weight", .type = FIRNI_WEIGHT_F32, .n_cols = o->head_dim / 2,
                                   .n_rows = 1, .is_vector = true, .values = s->rope_divisors };
        visit(s, &plan);
    }
    visit_vector(s, "output_norm.weight", o->n_embd, 1.0F, 0.1F);
    if (!o->is_tied) {
        visit_matrix(s, "output.weight", o->n_vocab, o->n_embd, 1.0F / sqrtf((float)o->n_embd));
    }
}

/* ---- keys ---- */

static void put_u32(synth *s, const char *suffix, uint32_t value)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", s->options->architecture, suffix);
    firni_gguf_put_u32(s->writer, key, value);
}

static void put_f32(synth *s, const char *suffix, float value)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", s->options->architecture, suffix);
    firni_gguf_put_f32(s->writer, key, value);
}

/* Divisors in a tensor take the place of scaling keys. */
static void put_rope_keys(synth *s)
{
    static const char *const names[] = { "none", "linear", "llama3", "yarn" };
    const firni_synth_options *o = s->options;
    char key[96];
    put_u32(s, "rope.dimension_count", o->head_dim);
    put_f32(s, "rope.freq_base", o->rope_base == 0.0F ? 10000.0F : o->rope_base);
    if (o->rope_scaling == FIRNI_ROPE_SCALING_NONE || s->rope_divisors != NULL) {
        return;
    }
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", o->architecture);
    firni_gguf_put_string(s->writer, key, names[o->rope_scaling], strlen(names[o->rope_scaling]));
    put_f32(s, "rope.scaling.factor", o->rope_factor);
    put_u32(s, "rope.scaling.original_context_length",
            o->rope_original_context == 0 ? o->n_ctx : o->rope_original_context);
}

/* False when there was no memory for the vocabulary's arrays. */
static bool put_keys(synth *s, const firni_vocab_spec *vocab)
{
    const firni_synth_options *o = s->options;
    char name[96];
    const int n = snprintf(name, sizeof name, "synthetic %s of %.1fM parameters, seed %llu", o->architecture,
                           (double)firni_synth_n_params(o) / 1e6, (unsigned long long)o->seed);
    firni_gguf_put_string(s->writer, "general.architecture", o->architecture, strlen(o->architecture));
    firni_gguf_put_string(s->writer, "general.name", name, (size_t)n);
    put_u32(s, "block_count", o->n_layers);
    put_u32(s, "context_length", o->n_ctx);
    put_u32(s, "embedding_length", o->n_embd);
    put_u32(s, "feed_forward_length", o->n_ff);
    put_u32(s, "attention.head_count", o->n_heads);
    put_u32(s, "attention.head_count_kv", o->n_kv_heads);
    put_u32(s, "attention.key_length", o->head_dim);
    put_u32(s, "attention.value_length", o->head_dim);
    put_u32(s, "vocab_size", o->n_vocab);
    put_f32(s, "attention.layer_norm_rms_epsilon", 1e-5F);
    put_rope_keys(s);
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
        { "layers", o->n_layers, FIRNI_LAYERS_MAX },     { "width", o->n_embd, FIRNI_WIDTH_MAX },
        { "heads", o->n_heads, FIRNI_HEADS_MAX },        { "kv-heads", o->n_kv_heads, FIRNI_HEADS_MAX },
        { "head-dim", o->head_dim, FIRNI_HEAD_DIM_MAX }, { "ffn", o->n_ff, FIRNI_FF_MAX },
        { "vocab", o->n_vocab, FIRNI_VOCAB_MAX },        { "ctx", o->n_ctx, 1u << 30 },
    };
    if (firni_arch_find(o->architecture) == NULL) {
        char known[200];
        firni_arch_list(known, sizeof known);
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "architecture '%s': this build writes %s", o->architecture, known);
    }
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].value == 0 || limits[i].value > limits[i].max) {
            return firni_fail(err, FIRN_ERR_INVALID, "%s is %lu, outside 1 to %lu", limits[i].name,
                              (unsigned long)limits[i].value, (unsigned long)limits[i].max);
        }
    }
    if (o->n_heads % o->n_kv_heads != 0 || o->head_dim % 2 != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "heads must be a multiple of kv-heads, and head-dim even");
    }
    if (o->type == FIRNI_WEIGHT_Q8_0 &&
        (o->n_embd % Q8_GROUP != 0 || o->n_ff % Q8_GROUP != 0 || o->n_heads * o->head_dim % Q8_GROUP != 0)) {
        return firni_fail(err, FIRN_ERR_INVALID, "q8_0 needs width, ffn and heads * head-dim to be multiples of %u",
                          Q8_GROUP);
    }
    if (o->rope_scaling != FIRNI_ROPE_SCALING_NONE && !(o->rope_factor >= 1.0F)) {
        return firni_fail(err, FIRN_ERR_INVALID, "a rope scaling needs a factor of 1 or more");
    }
    return FIRN_OK;
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

/* First walk declares, second walk writes. */
static firn_status write_file(synth *s, const firni_vocab_spec *vocab)
{
    const firni_synth_options *o = s->options;
    const uint32_t q = o->n_heads * o->head_dim;
    const uint32_t n_cols_max = o->n_embd > o->n_ff ? (o->n_embd > q ? o->n_embd : q) : (o->n_ff > q ? o->n_ff : q);
    s->row = firni_calloc(s->env, n_cols_max, sizeof *s->row);
    s->encoded = firni_calloc(s->env, (size_t)n_cols_max * ROWS_PER_WRITE, sizeof(float));
    if (s->row == NULL || s->encoded == NULL) {
        return firni_fail(s->err, FIRN_ERR_NO_MEMORY, "no memory for rows of %lu weights", (unsigned long)n_cols_max);
    }
    if (!put_keys(s, vocab)) {
        return firni_fail(s->err, FIRN_ERR_NO_MEMORY, "no memory for a vocabulary of %u tokens", vocab->n_tokens);
    }
    visit_all(s);
    s->status = firni_gguf_writer_begin_data(s->writer, s->err);
    s->is_writing = true;
    visit_all(s);
    return s->status == FIRN_OK ? firni_gguf_writer_finish(s->writer, s->err) : s->status;
}

firn_status firni_synth_write(const firni_synth_options *options, const char *path, const firn_env *env,
                              firn_error *err)
{
    synth s = { .options = options, .env = env, .status = FIRN_OK, .err = err };
    firni_vocab_spec base = { .n_tokens = 0 };
    firni_vocab_spec vocab = { .n_tokens = 0 };
    float *divisors = NULL;
    firn_status status = check_shape(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    /* All variants convert to the same bits; the scalar one is always there. */
    s.kernels = firni_kernels_select("scalar", err);
    assert(s.kernels != NULL);
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
