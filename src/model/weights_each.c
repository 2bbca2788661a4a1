/*
 * Loads stacks of equal projections, one for each expert or head, from tensors with one dimension more.
 *
 * Each expert is packed into a matrix of its own, so that its product takes the path of every other product. The
 * matrices of a stack lie behind each other in one piece of memory: there are tens of thousands of them in a large
 * model. Parts that are stacked below each other (gate and up) are interleaved expert by expert.
 *
 * Owns nothing: memory belongs to the loader's weights.
 */
#include <assert.h>

#include "base/base_impl.h"
#include "model/weights.h"

#define PANELS_PER_TASK 8u

static uint32_t panels_of(uint32_t n_rows)
{
    return (n_rows + FIRNI_PANEL_ROWS - 1) / FIRNI_PANEL_ROWS;
}

/* Panels [first_panel, first_panel + n_panels) of every matrix, from one tensor. */
typedef struct pack_each_job {
    firni_weight_type type;
    uint32_t n_rows;       /* of a whole matrix */
    uint32_t n_cols;
    uint32_t first_panel;
    uint32_t n_panels;
    uint32_t n_tasks;      /* for one matrix */
    const uint8_t *source;
    size_t source_bytes;   /* of one matrix */
    uint8_t *panels;
    size_t matrix_bytes;
} pack_each_job;

static void pack_each_task(void *ctx, uint32_t index, uint32_t thread)
{
    const pack_each_job *job = ctx;
    (void)thread;
    const uint32_t which = index / job->n_tasks;
    const uint32_t begin = index % job->n_tasks * PANELS_PER_TASK;
    const uint32_t n = job->n_panels - begin < PANELS_PER_TASK ? job->n_panels - begin : PANELS_PER_TASK;
    const size_t skipped = (size_t)begin * FIRNI_PANEL_ROWS * firni_weight_row_bytes(job->type, job->n_cols);
    firni_matrix_pack(job->type, job->n_rows, job->n_cols, job->source + which * job->source_bytes + skipped,
                      job->panels + which * job->matrix_bytes, job->first_panel + begin, n);
}

/* Packs parts of one type below each other, for every projection, as its next matrix. */
static firn_status pack_parts(firni_loader *loader, const firni_gguf_tensor *const *tensors, uint32_t n_tensors,
                              firni_weight_type type, firni_projection *out, uint32_t n_each, firn_error *err)
{
    const uint32_t n_cols = (uint32_t)tensors[0]->shape[0];
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_tensors; i++) {
        n_rows += (uint32_t)tensors[i]->shape[1];
    }
    const uint8_t *panels = NULL;
    uint8_t *room = NULL;
    const firn_status status = firni_loader_place_panels(loader, tensors[0], type, n_rows, n_each, &panels, &room, err);
    if (status != FIRN_OK) {
        return status;
    }
    const size_t matrix_bytes = firni_matrix_bytes(type, n_rows, n_cols);
    pack_each_job job = {
        .type = type,
        .n_rows = n_rows,
        .n_cols = n_cols,
        .panels = room,
        .matrix_bytes = matrix_bytes,
    };
    for (uint32_t i = 0; i < n_tensors; i++) {
        const uint32_t rows = (uint32_t)tensors[i]->shape[1];
        assert(i + 1 == n_tensors || rows % FIRNI_PANEL_ROWS == 0);
        if (room != NULL) {
            job.source = tensors[i]->data;
            job.source_bytes = rows * firni_weight_row_bytes(type, n_cols);
            job.n_panels = panels_of(rows);
            job.n_tasks = (job.n_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
            firn_workers_run(loader->workers, job.n_tasks * n_each, pack_each_task, &job);
            job.first_panel += job.n_panels;
            firni_gguf_drop_pages(loader->gguf, tensors[i]->data, tensors[i]->n_bytes);
        }
        firni_loader_report(loader, tensors[i]->n_bytes);
    }
    for (uint32_t e = 0; e < n_each; e++) {
        out[e].matrices[out[e].n_matrices++] =
            (firni_matrix){ .type = type, .n_rows = n_rows, .n_cols = n_cols, .panels = panels + e * matrix_bytes };
    }
    return FIRN_OK;
}

