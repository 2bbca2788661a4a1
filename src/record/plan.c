/*
 * Plans: how the records of one schema look. Every record of a form has the same section table but for the checksums,
 * so a reader compares it with the plan's instead of believing it.
 *
 * Owns the order of the images: full layers, then window layers kind by kind, each in the order of the schema;
 * checkpoints hold the states in that order.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "layout/family_impl.h"
#include "record/record_impl.h"

/* ---- forms ------------------------------------------------------------------------------------------------------- */

/* Appends an image of n_bytes with these planes to the form; offsets are the image's until place_images. */
static firn_status add_image(firni_plan_form *form, uint32_t layer, size_t n_bytes, const firn_plane *planes,
                             uint32_t n_planes, firni_section_kind kind, firn_error *err)
{
    if (n_planes == 0 || n_bytes % FIRNI_RECORD_ALIGN != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "layer %u: a block of %zu bytes with %u planes cannot be stored",
                          layer, n_bytes, n_planes);
    }
    form->images[form->n_images++] = (firni_plan_image){
        .layer = layer, .n_bytes = n_bytes, .first_section = form->n_sections, .n_sections = n_planes
    };
    uint64_t end = 0;
    for (uint32_t p = 0; p < n_planes; p++) {
        const firn_plane *plane = &planes[p];
        /* What the layouts promise and the format needs: planes in memory order, inside the block. */
        assert(plane->offset_bytes >= end && plane->n_bytes > 0);
        end = (uint64_t)plane->offset_bytes + plane->n_bytes;
        assert(end <= n_bytes);
        firni_section *section = &form->sections[form->n_sections++];
        *section = (firni_section){ .kind = kind,
                                    .layer = (uint16_t)layer,
                                    .plane = (uint16_t)p,
                                    .dtype = plane->dtype,
                                    .n_dims = plane->n_dims,
                                    .offset = plane->offset_bytes,
                                    .n_bytes = plane->n_bytes };
        memcpy(section->shape, plane->shape, plane->n_dims * sizeof plane->shape[0]);
    }
    return FIRN_OK;
}

/* The token blocks of the full layers, or of the window layers of one kind. */
static firn_status add_blocks(const firni_plan *plan, firni_plan_form *form, const firn_cache *const *layers,
                              const firni_plan_kinds *kinds, uint32_t family, uint32_t kind, firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < plan->n_layers && status == FIRN_OK; i++) {
        if ((plan->families[i] & family) != 0 && (family != FIRNI_FAMILY_WINDOW || kinds->of_layer[i] == kind)) {
            firn_plane planes[FIRN_CACHE_PLANES_MAX];
            const uint32_t n_planes = firn_cache_planes(layers[i], planes);
            status = add_image(form, i, firn_cache_block_bytes(layers[i]), planes, n_planes, FIRNI_SECTION_PLANE, err);
        }
    }
    return status;
}

/* The planes of a layer's state; of a layout that names none, one plane of bytes. */
static uint32_t state_planes(const firn_cache *layer, firn_plane planes[FIRN_CACHE_PLANES_MAX])
{
    const uint32_t n_planes = firn_cache_fixed_planes(layer, planes);
    const size_t n_bytes = firn_cache_fixed_bytes(layer);
    if (n_planes > 0 || n_bytes > UINT32_MAX) {
        return n_planes;
    }
    planes[0] = (firn_plane){ .name = "state",
                              .dtype = FIRN_DTYPE_U8,
                              .n_dims = 1,
                              .shape = { (uint32_t)n_bytes },
                              .n_bytes = (uint32_t)n_bytes };
    return 1;
}

static firn_status add_states(const firni_plan *plan, firni_plan_form *form, const firn_cache *const *layers,
                              firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < plan->n_layers && status == FIRN_OK; i++) {
        if (plan->families[i] & FIRNI_FAMILY_FIXED) {
            firn_plane planes[FIRN_CACHE_PLANES_MAX];
            const uint32_t n_planes = state_planes(layers[i], planes);
            status = add_image(form, i, firn_cache_fixed_bytes(layers[i]), planes, n_planes, FIRNI_SECTION_STATE, err);
        }
    }
    return status;
}

