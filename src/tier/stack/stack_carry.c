/*
 * State that outlives the call that brought it: copies of names, tokens and attachments, and caches that share the
 * blocks of the original. Owns these copies; what is done with them is promotion's and the stores' business.
 *
 * Sharing is exact: a row that is written to later copies its shared tail first, on whichever side writes.
 */
#include <string.h>

#include "array/array_impl.h"
#include "record/record_impl.h"
#include "tier/stack/stack_impl.h"

firn_token *firni_tokens_copy(const firn_env *env, const firn_token *tokens, uint32_t n_tokens)
{
    firn_token *copy = firni_calloc(env, (size_t)n_tokens + 1, sizeof *copy);
    if (copy != NULL && n_tokens > 0) {
        memcpy(copy, tokens, n_tokens * sizeof *copy);
    }
    return copy;
}

/* One attachment; on failure what there is of it can be freed. */
static bool copy_attachment(const firn_env *env, const firn_attachment *from, firn_attachment *out)
{
    firn_tensor *tensors = firni_calloc(env, (size_t)from->n_tensors + 1, sizeof *tensors);
    uint8_t *metadata = firni_calloc(env, (size_t)from->n_metadata_bytes + 1, 1);
    *out = (firn_attachment){ .schema = firni_strdup(env, from->schema),
                              .metadata = metadata,
                              .n_metadata_bytes = from->n_metadata_bytes,
                              .tensors = tensors };
    if (out->schema == NULL || metadata == NULL || tensors == NULL) {
        return false;
    }
    if (from->n_metadata_bytes > 0) {
        memcpy(metadata, from->metadata, from->n_metadata_bytes);
    }
    for (; out->n_tensors < from->n_tensors; out->n_tensors++) {
        const firn_tensor *tensor = &from->tensors[out->n_tensors];
        firn_tensor *copy = &tensors[out->n_tensors];
        if (firni_tensor_alloc(copy, tensor->dtype, tensor->n_dims, tensor->shape, env, NULL) != FIRN_OK) {
            return false;
        }
        if (tensor->n_bytes > 0) {
            memcpy(copy->data, tensor->data, (size_t)tensor->n_bytes);
        }
    }
    return true;
}

firn_attachment *firni_attachments_copy(const firn_env *env, const firn_attachment *from, uint32_t n, bool *ok)
{
    firn_attachment *copies = firni_calloc(env, n, sizeof *copies);
    *ok = copies != NULL || n == 0;
    for (uint32_t a = 0; a < n && *ok; a++) {
        *ok = copy_attachment(env, &from[a], &copies[a]);
    }
    if (!*ok) {
        firni_attachments_free(env, copies, n);
        copies = NULL;
    }
    return copies;
}

uint64_t firni_input_bytes(const firn_store_input *input)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < input->n_caches; i++) {
        n_bytes += firn_cache_projected_bytes(input->caches[i], input->n_tokens);
    }
    for (uint32_t a = 0; a < input->n_attachments; a++) {
        n_bytes += input->attachments[a].n_metadata_bytes;
        for (uint32_t t = 0; t < input->attachments[a].n_tensors; t++) {
            n_bytes += input->attachments[a].tensors[t].n_bytes;
        }
    }
    return n_bytes;
}

firni_carried *firni_carried_create(const firn_env *env, const firn_store_input *input)
{
    firni_carried *carried = firni_calloc(env, 1, sizeof *carried);
    if (carried == NULL) {
        return NULL;
    }
    bool ok;
    *carried = (firni_carried){ .env = env,
                                .ns = firni_strdup(env, input->ns != NULL ? input->ns : ""),
                                .tokens = firni_tokens_copy(env, input->tokens, input->n_tokens),
                                .n_tokens = input->n_tokens,
                                .caches = firni_calloc(env, (size_t)input->n_caches + 1, sizeof(firn_cache *)),
                                .attachments = firni_attachments_copy(env, input->attachments, input->n_attachments,
                                                                      &ok),
                                .priority = input->priority,
                                .n_bytes = firni_input_bytes(input) };
    carried->n_attachments = ok ? input->n_attachments : 0;
    ok = ok && carried->ns != NULL && carried->tokens != NULL && carried->caches != NULL;
    for (; ok && carried->n_caches < input->n_caches; carried->n_caches += ok) {
        ok = firn_cache_extract_row(input->caches[carried->n_caches], 0, &carried->caches[carried->n_caches], NULL) ==
             FIRN_OK;
    }
    if (!ok) {
        firni_carried_destroy(carried);
        return NULL;
    }
    return carried;
}

bool firni_carried_move(firni_carried *carried, firn_pool *pool)
{
    for (uint32_t i = 0; i < carried->n_caches; i++) {
        firn_cache *copy = firni_cache_copy(carried->env, carried->caches[i], pool);
        if (copy == NULL) {
            return false;
        }
        firn_cache_destroy(carried->caches[i]);
        carried->caches[i] = copy;
    }
    return true;
}

void firni_carried_destroy(firni_carried *carried)
{
    if (carried == NULL) {
        return;
    }
    for (uint32_t i = 0; i < carried->n_caches; i++) {
        firn_cache_destroy(carried->caches[i]);
    }
    firni_attachments_free(carried->env, carried->attachments, carried->n_attachments);
    firni_free(carried->env, carried->caches);
    firni_free(carried->env, carried->tokens);
    firni_free(carried->env, carried->ns);
    firni_free(carried->env, carried);
}

firn_store_input firni_carried_input(const firni_carried *carried)
{
    return (firn_store_input){ .tokens = carried->tokens,
                               .n_tokens = carried->n_tokens,
                               .caches = (const firn_cache *const *)carried->caches,
                               .n_caches = carried->n_caches,
                               .ns = carried->ns,
                               .attachments = carried->attachments,
                               .n_attachments = carried->n_attachments,
                               .priority = carried->priority };
}
