/*
 * Generation checkpoints: a request with an id can go on after the process was killed.
 *
 *      every N tokens   row --extract--> keeper: 1 its state into the tier, in a private namespace below the request's
 *                                                2 what was generated, and the sampler's state, as an object by key
 *      the end          keeper: object and state are removed
 *      the same again   submit: object --> tokens are sent as they were, state is found by them, generation goes on
 *
 * The private namespace reads the request's own, so only what was generated is stored twice; and since no other request
 * looks into it, what nobody has answered for yet is never another's hit. The object replaces the older one in one
 * transaction, after the state is there: at every moment one whole checkpoint is to be found.
 *
 * Why the answer is the same to the byte: tokens decide the state, whatever it was read from; seed and number of
 * choices decide the sampler's; and the text is made from the tokens again. What the request asked for is part of the
 * object, as a digest: another request of the same id begins anew.
 */
#include <stdio.h>
#include <string.h>

#include "base/condition.h"
#include "engine/engine_impl.h"
#include "engine/sampler_impl.h"
#include "record/record_impl.h"

#define OBJECT_KEY   "generation"
#define SCHEMA       "firn.generation.1"
#define WAIT_NS_MAX  UINT64_C(2000000000) /* for the object, when a request is submitted */
#define TTL_NS       UINT64_C(3600000000000)
#define NAME_PREFIX  "request "

/* What the object says beside the tokens. */
typedef struct generation_facts {
    firn_digest asked;
    uint64_t seed, n_choices;
} generation_facts;

/* Belongs to its sequence; the keeper's tasks share the part that they need. */
typedef struct firni_generation_keep {
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1]; /* private */
    generation_facts facts;
    firn_token *resumed; /* to be sent again */
    uint32_t n_resumed;
    uint32_t n_stored;   /* generated tokens at the last checkpoint */
    bool is_replayed, has_ended;
    atomic_bool *is_busy; /* a checkpoint is on its way; freed by the last of both sides */
    atomic_uint *refs;
} firni_generation_keep;

/* ---- what was asked ---------------------------------------------------------------------------------------------- */

/* Everything that the answer depends on, but a seed that was not given. */
static firn_digest digest_of(const firn_request *request, uint32_t max_tokens)
{
    const firn_sampling *s = &request->sampling;
    const float numbers[] = { s->temperature, s->top_p, s->min_p, s->repetition_penalty, s->presence_penalty,
                              s->frequency_penalty };
    const uint64_t counts[] = { s->top_k, s->penalty_last_n, s->has_seed, s->has_seed ? s->seed : 0, max_tokens,
                                request->ignore_end, request->is_new_text, request->n_stops };
    firni_field fields[4 + FIRNI_STOPS_MAX] = {
        { .bytes = request->prompt, .n_bytes = request->n_prompt * sizeof *request->prompt },
        { .bytes = numbers, .n_bytes = sizeof numbers },
        { .bytes = counts, .n_bytes = sizeof counts },
        { .bytes = s->biases, .n_bytes = s->n_biases * sizeof *s->biases },
    };
    for (uint32_t i = 0; i < request->n_stops; i++) {
        fields[4 + i] = (firni_field){ .bytes = request->stops[i], .n_bytes = strlen(request->stops[i]) };
    }
    return firni_digest_fields("firn.generation.1", fields, 4 + request->n_stops);
}

/* ---- reading one back -------------------------------------------------------------------------------------------- */

/* A read of bounded time: whoever comes last frees it. */
typedef struct waiting {
    const firn_env *env;
    pthread_mutex_t mutex;
    pthread_cond_t answered;
    bool is_answered, is_abandoned;
    firn_reason reason;
    firn_restored restored;
} waiting;

static void free_waiting(waiting *wait)
{
    firn_restored_deinit(&wait->restored);
    (void)pthread_cond_destroy(&wait->answered);
    (void)pthread_mutex_destroy(&wait->mutex);
    firni_free(wait->env, wait);
}

static void answer(void *ctx, firn_restored *restored, firn_reason reason)
{
    waiting *wait = ctx;
    (void)pthread_mutex_lock(&wait->mutex);
    wait->is_answered = true;
    wait->reason = reason;
    if (restored != NULL) {
        wait->restored = *restored;
        memset(restored, 0, sizeof *restored);
    }
    const bool is_abandoned = wait->is_abandoned;
    (void)pthread_cond_signal(&wait->answered);
    (void)pthread_mutex_unlock(&wait->mutex);
    if (is_abandoned) {
        free_waiting(wait);
    }
}

