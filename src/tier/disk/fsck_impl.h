/*
 * A rebuild in progress, shared by fsck_scan.c (what records the segments hold), fsck_ledger.c (what was kept by name)
 * and fsck.c (which of them count, and the index that names them).
 *
 *      segments --scan--> found[], debris[], names[] --resolve--> found[] that are kept --one transaction--> index
 */
#ifndef FIRNI_FSCK_IMPL_H
#define FIRNI_FSCK_IMPL_H

#include "tier/disk/ledger_impl.h"

/* A record that lies in a segment. */
typedef struct firni_found {
    firni_entry entry;      /* without a stamp */
    firni_which which;
    firn_digest parent;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    firni_record_links links;
    struct firni_found *before; /* the block that it continues, of a namespace above or its own; NULL at token 0 */
    uint64_t used_wall_ns;      /* the latest that is known of it and of all that continues it */
    bool is_kept;
} firni_found;

/* What a chain belongs to, from the records where it begins. */
typedef struct firni_names {
    firn_digest root, identity;
    char *ns;
    char *text; /* of the identity; NULL: records at token 0 say it */
} firni_names;

/* A line of the ledger. */
typedef struct firni_fsck_line {
    firn_digest key;
    uint64_t at;            /* in the file */
    uint8_t kind;
    int8_t priority;
    bool is_removed, is_last;
} firni_fsck_line;

typedef struct firni_fsck {
    const firn_env *env;
    firni_volume *volume;
    bool headers_only;
    firni_crypt *crypt;         /* NULL: the records are plain */
    firni_found *found;
    uint64_t n_found, found_capacity;
    firni_found **blocks;   /* of found[], sorted by digest: one block for each */
    uint64_t n_blocks;
    firni_names *names;     /* sorted by root */
    uint32_t n_names, names_capacity;
    firni_place *debris;    /* bytes of no record that is kept */
    uint64_t n_debris, debris_capacity;
    firni_ledger_text ledger;
    firni_fsck_line *lines; /* the last of each name and record, sorted by kind and key */
    uint64_t n_lines;
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
/* The block with this digest; NULL: there is none. */
firni_found *firni_fsck_block(const firni_fsck *job, const firn_digest *digest);

/* fsck_ledger.c. A ledger that cannot be read counts as none. */
firni_code firni_fsck_read_ledger(firni_fsck *job);
/* Gives found records the priorities that they were raised to. */
void firni_fsck_raise(firni_fsck *job);
/* Names what was kept by name: with all records found and chosen, and those that are kept in the index. */
firni_code firni_fsck_add_names(firni_fsck *job, MDB_txn *txn);

#endif
