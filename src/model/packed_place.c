/*
 * Places of packed weights: the name of a model's file in a directory, and room for it there. Owns names and removal;
 * touches no file of the directory whose name is not of its own form.
 *
 * A model file that was changed, however little, is another source: its size and time are part of the identity beside
 * the fingerprint, which samples large tensors. A copy of it somewhere else has a file of its own.
 */
#define _XOPEN_SOURCE 700 /* realpath */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/sha.h>

#include "base/base_impl.h"
#include "model/packed_file.h"
#include "record/bytes_impl.h"

#define NAME_DIGITS 32u
#define SUFFIX ".packed"
#define PARTIAL_SUFFIX ".packed.partial"
#define FREE_SHARE 20u
#define FREE_BYTES_USUAL (UINT64_C(2) << 30)
#define OTHERS_MAX 256u /* files of a directory that are looked at: far more than anybody has models */

/* ---- names ---- */

static void identify(firni_packed_source *source, const uint8_t fingerprint[32])
{
    static const char domain[] = "firn.packed.1";
    uint8_t text[sizeof domain + 4 + 32 + 8 + 8];
    uint8_t *at = text;
    memcpy(at, domain, sizeof domain);
    at += sizeof domain;
    firni_put_u32(at, FIRNI_PACKING_VERSION);
    memcpy(at + 4, fingerprint, 32);
    firni_put_u64(at + 36, source->n_bytes);
    firni_put_u64(at + 44, source->modified_ns);
    assert(at + 52 == text + sizeof text);
    (void)SHA256(text, sizeof text, source->identity);
}

/* dir/name, or NULL without memory. */
static char *join(const firn_env *env, const char *dir, const char *name)
{
    const size_t n_bytes = strlen(dir) + strlen(name) + 2;
    char *path = firni_calloc(env, n_bytes, 1);
    if (path != NULL) {
        (void)snprintf(path, n_bytes, "%s/%s", dir, name);
    }
    return path;
}

static char *named(const firn_env *env, const char *dir, const uint8_t identity[32], const char *suffix)
{
    char name[NAME_DIGITS + sizeof PARTIAL_SUFFIX];
    for (uint32_t i = 0; i < NAME_DIGITS / 2; i++) {
        (void)snprintf(name + (size_t)2 * i, 3, "%02x", identity[i]);
    }
    (void)snprintf(name + NAME_DIGITS, sizeof name - NAME_DIGITS, "%s", suffix);
    return join(env, dir, name);
}

static bool is_name(const char *name, const char *suffix)
{
    return strspn(name, "0123456789abcdef") == NAME_DIGITS && strcmp(name + NAME_DIGITS, suffix) == 0;
}

firn_status firni_packed_place_init(firni_packed_place *place, const char *dir, const char *model_path,
                                    const uint8_t fingerprint[32], const firn_env *env, firn_error *err)
{
    const firn_io *io = firni_io(env);
    *place = (firni_packed_place){ .env = env };
    firn_io_stat st;
    const int result = io->stat_path(io->ctx, model_path, &st);
    if (result < 0) {
        return firni_fail_os(err, -result, "cannot examine %s", model_path);
    }
    /* Absolute, so that a start from another directory finds whether the model is still there. */
    char *resolved = realpath(model_path, NULL);
    place->model_path = firni_strdup(env, resolved != NULL ? resolved : model_path);
    free(resolved);
    place->dir = firni_strdup(env, dir);
    place->source = (firni_packed_source){ .n_bytes = st.size_bytes, .modified_ns = st.modified_ns };
    identify(&place->source, fingerprint);
    place->path = named(env, dir, place->source.identity, SUFFIX);
    place->partial_path = named(env, dir, place->source.identity, PARTIAL_SUFFIX);
    place->lock_path = join(env, dir, "lock");
    if (place->model_path == NULL || place->dir == NULL || place->path == NULL || place->partial_path == NULL ||
        place->lock_path == NULL) {
        firni_packed_place_deinit(place);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the name of packed weights");
    }
    const size_t len_path = strlen(place->model_path);
    place->source.path = place->model_path;
    place->source.len_path = len_path <= FIRNI_PACKED_PATH_BYTES_MAX ? (uint32_t)len_path : 0;
    return FIRN_OK;
}

