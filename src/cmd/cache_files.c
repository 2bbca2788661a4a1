/*
 * Visits and removes the files of a cache directory. Owns the names; never touches a file that is not the tier's.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cache_files.h"

#define PATH_BYTES 4096

/* dir/name into out; false when it does not fit. */
static bool join(char out[PATH_BYTES], const char *dir, const char *name)
{
    const int len = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    return len > 0 && len < PATH_BYTES;
}

/* "seg-NNNNNNNN.firn" */
static bool is_segment(const char *name)
{
    return strlen(name) == 17 && memcmp(name, "seg-", 4) == 0 && strspn(name + 4, "0123456789") == 8 &&
           strcmp(name + 12, ".firn") == 0;
}

/* "ledger-NNNNNNNN.firn" */
static bool is_ledger(const char *name)
{
    return strlen(name) == 20 && memcmp(name, "ledger-", 7) == 0 && strspn(name + 7, "0123456789") == 8 &&
           strcmp(name + 15, ".firn") == 0;
}

static void each_file(const char *dir, bool (*is_meant)(const char *name), bool (*visit)(void *ctx, const char *path),
                      void *ctx)
{
    DIR *stream = opendir(dir);
    if (stream == NULL) {
        return;
    }
    char path[PATH_BYTES];
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (is_meant(entry->d_name) && join(path, dir, entry->d_name) && !visit(ctx, path)) {
            break;
        }
    }
    (void)closedir(stream);
}

void firni_cache_each_segment(const char *dir, bool (*visit)(void *ctx, const char *path), void *ctx)
{
    each_file(dir, is_segment, visit, ctx);
}

static bool is_gone(int result)
{
    return result == 0 || errno == ENOENT;
}

static bool remove_file(void *ctx, const char *path)
{
    bool *is_complete = ctx;
    *is_complete = is_gone(unlink(path)) && *is_complete;
    return true;
}

bool firni_cache_remove_files(const char *dir)
{
    static const char *const index_files[] = { "index/data.mdb", "index/lock.mdb" };
    char path[PATH_BYTES];
    bool is_complete = true;
    /* The index last: while segments are there, a store without one is not opened, not even to be wiped. */
    firni_cache_each_segment(dir, remove_file, &is_complete);
    each_file(dir, is_ledger, remove_file, &is_complete);
    for (size_t i = 0; is_complete && i < sizeof index_files / sizeof index_files[0]; i++) {
        is_complete = join(path, dir, index_files[i]) && is_gone(unlink(path));
    }
    return is_complete && join(path, dir, "index") && is_gone(rmdir(path));
}

bool firni_cache_remove_dir(const char *dir)
{
    char path[PATH_BYTES];
    return firni_cache_remove_files(dir) && join(path, dir, "firn.lock") && is_gone(unlink(path)) &&
           is_gone(rmdir(dir));
}
