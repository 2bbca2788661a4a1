/*
 * variants: what the implementations of the kernel table have in common: their tables, and the few rules about
 * attention tasks that are no arithmetic (where a head's planes begin, which tokens a query sees).
 */
#ifndef FIRNI_VARIANTS_IMPL_H
#define FIRNI_VARIANTS_IMPL_H

#include <assert.h>
#include <stddef.h>

#include "base/compiler.h"
#include "kernel/kernel_impl.h"

extern const firni_kernels firni_kernels_scalar;
extern const firni_kernels firni_kernels_avx2;   /* x86-64 builds */
extern const firni_kernels firni_kernels_avx512; /* x86-64 builds */
extern const firni_kernels firni_kernels_neon;   /* aarch64 builds */

/* The element type of a float weight format. */
FIRNI_INLINE firn_dtype firni_weight_dtype(firni_weight_type type)
{
    assert(type < FIRNI_WEIGHT_Q8_0);
    return type == FIRNI_WEIGHT_F32 ? FIRN_DTYPE_F32 : type == FIRNI_WEIGHT_F16 ? FIRN_DTYPE_F16 : FIRN_DTYPE_BF16;
}

FIRNI_INLINE size_t firni_plain_element_bytes(firn_dtype dtype) { return dtype == FIRN_DTYPE_F32 ? 4 : 2; }

typedef struct firni_plain_planes {
    const uint8_t *k; /* [head_dim][64] of one head */
    const uint8_t *v; /* [64][value_dim] of one head */
} firni_plain_planes;

FIRNI_INLINE firni_plain_planes firni_plain_planes_of(const firni_plain_geometry *geometry, const uint8_t *block,
                                                      uint32_t kv_head)
{
    const size_t head_tokens_bytes = kv_head * FIRN_BLOCK_TOKENS * firni_plain_element_bytes(geometry->dtype);
    return (firni_plain_planes){
        .k = block + head_tokens_bytes * geometry->head_dim,
        .v = block + geometry->v_offset_bytes + head_tokens_bytes * geometry->value_dim,
    };
}

/* Positions [begin, end): never empty, since a query sees itself. */
typedef struct firni_visible {
    uint32_t begin;
    uint32_t end;
} firni_visible;

FIRNI_INLINE firni_attend_row firni_attend_row_of(const firni_attend_task *task, uint32_t query)
{
    if (task->rows != NULL) {
        return task->rows[query];
    }
    return (firni_attend_row){
        .blocks = task->blocks, .first_block = task->first_block, .position = task->first_position + query};
}

FIRNI_INLINE const firn_block *firni_attend_block(const firni_attend_row *row, uint32_t tile_index)
{
    return row->blocks[tile_index - row->first_block];
}

FIRNI_INLINE firni_visible firni_visible_tokens(const firni_attend_task *task, uint32_t query)
{
    const uint32_t end = firni_attend_row_of(task, query).position + 1;
    return (firni_visible){.begin = task->window != 0 && end > task->window ? end - task->window : 0, .end = end};
}

/* Of a task that sees selected tokens alone: which lanes of a tile they are. */
FIRNI_INLINE uint64_t firni_selected_lanes(const firni_attend_task *task, uint32_t tile_index)
{
    const uint32_t first = tile_index * FIRN_BLOCK_TOKENS;
    uint32_t low = 0; /* the first of them that is not before the tile */
    for (uint32_t high = task->n_selected; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        if (task->selected[middle] < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    uint64_t bits = 0;
    for (; low < task->n_selected && task->selected[low] - first < FIRN_BLOCK_TOKENS; low++) {
        bits |= UINT64_C(1) << (task->selected[low] - first);
    }
    return bits;
}

/* The preconditions of attend_latent. */
FIRNI_INLINE void firni_latent_task_check(const firni_attend_task *task)
{
    assert(task->latent != NULL && task->geometry == NULL && task->quant == NULL);
    assert(task->latent->head_dim >= 1 && task->latent->head_dim <= FIRNI_HEAD_DIM_MAX);
    assert(task->latent->value_dim >= 1 && task->latent->value_dim <= task->latent->head_dim);
    assert(task->kv_head == 0 && task->window == 0 && task->first_block == 0);
    assert(task->selected == NULL || (task->n_queries == 1 && task->rows == NULL && task->n_selected >= 1));
    assert(task->selected == NULL || task->selected[task->n_selected - 1] <= task->first_position);
    (void)task;
}

/* The preconditions of attend_plain. */
FIRNI_INLINE void firni_attend_task_check(const firni_attend_task *task)
{
    assert(task->geometry != NULL && task->quant == NULL);
    assert(task->geometry->head_dim >= 1 && task->geometry->head_dim <= FIRNI_HEAD_DIM_MAX);
    assert(task->geometry->value_dim >= 1 && task->geometry->value_dim <= FIRNI_HEAD_DIM_MAX);
    assert(task->kv_head < task->geometry->n_kv_heads);
    assert(task->n_queries == 0 ||
           firni_visible_tokens(task, 0).begin / FIRN_BLOCK_TOKENS >= firni_attend_row_of(task, 0).first_block);
    (void)task;
}

#endif
