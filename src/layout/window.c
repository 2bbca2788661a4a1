/*
 * kv:window: plain blocks of which a row keeps those that the next token can see (sliding-window attention).
 *
 *      window of 100, 300 tokens       0        64       128      192      256      320
 *                                      | gone   | gone   | gone   | b3 ... | b4 ... |
 *                                                                 ^200: the oldest token of the last 100
 *
 * Blocks cover whole multiples of 64, so a row holds up to 63 tokens more than its window; the kernel masks them. A row
 * can be cut back, and published, as far as the blocks of the shorter row's window are still in it.
 *
 * Owns what differs from kv:plain: the window's bounds and its place in the identity. Which blocks stay is rows.c.
 */
#include "base/base_impl.h"
#include "layout/layout_impl.h"

static firn_status window_init(firn_cache *cache, firn_error *err)
{
    const firn_cache_options *options = &cache->options;
    if (options->window < 1 || options->window > FIRNI_ROW_TOKENS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "kv:window takes a window of 1 to %u tokens, not %u",
                          FIRNI_ROW_TOKENS_MAX, options->window);
    }
    const firn_status status = firni_plain_init_geometry(cache, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_cache_set_describe(cache, "%s %s heads=%u dim=%u/%u window=%u block=%u", cache->signature,
                             firn_dtype_name(options->dtype), options->n_kv_heads, options->head_dim,
                             options->value_dim, options->window, FIRN_BLOCK_TOKENS);
    return FIRN_OK;
}

const firni_layout firni_layout_window = {
    .family = "kv:window",
    .instance_bytes = sizeof(firni_plain_cache),
    .init = window_init,
    FIRNI_ROWS_MEMBERS,
    FIRNI_WINDOW_MEMBERS,
    .bytes_per_token = firni_plain_bytes_per_token,
    .planes = firni_plain_planes,
    .append = firni_plain_append,
    .attend = firni_plain_attend,
    .state = firni_plain_state,
};
