/*
 * The mixture of experts, without a model around it: a file with the tensors of one layer, the block loaded from it,
 * against sums in double precision; the choice of experts case by case; bits whatever the batch, threads and variant.
 */
#include "support/support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch_impl.h"
#include "model/moe_route.h"

enum { EMBD = 32, EXPERTS = 8, SHARED = 16, TOKENS = 300, TENSORS_MAX = 24 };

static char *dir;

/* ---- a file of named random tensors, kept for the reference ---- */

typedef struct named {
    char name[64];
    uint64_t shape[3];
    float *data;
    size_t n;
} named;

typedef struct layer_file {
    named tensors[TENSORS_MAX];
    uint32_t n;
    char path[512];
} layer_file;

static void add_tensor(layer_file *file, test_rng *rng, const char *suffix, uint64_t cols, uint64_t rows,
                       uint64_t experts, float deviation, float mean)
{
    assert_true(file->n < TENSORS_MAX);
    named *t = &file->tensors[file->n++];
    (void)snprintf(t->name, sizeof t->name, "blk.0.%s", suffix);
    t->shape[0] = cols;
    t->shape[1] = rows;
    t->shape[2] = experts;
    t->n = cols * rows * experts;
    t->data = malloc(t->n * sizeof(float));
    assert_non_null(t->data);
    for (size_t i = 0; i < t->n; i++) {
        t->data[i] = mean + deviation * test_rng_normal(rng);
    }
}

