/*
 * Tells the family of a layer from the capabilities of its cache. Owns nothing else.
 */
#include "layout/family_impl.h"

#include <assert.h>

uint32_t firni_family_of(const firn_cache *cache)
{
    uint32_t family = firn_cache_fixed_bytes(cache) > 0 ? FIRNI_FAMILY_FIXED : 0;
    if (firn_cache_block_bytes(cache) > 0) {
        /* A window that no row can outgrow is no window. */
        const bool lets_go = firn_cache_first_block_needed(cache, INT32_MAX) > 0;
        family |= lets_go ? FIRNI_FAMILY_WINDOW : FIRNI_FAMILY_FULL;
    }
    assert(family != 0);
    return family;
}
