/*
 * replay: a recorded trace of requests run against the eviction policies, without a model.
 *
 *      replay_trace.c        a file -> requests, each a list of runs of block ids, in the order of their times
 *      replay_sim.c          requests -> hits and writes of one capacity, one policy, one rule of admission
 *      replay_checkpoints.c  requests -> what does not depend on a capacity: writes, and rules of checkpoints
 *      replay_plot.c         figures -> SVG
 *      cache_replay.c        the subcommand
 *
 * A *block id* names a block of tokens together with all that stands before it, so equal ids mean equal prefixes: what
 * a request shares with what is cached is the ids from its first on that are there. Ids of one session say nothing
 * about those of another. A *run* is consecutive ids: conversations append, so a request of a thousand blocks is a run
 * or two, and the simulator works on runs.
 *
 * Sessions are interleaved for a number of users: each user is in one session at a time, and takes the next one of the
 * file when it ends. Within a session the recorded times hold, except that a pause is no longer than a given time:
 * nobody's night is replayed. A sub-agent's requests are requests of its session, at their own times.
 */
#ifndef FIRNI_REPLAY_IMPL_H
#define FIRNI_REPLAY_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/status.h"

typedef struct firni_replay_run {
    uint32_t first, n_blocks;
} firni_replay_run;

typedef struct firni_replay_request {
    double at_s;             /* since its session began */
    uint32_t session;
    uint32_t first_run, n_runs;
    uint32_t n_blocks;
} firni_replay_request;

typedef struct firni_replay_trace {
    const firn_env *env;
    uint32_t block_tokens;
    bool has_sessions;       /* else all requests are one session's, whose times are the clock's */
    firni_replay_run *runs;
    uint32_t n_runs, runs_capacity;
    firni_replay_request *requests;
    uint32_t n_requests, requests_capacity;
    uint32_t *first_request; /* of session i; [n_sessions] is n_requests */
    uint32_t n_sessions, sessions_capacity;
    uint64_t n_blocks;       /* asked for, over all requests */
} firni_replay_trace;

/* Reads a trace: one JSON object a line, of one of the two formats (docs/REPLAY.md). Requests of a session come out in
 * the order of their times. Errors: IO, FORMAT (the message names the line and what is wrong there), NO_MEMORY. */
firn_status firni_replay_load(const char *path, const firn_env *env, firni_replay_trace *out, firn_error *err);
void firni_replay_unload(firni_replay_trace *trace); /* accepts a zeroed one */

/* One request of the interleaved order. */
typedef struct firni_replay_event {
    double at_s;
    uint32_t request;
} firni_replay_event;

/* The order for n_users users: n_requests events, released with firni_free(). NULL without memory. */
firni_replay_event *firni_replay_interleave(const firni_replay_trace *trace, uint32_t n_users, double pause_s_max);

typedef struct firni_replay_options {
    const char *policy;       /* as firn_prefix_options */
    const char *admission;
    uint64_t capacity_blocks; /* UINT64_MAX: no limit */
} firni_replay_options;

typedef struct firni_replay_result {
    uint64_t hit_blocks, asked_blocks;
    uint64_t written_blocks;  /* taken in, again after an eviction too */
    uint64_t unique_blocks;   /* different ones that were asked for */
    uint64_t evicted_blocks;
} firni_replay_result;

firn_status firni_replay_simulate(const firni_replay_trace *trace, const firni_replay_event *events,
                                  const firni_replay_options *options, firni_replay_result *out, firn_error *err);

/* What other ways of writing would write, in blocks, all with unlimited room. */
typedef struct firni_replay_writes {
    uint64_t whole_blocks;    /* the whole prefix at each request */
    uint64_t stepped_blocks;  /* the whole prefix whenever it has 10,000 tokens more than when last written */
    uint64_t unique_blocks;
} firni_replay_writes;

/* Rules for keeping the checkpoints of a conversation, where layers keep a fixed-size state: a request resumes at one
 * or not at all. */
typedef struct firni_replay_keep {
    const char *name;
    uint64_t hit_blocks, ideal_blocks;
    double n_live;            /* checkpoints of a conversation, on average over its requests */
} firni_replay_keep;

enum { FIRNI_REPLAY_KEEPS = 3 };

firn_status firni_replay_checkpoints(const firni_replay_trace *trace, firni_replay_keep out[FIRNI_REPLAY_KEEPS],
                                     firn_error *err);

firn_status firni_replay_writes_of(const firni_replay_trace *trace, firni_replay_writes *out, firn_error *err);

#endif
