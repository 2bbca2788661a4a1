/*
 * cache_files: the files of a cache directory by their names (firn/disk.h draws them), without opening the store.
 */
#ifndef FIRNI_CACHE_FILES_H
#define FIRNI_CACHE_FILES_H

#include <stdbool.h>

/* Calls visit with the path of each segment file in `dir`, in no stated order, until it returns false. */
void firni_cache_each_segment(const char *dir, bool (*visit)(void *ctx, const char *path), void *ctx);

/* Removes index and segments, nothing else; the index first, so that no moment has an index that names missing bytes.
 * The caller holds the store's lock or owns the directory. False when something could not be removed. */
bool firni_cache_remove_files(const char *dir);
/* The same, then the lock file and the directory itself: for a directory that the caller has made. */
bool firni_cache_remove_dir(const char *dir);

#endif
