/*
 * Saving on request, while serving: flushes that begin on the engine's thread, go on with the stores that the trees'
 * writers make anyway, and end on the keeper's, where the tier itself is flushed. Also the ends of pins, which other
 * threads ask for.
 *
 *      firn_engine_flush --> list --> engine thread: begin, then a look in each round --> keeper: tier --> done
 *
 * One flush at a time; those that are asked for meanwhile wait for their turn, with their own bounds.
 */
#include <string.h>

#include "engine/engine_impl.h"

struct firni_save {
    firni_task task; /* the tier's part */
    firni_save *next;
    firn_engine *engine;
    uint64_t deadline_ns, started_ns;
    firn_flush_report report;
    bool has_begun_draft;
    void (*done)(void *ctx, const firn_flush_report *report);
    void *ctx;
};

struct firni_unpin {
    firni_unpin *next;
    char name[FIRN_KEEP_NAME_BYTES_MAX + 1];
};

static void answer(firni_save *save)
{
    save->report.elapsed_ns = firni_now_ns(save->engine->env) - save->started_ns;
    save->done(save->ctx, &save->report);
    firni_free(save->engine->env, save);
}

static void add_report(firn_flush_report *sum, const firn_flush_report *part)
{
    sum->durable = sum->durable && part->durable;
    sum->n_flushed += part->n_flushed;
    sum->n_missing += part->n_missing;
    sum->n_failed += part->n_failed;
}

/* What the tier keeps back itself. Its bound is what is left: a sync cannot be called off. */
static void flush_tier(firni_task *task)
{
    firni_save *save = (firni_save *)task;
    const firn_engine_options *options = &save->engine->options;
    const uint64_t now_ns = firni_now_ns(save->engine->env);
    const uint64_t left_ns = save->deadline_ns > now_ns ? save->deadline_ns - now_ns : 0;
    const firn_flush_report below = firn_tier_flush(options->tier, left_ns);
    add_report(&save->report, &below);
    if (options->draft_tier != NULL) {
        const firn_flush_report draft = firn_tier_flush(options->draft_tier, left_ns);
        add_report(&save->report, &draft);
    }
    answer(save);
}

static void drop_flush(firni_task *task)
{
    firni_save *save = (firni_save *)task;
    save->report.durable = false;
    answer(save);
}

firn_status firn_engine_flush(firn_engine *engine, uint64_t bound_ns,
                              void (*done)(void *ctx, const firn_flush_report *report), void *ctx, firn_error *err)
{
    firni_save *save = firni_calloc(engine->env, 1, sizeof *save);
    if (save == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a flush");
    }
    const uint64_t now_ns = firni_now_ns(engine->env);
    *save = (firni_save){ .task = { .run = flush_tier, .drop = drop_flush },
                          .engine = engine,
                          .started_ns = now_ns,
                          .deadline_ns = bound_ns < UINT64_MAX - now_ns ? now_ns + bound_ns : UINT64_MAX,
                          .report = { .durable = true },
                          .done = done,
                          .ctx = ctx };
    (void)pthread_mutex_lock(&engine->mutex);
    const bool is_stopping = engine->stopping;
    if (!is_stopping) {
        firni_save **link = &engine->saves;
        while (*link != NULL) {
            link = &(*link)->next;
        }
        *link = save;
        engine->woken = true;
        (void)pthread_cond_signal(&engine->wake);
    }
    (void)pthread_mutex_unlock(&engine->mutex);
    if (is_stopping) {
        firni_free(engine->env, save);
        return firni_fail(err, FIRN_ERR_STATE, "the engine is stopping, and saves everything");
    }
    return FIRN_OK;
}

void firn_engine_unpin(firn_engine *engine, const char *name)
{
    firni_unpin *unpin = strlen(name) <= FIRN_KEEP_NAME_BYTES_MAX ? firni_calloc(engine->env, 1, sizeof *unpin) : NULL;
    if (unpin == NULL) {
        return; /* it ends by itself */
    }
    memcpy(unpin->name, name, strlen(name) + 1);
    (void)pthread_mutex_lock(&engine->mutex);
    unpin->next = engine->unpins;
    engine->unpins = unpin;
    engine->woken = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->mutex);
}

static firni_save *first_save(firn_engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    firni_save *save = engine->saves;
    (void)pthread_mutex_unlock(&engine->mutex);
    return save;
}

static void take_first(firn_engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    engine->saves = engine->saves->next;
    (void)pthread_mutex_unlock(&engine->mutex);
    engine->is_saving = false;
}

/* Whether both trees' parts of the flush have ended. */
static bool trees_have_ended(firn_engine *engine, firni_save *save)
{
    const bool is_late = firni_now_ns(engine->env) >= save->deadline_ns;
    firn_flush_report report;
    if (engine->is_saving) {
        if (!firn_prefix_flush_ended(engine->prefix, is_late, &report)) {
            return false;
        }
        add_report(&save->report, &report);
        engine->is_saving = false;
        save->has_begun_draft = firni_draft_tree(engine) != NULL && firn_prefix_flush_begin(firni_draft_tree(engine));
    }
    if (save->has_begun_draft) {
        if (!firn_prefix_flush_ended(firni_draft_tree(engine), is_late, &report)) {
            return false;
        }
        add_report(&save->report, &report);
        save->has_begun_draft = false;
    }
    return true;
}

static void end_pins(firn_engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    firni_unpin *unpin = engine->unpins;
    engine->unpins = NULL;
    (void)pthread_mutex_unlock(&engine->mutex);
    while (unpin != NULL) {
        firni_unpin *next = unpin->next;
        if (engine->prefix != NULL) {
            (void)firn_prefix_unpin(engine->prefix, unpin->name);
        }
        firni_free(engine->env, unpin);
        unpin = next;
    }
}

bool firni_save_advance(firn_engine *engine)
{
    end_pins(engine);
    firni_save *save = first_save(engine);
    if (save == NULL) {
        return false;
    }
    if (!engine->is_saving && !save->has_begun_draft) {
        engine->is_saving = engine->prefix != NULL && firn_prefix_flush_begin(engine->prefix);
    }
    if (!trees_have_ended(engine, save)) {
        return true;
    }
    take_first(engine);
    if (engine->keeper != NULL) {
        (void)firni_keeper_post(engine->keeper, &save->task);
    } else {
        answer(save); /* RAM is all there is */
    }
    return first_save(engine) != NULL;
}

void firni_saves_abandon(firn_engine *engine, const firn_flush_report *report)
{
    end_pins(engine);
    for (firni_save *save = first_save(engine); save != NULL; save = first_save(engine)) {
        take_first(engine);
        save->report = *report;
        answer(save);
    }
}
