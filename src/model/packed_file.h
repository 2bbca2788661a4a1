/*
 * packed_file: a model's matrices as the kernels read them, kept in a file, so that a start maps them instead of
 * packing them again.
 *
 *      packed_place.c    where a model's file is; what else lies there, and what of it has to go
 *      packed_head.c     the head of a file, to bytes and back
 *      packed_map.c      opens, checks and maps a file
 *      packed_write.c    writes one
 *      packed_keeper.c   the thread that does, once the model has answered
 *
 * A file is written under another name, synced and renamed, and never written to again: under its own name it is whole,
 * or was damaged later. It is mapped read-only and shared, so processes that run one model hold its matrices once.
 * Panels of 2 MiB are written at once and mapped at addresses that are multiples of it: file systems that keep large
 * pieces in their cache then map them as huge pages.
 *
 * Nothing is believed before it is checked: head and panels have checksums, and all of them are verified at each start.
 * That reads every byte once, at the speed of memory and by all threads; the first forward would have read them too.
 *
 * The file. Numbers are little-endian, but for panels, which are in the order of the machine.
 *
 *   offset  bytes
 *        0      8   magic "FIRNPACK"
 *        8      4   version of this format: 1
 *       12      4   version of the packing (FIRNI_PACKING_VERSION)
 *       16      4   the number 1 in the byte order of the machine
 *       20      4   n, the number of entries
 *       24     32   identity: SHA-256 of "firn.packed.1", the packing's version, the weights' fingerprint, and size and
 *                   time of the model file
 *       56      8   bytes of this file
 *       64      8   p, where panels begin: a multiple of 4096
 *       72      8   bytes of the model file
 *       80      8   when it was last changed, in nanoseconds since 1970
 *       88      4   l, the length of its path: at most 4095
 *       92      4   c, the number of checksums: one for each 2 MiB of this file, the last of which may be shorter
 *       96      8   XXH3-64 of [0, 96), seeded with that of [104, p)
 *      104      l   path of the model file
 *                   zeros to a multiple of 8
 *           96 n    entries
 *            8 c    checksums: XXH3-64 of what is panels in each 2 MiB
 *                   zeros to p
 *        p          panels of the entries in their order, each at a multiple of 4096, zeros between them
 *
 *   entry
 *        0     64   name of the first tensor, zeros behind it
 *       64      4   type of the weights (firni_weight_type)
 *       68      4   rows of a matrix
 *       72      4   columns
 *       76      4   matrices behind each other (experts, heads)
 *       80      8   offset in the file
 *       88      8   bytes
 */
#ifndef FIRNI_PACKED_FILE_H
#define FIRNI_PACKED_FILE_H

#include <stdatomic.h>

#include "firn/workers.h"
#include "model/weights.h"

/* Changes with the layout of panels (kernel/packed.h), the numbers of firni_weight_type, and which tensors are stacked
 * under which name (weights.c, weights_each.c). A test holds a digest of panels against it. */
#define FIRNI_PACKING_VERSION 1u

#define FIRNI_PACKED_CHUNK_BYTES ((uint64_t)2 << 20)
#define FIRNI_PACKED_ALIGN 4096u
#define FIRNI_PACKED_FIXED_BYTES 104u
#define FIRNI_PACKED_ENTRY_BYTES 96u
#define FIRNI_PACKED_PATH_BYTES_MAX 4095u

/* The model file that panels were made from. */
typedef struct firni_packed_source {
    uint8_t identity[32];
    uint64_t n_bytes;
    uint64_t modified_ns;
    const char *path;     /* need not be terminated */
    uint32_t len_path;
} firni_packed_source;

/* What stands in a head before the entries, and where the rest is. */
typedef struct firni_packed_head {
    firni_packed_source source;
    uint64_t file_bytes;
    uint64_t panels_offset;
    uint64_t entries_offset;
    uint64_t sums_offset;
    uint32_t n_entries;
    uint32_t n_chunks;
} firni_packed_head;

/* ---- heads ---- */

/* Lays out a file: sets the offset of each entry and fills *out. False when it would not fit 63 bits. */
bool firni_packed_head_plan(const firni_packed_source *source, firni_packed_entry *entries, uint32_t n_entries,
                            firni_packed_head *out);
/* panels_offset bytes to out; sums: [n_chunks]. */
void firni_packed_head_encode(const firni_packed_head *head, const firni_packed_entry *entries, const uint64_t *sums,
                              uint8_t *out);
/* The part before the entries, out of the first n_bytes of a file of file_bytes. The path points into `bytes`. Errors:
 * FORMAT, with what is wrong. */
