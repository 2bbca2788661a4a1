/*
 * Loads tensors: checks them against what the architecture expects, packs matrices, widens vectors.
 *
 * Owns the packed memory. Matrices that a file of packed weights has are taken from there, and their tensors not read.
 * Each other tensor's source pages are given back as soon as it is packed, so that a load needs the packed weights plus
 * about one tensor, not the file twice. Packing is divided over the workers by panels.
 */
#define _GNU_SOURCE /* madvise */

#include "model/weights.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base_impl.h"
#include "model/ggml_type.h"
#include "model/packed_file.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define CACHE_LINE_BYTES ((size_t)64)
#define PANELS_PER_TASK 8u

/* ---- memory ---- */

void firni_weights_deinit(firni_weights *weights)
{
    for (uint32_t i = 0; i < weights->n_allocations; i++) {
        firni_free(weights->env, weights->allocations[i]);
    }
    firni_free(weights->env, weights->allocations);
    firni_free(weights->env, weights->entries);
    firni_packed_unmap(weights->packed);
    *weights = (firni_weights){ .env = weights->env };
}

firni_weight_type firni_weights_main_type(const firni_weights *weights)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < FIRNI_WEIGHT_TYPES; i++) {
        if (weights->params_of_type[i] > weights->params_of_type[best]) {
            best = i;
        }
    }
    return (firni_weight_type)best;
}

/* Pieces are never released one by one, so a list of them is all the bookkeeping there is. Large pieces are spread over
 * huge pages: a decode step walks all of them, and with small pages spends a noticeable part of its time on translation
 * misses. */
void *firni_weights_alloc(firni_weights *weights, size_t n_bytes)
{
    if (weights->n_allocations == weights->capacity) {
        const uint32_t capacity = weights->capacity == 0 ? 64 : weights->capacity * 2;
        void **grown = firni_grow(weights->env, weights->allocations, weights->n_allocations, capacity,
                                  sizeof *weights->allocations);
        if (grown == NULL) {
            return NULL;
        }
        weights->allocations = grown;
        weights->capacity = capacity;
    }
    const bool large = n_bytes >= 2 * HUGE_PAGE_BYTES;
    void *memory = firni_alloc_aligned(weights->env, n_bytes, large ? HUGE_PAGE_BYTES : CACHE_LINE_BYTES);
    if (memory == NULL) {
        return NULL;
    }
    if (large) {
        (void)madvise(memory, n_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    }
    weights->allocations[weights->n_allocations++] = memory;
    weights->packed_bytes += n_bytes;
    return memory;
}

/* ---- loader ---- */

firn_status firni_loader_init(firni_loader *loader, const firni_gguf *gguf, firni_weights *weights,
                              firn_workers *workers, const firn_env *env, firn_error *err)
{
    const uint64_t n_tensors = firni_gguf_n_tensors(gguf);
    *loader = (firni_loader){ .gguf = gguf, .env = env, .workers = workers, .weights = weights };
    if (n_tensors == 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: holds no tensors: a vocabulary, not a model",
                          firni_gguf_path(gguf));
    }
    loader->used = firni_calloc(env, (size_t)n_tensors, 1);
    if (loader->used == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to load it", firni_gguf_path(gguf));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        loader->n_bytes_total += firni_gguf_tensor_at(gguf, i)->n_bytes;
    }
    return FIRN_OK;
}

void firni_loader_deinit(firni_loader *loader)
{
    firni_free(loader->env, loader->used);
    loader->used = NULL;
}

/* Tensors that change nothing here: heads for ranking, and the ranges of activations that were meant for other number
 * formats than ours. */
static bool is_ignorable(firni_gguf_string name)
{
    static const char prefix[] = "cls.";
    static const char suffix[] = ".input_scale";
    const size_t prefix_bytes = sizeof prefix - 1;
    const size_t suffix_bytes = sizeof suffix - 1;
    return (name.len_bytes > prefix_bytes && memcmp(name.data, prefix, prefix_bytes) == 0) ||
           (name.len_bytes > suffix_bytes &&
            memcmp(name.data + name.len_bytes - suffix_bytes, suffix, suffix_bytes) == 0);
}

