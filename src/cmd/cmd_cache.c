/*
 * firn cache: looks into a cache directory, or empties it, without a model. Owns the output; cache_listing.c collects
 * what is printed. Whoever only looks opens the directory read-only, so that a running server is not disturbed; nothing
 * is created by looking.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <jansson.h>

#include "base/base_impl.h"
#include "cmd/cache_files.h"
#include "cmd/cache_listing.h"
#include "cmd/stack_draft.h"

/* More than any directory holds, and no more than an index can map. */
#define WIPE_BUDGET_BYTES (UINT64_C(1) << 40)

typedef struct cache_view {
    const firni_command *self;
    const char *dir;
    bool json, all_records;
    uint64_t budget_bytes;
    firn_tier *tier;
    firni_listing listing;
    const firn_env *env;
} cache_view;

/* ---- text ------------------------------------------------------------------------------------------------------- */

/* UTC in ISO 8601: sorts as text and means the same on every machine that shares a directory. */
static const char *time_text(uint64_t wall_ns, char out[32])
{
    const time_t seconds = (time_t)(wall_ns / 1000000000u);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) == NULL || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        (void)snprintf(out, 32, "?");
    }
    return out;
}

/* What tells a person which model it is, in one line. */
static const char *identity_label(const char *identity_text, char *out, size_t out_bytes)
{
    char architecture[64] = "?", weights[13] = "?", kv[16] = "?";
    (void)firni_identity_field(identity_text, "architecture", architecture, sizeof architecture);
    (void)firni_identity_field(identity_text, "weights", weights, sizeof weights);
    (void)firni_identity_field(identity_text, "kv_dtype", kv, sizeof kv);
    (void)snprintf(out, out_bytes, "%s kv=%s weights=%s", architecture, kv, weights);
    return out;
}

/* A namespace may hold anything; a terminal should not act on it. */
static void print_namespace(const char *ns)
{
    (void)putchar('"');
    for (; *ns != '\0'; ns++) {
        const unsigned char c = (unsigned char)*ns;
        if (c < 0x20 || c == 0x7F) {
            (void)printf("\\x%02x", (unsigned)c);
        } else {
            (void)putchar(c);
        }
    }
    (void)putchar('"');
}

static void hex_text(const firn_digest *digest, char out[2 * FIRN_DIGEST_BYTES + 1])
{
    for (size_t i = 0; i < FIRN_DIGEST_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", (unsigned)digest->bytes[i]);
    }
}

/* ---- stat ------------------------------------------------------------------------------------------------------- */

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
        sum.n_tokens += group->n_tokens;
    }
    return sum;
}

static void print_stat(const cache_view *view)
{
    const firni_listing *listing = &view->listing;
    const firni_listing_group sum = totals_of(listing);
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    char used[FIRNI_SIZE_TEXT_BYTES], budget[FIRNI_SIZE_TEXT_BYTES], data[FIRNI_SIZE_TEXT_BYTES], label[160], when[32];
    (void)printf("directory   %s\n", view->dir);
    (void)printf("on disk     %s of %s, index included\n", firni_cmd_size_text(stats.physical_bytes, used),
                 firni_cmd_size_text(stats.budget_bytes, budget));
    (void)printf("records     %" PRIu64 " (%s), %" PRIu64 " quarantined\n", sum.n_records,
                 firni_cmd_size_text(sum.n_bytes, data), sum.n_quarantined);
    (void)printf("prefixes    %" PRIu64 ", %" PRIu64 " tokens, %" PRIu64 " checkpoints\n", sum.n_prefixes, sum.n_tokens,
                 sum.n_checkpoints);
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        const firni_listing_group *group = &listing->groups[i];
        if (i == 0 || strcmp(group->identity_text, group[-1].identity_text) != 0) {
            (void)printf("\nidentity    %s\n", identity_label(group->identity_text, label, sizeof label));
        }
        (void)printf("  namespace ");
        print_namespace(group->ns);
        (void)printf(": %" PRIu64 " records, %" PRIu64 " prefixes, %" PRIu64 " tokens, %" PRIu64
                     " checkpoints, %s, last used %s\n",
                     group->n_records, group->n_prefixes, group->n_tokens, group->n_checkpoints,
                     firni_cmd_size_text(group->n_bytes, data), time_text(group->last_used_wall_ns, when));
    }
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

