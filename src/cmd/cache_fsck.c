/*
 * firn cache fsck: a new index from the segments and the ledger of a cache directory. Owns the output; what is done is
 * firn_disk_fsck.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cmd/cache_key.h"
#include "cmd/cache_view.h"

static int fsck(firni_cache_view *view, void *ctx)
{
    firn_disk_fsck_report report;
    firn_error err = { 0 };
    firni_cache_key key;
    if (firni_cache_key_read(view->key_file, &key, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    firn_disk_fsck_options options = *(const firn_disk_fsck_options *)ctx;
    options.key = firni_cache_key_bytes(&key);
    const firn_status status = firn_disk_fsck(view->dir, &options, view->env, &report, &err);
    firni_cache_key_forget(&key);
    if (status != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    if (view->json) {
        return firni_cache_print_json(
            view, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I}", "segments",
                            (json_int_t)report.n_segments, "records", (json_int_t)report.n_records, "bytes",
                            (json_int_t)report.record_bytes, "damaged", (json_int_t)report.n_damaged, "orphans",
                            (json_int_t)report.n_orphans, "superseded", (json_int_t)report.n_superseded, "freed_bytes",
                            (json_int_t)report.freed_bytes, "ledger", (int)report.has_ledger, "pins",
                            (json_int_t)report.n_pins, "sessions", (json_int_t)report.n_sessions, "keys",
                            (json_int_t)report.n_keys, "names_lost", (json_int_t)report.n_names_lost, "ledger_damaged",
                            (json_int_t)report.n_ledger_damaged));
    }
    char kept[FIRNI_SIZE_TEXT_BYTES], freed[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("made a new index of %s\n", view->dir);
    (void)printf("records     %" PRIu64 " (%s) in %" PRIu64 " segments\n", report.n_records,
                 firni_cmd_size_text(report.record_bytes, kept), report.n_segments);
    (void)printf("left out    %" PRIu64 " damaged, %" PRIu64 " without the records they continue, %" PRIu64
                 " superseded; %s given back\n", report.n_damaged, report.n_orphans, report.n_superseded,
                 firni_cmd_size_text(report.freed_bytes, freed));
    if (report.has_ledger) {
        (void)printf("by name     %" PRIu64 " pins, %" PRIu64 " sessions, %" PRIu64 " objects; lost: %" PRIu64
                     " whose tokens are not all stored, %" PRIu64 " damaged lines\n", report.n_pins, report.n_sessions,
                     report.n_keys, report.n_names_lost, report.n_ledger_damaged);
    } else {
        (void)printf(
            "by name     there is no ledger: pins, sessions, the list of objects, and priorities that were raised "
            "are lost, if there were any\n");
    }
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    firni_cache_view view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN), .writes = true };
    firn_disk_fsck_options options = { 0 };
    const firni_flag flags[] = {
        FIRNI_CACHE_FLAGS(view),
        { .name = "quick", .kind = FIRNI_FLAG_BOOL, .target = &options.headers_only,
          .help = "believe the records' headers: sections are verified when they are restored" },
    };
    bool done = false;
    const int status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, NULL, &done);
    return done ? status : firni_cache_each_directory(&view, fsck, &options);
}

const firni_command firni_cache_fsck = {
    .name = "cache fsck",
    .summary = "make the index anew from the records, when it is lost or damaged; refused while a server runs",
    .synopsis = "cache fsck [--cache-dir DIR] [--quick]",
    .details = "Damaged records are left out, and their room is given back. A run that is interrupted can be repeated.",
    .run = run,
};