/* Silence about an unknown tensor would be a model that runs without its mixture of experts, its extra norms or its
 * second rope, and answers nonsense. */
firn_status firni_loader_check_all_used(const firni_loader *loader, const char *architecture, firn_error *err)
{
    for (uint64_t i = 0; i < firni_gguf_n_tensors(loader->gguf); i++) {
        const firni_gguf_string name = firni_gguf_tensor_at(loader->gguf, i)->name;
        if (!loader->used[i] && !is_ignorable(name)) {
            return firni_fail(err, FIRN_ERR_UNSUPPORTED,
                              "%s: tensor '%.*s' is not part of the architecture '%s' as this build knows it",
                              firni_gguf_path(loader->gguf), (int)name.len_bytes, name.data, architecture);
        }
    }
    return FIRN_OK;
}

void firni_layer_tensor_name(char out[FIRNI_TENSOR_NAME_BYTES], uint32_t layer, const char *suffix)
{
    const int n = snprintf(out, FIRNI_TENSOR_NAME_BYTES, "blk.%lu.%s", (unsigned long)layer, suffix);
    assert(n > 0 && n < (int)FIRNI_TENSOR_NAME_BYTES);
    (void)n;
}

bool firni_loader_has(const firni_loader *loader, const char *name)
{
    return firni_gguf_find_tensor(loader->gguf, name) != NULL;
}

void firni_loader_skip(firni_loader *loader, const char *name)
{
    const firni_gguf_tensor *tensor = firni_gguf_find_tensor(loader->gguf, name);
    if (tensor != NULL) {
        loader->used[tensor - firni_gguf_tensor_at(loader->gguf, 0)] = 1;
    }
}

/* Called after each tensor; the callback must be cheap or decide for itself. */
void firni_loader_report(firni_loader *loader, uint64_t n_bytes)
{
    loader->n_bytes_done += n_bytes;
    if (loader->progress != NULL && loader->n_bytes_total > 0) {
        /* A tensor that is read twice (tied embeddings) may push the sum beyond the total. */
        const double fraction = (double)loader->n_bytes_done / (double)loader->n_bytes_total;
        loader->progress(loader->progress_ctx, fraction < 1.0 ? (float)fraction : 1.0F);
    }
}

firn_status firni_loader_find(firni_loader *loader, const char *name, uint32_t n_cols, uint32_t n_rows,
                              uint32_t n_stack, const firni_gguf_tensor **out, firni_weight_type *type,
                              firn_error *err)
{
    const char *path = firni_gguf_path(loader->gguf);
    const firni_gguf_tensor *tensor = firni_gguf_find_tensor(loader->gguf, name);
    if (tensor == NULL) {
        return firni_fail(err, FIRN_ERR_FORMAT, "%s: tensor '%s' [%lu, %lu] is missing", path, name,
                          (unsigned long)n_cols, (unsigned long)n_rows);
    }
    if (tensor->shape[0] != n_cols || tensor->shape[1] != n_rows || tensor->shape[2] != n_stack ||
        tensor->shape[3] != 1) {
        return firni_fail(err, FIRN_ERR_FORMAT,
                          "%s: tensor '%s' has the shape [%llu, %llu, %llu, %llu], expected [%lu, %lu, %lu, 1]", path,
                          name, (unsigned long long)tensor->shape[0], (unsigned long long)tensor->shape[1],
                          (unsigned long long)tensor->shape[2], (unsigned long long)tensor->shape[3],
                          (unsigned long)n_cols, (unsigned long)n_rows, (unsigned long)n_stack);
    }
    if (!firni_ggml_type_weight(tensor->ggml_type, type)) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED,
                          "%s: tensor '%s' is of type %s (%lu); this build computes with " FIRNI_GGML_TYPES_SUPPORTED,
                          path, name, firni_ggml_type_name(tensor->ggml_type), (unsigned long)tensor->ggml_type);
    }
    /* The bounds check of the reader and the kernels' idea of the size must be the same. */
    const uint64_t rows = (uint64_t)n_rows * n_stack;
    assert(tensor->n_bytes == rows * firni_weight_row_bytes(*type, n_cols));
    /* A tensor that serves twice is counted once. */
    uint8_t *used = &loader->used[tensor - firni_gguf_tensor_at(loader->gguf, 0)];
    if (!*used) {
        *used = 1;
        loader->weights->n_params += rows * n_cols;
        loader->weights->params_of_type[*type] += rows * n_cols;
    }
    *out = tensor;
    return FIRN_OK;
}

