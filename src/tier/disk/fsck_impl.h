/*
 * A rebuild in progress, shared by fsck_scan.c (what records the segments hold) and fsck.c (which of them count, and
 * the index that names them).
 *
 *      segments --scan--> found[], debris[], names[] --resolve--> found[] that are kept --one transaction--> index
 */
#ifndef FIRNI_FSCK_IMPL_H
#define FIRNI_FSCK_IMPL_H

#include "tier/disk/disk_impl.h"

/* A record that lies in a segment. */
typedef struct firni_found {
    firni_entry entry;      /* without a stamp */
    firni_which which;
    firn_digest parent;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    struct firni_found *before; /* the block that it continues; NULL at token 0 */
    uint64_t used_wall_ns;      /* the latest that is known of it and of all that continues it */
    bool is_kept;
} firni_found;

/* What a chain belongs to, from its records at token 0. */
typedef struct firni_names {
    firn_digest root, identity;
    char *ns, *text;
} firni_names;

typedef struct firni_fsck {
    const firn_env *env;
    firni_volume *volume;
    bool headers_only;
    firni_crypt *crypt;         /* NULL: the records are plain */
    firni_found *found;
    uint64_t n_found, found_capacity;
    firni_names *names;     /* sorted by root */
    uint32_t n_names, names_capacity;
    firni_place *debris;    /* bytes of no record that is kept */
    uint64_t n_debris, debris_capacity;
    uint64_t n_other_version;
    uint64_t n_other_key;       /* records that this key, or none, is not for */
    firn_disk_fsck_report report;
} firni_fsck;

/* Reads all segments. Changes nothing on disk. */
firn_status firni_fsck_scan(firni_fsck *job, firn_error *err);
/* False without memory. A range right behind the last one extends it. */
bool firni_fsck_add_debris(firni_fsck *job, const firni_place *place);
/* NULL: no record said what belongs to this root. */
const firni_names *firni_fsck_names(const firni_fsck *job, const firn_digest *root);

#endif
