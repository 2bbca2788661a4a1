/*
 * Collects the records of a disk store and ties them into chains and groups; see cache_listing.h. Knows nothing of how
 * they are printed.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_listing.h"

typedef struct collector {
    firni_listing *listing;
    uint32_t last_group;    /* of the record before: neighbours mostly share it */
    bool no_memory;
} collector;

static int compare_to_group(const char *identity_text, const char *ns, const firni_listing_group *group)
{
    const int by_identity = strcmp(identity_text, group->identity_text);
    return by_identity != 0 ? by_identity : strcmp(ns, group->ns);
}

/* Room for one more element of an array. */
static bool reserve(const firni_listing *listing, void **array, uint32_t n, uint32_t *capacity, size_t element_bytes)
{
    if (n < *capacity) {
        return true;
    }
    const uint32_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *grown = wanted > *capacity ? firni_grow(listing->env, *array, n, wanted, element_bytes) : NULL;
    if (grown != NULL) {
        *array = grown;
        *capacity = wanted;
    }
    return grown != NULL;
}

/* Inserts an empty group before `at`; records that point behind it move on. */
static bool insert_group(firni_listing *listing, uint32_t at, const char *identity_text, const char *ns)
{
    void *groups = listing->groups;
    if (!reserve(listing, &groups, listing->n_groups, &listing->groups_capacity, sizeof *listing->groups)) {
        return false;
    }
    listing->groups = groups;
    firni_listing_group fresh = {
        .identity_text = firni_strdup(listing->env, identity_text),
        .ns = firni_strdup(listing->env, ns),
    };
    if (fresh.identity_text == NULL || fresh.ns == NULL) {
        firni_free(listing->env, fresh.identity_text);
        firni_free(listing->env, fresh.ns);
        return false;
    }
    memmove(&listing->groups[at + 1], &listing->groups[at], (listing->n_groups - at) * sizeof *listing->groups);
    listing->groups[at] = fresh;
    listing->n_groups++;
    for (uint32_t i = 0; i < listing->n_records; i++) {
        listing->records[i].group += listing->records[i].group >= at;
    }
    return true;
}

