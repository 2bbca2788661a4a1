/*
 * Fuzzes the GGUF reader and everything that reads a model's structure: a file that opens as GGUF is opened as a model
 * too, with its vocabulary, hyperparameters and weights.
 */
#define _GNU_SOURCE /* memfd_create */

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "firn/model.h"
#include "model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Inputs lie in a file without a name, so that the reader maps them as it maps any other. */
static void write_input(int fd, const uint8_t *data, size_t n_bytes)
{
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, n_bytes, 0) != (ssize_t)n_bytes) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int fd = -1;
    char path[64];
    firn_error err;
    if (fd < 0) {
        fd = memfd_create("gguf", MFD_CLOEXEC);
    }
    if (fd < 0 || n_bytes == 0) {
        return 0;
    }
    write_input(fd, data, n_bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    firni_gguf *gguf = NULL;
    if (firni_gguf_open(path, NULL, &gguf, &err) != FIRN_OK) {
        return 0;
    }
    uint8_t digest[32];
    (void)firni_gguf_fingerprint(gguf, digest, &err);
    firni_gguf_close(gguf);

    const firn_model_options options = { .path = path, .max_batch_tokens = 4, .max_rows = 1 };
    firn_model *model = NULL;
    if (firn_model_open(&options, NULL, &model, &err) == FIRN_OK) {
        firn_model_close(model);
    }
    return 0;
}
