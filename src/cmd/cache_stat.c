/*
 * firn cache stat: totals, and what each model and namespace holds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_listing.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"
#include "model/packed_file.h"

static firni_listing_group totals_of(const firni_listing *listing)
{
    firni_listing_group sum = { 0 };
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        const firni_listing_group *group = &listing->groups[i];
        sum.n_records += group->n_records;
        sum.n_quarantined += group->n_quarantined;
        sum.n_prefixes += group->n_prefixes;
        sum.n_checkpoints += group->n_checkpoints;
        sum.n_bytes += group->n_bytes;
        sum.n_demoted += group->n_demoted;
        sum.plain_bytes += group->plain_bytes;
        sum.demoted_bytes += group->demoted_bytes;
        sum.n_tokens += group->n_tokens;
    }
    return sum;
}

/* What is kept by name: pins one by one, of the others their number. */
typedef struct names {
    uint64_t now_ns, n_pins, n_sessions, n_objects;
    json_t *pins;   /* NULL: they are printed */
} names;

static bool note_name(void *ctx, const firn_disk_name *name)
{
    names *list = ctx;
    char until[32];
    list->n_sessions += name->kind == FIRN_DISK_NAME_SESSION;
    list->n_objects += name->kind == FIRN_DISK_NAME_OBJECT;
    if (name->until_wall_ns <= list->now_ns) {
        return true; /* not pinned, or not any more */
    }
    list->n_pins++;
    const char *kind = name->kind == FIRN_DISK_NAME_OBJECT ? "object" : "prompt";
    (void)firni_cache_time_text(name->until_wall_ns, until);
    if (list->pins != NULL) {
        (void)json_array_append_new(list->pins,
                                    json_pack("{s:o, s:s, s:o, s:I, s:s}", "name",
                                              name->name != NULL ? firni_cache_namespace_json(name->name) : json_null(),
                                              "kind", kind, "namespace", firni_cache_namespace_json(name->ns), "tokens",
                                              (json_int_t)name->n_tokens, "until", until));
        return true;
    }
    (void)printf("pinned      ");
    if (name->name != NULL) {
        firni_ns_print(name->name);
    } else {
        (void)printf("(encrypted)");
    }
    (void)printf(", namespace ");
    firni_ns_print(name->ns);
    if (name->n_tokens > 0) {
        (void)printf(", %" PRIu32 " tokens", name->n_tokens);
    }
    (void)printf(", %s, until %s\n", kind, until);
    return true;
}

static firn_status read_names(firni_cache_view *view, json_t *pins, names *out, firn_error *err)
{
    *out = (names){ .now_ns = firni_wall_ns(view->env), .pins = pins };
    return firn_disk_visit_names(view->tier, note_name, out, err);
}

static firn_status print_stat(firni_cache_view *view, const firni_listing *listing, firn_error *err)
{
    const firni_listing_group sum = totals_of(listing);
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    char used[FIRNI_SIZE_TEXT_BYTES], budget[FIRNI_SIZE_TEXT_BYTES], data[FIRNI_SIZE_TEXT_BYTES], label[160], when[32];
    (void)printf("directory   %s\n", view->dir);
    (void)printf("on disk     %s of %s, index included\n", firni_cmd_size_text(stats.physical_bytes, used),
                 firni_cmd_size_text(stats.budget_bytes, budget));
    char packed_dir[4096];
    (void)snprintf(packed_dir, sizeof packed_dir, "%s/packed", view->dir);
    const uint64_t packed_bytes = firni_packed_dir_bytes(packed_dir, view->env);
    if (packed_bytes > 0) {
        (void)printf("weights     %s packed, beside that\n", firni_cmd_size_text(packed_bytes, data));
    }
    (void)printf("records     %" PRIu64 " (%s), %" PRIu64 " quarantined\n", sum.n_records,
                 firni_cmd_size_text(sum.n_bytes, data), sum.n_quarantined);
    if (sum.n_demoted > 0) {
        char saved[FIRNI_SIZE_TEXT_BYTES], plain[FIRNI_SIZE_TEXT_BYTES];
        (void)printf("compressed  %" PRIu64 " records, %s of %s saved\n", sum.n_demoted,
                     firni_cmd_size_text(sum.plain_bytes - sum.demoted_bytes, saved),
                     firni_cmd_size_text(sum.plain_bytes, plain));
    }
    (void)printf("prefixes    %" PRIu64 ", %" PRIu64 " tokens, %" PRIu64 " checkpoints\n", sum.n_prefixes, sum.n_tokens,
                 sum.n_checkpoints);
    names kept;
    const firn_status status = read_names(view, NULL, &kept, err);
    (void)printf("by name     %" PRIu64 " pinned, %" PRIu64 " sessions, %" PRIu64 " objects\n", kept.n_pins,
                 kept.n_sessions, kept.n_objects);
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        const firni_listing_group *group = &listing->groups[i];
        if (i == 0 || strcmp(group->identity_text, group[-1].identity_text) != 0) {
            (void)printf("\nidentity    %s\n", firni_cache_identity_label(group->identity_text, label, sizeof label));
        }
        (void)printf("  namespace ");
        firni_ns_print(group->ns);
        (void)printf(": %" PRIu64 " records, %" PRIu64 " prefixes, %" PRIu64 " tokens, %" PRIu64
                     " checkpoints, %s, last used %s\n",
                     group->n_records, group->n_prefixes, group->n_tokens, group->n_checkpoints,
                     firni_cmd_size_text(group->n_bytes, data), firni_cache_time_text(group->last_used_wall_ns, when));
    }
    return status;
}

