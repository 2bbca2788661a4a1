/*
 * Last logits and the tier below. Owns what of them is stored, and their form there; what a lookup does with them is
 * finder.c's and lease.c's.
 *
 *      RAM, the latest prompts:  state (nodes) + logits --- flush ---> tier:  records + object "firn.last_logits.1"
 *
 * They go along with a flush, as the tail that they stand behind does, and after it: a store of logits alone, which the
 * tier takes only where it has all of their state. Then no turn of a conversation writes a vocabulary, and the prompts
 * that came last before a stop are answered without a forward after it.
 *
 * What they save is one token of computing, so nothing is given up for them: they are stored at the lowest priority,
 * for which a tier evicts nothing else and which goes first; only where they take no more than an eighth of the bytes
 * of the state that they belong to; and a refusal is counted and no illness of the tier.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

#define LOGITS_SCHEMA "firn.last_logits.1" /* one tensor, f32, as many as the vocabulary has tokens */

enum { STATE_BYTES_PER_BYTE = 8 };

/* ---- to the tier ------------------------------------------------------------------------------------------------- */

static bool is_worth_storing(const firn_prefix *prefix, const firni_logits *logits)
{
    return (uint64_t)logits->n_logits * sizeof *logits->values * STATE_BYTES_PER_BYTE <=
           firni_state_bytes(prefix, logits->n_tokens);
}

/* Whether their state is in the tree and not, or not yet, below. What has left the tree may be there: the
 * tier knows. */
static bool has_unsaved_state(const firn_prefix *prefix, const firni_logits *logits)
{
    const firni_match match =
        firni_match_tokens(firni_root_find(prefix, logits->ns), logits->tokens, logits->n_tokens);
    if (match.n_matched < logits->n_tokens || match.node == NULL) {
        return false;
    }
    const firni_checkpoint *checkpoint = firni_checkpoint_find(match.node, logits->n_tokens);
    bool is_unsaved = checkpoint != NULL && checkpoint->unsaved;
    for (const firni_node *node = match.node; node->parent != NULL && !is_unsaved; node = node->parent) {
        is_unsaved = node->blocks_unsaved || node->ram_only;
    }
    return is_unsaved;
}

firni_job *firni_logits_job_next(firn_prefix *prefix)
{
    firni_logits *logits = prefix->logits;
    while (logits != NULL && (logits->is_saved || logits->is_storing || logits->ram_only ||
                              logits->flush_mark == prefix->flush_number || !is_worth_storing(prefix, logits) ||
                              has_unsaved_state(prefix, logits))) {
        logits = logits->next;
    }
    firni_job *job = logits != NULL ? firni_calloc(prefix->env, 1, sizeof *job) : NULL;
    if (job != NULL) {
        logits->flush_mark = prefix->flush_number;
        logits->is_storing = true;
        job->message.kind = FIRNI_MESSAGE_STORED;
        job->prefix = prefix;
        job->logits = firni_logits_retain(logits);
    }
    return job;
}

bool firni_logits_job_store(firn_prefix *prefix, const firni_job *job, firn_reason *reason)
{
    const firni_logits *logits = job->logits;
    const firn_tensor tensor = { .dtype = FIRN_DTYPE_F32,
                                 .n_dims = 1,
                                 .shape = { logits->n_logits },
                                 .data = logits->values,
                                 .n_bytes = (uint64_t)logits->n_logits * sizeof *logits->values };
    const firn_attachment attachment = { .schema = LOGITS_SCHEMA, .tensors = &tensor, .n_tensors = 1 };
    const firn_store_input input = { .tokens = logits->tokens,
                                     .n_tokens = logits->n_tokens,
                                     .ns = logits->ns,
                                     .attachments = &attachment,
                                     .n_attachments = 1,
                                     .priority = FIRN_PRIORITY_MIN };
    return firn_tier_store(prefix->options.tier, &input, reason);
}

void firni_logits_job_ended(firn_prefix *prefix, const firni_job *job)
{
    job->logits->is_storing = false;
    job->logits->is_saved = job->stored;
    prefix->stats.n_logits_stored += job->stored;
    prefix->stats.n_logits_refused += !job->stored;
    prefix->stats.reasons[job->reason] += !job->stored;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

/* The tier promises the tokens; logits of others would be a wrong answer, so they are compared all the same. */
firni_logits *firni_logits_of_object(const firn_env *env, const firni_find *find, uint32_t n_logits)
{
    const firn_restored *object = &find->object;
    if (object->n_tokens != find->n_tokens || object->tokens == NULL ||
        firni_tokens_common(object->tokens, find->tokens, find->n_tokens) != find->n_tokens) {
        return NULL;
    }
    for (uint32_t i = 0; i < object->n_attachments; i++) {
        const firn_attachment *attachment = &object->attachments[i];
        const firn_tensor *tensor = attachment->tensors;
        if (strcmp(attachment->schema, LOGITS_SCHEMA) != 0 || attachment->n_tensors != 1 ||
            tensor->dtype != FIRN_DTYPE_F32 || tensor->n_dims != 1 || tensor->shape[0] != n_logits) {
            continue;
        }
        firni_logits *logits = firni_logits_create(env, find->tokens, find->n_tokens, find->ns, n_logits);
        if (logits != NULL) {
            memcpy(logits->values, tensor->data, n_logits * sizeof *logits->values);
            logits->is_saved = true;
        }
        return logits;
    }
    return NULL;
}