void firni_packed_place_deinit(firni_packed_place *place)
{
    firni_free(place->env, place->model_path);
    firni_free(place->env, place->dir);
    firni_free(place->env, place->path);
    firni_free(place->env, place->partial_path);
    firni_free(place->env, place->lock_path);
    *place = (firni_packed_place){ .env = place->env };
}

/* ---- what lies there ---- */

typedef struct other_file {
    char name[NAME_DIGITS + sizeof PARTIAL_SUFFIX];
    uint64_t n_bytes;
    uint64_t modified_ns;
} other_file;

typedef struct dir_listing {
    other_file files[OTHERS_MAX];
    uint32_t n_files;
} dir_listing;

static void note_name(void *ctx, const char *name)
{
    dir_listing *list = ctx;
    if (list->n_files < OTHERS_MAX && (is_name(name, SUFFIX) || is_name(name, PARTIAL_SUFFIX))) {
        other_file *file = &list->files[list->n_files++];
        *file = (other_file){ .n_bytes = 0 };
        memcpy(file->name, name, strlen(name) + 1);
    }
}

/* NULL without memory or without a directory, which are one to the callers: there is nothing to count or to remove. */
static dir_listing *list_files(const char *dir, const firn_env *env)
{
    const firn_io *io = firni_io(env);
    dir_listing *list = firni_calloc(env, 1, sizeof *list);
    if (list == NULL || io->list_dir(io->ctx, dir, note_name, list) < 0) {
        firni_free(env, list);
        return NULL;
    }
    for (uint32_t i = 0; i < list->n_files; i++) {
        other_file *file = &list->files[i];
        char *path = join(env, dir, file->name);
        firn_io_stat st;
        if (path != NULL && io->stat_path(io->ctx, path, &st) == 0) {
            file->n_bytes = st.physical_bytes;
            file->modified_ns = st.modified_ns;
        }
        firni_free(env, path);
    }
    return list;
}

uint64_t firni_packed_dir_bytes(const char *dir, const firn_env *env)
{
    dir_listing *list = list_files(dir, env);
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; list != NULL && i < list->n_files; i++) {
        n_bytes += list->files[i].n_bytes;
    }
    firni_free(env, list);
    return n_bytes;
}

/* Files that processes have mapped stay with them until they unmap them. */
bool firni_packed_dir_remove(const char *dir, const firn_env *env)
{
    const firn_io *io = firni_io(env);
    dir_listing *list = list_files(dir, env);
    if (list == NULL) {
        return access(dir, F_OK) != 0;
    }
    for (uint32_t i = 0; i < list->n_files; i++) {
        char *path = join(env, dir, list->files[i].name);
        if (path != NULL) {
            (void)io->unlink(io->ctx, path);
        }
        firni_free(env, path);
    }
    firni_free(env, list);
    char *lock = join(env, dir, "lock");
    if (lock != NULL) {
        (void)io->unlink(io->ctx, lock);
    }
    firni_free(env, lock);
    return rmdir(dir) == 0;
}

/* ---- room ---- */

/* True when the model that the file was made from is where it was, and as it was. */
static bool has_its_model(const firn_env *env, const char *path)
{
    const firn_io *io = firni_io(env);
    uint8_t bytes[FIRNI_PACKED_FIXED_BYTES + FIRNI_PACKED_PATH_BYTES_MAX + 1] = { 0 };
    const int fd = io->open(io->ctx, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0) {
        return false;
    }
    firn_io_stat st;
    firni_packed_head head;
    const int64_t n = io->pread(io->ctx, fd, bytes, sizeof bytes - 1, 0);
    const bool is_sound =
        n > 0 && io->stat(io->ctx, fd, &st) == 0 &&
        firni_packed_head_decode(bytes, (uint64_t)n, st.size_bytes, &head, NULL) == FIRN_OK;
    (void)io->close(io->ctx, fd);
    if (!is_sound) {
        return false;
    }
    char model_path[FIRNI_PACKED_PATH_BYTES_MAX + 1];
    memcpy(model_path, head.source.path, head.source.len_path);
    model_path[head.source.len_path] = '\0';
    return io->stat_path(io->ctx, model_path, &st) == 0 && st.size_bytes == head.source.n_bytes &&
           st.modified_ns == head.source.modified_ns;
}

