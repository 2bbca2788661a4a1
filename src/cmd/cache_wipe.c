/*
 * firn cache wipe: deletes all stored state.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cache_files.h"
#include "cmd/cache_view.h"

/* Under the writer's lock, so that no server loses its files while it runs. */
static int wipe(firni_cache_view *view, void *ctx)
{
    (void)ctx;
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    if (!firni_cache_remove_files(view->dir)) {
        return firni_cmd_fail(view->self, "not everything in %s could be removed: %s", view->dir, strerror(errno));
    }
    char size[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("removed %" PRIu64 " records, %s\n", stats.n_records, firni_cmd_size_text(stats.physical_bytes, size));
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    firni_cache_view view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN), .writes = true };
    const firni_flag flags[] = { FIRNI_CACHE_FLAGS(view) };
    bool done = false;
    const int status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, NULL, &done);
    return done ? status : firni_cache_each_store(&view, wipe, NULL);
}

const firni_command firni_cache_wipe = {
    .name = "cache wipe",
    .summary = "delete all stored state; refused while a server is using the directory",
    .synopsis = "cache wipe [--cache-dir DIR]",
    .run = run,
};
