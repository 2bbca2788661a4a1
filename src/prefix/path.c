/*
 * Paths as caches: what a lease lends and what a store reads are made the same way, as rows that share the path's
 * blocks and states. Owns the shape of these rows; which position a row stands at has been decided before.
 *
 * A row whose last block is used only in part stands at n_tokens inside it; whoever appends to it copies that block
 * first, because it is shared. So the tree's block is never written, whatever becomes of the row.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

void firni_caches_destroy(const firn_prefix *prefix, firn_cache **caches)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        firn_cache_destroy(caches[layer]);
        caches[layer] = NULL;
    }
}

/* The path as an array, and room for the blocks of one layer of it. */
typedef struct path {
    const firni_node **nodes;
    firn_block **blocks;
    uint32_t n_blocks;
} path;

static firn_block *path_block(const firni_path_end *end, const path *p, uint32_t i, uint32_t layer)
{
    const bool is_last = i + 1 == p->n_blocks;
    return is_last && end->tail != NULL ? end->tail[layer] : p->nodes[i]->blocks[layer];
}

/* The block that the layer's row begins with. For a store a few more than are needed: those of the chunk before, as far
 * as they are left and not stored yet. */
static uint32_t first_block(const firn_prefix *prefix, const firni_path_end *end, const path *p, uint32_t layer)
{
    if ((prefix->family[layer] & FIRNI_FAMILY_WINDOW) == 0) {
        return 0;
    }
    uint32_t first = firn_cache_first_block_needed(prefix->shapes[layer], end->n_tokens);
    for (uint32_t i = 0; end->for_store && i < FIRNI_STORE_BLOCKS_MORE && first > 0; i++) {
        if (path_block(end, p, first - 1, layer) == NULL || p->nodes[first - 1]->windows_saved) {
            break;
        }
        first--;
    }
    return first;
}

static firn_status adopt_layer(const firn_prefix *prefix, const firni_path_end *end, const path *p, uint32_t layer,
                               firn_block *const *states, firn_cache **out, uint32_t *first_window, firn_error *err)
{
    firn_row_view view = { .blocks = p->blocks, .n_tokens = end->n_tokens };
    if (firn_cache_block_bytes(prefix->shapes[layer]) > 0) {
        view.first_block = first_block(prefix, end, p, layer);
        view.n_blocks = p->n_blocks - view.first_block;
    }
    for (uint32_t i = 0; i < view.n_blocks; i++) {
        p->blocks[i] = path_block(end, p, view.first_block + i, layer);
        assert(p->blocks[i] != NULL); /* the position is usable */
    }
    if ((prefix->family[layer] & FIRNI_FAMILY_FIXED) && end->n_tokens > 0) {
        view.fixed = states[layer];
    }
    *first_window = view.first_block > *first_window ? view.first_block : *first_window;
    firn_status status = firn_cache_make_empty(prefix->shapes[layer], out, err);
    if (status == FIRN_OK) {
        status = end->n_tokens > 0 ? firn_cache_adopt_row(*out, &view, err) : firn_cache_add_row(*out, err);
    }
    return status;
}

firn_status firni_adopt_path(const firn_prefix *prefix, const firni_path_end *end, firn_cache **caches,
                             uint32_t *first_window, firn_error *err)
{
    const uint32_t n_tokens = end->n_tokens;
    path p = { .n_blocks = n_tokens / FIRN_BLOCK_TOKENS + (n_tokens % FIRN_BLOCK_TOKENS != 0) };
    uint32_t first = 0;
    firn_status status = FIRN_OK;
    firn_block *const *states = end->states;
    memset(caches, 0, prefix->n_layers * sizeof *caches);
    if (p.n_blocks > 0) {
        assert(end->node->first_token / FIRN_BLOCK_TOKENS == p.n_blocks - 1);
        p.nodes = firni_calloc(prefix->env, p.n_blocks, sizeof *p.nodes);
        p.blocks = firni_calloc(prefix->env, p.n_blocks, sizeof *p.blocks);
        if (p.nodes == NULL || p.blocks == NULL) {
            status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a list of %u blocks", p.n_blocks);
            goto done;
        }
        /* Parent links lead from the end to the start; rows are built from the start. */
        for (const firni_node *node = end->node; node->parent != NULL; node = node->parent) {
            p.nodes[node->first_token / FIRN_BLOCK_TOKENS] = node;
        }
        if (states == NULL && prefix->families.n_fixed > 0) {
            const firni_checkpoint *checkpoint = firni_checkpoint_find(end->node, n_tokens);
            assert(checkpoint != NULL);
            states = checkpoint->states;
        }
    }
    for (uint32_t layer = 0; layer < prefix->n_layers && status == FIRN_OK; layer++) {
        status = adopt_layer(prefix, end, &p, layer, states, &caches[layer], &first, err);
    }
done:
    if (status != FIRN_OK) {
        firni_caches_destroy(prefix, caches);
    } else if (first_window != NULL) {
        *first_window = first;
    }
    firni_free(prefix->env, p.nodes);
    firni_free(prefix->env, p.blocks);
    return status;
}