/* A namespace that is no UTF-8 cannot be a JSON string; it is null then. */
static json_t *namespace_json(const char *ns)
{
    json_t *text = json_string(ns);
    return text != NULL ? text : json_null();
}

static json_t *stat_json(const cache_view *view)
{
    const firni_listing *listing = &view->listing;
    const firni_listing_group sum = totals_of(listing);
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    json_t *groups = json_array();
    for (uint32_t i = 0; i < listing->n_groups; i++) {
        const firni_listing_group *group = &listing->groups[i];
        char when[32];
        (void)json_array_append_new(
            groups, json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "identity",
                              identity_json(group->identity_text), "namespace", namespace_json(group->ns), "records",
                              (json_int_t)group->n_records, "quarantined", (json_int_t)group->n_quarantined, "prefixes",
                              (json_int_t)group->n_prefixes, "tokens", (json_int_t)group->n_tokens, "checkpoints",
                              (json_int_t)group->n_checkpoints, "bytes", (json_int_t)group->n_bytes, "last_used",
                              time_text(group->last_used_wall_ns, when)));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "directory", view->dir, "physical_bytes",
                     (json_int_t)stats.physical_bytes, "budget_bytes", (json_int_t)stats.budget_bytes, "records",
                     (json_int_t)sum.n_records, "quarantined", (json_int_t)sum.n_quarantined, "prefixes",
                     (json_int_t)sum.n_prefixes, "tokens", (json_int_t)sum.n_tokens, "checkpoints",
                     (json_int_t)sum.n_checkpoints, "bytes", (json_int_t)sum.n_bytes, "groups", groups);
}

/* ---- ls --------------------------------------------------------------------------------------------------------- */

static int by_last_use(const void *a, const void *b)
{
    const firni_listing_record *const *x = a, *const *y = b;
    return ((*x)->last_used_wall_ns < (*y)->last_used_wall_ns) - ((*x)->last_used_wall_ns > (*y)->last_used_wall_ns);
}

/* What ls shows, most recently used first; NULL when there is nothing or no memory (*n tells). */
static const firni_listing_record **choose_entries(const cache_view *view, uint32_t *n)
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
static bool is_whole_chain(const cache_view *view, const firni_listing_record *record)
{
    return !view->all_records && record->kind == FIRN_DISK_TOKENS;
}

/* Chains that share records both count them; stat counts them once. */
static uint64_t entry_bytes(const cache_view *view, const firni_listing_record *record)
{
    return is_whole_chain(view, record) ? firni_listing_chain_bytes(&view->listing, record) : record->n_bytes;
}

static uint32_t entry_first_token(const cache_view *view, const firni_listing_record *record)
{
    return is_whole_chain(view, record) ? 0 : record->first_token;
}

/* The count that the record is of, or the range of tokens that it holds. */
static const char *tokens_text(const cache_view *view, const firni_listing_record *record, char out[32])
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

static void print_entries(const cache_view *view, const firni_listing_record *const *entries, uint32_t n)
{
    char hex[2 * FIRN_DIGEST_BYTES + 1], when[32], size[FIRNI_SIZE_TEXT_BYTES], label[160], tokens[32], families[64];
    (void)printf("%-12s  %-15s  %10s  %-26s  %-20s  %s\n", "DIGEST", "TOKENS", "SIZE", "LAYERS", "LAST USED",
                 "NAMESPACE, IDENTITY");
    for (uint32_t i = 0; i < n; i++) {
        const firni_listing_record *record = entries[i];
        const firni_listing_group *group = &view->listing.groups[record->group];
        hex_text(&record->digest, hex);
        (void)printf("%.12s  %-15s  %10s  %-26s  %-20s  ", hex, tokens_text(view, record, tokens),
                     firni_cmd_size_text(entry_bytes(view, record), size), families_text(record, families),
                     time_text(record->last_used_wall_ns, when));
        print_namespace(group->ns);
        (void)printf("  %s%s\n", identity_label(group->identity_text, label, sizeof label),
                     record->quarantined ? "  QUARANTINED" : "");
    }
}

