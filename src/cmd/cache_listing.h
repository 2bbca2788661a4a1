/*
 * cache_listing: all records of a disk store in memory, for `firn cache`.
 *
 *      listing ── records[]  one per record, sorted by digest; parent digests tie them into chains
 *              ── groups[]   one per identity and namespace, sorted by both: what belongs together is adjacent
 *
 * A *prefix* is a record of tokens that no other continues: the end of a stored conversation. Its tokens are those of
 * its chain, its bytes what its chain holds, shared records included. Checkpoints and objects stand beside the chain,
 * at one count each.
 */
#ifndef FIRNI_CACHE_LISTING_H
#define FIRNI_CACHE_LISTING_H

#include <stdbool.h>
#include <stddef.h>

#include "firn/disk.h"

typedef struct firni_listing_group {
    char *identity_text;
    char *ns;
    uint64_t n_records, n_quarantined, n_prefixes, n_checkpoints, n_bytes;
    uint64_t n_demoted, plain_bytes; /* compressed records, and what they took before */
    uint64_t demoted_bytes;         /* what these take now */
    uint64_t n_tokens;              /* stored ones: a shared prefix counts once */
    uint64_t last_used_wall_ns;
} firni_listing_group;

typedef struct firni_listing_record {
    firn_digest digest, parent;
    firn_disk_kind kind;
    uint32_t first_token, n_tokens;
    uint32_t n_full, n_window, n_fixed;
    uint64_t n_bytes, plain_bytes, last_used_wall_ns;
    uint32_t group;
    bool quarantined, has_child;
} firni_listing_record;

typedef struct firni_listing {
    firni_listing_record *records;
    uint32_t n_records, records_capacity;
    firni_listing_group *groups;
    uint32_t n_groups, groups_capacity;
    const firn_env *env;
} firni_listing;

firn_status firni_listing_create(firn_tier *tier, const firn_env *env, firni_listing *out, firn_error *err);
void firni_listing_deinit(firni_listing *listing); /* accepts a zeroed one */

/* The record with this digest, or NULL. */
firni_listing_record *firni_listing_find(const firni_listing *listing, const firn_digest *digest);
/* Bytes of the chain that ends in this record. */
uint64_t firni_listing_chain_bytes(const firni_listing *listing, const firni_listing_record *record);
/* The value of the field `name` in an identity's text, copied into out; false when there is none. */
bool firni_identity_field(const char *identity_text, const char *name, char *out, size_t out_bytes);

#endif