static bool remove_file(const firni_packed_place *place, const other_file *file)
{
    const firn_io *io = firni_io(place->env);
    char *path = join(place->env, place->dir, file->name);
    const bool removed = path != NULL && io->unlink(io->ctx, path) >= 0;
    if (removed) {
        firni_log(place->env, FIRN_LOG_INFO, "removed %s", path);
    }
    firni_free(place->env, path);
    return removed;
}

/* What can never be used again goes, and the place's own file, which is about to be replaced, is not counted. */
static uint64_t remove_useless(const firni_packed_place *place, dir_listing *list)
{
    uint64_t n_bytes = 0;
    uint32_t n_left = 0;
    const char *own = strrchr(place->path, '/') + 1;
    for (uint32_t i = 0; i < list->n_files; i++) {
        const other_file file = list->files[i];
        char *path = join(place->env, place->dir, file.name);
        const bool is_useful = is_name(file.name, SUFFIX) && path != NULL && has_its_model(place->env, path);
        firni_free(place->env, path);
        if (strcmp(file.name, own) == 0) {
            continue;
        }
        if (is_useful || !remove_file(place, &file)) {
            list->files[n_left++] = file;
            n_bytes += file.n_bytes;
        }
    }
    list->n_files = n_left;
    return n_bytes;
}

/* Removes the file that was written longest ago; returns its bytes. */
static uint64_t remove_oldest(const firni_packed_place *place, dir_listing *list)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < list->n_files; i++) {
        oldest = list->files[i].modified_ns < list->files[oldest].modified_ns ? i : oldest;
    }
    const other_file file = list->files[oldest];
    list->files[oldest] = list->files[--list->n_files];
    return remove_file(place, &file) ? file.n_bytes : 0;
}

firn_status firni_packed_make_room(const firni_packed_place *place, uint64_t file_bytes, uint64_t bytes_max,
                                   firn_error *err)
{
    const firn_io *io = firni_io(place->env);
    if (file_bytes > bytes_max) {
        return firni_fail(err, FIRN_ERR_CAPACITY, "%" PRIu64 " MiB of packed weights are more than the %" PRIu64
                          " MiB that they may take", file_bytes >> 20, bytes_max >> 20);
    }
    dir_listing *list = list_files(place->dir, place->env);
    if (list != NULL) {
        uint64_t n_bytes = remove_useless(place, list);
        while (n_bytes > bytes_max - file_bytes && list->n_files > 0) {
            n_bytes -= remove_oldest(place, list);
        }
        firni_free(place->env, list);
        if (n_bytes > bytes_max - file_bytes) {
            return firni_fail(err, FIRN_ERR_CAPACITY, "%" PRIu64 " MiB of other packed weights in %s cannot be removed",
                              n_bytes >> 20, place->dir);
        }
    }
    firn_io_fs fs;
    if (io->stat_fs(io->ctx, place->dir, &fs) >= 0) {
        const uint64_t share = fs.size_bytes / FREE_SHARE;
        const uint64_t reserve = share < FREE_BYTES_USUAL ? share : FREE_BYTES_USUAL;
        if (fs.free_bytes < reserve || fs.free_bytes - reserve < file_bytes) {
            return firni_fail(err, FIRN_ERR_CAPACITY, "%" PRIu64 " MiB are free on the file system of %s, of which %"
                              PRIu64 " MiB stay free; packed weights are %" PRIu64 " MiB", fs.free_bytes >> 20,
                              place->dir, reserve >> 20, file_bytes >> 20);
        }
    }
    return FIRN_OK;
}
