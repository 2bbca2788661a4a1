/*
 * What does not depend on a capacity: how much other ways of writing write, and how much of the hits rules for keeping
 * checkpoints keep. Everything that was asked for is there for ever, so one pass over each session is enough.
 *
 * A *conversation* is what the requests of a session that begin with the same block have in common: a sub-agent begins
 * with a block of its own. What a request shares with the one before it in its conversation is its ideal hit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/replay_impl.h"

#define STEPPED_TOKENS 10000u
#define GRID_TOKENS    2048u

/* The rule of the token tree (prefix/checkpoints.c), in blocks before the end. */
static const uint32_t distances[] = { 0, 2, 32, 512 };

enum { N_DISTANCES = sizeof distances / sizeof distances[0], TAILS_MAX = 2 * N_DISTANCES };

typedef struct conversation {
    uint32_t first_id;
    uint32_t last_request;
    uint32_t written_blocks;    /* of the last whole prefix */
    uint32_t tails[TAILS_MAX];  /* checkpoints of the rule of tails, ascending */
    uint32_t n_tails;
} conversation;

/* The conversations of one session. */
typedef struct session_view {
    const firni_replay_trace *trace;
    conversation *list;
    uint32_t n, capacity;
} session_view;

/* The request's conversation; *is_new: it has no request before this one. NULL without memory. */
static conversation *conversation_of(session_view *view, const firni_replay_request *request, bool *is_new)
{
    const uint32_t first_id = view->trace->runs[request->first_run].first;
    *is_new = false;
    for (uint32_t i = view->n; i-- > 0;) {
        if (view->list[i].first_id == first_id) {
            return &view->list[i];
        }
    }
    if (view->n == view->capacity) {
        const uint32_t wanted = view->capacity > 0 ? view->capacity * 2 : 16;
        conversation *grown = firni_grow(view->trace->env, view->list, view->n, wanted, sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        view->list = grown;
        view->capacity = wanted;
    }
    *is_new = true;
    view->list[view->n] = (conversation){ .first_id = first_id };
    return &view->list[view->n++];
}

/* Blocks that both requests begin with. */
static uint32_t common_blocks(const firni_replay_trace *trace, const firni_replay_request *a,
                              const firni_replay_request *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_runs && i < b->n_runs; i++) {
        const firni_replay_run *x = &trace->runs[a->first_run + i], *y = &trace->runs[b->first_run + i];
        if (x->first != y->first) {
            break;
        }
        n += x->n_blocks < y->n_blocks ? x->n_blocks : y->n_blocks;
        if (x->n_blocks != y->n_blocks) {
            break;
        }
    }
    return n;
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

static int by_first(const void *a, const void *b)
{
    const firni_replay_run *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Different blocks of a session: the length of the union of its runs. False without memory. */
static bool count_unique(const firni_replay_trace *trace, uint32_t first_run, uint32_t n_runs, uint64_t *n_unique)
{
    if (n_runs == 0) {
        return true;
    }
    firni_replay_run *sorted = firni_calloc(trace->env, n_runs, sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    memcpy(sorted, &trace->runs[first_run], n_runs * sizeof *sorted);
    qsort(sorted, n_runs, sizeof *sorted, by_first);
    uint64_t end = 0;
    for (uint32_t i = 0; i < n_runs; i++) {
        const uint64_t run_end = (uint64_t)sorted[i].first + sorted[i].n_blocks;
        const uint64_t begin = sorted[i].first > end ? sorted[i].first : end;
        *n_unique += run_end > begin ? run_end - begin : 0;
        end = run_end > end ? run_end : end;
    }
    firni_free(trace->env, sorted);
    return true;
}

/* The runs of a session lie together, though not in the order of its requests. */
static void runs_of(const firni_replay_trace *trace, uint32_t session, uint32_t *first_run, uint32_t *n_runs)
{
    uint32_t low = UINT32_MAX, high = 0;
    for (uint32_t i = trace->first_request[session]; i < trace->first_request[session + 1]; i++) {
        const firni_replay_request *request = &trace->requests[i];
        const uint32_t end = request->first_run + request->n_runs;
        low = request->first_run < low ? request->first_run : low;
        high = end > high ? end : high;
    }
    *first_run = low;
    *n_runs = high > low ? high - low : 0;
}

firn_status firni_replay_writes_of(const firni_replay_trace *trace, firni_replay_writes *out, firn_error *err)
{
    *out = (firni_replay_writes){ .whole_blocks = trace->n_blocks };
    session_view view = { .trace = trace };
    bool ok = true;
    for (uint32_t session = 0; session < trace->n_sessions && ok; session++) {
        uint32_t first_run, n_runs;
        runs_of(trace, session, &first_run, &n_runs);
        ok = count_unique(trace, first_run, n_runs, &out->unique_blocks);
        view.n = 0;
        for (uint32_t i = trace->first_request[session]; i < trace->first_request[session + 1] && ok; i++) {
            const firni_replay_request *request = &trace->requests[i];
            if (!trace->has_sessions || request->n_runs == 0) {
                continue;
            }
            bool is_new;
            conversation *c = conversation_of(&view, request, &is_new);
            ok = c != NULL;
            const uint64_t tokens = (uint64_t)request->n_blocks * trace->block_tokens;
            if (ok && (is_new || tokens >= (uint64_t)c->written_blocks * trace->block_tokens + STEPPED_TOKENS)) {
                out->stepped_blocks += request->n_blocks;
                c->written_blocks = request->n_blocks;
            }
        }
    }
    firni_free(trace->env, view.list);
    return ok ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to count what is written");
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static uint32_t last_at_or_below(const uint32_t *tails, uint32_t n_tails, uint32_t limit)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n_tails; i++) {
        best = tails[i] <= limit && tails[i] > best ? tails[i] : best;
    }
    return best;
}

/* Old checkpoints that the request still shares, and new ones where it computed: those nearest to the distances stay.
 * */
static void retain_tails(conversation *c, uint32_t n_common, uint32_t n_resumed, uint32_t n_blocks)
{
    uint32_t pool[2 * TAILS_MAX], kept[N_DISTANCES], n_pool = 0, n_kept = 0;
    for (uint32_t i = 0; i < c->n_tails; i++) {
        if (c->tails[i] <= n_common) {
            pool[n_pool++] = c->tails[i];
        }
    }
    for (uint32_t i = 0; i < N_DISTANCES; i++) {
        if (n_blocks > n_resumed + distances[i]) {
            pool[n_pool++] = n_blocks - distances[i];
        }
    }
    for (uint32_t i = N_DISTANCES; i-- > 0;) {
        const uint32_t at = n_blocks > distances[i] ? last_at_or_below(pool, n_pool, n_blocks - distances[i]) : 0;
        if (at > 0 && (n_kept == 0 || kept[n_kept - 1] != at)) {
            kept[n_kept++] = at;
        }
    }
    memcpy(c->tails, kept, n_kept * sizeof kept[0]);
    c->n_tails = n_kept;
}

firn_status firni_replay_checkpoints(const firni_replay_trace *trace, firni_replay_keep out[FIRNI_REPLAY_KEEPS],
                                     firn_error *err)
{
    firni_replay_keep leaf = { .name = "the last one", .n_live = 1 };
    firni_replay_keep tails = { .name = "nearest to -0, -2, -32, -512 blocks" };
    firni_replay_keep grid = { .name = "every 2048 tokens, and the last" };
    const uint32_t grid_blocks = trace->block_tokens < GRID_TOKENS ? GRID_TOKENS / trace->block_tokens : 1;
    uint64_t n_ideal = 0, n_requests = 0, n_tails = 0, n_grid = 0;
    session_view view = { .trace = trace };
    for (uint32_t i = 0, session = UINT32_MAX; i < trace->n_requests; i++) {
        const firni_replay_request *request = &trace->requests[i];
        if (request->n_runs == 0) {
            continue;
        }
        view.n = request->session != session ? 0 : view.n;
        session = request->session;
        bool is_new;
        conversation *c = conversation_of(&view, request, &is_new);
        if (c == NULL) {
            firni_free(trace->env, view.list);
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the conversations of a session");
        }
        const firni_replay_request *before = is_new ? NULL : &trace->requests[c->last_request];
        const uint32_t n_common = before != NULL ? common_blocks(trace, before, request) : 0;
        const uint32_t n_last = before != NULL && before->n_blocks <= n_common ? before->n_blocks : 0;
        const uint32_t n_resumed = last_at_or_below(c->tails, c->n_tails, n_common);
        const uint32_t n_below = n_common / grid_blocks * grid_blocks;
        n_ideal += n_common;
        leaf.hit_blocks += n_last;
        tails.hit_blocks += n_resumed;
        grid.hit_blocks += n_below > n_last ? n_below : n_last;
        retain_tails(c, n_common, n_resumed, request->n_blocks);
        c->last_request = i;
        n_requests++;
        n_tails += c->n_tails;
        n_grid += request->n_blocks / grid_blocks + (request->n_blocks % grid_blocks != 0);
    }
    firni_free(trace->env, view.list);
    tails.n_live = n_requests > 0 ? (double)n_tails / (double)n_requests : 0;
    grid.n_live = n_requests > 0 ? (double)n_grid / (double)n_requests : 0;
    out[0] = leaf;
    out[1] = tails;
    out[2] = grid;
    for (uint32_t i = 0; i < FIRNI_REPLAY_KEEPS; i++) {
        out[i].ideal_blocks = n_ideal;
    }
    return FIRN_OK;
}