/* A tensor of the shape [n_cols, n_rows], or [n_cols] when n_rows is 0. */
static firn_status find_checked(firni_loader *loader, const char *name, uint32_t n_rows, uint32_t n_cols,
                                const firni_gguf_tensor **out, firni_weight_type *type, firn_error *err)
{
    return firni_loader_find(loader, name, n_cols, n_rows == 0 ? 1 : n_rows, 1, out, type, err);
}

/* ---- matrices ---- */

/* The next entry, zeroed; NULL without memory. */
static firni_packed_entry *add_entry(firni_weights *weights)
{
    if (weights->n_entries == weights->entries_capacity) {
        const uint32_t capacity = weights->entries_capacity == 0 ? 64 : weights->entries_capacity * 2;
        firni_packed_entry *grown = firni_grow(weights->env, weights->entries, weights->n_entries, capacity,
                                               sizeof *weights->entries);
        if (grown == NULL) {
            return NULL;
        }
        weights->entries = grown;
        weights->entries_capacity = capacity;
    }
    firni_packed_entry *entry = &weights->entries[weights->n_entries++];
    *entry = (firni_packed_entry){ .n_bytes = 0 };
    return entry;
}

firn_status firni_loader_place_panels(firni_loader *loader, const firni_gguf_tensor *tensor, firni_weight_type type,
                                      uint32_t n_rows, uint32_t n_each, const uint8_t **panels, uint8_t **room,
                                      firn_error *err)
{
    firni_weights *weights = loader->weights;
    const uint32_t n_cols = (uint32_t)tensor->shape[0];
    const size_t matrix_bytes = firni_matrix_bytes(type, n_rows, n_cols);
    size_t n_bytes = 0;
    *room = NULL;
    const bool fits = firni_mul_size(matrix_bytes, n_each, &n_bytes);
    firni_packed_entry *entry = fits ? add_entry(weights) : NULL;
    if (entry != NULL) {
        assert(tensor->name.len_bytes < sizeof entry->name);
        memcpy(entry->name, tensor->name.data, tensor->name.len_bytes);
        entry->type = type;
        entry->n_rows = n_rows;
        entry->n_cols = n_cols;
        entry->n_each = n_each;
        entry->n_bytes = n_bytes;
        entry->panels = weights->packed != NULL ? firni_packed_find(weights->packed, entry) : NULL;
        if (entry->panels != NULL) {
            weights->packed_bytes += n_bytes;
        } else {
            *room = firni_weights_alloc(weights, n_bytes);
            entry->panels = *room;
            weights->n_packed_here++;
        }
    }
    if (entry == NULL || entry->panels == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for the %lu times %zu bytes of tensor '%.*s'",
                          firni_gguf_path(loader->gguf), (unsigned long)n_each, matrix_bytes,
                          (int)tensor->name.len_bytes, tensor->name.data);
    }
    *panels = entry->panels;
    return FIRN_OK;
}

/* One source tensor packed into panels [first_panel, ...) of a matrix. */
typedef struct pack_job {
    firni_weight_type type;
    uint32_t n_rows;      /* of the whole matrix */
    uint32_t n_cols;
    const uint8_t *source;
    uint8_t *panels;
    uint32_t first_panel;
    uint32_t n_panels;
} pack_job;

