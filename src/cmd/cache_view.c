/*
 * Opening a store for a subcommand of `firn cache`, and texts that several of them print; see cache_view.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/base_impl.h"
#include "cmd/cache_key.h"
#include "cmd/cache_listing.h"
#include "cmd/cache_view.h"
#include "cmd/stack_draft.h"

/* More than any directory holds, and no more than an index can map. */
#define WRITER_BUDGET_BYTES (UINT64_C(1) << 40)

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Opening would create what is missing, so whoever mistypes a path would look at an empty cache. */
static int check_directory(const firni_cache_view *view)
{
    struct stat info;
    if (stat(view->dir, &info) != 0) {
        return firni_cmd_fail(view->self, "%s: %s", view->dir, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return firni_cmd_fail(view->self, "%s is not a directory", view->dir);
    }
    /* A store that has lost its index still has its marker. */
    static const char *const names[] = { "index", "firn.lock" };
    const size_t n_bytes = strlen(view->dir) + sizeof "/firn.lock";
    char *path = malloc(n_bytes);
    if (path == NULL) {
        return firni_cmd_fail(view->self, "no memory");
    }
    bool is_store = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !is_store; i++) {
        (void)snprintf(path, n_bytes, "%s/%s", view->dir, names[i]);
        is_store = stat(path, &info) == 0;
    }
    free(path);
    return is_store ? 0 : firni_cmd_fail(view->self, "%s holds no Firn cache", view->dir);
}

typedef struct store_visit {
    int (*act)(firni_cache_view *view, void *ctx);
    void *ctx;
} store_visit;

/* Opens the store as gently as the subcommand allows, does it, closes the store. */
static int with_store(firni_cache_view *view, void *ctx)
{
    const store_visit *visit = ctx;
    firn_error err = { 0 };
    /* A writer enforces its budget when it opens: what goes is for the subcommand to say. */
    firni_cache_key key;
    if (firni_cache_key_read(view->key_file, &key, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    const firn_disk_options options = {
        .dir = view->dir,
        .key = firni_cache_key_bytes(&key),
        .read_only = !view->writes,
        .budget_bytes = view->writes ? WRITER_BUDGET_BYTES : view->budget_bytes,
    };
    const firn_status opened = firn_disk_open(&options, view->env, &view->tier, &err);
    firni_cache_key_forget(&key);
    if (opened != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    const int status = visit->act(view, visit->ctx);
    firn_tier_destroy(view->tier);
    view->tier = NULL;
    return status;
}

static int with_directory(firni_cache_view *view, int (*act)(firni_cache_view *view, void *ctx), void *ctx)
{
    const int status = check_directory(view);
    return status != 0 ? status : act(view, ctx);
}

int firni_cache_each_directory(firni_cache_view *view, int (*act)(firni_cache_view *view, void *ctx), void *ctx)
{
    const char *given_dir = view->dir;
    char *default_dir = given_dir == NULL ? firni_stack_default_cache_dir(view->env) : NULL;
    if (given_dir == NULL && default_dir == NULL) {
        return firni_cmd_usage(view->self, "--cache-dir is needed: neither XDG_CACHE_HOME nor HOME is set");
    }
    view->dir = given_dir != NULL ? given_dir : default_dir;
    int status = with_directory(view, act, ctx);
    /* What is left in the drafter's store would outlive a wipe. */
    char *draft_dir = status == 0 ? firni_stack_draft_dir(view->env, view->dir) : NULL;
    struct stat info;
    if (draft_dir != NULL && stat(draft_dir, &info) == 0) {
        view->dir = draft_dir;
        status = with_directory(view, act, ctx);
    }
    view->dir = given_dir;
    firni_free(view->env, draft_dir);
    firni_free(view->env, default_dir);
    return status;
}

int firni_cache_each_store(firni_cache_view *view, int (*act)(firni_cache_view *view, void *ctx), void *ctx)
{
    store_visit visit = { .act = act, .ctx = ctx };
    return firni_cache_each_directory(view, with_store, &visit);
}

int firni_cache_run(firni_cache_view *view, const firni_flag *flags, uint32_t n_flags, int argc, char **argv,
                    int (*act)(firni_cache_view *view, void *ctx), void *ctx)
{
    bool done = false;
    const int status = firni_flags_parse(view->self, flags, n_flags, argc, argv, NULL, 0, NULL, &done);
    return done ? status : firni_cache_each_store(view, act, ctx);
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

const char *firni_cache_time_text(uint64_t wall_ns, char out[FIRNI_TIME_TEXT_BYTES])
{
    const time_t seconds = (time_t)(wall_ns / 1000000000u);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) == NULL || strftime(out, FIRNI_TIME_TEXT_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        (void)snprintf(out, FIRNI_TIME_TEXT_BYTES, "?");
    }
    return out;
}

const char *firni_cache_identity_label(const char *identity_text, char *out, size_t out_bytes)
{
    char architecture[64] = "?", weights[13] = "?", kv[16] = "?";
    (void)firni_identity_field(identity_text, "architecture", architecture, sizeof architecture);
    (void)firni_identity_field(identity_text, "weights", weights, sizeof weights);
    (void)firni_identity_field(identity_text, "kv_dtype", kv, sizeof kv);
    (void)snprintf(out, out_bytes, "%s kv=%s weights=%s", architecture, kv, weights);
    return out;
}

void firni_cache_hex_text(const firn_digest *digest, char out[2 * FIRN_DIGEST_BYTES + 1])
{
    for (size_t i = 0; i < FIRN_DIGEST_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", (unsigned)digest->bytes[i]);
    }
}

json_t *firni_cache_namespace_json(const char *ns)
{
    json_t *text = json_string(ns);
    return text != NULL ? text : json_null();
}

int firni_cache_print_json(const firni_cache_view *view, json_t *value)
{
    const bool failed = value == NULL || json_dumpf(value, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF;
    json_decref(value);
    return failed ? firni_cmd_fail(view->self, "cannot write the result") : 0;
}
