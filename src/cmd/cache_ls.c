/*
 * firn cache ls: one line for each stored prefix, checkpoint and object, or for each record. Owns which of them are
 * shown and in which order; cache_listing.c collects them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cache_listing.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"

typedef struct ls_view {
    firni_cache_view cache;
    bool all_records;
    firni_listing listing; /* of the open store */
} ls_view;

static int by_last_use(const void *a, const void *b)
{
    const firni_listing_record *const *x = a, *const *y = b;
    return ((*x)->last_used_wall_ns < (*y)->last_used_wall_ns) - ((*x)->last_used_wall_ns > (*y)->last_used_wall_ns);
}

/* What ls shows, most recently used first; NULL when there is nothing or no memory (*n tells). */
static const firni_listing_record **choose_entries(const ls_view *view, uint32_t *n)
{
    const firni_listing *listing = &view->listing;
    *n = 0;
    for (uint32_t i = 0; i < listing->n_records; i++) {
        *n += view->all_records || !listing->records[i].has_child;
    }
    const firni_listing_record **entries = *n > 0 ? malloc(*n * sizeof *entries) : NULL;
    uint32_t n_chosen = 0;
    for (uint32_t i = 0; entries != NULL && i < listing->n_records; i++) {
        if (view->all_records || !listing->records[i].has_child) {
            entries[n_chosen++] = &listing->records[i];
        }
    }
    if (entries != NULL) {
        qsort(entries, n_chosen, sizeof *entries, by_last_use);
    }
    return entries;
}

/* A line of ls stands for the whole chain that leads to a record of tokens, unless each record is listed; checkpoints
 * and objects always stand for themselves. */
static bool is_whole_chain(const ls_view *view, const firni_listing_record *record)
{
    return !view->all_records && record->kind == FIRN_DISK_TOKENS;
}

/* Chains that share records both count them; stat counts them once. */
static uint64_t entry_bytes(const ls_view *view, const firni_listing_record *record)
{
    return is_whole_chain(view, record) ? firni_listing_chain_bytes(&view->listing, record) : record->n_bytes;
}

static uint32_t entry_first_token(const ls_view *view, const firni_listing_record *record)
{
    return is_whole_chain(view, record) ? 0 : record->first_token;
}

/* The count that the record is of, or the range of tokens that it holds. */
static const char *tokens_text(const ls_view *view, const firni_listing_record *record, char out[32])
{
    const uint32_t end = record->first_token + record->n_tokens;
    if (record->kind == FIRN_DISK_TOKENS) {
        (void)snprintf(out, 32, "%" PRIu32 "..%" PRIu32, entry_first_token(view, record), end);
    } else {
        (void)snprintf(out, 32, "at %" PRIu32, end);
    }
    return out;
}

/* How many layers of each family there is state of. */
static const char *families_text(const firni_listing_record *record, char out[64])
{
    if (record->kind == FIRN_DISK_OBJECT) {
        (void)snprintf(out, 64, "attachments");
    } else {
        (void)snprintf(out, 64, "full %" PRIu32 " window %" PRIu32 " fixed %" PRIu32, record->n_full, record->n_window,
                       record->n_fixed);
    }
    return out;
}

static const char *kind_name(firn_disk_kind kind)
{
    static const char *const names[] = { "tokens", "checkpoint", "object" };
    return names[kind];
}

static void print_entries(const ls_view *view, const firni_listing_record *const *entries, uint32_t n)
{
    char hex[2 * FIRN_DIGEST_BYTES + 1], when[32], size[FIRNI_SIZE_TEXT_BYTES], label[160], tokens[32], families[64];
    (void)printf("%-12s  %-15s  %10s  %-26s  %-20s  %s\n", "DIGEST", "TOKENS", "SIZE", "LAYERS", "LAST USED",
                 "NAMESPACE, IDENTITY");
    for (uint32_t i = 0; i < n; i++) {
        const firni_listing_record *record = entries[i];
        const firni_listing_group *group = &view->listing.groups[record->group];
        firni_cache_hex_text(&record->digest, hex);
        (void)printf("%.12s  %-15s  %10s  %-26s  %-20s  ", hex, tokens_text(view, record, tokens),
                     firni_cmd_size_text(entry_bytes(view, record), size), families_text(record, families),
                     firni_cache_time_text(record->last_used_wall_ns, when));
        firni_ns_print(group->ns);
        (void)printf("  %s%s\n", firni_cache_identity_label(group->identity_text, label, sizeof label),
                     record->quarantined ? "  QUARANTINED" : "");
    }
}

static json_t *entries_json(const ls_view *view, const firni_listing_record *const *entries, uint32_t n)
{
    json_t *array = json_array();
    char hex[2 * FIRN_DIGEST_BYTES + 1], when[32], label[160];
    for (uint32_t i = 0; i < n; i++) {
        const firni_listing_record *record = entries[i];
        const firni_listing_group *group = &view->listing.groups[record->group];
        firni_cache_hex_text(&record->digest, hex);
        json_t *item = json_pack(
            "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:s, s:b}", "digest", hex, "kind",
            kind_name(record->kind), "first_token", (json_int_t)entry_first_token(view, record), "end_token",
            (json_int_t)record->first_token + record->n_tokens, "full_layers", (json_int_t)record->n_full,
            "window_layers", (json_int_t)record->n_window, "fixed_layers", (json_int_t)record->n_fixed, "bytes",
            (json_int_t)entry_bytes(view, record), "last_used", firni_cache_time_text(record->last_used_wall_ns, when),
            "namespace", firni_cache_namespace_json(group->ns), "identity",
            firni_cache_identity_label(group->identity_text, label, sizeof label), "quarantined",
            (int)record->quarantined);
        (void)json_array_append_new(array, item);
    }
    return array;
}

static int show_entries(const ls_view *view)
{
    uint32_t n;
    const firni_listing_record **entries = choose_entries(view, &n);
    if (entries == NULL && n > 0) {
        return firni_cmd_fail(view->cache.self, "no memory to sort %" PRIu32 " entries", n);
    }
    int status = 0;
    if (view->cache.json) {
        status = firni_cache_print_json(&view->cache, entries_json(view, entries, n));
    } else {
        print_entries(view, entries, n);
    }
    free(entries);
    return status;
}

static int show(firni_cache_view *cache, void *ctx)
{
    ls_view *view = ctx;
    firn_error err = { 0 };
    if (firni_listing_create(cache->tier, cache->env, &view->listing, &err) != FIRN_OK) {
        return firni_cmd_fail(cache->self, "%s", err.message);
    }
    const int status = show_entries(view);
    firni_listing_deinit(&view->listing);
    return status;
}

static int run(const firni_command *self, int argc, char **argv)
{
    ls_view view = { .cache = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) } };
    const firni_flag flags[] = {
        FIRNI_CACHE_FLAGS(view.cache),
        { .name = "records", .kind = FIRNI_FLAG_BOOL, .target = &view.all_records,
          .help = "each record, not each prefix" },
    };
    return firni_cache_run(&view.cache, flags, sizeof flags / sizeof flags[0], argc, argv, show, &view);
}

const firni_command firni_cache_ls = {
    .name = "cache ls",
    .summary = "one line for each stored prefix and checkpoint, most recently used first",
    .synopsis = "cache ls [--records] [--cache-dir DIR] [--json]",
    .details = "A line stands for the whole chain of records that leads to its end, with the number of layers of each\n"
               "family whose state it ends with. Chains that share records both count them.",
    .run = run,
};
