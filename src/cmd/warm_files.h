/*
 * warm_files: what `firn serve --warm` reads before the first request.
 *
 * A .txt file is a raw prompt named after it; a .json file is a body of POST /v1/firn/warm, named after it unless it
 * names itself. Of a folder these two kinds are read, in the order of their names.
 */
#ifndef FIRNI_WARM_FILES_H
#define FIRNI_WARM_FILES_H

#include "cmd/cmd.h"
#include "server/warm.h"

/* Prints a line for each. Returns 0, or the exit status: a warm-up that fails stops the start, with its file named. */
int firni_warm_files(const firni_command *command, firni_warmer *warmer, const char *path);

#endif
