/*
 * Reading of recorded traces, and their interleaving for a number of users. Owns the formats: docs/REPLAY.md. Nothing
 * in a file is trusted: every number is checked against a limit before it is used, and nesting is a stack of bounded
 * depth.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/base_impl.h"
#include "cmd/replay_impl.h"

#define AGENT_BLOCKS_MAX 1048576u      /* of one request */
#define ID_MAX           0x7FFFFFFF
#define TIME_S_MAX       1e9           /* thirty years */
#define NESTING_MAX      16u
#define LINE_BYTES_MAX   ((size_t)1 << 28)

typedef struct reader {
    firni_replay_trace *trace;
    const char *path;
    unsigned long line;
    firn_error *err;
} reader;

static firn_status bad(const reader *r, const char *what)
{
    return firni_fail(r->err, FIRN_ERR_FORMAT, "%s:%lu: %s", r->path, r->line, what);
}

static firn_status no_memory(const reader *r)
{
    return firni_fail(r->err, FIRN_ERR_NO_MEMORY, "%s:%lu: no memory for the trace", r->path, r->line);
}

/* Room for one more element. */
static bool reserve(const firn_env *env, void **array, uint32_t n, uint32_t *capacity, size_t element_bytes)
{
    if (n < *capacity) {
        return true;
    }
    const uint32_t wanted = *capacity == 0 ? 1024 : *capacity * 2;
    void *grown = wanted > *capacity ? firni_grow(env, *array, n, wanted, element_bytes) : NULL;
    if (grown != NULL) {
        *array = grown;
        *capacity = wanted;
    }
    return grown != NULL;
}

/* ---- one request ------------------------------------------------------------------------------------------------- */

/* Adds a run to the request at the end of the table, as part of the run before it where it goes on. */
static firn_status add_run(const reader *r, uint32_t first, uint32_t n_blocks)
{
    firni_replay_trace *trace = r->trace;
    firni_replay_request *request = &trace->requests[trace->n_requests];
    if (n_blocks > AGENT_BLOCKS_MAX - request->n_blocks) {
        return bad(r, "a request has more than 1048576 blocks");
    }
    request->n_blocks += n_blocks;
    firni_replay_run *last = request->n_runs > 0 ? &trace->runs[trace->n_runs - 1] : NULL;
    if (last != NULL && last->first + last->n_blocks == first) {
        last->n_blocks += n_blocks;
        return FIRN_OK;
    }
    void *runs = trace->runs;
    if (!reserve(trace->env, &runs, trace->n_runs, &trace->runs_capacity, sizeof *trace->runs)) {
        return no_memory(r);
    }
    trace->runs = runs;
    trace->runs[trace->n_runs++] = (firni_replay_run){ .first = first, .n_blocks = n_blocks };
    request->n_runs++;
    return FIRN_OK;
}

