/*
 * What the tests of quantised layouts share: the numbers that a cache has stored, read back from its dense view, and
 * attention over them in double precision.
 */
#ifndef FIRN_TESTS_LAYOUT_QUANT_RIG_H
#define FIRN_TESTS_LAYOUT_QUANT_RIG_H

#include <math.h>

#include "kernel/quantised.h"
#include "layout/rig.h"

enum { QUANT_RIG_HEADS = 2, QUANT_RIG_DIM_MAX = 512 };

/* The keys and values of the only row, [heads][tokens][dim], as they were stored; to be freed. */
typedef struct quant_rig_row {
    float *k;
    float *v;
} quant_rig_row;

static inline float quant_rig_half(const firn_tensor *tensor, size_t index)
{
    return firni_load_half(tensor->data, index);
}

static inline uint32_t quant_rig_code(const uint8_t *token, uint32_t bits, uint32_t index)
{
    uint32_t code = 0;
    for (uint32_t i = 0; i < bits; i++) {
        const uint32_t bit = index * bits + i;
        code |= (uint32_t)(token[bit / 8] >> bit % 8 & 1) << i;
    }
    return code;
}

/* `biases` NULL: rotated values, which are turned back. */
static inline float *quant_rig_numbers(const firn_tensor *codes, const firn_tensor *scales, const firn_tensor *biases,
                                       uint32_t dim, uint32_t bits, uint32_t group)
{
    const size_t n_tokens = (size_t)(codes->shape[1] * codes->shape[2]); /* of all heads */
    assert_int_equal(codes->shape[3], dim * bits / 8);
    assert_int_equal(scales->shape[3], dim / group);
    float *x = calloc(n_tokens * dim + 1, sizeof *x);
    assert_non_null(x);
    for (size_t t = 0; t < n_tokens; t++) {
        const uint8_t *token = (const uint8_t *)codes->data + t * codes->shape[3];
        for (uint32_t i = 0; i < dim; i++) {
            const size_t at = t * (dim / group) + i / group;
            const uint32_t code = quant_rig_code(token, bits, i);
            const float scale = quant_rig_half(scales, at);
            if (biases != NULL) {
                const float number = codes->dtype == FIRN_DTYPE_I8 ? (float)(int8_t)(uint8_t)code : (float)code;
                x[t * dim + i] = scale * number + quant_rig_half(biases, at);
            } else {
                const firni_lloyd *lloyd = firni_lloyd_of(bits);
                x[t * dim + i] = scale * (lloyd->unit * (float)(lloyd->levels[code] - lloyd->centre));
            }
        }
        if (biases == NULL) {
            firni_rotate_back(x + t * dim, dim);
        }
    }
    return x;
}

static inline quant_rig_row quant_rig_stored(const firn_cache *cache)
{
    const firn_cache_options *options = firn_cache_get_options(cache);
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(cache, tensors, &n_tensors, NULL));
    assert_true(n_tensors == 5 || n_tensors == 6);
    const quant_rig_row row = {
        .k = quant_rig_numbers(&tensors[0], &tensors[1], &tensors[2], options->head_dim, options->key_bits,
                               options->group),
        .v = quant_rig_numbers(&tensors[3], &tensors[4], n_tensors == 6 ? &tensors[5] : NULL, options->value_dim,
                               options->value_bits, options->group),
    };
    for (uint32_t i = 0; i < n_tensors; i++) {
        firn_tensor_deinit(&tensors[i]);
    }
    return row;
}

static inline void quant_rig_free(quant_rig_row *row)
{
    free(row->k);
    free(row->v);
}

/* What was appended, in the same order of elements. */
static inline quant_rig_row quant_rig_given(const firn_cache_options *options, const rig_tokens *tokens)
{
    const uint32_t dims[2] = { options->head_dim, options->value_dim };
    float *given[2];
    for (uint32_t what = 0; what < 2; what++) {
        const size_t n_each = (size_t)options->n_kv_heads * dims[what];
        float *packed = rig_floats(tokens->id, tokens->n, what, n_each);
        given[what] = calloc(tokens->n * n_each + 1, sizeof(float));
        assert_non_null(given[what]);
        for (uint32_t t = 0; t < tokens->n; t++) {
            for (uint32_t h = 0; h < options->n_kv_heads; h++) {
                memcpy(given[what] + ((size_t)h * tokens->n + t) * dims[what], packed + t * n_each + h * dims[what],
                       dims[what] * sizeof(float));
            }
        }
        free(packed);
    }
    return (quant_rig_row){ .k = given[0], .v = given[1] };
}

