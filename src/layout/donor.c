/*
 * Donors: snapshots of all rows. A donor is a cache of the same layout that shares every block and that nobody appends
 * to; the rule that a shared block is never written is what keeps it unchanged. The donated cache pays for it with one
 * copied tail per row at its next append.
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

struct firn_donor {
    firn_cache *rows;
    const firn_env *env;
};

firn_status firn_cache_capture_donor(const firn_cache *cache, firn_donor **out, firn_error *err)
{
    *out = NULL;
    firn_donor *donor = firni_calloc(cache->env, 1, sizeof *donor);
    if (donor == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a donor");
    }
    donor->env = cache->env;
    /* Allowed in an open round: layers that share state attend to drafted tokens like to all others. */
    firn_status status = firn_cache_make_empty(cache, &donor->rows, err);
    if (status == FIRN_OK) {
        status = firni_cache_share_rows(donor->rows, cache, err);
    }
    if (status != FIRN_OK) {
        firn_donor_destroy(donor);
        return status;
    }
    *out = donor;
    return FIRN_OK;
}

void firn_donor_destroy(firn_donor *donor)
{
    if (donor != NULL) {
        firn_cache_destroy(donor->rows);
        firni_free(donor->env, donor);
    }
}

uint32_t firn_donor_batch_size(const firn_donor *donor)
{
    return firn_cache_batch_size(donor->rows);
}

uint32_t firn_donor_row_tokens(const firn_donor *donor, uint32_t row)
{
    return firn_cache_row_tokens(donor->rows, row);
}

firn_status firn_donor_attend(const firn_donor *donor, const firn_attend_input *input, const uint32_t *counts,
                              firn_workers *workers, firn_error *err)
{
    return firn_cache_attend(donor->rows, input, counts, workers, err);
}