/* The identity's "name: value" lines as an object: all of them, so that a script can find what differs. */
static json_t *identity_json(const char *text)
{
    json_t *object = json_object();
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *newline = strchr(line, '\n');
        const size_t len = newline != NULL ? (size_t)(newline - line) : strlen(line);
        const char *colon = memchr(line, ':', len);
        if (colon != NULL && (size_t)(colon - line) + 2 <= len) {
            char name[64];
            (void)snprintf(name, sizeof name, "%.*s", (int)(colon - line < 63 ? colon - line : 63), line);
            (void)json_object_set_new(object, name, json_stringn(colon + 2, len - (size_t)(colon - line) - 2));
        }
        line = newline != NULL ? newline + 1 : NULL;
    }
    return object;
}

/* NULL: *err says why. */
static json_t *stat_json(firni_cache_view *view, const firni_listing *listing, firn_error *err)
{
    names kept;
    json_t *pins = json_array();
    if (read_names(view, pins, &kept, err) != FIRN_OK) {
        json_decref(pins);
        return NULL;
    }
    const firni_listing_group sum = totals_of(listing);
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    json_t *groups = json_array();
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        const firni_listing_group *group = &listing->groups[i];
        char when[32];
        json_t *item = json_pack(
            "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "identity", identity_json(group->identity_text),
            "namespace", firni_cache_namespace_json(group->ns), "records", (json_int_t)group->n_records, "quarantined",
            (json_int_t)group->n_quarantined, "prefixes", (json_int_t)group->n_prefixes, "tokens",
            (json_int_t)group->n_tokens, "checkpoints", (json_int_t)group->n_checkpoints, "bytes",
            (json_int_t)group->n_bytes, "last_used", firni_cache_time_text(group->last_used_wall_ns, when));
        (void)json_array_append_new(groups, item);
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "directory",
                     view->dir, "physical_bytes", (json_int_t)stats.physical_bytes, "budget_bytes",
                     (json_int_t)stats.budget_bytes, "records", (json_int_t)sum.n_records, "quarantined",
                     (json_int_t)sum.n_quarantined, "prefixes", (json_int_t)sum.n_prefixes, "tokens",
                     (json_int_t)sum.n_tokens, "checkpoints", (json_int_t)sum.n_checkpoints, "bytes",
                     (json_int_t)sum.n_bytes, "demoted", (json_int_t)sum.n_demoted, "saved_bytes",
                     (json_int_t)(sum.plain_bytes - sum.demoted_bytes), "sessions", (json_int_t)kept.n_sessions,
                     "objects", (json_int_t)kept.n_objects, "pins", pins, "groups", groups);
}

static int show(firni_cache_view *view, void *ctx)
{
    (void)ctx;
    firn_error err = { 0 };
    firni_listing listing;
    if (firni_listing_create(view->tier, view->env, &listing, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    int status = 0;
    json_t *result = view->json ? stat_json(view, &listing, &err) : NULL;
    if (result != NULL) {
        status = firni_cache_print_json(view, result);
    } else if (view->json || print_stat(view, &listing, &err) != FIRN_OK) {
        status = firni_cmd_fail(view->self, "%s", err.message);
    }
    firni_listing_deinit(&listing);
    return status;
}

static int run(const firni_command *self, int argc, char **argv)
{
    firni_cache_view view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) };
    const firni_flag flags[] = { FIRNI_CACHE_FLAGS(view) };
    return firni_cache_run(&view, flags, sizeof flags / sizeof flags[0], argc, argv, show, NULL);
}

const firni_command firni_cache_stat = {
    .name = "cache stat",
    .summary = "totals, and what each model and namespace holds",
    .synopsis = "cache stat [--cache-dir DIR] [--json]",
    .run = run,
};
