/*
 * Warm-ups: from a prompt to pins in RAM and on disk. Owns the order of steps and the list of what is pinned in RAM
 * alone; the pins themselves are the tree's and the tier's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "server/json_field.h"
#include "server/transcript.h"
#include "server/warm.h"

#define SECOND_NS    UINT64_C(1000000000)
#define TTL_MAX_S    (INT64_C(10) * 366 * 86400)
#define FLUSH_NS_MAX (600 * SECOND_NS)

typedef struct firni_warm_pin {
    struct firni_warm_pin *next;
    char *name, *ns;
    uint32_t n_tokens;
    uint64_t until_wall_ns;
} firni_warm_pin;

void firni_warmer_init(firni_warmer *warmer)
{
    (void)pthread_mutex_init(&warmer->mutex, NULL);
    warmer->pins = NULL;
}

static void free_pin(const firn_env *env, firni_warm_pin *pin)
{
    if (pin != NULL) {
        firni_free(env, pin->name);
        firni_free(env, pin->ns);
        firni_free(env, pin);
    }
}

void firni_warmer_deinit(firni_warmer *warmer)
{
    while (warmer->pins != NULL) {
        firni_warm_pin *next = warmer->pins->next;
        free_pin(warmer->env, warmer->pins);
        warmer->pins = next;
    }
    (void)pthread_mutex_destroy(&warmer->mutex);
}

static firni_warm_pin *take_pin(firni_warmer *warmer, const char *name)
{
    (void)pthread_mutex_lock(&warmer->mutex);
    firni_warm_pin **link = &warmer->pins;
    while (*link != NULL && strcmp((*link)->name, name) != 0) {
        link = &(*link)->next;
    }
    firni_warm_pin *pin = *link;
    if (pin != NULL) {
        *link = pin->next;
    }
    (void)pthread_mutex_unlock(&warmer->mutex);
    return pin;
}

/* Without memory the pin holds and is not listed. */
static void note_pin(firni_warmer *warmer, const char *name, const char *ns, uint32_t n_tokens, uint64_t until_wall_ns)
{
    free_pin(warmer->env, take_pin(warmer, name));
    firni_warm_pin *pin = firni_calloc(warmer->env, 1, sizeof *pin);
    if (pin == NULL) {
        return;
    }
    *pin = (firni_warm_pin){ .name = firni_strdup(warmer->env, name),
                             .ns = firni_strdup(warmer->env, ns),
                             .n_tokens = n_tokens,
                             .until_wall_ns = until_wall_ns };
    if (pin->name == NULL || pin->ns == NULL) {
        free_pin(warmer->env, pin);
        return;
    }
    (void)pthread_mutex_lock(&warmer->mutex);
    pin->next = warmer->pins;
    warmer->pins = pin;
    (void)pthread_mutex_unlock(&warmer->mutex);
}

/* ---- waiting for the engine -------------------------------------------------------------------------------------- */

typedef struct outcome {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_done;
    firn_finish finish;
    firn_usage usage;
    firn_error error;
    firn_flush_report report;
} outcome;

static void outcome_init(outcome *out)
{
    memset(out, 0, sizeof *out);
    (void)pthread_mutex_init(&out->mutex, NULL);
    (void)pthread_cond_init(&out->changed, NULL);
}

static void outcome_done_locked(outcome *out)
{
    out->is_done = true;
    (void)pthread_cond_signal(&out->changed);
}

static void outcome_wait(outcome *out)
{
    (void)pthread_mutex_lock(&out->mutex);
    while (!out->is_done) {
        (void)pthread_cond_wait(&out->changed, &out->mutex);
    }
    (void)pthread_mutex_unlock(&out->mutex);
}

static void outcome_deinit(outcome *out)
{
    (void)pthread_cond_destroy(&out->changed);
    (void)pthread_mutex_destroy(&out->mutex);
}

static void on_event(void *ctx, const firn_event *event)
{
    outcome *out = ctx;
    if (event->kind == FIRN_EVENT_END) {
        (void)pthread_mutex_lock(&out->mutex);
        out->finish = event->finish;
        out->usage = *event->usage;
        if (event->error != NULL) {
            out->error = *event->error;
        }
        outcome_done_locked(out);
        (void)pthread_mutex_unlock(&out->mutex);
    }
}

