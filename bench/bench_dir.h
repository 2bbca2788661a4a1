/*
 * Removing the directory of a store that a benchmark has made, whatever files a tier has in it by then.
 */
#ifndef FIRN_BENCH_DIR_H
#define FIRN_BENCH_DIR_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

/* The files in it, then the directory; what is a directory itself stays, and keeps it. */
static inline void bench_remove_files(const char *path)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        char file[1024];
        if (snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < (int)sizeof file) {
            (void)unlink(file);
        }
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    (void)rmdir(path);
}

/* A store's only folder is its index. */
static inline void bench_remove_store(const char *dir)
{
    char index[1024];
    if (snprintf(index, sizeof index, "%s/index", dir) < (int)sizeof index) {
        bench_remove_files(index);
    }
    bench_remove_files(dir);
}

#endif
