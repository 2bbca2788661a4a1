/*
 * Warm-ups from files. Owns which files they are, and what is printed.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "cmd/warm_files.h"

#define PATH_BYTES     4096
#define PROMPT_BYTES_MAX ((size_t)1 << 28)

static bool has_ending(const char *name, const char *ending)
{
    const size_t n = strlen(name), n_ending = strlen(ending);
    return n > n_ending && strcmp(name + n - n_ending, ending) == 0;
}

/* The file's name without folder and ending. */
static void name_of(const char *path, char *out, size_t out_bytes)
{
    const char *slash = strrchr(path, '/');
    (void)snprintf(out, out_bytes, "%s", slash != NULL ? slash + 1 : path);
    char *dot = strrchr(out, '.');
    if (dot != NULL && dot != out) {
        *dot = '\0';
    }
}

static bool warm_json(firni_warmer *warmer, const char *text, size_t n_bytes, const char *name,
                      firni_warm_report *report, firni_problem *problem)
{
    json_error_t error;
    json_t *body = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    const bool ok =
        json_is_object(body)
            ? firni_warm_body(warmer, body, name, report, problem)
            : firni_problem_field(problem, "invalid_json", NULL, "no JSON object: %s (line %d)",
                                  body == NULL ? error.text : "another value", body == NULL ? error.line : 1);
    json_decref(body);
    return ok;
}

static int warm_file(const firni_command *command, firni_warmer *warmer, const char *path)
{
    size_t n_bytes;
    char *text = firni_cmd_read_file(command, path, PROMPT_BYTES_MAX, &n_bytes);
    if (text == NULL) {
        return 1;
    }
    char name[FIRN_KEEP_NAME_BYTES_MAX + 1];
    name_of(path, name, sizeof name);
    firni_warm_report report;
    firni_problem problem = { 0 };
    const bool ok = has_ending(path, ".json") ? warm_json(warmer, text, n_bytes, name, &report, &problem)
                                              : firni_warm_text(warmer, text, n_bytes, name, &report, &problem);
    free(text);
    if (!ok) {
        return firni_cmd_fail(command, "cannot warm %s: %s", path, problem.message);
    }
    (void)printf("warm: %s, %" PRIu32 " tokens, %" PRIu32 " computed%s\n", report.name, report.n_tokens,
                 report.n_computed, report.is_durable ? "" : ", in RAM alone");
    (void)fflush(stdout);
    return 0;
}

static int is_prompt(const struct dirent *entry)
{
    return has_ending(entry->d_name, ".txt") || has_ending(entry->d_name, ".json");
}

int firni_warm_files(const firni_command *command, firni_warmer *warmer, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return warm_file(command, warmer, path); /* which says what is wrong with it */
    }
    struct dirent **entries = NULL;
    const int n_entries = scandir(path, &entries, is_prompt, alphasort);
    if (n_entries < 0) {
        return firni_cmd_fail(command, "cannot read the folder %s", path);
    }
    int status = 0;
    for (int i = 0; i < n_entries; i++) {
        char file[PATH_BYTES];
        const int len = snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (status == 0) {
            status = len > 0 && len < PATH_BYTES ? warm_file(command, warmer, file)
                                                 : firni_cmd_fail(command, "a path in %s is too long", path);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}
