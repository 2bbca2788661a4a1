/*
 * The inside of a firn_model, shared by model.c (opening, closing, facts) and forward.c (one step).
 */
#ifndef FIRNI_MODEL_IMPL_H
#define FIRNI_MODEL_IMPL_H

#include "firn/model.h"
#include "model/arch_impl.h"

/* One allocation, cut up; sized at opening for max_batch_tokens and max_rows. */
typedef struct firni_scratch {
    void *memory;
    float *x;
    float *h;
    float *wide;
    float *cos_sin[FIRNI_ROPES_MAX];
    void *extra;
    void *matmul;
    uint32_t *positions; /* [max_batch_tokens] */
    uint32_t *wanted;    /* [max_batch_tokens] places of the wanted logits among the needed tokens */
    uint32_t *needed;    /* [max_rows] */
} firni_scratch;

#define FIRNI_DESCRIBE_BYTES 192u

struct firn_model {
    const firn_env *env;
    firn_workers *workers;
    const firni_kernels *kernels;
    const firni_arch *arch;
    firni_gguf *gguf;               /* open as long as the model: embedding rows are read from it */
    firn_tokenizer *tokenizer;
    uint8_t fingerprint[32];        /* of the weights */
    firni_hparams hparams;
    firni_rope ropes[FIRNI_ROPES_MAX];
    firni_weights weights;
    struct firni_packed_keeper *packed_keeper; /* NULL: nothing to write */
    bool packed_is_bad;             /* there is a file of packed weights, which is damaged */
    const void *layers;
    firni_row_table embedding;
    const float *output_norm;
    firni_projection output;
    firni_scratch scratch;
    uint32_t max_batch_tokens;
    uint32_t max_rows;
    char *name;
    firn_model_info info;
    char kv_name[32];                  /* how attention state is kept, as a user types it: "f16", "turbo:k8v3" */
    firn_cache_options *cache_options; /* [n_caches] */
    char (*cache_describes)[FIRNI_DESCRIBE_BYTES]; /* [n_caches] what firn_cache_describe() says of one that fits */
    uint32_t last_storing_layer;
    uint64_t multiply_adds;            /* of matrix products, of all forwards */
    firn_identity *identity;
    firn_schema schema;
};

/* Version of the arithmetic (docs/ARITHMETIC.md): changes when the same weights and tokens would give other bits. */
#define FIRNI_ARITHMETIC_VERSION "firn-arith-2"

/* Fills model->cache_options, ->cache_describes and ->kv_name; needs hparams and kernels. Errors: INVALID (options that
 * contradict each other; layers that cannot keep state in this way, which the message names), NO_MEMORY. */
firn_status firni_model_plan_caches(firn_model *model, const firn_model_options *options, firn_error *err);
/* Builds model->identity and ->schema; everything else is in place. Errors: NO_MEMORY. */
firn_status firni_model_build_schema(firn_model *model, firn_error *err);
firn_status firni_scratch_init(firn_model *model, firn_error *err);
/* Before the weights: maps their file, when there is one; needs the fingerprint. */
void firni_model_find_packed(firn_model *model, const firn_model_options *options);
/* After all has been opened: gets the weights written when they were packed here. */
void firni_model_keep_packed(firn_model *model, const firn_model_options *options);
/* About what is going to be written: page ends and the head are left out. */
uint64_t firni_model_packed_bytes_due(const firn_model *model);

#endif
