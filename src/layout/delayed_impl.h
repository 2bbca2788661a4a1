/*
 * delayed: what the two files of the delayed layouts share: delayed.c, rows and the boundary; delayed_work.c, the
 * conversion, append and attention.
 */
#ifndef FIRNI_DELAYED_IMPL_H
#define FIRNI_DELAYED_IMPL_H

#include "layout/layout_impl.h"

/* Indices of parts: also whether a row is converted. */
enum { FIRNI_PART_PLAIN, FIRNI_PART_QUANTISED, FIRNI_N_PARTS };

typedef struct firni_delayed_cache {
    firn_cache base;
    firn_cache *parts[FIRNI_N_PARTS];
    float *k, *v;                    /* one block of tokens on its way between the parts: [64][heads][dim] */
    uint32_t *counts[FIRNI_N_PARTS]; /* scratch of one call: what each part appends to its rows */
    uint32_t n_counts_max;           /* room in both; grows where rows join */
} firni_delayed_cache;

static_assert(offsetof(firni_delayed_cache, base) == 0, "a delayed cache is a cache");

FIRNI_INLINE firni_delayed_cache *firni_delayed_of(firn_cache *cache)
{
    return (firni_delayed_cache *)cache;
}

FIRNI_INLINE const firni_delayed_cache *firni_const_delayed_of(const firn_cache *cache)
{
    return (const firni_delayed_cache *)cache;
}

FIRNI_INLINE uint32_t firni_delayed_batch_size(const firn_cache *cache)
{
    return firni_rows_batch_size(firni_const_delayed_of(cache)->parts[FIRNI_PART_PLAIN]);
}

/* No row is converted before it has tokens. */
FIRNI_INLINE bool firni_delayed_is_converted(const firni_delayed_cache *cache, uint32_t row)
{
    return firni_rows_tokens(cache->parts[FIRNI_PART_QUANTISED], row) > 0;
}

/* The part that has the row's tokens. */
FIRNI_INLINE const firn_cache *firni_delayed_part_of(const firni_delayed_cache *cache, uint32_t row)
{
    return cache->parts[firni_delayed_is_converted(cache, row) ? FIRNI_PART_QUANTISED : FIRNI_PART_PLAIN];
}

FIRNI_INLINE uint32_t firni_delayed_row_tokens(const firn_cache *cache, uint32_t row)
{
    return firni_rows_tokens(firni_delayed_part_of(firni_const_delayed_of(cache), row), row);
}

/* Tokens that may be appended to the row at once. */
uint32_t firni_delayed_row_max_append(const firn_cache *cache, uint32_t row);

/* Table members of this name. */
firn_status firni_delayed_reserve(firn_cache *cache, const uint32_t *counts, firn_error *err);
void firni_delayed_append(firn_cache *cache, const firn_append_input *input, const uint32_t *counts,
                          firn_workers *workers);
void firni_delayed_attend(const firn_cache *cache, const firn_attend_input *input, const uint32_t *counts,
                          firn_workers *workers);
firn_status firni_delayed_state(const firn_cache *cache, firn_tensor *tensors, uint32_t *n_tensors, firn_error *err);

#endif