static void on_flushed(void *ctx, const firn_flush_report *report)
{
    outcome *out = ctx;
    (void)pthread_mutex_lock(&out->mutex);
    out->report = *report;
    outcome_done_locked(out);
    (void)pthread_mutex_unlock(&out->mutex);
}

bool firni_warm_flush(firn_engine *engine, uint64_t bound_ns, firn_flush_report *report)
{
    outcome out;
    outcome_init(&out);
    const bool begun = firn_engine_flush(engine, bound_ns, on_flushed, &out, NULL) == FIRN_OK;
    if (begun) {
        outcome_wait(&out);
        *report = out.report;
    }
    outcome_deinit(&out);
    return begun;
}

/* ---- one warm-up ------------------------------------------------------------------------------------------------- */

typedef struct warm_up {
    firni_warmer *warmer;
    const char *name, *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    uint64_t until_wall_ns;
    bool is_there; /* a pin on disk of just these tokens */
} warm_up;

static bool compare_pin(void *ctx, const firn_pin *pin)
{
    warm_up *job = ctx;
    job->is_there = job->is_there || (strcmp(pin->name, job->name) == 0 && strcmp(pin->ns, job->ns) == 0 &&
                                      pin->n_tokens == job->n_tokens &&
                                      memcmp(pin->tokens, job->tokens, job->n_tokens * sizeof *job->tokens) == 0);
    return !job->is_there;
}

static bool pin_on_disk(const warm_up *job, firni_problem *problem)
{
    const firn_pin pin = { .name = job->name,
                           .ns = job->ns,
                           .tokens = job->tokens,
                           .n_tokens = job->n_tokens,
                           .until_wall_ns = job->until_wall_ns };
    firn_error err = { 0 };
    err.status = firn_tier_pin(job->warmer->tier, &pin, &err);
    if (err.status == FIRN_OK) {
        return true;
    }
    return firni_problem_set(problem, err.status == FIRN_ERR_CAPACITY ? 507 : 503, "not_pinned", NULL, "%s",
                             err.message);
}

/* The engine reads the tokens, and pins them in RAM. */
static bool read_tokens(const warm_up *job, firni_warm_report *report, firni_problem *problem)
{
    outcome out;
    outcome_init(&out);
    const firn_request request = { .prompt = job->tokens,
                                   .n_prompt = job->n_tokens,
                                   .ns = job->ns,
                                   .only_prefill = true,
                                   .pin = job->name,
                                   .pin_until_wall_ns = job->until_wall_ns,
                                   .on_event = on_event,
                                   .ctx = &out };
    uint64_t id;
    firn_error err = { 0 };
    firn_status status = firn_engine_submit(job->warmer->engine, &request, &id, &err);
    if (status == FIRN_OK) {
        outcome_wait(&out);
        status = out.finish == FIRN_FINISH_LENGTH ? FIRN_OK
                 : out.finish == FIRN_FINISH_ERROR ? out.error.status
                                                   : FIRN_ERR_STATE;
        err = out.error;
        report->n_computed = out.usage.prompt_tokens - out.usage.cache.n_tokens;
    }
    outcome_deinit(&out);
    err.status = status;
    return status == FIRN_OK || firni_problem_from_error(problem, &err, "prompt");
}

static bool warm(warm_up *job, firni_warm_report *report, firni_problem *problem)
{
    firni_warmer *warmer = job->warmer;
    *report = (firni_warm_report){ .n_tokens = job->n_tokens, .until_wall_ns = job->until_wall_ns };
    (void)strncpy(report->name, job->name, sizeof report->name - 1);
    if (warmer->tier != NULL) {
        (void)firn_tier_each_pin(warmer->tier, compare_pin, job, NULL);
    }
    report->was_there = job->is_there;
    if (!job->is_there && !read_tokens(job, report, problem)) {
        return false;
    }
    if (warmer->tier != NULL) {
        firn_flush_report flushed;
        if (!job->is_there && !firni_warm_flush(warmer->engine, FLUSH_NS_MAX, &flushed)) {
            return firni_problem_set(problem, 503, "stopping", NULL, "the server is stopping");
        }
        if (!pin_on_disk(job, problem)) {
            firn_engine_unpin(warmer->engine, job->name);
            return false;
        }
        report->is_durable = true;
    } else {
        note_pin(warmer, job->name, job->ns, job->n_tokens, job->until_wall_ns);
    }
    return true;
}

/* ---- from JSON and text ------------------------------------------------------------------------------------------ */

