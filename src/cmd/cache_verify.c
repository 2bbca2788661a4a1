/*
 * firn cache verify: reads every record and checks it. Read-only: a bad record is counted; the server that meets it
 * quarantines it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cmd/cache_view.h"

static int verify(firni_cache_view *view, void *ctx)
{
    (void)ctx;
    firn_error err = { 0 };
    uint64_t n_good = 0, n_bad = 0;
    if (firn_disk_verify(view->tier, &n_good, &n_bad, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    if (view->json) {
        const int status =
            firni_cache_print_json(view, json_pack("{s:I, s:I}", "good", (json_int_t)n_good, "bad", (json_int_t)n_bad));
        return status != 0 ? status : n_bad > 0;
    }
    (void)printf("%" PRIu64 " records are good, %" PRIu64 " are bad\n", n_good, n_bad);
    return n_bad > 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    firni_cache_view view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) };
    const firni_flag flags[] = { FIRNI_CACHE_FLAGS(view) };
    return firni_cache_run(&view, flags, sizeof flags / sizeof flags[0], argc, argv, verify, NULL);
}

const firni_command firni_cache_verify = {
    .name = "cache verify",
    .summary = "read every record and check it; exit status 1 when one is bad",
    .synopsis = "cache verify [--cache-dir DIR] [--json]",
    .run = run,
};
