/*
 * firn cache wipe: deletes all stored state, or that of one namespace.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cache_files.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"
#include "model/packed_file.h"

typedef struct wipe_options {
    firni_cache_view view;
    const char *ns;           /* NULL: everything */
    char stored_ns[FIRN_NAMESPACE_BYTES_MAX + 1];
} wipe_options;

static int wipe_namespace(firni_cache_view *view, const char *ns)
{
    firn_error err = { 0 };
    firn_disk_prune_report report;
    const firn_disk_prune_options prune = { .ns = ns, .wipe = true };
    if (firn_disk_prune(view->tier, &prune, &report, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    char size[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("removed %" PRIu64 " records of namespace ", report.n_records);
    firni_ns_print(ns);
    (void)printf(", %s\n", firni_cmd_size_text(report.n_bytes, size));
    return 0;
}

/* Weights are no state, but whoever empties a cache wants its room back; they come again with the next start. */
static bool remove_packed(const firni_cache_view *view)
{
    char dir[4096];
    const int len = snprintf(dir, sizeof dir, "%s/packed", view->dir);
    return len > 0 && (size_t)len < sizeof dir && firni_packed_dir_remove(dir, view->env);
}

/* Under the writer's lock, so that no server loses its files while it runs. */
static int wipe(firni_cache_view *view, void *ctx)
{
    const wipe_options *options = ctx;
    if (options->ns != NULL) {
        return wipe_namespace(view, options->ns);
    }
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    if (!firni_cache_remove_files(view->dir) || !remove_packed(view)) {
        return firni_cmd_fail(view->self, "not everything in %s could be removed: %s", view->dir, strerror(errno));
    }
    char size[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("removed %" PRIu64 " records, %s\n", stats.n_records, firni_cmd_size_text(stats.physical_bytes, size));
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    wipe_options options = { .view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN), .writes = true } };
    const firni_flag flags[] = {
        FIRNI_CACHE_FLAGS(options.view),
        { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &options.ns, .value_name = "NS",
          .help = "only what this namespace stores, its pins and sessions included (default: everything)" },
    };
    bool done = false;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, NULL, &done);
    if (!done) {
        status = firni_ns_flag(self, &options.ns, options.stored_ns);
    }
    return done || status != 0 ? status : firni_cache_each_store(&options.view, wipe, &options);
}

const firni_command firni_cache_wipe = {
    .name = "cache wipe",
    .summary = "delete all stored state, or that of a namespace; refused while a server is using it",
    .synopsis = "cache wipe [--namespace NS] [--cache-dir DIR]",
    .details = "Without a namespace packed weights go, too. What namespaces below a named one depend on stays: wipe\n"
               "those first.",
    .run = run,
};