/* Lays header and images end to end, now that the number of sections and so the header's size is known. */
static firn_status place_images(firni_plan_form *form, firn_error *err)
{
    form->header_bytes = firni_record_header_bytes(form->n_sections, 0);
    const uint32_t n_names = FIRN_NAMESPACE_BYTES_MAX + FIRNI_RECORD_TEXT_BYTES_MAX + FIRNI_RECORD_LINKS_BYTES_MAX;
    if (firni_record_header_bytes(form->n_sections, n_names) == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u layers are more than one record holds", form->n_images);
    }
    uint64_t offset = form->header_bytes;
    for (uint32_t i = 0; i < form->n_images; i++) {
        firni_plan_image *image = &form->images[i];
        image->offset = offset;
        for (uint32_t s = 0; s < image->n_sections; s++) {
            form->sections[image->first_section + s].offset += offset;
        }
        offset += image->n_bytes;
        if (offset > FIRNI_RECORD_BYTES_MAX) {
            return firni_fail(err, FIRN_ERR_INVALID, "a block of all layers is larger than a record may be");
        }
    }
    form->record_bytes = offset;
    return FIRN_OK;
}

static firn_status make_room(const firni_plan *plan, firni_plan_form *form, firn_error *err)
{
    form->images = firni_calloc(plan->env, plan->n_layers, sizeof *form->images);
    form->sections =
        firni_calloc(plan->env, (size_t)plan->n_layers * FIRN_CACHE_PLANES_MAX, sizeof *form->sections);
    const bool has_room = form->images != NULL && form->sections != NULL;
    return has_room ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a record plan");
}

static firn_status make_block_form(const firni_plan *plan, uint32_t n_kinds, const firn_cache *const *layers,
                                   const firni_plan_kinds *kinds, firn_error *err)
{
    firni_plan_form *form = &plan->blocks[n_kinds];
    firn_status status = make_room(plan, form, err);
    if (status == FIRN_OK) {
        status = add_blocks(plan, form, layers, kinds, FIRNI_FAMILY_FULL, 0, err);
    }
    for (uint32_t kind = 0; kind < n_kinds && status == FIRN_OK; kind++) {
        status = add_blocks(plan, form, layers, kinds, FIRNI_FAMILY_WINDOW, kind, err);
    }
    return status == FIRN_OK ? place_images(form, err) : status;
}