firn_status firni_packed_head_decode(const uint8_t *bytes, uint64_t n_bytes, uint64_t file_bytes,
                                     firni_packed_head *out, firn_error *err);
/* All of a decoded head, with its checksum and entries; bytes: panels_offset of them. Errors: FORMAT, CORRUPT. */
firn_status firni_packed_head_verify(const firni_packed_head *head, const uint8_t *bytes, firn_error *err);
void firni_packed_entry_decode(const firni_packed_head *head, const uint8_t *bytes, uint32_t index,
                               firni_packed_entry *out);
uint64_t firni_packed_sum_decode(const firni_packed_head *head, const uint8_t *bytes, uint32_t chunk);
/* What of a chunk is panels: [*begin, *end) of the file; equal when nothing is. */
void firni_packed_chunk_range(const firni_packed_head *head, uint32_t chunk, uint64_t *begin, uint64_t *end);

/* ---- places ---- */

/* Where the file of one model is, in a directory that holds such files only. */
typedef struct firni_packed_place {
    const firn_env *env;
    firni_packed_source source; /* its path is `model_path` */
    char *model_path;           /* absolute */
    char *dir;
    char *path;                 /* DIR/<32 hexadecimal digits>.packed */
    char *partial_path;         /* the same with ".partial" */
    char *lock_path;            /* DIR/lock, held by whoever writes or removes */
} firni_packed_place;

/* Errors: IO (the model file cannot be examined), NO_MEMORY. */
firn_status firni_packed_place_init(firni_packed_place *place, const char *dir, const char *model_path,
                                    const uint8_t fingerprint[32], const firn_env *env, firn_error *err);
void firni_packed_place_deinit(firni_packed_place *place); /* accepts a zeroed struct */
/* Physical bytes of all such files in a directory. */
uint64_t firni_packed_dir_bytes(const char *dir, const firn_env *env);
/* Removes all such files and the directory, if nothing else is in it; false when something is left. */
bool firni_packed_dir_remove(const char *dir, const firn_env *env);
/* Makes room for file_bytes more, with bytes_max for all files together: removes what a killed writer left, files whose
 * model has gone or has changed, files of another version, and then as many as must, the one written longest ago
 * first. The caller holds the lock. Errors: CAPACITY (too large for bytes_max, or for the file system, of which a
 * twentieth, at most 2 GiB, stays free). */
firn_status firni_packed_make_room(const firni_packed_place *place, uint64_t file_bytes, uint64_t bytes_max,
                                   firn_error *err);

/* ---- files ---- */

typedef struct firni_packed firni_packed;

/* Maps and verifies the file of a place. Errors: NOT_FOUND (there is none), IO, FORMAT, CORRUPT, NO_MEMORY. */
firn_status firni_packed_map(const firni_packed_place *place, firn_workers *workers, firni_packed **out,
                             firn_error *err);
void firni_packed_unmap(firni_packed *packed); /* accepts NULL */
/* The panels of an entry that is like `wanted` in all but offset and panels, or NULL. They live as long as `packed`.
 * Entries that are asked for in the order of the file are found at once. */
const uint8_t *firni_packed_find(firni_packed *packed, const firni_packed_entry *wanted);

typedef struct firni_packed_write_options {
    const firni_packed_place *place;
    firni_packed_entry *entries;   /* their panels are read, their offsets set */
    uint32_t n_entries;
    uint64_t bytes_max;            /* of all files in the directory */
    bool replaces;                 /* also where there is a file already: it is damaged */
    const atomic_bool *stop;       /* ends the write between two pieces */
} firni_packed_write_options;

/* Nothing appears under the place's name unless it is whole and durable. Errors: BUSY (somebody else is writing in this
 * directory), CAPACITY, IO, NO_MEMORY, CANCELLED. */
firn_status firni_packed_write(const firni_packed_write_options *options, firn_error *err);

/* ---- the keeper ---- */

typedef struct firni_packed_keeper firni_packed_keeper;

/* A thread that waits for firni_packed_keeper_begin(), then writes; what goes wrong is logged. Takes the place. The
 * entries and their panels are borrowed until it is destroyed. Errors: NO_MEMORY, IO (no thread). */
firn_status firni_packed_keeper_create(firni_packed_place *place, firni_packed_entry *entries, uint32_t n_entries,
                                       uint64_t bytes_max, bool replaces, firni_packed_keeper **out, firn_error *err);
/* Any thread; all but the first call do nothing, and cost a load. */
void firni_packed_keeper_begin(firni_packed_keeper *keeper);
/* Lets a write that has begun end, for at most thirty seconds; then gives it up. Accepts NULL. */
void firni_packed_keeper_destroy(firni_packed_keeper *keeper);

#endif