/* Softmax attention of one query over tokens [begin, end) of one head, in double precision. */
static inline void quant_rig_attention(double *out, const float *q, const quant_rig_row *row, uint32_t head,
                                       uint32_t n_tokens, uint32_t begin, uint32_t end, float scale,
                                       const firn_cache_options *options)
{
    double scores[RIG_TOKENS_MAX];
    double max = -INFINITY;
    for (uint32_t t = begin; t < end; t++) {
        const float *k = row->k + ((size_t)head * n_tokens + t) * options->head_dim;
        scores[t] = 0.0;
        for (uint32_t i = 0; i < options->head_dim; i++) {
            scores[t] += (double)q[i] * (double)k[i];
        }
        scores[t] *= (double)scale;
        max = fmax(max, scores[t]);
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < options->value_dim; i++) {
        out[i] = 0.0;
    }
    for (uint32_t t = begin; t < end; t++) {
        const double p = exp(scores[t] - max);
        const float *v = row->v + ((size_t)head * n_tokens + t) * options->value_dim;
        for (uint32_t i = 0; i < options->value_dim; i++) {
            out[i] += p * (double)v[i];
        }
        sum += p;
    }
    for (uint32_t i = 0; i < options->value_dim; i++) {
        out[i] /= sum;
    }
}

/* The largest difference between the cache's attention of its last queries and that over `row`. */
static inline double quant_rig_worst(const firn_cache *cache, const rig_tokens *tokens, const quant_rig_row *row)
{
    const firn_cache_options *options = firn_cache_get_options(cache);
    const uint32_t n_heads = options->n_kv_heads * RIG_GROUP;
    const uint32_t n_queries = 40;
    const uint32_t first = tokens->n - n_queries;
    size_t n_floats;
    float *out = rig_attend(cache, NULL, tokens->id + first, &n_queries, NULL, &n_floats);
    float *q = rig_floats(tokens->id + first, n_queries, 2, (size_t)n_heads * options->head_dim);
    double worst = 0.0;
    for (uint32_t i = 0; i < n_queries; i++) {
        const uint32_t end = first + i + 1;
        const uint32_t begin = options->window != 0 && end > options->window ? end - options->window : 0;
        for (uint32_t h = 0; h < n_heads; h++) {
            double expected[QUANT_RIG_DIM_MAX];
            quant_rig_attention(expected, q + ((size_t)i * n_heads + h) * options->head_dim, row, h / RIG_GROUP,
                                tokens->n, begin, end, 0.25f, options); /* the scale of rig_attend */
            for (uint32_t j = 0; j < options->value_dim; j++) {
                const double got = (double)out[((size_t)i * n_heads + h) * options->value_dim + j];
                worst = fmax(worst, fabs(got - expected[j]));
            }
        }
    }
    free(q);
    free(out);
    return worst;
}

/* Two differences of one cache: from attention over the numbers it stored, and over those that it was given. */
typedef struct quant_rig_errors {
    double stored;
    double given;
} quant_rig_errors;

static inline quant_rig_errors quant_rig_measure(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens tokens = rig_sequence(3, 300);
    firn_cache *cache = rig_fresh(options, pool, &tokens);
    quant_rig_row stored = quant_rig_stored(cache);
    quant_rig_row given = quant_rig_given(firn_cache_get_options(cache), &tokens);
    const quant_rig_errors errors = { .stored = quant_rig_worst(cache, &tokens, &stored),
                                      .given = quant_rig_worst(cache, &tokens, &given) };
    print_message("%s: %.1e from attention over what is stored, %.1e over what was given\n",
                  firn_cache_signature(cache), errors.stored, errors.given);
    quant_rig_free(&stored);
    quant_rig_free(&given);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    return errors;
}

#endif