static firn_status make_checkpoint_form(firni_plan *plan, const firn_cache *const *layers, firn_error *err)
{
    firni_plan_form *form = &plan->checkpoint;
    form->is_checkpoint = true;
    firn_status status = make_room(plan, form, err);
    if (status == FIRN_OK) {
        status = add_states(plan, form, layers, err);
    }
    return status == FIRN_OK ? place_images(form, err) : status;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static firn_status describe_layers(firni_plan *plan, const firn_cache *const *layers, const firni_plan_kinds *kinds,
                                   firn_error *err)
{
    plan->families = firni_calloc(plan->env, plan->n_layers, sizeof *plan->families);
    plan->describe = firni_calloc(plan->env, plan->n_layers, sizeof(char *));
    plan->n_window = firni_calloc(plan->env, (size_t)kinds->n + 1, sizeof *plan->n_window);
    plan->blocks = firni_calloc(plan->env, (size_t)kinds->n + 1, sizeof *plan->blocks);
    bool is_complete =
        plan->families != NULL && plan->describe != NULL && plan->n_window != NULL && plan->blocks != NULL;
    for (uint32_t i = 0; is_complete && i < plan->n_layers; i++) {
        const uint32_t family = firni_family_of(layers[i]);
        plan->families[i] = family;
        plan->n_full += (family & FIRNI_FAMILY_FULL) != 0;
        plan->n_fixed += (family & FIRNI_FAMILY_FIXED) != 0;
        for (uint32_t k = 0; k < kinds->n && (family & FIRNI_FAMILY_WINDOW) != 0; k++) {
            plan->n_window[k + 1] += kinds->of_layer[i] <= k;
        }
        plan->describe[i] = firni_strdup(plan->env, firn_cache_describe(layers[i]));
        is_complete = plan->describe[i] != NULL;
    }
    return is_complete ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a record plan");
}

firn_status firni_plan_init(const firn_schema *schema, const firn_cache *const *layers, firni_plan_kinds kinds,
                            const firn_env *env, firni_plan *out, firn_error *err)
{
    *out = (firni_plan){ .env = env, .schema = schema, .n_layers = schema->n_layers, .n_kinds = kinds.n };
    if (schema->n_layers == 0 || schema->n_layers > UINT16_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a schema of %u layers cannot be stored", schema->n_layers);
    }
    firn_status status = describe_layers(out, layers, &kinds, err);
    for (uint32_t n_kinds = 0; n_kinds <= kinds.n && status == FIRN_OK; n_kinds++) {
        status = make_block_form(out, n_kinds, layers, &kinds, err);
    }
    if (status == FIRN_OK) {
        status = make_checkpoint_form(out, layers, err);
    }
    if (status != FIRN_OK) {
        firni_plan_deinit(out);
    }
    return status;
}

static void form_deinit(const firn_env *env, firni_plan_form *form)
{
    firni_free(env, form->images);
    firni_free(env, form->sections);
}

void firni_plan_deinit(firni_plan *plan)
{
    for (uint32_t i = 0; plan->describe != NULL && i < plan->n_layers; i++) {
        firni_free(plan->env, plan->describe[i]);
    }
    for (uint32_t k = 0; plan->blocks != NULL && k <= plan->n_kinds; k++) {
        form_deinit(plan->env, &plan->blocks[k]);
    }
    form_deinit(plan->env, &plan->checkpoint);
    firni_free(plan->env, plan->blocks);
    firni_free(plan->env, plan->n_window);
    firni_free(plan->env, plan->families);
    firni_free(plan->env, plan->describe);
    *plan = (firni_plan){ 0 };
}

uint32_t firni_plan_kinds_held(const firni_plan *plan, uint32_t n_window)
{
    uint32_t n_kinds = plan->n_kinds;
    while (n_kinds > 0 && plan->n_window[n_kinds] > n_window) {
        n_kinds--;
    }
    return n_kinds;
}

uint32_t firni_plan_images(const firni_plan *plan, uint32_t n_kinds)
{
    return plan->blocks[n_kinds].n_images;
}

/* ---- records of a form ------------------------------------------------------------------------------------------- */

uint64_t firni_form_bytes(const firni_plan_form *form, uint32_t n_images)
{
    assert(n_images <= form->n_images);
    return n_images == 0 ? form->header_bytes : form->images[n_images - 1].offset + form->images[n_images - 1].n_bytes;
}

uint32_t firni_form_names_bytes(const firni_plan_form *form, uint32_t n_names)
{
    const uint32_t header_bytes = firni_record_header_bytes(form->n_sections, n_names);
    assert(header_bytes >= form->header_bytes); /* or the plan would not have been made */
    return header_bytes - form->header_bytes;
}

uint32_t firni_form_surplus(const firni_plan_form *form, uint64_t record_bytes)
{
    const uint64_t surplus = record_bytes - form->record_bytes;
    return record_bytes >= form->record_bytes && surplus <= FIRNI_RECORD_HEADER_BYTES_MAX - form->header_bytes
               ? (uint32_t)surplus
               : UINT32_MAX;
}

bool firni_form_matches(const firni_plan_form *form, const firni_record *record)
{
    const bool is_packed = record->plain_bytes != 0;
    const uint32_t surplus = firni_form_surplus(form, is_packed ? record->plain_bytes : record->record_bytes);
    if (surplus == UINT32_MAX || record->n_sections != form->n_sections ||
        record->header_bytes != form->header_bytes + surplus) {
        return false;
    }
    for (uint32_t i = 0; i < form->n_sections; i++) {
        const firni_section *a = &form->sections[i], *b = &record->sections[i];
        if (a->kind != b->kind || a->layer != b->layer || a->plane != b->plane || a->dtype != b->dtype ||
            a->n_dims != b->n_dims || (!is_packed && a->offset + surplus != b->offset) || a->n_bytes != b->n_bytes ||
            memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
            return false;
        }
    }
    return true;
}

/* Sections are numbered over the whole record, their offsets are the record's; an image begins at its own. */
void firni_form_checksum(const firni_plan_form *form, uint32_t image, const uint8_t *bytes, firni_section *sections)
{
    const firni_plan_image *at = &form->images[image];
    for (uint32_t i = at->first_section; i < at->first_section + at->n_sections; i++) {
        const uint64_t offset = form->sections[i].offset - at->offset;
        sections[i].checksum = firni_checksum_of(bytes + offset, (size_t)sections[i].n_bytes);
    }
}

bool firni_form_verify(const firni_plan_form *form, uint32_t image, uint8_t *bytes, const firni_section *sections)
{
    const firni_plan_image *at = &form->images[image];
    size_t covered = 0;
    for (uint32_t i = at->first_section; i < at->first_section + at->n_sections; i++) {
        const size_t offset = (size_t)(form->sections[i].offset - at->offset);
        const size_t n_bytes = (size_t)form->sections[i].n_bytes;
        if (!firni_checksum_equal(firni_checksum_of(bytes + offset, n_bytes), sections[i].checksum)) {
            return false;
        }
        memset(bytes + covered, 0, offset - covered);
        covered = offset + n_bytes;
    }
    memset(bytes + covered, 0, at->n_bytes - covered);
    return true;
}