static const named *tensor_of(const layer_file *file, const char *suffix)
{
    for (uint32_t i = 0; i < file->n; i++) {
        if (strcmp(file->tensors[i].name + 6, suffix) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

static const float *data_of(const layer_file *file, const char *suffix)
{
    const named *t = tensor_of(file, suffix);
    return t != NULL ? t->data : NULL;
}

static void write_file(layer_file *file, const char *name)
{
    firni_gguf_writer *writer;
    (void)snprintf(file->path, sizeof file->path, "%s/%s.gguf", dir, name);
    assert_ok(firni_gguf_writer_create(file->path, NULL, &writer, NULL));
    firni_gguf_put_string(writer, "general.architecture", "none", 4);
    for (uint32_t i = 0; i < file->n; i++) {
        const named *t = &file->tensors[i];
        firni_gguf_declare_tensor(writer, t->name, 0, t->shape, 3, t->n * sizeof(float));
    }
    assert_ok(firni_gguf_writer_begin_data(writer, NULL));
    for (uint32_t i = 0; i < file->n; i++) {
        assert_ok(firni_gguf_write_data(writer, file->tensors[i].data, file->tensors[i].n * sizeof(float), NULL));
        assert_ok(firni_gguf_end_tensor(writer, NULL));
    }
    assert_ok(firni_gguf_writer_finish(writer, NULL));
    firni_gguf_writer_destroy(writer);
}

static void free_file(layer_file *file)
{
    for (uint32_t i = 0; i < file->n; i++) {
        free(file->tensors[i].data);
    }
}

/* ---- what is varied ---- */

typedef struct variation {
    const char *name;
    firni_moe_params params;
    bool has_bias;         /* of the choice */
    bool is_merged;        /* gate and up in one tensor */
    bool has_factors;      /* scale and bias of each expert, bias of the router */
    bool has_shared_gate;
} variation;

static const variation variations[] = {
    { .name = "softmax", .params = { .n_used = 3, .n_ff = 16, .gating = FIRNI_GATING_SOFTMAX, .weights_scale = 1.0F } },
    { .name = "ragged", .params = { .n_used = 2, .n_ff = 24, .gating = FIRNI_GATING_SOFTMAX, .weights_norm = true,
                                    .weights_scale = 2.5F } },
    { .name = "sigmoid-groups", .params = { .n_used = 3, .n_ff = 16, .gating = FIRNI_GATING_SIGMOID,
                                            .weights_norm = true, .weights_scale = 1.5F, .n_groups = 4,
                                            .n_groups_used = 2, .n_ff_shared = SHARED },
      .has_bias = true, .is_merged = true },
    { .name = "groups-without-bias", .params = { .n_used = 2, .n_ff = 16, .gating = FIRNI_GATING_SOFTMAX,
                                                 .weights_scale = 16.0F, .n_groups = 4, .n_groups_used = 1,
                                                 .n_ff_shared = SHARED } },
    { .name = "chosen-softmax", .params = { .n_used = 4, .n_ff = 16, .gating = FIRNI_GATING_SOFTMAX_CHOSEN,
                                            .weights_scale = 1.0F },
      .has_factors = true },
    { .name = "shared-gate", .params = { .n_used = 8, .n_ff = 16, .gating = FIRNI_GATING_SOFTMAX, .weights_norm = true,
                                         .weights_scale = 1.0F, .n_ff_shared = SHARED },
      .is_merged = true, .has_factors = true, .has_shared_gate = true },
};

enum { N_VARIATIONS = sizeof variations / sizeof variations[0] };

static void fill_file(layer_file *file, test_rng *rng, const variation *v)
{
    const uint32_t n_ff = v->params.n_ff;
    *file = (layer_file){ .n = 0 };
    add_tensor(file, rng, "ffn_norm.weight", EMBD, 1, 1, 0.1F, 1.0F);
    add_tensor(file, rng, "ffn_gate_inp.weight", EMBD, EXPERTS, 1, 0.3F, 0.0F);
    if (v->is_merged) {
        add_tensor(file, rng, "ffn_gate_up_exps.weight", EMBD, 2 * n_ff, EXPERTS, 0.3F, 0.0F);
    } else {
        add_tensor(file, rng, "ffn_gate_exps.weight", EMBD, n_ff, EXPERTS, 0.3F, 0.0F);
        add_tensor(file, rng, "ffn_up_exps.weight", EMBD, n_ff, EXPERTS, 0.3F, 0.0F);
    }
    add_tensor(file, rng, "ffn_down_exps.weight", n_ff, EMBD, EXPERTS, 0.3F, 0.0F);
    if (v->has_bias) {
        add_tensor(file, rng, "exp_probs_b.bias", EXPERTS, 1, 1, 0.2F, 0.0F);
    }
    if (v->has_factors) {
        add_tensor(file, rng, "ffn_gate_inp.bias", EXPERTS, 1, 1, 0.2F, 0.0F);
        add_tensor(file, rng, "ffn_down_exps.bias", EMBD, EXPERTS, 1, 0.2F, 0.0F);
        add_tensor(file, rng, "ffn_down_exps.scale", EXPERTS, 1, 1, 0.5F, 0.0F);
    }
    if (v->has_factors && !v->is_merged) {
        add_tensor(file, rng, "ffn_up_exps.bias", n_ff, EXPERTS, 1, 0.2F, 0.0F);
        add_tensor(file, rng, "ffn_gate_exps.scale", EXPERTS, 1, 1, 0.5F, 0.0F);
    }
    if (v->params.n_ff_shared > 0) {
        add_tensor(file, rng, "ffn_gate_shexp.weight", EMBD, SHARED, 1, 0.3F, 0.0F);
        add_tensor(file, rng, "ffn_up_shexp.weight", EMBD, SHARED, 1, 0.3F, 0.0F);
        add_tensor(file, rng, "ffn_down_shexp.weight", SHARED, EMBD, 1, 0.3F, 0.0F);
    }
    if (v->has_shared_gate) {
        add_tensor(file, rng, "ffn_gate_inp_shexp.weight", EMBD, 1, 1, 0.3F, 0.0F);
    }
}

static firni_hparams *hparams_of(const variation *v)
{
    firni_hparams *hp = calloc(1, sizeof *hp);
    assert_non_null(hp);
    hp->n_layers = 1;
    hp->n_embd = EMBD;
    hp->rms_eps = 1e-5F;
    hp->moe = v->params;
    hp->moe.n_experts = EXPERTS;
    hp->moe.n_groups = hp->moe.n_groups == 0 ? 1 : hp->moe.n_groups;
    hp->moe.n_groups_used = hp->moe.n_groups_used == 0 ? hp->moe.n_groups : hp->moe.n_groups_used;
    hp->layers[0].has_experts = true;
    return hp;
}

/* ---- the block under test ---- */

typedef struct block {
    firni_hparams *hp;
    firni_gguf *gguf;
    firni_weights weights;
    firni_loader loader;
    firni_moe moe;
} block;

static void open_block(block *b, const variation *v, const layer_file *file, const firni_moe_traits *traits)
{
    firn_error err = { .message = "" };
    *b = (block){ .hp = hparams_of(v) };
    assert_ok(firni_gguf_open(file->path, NULL, &b->gguf, &err));
    assert_ok(firni_loader_init(&b->loader, b->gguf, &b->weights, NULL, NULL, &err));
    const firn_status status = firni_moe_load(&b->loader, b->hp, 0, traits, &b->moe, &err);
    if (status != FIRN_OK) {
        fail_msg("%s: %s", v->name, err.message);
    }
    assert_ok(firni_loader_check_all_used(&b->loader, "none", &err));
}

static void close_block(block *b)
{
    firni_loader_deinit(&b->loader);
    firni_weights_deinit(&b->weights);
    firni_gguf_close(b->gguf);
    free(b->hp);
}

static void *aligned(size_t n_bytes)
{
    void *memory = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xff, n_bytes); /* NaN: what is read before it is written shows */
    return memory;
}

/* x becomes the block's output, `chunk` tokens at a time. */
static void run_block(const block *b, const char *kernel, firn_workers *workers, float *x, uint32_t n_tokens,
                      uint32_t chunk)
{
    const firni_widths widths = firni_step_widths(b->hp);
    float *h = aligned((size_t)chunk * widths.h * sizeof *h);
    float *wide = aligned((size_t)chunk * widths.wide * sizeof *wide);
    uint64_t multiply_adds = 0;
    void *matmul = aligned(firni_matmul_scratch_bytes(widths.inputs_max, chunk));
    void *extra = aligned(firni_moe_scratch_bytes(b->hp, chunk));
    for (uint32_t done = 0; done < n_tokens; done += chunk) {
        firni_step step = {
            .kernels = firni_kernels_select(kernel, NULL),
            .workers = workers,
            .hparams = b->hp,
            .n_tokens = n_tokens - done < chunk ? n_tokens - done : chunk,
            .x = x + (size_t)done * EMBD,
            .h = h,
            .wide = wide,
            .matmul_scratch = matmul,
            .multiply_adds = &multiply_adds,
        };
        firni_moe_forward(&step, &b->moe, extra);
    }
    free(h);
    free(wide);
    free(matmul);
    free(extra);
}

/* ---- the reference: one token, in double precision; takes the choice from the router under test ---- */

static double silu(double x) { return x / (1.0 + exp(-x)); }

static void swiglu(double *out, const double *gate, const double *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = silu(gate[i]) * up[i];
    }
}

static void multiply(double *y, const float *w, const double *x, uint32_t rows, uint32_t cols, const float *scale,
                     const float *bias)
{
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (uint32_t c = 0; c < cols; c++) {
            y[r] += (double)w[(size_t)r * cols + c] * x[c];
        }
        y[r] = y[r] * (scale != NULL ? (double)scale[0] : 1.0) + (bias != NULL ? (double)bias[r] : 0.0);
    }
}