/* The object of the private namespace, within WAIT_NS_MAX; NULL when there is none, or it did not come. */
static waiting *read_object(firn_engine *engine, const char *ns)
{
    firn_tier *tier = engine->options.tier;
    firn_reason reason;
    firn_tier_handle *handle = firn_tier_find_object(tier, ns, OBJECT_KEY, &reason);
    waiting *wait = handle != NULL ? firni_calloc(engine->env, 1, sizeof *wait) : NULL;
    if (wait == NULL) {
        firn_tier_release(tier, handle);
        return NULL;
    }
    wait->env = engine->env;
    (void)pthread_mutex_init(&wait->mutex, NULL);
    (void)firni_condition_init(&wait->answered);
    const firn_status status = firn_tier_restore_object_async(
        tier, handle, firni_now_ns(engine->env) + WAIT_NS_MAX, answer, wait, NULL);
    firn_tier_release(tier, handle);
    if (status != FIRN_OK) {
        free_waiting(wait);
        return NULL;
    }
    const struct timespec until = firni_condition_deadline(WAIT_NS_MAX + UINT64_C(1000000000));
    (void)pthread_mutex_lock(&wait->mutex);
    int rc = 0;
    while (!wait->is_answered && rc == 0) {
        rc = pthread_cond_timedwait(&wait->answered, &wait->mutex, &until);
    }
    wait->is_abandoned = !wait->is_answered;
    const bool is_abandoned = wait->is_abandoned;
    (void)pthread_mutex_unlock(&wait->mutex);
    return is_abandoned ? NULL : wait;
}

/* Takes over what the object says, when it is of this very request and can be what it says. */
static void take_object(firn_engine *engine, firni_sequence *sequence, const firn_restored *restored)
{
    firni_generation_keep *keep = sequence->keep;
    const firn_attachment *found = restored->n_attachments == 1 ? &restored->attachments[0] : NULL;
    generation_facts facts;
    if (found == NULL || strcmp(found->schema, SCHEMA) != 0 || found->n_metadata_bytes != sizeof facts ||
        found->n_tensors != 1 || found->tensors[0].dtype != FIRN_DTYPE_I32 || found->tensors[0].n_dims != 1) {
        return;
    }
    memcpy(&facts, found->metadata, sizeof facts);
    const uint64_t n_tokens = found->tensors[0].shape[0];
    if (!firni_digest_equal(&facts.asked, &keep->facts.asked) || n_tokens == 0 || n_tokens > sequence->max_tokens) {
        return;
    }
    keep->resumed = firni_calloc(engine->env, (size_t)n_tokens, sizeof *keep->resumed);
    if (keep->resumed == NULL) {
        return;
    }
    memcpy(keep->resumed, found->tensors[0].data, (size_t)n_tokens * sizeof *keep->resumed);
    for (uint64_t i = 0; i < n_tokens; i++) {
        if (keep->resumed[i] >= engine->n_vocab) {
            return; /* n_resumed stays 0 */
        }
    }
    keep->facts = facts;
    keep->n_resumed = keep->n_stored = (uint32_t)n_tokens;
}

void firni_generation_begin(firn_engine *engine, const firn_request *request, firni_sequence *sequence, uint64_t *seed)
{
    const firn_engine_options *options = &engine->options;
    if (request->request_id == NULL || options->checkpoint_tokens == 0 || options->tier == NULL ||
        engine->prefix == NULL || sequence->cache.store != FIRN_STORE_DISK || sequence->n_logprobs > 0 ||
        sequence->only_prefill) {
        return;
    }
    char name[sizeof NAME_PREFIX + FIRN_NAMESPACE_BYTES_MAX];
    (void)snprintf(name, sizeof name, NAME_PREFIX "%.200s", request->request_id);
    firni_generation_keep *keep = firni_calloc(engine->env, 1, sizeof *keep);
    if (keep == NULL) {
        return; /* it is a convenience: the request runs without */
    }
    sequence->keep = keep;
    keep->is_busy = firni_calloc(engine->env, 1, sizeof *keep->is_busy);
    keep->refs = firni_calloc(engine->env, 1, sizeof *keep->refs);
    if (keep->is_busy == NULL || keep->refs == NULL ||
        firn_namespace_below(sequence->ns, name, keep->ns, NULL) != FIRN_OK) {
        firni_free(engine->env, keep->is_busy);
        firni_free(engine->env, keep->refs);
        firni_free(engine->env, keep);
        sequence->keep = NULL;
        return;
    }
    atomic_init(keep->is_busy, false);
    atomic_init(keep->refs, 1);
    keep->facts = (generation_facts){ .asked = digest_of(request, sequence->max_tokens), .seed = *seed };
    waiting *wait = read_object(engine, keep->ns);
    if (wait != NULL) {
        if (wait->reason == FIRN_REASON_NONE) {
            take_object(engine, sequence, &wait->restored);
        }
        free_waiting(wait);
    }
    *seed = keep->facts.seed;
}

