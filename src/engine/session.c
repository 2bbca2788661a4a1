/*
 * Sessions: where conversations stood, so that a request can be told how it stands to its own.
 *
 * Nothing is kept for a session but this: its state is found by its tokens like any other. The session's own path is
 * the one that the prompt goes on from when it extends it, because no other agrees with it for longer; an edited
 * history is an ordinary lookup. So a session can be lost, or named twice, without harm.
 *
 *      submit     table, else the tier's row --> the prompt begins with these tokens? --> continued | branched
 *      end        tokens --> keeper: digest --> table;  row --> tier
 *
 * The table holds a digest of the tokens instead of them; the tier's rows hold the tokens, for export. The least
 * recently used of more than SESSIONS_MAX go.
 */
#include <string.h>

#include "engine/engine_impl.h"

enum { SESSIONS_MAX = 4096 };

typedef struct session {
    char *ns, *id;
    uint32_t n_tokens;
    firn_digest digest;
    uint64_t used; /* counts uses */
} session;

struct firni_sessions {
    const firn_env *env;
    firn_tier *tier;
    pthread_mutex_t mutex;
    session *list; /* guarded by mutex, as all that follows */
    uint32_t n, n_max;
    uint64_t n_uses;
};

/* The digest of no chain: nothing begins with zeros. */
static firn_digest digest_of(const firn_token *tokens, uint32_t n_tokens)
{
    const firn_digest zero = { { 0 } };
    return firn_chain_extend(&zero, tokens, n_tokens);
}

firn_status firni_sessions_create(firn_engine *engine, firni_sessions **out, firn_error *err)
{
    firni_sessions *sessions = firni_calloc(engine->env, 1, sizeof *sessions);
    *out = sessions;
    if (sessions == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for sessions");
    }
    sessions->env = engine->env;
    sessions->tier = engine->options.tier;
    (void)pthread_mutex_init(&sessions->mutex, NULL);
    return FIRN_OK;
}

static void clear(const firn_env *env, session *one)
{
    firni_free(env, one->ns);
    firni_free(env, one->id);
    *one = (session){ .ns = NULL };
}

void firni_sessions_destroy(firni_sessions *sessions)
{
    if (sessions == NULL) {
        return;
    }
    for (uint32_t i = 0; i < sessions->n; i++) {
        clear(sessions->env, &sessions->list[i]);
    }
    firni_free(sessions->env, sessions->list);
    (void)pthread_mutex_destroy(&sessions->mutex);
    firni_free(sessions->env, sessions);
}

uint64_t firni_sessions_count(firni_sessions *sessions)
{
    (void)pthread_mutex_lock(&sessions->mutex);
    const uint64_t n = sessions->n;
    (void)pthread_mutex_unlock(&sessions->mutex);
    return n;
}

static session *find_locked(firni_sessions *sessions, const char *ns, const char *id)
{
    for (uint32_t i = 0; i < sessions->n; i++) {
        if (strcmp(sessions->list[i].id, id) == 0 && strcmp(sessions->list[i].ns, ns) == 0) {
            return &sessions->list[i];
        }
    }
    return NULL;
}

/* A place for a new one: at the end, or that of the one that was not used for longest. NULL without memory. */
static session *add_locked(firni_sessions *sessions, const char *ns, const char *id)
{
    char *own_ns = firni_strdup(sessions->env, ns), *own_id = firni_strdup(sessions->env, id);
    session *place = NULL;
    if (own_ns != NULL && own_id != NULL && sessions->n == SESSIONS_MAX) {
        place = &sessions->list[0];
        for (uint32_t i = 1; i < sessions->n; i++) {
            place = sessions->list[i].used < place->used ? &sessions->list[i] : place;
        }
        clear(sessions->env, place);
    } else if (own_ns != NULL && own_id != NULL) {
        if (sessions->n == sessions->n_max) {
            const uint32_t n_new = sessions->n_max * 2 + 16;
            session *grown = firni_grow(sessions->env, sessions->list, sessions->n, n_new, sizeof *grown);
            sessions->list = grown != NULL ? grown : sessions->list;
            sessions->n_max = grown != NULL ? n_new : sessions->n_max;
        }
        place = sessions->n < sessions->n_max ? &sessions->list[sessions->n++] : NULL;
    }
    if (place == NULL) {
        firni_free(sessions->env, own_ns);
        firni_free(sessions->env, own_id);
        return NULL;
    }
    *place = (session){ .ns = own_ns, .id = own_id };
    return place;
}