static const float *part(const float *data, size_t offset)
{
    return data != NULL ? data + offset : NULL;
}

static void reference_token(const layer_file *file, const variation *v, const firni_hparams *hp, const float *x,
                            double *out)
{
    const uint32_t n_ff = v->params.n_ff;
    double h[EMBD];
    double scores[EXPERTS];
    double square = 0.0;
    for (uint32_t i = 0; i < EMBD; i++) {
        square += (double)x[i] * (double)x[i];
    }
    for (uint32_t i = 0; i < EMBD; i++) {
        h[i] = (double)x[i] / sqrt(square / EMBD + (double)hp->rms_eps) * (double)data_of(file, "ffn_norm.weight")[i];
        out[i] = (double)x[i];
    }
    multiply(scores, data_of(file, "ffn_gate_inp.weight"), h, EXPERTS, EMBD, NULL, data_of(file, "ffn_gate_inp.bias"));
    float f32_scores[EXPERTS];
    float selection[EXPERTS];
    firni_chosen chosen[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++) {
        f32_scores[i] = (float)scores[i];
    }
    firni_moe_route(firni_kernels_select("scalar", NULL), &hp->moe, data_of(file, "exp_probs_b.bias"), f32_scores,
                    selection, chosen);
    for (uint32_t c = 0; c < hp->moe.n_used; c++) {
        const size_t e = chosen[c].expert;
        double gate_up[2 * 24];
        double product[24];
        double y[EMBD];
        if (v->is_merged) {
            multiply(gate_up, data_of(file, "ffn_gate_up_exps.weight") + e * 2 * n_ff * EMBD, h, 2 * n_ff, EMBD, NULL,
                     NULL);
        } else {
            multiply(gate_up, data_of(file, "ffn_gate_exps.weight") + e * n_ff * EMBD, h, n_ff, EMBD,
                     part(data_of(file, "ffn_gate_exps.scale"), e), NULL);
            multiply(gate_up + n_ff, data_of(file, "ffn_up_exps.weight") + e * n_ff * EMBD, h, n_ff, EMBD, NULL,
                     part(data_of(file, "ffn_up_exps.bias"), e * n_ff));
        }
        swiglu(product, gate_up, gate_up + n_ff, n_ff);
        multiply(y, data_of(file, "ffn_down_exps.weight") + e * EMBD * n_ff, product, EMBD, n_ff,
                 part(data_of(file, "ffn_down_exps.scale"), e), part(data_of(file, "ffn_down_exps.bias"), e * EMBD));
        for (uint32_t i = 0; i < EMBD; i++) {
            out[i] += (double)chosen[c].weight * y[i];
        }
    }
    if (v->params.n_ff_shared > 0) {
        double gate[SHARED];
        double up[SHARED];
        double y[EMBD];
        double factor = 1.0;
        multiply(gate, data_of(file, "ffn_gate_shexp.weight"), h, SHARED, EMBD, NULL, NULL);
        multiply(up, data_of(file, "ffn_up_shexp.weight"), h, SHARED, EMBD, NULL, NULL);
        swiglu(gate, gate, up, SHARED);
        multiply(y, data_of(file, "ffn_down_shexp.weight"), gate, EMBD, SHARED, NULL, NULL);
        if (v->has_shared_gate) {
            multiply(&factor, data_of(file, "ffn_gate_inp_shexp.weight"), h, 1, EMBD, NULL, NULL);
            factor = 1.0 / (1.0 + exp(-factor));
        }
        for (uint32_t i = 0; i < EMBD; i++) {
            out[i] += factor * y[i];
        }
    }
}