/* Finds or makes the group of identity and namespace. */
static bool group_of(collector *c, const char *identity_text, const char *ns, uint32_t *out)
{
    firni_listing *listing = c->listing;
    if (c->last_group < listing->n_groups &&
        compare_to_group(identity_text, ns, &listing->groups[c->last_group]) == 0) {
        *out = c->last_group;
        return true;
    }
    uint32_t low = 0, high = listing->n_groups;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (compare_to_group(identity_text, ns, &listing->groups[middle]) > 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool is_known =
        low < listing->n_groups && compare_to_group(identity_text, ns, &listing->groups[low]) == 0;
    if (!is_known && !insert_group(listing, low, identity_text, ns)) {
        return false;
    }
    *out = c->last_group = low;
    return true;
}

static bool collect(void *ctx, const firn_disk_record *record)
{
    collector *c = ctx;
    firni_listing *listing = c->listing;
    uint32_t group;
    void *records = listing->records;
    if (!group_of(c, record->identity_text != NULL ? record->identity_text : "", record->ns != NULL ? record->ns : "",
                  &group) ||
        !reserve(listing, &records, listing->n_records, &listing->records_capacity, sizeof *listing->records)) {
        c->no_memory = true;
        return false;
    }
    listing->records = records;
    listing->records[listing->n_records++] = (firni_listing_record){
        .digest = record->digest,
        .parent = record->parent,
        .kind = record->kind,
        .n_full = record->n_full,
        .n_window = record->n_window,
        .n_fixed = record->n_fixed,
        .first_token = record->first_token,
        .n_tokens = record->n_tokens,
        .n_bytes = record->n_bytes,
        .plain_bytes = record->plain_bytes,
        .last_used_wall_ns = record->last_used_wall_ns,
        .group = group,
        .quarantined = record->quarantined,
    };
    return true;
}

static int by_digest(const void *a, const void *b)
{
    const firni_listing_record *x = a, *y = b;
    return memcmp(&x->digest, &y->digest, sizeof x->digest);
}

firni_listing_record *firni_listing_find(const firni_listing *listing, const firn_digest *digest)
{
    const firni_listing_record wanted = { .digest = *digest };
    return listing->n_records == 0
               ? NULL
               : bsearch(&wanted, listing->records, listing->n_records, sizeof *listing->records, by_digest);
}

/* Marks parents, then counts what each group holds. */
static void tie(firni_listing *listing)
{
    if (listing->n_records > 0) {
        qsort(listing->records, listing->n_records, sizeof *listing->records, by_digest);
    }
    for (uint32_t i = 0; i < listing->n_records; i++) {
        firni_listing_record *parent = firni_listing_find(listing, &listing->records[i].parent);
        if (parent != NULL && listing->records[i].kind == FIRN_DISK_TOKENS) {
            parent->has_child = true;
        }
    }
    for (uint32_t i = 0; i < listing->n_records; i++) {
        const firni_listing_record *record = &listing->records[i];
        firni_listing_group *group = &listing->groups[record->group];
        group->n_records++;
        group->n_quarantined += record->quarantined;
        const bool has_tokens = record->kind == FIRN_DISK_TOKENS;
        group->n_prefixes += has_tokens && !record->has_child && !record->quarantined;
        group->n_checkpoints += record->kind == FIRN_DISK_CHECKPOINT && !record->quarantined;
        group->n_bytes += record->n_bytes;
        if (record->plain_bytes > record->n_bytes) {
            group->n_demoted++;
            group->plain_bytes += record->plain_bytes;
            group->demoted_bytes += record->n_bytes;
        }
        group->n_tokens += has_tokens ? record->n_tokens : 0;
        group->last_used_wall_ns = record->last_used_wall_ns > group->last_used_wall_ns ? record->last_used_wall_ns
                                                                                        : group->last_used_wall_ns;
    }
}

firn_status firni_listing_create(firn_tier *tier, const firn_env *env, firni_listing *out, firn_error *err)
{
    *out = (firni_listing){ .env = env };
    collector c = { .listing = out };
    firn_status status = firn_disk_visit(tier, collect, &c, err);
    if (status == FIRN_OK && c.no_memory) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to list %u records", out->n_records);
    }
    if (status != FIRN_OK) {
        firni_listing_deinit(out);
        return status;
    }
    tie(out);
    return FIRN_OK;
}

void firni_listing_deinit(firni_listing *listing)
{
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        firni_free(listing->env, listing->groups[i].identity_text);
        firni_free(listing->env, listing->groups[i].ns);
    }
    firni_free(listing->env, listing->groups);
    firni_free(listing->env, listing->records);
    *listing = (firni_listing){ 0 };
}

uint64_t firni_listing_chain_bytes(const firni_listing *listing, const firni_listing_record *record)
{
    uint64_t n_bytes = 0;
    /* Bounded by the number of records, should the store hold a loop. */
    for (uint32_t i = 0; record != NULL && i < listing->n_records; i++) {
        n_bytes += record->n_bytes;
        record = firni_listing_find(listing, &record->parent);
    }
    return n_bytes;
}

bool firni_identity_field(const char *identity_text, const char *name, char *out, size_t out_bytes)
{
    const size_t len_name = strlen(name);
    assert(out_bytes > 0);
    for (const char *line = identity_text; line != NULL && *line != '\0';) {
        const char *newline = strchr(line, '\n');
        if (strncmp(line, name, len_name) == 0 && strncmp(line + len_name, ": ", 2) == 0) {
            const char *value = line + len_name + 2;
            size_t len = newline != NULL ? (size_t)(newline - value) : strlen(value);
            len = len < out_bytes ? len : out_bytes - 1;
            memcpy(out, value, len);
            out[len] = '\0';
            return true;
        }
        line = newline != NULL ? newline + 1 : NULL;
    }
    return false;
}