/* A few panels of 16 rows: large enough to be worth a hand-over, small enough to balance. */
static void pack_task(void *ctx, uint32_t index, uint32_t thread)
{
    const pack_job *job = ctx;
    (void)thread;
    const uint32_t begin = index * PANELS_PER_TASK;
    const uint32_t n = job->n_panels - begin < PANELS_PER_TASK ? job->n_panels - begin : PANELS_PER_TASK;
    const size_t skipped = (size_t)begin * FIRNI_PANEL_ROWS * firni_weight_row_bytes(job->type, job->n_cols);
    firni_matrix_pack(job->type, job->n_rows, job->n_cols, job->source + skipped, job->panels, job->first_panel + begin,
                      n);
}

/* Packs tensors of one type below each other. All but the last have a multiple of 16 rows. */
static firn_status pack_stack(firni_loader *loader, const firni_gguf_tensor *const *tensors, uint32_t n_tensors,
                              firni_weight_type type, firni_matrix *out, firn_error *err)
{
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n_tensors; i++) {
        n_rows += tensors[i]->shape[1];
    }
    const uint32_t n_cols = (uint32_t)tensors[0]->shape[0];
    const uint8_t *panels = NULL;
    uint8_t *room = NULL;
    const firn_status status = firni_loader_place_panels(loader, tensors[0], type, (uint32_t)n_rows, 1, &panels, &room,
                                                         err);
    if (status != FIRN_OK) {
        return status;
    }
    pack_job job = { .type = type, .n_rows = (uint32_t)n_rows, .n_cols = n_cols, .panels = room };
    /* One tensor after the other, each divided over the workers, so that the source pages of only one are mapped. */
    for (uint32_t i = 0; i < n_tensors; i++) {
        const uint32_t rows = (uint32_t)tensors[i]->shape[1];
        assert(i + 1 == n_tensors || rows % FIRNI_PANEL_ROWS == 0);
        if (room != NULL) {
            job.source = tensors[i]->data;
            job.n_panels = (rows + FIRNI_PANEL_ROWS - 1) / FIRNI_PANEL_ROWS;
            firn_workers_run(loader->workers, (job.n_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK, pack_task, &job);
            job.first_panel += job.n_panels;
            firni_gguf_drop_pages(loader->gguf, tensors[i]->data, tensors[i]->n_bytes);
        }
        firni_loader_report(loader, tensors[i]->n_bytes);
    }
    *out = (firni_matrix){ .type = type, .n_rows = (uint32_t)n_rows, .n_cols = n_cols, .panels = panels };
    return FIRN_OK;
}

void firni_tensor_name(char out[FIRNI_TENSOR_NAME_BYTES], const char *name, const char *kind)
{
    const int n = snprintf(out, FIRNI_TENSOR_NAME_BYTES, "%s.%s", name, kind);
    assert(n > 0 && n < (int)FIRNI_TENSOR_NAME_BYTES);
    (void)n;
}

/* Biases or scales of a stack as one vector of n_rows, `missing` where a part has none; NULL when no part has. A tensor
 * of one element counts for all rows of its part. */
static firn_status load_row_factors(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                    const char *kind, bool is_scalar, float missing, const float **out,
                                    firn_error *err)
{
    char name[FIRNI_TENSOR_NAME_BYTES];
    size_t n_rows = 0;
    bool any = false;
    *out = NULL;
    for (uint32_t i = 0; i < n_parts; i++) {
        firni_tensor_name(name, parts[i].name, kind);
        any = any || firni_loader_has(loader, name);
        n_rows += parts[i].n_rows;
    }
    if (!any) {
        return FIRN_OK;
    }
    float *vector = firni_weights_alloc(loader->weights, n_rows * sizeof *vector);
    if (vector == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", firni_gguf_path(loader->gguf),
                          name);
    }
    *out = vector;
    for (uint32_t i = 0; i < n_parts; i++) {
        const firni_gguf_tensor *tensor = NULL;
        firni_weight_type type = FIRNI_WEIGHT_F32;
        const uint32_t n = is_scalar ? 1 : parts[i].n_rows;
        vector[0] = missing;
        firni_tensor_name(name, parts[i].name, kind);
        if (firni_loader_has(loader, name)) {
            const firn_status status = find_checked(loader, name, 0, n, &tensor, &type, err);
            if (status != FIRN_OK) {
                return status;
            }
            firni_weight_row_to_f32(type, tensor->data, n, vector);
            firni_loader_report(loader, tensor->n_bytes);
        }
        for (uint32_t r = tensor == NULL ? 1 : n; r < parts[i].n_rows; r++) {
            vector[r] = vector[0];
        }
        vector += parts[i].n_rows;
    }
    return FIRN_OK;
}

