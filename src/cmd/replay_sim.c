/*
 * The simulator: a cache of a number of blocks, run over the interleaved requests. Who leaves is decided by the
 * policies of the token tree on its own heap, who comes in by its rule of admission; what is simulated is what serves.
 *
 * What is cached is a tree of *stretches*: blocks with consecutive ids that were last used together, so their recency
 * stamps are consecutive too, the last block's the lowest. A request touches a few stretches, whatever its length. One
 * that leaves a stretch in the middle, or ends there, cuts it in two.
 *
 *      [1 .. 1523] --- [1525 .. 1531] --- ...      used by the last request
 *              \------ [1524 .. 1700]              used by one before it: leaves first, from its end
 *
 * A stretch stands in the heap with the rank of its last block when nothing follows it, as a leaf does in the tree.
 * What leaves is cut from its end: by recency all that is needed at once, since nothing else can have a stamp in
 * between; by a policy that ranks a few blocks at a time, since each has a rank of its own.
 */
#include <assert.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/replay_impl.h"
#include "prefix/prefix_impl.h"

#define RANKED_BLOCKS_MAX 8u

/* One allocation with its node, which follows it: the heap gives nodes back. */
typedef struct stretch {
    struct stretch *parent;
    uint32_t n_children;
    uint32_t session, first, n_blocks;
    uint32_t depth;             /* blocks before it on its path */
} stretch;

static_assert(sizeof(stretch) % alignof(firni_node) == 0, "a node may follow a stretch");

/* The stretches of a session, by their first ids. */
typedef struct session_shelf {
    stretch **list;
    uint32_t n, capacity;
} session_shelf;

typedef struct simulation {
    const firni_replay_trace *trace;
    const firn_env *env;
    const firni_policy *policy;
    firni_admission admission;
    firni_heap heap;
    session_shelf *shelves;             /* [n_sessions] */
    uint64_t capacity_blocks, held_blocks, n_stretches;
    uint64_t stamp, clock;
    stretch **path;             /* of the request under way */
    uint32_t n_path, path_capacity;
    firni_replay_result *result;
    firn_error *err;
} simulation;

static firni_node *node_of(stretch *s)
{
    return (firni_node *)(void *)(s + 1);
}

static stretch *stretch_of(firni_node *node)
{
    return (stretch *)(void *)node - 1;
}

static firn_status no_memory(const simulation *sim)
{
    return firni_fail(sim->err, FIRN_ERR_NO_MEMORY, "no memory for a simulation of %llu stretches",
                      (unsigned long long)sim->n_stretches);
}

/* ---- shelves ----------------------------------------------------------------------------------------------------- */