static void drop_refs(const firn_env *env, atomic_bool *is_busy, atomic_uint *refs)
{
    if (atomic_fetch_sub(refs, 1) == 1) {
        firni_free(env, is_busy);
        firni_free(env, refs);
    }
}

void firni_generation_destroy_keep(firni_sequence *sequence)
{
    firni_generation_keep *keep = sequence->keep;
    if (keep != NULL) {
        drop_refs(sequence->env, keep->is_busy, keep->refs);
        firni_free(sequence->env, keep->resumed);
        firni_free(sequence->env, keep);
        sequence->keep = NULL;
    }
}

const char *firni_generation_namespace(const firni_sequence *sequence)
{
    return sequence->keep != NULL && sequence->keep->n_resumed > 0 ? sequence->keep->ns : sequence->ns;
}

void firni_generation_replay(firn_engine *engine, firni_sequence *sequence)
{
    firni_generation_keep *keep = sequence->keep;
    if (keep == NULL || keep->is_replayed || keep->n_resumed == 0) {
        return;
    }
    keep->is_replayed = true;
    const firn_tokenizer *tokenizer = firn_model_tokenizer(engine->options.model);
    for (uint32_t i = 0; i < keep->n_resumed && sequence->state == FIRNI_SEQUENCE_WAITING; i++) {
        firni_sequence_replay_token(sequence, keep->resumed[i], tokenizer);
        sequence->usage.resumed_tokens++;
    }
    firni_sampler_skip(sequence->sampler, keep->facts.n_choices);
    engine->stats.n_resumed++;
    engine->stats.resumed_tokens += sequence->usage.resumed_tokens;
    firni_log(engine->env, FIRN_LOG_INFO, "request %llu goes on from a checkpoint at %u generated tokens",
              (unsigned long long)sequence->id, sequence->usage.resumed_tokens);
}

/* ---- storing one ------------------------------------------------------------------------------------------------- */

typedef struct checkpoint_task {
    firni_task task;
    firn_engine *engine;
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    generation_facts facts;
    firn_token *tokens; /* [n_tokens]: prompt and answer; the state is of the first n_cached */
    uint32_t n_prompt, n_tokens, n_cached;
    int priority;
    firn_cache **caches;
    atomic_bool *is_busy;
    atomic_uint *refs;
} checkpoint_task;

static void free_checkpoint(firni_task *task)
{
    checkpoint_task *job = (checkpoint_task *)task;
    const firn_env *env = job->engine->env;
    firni_caches_release(env, job->caches, job->engine->schema->n_layers);
    atomic_store(job->is_busy, false);
    drop_refs(env, job->is_busy, job->refs);
    firni_free(env, job->tokens);
    firni_free(env, job);
}

/* The state first: an object whose state is missing would only mean more to compute, but the order costs nothing. */
static void store_checkpoint(firni_task *task)
{
    checkpoint_task *job = (checkpoint_task *)task;
    firn_engine *engine = job->engine;
    firn_tier *tier = engine->options.tier;
    firn_reason reason;
    const firn_store_input state = { .tokens = job->tokens,
                                     .n_tokens = job->n_cached,
                                     .caches = (const firn_cache *const *)job->caches,
                                     .n_caches = engine->schema->n_layers,
                                     .ns = job->ns,
                                     .priority = job->priority };
    if (firn_tier_store(tier, &state, &reason)) {
        const uint32_t n_generated = job->n_tokens - job->n_prompt;
        firn_tensor tensor = { .dtype = FIRN_DTYPE_I32,
                               .n_dims = 1,
                               .shape = { n_generated },
                               .data = job->tokens + job->n_prompt,
                               .n_bytes = n_generated * sizeof *job->tokens };
        const firn_attachment attachment = { .schema = SCHEMA,
                                             .metadata = &job->facts,
                                             .n_metadata_bytes = sizeof job->facts,
                                             .tensors = &tensor,
                                             .n_tensors = 1 };
        const uint64_t ttl_ns = engine->options.checkpoint_ttl_ns != 0 ? engine->options.checkpoint_ttl_ns : TTL_NS;
        const firn_object object = { .key = OBJECT_KEY,
                                     .ns = job->ns,
                                     .attachments = &attachment,
                                     .n_attachments = 1,
                                     .until_wall_ns = firni_wall_ns(engine->env) + ttl_ns,
                                     .priority = job->priority };
        if (firn_tier_put_object(tier, &object, &reason)) {
            (void)pthread_mutex_lock(&engine->mutex);
            engine->n_generation_checkpoints++;
            (void)pthread_mutex_unlock(&engine->mutex);
        }
    }
    free_checkpoint(task);
}

