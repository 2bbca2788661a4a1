/*
 * kv:window-quant: the blocks of kv:quant, of which a row keeps those that the next token can see, as kv:window does with
 * plain ones.
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
    .deinit = firni_rows_deinit,
    .batch_size = firni_rows_batch_size,
    .row_tokens = firni_rows_tokens,
    .add_row = firni_rows_add,
    .view_row = firni_rows_view,
    .adopt_row = firni_rows_adopt,
    .filter_rows = firni_rows_filter,
    .trim_row = firni_rows_trim,
    .settle = firni_rows_settle,
    .trimmable_tokens = firni_rows_trimmable,
    .can_publish_row = firni_rows_can_publish,
    .bytes_per_token = firni_quant_bytes_per_token,
    .projected_bytes = firni_rows_projected_bytes,
    .working_bytes = firni_rows_working_bytes,
    .first_block_needed = firni_rows_first_block_needed,
    .planes = firni_quant_planes,
    .reserve = firni_rows_reserve,
    .append = firni_quant_append,
    .attend = firni_quant_attend,
    .state = firni_quant_state,
    .check = firni_rows_check,
};