static void set(firni_sessions *sessions, const char *ns, const char *id, uint32_t n_tokens, const firn_digest *digest)
{
    (void)pthread_mutex_lock(&sessions->mutex);
    session *one = find_locked(sessions, ns, id);
    one = one != NULL ? one : add_locked(sessions, ns, id);
    if (one != NULL) {
        one->n_tokens = n_tokens;
        one->digest = *digest;
        one->used = ++sessions->n_uses;
    }
    (void)pthread_mutex_unlock(&sessions->mutex);
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

typedef struct tip {
    bool found;
    uint32_t n_tokens;
    firn_digest digest;
} tip;

static void take_row(void *ctx, const firn_session *row)
{
    *(tip *)ctx = (tip){ .found = true, .n_tokens = row->n_tokens, .digest = digest_of(row->tokens, row->n_tokens) };
}

static tip find_tip(firni_sessions *sessions, const char *ns, const char *id)
{
    tip out = { .found = false };
    (void)pthread_mutex_lock(&sessions->mutex);
    session *one = find_locked(sessions, ns, id);
    if (one != NULL) {
        out = (tip){ .found = true, .n_tokens = one->n_tokens, .digest = one->digest };
        one->used = ++sessions->n_uses;
    }
    (void)pthread_mutex_unlock(&sessions->mutex);
    if (!out.found && sessions->tier != NULL) {
        (void)firn_tier_get_session(sessions->tier, ns, id, take_row, &out, NULL); /* none is as good as unknown */
        if (out.found) {
            set(sessions, ns, id, out.n_tokens, &out.digest);
        }
    }
    return out;
}

void firni_session_begin(firn_engine *engine, firni_sequence *sequence)
{
    if (sequence->session == NULL) {
        return;
    }
    const tip last = find_tip(engine->sessions, sequence->ns, sequence->session);
    firn_usage *usage = &sequence->usage;
    usage->session = FIRN_SESSION_NEW;
    if (last.found) {
        usage->session_tokens = last.n_tokens;
        usage->session = FIRN_SESSION_BRANCHED;
        if (last.n_tokens <= sequence->n_prompt) {
            const firn_digest digest = digest_of(sequence->tokens, last.n_tokens);
            usage->session = memcmp(digest.bytes, last.digest.bytes, sizeof digest.bytes) == 0 ? FIRN_SESSION_CONTINUED
                                                                                               : FIRN_SESSION_BRANCHED;
        }
    }
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

typedef struct note {
    firni_task task;
    firni_sessions *sessions;
    char *ns, *id;
    firn_token *tokens;
    uint32_t n_tokens;
    bool to_tier;
} note;

static void free_note(firni_task *task)
{
    note *one = (note *)task;
    const firn_env *env = one->sessions->env;
    firni_free(env, one->ns);
    firni_free(env, one->id);
    firni_free(env, one->tokens);
    firni_free(env, one);
}

static void run_note(firni_task *task)
{
    const note *one = (const note *)task;
    const firn_digest digest = digest_of(one->tokens, one->n_tokens);
    set(one->sessions, one->ns, one->id, one->n_tokens, &digest);
    if (one->to_tier) {
        const firn_session row = { .id = one->id, .ns = one->ns, .tokens = one->tokens, .n_tokens = one->n_tokens };
        (void)firn_tier_put_session(one->sessions->tier, &row, NULL); /* a session that is not noted is one that is
                                                                       * new */
    }
    free_note(task);
}

void firni_session_note(firn_engine *engine, const firni_sequence *sequence)
{
    const bool has_ended_well = sequence->finish == FIRN_FINISH_STOP || sequence->finish == FIRN_FINISH_LENGTH;
    if (sequence->session == NULL || sequence->cache.store == FIRN_STORE_NONE || !has_ended_well) {
        return;
    }
    const firn_env *env = engine->env;
    note *one = firni_calloc(env, 1, sizeof *one);
    if (one == NULL) {
        engine->stats.n_kept_dropped++;
        return;
    }
    *one = (note){ .task = { .run = run_note, .drop = free_note },
                   .sessions = engine->sessions,
                   .ns = firni_strdup(env, sequence->ns),
                   .id = firni_strdup(env, sequence->session),
                   .tokens = firni_calloc(env, sequence->n_cached, sizeof *one->tokens),
                   .n_tokens = sequence->n_cached,
                   .to_tier = engine->options.tier != NULL && sequence->cache.store == FIRN_STORE_DISK };
    if (one->ns == NULL || one->id == NULL || one->tokens == NULL) {
        free_note(&one->task);
        engine->stats.n_kept_dropped++;
        return;
    }
    memcpy(one->tokens, sequence->tokens, one->n_tokens * sizeof *one->tokens);
    if (engine->keeper == NULL) {
        run_note(&one->task); /* nothing but the table */
    } else if (!firni_keeper_post(engine->keeper, &one->task)) {
        engine->stats.n_kept_dropped++;
    }
}

void firn_engine_forget_session(firn_engine *engine, const char *ns, const char *id)
{
    firni_sessions *sessions = engine->sessions;
    ns = ns != NULL ? ns : "";
    (void)pthread_mutex_lock(&sessions->mutex);
    session *one = find_locked(sessions, ns, id);
    if (one != NULL) {
        clear(sessions->env, one);
        *one = sessions->list[--sessions->n];
    }
    (void)pthread_mutex_unlock(&sessions->mutex);
    if (sessions->tier != NULL) {
        (void)firn_tier_remove_session(sessions->tier, ns, id, NULL);
    }
}