static int by_first(const void *a, const void *b)
{
    const firni_replay_run *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* An id names its prefix, so it cannot stand twice in one. */
static firn_status check_runs(const reader *r, const firni_replay_request *request)
{
    if (request->n_runs < 2) {
        return FIRN_OK;
    }
    firni_replay_run *sorted = firni_calloc(r->trace->env, request->n_runs, sizeof *sorted);
    if (sorted == NULL) {
        return no_memory(r);
    }
    memcpy(sorted, &r->trace->runs[request->first_run], request->n_runs * sizeof *sorted);
    qsort(sorted, request->n_runs, sizeof *sorted, by_first);
    firn_status status = FIRN_OK;
    for (uint32_t i = 1; i < request->n_runs && status == FIRN_OK; i++) {
        if (sorted[i].first - sorted[i - 1].first < sorted[i - 1].n_blocks) {
            status = bad(r, "a block id stands twice in one request");
        }
    }
    firni_free(r->trace->env, sorted);
    return status;
}

static firn_status begin_request(const reader *r, double at_s)
{
    firni_replay_trace *trace = r->trace;
    void *requests = trace->requests;
    if (!reserve(trace->env, &requests, trace->n_requests, &trace->requests_capacity, sizeof *trace->requests)) {
        return no_memory(r);
    }
    trace->requests = requests;
    trace->requests[trace->n_requests] =
        (firni_replay_request){ .at_s = at_s, .session = trace->n_sessions, .first_run = trace->n_runs };
    return FIRN_OK;
}

static firn_status end_request(const reader *r)
{
    firni_replay_trace *trace = r->trace;
    const firn_status status = check_runs(r, &trace->requests[trace->n_requests]);
    if (status == FIRN_OK) {
        trace->n_blocks += trace->requests[trace->n_requests].n_blocks;
        trace->n_requests++;
    }
    return status;
}

/* A number of the file between 0 and max, or -1. */
static double number_of(const json_t *value, double max)
{
    const double x = json_is_number(value) ? json_number_value(value) : -1;
    return x >= 0 && x <= max ? x : -1;
}

static int64_t whole_of(const json_t *value, int64_t max)
{
    const int64_t x = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    return x >= 0 && x <= max ? x : -1;
}

/* ---- the format of agent sessions -------------------------------------------------------------------------------- */

static firn_status read_runs(const reader *r, const json_t *runs, double at_s)
{
    if (!json_is_array(runs)) {
        return bad(r, "a request has no \"runs\": [[first, count], ...]");
    }
    firn_status status = begin_request(r, at_s);
    for (size_t i = 0; i < json_array_size(runs) && status == FIRN_OK; i++) {
        const json_t *pair = json_array_get(runs, i);
        const int64_t first = whole_of(json_array_get(pair, 0), ID_MAX);
        const int64_t n = whole_of(json_array_get(pair, 1), ID_MAX - (first > 0 ? first : 0));
        if (json_array_size(pair) != 2 || first < 0 || n < 1) {
            return bad(r, "a run is not [first, count] with whole numbers below 2^31");
        }
        status = add_run(r, (uint32_t)first, (uint32_t)n);
    }
    return status == FIRN_OK ? end_request(r) : status;
}

/* A list of requests that is being read; sub-agents are lists in lists, with times of their own. */
typedef struct level {
    const json_t *list;
    size_t next;
    double at_s;
} level;

static firn_status read_session(const reader *r, const json_t *object)
{
    level levels[NESTING_MAX];
    uint32_t n_levels = 1;
    levels[0] = (level){ .list = json_object_get(object, "requests") };
    while (n_levels > 0) {
        level *top = &levels[n_levels - 1];
        if (top->next == json_array_size(top->list)) {
            n_levels--;
            continue;
        }
        const json_t *item = json_array_get(top->list, top->next++);
        const double t = number_of(json_object_get(item, "t"), TIME_S_MAX);
        if (t < 0) {
            return bad(r, "a request has no time \"t\" (seconds, from 0 to 1e9)");
        }
        const json_t *below = json_object_get(item, "requests");
        if (below == NULL) {
            const firn_status status = read_runs(r, json_object_get(item, "runs"), top->at_s + t);
            if (status != FIRN_OK) {
                return status;
            }
        } else if (!json_is_array(below) || n_levels == NESTING_MAX) {
            return bad(r, "\"requests\" is no list, or sub-agents nest too deep");
        } else {
            levels[n_levels++] = (level){ .list = below, .at_s = top->at_s + t };
        }
    }
    return FIRN_OK;
}

/* ---- the format of single requests ------------------------------------------------------------------------------- */

static firn_status read_single(const reader *r, const json_t *object)
{
    const json_t *ids = json_object_get(object, "hash_ids");
    const double at_ms = number_of(json_object_get(object, "timestamp"), TIME_S_MAX * 1000);
    if (!json_is_array(ids) || at_ms < 0) {
        return bad(r, "neither a session (\"requests\") nor a request (\"timestamp\" in ms, \"hash_ids\")");
    }
    firn_status status = begin_request(r, at_ms / 1000);
    for (size_t i = 0; i < json_array_size(ids) && status == FIRN_OK; i++) {
        const int64_t id = whole_of(json_array_get(ids, i), ID_MAX - 1);
        status = id < 0 ? bad(r, "\"hash_ids\" has something that is no whole number below 2^31")
                        : add_run(r, (uint32_t)id, 1);
    }
    return status == FIRN_OK ? end_request(r) : status;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Notes where the next session's requests begin. */
static bool mark_session(firni_replay_trace *trace)
{
    void *marks = trace->first_request;
    if (!reserve(trace->env, &marks, trace->n_sessions, &trace->sessions_capacity, sizeof *trace->first_request)) {
        return false;
    }
    trace->first_request = marks;
    trace->first_request[trace->n_sessions] = trace->n_requests;
    return true;
}

static int by_time(const void *a, const void *b)
{
    const firni_replay_request *x = a, *y = b;
    const int order = (x->at_s > y->at_s) - (x->at_s < y->at_s);
    return order != 0 ? order : (x->first_run > y->first_run) - (x->first_run < y->first_run);
}

static firn_status read_line(const reader *r, const char *text, size_t len)
{
    firni_replay_trace *trace = r->trace;
    json_error_t error;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) {
        return firni_fail(r->err, FIRN_ERR_FORMAT, "%s:%lu:%d: no JSON: %s", r->path, r->line, error.column,
                          error.text);
    }
    const json_t *requests = json_object_get(object, "requests");
    const bool is_session = json_is_array(requests);
    firn_status status = FIRN_OK;
    if (trace->n_requests > 0 && is_session != trace->has_sessions) {
        status = bad(r, "sessions and single requests in one file");
    } else if (is_session) {
        const json_t *size = json_object_get(object, "block_size");
        const int64_t n = size == NULL ? 64 : whole_of(size, 65536);
        trace->has_sessions = true;
        if (n < 1 || (trace->block_tokens != 0 && trace->block_tokens != (uint32_t)n)) {
            status = bad(r, "\"block_size\" is not a whole number from 1 to 65536, or not that of the lines before");
        } else {
            trace->block_tokens = (uint32_t)n;
            status = mark_session(trace) ? read_session(r, object) : no_memory(r);
        }
        if (status == FIRN_OK) {
            const uint32_t first = trace->first_request[trace->n_sessions++];
            if (trace->n_requests > first) {
                qsort(trace->requests + first, trace->n_requests - first, sizeof *trace->requests, by_time);
            }
        }
    } else {
        trace->block_tokens = 512;
        status = read_single(r, object);
    }
    json_decref(object);
    return status;
}

/* Closes the list of sessions; single requests are one. */
static firn_status finish(const reader *r)
{
    firni_replay_trace *trace = r->trace;
    if (trace->n_requests == 0) {
        return firni_fail(r->err, FIRN_ERR_FORMAT, "%s: no request in it", r->path);
    }
    if (!trace->has_sessions) {
        qsort(trace->requests, trace->n_requests, sizeof *trace->requests, by_time);
        const uint32_t n_requests = trace->n_requests;
        trace->n_requests = 0;
        const bool marked = mark_session(trace);
        trace->n_requests = n_requests;
        if (!marked) {
            return no_memory(r);
        }
        trace->n_sessions = 1;
    }
    return mark_session(trace) ? FIRN_OK : no_memory(r);
}

firn_status firni_replay_load(const char *path, const firn_env *env, firni_replay_trace *out, firn_error *err)
{
    *out = (firni_replay_trace){ .env = env };
    reader r = { .trace = out, .path = path, .err = err };
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return firni_fail_os(err, errno, "cannot open the trace %s", path);
    }
    char *line = NULL;
    size_t line_bytes = 0;
    firn_status status = FIRN_OK;
    ssize_t len;
    errno = 0;
    while (status == FIRN_OK && (len = getline(&line, &line_bytes, file)) >= 0) {
        r.line++;
        if ((size_t)len > LINE_BYTES_MAX) {
            status = bad(&r, "a line of more than 256 MiB");
        } else if (strspn(line, " \t\r\n") < (size_t)len) {
            status = read_line(&r, line, (size_t)len);
        }
    }
    if (status == FIRN_OK && ferror(file)) {
        status = firni_fail_os(err, errno, "cannot read the trace %s", path);
    }
    free(line);
    (void)fclose(file);
    status = status == FIRN_OK ? finish(&r) : status;
    if (status != FIRN_OK) {
        firni_replay_unload(out);
    }
    return status;
}