static bool encode_text(const firni_warmer *warmer, const char *text, size_t n_bytes, firn_token **tokens, uint32_t *n,
                        firni_problem *problem)
{
    const firn_encode_options options = { .add_bos = true };
    firn_error err = { 0 };
    err.status =
        firn_tokenizer_encode(firn_model_tokenizer(warmer->model), text, n_bytes, &options, tokens, n, &err);
    return err.status == FIRN_OK || firni_problem_from_error(problem, &err, "prompt");
}

/* What two conversations that begin with these messages, and go on with different words, have in common. A last message
 * of the user is followed by the assistant's turn, which has no words yet. */
static bool encode_messages(const firni_warmer *warmer, const firn_chat_message *messages, uint32_t n_messages,
                            firn_token **tokens, uint32_t *n, firni_problem *problem)
{
    const firn_tokenizer *tokenizer = firn_model_tokenizer(warmer->model);
    firn_error err = { 0 };
    if (strcmp(messages[n_messages - 1].role, "user") == 0) {
        err.status = firn_tokenizer_chat(tokenizer, messages, n_messages, tokens, n, &err);
        return err.status == FIRN_OK || firni_problem_from_error(problem, &err, "messages");
    }
    firn_chat_message *probe = firni_calloc(warmer->env, (size_t)n_messages + 1, sizeof *probe);
    if (probe == NULL) {
        return firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
    }
    memcpy(probe, messages, n_messages * sizeof *probe);
    firn_token *others[2] = { NULL, NULL };
    uint32_t n_others[2] = { 0, 0 };
    static const char *const words[2] = { "Alpha", "7 omega" };
    for (unsigned i = 0; i < 2 && err.status == FIRN_OK; i++) {
        probe[n_messages] = (firn_chat_message){ .role = "user", .content = words[i] };
        err.status = firn_tokenizer_chat(tokenizer, probe, n_messages + 1, &others[i], &n_others[i], &err);
    }
    firni_free(warmer->env, probe);
    *n = 0;
    while (*n < n_others[0] && *n < n_others[1] && others[0][*n] == others[1][*n]) {
        ++*n;
    }
    free(others[1]);
    *tokens = others[0];
    return err.status == FIRN_OK || firni_problem_from_error(problem, &err, "messages");
}

static bool finish(firni_warmer *warmer, const char *name, const char *ns, uint64_t ttl_ns, firn_token *tokens,
                   uint32_t n_tokens, firni_warm_report *report, firni_problem *problem)
{
    warm_up job = { .warmer = warmer,
                    .name = name,
                    .ns = ns,
                    .tokens = tokens,
                    .n_tokens = n_tokens,
                    .until_wall_ns = firni_wall_ns(warmer->env) + ttl_ns };
    const bool ok = n_tokens > 0 ? warm(&job, report, problem)
                                 : firni_problem_field(problem, "invalid_value", "prompt", "the prompt has no tokens");
    free(tokens); /* the tokenizer's malloc */
    return ok;
}

bool firni_warm_text(firni_warmer *warmer, const char *text, size_t n_bytes, const char *name,
                     firni_warm_report *report, firni_problem *problem)
{
    firn_token *tokens = NULL;
    uint32_t n_tokens = 0;
    return encode_text(warmer, text, n_bytes, &tokens, &n_tokens, problem) &&
           finish(warmer, name, warmer->parent != NULL ? warmer->parent : "", warmer->ttl_ns, tokens, n_tokens, report,
                  problem);
}

/* The chat format's own parser checks the messages, as it does those of a request. */
static bool encode_body_messages(const firni_warmer *warmer, const json_t *body, firn_token **tokens, uint32_t *n,
                                 firni_problem *problem)
{
    firni_ask ask;
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL) {
        return firni_problem_set(problem, 503, "no_memory", NULL, "out of memory");
    }
    bool ok = firni_ask_parse(&firni_wire_chat, text, strlen(text), NULL, warmer->env, &ask, problem);
    free(text);
    if (ok) {
        ok = encode_messages(warmer, ask.messages, ask.n_messages, tokens, n, problem);
        firni_ask_deinit(&ask);
    }
    return ok;
}