/* All parts are checked before any is packed: a wrong file is refused without first spending seconds on it. */
firn_status firni_load_projection(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                  uint32_t n_cols, firni_projection *out, firn_error *err)
{
    const firni_gguf_tensor *tensors[FIRNI_STACK_MAX];
    firni_weight_type types[FIRNI_STACK_MAX];
    assert(n_parts >= 1 && n_parts <= FIRNI_STACK_MAX);
    *out = (firni_projection){ .n_cols = n_cols };
    for (uint32_t i = 0; i < n_parts; i++) {
        char name[FIRNI_TENSOR_NAME_BYTES];
        firni_tensor_name(name, parts[i].name, "weight");
        const firn_status status = find_checked(loader, name, parts[i].n_rows, n_cols, &tensors[i], &types[i], err);
        if (status != FIRN_OK) {
            return status;
        }
        out->n_rows += parts[i].n_rows;
    }
    /* Stack what can be stacked: neighbours of one type, as long as a part fills its last panel. */
    for (uint32_t begin = 0; begin < n_parts;) {
        uint32_t end = begin + 1;
        while (end < n_parts && types[end] == types[begin] && parts[end - 1].n_rows % FIRNI_PANEL_ROWS == 0) {
            end++;
        }
        const firn_status status = pack_stack(loader, tensors + begin, end - begin, types[begin],
                                              &out->matrices[out->n_matrices], err);
        if (status != FIRN_OK) {
            return status;
        }
        out->n_matrices++;
        begin = end;
    }
    const firn_status status = load_row_factors(loader, parts, n_parts, "scale", true, 1.0F, &out->scale, err);
    out->scale = loader->ignores_scales ? NULL : out->scale;
    return status != FIRN_OK ? status
                             : load_row_factors(loader, parts, n_parts, "bias", false, 0.0F, &out->bias, err);
}

/* ---- vectors and rows ---- */

firn_status firni_load_vector(firni_loader *loader, const char *name, uint32_t n, const float **out, firn_error *err)
{
    const firni_gguf_tensor *tensor = NULL;
    firni_weight_type type;
    *out = NULL;
    const firn_status status = find_checked(loader, name, 0, n, &tensor, &type, err);
    if (status != FIRN_OK) {
        return status;
    }
    float *vector = firni_weights_alloc(loader->weights, n * sizeof *vector);
    if (vector == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", firni_gguf_path(loader->gguf),
                          name);
    }
    firni_weight_row_to_f32(type, tensor->data, n, vector);
    firni_loader_report(loader, tensor->n_bytes);
    *out = vector;
    return FIRN_OK;
}

/* The rows stay where they are. A forward touches one row for each token: packing the table would double its memory to
 * save a conversion of a few kilobytes. */
firn_status firni_load_row_table(firni_loader *loader, const char *name, uint32_t n_rows, uint32_t n_cols,
                                 firni_row_table *out, firn_error *err)
{
    const firni_gguf_tensor *tensor = NULL;
    firni_weight_type type;
    const firn_status status = find_checked(loader, name, n_rows, n_cols, &tensor, &type, err);
    if (status != FIRN_OK) {
        return status;
    }
    *out = (firni_row_table){
        .type = type,
        .n_cols = n_cols,
        .row_bytes = firni_weight_row_bytes(type, n_cols),
        .rows = tensor->data,
    };
    return FIRN_OK;
}
