/*
 * Lists of names from both tiers: what the upper lists, then what only the lower does. Owns the copies of the lower's
 * list, which is taken in a call that may be left behind, and the merging by name.
 */
#include <string.h>

#include "tier/stack/stack_impl.h"

typedef struct listed {
    char *ns, *name;
    firn_token *tokens;
    uint32_t n_tokens;
    uint64_t time_ns, n_bytes;
    int priority;
} listed;

typedef struct listing {
    const firn_env *env;
    listed *items;
    size_t n, capacity;
    bool is_short; /* memory was refused: it is not all */
} listing;

static void free_listing(listing *list)
{
    for (size_t i = 0; i < list->n; i++) {
        firni_free(list->env, list->items[i].ns);
        firni_free(list->env, list->items[i].name);
        firni_free(list->env, list->items[i].tokens);
    }
    firni_free(list->env, list->items);
}

/* Copies one. False: no memory, and the list ends. */
static bool add(listing *list, const listed *from)
{
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        listed *grown = firni_grow(list->env, list->items, list->n, capacity, sizeof *grown);
        if (grown == NULL) {
            list->is_short = true;
            return false;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    listed *item = &list->items[list->n++];
    *item = *from;
    item->ns = firni_strdup(list->env, from->ns != NULL ? from->ns : "");
    item->name = firni_strdup(list->env, from->name);
    item->tokens = firni_tokens_copy(list->env, from->tokens, from->n_tokens);
    list->is_short = item->ns == NULL || item->name == NULL || item->tokens == NULL;
    return !list->is_short;
}

static bool has_name(const listing *list, const listed *item, bool by_namespace)
{
    for (size_t i = 0; i < list->n; i++) {
        const listed *other = &list->items[i];
        if (strcmp(other->name, item->name) == 0 && (!by_namespace || strcmp(other->ns, item->ns) == 0)) {
            return true;
        }
    }
    return false;
}

/* ---- three kinds of rows ----------------------------------------------------------------------------------------- */

static listed of_pin(const firn_pin *pin)
{
    return (listed){ .ns = (char *)(uintptr_t)pin->ns,
                     .name = (char *)(uintptr_t)pin->name,
                     .tokens = (firn_token *)(uintptr_t)pin->tokens,
                     .n_tokens = pin->n_tokens,
                     .time_ns = pin->until_wall_ns,
                     .n_bytes = pin->n_bytes };
}

static listed of_session(const firn_session *session)
{
    return (listed){ .ns = (char *)(uintptr_t)session->ns,
                     .name = (char *)(uintptr_t)session->id,
                     .tokens = (firn_token *)(uintptr_t)session->tokens,
                     .n_tokens = session->n_tokens,
                     .time_ns = session->used_wall_ns };
}

static listed of_object(const firn_object *object)
{
    return (listed){ .ns = (char *)(uintptr_t)object->ns,
                     .name = (char *)(uintptr_t)object->key,
                     .time_ns = object->until_wall_ns,
                     .n_bytes = object->n_bytes,
                     .priority = object->priority };
}

static bool add_pin(void *ctx, const firn_pin *pin)
{
    const listed item = of_pin(pin);
    return add(ctx, &item);
}

static bool add_session(void *ctx, const firn_session *session)
{
    const listed item = of_session(session);
    return add(ctx, &item);
}

static bool add_object(void *ctx, const firn_object *object)
{
    const listed item = of_object(object);
    return add(ctx, &item);
}

static firn_status list_pins(firn_tier *tier, listing *list, firn_error *err)
{
    return firn_tier_each_pin(tier, add_pin, list, err);
}

static firn_status list_sessions(firn_tier *tier, listing *list, firn_error *err)
{
    return firn_tier_each_session(tier, add_session, list, err);
}

static firn_status list_objects(firn_tier *tier, listing *list, firn_error *err)
{
    return firn_tier_each_object(tier, add_object, list, err);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

typedef struct list_call {
    firni_below call; /* first */
    firn_status (*list)(firn_tier *tier, listing *list, firn_error *err);
    listing found;
    firn_status status;
} list_call;

static void list_below(firni_below *call)
{
    list_call *job = (list_call *)call;
    job->status = job->list(call->stacked->lower, &job->found, NULL);
}

static void drop_list(firni_below *call)
{
    list_call *job = (list_call *)call;
    free_listing(&job->found);
    firni_free(call->stacked->env, job);
}

/* Shows one row to whoever lists; false: no more. */
typedef bool (*show_row)(const void *visitor, const listed *item);

typedef struct both_lists {
    firn_status (*list)(firn_tier *tier, listing *list, firn_error *err);
    bool by_namespace;  /* names are unique within one */
    show_row show;
    const void *visitor;
} both_lists;

/* The upper's rows are shown from a copy as well: so a visitor may call the stack. A lower that does not answer makes
 * the list shorter; an upper that fails is an error unless the lower has answered. */
static firn_status each(firni_stacked *stacked, const both_lists *both, firn_error *err)
{
    listing upper = { .env = stacked->env };
    firn_status status = both->list(stacked->upper, &upper, err);
    list_call *job = firni_calloc(stacked->env, 1, sizeof *job);
    const bool has_memory = job != NULL;
    if (has_memory) {
        *job = (list_call){ .call = { .stacked = stacked, .work = list_below, .drop = drop_list },
                            .list = both->list,
                            .found = { .env = stacked->env } };
        if (!firni_below_run(stacked, &job->call, stacked->options.lower_deadline_ns)) {
            job = NULL;
        }
    }
    const bool is_below = job != NULL && job->status == FIRN_OK && !job->found.is_short;
    status = is_below ? FIRN_OK : status;
    if (!has_memory || upper.is_short || (job != NULL && job->found.is_short)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a list of names");
    }
    bool go_on = status == FIRN_OK;
    for (size_t i = 0; i < upper.n && go_on; i++) {
        go_on = both->show(both->visitor, &upper.items[i]);
    }
    for (size_t i = 0; is_below && i < job->found.n && go_on; i++) {
        const listed *item = &job->found.items[i];
        go_on = has_name(&upper, item, both->by_namespace) || both->show(both->visitor, item);
    }
    if (job != NULL) {
        drop_list(&job->call);
    }
    free_listing(&upper);
    return status;
}

typedef struct pin_visitor {
    bool (*visit)(void *ctx, const firn_pin *pin);
    void *ctx;
} pin_visitor;

static bool show_pin(const void *ctx, const listed *item)
{
    const pin_visitor *visitor = ctx;
    const firn_pin pin = { .name = item->name,
                           .ns = item->ns,
                           .tokens = item->tokens,
                           .n_tokens = item->n_tokens,
                           .until_wall_ns = item->time_ns,
                           .n_bytes = item->n_bytes };
    return visitor->visit(visitor->ctx, &pin);
}

firn_status firni_stacked_each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx,
                                   firn_error *err)
{
    const pin_visitor visitor = { .visit = visit, .ctx = ctx };
    const both_lists both = { .list = list_pins, .show = show_pin, .visitor = &visitor };
    return each(firni_stacked_of(tier), &both, err);
}

typedef struct session_visitor {
    bool (*visit)(void *ctx, const firn_session *session);
    void *ctx;
} session_visitor;

static bool show_session(const void *ctx, const listed *item)
{
    const session_visitor *visitor = ctx;
    const firn_session session = { .id = item->name,
                                   .ns = item->ns,
                                   .tokens = item->tokens,
                                   .n_tokens = item->n_tokens,
                                   .used_wall_ns = item->time_ns };
    return visitor->visit(visitor->ctx, &session);
}

firn_status firni_stacked_each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session),
                                       void *ctx, firn_error *err)
{
    const session_visitor visitor = { .visit = visit, .ctx = ctx };
    const both_lists both = {
        .list = list_sessions, .by_namespace = true, .show = show_session, .visitor = &visitor
    };
    return each(firni_stacked_of(tier), &both, err);
}

typedef struct object_visitor {
    bool (*visit)(void *ctx, const firn_object *object);
    void *ctx;
} object_visitor;

static bool show_object(const void *ctx, const listed *item)
{
    const object_visitor *visitor = ctx;
    const firn_object object = { .key = item->name,
                                 .ns = item->ns,
                                 .until_wall_ns = item->time_ns,
                                 .priority = item->priority,
                                 .n_bytes = item->n_bytes };
    return visitor->visit(visitor->ctx, &object);
}

firn_status firni_stacked_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                      firn_error *err)
{
    const object_visitor visitor = { .visit = visit, .ctx = ctx };
    const both_lists both = { .list = list_objects, .by_namespace = true, .show = show_object, .visitor = &visitor };
    return each(firni_stacked_of(tier), &both, err);
}
