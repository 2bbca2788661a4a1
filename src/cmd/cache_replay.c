/*
 * firn cache replay: how often a cache of a given size would have answered a recorded trace, and what it would have
 * written. Owns the flags and the tables; see replay_impl.h for the rest.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_view.h"
#include "cmd/replay_impl.h"
#include "cmd/replay_plot.h"

#define CAPACITIES_MAX 32u

typedef struct replay {
    const firni_command *self;
    firni_replay_options options;
    const char *capacity, *families, *plot;
    uint32_t n_users;
    uint64_t pause_ns;
    bool json;
    firni_replay_trace trace;
    firni_replay_event *events;
    firni_replay_writes writes;
    uint32_t n_capacities;
    uint64_t capacity_blocks[CAPACITIES_MAX];
    firni_replay_result results[CAPACITIES_MAX];
    firni_replay_result unlimited;
    firni_replay_keep keeps[FIRNI_REPLAY_KEEPS];
} replay;

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* What writing blocks once, as the disk tier does, has written for each unique one when nothing had to leave. */
static double delta_of(const replay *r)
{
    return share(r->unlimited.written_blocks, r->writes.unique_blocks);
}

/* One item of the list: "500000", "0.5M", "2%". False when it is none of these. */
static bool parse_capacity(const char *text, size_t len, const replay *r, uint64_t *out_blocks)
{
    char item[32];
    if (len == 0 || len >= sizeof item) {
        return false;
    }
    memcpy(item, text, len);
    item[len] = '\0';
    char *end;
    double tokens = strtod(item, &end);
    if (end == item || !(tokens > 0) || tokens > 1e15) {
        return false;
    }
    if (strcmp(end, "%") == 0) {
        if (tokens > 100) {
            return false;
        }
        tokens *= (double)r->writes.unique_blocks * r->trace.block_tokens / 100;
    } else if (strcmp(end, "K") == 0 || strcmp(end, "M") == 0 || strcmp(end, "B") == 0) {
        tokens *= *end == 'K' ? 1e3 : *end == 'M' ? 1e6 : 1e9;
    } else if (*end != '\0') {
        return false;
    }
    const double blocks = floor(tokens / r->trace.block_tokens + 1e-9);
    *out_blocks = blocks < 1 ? 1 : blocks > 1e15 ? (uint64_t)1e15 : (uint64_t)blocks;
    return true;
}

static int parse_capacities(replay *r)
{
    const char *at = r->capacity != NULL ? r->capacity : "2%,5%,10%,20%,40%,100%";
    for (;;) {
        const size_t len = strcspn(at, ",");
        if (r->n_capacities == CAPACITIES_MAX ||
            !parse_capacity(at, len, r, &r->capacity_blocks[r->n_capacities])) {
            return firni_cmd_usage(r->self, "--capacity: \"%.*s\" is no number of tokens (500000, 0.5M) and no share "
                                   "(2%%), or there are more than %u", (int)(len < 40 ? len : 40), at, CAPACITIES_MAX);
        }
        r->n_capacities++;
        if (at[len] == '\0') {
            return 0;
        }
        at += len + 1;
    }
}

/* ---- what is printed --------------------------------------------------------------------------------------------- */

static void print_keeps(const replay *r)
{
    (void)printf("\nlayers with a fixed-size state: checkpoints kept of a conversation, with room for all blocks\n"
                 "  %-34s %12s %14s\n", "KEPT", "OF THE HITS", "CHECKPOINTS");
    for (uint32_t i = 0; i < FIRNI_REPLAY_KEEPS; i++) {
        const firni_replay_keep *keep = &r->keeps[i];
        (void)printf("  %-34s %11.2f%% %14.1f\n", keep->name, 100 * share(keep->hit_blocks, keep->ideal_blocks),
                     keep->n_live);
    }
}