static bool extract(const firn_engine *engine, uint32_t row, firn_cache **caches, uint32_t n_tokens)
{
    bool complete = caches != NULL;
    for (uint32_t layer = 0; complete && layer < engine->schema->n_layers; layer++) {
        complete = firn_cache_can_publish_row(engine->caches[layer], row, n_tokens) &&
                   firn_cache_extract_row(engine->caches[layer], row, &caches[layer], NULL) == FIRN_OK;
    }
    return complete;
}

void firni_generation_progress(firn_engine *engine, uint32_t row)
{
    firni_sequence *sequence = engine->rows[row];
    firni_generation_keep *keep = sequence->keep;
    if (keep == NULL || sequence->usage.completion_tokens < keep->n_stored + engine->options.checkpoint_tokens ||
        sequence->n_tokens - sequence->n_cached != 1 || atomic_load(keep->is_busy)) {
        return;
    }
    keep->n_stored = sequence->usage.completion_tokens; /* also when it fails: the next one is due then */
    const firn_env *env = engine->env;
    checkpoint_task *job = firni_calloc(env, 1, sizeof *job);
    if (job == NULL) {
        return;
    }
    *job = (checkpoint_task){ .task = { .run = store_checkpoint, .drop = free_checkpoint },
                              .engine = engine,
                              .facts = keep->facts,
                              .tokens = firni_calloc(env, sequence->n_tokens, sizeof *job->tokens),
                              .n_prompt = sequence->n_prompt,
                              .n_tokens = sequence->n_tokens,
                              .n_cached = sequence->n_cached,
                              .priority = sequence->cache.priority,
                              .caches = firni_calloc(env, engine->schema->n_layers, sizeof *job->caches),
                              .is_busy = keep->is_busy,
                              .refs = keep->refs };
    job->facts.n_choices = firni_sampler_choices(sequence->sampler);
    memcpy(job->ns, keep->ns, sizeof job->ns);
    atomic_fetch_add(keep->refs, 1);
    atomic_store(keep->is_busy, true);
    if (job->tokens == NULL || !extract(engine, row, job->caches, sequence->n_cached)) {
        free_checkpoint(&job->task);
        return;
    }
    memcpy(job->tokens, sequence->tokens, sequence->n_tokens * sizeof *job->tokens);
    engine->stats.n_kept_dropped += !firni_keeper_post(engine->keeper, &job->task);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

typedef struct removal_task {
    firni_task task;
    firn_engine *engine;
    char ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    firn_token *tokens;
    uint32_t n_tokens;
} removal_task;

static void free_removal(firni_task *task)
{
    removal_task *job = (removal_task *)task;
    const firn_env *env = job->engine->env;
    firni_free(env, job->tokens);
    firni_free(env, job);
}

static void remove_checkpoint(firni_task *task)
{
    removal_task *job = (removal_task *)task;
    firn_tier *tier = job->engine->options.tier;
    (void)firn_tier_remove_object(tier, job->ns, OBJECT_KEY, NULL);
    (void)firn_tier_forget(tier, job->ns, job->tokens, job->n_tokens, NULL);
    free_removal(task);
}

void firni_generation_end(firn_engine *engine, firni_sequence *sequence)
{
    firni_generation_keep *keep = sequence->keep;
    if (keep == NULL || keep->n_stored == 0 || keep->has_ended) {
        return;
    }
    (void)pthread_mutex_lock(&engine->mutex);
    const bool is_stopping = engine->stopping;
    (void)pthread_mutex_unlock(&engine->mutex);
    if (is_stopping && sequence->finish == FIRN_FINISH_CANCELLED) {
        return; /* not the request's doing: it may be sent again after the restart */
    }
    keep->has_ended = true;
    removal_task *job = firni_calloc(engine->env, 1, sizeof *job);
    if (job == NULL) {
        return; /* it ends with its time to live */
    }
    *job = (removal_task){ .task = { .run = remove_checkpoint, .drop = free_removal },
                           .engine = engine,
                           .tokens = firni_calloc(engine->env, sequence->n_tokens, sizeof *job->tokens),
                           .n_tokens = sequence->n_tokens };
    memcpy(job->ns, keep->ns, sizeof job->ns);
    if (job->tokens == NULL) {
        free_removal(&job->task);
        return;
    }
    memcpy(job->tokens, sequence->tokens, sequence->n_tokens * sizeof *job->tokens);
    (void)firni_keeper_post(engine->keeper, &job->task);
}
