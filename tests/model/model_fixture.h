/*
 * What the tests of models share: an opened model with its pool, sets of caches (one per layer), and forwards in
 * chunks. Header only; each test program includes it once.
 */
#ifndef FIRN_TESTS_MODEL_FIXTURE_H
#define FIRN_TESTS_MODEL_FIXTURE_H

#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "firn/model.h"
#include "model/synth.h"

#define FIXTURE_LAYERS_MAX 32u

typedef struct fixture {
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    uint32_t n_vocab;
    uint32_t n_layers; /* those that store state */
} fixture;

typedef struct fixture_options {
    const char *path;
    const char *kernel;
    firn_dtype kv;
    firn_kv_scheme kv_scheme;
    uint32_t n_threads;        /* 0: 1 */
    uint32_t max_batch_tokens; /* 0: 512 */
    const char *packed_dir;    /* weights of any size are kept there; NULL: nowhere */
    const firn_env *env;       /* of the model */
} fixture_options;

/* One cache per layer: a batch. */
typedef struct batch {
    firn_cache *layers[FIXTURE_LAYERS_MAX];
} batch;

static inline fixture fixture_open(const fixture_options *options)
{
    fixture f = { .workers = NULL };
    firn_error err = { .message = "" };
    if (options->n_threads > 1) {
        assert_ok(firn_workers_create(options->n_threads, NULL, &f.workers, &err));
    }
    const firn_model_options model_options = {
        .path = options->path,
        .kernel = options->kernel,
        .kv_dtype = options->kv,
        .kv_scheme = options->kv_scheme,
        .workers = f.workers,
        .max_batch_tokens = options->max_batch_tokens,
        .packed_dir = options->packed_dir,
        .packed_bytes_min = 1,
    };
    const firn_status status = firn_model_open(&model_options, options->env, &f.model, &err);
    if (status != FIRN_OK) {
        fail_msg("%s: %s", options->path, err.message);
    }
    const firn_pool_options pool_options = { .budget_bytes = (uint64_t)1 << 32 };
    assert_ok(firn_pool_create(&pool_options, NULL, &f.pool, &err));
    f.n_vocab = firn_model_get_info(f.model)->n_vocab;
    f.n_layers = firn_model_schema(f.model)->n_layers;
    assert_in_range(f.n_layers, 1, FIXTURE_LAYERS_MAX);
    return f;
}

static inline void fixture_close(fixture *f)
{
    firn_pool_destroy(f->pool);
    firn_model_close(f->model);
    firn_workers_destroy(f->workers);
}

static inline batch batch_create(const fixture *f, uint32_t n_rows)
{
    batch b = { .layers = { NULL } };
    for (uint32_t i = 0; i < f->n_layers; i++) {
        assert_ok(firn_cache_create(&firn_model_schema(f->model)->layers[i], f->pool, NULL, &b.layers[i], NULL));
        for (uint32_t r = 0; r < n_rows; r++) {
            assert_ok(firn_cache_add_row(b.layers[i], NULL));
        }
    }
    return b;
}

static inline void batch_destroy(const fixture *f, batch *b)
{
    for (uint32_t i = 0; i < f->n_layers; i++) {
        firn_cache_destroy(b->layers[i]);
        b->layers[i] = NULL;
    }
}

static inline uint32_t batch_rows(const batch *b)
{
    return firn_cache_batch_size(b->layers[0]);
}

static inline void batch_filter(const fixture *f, batch *b, const uint32_t *keep, uint32_t n_keep)
{
    for (uint32_t i = 0; i < f->n_layers; i++) {
        assert_ok(firn_cache_filter_rows(b->layers[i], keep, n_keep, NULL));
    }
}

static inline batch batch_extract(const fixture *f, const batch *b, uint32_t row)
{
    batch out = { .layers = { NULL } };
    for (uint32_t i = 0; i < f->n_layers; i++) {
        assert_ok(firn_cache_extract_row(b->layers[i], row, &out.layers[i], NULL));
    }
    return out;
}

