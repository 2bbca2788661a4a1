/*
 * The usable prefix: the largest position of a stored path at which every family can resume. Owns that rule; knows
 * neither trees nor records.
 *
 * One pass from the deepest step up. In a step only the last permitted position matters: a window before an earlier one
 * begins no later, so whatever the last one lacks, the others lack too. For the same reason a step without its window
 * blocks rules out every position between it and the step that needed it, and the search goes on above it.
 */
#include "tier/usable_impl.h"

#include <assert.h>
#include <string.h>

#include "base/base_impl.h"

/* The count up to which a row keeps all blocks: the longer the window, the larger. By halving, since the first block
 * needed only ever grows. */
static uint32_t tokens_kept(const firn_cache *layer)
{
    uint32_t low = 0, high = INT32_MAX;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (firn_cache_first_block_needed(layer, middle) == 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Remembers a window layer's bounds once for all layers like it, in its place among the kinds. */
static firn_status add_window(firni_families *families, const firn_cache *layer, firn_error *err)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < families->n_windows; i++) {
        if (strcmp(firn_cache_describe(families->windows[i]), firn_cache_describe(layer)) == 0) {
            return FIRN_OK;
        }
        place += tokens_kept(families->windows[i]) >= tokens_kept(layer);
    }
    firn_cache *shape;
    const firn_status status = firn_cache_make_empty(layer, &shape, err);
    if (status == FIRN_OK) {
        memmove(&families->windows[place + 1], &families->windows[place],
                (families->n_windows - place) * sizeof families->windows[0]);
        families->windows[place] = shape;
        families->n_windows++;
    }
    return status;
}

static void number_kinds(firni_families *families, const firn_cache *const *layers)
{
    for (uint32_t layer = 0; layer < families->n_layers; layer++) {
        for (uint32_t i = 0; i < families->n_windows; i++) {
            if (strcmp(firn_cache_describe(families->windows[i]), firn_cache_describe(layers[layer])) == 0) {
                families->kinds[layer] = i;
            }
        }
    }
}

firn_status firni_families_init(firni_families *families, const firn_cache *const *layers, uint32_t n_layers,
                                const firn_env *env, firn_error *err)
{
    *families = (firni_families){ .env = env, .n_layers = n_layers };
    firn_status status = FIRN_OK;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const uint32_t family = firni_family_of(layers[layer]);
        families->n_full += (family & FIRNI_FAMILY_FULL) != 0;
        families->n_window += (family & FIRNI_FAMILY_WINDOW) != 0;
        families->n_fixed += (family & FIRNI_FAMILY_FIXED) != 0;
    }
    if (families->n_window == 0) {
        return FIRN_OK;
    }
    families->windows = firni_calloc(env, families->n_window, sizeof(firn_cache *));
    families->kinds = firni_calloc(env, n_layers, sizeof *families->kinds);
    if (families->windows == NULL || families->kinds == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u window layers", families->n_window);
    }
    for (uint32_t layer = 0; layer < n_layers && status == FIRN_OK; layer++) {
        if (firni_family_of(layers[layer]) & FIRNI_FAMILY_WINDOW) {
            status = add_window(families, layers[layer], err);
        }
    }
    if (status == FIRN_OK) {
        number_kinds(families, layers);
    } else {
        firni_families_deinit(families);
    }
    return status;
}

void firni_families_deinit(firni_families *families)
{
    for (uint32_t i = 0; i < families->n_windows; i++) {
        firn_cache_destroy(families->windows[i]);
    }
    firni_free(families->env, families->windows);
    firni_free(families->env, families->kinds);
    *families = (firni_families){ 0 };
}

uint32_t firni_families_first_window(const firni_families *families, uint32_t n_tokens)
{
    uint32_t first = n_tokens / FIRN_BLOCK_TOKENS + (n_tokens % FIRN_BLOCK_TOKENS != 0);
    for (uint32_t i = 0; i < families->n_windows; i++) {
        const uint32_t needed = firn_cache_first_block_needed(families->windows[i], n_tokens);
        first = needed < first ? needed : first;
    }
    return first;
}

uint32_t firni_families_windows_needed(const firni_families *families, uint32_t n_tokens, uint32_t index)
{
    uint32_t n_needed = families->n_windows;
    while (n_needed > 0 && firn_cache_first_block_needed(families->windows[n_needed - 1], n_tokens) > index) {
        n_needed--;
    }
    return n_needed;
}

/* The last position of the step, at most n_max, at which its blocks can be cut and its states are here; 0: none. */
static uint32_t last_position(const firni_families *families, const firni_path_step *step, uint32_t n_max)
{
    assert(step->n_tokens >= 1 && step->n_tokens <= FIRN_BLOCK_TOKENS);
    uint64_t positions = UINT64_MAX; /* bit i: after i + 1 tokens */
    if (!step->cut_anywhere) {
        positions = step->boundary ? UINT64_C(1) << (step->n_tokens - 1) : 0;
    }
    if (families->n_fixed > 0) {
        positions &= step->checkpoints;
    }
    const uint32_t n_left = n_max > step->first_token ? n_max - step->first_token : 0;
    uint32_t n = n_left < step->n_tokens ? n_left : step->n_tokens;
    while (n > 0 && (positions >> (n - 1) & 1) == 0) {
        n--;
    }
    return n > 0 && step->first_token + n >= step->reusable_from ? step->first_token + n : 0;
}

uint32_t firni_usable_prefix(const firni_families *families, uint32_t n_steps, firni_step_at step_at, void *ctx,
                             uint32_t n_max)
{
    uint32_t candidate = 0;    /* the deepest position that nothing rules out so far */
    uint32_t first_window = 0; /* the first step whose window blocks it needs */
    for (uint32_t i = n_steps; i-- > 0;) {
        const firni_path_step step = step_at(ctx, i);
        assert(step.first_token == i * FIRN_BLOCK_TOKENS);
        if (candidate == 0) {
            candidate = last_position(families, &step, n_max);
            first_window = firni_families_first_window(families, candidate);
        }
        if (!step.has_windows && candidate > 0 && i >= first_window &&
            firni_families_windows_needed(families, candidate, i) > step.n_windows) {
            candidate = 0; /* and so are those of all steps from here down to its own */
        }
        if (candidate > 0 && i <= first_window) {
            return candidate;
        }
    }
    assert(candidate == 0);
    return 0;
}
