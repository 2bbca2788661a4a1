/*
 * kv:window-quant: the blocks of kv:quant, of which a row keeps those that the next token can see, as kv:window does
 * with plain ones.
 *
 * Owns what differs from kv:quant: the window's bounds and its place in the identity. Which blocks stay is rows.c.
 */
#include "layout/layout_impl.h"

static firn_status window_quant_init(firn_cache *cache, firn_error *err)
{
    const firn_status status = firni_quant_check_options(cache, true, err);
    return status == FIRN_OK ? firni_quant_init_affine(cache, err) : status;
}

const firni_layout firni_layout_window_quant = {
    .family = "kv:window-quant",
    .instance_bytes = sizeof(firni_quant_cache),
    .init = window_quant_init,
    FIRNI_ROWS_MEMBERS,
    FIRNI_WINDOW_MEMBERS,
    .bytes_per_token = firni_quant_bytes_per_token,
    .planes = firni_quant_planes,
    .append = firni_quant_append,
    .attend = firni_quant_attend,
    .state = firni_quant_state,
};