static float *random_tokens(test_rng *rng)
{
    float *x = malloc((size_t)TOKENS * EMBD * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < (size_t)TOKENS * EMBD; i++) {
        x[i] = test_rng_normal(rng);
    }
    return x;
}

static float *copy_of(const float *x)
{
    float *copy = malloc((size_t)TOKENS * EMBD * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, x, (size_t)TOKENS * EMBD * sizeof *copy);
    return copy;
}

/* ---- tests ---- */

static void the_block_equals_a_reference_in_double_precision(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("moe reference", 1);
    for (uint32_t i = 0; i < N_VARIATIONS; i++) {
        const variation *v = &variations[i];
        layer_file file;
        block b;
        fill_file(&file, &rng, v);
        write_file(&file, v->name);
        open_block(&b, v, &file, &(firni_moe_traits){ .norm = NULL });
        float *x = random_tokens(&rng);
        float *y = copy_of(x);
        run_block(&b, NULL, NULL, y, TOKENS, TOKENS);
        for (uint32_t t = 0; t < TOKENS; t++) {
            double expected[EMBD];
            reference_token(&file, v, b.hp, x + (size_t)t * EMBD, expected);
            for (uint32_t k = 0; k < EMBD; k++) {
                const double got = (double)y[(size_t)t * EMBD + k];
                if (!(fabs(got - expected[k]) <= 1e-4)) {
                    fail_msg("%s: token %u, element %u: %g instead of %g", v->name, t, k, got, expected[k]);
                }
            }
        }
        free(x);
        free(y);
        close_block(&b);
        free_file(&file);
    }
}

static void bits_depend_on_no_batch_thread_or_variant(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("moe bits", 2);
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    firn_workers *workers;
    assert_ok(firn_workers_create(3, NULL, &workers, NULL));
    for (uint32_t i = 0; i < N_VARIATIONS; i++) {
        const variation *v = &variations[i];
        static const uint32_t chunks[] = { 1, 7, 128, TOKENS };
        layer_file file;
        block b;
        fill_file(&file, &rng, v);
        write_file(&file, v->name);
        open_block(&b, v, &file, &(firni_moe_traits){ .norm = NULL });
        float *x = random_tokens(&rng);
        float *expected = copy_of(x);
        run_block(&b, "scalar", NULL, expected, TOKENS, TOKENS);
        for (uint32_t c = 0; c < 4 * n_names; c++) {
            float *y = copy_of(x);
            run_block(&b, names[c / 4], c % 2 == 0 ? workers : NULL, y, TOKENS, chunks[c % 4]);
            if (memcmp(y, expected, (size_t)TOKENS * EMBD * sizeof *y) != 0) {
                fail_msg("%s: %s in chunks of %u differs", v->name, names[c / 4], chunks[c % 4]);
            }
            free(y);
        }
        free(x);
        free(expected);
        close_block(&b);
        free_file(&file);
    }
    firn_workers_destroy(workers);
}

