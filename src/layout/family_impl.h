/*
 * family: what a layer keeps of a row, told by what its cache answers and never by its name. It decides where a stored
 * prefix can be resumed (tier/usable_impl.h) and which records hold a layer's state (record/record_impl.h).
 */
#ifndef FIRNI_FAMILY_IMPL_H
#define FIRNI_FAMILY_IMPL_H

#include "firn/cache.h"

/* Bits: a layer with token blocks and a fixed-size state has two. */
enum {
    FIRNI_FAMILY_FULL = 1,   /* token blocks, all of them */
    FIRNI_FAMILY_WINDOW = 2, /* token blocks, those of the window before the end */
    FIRNI_FAMILY_FIXED = 4   /* a fixed-size state that is valid at one count only */
};

/* Of a cache of any number of rows; never 0. */
uint32_t firni_family_of(const firn_cache *cache);

#endif
