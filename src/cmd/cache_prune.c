/*
 * firn cache prune: removes what is old, too much, or of a namespace or model that is not wanted any more. Owns the
 * flags; the choice is firn_disk_prune()'s.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/base_impl.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"

typedef struct prune_options {
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    firni_cache_view view;
    firn_disk_prune_options prune;
    uint64_t older_ns;
} prune_options;

static int prune(firni_cache_view *view, void *ctx)
{
    const prune_options *options = ctx;
    firn_error err = { 0 };
    firn_disk_prune_report report;
    if (firn_disk_prune(view->tier, &options->prune, &report, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    if (view->json) {
        return firni_cache_print_json(
            view, json_pack("{s:s, s:b, s:I, s:I, s:I, s:I}", "directory", view->dir, "dry_run",
                            (int)options->prune.dry_run, "records", (json_int_t)report.n_records, "bytes",
                            (json_int_t)report.n_bytes, "pinned", (json_int_t)report.n_pinned, "physical_bytes",
                            (json_int_t)stats.physical_bytes));
    }
    char gone[FIRNI_SIZE_TEXT_BYTES], left[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("%s: %s %" PRIu64 " records, %s; %" PRIu64 " stay because they are pinned; %s on disk\n", view->dir,
                 options->prune.dry_run ? "would remove" : "removed", report.n_records,
                 firni_cmd_size_text(report.n_bytes, gone), report.n_pinned,
                 firni_cmd_size_text(stats.physical_bytes, left));
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    prune_options options = { .view = { .self = self, .env = env, .writes = true } };
    const firni_flag flags[] = {
        FIRNI_CACHE_FLAGS(options.view),
        { .name = "dry-run", .kind = FIRNI_FLAG_BOOL, .target = &options.prune.dry_run,
          .help = "only say what would go" },
        { .name = "older", .kind = FIRNI_FLAG_SECONDS, .target = &options.older_ns, .value_name = "TIME",
          .help = "what was not used for this long, e.g. 30d" },
        { .name = "to", .kind = FIRNI_FLAG_BYTES, .target = &options.prune.to_bytes, .value_name = "BYTES",
          .help = "the oldest, until no more than this is on disk, e.g. 8G" },
        { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &options.prune.ns, .value_name = "NS",
          .help = "only of this namespace" },
        { .name = "model-identity", .kind = FIRNI_FLAG_STRING, .target = &options.prune.identity_part,
          .value_name = "TEXT", .help = "only of models whose identity contains this (firn cache stat shows them)" },
    };
    bool done = false;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, NULL, &done);
    if (!done) {
        status = firni_ns_flag(self, &options.prune.ns, options.ns);
    }
    if (done || status != 0) {
        return status;
    }
    if (options.older_ns == 0 && options.prune.to_bytes == 0 && options.prune.ns == NULL &&
        options.prune.identity_part == NULL) {
        return firni_cmd_usage(self, "say what is to go: --older, --to, --namespace or --model-identity");
    }
    const uint64_t now_ns = firni_wall_ns(env);
    if (options.older_ns >= now_ns) {
        return firni_cmd_usage(self, "--older: that is before 1970");
    }
    options.prune.unused_since_wall_ns = options.older_ns > 0 ? now_ns - options.older_ns : 0;
    return firni_cache_each_store(&options.view, prune, &options);
}

const firni_command firni_cache_prune = {
    .name = "cache prune",
    .summary = "remove what is old, too much, or of a namespace or model",
    .synopsis = "cache prune [--dry-run] [--older TIME] [--to BYTES] [--namespace NS] [--model-identity TEXT]",
    .details = "All that is said has to be true of what goes. The lowest priority goes first, then the oldest; what\n"
               "is pinned stays. Refused while a server is using the directory.",
    .run = run,
};