static void negate(const firni_kernels *kernels, float *gate, const float *up, uint32_t n)
{
    (void)kernels;
    for (uint32_t i = 0; i < n; i++) {
        gate[i] = -(gate[i] / (1.0F + expf(-gate[i])) * up[i]);
    }
}

static void an_architecture_brings_its_own_activation(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("moe activation", 3);
    const variation *v = &variations[0];
    layer_file file;
    block plain;
    block negated;
    fill_file(&file, &rng, v);
    write_file(&file, "activation");
    open_block(&plain, v, &file, &(firni_moe_traits){ .norm = NULL });
    open_block(&negated, v, &file, &(firni_moe_traits){ .activate = negate });
    float *x = random_tokens(&rng);
    float *a = copy_of(x);
    float *b = copy_of(x);
    run_block(&plain, NULL, NULL, a, TOKENS, TOKENS);
    run_block(&negated, NULL, NULL, b, TOKENS, TOKENS);
    float largest = 0.0F;
    for (size_t i = 0; i < (size_t)TOKENS * EMBD; i++) {
        assert_true(fabsf(a[i] + b[i] - 2.0F * x[i]) < 1e-4F);
        largest = fmaxf(largest, fabsf(a[i] - x[i]));
    }
    assert_true(largest > 0.1F);
    free(x);
    free(a);
    free(b);
    close_block(&plain);
    close_block(&negated);
    free_file(&file);
}

/* The experts that are chosen for these scores, as a mask; weights by expert. */
static uint32_t choose(const firni_moe_params *params, const float *bias, const float *scores, float *weights)
{
    float copy[EXPERTS];
    float selection[EXPERTS];
    firni_chosen chosen[EXPERTS];
    uint32_t mask = 0;
    memcpy(copy, scores, sizeof copy);
    firni_moe_route(firni_kernels_select(NULL, NULL), params, bias, copy, selection, chosen);
    for (uint32_t i = 0; i < params->n_used; i++) {
        assert_true(chosen[i].expert < params->n_experts);
        assert_true(i == 0 || chosen[i - 1].expert < chosen[i].expert);
        mask |= 1u << chosen[i].expert;
        weights[chosen[i].expert] = chosen[i].weight;
    }
    return mask;
}

static void ties_go_to_the_lower_expert(void **state)
{
    (void)state;
    const firni_moe_params params = { .n_experts = 8, .n_used = 3, .gating = FIRNI_GATING_SIGMOID,
                                      .weights_scale = 1.0F, .n_groups = 1, .n_groups_used = 1 };
    const float scores[EXPERTS] = { 1, 2, 1, 2, 1, 2, 1, 2 };
    const float nothing[EXPERTS] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    float w[EXPERTS];
    assert_int_equal(choose(&params, NULL, scores, w), 1u << 1 | 1u << 3 | 1u << 5);
    /* A damaged model gives nonsense, not an index outside. */
    assert_int_equal(choose(&params, NULL, nothing, w), 7u);
}

static void a_bias_changes_the_choice_and_not_the_weights(void **state)
{
    (void)state;
    const firni_moe_params params = { .n_experts = 8, .n_used = 2, .gating = FIRNI_GATING_SIGMOID,
                                      .weights_scale = 1.0F, .n_groups = 1, .n_groups_used = 1 };
    const float scores[EXPERTS] = { 0, 0, 3, 0, 2, 0, 0, 1 };
    const float bias[EXPERTS] = { 0, 0, 0, 0, -1, 0, 0, 1 };
    float w[EXPERTS];
    assert_int_equal(choose(&params, NULL, scores, w), 1u << 2 | 1u << 4);
    assert_int_equal(choose(&params, bias, scores, w), 1u << 2 | 1u << 7);
    assert_true(fabsf(w[7] - 1.0F / (1.0F + expf(-1.0F))) < 1e-6F);
}