/* One part's scales [n_each] or biases [n_rows, n_each] into rows [first_row, ...) of every vector. */
static firn_status load_part_factors(firni_loader *loader, const firni_stack_part *part, const char *kind,
                                     bool is_scalar, uint32_t n_each, float *vectors, size_t stride, firn_error *err)
{
    char name[FIRNI_TENSOR_NAME_BYTES];
    const firni_gguf_tensor *tensor = NULL;
    firni_weight_type type = FIRNI_WEIGHT_F32;
    firni_tensor_name(name, part->name, kind);
    const firn_status status = is_scalar
                                   ? firni_loader_find(loader, name, n_each, 1, 1, &tensor, &type, err)
                                   : firni_loader_find(loader, name, part->n_rows, n_each, 1, &tensor, &type, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (is_scalar && type != FIRNI_WEIGHT_F32) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "%s: tensor '%s' is of type %s; scales are f32",
                          firni_gguf_path(loader->gguf), name, firni_weight_type_name(type));
    }
    for (uint32_t e = 0; e < n_each; e++) {
        float *vector = vectors + e * stride;
        if (!is_scalar) {
            firni_weight_row_to_f32(type, tensor->data + e * firni_weight_row_bytes(type, part->n_rows), part->n_rows,
                                    vector);
            continue;
        }
        firni_weight_row_to_f32(type, tensor->data + e * sizeof(float), 1, vector);
        for (uint32_t r = 1; r < part->n_rows; r++) {
            vector[r] = vector[0];
        }
    }
    firni_loader_report(loader, tensor->n_bytes);
    return FIRN_OK;
}

/* Biases or scales of all projections as one array [n_each][n_rows], `missing` where a part has none; NULL when no part
 * has. */
static firn_status load_factors(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                const char *kind, bool is_scalar, float missing, uint32_t n_rows, uint32_t n_each,
                                const float **out, firn_error *err)
{
    char name[FIRNI_TENSOR_NAME_BYTES];
    bool any = false;
    *out = NULL;
    for (uint32_t i = 0; i < n_parts; i++) {
        firni_tensor_name(name, parts[i].name, kind);
        any = any || firni_loader_has(loader, name);
    }
    if (!any) {
        return FIRN_OK;
    }
    const size_t n = (size_t)n_rows * n_each;
    float *vectors = firni_weights_alloc(loader->weights, n * sizeof *vectors);
    if (vectors == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", firni_gguf_path(loader->gguf),
                          name);
    }
    for (size_t i = 0; i < n; i++) {
        vectors[i] = missing;
    }
    *out = vectors;
    for (uint32_t i = 0; i < n_parts; i++) {
        firni_tensor_name(name, parts[i].name, kind);
        if (firni_loader_has(loader, name)) {
            const firn_status status =
                load_part_factors(loader, &parts[i], kind, is_scalar, n_each, vectors, n_rows, err);
            if (status != FIRN_OK) {
                return status;
            }
        }
        vectors += parts[i].n_rows;
    }
    return FIRN_OK;
}

/* All parts are checked before any is packed: a wrong file is refused without first spending seconds on it. */
firn_status firni_load_projections(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                   uint32_t n_cols, uint32_t n_each, const firni_projection **out, firn_error *err)
{
    const firni_gguf_tensor *tensors[FIRNI_STACK_MAX];
    firni_weight_type types[FIRNI_STACK_MAX];
    uint32_t n_rows = 0;
    assert(n_parts >= 1 && n_parts <= FIRNI_STACK_MAX && n_each >= 1);
    *out = NULL;
    for (uint32_t i = 0; i < n_parts; i++) {
        char name[FIRNI_TENSOR_NAME_BYTES];
        firni_tensor_name(name, parts[i].name, "weight");
        const firn_status status =
            firni_loader_find(loader, name, n_cols, parts[i].n_rows, n_each, &tensors[i], &types[i], err);
        if (status != FIRN_OK) {
            return status;
        }
        n_rows += parts[i].n_rows;
    }
    firni_projection *each = firni_weights_alloc(loader->weights, n_each * sizeof *each);
    if (each == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory for %lu projections",
                          firni_gguf_path(loader->gguf), (unsigned long)n_each);
    }
    for (uint32_t e = 0; e < n_each; e++) {
        each[e] = (firni_projection){ .n_rows = n_rows, .n_cols = n_cols };
    }
    for (uint32_t begin = 0; begin < n_parts;) {
        uint32_t end = begin + 1;
        while (end < n_parts && types[end] == types[begin] && parts[end - 1].n_rows % FIRNI_PANEL_ROWS == 0) {
            end++;
        }
        const firn_status status = pack_parts(loader, tensors + begin, end - begin, types[begin], each, n_each, err);
        if (status != FIRN_OK) {
            return status;
        }
        begin = end;
    }
    const float *scales;
    const float *biases;
    firn_status status = load_factors(loader, parts, n_parts, "scale", true, 1.0F, n_rows, n_each, &scales, err);
    if (status == FIRN_OK) {
        status = load_factors(loader, parts, n_parts, "bias", false, 0.0F, n_rows, n_each, &biases, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    for (uint32_t e = 0; e < n_each; e++) {
        each[e].scale = scales != NULL && !loader->ignores_scales ? scales + (size_t)e * n_rows : NULL;
        each[e].bias = biases != NULL ? biases + (size_t)e * n_rows : NULL;
    }
    *out = each;
    return FIRN_OK;
}