void firni_replay_unload(firni_replay_trace *trace)
{
    firni_free(trace->env, trace->runs);
    firni_free(trace->env, trace->requests);
    firni_free(trace->env, trace->first_request);
    *trace = (firni_replay_trace){ .env = trace->env };
}

/* ---- users ------------------------------------------------------------------------------------------------------- */

static int by_event_time(const void *a, const void *b)
{
    const firni_replay_event *x = a, *y = b;
    const int order = (x->at_s > y->at_s) - (x->at_s < y->at_s);
    return order != 0 ? order : (x->request > y->request) - (x->request < y->request);
}

firni_replay_event *firni_replay_interleave(const firni_replay_trace *trace, uint32_t n_users, double pause_s_max)
{
    assert(n_users > 0);
    firni_replay_event *events = firni_calloc(trace->env, trace->n_requests, sizeof *events);
    double *clocks = firni_calloc(trace->env, n_users, sizeof *clocks);
    if (events == NULL || clocks == NULL) {
        firni_free(trace->env, events);
        firni_free(trace->env, clocks);
        return NULL;
    }
    for (uint32_t session = 0; session < trace->n_sessions; session++) {
        uint32_t user = 0; /* whoever is free first */
        for (uint32_t i = 1; i < n_users; i++) {
            user = clocks[i] < clocks[user] ? i : user;
        }
        const uint32_t first = trace->first_request[session];
        for (uint32_t i = first; i < trace->first_request[session + 1]; i++) {
            const double pause = i > first ? trace->requests[i].at_s - trace->requests[i - 1].at_s : 0;
            clocks[user] += trace->has_sessions && pause > pause_s_max ? pause_s_max : pause;
            events[i] = (firni_replay_event){ .at_s = clocks[user], .request = i };
        }
    }
    qsort(events, trace->n_requests, sizeof *events, by_event_time);
    firni_free(trace->env, clocks);
    return events;
}
