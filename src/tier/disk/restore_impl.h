/*
 * One restore in progress, shared by disk_restore.c (what is needed, memory, caches), disk_read.c (reading and
 * verifying it) and disk_layers.c (the same, layer by layer).
 *
 *      parts     record 0 | record 1 | ... | checkpoint        of each the header and its first images
 *      reads     `--- neighbours ---'   ...                    what lies together is read together
 *
 * A packed part is read whole, into memory of its own. A part whose images the caller has already (its head) is *held*:
 * nothing of it is read.
 */
#ifndef FIRNI_RESTORE_IMPL_H
#define FIRNI_RESTORE_IMPL_H

#include "tier/disk/disk_impl.h"

/* What is read of one record: its header and its first images. */
typedef struct firni_restore_part {
    const firni_entry *entry;
    const firni_plan_form *form;
    uint32_t n_images;
    uint32_t header_bytes; /* with the names of the first record */
    uint64_t n_bytes;   /* from the record's start */
    uint32_t first_iov; /* 1 + n_images of them */
    firni_code code;    /* what is wrong with it */
    bool is_held;       /* by the caller: n_bytes is 0 */
    bool is_packed;     /* read whole, and unpacked into its blocks (disk_packed.c) */
} firni_restore_part;

/* Neighbouring parts that one call reads. */
typedef struct firni_restore_span {
    uint32_t first_part, n_parts;
    uint64_t n_bytes;
} firni_restore_span;

typedef struct firni_restore_job {
    firni_disk *disk;
    firni_volume *volume;
    firn_tier_handle *handle;
    const firni_restore_want *want;
    uint32_t n_tokens, n_records;
    bool has_checkpoint;
    firni_entry checkpoint; /* at n_tokens */
    firni_key checkpoint_key;
    uint32_t checkpoint_level;
    firni_restore_part *parts; /* [n_parts]: the records, then the checkpoint */
    uint32_t n_parts;
    firn_block **blocks; /* [n_layers][n_records]: token blocks; NULL where none is read */
    firn_block **fixed;  /* [n_layers] */
    uint8_t *headers;    /* [n_parts], header_bytes apart */
    size_t header_bytes;
    firni_section *sections; /* of the record that is being verified */
    firn_cache **caches;     /* [n_layers] */
    firn_token *tokens;
    firn_io_read *reads;      /* [n_parts]: room for a read of each */
    firni_restore_span *spans; /* [n_parts]: what each read covers */
    uint32_t n_reads;
    uint32_t first_read;      /* of the batch that is being read */
    struct iovec *iov;
    size_t n_iov;
    uint64_t n_bytes;         /* of all parts */
    uint64_t n_bytes_read;    /* so far */
} firni_restore_job;

/* The blocks of one layer are neighbours in the list, as firn_row_view wants them. */
FIRNI_INLINE firn_block **firni_restore_blocks(const firni_restore_job *job, uint32_t layer)
{
    return job->blocks + (size_t)layer * job->n_records;
}

/* Where the block of a part's image is kept. */
FIRNI_INLINE firn_block **firni_restore_slot(const firni_restore_job *job, uint32_t part, uint32_t image)
{
    const uint32_t layer = job->parts[part].form->images[image].layer;
    return part < job->n_records ? &firni_restore_blocks(job, layer)[part] : &job->fixed[layer];
}

/* Reads all parts into their blocks, verifies them, and notes every bad one. NONE, or the reason of the first;
 * CANCELLED when it was not wanted any more. */
firn_reason firni_restore_read(firni_restore_job *job);
/* The same, lower layers first; says how many are there. The caches exist already. */
firn_reason firni_restore_read_layers(firni_restore_job *job);
/* Whether it is read so, and its caches have their rows from the start. */
FIRNI_INLINE bool firni_restore_is_layered(const firni_restore_job *job)
{
    return job->want->in_layer_order && job->disk->plan.n_layers > 1;
}

/* Reads and unpacks the packed parts. 0, or what made all of it fail; what is wrong with a part is in its code. */
firni_code firni_restore_read_packed(firni_restore_job *job, bool *cancelled);

bool firni_restore_is_wanted(const firni_restore_job *job);
void firni_restore_report(const firni_restore_job *job, uint32_t n_layers);
/* Whether a decoded header is the one of part i. */
bool firni_restore_header_fits(const firni_restore_job *job, uint32_t i, const firni_record *record);
/* What is wrong with the first bad part, or NONE; all of them are noted. */
firn_reason firni_restore_judge(firni_restore_job *job);

#endif
