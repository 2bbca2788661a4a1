/*
 * scalar: what the files of the scalar reference share. The walk of attention over tiles is in attend_scalar.c; how a
 * storage gives scores and adds values is a storage's own (there for plain blocks, in kernel_quant_scalar.c and
 * kernel_latent_scalar.c).
 */
#ifndef FIRNI_SCALAR_IMPL_H
#define FIRNI_SCALAR_IMPL_H

#include "kernel/kernel_impl.h"

enum { FIRNI_SCALAR_LANES = 16 };

/* One attend task over one storage, which may begin a larger struct with it. */
typedef struct firni_scalar_attend firni_scalar_attend;
struct firni_scalar_attend {
    const firni_attend_task *task;
    uint32_t head_dim;
    uint32_t value_dim;
    const float *q; /* of the query head at hand; set by the walk */
    uint64_t seen;  /* lanes of the tile at hand that may be seen at all; set by the walk */
    void (*start)(firni_scalar_attend *attend); /* NULL: nothing; q is set */
    /* What `seen` of a tile is; 0: the tile is passed over. NULL: all. */
    uint64_t (*seen_of)(const firni_scalar_attend *attend, uint32_t tile_index);
    /* q.k of the token in this lane of the block. */
    float (*score)(const firni_scalar_attend *attend, const uint8_t *block, uint32_t lane);
    /* Adds the seen tokens [begin, end) of a block; weights of the others are 0. Values were multiplied by rescale. */
    void (*add_values)(firni_scalar_attend *attend, const uint8_t *block, const float *weights, uint32_t begin,
                       uint32_t end, float rescale, float *values);
    void (*finish)(firni_scalar_attend *attend, float *values); /* NULL: nothing */
};

void firni_scalar_attend_all(firni_scalar_attend *attend);

/* Members of the kernel table. */
void firni_scalar_attend_plain(const firni_attend_task *task);
void firni_scalar_attend_quant(const firni_attend_task *task);
void firni_scalar_store_quant(const firni_quant_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                              const float *v);
void firni_scalar_attend_latent(const firni_attend_task *task);
void firni_scalar_store_latent(const firni_latent_geometry *geometry, uint8_t *block, uint32_t lane, const float *k,
                               const float *index_key);
void firni_scalar_index_scores(const firni_latent_geometry *geometry, const uint8_t *block, const float *q,
                               const float *weights, uint32_t n_heads, float out[FIRN_BLOCK_TOKENS]);

#endif
