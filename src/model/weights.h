/*
 * Weights: named tensors of a GGUF file, brought into the form that the forward reads.
 *
 *   - matrices are packed once into panels (kernel_impl.h). Matrices that are multiplied by the same vector are
 *     stacked into one, when their types agree, so that the vector is prepared once and the workers start once;
 *   - norms and biases become f32;
 *   - embedding rows stay in the mapped file: a forward reads a few of them.
 *
 * A loader is used while a model opens. It remembers which tensors were asked for: one that nobody asked for means that
 * the architecture does something this build would silently leave out, and is refused.
 */
#ifndef FIRNI_WEIGHTS_H
#define FIRNI_WEIGHTS_H

#include "firn/workers.h"
#include "kernel/kernel_impl.h"
#include "model/gguf.h"

#define FIRNI_STACK_MAX 3u

/* y = ([W0; W1; ...] x) * scale + bias, or (... + bias) * scale: the outputs of the parts follow each other. One matrix
 * when the types agree, else up to three. */
typedef struct firni_projection {
    firni_matrix matrices[FIRNI_STACK_MAX];
    uint32_t n_matrices;
    uint32_t n_rows;    /* outputs, all parts together */
    uint32_t n_cols;
    const float *scale; /* [n_rows], NULL: all 1 */
    const float *bias;  /* [n_rows], NULL: all 0 */
    bool is_bias_first;
} firni_projection;

/* A table of rows in the mapped file. */
typedef struct firni_row_table {
    firni_weight_type type;
    uint32_t n_cols;
    size_t row_bytes;
    const uint8_t *rows;
} firni_row_table;

#define FIRNI_TENSOR_NAME_BYTES 64u

/* Matrices of one shape behind each other, in panels. */
typedef struct firni_packed_entry {
    char name[FIRNI_TENSOR_NAME_BYTES]; /* of the first tensor in it */
    firni_weight_type type;
    uint32_t n_rows, n_cols, n_each;
    uint64_t n_bytes;
    const uint8_t *panels;
    uint64_t offset;                    /* in a file of packed weights (packed_file.h) */
} firni_packed_entry;

struct firni_packed;

/* Everything that was loaded; owns the memory that projections and vectors point into. */
typedef struct firni_weights {
    const firn_env *env;
    void **allocations;
    uint32_t n_allocations;
    uint32_t capacity;
    struct firni_packed *packed;        /* the file that panels lie in; NULL: all are in memory */
    firni_packed_entry *entries;        /* of all matrices, in the order of loading */
    uint32_t n_entries;
    uint32_t entries_capacity;
    uint32_t n_packed_here;             /* of them, in memory */
    uint64_t packed_bytes;
    uint64_t n_params;
    uint64_t params_of_type[FIRNI_WEIGHT_TYPES];
} firni_weights;

void firni_weights_deinit(firni_weights *weights); /* accepts a zeroed struct */
/* Memory that lives as long as the weights, aligned for panels; NULL when refused. */
void *firni_weights_alloc(firni_weights *weights, size_t n_bytes);
/* The type of most parameters. */
firni_weight_type firni_weights_main_type(const firni_weights *weights);

typedef struct firni_loader {
    const firni_gguf *gguf;
    const firn_env *env;
    firn_workers *workers;
    firni_weights *weights;
    uint8_t *used;              /* [n_tensors] */
    bool ignores_scales;        /* of projections: looked at, and left out */
    uint64_t n_bytes_total;
    uint64_t n_bytes_done;
    void (*progress)(void *ctx, float fraction);
    void *progress_ctx;
} firni_loader;

/* Errors: NO_MEMORY. */
firn_status firni_loader_init(firni_loader *loader, const firni_gguf *gguf, firni_weights *weights,
                              firn_workers *workers, const firn_env *env, firn_error *err);
void firni_loader_deinit(firni_loader *loader);
/* FORMAT with the name of a tensor that was not asked for. */
firn_status firni_loader_check_all_used(const firni_loader *loader, const char *architecture, firn_error *err);

/* "blk.<layer>.<suffix>" */
void firni_layer_tensor_name(char out[FIRNI_TENSOR_NAME_BYTES], uint32_t layer, const char *suffix);
/* "<name>.<kind>" */
void firni_tensor_name(char out[FIRNI_TENSOR_NAME_BYTES], const char *name, const char *kind);
bool firni_loader_has(const firni_loader *loader, const char *name);
/* The one door to the file's tensors: one of exactly the shape [n_cols, n_rows, n_stack], of a type that the kernels
 * know, which counts as used from then on. Errors: FORMAT, UNSUPPORTED, as of the functions below. */
firn_status firni_loader_find(firni_loader *loader, const char *name, uint32_t n_cols, uint32_t n_rows,
                              uint32_t n_stack, const firni_gguf_tensor **out, firni_weight_type *type,
                              firn_error *err);
/* Panels for n_each matrices [n_rows, n_cols] whose first tensor is `tensor`: entry->panels is where they lie. *room is
 * NULL when they are there already, in a file of packed weights; else the same address, to pack them into. Errors:
 * NO_MEMORY. */
firn_status firni_loader_place_panels(firni_loader *loader, const firni_gguf_tensor *tensor, firni_weight_type type,
                                      uint32_t n_rows, uint32_t n_each, const uint8_t **panels, uint8_t **room,
                                      firn_error *err);
/* n_bytes more of the file have been loaded. */
void firni_loader_report(firni_loader *loader, uint64_t n_bytes);
/* Counts a tensor that the architecture knows and does not read as used; does nothing when the file lacks it. */
void firni_loader_skip(firni_loader *loader, const char *name);

/* One part of a stack: the tensors "<name>.weight" [n_rows, n_cols], and, when the file has them, "<name>.bias"
 * [n_rows] and "<name>.scale" [1]. */
typedef struct firni_stack_part {
    const char *name;
    uint32_t n_rows;
} firni_stack_part;

/* Errors of these four: FORMAT (missing, or of another shape: both shapes are named), UNSUPPORTED (a type that this
 * build does not compute with: named, with those it does), NO_MEMORY. */
firn_status firni_load_projection(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                  uint32_t n_cols, firni_projection *out, firn_error *err);
/* n_each projections of one shape from tensors with one dimension more (experts, heads): "<name>.weight" [n_cols,
 * n_rows, n_each], "<name>.bias" [n_rows, n_each], "<name>.scale" [n_each]. Owned by the loader's weights. */
firn_status firni_load_projections(firni_loader *loader, const firni_stack_part *parts, uint32_t n_parts,
                                   uint32_t n_cols, uint32_t n_each, const firni_projection **out, firn_error *err);
firn_status firni_load_vector(firni_loader *loader, const char *name, uint32_t n, const float **out, firn_error *err);
firn_status firni_load_row_table(firni_loader *loader, const char *name, uint32_t n_rows, uint32_t n_cols,
                                 firni_row_table *out, firn_error *err);

#endif