static json_t *entries_json(const cache_view *view, const firni_listing_record *const *entries, uint32_t n)
{
    json_t *array = json_array();
    char hex[2 * FIRN_DIGEST_BYTES + 1], when[32], label[160];
    for (uint32_t i = 0; i < n; i++) {
        const firni_listing_record *record = entries[i];
        const firni_listing_group *group = &view->listing.groups[record->group];
        hex_text(&record->digest, hex);
        (void)json_array_append_new(
            array, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:s, s:b}", "digest", hex, "kind",
                             kind_name(record->kind), "first_token", (json_int_t)entry_first_token(view, record),
                             "end_token", (json_int_t)record->first_token + record->n_tokens, "full_layers",
                             (json_int_t)record->n_full, "window_layers", (json_int_t)record->n_window, "fixed_layers",
                             (json_int_t)record->n_fixed, "bytes", (json_int_t)entry_bytes(view, record), "last_used",
                             time_text(record->last_used_wall_ns, when), "namespace", namespace_json(group->ns),
                             "identity", identity_label(group->identity_text, label, sizeof label), "quarantined",
                             (int)record->quarantined));
    }
    return array;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int print_json(const cache_view *view, json_t *value)
{
    const bool failed = value == NULL || json_dumpf(value, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF;
    json_decref(value);
    return failed ? firni_cmd_fail(view->self, "cannot write the result") : 0;
}

static int show_stat(cache_view *view)
{
    if (view->json) {
        return print_json(view, stat_json(view));
    }
    print_stat(view);
    return 0;
}

static int show_entries(cache_view *view)
{
    uint32_t n;
    const firni_listing_record **entries = choose_entries(view, &n);
    if (entries == NULL && n > 0) {
        return firni_cmd_fail(view->self, "no memory to sort %" PRIu32 " entries", n);
    }
    int status = 0;
    if (view->json) {
        status = print_json(view, entries_json(view, entries, n));
    } else {
        print_entries(view, entries, n);
    }
    free(entries);
    return status;
}

static int verify(cache_view *view)
{
    firn_error err = { 0 };
    uint64_t n_good = 0, n_bad = 0;
    if (firn_disk_verify(view->tier, &n_good, &n_bad, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    if (view->json) {
        const int status =
            print_json(view, json_pack("{s:I, s:I}", "good", (json_int_t)n_good, "bad", (json_int_t)n_bad));
        return status != 0 ? status : n_bad > 0;
    }
    (void)printf("%" PRIu64 " records are good, %" PRIu64 " are bad\n", n_good, n_bad);
    return n_bad > 0;
}

/* Under the writer's lock, so that no server loses its files while it runs. */
static int wipe(const cache_view *view)
{
    firn_tier_stats stats;
    firn_tier_get_stats(view->tier, &stats);
    if (!firni_cache_remove_files(view->dir)) {
        return firni_cmd_fail(view->self, "not everything in %s could be removed: %s", view->dir, strerror(errno));
    }
    char size[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("removed %" PRIu64 " records, %s\n", stats.n_records, firni_cmd_size_text(stats.physical_bytes, size));
    return 0;
}

/* Opening would create what is missing, so whoever mistypes a path would look at an empty cache. */
static int check_directory(const cache_view *view)
{
    struct stat info;
    if (stat(view->dir, &info) != 0) {
        return firni_cmd_fail(view->self, "%s: %s", view->dir, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return firni_cmd_fail(view->self, "%s is not a directory", view->dir);
    }
    const size_t n_bytes = strlen(view->dir) + sizeof "/index";
    char *index = malloc(n_bytes);
    if (index == NULL) {
        return firni_cmd_fail(view->self, "no memory");
    }
    (void)snprintf(index, n_bytes, "%s/index", view->dir);
    const bool has_index = stat(index, &info) == 0;
    free(index);
    return has_index ? 0 : firni_cmd_fail(view->self, "%s holds no Firn cache", view->dir);
}

/* Opens the store as gently as the verb allows, does it, closes the store. */
static int execute(cache_view *view, const char *what)
{
    firn_error err = { 0 };
    const bool is_wipe = strcmp(what, "wipe") == 0;
    /* A writer enforces its budget when it opens: to empty the store, there is no point in evicting first. */
    const firn_disk_options options = {
        .dir = view->dir,
        .read_only = !is_wipe,
        .budget_bytes = is_wipe ? WIPE_BUDGET_BYTES : view->budget_bytes,
    };
    int status = check_directory(view);
    if (status != 0) {
        return status;
    }
    if (firn_disk_open(&options, view->env, &view->tier, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    if (is_wipe) {
        status = wipe(view);
    } else if (strcmp(what, "verify") == 0) {
        status = verify(view);
    } else if (firni_listing_create(view->tier, view->env, &view->listing, &err) != FIRN_OK) {
        status = firni_cmd_fail(view->self, "%s", err.message);
    } else {
        status = strcmp(what, "stat") == 0 ? show_stat(view) : show_entries(view);
    }
    firni_listing_deinit(&view->listing);
    firn_tier_destroy(view->tier);
    return status;
}

/* The directory, and the drafter's store in it, if there is one: what is left there would outlive a wipe. */
static int execute_all(cache_view *view, const char *what)
{
    int status = execute(view, what);
    char *draft_dir = status == 0 ? firni_stack_draft_dir(view->env, view->dir) : NULL;
    struct stat info;
    if (draft_dir != NULL && stat(draft_dir, &info) == 0) {
        view->dir = draft_dir;
        view->listing = (firni_listing){ 0 };
        status = execute(view, what);
    }
    firni_free(view->env, draft_dir);
    return status;
}

static bool is_verb(const char *word)
{
    static const char *const verbs[] = { "stat", "ls", "verify", "wipe" };
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(word, verbs[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int run(const firni_command *self, int argc, char **argv)
{
    cache_view view = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) };
    const firni_flag flags[] = {
        { .name = "cache-dir", .kind = FIRNI_FLAG_STRING, .target = &view.dir, .value_name = "DIR",
          .help = "the directory (default: the one that serve and run use)" },
        { .name = "disk-budget", .kind = FIRNI_FLAG_BYTES, .target = &view.budget_bytes, .value_name = "BYTES",
          .help = "budget to compare with: what serve is given (0: 16G)" },
        { .name = "records", .kind = FIRNI_FLAG_BOOL, .target = &view.all_records,
          .help = "ls: each record, not each prefix" },
        { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &view.json, .help = "print JSON" },
    };
    const char *what = NULL;
    uint32_t n_positional = 0;
    bool done = false;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &what, 1, &n_positional,
                                   &done);
    if (done) {
        return status;
    }
    if (what == NULL || !is_verb(what)) {
        return firni_cmd_usage(self, "say what to do: stat, ls, verify or wipe");
    }
    char *default_dir = view.dir == NULL ? firni_stack_default_cache_dir(view.env) : NULL;
    if (view.dir == NULL && default_dir == NULL) {
        return firni_cmd_usage(self, "--cache-dir is needed: neither XDG_CACHE_HOME nor HOME is set");
    }
    view.dir = view.dir != NULL ? view.dir : default_dir;
    status = execute_all(&view, what);
    firni_free(view.env, default_dir);
    return status;
}

const firni_command firni_cmd_cache = {
    .name = "cache",
    .summary = "look into a cache directory, or empty it",
    .synopsis = "cache stat|ls|verify|wipe [--cache-dir DIR] [flags]",
    .details = "  stat     totals, and what each model and namespace holds\n"
               "  ls       one line for each stored prefix and checkpoint, most recently used first, with the\n"
               "           number of layers of each family whose state it ends with\n"
               "  verify   read every record and check it; exit status 1 when one is bad\n"
               "  wipe     delete all stored state; refused while a server is using the directory\n"
               "\n"
               "All but wipe only read; a server may be using the directory. What a drafter (--draft MODEL) has read is\n"
               "a store of its own in DIR/draft: it follows, as a second document with --json.",
    .run = run,
};
