/*
 * One store in progress, shared by disk_delta.c (what has to be written) and disk_store.c (writing and naming it).
 */
#ifndef FIRNI_STORE_IMPL_H
#define FIRNI_STORE_IMPL_H

#include "tier/disk/disk_impl.h"

typedef struct firni_store_job {
    firni_disk *disk;
    firni_volume *volume;
    const firn_store_input *input;
    const firni_kept *keyed;  /* an object by key: its row; else NULL */
    firn_row_view *views;     /* per layer */
    uint32_t n_blocks;        /* of the prefix, a partial one included */
    uint32_t *first_window;   /* per kind of window layers: the first block that all their rows still hold */
    uint32_t reusable_from;   /* the largest over the rows */
    firni_origin origin;
    firn_tier_handle *handle; /* the chain: entries that exist, and those that will */
    firni_key *touched;       /* key of the existing entry that serves block i; n_bytes 0: a new one does */
    bool touches_checkpoint;  /* the checkpoint is there already */
    firni_pending *pending;   /* new records, in chain order; then the checkpoint; then the object, if any */
    uint32_t n_pending;       /* without the object */
    bool has_object;
    uint64_t n_pending_bytes;
    bool is_blocked;          /* somebody reads what a new record would replace */
    uint32_t segment_before;
} firni_store_job;

/* Everything that needs no lock: memory, checks, the digests of the chain. NONE, or why nothing can be stored. What it
 * allocated is the job's, also on failure. */
firn_reason firni_store_prepare(firni_store_job *job);
/* Asks the index what it lacks: fills pending and touched. writer held. */
firni_code firni_store_find_new(firni_store_job *job);

#endif
