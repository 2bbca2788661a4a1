/*
 * A model's use of packed weights: looks for its file before the weights are loaded, and has one written after it has
 * answered for the first time. Owns the decisions and what is said about them; the file is packed_file.h's.
 *
 * Whatever goes wrong here costs time, and never a start: the weights are packed as they are without a file.
 */
#include <inttypes.h>

#include "base/base_impl.h"
#include "model/model_impl.h"
#include "model/packed_file.h"

/* Packing runs at about 1 GB/s: a few hundredths of a second are not worth a file. */
#define BYTES_MIN_DEFAULT ((uint64_t)32 << 20)

void firni_model_find_packed(firn_model *model, const firn_model_options *options)
{
    firn_error err = { 0 };
    if (options->packed_dir == NULL) {
        return;
    }
    firni_packed_place place = { .env = model->env };
    firn_status status = firni_packed_place_init(&place, options->packed_dir, options->path, model->fingerprint,
                                                 model->env, &err);
    if (status == FIRN_OK) {
        status = firni_packed_map(&place, model->workers, &model->weights.packed, &err);
    }
    if (status == FIRN_OK) {
        firni_log(model->env, FIRN_LOG_INFO, "weights are mapped from %s", place.path);
    } else if (status != FIRN_ERR_NOT_FOUND) {
        model->packed_is_bad = status == FIRN_ERR_CORRUPT || status == FIRN_ERR_FORMAT;
        firni_log(model->env, FIRN_LOG_WARN, "the weights are packed again: %s: %s",
                  place.path != NULL ? place.path : options->packed_dir, err.message);
    }
    firni_packed_place_deinit(&place);
}

static uint64_t bytes_of(const firni_weights *weights)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < weights->n_entries; i++) {
        n_bytes += weights->entries[i].n_bytes;
    }
    return n_bytes;
}

void firni_model_keep_packed(firn_model *model, const firn_model_options *options)
{
    firn_error err = { 0 };
    firni_weights *weights = &model->weights;
    const uint64_t n_bytes = bytes_of(weights);
    const uint64_t most = options->packed_bytes_max != 0 ? options->packed_bytes_max : UINT64_MAX;
    const uint64_t least = options->packed_bytes_min != 0 ? options->packed_bytes_min : BYTES_MIN_DEFAULT;
    if (options->packed_dir == NULL || weights->n_packed_here == 0 || n_bytes < least) {
        return;
    }
    if (n_bytes > most) {
        firni_log(model->env, FIRN_LOG_INFO, "%" PRIu64 " MiB of packed weights are not kept: they may take %" PRIu64
                  " MiB", n_bytes >> 20, most >> 20);
        return;
    }
    /* A file that lacks what the model needs is as good as a damaged one. */
    const bool replaces = model->packed_is_bad || weights->packed != NULL;
    firni_packed_place place = { .env = model->env };
    firn_status status = firni_packed_place_init(&place, options->packed_dir, options->path, model->fingerprint,
                                                 model->env, &err);
    if (status == FIRN_OK) {
        status = firni_packed_keeper_create(&place, weights->entries, weights->n_entries, most, replaces,
                                            &model->packed_keeper, &err);
    }
    if (status != FIRN_OK) {
        firni_log(model->env, FIRN_LOG_WARN, "packed weights are not kept: %s", err.message);
    }
    firni_packed_place_deinit(&place);
}

uint64_t firni_model_packed_bytes_due(const firn_model *model)
{
    return model->packed_keeper != NULL ? bytes_of(&model->weights) : 0;
}