static void only_the_best_groups_take_part(void **state)
{
    (void)state;
    firni_moe_params params = { .n_experts = 8, .n_used = 2, .gating = FIRNI_GATING_SOFTMAX_CHOSEN,
                                .weights_scale = 1.0F, .n_groups = 4, .n_groups_used = 1 };
    const float scores[EXPERTS] = { 5, 0, 4, 3, 0, 0, 4, 3 };
    const float zeros[EXPERTS] = { 0 };
    float w[EXPERTS];
    /* The best expert without a bias, the best two with one; groups 1 and 3 are equal. */
    assert_int_equal(choose(&params, NULL, scores, w), 1u << 0 | 1u << 1);
    assert_int_equal(choose(&params, zeros, scores, w), 1u << 2 | 1u << 3);
    params.n_groups_used = 2;
    assert_int_equal(choose(&params, zeros, scores, w), 1u << 2 | 1u << 6);
    params.n_groups_used = 4;
    assert_int_equal(choose(&params, zeros, scores, w), 1u << 0 | 1u << 2);
}

static void weights_are_normalised_and_scaled(void **state)
{
    (void)state;
    firni_moe_params params = { .n_experts = 8, .n_used = 2, .gating = FIRNI_GATING_SOFTMAX_CHOSEN,
                                .weights_scale = 2.0F, .n_groups = 1, .n_groups_used = 1 };
    const float scores[EXPERTS] = { 0, 1, 0, 0, 0, 2, 0, 0 };
    const float low[EXPERTS] = { -60, -60, -60, -60, -60, -60, -60, -60 };
    float w[EXPERTS];
    (void)choose(&params, NULL, scores, w);
    assert_true(fabsf(w[5] - 2.0F / (1.0F + expf(-1.0F))) < 1e-6F);
    params.gating = FIRNI_GATING_SOFTMAX;
    (void)choose(&params, NULL, scores, w);
    assert_true(fabsf(w[5] / w[1] - expf(1.0F)) < 1e-5F && w[5] + w[1] < 1.9F);
    params.weights_norm = true;
    (void)choose(&params, NULL, scores, w);
    assert_true(fabsf(w[5] + w[1] - 2.0F) < 1e-6F);
    /* The sum that divides is kept away from zero. */
    params.gating = FIRNI_GATING_SIGMOID;
    (void)choose(&params, NULL, low, w);
    assert_true(w[0] > 0.0F && w[0] < 1e-15F);
}

static void a_stack_of_the_wrong_shape_is_refused_by_name(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("moe refusals", 4);
    variation v = variations[0];
    layer_file file;
    firn_error err = { .message = "" };
    firni_moe moe;
    fill_file(&file, &rng, &v);
    write_file(&file, "wrong");
    block b = { .hp = hparams_of(&v) };
    assert_ok(firni_gguf_open(file.path, NULL, &b.gguf, &err));
    assert_ok(firni_loader_init(&b.loader, b.gguf, &b.weights, NULL, NULL, &err));
    b.hp->moe.n_ff = 32;
    assert_status(firni_moe_load(&b.loader, b.hp, 0, &(firni_moe_traits){ .norm = NULL }, &moe, &err), FIRN_ERR_FORMAT);
    assert_non_null(
        strstr(err.message, "'blk.0.ffn_gate_exps.weight' has the shape [32, 16, 8, 1], expected [32, 32, 8, 1]"));
    b.hp->moe.n_ff = 16;
    b.hp->moe.n_ff_shared = 16;
    assert_status(firni_moe_load(&b.loader, b.hp, 0, &(firni_moe_traits){ .norm = NULL }, &moe, &err), FIRN_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'blk.0.ffn_gate_shexp.weight' [32, 16] is missing"));
    close_block(&b);
    free_file(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_equals_a_reference_in_double_precision),
        cmocka_unit_test(bits_depend_on_no_batch_thread_or_variant),
        cmocka_unit_test(an_architecture_brings_its_own_activation),
        cmocka_unit_test(ties_go_to_the_lower_expert),
        cmocka_unit_test(a_bias_changes_the_choice_and_not_the_weights),
        cmocka_unit_test(only_the_best_groups_take_part),
        cmocka_unit_test(weights_are_normalised_and_scaled),
        cmocka_unit_test(a_stack_of_the_wrong_shape_is_refused_by_name),
    };
    dir = test_dir_create();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove(dir);
    free(dir);
    return failed;
}
