/*
 * What the tests of packed weights share: made-up entries with a place for their file, and a look into directories.
 * Header only.
 */
#ifndef FIRN_TESTS_PACKED_RIG_H
#define FIRN_TESTS_PACKED_RIG_H

#include "support/support.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/packed_file.h"

#define RIG_ENTRIES 5u

/* A model file that is none, and entries of odd sizes: within a page, beyond one, and beyond a checksum's piece. */
typedef struct packed_rig {
    char *dir;              /* of everything */
    char model[512];
    char packed[512];       /* the directory of packed weights */
    firni_packed_entry entries[RIG_ENTRIES];
    uint8_t *bytes[RIG_ENTRIES];
    atomic_bool stop;
} packed_rig;

static inline void rig_write_model(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline void rig_init(packed_rig *rig, uint64_t seed)
{
    static const uint64_t sizes[RIG_ENTRIES] = { 4096, 100, 3 * FIRNI_PACKED_CHUNK_BYTES + 64, 5000, 1 };
    test_rng rng = { .state = seed };
    *rig = (packed_rig){ .dir = test_dir_create() };
    (void)snprintf(rig->model, sizeof rig->model, "%s/model.gguf", rig->dir);
    (void)snprintf(rig->packed, sizeof rig->packed, "%s/packed", rig->dir);
    rig_write_model(rig->model, "weights");
    for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
        rig->bytes[i] = malloc((size_t)sizes[i]);
        assert_non_null(rig->bytes[i]);
        for (uint64_t b = 0; b < sizes[i]; b++) {
            rig->bytes[i][b] = (uint8_t)test_rng_u64(&rng);
        }
        rig->entries[i] = (firni_packed_entry){
            .type = FIRNI_WEIGHT_Q8_0, .n_rows = 16 * (i + 1), .n_cols = 32, .n_each = 1 + i % 2, .n_bytes = sizes[i],
            .panels = rig->bytes[i],
        };
        (void)snprintf(rig->entries[i].name, sizeof rig->entries[i].name, "blk.%u.weight", i);
    }
}

static inline void rig_deinit(packed_rig *rig)
{
    for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
        free(rig->bytes[i]);
    }
    test_dir_remove(rig->dir);
    free(rig->dir);
}

static inline firni_packed_place rig_place(const packed_rig *rig, uint8_t fingerprint, const firn_env *env)
{
    firni_packed_place place;
    uint8_t digest[32];
    memset(digest, fingerprint, sizeof digest);
    assert_ok(firni_packed_place_init(&place, rig->packed, rig->model, digest, env, NULL));
    return place;
}

static inline firn_status rig_write(packed_rig *rig, const firni_packed_place *place, uint64_t bytes_max, bool replaces,
                                    firn_error *err)
{
    const firni_packed_write_options options = {
        .place = place, .entries = rig->entries, .n_entries = RIG_ENTRIES, .bytes_max = bytes_max, .replaces = replaces,
        .stop = &rig->stop,
    };
    return firni_packed_write(&options, err);
}

/* Maps the file and compares every entry to the bit. */
static inline void rig_expect_whole(const packed_rig *rig, const firni_packed_place *place)
{
    firni_packed *packed = NULL;
    firn_error err = { .message = "" };
    if (firni_packed_map(place, NULL, &packed, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
        const uint8_t *panels = firni_packed_find(packed, &rig->entries[i]);
        assert_non_null(panels);
        assert_int_equal((uintptr_t)panels % FIRNI_PACKED_ALIGN, 0);
        assert_memory_equal(panels, rig->bytes[i], (size_t)rig->entries[i].n_bytes);
    }
    firni_packed_unmap(packed);
}

/* Files in a directory whose name ends so; 0 when there is no directory. */
static inline uint32_t files_ending(const char *dir, const char *suffix)
{
    uint32_t n = 0;
    DIR *stream = opendir(dir);
    for (const struct dirent *entry = stream != NULL ? readdir(stream) : NULL; entry != NULL; entry = readdir(stream)) {
        const size_t len = strlen(entry->d_name);
        n += len >= strlen(suffix) && strcmp(entry->d_name + len - strlen(suffix), suffix) == 0;
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    return n;
}

#endif