/* Index of the first stretch that begins behind `id`. */
static uint32_t place_behind(const session_shelf *shelf, uint32_t id)
{
    uint32_t low = 0, high = shelf->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (shelf->list[middle]->first <= id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static stretch *find(const session_shelf *shelf, uint32_t id)
{
    const uint32_t at = place_behind(shelf, id);
    stretch *s = at > 0 ? shelf->list[at - 1] : NULL;
    return s != NULL && id - s->first < s->n_blocks ? s : NULL;
}

/* A stretch on its shelf, without a parent; NULL without memory. */
static stretch *add_stretch(simulation *sim, uint32_t session, uint32_t first, uint32_t n_blocks, uint32_t depth)
{
    session_shelf *shelf = &sim->shelves[session];
    if (shelf->n == shelf->capacity) {
        const uint32_t wanted = shelf->capacity > 0 ? shelf->capacity * 2 : 8;
        stretch **grown = firni_grow(sim->env, shelf->list, shelf->n, wanted, sizeof(stretch *));
        if (grown == NULL) {
            return NULL;
        }
        shelf->list = grown;
        shelf->capacity = wanted;
    }
    if (!firni_heap_reserve(sim->env, &sim->heap, (size_t)sim->n_stretches + 1)) {
        return NULL;
    }
    stretch *s = firni_calloc(sim->env, 1, sizeof *s + sizeof(firni_node));
    if (s == NULL) {
        return NULL;
    }
    *s = (stretch){ .session = session, .first = first, .n_blocks = n_blocks, .depth = depth };
    const uint32_t at = place_behind(shelf, first);
    memmove(&shelf->list[at + 1], &shelf->list[at], (shelf->n - at) * sizeof(stretch *));
    shelf->list[at] = s;
    shelf->n++;
    sim->n_stretches++;
    return s;
}

static void drop_stretch(simulation *sim, stretch *s)
{
    session_shelf *shelf = &sim->shelves[s->session];
    const uint32_t at = place_behind(shelf, s->first) - 1;
    assert(shelf->list[at] == s && s->n_children == 0 && node_of(s)->heap == NULL);
    memmove(&shelf->list[at], &shelf->list[at + 1], (shelf->n - at - 1) * sizeof(stretch *));
    shelf->n--;
    sim->n_stretches--;
    firni_free(sim->env, s);
}

/* Cuts off the first n blocks as a stretch of their own. It is the front that is new: what follows the stretch goes on
 * to do so. */
static stretch *split(simulation *sim, stretch *s, uint32_t n)
{
    const uint32_t first = s->first;
    /* Off the place where the front will stand. */
    s->first += n;
    s->n_blocks -= n;
    stretch *front = add_stretch(sim, s->session, first, n, s->depth);
    if (front == NULL) {
        s->first = first;
        s->n_blocks += n;
        return NULL;
    }
    s->depth += n;
    front->parent = s->parent;
    front->n_children = 1;
    s->parent = front;
    return front;
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */

/* Into the heap, or to its place in it, with the rank of the last block. */
static void settle_leaf(simulation *sim, stretch *s)
{
    firni_node *node = node_of(s);
    node->n_tokens = FIRN_BLOCK_TOKENS;
    if (sim->policy->rank != NULL) {
        const uint32_t n_tokens = sim->trace->block_tokens;
        const firni_use use = {
            .clock = node->clock,
            .first_token = (s->depth + s->n_blocks - 1) * n_tokens,
            .n_tokens = n_tokens,
            .bytes = n_tokens,
            .unit_bytes = n_tokens,
        };
        node->rank = sim->policy->rank(&use);
    }
    if (node->heap != NULL) {
        firni_heap_moved(node);
    } else {
        firni_heap_add(&sim->heap, node);
    }
}

static void evict(simulation *sim)
{
    while (sim->held_blocks > sim->capacity_blocks) {
        firni_node *node = firni_heap_first(&sim->heap);
        stretch *s = stretch_of(node);
        const uint64_t n_over = sim->held_blocks - sim->capacity_blocks;
        uint32_t n = n_over < s->n_blocks ? (uint32_t)n_over : s->n_blocks;
        if (sim->policy->rank != NULL && n > RANKED_BLOCKS_MAX) {
            n = RANKED_BLOCKS_MAX;
        }
        sim->clock = node->rank > sim->clock ? node->rank : sim->clock;
        sim->held_blocks -= n;
        sim->result->evicted_blocks += n;
        s->n_blocks -= n;
        node->used += n;
        if (s->n_blocks > 0) {
            settle_leaf(sim, s);
            continue;
        }
        firni_heap_remove(node);
        stretch *parent = s->parent;
        drop_stretch(sim, s);
        if (parent != NULL && --parent->n_children == 0) {
            settle_leaf(sim, parent);
        }
    }
}

/* ---- one request ------------------------------------------------------------------------------------------------- */

static bool step_onto(simulation *sim, stretch *s)
{
    if (sim->n_path == sim->path_capacity) {
        const uint32_t wanted = sim->path_capacity > 0 ? sim->path_capacity * 2 : 64;
        stretch **grown = firni_grow(sim->env, sim->path, sim->n_path, wanted, sizeof(stretch *));
        if (grown == NULL) {
            return false;
        }
        sim->path = grown;
        sim->path_capacity = wanted;
    }
    sim->path[sim->n_path++] = s;
    return true;
}

/* Follows the request as far as it is cached; run and offset are where it is not any more. */
static firn_status follow(simulation *sim, const firni_replay_request *request, uint32_t *run, uint32_t *offset)
{
    const firni_replay_run *runs = &sim->trace->runs[request->first_run];
    const session_shelf *shelf = &sim->shelves[request->session];
    *offset = 0;
    for (*run = 0; *run < request->n_runs; ++*run, *offset = 0) {
        while (*offset < runs[*run].n_blocks) {
            const uint32_t id = runs[*run].first + *offset, n_left = runs[*run].n_blocks - *offset;
            stretch *s = find(shelf, id);
            if (s == NULL) {
                return FIRN_OK;
            }
            if (s->first != id || s->parent != (sim->n_path > 0 ? sim->path[sim->n_path - 1] : NULL)) {
                return firni_fail(sim->err, FIRN_ERR_FORMAT,
                                  "session %u of the trace: block %u stands behind two different blocks",
                                  request->session + 1, id);
            }
            if (n_left < s->n_blocks) {
                s = split(sim, s, n_left);
            }
            if (s == NULL || !step_onto(sim, s)) {
                return no_memory(sim);
            }
            sim->result->hit_blocks += s->n_blocks;
            *offset += s->n_blocks;
        }
    }
    return FIRN_OK;
}

static uint64_t digest_of(uint32_t session, uint32_t id)
{
    return firni_admission_digest((uint64_t)session << 32 | id, NULL, 0);
}

/* How many of the n blocks from `first` on may come in. */
static uint32_t admitted(const simulation *sim, uint32_t session, uint32_t first, uint32_t n, uint64_t now_ns)
{
    firni_node *victim = firni_heap_first(&sim->heap);
    if (sim->admission.seen == NULL || victim == NULL || sim->held_blocks + n <= sim->capacity_blocks ||
        !firni_admission_is_starved(&sim->admission, victim->used, now_ns)) {
        return n;
    }
    uint32_t i = 0;
    while (i < n && firni_admission_is_known(&sim->admission, digest_of(session, first + i))) {
        i++;
    }
    return i;
}

/* Takes in the rest of the request. */
static firn_status take_in(simulation *sim, const firni_replay_request *request, uint32_t run, uint32_t offset,
                           uint64_t now_ns)
{
    const firni_replay_run *runs = &sim->trace->runs[request->first_run];
    const session_shelf *shelf = &sim->shelves[request->session];
    for (; run < request->n_runs; run++, offset = 0) {
        const uint32_t first = runs[run].first + offset, n_wanted = runs[run].n_blocks - offset;
        const uint32_t n = admitted(sim, request->session, first, n_wanted, now_ns);
        const uint32_t behind = place_behind(shelf, first);
        if (find(shelf, first) != NULL || (behind < shelf->n && shelf->list[behind]->first - first < n)) {
            return firni_fail(sim->err, FIRN_ERR_FORMAT,
                              "session %u of the trace: a block from %u on stands behind two different blocks",
                              request->session + 1, first);
        }
        stretch *last = sim->n_path > 0 ? sim->path[sim->n_path - 1] : NULL;
        if (n > 0 && last != NULL && last->n_children == 0 && last->first + last->n_blocks == first) {
            last->n_blocks += n;
        } else if (n > 0) {
            stretch *s = add_stretch(sim, request->session, first, n, last != NULL ? last->depth + last->n_blocks : 0);
            if (s == NULL || !step_onto(sim, s)) {
                return no_memory(sim);
            }
            s->parent = last;
            if (last != NULL) {
                last->n_children++;
                if (node_of(last)->heap != NULL) {
                    firni_heap_remove(node_of(last));
                }
            }
        }
        sim->held_blocks += n;
        sim->result->written_blocks += n;
        if (n < n_wanted) {
            break;
        }
    }
    return FIRN_OK;
}

/* From the end up, so that tails grow old before their heads. */
static void touch(simulation *sim)
{
    for (uint32_t i = sim->n_path; i-- > 0;) {
        stretch *s = sim->path[i];
        node_of(s)->used = sim->stamp + 1;
        node_of(s)->clock = sim->clock;
        sim->stamp += s->n_blocks;
        if (s->n_children == 0) {
            settle_leaf(sim, s);
        }
    }
}

static firn_status serve(simulation *sim, const firni_replay_request *request, double at_s)
{
    const uint64_t now_ns = (uint64_t)(at_s * 1e9);
    firni_admission_mark(&sim->admission, sim->stamp, now_ns);
    for (uint32_t i = 0; sim->admission.seen != NULL && i < request->n_runs; i++) {
        const firni_replay_run *run = &sim->trace->runs[request->first_run + i];
        for (uint32_t k = 0; k < run->n_blocks; k++) {
            firni_admission_saw(&sim->admission, digest_of(request->session, run->first + k));
        }
    }
    uint32_t run, offset;
    sim->n_path = 0;
    sim->result->asked_blocks += request->n_blocks;
    firn_status status = follow(sim, request, &run, &offset);
    if (status == FIRN_OK) {
        status = take_in(sim, request, run, offset, now_ns);
    }
    if (status == FIRN_OK) {
        touch(sim);
        evict(sim);
    }
    return status;
}

static void release(simulation *sim)
{
    for (uint32_t i = 0; sim->shelves != NULL && i < sim->trace->n_sessions; i++) {
        session_shelf *shelf = &sim->shelves[i];
        for (uint32_t k = 0; k < shelf->n; k++) {
            if (node_of(shelf->list[k])->heap != NULL) {
                firni_heap_remove(node_of(shelf->list[k]));
            }
            firni_free(sim->env, shelf->list[k]);
        }
        firni_free(sim->env, shelf->list);
    }
    firni_free(sim->env, sim->shelves);
    firni_free(sim->env, sim->path);
    firni_heap_deinit(sim->env, &sim->heap);
    firni_admission_deinit(&sim->admission);
}

firn_status firni_replay_simulate(const firni_replay_trace *trace, const firni_replay_event *events,
                                  const firni_replay_options *options, firni_replay_result *out, firn_error *err)
{
    *out = (firni_replay_result){ 0 };
    bool second = false;
    simulation sim = {
        .trace = trace,
        .env = trace->env,
        .policy = firni_policy_find(options->policy),
        .capacity_blocks = options->capacity_blocks > 0 ? options->capacity_blocks : 1,
        .result = out,
        .err = err,
    };
    if (sim.policy == NULL || !firni_admission_find(options->admission, &second)) {
        return firni_fail(err, FIRN_ERR_INVALID, "there is no such policy or admission");
    }
    sim.heap.policy = sim.policy;
    sim.shelves = firni_calloc(sim.env, trace->n_sessions, sizeof *sim.shelves);
    firn_status status = sim.shelves != NULL && firni_admission_init(&sim.admission, second, sim.env)
                             ? FIRN_OK
                             : no_memory(&sim);
    for (uint32_t i = 0; i < trace->n_requests && status == FIRN_OK; i++) {
        status = serve(&sim, &trace->requests[events[i].request], events[i].at_s);
    }
    release(&sim);
    return status;
}