/* The running batch (any number of rows) and one joining row become a new batch; both sources are destroyed. */
static inline void batch_join(const fixture *f, batch *running, batch *joining)
{
    batch out = batch_create(f, 0);
    for (uint32_t i = 0; i < f->n_layers; i++) {
        const firn_cache *sources[2] = { running->layers[i], joining->layers[i] };
        assert_ok(firn_cache_merge_rows(out.layers[i], sources, 2, NULL));
    }
    batch_destroy(f, running);
    batch_destroy(f, joining);
    *running = out;
}

/* How much of its only row every layer can drop. */
static inline uint32_t batch_trimmable(const fixture *f, const batch *b)
{
    uint32_t n = firn_cache_trimmable_tokens(b->layers[0], 0);
    for (uint32_t i = 1; i < f->n_layers; i++) {
        const uint32_t n_layer = firn_cache_trimmable_tokens(b->layers[i], 0);
        n = n_layer < n ? n_layer : n;
    }
    return n;
}

static inline void batch_trim(const fixture *f, batch *b, uint32_t row, uint32_t n)
{
    for (uint32_t i = 0; i < f->n_layers; i++) {
        assert_ok(firn_cache_trim_row(b->layers[i], row, n, NULL));
    }
}

/* One forward over all rows; logits for every token when `all`, else for the last of each row. */
static inline void batch_forward(fixture *f, batch *b, const firn_token *tokens, const uint32_t *counts, bool all,
                                 float *logits)
{
    uint8_t want[4096];
    firn_error err = { .message = "" };
    memset(want, 1, sizeof want);
    const firn_forward_input input = {
        .tokens = tokens,
        .counts = counts,
        .n_rows = batch_rows(b),
        .caches = b->layers,
        .want_logits = all ? want : NULL,
        .logits = logits,
    };
    const firn_status status = firn_model_forward(f->model, &input, &err);
    if (status != FIRN_OK) {
        fail_msg("forward: %s", err.message);
    }
}

/* Feeds tokens to a serial batch in chunks, which end where a layer changes precision; logits of every position when
 * not NULL. */
static inline void batch_feed(fixture *f, batch *b, const firn_token *tokens, uint32_t n, uint32_t chunk, float *logits)
{
    float *ignored = logits == NULL ? malloc(f->n_vocab * sizeof *ignored) : NULL;
    for (uint32_t done = 0; done < n;) {
        uint32_t count = n - done < chunk ? n - done : chunk;
        for (uint32_t i = 0; i < f->n_layers; i++) {
            const uint32_t n_max = firn_cache_max_append_tokens(b->layers[i]);
            count = count < n_max ? count : n_max;
        }
        batch_forward(f, b, tokens + done, &count, logits != NULL,
                      logits == NULL ? ignored : logits + (size_t)done * f->n_vocab);
        done += count;
    }
    free(ignored);
}

/* Logits of every position of one sequence, malloc'ed. */
static inline float *fixture_logits(fixture *f, const firn_token *tokens, uint32_t n, uint32_t chunk)
{
    float *logits = malloc((size_t)n * f->n_vocab * sizeof *logits);
    batch b = batch_create(f, 1);
    assert_non_null(logits);
    batch_feed(f, &b, tokens, n, chunk, logits);
    batch_destroy(f, &b);
    return logits;
}

static inline uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* A whole file, malloc'ed, with a NUL behind it. */
static inline char *read_whole(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    (void)fseek(file, 0, SEEK_END);
    const size_t n = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, n, file), n);
    (void)fclose(file);
    data[n] = '\0';
    *n_bytes = n;
    return data;
}

/* Writes a small random model and returns its path inside `dir`, malloc'ed. */
static inline char *small_model(const char *dir, const char *name, const firni_synth_options *options)
{
    const size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    firn_error err = { .message = "" };
    (void)snprintf(path, n, "%s/%s", dir, name);
    if (firni_synth_write(options, path, NULL, &err) != FIRN_OK) {
        fail_msg("%s: %s", path, err.message);
    }
    return path;
}

#endif
