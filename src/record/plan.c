/*
 * Plans: how the records of one schema look. Every block and tail record of a schema has the same section table but for
 * the checksums, so a reader compares it with the plan's instead of believing it.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/record_impl.h"

/* Appends the sections of one layer, whose image begins at layer->image_offset. */
static firn_status add_layer(firni_plan *plan, uint32_t index, const firn_cache *cache, firn_error *err)
{
    firni_plan_layer *layer = &plan->layers[index];
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    layer->block_bytes = firn_cache_block_bytes(cache);
    layer->n_planes = firn_cache_planes(cache, planes);
    layer->first_section = plan->n_sections;
    layer->describe = firni_strdup(plan->env, firn_cache_describe(cache));
    if (layer->describe == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a record plan");
    }
    if (layer->n_planes == 0 || layer->block_bytes == 0 || layer->block_bytes % FIRNI_RECORD_ALIGN != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "layer %u (%s) has no token blocks to store", index, layer->describe);
    }
    uint64_t end = 0;
    for (uint32_t p = 0; p < layer->n_planes; p++) {
        const firn_plane *plane = &planes[p];
        /* What the layouts promise and the format needs: planes in memory order, inside the block. */
        assert(plane->offset_bytes >= end && plane->n_bytes > 0);
        end = (uint64_t)plane->offset_bytes + plane->n_bytes;
        assert(end <= layer->block_bytes);
        firni_section *section = &plan->sections[plan->n_sections++];
        *section = (firni_section){ .kind = FIRNI_SECTION_PLANE,
                                    .layer = (uint16_t)index,
                                    .plane = (uint16_t)p,
                                    .dtype = plane->dtype,
                                    .n_dims = plane->n_dims,
                                    .offset = plane->offset_bytes, /* of the image; the record's in place_images */
                                    .n_bytes = plane->n_bytes };
        memcpy(section->shape, plane->shape, plane->n_dims * sizeof plane->shape[0]);
    }
    return FIRN_OK;
}

/* Lays header and images end to end, now that the number of sections and so the header's size is known. */
static firn_status place_images(firni_plan *plan, firn_error *err)
{
    plan->header_bytes = firni_record_header_bytes(plan->n_sections);
    if (plan->header_bytes == 0 || plan->n_layers > UINT16_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u layers are more than one record holds", plan->n_layers);
    }
    uint64_t offset = plan->header_bytes;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        firni_plan_layer *layer = &plan->layers[i];
        layer->image_offset = offset;
        for (uint32_t p = 0; p < layer->n_planes; p++) {
            plan->sections[layer->first_section + p].offset += offset;
        }
        offset += layer->block_bytes;
        if (offset > FIRNI_RECORD_BYTES_MAX) {
            return firni_fail(err, FIRN_ERR_INVALID, "a block of all layers is larger than a record may be");
        }
    }
    plan->record_bytes = offset;
    return FIRN_OK;
}

firn_status firni_plan_init(const firn_schema *schema, firn_pool *pool, const firn_env *env, firni_plan *out,
                            firn_error *err)
{
    *out = (firni_plan){ .env = env, .schema = schema, .n_layers = schema->n_layers };
    if (schema->n_layers == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a schema without layers");
    }
    firn_status status = FIRN_OK;
    out->layers = firni_calloc(env, schema->n_layers, sizeof *out->layers);
    out->sections = firni_calloc(env, (size_t)schema->n_layers * FIRN_CACHE_PLANES_MAX, sizeof *out->sections);
    if (out->layers == NULL || out->sections == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a record plan");
    }
    for (uint32_t i = 0; i < schema->n_layers && status == FIRN_OK; i++) {
        firn_cache *cache = NULL;
        status = firn_cache_create(&schema->layers[i], pool, env, &cache, err);
        if (status == FIRN_OK) {
            status = add_layer(out, i, cache, err);
        }
        firn_cache_destroy(cache);
    }
    if (status == FIRN_OK) {
        status = place_images(out, err);
    }
    if (status != FIRN_OK) {
        firni_plan_deinit(out);
    }
    return status;
}

void firni_plan_deinit(firni_plan *plan)
{
    for (uint32_t i = 0; plan->layers != NULL && i < plan->n_layers; i++) {
        firni_free(plan->env, plan->layers[i].describe);
    }
    firni_free(plan->env, plan->layers);
    firni_free(plan->env, plan->sections);
    *plan = (firni_plan){ 0 };
}

bool firni_plan_matches(const firni_plan *plan, const firni_record *record)
{
    if (record->n_sections != plan->n_sections || record->header_bytes != plan->header_bytes ||
        record->record_bytes != plan->record_bytes) {
        return false;
    }
    for (uint32_t i = 0; i < plan->n_sections; i++) {
        const firni_section *a = &plan->sections[i], *b = &record->sections[i];
        if (a->kind != b->kind || a->layer != b->layer || a->plane != b->plane || a->dtype != b->dtype ||
            a->n_dims != b->n_dims || a->offset != b->offset || a->n_bytes != b->n_bytes ||
            memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
            return false;
        }
    }
    return true;
}

/* Sections are numbered over the whole record, their offsets are the record's; an image begins at its layer's. */
void firni_plan_checksum_layer(const firni_plan *plan, uint32_t layer, const uint8_t *image, firni_section *sections)
{
    const firni_plan_layer *at = &plan->layers[layer];
    for (uint32_t i = at->first_section; i < at->first_section + at->n_planes; i++) {
        const uint64_t offset = plan->sections[i].offset - at->image_offset;
        sections[i].checksum = firni_checksum_of(image + offset, (size_t)sections[i].n_bytes);
    }
}

bool firni_plan_verify_layer(const firni_plan *plan, uint32_t layer, uint8_t *image, const firni_section *sections)
{
    const firni_plan_layer *at = &plan->layers[layer];
    size_t covered = 0;
    for (uint32_t i = at->first_section; i < at->first_section + at->n_planes; i++) {
        const size_t offset = (size_t)(plan->sections[i].offset - at->image_offset);
        const size_t n_bytes = (size_t)plan->sections[i].n_bytes;
        if (!firni_checksum_equal(firni_checksum_of(image + offset, n_bytes), sections[i].checksum)) {
            return false;
        }
        memset(image + covered, 0, offset - covered);
        covered = offset + n_bytes;
    }
    memset(image + covered, 0, at->block_bytes - covered);
    return true;
}