static void print_text(const replay *r)
{
    const double unique = (double)r->writes.unique_blocks, tokens = r->trace.block_tokens;
    (void)printf("%u requests in %u sessions, %u users; %.0f tokens asked for, %.0f different\n", r->trace.n_requests,
                 r->trace.n_sessions, r->trace.has_sessions ? r->n_users : 1, (double)r->trace.n_blocks * tokens,
                 unique * tokens);
    (void)printf("policy %s, admission %s\n\n", r->options.policy != NULL ? r->options.policy : "lru",
                 r->options.admission != NULL ? r->options.admission : "always");
    (void)printf("  %16s %8s %8s %16s\n", "CAPACITY, TOKENS", "SHARE", "HITS", "WRITTEN/UNIQUE");
    for (uint32_t i = 0; i < r->n_capacities; i++) {
        const firni_replay_result *result = &r->results[i];
        (void)printf("  %16.0f %7.1f%% %8.3f %16.2f\n", (double)r->capacity_blocks[i] * tokens,
                     100 * (double)r->capacity_blocks[i] / unique, share(result->hit_blocks, result->asked_blocks),
                     (double)result->written_blocks / unique);
    }
    (void)printf("\nbytes written for each unique byte, with room for all: whole prefix at each request %.1f",
                 (double)r->writes.whole_blocks / unique);
    if (r->trace.has_sessions) {
        (void)printf(", every 10k tokens %.1f", (double)r->writes.stepped_blocks / unique);
    }
    (void)printf(", only what is new %.1f\n", delta_of(r));
    if (r->families != NULL && strcmp(r->families, "recurrent") == 0) {
        print_keeps(r);
    }
}

static int print_json(const replay *r)
{
    const double unique = (double)r->writes.unique_blocks, tokens = r->trace.block_tokens;
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->n_capacities; i++) {
        const firni_replay_result *result = &r->results[i];
        (void)json_array_append_new(
            rows, json_pack("{s:f, s:f, s:f, s:f, s:I}", "capacity_tokens", (double)r->capacity_blocks[i] * tokens,
                            "capacity_share", (double)r->capacity_blocks[i] / unique, "hit_rate",
                            share(result->hit_blocks, result->asked_blocks), "written_per_unique",
                            (double)result->written_blocks / unique, "evicted_blocks",
                            (json_int_t)result->evicted_blocks));
    }
    json_t *keeps = json_array();
    for (uint32_t i = 0; i < FIRNI_REPLAY_KEEPS && r->families != NULL && strcmp(r->families, "recurrent") == 0; i++) {
        const firni_replay_keep *keep = &r->keeps[i];
        (void)json_array_append_new(keeps, json_pack("{s:s, s:f, s:f}", "kept", keep->name, "share_of_hits",
                                                     share(keep->hit_blocks, keep->ideal_blocks), "live",
                                                     keep->n_live));
    }
    const firni_cache_view view = { .self = r->self };
    return firni_cache_print_json(
        &view, json_pack("{s:i, s:i, s:i, s:i, s:s, s:s, s:f, s:f, s:{s:f, s:f, s:f}, s:o, s:o}", "requests",
                         (int)r->trace.n_requests, "sessions", (int)r->trace.n_sessions, "users", (int)r->n_users,
                         "block_tokens", (int)r->trace.block_tokens, "policy",
                         r->options.policy != NULL ? r->options.policy : "lru", "admission",
                         r->options.admission != NULL ? r->options.admission : "always", "asked_tokens",
                         (double)r->trace.n_blocks * tokens, "unique_tokens", unique * tokens, "written_per_unique",
                         "whole", (double)r->writes.whole_blocks / unique, "every_10k",
                         (double)r->writes.stepped_blocks / unique, "delta",
                         delta_of(r), "capacities", rows, "checkpoints", keeps));
}