bool firni_warm_body(firni_warmer *warmer, const json_t *body, const char *name, firni_warm_report *report,
                     firni_problem *problem)
{
    const char *ns = warmer->parent != NULL ? warmer->parent : "", *prompt = NULL, *own_name = name;
    int64_t ttl_s = (int64_t)(warmer->ttl_ns / SECOND_NS);
    if (!firni_field_string(body, "name", &own_name, problem) ||
        !firni_field_string(body, "namespace", &ns, problem) ||
        !firni_field_string(body, "prompt", &prompt, problem) ||
        !firni_field_integer(body, "ttl", 1, TTL_MAX_S, &ttl_s, problem)) {
        return false;
    }
    if (own_name == NULL || own_name[0] == '\0' || strlen(own_name) > FIRN_KEEP_NAME_BYTES_MAX) {
        return firni_problem_field(problem, "invalid_value", "name", "name must have 1 to %d bytes",
                                   FIRN_KEEP_NAME_BYTES_MAX);
    }
    if (strlen(ns) > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_problem_field(problem, "out_of_range", "namespace", "a cache namespace may have at most %d bytes",
                                   FIRN_NAMESPACE_BYTES_MAX);
    }
    if ((prompt != NULL) == (firni_field(body, "messages") != NULL)) {
        return firni_problem_field(problem, "missing", "prompt", "either prompt or messages is required");
    }
    firn_token *tokens = NULL;
    uint32_t n_tokens = 0;
    return (prompt != NULL ? encode_text(warmer, prompt, strlen(prompt), &tokens, &n_tokens, problem)
                           : encode_body_messages(warmer, body, &tokens, &n_tokens, problem)) &&
           finish(warmer, own_name, ns, (uint64_t)ttl_s * SECOND_NS, tokens, n_tokens, report, problem);
}

/* ---- listing and ending ------------------------------------------------------------------------------------------ */

bool firni_namespace_json(json_t *object, const char *ns)
{
    const char *below = strrchr(ns, FIRN_NAMESPACE_BELOW);
    const char *own = below != NULL ? below + 1 : ns;
    bool ok = json_object_set_new(object, "namespace", firni_valid_text(own, strlen(own))) == 0;
    if (ok && below != NULL) {
        ok = json_object_set_new(object, "parent", firni_valid_text(ns, (size_t)(below - ns))) == 0;
    }
    return ok;
}

typedef struct pin_array {
    json_t *array;
    bool failed;
} pin_array;

static void add_pin(pin_array *list, const char *name, const char *ns, uint32_t n_tokens, uint64_t n_bytes,
                    uint64_t until_wall_ns, bool is_durable)
{
    json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:b}", "name", firni_valid_text(name, strlen(name)), "tokens",
                               (json_int_t)n_tokens, "bytes", (json_int_t)n_bytes, "until",
                               (json_int_t)(until_wall_ns / SECOND_NS), "durable", (int)is_durable);
    const bool ok = object != NULL && firni_namespace_json(object, ns);
    list->failed = list->failed || !ok || json_array_append(list->array, object) != 0;
    json_decref(object);
}

static bool add_disk_pin(void *ctx, const firn_pin *pin)
{
    add_pin(ctx, pin->name, pin->ns, pin->n_tokens, pin->n_bytes, pin->until_wall_ns, true);
    return true;
}

json_t *firni_warm_pins_json(firni_warmer *warmer)
{
    pin_array list = { .array = json_array() };
    const uint64_t now_ns = firni_wall_ns(warmer->env);
    if (warmer->tier != NULL && list.array != NULL) {
        (void)firn_tier_each_pin(warmer->tier, add_disk_pin, &list, NULL);
    }
    (void)pthread_mutex_lock(&warmer->mutex);
    for (const firni_warm_pin *pin = warmer->pins; pin != NULL && list.array != NULL; pin = pin->next) {
        if (pin->until_wall_ns > now_ns) {
            add_pin(&list, pin->name, pin->ns, pin->n_tokens, 0, pin->until_wall_ns, false);
        }
    }
    (void)pthread_mutex_unlock(&warmer->mutex);
    if (list.failed) {
        json_decref(list.array);
        return NULL;
    }
    return list.array;
}

bool firni_warm_unpin(firni_warmer *warmer, const char *name)
{
    firni_warm_pin *pin = take_pin(warmer, name);
    bool found = pin != NULL;
    free_pin(warmer->env, pin);
    firn_engine_unpin(warmer->engine, name);
    if (warmer->tier != NULL) {
        found = firn_tier_unpin(warmer->tier, name, NULL) == FIRN_OK || found;
    }
    return found;
}
