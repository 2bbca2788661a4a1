/*
 * kv:turboquant: keys as affine integers of 8, 5, 4 or 2 bits, values rotated and coded for a normal distribution with
 * 8, 5, 4, 3 or 2 bits. Groups of 32 elements.
 *
 * A random rotation makes the elements of any vector look like samples of a normal distribution, for which the best
 * quantiser of each width is known: no outlier stretches a group's scale. The rotation is a fixed pattern of signs and
 * a Walsh-Hadamard transform of the whole head. Since attention is linear in the values, it is undone once, on the
 * output, and not for each token. Keys stay as they are: a score would need the query rotated alike, which position
 * encodings and shared heads would have to know of, and affine keys of 8 bits lose next to nothing.
 *
 * Owns what differs from kv:quant: the bits that there are, the sizes of heads that the transform takes. Source:
 * Zandieh et al., TurboQuant (arXiv 2504.19874), its quantiser of least mean squared error; scales for groups of 32 in
 * place of the norm of the whole vector.
 */
#include <stdio.h>

#include "base/base_impl.h"
#include "kernel/quantised.h"
#include "layout/layout_impl.h"

enum { GROUP = 32 };

static bool is_one_of(uint32_t x, const uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == x) {
            return true;
        }
    }
    return false;
}

static firn_status complete_options(firn_cache_options *options, firn_error *err)
{
    static const uint32_t key_bits[] = { 8, 5, 4, 2 };
    static const uint32_t value_bits[] = { 8, 5, 4, 3, 2 };
    static const uint32_t dims[] = { 64, 128, 256, 512 };
    options->key_bits = options->key_bits != 0 ? options->key_bits : 8;
    options->value_bits = options->value_bits != 0 ? options->value_bits : 3;
    options->value_dim = options->value_dim != 0 ? options->value_dim : options->head_dim;
    options->group = options->group != 0 ? options->group : GROUP;
    if (!is_one_of(options->key_bits, key_bits, 4) || !is_one_of(options->value_bits, value_bits, 5)) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "kv:turboquant takes keys of 8, 5, 4 or 2 bits and values of 8, 5, 4, 3 or 2, not %u and %u",
                          options->key_bits, options->value_bits);
    }
    if (options->group != GROUP) {
        return firni_fail(err, FIRN_ERR_INVALID, "kv:turboquant has groups of %d elements, not %u", GROUP,
                          options->group);
    }
    if (!is_one_of(options->head_dim, dims, 4) || !is_one_of(options->value_dim, dims, 4)) {
        return firni_fail(err, FIRN_ERR_INVALID,
                          "kv:turboquant rotates heads of 64, 128, 256 or 512 elements, not %u and %u",
                          options->head_dim, options->value_dim);
    }
    return FIRN_OK;
}

static firn_status turboquant_init(firn_cache *cache, firn_error *err)
{
    firn_status status = firni_quant_check_options(cache, false, err);
    if (status == FIRN_OK) {
        status = complete_options(&cache->options, err);
    }
    if (status == FIRN_OK) {
        firni_quant_set_geometry(cache, true);
        (void)snprintf(cache->signature, sizeof cache->signature, "%s:%u:%u", cache->ops->family,
                       cache->options.key_bits, cache->options.value_bits);
        firni_quant_describe(cache);
    }
    return status;
}

const firni_layout firni_layout_turboquant = {
    .family = "kv:turboquant",
    .instance_bytes = sizeof(firni_quant_cache),
    .init = turboquant_init,
    FIRNI_ROWS_MEMBERS,
    .bytes_per_token = firni_quant_bytes_per_token,
    .planes = firni_quant_planes,
    .append = firni_quant_append,
    .attend = firni_quant_attend,
    .state = firni_quant_state,
};