static int write_plot(const replay *r)
{
    firni_plot_point points[CAPACITIES_MAX];
    for (uint32_t i = 0; i < r->n_capacities; i++) {
        points[i] = (firni_plot_point){ .x = (double)r->capacity_blocks[i] * r->trace.block_tokens,
                                        .hits = share(r->results[i].hit_blocks, r->results[i].asked_blocks),
                                        .writes = share(r->results[i].written_blocks, r->writes.unique_blocks) };
    }
    char title[160];
    (void)snprintf(title, sizeof title, "%u requests, %u users, policy %s, admission %s", r->trace.n_requests,
                   r->trace.has_sessions ? r->n_users : 1, r->options.policy != NULL ? r->options.policy : "lru",
                   r->options.admission != NULL ? r->options.admission : "always");
    firn_error err = { 0 };
    return firni_plot_write(r->plot, title, points, r->n_capacities, &err) == FIRN_OK
               ? 0
               : firni_cmd_fail(r->self, "%s", err.message);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Everything before anything is printed: a trace that turns out bad in the middle leaves no half a table. */
static int simulate(replay *r, const char *path, const firn_env *env)
{
    firn_error err = { 0 };
    if (firni_replay_load(path, env, &r->trace, &err) != FIRN_OK ||
        firni_replay_writes_of(&r->trace, &r->writes, &err) != FIRN_OK) {
        return firni_cmd_fail(r->self, "%s", err.message);
    }
    const int status = parse_capacities(r);
    if (status != 0) {
        return status;
    }
    r->events = firni_replay_interleave(&r->trace, r->n_users, (double)r->pause_ns * 1e-9);
    if (r->events == NULL) {
        return firni_cmd_fail(r->self, "no memory for %u requests", r->trace.n_requests);
    }
    const firni_replay_options unlimited = { .capacity_blocks = UINT64_MAX };
    if (firni_replay_simulate(&r->trace, r->events, &unlimited, &r->unlimited, &err) != FIRN_OK) {
        return firni_cmd_fail(r->self, "%s: %s", path, err.message);
    }
    for (uint32_t i = 0; i < r->n_capacities; i++) {
        r->options.capacity_blocks = r->capacity_blocks[i];
        if (firni_replay_simulate(&r->trace, r->events, &r->options, &r->results[i], &err) != FIRN_OK) {
            return firni_cmd_fail(r->self, "%s: %s", path, err.message);
        }
    }
    if (r->families != NULL && strcmp(r->families, "recurrent") == 0 &&
        firni_replay_checkpoints(&r->trace, r->keeps, &err) != FIRN_OK) {
        return firni_cmd_fail(r->self, "%s", err.message);
    }
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    replay r = { .self = self, .n_users = 8, .pause_ns = UINT64_C(7200000000000) };
    const firni_flag flags[] = {
        { .name = "policy", .kind = FIRNI_FLAG_STRING, .target = &r.options.policy, .value_name = "NAME",
          .help = "what leaves first: lru, or cost (saves least computation per byte) (default: lru)",
          .choices = "lru|cost" },
        { .name = "admission", .kind = FIRNI_FLAG_STRING, .target = &r.options.admission, .value_name = "RULE",
          .help = "what is taken in: always, or second (while starved, what is asked for twice) (default: always)",
          .choices = "always|second" },
        { .name = "capacity", .kind = FIRNI_FLAG_STRING, .target = &r.capacity, .value_name = "LIST",
          .help = "tokens (500000, 0.5M) or shares of all (2%), with commas (default: 2%,5%,10%,20%,40%,100%)" },
        { .name = "users", .kind = FIRNI_FLAG_U32, .target = &r.n_users, .value_name = "N",
          .help = "sessions that run at the same time", .min = 1, .max = 100000 },
        { .name = "pause", .kind = FIRNI_FLAG_SECONDS, .target = &r.pause_ns, .value_name = "TIME",
          .help = "longest pause inside a session: nobody's night is replayed" },
        { .name = "families", .kind = FIRNI_FLAG_STRING, .target = &r.families, .value_name = "WHICH",
          .help = "recurrent: also what different rules for keeping checkpoints would have hit (default: full)",
          .choices = "full|recurrent" },
        { .name = "plot", .kind = FIRNI_FLAG_STRING, .target = &r.plot, .value_name = "FILE.svg",
          .help = "draw hits and writes by capacity" },
        { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &r.json, .help = "print JSON" },
    };
    const char *path = NULL;
    uint32_t n_positional = 0;
    bool done = false;
    int status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &path, 1, &n_positional, &done);
    if (done) {
        return status;
    }
    if (path == NULL) {
        return firni_cmd_usage(self, "name a trace");
    }
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    r.trace.env = env;
    status = simulate(&r, path, env);
    if (status == 0 && r.plot != NULL) {
        status = write_plot(&r);
    }
    if (status == 0 && r.json) {
        status = print_json(&r);
    } else if (status == 0) {
        print_text(&r);
    }
    firni_free(env, r.events);
    firni_replay_unload(&r.trace);
    return status;
}

const firni_command firni_cache_replay = {
    .name = "cache replay",
    .summary = "run the eviction policies over a recorded trace, without a model",
    .synopsis = "cache replay TRACE [flags]",
    .details = "TRACE has a JSON object on each line: a session (\"requests\" with \"t\" in seconds and \"runs\" of\n"
               "block ids) or a single request (\"timestamp\" in milliseconds and \"hash_ids\"). docs/REPLAY.md\n"
               "describes both, and how sessions are interleaved. The policies are those that serve uses.",
    .run = run,
};
